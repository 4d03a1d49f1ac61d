//! The application layer: combines sessions, catalog, contexts and models into recorded messages, built contexts,
//! compactions and chat turns.
//!
//! From the ground up, each module using only those before it (`tests/it/tidy/modules.rs` has the whole order):
//!
//! - [`error`], `build_request`; `path`, `cache`, `chat_history`, `counts`, `turn_feed`, `running`, `schedule`, `uploads`, `previews`,
//!   `model_limits`, `model_speed`, `placement`, `hook_runs`: values and state without behavior across modules; [`core`]: the handles over all of it.
//! - `store_work`: work on everything that is stored. `drafts`, `writes`: records before they are written; `partial`: answers that are being written; `change`: the three
//!   forms in which a session changes.
//! - [`loops`]: loop detection; `other_branches`: found records off the path; [`put_back`]: files that follow a move of the
//!   leaf.
//! - [`models`], [`context`], [`hooks`], [`snapshots`], [`sessions`], [`compaction`], [`branches`], [`chat`], [`files`], [`backups`], [`store_check`]: the methods of the
//!   wire, one module a noun.
//! - [`observer`]: everything that follows a durable record. [`open`]: puts the parts of a home together.
//!
//! A function that implements a method takes the core and the params of the method and returns its result, so that
//! `rpc` registers it as it is.
//!
//! **Invariants**: nothing here knows the wire's errors or framing; a session changes in one of the three forms of `change`.

pub(crate) mod backups;
pub(crate) mod branches;
mod build_request;
mod cache;
mod change;
pub(crate) mod chat;
mod chat_history;
pub(crate) mod compaction;
pub(crate) mod context;
pub(crate) mod core;
mod counts;
mod drafts;
pub(crate) mod error;
pub(crate) mod files;
mod hook_runs;
pub(crate) mod hooks;
pub(crate) mod loops;
mod model_limits;
mod model_speed;
pub(crate) mod models;
pub(crate) mod observer;
pub(crate) mod open;
mod other_branches;
mod partial;
mod path;
mod placement;
mod previews;
pub(crate) mod put_back;
pub(crate) mod running;
mod schedule;
pub(crate) mod sessions;
pub(crate) mod snapshots;
pub(crate) mod store_check;
mod store_work;
mod turn_feed;
mod uploads;
mod writes;

#[cfg(test)]
pub(crate) mod testing;
