//! `model.*`: the models of the model server, and counting tokens for them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::content::{ContextMessage, CountKind};

/// The params of `model.show`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelShowParams {
    /// The name of the model; default the configured one.
    pub model: Option<String>,
}

/// The params of `model.warm`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelWarmParams {
    /// The name of the model; default the configured one.
    pub model: Option<String>,
    /// The context window in tokens, at least 2048; default the configured one, else that of the Modelfile, else 8192.
    /// At most the window that the model was trained for is used; a larger window in force for the model stays.
    pub context_size: Option<u32>,
}

/// The params of `model.countTokens`, with either `text` or `messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelCountTokensParams {
    /// The name of the model; default the configured one.
    pub model: Option<String>,
    /// A text, which is counted by itself.
    pub text: Option<String>,
    /// A conversation, as `context.build` returns it. It is counted as a whole prompt, with everything that the
    /// template and the model add.
    pub messages: Option<Vec<ContextMessage>>,
    /// The tool definitions that are sent with the messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

/// The result of `model.countTokens`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCountTokensResult {
    /// The model that the tokens were counted for.
    pub model: String,
    /// The number of tokens.
    pub tokens: u64,
    /// The accuracy of the count.
    pub count_kind: CountKind,
    /// The number of tokens by which the true number may be higher; 0 for an exact count.
    pub margin: u64,
}

/// The params of `model.fitText`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelFitTextParams {
    /// The name of the model; default the configured one. Without any, tokens are estimated.
    pub model: Option<String>,
    /// The text.
    pub text: String,
    /// The most tokens of its beginning.
    pub token_limit: u64,
}

/// The result of `model.fitText`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelFitTextResult {
    /// The length of the beginning that fits, in bytes; that of the whole text if all of it fits.
    pub bytes: u64,
    /// The tokens of the beginning.
    pub tokens: u64,
    /// The accuracy of the count.
    pub count_kind: CountKind,
}

/// The result of `model.list`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelListResult {
    /// The address of the model server.
    pub host: String,
    /// A command that gets a model which is small enough for any machine.
    pub get_small_model: String,
    /// The models, in the order of the server; those of `ollama` first, then by server.
    pub data: Vec<ModelSummary>,
    /// The servers whose models are missing, because they did not answer in time or failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingServer>,
}

/// A server that did not list its models.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissingServer {
    /// The name in the configuration.
    pub server: String,
    /// The reason.
    pub problem: String,
}

/// A model that the server has.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelSummary {
    /// The name with its tag.
    pub model: String,
    /// The digest of the model's files.
    pub digest: String,
    /// The size on disk, in bytes.
    pub size_bytes: u64,
    /// The time of the last change, as the server writes it.
    pub modified_at: Option<String>,
    /// The family of the architecture.
    pub family: Option<String>,
    /// The number of parameters, as the server writes it, for example `8.0B`.
    pub parameter_size: Option<String>,
    /// The quantization of the weights, for example `Q4_K_M`.
    pub quantization: Option<String>,
    /// The longest window that the model was trained for, in tokens; absent if the server did not report it in time.
    pub trained_context: Option<u32>,
    /// The capabilities, for example `tools`; empty if the server did not report them in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The host that runs the model, if the server only forwards to it.
    pub remote_host: Option<String>,
    /// The name of the server in the configuration.
    pub server: Option<String>,
    /// Set if the model is in the memory of its server; absent if the server did not say so in time.
    pub loaded: Option<bool>,
    /// The window of requests to the model, in tokens: that with which it is loaded, or the only one of its server.
    pub window: Option<u32>,
    /// The tokens by which the server's counts of equal prompts differ, if it has replicas that count differently.
    pub count_difference: Option<u64>,
}

/// The params of `model.servers`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelServersParams {
    /// The name of one server; default all.
    pub server: Option<String>,
    /// Asks for a description of each configured model as well. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
}

/// The result of `model.servers`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelServersResult {
    /// The servers, by name.
    pub data: Vec<ServerReport>,
}

/// A model server.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerReport {
    /// The name in the configuration.
    pub server: String,
    /// The kind, as the configuration names it.
    pub kind: String,
    /// The kind that was found, for people.
    pub found: String,
    /// The address; empty if the configuration of the server cannot be used.
    pub host: String,
    /// Set if the server answered with its models.
    pub ready: bool,
    /// The version, if the server says it.
    pub version: Option<String>,
    /// The time in which the server answered, in milliseconds.
    pub answered_ms: Option<u64>,
    /// The number of models that the server has.
    pub n_models: Option<u32>,
    /// The number of requests that the server is sent at the same time for a model.
    pub parallel: u32,
    /// The origin of `parallel`.
    pub parallel_from: KnownFrom,
    /// The models that the configuration describes, or without any the first ones of the server; only in tests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ServedModelReport>,
    /// The reason why the server or one of its models cannot be used, each with a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ServerProblem>,
}

