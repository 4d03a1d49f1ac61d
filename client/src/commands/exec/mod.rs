//! `ollmctl exec`: runs a command without secrets in its environment, and records it as a tool call.
//!
//! **Invariants**: nothing runs before the daemon has judged the environment, and no tracked command before its start is
//! recorded; from then on the exit code is the command's own, whether or not recording succeeds, unless a signal ends the
//! reading of its files (128 plus its number). A start without a result shows that nobody knows what the command wrote.

mod capture;
mod process;
mod record;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ollm_protocol::content::Variables;
use ollm_protocol::method::{EnvSanitize, SessionGet};
use ollm_protocol::methods::env::{EnvSanitizeParams, EnvSanitizeResult};
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};
use ollm_protocol::sanitize;
use serde_json::{Value, json};

use crate::address;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::project::{self, RecordTarget};
use crate::render::units::counted;
use crate::tracked_dir::{TrackedDir, TrackedWrites};

pub(super) use record::shell_quoted;

use process::{FinishedProcess, StdoutTarget};
use record::{CallStart, RecordedCall, record, record_start};

/// The exit code of a command that was stopped at its time limit; `timeout` uses the same.
const TIMED_OUT: i32 = 124;
/// The exit code of a command that cannot be run; shells use the same.
const CANNOT_RUN: i32 = 126;
/// The exit code of a command that does not exist; shells use the same.
const NOT_FOUND: i32 = 127;

/// Run a command without secrets in its environment, and record it with its output as a tool call.
#[derive(Debug, Args)]
#[command(after_help = "\
The command runs in the current directory and reads stdin itself. Its output passes unchanged; a copy of limited \
length, without escape sequences, is recorded: with --session in that session, else in the project's current one. \
Nothing runs if the daemon cannot be asked which variables may pass (ollmctl call env.rules).

--track records which files below the current directory the command writes, so that `ollmctl undo --files` can put \
them back. It reads the directory before and after the command, and what anybody else writes there meanwhile counts as \
written by the command. Limits: 20,000 files; contents of files up to 1 MiB, 64 MiB in all before and, as JSON, 10 MiB in \
all of changed files; a larger file is recorded and cannot be put back. Links, and directories named .git, node_modules, \
target, dist, build, .venv and __pycache__, are not read. The start is recorded before the command runs: if its result \
never is, `undo --files` says so and puts nothing back behind it.

--timeout also limits the time that the command may run. With --json its stdout goes to stderr, and stdout gets one \
JSON value at the end.

The exit code is that of the command, or 128 plus the number of the signal that ended it, 124 after a timeout, 127 \
if the command does not exist, 126 if it cannot be run.

Examples:
  ollmctl exec -- cargo test
  ollmctl exec --session last -- sh -c 'git log | head -3'
  ollmctl exec --timeout 60 --json -- ./slow.sh
  ollmctl exec --track -- ./generate.sh")]
pub(crate) struct ExecArgs {
    /// The session to record in: an id, a unique end or beginning of one, or `last` [default: the current session of this
    /// directory's project, else a new one].
    #[arg(long, value_name = "SESSION", add = completion::sessions())]
    session: Option<String>,
    /// The name of the tool in the record.
    #[arg(long, value_name = "NAME", default_value = "shell", value_parser = NonEmptyStringValueParser::new())]
    tool_name: String,
    /// Record the files below the current directory that the command writes.
    #[arg(long)]
    track: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A variable of this process. Neither name nor value needs to be UTF-8.
pub(crate) type Variable = (OsString, OsString);

pub(super) fn run(args: &ExecArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let target = record_target(args, ctx)?;
    let variables = address::variables();
    let params = EnvSanitizeParams { variables: to_text(&variables) };
    let judged = ctx.call::<EnvSanitize>(&params)?.value;
    for warning in &judged.warnings {
        ctx.terminal.eprintln(&format!("warning: {}", sanitize::one_line(warning)));
    }
    let tracked = if args.track { Some(tracked_dir(&target, ctx)?) } else { None };
    let call = CallStart::new(&args.tool_name, &args.command);
    let target = if tracked.is_some() { record_start(&call, target, ctx)? } else { target };
    // The command may run for hours; the recording call gets a new connection.
    ctx.disconnect();
    let tool_run = ToolRun::start(args, call, allowed(variables, &judged), ctx);
    // The command has ended, so a signal is meant for this program: a large directory can take long. A system that refuses
    // the thread for that costs no record.
    if tracked.is_some() {
        process::end_at_signals().ok();
    }
    let writes = tracked.and_then(|tracked| written(tracked, ctx));
    let recorded = record(target, &tool_run, writes, ctx);
    report(&tool_run, &judged, &recorded, ctx)?;
    match u8::try_from(tool_run.code) {
        Ok(0) => Ok(()),
        Ok(code) => Err(CommandError::CommandExit { code }),
        Err(_) => Err(CommandError::CommandExit { code: u8::MAX }),
    }
}

/// Returns the variables as the daemon receives them. Names and values that are not UTF-8 are judged by the nearest
/// text, whose replacement characters count as separators.
pub(crate) fn to_text(variables: &[Variable]) -> Variables {
    let mut texts = Variables::default();
    for (name, value) in variables {
        // Two names may become the same text; both values are judged then.
        let text = texts.0.entry(name.to_string_lossy().into_owned()).or_default();
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&value.to_string_lossy());
    }
    texts
}

