//! The daemon: session logs, catalog, context engine and the socket server.
//!
//! In reading order, each module using only those after it:
//!
//! - `daemon`: builds every part, runs them, and takes them down in reverse order.
//! - `server`: socket, lock and framing; `rpc`: the methods and errors of the wire.
//! - `app`: the application, which combines the parts below: recording, building contexts, compaction, chat turns.
//! - `context`: plans what a model is sent; `catalog`: the derived database; `loops`: loop detection; `env`: environment
//!   variables of tools; `projects`: files of projects; `snapshot`: files of snapshots; `files`: the files of workspaces; `hooks`: programs of the
//!   user that run on some occasions; `events`: the event ring.
//! - `session`: the logs and their folds; `backup`: the shape of backups.
//! - `goal`: the fold of goals; `facts`: the fold of what the user said that still holds; `tokens`: counting; `model`: the connection to the model server.
//! - `config`: the settings; `shutdown`: the tasks; `fsutil`, `clock`: files and time;
//!   `nesting`: the limit of nested JSON.
//!
//! `ARCHITECTURE.md` beside this crate explains the design, `FORMAT.md` the files.

mod app;
mod backup;
#[doc(hidden)]
pub mod bench_api;
mod catalog;
mod clock;
mod config;
mod context;
mod daemon;
mod env;
mod error_chain;
mod events;
mod facts;
mod files;
mod flags;
mod fsutil;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz_api;
mod goal;
mod hooks;
mod languages;
mod loops;
mod model;
mod nesting;
mod projects;
mod put_back;
mod rpc;
mod server;
mod session;
mod shell;
mod shutdown;
#[cfg(test)]
mod simulator;
mod snapshot;
mod tokens;

pub use daemon::run;
pub use flags::Flags;
