//! `goal.*`: changes by clients and by markers in messages, their records, and what a restart finds.

use serde_json::{Value, json};

use crate::harness::{
    Answer, FakeOllama, Fault, ModelSession, Sandbox, UNKNOWN_SESSION, Wire, array, assert_fields,
    start, text_message,
};

/// Calls a method for the goals of a session.
#[track_caller]
fn goal(wire: &mut Wire, session: &str, method: &str, mut params: Value) -> Value {
    params["sessionId"] = json!(session);
    wire.ok(method, params)
}

/// Returns the active goal.
#[track_caller]
fn active_goal(wire: &mut Wire, session: &str) -> Option<Value> {
    let listed = goal(wire, session, "goal.list", json!({ "status": "active" }));
    let data = array(&listed["data"]);
    assert!(data.len() <= 1, "{listed}");
    data.first().cloned()
}

fn records_of_type<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

#[test]
fn goal_changes_are_recorded_and_survive_a_kill() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let params = json!({ "sessionId": session, "description": "x" });
    wire.refused("goal.addCheckpoint", params, "goalNotFound");
    wire.subscribe(json!({ "sessionId": session }));
    let checkpoints = json!(["Design  the\nflow"]);
    let params =
        json!({ "description": "Implement auth", "priority": "high", "checkpoints": checkpoints });
    let first = goal(&mut wire, &session, "goal.create", params)["goal"].clone();
    assert_fields(&first, json!({ "status": "active", "source": "client" }));
    assert_eq!(first["checkpoints"][0]["description"], "Design the flow", "joined to one line");
    let event = wire.events_until("goal-updated").pop().unwrap();
    assert_eq!(
        event["data"],
        json!({ "source": "client", "actions": ["create", "addCheckpoint"] })
    );
    assert_eq!(event["seq"], 1);

    let added =
        goal(&mut wire, &session, "goal.addCheckpoint", json!({ "description": "Add login" }));
    let checkpoint = added["checkpointId"].clone();
    let done = json!({ "checkpointId": checkpoint, "status": "completed" });
    let done = goal(&mut wire, &session, "goal.updateCheckpoint", done);
    assert_eq!(done["goal"]["checkpoints"][1]["status"], "completed");
    assert!(done["goal"]["checkpoints"][1].get("completedAt").is_some());
    let decided = json!({ "description": "Use JWT", "kind": "architecture" });
    let decision = goal(&mut wire, &session, "goal.addDecision", decided)["decisionId"].clone();
    let locked = goal(&mut wire, &session, "goal.lockDecision", json!({ "decisionId": decision }));
    assert_eq!(locked["goal"]["decisions"][0]["locked"], true);
    let again = goal(&mut wire, &session, "goal.lockDecision", json!({ "decisionId": decision }));
    assert_eq!(again.get("seq"), None, "a locked decision is unchanged");
    let instead = json!({ "description": "Use cookies", "supersedes": decision });
    let instead = goal(&mut wire, &session, "goal.addDecision", instead);
    assert_eq!(instead["goal"]["decisions"][0]["supersededBy"], instead["decisionId"]);
    let file = json!({ "path": "src/login.rs", "action": "created", "type": "file" });
    let _file = goal(&mut wire, &session, "goal.addArtifact", file);
    let next = goal(&mut wire, &session, "goal.setNextSteps", json!({ "nextSteps": ["Test it"] }));
    let whole = next["goal"].clone();
    assert_eq!(
        (&whole["nextSteps"], &whole["artifacts"][0]["path"]),
        (&json!(["Test it"]), &json!("src/login.rs"))
    );

    let second =
        goal(&mut wire, &session, "goal.create", json!({ "description": "Ship it" }))["goal"]
            .clone();
    let paused = goal(&mut wire, &session, "goal.list", json!({ "status": "paused" }));
    assert_eq!(paused["data"][0]["id"], first["id"]);
    let params = json!({ "goalId": first["id"], "status": "active" });
    let resumed = goal(&mut wire, &session, "goal.update", params);
    assert_eq!(resumed["goal"], whole, "a resumed goal is unchanged");
    daemon.kill();

    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(active_goal(&mut wire, &session), Some(whole));
    let page = goal(&mut wire, &session, "goal.list", json!({ "limit": 1 }));
    assert_eq!((&page["data"][0]["id"], &page["nextCursor"]), (&second["id"], &second["id"]));
    let page =
        goal(&mut wire, &session, "goal.list", json!({ "limit": 1, "cursor": page["nextCursor"] }));
    assert_eq!((&page["data"][0]["id"], page.get("nextCursor")), (&first["id"], None));
}

