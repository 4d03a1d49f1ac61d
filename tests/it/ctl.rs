//! `ollmctl` end to end: what a person types, what a script decides by.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{FakeOllama, Sandbox, Waits as _, fixture, program, until};

/// Two short sessions; the ids, oldest first.
fn two_sessions(sandbox: &Sandbox) -> [String; 2] {
    let (daemon, mut wire) = sandbox.served();
    let ids = ["parsing tables", "rendering trees"].map(|title| {
        let session = wire.create(json!({ "title": title }));
        let _seq = wire.record(&session, "user", &format!("Tell me about {title}."));
        let _seq = wire.record(&session, "assistant", &format!("Here is all about {title}."));
        session
    });
    assert!(daemon.terminate().success());
    ids
}

#[test]
fn a_conversation_from_the_first_word_to_the_export() {
    let sandbox = Sandbox::new();
    let project = sandbox.project("work");
    // The first command starts the daemon.
    let said = sandbox.ctl(["record", "--project", &project, "How do I reverse a list?"]).ok();
    let id = said
        .split_whitespace()
        .find(|word| word.len() == 36)
        .expect("the id is printed")
        .to_owned();
    assert!(sandbox.log_of(&id).is_file());
    let _said = sandbox
        .ctl_with(
            ["record", "--project", &project, "--role", "assistant", "--model", "qwen3:8b", "-"],
            "Use reversed().\n",
        )
        .ok();
    let listed = sandbox.ctl(["sessions", "list"]).ok();
    assert!(listed.contains("How do I reverse a list?"), "{listed}");
    let viewed = sandbox.ctl(["sessions", "view", "last"]).ok();
    assert!(viewed.contains("reverse a list?") && viewed.contains("Use reversed()."), "{viewed}");
    crate::harness::until("search finds it", || {
        sandbox.ctl(["sessions", "search", "reversed"]).stdout.contains("reversed").then_some(())
    });
    let file = sandbox.path("talk.md");
    let _said =
        sandbox.ctl(["sessions", "export", "last", "--output", file.to_str().unwrap()]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("Use reversed()."), "{text}");
    let built = sandbox
        .ctl(["context", "build", "last", "--size", "4096", "--pending", "And in Rust?", "--json"])
        .json();
    assert_eq!(built["messages"].as_array().unwrap().last().unwrap()["content"], "And in Rust?");
    let _said = sandbox.ctl(["sessions", "rename", "last", "Lists"]).ok();
    assert!(sandbox.ctl(["sessions", "list"]).ok().contains("Lists"));
    let _said = sandbox.ctl(["sessions", "archive", &id]).ok();
    assert!(!sandbox.ctl(["sessions", "list"]).ok().contains("Lists"));
    let _said = sandbox.ctl(["sessions", "unarchive", &id]).ok();
    let _said = sandbox.ctl(["sessions", "delete", "--yes", &id]).ok();
    assert!(!sandbox.log_of(&id).exists());
    let _said = sandbox.ctl(["daemon", "stop"]).ok();
    assert!(!sandbox.home().join("daemon.json").exists(), "it is gone when the command returns");
}

#[test]
fn a_real_session_is_imported_once_and_found() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let file = fixture("import/pi-mono-session.jsonl");
    let file = file.to_str().unwrap();
    let dry = sandbox.ctl(["sessions", "import", "--dry-run", file]).ok();
    assert!(!dry.is_empty());
    assert_eq!(sandbox.ctl(["sessions", "list", "--json"]).json()["data"], json!([]));
    let _said = sandbox.ctl(["sessions", "import", file]).ok();
    let list = sandbox.ctl(["sessions", "list", "--json"]).json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    assert!(list["data"][0]["messageCount"].as_u64().unwrap() > 10, "{list}");
    assert!(list["data"][0]["importedFrom"].as_str().unwrap().contains("pi"), "{list}");
    let again = sandbox.ctl(["sessions", "import", file]);
    assert_eq!(again.code, Some(0));
    assert_eq!(
        sandbox.ctl(["sessions", "list", "--json"]).json()["data"].as_array().unwrap().len(),
        1
    );
    // Its project is on the machine that it came from.
    let resumed = sandbox.ctl(["sessions", "resume", "last"]);
    assert!(resumed.stderr.contains("its project is not on this machine: /"), "{resumed:?}");
    assert!(!resumed.ok().is_empty());
    let viewed = sandbox.ctl(["sessions", "view", "last", "--limit", "5"]).ok();
    assert!(viewed.lines().count() > 3 && !viewed.contains('\u{1b}'), "{viewed}");
    let from_stdin =
        sandbox.ctl_with(["sessions", "import", "-"], &std::fs::read_to_string(file).unwrap());
    assert_eq!(from_stdin.code, Some(0), "{from_stdin:?}");
    let missing = sandbox.ctl(["sessions", "import", "/nowhere/at/all.jsonl"]).fails(3);
    assert!(missing.contains("/nowhere/at/all.jsonl"), "{missing}");
}

