//! The rules for putting files back, each with the loss that it prevents, and faults and crashes at every step.
#![expect(clippy::disallowed_methods, reason = "these tests write files as tools and editors do")]

mod attributes;
mod concurrent;
mod simulation;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use ollm_protocol::content::{
    FileAction, FileHash, FileModes, FileState, FileStatus, FileWrite, PutBack, PutBackFile,
    ToolCall, ToolResult,
};
use ollm_protocol::{PlanId, Seq, SessionId, Timestamp};
use rustix::io::Errno;
use serde_json::Value;
use uuid::Uuid;

use super::apply::{self, ApplyError, FileOutcome, Watch};
use super::discarded::MAX_STAGES;
use super::journal::{Journal, JournaledChange, Journals, STAGE_PREFIX};
use super::layers::WrittenFiles;
use super::plan::{FileFate, FilePlanner, PlanItem};
use super::stage::{self, KeptContents};
use super::take_back;
use crate::fsutil::beneath::Dir;
use crate::fsutil::trace::{Ability, DiskFault, DiskStep, DiskTrace, FaultKind};
use crate::fsutil::{self, FsError};

/// More changes than any run makes.
const ALL: usize = usize::MAX / 2;

/// A record of a session that concerns files.
#[derive(Clone, Debug)]
pub(super) enum FileRecord {
    Call(Seq, Box<ToolCall>),
    PutBack(PutBack),
}

/// A session that writes files of a project, as its log and its blobs describe it.
pub(super) struct Writer {
    pub(super) id: SessionId,
    pub(super) root: PathBuf,
    pub(super) records: Vec<FileRecord>,
    pub(super) blobs: HashMap<FileHash, Vec<u8>>,
    pub(super) journals: Journals,
    n_plans: u128,
}

/// The end of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The record is durable and the stage is removed.
    Whole,
    /// The daemon ends before the record is durable.
    BeforeRecord,
    /// The daemon ends when the record is durable.
    BehindRecord,
}

/// Returns a scratch directory, in memory where there is one.
pub(super) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let created = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    created.expect("a scratch directory")
}

pub(super) fn hash(bytes: &[u8]) -> FileHash {
    FileHash(*blake3::hash(bytes).as_bytes())
}

fn state(bytes: Option<&[u8]>) -> FileState {
    bytes.map_or(FileState::Absent, |bytes| FileState::Hash(hash(bytes)))
}

/// Reads a file that is not a link.
pub(super) fn content(path: &Path) -> Option<Vec<u8>> {
    path.symlink_metadata().ok().filter(fs::Metadata::is_file).and_then(|_| fs::read(path).ok())
}

impl Writer {
    pub(super) fn new(scratch: &Path, number: u128) -> Self {
        let root = scratch.join("project");
        fs::create_dir_all(&root).expect("creates");
        let home = scratch.join("home");
        fs::create_dir_all(&home).expect("creates");
        Self {
            id: SessionId::from_uuid(Uuid::from_u128(number)),
            root,
            records: Vec::new(),
            blobs: HashMap::new(),
            journals: Journals::new(&home),
            n_plans: number << 64,
        }
    }

    /// Lets a call of the session write files, and records it.
    pub(super) fn call(&mut self, writes: &[(&str, Option<&[u8]>)]) -> Seq {
        let writes = writes
            .iter()
            .map(|(path, after)| {
                let place = self.root.join(path);
                let before = content(&place);
                if let Some(bytes) = &before {
                    self.blobs.insert(hash(bytes), bytes.clone());
                }
                match after {
                    Some(bytes) => {
                        fs::create_dir_all(place.parent().expect("has one")).expect("creates");
                        fs::write(&place, bytes).expect("writes");
                    }
                    None => drop(fs::remove_file(&place)),
                }
                let (before, after) = (state(before.as_deref()), state(*after));
                FileWrite {
                    path: (*path).to_owned(),
                    before,
                    after,
                    mode: None,
                    renamed_from: None,
                    created_dirs: 0,
                }
            })
            .collect();
        self.record(writes)
    }

    /// Records a call.
    pub(super) fn record(&mut self, writes: Vec<FileWrite>) -> Seq {
        let seq = Seq(self.records.len() as u64);
        let call = ToolCall {
            id: format!("c{seq}"),
            name: "write".to_owned(),
            args: Value::Null,
            result: ToolResult::default(),
            timestamp: Timestamp::from_unix_ms(0),
            duration_ms: None,
            message_seq: None,
            writes: Some(writes),
            writes_root: self.root.to_str().map(str::to_owned),
            writes_omitted: 0,
        };
        self.records.push(FileRecord::Call(seq, Box::new(call)));
        seq
    }

