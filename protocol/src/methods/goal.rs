//! `goal.*`: the goals of a session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::content::{
    ArtifactAction, CheckpointStatus, Goal, GoalMarker, GoalPriority, GoalStatus,
};
use crate::{DecisionId, GoalCheckpointId, GoalId, Seq, SessionId};

/// The params of `goal.change`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalChangeParams {
    /// The session.
    pub session_id: SessionId,
    /// The steps, 1 to 100, in order. All of them are made, or none.
    pub steps: Vec<GoalStepParams>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// A step of `goal.change`. Without `goalId` it concerns the goal that is active after the steps before it. Texts have at
/// most 4 KiB; line breaks become spaces.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "action",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum GoalStepParams {
    /// Creates a goal and makes it the active one.
    Create {
        /// The aim.
        description: String,
        /// The importance of the goal; default `medium`.
        #[serde(default)]
        priority: GoalPriority,
    },
    /// Changes at least one field of a goal.
    Update {
        /// The goal.
        goal_id: Option<GoalId>,
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
        goal_id: Option<GoalId>,
        /// The task.
        description: String,
        /// The progress; default `pending`.
        #[serde(default)]
        status: CheckpointStatus,
    },
    /// Changes at least one field of a checkpoint.
    UpdateCheckpoint {
        /// The goal.
        goal_id: Option<GoalId>,
        /// The checkpoint.
        checkpoint_id: GoalCheckpointId,
        /// The task.
        description: Option<String>,
        /// The progress.
        status: Option<CheckpointStatus>,
    },
    /// Adds a decision.
    AddDecision {
        /// The goal.
        goal_id: Option<GoalId>,
        /// The decision.
        description: String,
        /// The subject, in a word of the client, for example `architecture`.
        kind: Option<String>,
        /// Whether only clients can change the decision, and no marker. Default false.
        #[serde(default)]
        locked: bool,
        /// The decision that this one replaces, locked or not.
        supersedes: Option<DecisionId>,
    },
    /// Locks a decision, so that markers cannot change it.
    LockDecision {
        /// The goal.
        goal_id: Option<GoalId>,
        /// The decision.
        decision_id: DecisionId,
    },
    /// Adds an artifact, or changes the one with the same path.
    AddArtifact {
        /// The goal.
        goal_id: Option<GoalId>,
        /// The path, as the client names it.
        path: String,
        /// The change of the file.
        did: ArtifactAction,
        /// The type of the artifact, in a word of the client, for example `file`.
        #[serde(rename = "type")]
        kind: Option<String>,
    },
    /// Replaces the next steps.
    SetNextSteps {
        /// The goal.
        goal_id: Option<GoalId>,
        /// The new next steps, in order; empty to remove all.
        next_steps: Vec<String>,
    },
    /// Applies the markers of either `text` or `seq`, as far as the goals allow it.
    ApplyMarkers {
        /// A text with markers.
        text: Option<String>,
        /// The record of an assistant message with markers.
        seq: Option<Seq>,
    },
}

/// The result of `goal.change`, the same for a repeated key.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalChangeResult {
    /// The goal of the last step as it was right after the change: the one that the step named or created, else the active
    /// one. Absent if there was none.
    pub goal: Option<Goal>,
    /// The first record of the change; absent if nothing changed.
    pub seq: Option<Seq>,
    /// The results of the steps, in order.
    pub steps: Vec<GoalStepResult>,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// What a step of `goal.change` added, or what became of its markers.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalStepResult {
    /// The new goal.
    pub goal_id: Option<GoalId>,
    /// The new checkpoint.
    pub checkpoint_id: Option<GoalCheckpointId>,
    /// The new decision.
    pub decision_id: Option<DecisionId>,
    /// The markers in the text of the step, in order.
    pub markers: Option<Vec<GoalMarker>>,
    /// The number of these markers that changed something.
    pub applied: Option<u64>,
}

/// The params of `goal.list`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalListParams {
    /// The session.
    pub session_id: SessionId,
    /// Restricts the list to goals of this status.
    pub status: Option<GoalStatus>,
    /// The most goals of the page, 1 to 100; default 25. A page also ends at 6 MiB.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<GoalId>,
}

/// The result of `goal.list`: a page of goals.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalListResult {
    /// The goals, the newest first.
    pub data: Vec<Goal>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<GoalId>,
}
