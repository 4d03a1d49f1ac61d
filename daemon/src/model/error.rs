//! The errors of calls to a model server: one variant for each cause that callers or users treat differently.
//!
//! Must not know how calls are made.
//!
//! **Invariant**: an error contains at most [`MAX_MESSAGE_BYTES`] of the server's own message, without control
//! characters, and no text of a conversation.

use std::fmt;
use std::time::Duration;

use ollm_protocol::model_host::InvalidHost;

use crate::nesting::MAX_LEVELS;

/// Maximum length of a server's message that is repeated. Error messages have one or two lines; a longer text is
/// probably something else, such as a page.
const MAX_MESSAGE_BYTES: usize = 300;

/// The server, and if the call is about one, the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallTarget {
    /// The address of the server, as returned by [`super::backend::Backend::host`].
    pub host: String,
    pub model: Option<String>,
    pub advice: &'static ServerAdvice,
}

/// What a person types when a kind of server fails. Each text is a command, except [`Self::address`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerAdvice {
    /// The kind of server, with its article.
    pub kind: &'static str,
    /// Starts the server on this machine.
    pub start: &'static str,
    /// Shows what the server does, if it fails while it answers.
    pub state: &'static str,
    /// Gets the model whose name follows; empty if the names of the configuration are not those of the command.
    pub get_model: &'static str,
    /// Gets a model that is small enough for any machine.
    pub get_small_model: &'static str,
    /// Gets a model that reads images.
    pub get_image_reader: &'static str,
    /// The settings of the server's address.
    pub address: &'static str,
}

impl fmt::Display for CallTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.model {
            Some(model) => write!(out, "model {model} at {}", self.host),
            None => write!(out, "the model server at {}", self.host),
        }
    }
}

/// A phase of a call that has its own time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPhase {
    /// Establishing the connection.
    Connect,
    /// Waiting for a whole response that is not streamed.
    Response,
    /// Waiting for the first piece of an answer.
    FirstToken,
    /// Waiting for the next piece of an answer.
    NextToken,
}

impl fmt::Display for CallPhase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Connect => "connection",
            Self::Response => "response",
            Self::FirstToken => "first token",
            Self::NextToken => "further token",
        })
    }
}

/// An ability that a model may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    Tools,
    Thinking,
    Chat,
    /// Another ability in the server's words.
    Other(String),
}

impl fmt::Display for Capability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tools => "tools",
            Self::Thinking => "thinking",
            Self::Chat => "chat",
            Self::Other(name) => name,
        })
    }
}

/// A call to a model server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ModelError {
    /// The configured address is invalid.
    #[error(transparent)]
    InvalidHost(#[from] InvalidHost),
    /// The configuration of a server cannot be used, or names no such server.
    #[error("the model server {server} {problem}")]
    Setup { server: String, problem: String },
    /// The server must not get texts of the session. `is_lost`: no server may until the list is set again, because its
    /// record may be lost. `change` is the command that changes the servers that may.
    #[error(
        "the model server {server} must not get texts of this session; allowed: {}",
        AllowedServers { allowed, is_lost: *is_lost }
    )]
    NotAllowed { server: String, allowed: Vec<String>, is_lost: bool, change: String },
    /// No connection could be established.
    #[error("cannot reach {to}: {reason}")]
    Unreachable { to: CallTarget, reason: String },
    /// A phase of the call exceeded its time limit.
    #[error("no {phase} from {to} within {} s", after.as_secs_f64())]
    Timeout { to: CallTarget, phase: CallPhase, after: Duration },
    /// The server does not have the model.
    #[error("there is no {to}")]
    NotFound { to: CallTarget },
    /// The model lacks a capability that the request needs.
    #[error("{to} does not support {capability}")]
    Unsupported { to: CallTarget, capability: Capability },
    /// The server refused the request.
    #[error("{to} refused the request with status {status}: {message}")]
    Refused { to: CallTarget, status: u16, message: String },
    /// Too many requests wait for the server.
    #[error("{to} is busy: {message}{}", WaitWish(*.retry_after))]
    Busy { to: CallTarget, message: String, retry_after: Option<Duration> },
    /// The model could not be loaded, or its process ended.
    #[error("{to} is not running: {message}")]
    LoadFailed { to: CallTarget, message: String },
    /// The prompt is longer than the window. The numbers are `None` if the server does not report them.
    #[error("the prompt is longer than the window of {to}{}", OverflowNumbers(*.needed, *.window))]
    Overflow { to: CallTarget, needed: Option<u64>, window: Option<u64> },
    /// The server canceled the request because it considered the client disconnected.
    #[error("{to} canceled the request: {message}")]
    GivenUp { to: CallTarget, message: String },
    /// The server failed before it sent a piece of the answer.
    #[error("{to} failed with status {status}: {message}")]
    Failed { to: CallTarget, status: u16, message: String },
    /// The server sent an error within the answer.
    #[error("{to} aborted the answer: {message}")]
    BrokeOff { to: CallTarget, message: String },
    /// The answer ended without the server's end marker.
    #[error("the answer of {to} ended without its end marker")]
    Incomplete { to: CallTarget },
    /// The connection was closed during the answer.
    #[error("the connection to {to} broke: {reason}")]
    Disconnected { to: CallTarget, reason: String },
    /// The server does not accept the host name in the request.
    #[error("{to} does not accept this host name (status 403 without a message)")]
    ForbiddenHost { to: CallTarget },
    /// The server requires a key.
    #[error("{to} requires a valid API key: {message}")]
    Unauthorized { to: CallTarget, message: String },
    /// The address belongs to another kind of server.
    #[error("{to} is not {}: {found}", to.advice.kind)]
    OtherServer { to: CallTarget, found: String },
    /// A part of the answer is not valid.
    #[error("{to} sent an invalid answer: {problem}")]
    Garbage { to: CallTarget, problem: String },
    /// The arguments of a tool call are nested too deeply.
    #[error("{to} called a tool with arguments that are nested deeper than {MAX_LEVELS} levels")]
    TooDeep { to: CallTarget },
    /// A response, or a line of an answer, exceeds the size limit.
    #[error("{to} sent {what} of more than {limit_bytes} bytes")]
    TooLarge { to: CallTarget, what: &'static str, limit_bytes: usize },
    /// The server redirects to another address, to which a conversation must not be sent without being configured.
    #[error("{to} redirects to {location}, which is not followed")]
    Redirected { to: CallTarget, location: String },
    /// The HTTP client or a request could not be created.
    #[error("cannot prepare a request to {to}: {reason}")]
    Client { to: CallTarget, reason: String },
}

