//! Answers without text: a model that says nothing, and one that spends its tokens on thinking.

use serde_json::json;

use super::{read_call, send_with_tool, submit_first, text_of};
use crate::harness::{Answer, FakeOllama, ModelSession, array, assert_fields};

/// Returns an answer without text.
fn only_thinking(text: &str, reason: &'static str) -> Answer {
    Answer { reason, ..Answer::text("").thinking(text) }
}

/// Starts a daemon with the model `thinker` and further configuration, and creates a session.
fn thinker(fake: &FakeOllama, more: &str) -> ModelSession {
    ModelSession::with_config(&(fake.config("thinker") + more))
}

/// Returns the roles of the messages in a request.
fn roles(fake: &FakeOllama, at: usize) -> Vec<String> {
    let messages = fake.requests("/api/chat")[at].body["messages"].clone();
    let messages = array(&messages).iter();
    messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
}

/// Returns the thinking of each message that begins with it, with the finish reason and whether the record is on the
/// active path.
fn thoughts(chat: &mut ModelSession) -> Vec<(String, String, bool)> {
    let records = chat.records();
    let thoughts = records.iter().filter_map(|record| {
        let message = record.get("message")?;
        let first = &message["parts"][0];
        let text = (first["type"] == "thinking").then(|| first["text"].as_str())??;
        let reason = message["finishReason"].as_str().unwrap();
        Some((text.to_owned(), reason.to_owned(), record["active"] != false))
    });
    thoughts.collect()
}

/// Returns one expected value of [`thoughts`].
fn thought(text: &str, reason: &str, is_active: bool) -> (String, String, bool) {
    (text.to_owned(), reason.to_owned(), is_active)
}

#[test]
fn empty_answer_is_requested_once_more_and_then_an_error() {
    let fake = FakeOllama::new();
    fake.script(Answer::text(""));
    let mut chat = ModelSession::new(&fake);
    assert_eq!(text_of(&chat.turn("say something")), "ok");
    fake.script(Answer::text(""));
    fake.script(Answer::text(""));
    let error = chat.failed_turn("and again", "modelFailed");
    assert_eq!(error["data"]["reason"], "emptyAnswer");
    assert!(error["data"]["contextTokens"].is_u64() && error["data"]["promptLimit"].is_u64());
}

#[test]
fn thinking_that_filled_the_window_is_an_error_with_hint() {
    let fake = FakeOllama::new();
    fake.script(only_thinking("let me see and see", "length"));
    let mut chat = thinker(&fake, "context: { size: 4096 }\n");
    let error = chat.failed_turn("what is it?", "modelFailed");
    let data = &error["data"];
    assert_fields(data, json!({ "reason": "onlyThinking", "model": "thinker" }));
    assert_eq!(
        data["hint"],
        format!("ollmctl chat --resume {} --no-think  # then /retry", chat.id)
    );
    assert_fields(data, json!({ "promptLimit": 3482, "contextSize": 4096 }));
    let spent = data["thinkingTokens"].as_u64().unwrap();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("thinker spent {spent} tokens on thinking")), "{message}");
    assert!(message.contains("think: false") && message.contains("context.size"), "{message}");
    assert!(!message.contains("answerReserve"), "the prompt is short: {message}");
    assert_eq!(fake.requests("/api/chat").len(), 1, "the context was not compacted and sent again");
    assert_eq!(thoughts(&mut chat), [thought("let me see and see", "length", true)]);
    // Thinking is not an answer: the turn can be repeated, and leaves the thinking out.
    chat.send(json!({ "think": false }));
    assert_eq!(text_of(&chat.events_until("done")), "ok");
    assert_eq!(roles(&fake, 1), ["user"]);
    assert_eq!(thoughts(&mut chat), [thought("let me see and see", "length", false)]);
}

