//! Connections to the daemon: find its socket, check who owns it, start the daemon if needed, call it.
//!
//! - `connector`: decides how a connection is made. `probe`: one attempt at the sockets of an address.
//! - `hello`: the question whose home a daemon serves.
//! - `autostart`: starts the daemon.
//! - `blocking`: the client without a runtime, with its `messages`. `async_client`: the client for tokio programs.
//! - `reconnecting`, `event_feed`, `followed_turn`: the same over restarts of the daemon, for programs that run long.
//!
//! **Invariants**: no wait without a deadline; a socket that belongs to another user or another home is never used.

mod async_client;
mod autostart;
mod blocking;
mod connector;
mod event_feed;
mod followed_turn;
mod hello;
mod messages;
mod parts;
mod probe;
mod reconnecting;

pub use async_client::{AsyncClient, EventStream};
pub use blocking::{BlockingClient, BlockingEvents};
pub use connector::Connector;
pub use event_feed::EventFeed;
pub(crate) use followed_turn::ShownTurn;
pub use followed_turn::{FollowedTurn, TurnStep};
pub(crate) use messages::{decode, encode};
pub(crate) use probe::means_not_running;
pub use reconnecting::ReconnectingClient;
