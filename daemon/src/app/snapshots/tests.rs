//! Snapshots in scratch homes: their files, damaged and foreign ones, the cleanup, and new sessions made of them.
#![expect(
    clippy::disallowed_methods,
    reason = "these tests damage files, and call at once as connections do"
)]

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ollm_protocol::content::{
    BuiltContext, ContextState, Goal, GoalSource, RecordBody, SnapshotDocument, SnapshotInfo,
    SnapshotMark,
};
use ollm_protocol::methods::snapshot::{SnapshotListResult, SnapshotRestoreResult};
use ollm_protocol::{EventKind, SessionId, SnapshotId};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{automatic, create, manage};
use crate::app::branches::{restore, undo};
use crate::app::context::state::context_state;
use crate::app::context::{build, entries, goals, pins};
use crate::app::error::{AppError, Result};
use crate::app::sessions::{delete, update};
use crate::app::testing::{TestSession, scratch_core};
use crate::events::EventFilter;
use crate::fsutil::trace::{DiskFault, DiskStep, DiskTrace, FaultKind};
use crate::snapshot::SnapshotError;

fn of<T: DeserializeOwned>(params: &Value) -> T {
    serde_json::from_value(params.clone()).expect("params")
}

impl TestSession {
    fn with_id<T: DeserializeOwned>(&self, mut params: Value) -> T {
        params["sessionId"] = json!(self.id);
        of(&params)
    }

    async fn snapshot(&self, summary: &str) -> Result<SnapshotInfo> {
        let params = self.with_id(json!({ "summary": summary }));
        Ok(create::create(Arc::clone(&self.core), params).await?.snapshot)
    }

    async fn restore(&self, id: SnapshotId, more: Value) -> Result<SnapshotRestoreResult> {
        let mut params = more;
        params["snapshotId"] = json!(id);
        restore::restore(Arc::clone(&self.core), of(&params), CancellationToken::new()).await
    }

    fn snapshots(&self) -> SnapshotListResult {
        manage::list(&self.core, self.with_id(json!({}))).expect("lists")
    }

    fn reasons(&self) -> Vec<String> {
        self.snapshots().data.into_iter().map(|info| info.reason).collect()
    }

    async fn set_mode(&self, mode: &str) {
        let params = self.with_id(json!({ "mode": mode }));
        update::set_mode(Arc::clone(&self.core), params).await.expect("sets");
        self.write_due().await;
    }

    async fn write_due(&self) {
        let core = Arc::clone(&self.core);
        tokio::task::spawn_blocking(move || automatic::write_due(&core)).await.expect("writes");
    }

    async fn built(&self) -> BuiltContext {
        let core = Arc::clone(&self.core);
        build::build(core, self.with_id(json!({}))).await.expect("builds")
    }

    fn context_state(&self) -> ContextState {
        let leaf = self.core.sessions.with(self.id, |live| live.state().leaf()).expect("is open");
        context_state(&self.core, self.id, leaf).expect("reads")
    }

    /// Gives the session a goal, an entry, a pin and a mode.
    async fn furnish(&self) {
        let core = || Arc::clone(&self.core);
        self.record("user", "How do I port the parser?").await;
        self.record("assistant", "Line by line.").await;
        let steps = json!([
            { "action": "create", "description": "Port it" },
            { "action": "addCheckpoint", "description": "lexer" },
            { "action": "addCheckpoint", "description": "parser" },
        ]);
        goals::change(core(), self.with_id(json!({ "steps": steps }))).await.expect("creates");
        let decide =
            json!({ "action": "addDecision", "description": "no unsafe code", "locked": true });
        let steps = json!({ "steps": [decide] });
        goals::change(core(), self.with_id(steps)).await.expect("adds");
        let entry = json!({ "scope": "session", "key": "style", "content": "be brief" });
        entries::add(core(), self.with_id(entry)).await.expect("adds");
        pins::pin(core(), self.with_id(json!({ "seq": 1 }))).await.expect("pins");
        self.set_mode("planning").await;
        self.record_message(json!({ "role": "assistant", "parts": [
            { "type": "thinking", "text": "a lexer first" },
            { "type": "text", "text": "Begin with the lexer." },
        ] }))
        .await;
    }

