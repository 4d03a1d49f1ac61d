//! The accept loop: who may come in, how many, and whether anybody still can.

use std::sync::atomic::Ordering;
use std::time::Duration;

use jsonrpsee::types::Id;
use ollm_protocol::ErrorKind;
use ollm_protocol::frame::{Framing, encode};
use rustix::net::SendFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::listener::Listener;
use super::{OpenConnections, connection, service};
use crate::rpc::error::RpcError;

/// How often the daemon looks whether its socket is still its own. A daemon that nobody can reach any more
/// keeps the lock and so keeps a new one from starting; this is how long that can last.
const SELF_CHECK: Duration = Duration::from_secs(30);

/// How long accepting rests after an error, which is nearly always a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The most open files that we ask for; more than the connections and open sessions of one user need.
const MAX_OPEN_FILES: u64 = 16 * 1024;

/// Raises the limit of open files as far as we may: the usual 1024 would leave nothing for session logs.
pub(super) fn raise_file_limit() {
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

/// Accepts until the daemon stops; `connections` holds what it accepted.
pub(super) async fn accept(
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
                    // Before its first call can ask.
                    open.0.store(connections.len() + 1, Ordering::Relaxed);
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
