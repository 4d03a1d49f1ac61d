//! A context that the server refuses, or that leaves no room for an answer: one compaction and one more call, and then
//! an error with numbers.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Compact, SUMMARY, asked_for};
use crate::harness::{Answer, FakeOllama, Fault};

/// Little is recent, so that there is something to summarize.
const BRIEF: &str = "compression:\n  preserveRecent: 256\n";

fn too_long() -> Fault {
    let text = "the input length exceeds the context length".to_owned();
    Fault::Error { status: 400, text }
}

fn nothing() -> Fault {
    Fault::Delay(Duration::ZERO)
}

fn empty() -> Answer {
    let mut answer = Answer::text("");
    answer.pieces.clear();
    answer.reason = "length";
    answer
}

fn chat(fake: &FakeOllama) -> Compact {
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::configured(fake, BRIEF);
    chat.exchanges(14);
    chat
}

fn last(events: &[Value]) -> &Value {
    events.last().unwrap()
}

#[test]
fn a_refused_context_is_compacted_once_and_sent_again() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = chat(&fake);
    fake.next("/api/chat", &[too_long()]);
    let events = chat.turn("go on");
    assert_eq!(last(&events)["kind"], "done", "{events:?}");
    assert_eq!((asked_for(&fake).as_str(), chat.count("compaction")), ("ASA", 1));
    let sizes: Vec<usize> = fake
        .requests("/api/chat")
        .iter()
        .map(|seen| seen.body["messages"].to_string().len())
        .collect();
    assert!(sizes[2] < sizes[0], "{sizes:?}");
}

#[test]
fn a_context_that_is_refused_again_is_an_error_with_numbers() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = chat(&fake);
    fake.next("/api/chat", &[too_long(), nothing(), too_long()]);
    let events = chat.turn("go on");
    let error = last(&events);
    assert_eq!(error["data"]["kind"], "contextOverflow", "{error}");
    assert_eq!((asked_for(&fake).as_str(), chat.count("compaction")), ("ASA", 1));
    for number in ["needed", "available"] {
        assert!(error["data"][number].as_u64().is_some_and(|it| it > 0), "{number}: {error}");
    }
    // The next turn is like any other.
    let events = chat.turn("and now?");
    assert_eq!(last(&events)["kind"], "done", "{events:?}");
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn an_answer_without_room_leads_to_one_compaction_and_one_more_call() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = chat(&fake);
    fake.answer(empty());
    fake.answer(Answer::text("there was room"));
    let events = chat.turn("go on");
    assert_eq!(last(&events)["kind"], "done", "{events:?}");
    assert_eq!((asked_for(&fake).as_str(), chat.count("compaction")), ("ASA", 1));
    fake.answer(empty());
    fake.answer(empty());
    chat.exchanges(4);
    let events = chat.turn("go on");
    let error = last(&events);
    assert_eq!(error["kind"], "error", "{events:?}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("answered nothing; the prompt has"), "{error}");
    assert!(message.chars().filter(char::is_ascii_digit).count() >= 6, "both numbers: {error}");
    assert!(chat.count("compaction") <= 2);
    assert_eq!(asked_for(&fake).matches('A').count(), 4, "{}", asked_for(&fake));
}

#[test]
fn an_answer_that_is_cut_is_given_as_it_is() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = chat(&fake);
    let mut cut = Answer::text("this is only the beginning");
    cut.reason = "length";
    fake.answer(cut);
    let events = chat.turn("go on");
    assert_eq!(
        (&last(&events)["kind"], &last(&events)["finishReason"]),
        (&json!("done"), &json!("length")),
        "{events:?}"
    );
    assert_eq!((asked_for(&fake).as_str(), chat.count("compaction")), ("A", 0));
}
