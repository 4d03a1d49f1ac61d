//! `ollmctl chat`: what a person sees and a script decides by, against the fake model server.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, FakeOllama, Fault, Output, Person, Sandbox, program};

/// A daemon that talks to the fake server.
struct Place {
    sandbox: Sandbox,
    daemon: Daemon,
}

impl Place {
    fn with(fake: &FakeOllama) -> Self {
        Self::configured(&format!("ollama:\n  host: {}\n  model: tiny\n", fake.host()))
    }

    fn configured(config: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(config);
        // The client finds it by itself.
        let daemon = sandbox.daemon();
        Self { sandbox, daemon }
    }

    fn chat(&self, args: &[&str], piped: &str) -> Output {
        self.sandbox.ctl_with(["chat"].iter().chain(args), piped)
    }

    /// The sessions, the newest first.
    fn sessions(&self) -> Vec<Value> {
        let listed = self.sandbox.ctl(["sessions", "list", "--json"]).json();
        listed["data"].as_array().unwrap().clone()
    }

    /// What was said in the newest session: role and text.
    fn said(&self) -> Vec<(String, String)> {
        let view = self.sandbox.ctl(["sessions", "view", "last", "--json"]).json();
        let records = view["records"].as_array().unwrap().iter();
        let messages = records.filter_map(|record| record.get("message"));
        let told = messages.map(|message| {
            let parts = message["parts"].as_array().unwrap().iter();
            let text = parts.filter_map(|part| part["text"].as_str()).collect();
            (message["role"].as_str().unwrap().to_owned(), text)
        });
        told.collect()
    }

    /// A person who types at `ollmctl chat`.
    fn person(&self, args: &[&str]) -> Person {
        let mut all = vec!["chat"];
        all.extend(args);
        Person::at(&self.sandbox, &all)
    }
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(role, text)| ((*role).into(), (*text).into())).collect()
}

#[test]
fn a_question_is_answered_on_stdout_alone() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("Use \u{1b}[2Jreversed().\u{1b}]0;owned\u{7}").thinking("who asks"));
    let place = Place::with(&fake);
    let output = place.chat(&["How?"], "");
    assert_eq!(output.stderr, "", "nobody watches");
    assert_eq!(output.ok(), "Use reversed().\n");
    let seen = fake.requests("/api/chat").pop().unwrap().body;
    assert_eq!((&seen["model"], &seen["messages"][0]["content"]), (&json!("tiny"), &json!("How?")));
}

#[test]
fn a_pipe_follows_the_question_or_is_it() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    assert_eq!(place.chat(&["Explain:"], "a\n```\nb\n").ok(), "ok\n");
    assert_eq!(place.said()[0].1, "Explain:\n\nstdin:\n````\na\n```\nb\n````");
    assert_eq!(place.chat(&[], "What is this?\n").ok(), "ok\n");
    assert_eq!(place.said()[0].1, "What is this?\n");
    assert!(place.chat(&[], " \n").fails(2).contains("try: ollmctl chat '"));
}

#[test]
fn it_goes_on_where_it_was_left() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    assert!(place.chat(&["-c", "too early"], "").fails(3).contains("has no current session"));
    for (args, piped) in [(vec!["one"], ""), (vec!["-c", "two"], ""), (vec!["-r", "last"], "three")]
    {
        assert_eq!(place.chat(&args, piped).ok(), "ok\n");
    }
    let expect = ["one", "two", "three"].map(|text| [("user", text), ("assistant", "ok")]).concat();
    assert_eq!(place.said(), pairs(&expect));
    assert_eq!(place.chat(&["another"], "").ok(), "ok\n");
    let sessions = place.sessions();
    assert_eq!(sessions.len(), 2, "without a word it is a new one: {sessions:?}");
    assert_eq!(sessions[0]["projectPath"], sessions[1]["projectPath"]);
    assert!(sessions[0]["projectPath"].is_string());
    let first = sessions[1]["sessionId"].as_str().unwrap();
    // Ids that begin in the same moment share more than a few characters.
    assert_eq!(place.chat(&["--resume", &first[..30], "four"], "").ok(), "ok\n");
    assert_eq!(place.chat(&["--continue", "five"], "").ok(), "ok\n");
    assert_eq!(place.said().len(), 10, "what was resumed is the current one");
    assert!(place.chat(&["-r", "", "which?"], "").fails(2).contains("there is no terminal"));
}

