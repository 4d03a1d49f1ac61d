//! `model.*`: the models of the model server.

use std::sync::Arc;

use ollm_protocol::method as m;
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::{
    ModelCountTokensParams, ModelCountTokensResult, ModelListResult, ModelRunningResult,
    ModelShowParams, ModelShowResult, ModelWarmParams, ModelWarmResult,
};

use crate::app;
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

pub(super) fn register(registry: &mut Registry) {
    registry.register::<m::ModelList, _, _>(list);
    registry.register::<m::ModelShow, _, _>(show);
    registry.register::<m::ModelRunning, _, _>(running);
    registry.register::<m::ModelWarm, _, _>(warm);
    registry.register::<m::ModelCountTokens, _, _>(count_tokens);
}

async fn list(handles: Arc<Handles>, _: NoParams) -> Result<ModelListResult, RpcError> {
    Ok(app::models_list(&handles.core).await?)
}

async fn show(handles: Arc<Handles>, params: ModelShowParams) -> Result<ModelShowResult, RpcError> {
    Ok(app::models_show(&handles.core, params).await?)
}

async fn running(handles: Arc<Handles>, _: NoParams) -> Result<ModelRunningResult, RpcError> {
    Ok(app::models_running(&handles.core).await?)
}

async fn warm(handles: Arc<Handles>, params: ModelWarmParams) -> Result<ModelWarmResult, RpcError> {
    Ok(app::models_warm(&handles.core, params).await?)
}

async fn count_tokens(
    handles: Arc<Handles>,
    params: ModelCountTokensParams,
) -> Result<ModelCountTokensResult, RpcError> {
    Ok(app::count_tokens(&handles.core, params).await?)
}
