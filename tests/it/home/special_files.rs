//! Links, pipes and directories in place of files: none of them makes a process wait, and no link leads to a write.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::ctl_at;
use crate::harness::{Daemon, Sandbox, start, until};

const SESSION: &str = "0192f0c1-9a3b-7000-8000-000000000001";

/// Creates a pipe that has no other end, so that opening it waits.
fn make_pipe(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn pipes_among_the_data_do_not_stop_the_daemon() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    wire.record(&session, "user", &"blob ".repeat(50_000));
    drop(wire);
    assert!(daemon.terminate().success());
    sandbox.remove_catalog();
    let home = sandbox.home();
    make_pipe(&sandbox.log_path(SESSION));
    let blobs = home.join(format!("sessions/{session}.blobs"));
    let blob = std::fs::read_dir(&blobs).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&blob).unwrap();
    make_pipe(&blob);
    for name in ["global.json", "vocab/models.json", "projects/0000.json", "daemon.json"] {
        make_pipe(&home.join(name));
    }
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    let records = wire.records(&session);
    assert_eq!(records[1]["message"]["parts"][0]["text"], "hello");
    let listed = wire.ok("session.list", json!({}));
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
    let refused = wire.call("session.get", json!({ "sessionId": SESSION })).unwrap_err();
    assert!(refused["message"].as_str().unwrap().contains(SESSION), "{refused}");
    wire.ok("session.delete", json!({ "sessionId": session }));
    assert!(daemon.terminate().success());
}

#[test]
fn pipe_as_configuration_is_refused() {
    let sandbox = Sandbox::new();
    make_pipe(&sandbox.home().join("config.yaml"));
    let report = Daemon::try_start(&sandbox, &[]).err().expect("the configuration is a pipe");
    assert!(report.contains("config.yaml") && report.contains("not a regular file"), "{report}");
}

#[test]
fn linked_configuration_is_read() {
    let sandbox = Sandbox::new();
    let dotfiles = sandbox.path("dotfiles.yaml");
    std::fs::write(&dotfiles, "sessions:\n  maxSessions: 7\n").unwrap();
    symlink(&dotfiles, sandbox.home().join("config.yaml")).unwrap();
    let shown = sandbox.ctl(["config", "show"]).ok();
    assert!(shown.contains("maxSessions: 7"), "{shown}");
    let _daemon = sandbox.daemon();
}

#[test]
fn pipes_of_the_client_are_refused() {
    let sandbox = Sandbox::new();
    let home = sandbox.home();
    for name in ["ollmd.lock", "daemon.json"] {
        let path = home.join(name);
        make_pipe(&path);
        let status = sandbox.ctl(["--no-spawn", "daemon", "status"]);
        assert_eq!(status.stdout, "ollmd is not running\n", "{name}: {status:?}");
        std::fs::remove_file(&path).unwrap();
    }
    for name in ["start.lock", "logs/ollmd.stderr", "ollmd.lock"] {
        let path = home.join(name);
        make_pipe(&path);
        let error = sandbox.ctl(["daemon", "start"]).fails(6);
        assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn pipe_as_import_file_is_refused_and_link_is_read() {
    let sandbox = Sandbox::new();
    let pipe = sandbox.path("pipe");
    make_pipe(&pipe);
    let error = sandbox.ctl(["sessions", "import", pipe.to_str().unwrap()]).fails(1);
    assert!(error.contains("not a regular file"), "{error}");
    let link = sandbox.path("link.jsonl");
    let session = json!({
        "type": "session", "version": 3, "id": SESSION, "timestamp": "2026-01-27T10:00:00Z", "cwd": "/nowhere"
    });
    let log = sandbox.path("session.jsonl");
    std::fs::write(&log, format!("{session}\n")).unwrap();
    symlink(log, &link).unwrap();
    let _report = sandbox.ctl(["sessions", "import", "--dry-run", link.to_str().unwrap()]).ok();
}

#[test]
fn links_among_the_data_are_not_followed() {
    let sandbox = Sandbox::new();
    let precious = sandbox.path("precious");
    std::fs::write(&precious, "text of the user\n").unwrap();
    let sessions = PathBuf::from(sandbox.project_dir("home/sessions"));
    let mark = sessions.join(format!("{SESSION}.jsonl.deleting"));
    symlink(&precious, &mark).unwrap();
    let other = SESSION.replace("0001", "0002");
    symlink(&precious, sessions.join(format!("{other}.jsonl"))).unwrap();
    symlink(&precious, sandbox.home().join("global.json")).unwrap();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    until("the deletion is finished", || mark.symlink_metadata().is_err());
    let text = json!({ "sessionId": other, "message": { "role": "user", "content": "hi" } });
    assert!(wire.call("session.record", text).is_err());
    let entry = json!({ "scope": "global", "key": "style", "content": "tabs" });
    let _refused_or_replaced = wire.call("context.addEntry", entry);
    assert!(daemon.terminate().success());
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "text of the user\n");
}

#[test]
fn linked_lock_or_catalog_is_refused() {
    let sandbox = Sandbox::new();
    let precious = sandbox.path("precious");
    std::fs::write(&precious, "text of the user\n").unwrap();
    for name in ["ollmd.lock", "catalog.sqlite3-wal", "logs/ollmd.stderr"] {
        let path = sandbox.home().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _created_by_the_start_before = std::fs::remove_file(&path);
        symlink(&precious, &path).unwrap();
        let error = ctl_at(&sandbox, &sandbox.home(), &["daemon", "start"]).fails(6);
        assert!(error.contains(name) && error.contains("link"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "text of the user\n");
}
