use ollm_protocol::content::{
    ArtifactAction, CheckpointStatus, GoalChange, GoalMarker, GoalPriority, GoalSource, GoalStatus,
    GoalStep,
};
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Timestamp};
use proptest::prelude::*;
use uuid::Uuid;

use super::block::{MARKER_INSTRUCTION, goal_block, goal_delta};
use super::*;

fn uuid(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn goal_id(n: u128) -> GoalId {
    GoalId::from_uuid(uuid(n))
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(ms)
}

fn client(steps: Vec<GoalStep>) -> GoalChange {
    GoalChange { source: GoalSource::Client, message_seq: None, steps }
}

fn create(n: u128, description: &str) -> GoalStep {
    let description = description.to_owned();
    GoalStep::Create { id: goal_id(n), description, priority: GoalPriority::High, source: None }
}

fn decide(n: u128, description: &str, locked: bool, supersedes: Option<u128>) -> GoalStep {
    GoalStep::AddDecision {
        goal: goal_id(1),
        id: DecisionId::from_uuid(uuid(n)),
        kind: None,
        description: description.to_owned(),
        locked,
        supersedes: supersedes.map(|n| DecisionId::from_uuid(uuid(n))),
        source: None,
    }
}

/// Applies the markers of a model's text, with ids from `first`.
fn say(state: &mut GoalState, first: u128, text: &str) -> usize {
    let markers = markers::parse(text, true);
    let steps = markers.into_iter().zip(first..);
    let steps = steps.map(|(marker, n)| GoalStep::Mark { id: goal_id(n), marker }).collect();
    let change = GoalChange { source: GoalSource::Marker, message_seq: None, steps };
    state.apply(at(i64::try_from(first).unwrap()), &change).expect("markers are never refused")
}

#[test]
fn new_goal_pauses_the_active_goal() {
    let mut state = GoalState::default();
    state.apply(at(1), &client(vec![create(1, "one")])).unwrap();
    state.apply(at(2), &client(vec![create(2, "two")])).unwrap();
    assert_eq!(state.active().unwrap().id, goal_id(2));
    assert_eq!(state.goals()[0].status, GoalStatus::Paused);
    let update = |status| GoalStep::Update {
        goal: goal_id(1),
        description: None,
        priority: None,
        status: Some(status),
    };
    state.apply(at(3), &client(vec![update(GoalStatus::Active)])).unwrap();
    assert_eq!(state.active().unwrap().id, goal_id(1));
    assert_eq!(state.goals()[1].status, GoalStatus::Paused);
    state.apply(at(4), &client(vec![update(GoalStatus::Completed)])).unwrap();
    assert_eq!(state.active(), None);
    assert_eq!(state.goals()[0].completed_at, Some(at(4)));
    assert_eq!(state.named_or_active(None).unwrap_err(), GoalError::NoActiveGoal);
}

#[test]
fn refused_change_changes_nothing() {
    let mut state = GoalState::default();
    let steps = vec![create(1, "one"), decide(5, "a", false, Some(9))];
    let refused = state.apply(at(1), &client(steps)).unwrap_err();
    assert_eq!(refused, GoalError::NoDecision { id: DecisionId::from_uuid(uuid(9)) });
    assert_eq!(state, GoalState::default());
}

#[test]
fn locked_decision_is_changed_only_by_clients() {
    let mut state = GoalState::default();
    let steps = vec![create(1, "auth"), decide(5, "Use JWT", true, None)];
    state.apply(at(1), &client(steps)).unwrap();
    let before = state.clone();
    for text in ["[DECISION] Use JWT", "[DECISION] use jwt. - LOCKED", "[GOAL] Use sessions"] {
        assert_eq!(say(&mut state, 100, text), 0, "{text}");
    }
    assert_eq!(state, before);
    assert_eq!(say(&mut state, 200, "[DECISION] Use sessions - LOCKED"), 1);
    assert!(state.active().unwrap().decisions[0].superseded_by.is_none());
    let instead = decide(6, "Use cookies", false, Some(5));
    state.apply(at(3), &client(vec![instead.clone()])).unwrap();
    let decisions = &state.active().unwrap().decisions;
    assert_eq!(decisions[0].superseded_by, Some(DecisionId::from_uuid(uuid(6))));
    assert_eq!(say(&mut state, 300, "[DECISION] Use JWT - LOCKED"), 0, "it was replaced");
    let GoalStep::AddDecision { description, .. } = instead else { unreachable!() };
    let again = decide(7, &format!("{description}!"), false, None);
    assert!(matches!(
        state.apply(at(4), &client(vec![again])),
        Err(GoalError::Exists { what: "decision", .. })
    ));
    let again = decide(8, "Use PASETO", false, Some(5));
    assert!(matches!(state.apply(at(4), &client(vec![again])), Err(GoalError::Superseded { .. })));
}

#[test]
fn markers_create_and_update_a_goal() {
    let mut state = GoalState::default();
    let text = "\
I begin.
[GOAL] Implement user authentication
[CHECKPOINT] Design the flow - COMPLETED
[CHECKPOINT] Add tokens \u{2014} in-progress
[CHECKPOINT] Write tests
[DECISION] Use JWT - LOCKED
[ARTIFACT] Created src/auth/login.ts
[ARTIFACT] Modified src/auth/login.ts
[ARTIFACT] Deleted `old auth.ts`
[NEXT] Finish tokens
[NEXT] Then registration";
    assert_eq!(say(&mut state, 10, text), 8);
    let goal = state.active().unwrap().clone();
    assert_eq!((goal.source, goal.id), (GoalSource::Marker, goal_id(10)));
    let steps: Vec<_> = goal.checkpoints.iter().map(|one| one.status.as_str()).collect();
    assert_eq!(steps, ["completed", "in-progress", "pending"]);
    assert!(goal.decisions[0].locked);
    let files: Vec<_> = goal.artifacts.iter().map(|one| (&*one.path, one.action)).collect();
    assert_eq!(
        files,
        [("src/auth/login.ts", ArtifactAction::Created), ("old auth.ts", ArtifactAction::Deleted)]
    );
    assert_eq!(goal.next_steps, ["Finish tokens", "Then registration"]);
    assert_eq!(say(&mut state, 40, text), 0, "repeated markers change nothing");
    assert_eq!(say(&mut state, 60, "* **[Checkpoint]** add TOKENS. - Completed"), 1);
    let done = &state.active().unwrap().checkpoints[1];
    assert_eq!((done.status, done.completed_at), (CheckpointStatus::Completed, Some(at(60))));
    assert_eq!(done.id, GoalCheckpointId::from_uuid(uuid(12)));
    assert_eq!(say(&mut state, 80, "[GOAL] Implement user authentication - COMPLETED"), 1);
    assert_eq!(state.active(), None);
    assert_eq!(say(&mut state, 90, "[CHECKPOINT] Anything - DONE"), 0, "there is no active goal");
}

#[test]
fn markers_are_parsed_in_every_spelling_and_nowhere_else() {
    let checkpoint = |description: &str, status: Option<CheckpointStatus>| {
        vec![GoalMarker::Checkpoint { description: description.to_owned(), status }]
    };
    let check = |text: &str, expect: Vec<GoalMarker>| {
        assert_eq!(markers::parse(text, true), expect, "{text:?}");
    };
    let in_progress = Some(CheckpointStatus::InProgress);
    for text in [
        "[CHECKPOINT] Add login - IN PROGRESS",
        "[checkpoint]  Add  login \u{2013} in-progress ",
        "[ Checkpoint ]: Add login \u{2014} In Progress.",
        "- [CHECKPOINT] Add login -- IN_PROGRESS",
        "3. **[CHECKPOINT]** Add login - **IN-PROGRESS**",
        "## [CHECKPOINT] Add login-IN PROGRESS\r\n",
        "  [CHECKPOINT] Add login -IN PROGRESS \u{1f504}",
    ] {
        check(text, checkpoint("Add login", in_progress));
    }
    check("[CHECKPOINT] Make it well-done", checkpoint("Make it well-done", None));
    check("[CHECKPOINT] Add the end-to-end test", checkpoint("Add the end-to-end test", None));
    check(
        "[CHECKPOINT] a `code` b - DONE",
        checkpoint("a `code` b", Some(CheckpointStatus::Completed)),
    );
    check("```\n``\n```\n[CHECKPOINT] x", checkpoint("x", None));
    check("it's `\n\n[CHECKPOINT] x", checkpoint("x", None));
    for ignored in [
        "",
        "[CHECKPOINT]",
        "[CHECKPOINT] - ",
        "say [CHECKPOINT] x",
        "[CHECKPOINT](link) x",
        "[CHECKPOINT][1] x",
        "[POINT] x",
        "    [CHECKPOINT] x",
        "\t[CHECKPOINT] x",
        "> [CHECKPOINT] x",
        "`[CHECKPOINT] x`",
        "an `open span\n[CHECKPOINT] x\nends` here",
        "```\n[CHECKPOINT] x\n```",
        "~~~text\n[CHECKPOINT] x\n```\n[CHECKPOINT] y\n~~~",
        "````\n```\n[CHECKPOINT] x\n````",
        "1. list\n   ```\n   [CHECKPOINT] x\n   ```",
        "- ```\n  [CHECKPOINT] x\n  ```",
        "```\n[CHECKPOINT] never closed",
        "[ARTIFACT] the new login page",
    ] {
        check(ignored, Vec::new());
    }
    assert_eq!(markers::parse("[NEXT] a\n[NEXT] b - COMPL", false).len(), 1);
    assert!(markers::parse("[NEXT] b", false).is_empty());
}

fn count(text: &str) -> u64 {
    // Four bytes are a token, and each line is one more: parts then cost no less than the whole.
    text.lines().map(|line| line.len() as u64 / 4 + 1).sum()
}

fn full() -> GoalState {
    let mut state = GoalState::default();
    let text = "\
[GOAL] Implement user authentication
[CHECKPOINT] Design the flow - COMPLETED
[CHECKPOINT] Add tokens - IN PROGRESS
[CHECKPOINT] Write tests
[DECISION] Use JWT - LOCKED
[DECISION] Name it auth
[ARTIFACT] Created src/auth/login.ts
[NEXT] Finish tokens";
    assert_eq!(say(&mut state, 10, text), 8);
    state
}

#[test]
fn goal_block_lists_important_items_first_and_counts_omitted_ones() {
    let state = full();
    let block = goal_block(&state, &count, 1000).unwrap();
    assert_eq!(block.omitted, 0);
    assert_eq!(
        block.text,
        "\
<goal priority=\"medium\">
Implement user authentication
In progress:
- Add tokens
Next steps:
- Finish tokens
Locked decisions, which only the user changes:
- Use JWT
Pending:
- Write tests
Decisions:
- Name it auth
Files:
- created src/auth/login.ts
Completed:
- Design the flow
</goal>"
    );
    let block = goal_block(&state, &count, 70).unwrap();
    assert!(block.text.contains("- Use JWT\n"), "{}", block.text);
    assert!(!block.text.contains("Design the flow"), "{}", block.text);
    assert!(block.text.ends_with(&format!("+{} more\n</goal>", block.omitted)));
    assert_eq!(goal_block(&state, &count, 5), None);
    assert_eq!(goal_block(&GoalState::default(), &count, 1000), None);
}

#[test]
fn newest_of_many_decisions_are_shown_within_the_share() {
    let mut state = full();
    for n in 0..150 {
        say(&mut state, 100 + n, &format!("[DECISION] use the port number {n} - LOCKED"));
    }
    let block = goal_block(&state, &count, 600).unwrap();
    assert!(count(&block.text) <= 600 && block.omitted > 50, "{}", block.omitted);
    assert!(block.text.contains("the port number 149\n") && !block.text.contains("number 0\n"));
    assert!(block.text.contains("- Add tokens\n") && block.text.contains("- Finish tokens\n"));
}

#[test]
fn delta_describes_the_changes() {
    let mut state = GoalState::default();
    let changes = [
        client(vec![create(1, "Ship it"), decide(5, "Use tabs", true, None)]),
        client(vec![decide(6, "Use spaces", false, Some(5))]),
        GoalChange { source: GoalSource::Marker, ..client(vec![create(2, "no")]) },
        client(vec![GoalStep::SetNextSteps { goal: goal_id(1), next_steps: vec!["a".into()] }]),
    ];
    for change in &changes {
        let _n_changed = state.apply(at(1), change).unwrap();
    }
    assert_eq!(
        goal_delta(&state, &changes),
        "New goal (high priority): Ship it\nDecided, locked: Use tabs\n\
         Decided: Use spaces, instead of: Use tabs\nNext steps: a"
    );
    assert_eq!(goal_delta(&state, &[]), "");
}

#[test]
fn repeated_instruction_sets_no_goal() {
    assert_eq!(markers::parse(MARKER_INSTRUCTION, true), []);
    let filled = MARKER_INSTRUCTION.replace(['<', '>'], "");
    // The line of the artifact names three actions, so it is a remark.
    assert_eq!(markers::parse(&filled, true).len(), 4);
}

#[test]
fn state_survives_serialization() {
    let state = full();
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<GoalState>(&json).unwrap(), state);
}

