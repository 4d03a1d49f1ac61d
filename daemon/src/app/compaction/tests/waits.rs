//! Tests of waits for notes and for new contexts: turns wait as little as possible, the background waits for pauses.

use std::num::NonZeroU32;
use std::time::Instant;

use ollm_protocol::content::{BuiltContext, MetaPatch, RecordBody};
use serde_json::json;

use super::*;
use crate::app::cache::LastChat;
use crate::app::compaction::automatic::{CompactionInTurn, compact, follow_turn, newest_tokens};
use crate::app::compaction::policy::{LONGEST_PAUSE, PAUSE_TURNS};
use crate::app::compaction::read_ahead::read_ahead;
use crate::app::compaction::summarizer::{ANSWER_LIMIT, TURN_LIMIT};
use crate::app::compaction::summary::MAX_PIECES;
use crate::app::model_speed::SentPrompt;
use crate::model::{ChatEnd, ChatRequest, PromptCount, ThinkMode};
use crate::tokens::Counter;

impl LongSession {
    /// Notes that the model read a prompt of 100 tokens in this time.
    fn note_reading(&self, prompt_time: Duration) {
        self.note_answer(Some(prompt_time), None);
    }

    /// Notes the times in which the model read a prompt and wrote an answer of 100 tokens.
    fn note_answer(&self, prompt_time: Option<Duration>, answer_time: Option<Duration>) {
        let end = ChatEnd {
            reason: DoneReason::Stop,
            prompt: PromptCount::Whole(100),
            cached_tokens: None,
            answer_tokens: answer_time.map(|_| 100),
            load_time: None,
            prompt_time,
            answer_time,
        };
        self.core.speeds.note("m", &end, 0);
    }

    /// Returns the params with which a chat builds its contexts.
    async fn chat_params(&self) -> BuildRequest {
        BuildRequest {
            compact: CompactMode::Auto,
            model: Some("m".to_owned()),
            context_size: Some(self.survey().await.inputs.window.size),
            ..BuildRequest::new(self.id)
        }
    }

    /// Builds a context as a chat does that calls its model with it.
    async fn build_for_chat(&self, think: Option<ThinkMode>) -> BuiltContext {
        let params = self.chat_params().await;
        self.core.cache.with(self.id, |session| session.last_chat = Some(LastChat { think }));
        build_with(&self.core, params, None).await.expect("fits")
    }

    /// Fills the context so far that the next message probably does not fit, and builds it for a chat of a model that
    /// reads 100 tokens in some time.
    async fn fill_nearly(&self, reading: Duration) {
        while self.survey().await.before.fullness < Fullness::NearlyFull {
            self.record_exchanges(1).await;
        }
        self.test.record("user", "the last question").await;
        self.build_for_chat(None).await;
        self.test.record("assistant", "the last answer").await;
        self.note_reading(reading);
        assert_eq!(self.survey().await.before.fullness, Fullness::NearlyFull);
    }

    /// Returns the longest answers that requests allow.
    fn asked_answers(&self) -> Vec<Option<u32>> {
        let requests = self.backend.requests();
        requests.iter().map(|request| request.num_predict.map(NonZeroU32::get)).collect()
    }

    /// Notes that a summary gave way to a chat.
    fn lack_notes(&self) {
        let due = &self.core.due_compactions;
        due.change(self.id, |history| history.are_notes_missing = true);
    }

    fn lacks_notes(&self) -> bool {
        self.core.due_compactions.history(self.id).are_notes_missing
    }

    /// Notes that shorter pauses than this did not suffice.
    fn need_pause(&self, pause: Duration) {
        self.core.due_compactions.change(self.id, |history| history.needed_pause = pause);
    }

    /// Takes the mark by which the background compacts the session; returns whether there was one.
    async fn take_mark(&self) -> bool {
        let next = self.core.due_compactions.next(|_| false);
        tokio::time::timeout(Duration::ZERO, next).await.is_ok()
    }
}

/// The time in which a slow model reads 100 tokens.
const SLOW: Duration = Duration::from_millis(200);

