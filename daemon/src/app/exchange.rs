//! Sessions as files: exports that are read chunk by chunk, imports that arrive chunk by chunk.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ollm_protocol::content::{ExportFormat, ImportLoss, ImportReport, RecordBody};
use ollm_protocol::methods::session::{
    SessionExportParams, SessionExportResult, SessionImportParams, SessionImportResult,
};
use ollm_protocol::{Seq, SessionId};

use super::read::{Slice, slice};
use super::{AppError, Core};
use crate::fsutil::FsError;
use crate::projects::Projects;
use crate::session::document::SessionOverview;
use crate::session::export::Exporter;
use crate::session::import::{ImportedRecord, detect_and_parse};
use crate::session::{IdempotencyKey, NewRecord, NewSession, Parent, SessionError};
use crate::tokens::Counter;

/// Records in one chunk of an export.
const CHUNK_RECORDS: usize = 256;
/// The largest file that can be imported; it is read into memory as a whole.
const MAX_UPLOAD_BYTES: u64 = 1024 * 1024 * 1024;
/// The most imports that arrive at once.
const MAX_UPLOADS: usize = 8;
/// An upload that got no chunk for this long was given up by its client.
const UPLOAD_IDLE: Duration = Duration::from_secs(600);

/// Reads the next chunk of an export. Blocks on the disk.
pub(crate) fn export(
    core: &Arc<Core>,
    params: &SessionExportParams,
) -> Result<SessionExportResult, AppError> {
    let id = params.session_id;
    let mut progress = match &params.cursor {
        Some(cursor) => Progress::parse(cursor, params.format)?,
        None => Progress::start(core, id, params.format)?,
    };
    let mut data = String::new();
    let step = progress.advance(core, id, &mut data)?;
    Ok(SessionExportResult {
        data,
        next_cursor: (!step.complete).then(|| progress.to_cursor()),
        done_records: step.done_records,
        total_records: progress.end,
    })
}

/// Where an export stands; all chunks stop at the record that was the last at the first chunk.
pub(super) struct Progress {
    end: u64,
    next: u64,
    begun: bool,
    exporter: Exporter,
}

/// What one page of an export did.
pub(super) struct Step {
    /// Nothing is left to write.
    pub(super) complete: bool,
    /// Records of this pass that are written.
    done_records: u64,
}

impl Progress {
    /// The beginning of an export.
    pub(super) fn start(
        core: &Core,
        id: SessionId,
        format: ExportFormat,
    ) -> Result<Self, AppError> {
        let end = core.sessions.with(id, |live| live.state().entries().len() as u64)?;
        Ok(Self { end, next: 0, begun: false, exporter: Exporter::new(format) })
    }

    /// Writes the next page of records to `out`. Blocks on the disk.
    pub(super) fn advance(
        &mut self,
        core: &Core,
        id: SessionId,
        out: &mut String,
    ) -> Result<Step, AppError> {
        let Slice { session, system_prompt, records, next: after, .. } =
            slice(core, id, self.next, self.end, CHUNK_RECORDS)?;
        let facts = SessionOverview { session: &session, system_prompt: system_prompt.as_deref() };
        if !std::mem::replace(&mut self.begun, true) {
            self.exporter.begin(&facts, out);
        }
        for record in records {
            self.exporter.record(record, out);
        }
        let pass_is_over = after >= self.end;
        self.next = if pass_is_over { 0 } else { after };
        let complete = pass_is_over && !self.exporter.end_pass(&facts, out);
        Ok(Step { complete, done_records: after.min(self.end) })
    }

    fn to_cursor(&self) -> String {
        format!("{}:{}:{}", self.end, self.next, self.exporter.to_cursor())
    }

    fn parse(cursor: &str, format: ExportFormat) -> Result<Self, AppError> {
        let parse = || {
            let mut fields = cursor.splitn(3, ':');
            let end = fields.next()?.parse().ok()?;
            let next = fields.next()?.parse().ok()?;
            let exporter = Exporter::from_cursor(fields.next()?)?;
            (exporter.format() == format).then_some(Self { end, next, begun: true, exporter })
        };
        parse().ok_or_else(|| AppError::invalid("cursor", "is not one of this export"))
    }
}

/// Imports that arrive in chunks, each in a private file that has no name once it is opened.
pub(crate) struct Uploads {
    dir: PathBuf,
    open: Mutex<HashMap<String, Upload>>,
}

struct Upload {
    file: File,
    bytes: u64,
    touched: Instant,
}