impl ModelError {
    /// Returns the stable name of the error, for programs.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::InvalidHost(_) => "invalidHost",
            Self::Setup { .. } => "setup",
            Self::NotAllowed { .. } => "notAllowed",
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout { phase: CallPhase::Connect, .. } => "connectTimeout",
            Self::Timeout { phase: CallPhase::Response, .. } => "answerTimeout",
            Self::Timeout { phase: CallPhase::FirstToken, .. } => "firstTokenTimeout",
            Self::Timeout { phase: CallPhase::NextToken, .. } => "idleTimeout",
            Self::NotFound { .. } => "notFound",
            Self::Unsupported { .. } => "unsupported",
            Self::Refused { .. } => "refused",
            Self::Busy { .. } => "busy",
            Self::LoadFailed { .. } => "loadFailed",
            Self::Overflow { .. } => "overflow",
            Self::GivenUp { .. } => "givenUp",
            Self::Failed { .. } => "failed",
            Self::BrokeOff { .. } => "brokeOff",
            Self::Incomplete { .. } => "incomplete",
            Self::Disconnected { .. } => "disconnected",
            Self::ForbiddenHost { .. } => "forbiddenHost",
            Self::Unauthorized { .. } => "unauthorized",
            Self::OtherServer { .. } => "otherServer",
            Self::Garbage { .. } => "garbage",
            Self::TooDeep { .. } => "tooDeep",
            Self::TooLarge { .. } => "tooLarge",
            Self::Redirected { .. } => "redirected",
            Self::Client { .. } => "client",
        }
    }

    /// Returns whether another server with the same model may answer instead: the cause is the server and not the request.
    /// The caller must know that no piece of an answer arrived.
    pub(crate) const fn is_of_server(&self) -> bool {
        match self {
            Self::InvalidHost(_)
            | Self::Setup { .. }
            | Self::NotAllowed { .. }
            | Self::Unreachable { .. }
            | Self::Timeout { phase: CallPhase::Connect | CallPhase::Response, .. }
            | Self::NotFound { .. }
            | Self::Busy { .. }
            | Self::Incomplete { .. }
            | Self::Disconnected { .. }
            | Self::Unauthorized { .. }
            | Self::OtherServer { .. } => true,
            // A gateway does not reach its server.
            Self::Failed { status, .. } => matches!(*status, 502 | 504),
            _ => false,
        }
    }

    /// Returns whether the server itself failed, so that other sessions should avoid it.
    pub(crate) const fn is_failure_of_server(&self) -> bool {
        let is_of_settings =
            matches!(self, Self::InvalidHost(_) | Self::Setup { .. } | Self::NotAllowed { .. });
        self.is_of_server() && !is_of_settings
    }

    /// Adds the numbers of the caller to an overflow for which the server reported none.
    #[must_use]
    pub(crate) fn with_numbers(self, counted: u64, num_ctx: u32) -> Self {
        match self {
            Self::Overflow { to, needed, window } => {
                let window = window.or(Some(u64::from(num_ctx)));
                Self::Overflow { to, needed: needed.or(Some(counted)), window }
            }
            other => other,
        }
    }

    /// Returns the server and the model of the call.
    pub(crate) const fn target(&self) -> Option<&CallTarget> {
        match self {
            Self::InvalidHost(_) | Self::Setup { .. } | Self::NotAllowed { .. } => None,
            Self::Unreachable { to, .. }
            | Self::Timeout { to, .. }
            | Self::NotFound { to }
            | Self::Unsupported { to, .. }
            | Self::Refused { to, .. }
            | Self::Busy { to, .. }
            | Self::LoadFailed { to, .. }
            | Self::Overflow { to, .. }
            | Self::GivenUp { to, .. }
            | Self::Failed { to, .. }
            | Self::BrokeOff { to, .. }
            | Self::Incomplete { to }
            | Self::Disconnected { to, .. }
            | Self::ForbiddenHost { to }
            | Self::Unauthorized { to, .. }
            | Self::OtherServer { to, .. }
            | Self::Garbage { to, .. }
            | Self::TooDeep { to }
            | Self::TooLarge { to, .. }
            | Self::Redirected { to, .. }
            | Self::Client { to, .. } => Some(to),
        }
    }
}

