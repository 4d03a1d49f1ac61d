//! Hooks: shell scripts that a real daemon runs, what becomes of their output, and what none of them can do.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{
    Answer, Daemon, FakeOllama, ModelSession, Sandbox, Wire, array, files_under, until, until_some,
};

/// A limit that no hook of a test reaches, on a machine that is busy.
const PATIENT: &str = "hooks:\n  timeout: 60s\n";
/// A limit that a hook which hangs reaches soon.
const IMPATIENT: &str = "hooks:\n  timeout: 300ms\n";
/// The output of a hook with one entry.
const BRANCH: &str = r#"echo '{"context":[{"name":"branch","text":"The branch is main."}]}'"#;

/// A daemon with a session in a project, and scripts as hooks.
struct Hooked {
    fake: FakeOllama,
    chat: ModelSession,
    /// A connection that receives all events.
    follower: Wire,
    project: String,
}

impl Hooked {
    fn new(config: &str) -> Self {
        Self::with_variables(config, &[])
    }

    fn with_variables(config: &str, variables: &[(&str, &str)]) -> Self {
        let (fake, sandbox) = (FakeOllama::new(), Sandbox::new());
        sandbox.write_config(&(fake.config("tiny") + config));
        let daemon = Daemon::start(&sandbox, variables);
        let (wire, project) = (daemon.wire(), sandbox.project_dir("project"));
        let chat = ModelSession { sandbox, daemon, wire, id: String::new() };
        let mut follower = chat.daemon.wire();
        follower.subscribe(json!({}));
        let mut hooked = Self { fake, chat, follower, project };
        hooked.new_session();
        hooked
    }

    fn new_session(&mut self) {
        let params = json!({ "projectPath": self.project, "contextSize": 8192 });
        self.chat.id = self.chat.wire.create(params);
    }

    /// Makes a script a hook of the home; `$OUT` in it is the directory of the test.
    fn own(&self, name: &str, script: &str) -> PathBuf {
        self.write(&self.chat.sandbox.home().join("hooks"), name, script)
    }

    /// Makes a script a hook of the project.
    fn foreign(&self, name: &str, script: &str) -> PathBuf {
        self.write(&Path::new(&self.project).join(".ollm/hooks"), name, script)
    }

    fn write(&self, dir: &Path, name: &str, script: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let out = self.chat.sandbox.path("");
        std::fs::write(&path, format!("#!/bin/sh\nOUT={}\n{script}\n", out.display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Waits until a hook has written a whole line to a file of the test, and returns the file.
    #[track_caller]
    fn written(&self, name: &str) -> String {
        let path = self.chat.sandbox.path(name);
        until_some("a hook writes a file", || {
            std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))
        })
    }

    fn entries(&mut self) -> Vec<Value> {
        array(&self.chat.ok("context.listEntries", json!({}))["data"]).to_vec()
    }

    /// Waits for an event and returns its data.
    #[track_caller]
    fn event(&mut self, kind: &str) -> Value {
        self.follower.events_until(kind).pop().unwrap()["data"].clone()
    }

    /// Returns the state of the only hook.
    #[track_caller]
    fn hook(&mut self) -> Value {
        let listed = self.chat.wire.ok("hook.list", json!({ "projectPath": self.project }));
        let [hook] = array(&listed["data"]) else { panic!("{listed}") };
        hook.clone()
    }

    /// Returns whether the files of the project are followed.
    fn is_followed(&mut self) -> bool {
        let roots = self.chat.wire.ok("files.status", json!({}))["roots"].clone();
        array(&roots).iter().any(|root| root["subscriptions"] == 1 && root["state"] == "ready")
    }
}

/// Returns whether a process of a number that a hook wrote runs. One that only waits to be collected does not.
fn is_running(pid: &str) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", pid.trim()]).output().unwrap();
    let state = String::from_utf8(output.stdout).unwrap();
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

/// A hook that never ends, and starts another process; both are killed as one group.
const HANGS: &str = "sleep 1000 &\necho $! > $OUT/child.new; mv $OUT/child.new $OUT/child\n\
    echo $$ > $OUT/pid.new; mv $OUT/pid.new $OUT/pid\nwait";

#[test]
fn session_start_adds_entries_to_the_first_prompt() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("session-start", &format!("cat > $OUT/input; pwd > $OUT/cwd; {BRANCH}"));
    hooked.chat.turn("hello");
    let input: Value = serde_json::from_str(&hooked.written("input")).unwrap();
    let (id, project) = (hooked.chat.id.clone(), hooked.project.clone());
    let expected = json!({ "occasion": "session-start", "sessionId": id, "projectPath": project, "model": "tiny" });
    assert_eq!(input, expected);
    assert_eq!(hooked.written("cwd").trim(), project);
    let request = &hooked.fake.requests("/api/chat")[0].body;
    let system = request["messages"][0]["content"].as_str().unwrap();
    let entry = "<context-entry key=\"hook:branch\">\nThe branch is main.\n</context-entry>";
    assert!(system.contains(entry), "{system}");
    let entries = hooked.entries();
    assert_eq!((entries.len(), &entries[0]["source"]), (1, &json!("hook")));
    // Once a session.
    std::fs::remove_file(hooked.chat.sandbox.path("input")).unwrap();
    hooked.chat.turn("again");
    assert!(!hooked.chat.sandbox.path("input").exists());
    let run = &hooked.hook()["lastRun"];
    assert!(run["durationMs"].is_u64() && run["error"].is_null(), "{run}");
}

