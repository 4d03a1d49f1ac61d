//! Sessions and projects that are bound to model servers: no other server gets a byte of their texts.

use serde_json::{Value, json};

use crate::harness::openai::{Face, FakeOpenAi, error};
use crate::harness::{ModelSession, Sandbox, assert_fields};

/// A text that only the server `near` may get.
const SECRET: &str = "The staging server of Zebra listens on port 48213.";
const WORD: &str = "Zebra";

/// Two servers: `near` has the model `own`, and `far` has `other`; both are equal for `big`.
struct Servers {
    near: FakeOpenAi,
    far: FakeOpenAi,
}

impl Servers {
    fn new() -> Self {
        let [near, far] = [(); 2].map(|()| FakeOpenAi::new(Face::LlamaServer));
        Self { near, far }
    }

    fn config(&self, rest: &str) -> String {
        let server = |name: &str, fake: &FakeOpenAi, alias: &str| {
            let url = fake.url();
            format!(
                "  {name}:\n    kind: llama-server\n    url: {url}\n    models:\n      {alias}: {{ name: m }}\n      \
                 big: {{ name: m }}\n"
            )
        };
        let (near, far) = (server("near", &self.near, "own"), server("far", &self.far, "other"));
        format!("ollama:\n  host: 127.0.0.1:9\nservers:\n{near}{far}{rest}")
    }

    /// Starts a daemon with a session that only `near` may read.
    fn start(&self, rest: &str) -> ModelSession {
        let params = json!({ "model": "own", "allowedServers": ["near"] });
        ModelSession::create(&self.config(rest), params)
    }

    /// Checks that the server `far` got nothing of the secret, and that `near` did.
    #[track_caller]
    fn check_secret(&self) {
        let has = |fake: &FakeOpenAi| {
            fake.all_requests().iter().any(|sent| sent.body.to_string().contains(WORD))
        };
        assert!(has(&self.near), "the text was sent at all");
        assert!(!has(&self.far), "{:#?}", self.far.all_requests());
    }
}

/// Makes a server refuse a chat, and each attempt to send it again.
fn refuse(server: &FakeOpenAi) {
    for _ in 0..3 {
        server.reply_with(error(503, "unavailable_error", "Loading model"));
    }
}

#[test]
fn chat_with_another_server_is_refused_before_anything_is_recorded() {
    let servers = Servers::new();
    let mut chat = servers.start("");
    let _turn = chat.turn(SECRET);
    let n_records = chat.records().len();
    for model in ["other", "m@far", "big@far"] {
        let mut params = chat.message("and now elsewhere");
        params["model"] = json!(model);
        let error = chat.wire.refused("chat.send", params, "config");
        assert_fields(&error["data"], json!({ "reason": "notAllowed", "server": "far" }));
        assert_eq!(error["data"]["allowed"], json!(["near"]));
        let hint = error["data"]["hint"].as_str().unwrap();
        assert_eq!(hint, format!("ollmctl sessions servers {}", chat.id));
    }
    assert_eq!(chat.records().len(), n_records);
    chat.ok("session.update", json!({ "model": "other" }));
    let params = chat.message("");
    chat.wire.refused("chat.send", params, "config");
    servers.check_secret();
    // A person changes that.
    chat.ok("session.update", json!({ "allowedServers": [] }));
    let _turn = chat.turn("hello");
    assert!(servers.far.chats().last().unwrap().to_string().contains(WORD));
}

#[test]
fn equal_server_that_is_not_allowed_is_never_used() {
    let servers = Servers::new();
    let mut chat = servers.start("");
    chat.ok("session.update", json!({ "model": "big" }));
    let _turn = chat.turn(SECRET);
    refuse(&servers.near);
    let error = chat.failed_turn("and now?", "modelUnavailable");
    assert_eq!(error["data"]["tried"], json!(["near"]), "{error}");
    // A busy server does not make another one the choice of a new session.
    for _ in 0..3 {
        chat.id = chat.wire.create(json!({ "model": "big", "allowedServers": ["near"] }));
        let _turn = chat.turn("hello");
    }
    servers.check_secret();
    assert!(servers.far.chats().is_empty());
    // The binding came while the session used the other server.
    chat.id = chat.wire.create(json!({ "model": "big" }));
    let _turn = chat.turn("hello");
    assert_eq!(servers.far.chats().len(), 1);
    chat.ok("session.update", json!({ "allowedServers": ["near"] }));
    let _turn = chat.turn("hello again");
    assert_eq!(servers.far.chats().len(), 1);
}

