//! `goal.*`: what a session works towards.

use std::sync::Arc;

use ollm_protocol::method as m;
use ollm_protocol::methods::goal as g;

use crate::app::{self, blocking};
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

type Answer<T> = Result<T, RpcError>;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<m::GoalCreate, _, _>(create);
    registry.register::<m::GoalList, _, _>(list);
    registry.register::<m::GoalUpdate, _, _>(update);
    registry.register::<m::GoalAddCheckpoint, _, _>(add_checkpoint);
    registry.register::<m::GoalUpdateCheckpoint, _, _>(update_checkpoint);
    registry.register::<m::GoalAddDecision, _, _>(add_decision);
    registry.register::<m::GoalLockDecision, _, _>(lock_decision);
    registry.register::<m::GoalAddArtifact, _, _>(add_artifact);
    registry.register::<m::GoalSetNextSteps, _, _>(set_next_steps);
    registry.register::<m::GoalApplyMarkers, _, _>(apply_markers);
}

async fn create(handles: Arc<Handles>, params: g::GoalCreateParams) -> Answer<g::GoalResult> {
    Ok(app::goal_create(&handles.core, params).await?)
}

async fn list(handles: Arc<Handles>, params: g::GoalListParams) -> Answer<g::GoalListResult> {
    Ok(blocking(&handles.core, move |core| app::goal_list(core, &params)).await?)
}

async fn update(handles: Arc<Handles>, params: g::GoalUpdateParams) -> Answer<g::GoalResult> {
    Ok(app::goal_update(&handles.core, params).await?)
}

async fn add_checkpoint(
    handles: Arc<Handles>,
    params: g::GoalAddCheckpointParams,
) -> Answer<g::GoalResult> {
    Ok(app::goal_add_checkpoint(&handles.core, params).await?)
}

async fn update_checkpoint(
    handles: Arc<Handles>,
    params: g::GoalUpdateCheckpointParams,
) -> Answer<g::GoalResult> {
    Ok(app::goal_update_checkpoint(&handles.core, params).await?)
}

async fn add_decision(
    handles: Arc<Handles>,
    params: g::GoalAddDecisionParams,
) -> Answer<g::GoalResult> {
    Ok(app::goal_add_decision(&handles.core, params).await?)
}

async fn lock_decision(
    handles: Arc<Handles>,
    params: g::GoalLockDecisionParams,
) -> Answer<g::GoalResult> {
    Ok(app::goal_lock_decision(&handles.core, params).await?)
}

async fn add_artifact(
    handles: Arc<Handles>,
    params: g::GoalAddArtifactParams,
) -> Answer<g::GoalResult> {
    Ok(app::goal_add_artifact(&handles.core, params).await?)
}

async fn set_next_steps(
    handles: Arc<Handles>,
    params: g::GoalSetNextStepsParams,
) -> Answer<g::GoalResult> {
    Ok(app::goal_set_next_steps(&handles.core, params).await?)
}

async fn apply_markers(
    handles: Arc<Handles>,
    params: g::GoalApplyMarkersParams,
) -> Answer<g::GoalApplyMarkersResult> {
    Ok(app::goal_apply_markers(&handles.core, params).await?)
}