    fn files(&self) -> PathBuf {
        self.dir.path().join(format!("context-snapshots/{}/snapshots", self.id))
    }

    fn map(&self) -> Value {
        let path = self.dir.path().join("context-snapshots/snapshot-map.json");
        fs::read(path).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).expect("JSON"))
    }

    fn lose_log(&mut self) {
        fs::remove_file(self.dir.path().join(format!("{}.jsonl", self.id))).expect("removes");
        self.core = scratch_core(self.dir.path());
    }
}

fn snapshot_error(result: Result<impl Sized>) -> SnapshotError {
    match result {
        Err(AppError::Snapshot(error)) => error,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it succeeds"),
    }
}

#[tokio::test]
async fn file_has_the_documented_structure() {
    let session = TestSession::new(&[]);
    session.furnish().await;
    let taken = session.snapshot("before the port").await.expect("takes");
    let path = session.files().join(format!("snapshot-{}.json", taken.snapshot_id));
    let file: Value = serde_json::from_slice(&fs::read(path).expect("reads")).expect("JSON");
    assert_eq!(file["version"], 1);
    assert_eq!(file["id"], json!(taken.snapshot_id));
    assert_eq!(file["sessionId"], json!(session.id));
    assert_eq!(file["summary"], "before the port");
    assert_eq!(file["userMessages"][0]["parts"][0]["text"], "How do I port the parser?");
    assert_eq!(file["archivedUserMessages"], json!([]));
    assert_eq!(file["messages"].as_array().expect("a list").len(), 2);
    assert_eq!(file["messages"][1]["parts"].as_array().expect("a list").len(), 1);
    assert_eq!(file["reasoningStorage"]["traces"][0]["text"], "a lexer first");
    assert_eq!(file["goalStack"]["goals"][0]["checkpoints"][1]["description"], "parser");
    assert_eq!(file["contextEntries"][0]["key"], "style");
    assert_eq!((&file["pins"], &file["mode"]), (&json!([1]), &json!("planning")));
    let metadata = &file["metadata"];
    assert_eq!(metadata["activeGoalId"], file["goalStack"]["goals"][0]["id"]);
    assert_eq!(metadata["totalUserMessages"], 1);
    assert_eq!(
        (&metadata["isReasoningModel"], &metadata["compressionRatio"]),
        (&json!(true), &json!(1.0))
    );
    assert_eq!(taken.goal.as_deref(), Some("Port it"));
    assert_eq!(session.map()[taken.snapshot_id.to_string()], json!(session.id));
    let index = fs::read(session.files().join("snapshots-index.json")).expect("reads");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    assert_eq!(index["snapshots"][0]["snapshotId"], json!(taken.snapshot_id));
}

#[tokio::test]
async fn restore_gives_back_everything_and_is_undoable() {
    let session = TestSession::new(&[]);
    session.furnish().await;
    let (context, state) = (session.built().await, session.context_state());
    let taken = session.snapshot("").await.expect("takes");
    assert_eq!(taken.summary, "How do I port the parser?");
    let text = session.bodies().len();
    session.record("user", "Something else").await;
    session.set_mode("developer").await;
    let entry = json!({ "scope": "session", "key": "style", "content": "be verbose" });
    entries::add(Arc::clone(&session.core), session.with_id(entry)).await.expect("adds");
    let changed = session.context_state();

    let preview = session.restore(taken.snapshot_id, json!({ "dryRun": true })).await;
    let preview = preview.expect("previews");
    assert_eq!((preview.before.as_ref(), preview.after.as_ref()), (Some(&changed), Some(&state)));
    assert_eq!(session.context_state(), changed, "a preview changes nothing");
    let restored = session.restore(taken.snapshot_id, json!({ "key": "k" })).await.expect("works");
    assert_eq!(restored.removed, preview.removed);
    assert_eq!(restored.removed.messages, 1);
    assert_eq!(
        (session.context_state(), session.built().await.messages),
        (state.clone(), context.messages)
    );
    let again = session.restore(taken.snapshot_id, json!({ "key": "k" })).await.expect("repeats");
    assert_eq!((again.duplicate, again.seq), (true, restored.seq));
    let same = session.restore(taken.snapshot_id, json!({})).await.expect("is there");
    assert_eq!(same.seq, None, "nothing is to be done");

    undo::undo(Arc::clone(&session.core), session.with_id(json!({})), CancellationToken::new())
        .await
        .expect("undoes");
    assert_eq!(session.context_state(), changed);
    let saved = restored.saved_as.expect("a snapshot was taken before");
    session.restore(taken.snapshot_id, json!({})).await.expect("works");
    session.restore(saved, json!({})).await.expect("works");
    assert_eq!(session.context_state(), changed);
    assert!(session.bodies().len() > text, "nothing is removed");
}

