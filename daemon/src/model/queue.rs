//! The queue of each model: which call may use the model, and in which order.
//!
//! A server queues requests for a loaded model without limit and in its own order. So the daemon sends each model as many
//! requests at a time as its server answers at the same time, which is one unless the server or the configuration says
//! otherwise: chats first, then background calls, each in the order of arrival.
//! Must not know the calls themselves.
//!
//! **Invariants**: at most as many tickets per model are admitted as it has slots; a background call is not admitted while
//! a chat waits; a dropped ticket, waiting or admitted, leaves the queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::address::ModelNames;

/// The urgency of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// A user waits for the answer.
    Chat,
    /// A summary, or another call that is not a chat.
    Background,
}

/// The queues of all models; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Queues {
    names: ModelNames,
    state: Arc<Mutex<ModelQueueState>>,
}

#[derive(Debug, Default)]
struct ModelQueueState {
    last_id: u64,
    /// The tickets of each model, of which the first ones are admitted, one for each slot. No list is empty.
    waiters: HashMap<String, Vec<Waiter>>,
    /// The numbers of slots that are not one.
    slots: HashMap<String, usize>,
}

impl ModelQueueState {
    fn n_slots(&self, model: &str) -> usize {
        self.slots.get(model).copied().unwrap_or(1)
    }

    fn waiters(&self, model: &str) -> &[Waiter] {
        self.waiters.get(model).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    priority: Priority,
    changed: Arc<Notify>,
}

/// A position in a model's queue.
#[must_use = "dropping the ticket leaves the queue"]
pub(crate) struct Ticket {
    queues: Queues,
    model: String,
    id: u64,
    changed: Arc<Notify>,
}

impl Queues {
    /// Creates empty queues.
    pub(super) fn new(names: ModelNames) -> Self {
        Self { names, state: Arc::default() }
    }

    /// Sets the number of requests that the server of a model answers at the same time.
    pub(super) fn set_slots(&self, model: &str, n_slots: u32) {
        let (mut state, model) = (self.state.lock(), self.names.key(model));
        let n_slots = usize::try_from(n_slots.max(1)).unwrap_or(usize::MAX);
        let before = match n_slots {
            1 => state.slots.remove(&model),
            _ => state.slots.insert(model.clone(), n_slots),
        };
        if before.unwrap_or(1) < n_slots {
            state.waiters(&model).iter().for_each(|waiter| waiter.changed.notify_one());
        }
    }

    /// Forgets the numbers of slots, because other servers have others.
    pub(super) fn forget_slots(&self) {
        self.state.lock().slots.clear();
    }

    /// Enters the queue of a model.
    ///
    /// A chat is inserted after the other chats, but never before an admitted ticket.
    pub(crate) fn enter(&self, model: &str, priority: Priority) -> Ticket {
        let model = self.names.key(model);
        let changed = Arc::new(Notify::new());
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        let n_slots = state.n_slots(&model);
        let waiters = state.waiters.entry(model.clone()).or_default();
        let n_admitted = n_slots.min(waiters.len());
        let behind = waiters[n_admitted..].iter();
        let at = n_admitted + behind.take_while(|waiter| waiter.priority <= priority).count();
        waiters.insert(at, Waiter { id, priority, changed: Arc::clone(&changed) });
        // The tickets behind the new one have moved back.
        waiters[at + 1..].iter().for_each(|waiter| waiter.changed.notify_one());
        drop(state);
        Ticket { queues: self.clone(), model, id, changed }
    }

    /// Returns whether a call of a model is running or waits.
    pub(crate) fn is_busy(&self, model: &str) -> bool {
        self.state.lock().waiters.contains_key(&self.names.key(model))
    }
}

impl Ticket {
    /// Returns the number of tickets that must end before this one is admitted; 0 if it is.
    pub(crate) fn n_ahead(&self) -> usize {
        let state = self.queues.state.lock();
        let position = state.waiters(&self.model).iter().position(|waiter| waiter.id == self.id);
        position.map_or(0, |at| (at + 1).saturating_sub(state.n_slots(&self.model)))
    }

    /// Returns the priority of the ticket that was admitted first.
    pub(crate) fn admitted_priority(&self) -> Option<Priority> {
        let state = self.queues.state.lock();
        state.waiters(&self.model).first().map(|waiter| waiter.priority)
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
        let state = self.queues.state.lock();
        let waiting = state.waiters(&self.model).iter().skip(state.n_slots(&self.model));
        let mut chats = waiting.filter(|other| other.priority == Priority::Chat);
        chats.any(|other| other.id != self.id)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queues.state.lock();
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
        assert!(queues.state.lock().waiters.keys().eq(["other:latest"]));
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

    #[test]
    fn server_with_slots_is_sent_as_many_requests() {
        let queues = Queues::default();
        queues.set_slots("m", 2);
        let first = queues.enter("m", Priority::Background);
        let second = queues.enter("m:latest", Priority::Chat);
        let waiting = queues.enter("m", Priority::Background);
        assert!(is_admitted(&first) && is_admitted(&second) && !is_admitted(&waiting));
        assert!(!first.chat_waits());
        let chat = queues.enter("m", Priority::Chat);
        assert_eq!((chat.n_ahead(), waiting.n_ahead()), (1, 2));
        assert!(first.chat_waits() && !chat.chat_waits());
        drop(first);
        assert!(is_admitted(&chat) && !is_admitted(&waiting));
        queues.set_slots("m", 3);
        assert!(is_admitted(&waiting));
        queues.forget_slots();
        assert_eq!(queues.enter("m", Priority::Chat).n_ahead(), 2, "one slot again");
    }

    #[tokio::test]
    async fn waiting_ticket_is_woken_by_a_new_slot() {
        let queues = Queues::default();
        let _running = queues.enter("m", Priority::Chat);
        let waiting = queues.enter("m", Priority::Chat);
        let grow = async { queues.set_slots("m", 2) };
        tokio::join!(waiting.admitted(), grow);
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