#[test]
fn entries_replace_earlier_ones_of_the_same_name_and_an_empty_text_removes_one() {
    let mut hooked = Hooked::new(PATIENT);
    let script = "cat > $OUT/input; echo x >> $OUT/turns; N=$(wc -l < $OUT/turns)\n\
        [ $N = 3 ] || TEXT=\"turn $N\"\n\
        echo '{\"context\":[{\"name\":\"turns\",\"text\":\"'$TEXT'\"}]}'";
    hooked.own("after-turn.d/10-count", &script.replace("'$TEXT'", "'\"$TEXT\"'"));
    for n in 1..=3 {
        hooked.chat.turn("go on");
        until("the entry is set", || {
            let entries = hooked.entries();
            let texts: Vec<_> = entries.iter().map(|entry| entry["content"].clone()).collect();
            if n == 3 { texts.is_empty() } else { texts == [json!(format!("turn {n}"))] }
        });
    }
    let input: Value = serde_json::from_str(&hooked.written("input")).unwrap();
    assert_eq!(input["turn"]["finishReason"], "stop", "{input}");
    assert!(input["turn"]["seq"].is_u64(), "{input}");
}

#[test]
fn hook_has_no_secret_in_its_environment_and_finds_its_daemon() {
    let secrets = [("MY_API_KEY", "sk-secret"), ("PLAIN", "x"), ("OLLM_LOG", "info")];
    let mut hooked = Hooked::with_variables(PATIENT, &secrets);
    hooked.own("session-start", "env > $OUT/env.new; mv $OUT/env.new $OUT/env");
    hooked.chat.turn("hello");
    let env = hooked.written("env");
    let has = |line: String| env.lines().any(|own| own == line);
    assert!(!env.contains("sk-secret") && !env.contains("OLLM_LOG"), "{env}");
    assert!(has("PLAIN=x".to_owned()) && has("OLLM_HOOK=session-start".to_owned()), "{env}");
    assert!(has(format!("OLLM_SESSION={}", hooked.chat.id)), "{env}");
    let home = hooked.chat.sandbox.home().canonicalize().unwrap();
    assert!(has(format!("OLLM_HOME={}", home.display())), "{env}");
}

#[test]
fn failing_hook_costs_its_own_entries_only() {
    for (script, problem) in [
        ("echo no git here >&2; exit 3", "it ended with exit status: 3"),
        ("echo hello", "its output is not the JSON of a hook"),
        ("head -c 100000 /dev/zero", "it wrote more than 64 KiB"),
        ("echo '{\"keep\":[\"a\"]}'", "instructions and keep are for before-compaction"),
        ("kill -9 $$", "it ended with signal: 9"),
    ] {
        let mut hooked = Hooked::new(PATIENT);
        hooked.own("session-start", script);
        let good = hooked.own("session-start.d/good", BRANCH);
        hooked.chat.turn("hello");
        let failed = hooked.event("hook-failed");
        assert!(failed["error"].as_str().unwrap().contains(problem), "{failed}");
        assert_eq!(failed["occasion"], "session-start");
        assert_eq!(hooked.entries().len(), 1, "{problem}");
        std::fs::remove_file(good).unwrap();
        let hook = hooked.hook();
        assert_eq!(hook["lastRun"]["error"], failed["error"]);
        if problem.contains("status: 3") {
            assert_eq!(hook["lastRun"]["stderr"], "no git here");
        }
    }
}