#[tokio::test]
async fn snapshot_becomes_a_new_session_when_the_log_is_gone() {
    let mut session = TestSession::new(&[]);
    session.furnish().await;
    let (context, state) = (session.built().await, session.context_state());
    let taken = session.snapshot("").await.expect("takes");
    session.lose_log();
    let listed = session.snapshots().data;
    assert_eq!(listed.iter().filter(|info| info.reason == "manual").count(), 1);

    let preview = session.restore(taken.snapshot_id, json!({ "dryRun": true })).await;
    assert!(preview.expect("previews").new_session);
    let restored = session.restore(taken.snapshot_id, json!({ "key": "k" })).await.expect("works");
    let made = restored.session.as_ref().expect("a session");
    assert!(made.title.ends_with("(restored)"), "{}", made.title);
    assert_eq!(made.imported_from, Some(format!("snapshot:{}", taken.snapshot_id)));
    session.id = made.session_id;
    let same = |state: ContextState| ContextState { leaf: None, ..state };
    assert_eq!(same(session.context_state()), same(state));
    assert_eq!(session.built().await.messages, context.messages);
    let again = session.restore(taken.snapshot_id, json!({ "key": "k" })).await.expect("repeats");
    assert_eq!((again.session_id, again.duplicate), (made.session_id, true));
}

#[tokio::test]
async fn goals_of_markers_stay_those_of_a_model_in_a_new_session() {
    let mut session = TestSession::new(&[]);
    session.record("user", "Port it.").await;
    let text = "[GOAL] Port the parser\n[DECISION] Spans are bytes";
    session.record("assistant", text).await;
    let goals = |session: &TestSession| {
        let params = session.with_id(json!({}));
        let listed = goals::list(&session.core, params).expect("lists").data;
        let sources = |goal: &Goal| (goal.source, goal.decisions.first().map(|one| one.source));
        listed.iter().map(sources).collect::<Vec<_>>()
    };
    let marker = GoalSource::Marker;
    assert_eq!(goals(&session), [(marker, Some(marker))]);
    let taken = session.snapshot("").await.expect("takes");
    session.lose_log();
    let made = session.restore(taken.snapshot_id, json!({})).await.expect("works");
    session.id = made.session_id;
    assert_eq!(goals(&session), [(marker, Some(marker))]);
    // So a marker can still replace the goal.
    session.record("assistant", "[GOAL] Port the lexer").await;
    assert_eq!(goals(&session).len(), 2);
}

#[tokio::test]
async fn old_files_with_messages_only_are_read_and_never_changed() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    fs::create_dir_all(session.files()).expect("creates");
    let path = session.files().join("snapshot-abc123.json");
    let old = json!({
        "id": "snapshot-abc123", "sessionId": session.id, "timestamp": 1_769_508_000_000_u64,
        "tokenCount": 20, "summary": "old", "metadata": { "model": "m", "contextSize": 8192, "x": {} },
        "messages": [
            { "id": "1", "role": "user", "content": "What is this?", "timestamp": "2026-01-27T10:00:00Z" },
            { "id": "2", "role": "assistant", "content": "A test.", "timestamp": "2026-01-27T10:00:01Z" },
        ],
    });
    fs::write(&path, old.to_string()).expect("writes");
    let listed = session.snapshots();
    assert!(listed.skipped.is_empty(), "{:?}", listed.skipped);
    let [info] = &listed.data[..] else { panic!("{:?}", listed.data) };
    assert_eq!(
        (info.reason.as_str(), info.message_count, info.user_message_count),
        ("import", 2, 1)
    );
    let restored = session.restore(info.snapshot_id, json!({})).await.expect("restores");
    let made = restored.session.expect("the log has no record of it");
    assert_eq!((made.message_count, made.model.as_deref()), (2, Some("m")));
    let params = json!({ "snapshotId": info.snapshot_id, "pinned": true });
    assert!(matches!(manage::update(&session.core, of(&params)), Err(AppError::Invalid { .. })));
    assert_eq!(fs::read_to_string(path).expect("reads"), old.to_string());
}