/// A text of markers, fences and quotes in any order.
fn marked_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("[GOAL] ".to_owned()),
        Just("[CHECKPOINT] ".to_owned()),
        Just("[DECISION] ".to_owned()),
        Just("[ARTIFACT] Created ".to_owned()),
        Just("[NEXT] ".to_owned()),
        Just(" - IN PROGRESS".to_owned()),
        Just(" \u{2014} LOCKED".to_owned()),
        Just("\n".to_owned()),
        Just("```".to_owned()),
        Just("~~~".to_owned()),
        Just("`".to_owned()),
        Just("> ".to_owned()),
        Just("</goal>".to_owned()),
        any::<String>(),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_keeps_the_invariants(text in marked_text(), whole in any::<bool>(), max in 0..300_u64) {
        let n_markers = markers::parse(&text, whole).len();
        let mut state = full();
        prop_assert!(say(&mut state, 1000, &text) <= markers::parse(&text, true).len());
        prop_assert!(state.goals().iter().filter(|g| g.status == GoalStatus::Active).count() <= 1);
        prop_assert!(n_markers <= 101);
        if let Some(block) = goal_block(&state, &count, max) {
            prop_assert!(count(&block.text) <= max);
            prop_assert_eq!(block.text.matches("</goal").count(), 1);
        }
    }

    #[test]
    fn fenced_and_quoted_markers_are_ignored(text in marked_text()) {
        let inner: String = text.lines().map(|line| format!("{}\n", line.replace('`', ""))).collect();
        let fenced = format!("````\n{inner}````");
        prop_assert!(markers::parse(&fenced, true).is_empty());
        let quoted: String = text.lines().map(|line| format!("> {line}\n")).collect();
        prop_assert!(markers::parse(&quoted, true).is_empty());
    }
}
