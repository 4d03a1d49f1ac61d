//! The interface to a model server, in words of the domain.
//!
//! Must not know HTTP or any server's JSON.

use std::future::Future;
use std::pin::Pin;

use super::chat::{ChatItem, ChatRequest, SamplingNames, WarmRequest};
use super::error::{CallTarget, ModelError, ServerAdvice};
use super::info::{ModelInfo, Version, canonical_name};
use super::listed::{ListedModel, RunningModel};

/// The future of a call to a model server; boxed, so that the traits can be used as trait objects.
pub(crate) type BackendFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, ModelError>> + Send + 'a>>;

/// Maximum number of attempts to send a request, unless the caller allows fewer.
pub(super) const MAX_ATTEMPTS: u32 = 3;

/// A model server.
///
/// **Cancel safety**: every future may be dropped, which closes the connection and makes the server stop.
pub(crate) trait Backend: Send + Sync {
    /// Returns the address of the server.
    fn host(&self) -> String;

    /// Returns what a person types when this kind of server fails.
    fn advice(&self) -> &'static ServerAdvice;

    /// Returns the server, or a model on it, for an error.
    fn target(&self, model: Option<&str>) -> CallTarget {
        let (host, model) = (self.host(), model.map(str::to_owned));
        CallTarget { host, model, advice: self.advice() }
    }

    /// Returns the kind of the server for people, as far as it is known.
    fn kind(&self) -> &'static str;

    /// Finds out the kind of the server if it is not known, so that what depends on it is right.
    ///
    /// **Errors**: the server does not say it.
    fn identify(&self) -> BackendFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Returns whether the kind of the server is known, so that [`Backend::identify`] has nothing to do.
    fn is_identified(&self) -> bool {
        true
    }

    /// Returns the options for choosing the next token that the server has.
    fn sampling(&self) -> &'static SamplingNames;

    /// Asks the server for its version; empty if it has none. Tries once, because status reports must not wait for a server that is not there.
    fn version(&self) -> BackendFuture<'_, Version>;

    /// Returns whether a model in the server's lists is the one that the server knows by a name.
    fn is_named(&self, listed: &str, name: &str) -> bool {
        listed == name || (self.names_have_tags() && canonical_name(listed) == canonical_name(name))
    }

    /// Returns whether a name can lack its tag, as at Ollama.
    fn names_have_tags(&self) -> bool {
        false
    }

    /// Lists the models that the server has.
    fn list(&self, max_attempts: u32) -> BackendFuture<'_, Vec<ListedModel>>;

    /// Describes a model, without its digest.
    fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo>;

    /// Describes a model with its digest.
    fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo>;

    /// Returns the verbose description of a model, which includes its vocabulary, as the server's JSON; `None` if the
    /// server has none. Used for models with [`super::info::CountingSource::Ollama`].
    fn vocabulary<'a>(&'a self, _model: &'a str) -> BackendFuture<'a, Option<Vec<u8>>> {
        Box::pin(async { Ok(None) })
    }

    /// Returns whether the server has every model that it lists in its memory all the time, so that it need not be asked.
    fn holds_models(&self) -> bool {
        false
    }

    /// Lists the models in the server's memory. May time out while the server loads a model.
    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>>;

    /// Loads a model; Ollama unloads it again if `keep_alive` is zero. A server that holds its models all the time does
    /// nothing.
    fn warm<'a>(&'a self, _request: &'a WarmRequest) -> BackendFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Starts an answer. The first item of the stream waits until the model is loaded and the prompt is read.
    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>>;

    /// Renders the prompt of a request without answering it; `None` if the server cannot.
    fn render<'a>(&'a self, _request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// Counts the prompt of a request without answering it; `None` if the server cannot.
    fn count<'a>(&'a self, _request: &'a ChatRequest) -> BackendFuture<'a, Option<u64>> {
        Box::pin(async { Ok(None) })
    }

    /// Counts the tokens of a text, without those that begin or end a prompt; `None` if the server cannot.
    fn count_text<'a>(&'a self, _model: &'a str, _text: &'a str) -> BackendFuture<'a, Option<u64>> {
        Box::pin(async { Ok(None) })
    }

    /// Releases memory and connections that have been idle for a while; returns whether there were any.
    fn release_idle(&self) -> bool;
}

/// A streamed answer.
///
/// **Shape**: deltas, then exactly one end or one error; nothing after that.
pub(crate) trait AnswerStream: Send {
    /// Returns the next item. Cancel safe: dropping the future loses no item.
    fn next(&mut self) -> BackendFuture<'_, ChatItem>;
}