#[test]
fn notes_are_written_by_the_own_model_if_another_one_may_not_read_the_session() {
    let servers = Servers::new();
    let mut chat = servers.start("compression:\n  model: other\n");
    // The requests for notes have to fit, and the servers count bytes.
    for model in ["own", "other"] {
        chat.wire.ok("model.warm", json!({ "model": model }));
    }
    for number in 0..6 {
        let _turn = chat.turn(&format!("{SECRET} {number} {}", "More words. ".repeat(60)));
    }
    let n_chats = servers.near.chats().len();
    // The fake answers "ok", which is no summary.
    let error = chat.refused("context.compact", json!({ "strategy": "summarize" }), "modelFailed");
    assert_eq!(error["data"]["model"], "own", "{error}");
    assert!(servers.near.chats().len() > n_chats);
    let first = chat.records().into_iter().find(|one| one["message"]["role"] == "user").unwrap();
    let n_chats = servers.near.chats().len();
    chat.ok("session.branch", json!({ "toSeq": first["seq"], "summarize": true }));
    assert!(servers.near.chats().len() > n_chats, "the branch was summarized");
    servers.check_secret();
    // Without the binding, the other model writes them.
    chat.id = chat.wire.create(json!({ "model": "own" }));
    for number in 0..6 {
        let _turn = chat.turn(&format!("Port {number} is free. {}", "More words. ".repeat(60)));
    }
    let error = chat.refused("context.compact", json!({ "strategy": "summarize" }), "modelFailed");
    assert_eq!(error["data"]["model"], "other", "{error}");
}

#[test]
fn session_that_another_server_may_read_quotes_nothing() {
    let servers = Servers::new();
    let mut chat = servers.start("recall:\n  scope: all\n");
    let _turn = chat.turn(SECRET);
    let secret = chat.id.clone();
    // Returns whether a new session quotes another one for its question.
    let quotes_for = |chat: &mut ModelSession, params: Value, of: &str, question: &str| {
        chat.id = chat.wire.create(params);
        chat.wire.wait_for_catalog();
        let events = chat.turn(question);
        let usage = &events.last().unwrap()["usage"];
        let found = usage["recalledElsewhere"].as_array().cloned().unwrap_or_default();
        found.iter().any(|one| one["sessionId"] == of)
    };
    let quotes = |chat: &mut ModelSession, params: Value, of: &str| {
        quotes_for(chat, params, of, "Which port does the staging server of Z. listen on?")
    };
    assert!(!quotes(&mut chat, json!({ "model": "other" }), &secret));
    assert!(!quotes(&mut chat, json!({ "model": "own" }), &secret), "it could go on elsewhere");
    servers.check_secret();
    let bound = json!({ "model": "own", "allowedServers": ["near"] });
    assert!(quotes(&mut chat, bound, &secret), "no other server ever reads it");
    servers.check_secret();
    // A session that is not bound may be quoted.
    chat.id = chat.wire.create(json!({ "model": "own" }));
    let _turn = chat.turn("The archive of the shop moved to host 10.20.30.40.");
    let open = chat.id.clone();
    let question = "To which host did the archive of the shop move?";
    assert!(quotes_for(&mut chat, json!({ "model": "other" }), &open, question));
    servers.check_secret();
}

#[test]
fn project_binds_all_of_its_sessions() {
    let servers = Servers::new();
    let mut chat = ModelSession::create(&servers.config(""), json!({}));
    let project = chat.sandbox.project_dir("private");
    let set = |chat: &mut ModelSession, servers: Value| {
        let params = json!({ "projectPath": project, "allowedServers": servers });
        chat.wire.ok("session.setProjectServers", params)
    };
    assert_eq!(set(&mut chat, json!(["near"]))["allowedServers"], json!(["near"]));
    chat.id = chat.wire.create(json!({ "projectPath": project, "model": "own" }));
    let _turn = chat.turn(SECRET);
    let mut chat = chat.kill_and_restart();
    let refused = |chat: &mut ModelSession| {
        let mut params = chat.message("elsewhere");
        params["model"] = json!("other");
        let error = chat.wire.refused("chat.send", params, "config");
        error["data"]["allowed"].clone()
    };
    assert_eq!(refused(&mut chat), json!(["near"]));
    // Both the session and the project must allow a server.
    chat.ok("session.update", json!({ "allowedServers": ["far", "ollama"] }));
    assert_eq!(refused(&mut chat), json!([]));
    set(&mut chat, json!(["near", "ollama"]));
    assert_eq!(refused(&mut chat), json!(["ollama"]));
    servers.check_secret();
    // A file that cannot be read may forbid a server.
    let projects = chat.sandbox.home().join("projects");
    let file = std::fs::read_dir(projects).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "{").unwrap();
    let params = chat.message("hello");
    chat.wire.refused("chat.send", params, "config");
}

