//! The listening socket: made by us in a safe place, or inherited from a service manager.
//!
//! **Invariant**: who binds holds the instance lock, so a socket file that nobody answers at is a leftover; one
//! that somebody answers at is never touched.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use ollm_protocol::ErrorKind;
use ollm_protocol::address::candidates;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

use super::address::{AddressError, prepare_candidate, prepare_chosen};
use super::lock::InstanceLock;
use crate::fsutil;
use crate::rpc::error::RpcError;

/// Why there is no socket to listen on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// The place is not usable.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Somebody listens there already.
    #[error("another program listens on {}", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something else than a socket lies there.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen on {}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The service manager passed something else than a listening Unix socket.
    #[error("cannot use the socket that the service manager passed on")]
    Inherited {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Every place that we know was refused.
    #[error("no place to listen in: {}", reasons(tried))]
    NoAddress {
        /// The places and why not, in the order in which they were tried.
        tried: Vec<ListenError>,
    },
}

fn reasons(tried: &[ListenError]) -> String {
    tried.iter().map(|error| RpcError::from(error).message).collect::<Vec<_>>().join("; ")
}

impl From<&ListenError> for RpcError {
    fn from(error: &ListenError) -> Self {
        let kind = match error {
            ListenError::InUse { .. } => ErrorKind::Locked,
            _ => ErrorKind::Config,
        };
        Self::with_sources(kind, error).with_hint("ollmctl socket")
    }
}

/// A socket that takes connections.
#[derive(Debug)]
pub(crate) struct Listener {
    inner: UnixListener,
    path: PathBuf,
    /// Device and inode of the file that we made; absent for an inherited socket, whose file is not ours.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Listens on the inherited socket, else on the one that was chosen, else on the first safe candidate.
    ///
    /// `home` is canonical and locked. Needs a runtime; blocks for a few system calls.
    ///
    /// **Errors**: what is wrong with the chosen place, or with each of the candidates.
    pub(crate) fn open(
        lock: &InstanceLock,
        home: &Path,
        chosen: Option<&Path>,
    ) -> Result<Self, ListenError> {
        if let Some(inherited) = Self::inherit()? {
            return Ok(inherited);
        }
        let euid = rustix::process::geteuid().as_raw();
        if let Some(path) = chosen {
            prepare_chosen(path, euid)?;
            return Self::bind(lock, path);
        }
        let mut tried = Vec::new();
        for path in candidates(home, euid) {
            let prepared = prepare_candidate(&path, euid).map_err(ListenError::from);
            match prepared.and_then(|()| Self::bind(lock, &path)) {
                Ok(listener) => return Ok(listener),
                Err(error) => {
                    tracing::debug!(socket = %path.display(), %error, "this place is not used");
                    tried.push(error);
                }
            }
        }
        Err(ListenError::NoAddress { tried })
    }

    /// Binds a path, removing a socket that nobody answers at.
    fn bind(_lock: &InstanceLock, path: &Path) -> Result<Self, ListenError> {
        let fail = |source| ListenError::Bind { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if answers(path).map_err(fail)? => {
                return Err(ListenError::InUse { path: path.to_owned() });
            }
            Ok(_) => fsutil::remove_file(path).map_err(AddressError::from)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(fail(source)),
        }
        let inner = create(path).map_err(fail)?;
        let made = fs::symlink_metadata(path).map_err(fail)?;
        let made = Some((made.dev(), made.ino()));
        Ok(Self { inner, path: path.to_owned(), made })
    }

    /// Takes over the socket that a service manager passed on, if it did.
    fn inherit() -> Result<Option<Self>, ListenError> {
        let fail = |source| ListenError::Inherited { source };
        let Some(raw) = sd_notify::listen_fds().map_err(fail)?.next() else { return Ok(None) };
        #[expect(
            unsafe_code,
            reason = "a descriptor that the service manager passed has no owner yet"
        )]
        // SAFETY: `listen_fds` checked that it was passed to this process and is open, and it is called once.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Self::adopt(fd).map(Some).map_err(fail)
    }

    fn adopt(fd: OwnedFd) -> io::Result<Self> {
        if !rustix::net::sockopt::socket_acceptconn(&fd)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
        }
        let listener = std::os::unix::net::UnixListener::from(fd);
        let path = listener.local_addr()?.as_pathname().map(Path::to_owned).unwrap_or_default();
        listener.set_nonblocking(true)?;
        Ok(Self { inner: UnixListener::from_std(listener)?, path, made: None })
    }

    /// Where it listens; empty for an inherited socket without a name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.inner.accept().await.map(|(stream, _)| stream)
    }

    /// Whether the file at the path still leads to this socket.
    pub(super) async fn is_ours(&self) -> bool {
        let (path, made) = (self.path.clone(), self.made);
        // A runtime that is going down cannot look, and then nobody needs to know.
        tokio::task::spawn_blocking(move || leads_to(&path, made)).await.unwrap_or(true)
    }

    /// Stops listening and removes the file, if we made it and it is still ours.
    pub(super) async fn close(self) {
        let Self { inner, path, made } = self;
        // First, so that whoever still finds the file is refused at once and does not wait for an answer.
        drop(inner);
        let removed = tokio::task::spawn_blocking(move || match made {
            Some(_) if leads_to(&path, made) => fsutil::remove_file(&path),
            _ => Ok(()),
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%error, "the socket stays behind; the next daemon will replace it");
        }
    }
}

