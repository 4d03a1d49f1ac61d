//! `snapshot.*`: taking, listing, restoring and deleting snapshots, by requests, by `ollmctl` and by the daemon itself.

use serde_json::{Value, json};

use crate::harness::{
    Answer, FakeOllama, Fault, ModelSession, Sandbox, UNKNOWN_SESSION, Wire, array, start, until,
};

/// Takes a snapshot and returns its id.
fn take(wire: &mut Wire, session: &str, summary: &str) -> String {
    let params = json!({ "sessionId": session, "summary": summary });
    let taken = wire.ok("snapshot.create", params);
    taken["snapshot"]["snapshotId"].as_str().unwrap().to_owned()
}

fn restore(wire: &mut Wire, snapshot: &str) -> Value {
    wire.ok("snapshot.restore", json!({ "snapshotId": snapshot }))
}

/// Returns the reasons of a session's snapshots, the newest first.
fn reasons(wire: &mut Wire, session: &str) -> Vec<String> {
    let listed = wire.ok("snapshot.list", json!({ "sessionId": session }));
    array(&listed["data"]).iter().map(|one| one["reason"].as_str().unwrap().to_owned()).collect()
}

fn files(sandbox: &Sandbox, session: &str) -> std::path::PathBuf {
    sandbox.home().join(format!("context-snapshots/{session}/snapshots"))
}

#[test]
fn snapshot_survives_a_kill_and_restores_what_was_in_force() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "one");
    let create = json!({ "action": "create", "description": "Port the parser" });
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [create] }));
    let mut other = daemon.wire();
    other.subscribe(
        json!({ "kinds": ["snapshot-created", "snapshot-restored", "snapshot-deleted"] }),
    );
    let snapshot = take(&mut wire, &session, "before");
    let event = other.event();
    assert_eq!(
        (&event["kind"], &event["data"]["file"]),
        (&json!("snapshot-created"), &json!(true))
    );
    let before = wire.ok("context.build", json!({ "sessionId": session }))["messages"].clone();
    daemon.kill();
    sandbox.remove_catalog();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let mut other = daemon.wire();
    other.subscribe(
        json!({ "kinds": ["snapshot-created", "snapshot-restored", "snapshot-deleted"] }),
    );
    wire.record(&session, "user", "two");
    let create = json!({ "action": "create", "description": "Something else" });
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [create] }));
    wire.ok("session.setMode", json!({ "sessionId": session, "mode": "planning" }));
    let restored = restore(&mut wire, &snapshot);
    assert_eq!(restored["removed"]["messages"], 1, "{restored}");
    assert_eq!(other.event()["data"]["snapshotId"], json!(snapshot));
    let after = wire.ok("context.build", json!({ "sessionId": session }))["messages"].clone();
    assert_eq!(after, before);
    let operations = wire.ok("session.operations", json!({ "sessionId": session }));
    assert_eq!(operations["data"][0]["kind"], "restore", "{operations}");
    wire.ok("session.undo", json!({ "sessionId": session }));
    assert_eq!(wire.session(&session)["mode"], "planning");
    assert_eq!(reasons(&mut wire, &session), ["undo", "restore", "modeChange", "manual"]);
    wire.ok("snapshot.delete", json!({ "snapshotId": snapshot }));
    assert_eq!(other.event()["data"], json!({ "snapshotId": snapshot, "reason": "client" }));
    let get = json!({ "snapshotId": snapshot });
    wire.refused("snapshot.get", get.clone(), "snapshotNotFound");
    wire.refused("snapshot.restore", get, "snapshotNotFound");
    // Its record is still in the log.
    let by_record = json!({ "snapshotId": snapshot, "sessionId": session });
    assert_eq!(wire.ok("snapshot.restore", by_record)["removed"]["messages"], 1);
}

