//! A fake server with the API of OpenAI: the second face of the fake models, in the dialects of several servers.
//!
//! Each reply names its source. Prompts are rendered and counted as those of the fake Ollama's model `tiny`.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use super::answer::Answer;
use super::http::{FakeServer, HttpRequest, Step, response};
use super::ollama::{count, render};

/// The content type of a streamed answer.
pub(crate) const EVENTS: Step = Step::Begin("text/event-stream");

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    LlamaServer,
    Vllm,
    Sglang,
    LmStudio,
    /// A gateway that says nothing of itself.
    Plain,
}

/// A request that the fake received.
#[derive(Clone, Debug)]
pub(crate) struct SentRequest {
    pub(crate) path: String,
    /// The JSON body; null if there was none.
    pub(crate) body: Value,
    /// The headers, a line each, with names in lower case.
    pub(crate) head: String,
}

/// The behavior that a test may change.
pub(crate) struct FaceState {
    pub(crate) face: Face,
    /// The id of the one model.
    pub(crate) model: String,
    /// The window of a request.
    pub(crate) window: Option<u64>,
    pub(crate) slots: u64,
    /// The path of the weights that llama-server reports.
    pub(crate) weights: String,
    /// Set if the paths that count are hidden, as behind a gateway.
    pub(crate) hides_counting: bool,
    /// The number of requests to them whose connection is closed instead.
    pub(crate) n_closing: usize,
    /// Set if they do not respond.
    pub(crate) hangs_counting: bool,
    /// Set if llama-server is behind a gateway that has only the paths of OpenAI.
    pub(crate) hides_props: bool,
    /// Set if the list of llama-server has the window.
    pub(crate) lists_window: bool,
    /// Set if llama-server is a router: whether it has loaded the model.
    pub(crate) routed: Option<bool>,
    /// The number of times that a router loaded the model.
    n_loads: u64,
    /// The number of parameters that llama-server reports.
    pub(crate) n_params: u64,
    /// Set if vLLM counts with another vocabulary.
    pub(crate) counts_otherwise: bool,
    /// The tokens that every other answer counts more, as that of a replica with another template.
    pub(crate) counts_more: u64,
    n_answers: u64,
    answers: VecDeque<Answer>,
    /// Replies to the next chats, instead of answers.
    replies: VecDeque<Vec<Step>>,
    requests: Vec<SentRequest>,
    last_prompt: String,
}

/// A running fake server; stopped when dropped.
#[must_use]
pub(crate) struct FakeOpenAi {
    server: FakeServer,
    state: Arc<Mutex<FaceState>>,
}

impl FakeOpenAi {
    /// Starts a server with one model, `m`, and a window of 4,096 tokens.
    pub(crate) fn new(face: Face) -> Self {
        let state = Arc::new(Mutex::new(FaceState {
            face,
            model: "m".to_owned(),
            window: Some(4096),
            slots: 1,
            weights: "/nowhere/m.gguf".to_owned(),
            hides_counting: false,
            n_closing: 0,
            hangs_counting: false,
            hides_props: false,
            lists_window: false,
            routed: None,
            n_loads: 0,
            n_params: 108_096,
            counts_otherwise: false,
            counts_more: 0,
            n_answers: 0,
            answers: VecDeque::new(),
            replies: VecDeque::new(),
            requests: Vec::new(),
            last_prompt: String::new(),
        }));
        let shared = Arc::clone(&state);
        Self { server: FakeServer::start(move |request| reply(&shared, request)), state }
    }

    /// Returns the address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.server.host())
    }

    /// Locks the state; no request is answered meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, FaceState> {
        self.state.lock()
    }

    /// Scripts the answer to one more chat. A chat without a scripted answer gets "ok".
    pub(crate) fn script(&self, answer: Answer) {
        self.state.lock().answers.push_back(answer);
    }

    /// Scripts the whole reply to one more chat.
    pub(crate) fn reply_with(&self, steps: Vec<Step>) {
        self.state.lock().replies.push_back(steps);
    }

    /// Returns the requests to a path so far.
    pub(crate) fn requests(&self, path: &str) -> Vec<SentRequest> {
        let state = self.state.lock();
        state.requests.iter().filter(|request| request.path == path).cloned().collect()
    }

    /// Returns the paths of all requests so far.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.state.lock().requests.iter().map(|request| request.path.clone()).collect()
    }

    /// Returns all requests so far.
    pub(crate) fn all_requests(&self) -> Vec<SentRequest> {
        self.state.lock().requests.clone()
    }

    /// Returns the chat requests so far.
    pub(crate) fn chats(&self) -> Vec<Value> {
        self.requests("/v1/chat/completions").into_iter().map(|request| request.body).collect()
    }

    /// Returns the number of requests that a `Hang` or `Stall` holds open.
    pub(crate) fn n_held(&self) -> usize {
        self.server.counts().held
    }

    /// Ends one `Stall`, now or as soon as it begins.
    pub(crate) fn resume(&self) {
        self.server.resume();
    }
}

