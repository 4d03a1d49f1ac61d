//! Stopping the daemon, and replacing it by the next one once it writes no answer and compacts nothing for a client.
//!
//! The daemon refuses to stop while it does; this side waits and shows for what. While the daemon is replaced, this client
//! holds the lock of starts, so that other clients wait for the next daemon and do not start one themselves. Other long calls,
//! such as a backup, end with an error.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ollm_protocol::method::{DaemonShutdown, DaemonStatus, SessionList};
use ollm_protocol::methods::daemon::{DaemonShutdownParams, NoParams, RunningWork, WorkKind};
use ollm_protocol::methods::session::SessionListParams;
use ollm_protocol::{ErrorKind, SessionId};
use serde::Serialize;

use super::connect_if_running;
use crate::address::wait_until_unlocked;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{BlockingClient, Connector};
use crate::error::ClientError;
use crate::render::progress::Spinner;
use crate::render::session_table::{short_id, title};
use crate::render::units::counted;

/// The longest wait for a daemon to end; its own limit is ten seconds.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);
/// The longest wait for running answers without `--timeout`. A slow model writes a long answer in this time.
const WORK_LIMIT: Duration = Duration::from_secs(600);
/// The pause between two questions whether the daemon is idle.
const WORK_PAUSE: Duration = Duration::from_millis(200);
/// The pause between two redraws of the progress.
const REDRAW_PAUSE: Duration = Duration::from_millis(50);

/// The outcome of stopping the daemon.
#[derive(Serialize)]
pub(crate) struct StopOutcome {
    /// The daemon was running.
    pub(crate) stopped: bool,
    /// The process id of the daemon, if it replied.
    pub(crate) pid: Option<u32>,
}

