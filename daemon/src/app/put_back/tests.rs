//! `session.undo` with files on a real log: the daemon ends, or the disk is full, at every change of a file.
#![expect(clippy::disallowed_methods, reason = "these tests write files as tools and editors do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::{Custom, FileStatus, RecordBody};
use ollm_protocol::methods::session::branches::SessionUndoResult;
use ollm_protocol::{EventKind, SessionId};
use rustix::io::Errno;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{recover, settle};
use crate::app::branches::undo;
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::sessions::{create, delete, input};
use crate::app::testing::configured_core;
use crate::events::EventFilter;
use crate::fsutil::trace::{DiskFault, DiskTrace, FaultKind};
use crate::put_back::journal::{Journal, STAGE_PREFIX};

/// More changes than any run makes.
const ALL: usize = usize::MAX / 2;

/// A session that wrote files in a project.
struct Scene {
    scratch: tempfile::TempDir,
    core: Arc<Core>,
    id: SessionId,
}

fn params<T: serde::de::DeserializeOwned>(params: Value) -> T {
    serde_json::from_value(params).expect("params")
}

impl Scene {
    async fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = tempfile::tempdir_in(parent).expect("a scratch directory");
        let project = scratch.path().canonicalize().expect("is there").join("project");
        fs::create_dir(&project).expect("creates");
        fs::create_dir(scratch.path().join("home")).expect("creates");
        let core = configured_core(&scratch.path().join("home"), &[]);
        let created = create::create(&core, params(json!({ "projectPath": project })));
        let id = created.expect("creates").session.session_id;
        let scene = Self { scratch, core, id };
        let message = json!({ "role": "user", "content": "write" });
        let message = params(json!({ "sessionId": id, "message": message }));
        input::record(Arc::clone(&scene.core), message).await.expect("records");
        let text = |text: &str| json!({ "text": text });
        let writes = json!([
            { "path": "a", "before": text("1"), "after": text("2") },
            { "path": "dir/gone", "before": text("g"), "after": "absent" },
            { "path": "new", "before": "absent", "after": text("n") },
            { "path": "made/deep/new", "before": "absent", "after": text("n"), "createdDirs": 2 },
        ]);
        let call = json!({ "id": "c", "name": "write", "result": { "llmContent": "ok" }, "writes": writes });
        let call = params(json!({ "sessionId": id, "toolCall": call }));
        input::record_tool_call(Arc::clone(&scene.core), call).await.expect("records");
        fs::write(scene.path("a"), "2").expect("writes");
        fs::write(scene.path("new"), "n").expect("writes");
        fs::create_dir_all(scene.path("made/deep")).expect("creates");
        fs::write(scene.path("made/deep/new"), "n").expect("writes");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join("project").join(name)
    }

    async fn undo(&self, more: Value) -> Result<SessionUndoResult> {
        let mut all = json!({ "sessionId": self.id, "steps": 2 });
        all.as_object_mut().expect("is one").extend(more.as_object().expect("is one").clone());
        undo::undo(Arc::clone(&self.core), params(all), CancellationToken::new()).await
    }

    /// Previews an undo and applies it with a failing disk.
    async fn undo_with(&self, fault: DiskFault) -> (Arc<DiskTrace>, Result<SessionUndoResult>) {
        let plan = self.undo(json!({ "files": "preview" })).await.expect("plans");
        let plan_id = plan.files.expect("has files").plan_id;
        let trace = DiskTrace::new(self.scratch.path());
        trace.set_fault(Some(fault));
        (trace, self.undo(json!({ "files": "apply", "planId": plan_id })).await)
    }

    fn put_backs(&self) -> PathBuf {
        self.scratch.path().join("home/put-backs")
    }

    /// Creates a stage that another session discarded, and returns its path.
    fn discard_other(&self) -> PathBuf {
        let other = SessionId::from_uuid(uuid::Uuid::from_u128(7));
        let stage = self.put_backs().join(format!("{STAGE_PREFIX}1.{other}"));
        fs::create_dir_all(&stage).expect("creates");
        fs::write(stage.join("0"), "old").expect("writes");
        stage
    }

    /// Opens the home as the next start does.
    fn restart(self) -> Self {
        let Self { scratch, core, id } = self;
        drop(core);
        let core = configured_core(&scratch.path().join("home"), &[]);
        recover(&core);
        Self { scratch, core, id }
    }

    /// Checks that the conversation and the files agree; returns whether they were undone.
    fn check(&self, at: usize) -> bool {
        let len = |live: &crate::session::OpenSession| live.state().entries().len() as u64;
        let len = self.core.sessions.with(self.id, len).expect("opens");
        let seqs: Vec<_> = (0..len).map(ollm_protocol::Seq).collect();
        let bodies = self.core.sessions.bodies(self.id, &seqs).expect("reads");
        let has = |is: &dyn Fn(&RecordBody) -> bool| bodies.iter().flatten().any(is);
        let is_recorded = has(&|body| matches!(body, RecordBody::PutBack(_)));
        assert_eq!(has(&|body| matches!(body, RecordBody::Leaf(_))), is_recorded, "change {at}");
        let text = |name: &str| fs::read_to_string(self.path(name)).ok();
        let found = [text("a"), text("dir/gone"), text("new"), text("made/deep/new")];
        let new = Some("n".to_owned());
        let expect = match is_recorded {
            true => [Some("1".to_owned()), Some("g".to_owned()), None, None],
            false => [Some("2".to_owned()), None, new.clone(), new],
        };
        assert_eq!(found, expect, "change {at}, recorded: {is_recorded}");
        assert_eq!(self.path("made").exists(), !is_recorded, "change {at}");
        let project = self.path("");
        let names: Vec<_> = fs::read_dir(project)
            .expect("lists")
            .map(|file| file.expect("lists").file_name())
            .collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().starts_with(".ollm")), "{names:?}");
        assert!(self.core.journals.read(self.id).expect("reads").is_none(), "change {at}");
        is_recorded
    }
}

