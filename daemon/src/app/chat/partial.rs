//! Answers in the making: written piece by piece, so that a crash costs at most a second of them.
//!
//! A piece is a `custom` record of our own name, out of the context. The whole answer follows as a message in the
//! end, and the pieces mean nothing any more. Pieces that are the last thing in a session are what a crash left:
//! [`settle`] makes a message of them. FORMAT.md, "Partial answers".

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{Custom, Message, Part, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};
use serde::{Deserialize, Serialize};

use super::answer::INTERRUPTED;
use crate::app::{AppError, Core, counted, goal};
use crate::session::{NewRecord, OpenSession, SessionError};

/// The name of the custom records that hold pieces.
pub(crate) const PARTIAL_ANSWER: &str = "ollm.partialAnswer";
/// How often a piece is written while an answer goes on.
const EVERY: Duration = Duration::from_secs(1);

/// What the model said since the piece before.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Piece {
    #[serde(skip_serializing_if = "String::is_empty")]
    model: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
}

/// Writes an answer's pieces as it grows.
pub(super) struct Pieces {
    id: SessionId,
    model: String,
    text_bytes: usize,
    thinking_bytes: usize,
    last: Instant,
}

impl Pieces {
    /// None written yet.
    pub(super) fn new(id: SessionId, model: &str) -> Self {
        let last = Instant::now();
        Self { id, model: model.to_owned(), text_bytes: 0, thinking_bytes: 0, last }
    }

    /// Writes what is new, when it is time to.
    ///
    /// Nobody waits for it: a disk that refuses is told when the whole answer is written.
    pub(super) fn note(&mut self, core: &Core, text: &str, thinking: &str) {
        let grown = text.len() > self.text_bytes || thinking.len() > self.thinking_bytes;
        if !grown || self.last.elapsed() < EVERY {
            return;
        }
        let piece = Piece {
            model: self.model.clone(),
            thinking: thinking[self.thinking_bytes..].to_owned(),
            text: text[self.text_bytes..].to_owned(),
        };
        let data = serde_json::to_value(&piece).expect("a struct of strings is JSON");
        let custom = Custom { name: PARTIAL_ANSWER.to_owned(), data, context_text: None };
        let draft = NewRecord::new(RecordBody::Custom(custom), None);
        if let Err(error) = core.sessions.append(self.id, vec![draft], None) {
            tracing::warn!(session = %self.id, "a piece of an answer is not recorded: {error}");
        }
        (self.text_bytes, self.thinking_bytes) = (text.len(), thinking.len());
        self.last = Instant::now();
    }
}

/// Makes a message of the pieces that a crash left at the end of a session, unless a turn is writing them. Blocks
/// on the disk.
///
/// Costs a look at the last record where there are none.
pub(crate) fn settle(core: &Arc<Core>, id: SessionId) -> Result<(), AppError> {
    if core.chats.is_running(id) { Ok(()) } else { settle_now(core, id) }
}

/// As [`settle`], for the turn that holds the session and has not begun to write.
pub(super) fn settle_now(core: &Arc<Core>, id: SessionId) -> Result<(), AppError> {
    let (leaf, seqs) = core.sessions.with(id, last_customs)?;
    // Other clients' records end a session too: only the newest is looked at where it is not ours.
    let Some((newest, before)) = seqs.split_first() else { return Ok(()) };
    let Some(newest) = pieces(core, id, &[*newest])?.pop() else { return Ok(()) };
    let mut whole = Piece::default();
    for piece in pieces(core, id, before)?.into_iter().rev().chain([newest]) {
        whole.model = piece.model;
        whole.thinking.push_str(&piece.thinking);
        whole.text.push_str(&piece.text);
    }
    let mut message = Message::text(Role::Assistant, "", core.clock.now());
    message.parts = parts(whole.thinking, whole.text);
    message.model = Some(whole.model);
    message.finish_reason = Some(INTERRUPTED.to_owned());
    let marked = goal::marked(core, id, &message, false);
    let body = RecordBody::Message(message);
    let (draft, _) = counted(core, id, body);
    let drafts = [draft].into_iter().chain(marked).collect();
    let answer = core.sessions.append_after(id, leaf, drafts)?;
    match answer.blocking_recv().map_err(|_| SessionError::Stopping)? {
        // Somebody else settled it or went on; either way the pieces are no longer last.
        Ok(_) | Err(SessionError::LeafMoved { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The active leaf, and the custom records that end the path with it, the newest first.
fn last_customs(live: &OpenSession) -> (Option<Seq>, Vec<Seq>) {
    let state = live.state();
    let (leaf, mut next, mut seqs) = (state.leaf(), state.leaf(), Vec::new());
    while let Some(seq) = next
        && let Some(entry) = state.entry(seq)
        && entry.kind() == Some(RecordKind::Custom)
    {
        seqs.push(seq);
        next = entry.parent();
    }
    (leaf, seqs)
}

/// The pieces among records, from the first on until one is none.
fn pieces(core: &Core, id: SessionId, seqs: &[Seq]) -> Result<Vec<Piece>, AppError> {
    Ok(core.sessions.bodies(id, seqs)?.into_iter().map_while(piece_of).collect())
}

/// How many of some records are pieces, from the first on until one is none.
pub(super) fn n_pieces(core: &Core, id: SessionId, seqs: &[Seq]) -> Result<usize, AppError> {
    Ok(pieces(core, id, seqs)?.len())
}

fn piece_of(body: Option<RecordBody>) -> Option<Piece> {
    match body {
        Some(RecordBody::Custom(custom)) if custom.name == PARTIAL_ANSWER => {
            serde_json::from_value(custom.data).ok()
        }
        _ => None,
    }
}

/// The parts of an answer's message without its calls.
pub(super) fn parts(thinking: String, text: String) -> Vec<Part> {
    let thinking = (!thinking.is_empty()).then_some(Part::Thinking { text: thinking });
    let text = (!text.is_empty()).then_some(Part::Text { text });
    thinking.into_iter().chain(text).collect()
}
