//! Branches: the tree of a session, moves of the leaf, and what follows the active path.

use serde_json::{Value, json};

use crate::harness::{Answer, FakeOllama, Fault, ModelSession, Wire, array, start};

/// Records a question and an answer for each pair.
fn converse(wire: &mut Wire, session: &str, pairs: &[(&str, &str)]) {
    for (question, answer) in pairs {
        wire.record(session, "user", question);
        wire.record(session, "assistant", answer);
    }
}

/// Returns the contents of the messages that a model would be sent.
fn context(wire: &mut Wire, session: &str) -> Vec<String> {
    let built = wire.ok("context.build", json!({ "sessionId": session, "contextSize": 4096 }));
    let messages = array(&built["messages"]).iter();
    messages.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// Returns all nodes of a tree, which is read in pages of two.
fn tree(wire: &mut Wire, session: &str) -> (Vec<Value>, Value) {
    let mut nodes = Vec::new();
    let mut params = json!({ "sessionId": session, "limit": 2 });
    loop {
        let page = wire.ok("session.tree", params.clone());
        assert!(array(&page["data"]).len() <= 2);
        nodes.extend(array(&page["data"]).to_vec());
        match page.get("nextCursor") {
            Some(cursor) => params["cursor"] = cursor.clone(),
            None => return (nodes, page),
        }
    }
}

#[test]
fn conversation_continues_after_the_record_that_the_leaf_moved_to() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    converse(&mut wire, &session, &[("one", "first"), ("two", "second")]);
    let log = std::fs::read(sandbox.log_path(&session)).unwrap();
    let mut other = daemon.wire();
    other.subscribe(json!({ "kinds": ["branch-changed"] }));
    let moved = wire.ok("session.branch", json!({ "sessionId": session, "toSeq": 2 }));
    assert_eq!((&moved["leaf"], moved.get("movedToUnitEnd")), (&json!(2), None), "{moved}");
    assert_eq!(moved["removed"]["messages"], 2, "{moved}");
    assert_eq!(other.event()["data"], json!({ "to": 2, "cause": "branch" }));
    assert_eq!(context(&mut wire, &session), ["one", "first"]);
    converse(&mut wire, &session, &[("three", "third")]);
    let after = context(&mut wire, &session);
    assert_eq!(after, ["one", "first", "three", "third"]);
    let bytes = std::fs::read(sandbox.log_path(&session)).unwrap();
    assert!(bytes.starts_with(&log), "nothing is rewritten");

    let (nodes, page) = tree(&mut wire, &session);
    let messages: Vec<_> = nodes.iter().filter(|node| node["type"] == "message").collect();
    let texts: Vec<_> = messages.iter().map(|node| (&node["text"], &node["active"])).collect();
    let expected = json!([
        ["one", true],
        ["first", true],
        ["two", false],
        ["second", false],
        ["three", true],
        ["third", true]
    ]);
    assert_eq!(json!(texts), expected);
    assert_eq!(page["counts"]["branches"], 2, "{page}");
    let fork = nodes.iter().find(|node| node["seq"] == 2).unwrap();
    assert_eq!(fork["children"], 2, "{fork}");

    daemon.kill();
    sandbox.remove_catalog();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(context(&mut wire, &session), after, "the log decides");
    assert_eq!(tree(&mut wire, &session).0, nodes);
    // The records that were left stay in searches, in the document and in an export of all branches.
    wire.wait_for_catalog();
    let hits = wire.ok("session.search", json!({ "query": "second", "sessionId": session }));
    assert_eq!(array(&hits["data"]).len(), 1, "{hits}");
    let document: Value = serde_json::from_str(&wire.export(&session, "json")).unwrap();
    let inactive = array(&document["messages"]).iter().filter(|one| one["active"] == false);
    assert_eq!(inactive.count(), 2);
    assert!(!wire.export(&session, "markdown").contains("second"));
    let all = json!({ "sessionId": session, "format": "markdown", "branch": "all" });
    let text = wire.ok("session.export", all)["data"].to_string();
    assert!(text.contains("second") && text.contains("on a branch that was left"), "{text}");
}

