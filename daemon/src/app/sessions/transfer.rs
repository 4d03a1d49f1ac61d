//! `session.export` and `session.import`: sessions as files, chunk by chunk.

use std::sync::Arc;

use ollm_protocol::content::{ExportFormat, ImportLoss, ImportReport, RecordBody};
use ollm_protocol::methods::session::{
    BranchFilter, SessionExportParams, SessionExportResult, SessionImportParams,
    SessionImportResult,
};
use ollm_protocol::{Seq, SessionId};

use super::read::{RecordSlice, read};
use crate::app::core::Core;
use crate::app::drafts::session_counter;
use crate::app::error::{AppError, Result};
use crate::projects::Projects;
use crate::session::document::SessionOverview;
use crate::session::export::Exporter;
use crate::session::import::{ImportedRecord, detect_and_parse};
use crate::session::index::IndexEntry;
use crate::session::{IdempotencyKey, NewRecord, NewSession, Parent, SessionError};
use crate::tokens::Counter;

/// The most records in one chunk of an export, and in one append of an import.
const CHUNK_RECORDS: usize = 256;

/// Reads the next chunk of an export (`session.export`). Blocks on the disk.
pub(crate) fn export(core: &Arc<Core>, params: SessionExportParams) -> Result<SessionExportResult> {
    let id = params.session_id;
    let mut progress = match &params.cursor {
        Some(cursor) => ExportProgress::parse(cursor, params.format)?,
        None => ExportProgress::start(core, id, params.format)?,
    };
    let mut data = String::new();
    let page = progress.advance(core, id, &mut data)?;
    Ok(SessionExportResult {
        data,
        next_cursor: (!page.is_last).then(|| progress.to_cursor()),
        done_records: page.done_records,
        total_records: progress.end,
    })
}

/// The progress of an export. All chunks stop at the record that was the last at the first chunk.
pub(super) struct ExportProgress {
    end: u64,
    next: u64,
    has_begun: bool,
    exporter: Exporter,
}

/// A page of an export that was written.
pub(super) struct ExportedPage {
    pub(super) is_last: bool,
    /// The records of this pass that are written.
    done_records: u64,
}

impl ExportProgress {
    /// Starts an export.
    pub(super) fn start(core: &Core, id: SessionId, format: ExportFormat) -> Result<Self> {
        let end = core.sessions.with(id, |live| live.state().entries().len() as u64)?;
        Ok(Self { end, next: 0, has_begun: false, exporter: Exporter::new(format) })
    }

    /// Writes the next page of records to `out`. Blocks on the disk.
    pub(super) fn advance(
        &mut self,
        core: &Core,
        id: SessionId,
        out: &mut String,
    ) -> Result<ExportedPage> {
        let RecordSlice { session, system_prompt, records, next: after, .. } =
            read(core, id, self.next..self.end, CHUNK_RECORDS, BranchFilter::All)?;
        let overview =
            SessionOverview { session: &session, system_prompt: system_prompt.as_deref() };
        if !std::mem::replace(&mut self.has_begun, true) {
            self.exporter.begin(&overview, out);
        }
        for record in records {
            self.exporter.record(record, out);
        }
        let pass_is_over = after >= self.end;
        self.next = if pass_is_over { 0 } else { after };
        let is_last = pass_is_over && !self.exporter.end_pass(&overview, out);
        Ok(ExportedPage { is_last, done_records: after.min(self.end) })
    }

    fn to_cursor(&self) -> String {
        format!("{}:{}:{}", self.end, self.next, self.exporter.to_cursor())
    }

    fn parse(cursor: &str, format: ExportFormat) -> Result<Self> {
        let parse = || {
            let mut fields = cursor.splitn(3, ':');
            let end = fields.next()?.parse().ok()?;
            let next = fields.next()?.parse().ok()?;
            let exporter = Exporter::from_cursor(fields.next()?)?;
            (exporter.format() == format).then_some(Self { end, next, has_begun: true, exporter })
        };
        parse().ok_or_else(|| AppError::invalid("cursor", "is not a cursor of this export"))
    }
}