    /// Returns the plan that takes the writes of some calls back and puts those of others on again.
    pub(super) fn plan(&self, removed: &[Seq], added: &[Seq]) -> Vec<PlanItem> {
        let root = self.root.to_str().expect("is UTF-8");
        let mut files = WrittenFiles::new(root);
        for record in &self.records {
            match record {
                FileRecord::Call(seq, call) => files.tool_call(*seq, call),
                FileRecord::PutBack(put_back) => files.put_back(put_back),
            }
        }
        let set = |calls: &[Seq]| calls.iter().copied().collect::<HashSet<_>>();
        let changes = files.changes(&set(removed), &set(added));
        let dir = Dir::open(&self.root);
        let home = self.journals.home();
        let planner = FilePlanner {
            root: dir.as_ref().map_err(ToString::to_string),
            private: &[home],
            is_kept: &|hash| self.blobs.contains_key(&hash),
            free_bytes: &|| Ok(u64::MAX),
        };
        planner.plan(changes)
    }

    /// Applies a plan.
    ///
    /// **Errors**: the change could not be made; [`Writer::recover`] takes back what is left of it.
    pub(super) fn apply(
        &mut self,
        plan: &[PlanItem],
        end: End,
    ) -> Result<Vec<(String, FileOutcome)>, ApplyError> {
        self.apply_watched(plan, end, &|_, _| ControlFlow::Continue(()))
    }

    fn apply_watched(
        &mut self,
        plan: &[PlanItem],
        end: End,
        watch: &Watch<'_>,
    ) -> Result<Vec<(String, FileOutcome)>, ApplyError> {
        self.n_plans += 1;
        let plan_id = PlanId::from_uuid(Uuid::from_u128(self.n_plans));
        let mut changes = Vec::new();
        for item in plan {
            let FileFate::Change(change) = &item.fate else { continue };
            changes.push(JournaledChange {
                path: item.path.clone(),
                expected: change.expected,
                wanted: change.wanted,
                mode: change.mode.map(|mode| mode.wanted),
                expected_mode: change.mode.and_then(|mode| mode.expected),
                dirs: change.dirs,
                loses: item.loses.clone(),
            });
        }
        let journal = Journal::new(self.id, plan_id, self.root.clone(), changes);
        self.journals.write(&journal)?;
        let outcomes = match apply::apply(&journal, &self.blobs, watch) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // The next start does it, if this fails as well.
                let _kept = take_back::take_back(&journal, &self.blobs, &self.journals.discarded)
                    .and_then(|()| self.journals.remove(self.id));
                return Err(error);
            }
        };
        let outcomes: Vec<_> =
            journal.changes.iter().map(|change| change.path.clone()).zip(outcomes).collect();
        if end == End::BeforeRecord {
            return Ok(outcomes);
        }
        self.record_put_back(plan, &journal, &outcomes);
        if end == End::Whole {
            take_back::finish(&journal, &self.blobs, &self.journals.discarded)?;
            self.journals.remove(self.id)?;
        }
        Ok(outcomes)
    }

    fn record_put_back(
        &mut self,
        plan: &[PlanItem],
        journal: &Journal,
        outcomes: &[(String, FileOutcome)],
    ) {
        let mut files = Vec::new();
        for item in plan {
            let at = outcomes.iter().position(|(path, _)| *path == item.path);
            let (before, after, mode) = match (&item.fate, at.map(|at| &outcomes[at].1)) {
                (FileFate::Change(change), Some(FileOutcome::Done(mode))) => {
                    if let FileState::Hash(hash) = change.expected {
                        let staged = stage::staged_path(journal, at.expect("is there"));
                        let bytes = if change.expected == change.wanted {
                            fs::read(self.root.join(&item.path)).expect("reads")
                        } else {
                            fsutil::read_regular(&staged).expect("is staged")
                        };
                        assert_eq!(self::hash(&bytes), hash, "{}", item.path);
                        self.blobs.insert(hash, bytes);
                    }
                    (change.expected, change.wanted, *mode)
                }
                (FileFate::Same(state), _) => (*state, *state, None),
                _ => continue,
            };
            let (back, forward) = (item.back.clone(), item.forward.clone());
            let path = item.path.clone();
            files.push(PutBackFile { path, before, after, mode, back, forward });
        }
        let root = self.root.to_str().expect("is UTF-8").to_owned();
        let plan_id = journal.plan_id;
        let cause = "undo".to_owned();
        let put_back = PutBack { plan_id, cause, root, files, left: Vec::new() };
        self.records.push(FileRecord::PutBack(put_back));
    }

    /// Does what a start does about an interrupted application: the log decides.
    pub(super) fn recover(&self) -> Result<(), FsError> {
        let Some(journal) = self.journals.read(self.id)? else { return Ok(()) };
        let is_recorded = self.records.iter().any(|record| {
            matches!(record, FileRecord::PutBack(put_back) if put_back.plan_id == journal.plan_id)
        });
        if is_recorded {
            take_back::finish(&journal, &self.blobs, &self.journals.discarded)?;
        } else {
            take_back::take_back(&journal, &self.blobs, &self.journals.discarded)?;
        }
        self.journals.remove(self.id)
    }
}

