//! The errors of commands, as text with a hint or as JSON.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ollm_protocol::content::{Session, UnrecordedCall};
use ollm_protocol::{ErrorKind, Seq, sanitize};
use serde_json::{Value, json};

use crate::error::{Attempt, ClientError, Exit, RpcFailure};
use crate::render::session_table::short_session_id;
use crate::render::terminal::OutputError;
use crate::render::{Style, escaped_json};
use crate::service::{NoManager, ServiceError, UnusablePath};

/// The command that shows the ids of all sessions.
pub(crate) const LIST_HINT: &str = "ollmctl sessions list --all";

/// The result of a command, or of a part of it.
pub(crate) type CommandResult<T = ()> = Result<T, CommandError>;

/// A failed command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The command line is wrong.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// The text cannot be a session id.
    #[error("{text:?} is not a session id or a part of one: {reason}")]
    InvalidId { text: String, reason: &'static str },
    /// Several session ids have the text; `candidates` are the first of them.
    #[error("more than one session id ends or begins with {text:?}")]
    AmbiguousId { text: String, candidates: Vec<Session> },
    #[error("cannot {action} {}", file_name(path))]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// The daemon refused a file.
    #[error("{}", file_name(path))]
    RefusedFile { path: PathBuf, source: ClientError },
    /// The file is of a format that is not text and cannot be imported.
    #[error("{} is {format}, which cannot be imported yet", file_name(path))]
    ForeignFile { path: PathBuf, format: &'static str },
    #[error("{} is not UTF-8 at byte {offset}", file_name(path))]
    NotUtf8 { path: PathBuf, offset: u64, command: String },
    #[error("the path {} is not UTF-8, which the protocol requires", path.display())]
    PathNotUtf8 { path: PathBuf },
    /// The requested thing does not exist.
    #[error("{message}")]
    NotFound { message: String, hint: Option<String> },
    /// Files would be put back behind a tool call whose result is not recorded.
    #[error(
        "{tool} (#{seq}) was started, and its result is not recorded: it still runs, or was killed, and may have \
         written files; nothing was changed"
    )]
    UnfinishedCall { tool: String, seq: Seq, hint: String },
    /// The daemon was asked to shut down and did not end in time.
    #[error("ollmd was asked to shut down and still runs after {seconds} s")]
    StillRunning { seconds: u64 },
    /// The catalog does not have all sessions yet, so another one could be meant, or this one be missing.
    #[error(
        "the catalog is being made again, so sessions may be missing from it; nothing was done"
    )]
    CatalogBehind,
    /// The daemon was not stopped, because it works for a client. `command` ends the work with `--now`.
    #[error("ollmd was not stopped: after {seconds} s it still works on {work}")]
    StillWorking { work: String, seconds: u64, command: &'static str },
    /// The daemon ended the stream of events, which a script must not take for success.
    #[error("ollmd ended the stream of events")]
    StreamEnded,
    #[error("ollmd is not running")]
    NotRunning,
    /// No service manager runs for this user.
    #[error(transparent)]
    NoManager(#[from] NoManager),
    /// The service manager refused or failed.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A path cannot stand in the definition of a service.
    #[error(transparent)]
    UnusablePath(#[from] UnusablePath),
    /// The manager did not start the service, and the daemon runs without it.
    #[error("the service is installed and did not start; ollmd runs without it (process {pid})")]
    ServiceNotUsed { pid: u32 },
    /// `doctor` found problems.
    #[error("something does not work")]
    Unwell { exit: Exit },
    /// The daemon was not stopped, because it would not start again with its configuration.
    #[error(
        "ollmd was not stopped, because its configuration is wrong and it would not start again: {reason}"
    )]
    BadConfig { reason: String, exit: Exit },
    /// The directory of an output file does not exist.
    #[error("there is no directory {}", path.display())]
    NoDirectory { path: PathBuf },
    /// Some of several files failed; each failure was reported.
    #[error("{failed} of {total} failed")]
    PartialFailure { failed: usize, total: usize, exit: Exit },
    /// The daemon's program, which was run in place of this one, failed.
    #[error("ollmd ended with {status}")]
    Program { status: std::process::ExitStatus },
    /// The command of `exec` ended with a code other than 0, which becomes the exit code.
    #[error("the command ended with {code}")]
    CommandExit { code: u8 },
    /// A check of the tour failed.
    #[error("the tour failed: {failure}")]
    Tour { failure: String },
    #[error("cannot watch for signals")]
    Signals(#[source] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A signal ended the tour.
    #[error("interrupted; the private daemon is stopped and its home removed")]
    Interrupted,
    /// A signal ended an answer or a chat.
    #[error("{message}")]
    Canceled { message: &'static str, hint: Option<String> },
    #[error("cannot read the input")]
    Input(#[source] io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl CommandError {
    /// Returns an error of the command line; an empty hint is none.
    pub(crate) fn usage(message: impl Into<String>, hint: &str) -> Self {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        Self::Usage { message: message.into(), hint }
    }

    /// Returns the error for a missing thing.
    pub(crate) fn not_found(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::NotFound { message: message.into(), hint: Some(hint.into()) }
    }

    /// Returns the error for a tool call without a result, behind which no files are put back.
    pub(crate) fn unfinished(call: &UnrecordedCall, hint: String) -> Self {
        Self::UnfinishedCall { tool: call.tool.clone(), seq: call.seq, hint }
    }

    /// Returns the error reply of the daemon, if the error is one.
    pub(crate) fn rpc_failure(&self) -> Option<&RpcFailure> {
        match self {
            Self::Client(ClientError::Rpc(failure))
            | Self::RefusedFile { source: ClientError::Rpc(failure), .. } => Some(failure),
            _ => None,
        }
    }

    /// Adds the name of the file that the daemon refused.
    pub(crate) fn of_file(self, path: &Path) -> Self {
        match self {
            Self::Client(source @ ClientError::Rpc(_)) => {
                Self::RefusedFile { path: path.to_owned(), source }
            }
            other => other,
        }
    }

    /// Returns whether the reader of the output closed the pipe, which counts as success.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(OutputError(error)) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns whether the user has seen the error: as the command's output, or from another program.
    pub(crate) fn is_already_reported(&self) -> bool {
        matches!(
            self,
            Self::Program { .. }
                | Self::NotRunning
                | Self::Unwell { .. }
                | Self::CommandExit { .. }
        )
    }

    /// Returns the exit code of this program.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::CommandExit { code } => ExitCode::from(*code),
            other => other.exit().into(),
        }
    }

    /// Returns the exit code by the class of the error.
    pub(crate) fn exit(&self) -> Exit {
        self.kind_and_exit().1
    }

    fn kind(&self) -> &str {
        self.kind_and_exit().0
    }

    fn kind_and_exit(&self) -> (&str, Exit) {
        match self {
            Self::Client(error) | Self::RefusedFile { source: error, .. } => {
                (error.kind(), error.exit())
            }
            Self::ForeignFile { .. } => ("invalidParams", Exit::Usage),
            Self::Usage { .. } => ("usage", Exit::Usage),
            Self::InvalidId { .. } => ("invalidId", Exit::Usage),
            Self::AmbiguousId { .. } => ("ambiguousId", Exit::Usage),
            Self::NotUtf8 { .. } | Self::PathNotUtf8 { .. } => ("notUtf8", Exit::Usage),
            Self::NotFound { .. } => ("sessionNotFound", Exit::NotFound),
            Self::NoDirectory { .. } => ("file", Exit::NotFound),
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ("file", Exit::NotFound)
            }
            Self::File { .. } => ("file", Exit::Internal),
            Self::PartialFailure { exit, .. } => ("partial", *exit),
            Self::BadConfig { exit, .. } => ("config", *exit),
            Self::StreamEnded => ("disconnected", Exit::Unreachable),
            Self::NotRunning => ("unreachable", Exit::Unreachable),
            Self::NoManager(_) => ("noServiceManager", Exit::NotFound),
            Self::Service(_) | Self::ServiceNotUsed { .. } => ("service", Exit::Internal),
            Self::UnusablePath(_) => ("usage", Exit::Usage),
            Self::Unwell { exit } => ("unwell", *exit),
            Self::StillRunning { .. } | Self::StillWorking { .. } | Self::CatalogBehind => {
                ("busy", Exit::Busy)
            }
            Self::UnfinishedCall { .. } => ("unfinishedCall", Exit::Busy),
            Self::Interrupted => ("interrupted", Exit::Interrupted),
            Self::Canceled { .. } => ("canceled", Exit::Interrupted),
            Self::Program { status } => ("program", exit_of_daemon(*status)),
            Self::CommandExit { .. } => ("program", Exit::Internal),
            Self::Input(_) => ("input", Exit::Internal),
            Self::Output(_) => ("output", Exit::Internal),
            Self::Signals(_) => ("signals", Exit::Internal),
            Self::Thread(_) => ("thread", Exit::Internal),
            Self::Tour { .. } => ("tour", Exit::Internal),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) | Self::RefusedFile { source: error, .. } => error.hint(),
            Self::InvalidId { .. } | Self::AmbiguousId { .. } => Some(LIST_HINT.to_owned()),
            Self::UnfinishedCall { hint, .. } => Some(hint.clone()),
            Self::Usage { hint, .. }
            | Self::NotFound { hint, .. }
            | Self::Canceled { hint, .. } => hint.clone(),
            Self::NotUtf8 { path, command, .. } => {
                let file = if is_stdin(path) { "FILE".into() } else { path.to_string_lossy() };
                Some(format!("iconv -f ISO-8859-1 -t UTF-8 {file} | ollmctl {command} -"))
            }
            Self::StillRunning { .. } | Self::StreamEnded | Self::CatalogBehind => {
                Some("ollmctl daemon status".to_owned())
            }
            Self::NoManager(missing) => Some(missing.instead.clone()),
            Self::Service(_) => Some("ollmctl service status".to_owned()),
            Self::ServiceNotUsed { .. } => Some("ollmctl service logs".to_owned()),
            Self::StillWorking { command, .. } => Some(format!("ollmctl {command} --now")),
            Self::BadConfig { .. } => Some("ollmctl config check".to_owned()),
            Self::NoDirectory { path } => Some(format!("mkdir -p {}", path.display())),
            Self::File { path, .. } if !is_stdin(path) => Some(format!("ls -l {}", path.display())),
            _ => None,
        }
    }

    /// Returns the message with its causes, each once.
    pub(crate) fn message(&self) -> String {
        let mut message = self.to_string();
        if let Some(RpcFailure { kind: Some(ErrorKind::InvalidParams), .. }) = self.rpc_failure() {
            message = without_wire_words(&message);
        }
        let mut source = self.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // A transparent variant repeats its source.
            if !message.ends_with(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        sanitize::text(&message)
    }

    /// Returns the error for people: the message, its details on a line each, and the next command.
    pub(crate) fn to_text(&self) -> String {
        self.to_text_with(self.hint())
    }

    /// Returns the same text with another hint.
    pub(crate) fn to_text_with(&self, hint: Option<String>) -> String {
        let (message, details) = match self {
            Self::Client(ClientError::Unreachable { attempts }) => {
                let lines = attempts.iter().map(Attempt::to_string).collect();
                ("cannot connect to ollmd".to_owned(), lines)
            }
            Self::AmbiguousId { candidates, .. } => {
                let line =
                    |session: &Session| format!("{}  {}", short_session_id(session), session.title);
                (self.message(), candidates.iter().map(line).collect())
            }
            _ => (self.message(), Vec::new()),
        };
        let mut text = format!("{} {message}", Style::Bad.paint("error:"));
        for detail in details {
            text.push_str(&format!("\n  {}", sanitize::one_line(&detail)));
        }
        if let Some(hint) = hint {
            let hint = sanitize::text(&hint);
            text.push_str(&format!("\n  {} {hint}", Style::Strong.paint("try:")));
        }
        let address = self.rpc_failure().and_then(|failure| failure.fields.get("address"));
        if let Some(address) = address.and_then(Value::as_str) {
            text.push_str(&format!("\n  or:  {}", sanitize::text(address)));
        }
        text
    }

    /// Returns the error for programs: `{"error":{"kind","message","hint"}}` on one line.
    pub(crate) fn to_json(&self) -> String {
        escaped_json(&self.to_value().to_string())
    }

    /// Returns the same JSON as a value.
    pub(crate) fn to_value(&self) -> Value {
        let mut error = json!({ "kind": self.kind(), "message": self.message() });
        if let Some(hint) = self.hint() {
            error["hint"] = hint.into();
        }
        match self {
            Self::AmbiguousId { candidates, .. } => {
                let candidate = |session: &Session| json!({ "sessionId": session.session_id, "title": session.title });
                error["candidates"] = candidates.iter().map(candidate).collect();
            }
            Self::Client(ClientError::Rpc(failure))
            | Self::RefusedFile { source: ClientError::Rpc(failure), .. } => {
                error["code"] = failure.code.into();
                for (name, value) in &failure.fields {
                    error[name] = value.clone();
                }
            }
            _ => {}
        }
        json!({ "error": error })
    }
}

