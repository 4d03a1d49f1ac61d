//! The listening socket: created by the daemon in a safe directory, or inherited from a service manager.
//!
//! **Invariants**: only the holder of the instance lock binds, so a socket file on which no process listens is a leftover
//! and is replaced, and one on which a process listens is never touched; no other user can create a socket in the
//! directory, or connect to ours.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use ollm_protocol::address::{MAX_SOCKET_PATH_BYTES, candidates};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

use super::lock::InstanceLock;
use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};

/// A daemon that has no socket to listen on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// The path cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Another program listens on the path.
    #[error("another program listens on {}", path.display())]
    InUse { path: PathBuf },
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket { path: PathBuf },
    /// The socket could not be bound.
    #[error("cannot listen on {}", path.display())]
    Bind {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The service manager passed something that is not a listening Unix socket.
    #[error("cannot use the socket that the service manager passed")]
    Inherited {
        #[source]
        source: io::Error,
    },
    /// No candidate path could be used.
    #[error("no usable socket path: {}", join_errors(tried))]
    NoAddress {
        /// The errors of the candidates, in the order in which they were tried.
        tried: Vec<ListenError>,
    },
}

/// A socket path that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    /// The path exceeds the kernel's limit.
    #[error(
        "the socket path {} has {} bytes; the limit is {MAX_SOCKET_PATH_BYTES}",
        path.display(),
        path.as_os_str().len()
    )]
    TooLong { path: PathBuf },
    /// The directory is not safe.
    #[error("the directory {} {reason}", path.display())]
    Unsafe {
        path: PathBuf,
        /// The problem, worded to follow the path in a sentence.
        reason: &'static str,
    },
    /// The directory could not be created or examined.
    #[error(transparent)]
    File(#[from] FsError),
}

fn join_errors(errors: &[ListenError]) -> String {
    errors.iter().map(|error| with_sources(error)).collect::<Vec<_>>().join("; ")
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    inner: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file; `None` for an inherited socket, whose file is not ours.
    created: Option<(u64, u64)>,
}

impl Listener {
    /// Listens on the inherited socket, else on the chosen path, else on the first candidate that can be used.
    ///
    /// `home` must be canonical and locked. Needs a runtime, and blocks for a few system calls.
    ///
    /// **Errors**: the problem of the chosen path, or of each candidate.
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
                    tracing::debug!(socket = %path.display(), %error, "cannot use this socket path");
                    tried.push(error);
                }
            }
        }
        Err(ListenError::NoAddress { tried })
    }

    /// Binds a path, replacing a socket file on which no process listens.
    fn bind(_lock: &InstanceLock, path: &Path) -> Result<Self, ListenError> {
        let fail = |source| ListenError::Bind { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if has_listener(path).map_err(fail)? => {
                return Err(ListenError::InUse { path: path.to_owned() });
            }
            Ok(_) => fsutil::remove_file(path).map_err(AddressError::from)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(fail(source)),
        }
        let inner = create(path).map_err(fail)?;
        let file = fs::symlink_metadata(path).map_err(fail)?;
        let created = Some((file.dev(), file.ino()));
        Ok(Self { inner, path: path.to_owned(), created })
    }

    /// Takes the socket that a service manager passed, if any.
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
            let message = "the descriptor is not a listening socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let listener = std::os::unix::net::UnixListener::from(fd);
        let path = listener.local_addr()?.as_pathname().map(Path::to_owned).unwrap_or_default();
        listener.set_nonblocking(true)?;
        Ok(Self { inner: UnixListener::from_std(listener)?, path, created: None })
    }

    /// Returns the path of the socket; empty for an inherited socket without a name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.inner.accept().await.map(|(stream, _)| stream)
    }

    /// Returns whether the file at the path still belongs to this socket.
    pub(super) async fn is_ours(&self) -> bool {
        let (path, created) = (self.path.clone(), self.created);
        // The task fails only when the runtime shuts down, and then the result no longer matters.
        tokio::task::spawn_blocking(move || is_same_file(&path, created)).await.unwrap_or(true)
    }

    /// Stops listening, and removes the file if this process created it and it is still the same.
    pub(super) async fn close(self) {
        let Self { inner, path, created } = self;
        // The socket is closed first, so that a client that still finds the file is refused and does not wait.
        drop(inner);
        let removed = tokio::task::spawn_blocking(move || match created {
            Some(_) if is_same_file(&path, created) => fsutil::remove_file(&path),
            _ => Ok(()),
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%error, "cannot remove the socket file; the next daemon replaces it");
        }
    }
}

