//! Counts for model servers beside Ollama: when a server is asked, and what its counts teach.

use serde_json::json;

use crate::harness::openai::{Face, FakeOpenAi};
use crate::harness::{ModelSession, Sandbox, assert_fields, count, tokenizer_json, until};
use crate::servers::{config, config_with, usage, write_weights};

/// Waits until the model is learned, which happens in the background.
fn wait_until_learned(chat: &mut ModelSession) {
    let messages = json!([{ "role": "user", "content": "hello" }]);
    chat.wire.ok("model.countTokens", json!({ "messages": messages }));
}

#[test]
fn counts_are_exact_with_the_weights_on_this_disk() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let sandbox = Sandbox::new();
    write_weights(&sandbox, &fake);
    let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
    // On a busy machine the first turn may not wait for the lesson to its end.
    chat.turn("hi");
    wait_until_learned(&mut chat);
    let mut last = 0;
    for text in ["hello there", "ringing\n  the  bell", "naïve 你好"] {
        let usage = usage(&chat.turn(text));
        assert_eq!(usage["countKind"], "exact", "{usage}");
        assert_eq!(usage["promptTokens"], usage["contextTokens"], "{usage}");
        let cached = usage["cachedTokens"].as_u64().unwrap();
        assert!(cached >= last, "the prefix is kept: {usage}");
        last = usage["promptTokens"].as_u64().unwrap() / 2;
    }
}

#[test]
fn first_answer_waits_for_no_count() {
    let sandbox = Sandbox::new();
    let vllm = || FakeOpenAi::new(Face::Vllm);
    let with_weights = vllm();
    write_weights(&sandbox, &with_weights);
    let tokenizer = format!(", tokenizer: {}", with_weights.state().weights);
    let cases =
        [(FakeOpenAi::new(Face::LlamaServer), ""), (vllm(), ""), (with_weights, &tokenizer)];
    for (fake, model) in cases {
        fake.state().hangs_counting = true;
        let mut chat = ModelSession::with_config(&config_with(&fake, "auto", model));
        assert_eq!(usage(&chat.turn("hello there"))["countKind"], "estimated");
        until("the server is asked later", || {
            let paths = fake.paths();
            let first =
                |wanted: &[&str]| paths.iter().position(|path| wanted.contains(&path.as_str()));
            let asked = first(&["/tokenize", "/apply-template"]);
            assert!(asked.is_none() || asked > first(&["/v1/chat/completions"]), "{paths:?}");
            asked.is_some()
        });
        until("the server holds it", || fake.n_held() > 0);
        let _next = chat.turn("it does not wait either");
        assert!(fake.n_held() > 0, "is still being asked");
    }
}

#[test]
fn first_answer_does_not_wait_long_for_a_server_on_this_machine() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let sandbox = Sandbox::new();
    write_weights(&sandbox, &fake);
    fake.state().hangs_counting = true;
    let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
    assert_eq!(usage(&chat.turn("hello there"))["countKind"], "estimated");
    let paths = fake.paths();
    let first = |wanted: &str| paths.iter().position(|path| path == wanted);
    let asked = first("/apply-template").or(first("/tokenize"));
    assert!(asked.is_some() && asked < first("/v1/chat/completions"), "{paths:?}");
}

#[test]
fn chat_does_not_wait_for_a_call_that_counts() {
    let fake = FakeOpenAi::new(Face::Vllm);
    fake.state().hangs_counting = true;
    let mut chat = ModelSession::with_config(&config(&fake, "vllm"));
    let mut other = chat.daemon.wire();
    let messages = json!([{ "role": "user", "content": "hello" }]);
    other.request("model.countTokens", json!({ "messages": messages }));
    until("the server counts", || fake.n_held() > 0);
    chat.turn("hello there");
    assert!(fake.n_held() > 0, "is still being asked");
}

#[test]
fn connection_that_the_server_closed_is_no_failed_count() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let sandbox = Sandbox::new();
    write_weights(&sandbox, &fake);
    fake.state().n_closing = 1;
    let mut chat = ModelSession::with_config(&config(&fake, "auto"));
    chat.turn("hello there");
    wait_until_learned(&mut chat);
    assert_eq!(usage(&chat.turn("hello again"))["countKind"], "exact");
}

