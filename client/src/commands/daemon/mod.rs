//! `ollmctl daemon`: starts, stops, shows or becomes the daemon. `ollmctl config`: the configuration, which the daemon's
//! program reads, shows and checks. `ollmctl socket`: the path of the socket.

pub(super) mod replace;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};
use ollm_protocol::method::DaemonStatus;
use ollm_protocol::methods::daemon::{DaemonShutdownParams, DaemonStatusResult, NoParams};
use ollm_protocol::{Method as _, sanitize};
use serde_json::{Value, json};

use self::replace::StopOutcome;
use super::models;
use crate::command_context::{CallReply, CommandContext};
use crate::command_error::{CommandError, CommandResult, exit_of_daemon};
use crate::connection::{BlockingClient, Connector, decode, means_not_running};
use crate::error::ClientError;
use crate::render::units::{ago, bytes, counted, grouped};
use crate::render::wrap::wrap;
use crate::render::{RenderOptions, table, warning_line};

/// Start, stop and inspect the daemon.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum DaemonCommand {
    /// Start the daemon, even if OLLM_NO_SPAWN is set; succeeds if it runs already.
    #[command(after_help = "\
If a unit of systemd or an agent of launchd is installed for the default home, the service manager starts the daemon.")]
    Start,
    /// Shut the daemon down and wait until it has ended; an answer that is being written is kept as far as it is.
    Stop,
    /// Stop the daemon and start it again, for example after an update, once running answers are written.
    #[command(after_help = "\
Checks the configuration first, and then waits for running answers and compactions, for at most ten minutes or --timeout. \
Other clients wait for the new daemon; `ollmctl events` continues with `resync`. A backup and a check of the store \
(`ollmctl doctor --store`) are not waited for: they end with an error, and can be run again.

Examples:
  ollmctl daemon restart
  ollmctl daemon restart --now")]
    Restart {
        /// End running answers; what they have so far is kept.
        #[arg(long)]
        now: bool,
    },
    /// Show the state of the daemon; does not start it.
    Status,
    /// Run the daemon in the foreground, with its log on the terminal.
    #[command(after_help = "\
Examples:
  ollmctl daemon run
  ollmctl daemon run -- --log-level debug")]
    Run {
        /// Further flags of ollmd.
        #[arg(last = true, value_name = "FLAGS")]
        flags: Vec<OsString>,
    },
}

/// Show and check the daemon's configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
#[command(defer = true)]
pub(crate) enum ConfigCommand {
    /// Print the settings in force and the source of each.
    #[command(after_help = "\
The source of a value follows it: a line of the file, a variable, `default`, or how it is computed. The \
output can be used as a configuration file.")]
    Show,
    /// Print every key with its default and what it sets.
    #[command(after_help = "\
Examples:
  ollmctl config list
  ollmctl config list --json")]
    List,
    /// Check the configuration; report the file, line and key of each mistake.
    Check,
    /// Print the path of the configuration file.
    Path,
}

/// Print the path of the daemon's socket; starts the daemon if it does not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl socket
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session.list\"}' | nc -N -U \"$(ollmctl socket)\"")]
pub(crate) struct SocketArgs {}

pub(super) fn run(command: DaemonCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        DaemonCommand::Start => {
            ctx.allow_spawn("daemon start")?;
            let was_running = !ctx.client()?.started_daemon();
            report_start(was_running, ctx)
        }
        DaemonCommand::Stop => {
            let stopped = replace::stop(ctx.connector(), DaemonShutdownParams::default())?;
            ctx.print_value(&stopped, render_stop)
        }
        DaemonCommand::Restart { now } => {
            ctx.allow_spawn("daemon restart")?;
            check_config(ctx.connector())?;
            replace::stop_and(ctx, "daemon restart", now, true, |ctx, connector| {
                Ok(ctx.connect_with(connector)?)
            })?;
            // A service manager may start the new daemon before this client does.
            report_start(false, ctx)
        }
        DaemonCommand::Status => status(ctx),
        DaemonCommand::Run { flags } => become_daemon(&flags, ctx),
    }
}

pub(super) fn config(command: ConfigCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        ConfigCommand::Show => run_program("--show-config", ctx),
        ConfigCommand::List => list_config(ctx),
        ConfigCommand::Check => run_program("--check-config", ctx),
        ConfigCommand::Path => {
            let path = ctx.environment.config.clone();
            let path = path.unwrap_or_else(|| ctx.connector().address().home().join("config.yaml"));
            let value = json!({ "path": path.to_string_lossy(), "exists": path.exists() });
            print_path(&path, &value, ctx)
        }
    }
}

pub(super) fn socket(ctx: &mut CommandContext<'_>) -> CommandResult {
    let socket = ctx.client()?.socket().to_owned();
    print_path(&socket, &json!({ "socket": socket.to_string_lossy() }), ctx)
}

/// Prints a path byte for byte, because a path need not be UTF-8; with `--json` prints `value`.
fn print_path(path: &Path, value: &Value, ctx: &mut CommandContext<'_>) -> CommandResult {
    if ctx.json() {
        return ctx.print_json(value);
    }
    Ok(ctx.terminal.print_raw([path.as_os_str().as_bytes(), b"\n"].concat())?)
}

