//! What can go wrong between the daemon and a model server: one variant for each thing that a caller can do
//! something different about.
//!
//! **Invariant**: a text holds the server's own words at most [`MAX_SAID_BYTES`] long and without control
//! characters, and never what was said in a conversation.

use std::fmt;
use std::time::Duration;

use super::host::InvalidHost;

/// The longest words of a server that are repeated: its errors are a line or two, and what claims to be more is
/// likely something else, such as a page.
pub(super) const MAX_SAID_BYTES: usize = 300;

/// Whom a call went to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The server, as [`super::Backend::host`] tells it.
    pub host: String,
    /// The model, where the call is about one.
    pub model: Option<String>,
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.model {
            Some(model) => write!(out, "model {model} at {}", self.host),
            None => write!(out, "the model server at {}", self.host),
        }
    }
}

/// A part of a call that has a time limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Until a connection stands.
    Connect,
    /// For all of a small answer.
    Answer,
    /// From the request to the first piece of an answer.
    FirstToken,
    /// Between two pieces of an answer.
    NextToken,
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Connect => "no connection",
            Self::Answer => "no answer",
            Self::FirstToken => "no first token",
            Self::NextToken => "no further token",
        })
    }
}

/// Something that a model may be able to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    /// Calling tools.
    Tools,
    /// Thinking before it answers.
    Thinking,
    /// Conversations.
    Chat,
    /// Something else, in the server's word.
    Other(String),
}

impl fmt::Display for Capability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tools => "tools",
            Self::Thinking => "thinking",
            Self::Chat => "chat",
            Self::Other(word) => word,
        })
    }
}

/// A call to a model server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ModelError {
    /// The configured address is none.
    #[error(transparent)]
    InvalidHost(#[from] InvalidHost),
    /// Nobody answers there.
    #[error("cannot reach {to}: {reason}")]
    Unreachable { to: Target, reason: String },
    /// A phase of the call took too long.
    #[error("{phase} from {to} within {}", Seconds(*.after))]
    Timeout { to: Target, phase: Phase, after: Duration },
    /// The server does not have the model.
    #[error("there is no {to}")]
    NotFound { to: Target },
    /// The model cannot do what was asked for.
    #[error("{to} cannot do {capability}")]
    Unsupported { to: Target, capability: Capability },
    /// The server does not take the request.
    #[error("{to} refuses the request with status {status}: {said}")]
    Refused { to: Target, status: u16, said: String },
    /// Too many requests wait for the server.
    #[error("{to} is busy: {said}")]
    Busy { to: Target, said: String },
    /// The model cannot be loaded, or its process died.
    #[error("{to} does not run: {said}")]
    LoadFailed { to: Target, said: String },
    /// The prompt is longer than the window; numbers where the server gives them.
    #[error("the prompt is longer than the window of {to}{}", Numbers(*.needed, *.window))]
    Overflow { to: Target, needed: Option<u64>, window: Option<u64> },
    /// The server gave the request up because it took its client for gone.
    #[error("{to} gave the request up: {said}")]
    GivenUp { to: Target, said: String },
    /// The server failed before it answered.
    #[error("{to} failed with status {status}: {said}")]
    Failed { to: Target, status: u16, said: String },
    /// The server broke an answer off and said why.
    #[error("{to} broke the answer off: {said}")]
    BrokeOff { to: Target, said: String },
    /// The answer ended without the server's end marker.
    #[error("the answer of {to} ended without its end marker")]
    Incomplete { to: Target },
    /// The connection broke during an answer.
    #[error("the connection to {to} broke: {reason}")]
    Disconnected { to: Target, reason: String },
    /// The server does not take the name that it was called by.
    #[error("{to} does not answer to this host name (status 403 without a word)")]
    ForbiddenHost { to: Target },
    /// The server wants a key.
    #[error("{to} wants a valid key: {said}")]
    Unauthorized { to: Target, said: String },
    /// Something else listens there.
    #[error("{to} is no Ollama: {found}")]
    NotOllama { to: Target, found: String },
    /// What was sent is not what the protocol says.
    #[error("{to} sent {what}")]
    Garbage { to: Target, what: String },
    /// An answer, or a line of one, is larger than anything that makes sense.
    #[error("{to} sent {what} of more than {limit_bytes} bytes")]
    TooLarge { to: Target, what: &'static str, limit_bytes: usize },
    /// The server sends its clients elsewhere, where no conversation may go unasked.
    #[error("{to} redirects to {location}, which is not followed")]
    Redirected { to: Target, location: String },
    /// The HTTP client cannot be made.
    #[error("cannot prepare a connection to {to}: {reason}")]
    Client { to: Target, reason: String },
}

impl ModelError {
    /// The stable name of what went wrong, for programs.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::InvalidHost(_) => "invalidHost",
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout { phase: Phase::Connect, .. } => "connectTimeout",
            Self::Timeout { phase: Phase::Answer, .. } => "answerTimeout",
            Self::Timeout { phase: Phase::FirstToken, .. } => "firstTokenTimeout",
            Self::Timeout { phase: Phase::NextToken, .. } => "idleTimeout",
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
            Self::NotOllama { .. } => "notOllama",
            Self::Garbage { .. } => "garbage",
            Self::TooLarge { .. } => "tooLarge",
            Self::Redirected { .. } => "redirected",
            Self::Client { .. } => "client",
        }
    }

    /// With what was counted and the window, where the server gave no numbers of its own to an overflow.
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

    /// Whom the call went to.
    pub(crate) const fn target(&self) -> Option<&Target> {
        match self {
            Self::InvalidHost(_) => None,
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
            | Self::NotOllama { to, .. }
            | Self::Garbage { to, .. }
            | Self::TooLarge { to, .. }
            | Self::Redirected { to, .. }
            | Self::Client { to, .. } => Some(to),
        }
    }
}

