//! Any sequence of records, compactions, snapshots, restores, moves and restarts: a restore gives back the context exactly
//! as it was, and undo takes it back.

use std::sync::Arc;

use ollm_protocol::SnapshotId;
use ollm_protocol::content::CompactStrategy;
use ollm_protocol::methods::context::ContextCompactParams;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Action, TestSession, action, params};
use crate::app::branches::restore;
use crate::app::compaction::request::compact;
use crate::app::context::state::context_state;
use crate::app::context::{build, entries, goals};
use crate::app::error::AppError;
use crate::app::snapshots::{automatic, create};
use crate::app::testing::configured_core;

/// A window that a few long messages fill.
const SETTINGS: &[(&str, &str)] = &[("context.size", "2048"), ("snapshots.maxCount", "2")];

#[derive(Clone, Debug)]
enum Step {
    Act(Action),
    /// Records a question and an answer that take a tenth of the window.
    SayMuch,
    Compact,
    Snapshot,
    /// Returns to one of the snapshots so far.
    Restore(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => action().prop_map(Step::Act),
        3 => Just(Step::SayMuch),
        2 => Just(Step::Compact),
        3 => Just(Step::Snapshot),
        4 => any::<usize>().prop_map(Step::Restore),
        1 => Just(Step::Restart),
    ]
}

impl TestSession {
    /// Returns everything that a snapshot gives back.
    async fn in_force(&self) -> Value {
        let leaf = self.core.sessions.with(self.id, |live| live.state().leaf()).expect("is open");
        let fields = json!({ "compact": "never" });
        let built = build::build(Arc::clone(&self.core), params(self, fields)).await;
        json!({
            "state": context_state(&self.core, self.id, leaf).expect("reads"),
            "goals": goals::list(&self.core, params(self, json!({}))).expect("lists"),
            "entries": entries::list(&self.core, params(self, json!({}))).expect("lists"),
            "context": built.map_or(Value::Null, |built| json!(built.messages)),
        })
    }

    async fn take_snapshot(&self) -> Option<SnapshotId> {
        let taken = create::create(Arc::clone(&self.core), params(self, json!({}))).await;
        Some(taken.expect("takes").snapshot.snapshot_id)
    }

    async fn restore_and_back(&self, id: SnapshotId, expected: &Value) {
        let before = self.in_force().await;
        let restore = || {
            let fields = params(self, json!({ "snapshotId": id }));
            restore::restore(Arc::clone(&self.core), fields)
        };
        let restored = restore().await.expect("restores");
        assert_eq!(self.in_force().await, *expected, "after the restore");
        if restored.seq.is_some() {
            self.undo(1).await.expect("a restore is undoable");
            assert_eq!(self.in_force().await, before, "after undoing the restore");
            self.redo(1).await.expect("and redoable");
            assert_eq!(self.in_force().await, *expected, "after redoing the restore");
        }
        assert_eq!(
            restore().await.expect("is there").seq,
            None,
            "a second restore changes nothing"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn restore_gives_back_the_context_exactly_after_any_history(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut session = TestSession::new(SETTINGS);
            session.record("user", "Hello").await;
            let (mut taken, mut log) = (Vec::new(), session.log());
            for step in &steps {
                match step {
                    Step::Act(action) => session.act(action).await,
                    Step::SayMuch => {
                        for role in ["user", "assistant"] {
                            session.record(role, &"The port is 48213. ".repeat(20)).await;
                        }
                    }
                    Step::Compact => {
                        let strategy = Some(CompactStrategy::Truncate);
                        let request =
                            ContextCompactParams { strategy, ..ContextCompactParams::new(session.id) };
                        let compacted = compact(Arc::clone(&session.core), request).await;
                        assert!(
                            matches!(compacted, Ok(_) | Err(AppError::Context(_) | AppError::Compact(_))),
                            "{compacted:?}"
                        );
                    }
                    Step::Snapshot => {
                        let in_force = session.in_force().await;
                        taken.extend(session.take_snapshot().await.map(|id| (id, in_force)));
                    }
                    Step::Restore(number) if !taken.is_empty() => {
                        let (id, expected) = &taken[number % taken.len()];
                        session.restore_and_back(*id, expected).await;
                    }
                    Step::Restore(_) => {}
                    Step::Restart => {
                        session.core = configured_core(session.dir.path(), SETTINGS);
                    }
                }
                let core = Arc::clone(&session.core);
                tokio::task::spawn_blocking(move || automatic::write_due(&core)).await.expect("writes");
                let grown = session.log();
                assert!(grown.starts_with(&log), "{step:?} changed written bytes");
                log = grown;
            }
        });
    }
}
