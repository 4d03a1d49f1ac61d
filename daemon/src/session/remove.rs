//! The deletion of a session, in steps that a crash may interrupt at any point. FORMAT.md, "Crash cases".
//!
//! The log is renamed, which marks the deletion; the other files are removed and the renamed log is emptied, so that no
//! content is left and its space is free; the caller removes all that is derived from the log; the mark is removed. The
//! next start finishes a deletion whose mark it finds.

use ollm_protocol::SessionId;

use super::error::SessionError;
use super::kept_files;
use super::store::Sessions;
use crate::fsutil::{self, DirMark, FsError};

const BLOBS_SUFFIX: &str = ".blobs";
const DELETING_SUFFIX: &str = ".jsonl.deleting";

impl Sessions {
    /// Refuses all later uses of a session and marks its deletion on disk. Blocks on the disk.
    ///
    /// **Errors**: `NotFound`, `Storage`.
    pub(crate) fn begin_delete(&self, id: SessionId) -> Result<(), SessionError> {
        let paths = &self.shared.paths;
        if paths.deleting(id).exists() {
            // An earlier attempt failed after this step; the caller continues it.
            return Ok(());
        }
        let cell = self.cell(id)?;
        cell.begin_delete()?;
        if !paths.log(id).exists() {
            return Ok(());
        }
        fsutil::rename_durably(&paths.log(id), &paths.deleting(id)).map_err(|error| {
            cell.cancel_delete();
            SessionError::fs(id, &error)
        })
    }

    /// Removes all content of a session whose deletion was begun; only the empty mark stays. Blocks on the disk.
    ///
    /// Needs no free space on the disk.
    pub(crate) fn remove_contents(&self, id: SessionId) -> Result<(), SessionError> {
        self.remove_files(id).map_err(|error| SessionError::fs(id, &error))
    }

    /// Removes the mark of a deletion, after which no file of the session is left. Blocks on the disk.
    pub(crate) fn finish_delete(&self, id: SessionId) -> Result<(), SessionError> {
        let paths = &self.shared.paths;
        let result = fsutil::remove_file(&paths.deleting(id))
            .and_then(|()| fsutil::sync_dir(&paths.dir))
            .map_err(|error| SessionError::fs(id, &error));
        self.cells().remove(&id);
        result
    }

    fn remove_files(&self, id: SessionId) -> Result<(), FsError> {
        let paths = &self.shared.paths;
        // An earlier attempt, or a process that was killed, may have renamed the log and not synced that. If a power cut
        // undid the rename of an emptied log, the next start would not know that the session is being deleted.
        fsutil::sync_dir(&paths.dir)?;
        fsutil::remove_leftovers(&paths.dir)?;
        fsutil::remove_file(&paths.document(id))?;
        fsutil::remove_dir_all(&paths.blobs(id))?;
        let torn = format!("{id}.torn-");
        for name in self.file_names()?.iter().filter(|name| name.starts_with(&torn)) {
            fsutil::remove_file(&paths.dir.join(name))?;
        }
        fsutil::empty_file(&paths.deleting(id))?;
        // The removals must be durable before the mark is removed.
        fsutil::sync_dir(&paths.dir)
    }

    /// Returns the sessions whose deletion was begun and not finished.
    pub(crate) fn unfinished_deletions(&self) -> Result<Vec<SessionId>, FsError> {
        let names = self.file_names()?;
        let ids = names.iter().filter_map(|name| name.strip_suffix(DELETING_SUFFIX)?.parse().ok());
        Ok(ids.collect())
    }

    /// Removes the temporary files of documents and blobs that a crash left, because they may hold content, the blobs of
    /// forks whose logs a crash prevented, and the contents of files whose records it prevented.
    pub(crate) fn sweep_temporaries(&self) -> Result<usize, FsError> {
        let dir = &self.shared.paths.dir;
        let mut swept = fsutil::sweep_temporaries(dir)?;
        for name in self.file_names()?.iter().filter(|name| name.ends_with(BLOBS_SUFFIX)) {
            let id = name.strip_suffix(BLOBS_SUFFIX).and_then(|id| id.parse().ok());
            let blobs = dir.join(name);
            match id.filter(|id| self.shared.paths.has_log(*id)) {
                Some(id) => match kept_files::sweep(&blobs, &self.shared.paths.log(id)) {
                    Ok(n_removed) => swept += n_removed,
                    // The mark stays for the next start; other sessions are swept.
                    Err(error) => {
                        tracing::warn!(session = %id, "contents that no record needs may be left: {error}");
                        continue;
                    }
                },
                None if id.is_some()
                    && !fsutil::left_marks(&blobs, DirMark::Incomplete)?.is_empty() =>
                {
                    fsutil::remove_dir_all(&blobs)?;
                    swept += 1;
                    continue;
                }
                None => {}
            }
            swept += fsutil::sweep_temporaries(&blobs)?;
        }
        Ok(swept)
    }
}
