//! A connection to the daemon's socket: raw bytes and frames, JSON-RPC calls, and shortcuts for common calls.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{DEADLINE, until};

/// The framing of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// One frame per line.
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
    /// The bytes of `received` without the end of a frame, so that each byte of a large frame is searched once.
    searched: usize,
    /// Notifications that arrived before a response that was waited for.
    notifications: VecDeque<Value>,
    next_id: u64,
}

/// Bytes and frames.
impl Wire {
    /// Connects with frames as lines.
    #[track_caller]
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::connect_as(socket, Framing::Lines)
    }

    #[track_caller]
    pub(crate) fn connect_as(socket: &Path, framing: Framing) -> Self {
        let stream = UnixStream::connect(socket)
            .unwrap_or_else(|error| panic!("cannot connect to {}: {error}", socket.display()));
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self {
            stream,
            framing,
            received: Vec::new(),
            searched: 0,
            notifications: VecDeque::new(),
            next_id: 1,
        }
    }

    /// Sends bytes without framing.
    #[track_caller]
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes without framing; returns false if the daemon closed the connection or does not read.
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sets the time after which sending fails because the daemon does not read.
    pub(crate) fn set_write_timeout(&self, limit: Duration) {
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

    /// Closes the sending half; responses can still be read.
    #[track_caller]
    pub(crate) fn close_write(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Waits for the next frame; returns `None` if the daemon closed the connection.
    #[track_caller]
    pub(crate) fn frame(&mut self) -> Option<Value> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(frame) = self.take_frame() {
                let text = std::str::from_utf8(&frame).expect("frames are UTF-8");
                let frame = serde_json::from_str(text);
                return Some(frame.unwrap_or_else(|error| panic!("{error}: {text}")));
            }
            let remaining = end.saturating_duration_since(Instant::now());
            assert!(!remaining.is_zero(), "no frame within {DEADLINE:?}");
            self.stream.set_read_timeout(Some(remaining)).unwrap();
            let mut chunk = [0; 64 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.received.is_empty(), "an incomplete frame: {:?}", self.received);
                    return None;
                }
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return None,
                    _ => panic!("cannot read: {error}"),
                },
            }
        }
    }

    fn take_frame(&mut self) -> Option<Vec<u8>> {
        match self.framing {
            Framing::Lines => {
                let rest = &self.received[self.searched..];
                let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
                    self.searched = self.received.len();
                    return None;
                };
                let end = self.searched + at;
                self.searched = 0;
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
}

/// JSON-RPC.
impl Wire {
    /// Sends a request and returns its id.
    #[track_caller]
    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&rpc_request(id, method, params).to_string());
        id
    }

    /// Waits for the response to a request; keeps notifications that arrive before it.
    #[track_caller]
    pub(crate) fn response(&mut self, id: u64) -> Result<Value, Value> {
        loop {
            let frame = self.frame().unwrap_or_else(|| panic!("closed before response {id}"));
            assert_eq!(frame["jsonrpc"], "2.0", "{frame}");
            if frame.get("method").is_some() {
                self.notifications.push_back(frame);
            } else if frame["id"] == id {
                return match frame.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(frame["result"].clone()),
                };
            } else {
                panic!("expected response {id}: {frame}");
            }
        }
    }

    /// Calls a method.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params);
        self.response(id)
    }

    /// Calls a method, checks that it succeeds, and returns the result.
    #[track_caller]
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        match self.call(method, params.clone()) {
            Ok(result) => result,
            Err(error) => panic!("{method} {} failed: {error}", brief(&params)),
        }
    }

    /// Calls a method, checks that it fails with an error kind, and returns the error.
    #[track_caller]
    pub(crate) fn refused(&mut self, method: &str, params: Value, kind: &str) -> Value {
        match self.call(method, params.clone()) {
            Ok(result) => panic!("{method} {} succeeded: {}", brief(&params), brief(&result)),
            Err(error) => {
                assert_eq!(error_kind(&error), kind, "{method}: {error}");
                error
            }
        }
    }

    /// Waits for the next notification, checks its method, and returns its item.
    #[track_caller]
    pub(crate) fn notification(&mut self, method: &str) -> Value {
        let notification = self
            .notifications
            .pop_front()
            .unwrap_or_else(|| self.frame().expect("closed before the next notification"));
        assert_eq!(notification["method"], method, "{notification}");
        notification["params"]["result"].clone()
    }
}

