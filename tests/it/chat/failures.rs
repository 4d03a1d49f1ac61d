//! Turns that end early: canceled, disconnected, failed, or killed with the daemon. The partial answer is recorded,
//! and the next turn works.

use std::time::Duration;

use serde_json::json;

use super::{conversation, messages, text_of};
use crate::harness::{Answer, FakeOllama, Fault, ModelSession, RENDER, Wire, until, until_some};

#[test]
fn canceled_turn_keeps_partial_answer_and_frees_the_session() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
    let mut chat = ModelSession::new(&fake);
    chat.send(chat.message("count"));
    chat.events_until("delta");
    let id = json!({ "sessionId": chat.id });
    let mut other = chat.daemon.wire();
    let error = other.refused("chat.send", chat.message("me too"), "conflict");
    assert!(error["data"]["holder"].as_str().unwrap().starts_with("tiny since"), "{error}");
    assert_eq!(other.ok("chat.cancel", id.clone())["canceled"], true);
    let error = chat.events_until("error").pop().unwrap();
    assert_eq!(error["data"]["kind"], "canceled");
    until("the request to the model is dropped", || fake.n_held() == 0);
    let (_, text, reason) = &conversation(&mut chat)[1];
    assert_eq!(reason, "canceled");
    assert!("one two three".starts_with(text), "{text}");
    assert_eq!(other.ok("chat.cancel", id)["canceled"], false);
    assert_eq!(text_of(&chat.turn("again")), "ok");
}

#[test]
fn disconnect_cancels_the_turn_unless_it_is_detached() {
    for detach in [false, true] {
        let fake = FakeOllama::new();
        fake.script(Answer::text("one two three"));
        fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
        let mut chat = ModelSession::new(&fake);
        let mut params = chat.message("count");
        params["detach"] = json!(detach);
        let mut client = chat.daemon.wire();
        client.ok("chat.send", params);
        // The daemon has a part of the answer before the client leaves.
        while client.notification("chat.event")["kind"] != "delta" {}
        until("the answer stalls", || fake.n_held() == 1);
        drop(client);
        if detach {
            fake.resume();
        }
        let (_, text, reason) =
            until_some("the answer is recorded", || conversation(&mut chat).into_iter().nth(1));
        assert_eq!(reason, if detach { "stop" } else { "canceled" });
        assert_eq!(text == "one two three", detach);
    }
}

#[test]
fn failed_turn_keeps_message_and_partial_answer_and_can_be_repeated() {
    let cases = [
        (
            Fault::Error { status: 404, text: "model 'tiny' not found".into() },
            "modelNotFound",
            None,
        ),
        (
            Fault::Error { status: 500, text: "llama-server process has terminated".into() },
            "modelFailed",
            None,
        ),
        (Fault::ForbiddenHost, "modelUnavailable", None),
        (Fault::ErrorLine { after: 1, text: "out of memory".into() }, "modelFailed", Some("one ")),
        (Fault::EndWithoutDone { after: 2 }, "modelFailed", Some("one two ")),
        (Fault::Break { after: 1 }, "modelFailed", Some("one ")),
        (Fault::GarbageLine { after: 1 }, "modelFailed", Some("one ")),
    ];
    for (fault, kind, partial) in cases {
        let fake = FakeOllama::new();
        let mut chat = ModelSession::new(&fake);
        fake.script(Answer::text("one two three"));
        fake.inject("/api/chat", std::slice::from_ref(&fault));
        let error = chat.failed_turn("count", kind);
        let mut expected = vec![("user", "count", "")];
        expected.extend(partial.map(|text| ("assistant", text, "interrupted")));
        assert_eq!(conversation(&mut chat), messages(&expected), "{fault:?}");
        assert_eq!(error["data"]["seq"].is_u64(), partial.is_some(), "{error}");
        // A turn without a message answers the recorded one.
        chat.send(json!({}));
        assert_eq!(chat.events_until("done").last().unwrap()["finishReason"], "stop", "{fault:?}");
    }
}

#[test]
fn turn_without_model_server_keeps_message_and_has_hint() {
    let mut chat =
        ModelSession::with_config("ollama:\n  host: 127.0.0.1:9\nmodels:\n  default: tiny\n");
    let error = chat.failed_turn("anybody there?", "modelUnavailable");
    assert_eq!(error["data"]["hint"], "ollama serve");
    assert_eq!(error["data"]["host"], "http://127.0.0.1:9");
    assert_eq!(conversation(&mut chat), messages(&[("user", "anybody there?", "")]));
}

#[test]
fn killed_daemon_loses_only_the_end_of_the_answer() {
    let fake = FakeOllama::new();
    // The whole answer takes 16 seconds, so that the kill comes before its end.
    let words: String = (0..800).map(|n| format!("word{n} ")).collect();
    fake.script(Answer::text(&words));
    fake.inject("/api/chat", &[Fault::SlowLines(Duration::from_millis(20))]);
    let mut chat = ModelSession::new(&fake);
    chat.send(chat.message("count"));
    let (mut other, id) = (chat.daemon.wire(), chat.id.clone());
    until("two words of the answer are recorded", || {
        let pieces = other.records(&id);
        let texts = pieces.iter().filter_map(|record| record["custom"]["data"]["text"].as_str());
        texts.collect::<String>().contains("word1 ")
    });
    let mut chat = chat.kill_and_restart();
    let (_, text, reason) = &conversation(&mut chat)[1];
    assert_eq!(reason, "interrupted");
    assert!(text.starts_with("word0 word1 ") && words.starts_with(text), "{text}");
    assert_eq!(conversation(&mut chat).len(), 2, "the partial answer becomes one message");
    assert_eq!(chat.turn("go on").last().unwrap()["finishReason"], "stop");
    assert!(chat.daemon.terminate().success());
}

#[test]
fn answer_is_recorded_while_its_model_stalls() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
    let mut chat = ModelSession::new(&fake);
    chat.send(chat.message("count"));
    let (mut other, id) = (chat.daemon.wire(), chat.id.clone());
    let recorded = |wire: &mut Wire| {
        let pieces = wire.records(&id);
        let texts = pieces.iter().filter_map(|record| record["custom"]["data"]["text"].as_str());
        texts.collect::<String>()
    };
    until("the words before the stall are recorded", || recorded(&mut other) == "one two ");
    let mut chat = chat.kill_and_restart();
    let (_, text, reason) = &conversation(&mut chat)[1];
    assert_eq!((text.as_str(), reason.as_str()), ("one two ", "interrupted"));
}

#[test]
fn hanging_model_server_is_not_contacted_again_in_the_turn() {
    let fake = FakeOllama::new();
    let config = fake.config("tiny");
    let mut chat = ModelSession::with_config(&format!("{config}  firstTokenTimeout: 200ms\n"));
    fake.inject(RENDER, &[Fault::Hang]);
    let error = chat.failed_turn("anybody there?", "modelFailed");
    assert_eq!(error["data"]["reason"], "firstTokenTimeout", "{error}");
    assert_eq!(fake.requests("/api/chat").len(), 0, "no request after the hanging one");
    chat.reconfigure(&config);
    assert_eq!(text_of(&chat.turn("and now?")), "ok");
}
