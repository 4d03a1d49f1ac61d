//! One write on its way: what is to be written, who waits, and what they are told.

use std::collections::HashMap;

use ollm_protocol::{Seq, Timestamp};
use tokio::sync::oneshot;

use super::index::KeyEntry;
use super::live::Live;
use super::{Appended, Draft, KeyUse, SessionError};

/// What a caller is told.
pub(super) type Reply = oneshot::Sender<Result<Appended, SessionError>>;

/// Answers a caller; one that left does not undo what is durable.
pub(super) fn tell(reply: Reply, result: Result<Appended, SessionError>) {
    drop(reply.send(result));
}

/// One write: records that become durable together.
pub(super) struct Command {
    /// The records, at least one.
    pub drafts: Vec<Draft>,
    /// The key that makes a retry write nothing.
    pub key: Option<KeyUse>,
    /// The active leaf that the write was planned on; any other refuses it.
    pub expected_leaf: Option<Option<Seq>>,
    /// Who waits.
    pub reply: Reply,
}

/// What a write's caller is told, once the fold has it.
pub(super) enum Outcome {
    /// Records were written, the first of them this.
    Written(Seq, Timestamp),
    /// The key had made this record before.
    Known(KeyEntry),
    /// This write alone could not be done.
    Refused(SessionError),
}

impl Outcome {
    pub(super) fn complete(self, live: &Live) -> Result<Appended, SessionError> {
        let (seq, at, duplicate) = match self {
            Self::Written(seq, at) => (seq, Some(at), false),
            Self::Known(key) => (Seq(u64::from(key.seq)), None, true),
            Self::Refused(error) => return Err(error),
        };
        let (id, state) = (live.state.id(), &live.state);
        let entry = state.entry(seq).ok_or(SessionError::RecordNotFound { id, seq })?;
        let at = at
            .or_else(|| live.reader().read(entry).map(|record| record.at))
            .ok_or(SessionError::RecordNotFound { id, seq })?;
        Ok(Appended { seq, at, tokens: entry.tokens, usage: state.usage(), duplicate })
    }
}

/// The keys that one batch has used so far.
pub(super) type BatchKeys = HashMap<[u8; 16], KeyEntry>;
