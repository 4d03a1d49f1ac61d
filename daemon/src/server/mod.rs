//! The socket server: one lock, one listener, a bounded number of connections.
//!
//! In the order of a start: [`lock`] makes this process the only daemon of its home, [`listener`] finds an address and
//! binds it, [`readiness`] reports the start to the process that caused it, [`run`] serves until the daemon stops.
//!
//! **Invariants**: nothing listens without the lock; a socket file is removed only if this process created it and it is
//! still the same file; no connection of another user is served.

mod connection;
pub(crate) mod listener;
pub(crate) mod lock;
mod memory;
pub(crate) mod readiness;
mod service;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jsonrpsee::Methods;
use jsonrpsee::types::Id;
use ollm_protocol::ErrorKind;
use ollm_protocol::frame::{Framing, encode};
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::fsutil;
use crate::rpc::error::RpcError;
use crate::shutdown::Tasks;
use connection::ConnectionContext;
pub(crate) use connection::ConnectionLimits;
use listener::Listener;
use memory::ConnectionMemory;
use service::SubscriptionIds;
#[cfg(any(test, fuzzing))]
pub(crate) use service::parse_request_id;

/// The interval at which the daemon checks that the socket is still its own. A daemon that no client can reach keeps
/// the lock and prevents the start of another one for at most this long.
const SOCKET_CHECK: Duration = Duration::from_secs(30);

/// The pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limit of open files that the daemon requests: more than the connections and open sessions of one user need.
const MAX_OPEN_FILES: u64 = 16 * 1024;

/// The limits of the server.
#[derive(Clone, Debug)]
pub(crate) struct ServerLimits {
    pub connection: ConnectionLimits,
    /// The most connections at once.
    pub connections: usize,
    /// The time that running calls have to finish after the daemon stops.
    pub drain: Duration,
}

impl Default for ServerLimits {
    /// 1024 connections are far more than the editors and shells of one user, and fit into the usual limit of file
    /// descriptors once it is raised.
    fn default() -> Self {
        Self {
            connection: ConnectionLimits::default(),
            connections: 1024,
            drain: Duration::from_secs(5),
        }
    }
}

/// Frees file descriptors for new connections; returns how many uses of some it ended.
pub(crate) type DescriptorRelief = Arc<dyn Fn() -> usize + Send + Sync>;

/// The number of open connections; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }
}

/// Serves connections until the daemon stops, then until their calls are done or the drain is over.
///
/// On return, the socket file is removed if it was ours, and no connection is left.
pub(crate) async fn run(
    listener: Listener,
    methods: Methods,
    tasks: Tasks,
    limits: ServerLimits,
    open: OpenConnections,
    relief: DescriptorRelief,
) {
    raise_file_limit();
    let ids = Arc::new(SubscriptionIds::default());
    let context = ConnectionContext {
        methods,
        tasks: tasks.clone(),
        limits: limits.connection,
        ids,
        memory: ConnectionMemory::default(),
    };
    let mut connections = JoinSet::new();
    accept(&listener, &context, limits.connections, &mut connections, &open, &relief).await;
    listener.close().await;
    let finished = async {
        while connections.join_next().await.is_some() {
            open.set(connections.len());
        }
    };
    tokio::select! {
        () = finished => {}
        () = tasks.forced() => {}
        () = tokio::time::sleep(limits.drain) => {
            tracing::warn!(connections = open.count(), "closed connections with unfinished calls");
        }
    }
    connections.shutdown().await;
    open.set(0);
}

/// Accepts connections until the daemon stops.
async fn accept(
    listener: &Listener,
    context: &ConnectionContext,
    max_connections: usize,
    connections: &mut JoinSet<()>,
    open: &OpenConnections,
    relief: &DescriptorRelief,
) {
    let mut socket_check = tokio::time::interval(SOCKET_CHECK);
    socket_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    loop {
        open.set(connections.len());
        tokio::select! {
            biased;
            () = context.tasks.stopping() => return,
            Some(_) = connections.join_next() => {}
            _ = socket_check.tick() => if !listener.is_ours().await {
                let socket = listener.path().display();
                tracing::error!(%socket, "the socket file was removed or replaced; stopping");
                context.tasks.stop();
            },
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    if !admit(&stream, connections.len(), max_connections) {
                        continue;
                    }
                    number += 1;
                    // The connection is counted before its first call can read the count.
                    open.set(connections.len() + 1);
                    let context = context.clone();
                    connections.spawn(async move {
                        let tasks = context.tasks.clone();
                        tokio::select! {
                            () = connection::serve(stream, number, context) => {}
                            () = tasks.forced() => {}
                        }
                    });
                }
                // The connection waits in the socket and is accepted next.
                Err(error) if fsutil::is_out_of_descriptors(&error) && relief() > 0 => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::select! {
                        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                        () = context.tasks.stopping() => {}
                    }
                }
            },
        }
    }
}

/// Returns whether a connection is served. Closes connections of other users without a response, and connections
/// beyond the limit with an error response.
fn admit(stream: &UnixStream, open: usize, limit: usize) -> bool {
    let euid = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == euid || peer.uid() == 0 => {}
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), pid = ?peer.pid(), "refused a connection of another user");
            return false;
        }
        Err(error) => {
            tracing::warn!(%error, "refused a connection of an unknown user");
            return false;
        }
    }
    if open < limit {
        return true;
    }
    let message = format!("the daemon has reached its limit of {limit} connections");
    let error = RpcError::new(ErrorKind::Busy, message).with_field("limit", limit);
    let mut line = Vec::new();
    encode(Framing::Lines, service::error_response(&Id::Null, error).get().as_bytes(), &mut line);
    // The buffer of a new socket has room for a line, and a client that has left needs none.
    if let Err(error) = rustix::net::send(stream, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    {
        tracing::debug!(%error, "cannot send the reason to a refused client");
    }
    false
}

/// Raises the limit of open files as far as allowed: the usual 1024 would leave none for session logs.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(MAX_OPEN_FILES, |maximum| maximum.min(MAX_OPEN_FILES));
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    limit.current = Some(wanted);
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests;
