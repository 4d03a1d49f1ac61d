//! `loop.*`: repetition that stops a session from calling the model.

use std::sync::Arc;

use ollm_protocol::method::{LoopReset, LoopStatus};
use ollm_protocol::methods::loops::LoopStatusResult;
use ollm_protocol::methods::session::SessionIdParams;

use crate::app::{self, blocking};
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<LoopReset, _, _>(reset);
    registry.register::<LoopStatus, _, _>(status);
}

async fn reset(
    handles: Arc<Handles>,
    params: SessionIdParams,
) -> Result<LoopStatusResult, RpcError> {
    Ok(app::loop_reset(&handles.core, params.session_id).await?)
}

async fn status(
    handles: Arc<Handles>,
    params: SessionIdParams,
) -> Result<LoopStatusResult, RpcError> {
    Ok(blocking(&handles.core, move |core| app::loop_status(core, params.session_id)).await?)
}
