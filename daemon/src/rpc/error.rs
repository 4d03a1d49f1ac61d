//! What a refusal says on the wire.
//!
//! The only file that turns errors of the domain into error kinds. A message says what was attempted and why it
//! failed; the full chain of causes goes to the log, not to the caller.

use jsonrpsee::types::ErrorObjectOwned;
use ollm_protocol::{ErrorData, ErrorKind};
use serde_json::{Map, Value};

/// The longest message in bytes: a few lines for a person. Messages quote names that clients made up, which may
/// be as long as a frame.
const MAX_MESSAGE_BYTES: usize = 1000;

/// An error as a client receives it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RpcError {
    /// What the client decides by.
    pub kind: ErrorKind,
    /// What a person reads.
    pub message: String,
    /// A command that helps, ready to type.
    pub hint: Option<String>,
    /// The fields that the kind promises.
    pub fields: Box<Map<String, Value>>,
}

impl RpcError {
    /// An error with neither hint nor fields.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, fields: Box::default() }
    }

    /// A defect of ours; the log has the details.
    pub(crate) fn internal() -> Self {
        let message = "the daemon failed while it worked on the call; its log has the details";
        Self::new(ErrorKind::Internal, message).with_hint("ollmctl daemon status")
    }

    /// The daemon leaves and does not finish this.
    pub(crate) fn leaving() -> Self {
        Self::new(ErrorKind::Cancelled, "the daemon is leaving")
    }

    /// More bytes than allowed, in either direction.
    pub(crate) fn too_large(what: &str, limit: usize) -> Self {
        Self::new(ErrorKind::TooLarge, format!("{what} is larger than {limit} bytes"))
            .with_field("limit", limit)
    }

    /// Adds a command that helps.
    #[must_use]
    pub(crate) fn with_hint(mut self, command: impl Into<String>) -> Self {
        self.hint = Some(command.into());
        self
    }

    /// Adds a field that the kind promises.
    #[must_use]
    pub(crate) fn with_field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }
}

impl From<RpcError> for ErrorObjectOwned {
    fn from(error: RpcError) -> Self {
        let RpcError { kind, mut message, hint, fields } = error;
        shorten(&mut message, MAX_MESSAGE_BYTES);
        Self::owned(kind.code(), message, Some(ErrorData { kind, hint, fields: *fields }))
    }
}

/// Cuts a text that may quote what a client sent.
pub(crate) fn shorten(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        let end = (0..=max_bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_has_kind_hint_and_fields() {
        let error = RpcError::too_large("the frame", 16).with_hint("ollmctl daemon status");
        let wire = serde_json::to_value(ErrorObjectOwned::from(error)).expect("serializes");
        let expect = serde_json::json!({
            "code": -32007,
            "message": "the frame is larger than 16 bytes",
            "data": { "kind": "tooLarge", "hint": "ollmctl daemon status", "limit": 16 },
        });
        assert_eq!(wire, expect);
    }

    #[test]
    fn what_a_client_made_up_cannot_swell_the_answer() {
        let error = RpcError::new(ErrorKind::MethodNotFound, "é".repeat(1 << 20));
        let wire = ErrorObjectOwned::from(error);
        assert_eq!(wire.message().len(), MAX_MESSAGE_BYTES + "…".len());
    }
}
