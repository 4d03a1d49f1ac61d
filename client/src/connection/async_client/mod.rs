//! The typed client for programs: many calls at once and events, carried by jsonrpsee over the socket.
//!
//! Invariant: connecting agrees on a protocol before anything else is sent.

use std::io;
use std::time::Duration;

use jsonrpsee::core::client::{
    Client, ClientBuilder, ClientT, Error, ReceivedMessage, Subscription, SubscriptionClientT,
    SubscriptionCloseReason, TransportReceiverT, TransportSenderT,
};
use jsonrpsee::core::traits::ToRpcParams;
use ollm_protocol::method::{
    CHAT_UNSUBSCRIBE, ChatSend, DaemonHello, EVENT_UNSUBSCRIBE, EventSubscribe, Method,
};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::daemon::{DaemonHelloParams, DaemonHelloResult};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, PROTOCOL_VERSION};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{Connector, MAX_FRAME_BYTES};
use crate::error::{ClientError, RpcFailure};

/// Events of a subscription that wait for their reader: a reader that pauses for a while must not lose the answer of
/// a model. Each takes some hundred bytes, and only while it waits.
const MAX_WAITING_EVENTS: usize = 16 << 10;

/// A connection for many calls at once. Dropping it ends its subscriptions.
#[derive(Debug)]
pub struct AsyncClient {
    client: Client,
    hello: DaemonHelloResult,
    timeout: Duration,
}

impl AsyncClient {
    /// Connects, starting the daemon if need be, and agrees on a protocol. Needs a tokio runtime.
    ///
    /// **Errors**: [`ClientError::Unreachable`], those of starting the daemon, and
    /// [`ClientError::ProtocolMismatch`].
    pub async fn connect(connector: Connector) -> Result<Self, ClientError> {
        let timeout = connector.timeout();
        let broken = |source| ClientError::Broken { method: DaemonHello::NAME.to_owned(), source };
        // Finding and starting the daemon waits on files and processes, which a runtime must not.
        let opened = tokio::task::spawn_blocking(move || connector.open())
            .await
            .map_err(|error| broken(io::Error::other(error)))??;
        if let Some(notice) = &opened.notice {
            tracing::warn!("{notice}");
        }
        opened.stream.set_nonblocking(true).map_err(broken)?;
        let stream = UnixStream::from_std(opened.stream).map_err(broken)?;
        let (reader, writer) = stream.into_split();
        let client = ClientBuilder::new()
            .request_timeout(timeout)
            .max_buffer_capacity_per_subscription(MAX_WAITING_EVENTS)
            .build_with_tokio(
                Sender { writer },
                Receiver { reader, bytes: Vec::new(), searched: 0 },
            );
        let hello = call::<DaemonHello>(&client, &this_client(), timeout).await?;
        if hello.protocol != PROTOCOL_VERSION {
            return Err(ClientError::ProtocolMismatch {
                version: hello.version,
                protocol: hello.protocol,
            });
        }
        Ok(Self { client, hello, timeout })
    }

    /// What was agreed on: versions, limits, the epoch of events.
    #[must_use]
    pub fn hello(&self) -> &DaemonHelloResult {
        &self.hello
    }

    /// Calls a method.
    ///
    /// **Errors**: [`ClientError::Rpc`] when the daemon refuses, [`ClientError::Timeout`] when it is silent.
    ///
    /// **Cancel safety**: a call of class `Write` that was sent runs to its end; its reply is dropped.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        call::<M>(&self.client, params, self.timeout).await
    }

    /// Subscribes to events.
    ///
    /// **Errors**: as [`AsyncClient::call`].
    pub async fn subscribe_events(
        &self,
        params: &EventSubscribeParams,
    ) -> Result<EventStream, ClientError> {
        let method = EventSubscribe::NAME;
        let params = object::<EventSubscribe>(params)?;
        let subscription = self
            .client
            .subscribe(method, params, EVENT_UNSUBSCRIBE)
            .await
            .map_err(|error| refused(method, error, self.timeout))?;
        Ok(EventStream { subscription })
    }

    /// Begins a turn: a user's message, and the model's answer as it comes.
    ///
    /// **Errors**: as [`AsyncClient::call`]. Nothing is recorded then. What fails later is told by
    /// [`ChatEvent::Error`].
    ///
    /// **Cancel safety**: a turn that has begun is canceled; its message stays recorded.
    pub async fn send_chat(&self, params: &ChatSendParams) -> Result<ChatStream, ClientError> {
        let method = ChatSend::NAME;
        let params = object::<ChatSend>(params)?;
        let subscription = self
            .client
            .subscribe(method, params, CHAT_UNSUBSCRIBE)
            .await
            .map_err(|error| refused(method, error, self.timeout))?;
        Ok(ChatStream { subscription })
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        self.client.on_disconnect().await;
    }
}