/// Returns the variables that may pass, byte for byte.
pub(crate) fn allowed(variables: Vec<Variable>, judged: &EnvSanitizeResult) -> Vec<Variable> {
    let may_pass = |name: &OsStr| judged.variables.0.contains_key(&*name.to_string_lossy());
    variables.into_iter().filter(|(name, _)| may_pass(name)).collect()
}

fn record_target(args: &ExecArgs, ctx: &mut CommandContext<'_>) -> CommandResult<RecordTarget> {
    if let Some(session) = &args.session {
        let session_id = ctx.session(session)?;
        // A whole id has not been looked up, and a missing session must be reported before the command runs.
        let branch = BranchFilter::All;
        let params = SessionGetParams { session_id, from: None, limit: Some(1), branch };
        ctx.call::<SessionGet>(&params)?;
        return Ok(RecordTarget::Session(session_id));
    }
    let project_path = project::of_current_directory("exec")?;
    RecordTarget::in_project(project_path, ctx)
}

/// Reads the current directory before the command.
///
/// **Errors**: it cannot be tracked, so nothing runs.
fn tracked_dir(target: &RecordTarget, ctx: &mut CommandContext<'_>) -> CommandResult<TrackedDir> {
    let refuse = |problem: String| {
        let problem = format!("--track does not work here: {problem}");
        CommandError::usage(problem, "ollmctl exec -- CMD  # without --track")
    };
    let project = match target {
        RecordTarget::NewSession { project_path } => project_path.clone(),
        RecordTarget::Session(session_id) => {
            let (session_id, branch) = (*session_id, BranchFilter::All);
            let params = SessionGetParams { session_id, from: None, limit: Some(1), branch };
            let session = ctx.call::<SessionGet>(&params)?.value.session;
            let project = session.project_path;
            project.ok_or_else(|| refuse("the session has no project".to_owned()))?
        }
    };
    let dir = project::of_current_directory("exec")?;
    TrackedDir::read(Path::new(&dir), &project).map_err(refuse)
}

/// Returns the files that the command wrote, and reports those that cannot be put back.
fn written(tracked: TrackedDir, ctx: &CommandContext<'_>) -> Option<TrackedWrites> {
    let writes = match tracked.writes() {
        Ok(writes) => writes,
        Err(problem) => {
            let problem = sanitize::one_line(&problem);
            let note =
                format!("warning: the files that the command wrote are not recorded: {problem}");
            ctx.terminal.eprintln(&note);
            return None;
        }
    };
    let n_lost = writes.omitted + writes.n_unknown() as u64;
    if n_lost > 0 {
        let files = counted(n_lost, "file");
        ctx.terminal.eprintln(&format!("note: {files} that the command wrote cannot be put back"));
    }
    Some(writes)
}

/// A command that has ended.
struct ToolRun {
    call: CallStart,
    code: i32,
    /// `None` if the command could not be started.
    process: Option<FinishedProcess>,
    /// Why the command failed, beyond its exit code.
    error: Option<String>,
}