impl KeptContents for HashMap<FileHash, Vec<u8>> {
    fn read(&self, hash: FileHash) -> Result<Vec<u8>, FsError> {
        Ok(self[&hash].clone())
    }

    fn has(&self, hash: FileHash) -> bool {
        self.contains_key(&hash)
    }
}

/// The files below a directory with their contents and permissions, and the directories.
type Tree = Vec<(PathBuf, Option<(Vec<u8>, u32)>)>;

/// A project with one session.
struct Project {
    scratch: tempfile::TempDir,
    session: Writer,
}

impl Project {
    fn new() -> Self {
        let scratch = scratch();
        let session = Writer::new(scratch.path(), 1);
        Self { scratch, session }
    }

    /// Says whether the home has room for discarded stages. Otherwise their files are removed in the project.
    fn set_room(&self, has_room: bool) {
        for number in 0..(if has_room { 0 } else { MAX_STAGES }) {
            let stage = format!("home/put-backs/{STAGE_PREFIX}{number}");
            fs::create_dir_all(self.scratch.path().join(stage)).expect("creates");
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.session.root.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("has one")).expect("creates");
        fs::write(path, text).expect("writes");
    }

    fn text(&self, name: &str) -> Option<String> {
        content(&self.path(name)).map(|bytes| String::from_utf8(bytes).expect("is UTF-8"))
    }

    /// Returns all files with their contents and permissions, and the directories.
    fn tree(&self) -> Tree {
        let mut found = Vec::new();
        let mut dirs = vec![self.session.root.clone()];
        while let Some(dir) = dirs.pop() {
            for file in fs::read_dir(dir).expect("lists") {
                let path = file.expect("lists").path();
                let metadata = path.symlink_metadata().expect("is there");
                if metadata.is_dir() {
                    dirs.push(path.clone());
                    found.push((path, None));
                } else {
                    let bytes = content(&path).unwrap_or_default();
                    found.push((path, Some((bytes, metadata.permissions().mode()))));
                }
            }
        }
        found.sort();
        found
    }

    /// Returns the contents that stages have, with the files that had them.
    fn kept(&self) -> Vec<(String, String)> {
        let files = stage::kept_files(&self.session.root);
        let text = |file: &str| self.text(file).expect("is there");
        files.iter().map(|file| (file.path.clone(), text(&file.file))).collect()
    }

    /// Takes calls back, and returns what became of each file.
    fn undo(&mut self, calls: &[Seq]) -> Vec<(String, FileStatus)> {
        let plan = self.session.plan(calls, &[]);
        self.apply(&plan)
    }

    fn redo(&mut self, calls: &[Seq]) -> Vec<(String, FileStatus)> {
        let plan = self.session.plan(&[], calls);
        self.apply(&plan)
    }

    fn apply(&mut self, plan: &[PlanItem]) -> Vec<(String, FileStatus)> {
        let outcomes = self.session.apply(plan, End::Whole).expect("applies");
        let mut statuses: Vec<_> = plan
            .iter()
            .map(|item| {
                let outcome = outcomes.iter().find(|(path, _)| *path == item.path);
                let status = match outcome {
                    Some((_, FileOutcome::Left(status, _))) => *status,
                    _ => item.planned().status,
                };
                (item.path.clone(), status)
            })
            .collect();
        statuses.sort_by(|one, other| one.0.cmp(&other.0));
        assert!(!self.session.root.read_dir().expect("lists").any(|file| {
            file.expect("lists").file_name().to_str().is_some_and(|name| name.starts_with(".ollm"))
        }));
        statuses
    }
}

fn put_back(names: &[&str]) -> Vec<(String, FileStatus)> {
    names.iter().map(|name| ((*name).to_owned(), FileStatus::PutBack)).collect()
}

