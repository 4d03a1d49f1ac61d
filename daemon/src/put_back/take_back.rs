//! The end of an application: the stage is removed when the record of the plan is durable, and otherwise everything is taken
//! back, after an error and by the next start after a crash. Both rely on the journal and on the disk only.

use std::collections::BTreeSet;
use std::io;

use ollm_protocol::content::FileState;

use super::discarded::DiscardedStages;
use super::journal::{Journal, JournaledChange};
use super::places::Place;
use super::plan::{conflict_of, split};
use super::stage::{KeptContents, Ready, Stage, back_name, out_name, staged_name};
use crate::fsutil::beneath::{Dir, PlaceState};
use crate::fsutil::{FsError, SyncMethod, is_full};

/// Removes the stage after the record of the plan is durable. Blocks on the disk.
pub(crate) fn finish(
    journal: &Journal,
    contents: &dyn KeptContents,
    discarded: &DiscardedStages,
) -> Result<(), FsError> {
    with_stage(journal, |stage| {
        remove_dirs(stage)?;
        stage.remove_needless(contents, discarded)
    })
}

/// Reverses the changes of files that nobody wrote since, and removes the stage. Blocks on the disk.
pub(crate) fn take_back(
    journal: &Journal,
    contents: &dyn KeptContents,
    discarded: &DiscardedStages,
) -> Result<(), FsError> {
    with_stage(journal, |stage| {
        let Some(ready) = stage.ready()? else {
            let is_settled = stage.is_settled()?;
            return if is_settled { stage.dir.sync() } else { stage.remove_unused(discarded) };
        };
        if !stage.is_taken_back()? {
            reverse(stage, &ready)?;
            stage.set_taken_back()?;
        }
        stage.remove_needless(contents, discarded)
    })
}

/// Calls `work` with the stage, if there is one.
fn with_stage(
    journal: &Journal,
    work: impl FnOnce(&Stage<'_>) -> io::Result<()>,
) -> Result<(), FsError> {
    let done = Stage::open(journal).and_then(|stage| stage.as_ref().map_or(Ok(()), work));
    done.map_err(|source| FsError::new("change files in", &journal.root, source))
}

/// Removes the directories that calls created for files that went, if nothing is in them. The files are still in the stage,
/// so that an interrupted removal is repeated.
fn remove_dirs(stage: &Stage<'_>) -> io::Result<()> {
    let mut dirs = BTreeSet::new();
    let with_dirs = stage.journal.changes.iter().enumerate().filter(|(_, change)| change.dirs > 0);
    for (at, change) in with_dirs {
        if stage.dir.find(&staged_name(at))?.state() == Some(change.expected) {
            let ends = change.path.rmatch_indices('/').take(change.dirs as usize);
            dirs.extend(ends.map(|(end, _)| &change.path[..end]));
        }
    }
    // In this order, inner directories come before outer ones.
    dirs.into_iter().rev().try_for_each(|dir| remove_if_empty(&stage.root, dir))
}

/// Removes a directory, durably. Anything else than an empty directory that may be removed stays.
fn remove_if_empty(root: &Dir, path: &str) -> io::Result<()> {
    let (parent, name) = split(path);
    let Ok(parent) = root.open_beneath(parent) else { return Ok(()) };
    match parent.remove_dir(name) {
        Err(error) if is_full(&error) || is_broken(&error) => Err(error),
        Err(_) | Ok(false) => Ok(()),
        Ok(true) => parent.sync(),
    }
}

/// Returns whether an error says that the disk is broken.
pub(super) fn is_broken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Takes all changes back, durably.
fn reverse(stage: &Stage<'_>, ready: &Ready) -> io::Result<()> {
    let changes = &stage.journal.changes;
    let sync = SyncMethod::of(ready.changes.len(), &stage.root);
    for at in ready.changes.iter().rev() {
        if let Some(change) = changes.get(*at) {
            restore(stage, *at, change)?;
        }
    }
    for dir in ready.dirs.iter().rev() {
        remove_if_empty(&stage.root, dir)?;
    }
    sync_dirs(&stage.root, changes.iter().map(|change| split(&change.path).0).collect(), sync)
}

/// Makes the names in directories durable. A directory that somebody removed meanwhile needs no sync.
pub(super) fn sync_dirs(root: &Dir, dirs: BTreeSet<&str>, sync: SyncMethod) -> io::Result<()> {
    if sync == SyncMethod::Whole {
        return root.sync_file_system();
    }
    for dir in dirs {
        if let Ok(dir) = root.open_beneath(dir) {
            dir.sync()?;
        }
    }
    Ok(())
}

/// The way in which one change is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reversal {
    /// The file was not changed, or somebody wrote it since.
    Nothing,
    /// The file changes places with the one in the stage.
    ExchangeBack,
    /// The file goes to the stage.
    TakeOut,
    /// A file of the stage returns to its place. Somebody may have saved it in the last moment.
    PutIn(StagedFile),
    /// The file goes to the stage, and the one that it replaced returns from there.
    TakeOutAndPutIn,
    /// The file gets the permissions that it had.
    SetMode,
}

