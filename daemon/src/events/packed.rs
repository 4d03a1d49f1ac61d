//! Events in two blocks of memory: one of their fixed parts, one of their data as JSON.
//!
//! **Invariants**: the events and their data never exceed the limits, except for the newest event, which is always kept.

use std::collections::VecDeque;

use ollm_protocol::{EventKind, Seq, SessionId, Timestamp};
use serde_json::Value;

use super::EventDraft;

/// The limits of a ring.
#[derive(Clone, Copy)]
pub(super) struct RingLimits {
    pub events: usize,
    /// Bytes of the data of all events as JSON.
    pub data_bytes: usize,
}

/// The newest events, without their numbers.
pub(super) struct PackedEvents {
    limits: RingLimits,
    events: VecDeque<PackedEvent>,
    /// The data of all events, one after the other.
    data: VecDeque<u8>,
    /// Bytes of data that were dropped so far.
    dropped: u64,
}

struct PackedEvent {
    session_id: Option<SessionId>,
    seq: Option<Seq>,
    kind: EventKind,
    at: Timestamp,
    /// The position of the data among the data of all events ever pushed.
    data_at: u64,
    data_bytes: usize,
}

/// Returns the data of an event as JSON, and nothing for `null`.
pub(super) fn pack_data(data: &Value) -> Vec<u8> {
    if data.is_null() { Vec::new() } else { data.to_string().into_bytes() }
}

impl PackedEvents {
    pub(super) const fn new(limits: RingLimits) -> Self {
        Self { limits, events: VecDeque::new(), data: VecDeque::new(), dropped: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Adds an event with its packed data, after dropping the oldest ones that have no room beside it.
    pub(super) fn push(&mut self, event: &EventDraft, data: &[u8]) {
        while self.events.len() >= self.limits.events
            || self.data.len() + data.len() > self.limits.data_bytes
        {
            let Some(oldest) = self.events.pop_front() else { break };
            self.data.drain(..oldest.data_bytes);
            self.dropped += oldest.data_bytes as u64;
        }
        self.events.push_back(PackedEvent {
            session_id: event.session_id,
            seq: event.seq,
            kind: event.kind,
            at: event.at,
            data_at: self.dropped + self.data.len() as u64,
            data_bytes: data.len(),
        });
        self.data.extend(data);
    }

    /// Returns the event at a position, counted from the oldest, if `admits` returns true for its kind and session.
    pub(super) fn read(
        &self,
        at: usize,
        admits: impl FnOnce(EventKind, Option<SessionId>) -> bool,
    ) -> Option<EventDraft> {
        let event = self.events.get(at).filter(|event| admits(event.kind, event.session_id))?;
        let &PackedEvent { session_id, seq, kind, at, data_at, data_bytes } = event;
        let begin = usize::try_from(data_at - self.dropped).expect("the data is in memory");
        let data: Vec<u8> = self.data.range(begin..begin + data_bytes).copied().collect();
        // The data was a value before, so it can only be empty, which means `null`.
        let data = serde_json::from_slice(&data).unwrap_or(Value::Null);
        Some(EventDraft { session_id, seq, kind, at, data })
    }
}