impl Uploads {
    /// Uploads kept in a directory.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Upload>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, id: String) -> Result<(), AppError> {
        let mut open = self.open();
        open.retain(|_, upload| upload.touched.elapsed() < UPLOAD_IDLE);
        if open.len() >= MAX_UPLOADS {
            return Err(AppError::Upload { id, problem: "too many imports arrive at once" });
        }
        // A file without a name cannot be left behind by a crash.
        let file = tempfile::tempfile_in(&self.dir)
            .map_err(|source| FsError::new("make a file in", &self.dir, source))?;
        open.insert(id, Upload { file, bytes: 0, touched: Instant::now() });
        Ok(())
    }

    fn append(&self, id: &str, data: &str) -> Result<(), AppError> {
        let mut open = self.open();
        let unknown = || AppError::Upload { id: id.to_owned(), problem: "is not known" };
        let upload = open.get_mut(id).ok_or_else(unknown)?;
        upload.bytes += data.len() as u64;
        upload.touched = Instant::now();
        if upload.bytes > MAX_UPLOAD_BYTES {
            open.remove(id);
            return Err(AppError::Upload { id: id.to_owned(), problem: "is larger than 1 GiB" });
        }
        let written = upload.file.write_all(data.as_bytes());
        written.map_err(|source| {
            // Part of the chunk may be there: going on would make another file of it.
            open.remove(id);
            FsError::new("write to", &self.dir, source).into()
        })
    }

    fn take(&self, id: &str) -> Result<String, AppError> {
        let taken = self.open().remove(id);
        let unknown = || AppError::Upload { id: id.to_owned(), problem: "is not known" };
        let mut upload = taken.ok_or_else(unknown)?;
        let mut text = String::new();
        let read = upload.file.rewind().and_then(|()| upload.file.read_to_string(&mut text));
        read.map_err(|source| FsError::new("read from", &self.dir, source))?;
        Ok(text)
    }
}

/// Takes a chunk of a file; with the last one the session is imported. Blocks on the disk.
pub(crate) fn import(
    core: &Arc<Core>,
    params: SessionImportParams,
) -> Result<SessionImportResult, AppError> {
    let SessionImportParams { upload_id, data, last, project_path, dry_run } = params;
    let text = match (upload_id, last) {
        (None, true) => data,
        (None, false) => {
            let id = core.clock.uuid().to_string();
            core.uploads.begin(id.clone())?;
            core.uploads.append(&id, &data)?;
            return Ok(pending(id));
        }
        (Some(id), false) => {
            core.uploads.append(&id, &data)?;
            return Ok(pending(id));
        }
        (Some(id), true) => {
            core.uploads.append(&id, &data)?;
            core.uploads.take(&id)?
        }
    };
    let project_path = project_path.as_deref().map(Projects::canonical).transpose()?;
    let hash = blake3::hash(text.as_bytes());
    let digest = hash.to_hex();
    let mut imported = detect_and_parse(&text, &digest, id_of(&hash))?;
    drop(text);
    // Whatever its own header says, it came from elsewhere, and retention leaves it alone.
    imported.header.imported_from.get_or_insert_with(|| format!("jsonl:{digest}"));
    if project_path.is_some() {
        imported.header.project_path = project_path;
    }
    let mut report = imported.report;
    let _one_at_a_time = core.creating.lock().unwrap_or_else(PoisonError::into_inner);
    let id = imported.header.session_id;
    let standing = standing(core, id, &imported.records)?;
    standing.tell(imported.records.len(), &mut report);
    if dry_run {
        let session = core.sessions.summary(id).ok();
        return Ok(SessionImportResult { upload_id: None, session, report: Some(report) });
    }
    if matches!(standing, Standing::New) {
        core.sessions.create(NewSession { header: imported.header, key: None })?;
    }
    if let Standing::New | Standing::Begins(_) = standing {
        append_rest(core, id, imported.records, standing.known())?;
        core.documents.note(id);
    }
    let session = Some(core.sessions.summary(id)?);
    Ok(SessionImportResult { upload_id: None, session, report: Some(report) })
}

/// How a file stands to the session of its id.
#[derive(Clone, Copy)]
enum Standing {
    /// There is no such session.
    New,
    /// The session has this many of the file's first records, and nothing else.
    Begins(usize),
    /// The session has all of the file's records.
    Contains,
    /// The session has all that the file says, but not all of its other records: it came from a document.
    SaysTheSame,
}

impl Standing {
    /// Records of the file that need not be written.
    const fn known(self) -> usize {
        match self {
            Self::Begins(known) => known,
            Self::New | Self::Contains | Self::SaysTheSame => 0,
        }
    }

