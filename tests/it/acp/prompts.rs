//! Prompts: streamed answers, cancellation, large and several prompts, and commands.

use std::io::Write as _;

use serde_json::{Value, json};

use super::editor::{Editor, of_kind, prompt, text_of};
use crate::harness::{Answer, FakeOllama, Fault, array, assert_fields, until};

#[test]
fn answer_streams_in_pieces_of_one_message_and_is_recorded() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("hello to you").thinking("who is it"));
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let (reason, updates) = editor.prompt(&session, "hello");
    assert_eq!(reason, "end_turn");
    let pieces = of_kind(&updates, "agent_message_chunk");
    assert_eq!(pieces.len(), 3, "{updates:?}");
    assert!(pieces.iter().all(|piece| piece["messageId"] == pieces[0]["messageId"]));
    assert_eq!(text_of(&updates, "agent_message_chunk"), "hello to you");
    assert_eq!(text_of(&updates, "agent_thought_chunk"), "who is it");
    let usage = of_kind(&updates, "usage_update");
    assert_eq!(usage[0]["size"], 8192);
    assert!(usage[0]["used"].as_u64().unwrap() > 0);
    let phases: Vec<&Value> = of_kind(&updates, "session_info_update")
        .into_iter()
        .map(|update| &update["_meta"]["ollm.phase"]["name"])
        .filter(|name| name.is_string())
        .collect();
    assert_eq!(phases, ["loading", "reading", "answering"]);
    let records = editor.wire().records(&session);
    let roles = records.iter().filter_map(|record| record["message"]["role"].as_str());
    assert_eq!(roles.collect::<Vec<_>>(), ["user", "assistant"]);
    let (_, updates) = editor.prompt(&session, "and now?");
    let later = of_kind(&updates, "agent_message_chunk");
    assert_ne!(later[0]["messageId"], pieces[0]["messageId"]);
}

#[test]
fn title_of_a_session_arrives_after_its_first_prompt_and_when_it_changes() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let id = editor.send_prompt(&session, "How do I reverse a list?");
    let mut title = Value::Null;
    let mut is_answered = false;
    while title.is_null() || !is_answered {
        let message = editor.next();
        is_answered |= message["id"] == id;
        if message["params"]["update"]["title"].is_string() {
            title = message["params"]["update"]["title"].clone();
        }
    }
    assert_eq!(title, "How do I reverse a list?");
    let renamed = json!({ "sessionId": session, "title": "Lists" });
    let _session = editor.wire().ok("session.update", renamed);
    assert_eq!(editor.update("session_info_update")["title"], "Lists");
}

#[test]
fn canceled_prompt_ends_as_canceled_and_its_partial_answer_is_kept() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let id = editor.send_prompt(&session, "count");
    let first = editor.update("agent_message_chunk");
    assert_eq!(first["content"]["text"], "one ");
    editor.notify("session/cancel", json!({ "sessionId": session }));
    let (reply, _) = editor.reply(id);
    assert_eq!(reply["result"]["stopReason"], "cancelled", "{reply}");
    let records = editor.wire().records(&session);
    let partial =
        &records.iter().rev().find(|record| record["type"] == "message").unwrap()["message"];
    assert_fields(partial, json!({ "role": "assistant", "finishReason": "canceled" }));
    assert!(partial["parts"][0]["text"].as_str().unwrap().starts_with("one "));
    assert_eq!(editor.prompt(&session, "again").0, "end_turn");

    // The cancellation of the request means the same, and one that comes first is not lost.
    fake.inject("/api/chat", &[Fault::Hang]);
    let id = editor.send_prompt(&session, "count");
    editor.notify("$/cancel_request", json!({ "requestId": id }));
    let (reply, _) = editor.reply(id);
    assert_eq!(reply["result"]["stopReason"], "cancelled", "{reply}");
}