#[test]
fn a_program_is_told_every_event_and_the_session() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("a \u{1b}[2Jb"));
    let place = Place::with(&fake);
    let told = place.chat(&["--json", "hello"], "").ok();
    assert!(!told.contains('\u{1b}'), "{told:?}");
    let events: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["kind"], "session");
    assert_eq!(events[0]["sessionId"], place.sessions()[0]["sessionId"]);
    assert_eq!(events[1]["kind"], "accepted");
    assert_eq!(events.last().unwrap()["kind"], "done");
    let text: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(text, "a \u{1b}[2Jb", "as it was said");
}

#[test]
fn what_a_model_is_told_once_holds_for_the_session() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    let args = ["-m", "thinker", "--system", "Be brief.", "--think=high", "one"];
    assert_eq!(place.chat(&args, "").ok(), "ok\n");
    assert_eq!(place.chat(&["-c", "--no-think", "two"], "").ok(), "ok\n");
    let seen: Vec<Value> = fake.requests("/api/chat").into_iter().map(|seen| seen.body).collect();
    for body in &seen {
        assert_eq!(body["model"], "thinker");
        assert_eq!(body["messages"][0], json!({ "role": "system", "content": "Be brief." }));
    }
    assert_eq!((&seen[0]["think"], &seen[1]["think"]), (&json!("high"), &json!(false)));
}

#[test]
fn an_error_has_its_exit_code_and_the_next_command() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    let absent = place.chat(&["-m", "absent", "hello"], "").fails(3);
    assert!(absent.contains("try: ollama pull absent"), "{absent}");
    fake.next("/api/chat", &[Fault::ErrorLine { after: 1, text: "out of memory".into() }]);
    fake.answer(Answer::text("half an answer"));
    let output = place.chat(&["hello"], "");
    assert_eq!(output.stdout, "half \n", "what was answered is shown");
    assert!(output.fails(1).contains("out of memory"));
    let told = place.chat(&["--json", "-m", "absent", "hello"], "");
    let last: Value = serde_json::from_str(told.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["data"]["kind"], "modelNotFound");
    let complaint: Value = serde_json::from_str(&told.fails(3)).unwrap();
    assert_eq!(complaint["error"]["hint"], "ollama pull absent");
    assert_eq!(place.chat(&["-c", "-m", "tiny", "again"], "").ok(), "ok\n");
}

#[test]
fn without_a_server_it_says_which_and_how_to_set_it() {
    let place = Place::configured("ollama:\n  host: 127.0.0.1:9\n  model: tiny\n");
    let said = place.chat(&["hello"], "").stderr;
    for part in ["http://127.0.0.1:9", "try: ollama serve", "ollama.host", "OLLAMA_HOST"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(place.said(), pairs(&[("user", "hello")]), "what was asked is kept");
}

#[test]
fn where_no_model_is_named_the_models_are() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::configured(&format!("ollama:\n  host: {}\n", fake.host()));
    let said = place.chat(&["hello"], "").fails(2);
    for name in ["tiny:latest", "thinker:latest", "plain:latest", "try: ollmctl chat --model "] {
        assert!(said.contains(name), "{name}: {said}");
    }
    let mut person = place.person(&["hello"]);
    person.sees("Which one, 1 to 3?");
    person.types("tiny:latest\r");
    person.sees("ok");
    assert_eq!(person.left(), 0);
    assert_eq!(place.sessions()[0]["model"], "tiny:latest");
}

#[test]
fn a_person_asks_sees_the_answer_and_leaves() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("Use \u{1b}[2Jreversed().\u{1b}]0;owned\u{7}"));
    let place = Place::with(&fake);
    let mut person = place.person(&[]);
    person.sees("> ");
    person.types("How do I \\\r");
    person.types("reverse a list?\r");
    person.sees("Use reversed().");
    person.sees("Context: ");
    person.types("/sesion info\r");
    person.sees("try:");
    person.sees("/session info");
    person.types("/debug context\r");
    person.sees("counted exactly, by full-history");
    person.types("//usr is a path\r");
    person.sees("ok");
    person.sees("Context: ");
    person.types("/exit\r");
    assert_eq!(person.left(), 0);
    let screen = person.screen();
    assert!(!screen.contains("\u{1b}[2J") && !screen.contains("owned"), "{screen:?}");
    let said = place.said();
    assert_eq!(said[0].1, "How do I \nreverse a list?");
    assert_eq!(said[2].1, "/usr is a path");
    let history = place.sandbox.home().join("chat-history");
    let mode = std::os::unix::fs::PermissionsExt::mode(&history.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_chat_begins_with_a_goal_and_keeps_what_is_pinned() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("[CHECKPOINT] Read the code - COMPLETED"));
    let place = Place::with(&fake);
    let mut person = place.person(&["--no-history"]);
    person.sees("> ");
    person.types("/goal Reverse a list\r");
    person.sees("goal: Reverse a list");
    person.types("Begin.\r");
    person.sees("Context: ");
    person.types("/pin\r");
    person.sees("pinned: #");
    person.types("/goal\r");
    person.sees("done   Read the code");
    person.types("/unpin\r");
    person.sees("nothing is pinned");
    person.types("/exit\r");
    assert_eq!(person.left(), 0);
}