#[test]
fn branch_to_one_of_two_tool_results_moves_to_the_last_one() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "read both");
    let call = |id: &str| json!({ "type": "toolCall", "id": id, "name": "read_file", "args": { "path": id } });
    let message = json!({ "role": "assistant", "parts": [call("a"), call("b")] });
    wire.ok("session.record", json!({ "sessionId": session, "message": message }));
    for id in ["a", "b"] {
        let result = json!({ "id": id, "name": "read_file", "result": { "llmContent": id } });
        wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": result }));
    }
    wire.record(&session, "assistant", "read");
    // 1 user, 2 assistant with two calls, 3 and 4 their results, 5 assistant
    for (to, is_moved) in [(3, true), (4, false), (2, true)] {
        let moved = wire.ok("session.branch", json!({ "sessionId": session, "toSeq": to }));
        assert_eq!(moved["leaf"], 4, "{moved}");
        assert_eq!(moved.get("movedToUnitEnd").is_some(), is_moved, "{moved}");
    }
    assert_eq!(context(&mut wire, &session).last().unwrap(), "b");
}

#[test]
fn leaf_moves_to_the_end_of_a_unit_and_to_the_beginning() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = super::full_session(&mut wire, "/tmp");
    // 1 user, 2 assistant with a call, 3 its result, 4 custom, 5 snapshot, 6 mode, 7 assistant
    for inside in [2, 3] {
        let params = json!({ "sessionId": session, "toSeq": inside });
        let moved = wire.ok("session.branch", params);
        assert_eq!(moved["leaf"], 3, "{moved}");
        assert_eq!(moved.get("movedToUnitEnd").is_some(), inside == 2, "{moved}");
    }
    assert_eq!(wire.session(&session)["mode"], "developer", "the mode follows the path");
    let moved = wire.ok("session.branch", json!({ "sessionId": session, "toSeq": 7 }));
    assert_eq!(moved["added"]["messages"], 1, "{moved}");
    assert_eq!(wire.session(&session)["mode"], "planning");
    let moved = wire.ok("session.branch", json!({ "sessionId": session, "toSeq": null }));
    assert_eq!((moved.get("leaf"), &moved["removed"]["messages"]), (None, &json!(3)), "{moved}");
    let again = wire.ok("session.branch", json!({ "sessionId": session, "toSeq": null }));
    assert_eq!(again.get("seq"), None, "the leaf is there already: {again}");

    wire.refused("session.branch", json!({ "sessionId": session }), "invalidParams");
    let missing = json!({ "sessionId": session, "toSeq": 999 });
    wire.refused("session.branch", missing, "recordNotFound");
    let error = wire.refused(
        "session.branch",
        json!({ "sessionId": session, "toSeq": 0 }),
        "invalidParams",
    );
    assert!(error["message"].as_str().unwrap().contains("on no branch"), "{error}");
}

#[test]
fn retried_key_moves_the_leaf_once() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    converse(&mut wire, &session, &[("one", "first"), ("two", "second")]);
    let params = json!({ "sessionId": session, "toSeq": 2, "key": "k" });
    let first = wire.ok("session.branch", params.clone());
    wire.record(&session, "user", "three");
    let again = wire.ok("session.branch", params);
    assert_eq!((&again["seq"], &again["leaf"]), (&first["seq"], &first["leaf"]));
    assert_eq!(again["duplicate"], true);
    assert_eq!(context(&mut wire, &session).last().unwrap(), "three");
    let other = json!({ "sessionId": session, "toSeq": 1, "key": "k" });
    wire.refused("session.branch", other, "conflict");
}

#[test]
fn goals_pins_and_entries_follow_the_path() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    converse(&mut wire, &session, &[("The port is 48213.", "noted")]);
    let on = |mut params: Value| {
        params["sessionId"] = json!(session);
        params
    };
    let create = json!({ "action": "create", "description": "Port the parser" });
    wire.ok("goal.change", on(json!({ "steps": [create] })));
    wire.ok("context.pin", on(json!({ "seq": 1 })));
    wire.ok(
        "context.addEntry",
        on(json!({ "key": "style", "content": "Be brief", "scope": "session" })),
    );
    let leaf = wire.ok("session.tree", on(json!({})))["leaf"].clone();
    let counts = |wire: &mut Wire| {
        let goals = wire.ok("goal.list", on(json!({})));
        let entries = wire.ok("context.listEntries", on(json!({})));
        let pins = wire.ok("context.pin", on(json!({ "seq": 2 })));
        wire.ok("context.unpin", on(json!({ "seq": 2 })));
        [goals, entries, pins].map(|list| array(&list["data"]).len())
    };
    wire.ok("session.branch", on(json!({ "toSeq": 2 })));
    assert_eq!(counts(&mut wire), [0, 0, 1]);
    wire.ok("session.branch", on(json!({ "toSeq": leaf })));
    assert_eq!(counts(&mut wire), [1, 1, 2]);
}

