//! `model.*`: the models of the model server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{ContextMessage, CountKind};

/// Which model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelShowParams {
    /// The model; default: the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Which model to load, and with which window.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelWarmParams {
    /// The model; default: the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The context window in tokens, at least 2048; default: the configured one, else what the model was trained
    /// for, at most 8192. A larger one that is in force for the model stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
}

/// What to count: either a text or messages.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelCountTokensParams {
    /// The model; default: the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A text by itself, without anything that a prompt has around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A conversation, as `context.build` returns it: counted as the prompt that the model is given, with what its
    /// template and the model itself add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<ContextMessage>>,
    /// Tool definitions that are sent along with the messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

/// What it comes to.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCountTokensResult {
    /// The model that it was counted for.
    pub model: String,
    /// The number of tokens.
    pub tokens: u64,
    /// How far it can be trusted.
    pub kind: CountKind,
    /// By how many tokens the real number may be higher; 0 for an exact one.
    pub margin: u64,
}

/// The models that the server has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelListResult {
    /// The server.
    pub host: String,
    /// The models, in the server's order.
    pub data: Vec<ModelSummary>,
}

/// A model in the list.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelSummary {
    /// Its name with its tag.
    pub model: String,
    /// Names its contents.
    pub digest: String,
    /// Its size on disk, in bytes.
    pub size_bytes: u64,
    /// When it was last changed, as the server writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<String>,
    /// The architecture's family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The number of its parameters, as the server writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_size: Option<String>,
    /// How its weights are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// The longest window that it was trained for, in tokens; newer servers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_context: Option<u32>,
    /// What it can do, for example `tools`; newer servers only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The machine that really answers, for a model that is elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_host: Option<String>,
}

/// One model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelShowResult {
    /// The server.
    pub host: String,
    /// The model.
    pub model: ModelDetails,
}

/// Everything that matters of one model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelDetails {
    /// Its name as it was asked for.
    pub model: String,
    /// Names its contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The architecture's family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// The number of its parameters, as the server writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_size: Option<String>,
    /// The number of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_count: Option<u64>,
    /// How its weights are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// The longest window that it was trained for, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_context: Option<u32>,
    /// The window that every request to it names, in tokens; absent while there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_context: Option<u32>,
    /// Memory that each token of the window takes, in bytes, at most; absent where the server does not say enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_bytes_per_token: Option<u64>,
    /// What it can do, for example `tools`; newer servers only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The system message that the server adds to conversations without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// How many messages the server puts before every conversation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hidden_messages: u64,
    /// How messages become a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The machine that really answers, for a model that is elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_host: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The models that are in the server's memory.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelRunningResult {
    /// The server.
    pub host: String,
    /// The models, in the server's order.
    pub data: Vec<RunningModelSummary>,
}

/// A model in the server's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunningModelSummary {
    /// Its name with its tag.
    pub model: String,
    /// Names its contents.
    pub digest: String,
    /// Memory that it takes, its window included, in bytes.
    pub size_bytes: u64,
    /// Of that, memory of the graphics processor, in bytes.
    pub size_vram_bytes: u64,
    /// The window that the server uses, in tokens; newer servers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_context: Option<u32>,
    /// When it leaves memory unless it is used, as the server writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A model was loaded.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelWarmResult {
    /// The server.
    pub host: String,
    /// The model.
    pub model: String,
    /// The window that was asked for, and that every further request names, in tokens.
    pub requested_context: u32,
    /// The longest window that the model was trained for, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_context: Option<u32>,
    /// The window that the server uses, in tokens; newer servers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_context: Option<u32>,
    /// Memory that the model takes, its window included, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Of that, memory of the graphics processor, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_vram_bytes: Option<u64>,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
