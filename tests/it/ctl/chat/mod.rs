//! `ollmctl chat` without a terminal, and the fixture that the tests on a terminal share.

mod terminal;
mod writing;

use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, FakeOllama, Fault, Output, Sandbox, Terminal, array};

/// A daemon that uses the fake model server.
struct ChatFixture {
    sandbox: Sandbox,
    daemon: Daemon,
}

impl ChatFixture {
    fn new(fake: &FakeOllama) -> Self {
        Self::with_config(&fake.config("tiny"))
    }

    fn with_config(config: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(config);
        let daemon = sandbox.daemon();
        Self { sandbox, daemon }
    }

    /// Runs `ollmctl chat` with a pipe as stdin.
    fn chat(&self, args: &[&str], input: &str) -> Output {
        self.sandbox.ctl_with_input(["chat"].iter().chain(args), input)
    }

    /// Returns the sessions, the newest first.
    fn sessions(&self) -> Vec<Value> {
        let listed = self.sandbox.ctl(["sessions", "list", "--json"]).json();
        listed["data"].as_array().unwrap().clone()
    }

    /// Returns roles and texts of the messages in the newest session.
    fn messages(&self) -> Vec<(String, String)> {
        let view = self.sandbox.ctl(["sessions", "view", "last", "--json"]).json();
        let records = array(&view["records"]).iter();
        let messages = records.filter_map(|record| record.get("message"));
        let pairs = messages.map(|message| {
            let parts = array(&message["parts"]).iter();
            let text = parts.filter_map(|part| part["text"].as_str()).collect();
            (message["role"].as_str().unwrap().to_owned(), text)
        });
        pairs.collect()
    }

    /// Starts `ollmctl chat` on a terminal.
    fn terminal(&self, args: &[&str]) -> Terminal {
        let mut all = vec!["chat"];
        all.extend(args);
        Terminal::start(&self.sandbox, &all)
    }
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(role, text)| ((*role).into(), (*text).into())).collect()
}

#[test]
fn answer_is_printed_on_stdout_without_control_characters() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("Use \u{1b}[2Jreversed().\u{1b}]0;owned\u{7}").thinking("who asks"));
    let fixture = ChatFixture::new(&fake);
    let output = fixture.chat(&["How?"], "");
    assert_eq!(output.stderr, "", "no progress without a terminal");
    assert_eq!(output.ok(), "Use reversed().\n");
    let body = fake.requests("/api/chat").pop().unwrap().body;
    assert_eq!((&body["model"], &body["messages"][0]["content"]), (&json!("tiny"), &json!("How?")));
}

#[test]
fn stdin_is_appended_to_the_question_or_is_the_question() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    assert_eq!(fixture.chat(&["Explain:"], "a\n```\nb\n").ok(), "ok\n");
    assert_eq!(fixture.messages()[0].1, "Explain:\n\nstdin:\n````\na\n```\nb\n````");
    assert_eq!(fixture.chat(&[], "What is this?\n").ok(), "ok\n");
    assert_eq!(fixture.messages()[0].1, "What is this?\n");
    assert!(fixture.chat(&[], " \n").fails(2).contains("try: ollmctl chat '"));
}

#[test]
fn question_that_does_not_fit_is_refused_or_reported() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let numbers = |n: u32| (1..=n).map(|number| format!("{number}\n")).collect::<String>();
    let error = fixture.chat(&["Add these up:"], &numbers(30_000)).fails(2);
    for part in
        ["the question has ", " tokens, and the model's window of 8,192", "--allow-truncation"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(fixture.sessions().is_empty(), "nothing is recorded");
    let output = fixture.chat(&["--allow-truncation", "Add these up:"], &numbers(30_000));
    let warning = "does not fit into the window: the model is shown ";
    assert!(output.stderr.contains(warning), "{output:?}");
    assert_eq!(output.ok(), "ok\n");
    let output = fixture.chat(&["Add these up:"], &numbers(100));
    assert_eq!((output.stderr.as_str(), output.stdout.as_str()), ("", "ok\n"));
}