#[test]
fn invalid_params_and_retried_keys_change_nothing() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let params = json!({ "sessionId": session, "description": "Ship it", "key": "k" });
    let first = wire.ok("goal.create", params.clone());
    let retried = wire.ok("goal.create", params);
    assert_fields(&retried, json!({ "goal": first["goal"], "duplicate": true }));
    assert_eq!(retried["seq"], first["seq"]);
    let other = json!({ "sessionId": session, "description": "Another", "key": "k" });
    wire.refused("goal.create", other, "conflict");
    let step = json!({ "sessionId": session, "description": "Add login" });
    let added = wire.ok("goal.addCheckpoint", step);
    let duplicate = json!({ "sessionId": session, "description": "add LOGIN!" });
    let error = wire.refused("goal.addCheckpoint", duplicate, "conflict");
    assert_eq!(error["data"]["holder"], added["checkpointId"]);
    let records = wire.records(&session).len();
    let unknown = UNKNOWN_SESSION;
    for (method, params, kind) in [
        ("goal.create", json!({ "description": " \n" }), "invalidParams"),
        ("goal.create", json!({ "description": "x".repeat(5000) }), "tooLarge"),
        ("goal.create", json!({ "description": "x", "priority": "urgent" }), "invalidParams"),
        ("goal.update", json!({}), "invalidParams"),
        ("goal.update", json!({ "goalId": unknown, "status": "paused" }), "goalNotFound"),
        (
            "goal.updateCheckpoint",
            json!({ "checkpointId": unknown, "status": "pending" }),
            "goalNotFound",
        ),
        ("goal.lockDecision", json!({ "decisionId": unknown }), "goalNotFound"),
        ("goal.addDecision", json!({ "description": "x", "supersedes": unknown }), "goalNotFound"),
        ("goal.addDecision", json!({ "description": "x", "lock": true }), "invalidParams"),
        ("goal.applyMarkers", json!({}), "invalidParams"),
        ("goal.applyMarkers", json!({ "seq": 99 }), "recordNotFound"),
        ("goal.list", json!({ "limit": 0 }), "invalidParams"),
        ("goal.list", json!({ "cursor": unknown }), "invalidParams"),
    ] {
        let mut params = params;
        params["sessionId"] = json!(session);
        wire.refused(method, params, kind);
    }
    let missing = json!({ "sessionId": unknown, "description": "x" });
    wire.refused("goal.create", missing, "sessionNotFound");
    assert_eq!(wire.records(&session).len(), records);
}

#[test]
fn concurrent_clients_add_an_equal_checkpoint_once() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let _goal = goal(&mut wire, &session, "goal.create", json!({ "description": "Ship it" }));
    let added: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut wire = Wire::connect(&sandbox.socket());
                    let step = json!({ "sessionId": session, "description": "Add login" });
                    usize::from(wire.call("goal.addCheckpoint", step).is_ok())
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(added, 1);
    assert_eq!(
        active_goal(&mut wire, &session).unwrap()["checkpoints"].as_array().unwrap().len(),
        1
    );
    assert_eq!(records_of_type(&wire.records(&session), "goal").len(), 2);
}

#[test]
fn markers_are_recorded_with_their_message_and_change_the_goal() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "[GOAL] a user says");
    wire.record(&session, "assistant", "[CHECKPOINT] for no goal - COMPLETED");
    wire.record(&session, "assistant", "```\n[GOAL] in a fence\n```\n> [GOAL] quoted");
    assert!(records_of_type(&wire.records(&session), "goal").is_empty());
    let mut follower = Wire::connect(&sandbox.socket());
    follower.subscribe(json!({ "sessionId": session }));
    // Pipelined: the markers of the second message belong to the goal of the first one.
    let texts = [
        "[GOAL] Implement auth\n[CHECKPOINT] Add login - IN PROGRESS\n[DECISION] Use JWT - LOCKED",
        "[CHECKPOINT] add login \u{2014} completed\n[NEXT] Write tests",
    ];
    for text in texts {
        wire.request("session.record", text_message(&session, "assistant", text));
    }
    // Responses come in any order, seqs are in the order of the calls.
    let mut seqs =
        [wire.frame(), wire.frame()].map(|frame| frame.unwrap()["result"]["seq"].clone());
    seqs.sort_by_key(Value::as_u64);
    let found = active_goal(&mut wire, &session).unwrap();
    assert_fields(&found, json!({ "description": "Implement auth", "source": "marker" }));
    assert_eq!(found["checkpoints"][0]["status"], "completed");
    assert_eq!(found["nextSteps"], json!(["Write tests"]));
    let records = wire.records(&session);
    let changes = records_of_type(&records, "goal");
    for (change, seq) in changes.iter().zip(&seqs) {
        assert_eq!((&change["goal"]["messageSeq"], &change["parent"]), (seq, seq));
    }
    let event = follower.events_until("goal-updated").pop().unwrap();
    let actions = json!(["mark.goal", "mark.checkpoint", "mark.decision"]);
    assert_eq!(
        event["data"],
        json!({ "source": "marker", "actions": actions, "messageSeq": seqs[0] })
    );

    let decision = found["decisions"][0]["id"].clone();
    wire.record(&session, "assistant", "[DECISION] use jwt");
    assert_eq!(active_goal(&mut wire, &session).unwrap()["decisions"], found["decisions"]);
    let instead = json!({ "description": "Use cookies", "supersedes": decision });
    let _decided = goal(&mut wire, &session, "goal.addDecision", instead);
    let before = active_goal(&mut wire, &session).unwrap();
    let applied = goal(&mut wire, &session, "goal.applyMarkers", json!({ "seq": seqs[0] }));
    assert_eq!(applied["applied"], 1, "the other markers change nothing");
    assert_eq!(wire.records(&session).last().unwrap()["seq"], applied["seq"]);
    let reopened = applied["goal"]["checkpoints"][0]["status"].clone();
    assert_eq!(reopened, "in-progress", "the old marker is applied again");
    assert_eq!(applied["goal"]["decisions"], before["decisions"]);
    let applied = goal(&mut wire, &session, "goal.applyMarkers", json!({ "text": "no markers" }));
    assert_fields(&applied, json!({ "markers": [], "applied": 0 }));
    let before = active_goal(&mut wire, &session);
    assert!(daemon.terminate().success());
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(active_goal(&mut wire, &session), before, "a restart finds the same goal");
    let copy = wire.export(&session, "jsonl");
    let elsewhere = Sandbox::new();
    let (_daemon, mut wire) = elsewhere.daemon_and_wire();
    wire.ok("session.import", json!({ "data": copy, "last": true }));
    assert_eq!(active_goal(&mut wire, &session), before, "an import finds the same goal");
}

