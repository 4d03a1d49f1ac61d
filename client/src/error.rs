//! What can go wrong between a client and the daemon.
//!
//! Every variant says what was attempted; [`ClientError::hint`] has the next command to type. Nothing is
//! printed here.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ollm_protocol::{ErrorClass, ErrorKind, PROTOCOL_VERSION};
use serde_json::{Map, Value};

use crate::exit::Exit;

/// A call that did not come to a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no home directory to look in.
    #[error(
        "cannot tell where the daemon's home is: neither OLLM_HOME nor a home directory is set"
    )]
    NoHome,
    /// The system would refuse the path.
    #[error("the socket path {} is longer than a socket path may be", path.display())]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Nobody answered anywhere.
    #[error("cannot connect to ollmd: {}", Tried(attempts))]
    Unreachable {
        /// Each socket that was tried, and what happened.
        attempts: Vec<Attempt>,
    },
    /// Somebody insists on a socket, and the daemon that owns the home listens at another one.
    #[error(
        "nobody listens at {}: the daemon of {} (process {pid}) listens at {}",
        asked.display(), home.display(), socket.display()
    )]
    ListensElsewhere {
        /// The home.
        home: PathBuf,
        /// Its daemon's process.
        pid: u32,
        /// Where that listens.
        socket: PathBuf,
        /// Where it was looked for.
        asked: PathBuf,
    },
    /// A daemon owns the home, and nobody listens where it should.
    #[error("an ollmd{} holds {} and cannot be reached", Process(*pid), home.display())]
    Held {
        /// The home.
        home: PathBuf,
        /// The daemon's process, where it wrote that down.
        pid: Option<u32>,
    },
    /// The daemon at this socket speaks another protocol.
    #[error(
        "ollmd {version} speaks protocol {protocol}, this client protocol {PROTOCOL_VERSION} only"
    )]
    ProtocolMismatch {
        /// The daemon's version.
        version: String,
        /// The daemon's protocol.
        protocol: u32,
    },
    /// The program that would be started is nowhere.
    #[error("cannot start ollmd: no such program beside this one or in PATH")]
    DaemonNotFound,
    /// The daemon was started and said why it cannot run.
    #[error("ollmd did not start: {message}")]
    StartFailed {
        /// The stable name of the cause, if the daemon gave one.
        kind: Option<ErrorKind>,
        /// The cause.
        message: String,
        /// What the daemon advises.
        hint: Option<String>,
        /// Where it wrote more.
        log: PathBuf,
    },
    /// The daemon was started and stayed silent.
    #[error("ollmd was started but was not ready after {} s", after.as_secs())]
    StartTimeout {
        /// How long it was waited for.
        after: Duration,
        /// Where it wrote more.
        log: PathBuf,
    },
    /// The daemon cannot be started for a reason on this side.
    #[error("cannot start ollmd: {action} {} failed", path.display())]
    Start {
        /// What was attempted.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// No answer came in time.
    #[error("no answer to {method} within {} s", after.as_secs_f64())]
    Timeout {
        /// The method.
        method: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The daemon closed the connection.
    #[error("ollmd closed the connection during {method}")]
    Closed {
        /// The method.
        method: String,
    },
    /// The connection broke.
    #[error("the connection to ollmd broke during {method}")]
    Broken {
        /// The method.
        method: String,
        /// Why.
        source: io::Error,
    },
    /// A request or a reply is larger than a frame may be.
    #[error("the {what} of {method} is larger than {limit} bytes")]
    FrameTooLarge {
        /// The method.
        method: String,
        /// `request` or `reply`.
        what: &'static str,
        /// The largest frame in bytes.
        limit: usize,
    },
    /// What came back is not what the protocol says.
    #[error("the reply to {method} cannot be understood")]
    BadReply {
        /// The method.
        method: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The params cannot be written as JSON.
    #[error("the params of {method} cannot be written as JSON")]
    BadParams {
        /// The method.
        method: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The async client's own machinery failed.
    #[error("the connection to ollmd failed during {method}")]
    Transport {
        /// The method.
        method: String,
        /// Why.
        source: Box<jsonrpsee::core::client::Error>,
    },
    /// The daemon refused the call.
    #[error("{}", .0.message)]
    Rpc(Box<RpcFailure>),
}

/// An error reply of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcFailure {
    /// The JSON-RPC code.
    pub code: i32,
    /// What the daemon says.
    pub message: String,
    /// The stable name; `None` for one that this version does not know.
    pub kind: Option<ErrorKind>,
    /// The name as it was sent, also where it is unknown.
    pub kind_name: Option<String>,
    /// A command that helps.
    pub hint: Option<String>,
    /// The further fields of the kind.
    pub fields: Map<String, Value>,
}

/// One socket that was tried in vain.
#[derive(Debug)]
pub struct Attempt {
    /// The socket.
    pub path: PathBuf,
    /// Why it was in vain.
    pub cause: AttemptCause,
}

/// Why a socket was tried in vain.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttemptCause {
    /// There is no such file.
    Missing,
    /// The file is there, but nobody listens.
    Refused,
    /// Somebody listens and does not accept.
    Slow(Duration),
    /// The process behind it belongs to somebody else.
    Untrusted(Option<u32>),
    /// Anything else.
    Failed(io::Error),
}

impl Attempt {
    /// Whether starting a daemon can help.
    pub(crate) fn means_not_running(&self) -> bool {
        matches!(self.cause, AttemptCause::Missing | AttemptCause::Refused)
    }
}

impl fmt::Display for AttemptCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => out.write_str("no such socket"),
            Self::Refused => out.write_str("nobody listens there (left by a daemon that is gone)"),
            Self::Slow(after) => write!(out, "not accepted within {} ms", after.as_millis()),
            Self::Untrusted(Some(uid)) => write!(out, "it belongs to user {uid}, not to you"),
            Self::Untrusted(None) => out.write_str("it is not known whom it belongs to"),
            Self::Failed(error) => write!(out, "{error}"),
        }
    }
}

