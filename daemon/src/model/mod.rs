//! The connection to a model server: its models, their properties, and streamed answers.
//!
//! [`Models`] is the handle that the rest of the daemon uses: the server in use, one queue and one window per model,
//! and cached reports of the server. `ollama` calls the server over HTTP.
//! Must not know sessions, contexts or prompts.
//!
//! **Invariants**: only the server's own end marker is success; nothing is retried after the first byte of an
//! answer; no error contains a secret or conversation text.

mod chat;
mod error;
mod host;
mod info;
mod models;
mod ollama;
mod queue;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use chat::{
    AnswerCall, ChatDelta, ChatEnd, ChatItem, ChatRequest, DoneReason, LengthCause, PromptCount,
    Sampling, ThinkMode,
};
pub(crate) use error::{CallPhase, CallTarget, Capability, ModelError};
pub(crate) use info::{KvGeometry, ModelInfo, canonical_name};
pub(crate) use models::{ModelSettings, Models, ServerStatus};
pub(crate) use ollama::{AnswerStream, ListedModel, RunningModel, Timeouts};
pub(crate) use queue::{Priority, Ticket};
pub(crate) use window::{advise, cap_num_predict, clamp_window};