impl ToolRun {
    /// Runs a command to its end.
    fn start(
        args: &ExecArgs,
        call: CallStart,
        variables: Vec<Variable>,
        ctx: &CommandContext<'_>,
    ) -> Self {
        let mut tool_run = Self { call, code: 0, process: None, error: None };
        let [program, arguments @ ..] = args.command.as_slice() else { return tool_run };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(variables);
        let target = if ctx.json() { StdoutTarget::Stderr } else { StdoutTarget::Stdout };
        let limit = ctx.timeout();
        match process::run(&mut command, target, limit) {
            Ok(process) => {
                tool_run.code = if process.timed_out { TIMED_OUT } else { process.code() };
                tool_run.error = end_reason(&process, limit);
                tool_run.process = Some(process);
            }
            Err(error) => {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                tool_run.code = if is_missing { NOT_FOUND } else { CANNOT_RUN };
                let program = sanitize::one_line(&program.to_string_lossy());
                tool_run.error = Some(format!("cannot run {program}: {error}"));
            }
        }
        tool_run
    }

    fn duration_ms(&self) -> u64 {
        let duration = self.process.as_ref().map_or(Duration::ZERO, |process| process.duration);
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the output for a model: stdout, then stderr after a line `[stderr]`.
    fn output(&self) -> String {
        let Some(process) = &self.process else { return String::new() };
        let (mut output, errors) = (process.stdout.text(), process.stderr.text());
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

/// Returns the reason for the end of a process without an exit code of its own.
fn end_reason(process: &FinishedProcess, limit: Option<Duration>) -> Option<String> {
    use std::os::unix::process::ExitStatusExt as _;
    if process.timed_out {
        let seconds = limit.unwrap_or_default().as_secs_f64();
        return Some(format!("stopped, because it took longer than {seconds} s"));
    }
    process.status.signal().map(|signal| format!("ended by signal {signal}"))
}

/// Reports problems on stderr, and prints the whole run with `--json`.
fn report(
    tool_run: &ToolRun,
    judged: &EnvSanitizeResult,
    recorded: &CommandResult<RecordedCall>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    if let (None, Some(error)) = (&tool_run.process, &tool_run.error) {
        ctx.terminal.eprintln(&format!("ollmctl: {}", sanitize::one_line(error)));
    }
    let removed: BTreeSet<String> =
        judged.removed.iter().map(|removed| sanitize::one_line(&removed.name)).collect();
    if tool_run.code != 0 && !removed.is_empty() && ctx.terminal.can_ask() {
        let names = removed.into_iter().collect::<Vec<_>>().join(", ");
        ctx.terminal.eprintln(&format!("note: the command did not get these variables: {names}"));
    }
    match recorded {
        Ok(RecordedCall { session_id, result }) => {
            if let Some(found) = &result.r#loop {
                let found = sanitize::one_line(&found.to_string());
                let hint = format!("ollmctl loop reset {session_id}");
                ctx.terminal.eprintln(&format!("note: {found}; to continue: {hint}"));
            }
        }
        Err(error) => {
            let error = error.to_text();
            ctx.terminal
                .eprintln(&format!("warning: the command ran but is not recorded\n{error}"));
        }
    }
    if ctx.json() {
        ctx.print_json(&to_json(tool_run, judged, recorded))?;
    }
    Ok(())
}

fn to_json(
    tool_run: &ToolRun,
    judged: &EnvSanitizeResult,
    recorded: &CommandResult<RecordedCall>,
) -> Value {
    let mut value = json!({
        "recorded": recorded.is_ok(),
        "exitCode": tool_run.code,
        "durationMs": tool_run.duration_ms(),
        "output": tool_run.output(),
        "removed": judged.removed,
    });
    if let Some(process) = &tool_run.process {
        value["stdoutBytes"] = process.stdout.total().into();
        value["stderrBytes"] = process.stderr.total().into();
        value["cut"] = (process.stdout.is_cut() || process.stderr.is_cut()).into();
    }
    if let Some(error) = &tool_run.error {
        value["error"] = error.as_str().into();
    }
    match recorded {
        Ok(RecordedCall { session_id, result }) => {
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn variables_that_are_not_utf8_are_judged_and_pass_unchanged() {
        let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let variables = vec![
            (raw(b"A"), raw(b"\xff\xfe")),
            (raw(b"B\xffC"), raw(b"one")),
            (raw(b"B\xfeC"), raw(b"two")),
            (raw(b"D"), raw(b"removed")),
        ];
        let mut texts = to_text(&variables);
        assert_eq!(texts.0["A"], "\u{fffd}\u{fffd}");
        assert_eq!(texts.0["B\u{fffd}C"], "one\ntwo");
        texts.0.remove("D");
        let judged = EnvSanitizeResult { variables: texts, removed: vec![], warnings: vec![] };
        assert_eq!(allowed(variables.clone(), &judged), variables[..3]);
    }
}
