//! Compactions that the daemon starts by itself: in the background after a record, and in a chat turn before the
//! model is called.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{DISABLED, SUMMARY, on_request, request_kinds, session};
use crate::harness::{
    Answer, FakeOllama, Fault, ModelSession, Request, array, assert_fields, until,
    until_after_pause,
};

/// Returns the text of a long user message.
fn long_message(n: usize) -> String {
    format!("{n} {}", "some words of a user who talks a lot about the parser ".repeat(10))
}

#[test]
fn recording_starts_a_compaction_in_the_background() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = session(&fake, 8192, "");
    let kinds = json!(["compressed", "auto-summary-created"]);
    chat.ok("event.subscribe", json!({ "kinds": kinds }));
    chat.exchanges(17);
    let event = chat.wire.event();
    assert_eq!(
        (&event["kind"], &event["data"]["automatic"]),
        (&json!("compressed"), &json!(true)),
        "{event}"
    );
    assert_eq!(chat.wire.event()["kind"], "auto-summary-created");
    assert_eq!(chat.build()["strategy"], "checkpointed");
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn failed_background_compaction_changes_nothing_and_is_reported() {
    let fake = FakeOllama::new();
    let error = Fault::Error { status: 500, text: "no".to_owned() };
    fake.inject("/api/chat", &vec![error; 8]);
    let mut chat = session(&fake, 8192, "");
    let kinds = json!(["compressed", "compression-error", "compression-skipped"]);
    chat.ok("event.subscribe", json!({ "kinds": kinds }));
    chat.exchanges(17);
    let event = chat.wire.event();
    assert_eq!(
        (&event["kind"], &event["data"]["provisional"]),
        (&json!("compression-error"), &json!(false)),
        "{event}"
    );
    assert_eq!(chat.count("compaction"), 0);
    assert_eq!(chat.build()["strategy"], "full-history");
}

#[test]
fn chat_turns_are_compacted_in_the_pauses() {
    let fake = FakeOllama::new();
    let mut chat = session(&fake, 8192, "");
    fake.script_summaries(Answer::text(SUMMARY));
    let mut n_waits = 0;
    for n in 0..24 {
        let events = chat.turn(&long_message(n));
        n_waits += events.iter().filter(|event| event["name"] == "compacting").count();
        // The pause after an answer that is due lasts until the background is done.
        let status = chat.ok("context.status", json!({}));
        let trigger = status["triggerTokens"].as_u64().unwrap();
        if status["conversationTokens"].as_u64().unwrap() * 100 > trigger * 91 {
            let n_before = status["compressionCount"].as_u64().unwrap();
            let count = |chat: &mut ModelSession| chat.checkpoints()["compressionCount"].as_u64();
            until("the session is compacted", || count(&mut chat) > Some(n_before));
        }
    }
    let n_compactions = chat.count("compaction");
    assert!((2..=7).contains(&n_compactions), "{n_compactions}");
    assert_eq!(n_waits, 0, "no turn waits");
    assert_eq!(chat.checkpoints()["compressionCount"], n_compactions);
    assert_eq!(fake.n_loads(), 1, "answers and summaries use the same window");
    for request in fake.requests("/api/chat") {
        assert_eq!(request.body["options"]["num_ctx"], 8192);
    }
}

#[test]
fn turn_with_a_long_message_does_not_wait_for_notes() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = session(&fake, 8192, DISABLED);
    chat.exchanges(14);
    chat.turn("Which variants does TokenKind have?");
    chat.reconfigure(&fake.config("tiny"));
    let n_before = request_kinds(&fake).len();
    let events = chat.turn(&"a line of a pasted file\n".repeat(700));
    assert!(events.iter().any(|event| event["name"] == "compacting"), "{events:?}");
    assert_eq!(&request_kinds(&fake)[n_before..=n_before], "A", "the answer comes first");
    let records = chat.records();
    let compaction = records.iter().find(|record| record["type"] == "compaction").unwrap();
    assert_eq!(compaction["compaction"]["method"], "extracted", "{compaction}");
    let is_written_by_the_model = || {
        let listed = chat.checkpoints();
        let mut checkpoints = array(&listed["checkpoints"]).iter();
        checkpoints.all(|one| one.get("provisional").is_none())
    };
    until("the background has replaced the notes", is_written_by_the_model);
    assert!(request_kinds(&fake)[n_before..].starts_with("AS"), "{}", request_kinds(&fake));
}

