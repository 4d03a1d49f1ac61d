//! The messages of the client without a runtime: requests, replies and notifications over a plain stream.
//!
//! Frames are lines. Every read and write has a deadline, except that a subscription waits for its next event as long as
//! the connection lives. Must not know how a connection is made, or the results of methods.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ollm_protocol::frame::MAX_FRAME_BYTES;
use rustix::net::{RecvFlags, recv};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{ClientError, RpcFailure};

/// Bytes of one read; the buffer takes no memory before it is filled.
const READ_BYTES: usize = 64 << 10;

/// A stream of messages in both directions.
#[derive(Debug)]
pub(super) struct MessageStream {
    stream: BufReader<UnixStream>,
    /// The beginning of a line that has not arrived completely.
    line: Vec<u8>,
    last_id: u64,
    /// The longest wait for a reply.
    pub(super) timeout: Duration,
}

/// A message of the daemon, by its meaning for a call or a subscription.
pub(super) enum Incoming {
    Reply(Box<RawValue>),
    Event(Box<RawValue>),
    /// The daemon ended the subscription.
    EndOfEvents {
        /// The next daemon follows.
        restarting: bool,
    },
    /// A message that belongs neither to the call nor to a subscription.
    Other,
}

#[derive(Serialize)]
struct OutgoingRequest<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: &'a RawValue,
}

/// A message of the daemon: a reply has an `id`, a notification a `method`.
#[derive(Deserialize)]
struct IncomingMessage<'a> {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<IncomingError>,
}

#[derive(Deserialize)]
struct IncomingError {
    code: i32,
    message: String,
    #[serde(default)]
    data: Option<Value>,
}

/// The params of a subscription's notification: an event, or the reason why the subscription ended.
#[derive(Deserialize)]
struct EventParams<'a> {
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// The part of the reason that says whether the next daemon follows.
#[derive(Default, Deserialize)]
struct EndReason {
    #[serde(default)]
    data: EndData,
}

#[derive(Default, Deserialize)]
struct EndData {
    #[serde(default)]
    restarting: bool,
}

impl MessageStream {
    pub(super) fn new(stream: UnixStream, timeout: Duration) -> Self {
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        Self { stream, line: Vec::new(), last_id: 0, timeout }
    }

    /// Returns whether the daemon has closed the connection and everything that it sent was read, so that a request cannot
    /// reach it.
    pub(super) fn is_closed(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut byte = [0_u8; 1];
        self.stream.buffer().is_empty()
            && matches!(recv(self.stream.get_ref(), &mut byte, flags), Ok((0, _)))
    }

    /// Sends a request and waits for its reply.
    pub(super) fn call(
        &mut self,
        method: &str,
        params: &RawValue,
    ) -> Result<Box<RawValue>, ClientError> {
        let deadline = Instant::now() + self.timeout;
        let sent = self.send(method, params, deadline);
        // A daemon that refuses a connection sends the reason before it closes it, which says more than a broken pipe.
        if let Err(ClientError::Closed { .. }) = &sent
            && let Err(refusal @ ClientError::Rpc(_)) = self.reply(method, self.last_id, deadline)
        {
            return Err(refusal);
        }
        self.reply(method, sent?, deadline)
    }

    /// Sends a request and returns its id.
    pub(super) fn send(
        &mut self,
        method: &str,
        params: &RawValue,
        deadline: Instant,
    ) -> Result<u64, ClientError> {
        self.last_id += 1;
        let request = OutgoingRequest { jsonrpc: "2.0", id: self.last_id, method, params };
        let mut frame = serde_json::to_vec(&request)
            .map_err(|source| ClientError::BadParams { method: method.to_owned(), source })?;
        if frame.len() > MAX_FRAME_BYTES {
            return Err(ClientError::RequestTooLarge { method: method.to_owned() });
        }
        frame.push(b'\n');
        let mut unsent = frame.as_slice();
        while !unsent.is_empty() {
            let wait = self.remaining(method, deadline)?;
            let written = self
                .stream
                .get_ref()
                .set_write_timeout(Some(wait))
                .and_then(|()| self.stream.get_ref().write(unsent))
                .or_else(|error| match error.kind() {
                    io::ErrorKind::Interrupted => Ok(0),
                    _ => Err(self.io_error(method, error)),
                })?;
            unsent = &unsent[written..];
        }
        Ok(self.last_id)
    }