/// Ends a turn as the end of a running one does.
fn end_turn(core: &Core, id: SessionId) {
    core.due_compactions.end_turn(id);
    follow_turn(core, id);
}

#[tokio::test]
async fn newest_turns_are_measured_by_the_stored_counts() {
    let session = LongSession::new().await;
    let counted = session.core.sessions.peek(session.id, |live| {
        let (state, path) = (live.state(), live.state().path());
        let newest = path[path.len() - 2 * PAUSE_TURNS..].iter();
        let tokens = newest.filter_map(|seq| Some(u64::from(state.entry(*seq)?.tokens)));
        (newest_tokens(state), tokens.sum::<u64>())
    });
    let (found, expected) = counted.expect("is open");
    assert!(expected > 0);
    assert_eq!(found, expected);
}

#[tokio::test]
async fn turn_extracts_notes_that_the_background_replaces() {
    let session = LongSession::new().await;
    session.record_exchanges(40).await;
    let compacted = session.compact_in_turn_for(CompactionCause::Growth).await;
    assert_eq!(compacted.head.method, CompactionMethod::Extracted);
    assert!(session.backend.requests().is_empty(), "the turn does not wait");
    let [notes] = &*session.checkpoints() else { panic!("one is kept") };
    assert!(notes.provisional, "{notes:?}");
    for _ in 0..16 {
        session.backend.answer_text(SUMMARY);
    }
    let outcome = session.compact_in_pause().await;
    assert!(matches!(outcome, CompactionOutcome::Done(_)));
    let checkpoints = session.checkpoints();
    assert!(checkpoints.iter().all(|one| !one.provisional), "{checkpoints:?}");
    assert_eq!(checkpoints[0].from, notes.from);
}

#[tokio::test]
async fn extraction_reads_only_records_that_no_earlier_one_read() {
    let session = LongSession::new().await;
    session.test.record("user", "The staging port is 50123.").await;
    let extracted = async || {
        session.record_exchanges(40).await;
        let compacted = session.compact_in_turn_for(CompactionCause::Growth).await;
        assert_eq!(compacted.head.method, CompactionMethod::Extracted);
        session.checkpoints().pop().expect("one is kept").summary
    };
    assert!(extracted().await.contains("50123"));
    // The record cannot be read from now on.
    session.test.overwrite_in_log(session.test.position_in_log("50123"), "?");
    assert!(extracted().await.contains("50123"));
    session.core.cache.forget(session.id);
    assert!(!extracted().await.contains("50123"), "the log is read again");
}

#[tokio::test]
async fn turns_without_pauses_between_them_wait_when_too_much_is_extracted() {
    let session = LongSession::new().await;
    let mut methods = Vec::new();
    for _ in 0..6 {
        session.record_exchanges(60).await;
        session.backend.answer_text(SUMMARY);
        methods.push(session.compact_in_turn_for(CompactionCause::Growth).await.head.method);
    }
    let (extracted, summarized) = (CompactionMethod::Extracted, CompactionMethod::Summarized);
    assert_eq!(methods[..2], [extracted; 2]);
    assert!(methods.contains(&summarized), "{methods:?}");
    let n_summarized = methods.iter().filter(|method| **method == summarized).count();
    assert_eq!(session.backend.requests().len(), n_summarized, "a turn asks for one summary");
}

#[tokio::test]
async fn slow_model_is_not_waited_for_however_much_is_extracted() {
    let session = LongSession::new().await;
    session.note_reading(Duration::from_secs(2));
    for _ in 0..6 {
        session.record_exchanges(60).await;
        let compacted = session.compact_in_turn_for(CompactionCause::Growth).await;
        assert_eq!(compacted.head.method, CompactionMethod::Extracted);
    }
    assert!(session.backend.requests().is_empty());
}

