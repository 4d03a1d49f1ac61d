//! Goals over the socket: what clients and markers change, what is in the log, what a restart finds.

use serde_json::{Value, json};

use crate::harness::{Answer, FakeOllama, Fault, Sandbox, Wire, text_message};

/// Calls a method of a session's goals.
#[track_caller]
fn goal(wire: &mut Wire, session: &str, verb: &str, mut params: Value) -> Value {
    params["sessionId"] = json!(session);
    wire.ok(verb, params)
}

/// The active goal.
#[track_caller]
fn active(wire: &mut Wire, session: &str) -> Option<Value> {
    let listed = goal(wire, session, "goal.list", json!({ "status": "active" }));
    let data = listed["data"].as_array().unwrap();
    assert!(data.len() <= 1, "{listed}");
    data.first().cloned()
}

fn of_type<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

#[test]
fn a_goal_is_worked_on_and_survives_a_crash() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let of = json!({ "sessionId": session });
    let _error = wire.refused(
        "goal.addCheckpoint",
        json!({ "sessionId": session, "description": "x" }),
        "goalNotFound",
    );
    let _subscription = wire.subscribe(of.clone());
    let checkpoints = json!(["Design  the\nflow"]);
    let made =
        json!({ "description": "Implement auth", "priority": "high", "checkpoints": checkpoints });
    let first = goal(&mut wire, &session, "goal.create", made)["goal"].clone();
    assert_eq!((&first["status"], &first["source"]), (&json!("active"), &json!("client")));
    assert_eq!(first["checkpoints"][0]["description"], "Design the flow", "on one line");
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
    assert_eq!(again.get("seq"), None, "nothing is to be changed");
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
    let back = json!({ "goalId": first["id"], "status": "active" });
    let back = goal(&mut wire, &session, "goal.update", back);
    assert_eq!(back["goal"], whole, "a goal comes back as it was");
    daemon.kill9();

    let (_daemon, mut wire) = sandbox.served();
    assert_eq!(active(&mut wire, &session), Some(whole));
    let page = goal(&mut wire, &session, "goal.list", json!({ "limit": 1 }));
    assert_eq!((&page["data"][0]["id"], &page["nextCursor"]), (&second["id"], &second["id"]));
    let page =
        goal(&mut wire, &session, "goal.list", json!({ "limit": 1, "cursor": page["nextCursor"] }));
    assert_eq!((&page["data"][0]["id"], page.get("nextCursor")), (&first["id"], None));
}

#[test]
fn bad_input_and_retries_change_nothing() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let made = json!({ "sessionId": session, "description": "Ship it", "key": "k" });
    let first = wire.ok("goal.create", made.clone());
    let retried = wire.ok("goal.create", made);
    assert_eq!((&retried["goal"], &retried["duplicate"]), (&first["goal"], &json!(true)));
    assert_eq!(retried["seq"], first["seq"]);
    let other = json!({ "sessionId": session, "description": "Another", "key": "k" });
    let _error = wire.refused("goal.create", other, "conflict");
    let step = json!({ "sessionId": session, "description": "Add login" });
    let added = wire.ok("goal.addCheckpoint", step);
    let twin = json!({ "sessionId": session, "description": "add LOGIN!" });
    let error = wire.refused("goal.addCheckpoint", twin, "conflict");
    assert_eq!(error["data"]["holder"], added["checkpointId"]);
    let records = wire.records(&session).len();
    let unknown = "01890000-0000-7000-8000-000000000000";
    for (method, params, kind) in [
        ("goal.create", json!({ "description": " \n" }), "invalidParams"),
        ("goal.create", json!({ "description": "x".repeat(5000) }), "invalidParams"),
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
        let _error = wire.refused(method, params, kind);
    }
    let missing = json!({ "sessionId": unknown, "description": "x" });
    let _error = wire.refused("goal.create", missing, "sessionNotFound");
    assert_eq!(wire.records(&session).len(), records);
}

#[test]
fn clients_at_once_make_one_goal_active_and_add_a_step_once() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _goal = goal(&mut wire, &session, "goal.create", json!({ "description": "Ship it" }));
    let added: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut wire = Wire::connect(&sandbox.socket());
                    let step = json!({ "sessionId": session, "description": "Add login" });
                    usize::from(wire.call("goal.addCheckpoint", step).is_ok())
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(added, 1);
    assert_eq!(active(&mut wire, &session).unwrap()["checkpoints"].as_array().unwrap().len(), 1);
    assert_eq!(of_type(&wire.records(&session), "goal").len(), 2);
}

