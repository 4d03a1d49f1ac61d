//! Chat turns against a scripted model server.

mod recall;

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::Seq;
use ollm_protocol::content::{Message, Part, RecordBody, Role};
use ollm_protocol::methods::chat::{
    ChatEvent, ChatPhase, ChatSendParams, ChatSubmitToolResultsParams, FollowEvent, WaitsFor,
};
use ollm_protocol::methods::session::SessionIdParams;
use serde_json::{Value, json};

use super::follow::follow;
use super::{StartedTurn, cancel, claim, start, submit_tool_results};
use crate::app::context::goals;
use crate::app::error::{AppError, ChatError, Result};
use crate::app::model_speed::SentPrompt;
use crate::app::sessions::update::update;
use crate::app::testing::{AnswerStep, ScriptedBackend, TestSession};
use crate::model::{ChatEnd, DoneReason, ModelError, PromptCount};
use crate::shutdown::Tasks;

use AnswerStep::{Call, End, Fail, Pause, Text, Thinking};

const STOP: AnswerStep = End(DoneReason::Stop);
const LENGTH: AnswerStep = End(DoneReason::Length);

/// A session that chats with a scripted model.
struct ChatFixture {
    session: TestSession,
    backend: Arc<ScriptedBackend>,
}

impl ChatFixture {
    fn new() -> Self {
        Self::with(&[])
    }

    /// Creates a session of a core with some settings.
    fn with(settings: &[(&str, &str)]) -> Self {
        let (session, backend) = TestSession::with_model(settings);
        Self { session, backend }
    }

    /// Sends the result of a call.
    async fn submit(&self, id: &str, text: &str) {
        let results = json!([{ "id": id, "result": { "llmContent": text } }]);
        let params = json!({ "sessionId": self.session.id, "results": results });
        let params: ChatSubmitToolResultsParams = serde_json::from_value(params).expect("params");
        submit_tool_results(Arc::clone(&self.session.core), params).await.expect("is awaited");
    }

    /// Starts a turn with a user's message or, without one, another answer.
    async fn start(&self, content: Option<&str>, more: Value) -> Result<StartedTurn> {
        let mut params = more;
        params["sessionId"] = json!(self.session.id);
        if let Some(content) = content {
            params["message"] = json!({ "role": "user", "content": content });
        }
        let params: ChatSendParams = serde_json::from_value(params).expect("params");
        start(&self.session.core, &Tasks::new(), params).await
    }

    /// Runs a turn and returns its events without the last one, and how it ended.
    async fn run(&self, content: Option<&str>, more: Value) -> (Vec<ChatEvent>, TurnEnd) {
        rest(self.start(content, more).await.expect("starts")).await
    }

    /// Returns the assistant messages in the log, as finish reason and text.
    fn answers(&self) -> Vec<(String, String)> {
        let answer = |message: Message| {
            (message.finish_reason.clone().unwrap_or_default(), message.plain_text())
        };
        self.messages(Role::Assistant).into_iter().map(answer).collect()
    }

    fn messages(&self, role: Role) -> Vec<Message> {
        let bodies = self.session.bodies().into_iter();
        bodies
            .filter_map(|body| match body {
                RecordBody::Message(message) if message.role == role => Some(message),
                _ => None,
            })
            .collect()
    }

    /// Returns the roles and texts of the messages in the last request.
    fn last_request(&self) -> Vec<(Role, String)> {
        let request = self.backend.requests().pop().expect("a request");
        request.messages.into_iter().map(|message| (message.role, message.content)).collect()
    }
}

/// The finish reason of a turn and its record, or the error.
type TurnEnd = Result<(String, Seq), ChatError>;

/// Reads the remaining events of a turn.
async fn rest(mut turn: StartedTurn) -> (Vec<ChatEvent>, TurnEnd) {
    let mut events = Vec::new();
    while let Some(event) = turn.events.recv().await {
        events.push(event);
    }
    let mut failed = None;
    let last = turn.last(|error| failed_event(failed.insert(error)));
    let end = match (last.expect("a turn has a last event"), failed) {
        (ChatEvent::Done { seq, finish_reason, .. }, None) => Ok((finish_reason, seq)),
        (_, Some(AppError::Chat(error))) => Err(error),
        (last, error) => panic!("not the end of a turn: {last:?}, {error:?}"),
    };
    (events, end)
}

