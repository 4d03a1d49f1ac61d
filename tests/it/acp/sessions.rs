//! Sessions of the editor: loaded, listed, copied, closed and deleted, with their modes and options.

use serde_json::{Value, json};

use super::editor::{Editor, of_kind, text_of};
use crate::harness::{Answer, FakeOllama, UNKNOWN_SESSION, array, assert_fields};

fn reopen(editor: &Editor, session: &str) -> Value {
    json!({ "sessionId": session, "cwd": editor.sandbox.project_dir("project"), "mcpServers": [] })
}

#[test]
fn session_is_one_of_its_directory_and_nothing_is_written_before_its_first_prompt() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let option =
        |name: &str, value: &str| json!({ "sessionId": session, "configId": name, "value": value });
    let _options = editor.ok("session/set_config_option", option("model", "thinker"));
    let _mode =
        editor.ok("session/set_mode", json!({ "sessionId": session, "modeId": "planning" }));
    assert!(!editor.sandbox.log_path(&session).exists());
    let _answered = editor.prompt(&session, "hello");
    let found = editor.wire().ok("session.get", json!({ "sessionId": session }))["session"].take();
    let project = editor.sandbox.project_dir("project");
    assert_fields(
        &found,
        json!({ "projectPath": project, "model": "thinker", "mode": "planning" }),
    );
    let current = editor.wire().ok("session.current", json!({ "projectPath": project }));
    assert_eq!(current["session"]["sessionId"], session.as_str());
}

#[test]
fn load_shows_the_whole_session_before_its_reply_and_resume_shows_nothing() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("in a loop").thinking("easy"));
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let _answered = editor.prompt(&session, "How do I reverse a list?");
    let _answered = editor.prompt(&session, "And in Rust?");
    editor.restart();
    let error = editor.prompt_refused(&session, "still there?");
    assert_eq!(error["code"], -32002, "a session is opened first: {error}");
    let params = reopen(&editor, &session);
    let (reply, updates) = editor.ok_with_updates("session/load", params.clone());
    let shown: Vec<(&str, &str)> = updates
        .iter()
        .filter_map(|update| {
            let kind = update["sessionUpdate"].as_str()?.strip_suffix("_chunk")?;
            Some((kind, update["content"]["text"].as_str()?))
        })
        .collect();
    let expected = [
        ("user_message", "How do I reverse a list?"),
        ("agent_thought", "easy"),
        ("agent_message", "in a loop"),
        ("user_message", "And in Rust?"),
        ("agent_message", "ok"),
    ];
    assert_eq!(shown, expected);
    assert_eq!(of_kind(&updates, "usage_update").len(), 1);
    let option = |id: &str| {
        let options = array(&reply["configOptions"]).iter();
        options.clone().find(|option| option["id"] == id).unwrap().clone()
    };
    assert_eq!(option("model")["currentValue"], "tiny");
    assert_eq!(option("thinking")["currentValue"], "default");
    let (_, updates) = editor.ok_with_updates("session/resume", params);
    assert_eq!(text_of(&updates, "user_message_chunk"), "");
    assert_eq!(editor.prompt(&session, "still there?").0, "end_turn");
    let unknown = reopen(&editor, UNKNOWN_SESSION);
    assert_eq!(editor.refused("session/load", unknown)["code"], -32002);
}

