//! Equal servers of one model: the choice for a session, and the failover from one to another.

use serde_json::{Value, json};

use crate::harness::openai::{EVENTS, Face, FakeOpenAi, error, piece};
use crate::harness::{
    ModelSession, Step, array, assert_fields, http_response, rpc_request, text_message, until,
};

/// Returns a configuration with the servers `a` and `b`, which are equal for the default model `big`.
fn config(a: &FakeOpenAi, b: &FakeOpenAi) -> String {
    let server = |name: &str, fake: &FakeOpenAi| {
        let url = fake.url();
        format!(
            "  {name}:\n    kind: llama-server\n    url: {url}\n    models:\n      big: {{ name: m }}\n"
        )
    };
    let (a, b) = (server("a", a), server("b", b));
    format!("models:\n  default: big\nollama:\n  host: 127.0.0.1:9\nservers:\n{a}{b}")
}

/// Returns two servers, and a session of a daemon that uses them.
fn start() -> (FakeOpenAi, FakeOpenAi, ModelSession) {
    let (a, b) = (FakeOpenAi::new(Face::LlamaServer), FakeOpenAi::new(Face::LlamaServer));
    let chat = ModelSession::with_config(&config(&a, &b));
    (a, b, chat)
}

/// Returns the number of chats that each server got.
fn n_chats(servers: [&FakeOpenAi; 2]) -> [usize; 2] {
    servers.map(|server| server.chats().len())
}

fn failovers(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["kind"] == "failover").collect()
}

/// Makes a server refuse a chat, and each attempt to send it again.
fn refuse(server: &FakeOpenAi) {
    for _ in 0..3 {
        server.reply_with(error(503, "unavailable_error", "Loading model"));
    }
}

#[test]
fn session_stays_with_the_server_that_has_its_prompt() {
    let (a, b, mut chat) = start();
    let _turns = [chat.turn("hello"), chat.turn("hello again")];
    assert_eq!(n_chats([&a, &b]), [2, 0]);
    let first = std::mem::replace(&mut chat.id, chat.wire.create(json!({})));
    let _turn = chat.turn("another session");
    assert_eq!(n_chats([&a, &b]), [2, 1], "no session uses it yet");
    chat.id = first;
    let _turn = chat.turn("and again");
    assert_eq!(n_chats([&a, &b]), [3, 1]);
    let records = chat.records();
    let answer = records.iter().rfind(|record| record["message"]["role"] == "assistant").unwrap();
    assert_eq!(answer["message"]["model"], "big");
    assert_eq!(chat.ok("context.status", json!({}))["model"], "big@a");
    let list = chat.wire.ok("model.list", json!({}));
    let listed: Vec<_> =
        array(&list["data"]).iter().map(|model| (&model["model"], &model["server"])).collect();
    assert_eq!(listed, [(&json!("big"), &json!("a")), (&json!("big"), &json!("b"))]);
}

#[test]
fn snapshot_names_the_model_as_its_session_does() {
    let (_a, _b, mut chat) = start();
    chat.ok("session.update", json!({ "model": "big" }));
    let _turn = chat.turn("hello");
    let taken = chat.ok("snapshot.create", json!({}));
    let params = json!({ "snapshotId": taken["snapshot"]["snapshotId"], "newSession": true });
    let restored = chat.wire.ok("snapshot.restore", params);
    assert_eq!(restored["session"]["model"], "big");
}

#[test]
fn new_session_gets_the_server_that_is_not_busy() {
    let (a, b, mut chat) = start();
    a.reply_with(vec![EVENTS, piece("one "), Step::Stall, Step::Close]);
    chat.send(chat.message("hello"));
    until("the answer has begun", || a.n_held() == 1);
    for _ in 0..2 {
        chat.id = chat.wire.create(json!({}));
        let message = text_message(&chat.id, "user", "hello");
        chat.wire.ok("chat.send", message);
    }
    until("both are answered by the other server", || n_chats([&a, &b]) == [1, 2]);
    a.resume();
}

#[test]
fn another_server_answers_if_one_fails_before_the_first_token() {
    let (a, b, mut chat) = start();
    let _turn = chat.turn("hello");
    let n_epochs = chat.count("epoch");
    drop(a);
    let events = chat.turn("still there?");
    let failover = failovers(&events);
    assert_eq!(failover.len(), 1, "{events:?}");
    assert_fields(failover[0], json!({ "from": "a", "to": "b", "reason": "unreachable" }));
    let sent = b.chats().pop().unwrap();
    let built = chat.ok("context.build", json!({}));
    let texts = |messages: &Value| -> Vec<Value> {
        array(messages).iter().map(|message| message["content"].clone()).collect()
    };
    assert!(texts(&built["messages"]).starts_with(&texts(&sent["messages"])), "{built}");
    assert_eq!(chat.count("epoch"), n_epochs, "the prompt continues");
    assert_eq!(chat.ok("context.status", json!({}))["model"], "big@b");
    // It stays there.
    assert!(failovers(&chat.turn("and now?")).is_empty());
    // Another session is not sent to the server that failed.
    chat.id = chat.wire.create(json!({}));
    assert!(failovers(&chat.turn("hello")).is_empty());
    assert_eq!(b.chats().len(), 3);
}

