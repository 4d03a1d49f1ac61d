//! Configuration: reloads, errors with file, line and key, and `ollmctl config`.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Daemon, Sandbox, Wire, start_with_config};

#[test]
fn changed_file_is_applied_by_watch_reload_or_signal() {
    let (sandbox, daemon, mut wire) = start_with_config("sessions:\n  maxSessions: 90\n");
    wire.subscribe(json!({ "kinds": ["config-reloaded"] }));

    // The daemon notices the changed file.
    sandbox.write_config("sessions:\n  maxSessions: 80\n");
    let event = wire.event();
    assert!(event["data"]["applied"].to_string().contains("maxSessions"), "{event}");

    // A call has nothing to apply, since the change was noticed.
    let reloaded = wire.ok("daemon.reload", json!({}));
    assert_eq!(reloaded["applied"], json!([]), "{reloaded}");

    // A signal emits an event even if the daemon noticed the changed file first.
    sandbox.write_config("sessions:\n  maxSessions: 70\n");
    daemon.signal(Signal::HUP);
    let event = wire.events_until("config-reloaded").pop().unwrap();
    assert!(event["data"]["applied"].to_string().contains("maxSessions"), "{event}");
    daemon.assert_serves();
}

#[test]
fn invalid_configuration_is_refused_with_file_line_and_key() {
    let (sandbox, daemon, mut wire) = start_with_config("sessions:\n  maxSessions: 90\n");
    let check = |wire: &mut Wire, text: &str, key: &str, line: &str| {
        sandbox.write_config(text);
        let error = wire.refused("daemon.reload", json!({}), "config");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("config.yaml"), "{message}");
        assert!(message.contains(key), "{message}");
        assert!(message.contains(line), "line {line}: {message}");
    };
    check(&mut wire, "sessions:\n  maxSesions: 3\n", "maxSesions", "2");
    check(&mut wire, "sessions:\n  maxSessions: 3\n\nlog:\n  level: [1, 2]\n", "level", "5");
    check(&mut wire, "sessions:\n  maxSessions: -4\n", "maxSessions", "2");
    check(&mut wire, "sessions: {\n", "config.yaml", "");
    daemon.assert_serves();
    assert!(daemon.terminate().success());

    let report = Daemon::try_start(&sandbox, &[]).err().expect("the configuration is invalid");
    assert!(report.contains("config.yaml") && report.contains("\"config\""), "{report}");
    let mut command = sandbox.command("ollmd");
    let output = command.arg("--home").arg(sandbox.home()).arg("--check-config").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn config_commands_show_values_with_their_sources() {
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
    assert_eq!(data_dir["value"], home.to_str().unwrap(), "the effective value");
    assert_eq!(data_dir["source"], "computed");
    sandbox.ctl(["config", "check"]).ok();
}

#[test]
fn config_list_prints_the_page_of_all_keys() {
    let sandbox = Sandbox::new();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemon/CONFIG.md");
    assert_eq!(sandbox.ctl(["config", "list"]).ok(), std::fs::read_to_string(page).unwrap());
    let listed = sandbox.ctl(["config", "list", "--json"]).json();
    let listed = listed["data"].as_array().unwrap().iter();
    let listed: BTreeSet<String> =
        listed.map(|key| key["key"].as_str().unwrap().to_owned()).collect();
    let shown = sandbox.ctl(["config", "show", "--json"]).json();
    let shown = shown.as_object().unwrap().iter().flat_map(|(section, keys)| {
        let keys = keys.as_object().unwrap().keys();
        keys.map(move |key| format!("{section}.{key}"))
    });
    assert_eq!(listed, shown.collect());
}