#[test]
fn large_prompt_arrives_as_a_whole() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let text = "word ".repeat(1 << 20);
    let (reason, updates) = editor.prompt(&session, &text);
    assert_eq!(reason, "end_turn");
    let remark = text_of(&updates, "agent_thought_chunk");
    assert!(remark.contains("reads only"), "the person learns that it was cut: {remark}");
    let page = editor.wire().ok("session.get", json!({ "sessionId": session, "from": -20 }));
    let asked = array(&page["records"]).iter().find(|record| record["message"]["role"] == "user");
    let recorded = asked.unwrap()["message"]["parts"][0]["text"].as_str().unwrap();
    assert_eq!(recorded.len(), text.len());
}

#[test]
fn files_and_pictures_of_a_prompt_are_recorded_with_their_paths() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("seer"));
    let session = editor.new_session();
    let path = editor.sandbox.path("notes.txt");
    std::fs::File::create(&path).unwrap().write_all(b"The port is 48213.\n").unwrap();
    let pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let params = json!({ "sessionId": session, "prompt": [
        { "type": "text", "text": "Which port?" },
        { "type": "resource_link", "uri": format!("file://{}", path.display()), "name": "notes.txt" },
        { "type": "image", "mimeType": "image/png", "data": pixel },
    ] });
    let reply = editor.ok("session/prompt", params);
    assert_eq!(reply["stopReason"], "end_turn");
    let records = editor.wire().records(&session);
    let asked = records.iter().find(|record| record["message"]["role"] == "user").unwrap();
    let parts = &asked["message"]["parts"];
    let expected = format!("Which port?\n\n{}:\n```\nThe port is 48213.\n```\n\n", path.display());
    assert_eq!(parts[0]["text"], expected);
    assert_fields(&parts[1], json!({ "type": "image", "data": pixel }));
}

#[test]
fn two_sessions_answer_at_the_same_time_and_one_answers_in_order() {
    let fake = FakeOllama::new();
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    fake.script(Answer::text("slow answer"));
    fake.script(Answer::text("quick answer"));
    let mut editor = Editor::start(&fake.config("tiny"));
    let (first, second) = (editor.new_session(), editor.new_session());
    let model = json!({ "sessionId": second, "configId": "model", "value": "thinker" });
    let _options = editor.ok("session/set_config_option", model);
    let slow = editor.send_prompt(&first, "take your time");
    until("the model answers", || fake.n_held() == 1);
    let quick = editor.send_prompt(&second, "be quick");
    let (reply, _) = editor.reply(quick);
    assert_eq!(reply["result"]["stopReason"], "end_turn");
    let waiting = editor.request("session/prompt", prompt(&first, "and then?"));
    fake.resume();
    let (reply, _) = editor.reply(slow);
    assert_eq!(reply["result"]["stopReason"], "end_turn");
    let (reply, _) = editor.reply(waiting);
    assert_eq!(reply["result"]["stopReason"], "end_turn");
}

#[test]
fn prompt_waits_for_the_answer_to_another_client() {
    let fake = FakeOllama::new();
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let mut other = editor.wire();
    let message = json!({ "role": "user", "content": "mine" });
    let _turn = other.ok("chat.send", json!({ "sessionId": session, "message": message }));
    until("the model answers", || fake.n_held() == 1);
    let id = editor.send_prompt(&session, "and mine");
    let remark = editor.update("agent_thought_chunk");
    assert!(remark["content"]["text"].as_str().unwrap().contains("another message"), "{remark}");
    fake.resume();
    let (reply, _) = editor.reply(id);
    assert_eq!(reply["result"]["stopReason"], "end_turn");
    assert_eq!(editor.asked(&session), ["mine", "and mine"]);
}