#[test]
fn undo_puts_contents_back_and_redo_puts_them_forward() {
    let mut project = Project::new();
    project.write("a", "a1");
    project.write("gone", "kept");
    let before = project.tree();
    let one = project.session.call(&[("a", Some(b"a2")), ("new", Some(b"n")), ("gone", None)]);
    let two = project.session.call(&[("a", Some(b"a3"))]);
    let after = project.tree();
    assert_eq!(project.undo(&[two]), put_back(&["a"]));
    assert_eq!(project.text("a").expect("is there"), "a2");
    assert_eq!(project.redo(&[two]), put_back(&["a"]));
    assert_eq!(project.tree(), after);
    assert_eq!(project.undo(&[one, two]), put_back(&["a", "gone", "new"]));
    assert_eq!(project.tree(), before);
    // One step of several, with a content between two calls.
    assert_eq!(project.redo(&[one]), put_back(&["a", "gone", "new"]));
    assert_eq!(project.text("a").expect("is there"), "a2");
    assert_eq!(project.redo(&[two]), put_back(&["a"]));
    assert_eq!(project.tree(), after);
}

#[test]
fn calls_that_cancel_each_other_change_no_file() {
    let mut project = Project::new();
    let one = project.session.call(&[("a", Some(b"a1"))]);
    let two = project.session.call(&[("a", None)]);
    let unchanged = [("a".to_owned(), FileStatus::Unchanged)];
    assert_eq!(project.undo(&[one, two]), unchanged);
    assert_eq!(project.redo(&[one]), put_back(&["a"]));
    assert_eq!(project.undo(&[one]), put_back(&["a"]));
    // The permissions that the first undo saw belong to no file any more.
    assert_eq!(project.redo(&[one, two]), unchanged);
    assert_eq!(project.text("a"), None);
}

#[test]
fn copy_of_a_call_on_another_branch_is_the_same_write() {
    let mut project = Project::new();
    project.write("a", "a1");
    let call = project.session.call(&[("a", Some(b"a2"))]);
    let FileRecord::Call(_, record) = project.session.records[0].clone() else { panic!("a call") };
    let copy = Seq(1);
    project.session.records.push(FileRecord::Call(copy, record));
    // The leaf moves from one to the other.
    assert_eq!(project.session.plan(&[copy], &[call]), []);
    assert_eq!(project.undo(&[copy]), put_back(&["a"]));
    assert_eq!(project.redo(&[call]), put_back(&["a"]));
    assert_eq!(project.text("a").expect("is there"), "a2");
}

#[test]
fn later_write_by_somebody_else_is_a_conflict_and_stays() {
    let mut project = Project::new();
    project.write("a", "a1");
    project.write("b", "b1");
    let mut other = Writer::new(project.scratch.path(), 2);
    let call = project.session.call(&[("a", Some(b"a2")), ("b", Some(b"b2")), ("c", Some(b"c2"))]);
    other.call(&[("a", Some(b"other"))]);
    fs::remove_file(project.path("c")).expect("removes");
    let conflict = |name: &str| (name.to_owned(), FileStatus::Conflict);
    let unchanged = ("c".to_owned(), FileStatus::Unchanged);
    let expect = [conflict("a"), put_back(&["b"]).remove(0), unchanged];
    let plan = project.session.plan(&[call], &[]);
    assert_eq!(plan[0].planned().reason.as_deref(), Some("the file was changed"));
    // The other session can still take its own write back.
    assert_eq!(project.apply(&plan), expect);
    assert_eq!(project.text("a").expect("is there"), "other");
    assert_eq!(project.text("c"), None);
    let plan = other.plan(&[Seq(0)], &[]);
    other.apply(&plan, End::Whole).expect("applies");
    assert_eq!(project.text("a").expect("is there"), "a2");
}

#[test]
fn write_of_somebody_else_between_two_calls_is_a_conflict() {
    let mut project = Project::new();
    project.write("a", "a1");
    let one = project.session.call(&[("a", Some(b"a2"))]);
    project.write("a", "editor");
    let two = project.session.call(&[("a", Some(b"a3"))]);
    assert_eq!(project.undo(&[one, two])[0].1, FileStatus::Conflict);
    assert_eq!(project.text("a").expect("is there"), "a3");
    assert_eq!(project.undo(&[two]), put_back(&["a"]));
    assert_eq!(project.text("a").expect("is there"), "editor");
    assert_eq!(project.undo(&[one])[0].1, FileStatus::Conflict);
    assert_eq!(project.text("a").expect("is there"), "editor");
}

