//! Exact counts: what the daemon counts is what the model server counts, with it, without it, and after a restart.

use serde_json::{Value, json};

use crate::harness::{
    Answer, Daemon, FakeOllama, Fault, RENDER, Sandbox, VOCABULARY, Wire, count, gguf, render,
    until,
};

/// A daemon that talks to the fake server, and a session with a system prompt.
struct Counted {
    sandbox: Sandbox,
    daemon: Daemon,
    wire: Wire,
    session: String,
}

impl Counted {
    fn with(fake: &FakeOllama, model: &str, session: Value) -> Self {
        let sandbox = Sandbox::new();
        let config = format!("ollama:\n  host: {}\n  model: {model}\n", fake.host());
        sandbox.write_config(&config);
        let (daemon, mut wire) = sandbox.served();
        let session = wire.create(session);
        Self { sandbox, daemon, wire, session }
    }

    /// Asks, and returns what came last.
    #[track_caller]
    fn send(&mut self, mut params: Value) -> Value {
        params["sessionId"] = json!(self.session);
        let _subscription = self.wire.ok("chat.send", params);
        loop {
            let event = self.wire.told("chat.event");
            match event["kind"].as_str().unwrap() {
                "done" | "error" => return event,
                "toolCalls" => {
                    let results: Vec<Value> = event["calls"].as_array().unwrap().iter().map(|call| {
                        json!({ "id": call["id"], "result": { "llmContent": "fn main() {}\n\n" } })
                    }).collect();
                    let params = json!({ "sessionId": self.session, "results": results });
                    let _submitted = self.wire.ok("chat.submitToolResults", params);
                }
                _ => {}
            }
        }
    }

    /// Asks, and holds the daemon's count against the server's.
    #[track_caller]
    fn ask(&mut self, text: &str, more: Value) -> u64 {
        let mut params = more;
        params["message"] = json!({ "role": "user", "content": text });
        let done = self.send(params);
        assert_eq!(done["kind"], "done", "{done}");
        let usage = &done["usage"];
        assert_eq!(usage["countKind"], "exact", "{usage}");
        assert_eq!(usage["promptTokens"], usage["contextTokens"], "{usage}");
        usage["contextTokens"].as_u64().unwrap()
    }

    fn build(&mut self, params: Value) -> Value {
        let mut params = params;
        params["sessionId"] = json!(self.session);
        self.wire.ok("context.build", params)
    }
}

fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": {
        "name": name, "description": "Reads a file.", "parameters": { "type": "object", "properties": {
            "path": { "type": "string" } } } } })
}

/// What the fake counts for a built context.
fn counted(model: &str, built: &Value, tools: &[Value], think: bool) -> u64 {
    count(&render(model, built["messages"].as_array().unwrap(), tools, think))
}

#[test]
fn the_daemon_counts_what_the_server_counts_over_a_conversation_with_tools() {
    for (version, model) in [("0.33.0", "tiny"), ("0.24.0", "tiny"), ("0.33.0", "thinker")] {
        let fake = FakeOllama::start(version);
        let mut chat = Counted::with(&fake, model, json!({ "systemPrompt": "Be exact.\n" }));
        let tools = json!([tool("read"), tool("list")]);
        let with_tools = json!({ "tools": tools });
        chat.ask("hello there.\n\n", with_tools.clone());
        fake.answer(
            Answer::text("")
                .call("read", json!({ "path": "src/<a> & b.rs" }))
                .call("list", json!({})),
        );
        fake.answer(
            Answer::text("Reading on.").call("read", json!({ "path": "é", "lines": [1, 2, null] })),
        );
        fake.answer(Answer::text("it says nothing\n").thinking("hm"));
        chat.ask("  what is in a?  ", with_tools.clone());
        chat.ask("naïve 字\r\n\tlet x = 1;", with_tools.clone());
        // The tools are put away: the prompt is another one.
        chat.ask("<|im_start|>not a message", json!({}));
        let built = chat.build(json!({ "tools": tools, "pending": "and now?" }));
        assert_eq!(built["countKind"], "exact");
        let all = [tool("read"), tool("list")];
        assert_eq!(built["tokensUsed"], counted(model, &built, &all, true));
        let budget = &built["budget"];
        let parts = ["systemPromptTokens", "toolDefinitionTokens", "currentConversationTokens"];
        let sum: u64 = parts.iter().map(|part| budget[*part].as_u64().unwrap()).sum();
        assert_eq!(built["tokensUsed"], sum);
        assert_eq!(fake.requests(VOCABULARY).len(), 1);
        assert_eq!(fake.requests("/api/chat").len(), 6);
        assert_eq!(fake.loads(), 1, "learning a template loads with the window of the chat");
    }
}

