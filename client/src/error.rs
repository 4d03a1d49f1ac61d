//! The errors between a client and the daemon, and the exit codes of `ollmctl`.
//!
//! Each variant of [`ClientError`] names what was attempted; [`ClientError::hint`] returns the command that may help. An
//! [`Exit`] stands for a class of errors, so that a script can decide without parsing messages. Prints nothing.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ollm_protocol::frame::MAX_FRAME_BYTES;
use ollm_protocol::{ErrorClass, ErrorKind, PROTOCOL_VERSION};
use serde_json::{Map, Value};

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No home directory is known.
    #[error("cannot find the daemon's home: neither OLLM_HOME nor a home directory is set")]
    NoHome,
    /// The socket path is longer than the system allows.
    #[error("the socket path {} is longer than a socket path may be", path.display())]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// No socket accepted a connection.
    #[error("cannot connect to ollmd: {}", list(attempts))]
    Unreachable {
        /// The failed attempts, one for each socket.
        attempts: Vec<Attempt>,
    },
    /// The daemon that owns the home listens at another socket than the requested one.
    #[error(
        "no process listens at {}: the daemon of {} (process {pid}) listens at {}",
        requested.display(), home.display(), socket.display()
    )]
    ListensElsewhere {
        /// The home.
        home: PathBuf,
        /// The process id of the home's daemon.
        pid: u32,
        /// The socket at which that daemon listens.
        socket: PathBuf,
        /// The requested socket.
        requested: PathBuf,
    },
    /// A daemon owns the home but does not listen at any of its sockets.
    #[error("an ollmd{} holds {} and cannot be reached", process_suffix(*pid), home.display())]
    Held {
        /// The home.
        home: PathBuf,
        /// The process id of the holder of the lock, if the system reports it.
        pid: Option<u32>,
    },
    /// The home, or a file in it, belongs to another user.
    #[error("{} belongs to user {owner}, and this process runs as user {user}", path.display())]
    ForeignHome {
        /// The home, the file in it, or the directory in which the home would be created.
        path: PathBuf,
        /// The home.
        home: PathBuf,
        /// The id of the user that owns it.
        owner: u32,
        /// The id of the user of this process.
        user: u32,
    },
    /// The daemon speaks another protocol.
    #[error(
        "ollmd {version} speaks protocol {protocol}, this client only protocol {PROTOCOL_VERSION}"
    )]
    ProtocolMismatch {
        /// The daemon's version.
        version: String,
        /// The daemon's protocol.
        protocol: u32,
    },
    /// The daemon's program was not found.
    #[error("cannot start ollmd: there is no such program beside this one or in PATH")]
    DaemonNotFound,
    /// The daemon was started and reported that it cannot run.
    #[error("ollmd did not start: {message}")]
    StartFailed {
        /// The stable name of the cause, if the daemon reported one.
        kind: Option<ErrorKind>,
        /// The cause.
        message: String,
        /// The daemon's advice.
        hint: Option<String>,
        /// The file with the daemon's stderr.
        log: PathBuf,
    },
    /// The daemon was started and did not become ready.
    #[error("ollmd was started but was not ready after {} s", after.as_secs())]
    StartTimeout {
        /// The time that was waited.
        after: Duration,
        /// The file with the daemon's stderr.
        log: PathBuf,
    },
    /// A file or process operation failed while the daemon was started.
    #[error("cannot start ollmd: {action} {} failed", path.display())]
    Start {
        /// The operation, for example `locking`.
        action: &'static str,
        /// The file or program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No reply arrived in time.
    #[error("no reply to {method} within {} s", after.as_secs_f64())]
    Timeout {
        /// The method.
        method: String,
        /// The time that was waited.
        after: Duration,
    },
    /// The daemon closed the connection.
    #[error("ollmd closed the connection during {method}")]
    Closed {
        /// The method.
        method: String,
    },
    /// Reading from or writing to the connection failed.
    #[error("the connection to ollmd broke during {method}")]
    Broken {
        /// The method.
        method: String,
        /// The cause.
        source: io::Error,
    },
    /// The request is larger than a frame may be.
    #[error("the request of {method} is larger than {MAX_FRAME_BYTES} bytes")]
    RequestTooLarge {
        /// The method.
        method: String,
    },
    /// The reply is larger than a frame may be.
    #[error("the reply of {method} is larger than {MAX_FRAME_BYTES} bytes")]
    ReplyTooLarge {
        /// The method.
        method: String,
    },
    /// The reply does not have the form that the protocol prescribes.
    #[error("cannot decode the reply to {method}")]
    BadReply {
        /// The method.
        method: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The params cannot be encoded as JSON.
    #[error("cannot encode the params of {method} as JSON")]
    BadParams {
        /// The method.
        method: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The async client failed.
    #[error("the connection to ollmd failed during {method}")]
    Transport {
        /// The method.
        method: String,
        /// The cause.
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
    /// The message.
    pub message: String,
    /// The stable name; `None` for a name that this version does not know.
    pub kind: Option<ErrorKind>,
    /// The name as it was sent, known or not.
    pub kind_name: Option<String>,
    /// A command that may help.
    pub hint: Option<String>,
    /// The further fields of this kind.
    pub fields: Map<String, Value>,
}

/// A failed attempt to connect to a socket.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct Attempt {
    /// The socket.
    pub path: PathBuf,
    /// The cause.
    pub cause: AttemptCause,
}

/// The cause of a failed attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptCause {
    /// The socket does not exist.
    #[error("no such socket")]
    Missing,
    /// The socket exists, but no process listens.
    #[error("no process listens (left by a daemon that crashed)")]
    Refused,
    /// A process listens, but did not accept in time.
    #[error("not accepted within {} ms", .0.as_millis())]
    Slow(Duration),
    /// The listening process belongs to another user.
    #[error("it belongs to user {0}, not to you")]
    Foreign(u32),
    /// The daemon accepted the connection and did not reply in time.
    #[error("no reply within {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The daemon closed the connection without a reply.
    #[error("closed without a reply (the daemon is ending)")]
    Closed,
    /// The daemon serves another home than the requested one.
    #[error("its daemon serves {}, not {}", served.display(), wanted.display())]
    OtherHome {
        /// The home of the daemon.
        served: PathBuf,
        /// The requested home.
        wanted: PathBuf,
    },
    /// The owner of the listening process is unknown.
    #[error("its owner is unknown")]
    UnknownOwner,
    /// Another error.
    #[error("{0}")]
    Failed(io::Error),
}

/// An exit code of `ollmctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded, or the reader of its output closed the pipe.
    Success = 0,
    /// The daemon or the machine failed.
    Internal = 1,
    /// The command line or the request is wrong.
    Usage = 2,
    /// The requested thing does not exist.
    NotFound = 3,
    /// The request conflicts with other work; a retry can help.
    Busy = 4,
    /// The configuration is wrong.
    Config = 5,
    /// The daemon cannot be reached.
    Unreachable = 6,
    /// The model server cannot be used.
    ModelServer = 7,
    /// A signal ended the command; shells use this code for Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// Returns the exit code for a kind of the daemon's errors: that of its class, except for the model server.
    #[must_use]
    pub const fn of_kind(kind: ErrorKind) -> Self {
        if matches!(kind, ErrorKind::ModelUnavailable) {
            return Self::ModelServer;
        }
        match kind.class() {
            ErrorClass::User => Self::Usage,
            ErrorClass::Config => Self::Config,
            ErrorClass::Busy => Self::Busy,
            ErrorClass::Gone => Self::NotFound,
            ErrorClass::Internal => Self::Internal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Attempt {
    /// Returns whether the cause shows that no daemon runs, so that starting one can help.
    pub(crate) fn means_not_running(&self) -> bool {
        use AttemptCause::{Closed, Missing, Refused};
        matches!(self.cause, Missing | Refused | Closed)
    }
}

impl RpcFailure {
    /// Decodes an error reply; `data` that is not an object is dropped.
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
    /// Returns the error for the fields of a `ChatEvent::Error`, with which a chat turn ends.
    #[must_use]
    pub fn of_turn(code: i32, message: String, data: Value) -> Self {
        Self::Rpc(Box::new(RpcFailure::new(code, message, Some(data))))
    }

    /// Returns the further fields of an error of the daemon.
    pub(crate) fn fields(&self) -> Option<&Map<String, Value>> {
        match self {
            Self::Rpc(failure) => Some(&failure.fields),
            _ => None,
        }
    }

    /// Returns the stable name of this error; for an error of the daemon, the daemon's name for it.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.kind_and_exit().0
    }

    /// Returns whether other work of the session is in the way, for example the answer to another message.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.kind() == ErrorKind::Conflict.as_str()
    }

    /// Returns whether the connection was lost, so that the daemon may or may not have received the call.
    #[must_use]
    pub fn is_lost_connection(&self) -> bool {
        matches!(self, Self::Transport { .. } | Self::Closed { .. } | Self::Broken { .. })
    }

    /// Returns the exit code of `ollmctl` for this error.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.kind_and_exit().1
    }

    fn kind_and_exit(&self) -> (&str, Exit) {
        match self {
            Self::Rpc(failure) => {
                let known = failure.kind.map(ErrorKind::as_str);
                let name = failure.kind_name.as_deref().or(known).unwrap_or("unknown");
                (name, failure.kind.map_or(Exit::Internal, Exit::of_kind))
            }
            Self::StartFailed { kind: Some(kind), .. } => match kind.class() {
                ErrorClass::Config => (kind.as_str(), Exit::Config),
                _ => (kind.as_str(), Exit::Unreachable),
            },
            Self::StartFailed { kind: None, .. }
            | Self::DaemonNotFound
            | Self::Start { .. }
            | Self::StartTimeout { .. } => ("startFailed", Exit::Unreachable),
            Self::Unreachable { .. }
            | Self::ListensElsewhere { .. }
            | Self::Held { .. }
            | Self::ForeignHome { .. } => ("unreachable", Exit::Unreachable),
            Self::ProtocolMismatch { .. } => ("protocolMismatch", Exit::Unreachable),
            Self::Closed { .. } | Self::Broken { .. } | Self::Transport { .. } => {
                ("disconnected", Exit::Unreachable)
            }
            Self::NoHome | Self::SocketPathTooLong { .. } => ("usage", Exit::Usage),
            Self::BadParams { .. } => ("invalidParams", Exit::Usage),
            Self::RequestTooLarge { .. } => ("tooLarge", Exit::Usage),
            Self::ReplyTooLarge { .. } => ("tooLarge", Exit::Internal),
            Self::BadReply { .. } => ("badReply", Exit::Internal),
            Self::Timeout { .. } => ("timeout", Exit::Busy),
        }
    }

    /// Returns the command to type next, if one may help.
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
            Self::Held { pid: Some(pid), .. } => format!("kill {pid}"),
            Self::Held { home, pid: None } => format!("lsof {}", home.join("ollmd.lock").display()),
            Self::ForeignHome { owner, user: 0, .. } => {
                format!("sudo -u '#{owner}' ollmctl daemon start  # or give --home")
            }
            Self::ForeignHome { home, user, .. } => {
                let home = home.display();
                format!("ollmctl --home DIR ...  # or, if it is yours: sudo chown -R {user} {home}")
            }
            Self::ListensElsewhere { socket, .. } => {
                format!("ollmctl --socket {} ...", socket.display())
            }
            Self::DaemonNotFound => "export OLLM_DAEMON=/path/to/ollmd".to_owned(),
            Self::Start { path, .. } => format!("ls -ld {}", path.display()),
            Self::Timeout { .. } => "ollmctl --timeout 120 ...".to_owned(),
            Self::Closed { .. } | Self::Broken { .. } | Self::Transport { .. } => {
                "ollmctl daemon status".to_owned()
            }
            Self::ProtocolMismatch { protocol, .. } if *protocol > PROTOCOL_VERSION => {
                "type -a ollmctl  # the daemon is newer: use the ollmctl beside it".to_owned()
            }
            Self::ProtocolMismatch { .. } | Self::BadReply { .. } => {
                "ollmctl daemon restart".to_owned()
            }
            Self::RequestTooLarge { .. } | Self::ReplyTooLarge { .. } | Self::BadParams { .. } => {
                return None;
            }
        };
        Some(text)
    }
}

