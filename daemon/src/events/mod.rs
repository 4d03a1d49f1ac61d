//! The event ring: the newest events of all sessions, for any number of subscribers.
//!
//! Publishing never waits and never allocates without bound: the ring has a limit in events and one in bytes, and a
//! subscriber that is slower receives the number of events it missed and continues after them. A subscription is a
//! position in the ring, so a replay from `since` and live events are the same thing.
//!
//! The ring stays in memory while the daemon is idle. So it consists of two long blocks of memory: thousands of small
//! values between the freed values of other work would keep the pages of that work too.
//!
//! **Invariants**: event numbers start at 1 and have no gaps within an epoch. For a subscriber without a filter,
//! events received plus events reported as missed equal the events published, except for thresholds that only other
//! subscribers asked for.

mod packed;
mod thresholds;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ollm_protocol::event::{EventCursor, LaggedData, NoData, ResyncData};
use ollm_protocol::limits::{MAX_DATA_BYTES, shorten_value};
use ollm_protocol::{Event, EventData, EventKind, Seq, SessionId, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use self::packed::{PackedEvents, RingLimits};
use self::thresholds::{DEFAULT_THRESHOLD, Thresholds};
use crate::clock::Clock;

/// The events kept for replay: several minutes of busy work, enough for an editor to restart. The data of an event has
/// usually less than 100 bytes, so the limit in bytes matters only for long titles and goals. The ring takes at most
/// 2 MiB of memory even when the daemon is idle.
const RING_LIMITS: RingLimits = RingLimits { events: 4096, data_bytes: 1024 * 1024 };

/// An event without its number and epoch.
#[derive(Clone, Debug)]
pub(crate) struct EventDraft {
    pub session_id: Option<SessionId>,
    /// The record that caused the event.
    pub seq: Option<Seq>,
    pub kind: EventKind,
    pub at: Timestamp,
    pub data: Value,
}

impl EventDraft {
    /// Returns an event of the kind of its data.
    pub(crate) fn new<D: EventData>(
        session_id: Option<SessionId>,
        seq: Option<Seq>,
        at: Timestamp,
        data: &D,
    ) -> Self {
        let data = serde_json::to_value(data).expect("the data of events are plain JSON");
        Self { session_id, seq, kind: D::KIND, at, data }
    }
}

/// The events that a subscriber receives, besides `Lagged` and `Resync`.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventFilter {
    /// The only session, or `None` for all.
    pub session_id: Option<SessionId>,
    /// The only kinds; empty means all.
    pub kinds: Vec<EventKind>,
    /// Shares of the prompt limit that cause a `ContextThreshold` event, besides the default share.
    pub thresholds: Vec<f64>,
}

impl EventFilter {
    /// Returns whether events of this kind and session are received.
    fn names(&self, kind: EventKind, session_id: Option<SessionId>) -> bool {
        (self.session_id.is_none() || session_id == self.session_id)
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
    }

    /// Returns whether the event is not one of a share that only others asked for.
    fn has_threshold(&self, event: &EventDraft) -> bool {
        let share = event.data["threshold"].as_f64();
        event.kind != EventKind::ContextThreshold
            || share
                .is_none_or(|share| share == DEFAULT_THRESHOLD || self.thresholds.contains(&share))
    }
}

/// A handle to the event ring; clones share one ring.
#[derive(Clone)]
pub(crate) struct EventRing(Arc<RingShared>);

struct RingShared {
    epoch: String,
    clock: Arc<Clock>,
    /// Held for a push or one search, never across an await.
    state: Mutex<RingState>,
    /// The number of the newest event; wakes waiting subscriptions.
    newest: watch::Sender<u64>,
    /// The number of open subscriptions of clients.
    subscriptions: AtomicUsize,
}

struct RingState {
    events: PackedEvents,
    /// The number of the next event to be published.
    next: u64,
    thresholds: Thresholds,
}

impl RingState {
    /// Returns the number of the oldest event in the ring, or of the next event if the ring is empty.
    fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }
}

impl EventRing {
    /// Returns an empty ring with a new epoch.
    pub(crate) fn new(clock: Arc<Clock>) -> Self {
        Self::with_limits(clock, RING_LIMITS)
    }

    fn with_limits(clock: Arc<Clock>, limits: RingLimits) -> Self {
        Self(Arc::new(RingShared {
            epoch: clock.uuid().to_string(),
            clock,
            state: Mutex::new(RingState {
                events: PackedEvents::new(limits),
                next: 1,
                thresholds: Thresholds::default(),
            }),
            newest: watch::Sender::new(0),
            subscriptions: AtomicUsize::new(0),
        }))
    }

    /// Returns the epoch, which identifies this run of the daemon.
    pub(crate) fn epoch(&self) -> &str {
        &self.0.epoch
    }