/// A file of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StagedFile {
    Staged,
    Out,
    Back,
}

impl StagedFile {
    fn name(self, at: usize) -> String {
        match self {
            Self::Staged => staged_name(at),
            Self::Out => out_name(at),
            Self::Back => back_name(at),
        }
    }
}

/// The files in the place of a change and in its stage.
struct ReversalSituation {
    place: PlaceState,
    staged: PlaceState,
    out: PlaceState,
    back: PlaceState,
}

impl ReversalSituation {
    fn decide(&self, change: &JournaledChange) -> Reversal {
        let Self { place, staged, out, back } = self;
        let (is_free, has_staged) = (*place == PlaceState::Absent, *staged != PlaceState::Absent);
        let is_wanted = place.state() == Some(change.wanted);
        if is_free && *back != PlaceState::Absent && conflict_of(back, change.wanted).is_some() {
            return Reversal::PutIn(StagedFile::Back);
        }
        // A move in by a link may have left both names.
        let was_moved_in = is_wanted && (!has_staged || is_same_file(place, staged));
        match (change.expected, change.wanted) {
            (one, other) if one == other => {
                if is_wanted {
                    Reversal::SetMode
                } else {
                    Reversal::Nothing
                }
            }
            (FileState::Absent, _) if was_moved_in => Reversal::TakeOut,
            (FileState::Absent, _) => Reversal::Nothing,
            (_, FileState::Absent) if is_free && has_staged => Reversal::PutIn(StagedFile::Staged),
            (_, FileState::Absent) => Reversal::Nothing,
            _ if *out != PlaceState::Absent => match (was_moved_in, is_free) {
                (true, _) => Reversal::TakeOutAndPutIn,
                (_, true) => Reversal::PutIn(StagedFile::Out),
                _ => Reversal::Nothing,
            },
            _ if has_staged && staged.state() != Some(change.wanted) && is_wanted => {
                Reversal::ExchangeBack
            }
            _ => Reversal::Nothing,
        }
    }
}

fn is_same_file(one: &PlaceState, other: &PlaceState) -> bool {
    match (one, other) {
        (PlaceState::File(one), PlaceState::File(other)) => one.inode == other.inode,
        _ => false,
    }
}