#[test]
fn what_a_model_adds_by_itself_is_counted_too() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Counted::with(&fake, "plain", json!({}));
    let first = chat.ask("hi", json!({}));
    assert_eq!(
        first,
        count(&render("plain", &[json!({ "role": "user", "content": "hi" })], &[], true))
    );
    let built = chat.build(json!({ "pending": "more" }));
    assert_eq!(built["tokensUsed"], counted("plain", &built, &[], true));
    let own = built["budget"]["systemPromptTokens"].as_u64().unwrap();
    assert!(own > count("Be brief.Ping?Pong."), "{own}");
    let session = chat.session.clone();
    let _session =
        chat.wire.ok("session.update", json!({ "sessionId": session, "systemPrompt": "My own." }));
    chat.ask("again", json!({}));
}

#[test]
fn counts_stay_exact_without_the_server_and_after_a_restart() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Counted::with(&fake, "tiny", json!({ "systemPrompt": "Be exact." }));
    let tools = json!([tool("read")]);
    chat.ask("one", json!({ "tools": tools }));
    drop(fake);
    let built = chat.build(json!({ "tools": tools, "pending": "two" }));
    assert_eq!(built["countKind"], "exact");
    assert_eq!(built["tokensUsed"], counted("tiny", &built, &[tool("read")], true));
    let Counted { sandbox, daemon, session, .. } = chat;
    assert!(daemon.terminate().success());
    let (daemon, wire) = sandbox.served();
    let mut chat = Counted { sandbox, daemon, wire, session };
    let again = chat.build(json!({ "tools": tools, "pending": "two" }));
    for field in ["messages", "tokensUsed", "countKind", "budget"] {
        assert_eq!(again[field], built[field], "{field}");
    }
    let counted = chat.wire.ok("model.countTokens", json!({ "text": "a banana" }));
    assert_eq!(counted, json!({ "model": "tiny", "tokens": 6, "kind": "exact", "margin": 0 }));
    let session = chat.session.clone();
    let message = json!({ "role": "user", "content": "hello there" });
    let params = json!({ "sessionId": session, "message": message });
    let recorded = chat.wire.ok("session.record", params);
    assert_eq!(recorded["countKind"], "exact", "the vocabulary is in memory by now");
    assert_eq!(recorded["tokens"], count("<|im_start|>user\nhello there<|im_end|>\n"));
    // What is damaged is not believed, and nothing else breaks.
    for file in std::fs::read_dir(chat.sandbox.home().join("vocab")).unwrap() {
        std::fs::write(file.unwrap().path(), b"ollmvoc\n damaged").unwrap();
    }
    assert!(chat.daemon.terminate().success());
    let (_daemon, mut wire) = chat.sandbox.served();
    let built = wire.ok("context.build", json!({ "sessionId": session }));
    assert_eq!(built["countKind"], "estimated");
}

#[test]
fn a_conversation_is_counted_as_its_prompt() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Counted::with(&fake, "tiny", json!({}));
    let messages = [
        json!({ "role": "system", "content": "s" }),
        json!({ "role": "user", "content": "hello" }),
    ];
    let params = json!({ "messages": messages, "tools": [tool("read")] });
    let counted = chat.wire.ok("model.countTokens", params);
    let expect = count(&render("tiny", &messages, &[tool("read")], true));
    assert_eq!(counted, json!({ "model": "tiny", "tokens": expect, "kind": "exact", "margin": 0 }));
    for wrong in
        [json!({}), json!({ "text": "a", "messages": [] }), json!({ "text": "a", "tools": [1] })]
    {
        let _error = chat.wire.refused("model.countTokens", wrong, "invalidParams");
    }
    let unknown = json!({ "model": "none", "text": "a" });
    let _error = chat.wire.refused("model.countTokens", unknown, "modelNotFound");
    assert_eq!(fake.requests("/api/chat").len(), 0, "nothing was answered");
}

#[test]
fn a_server_that_does_not_render_leaves_counts_that_say_so() {
    let fake = FakeOllama::start("0.9.0");
    let mut chat = Counted::with(&fake, "tiny", json!({}));
    let done = chat.send(json!({ "message": { "role": "user", "content": "hello" } }));
    assert_eq!(done["usage"]["countKind"], "calibrated", "{done}");
    let text = chat.wire.ok("model.countTokens", json!({ "text": "a banana" }));
    assert_eq!((&text["tokens"], &text["kind"]), (&json!(6), &json!("exact")));
    let message = json!([{ "role": "user", "content": "hello" }]);
    let counted = chat.wire.ok("model.countTokens", json!({ "messages": message }));
    assert_eq!(counted["kind"], "calibrated");
    assert!(counted["margin"].as_u64().unwrap() > 0);
}

