//! Requests to answers over a set of methods: JSON-RPC's envelope, batches and notifications.
//!
//! It takes whole frames and gives work back that ends in one reply or none. It knows no socket, and of the
//! methods only their names.
//!
//! **Invariants**: a reply carries the id of its call, as far as it can be found; a notification is executed
//! and never answered; the entries of a batch begin in their order and are answered in it.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use jsonrpsee::core::traits::IdProvider;
use jsonrpsee::types::error::OVERSIZED_RESPONSE_CODE;
use jsonrpsee::types::{ErrorCode, ErrorObjectOwned, Id, Params, SubscriptionId};
use jsonrpsee::{
    BoundedSubscriptions, ConnectionId, Extensions, MethodCallback, MethodResponse, MethodSink,
    Methods, SubscriptionMethod, SubscriptionState,
};
use ollm_protocol::frame::{Frame, partial_id};
use ollm_protocol::{Class, ErrorKind, METHODS};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::task::JoinQueue;

use super::Limits;
use crate::rpc::CallId;
use crate::rpc::error::RpcError;

/// One JSON-RPC answer; none for a notification, and for a subscription, which answers through its sink.
pub(super) type Reply = Option<Box<RawValue>>;

/// A reply in the making.
pub(super) type PendingReply = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// What a frame asks for.
pub(super) enum Work {
    /// It is answered already.
    Done(Reply),
    /// One call that changes something: run it, beside others.
    Call(PendingReply),
    /// One call that reads, or a batch: run it, beside a few others, since its answer may be large.
    Read(PendingReply),
    /// A subscription: no further frame may be looked at before this is done, or events that a later frame of
    /// the same client causes could pass by unseen.
    Subscribe(PendingReply),
}

/// Gives subscriptions their ids: integers, small enough for every JSON reader.
#[derive(Debug, Default)]
pub(super) struct SubscriptionIds(AtomicU64);

impl IdProvider for SubscriptionIds {
    fn next_id(&self) -> SubscriptionId<'static> {
        SubscriptionId::Num(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The methods as one connection may use them.
pub(super) struct Service {
    methods: Methods,
    limits: Limits,
    connection: usize,
    /// Where subscriptions send, their first answer included.
    items: MethodSink,
    /// Counts the subscriptions of this connection.
    subscriptions: BoundedSubscriptions,
    ids: Arc<SubscriptionIds>,
}

/// A request with its parts unread, so that a part of the wrong type does not cost the id.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'a RawValue>,
    /// Absent in a notification; `null` is an id.
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// A request that is one.
struct Request<'a> {
    /// Absent in a notification.
    id: Option<Id<'a>>,
    method: Cow<'a, str>,
    params: Params<'a>,
}

impl Service {
    /// The service of one connection; `items` is where its subscriptions send.
    pub(super) fn new(
        methods: Methods,
        limits: Limits,
        connection: usize,
        items: MethodSink,
        ids: Arc<SubscriptionIds>,
    ) -> Self {
        let subscriptions = BoundedSubscriptions::new(limits.call.subscriptions);
        Self { methods, limits, connection, items, subscriptions, ids }
    }

    /// Begins what a frame asks for.
    pub(super) fn accept(&self, frame: Frame) -> Work {
        let bytes = match frame {
            Frame::Message(bytes) => bytes,
            Frame::Oversized { prefix } => {
                let id = partial_id(&prefix).and_then(|id| to_raw_value(&id).ok());
                let limit = self.frame_limit();
                return refuse(id.as_deref(), RpcError::too_large("the frame", limit));
            }
        };
        match std::str::from_utf8(&bytes) {
            Ok(text) if text.starts_with('[') => self.batch(text),
            Ok(text) => match read(text) {
                Ok(request) => self.call(request),
                Err(refusal) => Work::Done(Some(refusal)),
            },
            Err(error) => {
                let message =
                    format!("the frame is not UTF-8 from byte {} on", error.valid_up_to());
                refuse(None, RpcError::new(ErrorKind::ParseError, message))
            }
        }
    }

    fn frame_limit(&self) -> usize {
        usize::try_from(self.limits.call.frame_bytes).unwrap_or(usize::MAX)
    }

