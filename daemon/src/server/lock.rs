//! One daemon a directory, by a lock that the kernel takes back when the process ends, however it ends.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ollm_protocol::ErrorKind;

use crate::fsutil::{self, FsError};
use crate::rpc::error::RpcError;

/// The name of the lock file in a directory.
const LOCK_FILE: &str = "ollmd.lock";

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another daemon has it.
    #[error("another daemon ({holder}) owns {}", directory.display())]
    Held {
        /// The directory.
        directory: PathBuf,
        /// What the other one wrote of itself, for people.
        holder: String,
    },
    /// The lock file could not be used.
    #[error(transparent)]
    File(#[from] FsError),
}

impl From<&LockError> for RpcError {
    fn from(error: &LockError) -> Self {
        match error {
            LockError::Held { .. } => {
                Self::with_sources(ErrorKind::Locked, error).with_hint("ollmctl daemon status")
            }
            LockError::File(file) => Self::with_sources(ErrorKind::Storage, error)
                .with_field("path", file.path.to_string_lossy()),
        }
    }
}

/// Held for life: dropping it lets another daemon have the directory.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    _file: File,
}

impl InstanceLock {
    /// Locks a directory, which must exist.
    ///
    /// The file is never removed: a lock on a file that somebody else just removed would lock nothing.
    ///
    /// **Errors**: [`LockError::Held`] at once, without waiting.
    pub(crate) fn acquire(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(LOCK_FILE);
        let mut file = fsutil::open_private(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Only for people, so a holder that cannot be read is simply not named.
                if file.read_to_string(&mut holder).is_err() || holder.trim().is_empty() {
                    holder = "of unknown pid".to_owned();
                }
                let directory = directory.to_owned();
                return Err(LockError::Held { directory, holder: holder.trim().to_owned() });
            }
            Err(TryLockError::Error(source)) => {
                return Err(FsError::new("lock", &path, source).into());
            }
        }
        let text = format!("pid {}, ollmd {}\n", std::process::id(), env!("CARGO_PKG_VERSION"));
        file.set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|source| FsError::new("write", &path, source))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_told_who_has_it_and_a_later_one_gets_it() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let first = InstanceLock::acquire(home.path()).expect("nobody has it");
        let held = InstanceLock::acquire(home.path()).expect_err("the lock is held");
        assert_eq!(RpcError::from(&held).kind, ErrorKind::Locked);
        let LockError::Held { holder, .. } = held else { panic!("{held}") };
        assert!(holder.contains(&format!("pid {}", std::process::id())), "{holder}");
        drop(first);
        InstanceLock::acquire(home.path()).expect("nobody has it any more");
    }
}