struct Process(Option<u32>);

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(out, " (process {pid})"))
    }
}

struct Tried<'a>(&'a [Attempt]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, attempt) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(out, "{separator}{}: {}", attempt.path.display(), attempt.cause)?;
        }
        Ok(())
    }
}

impl RpcFailure {
    /// Takes an error reply apart; `data` that is not an object is dropped.
    pub(crate) fn new(code: i32, message: String, data: Option<Value>) -> Self {
        let mut fields = match data {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let (kind_name, hint) = (text("kind"), text("hint"));
        let by_code = || ErrorKind::ALL.iter().copied().find(|kind| kind.code() == code);
        let kind = kind_name.as_deref().and_then(ErrorKind::from_name).or_else(by_code);
        Self { code, message, kind, kind_name, hint, fields }
    }
}

impl ClientError {
    /// The error that a turn ended with: the fields of `ChatEvent::Error`.
    #[must_use]
    pub fn of_turn(code: i32, message: String, data: Value) -> Self {
        Self::Rpc(Box::new(RpcFailure::new(code, message, Some(data))))
    }

    /// The stable name of this error; the daemon's own where it is the daemon's.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Rpc(failure) => failure
                .kind_name
                .as_deref()
                .or(failure.kind.map(ErrorKind::as_str))
                .unwrap_or("unknown"),
            Self::StartFailed { kind, .. } => kind.map_or("startFailed", ErrorKind::as_str),
            Self::NoHome | Self::SocketPathTooLong { .. } => "usage",
            Self::Unreachable { .. } | Self::ListensElsewhere { .. } | Self::Held { .. } => {
                "unreachable"
            }
            Self::ProtocolMismatch { .. } => "protocolMismatch",
            Self::DaemonNotFound | Self::Start { .. } | Self::StartTimeout { .. } => "startFailed",
            Self::Timeout { .. } => "timeout",
            Self::Closed { .. } | Self::Broken { .. } | Self::Transport { .. } => "disconnected",
            Self::FrameTooLarge { .. } => "tooLarge",
            Self::BadReply { .. } => "badReply",
            Self::BadParams { .. } => "invalidParams",
        }
    }

    /// What to type next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Rpc(failure) => return failure.hint.clone(),
            Self::StartFailed { hint: Some(hint), .. } => hint.clone(),
            Self::StartFailed { log, .. } | Self::StartTimeout { log, .. } => {
                format!("ollmctl daemon run  # or read {}", log.display())
            }
            Self::NoHome => "export OLLM_HOME=DIRECTORY".to_owned(),
            Self::SocketPathTooLong { .. } => "ollmctl --socket /tmp/ollm.sock ...".to_owned(),
            Self::Unreachable { attempts } => unreachable_hint(attempts),
            Self::Held { pid, .. } => format!("kill {}", (*pid)?),
            Self::ListensElsewhere { socket, .. } => {
                format!("ollmctl --socket {} ...", socket.display())
            }
            Self::ProtocolMismatch { .. } => "ollmctl daemon restart".to_owned(),
            Self::DaemonNotFound => "export OLLM_DAEMON=/path/to/ollmd".to_owned(),
            Self::Start { path, .. } => format!("ls -ld {}", path.display()),
            Self::Timeout { .. } => "ollmctl --timeout 120 ...".to_owned(),
            Self::Closed { .. } | Self::Broken { .. } | Self::Transport { .. } => {
                "ollmctl daemon status".to_owned()
            }
            Self::BadReply { .. } => "ollmctl daemon restart".to_owned(),
            Self::FrameTooLarge { .. } | Self::BadParams { .. } => return None,
        };
        Some(text)
    }

    /// The exit code that `ollmctl` ends with.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Rpc(failure) => {
                failure.kind.map_or(Exit::Internal, |kind| Exit::of_class(kind.class()))
            }
            Self::BadReply { .. } => Exit::Internal,
            Self::NoHome | Self::SocketPathTooLong { .. } | Self::BadParams { .. } => Exit::Usage,
            Self::FrameTooLarge { what, .. } if *what == "request" => Exit::Usage,
            Self::FrameTooLarge { .. } => Exit::Internal,
            Self::StartFailed { kind: Some(kind), .. } if kind.class() == ErrorClass::Config => {
                Exit::Config
            }
            Self::Timeout { .. } => Exit::Busy,
            _ => Exit::Unreachable,
        }
    }
}

