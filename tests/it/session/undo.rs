//! Undo and redo: operations of a session, taken back and put back, and listed.

use serde_json::{Value, json};

use crate::harness::{
    Answer, FakeOllama, Fault, ModelSession, UNKNOWN_SESSION, Wire, array, start,
};

/// Calls a method that moves the leaf, with the number of steps.
fn step(wire: &mut Wire, method: &str, session: &str, steps: u64) -> Value {
    wire.ok(method, json!({ "sessionId": session, "steps": steps }))
}

/// Returns the texts of the messages on the active path.
fn active(wire: &mut Wire, session: &str) -> Vec<String> {
    let page = wire.ok("session.get", json!({ "sessionId": session, "branch": "active" }));
    let parts = array(&page["records"]).iter().map(|record| &record["message"]["parts"]);
    parts.filter_map(|parts| parts[0]["text"].as_str().map(str::to_owned)).collect()
}

#[test]
fn undo_walks_back_and_redo_forward_until_a_new_operation() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for text in ["one", "two", "three"] {
        wire.record(&session, "user", text);
        wire.record(&session, "assistant", &format!("answer {text}"));
    }
    let create = json!({ "action": "create", "description": "Port the parser" });
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [create] }));
    let log = std::fs::read(sandbox.log_path(&session)).unwrap();
    let mut other = daemon.wire();
    other.subscribe(json!({ "kinds": ["branch-changed"] }));

    let undone = step(&mut wire, "session.undo", &session, 1);
    assert_eq!(undone["operations"][0]["kind"], "goal", "{undone}");
    assert_eq!((&undone["undoable"], &undone["redoable"]), (&json!(3), &json!(1)));
    assert_eq!(other.event()["data"], json!({ "to": 6, "cause": "undo" }));
    let undone = step(&mut wire, "session.undo", &session, 2);
    let texts: Vec<_> =
        array(&undone["operations"]).iter().map(|operation| &operation["text"]).collect();
    assert_eq!(texts, ["three", "two"], "in the order of the steps");
    assert_eq!(undone["leaf"], 2);
    assert_eq!(active(&mut wire, &session), ["one", "answer one"]);

    daemon.kill();
    sandbox.remove_catalog();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let redone = step(&mut wire, "session.redo", &session, 1);
    assert_eq!(redone["operations"][0]["text"], "two", "{redone}");
    assert_eq!(active(&mut wire, &session).last().unwrap(), "answer two");
    wire.record(&session, "user", "another");
    let error = wire.refused("session.redo", json!({ "sessionId": session }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("nothing to redo"), "{error}");
    let all = step(&mut wire, "session.undo", &session, 3);
    assert_eq!((all.get("leaf"), &all["undoable"]), (None, &json!(0)), "{all}");
    wire.refused("session.undo", json!({ "sessionId": session }), "invalidParams");
    let grown = std::fs::read(sandbox.log_path(&session)).unwrap();
    assert!(grown.starts_with(&log), "nothing is rewritten");

    for wrong in [json!(0), json!(1001), json!(-1)] {
        let params = json!({ "sessionId": session, "steps": wrong });
        wire.refused("session.undo", params, "invalidParams");
    }
    let error =
        wire.refused("session.redo", json!({ "sessionId": session, "steps": 9 }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("only 3 can be redone"), "{error}");
    wire.refused("session.undo", json!({ "sessionId": UNKNOWN_SESSION }), "sessionNotFound");
}

#[test]
fn operations_say_what_each_changed() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "Where is the parser?");
    wire.record(&session, "assistant", "In lex.rs.");
    let on = |mut params: Value| {
        params["sessionId"] = json!(session);
        params
    };
    wire.ok("session.setMode", on(json!({ "mode": "planning" })));
    let create = json!({ "action": "create", "description": "Port the parser" });
    wire.ok("goal.change", on(json!({ "steps": [create] })));
    wire.ok("context.pin", on(json!({ "seq": 1 })));
    let entry = json!({ "key": "style", "content": "Be brief", "scope": "session" });
    wire.ok("context.addEntry", on(entry));
    wire.ok("session.label", on(json!({ "seq": 1, "label": "the question" })));
    wire.ok("session.branch", on(json!({ "toSeq": 2 })));
    wire.ok("session.undo", on(json!({})));
    let mut listed = Vec::new();
    let mut params = on(json!({ "limit": 3 }));
    loop {
        let page = wire.ok("session.operations", params.clone());
        assert_eq!((&page["undoable"], &page["redoable"]), (&json!(5), &json!(1)));
        listed.extend(array(&page["data"]).to_vec());
        match page.get("nextCursor") {
            Some(cursor) => params["cursor"] = cursor.clone(),
            None => break,
        }
    }
    let shown: Vec<_> =
        listed.iter().map(|one| json!([one["kind"], one.get("state"), one["text"]])).collect();
    let expected = json!([
        ["undo", null, "branch to #2"],
        ["branch", "undone", "branch to #2"],
        ["entry", "applied", "set style: Be brief"],
        ["pin", "applied", "pinned #1"],
        ["goal", "applied", "new goal: Port the parser"],
        ["mode", "applied", "mode planning"],
        ["turn", "applied", "Where is the parser?"],
    ]);
    assert_eq!(json!(shown), expected);
    assert_eq!(listed[1]["removed"]["records"], 4, "{}", listed[1]);
    assert_eq!(listed[0]["added"], listed[1]["removed"]);
    assert_eq!(listed[6]["added"]["messages"], 2, "{}", listed[6]);
    assert_eq!(listed[0]["target"], listed[1]["seq"]);
    wire.refused("session.operations", on(json!({ "cursor": "x" })), "invalidParams");
}

