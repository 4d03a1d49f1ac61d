//! Frozen bytes: one raw request and response a method, and the log of version 1 with its replay.
//!
//! A rename made in the daemon and in the client at once still fails here. `OLLM_WRITE_FIXTURES=1` writes the
//! responses anew, for a method that is new; a changed response of an old one is a change of the protocol.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ollm_protocol::METHODS;
use serde_json::{Value, json};

use crate::harness::{FakeOllama, Sandbox, Wire, fixture};

/// What differs from run to run although nothing changed.
const VOLATILE: &[&str] = &[
    "pid",
    "memoryBytes",
    "sizeBytes",
    "version",
    "epoch",
    "buildId",
    "syncs",
    "recordsWritten",
    "connections",
    "behind",
    "durationMs",
];

fn write_fixtures() -> bool {
    std::env::var_os("OLLM_WRITE_FIXTURES").is_some()
}

/// The session that requests name as `<session>`.
fn prepare(wire: &mut Wire, project: &str) -> String {
    let session =
        wire.create(json!({ "projectPath": project, "model": "qwen3:8b", "title": "Fixture" }));
    let message = json!({ "role": "user", "content": "What is in foo_bar.rs?", "timestamp": "2026-01-27T10:00:00Z" });
    let _result = wire.ok("session.record", json!({ "sessionId": session, "message": message }));
    let parts = json!([
        { "type": "text", "text": "I look." },
        { "type": "toolCall", "id": "call_1", "name": "read_file", "args": { "path": "foo_bar.rs" } },
    ]);
    let message =
        json!({ "role": "assistant", "parts": parts, "timestamp": "2026-01-27T10:00:01Z" });
    let _result = wire.ok("session.record", json!({ "sessionId": session, "message": message }));
    session
}

/// Replaces what a request could not know when it was written.
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

/// Replaces what differs from run to run by the name of what it is.
fn blur(value: &mut Value, names: &BTreeMap<&str, String>) {
    match value {
        Value::String(text) => {
            for (name, value) in names {
                *text = text.replace(value, name);
            }
            *text = blur_text(text);
        }
        Value::Array(values) => values.iter_mut().for_each(|value| blur(value, names)),
        Value::Object(map) => {
            for (key, value) in map {
                if VOLATILE.contains(&key.as_str()) {
                    *value = json!(format!("<{key}>"));
                } else {
                    blur(value, names);
                }
            }
        }
        _ => {}
    }
}

/// Replaces ids and instants inside a text, those of the fixture's own messages excepted.
fn blur_text(text: &str) -> String {
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
    let mut blurred = String::new();
    let mut at = 0;
    while at < text.len() {
        let shape = shapes.iter().find(|(_, shape)| fits(shape, at));
        match shape {
            Some((name, shape)) if !text[at..].starts_with("2026-01-27") => {
                blurred.push_str(name);
                at += shape.len();
            }
            _ => {
                let char = text[at..].chars().next().unwrap();
                blurred.push(char);
                at += char.len_utf8();
            }
        }
    }
    blurred
}