#[tokio::test]
async fn turn_waits_for_a_slow_summary_for_a_limited_time() {
    let check = async |steps: &[AnswerStep]| {
        let session = LongSession::new().await;
        session.backend.answer(steps);
        let out_of_time = async {
            session.backend.paused().await;
            tokio::time::pause();
            tokio::time::advance(TURN_LIMIT).await;
            tokio::time::resume();
        };
        let (compacted, ()) = tokio::join!(session.compact_in_turn(), out_of_time);
        assert_eq!(compacted.head.method, CompactionMethod::Extracted);
        let [notes] = &*session.checkpoints() else { panic!("one is kept") };
        assert!(notes.provisional && !notes.summary.contains("port the parser"), "{notes:?}");
        assert_eq!(session.backend.requests().len(), 1, "no second request");
    };
    // The beginning of notes would replace better ones.
    let begun = AnswerStep::Text("## Goal\n- port the parser\n\n## Progress\n- the lexer is");
    check(&[begun, AnswerStep::Pause]).await;
    check(&[AnswerStep::Pause]).await;
    check(&[AnswerStep::Reading]).await;
}

#[tokio::test]
async fn background_summary_gives_way_to_a_chat_also_while_its_prompt_is_read() {
    for step in [AnswerStep::Pause, AnswerStep::Reading] {
        let session = LongSession::new().await;
        session.fill_until_due().await;
        session.backend.answer(&[step, AnswerStep::End(DoneReason::Stop)]);
        session.backend.answer_text(SUMMARY);
        session.compact_until_a_chat().await;
        assert_eq!(session.backend.requests().len(), 2, "it is asked for again");
    }
}

#[tokio::test]
async fn background_summary_with_its_own_prompt_waits_as_long_as_the_model_reads_it() {
    let session = LongSession::new().await;
    session.fill_until_due().await;
    session.backend.answer_text(SUMMARY);
    let reading = Duration::from_millis(400);
    session.note_reading(reading);
    let due = &session.core.due_compactions;
    session.need_pause(reading);
    let start = Instant::now();
    let outcome = session.compact_in_pause().await;
    assert!(matches!(outcome, CompactionOutcome::Done(_)));
    assert!(due.history(session.id).needed_pause.is_zero(), "there was such a pause");
    // The prompt has more than 100 tokens.
    assert!(start.elapsed() > reading, "{:?}", start.elapsed());
}

#[tokio::test]
async fn background_summary_gives_up_when_chats_leave_no_pause() {
    let session = LongSession::new().await;
    session.fill_until_due().await;
    session.backend.answer(&[AnswerStep::Reading, AnswerStep::End(DoneReason::Stop)]);
    let chat = async {
        session.backend.paused().await;
        let ticket = session.core.models.queues().enter("m", Priority::Chat);
        ticket.admitted().await;
        tokio::time::pause();
        tokio::time::advance(ANSWER_LIMIT).await;
        tokio::time::resume();
        ticket
    };
    let both = async { tokio::join!(session.compact_in_pause(), chat) };
    let limited = tokio::time::timeout(ANSWER_LIMIT + Duration::from_secs(60), both).await;
    let (outcome, _ticket) = limited.expect("the summary gives up");
    assert!(matches!(outcome, CompactionOutcome::Abandoned));
    assert_eq!(session.backend.requests().len(), 1);
}

#[tokio::test]
async fn second_compaction_of_a_turn_calls_no_model() {
    let session = LongSession::new().await;
    session.backend.answer_text(SUMMARY);
    assert_eq!(session.compact_in_turn().await.head.method, CompactionMethod::Summarized);
    session.record_exchanges(30).await;
    assert_eq!(session.compact_in_turn().await.head.method, CompactionMethod::Extracted);
    let notes = session.checkpoints();
    assert!(notes[0].summary.starts_with(SUMMARY), "the notes of the model stay: {notes:?}");
    assert_eq!(session.backend.requests().len(), 1);
    end_turn(&session.core, session.id);
    session.record_exchanges(30).await;
    session.backend.answer_text(SUMMARY);
    assert_eq!(session.compact_in_turn().await.head.method, CompactionMethod::Summarized);
}

