//! Records as a store would number and fold them, for the tests of documents, exports and imports.

use ollm_protocol::content::{
    ExportFormat, ImportReport, Record, RecordBody, Role, SessionHeader, ToolCall, ToolResult,
};
use ollm_protocol::{Seq, Timestamp};
use serde_json::Value;
use uuid::Uuid;

use super::document::SessionOverview;
use super::export::Exporter;
use super::import::{Imported, ImportedRecord, seq_of};
use super::index::{IndexEntry, ScannedRecord};
use super::state::SessionState;

/// The id of an imported session whose file has no valid one.
pub(super) const FALLBACK_ID: Uuid = Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);

/// An import with all its records in memory.
#[derive(Debug)]
pub(super) struct WholeImport {
    pub(super) header: SessionHeader,
    pub(super) records: Vec<ImportedRecord>,
    pub(super) report: ImportReport,
}

impl WholeImport {
    /// Reads all records of an import.
    pub(super) fn of(imported: Imported) -> Self {
        let Imported { header, mut records, report } = imported;
        let all = records.iter_from(0, 1 << 20).map(|record| record.expect("a readable spool"));
        Self { header, records: all.collect(), report }
    }
}

/// Returns the records of an import as the log would hold them, the header first.
pub(super) fn numbered(imported: &WholeImport) -> Vec<Record> {
    let header = &imported.header;
    let body = RecordBody::Session(header.clone());
    let mut records = vec![Record::new(Seq(0), None, header.start_time, body)];
    for (index, found) in imported.records.iter().enumerate() {
        let parent = found.parent.map(seq_of);
        assert!(found.parent.is_none_or(|parent| parent < index), "parents precede their children");
        let mut record = Record::new(seq_of(index), parent, found.at, found.body.clone());
        record.key.clone_from(&found.key);
        records.push(record);
    }
    mark_active(&mut records);
    records
}

/// Sets the `active` flags of records.
pub(super) fn mark_active(records: &mut [Record]) {
    let state = fold(records);
    let path = state.path();
    for record in records {
        record.active = state.is_on_path(record.seq, &path);
    }
}

/// Folds records, the first of which is the header.
fn fold(records: &[Record]) -> SessionState {
    let header = records[0].session.as_ref().expect("a header");
    let mut state = SessionState::new(header.session_id);
    for record in records {
        let role = record.message.as_ref().map(|message| message.role);
        let tokens = record.tokens.unwrap_or_default();
        let entry = IndexEntry::new((0, 1), record.parent, record.kind, role, tokens, 0);
        let body = record.clone().into_body();
        let scanned = ScannedRecord {
            seq: record.seq,
            at: record.at,
            entry,
            key: None,
            body,
            lacks_body: false,
        };
        state.apply(&scanned);
    }
    state
}

/// Returns a tool call whose id is its name.
pub(super) fn tool_call(name: &str, args: Value, result: ToolResult, at: Timestamp) -> RecordBody {
    RecordBody::ToolCall(ToolCall {
        id: name.to_owned(),
        name: name.to_owned(),
        args,
        result,
        timestamp: at,
        duration_ms: None,
        message_seq: None,
        writes: None,
        writes_root: None,
        writes_omitted: 0,
    })
}

/// Calls `write` with the properties of the session of some records.
pub(super) fn with_overview<T>(
    records: &[Record],
    write: impl FnOnce(&SessionOverview<'_>) -> T,
) -> T {
    let state = fold(records);
    let session = state.summary(Timestamp::from_unix_ms(0));
    write(&SessionOverview { session: &session, system_prompt: state.system_prompt() })
}

/// Returns a whole export; the exporter is restored from its cursor before every record.
pub(super) fn export(format: ExportFormat, records: &[Record]) -> String {
    with_overview(records, |overview| {
        let mut exporter = Exporter::new(format);
        let mut out = String::new();
        exporter.begin(overview, &mut out);
        loop {
            for record in records {
                exporter = Exporter::from_cursor(&exporter.to_cursor()).expect("a valid cursor");
                exporter.record(record.clone(), &mut out);
            }
            if !exporter.end_pass(overview, &mut out) {
                return out;
            }
        }
    })
}

/// Returns the roles of the messages on the active path.
pub(super) fn active_roles(imported: &WholeImport) -> Vec<Role> {
    let records = numbered(imported);
    let messages = records.iter().filter(|record| record.active);
    messages.filter_map(|record| Some(record.message.as_ref()?.role)).collect()
}

/// Returns the names of the losses in the report.
pub(super) fn losses(imported: &WholeImport) -> Vec<&str> {
    imported.report.losses.iter().map(|loss| loss.what.as_str()).collect()
}
