//! Reports the start of the daemon: to the client that spawned it, to the service manager, and through a file with
//! the daemon's address.
//!
//! **Invariant**: a failed start is reported to the client through its pipe, and to the service manager.

use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use ollm_protocol::address::DaemonFile;
use sd_notify::NotifyState;
use serde::Serialize;

use crate::fsutil::{self, FsError};
use crate::rpc::error::RpcError;

/// The name of the address file in the home.
const DAEMON_FILE: &str = "daemon.json";

/// The line that reports success.
const READY_LINE: &[u8] = b"ok\n";

/// Reports the result of the start once. Dropping it closes the pipe without a line, which means failure.
#[derive(Debug)]
pub(crate) struct Readiness {
    pipe: Option<File>,
}

/// The line that reports a failed start.
#[derive(Serialize)]
struct StartFailure<'a> {
    kind: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl Readiness {
    /// Takes the pipe that a client passed as `--ready-fd`. A number that is not open is ignored.
    ///
    /// Must be called once, before anything else opens files.
    pub(crate) fn from_fd(fd: Option<RawFd>) -> Self {
        let passed = fd.filter(|fd| *fd > 2).filter(|fd| {
            #[expect(unsafe_code, reason = "testing whether a number is open needs a descriptor")]
            // SAFETY: it is borrowed for one call, which fails without harm if it is not open.
            let borrowed = unsafe { BorrowedFd::borrow_raw(*fd) };
            rustix::io::fcntl_getfd(borrowed).is_ok()
        });
        let pipe = passed.map(|fd| {
            #[expect(unsafe_code, reason = "a descriptor that the parent passed has no owner yet")]
            // SAFETY: it was just found open, and nothing else was opened since the start.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            File::from(fd)
        });
        Self { pipe }
    }

    /// Reports that the daemon is ready.
    pub(crate) fn ready(self) {
        notify(NotifyState::Ready);
        self.send(READY_LINE);
    }

    /// Reports a failed start.
    pub(crate) fn failed(self, error: &RpcError) {
        let kind = error.kind.as_str();
        let failure = StartFailure { kind, message: &error.message, hint: error.hint.as_deref() };
        notify(NotifyState::Status(&error.message));
        let mut line = serde_json::to_vec(&failure).unwrap_or_default();
        line.push(b'\n');
        self.send(&line);
    }

    fn send(self, line: &[u8]) {
        let Some(mut pipe) = self.pipe else { return };
        if let Err(error) = pipe.write_all(line) {
            tracing::debug!(%error, "the client no longer waits for the start");
        }
    }
}

/// Reports to the service manager that the daemon stops.
pub(crate) fn stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// The published address file of a running daemon.
#[derive(Debug)]
pub(crate) struct Announcement {
    path: PathBuf,
}

impl Announcement {
    /// Writes the file. The home must be locked.
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

    /// Returns everything that a report writes into the pipe.
    fn piped(report: impl FnOnce(Readiness)) -> String {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        report(Readiness::from_fd(Some(OwnedFd::from(writer).into_raw_fd())));
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("reads to the end");
        text
    }

    #[test]
    fn pipe_receives_the_result_and_is_closed() {
        assert_eq!(piped(Readiness::ready), "ok\n");
        assert_eq!(piped(drop), "");
        let error = RpcError::new(ErrorKind::Locked, "a\nb").with_hint("ollmctl daemon status");
        assert_eq!(
            piped(|readiness| readiness.failed(&error)),
            "{\"kind\":\"locked\",\"message\":\"a\\nb\",\"hint\":\"ollmctl daemon status\"}\n"
        );
    }

    #[test]
    fn report_without_a_pipe_does_nothing() {
        Readiness::from_fd(None).ready();
        Readiness::from_fd(Some(1)).ready();
        Readiness::from_fd(Some(60_000)).ready();
    }

    #[test]
    fn address_file_exists_until_it_is_withdrawn() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let file = DaemonFile {
            socket: "/run/a.sock".into(),
            home_id: Some("1:2".to_owned()),
            pid: 7,
            version: "1".to_owned(),
            protocol: 1,
            started_at: Timestamp::from_unix_ms(0),
        };
        let announcement = Announcement::publish(home.path(), &file).expect("writes");
        let path = home.path().join(DAEMON_FILE);
        let text = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(serde_json::from_str::<DaemonFile>(&text).expect("JSON"), file);
        announcement.withdraw().expect("removes");
        assert!(!path.exists());
    }
}
