//! `session.*`: the life of a session, as a client sees it and as it lies on the disk.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire, fixture, text_message, until};

/// Text of the message in a record.
fn text_of(record: &Value) -> &str {
    record["message"]["parts"][0]["text"].as_str().unwrap_or_default()
}

fn sessions_on_disk(sandbox: &Sandbox) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(sandbox.home().join("sessions")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // The lock of the directory is there from the start.
    names.filter(|name| name != "ollmd.lock").collect()
}

/// A session with one record of every kind that a client can make.
fn full_session(wire: &mut Wire, project: &str) -> String {
    let session = wire.create(json!({
        "projectPath": project, "model": "qwen3:8b", "provider": "ollama", "systemPrompt": "Be brief.",
        "contextSize": 8192, "mode": "developer", "metadata": { "editor": "vim", "depth": { "n": 1 } },
    }));
    let _seq =
        wire.record(&session, "user", "How do I reverse a list? <b>&amp; \u{1b}[31mred 世界");
    let _result = wire.ok("session.record", json!({ "sessionId": session, "message": {
        "role": "assistant", "model": "qwen3:8b", "finishReason": "tool_calls", "durationMs": 1200,
        "timestamp": "2026-01-27T10:00:00Z",
        "parts": [
            { "type": "thinking", "text": "Look first." },
            { "type": "text", "text": "Let me look." },
            { "type": "toolCall", "id": "call_1", "name": "read_file", "args": { "path": "a.py", "deep": [1, { "x": null }] } },
        ] } }));
    let _result = wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": {
        "id": "call_1", "name": "read_file", "args": { "path": "a.py", "deep": [1, { "x": null }] },
        "result": { "llmContent": "def f(): pass", "displayContent": "1 line", "success": true, "exitCode": 0 },
        "durationMs": 3, "messageSeq": 2 } }));
    let _result = wire.ok(
        "session.recordCustom",
        json!({ "sessionId": session, "name": "editor.selection",
        "data": { "from": 1, "to": [2, 3] }, "contextText": "The user selected line 1." }),
    );
    let _result = wire.ok(
        "session.setMode",
        json!({ "sessionId": session, "mode": "planning", "trigger": "auto", "confidence": 0.75 }),
    );
    let _seq = wire.record(&session, "assistant", "Use `reversed(list)`.");
    session
}

/// Imports a text in chunks.
fn import(wire: &mut Wire, text: &str) -> Value {
    let half = (text.len() / 2..).find(|at| text.is_char_boundary(*at)).unwrap();
    let first = wire.ok("session.import", json!({ "data": text[..half], "last": false }));
    let upload = first["uploadId"].clone();
    assert!(upload.is_string(), "{first}");
    wire.ok("session.import", json!({ "uploadId": upload, "data": text[half..], "last": true }))
}

#[test]
fn a_draft_leaves_no_file_and_the_first_record_makes_it() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let created = wire.ok("session.create", json!({ "title": "Plans" }));
    let session = created["session"]["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(created["session"]["draft"], true);
    assert_eq!(created["session"]["status"], "active");
    assert!(sessions_on_disk(&sandbox).is_empty(), "{:?}", sessions_on_disk(&sandbox));

    let recorded = wire.ok("session.record", text_message(&session, "user", "hello"));
    assert_eq!(recorded["seq"], 1, "the header is 0");
    assert!(recorded["tokens"].as_u64().unwrap() > 0);
    assert_eq!(recorded["countKind"], "estimated");
    assert_eq!(recorded["usage"]["messageCount"], 1);
    assert!(sandbox.log_of(&session).is_file());

    let lost = wire.create(json!({}));
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    let _page = wire.ok("session.get", json!({ "sessionId": session }));
    wire.refused("session.get", json!({ "sessionId": lost }), "sessionNotFound");
}

