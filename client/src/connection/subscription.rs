//! Subscriptions without a runtime. Each has its connection for itself.

use ollm_protocol::method::{ChatSend, EventSubscribe, Method};
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::event::EventSubscribeParams;
use serde_json::value::RawValue;

use super::BlockingClient;
use super::blocking::decode;
use crate::error::ClientError;

/// A subscription to events.
#[derive(Debug)]
pub struct Events {
    client: BlockingClient,
}

/// A turn that is told as it happens. Dropping it cancels the turn, unless that is detached.
#[derive(Debug)]
pub struct ChatEvents {
    client: BlockingClient,
}

impl BlockingClient {
    /// Subscribes to events; the connection serves nothing else from here on.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub fn subscribe_events(
        mut self,
        params: &EventSubscribeParams,
    ) -> Result<Events, ClientError> {
        let _subscription = self.call_raw(EventSubscribe::NAME, params)?;
        Ok(Events { client: self })
    }

    /// Begins a turn; the connection serves nothing else from here on.
    ///
    /// **Errors**: as [`BlockingClient::call`]. Nothing is recorded then. What fails later is told by
    /// [`ChatEvent::Error`].
    pub fn send_chat(mut self, params: &ChatSendParams) -> Result<ChatEvents, ClientError> {
        let _subscription = self.call_raw(ChatSend::NAME, params)?;
        Ok(ChatEvents { client: self })
    }
}

impl Events {
    /// Waits for the next event and returns it as it was sent; `None` when the daemon ended the stream.
    ///
    /// **Errors**: [`ClientError::Closed`] when the connection ended without a word.
    pub fn next_raw(&mut self) -> Result<Option<Box<RawValue>>, ClientError> {
        self.client.notification(EventSubscribe::NAME)
    }
}

impl ChatEvents {
    /// Waits for the next event and returns it as it was sent; `None` when the daemon ended the stream.
    ///
    /// **Errors**: [`ClientError::Closed`] when the connection ended without a word.
    pub fn next_raw(&mut self) -> Result<Option<Box<RawValue>>, ClientError> {
        self.client.notification(ChatSend::NAME)
    }

    /// Waits for the next event; `None` when the daemon ended the stream.
    ///
    /// **Errors**: as [`ChatEvents::next_raw`], and [`ClientError::BadReply`] for an event that this version
    /// cannot read; the next one may be fine.
    pub fn next_event(&mut self) -> Result<Option<ChatEvent>, ClientError> {
        self.next_raw()?.map(|raw| decode(ChatSend::NAME, &raw)).transpose()
    }
}
