//! The value by which a router before several replicas knows the requests of one session.

use std::collections::BTreeSet;

use serde_json::json;

use crate::harness::openai::{Face, FakeOpenAi};
use crate::harness::{FakeOllama, ModelSession};

fn config(fake: &FakeOpenAi, affinity: &str) -> String {
    let url = fake.url();
    format!(
        "models:\n  default: big\nollama:\n  host: 127.0.0.1:9\nservers:\n  s:\n    kind: llama-server\n    \
         url: {url}\n    affinity: {affinity}\n    models:\n      big: {{ name: m }}\n"
    )
}

#[test]
fn requests_of_a_session_have_the_same_opaque_value() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let mut chat = ModelSession::with_config(&config(&fake, "{ header: X-Session }"));
    let value = |fake: &FakeOpenAi, at: usize| {
        let sent = fake.requests("/v1/chat/completions")[at].clone();
        let line = sent.head.lines().find_map(|line| line.strip_prefix("x-session: "));
        line.unwrap_or_default().to_owned()
    };
    for number in 0..6 {
        let _turn = chat.turn(&format!("Port {number} is free. {}", "More words. ".repeat(60)));
    }
    let first = value(&fake, 0);
    assert!(first.len() == 32 && !chat.id.replace('-', "").contains(&first), "{first}");
    let n_chats = fake.chats().len();
    chat.refused("context.compact", json!({ "strategy": "summarize" }), "modelFailed");
    assert!(fake.chats().len() > n_chats, "notes were requested");
    let all = |fake: &FakeOpenAi| -> BTreeSet<String> {
        (0..fake.chats().len()).map(|at| value(fake, at)).collect()
    };
    assert_eq!(all(&fake), [first.clone()].into(), "notes have it as well");
    // It stays over a restart, and another session has another one.
    let mut chat = chat.restart();
    let _turn = chat.turn("hello");
    assert_eq!(all(&fake), [first].into());
    chat.id = chat.wire.create(json!({}));
    let _turn = chat.turn("hello");
    assert_eq!(all(&fake).len(), 2);
    let listed = fake.requests("/v1/models");
    assert!(listed.iter().all(|sent| !sent.head.contains("x-session")), "only chats have it");
}

#[test]
fn value_is_a_field_where_the_configuration_says_so() {
    let fake = FakeOpenAi::new(Face::Vllm);
    let text = config(&fake, "{ field: prompt_cache_key }").replace("llama-server", "vllm");
    let mut chat = ModelSession::with_config(&text);
    let _turns = [chat.turn("hello"), chat.turn("again")];
    let values: Vec<_> = fake.chats().iter().map(|sent| sent["prompt_cache_key"].clone()).collect();
    assert_eq!(values[0].as_str().unwrap().len(), 32);
    assert_eq!(values[0], values[1]);
    let ollama = FakeOllama::new();
    let text =
        format!("{}servers:\n  ollama:\n    affinity: {{ field: route }}\n", ollama.config("tiny"));
    let mut chat = ModelSession::with_config(&text);
    let _turn = chat.turn("hello");
    let sent = ollama.requests("/api/chat").pop().unwrap().body;
    assert_eq!(sent["route"].as_str().unwrap().len(), 32, "{sent}");
}
