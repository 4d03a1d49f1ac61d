//! The files of snapshots: `context-snapshots/<sessionId>/snapshots/snapshot-<id>.json`, an index for each session, and a
//! map from snapshots to sessions. FORMAT.md, "Snapshots".
//!
//! The names of the files decide which snapshots there are. The index and the map only save reading: each is compared with
//! the names, and made again if it is missing or damaged. Reads and writes block on the disk.
//!
//! **Invariants**: a file is replaced as a whole or not at all; a file that cannot be read is reported and never changed; an
//! id becomes part of a path only as a parsed UUID.

mod file;
mod index;
mod map;

use std::collections::BTreeSet;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use ollm_protocol::content::{SkippedSnapshot, SnapshotDocument, SnapshotInfo};
use ollm_protocol::{SessionId, SnapshotId, short_id};
use parking_lot::{Mutex, MutexGuard};

use self::map::SnapshotMap;
use crate::fsutil::{self, FsError};

/// The directory of all snapshots, in the home.
const DIRECTORY: &str = "context-snapshots";
/// The directory of the files of one session, in the directory with its id.
const FILES: &str = "snapshots";

/// A snapshot file could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// There is no such file.
    #[error("there is no snapshot {id}")]
    NotFound { id: SnapshotId },
    /// The file belongs to another session than the named one.
    #[error("snapshot {id} belongs to session {owner}")]
    OtherSession { id: SnapshotId, owner: SessionId },
    /// The file is not a snapshot, or not the snapshot of its name.
    #[error("the snapshot file {} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// A newer version of the daemon wrote the file.
    #[error("the snapshot file {} has version {found}; this version reads up to {supported}", path.display())]
    Newer { path: PathBuf, found: u32, supported: u32 },
    #[error(transparent)]
    Storage(#[from] FsError),
}

/// The snapshots of one session that have files.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionSnapshots {
    /// The newest first.
    pub(crate) snapshots: Vec<SnapshotInfo>,
    /// The files that cannot be used.
    pub(crate) skipped: Vec<SkippedSnapshot>,
}

/// The snapshot files of a home.
pub(crate) struct SnapshotStore {
    dir: PathBuf,
    map: Mutex<SnapshotMap>,
    /// Held while files of a session are written or removed.
    writing: Mutex<()>,
    /// The directories with a removed file whose sync failed: a crash may bring it back.
    unsynced: Mutex<BTreeSet<PathBuf>>,
}

/// The right to write and remove snapshot files, which one caller has at a time.
pub(crate) struct SnapshotWriter<'a> {
    store: &'a SnapshotStore,
    _one_writer: MutexGuard<'a, ()>,
}

impl SnapshotStore {
    /// Returns the snapshots of a home; the first write creates their directory.
    pub(crate) fn new(home: &Path) -> Self {
        let dir = home.join(DIRECTORY);
        let map = Mutex::new(SnapshotMap::new(&dir));
        Self { dir, map, writing: Mutex::default(), unsynced: Mutex::default() }
    }

