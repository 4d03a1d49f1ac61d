//! `event.*`: subscribing to events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::event::EventCursor;
use crate::{EventKind, SessionId};

/// The params of `event.subscribe`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventSubscribeParams {
    /// Restricts the subscription to events of one session.
    pub session_id: Option<SessionId>,
    /// Restricts the subscription to these kinds; absent or empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<EventKind>,
    /// Further shares of the prompt limit, beside 0.85, at which this subscriber gets `context-threshold`: at most 16,
    /// each from 0 to 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<f64>,
    /// The last event that the client has seen: the subscription continues after it, or begins with one `resync` if it
    /// cannot. Default: only new events.
    pub since: Option<EventCursor>,
}
