//! The event ring: what happened lately, for everyone who asks.
//!
//! Publishing never waits and never grows memory: the ring has a fixed number of places, and a subscriber that
//! is slower than the ring is told how many events it missed and goes on. A subscription is a place in the
//! ring and nothing else, so replaying from `since` and following live are the same thing.
//!
//! **Invariants**: event numbers count from 1 without a gap within an epoch; for a subscriber without filter, events
//! received plus events reported as missed are the events published, but for those of thresholds that others named.

mod thresholds;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ollm_protocol::event::EventCursor;
use ollm_protocol::{Event, EventKind, Seq, SessionId, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use self::thresholds::{DEFAULT_THRESHOLD, Thresholds};
use crate::clock::Clock;

/// Events kept for replay. A client that reconnects after a restart of its editor finds several minutes of
/// busy work; an event takes about 300 bytes, so a full ring takes about 1.2 MB. Larger costs idle memory.
const RING_EVENTS: usize = 4096;

/// An event before it has its number.
#[derive(Clone, Debug)]
pub(crate) struct EventDraft {
    /// The session it is about.
    pub session_id: Option<SessionId>,
    /// The record it is about.
    pub seq: Option<Seq>,
    /// What happened.
    pub kind: EventKind,
    /// When.
    pub at: Timestamp,
    /// What the kind says of it.
    pub data: Value,
}

/// Which events a subscriber wants; `Lagged` and `Resync` it always gets.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventFilter {
    /// Only those of one session.
    pub session_id: Option<SessionId>,
    /// Only these kinds; empty means all.
    pub kinds: Vec<EventKind>,
    /// Shares of the prompt limit at which a context is told of, beside the default.
    pub thresholds: Vec<f64>,
}

impl EventFilter {
    fn admits(&self, event: &Event) -> bool {
        (self.session_id.is_none() || event.session_id == self.session_id)
            && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && (event.kind != EventKind::ContextThreshold || self.has_threshold(event))
    }

    fn has_threshold(&self, event: &Event) -> bool {
        let share = event.data["threshold"].as_f64();
        share.is_none_or(|share| share == DEFAULT_THRESHOLD || self.thresholds.contains(&share))
    }
}

/// Where events are published and subscribed to; clones share one ring.
#[derive(Clone)]
pub(crate) struct Events(Arc<Shared>);

struct Shared {
    epoch: String,
    clock: Arc<Clock>,
    capacity: usize,
    /// Held for a push or one search, never across an await.
    ring: Mutex<Ring>,
    /// The number of the newest event, to wake who waits for the next.
    newest: watch::Sender<u64>,
    subscriptions: AtomicUsize,
}

struct Ring {
    events: VecDeque<Arc<Event>>,
    /// The number of the event that comes next.
    next: u64,
    /// What subscriptions want to be told of.
    thresholds: Thresholds,
}

impl Ring {
    /// The number of the oldest event that is still there, or of the next one.
    fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }
}

impl Events {
    /// An empty ring with an epoch of its own.
    pub(crate) fn new(clock: Arc<Clock>) -> Self {
        Self::with_capacity(clock, RING_EVENTS)
    }

    fn with_capacity(clock: Arc<Clock>, capacity: usize) -> Self {
        Self(Arc::new(Shared {
            epoch: clock.uuid().to_string(),
            clock,
            capacity,
            ring: Mutex::new(Ring {
                events: VecDeque::new(),
                next: 1,
                thresholds: Thresholds::default(),
            }),
            newest: watch::Sender::new(0),
            subscriptions: AtomicUsize::new(0),
        }))
    }

    /// The run of the daemon; changes with every start.
    pub(crate) fn epoch(&self) -> &str {
        &self.0.epoch
    }

    /// Live subscriptions.
    pub(crate) fn subscriptions(&self) -> usize {
        self.0.subscriptions.load(Ordering::Relaxed)
    }

