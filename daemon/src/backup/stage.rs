//! The files of a restore on their way into a home: all of them come into it, or none.
//!
//! They are written to a directory beside the logs, and a mark there is durable when all of them are. Then they move to their
//! places, the blobs of a session before its log. The next start removes a stage without the mark, and finishes one with
//! it. FORMAT.md, "Crash cases".
//!
//! **Invariant**: no file of the home is replaced, except for a log without a byte.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ollm_protocol::SessionId;
use serde::{Deserialize, Serialize};

use super::manifest::HomeFile;
use crate::fsutil::beneath::Dir;
use crate::fsutil::{self, DiskFile, FsError, SyncMethod, TemporaryName};

/// The directory of the stage, beside the logs.
const STAGE: &str = ".ollm-restore";
/// The mark that everything is there, with the list of the files.
const READY: &str = "ready";
/// The largest list that is read in bytes, far above that of some million sessions.
const MAX_LIST_BYTES: u64 = 1 << 30;

/// The files of a stage.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestoredFiles {
    sessions: BTreeSet<SessionId>,
    /// The paths of other files in the home. The name of each in the stage is its place in this list.
    others: Vec<String>,
}

/// A stage.
pub(crate) struct RestoreStage {
    dir: PathBuf,
    home: PathBuf,
    sessions: PathBuf,
    sync: SyncMethod,
    staged: RestoredFiles,
    dirs: BTreeSet<PathBuf>,
}

impl RestoreStage {
    fn of(home: &Path, sessions: &Path) -> Self {
        Self {
            dir: sessions.join(STAGE),
            home: home.to_owned(),
            sessions: sessions.to_owned(),
            sync: SyncMethod::Each,
            staged: RestoredFiles::default(),
            dirs: BTreeSet::new(),
        }
    }

    /// Begins a stage for a number of files. `sessions` is the directory of the logs of a home.
    ///
    /// The caller removed an earlier stage, see [`finish_or_discard`].
    pub(crate) fn begin(home: &Path, sessions: &Path, n_files: usize) -> Result<Self, FsError> {
        let mut stage = Self::of(home, sessions);
        fsutil::create_private_dir(&stage.dir)?;
        let dir = open(&stage.dir)?;
        stage.sync = SyncMethod::of(n_files, &dir);
        Ok(stage)
    }

    /// Creates a file of the stage, which the caller writes and hands to [`Self::add`].
    pub(crate) fn create(&mut self, file: &HomeFile) -> Result<DiskFile, FsError> {
        let path = match file {
            HomeFile::Log(id) => {
                self.staged.sessions.insert(*id);
                self.dir.join(format!("{id}.jsonl"))
            }
            HomeFile::Blob(id, name) => {
                self.staged.sessions.insert(*id);
                let blobs = self.dir.join(format!("{id}.blobs"));
                if self.dirs.insert(blobs.clone()) {
                    fsutil::create_dir_unsynced(&blobs)?;
                }
                blobs.join(name)
            }
            HomeFile::Config | HomeFile::Global | HomeFile::Project(_) | HomeFile::Snapshot(..) => {
                self.staged.others.push(file.path());
                self.dir.join((self.staged.others.len() - 1).to_string())
            }
        };
        DiskFile::create(&path).map_err(|source| FsError::new("create", &path, source))
    }

    /// Adds a file that is written.
    pub(crate) fn add(&self, file: &DiskFile) -> Result<(), FsError> {
        match self.sync {
            SyncMethod::Whole => Ok(()),
            SyncMethod::Each => {
                file.sync_all().map_err(|source| FsError::new("sync", file.path(), source))
            }
        }
    }

    /// Removes the stage; what cannot be removed is removed by the next start.
    pub(crate) fn discard(self) {
        if let Err(error) = remove(&self.dir) {
            tracing::warn!("a part of a failed restore stays until the next start: {error}");
        }
    }

    /// Makes the stage durable, and moves its files into the home. After an error nothing is in the home. Returns the
    /// sessions that stay as they are, because another log got their names meanwhile.
    ///
    /// **Errors**: of the second kind if the files are durable and not all in their places; the next start finishes it.
    pub(crate) fn commit(self) -> Result<Result<BTreeSet<SessionId>, FsError>, FsError> {
        let prepared = self.prepare();
        if let Err(error) = prepared {
            // Its mark may be there although it could not be synced.
            self.discard();
            return Err(error);
        }
        Ok(self.finish())
    }

