//! `daemon.*` and `rpc.discover`: one daemon a home, its files, its configuration, its leaving.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Instant;

use ollm_protocol::{METHODS, PROTOCOL_VERSION, SCHEMA_REVISION};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Daemon, Sandbox, every_file, until};

#[test]
fn hello_agrees_on_a_protocol_and_tells_the_limits() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let hello = |min: u32, max: u32| json!({ "client": "it", "version": "1", "protocolMin": min, "protocolMax": max });
    let agreed = wire.ok("daemon.hello", hello(1, 99));
    assert_eq!(agreed["protocol"], PROTOCOL_VERSION);
    assert_eq!(agreed["schemaRevision"], SCHEMA_REVISION);
    assert_eq!(agreed["pid"], daemon.pid());
    assert_eq!(agreed["limits"]["frameBytes"], 16 << 20);
    for limit in ["batch", "subscriptions", "inFlight"] {
        assert!(agreed["limits"][limit].as_u64().unwrap() > 0, "{limit}");
    }
    let refused = wire.refused("daemon.hello", hello(90, 99), "unsupportedVersion");
    assert_eq!(refused["data"]["supported"], PROTOCOL_VERSION);
    assert!(refused["data"]["hint"].as_str().unwrap().starts_with("ollmctl "), "{refused}");
}

#[test]
fn status_tells_the_truth() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "one");
    let _seq = wire.record(&session, "assistant", "two");
    let _subscription = wire.subscribe(json!({}));
    let mut other = daemon.wire();
    let status = other.ok("daemon.status", json!({}));
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["home"], sandbox.home().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(status["socket"], daemon.socket().to_str().unwrap());
    assert_eq!(status["protocol"], PROTOCOL_VERSION);
    assert_eq!(status["connections"], 2);
    assert_eq!(status["subscriptions"], 1);
    assert_eq!(status["store"]["sessions"], 1);
    assert!(status["store"]["recordsWritten"].as_u64().unwrap() >= 2, "{status}");
    assert!(status["store"]["syncs"].as_u64().unwrap() >= 1, "{status}");
    until("the catalog is ready", || {
        let status = other.ok("daemon.status", json!({}));
        (status["catalog"]["state"] == "ready" && status["catalog"]["behind"] == 0).then_some(())
    });
    #[cfg(target_os = "linux")]
    {
        let own = status["memoryBytes"].as_u64().unwrap();
        let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(own.abs_diff(kilobytes * 1024) < 16 << 20, "{own} and {kilobytes} kB");
    }
}

#[test]
fn the_home_is_private_and_daemon_json_says_where_the_daemon_is() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({ "title": "private" }));
    let _seq = wire.record(&session, "user", &"x".repeat(200 << 10));
    let _saved = wire.ok("session.save", json!({ "sessionId": session }));
    let announced = std::fs::read_to_string(sandbox.home().join("daemon.json")).unwrap();
    let announced: Value = serde_json::from_str(&announced).unwrap();
    assert_eq!(announced["socket"], daemon.socket().to_str().unwrap());
    assert_eq!(announced["pid"], daemon.pid());
    assert_eq!(announced["protocol"], PROTOCOL_VERSION);

    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&sandbox.home()), 0o700);
    assert_eq!(mode(daemon.socket()), 0o600);
    let files = every_file(&sandbox.home());
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
    assert!(!sandbox.home().join("daemon.json").exists(), "it says so no longer");
    assert!(!sandbox.socket().exists(), "its socket goes with it");
}

#[test]
fn a_home_that_others_may_read_is_made_private_or_refused() {
    let sandbox = Sandbox::new();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(sandbox.home(), open).unwrap();
    let arguments = ["--socket".to_owned(), sandbox.socket().to_str().unwrap().to_owned()];
    match Daemon::launch(&sandbox, &arguments) {
        Ok(daemon) => {
            assert_eq!(sandbox.home().metadata().unwrap().permissions().mode() & 0o777, 0o700);
            drop(daemon);
        }
        Err(said) => assert!(said.contains("chmod 700"), "{said}"),
    }
}

