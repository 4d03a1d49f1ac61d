//! The MCP servers of the editor: their tools are offered, permitted and called.

use serde_json::{Value, json};

use super::editor::{Editor, of_kind};
use crate::harness::{Answer, FakeOllama, array, assert_fields, until};

/// A small MCP server.
const SERVER: &str = include_str!("mcp_server.sh");

/// Returns the server of the tests, as an editor names it.
pub(super) fn server(editor: &Editor) -> Value {
    let script = editor.sandbox.path("server.sh");
    std::fs::write(&script, SERVER).unwrap();
    let env = json!([{ "name": "GIVEN_TOKEN", "value": "given" }]);
    json!({ "name": "notes", "command": "/bin/sh", "args": [script], "env": env })
}

/// Starts an editor with the server, whose model calls a tool and then answers.
fn start(fake: &FakeOllama) -> (Editor, String) {
    let mut editor = Editor::start(&fake.config("tiny"));
    let server = server(&editor);
    let session = editor.new_session_with(json!([server]));
    (editor, session)
}

pub(super) fn script_call(fake: &FakeOllama, tool: &str, args: Value) {
    fake.script(Answer::text("").tool_call(tool, args));
    fake.script(Answer::text("done"));
}

/// Returns the texts of the tool results that the model was sent last.
fn results(fake: &FakeOllama) -> Vec<String> {
    let sent = fake.requests("/api/chat").pop().unwrap().body["messages"].clone();
    let results = array(&sent).iter().filter(|message| message["role"] == "tool");
    results.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tool_runs_after_the_person_allowed_it_without_secrets_of_the_shell() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    script_call(&fake, "notes__note", json!({ "text": "milk" }));
    let (reason, updates) = editor.prompt(&session, "note milk");
    assert_eq!(reason, "end_turn");
    let offered = fake.requests("/api/chat")[0].body["tools"].clone();
    let names: Vec<_> =
        array(&offered).iter().map(|tool| tool["function"]["name"].clone()).collect();
    for name in ["notes__note", "notes__die"] {
        assert!(names.contains(&json!(name)), "{names:?}");
    }
    let question = updates.iter().find(|update| update["method"] == "session/request_permission");
    let question = &question.unwrap()["params"];
    assert_eq!(question["toolCall"]["rawInput"], json!({ "text": "milk" }));
    assert_eq!(question["toolCall"]["kind"], "other", "no editor allows it because of its name");
    let kinds: Vec<_> = array(&question["options"]).iter().map(|one| one["kind"].clone()).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
    let call = of_kind(&updates, "tool_call")[0];
    assert_fields(call, json!({ "title": "notes__note", "status": "pending" }));
    let changes = of_kind(&updates, "tool_call_update");
    let statuses: Vec<_> = changes.iter().map(|change| change["status"].clone()).collect();
    assert_eq!(statuses, ["in_progress", "completed"]);
    assert!(changes.iter().all(|change| change["toolCallId"] == call["toolCallId"]));
    assert_eq!(
        results(&fake),
        ["noted [] [seen] [given]"],
        "what the server sees of its environment"
    );
    // Allowed once is not allowed the next time.
    script_call(&fake, "notes__note", json!({ "text": "bread" }));
    editor.permits = "reject_once";
    let (_, updates) = editor.prompt(&session, "note bread");
    let failed = of_kind(&updates, "tool_call_update").pop().unwrap();
    assert_eq!(failed["status"], "failed");
    assert!(results(&fake).last().unwrap().contains("does not allow"));
}

#[test]
fn file_that_a_tool_wrote_is_put_back_with_the_turn() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    let draft = editor.sandbox.path("project").join("draft.txt");
    let content = || std::fs::read_to_string(&draft).unwrap();
    std::fs::write(&draft, "before").unwrap();
    script_call(&fake, "notes__write", json!({}));
    let (reason, _) = editor.prompt(&session, "write it");
    assert_eq!((reason.as_str(), content().as_str()), ("end_turn", "after"));
    let _done = editor.sandbox.ctl(["undo", "--session", &session, "--files", "--yes"]).ok();
    assert_eq!(content(), "before");
}

#[test]
fn call_of_an_unknown_tool_is_refused_without_a_question() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    editor.permits = "allow_always";
    // As a rule, this name would allow all tools of the server.
    script_call(&fake, "notes__*", json!({}));
    let (_, updates) = editor.prompt(&session, "note milk");
    assert!(!updates.iter().any(|update| update["method"].is_string()), "{updates:?}");
    assert!(results(&fake).last().unwrap().contains("There is no tool"));
    let found = editor.wire().ok("session.get", json!({ "sessionId": session }));
    assert!(found["session"]["metadata"].get("ollm.permissions").is_none(), "{found}");
}

