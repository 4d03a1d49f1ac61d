//! `ollmctl chat` on a terminal: prompts, commands, Ctrl-C, and errors in the middle of a conversation.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::json;

use super::{ChatFixture, pairs};
use crate::harness::{Answer, FakeOllama, Fault, ScreenTerminal, Terminal, array, program, until};

#[test]
fn conversation_with_multiline_input_commands_and_history() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("Use \u{1b}[2Jreversed().\u{1b}]0;owned\u{7}"));
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    terminal.send("How do I \\\r");
    terminal.send("reverse a list?\r");
    terminal.expect("Use reversed().");
    terminal.expect("Context: ");
    terminal.send("/sesion info\r");
    terminal.expect("try:");
    terminal.expect("/session info");
    terminal.send("/debug context\r");
    terminal.expect("counted exactly, by full-history");
    terminal.send("//usr is a path\r");
    terminal.expect("ok");
    terminal.expect("Context: ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let screen = terminal.screen();
    assert!(!screen.contains("\u{1b}[2J") && !screen.contains("owned"), "{screen:?}");
    let messages = fixture.messages();
    assert_eq!(messages[0].1, "How do I \nreverse a list?");
    assert_eq!(messages[2].1, "/usr is a path");
    let id = fixture.sessions()[0]["sessionId"].as_str().unwrap().to_owned();
    let history = fixture.sandbox.home().join("chat-history").join(id);
    assert_eq!(history.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn typed_lines_are_offered_again_until_their_session_is_deleted() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    terminal.send("about herons\r");
    terminal.expect("Context: ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let mut terminal = fixture.terminal(&["--resume", "last"]);
    terminal.expect("/help lists");
    terminal.expect("> ");
    // Up twice: the last line is /exit.
    terminal.send("\u{1b}[A\u{1b}[A");
    terminal.expect("about herons");
    terminal.send("\u{15}");
    let history = fixture.sandbox.home().join("chat-history");
    let n_files = || std::fs::read_dir(&history).unwrap().count();
    assert_eq!(n_files(), 1);
    assert!(fixture.sandbox.ctl(["sessions", "delete", "--yes", "last"]).ok().contains("deleted"));
    assert_eq!(n_files(), 0);
    terminal.send("and storks?\r");
    terminal.expect("error: ");
    // The message is given back.
    terminal.expect("> and storks?");
    terminal.send("\u{15}\u{4}");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(n_files(), 0, "an open chat does not bring them back");
}

#[test]
fn missing_model_is_chosen_from_a_list() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::with_config(&format!("ollama:\n  host: {}\n", fake.host()));
    let error = fixture.chat(&["hello"], "").fails(2);
    let names = ["tiny:latest", "thinker:latest", "seer:latest", "plain:latest"];
    for name in names.into_iter().chain(["try: ollmctl chat --model "]) {
        assert!(error.contains(name), "{name}: {error}");
    }
    let mut terminal = fixture.terminal(&["hello"]);
    terminal.expect("Which one, 1 to 4, or its name?");
    terminal.send("tiny:latest\r");
    terminal.expect("ok");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(fixture.sessions()[0]["model"], "tiny:latest");
}

#[test]
fn resumed_session_is_chosen_from_a_list() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    for text in ["about lists", "about trees"] {
        assert_eq!(fixture.chat(&[text], "").ok(), "ok\n");
    }
    let mut terminal = fixture.terminal(&["--resume"]);
    terminal.expect("about lists");
    terminal.send("2\r");
    terminal.expect("about lists");
    terminal.expect("/help");
    terminal.send("and then?\r");
    terminal.expect("Context: ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(fixture.messages()[2].1, "and then?");
    assert_eq!(fixture.messages()[0].1, "about lists");
}

#[test]
fn goal_and_pin_commands_change_the_session() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("[CHECKPOINT] Read the code - COMPLETED"));
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    terminal.send("/goal Reverse a list\r");
    terminal.expect("medium priority");
    terminal.send("Begin.\r");
    terminal.expect("Context: ");
    terminal.send("/pin\r");
    terminal.expect("pinned: #");
    terminal.send("/goal\r");
    terminal.expect("done   Read the code");
    terminal.send("/unpin\r");
    terminal.expect("nothing is pinned");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn history_after_a_long_undo_shows_the_active_branch() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    terminal.send("about herons\r");
    terminal.expect("Context: ");
    for number in 0..12 {
        let text = format!("storks {number}");
        fixture.sandbox.ctl(["record", "--session", "last", &text]).ok();
    }
    terminal.send("/undo 12\r");
    terminal.expect("undone:");
    terminal.expect("12 can be redone");
    terminal.send("/history 2\r");
    terminal.expect("about herons");
    terminal.expect("> ");
    fixture.sandbox.ctl(["record", "--session", "last", &"crane ".repeat(20)]).ok();
    terminal.send("/history 1\r");
    terminal.expect(&format!("{}\r\ncrane crane", ["crane"; 16].join(" ")));
    terminal.expect("> ");
    terminal.send("/pin\r");
    terminal.expect("pinned: #");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let screen = terminal.screen();
    let shown = &screen[screen.find("/history 2").unwrap()..];
    assert!(!shown.contains("storks"), "{shown}");
}

