//! An agent of ACP, the Agent Client Protocol: editors talk to it over stdin and stdout, and it talks to the daemon.
//!
//! - `wire`: the lines of the editor. `schema`: the messages. `version`: what differs between the versions of the protocol.
//!   They know no session.
//! - `agent`: the requests of the editor, and what the daemon reports while none runs. `acknowledgment`: the reply to a prompt
//!   that is recorded. `held`: the prompts that the daemon has not accepted yet.
//! - `sessions`: the sessions that the editor has open. `requests`: how it opens, lists and removes them. `settings`: their
//!   modes, models and thinking. `history`: a session as updates.
//! - `prompt`: the content of a prompt as a message. `turn`: the answer of a model. `commands`: prompts that begin with a slash.
//! - `tools`: the MCP servers of the editor. `permissions`: who decides whether a tool runs.
//! - `updates`: what the daemon reports, in the words of the editor. Pure.
//!
//! A session of the editor is a session of the daemon, with the same id and the working directory as its project.
//!
//! **Invariants**: nothing but messages is written to stdout; no wait without a deadline, except for the editor, for a
//! person, and for the answer of a model, whose turn has its own.

mod acknowledgment;
mod agent;
mod cancel;
mod commands;
mod held;
mod history;
mod permissions;
mod prompt;
mod requests;
mod schema;
mod sessions;
mod settings;
mod tools;
mod turn;
mod updates;
mod version;
mod wire;

pub(crate) use agent::{AgentSettings, serve};
