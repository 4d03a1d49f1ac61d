//! `daemon.*` and `rpc.discover`: one daemon per home, its files, and its exit.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use ollm_protocol::{METHODS, PROTOCOL_VERSION, SCHEMA_REVISION};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Daemon, FakeOllama, Sandbox, Wire, array, assert_fields, files_under, start};

/// The time within which a daemon exits after a signal.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

#[test]
fn hello_returns_protocol_and_limits_or_refuses_the_version() {
    let (_sandbox, daemon, mut wire) = start();
    let hello = |min: u32, max: u32| json!({ "client": "it", "version": "1", "protocolMin": min, "protocolMax": max });
    let agreed = wire.ok("daemon.hello", hello(1, 99));
    assert_fields(
        &agreed,
        json!({ "protocol": PROTOCOL_VERSION, "schemaRevision": SCHEMA_REVISION, "pid": daemon.pid() }),
    );
    assert_eq!(agreed["limits"]["frameBytes"], 16 << 20);
    for limit in ["batch", "subscriptions", "inFlight"] {
        assert!(agreed["limits"][limit].as_u64().unwrap() > 0, "{limit}");
    }
    let refused = wire.refused("daemon.hello", hello(90, 99), "unsupportedVersion");
    assert_eq!(refused["data"]["supported"], PROTOCOL_VERSION);
    assert!(refused["data"]["hint"].as_str().unwrap().starts_with("ollmctl "), "{refused}");
}

#[test]
fn doctor_finds_what_a_person_should_mend_and_nothing_else() {
    let sandbox = Sandbox::new();
    let fake = FakeOllama::new();
    sandbox.write_config(&fake.config("tiny"));
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    wire.model_server();
    let topics = |wire: &mut Wire| -> Vec<String> {
        let found = wire.ok("daemon.doctor", json!({}));
        let of_machine = ["disk", "files"];
        let topics = array(&found["findings"]).iter().map(|one| one["topic"].as_str().unwrap());
        topics.filter(|topic| !of_machine.contains(topic)).map(str::to_owned).collect()
    };
    assert_eq!(topics(&mut wire), [] as [&str; 0]);
    let found = wire.ok("daemon.doctor", json!({}));
    let home = &found["directories"][0];
    assert_eq!((&home["mode"], home["error"].is_null()), (&json!("700"), true), "{found}");
    assert!(home["syncUs"].as_u64().unwrap() > 0, "{found}");
    assert!(found["log"]["path"].as_str().unwrap().contains("ollmd.log"), "{found}");
    // Nothing is left of the measurement.
    let left = files_under(&sandbox.home());
    assert!(!left.iter().any(|path| path.to_string_lossy().contains("doctor")), "{left:?}");

    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(sandbox.home(), open).unwrap();
    assert_eq!(topics(&mut wire), ["rights"]);
}

#[test]
fn status_matches_the_state_of_the_daemon() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "one");
    wire.record(&session, "assistant", "two");
    wire.subscribe(json!({}));
    let mut other = daemon.wire();
    let status = other.status();
    assert_fields(
        &status,
        json!({
            "pid": daemon.pid(), "home": sandbox.home().canonicalize().unwrap(), "socket": daemon.socket(),
            "protocol": PROTOCOL_VERSION, "connections": 2, "subscriptions": 1,
        }),
    );
    assert_eq!(status["store"]["sessions"], 1);
    assert!(status["store"]["recordsWritten"].as_u64().unwrap() >= 2, "{status}");
    assert!(status["store"]["syncs"].as_u64().unwrap() >= 1, "{status}");
    other.wait_for_catalog();
    #[cfg(target_os = "linux")]
    {
        let reported = status["memoryBytes"].as_u64().unwrap();
        let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(reported.abs_diff(kilobytes * 1024) < 16 << 20, "{reported} and {kilobytes} kB");
    }
}

