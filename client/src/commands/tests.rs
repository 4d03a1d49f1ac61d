use std::sync::mpsc;

use serde_json::{Value, json};

use super::*;
use crate::testing::{Scratch, reply, send, session_named};

const ID: &str = "0192f0c1-9a3b-7000-8000-000000000001";

/// What a command printed, how it ended, and which calls it made.
struct Ran {
    printed: String,
    error: Option<CommandError>,
    calls: Vec<(String, Value)>,
}

impl Ran {
    fn methods(&self) -> Vec<&str> {
        self.calls.iter().map(|(method, _)| method.as_str()).collect()
    }
}

/// Runs a command against a daemon that gives `answer`; `None` means that there is no such method.
fn run_with(
    line: &[&str],
    mut answer: impl FnMut(&str, &Value) -> Option<Value> + Send + 'static,
) -> Ran {
    let scratch = Scratch::new();
    let (sender, calls) = mpsc::channel();
    let _server = scratch.serve(move |request, stream| {
        let method = request["method"].as_str().unwrap();
        sender.send((method.to_owned(), request["params"].clone())).unwrap();
        match answer(method, &request["params"]) {
            Some(result) => reply(stream, request, &result),
            None => {
                let error = json!({"code": -32601, "message": "no such method"});
                send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
            }
        }
    });
    let socket = scratch.socket();
    let start =
        ["ollmctl", "--no-spawn", "--home", "/nowhere", "--socket", socket.to_str().unwrap()];
    let line: Vec<&str> = start.iter().chain(line).copied().collect();
    let (printed, error) = run_here(&line, &Environment::default());
    Ran { printed, error, calls: calls.try_iter().collect() }
}

/// Runs a whole command line; what it printed, and how it failed.
fn run_here(line: &[&str], environment: &Environment) -> (String, Option<CommandError>) {
    let cli = Cli::try_parse_from(line).unwrap();
    let (mut terminal, kept) = Terminal::kept(false);
    let done = Cx::new(cli.global, environment, &mut terminal)
        .and_then(|mut cx| dispatch(cli.command, &mut cx));
    (kept.text(), done.err())
}

fn session() -> Value {
    serde_json::to_value(session_named(ID, "Lists")).unwrap()
}

fn recorded() -> Value {
    json!({
        "seq": 3, "timestamp": "2026-01-27T10:00:00Z", "tokens": 2, "countKind": "estimated",
        "usage": {"messageCount": 2, "tokenCount": 4}
    })
}

#[test]
fn recording_without_a_current_session_begins_one_and_makes_it_current() {
    let ran = run_with(&["record", "--key", "k", "--model", "m", "hello"], |method, _| {
        Some(match method {
            "session.current" => json!({}),
            "session.record" => recorded(),
            _ => json!({ "session": session() }),
        })
    });
    assert!(ran.error.is_none());
    assert_eq!(ran.printed, format!("{ID} #3  2 tokens, estimated\n"));
    assert_eq!(
        ran.methods(),
        ["session.current", "session.create", "session.record", "session.setCurrent"]
    );
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    assert_eq!(ran.calls[1].1, json!({"projectPath": here, "model": "m", "key": "k"}));
    let message = json!({"role": "user", "content": "hello"});
    assert_eq!(ran.calls[2].1, json!({"sessionId": ID, "message": message, "key": "k"}));
    assert_eq!(ran.calls[3].1, json!({"projectPath": here, "sessionId": ID}));
}

#[test]
fn recording_goes_on_with_the_current_session_and_says_which_in_json() {
    let ran = run_with(&["--json", "record", "--role", "assistant", "hi"], |method, _| {
        Some(if method == "session.record" { recorded() } else { json!({ "session": session() }) })
    });
    assert_eq!(ran.methods(), ["session.current", "session.record"]);
    let printed: Value = serde_json::from_str(&ran.printed).unwrap();
    assert_eq!((&printed["sessionId"], &printed["seq"]), (&json!(ID), &json!(3)));
}

