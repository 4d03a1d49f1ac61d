//! The typed client for tokio programs: many calls at once and events, carried by jsonrpsee over the socket.
//!
//! **Invariant**: the protocol version is negotiated before anything else is sent.

use std::io;
use std::time::Duration;

use jsonrpsee::core::client::{
    Client, ClientBuilder, ClientT, Error, ReceivedMessage, Subscription, SubscriptionClientT,
    SubscriptionCloseReason, TransportReceiverT, TransportSenderT,
};
use jsonrpsee::core::traits::ToRpcParams;
use ollm_protocol::content::{FileHash, Record};
use ollm_protocol::frame::MAX_FRAME_BYTES;
use ollm_protocol::method::{
    CHAT_UNFOLLOW, CHAT_UNSUBSCRIBE, ChatFollow, ChatSend, ContextGetBuild, DaemonHello,
    EVENT_UNSUBSCRIBE, EventSubscribe, FILES_UNWATCH, FilesWatch, SessionGetFileContent,
    SessionGetRecord,
};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams, FollowEvent};
use ollm_protocol::methods::daemon::{DaemonHelloParams, DaemonHelloResult};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::methods::files::{FilesEvent, FilesWatchParams};
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{Event, Method, PROTOCOL_VERSION, SessionId};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::connector::Connector;
use super::messages::{decode, encode};
use super::parts::{context_parts, file_content, file_parts, record_parts, whole_record};
use crate::error::{ClientError, RpcFailure};

/// Events of a subscription that wait for their reader, so that a reader that pauses for a while does not lose a
/// model's answer. Each takes a few hundred bytes.
const MAX_WAITING_EVENTS: usize = 16 << 10;

/// A connection for many calls at once. Dropping it ends its subscriptions.
#[derive(Debug)]
pub struct AsyncClient {
    client: Client,
    hello: DaemonHelloResult,
    timeout: Duration,
}

impl AsyncClient {
    /// Connects and negotiates the protocol; starts the daemon if it does not run. Needs a tokio runtime.
    ///
    /// **Errors**: [`ClientError::Unreachable`], the errors of starting the daemon, and
    /// [`ClientError::ProtocolMismatch`].
    pub async fn connect(connector: Connector) -> Result<Self, ClientError> {
        let timeout = connector.timeout();
        let broken = |source| ClientError::Broken { method: DaemonHello::NAME.to_owned(), source };
        // Finding and starting the daemon blocks on files and processes.
        let connection = tokio::task::spawn_blocking(move || connector.open())
            .await
            .map_err(|error| broken(io::Error::other(error)))??;
        if let Some(notice) = &connection.notice {
            tracing::warn!("{notice}");
        }
        connection.stream.set_nonblocking(true).map_err(broken)?;
        let stream = UnixStream::from_std(connection.stream).map_err(broken)?;
        let (reader, writer) = stream.into_split();
        let client = ClientBuilder::new()
            .request_timeout(timeout)
            .max_buffer_capacity_per_subscription(MAX_WAITING_EVENTS)
            .build_with_tokio(
                LineSender { writer },
                LineReceiver { reader, bytes: Vec::new(), searched: 0 },
            );
        let params = DaemonHelloParams {
            client: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
        };
        let hello = call::<DaemonHello>(&client, &params, timeout).await?;
        if hello.protocol != PROTOCOL_VERSION {
            return Err(ClientError::ProtocolMismatch {
                version: hello.version,
                protocol: hello.protocol,
            });
        }
        Ok(Self { client, hello, timeout })
    }

    /// Returns the negotiated versions and limits, and the epoch of events.
    #[must_use]
    pub fn hello(&self) -> &DaemonHelloResult {
        &self.hello
    }

