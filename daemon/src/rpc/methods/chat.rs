//! `chat.*`: a chat turn as a subscription.

use std::sync::Arc;

use jsonrpsee::types::{ErrorObjectOwned, Params};
use jsonrpsee::{Extensions, PendingSubscriptionSink, SubscriptionCloseResponse, SubscriptionSink};
use ollm_protocol::Method;
use ollm_protocol::method::{self as m, CHAT_NOTIFICATION, CHAT_UNSUBSCRIBE, ChatSend};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use serde_json::value::to_raw_value;
use tracing::Instrument;

use crate::app::chat::{self, StartedTurn};
use crate::rpc::decode::decode;
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry, call_span};

pub(super) fn register(registry: &mut Registry) {
    registry
        .module
        .register_subscription(ChatSend::NAME, CHAT_NOTIFICATION, CHAT_UNSUBSCRIBE, send)
        .expect("names in the list of methods are unique and registered once");
    registry.app::<m::ChatSubmitToolResults, _, _>(chat::submit_tool_results);
    registry.app::<m::ChatCancel, _, _>(chat::cancel);
}

/// Starts a turn, accepts the subscription, and relays the events of the turn.
async fn send(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(ChatSend::NAME, &extensions);
    let started = match decode::<ChatSendParams>(ChatSend::NAME, &params) {
        Ok(params) => start(&handles, params).instrument(span.clone()).await,
        Err(error) => Err(error),
    };
    let (turn, detach) = match started {
        Ok(started) => started,
        Err(error) => {
            pending.reject(error).await;
            return SubscriptionCloseResponse::None;
        }
    };
    let cancel = turn.cancel.clone();
    match pending.accept().await {
        Ok(sink) => relay(turn, detach, sink).instrument(span).await,
        Err(_) if !detach => cancel.cancel(),
        Err(_) => {}
    }
    SubscriptionCloseResponse::None
}

async fn start(handles: &Handles, params: ChatSendParams) -> Result<(StartedTurn, bool), RpcError> {
    let detach = params.detach;
    Ok((chat::start(&handles.core, &handles.shutdown, params).await?, detach))
}

/// Relays the events of a turn. A client that leaves ends the turn unless it is detached.
async fn relay(mut turn: StartedTurn, detach: bool, sink: SubscriptionSink) {
    loop {
        // A client may leave while the model reads the prompt, which is silent for minutes.
        let event = tokio::select! {
            biased;
            () = sink.closed() => break,
            event = turn.events.recv() => event,
        };
        let Some(event) = event else { break };
        let event = event.unwrap_or_else(|error| error_event(error.into()));
        let Ok(item) = to_raw_value(&event) else { continue };
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
        turn.cancel.cancel();
    }
}

/// Returns the last event of a failed turn, with the content of an error reply.
fn error_event(error: RpcError) -> ChatEvent {
    let error = ErrorObjectOwned::from(error);
    let data = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
    ChatEvent::Error {
        code: error.code(),
        message: error.message().to_owned(),
        data: data.unwrap_or_default(),
    }
}
