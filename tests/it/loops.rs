//! Loop detection over the socket: what a client is told, what is in the log, what a restart changes.

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire};

/// Records a tool call; the answer.
#[track_caller]
fn call(wire: &mut Wire, session: &str, tool: &str, args: &Value) -> Value {
    let call = json!({ "id": "c", "name": tool, "args": args, "result": { "llmContent": "ok" } });
    wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }))
}

#[test]
fn a_loop_is_told_once_survives_a_restart_and_is_reset() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "Read the file.");
    let of = json!({ "sessionId": session });
    let _subscription = wire.subscribe(json!({ "sessionId": session }));
    let args = json!({ "path": "a.rs", "range": { "from": 1, "to": 9 } });
    let same = json!({ "range": { "to": 9.0, "from": 1 }, "path": "a.rs" });
    for args in [&args, &same] {
        assert_eq!(call(&mut wire, &session, "read_file", args).get("loop"), None);
    }
    let found = call(&mut wire, &session, "read_file", &args)["loop"].clone();
    assert_eq!(found, json!({ "kind": "call", "tools": ["read_file"], "count": 3 }));
    assert_eq!(call(&mut wire, &session, "read_file", &args)["loop"], found);
    let _seq = wire.record(&session, "assistant", "I read on.");
    let kinds: Vec<Value> = wire.events_until("message-recorded");
    let loops: Vec<&Value> =
        kinds.iter().filter(|event| event["kind"] == "loop-detected").collect();
    assert_eq!(loops.len(), 1, "{kinds:?}");
    assert_eq!(loops[0]["data"], json!({ "pattern": found }));
    assert_eq!(loops[0]["sessionId"], session.as_str());
    daemon.kill9();

    let (_daemon, mut wire) = sandbox.served();
    let status = wire.ok("loop.status", of.clone());
    assert_eq!(status["detected"], found);
    assert_eq!((&status["turnsSinceUser"], &status["repeatThreshold"]), (&json!(1), &json!(3)));
    let recent = status["recent"].as_array().unwrap();
    assert_eq!(recent.len(), 4, "{status}");
    assert!(
        recent.iter().all(|call| call["call"] == recent[0]["call"] && call["tool"] == "read_file")
    );
    let reset = wire.ok("loop.reset", of.clone());
    assert_eq!((reset.get("detected"), &reset["recent"]), (None, &json!([])));
    assert_eq!(wire.ok("loop.reset", of), reset, "a second one changes nothing");
    let marks: Vec<Value> =
        wire.records(&session).into_iter().filter(|record| record["type"] == "loop").collect();
    assert_eq!(marks.len(), 2, "{marks:?}");
    assert_eq!((&marks[0]["loop"], &marks[1]["loop"]), (&json!({ "pattern": found }), &json!({})));
    for repetition in 0..3 {
        let told = call(&mut wire, &session, "read_file", &args);
        assert_eq!(told.get("loop").is_some(), repetition == 2, "{told}");
    }
}

#[test]
fn a_changed_configuration_holds_for_the_next_call() {
    let sandbox = Sandbox::new();
    sandbox.write_config("loopDetection: { enabled: false }\n");
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    for _ in 0..5 {
        assert_eq!(call(&mut wire, &session, "ls", &json!({})).get("loop"), None);
    }
    sandbox.write_config("loopDetection: { enabled: true, repeatThreshold: 6, maxTurns: 7 }\n");
    let _reloaded = wire.ok("daemon.reload", json!({}));
    let status = wire.ok("loop.status", json!({ "sessionId": session }));
    assert_eq!((&status["enabled"], &status["maxTurns"]), (&json!(true), &json!(7)));
    let told = call(&mut wire, &session, "ls", &json!({}));
    assert_eq!(told["loop"]["count"], 6, "{told}");
    let missing = json!({ "sessionId": "01890000-0000-7000-8000-000000000000" });
    let _error = wire.refused("loop.status", missing.clone(), "sessionNotFound");
    let _error = wire.refused("loop.reset", missing, "sessionNotFound");
}

#[test]
fn a_person_sees_a_loop_and_resets_it() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    for tool in ["edit", "test", "edit", "test"] {
        let _told = call(&mut wire, &session, tool, &json!({}));
    }
    let status = sandbox.ctl(["loop", "status", &session]).ok();
    assert!(status.contains("loop: edit, test went round 2 times"), "{status}");
    let nobody = sandbox.ctl(["loop", "reset"]).fails(3);
    assert!(nobody.contains("try: ollmctl loop reset --session last"), "{nobody}");
    let reset = sandbox.ctl(["loop", "reset", "--session", "last"]).ok();
    assert!(reset.starts_with("no loop\n"), "{reset}");
    assert_eq!(sandbox.ctl(["--json", "loop", "status", "last"]).json()["recent"], json!([]));
}
