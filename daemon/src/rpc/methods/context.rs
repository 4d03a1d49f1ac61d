//! `context.*`: what a model is sent.

use std::sync::Arc;

use ollm_protocol::method::ContextBuild;
use ollm_protocol::methods::context::{ContextBuildParams, ContextBuildResult};

use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};
use crate::turn;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<ContextBuild, _, _>(build);
}

async fn build(
    handles: Arc<Handles>,
    params: ContextBuildParams,
) -> Result<ContextBuildResult, RpcError> {
    Ok(turn::build(&handles.core, params).await?)
}
