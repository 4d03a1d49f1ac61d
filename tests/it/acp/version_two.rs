//! The draft of version 2 of the protocol: what is different from version 1.

use serde_json::{Value, json};

use super::editor::{Editor, of_kind, prompt, text_of};
use super::tools::{script_call, server};
use crate::harness::{Answer, FakeOllama, Fault, array, assert_fields, until};

fn new_session(editor: &mut Editor, servers: Value) -> Value {
    let cwd = editor.sandbox.project_dir("project");
    editor.ok("session/new", json!({ "cwd": cwd, "mcpServers": servers }))
}

/// Starts an editor with a session.
fn start(fake: &FakeOllama) -> (Editor, String) {
    let mut editor = Editor::start_v2(&fake.config("tiny"));
    let session = new_session(&mut editor, Value::Null)["sessionId"].as_str().unwrap().to_owned();
    (editor, session)
}

/// Starts an editor with a session that has the MCP server of the tests.
fn start_with_server(fake: &FakeOllama) -> (Editor, String) {
    let mut editor = Editor::start_v2(&fake.config("tiny"));
    let mut server = server(&editor);
    server["type"] = json!("stdio");
    let session =
        new_session(&mut editor, json!([server]))["sessionId"].as_str().unwrap().to_owned();
    (editor, session)
}

fn resume(editor: &Editor, session: &str, from: Value) -> Value {
    json!({ "sessionId": session, "cwd": editor.sandbox.project_dir("project"), "replayFrom": from })
}

fn states(updates: &[Value]) -> Vec<&str> {
    let states = of_kind(updates, "state_update").into_iter();
    states.map(|update| update["state"].as_str().unwrap()).collect()
}

#[test]
fn draft_is_spoken_only_with_the_flag_and_an_editor_that_asks_for_it() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    assert_eq!(editor.agree(2)["protocolVersion"], 1);
    let call = json!({ "sessionId": "s", "toolCallId": "c" });
    assert_eq!(editor.refused("tool_call/cancel", call.clone())["code"], -32601);
    let mut editor = Editor::start_with(&fake.config("tiny"), &["--unstable-v2"]);
    assert_fields(&editor.agree(1), json!({ "protocolVersion": 1, "authMethods": [] }));
    assert_eq!(editor.agree(7)["protocolVersion"], 2, "the newest that is not newer");
    let reply = editor.agree(2);
    assert_fields(&reply["info"], json!({ "name": "ollm", "title": "ollm" }));
    let session = json!({
        "prompt": { "image": {}, "embeddedContext": {} },
        "mcp": { "stdio": {}, "http": {} },
        "delete": {},
        "fork": {},
    });
    assert_eq!(reply["capabilities"], json!({ "session": session }));
    for method in ["session/load", "session/set_mode"] {
        let params = json!({ "sessionId": "s", "cwd": "/", "modeId": "user" });
        assert_eq!(editor.refused(method, params)["code"], -32601, "{method}");
    }
    assert_eq!(editor.refused("tool_call/cancel", call)["code"], -32002);
}

#[test]
fn prompt_is_acknowledged_and_its_answer_ends_with_a_state() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("hello to you").thinking("who is it"));
    let (mut editor, session) = start(&fake);
    let (reply, updates) = editor.prompt_to_idle(prompt(&session, "hello"));
    let id = &reply["result"]["messageId"];
    assert!(id.is_string(), "{reply}");
    let content = json!([{ "type": "text", "text": "hello" }]);
    assert_eq!(
        *of_kind(&updates, "user_message")[0],
        json!({ "sessionUpdate": "user_message", "messageId": id, "content": content })
    );
    assert_eq!(states(&updates), ["running", "idle"]);
    assert_fields(updates.last().unwrap(), json!({ "stopReason": "end_turn", "state": "idle" }));
    let pieces = of_kind(&updates, "agent_message_chunk");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "hello to you");
    assert!(pieces.iter().all(|piece| piece["messageId"] == pieces[0]["messageId"]));
    assert_eq!(text_of(&updates, "agent_thought_chunk"), "who is it");
    let (_, updates) = editor.prompt_to_idle(prompt(&session, "/goal Port the parser"));
    assert_eq!(states(&updates), ["running", "idle"]);
    assert!(text_of(&updates, "agent_message_chunk").contains("Port the parser"));
    let plan = match of_kind(&updates, "plan_update").pop() {
        Some(plan) => plan.clone(),
        None => editor.update("plan_update"),
    };
    assert_fields(&plan["plan"], json!({ "type": "items", "planId": "goal" }));
    assert_eq!(plan["plan"]["entries"][0]["content"], "Port the parser");
}

