//! The interface to a model server, in words of the domain.
//!
//! Must not know HTTP or any server's JSON.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::chat::{ChatItem, ChatRequest, WarmRequest};
use super::error::ModelError;
use super::info::{ListedModel, ModelInfo, RunningModel, Version};

/// An answer that takes time.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ModelError>> + Send + 'a>>;

/// A model server.
///
/// **Cancel safety**: every answer may be dropped; the connection is closed and the server gives up.
pub(crate) trait Backend: Send + Sync {
    /// Where it is, as a person reads it.
    fn host(&self) -> String;

    /// Which version it is; remembered until the server was away.
    fn version(&self) -> Answer<'_, Version>;

    /// The models that it has.
    fn list(&self) -> Answer<'_, Vec<ListedModel>>;

    /// One model.
    fn show<'a>(&'a self, model: &'a str) -> Answer<'a, ModelInfo>;

    /// Everything that the server says of a model, vocabulary included, as the JSON that it sent.
    fn vocabulary<'a>(&'a self, model: &'a str) -> Answer<'a, Vec<u8>>;

    /// The models that are in its memory. May be refused in time while one is being loaded.
    fn running(&self) -> Answer<'_, Vec<RunningModel>>;

    /// Loads a model, or with a keep-alive of zero takes it out of memory.
    fn warm<'a>(&'a self, request: &'a WarmRequest) -> Answer<'a, ()>;

    /// Begins an answer. What comes before its first line is waited for in the stream's first item.
    fn stream<'a>(&'a self, request: &'a ChatRequest) -> Answer<'a, Box<dyn ChatStream>>;

    /// The prompt as the server would give it to the model; `None` where the server cannot tell.
    fn render<'a>(&'a self, request: &'a ChatRequest) -> Answer<'a, Option<String>>;

    /// Gives memory and connections back that were not used for a while; true when there was something to give.
    fn rest(&self) -> bool;
}

/// An answer as it comes.
///
/// **Shape**: deltas, then exactly one end or one error; nothing after that.
pub(crate) trait ChatStream: Send {
    /// The next item. Cancel safe: an item that was not returned comes with the next call.
    fn next(&mut self) -> Answer<'_, ChatItem>;
}

/// How long each phase of a call may take. There is no limit on a whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Until a connection stands.
    pub connect: Duration,
    /// From the request to the first line of an answer; loading a model and reading the prompt are silent.
    pub first_token: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
    /// For the whole of a small answer, such as the list of models.
    pub answer: Duration,
    /// For a question that must not hold anybody up: the version for the status, and the running models, for
    /// which servers wait while a model is being loaded.
    pub probe: Duration,
}

impl Timeouts {
    /// Small answers come from a server's memory or a few files: whoever takes longer is stuck.
    const ANSWER: Duration = Duration::from_secs(30);
    /// A server on this machine answers within a millisecond; across a slow network within half a second.
    const PROBE: Duration = Duration::from_secs(2);

    /// With the limits that are not configured.
    pub(crate) const fn new(connect: Duration, first_token: Duration, idle: Duration) -> Self {
        Self { connect, first_token, idle, answer: Self::ANSWER, probe: Self::PROBE }
    }
}
