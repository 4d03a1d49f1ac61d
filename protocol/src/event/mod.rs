//! Events as a subscriber receives them. `kinds` is the closed list of their kinds. Implements PROTOCOL.md, section 11.

mod kinds;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

pub use self::kinds::*;
use crate::{Seq, SessionId, Timestamp};

/// An event.
///
/// **Shape**: `{"epoch":"...","eventSeq":7,"sessionId":"...","seq":3,"kind":"message-recorded","at":"...","data":{}}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The run of the daemon that published the event.
    pub epoch: String,
    /// The number of the event within the epoch, from 1.
    pub event_seq: u64,
    /// The session that the event concerns, if it concerns one.
    pub session_id: Option<SessionId>,
    /// The record that the event concerns, if it concerns one.
    pub seq: Option<Seq>,
    /// The kind of the event.
    pub kind: EventKind,
    /// The time of the event.
    pub at: Timestamp,
    /// The data of the kind, an object; absent if it has none. The type of the data implements [`EventData`].
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// A position in the stream of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventCursor {
    /// The epoch of the event.
    pub epoch: String,
    /// The number of the last event that the client has seen.
    pub event_seq: u64,
}

#[cfg(test)]
mod tests;
