//! `goal.*`: changes by clients and by markers in messages, their records, and what a restart finds.

use serde_json::{Value, json};

use crate::harness::{
    Answer, FakeOllama, Fault, ModelSession, Sandbox, UNKNOWN_SESSION, Wire, array, assert_fields,
    start, text_message,
};

/// Lists goals of a session.
#[track_caller]
fn list(wire: &mut Wire, session: &str, mut params: Value) -> Value {
    params["sessionId"] = json!(session);
    wire.ok("goal.list", params)
}

/// Changes goals by one step.
#[track_caller]
fn change(wire: &mut Wire, session: &str, step: Value) -> Value {
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [step] }))
}

/// Returns the active goal.
#[track_caller]
fn active_goal(wire: &mut Wire, session: &str) -> Option<Value> {
    let listed = list(wire, session, json!({ "status": "active" }));
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
    let add = |text: &str| json!({ "action": "addCheckpoint", "description": text });
    let steps = json!([add("x")]);
    wire.refused("goal.change", json!({ "sessionId": session, "steps": steps }), "goalNotFound");
    wire.subscribe(json!({ "sessionId": session }));
    let create = json!({ "action": "create", "description": "Implement auth", "priority": "high" });
    let steps = json!([create, add("Design  the\nflow")]);
    let created = wire.ok("goal.change", json!({ "sessionId": session, "steps": steps }));
    let first = created["goal"].clone();
    assert_fields(&first, json!({ "status": "active", "source": "client" }));
    assert_eq!(first["checkpoints"][0]["description"], "Design the flow", "joined to one line");
    let ids = json!([{ "goalId": first["id"] }, { "checkpointId": first["checkpoints"][0]["id"] }]);
    assert_eq!(created["steps"], ids);
    let event = wire.events_until("goal-updated").pop().unwrap();
    assert_eq!(
        event["data"],
        json!({ "source": "client", "actions": ["create", "addCheckpoint"] })
    );
    assert_eq!(event["seq"], 1);

    let added = change(&mut wire, &session, add("Add login"));
    let checkpoint = added["steps"][0]["checkpointId"].clone();
    let done =
        json!({ "checkpointId": checkpoint, "status": "completed", "action": "updateCheckpoint" });
    let done = change(&mut wire, &session, done);
    assert_eq!(done["goal"]["checkpoints"][1]["status"], "completed");
    assert!(done["goal"]["checkpoints"][1].get("completedAt").is_some());
    let decide =
        json!({ "action": "addDecision", "description": "Use JWT", "kind": "architecture" });
    let decided = change(&mut wire, &session, decide);
    let decision = decided["steps"][0]["decisionId"].clone();
    let lock = json!({ "action": "lockDecision", "decisionId": decision });
    let locked = change(&mut wire, &session, lock.clone());
    assert_eq!(locked["goal"]["decisions"][0]["locked"], true);
    let again = change(&mut wire, &session, lock);
    assert_eq!(again.get("seq"), None, "a locked decision is unchanged");
    let instead =
        json!({ "action": "addDecision", "description": "Use cookies", "supersedes": decision });
    let instead = change(&mut wire, &session, instead);
    let superseded_by = &instead["goal"]["decisions"][0]["supersededBy"];
    assert_eq!(*superseded_by, instead["steps"][0]["decisionId"]);
    let steps = json!([
        { "action": "addArtifact", "path": "src/login.rs", "did": "created", "type": "file" },
        { "action": "setNextSteps", "nextSteps": ["Test it"] },
    ]);
    let next = wire.ok("goal.change", json!({ "sessionId": session, "steps": steps }));
    let whole = next["goal"].clone();
    assert_eq!(
        (&whole["nextSteps"], &whole["artifacts"][0]["path"]),
        (&json!(["Test it"]), &json!("src/login.rs"))
    );

    let ship = json!({ "action": "create", "description": "Ship it" });
    let second = change(&mut wire, &session, ship)["goal"].clone();
    let paused = list(&mut wire, &session, json!({ "status": "paused" }));
    assert_eq!(paused["data"][0]["id"], first["id"]);
    let resume = json!({ "action": "update", "goalId": first["id"], "status": "active" });
    let resumed = change(&mut wire, &session, resume);
    assert_eq!(resumed["goal"], whole, "a resumed goal is unchanged");
    daemon.kill();

    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(active_goal(&mut wire, &session), Some(whole));
    let page = list(&mut wire, &session, json!({ "limit": 1 }));
    assert_eq!((&page["data"][0]["id"], &page["nextCursor"]), (&second["id"], &second["id"]));
    let page = list(&mut wire, &session, json!({ "limit": 1, "cursor": page["nextCursor"] }));
    assert_eq!((&page["data"][0]["id"], page.get("nextCursor")), (&first["id"], None));
}

