//! Forks: sessions that begin as another one does and share nothing with it afterwards.

use serde_json::{Value, json};

use super::session_files;
use crate::harness::{
    Answer, FakeOllama, Fault, ModelSession, Sandbox, UNKNOWN_SESSION, Wire, array, start,
};

/// Forks a session and returns the result and the id of the fork.
fn fork(wire: &mut Wire, session: &str, fields: Value) -> (Value, String) {
    let mut params = fields;
    params["sessionId"] = json!(session);
    let forked = wire.ok("session.fork", params);
    let id = forked["session"]["sessionId"].as_str().unwrap().to_owned();
    (forked, id)
}

/// Returns the contents of the messages that a model would be sent.
fn context(wire: &mut Wire, session: &str) -> Value {
    wire.ok("context.build", json!({ "sessionId": session, "contextSize": 8192 }))["messages"]
        .clone()
}

/// Returns the parts of a session that a restart must not change.
fn state(wire: &mut Wire, session: &str) -> Value {
    let params = json!({ "sessionId": session });
    json!([
        wire.session(session),
        wire.records(session),
        wire.ok("session.operations", params.clone()),
        wire.ok("session.tree", params)["data"],
        context(wire, session),
    ])
}

#[test]
fn fork_begins_as_its_parent_and_is_independent() {
    let (sandbox, daemon, mut wire) = start();
    let session = super::full_session(&mut wire, "/tmp");
    wire.ok("session.label", json!({ "sessionId": session, "seq": 1, "label": "the question" }));
    let before = context(&mut wire, &session);
    let parent = std::fs::read(sandbox.log_path(&session)).unwrap();
    let mut other = daemon.wire();
    other.subscribe(json!({ "kinds": ["session-created"] }));
    let (forked, whole) = fork(&mut wire, &session, json!({}));
    assert_eq!(forked["session"]["forkedFrom"], session.as_str());
    let title = forked["session"]["title"].as_str().unwrap();
    assert!(title.ends_with(" (fork 2)"), "{title}");
    assert_eq!(other.event()["sessionId"], whole.as_str());
    assert_eq!(context(&mut wire, &whole), before);
    assert_eq!(wire.session(&whole)["mode"], "planning");
    let log = std::fs::read(sandbox.log_path(&whole)).unwrap();
    assert!(log.starts_with(&parent), "numbers and checksums stay");
    assert_eq!(std::fs::read(sandbox.log_path(&session)).unwrap(), parent);

    // Record 2 calls a tool, whose result is record 3.
    let (forked, early) = fork(&mut wire, &session, json!({ "atSeq": 2 }));
    assert_eq!((&forked["leaf"], &forked["movedToUnitEnd"]), (&json!(3), &json!(true)), "{forked}");
    assert!(forked["session"]["title"].as_str().unwrap().ends_with(" (fork 3)"), "{forked}");
    assert_eq!(forked["session"]["mode"], "developer", "the mode of its path");
    wire.record(&early, "user", "only in the fork");
    wire.record(&session, "user", "only in the parent");
    assert!(!context(&mut wire, &early).to_string().contains("only in the parent"));
    assert!(!context(&mut wire, &session).to_string().contains("only in the fork"));

    let live = [state(&mut wire, &whole), state(&mut wire, &early)];
    daemon.kill();
    sandbox.remove_catalog();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!([state(&mut wire, &whole), state(&mut wire, &early)], live);
    wire.wait_for_catalog();
    let hits = wire.ok("session.search", json!({ "query": "reverse list" }));
    assert_eq!(array(&hits["data"]).len(), 3, "{hits}");
    let deleted = wire.ok("session.delete", json!({ "sessionId": session }));
    assert_eq!(array(&deleted["forks"]).len(), 2, "{deleted}");
    assert_eq!([state(&mut wire, &whole), state(&mut wire, &early)], live);
    let undone = wire.ok("session.undo", json!({ "sessionId": early, "steps": 2 }));
    assert_eq!(undone.get("leaf"), None, "what was copied can be undone: {undone}");
}

#[test]
fn large_texts_of_a_fork_survive_the_deletion_of_its_parent() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let large = |word: &str| word.repeat(20_000);
    wire.record(&session, "user", &large("early "));
    wire.record(&session, "assistant", "noted");
    wire.record(&session, "user", &large("later "));
    let (_, id) = fork(&mut wire, &session, json!({ "atSeq": 2 }));
    let blobs = sandbox.home().join(format!("sessions/{id}.blobs"));
    let names = || std::fs::read_dir(&blobs).unwrap().count();
    assert_eq!(names(), 1, "only the texts that it holds");
    let n_links = || {
        let [blob] = std::fs::read_dir(&blobs).unwrap().collect::<Vec<_>>().try_into().unwrap();
        std::os::unix::fs::MetadataExt::nlink(&blob.unwrap().metadata().unwrap())
    };
    assert_eq!(n_links(), 2, "the blob is shared");
    wire.ok("session.delete", json!({ "sessionId": session }));
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert!(wire.records(&id)[1].to_string().contains(&large("early ")));
    assert_eq!(n_links(), 1);
    assert_eq!(wire.session(&id)["status"], "active");
    wire.ok("session.delete", json!({ "sessionId": id }));
    assert_eq!(session_files(&sandbox), [""; 0]);
}