#[test]
fn ids_are_given_whole_by_a_unique_beginning_or_as_last() {
    let sandbox = Sandbox::new();
    let [first, second] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let title = |id: &str| sandbox.ctl(["sessions", "view", id]).ok();
    assert!(title(&first).contains("parsing tables"));
    assert!(title(&first[..30]).contains("parsing tables"));
    assert!(title(&second[..30].to_uppercase()).contains("rendering trees"));
    assert!(title("last").contains("rendering trees"));
    let ambiguous = sandbox.ctl(["sessions", "view", &first[..4]]).fails(2);
    assert!(
        ambiguous.contains(&first) && ambiguous.contains(&second),
        "it names them: {ambiguous}"
    );
    let _missing = sandbox.ctl(["sessions", "view", "ffffffff"]).fails(3);
    let _missing =
        sandbox.ctl(["sessions", "view", "01890000-0000-7000-8000-000000000000"]).fails(3);
    let _wrong = sandbox.ctl(["sessions", "view", "../../etc/passwd"]).fails(2);
}

#[test]
fn last_says_so_when_there_is_none() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    assert_eq!(sandbox.ctl(["sessions", "list"]).ok(), "no sessions\n");
    let none = sandbox.ctl(["sessions", "view", "last"]).fails(3);
    assert!(none.contains("no session"), "{none}");
    let list = sandbox.ctl(["sessions", "list", "--json"]).json();
    assert_eq!(list["data"], json!([]));
}

#[test]
fn json_is_one_value_on_stdout_and_errors_are_json_on_stderr() {
    let sandbox = Sandbox::new();
    let [_, id] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let status = sandbox.ctl(["daemon", "status", "--json"]).json();
    assert_eq!(status["store"]["sessions"], 2);
    assert_eq!(
        sandbox.ctl(["--json", "sessions", "view", &id]).json()["session"]["sessionId"],
        id.as_str()
    );
    let failed = sandbox
        .ctl(["--json", "sessions", "view", "01890000-0000-7000-8000-000000000000"])
        .fails(3);
    let told: Value =
        serde_json::from_str(failed.trim()).unwrap_or_else(|error| panic!("{error}: {failed}"));
    assert!(told.to_string().contains("sessionNotFound"), "{told}");
    let failed = sandbox.ctl(["--json", "sessions", "lst"]).fails(2);
    let _told: Value =
        serde_json::from_str(failed.trim()).unwrap_or_else(|error| panic!("{error}: {failed}"));
}

