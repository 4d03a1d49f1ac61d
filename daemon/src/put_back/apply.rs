//! Applying a plan: everything is staged in a directory of the project, then changes places, and removals come last.
//!
//! A file that is replaced moves into the stage, where its content is compared once more. So a byte that somebody wrote
//! in the last moment is found and goes back. The stage is removed when the record of the plan is durable, and
//! [`take_back`] undoes everything before that: after an error, and after a crash by the next start. It relies on the
//! journal and on what is on the disk, and on nothing else.
//!
//! **Invariant**: only files with a content that the journal names are removed. Anything else that ends up in the stage
//! stays there, and the daemon's log names it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use ollm_protocol::content::{FileHash, FileModes, FileState, FileStatus};
use serde::{Deserialize, Serialize};

use super::journal::{Journal, JournaledChange};
use super::plan::{conflict_of, open_project, split};
use crate::fsutil::beneath::{Dir, FoundFile, PlaceState};
use crate::fsutil::{FsError, is_full};

/// The permissions of the stage.
const STAGE_MODE: u32 = 0o700;
/// The permissions of a file that comes back and whose own are not known, and of its directories.
const DEFAULT_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;
/// The file of the stage that says that everything is staged.
const READY: &str = "ready";
/// The file of the stage that says that everything was taken back.
const TAKEN_BACK: &str = "taken-back";

/// The result for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileOutcome {
    /// The file was put back; with its permissions before and after if they differ.
    Done(Option<FileModes>),
    Left(FileStatus, String),
}

/// A function that reads a kept content.
///
/// **Errors**: of kind `InvalidData` if the content is damaged.
pub(crate) type ReadContent<'a> = dyn Fn(FileHash) -> Result<Vec<u8>, FsError> + 'a;

/// Files that were put back, and whose earlier contents are still in the stage.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The result for each file, in the order of the journal.
    pub(crate) outcomes: Vec<FileOutcome>,
}

/// A change that was not made.
#[derive(Debug)]
enum ChangeError {
    /// The system refused it, and the file is in its place.
    Refused(io::Error),
    /// The file may be in the stage, or the disk is full or broken. All must be taken back.
    Interrupted(io::Error),
}

impl From<io::Error> for ChangeError {
    fn from(error: io::Error) -> Self {
        if is_full(&error) || is_broken(&error) {
            Self::Interrupted(error)
        } else {
            Self::Refused(error)
        }
    }
}

/// The content of the stage when everything is staged.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Ready {
    /// The changes that may be made, by their places in the journal.
    changes: Vec<usize>,
    /// The directories that are created, the outer ones first.
    dirs: Vec<String>,
}

/// Puts files back as far as they are what the journal expects. After an error nothing has changed.
///
/// The journal is written, and no stage exists. Blocks on the disk.
pub(crate) fn apply(journal: &Journal, read: &ReadContent<'_>) -> Result<Applied, FsError> {
    let applied = Run::begin(journal).and_then(|mut run| run.carry_out(read));
    applied.inspect_err(|_| {
        if let Err(error) = take_back(journal) {
            tracing::warn!(session = %journal.session_id, "files are taken back later: {error}");
        }
    })
}

/// Returns the file of the stage that has the content of a file before it was put back.
pub(crate) fn staged_path(journal: &Journal, at: usize) -> PathBuf {
    let stage = journal.root.join(journal.stage_name());
    let moved_out = stage.join(out_name(at));
    if moved_out.symlink_metadata().is_ok() { moved_out } else { stage.join(staged_name(at)) }
}

fn staged_name(at: usize) -> String {
    at.to_string()
}

/// Returns the name of a file that was moved out of its place, where files cannot be exchanged in one step.
fn out_name(at: usize) -> String {
    format!("{at}.out")
}

/// An application that is under way.
struct Run<'a> {
    journal: &'a Journal,
    root: Dir,
    stage: Dir,
    outcomes: Vec<Option<FileOutcome>>,
    /// The directories with changes, which are synced.
    touched: BTreeSet<String>,
}

impl<'a> Run<'a> {
    fn begin(journal: &'a Journal) -> Result<Self, FsError> {
        let fail = |source| FsError::new("change files in", &journal.root, source);
        let root = open_project(&journal.root).map_err(fail)?;
        let name = journal.stage_name();
        root.create_dir(&name, STAGE_MODE).map_err(fail)?;
        let stage = root.open_beneath(&name).map_err(fail)?;
        let outcomes = vec![None; journal.changes.len()];
        Ok(Self { journal, root, stage, outcomes, touched: BTreeSet::new() })
    }