#[test]
fn resumed_session_is_shown_as_whole_messages_with_the_same_ids() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("in a loop").thinking("easy"));
    let (mut editor, session) = start(&fake);
    let (first, updates) = editor.prompt_to_idle(prompt(&session, "How do I reverse a list?"));
    let (second, later) = editor.prompt_to_idle(prompt(&session, "And in Rust?"));
    let answer_of =
        |updates: &[Value]| of_kind(updates, "agent_message_chunk")[0]["messageId"].clone();
    editor.restart();
    let _agreed = editor.agree(2);
    let params = resume(&editor, &session, json!({ "type": "start" }));
    let (reply, shown) = editor.ok_with_updates("session/resume", params);
    let end = shown.iter().position(|update| update["sessionUpdate"] == "replay_complete").unwrap();
    let shape: Vec<(&str, &Value, &str)> = shown[..end]
        .iter()
        .map(|update| {
            let kind = update["sessionUpdate"].as_str().unwrap();
            (kind, &update["messageId"], update["content"][0]["text"].as_str().unwrap())
        })
        .collect();
    let (asked, asked_later) = (&first["result"]["messageId"], &second["result"]["messageId"]);
    let expected = [
        ("user_message", asked, "How do I reverse a list?"),
        ("agent_thought", &answer_of(&updates), "easy"),
        ("agent_message", &answer_of(&updates), "in a loop"),
        ("user_message", asked_later, "And in Rust?"),
        ("agent_message", &answer_of(&later), "ok"),
    ];
    assert_eq!(shape, expected);
    assert_eq!(*shown.last().unwrap(), json!({ "sessionUpdate": "state_update", "state": "idle" }));
    assert!(reply["configOptions"].is_array() && reply["availableCommands"].is_array(), "{reply}");

    let (_, shown) =
        editor.ok_with_updates("session/resume", resume(&editor, &session, Value::Null));
    assert!(
        of_kind(&shown, "user_message").is_empty() && of_kind(&shown, "replay_complete").is_empty()
    );
    assert_eq!(states(&shown), ["idle"], "also without the history");
    let unknown = resume(&editor, &session, json!({ "type": "message", "messageId": "1" }));
    assert_eq!(editor.refused("session/resume", unknown)["code"], -32602);
}

#[test]
fn failure_is_an_error_of_the_prompt_only_before_its_message_is_recorded() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    for content in [json!([]), json!([{ "type": "hologram" }]), json!("hello")] {
        let params = json!({ "sessionId": session, "prompt": content });
        let (reply, updates) = editor.prompt_to_idle(params);
        assert_eq!((&reply["error"]["code"], updates), (&json!(-32602), vec![]), "{content}");
    }
    let error = editor.refused("session/prompt", prompt("gone", "hello"));
    assert_fields(&error, json!({ "code": -32002, "data": { "sessionId": "gone" } }));
    let text = "model 'tiny' not found".to_owned();
    fake.inject("/api/chat", &[Fault::Error { status: 404, text }]);
    let (reply, updates) = editor.prompt_to_idle(prompt(&session, "hello"));
    assert!(reply["result"]["messageId"].is_string(), "{reply}");
    let idle = updates.last().unwrap();
    assert_eq!(idle["stopReason"], "error");
    assert_eq!(idle["error"]["data"]["kind"], "modelNotFound", "{idle}");
}

#[test]
fn canceled_answer_ends_as_idle_and_a_prompt_that_waits_is_refused() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
    let (mut editor, session) = start(&fake);
    let id = editor.send_prompt(&session, "count");
    let reply = std::iter::repeat_with(|| editor.next()).find(|message| message["id"] == id);
    assert!(reply.unwrap()["result"]["messageId"].is_string());
    let first = editor.update("agent_message_chunk");
    assert_eq!(first["content"]["text"], "one ");
    let waiting = editor.send_prompt(&session, "and then?");
    // The id of a request that was answered may be used again: this cancels nothing.
    editor.notify("$/cancel_request", json!({ "requestId": id }));
    let _sessions = editor.ok("session/list", json!({}));
    editor.notify("session/cancel", json!({ "sessionId": session }));
    let (mut refused, mut idle) = (Value::Null, Value::Null);
    while refused.is_null() || idle.is_null() {
        let message = editor.next();
        if message["id"] == waiting {
            refused = message;
        } else if message["params"]["update"]["state"] == "idle" {
            idle = message["params"]["update"].clone();
        }
    }
    assert_eq!(idle["stopReason"], "cancelled");
    assert_eq!(refused["error"]["code"], -32800, "{refused}");
    assert_eq!(editor.asked(&session).len(), 1, "the prompt that waited is not recorded");
}

