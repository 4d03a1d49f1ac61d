//! What a session is working towards: goals as clients see them, and the changes that records hold.
//!
//! A goal is never stored as a whole: it is the fold of the `goal` records on the active path. Changes by clients name
//! what they change by id; changes by markers are written down as the model said them and are resolved by the fold, so
//! that recording an answer needs to read nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DecisionId, GoalCheckpointId, GoalId, Seq, Timestamp};

/// What a session works towards, with what was done and decided on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Goal {
    /// Names it.
    pub id: GoalId,
    /// What is to be achieved, on one line.
    pub description: String,
    /// How much it matters.
    pub priority: GoalPriority,
    /// Where it is in its life; at most one goal of a session is active.
    pub status: GoalStatus,
    /// Who set it.
    pub source: GoalSource,
    /// When it was set.
    pub created_at: Timestamp,
    /// When it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// Steps on the way, in the order in which they were added.
    pub checkpoints: Vec<GoalCheckpoint>,
    /// What was decided, in order; superseded decisions stay.
    pub decisions: Vec<GoalDecision>,
    /// Files that were made, changed or deleted: one for each path, in the order of their first change.
    pub artifacts: Vec<GoalArtifact>,
    /// What comes next, in order.
    pub next_steps: Vec<String>,
}

/// How much a goal matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GoalPriority {
    /// More than others.
    High,
    /// As usual.
    #[default]
    Medium,
    /// Less than others.
    Low,
}

impl GoalPriority {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// Where a goal is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GoalStatus {
    /// It is worked on, and the model is told of it.
    Active,
    /// It waits.
    Paused,
    /// It is achieved.
    Completed,
}

impl GoalStatus {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Completed => "completed",
        }
    }
}

/// Who changed a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GoalSource {
    /// A client, and so the user.
    Client,
    /// A marker in what a model said.
    Marker,
}

/// One step on the way to a goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalCheckpoint {
    /// Names it.
    pub id: GoalCheckpointId,
    /// What is to be done, on one line.
    pub description: String,
    /// How far it is.
    pub status: CheckpointStatus,
    /// When it was added.
    pub created_at: Timestamp,
    /// When it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointStatus {
    /// Not begun.
    #[default]
    Pending,
    /// Begun.
    InProgress,
    /// Done.
    Completed,
}

impl CheckpointStatus {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in-progress",
            Self::Completed => "completed",
        }
    }
}

/// Something that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalDecision {
    /// Names it.
    pub id: DecisionId,
    /// What it is about, in a client's own word, for example `architecture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What was decided, on one line.
    pub description: String,
    /// Whether only the user changes it.
    pub locked: bool,
    /// Who decided.
    pub source: GoalSource,
    /// When.
    pub created_at: Timestamp,
    /// When it was locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_at: Option<Timestamp>,
    /// The decision in its place; absent while it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<DecisionId>,
}

/// A file that the work on a goal made, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalArtifact {
    /// What it is, in a client's own word, for example `file`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Where it is.
    pub path: String,
    /// What became of it: the newest change, except that a file made for this goal stays `created`.
    pub action: ArtifactAction,
    /// When that was.
    pub at: Timestamp,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ArtifactAction {
    /// It was made.
    Created,
    /// It was changed.
    Modified,
    /// It was removed.
    Deleted,
}

impl ArtifactAction {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
        }
    }
}

/// The goals of a session changed; one record is one whole change.
///
/// **Shape**: `{"source":"client","steps":[{"action":"create","id":"...","description":"...","priority":"high"}]}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalChange {
    /// Who changed them.
    pub source: GoalSource,
    /// For markers: the message that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_seq: Option<Seq>,
    /// What is changed, in order; the steps of a client hold together or not at all, those of markers one by one.
    pub steps: Vec<GoalStep>,
}

