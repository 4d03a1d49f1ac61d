//! The observer of all sessions: it starts everything that follows a durable record, so that no writer can forget it.
//!
//! It is called on the writers' threads, after the sync and before the reply, in the order of the log. It only marks
//! work as due and publishes events: it never blocks.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use ollm_protocol::content::{LeafMove, LoopMark, MetaPatch, RecordBody, RecordScope};
use ollm_protocol::event::{
    BranchChangedData, FilesPutBackData, GoalUpdatedData, LoopDetectedData, MessageRecordedData,
    ModeChangedData, SessionClosedData, SessionCreatedData, SessionDamagedData, SessionHealedData,
    SessionUpdatedData, ToolCallRecordedData,
};
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;

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
            core.publish(id, None, &SessionDamagedData { damaged_records: damaged });
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
                if session.forked_from.is_none() && session.imported_from.is_none() {
                    core.hook_runs.mark_started(id);
                }
                let data = SessionCreatedData { title: session.title.clone() };
                let draft = EventDraft::new(Some(id), None, session.start_time, &data);
                core.events.publish(draft);
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
                if let Some(draft) = event_of(id, *seq, *at, body, *tokens) {
                    core.events.publish(draft);
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
                    core.publish(id, None, &SessionHealedData { records: *records });
                }
            }
        }
    }
}

/// Returns the event of a record, or `None` for kinds that subscribers do not need.
fn event_of(
    id: SessionId,
    seq: Seq,
    at: Timestamp,
    body: &RecordBody,
    tokens: u32,
) -> Option<EventDraft> {
    macro_rules! draft {
        ($data:expr) => {
            EventDraft::new(Some(id), Some(seq), at, &$data)
        };
    }
    Some(match body {
        RecordBody::Message(message) => {
            draft!(MessageRecordedData { role: message.role, tokens })
        }
        RecordBody::ToolCall(call) => {
            draft!(ToolCallRecordedData { name: call.name.clone(), tokens })
        }
        RecordBody::Meta(patch) => {
            draft!(SessionUpdatedData { fields: changed_fields(patch)?, target: None })
        }
        RecordBody::ModeChange(change) => draft!(ModeChangedData {
            from: change.from.clone(),
            to: change.to.clone(),
            trigger: change.trigger.clone(),
        }),
        RecordBody::Leaf(LeafMove { to, cause }) => {
            draft!(BranchChangedData { to: *to, cause: cause.clone() })
        }
        RecordBody::PutBack(record) => draft!(FilesPutBackData {
            cause: record.cause.clone(),
            put_back: record.files.len(),
            left: record.left.len(),
        }),
        RecordBody::Label(label) => {
            let fields = vec!["labels".to_owned()];
            draft!(SessionUpdatedData { fields, target: Some(label.target) })
        }
        RecordBody::Loop(LoopMark { pattern: Some(pattern) }) => {
            draft!(LoopDetectedData { pattern: pattern.clone() })
        }
        RecordBody::Goal(change) => draft!(GoalUpdatedData {
            source: change.source,
            actions: change.steps.iter().map(|step| step.action().to_owned()).collect(),
            message_seq: change.message_seq,
        }),
        RecordBody::Close(close) => draft!(SessionClosedData { reason: close.reason }),
        _ => return None,
    })
}

/// Returns the names of the changed fields. Archiving is announced by its caller, with a reason that is not recorded.
fn changed_fields(patch: &MetaPatch) -> Option<Vec<String>> {
    if patch.archived == Some(true) {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::to_value(patch) else { return None };
    Some(fields.keys().cloned().collect())
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