#[tokio::test]
async fn damaged_newer_and_foreign_files_are_skipped_and_reported() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    let taken = session.snapshot("good").await.expect("takes");
    let good = session.files().join(format!("snapshot-{}.json", taken.snapshot_id));
    let mut file: Value = serde_json::from_slice(&fs::read(&good).expect("reads")).expect("JSON");
    let other = |last: u8| SnapshotId::from_uuid(uuid::Uuid::from_u128(u128::from(last)));
    let write = |id: SnapshotId, content: &str| {
        fs::write(session.files().join(format!("snapshot-{id}.json")), content).expect("writes");
    };
    let text = file.to_string();
    write(other(1), &text[..text.len() / 2]);
    write(other(2), &text);
    file["id"] = json!(other(3));
    file["sessionId"] = json!(SessionId::from_uuid(uuid::Uuid::nil()));
    write(other(3), &file.to_string());
    file["version"] = json!(SnapshotDocument::VERSION + 1);
    write(other(4), &file.to_string());
    write(other(5), "");
    let listed = session.snapshots();
    assert_eq!(listed.data.len(), 1, "{:?}", listed.data);
    let reasons: Vec<&str> = listed.skipped.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons.len(), 5, "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("version 2")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("belongs to session")), "{reasons:?}");
    for (last, is_newer) in [(1, false), (2, false), (3, false), (4, true), (5, false)] {
        let error = snapshot_error(session.restore(other(last), json!({})).await);
        assert_eq!(matches!(error, SnapshotError::Newer { .. }), is_newer, "{error:?}");
        let params = of(&json!({ "snapshotId": other(last) }));
        assert!(matches!(
            snapshot_error(manage::get(&session.core, params)),
            SnapshotError::Damaged { .. } | SnapshotError::Newer { .. }
        ));
    }
    // A damaged file costs nothing as long as the record is there.
    fs::write(&good, "{}").expect("writes");
    session.record("user", "two").await;
    let restored = session.restore(taken.snapshot_id, json!({})).await.expect("restores");
    assert_eq!(restored.removed.messages, 1);
}

#[tokio::test]
async fn unknown_snapshot_and_that_of_another_session_are_refused() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    let unknown = SnapshotId::from_uuid(uuid::Uuid::from_u128(7));
    for more in [json!({}), json!({ "sessionId": session.id })] {
        let error = snapshot_error(session.restore(unknown, more).await);
        assert!(matches!(error, SnapshotError::NotFound { .. }), "{error:?}");
    }
    let taken = session.snapshot("").await.expect("takes");
    let elsewhere = json!({ "sessionId": SessionId::from_uuid(uuid::Uuid::from_u128(9)) });
    let error = snapshot_error(session.restore(taken.snapshot_id, elsewhere).await);
    assert!(matches!(error, SnapshotError::OtherSession { .. }), "{error:?}");
    session.configure(&[("snapshots.enabled", "false")]);
    assert!(matches!(session.snapshot("").await, Err(AppError::SnapshotsDisabled)));
    let empty = TestSession::new(&[]);
    assert!(matches!(empty.snapshot("").await, Err(AppError::Invalid { .. })));
}