    /// The shares of a prompt limit at which `ContextThreshold` is to be published, in rising order.
    pub(crate) fn thresholds(&self) -> Vec<f64> {
        let mut ring = self.0.ring.lock();
        let oldest = ring.oldest();
        ring.thresholds.in_force(oldest)
    }

    /// Appends an event and returns its number; never waits, from any thread.
    pub(crate) fn publish(&self, draft: EventDraft) -> u64 {
        let mut ring = self.0.ring.lock();
        let number = ring.next;
        if ring.events.len() == self.0.capacity {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::new(Event {
            epoch: self.0.epoch.clone(),
            event_seq: number,
            session_id: draft.session_id,
            seq: draft.seq,
            kind: draft.kind,
            at: draft.at,
            data: draft.data,
        }));
        ring.next += 1;
        // Sent under the lock, so that the number can only grow.
        self.0.newest.send_replace(number);
        number
    }

    /// Follows the ring from now on, or from the event after `since`.
    pub(crate) fn subscribe(
        &self,
        filter: EventFilter,
        since: Option<&EventCursor>,
    ) -> EventSubscription {
        let mut ring = self.0.ring.lock();
        ring.thresholds.name(&filter.thresholds);
        let place = since.map(|since| {
            let next = since.event_seq.saturating_add(1);
            let known = since.epoch == self.0.epoch && (ring.oldest()..=ring.next).contains(&next);
            known.then_some(next)
        });
        self.0.subscriptions.fetch_add(1, Ordering::Relaxed);
        EventSubscription {
            shared: Arc::clone(&self.0),
            newest: self.0.newest.subscribe(),
            filter,
            next: place.flatten().unwrap_or(ring.next),
            resync: matches!(place, Some(None)),
        }
    }
}

impl Shared {
    fn notice(&self, kind: EventKind, event_seq: u64, data: Value) -> Arc<Event> {
        let (epoch, at) = (self.epoch.clone(), self.clock.now());
        Arc::new(Event { epoch, event_seq, session_id: None, seq: None, kind, at, data })
    }
}

/// A place in the ring; dropping it ends the subscription.
pub(crate) struct EventSubscription {
    shared: Arc<Shared>,
    newest: watch::Receiver<u64>,
    filter: EventFilter,
    /// The number of the next event to look at.
    next: u64,
    /// `since` could not be replayed from, and the subscriber does not know yet.
    resync: bool,
}

impl EventSubscription {
    /// The next event that the filter admits, or word of events that are lost.
    ///
    /// **Cancel safety**: an event is taken only by the call that returns it.
    pub(crate) async fn next(&mut self) -> Arc<Event> {
        loop {
            self.newest.mark_unchanged();
            if let Some(event) = self.take() {
                return event;
            }
            if self.newest.changed().await.is_err() {
                // The sender lives in `shared`, which this subscription holds.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The next event that is there already.
    pub(crate) fn take(&mut self) -> Option<Arc<Event>> {
        if std::mem::take(&mut self.resync) {
            return Some(self.shared.notice(EventKind::Resync, self.next - 1, Value::Null));
        }
        let ring = self.shared.ring.lock();
        let oldest = ring.oldest();
        if self.next < oldest {
            let missed = oldest - self.next;
            self.next = oldest;
            drop(ring);
            let data = json!({ "missed": missed });
            return Some(self.shared.notice(EventKind::Lagged, oldest - 1, data));
        }
        let skipped = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
        for event in ring.events.iter().skip(skipped) {
            self.next = event.event_seq + 1;
            if self.filter.admits(event) {
                return Some(Arc::clone(event));
            }
        }
        None
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        self.shared.subscriptions.fetch_sub(1, Ordering::Relaxed);
        let mut ring = self.shared.ring.lock();
        let next = ring.next;
        ring.thresholds.leave(&self.filter.thresholds, next);
    }
}

#[cfg(test)]
mod tests;