/// Takes a chunk of a file, and imports the session with the last one (`session.import`). Blocks on the disk.
pub(crate) fn import(core: &Arc<Core>, params: SessionImportParams) -> Result<SessionImportResult> {
    let SessionImportParams { upload_id, data, last, project_path, dry_run } = params;
    let text = if upload_id.is_none() && last {
        data
    } else {
        let id = match upload_id {
            Some(id) => id,
            None => core.uploads.begin(core.clock.uuid().to_string())?,
        };
        core.uploads.append(&id, &data)?;
        if !last {
            return Ok(SessionImportResult { upload_id: Some(id), session: None, report: None });
        }
        core.uploads.take(&id)?
    };
    let project_path = project_path.as_deref().map(Projects::canonical).transpose()?;
    let hash = blake3::hash(text.as_bytes());
    let digest = hash.to_hex();
    let mut imported = detect_and_parse(&text, &digest, id_from_hash(&hash))?;
    drop(text);
    // Retention exempts sessions with this field, which the header of the file may lack.
    imported.header.imported_from.get_or_insert_with(|| format!("jsonl:{digest}"));
    if project_path.is_some() {
        imported.header.project_path = project_path;
    }
    let _one_at_a_time = core.creating.lock();
    let id = imported.header.session_id;
    let stored = StoredSeqs::of(core, id)?;
    if let Some(stored) = &stored {
        imported.renumber(|index| stored.seq(index));
    }
    let mut report = imported.report;
    let existing = existing(core, id, stored.as_ref(), &imported.records)?;
    existing.complete_report(imported.records.len(), &mut report);
    if dry_run {
        let session = core.sessions.summary(id).ok();
        return Ok(SessionImportResult { upload_id: None, session, report: Some(report) });
    }
    if matches!(existing, ExistingSession::None) {
        core.sessions.create(NewSession { header: imported.header, key: None })?;
    }
    if let ExistingSession::None | ExistingSession::Prefix(_) = existing {
        let stored = stored.unwrap_or_default();
        append_rest(core, id, imported.records, (existing.n_known(), &stored))?;
        // Later records confirm earlier ones, and no record may follow for a long time.
        core.sessions.rest(id);
    }
    let session = Some(core.sessions.summary(id)?);
    Ok(SessionImportResult { upload_id: None, session, report: Some(report) })
}

/// The session that already has the id of a file.
#[derive(Clone, Copy)]
enum ExistingSession {
    None,
    /// It consists of this many of the file's first records.
    Prefix(usize),
    /// It has all of the file's records.
    Complete,
    /// It has the same messages and tool calls, but not the file's other records: it was imported from a document.
    SameConversation,
}

impl ExistingSession {
    /// Returns how many records of the file need not be written.
    const fn n_known(self) -> usize {
        if let Self::Prefix(known) = self { known } else { 0 }
    }

    /// Completes the report of a file with `n_records`.
    fn complete_report(self, n_records: usize, report: &mut ImportReport) {
        report.already_imported = matches!(self, Self::Complete | Self::SameConversation);
        report.imported_records =
            if report.already_imported { 0 } else { (n_records - self.n_known()) as u64 };
        if matches!(self, Self::SameConversation) {
            report.losses.push(ImportLoss {
                line: None,
                what: "records that are not messages or tool calls".to_owned(),
                reason: "the session exists already with the same messages; to import these records too, \
                         delete it and import the file again"
                    .to_owned(),
            });
        }
    }
}

/// The numbers of the records of a session that a file may have too. Marks of a resting session are not among them.
#[derive(Default)]
struct StoredSeqs {
    /// The numbers after that of the header.
    seqs: Vec<Seq>,
    /// The number of the next record.
    next: u64,
}