#[test]
fn a_pasted_text_is_one_message_and_nothing_of_it_is_lost() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    let mut person = place.person(&["--no-history"]);
    person.sees("> ");
    person.types("\u{1b}[200~make \\\r  all\r\u{1b}[201~");
    person.types("\r");
    person.sees("Context: ");
    person.sees("> ");
    person.types("\u{4}");
    assert_eq!(person.left(), 0);
    assert_eq!(place.said()[0].1, "make \\\n  all");
    assert!(!place.sandbox.home().join("chat-history").exists());
}

#[test]
fn ctrl_c_ends_the_answer_and_a_second_one_leaves() {
    let fake = FakeOllama::start("0.33.0");
    for _ in 0..2 {
        fake.answer(Answer::text("half an answer"));
        fake.next("/api/chat", &[Fault::Stall { after: 1 }]);
    }
    let place = Place::with(&fake);
    let mut person = place.person(&[]);
    person.sees("> ");
    person.types("hello\r");
    person.sees("half");
    person.types("\u{3}");
    // On a line of its own, so that it is gone again.
    person.sees("\n");
    person.sees("canceled; the answer so far is kept");
    assert_eq!(place.said(), pairs(&[("user", "hello"), ("assistant", "half ")]));
    let view = place.sandbox.ctl(["sessions", "view", "last"]).ok();
    assert!(view.contains("(canceled)"), "{view}");
    person.types("/retry\r");
    person.sees("half");
    // A daemon that hangs keeps nobody.
    place.daemon.signal(Signal::STOP);
    person.types("\u{3}");
    person.sees("Ctrl-C again leaves");
    person.types("\u{3}");
    assert_eq!(person.left(), 130);
    place.daemon.signal(Signal::CONT);
}

#[test]
fn ctrl_c_at_an_empty_line_asks_first() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    let mut person = place.person(&[]);
    person.sees("> ");
    person.types("never sent");
    person.sees("never sent");
    person.types("\u{3}");
    // The next prompt, and not the one that is drawn again: before it a key would be a signal.
    person.sees("\n");
    person.sees("> ");
    person.types("\u{3}");
    person.sees("Ctrl-C again leaves");
    person.sees("> ");
    person.types("\u{3}");
    assert_eq!(person.left(), 0);
    assert!(place.sessions().is_empty());
}

#[test]
fn an_error_does_not_end_the_chat() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    let mut person = place.person(&["-m", "absent"]);
    person.types("hello\r");
    person.sees("try: ollama pull absent");
    person.sees("/retry");
    person.types("/model tiny\r");
    person.sees("the model is tiny from now on");
    person.types("/retry\r");
    person.sees("ok");
    person.sees("Context: ");
    person.types("/session archive\r");
    person.sees("archived");
    person.types("/history\r");
    person.sees("there are no messages yet");
    person.sees("> ");
    person.types("\u{4}");
    assert_eq!(person.left(), 0);
    assert!(place.sessions().is_empty(), "it is put away");
}

#[test]
fn an_answer_that_stops_early_says_why_and_how_it_goes_on() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    let mut person = place.person(&[]);
    person.sees("> ");
    fake.answer(Answer { reason: "length", ..Answer::text("half an answer") });
    person.types("one\r");
    person.sees("the answer was cut after ");
    person.sees(" tokens: the window of 8,192 is full; send 'go on' to continue it");
    fake.answer(Answer::text("half an answer"));
    let said = "CUDA error: out of memory";
    fake.next("/api/chat", &[Fault::ErrorLine { after: 1, text: said.into() }]);
    person.types("two\r");
    person.sees("half \r\nerror: model tiny at ");
    person.sees("is not running: CUDA error: out of memory");
    person.sees("your message and the answer so far are kept: /retry asks again");
    fake.answer(Answer::text("half an answer"));
    fake.next("/api/chat", &[Fault::Break { after: 1 }]);
    person.types("/retry\r");
    person.sees("broke: ");
    person.sees("the answer so far is kept: /retry asks again");
    fake.answer(Answer::text("half an answer"));
    fake.next("/api/chat", &[Fault::Stall { after: 1 }]);
    person.types("/retry\r");
    person.sees("half");
    place.daemon.kill9();
    person.sees("error: ollmd closed the connection");
    person.sees("try: /retry, which starts ollmd if it does not run");
    person.types("/exit\r");
    assert_eq!(person.left(), 0);
}