    /// Waits until no other caller writes.
    pub(crate) fn writer(&self) -> SnapshotWriter<'_> {
        SnapshotWriter { store: self, _one_writer: self.writing.lock() }
    }

    fn files_of(&self, id: SessionId) -> PathBuf {
        self.dir.join(id.to_string()).join(FILES)
    }

    /// Returns the files of a session's snapshots by name.
    pub(crate) fn file_paths(&self, id: SessionId) -> Result<Vec<(String, PathBuf)>, FsError> {
        let dir = self.files_of(id);
        let names = file::names(&dir)?;
        Ok(names.into_iter().map(|(name, _)| (name.clone(), dir.join(name))).collect())
    }

    /// Returns the snapshots of a session; those of a session without any are empty.
    pub(crate) fn list(&self, id: SessionId) -> Result<SessionSnapshots, FsError> {
        Ok(index::load(&self.files_of(id), id)?.0)
    }

    /// Reads a snapshot.
    ///
    /// **Errors**: `NotFound`, `Damaged`, `Newer`, `Storage`.
    pub(crate) fn read(
        &self,
        session: SessionId,
        id: SnapshotId,
    ) -> Result<(SnapshotInfo, SnapshotDocument), SnapshotError> {
        let path =
            file::find(&self.files_of(session), id)?.ok_or(SnapshotError::NotFound { id })?;
        file::read(&path, session)
    }

    /// Reads a snapshot file of a session whatever the index says of it. Returns why it cannot be used; `None` if it can, or if
    /// it is gone.
    pub(crate) fn examine(&self, session: SessionId, name: &str) -> Option<String> {
        let path = self.files_of(session).join(name);
        let error = file::read(&path, session).err()?;
        // The cleanup removes old ones meanwhile.
        fsutil::file_len(&path).map(|_| index::reason_of(&error))
    }

    /// Returns whether a snapshot has a file.
    pub(crate) fn has(&self, session: SessionId, id: SnapshotId) -> Result<bool, FsError> {
        Ok(file::find(&self.files_of(session), id)?.is_some())
    }

    /// Returns the session of a snapshot with a file.
    ///
    /// `session`: the session that the caller expects, if it named one.
    ///
    /// **Errors**: `NotFound`, `OtherSession`, `Storage`.
    pub(crate) fn session_of(
        &self,
        id: SnapshotId,
        session: Option<SessionId>,
    ) -> Result<SessionId, SnapshotError> {
        if let Some(session) = session
            && self.has(session, id)?
        {
            return Ok(session);
        }
        let mut map = self.map.lock();
        let mut owner = map.get(id)?;
        let is_there = |owner: SessionId| self.has(owner, id);
        if !owner.map_or(Ok(false), is_there)? {
            map.rebuild()?;
            owner = map.get(id)?;
        }
        match (owner, session) {
            (Some(owner), Some(session)) if owner != session => {
                Err(SnapshotError::OtherSession { id, owner })
            }
            (Some(owner), _) => Ok(owner),
            (None, _) => Err(SnapshotError::NotFound { id }),
        }
    }

    /// Sets the short forms of ids.
    pub(crate) fn shorten_ids(&self, snapshots: &mut [SnapshotInfo]) {
        let known = self.map.lock().reversed_ids();
        for info in snapshots {
            let id = info.snapshot_id.as_uuid();
            let at = known.range(..short_id::reversed(id)).next_back();
            let after = (Bound::Excluded(short_id::reversed(id)), Bound::Unbounded);
            let neighbors = at.into_iter().chain(known.range(after).next()).map(|(_, id)| *id);
            info.short_id = Some(short_id::shorten(id, neighbors));
        }
    }

    /// Returns the sessions that may have snapshots.
    pub(crate) fn sessions(&self) -> Result<Vec<SessionId>, FsError> {
        map::sessions(&self.dir)
    }

    /// Removes temporary files that another process left, and corrects the map; returns the number of files.
    pub(crate) fn recover(&self) -> Result<usize, FsError> {
        let _one_writer = self.writing.lock();
        let mut swept = 0;
        if self.dir.is_dir() {
            swept += fsutil::sweep_temporaries(&self.dir)?;
        }
        for id in self.sessions()? {
            let files = self.files_of(id);
            if files.is_dir() {
                swept += fsutil::sweep_temporaries(&files)?;
            }
        }
        let mut map = self.map.lock();
        map.rebuild()?;
        map.save()?;
        Ok(swept)
    }

    /// Writes the map if it changed. A failure is logged: the map is made again from the names of the files.
    pub(crate) fn save_map(&self) {
        if let Err(error) = self.map.lock().save() {
            tracing::warn!("the map of snapshots is written later: {error}");
        }
    }
}