    fn prepare(&self) -> Result<(), FsError> {
        match self.sync {
            SyncMethod::Whole => {
                let synced = open(&self.dir)?.sync_file_system();
                synced.map_err(|source| FsError::new("sync", &self.dir, source))?;
            }
            SyncMethod::Each => {
                self.dirs.iter().try_for_each(|dir| fsutil::sync_dir(dir))?;
                fsutil::sync_dir(&self.dir)?;
            }
        }
        fsutil::replace_with(&self.dir.join(READY), |out| {
            Ok(serde_json::to_writer(out, &self.staged)?)
        })
    }

    /// Moves the files of a complete stage to their places, those that are not there yet, and removes the stage. Returns
    /// the sessions that stay as they are.
    fn finish(&self) -> Result<BTreeSet<SessionId>, FsError> {
        let mut kept = BTreeSet::new();
        for id in &self.staged.sessions {
            if !self.place_session(*id)? {
                // Nothing but a person puts it there meanwhile. The backup still has the other one.
                tracing::warn!(session = %id, "exists already, and was not restored");
                kept.insert(*id);
            }
        }
        fsutil::sync_dir(&self.dir)?;
        fsutil::sync_dir(&self.sessions)?;
        self.place_others(&kept)?;
        remove(&self.dir)?;
        Ok(kept)
    }

    /// Moves the blobs of a session and then its log. Returns false if something else has the name of one of them.
    fn place_session(&self, id: SessionId) -> Result<bool, FsError> {
        let name = format!("{id}.jsonl");
        let (from, to) = (self.dir.join(&name), self.sessions.join(&name));
        let is_staged = exists(&from)?;
        if is_staged {
            match to.symlink_metadata() {
                // A failing disk left it. No record is lost with it.
                Ok(found) if found.is_file() && found.len() == 0 => fsutil::remove_file(&to)?,
                Ok(_) if !is_same_file(&from, &to) => return Ok(false),
                // Missing, or moved by a process that was killed.
                _ => {}
            }
        }
        if !self.place_blobs(id)? {
            return Ok(false);
        }
        if !is_staged {
            return Ok(true);
        }
        match fsutil::move_new(&from, &to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(is_same_file(&from, &to)),
            moved => moved.map(|()| true).map_err(|source| FsError::new("move", &from, source)),
        }
    }

    /// Moves the blobs of a session, those that are not there yet: a log that was lost leaves its blobs. Returns false if
    /// their directory is something else.
    fn place_blobs(&self, id: SessionId) -> Result<bool, FsError> {
        let name = format!("{id}.blobs");
        let (from, to) = (self.dir.join(&name), self.sessions.join(&name));
        if !exists(&from)? {
            return Ok(true);
        }
        match fsutil::move_new(&from, &to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            moved => {
                return moved.map(|()| true).map_err(|source| FsError::new("move", &from, source));
            }
        }
        if !to.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Ok(false);
        }
        for name in fsutil::file_names(&from)? {
            let blob = from.join(&name);
            match fsutil::move_new(&blob, &to.join(&name)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                moved => moved.map_err(|source| FsError::new("move", &blob, source))?,
            }
        }
        fsutil::sync_dir(&to)?;
        Ok(true)
    }

    /// Copies the other files to their places, which may be on another file system, unless there are files. Those of a
    /// session follow its log.
    fn place_others(&self, kept: &BTreeSet<SessionId>) -> Result<(), FsError> {
        let mut dirs = BTreeSet::new();
        for (number, path) in self.staged.others.iter().enumerate() {
            let Some(file) = HomeFile::parse(path) else { continue };
            let has_log = |id: SessionId| {
                !kept.contains(&id) && self.sessions.join(format!("{id}.jsonl")).exists()
            };
            if file.session().is_none_or(has_log) {
                let path = self.home.join(file.path());
                self.create_dirs_of(&path, &mut dirs)?;
                copy_new(&self.dir.join(number.to_string()), &path)?;
            }
        }
        dirs.iter().try_for_each(|dir| fsutil::sync_dir(dir))?;
        fsutil::sync_dir(&self.home)
    }

    /// Creates the missing directories of a file in the home, each once.
    fn create_dirs_of(&self, path: &Path, dirs: &mut BTreeSet<PathBuf>) -> Result<(), FsError> {
        let parts = path.ancestors().skip(1).take_while(|dir| **dir != *self.home);
        for dir in parts.collect::<Vec<_>>().into_iter().rev() {
            if dirs.insert(dir.to_owned()) {
                fsutil::create_private_dir(dir)?;
            }
        }
        Ok(())
    }
}

