//! `daemon.*` and `rpc.discover`: the process and the contract themselves.

use std::sync::Arc;

use ollm_protocol::method::{DaemonHello, DaemonReload, DaemonShutdown, DaemonStatus, RpcDiscover};
use ollm_protocol::methods::daemon::{
    DaemonHelloParams, DaemonHelloResult, DaemonReloadResult, DaemonShutdownResult,
    DaemonStatusResult, NoParams,
};
use ollm_protocol::{ErrorKind, PROTOCOL_VERSION, SCHEMA_REVISION};
use serde_json::Value;

use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry, discover};

pub(super) fn register(registry: &mut Registry) {
    registry.handler::<DaemonHello, _, _>(hello);
    registry.handler::<DaemonStatus, _, _>(status);
    registry.handler::<DaemonReload, _, _>(reload);
    registry.handler::<DaemonShutdown, _, _>(shutdown);
    registry.handler::<RpcDiscover, _, _>(discover);
}

async fn hello(
    handles: Arc<Handles>,
    params: DaemonHelloParams,
) -> Result<DaemonHelloResult, RpcError> {
    tracing::debug!(client = params.client, version = params.version, "hello from a client");
    if !(params.protocol_min..=params.protocol_max).contains(&PROTOCOL_VERSION) {
        let DaemonHelloParams { client, version, protocol_min, protocol_max } = params;
        let message = format!(
            "{client} {version} speaks protocol {protocol_min} to {protocol_max}, \
             and this daemon, ollmd {}, speaks {PROTOCOL_VERSION}",
            env!("CARGO_PKG_VERSION"),
        );
        return Err(RpcError::new(ErrorKind::UnsupportedVersion, message)
            .with_hint("ollmctl daemon restart")
            .with_field("found", protocol_max)
            .with_field("supported", PROTOCOL_VERSION));
    }
    Ok(DaemonHelloResult {
        protocol: PROTOCOL_VERSION,
        schema_revision: SCHEMA_REVISION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        epoch: handles.core.events.epoch().to_owned(),
        limits: handles.limits.clone(),
    })
}

async fn status(handles: Arc<Handles>, _: NoParams) -> Result<DaemonStatusResult, RpcError> {
    handles.control.status().await
}

async fn reload(handles: Arc<Handles>, _: NoParams) -> Result<DaemonReloadResult, RpcError> {
    handles.control.reload().await
}

/// Asks the daemon to stop. The reply still reaches the caller: connections send the replies of running calls first.
async fn shutdown(handles: Arc<Handles>, _: NoParams) -> Result<DaemonShutdownResult, RpcError> {
    tracing::info!("a client asked the daemon to stop");
    handles.shutdown.stop();
    Ok(DaemonShutdownResult { pid: std::process::id() })
}

async fn discover(_: Arc<Handles>, _: NoParams) -> Result<Value, RpcError> {
    Ok(discover::document().clone())
}
