//! The server's JSON: requests, lists of models, and the conversion of answers and descriptions to types of the domain.
//!
//! Every field of a response is optional and unknown fields are ignored, because servers of many versions are in use.
//! Comments name the first version with a field, unless all versions have it.
//! Must not know how requests are sent.
//!
//! **Invariant**: every request names a window and `truncate: false`, and never `shift`.

use std::collections::BTreeMap;
use std::time::Duration;

use ollm_protocol::content::{ContextMessage, TokenLogprob};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::chat::{
    AnswerCall, ChatDelta, ChatEnd, ChatRequest, DoneReason, PromptCount, ThinkMode, WarmRequest,
};
use crate::model::error::sanitized;
use crate::model::info::{CountingSource, KvGeometry, ModelInfo, Version};
use crate::model::listed::{ModelVariant, absent_or_null, positive_u32, unless_empty};
use crate::nesting;

/// `POST /api/chat`.
#[derive(Serialize)]
struct ChatBody<'a> {
    model: &'a str,
    // The type is the JSON of a model server.
    messages: &'a [ContextMessage],
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    tools: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a Value>,
    options: OptionsBody<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Value>,
    keep_alive: Value,
    stream: bool,
    // Since 0.12.6. Without it, a prompt that is too long is truncated silently. `shift` is never sent, because the
    // server reloads the model if its value differs from the one at loading.
    truncate: bool,
    // Since 0.12.11, with the next field.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    logprobs: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<u8>,
    // Since 0.11.5.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "std::ops::Not::not")]
    render_only: bool,
}

#[derive(Serialize)]
struct OptionsBody<'a> {
    num_ctx: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_predict: Option<u32>,
    #[serde(flatten)]
    sampling: Option<&'a Map<String, Value>>,
}

/// Returns the body of a chat request, which with `render_only` returns the prompt instead of an answer.
pub(super) fn chat_body(
    model: &str,
    request: &ChatRequest,
    render_only: bool,
) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&ChatBody {
        model,
        messages: &request.messages,
        tools: &request.tools,
        format: request.format.as_ref(),
        options: OptionsBody {
            num_ctx: request.num_ctx,
            num_predict: request.num_predict.map(std::num::NonZeroU32::get),
            sampling: Some(request.sampling.as_map()),
        },
        think: request.think.map(think_value),
        keep_alive: keep_alive(request.keep_alive),
        stream: !render_only,
        truncate: false,
        logprobs: request.logprobs.is_some() && !render_only,
        top_logprobs: request.logprobs.filter(|n| *n > 0 && !render_only),
        render_only,
    })
}

/// Returns the body of a request that only loads a model: a chat without messages.
pub(super) fn warm_body(model: &str, request: &WarmRequest) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&ChatBody {
        model,
        messages: &[],
        tools: &[],
        format: None,
        options: OptionsBody { num_ctx: request.num_ctx, num_predict: None, sampling: None },
        think: None,
        keep_alive: keep_alive(request.keep_alive),
        stream: false,
        truncate: false,
        logprobs: false,
        top_logprobs: None,
        render_only: false,
    })
}

/// Returns the body of a request for the description of a model.
pub(super) fn show_body(model: &str, verbose: bool) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&serde_json::json!({ "model": model, "verbose": verbose }))
}

fn think_value(think: ThinkMode) -> Value {
    match think {
        ThinkMode::Off => false.into(),
        ThinkMode::On => true.into(),
        ThinkMode::Low => "low".into(),
        ThinkMode::Medium => "medium".into(),
        ThinkMode::High => "high".into(),
        ThinkMode::Max => "max".into(),
    }
}

/// Returns whole seconds as a number, and other durations in the format of Go.
fn keep_alive(time: Duration) -> Value {
    if time.subsec_millis() == 0 {
        return time.as_secs().into();
    }
    format!("{}ms", time.as_millis()).into()
}

/// `GET /api/version`.
#[derive(Deserialize)]
pub(super) struct VersionBody {
    pub(super) version: String,
}

/// `GET /api/tags` and `GET /api/ps`.
#[derive(Deserialize)]
pub(super) struct ModelsBody<T> {
    // Always there: another kind of server may return other JSON.
    #[serde(deserialize_with = "absent_or_null")]
    #[serde(bound(deserialize = "T: Deserialize<'de>"))]
    pub(super) models: Vec<T>,
}

