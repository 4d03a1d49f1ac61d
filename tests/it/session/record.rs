//! Recording and reading: drafts, idempotency keys, pages, and records that survive a kill unchanged.

use serde_json::{Value, json};

use super::{full_session, session_files, text_of};
use crate::harness::{Wire, array, assert_fields, start, text_message};

#[test]
fn draft_has_no_file_before_first_record() {
    let (sandbox, daemon, mut wire) = start();
    let created = wire.ok("session.create", json!({ "title": "Plans" }))["session"].clone();
    let session = created["sessionId"].as_str().unwrap();
    assert_fields(&created, json!({ "draft": true, "status": "active" }));
    assert_eq!(session_files(&sandbox), Vec::<String>::new());

    let recorded = wire.ok("session.record", text_message(session, "user", "hello"));
    assert_eq!(recorded["seq"], 1, "the header has seq 0");
    assert!(recorded["tokens"].as_u64().unwrap() > 0);
    assert_eq!(recorded["countKind"], "estimated");
    assert_eq!(recorded["usage"]["messageCount"], 1);
    assert!(sandbox.log_path(session).is_file());

    let unused_draft = wire.create(json!({}));
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.ok("session.get", json!({ "sessionId": session }));
    wire.refused("session.get", json!({ "sessionId": unused_draft }), "sessionNotFound");
}

#[test]
fn retried_key_is_duplicate_and_key_with_other_payload_is_conflict() {
    let (sandbox, daemon, mut wire) = start();
    let created = wire.ok("session.create", json!({ "title": "a", "key": "k1" }));
    let again = wire.ok("session.create", json!({ "title": "a", "key": "k1" }));
    assert_eq!(created["session"]["sessionId"], again["session"]["sessionId"]);
    wire.refused("session.create", json!({ "title": "b", "key": "k1" }), "conflict");
    let session = created["session"]["sessionId"].as_str().unwrap();

    let mut params = text_message(session, "user", "once");
    params["key"] = json!("k2");
    let first = wire.ok("session.record", params.clone());
    assert_eq!(first.get("duplicate"), None);
    let check = |wire: &mut Wire| {
        let retried = wire.ok("session.record", params.clone());
        assert_eq!(retried["duplicate"], true);
        assert_fields(&retried, json!({ "seq": first["seq"], "at": first["at"] }));
        let mut other = text_message(session, "user", "twice");
        other["key"] = json!("k2");
        wire.refused("session.record", other, "conflict");
        assert_eq!(wire.records(session).len(), 2);
    };
    check(&mut wire);
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    check(&mut wire);
    let again = wire.ok("session.create", json!({ "title": "a", "key": "k1" }));
    assert_eq!(
        again["session"]["sessionId"], session,
        "the key of a created session is known after a restart"
    );
}

#[test]
fn records_are_read_back_unchanged_after_kill() {
    let (sandbox, daemon, mut wire) = start();
    let project = sandbox.project_dir("tool");
    let session = full_session(&mut wire, &project);
    let check = |wire: &mut Wire| {
        let records = wire.records(&session);
        let kinds: Vec<&str> =
            records.iter().map(|record| record["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "session",
                "message",
                "message",
                "toolCall",
                "custom",
                "snapshot",
                "modeChange",
                "message"
            ]
        );
        for (at, record) in records.iter().enumerate() {
            assert_eq!(record["seq"], at);
        }
        assert_eq!(text_of(&records[1]), "How do I reverse a list? <b>&amp; \u{1b}[31mred 世界");
        let answer = &records[2]["message"];
        assert_eq!(
            answer["parts"][2]["args"],
            json!({ "path": "a.py", "deep": [1, { "x": null }] })
        );
        assert_eq!(answer["timestamp"], "2026-01-27T10:00:00.000Z");
        assert_eq!(answer["finishReason"], "tool_calls");
        assert_eq!(records[3]["toolCall"]["result"]["displayContent"], "1 line");
        assert_eq!(records[4]["custom"]["data"], json!({ "from": 1, "to": [2, 3] }));
        let changed = &records[6]["modeChange"];
        assert_fields(changed, json!({ "from": "developer", "to": "planning" }));
        assert_eq!(changed["confidence"], 0.75);
        let about = wire.session(&session);
        assert_fields(
            &about,
            json!({
                "messageCount": 3, "toolCallCount": 1, "mode": "planning", "model": "qwen3:8b",
                "projectPath": project, "projectName": "tool",
            }),
        );
        assert_eq!(about["projectHash"].as_str().unwrap().len(), 16);
        assert_eq!(about["metadata"], json!({ "editor": "vim", "depth": { "n": 1 } }));
        assert!(
            about["title"].as_str().unwrap().starts_with("How do I reverse a list?"),
            "{about}"
        );
        let tokens = |record: &Value| match record["type"].as_str() {
            Some("message" | "toolCall") => record["tokens"].as_u64().unwrap_or_default(),
            _ => 0,
        };
        let sum: u64 = records.iter().map(tokens).sum();
        assert_eq!(about["tokenCount"], sum, "the total is the sum of the records");
        about
    };
    let live = check(&mut wire);
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let replayed = check(&mut wire);
    assert_eq!(live, replayed, "a replay and the live session have the same state");
}