/// The document of `rpc.discover` is checked elsewhere; here only its frame counts.
fn shorten(method: &str, response: &mut Value) {
    if method == "rpc.discover" {
        let names = response["result"]["methods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|method| method["name"].clone());
        response["result"] = json!({ "methods": names.collect::<Vec<_>>(), "openrpc": response["result"]["openrpc"] });
    }
}

fn replay(method: &str, path: &PathBuf) {
    let text = std::fs::read_to_string(path).unwrap();
    let frozen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(frozen["request"]["method"], method, "{}", path.display());
    let sandbox = Sandbox::new();
    let fake = FakeOllama::start("0.33.0");
    sandbox.write_config(&format!("ollama: {{ host: '{}', model: tiny }}\n", fake.host()));
    let (_daemon, mut wire) = sandbox.served();
    let project = sandbox.project("project");
    let session = prepare(&mut wire, &project);
    let home = sandbox.home().canonicalize().unwrap().to_str().unwrap().to_owned();
    let socket = sandbox.socket().to_str().unwrap().to_owned();
    let mut names = BTreeMap::from([
        ("<session>", session),
        ("<project>", project),
        ("<home>", home),
        ("<socket>", socket),
        ("<model-server>", fake.url().to_owned()),
    ]);
    crate::harness::until("the catalog has caught up and the model server is known", || {
        let status = wire.ok("daemon.status", json!({}));
        let known = status["modelServer"].get("reachable").is_some();
        (status["catalog"]["behind"] == 0 && known).then_some(())
    });
    for before in frozen["before"].as_array().into_iter().flatten() {
        let mut before = before.clone();
        fill(&mut before, &names);
        let result = wire.ok(before["method"].as_str().unwrap(), before["params"].clone());
        for (name, field) in [("<checkpoint>", "checkpointId"), ("<decision>", "decisionId")] {
            names.extend(result[field].as_str().map(|id| (name, id.to_owned())));
        }
    }
    let mut request = frozen["request"].clone();
    fill(&mut request, &names);
    wire.send(&request.to_string());
    let mut response = wire.frame().unwrap();
    shorten(method, &mut response);
    blur(&mut response, &names);
    if write_fixtures() {
        let mut whole = frozen.as_object().unwrap().clone();
        let _old = whole.insert("response".to_owned(), response);
        std::fs::write(path, format!("{:#}\n", Value::Object(whole))).unwrap();
        return;
    }
    assert_eq!(response, frozen["response"], "{method}: {response:#}");
}

#[test]
fn every_method_answers_as_it_was_written_down() {
    std::thread::scope(|scope| {
        for half in [0, 1] {
            scope.spawn(move || {
                for method in METHODS.iter().skip(half).step_by(2) {
                    replay(method.name, &fixture(&format!("wire/{}.json", method.name)));
                }
            });
        }
    });
}

/// The id in the name of the frozen log.
const FROZEN: &str = "0b6a7c1e-3f52-4c39-9d0e-6d1c2a9f4e03";

/// What a log means: the session as lists show it, and its records.
fn meaning(wire: &mut Wire) -> Value {
    let page = wire.ok("session.get", json!({ "sessionId": FROZEN, "limit": 1 }));
    let mut session = page["session"].clone();
    // Closing by age depends on today's date.
    let _status = session.as_object_mut().map(|session| session.remove("status"));
    let document: Value = serde_json::from_str(&wire.export(FROZEN, "json")).unwrap();
    let context = wire.ok("context.build", json!({ "sessionId": FROZEN, "contextSize": 4096 }));
    let mut meaning = json!({
        "session": session,
        "records": wire.records(FROZEN),
        "document": document,
        "context": context["messages"],
    });
    abridge(&mut meaning);
    meaning
}

/// Shows of a long text its size and its ends.
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
fn a_log_of_version_1_means_what_it_always_meant() {
    let directory = fixture("session/v1");
    let log = directory.join(format!("{FROZEN}.jsonl"));
    let expected = directory.join("replay.json");
    let sandbox = Sandbox::new();
    // Texts of modes belong to the version of the daemon, not to the log.
    sandbox.write_config("modes: { planning: ' ' }\n");
    std::fs::create_dir_all(sandbox.home().join("sessions")).unwrap();
    std::fs::copy(&log, sandbox.log_of(FROZEN)).unwrap();
    let blobs = directory.join(format!("{FROZEN}.blobs"));
    for blob in crate::harness::every_file(&blobs) {
        let target = sandbox.home().join(format!("sessions/{FROZEN}.blobs"));
        std::fs::create_dir_all(&target).unwrap();
        std::fs::copy(&blob, target.join(blob.file_name().unwrap())).unwrap();
    }
    let (daemon, mut wire) = sandbox.served();
    let found = meaning(&mut wire);
    assert!(daemon.terminate().success());
    assert_eq!(
        std::fs::read(sandbox.log_of(FROZEN)).unwrap(),
        std::fs::read(&log).unwrap(),
        "reading changes nothing"
    );
    if !expected.exists() && write_fixtures() {
        std::fs::write(&expected, format!("{found:#}\n")).unwrap();
    }
    let frozen: Value = serde_json::from_str(&std::fs::read_to_string(&expected).unwrap()).unwrap();
    for (name, value) in frozen.as_object().unwrap() {
        assert_eq!(found[name], *value, "{name}: {:#}", found[name]);
    }
}
