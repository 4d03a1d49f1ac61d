//! The journal: what an application of a plan is about to change, in a file of the home.
//!
//! It is written before the first change in the project and removed after the last one, so a start finds every
//! interrupted application. A session has at most one. FORMAT.md, "Putting files back".

use std::path::{Path, PathBuf};

use ollm_protocol::content::{FileLoss, FileState};
use ollm_protocol::{PlanId, SessionId};
use serde::{Deserialize, Serialize};

use super::discarded::DiscardedStages;
use crate::fsutil::{self, FsError};

/// The version of the file.
const VERSION: u32 = 1;
/// The beginning of the names of stages.
pub(crate) const STAGE_PREFIX: &str = ".ollm-undo-";
/// The largest journal that is read, in bytes: more than any plan has.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// An application of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Journal {
    version: u32,
    pub(crate) session_id: SessionId,
    pub(crate) plan_id: PlanId,
    /// The directory of the project.
    pub(crate) root: PathBuf,
    /// The files that may change, in the order in which they do.
    pub(crate) changes: Vec<JournaledChange>,
}

/// A file that may change. Neither state is `Unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JournaledChange {
    pub(crate) path: String,
    pub(crate) expected: FileState,
    pub(crate) wanted: FileState,
    /// The permissions that the file gets; absent to keep them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<u32>,
    /// The permissions that it must have for that; absent if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected_mode: Option<u32>,
    /// The number of the innermost directories that are removed with the file, if they are empty then.
    #[serde(default, skip_serializing_if = "is_no_dir")]
    pub(crate) dirs: u32,
    /// The attributes that the file may lose if it is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) loses: Vec<FileLoss>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_no_dir(dirs: &u32) -> bool {
    *dirs == 0
}

impl Journal {
    pub(crate) fn new(
        session_id: SessionId,
        plan_id: PlanId,
        root: PathBuf,
        changes: Vec<JournaledChange>,
    ) -> Self {
        Self { version: VERSION, session_id, plan_id, root, changes }
    }

    /// Returns whether a file of the journal is in the project at every moment: before, during and after the changes.
    pub(crate) fn leaves_a_file(&self) -> bool {
        let is_file = |state| !matches!(state, FileState::Absent);
        self.changes.iter().any(|change| is_file(change.expected) && is_file(change.wanted))
    }

    /// Returns the name of the directory in the project in which files are staged.
    pub(crate) fn stage_name(&self) -> String {
        format!("{STAGE_PREFIX}{}", self.plan_id)
    }
}

/// The journals of a home, and the stages that they do not need any more.
pub(crate) struct Journals {
    dir: PathBuf,
    pub(crate) discarded: DiscardedStages,
}

impl Journals {
    /// Returns the journals of a home, whose directory is created when it is needed.
    pub(crate) fn new(home: &Path) -> Self {
        let dir = home.join("put-backs");
        Self { discarded: DiscardedStages::new(dir.clone()), dir }
    }

    /// Returns the home.
    pub(crate) fn home(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    /// Writes a journal, durably.
    pub(crate) fn write(&self, journal: &Journal) -> Result<(), FsError> {
        fsutil::create_private_dir(&self.dir)?;
        let path = self.path(journal.session_id);
        fsutil::replace_with(&path, |out| Ok(serde_json::to_writer(out, journal)?))
    }

    /// Reads the journal of a session; `None` if it has none.
    ///
    /// A journal that cannot be parsed says nothing, and is left for a person.
    pub(crate) fn read(&self, id: SessionId) -> Result<Option<Journal>, FsError> {
        let path = self.path(id);
        let Some(bytes) = fsutil::read_derived(&path, MAX_BYTES)? else { return Ok(None) };
        let journal: Journal = serde_json::from_slice(&bytes)
            .map_err(|error| FsError::new("understand", &path, error.into()))?;
        if journal.version != VERSION || journal.session_id != id {
            let error = std::io::Error::other("it is of another version or session");
            return Err(FsError::new("understand", &path, error));
        }
        Ok(Some(journal))
    }

    /// Removes the journal of a session, durably.
    pub(crate) fn remove(&self, id: SessionId) -> Result<(), FsError> {
        let path = self.path(id);
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        fsutil::remove_file(&path)?;
        fsutil::sync_dir(&self.dir)
    }

    /// Returns the sessions with a journal.
    pub(crate) fn sessions(&self) -> Result<Vec<SessionId>, FsError> {
        let fail = |source| FsError::new("list", &self.dir, source);
        let files = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(fail)?,
        };
        let mut sessions = Vec::new();
        for file in files {
            let name = file.map_err(fail)?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".json"));
            sessions.extend(id.and_then(|id| id.parse::<SessionId>().ok()));
        }
        Ok(sessions)
    }

    /// Removes half-written files.
    pub(crate) fn sweep(&self) -> Result<usize, FsError> {
        if self.dir.exists() { fsutil::sweep_temporaries(&self.dir) } else { Ok(0) }
    }

    fn path(&self, id: SessionId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}
