//! One call at a time over a plain stream, without a runtime: what one-shots want.
//!
//! Newline framing. Every read and write has a deadline, except that a subscription waits for its next event
//! for as long as the connection lives.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::method::Method;
use ollm_protocol::{Class, METHODS};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::told::Came;
use super::{Connector, MAX_FRAME_BYTES};
use crate::error::{ClientError, RpcFailure};

/// Read at first: enough for most replies. Memory that is touched for the first time costs a one-shot more than
/// a second read does.
const FIRST_READ_BYTES: usize = 4 << 10;
/// Read at once when replies turn out to be long.
const MAX_READ_BYTES: usize = 64 << 10;

/// A connection that makes one call at a time.
#[derive(Debug)]
pub struct BlockingClient {
    stream: UnixStream,
    socket: PathBuf,
    started: bool,
    notice: Option<String>,
    daemon_version: Option<String>,
    lines: Lines,
    next_id: u64,
    timeout: Duration,
    /// Makes the connection once more; kept until something was answered.
    again: Option<Connector>,
}

#[derive(Serialize)]
struct Request<'a, P: ?Sized> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: &'a P,
}

/// Anything that the daemon may send: a reply has an `id`, a notification a `method`.
#[derive(Deserialize)]
struct Incoming<'a> {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<ErrorReply>,
}

#[derive(Deserialize)]
struct ErrorReply {
    code: i32,
    message: String,
    #[serde(default)]
    data: Option<Value>,
}

#[derive(Deserialize)]
struct Notification<'a> {
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<Value>,
}

impl BlockingClient {
    /// Connects, starting the daemon if need be.
    ///
    /// **Errors**: [`ClientError::Unreachable`] and those of starting the daemon.
    pub fn connect(connector: &Connector) -> Result<Self, ClientError> {
        let opened = connector.open()?;
        Ok(Self {
            stream: opened.stream,
            socket: opened.socket,
            started: opened.started,
            notice: opened.notice,
            daemon_version: opened.daemon.map(|daemon| daemon.version),
            lines: Lines::default(),
            next_id: 1,
            timeout: connector.timeout(),
            again: Some(connector.clone()),
        })
    }

    /// The socket that answered.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether connecting started the daemon.
    #[must_use]
    pub fn started_daemon(&self) -> bool {
        self.started
    }

    /// What a person should know of how the daemon was started.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The version that the daemon wrote down, where it did; asking it costs nothing.
    #[must_use]
    pub fn daemon_version(&self) -> Option<&str> {
        self.daemon_version.as_deref()
    }

