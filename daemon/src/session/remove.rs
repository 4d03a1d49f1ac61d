//! Deleting a session so that a crash at any point leaves a deletion that the next start finishes.
//!
//! Rename the log, which marks the deletion; remove the files and empty the renamed log, so that what was said is
//! gone and its space is free; let the caller clear what is derived; remove the mark.

use std::fs;
use std::time::SystemTime;

use ollm_protocol::SessionId;

use super::{SessionError, Sessions};
use crate::fsutil::{self, FsError};

const DELETING_SUFFIX: &str = ".jsonl.deleting";

impl Sessions {
    /// Refuses every later use and marks the deletion on disk.
    ///
    /// **Errors**: `NotFound`, `Storage`. Blocks on the disk.
    pub(crate) fn begin_delete(&self, id: SessionId) -> Result<(), SessionError> {
        let paths = &self.shared.paths;
        if paths.deleting(id).exists() {
            // An earlier attempt got stuck after this; it is gone on with.
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

    /// Removes what was said in a session whose deletion was begun; only an empty mark stays. Needs no space on
    /// the disk, and gives free what the session took. Blocks on the disk.
    pub(crate) fn strip(&self, id: SessionId) -> Result<(), SessionError> {
        self.remove_files(id).map_err(|error| SessionError::fs(id, &error))
    }

    /// Removes the mark: nothing of the session is left anywhere. Blocks on the disk.
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
        fsutil::remove_file(&paths.document(id))?;
        fsutil::remove_dir_all(&paths.blobs(id))?;
        let torn = format!("{id}.torn-");
        for name in self.names_beginning(&torn)? {
            fsutil::remove_file(&paths.dir.join(name))?;
        }
        fsutil::empty_file(&paths.deleting(id))?;
        // What was removed so far must be gone for good before the mark is.
        fsutil::sync_dir(&paths.dir)
    }

    /// Removes half-written documents and blobs that a crash left; they may hold what was said.
    pub(crate) fn sweep_temporaries(&self, before: SystemTime) -> Result<usize, FsError> {
        let dir = &self.shared.paths.dir;
        let mut swept = fsutil::sweep_temporaries(dir, before)?;
        for name in self.names_beginning("")?.iter().filter(|name| name.ends_with(".blobs")) {
            swept += fsutil::sweep_temporaries(&dir.join(name), before)?;
        }
        Ok(swept)
    }

    /// Deletions that a crash interrupted.
    pub(crate) fn unfinished_deletions(&self) -> Result<Vec<SessionId>, FsError> {
        let names = self.names_beginning("")?;
        let ids = names.iter().filter_map(|name| name.strip_suffix(DELETING_SUFFIX)?.parse().ok());
        Ok(ids.collect())
    }

    /// Sessions on disk, counted by the names of their logs.
    pub(super) fn count_logs(&self) -> u64 {
        let is_log = |name: &&String| name.ends_with(".jsonl");
        self.names_beginning("").map_or(0, |names| names.iter().filter(is_log).count() as u64)
    }

    fn names_beginning(&self, prefix: &str) -> Result<Vec<String>, FsError> {
        let dir = &self.shared.paths.dir;
        let fail = |source| FsError::new("list", dir, source);
        let mut names = Vec::new();
        for file in fs::read_dir(dir).map_err(fail)? {
            let name = file.map_err(fail)?.file_name();
            names.extend(name.into_string().ok().filter(|name| name.starts_with(prefix)));
        }
        Ok(names)
    }
}
