//! Attempts to connect to the sockets of an address, with a deadline and a check of the process at the other end.
//!
//! Starts nothing: `autostart` and `connector` build on this file.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use interprocess::ConnectWaitMode;
use interprocess::local_socket::traits::StreamCommon as _;
use interprocess::local_socket::{ConnectOptions, GenericFilePath, Stream, ToFsName as _};

use super::hello::{DaemonVersion, HelloError, require_home};
use crate::address::{Address, is_home_locked, lock_holder};
use crate::error::{Attempt, AttemptCause, ClientError};

/// The longest wait for one socket to accept. A daemon accepts within a millisecond; a daemon whose queue stays
/// full for this long would not reply either.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// The pause before a full queue is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A connection to a daemon that belongs to this user or to root.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    /// The stream, in blocking mode.
    pub(crate) stream: UnixStream,
    pub(crate) socket: PathBuf,
    /// The daemon's version, if it is known.
    pub(crate) daemon: Option<DaemonVersion>,
    /// Connecting started the daemon.
    pub(crate) started: bool,
    /// A remark about how the daemon was started, for a person.
    pub(crate) notice: Option<String>,
}

/// Tries every socket of an address once, until a daemon of its home replies within `timeout`.
///
/// **Errors**: [`ClientError::Unreachable`] with the failed attempts, in order; [`ClientError::Rpc`] if the daemon
/// refuses the connection.
pub(super) fn probe(address: &Address, timeout: Duration) -> Result<OpenConnection, ClientError> {
    let mut attempts = Vec::new();
    for path in address.sockets() {
        let opened = connect(&path).map_err(HelloError::Attempt).and_then(|stream| {
            let requires_home = address.requires_home();
            let daemon = requires_home
                .then(|| require_home(&stream, address.home(), timeout))
                .transpose()?;
            Ok((stream, daemon))
        });
        match opened {
            Ok((stream, daemon)) => {
                return Ok(OpenConnection {
                    stream,
                    socket: path,
                    daemon,
                    started: false,
                    notice: None,
                });
            }
            Err(HelloError::Attempt(cause)) => attempts.push(Attempt { path, cause }),
            Err(HelloError::Refused(error)) => return Err(error),
        }
    }
    Err(ClientError::Unreachable { attempts })
}

/// Returns whether an error of [`probe`] shows that no daemon of the address runs, so that starting one can help.
pub(crate) fn means_not_running(address: &Address, error: &ClientError) -> bool {
    let ClientError::Unreachable { attempts } = error else { return false };
    // A daemon that finds a default socket in use takes the next one.
    let is_chosen = address.socket().is_some();
    attempts.iter().all(|attempt| {
        let is_other = matches!(attempt.cause, AttemptCause::OtherHome { .. });
        attempt.means_not_running() || (is_other && !is_chosen)
    })
}

/// Returns the error for a requested socket if the home's daemon listens at another one. No daemon can be started at
/// the requested socket then, because only one can own the home.
pub(super) fn held_elsewhere(address: &Address) -> Option<ClientError> {
    let requested = address.socket()?;
    let daemon = address.daemon_file().filter(|daemon| daemon.socket != requested)?;
    // A daemon that crashed leaves its file.
    drop(connect(&daemon.socket).ok()?);
    Some(ClientError::ListensElsewhere {
        home: address.home().to_owned(),
        pid: daemon.pid,
        socket: daemon.socket,
        requested: requested.to_owned(),
    })
}

/// Returns the error for a home whose daemon runs but cannot be reached: its socket was removed, or it is shutting
/// down.
pub(super) fn held_unreachable(address: &Address) -> Option<ClientError> {
    let home = address.home().to_owned();
    is_home_locked(&home).then(|| {
        let pid = lock_holder(&home);
        ClientError::Held { home, pid }
    })
}

fn connect(path: &Path) -> Result<UnixStream, AttemptCause> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let stream = loop {
        match connect_once(path) {
            Ok(stream) => break stream,
            // Linux returns this error at once when the listener's queue is full, instead of waiting.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(error) => return Err(cause(error)),
        }
    };
    check_owner(&stream)?;
    let Stream::UdSocket(socket) = stream;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

fn connect_once(path: &Path) -> io::Result<Stream> {
    let stream = ConnectOptions::new()
        .name(path.to_fs_name::<GenericFilePath>()?)
        .wait_mode(ConnectWaitMode::Timeout(CONNECT_TIMEOUT))
        .connect_sync()?;
    // The library takes a full queue for a connection in progress, and returns a socket that is not connected.
    let Stream::UdSocket(socket) = &stream;
    match socket.inner().peer_addr() {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        _ => Ok(stream),
    }
}

/// Refuses a listener that runs neither as this user nor as root: another user could create the socket first and receive
/// everything that this client sends.
fn check_owner(stream: &Stream) -> Result<(), AttemptCause> {
    match stream.peer_creds().ok().and_then(|peer| peer.euid()) {
        Some(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw() => Ok(()),
        Some(uid) => Err(AttemptCause::Foreign(uid)),
        None => Err(AttemptCause::UnknownOwner),
    }
}

fn cause(error: io::Error) -> AttemptCause {
    match error.kind() {
        io::ErrorKind::NotFound => AttemptCause::Missing,
        io::ErrorKind::ConnectionRefused => AttemptCause::Refused,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AttemptCause::Slow(CONNECT_TIMEOUT),
        _ => AttemptCause::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn failed_attempt_has_its_cause() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = scratch.path().join("missing.sock");
        assert!(matches!(connect(&missing), Err(AttemptCause::Missing)));
        let stale = scratch.path().join("stale.sock");
        drop(UnixListener::bind(&stale).unwrap());
        assert!(matches!(connect(&stale), Err(AttemptCause::Refused)));
        let file = scratch.path().join("file");
        drop(std::fs::File::create(&file).unwrap());
        assert!(connect(&file).is_err());
        let live = scratch.path().join("live.sock");
        let _listener = UnixListener::bind(&live).unwrap();
        assert!(connect(&live).is_ok());
    }

    #[test]
    fn listener_that_never_accepts_is_given_up() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("full.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut held = Vec::new();
        let refused = loop {
            match connect(&path) {
                Ok(stream) => held.push(stream),
                Err(cause) => break cause,
            }
            assert!(held.len() < 64, "the queue was never full");
        };
        assert!(matches!(refused, AttemptCause::Slow(_)), "{refused}");
    }
}
