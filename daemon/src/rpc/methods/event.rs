//! `event.*`: the event ring as a subscription.

use std::sync::Arc;

use jsonrpsee::core::SubscriptionError;
use jsonrpsee::types::{ErrorObjectOwned, Params};
use jsonrpsee::{Extensions, PendingSubscriptionSink, SubscriptionCloseResponse, SubscriptionSink};
use ollm_protocol::method::{EVENT_NOTIFICATION, EVENT_UNSUBSCRIBE, EventSubscribe};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{ErrorKind, Event, Method};
use serde_json::value::to_raw_value;
use tracing::Instrument;

use crate::events::{EventFilter, EventSubscription};
use crate::rpc::decode::decode;
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry, call_span};

/// The most thresholds of a subscription.
const MAX_THRESHOLDS: usize = 16;

pub(super) fn register(registry: &mut Registry) {
    registry
        .module
        .register_subscription(EventSubscribe::NAME, EVENT_NOTIFICATION, EVENT_UNSUBSCRIBE, start)
        .expect("names in the list of methods are unique and registered once");
}

async fn start(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(EventSubscribe::NAME, &extensions);
    let subscribed = decode(EventSubscribe::NAME, &params).and_then(check);
    let (filter, since) = match subscribed {
        Ok(EventSubscribeParams { session_id, kinds, thresholds, since }) => {
            (EventFilter { session_id, kinds, thresholds }, since)
        }
        Err(error) => {
            pending.reject(error).await;
            return SubscriptionCloseResponse::None;
        }
    };
    // Before the reply: events after it must not be missed.
    let events = handles.core.events.subscribe(filter, since.as_ref());
    match pending.accept().await {
        Ok(sink) => follow(&handles, events, sink).instrument(span).await,
        Err(_) => SubscriptionCloseResponse::None,
    }
}

fn check(params: EventSubscribeParams) -> Result<EventSubscribeParams, RpcError> {
    let problem = if params.thresholds.len() > MAX_THRESHOLDS {
        format!("the limit is {MAX_THRESHOLDS} thresholds")
    } else if params.thresholds.iter().all(|share| (0.0..=1.0).contains(share)) {
        return Ok(params);
    } else {
        "a threshold must lie between 0 and 1".to_owned()
    };
    let message = format!("the params of event.subscribe are invalid at `thresholds`: {problem}");
    Err(RpcError::new(ErrorKind::InvalidParams, message).with_field("field", "thresholds"))
}

/// Sends events until the client unsubscribes or the daemon shuts down, which the last item says.
async fn follow(
    handles: &Handles,
    mut events: EventSubscription,
    sink: SubscriptionSink,
) -> SubscriptionCloseResponse {
    loop {
        tokio::select! {
            biased;
            () = sink.closed() => return SubscriptionCloseResponse::None,
            () = handles.shutdown.stopping() => break,
            event = events.next() => if !send(&sink, &event).await {
                return SubscriptionCloseResponse::None;
            },
        }
    }
    while let Some(event) = events.take() {
        if !send(&sink, &event).await {
            return SubscriptionCloseResponse::None;
        }
    }
    match to_raw_value(&ErrorObjectOwned::from(RpcError::stopping())) {
        Ok(error) => SubscriptionCloseResponse::NotifErr(SubscriptionError::from_json(error)),
        Err(_) => SubscriptionCloseResponse::None,
    }
}

/// Sends one event, waiting while the connection is full; returns false if the subscription ended.
async fn send(sink: &SubscriptionSink, event: &Event) -> bool {
    let Ok(item) = to_raw_value(event) else { return false };
    tokio::select! {
        biased;
        () = sink.closed() => false,
        sent = sink.send(item) => sent.is_ok(),
    }
}
