//! Deletion: no byte of a deleted session remains in any file, and an interrupted deletion is finished.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{ids, session_files};
use crate::harness::{Sandbox, array, start, until};

#[test]
fn deleted_session_leaves_no_bytes_in_any_file() {
    let (sandbox, daemon, mut wire) = start();
    let word = "quokkaberry7391";
    let session =
        wire.create(json!({ "title": format!("about {word}"), "metadata": { "m": word } }));
    wire.record(&session, "user", &format!("I like {word} very much"));
    wire.record(&session, "assistant", &format!("{word} {}", "filler ".repeat(20_000)));
    wire.ok("session.save", json!({ "sessionId": session }));
    let other = wire.create(json!({}));
    wire.record(&other, "user", "unrelated words");
    until("the word is found twice", || {
        let found = wire.ok("session.search", json!({ "query": word }));
        array(&found["data"]).len() >= 2
    });
    assert!(!sandbox.files_containing(word).is_empty());
    let gone = wire.ok("session.delete", json!({ "sessionId": session }));
    assert_eq!(gone["sessionId"], session.as_str());
    let of_session = || -> Vec<String> {
        let files = session_files(&sandbox).into_iter();
        files.filter(|name| name.contains(&session)).collect()
    };
    assert_eq!(of_session(), Vec::<String>::new(), "the files are removed before the response");
    wire.refused("session.get", json!({ "sessionId": session }), "sessionNotFound");
    wire.refused("session.delete", json!({ "sessionId": session }), "sessionNotFound");
    assert_eq!(wire.ok("session.search", json!({ "query": word }))["data"], json!([]));
    until("the catalog has removed the words", || wire.status()["catalog"]["forgetting"] == 0);
    assert_eq!(sandbox.files_containing(word), Vec::<PathBuf>::new());
    assert_eq!(of_session(), Vec::<String>::new());
    assert_eq!(wire.records(&other).len(), 2, "the other session is unchanged");
    assert!(daemon.terminate().success());
    assert_eq!(sandbox.files_containing(word), Vec::<PathBuf>::new());
    assert_eq!(
        sandbox.files_containing(&session),
        Vec::<PathBuf>::new(),
        "no file contains the session id"
    );
}

#[test]
fn interrupted_delete_is_complete_or_undone_after_restart() {
    let sandbox = Sandbox::new();
    for round in 0..10 {
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        let session = wire.create(json!({}));
        let word = format!("interrupted{round}");
        wire.record(&session, "user", &format!("{word} {}", "x".repeat(100 << 10)));
        wire.request("session.delete", json!({ "sessionId": session }));
        daemon.kill();
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        // The kill comes before or after the deletion begins: the session is complete or deleted.
        match wire.call("session.get", json!({ "sessionId": session })) {
            Ok(page) => {
                assert_eq!(array(&page["records"]).len(), 2);
                wire.ok("session.delete", json!({ "sessionId": session }));
            }
            Err(error) => assert_eq!(error["data"]["kind"], "sessionNotFound", "{error}"),
        }
        until("no file contains the word", || sandbox.files_containing(&word).is_empty());
        daemon.kill();
    }
}

#[test]
fn clear_and_cleanup_delete_reported_sessions() {
    let (sandbox, _daemon, mut wire) = start();
    let mut sessions = Vec::new();
    for n in 0..6 {
        let session = wire.create(json!({}));
        wire.record(&session, "user", &format!("session {n}"));
        sessions.push(session);
    }
    wire.ok("session.update", json!({ "sessionId": sessions[0], "pinned": true }));
    wire.ok("session.archive", json!({ "sessionId": sessions[1] }));
    let deleted = |result: &Value| {
        let mut ids = ids(&result["deleted"]);
        ids.sort();
        ids
    };
    let planned = wire.ok("session.cleanup", json!({ "keep": 2, "dryRun": true }));
    assert_eq!(planned["dryRun"], true);
    assert_eq!(deleted(&planned), sessions[2..4].to_vec(), "{planned}");
    assert_eq!(wire.records(&sessions[2]).len(), 2, "a dry run changes nothing");
    let done = wire.ok("session.cleanup", json!({ "keep": 2 }));
    assert_eq!(deleted(&done), deleted(&planned));
    wire.refused("session.get", json!({ "sessionId": sessions[2] }), "sessionNotFound");
    for kept in [0, 1, 4, 5] {
        wire.ok("session.get", json!({ "sessionId": sessions[kept] }));
    }
    wire.refused("session.clear", json!({ "all": false }), "invalidParams");
    wire.refused("session.clear", json!({}), "invalidParams");
    let cleared = wire.ok("session.clear", json!({ "all": true }));
    assert_eq!(deleted(&cleared).len(), 4);
    let logs: Vec<String> =
        session_files(&sandbox).into_iter().filter(|name| name.contains(".json")).collect();
    assert_eq!(logs, Vec::<String>::new());
    assert_eq!(wire.ok("session.list", json!({}))["data"], json!([]));
}
