//! The connection to a model server: its models, their properties, and streamed answers.
//!
//! [`Models`] is the handle that the rest of the daemon uses: the server in use, one queue and one window per model,
//! and cached reports of the server. [`backend::Backend`] is a model server in words of the domain, and `ollama`
//! implements it over HTTP.
//! Must not know sessions, contexts or prompts.
//!
//! **Invariants**: only the server's own end marker is success; nothing is retried after the first byte of an
//! answer; no error contains a secret or conversation text.

mod backend;
mod chat;
mod error;
mod info;
mod listed;
mod models;
mod ollama;
mod queue;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use backend::AnswerStream;
#[cfg(test)]
pub(crate) use backend::{Backend, BackendFuture};
#[cfg(test)]
pub(crate) use chat::WarmRequest;
pub(crate) use chat::{
    AnswerCall, ChatDelta, ChatEnd, ChatItem, ChatRequest, DoneReason, LengthCause, PromptCount,
    Sampling, ThinkMode,
};
#[cfg(test)]
pub(crate) use error::CallTarget;
pub(crate) use error::{CallPhase, Capability, ModelError, ServerAdvice};
pub(crate) use info::{KvGeometry, ModelInfo, Version, canonical_name};
pub(crate) use listed::{ListedDigest, ListedModel, RunningModel};
pub(crate) use models::{ModelSettings, Models, ServerStatus};
#[cfg(test)]
pub(crate) use ollama::ADVICE;
pub(crate) use ollama::Timeouts;
pub(crate) use queue::{Priority, Ticket};
pub(crate) use window::{advise, cap_num_predict, clamp_window};