/// Returns the step that sends an event.
pub(crate) fn event(data: &Value) -> Step {
    Step::Chunk(format!("data: {data}\n\n").into_bytes())
}

/// Returns the step that sends the end marker.
pub(crate) fn done() -> Step {
    Step::Chunk(b"data: [DONE]\n\n".to_vec())
}

/// Returns an event with a piece of the text.
pub(crate) fn piece(text: &str) -> Step {
    event(&chunk(&json!({ "content": text }), None))
}

/// Returns a whole reply with an error, as llama-server formats it.
///
/// **Source**: `format_error_response` in `tools/server/server-common.cpp` of llama.cpp.
pub(crate) fn error(status: u16, kind: &str, message: &str) -> Vec<Step> {
    json_reply(status, &json!({ "error": { "code": status, "message": message, "type": kind } }))
}

fn json_reply(status: u16, value: &Value) -> Vec<Step> {
    let head = "Content-Type: application/json; charset=utf-8\r\n";
    response(status, head, value.to_string().as_bytes())
}

/// Returns a chunk of an answer.
///
/// **Source**: `to_json_oaicompat_chat_stream` of llama-server; the reference of the API of OpenAI.
fn chunk(delta: &Value, reason: Option<&str>) -> Value {
    json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_795_806_869, "model": "m",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] })
}

fn reply(state: &Mutex<FaceState>, request: &HttpRequest) -> Vec<Step> {
    let mut state = state.lock();
    let (_, path) = request.line.split_once(' ').unwrap_or_default();
    let (path, body, head) = (path.to_owned(), request.body.clone(), request.head.clone());
    state.requests.push(SentRequest { path: path.clone(), body, head });
    let is_llama = state.face == Face::LlamaServer && !state.hides_props;
    if let Some(steps) = state.route(&path, &request.body) {
        return steps;
    }
    let (path, _) = path.split_once('?').unwrap_or((&path, ""));
    match path {
        "/apply-template" | "/tokenize" if state.hangs_counting => vec![Step::Hang],
        "/apply-template" | "/tokenize" if state.n_closing > 0 => {
            state.n_closing -= 1;
            vec![Step::Close]
        }
        "/v1/models" => json_reply(200, &state.models()),
        "/v1/chat/completions" => state.chat(&request.body),
        "/props" if is_llama => json_reply(200, &state.props()),
        // `post_apply_template` and `post_tokenize` of llama-server.
        "/apply-template" if is_llama => {
            json_reply(200, &json!({ "prompt": prompt_of(&request.body) }))
        }
        "/tokenize" if is_llama && !state.hides_counting => {
            let text = request.body["content"].as_str().unwrap_or_default();
            json_reply(
                200,
                &json!({ "tokens": vec![1; usize::try_from(count(text)).unwrap_or(0)] }),
            )
        }
        // `vllm/entrypoints/serve/tokenize/protocol.py`, `TokenizeResponse`.
        "/tokenize" if state.face == Face::Vllm && !state.hides_counting => {
            let factor = if state.counts_otherwise { 2 } else { 1 };
            // `TokenizeCompletionRequest`, and `TokenizeChatRequest`.
            let text = request.body["prompt"].as_str().map(str::to_owned);
            let tokens = count(&text.unwrap_or_else(|| prompt_of(&request.body))) * factor;
            json_reply(
                200,
                &json!({ "count": tokens, "max_model_len": state.window, "tokens": [] }),
            )
        }
        // `vllm/entrypoints/openai/api_server.py`, `show_version`.
        "/version" if state.face == Face::Vllm => json_reply(200, &json!({ "version": "0.33.0" })),
        // The REST API of LM Studio: https://lmstudio.ai/docs/developer/rest/endpoints.
        "/api/v0/models" if state.face == Face::LmStudio => {
            let model = json!({ "id": state.model, "object": "model", "type": "llm", "state": "loaded",
                "max_context_length": 32768, "loaded_context_length": state.window });
            json_reply(200, &json!({ "object": "list", "data": [model] }))
        }
        _ => state.unknown_path(&request.line),
    }
}

/// Returns the prompt of a request.
fn prompt_of(body: &Value) -> String {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let messages = messages.into_iter().map(|mut message| {
        // Images are beside texts in a list.
        if let Some(parts) = message["content"].as_array() {
            let texts: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            message["content"] = json!(texts);
        }
        for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            call["function"]["arguments"] = serde_json::from_str(arguments).unwrap_or_default();
        }
        message
    });
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    render("tiny", &messages.collect::<Vec<_>>(), &tools, true)
}