    /// Calls a method.
    ///
    /// **Errors**: [`ClientError::Rpc`] if the daemon refuses the call, [`ClientError::Timeout`] if it does not reply.
    ///
    /// **Cancel safety**: a call that [completes](ollm_protocol::Life::Completes) and was sent is carried out; its reply is
    /// dropped.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        call::<M>(&self.client, params, self.timeout).await
    }

    /// Returns a record of a page with its content, which is fetched in parts if it was too large for the page.
    ///
    /// **Errors**: as [`AsyncClient::call`].
    pub async fn whole_record(
        &self,
        session_id: SessionId,
        record: Record,
    ) -> Result<Record, ClientError> {
        let Some(mut parts) = record_parts(session_id, &record) else { return Ok(record) };
        loop {
            let part = self.call::<SessionGetRecord>(&parts.params).await?;
            if let Some(json) = parts.add(&part) {
                return whole_record(&json, &record);
            }
        }
    }

    /// Returns the content of a file that a session keeps.
    ///
    /// **Errors**: as [`AsyncClient::call`].
    pub async fn file_content(
        &self,
        session_id: SessionId,
        hash: FileHash,
    ) -> Result<Vec<u8>, ClientError> {
        let mut parts = file_parts(session_id, hash);
        loop {
            let part = self.call::<SessionGetFileContent>(&parts.params).await?;
            if let Some(base64) = parts.add(&part) {
                return file_content(&base64);
            }
        }
    }

    /// Subscribes to events.
    ///
    /// **Errors**: as [`AsyncClient::call`].
    pub async fn subscribe_events(
        &self,
        params: &EventSubscribeParams,
    ) -> Result<EventStream, ClientError> {
        self.subscribe::<EventSubscribe, _>(params, EVENT_UNSUBSCRIBE).await
    }

    /// Subscribes to the changes of the files of a directory.
    ///
    /// **Errors**: as [`AsyncClient::call`].
    pub async fn watch_files(
        &self,
        params: &FilesWatchParams,
    ) -> Result<EventStream<FilesEvent>, ClientError> {
        self.subscribe::<FilesWatch, _>(params, FILES_UNWATCH).await
    }

    /// Starts a chat turn: sends a user's message and streams the model's answer. [`ChatEvent::Done`] or
    /// [`ChatEvent::Error`] is the last event.
    ///
    /// **Errors**: as [`AsyncClient::call`]; nothing was recorded if the daemon refused. Later failures arrive as
    /// [`ChatEvent::Error`].
    ///
    /// **Cancel safety**: a turn that has started is canceled; its message stays recorded.
    pub async fn send_chat(
        &self,
        params: &ChatSendParams,
    ) -> Result<EventStream<ChatEvent>, ClientError> {
        self.subscribe::<ChatSend, _>(params, CHAT_UNSUBSCRIBE).await
    }

    /// Follows the running chat turn of a session, whoever started it. Dropping the stream leaves the turn running.
    ///
    /// **Errors**: as [`AsyncClient::call`]; of the kind `turnNotFound` if no turn is running.
    pub async fn follow_chat(
        &self,
        session_id: SessionId,
    ) -> Result<EventStream<FollowEvent>, ClientError> {
        self.subscribe::<ChatFollow, _>(&SessionIdParams { session_id }, CHAT_UNFOLLOW).await
    }

    /// Returns whether the connection is open, as far as that is known.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        self.client.on_disconnect().await;
    }

    async fn subscribe<M: Method, E: DeserializeOwned>(
        &self,
        params: &M::Params,
        unsubscribe: &str,
    ) -> Result<EventStream<E>, ClientError> {
        let subscription = self.client.subscribe(M::NAME, object::<M>(params)?, unsubscribe);
        let subscription =
            subscription.await.map_err(|error| call_error(M::NAME, error, self.timeout))?;
        Ok(EventStream { subscription, method: M::NAME })
    }
}

/// A subscription to events of type `E`. Dropping it unsubscribes, which cancels a chat turn unless the turn is detached.
#[derive(Debug)]
pub struct EventStream<E = Event> {
    subscription: Subscription<E>,
    method: &'static str,
}

