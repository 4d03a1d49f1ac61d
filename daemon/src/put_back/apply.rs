//! Applying a plan: everything is staged in a directory of the project, then changes places, and removals come last.
//!
//! A file that is replaced moves into the stage, where its content is compared once more. So a byte that somebody wrote
//! in the last moment is found and goes back. The stage is removed when the record of the plan is durable, and
//! [`take_back`](super::take_back) undoes everything before that.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;

use ollm_protocol::content::{FileLoss, FileModes, FileState, FileStatus};
use ollm_protocol::event::PutBackStep;

use super::journal::{Journal, JournaledChange};
use super::places::Place;
use super::plan::{conflict_of, find_open_beneath, split};
use super::stage::{KeptContents, Ready, Stage, out_name, staged_name};
use super::take_back::{is_broken, sync_dirs};
use crate::fsutil::beneath::{Attributes, Dir, FoundFile, PlaceState};
use crate::fsutil::{FsError, SyncMethod, is_full};

/// The permissions of a file that comes back and whose own are not known, and of its directories.
const DEFAULT_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// The result for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileOutcome {
    /// The file was put back; with its permissions before and after if they differ.
    Done(Option<FileModes>),
    Left(FileStatus, String),
}

/// A function that is called before each file of a step with the number of files that are done, and can cancel the rest.
pub(crate) type Watch<'a> = dyn Fn(PutBackStep, usize) -> ControlFlow<()> + 'a;

/// An application that was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// The caller canceled it.
    #[error("it was canceled")]
    Canceled,
    #[error(transparent)]
    Failed(#[from] FsError),
}

/// A change that was not made.
#[derive(Debug)]
enum ChangeError {
    /// The system refused it, and the file is in its place.
    Refused(io::Error),
    /// The file may be in the stage, or the disk is full or broken, so all changes must be taken back.
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

/// Puts files back as far as they are what the journal expects, and returns the result for each. The earlier contents are in
/// the stage then. After an error the caller takes everything back.
///
/// The journal is written, and no stage exists. Blocks on the disk.
pub(crate) fn apply(
    journal: &Journal,
    contents: &dyn KeptContents,
    watch: &Watch<'_>,
) -> Result<Vec<FileOutcome>, ApplyError> {
    Run::begin(journal, watch)?.carry_out(contents)
}

/// An application that is under way.
struct Run<'a> {
    stage: Stage<'a>,
    watch: &'a Watch<'a>,
    sync: SyncMethod,
    outcomes: Vec<Option<FileOutcome>>,
    /// The files that had their expected contents when the new ones were staged.
    found: Vec<Option<FoundFile>>,
    /// The directories with changes, which are synced.
    touched: BTreeSet<&'a str>,
}

impl<'a> Run<'a> {
    fn begin(journal: &'a Journal, watch: &'a Watch<'a>) -> Result<Self, ApplyError> {
        let fail = |source| FsError::new("change files in", &journal.root, source);
        let stage = Stage::create(journal).map_err(fail)?;
        let sync = SyncMethod::of(journal.changes.len(), &stage.root);
        let (outcomes, found) =
            (vec![None; journal.changes.len()], vec![None; journal.changes.len()]);
        Ok(Self { stage, watch, sync, outcomes, found, touched: BTreeSet::new() })
    }

    fn carry_out(&mut self, contents: &dyn KeptContents) -> Result<Vec<FileOutcome>, ApplyError> {
        let journal = self.stage.journal;
        self.stage_all(contents)?;
        let is_removal = |change: &JournaledChange| change.wanted == FileState::Absent;
        let mut n_done = 0;
        for removals in [false, true] {
            for (at, change) in journal.changes.iter().enumerate() {
                if is_removal(change) == removals && self.outcomes[at].is_none() {
                    self.pass(PutBackStep::Moving, n_done)?;
                    let outcome = self.change(at, change)?;
                    self.outcomes[at] = Some(outcome);
                    n_done += 1;
                }
            }
        }
        let fail = |source| FsError::new("sync files in", &journal.root, source);
        sync_dirs(&self.stage.root, std::mem::take(&mut self.touched), self.sync).map_err(fail)?;
        self.stage.dir.sync().map_err(fail)?;
        Ok(self.outcomes.drain(..).flatten().collect())
    }