impl FaceState {
    /// Returns the list of models.
    ///
    /// **Source**: `get_res_models` of llama-server b1-0c1e570, recorded; `ModelCard` of vLLM 0.33
    /// (`vllm/entrypoints/openai/models/protocol.py`) and of SGLang 0.5 (`sglang/srt/entrypoints/openai/protocol.py`); the
    /// documentation of LM Studio 0.4.
    fn models(&self) -> Value {
        let Self { model, window, .. } = self;
        let entry = match self.face {
            Face::LlamaServer => json!({ "id": model, "object": "model", "owned_by": "llamacpp",
                "meta": { "vocab_type": 2, "n_vocab": 266, "n_ctx_train": 8192, "n_embd": 64,
                    "n_ctx": window.filter(|_| self.lists_window), "n_params": self.n_params,
                    "size": 432_384 } }),
            Face::Vllm => {
                json!({ "id": model, "object": "model", "owned_by": "vllm", "root": model,
                "parent": null, "max_model_len": window })
            }
            Face::Sglang => json!({ "id": model, "object": "model", "owned_by": "sglang",
                "root": model, "max_model_len": window }),
            Face::LmStudio => {
                json!({ "id": model, "object": "model", "owned_by": "organization_owner" })
            }
            Face::Plain => json!({ "id": model, "object": "model", "owned_by": "somebody" }),
        };
        json!({ "object": "list", "data": [entry] })
    }

    /// Returns the reply of a router to what the server of a model does not answer, and loads the model as it does.
    ///
    /// **Source**: `server_models_routes` in `tools/server/server-models.cpp` of llama.cpp, and replies of b1-0c1e570.
    fn route(&mut self, path: &str, body: &Value) -> Option<Vec<Step>> {
        let is_loaded = self.routed?;
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let named = format!("model={}&", self.model);
        match path {
            "/v1/models" if is_loaded => {
                self.lists_window = true;
                let mut list = self.models();
                let port = (40_000 + self.n_loads).to_string();
                list["data"][0]["status"] = json!({ "value": "loaded", "args": ["--port", port] });
                Some(json_reply(200, &list))
            }
            "/v1/models" => {
                let entry = json!({ "id": self.model, "object": "model", "owned_by": "llamacpp" });
                let mut list = json!({ "object": "list", "data": [entry] });
                list["data"][0]["status"] = json!({ "value": "unloaded", "args": ["--port", "0"] });
                Some(json_reply(200, &list))
            }
            "/props" if query.is_empty() => Some(json_reply(
                200,
                &json!({ "role": "router", "model_path": "none",
                    "default_generation_settings": { "params": null, "n_ctx": 0 },
                    "build_info": "b1-0c1e570" }),
            )),
            "/props" if query.starts_with(&named) => {
                if !is_loaded && query.ends_with("autoload=false") {
                    return Some(error(400, "invalid_request_error", "model is not loaded"));
                }
                self.load();
                Some(json_reply(200, &self.props()))
            }
            _ if body["model"] != self.model => {
                Some(error(400, "invalid_request_error", "model name is missing from the request"))
            }
            _ if !is_loaded && query == "autoload=false" => {
                Some(error(400, "invalid_request_error", "model is not loaded"))
            }
            _ => {
                self.load();
                None
            }
        }
    }

    /// Starts a server for the model, at a new port, unless one runs.
    fn load(&mut self) {
        self.n_loads += u64::from(self.routed == Some(false));
        self.routed = Some(true);
    }

    /// Returns the properties of llama-server.
    ///
    /// **Source**: `get_res_props` in `tools/server/server-context.cpp` of llama.cpp.
    fn props(&self) -> Value {
        json!({
            "default_generation_settings": { "params": {}, "n_ctx": self.window },
            "total_slots": self.slots, "model_alias": self.model, "model_path": self.weights,
            "modalities": { "vision": true, "audio": false }, "chat_template": "{{ messages }}",
            "chat_template_caps": { "supports_tools": true, "supports_tool_calls": true },
            "bos_token": "", "eos_token": "<|im_end|>", "build_info": "b1-0c1e570",
            "is_sleeping": false,
        })
    }

    fn unknown_path(&self, line: &str) -> Vec<Step> {
        match self.face {
            // Recorded from llama-server b1-0c1e570.
            Face::LlamaServer if !self.hides_props => {
                let body = json!({ "error": { "message": "File Not Found",
                    "type": "not_found_error", "code": 404 } });
                let head = "Server: llama.cpp\r\nContent-Type: application/json\r\n";
                response(404, head, body.to_string().as_bytes())
            }
            // LM Studio answers with status 200.
            Face::LmStudio => json_reply(
                200,
                &json!({ "error": format!("Unexpected endpoint or method. ({line})") }),
            ),
            // FastAPI.
            Face::LlamaServer | Face::Vllm | Face::Sglang | Face::Plain => {
                json_reply(404, &json!({ "detail": "Not Found" }))
            }
        }
    }

