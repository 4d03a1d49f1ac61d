//! The lines of a streamed answer of Ollama: one JSON object each.
//!
//! Must not know how a request is sent.
//!
//! **Invariant**: an error in a line precedes everything else in it.

use super::wire::{ChatLine, ErrorLine};
use crate::model::error::{CallTarget, ModelError};
use crate::model::info::Version;
use crate::model::line_stream::{LineFailure, LineParser, ParsedLine};
use crate::nesting;

/// Reads the lines of a server of this version, which decides the meaning of its counts.
pub(super) struct OllamaLines(pub(super) Version);

impl LineParser for OllamaLines {
    fn parse(&mut self, to: &CallTarget, number: u64, line: &[u8]) -> ParsedLine {
        let (mut parsed, failed) = match parse(to, number, line) {
            Ok(parsed) => (parsed, None),
            Err(error) => match texts_beside(&error, line) {
                Some(texts) => (texts, Some(error)),
                None => return ParsedLine::failed(error),
            },
        };
        let deltas = parsed.take_deltas();
        let end = parsed.is_done().then(|| parsed.into_end(&self.0));
        ParsedLine { deltas, end, failed, is_empty: false }
    }
}

/// Parses a line. If it contains an error, everything else in it is ignored.
pub(super) fn parse(to: &CallTarget, number: u64, line: &[u8]) -> Result<ChatLine, LineFailure> {
    // The text of the line is not repeated, because it may be part of a conversation.
    let garbage = || {
        if nesting::is_unparsable(line) {
            return ModelError::TooDeep { to: to.clone() };
        }
        let problem = format!("line {number} ({} bytes) cannot be parsed", line.len());
        ModelError::Garbage { to: to.clone(), problem }
    };
    // serde would read an array as the fields of a struct.
    if line.first() != Some(&b'{') {
        return Err(garbage().into());
    }
    let ErrorLine { error } = serde_json::from_slice(line).map_err(|_| garbage())?;
    if let Some(error) = error {
        return Err(LineFailure::Sent(error));
    }
    serde_json::from_slice(line).map_err(|_| garbage().into())
}

/// Returns the texts of a line that was refused because its tool calls are nested too deeply.
fn texts_beside(error: &LineFailure, line: &[u8]) -> Option<ChatLine> {
    let is_too_deep = matches!(error, LineFailure::Found(ModelError::TooDeep { .. }));
    is_too_deep.then(|| ChatLine::texts_of(line)).flatten()
}
