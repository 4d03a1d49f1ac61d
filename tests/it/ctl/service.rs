//! `ollmctl service`, and the start of the daemon by a service manager.
//!
//! The manager is `systemctl.sh`, which answers as systemd does. `real_manager_runs_the_service` uses systemd itself, if it is
//! asked to.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::n_sessions;
use crate::harness::{Follower, Output, Sandbox, files_under, program, run};

/// A user with a home and a service manager; the daemon of the default home is stopped when dropped.
struct User(Sandbox);

impl User {
    /// Returns a user whose `systemctl` runs a script.
    fn with_systemctl(script: &str) -> Self {
        let user = Self(Sandbox::new());
        let private = PathBuf::from(user.0.project_dir("run/systemd")).join("private");
        std::fs::write(private, "").unwrap();
        user.add_program("systemctl", script);
        user.add_program("journalctl", "[ ! -e \"$HOME/journal\" ] || echo \"$@\"");
        user
    }

    fn add_program(&self, name: &str, script: &str) -> PathBuf {
        let path = PathBuf::from(self.0.project_dir("bin")).join(name);
        let mut options = std::fs::File::options();
        let mut file = options.create_new(true).write(true).mode(0o755).open(&path).unwrap();
        write!(file, "#!/bin/sh\n{script}").unwrap();
        path
    }

    fn new() -> Self {
        Self::with_systemctl(include_str!("systemctl.sh"))
    }

    /// Returns `ollmctl` of a user who sets no variables.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command("ollmctl");
        let path = format!("{}:/usr/bin:/bin", self.0.path("bin").display());
        command.env_remove("OLLM_HOME").env("PATH", path);
        command.env("XDG_RUNTIME_DIR", self.0.path("run")).args(args);
        command
    }

    fn ctl(&self, args: &[&str]) -> Output {
        run(self.command(args), "")
    }

    /// Writes the units for a program, as an earlier installation left them.
    fn write_units(&self, program: &str) {
        let units = PathBuf::from(self.0.project_dir(".config/systemd/user"));
        std::fs::write(units.join("ollmd.service"), format!("[Service]\nExecStart={program}\n"))
            .unwrap();
        std::fs::write(self.0.path("loaded"), "").unwrap();
    }

    /// Returns the arguments of the `systemctl` calls since the last call, a line each.
    fn systemctl_log(&self) -> String {
        let path = self.0.path("systemctl.log");
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        let _absent = std::fs::remove_file(path);
        log
    }

    fn home(&self) -> PathBuf {
        self.0.path(".ollm")
    }

    fn daemon_pid(&self) -> Value {
        self.ctl(&["--no-spawn", "daemon", "status", "--json"]).json()["pid"].clone()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.home().join("daemon.json").exists() {
            let _stopped = self.ctl(&["--no-spawn", "daemon", "stop"]);
        }
    }
}

/// Returns the daemon's program, with links resolved.
fn ollmd() -> PathBuf {
    std::fs::canonicalize(program("ollmd")).unwrap()
}

const SHOW: &str =
    "--user show -p LoadState,ActiveState,UnitFileState,MainPID,NeedDaemonReload ollmd.service\n";