#[tokio::test]
async fn daemon_that_ends_at_any_change_leaves_conversation_and_files_in_agreement() {
    let kind = FaultKind::Error(Errno::IO.raw_os_error());
    let mut n_undone = 0;
    for at in 0.. {
        let scene = Scene::new().await;
        let (trace, undone) = scene.undo_with(DiskFault { at, count: ALL, kind }).await;
        let n_failed = trace.counts().1;
        let (path, is_acknowledged) = (scene.scratch.path().to_owned(), undone.is_ok());
        // The faults end with the process.
        let Scene { scratch, core, id } = scene;
        drop(core);
        trace.set_fault(None);
        let core = configured_core(&path.join("home"), &[]);
        let scene = Scene { scratch, core, id }.restart();
        let is_undone = scene.check(at);
        assert!(is_undone || !is_acknowledged, "change {at}");
        n_undone += usize::from(is_undone);
        if n_failed == 0 {
            assert!(at > 40 && n_undone < at, "{at} changes, {n_undone} undone");
            break;
        }
    }
}

#[tokio::test]
async fn full_disk_at_any_change_fails_the_call_or_not_and_works_again() {
    let kind = FaultKind::Error(Errno::NOSPC.raw_os_error());
    for at in 0.. {
        let scene = Scene::new().await;
        let discarded = scene.discard_other();
        let (trace, undone) = scene.undo_with(DiskFault { at, count: 1, kind }).await;
        trace.set_fault(None);
        assert_eq!(discarded.exists(), undone.is_ok(), "change {at}");
        settle(&scene.core, scene.id).expect("settles");
        let is_undone = scene.check(at);
        assert_eq!(is_undone, undone.is_ok(), "change {at}");
        if !is_undone {
            let plan = scene.undo(json!({ "files": "preview" })).await.expect("plans");
            let plan_id = plan.files.expect("has files").plan_id;
            let applied = scene.undo(json!({ "files": "apply", "planId": plan_id })).await;
            let files = applied.expect("applies").files.expect("has files");
            assert!(files.files.iter().all(|file| file.status == FileStatus::PutBack), "{files:?}");
            assert!(scene.check(at), "change {at}");
        }
        if trace.counts().1 == 0 {
            break;
        }
    }
}