#[test]
fn pages_of_a_list_are_put_together_up_to_the_limit() {
    let ran = run_with(&["--json", "sessions", "list", "--limit", "3"], |_, params| {
        let all = [session(), session(), session(), session()];
        let from: usize = params["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
        let to = (from + 2).min(from + params["limit"].as_u64().unwrap() as usize);
        Some(json!({ "data": all[from..to], "nextCursor": to.to_string() }))
    });
    let printed: Value = serde_json::from_str(&ran.printed).unwrap();
    assert_eq!(printed["data"].as_array().unwrap().len(), 3);
    assert_eq!(printed["nextCursor"], "3");
    assert_eq!(ran.calls[1].1, json!({"limit": 1, "cursor": "2"}));
}

#[test]
fn nothing_is_deleted_without_a_person_or_yes() {
    let answer = |method: &str, _: &Value| {
        Some(match method {
            "session.get" => json!({ "session": session(), "records": [] }),
            "session.list" => json!({ "data": [session()] }),
            "session.delete" => json!({ "sessionId": ID }),
            _ => {
                json!({ "deleted": [session()], "kept": 0, "dryRun": method == "session.cleanup" })
            }
        })
    };
    for line in [
        &["sessions", "delete", ID][..],
        &["sessions", "clear", "--all"],
        &["sessions", "cleanup", "--keep", "1"],
    ] {
        let ran = run_with(line, answer);
        let error = ran.error.as_ref().unwrap();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().contains("--yes"), "{error}");
        let harmful = ran.calls.iter().any(|(method, params)| {
            ["session.delete", "session.clear"].contains(&method.as_str())
                || (method == "session.cleanup" && params["dryRun"] != true)
        });
        assert!(!harmful, "{:?}", ran.calls);
    }
    let ran = run_with(&["sessions", "delete", "--yes", ID, ID], answer);
    assert_eq!(ran.methods(), ["session.get", "session.delete"]);
    assert_eq!(ran.printed, format!("deleted {ID}  Lists\n"));
}

#[test]
fn an_export_replaces_its_file_only_when_complete() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("talk.md");
    let file = path.to_str().unwrap().to_owned();
    let export = |fail: bool| {
        run_with(&["sessions", "export", ID, "--output", &file], move |_, params| {
            let chunk = |data: &str, next: Option<&str>| json!({"data": data, "nextCursor": next, "doneRecords": 1, "totalRecords": 1});
            match params["cursor"].as_str() {
                None => Some(chunk("one ", Some("c"))),
                Some(_) if fail => None,
                Some(_) => Some(chunk("two", None)),
            }
        })
    };
    assert!(export(true).error.is_some());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    let done = export(false);
    assert!(done.error.is_none());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
    assert_eq!(done.calls[0].1, json!({"sessionId": ID, "format": "markdown"}));
    assert!(export(true).error.is_some());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one two");
}

#[test]
fn an_import_sends_every_chunk_under_one_upload() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("big.jsonl");
    let text = "日".repeat(3 << 20);
    std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), text.as_bytes()).unwrap();
    let ran = run_with(&["sessions", "import", path.to_str().unwrap()], |_, params| {
        if params["last"] == false {
            return Some(json!({"uploadId": "u"}));
        }
        let report = json!({"format": "x", "sourceRecords": 1, "importedRecords": 1, "losses": []});
        Some(json!({"session": session(), "report": report}))
    });
    assert!(ran.error.is_none());
    assert!(ran.printed.contains("1 record in the file, 1 recorded"), "{}", ran.printed);
    let ids: Vec<&Value> = ran.calls.iter().map(|(_, params)| &params["uploadId"]).collect();
    assert_eq!(ids, [&Value::Null, &json!("u"), &json!("u")]);
    let sent: String =
        ran.calls.iter().map(|(_, params)| params["data"].as_str().unwrap()).collect();
    assert!(sent == text);
}

#[test]
fn an_unknown_method_is_sent_and_then_offers_what_was_meant() {
    let ran = run_with(&["call", "session.lst"], |_, _| None);
    assert_eq!(ran.methods(), ["session.lst"]);
    let text = anstream::adapter::strip_str(&ran.error.unwrap().to_text()).to_string();
    assert!(text.ends_with("try: ollmctl call session.list"), "{text}");
    let ran =
        run_with(&["call", "future.method", "{\"a\":1}"], |_, _| Some(json!({"b": "\u{9b}"})));
    assert_eq!(ran.printed, "{\"b\":\"\\u009b\"}\n");
}

