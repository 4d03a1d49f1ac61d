//! Clients of ollmd: for Rust programs, and for people.
//!
//! - [`Address`]: where the daemon of a home listens; [`Connector`]: gets a connection, starting the daemon
//!   when it is not there.
//! - [`AsyncClient`]: the typed client for programs; [`BlockingClient`]: one call at a time without a runtime.
//! - [`ClientError`]: what can go wrong, with the next command to type.
//! - [`run`]: the whole of `ollmctl`.
//!
//! Thin on purpose: no state, no session file, no model server. Everything is asked over the socket.
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

mod address;
mod autostart;
mod cli;
mod commands;
mod connection;
mod error;
mod exit;
mod render;
mod resolve;
#[cfg(test)]
mod testing;

pub use address::{Address, Environment};
pub use commands::run;
pub use connection::{
    AsyncClient, BlockingClient, ChatEvents, ChatStream, Connector, EventStream, Events,
};
pub use error::{Attempt, AttemptCause, ClientError, RpcFailure};
pub use exit::Exit;
