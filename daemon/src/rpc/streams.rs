//! The methods that stream: `chat.send`, `chat.follow`, `event.subscribe` and `files.watch`, each a subscription of one client.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jsonrpsee::core::SubscriptionError;
use jsonrpsee::types::{ErrorObjectOwned, Params};
use jsonrpsee::{Extensions, PendingSubscriptionSink, SubscriptionCloseResponse, SubscriptionSink};
use ollm_protocol::method::{
    CHAT_NOTIFICATION, CHAT_UNFOLLOW, CHAT_UNSUBSCRIBE, ChatFollow, ChatSend, EVENT_NOTIFICATION,
    EVENT_UNSUBSCRIBE, EventSubscribe, FILES_NOTIFICATION, FILES_UNWATCH, FilesWatch,
};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::methods::files::FilesWatchParams;
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{ErrorKind, Method};
use serde::Serialize;
use serde_json::value::to_raw_value;
use tracing::Instrument;

use super::decode::decode;
use super::error::RpcError;
use super::{Handles, Registry, call_span};
use crate::app::chat::follow::TurnFollower;
use crate::app::chat::{self, StartedTurn};
use crate::app::error::AppError;
use crate::app::files;
use crate::events::{EventFilter, EventSubscription};
use crate::files::FilesSubscription;

/// The most thresholds of a subscription.
const MAX_THRESHOLDS: usize = 16;

pub(super) fn register(registry: &mut Registry) {
    let unique = "names in the list of methods are unique and registered once";
    let module = &mut registry.module;
    let (name, notification) = (ChatSend::NAME, CHAT_NOTIFICATION);
    module.register_subscription(name, notification, CHAT_UNSUBSCRIBE, send_chat).expect(unique);
    let name = ChatFollow::NAME;
    module.register_subscription(name, notification, CHAT_UNFOLLOW, follow_chat).expect(unique);
    let (name, notification) = (EventSubscribe::NAME, EVENT_NOTIFICATION);
    module.register_subscription(name, notification, EVENT_UNSUBSCRIBE, subscribe).expect(unique);
    let (name, notification) = (FilesWatch::NAME, FILES_NOTIFICATION);
    module.register_subscription(name, notification, FILES_UNWATCH, watch_files).expect(unique);
}

/// Starts a turn, accepts the subscription, and relays the events of the turn.
async fn send_chat(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(ChatSend::NAME, &extensions);
    match start_turn(&handles, &params).instrument(span.clone()).await {
        Err(error) => pending.reject(error).await,
        Ok((mut turn, detach)) => {
            if let Ok(sink) = pending.accept().await {
                relay(&mut turn, sink).instrument(span).await;
            }
            // A client that leaves ends the turn unless it is detached.
            if !detach {
                turn.cancel();
            }
        }
    }
    SubscriptionCloseResponse::None
}

/// Starts a turn; also returns whether it is detached.
async fn start_turn(
    handles: &Handles,
    params: &Params<'_>,
) -> Result<(StartedTurn, bool), RpcError> {
    let params: ChatSendParams = decode(ChatSend::NAME, params)?;
    let detach = params.detach;
    Ok((chat::start(&handles.core, &handles.shutdown, params).await?, detach))
}

/// Relays the events of a turn until it ends or its client leaves.
async fn relay(turn: &mut StartedTurn, sink: SubscriptionSink) {
    loop {
        // A client may leave while the model reads the prompt, which is silent for minutes.
        let event = tokio::select! {
            biased;
            () = sink.closed() => return,
            event = turn.events.recv() => event,
        };
        let Some(event) = event else { break };
        if !send(&sink, &event).await {
            return;
        }
    }
    let last = turn.last(failed_turn).unwrap_or_else(|| error_event(RpcError::internal()));
    send(&sink, &last).await;
}

/// Joins a turn, accepts the subscription, and relays the events of the turn. A client that leaves does not end it.
async fn follow_chat(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(ChatFollow::NAME, &extensions);
    let joined = async {
        let params: SessionIdParams = decode(ChatFollow::NAME, &params)?;
        chat::follow::follow(&handles.core, params).await.map_err(RpcError::from)
    };
    match joined.instrument(span.clone()).await {
        Err(error) => pending.reject(error).await,
        Ok(follower) => {
            if let Ok(sink) = pending.accept().await {
                relay_followed(follower, sink).instrument(span).await;
            }
        }
    }
    SubscriptionCloseResponse::None
}