#[test]
fn file_that_a_staying_call_wrote_later_is_a_conflict() {
    let mut project = Project::new();
    let one = project.session.call(&[("a", Some(b"a1"))]);
    project.session.call(&[("a", Some(b"a2"))]);
    let plan = project.session.plan(&[one], &[]);
    let reason = plan[0].planned().reason.expect("has one");
    assert_eq!(reason, "call #1, which stays, wrote the file later");
    assert_eq!(project.apply(&plan)[0].1, FileStatus::Conflict);
}

#[test]
fn unknown_content_is_reported_and_never_guessed() {
    let mut project = Project::new();
    project.write("a", "now");
    let now = FileState::Hash(hash(b"now"));
    let write = |path: &str, before, after| FileWrite {
        path: path.to_owned(),
        before,
        after,
        mode: None,
        renamed_from: None,
        created_dirs: 0,
    };
    let lost = FileState::Hash(hash(b"lost"));
    project.write("b", "now");
    project.write("c", "now");
    let call = project.session.record(vec![
        write("a", FileState::Unknown, now),
        write("b", lost, now),
        write("c", FileState::Absent, FileState::Unknown),
    ]);
    let before = project.tree();
    let statuses = project.undo(&[call]);
    assert!(statuses.iter().all(|(_, status)| *status == FileStatus::Unknown), "{statuses:?}");
    assert_eq!(project.tree(), before);
}

#[test]
fn created_file_goes_only_if_unchanged_and_deleted_file_comes_back() {
    let mut project = Project::new();
    project.write("deep/er/gone", "kept");
    fs::set_permissions(project.path("deep/er/gone"), fs::Permissions::from_mode(0o640))
        .expect("sets");
    let call = project.session.call(&[
        ("mine", Some(b"x")),
        ("edited", Some(b"x")),
        ("deep/er/gone", None),
    ]);
    let FileRecord::Call(_, record) = &mut project.session.records[0] else { panic!("a call") };
    let writes = record.writes.as_mut().expect("has writes");
    writes[2].mode = Some(FileModes { before: Some(0o640), after: None });
    fs::remove_dir_all(project.path("deep")).expect("removes");
    project.write("edited", "edited");
    let statuses = project.undo(&[call]);
    let conflict = ("edited".to_owned(), FileStatus::Conflict);
    assert_eq!(
        statuses,
        [&put_back(&["deep/er/gone"])[..], &[conflict], &put_back(&["mine"])].concat()
    );
    assert_eq!(project.text("edited").expect("stays"), "edited");
    assert_eq!(project.text("mine"), None);
    assert_eq!(project.text("deep/er/gone").expect("is back"), "kept");
    let mode = |name: &str| project.path(name).metadata().expect("is there").mode() & 0o777;
    assert_eq!(mode("deep/er/gone"), 0o640);
}

#[test]
fn link_that_appears_between_preview_and_application_leads_nowhere() {
    let mut project = Project::new();
    let outside = project.scratch.path().join("outside");
    fs::create_dir(&outside).expect("creates");
    fs::write(outside.join("x"), "a2").expect("writes");
    project.write("dir/x", "a1");
    project.write("y", "a1");
    let call = project.session.call(&[("dir/x", Some(b"a2")), ("y", Some(b"a2"))]);
    let plan = project.session.plan(&[call], &[]);
    assert!(plan.iter().all(|item| matches!(item.fate, FileFate::Change(_))), "{plan:?}");
    fs::remove_dir_all(project.path("dir")).expect("removes");
    symlink(&outside, project.path("dir")).expect("links");
    fs::remove_file(project.path("y")).expect("removes");
    symlink(outside.join("x"), project.path("y")).expect("links");
    let statuses = project.apply(&plan);
    assert!(statuses.iter().all(|(_, status)| *status == FileStatus::Conflict), "{statuses:?}");
    assert_eq!(fs::read_to_string(outside.join("x")).expect("stays"), "a2");
    assert_eq!(fs::read_dir(&outside).expect("lists").count(), 1);
    assert!(project.path("y").symlink_metadata().expect("stays").is_symlink());
}

#[test]
fn files_of_git_and_of_the_daemon_are_never_put_back() {
    let mut project = Project::new();
    project.write(".git/config", "1");
    project.write("sub/.git/HEAD", "1");
    let two: Option<&[u8]> = Some(b"2");
    let call = project.session.call(&[(".git/config", two), ("sub/.git/HEAD", two)]);
    let before = project.tree();
    let statuses = project.undo(&[call]);
    assert!(statuses.iter().all(|(_, status)| *status == FileStatus::InGit), "{statuses:?}");
    assert_eq!(project.tree(), before);
    project.session.root = project.scratch.path().to_owned();
    let call = project.session.call(&[("home/config.yaml", two)]);
    assert_eq!(project.undo(&[call])[0].1, FileStatus::Outside);
}

