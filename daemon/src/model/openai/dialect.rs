//! The servers that speak the API of OpenAI, and how they are told apart.
//!
//! **Source**: `owned_by` in `/v1/models` of llama-server of mid-2026, vLLM 0.33, SGLang 0.5 and LM Studio 0.4.

use serde_json::Value;

/// A kind of server with the API of OpenAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    LlamaServer,
    Vllm,
    Sglang,
    LmStudio,
    /// A server of which nothing more is known.
    Plain,
}

impl Dialect {
    /// Returns the name of the server for people.
    pub(in crate::model) const fn title(self) -> &'static str {
        match self {
            Self::LlamaServer => "llama-server",
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::LmStudio => "LM Studio",
            Self::Plain => "another server with the API of OpenAI",
        }
    }

    /// Returns the kind of the server that sent a list of models; `None` for other JSON.
    pub(in crate::model) fn of_models(models: &Value) -> Option<Self> {
        let all = models.get("data")?.as_array()?;
        let owner = all.first().and_then(|model| model["owned_by"].as_str()).unwrap_or_default();
        Some(match owner {
            "llamacpp" => Self::LlamaServer,
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "organization_owner" => Self::LmStudio,
            _ => Self::Plain,
        })
    }
}