#[test]
fn hook_that_hangs_is_killed_with_what_it_started_and_the_turn_goes_on() {
    let mut hooked = Hooked::new(IMPATIENT);
    hooked.own("session-start", HANGS);
    hooked.chat.turn("hello");
    let failed = hooked.event("hook-failed");
    assert_eq!(failed["error"], "it was killed after 0.3 s (hooks.timeout)");
    // A machine that is too busy to start the script in time has nothing to kill.
    for name in ["pid", "child"] {
        let Ok(pid) = std::fs::read_to_string(hooked.chat.sandbox.path(name)) else { return };
        until("the hook is gone", || !is_running(&pid));
    }
}

#[test]
fn killed_daemon_leaves_no_hook_behind() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("after-turn", HANGS);
    hooked.chat.turn("hello");
    let pids = ["pid", "child"].map(|name| hooked.written(name));
    assert!(pids.iter().all(|pid| is_running(pid)));
    let Hooked { chat: ModelSession { daemon, sandbox: _sandbox, .. }, fake: _fake, .. } = hooked;
    daemon.kill();
    until("the hook is gone", || !pids.iter().any(|pid| is_running(pid)));
}

/// A hook that starts a process with a session of its own and without a parent, which holds the pipes of the hook open.
#[cfg(target_os = "linux")]
const STARTS_AWAY: &str = "(setsid sh -c 'echo $$ > $0/away.new; mv $0/away.new $0/away; exec sleep 1000' $OUT &)\n\
    until [ -e $OUT/away ]; do sleep 0.01; done";

#[cfg(target_os = "linux")]
#[test]
fn process_that_leaves_the_group_of_a_hook_ends_with_the_hook() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("session-start", &format!("{STARTS_AWAY}\n{BRANCH}"));
    let away = hooked.chat.sandbox.path("away");
    hooked.chat.turn("hello");
    assert_eq!(hooked.entries().len(), 1);
    let pid = std::fs::read_to_string(&away).unwrap();
    until("it ended with its hook", || !is_running(&pid));
    std::fs::remove_file(&away).unwrap();
    hooked.own("after-turn", &format!("{STARTS_AWAY}\nsleep 1000"));
    hooked.chat.turn("again");
    let pid = hooked.written("away");
    assert!(is_running(&pid));
    let Hooked { chat: ModelSession { daemon, sandbox: _sandbox, .. }, fake: _fake, .. } = hooked;
    daemon.kill();
    until("it ended with the daemon", || !is_running(&pid));
}

#[test]
fn hook_of_a_project_runs_only_as_it_was_trusted() {
    let mut hooked = Hooked::new(PATIENT);
    let path = hooked.foreign("session-start", BRANCH);
    hooked.chat.turn("hello");
    let untrusted = hooked.event("hook-untrusted");
    assert_eq!(untrusted["changed"], json!(false));
    assert_eq!(untrusted["hook"], json!(path));
    assert_eq!((hooked.entries().len(), &hooked.hook()["state"]), (0, &json!("untrusted")));

    let trust = |hooked: &Hooked, flags: &[&str]| {
        let args = ["hooks", "trust", &*hooked.project].into_iter().chain(flags.iter().copied());
        hooked.chat.sandbox.ctl(args)
    };
    assert!(trust(&hooked, &[]).fails(2).contains("--yes"));
    assert!(trust(&hooked, &["--yes"]).ok().contains("1 hook of "));
    hooked.new_session();
    hooked.chat.turn("hello");
    assert_eq!(hooked.entries().len(), 1);

    hooked.foreign("session-start", &format!("touch $OUT/changed; {BRANCH}"));
    hooked.new_session();
    hooked.chat.turn("hello");
    assert_eq!(hooked.event("hook-untrusted")["changed"], json!(true));
    assert_eq!((hooked.entries().len(), &hooked.hook()["state"]), (0, &json!("changed")));
    assert!(!hooked.chat.sandbox.path("changed").exists());
    let listed = hooked.chat.sandbox.ctl(["hooks", "list", &hooked.project]).ok();
    let hint = format!("since it was trusted; try: ollmctl hooks trust {}\n", hooked.project);
    assert!(listed.contains(&hint), "{listed}");
    let params = json!({ "projectPath": hooked.project, "texts": true });
    let texts = hooked.chat.wire.ok("hook.list", params)["data"][0].clone();
    let (now, before) = (texts["text"].as_str().unwrap(), texts["trustedText"].as_str().unwrap());
    assert!(now.contains("touch") && !before.contains("touch"), "{texts}");

    let seen = json!([{ "name": "session-start", "digest": "0".repeat(64) }]);
    let params = json!({ "projectPath": hooked.project, "hooks": seen });
    let refused = hooked.chat.wire.refused("hook.trust", params, "conflict");
    assert!(refused["data"]["hint"].as_str().unwrap().starts_with("ollmctl hooks trust "));
    let params = json!({ "projectPath": hooked.project });
    let untrusted = hooked.chat.wire.ok("hook.untrust", params);
    assert_eq!(untrusted, json!({ "untrusted": true }));
    assert_eq!(hooked.hook()["state"], "untrusted");
}

