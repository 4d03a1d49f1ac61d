//! Any sequence of records, moves, undos and redos on real logs: nothing is rewritten, and a restart changes nothing.

mod moves;
mod restores;

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::LoopPattern;
use ollm_protocol::methods::session::branches::SessionUndoResult;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{branch, fork, operations, tree, undo};
use crate::app::context::{build, entries, goals, pins};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::loops;
use crate::app::sessions::update;
use crate::app::testing::{TestSession, scratch_core};

#[derive(Clone, Debug)]
enum Action {
    Say(bool),
    UseTool,
    SetGoal,
    SetEntry,
    Pin,
    SetMode,
    Build,
    Branch(u64),
    Undo(u32),
    Redo(u32),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => any::<bool>().prop_map(Action::Say),
        1 => Just(Action::UseTool),
        1 => Just(Action::SetGoal),
        1 => Just(Action::SetEntry),
        1 => Just(Action::Pin),
        1 => Just(Action::SetMode),
        2 => Just(Action::Build),
        2 => (0..40_u64).prop_map(Action::Branch),
        3 => (1..3_u32).prop_map(Action::Undo),
        2 => (1..3_u32).prop_map(Action::Redo),
    ]
}

fn params<T: DeserializeOwned>(session: &TestSession, params: Value) -> T {
    params_of(session.id, params)
}

fn params_of<T: DeserializeOwned>(id: SessionId, mut params: Value) -> T {
    params["sessionId"] = json!(id);
    serde_json::from_value(params).expect("params")
}

impl TestSession {
    async fn undo(&self, steps: u32) -> Result<SessionUndoResult> {
        undo::undo(
            Arc::clone(&self.core),
            params(self, json!({ "steps": steps })),
            CancellationToken::new(),
        )
        .await
    }

    async fn redo(&self, steps: u32) -> Result<SessionUndoResult> {
        undo::redo(
            Arc::clone(&self.core),
            params(self, json!({ "steps": steps })),
            CancellationToken::new(),
        )
        .await
    }

    async fn branch(&self, to: u64) -> Result<()> {
        let params = params(self, json!({ "toSeq": to }));
        branch::branch(Arc::clone(&self.core), params).await.map(drop)
    }

    /// Makes a call; those that have nothing to do are refused and change nothing.
    async fn act(&self, action: &Action) {
        let core = || Arc::clone(&self.core);
        let result = match action {
            Action::Say(is_user) => {
                let role = if *is_user { "user" } else { "assistant" };
                drop(self.record(role, "The port is 48213.").await);
                Ok(())
            }
            Action::UseTool => {
                let call = json!({ "type": "toolCall", "id": "c", "name": "read", "args": {} });
                let message = json!({ "role": "assistant", "parts": [call] });
                drop(self.record_message(message).await);
                drop(self.record_call(json!({})).await);
                Ok(())
            }
            Action::SetGoal => {
                let fields = json!({ "action": "create", "description": "Port the parser" });
                goals::change(core(), params(self, json!({ "steps": [fields] }))).await.map(drop)
            }
            Action::SetEntry => {
                let fields = json!({ "key": "style", "content": "Be brief", "scope": "session" });
                entries::add(core(), params(self, fields)).await.map(drop)
            }
            Action::Pin => pins::pin(core(), params(self, json!({ "seq": 1 }))).await.map(drop),
            Action::SetMode => {
                update::set_mode(core(), params(self, json!({ "mode": "planning" })))
                    .await
                    .map(drop)
            }
            Action::Build => {
                let fields = json!({ "compact": "auto", "contextSize": 8192 });
                build::build(core(), params(self, fields)).await.map(drop)
            }
            Action::Branch(to) => self.branch(*to).await,
            Action::Undo(steps) => self.undo(*steps).await.map(drop),
            Action::Redo(steps) => self.redo(*steps).await.map(drop),
        };
        let is_refused = matches!(
            result,
            Ok(()) | Err(AppError::Invalid { .. } | AppError::Session(_) | AppError::Context(_))
        );
        assert!(is_refused, "{action:?}: {result:?}");
    }

    fn log(&self) -> Vec<u8> {
        let path = self.core.sessions.document_path(self.id).with_extension("jsonl");
        std::fs::read(path).unwrap_or_default()
    }

