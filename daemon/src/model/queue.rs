//! The queue of each model: which call may use the model, and in which order.
//!
//! A server queues requests for a loaded model without limit and in its own order. So the daemon sends each model as many
//! requests at a time as its server answers at the same time, which is one unless the server or the configuration says
//! otherwise: chats first, then background calls, each in the order of arrival.
//! Must not know the calls themselves.
//!
//! **Invariants**: at most as many tickets per model are admitted as it has slots; a background call is not admitted while
//! a chat waits for the same server, with any of its models; a dropped ticket, waiting or admitted, leaves the queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::address::{DEFAULT_SERVER, ModelNames};

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
    /// The tickets of each model in the order in which they are admitted, unless one gives way. No list is empty.
    waiters: HashMap<String, Vec<Waiter>>,
    /// The numbers of slots that are not one.
    slots: HashMap<String, usize>,
}

/// Returns the server of a model's key, which ends with it if it is not the default one.
fn server_of(key: &str) -> &str {
    key.rsplit_once('@').map_or(DEFAULT_SERVER, |(_, server)| server)
}

impl ModelQueueState {
    fn n_slots(&self, model: &str) -> usize {
        self.slots.get(model).copied().unwrap_or(1)
    }

    fn waiters(&self, model: &str) -> &[Waiter] {
        self.waiters.get(model).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a chat, other than a ticket, waits for a server: for a place, or until the server takes requests.
    fn chat_waits(&self, server: &str, ticket: u64) -> bool {
        let of_server = self.waiters.iter().filter(|(model, _)| server_of(model) == server);
        let mut others = of_server.flat_map(|(_, all)| all).filter(|one| one.id != ticket);
        others.any(|one| one.priority == Priority::Chat && (!one.is_admitted || one.is_held_up))
    }

    /// Admits a ticket if nothing is ahead of it; returns the number of tickets that are.
    fn admit(&mut self, model: &str, ticket: u64) -> usize {
        let waiters = self.waiters(model);
        let Some(at) = waiters.iter().position(|waiter| waiter.id == ticket) else { return 0 };
        let Waiter { priority, is_admitted, .. } = waiters[at];
        if is_admitted {
            return 0;
        }
        // A ticket that gave way can be before an admitted one.
        let is_ahead = |(place, waiter): &(usize, &Waiter)| waiter.is_admitted || *place < at;
        let n_before = waiters.iter().enumerate().filter(is_ahead).count();
        let n_ahead = (n_before + 1).saturating_sub(self.n_slots(model));
        let gives_way =
            priority == Priority::Background && self.chat_waits(server_of(model), ticket);
        if n_ahead > 0 || gives_way {
            return n_ahead.max(1);
        }
        if let Some(waiters) = self.waiters.get_mut(model) {
            waiters[at].is_admitted = true;
        }
        if priority == Priority::Chat {
            self.wake(server_of(model));
        }
        0
    }

    /// Wakes all tickets of a server, whose positions may have changed.
    fn wake(&self, server: &str) {
        let of_server = self.waiters.iter().filter(|(model, _)| server_of(model) == server);
        of_server.flat_map(|(_, all)| all).for_each(|waiter| waiter.changed.notify_one());
    }
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    priority: Priority,
    is_admitted: bool,
    /// Set while its server refuses requests for a time.
    is_held_up: bool,
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
            state.wake(server_of(&model));
        }
    }

    /// Forgets the numbers of slots, because other servers have others.
    pub(super) fn forget_slots(&self) {
        self.state.lock().slots.clear();
    }

    /// Enters the queue of a model.
    ///
    /// A chat is inserted before the background calls that are not admitted.
    pub(crate) fn enter(&self, model: &str, priority: Priority) -> Ticket {
        let model = self.names.key(model);
        let changed = Arc::new(Notify::new());
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        let waiters = state.waiters.entry(model.clone()).or_default();
        let is_behind = |waiter: &Waiter| !waiter.is_admitted && waiter.priority > priority;
        let at = waiters.iter().position(is_behind).unwrap_or(waiters.len());
        let (is_admitted, is_held_up) = (false, false);
        let changed_too = Arc::clone(&changed);
        let waiter = Waiter { id, priority, is_admitted, is_held_up, changed: changed_too };
        waiters.insert(at, waiter);
        // The tickets behind the new one have moved back.
        waiters[at + 1..].iter().for_each(|waiter| waiter.changed.notify_one());
        state.admit(&model, id);
        drop(state);
        Ticket { queues: self.clone(), model, id, changed }
    }

    /// Returns whether a call of a model is running or waits.
    pub(crate) fn is_busy(&self, model: &str) -> bool {
        self.state.lock().waiters.contains_key(&self.names.key(model))
    }

    /// Returns the number of calls of a model that are running or wait, and the number that its server answers at the same
    /// time.
    pub(crate) fn load(&self, model: &str) -> (usize, usize) {
        let (state, key) = (self.state.lock(), self.names.key(model));
        (state.waiters(&key).len(), state.n_slots(&key))
    }
}

