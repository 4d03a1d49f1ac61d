//! `snapshot.list`, `get`, `update` and `delete`: the files of snapshots.

use std::sync::Arc;

use ollm_protocol::content::{SkippedSnapshot, SnapshotInfo};
use ollm_protocol::limits::{BoundedField, MAX_PAGE_BYTES, json_bytes};
use ollm_protocol::methods::snapshot::{
    SnapshotDeleteParams, SnapshotDeleteResult, SnapshotGetParams, SnapshotGetResult,
    SnapshotListParams, SnapshotListResult, SnapshotResult, SnapshotUpdateParams,
};
use ollm_protocol::{SessionId, SnapshotId, Timestamp};

use super::automatic::write_due;
use super::files::{clean_up, publish_deleted};
use crate::app::core::Core;
use crate::app::error::{AppError, Result, json_part, limit_page, page_limit};
use crate::snapshot::SnapshotError;

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1000;
/// The most files of a result that cannot be used.
const MAX_SKIPPED: usize = 100;

/// Lists snapshots (`snapshot.list`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: SnapshotListParams) -> Result<SnapshotListResult> {
    let SnapshotListParams { session_id, limit, cursor } = params;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let before = cursor.as_deref().map(parse_cursor).transpose()?;
    write_due(core);
    let sessions = match session_id {
        Some(id) => vec![id],
        None => core.snapshots.sessions()?,
    };
    let (mut data, mut skipped) = (Vec::new(), Vec::new());
    for id in &sessions {
        let found = core.snapshots.list(*id)?;
        data.extend(found.snapshots);
        skipped.extend(found.skipped);
    }
    if let Some(id) = session_id
        && data.is_empty()
        && skipped.is_empty()
    {
        // A session without snapshots differs from one that does not exist.
        core.sessions.with(id, |_| ())?;
    }
    data.sort_by_key(|info| std::cmp::Reverse(position(info)));
    data.retain(|info| before.is_none_or(|before| position(info) < before));
    let n_left = data.len();
    data.truncate(limit);
    limit_page(&mut data);
    let next_cursor = data.last().filter(|_| data.len() < n_left).map(cursor_of);
    core.snapshots.shorten_ids(&mut data);
    skipped.truncate(if before.is_some() { 0 } else { MAX_SKIPPED });
    report(&skipped);
    Ok(SnapshotListResult { data, skipped, next_cursor })
}

fn report(skipped: &[SkippedSnapshot]) {
    for SkippedSnapshot { session_id, file, reason } in skipped {
        tracing::warn!(session = %session_id, file, "a snapshot is skipped: {reason}");
    }
}

/// The position in the order of lists.
type Position = (Timestamp, SnapshotId);

const fn position(info: &SnapshotInfo) -> Position {
    (info.timestamp, info.snapshot_id)
}

fn cursor_of(info: &SnapshotInfo) -> String {
    format!("{}.{}", info.timestamp.unix_ms(), info.snapshot_id)
}

fn parse_cursor(cursor: &str) -> Result<Position> {
    let parse = || {
        let (ms, id) = cursor.split_once('.')?;
        Some((Timestamp::from_unix_ms(ms.parse().ok()?), id.parse().ok()?))
    };
    parse().ok_or_else(|| AppError::invalid("cursor", "is not a cursor of snapshots"))
}

/// Returns the session of a snapshot with a file, also if the file is about to be written. Blocks on the disk.
///
/// **Errors**: as [`SnapshotStore::session_of`](crate::snapshot::SnapshotStore::session_of).
pub(in crate::app) fn session_of(
    core: &Arc<Core>,
    id: SnapshotId,
    session: Option<SessionId>,
) -> Result<SessionId, SnapshotError> {
    match core.snapshots.session_of(id, session) {
        Err(SnapshotError::NotFound { .. }) => {
            write_due(core);
            core.snapshots.session_of(id, session)
        }
        found => found,
    }
}

/// Returns a snapshot and the content of its file (`snapshot.get`). Blocks on the disk.
pub(crate) fn get(core: &Arc<Core>, params: SnapshotGetParams) -> Result<SnapshotGetResult> {
    let SnapshotGetParams { snapshot_id, session_id, cursor } = params;
    let session = session_of(core, snapshot_id, session_id)?;
    let (snapshot, document) = core.snapshots.read(session, snapshot_id)?;
    if cursor.is_none() && json_bytes(&document) <= MAX_PAGE_BYTES {
        let document = Some(Box::new(document));
        return Ok(SnapshotGetResult { snapshot, document, part: None });
    }
    let json = serde_json::to_string(&document)
        .map_err(|error| AppError::invalid("snapshotId", error.to_string()))?;
    let part = Some(json_part(&json, cursor.as_deref())?);
    Ok(SnapshotGetResult { snapshot, document: None, part })
}

/// Pins or unpins a snapshot, or changes its summary (`snapshot.update`). Blocks on the disk.
pub(crate) fn update(core: &Arc<Core>, params: SnapshotUpdateParams) -> Result<SnapshotResult> {
    let SnapshotUpdateParams { snapshot_id, session_id, pinned, summary } = params;
    if pinned.is_none() && summary.is_none() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    BoundedField::SnapshotSummary.check(summary.as_ref().map_or(0, String::len))?;
    let session = session_of(core, snapshot_id, session_id)?;
    let writer = core.snapshots.writer();
    let (_, mut document) = core.snapshots.read(session, snapshot_id)?;
    if document.version.is_none() {
        let problem = "is a file of another program, which is never changed; restore it instead";
        return Err(AppError::invalid("snapshotId", problem));
    }
    document.metadata.pinned = pinned.unwrap_or(document.metadata.pinned);
    document.summary = summary.unwrap_or(document.summary);
    let snapshot = core.sessions.with_descriptors(|| writer.write(session, &document))?;
    drop(writer);
    if pinned == Some(false) {
        clean_up(core, session, None);
    }
    Ok(SnapshotResult { snapshot })
}

/// Deletes the file of a snapshot (`snapshot.delete`). Its record stays in the log. Blocks on the disk.
pub(crate) fn delete(
    core: &Arc<Core>,
    params: SnapshotDeleteParams,
) -> Result<SnapshotDeleteResult> {
    let SnapshotDeleteParams { snapshot_id, session_id } = params;
    core.snapshots.writer().sync_removed().map_err(SnapshotError::from)?;
    let session = session_of(core, snapshot_id, session_id)?;
    core.snapshots.writer().remove(session, snapshot_id)?;
    core.snapshots.save_map();
    publish_deleted(core, session, snapshot_id, "client");
    Ok(SnapshotDeleteResult { snapshot_id, session_id: session })
}
