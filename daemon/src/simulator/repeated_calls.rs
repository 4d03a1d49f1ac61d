//! Calls that find their change made: by a process that was killed, perhaps in the system's cache only.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::SessionId;
use serde_json::json;

use super::home::{OpenHome, scratch};
use super::workload::{exported, of};
use crate::app::branches::fork;
use crate::app::context::{entries, goals, pins};
use crate::app::core::Core;
use crate::app::error::AppError;
use crate::app::loops;
use crate::app::sessions::{create, documents, import, input, update};
use crate::app::snapshots;
use crate::fsutil::trace::{DiskStep, DiskTrace};

/// A call that can be repeated.
type Call = fn(&OpenHome, SessionId) -> Result<(), AppError>;

/// Calls an async function of `app`.
fn wait<T>(
    home: &OpenHome,
    call: impl AsyncFnOnce(Arc<Core>) -> Result<T, AppError>,
) -> Result<(), AppError> {
    home.runtime.block_on(call(Arc::clone(&home.core))).map(drop)
}

/// Creates a session with one message.
fn create(home: &OpenHome) -> SessionId {
    let created = create::create(&home.core, of(&json!({}))).expect("creates");
    let id = created.session.session_id;
    let params = json!({ "sessionId": id, "message": { "role": "user", "content": "hello" } });
    wait(home, async |core| input::record(core, of(&params)).await).expect("records");
    id
}

/// Returns the calls that succeed without a write when they are repeated, or write a file that follows from the log.
fn calls() -> Vec<(&'static str, Call)> {
    vec![
        ("archive", |home, id| {
            wait(home, async |core| update::archive(core, of(&json!({ "sessionId": id }))).await)
        }),
        ("unarchive", |home, id| {
            wait(home, async |core| update::unarchive(core, of(&json!({ "sessionId": id }))).await)
        }),
        ("close", |home, id| {
            wait(home, async |core| update::close(core, of(&json!({ "sessionId": id }))).await)
        }),
        ("save", |home, id| documents::save(&home.core, of(&json!({ "sessionId": id }))).map(drop)),
        ("pin", |home, id| {
            wait(home, async |core| {
                pins::pin(core, of(&json!({ "sessionId": id, "seq": 1 }))).await
            })
        }),
        ("unpin", |home, id| {
            wait(home, async |core| {
                pins::unpin(core, of(&json!({ "sessionId": id, "seq": 1 }))).await
            })
        }),
        ("addEntry", |home, id| {
            let params = json!({ "sessionId": id, "key": "style", "content": "brief" });
            wait(home, async |core| entries::add(core, of(&params)).await)
        }),
        ("loop.reset", |home, id| {
            wait(home, async |core| loops::reset(core, of(&json!({ "sessionId": id }))).await)
        }),
        ("goal.change", |home, id| {
            let steps = json!([{ "action": "applyMarkers", "text": "no marker" }]);
            let params = json!({ "sessionId": id, "steps": steps });
            wait(home, async |core| goals::change(core, of(&params)).await)
        }),
    ]
}

/// Repeats a call in a home that is opened again, and checks that the log and its name are synced before the reply.
fn check_repeated(
    root: &Path,
    name: &str,
    log: PathBuf,
    call: impl Fn(&OpenHome) -> Result<(), AppError>,
) {
    let home = OpenHome::start(root, DiskTrace::new(root)).expect("starts");
    call(&home).expect(name);
    let steps = home.trace.steps();
    let dir = log.parent().expect("is in a directory").to_owned();
    assert!(steps.contains(&DiskStep::Sync(log)), "{name}: {steps:?}");
    assert!(steps.contains(&DiskStep::SyncDir(dir)), "{name}: {steps:?}");
}

fn log_of(id: SessionId) -> PathBuf {
    format!("home/sessions/{id}.jsonl").into()
}

#[test]
fn call_that_finds_its_change_made_makes_it_durable() {
    for (name, call) in calls() {
        let scratch = scratch();
        let home = OpenHome::start(scratch.path(), DiskTrace::new(scratch.path())).expect("starts");
        let id = create(&home);
        call(&home, id).expect(name);
        drop(home);
        check_repeated(scratch.path(), name, log_of(id), |home| call(home, id));
    }
}

#[test]
fn import_that_finds_its_session_makes_it_durable() {
    let scratch = scratch();
    let home = OpenHome::start(scratch.path(), DiskTrace::new(scratch.path())).expect("starts");
    let (id, file) =
        exported("marker", &["one".to_owned(), "two".to_owned()], false).expect("exports");
    let import = |home: &OpenHome| {
        import::import(&home.core, of(&json!({ "data": file, "last": true }))).map(drop)
    };
    import(&home).expect("imports");
    drop(home);
    check_repeated(scratch.path(), "import", log_of(id), import);
}

#[test]
fn fork_that_finds_its_session_makes_it_durable() {
    let scratch = scratch();
    let home = OpenHome::start(scratch.path(), DiskTrace::new(scratch.path())).expect("starts");
    let source = create(&home);
    let fork = |home: &OpenHome| {
        fork::fork(&home.core, of(&json!({ "sessionId": source, "key": "k" })))
            .map(|forked| forked.session.session_id)
    };
    let id = fork(&home).expect("forks");
    drop(home);
    check_repeated(scratch.path(), "fork", log_of(id), |home| {
        assert_eq!(fork(home)?, id);
        Ok(())
    });
}

#[test]
fn snapshot_that_finds_its_file_makes_it_durable() {
    let scratch = scratch();
    let home = OpenHome::start(scratch.path(), DiskTrace::new(scratch.path())).expect("starts");
    let id = create(&home);
    let take = |home: &OpenHome| {
        let params = of(&json!({ "sessionId": id, "summary": "one", "key": "k" }));
        wait(home, async |core| snapshots::create::create(core, params).await)
    };
    take(&home).expect("takes");
    drop(home);
    check_repeated(scratch.path(), "snapshot.create", log_of(id), take);
    let home = OpenHome::start(scratch.path(), DiskTrace::new(scratch.path())).expect("starts");
    take(&home).expect("finds");
    let steps = home.trace.steps();
    let files = format!("home/context-snapshots/{id}/snapshots");
    for dir in Path::new(&files).ancestors().take(4) {
        assert!(steps.contains(&DiskStep::SyncDir(dir.to_owned())), "{dir:?}: {steps:?}");
    }
}