fn failed_event(error: &AppError) -> ChatEvent {
    ChatEvent::Error { code: 0, message: error.to_string(), data: Value::Null }
}

/// Reads events up to the first one of a kind, and returns that.
async fn wait_for(turn: &mut StartedTurn, wanted: &str) -> ChatEvent {
    loop {
        let event = turn.events.recv().await.expect("an event");
        if kind(&event) == wanted {
            return event;
        }
    }
}

fn kind(event: &ChatEvent) -> &'static str {
    match event {
        ChatEvent::Accepted { .. } => "accepted",
        ChatEvent::Phase { name: ChatPhase::Queued, .. } => "queued",
        ChatEvent::Phase { name: ChatPhase::Compacting, .. } => "compacting",
        ChatEvent::Phase { name: ChatPhase::Loading, .. } => "loading",
        ChatEvent::Phase { name: ChatPhase::Reading, .. } => "reading",
        ChatEvent::Phase { name: ChatPhase::Answering, .. } => "answering",
        ChatEvent::Cut { .. } => "cut",
        ChatEvent::Delta { .. } => "delta",
        ChatEvent::Logprobs { .. } => "logprobs",
        ChatEvent::ToolCalls { .. } => "toolCalls",
        ChatEvent::Usage { .. } => "usage",
        ChatEvent::Done { .. } => "done",
        ChatEvent::Failover { .. } => "failover",
        ChatEvent::Error { .. } => "error",
    }
}

fn kinds(events: &[ChatEvent]) -> Vec<&'static str> {
    events.iter().map(kind).collect()
}

fn of(reason: &str, text: &str) -> (String, String) {
    (reason.to_owned(), text.to_owned())
}

#[tokio::test]
async fn turn_is_recorded_and_reports_its_phases_in_order() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Thinking("hm"), Text("Hel"), Text("lo"), STOP]);
    let (events, end) = chat.run(Some("hi"), json!({})).await;
    let expect =
        ["accepted", "loading", "reading", "answering", "delta", "delta", "delta", "usage"];
    assert_eq!(kinds(&events), expect);
    let (reason, seq) = end.expect("is answered");
    assert_eq!((reason.as_str(), chat.answers()), ("stop", vec![of("stop", "Hello")]));
    assert_eq!(chat.messages(Role::User).len(), 1);
    let bodies = chat.session.bodies();
    let at = usize::try_from(seq.0).expect("a small number");
    assert!(matches!(&bodies[at], RecordBody::Message(message) if message.role == Role::Assistant));
    assert!(matches!(&bodies[at + 1], RecordBody::Usage(usage) if usage.answer_tokens == 5));
    assert_eq!(chat.last_request(), [(Role::User, "hi".to_owned())]);
}

#[tokio::test]
async fn tool_call_waits_for_its_result_and_continues_the_turn() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Text("I look."), Call("read"), STOP]);
    chat.backend.answer_text("It is empty.");
    let tools = json!({ "tools": [{ "type": "function", "function": { "name": "read" } }] });
    let mut turn = chat.start(Some("look"), tools).await.expect("starts");
    let called = wait_for(&mut turn, "toolCalls").await;
    let ChatEvent::ToolCalls { calls, seq, .. } = called else { unreachable!() };
    assert_eq!((calls[0].id.as_str(), calls[0].name.as_str(), calls.len()), ("read", "read", 1));
    assert_eq!(chat.backend.requests().len(), 1, "the model is not called before the result");
    let results = json!([{ "id": "read", "result": { "llmContent": "nothing" } }]);
    let params = json!({ "sessionId": chat.session.id, "results": results });
    let params: ChatSubmitToolResultsParams = serde_json::from_value(params).expect("params");
    let submitted = submit_tool_results(Arc::clone(&chat.session.core), params.clone()).await;
    assert_eq!(submitted.expect("is awaited").missing, Vec::<String>::new());
    let (events, end) = rest(turn).await;
    assert_eq!(kinds(&events), ["reading", "answering", "delta", "usage"]);
    assert_eq!(end.expect("is answered").0, "stop");
    assert_eq!(chat.answers(), [of("stop", "I look."), of("stop", "It is empty.")]);
    let roles: Vec<_> = chat.last_request().into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
    let of_message = |body: &RecordBody| matches!(body, RecordBody::ToolCall(call) if call.message_seq == Some(seq));
    assert_eq!(chat.session.bodies().iter().filter(|body| of_message(body)).count(), 1);
    let late = submit_tool_results(Arc::clone(&chat.session.core), params).await;
    assert!(matches!(late, Err(AppError::Chat(ChatError::NoPendingCalls { .. }))));
}