#[test]
fn texts_are_counted_by_the_server_once() {
    for face in [Face::LlamaServer, Face::Vllm] {
        let fake = FakeOpenAi::new(face);
        let mut chat = ModelSession::with_config(&config(&fake, "auto"));
        let texts = ["hello there 你好 naïve", "ringing the bell", "and so on"];
        for text in texts {
            let usage = usage(&chat.turn(text));
            let is_first = text == texts[0];
            let expect = if is_first { "estimated" } else { "calibrated" };
            assert_eq!(usage["countKind"], expect, "{usage}");
            let count_text = json!({ "text": text });
            until("the text is counted", || {
                let counted = chat.wire.ok("model.countTokens", count_text.clone());
                let is_exact = counted["countKind"] == "exact";
                assert!(!is_exact || counted["tokens"] == count(text), "{counted}");
                is_exact
            });
        }
        let asked = fake.requests("/tokenize").into_iter().filter_map(|request| {
            let body = &request.body;
            let is_text = body["add_special"] == false || body["add_special_tokens"] == false;
            let text = body["content"].as_str().or(body["prompt"].as_str());
            text.filter(|_| is_text).map(str::to_owned)
        });
        let mut asked: Vec<String> = asked.collect();
        assert!(texts.iter().all(|text| asked.iter().any(|one| one == text)), "{asked:?}");
        let n_asked = asked.len();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), n_asked, "{face:?}: each once");
        // Only the new message is estimated.
        let usage = usage(&chat.turn("yes"));
        let tokens = |name: &str| usage[name].as_u64().unwrap();
        let missed = tokens("promptTokens").abs_diff(tokens("contextTokens"));
        assert!(missed <= 4 && tokens("margin") > missed, "{face:?}: {usage}");
    }
}

#[test]
fn counts_of_a_server_that_hides_its_paths_are_corrected_by_answers() {
    let hidden = FakeOpenAi::new(Face::Vllm);
    hidden.state().hides_counting = true;
    let mut chat = ModelSession::with_config(&config(&hidden, "vllm"));
    let first = usage(&chat.turn("hello there"));
    assert_eq!(first["countKind"], "estimated", "{first}");
    let second = usage(&chat.turn("hello again"));
    assert_eq!(second["countKind"], "calibrated", "the count of the answer is known: {second}");
}

#[test]
fn replaced_model_has_no_corrections_of_the_old_one() {
    for hides_counting in [false, true] {
        let fake = FakeOpenAi::new(Face::LlamaServer);
        fake.state().hides_counting = hides_counting;
        let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
        chat.turn("hello there");
        wait_until_learned(&mut chat);
        assert_eq!(usage(&chat.turn("hello again"))["countKind"], "calibrated");
        fake.state().n_params += 1;
        assert_eq!(usage(&chat.turn("and now?"))["countKind"], "estimated");
        wait_until_learned(&mut chat);
        let mut chat = chat.restart();
        assert_eq!(usage(&chat.turn("and then?"))["countKind"], "calibrated");
        fake.state().n_params += 1;
        let mut chat = chat.restart();
        assert_eq!(usage(&chat.turn("and at last?"))["countKind"], "estimated");
    }
}

#[test]
fn configured_vocabulary_counts_for_a_server_elsewhere() {
    let fake = FakeOpenAi::new(Face::Vllm);
    let sandbox = Sandbox::new();
    write_weights(&sandbox, &fake);
    let tokenizer = format!(", tokenizer: {}", fake.state().weights);
    let mut chat = ModelSession::with_config(&config_with(&fake, "vllm", &tokenizer));
    chat.turn("hello there");
    wait_until_learned(&mut chat);
    let usage = usage(&chat.turn("hello again"));
    assert_eq!(usage["countKind"], "calibrated", "its template is not known: {usage}");
    assert_eq!(usage["promptTokens"], usage["contextTokens"], "{usage}");
    let counted = chat.wire.ok("model.countTokens", json!({ "text": "ringing" }));
    assert_fields(&counted, json!({ "tokens": count("ringing"), "countKind": "exact" }));
    // The vocabulary of another model is not used.
    let other = FakeOpenAi::new(Face::Vllm);
    other.state().counts_otherwise = true;
    let mut chat = ModelSession::with_config(&config_with(&other, "vllm", &tokenizer));
    chat.turn("hello there");
    wait_until_learned(&mut chat);
    let counted = chat.wire.ok("model.countTokens", json!({ "text": "ringing" }));
    assert_eq!(counted["countKind"], "estimated", "{counted}");
    // llama-server renders its template, also on another machine.
    let llama = FakeOpenAi::new(Face::LlamaServer);
    let mut chat = ModelSession::with_config(&config_with(&llama, "auto", &tokenizer));
    chat.turn("hello there");
    wait_until_learned(&mut chat);
    assert_eq!(self::usage(&chat.turn("hello again"))["countKind"], "exact");
}