#[tokio::test]
async fn index_and_map_are_made_again_when_they_are_damaged() {
    let mut session = TestSession::new(&[]);
    session.record("user", "one").await;
    let first = session.snapshot("first").await.expect("takes");
    let second = session.snapshot("second").await.expect("takes");
    let index = session.files().join("snapshots-index.json");
    let map = session.dir.path().join("context-snapshots/snapshot-map.json");
    for damage in [Some("{ half"), Some(""), Some("[]"), None] {
        for path in [&index, &map] {
            match damage {
                Some(text) => fs::write(path, text).expect("writes"),
                None => fs::remove_file(path).expect("removes"),
            }
        }
        session.core = scratch_core(session.dir.path());
        let ids: Vec<_> = session.snapshots().data.iter().map(|info| info.snapshot_id).collect();
        assert_eq!(ids, [second.snapshot_id, first.snapshot_id], "{damage:?}");
        let params = of(&json!({ "snapshotId": first.snapshot_id, "pinned": true }));
        assert!(manage::update(&session.core, params).expect("updates").snapshot.pinned);
        delete::recover(&session.core);
        assert_eq!(session.map().as_object().expect("an object").len(), 2);
        let stored: Value =
            serde_json::from_slice(&fs::read(&index).expect("reads")).expect("JSON");
        assert_eq!(stored["snapshots"].as_array().expect("a list").len(), 2);
    }
}

#[tokio::test]
async fn newest_automatic_snapshots_stay_with_pinned_and_requested_ones() {
    let session = TestSession::new(&[("snapshots.maxCount", "2")]);
    session.record("user", "one").await;
    session.snapshot("mine").await.expect("takes");
    session.set_mode("a").await;
    let pinned = session.snapshots().data[0].snapshot_id;
    let pin = |pinned_now| {
        let params = json!({ "snapshotId": pinned, "pinned": pinned_now });
        manage::update(&session.core, of(&params)).expect("updates");
    };
    pin(true);
    for mode in ["b", "c", "d", "e"] {
        session.set_mode(mode).await;
    }
    assert_eq!(session.reasons(), ["modeChange", "modeChange", "modeChange", "manual"]);
    assert_eq!(session.snapshots().data[2].snapshot_id, pinned);
    pin(false);
    assert_eq!(session.reasons(), ["modeChange", "modeChange", "manual"]);
    // The record is still there.
    session.restore(pinned, json!({ "sessionId": session.id })).await.expect("restores");
    session.configure(&[("snapshots.enabled", "false")]);
    let n_files = session.snapshots().data.len();
    session.set_mode("f").await;
    assert_eq!(session.snapshots().data.len(), n_files);
    let is_mark = |body: &RecordBody| matches!(body, RecordBody::Snapshot(mark) if mark.reason == "modeChange");
    assert_eq!(session.bodies().iter().filter(|body| is_mark(body)).count(), 6);
}

#[tokio::test]
async fn own_snapshot_of_a_restore_never_evicts_its_target() {
    for max_count in ["1", "2"] {
        let session = TestSession::new(&[("snapshots.maxCount", max_count)]);
        session.record("user", "one").await;
        session.set_mode("a").await;
        let target = session.snapshots().data[0].snapshot_id;
        if max_count == "2" {
            session.set_mode("b").await;
        }
        session.record("user", "two").await;
        session.restore(target, json!({})).await.expect("restores");
        let ids: Vec<_> = session.snapshots().data.iter().map(|info| info.snapshot_id).collect();
        assert!(ids.contains(&target) && ids.len().to_string() == max_count, "{ids:?}");
    }
}

#[tokio::test]
async fn full_context_gets_one_snapshot() {
    let session = TestSession::new(&[("compression.enabled", "false"), ("context.size", "2048")]);
    session.record("user", "one").await;
    session.built().await;
    for number in 0..3 {
        session.record("user", &format!("{number} {}", "words ".repeat(500))).await;
        session.write_due().await;
    }
    assert_eq!(session.reasons(), [SnapshotMark::THRESHOLD]);
    let quiet = TestSession::new(&[("snapshots.autoCreate", "false"), ("context.size", "2048")]);
    quiet.record("user", "one").await;
    quiet.built().await;
    quiet.record("user", &"words ".repeat(1500)).await;
    quiet.write_due().await;
    assert!(!quiet.reasons().contains(&SnapshotMark::THRESHOLD.to_owned()));
}

