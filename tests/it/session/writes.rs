//! The files that tool calls wrote: recorded, kept within limits, and never taken from an import.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire, array, start};

/// Returns a tool call with writes.
fn call(session: &str, writes: Value) -> Value {
    json!({ "sessionId": session, "toolCall": {
        "id": "c1", "name": "write_file", "result": { "llmContent": "ok" }, "writes": writes } })
}

/// Returns the names of the blobs of a session.
fn blobs(sandbox: &Sandbox, session: &str) -> Vec<String> {
    let dir = sandbox.home().join(format!("sessions/{session}.blobs"));
    let Ok(files) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn recorded(wire: &mut Wire, session: &str) -> Value {
    let records = wire.records(session);
    records.iter().rev().find_map(|record| record.get("toolCall")).unwrap().clone()
}

#[test]
fn contents_before_a_call_become_private_blobs_each_once() {
    let (sandbox, daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": project }));
    let old = json!({ "text": "old\n" });
    let writes = json!([
        { "path": "a.rs", "before": old, "after": { "text": "new\n" } },
        { "path": "b.rs", "before": { "base64": "b2xkCg==" }, "after": "absent",
            "mode": { "before": 420 } },
        { "path": "src/c.rs", "before": "absent", "after": { "text": "c" }, "renamedFrom": "b.rs" },
        { "path": "d", "before": "unknown", "after": "unknown" },
    ]);
    let reply = wire.ok("session.recordToolCall", call(&session, writes));
    assert_eq!(reply.get("notKept"), None, "{reply}");
    let [blob] = blobs(&sandbox, &session).try_into().unwrap();
    let path = sandbox.home().join(format!("sessions/{session}.blobs/{blob}"));
    assert_eq!(std::fs::read(&path).unwrap(), b"old\n");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let check = |wire: &mut Wire| {
        let found = recorded(wire, &session);
        assert_eq!(found["writesRoot"], project.as_str());
        assert_eq!(found["writes"][0]["before"], json!({ "hash": blob }), "{found}");
        assert_eq!(found["writes"][1]["before"], json!({ "hash": blob }));
        assert_eq!(found["writes"][2]["before"], "absent");
        assert_eq!(found["writes"][3]["after"], "unknown");
    };
    check(&mut wire);
    daemon.kill();
    sandbox.remove_catalog();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    check(&mut wire);

    // A content that the session has needs only its hash.
    let again = json!([{ "path": "a.rs", "before": { "hash": blob }, "after": { "hash": blob } }]);
    let reply = wire.ok("session.recordToolCall", call(&session, again));
    assert_eq!(reply.get("notKept"), None, "{reply}");
    wire.ok("session.delete", json!({ "sessionId": session }));
    assert!(blobs(&sandbox, &session).is_empty());
}

#[test]
fn contents_over_a_limit_become_unknown_and_the_reply_says_so() {
    let sandbox = Sandbox::new();
    sandbox.write_config("snapshots: { fileLimit: 10, fileQuota: 15 }\n");
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let project = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": project }));
    let write = |path: &str, text: &str| json!({ "path": path, "before": { "text": text }, "after": "absent" });
    let writes =
        json!([write("big", "12345678901"), write("a", "1234567890"), write("b", "123456")]);
    let reply = wire.ok("session.recordToolCall", call(&session, writes));
    let not_kept = json!({ "count": 2, "files": [
        { "path": "big", "reason": "fileLimit" }, { "path": "b", "reason": "fileQuota" } ] });
    assert_eq!(reply["notKept"], not_kept, "{reply}");
    let states: Vec<_> = array(&recorded(&mut wire, &session)["writes"])
        .iter()
        .map(|write| write["before"] == "unknown")
        .collect();
    assert_eq!(states, [true, false, true]);
    assert_eq!(blobs(&sandbox, &session).len(), 1);
    let missing = json!([{ "path": "c", "before": { "hash": "0".repeat(64) }, "after": "absent" }]);
    let reply = wire.ok("session.recordToolCall", call(&session, missing));
    assert_eq!(reply["notKept"]["files"][0]["reason"], "missing");
    let without = wire.create(json!({}));
    let reply = wire.ok("session.recordToolCall", call(&without, json!([write("a", "1")])));
    assert_eq!(reply["notKept"]["files"][0]["reason"], "noProject");
}

#[test]
fn kept_contents_are_returned_in_parts() {
    let sandbox = Sandbox::new();
    sandbox.write_config("snapshots: { fileLimit: 16MiB }\n");
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let project = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": project }));
    let keep = |wire: &mut Wire, before: Value| {
        let writes = json!([{ "path": "a.rs", "before": before, "after": "absent" }]);
        wire.ok("session.recordToolCall", call(&session, writes));
        let hash = &recorded(wire, &session)["writes"][0]["before"]["hash"];
        hash.as_str().unwrap().to_owned()
    };
    let hash = keep(&mut wire, json!({ "text": "old\n" }));
    let undone = wire.ok("session.undo", json!({ "sessionId": session, "files": "preview" }));
    let planned = json!({ "path": "a.rs", "status": "putBack", "action": "create", "hash": hash });
    assert_eq!(undone["files"]["files"], json!([planned]));
    let check = |wire: &mut Wire, before: Value, expect: &str, n_parts: usize| {
        let hash = keep(wire, before);
        let params = json!({ "sessionId": session, "hash": hash });
        let parts = wire.pages("session.getFileContent", params);
        let base64: String = parts.iter().map(|part| part["data"].as_str().unwrap()).collect();
        assert!(base64 == expect && parts.len() == n_parts, "{} parts", parts.len());
        let last = parts.last().unwrap();
        assert_eq!(last["done"], last["total"]);
    };
    check(&mut wire, json!({ "text": "old\n" }), "b2xkCg==", 1);
    check(&mut wire, json!({ "text": "" }), "", 1);
    check(&mut wire, json!({ "base64": "AP8=" }), "AP8=", 1);
    let large = json!({ "text": "a".repeat(10_000_002) });
    check(&mut wire, large, &"YWFh".repeat(3_333_334), 2);
    let params = |hash: &str| json!({ "sessionId": session, "hash": hash });
    let mut wrong = params(&hash);
    wrong["cursor"] = json!("1");
    wire.refused("session.getFileContent", wrong, "invalidParams");
    wire.refused("session.getFileContent", params(&"0".repeat(64)), "contentNotFound");
    wire.refused("session.getFileContent", params("../../config.yaml"), "invalidParams");
    let blob = sandbox.home().join(format!("sessions/{session}.blobs/{hash}"));
    std::fs::write(blob, "new\n").unwrap();
    wire.refused("session.getFileContent", params(&hash), "corrupted");
    let none = json!({ "sessionId": "00000000-0000-7000-8000-000000000000", "hash": hash });
    wire.refused("session.getFileContent", none, "sessionNotFound");
}

#[test]
fn invalid_writes_are_refused_and_nothing_is_recorded() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": project }));
    let write = |path: &str| json!({ "path": path, "before": "absent", "after": "absent" });
    for path in ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a", "a\u{0}b"] {
        wire.refused(
            "session.recordToolCall",
            call(&session, json!([write(path)])),
            "invalidParams",
        );
    }
    let wrong = [
        json!([write("a"), write("a")]),
        json!([{ "path": "a", "before": "gone", "after": "absent" }]),
        json!([{ "path": "a", "before": { "base64": "%%" }, "after": "absent" }]),
        json!([{ "path": "a", "before": { "hash": "abc" }, "after": "absent" }]),
        json!([{ "path": "a", "before": "absent", "after": "absent", "mode": { "after": 0o4755 } }]),
        json!([{ "path": "a", "before": "absent", "after": "absent", "time": 3 }]),
        json!([{ "path": "a", "before": "absent", "after": "unknown", "renamedFrom": "b" }]),
    ];
    for writes in wrong {
        wire.refused("session.recordToolCall", call(&session, writes), "invalidParams");
    }
    let long = call(&session, json!([write(&"a".repeat(5000))]));
    wire.refused("session.recordToolCall", long, "tooLarge");
    assert_eq!(wire.session(&session)["toolCallCount"], 0);
}

#[test]
fn import_and_fork_do_not_take_the_contents_of_files() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": project }));
    wire.record(&session, "user", "write");
    let writes = json!([{ "path": "a", "before": { "text": "old" }, "after": { "text": "new" } }]);
    wire.ok("session.recordToolCall", call(&session, writes));
    let fork = wire.ok("session.fork", json!({ "sessionId": session }));
    let fork = fork["session"]["sessionId"].as_str().unwrap().to_owned();
    assert!(blobs(&sandbox, &fork).is_empty(), "a fork puts no file of its parent back");
    let export = wire.export(&session, "jsonl");
    wire.ok("session.delete", json!({ "sessionId": session }));
    let imported = wire.ok("session.import", json!({ "data": export, "last": true }));
    let imported = imported["session"]["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(recorded(&mut wire, &imported).get("writes"), None);
}
