//! The fixed parts of a model server with one model: a thread that serves, and the routes that describe the model.

use anyhow::Result;
use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

/// Serves a router on a thread until the program ends; returns the address.
pub(crate) fn serve(router: Router) -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let host = listener.local_addr()?.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        })
    });
    Ok(host)
}

/// Returns the routes for version, list and description of a model.
pub(crate) fn describe<S>(model: &str, trained_context: u64) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let details = json!({ "family": "scripted", "parameter_size": "7B" });
    let list = json!({ "models": [{ "name": model, "model": model, "size": 1,
        "digest": "sha256:00", "details": details }] });
    let show = json!({ "details": details, "capabilities": ["completion", "tools"],
        "model_info": { "general.architecture": "scripted",
            "scripted.context_length": trained_context,
            "general.parameter_count": 7_000_000_000_u64 } });
    let fixed = |value: Value| move || std::future::ready(json_response(&value));
    Router::new()
        .route("/api/version", get(fixed(json!({ "version": "0.33.0" }))))
        .route("/api/tags", get(fixed(list)))
        .route("/api/show", post(fixed(show)))
}

/// Returns the response to `/api/ps` for a model that is loaded with a window.
pub(crate) fn running(model: &str, num_ctx: u64) -> Response {
    json_response(&json!({ "models": [{ "name": model, "model": model, "size": 1, "size_vram": 1,
        "digest": "sha256:00", "context_length": num_ctx }] }))
}

/// Returns a response with a JSON body.
pub(crate) fn json_response(value: &Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}