#[tokio::test]
async fn deletion_of_a_session_removes_its_snapshots_and_their_map_entries() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    let first = session.snapshot("").await.expect("takes");
    let second = session.snapshot("").await.expect("takes");
    let params = of(&json!({ "snapshotId": first.snapshot_id }));
    manage::delete(&session.core, params).expect("deletes");
    assert_eq!(session.snapshots().data.len(), 1);
    let again = of(&json!({ "snapshotId": first.snapshot_id }));
    let error = snapshot_error(manage::delete(&session.core, again));
    assert!(matches!(error, SnapshotError::NotFound { .. }), "{error:?}");
    assert!(session.map().get(second.snapshot_id.to_string()).is_some());
    delete::delete(&session.core, session.with_id(json!({}))).expect("deletes");
    assert!(!session.files().exists());
    assert_eq!(session.map(), json!({}));
}

#[tokio::test]
async fn full_disk_leaves_nothing_half_written() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    session.snapshot("first").await.expect("takes");
    let n_changes = {
        let trace = DiskTrace::new(session.dir.path());
        session.snapshot("counted").await.expect("takes");
        trace.counts().0
    };
    assert!(n_changes > 6, "{n_changes}");
    for at in 0..n_changes {
        let before = session.snapshots().data.len();
        let trace = DiskTrace::new(session.dir.path());
        let kind = FaultKind::Short(Errno::NOSPC.raw_os_error());
        trace.set_fault(Some(DiskFault { at, count: 1, kind }));
        let mut events = session.core.events.subscribe(EventFilter::default(), None);
        let taken = session.snapshot("refused").await;
        trace.set_fault(None);
        drop(trace);
        let kinds: Vec<_> = std::iter::from_fn(|| events.take()).map(|event| event.kind).collect();
        let has_error = kinds.contains(&EventKind::SnapshotError);
        assert_eq!(has_error, taken.is_err(), "{at}: {kinds:?}");
        let listed = session.snapshots();
        assert!(listed.skipped.is_empty(), "{at}: {:?}", listed.skipped);
        assert_eq!(listed.data.len(), before + usize::from(taken.is_ok()), "{at}");
        let names: Vec<_> = fs::read_dir(session.files())
            .expect("lists")
            .collect::<io::Result<_>>()
            .expect("lists");
        let is_temporary =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".tmp");
        assert!(!names.iter().any(is_temporary), "{at}");
    }
}

#[tokio::test]
async fn retry_of_a_deletion_does_not_reply_before_the_removal_is_durable() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    let taken = session.snapshot("first").await.expect("takes");
    let params = json!({ "snapshotId": taken.snapshot_id });
    let delete =
        || manage::delete(&session.core, of(&params)).expect_err("never finds it durably gone");
    let is_storage = |error| matches!(error, AppError::Snapshot(SnapshotError::Storage(_)));
    let trace = DiskTrace::new(session.dir.path());
    let kind = FaultKind::Error(Errno::NOSPC.raw_os_error());
    // The file is removed, and the sync of its directory fails twice.
    for at in [1, 2] {
        trace.set_fault(Some(DiskFault { at, count: 1, kind }));
        assert!(is_storage(delete()), "{at}: {:?}", trace.steps());
    }
    trace.set_fault(None);
    let error = delete();
    assert!(matches!(error, AppError::Snapshot(SnapshotError::NotFound { .. })), "{error:?}");
    let is_sync =
        |step: &DiskStep| matches!(step, DiskStep::SyncDir(dir) if dir.ends_with("snapshots"));
    assert_eq!(trace.steps().iter().filter(|step| is_sync(step)).count(), 1);
}

#[tokio::test]
async fn deleted_session_is_in_no_file_of_snapshots_after_any_failed_write() {
    let snapshot = async |fault: Option<DiskFault>| {
        let session = TestSession::new(&[]);
        session.record("user", "one").await;
        let trace = DiskTrace::new(session.dir.path());
        trace.set_fault(fault);
        drop(session.snapshot("first").await);
        let n_changes = trace.counts().0;
        trace.set_fault(None);
        drop(trace);
        (session, n_changes)
    };
    let kind = FaultKind::Error(Errno::NOSPC.raw_os_error());
    for at in 0..snapshot(None).await.1 {
        // The second failure is that of the removal of what the first one left.
        let (session, _) = snapshot(Some(DiskFault { at, count: 2, kind })).await;
        delete::delete(&session.core, session.with_id(json!({}))).expect("deletes");
        let Ok(files) = fs::read_dir(session.dir.path().join("context-snapshots")) else {
            continue;
        };
        for file in files {
            let path = file.expect("lists").path();
            let content = fs::read_to_string(&path).expect("a file");
            assert!(!content.contains(&session.id.to_string()), "{at}: {}", path.display());
        }
    }
}

