//! Frozen fixtures: a raw request and response per method, and a log of version 1 with its replay.
//!
//! A field that is renamed in the daemon and in the client at once still fails here. `OLLM_WRITE_FIXTURES=1` writes
//! the responses of new methods; a changed response of an old method is a change of the protocol.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ollm_protocol::METHODS;
use serde_json::{Value, json};

use crate::harness::{FakeOllama, Sandbox, Wire, array, files_under, fixture_path};

/// The fields whose values differ between two runs.
const VARYING_FIELDS: &[&str] = &[
    "pid",
    "memoryBytes",
    "sizeBytes",
    "version",
    "epoch",
    "homeId",
    "buildId",
    "syncs",
    "recordsWritten",
    "connections",
    "behind",
    "durationMs",
    "answeredMs",
    "backupId",
    "space",
    "generation",
    "shortId",
    "walkMs",
    "idleSeconds",
    // What `daemon.doctor` finds depends on the machine.
    "findings",
    "freeBytes",
    "syncUs",
    "owner",
    "log",
    "inotify",
];

/// The id of the session in the frozen log.
const FROZEN_SESSION: &str = "0b6a7c1e-3f52-4c39-9d0e-6d1c2a9f4e03";

fn must_write() -> bool {
    std::env::var_os("OLLM_WRITE_FIXTURES").is_some()
}

/// Creates the session that requests name as `<session>`.
fn create_session(wire: &mut Wire, project: &str) -> String {
    let session =
        wire.create(json!({ "projectPath": project, "model": "qwen3:8b", "title": "Fixture" }));
    let message = json!({ "role": "user", "content": "What is in foo_bar.rs?", "timestamp": "2026-01-27T10:00:00Z" });
    wire.ok("session.record", json!({ "sessionId": session, "message": message }));
    let parts = json!([
        { "type": "text", "text": "I look." },
        { "type": "toolCall", "id": "call_1", "name": "read_file", "args": { "path": "foo_bar.rs" } },
    ]);
    let message =
        json!({ "role": "assistant", "parts": parts, "timestamp": "2026-01-27T10:00:01Z" });
    wire.ok("session.record", json!({ "sessionId": session, "message": message }));
    session
}

/// Writes a hook of a project and returns the digest of its content.
fn write_hook(wire: &mut Wire, project: &str) -> String {
    let path = Path::new(project).join(".ollm/hooks/after-turn");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "#!/bin/sh\necho '{}'\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let listed = wire.ok("hook.list", json!({ "projectPath": project }));
    listed["data"][0]["digest"].as_str().unwrap().to_owned()
}

