//! Moves of the leaf: which operation an undo means, a repeated key, and what happens beside a move.

use std::sync::Arc;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Custom, Message, RecordBody, Role};
use ollm_protocol::methods::session::branches::SessionUndoResult;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{TestSession, params};
use crate::app::branches::{branch, restore, undo};
use crate::app::core::blocking;
use crate::app::error::{AppError, ChatError, Result};
use crate::app::partial::read_settled;
use crate::app::running::{PendingCalls, RunningTurn};
use crate::app::snapshots::create;
use crate::app::testing::{AnswerStep, ScriptedBackend};
use crate::app::turn_feed::TurnFeed;
use crate::model::DoneReason;
use crate::session::SessionError;

impl TestSession {
    async fn undo_with(&self, fields: Value) -> Result<SessionUndoResult> {
        undo::undo(Arc::clone(&self.core), params(self, fields), CancellationToken::new()).await
    }

    async fn record_turn(&self, question: &str) {
        self.record("user", question).await;
        self.record("assistant", "done").await;
    }

    async fn settle(&self) {
        let id = self.id;
        let settled = blocking(&self.core, move |core| read_settled(core, id, |_| ()));
        settled.await.expect("settles");
    }

    fn claim_turn(&self) -> crate::app::running::Claim<RunningTurn> {
        let (model, started) = ("m".to_owned(), Timestamp::from_unix_ms(0));
        let (cancel, pending_calls) = (CancellationToken::new(), PendingCalls::default());
        let feed = TurnFeed::default();
        let turn = RunningTurn { model, started, cancel, pending_calls, feed };
        let claimed = self.core.turns.claim(self.id, turn);
        claimed.unwrap_or_else(|_| unreachable!("no turn is running"))
    }
}

#[tokio::test]
async fn undo_of_an_operation_that_is_not_the_next_is_refused() {
    let session = TestSession::new(&[]);
    session.record_turn("one").await;
    session.record_turn("two").await;
    let older = session.undo_with(json!({ "operation": 1 })).await;
    assert!(matches!(older, Err(AppError::Session(SessionError::LeafMoved { .. }))), "{older:?}");
    let unknown = session.undo_with(json!({ "operation": 999 })).await;
    let is_invalid = matches!(unknown, Err(AppError::Invalid { field: "operation", .. }));
    assert!(is_invalid, "{unknown:?}");
    let newest = session.undo_with(json!({ "operation": 3 })).await.expect("undoes");
    assert_eq!(newest.operations[0].text, "two");
}

#[tokio::test]
async fn repeated_undo_names_the_operations_of_the_first_call() {
    let session = TestSession::new(&[]);
    session.record_turn("one").await;
    session.record_turn("two").await;
    let first = session.undo_with(json!({ "key": "k" })).await.expect("undoes");
    session.record_turn("three").await;
    let again = session.undo_with(json!({ "key": "k" })).await.expect("is known");
    assert_eq!((first.duplicate, again.duplicate), (false, true));
    assert_eq!((first.leaf, first.operations[0].seq), (again.leaf, again.operations[0].seq));
}

#[tokio::test]
async fn restore_with_files_to_the_active_leaf_changes_nothing() {
    let session = TestSession::new(&[]);
    session.record_turn("one").await;
    let core = || Arc::clone(&session.core);
    let taken = create::create(core(), params(&session, json!({}))).await.expect("takes").snapshot;
    let call = |more: Value| {
        let mut fields = json!({ "snapshotId": taken.snapshot_id });
        fields.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        restore::restore(core(), params(&session, fields), CancellationToken::new())
    };
    let preview = call(json!({ "files": "preview" })).await.expect("previews");
    let plan_id = preview.files.expect("has a plan").plan_id;
    let n_records = session.bodies().len();
    let applied = call(json!({ "files": "apply", "planId": plan_id })).await.expect("is there");
    assert_eq!(
        (applied.seq, applied.leaf, session.bodies().len()),
        (None, preview.leaf, n_records)
    );
}

#[tokio::test]
async fn branch_is_refused_if_a_turn_began_while_its_summary_was_written() {
    let (session, backend) = TestSession::with_model(&[]);
    session.record_turn("one").await;
    session.record_turn(&"We talked about the port of staging. ".repeat(60)).await;
    backend.answer(&[AnswerStep::Pause, AnswerStep::End(DoneReason::Stop)]);
    backend.refuse(ScriptedBackend::broken());
    let leaf = |session: &TestSession| {
        session.core.sessions.with(session.id, |live| live.state().leaf()).expect("is open")
    };
    let before = leaf(&session);
    let fields = json!({ "toSeq": 2, "summarize": true });
    let moved = branch::branch(Arc::clone(&session.core), params(&session, fields));
    let begin_turn = async {
        backend.paused().await;
        let turn = session.claim_turn();
        backend.resume();
        turn
    };
    let (moved, turn) = tokio::join!(moved, begin_turn);
    assert!(matches!(moved, Err(AppError::Chat(ChatError::Conflict { .. }))), "{moved:?}");
    assert_eq!(leaf(&session), before);
    drop(turn);
}

#[tokio::test]
async fn pieces_of_an_answer_are_joined_across_other_changes() {
    let session = TestSession::new(&[]);
    session.record("user", "Tell me.").await;
    let piece = |text: &str| {
        let data = json!({ "model": "m", "text": text });
        let name = Custom::PARTIAL_ANSWER.to_owned();
        RecordBody::Custom(Custom { name, data, context_text: None })
    };
    let turn = session.claim_turn();
    session.append(piece("There is ")).await;
    crate::app::sessions::update::set_mode(
        Arc::clone(&session.core),
        params(&session, json!({ "mode": "planning" })),
    )
    .await
    .expect("changes the mode");
    session.append(piece("something to tell.")).await;
    drop(turn);
    session.settle().await;
    let settled = session.bodies().pop();
    let Some(RecordBody::Message(Message { role: Role::Assistant, finish_reason, .. })) = &settled
    else {
        panic!("{settled:?}")
    };
    assert_eq!(finish_reason.as_deref(), Some("interrupted"));
    let Some(RecordBody::Message(message)) = settled else { unreachable!("is a message") };
    assert_eq!(message.plain_text(), "There is something to tell.");
    let n_records = session.bodies().len();
    session.settle().await;
    assert_eq!(session.bodies().len(), n_records);
}
