//! Replies whose texts or lists have any size in logs of other programs: shortened, so that they fit into a frame.

use serde_json::{Value, json};

use crate::harness::{Wire, array, start};

/// Imports a log with a compaction of two checkpoints with summaries of this size, each shorter than a frame.
fn import_large_compaction(wire: &mut Wire, bytes: usize) -> String {
    let id = "0b6a7c1e-3f52-4c39-9d0e-6d1c2a9f4e77";
    let at = "2026-01-27T10:00:00.000Z";
    let checkpoint = |n: u8| {
        json!({ "id": format!("0b6a7c1e-3f52-4c39-9d0e-6d1c2a9f4e0{n}"), "level": 3, "from": 1, "to": 1,
            "summary": "s".repeat(bytes), "createdAt": at, "originalTokens": 9, "currentTokens": 9,
            "compressionCount": 1 })
    };
    let epoch = json!({ "strategy": "checkpointed", "cause": "compaction", "contextSize": 8192,
        "tokenizer": "t", "headTokens": 9, "head": [{ "as": "range", "from": 1, "to": 1 }] });
    let compaction = json!({ "from": 1, "to": 1, "tokensBefore": 9, "tokenizer": "t", "epoch": epoch,
        "checkpoints": [checkpoint(1), checkpoint(2)] });
    let message =
        json!({ "role": "user", "parts": [{ "type": "text", "text": "hi" }], "timestamp": at });
    let records = [
        json!({ "ollmExport": 1, "sessionId": id }),
        json!({ "seq": 0, "at": at, "type": "session", "session": { "sessionId": id, "startTime": at } }),
        json!({ "seq": 1, "parent": null, "at": at, "type": "message", "message": message }),
        json!({ "seq": 2, "parent": 1, "at": at, "type": "compaction", "compaction": compaction }),
    ];
    let text: String = records.iter().map(|record| format!("{record}\n")).collect();
    let (mut upload, mut rest) = (Value::Null, text.as_str());
    loop {
        let (data, after) = rest.split_at(rest.len().min(12 << 20));
        let mut params = json!({ "data": data, "last": after.is_empty() });
        if !upload.is_null() {
            params["uploadId"] = upload;
        }
        let result = wire.ok("session.import", params);
        if after.is_empty() {
            return result["session"]["sessionId"].as_str().unwrap().to_owned();
        }
        (upload, rest) = (result["uploadId"].clone(), after);
    }
}

#[test]
fn texts_of_an_import_that_exceed_a_frame_are_shortened_in_replies() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = import_large_compaction(&mut wire, 17 << 19);
    let params = json!({ "sessionId": session });
    let found = wire.ok("context.checkpoints", params.clone());
    assert_eq!(found["shortened"], true);
    let checkpoints = array(&found["checkpoints"]);
    assert_eq!(checkpoints.len(), 2);
    assert!(checkpoints.iter().all(|one| one["summary"].as_str().unwrap().ends_with('…')));
    let records = wire.records(&session);
    assert!(records[2]["sizeBytes"].as_u64().unwrap() > 17 << 20, "the record has it whole");
}

#[test]
fn environment_that_is_larger_than_any_system_passes_is_refused() {
    let (_sandbox, _daemon, mut wire) = start();
    let environment = |bytes: usize| json!({ "variables": { "A": "x".repeat(bytes) } });
    wire.ok("env.sanitize", environment((1 << 20) - 8));
    let error = wire.refused("env.sanitize", environment(1 << 20), "tooLarge");
    assert_eq!(
        (&error["data"]["field"], &error["data"]["limit"]),
        (&json!("variables"), &json!(1 << 20))
    );
}