#[tokio::test]
async fn log_that_cannot_be_cut_back_decides_at_the_next_start() {
    let kind = FaultKind::Error(Errno::IO.raw_os_error());
    for count in [2, 3] {
        for at in 0.. {
            let scene = Scene::new().await;
            let (trace, undone) = scene.undo_with(DiskFault { at, count, kind }).await;
            trace.set_fault(None);
            // The daemon ends before anything else is called.
            let scene = scene.restart();
            let is_undone = scene.check(at);
            assert!(is_undone || undone.is_err(), "change {at}");
            if trace.counts().1 == 0 {
                break;
            }
        }
    }
}

#[tokio::test]
async fn client_that_leaves_before_the_record_changes_nothing() {
    let scene = Scene::new().await;
    let plan = scene.undo(json!({ "files": "preview" })).await.expect("plans");
    let plan_id = plan.files.expect("has files").plan_id;
    let apply = json!({ "sessionId": scene.id, "steps": 2, "files": "apply", "planId": plan_id });
    let left = CancellationToken::new();
    left.cancel();
    let canceled = undo::undo(Arc::clone(&scene.core), params(apply), left).await;
    assert!(matches!(canceled, Err(AppError::PutBackCanceled { .. })), "{canceled:?}");
    assert!(!scene.check(0), "nothing is recorded or changed");
    let applied = scene.undo(json!({ "files": "apply", "planId": plan_id })).await;
    assert!(applied.expect("applies").files.is_some_and(|files| files.applied));
    assert!(scene.check(0));
}

#[tokio::test]
async fn steps_of_an_application_are_events() {
    let scene = Scene::new().await;
    let filter = EventFilter { kinds: vec![EventKind::FilesProgress], ..EventFilter::default() };
    let plan = scene.undo(json!({ "files": "preview" })).await.expect("plans");
    let plan_id = plan.files.expect("has files").plan_id;
    let mut events = scene.core.events.subscribe(filter, None);
    scene.undo(json!({ "files": "apply", "planId": plan_id })).await.expect("applies");
    for step in ["staging", "moving", "recording"] {
        let event = events.take().expect("an event");
        let expect = json!({ "cause": "undo", "step": step, "done": 0, "total": 4 });
        assert_eq!(event.data, expect);
    }
}

#[tokio::test]
async fn plan_of_too_many_files_is_refused_when_it_is_previewed() {
    let scene = Scene::new().await;
    let part = "x".repeat(250);
    let dir = vec![part.as_str(); 15].join("/");
    for half in 0..2 {
        let write = |n| json!({ "path": format!("{dir}/{half}-{n}"), "before": "absent", "after": "absent" });
        let writes: Vec<Value> = (0..3_200).map(write).collect();
        let call = json!({ "id": half.to_string(), "name": "write", "result": { "llmContent": "ok" }, "writes": writes });
        let call = params(json!({ "sessionId": scene.id, "toolCall": call }));
        input::record_tool_call(Arc::clone(&scene.core), call).await.expect("records");
    }
    let error = scene.undo(json!({ "files": "preview" })).await.expect_err("is too large");
    assert!(error.to_string().contains("too many for one call"), "{error}");
}