#[tokio::test]
async fn turn_whose_prompt_fits_goes_before_its_compaction() {
    let session = LongSession::new().await;
    session.fill_until_due().await;
    let params = BuildRequest::new(session.id);
    let is_due = async || {
        let due =
            CompactionInTurn::due(&session.core, params.clone(), Counter::ESTIMATE, false).await;
        due.expect("measures").is_some()
    };
    assert!(session.survey().await.before.fullness >= Fullness::DueInPause);
    assert!(!is_due().await);
    session.record_exchanges(20).await;
    assert!(is_due().await, "it no longer fits");
}

#[tokio::test]
async fn new_context_is_read_in_the_pause_by_a_slow_model_only() {
    for (reading, n_requests) in [(10, 1), (200, 2)] {
        let session = LongSession::new().await;
        session.fill_until_due().await;
        session.test.record("user", "the last question").await;
        let built = session.build_for_chat(Some(ThinkMode::High)).await;
        session.test.record("assistant", "the last answer").await;
        session.note_reading(Duration::from_millis(reading));
        session.backend.answer_text(SUMMARY);
        session.backend.answer(&[AnswerStep::End(DoneReason::Length)]);
        compact(Arc::clone(&session.core), session.id).await;
        assert_eq!(session.compactions().len(), 1);
        let requests = session.backend.requests();
        assert_eq!(requests.len(), n_requests, "{reading} ms for 100 tokens");
        let last = session.core.cache.peek(session.id, |session| {
            session.builds.recipe(None).map(|recipe| recipe.build_id.clone())
        });
        let is_remembered = last.flatten().as_deref() != Some(&built.build_id);
        assert_eq!(is_remembered, n_requests == 2, "only a context that was sent");
        // The prompt of the next turn begins with what was read, and is built as a chat builds it.
        session.test.record("user", "one more question").await;
        let next = session.build_for_chat(None).await;
        if let Some(read) = requests.get(1) {
            assert_eq!(read.num_predict.map(NonZeroU32::get), Some(1));
            assert_eq!(read.think, Some(ThinkMode::High), "as the last chat");
            assert!(next.messages[..read.messages.len()] == read.messages);
        }
    }
}

#[tokio::test]
async fn context_is_not_read_ahead_of_a_chat_that_waits() {
    let session = LongSession::new().await;
    session.build_for_chat(None).await;
    session.note_reading(SLOW);
    let queues = session.core.models.queues();
    let chat = queues.enter("m", Priority::Chat);
    read_ahead(&session.core, session.id, 1000).await;
    assert!(session.backend.requests().is_empty(), "another chat has the model");
    drop(chat);
    session.backend.answer(&[AnswerStep::Reading, AnswerStep::End(DoneReason::Length)]);
    let chat = async {
        session.backend.paused().await;
        queues.enter("m", Priority::Chat).admitted().await;
    };
    let both = async { tokio::join!(read_ahead(&session.core, session.id, 1000), chat) };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("the reading gives way");
    assert_eq!(session.backend.requests().len(), 1);
}

#[tokio::test]
async fn context_is_not_read_ahead_by_a_server_that_must_not_read_it() {
    let session = LongSession::new().await;
    session.build_for_chat(None).await;
    session.note_reading(SLOW);
    let allowed_servers = Some(vec!["other".to_owned()]);
    let patch = MetaPatch { allowed_servers, ..MetaPatch::default() };
    session.test.append(RecordBody::Meta(patch)).await;
    read_ahead(&session.core, session.id, 1000).await;
    assert!(session.backend.requests().is_empty());
}

#[tokio::test]
async fn text_that_crowded_a_context_is_compacted_in_the_pause_after_its_answer() {
    let session = LongSession::new().await;
    let limit = session.survey().await.before.prompt_limit;
    let line = "one more line of the pasted file\n";
    let n_lines = limit * 72 / 100 / u64::from(Counter::ESTIMATE.count_text(line));
    let paste = line.repeat(usize::try_from(n_lines).expect("small"));
    session.test.record("user", &paste).await;
    session.backend.answer_text(SUMMARY);
    session.compact_in_turn().await;
    // While it is being answered, nothing can be gained.
    let outcome = session.compact_in_pause().await;
    assert!(matches!(outcome, CompactionOutcome::Skipped(..)));
    session.test.record("assistant", "I have read it.").await;
    for _ in 0..2 {
        session.backend.answer_text(SUMMARY);
    }
    let CompactionOutcome::Done(compacted) = session.compact_in_pause().await else {
        panic!("the context is crowded by what was answered")
    };
    assert!(compacted.after.context_tokens * 10 < compacted.before.tokens * 8);
    let again = session.compact_in_pause().await;
    assert!(matches!(again, CompactionOutcome::Skipped(..)), "once is enough");
}