    fn reply(
        &mut self,
        method: &str,
        id: u64,
        deadline: Instant,
    ) -> Result<Box<RawValue>, ClientError> {
        loop {
            if let Incoming::Reply(reply) = self.next(method, Some(id), Some(deadline))? {
                return Ok(reply);
            }
        }
    }

    /// Waits for the next message; `id` is the call that waits for its reply, if one does.
    pub(super) fn next(
        &mut self,
        method: &str,
        id: Option<u64>,
        deadline: Option<Instant>,
    ) -> Result<Incoming, ClientError> {
        let line = self.next_line(method, deadline)?;
        let message: IncomingMessage<'_> = serde_json::from_slice(&line)
            .map_err(|source| ClientError::BadReply { method: method.to_owned(), source })?;
        let is_reply = id.is_some_and(|id| match &message.id {
            // An error without an id concerns the connection, so it is the reply to the waiting call.
            Some(Value::Null) | None => message.error.is_some(),
            Some(other) => *other == id,
        });
        if !is_reply {
            let params = message.method.and(message.params).map(RawValue::get);
            // A notification of an unknown shape, from another version of the daemon, does not fail the call.
            return Ok(match params.and_then(|params| serde_json::from_str(params).ok()) {
                Some(EventParams { error: Some(reason), .. }) => {
                    let reason: EndReason = serde_json::from_str(reason.get()).unwrap_or_default();
                    Incoming::EndOfEvents { restarting: reason.data.restarting }
                }
                Some(EventParams { result: Some(event), .. }) => Incoming::Event(event.to_owned()),
                _ => Incoming::Other,
            });
        }
        if let Some(error) = message.error {
            let failure = RpcFailure::new(error.code, error.message, error.data);
            return Err(ClientError::Rpc(Box::new(failure)));
        }
        Ok(Incoming::Reply(message.result.unwrap_or(RawValue::NULL).to_owned()))
    }

    /// Waits for the next line; keeps the beginning of an incomplete one for the next call.
    fn next_line(
        &mut self,
        method: &str,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, ClientError> {
        loop {
            if self.stream.buffer().is_empty() {
                let wait = deadline.map(|deadline| self.remaining(method, deadline)).transpose()?;
                let timeout_set = self.stream.get_ref().set_read_timeout(wait);
                match timeout_set.and_then(|()| self.stream.fill_buf().map(<[u8]>::len)) {
                    Ok(0) => return Err(ClientError::Closed { method: method.to_owned() }),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(self.io_error(method, error)),
                }
            }
            let bytes = self.stream.buffer();
            let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(bytes.len());
            self.line.extend_from_slice(&bytes[..taken]);
            self.stream.consume(taken);
            if end.is_some() {
                return Ok(std::mem::take(&mut self.line));
            }
            if self.line.len() > MAX_FRAME_BYTES {
                return Err(ClientError::ReplyTooLarge { method: method.to_owned() });
            }
        }
    }

    fn remaining(&self, method: &str, deadline: Instant) -> Result<Duration, ClientError> {
        // A socket treats a timeout of zero as no timeout.
        Some(deadline.saturating_duration_since(Instant::now()))
            .filter(|wait| !wait.is_zero())
            .ok_or_else(|| self.timed_out(method))
    }

    fn timed_out(&self, method: &str) -> ClientError {
        ClientError::Timeout { method: method.to_owned(), after: self.timeout }
    }

    fn io_error(&self, method: &str, error: io::Error) -> ClientError {
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

/// Encodes the params of a method.
pub(crate) fn encode(method: &str, params: &impl Serialize) -> Result<Box<RawValue>, ClientError> {
    serde_json::value::to_raw_value(params)
        .map_err(|source| ClientError::BadParams { method: method.to_owned(), source })
}

/// Decodes the result of a method.
pub(crate) fn decode<T: DeserializeOwned>(method: &str, raw: &RawValue) -> Result<T, ClientError> {
    serde_json::from_str(raw.get())
        .map_err(|source| ClientError::BadReply { method: method.to_owned(), source })
}
