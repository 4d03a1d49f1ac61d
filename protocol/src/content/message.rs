//! Messages with their parts, and executed tool calls with their results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::answer_text::SplitAnswer;
use super::files::FileWrite;
use super::is_zero;
use crate::{Seq, Timestamp};

/// The author of a message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[repr(u8)]
pub enum Role {
    /// Instructions to the model.
    System = 0,
    /// The person, or a program in their place.
    User = 1,
    /// The model.
    Assistant = 2,
    /// A tool: the message is the result of a tool call.
    Tool = 3,
}

impl Role {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A message.
///
/// **Shape**: `{"role":"user","parts":[{"type":"text","text":"hello"}],"timestamp":"2026-01-27T10:00:00.000Z"}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content, in order. May be empty.
    pub parts: Vec<Part>,
    /// The time of the message, which a client can set.
    pub timestamp: Timestamp,
    /// For role `tool`: the id of the tool call that this message answers.
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    pub model: Option<String>,
    /// For role `assistant`: the reason for the end of the answer. `stop`, `length` or another word of the model
    /// server; `canceled`, `timeout` or `interrupted` for a partial answer.
    pub finish_reason: Option<String>,
    /// The time that it took to answer, in milliseconds.
    pub duration_ms: Option<u64>,
}

impl Message {
    /// Returns a message with one text part.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>, timestamp: Timestamp) -> Self {
        Self {
            role,
            parts: vec![Part::Text { text: text.into() }],
            timestamp,
            tool_call_id: None,
            tool_name: None,
            model: None,
            finish_reason: None,
            duration_ms: None,
        }
    }

    /// Returns the text parts, joined by line breaks, without thinking, tool calls and images.
    #[must_use]
    pub fn plain_text(&self) -> String {
        let mut joined = String::new();
        for part in &self.parts {
            if let Part::Text { text } = part {
                if !joined.is_empty() {
                    joined.push('\n');
                }
                joined.push_str(text);
            }
        }
        joined
    }

    /// Returns the text that is sent to a model again: the plain text, in an assistant message without the thinking between
    /// tags and without blocks of the prompt that the model repeated.
    #[must_use]
    pub fn sent_text(&self) -> String {
        let text = self.plain_text();
        match self.split(&text) {
            Some(split) => split.sent,
            None => text,
        }
    }

    /// Returns the thinking between tags in an assistant message, the blocks on lines of their own.
    #[must_use]
    pub fn inline_thinking(&self) -> Option<String> {
        let text = self.plain_text();
        let thinking = self.split(&text)?.thinking;
        (!thinking.is_empty()).then(|| thinking.join("\n"))
    }

    fn split<'t>(&self, text: &'t str) -> Option<SplitAnswer<'t>> {
        (self.role == Role::Assistant).then(|| SplitAnswer::new(text)).flatten()
    }
}

/// A token of an answer with the probability that the model gave it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenLogprob {
    /// The text of the token.
    pub token: String,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The bytes of the token, which can be a part of a character; absent if the server does not report them.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens at its position, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TokenLogprob>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Part {
    /// Plain text.
    Text {
        /// The text, verbatim.
        text: String,
    },
    /// The thinking of a model before its answer; never sent back to a model.
    Thinking {
        /// The text, verbatim.
        text: String,
    },
    /// A tool call that the model requests.
    ToolCall {
        /// The id that the result refers to.
        id: String,
        /// The name of the tool.
        name: String,
        /// The arguments as JSON.
        args: Value,
    },
    /// An image.
    Image {
        /// The media type, for example `image/png`.
        mime_type: String,
        /// The bytes in base64.
        data: String,
    },
}

/// An executed tool call with its result.
///
/// **Shape**: `{"id":"call_1","name":"read_file","args":{"path":"a.rs"},"result":{"llmContent":"..."},"timestamp":"..."}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// The id of the call in the assistant message that requested it.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON.
    pub args: Value,
    /// The result.
    pub result: ToolResult,
    /// The time of the call.
    pub timestamp: Timestamp,
    /// The run time, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The record of the assistant message that requested the call, if it is known.
    pub message_seq: Option<Seq>,
    /// The files that the call wrote; absent if the client did not say.
    pub writes: Option<Vec<FileWrite>>,
    /// The directory that the paths of `writes` are relative to: the session's project when the call was recorded.
    pub writes_root: Option<String>,
    /// The number of files that the call wrote beyond those in `writes`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub writes_omitted: u64,
}

/// The result of a tool call.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolResult {
    /// The text that the model reads.
    pub llm_content: String,
    /// The text that a person reads, if it differs.
    pub display_content: Option<String>,
    /// Whether the tool succeeded.
    pub success: Option<bool>,
    /// The reason of a failure.
    pub error: Option<String>,
    /// The exit code of a command.
    pub exit_code: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_are_sent_without_a_part_of_their_text() {
        let text = "<think>a</think>\nb\n<recalled>\nc\n</recalled>";
        let message = |role| Message::text(role, text, Timestamp::from_unix_ms(0));
        let (answer, asked) = (message(Role::Assistant), message(Role::User));
        assert_eq!((answer.sent_text(), answer.inline_thinking()), ("b".into(), Some("a".into())));
        assert_eq!((asked.sent_text(), asked.inline_thinking()), (text.into(), None));
    }
}