/// `POST /api/show`, not verbose.
#[derive(Deserialize)]
pub(super) struct ShowBody {
    modelfile: Option<String>,
    parameters: Option<String>,
    #[serde(default, deserialize_with = "unless_empty")]
    template: Option<String>,
    #[serde(default, deserialize_with = "unless_empty")]
    system: Option<String>,
    #[serde(default)]
    details: ModelVariant,
    #[serde(default, deserialize_with = "absent_or_null")]
    messages: Vec<IgnoredAny>,
    #[serde(default, deserialize_with = "absent_or_null")]
    model_info: BTreeMap<String, Value>,
    #[serde(default, deserialize_with = "absent_or_null")]
    projector_info: BTreeMap<String, IgnoredAny>,
    // Since 0.6.4.
    #[serde(default, deserialize_with = "absent_or_null")]
    capabilities: Vec<String>,
    #[serde(default, deserialize_with = "unless_empty")]
    remote_host: Option<String>,
}

impl ShowBody {
    pub(super) fn into_info(self, model: &str) -> ModelInfo {
        let info = &self.model_info;
        let architecture = info.get("general.architecture").and_then(Value::as_str);
        let numbers = ArchitectureNumbers { info, architecture: architecture.unwrap_or_default() };
        ModelInfo {
            model: model.to_owned(),
            digest: None,
            architecture: architecture.map(str::to_owned),
            parameter_count: info.get("general.parameter_count").and_then(Value::as_u64),
            trained_context: numbers.of("context_length").and_then(positive_u32),
            modelfile_context: self.parameters.as_deref().and_then(modelfile_context),
            geometry: numbers.geometry(),
            family: self.details.family,
            parameter_size: self.details.parameter_size,
            quantization: self.details.quantization,
            capabilities: self.capabilities,
            template: self.template,
            system: self.system,
            n_hidden_messages: self.messages.len() as u64,
            model_path: self.modelfile.as_deref().and_then(model_path),
            remote_host: self.remote_host,
            has_projector: !self.projector_info.is_empty(),
            served_context: None,
            is_window_configured: false,
            needs_served_context: false,
            is_window_known_later: false,
            max_output: None,
            slots: None,
            counting: CountingSource::Ollama,
            tokenizer_stamp: None,
            server_version: None,
            lists_no_capabilities: false,
        }
    }
}

/// Returns the first absolute path that a modelfile names with `FROM`, which is that of the model file.
fn model_path(modelfile: &str) -> Option<String> {
    let mut from = modelfile.lines().filter_map(|line| line.trim().strip_prefix("FROM "));
    from.next().map(str::trim).filter(|from| from.starts_with('/')).map(str::to_owned)
}

/// Returns the window that a Modelfile sets, from its parameters: lines of a name, spaces and a value.
fn modelfile_context(parameters: &str) -> Option<u32> {
    let mut words = parameters.lines().map(str::split_whitespace);
    let value = words.find_map(|mut words| (words.next()? == "num_ctx").then(|| words.next()));
    value??.parse().ok().and_then(positive_u32)
}

/// The numbers in the metadata of a model's architecture.
struct ArchitectureNumbers<'a> {
    info: &'a BTreeMap<String, Value>,
    architecture: &'a str,
}

impl ArchitectureNumbers<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.info.get(&format!("{}.{name}", self.architecture))
    }

    fn of(&self, name: &str) -> Option<u64> {
        self.value(name)?.as_u64()
    }

    /// Returns the shape of the key-value cache, or `None` if a number is missing, for example because it differs by
    /// layer.
    fn geometry(&self) -> Option<KvGeometry> {
        let layers = self.of("block_count")?;
        let heads = self.of("attention.head_count");
        let kv_heads = match self.value("attention.head_count_kv") {
            Some(Value::Array(each)) => each.iter().filter_map(Value::as_u64).sum(),
            Some(value) => layers.saturating_mul(value.as_u64()?),
            // Without grouped queries, each head has its own keys and values.
            None => layers.saturating_mul(heads?),
        };
        let default_length =
            || Some(self.of("embedding_length")? / heads.filter(|heads| *heads > 0)?);
        Some(KvGeometry {
            kv_heads,
            key_length: self.of("attention.key_length").or_else(default_length)?,
            value_length: self.of("attention.value_length").or_else(default_length)?,
        })
    }
}