#[test]
fn keys_of_the_parent_do_not_apply_in_the_fork() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "key": "create" }));
    let keyed = |session: &str, text: &str| json!({ "sessionId": session, "key": "k", "message": { "role": "user", "content": text } });
    wire.ok("session.record", keyed(&session, "one"));
    let params = json!({ "sessionId": session, "key": "fork" });
    let first = wire.ok("session.fork", params.clone())["session"].clone();
    let again = wire.ok("session.fork", params)["session"].clone();
    assert_eq!(again, first, "a retry forks once");
    let id = first["sessionId"].as_str().unwrap();
    let recorded = wire.ok("session.record", keyed(id, "another"));
    assert_eq!(recorded.get("duplicate"), None);
    assert_eq!(wire.ok("session.record", keyed(id, "another"))["duplicate"], true);
    let created = wire.ok("session.create", json!({ "key": "create" }));
    assert_eq!(created["session"]["sessionId"], session.as_str(), "not the fork");
}

#[test]
fn exported_fork_is_imported_as_itself() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = super::full_session(&mut wire, "/tmp");
    let (_, id) = fork(&mut wire, &session, json!({ "atSeq": 3, "title": "Another way" }));
    wire.record(&id, "user", "in the fork");
    let file = wire.export(&id, "jsonl");
    let again = wire.ok("session.import", json!({ "data": file, "last": true }));
    assert_eq!(again["report"]["alreadyImported"], true, "{again}");

    let sandbox = Sandbox::new();
    let (_daemon, mut elsewhere) = sandbox.daemon_and_wire();
    let imported = elsewhere.ok("session.import", json!({ "data": file, "last": true }));
    assert_eq!(imported["session"]["sessionId"], id.as_str(), "{imported}");
    assert_eq!(imported["session"]["title"], "Another way");
    assert!(imported["session"].get("importedFrom").is_some(), "{imported}");
    let operations = |wire: &mut Wire| wire.ok("session.operations", json!({ "sessionId": id }));
    assert_eq!(operations(&mut elsewhere), operations(&mut wire));
    assert_eq!(context(&mut elsewhere, &id), context(&mut wire, &id));
}

#[test]
fn fork_needs_records_and_no_running_turn_among_them() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    chat.refused("session.fork", json!({}), "invalidParams");
    fake.script(Answer::text("one"));
    chat.turn("count");
    fake.inject("/api/chat", &[Fault::Stall { after: 0 }]);
    let message = chat.message("more");
    chat.send(message);
    chat.events_until("accepted");
    let (id, mut other) = (chat.id.clone(), chat.daemon.wire());
    let error = other.refused("session.fork", json!({ "sessionId": id }), "conflict");
    assert!(error["data"]["hint"].as_str().unwrap().contains("chat.cancel"), "{error}");
    other.ok("session.fork", json!({ "sessionId": id, "atSeq": 1 }));
    fake.resume();
    chat.events_until("done");
    other.ok("session.fork", json!({ "sessionId": id }));
    let refuse = |other: &mut Wire, params: Value, kind: &str| {
        other.refused("session.fork", params, kind);
    };
    refuse(&mut other, json!({ "sessionId": id, "atSeq": 999 }), "recordNotFound");
    refuse(&mut other, json!({ "sessionId": id, "atSeq": 0 }), "invalidParams");
    refuse(&mut other, json!({ "sessionId": UNKNOWN_SESSION }), "sessionNotFound");
    refuse(&mut other, json!({ "sessionId": id, "title": "x".repeat(5000) }), "tooLarge");
}

#[test]
fn fork_returns_to_the_snapshots_of_its_own_log() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "one");
    let taken = wire.ok("snapshot.create", json!({ "sessionId": session }));
    let snapshot = taken["snapshot"]["snapshotId"].clone();
    wire.record(&session, "user", "two");
    let (_, id) = fork(&mut wire, &session, json!({}));
    let params = json!({ "snapshotId": snapshot, "sessionId": id });
    let planned = wire
        .ok("snapshot.restore", json!({ "snapshotId": snapshot, "sessionId": id, "dryRun": true }));
    assert_eq!(planned["sessionId"], id.as_str(), "{planned}");
    let restored = wire.ok("snapshot.restore", params.clone());
    assert_eq!(
        (&restored["sessionId"], &restored["leaf"]),
        (&json!(id), &taken["snapshot"]["leaf"])
    );
    assert!(!context(&mut wire, &id).to_string().contains("two"));
    assert!(context(&mut wire, &session).to_string().contains("two"), "the parent stays");
    // Its file is still that of the parent.
    let mut new = params.clone();
    new["newSession"] = json!(true);
    wire.refused("snapshot.restore", new, "invalidParams");
    // What the parent took later is none of the fork.
    let taken = wire.ok("snapshot.create", json!({ "sessionId": session }));
    let params = json!({ "snapshotId": taken["snapshot"]["snapshotId"], "sessionId": id });
    wire.refused("snapshot.restore", params, "invalidParams");
}
