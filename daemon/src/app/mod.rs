//! What combines several parts into one step of a conversation: recording, reading, building, importing,
//! deleting. The only place where session, catalog, tokens and context meet.
//!
//! **Invariant**: nothing here knows the wire's errors or framing; every function takes the [`Core`] first.

mod build;
mod builds;
mod chat;
mod compact;
mod counts;
mod create;
mod documents;
mod entries;
mod exchange;
mod facts;
mod goal;
mod inspect;
mod list;
mod loops;
mod mark;
mod models;
mod paths;
mod pins;
mod prepared;
mod read;
mod record;
mod remove;
mod retention;
mod shares;
mod update;
mod volatile;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ollm_protocol::content::{CountKind, LoopPattern, RecordBody, Session};
use ollm_protocol::{Seq, SessionId};

pub(crate) use build::build;
pub(crate) use builds::Builds;
pub(crate) use chat::{ChatError, Chats, Started, cancel, settle, start, submit_tool_results};
pub(crate) use compact::{CompactError, Compactions, checkpoints, compact};
pub(crate) use counts::Counts;
pub(crate) use create::create;
pub(crate) use documents::{Documents, save};
pub(crate) use entries::{add_entry, list_entries, remove_entry};
pub(crate) use exchange::{Uploads, export, import};
pub(crate) use facts::Recalled;
pub(crate) use goal::{
    goal_add_artifact, goal_add_checkpoint, goal_add_decision, goal_apply_markers, goal_create,
    goal_list, goal_lock_decision, goal_set_next_steps, goal_update, goal_update_checkpoint,
};
pub(crate) use inspect::{context_inspect, context_status};
pub(crate) use list::{current, list, search, set_current};
pub(crate) use loops::{Loops, loop_reset, loop_status};
pub(crate) use models::{
    count_tokens, model_server, model_settings, models_list, models_running, models_show,
    models_warm,
};
pub(crate) use paths::Paths;
pub(crate) use pins::{pin, unpin};
pub(crate) use read::{get, resume};
pub(crate) use record::{record, record_custom, record_tool_call};
pub(crate) use remove::{cleanup, clear, clear_up, delete};
pub(crate) use retention::Retention;
pub(crate) use update::{archive, close, set_mode, unarchive, update};

use crate::catalog::{Catalog, CatalogError};
use crate::clock::Clock;
use crate::config::Config;
use crate::context::ContextError;
use crate::events::EventRing;
use crate::goal::GoalError;
use crate::model::{ModelError, Models};
use crate::projects::{ProjectError, Projects};
use crate::session::import::ImportError;
use crate::session::{Appended, IdempotencyKey, NewRecord, SessionError, Sessions};
use crate::tokens::Counter;

/// Everything that a step may need; built once, shared by all calls.
pub(crate) struct Core {
    /// The session logs.
    pub sessions: Sessions,
    /// The derived database.
    pub catalog: Arc<Catalog>,
    /// What projects remember.
    pub projects: Projects,
    /// Who is told what happens.
    pub events: EventRing,
    /// Time and ids.
    pub clock: Arc<Clock>,
    /// The model server.
    pub models: Models,
    /// The chat turns that are going on.
    pub chats: Chats,
    /// The compactions that are going on.
    pub compactions: Compactions,
    /// Token counting.
    pub counts: Counts,
    /// The paths of the sessions that are worked on.
    pub paths: Paths,
    /// The last build of each session, for the share that a model server can reuse.
    pub builds: Builds,
    /// What was folded of sessions beside what was said.
    pub recalled: Recalled,
    /// Sessions that may repeat themselves.
    pub loops: Loops,
    /// Imports that arrive in chunks.
    pub uploads: Uploads,
    /// Session documents that are due.
    pub documents: Documents,
    /// Held while a session is begun with a key or imported, so that two retries at once begin one.
    pub creating: Mutex<()>,
    /// Held while sessions are deleted, so that a retry goes on where the first attempt got stuck and not beside
    /// it.
    pub deleting: Mutex<()>,
    /// The configuration in force; replaced as a whole when it is read again.
    pub config: RwLock<Arc<Config>>,
}

