//! Goals of a session, as clients see them, and their changes, as `goal` records store them.
//!
//! A [`Goal`] is never stored: it is the fold of the `goal` records on the active path. The changes of a client name
//! their objects by id. Markers are stored as the model wrote them and resolved by the fold, so that recording an
//! answer reads nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::named_enum;
use crate::{DecisionId, GoalCheckpointId, GoalId, Seq, Timestamp};

/// A goal of a session, with its progress and decisions.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Goal {
    /// The id of the goal.
    pub id: GoalId,
    /// The aim, on one line.
    pub description: String,
    /// The importance of the goal.
    pub priority: GoalPriority,
    /// The status; at most one goal of a session is active.
    pub status: GoalStatus,
    /// The author of the goal.
    pub source: GoalSource,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of completion; absent before.
    pub completed_at: Option<Timestamp>,
    /// The steps towards the goal, in the order in which they were added.
    pub checkpoints: Vec<GoalCheckpoint>,
    /// The decisions, in the order in which they were added; superseded ones stay.
    pub decisions: Vec<GoalDecision>,
    /// The files that were created, modified or deleted: one per path, in the order of their first change.
    pub artifacts: Vec<GoalArtifact>,
    /// The next steps, in order.
    pub next_steps: Vec<String>,
    /// Whether texts of the goal are shortened here, because together they do not fit into a frame. The `goal` records
    /// have them in full. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortened: bool,
}

named_enum! {
    /// The importance of a goal.
    #[derive(Default)]
    pub enum GoalPriority {
        /// Higher than normal.
        High = "high",
        /// Normal.
        #[default]
        Medium = "medium",
        /// Lower than normal.
        Low = "low",
    }
}

named_enum! {
    /// The status of a goal.
    pub enum GoalStatus {
        /// The session works on the goal, and contexts contain it.
        Active = "active",
        /// The session does not work on the goal at present.
        Paused = "paused",
        /// The goal is achieved.
        Completed = "completed",
    }
}

/// The author of a goal, of a decision, or of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GoalSource {
    /// A client, on behalf of the user.
    Client,
    /// A model, by a marker in its answer.
    Marker,
}

/// A checkpoint of a goal: a step towards it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalCheckpoint {
    /// The id of the checkpoint.
    pub id: GoalCheckpointId,
    /// The task, on one line.
    pub description: String,
    /// The progress.
    pub status: CheckpointStatus,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of completion; absent before.
    pub completed_at: Option<Timestamp>,
}

named_enum! {
    /// The progress of a checkpoint of a goal.
    #[derive(Default)]
    pub enum CheckpointStatus {
        /// Not started.
        #[default]
        Pending = "pending",
        /// Started.
        InProgress = "in-progress",
        /// Done.
        Completed = "completed",
    }
}

/// A decision of a goal.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalDecision {
    /// The id of the decision.
    pub id: DecisionId,
    /// The subject, in a word of the client, for example `architecture`.
    pub kind: Option<String>,
    /// The decision, on one line.
    pub description: String,
    /// Whether only clients can change it, and no marker.
    pub locked: bool,
    /// The author of the decision.
    pub source: GoalSource,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of locking; absent for a decision that is not locked.
    pub locked_at: Option<Timestamp>,
    /// The decision that replaced it; absent while it is in force.
    pub superseded_by: Option<DecisionId>,
}

/// An artifact of a goal: a file that was created, modified or deleted for it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalArtifact {
    /// The type of the artifact, in a word of the client, for example `file`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The path, as the client or the model gave it.
    pub path: String,
    /// The newest change; a created file stays `created` when it is modified.
    pub action: ArtifactAction,
    /// The time of the newest change.
    pub at: Timestamp,
}

named_enum! {
    /// A change of a file.
    pub enum ArtifactAction {
        /// The file was created.
        Created = "created",
        /// The file was modified.
        Modified = "modified",
        /// The file was deleted.
        Deleted = "deleted",
    }
}

/// A change of the goals of a session: the body of a `goal` record.
///
/// **Shape**: `{"source":"client","steps":[{"action":"create","id":"...","description":"...","priority":"high"}]}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalChange {
    /// The author of the change.
    pub source: GoalSource,
    /// For markers in a recorded message: the record of the message.
    pub message_seq: Option<Seq>,
    /// The steps of the change, in order. A client's steps apply together or not at all, markers one by one.
    pub steps: Vec<GoalStep>,
}

