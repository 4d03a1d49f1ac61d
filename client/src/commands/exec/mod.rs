//! `ollmctl exec`: a command with an environment without secrets, recorded as a tool call.
//!
//! Nothing runs before the daemon has judged the environment. Once it has, the command's own exit code is the
//! outcome, whatever becomes of the record.

mod capture;
mod child;
mod environment;

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ollm_protocol::content::{LoopPattern, ToolResult};
use ollm_protocol::method::{EnvSanitize, SessionGet, SessionRecordToolCall, SessionSetCurrent};
use ollm_protocol::methods::env::{EnvSanitizeParams, EnvSanitizeResult};
use ollm_protocol::methods::session::{
    BranchFilter, SessionGetParams, SessionRecordResult, SessionRecordToolCallParams,
    SessionSetCurrentParams, ToolCallInput,
};
use ollm_protocol::sanitize;
use ollm_protocol::{SessionId, Timestamp};
use serde_json::{Value, json};

use super::record::{self, Target};
use super::{CommandError, Cx};
use crate::address;
use crate::cli::ExecArgs;
use crate::error::ClientError;
use crate::render::loops;

use child::{Ran, StdoutTo};

/// The exit code of a command that ran out of time; that of `timeout`.
const TIMED_OUT: i32 = 124;
/// The exit codes of shells for a command that cannot be run, and for one that is not there.
const CANNOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

pub(super) fn run(args: &ExecArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let place = place(args, cx)?;
    let own = address::variables();
    let params = EnvSanitizeParams { variables: environment::asked(&own) };
    let judged = cx.call::<EnvSanitize>(&params)?.value;
    for warning in &judged.warnings {
        cx.terminal.note(&format!("warning: {}", sanitize::one_line(warning)));
    }
    // The command may run for hours; what is recorded after it gets a connection of its own.
    cx.disconnect();
    let outcome = Outcome::of(args, environment::passing(own, &judged), cx);
    let recorded = record(args, place, &outcome, cx);
    tell(&outcome, &judged, &recorded, cx)?;
    match u8::try_from(outcome.code) {
        Ok(0) => Ok(()),
        Ok(code) => Err(CommandError::Ended { code }),
        Err(_) => Err(CommandError::Ended { code: u8::MAX }),
    }
}

/// Where the tool call is recorded: a session that is there, or one that begins with it.
enum Place {
    Session(SessionId),
    New { project_path: String },
}

fn place(args: &ExecArgs, cx: &mut Cx<'_>) -> Result<Place, CommandError> {
    if let Some(session) = &args.session {
        let session_id = cx.session(session)?;
        // A whole id was not looked up, and after the command it would be too late.
        let branch = BranchFilter::All;
        let params = SessionGetParams { session_id, from: None, limit: Some(1), branch };
        cx.call::<SessionGet>(&params)?;
        return Ok(Place::Session(session_id));
    }
    let project_path = record::here("exec")?;
    Ok(match record::current(&project_path, cx)? {
        Some(session_id) => Place::Session(session_id),
        None => Place::New { project_path },
    })
}

/// How the command ended.
struct Outcome {
    /// What identifies this run, also where it is recorded again after a broken connection.
    id: String,
    cwd: String,
    begun: Timestamp,
    code: i32,
    ran: Option<Ran>,
    /// Why it did not do what it was asked, beyond its exit code.
    error: Option<String>,
}

impl Outcome {
    fn of(args: &ExecArgs, variables: Vec<(OsString, OsString)>, cx: &Cx<'_>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cwd = std::env::current_dir().unwrap_or_default().to_string_lossy().into_owned();
        let mut outcome = Self {
            id: format!("exec_{}_{}", std::process::id(), since.as_nanos()),
            cwd,
            begun: Timestamp::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or_default()),
            code: 0,
            ran: None,
            error: None,
        };
        let [program, arguments @ ..] = args.command.as_slice() else { return outcome };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(variables);
        let stdout_to = if cx.json() { StdoutTo::Stderr } else { StdoutTo::Stdout };
        let limit = cx.given_timeout();
        match child::run(&mut command, stdout_to, limit) {
            Ok(ran) => {
                outcome.code = if ran.timed_out { TIMED_OUT } else { ran.code() };
                outcome.error = why(&ran, limit);
                outcome.ran = Some(ran);
            }
            Err(error) => {
                let missing = error.kind() == io::ErrorKind::NotFound;
                outcome.code = if missing { NOT_FOUND } else { CANNOT_RUN };
                let program = sanitize::one_line(&program.to_string_lossy());
                outcome.error = Some(format!("cannot run {program}: {error}"));
            }
        }
        outcome
    }

    fn duration_ms(&self) -> u64 {
        let took = self.ran.as_ref().map_or(Duration::ZERO, |ran| ran.took);
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }

    /// What was printed, for a model: stdout, then stderr behind a line that says so.
    fn output(&self) -> String {
        let Some(ran) = &self.ran else { return String::new() };
        let (mut output, errors) = (ran.stdout.text(), ran.stderr.text());
        if !errors.is_empty() {
            if !output.is_empty() && !output.ends_with('\n') {
                output.push('\n');
            }
            output.push_str("[stderr]\n");
            output.push_str(&errors);
        }
        output
    }
}

