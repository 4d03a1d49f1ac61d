//! A subscription to events that continues over restarts of the daemon.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::Event;
use ollm_protocol::event::EventCursor;
use ollm_protocol::methods::event::EventSubscribeParams;
use tokio::time::sleep;

use super::async_client::EventStream;
use super::reconnecting::ReconnectingClient;
use crate::error::ClientError;

/// The pause before another attempt to subscribe.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Events of the daemon, without an end. After a lost connection the subscription continues behind the last event; an event
/// of the kind `resync` says that some were missed, as after a restart of the daemon.
#[derive(Debug)]
pub struct EventFeed {
    client: Arc<ReconnectingClient>,
    params: EventSubscribeParams,
    stream: Option<EventStream>,
}

impl EventFeed {
    /// Returns a feed, which subscribes with the first [`Self::next`].
    #[must_use]
    pub fn new(client: Arc<ReconnectingClient>, params: EventSubscribeParams) -> Self {
        Self { client, params, stream: None }
    }

    /// Waits for the next event. Never starts the daemon: waits until somebody does. Events of kinds that this version does
    /// not know are left out.
    ///
    /// **Cancel safety**: no event is lost.
    pub async fn next(&mut self) -> Event {
        loop {
            let Some(stream) = &mut self.stream else {
                match self.subscribe().await {
                    Ok(stream) => self.stream = Some(stream),
                    Err(_) => sleep(RETRY_PAUSE).await,
                }
                continue;
            };
            match stream.next().await {
                Some(Ok(event)) => {
                    let (epoch, event_seq) = (event.epoch.clone(), event.event_seq);
                    self.params.since = Some(EventCursor { epoch, event_seq });
                    return event;
                }
                Some(Err(_)) => {}
                None => {
                    self.stream = None;
                    // A daemon that ends each subscription at once must not keep this busy.
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn subscribe(&self) -> Result<EventStream, ClientError> {
        self.client.client_of_running().await?.subscribe_events(&self.params).await
    }
}