/// Returns the failed attempts on one line.
fn list(attempts: &[Attempt]) -> String {
    attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn process_suffix(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn unreachable_hint(attempts: &[Attempt]) -> String {
    match attempts.iter().find(|attempt| !attempt.means_not_running()) {
        None => "ollmctl daemon start".to_owned(),
        Some(Attempt { cause: AttemptCause::Slow(_), .. }) => "ollmctl daemon restart".to_owned(),
        Some(Attempt { cause: AttemptCause::Silent(_), .. }) => {
            "ollmctl --timeout 120 ...".to_owned()
        }
        Some(Attempt { cause: AttemptCause::OtherHome { served, .. }, .. }) => {
            format!("ollmctl --home {} ...", served.display())
        }
        Some(Attempt { path, .. }) => format!("ls -l {}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(path: &str, cause: AttemptCause) -> Attempt {
        Attempt { path: path.into(), cause }
    }

    #[test]
    fn unreachable_names_every_socket_with_its_cause_and_the_next_command() {
        let error = ClientError::Unreachable {
            attempts: vec![
                attempt("/a.sock", AttemptCause::Missing),
                attempt("/b.sock", AttemptCause::Refused),
            ],
        };
        assert_eq!(
            error.to_string(),
            "cannot connect to ollmd: /a.sock: no such socket; \
             /b.sock: no process listens (left by a daemon that crashed)"
        );
        assert_eq!(error.hint().as_deref(), Some("ollmctl daemon start"));
        let denied = AttemptCause::Failed(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = ClientError::Unreachable { attempts: vec![attempt("/a.sock", denied)] };
        assert!(error.to_string().contains("permission denied"));
        assert_eq!(error.hint().as_deref(), Some("ls -l /a.sock"));
        assert_eq!(error.exit(), Exit::Unreachable);
    }

    #[test]
    fn error_reply_is_identified_by_kind_then_by_code() {
        let data = serde_json::json!({"kind": "busy", "hint": "wait", "holder": "x"});
        let failure = RpcFailure::new(-1, "m".into(), Some(data));
        assert_eq!(failure.kind, Some(ErrorKind::Busy));
        assert_eq!(failure.fields["holder"], "x");
        assert_eq!(ClientError::Rpc(Box::new(failure)).exit(), Exit::Busy);
        let without_data = RpcFailure::new(-32601, "m".into(), None);
        assert_eq!(without_data.kind, Some(ErrorKind::MethodNotFound));
        let future = RpcFailure::new(4242, "m".into(), Some(serde_json::json!({"kind": "new"})));
        let error = ClientError::Rpc(Box::new(future));
        assert_eq!((error.kind(), error.exit()), ("new", Exit::Internal));
    }

    #[test]
    fn error_kind_has_the_code_of_its_class_or_its_own() {
        let check = |kind: ErrorKind, code: u8| assert_eq!(Exit::of_kind(kind) as u8, code);
        check(ErrorKind::Internal, 1);
        check(ErrorKind::Storage, 1);
        check(ErrorKind::InvalidParams, 2);
        check(ErrorKind::InvalidId, 2);
        check(ErrorKind::SessionNotFound, 3);
        check(ErrorKind::Busy, 4);
        check(ErrorKind::Conflict, 4);
        check(ErrorKind::Config, 5);
        check(ErrorKind::ModelUnavailable, 7);
        assert!(ErrorKind::ALL.iter().all(|kind| Exit::of_kind(*kind) as u8 > 0));
    }
}