#[test]
fn exit_codes_tell_the_class() {
    let sandbox = Sandbox::new();
    let _unreachable = sandbox.ctl(["--no-spawn", "sessions", "list"]).fails(6);
    let status = sandbox.ctl(["daemon", "status"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(6), "ollmd is not running\n"));
    let daemon = sandbox.daemon();
    let _usage = sandbox.ctl(["sessions", "frobnicate"]).fails(2);
    let _usage = sandbox.ctl(["call", "session.list", "{\"limt\": 1}"]).fails(2);
    let _usage = sandbox.ctl(["call", "session.list", "{"]).fails(2);
    let unknown = sandbox.ctl(["call", "session.lst"]).fails(2);
    assert!(unknown.contains("session.list"), "it offers what was meant: {unknown}");
    let _gone = sandbox
        .ctl(["call", "session.get", "{\"sessionId\": \"01890000-0000-7000-8000-000000000000\"}"])
        .fails(3);
    let id =
        sandbox.ctl(["call", "session.create", "{\"key\": \"k\"}"]).json()["session"]["sessionId"]
            .clone();
    assert!(id.is_string());
    let _conflict =
        sandbox.ctl(["call", "session.create", "{\"key\": \"k\", \"title\": \"other\"}"]).fails(4);
    sandbox.write_config("sessions:\n  maxSesions: 3\n");
    let config = sandbox.ctl(["call", "daemon.reload"]).fails(5);
    assert!(config.contains("maxSesions"), "{config}");
    let checked = sandbox.ctl(["config", "check"]).fails(5);
    assert!(
        checked.contains("config.yaml") && checked.contains("maxSesions") && checked.contains('2'),
        "{checked}"
    );
    drop(daemon);
    let start = sandbox.ctl(["daemon", "start"]);
    assert_eq!(
        start.code,
        Some(5),
        "the daemon's reason reaches the person who starts it: {start:?}"
    );
    assert!(start.stderr.contains("maxSesions"), "{start:?}");
}

#[test]
fn without_a_daemon_and_without_starting_one_the_error_says_what_to_do() {
    let sandbox = Sandbox::new();
    let said = sandbox.ctl(["--no-spawn", "sessions", "list"]).fails(6);
    assert!(
        said.contains(sandbox.home().to_str().unwrap()) || said.contains(".sock"),
        "where: {said}"
    );
    assert!(said.contains("ollmctl daemon start"), "what next: {said}");
    let mut command = sandbox.command("ollmctl");
    let output = command.env("OLLM_NO_SPAWN", "1").args(["sessions", "list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(!sandbox.home().join("ollmd.lock").exists(), "nothing was started");

    std::fs::write(sandbox.socket(), "no socket").unwrap();
    let said = sandbox
        .ctl(["--no-spawn", "--socket", sandbox.socket().to_str().unwrap(), "socket"])
        .fails(6);
    assert!(said.contains(sandbox.socket().to_str().unwrap()), "{said}");
}

#[test]
fn a_daemon_that_never_answers_does_not_hang_the_client() {
    let sandbox = Sandbox::new();
    let listener = std::os::unix::net::UnixListener::bind(sandbox.socket()).unwrap();
    let said = sandbox.ctl([
        "--no-spawn",
        "--timeout",
        "0.5",
        "--socket",
        sandbox.socket().to_str().unwrap(),
        "sessions",
        "list",
    ]);
    assert!(said.code.is_some_and(|code| code != 0), "{said:?}");
    assert!(said.stderr.contains("0.5 s"), "{said:?}");
    drop(listener);
}

#[test]
fn several_clients_at_once_start_one_daemon() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..6)
            .map(|n| {
                let sandbox = &sandbox;
                scope.spawn(move || sandbox.ctl(["record", "--new", &format!("message {n}")]).ok())
            })
            .collect();
        for one in all {
            let _said = one.join().unwrap();
        }
    });
    let list = sandbox.ctl(["sessions", "list", "--json"]).json();
    assert_eq!(list["data"].as_array().unwrap().len(), 6);
    let before = sandbox.ctl(["daemon", "status", "--json"]).json()["pid"].clone();
    let _said = sandbox.ctl(["daemon", "restart"]).ok();
    let after = sandbox.ctl(["daemon", "status", "--json"]).json()["pid"].clone();
    assert_ne!(before, after);
    assert_eq!(
        sandbox.ctl(["sessions", "list", "--json"]).json()["data"].as_array().unwrap().len(),
        6
    );
}