#[test]
fn link_and_file_of_another_user_are_refused() {
    let check = |hooked: &mut Hooked, problem: &str| {
        hooked.chat.turn("hello");
        let failed = hooked.event("hook-failed");
        assert!(failed["error"].as_str().unwrap().contains(problem), "{failed}");
        assert_eq!((hooked.entries().len(), &hooked.hook()["state"]), (0, &json!("unusable")));
    };
    let mut hooked = Hooked::new(PATIENT);
    let target = hooked.write(&hooked.chat.sandbox.path("elsewhere"), "hook", BRANCH);
    let link = hooked.chat.sandbox.home().join("hooks/session-start");
    std::fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(target, &link).unwrap();
    check(&mut hooked, "a symbolic link");
    if rustix::process::geteuid().is_root() {
        let mut hooked = Hooked::new(PATIENT);
        let path = hooked.own("session-start", BRANCH);
        std::os::unix::fs::chown(path, Some(61234), None).unwrap();
        check(&mut hooked, "it belongs to user 61234");
    }
    let mut hooked = Hooked::new(PATIENT);
    // The start removes the rights of others, which this test grants.
    until("the rights of all files are examined", || {
        let logs = files_under(&hooked.chat.sandbox.home().join("logs"));
        let has =
            |log: &PathBuf| std::fs::read_to_string(log).unwrap().contains("made files private");
        logs.iter().any(has)
    });
    let dir = hooked.own("session-start", BRANCH).parent().unwrap().to_owned();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    check(&mut hooked, "can be written by other users");
    let report = hooked.chat.sandbox.ctl(["--json", "doctor"]).stdout;
    assert!(
        report.contains("no hook of the home runs: ") && report.contains("chmod go-w"),
        "{report}"
    );
}

#[test]
fn start_of_the_daemon_leaves_hooks_executable() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("session-start", BRANCH);
    hooked.chat = hooked.chat.restart();
    let path = hooked.chat.sandbox.home().join("hooks/session-start");
    until("the rights of others are removed", || {
        path.metadata().unwrap().permissions().mode() & 0o777 == 0o700
    });
    assert_eq!(hooked.hook()["state"], "ready");
}

/// A summary that the daemon accepts.
const SUMMARY: &str = "## Goal\n- port the parser to the new lexer\n\n## Critical context\n- TokenKind has 41 variants";

fn compacted(hooked: &mut Hooked) -> Value {
    hooked.fake.script_summaries(Answer::text(SUMMARY));
    hooked.chat.wire.ok("model.countTokens", json!({ "text": "x" }));
    let words = "and some words about it that nobody needs later on ".repeat(3);
    for n in 0..14 {
        hooked.chat.record("user", &format!("request {n}: {words}"));
        hooked.chat.record("assistant", &format!("answer {n}: TokenKind, {words}"));
    }
    let done = hooked.chat.ok("context.compact", json!({ "instructions": "keep the names" }));
    assert_eq!(
        (&done["compacted"], &done["method"]),
        (&json!(true), &json!("summarized")),
        "{done}"
    );
    done
}

