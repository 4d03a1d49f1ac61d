//! One attempt at one socket, with a deadline and a look at who is on the other end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use interprocess::ConnectWaitMode;
use interprocess::local_socket::traits::StreamCommon as _;
use interprocess::local_socket::{ConnectOptions, GenericFilePath, Stream, ToFsName as _};

use crate::error::AttemptCause;

/// How long one socket may take to accept. A daemon accepts within a millisecond; one whose queue is full for
/// this long would not answer either.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// How often a full queue is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Connects to one socket.
pub(crate) fn connect(path: &Path) -> Result<UnixStream, AttemptCause> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let stream = loop {
        match connect_once(path) {
            Ok(stream) => break stream,
            // Linux answers so when the queue of the listener is full; it does not wait by itself.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(error) => return Err(cause(error)),
        }
    };
    trust(&stream)?;
    Ok(into_std(stream))
}

fn connect_once(path: &Path) -> io::Result<Stream> {
    let stream = ConnectOptions::new()
        .name(path.to_fs_name::<GenericFilePath>()?)
        .wait_mode(ConnectWaitMode::Timeout(CONNECT_TIMEOUT))
        .connect_sync()?;
    // A full queue looks to the library like a connection in progress, and the wait for it succeeds at once
    // with a socket that leads nowhere.
    let Stream::UdSocket(socket) = &stream;
    match socket.inner().peer_addr() {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        _ => Ok(stream),
    }
}

fn into_std(stream: Stream) -> UnixStream {
    let Stream::UdSocket(socket) = stream;
    UnixStream::from(OwnedFd::from(socket))
}

/// Refuses a listener that is neither ours nor root's: whoever could put a socket there first would be told
/// everything.
fn trust(stream: &Stream) -> Result<(), AttemptCause> {
    let euid = stream.peer_creds().ok().and_then(|peer| peer.euid());
    match euid {
        Some(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw() => Ok(()),
        other => Err(AttemptCause::Untrusted(other)),
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
    fn says_in_words_why_a_socket_does_not_answer() {
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
    fn a_listener_that_never_accepts_does_not_hold_the_client() {
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