#[test]
fn a_server_that_fails_to_tell_costs_no_turn() {
    let fake = FakeOllama::start("0.33.0");
    let error = || Fault::Error { status: 500, text: "no".to_owned() };
    fake.next(VOCABULARY, &[error()]);
    let mut chat = Counted::with(&fake, "tiny", json!({}));
    let done = chat.send(json!({ "message": { "role": "user", "content": "hello" } }));
    assert_eq!((&done["kind"], &done["usage"]["countKind"]), (&json!("done"), &json!("estimated")));
    let fake = FakeOllama::start("0.33.0");
    fake.next(RENDER, &[Fault::Garbage]);
    let mut chat = Counted::with(&fake, "tiny", json!({}));
    let done = chat.send(json!({ "message": { "role": "user", "content": "hello" } }));
    assert_eq!(
        (&done["kind"], &done["usage"]["countKind"]),
        (&json!("done"), &json!("calibrated"))
    );
}

#[test]
fn a_prompt_that_the_server_cut_is_an_event_and_an_error() {
    // Of this version `truncate: false` is ignored, and a window may be smaller than asked for.
    let fake = FakeOllama::start("0.12.0");
    fake.set_largest_window(2048);
    let mut chat = Counted::with(&fake, "tiny", json!({}));
    let mut events = chat.daemon.wire();
    let _subscription = events.subscribe(json!({ "kinds": ["server-truncated"] }));
    let long = json!({ "message": { "role": "user", "content": "y".repeat(3000) } });
    let error = chat.send(long);
    assert_eq!(error["kind"], "error", "{error}");
    let event = until("the event", || Some(events.event()));
    assert_eq!(event["data"]["readTokens"], 2048);
    assert_eq!(
        event["data"]["sentTokens"],
        3000 + count("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
    );
    // What the window really is is known now.
    let done = chat.send(json!({ "message": { "role": "user", "content": "short" } }));
    assert_eq!(done["kind"], "done", "{done}");
    assert_eq!(done["usage"]["promptTokens"], done["usage"]["contextTokens"]);
}

#[test]
fn a_context_never_passes_its_limit_by_exact_count() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Counted::with(&fake, "tiny", json!({ "contextSize": 2048 }));
    // By estimate these lines have a third of the tokens that the model's small vocabulary gives them.
    for n in 0..6 {
        let text = format!("{n} the quick brown fox jumps over the lazy dog. ").repeat(12);
        let used = chat.ask(&text, json!({}));
        assert!(used <= 1741, "{used}");
    }
    let built = chat.build(json!({ "pending": "x".repeat(300) }));
    assert!(built["tokensUsed"].as_u64().unwrap() <= built["tokenBudget"].as_u64().unwrap());
    assert_eq!(built["tokensUsed"], counted("tiny", &built, &[], true));
    assert_eq!(built["countKind"], "exact");
}

#[test]
fn models_count_tells_how_many_tokens_a_text_has() {
    let fake = FakeOllama::start("0.33.0");
    let chat = Counted::with(&fake, "tiny", json!({}));
    let told = chat.sandbox.ctl(["models", "count", "a banana"]).ok();
    assert_eq!(told, "6 tokens\n");
    let output = chat.sandbox.ctl_with(["models", "count", "-m", "thinker", "-"], "hello there");
    assert_eq!(output.ok(), format!("{} tokens\n", count("hello there")));
    let json = chat.sandbox.ctl(["models", "count", "a", "--json"]).json();
    assert_eq!(json["kind"], "exact");
}

#[test]
fn what_cannot_be_learned_is_corrected_by_what_the_server_counts() {
    // It renders no prompts, so its template stays unknown.
    let fake = FakeOllama::start("0.9.0");
    let mut counted = Counted::with(&fake, "tiny", json!({ "systemPrompt": "Be kind. " }));
    let ask = |counted: &mut Counted, text: &str| {
        let done = counted.send(json!({ "message": { "role": "user", "content": text } }));
        let usage = done["usage"].clone();
        assert_eq!(usage["countKind"], "calibrated", "{done}");
        let number = |name: &str| usage[name].as_u64().unwrap();
        (number("contextTokens"), number("promptTokens"))
    };
    let texts = ["Who are you?", "Count to ten.\n", "  Again!", "And now fn main() {} 字"];
    let first = ask(&mut counted, texts[0]);
    assert_ne!(first.0, first.1, "a template that is known needs no correction");
    let _second = ask(&mut counted, texts[1]);
    for text in &texts[2..] {
        let (here, there) = ask(&mut counted, text);
        assert_eq!(here, there, "{text}");
    }
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let count = json!({ "messages": messages });
    let told = counted.wire.ok("model.countTokens", count);
    assert_eq!((&told["kind"], &told["margin"]), (&json!("calibrated"), &json!(1)), "{told}");
    let (_, used) = ask(&mut counted, "How long may it be?");
    let longest = fake.requests("/api/chat").pop().unwrap().body["options"]["num_predict"].clone();
    assert_eq!(longest, 8192 - 1 - used - 1, "the margin is what is known to be uncertain");
    let Counted { sandbox, daemon, session, .. } = counted;
    assert!(daemon.terminate().success());
    let (daemon, wire) = sandbox.served();
    let mut counted = Counted { sandbox, daemon, wire, session };
    let (here, there) = ask(&mut counted, "Do you remember?");
    assert_eq!(here, there, "what was learned survives a restart");
}

