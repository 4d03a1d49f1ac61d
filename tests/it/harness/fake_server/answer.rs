//! What a model answers, in the words of no particular server: questions, answers, and the policy between them.

use serde_json::{Value, json};

use super::http::HttpRequest;

/// A question to a model.
pub(crate) struct Question<'a> {
    pub(crate) messages: &'a [Value],
    /// The tools as JSON; null if there are none.
    pub(crate) tools: &'a Value,
    /// The window of the model in tokens.
    pub(crate) num_ctx: u64,
    /// The most tokens of the answer.
    pub(crate) max_tokens: Option<usize>,
    /// The request with the question.
    pub(crate) http: &'a HttpRequest,
}

/// Returns the answer to each question, or the text of an error. It may take its time.
pub(crate) type Policy = dyn Fn(&Question<'_>) -> Result<Answer, &'static str> + Send + Sync;

/// An answer. The default is the text "ok".
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Chunks of thinking, sent before the text.
    pub(crate) thinking: Vec<String>,
    /// Chunks of text.
    pub(crate) text: Vec<String>,
    /// Tool calls as `{"function": {"name": ..., "arguments": {...}}}`.
    pub(crate) tool_calls: Vec<Value>,
    /// Whether the last line carries the tool calls, as in some engines, instead of a line before it.
    pub(crate) tool_calls_in_done: bool,
    /// Why the answer ends, unless a token limit ends it first.
    pub(crate) reason: &'static str,
}

impl Default for Answer {
    fn default() -> Self {
        Self::text("ok")
    }
}

impl Answer {
    /// Returns a text, in chunks of a word each.
    pub(crate) fn text(text: &str) -> Self {
        Self { text: text.split_inclusive(' ').map(str::to_owned).collect(), ..Self::whole("") }
    }

    /// Returns a text in one chunk.
    pub(crate) fn whole(text: &str) -> Self {
        Self {
            thinking: Vec::new(),
            text: vec![text.to_owned()],
            tool_calls: Vec::new(),
            tool_calls_in_done: false,
            reason: "stop",
        }
    }

    /// Adds thinking before the text.
    #[must_use]
    pub(crate) fn thinking(mut self, text: &str) -> Self {
        self.thinking = text.split_inclusive(' ').map(str::to_owned).collect();
        self
    }

    /// Adds a tool call.
    #[must_use]
    pub(crate) fn tool_call(mut self, name: &str, arguments: Value) -> Self {
        self.tool_calls.push(json!({ "function": { "name": name, "arguments": arguments } }));
        self
    }

    /// Moves the tool calls to the last line.
    #[must_use]
    pub(crate) const fn tool_calls_in_done(mut self) -> Self {
        self.tool_calls_in_done = true;
        self
    }

    /// Sets the reason to `length`, as when a token limit cuts the answer.
    #[must_use]
    pub(crate) const fn cut(mut self) -> Self {
        self.reason = "length";
        self
    }
}
