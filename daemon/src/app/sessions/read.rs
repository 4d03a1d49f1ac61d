//! `session.get`, `resume`, `getRecord` and `getFileContent`: the records of a session page by page, and a large record or
//! a kept content of a file part by part.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ollm_protocol::content::{Record, Session};
use ollm_protocol::event::{NoData, SessionResumedData};
use ollm_protocol::limits::{MAX_INLINE_RECORD_BYTES, MAX_PAGE_BYTES, MAX_PART_BYTES, json_bytes};
use ollm_protocol::methods::TextPart;
use ollm_protocol::methods::session::files::SessionGetFileContentParams;
use ollm_protocol::methods::session::{
    BranchFilter, SessionGetParams, SessionGetRecordParams, SessionGetResult, SessionResumeParams,
};
use ollm_protocol::{Seq, SessionId};

use crate::app::core::Core;
use crate::app::error::{AppError, Result, json_part, page_limit};
use crate::app::partial::read_settled;
use crate::session::index::IndexEntry;
use crate::session::{OpenSession, SessionError};

const DEFAULT_LIMIT: u32 = 100;
const DEFAULT_RESUME_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1000;
/// The bytes of a file in one part. A multiple of three, so that the base64 of all parts can be joined.
const FILE_PART_BYTES: usize = MAX_PART_BYTES / 4 * 3;

/// Reads a page of records (`session.get`). Blocks on the disk.
pub(crate) fn get(core: &Arc<Core>, params: SessionGetParams) -> Result<SessionGetResult> {
    let SessionGetParams { session_id: id, from, limit, branch } = params;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let branches = match branch {
        BranchFilter::All => Branches::All,
        BranchFilter::Active => Branches::Active,
    };
    let from = from.unwrap_or_default();
    let first = read_settled(core, id, |live| first_of(live, from, branches))??;
    let found = read(core, id, first..u64::MAX, limit, (branches, LargeRecords::WithoutContent))?;
    let more = found.next < found.len;
    let next_from = more.then(|| i64::try_from(found.next).unwrap_or(i64::MAX));
    let session = core.with_short_id(found.session);
    Ok(SessionGetResult { session, records: found.records, next_from })
}

/// Announces that a session is resumed, and reads its last page (`session.resume`). Blocks on the disk.
pub(crate) fn resume(core: &Arc<Core>, params: SessionResumeParams) -> Result<SessionGetResult> {
    let SessionResumeParams { session_id, limit } = params;
    let limit = limit.unwrap_or(DEFAULT_RESUME_LIMIT);
    let (from, branch) = (Some(-i64::from(limit)), BranchFilter::All);
    let page = SessionGetParams { session_id, from, limit: Some(limit), branch };
    let found = get(core, page)?;
    core.publish(session_id, None, &SessionResumedData(NoData));
    Ok(found)
}

/// Returns a part of the JSON of a record (`session.getRecord`). Blocks on the disk.
///
/// The JSON is the same at every call: it has no `active` flag, which may change between two calls.
pub(crate) fn get_record(core: &Arc<Core>, params: SessionGetRecordParams) -> Result<TextPart> {
    let SessionGetRecordParams { session_id: id, seq, cursor } = params;
    if core.sessions.with(id, |live| live.state().entry(seq))?.is_none() {
        return Err(SessionError::RecordNotFound { id, seq }.into());
    }
    let record = core.sessions.records(id, &[seq])?.pop().flatten();
    let record = record.ok_or(SessionError::Damaged { id, seq })?;
    let json = serde_json::to_string(&record)
        .map_err(|error| AppError::invalid("seq", error.to_string()))?;
    drop(record);
    json_part(&json, cursor.as_deref())
}

/// Returns a part of the content of a file that a session keeps, in base64 (`session.getFileContent`). Blocks on the disk.
///
/// **Errors**: `ContentNotKept`, `ContentDamaged`, `Storage`.
pub(crate) fn get_file_content(
    core: &Arc<Core>,
    params: SessionGetFileContentParams,
) -> Result<TextPart> {
    let SessionGetFileContentParams { session_id: id, hash, cursor } = params;
    if !core.sessions.keeps_file(id, hash) {
        drop(core.summary(id)?);
        return Err(AppError::ContentNotKept { id, hash });
    }
    let read = core.sessions.read_kept_file(id, hash);
    let content = read.map_err(|error| match error.source.kind() {
        ErrorKind::InvalidData => AppError::ContentDamaged { id, path: error.path },
        // The session was deleted meanwhile.
        ErrorKind::NotFound => AppError::ContentNotKept { id, hash },
        _ => error.into(),
    })?;
    let at = cursor.map_or(Some(0), |cursor| cursor.parse::<usize>().ok());
    let at = at.filter(|at| *at == 0 || (*at < content.len() && at % FILE_PART_BYTES == 0));
    let at = at.ok_or_else(|| AppError::invalid("cursor", "is not the cursor of a part"))?;
    let end = content.len().min(at + FILE_PART_BYTES);
    Ok(TextPart {
        data: STANDARD.encode(&content[at..end]),
        next_cursor: (end < content.len()).then(|| end.to_string()),
        done: end as u64,
        total: content.len() as u64,
    })
}

