//! Context entries, pins, modes and system prompts: their scopes, and the limits with numbers.

use serde_json::{Value, json};

use crate::harness::{Wire, array, assert_fields, start, start_with_config};

/// Returns the entries in force as `key=content`.
#[track_caller]
fn entries(wire: &mut Wire, scope: &Value) -> Vec<String> {
    let listed = wire.ok("context.listEntries", scope.clone());
    let data = array(&listed["data"]).iter();
    data.map(|entry| {
        format!("{}={}", entry["key"].as_str().unwrap(), entry["content"].as_str().unwrap())
    })
    .collect()
}

/// Checks that an error says how many tokens were needed, and returns how many are available.
#[track_caller]
fn assert_overflow(error: &Value) -> u64 {
    let (needed, available) =
        (error["data"]["needed"].as_u64(), error["data"]["available"].as_u64());
    assert!(needed > available, "{error}");
    available.unwrap()
}

#[test]
fn narrowest_scope_of_a_key_wins_and_entries_survive_a_kill() {
    let (sandbox, daemon, mut wire) = start();
    let project = sandbox.project_dir("project");
    let session = wire.create(json!({ "projectPath": project }));
    let of_session = json!({ "sessionId": session });
    let of_project = json!({ "projectPath": project });
    let add = |wire: &mut Wire, scope: &Value, key: &str, content: &str, priority: i32| {
        let mut params = scope.clone();
        params["key"] = json!(key);
        params["content"] = json!(content);
        params["priority"] = json!(priority);
        wire.ok("context.addEntry", params)
    };
    let global = json!({ "scope": "global" });
    let _added = add(&mut wire, &global, "style", "global", 5);
    let _added = add(&mut wire, &global, "tone", "brief", 5);
    let _added = add(&mut wire, &of_project, "style", "project", 5);
    assert_eq!(entries(&mut wire, &of_session), ["style=project", "tone=brief"]);
    let added = add(&mut wire, &of_session, "style", "session", 9);
    assert_eq!((&added["changed"], &added["entry"]["scope"]), (&json!(true), &json!("session")));
    let records = wire.records(&session).len();
    assert_eq!(add(&mut wire, &of_session, "style", "session", 9)["changed"], false);
    assert_eq!(wire.records(&session).len(), records, "an unchanged entry writes no record");
    assert_eq!(entries(&mut wire, &of_session), ["tone=brief", "style=session"]);
    assert_eq!(entries(&mut wire, &of_project), ["style=project", "tone=brief"]);
    assert_eq!(entries(&mut wire, &json!({})), ["style=global", "tone=brief"]);
    daemon.kill();

    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let listed = wire.ok("context.listEntries", of_session.clone());
    let addition = listed["addition"].as_str().unwrap();
    assert_eq!(
        addition,
        "<context-entry key=\"tone\">\nbrief\n</context-entry>\n\
         <context-entry key=\"style\">\nsession\n</context-entry>"
    );
    assert!(listed["tokens"].as_u64().unwrap() <= listed["tokenLimit"].as_u64().unwrap());
    let mut of_style = of_session.clone();
    of_style["key"] = json!("style");
    assert_eq!(wire.ok("context.removeEntry", of_style.clone()), json!({ "removed": true }));
    assert_eq!(wire.ok("context.removeEntry", of_style), json!({ "removed": false }));
    assert_eq!(entries(&mut wire, &of_session), ["style=project", "tone=brief"]);
    wire.ok("session.setCurrent", json!({ "projectPath": project, "sessionId": session }));
    assert_eq!(entries(&mut wire, &of_project), ["style=project", "tone=brief"]);
    wire.ok("context.removeEntry", json!({ "scope": "global", "key": "tone" }));
    assert_eq!(entries(&mut wire, &of_session), ["style=project"]);
}

#[test]
fn entry_without_scope_or_over_its_share_is_refused() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("project");
    let session = wire.create(json!({ "contextSize": 4096 }));
    for params in [
        json!({ "key": "k", "content": "x" }),
        json!({ "key": "k", "content": "x", "scope": "session" }),
        json!({ "key": "k", "content": "x", "scope": "global", "sessionId": session }),
        json!({ "key": "k", "content": "x", "projectPath": project, "sessionId": session }),
        json!({ "key": "", "content": "x", "sessionId": session }),
        json!({ "key": "a\nb", "content": "x", "sessionId": session }),
        json!({ "key": "k", "content": " ", "sessionId": session }),
        json!({ "key": "k", "content": "x", "source": "unknown", "sessionId": session }),
    ] {
        wire.refused("context.addEntry", params, "invalidParams");
    }
    let long = |words: usize| json!({ "sessionId": session, "key": "k", "content": "word ".repeat(words) });
    wire.ok("context.addEntry", long(300));
    let error = wire.refused("context.addEntry", long(2000), "contextOverflow");
    assert_eq!(assert_overflow(&error), 3482 / 5);
    let mut other = long(600);
    other["key"] = json!("other");
    let error = wire.refused("context.addEntry", other, "contextOverflow");
    assert_eq!(assert_overflow(&error), 3482 / 5, "all entries share the limit");
    let global = json!({ "scope": "global", "key": "k", "content": "word ".repeat(5000) });
    let error = wire.refused("context.addEntry", global, "contextOverflow");
    assert_eq!(assert_overflow(&error), 6963 / 5);
    assert_eq!(entries(&mut wire, &json!({ "sessionId": session })).len(), 1);
}

