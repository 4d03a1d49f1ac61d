//! What can go wrong in a command, and how it is told: as text with a hint, or as JSON.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ollm_protocol::ErrorKind;
use ollm_protocol::content::Session;
use ollm_protocol::sanitize;
use serde_json::{Value, json};

use crate::error::{Attempt, ClientError};
use crate::exit::Exit;
use crate::render::json;
use crate::render::style::Style;
use crate::render::time::InvalidTime;
use crate::resolve::ResolveError;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The daemon could not be asked, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A text names no session.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A text is no time.
    #[error(transparent)]
    Time(#[from] InvalidTime),
    /// The arguments do not make sense together.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// A file cannot be used.
    #[error("cannot {action} {}", named(path))]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// A file that must be text is not.
    #[error("{} is not UTF-8 at byte {offset}", named(path))]
    NotUtf8 { path: PathBuf, offset: u64, command: &'static str },
    /// An argument that must be JSON is not.
    #[error("the parameters are not JSON")]
    BadJson { source: serde_json::Error },
    /// A path cannot be sent: the protocol is text.
    #[error("the path {} is not UTF-8, which the protocol cannot express", path.display())]
    PathNotUtf8 { path: PathBuf },
    /// There is nothing of that kind.
    #[error("{message}")]
    Gone { message: String, hint: Option<String> },
    /// The daemon answered, and is not gone in time.
    #[error("ollmd was asked to leave and is still there after {seconds} s")]
    StillRunning { seconds: u64 },
    /// The daemon stopped sending events, which a follower has to notice.
    #[error("ollmd ended the stream of events")]
    StreamEnded,
    /// There is no daemon; the answer of a command that only looks.
    #[error("ollmd is not running")]
    NotRunning,
    /// The daemon would not start again with its configuration, so it was not stopped.
    #[error("ollmd was left as it is, because its configuration is wrong: {said}")]
    BadConfig { said: String, exit: Exit },
    /// A directory to write in is missing.
    #[error("there is no directory {}", path.display())]
    NoDirectory { path: PathBuf },
    /// Some of several things failed; each was told when it happened.
    #[error("{failed} of {total} failed")]
    Some { failed: usize, total: usize, exit: Exit },
    /// Another program that was run instead of this one failed.
    #[error("ollmd ended with {status}")]
    Program { status: std::process::ExitStatus },
    /// A command that was run for the user ended with this code, which is the outcome.
    #[error("the command ended with {code}")]
    Ended { code: u8 },
    /// The tour claims something that did not hold in this run.
    #[error("the tour failed: {claim}")]
    Tour { claim: String },
    /// The system does not let this process watch for signals.
    #[error("cannot watch for signals")]
    Signals(#[source] io::Error),
    /// A signal asked the tour to end.
    #[error("interrupted; the private daemon is stopped and its home removed")]
    Interrupted,
    /// A signal ended a chat or its answer.
    #[error("canceled; what was answered until then is kept")]
    Canceled { hint: Option<String> },
    /// The line that is typed cannot be read.
    #[error("cannot read what is typed")]
    Input(#[source] io::Error),
    /// Nobody takes the output.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
}

impl CommandError {
    /// A mistake on the command line.
    pub(crate) fn usage(message: impl Into<String>, hint: &str) -> Self {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        Self::Usage { message: message.into(), hint }
    }

    /// Whether the reader of the output left, which is no error of anybody.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether it was said already: by another program on the same terminal, or as the command's output.
    pub(crate) fn was_told(&self) -> bool {
        matches!(self, Self::Program { .. } | Self::NotRunning | Self::Ended { .. })
    }

    /// The code that this program ends with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Ended { code } => ExitCode::from(*code),
            other => other.exit().into(),
        }
    }

    /// The exit code by class.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Client(error) | Self::Resolve(ResolveError::Client(error)) => error.exit(),
            Self::Resolve(ResolveError::NotFound { .. } | ResolveError::NoSessions)
            | Self::Gone { .. } => Exit::Gone,
            Self::Resolve(_) | Self::Time(_) | Self::Usage { .. } | Self::NotUtf8 { .. } => {
                Exit::Usage
            }
            Self::BadJson { .. } | Self::PathNotUtf8 { .. } => Exit::Usage,
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => Exit::Gone,
            // What was piped in is no text.
            Self::File { source, .. } if source.kind() == io::ErrorKind::InvalidData => Exit::Usage,
            Self::NoDirectory { .. } => Exit::Gone,
            Self::Some { exit, .. } | Self::BadConfig { exit, .. } => *exit,
            Self::StreamEnded | Self::NotRunning => Exit::Unreachable,
            Self::StillRunning { .. } => Exit::Busy,
            Self::Interrupted | Self::Canceled { .. } => Exit::Interrupted,
            Self::Program { status } => exit_of_daemon(*status),
            Self::File { .. }
            | Self::Input(_)
            | Self::Output(_)
            | Self::Signals(_)
            | Self::Tour { .. }
            | Self::Ended { .. } => Exit::Internal,
        }
    }

    fn kind(&self) -> &str {
        match self {
            Self::Client(error) | Self::Resolve(ResolveError::Client(error)) => error.kind(),
            Self::Resolve(ResolveError::NotFound { .. } | ResolveError::NoSessions) => {
                "sessionNotFound"
            }
            Self::Resolve(ResolveError::Ambiguous { .. }) => "ambiguousId",
            Self::Resolve(ResolveError::Invalid { .. } | ResolveError::NotHex { .. }) => {
                "invalidId"
            }
            Self::Gone { .. } => "sessionNotFound",
            Self::File { .. } | Self::NoDirectory { .. } => "file",
            Self::StreamEnded => "disconnected",
            Self::NotRunning => "unreachable",
            Self::BadConfig { .. } => "config",
            Self::NotUtf8 { .. } | Self::PathNotUtf8 { .. } => "notUtf8",
            Self::StillRunning { .. } => "busy",
            Self::Some { .. } => "partial",
            Self::Program { .. } | Self::Ended { .. } => "program",
            Self::Canceled { .. } => "cancelled",
            Self::Input(_) => "input",
            Self::Output(_) => "output",
            Self::Signals(_) => "signals",
            Self::Tour { .. } => "tour",
            Self::Interrupted => "interrupted",
            Self::Time(_) | Self::Usage { .. } | Self::BadJson { .. } => "usage",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) | Self::Resolve(ResolveError::Client(error)) => error.hint(),
            Self::Resolve(ResolveError::NoSessions) => Some("ollmctl record 'hello'".to_owned()),
            Self::Resolve(_) => Some("ollmctl sessions list --all".to_owned()),
            Self::Usage { hint, .. } | Self::Gone { hint, .. } | Self::Canceled { hint } => {
                hint.clone()
            }
            Self::NotUtf8 { path, command, .. } => {
                let file = if is_stdin(path) { "FILE".into() } else { path.to_string_lossy() };
                Some(format!("iconv -f ISO-8859-1 -t UTF-8 {file} | ollmctl {command} -"))
            }
            Self::StillRunning { .. } | Self::StreamEnded => {
                Some("ollmctl daemon status".to_owned())
            }
            Self::BadConfig { .. } => Some("ollmctl config check".to_owned()),
            Self::BadJson { .. } => Some("ollmctl call session.list '{\"limit\": 3}'".to_owned()),
            Self::NoDirectory { path } => Some(format!("mkdir -p {}", path.display())),
            Self::File { path, .. } if !is_stdin(path) => Some(format!("ls -l {}", path.display())),
            _ => None,
        }
    }

    /// The message and what caused it, each said once.
    pub(crate) fn message(&self) -> String {
        let mut message = self.to_string();
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

    /// For people: the message, what belongs to it line by line, and the next command.
    pub(crate) fn to_text(&self) -> String {
        self.to_text_with(self.hint())
    }

    /// The same with something else to type next.
    pub(crate) fn to_text_with(&self, hint: Option<String>) -> String {
        let tried = self.attempts();
        let message =
            if tried.is_empty() { self.message() } else { "cannot connect to ollmd".to_owned() };
        let mut text = format!("{} {message}", Style::Bad.paint("error:"));
        for Attempt { path, cause } in tried {
            let line = format!("{}: {cause}", path.display());
            text.push_str(&format!("\n  {}", sanitize::one_line(&line)));
        }
        for session in self.candidates() {
            let title = sanitize::one_line(&session.title);
            text.push_str(&format!("\n  {}  {title}", session.session_id));
        }
        if let Some(hint) = hint {
            text.push_str(&format!(
                "\n  {} {}",
                Style::Strong.paint("try:"),
                sanitize::text(&hint)
            ));
        }
        if self.kind() == ErrorKind::ModelUnavailable.as_str() {
            text.push_str(
                "\n  or:  OLLAMA_HOST=HOST:PORT, or ollama.host in the file of `ollmctl config path`",
            );
        }
        text
    }

    /// For programs: `{"error":{"kind","message","hint"}}` on one line.
    pub(crate) fn to_json(&self) -> String {
        json::escaped(&self.to_value().to_string())
    }

    /// The same as a value.
    pub(crate) fn to_value(&self) -> Value {
        let mut error = json!({ "kind": self.kind(), "message": self.message() });
        if let Some(hint) = self.hint() {
            error["hint"] = hint.into();
        }
        let candidates: Vec<_> = self
            .candidates()
            .iter()
            .map(|session| json!({ "sessionId": session.session_id, "title": session.title }))
            .collect();
        if !candidates.is_empty() {
            error["candidates"] = candidates.into();
        }
        if let Self::Client(ClientError::Rpc(failure)) = self {
            error["code"] = failure.code.into();
            for (name, value) in &failure.fields {
                error[name] = value.clone();
            }
        }
        json!({ "error": error })
    }

    fn attempts(&self) -> &[Attempt] {
        match self {
            Self::Client(ClientError::Unreachable { attempts })
            | Self::Resolve(ResolveError::Client(ClientError::Unreachable { attempts })) => {
                attempts
            }
            _ => &[],
        }
    }

    fn candidates(&self) -> &[Session] {
        match self {
            Self::Resolve(ResolveError::Ambiguous { candidates, .. }) => candidates,
            _ => &[],
        }
    }
}