    fn carry_out(&mut self, read: &ReadContent<'_>) -> Result<Applied, FsError> {
        self.stage_all(read)?;
        let is_removal = |change: &JournaledChange| change.wanted == FileState::Absent;
        for removals in [false, true] {
            for (at, change) in self.journal.changes.iter().enumerate() {
                if is_removal(change) == removals && self.outcomes[at].is_none() {
                    let outcome = self.change(at, change)?;
                    self.outcomes[at] = Some(outcome);
                }
            }
        }
        let sync =
            |dir: &Dir| dir.sync().map_err(|source| FsError::new("sync", dir.path(), source));
        for path in &self.touched {
            // A directory that somebody removed meanwhile needs no sync.
            if let Ok(dir) = self.root.open_beneath(path) {
                sync(&dir)?;
            }
        }
        sync(&self.stage)?;
        let outcomes = self.outcomes.drain(..).flatten().collect();
        Ok(Applied { outcomes })
    }

    /// Writes all new contents into the stage, and says there that they are complete.
    fn stage_all(&mut self, read: &ReadContent<'_>) -> Result<(), FsError> {
        let stage_path = self.stage.path().to_owned();
        let fail = |source| FsError::new("write in", &stage_path, source);
        let mut ready = Ready::default();
        for (at, change) in self.journal.changes.iter().enumerate() {
            let found = super::plan::find_beneath(&self.root, &change.path);
            let conflict = match &found {
                Ok(found) => conflict_of(found, change.expected),
                Err(error) => Some(format!("cannot read it: {error}")),
            };
            if let Some(reason) = conflict {
                let status = if found.is_ok() { FileStatus::Conflict } else { FileStatus::Failed };
                self.outcomes[at] = Some(FileOutcome::Left(status, reason));
                continue;
            }
            if let FileState::Hash(hash) = change.wanted
                && change.wanted != change.expected
            {
                let mode = match &found {
                    Ok(PlaceState::File(file)) => mode_after(change, file.mode),
                    _ => change.mode.unwrap_or(DEFAULT_MODE),
                };
                let bytes = match read(hash) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        self.outcomes[at] = Some(unreadable(&error.source));
                        continue;
                    }
                };
                self.stage.create(&staged_name(at), &bytes, mode).map_err(fail)?;
            }
            if change.expected == FileState::Absent {
                self.missing_dirs(&change.path, &mut ready.dirs);
            }
            ready.changes.push(at);
        }
        let bytes = serde_json::to_vec(&ready).map_err(|error| fail(error.into()))?;
        self.stage.create(READY, &bytes, 0o600).map_err(fail)?;
        self.stage.sync().map_err(fail)?;
        self.root.sync().map_err(fail)
    }

    /// Notes the directories on the way to a file that do not exist.
    fn missing_dirs(&self, path: &str, dirs: &mut Vec<String>) {
        for (end, _) in path.match_indices('/') {
            let dir = &path[..end];
            let is_missing = self
                .root
                .open_beneath(dir)
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            if is_missing && !dirs.iter().any(|known| known == dir) {
                dirs.push(dir.to_owned());
            }
        }
    }

    /// Makes one change.
    ///
    /// **Errors**: all must be taken back: the disk is full or broken, or a file that changed its place cannot be examined.
    fn change(&mut self, at: usize, change: &JournaledChange) -> Result<FileOutcome, FsError> {
        let (dir, _) = split(&change.path);
        let made = match (change.expected, change.wanted) {
            (FileState::Absent, _) => self.put_in(at, change),
            (_, FileState::Absent) => self.take_out(at, change),
            (one, other) if one == other => self.set_mode(change),
            _ => self.replace(at, change),
        };
        match made {
            Ok(outcome) => {
                self.touched.insert(dir.to_owned());
                Ok(outcome)
            }
            Err(ChangeError::Interrupted(error)) => {
                Err(FsError::new("put back", &self.root.path().join(&change.path), error))
            }
            Err(ChangeError::Refused(error)) => {
                let reason = format!("the system refused the change: {error}");
                Ok(FileOutcome::Left(FileStatus::Failed, reason))
            }
        }
    }

    fn put_in(&self, at: usize, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name) = split(&change.path);
        self.create_dirs(dir)?;
        let dir = self.root.open_beneath(dir)?;
        match self.stage.move_to(&staged_name(at), &dir, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Ok(conflict("there is another file"));
            }
            moved => moved?,
        }
        let after = Some(change.mode.unwrap_or(DEFAULT_MODE));
        Ok(FileOutcome::Done(Some(FileModes { before: None, after })))
    }

    fn create_dirs(&self, path: &str) -> io::Result<()> {
        let ends = path.match_indices('/').map(|(end, _)| end);
        for end in ends.chain([path.len()]).filter(|end| *end > 0) {
            let (parent, name) = split(&path[..end]);
            match self.root.open_beneath(&path[..end]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let parent = self.root.open_beneath(parent)?;
                    parent.create_dir(name, DIR_MODE)?;
                    parent.sync()?;
                }
                opened => drop(opened?),
            }
        }
        Ok(())
    }

    /// Returns the directory, the name and the state of the file of a change, or the reason why it is not as expected.
    fn file_of<'c>(
        &self,
        change: &'c JournaledChange,
    ) -> io::Result<Result<(Dir, &'c str, FoundFile), String>> {
        let (dir, name) = split(&change.path);
        let dir = self.root.open_beneath(dir)?;
        let found = dir.find(name)?;
        Ok(match (conflict_of(&found, change.expected), found) {
            (Some(reason), _) => Err(reason),
            (None, PlaceState::File(file)) => Ok((dir, name, file)),
            (None, _) => Err("there is no file".to_owned()),
        })
    }

    fn replace(&self, at: usize, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name, file) = match self.file_of(change)? {
            Ok(found) => found,
            Err(reason) => return Ok(conflict(&reason)),
        };
        let staged = staged_name(at);
        match dir.exchange(name, &self.stage, &staged) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return self.replace_in_two_steps(at, change, &dir, file.mode);
            }
            exchanged => exchanged?,
        }
        let exchanged_back = self.unless_replaced(&dir, name, &staged, change);
        Ok(match exchanged_back.map_err(ChangeError::Interrupted)? {
            Some(reason) => conflict(&reason),
            None => FileOutcome::Done(changed_modes(file.mode, mode_after(change, file.mode))),
        })
    }

    /// Compares the file that an exchange brought into the stage; exchanges it back and returns the reason if it is not as
    /// expected.
    fn unless_replaced(
        &self,
        dir: &Dir,
        name: &str,
        staged: &str,
        change: &JournaledChange,
    ) -> io::Result<Option<String>> {
        let conflict = conflict_of(&self.stage.find(staged)?, change.expected);
        if conflict.is_some() {
            dir.exchange(name, &self.stage, staged)?;
            if self.stage.find(staged)?.state() != Some(change.wanted) {
                // Somebody wrote the file once more between the two, and this is the newer content.
                dir.exchange(name, &self.stage, staged)?;
            }
        }
        Ok(conflict)
    }

    /// Replaces a file where files cannot be exchanged: for a moment there is none.
    fn replace_in_two_steps(
        &self,
        at: usize,
        change: &JournaledChange,
        dir: &Dir,
        mode: u32,
    ) -> Result<FileOutcome, ChangeError> {
        let (_, name) = split(&change.path);
        let out = out_name(at);
        dir.move_to(name, &self.stage, &out)?;
        let replaced = self.replace_moved_out(at, change, dir, &out);
        Ok(match replaced.map_err(ChangeError::Interrupted)? {
            Some(reason) => conflict(&reason),
            None => FileOutcome::Done(changed_modes(mode, mode_after(change, mode))),
        })
    }

    /// Puts a content in the place of a file that was moved to `out`; moves that back and returns the reason if it is not
    /// as expected, or its place was taken.
    fn replace_moved_out(
        &self,
        at: usize,
        change: &JournaledChange,
        dir: &Dir,
        out: &str,
    ) -> io::Result<Option<String>> {
        let (_, name) = split(&change.path);
        let conflict_found = conflict_of(&self.stage.find(out)?, change.expected);
        let moved_in = match &conflict_found {
            Some(_) => Ok(()),
            None => self.stage.move_to(&staged_name(at), dir, name),
        };
        if conflict_found.is_some() || moved_in.is_err() {
            unless_taken(self.stage.move_to(out, dir, name))?;
            unless_taken(moved_in)?;
            return Ok(Some(conflict_found.unwrap_or_else(|| "there is another file".to_owned())));
        }
        Ok(None)
    }

    fn take_out(&self, at: usize, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name, file) = match self.file_of(change)? {
            Ok(found) => found,
            Err(reason) => return Ok(conflict(&reason)),
        };
        let staged = staged_name(at);
        dir.move_to(name, &self.stage, &staged)?;
        let moved_back = || {
            let conflict = conflict_of(&self.stage.find(&staged)?, change.expected);
            if conflict.is_some() {
                unless_taken(self.stage.move_to(&staged, &dir, name))?;
            }
            Ok(conflict)
        };
        Ok(match moved_back().map_err(ChangeError::Interrupted)? {
            Some(reason) => conflict(&reason),
            None => FileOutcome::Done(Some(FileModes { before: Some(file.mode), after: None })),
        })
    }

    fn set_mode(&self, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name, file) = match self.file_of(change)? {
            Ok(found) => found,
            Err(reason) => return Ok(conflict(&reason)),
        };
        let mode = mode_after(change, file.mode);
        if mode == file.mode {
            return Ok(conflict("the permissions were changed"));
        }
        dir.set_mode(name, mode)?;
        Ok(FileOutcome::Done(changed_modes(file.mode, mode)))
    }
}