#[test]
fn a_key_records_once_and_never_something_else() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let made = wire.ok("session.create", json!({ "title": "a", "key": "k1" }));
    let again = wire.ok("session.create", json!({ "title": "a", "key": "k1" }));
    assert_eq!(made["session"]["sessionId"], again["session"]["sessionId"]);
    wire.refused("session.create", json!({ "title": "b", "key": "k1" }), "conflict");
    let session = made["session"]["sessionId"].as_str().unwrap();

    let mut params = text_message(session, "user", "once");
    params["key"] = json!("k2");
    let first = wire.ok("session.record", params.clone());
    assert_eq!(first.get("duplicate"), None);
    let check = |wire: &mut Wire| {
        let retried = wire.ok("session.record", params.clone());
        assert_eq!(retried["duplicate"], true);
        assert_eq!((&retried["seq"], &retried["timestamp"]), (&first["seq"], &first["timestamp"]));
        let mut other = text_message(session, "user", "twice");
        other["key"] = json!("k2");
        wire.refused("session.record", other, "conflict");
        assert_eq!(wire.records(session).len(), 2);
    };
    check(&mut wire);
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    check(&mut wire);
    let again = wire.ok("session.create", json!({ "title": "a", "key": "k1" }));
    assert_eq!(
        again["session"]["sessionId"], session,
        "the key of a creation holds after a restart"
    );
}

#[test]
fn what_was_recorded_is_read_back_as_it_was_said() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let project = sandbox.project("tool");
    let session = full_session(&mut wire, &project);
    let check = |wire: &mut Wire| {
        let records = wire.records(&session);
        let kinds: Vec<&str> =
            records.iter().map(|record| record["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "session",
                "message",
                "message",
                "toolCall",
                "custom",
                "snapshot",
                "modeChange",
                "message"
            ]
        );
        for (at, record) in records.iter().enumerate() {
            assert_eq!(record["seq"], at);
        }
        assert_eq!(text_of(&records[1]), "How do I reverse a list? <b>&amp; \u{1b}[31mred 世界");
        let answer = &records[2]["message"];
        assert_eq!(
            answer["parts"][2]["args"],
            json!({ "path": "a.py", "deep": [1, { "x": null }] })
        );
        assert_eq!(answer["timestamp"], "2026-01-27T10:00:00.000Z");
        assert_eq!(answer["finishReason"], "tool_calls");
        assert_eq!(records[3]["toolCall"]["result"]["displayContent"], "1 line");
        assert_eq!(records[4]["custom"]["data"], json!({ "from": 1, "to": [2, 3] }));
        let changed = &records[6]["modeChange"];
        assert_eq!((&changed["from"], &changed["to"]), (&json!("developer"), &json!("planning")));
        assert_eq!(changed["confidence"], 0.75);
        let about = wire.ok("session.get", json!({ "sessionId": session }))["session"].clone();
        assert_eq!(about["messageCount"], 3);
        assert_eq!(about["toolCallCount"], 1);
        assert_eq!(about["mode"], "planning");
        assert_eq!(about["model"], "qwen3:8b");
        assert_eq!(about["projectPath"], project.as_str());
        assert_eq!(about["projectName"], "tool");
        assert_eq!(about["projectHash"].as_str().unwrap().len(), 16);
        assert_eq!(about["metadata"], json!({ "editor": "vim", "depth": { "n": 1 } }));
        assert!(
            about["title"].as_str().unwrap().starts_with("How do I reverse a list?"),
            "{about}"
        );
        let tokens = |record: &Value| match record["type"].as_str() {
            Some("message" | "toolCall") => record["tokens"].as_u64().unwrap_or_default(),
            _ => 0,
        };
        let sum: u64 = records.iter().map(tokens).sum();
        assert_eq!(about["tokenCount"], sum, "the total is the sum over the records");
        about
    };
    let live = check(&mut wire);
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    let replayed = check(&mut wire);
    assert_eq!(live, replayed, "replay gives the same state as the live session");
}