#[tokio::test]
async fn unfinished_call_is_listed_before_any_number_of_others() {
    let scene = Scene::new().await;
    for n in 0..101 {
        let call = json!({ "id": format!("s{n}"), "name": "shell", "args": { "command": n.to_string() },
            "result": { "llmContent": n.to_string() } });
        let call = params(json!({ "sessionId": scene.id, "toolCall": call }));
        input::record_tool_call(Arc::clone(&scene.core), call).await.expect("records");
    }
    let start = json!({ "id": "running", "name": "shell" });
    let start = json!({ "sessionId": scene.id, "name": Custom::TOOL_START, "data": start });
    input::record_custom(Arc::clone(&scene.core), params(start)).await.expect("records");
    let undone = scene.undo(json!({ "files": "preview", "steps": 102 })).await.expect("plans");
    let plan = undone.files.expect("has files");
    assert_eq!((plan.unrecorded.len(), plan.unrecorded_calls), (100, 102));
    assert!(plan.unrecorded[0].unfinished);
    let others = &plan.unrecorded[1..];
    assert!(others.iter().all(|call| !call.unfinished && call.seq < plan.unrecorded[0].seq));
    assert!(others.is_sorted_by_key(|call| call.seq));
}

#[tokio::test]
async fn damaged_mark_is_named_and_leaves_an_undo_without_files() {
    let scene = Scene::new().await;
    let plan = scene.undo(json!({ "files": "preview" })).await.expect("plans");
    let plan_id = plan.files.expect("has files").plan_id;
    let root = scene.path("").canonicalize().expect("is there");
    let journal = Journal::new(scene.id, plan_id, root, Vec::new());
    scene.core.journals.write(&journal).expect("writes");
    let stage = scene.path(&journal.stage_name());
    fs::create_dir(&stage).expect("creates");
    fs::write(stage.join("ready"), "{").expect("writes");
    for request in [json!({ "files": "preview" }), json!({ "files": "apply", "planId": plan_id })] {
        let error = scene.undo(request).await.expect_err("is damaged");
        let text = crate::error_chain::with_sources(&error);
        assert!(text.contains("`ready`") && text.contains(&journal.stage_name()), "{text}");
    }
    assert!(stage.join("ready").exists());
    scene.undo(json!({})).await.expect("moves the leaf alone");
}

#[tokio::test]
async fn refused_record_leaves_no_content_of_its_files() {
    let kind = FaultKind::Error(Errno::NOSPC.raw_os_error());
    let mut n_refused = 0;
    for at in 0.. {
        let scene = Scene::new().await;
        let blobs = || {
            let dir = scene.scratch.path().join("home").join(format!("{}.blobs", scene.id));
            let files = fs::read_dir(dir).expect("lists");
            let names = files.map(|file| file.expect("lists").file_name());
            // A mark whose removal failed stays until the next start.
            let contents = names.filter(|name| !name.to_string_lossy().starts_with(".tmp-"));
            contents.collect::<std::collections::BTreeSet<_>>()
        };
        let before = blobs();
        assert_eq!(before.len(), 2);
        let text = |text: &str| json!({ "text": text });
        // The content of the second file is kept already.
        let writes = json!([
            { "path": "x", "before": text("only here"), "after": "absent" },
            { "path": "y", "before": text("1"), "after": "absent" },
        ]);
        let call = json!({ "id": "d", "name": "write", "result": { "llmContent": "ok" }, "writes": writes });
        let call = json!({ "sessionId": scene.id, "toolCall": call });
        let trace = DiskTrace::new(scene.scratch.path());
        trace.set_fault(Some(DiskFault { at, count: 1, kind }));
        let refused = input::record_tool_call(Arc::clone(&scene.core), params(call.clone())).await;
        trace.set_fault(None);
        if refused.is_err() {
            n_refused += 1;
            assert_eq!(blobs(), before, "change {at}");
            input::record_tool_call(Arc::clone(&scene.core), params(call)).await.expect("records");
        }
        assert_eq!(blobs().len(), 3, "change {at}");
        if trace.counts().1 == 0 {
            break;
        }
    }
    assert!(n_refused > 3, "{n_refused}");
}