/// A step of a change of the goals. Its times are those of the record.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GoalStep {
    /// Creates a goal and makes it the active one; the goal that was active is paused.
    Create {
        /// The id of the new goal.
        id: GoalId,
        /// The aim.
        description: String,
        /// The importance of the goal.
        #[serde(default)]
        priority: GoalPriority,
        /// The author, if it is not that of the change: a goal that a session took over with a snapshot.
        source: Option<GoalSource>,
    },
    /// Changes fields of a goal; an absent field stays as it is.
    Update {
        /// The goal.
        goal: GoalId,
        /// The aim.
        description: Option<String>,
        /// The importance of the goal.
        priority: Option<GoalPriority>,
        /// The status; `active` pauses the goal that was active.
        status: Option<GoalStatus>,
    },
    /// Adds a checkpoint.
    AddCheckpoint {
        /// The goal.
        goal: GoalId,
        /// The id of the new checkpoint.
        id: GoalCheckpointId,
        /// The task.
        description: String,
        /// The progress.
        #[serde(default)]
        status: CheckpointStatus,
    },
    /// Changes fields of a checkpoint; an absent field stays as it is.
    UpdateCheckpoint {
        /// The goal.
        goal: GoalId,
        /// The checkpoint.
        id: GoalCheckpointId,
        /// The task.
        description: Option<String>,
        /// The progress.
        status: Option<CheckpointStatus>,
    },
    /// Adds a decision.
    AddDecision {
        /// The goal.
        goal: GoalId,
        /// The id of the new decision.
        id: DecisionId,
        /// The subject, in a word of the client.
        kind: Option<String>,
        /// The decision.
        description: String,
        /// Whether only clients can change the decision.
        #[serde(default)]
        locked: bool,
        /// The decision that this one replaces, locked or not.
        supersedes: Option<DecisionId>,
        /// The author, if it is not that of the change, as of `create`.
        source: Option<GoalSource>,
    },
    /// Locks a decision.
    LockDecision {
        /// The goal.
        goal: GoalId,
        /// The decision.
        id: DecisionId,
    },
    /// Adds an artifact, or changes the one with the same path.
    AddArtifact {
        /// The goal.
        goal: GoalId,
        /// The type of the artifact, in a word of the client.
        kind: Option<String>,
        /// The path.
        path: String,
        /// The change of the file.
        did: ArtifactAction,
    },
    /// Replaces the next steps.
    SetNextSteps {
        /// The goal.
        goal: GoalId,
        /// The new next steps; empty to remove all.
        next_steps: Vec<String>,
    },
    /// Applies a marker of a model, as far as the goals allow it.
    Mark {
        /// The id of the object that the marker adds, if it adds one.
        id: GoalId,
        /// The marker.
        marker: GoalMarker,
    },
}

impl GoalStep {
    /// Returns the goal that the step names; a marker names none.
    #[must_use]
    pub const fn goal(&self) -> Option<GoalId> {
        match self {
            Self::Create { id, .. } => Some(*id),
            Self::Update { goal, .. }
            | Self::AddCheckpoint { goal, .. }
            | Self::UpdateCheckpoint { goal, .. }
            | Self::AddDecision { goal, .. }
            | Self::LockDecision { goal, .. }
            | Self::AddArtifact { goal, .. }
            | Self::SetNextSteps { goal, .. } => Some(*goal),
            Self::Mark { .. } => None,
        }
    }

    /// Returns the `action`; for a marker `mark.` and its type.
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

/// A marker, as a model wrote it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GoalMarker {
    /// `[GOAL] ...`: sets or completes a goal.
    Goal {
        /// The aim.
        description: String,
        /// Whether the marker says that the goal is completed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        completed: bool,
    },
    /// `[CHECKPOINT] ... - COMPLETED`: adds a checkpoint or changes its progress.
    Checkpoint {
        /// The task.
        description: String,
        /// The progress, if the marker gives it.
        status: Option<CheckpointStatus>,
    },
    /// `[DECISION] ... - LOCKED`: adds or locks a decision.
    Decision {
        /// The decision.
        description: String,
        /// Whether the marker locks the decision.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        locked: bool,
    },
    /// `[ARTIFACT] Created ...`: adds or changes an artifact.
    Artifact {
        /// The change of the file.
        did: ArtifactAction,
        /// The path.
        path: String,
    },
    /// `[NEXT] ...`: replaces the next steps; all such lines of a message are one marker.
    Next {
        /// The next steps, in order.
        steps: Vec<String>,
    },
}
