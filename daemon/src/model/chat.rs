//! Requests to a model, their sampling options, and the items of its answer.
//!
//! Must not know how requests are sent.
//!
//! **Invariant**: sampling options never contain an option for which a server would reload the model.

use std::num::NonZeroU32;
use std::time::Duration;

use ollm_protocol::content::{ContextMessage, TokenLogprob};
use ollm_protocol::limits::json_bytes;
use serde_json::{Map, Value};

/// The bytes around the id, the name and the arguments of a tool call in an event, and of an id where the server sends
/// none.
const CALL_BYTES: usize = 64;

/// A request for an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatRequest {
    pub model: String,
    /// The conversation, as a model server takes it.
    pub messages: Vec<ContextMessage>,
    /// Tool definitions, as a model server takes them.
    pub tools: Vec<Value>,
    /// The window to load the model with; the same in all requests to a model.
    pub num_ctx: u32,
    /// Maximum number of tokens of the answer; `None` leaves the limit to the server.
    pub num_predict: Option<NonZeroU32>,
    pub sampling: Sampling,
    /// `None` leaves the choice to the model.
    pub think: Option<ThinkMode>,
    /// `"json"` or a JSON Schema that the answer must follow.
    pub format: Option<Value>,
    /// Set if the probabilities of tokens are reported: the number of the most likely ones at each position.
    pub logprobs: Option<u8>,
    /// The time for which the server keeps the model in memory after the answer.
    pub keep_alive: Duration,
    /// The value that is the same for all requests of a session, for a router before the server; it says nothing else of the
    /// session.
    pub affinity: Option<String>,
}

/// A request to load a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WarmRequest {
    pub model: String,
    /// The window to load the model with.
    pub num_ctx: u32,
    /// The time for which Ollama keeps the model in memory; zero unloads it again.
    pub keep_alive: Duration,
}

/// Whether and how much a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThinkMode {
    Off,
    /// The model decides how much it thinks.
    On,
    Low,
    Medium,
    High,
    Max,
}

/// An item of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChatItem {
    /// A piece of the answer.
    Delta(ChatDelta),
    /// The server's end marker.
    End(ChatEnd),
}

/// A piece of an answer; never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChatDelta {
    Text(String),
    Thinking(String),
    /// Complete tool calls.
    ToolCalls(Vec<AnswerCall>),
    /// The probabilities of the tokens of the pieces before.
    Logprobs(Vec<TokenLogprob>),
}

impl ChatDelta {
    /// Returns the size of the content in bytes of JSON, in which a client receives it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Thinking(text) => json_bytes(text) - "\"\"".len(),
            Self::ToolCalls(calls) => {
                let bytes = |call: &AnswerCall| {
                    let AnswerCall { id, name, args } = call;
                    json_bytes(id) + json_bytes(name) + json_bytes(args) + CALL_BYTES
                };
                calls.iter().map(bytes).sum()
            }
            // No content: they are passed on and not kept.
            Self::Logprobs(_) => 0,
        }
    }
}

/// A tool call in an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerCall {
    /// The server's id, if it sends one.
    pub id: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// The arguments: an object, unless the model sent something else.
    pub args: Value,
}

/// The end of an answer, with its counts and durations as far as the server reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChatEnd {
    pub reason: DoneReason,
    pub prompt: PromptCount,
    /// Tokens of the prompt that the server took from its cache.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer, including thinking.
    pub answer_tokens: Option<u64>,
    /// Time for loading the model.
    pub load_time: Option<Duration>,
    /// Time for reading the prompt.
    pub prompt_time: Option<Duration>,
    /// Time for generating the answer.
    pub answer_time: Option<Duration>,
}

/// The reason why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DoneReason {
    /// The model ended its answer.
    Stop,
    /// `num_predict` or the end of the window was reached; see [`ChatEnd::length_cause`].
    Length,
    /// The request only loaded the model.
    Load,
    /// The request only unloaded the model.
    Unload,
    /// Another reason in the server's words; empty if it sent none.
    Other(String),
}

/// The server's count of the prompt, whose meaning depends on its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptCount {
    /// All tokens of the prompt.
    Whole(u64),
    /// Tokens of the prompt that were not cached.
    Uncached(u64),
    /// The server sent no count.
    Unknown,
}

/// The limit that an answer reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LengthCause {
    /// The requested maximum length.
    NumPredict,
    /// The end of the window.
    Window,
}

impl ChatEnd {
    /// Returns which limit the answer reached, or `None` if it ended for another reason.
    ///
    /// **Source**: servers report both limits as `length`, so the counts decide.
    pub(crate) fn length_cause(&self, num_predict: Option<NonZeroU32>) -> Option<LengthCause> {
        if self.reason != DoneReason::Length {
            return None;
        }
        let is_reached = num_predict
            .zip(self.answer_tokens)
            .is_some_and(|(limit, tokens)| tokens >= u64::from(limit.get()));
        Some(if is_reached { LengthCause::NumPredict } else { LengthCause::Window })
    }
}

/// Options for choosing the next token.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling(Map<String, Value>);

