//! Tests of changes of goals.

use ollm_protocol::content::{CheckpointStatus, GoalPriority, LeafMove};
use serde_json::{Value, json};

use super::*;
use crate::app::testing::TestSession;

impl TestSession {
    async fn change_goals(&self, steps: Value, key: Option<&str>) -> Result<g::GoalChangeResult> {
        let params = json!({ "sessionId": self.id, "steps": steps, "key": key });
        let params = serde_json::from_value(params).expect("params");
        change(Arc::clone(&self.core), params).await
    }

    async fn make_step(&self, step: Value) -> Result<g::GoalChangeResult> {
        self.change_goals(json!([step]), None).await
    }

    fn goals(&self) -> Vec<Goal> {
        let params = serde_json::from_value(json!({ "sessionId": self.id })).expect("params");
        list(&self.core, params).expect("lists").data
    }
}

fn create(description: &str) -> Value {
    json!({ "action": "create", "description": description })
}

fn add_checkpoint(description: &str) -> Value {
    json!({ "action": "addCheckpoint", "description": description })
}

#[tokio::test]
async fn repeated_key_gives_the_same_result_after_later_changes() {
    let session = TestSession::new(&[]);
    let message = session.record("assistant", "[CHECKPOINT] Read - DONE\n[DECISION] Tabs").await;
    let steps = json!([
        create("one"),
        add_checkpoint("Read"),
        { "action": "applyMarkers", "seq": message.seq },
        { "action": "applyMarkers", "text": "no marker" },
        { "action": "addDecision", "description": "Use JWT" },
        { "action": "applyMarkers", "text": "[CHECKPOINT] read - DONE" },
    ]);
    let first = session.change_goals(steps.clone(), Some("k")).await.expect("changes");
    let applied: Vec<_> = first.steps.iter().map(|step| step.applied).collect();
    assert_eq!(applied, [None, None, Some(2), Some(0), None, Some(0)]);
    let goal = first.goal.clone().expect("is active");
    assert_eq!(first.steps[0].goal_id, Some(goal.id));
    assert_eq!(first.steps[1].checkpoint_id, Some(goal.checkpoints[0].id));
    assert_eq!(goal.checkpoints[0].status, CheckpointStatus::Completed);
    assert_eq!(goal.decisions.len(), 2);
    assert_eq!(first.steps[4].decision_id, Some(goal.decisions[1].id));

    session
        .change_goals(json!([add_checkpoint("Test"), create("two")]), None)
        .await
        .expect("changes");
    let expected = g::GoalChangeResult { duplicate: true, ..first };
    let again = session.change_goals(steps.clone(), Some("k")).await.expect("repeats");
    assert_eq!(again, expected);
    session.core.cache.forget(session.id);
    let again = session.change_goals(steps.clone(), Some("k")).await.expect("repeats");
    assert_eq!(again, expected);
    let message_seqs: Vec<_> = session
        .bodies()
        .into_iter()
        .filter_map(|body| match body {
            RecordBody::Goal(change) => Some(change.message_seq),
            _ => None,
        })
        .collect();
    assert_eq!(message_seqs, [None, Some(message.seq), None, None, None], "of both changes");

    // The records of the change leave the path.
    let (to, cause) = (Some(message.seq), "branch".to_owned());
    session.append(RecordBody::Leaf(LeafMove { to, cause })).await;
    let again = session.change_goals(steps, Some("k")).await.expect("repeats");
    assert_eq!(again, expected);
}

#[tokio::test]
async fn change_without_effect_writes_no_record() {
    let session = TestSession::new(&[]);
    session.make_step(create("one")).await.expect("creates");
    let len = session.bodies().len();
    let same = json!({ "action": "update", "description": "one" });
    let steps = json!([same, { "action": "applyMarkers", "text": "[GOAL] two" }]);
    let same = session.change_goals(steps, None).await.expect("no error");
    assert_eq!((same.seq, session.bodies().len()), (None, len));
    assert_eq!(same.goal.expect("is active").description, "one");
    assert_eq!((same.steps.len(), same.steps[1].applied), (2, Some(0)));
    let update = json!({ "action": "update", "priority": "high" });
    let changed = session.make_step(update).await.expect("changes");
    assert_eq!(changed.goal.expect("is active").priority, GoalPriority::High);
    assert_eq!(session.bodies().len(), len + 1);
}

