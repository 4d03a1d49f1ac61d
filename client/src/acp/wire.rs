//! The editor at the other end of stdin and stdout: JSON-RPC messages, one a line.
//!
//! A thread reads the lines and another one writes them, because both can block for any time. Nothing else in this process
//! writes to stdout. **Invariant**: both queues are bounded; when the editor does not read, turns wait.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use ollm_protocol::frame::MAX_FRAME_BYTES;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::schema::{ClientCapabilities, RequestError, SessionNotification, SessionUpdate, code};
use super::version::AcpVersion;
use crate::background;
use crate::command_error::CommandResult;

/// Lines of the editor that wait to be handled. Few, because each can be as long as a frame of the daemon.
const WAITING_LINES: usize = 4;
/// Messages that wait to be written, so that a pause of the editor does not stop a turn at once.
const WAITING_MESSAGES: usize = 256;

/// A message of the editor.
pub(super) enum EditorMessage {
    Request {
        id: Value,
        method: String,
        params: Box<RawValue>,
    },
    Notification {
        method: String,
        params: Box<RawValue>,
    },
    /// The answer to a request of the agent.
    Answer {
        id: Value,
        result: Result<Value, RequestError>,
    },
    /// A line that is no message, with the error to send.
    Invalid {
        id: Value,
        error: RequestError,
    },
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Box<RawValue>>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RequestError>,
}

impl EditorMessage {
    fn parse(line: &[u8]) -> Self {
        let invalid =
            |id, code, text: String| Self::Invalid { id, error: RequestError::new(code, text) };
        let envelope = match serde_json::from_slice::<Envelope>(line) {
            Ok(envelope) => envelope,
            Err(_) => {
                return match serde_json::from_slice::<Value>(line) {
                    Ok(value) => {
                        let id = value.get("id").filter(|id| is_id(id)).cloned();
                        let text = "the line is no JSON-RPC message".to_owned();
                        match id {
                            // An answer that cannot be read gets no answer itself.
                            Some(id) if value.get("method").is_none() => {
                                let error = RequestError::new(code::INTERNAL, text);
                                Self::Answer { id, result: Err(error) }
                            }
                            id => invalid(id.unwrap_or_default(), code::INVALID_REQUEST, text),
                        }
                    }
                    Err(error) => {
                        invalid(Value::Null, code::PARSE, format!("the line is not JSON: {error}"))
                    }
                };
            }
        };
        let params = envelope.params.unwrap_or_else(|| RawValue::NULL.to_owned());
        match (envelope.id, envelope.method) {
            (Some(id), _) if !is_id(&id) => {
                let text = "an id is a string or a number".to_owned();
                invalid(Value::Null, code::INVALID_REQUEST, text)
            }
            (Some(id), Some(method)) => Self::Request { id, method, params },
            (None, Some(method)) => Self::Notification { method, params },
            (Some(id), None) => {
                let result = envelope.error.map_or(Ok(envelope.result.unwrap_or_default()), Err);
                Self::Answer { id, result }
            }
            (None, None) => {
                let text = "the line is no JSON-RPC message".to_owned();
                invalid(Value::Null, code::INVALID_REQUEST, text)
            }
        }
    }
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_number()
}

/// Reads the messages of the editor in a thread. The channel closes at the end of the input.
pub(super) fn read_messages(
    input: impl std::io::Read + Send + 'static,
) -> CommandResult<mpsc::Receiver<EditorMessage>> {
    let (sender, messages) = mpsc::channel(WAITING_LINES);
    background::spawn("ollmctl-stdin", move || {
        let mut input = BufReader::with_capacity(64 << 10, input);
        while let Some(message) = next_message(&mut input) {
            if sender.blocking_send(message).is_err() {
                return;
            }
        }
    })?;
    Ok(messages)
}