    fn chat(&mut self, body: &Value) -> Vec<Step> {
        let prompt = prompt_of(body);
        let tokens = count(&prompt);
        if let Some(steps) = self.replies.pop_front() {
            return steps;
        }
        if let Some(window) = self.window.filter(|window| tokens >= *window) {
            return self.overflow(tokens, window);
        }
        let answer = self.answers.pop_front().unwrap_or_default();
        let shared = common_prefix(&prompt, &self.last_prompt);
        let cached = count(&prompt[..shared]).min(tokens - 1);
        self.last_prompt = prompt;
        self.n_answers += 1;
        let more = if self.n_answers.is_multiple_of(2) { self.counts_more } else { 0 };
        self.answer(body, &answer, tokens + more, cached)
    }

    /// Returns the refusal of a prompt that is too long.
    ///
    /// **Source**: `send_error` with `ERROR_TYPE_EXCEED_CONTEXT_SIZE` in llama-server, recorded; `_validate_input` of vLLM's
    /// `serving_engine.py`; `_validate_one_request` of SGLang's `tokenizer_manager.py`.
    pub(crate) fn overflow(&self, tokens: u64, window: u64) -> Vec<Step> {
        let message = match self.face {
            Face::LlamaServer => format!(
                "request ({tokens} tokens) exceeds the available context size ({window} tokens), try increasing it"
            ),
            Face::Sglang => format!(
                "The input ({tokens} tokens) is longer than the model's context length ({window} tokens)."
            ),
            _ => format!(
                "This model's maximum context length is {window} tokens. However, your request has {tokens} input tokens."
            ),
        };
        match self.face {
            Face::LlamaServer => json_reply(
                400,
                &json!({ "error": { "code": 400, "message": message, "type": "exceed_context_size_error",
                    "n_prompt_tokens": tokens, "n_ctx": window } }),
            ),
            Face::Sglang => {
                json_reply(400, &json!({ "object": "error", "message": message, "code": 400 }))
            }
            _ => json_reply(
                400,
                &json!({ "error": { "message": message, "type": "BadRequestError", "code": 400 } }),
            ),
        }
    }

    /// Returns the streamed answer.
    ///
    /// **Source**: a stream recorded from llama-server b1-0c1e570; vLLM's `DeltaMessage` with `reasoning`.
    fn answer(&self, body: &Value, answer: &Answer, tokens: u64, cached: u64) -> Vec<Step> {
        let thinking = if self.face == Face::Vllm { "reasoning" } else { "reasoning_content" };
        let mut steps =
            vec![EVENTS, event(&chunk(&json!({ "role": "assistant", "content": null }), None))];
        steps.push(Step::Chunk(b":\n\n".to_vec()));
        for text in &answer.thinking {
            steps.push(event(&chunk(&json!({ thinking: text }), None)));
        }
        let mut n_answered = 0;
        for text in &answer.text {
            n_answered += count(text);
            steps.push(piece(text));
        }
        for (at, call) in answer.tool_calls.iter().enumerate() {
            let arguments = call["function"]["arguments"].to_string();
            let (first, rest) = arguments.split_at(arguments.len() / 2);
            let name = &call["function"]["name"];
            let begun = json!({ "tool_calls": [{ "index": at, "id": format!("call_{at}"),
                "type": "function", "function": { "name": name, "arguments": first } }] });
            let ended =
                json!({ "tool_calls": [{ "index": at, "function": { "arguments": rest } }] });
            steps.extend([begun, ended].map(|delta| event(&chunk(&delta, None))));
        }
        let reason = if answer.tool_calls.is_empty() { answer.reason } else { "tool_calls" };
        steps.push(event(&chunk(&json!({}), Some(reason))));
        if body["stream_options"]["include_usage"] == true {
            let mut usage = json!({ "prompt_tokens": tokens, "completion_tokens": n_answered });
            let mut last = json!({ "choices": [] });
            if self.face == Face::LlamaServer {
                usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
                last["timings"] = json!({ "cache_n": cached, "prompt_n": tokens - cached,
                    "prompt_ms": 1.0, "predicted_n": n_answered, "predicted_ms": 1.0 });
            }
            last["usage"] = usage;
            steps.push(event(&last));
        }
        steps.extend([done(), Step::End]);
        steps
    }
}

/// Returns the number of bytes with which both texts begin, up to the end of a line.
fn common_prefix(one: &str, other: &str) -> usize {
    let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    one.as_bytes()[..same].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}