/// Prints the servers that may get a session's texts.
struct AllowedServers<'a> {
    allowed: &'a [String],
    is_lost: bool,
}

impl fmt::Display for AllowedServers<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_lost, self.allowed) {
            (true, _) => out.write_str("none, because the list of servers may be lost"),
            (false, []) => out.write_str("none"),
            (false, allowed) => out.write_str(&allowed.join(", ")),
        }
    }
}

/// Prints how long a busy server asks to wait, if it does.
struct WaitWish(Option<Duration>);

impl fmt::Display for WaitWish {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(wait) => write!(out, "; it asks to wait {} s", wait.as_secs()),
            None => Ok(()),
        }
    }
}

/// Prints the numbers of an overflow, as far as they are known.
struct OverflowNumbers(Option<u64>, Option<u64>);

impl fmt::Display for OverflowNumbers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            // The server's count is higher, but it does not report it.
            (Some(counted), Some(window)) if counted <= window => {
                write!(out, ": {counted} of {window} tokens by the daemon's own count")
            }
            (Some(needed), Some(window)) => write!(out, ": {needed} of {window} tokens"),
            (Some(needed), None) => write!(out, ": {needed} tokens"),
            (None, Some(window)) => write!(out, " of {window} tokens"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns a server's message on one short line, without control characters.
pub(super) fn sanitized(text: &str) -> String {
    let mut message = String::new();
    for word in text.split(|char: char| char.is_whitespace() || char.is_control()) {
        if word.is_empty() {
            continue;
        }
        if !message.is_empty() {
            message.push(' ');
        }
        message.push_str(word);
        if message.len() > MAX_MESSAGE_BYTES {
            let end = (0..=MAX_MESSAGE_BYTES).rev().find(|end| message.is_char_boundary(*end));
            message.truncate(end.unwrap_or(0));
            message.push('…');
            break;
        }
    }
    if message.is_empty() { "no message".to_owned() } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ollama::ADVICE;

    #[test]
    fn error_text_names_server_model_and_numbers() {
        let target = |model: Option<&str>| CallTarget {
            host: "http://h:1".to_owned(),
            model: model.map(str::to_owned),
            advice: &ADVICE,
        };
        let to = target(Some("m:7b"));
        let check = |error: ModelError, expect: &str| assert_eq!(error.to_string(), expect);
        check(
            ModelError::Overflow { to: to.clone(), needed: Some(309), window: Some(256) },
            "the prompt is longer than the window of model m:7b at http://h:1: 309 of 256 tokens",
        );
        let silent = ModelError::Overflow { to: to.clone(), needed: None, window: None };
        check(
            silent.with_numbers(200, 256),
            "the prompt is longer than the window of model m:7b at http://h:1: 200 of 256 tokens by the daemon's own count",
        );
        check(
            ModelError::Overflow { to: to.clone(), needed: None, window: None },
            "the prompt is longer than the window of model m:7b at http://h:1",
        );
        let after = Duration::from_millis(1500);
        check(
            ModelError::Timeout { to: to.clone(), phase: CallPhase::NextToken, after },
            "no further token from model m:7b at http://h:1 within 1.5 s",
        );
        check(ModelError::NotFound { to }, "there is no model m:7b at http://h:1");
        let to = target(None);
        check(
            ModelError::Unreachable { to, reason: "connection refused".to_owned() },
            "cannot reach the model server at http://h:1: connection refused",
        );
    }

    #[test]
    fn server_message_is_shortened_and_sanitized() {
        assert_eq!(
            sanitized(" server busy,\n\u{1b}[31mplease  try"),
            "server busy, [31mplease try"
        );
        assert_eq!(sanitized(" \n "), "no message");
        let long = sanitized(&"é".repeat(1000));
        assert!(long.len() <= MAX_MESSAGE_BYTES + "…".len() && long.ends_with('…'));
    }
}