#[tokio::test]
async fn turn_that_begins_while_the_daemon_stops_records_nothing() {
    let chat = ChatFixture::new();
    let tasks = Tasks::new();
    tasks.stop();
    let params =
        json!({ "sessionId": chat.session.id, "message": { "role": "user", "content": "hi" } });
    let params: ChatSendParams = serde_json::from_value(params).expect("params");
    let started = start(&chat.session.core, &tasks, params).await;
    assert!(matches!(started, Err(AppError::Stopping)));
    assert!(chat.messages(Role::User).is_empty());
    chat.backend.answer_text("one");
    let (_, end) = chat.run(Some("hi"), json!({})).await;
    assert_eq!(end.expect("the session is free").0, "stop");
}

#[tokio::test]
async fn model_that_was_unloaded_is_loading_again() {
    let chat = ChatFixture::new();
    let phases = async |text: &'static str| {
        chat.backend.answer_text(text);
        let (events, _) = chat.run(Some("hi"), json!({})).await;
        kinds(&events).contains(&"loading")
    };
    assert!(phases("one").await, "the first turn loads the model");
    assert!(!phases("two").await, "it is in memory");
    chat.backend.unload();
    assert!(phases("three").await, "another client unloaded it");
}

/// Returns the tokens that a turn expects the server to read, and those of its whole prompt.
fn reading_of(events: &[ChatEvent]) -> (u64, u64) {
    let reading = events.iter().find_map(|event| match event {
        ChatEvent::Phase { name: ChatPhase::Reading, tokens, .. } => *tokens,
        _ => None,
    });
    let whole = events.iter().find_map(|event| match event {
        ChatEvent::Usage { usage } => Some(usage.context_tokens),
        _ => None,
    });
    (reading.expect("reads"), whole.expect("is answered"))
}

#[tokio::test]
async fn prompt_behind_that_of_another_session_is_expected_to_be_read_whole() {
    let chat = ChatFixture::new();
    let turn = async |text: &'static str| {
        chat.backend.answer_text(text);
        reading_of(&chat.run(Some(text), json!({})).await.0)
    };
    turn("one").await;
    let (reading, whole) = turn("two").await;
    assert!(reading < whole);
    let core = &chat.session.core;
    let other = SentPrompt { session: Some(core.clock.session_id()), ..SentPrompt::default() };
    core.speeds.begin_reading("m", other).begun();
    let (reading, whole) = turn("three").await;
    assert_eq!(reading, whole);
    let (reading, whole) = turn("four").await;
    assert!(reading < whole);
}

