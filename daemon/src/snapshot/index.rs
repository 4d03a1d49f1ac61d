//! The index of a session's snapshots, `snapshots-index.json`: what lists show, without reading every file. It is removed
//! before a file changes, and written after it.

use std::path::Path;

use ollm_protocol::SessionId;
use ollm_protocol::content::{SkippedSnapshot, SnapshotInfo};
use serde::{Deserialize, Serialize};

use super::{SessionSnapshots, SnapshotError, file};
use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};

const NAME: &str = "snapshots-index.json";
/// The largest index in bytes: some ten thousand snapshots.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotIndex {
    version: u32,
    session_id: SessionId,
    /// The newest first.
    snapshots: Vec<IndexedSnapshot>,
}

/// A snapshot with the name of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexedSnapshot {
    file: String,
    #[serde(flatten)]
    info: SnapshotInfo,
}

const VERSION: u32 = 1;

/// Returns the snapshots in a directory, and whether its index describes exactly these files. A file is read only if the
/// index has no entry for its name and size.
pub(super) fn load(dir: &Path, session: SessionId) -> Result<(SessionSnapshots, bool), FsError> {
    let names = file::names(dir)?;
    let stored = fsutil::read_derived(&dir.join(NAME), MAX_BYTES).unwrap_or_else(|error| {
        tracing::warn!("an index of snapshots is not used: {error}");
        None
    });
    let index = stored.and_then(|bytes| serde_json::from_slice::<SnapshotIndex>(&bytes).ok());
    let index = index.filter(|index| index.version == VERSION && index.session_id == session);
    let n_indexed = index.as_ref().map(|index| index.snapshots.len());
    let known = index.map(|index| index.snapshots).unwrap_or_default();
    let mut found = SessionSnapshots::default();
    let mut n_known = 0;
    for (name, len) in names {
        let known = known.iter().find(|one| one.file == name && one.info.size_bytes == len);
        if let Some(known) = known {
            n_known += 1;
            found.snapshots.push(known.info.clone());
            continue;
        }
        match file::read(&dir.join(&name), session) {
            Ok((info, _)) => found.snapshots.push(info),
            Err(error) => {
                let reason = reason_of(&error);
                found.skipped.push(SkippedSnapshot { session_id: session, file: name, reason });
            }
        }
    }
    found.snapshots.sort_by_key(|info| std::cmp::Reverse((info.timestamp, info.snapshot_id)));
    let is_current = n_known == found.snapshots.len() && n_indexed.unwrap_or_default() == n_known;
    Ok((found, is_current))
}

/// Returns the reason why a file cannot be used, for a person who knows which file it is.
pub(super) fn reason_of(error: &SnapshotError) -> String {
    match error {
        SnapshotError::Damaged { reason, .. } => reason.clone(),
        SnapshotError::Newer { found, supported, .. } => {
            format!("it has version {found}, and this daemon reads up to {supported}")
        }
        other => with_sources(other),
    }
}

/// Removes the index, which is made again from the files.
pub(super) fn remove(dir: &Path) -> Result<(), FsError> {
    fsutil::remove_file(&dir.join(NAME))
}

/// Replaces the index.
pub(super) fn save(
    dir: &Path,
    session_id: SessionId,
    found: &SessionSnapshots,
) -> Result<(), FsError> {
    let names = file::names(dir)?;
    let indexed = |info: &SnapshotInfo| {
        let (file, _) =
            names.iter().find(|(name, _)| file::id_of(name) == Some(info.snapshot_id))?;
        Some(IndexedSnapshot { file: file.clone(), info: info.clone() })
    };
    let snapshots = found.snapshots.iter().filter_map(indexed).collect();
    let index = SnapshotIndex { version: VERSION, session_id, snapshots };
    let bytes = serde_json::to_vec_pretty(&index).expect("an index has text keys only");
    fsutil::replace_atomically(&dir.join(NAME), &bytes)
}
