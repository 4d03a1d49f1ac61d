//! Folds of the records besides the conversation: goals, context entries and pins; and of the facts that messages state,
//! the files that tool calls used, and the lines for notes without a model.
//!
//! The newest record of a kind determines all earlier ones on its path. So a fold up to that record is cached and
//! continued, and moving the leaf needs no special case.

use std::collections::BTreeMap;
use std::sync::Arc;

use ollm_protocol::content::{
    ContextEntry, ContextScope, GoalChange, Record, RecordBody, RecordKind, Role,
};
use ollm_protocol::{Seq, SessionId};

use crate::app::cache::{CachedFolds, FoldedTo};
use crate::app::change::PlannedFold;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::partial::read_settled;
use crate::app::path::{ActivePath, records_between};
use crate::context::compact::Extractor;
use crate::context::{FileUses, PathItem};
use crate::facts::FactFold;
use crate::goal::GoalState;
use crate::projects::{Owner, StoredEntries, StoredEntry};
use crate::session::{OpenSession, SessionError};

/// Maximum number of records in memory while they are folded.
const MAX_BATCH: usize = 64;

/// The folds that a build needs.
pub(super) struct Folds {
    pub(super) goals: Arc<GoalState>,
    /// The context entries in force, in the order in which they are sent.
    pub(super) entries: Vec<ContextEntry>,
    /// The pinned records on the active path, in the order of pinning.
    pub(super) pins: Vec<Seq>,
}

impl Folds {
    /// Folds the new records of a path. Blocks on the disk.
    pub(super) fn load(
        core: &Core,
        id: SessionId,
        path: &ActivePath,
        project_path: Option<&str>,
    ) -> Result<Self> {
        let own = session_entries(core, id, path)?;
        let mut scopes = shared_entries(core, project_path)?;
        scopes.push((ContextScope::Session, StoredEntries::clone(&own)));
        Ok(Self {
            goals: goals(core, id, path)?,
            entries: merged_entries(scopes),
            pins: pins(core, id, path)?,
        })
    }
}

/// Returns the active path of a session. Blocks on the disk unless the session is open.
pub(super) fn active_path(core: &Core, id: SessionId) -> Result<Arc<ActivePath>> {
    Ok(core.sessions.with(id, |live| core.cache.path_to(live.state(), live.state().leaf()))?)
}

/// Returns the active path of a session without the pieces of an interrupted answer, for a change that names its leaf. Blocks on
/// the disk.
pub(super) fn settled_path(core: &Arc<Core>, id: SessionId) -> Result<Arc<ActivePath>> {
    read_settled(core, id, |live| core.cache.path_to(live.state(), live.state().leaf()))
}

/// Folds the goals on a path. Blocks on the disk.
pub(super) fn goals(core: &Core, id: SessionId, path: &ActivePath) -> Result<Arc<GoalState>> {
    fold(core, id, &path.goals, |folds| &mut folds.goals)
}

/// Folds the goals on a path before one of its records. Blocks on the disk.
pub(super) fn goals_before(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
    end: Seq,
) -> Result<Arc<GoalState>> {
    let n_before = path.goals.partition_point(|seq| *seq < end);
    fold(core, id, &path.goals[..n_before], |folds| &mut folds.goals)
}

/// Reads the changes of goals after a record, oldest first. Blocks on the disk.
pub(super) fn goal_changes(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
    after: Option<Seq>,
) -> Result<Vec<GoalChange>> {
    let first = path.goals.partition_point(|seq| Some(*seq) <= after);
    let bodies = core.sessions.bodies(id, &path.goals[first..])?;
    let changes = bodies.into_iter().filter_map(|body| match body {
        Some(RecordBody::Goal(change)) => Some(change),
        _ => None,
    });
    Ok(changes.collect())
}

/// Folds the context entries of the session itself. Blocks on the disk.
pub(super) fn session_entries(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
) -> Result<Arc<StoredEntries>> {
    fold(core, id, &path.entries, |folds| &mut folds.entries)
}

/// Reads the context entries of a project and of the home, the narrower scope last. Blocks on the disk.
pub(super) fn shared_entries(
    core: &Core,
    project_path: Option<&str>,
) -> Result<Vec<(ContextScope, StoredEntries)>> {
    let mut scopes = vec![(ContextScope::Global, core.projects.entries(Owner::Global)?)];
    if let Some(path) = project_path {
        scopes.push((ContextScope::Project, core.projects.entries(Owner::Project(path))?));
    }
    Ok(scopes)
}