#[tokio::test]
async fn steps_are_made_together_or_not_at_all() {
    let session = TestSession::new(&[]);
    let refused = session.make_step(add_checkpoint("Read")).await;
    assert!(matches!(refused, Err(AppError::Goal(_))), "there is no goal");
    session.make_step(create("one")).await.expect("creates");
    let (before, len) = (session.goals(), session.bodies().len());
    let refused = json!([create("two"), add_checkpoint("Read"), add_checkpoint("read!")]);
    let error = session.change_goals(refused, None).await;
    assert!(matches!(error, Err(AppError::Goal(GoalError::Exists { .. }))), "{error:?}");
    let done = json!({ "action": "update", "status": "completed" });
    let error = session.change_goals(json!([done, add_checkpoint("Read")]), None).await;
    assert!(matches!(error, Err(AppError::Goal(GoalError::NoActiveGoal))), "{error:?}");
    assert_eq!((session.goals(), session.bodies().len()), (before, len));
}

#[tokio::test]
async fn invalid_steps_are_refused_before_they_are_written() {
    let session = TestSession::new(&[]);
    session.make_step(create("one")).await.expect("creates");
    let len = session.bodies().len();
    let too_many = vec![create("x"); MAX_STEPS + 1];
    for (steps, field) in [
        (json!([]), "steps"),
        (json!(too_many), "steps"),
        (json!([{ "action": "update" }]), "steps"),
        (json!([{ "action": "update", "description": " \n " }]), "description"),
        (json!([{ "action": "setNextSteps", "nextSteps": vec!["x"; MAX_ITEMS + 1] }]), "nextSteps"),
        (json!([{ "action": "applyMarkers" }]), "text"),
    ] {
        let error = session.change_goals(steps, None).await.map(drop);
        let is_refused = matches!(&error, Err(AppError::Invalid { field: at, .. }) if *at == field);
        assert!(is_refused, "{field}: {error:?}");
    }
    let long = create(&"x".repeat(BoundedField::GoalText.max_bytes() + 1));
    let error = session.make_step(long).await.map(drop);
    let is_refused =
        matches!(&error, Err(AppError::TooLarge(over)) if over.field == BoundedField::GoalText);
    assert!(is_refused, "{error:?}");
    assert_eq!(session.bodies().len(), len);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_changes_are_all_applied_to_the_goals_before_them() {
    let session = Arc::new(TestSession::new(&[]));
    session.make_step(create("one")).await.expect("creates");
    let tasks: Vec<_> = (0..16)
        .map(|number| {
            let session = Arc::clone(&session);
            crate::shutdown::Tasks::new().spawn(async move {
                let step = format!("step {number}");
                let change = session.make_step(add_checkpoint(&step)).await.expect("adds");
                let goal = change.goal.expect("is active");
                let added = goal.checkpoints.last().expect("was added");
                assert_eq!(added.description, step, "the goal is that of the change");
                assert_eq!(Some(added.id), change.steps[0].checkpoint_id);
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let goals = session.goals();
    assert_eq!(goals.len(), 1);
    assert_eq!(goals[0].checkpoints.len(), 16);
    assert!(goals[0].checkpoints.iter().all(|one| one.status == CheckpointStatus::Pending));
}

#[tokio::test]
async fn markers_change_goals_only_if_there_is_one_or_they_set_one() {
    let session = TestSession::new(&[]);
    session.record("assistant", "[CHECKPOINT] Read the code - COMPLETED").await;
    assert!(!session.bodies().iter().any(|body| matches!(body, RecordBody::Goal(_))));
    session.record("assistant", "[GOAL] Port the parser\n[CHECKPOINT] Read - COMPLETED").await;
    let goals = session.goals();
    assert_eq!((goals[0].description.as_str(), goals[0].checkpoints.len()), ("Port the parser", 1));
}
