//! `/api/chat` as each engine handles it: loading, truncation, counts, and the lines of an answer.

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::answer::{Answer, Question};
use super::super::http::{HttpRequest, Step};
use super::models::{self, Model, render};
use super::state::{Engine, State, wants_summary};
use super::vocabulary::{BOS, tokenize};
use super::wire;

/// The tokens at the beginning that survive the truncation of a prompt.
const NUM_KEEP: usize = 4;
/// The bytes of a token of a model that counts none.
const BYTES_PER_TOKEN: usize = 3;

/// Handles a chat request. The policy answers while other requests are served.
pub(super) fn chat(state: &Mutex<State>, request: &HttpRequest) -> Vec<Step> {
    let body = &request.body;
    let prompt = match admit(&mut state.lock(), body) {
        Ok(prompt) => prompt,
        Err(reply) => return reply,
    };
    let policy = state.lock().policy.clone();
    let answer = match policy {
        None => Ok(state.lock().next_answer(body)),
        Some(policy) => {
            let max_tokens = body["options"]["num_predict"].as_u64();
            policy(&Question {
                messages: body["messages"].as_array().map_or(&[], Vec::as_slice),
                tools: &body["tools"],
                num_ctx: prompt.num_ctx as u64,
                max_tokens: max_tokens.and_then(|tokens| usize::try_from(tokens).ok()),
                http: request,
            })
        }
    };
    match answer {
        Ok(answer) => reply(&mut state.lock(), body, &prompt, &answer),
        Err(text) => wire::error(500, text),
    }
}

impl State {
    fn next_answer(&mut self, request: &Value) -> Answer {
        let summary = self.summary.clone().filter(|_| wants_summary(request));
        summary.or_else(|| self.answers.pop_front()).unwrap_or_default()
    }
}

/// A prompt that the engine reads.
struct Prompt {
    model: &'static Model,
    /// Empty if the model counts none.
    tokens: Vec<u32>,
    num_ctx: usize,
}

/// Loads the model and reads the prompt; an error is the reply to a request that gets no answer.
fn admit(state: &mut State, request: &Value) -> Result<Prompt, Vec<Step>> {
    let Some(name) = request["model"].as_str().filter(|name| !name.is_empty()) else {
        return Err(wire::error(400, "model is required"));
    };
    let (Some(model), Some(named)) = (state.find(name), models::find(name)) else {
        return Err(wire::error(404, &format!("model '{name}' not found")));
    };
    if let Some(error) = unsupported(model, request) {
        return Err(error);
    }
    if request["options"].get("num_ctx").is_some_and(|size| !size.is_u64()) {
        return Err(wire::error(500, "option \"num_ctx\" must be of type integer"));
    }
    let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
    if messages.is_empty() && request["keep_alive"] == 0 {
        state.loaded.retain(|loaded| loaded.name != named.name);
        return Err(wire::json(&wire::done(name, "unload")));
    }
    let renders = request["_debug_render_only"] == true && state.is_at_least(0, 11, 5);
    if renders && !model.is_counted {
        return Err(wire::error(400, "not supported"));
    }
    let num_ctx = load(state, named, request);
    if messages.is_empty() {
        // The real server reports no durations here.
        return Err(wire::json(&wire::done(name, "load")));
    }
    if !model.is_counted {
        return Ok(Prompt { model, tokens: Vec::new(), num_ctx });
    }
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    let think = request["think"] != json!(false);
    if renders {
        return Err(wire::json(&json!({
            "model": name, "created_at": "2026-01-27T10:00:00Z", "done": false,
            "message": { "role": "", "content": "" },
            "_debug_info": { "rendered_template": render(model.name, messages, &tools, think) },
        })));
    }
    let bos = vec![BOS; usize::from(state.new_engine == Some(true))];
    let tokens_of = |messages: &[Value]| {
        [bos.clone(), tokenize(&render(model.name, messages, &tools, think))].concat()
    };
    let truncates = request["truncate"] != json!(false) || !state.is_at_least(0, 12, 6);
    let tokens = fitting(state.engine(), num_ctx, truncates, messages, tokens_of)?;
    Ok(Prompt { model, tokens, num_ctx })
}

/// Returns the tokens of a prompt, truncated as an engine does it; an error is the reply if it may not.
fn fitting(
    engine: Engine,
    num_ctx: usize,
    truncates: bool,
    messages: &[Value],
    tokens_of: impl Fn(&[Value]) -> Vec<u32>,
) -> Result<Vec<u32>, Vec<Step>> {
    let limit = match engine {
        // llama-server reserves one token of the window for the answer.
        Engine::LlamaServer => num_ctx - 1,
        Engine::LlamaCpp | Engine::GoRunner => num_ctx,
    };
    let mut tokens = tokens_of(messages);
    if tokens.len() > limit && !truncates {
        return Err(overflow(engine, tokens.len(), num_ctx));
    }
    // Whole messages are dropped first, silently; system messages and the last message stay.
    let mut kept = messages.to_vec();
    while tokens.len() > limit {
        let Some(oldest) = kept[..kept.len() - 1].iter().position(|kept| kept["role"] != "system")
        else {
            break;
        };
        let _dropped = kept.remove(oldest);
        tokens = tokens_of(&kept);
    }
    if tokens.len() > limit {
        // Then tokens are dropped: all engines but the Go runner lose about half of the window.
        let room = match engine {
            Engine::GoRunner => num_ctx,
            _ => num_ctx - ((num_ctx - NUM_KEEP) / 2).max(1),
        };
        let _cut: Vec<u32> = tokens.drain(NUM_KEEP..tokens.len() - (room - NUM_KEEP)).collect();
    }
    Ok(tokens)
}

