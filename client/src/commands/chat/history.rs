//! The lines that were typed in chats, for the arrow keys: `chat-history/<sessionId>` in the daemon's home, with one JSON
//! string on each line. FORMAT.md, "Directories and modes".
//!
//! **Invariant**: the daemon removes the file of a session that is deleted, and nothing here brings it back. A file is
//! created when the chat has just used its session, and later lines are only appended to a file that still exists.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ollm_protocol::SessionId;

use crate::regular_file;

/// The directory in the daemon's home.
const HISTORY_DIR: &str = "chat-history";
/// The most bytes that are read at the start of a chat: pasted texts may have megabytes.
const MAX_READ_BYTES: u64 = 4 << 20;

/// The typed lines of all sessions.
pub(super) struct LineHistory {
    dir: PathBuf,
    /// The session whose file was created.
    session: Option<SessionId>,
    /// Lines without a file. A draft has none, so its lines wait for its first message.
    pending: Vec<String>,
}

impl LineHistory {
    /// Returns the history in a daemon's home.
    pub(super) fn new(home: &Path) -> Self {
        Self { dir: home.join(HISTORY_DIR), session: None, pending: Vec::new() }
    }

    /// Returns the newest `max` lines, the oldest first and those of `own` last. Leaves out what cannot be read.
    pub(super) fn load(&self, own: Option<SessionId>, max: usize) -> Vec<String> {
        let mut files: Vec<_> = self.files(own).unwrap_or_default();
        files.sort_unstable();
        let (mut lines, mut left) = (Vec::new(), MAX_READ_BYTES);
        for (_, _, path) in files.iter().rev() {
            if lines.len() >= max || left == 0 {
                break;
            }
            let text = read_end(path, left).unwrap_or_default();
            left = left.saturating_sub(text.len() as u64);
            lines.extend(text.lines().rev().filter_map(|line| serde_json::from_str(line).ok()));
        }
        lines.truncate(max);
        lines.reverse();
        lines
    }

    /// Adds a line, which [`Self::keep`] writes.
    pub(super) fn add(&mut self, line: String) {
        self.pending.push(line);
    }

    /// Writes the new lines to the file of a session that the chat has just used; without one, they wait.
    ///
    /// Ignores failures: a chat works without its history.
    pub(super) fn keep(&mut self, session: Option<SessionId>) {
        let Some(id) = session else { return };
        if self.session != Some(id) {
            self.session = Some(id);
            drop(self.create(id));
        }
        let pending = std::mem::take(&mut self.pending);
        if !pending.is_empty() {
            drop(self.append(id, &pending));
        }
    }

    fn create(&self, id: SessionId) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        regular_file::open(OpenOptions::new().create(true).append(true), &self.file(id)).map(drop)
    }

    fn append(&self, id: SessionId, lines: &[String]) -> io::Result<()> {
        let mut text = String::new();
        for line in lines {
            text.push_str(&serde_json::to_string(line)?);
            text.push('\n');
        }
        let mut file = regular_file::open(OpenOptions::new().append(true), &self.file(id))?;
        file.write_all(text.as_bytes())
    }

    fn file(&self, id: SessionId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Returns the files with the times of their last change; that of `own` is the greatest.
    fn files(
        &self,
        own: Option<SessionId>,
    ) -> io::Result<Vec<(bool, std::time::SystemTime, PathBuf)>> {
        let mut files = Vec::new();
        for file in std::fs::read_dir(&self.dir)? {
            let file = file?;
            let id: Option<SessionId> = file.file_name().to_str().and_then(|id| id.parse().ok());
            if let (Some(id), Ok(found)) = (id, file.metadata()) {
                files.push((Some(id) == own, found.modified()?, file.path()));
            }
        }
        Ok(files)
    }
}

/// Returns the whole lines in the last `max` bytes of a file.
fn read_end(path: &Path, max: u64) -> io::Result<String> {
    let mut file = regular_file::open(OpenOptions::new().read(true), path)?;
    let start = file.metadata()?.len().saturating_sub(max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let first_is_cut = start > 0;
    let whole =
        if first_is_cut { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
    Ok(whole.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::SESSION_ID;

    const OTHER_ID: &str = "0192f0c1-9a3b-7000-8000-000000000002";

    fn type_line(history: &mut LineHistory, line: &str, session: Option<SessionId>) {
        history.add(line.to_owned());
        history.keep(session);
    }

    #[test]
    fn lines_are_kept_with_their_session_and_those_of_a_draft_wait() {
        let home = tempfile::tempdir().unwrap();
        let (own, other) = (SESSION_ID.parse().ok(), OTHER_ID.parse().ok());
        let mut history = LineHistory::new(home.path());
        type_line(&mut history, "in the draft", None);
        assert!(!home.path().join(HISTORY_DIR).exists());
        type_line(&mut history, "two\nlines", own);
        type_line(&mut history, "elsewhere", other);
        let load = |own, max| LineHistory::new(home.path()).load(own, max);
        assert_eq!(load(own, 9), ["elsewhere", "in the draft", "two\nlines"]);
        assert_eq!(load(other, 2), ["two\nlines", "elsewhere"]);
        let dir = home.path().join(HISTORY_DIR);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(SESSION_ID))), (0o700, 0o600));
    }

    #[test]
    fn lines_typed_after_the_deletion_of_the_session_are_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let id: Option<SessionId> = SESSION_ID.parse().ok();
        let mut history = LineHistory::new(home.path());
        type_line(&mut history, "before", id);
        let file = home.path().join(HISTORY_DIR).join(SESSION_ID);
        std::fs::remove_file(&file).unwrap();
        type_line(&mut history, "after", id);
        assert!(!file.exists());
    }

    #[test]
    fn torn_and_cut_lines_are_left_out() {
        let home = tempfile::tempdir().unwrap();
        let id: Option<SessionId> = SESSION_ID.parse().ok();
        let mut history = LineHistory::new(home.path());
        history.keep(id);
        let path = home.path().join(HISTORY_DIR).join(SESSION_ID);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"\"one\"\n\"two\"\n\"thr").unwrap();
        assert_eq!(history.load(id, 9), ["one", "two"]);
        assert_eq!(read_end(&path, 9).unwrap(), "\"thr", "the rest of a cut line is no line");
    }
}