#[test]
fn provisional_summary_of_a_chat_turn_is_replaced_when_the_summarizer_works() {
    let fake = FakeOllama::new();
    let mut chat = session(&fake, 8192, "");
    fake.script_summaries(Answer::text("nonsense"));
    let is_extracted = |chat: &mut ModelSession| {
        let records = chat.records();
        let mut methods = records.iter().map(|record| &record["compaction"]["method"]);
        methods.any(|method| method == "extracted")
    };
    let mut n = 0;
    while !is_extracted(&mut chat) {
        chat.turn(&long_message(n));
        n += 1;
        assert!(n < 30, "no summary is usable");
    }
    assert_eq!(chat.checkpoints()["checkpoints"][0]["provisional"], true);
    fake.script_summaries(Answer::text(SUMMARY));
    chat.exchanges(6);
    assert_eq!(chat.compact(json!({}))["method"], "summarized");
    let listed = chat.checkpoints();
    let checkpoints = array(&listed["checkpoints"]);
    assert_eq!(checkpoints.len(), 1, "{listed}");
    assert!(checkpoints[0].get("provisional").is_none(), "{listed}");
    assert!(checkpoints[0]["from"].as_u64().unwrap() <= 1, "{listed}");
}

#[test]
fn chat_whose_context_fits_goes_before_its_compaction() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = on_request(&fake);
    // Fills the context until a compaction is due and the context still fits.
    let used_percent = |chat: &mut ModelSession| {
        let status = chat.ok("context.status", json!({}));
        status["contextTokens"].as_u64().unwrap() * 100 / status["promptLimit"].as_u64().unwrap()
    };
    let mut n = 0;
    while used_percent(&mut chat) < 84 {
        chat.exchange(n);
        n += 1;
    }
    let before = chat.messages();
    chat.reconfigure(&fake.config("tiny"));
    // The answer comes at once, the summary behind it stalls.
    fake.inject("/api/chat", &[Fault::Delay(Duration::ZERO), Fault::Stall { after: 2 }]);
    let is_compacting = |events: &[Value]| events.iter().any(|event| event["name"] == "compacting");
    let events = chat.turn("go on");
    assert!(!is_compacting(&events), "{events:?}");
    until("the summary is waited for", || fake.n_held() == 1);
    assert_eq!((request_kinds(&fake).as_str(), chat.count("compaction")), ("AS", 0));
    let requests = fake.requests("/api/chat");
    let messages = |at: usize| array(&requests[at].body["messages"]).to_vec();
    let (sent, summary) = (messages(0), messages(1));
    // The request begins with the messages from before, and the summary with those of the request.
    assert_eq!(sent.len(), array(&before).len() + 1);
    for (new, old) in sent.iter().zip(array(&before)) {
        assert_fields(new, json!({ "role": old["role"], "content": old["content"] }));
    }
    assert_eq!(summary.len(), sent.len() + 2, "an answer, and the task");
    assert_eq!(summary[..sent.len()], sent);
    let events = chat.turn("and on");
    assert!(!is_compacting(&events), "{events:?}");
    until("the session is compacted", || chat.count("compaction") == 1);
}

#[test]
fn chat_whose_context_does_not_fit_gets_a_provisional_summary() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchanges(80);
    turn_with_timeout(&mut chat, &fake, "firstTokenTimeout", Fault::Hang);
    assert_eq!(request_kinds(&fake), "SA");
    let listed = chat.checkpoints();
    assert_eq!(listed["checkpoints"][0]["provisional"], true, "{listed}");
    assert_eq!((chat.count("compaction"), chat.count("snapshot")), (1, 1));
}

/// Enables compaction, runs a turn whose summary runs into a time limit by a fault, and returns its events.
///
/// The limit holds only until the fault occurs, so that a slow machine does not run into it elsewhere.
#[track_caller]
fn turn_with_timeout(
    chat: &mut ModelSession,
    fake: &FakeOllama,
    limit: &str,
    fault: Fault,
) -> Vec<Value> {
    chat.reconfigure(&format!("{}  {limit}: 2s\n", fake.config("tiny")));
    fake.inject("/api/chat", &[fault]);
    chat.send(chat.message("go on"));
    until("the summary is waited for", || fake.n_held() == 1);
    chat.reconfigure(&fake.config("tiny"));
    chat.events_until("done")
}

