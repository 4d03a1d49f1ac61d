//! Every read of a log and of a blob fails once on every way to a session: nothing is hidden, marked or forgotten.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{
    ContextEntryChange, ExportFormat, GoalPriority, GoalSource, GoalStep, RecordBody, SessionStatus,
};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::methods::session::{
    SessionExportParams, SessionGetParams, SessionIdParams, SessionResumeParams,
    SessionSearchParams,
};
use ollm_protocol::{GoalId, SessionId, Timestamp};
use serde_json::json;

use super::{documents, export, list, read};
use crate::app::context::build;
use crate::app::core::Core;
use crate::app::error::AppError;
use crate::app::testing::{TestSession, scratch_core};
use crate::catalog::Catalog;
use crate::fsutil;
use crate::session::index::{HintSource, OpenHint};
use crate::session::{ReadFaults, SessionError};

const EIO: i32 = 5;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;
/// A word that only the text in the blob has, behind the part that becomes the title.
const WORD: &str = "quokka";

struct Hints(Arc<Catalog>);

impl HintSource for Hints {
    fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.0.hint(id)
    }
}

/// A way to read a session. The text of the answer must contain [`WORD`].
type ReadWay = fn(&Arc<Core>, SessionId) -> Result<String, AppError>;

const WAYS: [(&str, ReadWay); 5] = [
    ("get", |core, id| {
        let page = read::get(core, params::<SessionGetParams>(id))?;
        Ok(serde_json::to_string(&page).expect("is JSON"))
    }),
    ("resume", |core, id| {
        let page = read::resume(core, params::<SessionResumeParams>(id))?;
        Ok(serde_json::to_string(&page).expect("is JSON"))
    }),
    ("document", |core, id| {
        let saved = documents::save(core, params::<SessionIdParams>(id))?;
        let document = fsutil::read_regular(saved.path.as_ref()).expect("reads");
        Ok(String::from_utf8(document).expect("is text"))
    }),
    ("export", |core, id| {
        let given = json!({ "sessionId": id, "format": ExportFormat::Markdown });
        let given = serde_json::from_value::<SessionExportParams>(given).expect("params");
        Ok(export::export(core, given)?.data)
    }),
    ("build", |core, id| {
        let given = json!({ "sessionId": id, "contextSize": 65536, "model": "m" });
        let given: ContextBuildParams = serde_json::from_value(given).expect("params");
        let built = build::build(Arc::clone(core), given);
        let built = tokio::runtime::Handle::current().block_on(built)?;
        assert!(serde_json::to_string(&built).expect("is JSON").contains("the goal"));
        Ok(serde_json::to_string(&built.messages).expect("is JSON"))
    }),
];

fn params<T: serde::de::DeserializeOwned>(id: SessionId) -> T {
    serde_json::from_value(json!({ "sessionId": id })).expect("params")
}

/// Records a session with a blob, a goal and an entry.
async fn recorded() -> TestSession {
    let session = TestSession::new(&[]);
    session.core.sessions.set_hints(Arc::new(Hints(Arc::clone(&session.core.catalog))));
    session.record("user", &format!("wombat {} {WORD}", "large ".repeat(12_000))).await;
    let step = GoalStep::Create {
        id: GoalId::from_uuid(session.core.clock.uuid()),
        description: "the goal".to_owned(),
        priority: GoalPriority::Medium,
        source: None,
    };
    let goal = serde_json::from_value(json!({ "source": GoalSource::Client, "steps": [step] }));
    session.append(RecordBody::Goal(goal.expect("a goal"))).await;
    let entry = ContextEntryChange {
        key: "style".to_owned(),
        content: Some("short".to_owned()),
        priority: None,
        source: None,
    };
    session.append(RecordBody::ContextEntry(entry)).await;
    session.record("assistant", "after").await;
    session
}

fn catch_up(core: &Core) {
    assert!(core.catalog.wait_caught_up(Instant::now() + Duration::from_secs(20)), "catches up");
}

fn search(core: &Arc<Core>) -> usize {
    let given = serde_json::from_value::<SessionSearchParams>(json!({ "query": WORD }));
    list::search(core, given.expect("params")).map_or(0, |found| found.data.len())
}

/// Waits until a search finds the text of the blob, without any other call.
fn assert_found(core: &Arc<Core>, case: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while search(core) != 1 {
        assert!(Instant::now() < deadline, "{case}: the text is found again");
        catch_up(core);
    }
}

