//! `/api/chat` as each engine does it: counts, truncation, loading, and the pieces of an answer.

use serde_json::{Value, json};

use super::models::{self, Model, render};
use super::vocabulary::tokenize;
use super::{Answer, Era, Loaded, Reply, Server, asks_for_a_summary};

/// Tokens at the beginning that are kept when a prompt is cut.
const NUM_KEEP: usize = 4;

/// The answer to a request, or why there is none.
pub(super) fn chat(server: &mut Server, request: &Value) -> Reply {
    let Some(name) = request["model"].as_str().filter(|name| !name.is_empty()) else {
        return Reply::error(400, "model is required");
    };
    let Some(model) = models::find(name) else {
        return Reply::error(404, &format!("model '{name}' not found"));
    };
    if let Some(refusal) = refuse(model, request) {
        return refusal;
    }
    if request["options"].get("num_ctx").is_some_and(|size| !size.is_u64()) {
        return Reply::error(500, "option \"num_ctx\" must be of type integer");
    }
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let unloads = request["keep_alive"] == 0;
    if messages.is_empty() && unloads {
        server.loaded.retain(|loaded| loaded.name != model.name);
        return Reply::whole(&last(name, "unload"));
    }
    let num_ctx = load(server, model, request);
    if messages.is_empty() {
        // The real server gives no durations here.
        return Reply::whole(&last(name, "load"));
    }
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    let think = request["think"] != json!(false);
    let mut prompt = render(name, &messages, &tools, think);
    if request["_debug_render_only"] == true && server.has((0, 11, 5)) {
        return Reply::whole(&json!({
            "model": name, "created_at": "2026-01-27T10:00:00Z", "done": false,
            "message": { "role": "", "content": "" },
            "_debug_info": { "rendered_template": prompt },
        }));
    }
    let limit = match server.era() {
        // llama-server wants one token of the window for the answer.
        Era::LlamaServer => num_ctx - 1,
        Era::LlamaCpp | Era::GoRunner => num_ctx,
    };
    let truncates = request["truncate"] != json!(false) || !server.has((0, 12, 6));
    let mut tokens = tokenize(&prompt);
    if tokens.len() > limit && !truncates {
        return overflow(server.era(), tokens.len(), num_ctx);
    }
    // Whole messages go first, without a word; the last one and system messages stay.
    let mut kept = messages;
    while tokens.len() > limit {
        let Some(oldest) = kept[..kept.len() - 1].iter().position(|one| one["role"] != "system")
        else {
            break;
        };
        let _gone = kept.remove(oldest);
        prompt = render(name, &kept, &tools, think);
        tokens = tokenize(&prompt);
    }
    if tokens.len() > limit {
        // Then tokens: all engines but those of the middle lose about half of the window.
        let room = match server.era() {
            Era::GoRunner => num_ctx,
            _ => num_ctx - ((num_ctx - NUM_KEEP) / 2).max(1),
        };
        let _cut: Vec<u32> = tokens.drain(NUM_KEEP..tokens.len() - (room - NUM_KEEP)).collect();
    }
    stream(server, model, request, tokens, num_ctx)
}

