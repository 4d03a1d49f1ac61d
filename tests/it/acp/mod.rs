//! `ollmctl acp`: an agent for editors, driven over pipes as an editor does it.

mod editor;
mod prompts;
mod restarts;
mod sessions;
mod tools;
mod version_two;

use serde_json::{Value, json};

use crate::harness::{FakeOllama, assert_fields};
use editor::Editor;

#[test]
fn handshake_names_what_the_agent_can_do() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    for version in [1, 2, 0] {
        let capabilities = json!({ "fs": { "readTextFile": true }, "terminal": true, "later": {} });
        let params = json!({ "protocolVersion": version, "clientCapabilities": capabilities });
        let reply = editor.ok("initialize", params);
        assert_eq!(reply["protocolVersion"], 1);
        assert_fields(
            &reply["agentCapabilities"],
            json!({
                "loadSession": true,
                "promptCapabilities": { "image": true, "audio": false, "embeddedContext": true },
                "sessionCapabilities": { "list": {}, "resume": {}, "close": {}, "delete": {}, "fork": {} },
            }),
        );
        assert_fields(&reply["agentInfo"], json!({ "name": "ollm" }));
    }
    assert_eq!(editor.end(), Some(0), "the end of the input is a clean end");
}

#[test]
fn what_is_no_request_gets_an_error_and_the_next_request_an_answer() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let check = |editor: &mut Editor, line: &str, id: Value, code: i64| {
        editor.send_line(line);
        let reply = editor.next();
        assert_eq!((&reply["id"], reply["error"]["code"].as_i64()), (&id, Some(code)), "{line}");
    };
    check(&mut editor, "garbage", Value::Null, -32700);
    check(&mut editor, "[]", Value::Null, -32600);
    check(&mut editor, r#"{"jsonrpc":"2.0","id":5}{}"#, Value::Null, -32700);
    let unknown = r#"{"jsonrpc":"2.0","id":"a","method":"session/teleport","params":{}}"#;
    check(&mut editor, unknown, json!("a"), -32601);
    let without_cwd = r#"{"jsonrpc":"2.0","id":8,"method":"session/new","params":{}}"#;
    check(&mut editor, without_cwd, json!(8), -32602);
    editor.send_line("");
    editor.send_line(r#"{"jsonrpc":"2.0","method":"_unknown/notification","params":{}}"#);
    editor.send_line(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#);
    let reply = editor.ok("initialize", json!({ "protocolVersion": 1 }));
    assert_eq!(reply["protocolVersion"], 1);
}

#[test]
fn errors_have_the_message_of_the_daemon_and_its_hint() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let params = json!({ "cwd": "/no/such/directory", "mcpServers": [] });
    let error = editor.refused("session/new", params);
    assert!(error["message"].as_str().unwrap().contains("directory"), "{error}");
    let session = editor.new_session();
    fake.inject(
        "/api/chat",
        &[crate::harness::Fault::Error { status: 404, text: "model 'tiny' not found".to_owned() }],
    );
    let error = editor.prompt_refused(&session, "hello");
    assert_eq!(error["data"]["kind"], "modelNotFound", "{error}");
    let hint = error["data"]["hint"].as_str().expect("an error of the model has a hint");
    assert!(error["message"].as_str().unwrap().ends_with(&format!("(try: {hint})")), "{error}");
    let error = editor.refused("session/prompt", json!({ "sessionId": "gone", "prompt": [] }));
    assert_eq!(error["code"], -32002);
}