/// Checks that a session is served whole, and that nothing says that it was not.
fn assert_whole(core: &Arc<Core>, id: SessionId, case: &str) {
    for (name, way) in WAYS {
        let text = way(core, id).unwrap_or_else(|error| panic!("{case}: {name}: {error}"));
        assert!(text.contains(WORD), "{case}: {name} has the record");
    }
    let session = core.sessions.summary(id).expect("opens");
    assert_eq!((session.status, session.damaged_records), (SessionStatus::Active, 0), "{case}");
    assert!(session.title.starts_with("wombat"), "{case}: {}", session.title);
    assert_found(core, case);
}

fn close_all(core: &Core) {
    core.sessions.close_unused(Timestamp::from_unix_ms(i64::MAX));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_read_is_storage_error_and_leaves_no_trace() {
    let session = recorded().await;
    let (core, id) = (Arc::clone(&session.core), session.id);
    let faults = ReadFaults::watch(session.dir.path());
    tokio::task::spawn_blocking(move || {
        catch_up(&core);
        let mut n_failed = 0;
        for (name, way) in WAYS {
            for errno in [EIO, EACCES, EMFILE] {
                for at in 0.. {
                    close_all(&core);
                    core.cache.forget(id);
                    faults.fail(at..at + 1, errno);
                    let result = way(&core, id);
                    let n_reads = faults.lift();
                    let case = format!("{name}, error {errno} of read {at}");
                    match result {
                        Ok(text) => assert!(text.contains(WORD), "{case}: the answer is whole"),
                        Err(AppError::Session(SessionError::Storage { .. })) => n_failed += 1,
                        Err(AppError::Context(error)) => {
                            n_failed += 1;
                            assert!(format!("{error:?}").contains("Storage"), "{case}: {error:?}");
                        }
                        Err(error) => panic!("{case}: {error:?}"),
                    }
                    let again = way(&core, id).expect("reads again");
                    assert!(again.contains(WORD), "{case}: it is served again");
                    if n_reads <= at {
                        break;
                    }
                }
            }
        }
        assert!(n_failed > 30, "{n_failed} reads failed");
        assert_whole(&core, id, "at the end");
    })
    .await
    .expect("succeeds");
    drop(session);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_read_while_indexing_is_repeated() {
    let session = recorded().await;
    let (core, id) = (Arc::clone(&session.core), session.id);
    core.catalog.shutdown();
    close_all(&core);
    let dir = session.dir.path().to_owned();
    let faults = ReadFaults::watch(&dir);
    tokio::task::spawn_blocking(move || {
        for at in 0.. {
            remove_catalog(&dir);
            faults.fail(at..at + 2, EIO);
            let core = scratch_core(&dir);
            core.sessions.set_hints(Arc::new(Hints(Arc::clone(&core.catalog))));
            // The failure is over before the last attempt; nobody asks for another one.
            assert_found(&core, &format!("read {at}"));
            let n_reads = faults.lift();
            assert_whole(&core, id, &format!("read {at}"));
            core.catalog.shutdown();
            if n_reads <= at {
                return;
            }
        }
    })
    .await
    .expect("succeeds");
    drop(session);
}

#[tokio::test(flavor = "multi_thread")]
async fn blob_that_returns_is_served_and_found_again() {
    let session = recorded().await;
    let (core, id) = (Arc::clone(&session.core), session.id);
    let dir = session.dir.path().to_owned();
    tokio::task::spawn_blocking(move || {
        let blobs = dir.join(format!("{id}.blobs"));
        let aside = dir.join("aside");
        let mut core = core;
        for case in ["indexed", "rebuilt", "rebuilt and closed"] {
            rename(&blobs, &aside);
            if case != "indexed" {
                core.catalog.shutdown();
                remove_catalog(&dir);
                core = scratch_core(&dir);
                core.sessions.set_hints(Arc::new(Hints(Arc::clone(&core.catalog))));
            }
            catch_up(&core);
            for (name, way) in WAYS {
                let text = way(&core, id).expect("serves the other records");
                assert!(!text.contains(WORD) && text.contains("after"), "{case}: {name}");
            }
            catch_up(&core);
            if case == "rebuilt and closed" {
                close_all(&core);
            }
            rename(&aside, &blobs);
            assert_whole(&core, id, case);
            catch_up(&core);
            assert_eq!(core.catalog.status().behind, 0, "{case}");
        }
    })
    .await
    .expect("succeeds");
    drop(session);
}

fn remove_catalog(dir: &Path) {
    for suffix in ["", "-wal", "-shm", "-seal"] {
        let _absent = std::fs::remove_file(dir.join(format!("catalog.sqlite3{suffix}")));
    }
}

#[expect(clippy::disallowed_methods, reason = "the test moves files as a user does")]
fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).expect("renames");
}