/// Merges the entries of several scopes, the narrower ones last, into the order in which they are sent.
pub(super) fn merged_entries(
    scopes: impl IntoIterator<Item = (ContextScope, StoredEntries)>,
) -> Vec<ContextEntry> {
    let mut by_key = BTreeMap::new();
    for (scope, entries) in scopes {
        for (key, StoredEntry { content, priority, source }) in entries {
            let entry = ContextEntry {
                key: key.clone(),
                content,
                priority,
                source,
                scope,
                shortened: false,
            };
            by_key.insert(key, entry);
        }
    }
    let mut merged: Vec<_> = by_key.into_values().collect();
    // Stable: entries of one priority stay in the order of their keys.
    merged.sort_by_key(|entry| entry.priority);
    merged
}

/// Folds the pins whose records are on the path. Blocks on the disk.
pub(super) fn pins(core: &Core, id: SessionId, path: &ActivePath) -> Result<Vec<Seq>> {
    let mut pins = fold::<Vec<Seq>>(core, id, &path.pins, |folds| &mut folds.pins)?.to_vec();
    pins.retain(|seq| path.contains(*seq));
    Ok(pins)
}

/// Folds the facts on a path. Blocks on the disk.
///
/// Reads every message of the user that was not folded yet: after a restart, all of them. So it is called where a new
/// head is planned, facts are listed, or the retention of a compacted session is reported, and not at each build.
pub(super) fn facts(core: &Core, id: SessionId, path: &ActivePath) -> Result<Arc<FactFold>> {
    let states = |item: &&PathItem| match item.kind {
        RecordKind::Message => item.role == Some(Role::User),
        RecordKind::Custom => !item.in_context,
        kind => kind == RecordKind::ContextEntry,
    };
    let seqs: Vec<Seq> = path.items.iter().filter(states).map(|item| item.seq).collect();
    let folded = fold(core, id, &seqs, |folds| &mut folds.facts)?;
    core.cache.trim_folds();
    Ok(folded)
}

/// Folds the files that tool calls on a path used. Blocks on the disk.
pub(super) fn file_uses(core: &Core, id: SessionId, path: &ActivePath) -> Result<Arc<FileUses>> {
    let concerns = |item: &&PathItem| match item.kind {
        RecordKind::Message => item.calls_tools || item.role == Some(Role::Tool),
        kind => matches!(kind, RecordKind::ToolCall | RecordKind::PutBack),
    };
    let seqs: Vec<Seq> = path.items.iter().filter(concerns).map(|item| item.seq).collect();
    let folded = fold(core, id, &seqs, |folds| &mut folds.files)?;
    core.cache.trim_folds();
    Ok(folded)
}

/// Folds the lines of some consecutive records of a path, for notes without a model. Blocks on the disk.
///
/// The fold may hold lines of earlier records as well: [`Extractor::summary`] names the record to begin with.
pub(crate) fn extracted_lines(
    core: &Core,
    id: SessionId,
    records: &[Seq],
) -> Result<Arc<Extractor>> {
    let Some(first) = records.first() else { return Ok(Arc::default()) };
    let begins_later = |cached: &FoldedTo<Extractor>| {
        cached.fold.first() > Some(*first) && !cached.damaged.contains(first)
    };
    // A fold that began later lacks lines, unless its first records were damaged.
    core.cache.peek(id, |session| {
        let slot = &mut session.folds.extracted;
        if slot.as_ref().is_some_and(begins_later) {
            *slot = None;
        }
    });
    let folded = fold(core, id, records, |folds| &mut folds.extracted)?;
    core.cache.trim_folds();
    Ok(folded)
}

/// A fold of the records of one kind.
trait Fold: Clone + Default {
    /// Applies the next record of the path.
    fn apply_record(&mut self, record: Record);
}

/// The goals in force on the path to a leaf, for changes that the session's writer plans.
pub(super) struct GoalsInForce {
    leaf: Option<Seq>,
    pub(super) goals: Arc<GoalState>,
}

