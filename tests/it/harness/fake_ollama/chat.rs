//! `/api/chat` as each engine handles it: loading, truncation, counts, and the lines of an answer.

use serde_json::{Value, json};

use super::models::{self, Model, render};
use super::state::{Answer, Engine, Reply, State, wants_summary};
use super::vocabulary::tokenize;

/// The tokens at the beginning that survive the truncation of a prompt.
const NUM_KEEP: usize = 4;

/// Handles a chat request.
pub(super) fn chat(state: &mut State, request: &Value) -> Reply {
    let Some(name) = request["model"].as_str().filter(|name| !name.is_empty()) else {
        return Reply::error(400, "model is required");
    };
    let Some(model) = models::find(name) else {
        return Reply::error(404, &format!("model '{name}' not found"));
    };
    if let Some(error) = unsupported(model, request) {
        return error;
    }
    if request["options"].get("num_ctx").is_some_and(|size| !size.is_u64()) {
        return Reply::error(500, "option \"num_ctx\" must be of type integer");
    }
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    if messages.is_empty() && request["keep_alive"] == 0 {
        state.loaded.retain(|loaded| loaded.name != model.name);
        return Reply::json(&done(name, "unload"));
    }
    let num_ctx = load(state, model, request);
    if messages.is_empty() {
        // The real server reports no durations here.
        return Reply::json(&done(name, "load"));
    }
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    let think = request["think"] != json!(false);
    let mut prompt = render(name, &messages, &tools, think);
    if request["_debug_render_only"] == true && state.is_at_least(0, 11, 5) {
        return Reply::json(&json!({
            "model": name, "created_at": "2026-01-27T10:00:00Z", "done": false,
            "message": { "role": "", "content": "" },
            "_debug_info": { "rendered_template": prompt },
        }));
    }
    let limit = match state.engine() {
        // llama-server reserves one token of the window for the answer.
        Engine::LlamaServer => num_ctx - 1,
        Engine::LlamaCpp | Engine::GoRunner => num_ctx,
    };
    let truncates = request["truncate"] != json!(false) || !state.is_at_least(0, 12, 6);
    let mut tokens = tokenize(&prompt);
    if tokens.len() > limit && !truncates {
        return overflow(state.engine(), tokens.len(), num_ctx);
    }
    // Whole messages are dropped first, silently; system messages and the last message stay.
    let mut kept = messages;
    while tokens.len() > limit {
        let Some(oldest) = kept[..kept.len() - 1].iter().position(|kept| kept["role"] != "system")
        else {
            break;
        };
        let _dropped = kept.remove(oldest);
        prompt = render(name, &kept, &tools, think);
        tokens = tokenize(&prompt);
    }
    if tokens.len() > limit {
        // Then tokens are dropped: all engines but the Go runner lose about half of the window.
        let room = match state.engine() {
            Engine::GoRunner => num_ctx,
            _ => num_ctx - ((num_ctx - NUM_KEEP) / 2).max(1),
        };
        let _cut: Vec<u32> = tokens.drain(NUM_KEEP..tokens.len() - (room - NUM_KEEP)).collect();
    }
    answer(state, model, request, tokens, num_ctx)
}

/// Returns the error for a request that needs a capability which the model lacks.
fn unsupported(model: &Model, request: &Value) -> Option<Reply> {
    let name = request["model"].as_str().unwrap_or_default();
    let tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    if tools && !model.can("tools") {
        let full = format!("registry.ollama.ai/library/{}:latest", model.name);
        return Some(Reply::error(400, &format!("{full} does not support tools")));
    }
    let thinks = match &request["think"] {
        Value::Bool(think) => *think,
        Value::String(_) => true,
        _ => false,
    };
    (thinks && !model.can("thinking"))
        .then(|| Reply::error(400, &format!("\"{name}\" does not support thinking")))
}

/// Loads the model and returns its window, which is clamped silently.
fn load(state: &mut State, model: &Model, request: &Value) -> usize {
    let automatic = if state.is_at_least(0, 6, 7) { 4096 } else { 2048 };
    let num_ctx = request["options"]["num_ctx"].as_u64().unwrap_or(automatic);
    let num_ctx = num_ctx.clamp(4, state.largest_window);
    state.load(model.name, num_ctx);
    usize::try_from(num_ctx).unwrap()
}