#[test]
fn reading_is_paged_from_either_end() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    for n in 1..=30 {
        let _seq =
            wire.record(&session, if n % 2 == 1 { "user" } else { "assistant" }, &format!("m{n}"));
    }
    let mut page = |from: Value, limit: Value| {
        let page =
            wire.ok("session.get", json!({ "sessionId": session, "from": from, "limit": limit }));
        let seqs: Vec<u64> = page["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["seq"].as_u64().unwrap())
            .collect();
        (seqs, page.get("nextFrom").cloned())
    };
    assert_eq!(page(json!(0), json!(3)), (vec![0, 1, 2], Some(json!(3))));
    assert_eq!(page(json!(28), json!(10)), (vec![28, 29, 30], None));
    assert_eq!(page(json!(-2), Value::Null), (vec![29, 30], None));
    assert_eq!(page(json!(-31), json!(1)), (vec![0], Some(json!(1))));
    assert_eq!(page(json!(-1000), json!(1)), (vec![0], Some(json!(1))));
    assert_eq!(page(json!(31), Value::Null), (vec![], None));
    let resumed = wire.ok("session.resume", json!({ "sessionId": session, "limit": 4 }));
    let texts: Vec<&str> = resumed["records"].as_array().unwrap().iter().map(text_of).collect();
    assert_eq!(texts, ["m27", "m28", "m29", "m30"]);
    for limit in [0, 1001] {
        wire.refused(
            "session.get",
            json!({ "sessionId": session, "limit": limit }),
            "invalidParams",
        );
    }
}

#[test]
fn a_page_ends_before_it_fills_a_frame() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let text = "z".repeat(3 << 20);
    for _ in 0..8 {
        let _seq = wire.record(&session, "user", &text);
    }
    let page = wire.ok("session.get", json!({ "sessionId": session }));
    assert!(page["nextFrom"].is_i64(), "24 MiB do not fit into a frame");
    let records = wire.records(&session);
    assert_eq!(records.len(), 9);
    assert!(records[1..].iter().all(|record| text_of(record).len() == text.len()));
}

#[test]
fn a_project_remembers_its_current_session() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let (one, two) = (sandbox.project("one"), sandbox.project("two"));
    assert_eq!(wire.ok("session.current", json!({ "projectPath": one })), json!({}));
    let session = wire.create(json!({ "projectPath": one }));
    let _seq = wire.record(&session, "user", "hello");
    let set = wire.ok("session.setCurrent", json!({ "projectPath": one, "sessionId": session }));
    assert_eq!(set["session"]["sessionId"], session.as_str());
    let link = sandbox.path("link");
    std::os::unix::fs::symlink(&one, &link).unwrap();
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    for path in [one.as_str(), &format!("{one}/"), &format!("{one}/../one"), link.to_str().unwrap()]
    {
        let current = wire.ok("session.current", json!({ "projectPath": path }));
        assert_eq!(current["session"]["sessionId"], session.as_str(), "{path}");
    }
    assert_eq!(wire.ok("session.current", json!({ "projectPath": two })), json!({}));
    let absent = json!({ "projectPath": one, "sessionId": "01890000-0000-7000-8000-000000000000" });
    wire.refused("session.setCurrent", absent, "sessionNotFound");
    let _forgotten = wire.ok("session.setCurrent", json!({ "projectPath": one }));
    assert_eq!(wire.ok("session.current", json!({ "projectPath": one })), json!({}));
    let _set = wire.ok("session.setCurrent", json!({ "projectPath": one, "sessionId": session }));
    let _gone = wire.ok("session.delete", json!({ "sessionId": session }));
    assert_eq!(
        wire.ok("session.current", json!({ "projectPath": one })),
        json!({}),
        "deleted is forgotten"
    );
    wire.refused(
        "session.create",
        json!({ "projectPath": sandbox.path("nowhere").to_str().unwrap() }),
        "invalidParams",
    );
}

