//! What becomes of a change in a session: an event for subscribers, a mark for the catalog.

use std::sync::{Arc, OnceLock, Weak};

use ollm_protocol::content::{GoalChange, GoalStep, LeafMove, LoopMark, MetaPatch, RecordBody};
use ollm_protocol::{EventKind, SessionId};
use serde_json::{Value, json};

use crate::app::Retention;
use crate::catalog::Catalog;
use crate::events::{EventDraft, EventRing};
use crate::session::index::{HintSource, OpenHint};
use crate::session::{SessionChange, SessionObserver};

/// Told by the writers of all sessions.
pub(super) struct Announcer {
    events: EventRing,
    retention: Arc<Retention>,
    /// Set once; weak, because the catalog reads the sessions that announce here.
    catalog: OnceLock<Weak<Catalog>>,
}

impl Announcer {
    pub(super) fn new(events: EventRing, retention: Arc<Retention>) -> Self {
        Self { events, retention, catalog: OnceLock::new() }
    }

    /// Lets a catalog follow from now on.
    pub(super) fn follow(&self, catalog: &Arc<Catalog>) {
        // A second catalog would be a defect of the composition; the first one stays.
        drop(self.catalog.set(Arc::downgrade(catalog)));
    }
}

impl SessionObserver for Announcer {
    fn changed(&self, id: SessionId, change: &SessionChange<'_>) {
        if let Some(catalog) = self.catalog.get().and_then(Weak::upgrade) {
            catalog.mark_dirty(id);
        }
        match change {
            SessionChange::Created(session) => {
                self.retention.ask();
                self.events.publish(EventDraft {
                    session_id: Some(id),
                    seq: None,
                    kind: EventKind::SessionCreated,
                    at: session.start_time,
                    data: json!({ "title": session.title }),
                });
            }
            SessionChange::Recorded { seq, at, body, tokens } => {
                if let Some((kind, data)) = event_of(body, *tokens) {
                    let (session_id, seq) = (Some(id), Some(*seq));
                    self.events.publish(EventDraft { session_id, seq, kind, at: *at, data });
                }
            }
            SessionChange::Recovered { torn_bytes, damaged } => {
                tracing::warn!(session = %id, torn_bytes, damaged, "the log was not whole");
            }
        }
    }
}

/// What subscribers are told of a record; many kinds are of interest only in the log.
fn event_of(body: &RecordBody, tokens: u32) -> Option<(EventKind, Value)> {
    Some(match body {
        RecordBody::Message(message) => {
            (EventKind::MessageRecorded, json!({ "role": message.role, "tokens": tokens }))
        }
        RecordBody::ToolCall(call) => {
            (EventKind::ToolCallRecorded, json!({ "name": call.name, "tokens": tokens }))
        }
        RecordBody::Meta(patch) => update_of(patch)?,
        RecordBody::ModeChange(change) => (
            EventKind::ModeChanged,
            json!({ "from": change.from, "to": change.to, "trigger": change.trigger }),
        ),
        RecordBody::Leaf(LeafMove { to, cause }) => {
            (EventKind::BranchChanged, json!({ "to": to, "cause": cause }))
        }
        RecordBody::Loop(LoopMark { pattern: Some(pattern) }) => {
            (EventKind::LoopDetected, json!({ "pattern": pattern }))
        }
        RecordBody::Goal(change) => (EventKind::GoalUpdated, goal_data(change)),
        RecordBody::Close(close) => (EventKind::SessionClosed, json!({ "reason": close.reason })),
        _ => return None,
    })
}

/// What changed, without what it says.
fn goal_data(change: &GoalChange) -> Value {
    let actions: Vec<_> = change.steps.iter().map(GoalStep::action).collect();
    let mut data = json!({ "source": change.source, "actions": actions });
    if let Some(seq) = change.message_seq {
        data["messageSeq"] = json!(seq);
    }
    data
}

/// Archiving has an event of its own, which tells who did it; that is not in the record.
fn update_of(patch: &MetaPatch) -> Option<(EventKind, Value)> {
    if patch.archived == Some(true) {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::to_value(patch) else { return None };
    let names: Vec<&String> = fields.keys().collect();
    Some((EventKind::SessionUpdated, json!({ "fields": names })))
}

/// Lets cold sessions open from what the catalog stored.
pub(super) struct CatalogHints(Weak<Catalog>);

impl CatalogHints {
    pub(super) fn new(catalog: &Arc<Catalog>) -> Self {
        Self(Arc::downgrade(catalog))
    }
}

impl HintSource for CatalogHints {
    fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.0.upgrade()?.hint(id)
    }
}