fn refuse(model: &Model, request: &Value) -> Option<Reply> {
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

/// Loads the model unless it is there with the same window; the window is clamped without a word.
fn load(server: &mut Server, model: &Model, request: &Value) -> usize {
    let automatic = if server.has((0, 6, 7)) { 4096 } else { 2048 };
    let num_ctx = request["options"]["num_ctx"].as_u64().unwrap_or(automatic);
    let num_ctx = num_ctx.clamp(4, server.largest_window);
    server.load(model.name, num_ctx);
    usize::try_from(num_ctx).unwrap()
}

fn overflow(era: Era, needed: usize, num_ctx: usize) -> Reply {
    if era != Era::LlamaServer {
        return Reply::error(400, "the input length exceeds the context length");
    }
    // The engine's own answer, handed on as a text.
    let message = format!(
        "request ({needed} tokens) exceeds the available context size ({num_ctx} tokens), try increasing it"
    );
    let inner = json!({ "error": {
        "code": 400, "message": message, "type": "exceed_context_size_error",
        "n_prompt_tokens": needed, "n_ctx": num_ctx,
    } });
    Reply::error(400, &inner.to_string())
}

/// The pieces of the next scripted answer.
fn stream(
    server: &mut Server,
    model: &Model,
    request: &Value,
    prompt: Vec<u32>,
    num_ctx: usize,
) -> Reply {
    let name = request["model"].as_str().unwrap_or_default();
    let summary = server.summary.clone().filter(|_| asks_for_a_summary(request));
    let Answer { thinking, pieces, tool_calls, calls_at_the_end, reason } =
        summary.or_else(|| server.answers.pop_front()).unwrap_or_default();
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
    let mut answered = 0;
    let asked = request["options"]["num_predict"].as_i64().filter(|asked| *asked > 0);
    let room = num_ctx.saturating_sub(prompt.len());
    let most = asked.map_or(room, |asked| room.min(usize::try_from(asked).unwrap()));
    let mut reason = reason.to_owned();
    for (field, piece) in thinking
        .iter()
        .map(|piece| ("thinking", piece))
        .chain(pieces.iter().map(|piece| ("content", piece)))
    {
        let tokens = tokenize(piece).len();
        if answered + tokens > most {
            answered = most;
            "length".clone_into(&mut reason);
            break;
        }
        answered += tokens;
        lines.push(message(json!({ field: piece })));
    }
    let calls = json!({ "tool_calls": tool_calls });
    if !tool_calls.is_empty() && !calls_at_the_end {
        lines.push(message(calls.clone()));
    }
    let mut end = last(name, &reason);
    if !tool_calls.is_empty() && calls_at_the_end {
        end["message"]["tool_calls"] = calls["tool_calls"].clone();
    }
    let before = server.cached.insert(model.name, prompt.clone()).unwrap_or_default();
    let shared = prompt.iter().zip(&before).take_while(|(now, then)| now == then).count();
    // The engine always computes the last token.
    let cached = shared.min(prompt.len() - 1);
    let counted = match server.counts_whole_prompt() {
        true => prompt.len(),
        false => prompt.len() - cached,
    };
    let numbers = [
        ("total_duration", 3_000_000),
        ("load_duration", 1_000_000),
        ("prompt_eval_count", counted),
        ("prompt_eval_duration", 1_000_000),
        ("eval_count", answered),
        ("eval_duration", if answered > 0 { 1_000_000 } else { 0 }),
    ];
    // Numbers that are 0 are left out.
    numbers.iter().filter(|(_, number)| *number > 0).for_each(|(field, number)| {
        end[*field] = json!(number);
    });
    if server.has((0, 33, 1)) && cached > 0 {
        end["prompt_eval_cached_count"] = json!(cached);
    }
    lines.push(end);
    if request["stream"] == false {
        return Reply::whole(&joined(&lines));
    }
    Reply::Stream(lines.iter().map(|line| format!("{line}\n").into_bytes()).collect())
}

/// All lines as one answer.
fn joined(lines: &[Value]) -> Value {
    let mut whole = lines.last().cloned().unwrap();
    for field in ["content", "thinking"] {
        let pieces = lines.iter().filter_map(|line| line["message"][field].as_str());
        let text: String = pieces.collect();
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

fn last(name: &str, reason: &str) -> Value {
    json!({
        "model": name, "created_at": "2026-01-27T10:00:01Z", "done": true, "done_reason": reason,
        "message": { "role": "assistant", "content": "" },
    })
}

impl Server {
    /// Loads a model with a window, again if it was another one.
    pub(super) fn load(&mut self, name: &'static str, num_ctx: u64) {
        if self.loaded.iter().any(|loaded| loaded.name == name && loaded.num_ctx == num_ctx) {
            return;
        }
        self.loaded.retain(|loaded| loaded.name != name);
        let _forgotten = self.cached.remove(name);
        self.loaded.push(Loaded { name, num_ctx });
        self.n_loads += 1;
    }
}