#[test]
fn what_destroys_asks_first() {
    let sandbox = Sandbox::new();
    let [first, second] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let commands: [&[&str]; 3] = [
        &["sessions", "delete", &first],
        &["sessions", "clear", "--all"],
        &["sessions", "cleanup", "--keep", "0"],
    ];
    for command in commands {
        let refused = sandbox.ctl(command).fails(2);
        assert!(refused.contains("--yes"), "{refused}");
        // An answer through a pipe is no person at a terminal.
        let _refused = sandbox.ctl_with(command, "y\ny\n").fails(2);
    }
    let _usage = sandbox.ctl(["sessions", "clear", "--yes"]).fails(2);
    assert_eq!(
        sandbox.ctl(["sessions", "list", "--json"]).json()["data"].as_array().unwrap().len(),
        2
    );
    let planned = sandbox.ctl(["sessions", "cleanup", "--keep", "1", "--dry-run", "--json"]).json();
    assert_eq!(planned["deleted"][0]["sessionId"], first.as_str());
    let _done = sandbox.ctl(["sessions", "cleanup", "--keep", "1", "--yes"]).ok();
    assert!(!sandbox.log_of(&first).exists() && sandbox.log_of(&second).exists());
    let _done = sandbox.ctl(["sessions", "clear", "--all", "--yes"]).ok();
    assert!(!sandbox.log_of(&second).exists());
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    for n in 0..300 {
        let _seq = wire.record(&session, "user", &format!("line {n} {}", "words ".repeat(100)));
    }
    for command in
        ["sessions view last --full", "call rpc.discover", "sessions export last --format jsonl"]
    {
        let mut shell = Command::new("/bin/sh");
        sandbox.clean(&mut shell);
        let ctl = program("ollmctl");
        let script = format!(
            "{{ '{}' {command}; echo \"exit $?\" >&2; }} | head -n 1 >/dev/null",
            ctl.display()
        );
        let output = shell.args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.trim(), "exit 0", "{command}");
    }
}

#[test]
fn text_reaches_a_terminal_without_its_escape_sequences() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[31mred\u{9b}2J\r\u{202e}end";
    let session = wire.create(json!({ "title": evil }));
    let _seq = wire.record(&session, "user", evil);
    let _seq = wire.record(&session, "assistant", evil);
    for command in [
        &["sessions", "view", "last"][..],
        &["sessions", "list"],
        &["--json", "sessions", "view", "last"],
        &["call", "session.list"],
    ] {
        let mut with_color = vec!["--color", "never"];
        with_color.extend(command);
        let printed = sandbox.ctl(&with_color).ok();
        for bad in ['\u{1b}', '\u{7}', '\u{9b}', '\r', '\u{202e}'] {
            assert!(!printed.contains(bad), "{command:?} printed {bad:?}: {printed:?}");
        }
        assert!(printed.contains("end"));
    }
}

#[test]
fn events_are_json_lines_as_they_happen() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "before");
    let other = wire.create(json!({}));
    let _seq = wire.record(&other, "user", "elsewhere");
    let follower =
        sandbox.follow(["events", "--session", &session, "--kind", "message-recorded", "--json"]);
    crate::harness::until("the follower has subscribed", || {
        (wire.ok("daemon.status", json!({}))["subscriptions"] == 1).then_some(())
    });
    let _seq = wire.record(&other, "user", "elsewhere");
    let seq = wire.record(&session, "assistant", "now");
    let event: Value = serde_json::from_str(&follower.line()).unwrap();
    assert_eq!((&event["kind"], &event["seq"]), (&json!("message-recorded"), &json!(seq)));
    assert_eq!(event["sessionId"], session.as_str());
}

#[test]
fn any_method_can_be_called_with_params_from_stdin() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let created =
        sandbox.ctl_with(["call", "session.create", "-"], "{\"title\": \"from a pipe\"}").json();
    assert_eq!(created["session"]["title"], "from a pipe");
    let id = created["session"]["sessionId"].as_str().unwrap();
    let params =
        json!({ "sessionId": id, "message": { "role": "user", "content": "x".repeat(300_000) } });
    let recorded = sandbox.ctl_with(["call", "session.record", "-"], &params.to_string()).json();
    assert_eq!(recorded["seq"], 1);
    let status = sandbox.ctl(["call", "daemon.status"]).json();
    assert!(status["pid"].is_u64());
}

