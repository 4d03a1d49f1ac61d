//! The parts of a text that is larger than a response, joined. Without I/O: both clients fetch the parts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ollm_protocol::content::{FileHash, Record};
use ollm_protocol::method::{
    ContextBuild, ContextInspect, SessionGetFileContent, SessionGetRecord,
};
use ollm_protocol::methods::TextPart;
use ollm_protocol::methods::context::ContextGetBuildParams;
use ollm_protocol::methods::session::SessionGetRecordParams;
use ollm_protocol::methods::session::files::SessionGetFileContentParams;
use ollm_protocol::{ErrorKind, Method as _, SessionId};

use crate::error::ClientError;

/// The parts of one text that were received.
pub(super) struct TextParts<P> {
    /// The params of the call for the next part.
    pub(super) params: P,
    text: String,
}

/// The params of a method that returns a text in parts.
pub(super) trait PartParams {
    /// Returns the cursor of the part.
    fn cursor(&mut self) -> &mut Option<String>;
}

impl PartParams for SessionGetRecordParams {
    fn cursor(&mut self) -> &mut Option<String> {
        &mut self.cursor
    }
}

impl PartParams for SessionGetFileContentParams {
    fn cursor(&mut self) -> &mut Option<String> {
        &mut self.cursor
    }
}

impl PartParams for ContextGetBuildParams {
    fn cursor(&mut self) -> &mut Option<String> {
        &mut self.cursor
    }
}

impl<P: PartParams> TextParts<P> {
    const fn new(params: P) -> Self {
        Self { params, text: String::new() }
    }

    /// Adds a part; returns the whole text when it was the last one.
    pub(super) fn add(&mut self, part: &TextPart) -> Option<String> {
        self.text.push_str(&part.data);
        let cursor = self.params.cursor();
        // A daemon that repeats a cursor would be asked forever.
        if part.next_cursor.is_none() || part.next_cursor == *cursor {
            return Some(std::mem::take(&mut self.text));
        }
        cursor.clone_from(&part.next_cursor);
        None
    }
}

/// Returns the parts of a record that came without its content; `None` for a record with its content.
pub(super) fn record_parts(
    session_id: SessionId,
    record: &Record,
) -> Option<TextParts<SessionGetRecordParams>> {
    record.size_bytes?;
    Some(TextParts::new(SessionGetRecordParams { session_id, seq: record.seq, cursor: None }))
}

/// Returns the record whose JSON was read in parts; `stub` is the record of the page.
///
/// **Errors**: [`ClientError::BadReply`] if the JSON is not a record.
pub(super) fn whole_record(json: &str, stub: &Record) -> Result<Record, ClientError> {
    let record: Record = serde_json::from_str(json).map_err(|source| ClientError::BadReply {
        method: SessionGetRecord::NAME.to_owned(),
        source,
    })?;
    Ok(Record { active: stub.active, ..record })
}

/// Returns the parts of a kept content of a file.
pub(super) const fn file_parts(
    session_id: SessionId,
    hash: FileHash,
) -> TextParts<SessionGetFileContentParams> {
    TextParts::new(SessionGetFileContentParams { session_id, hash, cursor: None })
}

/// Returns the content whose parts were joined.
///
/// **Errors**: [`ClientError::BadReply`] if the text is not base64.
pub(super) fn file_content(base64: &str) -> Result<Vec<u8>, ClientError> {
    STANDARD.decode(base64).map_err(|error| ClientError::BadReply {
        method: SessionGetFileContent::NAME.to_owned(),
        source: serde::de::Error::custom(error),
    })
}

/// Returns the parts of the context that was too large for the response of `method`; `None` for other errors.
pub(super) fn context_parts(
    method: &str,
    error: &ClientError,
) -> Option<TextParts<ContextGetBuildParams>> {
    let ClientError::Rpc(failure) = error else { return None };
    let inspect = method == ContextInspect::NAME;
    if failure.kind != Some(ErrorKind::TooLarge) || !(inspect || method == ContextBuild::NAME) {
        return None;
    }
    let text = |name: &str| failure.fields.get(name)?.as_str();
    let (session_id, build_id) = (text("sessionId")?.parse().ok()?, text("buildId")?.to_owned());
    Some(TextParts::new(ContextGetBuildParams { session_id, build_id, inspect, cursor: None }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn part(data: &str, next: Option<&str>) -> TextPart {
        TextPart { data: data.to_owned(), next_cursor: next.map(str::to_owned), done: 4, total: 9 }
    }

    #[test]
    fn parts_are_joined_and_the_flag_of_the_page_stays() {
        let id: SessionId = "01890000-0000-7000-8000-000000000000".parse().expect("an id");
        let stub = json!({
            "seq": 3, "at": "2026-01-27T10:00:00Z", "type": "custom", "active": false, "sizeBytes": 9
        });
        let stub: Record = serde_json::from_value(stub).expect("a record");
        let mut parts = record_parts(id, &stub).expect("is without its content");
        let begin = r#"{"seq":3,"at":"2026-01-27T10:00:00Z","type":"custom","#;
        assert_eq!(parts.add(&part(begin, Some("54"))), None);
        assert_eq!(parts.params.cursor.as_deref(), Some("54"));
        let json = parts.add(&part(r#""custom":{"name":"n"}}"#, None)).expect("is the last part");
        let whole = whole_record(&json, &stub).expect("is a record");
        assert!(!whole.active && whole.size_bytes.is_none());
        assert_eq!(whole.custom.as_ref().expect("has its content").name, "n");
        assert!(record_parts(id, &whole).is_none());
    }

    #[test]
    fn only_a_context_that_is_too_large_is_read_in_parts() {
        let id = "01890000-0000-7000-8000-000000000000";
        let data = json!({ "kind": "tooLarge", "sessionId": id, "buildId": "b", "limit": 1 });
        let error = ClientError::of_turn(-32007, "too large".to_owned(), data);
        assert!(context_parts("session.get", &error).is_none());
        let mut parts = context_parts("context.inspect", &error).expect("can be read in parts");
        assert!(parts.params.inspect && parts.params.build_id == "b");
        assert_eq!(parts.add(&part("{\"a\"", Some("4"))), None);
        assert_eq!(parts.add(&part(":1}", Some("4"))).as_deref(), Some("{\"a\":1}"));
        let other =
            ClientError::of_turn(-32007, "too large".to_owned(), json!({ "kind": "tooLarge" }));
        assert!(context_parts("context.build", &other).is_none());
    }
}