#[test]
fn close_update_and_archive_change_what_lists_say() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({ "metadata": { "a": 1, "b": 2 } }));
    let _seq = wire.record(&session, "user", "The first words of this session");
    let id = json!({ "sessionId": session });
    assert_eq!(wire.ok("session.close", id.clone())["session"]["status"], "closed");
    assert_eq!(
        wire.ok("session.close", id.clone())["session"]["status"],
        "closed",
        "closing twice is fine"
    );
    let closes = wire.records(&session).iter().filter(|record| record["type"] == "close").count();
    assert_eq!(closes, 1);
    let _seq = wire.record(&session, "user", "again");
    assert_eq!(
        wire.ok("session.get", id.clone())["session"]["status"],
        "active",
        "recording opens it again"
    );

    let update = |wire: &mut Wire, patch: Value| {
        let mut params = patch;
        params["sessionId"] = json!(session);
        wire.ok("session.update", params)["session"].clone()
    };
    let changed = update(
        &mut wire,
        json!({ "title": "Better", "pinned": true, "metadata": { "a": null, "c": [3] } }),
    );
    assert_eq!(changed["title"], "Better");
    assert_eq!(changed["pinned"], true);
    assert_eq!(changed["metadata"], json!({ "b": 2, "c": [3] }));
    assert_eq!(
        update(&mut wire, json!({ "title": "" }))["title"],
        "The first words of this session"
    );
    let changed = update(&mut wire, json!({ "model": "llama3", "contextSize": 4096 }));
    assert_eq!((&changed["model"], &changed["contextSize"]), (&json!("llama3"), &json!(4096)));
    wire.refused(
        "session.update",
        json!({ "sessionId": session, "contextSize": 100 }),
        "invalidParams",
    );

    let listed = |wire: &mut Wire, params: Value| -> Vec<String> {
        let page = wire.ok("session.list", params);
        page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["sessionId"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(wire.ok("session.archive", id.clone())["session"]["status"], "archived");
    assert!(listed(&mut wire, json!({})).is_empty(), "the archived are put away");
    assert_eq!(listed(&mut wire, json!({ "status": "archived" })), std::slice::from_ref(&session));
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    until("the list is complete", || {
        (listed(&mut wire, json!({ "status": "archived" })) == std::slice::from_ref(&session))
            .then_some(())
    });
    let back = wire.ok("session.unarchive", id)["session"].clone();
    assert_eq!(back["metadata"], json!({ "b": 2, "c": [3] }));
    assert_eq!(listed(&mut wire, json!({})), std::slice::from_ref(&session));
}

#[test]
fn lists_are_paged_filtered_and_newest_first() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let project = sandbox.project("p");
    let mut sessions = Vec::new();
    for n in 0..12 {
        let params = if n % 3 == 0 { json!({ "projectPath": project }) } else { json!({}) };
        let session = wire.create(params);
        let _seq = wire.record(&session, "user", &format!("session {n}"));
        sessions.push(session);
    }
    let last_activity = |wire: &mut Wire, id: &str| {
        let whole = wire.ok("session.get", json!({ "sessionId": id, "limit": 1 }));
        whole["session"]["lastActivity"].as_str().unwrap().to_owned()
    };
    until("a later millisecond", || {
        let _seq = wire.record(&sessions[4], "user", "the last activity");
        let others = last_activity(&mut wire, &sessions[11]);
        (last_activity(&mut wire, &sessions[4]) > others).then_some(())
    });
    let mut expected: Vec<String> =
        sessions.iter().rev().filter(|id| **id != sessions[4]).cloned().collect();
    expected.insert(0, sessions[4].clone());
    let mut listed = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut params = json!({ "limit": 5 });
        if !cursor.is_null() {
            params["cursor"] = cursor.clone();
        }
        let page = wire.ok("session.list", params);
        let data = page["data"].as_array().unwrap();
        assert!(data.len() <= 5);
        listed.extend(data.iter().map(|s| s["sessionId"].as_str().unwrap().to_owned()));
        match page.get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!(listed, expected);
    let of_project = wire.ok("session.list", json!({ "projectPath": project }));
    assert_eq!(of_project["data"].as_array().unwrap().len(), 4);
    let by_prefix = wire.ok("session.list", json!({ "idPrefix": sessions[7] }));
    assert_eq!(by_prefix["data"][0]["sessionId"], sessions[7].as_str());
    assert_eq!(by_prefix["data"].as_array().unwrap().len(), 1);
}