#[test]
fn label_names_a_record_on_every_path() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    converse(&mut wire, &session, &[("one", "first"), ("two", "second")]);
    wire.subscribe(json!({ "kinds": ["session-updated"] }));
    let label = |wire: &mut Wire, seq: u64, label: Value| {
        let mut params = json!({ "sessionId": session, "seq": seq });
        if !label.is_null() {
            params["label"] = label;
        }
        wire.ok("session.label", params)
    };
    assert_eq!(label(&mut wire, 2, json!("before the port"))["changed"], true);
    assert_eq!(wire.event()["data"], json!({ "fields": ["labels"], "target": 2 }));
    assert_eq!(label(&mut wire, 2, json!("before the port"))["changed"], false);
    label(&mut wire, 4, json!("later"));
    label(&mut wire, 4, Value::Null);
    wire.ok("session.branch", json!({ "sessionId": session, "toSeq": 1 }));
    let labels = |wire: &mut Wire| {
        let (nodes, page) = tree(wire, &session);
        let labels: Vec<_> =
            nodes.iter().filter_map(|node| Some((&node["seq"], node.get("label")?))).collect();
        assert_eq!(page["counts"]["labels"], labels.len());
        json!(labels)
    };
    assert_eq!(labels(&mut wire), json!([[2, "before the port"]]));
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(labels(&mut wire), json!([[2, "before the port"]]));
    let refuse = |wire: &mut Wire, seq: u64, label: String, kind: &str| {
        let params = json!({ "sessionId": session, "seq": seq, "label": label });
        wire.refused("session.label", params, kind);
    };
    refuse(&mut wire, 99, "x".into(), "recordNotFound");
    refuse(&mut wire, 0, "x".into(), "invalidParams");
    refuse(&mut wire, 1, "x".repeat(513), "tooLarge");
}

#[test]
fn abandoned_branch_leaves_a_summary_by_the_model_or_from_its_records() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let long = "We decided to use port 48213 for staging. ".repeat(40);
    for text in ["one", long.as_str()] {
        fake.script(Answer::text("noted"));
        let message = chat.message(text);
        chat.send(message);
        chat.events_until("done");
    }
    let records = chat.ok("session.get", json!({}))["records"].clone();
    let message = |text: &str| {
        array(&records)
            .iter()
            .find(|record| record["message"]["parts"][0]["text"] == text)
            .map(|record| record["seq"].clone())
            .unwrap()
    };
    let (first, last) = (message("noted"), array(&records).last().unwrap()["seq"].clone());
    let notes = "## Goal\n- choose a port\n\n## Constraints\nnone\n\n## Progress\n- port 48213 chosen\n\n\
                 ## Key decisions\n- staging uses port 48213\n\n## Next steps\nnone\n\n## Critical context\n- 48213\n";
    fake.script_summaries(Answer::text(notes));
    let moved = chat.ok("session.branch", json!({ "toSeq": first, "summarize": true }));
    assert_eq!(moved["summaryBy"], "model", "{moved}");
    let summary = chat.ok("session.getRecord", json!({ "seq": moved["summarySeq"] }));
    assert!(summary["data"].as_str().unwrap().contains("48213"), "{summary}");
    let built = chat.ok("context.build", json!({ "contextSize": 4096 }));
    assert!(built["messages"].to_string().contains("branch-summary"), "{built}");

    chat.ok("session.branch", json!({ "toSeq": last }));
    let text = "out of memory".to_owned();
    fake.inject("/api/chat", &vec![Fault::Error { status: 500, text }; 4]);
    let moved = chat.ok("session.branch", json!({ "toSeq": first, "summarize": true }));
    assert_eq!(moved["summaryBy"], "daemon", "{moved}");
    let summary = chat.ok("session.getRecord", json!({ "seq": moved["summarySeq"] }));
    assert!(summary["data"].as_str().unwrap().contains("48213"), "{summary}");
}

#[test]
fn running_turn_keeps_its_leaf() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    fake.script(Answer::text("one"));
    let message = chat.message("count");
    chat.send(message);
    chat.events_until("done");
    fake.inject("/api/chat", &[Fault::Stall { after: 0 }]);
    let message = chat.message("more");
    chat.send(message);
    chat.events_until("accepted");
    let mut other = chat.daemon.wire();
    let params = chat.params(json!({ "toSeq": 1 }));
    let error = other.refused("session.branch", params.clone(), "conflict");
    assert!(error["data"]["hint"].as_str().unwrap().contains("chat.cancel"), "{error}");
    fake.resume();
    chat.events_until("done");
    other.ok("session.branch", params);
}
