//! Each kind of damage is one finding with its place; what is derived can be repaired.
#![expect(clippy::disallowed_methods, reason = "these tests write files as other programs do")]

use std::fs;
use std::time::{Duration, Instant};

use ollm_protocol::Timestamp;

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
    fs::create_dir(session.dir.path().join("notes.blobs")).expect("creates");
    assert_eq!(checked(&session, false).findings, [], "its name is not that of a session");
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
    for content in ["{", r#"{"entries":[]}"#] {
        fs::write(session.dir.path().join("global.json"), content).expect("writes");
        let result = checked(&session, true);
        assert!(!result.ok && only(&result).path.ends_with("global.json"), "{result:?}");
        assert!(only(&result).text.starts_with("its context entries are not used: "), "{result:?}");
    }
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
    let [row, blobs] = &result.findings[..] else { panic!("{result:?}") };
    assert!(row.text.starts_with("lists show the session"), "{result:?}");
    assert!(blobs.text.contains("blobs of a session whose log is gone"), "{result:?}");
    fs::remove_dir_all(dir.join(format!("{}.blobs", session.id))).expect("removes");
    let result = checked(&session, true);
    assert!(result.ok && only(&result).repaired, "{result:?}");
    assert_eq!(checked(&session, false).findings, []);
}

/// Closes all sessions, and returns the path of the log.
fn closed_log(session: &TestSession) -> std::path::PathBuf {
    session.core.sessions.close_unused(Timestamp::from_unix_ms(i64::MAX));
    session.core.sessions.document_path(session.id).with_extension("jsonl")
}

#[tokio::test]
async fn lost_end_of_a_log_is_a_problem_and_the_document_that_has_it_is_kept() {
    let session = session().await;
    documents_save(&session);
    assert_eq!(checked(&session, false).findings, []);
    let log = closed_log(&session);
    let document = session.core.sessions.document_path(session.id);
    let saved = fs::read(&document).expect("reads");
    let bytes = fs::read(&log).expect("reads");
    let at = session.position_in_log("\"last\"") as usize;
    let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').expect("a line") + 1;
    for (left, n_findings) in [(10, 3), (0, 2)] {
        fs::write(&log, &bytes[..start + left]).expect("cuts");
        let result = checked(&session, true);
        let texts: Vec<_> = result.findings.iter().map(|found| found.text.as_str()).collect();
        assert!(!result.ok && texts.len() == n_findings, "{texts:?}");
        assert!(texts[0].starts_with("the last 2 records are lost"), "{texts:?}");
        assert!(texts[1].ends_with("keep a copy"), "{texts:?}");
        assert!(fs::read(&document).expect("reads") == saved, "the document is as it was");
    }
    // A document that cannot be parsed may have the lost records too.
    fs::write(&document, &saved[..saved.len() - 3]).expect("cuts");
    let result = checked(&session, true);
    assert!(result.findings.iter().all(|found| !found.repaired), "{result:?}");
    assert!(fs::read(&document).expect("reads") == saved[..saved.len() - 3]);
}

#[tokio::test]
async fn log_without_a_record_is_a_problem() {
    let session = session().await;
    assert_eq!(checked(&session, false).findings, []);
    let log = closed_log(&session);
    for (content, expected) in [("", "the log is empty"), ("x\n", "no record of the log can be")] {
        fs::write(&log, content).expect("writes");
        let result = checked(&session, true);
        assert!(!result.ok && result.findings[0].text.starts_with(expected), "{result:?}");
        // The first time, the catalog still has the session.
        assert!(result.findings[1..].iter().all(|found| found.repaired), "{result:?}");
        assert_eq!(fs::read_to_string(&log).expect("reads"), content);
    }
    // A start sets such a log aside.
    fs::rename(&log, log.with_extension("torn-1")).expect("renames");
    fs::write(log.with_extension("json"), "{}").expect("writes");
    let result = checked(&session, true);
    let texts: Vec<_> = result.findings.iter().map(|found| found.text.as_str()).collect();
    let [document, torn, blobs] = texts[..] else { panic!("{texts:?}") };
    assert!(!result.ok && document.starts_with("the document of a session whose log is gone"));
    assert!(torn.starts_with("a log of which no record") && blobs.starts_with("blobs"));
}

#[tokio::test]
async fn damaged_snapshot_is_found_although_its_index_describes_it() {
    use crate::app::snapshots::create;

    let session = session().await;
    let params = serde_json::json!({ "sessionId": session.id, "summary": "before" });
    let params = serde_json::from_value(params).expect("params");
    let made = create::create(Arc::clone(&session.core), params).await.expect("creates");
    assert_eq!(checked(&session, false).findings, []);
    let name = format!("snapshot-{}.json", made.snapshot.snapshot_id);
    let files = session.core.snapshots.file_paths(session.id).expect("lists");
    let (_, path) = files.into_iter().find(|(file, _)| *file == name).expect("has a file");
    let len = fs::read(&path).expect("reads").len();
    fs::write(&path, vec![b' '; len]).expect("writes");
    let n_skipped = || session.core.snapshots.list(session.id).expect("lists").skipped.len();
    let result = checked(&session, false);
    assert!(only(&result).text.starts_with("the snapshot cannot be read"), "{result:?}");
    assert_eq!(n_skipped(), 0, "the index has its name and its size");
    drop(checked(&session, true));
    assert_eq!(n_skipped(), 1, "the index was made again");
}

#[test]
fn findings_are_counted_and_the_first_of_each_level_are_kept() {
    let (mut list, path) = (FindingList::default(), Path::new("/x"));
    (0..=MAX_FINDINGS).for_each(|_| list.push(warning(path, "a warning")));
    assert!(!list.is_wrong);
    list.push(problem(path, "a problem"));
    assert_eq!((list.is_wrong, list.count), (true, MAX_FINDINGS as u64 + 2));
    let kept = list.into_kept();
    assert_eq!((kept.len(), kept[0].level), (MAX_FINDINGS, FindingLevel::Problem));
}