#[test]
fn completions_are_scripts_that_their_shells_accept() {
    let sandbox = Sandbox::new();
    for (shell, flags) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = sandbox.ctl(["completions", shell]).ok();
        assert!(script.contains("_OLLMCTL_COMPLETE") && script.contains("ollmctl"), "{shell}");
        let file = sandbox.path(&format!("completion.{shell}"));
        std::fs::write(&file, &script).unwrap();
        let checked = Command::new(shell)
            .args(flags)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        // Where a shell is not installed its syntax cannot be checked.
        if let Ok(mut child) = checked {
            let status = child.wait_for(crate::harness::DEADLINE).unwrap();
            assert!(status.success(), "{shell} does not accept its completions");
        }
    }
    assert!(!sandbox.home().join("daemon.json").exists(), "completions need no daemon");
}

/// What fish is offered behind these words besides flags, as value and help.
fn offered(sandbox: &Sandbox, words: &[&str]) -> Vec<(String, String)> {
    let mut command = sandbox.command("ollmctl");
    command.env("_OLLMCTL_COMPLETE", "fish").args(["--", "ollmctl"]).args(words);
    let said = crate::harness::run(command, "").ok();
    let values = said.lines().filter(|line| !line.starts_with("--"));
    let parted = values.map(|line| line.split_once('\t').unwrap_or((line, "")));
    parted.map(|(value, help)| (value.to_owned(), help.to_owned())).collect()
}

#[test]
fn a_shell_is_offered_sessions_by_the_daemon_that_runs() {
    let sandbox = Sandbox::new();
    let named = |offered: Vec<(String, String)>| -> Vec<String> {
        offered.into_iter().map(|(value, _)| value).collect()
    };
    assert_eq!(named(offered(&sandbox, &["sessions", "view", ""])), ["last"]);
    assert!(!sandbox.home().join("daemon.json").exists(), "none is started for it");
    let [first, second] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let all = offered(&sandbox, &["sessions", "view", ""]);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.contains(&(first.clone(), "parsing tables".to_owned())), "{all:?}");
    assert_eq!(named(offered(&sandbox, &["sessions", "export", &second[..30]])), [&*second]);
    assert_eq!(named(offered(&sandbox, &["record", "--session", "la"])), ["last"]);
    assert_eq!(named(offered(&sandbox, &["sessions", "delete", "zz"])), [""; 0]);
    assert!(named(offered(&sandbox, &["call", "session.li"])).contains(&"session.list".to_owned()));
}

#[test]
fn arguments_that_are_not_utf_8_are_errors_and_no_panics() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let odd = OsString::from_vec(b"caf\xe9.jsonl".to_vec());
    let arguments = |line: &str| -> Vec<OsString> {
        line.split(' ').map(OsString::from).chain([odd.clone()]).collect()
    };
    let _usage = sandbox.ctl(arguments("sessions view")).fails(2);
    let _usage = sandbox.ctl(arguments("call")).fails(2);
    let _gone = sandbox.ctl(arguments("sessions import")).fails(3);
    // A path in the file system need not be UTF-8.
    std::fs::copy(fixture("import/pi-v3.jsonl"), sandbox.path("").join(&odd)).unwrap();
    let _said = sandbox.ctl(arguments("sessions import")).ok();
    let exported = sandbox.path("").join(OsString::from_vec(b"out\xff.md".to_vec()));
    let mut all: Vec<OsString> =
        ["sessions", "export", "last", "--output"].map(OsString::from).to_vec();
    all.push(exported.clone().into());
    let _said = sandbox.ctl(all).ok();
    assert!(exported.exists());
}

#[test]
fn the_configuration_can_be_looked_at() {
    let sandbox = Sandbox::new();
    sandbox.write_config("sessions:\n  maxSessions: 77\n");
    let path = sandbox.ctl(["config", "path"]).ok();
    assert_eq!(path.trim(), sandbox.home().join("config.yaml").to_str().unwrap());
    let shown = sandbox.ctl(["config", "show"]).ok();
    let line = format!("  maxSessions: 77  # {}:2\n", path.trim());
    assert!(shown.contains(&line), "{shown}");
    let json = sandbox.ctl(["config", "show", "--json"]).json();
    let home = sandbox.home().canonicalize().unwrap().join("sessions");
    let data_dir = &json["sessions"]["dataDir"];
    assert_eq!(data_dir["value"], home.to_str().unwrap(), "what holds, not what was said");
    assert_eq!(data_dir["source"], "computed");
    let _said = sandbox.ctl(["config", "check"]).ok();
}

