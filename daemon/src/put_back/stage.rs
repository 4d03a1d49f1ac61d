//! The stage: the directory of the project in which new contents wait, and to which files move before anything is removed.
//!
//! Nobody else knows its names, so a file in it can be examined and removed without a race. The mark `ready` says which
//! changes may have been made, and `taken-back` that all of them were reversed.
//!
//! **Invariant**: a file of the stage is removed only if another copy of its content is certain. Otherwise the stage stays,
//! and `kept.json` in it says which files these are, so that every later result can name them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use ollm_protocol::content::{FileHash, KeptFile};
use serde::{Deserialize, Serialize};

use super::discarded::DiscardedStages;
use super::journal::{Journal, STAGE_PREFIX};
use super::plan::{find_beneath, open_project, split};
use crate::fsutil::beneath::{Dir, FoundFile, PlaceState};
use crate::fsutil::{FsError, SyncMethod};

/// The permissions of the stage, and of its marks.
const STAGE_MODE: u32 = 0o700;
const MARK_MODE: u32 = 0o600;
/// The mark that says that everything is staged, and its name until it is complete.
pub(super) const READY: &str = "ready";
const NOT_READY: &str = "ready.new";
/// The mark that says that everything was taken back.
const TAKEN_BACK: &str = "taken-back";
/// The list of the files that stay.
const KEPT: &str = "kept.json";
/// The most bytes of a mark or of the list.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The most kept files that are reported.
const MAX_KEPT: usize = 1000;

/// The contents that a session keeps.
pub(crate) trait KeptContents {
    /// Reads a content.
    ///
    /// **Errors**: of kind `InvalidData` if the content is damaged.
    fn read(&self, hash: FileHash) -> Result<Vec<u8>, FsError>;

    /// Returns whether a content is kept. The caller has made the names of contents durable.
    fn has(&self, hash: FileHash) -> bool;
}

/// The content of the mark `ready`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Ready {
    /// The changes that may be made, by their places in the journal.
    pub(super) changes: Vec<usize>,
    /// The directories that are created, the outer ones first.
    pub(super) dirs: Vec<String>,
}

/// The needless files of a stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StageSize {
    pub(super) n_files: usize,
    pub(super) n_bytes: u64,
}

/// The files of a stage.
#[derive(Default)]
struct StagedFiles {
    /// Those whose content may be nowhere else, files of others among them.
    kept: Vec<KeptFile>,
    /// The names of the needless ones.
    needless: Vec<String>,
    /// The bytes of the needless ones.
    n_bytes: u64,
    /// Set if somebody else put something into the stage that cannot be listed.
    has_others: bool,
}

/// The project and the stage of a journal.
pub(super) struct Stage<'a> {
    pub(super) journal: &'a Journal,
    pub(super) root: Dir,
    pub(super) dir: Dir,
}

/// Returns the name of the new content of a file, and of the old one after they were exchanged.
pub(super) fn staged_name(at: usize) -> String {
    at.to_string()
}

/// Returns the name of a file that was moved out of its place, where files cannot be exchanged in one step.
pub(super) fn out_name(at: usize) -> String {
    format!("{at}.out")
}

/// Returns the name of a file that had been put back and was moved out of its place again.
pub(super) fn back_name(at: usize) -> String {
    format!("{at}.back")
}

/// Returns the change that a name in the stage belongs to; `None` for marks.
fn change_of(name: &str) -> Option<usize> {
    name.split('.').next()?.parse().ok()
}

/// Returns the file of the stage that has the content of a file before it was put back.
pub(crate) fn staged_path(journal: &Journal, at: usize) -> PathBuf {
    let stage = journal.root.join(journal.stage_name());
    let moved_out = stage.join(out_name(at));
    if moved_out.symlink_metadata().is_ok() { moved_out } else { stage.join(staged_name(at)) }
}

/// Returns whether a file of a stage has a name that only the daemon gives.
pub(super) fn is_own_name(name: &str) -> bool {
    let is_staged =
        |at| [staged_name(at), out_name(at), back_name(at)].iter().any(|own| own == name);
    change_of(name).is_some_and(is_staged) || [READY, NOT_READY, TAKEN_BACK, KEPT].contains(&name)
}

