//! `env.*`: which environment variables tools may see. No value of a variable enters a log or an error.

use std::sync::Arc;

use ollm_protocol::method::{EnvRules, EnvSanitize};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::env::{EnvRulesResult, EnvSanitizeParams, EnvSanitizeResult};

use crate::env::{EnvironmentRules, SanitizedEnvironment, URL_CREDENTIALS};
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

pub(super) fn register(registry: &mut Registry) {
    registry.handler::<EnvRules, _, _>(rules);
    registry.handler::<EnvSanitize, _, _>(sanitize);
}

async fn rules(handles: Arc<Handles>, _: NoParams) -> Result<EnvRulesResult, RpcError> {
    let rules = EnvironmentRules::new(&handles.core.config().environment);
    Ok(EnvRulesResult {
        core: rules.core_patterns(),
        deny: rules.deny_patterns(),
        allow: rules.allow_patterns(),
        deny_values: vec![URL_CREDENTIALS.to_owned()],
        warnings: rules.warnings().to_vec(),
    })
}

async fn sanitize(
    handles: Arc<Handles>,
    params: EnvSanitizeParams,
) -> Result<EnvSanitizeResult, RpcError> {
    let rules = EnvironmentRules::new(&handles.core.config().environment);
    let SanitizedEnvironment { passed, removed } = rules.sanitize(params.variables);
    Ok(EnvSanitizeResult { variables: passed, removed, warnings: rules.warnings().to_vec() })
}