fn overflow(engine: Engine, needed: usize, num_ctx: usize) -> Reply {
    if engine != Engine::LlamaServer {
        return Reply::error(400, "the input length exceeds the context length");
    }
    // The server passes the engine's error on as a text.
    let message = format!(
        "request ({needed} tokens) exceeds the available context size ({num_ctx} tokens), try increasing it"
    );
    let inner = json!({ "error": {
        "code": 400, "message": message, "type": "exceed_context_size_error",
        "n_prompt_tokens": needed, "n_ctx": num_ctx,
    } });
    Reply::error(400, &inner.to_string())
}

/// Returns the lines of the next scripted answer.
fn answer(
    state: &mut State,
    model: &Model,
    request: &Value,
    prompt: Vec<u32>,
    num_ctx: usize,
) -> Reply {
    let name = request["model"].as_str().unwrap_or_default();
    let summary = state.summary.clone().filter(|_| wants_summary(request));
    let Answer { thinking, text, tool_calls, tool_calls_in_done, reason } =
        summary.or_else(|| state.answers.pop_front()).unwrap_or_default();
    let message = |fields: Value| {
        let mut message = json!({ "role": "assistant", "content": "" });
        fields.as_object().into_iter().flatten().for_each(|(field, value)| {
            message[field] = value.clone();
        });
        json!({
            "model": name, "created_at": "2026-01-27T10:00:00.123456789Z", "message": message, "done": false,
        })
    };
    let mut lines: Vec<Value> = Vec::new();
    let mut n_answered = 0;
    let num_predict = request["options"]["num_predict"].as_i64().filter(|tokens| *tokens > 0);
    let room = num_ctx.saturating_sub(prompt.len());
    let limit = num_predict.map_or(room, |tokens| room.min(usize::try_from(tokens).unwrap()));
    let mut reason = reason.to_owned();
    let thinking = thinking.iter().map(|chunk| ("thinking", chunk));
    for (field, chunk) in thinking.chain(text.iter().map(|chunk| ("content", chunk))) {
        let tokens = tokenize(chunk).len();
        if n_answered + tokens > limit {
            n_answered = limit;
            "length".clone_into(&mut reason);
            break;
        }
        n_answered += tokens;
        lines.push(message(json!({ field: chunk })));
    }
    let calls = json!({ "tool_calls": tool_calls });
    if !tool_calls.is_empty() && !tool_calls_in_done {
        lines.push(message(calls.clone()));
    }
    let mut end = done(name, &reason);
    if !tool_calls.is_empty() && tool_calls_in_done {
        end["message"]["tool_calls"] = calls["tool_calls"].clone();
    }
    let previous = state.prompt_cache.insert(model.name, prompt.clone()).unwrap_or_default();
    let shared = prompt.iter().zip(&previous).take_while(|(new, old)| new == old).count();
    // The engine always computes the last token.
    let cached = shared.min(prompt.len() - 1);
    let counted = prompt.len() - if state.counts_cached_tokens() { 0 } else { cached };
    let numbers = [
        ("total_duration", 3_000_000),
        ("load_duration", 1_000_000),
        ("prompt_eval_count", counted),
        ("prompt_eval_duration", 1_000_000),
        ("eval_count", n_answered),
        ("eval_duration", if n_answered > 0 { 1_000_000 } else { 0 }),
    ];
    // The real server omits numbers that are 0.
    numbers.iter().filter(|(_, number)| *number > 0).for_each(|(field, number)| {
        end[*field] = json!(number);
    });
    if state.is_at_least(0, 33, 1) && cached > 0 {
        end["prompt_eval_cached_count"] = json!(cached);
    }
    lines.push(end);
    if request["stream"] == false {
        return Reply::json(&joined(&lines));
    }
    Reply::Stream(lines.iter().map(|line| format!("{line}\n").into_bytes()).collect())
}

/// Joins the lines into the answer of a request with `stream: false`.
fn joined(lines: &[Value]) -> Value {
    let mut whole = lines.last().cloned().unwrap();
    for field in ["content", "thinking"] {
        let chunks = lines.iter().filter_map(|line| line["message"][field].as_str());
        let text: String = chunks.collect();
        if field == "content" || !text.is_empty() {
            whole["message"][field] = json!(text);
        }
    }
    let calls = lines.iter().find_map(|line| line["message"].get("tool_calls"));
    if let Some(calls) = calls {
        whole["message"]["tool_calls"] = calls.clone();
    }
    whole
}

/// Returns the line that ends an answer.
fn done(name: &str, reason: &str) -> Value {
    json!({
        "model": name, "created_at": "2026-01-27T10:00:01Z", "done": true, "done_reason": reason,
        "message": { "role": "assistant", "content": "" },
    })
}