#[test]
fn tool_call_is_one_entity_and_its_question_a_state() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start_with_server(&fake);
    script_call(&fake, "notes__note", json!({ "text": "milk" }));
    let (_, updates) = editor.prompt_to_idle(prompt(&session, "note milk"));
    assert_eq!(states(&updates), ["running", "requires_action", "running", "idle"]);
    let question = updates.iter().find(|update| update["method"].is_string()).unwrap();
    let params = &question["params"];
    assert_eq!(params["title"], "Run notes__note?");
    assert_eq!(params["subject"]["type"], "tool_call");
    assert!(of_kind(&updates, "tool_call").is_empty());
    let calls = of_kind(&updates, "tool_call_update");
    assert_eq!(params["subject"]["toolCall"]["toolCallId"], calls[0]["toolCallId"]);
    let name = "notes__note";
    assert_fields(
        calls[0],
        json!({ "title": name, "name": name, "status": "pending", "capabilities": { "cancel": {} } }),
    );
    assert_eq!(calls[1]["status"], "in_progress");
    assert_fields(calls[2], json!({ "status": "completed", "capabilities": null }));
    let gone = json!({ "sessionId": session, "toolCallId": calls[0]["toolCallId"] });
    assert_eq!(editor.refused("tool_call/cancel", gone)["code"], -32602);
    // An outcome that is not known permits nothing.
    script_call(&fake, "notes__note", json!({ "text": "bread" }));
    let id = editor.send_prompt(&session, "note bread");
    let question = std::iter::repeat_with(|| editor.next())
        .find(|message| message["method"] == "session/request_permission")
        .unwrap();
    let outcome = json!({ "outcome": "_later", "optionId": "allow_once" });
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": outcome } });
    assert_ne!(question["id"], id);
    editor.send_line(&answer.to_string());
    assert_eq!(editor.update("tool_call_update")["status"], "failed");
}

#[test]
fn canceled_tool_call_leaves_the_answer_of_the_model() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start_with_server(&fake);
    script_call(&fake, "notes__note", json!({ "text": "milk" }));
    let _id = editor.send_prompt(&session, "note milk");
    let question = std::iter::repeat_with(|| editor.next())
        .find(|message| message["method"] == "session/request_permission")
        .unwrap();
    let call = question["params"]["subject"]["toolCall"]["toolCallId"].clone();
    let id =
        editor.request("tool_call/cancel", json!({ "sessionId": session, "toolCallId": call }));
    let (mut updates, mut is_taken_back, mut is_accepted) = (Vec::new(), false, false);
    while states(&updates).last() != Some(&"idle") {
        let mut message = editor.next();
        is_taken_back |= message["method"] == "$/cancel_request";
        is_accepted |= message["id"] == id && message["result"] == json!({});
        updates.push(message["params"]["update"].take());
    }
    assert!(is_taken_back && is_accepted);
    let ended = of_kind(&updates, "tool_call_update").pop().unwrap();
    assert_fields(ended, json!({ "toolCallId": call, "status": "cancelled" }));
    assert_eq!(text_of(&updates, "agent_message_chunk"), "done");
    assert_eq!(updates.last().unwrap()["stopReason"], "end_turn");
}

#[test]
fn prompt_that_is_sent_again_is_recorded_and_run_once() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    let keyed = |text: &str, key: Value| {
        let mut params = prompt(&session, text);
        params["idempotencyKey"] = key;
        params
    };
    let (first, updates) = editor.prompt_to_idle(keyed("hello", json!("k1")));
    let answer = of_kind(&updates, "agent_message_chunk")[0]["messageId"].clone();
    let (again, updates) = editor.prompt_to_idle(keyed("hello", json!("k1")));
    assert_eq!(again["result"], first["result"]);
    assert_eq!(fake.requests("/api/chat").len(), 1);
    let whole = of_kind(&updates, "agent_message");
    let content = json!([{ "type": "text", "text": "ok" }]);
    assert_fields(whole[0], json!({ "messageId": answer, "content": content }));
    let (other, _) = editor.prompt_to_idle(keyed("another text", json!("k1")));
    assert_eq!(other["error"]["data"]["kind"], "conflict", "{other}");
    for key in [json!(""), json!(5), json!("k".repeat(256))] {
        let (reply, _) = editor.prompt_to_idle(keyed("hello", key));
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
    let (first, _) = editor.prompt_to_idle(keyed("/goal Port it", json!("k2")));
    let (again, updates) = editor.prompt_to_idle(keyed("/goal Port it", json!("k2")));
    assert_eq!(again["result"], first["result"]);
    assert!(of_kind(&updates, "agent_message_chunk").is_empty());
    let goals = editor.wire().ok("goal.list", json!({ "sessionId": session }));
    assert_eq!(array(&goals["data"]).len(), 1);
}