/// Asks the daemon to shut down and waits until its home is unlocked.
///
/// **Errors**: with `if_idle`, the error `busy` with the running work.
pub(crate) fn stop(
    connector: &Connector,
    params: DaemonShutdownParams,
) -> CommandResult<StopOutcome> {
    let connector = connector.clone().without_spawn().with_any_protocol();
    let own_home = connector.address().home();
    let Some(mut client) = connect_if_running(&connector)? else {
        return Ok(StopOutcome { stopped: false, pid: None });
    };
    // A socket given by the user may lead to the daemon of another home.
    let home = client.call::<DaemonStatus>(&NoParams {}).map(|status| status.home);
    let home = home.unwrap_or_else(|_| own_home.to_owned());
    let mut reply = client.call::<DaemonShutdown>(&params);
    if matches!(&reply, Err(error) if error.kind() == ErrorKind::InvalidParams.as_str()) {
        // An older daemon has no params, and does not know whether it works for a client.
        reply = client.call::<DaemonShutdown>(&DaemonShutdownParams::default());
    }
    let pid = match reply {
        Ok(result) => Some(result.pid),
        // The daemon is shutting down already.
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::Canceled) => None,
        Err(ClientError::Closed { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    drop(client);
    // A daemon releases the lock last. The socket shows nothing: a service manager keeps it, and connecting to it
    // would start the daemon again.
    if wait_until_unlocked(&home, SHUTDOWN_LIMIT) {
        Ok(StopOutcome { stopped: true, pid })
    } else {
        Err(CommandError::StillRunning { seconds: SHUTDOWN_LIMIT.as_secs() })
    }
}

/// Stops the daemon once it works for no client, or at once if `now` is set, and calls `then` before any other client can
/// start the next one. `command` is the command of the user, for the error.
///
/// **Errors**: the daemon still works for a client at the end of the wait; it was not stopped then.
pub(crate) fn stop_and<T>(
    ctx: &mut CommandContext<'_>,
    command: &'static str,
    now: bool,
    restart: bool,
    then: impl FnOnce(&mut CommandContext<'_>, &Connector) -> CommandResult<T>,
) -> CommandResult<T> {
    let connector = ctx.connector().clone();
    let limit = ctx.timeout().unwrap_or(WORK_LIMIT);
    let deadline = Instant::now() + limit;
    let params = DaemonShutdownParams { if_idle: !now, restart };
    let mut progress = WaitProgress::default();
    loop {
        // With the lock, connecting does not wait for the lock.
        let locked = connector.clone().with_start_lock(connector.hold_starts()?);
        let work = match stop(&locked, params) {
            Err(error) => running_work(&error).ok_or(error)?,
            Ok(_) => {
                drop(progress);
                return then(ctx, &locked);
            }
        };
        // Other clients may start a daemon in place of one that fails now.
        drop(locked);
        if Instant::now() >= deadline {
            let work = progress.describe(&work, ctx);
            return Err(CommandError::StillWorking { work, seconds: limit.as_secs(), command });
        }
        progress.show(&work, ctx);
        progress.wait(deadline.min(Instant::now() + WORK_PAUSE));
    }
}

/// Returns the work because of which the daemon refused to stop.
fn running_work(error: &CommandError) -> Option<Vec<RunningWork>> {
    let failure = error.rpc_failure().filter(|found| found.kind == Some(ErrorKind::Busy))?;
    serde_json::from_value(failure.fields.get("running")?.clone()).ok()
}

/// The display of the wait: a line that moves on a terminal, else a line for each change.
#[derive(Default)]
struct WaitProgress {
    spinner: Option<Spinner>,
    shown: String,
    titles: BTreeMap<SessionId, String>,
}

impl WaitProgress {
    fn show(&mut self, work: &[RunningWork], ctx: &CommandContext<'_>) {
        if ctx.json() || work.is_empty() {
            return;
        }
        let text = format!("waiting (--now ends it) for {}", self.describe(work, ctx));
        if text == self.shown {
            return;
        }
        if !ctx.terminal.err_is_terminal() {
            ctx.terminal.eprintln(&text);
        } else {
            match &mut self.spinner {
                Some(spinner) => spinner.set(text.clone()),
                empty => *empty = Some(Spinner::new(text.clone())),
            }
        }
        self.shown = text;
    }

    /// Waits until a time.
    fn wait(&mut self, until: Instant) {
        while Instant::now() < until {
            if let Some(spinner) = &mut self.spinner {
                spinner.tick();
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(REDRAW_PAUSE));
        }
    }

    /// Returns text such as `1 answer: Lists (qwen3:8b)`, sanitized.
    fn describe(&mut self, work: &[RunningWork], ctx: &CommandContext<'_>) -> String {
        let is_turn = |work: &&RunningWork| work.work == WorkKind::Turn;
        let turns = work.iter().filter(is_turn).count() as u64;
        let others = work.len() as u64 - turns;
        let mut parts = Vec::new();
        for (number, noun) in [(turns, "answer"), (others, "compaction")] {
            if number > 0 {
                parts.push(counted(number, noun));
            }
        }
        let details = work.iter().map(|work| {
            let name = self.title(work.session_id, ctx);
            let model = work.model.as_deref().map(ollm_protocol::sanitize::one_line);
            model.map_or_else(|| name.clone(), |model| format!("{name} ({model})"))
        });
        let details: Vec<String> = details.collect();
        format!("{}: {}", parts.join(" and "), details.join(", "))
    }

    /// Returns the title of a session, or the beginning of its id.
    fn title(&mut self, id: SessionId, ctx: &CommandContext<'_>) -> String {
        let find = || {
            let connector = ctx.connector().clone().without_spawn();
            let mut client = BlockingClient::connect(&connector).ok()?;
            let params = SessionListParams {
                id_prefix: Some(id.to_string()),
                limit: Some(1),
                ..SessionListParams::default()
            };
            let found = client.call::<SessionList>(&params).ok()?.data;
            found
                .first()
                .filter(|session| !session.title.is_empty())
                .map(|session| title(&session.title))
        };
        self.titles
            .entry(id)
            .or_insert_with(|| find().unwrap_or_else(|| short_id(None, id)))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{TestHome, reply, send};

    #[test]
    fn daemon_that_takes_no_params_is_stopped_too() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| {
            if request["params"] == json!({}) {
                reply(stream, request, &json!({ "pid": 42 }));
            } else {
                let data = json!({ "kind": "invalidParams" });
                let error = json!({ "code": -32602, "message": "no such param", "data": data });
                send(stream, &json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }));
            }
        });
        let params = DaemonShutdownParams { if_idle: true, restart: true };
        let outcome = stop(&home.connector(), params).unwrap();
        assert_eq!((outcome.stopped, outcome.pid), (true, Some(42)));
    }
}