/// A line of a streamed answer, or a whole answer that is not streamed.
#[derive(Default, Deserialize)]
pub(super) struct ChatLine {
    message: Option<LineMessage>,
    // Since 0.12.11, if asked for.
    #[serde(default, deserialize_with = "absent_or_null")]
    logprobs: Vec<LineLogprob>,
    #[serde(default)]
    done: bool,
    // Since 0.1.35.
    done_reason: Option<String>,
    load_duration: Option<u64>,
    // Missing if they are 0.
    prompt_eval_count: Option<u64>,
    prompt_eval_duration: Option<u64>,
    eval_count: Option<u64>,
    eval_duration: Option<u64>,
    // After 0.33.
    prompt_eval_cached_count: Option<u64>,
    // Since 0.11.5, in responses to requests that only render.
    #[serde(rename = "_debug_info")]
    debug_info: Option<DebugInfo>,
}

#[derive(Deserialize)]
struct DebugInfo {
    rendered_template: Option<String>,
}

#[derive(Default, Deserialize)]
struct LineMessage {
    #[serde(default, deserialize_with = "absent_or_null")]
    content: String,
    // Since 0.9.0.
    #[serde(default, deserialize_with = "absent_or_null")]
    thinking: String,
    // Since 0.3.0.
    #[serde(default, deserialize_with = "absent_or_null")]
    tool_calls: Vec<LineCall>,
}

#[derive(Deserialize)]
struct LineCall {
    // Since 0.12.10.
    #[serde(default, deserialize_with = "unless_empty")]
    id: Option<String>,
    function: LineFunction,
}

#[derive(Deserialize)]
struct LineFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineLogprob {
    token: String,
    logprob: f64,
    bytes: Option<Vec<u8>>,
    #[serde(deserialize_with = "absent_or_null")]
    top_logprobs: Vec<LineLogprob>,
}

/// The error of a line.
#[derive(Deserialize)]
pub(super) struct ErrorLine {
    pub(super) error: Option<Value>,
}

impl ChatLine {
    /// Returns whether this is the server's end marker.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    /// Returns the prompt, in the response to a request that only renders.
    pub(super) fn into_rendered(self) -> Option<String> {
        self.debug_info?.rendered_template
    }

    /// Takes the pieces of the line, in the order in which a model generates them.
    pub(super) fn take_deltas(&mut self) -> Vec<ChatDelta> {
        let message = self.message.take().unwrap_or_default();
        let mut deltas = Vec::new();
        if !message.thinking.is_empty() {
            deltas.push(ChatDelta::Thinking(message.thinking));
        }
        if !message.content.is_empty() {
            deltas.push(ChatDelta::Text(message.content));
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.into_iter().map(LineCall::into_call);
            deltas.push(ChatDelta::ToolCalls(calls.collect()));
        }
        if !self.logprobs.is_empty() {
            let tokens = std::mem::take(&mut self.logprobs).into_iter();
            deltas.push(ChatDelta::Logprobs(tokens.map(LineLogprob::into_token).collect()));
        }
        deltas
    }

    /// Reads only the texts of a line, whose other fields may be nested as deep as they like.
    pub(super) fn texts_of(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct TextLine {
            message: TextMessage,
        }
        #[derive(Deserialize)]
        struct TextMessage {
            #[serde(default, deserialize_with = "absent_or_null")]
            content: String,
            #[serde(default, deserialize_with = "absent_or_null")]
            thinking: String,
        }
        let TextLine { message: TextMessage { content, thinking } } =
            serde_json::from_slice(line).ok()?;
        let message = LineMessage { content, thinking, tool_calls: Vec::new() };
        Some(Self { message: Some(message), ..Self::default() })
    }

