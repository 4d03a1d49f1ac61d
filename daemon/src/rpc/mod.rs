//! The methods of the wire: decoding, span, panic barrier, timing and error replies, written once for all of them.
//!
//! `methods` registers a function for each method: a function of `app` if no type is converted, else a handler.
//! `streams` contains the handlers of subscriptions.
//!
//! **Invariants**: exactly the methods that the protocol lists are registered; no function sees a frame or a
//! connection.

mod barrier;
mod decode;
mod discover;
pub(crate) mod error;
mod methods;
mod streams;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use jsonrpsee::types::{ErrorObjectOwned, Params};
use jsonrpsee::{Extensions, Methods, RpcModule};
use ollm_protocol::limits::{MAX_RESULT_BYTES, shorten_value};
use ollm_protocol::methods::daemon::{
    DaemonDoctorResult, DaemonReloadResult, DaemonStatusResult, Limits,
};
use ollm_protocol::{Life, Method};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, field};

use self::barrier::RunningHandler;
use self::error::RpcError;
use crate::app::core::{Core, blocking};
use crate::app::error::AppError;
use crate::shutdown::Tasks;

/// The handles that all methods use.
pub(crate) struct Handles {
    pub(crate) core: Arc<Core>,
    /// Set if the next daemon follows this one, which the last item of each subscription says.
    pub(crate) is_restarting: AtomicBool,
    /// Ends the daemon, and keeps calls that complete running when their client leaves.
    pub(crate) shutdown: Tasks,
    pub(crate) control: Arc<dyn DaemonControl>,
    /// The id of the home, as `daemon.hello` reports it.
    pub(crate) home_id: String,
    /// The limits of a connection, as `daemon.hello` reports them.
    pub(crate) limits: Limits,
}

/// A boxed future of a reply.
pub(crate) type ReplyFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, RpcError>> + Send + 'a>>;

/// The process as a whole, implemented by the composition root.
pub(crate) trait DaemonControl: Send + Sync {
    /// Returns the status of all parts.
    fn status(&self) -> ReplyFuture<'_, DaemonStatusResult>;

    /// Examines the process and its machine.
    fn doctor(&self) -> ReplyFuture<'_, DaemonDoctorResult>;

    /// Reads the configuration again.
    fn reload(&self) -> ReplyFuture<'_, DaemonReloadResult>;
}

/// Identifies a call in the log; the server puts it into the call's extensions.
#[derive(Clone, Debug)]
pub(crate) struct CallId {
    /// The connection, counted from 1.
    pub(crate) connection: usize,
    /// The request id as JSON; `null` for a notification.
    pub(crate) id: Arc<str>,
}

/// A function of `app` that implements a method and blocks on the disk.
type BlockingFunction<M> =
    fn(&Arc<Core>, <M as Method>::Params) -> Result<<M as Method>::Result, AppError>;

/// Builds the methods of this daemon.
pub(crate) fn methods(handles: Arc<Handles>) -> Methods {
    let mut registry = Registry { module: RpcModule::from_arc(handles) };
    methods::register(&mut registry);
    registry.module.into()
}

/// Decodes the params of a call, and returns its work, which has not begun.
type Handler = dyn Fn(
        &Arc<Handles>,
        &Params<'_>,
        &CancellationToken,
    ) -> Result<RunningHandler<Box<RawValue>>, RpcError>
    + Send
    + Sync;

/// Collects one function for each method.
///
/// Each method has its own decoding, future and result. Everything around them is compiled once, for boxed handlers.
struct Registry {
    module: RpcModule<Handles>,
}

impl Registry {
    /// Registers an asynchronous function of `app`.
    fn app<M, F, R>(&mut self, function: F)
    where
        M: Method,
        F: Fn(Arc<Core>, M::Params) -> R + Copy + Send + Sync + 'static,
        R: Future<Output = Result<M::Result, AppError>> + Send + 'static,
    {
        self.register::<M, _, _>(move |handles, params| async move {
            result_json(&function(Arc::clone(&handles.core), params).await?)
        });
    }

    /// Registers an asynchronous function of `app` that completes, but may give up while it can when its client leaves.
    fn app_until_left<M, F, R>(&mut self, function: F)
    where
        M: Method,
        F: Fn(Arc<Core>, M::Params, CancellationToken) -> R + Copy + Send + Sync + 'static,
        R: Future<Output = Result<M::Result, AppError>> + Send + 'static,
    {
        self.register_with::<M, _, _>(move |handles, params, left| async move {
            result_json(&function(Arc::clone(&handles.core), params, left).await?)
        });
    }

    /// Registers an asynchronous function of `app` whose result is a large page, which becomes JSON on a blocking thread.
    fn app_page<M, F, R>(&mut self, function: F)
    where
        M: Method,
        F: Fn(Arc<Core>, M::Params) -> R + Copy + Send + Sync + 'static,
        R: Future<Output = Result<M::Result, AppError>> + Send + 'static,
    {
        self.register::<M, _, _>(move |handles, params| async move {
            let page = function(Arc::clone(&handles.core), params).await?;
            blocking(&handles.core, move |_| Ok(result_json(&page))).await?
        });
    }