#[test]
fn files_are_private_and_daemon_json_names_socket_and_process() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "title": "private" }));
    wire.record(&session, "user", &"x".repeat(200 << 10));
    wire.ok("session.save", json!({ "sessionId": session }));
    let announcement = std::fs::read_to_string(sandbox.home().join("daemon.json")).unwrap();
    let announcement: Value = serde_json::from_str(&announcement).unwrap();
    assert_fields(
        &announcement,
        json!({ "socket": daemon.socket().to_str().unwrap(), "pid": daemon.pid(), "protocol": PROTOCOL_VERSION }),
    );

    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&sandbox.home()), 0o700);
    assert_eq!(mode(daemon.socket()), 0o600);
    let files = files_under(&sandbox.home());
    assert!(files.iter().any(|file| file.ends_with("catalog.sqlite3")), "{files:?}");
    assert!(files.iter().any(|file| file.to_str().unwrap().contains(".blobs/")), "{files:?}");
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
        for directory in
            file.ancestors().skip(1).take_while(|path| path.starts_with(sandbox.home()))
        {
            assert_eq!(mode(directory), 0o700, "{}", directory.display());
        }
    }
    assert!(daemon.terminate().success());
    assert!(!sandbox.home().join("daemon.json").exists(), "daemon.json is removed");
    assert!(!sandbox.socket().exists(), "the socket is removed");
}

#[test]
fn home_with_open_permissions_is_made_private_or_refused() {
    let sandbox = Sandbox::new();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(sandbox.home(), open).unwrap();
    match Daemon::try_start(&sandbox, &["--socket", sandbox.socket().to_str().unwrap()]) {
        Ok(daemon) => {
            assert_eq!(sandbox.home().metadata().unwrap().permissions().mode() & 0o777, 0o700);
            drop(daemon);
        }
        Err(report) => assert!(report.contains("chmod 700"), "{report}"),
    }
}

#[test]
fn default_socket_is_one_of_the_published_candidates() {
    let sandbox = Sandbox::new();
    let daemon = Daemon::try_start(&sandbox, &[]).unwrap();
    let home = sandbox.home().canonicalize().unwrap();
    let uid = home.metadata().unwrap().uid();
    let candidates = ollm_protocol::address::candidates(&home, uid);
    assert!(candidates.iter().any(|path| path == daemon.socket()), "{}", daemon.socket().display());
    daemon.assert_serves();
    assert_eq!(
        sandbox.ctl(["--no-spawn", "socket"]).ok().trim(),
        daemon.socket().to_str().unwrap()
    );
    assert!(daemon.terminate().success());
}

#[test]
fn second_daemon_is_refused_and_the_first_still_serves() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    let mut command = sandbox.command("ollmd");
    let other = sandbox.path("other.sock");
    command.arg("--home").arg(sandbox.home()).arg("--socket").arg(&other);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(&daemon.pid().to_string()), "{stderr}");
    assert!(stderr.contains(sandbox.home().file_name().unwrap().to_str().unwrap()), "{stderr}");
    assert!(!other.exists());
    daemon.assert_serves();

    let report = Daemon::try_start(&sandbox, &[]).err().expect("the home is locked");
    assert!(report.starts_with('{') && report.contains("\"locked\""), "{report}");
    daemon.assert_serves();
}

#[test]
fn files_of_a_killed_daemon_do_not_prevent_the_next_start() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "kept");
    daemon.kill();
    assert!(sandbox.socket().exists(), "a killed daemon does not remove its socket");
    assert!(sandbox.home().join("daemon.json").exists());
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(wire.records(&session).last().unwrap()["message"]["parts"][0]["text"], "kept");
    assert!(daemon.terminate().success());
}