/// Returns the result of a move, which may find its place taken by another file.
fn unless_taken(moved: io::Result<()>) -> io::Result<()> {
    moved.or_else(
        |error| {
            if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
        },
    )
}

/// Returns the result for a file whose content to put back cannot be read.
fn unreadable(error: &io::Error) -> FileOutcome {
    let (status, reason) = match error.kind() {
        io::ErrorKind::InvalidData => {
            (FileStatus::Unknown, "the kept content is damaged".to_owned())
        }
        io::ErrorKind::NotFound => (FileStatus::Unknown, "the kept content is gone".to_owned()),
        _ => (FileStatus::Failed, format!("the kept content cannot be read: {error}")),
    };
    FileOutcome::Left(status, reason)
}

fn conflict(reason: &str) -> FileOutcome {
    FileOutcome::Left(FileStatus::Conflict, reason.to_owned())
}

/// Returns the permissions of a file after its change. Permissions that somebody else changed stay.
fn mode_after(change: &JournaledChange, found: u32) -> u32 {
    match change.mode {
        Some(mode) if change.expected_mode.is_none_or(|expected| expected == found) => mode,
        _ => found,
    }
}

fn changed_modes(before: u32, after: u32) -> Option<FileModes> {
    (before != after).then_some(FileModes { before: Some(before), after: Some(after) })
}