/// Finishes a restore that a kill interrupted when its files were complete, and returns its sessions; `None` if there is
/// none.
fn finish_complete(home: &Path, sessions: &Path) -> Result<Option<BTreeSet<SessionId>>, FsError> {
    let mut stage = RestoreStage::of(home, sessions);
    let Some(staged) = read_list(&stage.dir)? else { return Ok(None) };
    stage.staged = staged;
    // A process that was killed may have left the mark in the system's cache only.
    fsutil::sync_dir(&stage.dir)?;
    let _kept = stage.finish()?;
    Ok(Some(stage.staged.sessions))
}

/// Finishes a complete restore, and removes an incomplete one. Returns the sessions of the finished one.
pub(crate) fn finish_or_discard(
    home: &Path,
    sessions: &Path,
) -> Result<BTreeSet<SessionId>, FsError> {
    match finish_complete(home, sessions)? {
        Some(finished) => Ok(finished),
        None => remove(&sessions.join(STAGE)).map(|()| BTreeSet::new()),
    }
}

/// Finishes a complete restore before the home is used. One that cannot be finished is tried again in the background, and
/// at the next start.
pub(crate) fn finish_at_start(home: &Path, sessions: &Path) {
    match finish_complete(home, sessions) {
        Ok(Some(_)) => {
            tracing::info!("finished a restore; a configuration in it needs another restart");
        }
        // An incomplete one is removed in the background.
        Ok(None) => {}
        Err(error) => tracing::error!("a restore is not finished: {error}"),
    }
}

/// Reads the list of a complete stage.
fn read_list(dir: &Path) -> Result<Option<RestoredFiles>, FsError> {
    let path = dir.join(READY);
    if !dir.is_dir() {
        return Ok(None);
    }
    let Some(bytes) = fsutil::read_derived(&path, MAX_LIST_BYTES)? else { return Ok(None) };
    let list = serde_json::from_slice(&bytes);
    list.map(Some).map_err(|error| FsError::new("understand", &path, error.into()))
}

/// Removes a stage, its mark first and durably: without it a power cut leaves nothing to finish.
fn remove(dir: &Path) -> Result<(), FsError> {
    if dir.symlink_metadata().is_err() {
        return Ok(());
    }
    fsutil::remove_file(&dir.join(READY))?;
    fsutil::sync_dir(dir)?;
    fsutil::remove_dir_all(dir)?;
    fsutil::sync_parent(dir)
}

fn open(dir: &Path) -> Result<Dir, FsError> {
    Dir::open(dir).map_err(|source| FsError::new("open", dir, source))
}

/// Copies a file of the stage to its place, durably but for its name, unless there is a file.
fn copy_new(staged: &Path, path: &Path) -> Result<(), FsError> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let source = fsutil::open_regular(staged);
    let mut source = source.map_err(|source| FsError::new("read", staged, source))?;
    let fail = |source| FsError::new("write", path, source);
    let unnamed = fsutil::temporary_beside(path);
    let mut file = DiskFile::create(&unnamed).map_err(fail)?;
    let temporary = TemporaryName::of(unnamed);
    io::copy(&mut source, &mut file).and_then(|_| file.sync_all()).map_err(fail)?;
    match file.rename_new(path) {
        // Somebody wrote one meanwhile, which is acknowledged.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        renamed => {
            renamed.map_err(fail)?;
            temporary.was_renamed();
            Ok(())
        }
    }
}

/// Returns whether there is anything at a path in the stage.
fn exists(path: &Path) -> Result<bool, FsError> {
    path.try_exists().map_err(|source| FsError::new("examine", path, source))
}

/// Returns whether two paths are names of one file, as a file system without flags of renames may leave them.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| path.symlink_metadata().map(|found| (found.dev(), found.ino())).ok();
    number(one).is_some_and(|found| number(other) == Some(found))
}