impl<E: DeserializeOwned> EventStream<E> {
    /// Waits for the next event; `None` if the daemon ended the subscription or the connection was closed.
    ///
    /// **Errors**: [`ClientError::BadReply`] for an event that this version cannot decode; later events may be
    /// readable.
    ///
    /// **Cancel safety**: no event is lost.
    pub async fn next(&mut self) -> Option<Result<E, ClientError>> {
        let event = self.subscription.next().await?;
        Some(event.map_err(|source| bad_reply(self.method, source)))
    }

    /// Returns whether the subscription ended because it was not read fast enough.
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
    let reply = call_encoded(client, M::NAME, object::<M>(params)?, timeout).await?;
    decode(M::NAME, &reply)
}

/// Calls a method; the calls of all methods share this code. A context that is larger than a response is fetched in parts.
async fn call_encoded(
    client: &Client,
    method: &str,
    params: ObjectParams,
    timeout: Duration,
) -> Result<Box<RawValue>, ClientError> {
    let error = match call_once(client, method, params, timeout).await {
        Err(error) => error,
        whole => return whole,
    };
    let Some(mut parts) = context_parts(method, &error) else { return Err(error) };
    let name = ContextGetBuild::NAME;
    loop {
        let params = object::<ContextGetBuild>(&parts.params)?;
        let part = decode(name, &call_once(client, name, params, timeout).await?)?;
        if let Some(json) = parts.add(&part) {
            return RawValue::from_string(json).map_err(|source| bad_reply(name, source));
        }
    }
}

async fn call_once(
    client: &Client,
    method: &str,
    params: ObjectParams,
    timeout: Duration,
) -> Result<Box<RawValue>, ClientError> {
    client.request(method, params).await.map_err(|error| call_error(method, error, timeout))
}

/// Params as one JSON object instead of jsonrpsee's list of arguments.
struct ObjectParams(Box<RawValue>);

impl ToRpcParams for ObjectParams {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        Ok(Some(self.0))
    }
}

fn object<M: Method>(params: &M::Params) -> Result<ObjectParams, ClientError> {
    encode(M::NAME, params).map(ObjectParams)
}

fn bad_reply(method: &str, source: serde_json::Error) -> ClientError {
    ClientError::BadReply { method: method.to_owned(), source }
}

fn call_error(method: &str, error: Error, timeout: Duration) -> ClientError {
    match error {
        Error::Call(error) => {
            let data = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
            let failure = RpcFailure::new(error.code(), error.message().to_owned(), data);
            ClientError::Rpc(Box::new(failure))
        }
        Error::RequestTimeout => ClientError::Timeout { method: method.to_owned(), after: timeout },
        Error::ParseError(source) => bad_reply(method, source),
        other => ClientError::Transport { method: method.to_owned(), source: Box::new(other) },
    }
}

struct LineSender {
    writer: OwnedWriteHalf,
}

impl TransportSenderT for LineSender {
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

/// Keeps the bytes that it has read, so that a dropped `receive` loses nothing.
struct LineReceiver {
    reader: OwnedReadHalf,
    bytes: Vec<u8>,
    searched: usize,
}

impl TransportReceiverT for LineReceiver {
    type Error = io::Error;

