//! `context.*`: what a model is sent.

use std::sync::Arc;

use ollm_protocol::method::{ContextBuild, ContextInspect, ContextStatus};
use ollm_protocol::methods::context::{ContextBuildParams, ContextBuildResult};
use ollm_protocol::methods::inspect::{
    ContextInspectParams, ContextInspectResult, ContextStatusParams, ContextStatusResult,
};

use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};
use crate::turn;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<ContextBuild, _, _>(build);
    registry.register::<ContextStatus, _, _>(status);
    registry.register::<ContextInspect, _, _>(inspect);
}

async fn status(
    handles: Arc<Handles>,
    params: ContextStatusParams,
) -> Result<ContextStatusResult, RpcError> {
    Ok(turn::blocking(&handles.core, move |core| turn::context_status(core, &params)).await?)
}

async fn inspect(
    handles: Arc<Handles>,
    params: ContextInspectParams,
) -> Result<ContextInspectResult, RpcError> {
    Ok(turn::blocking(&handles.core, move |core| turn::context_inspect(core, params)).await?)
}

async fn build(
    handles: Arc<Handles>,
    params: ContextBuildParams,
) -> Result<ContextBuildResult, RpcError> {
    Ok(turn::build(&handles.core, params).await?)
}
