//! What a status and a body mean that are no answer, and what an error line in an answer means. Pure.
//!
//! **Source**: the error texts of Ollama 0.3 to 0.33 and of the llama-server that it starts. Where a text is not
//! known the status decides.

use serde_json::Value;

use crate::model::error::{Capability, ModelError, Target, said};

/// What a model's process says when it does not come up or dies.
const LOAD_TEXTS: &[&str] = &[
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

/// What engines say of a prompt that does not fit.
const OVERFLOW_TEXTS: &[&str] = &[
    "exceeds the context length",
    "exceeds the available context size",
    "exceed_context_size_error",
    "longer than the context length",
    "exceeds the model's maximum context length",
];

/// An answer whose status is not 200.
pub(super) fn refusal(
    to: Target,
    status: u16,
    location: Option<&str>,
    is_html: bool,
    body: &[u8],
) -> ModelError {
    if (300..400).contains(&status) {
        return ModelError::Redirected { to, location: said(location.unwrap_or_default()) };
    }
    let Some(text) = error_text(body) else {
        return without_text(to, status, is_html, body);
    };
    if let Some(error) = by_text(&to, &text) {
        return error;
    }
    let said = said(&text);
    match status {
        401 => ModelError::Unauthorized { to, said },
        404 if to.model.is_some() => ModelError::NotFound { to },
        429 | 503 => ModelError::Busy { to, said },
        499 => ModelError::GivenUp { to, said },
        500.. => ModelError::Failed { to, status, said },
        _ => ModelError::Refused { to, status, said },
    }
}

/// An error line in an answer that had begun.
pub(super) fn broke_off(to: Target, error: &Value) -> ModelError {
    let text = text_of(error);
    by_text(&to, &text).unwrap_or_else(|| ModelError::BrokeOff { to, said: said(&text) })
}

/// The text of an error answer; `None` when the body is not one.
fn error_text(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error")?;
    Some(text_of(error))
}

/// An error as text: it is one, or an object with one.
fn text_of(error: &Value) -> String {
    match error {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn without_text(to: Target, status: u16, is_html: bool, body: &[u8]) -> ModelError {
    let is_empty = body.trim_ascii().is_empty();
    if status == 403 && is_empty {
        return ModelError::ForbiddenHost { to };
    }
    let words = said(&String::from_utf8_lossy(body));
    match status {
        404 | 405 => {
            ModelError::NotOllama { to, found: format!("it answers with status {status}") }
        }
        _ if is_html => ModelError::NotOllama {
            to,
            found: format!("it answers with a page and status {status}"),
        },
        401 => ModelError::Unauthorized { to, said: words },
        429 | 503 => ModelError::Busy { to, said: words },
        499 => ModelError::GivenUp { to, said: words },
        500.. => ModelError::Failed { to, status, said: words },
        _ => ModelError::Refused { to, status, said: words },
    }
}

/// The errors that are known by their text, whatever their status.
fn by_text(to: &Target, text: &str) -> Option<ModelError> {
    let to = to.clone();
    let lower = text.to_lowercase();
    if OVERFLOW_TEXTS.iter().any(|known| lower.contains(known)) {
        let (needed, window) = overflow_numbers(text);
        return Some(ModelError::Overflow { to, needed, window });
    }
    if let Some((_, word)) = lower.split_once("does not support ") {
        let word = word.split([' ', '"', ',', '.']).next().unwrap_or_default();
        let capability = match word {
            "tools" => Capability::Tools,
            "thinking" => Capability::Thinking,
            "chat" => Capability::Chat,
            other => Capability::Other(said(other)),
        };
        return Some(ModelError::Unsupported { to, capability });
    }
    if lower.starts_with("model ") && lower.contains("not found") && to.model.is_some() {
        return Some(ModelError::NotFound { to });
    }
    if LOAD_TEXTS.iter().any(|known| lower.contains(known)) {
        return Some(ModelError::LoadFailed { to, said: said(text) });
    }
    None
}

/// Tokens needed and tokens there are, where a text gives both.
///
/// llama-server sends an object, which Ollama passes on as a text; others put the numbers into their sentence.
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
    (numbers.next(), numbers.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to() -> Target {
        Target { host: "http://h:1".to_owned(), model: Some("m".to_owned()) }
    }

    fn error(text: &str) -> String {
        serde_json::json!({ "error": text }).to_string()
    }

    #[track_caller]
    fn check(status: u16, body: &str, expect: ModelError) {
        assert_eq!(refusal(to(), status, None, body.starts_with('<'), body.as_bytes()), expect);
    }

    #[test]
    fn overflow_is_found_in_all_its_forms_with_the_numbers_there_are() {
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
    }

    #[test]
    fn each_refusal_is_what_it_is() {
        let said = |text: &str| text.to_owned();
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
        let one_space = said("server busy, please try again. maximum pending requests exceeded");
        check(503, &error(busy), ModelError::Busy { to: to(), said: one_space });
        for text in [
            "llama-server process has terminated: exit status 1",
            "llama runner process has terminated: signal: killed",
            "timed out waiting for llama-server to start",
            "model runner has unexpectedly stopped, this may be due to resource limitations",
            "model requires more system memory (9.0 GiB) than is available (2.0 GiB)",
        ] {
            check(500, &error(text), ModelError::LoadFailed { to: to(), said: said(text) });
        }
        let refused = |text: &str| ModelError::Refused { to: to(), status: 400, said: said(text) };
        check(400, &error("missing request body"), refused("missing request body"));
        check(400, &error("invalid think value"), refused("invalid think value"));
        let canceled = ModelError::GivenUp { to: to(), said: said("request canceled") };
        check(499, &error("request canceled"), canceled);
        let failed = ModelError::Failed { to: to(), status: 502, said: said("bad gateway") };
        check(502, &error("bad gateway"), failed);
        let key = ModelError::Unauthorized { to: to(), said: said("unauthorized") };
        check(401, r#"{"error":"unauthorized","signin_url":"https://x"}"#, key);
        check(429, &error("slow down"), ModelError::Busy { to: to(), said: said("slow down") });
    }

    #[test]
    fn what_is_no_ollama_is_told_by_its_answer() {
        check(403, "", ModelError::ForbiddenHost { to: to() });
        let found = |text: &str| ModelError::NotOllama { to: to(), found: text.to_owned() };
        check(404, "404 page not found", found("it answers with status 404"));
        check(405, "", found("it answers with status 405"));
        check(400, "<html>no</html>", found("it answers with a page and status 400"));
        check(404, r#"{"detail":"Not Found"}"#, found("it answers with status 404"));
        let failed =
            ModelError::Failed { to: to(), status: 500, said: "without a word".to_owned() };
        check(500, "", failed);
        let moved = refusal(to(), 302, Some("http://elsewhere/"), false, b"");
        let location = "http://elsewhere/".to_owned();
        assert_eq!(moved, ModelError::Redirected { to: to(), location });
    }

    #[test]
    fn an_error_line_is_what_it_says() {
        let check = |error: Value, expect| assert_eq!(broke_off(to(), &error), expect);
        let said = "an unexpected error".to_owned();
        check("an unexpected error".into(), ModelError::BrokeOff { to: to(), said });
        let died = "llama-server process has terminated";
        check(died.into(), ModelError::LoadFailed { to: to(), said: died.to_owned() });
        let said = r#"{"code":1}"#.to_owned();
        check(serde_json::json!({ "code": 1 }), ModelError::BrokeOff { to: to(), said });
    }
}
