//! Plans: which files are put back, and why the others are not.
//!
//! The log says what each file must have and what it gets; the disk says what it has. Pure, except for
//! [`find_beneath`], which reads files.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;

use ollm_protocol::Seq;
use ollm_protocol::content::{FileAction, FileHash, FileLoss, FileState, FileStatus, PlannedFile};

use super::layers::{LayerChange, LayerProblem, PermissionChange, StateChange};
use crate::error_chain::with_sources;
use crate::fsutil::FsError;
use crate::fsutil::beneath::{Attributes, Dir, FoundFile, PlaceState};

/// A file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanItem {
    pub(crate) path: String,
    pub(crate) back: Vec<Seq>,
    pub(crate) forward: Vec<Seq>,
    pub(crate) fate: FileFate,
    /// The attributes that a file loses if it is replaced.
    pub(crate) loses: Vec<FileLoss>,
}

/// The fate of a file in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileFate {
    /// The file changes.
    Change(StateChange),
    /// The file has the same state before and after, so only its layers move.
    Same(FileState),
    /// The file stays as it is.
    Left(FileStatus, String),
}

/// The inputs of a plan besides the log.
pub(crate) struct FilePlanner<'a> {
    /// The directory of the project; an error says why it cannot be used.
    pub(crate) root: Result<&'a Dir, String>,
    /// Directories of the daemon, in which nothing is put back.
    pub(crate) private: &'a [&'a Path],
    /// Returns whether the content of a hash is kept.
    pub(crate) is_kept: &'a dyn Fn(FileHash) -> bool,
    /// Returns the size of the further contents that can be kept, in bytes. Called only if one is not kept yet.
    pub(crate) free_bytes: &'a dyn Fn() -> Result<u64, FsError>,
}

/// The contents that a plan takes out of files and that are not kept yet. Each is needed to undo the change.
struct ContentsToKeep {
    /// The size of those that can be added, once it is known.
    free_bytes: Option<u64>,
    hashes: HashSet<[u8; 32]>,
}

impl FilePlanner<'_> {
    /// Plans the changes that the log asks for.
    pub(crate) fn plan(&self, changes: Vec<LayerChange>) -> Vec<PlanItem> {
        let mut to_keep = ContentsToKeep { free_bytes: None, hashes: HashSet::new() };
        let item = |change: LayerChange| {
            let mut loses = Vec::new();
            let fate = self.fate(&change, &mut to_keep, &mut loses);
            let LayerChange { path, back, forward, .. } = change;
            PlanItem { path, back, forward, fate, loses }
        };
        changes.into_iter().map(item).collect()
    }

    /// Returns the fate of a file, and adds what it loses if it is replaced.
    fn fate(
        &self,
        change: &LayerChange,
        to_keep: &mut ContentsToKeep,
        loses: &mut Vec<FileLoss>,
    ) -> FileFate {
        let left = |status, reason: &str| FileFate::Left(status, reason.to_owned());
        let root = match &self.root {
            Ok(root) => *root,
            Err(reason) => return left(FileStatus::Outside, reason),
        };
        if is_in_git(root.path(), &change.path) {
            return left(FileStatus::InGit, "git owns this file");
        }
        let path = root.path().join(&change.path);
        if self.private.iter().any(|dir| path.starts_with(dir)) {
            return left(FileStatus::Outside, "the file belongs to the daemon");
        }
        let state = match change.change {
            Ok(state) => state,
            Err(problem) => return problem_fate(problem),
        };
        match state.wanted {
            FileState::Hash(hash) if state.wanted != state.expected && !(self.is_kept)(hash) => {
                left(FileStatus::Unknown, "the earlier content was not kept")
            }
            _ => self.observe(root, &change.path, state, to_keep, loses),
        }
    }

    /// Compares a change with the file on the disk, which it reads.
    fn observe(
        &self,
        root: &Dir,
        path: &str,
        change: StateChange,
        to_keep: &mut ContentsToKeep,
        loses: &mut Vec<FileLoss>,
    ) -> FileFate {
        let (found, file) = match find_open_beneath(root, path) {
            Ok(found) => found,
            Err(error) => {
                return FileFate::Left(FileStatus::Failed, format!("cannot read it: {error}"));
            }
        };
        match conflict_of(&found, change.expected) {
            None => {}
            Some(_) if found.state() == Some(change.wanted) => {
                let reason = "the file has this content already".to_owned();
                return FileFate::Left(FileStatus::Unchanged, reason);
            }
            Some(reason) => return FileFate::Left(FileStatus::Conflict, reason),
        }
        if let PlaceState::File(file) = &found
            && change.wanted != change.expected
            && let Some(reason) = self.keep(file, to_keep)
        {
            return FileFate::Left(FileStatus::Failed, reason);
        }
        if action_of(&change) == FileAction::Replace
            && let Some(file) = file
        {
            match Attributes::of(&file) {
                Ok(attributes) => *loses = attributes.losses(),
                Err(error) => {
                    let reason = format!("cannot read its attributes: {error}");
                    return FileFate::Left(FileStatus::Failed, reason);
                }
            }
        }
        observed(&found, change)
    }

    /// Adds the content of a file to those that the plan keeps, or returns the reason why it cannot be kept.
    fn keep(&self, file: &FoundFile, to_keep: &mut ContentsToKeep) -> Option<String> {
        if to_keep.hashes.contains(&file.hash) || (self.is_kept)(FileHash(file.hash)) {
            return None;
        }
        let free_bytes = match to_keep.free_bytes.map_or_else(self.free_bytes, Ok) {
            Ok(free_bytes) => free_bytes,
            Err(error) => {
                return Some(format!("cannot keep its content: {}", with_sources(&error)));
            }
        };
        let still_free = free_bytes.checked_sub(file.size_bytes);
        to_keep.free_bytes = Some(still_free.unwrap_or(free_bytes));
        if still_free.is_none() {
            let reason = "its content is over snapshots.fileQuota, so this could not be undone";
            return Some(reason.to_owned());
        }
        to_keep.hashes.insert(file.hash);
        None
    }
}