/// An option cannot be part of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidOption {
    /// The server would reload the model for each request with another value.
    #[error("{name} applies to all requests to a model and cannot be set for a single request")]
    Load { name: String },
    /// The daemon sets the option itself, so that prompt and answer fit into the window.
    #[error("{name} cannot be set; answerLimit limits the answer")]
    Length { name: String },
    /// The option is unknown; servers ignore unknown options silently.
    #[error("unknown option {name}; the options are {known}")]
    Unknown { name: String, known: String },
    /// The value has a wrong type.
    #[error("{name} must be {expected}")]
    Type { name: String, expected: &'static str },
}

impl InvalidOption {
    /// Returns the name of the option.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Load { name }
            | Self::Length { name }
            | Self::Unknown { name, .. }
            | Self::Type { name, .. } => name,
        }
    }
}

/// The type of an option's value.
#[derive(Clone, Copy)]
pub(crate) enum OptionType {
    Integer,
    Number,
    Switch,
    Texts,
}

/// The options of a kind of server.
pub(crate) struct SamplingNames {
    /// The options of a single request.
    pub(crate) options: &'static [(&'static str, OptionType)],
    /// The options for the longest answer, which the daemon sets.
    pub(crate) length: &'static [&'static str],
    /// The options of the model's process. A server reloads the model if one of them differs.
    pub(crate) load: &'static [&'static str],
}

impl Sampling {
    /// Validates the options of a client.
    ///
    /// **Errors**: the first invalid option. A server would ignore an unknown option, fail for a wrong type, and reload
    /// the model for an option of its process.
    pub(crate) fn check(
        options: Map<String, Value>,
        names: &SamplingNames,
    ) -> Result<Self, InvalidOption> {
        for (name, value) in &options {
            if names.load.contains(&name.as_str()) {
                return Err(InvalidOption::Load { name: name.clone() });
            }
            if names.length.contains(&name.as_str()) {
                return Err(InvalidOption::Length { name: name.clone() });
            }
            let Some((_, option_type)) = names.options.iter().find(|(known, _)| known == name)
            else {
                let known = names.options.iter().map(|(known, _)| *known);
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(InvalidOption::Unknown { name: name.clone(), known });
            };
            let (fits, expected) = match option_type {
                OptionType::Integer => (value.is_i64(), "an integer"),
                OptionType::Number => (value.is_number(), "a number"),
                OptionType::Switch => (value.is_boolean(), "true or false"),
                OptionType::Texts => {
                    let texts = value.as_array();
                    (texts.is_some_and(|all| all.iter().all(Value::is_string)), "a list of strings")
                }
            };
            if !fits {
                return Err(InvalidOption::Type { name: name.clone(), expected });
            }
        }
        Ok(Self(options))
    }

    /// Returns the option that every server has.
    pub(crate) fn temperature(temperature: f64) -> Self {
        Self(Map::from_iter([("temperature".to_owned(), temperature.into())]))
    }

    pub(super) const fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn size_of_a_piece_is_at_least_that_of_its_json() {
        let text = "\u{1}\"é".repeat(100);
        assert_eq!(ChatDelta::Text(text.clone()).bytes() + 2, json_bytes(&text));
        let args = json!({ "n": [1e9, text] });
        let shown = json!({ "id": "c".repeat(37), "name": "a", "args": args });
        let call = AnswerCall { id: None, name: "a".to_owned(), args };
        let delta = ChatDelta::ToolCalls(vec![call; 3]);
        assert!(delta.bytes() >= 3 * (json_bytes(&shown) + 1), "{}", delta.bytes());
    }

    #[test]
    fn length_cause_follows_from_the_counts() {
        let check = |reason: DoneReason, answer_tokens, num_predict, expect| {
            let end = ChatEnd {
                reason,
                prompt: PromptCount::Unknown,
                cached_tokens: None,
                answer_tokens,
                load_time: None,
                prompt_time: None,
                answer_time: None,
            };
            assert_eq!(end.length_cause(NonZeroU32::new(num_predict)), expect);
        };
        check(DoneReason::Length, Some(64), 64, Some(LengthCause::NumPredict));
        check(DoneReason::Length, Some(63), 64, Some(LengthCause::Window));
        check(DoneReason::Length, None, 64, Some(LengthCause::Window));
        check(DoneReason::Length, Some(64), 0, Some(LengthCause::Window));
        check(DoneReason::Stop, Some(64), 64, None);
    }

    #[test]
    fn only_options_of_a_single_request_are_valid() {
        let check = |options: Value, expect: Result<(), &str>| {
            let Value::Object(map) = options else { panic!("an object") };
            let names = &crate::model::ollama::SAMPLING;
            let found = Sampling::check(map, names).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(found, expect.map_err(str::to_owned));
        };
        check(json!({}), Ok(()));
        check(json!({"temperature": 0, "top_p": 0.5, "seed": -1, "stop": ["a", "b"]}), Ok(()));
        let load =
            "num_ctx applies to all requests to a model and cannot be set for a single request";
        check(json!({"num_ctx": 4096}), Err(load));
        let length = "num_predict cannot be set; answerLimit limits the answer";
        check(json!({"num_predict": 5}), Err(length));
        let unknown = "unknown option shift; the options are num_keep, seed, top_k, top_p, min_p, typical_p, \
            repeat_last_n, temperature, repeat_penalty, presence_penalty, frequency_penalty, stop";
        check(json!({"shift": true}), Err(unknown));
        check(json!({"seed": 0.5}), Err("seed must be an integer"));
        check(json!({"temperature": "hot"}), Err("temperature must be a number"));
        check(json!({"stop": "a"}), Err("stop must be a list of strings"));
    }
}