    /// Returns this session and its newest fork.
    async fn states(&self, core: &Arc<Core>, fork: Option<SessionId>) -> Vec<Value> {
        let mut states = vec![self.state(core, self.id).await];
        if let Some(fork) = fork {
            states.push(self.state(core, fork).await);
        }
        states
    }

    /// Returns everything that follows from the active path of a session.
    async fn state(&self, core: &Arc<Core>, id: SessionId) -> Value {
        let build: Value = {
            let fields = json!({ "compact": "never", "contextSize": 8192 });
            let built = build::build(Arc::clone(core), params_of(id, fields)).await;
            built.map_or(Value::Null, |built| json!(built.messages))
        };
        let detected: Option<LoopPattern> =
            loops::status(Arc::clone(core), params_of(id, json!({})))
                .await
                .expect("is open")
                .detected;
        json!({
            "operations": operations::operations(core, params_of(id, json!({ "limit": 1000 }))).expect("lists"),
            "tree": tree::tree(core, params_of(id, json!({ "limit": 1000 }))).expect("lists"),
            "goals": goals::list(core, params_of(id, json!({}))).expect("lists"),
            "entries": entries::list(core, params_of(id, json!({}))).expect("lists"),
            "session": core.summary(id).expect("is open"),
            "context": build,
            "loop": detected,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_the_same_after_a_restart_and_only_ever_grows(
        actions in proptest::collection::vec(action(), 1..30),
        fork_at in 0..40_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let session = TestSession::new(&[]);
            session.record("user", "Hello").await;
            let mut log = session.log();
            for action in &actions {
                session.act(action).await;
                let grown = session.log();
                assert!(grown.starts_with(&log), "{action:?} changed written bytes");
                log = grown;
            }
            let before = session.state(&session.core, session.id).await;
            if session.undo(1).await.is_ok() {
                session.redo(1).await.expect("an undone operation can be redone");
                let after = session.state(&session.core, session.id).await;
                for part in ["goals", "entries", "context", "loop"] {
                    assert_eq!(after[part], before[part], "{part} after undo and redo");
                }
                assert_eq!(after["tree"]["leaf"], before["tree"]["leaf"]);
            }
            let log = session.log();
            let forked = fork::fork(&session.core, params(&session, json!({ "atSeq": fork_at })));
            let forked = forked.ok().map(|forked| forked.session.session_id);
            assert_eq!(session.log(), log, "a fork changes nothing");
            let live = session.states(&session.core, forked).await;
            let restarted = scratch_core(session.dir.path());
            let found = session.states(&restarted, forked).await;
            for (live, found) in live.iter().zip(&found) {
                for (part, value) in live.as_object().expect("an object") {
                    assert_eq!(found[part], *value, "{part}");
                }
            }
        });
    }
}

#[tokio::test]
async fn undone_loop_is_over_and_the_redone_one_is_found_again() {
    let session = TestSession::new(&[("loopDetection.repeatThreshold", "3")]);
    session.record("user", "read it").await;
    for _ in 0..3 {
        session.act(&Action::UseTool).await;
    }
    let detected = async || {
        let status = loops::status(Arc::clone(&session.core), params(&session, json!({}))).await;
        status.expect("is open").detected.is_some()
    };
    assert!(detected().await);
    session.undo(1).await.expect("undoes the turn");
    assert!(!detected().await, "the calls are not on the path any more");
    session.redo(1).await.expect("redoes the turn");
    assert!(detected().await);
    session.undo(1).await.expect("undoes it again");
    session.record("user", "now write").await;
    assert!(!detected().await);
    session.undo(1).await.expect("undoes the message");
    assert!(!detected().await);
}

#[tokio::test]
async fn operation_that_the_client_has_not_seen_is_not_undone() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    session.record("assistant", "first").await;
    // Both see the same operation; whichever is second finds another newest one.
    let (one, other) = tokio::join!(session.undo(1), session.undo(1));
    let results = [one, other];
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    let refused = results.into_iter().find_map(Result::err).expect("one is refused");
    assert!(matches!(refused, AppError::Session(_) | AppError::Invalid { .. }), "{refused:?}");
}
