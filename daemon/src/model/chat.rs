//! A request for an answer, and the answer's pieces. Values only.

use std::num::NonZeroU32;
use std::time::Duration;

use ollm_protocol::content::ContextMessage;
use serde_json::{Map, Value};

/// Asks a model for an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatRequest {
    /// The model.
    pub model: String,
    /// The conversation, as a model server takes it.
    pub messages: Vec<ContextMessage>,
    /// Tool definitions, as a model server takes them.
    pub tools: Vec<Value>,
    /// The window to load the model with; equal in all requests to a model, or the server loads it again.
    pub num_ctx: u32,
    /// The longest answer in tokens; absent: as long as the server lets it be.
    pub num_predict: Option<NonZeroU32>,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Whether the model thinks first; absent: as the model does by itself.
    pub think: Option<Think>,
    /// `"json"` or a JSON Schema that the answer must follow.
    pub format: Option<Value>,
    /// How long the model stays in memory afterwards.
    pub keep_alive: Duration,
}

/// Asks for a model to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WarmRequest {
    /// The model.
    pub model: String,
    /// The window to load it with.
    pub num_ctx: u32,
    /// How long it stays; zero takes it out of memory.
    pub keep_alive: Duration,
}

/// Whether a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Think {
    /// Not at all.
    Off,
    /// As much as it likes.
    On,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// As much as it can.
    Max,
}

/// One item of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChatItem {
    /// A further piece.
    Delta(ChatDelta),
    /// The server's end marker.
    End(ChatEnd),
}

/// A piece of an answer; never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChatDelta {
    /// Text of the answer.
    Text(String),
    /// Text of the thinking.
    Thinking(String),
    /// Whole tool calls.
    ToolCalls(Vec<AnswerCall>),
}

/// A tool call that a model makes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerCall {
    /// The server's id, where it gives one.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments: an object, or whatever the model made of it.
    pub args: Value,
}

/// How an answer ended and what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChatEnd {
    /// Why it ended.
    pub reason: DoneReason,
    /// Tokens of the prompt.
    pub prompt: PromptCount,
    /// Tokens of the prompt that the server still had from before, where it says so.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer, thinking included.
    pub answer_tokens: Option<u64>,
    /// From the request to the end.
    pub total: Option<Duration>,
    /// Of that, loading the model.
    pub load: Option<Duration>,
    /// Of that, reading the prompt.
    pub reading: Option<Duration>,
    /// Of that, answering.
    pub answering: Option<Duration>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DoneReason {
    /// The model was done.
    Stop,
    /// The longest answer or the end of the window was reached; [`ChatEnd::length_cause`] tells which.
    Length,
    /// The model was only loaded.
    Load,
    /// The model was only taken out of memory.
    Unload,
    /// Something else, in the server's word; empty where it gave none.
    Other(String),
}

/// What the server's count of the prompt means, which differs by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptCount {
    /// All of the prompt.
    Whole(u64),
    /// Only what the server did not have from before.
    Uncached(u64),
    /// Nothing was said.
    Unknown,
}

/// Which limit an answer ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LengthCause {
    /// The longest answer that was asked for.
    Asked,
    /// The end of the window.
    Window,
}

impl ChatEnd {
    /// Which limit the answer ran into; `None` when it ended for another reason.
    ///
    /// **Source**: servers use one word for both, so the counts decide.
    pub(crate) fn length_cause(&self, num_predict: Option<NonZeroU32>) -> Option<LengthCause> {
        if self.reason != DoneReason::Length {
            return None;
        }
        let reached = num_predict
            .zip(self.answer_tokens)
            .is_some_and(|(asked, answered)| answered >= u64::from(asked.get()));
        Some(if reached { LengthCause::Asked } else { LengthCause::Window })
    }
}

/// How the next token is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling(Map<String, Value>);

/// An option that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidOption {
    /// It would make the server load the model anew at each request that differs.
    #[error("{name} is one for all requests to a model and cannot be set for a single one")]
    Load { name: String },
    /// Nobody knows it; servers ignore it without a word.
    #[error("there is no option {name}")]
    Unknown { name: String },
    /// Its value is of another type.
    #[error("{name} must be {expected}")]
    Type { name: String, expected: &'static str },
}

