//! `store.verify` and `ollmctl doctor --store`: while others write, and with damage.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::harness::{Sandbox, array};

#[test]
fn store_is_whole_while_sessions_are_written() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let sessions: Vec<String> = (0..4).map(|_| wire.create(json!({}))).collect();
    for session in &sessions {
        assert!(wire.record(session, "user", "first") > 0);
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for session in &sessions {
            let (daemon, is_done) = (&daemon, &is_done);
            scope.spawn(move || {
                let mut wire = daemon.wire();
                while !is_done.load(Ordering::Relaxed) {
                    wire.record(session, "user", &"text ".repeat(20_000));
                }
            });
        }
        for _ in 0..3 {
            let result = wire.ok("store.verify", json!({ "repair": true }));
            assert_eq!(
                (&result["ok"], &result["findings"]),
                (&json!(true), &json!([])),
                "{result}"
            );
            assert_eq!(result["sessions"], 4);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn damage_is_named_with_its_place_and_the_exit_code_says_so() {
    let sandbox = Sandbox::new();
    let recorded = sandbox.ctl(["record", "--new", "hello", "--json"]).json();
    let session = recorded["sessionId"].as_str().unwrap();
    let whole = sandbox.ctl(["doctor", "--store"]).ok();
    assert!(whole.contains("everything is whole: 1 session with"), "{whole}");
    sandbox.ctl(["daemon", "stop"]).ok();
    let path = sandbox.log_path(session);
    let log = fs::read_to_string(&path).unwrap();
    fs::write(&path, log.replace("hello", "hxllx")).unwrap();
    let found = sandbox.ctl(["doctor", "--store", "--repair", "--json"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    let [damage] = array(&found["findings"]) else { panic!("{found:#}") };
    assert_eq!((&damage["seq"], &damage["sessionId"]), (&json!(1), &json!(session)));
    let line = log.find('\n').unwrap() + 1;
    assert_eq!(damage["offset"], line, "{damage}");
    assert_eq!(fs::read_to_string(&path).unwrap(), log.replace("hello", "hxllx"));
}