/// Returns the next message; `None` at the end of the input. The last line needs no line break.
fn next_message(input: &mut impl BufRead) -> Option<EditorMessage> {
    loop {
        let mut line = Vec::new();
        let limit = MAX_FRAME_BYTES as u64 + 1;
        input.by_ref().take(limit).read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
        if line.last() != Some(&b'\n') && line.len() > MAX_FRAME_BYTES {
            skip_line(input)?;
            let text = format!("a message has at most {MAX_FRAME_BYTES} bytes");
            let error = RequestError::new(code::INVALID_REQUEST, text);
            return Some(EditorMessage::Invalid { id: Value::Null, error });
        }
        if !line.trim_ascii().is_empty() {
            return Some(EditorMessage::parse(&line));
        }
    }
}

/// Skips the rest of a line without holding it; `None` at the end of the input.
fn skip_line(input: &mut impl BufRead) -> Option<()> {
    loop {
        let bytes = input.fill_buf().ok().filter(|bytes| !bytes.is_empty())?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let n_bytes = end.map_or(bytes.len(), |end| end + 1);
        input.consume(n_bytes);
        if end.is_some() {
            return Some(());
        }
    }
}

/// The editor, to which messages are sent.
pub(super) struct Editor {
    lines: mpsc::Sender<String>,
    capabilities: Mutex<ClientCapabilities>,
    /// The requests of the agent that wait for their answers.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Result<Value, RequestError>>>>,
    next_id: AtomicU64,
}

impl Editor {
    /// Returns the editor, and a receiver that completes when all that was sent is written, or the editor is gone.
    pub(super) fn new(
        mut output: impl Write + Send + 'static,
    ) -> CommandResult<(Self, oneshot::Receiver<()>)> {
        let (lines, mut waiting_lines) = mpsc::channel::<String>(WAITING_MESSAGES);
        let (written, all_written) = oneshot::channel();
        background::spawn("ollmctl-stdout", move || {
            while let Some(line) = waiting_lines.blocking_recv() {
                let mut bytes = line.into_bytes();
                // What waits already is one write.
                while let Ok(line) = waiting_lines.try_recv() {
                    bytes.extend_from_slice(line.as_bytes());
                    if bytes.len() >= 64 << 10 {
                        break;
                    }
                }
                if output.write_all(&bytes).and_then(|()| output.flush()).is_err() {
                    break;
                }
            }
            drop(waiting_lines);
            // Fails if nobody waits for it.
            written.send(()).ok();
        })?;
        let (capabilities, waiting, next_id) =
            (Mutex::default(), Mutex::default(), AtomicU64::new(1));
        Ok((Self { lines, capabilities, waiting, next_id }, all_written))
    }

    pub(super) fn capabilities(&self) -> ClientCapabilities {
        self.capabilities.lock().clone()
    }

    pub(super) fn set_capabilities(&self, capabilities: ClientCapabilities) {
        *self.capabilities.lock() = capabilities;
    }

    pub(super) fn version(&self) -> AcpVersion {
        self.capabilities.lock().version
    }

    /// Waits until the editor has gone.
    pub(super) async fn gone(&self) {
        self.lines.closed().await;
    }

    async fn send(&self, message: &impl Serialize) {
        let Ok(mut line) = serde_json::to_string(message) else { return };
        line.push('\n');
        // An editor that has gone needs no message; the main loop ends for it.
        drop(self.lines.send(line).await);
    }