#[test]
fn ctrl_c_cancels_the_answer_and_a_second_one_exits() {
    let fake = FakeOllama::new();
    for _ in 0..2 {
        fake.script(Answer::text("half an answer"));
        fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    }
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    terminal.send("hello\r");
    terminal.expect("half");
    terminal.send("\u{3}");
    // The notice stands on a line of its own.
    terminal.expect("\n");
    terminal.expect("canceled; the answer so far is kept");
    assert_eq!(fixture.messages(), pairs(&[("user", "hello"), ("assistant", "half ")]));
    let view = fixture.sandbox.ctl(["sessions", "view", "last"]).ok();
    assert!(view.contains("(canceled)"), "{view}");
    terminal.send("/retry\r");
    terminal.expect("half");
    // The client must exit even if the daemon hangs.
    fixture.daemon.signal(Signal::STOP);
    terminal.send("\u{3}");
    terminal.expect("Ctrl-C again leaves");
    terminal.send("\u{3}");
    assert_eq!(terminal.exit_code(), 130);
    fixture.daemon.signal(Signal::CONT);
}

#[test]
fn chat_is_stopped_at_the_prompt_and_during_an_answer_and_goes_on() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("half an answer"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let fixture = ChatFixture::new(&fake);
    let chat = format!("{} chat --no-history", program("ollmctl").display());
    let stops = "echo first stop; read line; fg; echo second stop; read line; fg";
    let script = format!("set -m; {chat}; {stops}; echo the end");
    let args = ["-c", &script];
    let mut terminal =
        ScreenTerminal::start_with(&fixture.sandbox, "/bin/sh", &args, (200, 40), &[]);
    terminal.shows(&["> "]);
    terminal.send("about\u{1a}");
    terminal.shows(&["first stop"]);
    terminal.send("\r");
    terminal.shows(&["--no-history\n> about"]);
    terminal.send(" herons\r");
    terminal.shows(&["\nhalf"]);
    assert!(terminal.screen().bracketed_paste());
    terminal.send("\u{1a}");
    terminal.shows(&["\nhalf", "\nsecond stop"]);
    assert!(!terminal.screen().bracketed_paste() && !terminal.screen().hide_cursor());
    // The terminal echoes again.
    terminal.send("typed");
    terminal.shows(&["typed"]);
    terminal.send("\r");
    terminal.shows(&["--no-history\nhalf"]);
    fake.resume();
    terminal.shows(&["--no-history\nhalf an answer\nContext: "]);
    terminal.send("/exit\r");
    terminal.shows(&["the end"]);
    assert!(!terminal.screen().bracketed_paste());
    let expect = pairs(&[("user", "about herons"), ("assistant", "half an answer")]);
    assert_eq!(fixture.messages(), expect);
}