    async fn receive(&mut self) -> io::Result<ReceivedMessage> {
        loop {
            if let Some(at) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.bytes.split_off(self.searched + at + 1);
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
mod tests {
    use ollm_protocol::method::{DaemonReload, DaemonShutdown};
    use ollm_protocol::methods::daemon::{DaemonShutdownParams, NoParams};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{TestHome, reply, send};

    fn hello(protocol: u32) -> Value {
        json!({
            "protocol": protocol, "schemaRevision": 1, "version": "9.9.9", "pid": 1, "epoch": "e",
            "limits": {"frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1}
        })
    }

    fn event(seq: u64) -> Value {
        json!({
            "epoch": "e", "eventSeq": seq, "kind": "session-created", "at": "2026-01-27T10:00:00Z"
        })
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn client_negotiates_then_calls_and_subscribes() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| match request["method"].as_str().unwrap() {
            "daemon.hello" => {
                assert_eq!(request["params"]["protocolMax"], PROTOCOL_VERSION);
                reply(stream, request, &hello(PROTOCOL_VERSION));
            }
            "daemon.shutdown" => reply(stream, request, &json!({"pid": 42})),
            "daemon.reload" => {
                let data = json!({"kind": "config", "hint": "ollmctl config check"});
                let error = json!({"code": 1011, "message": "line 3", "data": data});
                send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
            }
            "event.subscribe" => {
                assert_eq!(request["params"], json!({}));
                reply(stream, request, &json!(7));
                for seq in 1..=2 {
                    notify(
                        stream,
                        "event.event",
                        &json!({"subscription": 7, "result": event(seq)}),
                    );
                }
            }
            "chat.send" => {
                assert_eq!(request["params"]["message"]["content"], "hello");
                reply(stream, request, &json!(8));
                for event in [
                    json!({"kind": "delta", "text": "ok"}),
                    json!({"kind": "of another version"}),
                    json!({"kind": "done", "seq": 2, "finishReason": "stop"}),
                ] {
                    notify(stream, "chat.event", &json!({"subscription": 8, "result": event}));
                }
            }
            _ => reply(stream, request, &json!(true)),
        });
        run(async {
            let client = AsyncClient::connect(home.connector()).await.unwrap();
            assert_eq!(client.hello().version, "9.9.9");
            assert_eq!(
                client.call::<DaemonShutdown>(&DaemonShutdownParams::default()).await.unwrap().pid,
                42
            );
            let error = client.call::<DaemonReload>(&NoParams {}).await.unwrap_err();
            assert_eq!(error.kind(), "config");
            assert_eq!(error.hint().as_deref(), Some("ollmctl config check"));
            let params = EventSubscribeParams::default();
            let mut events = client.subscribe_events(&params).await.unwrap();
            for seq in 1..=2 {
                assert_eq!(events.next().await.unwrap().unwrap().event_seq, seq);
            }
            let params = json!({
                "sessionId": "0192f0c1-9a3b-7000-8000-000000000001",
                "message": {"role": "user", "content": "hello"},
            });
            let params = serde_json::from_value(params).unwrap();
            let mut turn = client.send_chat(&params).await.unwrap();
            let first = turn.next().await.unwrap().unwrap();
            assert_eq!(first, ChatEvent::Delta { text: Some("ok".into()), thinking: None });
            assert!(matches!(turn.next().await.unwrap(), Err(ClientError::BadReply { .. })));
            assert!(matches!(turn.next().await.unwrap(), Ok(ChatEvent::Done { .. })));
            assert!(!turn.fell_behind());
        });
    }

    fn notify(stream: &mut std::os::unix::net::UnixStream, method: &str, params: &Value) {
        send(stream, &json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    #[test]
    fn other_protocol_is_refused_with_both_versions() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| reply(stream, request, &hello(77)));
        let error = run(AsyncClient::connect(home.connector())).unwrap_err();
        assert!(matches!(error, ClientError::ProtocolMismatch { protocol: 77, .. }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("the daemon is newer")), "{error}");
    }

    #[test]
    fn missing_reply_and_closed_connection_are_errors() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| match request["method"].as_str().unwrap() {
            "daemon.hello" => reply(stream, request, &hello(PROTOCOL_VERSION)),
            "daemon.reload" => stream.shutdown(std::net::Shutdown::Both).unwrap(),
            _ => {}
        });
        run(async {
            let connector = home.connector().with_timeout(Duration::from_secs(1));
            let client = AsyncClient::connect(connector).await.unwrap();
            let error =
                client.call::<DaemonShutdown>(&DaemonShutdownParams::default()).await.unwrap_err();
            assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
            let error = client.call::<DaemonReload>(&NoParams {}).await.unwrap_err();
            assert!(matches!(error, ClientError::Transport { .. }), "{error}");
            client.closed().await;
        });
    }
}
