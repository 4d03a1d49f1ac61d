//! One queue a model: who may talk to it, and in which order.
//!
//! A server lets requests for a loaded model wait without end and in its own order, so the order is made here:
//! chats go before what the daemon asks for by itself, and each kind in the order of arrival.
//!
//! **Invariants**: one ticket of a model is admitted at a time; a side call is not admitted while a chat waits; a
//! ticket that is dropped, waiting or admitted, leaves no trace.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::info::canonical;

/// How urgent a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Somebody waits for the answer.
    Chat,
    /// The daemon asks for its own ends, such as a summary.
    Side,
}

/// The queues of all models; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    lines: HashMap<String, Line>,
}

/// Who waits for one model; the first one is admitted. Never empty.
#[derive(Debug, Default)]
struct Line {
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    id: u64,
    priority: Priority,
    holder: String,
    changed: Arc<Notify>,
}

/// A place in a model's queue; it is given up when this is dropped.
#[derive(Debug)]
#[must_use = "the place is given up when the ticket is dropped"]
pub(crate) struct Ticket {
    queues: Queues,
    model: String,
    id: u64,
    changed: Arc<Notify>,
}

/// What is before a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// How many go before; 0 when it is admitted.
    pub count: usize,
    /// Who is admitted, in the words of whoever took the ticket.
    pub holder: String,
}

impl Queues {
    /// Takes a place for a call to a model; `holder` tells others who it is.
    ///
    /// A chat is placed behind the chats, but never before the one that is admitted.
    pub(crate) fn enter(&self, model: &str, priority: Priority, holder: &str) -> Ticket {
        let model = canonical(model);
        let changed = Arc::new(Notify::new());
        let mut state = self.0.lock();
        state.last_id += 1;
        let id = state.last_id;
        let places = &mut state.lines.entry(model.clone()).or_default().places;
        let waiting = places.iter().skip(1).take_while(|place| place.priority <= priority).count();
        let at = if places.is_empty() { 0 } else { 1 + waiting };
        let changed_too = Arc::clone(&changed);
        places.insert(at, Place { id, priority, holder: holder.to_owned(), changed: changed_too });
        // Whoever was moved back is told.
        places.iter().skip(at + 1).for_each(|place| place.changed.notify_one());
        drop(state);
        Ticket { queues: self.clone(), model, id, changed }
    }
}

impl Ticket {
    /// What is before this ticket.
    pub(crate) fn ahead(&self) -> Ahead {
        let state = self.queues.0.lock();
        let places = state.lines.get(&self.model).map_or(&[][..], |line| &line.places);
        Ahead {
            count: places.iter().position(|place| place.id == self.id).unwrap_or(0),
            holder: places.first().map(|place| place.holder.clone()).unwrap_or_default(),
        }
    }

    /// Waits until it is admitted, which it then stays until it is dropped. Cancel safe.
    pub(crate) async fn admitted(&self) {
        while self.ahead().count > 0 {
            self.moved().await;
        }
    }

    /// Waits until what is before it may have changed. Cancel safe.
    pub(crate) async fn moved(&self) {
        self.changed.notified().await;
    }

    /// Whether a chat waits behind this ticket, so that a side call may want to give way.
    pub(crate) fn chat_waits(&self) -> bool {
        let state = self.queues.0.lock();
        let line = state.lines.get(&self.model);
        line.is_some_and(|line| {
            let chat = |place: &Place| place.priority == Priority::Chat && place.id != self.id;
            line.places.iter().any(chat)
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queues.0.lock();
        let Some(line) = state.lines.get_mut(&self.model) else { return };
        line.places.retain(|place| place.id != self.id);
        // A stored permit wakes who is not waiting right now, so nobody can miss its turn.
        line.places.iter().for_each(|place| place.changed.notify_one());
        if line.places.is_empty() {
            state.lines.remove(&self.model);
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
    fn chats_go_before_side_calls_and_each_in_order() {
        let queues = Queues::default();
        let running = queues.enter("m", Priority::Side, "summary 1");
        let second = queues.enter("m:latest", Priority::Side, "summary 2");
        let first_chat = queues.enter("m", Priority::Chat, "chat 1");
        let second_chat = queues.enter("m", Priority::Chat, "chat 2");
        let elsewhere = queues.enter("other", Priority::Side, "alone");
        assert!(is_admitted(&running) && is_admitted(&elsewhere));
        assert!(running.chat_waits() && !elsewhere.chat_waits());
        assert_eq!(first_chat.ahead(), Ahead { count: 1, holder: "summary 1".to_owned() });
        assert_eq!(second.ahead().count, 3);
        drop(running);
        assert!(is_admitted(&first_chat));
        assert!(!is_admitted(&second_chat) && !is_admitted(&second));
        drop(first_chat);
        assert!(is_admitted(&second_chat) && !is_admitted(&second));
        drop(second_chat);
        assert!(is_admitted(&second));
        drop(second);
        assert!(queues.0.lock().lines.keys().eq(["other:latest"]));
    }

    #[test]
    fn who_gives_up_while_waiting_leaves_no_trace() {
        let queues = Queues::default();
        let running = queues.enter("m", Priority::Chat, "a");
        let waiting = queues.enter("m", Priority::Chat, "b");
        let last = queues.enter("m", Priority::Chat, "c");
        assert!(!is_admitted(&waiting));
        drop(waiting);
        assert_eq!(last.ahead(), Ahead { count: 1, holder: "a".to_owned() });
        drop(running);
        assert!(is_admitted(&last));
    }

    #[tokio::test]
    async fn a_waiting_ticket_is_woken() {
        let queues = Queues::default();
        let running = queues.enter("m", Priority::Chat, "a");
        let waiting = queues.enter("m", Priority::Side, "b");
        let release = async { drop(running) };
        tokio::join!(waiting.admitted(), release);
        assert_eq!(waiting.ahead().count, 0);
    }
}