#[test]
fn service_is_installed_started_shown_and_removed() {
    let user = User::new();
    let installed = user.ctl(&["service", "install"]);
    assert!(installed.stderr.contains("loginctl enable-linger"), "{installed:?}");
    assert!(installed.ok().contains(" runs as a service of systemd"));
    let calls = "--user daemon-reload\n--user enable ollmd.service ollmd.socket\n\
                 --user stop ollmd.socket\n--user start ollmd.service\n";
    assert_eq!(user.systemctl_log(), format!("{calls}{SHOW}"));
    let units = user.0.path(".config/systemd/user");
    let service = std::fs::read_to_string(units.join("ollmd.service")).unwrap();
    assert!(service.contains(&format!("\nExecStart={}\n", ollmd().display())), "{service}");
    assert!(!user.home().join("logs/ollmd.stderr").exists(), "the client started no daemon");

    let pid = user.daemon_pid();
    let again = user.ctl(&["service", "install", "--json"]).json();
    assert_eq!((&again["pid"], &again["written"]), (&pid, &json!([])), "nothing is replaced");
    let now = user.ctl(&["service", "install", "--now", "--json"]).json();
    assert_ne!(now["pid"], pid, "an earlier attempt may not have renewed the service");
    let pid = user.daemon_pid();
    let status = user.ctl(&["service", "status", "--json"]).json();
    assert_eq!((&status["running"], &status["state"]["pid"]), (&pid, &pid));
    assert_eq!((&status["state"]["enabled"], &status["findings"]), (&json!(true), &json!([])));
    assert!(user.ctl(&["service", "logs"]).ok().contains("ready"), "the journal is empty");
    std::fs::write(user.0.path("journal"), "").unwrap();
    let journal = user.ctl(&["service", "logs", "-n", "7"]).ok();
    assert_eq!(journal, "--user --unit=ollmd.service --no-pager --quiet --lines=7\n");

    user.ctl(&["record", "hello"]).ok();
    user.ctl(&["daemon", "stop"]).ok();
    assert_eq!(user.ctl(&["service", "status"]).code, Some(6));
    assert!(user.ctl(&["daemon", "start"]).ok().contains(" started (process "));
    let removed = user.ctl(&["service", "uninstall"]).ok();
    assert!(removed.contains("the data stays in "), "{removed}");
    assert_eq!(files_under(&user.0.path(".config")), Vec::<PathBuf>::new());
    assert!(!units.join("default.target.wants").exists() && user.home().join("sessions").exists());
    user.ctl(&["--no-spawn", "sessions", "list"]).fails(6);
    assert_eq!(user.ctl(&["service", "uninstall"]).ok(), "no service is installed\n");
    assert_eq!(user.ctl(&["service", "status"]).code, Some(3));
}

#[test]
fn running_daemon_is_taken_over_and_followers_go_on() {
    let user = User::new();
    user.ctl(&["record", "hello"]).ok();
    let before = user.daemon_pid();
    let follower = Follower::start(user.command(&["events", "--json"]));
    let is_subscribed =
        || user.ctl(&["daemon", "status", "--json"]).json()["subscriptions"] == json!(1);
    crate::harness::until("the follower is subscribed", is_subscribed);
    user.ctl(&["service", "install"]).ok();
    assert_ne!(user.daemon_pid(), before);
    let status = user.ctl(&["service", "status", "--json"]).json();
    assert_eq!(status["state"]["pid"], status["running"]);
    while !follower.line().contains("\"resync\"") {}
    user.ctl(&["record", "again"]).ok();
    while !follower.line().contains("message-recorded") {}
}

#[test]
fn dry_run_prints_the_units_of_the_given_home_and_changes_nothing() {
    let user = User::new();
    let home = user.0.path("my talks");
    let mut command = user.command(&["service", "install", "--dry-run"]);
    command.env("OLLM_HOME", &home);
    let printed = run(command, "").ok();
    let command = format!("ExecStart={} --home \"{}\"\n", ollmd().display(), home.display());
    assert!(printed.contains(&command), "{printed}");
    let socket = format!("\nListenStream={}/run/ollmd.sock\n", home.display());
    assert!(printed.contains(&socket), "{printed}");
    let variables = format!("\nEnvironmentFile=-{}/service.env\n", home.display());
    assert!(printed.contains(&variables), "{printed}");
    assert!(printed.contains("\nsystemctl --user enable ollmd.service ollmd.socket\n"));
    assert_eq!(user.systemctl_log(), "");
    assert!(!user.0.path(".config").exists() && !home.exists());
}