/// One step of a change. Times are those of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GoalStep {
    /// Sets a goal and makes it the active one; the one before is paused.
    Create {
        /// The new goal.
        id: GoalId,
        /// What is to be achieved.
        description: String,
        /// How much it matters.
        #[serde(default)]
        priority: GoalPriority,
    },
    /// Changes fields of a goal; a field that is absent stays as it is.
    Update {
        /// The goal.
        goal: GoalId,
        /// What is to be achieved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// How much it matters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<GoalPriority>,
        /// Where it is in its life; `active` pauses the one that was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<GoalStatus>,
    },
    /// Adds a step on the way.
    AddCheckpoint {
        /// The goal.
        goal: GoalId,
        /// The new checkpoint.
        id: GoalCheckpointId,
        /// What is to be done.
        description: String,
        /// How far it is.
        #[serde(default)]
        status: CheckpointStatus,
    },
    /// Changes a step on the way.
    UpdateCheckpoint {
        /// The goal.
        goal: GoalId,
        /// The checkpoint.
        id: GoalCheckpointId,
        /// What is to be done; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// How far it is; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<CheckpointStatus>,
    },
    /// Adds a decision.
    AddDecision {
        /// The goal.
        goal: GoalId,
        /// The new decision.
        id: DecisionId,
        /// What it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// What was decided.
        description: String,
        /// Whether only the user changes it from here on.
        #[serde(default)]
        locked: bool,
        /// The decision that no longer holds, locked or not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        supersedes: Option<DecisionId>,
    },
    /// Locks a decision.
    LockDecision {
        /// The goal.
        goal: GoalId,
        /// The decision.
        id: DecisionId,
    },
    /// Adds a file, or changes what became of it.
    AddArtifact {
        /// The goal.
        goal: GoalId,
        /// What it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// Where it is.
        path: String,
        /// What became of it.
        did: ArtifactAction,
    },
    /// Says what comes next, instead of what was said before.
    SetNextSteps {
        /// The goal.
        goal: GoalId,
        /// What comes next; empty: nothing.
        next_steps: Vec<String>,
    },
    /// Does what a model said with a marker, where the goals allow it.
    Mark {
        /// Names what the marker adds, if it adds something.
        id: GoalId,
        /// What the model said.
        marker: GoalMarker,
    },
}

impl GoalStep {
    /// Its `action`; for a marker, that and the marker's type.
    #[must_use]
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Update { .. } => "update",
            Self::AddCheckpoint { .. } => "addCheckpoint",
            Self::UpdateCheckpoint { .. } => "updateCheckpoint",
            Self::AddDecision { .. } => "addDecision",
            Self::LockDecision { .. } => "lockDecision",
            Self::AddArtifact { .. } => "addArtifact",
            Self::SetNextSteps { .. } => "setNextSteps",
            Self::Mark { marker, .. } => match marker {
                GoalMarker::Goal { .. } => "mark.goal",
                GoalMarker::Checkpoint { .. } => "mark.checkpoint",
                GoalMarker::Decision { .. } => "mark.decision",
                GoalMarker::Artifact { .. } => "mark.artifact",
                GoalMarker::Next { .. } => "mark.next",
            },
        }
    }
}

/// A marker as a model wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GoalMarker {
    /// `[GOAL] ...`: what is to be achieved.
    Goal {
        /// The goal.
        description: String,
        /// Whether it is said to be achieved.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        completed: bool,
    },
    /// `[CHECKPOINT] ... - COMPLETED`: how far a step is.
    Checkpoint {
        /// The step.
        description: String,
        /// How far it is, where the marker says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<CheckpointStatus>,
    },
    /// `[DECISION] ... - LOCKED`: what was decided.
    Decision {
        /// The decision.
        description: String,
        /// Whether it is to stay.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        locked: bool,
    },
    /// `[ARTIFACT] Created ...`: what became of a file.
    Artifact {
        /// What became of it.
        did: ArtifactAction,
        /// Where it is.
        path: String,
    },
    /// `[NEXT] ...`: what comes next; all of one message together.
    Next {
        /// What comes next.
        steps: Vec<String>,
    },
}