impl<'a> Stage<'a> {
    /// Creates the stage of a journal.
    pub(super) fn create(journal: &'a Journal) -> io::Result<Self> {
        let root = open_project(&journal.root)?;
        let name = journal.stage_name();
        root.create_dir(&name, STAGE_MODE)?;
        let dir = root.open_beneath(&name)?;
        if !dir.is_empty()? {
            let problem = "contents of an earlier attempt are in it; preview the files again";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
        Ok(Self { journal, root, dir })
    }

    /// Opens the stage of a journal; `None` if there is none, durably.
    pub(super) fn open(journal: &'a Journal) -> io::Result<Option<Self>> {
        let root = open_project(&journal.root)?;
        match root.open_beneath(&journal.stage_name()) {
            // A killed process may have removed the stage in the system's cache only. The journal is removed next, so the
            // project is synced first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => root.sync().map(|()| None),
            dir => Ok(Some(Self { journal, root, dir: dir? })),
        }
    }

    /// Says durably that everything is staged. From then on files change their places.
    ///
    /// The mark gets its name in the way in which files do, so a file system that could lose one is found before that.
    pub(super) fn set_ready(&self, ready: &Ready) -> io::Result<()> {
        let bytes = serde_json::to_vec(ready)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.dir.create(NOT_READY, &bytes, MARK_MODE, SyncMethod::Each)?;
        self.dir.move_in(NOT_READY, &self.dir, READY)?;
        self.dir.sync()?;
        self.root.sync()
    }

    /// Returns the changes that may have been made; `None` if no file can have changed its place yet, or all is settled.
    ///
    /// **Errors**: of kind `InvalidData` for a damaged mark.
    pub(super) fn ready(&self) -> io::Result<Option<Ready>> {
        let bytes = match self.dir.read(READY, MAX_BYTES) {
            // Everything was taken back, and the marks are being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(self.is_taken_back()?.then(Ready::default));
            }
            bytes => bytes?,
        };
        // The mark got its name when it was complete. A damaged one says nothing and is left for a person, as a journal is.
        let ready = serde_json::from_slice(&bytes).map_err(|error| {
            let path = self.dir.path();
            let problem = format!(
                "the file `{READY}` in {} is damaged ({error}); take what is needed out of this directory, \
                 and remove it",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, problem)
        });
        ready.map(Some)
    }

    /// Returns whether only files that stay are left, which `kept.json` lists.
    ///
    /// Asked where [`Stage::ready`] returns `None`: both other marks are removed only after the list is durable.
    pub(super) fn is_settled(&self) -> io::Result<bool> {
        self.has(KEPT)
    }

    fn has(&self, mark: &str) -> io::Result<bool> {
        Ok(self.dir.find(mark)? != PlaceState::Absent)
    }

    pub(super) fn is_taken_back(&self) -> io::Result<bool> {
        self.has(TAKEN_BACK)
    }

    /// Says durably that everything was taken back. Moving a file back twice could take one that somebody wrote meanwhile.
    pub(super) fn set_taken_back(&self) -> io::Result<()> {
        self.dir.create(TAKEN_BACK, b"", MARK_MODE, SyncMethod::Each)?;
        self.dir.sync()
    }

    /// Removes everything, because no file of the project was moved: only new contents are there, perhaps in part.
    pub(super) fn remove_unused(&self, discarded: &DiscardedStages) -> io::Result<()> {
        self.remove(discarded, &|_, _| Ok(true))
    }

    /// Removes each file whose content is certain elsewhere, and then the stage unless something stays.
    pub(super) fn remove_needless(
        &self,
        contents: &dyn KeptContents,
        discarded: &DiscardedStages,
    ) -> io::Result<()> {
        self.remove(discarded, &|at, file| {
            let is_elsewhere = || -> io::Result<bool> {
                Ok(contents.has(FileHash(file.hash)) || self.is_in_place(at, file)?)
            };
            Ok(!file.has_writer && is_elsewhere()?)
        })
    }