#[test]
fn get_returns_pages_from_either_end() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for n in 1..=30 {
        wire.record(&session, if n % 2 == 1 { "user" } else { "assistant" }, &format!("m{n}"));
    }
    let mut page = |from: Value, limit: Value| {
        let page =
            wire.ok("session.get", json!({ "sessionId": session, "from": from, "limit": limit }));
        let seqs: Vec<u64> =
            array(&page["records"]).iter().map(|record| record["seq"].as_u64().unwrap()).collect();
        (seqs, page.get("nextFrom").cloned())
    };
    assert_eq!(page(json!(0), json!(3)), (vec![0, 1, 2], Some(json!(3))));
    assert_eq!(page(json!(28), json!(10)), (vec![28, 29, 30], None));
    assert_eq!(page(json!(-2), Value::Null), (vec![29, 30], None));
    assert_eq!(page(json!(-31), json!(1)), (vec![0], Some(json!(1))));
    assert_eq!(page(json!(-1000), json!(1)), (vec![0], Some(json!(1))));
    assert_eq!(page(json!(31), Value::Null), (vec![], None));
    let resumed = wire.ok("session.resume", json!({ "sessionId": session, "limit": 4 }));
    let texts: Vec<&str> = array(&resumed["records"]).iter().map(text_of).collect();
    assert_eq!(texts, ["m27", "m28", "m29", "m30"]);
    for limit in [0, 1001] {
        wire.refused(
            "session.get",
            json!({ "sessionId": session, "limit": limit }),
            "invalidParams",
        );
    }
}

#[test]
fn page_of_large_records_fits_into_frame() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let text = "z".repeat(3 << 20);
    for _ in 0..8 {
        wire.record(&session, "user", &text);
    }
    let page = wire.ok("session.get", json!({ "sessionId": session }));
    assert!(page["nextFrom"].is_i64(), "24 MiB need more than one page");
    let records = wire.records(&session);
    assert_eq!(records.len(), 9);
    assert!(records[1..].iter().all(|record| text_of(record).len() == text.len()));
}

#[test]
fn mode_change_during_concurrent_recording_follows_snapshot_of_same_leaf() {
    let (_sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut other = daemon.wire();
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| {
            (0..100).for_each(|n| {
                other.record(&session, "user", &format!("message {n}"));
            });
        });
        for n in 0..30 {
            let mode = format!("mode{n}");
            let changed = wire.ok("session.setMode", json!({ "sessionId": session, "mode": mode }));
            assert_eq!(changed["session"]["mode"], mode.as_str());
        }
        recording.join().unwrap();
    });
    let records = wire.records(&session);
    let (mut leaf, mut mode, mut n_changes) = (Value::Null, Value::Null, 0);
    for record in &records {
        match record["type"].as_str().unwrap() {
            "snapshot" => assert_eq!(record["snapshot"]["leaf"], leaf, "{record}"),
            "modeChange" => {
                let change = &record["modeChange"];
                assert_eq!(change["from"], mode, "{record}");
                (leaf, mode) = (record["seq"].clone(), change["to"].clone());
                n_changes += 1;
            }
            "message" => leaf = record["seq"].clone(),
            _ => {}
        }
    }
    assert_eq!(n_changes, 30);
}