/// Events as they happen. Dropping it unsubscribes.
#[derive(Debug)]
pub struct EventStream {
    subscription: Subscription<Event>,
}

impl EventStream {
    /// Waits for the next event; `None` when the daemon ended the stream or the connection is gone.
    ///
    /// **Errors**: [`ClientError::BadReply`] for an event that this version cannot read; the next one may be
    /// fine.
    ///
    /// **Cancel safety**: no event is lost.
    pub async fn next(&mut self) -> Option<Result<Event, ClientError>> {
        let event = self.subscription.next().await?;
        Some(event.map_err(|source| bad_reply(EventSubscribe::NAME, source)))
    }

    /// Whether the stream ended because it was not read fast enough.
    #[must_use]
    pub fn fell_behind(&self) -> bool {
        matches!(self.subscription.close_reason(), Some(SubscriptionCloseReason::Lagged))
    }
}

/// A turn as it happens; [`ChatEvent::Done`] or [`ChatEvent::Error`] comes last. Dropping it cancels the turn, unless
/// that is detached.
#[derive(Debug)]
pub struct ChatStream {
    subscription: Subscription<ChatEvent>,
}

impl ChatStream {
    /// Waits for the next event; `None` when the daemon ended the stream or the connection is gone.
    ///
    /// **Errors**: [`ClientError::BadReply`] for an event that this version cannot read; the next one may be
    /// fine.
    ///
    /// **Cancel safety**: no event is lost.
    pub async fn next(&mut self) -> Option<Result<ChatEvent, ClientError>> {
        let event = self.subscription.next().await?;
        Some(event.map_err(|source| bad_reply(ChatSend::NAME, source)))
    }

    /// Whether the stream ended because it was not read fast enough.
    #[must_use]
    pub fn fell_behind(&self) -> bool {
        matches!(self.subscription.close_reason(), Some(SubscriptionCloseReason::Lagged))
    }
}

async fn call<M: Method>(
    client: &Client,
    params: &M::Params,
    timeout: Duration,
) -> Result<M::Result, ClientError> {
    let params = object::<M>(params)?;
    client.request(M::NAME, params).await.map_err(|error| refused(M::NAME, error, timeout))
}

fn this_client() -> DaemonHelloParams {
    DaemonHelloParams {
        client: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
    }
}

/// Params as the wire has them: one object, not a list of arguments.
struct Object(Box<RawValue>);

impl ToRpcParams for Object {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        Ok(Some(self.0))
    }
}

fn object<M: Method>(params: &(impl Serialize + ?Sized)) -> Result<Object, ClientError> {
    serde_json::value::to_raw_value(params)
        .map(Object)
        .map_err(|source| ClientError::BadParams { method: M::NAME.to_owned(), source })
}

fn bad_reply(method: &str, source: serde_json::Error) -> ClientError {
    ClientError::BadReply { method: method.to_owned(), source }
}

fn refused(method: &str, error: Error, timeout: Duration) -> ClientError {
    match error {
        Error::Call(error) => {
            let data = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
            ClientError::Rpc(Box::new(RpcFailure::new(
                error.code(),
                error.message().to_owned(),
                data,
            )))
        }
        Error::RequestTimeout => ClientError::Timeout { method: method.to_owned(), after: timeout },
        Error::ParseError(source) => bad_reply(method, source),
        other => ClientError::Transport { method: method.to_owned(), source: Box::new(other) },
    }
}

struct Sender {
    writer: OwnedWriteHalf,
}

impl TransportSenderT for Sender {
    type Error = io::Error;

    async fn send(&mut self, mut message: String) -> io::Result<()> {
        if message.len() > MAX_FRAME_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the request is too large"));
        }
        message.push('\n');
        self.writer.write_all(message.as_bytes()).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.shutdown().await
    }
}

/// Keeps what it has read in itself, so that a dropped `receive` loses nothing.
struct Receiver {
    reader: OwnedReadHalf,
    bytes: Vec<u8>,
    searched: usize,
}

impl TransportReceiverT for Receiver {
    type Error = io::Error;

    async fn receive(&mut self) -> io::Result<ReceivedMessage> {
        loop {
            if let Some(at) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + at + 1;
                let rest = self.bytes.split_off(end);
                self.searched = 0;
                return Ok(ReceivedMessage::Bytes(std::mem::replace(&mut self.bytes, rest)));
            }
            self.searched = self.bytes.len();
            if self.searched > MAX_FRAME_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a reply is too large"));
            }
            if self.reader.read_buf(&mut self.bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests;