    /// Registers a function of `app` that blocks on the disk.
    ///
    /// Its result becomes JSON on the blocking thread too. Making a page of megabytes takes long, and the few threads
    /// that serve all calls would see no timer and no other client meanwhile.
    fn app_blocking<M: Method>(&mut self, function: BlockingFunction<M>) {
        self.register::<M, _, _>(move |handles, params| {
            let work = move |core: &Arc<Core>| Ok(result_json(&function(core, params)?));
            flatten(blocking(&handles.core, work))
        });
    }

    /// Registers a handler of this layer.
    fn handler<M, H, F>(&mut self, handler: H)
    where
        M: Method,
        H: Fn(Arc<Handles>, M::Params) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<M::Result, RpcError>> + Send + 'static,
    {
        self.register::<M, _, _>(move |handles, params| {
            let result = handler(handles, params);
            async move { result_json(&result.await?) }
        });
    }

    /// Registers a handler whose reply becomes the JSON of the method's result.
    fn register<M, H, F>(&mut self, handler: H)
    where
        M: Method,
        H: Fn(Arc<Handles>, M::Params) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Box<RawValue>, RpcError>> + Send + 'static,
    {
        self.register_with::<M, _, _>(move |handles, params, _| handler(handles, params));
    }

    /// Registers a handler that also gets a token, which is canceled when the client leaves.
    fn register_with<M, H, F>(&mut self, handler: H)
    where
        M: Method,
        H: Fn(Arc<Handles>, M::Params, CancellationToken) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Box<RawValue>, RpcError>> + Send + 'static,
    {
        let handler =
            move |handles: &Arc<Handles>, params: &Params<'_>, left: &CancellationToken| {
                let params = decode::decode::<M::Params>(M::NAME, params)?;
                let work: RunningHandler<_> =
                    Box::pin(handler(Arc::clone(handles), params, left.clone()));
                Ok(work)
            };
        self.insert(M::NAME, M::LIFE, Arc::new(handler));
    }

    /// Registers a method with its span, panic barrier, timing and error replies.
    fn insert(&mut self, name: &'static str, life: Life, handler: Arc<Handler>) {
        let callback = move |params: Params<'static>,
                             handles: Arc<Handles>,
                             extensions: Extensions| {
            let handler = Arc::clone(&handler);
            let span = call_span(name, &extensions);
            async move {
                let started = Instant::now();
                // This future is dropped when the client leaves, also if the work continues.
                let left = CancellationToken::new();
                let work = handler(&handles, &params, &left);
                let _left = left.drop_guard();
                drop(params);
                let result = match work {
                    Ok(work) => barrier::run(&handles.shutdown, life, work.in_current_span()).await,
                    Err(error) => Err(error),
                };
                log_end(started, result.as_ref().err());
                result.map_err(ErrorObjectOwned::from)
            }
            .instrument(span)
        };
        self.module
            .register_async_method(name, callback)
            .expect("names in the list of methods are unique and registered once");
    }
}

/// Returns the reply that work on a blocking thread made.
async fn flatten(
    work: impl Future<Output = Result<Result<Box<RawValue>, RpcError>, AppError>>,
) -> Result<Box<RawValue>, RpcError> {
    work.await?
}

/// Returns the JSON of a result, as [`fitting`] shortens it.
fn result_json(result: &impl Serialize) -> Result<Box<RawValue>, RpcError> {
    fitting(to_raw_value(result))
}

/// Returns the JSON of a result. One that is larger than a response has shortened texts and lists, and says so in
/// `shortened`: logs, imports and model servers contain texts and lists of any size.
///
/// Pages and parts are smaller, and a context is refused before, so that no client sends a shortened one to a model.
fn fitting(json: serde_json::Result<Box<RawValue>>) -> Result<Box<RawValue>, RpcError> {
    let json = json.map_err(failed_json)?;
    if json.get().len() <= MAX_RESULT_BYTES {
        return Ok(json);
    }
    let mut value = serde_json::from_str::<Value>(json.get()).map_err(failed_json)?;
    drop(json);
    shorten_value(&mut value, MAX_RESULT_BYTES - SHORTENED_BYTES);
    if let Value::Object(fields) = &mut value {
        fields.insert("shortened".to_owned(), Value::Bool(true));
    }
    to_raw_value(&value).map_err(failed_json)
}

/// The bytes of `"shortened":true,` in a result.
const SHORTENED_BYTES: usize = 32;

fn failed_json(error: serde_json::Error) -> RpcError {
    tracing::error!(%error, "a result cannot become JSON");
    RpcError::internal()
}

/// Returns the span of a call.
fn call_span(method: &'static str, extensions: &Extensions) -> tracing::Span {
    let call = extensions.get::<CallId>();
    tracing::debug_span!(
        "call",
        method,
        connection = call.map(|call| call.connection),
        id = call.map(|call| &*call.id),
        session = field::Empty,
    )
}

fn log_end(started: Instant, error: Option<&RpcError>) {
    let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    // Messages of errors may quote a client, so only the kind is logged.
    match error {
        None => tracing::debug!(elapsed_us, "answered"),
        Some(error) => tracing::debug!(elapsed_us, kind = error.kind.as_str(), "refused"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
