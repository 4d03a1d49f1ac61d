//! The methods of the wire: what they need, and the one place where they are registered.
//!
//! Decoding, span, panic barrier and timing are written here once, so a handler is only its own work.
//!
//! **Invariants**: what is registered is what the protocol lists; a handler never sees a frame or a connection.

mod barrier;
mod decode;
mod discover;
mod domain;
pub(crate) mod error;
mod methods;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::{Extensions, Methods, RpcModule};
use ollm_protocol::Method;
use ollm_protocol::methods::daemon::{DaemonReloadResult, DaemonStatusResult, Limits};
use tracing::{Instrument, field};

use crate::app::Core;
use crate::events::EventRing;
use crate::shutdown::Tasks;
use error::RpcError;

/// Everything that handlers work with.
pub(crate) struct Handles {
    /// Where events are published and followed.
    pub events: EventRing,
    /// Ends the daemon, and keeps writes running when their client leaves.
    pub shutdown: Tasks,
    /// Sessions, catalog and all that works on them.
    pub core: Arc<Core>,
    /// The process as a whole.
    pub control: Arc<dyn DaemonControl>,
    /// What one connection may do, as `daemon.hello` tells it.
    pub limits: Limits,
}

/// An answer that takes time.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, RpcError>> + Send + 'a>>;

/// The process as a whole, implemented where everything is composed.
pub(crate) trait DaemonControl: Send + Sync {
    /// How the daemon is.
    fn status(&self) -> Answer<'_, DaemonStatusResult>;

    /// Reads the configuration again.
    fn reload(&self) -> Answer<'_, DaemonReloadResult>;
}

/// Which call a handler works on, for the log; the server puts it into the call's extensions.
#[derive(Clone, Debug)]
pub(crate) struct CallId {
    /// The connection, counted from 1.
    pub connection: usize,
    /// The id that the client gave it, as JSON; `null` for a notification.
    pub id: Arc<str>,
}

/// Builds the methods of this daemon.
pub(crate) fn methods(handles: Arc<Handles>) -> Methods {
    let mut registry = Registry::new(handles);
    methods::register(&mut registry);
    registry.module.into()
}

/// Collects one handler a method.
pub(crate) struct Registry {
    module: RpcModule<Handles>,
}

impl Registry {
    fn new(handles: Arc<Handles>) -> Self {
        Self { module: RpcModule::from_arc(handles) }
    }

    /// Registers the handler of a method that answers once.
    pub(crate) fn register<M, H, F>(&mut self, handler: H)
    where
        M: Method,
        H: Fn(Arc<Handles>, M::Params) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<M::Result, RpcError>> + Send + 'static,
    {
        let callback = move |params: jsonrpsee::types::Params<'static>,
                             handles: Arc<Handles>,
                             extensions: Extensions| {
            let handler = handler.clone();
            let span = call_span(M::NAME, &extensions);
            async move {
                let started = Instant::now();
                let decoded = decode::decode::<M::Params>(M::NAME, &params);
                drop(params);
                let result = match decoded {
                    Ok(params) => {
                        let work = handler(Arc::clone(&handles), params);
                        barrier::run(&handles.shutdown, M::CLASS, work.in_current_span()).await
                    }
                    Err(error) => Err(error),
                };
                log_end(started, result.as_ref().err());
                result.map_err(ErrorObjectOwned::from)
            }
            .instrument(span)
        };
        self.module
            .register_async_method(M::NAME, callback)
            .expect("names in the list of methods are unique and registered once");
    }

    /// The module itself, for a subscription.
    pub(crate) fn module(&mut self) -> &mut RpcModule<Handles> {
        &mut self.module
    }
}

/// The span of one call; a handler that learns the session records it.
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
    // The message of an error may quote what the client sent, so only its kind is logged.
    match error {
        None => tracing::debug!(elapsed_us, "answered"),
        Some(error) => tracing::debug!(elapsed_us, kind = error.kind.as_str(), "refused"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
