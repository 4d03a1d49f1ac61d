//! A chat turn that is followed to its end, also over a lost connection.
//!
//! A detached turn goes on without its client, which joins it again by `chat.follow` and is shown what it missed. Any other
//! turn ends with its connection and begins again.

use std::collections::VecDeque;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ollm_protocol::Seq;
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams, FollowEvent};
use tokio::time::{Instant, sleep};

use super::async_client::EventStream;
use super::reconnecting::ReconnectingClient;
use crate::error::ClientError;

/// The most times that a connection is made again: a daemon that breaks at the same message each time is not asked forever.
const MAX_RESTARTS: u32 = 3;
/// The longest wait for the end of a turn that goes on without its client. A model that answers longer than that is rare.
const BUSY_LIMIT: Duration = Duration::from_secs(600);
/// The pause between two attempts to send a message to a session whose turn still runs.
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// A chat turn. Dropping it cancels the turn, unless its params say `detach`.
#[derive(Debug)]
pub struct FollowedTurn {
    client: Arc<ReconnectingClient>,
    params: ChatSendParams,
    stream: TurnStream,
    shown: ShownTurn,
    /// The steps that the caller has not got yet.
    steps: VecDeque<TurnStep>,
    n_restarts: u32,
    has_ended: bool,
}

/// A step of a [`FollowedTurn`].
#[derive(Clone, Debug, PartialEq)]
pub enum TurnStep {
    /// An event of the turn. [`ChatEvent::Done`] or [`ChatEvent::Error`] is the last one.
    Event(Box<ChatEvent>),
    /// The connection was lost, and the turn begins again: the message is not recorded twice, and the answer so far is left
    /// behind. If the model had answered completely, that answer follows.
    Restarted,
}

#[derive(Debug)]
enum TurnStream {
    Started(EventStream<ChatEvent>),
    Joined(EventStream<FollowEvent>),
}

/// The part of a turn that a reader was shown.
#[derive(Debug, Default)]
pub(crate) struct ShownTurn {
    /// The user's message, once the turn was accepted.
    message: Option<Option<Seq>>,
    /// The newest answer so far.
    thinking: String,
    text: String,
    /// Set if that answer has ended, so that the next piece belongs to another one.
    is_whole: bool,
    /// The message whose tool calls were shown last.
    calls: Option<Seq>,
}

impl FollowedTurn {
    /// Starts a turn. Params without a key get one, so that a message is recorded once however often it is sent.
    ///
    /// **Errors**: as [`AsyncClient::send_chat`](super::AsyncClient::send_chat).
    pub async fn start(
        client: Arc<ReconnectingClient>,
        mut params: ChatSendParams,
    ) -> Result<Self, ClientError> {
        params.key.get_or_insert_with(new_key);
        let stream = TurnStream::Started(client.client().await?.send_chat(&params).await?);
        let (shown, steps) = (ShownTurn::default(), VecDeque::new());
        Ok(Self { client, params, stream, shown, steps, n_restarts: 0, has_ended: false })
    }