/// Replaces placeholders such as `<session>` in a request.
fn fill(value: &mut Value, names: &BTreeMap<&str, String>) {
    match value {
        Value::String(text) => {
            if let Some(value) = names.get(text.as_str()) {
                text.clone_from(value);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| fill(value, names)),
        Value::Object(map) => map.values_mut().for_each(|value| fill(value, names)),
        _ => {}
    }
}

/// Replaces values that differ between two runs by placeholders.
fn mask(value: &mut Value, names: &BTreeMap<&str, String>) {
    match value {
        Value::String(text) => {
            for (name, value) in names {
                *text = text.replace(value, name);
            }
            *text = mask_text(text);
        }
        Value::Array(values) => values.iter_mut().for_each(|value| mask(value, names)),
        Value::Object(map) => {
            for (key, value) in map {
                if VARYING_FIELDS.contains(&key.as_str()) {
                    *value = json!(format!("<{key}>"));
                } else {
                    mask(value, names);
                }
            }
        }
        _ => {}
    }
}

/// Replaces ids and times inside a text, except for the date of the fixtures' own messages.
fn mask_text(text: &str) -> String {
    let shapes = [
        ("<id>", "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
        ("<time>", "dddd-dd-ddTdd:dd:dd.dddZ"),
        ("<time>", "dddd-dd-dd dd:dd:dd UTC"),
        ("<hash>", "xxxxxxxxxxxxxxxx"),
    ];
    let fits = |shape: &str, at: usize| {
        text.get(at..at + shape.len()).is_some_and(|piece| {
            piece.bytes().zip(shape.bytes()).all(|(byte, kind)| match kind {
                b'x' => byte.is_ascii_hexdigit(),
                b'd' => byte.is_ascii_digit(),
                exact => byte == exact,
            })
        })
    };
    let mut masked = String::new();
    let mut at = 0;
    while at < text.len() {
        let shape = shapes.iter().find(|(_, shape)| fits(shape, at));
        match shape {
            Some((name, shape)) if !text[at..].starts_with("2026-01-27") => {
                masked.push_str(name);
                at += shape.len();
            }
            _ => {
                let char = text[at..].chars().next().unwrap();
                masked.push(char);
                at += char.len_utf8();
            }
        }
    }
    masked
}

/// Reduces the document of `rpc.discover`, which `daemon.rs` checks, to the names of the methods.
fn shorten(method: &str, response: &mut Value) {
    if method == "rpc.discover" {
        let names =
            array(&response["result"]["methods"]).iter().map(|method| method["name"].clone());
        response["result"] = json!({ "methods": names.collect::<Vec<_>>(), "openrpc": response["result"]["openrpc"] });
    }
}

/// Sends the request of a fixture and compares the response.
fn check_method(method: &str, path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let frozen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(frozen["request"]["method"], method, "{}", path.display());
    let sandbox = Sandbox::new();
    let fake = FakeOllama::new();
    sandbox.write_config(&fake.config("tiny"));
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let project = sandbox.project_dir("project");
    std::fs::write(Path::new(&project).join("main.rs"), "fn main() {}\n").unwrap();
    let hook = write_hook(&mut wire, &project);
    let session = create_session(&mut wire, &project);
    let home = sandbox.home().canonicalize().unwrap().to_str().unwrap().to_owned();
    let socket = sandbox.socket().to_str().unwrap().to_owned();
    let mut names = BTreeMap::from([
        ("<session>", session),
        ("<project>", project),
        ("<home>", home),
        ("<socket>", socket),
        ("<model-server>", fake.url()),
        ("<digest>", hook),
        ("<place>", sandbox.path("backup").to_str().unwrap().to_owned()),
    ]);
    wire.wait_for_catalog();
    wire.model_server();
    for before in frozen["before"].as_array().into_iter().flatten() {
        let mut before = before.clone();
        fill(&mut before, &names);
        let result = wire.ok(before["method"].as_str().unwrap(), before["params"].clone());
        names.extend(result["buildId"].as_str().map(|id| ("<build>", id.to_owned())));
        for (name, field) in [("<checkpoint>", "checkpointId"), ("<decision>", "decisionId")] {
            let steps = result["steps"].as_array().into_iter().flatten();
            let ids = steps.filter_map(|step| step[field].as_str());
            names.extend(ids.map(|id| (name, id.to_owned())));
        }
        let snapshot = result["snapshot"]["snapshotId"].as_str();
        names.extend(snapshot.map(|id| ("<snapshot>", id.to_owned())));
    }
    let mut request = frozen["request"].clone();
    fill(&mut request, &names);
    wire.send(&request.to_string());
    let mut response = wire.frame().unwrap();
    shorten(method, &mut response);
    mask(&mut response, &names);
    if must_write() {
        let mut whole = frozen.as_object().unwrap().clone();
        let _old = whole.insert("response".to_owned(), response);
        std::fs::write(path, format!("{:#}\n", Value::Object(whole))).unwrap();
        return;
    }
    assert_eq!(response, frozen["response"], "{method}: {response:#}");
}

#[test]
fn response_of_every_method_matches_its_fixture() {
    std::thread::scope(|scope| {
        for half in [0, 1] {
            scope.spawn(move || {
                for method in METHODS.iter().skip(half).step_by(2) {
                    check_method(method.name, &fixture_path(&format!("wire/{}.json", method.name)));
                }
            });
        }
    });
}

/// Returns everything that is derived from the frozen log: session, records, document and context.
fn replay(wire: &mut Wire) -> Value {
    let mut session = wire.session(FROZEN_SESSION);
    // The status depends on the age of the session.
    let _status = session.as_object_mut().map(|session| session.remove("status"));
    let document: Value = serde_json::from_str(&wire.export(FROZEN_SESSION, "json")).unwrap();
    let context =
        wire.ok("context.build", json!({ "sessionId": FROZEN_SESSION, "contextSize": 4096 }));
    let mut replay = json!({
        "session": session,
        "records": wire.records(FROZEN_SESSION),
        "document": document,
        "context": context["messages"],
    });
    abridge(&mut replay);
    replay
}

/// Replaces long texts by their size and their ends.
fn abridge(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > 1000 => {
            *text = format!("{} [{} bytes] {}", &text[..40], text.len(), &text[text.len() - 40..]);
        }
        Value::Array(values) => values.iter_mut().for_each(abridge),
        Value::Object(map) => map.values_mut().for_each(abridge),
        _ => {}
    }
}

#[test]
fn replay_of_version_1_log_matches_its_fixture() {
    let directory = fixture_path("session/v1");
    let log = directory.join(format!("{FROZEN_SESSION}.jsonl"));
    let expected = directory.join("replay.json");
    let sandbox = Sandbox::new();
    // The texts of modes belong to the daemon, not to the log.
    sandbox.write_config("modes: { planning: ' ' }\n");
    std::fs::create_dir_all(sandbox.home().join("sessions")).unwrap();
    std::fs::copy(&log, sandbox.log_path(FROZEN_SESSION)).unwrap();
    let blobs = directory.join(format!("{FROZEN_SESSION}.blobs"));
    for blob in files_under(&blobs) {
        let target = sandbox.home().join(format!("sessions/{FROZEN_SESSION}.blobs"));
        std::fs::create_dir_all(&target).unwrap();
        std::fs::copy(&blob, target.join(blob.file_name().unwrap())).unwrap();
    }
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let mut found = replay(&mut wire);
    // The short form of the id depends on the other sessions.
    found["session"].as_object_mut().unwrap().remove("shortId");
    assert!(daemon.terminate().success());
    assert_eq!(
        std::fs::read(sandbox.log_path(FROZEN_SESSION)).unwrap(),
        std::fs::read(&log).unwrap(),
        "reading does not change the log"
    );
    if !expected.exists() && must_write() {
        std::fs::write(&expected, format!("{found:#}\n")).unwrap();
    }
    let frozen: Value = serde_json::from_str(&std::fs::read_to_string(&expected).unwrap()).unwrap();
    for (name, value) in frozen.as_object().unwrap() {
        assert_eq!(found[name], *value, "{name}: {:#}", found[name]);
    }
}
