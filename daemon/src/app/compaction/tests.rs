//! Compactions against a scripted model server, and of a session that changes concurrently.

use std::sync::Arc;

use ollm_protocol::content::{CompactStrategy, Compaction, CompactionMethod, LeafMove, RecordBody};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};
use tokio_util::sync::CancellationToken;

use super::commit::Compacted;
use super::summarizer::QueuePlace;
use super::survey::{CompactionRequest, Survey, survey};
use super::task::{CompactionOutcome, CompactionTask};
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::CompactionTrigger;
use crate::app::testing::{AnswerStep, ScriptedBackend, TestSession};
use crate::context::compact::RejectedSummary;
use crate::model::{DoneReason, Priority};

/// A summary that passes the verification.
const SUMMARY: &str = "## Goal\n- port the parser\n\n## Progress\n- the lexer is done";

/// A session that is long enough to be compacted, and a scripted model.
struct LongSession {
    test: TestSession,
    backend: Arc<ScriptedBackend>,
    core: Arc<Core>,
    id: SessionId,
}

impl LongSession {
    async fn new() -> Self {
        let (test, backend) = TestSession::with_model(&[]);
        let (core, id) = (Arc::clone(&test.core), test.id);
        let session = Self { test, backend, core, id };
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

    /// Returns a compaction that a client asks for and that needs no model.
    fn task(&self) -> CompactionTask<'_> {
        self.task_with(CompactStrategy::Truncate)
    }

    fn task_with(&self, strategy: CompactStrategy) -> CompactionTask<'_> {
        let params = ContextBuildParams::new(self.id);
        let request = CompactionRequest::configured(&self.core, params, None);
        let request = CompactionRequest { strategy, ..request };
        let place = QueuePlace::Own(Priority::Chat);
        let trigger = CompactionTrigger::Client;
        CompactionTask { core: &self.core, request, trigger, place, must_shrink: false }
    }

    /// Compacts by a summary as a client asks for it.
    async fn summarize(&self) -> Result<Compacted> {
        done(self.task_with(CompactStrategy::Summarize).run().await)
    }

    /// Returns the compactions in the log.
    fn compactions(&self) -> Vec<Compaction> {
        let bodies = self.test.bodies().into_iter();
        bodies
            .filter_map(|body| match body {
                RecordBody::Compaction(compaction) => Some(compaction),
                _ => None,
            })
            .collect()
    }

    async fn survey(&self) -> Arc<Survey> {
        survey(&self.core, &self.task().request).await.expect("reads the session")
    }

    fn compaction_count(&self) -> u64 {
        self.core.summary(self.id).expect("exists").compression_count
    }
}

