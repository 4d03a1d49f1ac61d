//! Tells whoever started the daemon how that went, and clients where it is.
//!
//! A start that fails must reach the person who caused it: through the pipe of the client that spawned us, and
//! through the service manager.

use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use ollm_protocol::address::DaemonFile;
use sd_notify::NotifyState;
use serde::Serialize;

use crate::fsutil::{self, FsError};
use crate::rpc::error::RpcError;

/// The name in the home of the file that says where the daemon is.
const DAEMON_FILE: &str = "daemon.json";

/// The line that means success.
const READY_LINE: &[u8] = b"ok\n";

/// Says once how the start went; dropping it without a word closes the pipe, which means failure.
#[derive(Debug)]
pub(crate) struct Readiness {
    pipe: Option<File>,
}

/// How a failed start looks in the pipe.
#[derive(Serialize)]
struct Failure<'a> {
    kind: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl Readiness {
    /// Takes over the pipe that a client passed on as `--ready-fd`; a number that is not open is ignored.
    ///
    /// Call it once, before anything else opens files.
    pub(crate) fn from_fd(fd: Option<RawFd>) -> Self {
        let passed = fd.filter(|fd| *fd > 2).filter(|fd| {
            #[expect(
                unsafe_code,
                reason = "asking whether the number is open needs it as a descriptor"
            )]
            // SAFETY: it is borrowed for one call, which fails without harm where it is not open.
            let borrowed = unsafe { BorrowedFd::borrow_raw(*fd) };
            rustix::io::fcntl_getfd(borrowed).is_ok()
        });
        let pipe = passed.map(|fd| {
            #[expect(unsafe_code, reason = "a descriptor that the parent passed has no owner yet")]
            // SAFETY: it is open, as was just checked, and nothing else was opened since the start.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            File::from(fd)
        });
        Self { pipe }
    }

    /// The daemon serves.
    pub(crate) fn ready(self) {
        notify(NotifyState::Ready);
        self.send(READY_LINE);
    }

    /// The daemon does not start.
    pub(crate) fn failed(self, error: &RpcError) {
        let kind = error.kind.as_str();
        let failure = Failure { kind, message: &error.message, hint: error.hint.as_deref() };
        notify(NotifyState::Status(&error.message));
        let mut line = serde_json::to_vec(&failure).unwrap_or_default();
        line.push(b'\n');
        self.send(&line);
    }

    fn send(self, line: &[u8]) {
        let Some(mut pipe) = self.pipe else { return };
        if let Err(error) = pipe.write_all(line) {
            // Whoever waited gave up; the log has the rest.
            tracing::debug!(%error, "nobody waits for the start any more");
        }
    }
}

/// Tells the service manager that the daemon is leaving.
pub(crate) fn stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

/// The file that says where the daemon is, while it runs.
#[derive(Debug)]
pub(crate) struct Announcement {
    path: PathBuf,
}

impl Announcement {
    /// Writes the file; the home is locked, so it is nobody else's.
    pub(crate) fn publish(home: &Path, file: &DaemonFile) -> Result<Self, FsError> {
        let path = home.join(DAEMON_FILE);
        let mut text = serde_json::to_vec(file).unwrap_or_default();
        text.push(b'\n');
        fsutil::replace_unsynced(&path, &text)?;
        Ok(Self { path })
    }

    /// Removes the file.
    pub(crate) fn withdraw(self) -> Result<(), FsError> {
        fsutil::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::IntoRawFd;

    use ollm_protocol::{ErrorKind, Timestamp};

    use super::*;

    fn heard(say: impl FnOnce(Readiness)) -> String {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        say(Readiness::from_fd(Some(OwnedFd::from(writer).into_raw_fd())));
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("reads to the end");
        text
    }

    #[test]
    fn the_pipe_says_how_the_start_went_and_is_closed() {
        assert_eq!(heard(Readiness::ready), "ok\n");
        assert_eq!(heard(drop), "");
        let error = RpcError::new(ErrorKind::Locked, "a\nb").with_hint("ollmctl daemon status");
        assert_eq!(
            heard(|readiness| readiness.failed(&error)),
            "{\"kind\":\"locked\",\"message\":\"a\\nb\",\"hint\":\"ollmctl daemon status\"}\n"
        );
    }

    #[test]
    fn without_a_pipe_nothing_happens() {
        Readiness::from_fd(None).ready();
        Readiness::from_fd(Some(1)).ready();
        Readiness::from_fd(Some(60_000)).ready();
    }

    #[test]
    fn the_address_is_there_while_the_daemon_is() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let file = DaemonFile {
            socket: "/run/a.sock".into(),
            pid: 7,
            version: "1".to_owned(),
            protocol: 1,
            started_at: Timestamp::from_unix_ms(0),
        };
        let announcement = Announcement::publish(home.path(), &file).expect("writes");
        let text = fsutil_read(&home.path().join(DAEMON_FILE));
        assert_eq!(serde_json::from_str::<DaemonFile>(&text).expect("JSON"), file);
        announcement.withdraw().expect("removes");
        assert!(!home.path().join(DAEMON_FILE).exists());
    }

    fn fsutil_read(path: &Path) -> String {
        std::fs::read_to_string(path).expect("reads")
    }
}
