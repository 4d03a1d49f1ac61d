//! Any sequence of records, compactions, snapshots, restores, moves and restarts: a restore gives back the context exactly
//! as it was, and undo takes it back.

use std::sync::Arc;

use ollm_protocol::content::{CompactStrategy, SnapshotInfo};
use ollm_protocol::methods::context::ContextCompactParams;
use ollm_protocol::{Seq, SnapshotId};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Action, TestSession, action, params};
use crate::app::branches::{fork, restore};
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
    /// Continues in a fork.
    Fork,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => action().prop_map(Step::Act),
        3 => Just(Step::SayMuch),
        2 => Just(Step::Compact),
        3 => Just(Step::Snapshot),
        4 => any::<usize>().prop_map(Step::Restore),
        1 => Just(Step::Fork),
        1 => Just(Step::Restart),
    ]
}

/// A snapshot, and what was in force when it was taken.
struct Taken {
    id: SnapshotId,
    leaf: Option<Seq>,
    in_force: Value,
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

    async fn take_snapshot(&self) -> Taken {
        let in_force = self.in_force().await;
        let taken = create::create(Arc::clone(&self.core), params(self, json!({}))).await;
        let SnapshotInfo { snapshot_id, leaf, .. } = taken.expect("takes").snapshot;
        Taken { id: snapshot_id, leaf, in_force }
    }

    /// Checks that a snapshot still leads to the same state.
    fn check_taken(&self, taken: &Taken) {
        let state = context_state(&self.core, self.id, taken.leaf).expect("reads");
        assert_eq!(json!(state), taken.in_force["state"], "at the leaf of {}", taken.id);
    }

    /// Forks the session and continues in the fork. Returns to which of the snapshots so far it can return.
    fn fork(&mut self, taken: Vec<Taken>) -> Vec<Taken> {
        let Ok(forked) = fork::fork(&self.core, params(self, json!({}))) else { return taken };
        self.id = forked.session.session_id;
        let log = String::from_utf8(self.log()).expect("is UTF-8");
        let has = |taken: &Taken| log.contains(&taken.id.to_string());
        taken.into_iter().filter(has).collect()
    }

    async fn restore_and_back(&self, id: SnapshotId, expected: &Value) {
        let before = self.in_force().await;
        let restore = || {
            let fields = params(self, json!({ "snapshotId": id }));
            restore::restore(Arc::clone(&self.core), fields, CancellationToken::new())
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
            let (mut taken, mut log) = (Vec::<Taken>::new(), session.log());
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
                        taken.push(session.take_snapshot().await);
                    }
                    Step::Restore(number) if !taken.is_empty() => {
                        let Taken { id, in_force, .. } = &taken[number % taken.len()];
                        session.restore_and_back(*id, in_force).await;
                    }
                    Step::Restore(_) => {}
                    Step::Fork => {
                        taken = session.fork(taken);
                        log = session.log();
                    }
                    Step::Restart => {
                        session.core = configured_core(session.dir.path(), SETTINGS);
                    }
                }
                let core = Arc::clone(&session.core);
                tokio::task::spawn_blocking(move || automatic::write_due(&core)).await.expect("writes");
                let grown = session.log();
                assert!(grown.starts_with(&log), "{step:?} changed written bytes");
                log = grown;
                taken.iter().for_each(|taken| session.check_taken(taken));
            }
        });
    }
}
