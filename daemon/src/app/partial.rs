//! Answers that are being written: recorded piece by piece, so that a crash loses at most a second of them.
//!
//! A piece is a `custom` record outside of the context. The whole answer follows as a message and replaces its pieces.
//! Pieces at the end of a session were left by a crash: [`read_settled`] turns them into a message. FORMAT.md, "Partial
//! answers", describes the records.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{Custom, Message, Part, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::core::Core;
use super::drafts::{message_drafts, uncounted};
use super::error::Result;
use super::turn_feed::{AnswerBytes, AnswerText, TurnFeed};
use crate::session::index::IndexEntry;
use crate::session::{OpenSession, SessionError, SessionState};

/// The finish reason of an answer that a crash or an error cut off.
pub(crate) const INTERRUPTED: &str = "interrupted";
/// The time between two pieces.
const INTERVAL: Duration = Duration::from_secs(1);

/// The part of an answer since the piece before.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct AnswerPiece {
    #[serde(skip_serializing_if = "String::is_empty")]
    model: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
}

/// Records the pieces of an answer while it grows.
pub(crate) struct PartialWriter {
    id: SessionId,
    model: String,
    /// The part of the answer that is recorded.
    written: AnswerBytes,
    last: Instant,
}

impl PartialWriter {
    pub(crate) fn new(id: SessionId, model: &str) -> Self {
        let (written, last) = (AnswerBytes::default(), Instant::now());
        Self { id, model: model.to_owned(), written, last }
    }

    /// Waits until a piece with the new part of the answer is due: for ever if there is none.
    pub(crate) async fn due(&self, feed: &TurnFeed) {
        if feed.answer_bytes() != self.written {
            tokio::time::sleep_until(self.last + INTERVAL).await;
        } else {
            std::future::pending::<()>().await;
        }
    }

    /// Queues a piece with the new part of the answer, at most once a second.
    ///
    /// Does not wait for the sync: an error of the disk is reported when the whole answer is written.
    pub(crate) fn write(&mut self, core: &Core, feed: &TurnFeed) {
        if self.last.elapsed() < INTERVAL {
            return;
        }
        let bytes = feed.answer_bytes();
        if bytes == self.written {
            return;
        }
        let AnswerText { thinking, text } = feed.answer_since(self.written);
        let piece = AnswerPiece { model: self.model.clone(), thinking, text };
        let data = serde_json::to_value(&piece).expect("a struct of strings is JSON");
        let custom = Custom { name: Custom::PARTIAL_ANSWER.to_owned(), data, context_text: None };
        let draft = uncounted(RecordBody::Custom(custom));
        if let Err(error) = core.sessions.append(self.id, vec![draft], None) {
            tracing::warn!(session = %self.id, "a piece of an answer is not recorded: {error}");
        }
        (self.written, self.last) = (bytes, Instant::now());
    }
}

/// Calls `read` with a session that does not end with the pieces of an answer that a crash cut off. Blocks on the disk.
pub(crate) fn read_settled<T>(
    core: &Arc<Core>,
    id: SessionId,
    read: impl FnOnce(&OpenSession) -> T,
) -> Result<T> {
    settle(core, id)?;
    Ok(core.sessions.with(id, read)?)
}

/// Turns the pieces of an answer at the end of a session into its message, unless a turn is writing them: they were left by
/// a crash or a failed write. Blocks on the disk only if there are any.
pub(crate) fn settle(core: &Arc<Core>, id: SessionId) -> Result<()> {
    if core.turns.is_running(id) { Ok(()) } else { settle_now(core, id) }
}

/// Settles the session as [`settle`] does, for the turn that holds the session and has not begun to write.
pub(crate) fn settle_now(core: &Arc<Core>, id: SessionId) -> Result<()> {
    let (leaf, seqs) = core.sessions.with(id, |live| {
        let leaf = live.state().leaf();
        (leaf, last_pieces(live.state(), leaf))
    })?;
    if seqs.is_empty() {
        return Ok(());
    }
    let mut whole = AnswerPiece::default();
    for piece in core.sessions.bodies(id, &seqs)?.into_iter().filter_map(piece_of) {
        if !piece.model.is_empty() {
            whole.model = piece.model;
        }
        whole.thinking.push_str(&piece.thinking);
        whole.text.push_str(&piece.text);
    }
    let parts = answer_parts(whole.thinking, whole.text);
    if parts.is_empty() {
        return Ok(());
    }
    let mut message = Message::text(Role::Assistant, "", core.clock.now());
    message.parts = parts;
    message.model = Some(whole.model);
    message.finish_reason = Some(INTERRUPTED.to_owned());
    let (drafts, _) = message_drafts(core, id, message, false);
    match core.sessions.append_after(id, leaf, drafts, None)?.wait() {
        // A concurrent record or settlement ends the session, and no longer the pieces.
        Ok(_) | Err(SessionError::LeafMoved { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the pieces of an answer behind the conversation on the path to `leaf`, oldest first. Other changes may stand
/// between them.
pub(crate) fn last_pieces(state: &SessionState, leaf: Option<Seq>) -> Vec<Seq> {
    let is_behind = |entry: &IndexEntry| !entry.is_damaged() && !is_conversation(*entry);
    let behind = state.walk(leaf).map_while(|(seq, entry)| Some((seq, entry.filter(is_behind)?)));
    let pieces = behind.filter(|(_, entry)| entry.has(IndexEntry::PARTIAL)).map(|(seq, _)| seq);
    let mut pieces: Vec<Seq> = pieces.collect();
    pieces.reverse();
    pieces
}

/// Returns whether a record is a part of the conversation.
pub(crate) fn is_conversation(entry: IndexEntry) -> bool {
    match entry.kind() {
        Some(RecordKind::Message | RecordKind::ToolCall | RecordKind::BranchSummary) => true,
        Some(RecordKind::Custom) => entry.has(IndexEntry::IN_CONTEXT),
        _ => false,
    }
}

fn piece_of(body: Option<RecordBody>) -> Option<AnswerPiece> {
    match body {
        Some(RecordBody::Custom(custom)) => serde_json::from_value(custom.data).ok(),
        _ => None,
    }
}

/// Returns the parts of an answer's message without its tool calls.
pub(crate) fn answer_parts(thinking: String, text: String) -> Vec<Part> {
    let thinking = (!thinking.is_empty()).then_some(Part::Thinking { text: thinking });
    let text = (!text.is_empty()).then_some(Part::Text { text });
    thinking.into_iter().chain(text).collect()
}
