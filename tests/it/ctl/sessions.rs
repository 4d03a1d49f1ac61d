//! `ollmctl record` and `ollmctl sessions`: a session from its first message to its deletion.

use serde_json::{Value, json};

use super::{n_sessions, two_sessions};
use crate::harness::{Sandbox, UNKNOWN_SESSION, array, assert_fields, fixture_path, run, until};

#[test]
fn conversation_is_recorded_searched_exported_and_deleted() {
    let sandbox = Sandbox::new();
    let project = sandbox.project_dir("work");
    // The first command starts the daemon.
    let printed = sandbox.ctl(["record", "--project", &project, "How do I reverse a list?"]).ok();
    let id =
        printed.split_whitespace().find(|word| word.len() == 36).expect("a session id").to_owned();
    assert!(sandbox.log_path(&id).is_file());
    let _said = sandbox
        .ctl_with_input(
            ["record", "--project", &project, "--role", "assistant", "--model", "qwen3:8b", "-"],
            "Use reversed().\n",
        )
        .ok();
    let listed = sandbox.ctl(["sessions", "list"]).ok();
    assert!(listed.contains("How do I reverse a list?"), "{listed}");
    let viewed = sandbox.ctl(["sessions", "view", "last"]).ok();
    assert!(viewed.contains("reverse a list?") && viewed.contains("Use reversed()."), "{viewed}");
    until("search finds the answer", || {
        sandbox.ctl(["sessions", "search", "reversed"]).stdout.contains("reversed")
    });
    let file = sandbox.path("session.md");
    sandbox.ctl(["sessions", "export", "last", "--output", file.to_str().unwrap()]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("Use reversed()."), "{text}");
    let built = sandbox
        .ctl([
            "context",
            "build",
            "last",
            "--context-size",
            "4096",
            "--pending",
            "And in Rust?",
            "--json",
        ])
        .json();
    assert_eq!(array(&built["messages"]).last().unwrap()["content"], "And in Rust?");
    sandbox.ctl(["sessions", "rename", "last", "Lists"]).ok();
    assert!(sandbox.ctl(["sessions", "list"]).ok().contains("Lists"));
    sandbox.ctl(["sessions", "archive", &id]).ok();
    assert!(!sandbox.ctl(["sessions", "list"]).ok().contains("Lists"));
    sandbox.ctl(["sessions", "unarchive", &id]).ok();
    sandbox.ctl(["sessions", "delete", "--yes", &id]).ok();
    assert!(!sandbox.log_path(&id).exists());
    sandbox.ctl(["daemon", "stop"]).ok();
    assert!(
        !sandbox.home().join("daemon.json").exists(),
        "the daemon has ended when the command returns"
    );
}

#[test]
fn pi_session_is_imported_once() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let file = fixture_path("import/pi-mono-session.jsonl");
    let file = file.to_str().unwrap();
    let planned = sandbox.ctl(["sessions", "import", "--dry-run", file]).ok();
    assert!(!planned.is_empty());
    assert_eq!(n_sessions(&sandbox), 0);
    sandbox.ctl(["sessions", "import", file]).ok();
    let list = sandbox.ctl(["sessions", "list", "--json"]).json();
    assert_eq!(array(&list["data"]).len(), 1, "{list}");
    assert!(list["data"][0]["messageCount"].as_u64().unwrap() > 10, "{list}");
    assert!(list["data"][0]["importedFrom"].as_str().unwrap().contains("pi"), "{list}");
    let again = sandbox.ctl(["sessions", "import", file]);
    assert_eq!(again.code, Some(0));
    assert_eq!(n_sessions(&sandbox), 1);
    // The project directory of the session does not exist on this machine.
    let resumed = sandbox.ctl(["sessions", "resume", "last"]);
    assert!(resumed.stderr.contains("its project is not on this machine: /"), "{resumed:?}");
    assert!(!resumed.ok().is_empty());
    let viewed = sandbox.ctl(["sessions", "view", "last", "--limit", "5"]).ok();
    assert!(viewed.lines().count() > 3 && !viewed.contains('\u{1b}'), "{viewed}");
    let from_stdin = sandbox
        .ctl_with_input(["sessions", "import", "-"], &std::fs::read_to_string(file).unwrap());
    assert_eq!(from_stdin.code, Some(0), "{from_stdin:?}");
    let missing = sandbox.ctl(["sessions", "import", "/nowhere/at/all.jsonl"]).fails(3);
    assert!(missing.contains("/nowhere/at/all.jsonl"), "{missing}");
}