/// Returns the error for a request that needs a capability which the model lacks.
fn unsupported(model: &Model, request: &Value) -> Option<Vec<Step>> {
    let name = request["model"].as_str().unwrap_or_default();
    let tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    if tools && !model.can("tools") {
        let full = format!("registry.ollama.ai/library/{}:latest", model.name);
        return Some(wire::error(400, &format!("{full} does not support tools")));
    }
    let thinks = match &request["think"] {
        Value::Bool(think) => *think,
        Value::String(_) => true,
        _ => false,
    };
    (thinks && !model.can("thinking"))
        .then(|| wire::error(400, &format!("\"{name}\" does not support thinking")))
}

/// Loads the model and returns its window, which is clamped silently.
fn load(state: &mut State, model: &Model, request: &Value) -> usize {
    let automatic = if state.is_at_least(0, 6, 7) { 4096 } else { 2048 };
    let num_ctx = request["options"]["num_ctx"].as_u64().unwrap_or(automatic);
    let num_ctx = num_ctx.clamp(4, state.largest_window);
    state.load(model.name, num_ctx);
    usize::try_from(num_ctx).unwrap_or(usize::MAX)
}

fn overflow(engine: Engine, needed: usize, num_ctx: usize) -> Vec<Step> {
    if engine != Engine::LlamaServer {
        return wire::error(400, "the input length exceeds the context length");
    }
    // The server passes the engine's error on as a text.
    let message = format!(
        "request ({needed} tokens) exceeds the available context size ({num_ctx} tokens), try increasing it"
    );
    let inner = json!({ "error": {
        "code": 400, "message": message, "type": "exceed_context_size_error",
        "n_prompt_tokens": needed, "n_ctx": num_ctx,
    } });
    wire::error(400, &inner.to_string())
}

/// Returns the reply with an answer.
fn reply(state: &mut State, request: &Value, prompt: &Prompt, answer: &Answer) -> Vec<Step> {
    let name = request["model"].as_str().unwrap_or_default();
    let (mut lines, n_answered, is_cut) = parts(name, request, prompt, answer);
    let calls = json!(answer.tool_calls);
    if !answer.tool_calls.is_empty() && !answer.tool_calls_in_done {
        lines.push(wire::part(name, "tool_calls", &calls));
    }
    let mut end = wire::done(name, if is_cut { "length" } else { answer.reason });
    if !answer.tool_calls.is_empty() && answer.tool_calls_in_done {
        end["message"]["tool_calls"] = calls;
    }
    // The real server omits numbers that are 0.
    numbers(state, prompt, n_answered).iter().filter(|(_, number)| *number > 0).for_each(
        |(field, number)| {
            end[*field] = json!(number);
        },
    );
    lines.push(end);
    if request["stream"] == false {
        return wire::json(&joined(&lines));
    }
    wire::stream(&lines)
}

/// Returns the lines with thinking and text, the number of their tokens, and whether a token limit ends them.
fn parts(
    name: &str,
    request: &Value,
    prompt: &Prompt,
    answer: &Answer,
) -> (Vec<Value>, usize, bool) {
    let room = prompt.num_ctx.saturating_sub(prompt.tokens.len());
    let num_predict = request["options"]["num_predict"].as_u64().filter(|tokens| *tokens > 0);
    let num_predict = num_predict.and_then(|tokens| usize::try_from(tokens).ok());
    // A policy cuts its own answers.
    let limit = match prompt.model.is_counted {
        true => num_predict.map_or(room, |tokens| room.min(tokens)),
        false => usize::MAX,
    };
    let (mut lines, mut n_answered) = (Vec::new(), 0);
    let thinking = answer.thinking.iter().map(|chunk| ("thinking", chunk));
    for (field, chunk) in thinking.chain(answer.text.iter().map(|chunk| ("content", chunk))) {
        let tokens = match prompt.model.is_counted {
            true => tokenize(chunk).len(),
            false => chunk.len() / BYTES_PER_TOKEN,
        };
        if n_answered + tokens > limit {
            return (lines, limit, true);
        }
        n_answered += tokens;
        lines.push(wire::part(name, field, &json!(chunk)));
    }
    (lines, n_answered, false)
}

/// Returns the numbers at the end of an answer.
fn numbers(state: &mut State, prompt: &Prompt, n_answered: usize) -> Vec<(&'static str, usize)> {
    if !prompt.model.is_counted {
        return vec![("eval_count", n_answered)];
    }
    let tokens = &prompt.tokens;
    let previous = state.prompt_cache.insert(prompt.model.name, tokens.clone()).unwrap_or_default();
    let shared = tokens.iter().zip(&previous).take_while(|(new, old)| new == old).count();
    // The engine always computes the last token.
    let cached = shared.min(tokens.len() - 1);
    let reports_cached = state.is_at_least(0, 33, 1);
    vec![
        ("total_duration", 3_000_000),
        ("load_duration", 1_000_000),
        ("prompt_eval_count", tokens.len() - if state.counts_cached_tokens() { 0 } else { cached }),
        ("prompt_eval_duration", 1_000_000),
        ("eval_count", n_answered),
        ("eval_duration", if n_answered > 0 { 1_000_000 } else { 0 }),
        ("prompt_eval_cached_count", if reports_cached { cached } else { 0 }),
    ]
}

/// Joins the lines into the answer of a request with `stream: false`.
fn joined(lines: &[Value]) -> Value {
    let mut whole = lines.last().cloned().unwrap_or_default();
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