/// Why a command that was started has no exit code of its own.
fn why(ran: &Ran, limit: Option<Duration>) -> Option<String> {
    use std::os::unix::process::ExitStatusExt as _;
    if ran.timed_out {
        let seconds = limit.unwrap_or_default().as_secs_f64();
        return Some(format!("stopped, because it took longer than {seconds} s"));
    }
    ran.status.signal().map(|signal| format!("ended by signal {signal}"))
}

/// What became of the record.
struct Recorded {
    session_id: SessionId,
    result: SessionRecordResult,
}

fn record(
    args: &ExecArgs,
    place: Place,
    outcome: &Outcome,
    cx: &mut Cx<'_>,
) -> Result<Recorded, CommandError> {
    let (session_id, make_current_of) = match place {
        Place::Session(session_id) => (session_id, None),
        Place::New { project_path } => {
            let key = Some(outcome.id.clone());
            let Target { session_id, make_current_of } =
                record::begin(project_path, None, key, cx)?;
            (session_id, make_current_of)
        }
    };
    let words: Vec<String> =
        args.command.iter().map(|word| quoted(&sanitize::text(&word.to_string_lossy()))).collect();
    let params = SessionRecordToolCallParams {
        session_id,
        tool_call: ToolCallInput {
            id: outcome.id.clone(),
            name: args.tool_name.clone(),
            args: json!({ "command": words.join(" "), "cwd": sanitize::text(&outcome.cwd) }),
            result: ToolResult {
                llm_content: outcome.output(),
                display_content: None,
                success: Some(outcome.code == 0),
                error: outcome.error.clone(),
                exit_code: Some(outcome.code),
            },
            timestamp: Some(outcome.begun),
            duration_ms: Some(outcome.duration_ms()),
            message_seq: None,
        },
        key: Some(outcome.id.clone()),
    };
    let result = match cx.call::<SessionRecordToolCall>(&params) {
        // The connection broke: whether it was recorded nobody knows, and the key makes trying again right.
        Err(error) if !matches!(error, ClientError::Rpc(_)) => {
            cx.disconnect();
            cx.call::<SessionRecordToolCall>(&params)?.value
        }
        other => other?.value,
    };
    if let Some(project_path) = make_current_of {
        let session_id = Some(session_id);
        cx.call::<SessionSetCurrent>(&SessionSetCurrentParams { project_path, session_id })?;
    }
    Ok(Recorded { session_id, result })
}

/// Says beside the command's own output what a person must know, and everything to a program.
fn tell(
    outcome: &Outcome,
    judged: &EnvSanitizeResult,
    recorded: &Result<Recorded, CommandError>,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let removed = environment::removed(judged);
    if let (None, Some(error)) = (&outcome.ran, &outcome.error) {
        cx.terminal.note(&format!("ollmctl: {}", sanitize::one_line(error)));
    }
    if outcome.code != 0 && !removed.is_empty() && cx.terminal.can_ask() {
        let names =
            removed.iter().map(|name| sanitize::one_line(name)).collect::<Vec<_>>().join(", ");
        cx.terminal.note(&format!("note: these variables were kept from it: {names}"));
    }
    match recorded {
        Ok(Recorded { session_id, result: SessionRecordResult { r#loop: Some(found), .. } }) => {
            cx.terminal.note(&told(found, *session_id));
        }
        Ok(_) => {}
        Err(error) => {
            let told = error.to_text();
            cx.terminal.note(&format!("warning: the command ran and is not recorded\n{told}"));
        }
    }
    if cx.json() {
        cx.print_json(&as_json(outcome, judged, recorded))?;
    }
    Ok(())
}

fn told(found: &LoopPattern, session_id: SessionId) -> String {
    format!("note: {}; to go on: ollmctl loop reset {session_id}", loops::pattern(found))
}

fn as_json(
    outcome: &Outcome,
    judged: &EnvSanitizeResult,
    recorded: &Result<Recorded, CommandError>,
) -> Value {
    let mut value = json!({
        "recorded": recorded.is_ok(),
        "exitCode": outcome.code,
        "durationMs": outcome.duration_ms(),
        "output": outcome.output(),
        "removed": judged.removed,
    });
    if let Some(ran) = &outcome.ran {
        value["stdoutBytes"] = ran.stdout.total().into();
        value["stderrBytes"] = ran.stderr.total().into();
        value["cut"] = (ran.stdout.is_cut() || ran.stderr.is_cut()).into();
    }
    if let Some(error) = &outcome.error {
        value["error"] = error.as_str().into();
    }
    match recorded {
        Ok(Recorded { session_id, result }) => {
            value["sessionId"] = session_id.to_string().into();
            value["seq"] = result.seq.0.into();
            if let Some(found) = &result.r#loop {
                value["loop"] = json!(found);
            }
        }
        Err(error) => value["recordError"] = error.to_value()["error"].clone(),
    }
    value
}

/// A word as a shell would have to be given it.
fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "_-./=:,@%+".contains(sign);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_as_it_would_be_typed() {
        let check = |word: &str, expect: &str| assert_eq!(quoted(word), expect);
        check("ls", "ls");
        check("--color=auto", "--color=auto");
        check("", "''");
        check("two words", "'two words'");
        check("it's", r"'it'\''s'");
        check("$HOME", "'$HOME'");
        check("a;b", "'a;b'");
    }
}
