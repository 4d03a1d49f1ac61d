//! Messages that a person writes in a chat on a terminal: lines, pastes, files, options; and their rendered answers.

use std::fs::write;

use serde_json::json;

use super::ChatFixture;
use crate::harness::{Answer, FakeOllama, Fault, ScreenTerminal, Terminal, program};

/// Writes a file into the directory of the chat.
#[expect(clippy::disallowed_methods, reason = "a file of the user")]
fn write_file(fixture: &ChatFixture, name: &str, content: &[u8]) {
    write(fixture.sandbox.path(name), content).unwrap();
}

/// Sends a line and waits for the end of the answer.
fn ask(terminal: &mut Terminal, line: &str) {
    terminal.send(&format!("{line}\r"));
    terminal.expect("Context: ");
    terminal.expect("> ");
}

#[test]
fn lines_that_are_typed_ahead_are_answered_in_order() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    fake.script(Answer::text("half an answer"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    terminal.send("about herons\r");
    terminal.expect("half");
    terminal.send("about storks\rabout cranes\r/exit\r");
    fake.resume();
    assert_eq!(terminal.exit_code(), 0);
    let messages = fixture.messages();
    let texts = [0, 2, 4].map(|at: usize| messages[at].1.as_str());
    assert_eq!(texts, ["about herons", "about storks", "about cranes"]);
}

#[test]
fn lines_that_arrive_at_once_are_one_message() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    terminal.send("about herons\rand storks\r\rand cranes\r");
    terminal.expect("Context: ");
    terminal.expect("> ");
    // The last line is not sent before Enter.
    terminal.send("about gulls\rand terns");
    terminal.expect("and terns");
    terminal.send("!\r");
    terminal.expect("Context: ");
    terminal.expect("> ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let messages = fixture.messages();
    assert_eq!(messages[0].1, "about herons\nand storks\n\nand cranes");
    assert_eq!(messages[2].1, "about gulls\nand terns!");
    assert_eq!(messages.len(), 4);
}

#[test]
fn pasted_text_is_one_unchanged_message() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    terminal.send("\u{1b}[200~make \\\r  all\r\u{1b}[201~");
    terminal.send("\r");
    terminal.expect("Context: ");
    terminal.expect("> ");
    terminal.send("\u{4}");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(fixture.messages()[0].1, "make \\\n  all");
    assert!(!fixture.sandbox.home().join("chat-history").exists());
}

#[test]
fn text_pasted_during_an_answer_waits_as_one_message() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("half an answer"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    terminal.send("begin\r");
    terminal.expect("half");
    let screen = terminal.screen();
    let (on, off) = (screen.rfind("\u{1b}[?2004h"), screen.rfind("\u{1b}[?2004l"));
    assert!(on > off, "the terminal marks pasted texts: {screen:?}");
    terminal.send("\u{1b}[200~one\rtwo\r\u{1b}[201~");
    fake.resume();
    terminal.expect("> one");
    terminal.send("!\r");
    terminal.expect("Context: ");
    terminal.expect("> ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(fixture.messages()[2].1, "one\ntwo\n!");
}

#[test]
fn alt_enter_and_an_open_fence_begin_a_new_line() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut terminal = fixture.terminal(&["--no-history"]);
    terminal.expect("> ");
    ask(&mut terminal, "one\u{1b}\rtwo");
    terminal.send("```\r");
    terminal.send("code\r");
    ask(&mut terminal, "```");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(fixture.messages()[0].1, "one\ntwo");
    assert_eq!(fixture.messages()[2].1, "```\ncode\n```");
}

#[test]
fn named_files_and_options_are_sent_with_a_message() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    write_file(&fixture, "notes.md", b"about herons\n");
    write_file(&fixture, "bird.png", b"\x89PNG\r\n\x1a\n....");
    write_file(&fixture, "data.bin", b"\xff\xfe\0");
    let mut terminal =
        fixture.terminal(&["--no-history", "-m", "seer", "-o", "temperature=0.5", "-o", "seed=7"]);
    terminal.expect("> ");
    terminal.send("/set\r");
    terminal.expect("temperature = 0.5  (this chat)");
    terminal.send("/set --keep seed=9\r");
    terminal.expect("seed = 9  (kept by the session)");
    terminal.send("/set bogus=1\r");
    terminal.expect("bogus = 1  (this chat)");
    // The server knows which options it has.
    terminal.send("hi\r");
    terminal.expect("error: ");
    terminal.expect("bogus");
    terminal.expect("> hi");
    terminal.send("\u{15}/set bogus=\r");
    terminal.send("what is @data.bin\r");
    terminal.expect("data.bin is neither text nor a picture");
    terminal.expect("> what is @data.bin");
    terminal.send("\u{15}look at @notes.md, and @bird.png or mail a@b.c\r");
    terminal.expect("notes.md: ");
    terminal.expect(" tokens");
    terminal.expect("bird.png: a picture");
    terminal.expect("Context: ");
    terminal.expect("> ");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    let body = fake.requests("/api/chat").pop().unwrap().body;
    assert_eq!(body["options"]["temperature"], json!(0.5));
    assert_eq!(body["options"]["seed"], json!(9));
    let message = &body["messages"][0];
    let text =
        "look at @notes.md, and @bird.png or mail a@b.c\n\nnotes.md:\n```\nabout herons\n```";
    assert_eq!(message["content"], text);
    assert_eq!(message["images"].as_array().map(Vec::len), Some(1));
}