#[test]
fn permission_is_kept_with_the_session_and_its_forks() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    script_call(&fake, "notes__note", json!({ "text": "milk" }));
    editor.permits = "allow_always";
    let _answered = editor.prompt(&session, "note milk");
    let asks = |updates: &[Value]| updates.iter().any(|update| update["method"].is_string());
    script_call(&fake, "notes__note", json!({ "text": "bread" }));
    let (_, updates) = editor.prompt(&session, "note bread");
    assert!(!asks(&updates), "{updates:?}");
    let list = |editor: &Editor, args: &[&str]| {
        let args = ["sessions", "permissions", &session].into_iter().chain(args.iter().copied());
        editor.sandbox.ctl(args).ok()
    };
    assert_eq!(list(&editor, &[]), "allow  notes__note\n");
    assert_eq!(list(&editor, &["--deny", "notes__*"]), "deny   notes__*\nallow  notes__note\n");
    script_call(&fake, "notes__note", json!({ "text": "beer" }));
    let (_, updates) = editor.prompt(&session, "note beer");
    assert!(!asks(&updates) && results(&fake).last().unwrap().contains("does not allow"));
    let fork = editor.wire().ok("session.fork", json!({ "sessionId": session }));
    let kept = fork["session"]["metadata"]["ollm.permissions"].clone();
    assert_eq!(kept[0], json!({ "tool": "notes__*", "decision": "deny" }));
    assert_eq!(list(&editor, &["--remove", "notes__*"]), "allow  notes__note\n");
    let unknown = ["sessions", "permissions", &session, "--remove", "x"];
    assert!(editor.sandbox.ctl(unknown).fails(2).contains("no rule"));
    let wrong = json!({ "sessionId": session, "metadata": { "ollm.permissions": [1] } });
    editor.wire().refused("session.update", wrong, "invalidParams");
}

#[test]
fn canceled_prompt_takes_its_question_back() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    script_call(&fake, "notes__note", json!({ "text": "milk" }));
    let id = editor.send_prompt(&session, "note milk");
    let question = std::iter::repeat_with(|| editor.next())
        .find(|message| message["method"] == "session/request_permission")
        .unwrap();
    editor.notify("session/cancel", json!({ "sessionId": session }));
    let taken_back = std::iter::repeat_with(|| editor.next())
        .find(|message| message["method"] == "$/cancel_request")
        .unwrap();
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    let (reply, _) = editor.reply(id);
    assert_eq!(reply["result"]["stopReason"], "cancelled", "{reply}");
}

#[test]
fn server_that_dies_or_does_not_start_costs_its_tools_only() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let missing = json!({ "name": "missing", "command": "/no/such/server", "args": [], "env": [] });
    let sse = json!({ "name": "old", "type": "sse", "url": "http://127.0.0.1:9", "headers": [] });
    let closed =
        json!({ "name": "closed", "type": "http", "url": "http://127.0.0.1:9/mcp", "headers": [] });
    let servers = json!([missing, sse, closed, server(&editor)]);
    let session = editor.new_session_with(servers);
    script_call(&fake, "notes__die", json!({}));
    let (reason, updates) = editor.prompt(&session, "break it");
    assert_eq!(reason, "end_turn");
    let remarks: Vec<_> = of_kind(&updates, "agent_thought_chunk")
        .iter()
        .filter_map(|remark| remark["content"]["text"].as_str())
        .collect();
    for name in ["missing", "old", "closed"] {
        let is_named = |remark: &&&str| remark.contains(&format!("server {name} does not work"));
        assert_eq!(remarks.iter().filter(is_named).count(), 1, "{remarks:?}");
    }
    assert!(results(&fake)[0].contains("has ended"), "{:?}", results(&fake));
    let (reason, updates) = editor.prompt(&session, "go on");
    assert_eq!(reason, "end_turn");
    assert!(of_kind(&updates, "agent_thought_chunk").is_empty(), "problems are told once");
    assert!(fake.requests("/api/chat").last().unwrap().body.get("tools").is_none());
}

#[test]
fn end_of_the_editor_leaves_an_answer_but_not_one_that_needs_its_tools() {
    let fake = FakeOllama::new();
    let (mut editor, session) = start(&fake);
    script_call(&fake, "notes__note", json!({ "text": "milk" }));
    let _id = editor.send_prompt(&session, "note milk");
    let _question = std::iter::repeat_with(|| editor.next())
        .find(|message| message["method"] == "session/request_permission");
    assert_eq!(editor.end(), Some(0));
    let mut wire = editor.wire();
    until("the turn is canceled", || {
        let canceled = wire.ok("chat.cancel", json!({ "sessionId": session }));
        canceled["canceled"] == false
    });

    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[crate::harness::Fault::Stall { after: 1 }]);
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let _id = editor.send_prompt(&session, "count");
    until("the model answers", || fake.n_held() == 1);
    assert_eq!(editor.end(), Some(0));
    fake.resume();
    let mut wire = editor.wire();
    until("the whole answer is recorded", || {
        let records = wire.records(&session);
        records.iter().any(|record| record["message"]["parts"][0]["text"] == "one two three")
    });
}

#[test]
fn prompt_that_waits_for_its_servers_is_recorded_when_the_editor_leaves() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let script = "while read -r _; do :; done";
    let silent =
        json!({ "name": "silent", "command": "/bin/sh", "args": ["-c", script], "env": [] });
    let session = editor.new_session_with(json!([silent]));
    let _id = editor.send_prompt(&session, "keep this");
    assert_eq!(editor.end(), Some(0));
    let records = editor.wire().records(&session);
    let asked = records.iter().find(|record| record["message"]["role"] == "user").unwrap();
    assert_eq!(asked["message"]["parts"][0]["text"], "keep this");
    assert!(fake.requests("/api/chat").is_empty(), "nobody runs the tools of an answer");
}