/// A duration as a person reads it.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} s", self.0.as_secs_f64())
    }
}

/// The numbers of an overflow, as far as they are known.
struct Numbers(Option<u64>, Option<u64>);

impl fmt::Display for Numbers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            // The server counts otherwise, and does not say how many.
            (Some(counted), Some(window)) if counted <= window => {
                write!(out, ": {counted} of {window} tokens as they were counted here")
            }
            (Some(needed), Some(window)) => write!(out, ": {needed} of {window} tokens"),
            (Some(needed), None) => write!(out, ": {needed} tokens"),
            (None, Some(window)) => write!(out, " of {window} tokens"),
            (None, None) => Ok(()),
        }
    }
}

/// Words of a server as an error repeats them: on one line, short, without anything that a terminal obeys.
pub(super) fn said(text: &str) -> String {
    let mut said = String::new();
    for word in text.split(|char: char| char.is_whitespace() || char.is_control()) {
        if word.is_empty() {
            continue;
        }
        if !said.is_empty() {
            said.push(' ');
        }
        said.push_str(word);
        if said.len() > MAX_SAID_BYTES {
            let end = (0..=MAX_SAID_BYTES).rev().find(|end| said.is_char_boundary(*end));
            said.truncate(end.unwrap_or(0));
            said.push('…');
            break;
        }
    }
    if said.is_empty() { "without a word".to_owned() } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_server_model_and_numbers() {
        let to = Target { host: "http://h:1".to_owned(), model: Some("m:7b".to_owned()) };
        let check = |error: ModelError, expect: &str| assert_eq!(error.to_string(), expect);
        check(
            ModelError::Overflow { to: to.clone(), needed: Some(309), window: Some(256) },
            "the prompt is longer than the window of model m:7b at http://h:1: 309 of 256 tokens",
        );
        let silent = ModelError::Overflow { to: to.clone(), needed: None, window: None };
        check(
            silent.with_numbers(200, 256),
            "the prompt is longer than the window of model m:7b at http://h:1: 200 of 256 tokens as they were counted here",
        );
        check(
            ModelError::Overflow { to: to.clone(), needed: None, window: None },
            "the prompt is longer than the window of model m:7b at http://h:1",
        );
        let after = Duration::from_millis(1500);
        check(
            ModelError::Timeout { to: to.clone(), phase: Phase::NextToken, after },
            "no further token from model m:7b at http://h:1 within 1.5 s",
        );
        check(ModelError::NotFound { to }, "there is no model m:7b at http://h:1");
        let to = Target { host: "http://h:1".to_owned(), model: None };
        check(
            ModelError::Unreachable { to, reason: "connection refused".to_owned() },
            "cannot reach the model server at http://h:1: connection refused",
        );
    }

    #[test]
    fn a_servers_words_are_short_and_harmless() {
        assert_eq!(said(" server busy,\n\u{1b}[31mplease  try"), "server busy, [31mplease try");
        assert_eq!(said(" \n "), "without a word");
        let long = said(&"é".repeat(1000));
        assert!(long.len() <= MAX_SAID_BYTES + "…".len() && long.ends_with('…'));
    }
}
