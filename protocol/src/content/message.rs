//! One utterance and the parts it is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Timestamp;

/// Who said it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[repr(u8)]
pub enum Role {
    /// Instructions to the model.
    System = 0,
    /// The person.
    User = 1,
    /// The model.
    Assistant = 2,
    /// The output of a tool.
    Tool = 3,
}

impl Role {
    /// The word that the wire uses.
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

/// One utterance.
///
/// **Shape**: `{"role":"user","parts":[{"type":"text","text":"hello"}],"timestamp":"2026-01-27T10:00:00.000Z"}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What was said, in order; may be empty for a model that answered nothing.
    pub parts: Vec<Part>,
    /// When it was said, which for an import is before it was recorded.
    pub timestamp: Timestamp,
    /// For role `tool`: the call that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For role `assistant`: why it stopped, in the model server's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// How long it took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl Message {
    /// A message of one text part.
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

    /// The text parts joined by line breaks; thinking, calls and images are left out.
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
}

/// One piece of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Part {
    /// Plain text.
    Text {
        /// The text, verbatim.
        text: String,
    },
    /// What a thinking model wrote before its answer; never sent back to a model.
    Thinking {
        /// The text, verbatim.
        text: String,
    },
    /// A tool that the model wants called.
    ToolCall {
        /// Links the call to its result.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments as JSON.
        args: Value,
    },
    /// A picture.
    Image {
        /// For example `image/png`.
        mime_type: String,
        /// The bytes in base64.
        data: String,
    },
}