/// Returns the exit code for the status of the daemon's program.
pub(crate) fn exit_of_daemon(status: std::process::ExitStatus) -> Exit {
    match status.code() {
        Some(2) => Exit::Usage,
        Some(5 | 78) => Exit::Config,
        _ => Exit::Internal,
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn file_name(path: &Path) -> std::path::Display<'_> {
    if is_stdin(path) { Path::new("stdin").display() } else { path.display() }
}

/// Returns the first paragraph of an error of the command line, on one line.
pub(crate) fn parse_error_message(error: &clap::Error) -> String {
    let text = error.to_string();
    let message = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    sanitize::one_line(message)
}

/// Returns the message about a param for people, who typed no param: its name in words if the message needs a subject.
fn without_wire_words(message: &str) -> String {
    const VERBS: [&str; 9] =
        ["is", "are", "must", "has", "have", "cannot", "needs", "contains", "belongs"];
    let Some((param, problem)) = message.split_once(": ") else { return message.to_owned() };
    let is_param = param.starts_with(|c: char| c.is_ascii_lowercase())
        && param.chars().all(|c| c.is_ascii_alphanumeric());
    if !is_param {
        return message.to_owned();
    }
    if !VERBS.contains(&problem.split(' ').next().unwrap_or_default()) {
        return problem.to_owned();
    }
    let mut words = "the ".to_owned();
    for c in param.chars() {
        if c.is_ascii_uppercase() {
            words.push(' ');
        }
        words.push(c.to_ascii_lowercase());
    }
    format!("{words} {problem}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::AttemptCause;
    use crate::testing::plain;

    #[test]
    fn text_has_message_cause_and_next_command() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let error = CommandError::File { action: "read", path: "a\u{1b}[2J.json".into(), source };
        assert_eq!(
            plain(&error.to_text()),
            "error: cannot read a.json: entity not found\n  try: ls -l a.json"
        );
        assert_eq!(error.exit(), Exit::NotFound);
    }

    #[test]
    fn message_about_a_param_has_no_word_of_the_wire() {
        let check = |message: &str, expected: &str| {
            let data = Some(json!({ "kind": "invalidParams" }));
            let failure = RpcFailure::new(-32602, message.to_owned(), data);
            let error = CommandError::from(ClientError::Rpc(Box::new(failure)));
            assert_eq!(error.message(), expected);
        };
        check("steps: there is nothing to redo", "there is nothing to redo");
        check("model: name a model", "name a model");
        check("projectPath: is not a directory", "the project path is not a directory");
        check("message.parts[1].args: is too deep", "message.parts[1].args: is too deep");
        check("no such thing", "no such thing");
    }

    #[test]
    fn failed_attempts_have_a_line_each() {
        let attempt = |path: &str| Attempt { path: path.into(), cause: AttemptCause::Missing };
        let attempts = vec![attempt("/a.sock"), attempt("/b.sock")];
        let error = CommandError::from(ClientError::Unreachable { attempts });
        assert_eq!(
            plain(&error.to_text()),
            "\
error: cannot connect to ollmd
  /a.sock: no such socket
  /b.sock: no such socket
  try: ollmctl daemon start"
        );
    }

    #[test]
    fn json_has_all_fields_of_the_daemons_error() {
        let data = json!({"kind": "conflict", "hint": "wait", "holder": "h"});
        let failure = RpcFailure::new(1004, "taken".into(), Some(data));
        let error = CommandError::from(ClientError::Rpc(Box::new(failure)));
        let value: serde_json::Value = serde_json::from_str(&error.to_json()).unwrap();
        assert_eq!(
            value["error"],
            json!({"kind": "conflict", "message": "taken", "hint": "wait", "code": 1004, "holder": "h"})
        );
        assert_eq!(error.exit(), Exit::Busy);
    }

    #[test]
    fn wait_for_an_answer_that_took_too_long_has_the_own_command_with_now() {
        for command in ["daemon restart", "service install", "service uninstall"] {
            let error =
                CommandError::StillWorking { work: "1 answer".to_owned(), seconds: 600, command };
            let expected = format!("ollmctl {command} --now");
            assert_eq!((error.hint(), error.exit()), (Some(expected), Exit::Busy));
        }
    }

    #[test]
    fn invalid_utf8_has_its_offset_and_a_conversion() {
        let error = |path: &str, command: &str| {
            plain(
                &CommandError::NotUtf8 {
                    path: path.into(),
                    offset: 7,
                    command: command.to_owned(),
                }
                .to_text(),
            )
        };
        assert_eq!(
            error("-", "record"),
            "error: stdin is not UTF-8 at byte 7\n  \
             try: iconv -f ISO-8859-1 -t UTF-8 FILE | ollmctl record -"
        );
        assert!(error("a.jsonl", "sessions import").contains("UTF-8 a.jsonl | ollmctl sessions"));
    }

    #[test]
    fn only_a_closed_pipe_counts_as_success() {
        let output = |kind| CommandError::from(OutputError::from(io::Error::from(kind)));
        assert!(output(io::ErrorKind::BrokenPipe).is_closed_pipe());
        assert!(!output(io::ErrorKind::StorageFull).is_closed_pipe());
    }
}