    /// Removes needless files, the marks, which say what may be removed, and the stage; or lists the files that stay.
    fn remove(
        &self,
        discarded: &DiscardedStages,
        is_needless: &dyn Fn(usize, &FoundFile) -> io::Result<bool>,
    ) -> io::Result<()> {
        let StagedFiles { kept, needless, n_bytes, has_others } = self.examine(is_needless)?;
        let is_needless = kept.is_empty() && !has_others;
        let (name, session) = (self.journal.stage_name(), self.journal.session_id);
        let size = StageSize { n_files: needless.len(), n_bytes };
        if is_needless && discarded.take(&self.root, &name, &self.dir, session, size) {
            return self.root.sync();
        }
        self.dir.remove_all(&needless)?;
        self.remove_mark(KEPT)?;
        if !kept.is_empty() {
            self.dir.create(KEPT, &serde_json::to_vec(&kept)?, MARK_MODE, SyncMethod::Each)?;
            self.dir.sync()?;
            let path = self.dir.path().display();
            tracing::warn!(%session, "contents that are nowhere else stay in {path}");
        }
        for mark in [NOT_READY, READY, TAKEN_BACK] {
            self.remove_mark(mark)?;
        }
        if kept.is_empty() {
            if !self.root.remove_dir(&name)? {
                let path = self.dir.path().display();
                tracing::warn!(%session, "files of others stay in {path}");
            }
        } else {
            self.dir.sync()?;
        }
        self.root.sync()
    }

    /// Returns whether the place of a change has the content of a file as well, durably.
    fn is_in_place(&self, at: usize, file: &FoundFile) -> io::Result<bool> {
        let Some(change) = self.journal.changes.get(at) else { return Ok(false) };
        let place = find_beneath(&self.root, &change.path)?;
        let PlaceState::File(found) = place else { return Ok(false) };
        if found.hash != file.hash {
            return Ok(false);
        }
        let (dir, name) = split(&change.path);
        let dir = self.root.open_beneath(dir)?;
        dir.sync_file(name)?;
        dir.sync()?;
        Ok(true)
    }

    /// Finds out which files are needless.
    fn examine(
        &self,
        is_needless: &dyn Fn(usize, &FoundFile) -> io::Result<bool>,
    ) -> io::Result<StagedFiles> {
        let mut files = StagedFiles::default();
        for name in self.dir.names()? {
            let file = format!("{}/{name}", self.journal.stage_name());
            if !is_own_name(&name) {
                match self.dir.find(&name) {
                    Ok(PlaceState::File(_)) => {
                        files.kept.push(KeptFile { path: String::new(), file });
                    }
                    _ => files.has_others = true,
                }
                continue;
            }
            let Some(at) = change_of(&name) else { continue };
            match self.dir.find(&name)? {
                PlaceState::Absent => continue,
                PlaceState::File(file) if is_needless(at, &file)? => {
                    files.n_bytes = files.n_bytes.saturating_add(file.size_bytes);
                    files.needless.push(name);
                    continue;
                }
                _ => {}
            }
            let path = self.journal.changes.get(at).map(|change| change.path.clone());
            files.kept.push(KeptFile { path: path.unwrap_or_default(), file });
        }
        files.kept.sort();
        Ok(files)
    }

    fn remove_mark(&self, mark: &str) -> io::Result<()> {
        match self.dir.remove(mark) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

/// Returns the files that earlier applications left in stages of a project, because nothing else has their contents. What
/// cannot be read is left out. Blocks on the disk.
pub(crate) fn kept_files(project: &Path) -> Vec<KeptFile> {
    let Ok(root) = open_project(project) else { return Vec::new() };
    let names = root.names().unwrap_or_default();
    let stages: BTreeSet<String> =
        names.into_iter().filter(|name| name.starts_with(STAGE_PREFIX)).collect();
    let mut files = Vec::new();
    for name in stages {
        let Ok(dir) = root.open_beneath(&name) else { continue };
        let listed =
            dir.read(KEPT, MAX_BYTES).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let listed: Vec<KeptFile> = listed.unwrap_or_default();
        let there: BTreeSet<String> = dir.names().unwrap_or_default().into_iter().collect();
        let is_there = |file: &KeptFile| {
            let in_stage = file.file.strip_prefix(&name).and_then(|rest| rest.strip_prefix('/'));
            in_stage.is_some_and(|file| there.contains(file))
        };
        files.extend(listed.into_iter().filter(is_there));
    }
    files.truncate(MAX_KEPT);
    files
}
