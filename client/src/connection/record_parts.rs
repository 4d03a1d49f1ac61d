//! The parts of a record that is too large for a page of records, joined. Without I/O: both clients fetch the parts.

use ollm_protocol::content::Record;
use ollm_protocol::method::SessionGetRecord;
use ollm_protocol::methods::session::{SessionGetRecordParams, SessionGetRecordResult};
use ollm_protocol::{Method as _, SessionId};

use crate::error::ClientError;

/// The parts of one record that were received.
pub(super) struct RecordParts {
    /// The params of the call for the next part.
    pub(super) params: SessionGetRecordParams,
    json: String,
    active: bool,
}

impl RecordParts {
    /// Returns no parts yet, of a record that came without its content; `None` for a record with its content.
    pub(super) fn of(session_id: SessionId, record: &Record) -> Option<Self> {
        record.size_bytes?;
        let params = SessionGetRecordParams { session_id, seq: record.seq, offset: 0 };
        Some(Self { params, json: String::new(), active: record.active })
    }

    /// Adds a part; returns the record when it was the last one.
    ///
    /// **Errors**: [`ClientError::BadReply`] if the parts are not a record.
    pub(super) fn add(
        &mut self,
        part: &SessionGetRecordResult,
    ) -> Result<Option<Record>, ClientError> {
        self.json.push_str(&part.data);
        if let Some(next) = part.next_offset.filter(|next| *next > self.params.offset) {
            self.params.offset = next;
            return Ok(None);
        }
        let record: Record = serde_json::from_str(&self.json).map_err(|source| {
            ClientError::BadReply { method: SessionGetRecord::NAME.to_owned(), source }
        })?;
        Ok(Some(Record { active: self.active, ..record }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_are_joined_and_the_flag_of_the_page_stays() {
        let id: SessionId = "01890000-0000-7000-8000-000000000000".parse().expect("an id");
        let stub = json!({
            "seq": 3, "at": "2026-01-27T10:00:00Z", "type": "custom", "active": false, "sizeBytes": 9
        });
        let stub: Record = serde_json::from_value(stub).expect("a record");
        let mut parts = RecordParts::of(id, &stub).expect("is without its content");
        let part = |data: &str, next_offset| SessionGetRecordResult {
            data: data.to_owned(),
            next_offset,
            size_bytes: 9,
        };
        let begin = r#"{"seq":3,"at":"2026-01-27T10:00:00Z","type":"custom","#;
        assert_eq!(parts.add(&part(begin, Some(54))).expect("goes on"), None);
        assert_eq!(parts.params.offset, 54);
        let whole = parts.add(&part(r#""custom":{"name":"n"}}"#, None)).expect("ends");
        let whole = whole.expect("is the last part");
        assert!(!whole.active && whole.size_bytes.is_none());
        assert_eq!(whole.custom.as_ref().expect("has its content").name, "n");
        assert!(RecordParts::of(id, &whole).is_none());
    }
}