#[test]
fn without_a_socket_flag_the_address_is_one_of_the_published_candidates() {
    let sandbox = Sandbox::new();
    let daemon = Daemon::launch(&sandbox, &[]).unwrap();
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
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    let mut command = sandbox.command("ollmd");
    let other = sandbox.path("other.sock");
    command.arg("--home").arg(sandbox.home()).arg("--socket").arg(&other);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&daemon.pid().to_string()), "it names the holder: {said}");
    assert!(said.contains(sandbox.home().file_name().unwrap().to_str().unwrap()), "{said}");
    assert!(!other.exists());
    daemon.assert_serves();

    let refused = Daemon::launch(&sandbox, &[]).err().expect("there is one already");
    assert!(refused.starts_with('{') && refused.contains("\"locked\""), "{refused}");
    daemon.assert_serves();
}

#[test]
fn what_a_killed_daemon_leaves_never_needs_a_person() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "kept");
    daemon.kill9();
    assert!(sandbox.socket().exists(), "a killed daemon leaves its socket");
    assert!(sandbox.home().join("daemon.json").exists());
    let (daemon, mut wire) = sandbox.served();
    assert_eq!(wire.records(&session).last().unwrap()["message"]["parts"][0]["text"], "kept");
    assert!(daemon.terminate().success());
}

#[test]
fn a_file_in_the_place_of_the_socket_is_not_deleted() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.socket(), "somebody's notes").unwrap();
    let arguments = ["--socket".to_owned(), sandbox.socket().to_str().unwrap().to_owned()];
    let refused = Daemon::launch(&sandbox, &arguments).err().expect("the place is taken");
    assert!(refused.contains(sandbox.socket().to_str().unwrap()), "{refused}");
    assert_eq!(std::fs::read_to_string(sandbox.socket()).unwrap(), "somebody's notes");
}

#[test]
fn a_changed_configuration_holds_without_a_restart() {
    let sandbox = Sandbox::new();
    sandbox.write_config("sessions:\n  maxSessions: 90\n");
    let (daemon, mut wire) = sandbox.served();
    let _subscription = wire.subscribe(json!({ "kinds": ["config-reloaded"] }));

    // The file alone.
    sandbox.write_config("sessions:\n  maxSessions: 80\n");
    let event = wire.event();
    assert!(event["data"]["applied"].to_string().contains("maxSessions"), "{event}");

    // A call: nothing is left to do, since the change was seen already.
    let reloaded = wire.ok("daemon.reload", json!({}));
    assert_eq!(reloaded["applied"], json!([]), "{reloaded}");

    // A signal, which answers even when nothing changed or when the file's own change was seen first.
    sandbox.write_config("sessions:\n  maxSessions: 70\n");
    daemon.signal(Signal::HUP);
    let event = wire.events_until("config-reloaded").pop().unwrap();
    assert!(event["data"]["applied"].to_string().contains("maxSessions"), "{event}");
    daemon.assert_serves();
}

#[test]
fn a_wrong_configuration_is_named_by_file_line_and_key_and_the_old_one_holds() {
    let sandbox = Sandbox::new();
    sandbox.write_config("sessions:\n  maxSessions: 90\n");
    let (daemon, mut wire) = sandbox.served();
    let check = |wire: &mut crate::harness::Wire, text: &str, key: &str, line: &str| {
        sandbox.write_config(text);
        let error = wire.refused("daemon.reload", json!({}), "config");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("config.yaml"), "{message}");
        assert!(message.contains(key), "{message}");
        assert!(message.contains(line), "no line {line}: {message}");
    };
    check(&mut wire, "sessions:\n  maxSesions: 3\n", "maxSesions", "2");
    check(&mut wire, "sessions:\n  maxSessions: 3\n\nlog:\n  level: [1, 2]\n", "level", "5");
    check(&mut wire, "sessions:\n  maxSessions: -4\n", "maxSessions", "2");
    check(&mut wire, "sessions: {\n", "config.yaml", "");
    daemon.assert_serves();
    assert!(daemon.terminate().success());

    let refused = Daemon::launch(&sandbox, &[]).err().expect("a daemon does not start on a guess");
    assert!(refused.contains("config.yaml") && refused.contains("\"config\""), "{refused}");
    let mut command = sandbox.command("ollmd");
    let output = command.arg("--home").arg(sandbox.home()).arg("--check-config").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn a_call_to_shut_down_is_answered_and_obeyed() {
    let sandbox = Sandbox::new();
    let (mut daemon, mut wire) = sandbox.served();
    assert_eq!(wire.ok("daemon.shutdown", json!({}))["pid"], daemon.pid());
    assert!(daemon.left(DEADLINE).success());
    assert!(!sandbox.socket().exists());
}