#[tokio::test]
async fn deleted_session_takes_its_discarded_stages_along_and_no_others() {
    let scene = Scene::new().await;
    let other = scene.discard_other();
    let plan = scene.undo(json!({ "files": "preview" })).await.expect("plans");
    let plan_id = plan.files.expect("has files").plan_id;
    scene.undo(json!({ "files": "apply", "planId": plan_id })).await.expect("applies");
    let stage = scene.put_backs().join(format!("{STAGE_PREFIX}{plan_id}.{}", scene.id));
    assert!(stage.exists());
    delete::delete(&scene.core, params(json!({ "sessionId": scene.id }))).expect("deletes");
    assert!(!stage.exists() && other.exists());
}

#[tokio::test]
async fn contents_that_cannot_be_listed_are_no_reason_to_think_that_the_quota_is_used() {
    let scene = Scene::new().await;
    let blobs = scene.scratch.path().join("home").join(format!("{}.blobs", scene.id));
    fs::remove_dir_all(&blobs).expect("removes");
    fs::write(&blobs, "").expect("writes");
    let plan = scene.undo(json!({ "files": "preview" })).await.expect("plans");
    let files = plan.files.expect("has files").files;
    let new = files.iter().find(|file| file.path == "new").expect("is in the plan");
    let reason = new.reason.clone().expect("has one");
    assert_eq!(new.status, FileStatus::Failed);
    assert!(reason.starts_with("cannot keep its content"), "{reason}");
}

#[tokio::test]
async fn fifty_thousand_created_files_go_and_come_back() {
    let scene = Scene::new().await;
    let dirs: Vec<String> = (0..100).map(|n| format!("many/{n}")).collect();
    dirs.iter().for_each(|dir| fs::create_dir_all(scene.path(dir)).expect("creates"));
    let paths: Vec<String> = (0..50_000).map(|n| format!("{}/{n}", dirs[n % 100])).collect();
    paths.iter().for_each(|path| fs::write(scene.path(path), "x").expect("writes"));
    let hash = blake3::hash(b"x").to_hex();
    let write = |path: &String| json!({ "path": path, "before": "absent", "after": { "hash": hash.as_str() } });
    let writes: Vec<Value> = paths.iter().map(write).collect();
    let message = params(
        json!({ "sessionId": scene.id, "message": { "role": "user", "content": "create" } }),
    );
    input::record(Arc::clone(&scene.core), message).await.expect("records");
    let call = json!({ "id": "many", "name": "write", "result": { "llmContent": "ok" }, "writes": writes });
    let call = params(json!({ "sessionId": scene.id, "toolCall": call }));
    input::record_tool_call(Arc::clone(&scene.core), call).await.expect("records");

    let step = async |is_redo: bool, more: Value| {
        let mut all = json!({ "sessionId": scene.id, "steps": 2 });
        all.as_object_mut().expect("is one").extend(more.as_object().expect("is one").clone());
        let core = Arc::clone(&scene.core);
        let stepped = match is_redo {
            true => undo::redo(core, params(all), CancellationToken::new()).await,
            false => undo::undo(core, params(all), CancellationToken::new()).await,
        };
        stepped.expect("steps").files.expect("has files")
    };
    let is_there = |path: &String| scene.path(path).exists();
    for is_redo in [false, true] {
        let plan = step(is_redo, json!({ "files": "preview" })).await;
        assert_eq!(plan.counts.put_back, 50_000);
        assert_eq!(
            paths.iter().filter(|path| is_there(path)).count(),
            if is_redo { 0 } else { 50_000 }
        );
        let done = step(is_redo, json!({ "files": "apply", "planId": plan.plan_id })).await;
        assert_eq!((done.counts.put_back, done.applied), (50_000, true));
    }
    assert!(paths.iter().all(is_there));
    assert_eq!(fs::read_to_string(scene.path(&paths[49_999])).expect("reads"), "x");
}