/// Runs the daemon's program with a flag that makes it print and exit.
fn run_program(flag: &str, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut command = ctx.connector().daemon_command()?;
    command.arg(flag);
    if ctx.json() {
        command.arg("--json");
    }
    let status = command.status().map_err(|error| cannot_run(&command, error))?;
    if status.success() { Ok(()) } else { Err(CommandError::Program { status }) }
}

/// Lists the keys of the configuration, on a terminal with lines that end between words.
fn list_config(ctx: &mut CommandContext<'_>) -> CommandResult {
    let Some(width) = ctx.terminal.out_columns().filter(|_| !ctx.json()) else {
        return run_program("--list-config", ctx);
    };
    let mut command = ctx.connector().daemon_command()?;
    command.arg("--list-config").stderr(Stdio::inherit());
    let output = command.output().map_err(|error| cannot_run(&command, error))?;
    if !output.status.success() {
        return Err(CommandError::Program { status: output.status });
    }
    let text = sanitize::text(&String::from_utf8_lossy(&output.stdout));
    ctx.print_text(&wrap(&text, Some(width), 2))
}

fn cannot_run(command: &Command, source: io::Error) -> ClientError {
    ClientError::Start { action: "running", path: command.get_program().into(), source }
}

/// Lets the daemon's program check its configuration.
pub(super) fn check_config(connector: &Connector) -> CommandResult {
    let mut command = connector.daemon_command()?;
    command.arg("--check-config").stdin(Stdio::null());
    let output = command.output().map_err(|error| cannot_run(&command, error))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = sanitize::text(String::from_utf8_lossy(&output.stderr).trim());
    let lines = stderr.lines().map(|line| line.trim_start_matches("error: "));
    let mut reason = lines.collect::<Vec<_>>().join("\n");
    if reason.is_empty() {
        reason = format!("ollmd ended with {}", output.status);
    }
    Err(CommandError::BadConfig { reason, exit: exit_of_daemon(output.status) })
}

fn report_start(was_running: bool, ctx: &mut CommandContext<'_>) -> CommandResult {
    ctx.show::<DaemonStatus>(&NoParams {}, |status, _| {
        format!(
            "ollmd {} {} (process {}) at {}\n",
            sanitize::one_line(&status.version),
            if was_running { "is running already" } else { "started" },
            status.pid,
            sanitize::one_line(&status.socket.to_string_lossy()),
        )
    })
}

/// Shows the state of a running daemon.
fn status(ctx: &mut CommandContext<'_>) -> CommandResult {
    let connector = ctx.connector().clone().without_spawn();
    let Some(mut client) = connect_if_running(&connector)? else {
        ctx.print_value(&json!({ "running": false }), |_, _| "ollmd is not running\n".to_owned())?;
        return Err(CommandError::NotRunning);
    };
    let raw = client.call_raw(DaemonStatus::NAME, &NoParams {})?;
    let value = decode(DaemonStatus::NAME, &raw)?;
    ctx.print(&CallReply { raw, value }, render_status)
}

