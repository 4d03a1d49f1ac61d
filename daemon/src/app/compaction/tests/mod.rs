//! Compactions against a scripted model server, and of a session that changes concurrently.

mod choosing;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{
    Checkpoint, CompactMode, CompactStrategy, Compaction, CompactionMethod, LeafMove, RecordBody,
};
use ollm_protocol::{Seq, SessionId};
use tokio_util::sync::CancellationToken;

use super::commit::Compacted;
use super::policy::{Fullness, SkipReason};
use super::survey::{CompactionRequest, Survey, survey};
use super::task::{CompactionOutcome, CompactionTask};
use crate::app::build_request::BuildRequest;
use crate::app::context::build::build_with;
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::{CompactionCause, CompactionTrigger};
use crate::app::testing::{AnswerStep, ScriptedBackend, TestSession};
use crate::context::compact::{RejectedSummary, tier};
use crate::model::{DoneReason, ModelError, Priority};

/// A summary that passes the verification.
const SUMMARY: &str = "## Goal\n- port the parser\n\n## Progress\n- the lexer is done";

/// The message of the user whose facts the notes of some tests repeat.
const FACTS: &str = "Staging has port 50123 and key /etc/a.pem, out on 2026-03-05.";

/// A session that is long enough to be compacted, and a scripted model.
struct LongSession {
    test: TestSession,
    backend: Arc<ScriptedBackend>,
    core: Arc<Core>,
    id: SessionId,
}

impl LongSession {
    async fn new() -> Self {
        Self::beginning_with("Port the parser, please.").await
    }

    async fn beginning_with(text: &str) -> Self {
        let (test, backend) = TestSession::with_model(&[]);
        let (core, id) = (Arc::clone(&test.core), test.id);
        // The other tests choose no facts.
        core.speeds.note_choosing("m", false);
        let session = Self { test, backend, core, id };
        session.test.record("user", text).await;
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

    /// Fills the context so far that it is compacted in the next pause, also with a short turn more.
    async fn fill_until_due(&self) {
        while self.survey().await.before.fullness < Fullness::DueInPause {
            self.record_exchanges(1).await;
        }
        self.record_exchanges(1).await;
    }

    /// Returns a compaction that a client asks for and that needs no model.
    fn task(&self) -> CompactionTask<'_> {
        self.task_with(CompactStrategy::Truncate)
    }