#[test]
fn a_signal_ends_it_in_time_with_open_subscriptions_and_waiting_clients() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut followers: Vec<_> = (0..20).map(|_| daemon.wire()).collect();
    for follower in &mut followers {
        let _subscription = follower.subscribe(json!({}));
    }
    let mut idle: Vec<_> = (0..20).map(|_| daemon.wire()).collect();
    let seq = wire.record(&session, "user", "acknowledged");
    let begun = Instant::now();
    assert!(daemon.terminate().success());
    assert!(begun.elapsed().as_secs() < 10);
    for follower in &mut followers {
        let mut last = None;
        while let Some(frame) = follower.frame() {
            last = Some(frame);
        }
        let last = last.expect("a follower hears of the record and of the end");
        assert!(last["params"].get("error").is_some(), "the stream says that it ends: {last}");
    }
    assert!(idle.iter_mut().all(|wire| wire.frame().is_none()), "idle clients see a clean close");
    let (_daemon, mut wire) = sandbox.served();
    assert_eq!(wire.records(&session).last().unwrap()["seq"], seq);
}

#[test]
fn a_second_signal_leaves_at_once_and_loses_nothing() {
    let sandbox = Sandbox::new();
    let (mut daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let seq = wire.record(&session, "user", "acknowledged");
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::TERM);
    let _status = daemon.left(DEADLINE);
    let (_daemon, mut wire) = sandbox.served();
    assert_eq!(wire.records(&session).last().unwrap()["seq"], seq);
}

#[test]
fn discover_lists_exactly_the_methods_each_with_its_schemas() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let document = wire.ok("rpc.discover", json!({}));
    assert!(document["openrpc"].as_str().unwrap().starts_with("1."), "{}", document["openrpc"]);
    let methods = document["methods"].as_array().unwrap();
    let listed: BTreeSet<&str> =
        methods.iter().map(|method| method["name"].as_str().unwrap()).collect();
    let mut expected: BTreeSet<&str> = METHODS.iter().map(|method| method.name).collect();
    expected.extend(["event.unsubscribe", "chat.unsubscribe"]);
    assert_eq!(listed, expected);
    assert_eq!(methods.len(), expected.len(), "no method is listed twice");
    for method in methods {
        let name = &method["name"];
        assert!(!method["summary"].as_str().unwrap_or_default().is_empty(), "{name}");
        assert!(!method["result"]["schema"].is_null(), "{name}");
        for param in method["params"].as_array().unwrap() {
            assert!(param["name"].is_string() && !param["schema"].is_null(), "{name}: {param}");
        }
    }
    let record = methods.iter().find(|method| method["name"] == "session.record").unwrap();
    let names: BTreeSet<&str> = record["params"]
        .as_array()
        .unwrap()
        .iter()
        .map(|param| param["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, BTreeSet::from(["key", "message", "sessionId"]));
    links_lead_somewhere(&document, &document);
}

fn links_lead_somewhere(value: &Value, document: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(link)) = map.get("$ref") {
                let place = link.strip_prefix('#').expect("links stay in the document");
                assert!(document.pointer(place).is_some(), "{link} leads nowhere");
            }
            map.values().for_each(|value| links_lead_somewhere(value, document));
        }
        Value::Array(values) => {
            values.iter().for_each(|value| links_lead_somewhere(value, document))
        }
        _ => {}
    }
}
