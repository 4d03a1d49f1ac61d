//! The kind of a server, found out by asking: for servers whose kind is not configured, and so that an error can name a
//! server of another kind than the configured one.
//!
//! **Source**: llama-server of mid-2026 (header `Server: llama.cpp`, `/props`), vLLM, SGLang and LM Studio (`owned_by` in
//! `/v1/models`, and LM Studio's text for unknown paths).

use serde_json::Value;

use super::http::{Http, ProbeResponse};
use super::openai::Dialect;

/// The text of Ollama at its root.
const OLLAMA_ROOT: &str = "Ollama is running";
/// Returns the kind of the server that sent some JSON.
type DialectOf = fn(&Value) -> Option<Dialect>;

/// The paths that other servers answer.
const PROBES: &[(&str, DialectOf)] =
    &[("/props", dialect_by_props), ("/v1/models", Dialect::of_models)];

/// The text of LM Studio for a path that it does not know.
const LM_STUDIO_UNKNOWN: &str = "Unexpected endpoint or method";

/// The kind of a server that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundServer {
    Ollama,
    /// A server with the API of OpenAI.
    Other(Dialect),
    Unknown,
}

/// Finds out the kind of a server.
pub(super) async fn identify(http: &Http) -> FoundServer {
    let Some(root) = http.probe("/").await else { return FoundServer::Unknown };
    if root.text().contains(OLLAMA_ROOT) {
        return FoundServer::Ollama;
    }
    if let Some(dialect) = dialect_by_text(&root) {
        return FoundServer::Other(dialect);
    }
    for (path, dialect_of) in PROBES {
        let Some(response) = http.probe(path).await else { return FoundServer::Unknown };
        let dialect = dialect_by_text(&response).or_else(|| dialect_of(&response.json()?));
        if let Some(dialect) = dialect {
            return FoundServer::Other(dialect);
        }
    }
    FoundServer::Unknown
}

fn dialect_by_text(response: &ProbeResponse) -> Option<Dialect> {
    if response.server.starts_with("llama.cpp") {
        return Some(Dialect::LlamaServer);
    }
    response.text().contains(LM_STUDIO_UNKNOWN).then_some(Dialect::LmStudio)
}

fn dialect_by_props(props: &Value) -> Option<Dialect> {
    props.get("default_generation_settings").map(|_| Dialect::LlamaServer)
}
