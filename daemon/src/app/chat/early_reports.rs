//! The questions to a model server before each call: whether it has the model in its memory, and which model of the name it
//! lists.
//!
//! They are asked while the user's message is recorded, so that a turn does not wait for the disk and then for the server.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::app::core::Core;
use crate::app::models::learning::LIST_WAIT;
use crate::model::ListedDigest;
use crate::shutdown::Tasks;

/// The longest wait for the list of models in memory, if the model was used recently. A server on this machine needs a
/// millisecond.
const RUNNING_WAIT: Duration = Duration::from_millis(200);
/// The age from which on reports are asked for again, because the model may have been replaced or unloaded since.
const MAX_AGE: Duration = Duration::from_millis(100);

/// The reports of a server about one model.
pub(super) struct ModelReports {
    /// The window of the model in the server's memory; the outer `None` if it is not there.
    pub(super) loaded: Option<Option<u32>>,
    /// The listed digest; `None` if the server cannot be reached.
    pub(super) listed: Option<ListedDigest>,
    at: Instant,
}

/// Reports that were requested when the turn began.
pub(super) struct EarlyReports {
    model: String,
    reports: Mutex<Option<JoinHandle<ModelReports>>>,
}

impl EarlyReports {
    /// Asks the server of a model in a task.
    pub(super) fn request(core: &Arc<Core>, tasks: &Tasks, id: SessionId, model: &str) -> Self {
        let (core, model) = (Arc::clone(core), model.to_owned());
        let asked = model.clone();
        let reports = tasks.spawn(async move { ask(&core, id, &asked).await });
        Self { model, reports: Mutex::new(Some(reports)) }
    }

    /// Returns the reports about a model: once the early ones, if they are of this model and recent, else new ones.
    pub(super) async fn current(&self, core: &Core, id: SessionId, model: &str) -> ModelReports {
        let early = self.reports.lock().take();
        if let Some(early) = early.filter(|_| self.model == model)
            && let Ok(reports) = early.await
            && reports.at.elapsed() < MAX_AGE
        {
            return reports;
        }
        ask(core, id, model).await
    }
}

async fn ask(core: &Core, id: SessionId, model: &str) -> ModelReports {
    let listed = core.models.listed_digest(model, LIST_WAIT);
    let (loaded, listed) = tokio::join!(loaded_window(core, id, model), listed);
    ModelReports { loaded, listed, at: Instant::now() }
}

/// Returns the window of the model in the server's memory, or `None` if it is not there.
///
/// The server may have unloaded a model that was used a moment ago, for another one or on request. A server that
/// loads another model answers late; then a recent use counts.
async fn loaded_window(core: &Core, id: SessionId, model: &str) -> Option<Option<u32>> {
    let last_used = core.speeds.get(model).last_used;
    let is_recent = last_used.is_some_and(|used| used.elapsed() < core.keep_alive(id) / 2);
    if !is_recent {
        let running = core.models.in_memory(model).await;
        return running.map(|running| running.effective_context);
    }
    let is_loaded = core.models.is_in_memory(model, RUNNING_WAIT).await.unwrap_or(true);
    is_loaded.then(|| core.models.windows().current(model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::TestSession;

    /// Returns whether each of two readings of reports that were requested before the model was unloaded has it in memory.
    async fn are_loaded(wait: Duration, model: &str) -> [bool; 2] {
        let (session, backend) = TestSession::with_model(&[]);
        backend.load();
        let (core, tasks) = (&session.core, Tasks::new());
        let early = EarlyReports::request(core, &tasks, session.id, "m");
        let is_done = || early.reports.lock().as_ref().is_some_and(JoinHandle::is_finished);
        while !is_done() {
            tokio::task::yield_now().await;
        }
        backend.unload();
        tokio::time::advance(wait).await;
        let first = early.current(core, session.id, model).await;
        let second = early.current(core, session.id, model).await;
        [first, second].map(|reports| reports.loaded.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn early_reports_are_used_once_and_only_while_recent_and_of_the_model() {
        assert_eq!(are_loaded(Duration::ZERO, "m").await, [true, false]);
        assert_eq!(are_loaded(MAX_AGE, "m").await, [false, false], "a server unloads models");
        assert_eq!(are_loaded(Duration::ZERO, "other").await, [false, false]);
    }
}
