//! Events for the client without a runtime: subscriptions, each on a connection of its own, and calls that report
//! events until their reply arrives.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use ollm_protocol::method::{ChatSend, EventSubscribe};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, Method};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::blocking::{BlockingClient, Incoming, decode};
use crate::error::ClientError;

/// The longest time between two checks whether a reply is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A subscription to events of type `E`. Dropping it closes the connection, which cancels a chat turn unless the turn is
/// detached.
#[derive(Debug)]
pub struct BlockingEvents<E = Event> {
    client: BlockingClient,
    method: &'static str,
    event: PhantomData<fn() -> E>,
}

impl BlockingClient {
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

    fn subscribe<M: Method, E>(
        mut self,
        params: &M::Params,
    ) -> Result<BlockingEvents<E>, ClientError> {
        let _subscription = self.call_raw(M::NAME, params)?;
        Ok(BlockingEvents { client: self, method: M::NAME, event: PhantomData })
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
            match self.next_message(M::NAME, Some(id), Some(next_check)) {
                Ok(Incoming::Reply(reply)) => return Ok(Some(reply)),
                Ok(Incoming::Event(raw)) => {
                    // Ignores unknown event kinds.
                    let event = serde_json::from_str::<Event>(raw.get()).ok();
                    if event.is_some_and(|event| !on_event(Some(&event))) {
                        return Ok(None);
                    }
                }
                Ok(Incoming::EndOfEvents | Incoming::Other) => {}
                Err(ClientError::Timeout { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl<E: DeserializeOwned> BlockingEvents<E> {
    fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Box<RawValue>>, ClientError> {
        loop {
            match self.client.next_message(self.method, None, deadline)? {
                Incoming::Event(event) => return Ok(Some(event)),
                Incoming::EndOfEvents => return Ok(None),
                Incoming::Reply(_) | Incoming::Other => {}
            }
        }
    }

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
}
