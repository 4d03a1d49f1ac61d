//! The daemon: session logs, catalog, context engine and the socket server.
//!
//! In reading order, each module using only those after it:
//!
//! - `daemon`: builds every part, runs them, takes them down in reverse.
//! - `server`: socket, lock and framing; `rpc`: methods and errors of the wire.
//! - `app`: what combines several parts: recording, building, importing, retention.
//! - `context`: what a model is sent; `catalog`: the derived database; `tokens`: counting.
//! - `model`: the connection to the model server.
//! - `goal`: what a session works towards, as a fold.
//! - `loops`: what repeats in a session; `env`: which variables tools may see.
//! - `projects`: what is remembered of a project; `session`: the log and everything folded from it.
//! - `events`, `config`, `fsutil`, `clock`, `shutdown`: what all of them stand on.
//!
//! `ARCHITECTURE.md` beside this crate says why; `FORMAT.md` says what is on disk.

mod app;
mod catalog;
mod causes;
mod clock;
mod config;
mod context;
mod daemon;
mod env;
mod events;
mod flags;
mod fsutil;
mod goal;
mod loops;
#[doc(hidden)]
pub mod measured;
mod model;
mod projects;
mod rpc;
mod server;
mod session;
mod shutdown;
mod tokens;

pub use daemon::run;
pub use flags::Flags;