fn is_broken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Removes the stage after the record of the plan is durable. Blocks on the disk.
pub(crate) fn finish(journal: &Journal) -> Result<(), FsError> {
    with_stage(journal, |root, stage| {
        remove_dirs(journal, root, stage)?;
        discard(journal, stage, &JournaledChange::knows)
    })
}

/// Removes the directories that calls created for files that went, if nothing is in them. The files are still in the stage,
/// so that an interrupted removal is repeated.
fn remove_dirs(journal: &Journal, root: &Dir, stage: &Dir) -> io::Result<()> {
    let mut dirs = BTreeSet::new();
    for (at, change) in journal.changes.iter().enumerate().filter(|(_, change)| change.dirs > 0) {
        if stage.find(&staged_name(at))?.state() == Some(change.expected) {
            let ends = change.path.rmatch_indices('/').take(change.dirs as usize);
            dirs.extend(ends.map(|(end, _)| &change.path[..end]));
        }
    }
    // In this order, inner directories come before outer ones.
    for dir in dirs.into_iter().rev() {
        let (parent, name) = split(dir);
        let Ok(parent) = root.open_beneath(parent) else { continue };
        match parent.remove_dir(name) {
            Err(error) if is_full(&error) || is_broken(&error) => return Err(error),
            // Anything else than an empty directory that may be removed stays.
            Err(_) | Ok(false) => {}
            Ok(true) => parent.sync()?,
        }
    }
    Ok(())
}

/// Reverses the changes of files that nobody wrote since, and removes the stage. Blocks on the disk.
pub(crate) fn take_back(journal: &Journal) -> Result<(), FsError> {
    with_stage(journal, |root, stage| {
        let Some(ready) = read_ready(stage)? else {
            // No file of the project was moved yet, so the stage has only new contents, perhaps in part.
            return discard(journal, stage, &|_, _| true);
        };
        // Moving a file back twice could take one that somebody wrote meanwhile.
        if stage.find(TAKEN_BACK)? == PlaceState::Absent {
            let changes = ready
                .changes
                .iter()
                .rev()
                .filter_map(|at| journal.changes.get(*at).map(|change| (*at, change)));
            for (at, change) in changes {
                restore(root, stage, at, change)?;
            }
            for dir in ready.dirs.iter().rev() {
                let (parent, name) = split(dir);
                if let Ok(parent) = root.open_beneath(parent) {
                    let _is_gone = parent.remove_dir(name)?;
                }
            }
            // The moves are made durable before the stage is removed.
            let dirs: BTreeSet<&str> =
                journal.changes.iter().map(|change| split(&change.path).0).collect();
            for dir in dirs {
                if let Ok(dir) = root.open_beneath(dir) {
                    dir.sync()?;
                }
            }
            stage.create(TAKEN_BACK, b"", 0o600)?;
            stage.sync()?;
        }
        discard(journal, stage, &JournaledChange::knows)
    })
}

