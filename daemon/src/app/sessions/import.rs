//! `session.import`: files as sessions, chunk by chunk and then record by record.
//!
//! A file is read twice from the disk: once to check it and to collect its records in a temporary file, and then page
//! by page from there. So nothing is written for a file that cannot be read to its end, and memory does not depend on the
//! size of the file.

use std::io::{self, Cursor};
use std::sync::Arc;

use ollm_protocol::content::{ImportLoss, ImportReport, RecordBody, SnapshotMark};
use ollm_protocol::methods::session::{SessionImportParams, SessionImportResult};
use ollm_protocol::{Seq, SessionId, Timestamp};

use crate::app::core::Core;
use crate::app::drafts::{MarkedChange, mark_before, session_counter, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::models::answer_options::remove_invalid;
use crate::app::schedule::TakenSnapshot;
use crate::app::snapshots::publish_unrecorded;
use crate::projects::Projects;
use crate::session::import::{
    self, ImportError, ImportSource, Imported, ImportedRecord, RecordSpool, SeqMap,
};
use crate::session::{IdempotencyKey, NewRecord, NewSession, OpenSession, Parent, SessionError};
use crate::tokens::Counter;

/// The most records in one append.
const CHUNK_RECORDS: usize = 256;
/// Bytes of records in one append, except for a larger record. The writer holds them several times: as values, as the
/// lines of the log, and for the observers.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Takes a chunk of a file, and imports the session with the last one (`session.import`). Blocks on the disk.
pub(crate) fn import(core: &Arc<Core>, params: SessionImportParams) -> Result<SessionImportResult> {
    let SessionImportParams { upload_id, data, last, project_path, dry_run } = params;
    let mut source: Box<dyn ImportSource> = if upload_id.is_none() && last {
        Box::new(Cursor::new(data.into_bytes()))
    } else {
        let id = match upload_id {
            Some(id) => id,
            None => {
                import::check_beginning(data.as_bytes())?;
                core.uploads.begin(core.clock.uuid().to_string())?
            }
        };
        core.uploads.append(&id, &data)?;
        if !last {
            return Ok(SessionImportResult { upload_id: Some(id), session: None, report: None });
        }
        Box::new(core.uploads.take(&id)?)
    };
    let project_path = project_path.as_deref().map(Projects::canonical).transpose()?;
    let mut imported = read_file(core, source.as_mut())?;
    drop(source);
    if project_path.is_some() {
        imported.header.project_path = project_path;
    }
    let Imported { header, mut records, mut report } = imported;
    let id = header.session_id;
    let _one_at_a_time = core.imports.begin(id);
    let mut stored = StoredSeqs::of(core, id, records.len())?;
    let existing = existing(core, id, stored.as_mut(), &mut records)?;
    existing.complete_report(records.len(), &mut report);
    if dry_run {
        let session = core.sessions.summary(id).ok();
        return Ok(SessionImportResult { upload_id: None, session, report: Some(report) });
    }
    if matches!(existing, ExistingSession::None) {
        core.sessions.create(NewSession { header, key: None })?;
    }
    if report.already_imported {
        core.sessions.sync(id)?;
    } else {
        let mut numbers = stored.unwrap_or_default();
        if existing.n_known() > 0 {
            take_snapshot(core, id)?;
            numbers.shift_new(records.len());
        }
        append_rest(core, id, &numbers, (&mut records, existing.n_known()))?;
        // Later records confirm earlier ones, and no record may follow for a long time.
        core.sessions.rest(id);
    }
    let session = Some(core.sessions.summary(id)?);
    Ok(SessionImportResult { upload_id: None, session, report: Some(report) })
}

/// Reads a file into temporary files.
fn read_file(core: &Core, source: &mut dyn ImportSource) -> Result<Imported> {
    let failed = |error| core.uploads.file_error(error);
    let mut hasher = blake3::Hasher::new();
    io::copy(source, &mut hasher).map_err(failed)?;
    let hash = hasher.finalize();
    let digest = hash.to_hex();
    let make_spool = || core.uploads.temporary_file().map(|file| Box::new(file) as Box<_>);
    let imported = import::read(source, &digest, id_from_hash(&hash), &make_spool);
    let mut imported = imported.map_err(|error| match error {
        ImportError::File(error) => failed(error),
        other => other.into(),
    })?;
    // Retention exempts sessions with this field, which the header of the file may lack.
    imported.header.imported_from.get_or_insert_with(|| format!("jsonl:{digest}"));
    let refused = remove_invalid(&mut imported.header.options).into_iter();
    imported.report.losses.extend(refused.map(|(name, problem)| ImportLoss {
        line: None,
        what: format!("options.{name}"),
        reason: problem.to_string(),
    }));
    Ok(imported)
}

/// The session that already has the id of a file.
#[derive(Clone, Copy)]
enum ExistingSession {
    None,
    /// The session consists of this many of the file's first records.
    Prefix(usize),
    /// The session has all of the file's records.
    Complete,
    /// The session has the same messages and tool calls, but not the file's other records: it was imported from a
    /// document.
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

/// The numbers of the records of a session that a file may have too. Marks of a resting session are not among them, and
/// snapshots that earlier imports took only if the file has them.
#[derive(Default)]
struct StoredSeqs {
    /// The numbers after that of the header.
    seqs: Vec<Seq>,
    /// The number of the next record.
    next: u64,
    /// The numbers in the session by those in the file, if some of them differ because of marks.
    map: Option<SeqMap>,
}

impl StoredSeqs {
    /// Returns the numbers for a file of `n_records`, or `None` if there is no session with this id.
    fn of(core: &Core, id: SessionId, n_records: usize) -> Result<Option<Self>> {
        let found = core.sessions.with(id, |live| {
            let next = live.state().entries().len() as u64;
            let seqs = live.state().client_records(1..next).map(|(seq, _)| seq).collect();
            Self { seqs, next, map: None }
        });
        let mut found = match found {
            Ok(found) => found,
            Err(SessionError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        found.update_map(n_records);
        Ok(Some(found))
    }

    /// Takes a record out that a file of `n_records` does not have.
    fn leave_out(&mut self, at: usize, n_records: usize) {
        self.seqs.remove(at);
        self.update_map(n_records);
    }

    /// Counts a record that was written before the new ones of a file.
    fn shift_new(&mut self, n_records: usize) {
        self.next += 1;
        self.update_map(n_records);
    }

    fn update_map(&mut self, n_records: usize) {
        let differs = (0..n_records).any(|at| self.seq(at) != Seq(at as u64 + 1));
        self.map = differs.then(|| {
            let mut map = SeqMap::default();
            map.insert(Seq(0), Seq(0));
            (0..n_records).for_each(|at| map.insert(Seq(at as u64 + 1), self.seq(at)));
            map
        });
    }

    /// Returns the number that a record of the file has, or gets if it is written.
    fn seq(&self, at: usize) -> Seq {
        let new = || Seq(self.next.max(1) + (at - self.seqs.len()) as u64);
        self.seqs.get(at).copied().unwrap_or_else(new)
    }

    /// Converts the references of a record to the numbers of the session.
    fn renumbered(&self, mut record: ImportedRecord) -> ImportedRecord {
        if let Some(map) = &self.map {
            // Every record of the file is in the map, so no target is lost.
            drop(map.apply(&mut record.body));
        }
        record
    }
}

/// Compares a file's records with the session of its id.
///
/// **Errors**: `Exists` if the session has other content.
fn existing(
    core: &Core,
    id: SessionId,
    stored: Option<&mut StoredSeqs>,
    records: &mut RecordSpool,
) -> Result<ExistingSession> {
    let Some(stored) = stored else { return Ok(ExistingSession::None) };
    if has_same_records(core, id, stored, records)? {
        let n_stored = stored.seqs.len();
        let same = n_stored.min(records.len());
        let is_complete = n_stored > 0 && n_stored >= records.len();
        return Ok(match is_complete {
            true => ExistingSession::Complete,
            false => ExistingSession::Prefix(same),
        });
    }
    // A document has fewer kinds of records than a log: it is recognized by its messages and tool calls.
    if has_same_conversation(core, id, stored, records)? {
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

/// Returns whether the records of a session equal the imported ones, as far as there are both. Leaves the snapshots out
/// that the file does not have.
fn has_same_records(
    core: &Core,
    id: SessionId,
    numbers: &mut StoredSeqs,
    records: &mut RecordSpool,
) -> Result<bool> {
    let n_records = records.len();
    for (at, new) in records.iter_from(0, CHUNK_BYTES).enumerate() {
        let new = new.map_err(|error| core.uploads.file_error(error))?;
        loop {
            let Some(seq) = numbers.seqs.get(at) else { return Ok(true) };
            let expected = numbers.renumbered(new.clone());
            match stored(core, id, *seq)? {
                Some((stored_at, body)) if stored_at == expected.at && body == expected.body => {
                    break;
                }
                Some((_, RecordBody::Snapshot(mark))) if mark.reason == SnapshotMark::IMPORT => {
                    numbers.leave_out(at, n_records);
                }
                _ => return Ok(false),
            }
        }
    }
    Ok(true)
}

/// Takes a snapshot of a session that grows by an import. Blocks on the disk.
fn take_snapshot(core: &Arc<Core>, id: SessionId) -> Result<()> {
    let leaf = core.sessions.with(id, |live| live.state().leaf())?;
    let mark = mark_before(&core.clock, leaf, MarkedChange::Import);
    let draft = uncounted(RecordBody::Snapshot(mark.clone()));
    let written = core.sessions.append_after(id, leaf, vec![draft], None);
    let written = written.and_then(|pending| pending.wait()).map_err(AppError::from);
    let written =
        written.inspect_err(|error| publish_unrecorded(core, id, mark.snapshot_id, error))?;
    // The observer takes it for one of the imported snapshots, which have no files.
    core.due_snapshots.mark(id, TakenSnapshot { seq: written.seq, at: written.at, mark });
    Ok(())
}

/// Returns whether the messages and tool calls of a session begin as the imported ones do.
fn has_same_conversation(
    core: &Core,
    id: SessionId,
    numbers: &StoredSeqs,
    records: &mut RecordSpool,
) -> Result<bool> {
    let is_conversation =
        |body: &RecordBody| matches!(body, RecordBody::Message(_) | RecordBody::ToolCall(_));
    let mut imported = records
        .iter_from(0, CHUNK_BYTES)
        .filter(|record| record.as_ref().map_or(true, |record| is_conversation(&record.body)));
    for seq in &numbers.seqs {
        let Some((_, body)) = stored(core, id, *seq)?.filter(|(_, body)| is_conversation(body))
        else {
            continue;
        };
        match imported.next().transpose().map_err(|error| core.uploads.file_error(error))? {
            None => return Ok(true),
            Some(record) if numbers.renumbered(record.clone()).body == body => {}
            Some(_) => return Ok(false),
        }
    }
    Ok(imported.next().is_none())
}

/// Reads the time and the body of one record of a session; returns `None` for a damaged one.
fn stored(core: &Core, id: SessionId, seq: Seq) -> Result<Option<(Timestamp, RecordBody)>> {
    let found = core.sessions.records(id, &[seq])?.pop().flatten();
    Ok(found.and_then(|record| Some((record.at, record.into_body()?))))
}

/// Appends the records after the first `n_known` in chunks, so that later records prove earlier ones durable. An
/// import that is cut off continues when it is repeated. Blocks on the disk.
fn append_rest(
    core: &Arc<Core>,
    id: SessionId,
    numbers: &StoredSeqs,
    (records, n_known): (&mut RecordSpool, usize),
) -> Result<()> {
    let counter = session_counter(core, id);
    let mut next = n_known;
    while next < records.len() {
        let page = records.read(next, CHUNK_RECORDS, CHUNK_BYTES);
        let page = page.map_err(|error| core.uploads.file_error(error))?;
        let count = page.len();
        let drafts: Vec<NewRecord> =
            page.into_iter().map(|new| draft(&counter, numbers, new)).collect();
        // Behind a concurrent record, the references inside the file would be wrong.
        let wanted = numbers.seq(next).0;
        let plan = move |live: &OpenSession| {
            // The header of a new log is written with its first record.
            let next = (live.state().entries().len() as u64).max(1);
            if next == wanted { Ok(drafts) } else { Err(SessionError::LeafMoved { id }) }
        };
        core.sessions.change(id, None, plan)?.wait()?;
        next += count;
    }
    Ok(())
}

/// Returns a record of a file as a draft.
fn draft(counter: &Counter, numbers: &StoredSeqs, record: ImportedRecord) -> NewRecord {
    let ImportedRecord { parent, at, body, key } = numbers.renumbered(record);
    let tokens = counter.count_record(&body);
    NewRecord {
        tokens: Some((tokens, counter.identity())),
        at: Some(at),
        parent: parent.map_or(Parent::Root, |at| Parent::Record(numbers.seq(at))),
        key: key.map(|key| IdempotencyKey::new("session.import", key, &[])),
        ..NewRecord::new(body, None)
    }
}