    pub(super) async fn answer(&self, id: &Value, result: &Result<Value, RequestError>) {
        let message = match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        };
        self.send(&message).await;
    }

    /// Reports what happened in a session, as far as the version of the editor has it.
    pub(super) async fn update(&self, session_id: &str, update: SessionUpdate) {
        let Some(update) = self.version().update(update) else { return };
        #[derive(Serialize)]
        struct Notification {
            jsonrpc: &'static str,
            method: &'static str,
            params: SessionNotification,
        }
        let params = SessionNotification { session_id: session_id.to_owned(), update };
        self.send(&Notification { jsonrpc: "2.0", method: "session/update", params }).await;
    }

    /// Sends a request and waits for the answer. Dropping this tells the editor that the answer is not needed any more.
    pub(super) async fn request(
        &self,
        method: &str,
        params: &Value,
    ) -> Result<Value, RequestError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        drop(self.waiting.lock().insert(id, sender));
        let mut request = WaitingRequest { editor: self, id, is_answered: false };
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        let gone = || RequestError::new(code::INTERNAL, "the editor has gone");
        let answer = answer.await;
        request.is_answered = true;
        answer.unwrap_or_else(|_| Err(gone()))
    }

    /// Passes the answer to a request on to its sender.
    pub(super) fn answered(&self, id: &Value, result: Result<Value, RequestError>) {
        let sender = id.as_u64().and_then(|id| self.waiting.lock().remove(&id));
        if let Some(sender) = sender {
            // Fails if the answer is not needed any more.
            drop(sender.send(result));
        }
    }
}

/// A request that waits for its answer.
struct WaitingRequest<'a> {
    editor: &'a Editor,
    id: u64,
    is_answered: bool,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        drop(self.editor.waiting.lock().remove(&self.id));
        let params = json!({ "requestId": self.id });
        let cancel = json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": params });
        // If the queue is full, the editor keeps the question, and its answer is ignored.
        drop(self.editor.lines.try_send(format!("{cancel}\n")));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn messages(text: &str) -> Vec<EditorMessage> {
        let mut input = Cursor::new(text.as_bytes());
        std::iter::from_fn(|| next_message(&mut input)).collect()
    }

    #[test]
    fn lines_are_requests_notifications_answers_or_errors() {
        let check = |line: &str, expect: &str| {
            let found = match &messages(line)[..] {
                [EditorMessage::Request { id, method, params }] => {
                    format!("{method} {id} {params}")
                }
                [EditorMessage::Notification { method, params }] => format!("{method} {params}"),
                [EditorMessage::Answer { id, result: Ok(result) }] => format!("{id} = {result}"),
                [EditorMessage::Answer { id, result: Err(error) }] => {
                    format!("{id} ! {}", error.code)
                }
                [EditorMessage::Invalid { id, error }] => format!("{id} ? {}", error.code),
                [] => "nothing".to_owned(),
                _ => "several".to_owned(),
            };
            assert_eq!(found, expect, "{line}");
        };
        check(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":1}}"#, r#"a 1 {"b":1}"#);
        check(r#"{"id":"x","method":"a"}"#, r#"a "x" null"#);
        check(r#"{"method":"a","params":{}}"#, "a {}");
        check(r#"{"id":7,"result":{"c":2}}"#, r#"7 = {"c":2}"#);
        check(r#"{"id":7,"result":null}"#, "7 = null");
        check(r#"{"id":7,"error":{"code":-1,"message":"no"}}"#, "7 ! -1");
        check(r#"{"id":7,"error":5}"#, "7 ! -32603");
        check("{\"id\":", "null ? -32700");
        check("hello\n", "null ? -32700");
        check("[]", "null ? -32600");
        check("{}", "null ? -32600");
        check(r#"{"id":3,"method":5}"#, "3 ? -32600");
        check(r#"{"id":{},"method":"a"}"#, "null ? -32600");
        check("\n  \r\n", "nothing");
    }

    #[test]
    fn line_that_is_too_long_is_skipped_to_its_end() {
        let text = format!("{}\n{{\"method\":\"a\"}}\n", " x".repeat(MAX_FRAME_BYTES / 2 + 5));
        let found = messages(&text);
        let [EditorMessage::Invalid { error, .. }, EditorMessage::Notification { method, .. }] =
            &found[..]
        else {
            panic!("{} messages", found.len())
        };
        assert_eq!((error.code, method.as_str()), (code::INVALID_REQUEST, "a"));
    }
}
