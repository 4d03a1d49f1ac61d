//! The client without a runtime: one call at a time, or one subscription, for one-shot programs.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::content::{FileHash, Record};
use ollm_protocol::method::{
    ChatFollow, ChatSend, ContextGetBuild, EventSubscribe, FilesWatch, SessionGetFileContent,
    SessionGetRecord,
};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams, FollowEvent};
use ollm_protocol::methods::daemon::ModelServerAddress;
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::methods::files::{FilesEvent, FilesWatchParams};
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{Effect, Event, METHODS, Method, SessionId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::connector::Connector;
use super::hello::DaemonVersion;
use super::messages::{Incoming, MessageStream, decode, encode};
use super::parts::{context_parts, file_content, file_parts, record_parts, whole_record};
use super::probe::OpenConnection;
use crate::error::ClientError;

/// The longest time between two checks whether a reply is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A connection that makes one call at a time.
#[derive(Debug)]
pub struct BlockingClient {
    messages: MessageStream,
    socket: PathBuf,
    started: bool,
    notice: Option<String>,
    daemon: Option<DaemonVersion>,
    /// Reconnects if the daemon was replaced.
    connector: Connector,
}

/// A subscription to events of type `E`. Dropping it closes the connection, which cancels a chat turn unless the turn is
/// detached.
#[derive(Debug)]
pub struct BlockingEvents<E = Event> {
    client: BlockingClient,
    method: &'static str,
    /// The daemon ended the subscription, and the next daemon follows.
    restarting: bool,
    event: PhantomData<fn() -> E>,
}

impl BlockingClient {
    /// Connects; starts the daemon if it does not run and the connector allows it.
    ///
    /// **Errors**: [`ClientError::Unreachable`] and the errors of starting the daemon.
    pub fn connect(connector: &Connector) -> Result<Self, ClientError> {
        Ok(Self::new(connector.open()?, connector))
    }

    fn new(connection: OpenConnection, connector: &Connector) -> Self {
        Self {
            messages: MessageStream::new(connection.stream, connector.timeout()),
            socket: connection.socket,
            started: connection.started,
            notice: connection.notice,
            daemon: connection.daemon,
            connector: connector.clone(),
        }
    }

    /// Connects to the daemon that follows one that said so at the end of a subscription; waits until it listens.
    ///
    /// **Errors**: as [`BlockingClient::connect`], if there is none in time.
    pub(crate) fn connect_to_successor(connector: &Connector) -> Result<Self, ClientError> {
        Ok(Self::new(connector.open_successor()?, connector))
    }

    /// Returns the path of the connected socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns whether connecting started the daemon.
    #[must_use]
    pub fn started_daemon(&self) -> bool {
        self.started
    }

    /// Returns a remark about how the daemon was started, for a person.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Returns the version of the daemon, if connecting asked for it; makes no call.
    #[must_use]
    pub fn daemon_version(&self) -> Option<&str> {
        Some(&self.daemon.as_ref()?.version)
    }

    /// Returns the address of the daemon's model server, if connecting asked for it; makes no call.
    pub(crate) fn model_server(&self) -> Option<&ModelServerAddress> {
        self.daemon.as_ref()?.model_server.as_ref()
    }

    /// Sets the longest wait for each further reply.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.messages.timeout = timeout;
    }

    /// Calls a method.
    ///
    /// **Errors**: [`ClientError::Rpc`] if the daemon refuses the call, [`ClientError::Timeout`] if it does not reply;
    /// a late reply is skipped by the next call.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        let raw = self.call_raw(M::NAME, params)?;
        decode(M::NAME, &raw)
    }

    /// Calls a method by its name and returns the result as it was sent. A context that is larger than a response is
    /// fetched in parts.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn call_raw(
        &mut self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<Box<RawValue>, ClientError> {
        self.call_encoded(method, &encode(method, params)?)
    }

    /// Calls a method with params that are JSON already. The calls of all methods share this code.
    pub(crate) fn call_encoded(
        &mut self,
        method: &str,
        params: &RawValue,
    ) -> Result<Box<RawValue>, ClientError> {
        let reply = self.call_reconnecting(method, params);
        let Err(error) = reply else { return reply };
        let Some(mut parts) = context_parts(method, &error) else { return Err(error) };
        loop {
            let name = ContextGetBuild::NAME;
            let part = self.call_reconnecting(name, &encode(name, &parts.params)?)?;
            let part = decode(name, &part)?;
            if let Some(json) = parts.add(&part) {
                let bad = |source| ClientError::BadReply { method: name.to_owned(), source };
                return RawValue::from_string(json).map_err(bad);
            }
        }
    }

    /// Calls a method. Connects again if the daemon closed the connection before the call, and calls once more if it did so
    /// during a safe one.
    fn call_reconnecting(
        &mut self,
        method: &str,
        params: &RawValue,
    ) -> Result<Box<RawValue>, ClientError> {
        // A daemon that was replaced closed the connections that nobody used. The call did not reach it.
        if self.messages.is_closed() {
            self.reconnect()?;
        }
        let reply = self.messages.call(method, params);
        // A daemon that was just killed may still accept a connection to which it never replies. A safe call can be
        // repeated; another one may have been carried out.
        let is_safe =
            METHODS.iter().any(|known| known.name == method && known.effect == Effect::Safe);
        if !(is_safe && matches!(reply, Err(ClientError::Closed { .. }))) {
            return reply;
        }
        self.reconnect()?;
        self.messages.call(method, params)
    }

    fn reconnect(&mut self) -> Result<(), ClientError> {
        let (timeout, started) = (self.messages.timeout, self.started);
        *self = Self::connect(&self.connector)?;
        self.messages.timeout = timeout;
        self.started |= started;
        Ok(())
    }

    /// Returns a record of a page with its content, which is fetched in parts if it was too large for the page.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn whole_record(
        &mut self,
        session_id: SessionId,
        record: Record,
    ) -> Result<Record, ClientError> {
        let Some(mut parts) = record_parts(session_id, &record) else { return Ok(record) };
        loop {
            let part = self.call::<SessionGetRecord>(&parts.params)?;
            if let Some(json) = parts.add(&part) {
                return whole_record(&json, &record);
            }
        }
    }

    /// Returns the content of a file that a session keeps.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn file_content(
        &mut self,
        session_id: SessionId,
        hash: FileHash,
    ) -> Result<Vec<u8>, ClientError> {
        let mut parts = file_parts(session_id, hash);
        loop {
            let part = self.call::<SessionGetFileContent>(&parts.params)?;
            if let Some(base64) = parts.add(&part) {
                return file_content(&base64);
            }
        }
    }

    /// Subscribes with a method that is known by its name only.
    pub(crate) fn subscribe_raw(
        mut self,
        method: &'static str,
        params: &Value,
    ) -> Result<BlockingEvents<Value>, ClientError> {
        let _subscription = self.call_raw(method, params)?;
        Ok(BlockingEvents { client: self, method, restarting: false, event: PhantomData })
    }

    /// Subscribes to events; the connection serves nothing else from then on.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn subscribe_events(
        self,
        params: &EventSubscribeParams,
    ) -> Result<BlockingEvents, ClientError> {
        self.subscribe::<EventSubscribe, _>(params)
    }

    /// Starts a chat turn; the connection serves nothing else from then on.
    ///
    /// **Errors**: as [`BlockingClient::call`]; nothing was recorded then. Later failures arrive as
    /// [`ChatEvent::Error`].
    pub fn send_chat(
        self,
        params: &ChatSendParams,
    ) -> Result<BlockingEvents<ChatEvent>, ClientError> {
        self.subscribe::<ChatSend, _>(params)
    }

    /// Follows the running chat turn of a session, whoever started it; the connection serves nothing else from then on.
    ///
    /// **Errors**: as [`BlockingClient::call`]; of the kind `turnNotFound` if no turn is running.
    pub fn follow_chat(
        self,
        session_id: SessionId,
    ) -> Result<BlockingEvents<FollowEvent>, ClientError> {
        self.subscribe::<ChatFollow, _>(&SessionIdParams { session_id })
    }

    /// Subscribes to the changes of the files of a directory; the connection serves nothing else from then on.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn watch_files(
        self,
        params: &FilesWatchParams,
    ) -> Result<BlockingEvents<FilesEvent>, ClientError> {
        self.subscribe::<FilesWatch, _>(params)
    }

    /// Calls a method and passes events to `on_event` until the reply arrives. `on_event` is also called with `None`
    /// at least every 100 ms; it returns whether the reply is still wanted, and the result is `None` if not. Either way
    /// the connection is closed, which cancels the call.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub(crate) fn call_with_events<M: Method>(
        mut self,
        params: &M::Params,
        events: &EventSubscribeParams,
        timeout: Duration,
        on_event: &mut dyn FnMut(Option<&Event>) -> bool,
    ) -> Result<Option<Box<RawValue>>, ClientError> {
        let _subscription = self.call_raw(EventSubscribe::NAME, events)?;
        self.set_timeout(timeout);
        let deadline = Instant::now() + timeout;
        let id = self.messages.send(M::NAME, &encode(M::NAME, params)?, deadline)?;
        while on_event(None) {
            let next_check = deadline.min(Instant::now() + CHECK_INTERVAL);
            match self.messages.next(M::NAME, Some(id), Some(next_check)) {
                Ok(Incoming::Reply(reply)) => return Ok(Some(reply)),
                Ok(Incoming::Event(raw)) => {
                    // Ignores unknown event kinds.
                    let event = serde_json::from_str::<Event>(raw.get()).ok();
                    if event.is_some_and(|event| !on_event(Some(&event))) {
                        return Ok(None);
                    }
                }
                Ok(Incoming::EndOfEvents { .. } | Incoming::Other) => {}
                Err(ClientError::Timeout { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn subscribe<M: Method, E>(
        mut self,
        params: &M::Params,
    ) -> Result<BlockingEvents<E>, ClientError> {
        let _subscription = self.call_raw(M::NAME, params)?;
        let (client, method) = (self, M::NAME);
        Ok(BlockingEvents { client, method, restarting: false, event: PhantomData })
    }
}

impl<E: DeserializeOwned> BlockingEvents<E> {
    /// Waits for the next event and returns it as it was sent; `None` if the daemon ended the subscription.
    ///
    /// **Errors**: [`ClientError::Closed`] if the connection was closed.
    pub fn next_raw(&mut self) -> Result<Option<Box<RawValue>>, ClientError> {
        self.wait(None)
    }

    /// Waits for the next event; `None` if the daemon ended the subscription.
    ///
    /// **Errors**: as [`BlockingEvents::next_raw`], and [`ClientError::BadReply`] for an event that this version cannot
    /// decode; later events may be readable.
    pub fn next_event(&mut self) -> Result<Option<E>, ClientError> {
        self.next_raw()?.map(|raw| decode(self.method, &raw)).transpose()
    }

    /// Returns whether the subscription ended because the daemon is being replaced, so that the next one can be waited for.
    pub(crate) fn is_restarting(&self) -> bool {
        self.restarting
    }

    /// Waits for the next event until a deadline.
    ///
    /// **Errors**: as [`BlockingEvents::next_event`], [`ClientError::Timeout`] at the deadline, and
    /// [`ClientError::Closed`] also if the daemon ended the subscription.
    pub(crate) fn next_event_before(&mut self, deadline: Instant) -> Result<E, ClientError> {
        match self.wait(Some(deadline))? {
            Some(raw) => decode(self.method, &raw),
            None => Err(ClientError::Closed { method: self.method.to_owned() }),
        }
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Box<RawValue>>, ClientError> {
        loop {
            match self.client.messages.next(self.method, None, deadline)? {
                Incoming::Event(event) => return Ok(Some(event)),
                Incoming::EndOfEvents { restarting } => {
                    self.restarting = restarting;
                    return Ok(None);
                }
                Incoming::Reply(_) | Incoming::Other => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc;

    use ollm_protocol::frame::MAX_FRAME_BYTES;
    use ollm_protocol::method::{DaemonReload, DaemonShutdown};
    use ollm_protocol::methods::daemon::{DaemonShutdownParams, NoParams};
    use serde_json::json;

    use super::*;
    use crate::testing::{TestHome, reply, send};

    fn connect(home: &TestHome) -> BlockingClient {
        BlockingClient::connect(&home.connector()).unwrap()
    }

    #[test]
    fn reply_is_found_among_other_messages() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| {
            assert_eq!(request["jsonrpc"], "2.0");
            assert_eq!(request["method"], "daemon.shutdown");
            assert_eq!(request["params"], json!({}));
            send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": {}}));
            send(stream, &json!({"jsonrpc": "2.0", "id": 999, "result": {"pid": 1}}));
            reply(stream, request, &json!({"pid": 42, "later": true}));
        });
        let mut client = connect(&home);
        for _ in 0..3 {
            assert_eq!(
                client.call::<DaemonShutdown>(&DaemonShutdownParams::default()).unwrap().pid,
                42
            );
        }
    }

    #[test]
    fn error_reply_has_its_kind_also_without_an_id() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| {
            let id = if request["id"] == 1 { request["id"].clone() } else { Value::Null };
            let error = json!({"code": -32009, "message": "too much", "data": {"kind": "busy"}});
            send(stream, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
        });
        let mut client = connect(&home);
        for _ in 0..2 {
            let error = client.call::<DaemonReload>(&NoParams {}).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), ("busy", "too much"));
        }
    }

    #[test]
    fn missing_reply_times_out_and_is_skipped_when_it_arrives() {
        let home = TestHome::new();
        let mut held: Option<Value> = None;
        let _server = home.serve(move |request, stream| match held.take() {
            None => held = Some(request.clone()),
            Some(late) => {
                reply(stream, &late, &json!({"pid": 1}));
                reply(stream, request, &json!({"pid": 2}));
            }
        });
        let mut client = connect(&home);
        client.set_timeout(Duration::from_millis(50));
        let error = client.call::<DaemonShutdown>(&DaemonShutdownParams::default()).unwrap_err();
        assert!(
            matches!(&error, ClientError::Timeout { method, .. } if method == "daemon.shutdown")
        );
        client.set_timeout(Duration::from_secs(30));
        assert_eq!(client.call::<DaemonShutdown>(&DaemonShutdownParams::default()).unwrap().pid, 2);
    }

    #[test]
    fn connection_that_was_closed_while_nobody_used_it_is_replaced() {
        let home = TestHome::new();
        let (sender, closed) = mpsc::channel();
        let mut calls = 0;
        let _server = home.serve_connections(2, move |request, stream| {
            calls += 1;
            reply(stream, request, &json!({ "pid": calls }));
            if calls == 1 {
                stream.shutdown(std::net::Shutdown::Both).unwrap();
                sender.send(()).unwrap();
            }
        });
        let mut client = connect(&home);
        let mut shut_down = || client.call::<DaemonShutdown>(&DaemonShutdownParams::default());
        assert_eq!(shut_down().unwrap().pid, 1);
        closed.recv().unwrap();
        assert_eq!(shut_down().unwrap().pid, 2, "also for a call that changes something");
    }

    #[test]
    fn closed_connection_and_invalid_reply_are_different_errors() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| {
            if request["id"] == 1 {
                stream.write_all(b"nonsense\n").unwrap();
            } else {
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            }
        });
        let mut client = connect(&home);
        let error = client.call::<DaemonReload>(&NoParams {}).unwrap_err();
        assert!(matches!(error, ClientError::BadReply { .. }), "{error}");
        let error = client.call::<DaemonReload>(&NoParams {}).unwrap_err();
        assert!(matches!(error, ClientError::Closed { .. }), "{error}");
        assert_eq!(error.hint().as_deref(), Some("ollmctl daemon status"));
    }

    #[test]
    fn frames_are_limited_in_both_directions() {
        let home = TestHome::new();
        let _server = home.serve(|_, stream| {
            let chunk = vec![b'x'; 1 << 20];
            // The client hangs up before everything is sent.
            while stream.write_all(&chunk).is_ok() {}
        });
        let mut client = connect(&home);
        let large = json!({ "text": "x".repeat(MAX_FRAME_BYTES) });
        let error = client.call_raw("session.record", &large).unwrap_err();
        assert!(matches!(error, ClientError::RequestTooLarge { .. }), "{error}");
        let error = client.call_raw("session.get", &json!({})).unwrap_err();
        assert!(matches!(error, ClientError::ReplyTooLarge { .. }), "{error}");
    }

    #[test]
    fn large_reply_is_joined_from_small_reads() {
        let home = TestHome::new();
        let text = "日本".repeat(200_000);
        let sent = text.clone();
        let _server = home.serve(move |request, stream| {
            reply(stream, request, &json!({ "text": sent }));
        });
        let raw = connect(&home).call_raw("session.get", &json!({})).unwrap();
        let result: Value = serde_json::from_str(raw.get()).unwrap();
        assert!(result["text"] == text.as_str());
    }

    #[test]
    fn subscription_ends_with_the_stream() {
        let home = TestHome::new();
        let _server = home.serve(|request, stream| {
            assert_eq!(request["method"], "event.subscribe");
            reply(stream, request, &json!(7));
            for at in 1..=2 {
                let params = json!({"subscription": 7, "result": {"eventSeq": at}});
                send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}));
            }
            let params = json!({"subscription": 7, "error": "leaving"});
            send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}));
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let mut events = connect(&home).subscribe_events(&EventSubscribeParams::default()).unwrap();
        for at in 1..=2 {
            assert_eq!(events.next_raw().unwrap().unwrap().get(), format!("{{\"eventSeq\":{at}}}"));
        }
        assert!(events.next_raw().unwrap().is_none());
        assert!(matches!(events.next_raw(), Err(ClientError::Closed { .. })));
    }
}
