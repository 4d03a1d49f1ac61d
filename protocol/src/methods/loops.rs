//! `loop.*`: the loop detection, which keeps a session that repeats itself from calling its model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::content::{LoopCall, LoopPattern};

/// The result of `loop.status` and `loop.reset`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoopStatusResult {
    /// Whether the configuration enables loop detection.
    pub enabled: bool,
    /// The loop in force, until a reset or a user message; absent if there is none.
    pub detected: Option<LoopPattern>,
    /// The number of model calls since the last user message or reset.
    pub turns_since_user: u32,
    /// The most model calls without a user message.
    pub max_turns: u32,
    /// The number of repetitions that make a loop.
    pub repeat_threshold: u32,
    /// The newest tool calls since the last user message or reset, at most 16, the oldest first.
    pub recent: Vec<LoopCall>,
}