fn leads_to(path: &Path, made: Option<(u64, u64)>) -> bool {
    made.is_none_or(|made| {
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == made)
    })
}

/// Binds with mode 0600 from the first moment on, where the system can.
fn create(path: &Path) -> io::Result<UnixListener> {
    let options = || -> io::Result<ListenerOptions<'_>> {
        let name = path.to_fs_name::<GenericFilePath>()?;
        // Else the library would remove by name at the end, which by then may be a successor's socket.
        Ok(ListenerOptions::new().name(name).reclaim_name(false))
    };
    let listener = match options()?.mode(0o600).create_tokio() {
        // There the private directory protects it.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => options()?.create_tokio()?,
        created => created?,
    };
    let interprocess::local_socket::tokio::Listener::UdSocket(listener) = listener;
    let listener = std::os::unix::net::UnixListener::from(OwnedFd::try_from(listener)?);
    UnixListener::from_std(listener)
}

/// Whether somebody listens behind a socket file; never waits.
fn answers(path: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // A full backlog is a listener too.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Scratch {
        home: tempfile::TempDir,
        lock: InstanceLock,
    }

    impl Scratch {
        fn new() -> Self {
            let home = tempfile::tempdir().expect("a scratch directory");
            let lock = InstanceLock::acquire(home.path()).expect("nobody has it");
            Self { home, lock }
        }

        fn socket(&self) -> PathBuf {
            self.home.path().join("a.sock")
        }

        fn open(&self) -> Result<Listener, ListenError> {
            Listener::open(&self.lock, self.home.path(), Some(&self.socket()))
        }
    }

    #[tokio::test]
    async fn the_socket_is_private_and_gone_at_the_end() {
        let scratch = Scratch::new();
        let listener = scratch.open().expect("listens");
        let mode = fs::metadata(scratch.socket()).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(listener.is_ours().await);
        listener.close().await;
        assert!(!scratch.socket().exists());
    }

    #[tokio::test]
    async fn a_leftover_is_replaced_and_a_live_socket_is_not() {
        let scratch = Scratch::new();
        drop(std::os::unix::net::UnixListener::bind(scratch.socket()).expect("binds"));
        assert!(scratch.socket().exists(), "left over");
        let listener = scratch.open().expect("replaces it");
        let refused = scratch.open().expect_err("somebody answers there");
        assert!(matches!(refused, ListenError::InUse { .. }), "{refused}");
        assert_eq!(RpcError::from(&refused).kind, ErrorKind::Locked);
        assert!(listener.is_ours().await);
    }

    #[tokio::test]
    async fn what_is_no_socket_stays() {
        let scratch = Scratch::new();
        drop(fsutil::open_private(&scratch.socket()).expect("makes a file"));
        assert!(matches!(scratch.open(), Err(ListenError::NotASocket { .. })));
        assert!(scratch.socket().exists());
    }

    #[tokio::test]
    async fn a_successors_socket_stays() {
        let scratch = Scratch::new();
        let first = scratch.open().expect("listens");
        fsutil::remove_file(&scratch.socket()).expect("somebody removes it");
        assert!(!first.is_ours().await);
        // The first still holds its inode, so the second has another one.
        let second = scratch.open().expect("listens");
        first.close().await;
        assert!(second.is_ours().await);
    }

    #[tokio::test]
    async fn an_inherited_socket_is_used_and_never_removed() {
        let scratch = Scratch::new();
        let passed = std::os::unix::net::UnixListener::bind(scratch.socket()).expect("binds");
        let listener = Listener::adopt(OwnedFd::from(passed)).expect("adopts");
        assert_eq!(listener.path(), scratch.socket());
        let client = UnixStream::connect(scratch.socket()).await.expect("connects");
        listener.accept().await.expect("accepts");
        drop(client);
        assert!(listener.is_ours().await);
        listener.close().await;
        assert!(scratch.socket().exists());
        let (stream, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(Listener::adopt(OwnedFd::from(stream)).is_err());
    }
}