#[test]
fn message_waits_for_the_answer_in_another_shell_or_is_taken_back() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    assert_eq!(fixture.chat(&["zero"], "").ok(), "ok\n");
    fake.script(Answer::text("half an answer"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut first = fixture.terminal(&["-c"]);
    first.expect("> ");
    let mut second = fixture.terminal(&["-c"]);
    second.expect("> ");
    first.send("one\r");
    first.expect("half");
    let error = fixture.chat(&["-c", "not now"], "").fails(4);
    assert!(!error.contains("cancel") && error.contains("when that answer has ended"), "{error}");
    second.send("/retry\r");
    second.expect("try: /retry  # when that answer has ended");
    second.send("two\r");
    second.expect("your message waits, Ctrl-C takes it back");
    second.send("\u{3}");
    second.expect("> two");
    assert_eq!(fixture.messages().len(), 3, "the message is not recorded");
    second.send(" again\r");
    second.expect("your message waits");
    first.send("\u{3}");
    first.expect("canceled");
    second.expect("ok");
    second.expect("Context: ");
    let messages = fixture.messages();
    let last = &messages[messages.len() - 2..];
    assert_eq!(last, pairs(&[("user", "two again"), ("assistant", "ok")]));
    for mut terminal in [first, second] {
        terminal.send("/exit\r");
        assert_eq!(terminal.exit_code(), 0);
    }
}

#[test]
fn answer_in_another_shell_is_shown_from_the_middle_and_left_running() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    assert_eq!(fixture.chat(&["zero"], "").ok(), "ok\n");
    fake.script(Answer::text("half an answer").thinking("a thought"));
    fake.inject("/api/chat", &[Fault::Stall { after: 3 }]);
    let mut first = fixture.terminal(&["-c"]);
    first.expect("> ");
    first.send("one\r");
    first.expect("half");
    let mut second = fixture.terminal(&["-c"]);
    second.expect("another client is being answered");
    second.expect("a thought");
    second.expect("half");
    second.send("\u{3}");
    second.expect("that answer goes on");
    second.expect("> ");
    let mut third = fixture.terminal(&["-c"]);
    third.expect("half");
    fake.resume();
    for terminal in [&mut third, &mut first] {
        terminal.expect("answer");
        terminal.expect("Context: ");
        terminal.expect("> ");
    }
    let messages = fixture.messages();
    let answer = ("assistant", "a thoughthalf an answer");
    assert_eq!(messages[2..], pairs(&[("user", "one"), answer]));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    first.send("two\r");
    first.expect("ok");
    let mut fourth = fixture.terminal(&["-c"]);
    fourth.expect("another client is being answered");
    first.send("\u{3}");
    fourth.expect("that answer was canceled");
    for mut terminal in [first, second, third, fourth] {
        terminal.send("/exit\r");
        assert_eq!(terminal.exit_code(), 0);
    }
}

#[test]
fn question_that_is_canceled_before_its_answer_is_given_back_and_not_in_the_next_prompt() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    terminal.send("about herons\r");
    terminal.expect("Context: ");
    fake.script(Answer::text("never shown"));
    fake.inject("/api/chat", &[Fault::Stall { after: 0 }]);
    terminal.expect("> ");
    terminal.send("about storks\r");
    until("the model is asked", || fake.requests("/api/chat").len() == 2);
    terminal.send("\u{3}");
    terminal.expect("canceled before the answer began; your message is undone");
    terminal.expect("> about storks");
    terminal.send(" again\r");
    terminal.expect("ok");
    terminal.expect("Context: ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let sent = fake.requests("/api/chat").pop().unwrap().body["messages"].take();
    let contents: Vec<_> = array(&sent).iter().map(|message| &message["content"]).collect();
    assert_eq!(contents, ["about herons", "ok", "about storks again"]);
}

