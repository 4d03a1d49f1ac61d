//! The lines that people typed in chats: the client writes them, and the daemon removes them with their session.
//! FORMAT.md, "Directories and modes".
//!
//! The daemon must not read these files.

use std::path::{Path, PathBuf};

use ollm_protocol::SessionId;

use crate::fsutil::{self, FsError};
use crate::session::Sessions;

/// The files `chat-history/<sessionId>` of the home.
pub(crate) struct ChatHistory {
    dir: PathBuf,
}

impl ChatHistory {
    pub(super) fn new(home: &Path) -> Self {
        Self { dir: home.join("chat-history") }
    }

    /// Removes the lines of a session. Blocks on the disk.
    pub(crate) fn forget(&self, id: SessionId) -> Result<(), FsError> {
        let path = self.dir.join(id.to_string());
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        fsutil::remove_file(&path)?;
        fsutil::sync_dir(&self.dir)
    }

    /// Removes the lines of sessions that do not exist. Blocks on the disk.
    ///
    /// A chat may write while its session is being deleted, and somebody may remove a log by hand.
    pub(crate) fn sweep(&self, sessions: &Sessions) -> Result<(), FsError> {
        if self.dir.symlink_metadata().is_err() {
            return Ok(());
        }
        let fail = |source| FsError::new("list", &self.dir, source);
        // Listed before the logs: a chat creates the file after the log.
        let mut files: Vec<SessionId> = Vec::new();
        for file in std::fs::read_dir(&self.dir).map_err(fail)? {
            let name = file.map_err(fail)?.file_name();
            files.extend(name.to_str().and_then(|name| name.parse::<SessionId>().ok()));
        }
        let known = sessions.log_ids()?;
        files.retain(|id| !known.iter().any(|(log, _)| log == id));
        files.into_iter().try_for_each(|id| self.forget(id))
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{MetaPatch, RecordBody, SessionHeader};

    use super::*;
    use crate::app::testing::TestSession;
    use crate::session::{NewRecord, NewSession};

    #[test]
    fn sweep_keeps_the_lines_of_existing_sessions_only() {
        let session = TestSession::new(&[]);
        let core = &session.core;
        let header = SessionHeader::new(core.clock.session_id(), core.clock.now());
        let id = header.session_id;
        core.sessions.create(NewSession { header, key: None }).expect("creates");
        let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
        core.sessions.append(id, vec![record], None).expect("queues").wait().expect("records");
        let home = tempfile::tempdir().expect("creates");
        let history = ChatHistory::new(home.path());
        history.sweep(&core.sessions).expect("needs no directory");
        fsutil::create_private_dir(&history.dir).expect("creates");
        let gone = core.clock.session_id();
        let file = |id: SessionId| history.dir.join(id.to_string());
        for id in [id, gone] {
            fsutil::replace_atomically(&file(id), b"\"a line\"\n").expect("writes");
        }
        history.sweep(&core.sessions).expect("sweeps");
        assert_eq!((file(id).exists(), file(gone).exists()), (true, false));
        history.forget(id).expect("removes");
        assert!(!file(id).exists());
    }
}