/// Checks a path that the daemon chose, and creates its directory.
pub(super) fn prepare_candidate(socket: &Path, euid: u32) -> Result<(), AddressError> {
    check_length(socket)?;
    let runtime_root = PathBuf::from(format!("/run/user/{euid}"));
    if socket.starts_with(&runtime_root) && check_owner(&runtime_root, euid)? & 0o077 != 0 {
        // The system creates this directory at login, so it is not made private here.
        let reason = "is open to other users";
        return Err(AddressError::Unsafe { path: runtime_root, reason });
    }
    let directory = socket.parent().unwrap_or(Path::new("/"));
    match fs::symlink_metadata(directory) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fsutil::create_private_dir(directory)?;
        }
        Err(source) => return Err(FsError::new("examine", directory, source).into()),
    }
    check_owner(directory, euid)?;
    // The directory is ours and not a link, so this cannot change that of another user.
    fsutil::make_private(directory, 0o700)?;
    Ok(())
}

/// Checks a path that the user chose. Its directory may be a shared one in which files are safe, like `/tmp`.
pub(super) fn prepare_chosen(socket: &Path, euid: u32) -> Result<(), AddressError> {
    check_length(socket)?;
    let directory = match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let metadata = match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fsutil::create_private_dir(directory)?;
            return Ok(());
        }
        metadata => metadata.map_err(|source| FsError::new("examine", directory, source))?,
    };
    let unsafe_because = |reason| Err(AddressError::Unsafe { path: directory.to_owned(), reason });
    let (is_shared, is_sticky) = (metadata.mode() & 0o022 != 0, metadata.mode() & 0o1000 != 0);
    if !metadata.is_dir() {
        return unsafe_because("is not a directory");
    }
    if metadata.uid() != euid && metadata.uid() != 0 {
        return unsafe_because("belongs to another user");
    }
    if is_shared && !is_sticky {
        return unsafe_because("is writable by others; make it private with chmod 700");
    }
    Ok(())
}

fn check_length(socket: &Path) -> Result<(), AddressError> {
    if socket.as_os_str().as_bytes().len() > MAX_SOCKET_PATH_BYTES {
        return Err(AddressError::TooLong { path: socket.to_owned() });
    }
    Ok(())
}

/// Checks that a path is a directory of this user, and returns its mode.
fn check_owner(directory: &Path, euid: u32) -> Result<u32, AddressError> {
    let unsafe_because = |reason| Err(AddressError::Unsafe { path: directory.to_owned(), reason });
    let metadata = fs::symlink_metadata(directory)
        .map_err(|source| FsError::new("examine", directory, source))?;
    if !metadata.is_dir() {
        return unsafe_because("is a link or not a directory");
    }
    if metadata.uid() != euid {
        return unsafe_because("belongs to another user");
    }
    Ok(metadata.mode())
}

/// Returns whether the file at a path has this device and inode; true for an inherited socket.
fn is_same_file(path: &Path, created: Option<(u64, u64)>) -> bool {
    created.is_none_or(|created| {
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == created)
    })
}

/// Binds a socket whose file has mode 0600 from the beginning if the system supports that.
fn create(path: &Path) -> io::Result<UnixListener> {
    let options = || -> io::Result<ListenerOptions<'_>> {
        let name = path.to_fs_name::<GenericFilePath>()?;
        // Otherwise the library would remove the file by its name, which may be a successor's by then.
        Ok(ListenerOptions::new().name(name).reclaim_name(false))
    };
    let listener = match options()?.mode(0o600).create_tokio() {
        // On such systems the private directory protects the socket.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => options()?.create_tokio()?,
        created => created?,
    };
    let interprocess::local_socket::tokio::Listener::UdSocket(listener) = listener;
    let listener = std::os::unix::net::UnixListener::from(OwnedFd::try_from(listener)?);
    UnixListener::from_std(listener)
}

