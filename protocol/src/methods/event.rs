//! `event.*`: what happened, as it happens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::EventCursor;
use crate::{EventKind, SessionId};

/// Which events, and from where on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventSubscribeParams {
    /// Only those of one session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Only these kinds; absent or empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<EventKind>,
    /// Shares of the prompt limit at which `context-threshold` is sent to this subscriber beside 0.85, each between 0
    /// and 1; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<f64>,
    /// Continue after an event already seen; what cannot be replayed is announced by one `resync`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<EventCursor>,
}