/// Shortcuts for common calls.
impl Wire {
    /// Creates a session and returns its id.
    #[track_caller]
    pub(crate) fn create(&mut self, params: Value) -> String {
        let created = self.ok("session.create", params);
        created["session"]["sessionId"].as_str().unwrap().to_owned()
    }

    /// Records a message of text and returns its seq.
    #[track_caller]
    pub(crate) fn record(&mut self, session: &str, role: &str, text: &str) -> u64 {
        let recorded = self.ok("session.record", text_message(session, role, text));
        recorded["seq"].as_u64().unwrap()
    }

    /// Returns every record of a session, read page by page.
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

    /// Returns what `session.get` reports of a session itself.
    #[track_caller]
    pub(crate) fn session(&mut self, session: &str) -> Value {
        let page = self.ok("session.get", json!({ "sessionId": session, "limit": 1 }));
        page["session"].clone()
    }

    /// Returns all pages of a method whose result has a `nextCursor`.
    #[track_caller]
    pub(crate) fn pages(&mut self, method: &str, mut params: Value) -> Vec<Value> {
        let mut pages = Vec::new();
        loop {
            let page = self.ok(method, params.clone());
            let next = page.get("nextCursor").cloned();
            pages.push(page);
            match next {
                Some(cursor) => params["cursor"] = cursor,
                None => return pages,
            }
        }
    }

    /// Exports a session, read chunk by chunk.
    #[track_caller]
    pub(crate) fn export(&mut self, session: &str, format: &str) -> String {
        let params = json!({ "sessionId": session, "format": format });
        let chunks = self.pages("session.export", params);
        let last = chunks.last().unwrap();
        assert_eq!(last["done"], last["total"], "{format}");
        chunks.iter().map(|chunk| chunk["data"].as_str().unwrap()).collect()
    }

    /// Subscribes to events and returns the subscription id.
    #[track_caller]
    pub(crate) fn subscribe(&mut self, params: Value) -> Value {
        self.ok("event.subscribe", params)
    }

    /// Waits for the next event.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Value {
        self.notification("event.event")
    }

    /// Waits for events up to and including the first of a kind.
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

    #[track_caller]
    pub(crate) fn status(&mut self) -> Value {
        self.ok("daemon.status", json!({}))
    }

    /// Waits until the catalog contains every record.
    #[track_caller]
    pub(crate) fn wait_for_catalog(&mut self) {
        until("the catalog is up to date", || {
            let catalog = &self.status()["catalog"];
            catalog["state"] == "ready" && catalog["behind"] == 0
        });
    }

    /// Waits until the daemon has a number of `connections` or `subscriptions`.
    #[track_caller]
    pub(crate) fn wait_for_count(&mut self, field: &str, count: usize) {
        until(&format!("{count} {field}"), || self.status()[field] == count);
    }

    /// Waits until the daemon has contacted the model server, and returns the server's status.
    #[track_caller]
    pub(crate) fn model_server(&mut self) -> Value {
        let mut server = Value::Null;
        until("the model server was contacted", || {
            server = self.status()["modelServer"].take();
            server.get("reachable").is_some()
        });
        server
    }
}

/// Returns a JSON-RPC request.
pub(crate) fn rpc_request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Returns a JSON-RPC notification.
pub(crate) fn rpc_notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// Returns the params of `session.record` for a message of text.
pub(crate) fn text_message(session: &str, role: &str, text: &str) -> Value {
    json!({ "sessionId": session, "message": { "role": role, "content": text } })
}

/// Returns the elements of a value that must be an array.
#[track_caller]
pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not an array: {value}"))
}

/// Checks that an object has the expected fields; it may have others.
#[track_caller]
pub(crate) fn assert_fields(found: &Value, expected: Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(found[name], *value, "{name} of {found}");
    }
}

/// Returns the stable kind of an error.
pub(crate) fn error_kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or("(an error without a kind)")
}

/// Returns the beginning of a value's text, for a failure message.
fn brief(value: &Value) -> String {
    value.to_string().chars().take(400).collect()
}
