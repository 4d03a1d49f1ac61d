//! Tests of what is folded from a path.

use ollm_protocol::GoalId;
use ollm_protocol::content::{
    ContextEntryChange, GoalPriority, GoalSource, GoalStep, LeafMove, Pin, SessionHeader,
};

use super::*;
use crate::app::testing::TestSession;
use crate::session::NewSession;

fn goal(core: &Core, description: &str) -> RecordBody {
    let step = GoalStep::Create {
        id: GoalId::from_uuid(core.clock.uuid()),
        description: description.to_owned(),
        priority: GoalPriority::Medium,
        source: None,
    };
    let source = GoalSource::Client;
    RecordBody::Goal(GoalChange { source, message_seq: None, steps: vec![step] })
}

fn entry(key: &str, content: Option<&str>, priority: i32) -> RecordBody {
    let (key, content) = (key.to_owned(), content.map(str::to_owned));
    let priority = Some(priority);
    RecordBody::ContextEntry(ContextEntryChange { key, content, priority, source: None })
}

fn pin(target: u64, pinned: bool) -> RecordBody {
    RecordBody::Pin(Pin { target: Seq(target), pinned })
}

fn folds(session: &TestSession, project_path: Option<&str>) -> Folds {
    let path = active_path(&session.core, session.id).expect("is open");
    Folds::load(&session.core, session.id, &path, project_path).expect("folds")
}

/// Returns the active goal, the keys of the entries, and the pins.
fn summary(session: &TestSession) -> (Option<String>, Vec<String>, Vec<u64>) {
    let Folds { goals, entries, pins } = folds(session, None);
    let goal = goals.active().map(|goal| goal.description.clone());
    let keys = entries.into_iter().map(|entry| entry.key).collect();
    (goal, keys, pins.into_iter().map(|seq| seq.0).collect())
}

#[tokio::test]
async fn folds_follow_the_leaf_in_both_directions() {
    let session = TestSession::new(&[]);
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    assert_eq!(summary(&session), (None, Vec::new(), Vec::new()));
    let first = session.append(goal(&session.core, "one")).await;
    session.append(entry("b", Some("x"), 5)).await;
    session.append(pin(2, true)).await;
    session.append(pin(99, true)).await;
    let before = session.append(pin(1, true)).await;
    let one = (Some("one".to_owned()), keys(&["b"]), vec![2, 1]);
    assert_eq!(summary(&session), one);
    session.append(goal(&session.core, "two")).await;
    session.append(entry("a", Some("y"), 5)).await;
    session.append(entry("z", Some("y"), -1)).await;
    let after = session.append(pin(2, false)).await;
    let two = (Some("two".to_owned()), keys(&["z", "a", "b"]), vec![1]);
    assert_eq!(summary(&session), two);
    for (leaf, expect) in [(before, &one), (after, &two), (before, &one)] {
        let cause = "undo".to_owned();
        session.append(RecordBody::Leaf(LeafMove { to: Some(leaf), cause })).await;
        assert_eq!(summary(&session), *expect);
    }
    session.append(entry("b", None, 0)).await;
    assert_eq!(summary(&session).1, Vec::<String>::new());

    let path = active_path(&session.core, session.id).expect("is open");
    let changes =
        |after| goal_changes(&session.core, session.id, &path, after).expect("reads").len();
    assert_eq!((changes(None), changes(Some(first))), (1, 0));
    session.core.cache.forget(session.id);
    assert_eq!(summary(&session).0, one.0, "an uncached fold is read from the log");
}