#[test]
fn prompt_that_waits_is_recorded_once_although_it_is_sent_again() {
    let fake = FakeOllama::new();
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let (mut editor, session) = start(&fake);
    let mut other = editor.wire();
    let message = json!({ "role": "user", "content": "mine" });
    let _turn = other.ok("chat.send", json!({ "sessionId": session, "message": message }));
    until("the model answers", || fake.n_held() == 1);
    let mut params = prompt(&session, "and mine");
    params["idempotencyKey"] = json!("k1");
    for _ in 0..2 {
        let _id = editor.request("session/prompt", params.clone());
        let notice = editor.update("notice");
        assert!(notice["title"].as_str().unwrap().contains("another message"), "{notice}");
        editor.restart();
        let _agreed = editor.agree(2);
        let again = resume(&editor, &session, Value::Null);
        let _opened = editor.ok("session/resume", again);
    }
    let records = editor.wire().records(&session);
    let asked = records.iter().filter(|record| record["message"]["role"] == "user");
    let asked: Vec<_> =
        asked.map(|record| (&record["message"]["parts"][0]["text"], &record["key"])).collect();
    assert_eq!(asked, [(&json!("mine"), &Value::Null), (&json!("and mine"), &json!("k1"))]);
}

#[test]
fn answer_that_a_killed_daemon_interrupted_is_written_in_its_place() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two"));
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let (mut editor, session) = start(&fake);
    let _id = editor.send_prompt(&session, "count");
    let first = editor.update("agent_message_chunk");
    editor.daemon.take().unwrap().kill();
    let emptied = editor.update("agent_message");
    assert_fields(&emptied, json!({ "messageId": first["messageId"], "content": [] }));
    let mut text = String::new();
    while text != "one two three" {
        let piece = editor.update("agent_message_chunk");
        assert_eq!(piece["messageId"], first["messageId"]);
        text.push_str(piece["content"]["text"].as_str().unwrap());
    }
    assert_eq!(editor.update("state_update")["stopReason"], "end_turn");
}

#[test]
fn servers_and_choices_that_do_not_fit_are_refused() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start_v2(&fake.config("thinker"));
    let cwd = editor.sandbox.project_dir("project");
    let mut refused = |servers: Value| {
        editor.refused("session/new", json!({ "cwd": cwd, "mcpServers": servers }))["code"].clone()
    };
    let stdio = |name: &str| json!({ "type": "stdio", "name": name, "command": "/bin/true" });
    assert_eq!(refused(json!([{ "type": "sse", "name": "a", "url": "http://a" }])), -32602);
    assert_eq!(refused(json!([{ "name": "a", "command": "/bin/true" }])), -32602);
    assert_eq!(refused(json!([{ "type": "stdio", "name": "a", "command": "true" }])), -32602);
    assert_eq!(refused(json!([stdio("a"), stdio("a")])), -32602);
    let opened = new_session(&mut editor, json!([stdio("a")]));
    let session = &opened["sessionId"];
    let option = array(&opened["configOptions"]).iter().find(|one| one["configId"] == "thinking");
    assert_fields(option.unwrap(), json!({ "type": "select", "category": "thought_level" }));
    let named = array(&opened["availableCommands"]).iter().find(|one| one["name"] == "goal");
    assert_fields(
        named.unwrap(),
        json!({ "type": "command", "input": { "type": "text", "hint": "aim" } }),
    );
    let choice = |kind: &str, id: &str, value: &str| json!({ "sessionId": session, "configId": id, "type": kind, "value": value });
    let reply = editor.ok("session/set_config_option", choice("id", "mode", "planning"));
    assert_fields(
        &reply["configOptions"][0],
        json!({ "configId": "mode", "currentValue": "planning" }),
    );
    for (kind, id, value) in
        [("id", "mode", "own"), ("id", "speed", "high"), ("_own", "mode", "user")]
    {
        let error = editor.refused("session/set_config_option", choice(kind, id, value));
        assert_eq!(error["code"], -32602, "{id} {value}");
    }
}

#[test]
fn closed_session_has_ended_before_the_reply() {
    let fake = FakeOllama::new();
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let (mut editor, session) = start(&fake);
    let _id = editor.send_prompt(&session, "hello");
    until("the model answers", || fake.n_held() == 1);
    let (_, updates) = editor.ok_with_updates("session/close", json!({ "sessionId": session }));
    let ended = of_kind(&updates, "state_update").pop().unwrap();
    assert_fields(ended, json!({ "state": "idle", "stopReason": "cancelled" }));
    for method in ["session/close", "session/delete", "session/delete"] {
        let reply = editor.ok(method, json!({ "sessionId": session }));
        assert_eq!(reply, json!({}), "{method}: what is not there any more is no error");
    }
}