    fn task_with(&self, strategy: CompactStrategy) -> CompactionTask<'_> {
        self.task_of(CompactionTrigger::Client, strategy)
    }

    fn task_of(&self, trigger: CompactionTrigger, strategy: CompactStrategy) -> CompactionTask<'_> {
        let deep = trigger == CompactionTrigger::Client;
        let params = BuildRequest { deep, ..BuildRequest::new(self.id) };
        let request = CompactionRequest::configured(&self.core, params, None);
        let request = CompactionRequest { strategy, ..request };
        CompactionTask { core: &self.core, request, trigger, ticket: None }
    }

    /// Compacts before a model call that needs a smaller context.
    async fn compact_in_turn(&self) -> Compacted {
        self.compact_in_turn_for(CompactionCause::Refusal).await
    }

    async fn compact_in_turn_for(&self, cause: CompactionCause) -> Compacted {
        let task = self.task_of(CompactionTrigger::ChatTurn(cause), CompactStrategy::Summarize);
        done(task.run().await).expect("compacts")
    }

    /// Compacts as the background does.
    async fn compact_in_pause(&self) -> CompactionOutcome {
        let task = self.task_of(CompactionTrigger::Background, CompactStrategy::Summarize);
        task.run().await.expect("no error")
    }

    /// Compacts as the background does, and lets a chat ask for the model as soon as an answer pauses.
    async fn compact_until_a_chat(&self) {
        let chat = async {
            self.backend.paused().await;
            self.core.models.queues().enter("m", Priority::Chat).admitted().await;
        };
        let both = async { tokio::join!(self.compact_in_pause(), chat) };
        let limited = tokio::time::timeout(Duration::from_secs(60), both).await;
        let (outcome, ()) = limited.expect("the answer gives way");
        assert!(matches!(outcome, CompactionOutcome::Done(_)));
    }

    /// Returns the checkpoints of the newest compaction.
    fn checkpoints(&self) -> Vec<Checkpoint> {
        self.compactions().pop().expect("is recorded").checkpoints
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
        CompactionOutcome::Skipped(reason, _) => panic!("skipped: {reason:?}"),
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
    assert!(matches!(outcome, CompactionOutcome::Skipped(SkipReason::Nothing, _)));
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
    assert!(compacted.after.context_tokens < compacted.before.tokens);
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
async fn request_for_notes_that_a_server_finds_too_long_is_repeated_with_fewer_records() {
    let session = LongSession::new().await;
    for _ in 0..3 {
        let to = ScriptedBackend::of_model();
        session.backend.refuse(ModelError::Overflow { to, needed: None, window: None });
    }
    for _ in 0..16 {
        session.backend.answer_text(SUMMARY);
    }
    let compacted = session.summarize().await.expect("a smaller one fits");
    assert_eq!(compacted.head.method, CompactionMethod::Summarized);
    let requests = session.backend.requests();
    let length = |at: usize| -> usize {
        requests[at].messages.iter().map(|message| message.content.len()).sum()
    };
    let lengths: Vec<usize> = (0..4).map(length).collect();
    assert!(lengths.is_sorted_by(|longer, shorter| longer > shorter), "{lengths:?}");
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
    let compacted = session.compact_in_turn().await;
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
async fn notes_lose_lines_that_the_user_corrected() {
    let session = LongSession::beginning_with("Port the parser. The relay port is 48213.").await;
    let summary = async |text: &'static str| {
        session.backend.answer_text(text);
        session.summarize().await.expect("compacts");
        session.checkpoints().pop().expect("one is kept").summary
    };
    let notes = "## Goal\n- port the parser\n\n## Constraints\n- relay port: 48213";
    assert!(summary(notes).await.contains("48213"));
    session.test.record("user", "We moved the relay port from 48213 to 48314.").await;
    session.record_exchanges(40).await;
    // The model copies its earlier notes.
    let copied =
        "## Goal\n- port the parser\n\n## Constraints\n- relay port: 48213\n- relay port: 48314";
    let corrected = summary(copied).await;
    assert!(corrected.contains("48314") && !corrected.contains("48213"), "{corrected}");
    // So do lines that are extracted without it.
    session.record_exchanges(40).await;
    session.backend.refuse(ScriptedBackend::broken());
    session.compact_in_turn().await;
    assert!(session.checkpoints().iter().all(|one| !one.summary.contains("48213")));
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

#[tokio::test]
async fn context_of_another_form_waits_for_a_summary() {
    let session = LongSession::new().await;
    session.record_exchanges(40).await;
    session.backend.answer_text(SUMMARY);
    let compacted = session.compact_in_turn_for(CompactionCause::NewForm).await;
    assert_eq!(compacted.head.method, CompactionMethod::Summarized);
}

#[tokio::test]
async fn background_keeps_the_summary_of_the_pieces_before_one_that_gives_way() {
    let session = LongSession::new().await;
    session.record_exchanges(120).await;
    let compacted = session.compact_in_turn_for(CompactionCause::Growth).await;
    assert_eq!(compacted.head.method, CompactionMethod::Extracted);
    let all = session.checkpoints().pop().expect("one is kept");
    session.backend.answer_text(SUMMARY);
    session.backend.answer(&[AnswerStep::Pause]);
    session.compact_until_a_chat().await;
    let [notes, rest] = &*session.checkpoints() else { panic!("two are kept") };
    assert_eq!((notes.provisional, rest.provisional), (false, true));
    assert_eq!((notes.from, rest.to), (all.from, all.to));
    // The next pause goes on behind them.
    for _ in 0..16 {
        session.backend.answer_text(SUMMARY);
    }
    let outcome = session.compact_in_pause().await;
    assert!(matches!(outcome, CompactionOutcome::Done(_)));
    let request = &session.backend.requests()[2];
    let sent = request.messages.last().expect("a task").content.clone();
    assert!(sent.contains(&format!("<records from=\"#{}\"", rest.from)), "{sent}");
    assert!(session.checkpoints().iter().all(|one| !one.provisional));
}

#[tokio::test]
async fn merge_of_old_notes_that_gives_way_to_a_chat_keeps_the_new_summary() {
    let session = LongSession::new().await;
    session.test.configure(&[("models.default", "m"), ("context.size", "16384")]);
    session.record_exchanges(40).await;
    let limit = tier(session.survey().await.inputs.window.size).limit;
    for _ in 0..limit {
        session.backend.answer_text(SUMMARY);
        session.summarize().await.expect("compacts");
        session.record_exchanges(70).await;
    }
    session.fill_until_due().await;
    assert_eq!((session.checkpoints().len(), session.backend.requests().len()), (limit, limit));
    session.backend.answer_text(SUMMARY);
    session.backend.answer(&[AnswerStep::Pause]);
    session.compact_until_a_chat().await;
    assert_eq!(session.backend.requests().len(), limit + 2, "the merge is not asked for again");
    let checkpoints = session.checkpoints();
    assert_eq!(checkpoints.len(), limit);
    assert!(checkpoints.iter().all(|one| !one.provisional), "{checkpoints:?}");
}

#[tokio::test]
async fn chat_turn_waits_for_one_summary_and_the_background_for_the_others() {
    let session = LongSession::new().await;
    // As long as a server that was down for 250 turns leaves it.
    session.record_exchanges(210).await;
    session.backend.answer_text(SUMMARY);
    let compacted = session.compact_in_turn().await;
    assert_eq!(session.backend.requests().len(), 1);
    assert_eq!(compacted.head.method, CompactionMethod::Summarized);
    let [lasting, interim] = &*session.checkpoints() else { panic!("two are kept") };
    assert_eq!((lasting.provisional, interim.provisional), (false, true));
    assert!(lasting.to < interim.from && !interim.summary.contains("## Goal"), "{interim:?}");

    // The background goes on behind the range of the model's summary.
    for _ in 0..16 {
        session.backend.answer_text(SUMMARY);
    }
    let outcome = session.compact_in_pause().await;
    assert!(matches!(outcome, CompactionOutcome::Done(_)));
    let [checkpoint] = &*session.checkpoints() else { panic!("one is kept") };
    assert!(!checkpoint.provisional && checkpoint.to >= interim.to);
    assert!(session.backend.requests().len() > 2);
}

#[tokio::test]
async fn failing_summaries_are_not_waited_for_again_by_turns() {
    let session = LongSession::new().await;
    session.backend.refuse(ScriptedBackend::broken());
    session.compact_in_turn().await;
    session.record_exchanges(20).await;
    let compacted = session.compact_in_turn().await;
    assert_eq!(compacted.head.method, CompactionMethod::Extracted);
    assert_eq!(session.backend.requests().len(), 1);
}

#[tokio::test]
async fn summary_in_the_pause_is_requested_behind_the_prompt_of_the_chat() {
    let session = LongSession::new().await;
    session.fill_until_due().await;
    let params = BuildRequest { compact: CompactMode::Auto, ..BuildRequest::new(session.id) };
    session.test.record("user", "the last question").await;
    let built = build_with(&session.core, params, None).await.expect("fits");
    session.test.record("assistant", "the last answer").await;
    let survey = session.survey().await;
    assert_eq!(survey.before.fullness, Fullness::DueInPause);
    session.backend.answer_text(SUMMARY);
    let outcome = session.compact_in_pause().await;
    assert!(matches!(outcome, CompactionOutcome::Done(_)));
    let [request] = &*session.backend.requests() else { panic!("one request") };
    assert!(request.messages[..built.messages.len()] == built.messages, "the prompt is repeated");
    let behind = &request.messages[built.messages.len()..];
    let [answer, task] = behind else { panic!("{behind:?}") };
    assert_eq!(answer.content, "the last answer");
    assert!(task.content.starts_with("Stop here.") && !task.content.contains("words nobody"));
    assert!(request.num_predict.is_some_and(|most| most.get() > 400), "{:?}", request.num_predict);
}

#[tokio::test]
async fn summary_for_a_message_without_room_is_requested_behind_the_prompt_before_it() {
    let session = LongSession::new().await;
    let params = BuildRequest { compact: CompactMode::Auto, ..BuildRequest::new(session.id) };
    session.test.record("user", "the last question").await;
    let built = build_with(&session.core, params, None).await.expect("fits");
    session.test.record("assistant", "the last answer").await;
    session.test.record("user", &"a line of a pasted file\n".repeat(500)).await;
    assert!(!session.survey().await.before.fits());
    session.backend.answer_text(SUMMARY);
    let compacted = session.compact_in_turn().await;
    assert_eq!(compacted.head.method, CompactionMethod::Summarized);
    let [notes] = &*session.checkpoints() else { panic!("one is kept") };
    assert!(!notes.provisional, "nothing is left to the background: {notes:?}");
    let [request] = &*session.backend.requests() else { panic!("one request") };
    assert!(request.messages[..built.messages.len()] == built.messages, "the prompt is repeated");
    let behind = &request.messages[built.messages.len()..];
    let [answer, task] = behind else { panic!("{behind:?}") };
    assert_eq!(answer.content, "the last answer");
    assert!(task.content.starts_with("Stop here.") && !task.content.contains("a pasted file"));
}

#[tokio::test]
async fn many_decisions_leave_room_for_a_summary() {
    let session = LongSession::new().await;
    session.test.configure(&[("models.default", "m"), ("context.size", "4096")]);
    let markers: String = (0..150)
        .map(|n| {
            format!("[DECISION] the module number {n} keeps its own table of names - LOCKED\n")
        })
        .collect();
    session.test.record("assistant", &format!("[GOAL] port the parser\n{markers}")).await;
    session.record_exchanges(40).await;
    for _ in 0..16 {
        session.backend.answer_text(SUMMARY);
    }
    let compacted = session.summarize().await.expect("there is room");
    assert_eq!(compacted.head.method, CompactionMethod::Summarized);
    let requests = session.backend.requests();
    let asked = &requests[0].messages[1].content;
    assert!(asked.contains("port the parser") && asked.contains(" more\n"), "{asked}");
}

#[tokio::test]
async fn summary_of_one_line_does_not_replace_good_notes() {
    const NOTES: &str = "## Goal\n- port the parser\n\n## Progress\n- begun\n\n## Critical context\n\
        - staging port: 50123\n- key file: /etc/a.pem\n- release on 2026-03-05";
    let session = LongSession::beginning_with(FACTS).await;
    session.backend.answer_text(NOTES);
    session.summarize().await.expect("compacts");
    session.fill_until_due().await;
    let weak = "## Goal\n- the parser\n## Progress\n- all is well";
    session.backend.answer_text(weak);
    session.backend.answer_text(weak);
    assert!(matches!(session.compact_in_pause().await, CompactionOutcome::Abandoned));
    let requests = session.backend.requests();
    let last = requests.last().and_then(|request| request.messages.last()).expect("a request");
    assert!(last.content.contains("lost these of the previous notes: "), "{}", last.content);
    assert_eq!(session.checkpoints()[0].summary, NOTES);
    // A model that keeps most of them gets the rest put back.
    session
        .backend
        .answer_text("## Progress\n- the lexer is done\n## Critical context\n- 50123, /etc/a.pem");
    session.summarize().await.expect("compacts");
    let notes = session.checkpoints()[0].summary.clone();
    assert!(notes.contains("- release on 2026-03-05\n- 50123, /etc/a.pem"), "{notes}");
    assert!(notes.contains("port the parser") && notes.contains("the lexer is done"), "{notes}");
}

#[tokio::test]
async fn piece_whose_summaries_are_refused_again_and_again_is_extracted() {
    const NOTES: &str = "## Goal\n- port the parser\n\n## Critical context\n\
        - staging port: 50123\n- key file: /etc/a.pem\n- release on 2026-03-05";
    let session = LongSession::beginning_with(FACTS).await;
    session.backend.answer_text(NOTES);
    session.summarize().await.expect("compacts");
    session.fill_until_due().await;
    for _ in 0..64 {
        session.backend.answer_text("## Goal\n- the parser\n## Progress\n- all is well");
    }
    for _ in 0..2 {
        assert!(matches!(session.compact_in_pause().await, CompactionOutcome::Abandoned));
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(3600)).await;
        tokio::time::resume();
    }
    assert!(matches!(session.compact_in_pause().await, CompactionOutcome::Done(_)));
    let notes = session.checkpoints();
    let last = notes.last().expect("notes");
    assert!(!last.provisional && last.summary.contains("50123"), "{notes:?}");
    assert!(!last.summary.contains("all is well"), "{notes:?}");
}

#[tokio::test]
async fn files_of_extracted_records_stay_in_the_notes_that_follow() {
    let session = LongSession::new().await;
    let files = async |path: &str, is_extracted: bool| {
        session.test.record_call(serde_json::json!({ "path": path })).await;
        session.record_exchanges(40).await;
        session.backend.answer_text(SUMMARY);
        match is_extracted {
            true => drop(session.compact_in_turn_for(CompactionCause::Growth).await),
            false => drop(session.summarize().await.expect("compacts")),
        }
        let files = |one: &Checkpoint| one.files_read.clone();
        session.checkpoints().iter().flat_map(files).collect::<Vec<_>>()
    };
    assert_eq!(files("a.rs", true).await, ["a.rs"]);
    assert_eq!(files("b.rs", true).await, ["a.rs", "b.rs"]);
    for _ in 0..16 {
        session.backend.answer_text(SUMMARY);
    }
    assert_eq!(files("c.rs", false).await, ["a.rs", "b.rs", "c.rs"]);
}
