//! Power cuts and kills while files of a project are put back.
//!
//! Tools of a session and an editor write files; undo, redo and restore put them back. A crash comes after any change of
//! the disk, in the home or in the project. The next start must find, or make, one of the legal states: all files of an
//! application put back and its record in the log, or none of both. The editor's bytes never change otherwise.
//!
//! Logs, journals and plans have the path of the project, so every start happens in the same directory.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::{FileHash, FileState, FilesMode, RecordKind};
use ollm_protocol::methods::session::branches::SessionUndoParams;
use ollm_protocol::{SessionId, SnapshotId};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::crash_disk::{CrashDisk, FileTree, Survivors};
use super::dice::Dice;
use super::home::{OpenHome, scratch, trace_below, write_tree};
use super::model::{Position, Register, Span};
use super::workload::of;
use crate::app::branches::{restore, undo};
use crate::app::error::AppError;
use crate::app::put_back;
use crate::app::sessions::{create, input};
use crate::app::snapshots;
use crate::fsutil;
use crate::fsutil::trace::DiskStep;
use crate::put_back::journal::STAGE_PREFIX;

/// The calls of a workload, and those after each crash.
const N_CALLS: usize = 14;
const N_CALLS_AFTER: usize = 5;
/// The workloads of a test run, and the crashes of each.
const N_RUNS: usize = 4;
const STATES_PER_RUN: usize = 40;
/// The files that tools and the editor write.
const PATHS: [&str; 4] = ["a", "b", "dir/c", "made/deep/d"];

/// The files of a project, and the number of times that files were put back, by the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProjectState {
    files: BTreeMap<String, String>,
    n_put_backs: usize,
}

/// A daemon whose session writes files.
struct Files {
    home: OpenHome,
    root: PathBuf,
    dice: Dice,
    session: SessionId,
    states: Register<ProjectState>,
    /// The contents that were ever written.
    contents: HashMap<FileHash, String>,
    snapshots: Vec<SnapshotId>,
    story: Vec<(Position, String)>,
    n_words: usize,
}

/// A workload that ran.
struct FilesRun {
    steps: Vec<DiskStep>,
    session: SessionId,
    states: Register<ProjectState>,
    contents: HashMap<FileHash, String>,
    snapshots: Vec<SnapshotId>,
    story: Vec<(Position, String)>,
    n_words: usize,
}

impl Files {
    /// Starts in a directory without a home, and creates a session.
    fn new(root: &Path, dice: Dice) -> Self {
        let trace = trace_below(root);
        fsutil::create_private_dir(&root.join("project")).expect("creates");
        let home = OpenHome::start(root, trace).expect("starts");
        let project = root.join("project");
        let created = create::create(&home.core, of(&json!({ "projectPath": project })));
        let session = created.expect("creates").session.session_id;
        let states = Register::start_with(ProjectState::default());
        let (contents, snapshots, story) = (HashMap::new(), Vec::new(), Vec::new());
        let root = root.to_owned();
        Self { home, root, dice, session, states, contents, snapshots, story, n_words: 0 }
    }

    fn finish(self) -> FilesRun {
        let Self { home, session, states, contents, snapshots, story, n_words, .. } = self;
        let steps = home.trace.steps();
        FilesRun { steps, session, states, contents, snapshots, story, n_words }
    }

    fn run(&mut self, n_calls: usize) -> Result<(), String> {
        for _ in 0..n_calls {
            match self.dice.below(11) {
                0..3 => self.tool_call()?,
                3 => self.edit(),
                4 => self.take_snapshot()?,
                5 => self.restore()?,
                6 | 7 => self.step(true)?,
                8 => self.step(false)?,
                9 => self.move_without_files()?,
                _ => self.rest()?,
            }
            let found = self.found()?;
            if found != self.states.newest() {
                let newest = self.states.newest();
                return Err(format!("law 56: there is {found:?} and not {newest:?}"));
            }
        }
        Ok(())
    }

    fn begin(&mut self, what: String) -> Span {
        let at = self.home.trace.position();
        self.story.push((at, what));
        Span::started(at)
    }

    /// Notes that a state is certain now.
    fn acked(&mut self, state: ProjectState, span: Span) {
        let acked = Some(self.home.trace.position());
        self.states.push(state, Span { acked, ..span });
    }