#[test]
fn wrong_requests_are_refused_with_their_kinds() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.refused("snapshot.create", json!({ "sessionId": session }), "invalidParams");
    wire.refused("snapshot.create", json!({ "sessionId": UNKNOWN_SESSION }), "sessionNotFound");
    wire.refused("snapshot.list", json!({ "sessionId": UNKNOWN_SESSION }), "sessionNotFound");
    wire.record(&session, "user", "one");
    let snapshot = take(&mut wire, &session, "");
    for method in ["snapshot.get", "snapshot.delete", "snapshot.restore"] {
        wire.refused(method, json!({ "snapshotId": "../../etc/passwd" }), "invalidId");
        wire.refused(method, json!({ "snapshotId": UNKNOWN_SESSION }), "snapshotNotFound");
        let elsewhere = json!({ "snapshotId": snapshot, "sessionId": UNKNOWN_SESSION });
        let error = wire.refused(method, elsewhere, "invalidParams");
        assert!(error["message"].as_str().unwrap().contains("belongs to session"), "{error}");
    }
    wire.refused("snapshot.update", json!({ "snapshotId": snapshot }), "invalidParams");
    let long = json!({ "snapshotId": snapshot, "summary": "x".repeat(5000) });
    wire.refused("snapshot.update", long, "tooLarge");
    wire.refused("snapshot.list", json!({ "limit": 0 }), "invalidParams");
    wire.refused("snapshot.list", json!({ "cursor": "x" }), "invalidParams");
    let path = files(&sandbox, &session).join(format!("snapshot-{snapshot}.json"));
    let newer = std::fs::read_to_string(&path).unwrap().replace("\"version\":1", "\"version\":9");
    std::fs::write(&path, newer).unwrap();
    let error =
        wire.refused("snapshot.get", json!({ "snapshotId": snapshot }), "unsupportedVersion");
    assert_eq!((&error["data"]["found"], &error["data"]["supported"]), (&json!(9), &json!(1)));
    std::fs::write(&path, "not JSON").unwrap();
    wire.refused("snapshot.get", json!({ "snapshotId": snapshot }), "corrupted");
    let listed = wire.ok("snapshot.list", json!({ "sessionId": session }));
    assert_eq!((array(&listed["data"]).len(), array(&listed["skipped"]).len()), (0, 1), "{listed}");
}

#[test]
fn lost_session_comes_back_from_its_snapshot() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "title": "The port" }));
    wire.record(&session, "user", "one");
    wire.record(&session, "assistant", "first");
    let snapshot = take(&mut wire, &session, "");
    let before = wire.ok("context.build", json!({ "sessionId": session }))["messages"].clone();
    assert!(daemon.terminate().success());
    std::fs::remove_file(sandbox.log_path(&session)).unwrap();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let listed = wire.ok("snapshot.list", json!({}));
    assert_eq!(listed["data"][0]["snapshotId"], json!(snapshot), "{listed}");
    let restored = restore(&mut wire, &snapshot);
    assert_eq!(restored["newSession"], true, "{restored}");
    let made = restored["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(made, session);
    assert_eq!(wire.session(&made)["title"], "The port (restored)");
    let after = wire.ok("context.build", json!({ "sessionId": made }))["messages"].clone();
    assert_eq!(after, before);
}

#[test]
fn snapshot_is_not_restored_while_a_turn_answers() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    fake.script(Answer::text("first"));
    chat.turn("one");
    let id = chat.id.clone();
    let snapshot = take(&mut chat.wire, &id, "");
    fake.script(Answer::text("second"));
    fake.inject("/api/chat", &[Fault::Stall { after: 0 }]);
    let message = chat.message("two");
    chat.send(message);
    chat.events_until("accepted");
    let mut other = chat.daemon.wire();
    let params = json!({ "snapshotId": snapshot });
    let error = other.refused("snapshot.restore", params.clone(), "conflict");
    assert!(error["data"]["hint"].as_str().unwrap().contains("chat.cancel"), "{error}");
    take(&mut other, &id, "taken meanwhile");
    fake.resume();
    chat.events_until("done");
    assert!(other.ok("snapshot.restore", params)["removed"]["messages"].as_u64() >= Some(1));
}