#[test]
fn file_at_the_socket_path_is_refused_and_not_deleted() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.socket(), "not a socket").unwrap();
    let socket = sandbox.socket();
    let socket = socket.to_str().unwrap();
    let report =
        Daemon::try_start(&sandbox, &["--socket", socket]).err().expect("the path is taken");
    assert!(report.contains(socket), "{report}");
    assert_eq!(std::fs::read_to_string(sandbox.socket()).unwrap(), "not a socket");
}

#[test]
fn shutdown_call_is_answered_and_ends_the_daemon() {
    let sandbox = Sandbox::new();
    let (mut daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(wire.ok("daemon.shutdown", json!({}))["pid"], daemon.pid());
    assert!(daemon.wait_exit().success());
    assert!(!sandbox.socket().exists());
}

#[test]
fn signal_ends_the_daemon_in_time_with_open_connections() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut followers: Vec<_> = (0..20).map(|_| daemon.wire()).collect();
    for follower in &mut followers {
        follower.subscribe(json!({}));
    }
    let mut idle: Vec<_> = (0..20).map(|_| daemon.wire()).collect();
    let seq = wire.record(&session, "user", "acknowledged");
    let start = Instant::now();
    assert!(daemon.terminate().success());
    assert!(start.elapsed() < SHUTDOWN_LIMIT);
    for follower in &mut followers {
        let mut last = None;
        while let Some(frame) = follower.frame() {
            last = Some(frame);
        }
        let last = last.expect("an event and the end of the stream");
        assert!(last["params"].get("error").is_some(), "the stream ends with an error: {last}");
    }
    assert!(idle.iter_mut().all(|wire| wire.frame().is_none()), "idle connections are closed");
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(wire.records(&session).last().unwrap()["seq"], seq);
}

#[test]
fn second_signal_ends_the_daemon_at_once_without_loss() {
    let sandbox = Sandbox::new();
    let (mut daemon, mut wire) = sandbox.daemon_and_wire();
    let session = wire.create(json!({}));
    let seq = wire.record(&session, "user", "acknowledged");
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::TERM);
    let _status = daemon.wait_exit();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(wire.records(&session).last().unwrap()["seq"], seq);
}

#[test]
fn discover_lists_every_method_with_its_schemas() {
    let (_sandbox, _daemon, mut wire) = start();
    let document = wire.ok("rpc.discover", json!({}));
    assert!(document["openrpc"].as_str().unwrap().starts_with("1."), "{}", document["openrpc"]);
    let methods = array(&document["methods"]);
    let listed: BTreeSet<&str> =
        methods.iter().map(|method| method["name"].as_str().unwrap()).collect();
    let mut expected: BTreeSet<&str> = METHODS.iter().map(|method| method.name).collect();
    expected.extend(["event.unsubscribe", "chat.unsubscribe", "chat.unfollow", "files.unwatch"]);
    assert_eq!(listed, expected);
    assert_eq!(methods.len(), expected.len(), "no method is listed twice");
    for method in methods {
        let name = &method["name"];
        assert!(!method["summary"].as_str().unwrap_or_default().is_empty(), "{name}");
        assert!(!method["result"]["schema"].is_null(), "{name}");
        for param in array(&method["params"]) {
            assert!(param["name"].is_string() && !param["schema"].is_null(), "{name}: {param}");
        }
    }
    let record = methods.iter().find(|method| method["name"] == "session.record").unwrap();
    let names: BTreeSet<&str> =
        array(&record["params"]).iter().map(|param| param["name"].as_str().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["key", "message", "sessionId"]));
    assert_links_resolve(&document, &document);
}

/// Checks that every `$ref` in a value points into the document.
fn assert_links_resolve(value: &Value, document: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(link)) = map.get("$ref") {
                let pointer = link.strip_prefix('#').expect("links stay in the document");
                assert!(document.pointer(pointer).is_some(), "{link} resolves");
            }
            map.values().for_each(|value| assert_links_resolve(value, document));
        }
        Value::Array(values) => {
            values.iter().for_each(|value| assert_links_resolve(value, document))
        }
        _ => {}
    }
}