#[test]
fn list_has_pages_and_only_sessions_of_the_directory() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let mut wire = editor.wire();
    let (here, elsewhere) =
        (editor.sandbox.project_dir("project"), editor.sandbox.project_dir("b"));
    for number in 0..60 {
        let project = if number % 12 == 0 { &elsewhere } else { &here };
        let params = json!({ "title": format!("n{number}"), "projectPath": project });
        let session = wire.create(params);
        let _seq = wire.record(&session, "user", "hello");
    }
    let lone = wire.create(json!({}));
    let _seq = wire.record(&lone, "user", "without a project");
    let mut list = |params: Value| editor.ok("session/list", params);
    let first = list(json!({ "cwd": here }));
    let second = list(json!({ "cwd": here, "cursor": first.get("nextCursor") }));
    let titles = |page: &Value| -> Vec<String> {
        let sessions = array(&page["sessions"]).iter();
        sessions.map(|session| session["title"].as_str().unwrap().to_owned()).collect()
    };
    let found = match first.get("nextCursor") {
        Some(_) => [titles(&first), titles(&second)].concat(),
        None => titles(&first),
    };
    let expected = (0..60).rev().filter(|number| number % 12 != 0);
    assert_eq!(found, expected.map(|number| format!("n{number}")).collect::<Vec<_>>());
    let all = list(json!({}));
    assert_eq!(array(&all["sessions"]).len(), 50);
    assert!(all["nextCursor"].is_string());
    assert_fields(
        &all["sessions"][0],
        json!({ "sessionId": lone, "cwd": "/", "title": "without a project" }),
    );
    let rest = list(json!({ "cursor": all["nextCursor"] }));
    assert_eq!(array(&rest["sessions"]).len(), 11);
    assert!(rest.get("nextCursor").is_none());
}

#[test]
fn fork_goes_on_by_itself_and_close_and_delete_end_a_session() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let _answered = editor.prompt(&session, "hello");
    let reply = {
        let params = reopen(&editor, &session);
        editor.ok("session/fork", params)
    };
    let fork = reply["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(fork, session);
    let _answered = editor.prompt(&fork, "only here");
    let n_messages = |editor: &Editor, session: &str| {
        editor.wire().ok("session.get", json!({ "sessionId": session }))["session"]["messageCount"]
            .as_u64()
    };
    assert_eq!((n_messages(&editor, &session), n_messages(&editor, &fork)), (Some(2), Some(4)));
    let _closed = editor.ok("session/close", json!({ "sessionId": session }));
    let closed = editor.wire().ok("session.get", json!({ "sessionId": session }));
    assert_eq!(closed["session"]["status"], "closed");
    assert_eq!(editor.prompt_refused(&session, "hello?")["code"], -32002);
    let _deleted = editor.ok("session/delete", json!({ "sessionId": fork }));
    editor.wire().refused("session.get", json!({ "sessionId": fork }), "sessionNotFound");
    // A draft leaves no file when it is closed.
    let draft = editor.new_session();
    let _closed = editor.ok("session/close", json!({ "sessionId": draft }));
    assert!(!editor.sandbox.log_path(&draft).exists());
}

#[test]
fn options_change_what_the_session_keeps_and_changes_of_others_are_shown() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("thinker"));
    let session = editor.new_session();
    let _answered = editor.prompt(&session, "hello");
    let option =
        |name: &str, value: &str| json!({ "sessionId": session, "configId": name, "value": value });
    let reply = editor.ok("session/set_config_option", option("thinking", "off"));
    let options = array(&reply["configOptions"]);
    let thinking = options.iter().find(|option| option["id"] == "thinking").unwrap();
    assert_eq!(thinking["currentValue"], "off");
    let _answered = editor.prompt(&session, "and now?");
    assert_eq!(fake.requests("/api/chat").last().unwrap().body["think"], false);
    assert_eq!(
        editor.refused("session/set_config_option", option("thinking", "x"))["code"],
        -32602
    );
    assert_eq!(editor.refused("session/set_config_option", option("speed", "x"))["code"], -32602);
    let mode = json!({ "sessionId": session, "mode": "debugger" });
    let _session = editor.wire().ok("session.setMode", mode);
    assert_eq!(editor.update("current_mode_update")["currentModeId"], "debugger");
    let options = editor.update("config_option_update")["configOptions"].take();
    assert_eq!(options[0]["currentValue"], "debugger");
}

#[test]
fn model_without_tools_or_default_is_used_as_it_is() {
    let fake = FakeOllama::new();
    // No model is configured: the first of the server is used.
    let mut editor = Editor::start(&format!("ollama:\n  host: {}\n", fake.host()));
    let session = editor.new_session();
    assert_eq!(editor.prompt(&session, "hello").0, "end_turn");
    assert!(fake.requests("/api/chat").last().unwrap().body["model"].is_string());
}