#[tokio::test]
async fn nearly_full_context_is_extracted_in_the_pause_if_the_model_lacks_notes() {
    for (reading, lacks_notes, is_extracted) in
        [(SLOW, true, true), (SLOW, false, false), (SLOW / 20, true, false)]
    {
        let session = LongSession::new().await;
        session.fill_nearly(reading).await;
        if lacks_notes {
            session.lack_notes();
        }
        for _ in 0..2 {
            session.backend.answer_text(SUMMARY);
        }
        compact(Arc::clone(&session.core), session.id).await;
        let recorded = session.compactions().pop().expect("is recorded");
        // A fast model reads the new context while hardly anybody waits, so it may still write the notes.
        let was_extracted = recorded.method == Some(CompactionMethod::Extracted);
        assert_eq!(was_extracted, is_extracted, "{reading:?}, {lacks_notes}");
        if was_extracted {
            assert_eq!(session.asked_answers(), [Some(1)], "the new context is read");
            assert!(session.checkpoints()[0].provisional);
            assert!(session.take_mark().await, "the notes of a model replace it");
            assert!(!session.lacks_notes());
        }
    }
}

#[tokio::test]
async fn nearly_full_context_is_extracted_once_while_notes_fail() {
    let session = LongSession::new().await;
    session.fill_nearly(SLOW).await;
    for _ in 0..2 {
        session.backend.refuse(ScriptedBackend::broken());
    }
    compact(Arc::clone(&session.core), session.id).await;
    assert!(session.compactions().is_empty(), "the model fails");
    session.take_mark().await;
    end_turn(&session.core, session.id);
    assert!(session.take_mark().await, "although the model is not asked for a while");
    session.backend.answer(&[AnswerStep::End(DoneReason::Length)]);
    compact(Arc::clone(&session.core), session.id).await;
    let methods: Vec<_> = session.compactions().iter().map(|one| one.method).collect();
    assert_eq!(methods, [Some(CompactionMethod::Extracted)]);
    session.take_mark().await;
    end_turn(&session.core, session.id);
    assert!(!session.take_mark().await, "the model is asked again when its pause ends");
}

#[tokio::test]
async fn extraction_in_the_pause_that_fails_is_not_tried_again_at_once() {
    let session = LongSession::new().await;
    session.fill_nearly(SLOW).await;
    session.lack_notes();
    let snapshots = session.test.dir.path().join("context-snapshots");
    drop(std::fs::remove_dir_all(&snapshots));
    std::fs::File::create(&snapshots).expect("a file in the place of a directory");
    let mut n_tries = 0;
    end_turn(&session.core, session.id);
    while session.take_mark().await && n_tries < 10 {
        n_tries += 1;
        compact(Arc::clone(&session.core), session.id).await;
    }
    assert!(n_tries < 10, "marks end");
    let is_snapshot = |body: &&RecordBody| matches!(body, RecordBody::Snapshot(_));
    let n_begun = session.test.bodies().iter().filter(is_snapshot).count();
    assert_eq!((n_begun, session.compactions().len()), (1, 0));
}