    /// Completes a report of a file with so many records.
    fn tell(self, records: usize, report: &mut ImportReport) {
        report.already_imported = matches!(self, Self::Contains | Self::SaysTheSame);
        report.imported_records =
            if report.already_imported { 0 } else { (records - self.known()) as u64 };
        if matches!(self, Self::SaysTheSame) {
            report.losses.push(ImportLoss {
                line: None,
                what: "records that are not messages or tool calls".to_owned(),
                reason: "the session is here already and says the same; to have them too, delete it and \
                         import this file again"
                    .to_owned(),
            });
        }
    }
}

/// Compares a file's records with the session of its id.
///
/// **Errors**: `Exists` when the session says something else.
fn standing(core: &Core, id: SessionId, records: &[ImportedRecord]) -> Result<Standing, AppError> {
    let stored = match core.sessions.with(id, |live| live.state().entries().len()) {
        Ok(len) => len.saturating_sub(1),
        Err(SessionError::NotFound { .. }) => return Ok(Standing::New),
        Err(error) => return Err(error.into()),
    };
    let same = stored.min(records.len());
    if begins_alike(core, id, &records[..same])? {
        let all = stored > 0 && stored >= records.len();
        return Ok(if all { Standing::Contains } else { Standing::Begins(same) });
    }
    // A document says less than a log: it is recognized by what was said.
    if says_the_same(core, id, stored, records)? {
        return Ok(Standing::SaysTheSame);
    }
    Err(SessionError::Exists { id }.into())
}

/// The id of a session whose file names none that can be used: the same file gets the same one again.
fn id_of(hash: &blake3::Hash) -> SessionId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    SessionId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

fn pending(id: String) -> SessionImportResult {
    SessionImportResult { upload_id: Some(id), session: None, report: None }
}

/// Whether the records of a session begin as the imported ones do.
fn begins_alike(core: &Core, id: SessionId, records: &[ImportedRecord]) -> Result<bool, AppError> {
    for (chunk, first) in records.chunks(CHUNK_RECORDS).zip((1..).step_by(CHUNK_RECORDS)) {
        let seqs: Vec<Seq> = (first..).take(chunk.len()).map(Seq).collect();
        let stored = core.sessions.records(id, &seqs)?;
        let alike = chunk.iter().zip(stored).all(|(new, old)| {
            old.is_some_and(|old| old.at == new.at && old.into_body().as_ref() == Some(&new.body))
        });
        if !alike {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the messages and tool calls of a session begin as the imported ones do.
fn says_the_same(
    core: &Core,
    id: SessionId,
    known: usize,
    records: &[ImportedRecord],
) -> Result<bool, AppError> {
    let said = |body: &RecordBody| matches!(body, RecordBody::Message(_) | RecordBody::ToolCall(_));
    let mut imported = records.iter().map(|record| &record.body).filter(|body| said(body));
    for first in (1..=known as u64).step_by(CHUNK_RECORDS) {
        let seqs: Vec<Seq> = (first..=known as u64).take(CHUNK_RECORDS).map(Seq).collect();
        for stored in core.sessions.bodies(id, &seqs)?.into_iter().flatten().filter(said) {
            match imported.next() {
                None => return Ok(true),
                Some(body) if *body == stored => {}
                Some(_) => return Ok(false),
            }
        }
    }
    Ok(imported.next().is_none())
}

/// Writes the records after the first `known`, a few at a time: later ones then prove that earlier ones were
/// durable, and memory stays that of a few. An import that is cut off goes on where it was when it is repeated.
fn append_rest(
    core: &Arc<Core>,
    id: SessionId,
    records: Vec<ImportedRecord>,
    known: usize,
) -> Result<(), AppError> {
    let mut rest = records.into_iter().skip(known).peekable();
    let mut next = known as u64 + 1;
    let counter = super::counter(core, id);
    while rest.peek().is_some() {
        let drafts: Vec<NewRecord> =
            rest.by_ref().take(CHUNK_RECORDS).map(|new| draft(&counter, new)).collect();
        let count = drafts.len() as u64;
        let answer = core.sessions.append(id, drafts, None)?;
        let appended = answer.blocking_recv().map_err(|_| SessionError::Stopping)??;
        if appended.seq != Seq(next) {
            // Somebody recorded into the session meanwhile, and the references of the file no longer hold.
            return Err(SessionError::LeafMoved { id }.into());
        }
        next += count;
    }
    Ok(())
}

/// A record of a file as the store takes it; the file's first record is the session's second.
fn draft(counter: &Counter, record: ImportedRecord) -> NewRecord {
    let ImportedRecord { parent, at, body, key } = record;
    let tokens = counter.count_record(&body);
    NewRecord {
        tokens: Some((tokens, counter.identity())),
        at: Some(at),
        parent: parent.map_or(Parent::Root, |at| Parent::Record(Seq(at as u64 + 1))),
        key: key.map(|key| IdempotencyKey::new("session.import", key, &[])),
        body,
    }
}