#[test]
fn write_in_another_project_is_outside() {
    let mut project = Project::new();
    let call = project.session.call(&[("a", Some(b"1"))]);
    let copy = project.scratch.path().join("copy");
    fs::create_dir(&copy).expect("creates");
    fs::write(copy.join("a"), "1").expect("writes");
    project.session.root.clone_from(&copy);
    assert_eq!(project.undo(&[call])[0].1, FileStatus::Outside);
    assert!(copy.join("a").exists());
}

#[test]
fn times_and_permissions_that_were_not_written_stay() {
    let mut project = Project::new();
    project.write("bystander", "x");
    project.write("dir/other", "x");
    project.write("a", "a1");
    project.write("b", "b1");
    let call =
        project.session.call(&[("a", Some(b"a2")), ("b", Some(b"b2")), ("same", Some(b"s"))]);
    let chmod = |name: &str, mode| {
        fs::set_permissions(project.path(name), fs::Permissions::from_mode(mode)).expect("sets");
    };
    chmod("a", 0o700);
    chmod("b", 0o604);
    let FileRecord::Call(_, record) = &mut project.session.records[0] else { panic!("a call") };
    // The call made `a` executable, and somebody else changed `b`.
    let modes = Some(FileModes { before: Some(0o600), after: Some(0o700) });
    record.writes.as_mut().expect("has writes").iter_mut().for_each(|write| write.mode = modes);
    record.writes.as_mut().expect("has writes").truncate(2);
    let stamp = |name: &str| {
        let metadata = project.path(name).metadata().expect("is there");
        (metadata.ino(), metadata.mtime_nsec(), metadata.ctime_nsec(), metadata.mode())
    };
    let before = ["bystander", "dir/other", "same"].map(stamp);
    assert_eq!(project.undo(&[call]), put_back(&["a", "b"]));
    let project = &project;
    let stamp = |name: &str| {
        let metadata = project.path(name).metadata().expect("is there");
        (metadata.ino(), metadata.mtime_nsec(), metadata.ctime_nsec(), metadata.mode())
    };
    assert_eq!(["bystander", "dir/other", "same"].map(stamp), before);
    let mode = |name: &str| project.path(name).metadata().expect("is there").mode() & 0o777;
    assert_eq!((mode("a"), mode("b")), (0o600, 0o604));
}

#[test]
fn changed_permissions_alone_are_put_back_and_forward() {
    let mut project = Project::new();
    project.write("run.sh", "x");
    let chmod = |project: &Project, mode| {
        let path = project.path("run.sh");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("sets");
    };
    chmod(&project, 0o755);
    let same = FileState::Hash(hash(b"x"));
    project.session.blobs.insert(hash(b"x"), b"x".to_vec());
    let mode = Some(FileModes { before: Some(0o644), after: Some(0o755) });
    let path = "run.sh".to_owned();
    let write =
        FileWrite { path, before: same, after: same, mode, renamed_from: None, created_dirs: 0 };
    let call = project.session.record(vec![write]);
    let plan = project.session.plan(&[call], &[]);
    assert_eq!(plan[0].planned().action, Some(FileAction::SetMode));
    project.apply(&plan);
    let mode =
        |project: &Project| project.path("run.sh").metadata().expect("is there").mode() & 0o777;
    assert_eq!(mode(&project), 0o644);
    assert_eq!(project.redo(&[call]), put_back(&["run.sh"]));
    assert_eq!(mode(&project), 0o755);
}

#[test]
fn plan_of_a_project_that_is_gone_puts_nothing_back() {
    let mut project = Project::new();
    let call = project.session.call(&[("a", Some(b"1"))]);
    let plan = project.session.plan(&[call], &[]);
    fs::remove_dir_all(&project.session.root).expect("removes");
    project.session.apply(&plan, End::Whole).expect_err("the root is gone");
    assert_eq!(project.session.plan(&[call], &[])[0].planned().status, FileStatus::Outside);
    assert!(!project.session.root.exists());
}

/// A project with one change of each kind to take back.
fn project_with_changes() -> (Project, Seq) {
    let mut project = Project::new();
    project.write("a", "a1");
    project.write("dir/b", "b1");
    project.write("old/gone", "g1");
    project.write("bystander", "x");
    let writes: [(&str, Option<&[u8]>); 5] = [
        ("a", Some(b"a2")),
        ("dir/b", Some(b"b2")),
        ("old/gone", None),
        ("new", Some(b"n2")),
        ("dir/new", Some(b"n3")),
    ];
    let call = project.session.call(&writes);
    fs::remove_dir(project.path("old")).expect("is empty");
    (project, call)
}

