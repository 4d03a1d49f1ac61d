//! Raw bytes on the socket, and just enough JSON-RPC to ask questions.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::DEADLINE;

/// How frames are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// One frame a line.
    Lines,
    /// A header with the length before each frame.
    ContentLength,
}

/// One connection.
#[must_use]
pub(crate) struct Wire {
    stream: UnixStream,
    framing: Framing,
    received: Vec<u8>,
    notifications: VecDeque<Value>,
    next_id: u64,
}

impl Wire {
    /// Connects; frames are lines.
    #[track_caller]
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::connect_as(socket, Framing::Lines)
    }

    /// Connects with a framing.
    #[track_caller]
    pub(crate) fn connect_as(socket: &Path, framing: Framing) -> Self {
        let stream = UnixStream::connect(socket)
            .unwrap_or_else(|error| panic!("cannot connect to {}: {error}", socket.display()));
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream, framing, received: Vec::new(), notifications: VecDeque::new(), next_id: 1 }
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes as they are; false when the daemon closed the connection.
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Lets sending fail when the daemon takes nothing for so long.
    pub(crate) fn limit_writes(&self, limit: Duration) {
        self.stream.set_write_timeout(Some(limit)).unwrap();
    }

    /// Sends one frame.
    #[track_caller]
    pub(crate) fn send(&mut self, text: &str) {
        let frame = match self.framing {
            Framing::Lines => format!("{text}\n"),
            Framing::ContentLength => format!("Content-Length: {}\r\n\r\n{text}", text.len()),
        };
        self.send_bytes(frame.as_bytes());
    }

    /// Says that nothing more comes; answers can still be read.
    #[track_caller]
    pub(crate) fn close_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// The next frame; `None` when the daemon closed the connection.
    #[track_caller]
    pub(crate) fn frame(&mut self) -> Option<Value> {
        self.frame_within(DEADLINE).unwrap_or_else(|| panic!("no frame in {DEADLINE:?}"))
    }

    /// As [`Wire::frame`]; the outer `None` means that nothing came in time.
    #[track_caller]
    pub(crate) fn frame_within(&mut self, limit: Duration) -> Option<Option<Value>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(frame) = self.take_frame() {
                let text = std::str::from_utf8(&frame).expect("frames are UTF-8");
                return Some(Some(
                    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")),
                ));
            }
            let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut chunk = [0; 64 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.received.is_empty(), "a frame was cut: {:?}", self.received);
                    return Some(None);
                }
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Some(None),
                    _ => panic!("cannot read: {error}"),
                },
            }
        }
    }

    fn take_frame(&mut self) -> Option<Vec<u8>> {
        match self.framing {
            Framing::Lines => {
                let end = self.received.iter().position(|byte| *byte == b'\n')?;
                let mut frame: Vec<u8> = self.received.drain(..=end).collect();
                let _newline = frame.pop();
                Some(frame)
            }
            Framing::ContentLength => {
                let end = self.received.windows(4).position(|window| window == b"\r\n\r\n")?;
                let header = std::str::from_utf8(&self.received[..end]).expect("headers are text");
                let length = header.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                let length: usize = length.expect("a length").parse().unwrap();
                let total = end + 4 + length;
                if self.received.len() < total {
                    return None;
                }
                Some(self.received.drain(..total).skip(end + 4).collect())
            }
        }
    }

    /// Sends a request and returns its id.
    #[track_caller]
    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(
            &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string(),
        );
        id
    }

    /// Waits for the answer to a request; notifications that come before are kept.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: u64) -> Result<Value, Value> {
        loop {
            let frame = self.frame().unwrap_or_else(|| panic!("closed before the answer to {id}"));
            assert_eq!(frame["jsonrpc"], "2.0", "{frame}");
            if frame.get("method").is_some() {
                self.notifications.push_back(frame);
            } else if frame["id"] == id {
                return match frame.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(frame["result"].clone()),
                };
            } else {
                panic!("an answer to something else than {id}: {frame}");
            }
        }
    }

    /// Calls a method.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params);
        self.answer(id)
    }

    /// Calls a method that must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        match self.call(method, params.clone()) {
            Ok(result) => result,
            Err(error) => panic!("{method} {} failed: {error}", brief(&params)),
        }
    }

    /// Calls a method that must be refused with an error kind; returns the error.
    #[track_caller]
    pub(crate) fn refused(&mut self, method: &str, params: Value, kind: &str) -> Value {
        match self.call(method, params.clone()) {
            Ok(result) => panic!("{method} {} succeeded: {}", brief(&params), brief(&result)),
            Err(error) => {
                assert_eq!(kind_of(&error), kind, "{method}: {error}");
                error
            }
        }
    }

    /// Follows events; returns the subscription.
    #[track_caller]
    pub(crate) fn subscribe(&mut self, params: Value) -> Value {
        self.ok("event.subscribe", params)
    }

    /// The next event of any subscription of events.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Value {
        self.told("event.event")
    }

    /// The next item of any subscription of one kind.
    #[track_caller]
    pub(crate) fn told(&mut self, method: &str) -> Value {
        let notification = self
            .notifications
            .pop_front()
            .unwrap_or_else(|| self.frame().expect("closed before the next event"));
        assert_eq!(notification["method"], method, "{notification}");
        notification["params"]["result"].clone()
    }

    /// Events up to one of a kind, that one included.
    #[track_caller]
    pub(crate) fn events_until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.event());
            if events.last().is_some_and(|event| event["kind"] == kind) {
                return events;
            }
        }
    }

    /// Begins a session and returns its id.
    #[track_caller]
    pub(crate) fn create(&mut self, params: Value) -> String {
        let created = self.ok("session.create", params);
        created["session"]["sessionId"].as_str().unwrap().to_owned()
    }

    /// Records a message of text and returns its position.
    #[track_caller]
    pub(crate) fn record(&mut self, session: &str, role: &str, text: &str) -> u64 {
        let recorded = self.ok("session.record", text_message(session, role, text));
        recorded["seq"].as_u64().unwrap()
    }

    /// Every record of a session, page by page.
    #[track_caller]
    pub(crate) fn records(&mut self, session: &str) -> Vec<Value> {
        let mut records = Vec::new();
        let mut from = json!(0);
        loop {
            let params = json!({ "sessionId": session, "from": from, "limit": 1000 });
            let page = self.ok("session.get", params);
            records.extend(page["records"].as_array().unwrap().iter().cloned());
            match page.get("nextFrom") {
                Some(next) => from = next.clone(),
                None => return records,
            }
        }
    }

    /// Exports a session, chunk by chunk.
    #[track_caller]
    pub(crate) fn export(&mut self, session: &str, format: &str) -> String {
        let mut text = String::new();
        let mut params = json!({ "sessionId": session, "format": format });
        loop {
            let chunk = self.ok("session.export", params.clone());
            text.push_str(chunk["data"].as_str().unwrap());
            match chunk.get("nextCursor") {
                Some(next) => params["cursor"] = next.clone(),
                None => {
                    assert_eq!(chunk["doneRecords"], chunk["totalRecords"], "{format}");
                    return text;
                }
            }
        }
    }
}

/// The params of `session.record` for a message of text.
pub(crate) fn text_message(session: &str, role: &str, text: &str) -> Value {
    json!({ "sessionId": session, "message": { "role": role, "content": text } })
}

/// The stable name of an error.
pub(crate) fn kind_of(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or("(an error without a kind)")
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(400).collect()
}
