//! The server's JSON, and its conversion to the words of the domain.
//!
//! Every field is optional and what is unknown is ignored, because servers of many versions are about; beside
//! each field that came later stands the first version that has it.

use std::collections::BTreeMap;
use std::time::Duration;

use ollm_protocol::content::ContextMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::chat::{
    AnswerCall, ChatDelta, ChatEnd, ChatRequest, DoneReason, PromptCount, Think, WarmRequest,
};
use crate::model::error::said;
use crate::model::info::{
    HiddenMessage, KvGeometry, ListedModel, ModelInfo, RunningModel, Version,
};

/// `POST /api/chat`.
#[derive(Serialize)]
struct ChatBody<'a> {
    model: &'a str,
    // This type is the message as a model server takes it, and nothing else.
    messages: &'a [ContextMessage],
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    tools: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a Value>,
    options: Options<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Value>,
    keep_alive: Value,
    stream: bool,
    // Since 0.12.6. Without it a prompt that is too long is cut without a word. `shift` is never sent: a value
    // other than the one that the model was loaded with makes the server load it again.
    truncate: bool,
    // Since 0.11.5.
    #[serde(rename = "_debug_render_only", skip_serializing_if = "std::ops::Not::not")]
    render_only: bool,
}

#[derive(Serialize)]
struct Options<'a> {
    num_ctx: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_predict: Option<u32>,
    #[serde(flatten)]
    sampling: Option<&'a Map<String, Value>>,
}

/// The body of a request for an answer, or for the prompt alone.
pub(super) fn chat_body(request: &ChatRequest, render_only: bool) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&ChatBody {
        model: &request.model,
        messages: &request.messages,
        tools: &request.tools,
        format: request.format.as_ref(),
        options: Options {
            num_ctx: request.num_ctx,
            num_predict: request.num_predict.map(std::num::NonZeroU32::get),
            sampling: Some(request.sampling.as_map()),
        },
        think: request.think.map(think_value),
        keep_alive: keep_alive(request.keep_alive),
        stream: !render_only,
        truncate: false,
        render_only,
    })
}

/// The body of a request that only loads a model: one without messages.
pub(super) fn warm_body(request: &WarmRequest) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&ChatBody {
        model: &request.model,
        messages: &[],
        tools: &[],
        format: None,
        options: Options { num_ctx: request.num_ctx, num_predict: None, sampling: None },
        think: None,
        keep_alive: keep_alive(request.keep_alive),
        stream: false,
        truncate: false,
        render_only: false,
    })
}

/// The body of a request for one model.
pub(super) fn show_body(model: &str, verbose: bool) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&serde_json::json!({ "model": model, "verbose": verbose }))
}

fn think_value(think: Think) -> Value {
    match think {
        Think::Off => false.into(),
        Think::On => true.into(),
        Think::Low => "low".into(),
        Think::Medium => "medium".into(),
        Think::High => "high".into(),
        Think::Max => "max".into(),
    }
}

/// Seconds as a number; what is not whole as a duration of Go.
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

/// `GET /api/tags`.
#[derive(Deserialize)]
pub(super) struct TagsBody {
    #[serde(default, deserialize_with = "absent_or_null")]
    models: Vec<TagsModel>,
}

#[derive(Deserialize)]
struct TagsModel {
    #[serde(default)]
    name: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    size: u64,
    modified_at: Option<String>,
    #[serde(default)]
    details: Details,
    // Since 0.9.1.
    #[serde(default, deserialize_with = "absent_or_null")]
    capabilities: Vec<String>,
    remote_host: Option<String>,
}

#[derive(Default, Deserialize)]
struct Details {
    family: Option<String>,
    parameter_size: Option<String>,
    quantization_level: Option<String>,
    context_length: Option<u64>,
}

/// Go writes an empty list as null.
fn absent_or_null<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Go writes a text that is not there as an empty one.
fn unless_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn small(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number > 0)
}

impl TagsBody {
    pub(super) fn into_models(self) -> Vec<ListedModel> {
        let models = self.models.into_iter().map(|tag| ListedModel {
            // Servers before 0.1.33 give the name alone.
            model: if tag.model.is_empty() { tag.name } else { tag.model },
            digest: tag.digest,
            size_bytes: tag.size,
            modified_at: unless_empty(tag.modified_at),
            family: unless_empty(tag.details.family),
            parameter_size: unless_empty(tag.details.parameter_size),
            quantization: unless_empty(tag.details.quantization_level),
            trained: tag.details.context_length.and_then(small),
            capabilities: tag.capabilities,
            remote_host: unless_empty(tag.remote_host),
        });
        models.collect()
    }
}