async fn relay_followed(mut turn: TurnFollower, sink: SubscriptionSink) {
    loop {
        let event = tokio::select! {
            biased;
            () = sink.closed() => return,
            event = turn.next(failed_turn) => event,
        };
        let Some(event) = event else { return };
        if !send(&sink, &event).await {
            return;
        }
    }
}

/// Returns the last event of a turn that failed.
fn failed_turn(error: AppError) -> ChatEvent {
    error_event(error.into())
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

/// Subscribes to the event ring, accepts the subscription, and follows the ring.
async fn subscribe(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(EventSubscribe::NAME, &extensions);
    let decoded = decode(EventSubscribe::NAME, &params).and_then(check_thresholds);
    let EventSubscribeParams { session_id, kinds, thresholds, since } = match decoded {
        Ok(params) => params,
        Err(error) => {
            pending.reject(error).await;
            return SubscriptionCloseResponse::None;
        }
    };
    // Subscribed before the reply, so that no event after the reply is missed.
    let filter = EventFilter { session_id, kinds, thresholds };
    let events = handles.core.events.subscribe(filter, since.as_ref());
    match pending.accept().await {
        Ok(sink) => follow(&handles, events, sink).instrument(span).await,
        Err(_) => SubscriptionCloseResponse::None,
    }
}

fn check_thresholds(params: EventSubscribeParams) -> Result<EventSubscribeParams, RpcError> {
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

/// Sends events until the client unsubscribes or the daemon shuts down, which the last item reports.
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
    stopping(handles)
}

/// Returns the last item of a subscription that the shutdown ends.
fn stopping(handles: &Handles) -> SubscriptionCloseResponse {
    let mut error = RpcError::stopping();
    if handles.is_restarting.load(Ordering::Relaxed) {
        error = error.with_field("restarting", true);
    }
    match to_raw_value(&ErrorObjectOwned::from(error)) {
        Ok(error) => SubscriptionCloseResponse::NotifErr(SubscriptionError::from_json(error)),
        Err(_) => SubscriptionCloseResponse::None,
    }
}

/// Subscribes to the changes of a root, accepts the subscription, and follows the root.
async fn watch_files(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    handles: Arc<Handles>,
    extensions: Extensions,
) -> SubscriptionCloseResponse {
    let span = call_span(FilesWatch::NAME, &extensions);
    let begun = async {
        let params: FilesWatchParams = decode(FilesWatch::NAME, &params)?;
        files::watch(&handles.core, params).await.map_err(RpcError::from)
    };
    match begun.instrument(span.clone()).await {
        Ok(news) => match pending.accept().await {
            Ok(sink) => follow_files(&handles, news, sink).instrument(span).await,
            Err(_) => SubscriptionCloseResponse::None,
        },
        Err(error) => {
            pending.reject(error).await;
            SubscriptionCloseResponse::None
        }
    }
}

/// Sends changes until the client unsubscribes or the daemon shuts down, which the last item reports.
async fn follow_files(
    handles: &Handles,
    mut news: FilesSubscription,
    sink: SubscriptionSink,
) -> SubscriptionCloseResponse {
    loop {
        let item = tokio::select! {
            biased;
            () = sink.closed() => return SubscriptionCloseResponse::None,
            () = handles.shutdown.stopping() => return stopping(handles),
            item = news.next() => item,
        };
        if !send(&sink, &files::event(item)).await {
            return SubscriptionCloseResponse::None;
        }
    }
}

/// Sends one item, waiting while the connection is full; returns false if the subscription ended.
async fn send(sink: &SubscriptionSink, item: &impl Serialize) -> bool {
    let Ok(item) = to_raw_value(item) else { return false };
    tokio::select! {
        biased;
        () = sink.closed() => false,
        sent = sink.send(item) => sent.is_ok(),
    }
}