#[test]
fn invalid_params_and_retried_keys_change_nothing() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let call = |steps: Value| json!({ "sessionId": session, "steps": steps });
    let create = |text: &str| json!({ "action": "create", "description": text });
    let add = |text: &str| json!({ "action": "addCheckpoint", "description": text });
    let keyed = |steps: Value| json!({ "sessionId": session, "steps": steps, "key": "k" });
    let first = wire.ok("goal.change", keyed(json!([create("Ship it")])));
    let added = wire.ok("goal.change", call(json!([add("Add login")])));
    let retried = wire.ok("goal.change", keyed(json!([create("Ship it")])));
    let mut expected = first;
    expected["duplicate"] = json!(true);
    assert_eq!(retried, expected, "the goal is as it was after the first call");
    wire.refused("goal.change", keyed(json!([create("Another")])), "conflict");
    let error = wire.refused("goal.change", call(json!([add("add LOGIN!")])), "conflict");
    assert_eq!(error["data"]["holder"], added["steps"][0]["checkpointId"]);
    let records = wire.records(&session).len();
    let unknown = UNKNOWN_SESSION;
    for (step, kind) in [
        (create(" \n"), "invalidParams"),
        (create(&"x".repeat(5000)), "tooLarge"),
        (json!({ "action": "create", "description": "x", "priority": "urgent" }), "invalidParams"),
        (json!({ "action": "close" }), "invalidParams"),
        (json!({ "action": "update" }), "invalidParams"),
        (json!({ "action": "update", "goalId": unknown, "status": "paused" }), "goalNotFound"),
        (
            json!({ "action": "updateCheckpoint", "checkpointId": unknown, "status": "pending" }),
            "goalNotFound",
        ),
        (json!({ "action": "lockDecision", "decisionId": unknown }), "goalNotFound"),
        (
            json!({ "action": "addDecision", "description": "x", "supersedes": unknown }),
            "goalNotFound",
        ),
        (json!({ "action": "addDecision", "description": "x", "lock": true }), "invalidParams"),
        (json!({ "action": "applyMarkers" }), "invalidParams"),
        (json!({ "action": "applyMarkers", "seq": 99 }), "recordNotFound"),
    ] {
        let steps = json!([create("A step before"), step]);
        wire.refused("goal.change", call(steps), kind);
    }
    wire.refused("goal.change", call(json!([])), "invalidParams");
    for params in [json!({ "limit": 0 }), json!({ "cursor": unknown })] {
        let mut params = params;
        params["sessionId"] = json!(session);
        wire.refused("goal.list", params, "invalidParams");
    }
    let missing = json!({ "sessionId": unknown, "steps": [create("x")] });
    wire.refused("goal.change", missing, "sessionNotFound");
    assert_eq!(wire.records(&session).len(), records);
}

#[test]
fn concurrent_clients_add_an_equal_checkpoint_once() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let create = json!({ "action": "create", "description": "Ship it" });
    let _goal = change(&mut wire, &session, create);
    let added: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut wire = Wire::connect(&sandbox.socket());
                    let step = json!({ "action": "addCheckpoint", "description": "Add login" });
                    let params = json!({ "sessionId": session, "steps": [step] });
                    usize::from(wire.call("goal.change", params).is_ok())
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
    let instead =
        json!({ "action": "addDecision", "description": "Use cookies", "supersedes": decision });
    let _decided = change(&mut wire, &session, instead);
    let before = active_goal(&mut wire, &session).unwrap();
    let apply = json!({ "action": "applyMarkers", "seq": seqs[0] });
    let applied = change(&mut wire, &session, apply);
    assert_eq!(applied["steps"][0]["applied"], 1, "the other markers change nothing");
    assert_eq!(wire.records(&session).last().unwrap()["seq"], applied["seq"]);
    let reopened = applied["goal"]["checkpoints"][0]["status"].clone();
    assert_eq!(reopened, "in-progress", "the old marker is applied again");
    assert_eq!(applied["goal"]["decisions"], before["decisions"]);
    let apply = json!({ "action": "applyMarkers", "text": "no markers" });
    let applied = change(&mut wire, &session, apply);
    assert_eq!(applied["steps"], json!([{ "markers": [], "applied": 0 }]));
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