#[test]
fn prompts_behind_an_answer_are_recorded_in_order_when_the_editor_leaves() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    for text in ["first", "second", "/undo", "third"] {
        let _id = editor.send_prompt(&session, text);
        // The first one is being answered; the others wait for it.
        until("the model answers", || fake.n_held() == 1);
    }
    assert_eq!(editor.end(), Some(0));
    assert_eq!(editor.asked(&session), ["first", "second", "third"]);
    fake.resume();
    let mut wire = editor.wire();
    until("the whole answer is recorded", || {
        let records = wire.records(&session);
        records.iter().any(|record| record["message"]["parts"][0]["text"] == "one two three")
    });
    assert_eq!(editor.asked(&session), ["first", "second", "third"]);
}

#[test]
fn prompts_are_recorded_once_however_soon_the_editor_leaves() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let (draft, session) = (editor.new_session(), editor.new_session());
    assert_eq!(editor.prompt(&session, "hello").0, "end_turn");
    for text in ["first", "second"] {
        let _id = editor.send_prompt(&draft, text);
        let _id = editor.send_prompt(&session, text);
    }
    assert_eq!(editor.end(), Some(0));
    assert_eq!(editor.asked(&draft), ["first", "second"]);
    assert_eq!(editor.asked(&session), ["hello", "first", "second"]);
}

#[test]
fn canceled_prompt_is_not_recorded_when_the_editor_leaves() {
    let fake = FakeOllama::new();
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let _id = editor.send_prompt(&session, "first");
    until("the model answers", || fake.n_held() == 1);
    let second = editor.send_prompt(&session, "second");
    let _id = editor.send_prompt(&session, "third");
    editor.notify("$/cancel_request", json!({ "requestId": second }));
    assert_eq!(editor.end(), Some(0));
    assert_eq!(editor.asked(&session), ["first", "third"]);
}

#[test]
fn commands_are_answered_without_a_model() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let answer = |editor: &mut Editor, text: &str| {
        let (reason, updates) = editor.prompt(&session, text);
        assert_eq!(reason, "end_turn", "{text}");
        text_of(&updates, "agent_message_chunk")
    };
    assert_eq!(answer(&mut editor, "The staging port is 48213."), "ok");
    let n_requests = fake.requests("/api/chat").len();
    let check = |editor: &mut Editor, text: &str, expect: &str| {
        let answer = answer(editor, text);
        assert!(answer.contains(expect), "{text}: {answer}");
    };
    check(&mut editor, "/context", "Context:");
    check(&mut editor, "/remember Never touch legacy/.", "remembered in this session");
    check(&mut editor, "/goal Port the parser", "Port the parser");
    check(&mut editor, "/goal", "Port the parser");
    check(&mut editor, "/recall which port does staging use?", "48213");
    check(&mut editor, "/undo", "undone:");
    check(&mut editor, "/redo", "redone:");
    check(&mut editor, "/undo nothing", "error:");
    check(&mut editor, "/compact", "the context stays as it is");
    assert_eq!(fake.requests("/api/chat").len(), n_requests);
    assert_eq!(answer(&mut editor, "/unknown is for the model"), "ok");
}

#[test]
fn goal_is_shown_as_a_plan() {
    let fake = FakeOllama::new();
    let mut editor = Editor::start(&fake.config("tiny"));
    let session = editor.new_session();
    let _answered = editor.prompt(&session, "hello");
    let steps = json!([
        { "action": "create", "description": "Port the parser", "priority": "high" },
        { "action": "setNextSteps", "nextSteps": ["Read it", "Test it"] },
    ]);
    let _goal = editor.wire().ok("goal.change", json!({ "sessionId": session, "steps": steps }));
    let entry = |text: &str| json!({ "content": text, "priority": "high", "status": "pending" });
    assert_eq!(editor.update("plan")["entries"], json!([entry("Read it"), entry("Test it")]));
    let done = json!([{ "action": "update", "status": "completed" }]);
    let _goal = editor.wire().ok("goal.change", json!({ "sessionId": session, "steps": done }));
    assert_eq!(editor.update("plan")["entries"], json!([]));
}
