//! A model that answers nothing: what it thought is kept, and the error says what helps.

use serde_json::{Value, json};

use super::{Chat, text_of, tool};
use crate::harness::{Answer, FakeOllama};

/// An answer that is all thinking.
fn only_thinking(text: &str, reason: &'static str) -> Answer {
    Answer { reason, ..Answer::text("").thinking(text) }
}

fn thinks(fake: &FakeOllama) -> Chat {
    configured(fake, "")
}

fn configured(fake: &FakeOllama, more: &str) -> Chat {
    Chat::configured(&format!("ollama:\n  host: {}\n  model: thinker\n{more}", fake.host()))
}

/// The roles of the messages of a request.
fn roles(fake: &FakeOllama, at: usize) -> Vec<String> {
    let messages = fake.requests("/api/chat")[at].body["messages"].clone();
    let messages = messages.as_array().unwrap().iter();
    messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
}

impl Chat {
    /// The messages that have thoughts, with why they ended and whether they are on the active path.
    fn thoughts(&mut self) -> Vec<(String, String, bool)> {
        let records = self.wire.records(&self.session);
        let told = records.iter().filter_map(|record| {
            let message = record.get("message")?;
            let first = &message["parts"][0];
            let thought = (first["type"] == "thinking").then(|| first["text"].as_str())??;
            let reason = message["finishReason"].as_str().unwrap();
            let is_active = record["active"] != false;
            Some((thought.to_owned(), reason.to_owned(), is_active))
        });
        told.collect()
    }
}

fn thought(text: &str, reason: &str, is_active: bool) -> (String, String, bool) {
    (text.to_owned(), reason.to_owned(), is_active)
}

#[test]
fn thinking_that_filled_the_window_is_kept_and_the_error_says_what_helps() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(only_thinking("let me see and see", "length"));
    let mut chat = configured(&fake, "context: { size: 4096 }\n");
    let error = chat.failing("what is it?", "modelFailed");
    let data = &error["data"];
    assert_eq!((&data["reason"], &data["model"]), (&json!("onlyThinking"), &json!("thinker")));
    assert_eq!(
        data["hint"],
        format!("ollmctl chat --resume {} --no-think  # then /retry", chat.session)
    );
    assert_eq!((&data["promptLimit"], &data["contextSize"]), (&json!(3482), &json!(4096)));
    let spent = data["thinkingTokens"].as_u64().unwrap();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("thinker spent {spent} tokens on thinking")), "{message}");
    assert!(message.contains("think: false") && message.contains("context.size"), "{message}");
    assert!(!message.contains("answerReserve"), "the prompt is short: {message}");
    assert_eq!(fake.requests("/api/chat").len(), 1, "there was nothing to make smaller");
    assert_eq!(chat.thoughts(), [thought("let me see and see", "length", true)]);
    // It is no answer: it may be asked for again, and is not continued.
    let again = json!({ "sessionId": chat.session, "think": false });
    chat.begin(again);
    assert_eq!(text_of(&chat.until("done")), "ok");
    assert_eq!(roles(&fake, 1), ["user"]);
    assert_eq!(chat.thoughts(), [thought("let me see and see", "length", false)]);
}

