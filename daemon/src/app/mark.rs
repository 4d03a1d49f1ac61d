//! Marks in the log: where a session was directly before its context became another one, so that it can be gone back to.
//!
//! Only the mark is written here; it names the snapshot and the leaf (FORMAT.md, "Record kinds").

use ollm_protocol::content::{RecordBody, SnapshotMark};
use ollm_protocol::{Seq, SnapshotId};

use super::Core;
use crate::session::NewRecord;

/// What a mark stands before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// A compaction.
    Compaction,
    /// A head that a build planned, which shows less than the one before it.
    Epoch,
    /// A change of the mode.
    ModeChange,
}

impl Moment {
    /// As it stands in the record.
    const fn reason(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::Epoch => "epoch",
            Self::ModeChange => "modeChange",
        }
    }
}

/// A mark of the state with a leaf.
pub(super) fn mark(core: &Core, leaf: Option<Seq>, before: Moment) -> NewRecord {
    let snapshot_id = SnapshotId::from_uuid(core.clock.uuid());
    let mark = SnapshotMark { snapshot_id, leaf, reason: before.reason().to_owned() };
    NewRecord::new(RecordBody::Snapshot(mark), None)
}