#[tokio::test]
async fn turn_is_queued_while_the_server_reads_a_prompt_whose_caller_left() {
    let chat = ChatFixture::new();
    chat.backend.answer_text("one");
    chat.run(Some("hi"), json!({})).await.1.expect("is answered");
    let speeds = &chat.session.core.speeds;
    let end = ChatEnd {
        reason: DoneReason::Stop,
        prompt: PromptCount::Whole(100),
        cached_tokens: Some(0),
        answer_tokens: None,
        load_time: None,
        prompt_time: Some(Duration::from_secs(10)),
        answer_time: None,
    };
    speeds.note("m", &end, 0);
    let unread = SentPrompt { tokens: 1000, ..SentPrompt::default() };
    speeds.begin_reading("m", unread).sent();
    chat.backend.answer(&[AnswerStep::Reading, Text("two"), STOP]);
    let mut turn = chat.start(Some("again"), json!({})).await.expect("starts");
    let ChatEvent::Phase { waits_for, expected_ms, .. } = wait_for(&mut turn, "queued").await
    else {
        unreachable!()
    };
    assert_eq!(waits_for, Some(WaitsFor::Server));
    assert!(expected_ms.is_some_and(|ms| (60_000..=100_000).contains(&ms)), "{expected_ms:?}");
    chat.backend.paused().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(100)).await;
    tokio::time::resume();
    wait_for(&mut turn, "reading").await;
    chat.backend.resume();
    let (events, end) = rest(turn).await;
    assert_eq!(kinds(&events), ["answering", "delta", "usage"]);
    assert_eq!(end.expect("is answered").0, "stop");
}

#[tokio::test]
async fn probabilities_of_tokens_are_events_and_are_not_recorded() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Text("a"), AnswerStep::Logprob("a"), STOP]);
    let wanted = json!({ "logprobs": true, "topLogprobs": 3 });
    let (events, end) = chat.run(Some("hi"), wanted).await;
    assert!(end.is_ok());
    let kinds = kinds(&events);
    assert_eq!(kinds[kinds.len() - 4..], ["answering", "delta", "logprobs", "usage"]);
    assert_eq!(chat.backend.requests()[0].logprobs, Some(3));
    assert_eq!(chat.answers(), [of("stop", "a")]);
    for (params, field) in [
        (json!({ "topLogprobs": 3 }), "topLogprobs"),
        (json!({ "logprobs": true, "topLogprobs": 21 }), "topLogprobs"),
    ] {
        let refused = chat.start(Some("hi"), params).await.map(drop);
        assert!(matches!(refused, Err(AppError::Invalid { field: found, .. }) if found == field));
    }
    chat.backend.answer_text("b");
    chat.run(Some("again"), json!({})).await.1.expect("is answered");
    assert_eq!(chat.backend.requests()[1].logprobs, None);
}

#[tokio::test]
async fn session_keeps_its_model_in_memory_for_its_own_time() {
    let chat = ChatFixture::new();
    let core = &chat.session.core;
    let keep = async |seconds: u32| {
        let params = json!({ "sessionId": chat.session.id, "keepAliveSeconds": seconds });
        let params = serde_json::from_value(params).expect("params");
        update(Arc::clone(core), params).await
    };
    assert!(matches!(keep(2_592_001).await, Err(AppError::Invalid { .. })));
    for (seconds, expect) in [(None, 300), (Some(7200), 7200), (Some(0), 0)] {
        if let Some(seconds) = seconds {
            let updated = keep(seconds).await.expect("changes the session");
            assert_eq!(updated.session.keep_alive_seconds, Some(seconds));
        }
        chat.backend.answer_text("ok");
        chat.run(Some("hi"), json!({})).await.1.expect("is answered");
        let request = chat.backend.requests().pop().expect("a request");
        assert_eq!(request.keep_alive, Duration::from_secs(expect));
    }
}

#[tokio::test]
async fn call_of_a_tool_that_was_not_offered_ends_the_turn() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Call("read"), STOP]);
    let (_, end) = chat.run(Some("look"), json!({})).await;
    assert!(matches!(end, Err(ChatError::UnexpectedCall { name, .. }) if name == "read"));
}

#[tokio::test]
async fn empty_answer_is_retried_once_and_then_fails() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[STOP]);
    chat.backend.answer_text("now");
    let (_, end) = chat.run(Some("one"), json!({})).await;
    assert_eq!(end.expect("the retry is answered").0, "stop");
    assert_eq!(chat.backend.requests().len(), 2);

    chat.backend.answer(&[STOP]);
    chat.backend.answer(&[Text(" \n"), STOP]);
    let (_, end) = chat.run(Some("two"), json!({})).await;
    assert!(matches!(end, Err(ChatError::EmptyAnswer { .. })), "{end:?}");
    assert_eq!(chat.backend.requests().len(), 4);
}