#[test]
fn texts_are_counted_by_a_tokenizer_json() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("tokenizer.json");
    let tokenizer = format!(", window: 8192, tokenizer: {}", path.display());
    std::fs::write(&path, tokenizer_json().to_string()).unwrap();
    // Both kinds of servers: one that counts conversations, and one that counts nothing.
    for (face, kind) in [(Face::Vllm, "vllm"), (Face::LmStudio, "openai")] {
        let fake = FakeOpenAi::new(face);
        let mut chat = ModelSession::with_config(&config_with(&fake, kind, &tokenizer));
        chat.turn("hello there");
        let text = "ringing\n  the  bell, naïve <|im_end|>";
        until("the server lists the model in time", || {
            let counted = chat.wire.ok("model.countTokens", json!({ "text": text }));
            assert_eq!(counted["tokens"], count(text), "{counted}");
            counted["countKind"] == "exact"
        });
        let usage = usage(&chat.turn("hello again"));
        assert_eq!(usage["countKind"], "calibrated", "its template is not known: {usage}");
        let reported = chat.sandbox.ctl(["servers", "test", "s"]).ok();
        assert!(!reported.contains("is not used"), "{reported}");
    }
    let mut file = tokenizer_json();
    file["normalizer"] = json!({ "type": "NFKC" });
    std::fs::write(&path, file.to_string()).unwrap();
    let fake = FakeOpenAi::new(Face::Vllm);
    let mut chat = ModelSession::with_config(&config_with(&fake, "vllm", &tokenizer));
    let reported = chat.sandbox.ctl(["servers", "test", "s"]).ok();
    let problem = format!(
        "the tokenizer of big is not used: {}: the normalizer is not understood: \
         {{\"type\":\"NFKC\"}}; try: ollmctl servers test s",
        path.display()
    );
    assert!(reported.contains(&problem), "{reported}");
    let tested = chat.wire.ok("model.servers", json!({ "server": "s", "test": true }));
    assert_eq!(tested["data"][0]["models"][0]["counts"], "server", "{tested}");
    chat.turn("hello there");
    let counted = chat.wire.ok("model.countTokens", json!({ "text": "ringing" }));
    assert_eq!(counted["countKind"], "estimated", "{counted}");
}

#[test]
fn replicas_that_count_differently_are_reported_and_not_learned() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("tokenizer.json");
    std::fs::write(&path, tokenizer_json().to_string()).unwrap();
    let tokenizer = format!(", window: 8192, tokenizer: {}", path.display());
    let fake = FakeOpenAi::new(Face::Plain);
    fake.state().counts_more = 20;
    let mut chat = ModelSession::with_config(&config_with(&fake, "openai", &tokenizer));
    let mut events = chat.daemon.wire();
    events.subscribe(json!({ "kinds": ["count-mismatch"] }));
    wait_until_learned(&mut chat);
    for _ in 0..5 {
        chat.turn("hello there");
    }
    let reported = |chat: &ModelSession| chat.sandbox.ctl(["servers", "test", "s"]).ok();
    let problem = "the counts of big jump by 20 tokens: replicas of the server count differently";
    assert!(!reported(&chat).contains(problem), "a change for good looks like this too");
    let last = usage(&chat.turn("hello there"));
    let event = events.event();
    assert_fields(&event["data"], json!({ "model": "big", "cause": "replicas", "shapes": [] }));
    assert_eq!(event["data"]["promptTokens"], last["promptTokens"]);
    let told = reported(&chat);
    assert!(told.contains(problem) && told.contains("servers.s.affinity"), "{told}");
    let list = chat.wire.ok("model.list", json!({}));
    assert_eq!(list["data"][0]["countDifference"], 20, "{list}");
    let list = chat.sandbox.ctl(["models", "list"]).ok();
    let warning = "big: replicas of the server count it differently, by 20 tokens";
    assert!(list.contains(warning), "{list}");
    let mut chat = chat.restart();
    let list = chat.wire.ok("model.list", json!({}));
    assert_eq!(list["data"][0]["countDifference"], 20, "after a restart: {list}");
    // The larger of the two counts is the one of the next prompt, and it stays.
    for _ in 0..4 {
        let usage = usage(&chat.turn("and now?"));
        let read = usage["promptTokens"].as_u64().unwrap();
        let less = usage["contextTokens"].as_u64().unwrap() - read;
        assert!(less == 0 || less == 20, "{usage}");
    }
}

#[test]
fn server_is_asked_once_before_a_further_turn() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let sandbox = Sandbox::new();
    write_weights(&sandbox, &fake);
    let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
    let _first = chat.turn("hello");
    wait_until_learned(&mut chat);
    let n_asked =
        |fake: &FakeOpenAi| ["/v1/models", "/props"].map(|path| fake.requests(path).len());
    let before = n_asked(&fake);
    let _second = chat.turn("hello again");
    assert_eq!(n_asked(&fake), before.map(|n| n + 1));
}