impl SnapshotWriter<'_> {
    /// Writes the file of a snapshot and notes it in the index.
    ///
    /// **Errors**: nothing of the snapshot is left then.
    pub(crate) fn write(
        &self,
        session: SessionId,
        document: &SnapshotDocument,
    ) -> Result<SnapshotInfo, FsError> {
        let dir = self.create_dirs(session)?;
        let path = dir.join(file::name(&document.id));
        let is_new = fsutil::file_len(&path).is_none();
        if !is_new {
            // The index recognizes a file by its name and its size, which may stay the same.
            index::remove(&dir)?;
        }
        let written = fsutil::replace_with(&path, |out| {
            serde_json::to_writer(out as &mut dyn io::Write, document).map_err(io::Error::from)
        });
        if let Err(error) = written {
            // The file may have its name already, if only the sync of its directory failed.
            if is_new && let Err(error) = fsutil::remove_file(&path) {
                tracing::warn!(%session, "a part of a failed snapshot stays: {error}");
            }
            return Err(error);
        }
        let size_bytes = fsutil::file_len(&path).unwrap_or_default();
        let info = file::info(document, session, &path, size_bytes);
        self.store.map.lock().insert(info.snapshot_id, session);
        self.update_index(session);
        Ok(info)
    }

    /// Makes the files of a session durable that are there. An attempt that failed, or a process that was killed, may have
    /// left a file whose name was never synced.
    pub(crate) fn sync(&self, session: SessionId) -> Result<(), FsError> {
        fsutil::sync_dir(&self.create_dirs(session)?)
    }

    /// Creates the directories of a session's files, durably, also those that an earlier attempt left unsynced.
    fn create_dirs(&self, session: SessionId) -> Result<PathBuf, FsError> {
        let own = self.store.dir.join(session.to_string());
        let files = own.join(FILES);
        [&self.store.dir, &own, &files]
            .into_iter()
            .try_for_each(|dir| fsutil::create_private_dir(dir))?;
        Ok(files)
    }

    /// Removes the file of a snapshot, durably. Needs no free space on the disk.
    ///
    /// **Errors**: `NotFound`, `Storage`.
    pub(crate) fn remove(&self, session: SessionId, id: SnapshotId) -> Result<(), SnapshotError> {
        let dir = self.store.files_of(session);
        let path = file::find(&dir, id)?.ok_or(SnapshotError::NotFound { id })?;
        fsutil::remove_file(&path)?;
        self.store.unsynced.lock().insert(dir);
        self.sync_removed()?;
        self.store.map.lock().remove(id);
        self.update_index(session);
        Ok(())
    }

    /// Makes the removals durable whose sync failed: a retry finds no file, and must not say so before.
    pub(crate) fn sync_removed(&self) -> Result<(), FsError> {
        let mut unsynced = self.store.unsynced.lock();
        while let Some(dir) = unsynced.first() {
            if dir.is_dir() {
                fsutil::sync_dir(dir)?;
            }
            unsynced.pop_first();
        }
        Ok(())
    }

    /// Removes everything of a session, durably. Needs no free space on the disk.
    pub(crate) fn remove_session(&self, session: SessionId) -> Result<(), FsError> {
        let dir = self.store.dir.join(session.to_string());
        if !self.store.dir.is_dir() {
            return Ok(());
        }
        fsutil::remove_leftovers(&dir.join(FILES))?;
        // Temporary files of the map, which names all sessions, are in this directory.
        fsutil::remove_leftovers(&self.store.dir)?;
        fsutil::remove_dir_all(&dir)?;
        // The sync is repeated even if nothing was removed: an earlier attempt may have removed the files without it.
        fsutil::sync_dir(&self.store.dir)?;
        let mut map = self.store.map.lock();
        map.remove_session(session)?;
        map.save()
    }

    /// Makes the index of a session again by reading all files, also those that it seems to describe. A failure is logged.
    pub(crate) fn rebuild_index(&self, session: SessionId) {
        if let Err(error) = index::remove(&self.store.files_of(session)) {
            tracing::warn!(%session, "the index of snapshots is made again later: {error}");
        }
        self.update_index(session);
    }

    /// Writes the index of a session if it does not describe the files. A failure is logged: the files themselves are
    /// examined then.
    pub(crate) fn update_index(&self, session: SessionId) {
        let dir = self.store.files_of(session);
        let updated = index::load(&dir, session).and_then(|(snapshots, is_current)| {
            if is_current { Ok(()) } else { index::save(&dir, session, &snapshots) }
        });
        if let Err(error) = updated {
            tracing::warn!(%session, "the index of snapshots is written later: {error}");
        }
    }
}
