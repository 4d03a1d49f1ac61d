//! Answers that are being written: recorded piece by piece, so that a crash loses at most a second of them.
//!
//! A piece is a `custom` record outside of the context. The whole answer follows as a message and replaces its pieces.
//! Pieces at the end of a session were left by a crash: [`settle`] turns them into a message. FORMAT.md, "Partial
//! answers", describes the records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{Custom, Message, Part, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};
use serde::{Deserialize, Serialize};

use super::core::Core;
use super::drafts::{message_drafts, uncounted};
use super::error::Result;
use crate::facts::FORGET_RECORD;
use crate::session::SessionState;

/// The finish reason of an answer that a crash or an error cut off.
pub(crate) const INTERRUPTED: &str = "interrupted";
/// The name of the custom records that hold pieces.
const PARTIAL_ANSWER: &str = "ollm.partialAnswer";
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
    text_bytes: usize,
    thinking_bytes: usize,
    last: Instant,
}

impl PartialWriter {
    pub(crate) fn new(id: SessionId, model: &str) -> Self {
        let last = Instant::now();
        Self { id, model: model.to_owned(), text_bytes: 0, thinking_bytes: 0, last }
    }

    /// Queues a piece with the new part of the answer, at most once a second.
    ///
    /// Does not wait for the sync: an error of the disk is reported when the whole answer is written.
    pub(crate) fn write(&mut self, core: &Core, text: &str, thinking: &str) {
        let has_grown = text.len() > self.text_bytes || thinking.len() > self.thinking_bytes;
        if !has_grown || self.last.elapsed() < INTERVAL {
            return;
        }
        let piece = AnswerPiece {
            model: self.model.clone(),
            thinking: thinking[self.thinking_bytes..].to_owned(),
            text: text[self.text_bytes..].to_owned(),
        };
        let data = serde_json::to_value(&piece).expect("a struct of strings is JSON");
        let custom = Custom { name: PARTIAL_ANSWER.to_owned(), data, context_text: None };
        let draft = uncounted(RecordBody::Custom(custom));
        if let Err(error) = core.sessions.append(self.id, vec![draft], None) {
            tracing::warn!(session = %self.id, "a piece of an answer is not recorded: {error}");
        }
        (self.text_bytes, self.thinking_bytes) = (text.len(), thinking.len());
        self.last = Instant::now();
    }
}

/// Turns the pieces that a crash left at the end of a session into a message, unless a turn is writing them. Blocks on
/// the disk.
///
/// Without pieces, this only reads the last record.
pub(crate) fn settle(core: &Arc<Core>, id: SessionId) -> Result<()> {
    if core.turns.is_running(id) { Ok(()) } else { settle_now(core, id) }
}

/// Like [`settle`], for the turn that holds the session and has not begun to write.
pub(crate) fn settle_now(core: &Arc<Core>, id: SessionId) -> Result<()> {
    let (leaf, seqs) = core.sessions.with(id, |live| {
        let leaf = live.state().leaf();
        let seqs = last_customs(live.state(), leaf).into_iter().map(|(seq, _)| seq);
        (leaf, seqs.collect::<Vec<_>>())
    })?;
    // A session can end with custom records of clients: if the newest one is no piece, the others are not read.
    let Some((newest, before)) = seqs.split_first() else { return Ok(()) };
    let Some(newest) = pieces(core, id, &[*newest])?.pop() else { return Ok(()) };
    let mut whole = AnswerPiece::default();
    for piece in pieces(core, id, before)?.into_iter().rev().chain([newest]) {
        if !piece.model.is_empty() {
            whole.model = piece.model;
        }
        whole.thinking.push_str(&piece.thinking);
        whole.text.push_str(&piece.text);
    }
    if whole.text.is_empty() && whole.thinking.is_empty() {
        return Ok(());
    }
    let mut message = Message::text(Role::Assistant, "", core.clock.now());
    message.parts = answer_parts(whole.thinking, whole.text);
    message.model = Some(whole.model);
    message.finish_reason = Some(INTERRUPTED.to_owned());
    let (drafts, _) = message_drafts(core, id, message, false);
    // If the leaf moved, a concurrent record or settlement ends the session, and no longer the pieces.
    core.append_if_leaf_blocking(id, leaf, drafts)?;
    Ok(())
}

/// Returns the record before the pieces that end the path to `leaf`. Blocks on the disk.
pub(crate) fn before_pieces(core: &Core, id: SessionId, leaf: Option<Seq>) -> Result<Option<Seq>> {
    let customs = core.sessions.with(id, |live| last_customs(live.state(), leaf))?;
    let seqs: Vec<Seq> = customs.iter().map(|(seq, _)| *seq).collect();
    let n_pieces = pieces(core, id, &seqs)?.len();
    Ok(n_pieces.checked_sub(1).map_or(leaf, |oldest| customs[oldest].1))
}

/// Returns the custom records that end the path to `leaf`, newest first, each with its parent.
fn last_customs(state: &SessionState, leaf: Option<Seq>) -> Vec<(Seq, Option<Seq>)> {
    let customs = state.walk(leaf).map_while(|(seq, entry)| {
        let entry = entry.filter(|entry| entry.kind() == Some(RecordKind::Custom))?;
        Some((seq, entry.parent()))
    });
    customs.collect()
}

/// Reads pieces, up to the first record that is not one.
fn pieces(core: &Core, id: SessionId, seqs: &[Seq]) -> Result<Vec<AnswerPiece>> {
    Ok(core.sessions.bodies(id, seqs)?.into_iter().map_while(piece_of).collect())
}

fn piece_of(body: Option<RecordBody>) -> Option<AnswerPiece> {
    match body {
        Some(RecordBody::Custom(custom)) if custom.name == PARTIAL_ANSWER => {
            serde_json::from_value(custom.data).ok()
        }
        // A fact that was suppressed while the answer was written does not end it.
        Some(RecordBody::Custom(custom)) if custom.name == FORGET_RECORD => {
            Some(AnswerPiece::default())
        }
        _ => None,
    }
}

/// Returns the parts of an answer's message without its tool calls.
pub(crate) fn answer_parts(thinking: String, text: String) -> Vec<Part> {
    let thinking = (!thinking.is_empty()).then_some(Part::Thinking { text: thinking });
    let text = (!text.is_empty()).then_some(Part::Text { text });
    thinking.into_iter().chain(text).collect()
}
