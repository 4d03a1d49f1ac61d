//! `goal.*`: what a session works towards.
//!
//! Every call names its session; the goal is the active one where none is named. Writes take a `key`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::content::{
    ArtifactAction, CheckpointStatus, Goal, GoalMarker, GoalPriority, GoalStatus,
};
use crate::{DecisionId, GoalCheckpointId, GoalId, Seq, SessionId};

/// A new goal.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalCreateParams {
    /// The session.
    pub session_id: SessionId,
    /// What is to be achieved; on one line, up to 4 KiB.
    pub description: String,
    /// How much it matters.
    #[serde(default)]
    pub priority: GoalPriority,
    /// Steps on the way, all pending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<String>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Which goals are listed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalListParams {
    /// The session.
    pub session_id: SessionId,
    /// Only goals of this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<GoalStatus>,
    /// The most that are returned, 1 to 100; default 25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where the page before ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<GoalId>,
}

/// Goals, the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalListResult {
    /// The goals, whole.
    pub data: Vec<Goal>,
    /// Where the next page begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<GoalId>,
}

/// Changed fields of a goal, at least one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalUpdateParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// What is to be achieved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How much it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<GoalPriority>,
    /// Where it is in its life; `active` pauses the goal that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<GoalStatus>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A step on the way.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalAddCheckpointParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// What is to be done.
    pub description: String,
    /// How far it is.
    #[serde(default)]
    pub status: CheckpointStatus,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Changed fields of a step, at least one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalUpdateCheckpointParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// The step.
    pub checkpoint_id: GoalCheckpointId,
    /// What is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<CheckpointStatus>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A decision.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalAddDecisionParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// What was decided.
    pub description: String,
    /// What it is about, in a word of the client, for example `architecture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether only a client changes it from here on, and no marker.
    #[serde(default)]
    pub locked: bool,
    /// The decision that it takes the place of, locked or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<DecisionId>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Which decision is locked.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalLockDecisionParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// The decision.
    pub decision_id: DecisionId,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What became of a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalAddArtifactParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// Where it is, as the client names it.
    pub path: String,
    /// What became of it.
    pub action: ArtifactAction,
    /// What it is, in a word of the client, for example `file`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What comes next.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalSetNextStepsParams {
    /// The session.
    pub session_id: SessionId,
    /// The goal; default: the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<GoalId>,
    /// In order, instead of what there was; empty: nothing.
    pub next_steps: Vec<String>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A goal after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalResult {
    /// The goal.
    pub goal: Goal,
    /// The record of the change; absent where nothing was to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The checkpoint that was added or changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_id: Option<GoalCheckpointId>,
    /// The decision that was added or changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<DecisionId>,
    /// The key was used before, so nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// A text with markers: given as it is, or a message of the session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalApplyMarkersParams {
    /// The session.
    pub session_id: SessionId,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// Makes a retry harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What markers did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalApplyMarkersResult {
    /// The markers that were found, in order.
    pub markers: Vec<GoalMarker>,
    /// How many of them changed something.
    pub applied: u64,
    /// The active goal after them; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// The record of the change; absent where nothing was to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The key was used before, so nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}
