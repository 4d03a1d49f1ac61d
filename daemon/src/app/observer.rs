//! The observer of all sessions: it starts everything that follows a durable record, so that no writer can forget it.
//!
//! It is called on the writers' threads, after the sync and before the reply, in the order of the log. It only marks
//! work as due and publishes events: it never blocks.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use ollm_protocol::content::{
    GoalChange, GoalStep, LeafMove, LoopMark, MetaPatch, RecordBody, RecordScope,
};
use ollm_protocol::{EventKind, SessionId};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::core::Core;
use super::sessions::retention::RetentionTask;
use super::{compaction, loops, snapshots};
use crate::events::EventDraft;
use crate::session::{Observer, SessionChange};

/// The most sessions whose damage is remembered as published; beyond it, damage may be published again.
const MAX_DAMAGED: usize = 4096;

/// Receives the changes of all sessions.
pub(crate) struct SessionObserver {
    retention: Arc<RetentionTask>,
    /// The sessions whose damage is published: each time that one is opened, it is found again.
    damaged: Mutex<HashSet<SessionId>>,
    /// Set once, before the first session is opened; weak, because the core owns the sessions that report here.
    core: OnceLock<Weak<Core>>,
}

impl SessionObserver {
    pub(crate) fn new(retention: Arc<RetentionTask>) -> Self {
        Self { retention, damaged: Mutex::default(), core: OnceLock::new() }
    }

    /// Starts to report to a core.
    pub(crate) fn report_to(&self, core: &Arc<Core>) {
        // A second core would be a defect of the composition; the first one stays.
        drop(self.core.set(Arc::downgrade(core)));
    }

    /// Publishes that records of a session are damaged, unless that is published already.
    fn publish_damage(&self, core: &Core, id: SessionId, damaged: u64) {
        let mut known = self.damaged.lock();
        if known.len() >= MAX_DAMAGED {
            known.clear();
        }
        if damaged > 0 && known.insert(id) {
            let data = json!({ "damagedRecords": damaged });
            core.publish(id, None, EventKind::SessionDamaged, data);
        }
    }
}

impl Observer for SessionObserver {
    fn changed(&self, id: SessionId, change: &SessionChange<'_>) {
        let Some(core) = self.core.get().and_then(Weak::upgrade) else { return };
        match change {
            // Whether the log is damaged is only known when all of it is read.
            SessionChange::Recovered { damaged: 1.., .. } | SessionChange::Healed { .. } => {
                core.catalog.mark_doubtful(id);
            }
            SessionChange::Damaged { .. } => {}
            _ => core.catalog.mark_dirty(id),
        }
        match change {
            SessionChange::Created(session) => {
                self.retention.request();
                core.events.publish(EventDraft {
                    session_id: Some(id),
                    seq: None,
                    kind: EventKind::SessionCreated,
                    at: session.start_time,
                    data: json!({ "title": session.title }),
                });
            }
            // A mark of a resting session changes nothing that clients see.
            SessionChange::Recorded { seq, body, .. }
                if body.kind().scope() == RecordScope::Log =>
            {
                loops::follow(&core, id, *seq, body);
            }
            SessionChange::Recorded { seq, at, body, tokens } => {
                // A closed session counts for the limits. Other changes make it active, which exempts it.
                if matches!(body, RecordBody::Close(_)) {
                    self.retention.request();
                }
                if let Some((kind, data)) = event_of(body, *tokens) {
                    let (session_id, seq) = (Some(id), Some(*seq));
                    core.events.publish(EventDraft { session_id, seq, kind, at: *at, data });
                }
                core.due_documents.mark(id);
                loops::follow(&core, id, *seq, body);
                snapshots::automatic::follow(&core, id, *seq, *at, body);
                compaction::follow(&core, id);
            }
            SessionChange::Recovered { torn_bytes, damaged } => {
                tracing::warn!(session = %id, torn_bytes, damaged, "the log was not whole");
                self.publish_damage(&core, id, *damaged);
            }
            SessionChange::Damaged { damaged } => self.publish_damage(&core, id, *damaged),
            SessionChange::Healed { records } => {
                tracing::info!(session = %id, records, "damaged records can be read again");
                // Folds that lack these records must not be continued.
                core.cache.forget(id);
                if self.damaged.lock().remove(&id) {
                    let data = json!({ "records": records });
                    core.publish(id, None, EventKind::SessionHealed, data);
                }
            }
        }
    }
}

/// Returns the event of a record, or `None` for kinds that subscribers do not need.
fn event_of(body: &RecordBody, tokens: u32) -> Option<(EventKind, Value)> {
    Some(match body {
        RecordBody::Message(message) => {
            (EventKind::MessageRecorded, json!({ "role": message.role, "tokens": tokens }))
        }
        RecordBody::ToolCall(call) => {
            (EventKind::ToolCallRecorded, json!({ "name": call.name, "tokens": tokens }))
        }
        RecordBody::Meta(patch) => meta_event(patch)?,
        RecordBody::ModeChange(change) => (
            EventKind::ModeChanged,
            json!({ "from": change.from, "to": change.to, "trigger": change.trigger }),
        ),
        RecordBody::Leaf(LeafMove { to, cause }) => {
            (EventKind::BranchChanged, json!({ "to": to, "cause": cause }))
        }
        RecordBody::PutBack(record) => {
            let (put_back, left) = (record.files.len(), record.left.len());
            let data = json!({ "cause": record.cause, "putBack": put_back, "left": left });
            (EventKind::FilesPutBack, data)
        }
        RecordBody::Label(label) => {
            (EventKind::SessionUpdated, json!({ "fields": ["labels"], "target": label.target }))
        }
        RecordBody::Loop(LoopMark { pattern: Some(pattern) }) => {
            (EventKind::LoopDetected, json!({ "pattern": pattern }))
        }
        RecordBody::Goal(change) => (EventKind::GoalUpdated, goal_data(change)),
        RecordBody::Close(close) => (EventKind::SessionClosed, json!({ "reason": close.reason })),
        _ => return None,
    })
}

/// Returns which parts of a goal changed, without their texts.
fn goal_data(change: &GoalChange) -> Value {
    let actions: Vec<_> = change.steps.iter().map(GoalStep::action).collect();
    let mut data = json!({ "source": change.source, "actions": actions });
    if let Some(seq) = change.message_seq {
        data["messageSeq"] = json!(seq);
    }
    data
}

/// Returns the names of the changed fields. Archiving is announced by its caller, with a reason that is not recorded.
fn meta_event(patch: &MetaPatch) -> Option<(EventKind, Value)> {
    if patch.archived == Some(true) {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::to_value(patch) else { return None };
    let names: Vec<&String> = fields.keys().collect();
    Some((EventKind::SessionUpdated, json!({ "fields": names })))
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::Pin;
    use ollm_protocol::methods::session::SessionUpdateParams;

    use super::*;
    use crate::app::sessions::update;
    use crate::app::testing::TestSession;

    #[tokio::test]
    async fn every_kind_of_record_schedules_the_document() {
        let session = TestSession::new(&[]);
        let due = || session.core.due_documents.take_all();
        session.record("user", "hello").await;
        assert_eq!(due(), [session.id]);
        let title = Some("a title".to_owned());
        let params = SessionUpdateParams { title, ..SessionUpdateParams::new(session.id) };
        update::update(Arc::clone(&session.core), params).await.expect("updates");
        assert_eq!(due(), [session.id]);
        session.append(RecordBody::Pin(Pin { target: ollm_protocol::Seq(1), pinned: true })).await;
        assert_eq!(due(), [session.id]);
        assert!(due().is_empty());
    }
}