    /// Reports progress.
    ///
    /// **Errors**: `Canceled` if the caller does not want the rest.
    fn pass(&self, step: PutBackStep, n_done: usize) -> Result<(), ApplyError> {
        match (self.watch)(step, n_done) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ApplyError::Canceled),
        }
    }

    /// Writes all new contents into the stage, and says there that they are complete.
    fn stage_all(&mut self, contents: &dyn KeptContents) -> Result<(), ApplyError> {
        let stage_path = self.stage.dir.path().to_owned();
        let fail = |source| FsError::new("write in", &stage_path, source);
        let mut ready = Ready::default();
        for (at, change) in self.stage.journal.changes.iter().enumerate() {
            self.pass(PutBackStep::Staging, at)?;
            if let Err(outcome) = self.stage_change(at, change, contents).map_err(fail)? {
                self.outcomes[at] = Some(outcome);
                continue;
            }
            if change.expected == FileState::Absent {
                self.missing_dirs(&change.path, &mut ready.dirs);
            }
            ready.changes.push(at);
        }
        // The mark is valid only if all contents are durable.
        if self.sync == SyncMethod::Whole {
            self.stage.dir.sync_file_system().map_err(fail)?;
        }
        Ok(self.stage.set_ready(&ready).map_err(fail)?)
    }

    /// Examines the file of a change and stages its new content; returns the outcome if the file stays as it is.
    fn stage_change(
        &mut self,
        at: usize,
        change: &JournaledChange,
        contents: &dyn KeptContents,
    ) -> io::Result<Result<(), FileOutcome>> {
        let (found, file) = match find_open_beneath(&self.stage.root, &change.path) {
            Ok(found) => found,
            Err(error) => return Ok(Err(failed(format!("cannot read it: {error}")))),
        };
        if let Some(reason) = conflict_of(&found, change.expected) {
            return Ok(Err(conflict(&reason)));
        }
        if let PlaceState::File(file) = &found {
            self.found[at] = Some(*file);
        }
        let hash = match change.wanted {
            FileState::Hash(hash) if change.wanted != change.expected => hash,
            _ => return Ok(Ok(())),
        };
        let attributes = match file.as_ref().map(Attributes::of).transpose() {
            Ok(attributes) => attributes,
            Err(error) => return Ok(Err(failed(format!("cannot read its attributes: {error}")))),
        };
        let mode = match &found {
            PlaceState::File(file) => mode_after(change, file.mode),
            _ => change.mode.unwrap_or(DEFAULT_MODE),
        };
        let bytes = match contents.read(hash) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Err(unreadable(&error.source))),
        };
        let losses = self.stage_one(at, &bytes, mode, attributes.as_ref())?;
        if let Some(loss) = losses.into_iter().find(|loss| !change.loses.contains(loss)) {
            let reason = format!("it would lose {}, which the plan did not show", loss.as_str());
            return Ok(Err(failed(reason)));
        }
        Ok(Ok(()))
    }

    /// Writes one content into the stage, with the attributes of the file that it replaces; returns those that are lost.
    fn stage_one(
        &self,
        at: usize,
        bytes: &[u8],
        mode: u32,
        attributes: Option<&Attributes>,
    ) -> io::Result<Vec<FileLoss>> {
        let (dir, name) = (&self.stage.dir, staged_name(at));
        let Some(attributes) = attributes else {
            return dir.create(&name, bytes, mode, self.sync).map(|()| Vec::new());
        };
        let mut losses = dir.create_like(&name, bytes, mode, attributes, self.sync)?;
        losses.extend(attributes.losses());
        Ok(losses)
    }

    /// Notes the directories on the way to a file that do not exist.
    fn missing_dirs(&self, path: &str, dirs: &mut Vec<String>) {
        for (end, _) in path.match_indices('/') {
            let dir = &path[..end];
            let opened = self.stage.root.open_beneath(dir);
            let is_missing = opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            if is_missing && !dirs.iter().any(|known| known == dir) {
                dirs.push(dir.to_owned());
            }
        }
    }

    /// Makes one change.
    ///
    /// **Errors**: all must be taken back: the disk is full or broken, or a file that changed its place cannot be examined.
    fn change(&mut self, at: usize, change: &'a JournaledChange) -> Result<FileOutcome, FsError> {
        let (dir, _) = split(&change.path);
        let made = match (change.expected, change.wanted) {
            (FileState::Absent, _) => self.put_in(at, change),
            (_, FileState::Absent) => self.take_out(at, change),
            (one, other) if one == other => self.set_mode(change),
            _ => self.replace(at, change),
        };
        match made {
            Ok(outcome) => {
                self.touched.insert(dir);
                Ok(outcome)
            }
            Err(ChangeError::Interrupted(error)) => {
                Err(FsError::new("put back", &self.stage.root.path().join(&change.path), error))
            }
            Err(ChangeError::Refused(error)) => {
                Ok(failed(format!("the system refused the change: {error}")))
            }
        }
    }

    fn put_in(&self, at: usize, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name) = split(&change.path);
        self.create_dirs(dir)?;
        let dir = self.stage.root.open_beneath(dir)?;
        if !self.place(&dir, name).put_in(&staged_name(at))? {
            return Ok(conflict("there is another file"));
        }
        let after = Some(change.mode.unwrap_or(DEFAULT_MODE));
        Ok(FileOutcome::Done(Some(FileModes { before: None, after })))
    }

    fn create_dirs(&self, path: &str) -> io::Result<()> {
        let ends = path.match_indices('/').map(|(end, _)| end);
        for end in ends.chain([path.len()]).filter(|end| *end > 0) {
            let (parent, name) = split(&path[..end]);
            match self.stage.root.open_beneath(&path[..end]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let parent = self.stage.root.open_beneath(parent)?;
                    parent.create_dir(name, DIR_MODE)?;
                    parent.sync()?;
                }
                opened => drop(opened?),
            }
        }
        Ok(())
    }

    fn place<'p>(&'p self, dir: &'p Dir, name: &'p str) -> Place<'p> {
        Place { dir, name, stage: &self.stage.dir }
    }

    /// Returns the directory, the name and the state of the file of a change, or the reason why it is not as expected. If the
    /// state from before is given, the content is read only if it seems to have changed since then: a file that moves is read
    /// again in the stage.
    fn file_of<'c>(
        &self,
        change: &'c JournaledChange,
        before: Option<&FoundFile>,
    ) -> io::Result<Result<(Dir, &'c str, FoundFile), String>> {
        let (dir, name) = split(&change.path);
        let dir = self.stage.root.open_beneath(dir)?;
        let found = dir.find_again(name, before)?;
        Ok(match (conflict_of(&found, change.expected), found) {
            (Some(reason), _) => Err(reason),
            (None, PlaceState::File(file)) => Ok((dir, name, file)),
            (None, _) => Err("there is no file".to_owned()),
        })
    }

    fn replace(&self, at: usize, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name, file) = match self.file_of(change, self.found[at].as_ref())? {
            Ok(found) => found,
            Err(reason) => return Ok(conflict(&reason)),
        };
        let (place, staged) = (self.place(&dir, name), staged_name(at));
        let reason = match is_found(place.exchange(&staged)) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                if !is_found(place.take_out(&out_name(at)))? {
                    return Ok(conflict("the file was removed"));
                }
                replace_taken_out(&place, at, change)
            }
            exchanged => {
                if !exchanged? {
                    return Ok(conflict("the file was removed"));
                }
                place.exchange_back_unless(&staged, change.expected, change.wanted)
            }
        };
        Ok(match reason.map_err(ChangeError::Interrupted)? {
            Some(reason) => conflict(&reason),
            None => FileOutcome::Done(changed_modes(file.mode, mode_after(change, file.mode))),
        })
    }

    fn take_out(&self, at: usize, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name, file) = match self.file_of(change, self.found[at].as_ref())? {
            Ok(found) => found,
            Err(reason) => return Ok(conflict(&reason)),
        };
        let (place, staged) = (self.place(&dir, name), staged_name(at));
        if !is_found(place.take_out(&staged))? {
            return Ok(conflict("the file was removed"));
        }
        let returned = place.return_unless(&staged, change.expected);
        Ok(match returned.map_err(ChangeError::Interrupted)? {
            Some(reason) => conflict(&reason),
            None => FileOutcome::Done(Some(FileModes { before: Some(file.mode), after: None })),
        })
    }

    fn set_mode(&self, change: &JournaledChange) -> Result<FileOutcome, ChangeError> {
        let (dir, name, file) = match self.file_of(change, None)? {
            Ok(found) => found,
            Err(reason) => return Ok(conflict(&reason)),
        };
        let mode = mode_after(change, file.mode);
        if mode == file.mode {
            return Ok(conflict("the permissions were changed"));
        }
        match dir.set_mode(name, &file, mode) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(conflict("the file was changed"));
            }
            set => set?,
        }
        Ok(FileOutcome::Done(changed_modes(file.mode, mode)))
    }
}

/// Returns whether the file was found that a move takes out of its place. Somebody may have removed it.
fn is_found(moved: io::Result<()>) -> io::Result<bool> {
    match moved {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        moved => moved.map(|()| true),
    }
}

/// Puts a content in the place of a file that was taken out, where files cannot be exchanged: for a moment there is none.
/// Puts that file back and returns the reason if it is not as expected, or its place was taken.
fn replace_taken_out(
    place: &Place<'_>,
    at: usize,
    change: &JournaledChange,
) -> io::Result<Option<String>> {
    let returned = place.return_unless(&out_name(at), change.expected)?;
    if returned.is_some() || place.put_in(&staged_name(at))? {
        return Ok(returned);
    }
    Ok(Some("there is another file".to_owned()))
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

fn failed(reason: String) -> FileOutcome {
    FileOutcome::Left(FileStatus::Failed, reason)
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