/// What the daemon's program says by how it ended.
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

fn named(path: &Path) -> std::path::Display<'_> {
    if is_stdin(path) { Path::new("stdin").display() } else { path.display() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{AttemptCause, RpcFailure};

    #[test]
    fn an_error_is_told_once_with_its_cause_and_the_next_command() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let error = CommandError::File { action: "read", path: "a\u{1b}[2J.json".into(), source };
        assert_eq!(
            anstream::adapter::strip_str(&error.to_text()).to_string(),
            "error: cannot read a.json: entity not found\n  try: ls -l a.json"
        );
        assert_eq!(error.exit(), Exit::Gone);
    }

    #[test]
    fn sockets_that_were_tried_get_a_line_each() {
        let attempt = |path: &str| Attempt { path: path.into(), cause: AttemptCause::Missing };
        let attempts = vec![attempt("/a.sock"), attempt("/b.sock")];
        let error = CommandError::from(ClientError::Unreachable { attempts });
        assert_eq!(
            anstream::adapter::strip_str(&error.to_text()).to_string(),
            "\
error: cannot connect to ollmd
  /a.sock: no such socket
  /b.sock: no such socket
  try: ollmctl daemon start"
        );
    }

    #[test]
    fn a_refusal_of_the_daemon_is_passed_on_whole() {
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
    fn bytes_that_are_no_text_say_where_and_how_to_convert() {
        let error = |path: &str, command| {
            let error = CommandError::NotUtf8 { path: path.into(), offset: 7, command };
            anstream::adapter::strip_str(&error.to_text()).to_string()
        };
        assert_eq!(
            error("-", "record"),
            "error: stdin is not UTF-8 at byte 7\n  \
             try: iconv -f ISO-8859-1 -t UTF-8 FILE | ollmctl record -"
        );
        assert!(error("a.jsonl", "sessions import").contains("UTF-8 a.jsonl | ollmctl sessions"));
    }

    #[test]
    fn only_a_closed_pipe_ends_quietly() {
        let output = |kind| CommandError::Output(io::Error::from(kind));
        assert!(output(io::ErrorKind::BrokenPipe).is_closed_pipe());
        assert!(!output(io::ErrorKind::StorageFull).is_closed_pipe());
    }
}
