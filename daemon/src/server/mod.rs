//! The socket: one lock, one listener, a bounded number of connections.
//!
//! In the order of a start: [`lock`] makes this the only daemon of its home, [`listener`] finds an address and
//! binds it, [`readiness`] tells whoever started us, [`run`] serves until the daemon stops.
//!
//! **Invariants**: nothing listens without the lock; a socket file is removed only if we made it and it is
//! still ours; no connection is served for another user.

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
use jsonrpsee::types::Id;
use ollm_protocol::ErrorKind;
use ollm_protocol::frame::{Framing, MAX_FRAME_BYTES, encode};
use ollm_protocol::methods::daemon::Limits as CallLimits;
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::rpc::error::RpcError;
use crate::shutdown::Tasks;
use listener::Listener;
use service::SubscriptionIds;

/// How often the daemon looks whether its socket is still its own. A daemon that nobody can reach any more
/// keeps the lock and so keeps a new one from starting; this is how long that can last.
const SELF_CHECK: Duration = Duration::from_secs(30);

/// How long accepting rests after an error, which is nearly always a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The most open files that we ask for; more than the connections and open sessions of one user need.
const MAX_OPEN_FILES: u64 = 16 * 1024;

/// What the server allows.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// What one connection may do, as `daemon.hello` tells it.
    pub call: CallLimits,
    /// Request bytes that the running calls of one connection may hold before it reads no further.
    pub held_bytes: usize,
    /// The most connections at once.
    pub connections: usize,
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
    raise_file_limit();
    let drain = limits.drain;
    let ids = Arc::new(SubscriptionIds::default());
    let shared = connection::Shared { methods, tasks: tasks.clone(), limits, ids };
    let mut connections = JoinSet::new();
    accept(&listener, &shared, &mut connections, &open).await;
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

/// Raises the limit of open files as far as we may: the usual 1024 would leave nothing for session logs.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(MAX_OPEN_FILES, |most| most.min(MAX_OPEN_FILES));
    if limit.current.is_none_or(|current| current >= most) {
        return;
    }
    limit.current = Some(most);
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

async fn accept(
    listener: &Listener,
    shared: &connection::Shared,
    connections: &mut JoinSet<()>,
    open: &OpenConnections,
) {
    let mut self_check = tokio::time::interval(SELF_CHECK);
    self_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    loop {
        open.0.store(connections.len(), Ordering::Relaxed);
        tokio::select! {
            biased;
            () = shared.tasks.stopping() => return,
            Some(_) = connections.join_next() => {}
            _ = self_check.tick() => if !listener.is_ours().await {
                tracing::error!(socket = %listener.path().display(), "the socket is gone or not ours any more; leaving");
                shared.tasks.stop();
            },
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    if !admit(&stream, connections.len(), shared.limits.connections) {
                        continue;
                    }
                    number += 1;
                    let (shared, tasks) = (shared.clone(), shared.tasks.clone());
                    connections.spawn(async move {
                        tokio::select! {
                            () = connection::serve(stream, number, shared) => {}
                            () = tasks.forced() => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::select! {
                        () = tokio::time::sleep(ACCEPT_REST) => {}
                        () = shared.tasks.stopping() => {}
                    }
                }
            },
        }
    }
}

/// Whether a connection is served: not for another user, and not beyond the limit, which it is told.
fn admit(stream: &UnixStream, open: usize, limit: usize) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == ours || peer.uid() == 0 => {}
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), pid = ?peer.pid(), "refused a connection of another user");
            return false;
        }
        Err(error) => {
            tracing::warn!(%error, "refused a connection whose user is unknown");
            return false;
        }
    }
    if open < limit {
        return true;
    }
    let message = format!("the daemon has {limit} connections, as many as it may");
    let error = RpcError::new(ErrorKind::Busy, message).with_field("limit", limit);
    let mut line = Vec::new();
    encode(Framing::Lines, service::error_reply(&Id::Null, error).get().as_bytes(), &mut line);
    // The buffer of a new socket has room for a line; a client that is gone already needs none.
    if let Err(error) = rustix::net::send(stream, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    {
        tracing::debug!(%error, "a refused client was not told why");
    }
    false
}

#[cfg(test)]
mod tests;
