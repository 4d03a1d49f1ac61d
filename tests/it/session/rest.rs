//! Sessions at rest: damage in their logs costs the damaged records alone, without a catalog and without a repair.

use serde_json::{Value, json};

use super::text_of;
use crate::harness::{Sandbox, Wire, array, start};

/// Returns the texts of all messages of a session.
fn texts(wire: &mut Wire, session: &str) -> Vec<String> {
    let records = wire.records(session);
    let messages = records.iter().filter(|record| record["type"] == "message");
    messages.map(|record| text_of(record).to_owned()).collect()
}

/// Changes the line of a log that contains `text`.
fn damage(sandbox: &Sandbox, session: &str, text: &str, change: impl Fn(&mut [u8])) {
    let path = sandbox.log_path(session);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).position(|found| found == text.as_bytes()).unwrap();
    let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let end = at + bytes[at..].iter().position(|byte| *byte == b'\n').unwrap();
    change(&mut bytes[start..end]);
    std::fs::write(&path, bytes).unwrap();
}

/// Returns an export with this many messages.
fn export_of(count: usize) -> String {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for at in 0..count {
        wire.record(&session, "user", &format!("message {at:03}"));
    }
    wire.export(&session, "jsonl")
}

#[test]
fn damage_in_an_import_costs_one_record_after_a_kill_without_the_catalog() {
    let text = export_of(60);
    for is_one_bit in [true, false] {
        let (sandbox, daemon, mut wire) = start();
        let imported = wire.ok("session.import", json!({ "data": text, "last": true }));
        let session = imported["session"]["sessionId"].as_str().unwrap().to_owned();
        let last_activity = imported["session"]["lastActivity"].clone();
        daemon.kill();
        sandbox.remove_catalog();
        damage(&sandbox, &session, "message 020", |line| match is_one_bit {
            true => line[40] ^= 4,
            false => line[10..60].fill(0),
        });
        let (_daemon, mut wire) = sandbox.daemon_and_wire();
        let expected: Vec<_> =
            (0..60).filter(|at| *at != 20).map(|at| format!("message {at:03}")).collect();
        assert_eq!(texts(&mut wire, &session), expected);
        let found = wire.session(&session);
        assert_eq!(found["damagedRecords"], 1, "{found}");
        assert_eq!(found["status"], "corrupted");
        assert_eq!(found["lastActivity"], last_activity);
    }
}

#[test]
fn stopped_daemon_leaves_a_mark_that_no_client_sees() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for text in ["one", "two", "three"] {
        wire.record(&session, "user", text);
    }
    wire.subscribe(json!({}));
    let shown = |wire: &mut Wire| -> Value {
        let newest = wire.ok("session.get", json!({ "sessionId": session, "from": -1 }));
        assert_eq!(array(&newest["records"]).len(), 1);
        assert_eq!(newest.get("nextFrom"), None);
        let page = wire.ok("session.get", json!({ "sessionId": session, "limit": 4 }));
        assert_eq!(page.get("nextFrom"), None);
        json!([
            newest,
            wire.records(&session),
            wire.export(&session, "jsonl"),
            wire.export(&session, "json")
        ])
    };
    let before = shown(&mut wire);
    let totals = |wire: &mut Wire| {
        let params = json!({ "sessionId": session, "format": "jsonl" });
        let chunk = wire.ok("session.export", params);
        (chunk["done"].clone(), chunk["total"].clone())
    };
    daemon.terminate();
    let log = || std::fs::read_to_string(sandbox.log_path(&session)).unwrap();
    assert_eq!(log().matches("\"type\":\"rest\"").count(), 1, "{}", log());
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(shown(&mut wire), before);
    assert_eq!(totals(&mut wire), (json!(4), json!(4)), "the mark is no record");
    daemon.terminate();
    assert_eq!(log().lines().count(), 5, "a session that was only read gets no mark");

    sandbox.remove_catalog();
    damage(&sandbox, &session, "two", |line| line.fill(b'x'));
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(texts(&mut wire, &session), ["one", "three"]);
    assert_eq!(wire.record(&session, "user", "four"), 5);
}

#[test]
fn damage_to_the_last_record_of_a_stopped_daemon_is_reported() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for text in ["one", "two", "three"] {
        wire.record(&session, "user", text);
    }
    assert!(daemon.terminate().success());
    sandbox.remove_catalog();
    damage(&sandbox, &session, "three", |line| line.fill(b'x'));
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(texts(&mut wire, &session), ["one", "two"]);
    let found = wire.session(&session);
    assert_eq!(found["damagedRecords"], 1, "an acknowledged record is no torn tail: {found}");
}