#[test]
fn delete_leaves_no_byte() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let word = "quokkaberry7391";
    let session =
        wire.create(json!({ "title": format!("about {word}"), "metadata": { "m": word } }));
    let _seq = wire.record(&session, "user", &format!("I like {word} very much"));
    let _seq = wire.record(&session, "assistant", &format!("{word} {}", "filler ".repeat(20_000)));
    let _saved = wire.ok("session.save", json!({ "sessionId": session }));
    let other = wire.create(json!({}));
    let _seq = wire.record(&other, "user", "unrelated words");
    until("the word can be found", || {
        let found = wire.ok("session.search", json!({ "query": word }));
        (found["data"].as_array().unwrap().len() >= 2).then_some(())
    });
    assert!(!sandbox.files_with(word).is_empty());
    let gone = wire.ok("session.delete", json!({ "sessionId": session }));
    assert_eq!(gone["sessionId"], session.as_str());
    let files = sessions_on_disk(&sandbox);
    assert!(!files.iter().any(|name| name.contains(&session)), "not even after a while: {files:?}");
    wire.refused("session.get", json!({ "sessionId": session }), "sessionNotFound");
    wire.refused("session.delete", json!({ "sessionId": session }), "sessionNotFound");
    assert_eq!(wire.ok("session.search", json!({ "query": word }))["data"], json!([]));
    until("the catalog says that it has forgotten", || {
        (wire.ok("daemon.status", json!({}))["catalog"]["forgetting"] == 0).then_some(())
    });
    assert_eq!(sandbox.files_with(word), Vec::<std::path::PathBuf>::new());
    let named = |sandbox: &Sandbox| {
        sessions_on_disk(sandbox)
            .into_iter()
            .filter(|name| name.contains(&session))
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&sandbox), Vec::<String>::new());
    assert_eq!(wire.records(&other).len(), 2, "and nothing else goes");
    assert!(daemon.terminate().success());
    assert_eq!(sandbox.files_with(word), Vec::<std::path::PathBuf>::new());
    assert_eq!(sandbox.files_with(&session), Vec::<std::path::PathBuf>::new(), "not even its id");
}

#[test]
fn an_interrupted_delete_is_finished_at_the_next_start() {
    let sandbox = Sandbox::new();
    for round in 0..10 {
        let (daemon, mut wire) = sandbox.served();
        let session = wire.create(json!({}));
        let word = format!("halfgone{round}");
        let _seq = wire.record(&session, "user", &format!("{word} {}", "x".repeat(100 << 10)));
        let _id = wire.request("session.delete", json!({ "sessionId": session }));
        daemon.kill9();
        let (daemon, mut wire) = sandbox.served();
        // Either it was there before the end, whole, or it is gone without a trace.
        match wire.call("session.get", json!({ "sessionId": session })) {
            Ok(page) => {
                assert_eq!(page["records"].as_array().unwrap().len(), 2);
                let _gone = wire.ok("session.delete", json!({ "sessionId": session }));
            }
            Err(error) => assert_eq!(error["data"]["kind"], "sessionNotFound", "{error}"),
        }
        until("no file has the word", || sandbox.files_with(&word).is_empty().then_some(()));
        daemon.kill9();
    }
}

