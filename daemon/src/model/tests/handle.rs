//! The handle: status, windows, cached reports, and changed settings.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::config::ServerKind;
use crate::model::models::LoadReport;
use crate::shutdown::Tasks;

fn settings(host: String) -> ModelSettings {
    let address = ModelHost::parse(&host).map(HttpAddress::new).map_err(ModelError::from);
    ModelSettings(vec![ServerSettings {
        name: DEFAULT_SERVER.to_owned(),
        kind: ServerKind::Ollama,
        address,
        timeouts: PATIENT,
        parallel: None,
        models: BTreeMap::new(),
    }])
}

fn models(server: &ScriptedServer) -> Models {
    Models::new(settings(server.host()), Arc::new(Clock::system()), Tasks::new())
}

/// Returns the first report of the server.
///
/// The first call waits only a moment for it; on a busy machine a later call returns it.
async fn reported_status(models: &Models) -> ServerStatus {
    loop {
        let status = models.status().await;
        if status.reachable.is_some() {
            return status;
        }
        tokio::task::yield_now().await;
    }
}

/// Starts a server with one model, trained for 16,384 tokens, which it loads with a window of `effective` tokens.
fn with_model(effective: u32) -> ScriptedServer {
    ScriptedServer::scripted("0.33.0", move |request, number| {
        let body = match request.line.as_str() {
            "POST /api/show" => json!({ "model_info": {
                "general.architecture": "llama", "llama.context_length": 16_384,
                "llama.block_count": 32, "llama.embedding_length": 4096,
                "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
            } }),
            "GET /api/ps" if number > 4 => json!({ "models": [{
                "model": "m:latest", "size": 6000_u64 << 20, "size_vram": 5488_u64 << 20,
                "context_length": effective,
            }] }),
            "POST /api/chat" => json!({ "done": true, "done_reason": "load" }),
            _ => json!({ "models": null }),
        };
        response(200, "", &body.to_string())
    })
}

#[tokio::test]
async fn warming_reports_the_window_and_warnings() {
    let server = with_model(8192);
    let models = models(&server);
    let info = models.show("m").await.expect("is there");
    let LoadReport { window, running, warnings } =
        models.warm(&info, 16_384, Duration::from_secs(60)).await.expect("loads");
    let expect = Window { requested: 16_384, trained: Some(16_384), effective: Some(8192) };
    assert_eq!(window, expect);
    assert_eq!(running.map(|running| running.model).as_deref(), Some("m:latest"));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("8192 tokens instead of 16384"), "{warnings:?}");
    assert!(warnings[1].contains("a window of 4096 tokens might fit"), "{warnings:?}");
    assert_eq!(models.windows().current("m:latest"), Some(16_384));
    // A smaller window does not reload the model.
    models.warm(&info, 4096, Duration::from_secs(60)).await.expect("is loaded");
    let sent: Vec<Value> = server
        .requests()
        .into_iter()
        .filter(|request| request.line == "POST /api/chat")
        .map(|request| request.body["options"]["num_ctx"].clone())
        .collect();
    assert_eq!(sent, [json!(16_384), json!(16_384)]);
}

#[tokio::test]
async fn warming_waits_in_the_queue() {
    let server = with_model(8192);
    let models = models(&server);
    let info = models.show("m").await.expect("is there");
    let chat = models.queues().enter("m", Priority::Chat);
    let warm = models.warm(&info, 4096, Duration::ZERO);
    let release = async {
        let requests = server.requests();
        assert!(requests.iter().all(|request| request.line != "POST /api/chat"));
        drop(chat);
    };
    let (report, ()) = tokio::join!(warm, release);
    assert!(report.is_ok());
}

#[tokio::test]
async fn model_info_is_requested_once() {
    let server = with_model(8192);
    let models = models(&server);
    let (info, is_new) = models.info("m").await.expect("is there");
    assert!(is_new);
    assert_eq!(info.trained_context, Some(16_384));
    let n_requests = server.requests().len();
    let (_, is_new) = models.info("m").await.expect("is known");
    assert!(!is_new);
    assert_eq!(server.requests().len(), n_requests);
    models.show("m").await.expect("is asked");
    assert!(server.requests().len() > n_requests);
}

#[tokio::test]
async fn status_is_the_last_report_of_the_server() {
    let server = ScriptedServer::new("0.31.2", vec![Step::Hang]);
    let status = reported_status(&models(&server)).await;
    assert_eq!((status.reachable, status.version.as_deref()), (Some(true), Some("0.31.2")));
    assert_eq!(status.host, format!("http://{}", server.host()));
    assert!(status.error.is_none() && status.checked_at.is_some());
}

#[tokio::test]
async fn status_request_is_not_retried() {
    let server = ScriptedServer::new("", response(503, "", "{\"error\":\"server busy\"}"));
    let status = reported_status(&models(&server)).await;
    assert_eq!(status.error.map(|error| error.reason()), Some("busy"));
    assert_eq!(server.n_version_requests(), 1);
    // A chat is worth the wait.
    assert!(collect(&connect(&server, PATIENT)).await.1.is_err());
    assert_eq!(server.n_version_requests(), 4);
}

#[tokio::test]
async fn every_status_report_asks_the_server() {
    let server = with_model(4096);
    let backend = connect(&server, PATIENT);
    for n_requests in 1..=2 {
        backend.version().await.expect("is there");
        assert_eq!(server.n_version_requests(), n_requests);
    }
    backend.stream(&request()).await.map(drop).expect("is there");
    assert_eq!(server.n_version_requests(), 2, "a chat uses the version of the last report");
}

#[tokio::test]
async fn changed_settings_apply_to_the_next_call() {
    let (first, second) = (with_model(4096), with_model(4096));
    let models = models(&first);
    models.info("m").await.expect("is there");
    assert_eq!(models.windows().choose("m", 4096, None), 4096);
    models.configure(settings(first.host()));
    assert_eq!(models.windows().current("m"), Some(4096), "nothing changed");
    models.configure(settings(second.host()));
    assert_eq!(models.windows().current("m"), None, "another server has other models");
    models.info("m").await.expect("is there");
    assert!(!second.requests().is_empty());
    models.configure(settings("ftp://nowhere".to_owned()));
    let error = models.info("m").await.expect_err("is no address");
    assert_eq!(error.reason(), "invalidHost");
    let status = reported_status(&models).await;
    assert_eq!((status.reachable, status.host.as_str()), (Some(false), ""));
    assert!(!models.release_idle());
}