/// Returns the kinds of events about damage from the start of the daemon until now.
fn damage_events(wire: &mut Wire, session: &str) -> Vec<Value> {
    wire.ok("session.save", json!({ "sessionId": session }));
    let hello = json!({ "client": "test", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    let epoch = wire.ok("daemon.hello", hello)["epoch"].clone();
    let kinds = json!(["session-damaged", "session-healed", "session-saved"]);
    wire.subscribe(json!({ "kinds": kinds, "since": { "epoch": epoch, "eventSeq": 0 } }));
    let mut events = wire.events_until("session-saved");
    let _saved = events.pop();
    assert!(events.iter().all(|event| event["sessionId"] == session), "{events:?}");
    events
}

#[test]
fn damage_that_a_start_finds_is_published_once() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for text in ["one", "two"] {
        wire.record(&session, "user", text);
    }
    daemon.terminate();
    sandbox.remove_catalog();
    damage(&sandbox, &session, "one", |line| line.fill(b'x'));
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    for _ in 0..3 {
        assert_eq!(wire.records(&session).len(), 2);
    }
    let events = damage_events(&mut daemon.wire(), &session);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        (&events[0]["kind"], &events[0]["data"]["damagedRecords"]),
        (&json!("session-damaged"), &json!(1))
    );
}

#[test]
fn missing_blob_is_published_once_and_its_return_too() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", &"large ".repeat(20 << 10));
    let blobs = sandbox.log_path(&session).with_extension("blobs");
    let away = sandbox.home().join("away");
    std::fs::rename(&blobs, &away).unwrap();
    for _ in 0..3 {
        assert_eq!(wire.records(&session).len(), 1);
    }
    std::fs::rename(&away, &blobs).unwrap();
    assert_eq!(wire.records(&session).len(), 2);
    let events = damage_events(&mut daemon.wire(), &session);
    let kinds: Vec<&Value> = events.iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["session-damaged", "session-healed"]);
}

#[test]
fn file_that_grew_is_imported_after_a_snapshot_of_the_session() {
    let whole = export_of(12);
    // The lines before the first message are those of the file and of the session.
    let beginning =
        |n_messages: usize| whole.split_inclusive('\n').take(2 + n_messages).collect::<String>();
    let (_sandbox, _daemon, mut wire) = start();
    let import = |wire: &mut Wire, text: &str| {
        wire.ok("session.import", json!({ "data": text, "last": true }))
    };
    let session = import(&mut wire, &beginning(3))["session"]["sessionId"].clone();
    let session = session.as_str().unwrap();
    let listed = |wire: &mut Wire| {
        let listed = wire.ok("snapshot.list", json!({ "sessionId": session }));
        array(&listed["data"]).to_vec()
    };
    assert_eq!(listed(&mut wire), Vec::<Value>::new());
    for (n_messages, n_snapshots) in [(8, 1), (12, 2)] {
        let grown = import(&mut wire, &beginning(n_messages));
        assert_eq!(grown["session"]["messageCount"], n_messages, "{grown}");
        assert_eq!(listed(&mut wire).len(), n_snapshots);
        let again = import(&mut wire, &beginning(n_messages));
        assert_eq!(again["report"]["alreadyImported"], true, "{again}");
    }
    let snapshots = listed(&mut wire);
    assert!(snapshots.iter().all(|one| one["reason"] == "import"), "{snapshots:?}");
    let exported = wire.export(session, "jsonl");
    assert_eq!(import(&mut wire, &exported)["report"]["alreadyImported"], true);

    let first = snapshots.iter().min_by_key(|one| one["seq"].as_u64()).unwrap();
    let to = json!({ "sessionId": session, "snapshotId": first["snapshotId"] });
    wire.ok("snapshot.restore", to);
    let active = wire.ok("session.get", json!({ "sessionId": session, "branch": "active" }));
    let messages = array(&active["records"]).iter().filter(|one| one["type"] == "message").count();
    assert_eq!(messages, 3);
}

#[test]
fn import_continues_after_a_mark_between_its_records() {
    let text = export_of(12);
    let first: String = text.split_inclusive('\n').take(7).collect();
    let (sandbox, daemon, mut wire) = start();
    let import = |wire: &mut Wire, text: &str| {
        wire.ok("session.import", json!({ "data": text, "last": true }))
    };
    import(&mut wire, &first);
    daemon.terminate();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let whole = import(&mut wire, &text);
    assert_eq!(whole["session"]["messageCount"], 12, "{whole}");
    let session = whole["session"]["sessionId"].as_str().unwrap();
    assert_eq!(texts(&mut wire, session).len(), 12);
    let active = wire.ok("session.get", json!({ "sessionId": session, "branch": "active" }));
    assert_eq!(array(&active["records"]).len(), 14, "one path, and the snapshot");
    assert_eq!(import(&mut wire, &text)["report"]["alreadyImported"], true);
}
