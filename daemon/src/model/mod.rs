//! The connection to a model server: its models, their properties, and streamed answers.
//!
//! [`Models`] is the handle that the rest of the daemon uses: the servers by name, and one queue and one window per model.
//! [`server::Server`] is one of them with cached reports. [`backend::Backend`] is a model server in words of the domain,
//! which says what it can do; `ollama` implements it over HTTP, and `kind` alone knows which kinds there are.
//! Must not know sessions, contexts or prompts.
//!
//! **Invariants**: only the server's own end marker is success; nothing is retried after the first byte of an
//! answer; no error contains a secret or conversation text.

mod address;
mod auto;
mod backend;
mod chat;
mod error;
mod error_response;
mod http;
mod identify;
mod info;
mod kind;
mod line_stream;
mod listed;
mod models;
mod ollama;
mod openai;
mod queue;
mod server;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use address::{DEFAULT_SERVER, ModelAddress, ModelNames, at_server};
#[cfg(test)]
pub(crate) use backend::BackendFuture;
pub(crate) use backend::{AnswerStream, Backend};
pub(crate) use chat::{
    AnswerCall, ChatDelta, ChatEnd, ChatItem, ChatRequest, DoneReason, LengthCause, PromptCount,
    Sampling, ThinkMode,
};
#[cfg(test)]
pub(crate) use chat::{SamplingNames, WarmRequest};
#[cfg(test)]
pub(crate) use error::CallTarget;
pub(crate) use error::{CallPhase, Capability, ModelError, ServerAdvice};
pub(crate) use http::{HttpAddress, Timeouts};
pub(crate) use info::{CountingSource, KvGeometry, ModelInfo, Version};
pub(crate) use listed::{ListedDigest, ListedModel, RunningModel};
pub(crate) use models::{ModelSettings, Models};
#[cfg(test)]
pub(crate) use ollama::{ADVICE, SAMPLING};
pub(crate) use queue::{Priority, Ticket};
pub(crate) use server::{Server, ServerSettings, ServerStatus};
pub(crate) use window::{advise, cap_num_predict, clamp_window};
