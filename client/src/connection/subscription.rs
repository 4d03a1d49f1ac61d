//! Events for the client without a runtime: subscriptions, each on a connection of its own, and calls that report
//! events until their reply arrives.

use std::time::{Duration, Instant};

use ollm_protocol::method::{ChatSend, EventSubscribe};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, Method};
use serde_json::value::RawValue;

use super::blocking::{BlockingClient, Incoming, decode};
use crate::error::ClientError;

/// The longest time between two checks whether a reply is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A subscription to events.
#[derive(Debug)]
pub struct BlockingEvents {
    client: BlockingClient,
}

/// The events of a chat turn. Dropping it cancels the turn, unless the turn is detached.
#[derive(Debug)]
pub struct BlockingChatEvents {
    client: BlockingClient,
}

impl BlockingClient {
    /// Subscribes to events; the connection serves nothing else from then on.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn subscribe_events(
        mut self,
        params: &EventSubscribeParams,
    ) -> Result<BlockingEvents, ClientError> {
        let _subscription = self.call_raw(EventSubscribe::NAME, params)?;
        Ok(BlockingEvents { client: self })
    }

    /// Starts a chat turn; the connection serves nothing else from then on.
    ///
    /// **Errors**: as [`BlockingClient::call`]; nothing was recorded then. Later failures arrive as
    /// [`ChatEvent::Error`].
    pub fn send_chat(mut self, params: &ChatSendParams) -> Result<BlockingChatEvents, ClientError> {
        let _subscription = self.call_raw(ChatSend::NAME, params)?;
        Ok(BlockingChatEvents { client: self })
    }

    /// Calls a method and passes events to `on_event` until the reply arrives. `on_event` is also called with `None`
    /// at least every 100 ms; it returns whether the reply is still wanted, and the result is `None` if not. Either way
    /// the connection is closed, which cancels whatever the daemon does for this call.
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
        let id = self.send(M::NAME, params, deadline)?;
        while on_event(None) {
            let next_check = deadline.min(Instant::now() + CHECK_INTERVAL);
            match self.next_message(M::NAME, id, next_check) {
                Ok(Incoming::Reply(reply)) => return Ok(Some(reply)),
                Ok(Incoming::Event(raw)) => {
                    // Ignores unknown event kinds.
                    let event = serde_json::from_str::<Event>(raw.get()).ok();
                    if event.is_some_and(|event| !on_event(Some(&event))) {
                        return Ok(None);
                    }
                }
                Ok(Incoming::Other) => {}
                Err(ClientError::Timeout { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl BlockingEvents {
    /// Waits for the next event and returns it as it was sent; `None` if the daemon ended the stream.
    ///
    /// **Errors**: [`ClientError::Closed`] if the connection was closed.
    pub fn next_raw(&mut self) -> Result<Option<Box<RawValue>>, ClientError> {
        self.client.next_event(EventSubscribe::NAME, None)
    }
}

impl BlockingChatEvents {
    /// Waits for the next event and returns it as it was sent; `None` if the daemon ended the stream.
    ///
    /// **Errors**: [`ClientError::Closed`] if the connection was closed.
    pub fn next_raw(&mut self) -> Result<Option<Box<RawValue>>, ClientError> {
        self.client.next_event(ChatSend::NAME, None)
    }

    /// Waits for the next event; `None` if the daemon ended the stream.
    ///
    /// **Errors**: as [`BlockingChatEvents::next_raw`], and [`ClientError::BadReply`] for an event that this version
    /// cannot decode; later events may be readable.
    pub fn next_event(&mut self) -> Result<Option<ChatEvent>, ClientError> {
        self.next_raw()?.map(|raw| decode(ChatSend::NAME, &raw)).transpose()
    }

    /// Waits for the next event until a deadline.
    ///
    /// **Errors**: as [`BlockingChatEvents::next_event`], [`ClientError::Timeout`] at the deadline, and
    /// [`ClientError::Closed`] also if the daemon ended the stream.
    pub(crate) fn next_event_before(
        &mut self,
        deadline: Instant,
    ) -> Result<ChatEvent, ClientError> {
        match self.client.next_event(ChatSend::NAME, Some(deadline))? {
            Some(raw) => decode(ChatSend::NAME, &raw),
            None => Err(ClientError::Closed { method: ChatSend::NAME.to_owned() }),
        }
    }
}