/// Returns whether a process listens on a socket file. Never waits.
fn has_listener(path: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // A listener with a full backlog returns one of these errors.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct ListenerFixture {
        home: tempfile::TempDir,
        lock: InstanceLock,
    }

    impl ListenerFixture {
        fn new() -> Self {
            let home = tempfile::tempdir().expect("a temporary directory");
            let lock = InstanceLock::acquire(home.path()).expect("is free");
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
    async fn socket_file_is_private_and_removed_by_close() {
        let fixture = ListenerFixture::new();
        let listener = fixture.open().expect("listens");
        let mode = fs::metadata(fixture.socket()).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(listener.is_ours().await);
        listener.close().await;
        assert!(!fixture.socket().exists());
    }

    #[tokio::test]
    async fn leftover_socket_is_replaced_and_live_socket_is_not() {
        let fixture = ListenerFixture::new();
        drop(std::os::unix::net::UnixListener::bind(fixture.socket()).expect("binds"));
        assert!(fixture.socket().exists(), "the file remains");
        let listener = fixture.open().expect("replaces the file");
        let error = fixture.open().expect_err("is in use");
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        assert!(listener.is_ours().await);
    }

    #[tokio::test]
    async fn file_that_is_not_a_socket_is_kept() {
        let fixture = ListenerFixture::new();
        drop(fsutil::open_private(&fixture.socket()).expect("creates a file"));
        assert!(matches!(fixture.open(), Err(ListenError::NotASocket { .. })));
        assert!(fixture.socket().exists());
    }

    #[tokio::test]
    async fn socket_of_a_successor_is_kept() {
        let fixture = ListenerFixture::new();
        let first = fixture.open().expect("listens");
        fsutil::remove_file(&fixture.socket()).expect("is removed");
        assert!(!first.is_ours().await);
        // The first listener still holds its inode, so the second has a different one.
        let second = fixture.open().expect("listens");
        first.close().await;
        assert!(second.is_ours().await);
    }

    #[tokio::test]
    async fn inherited_socket_is_used_and_never_removed() {
        let fixture = ListenerFixture::new();
        let passed = std::os::unix::net::UnixListener::bind(fixture.socket()).expect("binds");
        let listener = Listener::adopt(OwnedFd::from(passed)).expect("adopts");
        assert_eq!(listener.path(), fixture.socket());
        let client = UnixStream::connect(fixture.socket()).await.expect("connects");
        listener.accept().await.expect("accepts");
        drop(client);
        assert!(listener.is_ours().await);
        listener.close().await;
        assert!(fixture.socket().exists());
        let (stream, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(Listener::adopt(OwnedFd::from(stream)).is_err());
    }
    fn euid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("exists").permissions().mode() & 0o777
    }

    #[test]
    fn directory_of_a_candidate_is_made_private() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let directory = scratch.path().join("run");
        prepare_candidate(&directory.join("a.sock"), euid()).expect("is created");
        assert_eq!(mode(&directory), 0o700);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("opens it");
        prepare_candidate(&directory.join("a.sock"), euid()).expect("is made private again");
        assert_eq!(mode(&directory), 0o700);
    }

    #[test]
    fn unsafe_paths_are_errors() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let real = scratch.path().join("real");
        fsutil::create_private_dir(&real).expect("is created");
        let link = scratch.path().join("link");
        symlink(&real, &link).expect("is linked");
        let check = |result: Result<(), AddressError>, text: &str| {
            let error = result.expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        };
        let long = scratch.path().join("x".repeat(MAX_SOCKET_PATH_BYTES));
        check(prepare_candidate(&long, euid()), "the limit is 103");
        check(prepare_chosen(&long, euid()), "the limit is 103");
        check(prepare_candidate(&link.join("a.sock"), euid()), "link");
        check(prepare_candidate(&real.join("a.sock"), euid() + 1), "another user");
        fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).expect("opens it");
        check(prepare_chosen(&real.join("a.sock"), euid()), "chmod 700");
        fs::set_permissions(&real, fs::Permissions::from_mode(0o1777)).expect("makes it sticky");
        prepare_chosen(&real.join("a.sock"), euid()).expect("like /tmp");
    }
}