#[test]
fn server_that_answers_again_is_used_again() {
    let (a, b, mut chat) = start();
    refuse(&a);
    let events = chat.turn("hello");
    assert_fields(failovers(&events)[0], json!({ "from": "a", "to": "b", "reason": "busy" }));
    chat.id = chat.wire.create(json!({}));
    let _turn = chat.turn("hello");
    assert_eq!(n_chats([&a, &b]), [3, 2], "it is avoided for a while");
    let _list = chat.wire.ok("model.list", json!({}));
    chat.id = chat.wire.create(json!({}));
    let _turn = chat.turn("hello");
    assert_eq!(n_chats([&a, &b]), [4, 2], "it lists its models");
}

#[test]
fn session_whose_server_failed_elsewhere_goes_on_at_once() {
    let (a, b, mut chat) = start();
    let _turn = chat.turn("hello");
    let first = std::mem::replace(&mut chat.id, chat.wire.create(json!({})));
    let _turn = chat.turn("at the other one");
    chat.id = chat.wire.create(json!({}));
    refuse(&a);
    let _turn = chat.turn("at the first one");
    chat.id = first;
    let events = chat.turn("hello again");
    assert_fields(
        failovers(&events)[0],
        json!({ "from": "a", "to": "b", "reason": "failedBefore" }),
    );
    assert_eq!(n_chats([&a, &b]), [4, 3], "{events:?}");
}

#[test]
fn answer_that_has_begun_is_not_asked_elsewhere() {
    let (a, b, mut chat) = start();
    a.reply_with(vec![EVENTS, piece("half of it"), Step::Close]);
    let error = chat.failed_turn("hello", "modelFailed");
    assert_eq!(error["data"]["reason"], "disconnected", "{error}");
    assert_eq!(n_chats([&a, &b]), [1, 0]);
    // Nothing has begun when the connection breaks before.
    a.reply_with(vec![EVENTS, Step::Close]);
    let events = chat.turn("hello again");
    assert_fields(failovers(&events)[0], json!({ "to": "b", "reason": "disconnected" }));
}

#[test]
fn server_with_a_smaller_window_is_not_asked_instead() {
    let (a, b, mut chat) = start();
    b.state().window = Some(2048);
    let _turn = chat.turn("hello");
    refuse(&a);
    let error = chat.failed_turn("hello again", "modelUnavailable");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("Loading model"), "{message}");
    assert!(message.contains("a (busy), b (smallerWindow)"), "{message}");
    assert_eq!(error["data"]["tried"], json!(["a", "b"]), "{error}");
    assert!(b.chats().is_empty());
    // It is the only one that is left of the session's own, so it is asked again.
    let _turn = chat.turn("hello again");
    assert!(b.chats().is_empty());
}

#[test]
fn error_names_all_servers_that_failed() {
    let (a, b, mut chat) = start();
    drop((a, b));
    let error = chat.failed_turn("hello", "modelUnavailable");
    assert_eq!(error["data"]["tried"], json!(["a", "b"]), "{error}");
    assert_eq!(error["data"]["reason"], "unreachable");
}

#[test]
fn each_of_two_servers_that_failed_a_moment_ago_is_asked_once() {
    let (a, b, mut chat) = start();
    refuse(&a);
    refuse(&b);
    let error = chat.failed_turn("hello", "modelUnavailable");
    assert_eq!(error["data"]["tried"], json!(["a", "b"]), "{error}");
    for _ in 0..3 {
        refuse(&a);
    }
    chat.id = chat.wire.create(json!({}));
    let events = chat.turn("hello");
    assert_eq!(failovers(&events).len(), 1, "{events:?}");
    assert_eq!(n_chats([&a, &b]), [6, 4]);
}

#[test]
fn server_whose_settings_cannot_be_used_is_left_out() {
    let (a, b) = (FakeOpenAi::new(Face::LlamaServer), FakeOpenAi::new(Face::LlamaServer));
    let url = format!("    url: {}\n", a.url());
    let config = config(&a, &b).replace(&url, &format!("{url}    keyEnv: NO_KEY\n"));
    let mut chat = ModelSession::with_config(&config);
    let events = chat.turn("hello");
    assert!(failovers(&events).is_empty(), "{events:?}");
    assert_eq!(n_chats([&a, &b]), [0, 1]);
}