/// Returns the distinct values of an option in some requests.
fn options(requests: &[&Request], name: &str) -> Vec<Value> {
    let mut all: Vec<Value> =
        requests.iter().map(|request| request.body["options"][name].clone()).collect();
    all.dedup();
    all
}

#[test]
fn configured_summary_model_writes_the_summaries_with_its_own_window() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = session(&fake, 8192, "compression:\n  model: thinker\n");
    let mut n = 0;
    while chat.count("compaction") < 2 {
        chat.turn(&long_message(n));
        n += 1;
        assert!(n < 40, "no second compaction in {n} turns");
    }
    let requests = fake.requests("/api/chat");
    let (summaries, answers): (Vec<&Request>, Vec<&Request>) =
        requests.iter().partition(|request| request.wants_summary());
    assert_eq!(summaries.len(), 2);
    assert!(summaries.iter().all(|request| request.body["model"] == "thinker"));
    assert!(summaries.iter().all(|request| request.body["think"] == false));
    assert!(answers.iter().all(|request| request.body["model"] == "tiny"));
    assert_eq!(options(&answers, "num_ctx"), [json!(8192)]);
    assert_eq!(options(&summaries, "num_ctx"), [json!(8192)]);
    assert_eq!(fake.n_loads(), 2, "each model is loaded once");
    let records = chat.records();
    let mut models = records.iter().filter_map(|record| record["compaction"].get("model"));
    assert!(models.all(|model| model == "thinker"));
}

/// Returns a session whose compaction is due and runs in the background, with a summary that stalls.
fn with_stalled_background_summary(fake: &FakeOllama) -> ModelSession {
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = on_request(fake);
    chat.exchanges(18);
    chat.reconfigure(&fake.config("tiny"));
    fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
    chat.exchange(18);
    until("the background waits for the summary", || fake.n_held() == 1);
    chat
}

#[test]
fn background_compaction_yields_to_a_chat_of_the_session() {
    let fake = FakeOllama::new();
    let begun = Instant::now();
    let mut chat = with_stalled_background_summary(&fake);
    chat.turn("go on");
    until("the stalled request is dropped", || fake.n_held() == 0);
    // The chat goes first, because its prompt fits, and the summary is requested again, after a pause twice as long as the
    // stalled request lasted.
    let is_compacted = || chat.count("compaction") == 1;
    until_after_pause("the session is compacted", (begun, 2), is_compacted);
    let requests = request_kinds(&fake);
    assert!(requests.starts_with("SAS"), "{requests}");
    chat.turn("and on");
    assert_eq!((request_kinds(&fake), chat.count("compaction")), (format!("{requests}A"), 1));
}

#[test]
fn background_compaction_yields_to_a_chat_of_another_session() {
    let fake = FakeOllama::new();
    let begun = Instant::now();
    let mut chat = with_stalled_background_summary(&fake);
    let mut follower = chat.daemon.wire();
    follower.subscribe(json!({ "sessionId": chat.id, "kinds": ["compressed"] }));
    let other = chat.wire.create(json!({ "contextSize": 8192 }));
    let compacted = std::mem::replace(&mut chat.id, other);
    chat.turn("hello");
    chat.id = compacted;
    assert!(request_kinds(&fake).starts_with("SA"), "{}", request_kinds(&fake));
    // The stalled request was dropped, and the summary is requested again after the chat, after a pause twice as long as
    // the stalled request lasted.
    let is_compacted = || chat.count("compaction") == 1;
    until_after_pause("the session is compacted", (begun, 2), is_compacted);
    let event = follower.event();
    assert_eq!(event["data"]["method"], "summarized", "{event}");
    assert!(request_kinds(&fake).starts_with("SAS"), "{}", request_kinds(&fake));
    assert_eq!(fake.n_loads(), 1);
}

#[test]
fn nearly_full_context_is_reported_once() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    let kinds = json!(["context-threshold", "before-overflow", "tool-call-recorded"]);
    chat.ok("event.subscribe", json!({ "kinds": kinds }));
    chat.exchange(0);
    chat.build();
    (1..20).for_each(|at| chat.exchange(at));
    let call = json!({ "id": "c", "name": "read", "args": {}, "result": { "llmContent": "end" } });
    chat.ok("session.recordToolCall", json!({ "toolCall": call }));
    let kinds: Vec<String> =
        (0..3).map(|_| chat.wire.event()["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["context-threshold", "before-overflow", "tool-call-recorded"]);
}