#[test]
fn record_is_pinned_within_its_share_and_unpinned() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "contextSize": 4096 }));
    let short = wire.record(&session, "user", "Never touch main.rs.");
    let long = wire.record(&session, "user", &"word ".repeat(2000));
    let pin = |seq: u64| json!({ "sessionId": session, "seq": seq });
    let pinned = wire.ok("context.pin", pin(short));
    assert_eq!((&pinned["data"][0]["seq"], &pinned["tokenLimit"]), (&json!(short), &json!(348)));
    let records = wire.records(&session).len();
    assert_eq!(wire.ok("context.pin", pin(short))["changed"], false);
    assert_eq!(wire.records(&session).len(), records);
    assert_eq!(assert_overflow(&wire.refused("context.pin", pin(long), "contextOverflow")), 348);
    wire.refused("context.pin", pin(99), "recordNotFound");
    wire.refused("context.pin", pin(0), "invalidParams");
    daemon.kill();

    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(wire.ok("context.pin", pin(short))["changed"], false, "the pin survives a kill");
    let unpinned = wire.ok("context.unpin", pin(short));
    assert_fields(&unpinned, json!({ "data": [], "changed": true }));
    assert_eq!(wire.ok("context.unpin", pin(short))["changed"], false);
}

#[test]
fn mode_has_its_own_text_and_its_history_is_kept() {
    let (_sandbox, _daemon, mut wire) =
        start_with_config("modes: { debugger: 'Find the cause.', planning: ' ' }\n");
    let session = wire.create(json!({ "mode": "developer" }));
    wire.record(&session, "user", "Hello.");
    let mut system = |mode: Option<&str>| {
        if let Some(mode) = mode {
            let change =
                json!({ "sessionId": session, "mode": mode, "trigger": "auto", "confidence": 0.5 });
            wire.ok("session.setMode", change);
        }
        let built = wire.ok("context.build", json!({ "sessionId": session }));
        let first = built["messages"][0].clone();
        (first["role"] == "system").then(|| first["content"].as_str().unwrap().to_owned())
    };
    assert!(system(None).unwrap().starts_with("You help to write software."));
    assert_eq!(system(Some("debugger")).unwrap(), "Find the cause.");
    assert_eq!(system(Some("planning")), None, "a blank text counts as none");
    assert_eq!(system(Some("pirate")), None, "an unknown mode has no text");
    let document: Value = serde_json::from_str(&wire.export(&session, "json")).unwrap();
    let history = document["metadata"]["modeHistory"].as_array().unwrap().clone();
    let changes: Vec<_> = history
        .iter()
        .map(|change| (change["from"].as_str().unwrap(), change["to"].as_str().unwrap()))
        .collect();
    assert_eq!(
        changes,
        [("developer", "debugger"), ("debugger", "planning"), ("planning", "pirate")]
    );
    for change in &history {
        assert_fields(change, json!({ "trigger": "auto", "confidence": 0.5 }));
        assert!(change["timestamp"].is_string());
    }
}

#[test]
fn system_prompt_that_leaves_no_room_is_refused() {
    let (_sandbox, _daemon, mut wire) = start();
    let long = "word ".repeat(4000);
    let params = json!({ "systemPrompt": long, "contextSize": 2048 });
    assert_eq!(assert_overflow(&wire.refused("session.create", params, "contextOverflow")), 1741);
    let session = wire.create(json!({ "contextSize": 8192, "systemPrompt": "Be brief." }));
    let update = |mut params: Value| {
        params["sessionId"] = json!(session);
        params
    };
    wire.ok("session.update", update(json!({ "systemPrompt": long })));
    let shrunk = update(json!({ "contextSize": 4096 }));
    assert_eq!(assert_overflow(&wire.refused("session.update", shrunk, "contextOverflow")), 3482);
    let longer = update(json!({ "systemPrompt": long.repeat(2) }));
    assert_eq!(assert_overflow(&wire.refused("session.update", longer, "contextOverflow")), 6963);
    let both = update(json!({ "systemPrompt": "Be brief.", "contextSize": 2048 }));
    wire.ok("session.update", both);
}
