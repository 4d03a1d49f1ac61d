//! Why a turn did not begin, or ended without an answer.

use std::time::Duration;

use ollm_protocol::{Seq, SessionId, Timestamp};

use super::Spent;
use crate::model::ModelError;

/// A turn failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ChatError {
    /// Another turn of the session is going on.
    #[error("session {id} is being answered by {model} since {since}")]
    Conflict {
        /// The session.
        id: SessionId,
        /// The model that answers.
        model: String,
        /// Since when.
        since: Timestamp,
    },
    /// No turn of the session waits for tools.
    #[error("no turn of session {id} waits for results of tools")]
    NothingAwaited {
        /// The session.
        id: SessionId,
    },
    /// Somebody ended it.
    #[error("the turn was canceled")]
    Canceled {
        /// The record of what was answered until then.
        partial: Option<Seq>,
    },
    /// The model server failed.
    #[error("{source}")]
    Model {
        /// How.
        source: ModelError,
        /// The record of what was answered until then.
        partial: Option<Seq>,
    },
    /// The model answered nothing.
    #[error(
        "{model} answered nothing; the prompt has {prompt_tokens} tokens, and {prompt_limit} may be sent"
    )]
    Empty {
        /// The model.
        model: String,
        /// Tokens that were sent.
        prompt_tokens: u64,
        /// The most that may be sent.
        prompt_limit: u64,
        /// The record of what it thought.
        partial: Option<Seq>,
    },
    /// The model thought until a limit was met.
    #[error("{model} {spent}")]
    OnlyThought {
        /// The session.
        id: SessionId,
        /// The model.
        model: String,
        /// On what its tokens went, and what would leave some.
        spent: Spent,
        /// The record of what it thought.
        partial: Option<Seq>,
    },
    /// The server read less than was sent.
    #[error("{model} read {read} of the {sent} tokens that were sent: the server cut the prompt")]
    Truncated {
        /// The model.
        model: String,
        /// Tokens that were sent.
        sent: u64,
        /// Tokens that the server read.
        read: u64,
        /// The record of the answer, which is marked.
        partial: Option<Seq>,
    },
    /// The client did not give the results of tools in time.
    #[error("no results of {} within {} s", .missing.join(", "), .after.as_secs())]
    ToolTimeout {
        /// The calls without a result.
        missing: Vec<String>,
        /// How long they were waited for.
        after: Duration,
    },
    /// The model called tools, and the client offers none.
    #[error("{model} called {name}, and no tool was offered to it")]
    UnexpectedCall {
        /// The model.
        model: String,
        /// The tool.
        name: String,
        /// The record of its message.
        partial: Seq,
    },
}

impl ChatError {
    /// The record of what was answered until the turn ended.
    pub(crate) const fn partial(&self) -> Option<Seq> {
        match self {
            Self::Canceled { partial }
            | Self::Model { partial, .. }
            | Self::Empty { partial, .. }
            | Self::OnlyThought { partial, .. }
            | Self::Truncated { partial, .. } => *partial,
            Self::UnexpectedCall { partial, .. } => Some(*partial),
            _ => None,
        }
    }
}
