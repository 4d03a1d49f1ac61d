//! `ollmctl files`: lists, searches and changes for pipes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Follower, array, run, start};

/// Writes a file and the directories above it.
fn write(root: &str, path: &str) {
    let path = Path::new(root).join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "12345").unwrap();
}

#[test]
fn ctl_lists_searches_and_watches_for_pipes() {
    let (sandbox, _daemon, _wire) = start();
    let root = sandbox.project_dir("p");
    for path in ["src/main.rs", "sp ace.txt", "new\nline.txt", ".hidden", "target/x"] {
        write(&root, path);
    }
    let ctl = |args: &[&str]| {
        let mut command = sandbox.command("ollmctl");
        command.args(args).current_dir(&root);
        command
    };
    let listed = run(ctl(&["files", "list", "-0"]), "").ok();
    let listed: BTreeSet<&str> = listed.split_terminator('\0').collect();
    assert_eq!(listed, BTreeSet::from(["new\nline.txt", "sp ace.txt", "src/main.rs"]));
    assert_eq!(run(ctl(&["files", "list", "--include", "*.rs"]), "").ok(), "src/main.rs\n");
    assert_eq!(
        run(ctl(&["files", "search", "mainrs", "--absolute"]), "").ok(),
        format!("{root}/src/main.rs\n")
    );
    let json = run(ctl(&["files", "list", "--hidden", "--json"]), "").json();
    assert_eq!(array(&json["data"]).len(), 4);
    let none = run(ctl(&["files", "search", "nothing-like-it"]), "");
    assert!(none.stderr.contains("none of 3 files"), "{none:?}");
    assert_eq!(none.ok(), "");
    let error = run(ctl(&["files", "list", "no-such-dir"]), "").fails(3);
    assert!(error.contains("no-such-dir"), "{error}");
    let status = run(ctl(&["files", "status"]), "").ok();
    assert!(status.contains("watch") && status.contains(&root), "{status}");
    let watcher = Follower::start(ctl(&["files", "watch"]));
    assert!(watcher.line().contains("\"watching\""));
    write(&root, "src/new.rs");
    let change: Value = serde_json::from_str(&watcher.line()).unwrap();
    assert_eq!(change["added"], json!([{ "path": "src/new.rs" }]));
}
