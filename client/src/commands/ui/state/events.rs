//! The events that have arrived, and the answers that are being written now. Pure.

use std::collections::{BTreeSet, VecDeque};

use ollm_protocol::{Event, EventKind, Seq, SessionId, Timestamp};

use super::window::scrolled;
use crate::commands::events::data_text;
use crate::render::wire_name;

/// The events that are kept.
const MAX_EVENTS: usize = 500;
/// The answers that are shown as being written: those of more sessions than people talk in at once.
const MAX_LIVE: usize = 256;

/// An event as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct EventLine {
    pub(in super::super) at: Timestamp,
    pub(in super::super) session_id: Option<SessionId>,
    pub(in super::super) seq: Option<Seq>,
    pub(in super::super) kind: EventKind,
    /// The name of the kind and the data.
    pub(in super::super) text: String,
}

/// The events, and the answers that are being written.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct EventLog {
    lines: VecDeque<EventLine>,
    /// The selected event, from the oldest one; `None` follows the newest.
    selected: Option<usize>,
    top: usize,
    /// The sessions whose answers are being written.
    live: BTreeSet<SessionId>,
}

impl EventLog {
    pub(in super::super) fn lines(&self) -> impl Iterator<Item = &EventLine> {
        self.lines.iter()
    }

    pub(in super::super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(in super::super) fn selected(&self) -> usize {
        self.selected.unwrap_or(usize::MAX).min(self.lines.len().saturating_sub(1))
    }

    pub(in super::super) fn top(&self) -> usize {
        self.top
    }

    pub(in super::super) fn selected_event(&self) -> Option<&EventLine> {
        self.lines.get(self.selected())
    }

    /// Returns the number of the answers that are being written.
    pub(in super::super) fn n_live(&self) -> usize {
        self.live.len()
    }

    pub(in super::super) fn is_live(&self, id: SessionId) -> bool {
        self.live.contains(&id)
    }

    pub(in super::super) fn move_by(&mut self, rows: isize) {
        let last = self.lines.len().saturating_sub(1);
        let selected = self.selected().saturating_add_signed(rows).min(last);
        self.selected = (selected < last).then_some(selected);
    }

    pub(in super::super) fn scroll(&mut self, height: usize) {
        self.top = scrolled(self.top, self.selected(), height, self.lines.len());
    }

    /// Notes that an answer is being written, whose beginning was missed.
    pub(in super::super) fn set_live(&mut self, id: SessionId) {
        if self.live.len() < MAX_LIVE {
            self.live.insert(id);
        }
    }

    pub(in super::super) fn unset_live(&mut self, id: SessionId) {
        self.live.remove(&id);
    }

    /// Forgets the answers that are being written: their ends may have been missed.
    pub(in super::super) fn forget_live(&mut self) {
        self.live.clear();
    }

    /// Adds an event.
    pub(in super::super) fn add(&mut self, event: &Event) {
        match (event.kind, event.session_id) {
            (EventKind::TurnStarted, Some(id)) => self.set_live(id),
            (EventKind::TurnEnded | EventKind::SessionDeleted, Some(id)) => {
                self.unset_live(id);
            }
            _ => {}
        }
        if self.lines.len() == MAX_EVENTS {
            self.lines.pop_front();
            self.selected = self.selected.map(|at| at.saturating_sub(1));
            self.top = self.top.saturating_sub(1);
        }
        self.lines.push_back(EventLine {
            at: event.at,
            session_id: event.session_id,
            seq: event.seq,
            kind: event.kind,
            text: text_of(event),
        });
    }
}

/// Returns a text such as `message-recorded #3 role=user tokens=12`.
fn text_of(event: &Event) -> String {
    let mut text = wire_name(event.kind);
    if let Some(seq) = event.seq {
        text = format!("{text} #{seq}");
    }
    let data = data_text(event);
    if data.is_empty() { text } else { format!("{text} {data}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::SESSION_ID;

    fn event(kind: &str, data: Value) -> Event {
        serde_json::from_value(json!({
            "epoch": "e", "eventSeq": 1, "sessionId": SESSION_ID, "seq": 3, "kind": kind,
            "at": "2026-01-27T10:00:00Z", "data": data
        }))
        .unwrap()
    }

    #[test]
    fn answers_are_live_from_their_start_to_their_end() {
        let id: SessionId = SESSION_ID.parse().unwrap();
        let mut log = EventLog::default();
        log.add(&event("turn-started", json!({ "model": "tiny" })));
        assert!(log.is_live(id));
        assert_eq!(log.n_live(), 1);
        log.add(&event("turn-ended", json!({ "model": "tiny", "error": null })));
        assert!(!log.is_live(id));
        assert_eq!(log.n_live(), 0);
        assert_eq!(log.lines().last().unwrap().text, "turn-ended #3 model=tiny");
    }

    #[test]
    fn newest_event_is_followed_until_another_is_selected() {
        let mut log = EventLog::default();
        for number in 0..MAX_EVENTS + 10 {
            log.add(&event("message-recorded", json!({ "tokens": number })));
            log.scroll(5);
            assert_eq!(log.selected(), log.len() - 1);
            if number == 20 {
                log.move_by(-2);
                log.move_by(2);
            }
        }
        assert_eq!((log.len(), log.top()), (MAX_EVENTS, MAX_EVENTS - 5));
        log.move_by(-3);
        let selected = log.selected_event().unwrap().clone();
        log.add(&event("session-updated", json!({ "fields": ["a\u{1b}[2Jb"] })));
        assert_eq!(log.selected_event(), Some(&selected));
        assert_eq!(
            log.lines().last().unwrap().text,
            "session-updated #3 fields=[\"a\\u001b[2Jb\"]"
        );
    }
}