#[test]
fn a_long_conversation_is_made_smaller_once_and_asked_again() {
    let fake = FakeOllama::start("0.33.0");
    let more = "compression: { threshold: 0.95, strategy: truncate }\n";
    for at_last in ["so it is", ""] {
        let mut chat = configured(&fake, more);
        let _counted = chat.wire.ok("model.countTokens", json!({ "text": "x" }));
        let (id, words) = (chat.session.clone(), "some words that nobody needs ".repeat(8));
        for at in 0..13 {
            let _seq = chat.wire.record(&id, "user", &format!("request {at}: {words}"));
            let _seq = chat.wire.record(&id, "assistant", &format!("answer {at}: {words}"));
        }
        let n_before = fake.requests("/api/chat").len();
        fake.answer(only_thinking("hm", "length"));
        fake.answer(Answer { reason: "length", ..Answer::text(at_last).thinking("hm hm") });
        chat.begin(chat.params("so what is it?"));
        let last = chat.until(if at_last.is_empty() { "error" } else { "done" }).pop().unwrap();
        let asked = fake.requests("/api/chat").split_off(n_before);
        assert_eq!(asked.len(), 2, "never a third time");
        let room = |at: usize| asked[at].body["options"]["num_predict"].as_u64().unwrap();
        assert!(room(1) > room(0) + 1000, "{} {}", room(0), room(1));
        assert_eq!(chat.thoughts()[0], thought("hm", "length", false));
        assert_eq!(chat.thoughts()[1], thought("hm hm", "length", true));
        let records = chat.wire.records(&id);
        let n_compactions = records.iter().filter(|record| record["type"] == "compaction").count();
        assert_eq!(n_compactions, 1);
        if at_last.is_empty() {
            assert_eq!(last["data"]["reason"], "onlyThinking", "{last}");
        }
    }
}

#[test]
fn where_a_conversation_cannot_become_smaller_it_is_asked_once() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = configured(&fake, "compression: { enabled: false }\n");
    let (id, words) = (chat.session.clone(), "some words that nobody needs ".repeat(180));
    let _seq = chat.wire.record(&id, "user", &words);
    let _seq = chat.wire.record(&id, "assistant", "I see");
    fake.answer(only_thinking("hm", "length"));
    let error = chat.failing("so what is it?", "modelFailed");
    assert_eq!(error["data"]["reason"], "onlyThinking");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("context.answerReserve"), "the prompt is long: {message}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    assert_eq!(chat.thoughts().len(), 1);
}

#[test]
fn a_limit_of_the_client_is_not_run_into_twice() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(only_thinking("let me see and see and see", "stop"));
    let mut chat = thinks(&fake);
    let mut params = chat.params("what is it?");
    params["maxTokens"] = json!(10);
    params["key"] = json!("k");
    chat.begin(params.clone());
    let error = chat.until("error").pop().unwrap();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("spent all 10 tokens that maxTokens allows"), "{message}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    // What was only thought does not count as the answer to the key.
    params["maxTokens"] = json!(100);
    chat.begin(params);
    assert_eq!(text_of(&chat.until("done")), "ok");
    assert_eq!(roles(&fake, 1), ["user"]);
}

#[test]
fn thinking_without_an_answer_is_kept_of_both_tries() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(only_thinking("first", "stop"));
    fake.answer(only_thinking("second", "stop"));
    let mut chat = thinks(&fake);
    let error = chat.failing("what is it?", "modelFailed");
    assert_eq!(error["data"]["reason"], "emptyAnswer", "{error}");
    let kept = [thought("first", "stop", false), thought("second", "stop", true)];
    assert_eq!(chat.thoughts(), kept);
    let records = chat.wire.records(&chat.session.clone());
    let seq = error["data"]["seq"].as_u64().unwrap();
    let record = records.iter().find(|record| record["seq"] == seq).unwrap();
    assert_eq!(record["message"]["parts"][0]["text"], "second");
}

#[test]
fn a_tool_loop_whose_answer_is_only_thinking_goes_on_behind_the_result() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("").call("read", json!({ "path": "a" })));
    fake.answer(only_thinking("hm", "stop"));
    let mut chat = thinks(&fake);
    let mut params = chat.params("what is in a?");
    params["tools"] = json!([tool("read")]);
    chat.begin(params);
    let asked: Value = chat.until("toolCalls").pop().unwrap();
    let result = json!({ "id": asked["calls"][0]["id"], "result": { "llmContent": "x" } });
    let results = json!({ "sessionId": chat.session, "results": [result] });
    let _seqs = chat.wire.ok("chat.submitToolResults", results);
    assert_eq!(text_of(&chat.until("done")), "ok");
    assert_eq!(roles(&fake, 2), ["user", "assistant", "tool"]);
    assert_eq!(chat.thoughts(), [thought("hm", "stop", false)]);
}