/// What an option holds.
#[derive(Clone, Copy)]
enum Kind {
    Whole,
    Number,
    Texts,
}

/// Every option of a request.
///
/// **Source**: `api.Options` of Ollama 0.33. `num_predict` is not here: it is bounded by the window.
const OPTIONS: &[(&str, Kind)] = &[
    ("num_keep", Kind::Whole),
    ("seed", Kind::Whole),
    ("top_k", Kind::Whole),
    ("top_p", Kind::Number),
    ("min_p", Kind::Number),
    ("typical_p", Kind::Number),
    ("repeat_last_n", Kind::Whole),
    ("temperature", Kind::Number),
    ("repeat_penalty", Kind::Number),
    ("presence_penalty", Kind::Number),
    ("frequency_penalty", Kind::Number),
    ("stop", Kind::Texts),
];

/// The options of the model's process: a server loads the model again when one differs.
const LOAD_OPTIONS: &[&str] =
    &["num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict"];

impl Sampling {
    /// Checks options as a client gives them.
    ///
    /// **Errors**: the first that cannot be sent. A server would ignore an unknown one, fail on a wrong type, and
    /// load the model again for one of its process.
    pub(crate) fn check(options: Map<String, Value>) -> Result<Self, InvalidOption> {
        for (name, value) in &options {
            if LOAD_OPTIONS.contains(&name.as_str()) {
                return Err(InvalidOption::Load { name: name.clone() });
            }
            let Some((_, kind)) = OPTIONS.iter().find(|(known, _)| known == name) else {
                return Err(InvalidOption::Unknown { name: name.clone() });
            };
            let (fits, expected) = match kind {
                Kind::Whole => (value.is_i64(), "a whole number"),
                Kind::Number => (value.is_number(), "a number"),
                Kind::Texts => {
                    let texts = value.as_array();
                    (texts.is_some_and(|all| all.iter().all(Value::is_string)), "a list of texts")
                }
            };
            if !fits {
                return Err(InvalidOption::Type { name: name.clone(), expected });
            }
        }
        Ok(Self(options))
    }

    /// The options as they are sent.
    pub(super) const fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_counts_tell_which_limit_was_reached() {
        let check = |reason: DoneReason, answered, asked, expect| {
            let end = ChatEnd {
                reason,
                prompt: PromptCount::Unknown,
                cached_tokens: None,
                answer_tokens: answered,
                total: None,
                load: None,
                reading: None,
                answering: None,
            };
            assert_eq!(end.length_cause(NonZeroU32::new(asked)), expect);
        };
        check(DoneReason::Length, Some(64), 64, Some(LengthCause::Asked));
        check(DoneReason::Length, Some(63), 64, Some(LengthCause::Window));
        check(DoneReason::Length, None, 64, Some(LengthCause::Window));
        check(DoneReason::Length, Some(64), 0, Some(LengthCause::Window));
        check(DoneReason::Stop, Some(64), 64, None);
    }

    #[test]
    fn only_options_of_a_request_pass() {
        let check = |options: Value, expect: Result<(), &str>| {
            let Value::Object(map) = options else { panic!("an object") };
            let found = Sampling::check(map).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(found, expect.map_err(str::to_owned));
        };
        check(json!({}), Ok(()));
        check(json!({"temperature": 0, "top_p": 0.5, "seed": -1, "stop": ["a", "b"]}), Ok(()));
        let load = "num_ctx is one for all requests to a model and cannot be set for a single one";
        check(json!({"num_ctx": 4096}), Err(load));
        check(json!({"num_predict": 5}), Err("there is no option num_predict"));
        check(json!({"shift": true}), Err("there is no option shift"));
        check(json!({"seed": 0.5}), Err("seed must be a whole number"));
        check(json!({"temperature": "hot"}), Err("temperature must be a number"));
        check(json!({"stop": "a"}), Err("stop must be a list of texts"));
    }
}
