//! `env.*`: which environment variables tools may see. What comes in here goes into no text.

use std::sync::Arc;

use ollm_protocol::method::{EnvRules, EnvSanitize};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::env::{EnvRulesResult, EnvSanitizeParams, EnvSanitizeResult};

use crate::env::Rules;
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

pub(super) fn register(registry: &mut Registry) {
    registry.handler::<EnvRules, _, _>(rules);
    registry.handler::<EnvSanitize, _, _>(sanitize);
}

async fn rules(handles: Arc<Handles>, _: NoParams) -> Result<EnvRulesResult, RpcError> {
    Ok(Rules::new(&handles.core.config().environment).describe())
}

async fn sanitize(
    handles: Arc<Handles>,
    params: EnvSanitizeParams,
) -> Result<EnvSanitizeResult, RpcError> {
    Ok(Rules::new(&handles.core.config().environment).sanitize(params.variables))
}