#[test]
fn a_model_that_only_thinks_is_told_to_think_less() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer { reason: "length", ..Answer::text("").thinking("let me see") });
    let place = Place::with(&fake);
    let mut person = place.person(&["-m", "thinker"]);
    person.sees("> ");
    person.types("what is it?\r");
    person.sees("let me see");
    person.sees("error: thinker spent ");
    person.sees("try: /think off, and then /retry");
    person.types("/think off\r");
    person.sees("thinking is off from now on");
    person.types("/retry\r");
    person.sees("ok");
    person.sees("Context: ");
    person.types("/exit\r");
    assert_eq!(person.left(), 0);
    let asked = fake.requests("/api/chat");
    assert_eq!((asked.len(), &asked[1].body["think"]), (2, &json!(false)));
    fake.answer(Answer { reason: "length", ..Answer::text("").thinking("let me see") });
    let said = place.chat(&["-m", "thinker", "and now?"], "").fails(1);
    assert!(said.contains("--no-think  # then /retry"), "{said}");
    let id = place.sessions()[0]["sessionId"].as_str().unwrap().to_owned();
    let view = place.sandbox.ctl(["sessions", "view", &id]).ok();
    assert!(view.contains("(length)"), "{view}");
}

#[test]
fn a_compaction_says_its_step_and_ctrl_c_ends_it_and_not_the_chat() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::configured(&format!(
        "ollama:\n  host: {}\n  model: tiny\ncompression:\n  enabled: false\n",
        fake.host()
    ));
    let mut wire = place.daemon.wire();
    // With the vocabulary, counts do not change any more.
    let _counted = wire.ok("model.countTokens", json!({ "text": "x" }));
    let session = wire.create(json!({ "contextSize": 8192 }));
    let words = "and some words about it that nobody needs later on ".repeat(3);
    for at in 0..14 {
        let _seq = wire.record(&session, "user", &format!("request {at}: {words}"));
        let _seq = wire.record(&session, "assistant", &format!("answer {at}: {words}"));
    }
    let mut person = place.person(&["-r", "last"]);
    person.sees("> ");
    fake.summarize(Answer::text("## Goal\n- never told"));
    fake.next("/api/chat", &[Fault::Stall { after: 1 }]);
    person.types("/compact --apply\r");
    person.sees("summarizing #1 to #");
    person.types("\u{3}");
    person.sees("canceled; the context is unchanged");
    person.types("so what is it?\r");
    person.sees("ok");
    person.sees("Context: ");
    person.types("/exit\r");
    assert_eq!(person.left(), 0);
    let records = wire.records(&session);
    assert!(!records.iter().any(|record| record["type"] == "compaction"), "nothing was changed");
    fake.next("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut person = Person::at(&place.sandbox, &["context", "compact", "last"]);
    person.sees("summarizing #1 to #");
    person.types("\u{3}");
    person.ends();
}

#[test]
fn a_person_chooses_a_session_to_go_on_with() {
    let fake = FakeOllama::start("0.33.0");
    let place = Place::with(&fake);
    for text in ["about lists", "about trees"] {
        assert_eq!(place.chat(&[text], "").ok(), "ok\n");
    }
    let mut person = place.person(&["--resume"]);
    person.sees("about lists");
    person.types("2\r");
    person.sees("about lists");
    person.sees("/help");
    person.types("and then?\r");
    person.sees("Context: ");
    person.types("/exit\r");
    assert_eq!(person.left(), 0);
    assert_eq!(place.said()[2].1, "and then?");
    assert_eq!(place.said()[0].1, "about lists");
}

#[test]
fn the_tour_has_a_model_answer_where_there_is_one() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("Paris"));
    let sandbox = Sandbox::new();
    let mut command = sandbox.command("ollmctl");
    command.env("OLLM_DAEMON", program("ollmd")).env("OLLAMA_HOST", fake.host());
    command.env("TMPDIR", sandbox.project("t")).arg("tour");
    let said = crate::harness::run(command, "").ok();
    assert!(said.contains("\"Paris\"") && said.contains("Every check passed"), "{said}");
    let asked = fake.requests("/api/chat").pop().unwrap().body;
    assert!(asked["options"]["num_predict"].as_u64().unwrap() <= 32, "{asked}");
}
