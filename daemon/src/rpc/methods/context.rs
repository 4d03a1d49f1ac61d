//! `context.*`: what a model is sent.

use std::sync::Arc;

use ollm_protocol::content::BuiltContext;
use ollm_protocol::method as m;
use ollm_protocol::methods::context::{
    ContextBuildParams, ContextCheckpointsResult, ContextCompactParams, ContextCompactResult,
    ContextInspectParams, ContextInspectResult, ContextStatusParams, ContextStatusResult,
};
use ollm_protocol::methods::session::SessionIdParams;

use crate::app;
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<m::ContextBuild, _, _>(build);
    registry.register::<m::ContextStatus, _, _>(status);
    registry.register::<m::ContextInspect, _, _>(inspect);
    registry.register::<m::ContextCompact, _, _>(compact);
    registry.register::<m::ContextCheckpoints, _, _>(checkpoints);
}

async fn status(
    handles: Arc<Handles>,
    params: ContextStatusParams,
) -> Result<ContextStatusResult, RpcError> {
    Ok(app::context_status(&handles.core, params).await?)
}

async fn inspect(
    handles: Arc<Handles>,
    params: ContextInspectParams,
) -> Result<ContextInspectResult, RpcError> {
    Ok(app::blocking(&handles.core, move |core| app::context_inspect(core, params)).await?)
}

async fn build(
    handles: Arc<Handles>,
    params: ContextBuildParams,
) -> Result<BuiltContext, RpcError> {
    Ok(app::build(&handles.core, params).await?)
}

async fn compact(
    handles: Arc<Handles>,
    params: ContextCompactParams,
) -> Result<ContextCompactResult, RpcError> {
    Ok(app::compact(&handles.core, params).await?)
}

async fn checkpoints(
    handles: Arc<Handles>,
    params: SessionIdParams,
) -> Result<ContextCheckpointsResult, RpcError> {
    Ok(app::checkpoints(&handles.core, params.session_id).await?)
}
