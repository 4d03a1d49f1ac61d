//! The map from snapshots to sessions, `snapshot-map.json`, for callers that know only the id of a snapshot.
//!
//! It is held in memory from the first use on, and may be behind on the disk.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ollm_protocol::{SessionId, SnapshotId, short_id};
use uuid::Uuid;

use super::{FILES, file};
use crate::fsutil::{self, FsError};

const NAME: &str = "snapshot-map.json";
/// The largest map in bytes: some millions of snapshots.
const MAX_BYTES: u64 = 512 * 1024 * 1024;

/// The sessions of all snapshots with files.
pub(super) struct SnapshotMap {
    dir: PathBuf,
    /// `None` before the first use.
    owners: Option<HashMap<SnapshotId, SessionId>>,
    /// Whether the file on the disk differs.
    is_changed: bool,
}

impl SnapshotMap {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), owners: None, is_changed: false }
    }

    /// Returns the session of a snapshot, as far as the map knows it. Reads the file at the first use.
    pub(super) fn get(&mut self, id: SnapshotId) -> Result<Option<SessionId>, FsError> {
        Ok(self.owners()?.get(&id).copied())
    }

    pub(super) fn insert(&mut self, id: SnapshotId, session: SessionId) {
        // An unread map learns of the file when it is read.
        if let Ok(owners) = self.owners()
            && owners.insert(id, session) != Some(session)
        {
            self.is_changed = true;
        }
    }

    pub(super) fn remove(&mut self, id: SnapshotId) {
        if let Ok(owners) = self.owners()
            && owners.remove(&id).is_some()
        {
            self.is_changed = true;
        }
    }

    /// Returns the ids of all snapshots, in the order of their ends. Those of a file that cannot be read are left out.
    pub(super) fn reversed_ids(&mut self) -> BTreeMap<u128, Uuid> {
        let Ok(owners) = self.owners() else { return BTreeMap::new() };
        let ids = owners.keys().map(SnapshotId::as_uuid);
        ids.map(|id| (short_id::reversed(id), id)).collect()
    }

    /// Removes the snapshots of a session.
    pub(super) fn remove_session(&mut self, session: SessionId) -> Result<(), FsError> {
        let owners = self.owners()?;
        let n_before = owners.len();
        owners.retain(|_, owner| *owner != session);
        let is_removed = owners.len() < n_before;
        self.is_changed |= is_removed;
        Ok(())
    }

    fn owners(&mut self) -> Result<&mut HashMap<SnapshotId, SessionId>, FsError> {
        if self.owners.is_none() {
            let bytes = fsutil::read_derived(&self.dir.join(NAME), MAX_BYTES)?;
            let stored = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            match stored {
                Some(stored) => self.owners = Some(stored),
                None => self.rebuild()?,
            }
        }
        Ok(self.owners.get_or_insert_default())
    }

    /// Makes the map again from the names of all files.
    pub(super) fn rebuild(&mut self) -> Result<(), FsError> {
        let mut found = HashMap::new();
        for session in sessions(&self.dir)? {
            for (name, _) in file::names(&self.dir.join(session.to_string()).join(FILES))? {
                found.extend(file::id_of(&name).map(|id| (id, session)));
            }
        }
        let stored = match &self.owners {
            Some(owners) => !self.is_changed && *owners == found,
            None => {
                let bytes = fsutil::read_derived(&self.dir.join(NAME), MAX_BYTES)?;
                let stored: Option<HashMap<_, _>> =
                    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
                stored.unwrap_or_default() == found
            }
        };
        (self.owners, self.is_changed) = (Some(found), !stored);
        Ok(())
    }

    /// Writes the map if it changed.
    pub(super) fn save(&mut self) -> Result<(), FsError> {
        let Some(owners) = self.owners.as_ref().filter(|_| self.is_changed) else { return Ok(()) };
        // The same snapshots give the same bytes.
        let sorted: BTreeMap<_, _> =
            owners.iter().map(|(id, session)| (id.to_string(), session)).collect();
        let bytes = serde_json::to_vec_pretty(&sorted).expect("a map has text keys only");
        fsutil::create_private_dir(&self.dir)?;
        fsutil::replace_atomically(&self.dir.join(NAME), &bytes)?;
        self.is_changed = false;
        Ok(())
    }
}

/// Returns the sessions with a directory. Other directories are foreign.
pub(super) fn sessions(dir: &Path) -> Result<Vec<SessionId>, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail)?,
    };
    let mut sessions = Vec::new();
    for entry in entries {
        let name = entry.map_err(fail)?.file_name();
        let id = name.to_str().and_then(|name| name.parse::<SessionId>().ok());
        sessions.extend(id);
    }
    sessions.sort_unstable();
    Ok(sessions)
}