#[tokio::test]
async fn thinking_up_to_max_tokens_fails_without_a_retry() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Thinking("hm"), LENGTH]);
    let (_, end) = chat.run(Some("one"), json!({ "answerLimit": 5 })).await;
    let Err(ChatError::OnlyThinking { spent, partial, .. }) = end else { panic!("{end:?}") };
    assert_eq!((spent.thinking_tokens, spent.limited_by), (5, Some(("answerLimit", 5))));
    assert!(partial.is_some(), "the thinking is recorded");
    assert_eq!(chat.backend.requests().len(), 1);
}

#[tokio::test]
async fn model_error_keeps_the_partial_answer_and_allows_a_retry() {
    let chat = ChatFixture::new();
    let error = ScriptedBackend::broken();
    chat.backend.answer(&[Text("half"), Fail(error.clone())]);
    let (_, end) = chat.run(Some("hi"), json!({})).await;
    let Err(ChatError::Model { source, partial: Some(partial) }) = end else { panic!("{end:?}") };
    assert_eq!(source, error);
    assert_eq!(chat.answers(), [of("interrupted", "half")]);

    chat.backend.answer_text("whole");
    let (_, end) = chat.run(None, json!({})).await;
    assert!(end.expect("is answered").1 > partial);
    assert_eq!(chat.last_request(), [(Role::User, "hi".to_owned())]);
    assert_eq!(chat.answers(), [of("interrupted", "half"), of("stop", "whole")]);
    let again = chat.start(None, json!({})).await.map(drop);
    assert!(matches!(again, Err(AppError::Invalid { field: "message", .. })), "{again:?}");
}

#[tokio::test]
async fn retry_discards_the_goal_that_the_partial_answer_set() {
    let chat = ChatFixture::new();
    let text = "[GOAL] Port the parser\nFirst I";
    chat.backend.answer(&[Text(text), Fail(ScriptedBackend::broken())]);
    chat.run(Some("hi"), json!({})).await.1.expect_err("the answer broke off");
    let goals = || {
        let params = serde_json::from_value(json!({ "sessionId": chat.session.id }));
        goals::list(&chat.session.core, params.expect("params")).expect("lists").data.len()
    };
    assert_eq!(goals(), 1);
    chat.backend.answer_text("whole");
    chat.run(None, json!({})).await.1.expect("is answered");
    assert_eq!(goals(), 0);
}

#[tokio::test]
async fn refused_request_records_no_answer() {
    let chat = ChatFixture::new();
    chat.backend.refuse(ScriptedBackend::broken());
    let mut turn = chat.start(Some("hi"), json!({})).await.expect("starts");
    while turn.events.recv().await.is_some() {}
    let mut failed = None;
    let _last = turn.last(|error| failed_event(failed.insert(error)));
    assert!(matches!(failed, Some(AppError::Model(ModelError::BrokeOff { .. }))), "{failed:?}");
    assert_eq!((chat.messages(Role::User).len(), chat.answers().len()), (1, 0));
}

#[tokio::test]
async fn overflow_that_compaction_cannot_cure_ends_the_turn() {
    let chat = ChatFixture::new();
    let to = ScriptedBackend::of_model();
    chat.backend.refuse(ModelError::Overflow { to, needed: None, window: None });
    let (events, end) = chat.run(Some("hi"), json!({})).await;
    assert_eq!(kinds(&events), ["accepted", "loading", "reading", "loading", "compacting"]);
    let Err(ChatError::Model { source: ModelError::Overflow { needed, window, .. }, .. }) = end
    else {
        panic!("{end:?}")
    };
    assert!(needed.is_some() && window.is_some(), "with the numbers of the daemon");
}