/// The scenes of the sweeps over all steps: the abilities that the file system lacks, and whether the home has room for
/// discarded stages.
const SWEEPS: [(&[Ability], bool); 4] =
    [(&[], true), (&[Ability::RenameFlags], true), (&[], false), (&[Ability::RenameFlags], false)];

#[test]
fn crash_at_every_step_is_taken_back_or_finished() {
    for (lacks, has_room) in SWEEPS {
        let mut n_steps = 0;
        for at in 0.. {
            let (mut project, call) = project_with_changes();
            project.set_room(has_room);
            let before = project.tree();
            let plan = project.session.plan(&[call], &[]);
            let trace = DiskTrace::new(project.scratch.path());
            trace.set_lacking(lacks);
            let kind = FaultKind::Error(Errno::IO.raw_os_error());
            // After a crash nothing is changed any more.
            trace.set_fault(Some(DiskFault { at, count: ALL, kind }));
            let applied = project.session.apply(&plan, End::Whole);
            let has_record = matches!(project.session.records.last(), Some(FileRecord::PutBack(_)));
            trace.set_fault(None);
            project.session.recover().expect("recovers");
            project.session.recover().expect("has nothing to recover");
            let plan = project.session.plan(&[call], &[]);
            if !has_record {
                assert_eq!(project.tree(), before, "step {at}");
                assert_eq!(
                    project.apply(&plan),
                    put_back(&["a", "dir/b", "dir/new", "new", "old/gone"])
                );
            }
            assert_eq!(project.text("a").expect("is there"), "a1", "step {at}");
            assert_eq!(project.text("new"), None, "step {at}");
            assert_eq!(project.text("old/gone").expect("is there"), "g1", "step {at}");
            assert_eq!(project.kept(), [], "step {at}");
            if applied.is_ok() {
                n_steps = at;
                break;
            }
        }
        assert!(n_steps > 30, "{n_steps}");
    }
}

#[test]
fn crash_at_every_step_of_taking_back_is_taken_back() {
    for (at, (lacks, has_room)) in (0..).flat_map(|at| SWEEPS.map(|sweep| (at, sweep))) {
        let (mut project, call) = project_with_changes();
        project.set_room(has_room);
        let before = project.tree();
        let plan = project.session.plan(&[call], &[]);
        let trace = DiskTrace::new(project.scratch.path());
        trace.set_lacking(lacks);
        project.session.apply(&plan, End::BeforeRecord).expect("applies");
        let kind = FaultKind::Error(Errno::IO.raw_os_error());
        let first_tried = trace.counts().0;
        trace.set_fault(Some(DiskFault { at: first_tried + at, count: ALL, kind }));
        let first = trace.position();
        let recovered = project.session.recover();
        trace.set_fault(None);
        project.session.recover().expect("recovers");
        assert_eq!(project.tree(), before, "step {at}");
        // The removal of the stage may be in the system's cache only: it is made durable before that of the journal.
        let steps = &trace.steps()[first..];
        let root = project.session.root.strip_prefix(project.scratch.path()).expect("is in it");
        let synced = steps.iter().rposition(|step| *step == DiskStep::SyncDir(root.to_owned()));
        let is_journal = |path: &Path| path.extension().is_some_and(|name| name == "json");
        let is_home = |path: &Path| path.starts_with("home");
        let removed = steps.iter().position(
            |step| matches!(step, DiskStep::Remove(path) if is_journal(path) && is_home(path)),
        );
        assert!(removed.is_none() || synced.is_some() && synced < removed, "step {at}: {steps:?}");
        // The last sweep has the most steps.
        if recovered.is_ok() && !lacks.is_empty() && !has_room {
            break;
        }
    }
}

#[test]
fn full_disk_at_every_step_leaves_all_files_as_they_were() {
    for kind in [
        FaultKind::Error(Errno::NOSPC.raw_os_error()),
        FaultKind::Short(Errno::NOSPC.raw_os_error()),
    ] {
        for at in 0.. {
            let (mut project, call) = project_with_changes();
            let before = project.tree();
            let plan = project.session.plan(&[call], &[]);
            let trace = DiskTrace::new(project.scratch.path());
            trace.set_fault(Some(DiskFault { at, count: 1, kind }));
            let applied = project.session.apply(&plan, End::Whole);
            let has_record = matches!(project.session.records.last(), Some(FileRecord::PutBack(_)));
            trace.set_fault(None);
            let n_tried = trace.counts().0;
            project.session.recover().expect("recovers");
            if has_record {
                assert_eq!(project.text("a").expect("is there"), "a1", "step {at}");
            } else {
                assert!(applied.is_err(), "step {at}");
                assert_eq!(project.tree(), before, "step {at}");
            }
            if n_tried <= at {
                break;
            }
        }
    }
}

