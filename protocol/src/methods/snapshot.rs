//! `snapshot.*`: creating, listing, reading, changing, restoring and deleting snapshots of a session's context.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::TextPart;
use crate::content::{
    ContextState, FilePlan, FilesMode, PathRecords, Session, SkippedSnapshot, SnapshotDocument,
    SnapshotInfo,
};
use crate::{PlanId, Seq, SessionId, SnapshotId};

/// The params of `snapshot.create`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotCreateParams {
    /// The session.
    pub session_id: SessionId,
    /// The reason, a word of at most 64 bytes that is none of the daemon's own; default `manual`.
    pub reason: Option<String>,
    /// Whether the snapshot is pinned. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// A line for people, at most 4 KiB; default the last message of the user.
    pub summary: Option<String>,
    /// An idempotency key: a retry with the same key returns the same snapshot.
    pub key: Option<String>,
}

/// The result of methods that return one snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotResult {
    /// The snapshot.
    pub snapshot: SnapshotInfo,
}

/// The params of `snapshot.list`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotListParams {
    /// Restricts the list to one session, whose log may be lost.
    pub session_id: Option<SessionId>,
    /// The most snapshots of the page, 1 to 1000; default 50.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `snapshot.list`: a page of snapshots.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotListResult {
    /// The snapshots, the newest first.
    pub data: Vec<SnapshotInfo>,
    /// The files that cannot be used, at most 100; only on the first page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedSnapshot>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// The params of `snapshot.get`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotGetParams {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The session; default the one that has the snapshot.
    pub session_id: Option<SessionId>,
    /// The `nextCursor` of the part before; absent for the whole document, or its first part.
    pub cursor: Option<String>,
}

/// The result of `snapshot.get`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotGetResult {
    /// The snapshot.
    pub snapshot: SnapshotInfo,
    /// The content of its file; absent if it is larger than a page.
    pub document: Option<Box<SnapshotDocument>>,
    /// A part of the JSON of the content, in place of `document`.
    pub part: Option<TextPart>,
}

/// The params of `snapshot.update`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotUpdateParams {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The session; default the one that has the snapshot.
    pub session_id: Option<SessionId>,
    /// Whether the snapshot is exempt from the cleanup of automatic ones.
    pub pinned: Option<bool>,
    /// The line for people, at most 4 KiB.
    pub summary: Option<String>,
}

/// The params of `snapshot.delete`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotDeleteParams {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The session; default the one that has the snapshot.
    pub session_id: Option<SessionId>,
}

/// The result of `snapshot.delete`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotDeleteResult {
    /// The deleted snapshot.
    pub snapshot_id: SnapshotId,
    /// Its session.
    pub session_id: SessionId,
}

/// The params of `snapshot.restore`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotRestoreParams {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The session; default the one that has the snapshot. With it, also a snapshot without a file can be restored.
    pub session_id: Option<SessionId>,
    /// Whether the file becomes a new session even if its own session could return to the snapshot. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_session: bool,
    /// Whether the result only describes what would change. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The treatment of the files that the session wrote; default `skip`. A preview is a dry run.
    #[serde(default, skip_serializing_if = "FilesMode::is_skip")]
    pub files: FilesMode,
    /// For `files: "apply"`: the plan of a preview of the same restore.
    pub plan_id: Option<PlanId>,
    /// An idempotency key: a retry with the same key restores nothing again.
    pub key: Option<String>,
}

impl SnapshotRestoreParams {
    /// Returns the params that restore a snapshot and do not examine files.
    #[must_use]
    pub const fn new(snapshot_id: SnapshotId) -> Self {
        let (session_id, plan_id, key) = (None, None, None);
        let (new_session, dry_run, files) = (false, false, FilesMode::Skip);
        Self { snapshot_id, session_id, new_session, dry_run, files, plan_id, key }
    }
}

/// The result of `snapshot.restore`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRestoreResult {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The session that was restored, or the new one; of a dry run, the one that would be restored.
    pub session_id: SessionId,
    /// The new session; absent if the session returned to the snapshot.
    pub session: Option<Session>,
    /// Whether a new session is needed, because the log of the session is lost or does not have the snapshot. Default
    /// false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_session: bool,
    /// The record of the move; absent for a dry run, for a new session, and if the session is at the snapshot already.
    pub seq: Option<Seq>,
    /// The active leaf after the move; absent for a new session and for the position before the first record.
    pub leaf: Option<Seq>,
    /// The snapshot that was taken before the move, which restores what is now undone.
    pub saved_as: Option<SnapshotId>,
    /// The context before; absent for a new session.
    pub before: Option<ContextState>,
    /// The context after; absent for a new session.
    pub after: Option<ContextState>,
    /// The records that come onto the active path.
    #[serde(default, skip_serializing_if = "PathRecords::is_empty")]
    pub added: PathRecords,
    /// The records that leave the active path.
    #[serde(default, skip_serializing_if = "PathRecords::is_empty")]
    pub removed: PathRecords,
    /// The plan of a preview, or what became of the files.
    pub files: Option<FilePlan>,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

impl SnapshotRestoreResult {
    /// Returns the result of a restore that changed nothing.
    #[must_use]
    pub fn new(snapshot_id: SnapshotId, session_id: SessionId) -> Self {
        Self {
            snapshot_id,
            session_id,
            session: None,
            new_session: false,
            seq: None,
            leaf: None,
            saved_as: None,
            before: None,
            after: None,
            added: PathRecords::default(),
            removed: PathRecords::default(),
            files: None,
            duplicate: false,
        }
    }
}
