//! A call that works for long: what happens meanwhile is told on the same connection.

use std::time::{Duration, Instant};

use ollm_protocol::Event;
use ollm_protocol::method::{EventSubscribe, Method};
use ollm_protocol::methods::event::EventSubscribeParams;
use serde_json::value::RawValue;

use super::BlockingClient;
use crate::error::ClientError;

/// How often somebody who waits is asked whether to go on waiting, where nothing happens.
const BEAT: Duration = Duration::from_millis(100);

/// What comes on a connection on which a call waits for its reply.
pub(super) enum Came {
    /// The reply.
    Reply(Box<RawValue>),
    /// An event of the subscription.
    Event(Box<RawValue>),
    /// Nothing that belongs to either.
    Other,
}

impl BlockingClient {
    /// Calls a method and tells events until its reply comes. `told` is asked whenever one came, and at each beat
    /// without one, whether the reply is still wanted; `None` where it is not. The connection ends with the call,
    /// which ends what the daemon does for whoever left.
    ///
    /// **Errors**: as [`BlockingClient::call`].
    pub(crate) fn call_told<M: Method>(
        mut self,
        params: &M::Params,
        events: &EventSubscribeParams,
        wait: Duration,
        told: &mut dyn FnMut(Option<&Event>) -> bool,
    ) -> Result<Option<Box<RawValue>>, ClientError> {
        let _subscription = self.call_raw(EventSubscribe::NAME, events)?;
        self.set_timeout(wait);
        let deadline = Instant::now() + wait;
        let id = self.begin(M::NAME, params, deadline)?;
        while told(None) {
            let beat = deadline.min(Instant::now() + BEAT);
            match self.next(M::NAME, id, beat) {
                Ok(Came::Reply(reply)) => return Ok(Some(reply)),
                Ok(Came::Event(raw)) => {
                    // One that this version does not know is none to tell.
                    let event = serde_json::from_str::<Event>(raw.get()).ok();
                    if event.is_some_and(|event| !told(Some(&event))) {
                        return Ok(None);
                    }
                }
                Ok(Came::Other) => {}
                Err(ClientError::Timeout { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