/// A model of a server that was tested.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServedModelReport {
    /// The name, as a call names it.
    pub model: String,
    /// The window of every request, in tokens, if the server alone decides about it.
    pub window: Option<u32>,
    /// The origin of `window`.
    pub window_from: Option<KnownFrom>,
    /// The way in which prompts are counted.
    pub counts: CountsBy,
}

/// The origin of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KnownFrom {
    /// The server says it.
    Asked,
    /// The configuration says it.
    Configured,
    /// Nothing says it.
    Default,
}

/// The way in which prompts for a model are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CountsBy {
    /// The model's vocabulary.
    Vocabulary,
    /// The server, in the background, and estimates until then.
    Server,
    /// Estimates, which the counts of answers correct.
    Answers,
}

/// A problem of a server.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerProblem {
    /// The problem, as a sentence.
    pub text: String,
    /// A command that helps.
    pub hint: String,
}

/// The result of `model.show`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelShowResult {
    /// The address of the model server.
    pub host: String,
    /// The model.
    pub model: ModelDetails,
}

/// The details of a model.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelDetails {
    /// The name, as it was requested.
    pub model: String,
    /// The digest of the model's files.
    pub digest: Option<String>,
    /// The architecture.
    pub architecture: Option<String>,
    /// The family of the architecture.
    pub family: Option<String>,
    /// The number of parameters, as the server writes it, for example `8.0B`.
    pub parameter_size: Option<String>,
    /// The number of parameters.
    pub parameter_count: Option<u64>,
    /// The quantization of the weights, for example `Q4_K_M`.
    pub quantization: Option<String>,
    /// The longest window that the model was trained for, in tokens.
    pub trained_context: Option<u32>,
    /// The window that the Modelfile sets with `num_ctx`, in tokens; absent if it sets none.
    pub modelfile_context: Option<u32>,
    /// The window of sessions that name none, in tokens.
    pub default_context: Option<u32>,
    /// The origin of `defaultContext`.
    pub default_context_from: Option<DefaultWindowSource>,
    /// The window that all requests to the model name, in tokens; absent before the first request.
    pub context_size: Option<u32>,
    /// An upper bound of the memory per token of the window, in bytes; absent if it is unknown.
    pub context_bytes_per_token: Option<u64>,
    /// The capabilities, for example `tools`; only from newer servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The system message that the server adds to conversations without one.
    pub system: Option<String>,
    /// The number of messages that the server puts before every conversation. Default 0.
    #[serde(default, skip_serializing_if = "crate::content::is_zero")]
    pub hidden_messages: u64,
    /// The template that turns messages into a prompt.
    pub template: Option<String>,
    /// The host that runs the model, if the server only forwards to it.
    pub remote_host: Option<String>,
}

/// The origin of the window of sessions that name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DefaultWindowSource {
    /// The configuration, which overrides the Modelfile.
    Config,
    /// The Modelfile of the model.
    Modelfile,
    /// The server, which gives every request the same window.
    Server,
    /// Nothing sets a window.
    Default,
}

/// The result of `model.running`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelRunningResult {
    /// The address of the model server.
    pub host: String,
    /// The models, in the order of the server.
    pub data: Vec<RunningModelSummary>,
}

/// A model in the memory of the server.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunningModelSummary {
    /// The name with its tag.
    pub model: String,
    /// The digest of the model's files.
    pub digest: String,
    /// The memory of the model with its window, in bytes.
    pub size_bytes: u64,
    /// The part of that memory on the graphics processor, in bytes.
    pub size_vram_bytes: u64,
    /// The window that the server uses, in tokens; only from newer servers.
    pub effective_context: Option<u32>,
    /// The time at which an unused model is unloaded, as the server writes it.
    pub expires_at: Option<String>,
    /// Warnings for a person, for example about a model that does not fit into the graphics processor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The result of `model.warm`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelWarmResult {
    /// The address of the model server.
    pub host: String,
    /// The model.
    pub model: String,
    /// The window that was requested and that all later requests name, in tokens.
    pub context_size: u32,
    /// The window that the call asked for, in tokens, if another one was requested; a warning says why.
    pub wanted_context: Option<u32>,
    /// The longest window that the model was trained for, in tokens.
    pub trained_context: Option<u32>,
    /// The window that the server uses, in tokens; only from newer servers.
    pub effective_context: Option<u32>,
    /// The memory of the model with its window, in bytes.
    pub size_bytes: Option<u64>,
    /// The part of that memory on the graphics processor, in bytes.
    pub size_vram_bytes: Option<u64>,
    /// The time of the call, in milliseconds.
    pub duration_ms: u64,
    /// Warnings for a person, for example about a model that does not fit into the graphics processor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
