//! The wire contract of ollmd: the JSON that clients and daemon exchange. No I/O and no behavior.
//!
//! - [`method`]: the one list of methods. [`methods`]: their params and results.
//! - [`content`]: the types that both the wire and the stored files use, and those that several results share.
//! - [`event`]: the kinds of events and their data. [`error`]: the kinds of errors.
//! - [`frame`]: bytes to frames and back, in both framings. [`address`]: the paths of the socket.
//! - [`limits`]: the limits of the fields that clients and files set.
//! - [`sanitize`]: text from models, tools and files made safe to show.
//! - [`code_fence`]: code fences in the text of a model. [`model_host`]: the address of a model server.
//! - [`ids`] and [`time`]: newtypes for ids, record numbers and instants. [`short_id`]: short forms of ids.
//!
//! `PROTOCOL.md` beside this crate describes the wire in prose.

pub mod address;
pub mod code_fence;
pub mod content;
pub mod error;
pub mod event;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod method;
pub mod methods;
pub mod model_host;
pub mod sanitize;
pub mod short_id;
pub mod time;

pub use error::{ErrorClass, ErrorData, ErrorKind};
pub use event::{Event, EventData, EventKind};
pub use ids::{
    CheckpointId, DecisionId, GoalCheckpointId, GoalId, InvalidId, PlanId, Seq, SessionId,
    SnapshotId,
};
pub use method::{Effect, Life, METHODS, Method, MethodInfo};
pub use time::Timestamp;

/// The version of the protocol. It changes only with a change that breaks old clients.
pub const PROTOCOL_VERSION: u32 = 1;

/// The number of additions to this version of the protocol so far, from 1.
///
/// A client that knows more than the daemon omits newer params, because the daemon would refuse them. Stays 1 until the
/// first release.
pub const SCHEMA_REVISION: u32 = 1;
