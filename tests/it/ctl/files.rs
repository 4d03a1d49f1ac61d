//! `ollmctl exec --track` and `ollmctl undo --files`.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::harness::{Output, Sandbox, Terminal, Wire, run, start};

/// Runs `ollmctl` in a directory.
fn ctl_in(sandbox: &Sandbox, dir: &Path, args: &[&str]) -> Output {
    let mut command = sandbox.command("ollmctl");
    command.args(args).current_dir(dir);
    run(command, "")
}

/// A project with one file, and a session in it.
fn project(sandbox: &Sandbox, wire: &mut Wire) -> (std::path::PathBuf, String) {
    let root = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": root }));
    wire.record(&session, "user", "generate");
    fs::write(Path::new(&root).join("a.txt"), "one\n").unwrap();
    (root.into(), session)
}

#[test]
fn tracked_command_is_undone_with_its_files() {
    let (sandbox, _daemon, mut wire) = start();
    let (root, session) = project(&sandbox, &mut wire);
    let script = "echo two > a.txt; mkdir sub; echo new > sub/new.txt; printf '\\377' > bin";
    let args = ["exec", "--track", "--session", &session, "--", "sh", "-c", script];
    ctl_in(&sandbox, &root, &args).ok();
    fs::write(root.join("sub/new.txt"), "edited\n").unwrap();

    let shown =
        ctl_in(&sandbox, &root, &["undo", "--session", &session, "--files", "preview"]).ok();
    assert!(shown.contains("would be undone:"), "{shown}");
    assert!(shown.contains("  put back    a.txt\n"), "{shown}");
    assert!(shown.contains("  remove      bin\n"), "{shown}");
    assert!(shown.contains("  conflict    sub/new.txt (the file was changed)\n"), "{shown}");
    assert_eq!(fs::read_to_string(root.join("a.txt")).unwrap(), "two\n");

    // Nobody can be asked here.
    let undo = ["undo", "--session", &session, "--files"];
    let refused = ctl_in(&sandbox, &root, &undo).fails(2);
    assert!(refused.contains("put back 2 files") && refused.contains("--yes"), "{refused}");
    let undone = ctl_in(&sandbox, &root, &[&undo[..], &["--yes"]].concat()).ok();
    assert!(undone.contains("  removed     bin\n"), "{undone}");
    assert_eq!(fs::read_to_string(root.join("a.txt")).unwrap(), "one\n");
    assert!(!root.join("bin").exists());
    assert_eq!(fs::read_to_string(root.join("sub/new.txt")).unwrap(), "edited\n");

    let redo = ["redo", "--session", &session, "--files", "--yes", "--json"];
    let redone = ctl_in(&sandbox, &root, &redo).json();
    assert_eq!(redone["files"]["counts"]["putBack"], 2, "{redone}");
    assert_eq!(fs::read(root.join("bin")).unwrap(), b"\xff");
}

#[test]
fn questions_before_files_change_show_what_happens_to_each() {
    let (sandbox, _daemon, mut wire) = start();
    let (root, session) = project(&sandbox, &mut wire);
    sandbox.ctl(["snapshot", "create", "--session", &session]).ok();
    let track = ["exec", "--track", "--session", &session, "--"];
    let script = ["sh", "-c", "echo two > a.txt; echo new > b.txt"];
    ctl_in(&sandbox, &root, &[&track[..], &script[..]].concat()).ok();
    let a = || fs::read_to_string(root.join("a.txt")).unwrap();
    let ask = |args: &[&str], shown: &[&str], answer: &str, said: &str| {
        let mut terminal = Terminal::start(&sandbox, args);
        shown.iter().for_each(|text| terminal.expect(text));
        terminal.send(answer);
        terminal.expect(said);
        assert_eq!(terminal.exit_code(), 0);
    };
    let undo = ["undo", "--session", &session, "--files"];
    let question = "undo 1 operation and put back 2 files? [y/N]";
    let shown = ["would be undone:", "put back    a.txt", "remove      b.txt", question];
    ask(&undo, &shown, "n\r", "nothing was changed");
    assert_eq!(a(), "two\n");
    ask(&undo, &shown, "y\r", "removed     b.txt");
    assert_eq!((a().as_str(), root.join("b.txt").exists()), ("one\n", false));
    ctl_in(&sandbox, &root, &["redo", "--session", &session, "--files", "--yes"]).ok();

    let snapshots = sandbox.ctl(["snapshot", "list", &session, "--json"]).json();
    let all = snapshots["data"].as_array().unwrap();
    let manual = all.iter().find(|one| one["reason"] == "manual").unwrap();
    let restore = ["snapshot", "restore", manual["snapshotId"].as_str().unwrap()];
    let hint = "with --files, also put back: a.txt, b.txt";
    ask(
        &restore,
        &["taken back: 1 tool call", hint, "restore the snapshot? [y/N]"],
        "\r",
        "nothing was restored",
    );
    let restore = [&restore[..], &["--files"]].concat();
    let shown = [
        "taken back: 1 tool call",
        "put back    a.txt",
        "remove      b.txt",
        "restore the snapshot?",
    ];
    ask(&restore, &shown, "n\r", "nothing was restored");
    assert_eq!(a(), "two\n");
    ask(&restore, &shown, "y\r", "`ollmctl undo --files` takes this back");
    assert_eq!((a().as_str(), root.join("b.txt").exists()), ("one\n", false));
}

#[test]
fn command_that_is_not_tracked_is_named_as_not_undoable() {
    let (sandbox, _daemon, mut wire) = start();
    let (root, session) = project(&sandbox, &mut wire);
    let args = ["exec", "--session", &session, "--", "sh", "-c", "echo two > a.txt"];
    ctl_in(&sandbox, &root, &args).ok();
    let shown =
        ctl_in(&sandbox, &root, &["undo", "--session", &session, "--files", "preview"]).ok();
    assert!(shown.contains("not undoable  what shell wrote"), "{shown}");
    let elsewhere = sandbox.project_dir("elsewhere");
    let args = ["exec", "--track", "--session", &session, "--", "touch", "ran"];
    let refused = ctl_in(&sandbox, Path::new(&elsewhere), &args).fails(2);
    assert!(refused.contains("not in the project of the session"), "{refused}");
    assert!(!Path::new(&elsewhere).join("ran").exists(), "nothing ran");
}