#[test]
fn markers_of_a_broken_answer_are_replaced_with_it() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    fake.script(Answer::text("[GOAL] Go\nastray\n[CHECKPOINT] half a line"));
    fake.inject("/api/chat", &[Fault::Break { after: 3 }]);
    chat.failed_turn("Please.", "modelFailed");
    let found = active_goal(&mut chat.wire, &chat.id).unwrap();
    assert_fields(&found, json!({ "description": "Go", "checkpoints": [] }));
    chat.send(json!({}));
    chat.events_until("done");
    assert_eq!(active_goal(&mut chat.wire, &chat.id), None, "the second answer sets no goal");
}

#[test]
fn markers_of_an_answer_change_the_goal() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    fake.script(Answer::text("[GOAL] Reverse a list\n[CHECKPOINT] Read the code - COMPLETED"));
    let done = chat.turn("Please.").pop().unwrap();
    let records = chat.records();
    let change = records_of_type(&records, "goal")[0];
    assert_eq!((&change["goal"]["messageSeq"], &change["parent"]), (&done["seq"], &done["seq"]));
    let found = active_goal(&mut chat.wire, &chat.id).unwrap();
    assert_eq!(found["checkpoints"][0]["status"], "completed", "{found}");
}

#[test]
fn goal_commands_change_and_print_the_goal() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let ctl = |args: &[&str]| sandbox.ctl(args);
    let refused = ctl(&["goal"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("no current session"), "{}", refused.stderr);
    let _recorded = ctl(&["record", "Hello."]).ok();
    assert_eq!(ctl(&["goal"]).ok(), "no active goal\n");
    let refused = ctl(&["goal", "decide", "Use JWT"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    let _made = ctl(&[
        "goal",
        "create",
        "Implement \u{1b}[2Jauth",
        "--priority",
        "high",
        "--step",
        "Design",
    ])
    .ok();
    for args in [
        &["goal", "checkpoint", "Add login"][..],
        &["goal", "checkpoint", "1", "completed"],
        &["goal", "checkpoint", "add LOGIN", "in-progress"],
        &["goal", "decide", "Use JWT", "--locked"],
        &["goal", "decide", "Use cookies", "--instead-of", "1"],
        &["goal", "lock", "2"],
        &["goal", "artifact", "created", "src/login.rs"],
        &["goal", "next", "Write the tests", "Rest"],
    ] {
        let _shown = ctl(args).ok();
    }
    let shown = ctl(&["goal", "list"]).ok();
    assert_eq!(
        shown,
        "\
Implement auth  (active, high priority)
steps
   1  done   Design
   2  begun  Add login
decisions
   2  lock   Use cookies
files
  created   src/login.rs
next
  Write the tests
  Rest
"
    );
    let refused = ctl(&["goal", "checkpoint", "7", "completed"]);
    assert!(refused.stderr.contains("no step 7"), "{}", refused.stderr);
    let _second = ctl(&["goal", "create", "Ship it"]).ok();
    assert!(ctl(&["goal"]).ok().contains("other goals\n   1  paused     Implement auth\n"));
    let _updated = ctl(&["goal", "update", "--goal", "1", "--status", "completed"]).ok();
    let listed = ctl(&["goal", "list", "--session", "last", "--json"]).json();
    assert_eq!(listed["data"][1]["status"], "completed", "{listed}");

    let _pinned = ctl(&["context", "pin", "1"]).ok();
    assert_eq!(ctl(&["context", "unpin", "1"]).ok(), "nothing is pinned\n");
    let _added = ctl(&["context", "entries", "add", "style", "Be brief.", "--global"]).ok();
    let _added = ctl(&["context", "entries", "add", "rules", "Never.", "--priority", "-5"]).ok();
    let entries = ctl(&["context", "entries"]).ok();
    let keys: Vec<_> = entries.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(keys[1..3], ["rules", "style"], "{entries}");
    assert_eq!(ctl(&["context", "entries", "remove", "style", "--global"]).ok(), "removed\n");
}