/// Consecutive records of a session.
pub(super) struct RecordSlice {
    pub(super) session: Session,
    pub(super) system_prompt: Option<String>,
    /// The readable ones, oldest first, with their `active` flag.
    pub(super) records: Vec<Record>,
    /// The seq after the last record that was examined.
    pub(super) next: u64,
    /// The number of records of the session, damaged ones included.
    pub(super) len: u64,
}

/// The branches whose records are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Branches {
    All,
    /// The path to the active leaf, and the records that hold on every path.
    Active,
    /// The same for this leaf, whichever is active now.
    To(Option<Seq>),
}

/// The form of records that are too large for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LargeRecords {
    Whole,
    WithoutContent,
}

/// Reads at most `limit` records of a range. Blocks on the disk.
pub(super) fn read(
    core: &Core,
    id: SessionId,
    range: Range<u64>,
    limit: usize,
    (branches, large): (Branches, LargeRecords),
) -> Result<RecordSlice> {
    let now = core.clock.now();
    let (mut slice, reader, wanted) = core.sessions.with(id, |live| {
        let (wanted, next) = select(live, range, limit, branches);
        let slice = RecordSlice {
            session: live.summary(now),
            system_prompt: live.state().system_prompt().map(str::to_owned),
            records: Vec::with_capacity(wanted.len()),
            next,
            len: live.state().entries().len() as u64,
        };
        (slice, live.reader(), wanted)
    })?;
    let mut page_bytes = 0;
    let mut reads = Vec::with_capacity(wanted.len());
    for (seq, entry, active) in wanted {
        let record = reader.read(entry).map_err(|error| SessionError::fs(id, &error))?;
        reads.push((seq, record.is_some()));
        let Some(mut record) = record else { continue };
        let mut bytes = weight(&record, entry);
        if large == LargeRecords::WithoutContent && bytes > MAX_INLINE_RECORD_BYTES {
            let whole = json_bytes(&record) as u64;
            record = record.without_content(whole);
            bytes = json_bytes(&record);
        }
        page_bytes += bytes;
        if page_bytes > MAX_PAGE_BYTES && !slice.records.is_empty() {
            slice.next = seq.0;
            break;
        }
        slice.records.push(Record { active, ..record });
    }
    core.sessions.note_reads(id, &reads);
    if slice.session.damaged_records > 0 || reads.iter().any(|(_, is_read)| !is_read) {
        slice.session = core.sessions.summary(id)?;
    }
    Ok(slice)
}

/// Returns the seq for `from`; a negative value counts from the end, the records of these branches only.
fn first_of(live: &OpenSession, from: i64, branches: Branches) -> Result<u64, SessionError> {
    let state = live.state();
    let len = state.entries().len() as u64;
    let (id, distance) = (state.id(), from.unsigned_abs());
    if from < 0 {
        let path = if branches == Branches::Active { state.path() } else { Vec::new() };
        let is_shown = |(seq, _): &(Seq, IndexEntry)| {
            branches == Branches::All || state.is_on_path(*seq, &path)
        };
        let mut shown = state.client_records(0..len).rev().filter(is_shown);
        let first = shown.nth(usize::try_from(distance - 1).unwrap_or(usize::MAX));
        return Ok(first.map_or(0, |(seq, _)| seq.0));
    }
    // A client that follows a session asks for the record after the newest one.
    if distance > len {
        return Err(SessionError::RecordNotFound { id, seq: Seq(distance) });
    }
    Ok(distance)
}

/// Returns the first `limit` readable entries of a range with their `active` flag, and the seq after the last one that
/// was examined.
fn select(
    live: &OpenSession,
    range: Range<u64>,
    limit: usize,
    branches: Branches,
) -> (Vec<(Seq, IndexEntry, bool)>, u64) {
    let state = live.state();
    let path = match branches {
        Branches::All | Branches::Active => state.path(),
        Branches::To(leaf) => state.path_to(leaf),
    };
    let mut wanted = Vec::new();
    let end = range.end.min(state.entries().len() as u64).max(range.start);
    for (seq, entry) in state.client_records(range.start..end) {
        if wanted.len() == limit {
            return (wanted, seq.0);
        }
        let active = state.is_on_path(seq, &path);
        if !entry.is_damaged() && (active || branches == Branches::All) {
            wanted.push((seq, entry, active));
        }
    }
    (wanted, end)
}

/// Estimates the bytes of a record on the wire.
fn weight(record: &Record, entry: IndexEntry) -> usize {
    if entry.has(IndexEntry::HAS_BLOBS) {
        return json_bytes(record);
    }
    entry.len as usize
}
