//! Errors of model servers: from responses with a status other than 200, and from error lines within an answer.
//!
//! Must not know how requests are sent.
//!
//! **Source**: the error texts of Ollama 0.3 to 0.33 and of llama-server; those of vLLM and SGLang for prompts that are
//! too long. For an unknown text the status decides.

use std::time::Duration;

use serde_json::Value;

use super::error::{CallTarget, Capability, ModelError, sanitized};

/// Texts for a model whose process cannot be started or has ended.
const LOAD_FAILURES: &[&str] = &[
    "error starting llama-server",
    "process has terminated",
    "runner has unexpectedly stopped",
    "process no longer running",
    "timed out waiting for llama",
    "requires more system memory",
    "unable to load model",
    "failed to load model",
    "error loading model",
    "out of memory",
    "unable to allocate",
    "cudamalloc failed",
];

/// Texts for a prompt that is longer than the window.
const OVERFLOWS: &[&str] = &[
    "exceeds the context length",
    "exceeds the available context size",
    "exceed_context_size_error",
    // llama-server, in the middle of an answer.
    "context size has been exceeded",
    "longer than the context length",
    "exceeds the model's maximum context length",
    // vLLM and OpenAI: "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (...)".
    "maximum context length is",
    // SGLang: "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    "longer than the model's context length",
    // LM Studio, with the policy to stop at the limit.
    "greater than the context length",
];

/// The parts of a response's head that say something about an error.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) location: Option<String>,
    /// Set if the body is a page for people.
    pub(super) is_html: bool,
    /// The seconds after which the server asks to try again.
    pub(super) retry_after: Option<u64>,
}

/// Converts a response whose status is not 200.
pub(super) fn from_response(to: CallTarget, head: &ResponseHead, body: &[u8]) -> ModelError {
    let status = head.status;
    if (300..400).contains(&status) {
        let location = sanitized(head.location.as_deref().unwrap_or_default());
        return ModelError::Redirected { to, location };
    }
    let Some(text) = error_text(body) else {
        return without_error_text(to, head, body);
    };
    if let Some(error) = from_text(&to, &text) {
        return error;
    }
    match (status, &to.model) {
        (404, Some(_)) => return ModelError::NotFound { to },
        // Ollama knows every path that names no model.
        (404 | 405, None) => return no_such_path(to, status),
        _ => {}
    }
    from_status(to, head, &message_of(&text))
}

/// Converts an error line within an answer.
pub(super) fn from_error_line(to: CallTarget, error: &Value) -> ModelError {
    let text = text_of(error);
    let message = sanitized(&message_of(&text));
    let aborted = || ModelError::BrokeOff { to: to.clone(), message };
    from_text(&to, &text).unwrap_or_else(aborted)
}

/// Returns the text of an error response, or `None` if the body is not one. Older releases of vLLM send the object itself.
fn error_text(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let is_bare = body["object"] == "error" && body["message"].is_string();
    let error = body.get("error").or(is_bare.then_some(&body))?;
    Some(text_of(error))
}

/// Returns the sentence for people in the text of an error: its message, if it is an object with one.
fn message_of(text: &str) -> String {
    let object: Option<Value> = serde_json::from_str(text).ok();
    let message = object.as_ref().and_then(|object| object["message"].as_str());
    message.filter(|message| !message.is_empty()).unwrap_or(text).to_owned()
}