    /// Waits for the next step; `None` after the last event. Events of kinds that this version does not know are left out.
    ///
    /// **Errors**: the connection was lost and the turn could not begin again. It is the last step.
    ///
    /// **Cancel safety**: no event is lost. A turn that begins again while this is dropped may have begun.
    pub async fn next(&mut self) -> Option<Result<TurnStep, ClientError>> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(Ok(step));
            }
            if self.has_ended {
                return None;
            }
            let event = match &mut self.stream {
                TurnStream::Started(stream) => {
                    stream.next().await.map(|event| event.map(FollowEvent::Event))
                }
                TurnStream::Joined(stream) => stream.next().await,
            };
            match event {
                Some(Ok(event)) => self.add(event),
                Some(Err(_)) => {}
                None => {
                    if let Err(error) = self.reconnect().await {
                        self.has_ended = true;
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    fn add(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Running { thinking, text, answer_seq, .. } => {
                self.steps.extend(self.shown.catch_up(thinking, text, answer_seq));
            }
            FollowEvent::Event(event) => {
                self.has_ended = matches!(event, ChatEvent::Done { .. } | ChatEvent::Error { .. });
                if self.shown.add(&event) {
                    self.steps.push_back(TurnStep::Event(Box::new(event)));
                }
            }
        }
    }

    /// Joins the turn if it goes on, else begins it again.
    async fn reconnect(&mut self) -> Result<(), ClientError> {
        if self.n_restarts >= MAX_RESTARTS {
            let method = "chat.send".to_owned();
            return Err(ClientError::Closed { method });
        }
        self.n_restarts += 1;
        if self.params.detach && self.join().await {
            return Ok(());
        }
        let deadline = Instant::now() + BUSY_LIMIT;
        loop {
            match self.client.client().await?.send_chat(&self.params).await {
                Ok(stream) => {
                    self.stream = TurnStream::Started(stream);
                    self.shown = ShownTurn::default();
                    self.steps.push_back(TurnStep::Restarted);
                    return Ok(());
                }
                // Only the connection was lost, and the turn goes on without it.
                Err(error) if error.is_conflict() && Instant::now() < deadline => {
                    sleep(BUSY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Joins the turn; returns false if it is not running.
    async fn join(&mut self) -> bool {
        let Ok(client) = self.client.client().await else { return false };
        let Ok(mut stream) = client.follow_chat(self.params.session_id).await else { return false };
        let Some(Ok(first)) = stream.next().await else { return false };
        // Another turn may have begun.
        let is_same =
            matches!(&first, FollowEvent::Running { seq, .. } if self.shown.message == Some(*seq));
        if is_same {
            self.stream = TurnStream::Joined(stream);
            self.add(first);
        }
        is_same
    }
}

impl ShownTurn {
    /// Notes an event; returns false if the reader knows it.
    pub(crate) fn add(&mut self, event: &ChatEvent) -> bool {
        match event {
            ChatEvent::Accepted { seq, .. } => self.message = Some(*seq),
            ChatEvent::Delta { text, thinking } => {
                if std::mem::take(&mut self.is_whole) {
                    (self.thinking, self.text) = (String::new(), String::new());
                }
                self.thinking.push_str(thinking.as_deref().unwrap_or_default());
                self.text.push_str(text.as_deref().unwrap_or_default());
            }
            ChatEvent::Usage { .. } => self.is_whole = true,
            ChatEvent::ToolCalls { seq, by: None, .. } => {
                return self.calls.replace(*seq) != Some(*seq);
            }
            _ => {}
        }
        true
    }

    /// Takes over the newest answer, and returns the steps that show the part of it that is missing.
    pub(crate) fn catch_up(
        &mut self,
        thinking: String,
        text: String,
        answer_seq: Option<Seq>,
    ) -> Vec<TurnStep> {
        let mut steps = Vec::new();
        if self.is_whole && answer_seq.is_none() {
            (self.thinking, self.text) = (String::new(), String::new());
        }
        let (mut n_thinking, mut n_text) = (self.thinking.len(), self.text.len());
        if !thinking.starts_with(&self.thinking) || !text.starts_with(&self.text) {
            // What was shown is of an earlier answer, or of one that was left behind.
            if !self.is_whole {
                steps.push(TurnStep::Restarted);
            }
            (n_thinking, n_text) = (0, 0);
        }
        let mut missing = |text: Option<&str>, thinking: Option<&str>| {
            if text.or(thinking).is_some_and(|piece| !piece.is_empty()) {
                let (text, thinking) = (text.map(str::to_owned), thinking.map(str::to_owned));
                steps.push(TurnStep::Event(Box::new(ChatEvent::Delta { text, thinking })));
            }
        };
        missing(None, Some(&thinking[n_thinking..]));
        missing(Some(&text[n_text..]), None);
        self.is_whole = answer_seq.is_some();
        (self.thinking, self.text) = (thinking, text);
        steps
    }
}

/// Returns an idempotency key that no other call has.
fn new_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("turn-{:x}-{:x}-{number:x}", since.as_nanos(), process::id())
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::sync::Mutex;

    use ollm_protocol::PROTOCOL_VERSION;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{SESSION_ID, TestHome, reply, send};

    /// Runs a turn against a small server, which closes the first connection behind its events. Returns the steps, and the
    /// params of the calls.
    fn steps_of(detach: bool, connections: Vec<Vec<Value>>) -> (Vec<String>, Vec<(String, Value)>) {
        let home = TestHome::new();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let _server = home.serve_connections(connections.len(), move |request, stream| {
            if request["method"] == "daemon.hello" {
                let limits =
                    json!({ "frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1 });
                let hello = json!({ "protocol": PROTOCOL_VERSION, "schemaRevision": 1,
                    "version": "9", "pid": 1, "epoch": "e", "limits": limits });
                return reply(stream, request, &hello);
            }
            let mut calls = seen.lock().unwrap();
            let method = request["method"].as_str().unwrap().to_owned();
            if !method.contains("un") {
                calls.push((method, request["params"].clone()));
            }
            reply(stream, request, &json!(1));
            for event in connections.get(calls.len() - 1).into_iter().flatten() {
                let params = json!({ "subscription": 1, "result": event });
                let event = json!({ "jsonrpc": "2.0", "method": "chat.event", "params": params });
                send(stream, &event);
            }
            if calls.len() == 1 {
                stream.shutdown(Shutdown::Both).unwrap();
            }
        });
        let client = Arc::new(ReconnectingClient::new(home.connector()));
        let params = ChatSendParams { detach, ..ChatSendParams::new(SESSION_ID.parse().unwrap()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let steps = runtime.block_on(async {
            let mut turn = FollowedTurn::start(client, params).await.unwrap();
            let mut steps = Vec::new();
            while let Some(step) = turn.next().await {
                steps.push(match step.unwrap() {
                    TurnStep::Restarted => "restarted".to_owned(),
                    TurnStep::Event(event) => {
                        let event = serde_json::to_value(event).unwrap();
                        let shown = [&event["kind"], &event["thinking"], &event["text"]];
                        let shown: Vec<_> =
                            shown.iter().filter_map(|value| value.as_str()).collect();
                        shown.join(" ")
                    }
                });
            }
            steps
        });
        let calls = calls.lock().unwrap().clone();
        (steps, calls)
    }

    fn delta(text: &str) -> Value {
        json!({ "kind": "delta", "text": text })
    }

    fn done() -> Value {
        json!({ "kind": "done", "seq": 2, "finishReason": "stop" })
    }

    #[test]
    fn turn_begins_again_with_its_key_when_the_connection_is_lost() {
        let (steps, calls) = steps_of(false, vec![vec![delta("half an ans")], vec![done()]]);
        assert_eq!(steps, ["delta half an ans", "restarted", "done"]);
        let keys: Vec<&Value> = calls.iter().map(|(_, params)| &params["key"]).collect();
        assert!(keys.len() == 2 && keys[0].is_string() && keys[0] == keys[1], "{keys:?}");
    }

    #[test]
    fn detached_turn_goes_on_where_the_connection_was_lost() {
        let accepted = json!({ "kind": "accepted", "seq": 1, "model": "m" });
        let running = |fields: Value| {
            let mut event = json!({ "kind": "running", "model": "m", "seq": 1,
                "startedAt": "2026-01-27T10:00:00Z" });
            fields
                .as_object()
                .unwrap()
                .iter()
                .for_each(|(name, value)| event[name] = value.clone());
            event
        };
        let calls = json!({ "kind": "toolCalls", "seq": 2, "calls": [], "timeoutMs": 9 });
        let usage = json!({ "kind": "usage", "usage": {
            "contextTokens": 1, "promptLimit": 2, "countKind": "exact", "contextSize": 3 } });
        let check = |before: &[Value], joined: Value, after: &[Value], expect: &[&str]| {
            let before = [&accepted].into_iter().chain(before).cloned().collect();
            let after = [&joined].into_iter().chain(after).cloned().chain([done()]).collect();
            let (steps, methods) = steps_of(true, vec![before, after]);
            let expect: Vec<_> = ["accepted"].iter().chain(expect).chain(&["done"]).collect();
            assert_eq!(steps.iter().collect::<Vec<_>>(), expect);
            assert_eq!(methods[1], ("chat.follow".to_owned(), json!({ "sessionId": SESSION_ID })));
        };
        let half = running(json!({ "thinking": "hm", "text": "half an answer" }));
        let steps = ["delta half an ans", "delta hm", "delta wer", "delta ."];
        check(&[delta("half an ans")], half.clone(), &[delta(".")], &steps);
        // A client that falls behind gets the state again.
        let steps = ["delta half", "delta hm", "delta  an answer"];
        check(&[delta("half")], half.clone(), std::slice::from_ref(&half), &steps);
        // Calls that are known are not shown again, and the answer behind them is another one.
        let pending = running(json!({ "text": "look", "answerSeq": 2 }));
        let before = [delta("look"), usage.clone(), calls.clone()];
        check(
            &before,
            pending,
            std::slice::from_ref(&calls),
            &["delta look", "usage", "toolCalls"],
        );
        let steps = ["delta look", "usage", "toolCalls", "delta looking"];
        check(&before, running(json!({ "text": "looking" })), &[], &steps);
        let steps = ["delta other", "restarted", "delta hm", "delta half an answer"];
        check(&[delta("other")], half, &[], &steps);
    }
}