#[test]
fn hook_before_a_compaction_adds_instructions_lines_and_entries() {
    let mut hooked = Hooked::new(&format!("{PATIENT}compression:\n  enabled: false\n"));
    let output = json!({
        "instructions": "Name every test.",
        "keep": ["release 2.4 ships on 2026-03-01"],
        "context": [{ "name": "branch", "text": "The branch is main." }],
    });
    hooked.own("before-compaction", &format!("cat > $OUT/input; echo '{output}'"));
    let done = compacted(&mut hooked);
    let input: Value = serde_json::from_str(&hooked.written("input")).unwrap();
    assert_eq!(input["compaction"]["from"], done["from"], "{input}");
    assert_eq!(input["compaction"]["to"], done["to"]);
    assert_eq!(input["compaction"]["messages"], done["summarizedMessageCount"]);
    assert!(!input.to_string().contains("nobody needs"), "{input}");
    let request = &hooked.fake.summary_requests()[0].body;
    let prompt = array(&request["messages"]).last().unwrap()["content"].as_str().unwrap();
    assert!(prompt.contains("keep the names\nName every test."), "{prompt}");
    let summary = done["checkpoints"][0]["summary"].as_str().unwrap();
    assert!(summary.ends_with("- release 2.4 ships on 2026-03-01"), "{summary}");
    assert_eq!(hooked.entries().len(), 1);
    assert_eq!(hooked.fake.summary_requests().len(), 1, "an entry costs no second summary");
}

#[test]
fn hook_that_hangs_before_a_compaction_does_not_stop_it() {
    let mut hooked = Hooked::new(&format!("{IMPATIENT}compression:\n  enabled: false\n"));
    hooked.own("before-compaction", "sleep 1000");
    compacted(&mut hooked);
    assert!(hooked.event("hook-failed")["error"].as_str().unwrap().contains("hooks.timeout"));
}

#[test]
fn compaction_waits_for_all_hooks_no_longer_than_for_one() {
    let mut hooked = Hooked::new(&format!("{IMPATIENT}compression:\n  enabled: false\n"));
    // One more than run at once.
    for n in 1..=9 {
        hooked.own(&format!("before-compaction.d/{n}"), "sleep 1000");
    }
    compacted(&mut hooked);
    let failed: Vec<Value> = (1..=9).map(|_| hooked.event("hook-failed")).collect();
    let is_late = |data: &&Value| data["error"].as_str().unwrap().contains("it did not run");
    assert_eq!(failed.iter().filter(is_late).count(), 1, "{failed:?}");
}

#[test]
fn session_that_is_taken_back_to_its_beginning_starts_again() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("session-start", BRANCH);
    hooked.chat.turn("hello");
    assert_eq!(hooked.chat.ok("session.undo", json!({}))["leaf"], Value::Null);
    until("the hook has set its entry again", || hooked.entries().len() == 1);
    hooked.chat.turn("good morning");
    assert_eq!(hooked.entries().len(), 1);
}

#[test]
fn error_that_quotes_the_output_of_a_hook_is_short() {
    let mut hooked = Hooked::new(PATIENT);
    let field = "head -c 50000 /dev/zero | tr '\\0' x";
    hooked.own("session-start", &format!("printf '{{\"'; {field}; printf '\":1}}'"));
    hooked.chat.turn("hello");
    let failed = hooked.event("hook-failed");
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("not the JSON of a hook") && error.len() <= 4096, "{error}");
}

#[test]
fn changed_files_of_the_project_are_one_occasion() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("files-changed", "cat >> $OUT/changes");
    hooked.chat.turn("hello");
    until("the files are followed", || hooked.is_followed());
    for name in ["a.rs", "b.rs"] {
        std::fs::write(Path::new(&hooked.project).join(name), "fn main() {}\n").unwrap();
    }
    let inputs = until_some("both files are reported", || {
        let text = hooked.written("changes");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let inputs: Vec<Value> = lines.collect();
        let mut paths = inputs.iter().flat_map(|input| array(&input["paths"]));
        paths.any(|path| path == "b.rs").then_some(inputs)
    });
    assert_eq!(inputs[0]["occasion"], "files-changed");
    assert!(inputs.len() <= 2, "{inputs:?}");
}

#[test]
fn files_are_followed_until_the_session_is_closed_or_deleted() {
    let mut hooked = Hooked::new(PATIENT);
    hooked.own("files-changed", "true");
    for end in ["session.close", "session.delete"] {
        hooked.chat.turn("hello");
        until("the files are followed", || hooked.is_followed());
        hooked.chat.ok(end, json!({}));
        until("the files are not followed any more", || !hooked.is_followed());
    }
}