impl StoredSeqs {
    /// Returns the numbers of a session, or `None` if there is no session with this id.
    fn of(core: &Core, id: SessionId) -> Result<Option<Self>> {
        let found = core.sessions.with(id, |live| {
            let entries = live.state().entries();
            let shown = (0..).map(Seq).zip(entries).skip(1);
            let shown = shown.filter(|(_, entry)| !entry.has(IndexEntry::REST_MARK));
            Self { seqs: shown.map(|(seq, _)| seq).collect(), next: entries.len() as u64 }
        });
        match found {
            Ok(found) => Ok(Some(found)),
            Err(SessionError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the number that a record of the file has, or gets if it is written.
    fn seq(&self, index: usize) -> Seq {
        let next = self.next.max(1);
        let new = || Seq(next + (index - self.seqs.len()) as u64);
        self.seqs.get(index).copied().unwrap_or_else(new)
    }
}

/// Compares a file's records with the session of its id.
///
/// **Errors**: `Exists` if the session has other content.
fn existing(
    core: &Core,
    id: SessionId,
    stored: Option<&StoredSeqs>,
    records: &[ImportedRecord],
) -> Result<ExistingSession> {
    let Some(stored) = stored else { return Ok(ExistingSession::None) };
    let n_stored = stored.seqs.len();
    let same = n_stored.min(records.len());
    if has_same_records(core, id, &stored.seqs[..same], records)? {
        let is_complete = n_stored > 0 && n_stored >= records.len();
        return Ok(match is_complete {
            true => ExistingSession::Complete,
            false => ExistingSession::Prefix(same),
        });
    }
    // A document has fewer kinds of records than a log: it is recognized by its messages and tool calls.
    if has_same_conversation(core, id, &stored.seqs, records)? {
        return Ok(ExistingSession::SameConversation);
    }
    Err(SessionError::Exists { id }.into())
}

/// Returns the id of a session whose file has no usable one; the same file always gets the same id.
fn id_from_hash(hash: &blake3::Hash) -> SessionId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    SessionId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// Returns whether records of a session equal the first imported ones.
fn has_same_records(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
    records: &[ImportedRecord],
) -> Result<bool> {
    for (seqs, chunk) in seqs.chunks(CHUNK_RECORDS).zip(records.chunks(CHUNK_RECORDS)) {
        let stored = core.sessions.records(id, seqs)?;
        let are_equal = chunk.iter().zip(stored).all(|(new, old)| {
            old.is_some_and(|old| old.at == new.at && old.into_body().as_ref() == Some(&new.body))
        });
        if !are_equal {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the messages and tool calls of a session begin as the imported ones do.
fn has_same_conversation(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
    records: &[ImportedRecord],
) -> Result<bool> {
    let is_conversation =
        |body: &RecordBody| matches!(body, RecordBody::Message(_) | RecordBody::ToolCall(_));
    let mut imported =
        records.iter().map(|record| &record.body).filter(|body| is_conversation(body));
    for seqs in seqs.chunks(CHUNK_RECORDS) {
        for stored in core.sessions.bodies(id, seqs)?.into_iter().flatten().filter(is_conversation)
        {
            match imported.next() {
                None => return Ok(true),
                Some(body) if *body == stored => {}
                Some(_) => return Ok(false),
            }
        }
    }
    Ok(imported.next().is_none())
}

/// Appends the records after the first `n_known` in chunks, so that later records prove earlier ones durable. An
/// import that is cut off continues when it is repeated. Blocks on the disk.
fn append_rest(
    core: &Arc<Core>,
    id: SessionId,
    records: Vec<ImportedRecord>,
    (n_known, stored): (usize, &StoredSeqs),
) -> Result<()> {
    let mut rest = records.into_iter().skip(n_known).peekable();
    let mut next = stored.seq(n_known).0;
    let counter = session_counter(core, id);
    while rest.peek().is_some() {
        let drafts: Vec<NewRecord> =
            rest.by_ref().take(CHUNK_RECORDS).map(|new| draft(&counter, stored, new)).collect();
        let count = drafts.len() as u64;
        let appended = core.sessions.append(id, drafts, None)?.wait()?;
        if appended.seq != Seq(next) {
            // A concurrent record shifted the seqs, so the references inside the file are wrong now.
            return Err(SessionError::LeafMoved { id }.into());
        }
        next += count;
    }
    Ok(())
}

/// Returns a record of a file as a draft.
fn draft(counter: &Counter, stored: &StoredSeqs, record: ImportedRecord) -> NewRecord {
    let ImportedRecord { parent, at, body, key } = record;
    let tokens = counter.count_record(&body);
    NewRecord {
        tokens: Some((tokens, counter.identity())),
        at: Some(at),
        parent: parent.map_or(Parent::Root, |at| Parent::Record(stored.seq(at))),
        key: key.map(|key| IdempotencyKey::new("session.import", key, &[])),
        body,
    }
}
