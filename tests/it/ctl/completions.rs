//! Shell completions: the scripts, and the values that a running daemon adds.

use std::process::{Command, Stdio};

use super::two_sessions;
use crate::harness::{ChildExt as _, DEADLINE, FakeOllama, Sandbox, run, until};

/// Returns the values and help texts that fish is offered behind some words, without flags.
fn completions(sandbox: &Sandbox, words: &[&str]) -> Vec<(String, String)> {
    let mut command = sandbox.command("ollmctl");
    command.env("_OLLMCTL_COMPLETE", "fish").args(["--", "ollmctl"]).args(words);
    let printed = run(command, "").ok();
    let lines = printed.lines().filter(|line| !line.starts_with("--"));
    let pairs = lines.map(|line| line.split_once('\t').unwrap_or((line, "")));
    pairs.map(|(value, help)| (value.to_owned(), help.to_owned())).collect()
}

/// As [`completions`], without the help texts.
fn values(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    completions(sandbox, words).into_iter().map(|(value, _)| value).collect()
}

#[test]
fn completion_script_is_accepted_by_its_shell() {
    let sandbox = Sandbox::new();
    for (shell, flags) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = sandbox.ctl(["completions", shell]).ok();
        assert!(script.contains("_OLLMCTL_COMPLETE") && script.contains("ollmctl"), "{shell}");
        let file = sandbox.path(&format!("completion.{shell}"));
        std::fs::write(&file, &script).unwrap();
        let checked = Command::new(shell)
            .args(flags)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        // The syntax is checked only if the shell is installed.
        if let Ok(mut child) = checked {
            let status = child.wait_timeout(DEADLINE).unwrap();
            assert!(status.success(), "{shell} accepts its completions");
        }
    }
    assert!(!sandbox.home().join("daemon.json").exists(), "completions need no daemon");
}

#[test]
fn sessions_are_completed_by_a_running_daemon() {
    let sandbox = Sandbox::new();
    assert_eq!(values(&sandbox, &["sessions", "view", ""]), ["last"]);
    assert!(!sandbox.home().join("daemon.json").exists(), "completion starts no daemon");
    let [first, second] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    // The shell does not wait for a slow daemon, so each completion may need several attempts.
    let is_first = |(value, title): &(String, String)| {
        first.ends_with(value.as_str()) && title == "parsing tables"
    };
    until("all sessions are completed by the short forms of their ids", || {
        let all = completions(&sandbox, &["sessions", "view", ""]);
        all.len() == 3 && all.iter().any(is_first)
    });
    until("a session is completed by a part of its short form", || {
        let found = completions(&sandbox, &["sessions", "view", &first[32..35]]);
        found.iter().any(is_first)
    });
    until("a session is completed by its prefix", || {
        values(&sandbox, &["sessions", "export", &second[..30]]) == [&*second]
    });
    assert_eq!(values(&sandbox, &["record", "--session", "la"]), ["last"]);
    assert_eq!(values(&sandbox, &["sessions", "delete", "zz"]), [""; 0]);
    assert!(values(&sandbox, &["call", "session.li"]).contains(&"session.list".to_owned()));
}

#[test]
fn models_are_completed_by_a_running_daemon() {
    let fake = FakeOllama::new();
    let sandbox = Sandbox::new();
    sandbox.write_config(&fake.config("tiny"));
    assert!(values(&sandbox, &["chat", "-m", "t"]).is_empty(), "completion starts no daemon");
    let _daemon = sandbox.daemon();
    until("the models are completed behind a flag", || {
        values(&sandbox, &["chat", "-m", "t"]) == ["tiny:latest", "thinker:latest"]
    });
    until("a model is completed as an argument", || {
        values(&sandbox, &["models", "show", "pl"]) == ["plain:latest"]
    });
}
