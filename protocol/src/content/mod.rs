//! The vocabulary that several places share. It has two sorts of files:
//!
//! - **Stored objects**: `record`, `message`, `change`, `compaction`, `goal`, `permission`, `document`, `snapshot` and
//!   the records of `files` are the same JSON on the wire, in session logs, in exports, in session documents and in snapshot files. A
//!   change there is a change of the file format, which frozen fixtures guard.
//! - **Results**: `session`, `operation`, `context`, `hook` and `daemon` are objects that several results share, or that modules
//!   of the daemon make that know no method. A change there is a change of the wire only; `hook` is also what hooks read and write.
//!
//! [`Goal`] with its parts, [`ContextEntry`] and [`LoopCall`] are results too. They are beside the records that they
//! are derived from.

mod answer_text;
mod change;
mod compaction;
mod context;
mod daemon;
mod document;
mod files;
mod goal;
mod hook;
mod message;
mod operation;
mod permission;
mod record;
mod session;
mod snapshot;

pub use answer_text::{
    EARLIER_REQUESTS_BLOCK, FACTS_BLOCK, MEMORY_BLOCK, OPENING_END, RECALLED_BLOCK,
};
pub use change::{
    Close, CloseReason, ContextEntry, ContextEntryChange, ContextScope, Custom, Label, LeafMove,
    LoopCall, LoopKind, LoopMark, LoopPattern, Meta, MetaPatch, ModeChange, Pin, RestMark,
    SnapshotMark, ToolStart,
};
pub use compaction::{
    AskedFact, BranchSummary, Checkpoint, Compaction, CompactionMethod, Delta, Epoch, EpochBasis,
    HeadItem, RecalledRecord, Retention, SummaryAuthor, Usage,
};
pub use context::{
    BuiltContext, CompactMode, CompactStrategy, ContextBudget, ContextFunction, ContextMessage,
    ContextToolCall, CountKind, CutRecord, MIN_CONTEXT_SIZE, OmittedItem, RecallHit, RecallScope,
    Reliability, ReliabilityLevel, WindowLimits,
};
pub use daemon::{
    CatalogStatus, FailedWrite, ModelServerStatus, RemovedVariable, StoreStatus, Variables,
};
pub use document::{DocumentMessage, DocumentMetadata, DocumentToolCall, SessionDocument};
pub use files::{
    FileAction, FileCounts, FileHash, FileLoss, FileModes, FilePlan, FileState, FileStateInput,
    FileStatus, FileWrite, FileWriteInput, FilesMode, KeptFile, NotKept, NotKeptFile,
    NotKeptReason, PlannedFile, PutBack, PutBackFile, UnrecordedCall,
};
pub use goal::{
    ArtifactAction, CheckpointStatus, Goal, GoalArtifact, GoalChange, GoalCheckpoint, GoalDecision,
    GoalMarker, GoalPriority, GoalSource, GoalStatus, GoalStep,
};
pub use hook::{
    HookCompaction, HookEntry, HookInput, HookOccasion, HookOrigin, HookOutput, HookRun, HookState,
    HookTurn,
};
pub use message::{Message, Part, Role, TokenLogprob, ToolCall, ToolResult};
pub use operation::{
    Operation, OperationFiles, OperationKind, OperationState, PathRecords, TreeCounts, TreeNode,
};
pub use permission::{
    MAX_PERMISSIONS, PERMISSIONS, PermissionDecision, ToolPermission, decide, permissions,
    set_permission,
};
pub use record::{Record, RecordBody, RecordKind, RecordScope, SessionHeader};
pub use session::{
    ExportFormat, ImportLoss, ImportReport, SearchHit, SearchSort, Session, SessionStatus,
    SessionUsage,
};
pub use snapshot::{
    ContextState, GoalStack, ReasoningStorage, ReasoningTrace, SkippedSnapshot, SnapshotDocument,
    SnapshotInfo, SnapshotMessage, SnapshotMetadata, SnapshotToolCall,
};

/// Returns whether a counter is 0, for `skip_serializing_if`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(crate) const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Defines an enum with the JSON name of each variant, and its method `as_str`, which returns that name.
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl $type {
            /// Returns the name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
pub(crate) use named_enum;