#[test]
fn clear_and_cleanup_delete_what_they_say() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let mut sessions = Vec::new();
    for n in 0..6 {
        let session = wire.create(json!({}));
        let _seq = wire.record(&session, "user", &format!("session {n}"));
        sessions.push(session);
    }
    let _pinned = wire.ok("session.update", json!({ "sessionId": sessions[0], "pinned": true }));
    let _archived = wire.ok("session.archive", json!({ "sessionId": sessions[1] }));
    let ids = |result: &Value| {
        let mut ids: Vec<String> = result["deleted"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["sessionId"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };
    let planned = wire.ok("session.cleanup", json!({ "keep": 2, "dryRun": true }));
    assert_eq!(planned["dryRun"], true);
    assert_eq!(ids(&planned), sessions[2..4].to_vec(), "{planned}");
    assert_eq!(wire.records(&sessions[2]).len(), 2, "a dry run changes nothing");
    let done = wire.ok("session.cleanup", json!({ "keep": 2 }));
    assert_eq!(ids(&done), ids(&planned));
    wire.refused("session.get", json!({ "sessionId": sessions[2] }), "sessionNotFound");
    for kept in [0, 1, 4, 5] {
        let _page = wire.ok("session.get", json!({ "sessionId": sessions[kept] }));
    }
    wire.refused("session.clear", json!({ "all": false }), "invalidParams");
    wire.refused("session.clear", json!({}), "invalidParams");
    let cleared = wire.ok("session.clear", json!({ "all": true }));
    assert_eq!(ids(&cleared).len(), 4);
    let logs: Vec<String> =
        sessions_on_disk(&sandbox).into_iter().filter(|name| name.contains(".json")).collect();
    assert_eq!(logs, Vec::<String>::new());
    assert_eq!(wire.ok("session.list", json!({}))["data"], json!([]));
}

#[test]
fn the_document_is_the_projection_of_the_log() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = full_session(&mut wire, &sandbox.project("tool"));
    let saved = wire.ok("session.save", json!({ "sessionId": session }));
    let path = Path::new(saved["path"].as_str().unwrap());
    assert!(path.ends_with(format!("sessions/{session}.json")), "{saved}");
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(saved["sizeBytes"], text.len());
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["sessionId"], session.as_str());
    assert_eq!(document["model"], "qwen3:8b");
    let roles: Vec<&str> = document["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "assistant"]);
    assert_eq!(document["messages"][1]["parts"][2]["name"], "read_file");
    assert_eq!(document["toolCalls"][0]["result"]["llmContent"], "def f(): pass");
    assert_eq!(document["metadata"]["modeHistory"][0]["to"], "planning");
    assert_eq!(document["metadata"]["userMessageCount"], 1);
    let exported: Value = serde_json::from_str(&wire.export(&session, "json")).unwrap();
    assert_eq!(exported["messages"], document["messages"]);
    std::fs::remove_file(path).unwrap();
    let _again = wire.ok("session.save", json!({ "sessionId": session }));
    assert!(path.exists(), "the document can be deleted at any time");
}

#[test]
fn exports_for_people_carry_the_words_and_no_commands() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = full_session(&mut wire, &sandbox.project("tool"));
    let attack = "<script>alert(1)</script> <img src=x onerror=alert(2)> [a](javascript:alert(3))";
    let _seq = wire.record(&session, "assistant", attack);
    let markdown = wire.export(&session, "markdown");
    assert!(markdown.contains("reversed(list)"), "{markdown}");
    assert!(markdown.contains("*calls* `read_file` `{"), "{markdown}");
    assert!(!markdown.contains('\u{1b}'), "escape sequences stay out");
    assert!(!markdown.replace("\\<", "").contains("<script"), "a `<` is escaped: {markdown}");
    let html = wire.export(&session, "html");
    assert!(html.to_lowercase().starts_with("<!doctype html>"), "{html}");
    for bad in ["<script", "<img", "javascript:alert(3)\"", "\u{1b}"] {
        assert!(!html.contains(bad), "{bad} in the page");
    }
    assert!(html.contains("&lt;script&gt;"), "{html}");
    assert!(html.contains("世界"));
}