#[tokio::test]
async fn hundred_concurrent_snapshots_are_all_there() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    let calls = (0..100).map(|number| {
        let params = session.with_id(json!({ "summary": format!("number {number}") }));
        tokio::spawn(create::create(Arc::clone(&session.core), params))
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("runs").expect("takes");
    }
    let params = session.with_id(json!({ "limit": 1000 }));
    let listed = manage::list(&session.core, params).expect("lists");
    assert_eq!((listed.data.len(), listed.skipped.len()), (100, 0));
    assert_eq!(session.map().as_object().expect("an object").len(), 100);
    let mut cursor = None;
    let mut seen = Vec::new();
    loop {
        let params = session.with_id(json!({ "limit": 33, "cursor": cursor }));
        let page = manage::list(&session.core, params).expect("lists");
        seen.extend(page.data);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, listed.data);
}

#[tokio::test]
async fn changed_snapshot_of_the_same_size_is_listed_as_it_is() {
    let session = TestSession::new(&[]);
    session.record("user", "one").await;
    let taken = session.snapshot("first").await.expect("takes");
    for (pinned, summary) in [(false, "other"), (true, "third")] {
        let params =
            json!({ "snapshotId": taken.snapshot_id, "summary": summary, "pinned": pinned });
        let updated = manage::update(&session.core, of(&params)).expect("updates").snapshot;
        let mut listed = session.snapshots().data;
        let short = listed[0].short_id.take().expect("a short form");
        assert!(updated.snapshot_id.to_string().ends_with(&short), "{short}");
        assert_eq!(listed, [updated]);
    }
    // A daemon that ends between the file and the index leaves no index.
    let params = json!({ "snapshotId": taken.snapshot_id, "summary": "fifth" });
    let trace = DiskTrace::new(session.dir.path());
    let kind = FaultKind::Error(Errno::IO.raw_os_error());
    for at in 0.. {
        trace.set_fault(Some(DiskFault { at: trace.counts().0 + at, count: usize::MAX / 2, kind }));
        let updated = manage::update(&session.core, of(&params));
        trace.set_fault(None);
        let params = of(&json!({ "snapshotId": taken.snapshot_id }));
        let document = manage::get(&session.core, params).expect("reads").document;
        let listed = session.snapshots().data;
        assert_eq!(listed[0].summary, document.expect("has one").summary, "change {at}");
        if updated.is_ok() {
            break;
        }
    }
}

#[tokio::test]
async fn snapshot_with_the_reason_of_a_client_is_kept_like_a_manual_one() {
    let session = TestSession::new(&[("snapshots.maxCount", "1")]);
    session.record("user", "one").await;
    let take = |reason: &str, pinned: bool| {
        let params = session
            .with_id(json!({ "reason": reason, "pinned": pinned, "key": format!("key {reason}") }));
        create::create(Arc::clone(&session.core), params)
    };
    let taken = take("before-refactoring", false).await.expect("takes").snapshot;
    assert_eq!((taken.reason.as_str(), taken.pinned), ("before-refactoring", false));
    let pinned = take("release", true).await.expect("takes").snapshot;
    assert!(pinned.pinned);
    // A retry writes the file again, as it was requested.
    fs::remove_file(session.files().join(format!("snapshot-{}.json", pinned.snapshot_id)))
        .expect("removes");
    assert_eq!(take("release", true).await.expect("takes").snapshot, pinned);
    for mode in ["planning", "debugger", "developer"] {
        session.set_mode(mode).await;
    }
    assert_eq!(session.reasons(), ["modeChange", "release", "before-refactoring"]);
    for reason in ["undo", "import", "two words", "", &"x".repeat(65)] {
        let refused = take(reason, false).await;
        assert!(matches!(refused, Err(AppError::Invalid { field: "reason", .. })), "{reason:?}");
    }
}