#[test]
fn copies_of_a_session_keep_its_servers() {
    let servers = Servers::new();
    let mut chat = servers.start("");
    let _turn = chat.turn(SECRET);
    let first = chat.records().into_iter().find(|one| one["message"]["role"] == "user").unwrap();
    chat.ok("session.update", json!({ "allowedServers": ["near", "ollama"] }));
    let expect = json!(["near", "ollama"]);
    let allowed = |session: &Value| session["allowedServers"].clone();
    let fork = chat.ok("session.fork", json!({ "atSeq": first["seq"] }));
    assert_eq!(allowed(&fork["session"]), expect, "also from before the change");
    let taken = chat.ok("snapshot.create", json!({}));
    let params = json!({ "snapshotId": taken["snapshot"]["snapshotId"], "newSession": true });
    let restored = chat.wire.ok("snapshot.restore", params.clone());
    assert_eq!(allowed(&restored["session"]), expect);
    // A later restriction holds for the earlier state as well.
    for (now, restored) in [(["ollama", "far"], "ollama"), (["far", "far"], "(none)")] {
        chat.ok("session.update", json!({ "allowedServers": now }));
        let session = chat.wire.ok("snapshot.restore", params.clone())["session"].clone();
        assert_eq!(allowed(&session), json!([restored]), "{now:?}");
    }
    chat.ok("session.update", json!({ "allowedServers": expect }));
    let id = chat.id.clone();
    for format in ["json", "jsonl"] {
        let data = chat.wire.export(&id, format);
        let other = Sandbox::new();
        let (_daemon, mut wire) = other.daemon_and_wire();
        let imported = wire.ok("session.import", json!({ "data": data, "last": true }));
        assert_eq!(allowed(&imported["session"]), expect, "{format}");
    }
}

#[test]
fn damaged_record_may_have_the_list() {
    let servers = Servers::new();
    let mut chat = ModelSession::create(&servers.config(""), json!({ "model": "own" }));
    let _turn = chat.turn("hello");
    chat.ok("session.update", json!({ "allowedServers": ["near"] }));
    let _turn = chat.turn(SECRET);
    let ModelSession { sandbox, daemon, id, .. } = chat;
    assert!(daemon.terminate().success());
    let log = sandbox.log_path(&id);
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replace("allowedServers", "allowedServerz")).unwrap();
    sandbox.remove_catalog();
    let (daemon, wire) = sandbox.daemon_and_wire();
    let mut chat = ModelSession { sandbox, daemon, wire, id };
    let mut params = chat.message("and now elsewhere");
    params["model"] = json!("other");
    let error = chat.wire.refused("chat.send", params, "config");
    assert_eq!(error["data"]["allowed"], json!(["(none)"]), "{error}");
    let told = chat.sandbox.ctl(["chat", "--resume", &chat.id, "and now?"]).fails(5);
    let problem = "allowed: none, because the list of servers may be lost";
    let command = format!("try: ollmctl sessions servers {} --all", chat.id);
    assert!(told.contains(problem) && told.contains(&command), "{told}");
    servers.check_secret();
    chat.ok("session.update", json!({ "allowedServers": ["near"] }));
    let _turn = chat.turn("hello again");
    servers.check_secret();
}

#[test]
fn servers_are_shown_and_set_by_a_command() {
    let servers = Servers::new();
    let mut chat = ModelSession::create(&servers.config(""), json!({ "model": "other" }));
    let id = chat.id.clone();
    let run = |args: &[&str]| chat.sandbox.ctl([&["sessions", "servers"], args].concat());
    assert_eq!(run(&[&id]).ok(), format!("{id}: all servers\n"));
    assert_eq!(run(&[&id, "near", "ollama"]).ok(), format!("{id}: near, ollama\n"));
    assert!(run(&[&id, "nowhere"]).fails(2).contains("there are: far, near, ollama"));
    let project = chat.sandbox.project_dir("private");
    assert_eq!(run(&["--project", &project, "near"]).ok(), format!("{project}: near\n"));
    assert_eq!(run(&["--project", &project]).ok(), format!("{project}: near\n"));
    assert_eq!(run(&["--project", &project, "--all"]).ok(), format!("{project}: all servers\n"));
    assert_eq!(run(&[&id, "--all"]).ok(), format!("{id}: all servers\n"));
    let view = chat.sandbox.ctl(["sessions", "view", &id, "--all"]).stdout;
    assert!(!view.contains("panicked"), "{view}");
    let _turn = chat.turn("hello");
}