#[test]
fn test_command_shows_input_output_and_failures() {
    let mut hooked = Hooked::new(PATIENT);
    let id = hooked.chat.id.clone();
    let run = |hooked: &Hooked| {
        hooked.chat.sandbox.ctl(["hooks", "test", "session-start", "--session", &id])
    };
    assert!(run(&hooked).fails(3).contains("there is no hook for session-start"));
    hooked.own("session-start", BRANCH);
    let printed = run(&hooked).ok();
    assert!(printed.contains("got:      {\"occasion\":\"session-start\""), "{printed}");
    assert!(printed.contains("returned: {\"context\":[{\"name\":\"branch\""), "{printed}");
    assert_eq!(hooked.entries().len(), 0, "nothing changed");
    hooked.own("session-start", "echo no git >&2; exit 1");
    let failed = run(&hooked);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stdout.contains("problem: it ended with exit status: 1"), "{failed:?}");
    assert!(failed.stdout.contains("stderr:   no git"), "{failed:?}");
    let params = hooked.chat.params(json!({ "occasion": "session-start" }));
    let result = hooked.chat.wire.ok("hook.test", params);
    assert_eq!(array(&result["data"]).len(), 1, "{result}");
}

#[test]
fn disabled_hooks_do_not_run() {
    let mut hooked = Hooked::new("hooks:\n  enabled: false\n");
    hooked.own("session-start", BRANCH);
    hooked.chat.turn("hello");
    assert_eq!(hooked.entries().len(), 0);
    let listed = hooked.chat.sandbox.ctl(["hooks", "list"]).ok();
    assert!(listed.contains("hooks.enabled is false"), "{listed}");
}

/// Starts a daemon that finds a script in place of `systemd-run`, in a directory of the sandbox.
fn with_systemd_run(sandbox: &Sandbox, script: &str) -> (Hooked, PathBuf) {
    let bin = PathBuf::from(sandbox.project_dir("bin"));
    let path = bin.join("systemd-run");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let config = format!("{PATIENT}  runBy: systemd\n");
    (Hooked::with_variables(&config, &[("PATH", &path)]), bin)
}

#[test]
fn systemd_that_runs_no_hook_is_a_failure_with_a_way_out() {
    let sandbox = Sandbox::new();
    let script = "echo 'Failed to connect to bus' >&2; exit 1";
    let (mut hooked, _) = with_systemd_run(&sandbox, script);
    hooked.own("session-start", BRANCH);
    hooked.chat.turn("hello");
    assert_eq!(
        hooked.event("hook-failed")["error"],
        "systemd-run did not run the hook: Failed to connect to bus; `hooks.runBy: daemon` starts hooks without systemd"
    );
}

/// The calls of `systemd-run` are recorded and carried out by a script; `real_systemd_runs_a_hook` uses systemd itself.
#[test]
fn systemd_is_asked_to_run_hooks_without_the_restrictions_of_the_service() {
    let sandbox = Sandbox::new();
    let script = "echo \"$@\" >> \"${0%/*}/log\"; while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"";
    let (mut hooked, bin) = with_systemd_run(&sandbox, script);
    hooked.own("session-start", BRANCH);
    hooked.chat.turn("hello");
    assert_eq!(hooked.entries().len(), 1);
    let log = std::fs::read_to_string(bin.join("log")).unwrap();
    assert!(log.starts_with("--user --pipe --wait --collect --quiet "), "{log}");
    assert!(
        log.contains(" --property=RuntimeMaxSec=66 -- ") && log.ends_with("/ollmd --run-hook\n"),
        "{log}"
    );
    let listed = hooked.chat.sandbox.ctl(["hooks", "list"]).ok();
    assert!(listed.contains("systemd starts them"), "{listed}");
}

/// Uses the user instance of systemd. Does nothing unless `OLLM_TEST_SYSTEMD` is set.
#[test]
fn real_systemd_runs_a_hook() {
    let variable = |name: &str| std::env::var(name).ok();
    if variable("OLLM_TEST_SYSTEMD").is_none() {
        return;
    }
    let runtime = variable("XDG_RUNTIME_DIR").unwrap();
    let variables = [("XDG_RUNTIME_DIR", &*runtime)];
    let mut hooked = Hooked::with_variables(&format!("{PATIENT}  runBy: systemd\n"), &variables);
    hooked.own("session-start", &format!("cat /proc/self/cgroup > $OUT/group; {BRANCH}"));
    hooked.chat.turn("hello");
    assert_eq!(hooked.entries().len(), 1);
    assert!(hooked.written("group").contains("/run-"), "a unit of its own");
}
