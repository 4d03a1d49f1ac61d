//! Whether a socket path is safe: nobody else may create a socket in its directory, or reach ours.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ollm_protocol::address::MAX_SOCKET_PATH_BYTES;

use crate::fsutil::{self, FsError};

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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

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