/// Connects with a connector that starts nothing; `None` if no daemon runs. Does not connect to the socket of a service manager
/// then, because that would start the daemon.
pub(crate) fn connect_if_running(
    connector: &Connector,
) -> Result<Option<BlockingClient>, ClientError> {
    if !connector.may_be_running() {
        // The locks in the home of another user cannot be examined.
        connector.address().check_owner()?;
        return Ok(None);
    }
    match BlockingClient::connect(connector) {
        Ok(client) => Ok(Some(client)),
        Err(error) if means_not_running(connector.address(), &error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn render_stop(outcome: &StopOutcome, _: &RenderOptions) -> String {
    match outcome {
        StopOutcome { stopped: false, .. } => "ollmd is not running\n".to_owned(),
        StopOutcome { pid: Some(pid), .. } => format!("ollmd stopped (process {pid})\n"),
        StopOutcome { pid: None, .. } => "ollmd stopped\n".to_owned(),
    }
}

/// Replaces this process with the daemon.
fn become_daemon(flags: &[OsString], ctx: &mut CommandContext<'_>) -> CommandResult {
    ctx.terminal.flush()?;
    let mut command = ctx.connector().daemon_command()?;
    command.args(flags);
    let error = command.exec();
    Err(cannot_run(&command, error).into())
}

fn render_status(status: &DaemonStatusResult, options: &RenderOptions) -> String {
    let store = &status.store;
    let catalog = &status.catalog;
    let behind = match catalog.behind {
        0 => String::new(),
        behind => format!(", {} not indexed yet", counted(behind, "session")),
    };
    let unusable = match catalog.unusable {
        0 => String::new(),
        unusable => format!(", {} with an unusable log", counted(unusable, "session")),
    };
    let (sessions, open) = (grouped(store.sessions), grouped(store.open_sessions));
    let (records, syncs) = (grouped(store.records_written), counted(store.syncs, "sync"));
    let connections = counted(status.connections, "connection");
    let subscriptions = counted(status.subscriptions, "subscription");
    let version = sanitize::one_line(&status.version);
    let state = sanitize::one_line(&catalog.state);
    let mut rows = vec![
        ("version", format!("{version} (protocol {})", status.protocol)),
        ("process", format!("{}, started {}", status.pid, ago(status.started_at, options.now))),
        ("home", sanitize::one_line(&status.home.to_string_lossy())),
        ("socket", sanitize::one_line(&status.socket.to_string_lossy())),
        ("sessions", format!("{sessions} on disk, {open} in memory")),
        ("records", format!("{records} written in {syncs} since the start")),
        ("catalog", format!("{state}, {}{behind}{unusable}", bytes(catalog.size_bytes))),
        ("models", models::server_state(&status.model_server)),
        ("clients", format!("{connections}, {subscriptions}")),
    ];
    if let Some(memory) = status.memory_bytes {
        rows.push(("memory", bytes(memory)));
    }
    if let Some(failed) = &store.last_failed_write {
        // The error names the file.
        let (ago, error) = (ago(failed.at, options.now), sanitize::one_line(&failed.error));
        rows.push(("failed", format!("{ago}: {error}")));
    }
    let mut text = table::fields(&rows);
    for setting in &status.restart_needed {
        let setting = sanitize::one_line(setting);
        text.push_str(&format!("changed, takes effect after a restart: {setting}\n"));
    }
    text.extend(status.warnings.iter().map(|warning| warning_line(warning)));
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::sync::mpsc;

    use super::*;
    use crate::address::Environment;
    use crate::error::Exit;
    use crate::testing::{TestHome, plain, render_options, run_at};

    #[test]
    fn status_is_a_table_of_fields() {
        let result: DaemonStatusResult = serde_json::from_value(json!({
            "version": "0.1.0", "pid": 42, "startedAt": "2026-01-27T09:00:00Z",
            "home": "/home/ada/.ollm", "socket": "/run/user/1000/ollm/ab.sock", "protocol": 1,
            "connections": 1, "subscriptions": 0, "memoryBytes": 9437184,
            "store": {"sessions": 1200, "openSessions": 3, "recordsWritten": 50, "syncs": 20,
                "lastFailedWrite": {"at": "2026-01-27T09:58:00Z", "path": "/x", "error": "cannot append to the log /x: no space"}},
            "catalog": {"state": "ready", "behind": 2, "sizeBytes": 2048},
            "modelServer": {"host": "http://127.0.0.1:11434", "reachable": true, "version": "0.33.0"},
            "warnings": ["disk \u{1b}[5mfull"]
        }))
        .unwrap();
        assert_eq!(
            plain(&render_status(&result, &render_options(80))),
            "\
version   0.1.0 (protocol 1)
process   42, started 1 h ago
home      /home/ada/.ollm
socket    /run/user/1000/ollm/ab.sock
sessions  1,200 on disk, 3 in memory
records   50 written in 20 syncs since the start
catalog   ready, 2.0 KiB, 2 sessions not indexed yet
models    http://127.0.0.1:11434, version 0.33.0
clients   1 connection, 0 subscriptions
memory    9.0 MiB
failed    2 min ago: cannot append to the log /x: no space
warning: disk full
"
        );
    }

    #[test]
    fn status_without_daemon_is_a_result_with_its_exit_code() {
        let home = TestHome::new();
        let status = |flags: &[&str]| {
            let (stdout, error) = run_at(&home.socket(), flags, &Environment::default());
            let error = error.unwrap();
            assert_eq!((error.exit(), error.is_already_reported()), (Exit::Unreachable, true));
            stdout
        };
        assert_eq!(status(&["daemon", "status"]), "ollmd is not running\n");
        assert_eq!(status(&["daemon", "status", "--json"]), "{\"running\":false}\n");
    }

    #[test]
    fn restart_with_bad_configuration_stops_nothing() {
        let home = TestHome::new();
        let (sender, calls) = mpsc::channel::<Value>();
        let _server = home.serve(move |request, _| sender.send(request.clone()).unwrap());
        let program = home.path().join("ollmd");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create_new(true).write(true).mode(0o700).open(&program).unwrap();
        file.write_all(b"#!/bin/sh\necho 'config.yaml:3: no such key' >&2\nexit 78\n").unwrap();
        drop(file);
        let environment =
            Environment { daemon: Some(program), no_spawn: true, ..Environment::default() };
        let fails = |line: &[&str]| run_at(&home.socket(), line, &environment).1.unwrap();
        let error = fails(&["daemon", "restart"]);
        assert_eq!(error.exit(), Exit::Config);
        assert!(error.to_string().contains("no such key"), "{error}");
        for command in ["restart", "start"] {
            let error = fails(&["--no-spawn", "daemon", command]);
            assert_eq!(error.exit(), Exit::Usage, "{error}");
        }
        assert_eq!(calls.try_iter().count(), 0);
    }
}
