//! `goal.*`: the goals of a session.
//!
//! A call without `goal_id` concerns the active goal. All writes take an idempotency key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::content::{
    ArtifactAction, CheckpointStatus, Goal, GoalMarker, GoalPriority, GoalStatus,
};
use crate::{DecisionId, GoalCheckpointId, GoalId, Seq, SessionId};

/// The params of `goal.create`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalCreateParams {
    /// The session.
    pub session_id: SessionId,
    /// The aim, at most 4 KiB; line breaks become spaces.
    pub description: String,
    /// The importance of the goal; default `medium`.
    #[serde(default)]
    pub priority: GoalPriority,
    /// The descriptions of checkpoints to add, all `pending`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<String>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
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

/// The params of `goal.update`, with at least one field to change.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalUpdateParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The aim.
    pub description: Option<String>,
    /// The importance of the goal.
    pub priority: Option<GoalPriority>,
    /// The status; `active` pauses the goal that was active.
    pub status: Option<GoalStatus>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The params of `goal.addCheckpoint`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalAddCheckpointParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The task, at most 4 KiB; line breaks become spaces.
    pub description: String,
    /// The progress; default `pending`.
    #[serde(default)]
    pub status: CheckpointStatus,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The params of `goal.updateCheckpoint`, with at least one field to change.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalUpdateCheckpointParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The checkpoint.
    pub checkpoint_id: GoalCheckpointId,
    /// The task.
    pub description: Option<String>,
    /// The progress.
    pub status: Option<CheckpointStatus>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The params of `goal.addDecision`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalAddDecisionParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The decision, at most 4 KiB; line breaks become spaces.
    pub description: String,
    /// The subject, in a word of the client, for example `architecture`.
    pub kind: Option<String>,
    /// Whether only clients can change the decision, and no marker. Default false.
    #[serde(default)]
    pub locked: bool,
    /// The decision that this one replaces, locked or not.
    pub supersedes: Option<DecisionId>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The params of `goal.lockDecision`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalLockDecisionParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The decision.
    pub decision_id: DecisionId,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The params of `goal.addArtifact`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalAddArtifactParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The path, as the client names it.
    pub path: String,
    /// The change of the file.
    pub action: ArtifactAction,
    /// The type of the artifact, in a word of the client, for example `file`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The params of `goal.setNextSteps`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalSetNextStepsParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default the active one.
    pub goal_id: Option<GoalId>,
    /// The new next steps, in order; empty to remove all.
    pub next_steps: Vec<String>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The result of methods that change a goal.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalResult {
    /// The goal after the change.
    pub goal: Goal,
    /// The record of the change; absent if nothing changed.
    pub seq: Option<Seq>,
    /// The checkpoint that was added or changed.
    pub checkpoint_id: Option<GoalCheckpointId>,
    /// The decision that was added or locked.
    pub decision_id: Option<DecisionId>,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The params of `goal.applyMarkers`, with either `text` or `seq`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalApplyMarkersParams {
    /// The session.
    pub session_id: SessionId,
    /// A text with markers.
    pub text: Option<String>,
    /// The record of an assistant message with markers.
    pub seq: Option<Seq>,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The result of `goal.applyMarkers`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalApplyMarkersResult {
    /// The markers in the text, in order.
    pub markers: Vec<GoalMarker>,
    /// The number of markers that changed something; 0 for a key that was used before.
    pub applied: u64,
    /// The active goal after the change; absent if there is none.
    pub goal: Option<Goal>,
    /// The record of the change; absent if nothing changed.
    pub seq: Option<Seq>,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}
