//! `ollmctl daemon`: start, stop, look at, or become the daemon.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use ollm_protocol::error::ErrorKind;
use ollm_protocol::method::{DaemonShutdown, DaemonStatus, Method as _};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::sanitize;
use serde_json::json;

use super::error::exit_of_daemon;
use super::{CommandError, Cx};
use crate::address::is_locked;
use crate::cli::{DaemonCommand, DaemonRunArgs};
use crate::connection::{BlockingClient, decode, held_unreachable};
use crate::error::{Attempt, ClientError};
use crate::render::daemon;

/// How long a daemon may take to leave: its own limit is ten seconds.
const LEAVE: Duration = Duration::from_secs(15);
/// How long one that gave up its socket may take to be gone; mostly it is a matter of milliseconds.
const LEAVING: Duration = Duration::from_secs(2);
/// How often it is looked for meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn run(command: DaemonCommand, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match command {
        DaemonCommand::Start => {
            cx.allow_spawn("start")?;
            let already = !cx.client()?.started_daemon();
            tell_start(cx, already)
        }
        DaemonCommand::Stop => {
            let stopped = stop(cx)?;
            if cx.json() {
                let (stopped, pid) = match stopped {
                    Stopped::WasNotRunning => (false, None),
                    Stopped::Left { pid } => (true, pid),
                };
                return cx.print_json(&json!({ "stopped": stopped, "pid": pid }));
            }
            cx.print_text(&match stopped {
                Stopped::WasNotRunning => "ollmd is not running\n".to_owned(),
                Stopped::Left { pid: Some(pid) } => format!("ollmd stopped (process {pid})\n"),
                Stopped::Left { pid: None } => "ollmd stopped\n".to_owned(),
            })
        }
        DaemonCommand::Restart => restart(cx),
        DaemonCommand::Status => status(cx),
        DaemonCommand::Run(args) => become_daemon(&args, cx),
    }
}

/// Stops the daemon only when another one can take its place.
fn restart(cx: &mut Cx<'_>) -> Result<(), CommandError> {
    cx.allow_spawn("restart")?;
    check_config(cx)?;
    stop(cx)?;
    // A service manager may be faster than this client; it is a new daemon all the same.
    tell_start(cx, false)
}

/// Lets the daemon's program check its configuration.
fn check_config(cx: &Cx<'_>) -> Result<(), CommandError> {
    let connector = cx.connector();
    let mut command = connector.program().command(connector.address())?;
    let path = PathBuf::from(command.get_program());
    let output = command
        .arg("--check-config")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ClientError::Start { action: "running", path, source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = sanitize::text(String::from_utf8_lossy(&output.stderr).trim());
    let said = said.trim_start_matches("error: ").to_owned();
    let said = if said.is_empty() { format!("ollmd ended with {}", output.status) } else { said };
    Err(CommandError::BadConfig { said, exit: exit_of_daemon(output.status) })
}

fn tell_start(cx: &mut Cx<'_>, already: bool) -> Result<(), CommandError> {
    let reply = cx.call::<DaemonStatus>(&NoParams {})?;
    cx.print(&reply, |status, _| {
        format!(
            "ollmd {} {} (process {}) at {}\n",
            sanitize::one_line(&status.version),
            if already { "is running already" } else { "started" },
            status.pid,
            sanitize::one_line(&status.socket.to_string_lossy()),
        )
    })
}

/// Shows how a running daemon is; asking must not change the answer, so nothing is started.
fn status(cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let connector = cx.connector().clone().without_spawn();
    let mut client = match BlockingClient::connect(&connector) {
        Ok(client) => client,
        Err(ClientError::Unreachable { attempts })
            if attempts.iter().all(Attempt::means_not_running) =>
        {
            if let Some(error) = held_unreachable(connector.address()) {
                return Err(error.into());
            }
            if cx.json() {
                cx.print_json(&json!({ "running": false }))?;
            } else {
                cx.print_text("ollmd is not running\n")?;
            }
            return Err(CommandError::NotRunning);
        }
        Err(error) => return Err(error.into()),
    };
    let raw = client.call_raw(DaemonStatus::NAME, &NoParams {})?;
    let value = decode(DaemonStatus::NAME, &raw)?;
    cx.print(&super::Reply { raw, value }, |status, cx| daemon::status(status, &cx.view()))
}

/// What became of a daemon that was to stop.
enum Stopped {
    /// There was none.
    WasNotRunning,
    /// It left, and its home is free; the process where it said so.
    Left { pid: Option<u32> },
}

/// Asks the daemon to leave and waits until its home is free.
fn stop(cx: &Cx<'_>) -> Result<Stopped, CommandError> {
    let connector = cx.connector().clone().without_spawn().with_any_protocol();
    let mut client = match BlockingClient::connect(&connector) {
        Ok(client) => client,
        Err(ClientError::Unreachable { attempts })
            if attempts.iter().all(Attempt::means_not_running) =>
        {
            // One that is on its way out has given up its socket already.
            let lock = connector.address().home().join("ollmd.lock");
            wait_until_free(&lock, LEAVING);
            return match held_unreachable(connector.address()) {
                Some(error) => Err(error.into()),
                None => Ok(Stopped::WasNotRunning),
            };
        }
        Err(error) => return Err(error.into()),
    };
    // With a socket of one's own choice it may be the daemon of another home.
    let home = client.call::<DaemonStatus>(&NoParams {}).map(|status| status.home);
    let home = home.unwrap_or_else(|_| connector.address().home().to_owned());
    let pid = match client.call::<DaemonShutdown>(&NoParams {}) {
        Ok(result) => Some(result.pid),
        // It is leaving already; waiting is all there is to do.
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::Cancelled) => None,
        Err(ClientError::Closed { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    drop(client);
    // The lock is the last thing that it lets go. Its socket says nothing: that of a service manager stays, and
    // to look whether somebody listens would start the daemon again.
    let lock = home.join("ollmd.lock");
    if wait_until_free(&lock, LEAVE) {
        Ok(Stopped::Left { pid })
    } else {
        Err(CommandError::StillRunning { seconds: LEAVE.as_secs() })
    }
}

/// Waits until no daemon holds a home; false when one still does.
fn wait_until_free(lock: &Path, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while is_locked(lock) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Replaces this process by the daemon.
fn become_daemon(args: &DaemonRunArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    cx.terminal.flush().map_err(CommandError::Output)?;
    let connector = cx.connector();
    let mut command = connector.program().command(connector.address())?;
    command.args(&args.flags);
    let path = PathBuf::from(command.get_program());
    let source = command.exec();
    Err(ClientError::Start { action: "running", path, source }.into())
}