#[test]
fn a_list_that_ends_at_the_limit_says_that_there_are_more() {
    let list = |line: &'static [&str], total: usize| {
        let ran = run_with(line, move |_, params| {
            let limit = usize::try_from(params["limit"].as_u64().unwrap()).unwrap();
            let next = (total > limit).then_some("c");
            let data = vec![session(); total.min(limit)];
            Some(json!({ "data": data, "nextCursor": next }))
        });
        assert!(ran.error.is_none());
        ran.printed.contains("there are more: raise --limit")
    };
    assert!(list(&["sessions", "list", "--limit", "3"], 4));
    assert!(!list(&["sessions", "list", "--limit", "3"], 3));
    // Of both lists two are shown together, though each is complete.
    assert!(list(&["sessions", "list", "--limit", "3", "--all"], 2));
    assert!(!list(&["sessions", "list", "--limit", "4", "--all"], 2));
}

#[test]
fn a_stream_that_the_daemon_ends_is_no_success() {
    let ending = |last_word: bool| {
        let scratch = Scratch::new();
        let _server = scratch.serve(move |request, stream| {
            reply(stream, request, &json!(7));
            if last_word {
                let params = json!({"subscription": 7, "error": "leaving"});
                send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}));
            }
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let socket = scratch.socket();
        let line = [
            "ollmctl",
            "--home",
            "/nowhere",
            "--socket",
            socket.to_str().unwrap(),
            "--no-spawn",
            "events",
        ];
        run_here(&line, &Environment::default()).1.unwrap()
    };
    for error in [ending(true), ending(false)] {
        assert_eq!(error.exit(), Exit::Unreachable);
        assert!(error.to_text().contains("ollmd"), "{error}");
    }
}

#[test]
fn a_daemon_that_is_not_there_is_an_answer_to_who_asks_for_its_status() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("s.sock");
    let status = |flags: &[&str]| {
        let start = ["ollmctl", "--home", "/nowhere", "--socket", socket.to_str().unwrap()];
        let line: Vec<&str> = start.iter().chain(flags).copied().collect();
        let (printed, error) = run_here(&line, &Environment::default());
        let error = error.unwrap();
        assert_eq!((error.exit(), error.was_told()), (Exit::Unreachable, true));
        printed
    };
    assert_eq!(status(&["daemon", "status"]), "ollmd is not running\n");
    assert_eq!(status(&["daemon", "status", "--json"]), "{\"running\":false}\n");
}

#[test]
fn a_restart_that_would_not_come_back_stops_nothing() {
    let scratch = Scratch::new();
    let (sender, calls) = mpsc::channel::<Value>();
    let _server = scratch.serve(move |request, _| sender.send(request.clone()).unwrap());
    let program = scratch.directory.path().join("ollmd");
    let script = b"#!/bin/sh\necho 'config.yaml:3: no such key' >&2\nexit 78\n";
    std::io::Write::write_all(&mut std::fs::File::create(&program).unwrap(), script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&program, executable).unwrap();
    let environment =
        Environment { daemon: Some(program), no_spawn: true, ..Environment::default() };
    let socket = scratch.socket();
    let line = ["ollmctl", "--home", "/nowhere", "--socket", socket.to_str().unwrap()];
    let restart = |flags: &[&str]| {
        let line: Vec<&str> = line.iter().chain(flags).copied().collect();
        run_here(&line, &environment).1.unwrap()
    };
    let error = restart(&["daemon", "restart"]);
    assert_eq!(error.exit(), Exit::Config);
    assert!(error.to_string().contains("no such key"), "{error}");
    for command in ["restart", "start"] {
        let error = restart(&["--no-spawn", "daemon", command]);
        assert_eq!(error.exit(), Exit::Usage, "{error}");
    }
    assert_eq!(calls.try_iter().count(), 0);
}
