//! Messages with their parts, and executed tool calls with their results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::FileWrite;
use super::is_zero;
use crate::{Seq, Timestamp};

/// The tags between which some models think in their answers.
const THINK: &str = "<think>";
const END_THINK: &str = "</think>";

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For role `assistant`: the reason for the end of the answer. `stop`, `length` or another word of the model
    /// server; `canceled`, `timeout` or `interrupted` for a partial answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The time that it took to answer, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// tags.
    #[must_use]
    pub fn sent_text(&self) -> String {
        let text = self.plain_text();
        match self.split_thinking(&text) {
            Some((_, rest)) => rest,
            None => text,
        }
    }

    /// Returns the thinking between tags in an assistant message, the blocks on lines of their own.
    #[must_use]
    pub fn inline_thinking(&self) -> Option<String> {
        let text = self.plain_text();
        self.split_thinking(&text).map(|(thinking, _)| thinking.join("\n"))
    }

    /// Splits a text into the thinking between tags and the rest, or returns `None` without thinking.
    ///
    /// Blocks at the beginning are thinking, also one without an end, and later ones that begin a line, have an end and are
    /// not in a fence of code.
    fn split_thinking<'t>(&self, text: &'t str) -> Option<(Vec<&'t str>, String)> {
        if self.role != Role::Assistant || !text.contains(THINK) {
            return None;
        }
        let mut thinking = Vec::new();
        let mut rest = text;
        while let Some(inside) = rest.trim_start().strip_prefix(THINK) {
            let (block, behind) = inside.split_once(END_THINK).unwrap_or((inside, ""));
            thinking.push(block);
            rest = behind.trim_start();
        }
        let mut kept = String::with_capacity(rest.len());
        let mut is_code = false;
        while !rest.is_empty() {
            let line = rest.trim_start_matches(' ');
            let later = line.strip_prefix(THINK).filter(|_| !is_code);
            if let Some((block, behind)) = later.and_then(|inside| inside.split_once(END_THINK)) {
                thinking.push(block);
                rest = behind.trim_start();
                continue;
            }
            is_code ^= line.starts_with("```") || line.starts_with("~~~");
            let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
            kept.push_str(&rest[..end]);
            rest = &rest[end..];
        }
        (!thinking.is_empty()).then_some((thinking, kept))
    }
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The record of the assistant message that requested the call, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_seq: Option<Seq>,
    /// The files that the call wrote; absent if the client did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Vec<FileWrite>>,
    /// The directory that the paths of `writes` are relative to: the session's project when the call was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes_root: Option<String>,
    /// The number of files that the call wrote beyond those in `writes`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub writes_omitted: u64,
}

/// The result of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolResult {
    /// The text that the model reads.
    pub llm_content: String,
    /// The text that a person reads, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_content: Option<String>,
    /// Whether the tool succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The exit code of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_between_tags_is_not_sent() {
        let message = |text: &str| Message::text(Role::Assistant, text, Timestamp::from_unix_ms(0));
        let check = |text: &str, sent: &str, thinking: Option<&str>| {
            let message = message(text);
            assert_eq!(message.sent_text(), sent, "{text}");
            assert_eq!(message.inline_thinking().as_deref(), thinking, "{text}");
        };
        check("Hello", "Hello", None);
        check("<think>a</think>\n\nHello", "Hello", Some("a"));
        check("<think>a</think> <think>b</think>\nHello", "Hello", Some("a\nb"));
        check("Hello\n<think>a</think>\nBye", "Hello\nBye", Some("a"));
        check("<think>cut off", "", Some("cut off"));
        // A later block without an end, or in code, is text.
        check("Hello\n<think>cut off", "Hello\n<think>cut off", None);
        let code = "Write it so:\n```\n<think>a</think>\n```\n";
        check(code, code, None);
        check("The tag `<think>a</think>` is hidden", "The tag `<think>a</think>` is hidden", None);
        let asked = Message::text(Role::User, "<think>a</think>", Timestamp::from_unix_ms(0));
        assert_eq!(
            (asked.sent_text().as_str(), asked.inline_thinking()),
            ("<think>a</think>", None)
        );
    }
}