    fn call(&self, request: Request<'_>) -> Work {
        let max_bytes = self.frame_limit();
        let Request { id, method, params } = request;
        let answered = id.is_some();
        let id = id.unwrap_or(Id::Null);
        let extensions = self.extensions(&id);
        let connection = ConnectionId(self.connection);
        let response = match self.methods.method(&method) {
            None => {
                let message = format!("there is no method `{method}`");
                let error = RpcError::new(ErrorKind::MethodNotFound, message)
                    .with_hint("ollmctl call rpc.discover");
                MethodResponse::error(id, ErrorObjectOwned::from(error))
            }
            Some(MethodCallback::Unsubscription(_)) if params.is_object() => {
                // Else it would say that there is no such subscription.
                let message = format!("{method} takes the id of the subscription in an array");
                let error = RpcError::new(ErrorKind::InvalidParams, message);
                MethodResponse::error(id, ErrorObjectOwned::from(error))
            }
            Some(MethodCallback::Sync(run)) => run(id, params, max_bytes, extensions),
            Some(MethodCallback::Unsubscription(run)) => {
                run(id, params, connection, max_bytes, extensions)
            }
            Some(MethodCallback::Async(run)) => {
                let id = id.into_owned();
                let answer =
                    run(id.clone(), params.into_owned(), connection, max_bytes, extensions);
                let reply = async move {
                    let reply = finish(answer.await, &id, max_bytes);
                    answered.then_some(reply)
                };
                let reads = METHODS.iter().any(|m| m.name == method && m.class == Class::Read);
                let reply: PendingReply = Box::pin(reply);
                return if reads { Work::Read(reply) } else { Work::Call(reply) };
            }
            // Nobody could end a subscription that was never answered.
            Some(MethodCallback::Subscription(_)) if !answered => return Work::Done(None),
            Some(MethodCallback::Subscription(run)) => {
                return self.subscribe(run, id, params, extensions);
            }
        };
        Work::Done(answered.then(|| response.into_json()))
    }

    fn subscribe(
        &self,
        run: &SubscriptionMethod<'static>,
        id: Id<'_>,
        params: Params<'_>,
        extensions: Extensions,
    ) -> Work {
        let Some(subscription_permit) = self.subscriptions.acquire() else {
            return Work::Done(Some(self.too_many_subscriptions(&id)));
        };
        let conn_id = ConnectionId(self.connection);
        let state = SubscriptionState { conn_id, id_provider: &*self.ids, subscription_permit };
        let answer = run(id.clone(), params, self.items.clone(), state, extensions);
        let id = id.into_owned();
        Work::Subscribe(Box::pin(async move {
            // Accepted or rejected, the answer went through the sink; otherwise the handler is gone.
            let lost = !answer.await.is_subscription();
            lost.then(|| error_reply(&id, RpcError::internal()))
        }))
    }

    fn extensions(&self, id: &Id<'_>) -> Extensions {
        let mut extensions = Extensions::new();
        let id = serde_json::to_string(id).unwrap_or_default().into();
        extensions.insert(CallId { connection: self.connection, id });
        extensions
    }

    fn too_many_subscriptions(&self, id: &Id<'_>) -> Box<RawValue> {
        let limit = self.limits.call.subscriptions;
        let message = format!("this connection has {limit} subscriptions, as many as it may");
        let error = RpcError::new(ErrorKind::TooManySubscriptions, message);
        error_reply(id, error.with_field("limit", limit))
    }

    fn batch(&self, text: &str) -> Work {
        let entries: Vec<&RawValue> = match serde_json::from_str(text) {
            Ok(entries) => entries,
            Err(error) => return refuse(None, not_json(&error)),
        };
        let limit = usize::try_from(self.limits.call.batch).unwrap_or(usize::MAX);
        if entries.is_empty() {
            let message = "a batch holds at least one call";
            return refuse(None, RpcError::new(ErrorKind::InvalidRequest, message));
        }
        if entries.len() > limit {
            let message =
                format!("a batch holds at most {limit} calls, and this one {}", entries.len());
            let error = RpcError::new(ErrorKind::BatchTooLarge, message);
            return refuse(None, error.with_field("limit", limit));
        }
        let entries = entries.iter().map(|entry| self.entry(entry.get())).collect();
        Work::Read(Box::pin(join(entries, self.frame_limit())))
    }