impl Core {
    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The sessions, as the session store shows them.
    pub(crate) fn summary(&self, id: SessionId) -> Result<Session, AppError> {
        Ok(self.sessions.summary(id)?)
    }
}

/// A step could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    /// The session store refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The catalog refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No context can be built.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The project cannot be used.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// The file cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The model server did not do it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A goal cannot be changed so.
    #[error(transparent)]
    Goal(#[from] GoalError),
    /// A chat turn did not come to its end.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A compaction was not done.
    #[error(transparent)]
    Compact(#[from] CompactError),
    /// A file operation failed.
    #[error(transparent)]
    Storage(#[from] crate::fsutil::FsError),
    /// A parameter does not make sense.
    #[error("{field}: {problem}")]
    Invalid {
        /// The parameter, as it is named on the wire.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// An upload is unknown, or has grown too large.
    #[error("upload {id}: {problem}")]
    Upload {
        /// The upload.
        id: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The session repeats itself, so the model is not called.
    #[error("session {id} repeats itself ({pattern}), so the model is not called")]
    LoopDetected {
        /// The session.
        id: SessionId,
        /// What repeats.
        pattern: LoopPattern,
    },
    /// A blocking step was ended by the daemon's shutdown.
    #[error("the daemon is leaving")]
    Stopping,
}

impl AppError {
    /// A parameter does not make sense.
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid { field, problem: problem.into() }
    }
}

/// A record as it is written, counted for the model of its session.
///
/// Counts with what is in memory: a write waits for nothing but its sync.
fn counted(core: &Arc<Core>, id: SessionId, body: RecordBody) -> (NewRecord, CountKind) {
    let counter = counter(core, id);
    let tokens = counter.count_record(&body);
    (NewRecord::new(body, Some((tokens, counter.identity()))), counter.kind())
}

/// The counter of a session's model; one that is on the disk is there for the next call, and a session that is not
/// open yet counts by estimate until it is: reading it first would hold up the caller and everybody beside it.
fn counter(core: &Arc<Core>, id: SessionId) -> Counter {
    let Some(own) = core.sessions.peek(id, |live| live.state().model().map(str::to_owned)) else {
        return Counter::ESTIMATE;
    };
    let Some(model) = own.or_else(|| core.config().ollama.model.clone()) else {
        return Counter::ESTIMATE;
    };
    let (counter, may_load) = core.counts.at_hand(&model);
    if may_load {
        let core = Arc::clone(core);
        drop(tokio::task::spawn_blocking(move || core.counts.load(Some(&model), None, &[])));
    }
    counter
}

/// Writes records and waits until they are durable; they are queued before the first await, so that calls of
/// one client keep their order.
async fn append(
    core: &Core,
    id: SessionId,
    drafts: Vec<NewRecord>,
    key: Option<IdempotencyKey>,
) -> Result<Appended, AppError> {
    let answer = core.sessions.append(id, drafts, key)?;
    Ok(answer.await.map_err(|_| SessionError::Stopping)??)
}

/// Writes what was made for a leaf; where its last record lies, `None` where something else was recorded since.
async fn append_after(
    core: &Core,
    id: SessionId,
    leaf: Option<Seq>,
    drafts: Vec<NewRecord>,
) -> Result<Option<Seq>, AppError> {
    let n_before_last = (drafts.len() as u64).saturating_sub(1);
    let answer = core.sessions.append_after(id, leaf, drafts)?;
    match answer.await.map_err(|_| SessionError::Stopping)? {
        Ok(appended) => Ok(Some(Seq(appended.seq.0 + n_before_last))),
        Err(SessionError::LeafMoved { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Runs work that may block on the disk where it does not hold up other calls.
pub(crate) async fn blocking<T: Send + 'static>(
    core: &Arc<Core>,
    work: impl FnOnce(&Arc<Core>) -> Result<T, AppError> + Send + 'static,
) -> Result<T, AppError> {
    let core = Arc::clone(core);
    let done = tokio::task::spawn_blocking(move || work(&core)).await;
    match done {
        Ok(done) => done,
        // The barrier around the handler tells it and logs it.
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => Err(AppError::Stopping),
    }
}

#[cfg(test)]
pub(crate) mod scratch;