#[test]
fn models_are_offered_where_one_is_named() {
    let fake = FakeOllama::start("0.33.0");
    let sandbox = Sandbox::new();
    sandbox.write_config(&format!("ollama:\n  host: {}\n", fake.host()));
    assert!(offered(&sandbox, &["chat", "-m", "t"]).is_empty(), "nobody is started for it");
    let _daemon = sandbox.daemon();
    let names = |words: &[&str]| -> Vec<String> {
        offered(&sandbox, words).into_iter().map(|(name, _)| name).collect()
    };
    until("the names that fit are offered", || {
        (names(&["chat", "-m", "t"]) == ["tiny:latest", "thinker:latest"]).then_some(())
    });
    until("a name is offered as an argument", || {
        (names(&["models", "show", "pl"]) == ["plain:latest"]).then_some(())
    });
}

#[test]
fn the_first_list_of_a_daemon_is_complete_and_says_nothing_of_a_rebuild() {
    let sandbox = Sandbox::new();
    let [_, second] = two_sessions(&sandbox);
    // It starts the daemon, which has not compared its catalog with the logs yet.
    let listed = sandbox.ctl(["sessions", "list"]).ok();
    assert!(listed.contains("parsing tables") && !listed.contains("missing"), "{listed}");
    let _stopped = sandbox.ctl(["daemon", "stop"]).ok();
    // A catalog that lost its newest session, as after a crash.
    std::fs::remove_file(sandbox.home().join("catalog.sqlite3")).unwrap();
    let viewed = sandbox.ctl(["sessions", "view", "last", "--json"]).json();
    assert_eq!(viewed["session"]["sessionId"], second.as_str());
}

#[test]
fn a_project_without_a_current_session_is_not_found_in_words_and_in_json() {
    let sandbox = Sandbox::new();
    let project = sandbox.project("empty");
    let _daemon = sandbox.daemon();
    let said = sandbox.ctl(["sessions", "current", "--project", &project]).fails(3);
    assert!(said.contains(&format!("{project} has no current session")), "{said}");
    let said = sandbox.ctl(["--json", "sessions", "current", "--project", &project]).fails(3);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["error"]["kind"], "sessionNotFound");
}

#[test]
fn a_command_of_sessions_is_found_without_sessions() {
    let sandbox = Sandbox::new();
    let said = sandbox.ctl(["search", "foo"]).fails(2);
    assert!(said.contains("try: ollmctl sessions search --help"), "{said}");
    let said = sandbox.ctl(["--json", "view", "last"]).fails(2);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["error"]["hint"], "ollmctl sessions view --help");
    assert!(!sandbox.ctl(["nonsense"]).fails(2).contains("try:"));
}

#[test]
fn a_daemon_that_cannot_be_reached_is_not_said_to_be_gone() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    // Else it would notice by itself, sooner or later, and leave.
    daemon.signal(rustix::process::Signal::STOP);
    std::fs::remove_file(daemon.socket()).unwrap();
    for what in ["status", "stop"] {
        let said = sandbox.ctl(["daemon", what]).fails(6);
        assert!(said.contains(&format!("process {}) holds ", daemon.pid())), "{said}");
        assert!(said.contains(&format!("try: kill {}", daemon.pid())), "{said}");
    }
}

#[test]
fn an_export_with_json_is_json() {
    let sandbox = Sandbox::new();
    let [id, _] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let document = sandbox.ctl(["--json", "sessions", "export", &id]).json();
    assert_eq!(document["sessionId"], id.as_str(), "the session document");
    let file = sandbox.path("talk.md");
    let file = file.to_str().unwrap();
    let written = sandbox.ctl(["--json", "sessions", "export", &id, "--output", file]).json();
    assert_eq!((&written["path"], &written["format"]), (&json!(file), &json!("markdown")));
    assert_eq!(written["sizeBytes"], std::fs::metadata(file).unwrap().len());
    let said = sandbox.ctl(["--json", "sessions", "export", &id, "--format", "html"]).fails(2);
    assert!(serde_json::from_str::<Value>(&said).unwrap()["error"]["hint"].is_string(), "{said}");
}