#[test]
fn default_socket_in_the_environment_is_that_of_the_template() {
    let user = User::new();
    let mut command = user.command(&["service", "install", "--dry-run"]);
    command.env("OLLM_SOCKET", user.home().join("run/ollmd.sock"));
    let printed = run(command, "").ok();
    assert!(printed.contains("\nListenStream=%h/.ollm/run/ollmd.sock\n"), "{printed}");
    assert!(printed.contains(&format!("\nExecStart={}\n", ollmd().display())), "{printed}");
}

#[test]
fn renewed_service_keeps_a_socket_that_did_not_change() {
    let user = User::new();
    user.ctl(&["service", "install"]).ok();
    let before = user.daemon_pid();
    let unit = user.0.path(".config/systemd/user/ollmd.service");
    let text = std::fs::read_to_string(&unit).unwrap();
    std::fs::write(&unit, text + "# of an older version\n").unwrap();
    let _first = user.systemctl_log();
    let renewed = user.ctl(&["service", "install", "--json"]).json();
    assert_eq!(renewed["written"].as_array().map(Vec::len), Some(1), "{renewed}");
    assert_ne!(renewed["pid"], before, "{renewed}");
    let calls = "--user daemon-reload\n--user enable ollmd.service ollmd.socket\n\
                 --user start ollmd.service\n";
    assert_eq!(user.systemctl_log(), format!("{calls}{SHOW}"));
}

#[test]
fn missing_manager_has_an_exit_code_and_a_way_out() {
    let sandbox = Sandbox::new();
    let ctl = |args: &[&str]| {
        let mut command = sandbox.command("ollmctl");
        command.env("PATH", sandbox.project_dir("bin")).args(args);
        run(command, "")
    };
    let error = ctl(&["service", "install"]).fails(3);
    assert!(error.contains("try: "), "{error}");
    let error: Value =
        serde_json::from_str(&ctl(&["service", "install", "--json"]).fails(3)).unwrap();
    assert_eq!(error["error"]["kind"], "noServiceManager");
    assert!(ctl(&["service", "install", "--dry-run"]).ok().contains("ExecStart="));
    assert!(!sandbox.path(".config").exists() && !sandbox.home().join("ollmd.lock").exists());
}

#[test]
fn moved_program_is_found_out_and_renewed() {
    let user = User::new();
    user.write_units("/nowhere/ollmd");
    let finding = |text: &str| {
        let doctor = user.ctl(&["doctor", "--json"]).stdout;
        assert!(doctor.contains(text) && doctor.contains("ollmctl service install"), "{doctor}");
        let status = user.ctl(&["service", "status"]);
        assert!(status.stdout.contains(text), "{status:?}");
        assert_eq!(status.code, Some(6));
    };
    finding("the service runs /nowhere/ollmd, and there is no such program");
    let started = user.ctl(&["record", "hello"]);
    assert!(started.stderr.contains("starting ollmd without it"), "{started:?}");
    let other = user.add_program("ollmd", "");
    user.write_units(other.to_str().unwrap());
    finding("and this client belongs to ");
    user.ctl(&["service", "install"]).ok();
    let status = user.ctl(&["service", "status", "--json"]).json();
    assert_eq!(status["findings"], json!([]), "{status}");
}

#[test]
fn what_a_service_misses_is_named_without_its_value() {
    let user = User::new();
    let mut command = user.command(&["service", "install"]);
    command.env("OLLAMA_HOST", "127.0.0.1:8").env("OLLAMA_API_KEY", "sk-secret");
    let output = run(command, "");
    assert!(!format!("{output:?}").contains("sk-secret"), "{output:?}");
    for text in [
        "does not have OLLAMA_HOST of this shell: set ollama.host in ",
        "(umask 077; echo \"OLLAMA_API_KEY=$OLLAMA_API_KEY\" >> ~/.ollm/service.env)",
    ] {
        assert!(output.stderr.contains(text), "{output:?}");
    }
    let _installed = output.ok();
}

