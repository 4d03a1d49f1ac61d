//! The instance lock: one daemon for each directory. The kernel releases the lock however the process ends.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};

use crate::fsutil::{self, FsError};

/// The name of the lock file in a directory.
const LOCK_FILE: &str = "ollmd.lock";

/// The time for which a lock that is held is tried again: clients examine it by taking a shared lock for an instant.
const RETRY_TIME: Duration = Duration::from_millis(100);
/// The pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A directory that could not be locked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another daemon holds the lock.
    #[error("another daemon ({holder}) owns {}", directory.display())]
    Held {
        directory: PathBuf,
        /// The other daemon's pid and version, as a text to show.
        holder: String,
    },
    /// The lock file could not be used.
    #[error(transparent)]
    File(#[from] FsError),
}

/// A held lock. Dropping it lets another daemon lock the directory.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    _file: File,
}

impl InstanceLock {
    /// Locks an existing directory.
    ///
    /// The lock file is never removed: a lock on a removed file would not exclude another daemon.
    ///
    /// **Errors**: [`LockError::Held`] after 100 ms.
    pub(crate) fn acquire(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(LOCK_FILE);
        let mut file = fsutil::open_private(&path)?;
        match try_lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The text is only shown, so it is no error if it cannot be read.
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
        // The kernel names the process that holds a record lock, so clients need not believe the text, which may be
        // that of a daemon that crashed. Some systems see the two locks as one and refuse the second.
        if let Err(error) = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            tracing::debug!(%error, "clients cannot see the process that holds the lock");
        }
        let text = format!("pid {}, ollmd {}\n", std::process::id(), env!("CARGO_PKG_VERSION"));
        file.set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|source| FsError::new("write", &path, source))?;
        Ok(Self { _file: file })
    }
}

/// Locks a file; tries again for [`RETRY_TIME`] while another process holds it.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    let deadline = Instant::now() + RETRY_TIME;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(RETRY_PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_fails_with_the_holder_until_the_first_is_dropped() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let first = InstanceLock::acquire(home.path()).expect("is free");
        let error = InstanceLock::acquire(home.path()).expect_err("is held");
        let LockError::Held { holder, .. } = error else { panic!("{error}") };
        assert!(holder.contains(&format!("pid {}", std::process::id())), "{holder}");
        drop(first);
        InstanceLock::acquire(home.path()).expect("is free again");
    }
}