impl Ticket {
    /// Returns the number of tickets that must end before this one is admitted; 0 if it is. A chat that waits for another
    /// model of the server counts as one for a background call.
    pub(crate) fn n_ahead(&self) -> usize {
        self.queues.state.lock().admit(&self.model, self.id)
    }

    /// Notes whether the server refuses requests for a time. Background calls give way meanwhile.
    pub(crate) fn hold_up(&self, is_held_up: bool) {
        let mut state = self.queues.state.lock();
        let waiters = state.waiters.get_mut(&self.model).into_iter().flatten();
        waiters.filter(|one| one.id == self.id).for_each(|one| one.is_held_up = is_held_up);
        state.wake(server_of(&self.model));
    }

    /// Returns the priority of the first admitted ticket.
    pub(crate) fn admitted_priority(&self) -> Option<Priority> {
        let state = self.queues.state.lock();
        let mut waiters = state.waiters(&self.model).iter();
        waiters.find(|waiter| waiter.is_admitted).map(|waiter| waiter.priority)
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

    /// Returns whether another chat waits for the server, in which case a background call may give way.
    pub(crate) fn chat_waits(&self) -> bool {
        self.queues.state.lock().chat_waits(server_of(&self.model), self.id)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queues.state.lock();
        let Some(waiters) = state.waiters.get_mut(&self.model) else { return };
        waiters.retain(|waiter| waiter.id != self.id);
        if waiters.is_empty() {
            state.waiters.remove(&self.model);
        }
        // A ticket that is not waiting right now finds the notification later.
        state.wake(server_of(&self.model));
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
        let elsewhere = queues.enter("m@other", Priority::Background);
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
        assert!(queues.state.lock().waiters.keys().eq(["m@other"]));
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
        assert_eq!(queues.enter("m", Priority::Chat).n_ahead(), 3, "three are running");
    }

    #[test]
    fn background_call_gives_way_to_a_chat_with_another_model_of_the_server() {
        let queues = Queues::default();
        let answering = queues.enter("m", Priority::Chat);
        let background = queues.enter("small", Priority::Background);
        assert!(is_admitted(&background) && !background.chat_waits(), "no chat waits");
        let chat = queues.enter("m", Priority::Chat);
        assert!(background.chat_waits());
        let later = queues.enter("other", Priority::Background);
        assert!(!is_admitted(&later));
        drop(answering);
        assert!(is_admitted(&chat) && is_admitted(&later) && !background.chat_waits());
    }

    #[test]
    fn ticket_that_gave_way_takes_no_slot_beside_later_ones() {
        let queues = Queues::default();
        queues.set_slots("m", 2);
        let _answering = queues.enter("other", Priority::Chat);
        let waiting = queues.enter("other", Priority::Chat);
        let [first, second] = [(); 2].map(|()| queues.enter("m", Priority::Background));
        assert!(!is_admitted(&first) && !is_admitted(&second), "both give way");
        drop(waiting);
        assert!(is_admitted(&second));
        let chat = queues.enter("m", Priority::Chat);
        assert!(is_admitted(&chat));
        assert_eq!(first.n_ahead(), 1, "two are running");
        drop(second);
        assert!(is_admitted(&first));
    }

    #[test]
    fn background_call_gives_way_while_the_server_refuses_a_chat() {
        let queues = Queues::default();
        queues.set_slots("m", 2);
        let chat = queues.enter("m", Priority::Chat);
        let background = queues.enter("m", Priority::Background);
        assert!(is_admitted(&chat) && is_admitted(&background));
        chat.hold_up(true);
        let later = queues.enter("small", Priority::Background);
        assert!(is_admitted(&chat) && !is_admitted(&later) && background.chat_waits());
        assert_eq!(queues.load("m:latest"), (2, 2));
        let second_chat = queues.enter("small", Priority::Chat);
        assert!(is_admitted(&second_chat), "a call that gives way holds up no chat");
        drop(second_chat);
        chat.hold_up(false);
        assert!(is_admitted(&later) && !background.chat_waits());
    }

    #[tokio::test]
    async fn waiting_ticket_is_woken_by_a_chat_that_leaves_another_model() {
        let queues = Queues::default();
        let _answering = queues.enter("m", Priority::Chat);
        let chat = queues.enter("m", Priority::Chat);
        let background = queues.enter("small", Priority::Background);
        let leave = async { drop(chat) };
        tokio::join!(background.admitted(), leave);
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
