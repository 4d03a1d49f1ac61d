//! The socket: one lock, one listener, a bounded number of connections.
//!
//! In the order of a start: [`lock`] makes this the only daemon of its home, [`listener`] finds an address and
//! binds it, [`readiness`] tells whoever started us, [`run`] serves until the daemon stops.
//!
//! **Invariants**: nothing listens without the lock; a socket file is removed only if we made it and it is
//! still ours; no connection is served for another user.

mod accept;
mod address;
mod connection;
pub(crate) mod listener;
pub(crate) mod lock;
pub(crate) mod readiness;
mod service;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jsonrpsee::Methods;
use ollm_protocol::frame::MAX_FRAME_BYTES;
use ollm_protocol::methods::daemon::Limits as CallLimits;
use tokio::task::JoinSet;

use crate::shutdown::Tasks;
use listener::Listener;
use service::SubscriptionIds;

/// What the server allows.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// What one connection may do, as `daemon.hello` tells it.
    pub call: CallLimits,
    /// Request bytes that the running calls of one connection may hold before it reads no further.
    pub held_bytes: usize,
    /// The most connections at once.
    pub connections: usize,
    /// How long a client for which something waits may take nothing at all before it is given up.
    pub stall: Duration,
    /// How long calls in flight may take when the daemon stops.
    pub drain: Duration,
}

impl Default for Limits {
    /// 256 calls keep a group commit full and cost nothing while idle; 1024 connections are far more than the
    /// editors and shells of one user, and fit into the usual limit of file descriptors once it is raised.
    fn default() -> Self {
        Self {
            call: CallLimits {
                frame_bytes: MAX_FRAME_BYTES as u64,
                batch: 256,
                subscriptions: 64,
                in_flight: 256,
            },
            held_bytes: 2 * MAX_FRAME_BYTES,
            connections: 1024,
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}

/// How many connections are open; clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    /// The count.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Serves connections until the daemon stops, then until their calls are done or the drain is over.
///
/// When it returns, the socket file is gone if it was ours, and no connection is left.
pub(crate) async fn run(
    listener: Listener,
    methods: Methods,
    tasks: Tasks,
    limits: Limits,
    open: OpenConnections,
) {
    accept::raise_file_limit();
    let drain = limits.drain;
    let ids = Arc::new(SubscriptionIds::default());
    let shared = connection::Shared { methods, tasks: tasks.clone(), limits, ids };
    let mut connections = JoinSet::new();
    accept::accept(&listener, &shared, &mut connections, &open).await;
    listener.close().await;
    let finished = async {
        while connections.join_next().await.is_some() {
            open.0.store(connections.len(), Ordering::Relaxed);
        }
    };
    tokio::select! {
        () = finished => {}
        () = tasks.forced() => {}
        () = tokio::time::sleep(drain) => {
            tracing::warn!(connections = open.count(), "clients were cut off: the time to finish is over");
        }
    }
    connections.shutdown().await;
    open.0.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