#[test]
fn session_argument_is_id_unique_end_or_beginning_or_last() {
    let sandbox = Sandbox::new();
    let [first, second] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let view = |id: &str| sandbox.ctl(["sessions", "view", id]).ok();
    assert!(view(&first).contains("parsing tables"));
    assert!(view(&first[..30]).contains("parsing tables"));
    assert!(view(&second[..30].to_uppercase()).contains("rendering trees"));
    assert!(view("last").contains("rendering trees"));
    let ambiguous = sandbox.ctl(["sessions", "view", &first[..4]]).fails(2);
    assert!(
        ambiguous.contains(&first[32..]) && ambiguous.contains(&second[32..]),
        "the error lists both: {ambiguous}"
    );
    sandbox.ctl(["sessions", "view", "ffffffff"]).fails(3);
    sandbox.ctl(["sessions", "view", UNKNOWN_SESSION]).fails(3);
    sandbox.ctl(["sessions", "view", "../../etc/passwd"]).fails(2);
}

#[test]
fn short_form_of_an_id_is_listed_and_found() {
    let sandbox = Sandbox::new();
    let [first, second] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let listed = sandbox.ctl(["sessions", "list", "--json"]).json();
    for (id, session) in [&second, &first].into_iter().zip(array(&listed["data"])) {
        let short = session["shortId"].as_str().unwrap();
        assert!(short.len() >= 4 && id.ends_with(short), "{session}");
        let table = sandbox.ctl(["sessions", "list"]).ok();
        assert!(table.lines().any(|line| line.starts_with(&format!("{short}  "))), "{table}");
        let viewed = sandbox.ctl(["sessions", "view", short, "--json"]).json();
        assert_eq!(viewed["session"]["sessionId"], id.as_str());
        assert_eq!(viewed["session"]["shortId"], short);
    }
}

#[test]
fn current_session_is_found_from_below_and_moves_with_its_project() {
    let sandbox = Sandbox::new();
    let old = sandbox.project_dir("old");
    std::fs::create_dir_all(format!("{old}/src/deep")).unwrap();
    let _daemon = sandbox.daemon();
    let run_in = |directory: &str, args: &[&str]| {
        let mut command = sandbox.command("ollmctl");
        command.current_dir(directory).args(args);
        run(command, "")
    };
    let _recorded = run_in(&old, &["record", "How large is it?"]).ok();
    let _remembered = run_in(&old, &["remember", "Never touch legacy.", "--project"]).ok();
    let below = run_in(&format!("{old}/src/deep"), &["sessions", "view"]).ok();
    assert!(below.contains("How large is it?"), "{below}");
    let new = format!("{old}-moved");
    std::fs::rename(&old, &new).unwrap();
    run_in(&new, &["sessions", "view"]).fails(3);
    let planned = sandbox.ctl(["sessions", "move", &old, &new, "--dry-run"]).ok();
    assert_eq!(planned, format!("1 session would be moved from {old} to {new}\n"));
    let moved = sandbox.ctl(["sessions", "move", &old, &new]).ok();
    assert_eq!(moved, format!("1 session moved from {old} to {new}\n"));
    let viewed = run_in(&new, &["sessions", "view", "--json"]).json();
    assert_eq!(viewed["session"]["projectPath"], new.as_str());
    let entries = run_in(&new, &["context", "entries", "--project", ".", "--json"]).ok();
    assert!(entries.contains("Never touch legacy."), "{entries}");
    let again = sandbox.ctl(["sessions", "move", &old, &new]).fails(3);
    assert!(again.contains(&format!("no session belongs to {old}")), "{again}");
}

