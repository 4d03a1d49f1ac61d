//! Requests in the API of OpenAI.
//!
//! Must not know how they are sent.
//!
//! **Invariant**: the same messages make the same bytes in every request, so that a server can keep what it computed.

use ollm_protocol::content::{ContextMessage, ContextToolCall, Role};
use serde_json::{Map, Value, json};

use super::dialect::{DialectRules, ThinkingSwitch};
use crate::model::chat::{ChatRequest, ThinkMode};

/// The beginnings of images in base64, and their types.
const IMAGE_TYPES: &[(&str, &str)] = &[
    ("iVBORw0", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGOD", "image/gif"),
    ("UklGR", "image/webp"),
    ("Qk", "image/bmp"),
];

/// Returns the body of a chat request for a model with this name at the server.
pub(super) fn chat_body(name: &str, request: &ChatRequest, rules: &DialectRules) -> Value {
    let mut body = prompt_body(name, request, rules);
    let mut set = |key: &str, value: Value| body[key] = value;
    for (option, value) in request.sampling.as_map() {
        set(option, value.clone());
    }
    if let Some(most) = request.num_predict {
        set("max_tokens", most.get().into());
    }
    if let Some(format) = &request.format {
        set("response_format", response_format(format));
    }
    if let Some(n_top) = request.logprobs {
        set("logprobs", true.into());
        if n_top > 0 {
            set("top_logprobs", n_top.into());
        }
    }
    if rules.has_props {
        // It is the default, and the daemon depends on it.
        set("cache_prompt", true.into());
    }
    if rules.takes_ttl {
        set("ttl", request.keep_alive.as_secs().into());
    }
    set("stream", true.into());
    set("stream_options", json!({ "include_usage": true }));
    body
}

/// Returns the part of a request that decides about the prompt.
pub(super) fn prompt_body(name: &str, request: &ChatRequest, rules: &DialectRules) -> Value {
    let messages: Vec<Value> = request.messages.iter().map(message).collect();
    let mut body = json!({ "model": name, "messages": messages });
    if !request.tools.is_empty() {
        body["tools"] = json!(request.tools);
    }
    if let Some(think) = request.think {
        for (key, value) in thinking(think, rules.thinking) {
            body[key] = value;
        }
    }
    body
}

fn message(message: &ContextMessage) -> Value {
    let ContextMessage { role, content, tool_calls, tool_call_id, images, .. } = message;
    let mut fields = Map::new();
    fields.insert("role".to_owned(), json!(role));
    let content = if images.is_empty() { json!(content) } else { parts(content, images) };
    fields.insert("content".to_owned(), content);
    if !tool_calls.is_empty() {
        let calls: Vec<Value> = tool_calls.iter().map(call).collect();
        fields.insert("tool_calls".to_owned(), json!(calls));
    }
    if *role == Role::Tool {
        fields.insert("tool_call_id".to_owned(), json!(tool_call_id));
    }
    Value::Object(fields)
}

/// Returns the content of a message with images.
fn parts(text: &str, images: &[String]) -> Value {
    let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    let images = images.iter().map(|image| {
        let known = IMAGE_TYPES.iter().find(|(start, _)| image.starts_with(start));
        let kind = known.map_or("image/png", |(_, kind)| kind);
        let url = format!("data:{kind};base64,{image}");
        json!({ "type": "image_url", "image_url": { "url": url } })
    });
    Value::Array(text.into_iter().chain(images).collect())
}

fn call(call: &ContextToolCall) -> Value {
    let ContextToolCall { id, function } = call;
    let arguments = match &function.arguments {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    json!({ "id": id, "type": "function",
        "function": { "name": function.name, "arguments": arguments } })
}

/// Returns the format of an answer: `"json"`, or a JSON Schema.
fn response_format(format: &Value) -> Value {
    match format {
        Value::Object(_) => json!({ "type": "json_schema",
            "json_schema": { "name": "answer", "schema": format, "strict": true } }),
        _ => json!({ "type": "json_object" }),
    }
}

/// Returns the fields that say whether and how much the model thinks.
fn thinking(think: ThinkMode, by: ThinkingSwitch) -> Vec<(&'static str, Value)> {
    let level = match think {
        ThinkMode::Off => Some("none"),
        ThinkMode::On => None,
        ThinkMode::Low => Some("low"),
        ThinkMode::Medium => Some("medium"),
        ThinkMode::High | ThinkMode::Max => Some("high"),
    };
    let is_on = think != ThinkMode::Off;
    match by {
        ThinkingSwitch::Template => {
            let flag = ("chat_template_kwargs", json!({ "enable_thinking": is_on }));
            let level = level.filter(|_| is_on).map(|level| ("reasoning_effort", json!(level)));
            std::iter::once(flag).chain(level).collect()
        }
        ThinkingSwitch::Effort => {
            level.map(|level| ("reasoning_effort", json!(level))).into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use ollm_protocol::content::ContextFunction;

    use super::super::Dialect;
    use super::*;
    use crate::model::chat::Sampling;

    fn request(messages: Vec<ContextMessage>) -> ChatRequest {
        ChatRequest {
            model: "big".to_owned(),
            messages,
            tools: Vec::new(),
            num_ctx: 4096,
            num_predict: NonZeroU32::new(64),
            sampling: Sampling::temperature(0.5),
            think: None,
            format: None,
            logprobs: None,
            keep_alive: Duration::from_secs(300),
            affinity: None,
        }
    }

    fn body(request: &ChatRequest, dialect: Dialect) -> Value {
        chat_body("Q/W", request, dialect.rules())
    }

    #[test]
    fn request_has_the_names_of_the_server() {
        let plain = body(&request(vec![ContextMessage::text(Role::User, "hi")]), Dialect::Plain);
        let expect = json!({
            "model": "Q/W", "messages": [{ "role": "user", "content": "hi" }], "temperature": 0.5,
            "max_tokens": 64, "stream": true, "stream_options": { "include_usage": true },
        });
        assert_eq!(plain, expect, "no window, which the server would not understand");
        let llama = body(&request(Vec::new()), Dialect::LlamaServer);
        assert_eq!(llama["cache_prompt"], true);
        assert_eq!(body(&request(Vec::new()), Dialect::LmStudio)["ttl"], 300);
    }

    #[test]
    fn calls_results_and_images_have_their_form() {
        let arguments = json!({ "path": "a" });
        let function = ContextFunction { name: "read".to_owned(), arguments };
        let called = ContextMessage {
            tool_calls: vec![ContextToolCall { id: "abcdefghi".to_owned(), function }],
            ..ContextMessage::text(Role::Assistant, "")
        };
        let result = ContextMessage {
            tool_call_id: Some("abcdefghi".to_owned()),
            tool_name: Some("read".to_owned()),
            ..ContextMessage::text(Role::Tool, "ok")
        };
        let seen = ContextMessage {
            images: vec!["/9j/4AAQ".to_owned()],
            ..ContextMessage::text(Role::User, "what is it?")
        };
        let body = body(&request(vec![called, result, seen]), Dialect::Vllm);
        assert_eq!(
            body["messages"],
            json!([
                { "role": "assistant", "content": "", "tool_calls": [{ "id": "abcdefghi", "type": "function",
                    "function": { "name": "read", "arguments": "{\"path\":\"a\"}" } }] },
                { "role": "tool", "content": "ok", "tool_call_id": "abcdefghi" },
                { "role": "user", "content": [{ "type": "text", "text": "what is it?" },
                    { "type": "image_url", "image_url": { "url": "data:image/jpeg;base64,/9j/4AAQ" } }] },
            ])
        );
    }

    #[test]
    fn format_thinking_and_probabilities_have_their_form() {
        let mut asked = request(Vec::new());
        (asked.format, asked.logprobs) = (Some(json!("json")), Some(3));
        let sent = body(&asked, Dialect::Plain);
        assert_eq!(sent["response_format"], json!({ "type": "json_object" }));
        assert_eq!((&sent["logprobs"], &sent["top_logprobs"]), (&json!(true), &json!(3)));
        asked.format = Some(json!({ "type": "object" }));
        let schema = body(&asked, Dialect::Plain)["response_format"]["json_schema"].clone();
        assert_eq!(schema["schema"], json!({ "type": "object" }));
        let thinks = |think, dialect| {
            let asked = ChatRequest { think: Some(think), ..asked.clone() };
            let sent = body(&asked, dialect);
            (sent["chat_template_kwargs"].clone(), sent["reasoning_effort"].clone())
        };
        let (on, off) = (json!({ "enable_thinking": true }), json!({ "enable_thinking": false }));
        assert_eq!(thinks(ThinkMode::Off, Dialect::LlamaServer), (off, Value::Null));
        assert_eq!(thinks(ThinkMode::On, Dialect::Vllm), (on.clone(), Value::Null));
        assert_eq!(thinks(ThinkMode::Low, Dialect::Vllm), (on, json!("low")));
        assert_eq!(thinks(ThinkMode::Off, Dialect::Plain), (Value::Null, json!("none")));
        assert_eq!(thinks(ThinkMode::On, Dialect::Plain), (Value::Null, Value::Null));
    }
}