/// `GET /api/ps`.
#[derive(Deserialize)]
pub(super) struct PsBody {
    #[serde(default, deserialize_with = "absent_or_null")]
    models: Vec<PsModel>,
}

#[derive(Deserialize)]
struct PsModel {
    #[serde(default)]
    name: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    size_vram: u64,
    // Since 0.10.0.
    context_length: Option<u64>,
    expires_at: Option<String>,
}

impl PsBody {
    pub(super) fn into_models(self) -> Vec<RunningModel> {
        let models = self.models.into_iter().map(|running| RunningModel {
            model: if running.model.is_empty() { running.name } else { running.model },
            digest: running.digest,
            size_bytes: running.size,
            size_vram_bytes: running.size_vram,
            effective: running.context_length.and_then(small),
            expires_at: unless_empty(running.expires_at),
        });
        models.collect()
    }
}

/// `POST /api/show`, without the arrays.
#[derive(Deserialize)]
pub(super) struct ShowBody {
    modelfile: Option<String>,
    template: Option<String>,
    system: Option<String>,
    renderer: Option<String>,
    #[serde(default)]
    details: Details,
    #[serde(default, deserialize_with = "absent_or_null")]
    messages: Vec<ShowMessage>,
    #[serde(default, deserialize_with = "absent_or_null")]
    model_info: BTreeMap<String, Value>,
    // Since 0.6.4.
    #[serde(default, deserialize_with = "absent_or_null")]
    capabilities: Vec<String>,
    remote_host: Option<String>,
}

#[derive(Deserialize)]
struct ShowMessage {
    #[serde(default)]
    role: String,
    #[serde(default)]
    content: String,
}

impl ShowBody {
    pub(super) fn into_info(self, model: &str) -> ModelInfo {
        let info = &self.model_info;
        let architecture = info.get("general.architecture").and_then(Value::as_str);
        let numbers = Numbers { info, architecture: architecture.unwrap_or_default() };
        ModelInfo {
            model: model.to_owned(),
            digest: None,
            architecture: architecture.map(str::to_owned),
            parameter_count: info.get("general.parameter_count").and_then(Value::as_u64),
            trained: numbers.of("context_length").and_then(small),
            geometry: numbers.geometry(),
            family: unless_empty(self.details.family),
            parameter_size: unless_empty(self.details.parameter_size),
            quantization: unless_empty(self.details.quantization_level),
            capabilities: self.capabilities,
            template: unless_empty(self.template),
            renderer: unless_empty(self.renderer),
            system: unless_empty(self.system),
            messages: self
                .messages
                .into_iter()
                .map(|message| HiddenMessage { role: message.role, content: message.content })
                .collect(),
            weights: self.modelfile.as_deref().and_then(weights),
            remote_host: unless_empty(self.remote_host),
        }
    }
}

/// The file that a description of a model is from: the first one that it names, as an absolute path.
fn weights(modelfile: &str) -> Option<String> {
    let mut from = modelfile.lines().filter_map(|line| line.trim().strip_prefix("FROM "));
    from.next().map(str::trim).filter(|from| from.starts_with('/')).map(str::to_owned)
}

/// The numbers of a model's architecture.
struct Numbers<'a> {
    info: &'a BTreeMap<String, Value>,
    architecture: &'a str,
}

impl Numbers<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.info.get(&format!("{}.{name}", self.architecture))
    }

    fn of(&self, name: &str) -> Option<u64> {
        self.value(name)?.as_u64()
    }

    /// `None` where a number is missing, or one a layer: arrays are left out of this answer.
    fn geometry(&self) -> Option<KvGeometry> {
        let layers = self.of("block_count")?;
        let heads = self.of("attention.head_count");
        let kv_heads = match self.value("attention.head_count_kv") {
            Some(Value::Array(each)) => each.iter().filter_map(Value::as_u64).sum(),
            Some(value) => layers.saturating_mul(value.as_u64()?),
            // Without grouping each head has its own.
            None => layers.saturating_mul(heads?),
        };
        let usual = || Some(self.of("embedding_length")? / heads.filter(|heads| *heads > 0)?);
        Some(KvGeometry {
            kv_heads,
            key_length: self.of("attention.key_length").or_else(usual)?,
            value_length: self.of("attention.value_length").or_else(usual)?,
        })
    }
}