/// Returns the compaction, which must have been carried out.
fn done(outcome: Result<CompactionOutcome>) -> Result<Compacted> {
    match outcome? {
        CompactionOutcome::Done(compacted) => Ok(*compacted),
        CompactionOutcome::Skipped(reason, _) => panic!("skipped: {reason}"),
        CompactionOutcome::Abandoned => panic!("abandoned"),
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
    let other = session.task().run().await.expect("compacts");
    assert!(seq_of(&other).is_some());
    session.record_exchanges(20).await;
    let never = CancellationToken::new();
    let outcome = session.task().carry_out(stale, &never).await.expect("compacts too");
    assert!(seq_of(&outcome) > seq_of(&other), "a record after the other one");
    assert_eq!(session.compaction_count(), 2);
    let CompactionOutcome::Done(compacted) = outcome else { panic!("is done") };
    assert_eq!(compacted.survey.inputs.compaction_at(), seq_of(&other));
}

#[tokio::test]
async fn concurrent_compaction_that_left_nothing_to_do_skips_this_one() {
    let session = LongSession::new().await;
    let stale = session.survey().await;
    let other = session.task().run().await.expect("compacts");
    assert!(seq_of(&other).is_some());
    let never = CancellationToken::new();
    let outcome = session.task().carry_out(stale, &never).await.expect("no error");
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
    let outcome = session.task().carry_out(stale, &never).await;
    assert!(matches!(outcome, Err(AppError::Compact(CompactError::BranchMoved { .. }))));
    assert_eq!(session.compaction_count(), 0);
}

#[tokio::test]
async fn canceled_compaction_writes_nothing() {
    let session = LongSession::new().await;
    let canceled = CancellationToken::new();
    canceled.cancel();
    let survey = session.survey().await;
    let outcome = session.task().carry_out(survey, &canceled).await.expect("no error");
    assert!(matches!(outcome, CompactionOutcome::Abandoned));
    assert_eq!(session.compaction_count(), 0);
}

#[tokio::test]
async fn good_summary_is_committed_as_a_checkpoint() {
    let session = LongSession::new().await;
    session.backend.answer_text(SUMMARY);
    let compacted = session.summarize().await.expect("compacts");
    assert!(compacted.after.tokens_used < compacted.before.tokens);
    assert_eq!(compacted.head.method, CompactionMethod::Summarized);
    assert_eq!(compacted.head.model.as_deref(), Some("m"));
    let recorded = session.compactions().pop().expect("is recorded");
    let [checkpoint] = recorded.checkpoints.as_slice() else { panic!("{recorded:?}") };
    assert_eq!(checkpoint.summary, SUMMARY);
    assert!(!checkpoint.provisional);
    let marks = |body: &RecordBody| matches!(body, RecordBody::Snapshot(_));
    assert_eq!(session.test.bodies().iter().filter(|body| marks(body)).count(), 1);
    assert_eq!(session.compaction_count(), 1);
}

#[tokio::test]
async fn rejected_summary_is_asked_for_once_more() {
    let session = LongSession::new().await;
    session.backend.answer_text("I would rather talk about something else.");
    session.backend.answer_text(SUMMARY);
    session.summarize().await.expect("the second answer is good");
    let requests = session.backend.requests();
    let reason = "the text is an answer to the conversation and not notes of it";
    let names_reason = |at: usize| {
        let messages = &requests[at].messages;
        messages.iter().any(|message| message.content.contains(reason))
    };
    assert_eq!((names_reason(0), names_reason(1), requests.len()), (false, true, 2));
}

#[tokio::test]
async fn failed_summary_leaves_the_context_of_a_client_as_it_is() {
    let session = LongSession::new().await;
    session.backend.answer_text("no");
    session.backend.answer(&[AnswerStep::End(DoneReason::Stop)]);
    let error = session.summarize().await.map(drop).expect_err("no summary is good");
    let reason = RejectedSummary::Empty;
    let AppError::Compact(CompactError::Rejected { reason: found, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((found, session.compaction_count()), (reason, 0));
}

#[tokio::test]
async fn failed_summary_of_a_context_that_must_shrink_is_extracted() {
    let session = LongSession::new().await;
    session.backend.refuse(ScriptedBackend::broken());
    let mut task = session.task_with(CompactStrategy::Summarize);
    (task.must_shrink, task.trigger) = (true, CompactionTrigger::ChatTurn);
    let compacted = done(task.run().await).expect("compacts");
    assert_eq!(compacted.head.method, CompactionMethod::Extracted);
    let recorded = session.compactions().pop().expect("is recorded");
    assert!(recorded.checkpoints.iter().all(|checkpoint| checkpoint.provisional));

    // The next compaction replaces the provisional checkpoint.
    session.record_exchanges(20).await;
    session.backend.answer_text(SUMMARY);
    session.summarize().await.expect("compacts");
    let recorded = session.compactions().pop().expect("is recorded");
    assert!(recorded.checkpoints.iter().all(|checkpoint| !checkpoint.provisional));
}

#[tokio::test]
async fn record_during_the_summary_follows_the_new_head() {
    let session = LongSession::new().await;
    let last = AnswerStep::End(DoneReason::Stop);
    session.backend.answer(&[AnswerStep::Pause, AnswerStep::Text(SUMMARY), last]);
    let concurrent = async {
        session.backend.paused().await;
        let recorded = session.test.record("user", "recorded during the summary").await;
        session.backend.resume();
        recorded.seq
    };
    let (compacted, recorded) = tokio::join!(session.summarize(), concurrent);
    let compacted = compacted.expect("the head is planned again");
    assert!(compacted.seq > Some(recorded));
    let newest = compacted.after.messages.last().expect("a message");
    assert_eq!(newest.content, "recorded during the summary");
    assert_eq!((session.backend.requests().len(), session.compaction_count()), (1, 1));
}