#[test]
fn long_lines_end_between_words_and_a_stalled_answer_is_shown() {
    let fake = FakeOllama::new();
    fake.script(Answer::text(&"abcdefghi ".repeat(12)));
    fake.inject("/api/chat", &[Fault::Stall { after: 11 }]);
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    terminal.send("long\r");
    terminal.expect(&format!("{}\r\nabcdefghi", ["abcdefghi"; 10].join(" ")));
    terminal.expect("tiny has stopped in its answer; Ctrl-C cancels (5 s)");
    fake.resume();
    terminal.expect("abcdefghi");
    terminal.expect("Context: ");
    terminal.send("/help all\r");
    terminal.expect("on, off, low, medium, high\r\n");
    terminal.send("/undo bogus\r");
    terminal.expect("the number of operations is 1 to 1000");
    terminal.send("/redo\r");
    terminal.expect("error: there is nothing to redo");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn ctrl_c_at_empty_prompt_exits_after_confirmation() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    terminal.send("never sent");
    terminal.expect("never sent");
    terminal.send("\u{3}");
    // Waits for the next prompt, not for a redrawn one: before it, Ctrl-C would still be a signal.
    terminal.expect("\n");
    terminal.expect("> ");
    terminal.send("\u{3}");
    terminal.expect("Ctrl-C again leaves");
    terminal.expect("> ");
    terminal.send("\u{3}");
    assert_eq!(terminal.exit_code(), 0);
    assert!(fixture.sessions().is_empty());
}

#[test]
fn failed_turn_does_not_end_the_chat() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut wire = fixture.daemon.wire();
    let session = wire.create(json!({ "model": "absent" }));
    wire.record(&session, "user", "begin");
    let mut terminal = fixture.terminal(&["-r", "last"]);
    terminal.expect("> ");
    terminal.send("hello\r");
    terminal.expect("try: ollama pull absent");
    terminal.expect("/retry");
    terminal.send("/model tiny:7b\r");
    terminal.expect("try: /model tiny:latest");
    terminal.send("/model\r");
    terminal.expect("the model is absent");
    terminal.send("/model tiny\r");
    terminal.expect("the model is tiny from now on");
    terminal.send("/model 99\r");
    terminal.expect("there is no model 99");
    terminal.send("/system Be brief.\r");
    terminal.expect("the instructions hold from now on");
    terminal.send("/help undo\r");
    terminal.expect("undo the last turn");
    terminal.send("/retry\r");
    terminal.expect("ok");
    terminal.expect("Context: ");
    terminal.send("/session archive\r");
    terminal.expect("archived");
    terminal.send("/history\r");
    terminal.expect("there are no messages yet");
    terminal.expect("> ");
    terminal.send("\u{4}");
    assert_eq!(terminal.exit_code(), 0);
    assert!(fixture.sessions().is_empty(), "the session is archived");
}

#[test]
fn incomplete_answer_is_explained_with_a_hint() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    fake.script(Answer::text("half an answer").cut());
    terminal.send("one\r");
    terminal.expect("the answer was cut after ");
    terminal.expect(" tokens: the window of 8,192 is full; send 'go on' to continue it");
    fake.script(Answer::text("half an answer"));
    let text = "CUDA error: out of memory".to_owned();
    fake.inject("/api/chat", &[Fault::ErrorLine { after: 1, text }]);
    terminal.send("two\r");
    terminal.expect("half\r\nerror: model tiny at ");
    terminal.expect("is not running: CUDA error: out of memory");
    terminal.expect("your message and the answer so far are kept: /retry asks again");
    fake.script(Answer::text("half an answer"));
    fake.inject("/api/chat", &[Fault::Break { after: 1 }]);
    terminal.send("/retry\r");
    terminal.expect("broke: ");
    terminal.expect("the answer so far is kept: /retry asks again");
    fake.script(Answer::text("half an answer"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    terminal.send("/retry\r");
    terminal.expect("half");
    fixture.daemon.kill();
    terminal.expect("error: ollmd closed the connection");
    terminal.expect("try: /retry, which starts ollmd if it does not run");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn answer_of_only_thinking_gets_hint_to_disable_thinking() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("").thinking("let me see").cut());
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["-m", "thinker"]);
    terminal.expect("> ");
    terminal.send("what is it?\r");
    terminal.expect("let me see");
    terminal.expect("error: thinker spent ");
    terminal.expect("try: /think off, and then /retry");
    terminal.send("/think off\r");
    terminal.expect("thinking is off from now on");
    terminal.send("/retry\r");
    terminal.expect("ok");
    terminal.expect("Context: ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let requests = fake.requests("/api/chat");
    assert_eq!((requests.len(), &requests[1].body["think"]), (2, &json!(false)));
    fake.script(Answer::text("").thinking("let me see").cut());
    let error = fixture.chat(&["-m", "thinker", "and now?"], "").fails(1);
    assert!(error.contains("--no-think  # then /retry"), "{error}");
    let id = fixture.sessions()[0]["sessionId"].as_str().unwrap().to_owned();
    let view = fixture.sandbox.ctl(["sessions", "view", &id]).ok();
    assert!(view.contains("(length)"), "{view}");
}