    /// Returns the number of open subscriptions of clients.
    pub(crate) fn subscriptions(&self) -> usize {
        self.0.subscriptions.load(Ordering::Relaxed)
    }

    /// Returns the shares of a prompt limit at which a `ContextThreshold` event is published, in rising order.
    pub(crate) fn thresholds(&self) -> Vec<f64> {
        let mut ring = self.0.state.lock();
        let oldest = ring.oldest();
        ring.thresholds.in_force(oldest)
    }

    /// Publishes an event and returns its number. Never waits; callable from any thread.
    ///
    /// Large data is shortened, so that an event fits into a frame.
    pub(crate) fn publish(&self, mut draft: EventDraft) -> u64 {
        let mut data = packed::pack_data(&draft.data);
        if data.len() > MAX_DATA_BYTES {
            shorten_value(&mut draft.data, MAX_DATA_BYTES);
            data = packed::pack_data(&draft.data);
        }
        let mut ring = self.0.state.lock();
        let number = ring.next;
        ring.events.push(&draft, &data);
        ring.next += 1;
        // Sent while the lock is held, so that the number only grows.
        self.0.newest.send_replace(number);
        number
    }

    /// Subscribes a client to the events after `since`, or to those from now on.
    pub(crate) fn subscribe(
        &self,
        filter: EventFilter,
        since: Option<&EventCursor>,
    ) -> EventSubscription {
        self.0.subscriptions.fetch_add(1, Ordering::Relaxed);
        self.open(filter, since, true)
    }

    /// Subscribes a part of the daemon to the events from now on.
    pub(crate) fn subscribe_daemon(&self, filter: EventFilter) -> EventSubscription {
        self.open(filter, None, false)
    }

    fn open(
        &self,
        filter: EventFilter,
        since: Option<&EventCursor>,
        is_of_client: bool,
    ) -> EventSubscription {
        let mut ring = self.0.state.lock();
        ring.thresholds.add(&filter.thresholds);
        let position = since.map(|since| {
            let next = since.event_seq.saturating_add(1);
            let known = since.epoch == self.0.epoch && (ring.oldest()..=ring.next).contains(&next);
            known.then_some(next)
        });
        EventSubscription {
            is_of_client,
            shared: Arc::clone(&self.0),
            newest: self.0.newest.subscribe(),
            filter,
            next: position.flatten().unwrap_or(ring.next),
            resync: matches!(position, Some(None)),
        }
    }
}

impl RingShared {
    /// Returns a published event with its number.
    fn numbered(&self, draft: EventDraft, event_seq: u64) -> Event {
        let EventDraft { session_id, seq, kind, at, data } = draft;
        Event { epoch: self.epoch.clone(), event_seq, session_id, seq, kind, at, data }
    }

    /// Returns an event that only one subscriber receives.
    fn notice(&self, event_seq: u64, data: &impl EventData) -> Event {
        self.numbered(EventDraft::new(None, None, self.clock.now(), data), event_seq)
    }
}

/// A position in the ring; dropping it ends the subscription.
pub(crate) struct EventSubscription {
    is_of_client: bool,
    shared: Arc<RingShared>,
    newest: watch::Receiver<u64>,
    filter: EventFilter,
    /// The number of the next event to examine.
    next: u64,
    /// Whether the subscriber must still be notified that its `since` cannot be replayed.
    resync: bool,
}

impl EventSubscription {
    /// Waits for the next event that the filter admits, or for a notice of missed events.
    ///
    /// **Cancel safety**: a canceled call takes no event.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            self.newest.mark_unchanged();
            if let Some(event) = self.take() {
                return event;
            }
            if self.newest.changed().await.is_err() {
                // Unreachable: the sender is owned by `shared`, which this subscription holds.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the next event that is already in the ring, without waiting.
    pub(crate) fn take(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.resync) {
            return Some(self.shared.notice(self.next - 1, &ResyncData(NoData)));
        }
        let ring = self.shared.state.lock();
        let oldest = ring.oldest();
        if self.next < oldest {
            let missed = oldest - self.next;
            self.next = oldest;
            drop(ring);
            return Some(self.shared.notice(oldest - 1, &LaggedData { missed }));
        }
        let skipped = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
        for at in skipped..ring.events.len() {
            self.next = oldest + at as u64 + 1;
            let found =
                ring.events.read(at, |kind, session_id| self.filter.names(kind, session_id));
            let Some(draft) = found.filter(|draft| self.filter.has_threshold(draft)) else {
                continue;
            };
            return Some(self.shared.numbered(draft, self.next - 1));
        }
        None
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        if self.is_of_client {
            self.shared.subscriptions.fetch_sub(1, Ordering::Relaxed);
        }
        let mut ring = self.shared.state.lock();
        let next = ring.next;
        ring.thresholds.remove(&self.filter.thresholds, next);
    }
}

#[cfg(test)]
mod tests;