#[test]
fn unreadable_file_at_every_step_is_neither_lost_nor_misreported() {
    let kind = FaultKind::Read(Errno::MFILE.raw_os_error());
    for at in 0.. {
        let (mut project, call) = project_with_changes();
        let before = project.tree();
        let plan = project.session.plan(&[call], &[]);
        let trace = DiskTrace::new(project.scratch.path());
        trace.set_fault(Some(DiskFault { at, count: 1, kind }));
        let applied = project.session.apply(&plan, End::BehindRecord);
        let n_read = trace.n_read();
        trace.set_fault(None);
        project.session.recover().expect("recovers");
        let Ok(outcomes) = applied else {
            assert_eq!(project.tree(), before, "step {at}");
            continue;
        };
        for (path, outcome) in &outcomes {
            let (undone, left) = match path.as_str() {
                "a" => (Some("a1"), Some("a2")),
                "dir/b" => (Some("b1"), Some("b2")),
                "old/gone" => (Some("g1"), None),
                "new" => (None, Some("n2")),
                _ => (None, Some("n3")),
            };
            let is_done = matches!(outcome, FileOutcome::Done(_));
            let expect = if is_done { undone } else { left };
            assert_eq!(project.text(path).as_deref(), expect, "step {at}, {path}: {outcome:?}");
        }
        if n_read <= at {
            break;
        }
    }
}

#[test]
fn record_behind_which_a_crash_follows_is_finished() {
    let (mut project, call) = project_with_changes();
    let plan = project.session.plan(&[call], &[]);
    project.session.apply(&plan, End::BehindRecord).expect("applies");
    project.session.recover().expect("recovers");
    assert_eq!(project.text("a").expect("is there"), "a1");
    assert_eq!(project.redo(&[call]), put_back(&["a", "dir/b", "dir/new", "new", "old/gone"]));
    assert_eq!(project.text("dir/b").expect("is there"), "b2");
}

#[test]
fn many_files_are_put_back() {
    let mut project = Project::new();
    let names: Vec<String> = (0..50_000).map(|n| format!("d{}/f{n}", n % 100)).collect();
    let bytes = b"x";
    let writes: Vec<(&str, Option<&[u8]>)> =
        names.iter().map(|name| (name.as_str(), Some(&bytes[..]))).collect();
    let call = project.session.call(&writes);
    let plan = project.session.plan(&[call], &[]);
    assert_eq!(plan.len(), names.len());
    let outcomes = project.session.apply(&plan, End::BeforeRecord).expect("applies");
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, FileOutcome::Done(_))));
    assert!(!names.iter().any(|name| project.path(name).exists()));
    project.session.recover().expect("takes back");
    assert!(names.iter().all(|name| project.path(name).exists()));
}

#[test]
fn damaged_mark_leaves_the_stage_for_a_person() {
    let (mut project, call) = project_with_changes();
    let plan = project.session.plan(&[call], &[]);
    project.session.apply(&plan, End::BeforeRecord).expect("applies");
    let journal = project.session.journals.read(project.session.id).expect("reads");
    let stage = project.path(&journal.expect("is there").stage_name());
    fs::write(stage.join("ready"), "{").expect("writes");
    let before = project.tree();
    let error = project.session.recover().expect_err("is damaged");
    assert_eq!(error.source.kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(project.tree(), before);
    // A person removes it.
    fs::remove_dir_all(&stage).expect("removes");
    project.session.recover().expect("has nothing to take back");
    assert!(project.session.journals.read(project.session.id).expect("reads").is_none());
}

#[test]
fn journal_of_another_version_is_left_for_a_person() {
    let project = Project::new();
    let session = &project.session;
    let plan_id = PlanId::from_uuid(Uuid::from_u128(1));
    let journal = Journal::new(session.id, plan_id, session.root.clone(), Vec::new());
    session.journals.write(&journal).expect("writes");
    assert_eq!(session.journals.sessions().expect("lists"), [session.id]);
    let path = project.scratch.path().join(format!("home/put-backs/{}.json", session.id));
    let text = fs::read_to_string(&path).expect("reads").replace("\"version\":1", "\"version\":2");
    fs::write(&path, text).expect("writes");
    session.journals.read(session.id).expect_err("is newer");
    assert!(path.exists());
}