#[test]
fn ctrl_c_cancels_a_compaction_and_not_the_chat() {
    let fake = FakeOllama::new();
    let config = fake.config("tiny") + "compression:\n  enabled: false\n";
    let fixture = ChatFixture::with_config(&config);
    let mut wire = fixture.daemon.wire();
    // Loads the vocabulary, so that counts do not change later.
    wire.ok("model.countTokens", json!({ "text": "x" }));
    let session = wire.create(json!({ "contextSize": 8192 }));
    let words = "and some words about it that nobody needs later on ".repeat(3);
    for at in 0..14 {
        wire.record(&session, "user", &format!("request {at}: {words}"));
        wire.record(&session, "assistant", &format!("answer {at}: {words}"));
    }
    let mut terminal = fixture.terminal(&["-r", "last"]);
    terminal.expect("> ");
    fake.script_summaries(Answer::text("## Goal\n- never used"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    terminal.send("/compact\r");
    terminal.expect("summarizing #1 to #");
    terminal.send("\u{3}");
    terminal.expect("canceled; the context is unchanged");
    terminal.send("so what is it?\r");
    terminal.expect("ok");
    terminal.expect("Context: ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let records = wire.records(&session);
    assert!(
        !records.iter().any(|record| record["type"] == "compaction"),
        "the session is unchanged"
    );
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut terminal = Terminal::start(&fixture.sandbox, &["context", "compact", "last"]);
    terminal.expect("summarizing #1 to #");
    terminal.send("\u{3}");
    terminal.wait_exit();
}

#[test]
fn chat_undoes_branches_and_forks() {
    let fake = FakeOllama::new();
    for answer in ["first answer", "second answer", "answer in the fork"] {
        fake.script(Answer::text(answer));
    }
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&[]);
    terminal.expect("> ");
    for (message, answer) in [("question one", "first answer"), ("question two", "second answer")] {
        terminal.send(&format!("{message}\r"));
        terminal.expect(answer);
        terminal.expect("Context: ");
    }
    terminal.send("/context snapshot before the undo\r");
    terminal.expect("before the undo");
    terminal.send("/undo\r");
    terminal.expect("undone:");
    terminal.expect("question two");
    terminal.send("/context restore\r");
    terminal.expect("restore the snapshot?");
    terminal.send("y\r");
    terminal.expect("takes this back");
    terminal.send("/undo\r");
    terminal.expect("undone:");
    terminal.expect("restore");
    terminal.send("/redo\r");
    terminal.expect("redone:");
    terminal.send("/undo\r");
    terminal.expect("1 can be undone, 1 can be redone");
    terminal.send("/tree\r");
    terminal.expect("#3 assistant: first answer  <- here");
    terminal.send("/fork\r");
    terminal.expect("(fork 2)");
    terminal.send("question three\r");
    terminal.expect("answer in the fork");
    terminal.expect("Context: ");
    terminal.send("/branch\r");
    terminal.expect("/branch: the following required arguments");
    terminal.send("/branch start\r");
    terminal.expect("continues after the beginning");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let sent = fake.requests("/api/chat").pop().unwrap().body["messages"].to_string();
    assert!(sent.contains("first answer") && !sent.contains("question two"), "{sent}");
}
