//! The queue of each model: which call may use the model, and in which order.
//!
//! A server queues requests for a loaded model without limit and in its own order. So the daemon sends one request at a
//! time to each model: chats first, then background calls, each in the order of arrival.
//! Must not know the calls themselves.
//!
//! **Invariants**: one ticket per model is admitted at a time; a background call is not admitted while a chat waits; a
//! dropped ticket, waiting or admitted, leaves the queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::info::canonical_name;

/// The urgency of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// A user waits for the answer.
    Chat,
    /// A summary, or another call that is not a chat.
    Background,
}

/// The queues of all models; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues(Arc<Mutex<ModelQueueState>>);

#[derive(Debug, Default)]
struct ModelQueueState {
    last_id: u64,
    /// The tickets of each model, of which the first one is admitted. No list is empty.
    waiters: HashMap<String, Vec<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    priority: Priority,
    changed: Arc<Notify>,
}

/// A position in a model's queue.
#[derive(Debug)]
#[must_use = "dropping the ticket leaves the queue"]
pub(crate) struct Ticket {
    queues: Queues,
    model: String,
    id: u64,
    changed: Arc<Notify>,
}

impl Queues {
    /// Enters the queue of a model.
    ///
    /// A chat is inserted after the other chats, but never before the admitted ticket.
    pub(crate) fn enter(&self, model: &str, priority: Priority) -> Ticket {
        let model = canonical_name(model);
        let changed = Arc::new(Notify::new());
        let mut state = self.0.lock();
        state.last_id += 1;
        let id = state.last_id;
        let waiters = state.waiters.entry(model.clone()).or_default();
        let n_before =
            waiters.iter().skip(1).take_while(|waiter| waiter.priority <= priority).count();
        let at = if waiters.is_empty() { 0 } else { 1 + n_before };
        waiters.insert(at, Waiter { id, priority, changed: Arc::clone(&changed) });
        // The tickets behind the new one have moved back.
        waiters[at + 1..].iter().for_each(|waiter| waiter.changed.notify_one());
        drop(state);
        Ticket { queues: self.clone(), model, id, changed }
    }

    /// Returns whether a call of a model is running or waits.
    pub(crate) fn is_busy(&self, model: &str) -> bool {
        self.0.lock().waiters.contains_key(&canonical_name(model))
    }
}

impl Ticket {
    /// Returns the number of tickets before this one; 0 if it is admitted.
    pub(crate) fn n_ahead(&self) -> usize {
        let state = self.queues.0.lock();
        let waiters = state.waiters.get(&self.model).map_or(&[][..], Vec::as_slice);
        waiters.iter().position(|waiter| waiter.id == self.id).unwrap_or(0)
    }

    /// Returns the priority of the ticket that is admitted.
    pub(crate) fn admitted_priority(&self) -> Option<Priority> {
        let state = self.queues.0.lock();
        state.waiters.get(&self.model)?.first().map(|waiter| waiter.priority)
    }

    /// Waits until this ticket is admitted; it stays admitted until it is dropped. Cancel safe.
    pub(crate) async fn admitted(&self) {
        while self.n_ahead() > 0 {
            self.changed().await;
        }
    }

    /// Waits until the position of this ticket may have changed. Cancel safe.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns whether a chat waits behind this ticket, in which case a background call may give way.
    pub(crate) fn chat_waits(&self) -> bool {
        let state = self.queues.0.lock();
        state.waiters.get(&self.model).is_some_and(|waiters| {
            waiters.iter().any(|other| other.priority == Priority::Chat && other.id != self.id)
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queues.0.lock();
        let Some(waiters) = state.waiters.get_mut(&self.model) else { return };
        waiters.retain(|waiter| waiter.id != self.id);
        // A ticket that is not waiting right now finds the notification later.
        waiters.iter().for_each(|waiter| waiter.changed.notify_one());
        if waiters.is_empty() {
            state.waiters.remove(&self.model);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_admitted(ticket: &Ticket) -> bool {
        let wait = pin!(ticket.admitted());
        wait.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn chats_are_admitted_before_background_calls_in_order_of_arrival() {
        let queues = Queues::default();
        let running = queues.enter("m", Priority::Background);
        let second = queues.enter("m:latest", Priority::Background);
        let first_chat = queues.enter("m", Priority::Chat);
        let second_chat = queues.enter("m", Priority::Chat);
        let elsewhere = queues.enter("other", Priority::Background);
        assert!(is_admitted(&running) && is_admitted(&elsewhere));
        assert!(running.chat_waits() && !elsewhere.chat_waits());
        assert_eq!((first_chat.n_ahead(), second_chat.n_ahead(), second.n_ahead()), (1, 2, 3));
        assert_eq!(second_chat.admitted_priority(), Some(Priority::Background));
        drop(running);
        assert!(is_admitted(&first_chat));
        assert!(!is_admitted(&second_chat) && !is_admitted(&second));
        drop(first_chat);
        assert!(is_admitted(&second_chat) && !is_admitted(&second));
        drop(second_chat);
        assert!(is_admitted(&second));
        drop(second);
        assert!(queues.0.lock().waiters.keys().eq(["other:latest"]));
    }

    #[test]
    fn dropped_waiting_ticket_leaves_the_queue() {
        let queues = Queues::default();
        let running = queues.enter("m", Priority::Chat);
        let waiting = queues.enter("m", Priority::Chat);
        let last = queues.enter("m", Priority::Chat);
        assert!(!is_admitted(&waiting));
        drop(waiting);
        assert_eq!(last.n_ahead(), 1);
        drop(running);
        assert!(is_admitted(&last));
    }

    #[tokio::test]
    async fn waiting_ticket_is_woken() {
        let queues = Queues::default();
        let running = queues.enter("m", Priority::Chat);
        let waiting = queues.enter("m", Priority::Background);
        let release = async { drop(running) };
        tokio::join!(waiting.admitted(), release);
        assert_eq!(waiting.n_ahead(), 0);
    }
}
