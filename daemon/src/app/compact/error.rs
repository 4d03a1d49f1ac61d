//! Why a compaction was not done.

use ollm_protocol::{SessionId, Timestamp};

use crate::context::compact::RejectedSummary;
use crate::model::ModelError;

/// A compaction failed, or did not begin.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CompactError {
    /// Another one of the session is going on.
    #[error("session {id} is being compacted for {holder} since {since}")]
    Conflict {
        /// The session.
        id: SessionId,
        /// Who it is for.
        holder: &'static str,
        /// Since when.
        since: Timestamp,
    },
    /// The model server failed.
    #[error("no summary was made: {0}")]
    Model(ModelError),
    /// The model did not write a summary, twice.
    #[error("{model} wrote no summary: {reason}")]
    Rejected {
        /// The model.
        model: String,
        /// What was wrong the second time.
        reason: RejectedSummary,
    },
    /// Others need the model all the time.
    #[error("no summary was made, because {model} was needed by others")]
    Crowded {
        /// The model.
        model: String,
    },
    /// The window of the summarizer has no room for records.
    #[error("a window of {window} tokens is too small to make a summary with {model}")]
    NoRoom {
        /// The model.
        model: String,
        /// Its window.
        window: u32,
    },
    /// Somebody moved the session to another branch.
    #[error("session {id} went to another branch meanwhile")]
    Moved {
        /// The session.
        id: SessionId,
    },
    /// The new context would not be smaller.
    #[error(
        "the context of session {id} would not become smaller: {before} tokens now, {after} then"
    )]
    NoGain {
        /// The session.
        id: SessionId,
        /// Tokens now.
        before: u64,
        /// Tokens of the new context; as many as before where none could be planned.
        after: u64,
    },
}

impl CompactError {
    /// The stable name of what went wrong, for events.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "conflict",
            Self::Model(error) => error.reason(),
            Self::Rejected { .. } => "noSummary",
            Self::Crowded { .. } => "crowded",
            Self::NoRoom { .. } => "noRoom",
            Self::Moved { .. } => "moved",
            Self::NoGain { .. } => "noGain",
        }
    }
}
