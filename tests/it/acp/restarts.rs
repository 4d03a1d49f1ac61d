//! A daemon that ends under an agent, which starts the next one: a killed one, one that was stopped, and one that has lost
//! a draft.

use serde_json::json;

use super::editor::{Editor, text_of};
use crate::harness::{Answer, FakeOllama, Fault};

#[test]
fn answer_that_a_killed_daemon_interrupted_is_given_again() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two"));
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let id = editor.send_prompt(&session, "count");
    let first = editor.update("agent_message_chunk");
    editor.daemon.take().unwrap().kill();
    let (reply, updates) = editor.reply(id);
    assert_eq!(reply["result"]["stopReason"], "end_turn", "{reply}");
    assert!(text_of(&updates, "agent_thought_chunk").contains("answers again"), "{updates:?}");
    assert_eq!(text_of(&updates, "agent_message_chunk"), "one two three");
    let again = updates.iter().find(|update| update["sessionUpdate"] == "agent_message_chunk");
    assert_ne!(again.unwrap()["messageId"], first["messageId"], "it is another message");
    assert_eq!(editor.asked(&session).len(), 1, "the message is recorded once");
}

#[test]
fn agent_goes_on_with_the_next_daemon() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    assert_eq!(editor.prompt(&session, "hello").0, "end_turn");
    let (draft, directory) = (editor.new_session(), editor.sandbox.project_dir("project"));
    assert!(editor.daemon.take().unwrap().terminate().success());
    assert_eq!(editor.prompt(&session, "still there?").0, "end_turn");
    // The daemon that ended knew the draft; its first prompt begins it again.
    assert_eq!(editor.prompt(&draft, "and here?").0, "end_turn");
    let list = editor.ok("session/list", json!({ "cwd": directory }));
    let titles = list["sessions"].as_array().unwrap().iter().map(|session| &session["title"]);
    assert_eq!(titles.collect::<Vec<_>>(), ["and here?", "hello"]);
    let title = json!({ "sessionId": session, "title": "Renamed" });
    let _session = editor.wire().ok("session.update", title);
    loop {
        if editor.update("session_info_update")["title"] == "Renamed" {
            return;
        }
    }
}