#[tokio::test]
async fn extracted_lines_do_not_depend_on_the_cached_fold() {
    let session = TestSession::new(&[]);
    let mut seqs = Vec::new();
    for n in 0..8 {
        let said = session.record("user", &format!("Port {n} is 4821{n}.")).await;
        seqs.push(said.seq);
    }
    let lines = |range: std::ops::Range<usize>| {
        let (core, id, records) = (&session.core, session.id, &seqs[range]);
        let folded = extracted_lines(core, id, records).expect("folds");
        let counter = crate::tokens::Counter::ESTIMATE;
        folded.summary(records[0], None, &counter, 1000).render()
    };
    let ranges = [0..3, 0..5, 2..6, 4..8, 1..8, 1..4, 6..7];
    let cached: Vec<String> = ranges.clone().map(&lines).to_vec();
    for (range, cached) in ranges.into_iter().zip(cached) {
        session.core.cache.forget(session.id);
        assert!(cached.contains(&format!("4821{}", range.end - 1)), "{cached}");
        let whole = lines(range);
        // The first message of a range is its goal, which only a range without earlier notes needs, and no value beside it.
        let goal = whole.lines().nth(1).expect("a goal");
        let behind_goal = |text: &str| -> Vec<String> {
            let critical = text.split("## Critical").nth(1).unwrap_or_default();
            let lines = critical.lines().filter(|line| !line.ends_with(goal));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(behind_goal(&cached), behind_goal(&whole));
    }
}

#[tokio::test]
async fn fold_skips_a_damaged_record_and_restarts_when_it_is_readable() {
    let session = TestSession::new(&[]);
    let mut seqs = Vec::new();
    let lines = |seqs: &[Seq]| {
        let folded = extracted_lines(&session.core, session.id, seqs).expect("folds");
        let counter = crate::tokens::Counter::ESTIMATE;
        let text = folded.summary(Seq(0), None, &counter, 1000).render();
        let has = |port: &str| text.contains(port);
        [has("48210"), has("48211"), has("48212")]
    };
    for n in 0..2 {
        seqs.push(session.record("user", &format!("Port {n} is 4821{n}.")).await.seq);
    }
    let at = session.position_in_log("48210");
    session.overwrite_in_log(at, "?");
    assert_eq!(lines(&seqs), [false, true, false]);
    // Records that were read are not read again.
    let later = session.position_in_log("48211");
    session.overwrite_in_log(later, "?");
    seqs.push(session.record("user", "Port 2 is 48212.").await.seq);
    assert_eq!(lines(&seqs), [false, true, true]);
    session.overwrite_in_log(at, "4");
    session.overwrite_in_log(later, "4");
    assert_eq!(lines(&seqs), [true, true, true]);
}

#[tokio::test]
async fn narrowest_scope_of_a_key_wins() {
    let mut session = TestSession::new(&[]);
    let core = &session.core;
    session.id = core.clock.session_id();
    let mut header = SessionHeader::new(session.id, core.clock.now());
    header.project_path = Some("/p".to_owned());
    core.sessions.create(NewSession { header, key: None }).expect("creates");
    let set = |owner, key: &str, content: &str| {
        let (content, source) = (content.to_owned(), "hook".to_owned());
        let entry = StoredEntry { content, priority: 1, source };
        core.projects.set_entry(owner, key, Some(entry)).expect("writes");
    };
    for key in ["a", "b", "c"] {
        set(Owner::Global, key, "global");
    }
    for key in ["b", "c"] {
        set(Owner::Project("/p"), key, "project");
    }
    set(Owner::Project("/other"), "a", "other");
    session.append(entry("c", Some("session"), 0)).await;
    let in_force = || {
        let entries = folds(&session, Some("/p")).entries.into_iter();
        entries.map(|entry| (entry.key, entry.content, entry.scope)).collect::<Vec<_>>()
    };
    let of = |key: &str, content: &str, scope| (key.to_owned(), content.to_owned(), scope);
    let a = of("a", "global", ContextScope::Global);
    let b = of("b", "project", ContextScope::Project);
    let c = of("c", "session", ContextScope::Session);
    assert_eq!(in_force(), [c, a.clone(), b.clone()]);
    session.append(entry("c", None, 0)).await;
    assert_eq!(in_force(), [a, b, of("c", "project", ContextScope::Project)]);
}