#[test]
fn a_server_that_counts_what_it_reads_anew_teaches_nothing() {
    let fake = FakeOllama::start("0.30.0");
    fake.next(RENDER, &vec![Fault::Error { status: 501, text: "no".to_owned() }; 99]);
    let mut counted = Counted::with(&fake, "tiny", json!({}));
    for text in ["one", "two", "three", "four"] {
        let done = counted.send(json!({ "message": { "role": "user", "content": text } }));
        assert_eq!(done["usage"]["countKind"], "calibrated", "{done}");
    }
    let messages = json!([{ "role": "user", "content": "hello ".repeat(100) }]);
    let told = counted.wire.ok("model.countTokens", json!({ "messages": messages }));
    let tokens = told["tokens"].as_u64().unwrap();
    assert_eq!(told["margin"], tokens.div_ceil(10), "{told}");
}

/// Counts a text and returns how often the server was asked for its vocabulary.
fn vocabulary_requests(fake: &FakeOllama, wire: &mut Wire, kind: &str) -> usize {
    let told = wire.ok("model.countTokens", json!({ "model": "tiny", "text": "in the inning" }));
    assert_eq!(told["kind"], kind, "{told}");
    assert!(kind != "exact" || told["tokens"] == count("in the inning"), "{told}");
    fake.requests(VOCABULARY).len()
}

#[test]
fn a_vocabulary_is_read_from_the_file_of_the_weights_where_that_is_here() {
    let fake = FakeOllama::start("0.33.0");
    let blob = format!("sha256-{}", "0123456789abcdef".repeat(4));
    let failing = [Fault::Error { status: 500, text: "no".to_owned() }];
    let config = format!("ollama:\n  host: {}\n", fake.host());
    let sandbox = || {
        let sandbox = Sandbox::new();
        sandbox.write_config(&config);
        sandbox
    };
    // Where the server says.
    let here = sandbox();
    std::fs::write(here.path(&blob), gguf()).unwrap();
    fake.set_weights(&here.path(&blob));
    let (_daemon, mut wire) = here.served();
    assert_eq!(vocabulary_requests(&fake, &mut wire, "exact"), 0);
    // Where its models usually lie, and where a variable says, as for a server in a container.
    fake.set_weights(&std::path::Path::new("/nowhere/models/blobs").join(&blob));
    let usual = sandbox();
    let blobs = usual.home().parent().unwrap().join(".ollama/models/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(&blob), gguf()).unwrap();
    let (_daemon, mut wire) = usual.served();
    assert_eq!(vocabulary_requests(&fake, &mut wire, "exact"), 0);
    let elsewhere = sandbox();
    std::fs::create_dir_all(elsewhere.path("models/blobs")).unwrap();
    std::fs::write(elsewhere.path("models/blobs").join(&blob), gguf()).unwrap();
    let models = elsewhere.path("models");
    let daemon = Daemon::start_with(&elsewhere, &[("OLLAMA_MODELS", models.to_str().unwrap())]);
    assert_eq!(vocabulary_requests(&fake, &mut daemon.wire(), "exact"), 0);
    // What is no such file is not waited for and not believed.
    for (at, make) in [
        (|path: &std::path::Path| std::fs::create_dir(path).unwrap()) as fn(&std::path::Path),
        |path| {
            let status = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(status.success());
        },
        |path| std::fs::write(path, b"GGUF\x03\0\0\0 and then nothing").unwrap(),
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
    ]
    .into_iter()
    .enumerate()
    {
        let odd = sandbox();
        make(&odd.path(&blob));
        fake.set_weights(&odd.path(&blob));
        let (_daemon, mut wire) = odd.served();
        assert_eq!(vocabulary_requests(&fake, &mut wire, "exact"), at + 1);
    }
    fake.next(VOCABULARY, &failing);
    let neither = sandbox();
    let (_daemon, mut wire) = neither.served();
    assert_eq!(vocabulary_requests(&fake, &mut wire, "estimated"), 5);
}