#[test]
fn continue_and_resume_extend_earlier_sessions() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    assert!(fixture.chat(&["-c", "too early"], "").fails(3).contains("has no current session"));
    for (args, input) in [(vec!["one"], ""), (vec!["-c", "two"], ""), (vec!["-r", "last"], "three")]
    {
        assert_eq!(fixture.chat(&args, input).ok(), "ok\n");
    }
    let expect = ["one", "two", "three"].map(|text| [("user", text), ("assistant", "ok")]).concat();
    assert_eq!(fixture.messages(), pairs(&expect));
    assert_eq!(fixture.chat(&["another"], "").ok(), "ok\n");
    let sessions = fixture.sessions();
    assert_eq!(sessions.len(), 2, "without a flag, a new session: {sessions:?}");
    assert_eq!(sessions[0]["projectPath"], sessions[1]["projectPath"]);
    assert!(sessions[0]["projectPath"].is_string());
    let first = sessions[1]["sessionId"].as_str().unwrap();
    // Ids created within a short time share a long prefix.
    assert_eq!(fixture.chat(&["--resume", &first[..30], "four"], "").ok(), "ok\n");
    assert_eq!(fixture.chat(&["--continue", "five"], "").ok(), "ok\n");
    assert_eq!(fixture.messages().len(), 10, "the resumed session is the current one");
    assert!(fixture.chat(&["-r", "", "which?"], "").fails(2).contains("there is no terminal"));
}

#[test]
fn json_flag_prints_session_and_events_as_lines() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("a \u{1b}[2Jb"));
    let fixture = ChatFixture::new(&fake);
    let printed = fixture.chat(&["--json", "hello"], "").ok();
    assert!(!printed.contains('\u{1b}'), "{printed:?}");
    let events: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["kind"], "session");
    assert_eq!(events[0]["sessionId"], fixture.sessions()[0]["sessionId"]);
    assert_eq!(events[1]["kind"], "accepted");
    assert_eq!(events.last().unwrap()["kind"], "done");
    let text: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(text, "a \u{1b}[2Jb", "the text is unchanged");
}

#[test]
fn model_and_system_prompt_flags_apply_to_the_session() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let args = ["-m", "thinker", "--system", "Be brief.", "--think=high", "one"];
    assert_eq!(fixture.chat(&args, "").ok(), "ok\n");
    assert_eq!(fixture.chat(&["-c", "--no-think", "two"], "").ok(), "ok\n");
    let requests = fake.requests("/api/chat");
    for body in requests.iter().map(|request| &request.body) {
        assert_eq!(body["model"], "thinker");
        assert_eq!(body["messages"][0], json!({ "role": "system", "content": "Be brief." }));
    }
    let think: Vec<&Value> = requests.iter().map(|request| &request.body["think"]).collect();
    assert_eq!(think, [&json!("high"), &json!(false)]);
}

#[test]
fn model_that_does_not_exist_is_refused_before_a_session_begins() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let error = fixture.chat(&["-m", "absent", "hello"], "").fails(3);
    assert!(error.contains("try: ollama pull absent"), "{error}");
    let error = fixture.chat(&["-m", "tiny:7b", "hello"], "").fails(3);
    assert!(error.contains("similar ones are tiny:latest"), "{error}");
    assert!(error.contains("try: ollmctl chat --model tiny:latest"), "{error}");
    assert!(fixture.sessions().is_empty());
    assert!(fake.requests("/api/chat").is_empty());
}

#[test]
fn failed_turn_has_exit_code_and_hint() {
    let fake = FakeOllama::new();
    let fixture = ChatFixture::new(&fake);
    let mut wire = fixture.daemon.wire();
    let session = wire.create(json!({ "model": "absent" }));
    wire.record(&session, "user", "begin");
    let error = fixture.chat(&["-r", "last", "hello"], "").fails(3);
    assert!(error.contains("try: ollama pull absent"), "{error}");
    let output = fixture.chat(&["--json", "-r", "last", "hello"], "");
    let last: Value = serde_json::from_str(output.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["data"]["kind"], "modelNotFound");
    let error: Value = serde_json::from_str(&output.fails(3)).unwrap();
    assert_eq!(error["error"]["hint"], "ollama pull absent");
    assert_eq!(fixture.chat(&["-r", "last", "-m", "tiny", "again"], "").ok(), "ok\n");
    fake.inject("/api/chat", &[Fault::ErrorLine { after: 1, text: "out of memory".into() }]);
    fake.script(Answer::text("half an answer"));
    let output = fixture.chat(&["hello"], "");
    assert_eq!(output.stdout, "half \n", "the partial answer is printed");
    assert!(output.fails(1).contains("out of memory"));
}

#[test]
fn unreachable_model_server_is_named_with_its_settings() {
    let fixture =
        ChatFixture::with_config("ollama:\n  host: 127.0.0.1:9\nmodels:\n  default: tiny\n");
    let stderr = fixture.chat(&["hello"], "").fails(7);
    for part in ["http://127.0.0.1:9", "https://ollama.com", "try: ollmctl tour", "ollama.host"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert_eq!(fixture.messages(), pairs(&[("user", "hello")]), "the question is recorded");
}
