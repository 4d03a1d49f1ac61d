//! What a store makes of imported records, as far as the laws of this module need it.

use ollm_protocol::content::{
    ExportFormat, Record, RecordBody, RecordScope, Role, Session, SessionHeader, SessionStatus,
};
use ollm_protocol::{Seq, Timestamp};
use uuid::Uuid;

use crate::session::document::SessionFacts;
use crate::session::export::Exporter;
use crate::session::import::{Imported, seq_of};

pub(in crate::session) const OTHER_ID: Uuid =
    Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);

/// The records as the log would hold them, the header first.
pub(in crate::session) fn numbered(imported: &Imported) -> Vec<Record> {
    let header = &imported.header;
    let body = RecordBody::Session(header.clone());
    let mut records = vec![Record::new(Seq(0), None, header.start_time, body)];
    for (index, found) in imported.records.iter().enumerate() {
        let parent = found.parent.map(seq_of);
        assert!(found.parent.is_none_or(|parent| parent < index), "a parent stands before");
        let mut record = Record::new(seq_of(index), parent, found.at, found.body.clone());
        record.key.clone_from(&found.key);
        records.push(record);
    }
    mark_active(&mut records);
    records
}

/// Sets `active` as the fold of a log does.
pub(in crate::session) fn mark_active(records: &mut [Record]) {
    let mut leaf = None;
    for record in records.iter() {
        if record.kind.scope() == RecordScope::Path {
            leaf = Some(record.seq);
        } else if let Some(moved) = &record.leaf {
            leaf = moved.to;
        }
    }
    for record in records.iter_mut() {
        record.active = record.kind.scope() == RecordScope::Session;
    }
    while let Some(seq) = leaf {
        let at = usize::try_from(seq.0).unwrap();
        records[at].active = true;
        leaf = records[at].parent;
    }
}

pub(in crate::session) fn roles_in_force(imported: &Imported) -> Vec<Role> {
    let records = numbered(imported);
    let messages = records.iter().filter(|record| record.active);
    messages.filter_map(|record| Some(record.message.as_ref()?.role)).collect()
}

pub(in crate::session) fn losses(imported: &Imported) -> Vec<&str> {
    imported.report.losses.iter().map(|loss| loss.what.as_str()).collect()
}

/// The session as lists would show it, and its system prompt.
pub(in crate::session) fn session_of(records: &[Record]) -> (Session, Option<String>) {
    let header: &SessionHeader = records[0].session.as_ref().unwrap();
    let last: Option<Timestamp> = records.iter().map(|record| record.at).max();
    let patched = |field: fn(&Record) -> Option<String>| records.iter().rev().find_map(field);
    let count =
        |keep: fn(&Record) -> bool| records.iter().filter(|record| keep(record)).count() as u64;
    let session = Session {
        session_id: header.session_id,
        title: header.title.clone().unwrap_or_default(),
        description: patched(|record| record.meta.as_ref()?.description.clone())
            .unwrap_or_default(),
        project_path: header.project_path.clone(),
        project_hash: None,
        project_name: None,
        model: header.model.clone(),
        provider: header.provider.clone(),
        mode: header.mode.clone(),
        context_size: header.context_size,
        status: SessionStatus::Active,
        pinned: false,
        start_time: header.start_time,
        last_activity: last.unwrap_or(header.start_time),
        message_count: count(|record| record.message.is_some()),
        tool_call_count: count(|record| record.tool_call.is_some()),
        token_count: 0,
        compression_count: 0,
        forked_from: None,
        imported_from: header.imported_from.clone(),
        damaged_records: 0,
        draft: false,
        metadata: header.metadata.clone(),
    };
    (session, header.system_prompt.clone())
}

/// A whole export, through a cursor after every record.
pub(in crate::session) fn export(format: ExportFormat, records: &[Record]) -> String {
    let (session, prompt) = session_of(records);
    let facts = SessionFacts { session: &session, system_prompt: prompt.as_deref() };
    let mut exporter = Exporter::new(format);
    let mut out = String::new();
    exporter.begin(&facts, &mut out);
    loop {
        for record in records {
            exporter = Exporter::from_cursor(&exporter.to_cursor()).unwrap();
            exporter.record(record.clone(), &mut out);
        }
        if !exporter.end_pass(&facts, &mut out) {
            return out;
        }
    }
}