#[tokio::test]
async fn interrupted_notes_of_a_nearly_full_context_end_with_the_turn() {
    for (reading, expect) in [(SLOW, true), (SLOW / 20, false)] {
        let session = LongSession::new().await;
        session.fill_nearly(reading).await;
        session.backend.answer(&[AnswerStep::Reading, AnswerStep::End(DoneReason::Stop)]);
        let turn = async {
            session.backend.paused().await;
            end_turn(&session.core, session.id);
            let running = session.core.compactions.get(session.id).expect("is running");
            assert!(!running.cancel.is_cancelled(), "they gave way to nothing yet");
            let chat = session.core.models.queues().enter("m", Priority::Chat);
            chat.admitted().await;
            end_turn(&session.core, session.id);
            let is_ended = running.cancel.is_cancelled();
            // Ends the test where the notes wait for a longer pause.
            running.cancel.cancel();
            is_ended
        };
        let both = async { tokio::join!(session.compact_in_pause(), turn) };
        let (outcome, is_ended) =
            tokio::time::timeout(Duration::from_secs(60), both).await.expect("ends");
        assert!(matches!(outcome, CompactionOutcome::Abandoned));
        assert_eq!(is_ended, expect, "{reading:?}");
        assert!(session.lacks_notes());
    }
}

#[tokio::test]
async fn notes_that_wait_for_a_longer_pause_end_with_the_turn() {
    let session = LongSession::new().await;
    session.record_exchanges(40).await;
    session.compact_in_turn_for(CompactionCause::Growth).await;
    session.fill_nearly(Duration::from_secs(3600)).await;
    let turn = async {
        // The notes replace extracted ones, so that they are asked for with a prompt of their own, in a long pause.
        while !session.core.compactions.is_running(session.id) {
            tokio::task::yield_now().await;
        }
        let chat = session.core.models.queues().enter("m", Priority::Chat);
        chat.admitted().await;
        while !session.lacks_notes() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(chat);
        end_turn(&session.core, session.id);
    };
    let both = async { tokio::join!(session.compact_in_pause(), turn) };
    let (outcome, ()) =
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("the notes end");
    assert!(matches!(outcome, CompactionOutcome::Abandoned));
    assert!(session.backend.requests().is_empty() && session.take_mark().await);
}

#[tokio::test]
async fn notes_without_a_long_enough_pause_are_requested_behind_the_chat() {
    for needs_longer_pauses in [false, true] {
        let session = LongSession::new().await;
        session.record_exchanges(60).await;
        session.compact_in_turn_for(CompactionCause::Growth).await;
        let built = session.build_for_chat(None).await;
        if needs_longer_pauses {
            session.need_pause(LONGEST_PAUSE);
        }
        for _ in 0..32 {
            session.backend.answer_text(SUMMARY);
        }
        let done = tokio::time::timeout(Duration::from_secs(60), session.compact_in_pause()).await;
        assert!(matches!(done, Ok(CompactionOutcome::Done(_))), "{needs_longer_pauses}");
        let first = &session.backend.requests()[0];
        let begins_alike = first.messages.starts_with(&built.messages[..built.messages.len() - 1]);
        assert_eq!(begins_alike, needs_longer_pauses);
        let task = &first.messages.last().expect("a task").content;
        assert!(task.contains("<records from=\"#"), "{task}");
        assert_eq!(task.contains("The conversation pauses here."), needs_longer_pauses, "{task}");
    }
}

#[tokio::test]
async fn pieces_behind_the_chat_beyond_the_most_of_a_pause_wait_for_the_next() {
    let session = LongSession::new().await;
    session.note_reading(Duration::from_secs(3600));
    session.record_exchanges(400).await;
    session.compact_in_turn_for(CompactionCause::Growth).await;
    session.build_for_chat(None).await;
    let all = session.checkpoints().pop().expect("one is kept");
    session.need_pause(LONGEST_PAUSE);
    for _ in 0..64 {
        session.backend.answer_text(SUMMARY);
    }
    let done = tokio::time::timeout(Duration::from_secs(60), session.compact_in_pause()).await;
    assert!(matches!(done, Ok(CompactionOutcome::Done(_))));
    assert_eq!(session.backend.requests().len(), MAX_PIECES);
    let [notes, rest] = &*session.checkpoints() else { panic!("two are kept") };
    assert_eq!((notes.provisional, rest.provisional), (false, true), "none is extracted for good");
    assert_eq!((notes.from, rest.to), (all.from, all.to));
}

