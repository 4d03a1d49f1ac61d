//! Whether a place is safe to listen in: nobody else may put a socket there, or reach ours.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ollm_protocol::address::MAX_SOCKET_PATH_BYTES;

use crate::fsutil::{self, FsError};

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    /// The kernel takes no such path.
    #[error(
        "the socket path {} has {} bytes, and at most {MAX_SOCKET_PATH_BYTES} are possible",
        path.display(),
        path.as_os_str().len()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The directory is not safe.
    #[error("the directory {} {reason}", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The directory could not be made or examined.
    #[error(transparent)]
    File(#[from] FsError),
}

/// Checks a place that we chose, and makes its directory.
pub(super) fn prepare_candidate(socket: &Path, euid: u32) -> Result<(), AddressError> {
    check_length(socket)?;
    let runtime_root = PathBuf::from(format!("/run/user/{euid}"));
    if socket.starts_with(&runtime_root) {
        // Made by the system at login and removed at the last logout; it is not for us to make.
        check_private(&runtime_root, euid)?;
    }
    let directory = socket.parent().unwrap_or(Path::new("/"));
    match fs::symlink_metadata(directory) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fsutil::create_private_dir(directory)?;
        }
        Err(source) => return Err(FsError::new("examine", directory, source).into()),
    }
    check_owned(directory, euid)?;
    // Ours, and not a link, so this cannot change somebody else's directory.
    fsutil::make_private(directory, 0o700)?;
    Ok(())
}

/// Checks a place that the user chose; its directory may be a shared one where files are safe, like `/tmp`.
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
    let unsafe_because = |reason| AddressError::Unsafe { path: directory.to_owned(), reason };
    let (writable, sticky) = (metadata.mode() & 0o022 != 0, metadata.mode() & 0o1000 != 0);
    if !metadata.is_dir() {
        return Err(unsafe_because("is not a directory"));
    }
    if metadata.uid() != euid && metadata.uid() != 0 {
        return Err(unsafe_because("belongs to another user"));
    }
    if writable && !sticky {
        return Err(unsafe_because("can be written by others; make it private with chmod 700"));
    }
    Ok(())
}

fn check_length(socket: &Path) -> Result<(), AddressError> {
    if socket.as_os_str().as_bytes().len() > MAX_SOCKET_PATH_BYTES {
        return Err(AddressError::TooLong { path: socket.to_owned() });
    }
    Ok(())
}

fn check_owned(directory: &Path, euid: u32) -> Result<u32, AddressError> {
    let unsafe_because = |reason| AddressError::Unsafe { path: directory.to_owned(), reason };
    let metadata = fs::symlink_metadata(directory)
        .map_err(|source| FsError::new("examine", directory, source))?;
    if !metadata.is_dir() {
        return Err(unsafe_because("is a link or no directory"));
    }
    if metadata.uid() != euid {
        return Err(unsafe_because("belongs to another user"));
    }
    Ok(metadata.mode())
}

fn check_private(directory: &Path, euid: u32) -> Result<(), AddressError> {
    if check_owned(directory, euid)? & 0o077 != 0 {
        let reason = "is open to other users";
        return Err(AddressError::Unsafe { path: directory.to_owned(), reason });
    }
    Ok(())
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
    fn a_candidate_gets_a_private_directory() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path().join("run");
        prepare_candidate(&directory.join("a.sock"), euid()).expect("made");
        assert_eq!(mode(&directory), 0o700);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("opened");
        prepare_candidate(&directory.join("a.sock"), euid()).expect("made private again");
        assert_eq!(mode(&directory), 0o700);
    }

    #[test]
    fn places_that_are_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let real = scratch.path().join("real");
        fsutil::create_private_dir(&real).expect("made");
        let link = scratch.path().join("link");
        symlink(&real, &link).expect("linked");
        let check = |result: Result<(), AddressError>, text: &str| {
            let error = result.expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        };
        let long = scratch.path().join("x".repeat(MAX_SOCKET_PATH_BYTES));
        check(prepare_candidate(&long, euid()), "at most 103");
        check(prepare_chosen(&long, euid()), "at most 103");
        check(prepare_candidate(&link.join("a.sock"), euid()), "link");
        check(prepare_candidate(&real.join("a.sock"), euid() + 1), "another user");
        fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).expect("opened");
        check(prepare_chosen(&real.join("a.sock"), euid()), "chmod 700");
        fs::set_permissions(&real, fs::Permissions::from_mode(0o1777)).expect("made sticky");
        prepare_chosen(&real.join("a.sock"), euid()).expect("like /tmp");
    }
}