fn problem_fate(problem: LayerProblem) -> FileFate {
    let (status, reason) = match problem {
        LayerProblem::Unknown => {
            (FileStatus::Unknown, "a content of the file was not recorded".to_owned())
        }
        LayerProblem::LaterCall(seq) => {
            (FileStatus::Conflict, format!("call #{seq}, which stays, wrote the file later"))
        }
        LayerProblem::ChangedBetween => {
            let reason = "something else changed the file between the calls of the session";
            (FileStatus::Conflict, reason.to_owned())
        }
        LayerProblem::Elsewhere => {
            let reason = "the session had another project when the file was written";
            (FileStatus::Outside, reason.to_owned())
        }
    };
    FileFate::Left(status, reason)
}

/// Returns the fate of a file that is as expected.
fn observed(found: &PlaceState, change: StateChange) -> FileFate {
    // Permissions that somebody else changed stay.
    let mode = change.mode.filter(|_| change.wanted != FileState::Absent);
    let mode = mode.and_then(|mode| match found {
        PlaceState::File(file) => {
            let is_expected = mode.expected.is_none_or(|expected| expected == file.mode);
            let changes = is_expected && file.mode != mode.wanted;
            changes.then_some(PermissionChange { expected: Some(file.mode), ..mode })
        }
        _ => Some(mode),
    });
    if change.wanted == change.expected && mode.is_none() {
        return FileFate::Same(change.expected);
    }
    FileFate::Change(StateChange { mode, ..change })
}

/// Opens the directory of a project, which no link leads to.
///
/// **Errors**: of kind `NotFound` or `NotADirectory` if it is not there any more.
pub(crate) fn open_project(root: &Path) -> io::Result<Dir> {
    let dir = Dir::open(root)?;
    if !dir.is_in_place()? {
        let problem = "a link leads to the project now";
        return Err(io::Error::new(io::ErrorKind::NotADirectory, problem));
    }
    Ok(dir)
}

/// Reads the file at a path; a missing directory on the way means an absent file.
pub(super) fn find_beneath(root: &Dir, path: &str) -> io::Result<PlaceState> {
    find_open_beneath(root, path).map(|(found, _)| found)
}