#[tokio::test]
async fn canceled_turn_keeps_the_partial_answer() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Text("half"), Pause, STOP]);
    let mut turn = chat.start(Some("hi"), json!({})).await.expect("starts");
    wait_for(&mut turn, "delta").await;
    let (core, session_id) = (&chat.session.core, chat.session.id);
    let second = chat.start(Some("no"), json!({})).await.map(drop);
    assert!(matches!(second, Err(AppError::Chat(ChatError::Conflict { .. }))));
    let params = || SessionIdParams { session_id };
    assert!(cancel(Arc::clone(core), params()).await.expect("exists").canceled);
    let (_, end) = rest(turn).await;
    assert!(matches!(end, Err(ChatError::Canceled { partial: Some(_) })), "{end:?}");
    assert_eq!(chat.answers(), [of("canceled", "half")]);
    assert!(!cancel(Arc::clone(core), params()).await.expect("exists").canceled);

    chat.backend.answer_text("ok");
    let (_, end) = chat.run(Some("more"), json!({})).await;
    assert_eq!(end.expect("the session is free").0, "stop");
}

#[tokio::test]
async fn retried_key_returns_the_recorded_answer_without_a_call() {
    let chat = ChatFixture::new();
    chat.backend.answer_text("ok");
    let (_, first) = chat.run(Some("hi"), json!({ "key": "k" })).await;
    let (events, again) = chat.run(Some("hi"), json!({ "key": "k" })).await;
    assert_eq!(first.expect("is answered").1, again.expect("is answered").1);
    assert!(matches!(events.as_slice(), [ChatEvent::Accepted { duplicate: true, .. }]));
    assert_eq!((chat.backend.requests().len(), chat.messages(Role::User).len()), (1, 1));
}

#[tokio::test]
async fn thinking_is_recorded_before_the_text() {
    let chat = ChatFixture::new();
    chat.backend.answer(&[Thinking("h"), Text("a"), Thinking("m"), STOP]);
    chat.run(Some("hi"), json!({})).await.1.expect("is answered");
    let answer = chat.messages(Role::Assistant).remove(0);
    let thinking = Part::Thinking { text: "hm".to_owned() };
    assert_eq!(answer.parts, [thinking, Part::Text { text: "a".to_owned() }]);
    assert_eq!(answer.model.as_deref(), Some("m"));
}

#[tokio::test]
async fn file_that_was_cut_may_be_read_again() {
    let chat = ChatFixture::with(&[("context.size", "2048"), ("compression.enabled", "false")]);
    for _ in 0..4 {
        chat.backend.answer(&[Call("read"), STOP]);
    }
    chat.backend.answer_text("It is long.");
    let tools = json!({ "tools": [{ "type": "function", "function": { "name": "read" } }] });
    let mut turn = chat.start(Some("look"), tools).await.expect("starts");
    let file = "a line of the file\n".repeat(1500);
    for _ in 0..4 {
        wait_for(&mut turn, "toolCalls").await;
        chat.submit("read", &file).await;
    }
    let (events, end) = rest(turn).await;
    assert_eq!(end.expect("is no loop").0, "stop");
    let cut = events.iter().find_map(|event| match event {
        ChatEvent::Cut { cut } if cut.shown_tokens > 0 => Some(*cut),
        _ => None,
    });
    let cut = cut.expect("the newest result is cut");
    assert!(cut.shown_tokens > 1000 && cut.shown_tokens < cut.total_tokens, "{cut:?}");
    let (role, text) = chat.last_request().pop().expect("the newest result");
    assert!(role == Role::Tool && text.contains(" lines not shown ...]\na line of"), "{text}");
}