#[test]
fn question_takes_options_a_schema_and_a_picture() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    write_file(&fixture, "bird.png", b"\x89PNG\r\n\x1a\n....");
    write_file(&fixture, "schema.json", br#"{"type": "object"}"#);
    let path = |name: &str| fixture.sandbox.path(name).to_str().unwrap().to_owned();
    let (picture, schema) = (path("bird.png"), path("schema.json"));
    let model = ["-m", "seer", "--keep-alive", "90"];
    let question = ["--image", &picture, "--format", &schema, "-o", "top-p=0.9", "Why?"];
    assert_eq!(fixture.chat(&[&model[..], &question[..]].concat(), "").ok(), "ok\n");
    let body = fake.requests("/api/chat").pop().unwrap().body;
    assert_eq!(body["options"]["top_p"], json!(0.9));
    assert_eq!(body["format"], json!({ "type": "object" }));
    assert_eq!(body["keep_alive"], 90);
    assert_eq!(body["messages"][0]["images"].as_array().map(Vec::len), Some(1));
    assert_eq!(fixture.chat(&["-c", "--keep-alive", "5", "And?"], "").ok(), "ok\n");
    assert_eq!(fake.requests("/api/chat").pop().unwrap().body["keep_alive"], 5);
    let error = fixture.chat(&["-o", "num_ctx=9", "Why?"], "").fails(2);
    assert!(error.contains("num_ctx applies to all requests"), "{error}");
    assert!(fixture.chat(&["--image", &schema, "Why?"], "").fails(2).contains("is not a picture"));
    let wrong = ["-c", "--keep-alive", "7", "--image", &schema, "Why?"];
    assert!(fixture.chat(&wrong, "").fails(2).contains("try: a PNG, JPEG, GIF or WebP picture"));
    let view = fixture.sandbox.ctl(["sessions", "view", "last", "--json"]).json();
    assert_eq!(view["session"]["keepAliveSeconds"], 5, "nothing was changed");
}

#[test]
fn message_is_continued_in_the_editor_of_the_user() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let args = ["chat", "--no-history"];
    let editor = [("EDITOR", "printf ' done' >>")];
    let mut terminal =
        ScreenTerminal::start_with(&fixture.sandbox, program("ollmctl"), &args, (100, 40), &editor);
    terminal.shows(&["> "]);
    terminal.send("draft\u{18}\u{5}");
    terminal.shows(&["> draft done"]);
    terminal.send("!\r");
    terminal.shows(&["Context: "]);
    terminal.send("/edit more\r");
    terminal.shows(&["> more done"]);
    terminal.send("\u{15}/exit\r");
    assert_eq!(terminal.exit_code(), Some(0));
    assert_eq!(fixture.messages()[0].1, "draft done!");
}

#[test]
fn answer_is_rendered_on_a_terminal_and_plain_when_asked() {
    let fake = FakeOllama::new();
    let text = "# Birds\n\n**Herons** wade.\n\n| Name | Legs |\n|---|--:|\n| heron | 2 |\n\n1. one\n1. two\n";
    let rendered = "# Birds\r\n\r\nHerons wade.\r\n\r\nName  │ Legs\r\n──────┼─────\r\nheron │    2\r\n\r\n1. one\r\n2. two";
    for _ in 0..3 {
        fake.script(Answer::text(text));
    }
    let fixture = ChatFixture::new(&fake);
    assert_eq!(fixture.chat(&["birds?"], "").ok(), text);
    let mut terminal = fixture.terminal(&["--plain", "-n"]);
    terminal.expect("> ");
    ask(&mut terminal, "birds?");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    assert!(terminal.screen().contains(&text.replace('\n', "\r\n")), "{:?}", terminal.screen());
    let mut terminal = fixture.terminal(&["-n"]);
    terminal.expect("> ");
    ask(&mut terminal, "birds?");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(fixture.messages()[1].1, text, "the session has the text of the model");
    // Old answers look the same.
    let mut terminal = Terminal::start(&fixture.sandbox, &["sessions", "view", "last"]);
    terminal.expect(rendered);
    terminal.wait_exit();
}

#[test]
fn session_is_found_by_words_of_its_title() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    for text in ["about grey herons", "about storks", "about white herons"] {
        assert_eq!(fixture.chat(&[text], "").ok(), "ok\n");
    }
    assert_eq!(fixture.chat(&["--resume", "Herons grey", "And?"], "").ok(), "ok\n");
    assert_eq!(fixture.messages()[0].1, "about grey herons");
    let error = fixture.chat(&["--resume", "herons", "And?"], "").fails(2);
    assert!(error.contains("no terminal on which to choose"), "{error}");
    let mut terminal = fixture.terminal(&["--no-history", "--resume"]);
    terminal.expect("or words of its title? ");
    terminal.send("herons\r");
    terminal.expect("Which one, 1 to 2");
    terminal.send("white\r");
    terminal.expect("about white herons");
    terminal.expect("> ");
    terminal.send("/session\r");
    terminal.expect("/session info or /session export or /session archive");
    terminal.send("/exit\r");
    assert_eq!(terminal.exit_code(), 0);
}
