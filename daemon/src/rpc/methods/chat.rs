//! `chat.*`: a turn as a subscription, and the calls that go with it.

use std::sync::Arc;

use jsonrpsee::types::{ErrorObjectOwned, Params};
use jsonrpsee::{Extensions, PendingSubscriptionSink, SubscriptionCloseResponse, SubscriptionSink};
use ollm_protocol::Method;
use ollm_protocol::method::{self as m, CHAT_NOTIFICATION, CHAT_UNSUBSCRIBE, ChatSend};
use ollm_protocol::methods::chat::{
    ChatCancelResult, ChatEvent, ChatSendParams, ChatSubmitToolResultsParams,
    ChatSubmitToolResultsResult,
};
use ollm_protocol::methods::session::SessionIdParams;
use serde_json::value::{RawValue, to_raw_value};
use tracing::Instrument;

use crate::app;
use crate::rpc::decode::decode;
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry, call_span};

pub(super) fn register(registry: &mut Registry) {
    registry
        .module()
        .register_subscription(ChatSend::NAME, CHAT_NOTIFICATION, CHAT_UNSUBSCRIBE, send)
        .expect("names in the list of methods are unique and registered once");
    registry.register::<m::ChatSubmitToolResults, _, _>(submit_tool_results);
    registry.register::<m::ChatCancel, _, _>(cancel);
}

async fn submit_tool_results(
    handles: Arc<Handles>,
    params: ChatSubmitToolResultsParams,
) -> Result<ChatSubmitToolResultsResult, RpcError> {
    Ok(app::submit_tool_results(&handles.core, params).await?)
}

async fn cancel(
    handles: Arc<Handles>,
    params: SessionIdParams,
) -> Result<ChatCancelResult, RpcError> {
    Ok(app::cancel(&handles.core, params.session_id).await?)
}

async fn send(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(ChatSend::NAME, &extensions);
    let begun = match decode::<ChatSendParams>(ChatSend::NAME, &params) {
        Ok(params) => begin(&handles, params).instrument(span.clone()).await,
        Err(error) => Err(error),
    };
    let (started, detach) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            pending.reject(error).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let cancel = started.cancel.clone();
    match pending.accept().await {
        Ok(sink) => relay(started, detach, sink).instrument(span).await,
        Err(_) if !detach => cancel.cancel(),
        Err(_) => {}
    }
    SubscriptionCloseResponse::None
}

async fn begin(
    handles: &Handles,
    params: ChatSendParams,
) -> Result<(app::Started, bool), RpcError> {
    let detach = params.detach;
    Ok((app::start(&handles.core, &handles.shutdown, params).await?, detach))
}

/// Passes a turn's events on; a client that leaves ends the turn unless it is detached.
async fn relay(mut started: app::Started, detach: bool, sink: SubscriptionSink) {
    loop {
        // Reading a prompt is silent for minutes, in which a client may leave.
        let event = tokio::select! {
            biased;
            () = sink.closed() => break,
            event = started.events.recv() => event,
        };
        let Some(event) = event else { break };
        let event = event.unwrap_or_else(|error| failed(error.into()));
        let Some(item) = item(&event) else { continue };
        let is_sent = tokio::select! {
            biased;
            () = sink.closed() => false,
            sent = sink.send(item) => sent.is_ok(),
        };
        if !is_sent {
            break;
        }
    }
    if !detach {
        started.cancel.cancel();
    }
}

fn item(event: &ChatEvent) -> Option<Box<RawValue>> {
    to_raw_value(event).ok()
}

/// An error as the last event, with what an error reply would say.
fn failed(error: RpcError) -> ChatEvent {
    let error = ErrorObjectOwned::from(error);
    let data = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
    ChatEvent::Error {
        code: error.code(),
        message: error.message().to_owned(),
        data: data.unwrap_or_default(),
    }
}