/// One line of an answer, or all of one that is not streamed.
#[derive(Deserialize)]
pub(super) struct ChatLine {
    message: Option<LineMessage>,
    #[serde(default)]
    done: bool,
    // Since 0.1.35.
    done_reason: Option<String>,
    total_duration: Option<u64>,
    load_duration: Option<u64>,
    // Left out where they would be 0.
    prompt_eval_count: Option<u64>,
    prompt_eval_duration: Option<u64>,
    eval_count: Option<u64>,
    eval_duration: Option<u64>,
    // After 0.33.
    prompt_eval_cached_count: Option<u64>,
    // Since 0.11.5, for a request that only renders.
    #[serde(rename = "_debug_info")]
    debug_info: Option<DebugInfo>,
}

#[derive(Deserialize)]
struct DebugInfo {
    rendered_template: Option<String>,
}

#[derive(Deserialize)]
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
    id: Option<String>,
    function: LineFunction,
}

#[derive(Deserialize)]
struct LineFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// The error of a line, which is looked for before anything else is.
#[derive(Deserialize)]
pub(super) struct ErrorLine {
    pub(super) error: Option<Value>,
}

impl ChatLine {
    /// Whether this is the server's end marker.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    /// The prompt, in the answer to a request that only renders.
    pub(super) fn into_rendered(self) -> Option<String> {
        self.debug_info?.rendered_template
    }

    /// The pieces of the line, in the order in which a model makes them.
    pub(super) fn take_deltas(&mut self) -> Vec<ChatDelta> {
        let Some(message) = self.message.take() else { return Vec::new() };
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
        deltas
    }

    /// What the end marker says; the version decides what its counts mean.
    pub(super) fn into_end(self, version: &Version) -> ChatEnd {
        let whole = version.features().counts_whole_prompt;
        ChatEnd {
            reason: match self.done_reason.as_deref().unwrap_or_default() {
                "stop" => DoneReason::Stop,
                "length" => DoneReason::Length,
                "load" => DoneReason::Load,
                "unload" => DoneReason::Unload,
                other => DoneReason::Other(said(other)),
            },
            prompt: match self.prompt_eval_count {
                Some(count) if whole => PromptCount::Whole(count),
                Some(count) => PromptCount::Uncached(count),
                None if whole => PromptCount::Unknown,
                None => PromptCount::Uncached(0),
            },
            cached_tokens: self.prompt_eval_cached_count,
            answer_tokens: self.eval_count,
            total: self.total_duration.map(Duration::from_nanos),
            load: self.load_duration.map(Duration::from_nanos),
            reading: self.prompt_eval_duration.map(Duration::from_nanos),
            answering: self.eval_duration.map(Duration::from_nanos),
        }
    }
}

impl LineCall {
    fn into_call(self) -> AnswerCall {
        let args = match self.function.arguments {
            Value::Null => Value::Object(Map::new()),
            // Some templates give the text of an object, as other APIs do.
            Value::String(text) => {
                let parsed = serde_json::from_str(&text).ok().filter(Value::is_object);
                parsed.unwrap_or(Value::String(text))
            }
            other => other,
        };
        AnswerCall { id: unless_empty(self.id), name: self.function.name, args }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn show(info: Value) -> ModelInfo {
        let body: ShowBody = serde_json::from_value(json!({ "model_info": info })).expect("a show");
        body.into_info("m")
    }

    #[test]
    fn the_geometry_is_told_only_where_every_number_is_there() {
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
    fn lists_that_go_writes_as_null_are_empty() {
        let tags: TagsBody = serde_json::from_str(r#"{"models":null}"#).expect("a list");
        assert!(tags.into_models().is_empty());
        let ps: PsBody = serde_json::from_str("{}").expect("a list");
        assert!(ps.into_models().is_empty());
        let body: ShowBody = serde_json::from_str(
            r#"{"capabilities":null,"messages":null,"model_info":null,"system":""}"#,
        )
        .expect("a show");
        let info = body.into_info("m");
        assert_eq!((info.system, info.capabilities.len()), (None, 0));
    }

    #[test]
    fn times_are_sent_as_servers_read_them() {
        assert_eq!(keep_alive(Duration::from_secs(300)), json!(300));
        assert_eq!(keep_alive(Duration::ZERO), json!(0));
        assert_eq!(keep_alive(Duration::from_millis(2500)), json!("2500ms"));
    }

    #[test]
    fn thinking_is_asked_for_in_the_servers_words() {
        let check = |think, expect: Value| assert_eq!(think_value(think), expect);
        check(Think::Off, json!(false));
        check(Think::On, json!(true));
        check(Think::Low, json!("low"));
        check(Think::Medium, json!("medium"));
        check(Think::High, json!("high"));
        check(Think::Max, json!("max"));
    }
}