#[test]
fn thinking_in_a_long_context_is_retried_once_after_compaction() {
    let fake = FakeOllama::new();
    let more = "compression: { threshold: 0.95, strategy: truncate }\n";
    for second_text in ["so it is", ""] {
        let mut chat = thinker(&fake, more);
        chat.wire.ok("model.countTokens", json!({ "text": "x" }));
        let words = "some words that nobody needs ".repeat(8);
        // Less than what is compacted in a pause.
        for at in 0..11 {
            chat.record("user", &format!("request {at}: {words}"));
            chat.record("assistant", &format!("answer {at}: {words}"));
        }
        let n_before = fake.requests("/api/chat").len();
        fake.script(only_thinking("hm", "length"));
        fake.script(Answer::text(second_text).thinking("hm hm").cut());
        chat.send(chat.message("so what is it?"));
        let last = if second_text.is_empty() { "error" } else { "done" };
        let last = chat.events_until(last).pop().unwrap();
        let requests = fake.requests("/api/chat").split_off(n_before);
        assert_eq!(requests.len(), 2, "one retry");
        let room = |at: usize| requests[at].body["options"]["num_predict"].as_u64().unwrap();
        assert!(room(1) > room(0) + 1000, "{} {}", room(0), room(1));
        assert_eq!(thoughts(&mut chat)[0], thought("hm", "length", false));
        assert_eq!(thoughts(&mut chat)[1], thought("hm hm", "length", true));
        assert_eq!(chat.count("compaction"), 1);
        if second_text.is_empty() {
            assert_eq!(last["data"]["reason"], "onlyThinking", "{last}");
        }
    }
}

#[test]
fn thinking_in_an_incompressible_context_is_not_retried() {
    let fake = FakeOllama::new();
    let mut chat = thinker(&fake, "compression: { enabled: false }\n");
    chat.record("user", &"some words that nobody needs ".repeat(180));
    chat.record("assistant", "I see");
    fake.script(only_thinking("hm", "length"));
    let error = chat.failed_turn("so what is it?", "modelFailed");
    assert_eq!(error["data"]["reason"], "onlyThinking");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("context.answerReserve"), "the prompt is long: {message}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    assert_eq!(thoughts(&mut chat).len(), 1);
}

#[test]
fn thinking_up_to_the_token_limit_of_the_client_is_not_retried() {
    let fake = FakeOllama::new();
    fake.script(only_thinking("let me see and see and see", "stop"));
    let mut chat = thinker(&fake, "");
    let mut params = chat.message("what is it?");
    params["answerLimit"] = json!(10);
    params["key"] = json!("k");
    chat.send(params.clone());
    let error = chat.events_until("error").pop().unwrap();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("spent all 10 tokens that answerLimit allows"), "{message}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    // Thinking does not count as the answer of the key, so a retry runs the turn again.
    params["answerLimit"] = json!(100);
    chat.send(params);
    assert_eq!(text_of(&chat.events_until("done")), "ok");
    assert_eq!(roles(&fake, 1), ["user"]);
}

#[test]
fn thinking_of_both_attempts_is_kept() {
    let fake = FakeOllama::new();
    fake.script(only_thinking("first", "stop"));
    fake.script(only_thinking("second", "stop"));
    let mut chat = thinker(&fake, "");
    let error = chat.failed_turn("what is it?", "modelFailed");
    assert_eq!(error["data"]["reason"], "emptyAnswer", "{error}");
    let kept = [thought("first", "stop", false), thought("second", "stop", true)];
    assert_eq!(thoughts(&mut chat), kept);
    let records = chat.records();
    let seq = error["data"]["seq"].as_u64().unwrap();
    let record = records.iter().find(|record| record["seq"] == seq).unwrap();
    assert_eq!(record["message"]["parts"][0]["text"], "second");
}

#[test]
fn thinking_after_a_tool_result_is_retried_behind_the_result() {
    let fake = FakeOllama::new();
    fake.script(read_call(json!({ "path": "a" })));
    fake.script(only_thinking("hm", "stop"));
    let mut chat = thinker(&fake, "");
    send_with_tool(&mut chat, "what is in a?");
    let event = chat.events_until("toolCalls").pop().unwrap();
    submit_first(&mut chat, &event, "x");
    assert_eq!(text_of(&chat.events_until("done")), "ok");
    assert_eq!(roles(&fake, 2), ["user", "assistant", "tool"]);
    assert_eq!(thoughts(&mut chat), [thought("hm", "stop", false)]);
}
