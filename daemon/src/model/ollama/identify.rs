//! The kind of a server that is not Ollama, so that an error can name it: a person who points `OLLAMA_HOST` at
//! llama-server, LM Studio or vLLM learns that from the error and not from a missing model.
//!
//! **Source**: llama-server of mid-2026 (header `Server: llama.cpp`, `/props`), vLLM and LM Studio (`owned_by` in
//! `/v1/models`, and LM Studio's text for unknown paths).

use serde_json::Value;

use super::http::{Http, ProbeResponse};

/// The text of Ollama at its root.
const OLLAMA_ROOT: &str = "Ollama is running";
/// Returns the name of the server that sent some JSON.
type NameOf = fn(&Value) -> Option<&'static str>;

/// The paths that other servers answer.
const PROBES: &[(&str, NameOf)] = &[("/props", name_by_props), ("/v1/models", name_by_models)];

/// The text of LM Studio for a path that it does not know.
const LM_STUDIO_UNKNOWN: &str = "Unexpected endpoint or method";

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    Ollama,
    /// Another server, by its name.
    Other(&'static str),
    Unknown,
}

/// Finds out the kind of a server that reports no version.
pub(super) async fn identify(http: &Http) -> ServerKind {
    let Some(root) = http.probe("/").await else { return ServerKind::Unknown };
    if root.text().contains(OLLAMA_ROOT) {
        return ServerKind::Ollama;
    }
    if let Some(name) = name_by_text(&root) {
        return ServerKind::Other(name);
    }
    for (path, name_of) in PROBES {
        let Some(response) = http.probe(path).await else { return ServerKind::Unknown };
        let name = name_by_text(&response).or_else(|| name_of(&response.json()?));
        if let Some(name) = name {
            return ServerKind::Other(name);
        }
    }
    ServerKind::Unknown
}

fn name_by_text(response: &ProbeResponse) -> Option<&'static str> {
    if response.server.starts_with("llama.cpp") {
        return Some("llama-server");
    }
    response.text().contains(LM_STUDIO_UNKNOWN).then_some("LM Studio")
}

fn name_by_props(props: &Value) -> Option<&'static str> {
    props.get("default_generation_settings").map(|_| "llama-server")
}

fn name_by_models(models: &Value) -> Option<&'static str> {
    let all = models.get("data")?.as_array()?;
    let owner = all.first().and_then(|model| model["owned_by"].as_str()).unwrap_or_default();
    Some(match owner {
        "llamacpp" => "llama-server",
        "vllm" => "vLLM",
        "organization_owner" => "LM Studio",
        _ => "another server with the API of OpenAI",
    })
}
