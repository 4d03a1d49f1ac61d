//! Opening files: only regular ones, so that no pipe in place of a file makes the client wait.
//!
//! Files of the home are never links; a file that the user names may be one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// The longest file of the home that the client reads: `daemon.json` has about 200 bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Opens a file of the home with `options`; a created file has mode 0600. Never waits.
///
/// **Errors**: of kind `InvalidInput` for a link, a pipe, or anything else that is not a regular file.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_flagged(options, path, OFlags::NOFOLLOW | OFlags::NONBLOCK)
}

/// Reads a small file of the home.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(OpenOptions::new().read(true), path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns whether the lock of a file of the home is held, by trying to take a shared lock for an instant.
pub(crate) fn is_locked(path: &Path) -> bool {
    let opened = open(OpenOptions::new().read(true), path);
    opened.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Reads a small file that may be a link, such as the definition of a service.
pub(crate) fn read_input(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_input(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file that the user named, which may be a link to a regular file.
///
/// **Errors**: as [`open`].
pub(crate) fn open_input(path: &Path) -> io::Result<File> {
    open_flagged(OpenOptions::new().read(true), path, OFlags::NONBLOCK)
}

fn open_flagged(options: &mut OpenOptions, path: &Path, flags: OFlags) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe waits for its other end.
    let opened = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path);
    let is_linked = || path.symlink_metadata().is_ok_and(|found| found.is_symlink());
    let is_other = match &opened {
        Ok(file) => !file.metadata()?.is_file(),
        // Systems have different error numbers for a link and for a pipe without readers.
        Err(_) if flags.contains(OFlags::NOFOLLOW) && is_linked() => true,
        Err(_) => path.metadata().is_ok_and(|found| !found.is_file()),
    };
    if !is_other {
        return opened;
    }
    let message = if flags.contains(OFlags::NOFOLLOW) && is_linked() {
        "it is a symbolic link, not a regular file"
    } else {
        "it is not a regular file"
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_links_only_as_input() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        drop(open(OpenOptions::new().create(true).append(true), &path("file")).unwrap());
        symlink(path("file"), path("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let error = |result: io::Result<File>| result.unwrap_err().to_string();
        for options in [OpenOptions::new().read(true), OpenOptions::new().append(true)] {
            let linked = error(open(options, &path("link")));
            assert_eq!(linked, "it is a symbolic link, not a regular file");
            for name in ["pipe", "."] {
                assert_eq!(error(open(options, &path(name))), "it is not a regular file");
            }
        }
        assert!(open_input(&path("link")).is_ok());
        assert_eq!(error(open_input(&path("pipe"))), "it is not a regular file");
        assert_eq!(read(&path("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