/// Calls `work` with the directory of the project and its stage, and removes the stage if it is empty afterwards.
fn with_stage(
    journal: &Journal,
    work: impl FnOnce(&Dir, &Dir) -> io::Result<()>,
) -> Result<(), FsError> {
    let fail = |source| FsError::new("change files in", &journal.root, source);
    let root = open_project(&journal.root).map_err(fail)?;
    let name = journal.stage_name();
    let stage = match root.open_beneath(&name) {
        // A killed process may have removed the stage in the system's cache only. The journal is removed next, so the
        // project is synced first.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return root.sync().map_err(fail),
        stage => stage.map_err(fail)?,
    };
    work(&root, &stage).map_err(fail)?;
    if !root.remove_dir(&name).map_err(fail)? {
        let path = stage.path().display();
        tracing::warn!(session = %journal.session_id, "files of others were left in {path}");
    }
    root.sync().map_err(fail)
}

fn read_ready(stage: &Dir) -> io::Result<Option<Ready>> {
    match stage.read(READY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Everything was taken back, and the marks are being removed.
            let is_done = stage.find(TAKEN_BACK)? != PlaceState::Absent;
            Ok(is_done.then(Ready::default))
        }
        // An incomplete file was not synced, and nothing changes its place before that.
        bytes => Ok(serde_json::from_slice(&bytes?).ok()),
    }
}

/// Takes one change back.
fn restore(root: &Dir, stage: &Dir, at: usize, change: &JournaledChange) -> io::Result<()> {
    let (dir, name) = split(&change.path);
    let dir = match root.open_beneath(dir) {
        Ok(dir) => dir,
        // Somebody removed the directory or replaced it.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let (staged, out) = (staged_name(at), out_name(at));
    let place = dir.find(name)?;
    let is_wanted = place.state() == Some(change.wanted);
    match (change.expected, change.wanted) {
        (FileState::Absent, _) => {
            if is_wanted && stage.find(&staged)? == PlaceState::Absent {
                dir.move_to(name, stage, &staged)?;
            }
        }
        (_, FileState::Absent) => {
            if is_wanted && stage.find(&staged)? != PlaceState::Absent {
                stage.move_to(&staged, &dir, name)?;
            }
        }
        (one, other) if one == other => {
            if let (PlaceState::File(file), Some(before)) = (&place, change.expected_mode)
                && is_wanted
                && change.mode == Some(file.mode)
            {
                dir.set_mode(name, before)?;
            }
        }
        _ => {
            let has_out = stage.find(&out)? != PlaceState::Absent;
            let in_stage = stage.find(&staged)?;
            let was_exchanged =
                in_stage != PlaceState::Absent && in_stage.state() != Some(change.wanted);
            if has_out {
                if is_wanted && in_stage == PlaceState::Absent {
                    dir.move_to(name, stage, &staged)?;
                }
                if dir.find(name)? == PlaceState::Absent {
                    stage.move_to(&out, &dir, name)?;
                }
            } else if was_exchanged && is_wanted {
                dir.exchange(name, stage, &staged)?;
            }
        }
    }
    Ok(())
}

/// Removes the files of the stage with a content that `is_ours`, and then its marks, unless something else is left.
fn discard(
    journal: &Journal,
    stage: &Dir,
    is_ours: &dyn Fn(&JournaledChange, [u8; 32]) -> bool,
) -> io::Result<()> {
    let mut is_empty = true;
    for (at, change) in journal.changes.iter().enumerate() {
        for name in [staged_name(at), out_name(at)] {
            match stage.find(&name)? {
                PlaceState::Absent => {}
                PlaceState::File(file) if is_ours(change, file.hash) => stage.remove(&name)?,
                _ => is_empty = false,
            }
        }
    }
    // The marks are removed last, because they say what may be removed.
    for mark in [READY, TAKEN_BACK].into_iter().filter(|_| is_empty) {
        match stage.remove(mark) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}