#[tokio::test]
async fn pieces_go_behind_the_chat_only_if_that_spares_its_prompt() {
    // Notes are requested without thinking.
    for (think, is_behind) in [(Some(ThinkMode::Off), true), (None, false)] {
        let session = LongSession::new().await;
        session.backend.set_capable("thinking");
        session.record_exchanges(60).await;
        session.compact_in_turn_for(CompactionCause::Growth).await;
        session.build_for_chat(think).await;
        session.need_pause(Duration::from_nanos(1));
        for _ in 0..32 {
            session.backend.answer_text(SUMMARY);
        }
        let done = tokio::time::timeout(Duration::from_secs(60), session.compact_in_pause()).await;
        assert!(matches!(done, Ok(CompactionOutcome::Done(_))), "{think:?}");
        let request = &session.backend.requests()[0];
        let task = &request.messages.last().expect("a task").content;
        assert_eq!(task.contains("The conversation pauses here."), is_behind, "{think:?}");
        let history = session.core.due_compactions.history(session.id);
        assert!(history.needed_pause.is_zero(), "the pieces took longer");
    }
}

#[tokio::test]
async fn turn_waits_for_a_place_at_another_model_for_a_limited_time() {
    let session = LongSession::new().await;
    session.test.configure(&[("models.default", "m"), ("compression.model", "busy")]);
    let other = session.core.models.queues().enter("busy", Priority::Chat);
    other.admitted().await;
    let out_of_time = async {
        while session.core.models.queues().enter("busy", Priority::Background).n_ahead() < 2 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(TURN_LIMIT).await;
        tokio::time::resume();
    };
    let both = async { tokio::join!(session.compact_in_turn(), out_of_time) };
    let (compacted, ()) =
        tokio::time::timeout(2 * TURN_LIMIT, both).await.expect("the turn goes on");
    assert_eq!(compacted.head.method, CompactionMethod::Extracted);
    assert!(session.backend.requests().is_empty());
}

#[tokio::test]
async fn update_of_notes_that_the_context_does_not_show_has_them() {
    let session = LongSession::new().await;
    session.test.configure(&[("models.default", "m"), ("context.size", "2048")]);
    for _ in 0..32 {
        session.backend.answer_text(SUMMARY);
    }
    session.summarize().await.expect("compacts");
    let n_asked = session.backend.requests().len();
    // A larger window shows the whole history, without notes.
    session.test.configure(&[
        ("models.default", "m"),
        ("context.size", "8192"),
        ("compression.preserveRecent", "1024"),
    ]);
    let mut built = session.build_for_chat(None).await;
    while !matches!(session.compact_in_pause().await, CompactionOutcome::Done(_)) {
        session.record_exchanges(1).await;
        built = session.build_for_chat(None).await;
    }
    assert!(!built.messages.iter().any(|message| message.content.contains("<memory>")));
    let request = &session.backend.requests()[n_asked];
    assert!(request.messages.starts_with(&built.messages), "behind the chat");
    let task = &request.messages.last().expect("a task").content;
    assert!(task.contains("<previous-summary>\n## Goal\n- port the parser"), "{task}");
}

#[tokio::test]
async fn notes_in_another_mode_of_thinking_than_the_chat_wait_for_a_pause() {
    // The prompt has more than 2,000 tokens.
    let (soon, never) = (Duration::from_millis(20), Duration::from_secs(3600));
    for (think, reading) in [(ThinkMode::On, soon), (ThinkMode::Off, never)] {
        let session = LongSession::new().await;
        session.backend.set_capable("thinking");
        session.fill_until_due().await;
        session.test.record("user", "the last question").await;
        session.build_for_chat(Some(think)).await;
        session.test.record("assistant", "the last answer").await;
        session.note_reading(reading);
        session.backend.answer_text(SUMMARY);
        let start = Instant::now();
        let done = tokio::time::timeout(Duration::from_secs(60), session.compact_in_pause()).await;
        assert!(matches!(done, Ok(CompactionOutcome::Done(_))), "{think:?}");
        if think == ThinkMode::On {
            assert!(start.elapsed() > 20 * reading, "{:?}", start.elapsed());
        }
    }
}