#[test]
fn compaction_does_not_run_without_its_snapshot() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "contextSize": 2048 }));
    for n in 0..30 {
        for role in ["user", "assistant"] {
            wire.record(
                &session,
                role,
                &format!("{role} {n} {}", "words nobody needs ".repeat(10)),
            );
        }
    }
    let mut other = daemon.wire();
    other.subscribe(json!({ "kinds": ["snapshot-error", "compressed", "auto-snapshot-created"] }));
    // No file can be created below a file.
    let directory = sandbox.home().join("context-snapshots");
    std::fs::write(&directory, "").unwrap();
    let params = json!({ "sessionId": session, "strategy": "truncate" });
    wire.refused("context.compact", params.clone(), "storage");
    let event = other.event();
    assert_eq!(event["kind"], "snapshot-error", "{event}");
    let n_compactions = |wire: &mut Wire| {
        let records = wire.records(&session);
        records.iter().filter(|record| record["type"] == "compaction").count()
    };
    assert_eq!(n_compactions(&mut wire), 0);
    wire.record(&session, "user", "recording goes on");
    std::fs::remove_file(&directory).unwrap();
    wire.ok("context.compact", params);
    assert_eq!(n_compactions(&mut wire), 1);
    let events = other.events_until("compressed");
    assert_eq!(events[0]["data"]["reason"], "compaction", "{events:?}");
    let snapshot = wire.ok("snapshot.list", json!({ "sessionId": session }))["data"][0].clone();
    assert_eq!(snapshot["reason"], "compaction", "{snapshot}");
    let before = snapshot["leaf"].clone();
    wire.ok("snapshot.restore", json!({ "snapshotId": snapshot["snapshotId"] }));
    let operations = wire.ok("session.operations", json!({ "sessionId": session }));
    assert_eq!(operations["data"][0]["leafAfter"], before, "{operations}");
}

#[test]
fn deleted_session_leaves_no_snapshot_even_after_a_kill() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let kept = wire.create(json!({}));
    for id in [&session, &kept] {
        wire.record(id, "user", "one");
        take(&mut wire, id, "");
    }
    // A deletion that was cut off behind its first step.
    daemon.kill();
    let log = sandbox.log_path(&session);
    std::fs::rename(&log, log.with_extension("jsonl.deleting")).unwrap();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    until("the deletion is finished", || !files(&sandbox, &session).exists());
    let map = sandbox.home().join("context-snapshots/snapshot-map.json");
    until("the map has one snapshot", || {
        let map: Value = serde_json::from_slice(&std::fs::read(&map).unwrap()).unwrap();
        map.as_object().unwrap().values().all(|owner| *owner == json!(kept))
    });
    assert_eq!(reasons(&mut wire, &kept), ["manual"]);
    wire.ok("session.delete", json!({ "sessionId": kept }));
    assert!(!sandbox.home().join(format!("context-snapshots/{kept}")).exists());
    assert_eq!(std::fs::read_to_string(&map).unwrap().trim(), "{}");
}

#[test]
fn commands_take_show_restore_pin_and_delete() {
    let sandbox = Sandbox::new();
    let project = sandbox.project_dir("work");
    for (role, text) in [("user", "one"), ("assistant", "first")] {
        sandbox.ctl(["record", "--project", &project, "--role", role, text]).ok();
    }
    let said = sandbox.ctl(["snapshot", "create", "before the port", "--session", "last"]).ok();
    let short = said.split_whitespace().nth(1).expect("an id").to_owned();
    let listed = sandbox.ctl(["snapshot", "list", "last", "--json"]).json();
    let id = listed["data"][0]["snapshotId"].as_str().unwrap().to_owned();
    assert!(id.ends_with(&short), "{said}");
    sandbox.ctl(["record", "--session", "last", "two"]).ok();
    let listed = sandbox.ctl(["snapshot", "list", "last"]).ok();
    assert!(listed.contains(&id[32..]) && listed.contains("before the port"), "{listed}");
    let shown = sandbox.ctl(["snapshot", "show", &id[24..]]).ok();
    assert!(shown.contains("before the port") && shown.contains("manual"), "{shown}");
    let refused = sandbox.ctl(["snapshot", "restore", &id]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let plan = sandbox.ctl(["snapshot", "restore", &id, "--dry-run"]).ok();
    assert!(plan.contains("taken back: 1 message") && plan.contains("messages: 3 -> 2"), "{plan}");
    let restored = sandbox.ctl(["snapshot", "restore", &id, "--yes", "--json"]).json();
    assert_eq!(restored["removed"]["messages"], 1, "{restored}");
    let undone = sandbox.ctl(["undo", "--session", "last"]).ok();
    assert!(undone.contains("restore"), "{undone}");
    sandbox.ctl(["snapshot", "pin", "last", "--session", "last"]).ok();
    let listed = sandbox.ctl(["snapshot", "list", "last", "--json"]).json();
    assert_eq!(listed["data"][0]["pinned"], true, "{listed}");
    assert_eq!(sandbox.ctl(["snapshot", "delete", &id]).code, Some(2));
    sandbox.ctl(["snapshot", "delete", &id, "--yes"]).ok();
    assert_eq!(sandbox.ctl(["snapshot", "show", &id]).code, Some(3));
}