#[test]
fn moved_sessions_keep_their_order_and_get_no_further_model_server() {
    let sandbox = Sandbox::new();
    sandbox.write_config(
        "servers:\n  near: { url: 'http://127.0.0.1:9' }\n  far: { url: 'http://127.0.0.1:9' }\n",
    );
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let [old, new] = ["old", "new"].map(|name| sandbox.project_dir(name));
    let project = |path: &str| json!({ "projectPath": path });
    let ids = ["one", "two", "three"].map(|text| {
        let id = wire.create(project(&old));
        wire.record(&id, "user", text);
        id
    });
    let mut allow = |path: &str, servers: Value| {
        let params = json!({ "projectPath": path, "allowedServers": servers });
        wire.ok("session.setProjectServers", params)
    };
    allow(&old, json!(["near"]));
    allow(&new, json!(["near", "far"]));
    for dry_run in [&["--dry-run"][..], &[]] {
        let error = sandbox.ctl([&["sessions", "move", &old, &new], dry_run].concat()).fails(2);
        assert!(error.contains("allows model servers that the old one does not"), "{error}");
    }
    allow(&new, json!(["near"]));
    sandbox.ctl(["sessions", "move", &old, &new]).ok();
    let listed = wire.ok("session.list", project(&new));
    let listed: Vec<_> = array(&listed["data"]).iter().map(|one| &one["sessionId"]).collect();
    assert_eq!(listed, [&ids[2], &ids[1], &ids[0]]);
}

#[test]
fn last_without_sessions_is_not_found() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    assert_eq!(sandbox.ctl(["sessions", "list"]).ok(), "no sessions\n");
    let none = sandbox.ctl(["sessions", "view", "last"]).fails(3);
    assert!(none.contains("no session"), "{none}");
    let list = sandbox.ctl(["sessions", "list", "--json"]).json();
    assert_eq!(list["data"], json!([]));
}

#[test]
fn destructive_command_without_terminal_requires_yes() {
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
        // Answers from a pipe are not accepted.
        sandbox.ctl_with_input(command, "y\ny\n").fails(2);
    }
    sandbox.ctl(["sessions", "clear", "--yes"]).fails(2);
    assert_eq!(n_sessions(&sandbox), 2);
    let planned = sandbox.ctl(["sessions", "cleanup", "--keep", "1", "--dry-run", "--json"]).json();
    assert_eq!(planned["deleted"][0]["sessionId"], first.as_str());
    sandbox.ctl(["sessions", "cleanup", "--keep", "1", "--yes"]).ok();
    assert!(!sandbox.log_path(&first).exists() && sandbox.log_path(&second).exists());
    sandbox.ctl(["sessions", "clear", "--all", "--yes"]).ok();
    assert!(!sandbox.log_path(&second).exists());
}

#[test]
fn first_list_after_start_is_complete() {
    let sandbox = Sandbox::new();
    let [_, second] = two_sessions(&sandbox);
    // The command starts a daemon, which has not compared its catalog with the logs yet.
    let listed = sandbox.ctl(["sessions", "list"]).ok();
    assert!(listed.contains("parsing tables") && !listed.contains("missing"), "{listed}");
    sandbox.ctl(["daemon", "stop"]).ok();
    sandbox.remove_catalog();
    let viewed = sandbox.ctl(["sessions", "view", "last", "--json"]).json();
    assert_eq!(viewed["session"]["sessionId"], second.as_str());
}

#[test]
fn project_without_current_session_is_not_found() {
    let sandbox = Sandbox::new();
    let project = sandbox.project_dir("empty");
    let _daemon = sandbox.daemon();
    let error = sandbox.ctl(["sessions", "current", "--project", &project]).fails(3);
    assert!(error.contains(&format!("{project} has no current session")), "{error}");
    let error = sandbox.ctl(["--json", "sessions", "current", "--project", &project]).fails(3);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["kind"], "sessionNotFound");
}

#[test]
fn export_with_json_prints_document_or_summary_of_written_file() {
    let sandbox = Sandbox::new();
    let [id, _] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let document = sandbox.ctl(["--json", "sessions", "export", &id]).json();
    assert_eq!(document["sessionId"], id.as_str(), "the export is the session document");
    let file = sandbox.path("session.md");
    let file = file.to_str().unwrap();
    let written = sandbox.ctl(["--json", "sessions", "export", &id, "--output", file]).json();
    assert_fields(&written, json!({ "path": file, "format": "markdown" }));
    assert_eq!(written["sizeBytes"], std::fs::metadata(file).unwrap().len());
    let error = sandbox.ctl(["--json", "sessions", "export", &id, "--format", "html"]).fails(2);
    assert!(serde_json::from_str::<Value>(&error).unwrap()["error"]["hint"].is_string(), "{error}");
}
