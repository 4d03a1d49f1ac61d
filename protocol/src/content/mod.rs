//! The vocabulary that outlives a process: the same JSON on the wire, in the log and in an export.
//!
//! A change here is a change of the file format; frozen fixtures guard it.

mod change;
mod checkpoint;
mod context;
mod document;
mod env;
mod goal;
mod message;
mod prompt;
mod record;
mod session;
mod status;
mod tool_call;

pub use change::{
    Close, CloseReason, ContextEntry, ContextEntryChange, ContextScope, Custom, Label, LeafMove,
    LoopCall, LoopKind, LoopMark, LoopPattern, Meta, MetaPatch, ModeChange, Pin, SnapshotMark,
};
pub use checkpoint::Checkpoint;
pub use context::{
    BranchSummary, Compaction, CompactionMethod, Delta, Epoch, EpochBasis, HeadItem, Retention,
    Usage,
};
pub use document::{DocumentMessage, DocumentMetadata, DocumentToolCall, SessionDocument};
pub use env::{RemovedVariable, Variables};
pub use goal::{
    ArtifactAction, CheckpointStatus, Goal, GoalArtifact, GoalChange, GoalCheckpoint, GoalDecision,
    GoalMarker, GoalPriority, GoalSource, GoalStatus, GoalStep,
};
pub use message::{Message, Part, Role};
pub use prompt::{
    BuiltContext, CompactMode, CompactStrategy, ContextBudget, ContextFunction, ContextMessage,
    ContextToolCall, CountKind, MIN_CONTEXT_SIZE, OmittedItem, Reliability, ReliabilityLevel,
};
pub use record::{Record, RecordBody, RecordKind, Scope, SessionHeader};
pub use session::{
    ExportFormat, ImportLoss, ImportReport, SearchHit, SearchSort, Session, SessionStatus,
    SessionUsage,
};
pub use status::{CatalogStatus, FailedWrite, ModelServerStatus, StoreStatus};
pub use tool_call::{ToolCall, ToolResult};