    /// Waits at most this long for each further reply.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Calls a method.
    ///
    /// **Errors**: [`ClientError::Rpc`] when the daemon refuses, [`ClientError::Timeout`] when it is silent;
    /// a late reply is skipped by the next call.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        let raw = self.call_raw(M::NAME, params)?;
        decode(M::NAME, &raw)
    }

    /// Calls a method by name and returns its result as it was sent.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn call_raw<P: Serialize + ?Sized>(
        &mut self,
        method: &str,
        params: &P,
    ) -> Result<Box<RawValue>, ClientError> {
        let answer = self.ask(method, params);
        let Some(connector) = self.again.take() else { return answer };
        // A daemon that was just killed may still take a connection that it never answers. A read can be asked
        // again; what writes may have been done.
        let reads = METHODS.iter().any(|known| known.name == method && known.class == Class::Read);
        if !(reads && matches!(answer, Err(ClientError::Closed { .. }))) {
            return answer;
        }
        let (timeout, started) = (self.timeout, self.started);
        *self = Self::connect(&connector)?;
        self.timeout = timeout;
        self.started |= started;
        self.ask(method, params)
    }

    /// Sends a request and returns its id.
    pub(super) fn begin<P: Serialize + ?Sized>(
        &mut self,
        method: &str,
        params: &P,
        deadline: Instant,
    ) -> Result<u64, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(method, id, params, deadline).map(|()| id)
    }

    fn ask<P: Serialize + ?Sized>(
        &mut self,
        method: &str,
        params: &P,
    ) -> Result<Box<RawValue>, ClientError> {
        let deadline = Instant::now() + self.timeout;
        let id = self.next_id;
        self.next_id += 1;
        let sent = self.send(method, id, params, deadline);
        // A daemon that refuses a connection says why before it closes it; that beats a broken pipe.
        if let Err(ClientError::Closed { .. }) = &sent
            && let Err(refusal @ ClientError::Rpc(_)) = self.reply(method, id, deadline)
        {
            return Err(refusal);
        }
        sent?;
        self.reply(method, id, deadline)
    }

    fn send<P: Serialize + ?Sized>(
        &mut self,
        method: &str,
        id: u64,
        params: &P,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let request = Request { jsonrpc: "2.0", id, method, params };
        let mut frame = serde_json::to_vec(&request)
            .map_err(|source| ClientError::BadParams { method: method.to_owned(), source })?;
        if frame.len() > MAX_FRAME_BYTES {
            return Err(ClientError::FrameTooLarge {
                method: method.to_owned(),
                what: "request",
                limit: MAX_FRAME_BYTES,
            });
        }
        frame.push(b'\n');
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            let wait = self.remaining(method, deadline)?;
            let written = self
                .stream
                .set_write_timeout(Some(wait))
                .and_then(|()| (&self.stream).write(rest))
                .or_else(again_if_interrupted)
                .map_err(|error| self.broken(method, error))?;
            rest = &rest[written..];
        }
        Ok(())
    }

    /// The next notification of the one subscription that this connection is for, as it was sent; `None` when the
    /// daemon ended it. Waits for as long as the connection lives.
    pub(super) fn notification(
        &mut self,
        method: &str,
    ) -> Result<Option<Box<RawValue>>, ClientError> {
        let bad = |source| ClientError::BadReply { method: method.to_owned(), source };
        loop {
            let line = self.line(method, None)?;
            let incoming: Incoming<'_> = serde_json::from_slice(line).map_err(bad)?;
            let (Some(_), Some(params)) = (incoming.method, incoming.params) else { continue };
            let notification: Notification<'_> = serde_json::from_str(params.get()).map_err(bad)?;
            if notification.error.is_some() {
                return Ok(None);
            }
            if let Some(event) = notification.result {
                return Ok(Some(event.to_owned()));
            }
        }
    }

    fn reply(
        &mut self,
        method: &str,
        id: u64,
        deadline: Instant,
    ) -> Result<Box<RawValue>, ClientError> {
        loop {
            if let Came::Reply(reply) = self.next(method, id, deadline)? {
                return Ok(reply);
            }
        }
    }

    /// The next thing that comes while a call waits for its reply.
    pub(super) fn next(
        &mut self,
        method: &str,
        id: u64,
        deadline: Instant,
    ) -> Result<Came, ClientError> {
        let bad = |source| ClientError::BadReply { method: method.to_owned(), source };
        let line = self.line(method, Some(deadline))?;
        let incoming: Incoming<'_> = serde_json::from_slice(line).map_err(bad)?;
        // An error without an id is about the connection, so it is the answer to whoever waits.
        let ours = match &incoming.id {
            Some(Value::Null) | None => incoming.error.is_some(),
            Some(other) => *other == id,
        };
        if !ours {
            let (Some(_), Some(params)) = (incoming.method, incoming.params) else {
                return Ok(Came::Other);
            };
            // What another version of the daemon tells in another form is none of this call's business.
            let told = serde_json::from_str::<Notification<'_>>(params.get()).ok();
            let event = told.and_then(|told| told.result);
            return Ok(event.map_or(Came::Other, |event| Came::Event(event.to_owned())));
        }
        if let Some(error) = incoming.error {
            let failure = RpcFailure::new(error.code, error.message, error.data);
            return Err(ClientError::Rpc(Box::new(failure)));
        }
        Ok(Came::Reply(incoming.result.unwrap_or(RawValue::NULL).to_owned()))
    }

    /// The next line without its end; with no deadline it waits until the connection ends.
    fn line(&mut self, method: &str, deadline: Option<Instant>) -> Result<&[u8], ClientError> {
        let end = loop {
            if let Some(end) = self.lines.find() {
                break end;
            }
            if self.lines.pending() > MAX_FRAME_BYTES {
                return Err(ClientError::FrameTooLarge {
                    method: method.to_owned(),
                    what: "reply",
                    limit: MAX_FRAME_BYTES,
                });
            }
            let wait = deadline.map(|deadline| self.remaining(method, deadline)).transpose()?;
            let read = self
                .stream
                .set_read_timeout(wait)
                .and_then(|()| self.lines.fill(&mut (&self.stream)));
            match read {
                Ok(0) => return Err(ClientError::Closed { method: method.to_owned() }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(method, error)),
            }
        };
        Ok(self.lines.take(end))
    }

    fn remaining(&self, method: &str, deadline: Instant) -> Result<Duration, ClientError> {
        // A zero time-out would mean no time-out at all to the socket.
        Some(deadline.saturating_duration_since(Instant::now()))
            .filter(|wait| !wait.is_zero())
            .ok_or_else(|| self.timed_out(method))
    }

    fn timed_out(&self, method: &str) -> ClientError {
        ClientError::Timeout { method: method.to_owned(), after: self.timeout }
    }

    fn broken(&self, method: &str, error: io::Error) -> ClientError {
        let method = method.to_owned();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.timed_out(&method),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                ClientError::Closed { method }
            }
            _ => ClientError::Broken { method, source: error },
        }
    }
}

/// Reads a result as the type that its method promises.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    method: &str,
    raw: &RawValue,
) -> Result<T, ClientError> {
    serde_json::from_str(raw.get())
        .map_err(|source| ClientError::BadReply { method: method.to_owned(), source })
}

fn again_if_interrupted(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
}

/// Bytes that were read, and how far they are used and searched.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    used: usize,
    searched: usize,
}

impl Lines {
    fn pending(&self) -> usize {
        self.bytes.len() - self.used
    }

    /// The end of the first line; each byte is looked at once.
    fn find(&mut self) -> Option<usize> {
        let found = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let end = found.map(|at| self.searched + at);
        self.searched = end.unwrap_or(self.bytes.len());
        end
    }

    fn take(&mut self, end: usize) -> &[u8] {
        let line = self.used..end;
        self.used = end + 1;
        self.searched = self.used;
        &self.bytes[line]
    }

    fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        self.bytes.drain(..self.used);
        self.searched -= self.used;
        self.used = 0;
        let filled = self.bytes.len();
        let room = filled.clamp(FIRST_READ_BYTES, MAX_READ_BYTES);
        self.bytes.resize(filled + room, 0);
        let read = source.read(&mut self.bytes[filled..]);
        self.bytes.truncate(filled + *read.as_ref().unwrap_or(&0));
        read
    }
}

#[cfg(test)]
mod tests;
