//! Requests to responses over a set of methods: the envelope of JSON-RPC, batches and notifications.
//!
//! The service takes whole frames and returns work that ends in one response or none. It must not know sockets, and of
//! the methods it knows only the names.
//!
//! **Invariants**: a response carries the id of its request if the id can be found; a notification is executed and
//! never gets a response; the requests of a batch start in their order, and their responses are in that order.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;

use jsonrpsee::core::traits::IdProvider;
use jsonrpsee::types::error::OVERSIZED_RESPONSE_CODE;
use jsonrpsee::types::{ErrorCode, ErrorObjectOwned, Id, Params, SubscriptionId};
use jsonrpsee::{
    BoundedSubscriptions, ConnectionId, Extensions, MethodCallback, MethodResponse, MethodSink,
    Methods, SubscriptionMethod, SubscriptionState,
};
use ollm_protocol::frame::{Frame, partial_id};
use ollm_protocol::limits::MAX_ID_BYTES;
use ollm_protocol::methods::daemon::Limits;
use ollm_protocol::{Effect, ErrorKind, METHODS};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::task::JoinQueue;

use crate::rpc::CallId;
use crate::rpc::error::RpcError;

/// The JSON of a response. Notifications have none, nor have subscriptions, whose response goes through their sink.
pub(super) type RpcResponse = Option<Box<RawValue>>;

/// A response that is not ready yet.
pub(super) type PendingResponse = Pin<Box<dyn Future<Output = RpcResponse> + Send>>;

/// The work that a frame requests.
pub(super) enum FrameTask {
    Done(RpcResponse),
    /// A call that can change something. It runs concurrently with others.
    Change(PendingResponse),
    /// A safe call, or a batch. Only a few run concurrently, because the response may be large.
    Safe(PendingResponse),
    /// A subscription. No further frame may be examined before it is done: the client would miss events that its
    /// later frames cause.
    Subscribe(PendingResponse),
}

/// The names of the safe methods.
static SAFE_METHODS: LazyLock<FxHashSet<&str>> = LazyLock::new(|| {
    let safe = METHODS.iter().filter(|method| method.effect == Effect::Safe);
    safe.map(|method| method.name).collect()
});

/// Gives subscriptions their ids: integers, small enough for every JSON parser.
#[derive(Debug, Default)]
pub(super) struct SubscriptionIds(AtomicU64);