    fn word(&mut self) -> String {
        self.n_words += 1;
        let word = format!("content {}", self.n_words);
        self.contents.insert(FileHash(*blake3::hash(word.as_bytes()).as_bytes()), word.clone());
        word
    }

    /// Writes or removes a file durably, as a tool or an editor does.
    fn write(&mut self, path: &str, content: Option<&str>) {
        let place = self.root.join("project").join(path);
        let mut state = self.states.newest();
        match content {
            Some(text) => drop(state.files.insert(path.to_owned(), text.to_owned())),
            None => drop(state.files.remove(path)),
        }
        let span = self.begin(format!("write {path}: {content:?}"));
        self.states.push(state.clone(), span);
        match content {
            Some(text) => {
                fsutil::create_private_dir(place.parent().expect("has one")).expect("creates");
                fsutil::replace_atomically(&place, text.as_bytes()).expect("writes");
            }
            None => {
                fsutil::remove_file(&place).expect("removes");
                fsutil::sync_parent(&place).expect("syncs");
            }
        }
        self.acked(state, span);
    }

    /// Lets a tool write some files, and records its call.
    fn tool_call(&mut self) -> Result<(), String> {
        self.message("user")?;
        let mut writes = Vec::new();
        for path in PATHS {
            if !self.dice.percent(50) {
                continue;
            }
            let before = self.states.newest().files.get(path).cloned();
            let dirs = path.match_indices('/').filter(|(end, _)| {
                let dir = self.root.join("project").join(&path[..*end]);
                !dir.exists()
            });
            let created_dirs = dirs.count();
            let is_removed = before.is_some() && self.dice.percent(30);
            let after = if is_removed { None } else { Some(self.word()) };
            self.write(path, after.as_deref());
            let state = |text: Option<String>| match text {
                Some(text) => json!({ "text": text }),
                None => json!("absent"),
            };
            writes.push(json!({ "path": path, "before": state(before), "after": state(after),
                "createdDirs": created_dirs }));
        }
        let id = self.word();
        let call = json!({ "id": id, "name": "write", "result": { "llmContent": "ok" }, "writes": writes });
        self.begin(format!("record {id}"));
        let params = json!({ "sessionId": self.session, "toolCall": call });
        let recorded = input::record_tool_call(Arc::clone(&self.home.core), of(&params));
        self.home.runtime.block_on(recorded).map_err(|error| error.to_string())?;
        self.message("assistant")
    }

    fn message(&mut self, role: &str) -> Result<(), String> {
        let content = self.word();
        let params =
            json!({ "sessionId": self.session, "message": { "role": role, "content": content } });
        let recorded = input::record(Arc::clone(&self.home.core), of(&params));
        self.home.runtime.block_on(recorded).map(drop).map_err(|error| error.to_string())
    }

    /// Changes a file without the session.
    fn edit(&mut self) {
        let (path, text) = (self.dice.pick(&PATHS), self.word());
        self.write(path, Some(&text));
    }

    fn take_snapshot(&mut self) -> Result<(), String> {
        self.message("user")?;
        let params = of(&json!({ "sessionId": self.session }));
        let taken = snapshots::create::create(Arc::clone(&self.home.core), params);
        let taken = self.home.runtime.block_on(taken).map_err(|error| error.to_string())?;
        self.snapshots.push(taken.snapshot.snapshot_id);
        Ok(())
    }

    /// Undoes or redoes operations, with their files.
    fn step(&mut self, is_undo: bool) -> Result<(), String> {
        let steps = 1 + self.dice.below(3);
        let name = if is_undo { "undo" } else { "redo" };
        let session = self.session;
        self.put_back(name.to_owned(), move |home, files, plan_id| {
            let files: FilesMode = serde_json::from_value(json!(files)).expect("is one");
            let steps = u32::try_from(steps).expect("is small");
            let params = SessionUndoParams { files, ..SessionUndoParams::new(session, steps) };
            let params = SessionUndoParams { plan_id, ..params };
            let core = Arc::clone(&home.core);
            let done = match is_undo {
                true => home.runtime.block_on(undo::undo(core, params, CancellationToken::new())),
                false => home.runtime.block_on(undo::redo(core, params, CancellationToken::new())),
            };
            Ok(done?.files)
        })
    }