#[test]
fn import_of_our_own_exports_is_the_identity_and_idempotent() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let project = sandbox.project("tool");
    let session = full_session(&mut wire, &project);
    let _seq = wire.record(&session, "user", &"large 世界 ".repeat(30_000));
    let _closed = wire.ok("session.update", json!({ "sessionId": session, "title": "Round trip" }));
    for format in ["jsonl", "json"] {
        let exported = wire.export(&session, format);
        let other_home = Sandbox::new();
        let (_other, mut other) = other_home.served();
        let imported = import(&mut other, &exported);
        let report = &imported["report"];
        assert_eq!(report["losses"], json!([]), "{format}: {report}");
        let copy = imported["session"]["sessionId"].as_str().unwrap().to_owned();
        assert_eq!(imported["session"]["title"], "Round trip", "{format}");
        assert_eq!(imported["session"]["messageCount"], 4, "{format}");
        let said = |records: Vec<Value>| -> Vec<Value> {
            records
                .into_iter()
                .filter_map(|record| match record["type"].as_str().unwrap() {
                    "message" => Some(record["message"].clone()),
                    "toolCall" if format == "jsonl" => Some(record["toolCall"].clone()),
                    _ => None,
                })
                .collect()
        };
        assert_eq!(said(other.records(&copy)), said(wire.records(&session)), "{format}");
        let again = import(&mut other, &exported);
        assert_eq!(again["report"]["alreadyImported"], true, "{format}: {again}");
        assert_eq!(again["session"]["sessionId"], copy.as_str(), "{format}");
        assert_eq!(
            other.ok("session.list", json!({}))["data"].as_array().unwrap().len(),
            1,
            "{format}"
        );
        let back = other.export(&copy, format);
        if format == "jsonl" {
            let lines =
                |text: &str| text.lines().filter(|line| line.contains("\"message\":{")).count();
            assert_eq!(lines(&back), lines(&exported));
        }
    }
}

#[test]
fn foreign_files_are_imported_with_a_report_or_refused_with_a_reason() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    for (file, format) in
        [("pi-v1.jsonl", "pi v1"), ("pi-v2.jsonl", "pi v2"), ("pi-v3.jsonl", "pi v3")]
    {
        let text = std::fs::read_to_string(fixture("import").join(file)).unwrap();
        let dry = wire.ok("session.import", json!({ "data": text, "last": true, "dryRun": true }));
        let imported = wire.ok("session.import", json!({ "data": text, "last": true }));
        let report = &imported["report"];
        assert_eq!(report["format"], format, "{report}");
        assert_eq!(
            dry["report"]["importedRecords"], report["importedRecords"],
            "a dry run tells the truth"
        );
        assert!(report["importedRecords"].as_u64().unwrap() > 2, "{report}");
        assert!(report["sourceRecords"].as_u64().unwrap() >= 3, "{report}");
        let id = imported["session"]["sessionId"].as_str().unwrap().to_owned();
        assert!(wire.records(&id).iter().any(|record| record["type"] == "message"), "{file}");
    }
    let before = sessions_on_disk(&sandbox).len();
    for text in ["", "hello", "{}", "[]", "{\"type\":\"unheard\"}\n", "\u{0}"] {
        let error = wire.call("session.import", json!({ "data": text, "last": true })).unwrap_err();
        assert!(error["message"].as_str().unwrap().len() > 10, "{text:?}: {error}");
        assert_ne!(error["data"]["kind"], "internal", "{text:?}: {error}");
    }
    assert_eq!(sessions_on_disk(&sandbox).len(), before, "a refused file leaves nothing");
}

#[test]
fn a_mode_that_changes_while_others_record_is_marked_by_the_leaf_that_it_follows() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut other = daemon.wire();
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| {
            (0..100).for_each(|n| {
                let _seq = other.record(&session, "user", &format!("message {n}"));
            });
        });
        for n in 0..30 {
            let mode = format!("mode{n}");
            let changed = wire.ok("session.setMode", json!({ "sessionId": session, "mode": mode }));
            assert_eq!(changed["session"]["mode"], mode.as_str());
        }
        recording.join().unwrap();
    });
    let records = wire.records(&session);
    let (mut leaf, mut mode, mut n_changes) = (Value::Null, Value::Null, 0);
    for record in &records {
        match record["type"].as_str().unwrap() {
            "snapshot" => assert_eq!(record["snapshot"]["leaf"], leaf, "{record}"),
            "modeChange" => {
                let change = &record["modeChange"];
                assert_eq!(change["from"], mode, "{record}");
                (leaf, mode) = (record["seq"].clone(), change["to"].clone());
                n_changes += 1;
            }
            "message" => leaf = record["seq"].clone(),
            _ => {}
        }
    }
    assert_eq!(n_changes, 30);
}