    fn entry(&self, text: &str) -> Entry {
        let request = match read(text) {
            Ok(request) => request,
            Err(refusal) => return Entry::Done(Some(refusal)),
        };
        if let Some(MethodCallback::Subscription(_)) = self.methods.method(&request.method) {
            let message = format!("{} cannot be part of a batch", request.method);
            let error = RpcError::new(ErrorKind::InvalidRequest, message);
            return Entry::Done(request.id.map(|id| error_reply(&id, error)));
        }
        match self.call(request) {
            Work::Done(reply) => Entry::Done(reply),
            Work::Read(pending) => Entry::Reading(pending),
            Work::Call(pending) | Work::Subscribe(pending) => Entry::Pending(pending),
        }
    }
}

/// One entry of a batch.
enum Entry {
    Done(Reply),
    Pending(PendingReply),
    /// One that only reads, and may answer with megabytes.
    Reading(PendingReply),
}

/// Reads of one batch that run at once; every answer is held until the batch is answered.
const BATCH_READS: usize = 16;

/// Runs the entries of a batch and puts their replies into one, in their order.
///
/// Writes run side by side, so that they share syncs. A reply that would make the whole larger than `max_bytes`
/// is replaced by an error that says so.
async fn join(entries: Vec<Entry>, max_bytes: usize) -> Reply {
    let mut replies = Vec::with_capacity(entries.len());
    let mut bytes = 2;
    let mut entries = entries.into_iter().peekable();
    while entries.peek().is_some() {
        let mut reads = 0;
        let group = std::iter::from_fn(|| {
            let full = reads == BATCH_READS;
            let entry = entries.next_if(|_| !full)?;
            reads += usize::from(matches!(entry, Entry::Reading(_)));
            Some(entry)
        });
        for mut reply in side_by_side(group.collect()).await.into_iter().flatten() {
            if bytes + reply.get().len() >= max_bytes {
                let id = partial_id(reply.get().as_bytes()).and_then(|id| to_raw_value(&id).ok());
                let error = RpcError::too_large("the answer to the batch", max_bytes);
                reply = raw_error(id.as_deref(), error);
            }
            bytes += reply.get().len() + 1;
            replies.push(reply);
        }
    }
    // A batch of notifications is answered by silence.
    if replies.is_empty() { None } else { to_raw_value(&replies).ok() }
}

/// Begins calls in their order, lets them run together, and returns their replies in their order.
async fn side_by_side(entries: Vec<Entry>) -> Vec<Reply> {
    let mut queue = JoinQueue::new();
    let mut done = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut pending = match entry {
            Entry::Done(reply) => {
                done.push(Some(reply));
                continue;
            }
            Entry::Pending(pending) | Entry::Reading(pending) => pending,
        };
        match poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await {
            Poll::Ready(reply) => done.push(Some(reply)),
            Poll::Pending => {
                queue.spawn(pending);
                done.push(None);
            }
        }
    }
    let mut replies = Vec::with_capacity(done.len());
    for reply in done {
        replies.push(match reply {
            Some(reply) => reply,
            // Handlers do not panic past their barrier, and nobody cancels an entry alone.
            None => queue.join_next().await.and_then(Result::ok).flatten(),
        });
    }
    replies
}

/// Reads one request; `Err` is the answer to what is none.
fn read(text: &str) -> Result<Request<'_>, Box<RawValue>> {
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) if error.is_data() => {
            let message =
                "a request is an object with `jsonrpc`, `method`, and at will `id` and `params`";
            return Err(raw_error(None, RpcError::new(ErrorKind::InvalidRequest, message)));
        }
        Err(error) => return Err(raw_error(None, not_json(&error))),
    };
    let invalid = |message: &str| {
        let id = envelope.id.filter(|id| !id.get().starts_with(['{', '[', 't', 'f']));
        raw_error(id, RpcError::new(ErrorKind::InvalidRequest, message))
    };
    if envelope.jsonrpc.is_none_or(|version| version.get() != r#""2.0""#) {
        return Err(invalid("a request needs `\"jsonrpc\": \"2.0\"`"));
    }
    let id = match envelope.id.map(|id| serde_json::from_str::<Id<'_>>(id.get())).transpose() {
        Ok(id) => id,
        Err(_) => return Err(invalid("an `id` is a string, a whole number from 0 on, or null")),
    };
    let method = envelope.method.map(|method| serde_json::from_str::<Text<'_>>(method.get()));
    let Some(Ok(Text(method))) = method else {
        return Err(invalid("a request needs a `method`, a string"));
    };
    Ok(Request { id, method, params: Params::new(envelope.params.map(RawValue::get)) })
}

/// A string, borrowed where it holds no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn not_json(error: &serde_json::Error) -> RpcError {
    RpcError::new(ErrorKind::ParseError, format!("the frame is not JSON: {error}"))
}

/// The JSON of a response; one that was too large is told in our words.
fn finish(response: MethodResponse, id: &Id<'_>, max_bytes: usize) -> Box<RawValue> {
    match response.as_error_code() {
        Some(OVERSIZED_RESPONSE_CODE) => {
            error_reply(id, RpcError::too_large("the answer", max_bytes))
        }
        _ => response.into_json(),
    }
}

fn refuse(id: Option<&RawValue>, error: RpcError) -> Work {
    Work::Done(Some(raw_error(id, error)))
}

/// The JSON of an error under the id of a call.
pub(super) fn error_reply(id: &Id<'_>, error: RpcError) -> Box<RawValue> {
    MethodResponse::error(id.clone(), ErrorObjectOwned::from(error)).into_json()
}

/// The JSON of an error under an id that may be none of ours.
fn raw_error(id: Option<&RawValue>, error: RpcError) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Response<'a> {
        jsonrpc: &'static str,
        id: Option<&'a RawValue>,
        error: ErrorObjectOwned,
    }
    let response = Response { jsonrpc: "2.0", id, error: error.into() };
    to_raw_value(&response)
        .unwrap_or_else(|_| MethodResponse::error(Id::Null, ErrorCode::InternalError).into_json())
}