    /// Returns to a snapshot, with the files.
    fn restore(&mut self) -> Result<(), String> {
        if self.snapshots.is_empty() {
            return self.take_snapshot();
        }
        let (id, session) = (self.dice.pick(&self.snapshots), self.session);
        self.put_back(format!("restore {id}"), move |home, files, plan_id| {
            let params = json!({ "snapshotId": id, "sessionId": session, "files": files, "planId": plan_id });
            let restored = restore::restore(Arc::clone(&home.core), of(&params), CancellationToken::new());
            Ok(home.runtime.block_on(restored)?.files)
        })
    }

    /// Previews a call and applies it.
    fn put_back(
        &mut self,
        what: String,
        call: impl Fn(
            &OpenHome,
            &str,
            Option<ollm_protocol::PlanId>,
        ) -> Result<Option<ollm_protocol::content::FilePlan>, AppError>,
    ) -> Result<(), String> {
        let plan = match call(&self.home, "preview", None) {
            Ok(plan) => plan.expect("has one"),
            // There are not as many operations, or the snapshot was lost.
            Err(AppError::Invalid { .. } | AppError::Snapshot(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let mut state = self.states.newest();
        for (path, wanted) in put_back::wanted(&self.home.core, plan.plan_id) {
            match wanted {
                FileState::Hash(hash) => {
                    let text = self.contents.get(&hash).ok_or("law 44: an unknown content")?;
                    state.files.insert(path, text.clone());
                }
                _ => drop(state.files.remove(&path)),
            }
        }
        state.n_put_backs += usize::from(!plan.files.is_empty());
        let span = self.begin(format!("{what}: {:?}", plan.counts));
        self.states.push(state.clone(), span);
        call(&self.home, "apply", Some(plan.plan_id)).map_err(|error| error.to_string())?;
        self.acked(state, span);
        Ok(())
    }

    /// Undoes without putting files back; later calls must take into account that the files stayed.
    fn move_without_files(&mut self) -> Result<(), String> {
        self.begin("undo without files".to_owned());
        let params = SessionUndoParams::new(self.session, 1);
        let undone = undo::undo(Arc::clone(&self.home.core), params, CancellationToken::new());
        match self.home.runtime.block_on(undone) {
            Ok(_) | Err(AppError::Invalid { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Removes the discarded stages, as the daemon does in a pause.
    fn rest(&mut self) -> Result<(), String> {
        self.begin("rest".to_owned());
        let journals = &self.home.core.journals;
        journals.discarded.remove_all();
        let entries = std::fs::read_dir(journals.home().join("put-backs"));
        let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let left = names.find(|name| name.to_string_lossy().starts_with(STAGE_PREFIX));
        left.map_or(Ok(()), |name| Err(format!("law 44: {} is left in the home", name.display())))
    }

    /// Reads the files of the project, and what the log says.
    fn found(&self) -> Result<ProjectState, String> {
        let mut files = BTreeMap::new();
        read_files(&self.root.join("project"), "", &mut files)?;
        let n_put_backs = self.home.core.sessions.with(self.session, |live| {
            let entries = live.state().entries().iter();
            entries.filter(|entry| entry.kind() == Some(RecordKind::PutBack)).count()
        });
        Ok(ProjectState { files, n_put_backs: n_put_backs.unwrap_or_default() })
    }
}

fn read_files(
    dir: &Path,
    prefix: &str,
    files: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with(STAGE_PREFIX) {
            return Err(format!("law 44: {name} is left in the project"));
        }
        if path.is_dir() {
            read_files(&path, &format!("{prefix}{name}/"), files)?;
        } else if !name.starts_with(".tmp-") {
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            files.insert(format!("{prefix}{name}"), text);
        }
    }
    Ok(())
}

/// Makes the names of the files of a project certain.
fn sync_dirs(root: &Path) {
    let mut dirs = vec![root.join("project")];
    fsutil::sync_dir(root).expect("syncs");
    while let Some(dir) = dirs.pop() {
        fsutil::sync_dir(&dir).expect("syncs");
        let entries = std::fs::read_dir(&dir).expect("lists").flatten().map(|entry| entry.path());
        dirs.extend(entries.filter(|path| path.is_dir()));
    }
}

/// Removes everything in a directory and writes the files of a crash.
fn replace_all(root: &Path, tree: &FileTree) {
    for entry in std::fs::read_dir(root).expect("lists") {
        let path = entry.expect("lists").path();
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.expect("removes");
    }
    write_tree(root, tree);
}

/// Crashes after some changes of a run, starts again, and uses the daemon further.
fn crash(
    scratch: &TempDir,
    run: &FilesRun,
    base: &CrashDisk,
    dice: &mut Dice,
) -> Result<Option<(FilesRun, CrashDisk)>, String> {
    let survivors = match dice.below(10) {
        0..4 => Survivors::Everything,
        4 => Survivors::Nothing,
        _ => Survivors::Percent(dice.pick(&[15, 50, 85])),
    };
    let at = dice.below(run.steps.len() + 1);
    let mut disk = base.clone();
    run.steps[..at].iter().for_each(|step| disk.apply(step));
    disk.disown_temporaries();
    let tree = disk.crash(survivors, dice);
    replace_all(scratch.path(), &tree);
    let explain = |broken: String| {
        let calls: Vec<String> =
            run.story.iter().map(|(at, call)| format!("{at}: {call}")).collect();
        let steps: Vec<String> =
            run.steps[at.saturating_sub(30)..at].iter().map(|step| format!("{step:?}")).collect();
        let (calls, steps) = (calls.join("\n"), steps.join("\n"));
        format!("{broken}\n{survivors:?} after {at} changes of\n{calls}\nthe last of them\n{steps}")
    };
    let states = run.states.after_crash(at);
    let home = OpenHome::start(scratch.path(), trace_below(scratch.path())).map_err(explain)?;
    if home.core.sessions.summary(run.session).is_err() {
        // Nothing of it was acknowledged.
        return Ok(None);
    }
    let FilesRun { session, contents, snapshots, n_words, .. } = run;
    let mut files = Files {
        home,
        root: scratch.path().to_owned(),
        dice: dice.split(),
        session: *session,
        states,
        contents: contents.clone(),
        snapshots: snapshots.clone(),
        story: Vec::new(),
        n_words: n_words + 1000,
    };
    let found = files.found().map_err(explain)?;
    if !files.states.admits(&found) {
        return Err(explain(format!("law 44: there is {found:?}, of {:?}", files.states)));
    }
    let is_left = files.home.core.journals.read(*session).is_ok_and(|journal| journal.is_none());
    if !is_left {
        return Err(explain("law 44: a journal is left".to_owned()));
    }
    files.rest().map_err(explain)?;
    // The writes of a killed tool may be in the system's cache only, and a power cut would lose them.
    let span = files.begin("sync the project".to_owned());
    sync_dirs(scratch.path());
    files.acked(found, span);
    files.run(N_CALLS_AFTER).map_err(explain)?;
    let base = if survivors == Survivors::Everything { disk } else { CrashDisk::new(&tree) };
    Ok(Some((files.finish(), base)))
}

/// Returns the applications that a run made.
fn n_applied(run: &FilesRun) -> usize {
    run.states.newest().n_put_backs
}

#[test]
fn crash_at_any_change_leaves_all_files_put_back_or_none_and_no_foreign_byte_changed() {
    let n_states = std::env::var("OLLM_SIM_STATES").ok();
    let n_states = n_states.map_or(N_RUNS * STATES_PER_RUN, |text| text.parse().expect("a number"));
    let (mut n_checked, mut n_put_backs) = (0, 0);
    for seed in 0.. {
        let scratch = scratch();
        let mut files = Files::new(scratch.path(), Dice::of(seed, 77));
        files.run(N_CALLS).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        let run = files.finish();
        n_put_backs += n_applied(&run);
        let base = CrashDisk::new(&FileTree::new());
        for state in 0..STATES_PER_RUN {
            let mut dice = Dice::of(seed, state as u64);
            let after = crash(&scratch, &run, &base, &mut dice);
            let after =
                after.unwrap_or_else(|broken| panic!("seed {seed}, state {state}: {broken}"));
            if let Some((second, disk)) = after.filter(|_| dice.percent(40)) {
                let again = crash(&scratch, &second, &disk, &mut dice);
                again
                    .unwrap_or_else(|broken| panic!("seed {seed}, state {state}, again: {broken}"));
            }
            n_checked += 1;
        }
        if n_checked >= n_states {
            break;
        }
    }
    assert!(n_put_backs > 0, "files were put back");
}
