//! Connections to the daemon: find its socket, check who owns it, start the daemon if needed, call it.
//!
//! - `connector`: decides how a connection is made. `probe`: one attempt at the sockets of an address.
//! - `hello`: the question whose home a daemon serves.
//! - `autostart`: starts the daemon.
//! - `blocking`: the client without a runtime, with its `messages`. `async_client`: the client for tokio programs.
//!
//! **Invariants**: no wait without a deadline; a socket that belongs to another user or another home is never used.

mod async_client;
mod autostart;
mod blocking;
mod connector;
mod hello;
mod messages;
mod parts;
mod probe;

pub use async_client::{AsyncClient, EventStream};
pub(crate) use blocking::decode;
pub use blocking::{BlockingClient, BlockingEvents};
pub use connector::Connector;
pub(crate) use probe::means_not_running;