impl IdProvider for SubscriptionIds {
    fn next_id(&self) -> SubscriptionId<'static> {
        SubscriptionId::Num(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The methods as one connection can call them.
pub(super) struct RpcService {
    methods: Methods,
    limits: Limits,
    connection: ConnectionId,
    /// The sink for the responses and notifications of subscriptions.
    notifications: MethodSink,
    /// Counts the subscriptions of this connection.
    subscriptions: BoundedSubscriptions,
    ids: Arc<SubscriptionIds>,
}

impl RpcService {
    pub(super) fn new(
        methods: Methods,
        limits: Limits,
        connection: usize,
        notifications: MethodSink,
        ids: Arc<SubscriptionIds>,
    ) -> Self {
        let subscriptions = BoundedSubscriptions::new(limits.subscriptions);
        let connection = ConnectionId(connection);
        Self { methods, limits, connection, notifications, subscriptions, ids }
    }

    /// Starts the work that a frame requests.
    pub(super) fn accept(&self, frame: Frame) -> FrameTask {
        let bytes = match frame {
            Frame::Message(bytes) => bytes,
            Frame::Oversized { prefix } => {
                let id = partial_raw_id(&prefix);
                let error = RpcError::too_large("the frame", self.max_bytes());
                return refuse(id.as_deref(), error);
            }
        };
        match std::str::from_utf8(&bytes) {
            Ok(text) if text.starts_with('[') => self.batch(text),
            Ok(text) => match parse_request(text) {
                Ok(request) => self.call(request),
                Err(response) => FrameTask::Done(Some(response)),
            },
            Err(error) => {
                let message = format!("the frame is not UTF-8 from byte {}", error.valid_up_to());
                refuse(None, RpcError::new(ErrorKind::ParseError, message))
            }
        }
    }

    /// Refuses a frame that was not complete in time; `prefix` is its beginning.
    pub(super) fn refuse_slow(prefix: &[u8]) -> FrameTask {
        let message = "the frame was not complete in time; send it again at once";
        refuse(partial_raw_id(prefix).as_deref(), RpcError::new(ErrorKind::Busy, message))
    }

    /// Returns the largest frame, in either direction.
    fn max_bytes(&self) -> usize {
        usize::try_from(self.limits.frame_bytes).unwrap_or(usize::MAX)
    }

    fn call(&self, request: RpcRequest<'_>) -> FrameTask {
        let max_bytes = self.max_bytes();
        let RpcRequest { id, method, params } = request;
        let is_notification = id.is_none();
        let id = id.unwrap_or(Id::Null);
        let extensions = self.extensions(&id);
        let response = match self.methods.method(&method) {
            None => {
                let message = format!("there is no method `{method}`");
                let error = RpcError::new(ErrorKind::MethodNotFound, message);
                error_response(&id, error.with_hint("ollmctl call rpc.discover"))
            }
            Some(MethodCallback::Unsubscription(_)) if params.is_object() => {
                // The callback would report an unknown subscription instead.
                let message = format!("{method} takes the id of the subscription in an array");
                error_response(&id, RpcError::new(ErrorKind::InvalidParams, message))
            }
            Some(MethodCallback::Sync(run)) => run(id, params, max_bytes, extensions).into_json(),
            Some(MethodCallback::Unsubscription(run)) => {
                run(id, params, self.connection, max_bytes, extensions).into_json()
            }
            Some(MethodCallback::Async(run)) => {
                let id = id.into_owned();
                let params = params.into_owned();
                let response = run(id.clone(), params, self.connection, max_bytes, extensions);
                let pending = Box::pin(async move {
                    let response = limit_response(response.await, &id, max_bytes);
                    (!is_notification).then_some(response)
                });
                return if SAFE_METHODS.contains(&*method) {
                    FrameTask::Safe(pending)
                } else {
                    FrameTask::Change(pending)
                };
            }
            // Without a response, the client would not know the id with which to end the subscription.
            Some(MethodCallback::Subscription(_)) if is_notification => {
                return FrameTask::Done(None);
            }
            Some(MethodCallback::Subscription(run)) => {
                return self.subscribe(run, id, params, extensions);
            }
        };
        FrameTask::Done((!is_notification).then_some(response))
    }

    fn subscribe(
        &self,
        run: &SubscriptionMethod<'static>,
        id: Id<'_>,
        params: Params<'_>,
        extensions: Extensions,
    ) -> FrameTask {
        let Some(subscription_permit) = self.subscriptions.acquire() else {
            let limit = self.limits.subscriptions;
            let message = format!("this connection has reached its limit of {limit} subscriptions");
            let error = RpcError::new(ErrorKind::TooManySubscriptions, message);
            return FrameTask::Done(Some(error_response(&id, error.with_field("limit", limit))));
        };
        let conn_id = self.connection;
        let state = SubscriptionState { conn_id, id_provider: &*self.ids, subscription_permit };
        let response = run(id.clone(), params, self.notifications.clone(), state, extensions);
        let id = id.into_owned();
        FrameTask::Subscribe(Box::pin(async move {
            // Both an accepted and a rejected subscription respond through the sink; otherwise the handler failed.
            let is_lost = !response.await.is_subscription();
            is_lost.then(|| error_response(&id, RpcError::internal()))
        }))
    }

    fn extensions(&self, id: &Id<'_>) -> Extensions {
        let mut extensions = Extensions::new();
        let id = serde_json::to_string(id).unwrap_or_default().into();
        extensions.insert(CallId { connection: self.connection.0, id });
        extensions
    }

    fn batch(&self, text: &str) -> FrameTask {
        let requests: Vec<&RawValue> = match serde_json::from_str(text) {
            Ok(requests) => requests,
            Err(error) => return refuse(None, not_json(&error)),
        };
        let limit = usize::try_from(self.limits.batch).unwrap_or(usize::MAX);
        if requests.is_empty() {
            let message = "a batch needs at least one request";
            return refuse(None, RpcError::new(ErrorKind::InvalidRequest, message));
        }
        if requests.len() > limit {
            let n_requests = requests.len();
            let message = format!("the batch has {n_requests} requests; the limit is {limit}");
            let error = RpcError::new(ErrorKind::BatchTooLarge, message);
            return refuse(None, error.with_field("limit", limit));
        }
        let calls = requests.iter().map(|request| self.batch_call(request.get())).collect();
        FrameTask::Safe(Box::pin(run_batch(calls, self.max_bytes())))
    }

    fn batch_call(&self, text: &str) -> FrameTask {
        let request = match parse_request(text) {
            Ok(request) => request,
            Err(response) => return FrameTask::Done(Some(response)),
        };
        if let Some(MethodCallback::Subscription(_)) = self.methods.method(&request.method) {
            let message = format!("{} cannot be part of a batch", request.method);
            let error = RpcError::new(ErrorKind::InvalidRequest, message);
            return FrameTask::Done(request.id.map(|id| error_response(&id, error)));
        }
        self.call(request)
    }
}

/// Number of concurrent reads in one batch. All responses are held until the whole batch is done.
const BATCH_READS: usize = 16;

/// Runs the calls of a batch and joins their responses in order. Writes run concurrently, so that they share syncs.
///
/// A response that would make the batch larger than `max_bytes` is replaced by an error.
async fn run_batch(calls: Vec<FrameTask>, max_bytes: usize) -> RpcResponse {
    let mut responses = Vec::with_capacity(calls.len());
    let mut bytes = 2;
    let mut calls = calls.into_iter().peekable();
    while calls.peek().is_some() {
        let mut n_reads = 0;
        let group = std::iter::from_fn(|| {
            let call = calls.next_if(|_| n_reads < BATCH_READS)?;
            n_reads += usize::from(matches!(call, FrameTask::Safe(_)));
            Some(call)
        });
        for mut response in run_concurrently(group.collect()).await.into_iter().flatten() {
            if bytes + response.get().len() >= max_bytes {
                let id = partial_raw_id(response.get().as_bytes());
                let error = RpcError::too_large("the response to the batch", max_bytes);
                response = raw_error(id.as_deref(), error);
            }
            bytes += response.get().len() + 1;
            responses.push(response);
        }
    }
    // A batch of notifications has no response.
    if responses.is_empty() { None } else { to_raw_value(&responses).ok() }
}

/// Starts calls in their order, runs them concurrently, and returns their responses in that order.
async fn run_concurrently(calls: Vec<FrameTask>) -> Vec<RpcResponse> {
    let mut queue = JoinQueue::new();
    let mut started = Vec::with_capacity(calls.len());
    for call in calls {
        let mut pending = match call {
            FrameTask::Done(response) => {
                started.push(Some(response));
                continue;
            }
            FrameTask::Change(pending)
            | FrameTask::Safe(pending)
            | FrameTask::Subscribe(pending) => pending,
        };
        match poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await {
            Poll::Ready(response) => started.push(Some(response)),
            Poll::Pending => {
                queue.spawn(pending);
                started.push(None);
            }
        }
    }
    let mut responses = Vec::with_capacity(started.len());
    for response in started {
        responses.push(match response {
            Some(response) => response,
            // The barrier around handlers catches panics, and no call is canceled alone.
            None => queue.join_next().await.and_then(Result::ok).flatten(),
        });
    }
    responses
}

/// A valid request.
struct RpcRequest<'a> {
    /// Absent in a notification.
    id: Option<Id<'a>>,
    method: String,
    params: Params<'a>,
}

/// A request whose parts are not parsed yet, so that a part of a wrong type does not lose the id.
#[derive(Deserialize)]
struct RawRequest<'a> {
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

/// Parses a request; returns the error response for an invalid one.
fn parse_request(text: &str) -> Result<RpcRequest<'_>, Box<RawValue>> {
    let raw: RawRequest<'_> = match serde_json::from_str(text) {
        Ok(raw) => raw,
        Err(error) if error.is_data() => {
            let message =
                "a request is an object with `jsonrpc`, `method`, and optionally `id` and `params`";
            return Err(raw_error(None, RpcError::new(ErrorKind::InvalidRequest, message)));
        }
        Err(error) => return Err(raw_error(None, not_json(&error))),
    };
    if raw.id.is_some_and(|id| id.get().len() > MAX_ID_BYTES) {
        let message = format!("an `id` has at most {MAX_ID_BYTES} bytes");
        return Err(raw_error(None, RpcError::new(ErrorKind::InvalidRequest, message)));
    }
    let invalid = |message: &str| {
        let id = raw.id.filter(|id| !id.get().starts_with(['{', '[', 't', 'f']));
        raw_error(id, RpcError::new(ErrorKind::InvalidRequest, message))
    };
    if raw.jsonrpc.is_none_or(|version| version.get() != r#""2.0""#) {
        return Err(invalid("a request needs `\"jsonrpc\": \"2.0\"`"));
    }
    let id = match raw.id.map(|id| serde_json::from_str::<Id<'_>>(id.get())).transpose() {
        Ok(id) => id,
        Err(_) => return Err(invalid("an `id` is a string, a whole number from 0 on, or null")),
    };
    let method = raw.method.map(|method| serde_json::from_str::<String>(method.get()));
    let Some(Ok(method)) = method else {
        return Err(invalid("a request needs a `method`, which is a string"));
    };
    Ok(RpcRequest { id, method, params: Params::new(raw.params.map(RawValue::get)) })
}