#[test]
fn service_of_another_home_and_managed_files_are_not_replaced() {
    let user = User::new();
    user.write_units("/bin/ollmd --home /srv/other");
    for command in ["install", "uninstall"] {
        let error = user.ctl(&["service", command]).fails(2);
        assert!(error.contains("try: ollmctl --home /srv/other service uninstall"), "{error}");
    }
    user.write_units("/bin/ollmd --home \"/srv/my talks\"");
    let error = user.ctl(&["service", "uninstall"]).fails(2);
    assert!(error.contains("try: ollmctl --home '/srv/my talks' service uninstall"), "{error}");
    let unit = user.0.path(".config/systemd/user/ollmd.service");
    let managed = user.0.path("managed");
    std::fs::write(&managed, "[Service]\nExecStart=/bin/ollmd\n").unwrap();
    std::fs::remove_file(&unit).unwrap();
    std::os::unix::fs::symlink(&managed, &unit).unwrap();
    let error = user.ctl(&["service", "install"]).fails(2);
    assert!(error.contains("another program manages it"), "{error}");
}

#[test]
fn installed_service_is_started_by_its_manager() {
    let user = User::new();
    user.write_units(ollmd().to_str().unwrap());
    let started = user.ctl(&["daemon", "start"]);
    assert_eq!(started.stderr, "", "{started:?}");
    assert!(started.ok().contains(" started (process "));
    assert_eq!(user.systemctl_log(), "--user start ollmd.service\n");
    assert!(!user.home().join("logs/ollmd.stderr").exists(), "the client started no daemon");
    user.ctl(&["record", "hello"]).ok();
    assert_eq!(user.systemctl_log(), "", "a running daemon is not started");
    user.ctl(&["daemon", "restart"]).ok();
    assert_eq!(user.systemctl_log(), "--user start ollmd.service\n");
    user.ctl(&["daemon", "stop"]).ok();
    user.ctl(&["--no-spawn", "sessions", "list"]).fails(6);
    assert_eq!(user.systemctl_log(), "", "`--no-spawn` starts no service");
}

#[test]
fn failing_service_manager_is_reported_and_replaced_by_autostart() {
    let user = User::with_systemctl("echo 'Job for ollmd.service failed.' >&2; exit 1");
    user.write_units(ollmd().to_str().unwrap());
    let started = user.ctl(&["daemon", "start"]);
    let reason = "systemctl --user start ollmd.service failed (exit status: 1): Job for ollmd.service failed.";
    assert!(started.stderr.contains(reason), "{started:?}");
    assert!(started.ok().contains(" started (process "));
    user.ctl(&["daemon", "stop"]).ok();
    let quiet = user.ctl(&["--json", "daemon", "start"]);
    assert_eq!(quiet.stderr, "", "with `--json`, stderr is for errors");
    let _status = quiet.json();
}

/// Uses the user instance of systemd, for a home of the test. Does nothing unless `OLLM_TEST_SYSTEMD` is set, because it
/// installs a service of the user who runs the tests.
#[test]
fn real_manager_runs_the_service() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    if variable("OLLM_TEST_SYSTEMD").is_none() {
        return;
    }
    let (runtime, home) = (variable("XDG_RUNTIME_DIR").unwrap(), variable("HOME").unwrap());
    let config = variable("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
    let sandbox = Sandbox::new();
    let ctl = |args: &[&str]| {
        let mut command = sandbox.command("ollmctl");
        // The manager reads the units of its own home.
        command.env("HOME", &home).env("XDG_RUNTIME_DIR", &runtime).env("XDG_CONFIG_HOME", &config);
        command.args(args);
        run(command, "")
    };
    ctl(&["record", "--new", "before"]).ok();
    ctl(&["service", "install"]).ok();
    let status = ctl(&["service", "status", "--json"]).json();
    assert_eq!(status["findings"], json!([]), "{status}");
    ctl(&["daemon", "restart"]).ok();
    ctl(&["record", "--new", "after"]).ok();
    assert_eq!(n_sessions(&sandbox), 2);
    ctl(&["service", "uninstall"]).ok();
    assert!(!config.join("systemd/user/ollmd.service").exists());
    assert_eq!(ctl(&["service", "status"]).code, Some(3));
}