    /// Converts the end marker. The version decides the meaning of its counts.
    pub(super) fn into_end(self, version: &Version) -> ChatEnd {
        let is_whole = version.counts_whole_prompt();
        ChatEnd {
            reason: match self.done_reason.as_deref().unwrap_or_default() {
                "stop" => DoneReason::Stop,
                "length" => DoneReason::Length,
                "load" => DoneReason::Load,
                "unload" => DoneReason::Unload,
                "" => DoneReason::Other(String::new()),
                other => DoneReason::Other(sanitized(other)),
            },
            prompt: match self.prompt_eval_count {
                Some(count) if is_whole => PromptCount::Whole(count),
                Some(count) => PromptCount::Uncached(count),
                None if is_whole => PromptCount::Unknown,
                None => PromptCount::Uncached(0),
            },
            cached_tokens: self.prompt_eval_cached_count,
            answer_tokens: self.eval_count,
            load_time: self.load_duration.map(Duration::from_nanos),
            prompt_time: self.prompt_eval_duration.map(Duration::from_nanos),
            answer_time: self.eval_duration.map(Duration::from_nanos),
        }
    }
}

impl LineLogprob {
    fn into_token(self) -> TokenLogprob {
        let Self { token, logprob, bytes, top_logprobs } = self;
        let top = top_logprobs.into_iter().map(Self::into_token).collect();
        TokenLogprob { token, logprob, bytes, top }
    }
}

impl LineCall {
    fn into_call(self) -> AnswerCall {
        let args = match self.function.arguments {
            Value::Null => Value::Object(Map::new()),
            // Some templates return an object as text, as other APIs do.
            Value::String(text) => {
                let is_args = |value: &Value| value.is_object() && nesting::check(value).is_ok();
                let parsed = serde_json::from_str(&text).ok().filter(is_args);
                parsed.unwrap_or(Value::String(text))
            }
            other => other,
        };
        AnswerCall { id: self.id, name: self.function.name, args }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::listed::{ListedModel, RunningModel};

    fn show(info: Value) -> ModelInfo {
        let body: ShowBody = serde_json::from_value(json!({ "model_info": info })).expect("a show");
        body.into_info("m")
    }

    #[test]
    fn geometry_is_known_only_if_every_number_is() {
        let check = |info: Value, expect: Option<u64>| {
            let geometry = show(info.clone()).geometry;
            assert_eq!(geometry.map(|geometry| geometry.bytes_per_token()), expect, "{info}");
        };
        let usual = json!({
            "general.architecture": "a", "a.block_count": 2, "a.embedding_length": 64,
            "a.attention.head_count": 4, "a.attention.head_count_kv": 2,
        });
        // 2 layers of 2 heads of 16 numbers for keys and for values, of 2 bytes each.
        check(usual.clone(), Some(2 * 2 * 32 * 2));
        let with = |name: &str, value: Value| {
            let mut info = usual.clone();
            info[name] = value;
            info
        };
        check(with("a.attention.key_length", json!(128)), Some(2 * 2 * 144 * 2));
        check(with("a.attention.head_count_kv", json!([1, 4])), Some(5 * 32 * 2));
        check(with("a.attention.head_count_kv", Value::Null), None);
        check(with("a.attention.head_count", json!(0)), None);
        check(with("general.architecture", json!("b")), None);
        check(json!({}), None);
    }

    #[test]
    fn null_lists_are_empty() {
        let tags: ModelsBody<ListedModel> =
            serde_json::from_str(r#"{"models":null}"#).expect("a list");
        assert!(tags.models.is_empty());
        let other = serde_json::from_str::<ModelsBody<RunningModel>>(r#"{"error":"unknown"}"#);
        assert!(other.is_err(), "a list is never absent");
        let body: ShowBody = serde_json::from_str(
            r#"{"capabilities":null,"messages":null,"model_info":null,"system":""}"#,
        )
        .expect("a show");
        let info = body.into_info("m");
        assert_eq!((info.system, info.capabilities.len()), (None, 0));
    }

    #[test]
    fn keep_alive_is_a_number_of_seconds_or_a_go_duration() {
        assert_eq!(keep_alive(Duration::from_secs(300)), json!(300));
        assert_eq!(keep_alive(Duration::ZERO), json!(0));
        assert_eq!(keep_alive(Duration::from_millis(2500)), json!("2500ms"));
    }

    #[test]
    fn think_mode_is_a_flag_or_a_level() {
        let check = |think, expect: Value| assert_eq!(think_value(think), expect);
        check(ThinkMode::Off, json!(false));
        check(ThinkMode::On, json!(true));
        check(ThinkMode::Low, json!("low"));
        check(ThinkMode::Medium, json!("medium"));
        check(ThinkMode::High, json!("high"));
        check(ThinkMode::Max, json!("max"));
    }
}
