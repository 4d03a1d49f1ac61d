//! Each kind of damage is one finding with its place; what is derived can be repaired.
#![expect(clippy::disallowed_methods, reason = "these tests write files as other programs do")]

use std::fs;
use std::time::{Duration, Instant};

use super::*;
use crate::app::testing::TestSession;

fn checked(session: &TestSession, repair: bool) -> StoreVerifyResult {
    let deadline = Instant::now() + Duration::from_secs(20);
    assert!(session.core.catalog.wait_caught_up(deadline));
    run(&session.core, repair, &CancellationToken::new()).expect("checks")
}

async fn session() -> TestSession {
    let session = TestSession::new(&[]);
    for text in ["first", &"large ".repeat(20_000), "middle", "last"] {
        session.record("user", text).await;
    }
    let (core, id) = (Arc::clone(&session.core), session.id);
    tokio::task::spawn_blocking(move || core.sessions.rest(id)).await.expect("rests");
    session
}

/// Returns the only finding.
#[track_caller]
fn only(result: &StoreVerifyResult) -> &StoreFinding {
    let [found] = &result.findings[..] else { panic!("{:#?}", result.findings) };
    found
}

#[tokio::test]
async fn healthy_store_has_no_finding_and_its_space_is_counted() {
    let session = session().await;
    let result = checked(&session, false);
    assert_eq!((result.ok, &result.findings, result.sessions), (true, &Vec::new(), 1));
    assert_eq!(result.records, 6, "with the header and the mark");
    let usage = |kind: &str| result.space.iter().find(|usage| usage.kind == kind);
    assert_eq!(usage("blobs").map(|usage| (usage.files, usage.bytes)), Some((1, 120_000)));
    assert!(usage("logs").is_some_and(|usage| usage.files == 1));
    assert!(usage("catalog").is_some());
    assert_eq!(result.largest[0].session_id, session.id);
    assert!(result.largest[0].bytes > 120_000);
}

#[tokio::test]
async fn damaged_record_and_blob_are_named_and_not_changed() {
    let session = session().await;
    let at = session.position_in_log("middle");
    session.overwrite_in_log(at, "mXddlX");
    let log = fs::read(session.dir.path().join(format!("{}.jsonl", session.id))).expect("reads");
    let result = checked(&session, true);
    let found = only(&result);
    assert_eq!((found.seq, found.session_id), (Some(Seq(3)), Some(session.id)));
    assert!(!result.ok && !found.repaired && found.hint.is_some());
    let line = log[..at as usize].iter().rposition(|byte| *byte == b'\n').expect("a line") + 1;
    assert_eq!(found.offset, Some(line as u64));
    let after = fs::read(session.dir.path().join(format!("{}.jsonl", session.id))).expect("reads");
    assert!(after == log, "the log is as it was");
    session.overwrite_in_log(at, "middle");

    let blobs = session.dir.path().join(format!("{}.blobs", session.id));
    let blob = fs::read_dir(&blobs).expect("lists").next().expect("one").expect("lists").path();
    let whole = fs::read(&blob).expect("reads");
    fs::write(&blob, b"other").expect("writes");
    let result = checked(&session, true);
    assert!(only(&result).text.contains("another content") && !result.ok, "{result:?}");
    assert_eq!(only(&result).seq, Some(Seq(2)));
    fs::remove_file(&blob).expect("removes");
    let result = checked(&session, false);
    assert!(only(&result).text.contains("is missing"), "{result:?}");
    fs::write(&blob, &whole).expect("writes");
    let unknown = blobs.join(blake3::hash(b"x").to_hex().as_str());
    fs::write(&unknown, b"y").expect("writes");
    let result = checked(&session, false);
    assert!(result.ok && only(&result).text.contains("no record names it"), "{result:?}");
    fs::remove_file(&unknown).expect("removes");
    assert_eq!(checked(&session, false).findings, []);
}

#[tokio::test]
async fn derived_files_are_repaired_only_if_asked() {
    let session = session().await;
    let save = || documents_save(&session);
    save();
    let document = session.core.sessions.document_path(session.id);
    for wrong in ["{", r#"{"sessionId":"0199c2e4-7d6a-7c11-9b1e-3f2f6f0a5c01","messages":[]}"#] {
        fs::write(&document, wrong).expect("writes");
        let result = checked(&session, false);
        assert!(!result.ok, "{result:?}");
        assert_eq!(only(&result).hint.as_deref(), Some(REPAIR));
        assert_eq!(fs::read_to_string(&document).expect("reads"), wrong);
        let result = checked(&session, true);
        assert!(result.ok && only(&result).repaired, "{result:?}");
        assert_eq!(checked(&session, false).findings, []);
    }
    // An old document is only behind.
    session.record("user", "newer").await;
    assert_eq!(checked(&session, false).findings, []);
    fs::write(session.dir.path().join("global.json"), "{").expect("writes");
    let result = checked(&session, true);
    assert!(!result.ok && only(&result).path.ends_with("global.json"), "{result:?}");
}

fn documents_save(session: &TestSession) {
    use crate::app::sessions::documents;
    use ollm_protocol::methods::session::SessionIdParams;

    let saved = documents::save(&session.core, SessionIdParams { session_id: session.id });
    drop(saved.expect("saves"));
}

#[tokio::test]
async fn session_without_a_log_is_removed_from_the_catalog() {
    let session = session().await;
    assert_eq!(checked(&session, false).findings, []);
    session.core.sessions.close_unused(ollm_protocol::Timestamp::from_unix_ms(i64::MAX));
    let dir = session.dir.path();
    fs::remove_file(dir.join(format!("{}.jsonl", session.id))).expect("removes");
    let result = checked(&session, false);
    assert!(only(&result).text.contains("blobs of a session whose log is gone"), "{result:?}");
    fs::remove_dir_all(dir.join(format!("{}.blobs", session.id))).expect("removes");
    let result = checked(&session, true);
    assert!(result.ok && only(&result).repaired, "{result:?}");
    assert_eq!(checked(&session, false).findings, []);
}