#[test]
fn options_are_checked_for_the_server_that_answers() {
    let (a, b) = (FakeOpenAi::new(Face::LlamaServer), FakeOpenAi::new(Face::LlamaServer));
    // The daemon asks the servers what they are.
    let mut chat =
        ModelSession::with_config(&config(&a, &b).replace("kind: llama-server", "kind: auto"));
    drop(a);
    let mut params = chat.message("hello");
    params["options"] = json!({ "temperature": 0.5 });
    let events = chat.turn_with(params);
    assert_fields(
        failovers(&events)[0],
        json!({ "from": "a", "to": "b", "reason": "unreachable" }),
    );
    assert_eq!(b.chats()[0]["temperature"], json!(0.5));
    let mut params = chat.message("hello again");
    params["options"] = json!({ "unknown": 1 });
    chat.wire.refused("chat.send", params, "invalidParams");
}

#[test]
fn turn_waits_while_its_server_refuses_requests_for_a_time() {
    let (a, b, mut chat) = start();
    let slow = |seconds: u32| {
        let head = format!("Retry-After: {seconds}\r\n");
        http_response(429, &head, b"{\"error\":\"slow down\"}")
    };
    a.reply_with(slow(1));
    let events = chat.turn("hello");
    let waits: Vec<_> = events.iter().filter(|event| event["waitsFor"] == "limit").collect();
    assert_eq!(waits.len(), 1, "{events:?}");
    assert_fields(waits[0], json!({ "kind": "phase", "name": "queued", "expectedMs": 1000 }));
    assert_eq!(n_chats([&a, &b]), [2, 0]);
    // Nobody waits for an hour.
    a.reply_with(slow(3600));
    let events = chat.turn("hello again");
    assert_fields(failovers(&events)[0], json!({ "from": "a", "to": "b", "reason": "busy" }));
}

#[test]
fn failover_is_a_line_in_a_terminal_and_an_event_for_programs() {
    let (a, b, chat) = start();
    refuse(&a);
    let output = chat.sandbox.ctl(["chat", "--new", "hello"]);
    assert!(output.stderr.contains("a does not answer, so b is asked"), "{output:?}");
    assert_eq!(output.ok().trim(), "ok");
    let _list = chat.sandbox.ctl(["models", "list"]).ok();
    refuse(&a);
    refuse(&b);
    let output = chat.sandbox.ctl(["chat", "--new", "--json", "hello"]);
    assert!(output.stdout.contains("\"kind\":\"failover\""), "{}", output.stdout);
}

#[test]
fn notes_of_another_server_use_its_queue_and_its_window() {
    let (near, far) = (FakeOpenAi::new(Face::LlamaServer), FakeOpenAi::new(Face::LlamaServer));
    far.state().window = Some(2048);
    let server = |name: &str, fake: &FakeOpenAi| {
        format!("  {name}:\n    kind: llama-server\n    url: {}\n", fake.url())
    };
    let (a, b) = (server("near", &near), server("far", &far));
    let mut chat = ModelSession::with_config(&format!(
        "models:\n  default: m@near\nollama:\n  host: 127.0.0.1:9\ncompression:\n  model: m@far\nservers:\n{a}{b}"
    ));
    for number in 0..6 {
        let _turn = chat.turn(&format!("Port {number} is free. {}", "More words. ".repeat(60)));
    }
    // A chat of another session does not hold them up.
    let busy = chat.wire.create(json!({}));
    near.reply_with(vec![EVENTS, piece("one "), Step::Stall, Step::Close]);
    chat.wire.ok("chat.send", text_message(&busy, "user", "hello"));
    until("the other chat is answered", || near.n_held() == 1);
    let n_chats = near.chats().len();
    // The fake answers "ok", which is no summary.
    let error = chat.refused("context.compact", json!({ "strategy": "summarize" }), "modelFailed");
    assert_eq!(error["data"]["model"], "m@far", "{error}");
    assert_eq!(near.chats().len(), n_chats);
    let first = near.chats()[0]["messages"][0].clone();
    for sent in far.chats() {
        assert_ne!(sent["messages"][0], first, "a prompt of its own, not the chat's: {sent}");
        assert!(sent["messages"].to_string().contains("is free"), "{sent}");
        assert!(sent["max_tokens"].as_u64().unwrap() < 2048, "{sent}");
    }
    assert!(!far.chats().is_empty());
    // They wait for a place at their own server.
    far.reply_with(vec![EVENTS, piece("one "), Step::Stall, Step::Close]);
    let mut params = text_message(&chat.wire.create(json!({})), "user", "hello");
    params["model"] = json!("m@far");
    chat.wire.ok("chat.send", params);
    until("the other chat is answered", || far.n_held() == 1);
    let n_chats = far.chats().len();
    let params = chat.params(json!({ "strategy": "summarize" }));
    chat.wire.send(&rpc_request(9001, "context.compact", params).to_string());
    let _status = chat.sandbox.ctl(["daemon", "status"]).ok();
    assert_eq!(far.chats().len(), n_chats, "it waits");
    far.resume();
    until("the notes are requested", || far.chats().len() > n_chats);
    near.resume();
}
