//! Records that are larger than a frame can carry are read in parts, and every export has them.

use serde_json::{Value, json};

use crate::harness::{Wire, start, text_message};

/// Reads the JSON of one record in parts.
fn record_in_parts(wire: &mut Wire, session: &str, seq: u64) -> (Value, usize) {
    let params = json!({ "sessionId": session, "seq": seq });
    let parts = wire.pages("session.getRecord", params);
    let text: String = parts.iter().map(|part| part["data"].as_str().unwrap()).collect();
    let last = parts.last().unwrap();
    assert_eq!((&last["done"], &last["total"]), (&json!(text.len()), &json!(text.len())));
    (serde_json::from_str(&text).unwrap(), parts.len())
}

#[test]
fn record_near_the_frame_limit_is_read_in_parts_and_exported() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "before");
    // The request is just below 16 MiB.
    let text = format!("\"q\"\n{}", "x".repeat((16 << 20) - 500));
    let request = text_message(&session, "user", &text);
    wire.ok("session.record", request);
    wire.record(&session, "user", "after");
    drop(wire);
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();

    let records = wire.records(&session);
    let seqs: Vec<&Value> = records.iter().map(|record| &record["seq"]).collect();
    assert_eq!(seqs, [0, 1, 2, 3]);
    assert_eq!(records[3]["message"]["parts"][0]["text"], "after");
    let stub = &records[2];
    assert_eq!(stub.get("message"), None, "the content is read in parts");
    assert!(stub["sizeBytes"].as_u64().unwrap() > text.len() as u64);
    // All formats are cut into parts by the same function; one of them is enough for a record of this size.
    let jsonl = wire.export(&session, "jsonl");
    let lines: Vec<Value> = jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"]["parts"][0]["text"] == text.as_str()));

    // The client reads the record in parts: it fits into no frame.
    let shown = sandbox.ctl(["sessions", "view", &session, "--json"]);
    assert!(shown.stdout.contains("after"));
    assert!(shown.stdout.contains(&text[4..]), "{} bytes", shown.stdout.len());
}

#[test]
fn part_of_a_record_is_refused_for_an_unknown_record_or_cursor() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "small");
    let (record, n_parts) = record_in_parts(&mut wire, &session, 1);
    assert_eq!((record["message"]["parts"][0]["text"].as_str(), n_parts), (Some("small"), 1));
    let part =
        |seq: u64, cursor: &str| json!({ "sessionId": session, "seq": seq, "cursor": cursor });
    wire.refused("session.getRecord", part(9, "0"), "recordNotFound");
    for cursor in ["1073741824", "-1", "next", ""] {
        wire.refused("session.getRecord", part(1, cursor), "invalidParams");
    }
}
