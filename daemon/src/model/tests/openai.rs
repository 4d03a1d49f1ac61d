//! Servers that are only known to have the API of OpenAI.

use serde_json::{Value, json};

use super::*;
use crate::model::openai::{Dialect, OpenAi};

/// Returns a server that lists models of these owners, and what is connected to it.
fn plain(version: &'static str, owners: &[&str]) -> (ScriptedServer, OpenAi) {
    let entry = |owner: &&str| json!({ "id": "m", "object": "model", "owned_by": owner });
    let data: Vec<Value> = owners.iter().map(entry).collect();
    let list = json!({ "object": "list", "data": data }).to_string();
    let server = ScriptedServer::scripted(version, move |request, _| match request.line.as_str() {
        "GET /v1/models" => response(200, "", &list),
        _ => response(404, "", "not found"),
    });
    let host = ModelHost::parse(&server.host()).expect("an address");
    let (address, clock) = (HttpAddress::new(host), Arc::new(Clock::system()));
    let plain = OpenAi::new(address, PATIENT, clock, OwnNames::default(), Dialect::Plain, false);
    (server, plain)
}

#[tokio::test]
async fn ollama_is_found_by_its_version_which_is_asked_once() {
    let (_server, plain_one) = plain("0.33.0", &["someone"]);
    for _ in 0..2 {
        let error = plain_one.list(1).await.expect_err("is Ollama");
        assert!(error.to_string().contains("Ollama answers there"), "{error}");
    }
    let (server, other) = plain("", &["someone"]);
    for _ in 0..2 {
        assert_eq!(other.list(1).await.map(|list| list.len()), Ok(1));
    }
    assert_eq!(server.n_version_requests(), 1);
    let (server, kobold) = plain("0.7.0", &["koboldcpp"]);
    assert_eq!(kobold.list(1).await.map(|list| list.len()), Ok(1));
    assert_eq!(server.n_version_requests(), 0);
}

#[tokio::test]
async fn only_a_count_is_a_count() {
    let check = async |reply: &'static str, expect: Option<u64>| {
        let server = ScriptedServer::scripted("", move |_, _| response(200, "", reply));
        let host = ModelHost::parse(&server.host()).expect("an address");
        let (address, clock, names) =
            (HttpAddress::new(host), Arc::new(Clock::system()), OwnNames::default());
        let vllm = OpenAi::new(address, PATIENT, clock, names, Dialect::Vllm, true);
        let counts = [vllm.count_text("m", "hello").await, vllm.count(&request()).await];
        for count in counts {
            match expect {
                Some(expect) => assert_eq!(count, Ok(Some(expect)), "{reply}"),
                None => {
                    let is_other = matches!(count, Err(ModelError::OtherServer { .. }));
                    assert!(is_other, "{reply}: {count:?}");
                }
            }
        }
    };
    check(r#"{"count":3,"max_model_len":4096,"tokens":[]}"#, Some(3)).await;
    check(r#"{"tokens":[1,2]}"#, Some(2)).await;
    check(r#"{"tokens":[]}"#, None).await;
    check(r#"{"count":0}"#, None).await;
    check(r#"{"status":"ok"}"#, None).await;
}

#[tokio::test]
async fn properties_that_are_hidden_now_are_the_last_ones() {
    let n_asked = std::sync::atomic::AtomicUsize::new(0);
    let list = r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"llamacpp"}]}"#;
    let server = ScriptedServer::scripted("", move |request, _| match request.line.as_str() {
        "GET /v1/models" => response(200, "", list),
        "GET /props" => match n_asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => response(200, "", r#"{"default_generation_settings":{"n_ctx":512}}"#),
            1 => response(404, "", "not found"),
            _ => response(403, "", r#"{"error":"no"}"#),
        },
        _ => response(404, "", "not found"),
    });
    let host = ModelHost::parse(&server.host()).expect("an address");
    let (address, clock, names) =
        (HttpAddress::new(host), Arc::new(Clock::system()), OwnNames::default());
    let llama = OpenAi::new(address, PATIENT, clock, names, Dialect::LlamaServer, true);
    for _ in 0..2 {
        let shown = llama.show("m").await.expect("describes");
        assert_eq!(shown.served_context, Some(512));
    }
    let error = llama.show("m").await.expect_err("is not permitted");
    assert!(matches!(error, ModelError::Unauthorized { .. }), "{error}");
}
