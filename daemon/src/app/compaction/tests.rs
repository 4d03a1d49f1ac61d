//! Compactions of a session that changes concurrently.

use std::sync::Arc;

use ollm_protocol::content::{CompactStrategy, LeafMove, RecordBody};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};
use tokio_util::sync::CancellationToken;

use super::summarizer::QueuePlace;
use super::survey::{CompactionRequest, Survey, survey};
use super::task::{CompactionOutcome, CompactionTask};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, CompactError};
use crate::app::running::CompactionTrigger;
use crate::app::testing::TestSession;
use crate::model::Priority;

/// A session that is long enough to be compacted, and a model server that does not answer.
struct LongSession {
    test: TestSession,
    core: Arc<Core>,
    id: SessionId,
}

impl LongSession {
    async fn new() -> Self {
        let test = TestSession::new(&[]);
        let (core, id) = (Arc::clone(&test.core), test.id);
        let session = Self { test, core, id };
        session.record_exchanges(40).await;
        session
    }

    async fn record_exchanges(&self, n: usize) {
        for number in 0..n {
            for role in ["user", "assistant"] {
                let text = format!("{role} {number}: {}", "words nobody needs later ".repeat(8));
                self.test.record(role, &text).await;
            }
        }
    }

    fn task(&self) -> CompactionTask<'_> {
        let params = ContextBuildParams::new(self.id);
        let request = CompactionRequest::configured(&self.core, params, None);
        let request = CompactionRequest { strategy: CompactStrategy::Truncate, ..request };
        let place = QueuePlace::Own(Priority::Chat);
        let trigger = CompactionTrigger::Client;
        CompactionTask { core: &self.core, request, trigger, place, must_shrink: false }
    }

    async fn survey(&self) -> Arc<Survey> {
        let request = self.task().request;
        let survey = blocking(&self.core, move |core| survey(core, &request)).await;
        Arc::new(survey.expect("reads the session"))
    }

    fn compaction_count(&self) -> u64 {
        self.core.summary(self.id).expect("exists").compression_count
    }
}

fn seq_of(outcome: &CompactionOutcome) -> Option<Seq> {
    match outcome {
        CompactionOutcome::Done(compacted) => compacted.seq,
        CompactionOutcome::Skipped(..) | CompactionOutcome::Abandoned => None,
    }
}

#[tokio::test]
async fn concurrent_compaction_is_continued_from() {
    let session = LongSession::new().await;
    let stale = session.survey().await;
    // Its owner was dropped before the reply, so the session is free.
    let other = session.task().run(session.id).await.expect("compacts");
    assert!(seq_of(&other).is_some());
    session.record_exchanges(20).await;
    let never = CancellationToken::new();
    let outcome = session.task().carry_out(session.id, stale, &never).await.expect("compacts too");
    assert!(seq_of(&outcome) > seq_of(&other), "a record after the other one");
    assert_eq!(session.compaction_count(), 2);
    let CompactionOutcome::Done(compacted) = outcome else { panic!("is done") };
    assert_eq!(compacted.survey.inputs.compaction_at(), seq_of(&other));
}

#[tokio::test]
async fn concurrent_compaction_that_left_nothing_to_do_skips_this_one() {
    let session = LongSession::new().await;
    let stale = session.survey().await;
    let other = session.task().run(session.id).await.expect("compacts");
    assert!(seq_of(&other).is_some());
    let never = CancellationToken::new();
    let outcome = session.task().carry_out(session.id, stale, &never).await.expect("no error");
    assert!(matches!(outcome, CompactionOutcome::Skipped("nothing", _)));
    assert_eq!(session.compaction_count(), 1);
}

#[tokio::test]
async fn moved_branch_is_not_compacted() {
    let session = LongSession::new().await;
    let stale = session.survey().await;
    let back = LeafMove { to: Some(Seq(5)), cause: "undo".to_owned() };
    session.test.append(RecordBody::Leaf(back)).await;
    let never = CancellationToken::new();
    let outcome = session.task().carry_out(session.id, stale, &never).await;
    assert!(matches!(outcome, Err(AppError::Compact(CompactError::BranchMoved { .. }))));
    assert_eq!(session.compaction_count(), 0);
}

#[tokio::test]
async fn canceled_compaction_writes_nothing() {
    let session = LongSession::new().await;
    let canceled = CancellationToken::new();
    canceled.cancel();
    let survey = session.survey().await;
    let outcome = session.task().carry_out(session.id, survey, &canceled).await.expect("no error");
    assert!(matches!(outcome, CompactionOutcome::Abandoned));
    assert_eq!(session.compaction_count(), 0);
}