/// Takes one change back.
fn restore(stage: &Stage<'_>, at: usize, change: &JournaledChange) -> io::Result<()> {
    let (dir, name) = split(&change.path);
    let dir = match stage.root.open_beneath(dir) {
        Ok(dir) => dir,
        // Somebody removed the directory or replaced it.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let place = Place { dir: &dir, name, stage: &stage.dir };
    let situation = ReversalSituation {
        place: place.find()?,
        staged: stage.dir.find(&staged_name(at))?,
        out: stage.dir.find(&out_name(at))?,
        back: stage.dir.find(&back_name(at))?,
    };
    let take_out = || -> io::Result<bool> {
        let back = back_name(at);
        match place.take_out(&back) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            // An interrupted attempt took the file out, so somebody made this one since.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            taken => taken?,
        }
        Ok(place.return_unless(&back, change.wanted)?.is_none())
    };
    match situation.decide(change) {
        Reversal::Nothing => {}
        Reversal::ExchangeBack => place.exchange_back(&staged_name(at), change.wanted)?,
        Reversal::TakeOut => drop(take_out()?),
        Reversal::PutIn(file) => drop(place.put_in(&file.name(at))?),
        Reversal::TakeOutAndPutIn => {
            if take_out()? {
                let _was_free = place.put_in(&out_name(at))?;
            }
        }
        Reversal::SetMode => {
            if let (PlaceState::File(file), Some(before)) = (situation.place, change.expected_mode)
                && change.mode == Some(file.mode)
            {
                match dir.set_mode(name, &file, before) {
                    // Somebody replaced or removed the file.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    set => set?,
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::FileHash;

    use super::*;
    use crate::fsutil::beneath::FoundFile;

    #[test]
    fn change_is_reversed_as_far_as_the_disk_shows_it() {
        let hash = |byte: u8| FileState::Hash(FileHash([byte; 32]));
        // A file with a content and an inode.
        let file = |byte: u8, inode: u64| {
            PlaceState::File(FoundFile {
                hash: [byte; 32],
                size_bytes: 1,
                mode: 0o644,
                is_own: true,
                has_writer: false,
                inode: (1, inode),
                changed_at: (0, 0),
            })
        };
        let none = || PlaceState::Absent;
        let (old, new, other) = (|| file(1, 1), || file(2, 2), || file(3, 3));
        let check = |expected, wanted, [place, staged, out, back]: [PlaceState; 4], reversal| {
            let change = JournaledChange {
                path: "a".to_owned(),
                expected,
                wanted,
                mode: None,
                expected_mode: None,
                dirs: 0,
                loses: Vec::new(),
            };
            let shown = format!("{expected:?} {wanted:?} {place:?} {staged:?} {out:?} {back:?}");
            let situation = ReversalSituation { place, staged, out, back };
            assert_eq!(situation.decide(&change), reversal, "{shown}");
        };
        use Reversal::{ExchangeBack, Nothing, PutIn, SetMode, TakeOut, TakeOutAndPutIn};
        use StagedFile::{Back, Out, Staged};
        let absent = FileState::Absent;
        // Created files.
        check(absent, hash(2), [none(), new(), none(), none()], Nothing);
        check(absent, hash(2), [new(), none(), none(), none()], TakeOut);
        check(absent, hash(2), [new(), new(), none(), none()], TakeOut);
        check(absent, hash(2), [file(2, 9), new(), none(), none()], Nothing);
        check(absent, hash(2), [other(), none(), none(), none()], Nothing);
        check(absent, hash(2), [none(), none(), none(), new()], Nothing);
        check(absent, hash(2), [none(), none(), none(), other()], PutIn(Back));
        // Removed files.
        check(hash(1), absent, [old(), none(), none(), none()], Nothing);
        check(hash(1), absent, [none(), old(), none(), none()], PutIn(Staged));
        check(hash(1), absent, [none(), other(), none(), none()], PutIn(Staged));
        check(hash(1), absent, [other(), old(), none(), none()], Nothing);
        check(hash(1), absent, [none(), none(), none(), none()], Nothing);
        // Files that were exchanged.
        check(hash(1), hash(2), [old(), new(), none(), none()], Nothing);
        check(hash(1), hash(2), [new(), old(), none(), none()], ExchangeBack);
        check(hash(1), hash(2), [new(), other(), none(), none()], ExchangeBack);
        check(hash(1), hash(2), [other(), old(), none(), none()], Nothing);
        check(hash(1), hash(2), [none(), old(), none(), none()], Nothing);
        // Files that were replaced in two steps.
        check(hash(1), hash(2), [none(), new(), old(), none()], PutIn(Out));
        check(hash(1), hash(2), [new(), new(), old(), none()], TakeOutAndPutIn);
        check(hash(1), hash(2), [new(), none(), old(), none()], TakeOutAndPutIn);
        check(hash(1), hash(2), [other(), none(), old(), none()], Nothing);
        check(hash(1), hash(2), [none(), none(), old(), new()], PutIn(Out));
        check(hash(1), hash(2), [none(), none(), old(), other()], PutIn(Back));
        // Permissions.
        check(hash(1), hash(1), [old(), none(), none(), none()], SetMode);
        check(hash(1), hash(1), [other(), none(), none(), none()], Nothing);
    }
}