/// Returns the id of a valid request that has one.
#[cfg(any(test, fuzzing))]
pub(crate) fn parse_request_id(text: &str) -> Option<serde_json::Value> {
    let id = parse_request(text).ok()?.id?;
    serde_json::to_value(id).ok()
}

fn not_json(error: &serde_json::Error) -> RpcError {
    RpcError::new(ErrorKind::ParseError, format!("the frame is not JSON: {error}"))
}

/// Finds the id in the beginning of a message, unless it is too long to be repeated.
fn partial_raw_id(prefix: &[u8]) -> Option<Box<RawValue>> {
    let id = partial_id(prefix).and_then(|id| to_raw_value(&id).ok());
    id.filter(|id| id.get().len() <= MAX_ID_BYTES)
}

/// Returns the JSON of a response. jsonrpsee's error for a response that is too large is replaced by ours.
fn limit_response(response: MethodResponse, id: &Id<'_>, max_bytes: usize) -> Box<RawValue> {
    match response.as_error_code() {
        Some(OVERSIZED_RESPONSE_CODE) => {
            error_response(id, RpcError::too_large("the response", max_bytes))
        }
        _ => response.into_json(),
    }
}

fn refuse(id: Option<&RawValue>, error: RpcError) -> FrameTask {
    FrameTask::Done(Some(raw_error(id, error)))
}

/// Returns the JSON of an error response to a request.
pub(super) fn error_response(id: &Id<'_>, error: RpcError) -> Box<RawValue> {
    MethodResponse::error(id.clone(), ErrorObjectOwned::from(error)).into_json()
}

/// Returns the JSON of an error response with an id that jsonrpsee may not accept.
fn raw_error(id: Option<&RawValue>, error: RpcError) -> Box<RawValue> {
    #[derive(Serialize)]
    struct ErrorResponse<'a> {
        jsonrpc: &'static str,
        id: Option<&'a RawValue>,
        error: ErrorObjectOwned,
    }
    let response = ErrorResponse { jsonrpc: "2.0", id, error: error.into() };
    to_raw_value(&response)
        .unwrap_or_else(|_| MethodResponse::error(Id::Null, ErrorCode::InternalError).into_json())
}
