//! `loop.*`: detected repetitions in responses, events and the log, after a restart, and for a person.

use serde_json::{Value, json};

use crate::harness::{UNKNOWN_SESSION, Wire, array, assert_fields, start, start_with_config};

/// Records a tool call and returns the result.
#[track_caller]
fn record_call(wire: &mut Wire, session: &str, tool: &str, args: &Value) -> Value {
    let call = json!({ "id": "c", "name": tool, "args": args, "result": { "llmContent": "ok" } });
    wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }))
}

#[test]
fn loop_is_one_event_survives_a_kill_and_is_reset() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "Read the file.");
    let params = json!({ "sessionId": session });
    wire.subscribe(params.clone());
    let args = json!({ "path": "a.rs", "range": { "from": 1, "to": 9 } });
    let same = json!({ "range": { "to": 9.0, "from": 1 }, "path": "a.rs" });
    for args in [&args, &same] {
        assert_eq!(record_call(&mut wire, &session, "read_file", args).get("loop"), None);
    }
    let found = record_call(&mut wire, &session, "read_file", &args)["loop"].clone();
    assert_eq!(found, json!({ "kind": "call", "tools": ["read_file"], "count": 3 }));
    assert_eq!(record_call(&mut wire, &session, "read_file", &args)["loop"], found);
    wire.record(&session, "assistant", "I read on.");
    let events: Vec<Value> = wire.events_until("message-recorded");
    let loops: Vec<&Value> =
        events.iter().filter(|event| event["kind"] == "loop-detected").collect();
    assert_eq!(loops.len(), 1, "{events:?}");
    assert_eq!(loops[0]["data"], json!({ "pattern": found }));
    assert_eq!(loops[0]["sessionId"], session.as_str());
    daemon.kill();

    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let status = wire.ok("loop.status", params.clone());
    assert_eq!(status["detected"], found);
    assert_fields(&status, json!({ "turnsSinceUser": 1, "repeatThreshold": 3 }));
    let recent = array(&status["recent"]);
    assert_eq!(recent.len(), 4, "{status}");
    assert!(
        recent.iter().all(|call| call["call"] == recent[0]["call"] && call["tool"] == "read_file")
    );
    let reset = wire.ok("loop.reset", params.clone());
    assert_eq!((reset.get("detected"), &reset["recent"]), (None, &json!([])));
    assert_eq!(wire.ok("loop.reset", params), reset, "a second reset changes nothing");
    let records: Vec<Value> =
        wire.records(&session).into_iter().filter(|record| record["type"] == "loop").collect();
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(
        (&records[0]["loop"], &records[1]["loop"]),
        (&json!({ "pattern": found }), &json!({}))
    );
    for repetition in 0..3 {
        let result = record_call(&mut wire, &session, "read_file", &args);
        assert_eq!(result.get("loop").is_some(), repetition == 2, "{result}");
    }
}

#[test]
fn changed_configuration_applies_to_the_next_call() {
    let (sandbox, _daemon, mut wire) = start_with_config("loopDetection: { enabled: false }\n");
    let session = wire.create(json!({}));
    for _ in 0..5 {
        assert_eq!(record_call(&mut wire, &session, "ls", &json!({})).get("loop"), None);
    }
    sandbox.write_config("loopDetection: { enabled: true, repeatThreshold: 6, maxTurns: 7 }\n");
    wire.ok("daemon.reload", json!({}));
    let status = wire.ok("loop.status", json!({ "sessionId": session }));
    assert_fields(&status, json!({ "enabled": true, "maxTurns": 7 }));
    let result = record_call(&mut wire, &session, "ls", &json!({}));
    assert_eq!(result["loop"]["count"], 6, "{result}");
    let unknown = json!({ "sessionId": UNKNOWN_SESSION });
    wire.refused("loop.status", unknown.clone(), "sessionNotFound");
    wire.refused("loop.reset", unknown, "sessionNotFound");
}

#[test]
fn loop_commands_print_and_reset_the_loop() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for tool in ["edit", "test", "edit", "test"] {
        record_call(&mut wire, &session, tool, &json!({}));
    }
    let status = sandbox.ctl(["loop", "status", &session]).ok();
    assert!(status.contains("loop: edit, test were called in turn 2 times"), "{status}");
    let error = sandbox.ctl(["loop", "reset"]).fails(3);
    assert!(error.contains("try: ollmctl loop reset --session last"), "{error}");
    let reset = sandbox.ctl(["loop", "reset", "--session", "last"]).ok();
    assert!(reset.starts_with("no loop\n"), "{reset}");
    assert_eq!(sandbox.ctl(["--json", "loop", "status", "last"]).json()["recent"], json!([]));
}