impl PlannedFold for GoalsInForce {
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        let path = |live: &OpenSession| core.cache.path_to(live.state(), live.state().leaf());
        let path = read_settled(core, id, path)?;
        Ok(Self { leaf: path.leaf, goals: goals(core, id, &path)? })
    }

    fn catch_up(&mut self, live: &OpenSession) -> Result<()> {
        let (state, reader) = (live.state(), live.reader());
        let new = records_between(state, self.leaf, state.leaf());
        if new.is_none() {
            self.goals = Arc::default();
        }
        for seq in new.unwrap_or_else(|| state.path()) {
            let entry = state.entry(seq).filter(|entry| entry.kind() == Some(RecordKind::Goal));
            let read = |entry| reader.read(entry);
            let record = entry.map(read).transpose();
            let record = record.map_err(|error| SessionError::fs(state.id(), &error))?;
            if let Some(record) = record.flatten() {
                Arc::make_mut(&mut self.goals).apply_record(record);
            }
        }
        self.leaf = state.leaf();
        Ok(())
    }
}

impl Fold for GoalState {
    fn apply_record(&mut self, record: Record) {
        let at = record.at;
        if let Some(RecordBody::Goal(change)) = record.into_body() {
            // A change that was refused when it was written is refused now too.
            drop(self.apply(at, &change));
        }
    }
}

impl Fold for StoredEntries {
    fn apply_record(&mut self, record: Record) {
        let Some(RecordBody::ContextEntry(change)) = record.into_body() else { return };
        match change.content {
            None => self.remove(&change.key),
            Some(content) => {
                let priority = change.priority.unwrap_or(ContextEntry::DEFAULT_PRIORITY);
                let source = change.source;
                let source = source.unwrap_or_else(|| ContextEntry::DEFAULT_SOURCE.to_owned());
                self.insert(change.key, StoredEntry { content, priority, source })
            }
        };
    }
}

impl Fold for FactFold {
    fn apply_record(&mut self, record: Record) {
        self.apply(record);
    }
}

impl Fold for FileUses {
    fn apply_record(&mut self, record: Record) {
        self.apply(record);
    }
}

impl Fold for Extractor {
    fn apply_record(&mut self, record: Record) {
        let seq = record.seq;
        if let Some(body) = record.into_body() {
            self.add(seq, &body);
        }
    }
}

impl Fold for Vec<Seq> {
    fn apply_record(&mut self, record: Record) {
        let Some(RecordBody::Pin(pin)) = record.into_body() else { return };
        let known = self.iter().position(|seq| *seq == pin.target);
        match (known, pin.pinned) {
            (None, true) => self.push(pin.target),
            (Some(at), false) => drop(self.remove(at)),
            _ => {}
        }
    }
}

/// Folds the records `seqs`, continuing the cached fold if its newest record is among them.
///
/// Damaged records are left out. One that can be read again, for example because its blob was put back, makes the fold start
/// again.
fn fold<T: Fold>(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
    slot: impl Fn(&mut CachedFolds) -> &mut Option<FoldedTo<T>>,
) -> Result<Arc<T>> {
    let Some(newest) = seqs.last().copied() else { return Ok(Arc::default()) };
    let cached = core.cache.peek(id, |session| {
        let cached = slot(&mut session.folds).as_ref()?;
        let at = seqs.binary_search(&cached.newest).ok()?;
        Some((at + 1, Arc::clone(&cached.fold), cached.damaged.clone()))
    });
    let (mut n_done, mut folded, mut damaged) = cached.flatten().unwrap_or_default();
    if can_read_one(core, id, &damaged)? {
        (n_done, folded, damaged) = Default::default();
    }
    if n_done < seqs.len() {
        let next = Arc::make_mut(&mut folded);
        for batch in seqs[n_done..].chunks(MAX_BATCH) {
            let records = core.sessions.records(id, batch)?;
            for (seq, record) in batch.iter().zip(records) {
                match record {
                    Some(record) => next.apply_record(record),
                    None => damaged.push(*seq),
                }
            }
        }
        let cached = FoldedTo { newest, fold: Arc::clone(&folded), damaged };
        core.cache.with(id, |session| *slot(&mut session.folds) = Some(cached));
    }
    Ok(folded)
}

/// Returns whether one of some damaged records can be read again.
fn can_read_one(core: &Core, id: SessionId, damaged: &[Seq]) -> Result<bool> {
    for batch in damaged.chunks(MAX_BATCH) {
        if core.sessions.records(id, batch)?.iter().any(Option::is_some) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
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
            // The first message of a range is its goal, which only a range without earlier notes needs.
            let behind_goal = |text: &str| text.split("## Critical").nth(1).map(str::to_owned);
            assert_eq!(behind_goal(&cached), behind_goal(&lines(range)));
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
}