fn unreachable_hint(attempts: &[Attempt]) -> String {
    if attempts.iter().all(Attempt::means_not_running) {
        return "ollmctl daemon start".to_owned();
    }
    let culprit = attempts.iter().find(|attempt| !attempt.means_not_running());
    match culprit {
        Some(Attempt { path, cause: AttemptCause::Failed(_) | AttemptCause::Untrusted(_) }) => {
            format!("ls -l {}", path.display())
        }
        _ => "ollmctl daemon restart".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(path: &str, cause: AttemptCause) -> Attempt {
        Attempt { path: path.into(), cause }
    }

    #[test]
    fn a_connect_error_names_every_path_its_cause_and_the_next_command() {
        let error = ClientError::Unreachable {
            attempts: vec![
                attempt("/a.sock", AttemptCause::Missing),
                attempt("/b.sock", AttemptCause::Refused),
            ],
        };
        assert_eq!(
            error.to_string(),
            "cannot connect to ollmd: /a.sock: no such socket; \
             /b.sock: nobody listens there (left by a daemon that is gone)"
        );
        assert_eq!(error.hint().as_deref(), Some("ollmctl daemon start"));
        let denied = AttemptCause::Failed(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = ClientError::Unreachable { attempts: vec![attempt("/a.sock", denied)] };
        assert!(error.to_string().contains("permission denied"));
        assert_eq!(error.hint().as_deref(), Some("ls -l /a.sock"));
        assert_eq!(error.exit(), Exit::Unreachable);
    }

    #[test]
    fn an_error_reply_is_known_by_kind_then_by_code() {
        let data = serde_json::json!({"kind": "busy", "hint": "wait", "holder": "x"});
        let failure = RpcFailure::new(-1, "m".into(), Some(data));
        assert_eq!(failure.kind, Some(ErrorKind::Busy));
        assert_eq!(failure.fields["holder"], "x");
        assert_eq!(ClientError::Rpc(Box::new(failure)).exit(), Exit::Busy);
        let bare = RpcFailure::new(-32601, "m".into(), None);
        assert_eq!(bare.kind, Some(ErrorKind::MethodNotFound));
        let future = RpcFailure::new(4242, "m".into(), Some(serde_json::json!({"kind": "new"})));
        let error = ClientError::Rpc(Box::new(future));
        assert_eq!((error.kind(), error.exit()), ("new", Exit::Internal));
    }
}
