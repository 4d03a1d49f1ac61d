//! The application layer: combines sessions, catalog, contexts and models into recorded messages, built contexts,
//! compactions and chat turns.
//!
//! From the ground up:
//!
//! - [`error`]; `path`, `cache`, `chat_history`, `counts`, `running`, `schedule`, `uploads`, `previews`, `model_limits`, `model_speed`: state
//!   without behavior across modules; [`core`]: the handles over all of it.
//! - `drafts`, `writes`: records before they are written; `partial`: answers that are being written; [`put_back`]: files
//!   that follow a move of the leaf; [`loops`]: loop detection.
//! - [`models`], [`context`], [`sessions`], [`snapshots`], [`compaction`], [`branches`], [`chat`], [`files`]: the methods of the
//!   wire, one module a noun.
//! - [`observer`]: everything that follows a durable record. [`open`]: puts the parts of a home together.
//!
//! A function that implements a method takes the core and the params of the method and returns its result, so that
//! `rpc` registers it as it is.
//!
//! **Invariants**: nothing here knows the wire's errors or framing; every record is written by [`core::Core::append`]
//! and its sibling, or through the session store directly by code that may block.

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
pub(crate) mod loops;
mod model_limits;
mod model_speed;
pub(crate) mod models;
pub(crate) mod observer;
pub(crate) mod open;
mod other_branches;
mod partial;
mod path;
mod previews;
pub(crate) mod put_back;
mod running;
mod schedule;
pub(crate) mod sessions;
pub(crate) mod snapshots;
mod uploads;
mod writes;

#[cfg(test)]
pub(crate) mod testing;
