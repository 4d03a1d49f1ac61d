//! The vocabulary that outlives a process: the same JSON on the wire, in the log and in an export.
//!
//! A change here is a change of the file format; frozen fixtures guard it.

mod change;
mod checkpoint;
mod context;
mod document;
mod goal;
mod message;
mod record;
mod tool_call;

pub use change::{
    Close, CloseReason, ContextEntry, ContextEntryChange, ContextScope, Custom, Label, LeafMove,
    LoopKind, LoopMark, LoopPattern, Meta, MetaPatch, ModeChange, Pin, SnapshotMark,
};
pub use checkpoint::Checkpoint;
pub use context::{
    BranchSummary, Compaction, CompactionMethod, Delta, Epoch, EpochBasis, HeadItem, Retention,
    Usage,
};
pub use document::{DocumentMessage, DocumentMetadata, DocumentToolCall, SessionDocument};
pub use goal::{
    ArtifactAction, CheckpointStatus, Goal, GoalArtifact, GoalChange, GoalCheckpoint, GoalDecision,
    GoalMarker, GoalPriority, GoalSource, GoalStatus, GoalStep,
};
pub use message::{Message, Part, Role};
pub use record::{Record, RecordBody, RecordKind, Scope, SessionHeader};
pub use tool_call::{ToolCall, ToolResult};
