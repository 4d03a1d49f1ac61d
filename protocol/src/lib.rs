//! The wire contract of ollmd: what clients and daemon exchange, without I/O or behavior.
//!
//! - [`content`]: the JSON that outlives a process: messages, tool calls, records, the session document.
//! - [`method`]: the one list of methods; [`methods`]: their params and results.
//! - [`event`]: what a subscriber is told; [`error`]: what a refusal says.
//! - [`address`]: where daemon and clients meet.
//! - [`frame`]: bytes to frames and back, for both framings.
//! - [`sanitize`]: text from models, tools and files made safe to show.
//! - [`ids`] and [`time`]: newtypes that are parsed once, at the edge.
//!
//! `PROTOCOL.md` beside this crate is the description of the wire in prose.

pub mod address;
pub mod content;
pub mod error;
pub mod event;
pub mod frame;
pub mod ids;
pub mod method;
pub mod methods;
pub mod sanitize;
pub mod time;

pub use error::{ErrorClass, ErrorData, ErrorKind};
pub use event::{Event, EventKind};
pub use ids::{
    CheckpointId, DecisionId, GoalCheckpointId, GoalId, InvalidId, Seq, SessionId, SnapshotId,
};
pub use method::{Class, METHODS, Method, MethodInfo};
pub use time::Timestamp;

/// The protocol that this version speaks; changes only when an old client would break.
pub const PROTOCOL_VERSION: u32 = 1;

/// Counts additive changes within the protocol, so that a client can omit what the daemon does not know.
pub const SCHEMA_REVISION: u32 = 1;