#[test]
fn markers_are_written_with_their_message() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "[GOAL] a user says");
    let _seq = wire.record(&session, "assistant", "[CHECKPOINT] for no goal - COMPLETED");
    let _seq = wire.record(&session, "assistant", "```\n[GOAL] in a fence\n```\n> [GOAL] quoted");
    assert!(of_type(&wire.records(&session), "goal").is_empty());
    let mut follower = Wire::connect(&sandbox.socket());
    let _subscription = follower.subscribe(json!({ "sessionId": session }));
    // Not waiting for answers: the second message's markers are for the first one's goal.
    let said = [
        "[GOAL] Implement auth\n[CHECKPOINT] Add login - IN PROGRESS\n[DECISION] Use JWT - LOCKED",
        "[CHECKPOINT] add login \u{2014} completed\n[NEXT] Write tests",
    ];
    for text in said {
        let _id = wire.request("session.record", text_message(&session, "assistant", text));
    }
    // Answers come in any order, numbers in the order of the calls.
    let mut seqs =
        [wire.frame(), wire.frame()].map(|frame| frame.unwrap()["result"]["seq"].clone());
    seqs.sort_by_key(Value::as_u64);
    let found = active(&mut wire, &session).unwrap();
    assert_eq!(
        (&found["description"], &found["source"]),
        (&json!("Implement auth"), &json!("marker"))
    );
    assert_eq!(found["checkpoints"][0]["status"], "completed");
    assert_eq!(found["nextSteps"], json!(["Write tests"]));
    let records = wire.records(&session);
    let changes = of_type(&records, "goal");
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
    let _seq = wire.record(&session, "assistant", "[DECISION] use jwt");
    assert_eq!(active(&mut wire, &session).unwrap()["decisions"], found["decisions"]);
    let instead = json!({ "description": "Use cookies", "supersedes": decision });
    let _decided = goal(&mut wire, &session, "goal.addDecision", instead);
    let before = active(&mut wire, &session).unwrap();
    let applied = goal(&mut wire, &session, "goal.applyMarkers", json!({ "seq": seqs[0] }));
    assert_eq!(applied["applied"], 1, "the others say what holds already");
    assert_eq!(wire.records(&session).last().unwrap()["seq"], applied["seq"]);
    let reopened = applied["goal"]["checkpoints"][0]["status"].clone();
    assert_eq!(reopened, "in-progress", "the user asked for the old message");
    assert_eq!(applied["goal"]["decisions"], before["decisions"]);
    let applied = goal(&mut wire, &session, "goal.applyMarkers", json!({ "text": "no markers" }));
    assert_eq!((&applied["markers"], &applied["applied"]), (&json!([]), &json!(0)));
    let before = active(&mut wire, &session);
    assert!(daemon.terminate().success());
    let (_daemon, mut wire) = sandbox.served();
    assert_eq!(active(&mut wire, &session), before, "a restart finds the same");
    let copy = wire.export(&session, "jsonl");
    let elsewhere = Sandbox::new();
    let (_daemon, mut wire) = elsewhere.served();
    let _report = wire.ok("session.import", json!({ "data": copy, "last": true }));
    assert_eq!(active(&mut wire, &session), before, "and so does an import");
}

/// Runs a turn; its last event.
#[track_caller]
fn turn(wire: &mut Wire, session: &str, text: Option<&str>) -> Value {
    let mut params = json!({ "sessionId": session });
    if let Some(text) = text {
        params["message"] = json!({ "role": "user", "content": text });
    }
    let _turn = wire.ok("chat.send", params);
    loop {
        let event = wire.told("chat.event");
        if ["done", "error"].contains(&event["kind"].as_str().unwrap()) {
            return event;
        }
    }
}

#[test]
fn what_a_broken_answer_said_goes_with_it() {
    let sandbox = Sandbox::new();
    let fake = FakeOllama::start("0.33.0");
    sandbox.write_config(&format!("ollama: {{ host: '{}', model: tiny }}\n", fake.host()));
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    fake.answer(Answer::text("[GOAL] Go\nastray\n[CHECKPOINT] half a line"));
    fake.next("/api/chat", &[Fault::Break { after: 3 }]);
    assert_eq!(turn(&mut wire, &session, Some("Please."))["kind"], "error");
    let found = active(&mut wire, &session).unwrap();
    assert_eq!((&found["description"], &found["checkpoints"]), (&json!("Go"), &json!([])));
    assert_eq!(turn(&mut wire, &session, None)["kind"], "done");
    assert_eq!(active(&mut wire, &session), None, "the answer that holds sets no goal");
}

#[test]
fn an_answer_moves_its_goal_on() {
    let sandbox = Sandbox::new();
    let fake = FakeOllama::start("0.33.0");
    sandbox.write_config(&format!("ollama: {{ host: '{}', model: tiny }}\n", fake.host()));
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    fake.answer(Answer::text("[GOAL] Reverse a list\n[CHECKPOINT] Read the code - COMPLETED"));
    let last = turn(&mut wire, &session, Some("Please."));
    let records = wire.records(&session);
    let change = of_type(&records, "goal")[0];
    assert_eq!((&change["goal"]["messageSeq"], &change["parent"]), (&last["seq"], &last["seq"]));
    let found = active(&mut wire, &session).unwrap();
    assert_eq!(found["checkpoints"][0]["status"], "completed", "{found}");
}

#[test]
fn a_person_works_on_a_goal_from_the_shell() {
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
