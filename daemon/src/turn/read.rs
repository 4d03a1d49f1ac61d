//! Reading a session's records, page by page.

use std::sync::Arc;

use ollm_protocol::content::Record;
use ollm_protocol::methods::session::{
    BranchFilter, SessionGetParams, SessionGetResult, SessionResumeParams,
};
use ollm_protocol::{EventKind, Seq, SessionId};

use super::{Core, TurnError};
use crate::events::EventDraft;
use crate::session::index::Entry;
use crate::session::{Live, SessionError};

const DEFAULT_LIMIT: u32 = 100;
const DEFAULT_RESUME_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1000;
/// A page ends before its records pass this, far enough below a frame that escapes and names fit too.
const PAGE_BYTES: usize = 6 * 1024 * 1024;

/// Reads a page of records. Blocks on the disk.
pub(crate) fn get(core: &Arc<Core>, params: SessionGetParams) -> Result<SessionGetResult, TurnError> {
    let SessionGetParams { session_id, from, limit, branch } = params;
    page(core, session_id, from.unwrap_or_default(), limit.unwrap_or(DEFAULT_LIMIT), branch)
}

/// Takes a session up again: tells subscribers, and returns its last page. Blocks on the disk.
pub(crate) fn resume(
    core: &Arc<Core>,
    params: SessionResumeParams,
) -> Result<SessionGetResult, TurnError> {
    let limit = params.limit.unwrap_or(DEFAULT_RESUME_LIMIT);
    let from = -i64::from(limit);
    let found = page(core, params.session_id, from, limit, BranchFilter::All)?;
    core.events.publish(EventDraft {
        session_id: Some(params.session_id),
        seq: None,
        kind: EventKind::SessionResumed,
        at: core.clock.now(),
        data: serde_json::Value::Null,
    });
    Ok(found)
}

/// The entries that a page may hold, and whether each is in force.
struct Selection {
    session: ollm_protocol::methods::session::Session,
    reader: crate::session::Reader,
    wanted: Vec<(Seq, Entry, bool)>,
    end: u64,
}

fn page(
    core: &Core,
    id: SessionId,
    from: i64,
    limit: u32,
    branch: BranchFilter,
) -> Result<SessionGetResult, TurnError> {
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(TurnError::invalid("limit", format!("must lie between 1 and {MAX_LIMIT}")));
    }
    let now = core.clock.now();
    let selected = core.sessions.with(id, |live| {
        let first = first_of(live, from)?;
        let (wanted, end) = select(live, first, limit, branch);
        Ok(Selection { session: live.summary(now), reader: live.reader(), wanted, end })
    })?;
    let Selection { session, reader, wanted, end } = selected.map_err(TurnError::from)?;
    let mut records = Vec::with_capacity(wanted.len());
    let (mut bytes, mut next) = (0, end);
    for (seq, entry, active) in wanted {
        let Some(record) = reader.read(entry) else { continue };
        bytes += weight(&record, entry);
        if bytes > PAGE_BYTES && !records.is_empty() {
            next = seq.0;
            break;
        }
        records.push(Record { active, ..record });
    }
    let more = next < session_len(core, id)?;
    let next_from = more.then(|| i64::try_from(next).unwrap_or(i64::MAX));
    Ok(SessionGetResult { session, records, next_from })
}

fn session_len(core: &Core, id: SessionId) -> Result<u64, TurnError> {
    Ok(core.sessions.with(id, |live| live.state().entries().len() as u64)?)
}

/// The number that `from` means: a negative one counts from the end.
fn first_of(live: &Live, from: i64) -> Result<u64, SessionError> {
    let len = live.state().entries().len() as u64;
    let (id, distance) = (live.state().id(), from.unsigned_abs());
    if from < 0 {
        return Ok(len.saturating_sub(distance));
    }
    // Asking for what comes after the newest record is how a client that follows asks whether there is more.
    if distance > len {
        return Err(SessionError::RecordNotFound { id, seq: Seq(distance) });
    }
    Ok(distance)
}

/// The next `limit` readable entries from `first` on, and the number after the last one looked at.
fn select(live: &Live, first: u64, limit: u32, branch: BranchFilter) -> (Vec<(Seq, Entry, bool)>, u64) {
    let state = live.state();
    let path = state.path();
    let mut wanted = Vec::with_capacity(limit as usize);
    let mut next = first;
    for entry in state.entries().iter().skip(usize::try_from(first).unwrap_or(usize::MAX)) {
        if wanted.len() == limit as usize {
            break;
        }
        let seq = Seq(next);
        next += 1;
        let active = state.is_on_path(seq, &path);
        if !entry.is_damaged() && (active || branch == BranchFilter::All) {
            wanted.push((seq, *entry, active));
        }
    }
    (wanted, next)
}

/// About the bytes that a record takes on the wire.
fn weight(record: &Record, entry: Entry) -> usize {
    if entry.has(Entry::HAS_BLOBS) {
        return serde_json::to_vec(record).map_or(0, |json| json.len());
    }
    entry.len as usize
}