#[tokio::test]
async fn turn_waits_for_notes_that_are_written_soon_and_longer_between_tool_calls() {
    // A prompt of the largest size is read in 2 s, and notes are ten times as long as 100 tokens.
    let method = async |writing_ms: u64, within_calls: bool| {
        let session = LongSession::new().await;
        session.record_exchanges(160).await;
        match within_calls {
            true => session.test.record_call(json!({ "path": "a" })).await.seq,
            false => session.test.record("user", "one more question").await.seq,
        };
        let (reading, writing) = (Duration::from_millis(30), Duration::from_millis(writing_ms));
        session.note_answer(Some(reading), Some(writing));
        session.backend.answer_text(SUMMARY);
        session.compact_in_turn_for(CompactionCause::Growth).await.head.method
    };
    let (extracted, summarized) = (CompactionMethod::Extracted, CompactionMethod::Summarized);
    assert_eq!(method(500, false).await, summarized);
    assert_eq!(method(1500, false).await, extracted);
    assert_eq!(method(1500, true).await, summarized);
    assert_eq!(method(4000, true).await, extracted);
}

impl LongSession {
    /// Notes that another session sent a prompt to the model.
    fn chat_elsewhere(&self) {
        let prompt =
            SentPrompt { session: Some(self.core.clock.session_id()), ..SentPrompt::default() };
        self.core.speeds.begin_reading("m", prompt).begun();
    }

    /// Notes that the server was seen to read a prompt to its end although its caller had left.
    fn see_reading_on(&self) {
        self.core.speeds.note_reads_on("m");
    }
}

#[tokio::test]
async fn context_is_not_read_ahead_in_the_place_of_another_session() {
    let session = LongSession::new().await;
    session.build_for_chat(None).await;
    session.note_reading(SLOW);
    session.chat_elsewhere();
    read_ahead(&session.core, session.id, 1000).await;
    assert!(session.backend.requests().is_empty());
}

#[tokio::test]
async fn notes_behind_a_chat_wait_for_a_pause_if_they_take_its_place_or_are_read_to_their_end() {
    // The prompt has more than 2,000 tokens.
    let (soon, never) = (Duration::from_millis(20), Duration::from_secs(3600));
    type Before = fn(&LongSession);
    let nothing: Before = |_| {};
    for (before, reading) in [
        (nothing, never),
        (LongSession::chat_elsewhere as Before, soon),
        (LongSession::see_reading_on as Before, soon),
    ] {
        let session = LongSession::new().await;
        session.fill_until_due().await;
        session.test.record("user", "the last question").await;
        session.build_for_chat(None).await;
        session.test.record("assistant", "the last answer").await;
        session.note_reading(reading);
        before(&session);
        session.backend.answer_text(SUMMARY);
        let start = Instant::now();
        let done = tokio::time::timeout(Duration::from_secs(60), session.compact_in_pause()).await;
        assert!(matches!(done, Ok(CompactionOutcome::Done(_))));
        if reading == soon {
            assert!(start.elapsed() > 20 * reading, "{:?}", start.elapsed());
        }
    }
}

#[tokio::test]
async fn notes_are_asked_for_in_pieces_that_fit_into_short_pauses() {
    for (reads_on, is_divided) in [(false, false), (true, true)] {
        let session = LongSession::new().await;
        session.record_exchanges(60).await;
        session.compact_in_turn_for(CompactionCause::Growth).await;
        session.note_reading(Duration::from_millis(10));
        if reads_on {
            session.see_reading_on();
        }
        // 400 tokens are read in a quarter of the last pause.
        session.core.due_compactions.change(session.id, |history| {
            history.short_pause = Some(Duration::from_millis(160));
        });
        for _ in 0..32 {
            session.backend.answer_text(SUMMARY);
        }
        let done = tokio::time::timeout(Duration::from_secs(60), session.compact_in_pause()).await;
        assert!(matches!(done, Ok(CompactionOutcome::Done(_))));
        let requests = session.backend.requests();
        let tokens = |request: &ChatRequest| Counter::ESTIMATE.count_prompt(&request.messages, &[]);
        let longest = requests.iter().map(tokens).max().expect("a request");
        assert_eq!(longest < 1500, is_divided, "{longest}");
    }
}
