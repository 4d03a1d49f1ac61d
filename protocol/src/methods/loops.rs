//! `loop.*`: repetition that stops a session from calling the model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::content::{LoopCall, LoopPattern};

/// How far the detection is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoopStatusResult {
    /// Whether the configuration has the detection on.
    pub enabled: bool,
    /// The loop in force: no model is called until it is reset, or until the user says something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detected: Option<LoopPattern>,
    /// Calls of the model since the last user message or reset.
    pub turns_since_user: u32,
    /// The most that are allowed.
    pub max_turns: u32,
    /// How many repetitions are a loop.
    pub repeat_threshold: u32,
    /// The newest tool calls since the last user message or reset, oldest first.
    pub recent: Vec<LoopCall>,
}
