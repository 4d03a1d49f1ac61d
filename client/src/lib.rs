//! The clients of ollmd: two for Rust programs, and the command line `ollmctl`.
//!
//! - [`Address`]: the location of a home's daemon. [`Connector`]: connects to it, starting it if it does not run.
//! - [`AsyncClient`]: the typed client for tokio programs. [`BlockingClient`]: one call at a time without a runtime.
//! - [`ReconnectingClient`], [`EventFeed`], [`FollowedTurn`]: calls, events and chat turns over restarts of the daemon.
//! - [`ClientError`]: a failed call, with the command that may help.
//! - [`run`]: all of `ollmctl`.
//!
//! The crate keeps no state and opens no session file and no connection to the model server: the daemon does all that.
//!
//! ```no_run
//! use ollm_client::{Address, AsyncClient, Connector, Environment};
//! use ollm_protocol::method::{SessionCreate, SessionRecord};
//! use ollm_protocol::methods::session::{SessionCreateParams, SessionRecordParams};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let environment = Environment::read();
//! let connector = Connector::new(Address::new(None, None, &environment)?, &environment);
//! let client = AsyncClient::connect(connector).await?;
//! let created = client.call::<SessionCreate>(&SessionCreateParams::default()).await?;
//! let params: SessionRecordParams = serde_json::from_value(serde_json::json!({
//!     "sessionId": created.session.session_id,
//!     "message": { "role": "user", "content": "hello" },
//! }))?;
//! let recorded = client.call::<SessionRecord>(&params).await?;
//! assert_eq!(recorded.usage.message_count, 1);
//! # Ok(())
//! # }
//! ```

mod acp;
mod address;
mod args;
mod background;
mod child_process;
mod cli;
mod command_context;
mod command_error;
mod commands;
mod completion;
mod connection;
mod error;
mod interrupts;
mod mcp;
mod model_server;
mod own_program;
mod project;
mod regular_file;
mod render;
mod service;
mod session_lookup;
#[cfg(test)]
mod testing;
mod tracked_dir;

pub use address::{Address, Environment};
pub use commands::run;
pub use connection::{
    AsyncClient, BlockingClient, BlockingEvents, Connector, EventFeed, EventStream, FollowedTurn,
    ReconnectingClient, TurnStep,
};
pub use error::{Attempt, AttemptCause, ClientError, Exit, RpcFailure};