/// Returns an error as text. It is a string, or an object that contains one.
fn text_of(error: &Value) -> String {
    match error {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Converts a response without an error text, which another kind of server may have sent.
fn without_error_text(to: CallTarget, head: &ResponseHead, body: &[u8]) -> ModelError {
    let status = head.status;
    if status == 403 && body.trim_ascii().is_empty() {
        return ModelError::ForbiddenHost { to };
    }
    if matches!(status, 404 | 405) {
        return no_such_path(to, status);
    }
    // A gateway in front of the server sends pages of its own for these.
    if head.is_html && !matches!(status, 401 | 429 | 502..=504) {
        let found = format!("it returns a page with status {status}");
        return ModelError::OtherServer { to, found };
    }
    let text = if head.is_html { "a page".into() } else { String::from_utf8_lossy(body) };
    from_status(to, head, &text)
}

fn no_such_path(to: CallTarget, status: u16) -> ModelError {
    ModelError::OtherServer { to, found: format!("it returns status {status}") }
}

/// Converts a response by its status.
fn from_status(to: CallTarget, head: &ResponseHead, text: &str) -> ModelError {
    let message = sanitized(text);
    let status = head.status;
    match status {
        401 => ModelError::Unauthorized { to, message },
        // llama-server: "Loading model"; the message says it.
        429 | 503 => {
            let retry_after = head.retry_after.map(Duration::from_secs);
            ModelError::Busy { to, message, retry_after }
        }
        499 => ModelError::GivenUp { to, message },
        500.. => ModelError::Failed { to, status, message },
        _ => ModelError::Refused { to, status, message },
    }
}

/// Converts a known error text, which is more specific than the status.
fn from_text(to: &CallTarget, text: &str) -> Option<ModelError> {
    let to = to.clone();
    let lower = text.to_lowercase();
    if OVERFLOWS.iter().any(|known| lower.contains(known)) {
        let (needed, window) = overflow_numbers(text);
        return Some(ModelError::Overflow { to, needed, window });
    }
    if let Some((_, rest)) = lower.split_once("does not support ") {
        let name = rest.split([' ', '"', ',', '.']).next().unwrap_or_default();
        let capability = match name {
            "tools" => Capability::Tools,
            "thinking" => Capability::Thinking,
            "chat" => Capability::Chat,
            other => Capability::Other(sanitized(other)),
        };
        return Some(ModelError::Unsupported { to, capability });
    }
    if lower.starts_with("model ") && lower.contains("not found") && to.model.is_some() {
        return Some(ModelError::NotFound { to });
    }
    if LOAD_FAILURES.iter().any(|known| lower.contains(known)) {
        return Some(ModelError::LoadFailed { to, message: sanitized(text) });
    }
    None
}

/// Returns the length of the prompt and the window, as far as a text contains them.
///
/// llama-server sends an object, which Ollama forwards as text; other engines include the numbers in their sentence.
fn overflow_numbers(text: &str) -> (Option<u64>, Option<u64>) {
    if let Ok(object) = serde_json::from_str::<Value>(text) {
        let inner = object.get("error").unwrap_or(&object);
        let number = |name: &str| inner.get(name).and_then(Value::as_u64);
        let numbers = (number("n_prompt_tokens"), number("n_ctx"));
        if numbers != (None, None) {
            return numbers;
        }
        if let Some(message) = inner.get("message").and_then(Value::as_str) {
            return overflow_numbers(message);
        }
    }
    let mut numbers = text.match_indices(" tokens)").filter_map(|(end, _)| {
        let digits = text[..end].rsplit('(').next()?;
        digits.parse().ok()
    });
    match (numbers.next(), numbers.next()) {
        (None, _) => {
            let number_after = |before: &str| {
                let mut all = text.match_indices(before).filter_map(|(at, _)| {
                    let rest = &text[at + before.len()..];
                    let end = rest.find(|char: char| !char.is_ascii_digit());
                    let (digits, rest) = rest.split_at(end.unwrap_or(rest.len()));
                    // The length of the answer is not that of the prompt.
                    let is_answer = rest.starts_with(" output tokens");
                    digits.parse().ok().filter(|_| !is_answer)
                });
                all.next()
            };
            let before = ["at least ", "contains ", "requested ", "your request has "];
            let needed = before.into_iter().find_map(number_after);
            (needed, number_after("maximum context length is "))
        }
        both => both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to() -> CallTarget {
        let (host, model) = ("http://h:1".to_owned(), Some("m".to_owned()));
        CallTarget { host, model, advice: &crate::model::ollama::ADVICE }
    }

    fn busy_with(message: String) -> ModelError {
        ModelError::Busy { to: to(), message, retry_after: None }
    }

    fn error(text: &str) -> String {
        serde_json::json!({ "error": text }).to_string()
    }

    #[track_caller]
    fn check(status: u16, body: &str, expect: ModelError) {
        let head =
            ResponseHead { status, is_html: body.starts_with('<'), ..ResponseHead::default() };
        assert_eq!(from_response(to(), &head, body.as_bytes()), expect);
    }

    #[test]
    fn overflow_is_recognized_in_every_form() {
        let overflow = |needed, window| ModelError::Overflow { to: to(), needed, window };
        let llama = r#"{"error":{"code":400,"message":"request (309 tokens) exceeds the available context size (256 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":309,"n_ctx":256}}"#;
        check(400, &error(llama), overflow(Some(309), Some(256)));
        check(400, llama, overflow(Some(309), Some(256)));
        let short = r#"{"error":{"message":"request (7 tokens) exceeds the available context size (5 tokens)"}}"#;
        check(400, &error(short), overflow(Some(7), Some(5)));
        check(400, &error("the input length exceeds the context length"), overflow(None, None));
        let rendered = "the prompt is longer than the context length currently available to the model; shorten the prompt, or raise it";
        check(400, &error(rendered), overflow(None, None));
        let mlx =
            "input length (700 tokens) exceeds the model's maximum context length (512 tokens)";
        check(500, &error(mlx), overflow(Some(700), Some(512)));
        let vllm = r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the messages, 100 in the completion). Please reduce the length.","type":"BadRequestError","param":null,"code":400}"#;
        check(400, vllm, overflow(Some(5000), Some(4096)));
        check(400, &format!("{{\"error\":{vllm}}}"), overflow(Some(5000), Some(4096)));
        let newer = "This model's maximum context length is 8192 tokens. However, you requested 900 output tokens and your prompt contains at least 7293 input tokens, for a total of at least 8193 tokens.";
        check(400, &error(newer), overflow(Some(7293), Some(8192)));
        let known = "This model's maximum context length is 8192 tokens. However, you requested 900 output tokens and your prompt contains 7500 input tokens.";
        check(400, &error(known), overflow(Some(7500), Some(8192)));
        let unknown = "This model's maximum context length is 8192 tokens. However, you requested 900 output tokens.";
        check(400, &error(unknown), overflow(None, Some(8192)));
        check(500, &error("Context size has been exceeded."), overflow(None, None));
        let sglang = r#"{"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens).","type":"BadRequestError","code":400}"#;
        check(400, sglang, overflow(Some(5000), Some(4096)));
    }

    #[test]
    fn error_response_is_classified_by_text_and_status() {
        let message = |text: &str| text.to_owned();
        check(404, &error("model 'm' not found"), ModelError::NotFound { to: to() });
        let pull = "model \"m\" not found, try pulling it first";
        check(404, &error(pull), ModelError::NotFound { to: to() });
        check(400, &error(pull), ModelError::NotFound { to: to() });
        let unsupported = |capability| ModelError::Unsupported { to: to(), capability };
        let tools = error("registry.ollama.ai/library/m:latest does not support tools");
        check(400, &tools, unsupported(Capability::Tools));
        check(400, &error("\"m\" does not support thinking"), unsupported(Capability::Thinking));
        check(400, &error("\"m\" does not support chat"), unsupported(Capability::Chat));
        let insert = unsupported(Capability::Other("insert".to_owned()));
        check(400, &error("m does not support insert"), insert);
        let busy = "server busy, please try again.  maximum pending requests exceeded";
        let one_space = message("server busy, please try again. maximum pending requests exceeded");
        check(503, &error(busy), busy_with(one_space));
        for text in [
            "llama-server process has terminated: exit status 1",
            "llama runner process has terminated: signal: killed",
            "timed out waiting for llama-server to start",
            "model runner has unexpectedly stopped, this may be due to resource limitations",
            "model requires more system memory (9.0 GiB) than is available (2.0 GiB)",
        ] {
            check(500, &error(text), ModelError::LoadFailed { to: to(), message: message(text) });
        }
        let refused =
            |text: &str| ModelError::Refused { to: to(), status: 400, message: message(text) };
        check(400, &error("missing request body"), refused("missing request body"));
        check(400, &error("invalid think value"), refused("invalid think value"));
        let loading =
            r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
        check(503, loading, busy_with(message("Loading model")));
        let page = ModelError::Failed { to: to(), status: 502, message: message("a page") };
        check(502, "<html>bad gateway</html>", page);
        let canceled = ModelError::GivenUp { to: to(), message: message("request canceled") };
        check(499, &error("request canceled"), canceled);
        let failed = ModelError::Failed { to: to(), status: 502, message: message("bad gateway") };
        check(502, &error("bad gateway"), failed);
        let key = ModelError::Unauthorized { to: to(), message: message("unauthorized") };
        check(401, r#"{"error":"unauthorized","signin_url":"https://x"}"#, key);
        check(429, &error("slow down"), busy_with(message("slow down")));
    }

    #[test]
    fn other_server_is_recognized_by_its_response() {
        check(403, "", ModelError::ForbiddenHost { to: to() });
        let found = |text: &str| ModelError::OtherServer { to: to(), found: text.to_owned() };
        check(404, "404 page not found", found("it returns status 404"));
        check(405, "", found("it returns status 405"));
        check(400, "<html>no</html>", found("it returns a page with status 400"));
        check(404, r#"{"detail":"Not Found"}"#, found("it returns status 404"));
        let failed = ModelError::Failed { to: to(), status: 500, message: "no message".to_owned() };
        check(500, "", failed);
        let location = "http://elsewhere/".to_owned();
        let head = ResponseHead {
            status: 302,
            location: Some(location.clone()),
            ..ResponseHead::default()
        };
        let moved = from_response(to(), &head, b"");
        assert_eq!(moved, ModelError::Redirected { to: to(), location });
    }

    #[test]
    fn busy_server_says_how_long_to_wait() {
        let head = ResponseHead { status: 429, retry_after: Some(7), ..ResponseHead::default() };
        let error = from_response(to(), &head, error("slow down").as_bytes());
        let text = "model m at http://h:1 is busy: slow down; it asks to wait 7 s";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn error_line_is_classified_by_its_text() {
        let check = |error: Value, expect| assert_eq!(from_error_line(to(), &error), expect);
        let message = "an unexpected error".to_owned();
        check("an unexpected error".into(), ModelError::BrokeOff { to: to(), message });
        let died = "llama-server process has terminated";
        check(died.into(), ModelError::LoadFailed { to: to(), message: died.to_owned() });
        let message = r#"{"code":1}"#.to_owned();
        check(serde_json::json!({ "code": 1 }), ModelError::BrokeOff { to: to(), message });
    }
}