#[tokio::test]
async fn window_that_shrank_is_compacted_with_a_summary() {
    let chat = ChatFixture::with(&[("context.size", "8192")]);
    for number in 0..40 {
        for role in ["user", "assistant"] {
            let text = format!("{role} {number}: {}", "words nobody needs later ".repeat(12));
            chat.session.record(role, &text).await;
        }
    }
    for _ in 0..24 {
        chat.backend.answer_text("## Goal\n- port the parser\n\n## Progress\n- the lexer is done");
    }
    let (events, end) = chat.run(Some("go on"), json!({})).await;
    end.expect("is answered");
    assert!(!kinds(&events).contains(&"compacting"), "there is room");
    chat.session.configure(&[("models.default", "m"), ("context.size", "2048")]);
    let (events, end) = chat.run(Some("and now?"), json!({})).await;
    end.expect("is answered");
    assert!(kinds(&events).contains(&"compacting"), "{events:?}");
    let has_notes = |body: &RecordBody| matches!(body, RecordBody::Compaction(compaction) if !compaction.checkpoints.is_empty());
    assert_eq!(chat.session.bodies().iter().filter(|body| has_notes(body)).count(), 1);
    let prompt = chat.last_request();
    assert!(prompt.iter().any(|(_, text)| text.contains("<memory>")), "{prompt:?}");
    assert!(prompt.last().is_some_and(|(_, text)| text.ends_with("and now?")), "{prompt:?}");
}

#[tokio::test]
async fn call_without_a_result_is_interrupted_before_the_next_model_call() {
    let chat = ChatFixture::new();
    chat.session.record("user", "look").await;
    let call = |id: &str| json!({ "type": "toolCall", "id": id, "name": "read", "args": {} });
    let message = json!({ "role": "assistant", "parts": [call("a"), call("b")] });
    chat.session.record_message(message).await;
    let result = json!({ "role": "tool", "content": "two", "toolCallId": "b", "toolName": "read" });
    chat.session.record_message(result).await;
    chat.backend.answer_text("ok");
    chat.run(None, json!({})).await.1.expect("is answered");
    let prompt = chat.last_request();
    let results: Vec<_> = prompt.iter().filter(|(role, _)| *role == Role::Tool).collect();
    let of = |text: &str| (Role::Tool, text.to_owned());
    assert_eq!(results, [&of("[interrupted]"), &of("two")], "in the order of the calls");
}

#[tokio::test]
async fn repeated_blocks_of_the_prompt_are_stored_and_not_sent_back() {
    const ANSWER: &str = "<recalled>\nuser: hi\n</recalled>\n\nHello";
    let chat = ChatFixture::new();
    chat.backend.answer_text(ANSWER);
    chat.run(Some("hi"), json!({})).await.1.expect("is answered");
    assert_eq!(chat.answers(), [of("stop", ANSWER)]);
    chat.backend.answer_text("Yes");
    chat.run(Some("more"), json!({})).await.1.expect("is answered");
    assert_eq!(chat.last_request()[1], (Role::Assistant, "Hello".to_owned()));
}

#[tokio::test]
async fn inline_thinking_is_stored_and_not_sent_back() {
    let chat = ChatFixture::new();
    chat.backend.answer_text("<think>\nhm\n</think>\n\nHello");
    chat.run(Some("hi"), json!({})).await.1.expect("is answered");
    assert_eq!(chat.answers(), [of("stop", "<think>\nhm\n</think>\n\nHello")]);
    chat.backend.answer_text("Yes");
    chat.run(Some("more"), json!({})).await.1.expect("is answered");
    assert_eq!(chat.last_request()[1], (Role::Assistant, "Hello".to_owned()));
}

#[tokio::test]
async fn follower_of_a_turn_whose_message_is_refused_gets_an_error() {
    let chat = ChatFixture::new();
    let (core, id) = (&chat.session.core, chat.session.id);
    let claim = claim(core, id, "m").expect("no turn is running");
    let mut follower = follow(core, SessionIdParams { session_id: id }).await.expect("joins");
    drop(claim);
    let as_event = |error| failed_event(&error);
    let state = follower.next(as_event).await;
    assert!(matches!(state, Some(FollowEvent::Running { seq: None, .. })), "{state:?}");
    let last = follower.next(as_event).await;
    let is_error = matches!(last, Some(FollowEvent::Event(ChatEvent::Error { .. })));
    assert!(is_error && follower.next(as_event).await.is_none(), "{last:?}");
    let none = follow(core, SessionIdParams { session_id: id }).await.map(drop);
    assert!(matches!(none, Err(AppError::Chat(ChatError::NotRunning { .. }))), "{none:?}");
}