/// Reads the file at a path as [`find_beneath`] does, and returns a regular file open.
pub(super) fn find_open_beneath(root: &Dir, path: &str) -> io::Result<(PlaceState, Option<File>)> {
    let (dir, name) = split(path);
    match root.open_beneath(dir) {
        Ok(dir) => dir.find_open(name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((PlaceState::Absent, None)),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Ok((PlaceState::Other("a link or a file in place of a directory"), None))
        }
        Err(error) => Err(error),
    }
}

/// Splits a path into its directory, which may be empty, and its name.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Returns how a file differs from the state in which the session left it, or `None` if it does not.
pub(super) fn conflict_of(found: &PlaceState, expected: FileState) -> Option<String> {
    let reason = match (found, expected) {
        (PlaceState::Absent, FileState::Absent) => return None,
        (PlaceState::Absent, _) => "the file was removed",
        (PlaceState::File(file), _) if !file.is_own => "the file belongs to another user",
        (PlaceState::File(file), FileState::Hash(hash)) if file.hash == hash.0 => {
            if !file.has_writer {
                return None;
            }
            "a program has the file open for writing"
        }
        (PlaceState::File(_), FileState::Absent) => "there is another file",
        (PlaceState::File(_), _) => "the file was changed",
        (PlaceState::Other(what), _) => return Some(format!("there is {what}")),
    };
    Some(reason.to_owned())
}

impl PlaceState {
    /// Returns the state; `None` for anything but a file.
    pub(super) const fn state(&self) -> Option<FileState> {
        match self {
            Self::Absent => Some(FileState::Absent),
            Self::File(file) => Some(FileState::Hash(FileHash(file.hash))),
            Self::Other(_) => None,
        }
    }
}

/// Returns whether a path is inside of a directory `.git`, or is one.
///
/// Some file systems ignore the case of letters, and certain invisible characters.
fn is_in_git(root: &Path, path: &str) -> bool {
    let is_git = |part: &str| {
        let is_ignored = |char: char| matches!(char, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
        let seen: String = part.chars().filter(|char| !is_ignored(*char)).collect();
        seen.trim_end_matches([' ', '.']).eq_ignore_ascii_case(".git")
    };
    let above = root.components().filter_map(|part| part.as_os_str().to_str());
    above.chain(path.split('/')).any(is_git)
}

impl PlanItem {
    /// Returns the file as results show it.
    pub(crate) fn planned(&self) -> PlannedFile {
        let path = self.path.clone();
        match &self.fate {
            FileFate::Change(change) => {
                let (status, action) = (FileStatus::PutBack, Some(action_of(change)));
                let hash = match change.wanted {
                    FileState::Hash(hash) if action != Some(FileAction::SetMode) => Some(hash),
                    _ => None,
                };
                let loses = self.loses.clone();
                PlannedFile { path, status, action, hash, reason: None, loses }
            }
            FileFate::Same(_) => {
                let reason = Some("the calls left the file as it was".to_owned());
                PlannedFile {
                    path,
                    status: FileStatus::Unchanged,
                    action: None,
                    hash: None,
                    reason,
                    loses: Vec::new(),
                }
            }
            FileFate::Left(status, reason) => {
                let reason = Some(reason.clone());
                PlannedFile {
                    path,
                    status: *status,
                    action: None,
                    hash: None,
                    reason,
                    loses: Vec::new(),
                }
            }
        }
    }
}

/// Returns the change of a file by its kind.
pub(super) fn action_of(change: &StateChange) -> FileAction {
    match (change.expected, change.wanted) {
        (FileState::Absent, _) => FileAction::Create,
        (_, FileState::Absent) => FileAction::Remove,
        (one, other) if one == other => FileAction::SetMode,
        _ => FileAction::Replace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_git_are_recognized_in_all_their_forms() {
        let check = |path: &str, expect: bool| {
            assert_eq!(is_in_git(Path::new("/home/ada/engine"), path), expect, "{path}");
        };
        check(".git/config", true);
        check("sub/.git/hooks/pre-commit", true);
        check(".git", true);
        check(".GIT/config", true);
        check(".g\u{200c}it/config", true);
        check(".git./config", true);
        check(".gitignore", false);
        check("git/config", false);
        check("src/.github/x", false);
        assert!(is_in_git(Path::new("/home/ada/engine/.git"), "config"));
    }
}
