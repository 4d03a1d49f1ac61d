//! A chat turn that is followed to its end, also over a lost connection.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use tokio::time::{Instant, sleep};

use super::async_client::EventStream;
use super::reconnecting::ReconnectingClient;
use crate::error::ClientError;

/// The most times that a turn begins again: a daemon that breaks at the same message each time is not asked forever.
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
    stream: EventStream<ChatEvent>,
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

impl FollowedTurn {
    /// Starts a turn. Params without a key get one, so that a message is recorded once however often it is sent.
    ///
    /// **Errors**: as [`AsyncClient::send_chat`](super::AsyncClient::send_chat).
    pub async fn start(
        client: Arc<ReconnectingClient>,
        mut params: ChatSendParams,
    ) -> Result<Self, ClientError> {
        params.key.get_or_insert_with(new_key);
        let stream = client.client().await?.send_chat(&params).await?;
        Ok(Self { client, params, stream, n_restarts: 0, has_ended: false })
    }

    /// Waits for the next step; `None` after the last event. Events of kinds that this version does not know are left out.
    ///
    /// **Errors**: the connection was lost and the turn could not begin again. It is the last step.
    ///
    /// **Cancel safety**: no event is lost. A turn that begins again while this is dropped may have begun.
    pub async fn next(&mut self) -> Option<Result<TurnStep, ClientError>> {
        while !self.has_ended {
            match self.stream.next().await {
                Some(Ok(event)) => {
                    self.has_ended =
                        matches!(event, ChatEvent::Done { .. } | ChatEvent::Error { .. });
                    return Some(Ok(TurnStep::Event(Box::new(event))));
                }
                Some(Err(_)) => {}
                None => {
                    let restarted = self.restart().await;
                    self.has_ended = restarted.is_err();
                    return Some(restarted.map(|()| TurnStep::Restarted));
                }
            }
        }
        None
    }

    async fn restart(&mut self) -> Result<(), ClientError> {
        if self.n_restarts >= MAX_RESTARTS {
            let method = "chat.send".to_owned();
            return Err(ClientError::Closed { method });
        }
        let deadline = Instant::now() + BUSY_LIMIT;
        loop {
            match self.client.client().await?.send_chat(&self.params).await {
                Ok(stream) => {
                    self.stream = stream;
                    self.n_restarts += 1;
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

    #[test]
    fn turn_begins_again_with_its_key_when_the_connection_is_lost() {
        let home = TestHome::new();
        let keys = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&keys);
        let _server = home.serve_connections(2, move |request, stream| {
            if request["method"] == "daemon.hello" {
                let limits =
                    json!({ "frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1 });
                let hello = json!({ "protocol": PROTOCOL_VERSION, "schemaRevision": 1,
                    "version": "9", "pid": 1, "epoch": "e", "limits": limits });
                return reply(stream, request, &hello);
            }
            assert_eq!(request["method"], "chat.send");
            let mut keys = seen.lock().unwrap();
            keys.push(request["params"]["key"].clone());
            reply(stream, request, &json!(1));
            let event = match keys.len() {
                1 => json!({ "kind": "delta", "text": "half an ans" }),
                _ => json!({ "kind": "done", "seq": 2, "finishReason": "stop" }),
            };
            let params = json!({ "subscription": 1, "result": event });
            let event = json!({ "jsonrpc": "2.0", "method": "chat.event", "params": params });
            send(stream, &event);
            if keys.len() == 1 {
                stream.shutdown(Shutdown::Both).unwrap();
            }
        });
        let client = Arc::new(ReconnectingClient::new(home.connector()));
        let params = ChatSendParams::new(SESSION_ID.parse().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let steps = runtime.block_on(async {
            let mut turn = FollowedTurn::start(client, params).await.unwrap();
            let mut steps = Vec::new();
            while let Some(step) = turn.next().await {
                steps.push(match step.unwrap() {
                    TurnStep::Restarted => "restarted".to_owned(),
                    TurnStep::Event(event) => {
                        serde_json::to_value(event).unwrap()["kind"].as_str().unwrap().to_owned()
                    }
                });
            }
            steps
        });
        assert_eq!(steps, ["delta", "restarted", "done"]);
        let keys: Vec<Value> = keys.lock().unwrap().clone();
        assert!(keys[0].is_string() && keys[0] == keys[1], "{keys:?}");
    }
}