#[test]
fn retried_key_undoes_once() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for text in ["one", "two", "three"] {
        wire.record(&session, "user", text);
    }
    let params = json!({ "sessionId": session, "steps": 2, "key": "k" });
    let first = wire.ok("session.undo", params.clone());
    let again = wire.ok("session.undo", params.clone());
    assert_eq!(
        (again["duplicate"].clone(), &again["operations"]),
        (json!(true), &first["operations"])
    );
    assert_eq!(active(&mut wire, &session), ["one"]);
    wire.refused("session.undo", json!({ "sessionId": session, "key": "k" }), "conflict");
    wire.ok("session.redo", params);
    assert_eq!(active(&mut wire, &session), ["one", "two", "three"], "a key belongs to a method");
}

#[test]
fn chat_turn_is_undone_as_a_whole_and_not_while_it_runs() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    fake.script(Answer::text("first"));
    chat.turn("one");
    let before = chat.ok("context.build", json!({ "contextSize": 4096 }))["messages"].clone();
    fake.script(Answer::text("second"));
    chat.turn("two");
    let undone = chat.ok("session.undo", json!({}));
    assert_eq!(undone["operations"][0]["added"]["messages"], 2, "{undone}");
    let built = chat.ok("context.build", json!({ "contextSize": 4096 }));
    assert_eq!(built["messages"], before);
    fake.script(Answer::text("another"));
    chat.turn("three");
    let sent = fake.requests("/api/chat").pop().unwrap().body["messages"].to_string();
    assert!(!sent.contains("two") && sent.contains("first"), "{sent}");

    fake.inject("/api/chat", &[Fault::Stall { after: 0 }]);
    let message = chat.message("four");
    chat.send(message);
    chat.events_until("accepted");
    let mut other = chat.daemon.wire();
    let params = chat.params(json!({}));
    for method in ["session.undo", "session.redo"] {
        let error = other.refused(method, params.clone(), "conflict");
        assert!(error["data"]["hint"].as_str().unwrap().contains("chat.cancel"), "{error}");
    }
    fake.resume();
    chat.events_until("done");
    assert_eq!(other.ok("session.undo", params)["operations"][0]["text"], "four");
}
