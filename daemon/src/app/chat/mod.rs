//! Chat turns: from a user's message over tool calls to the final answer, each step durable before the next.
//!
//! A turn is a task that outlives the call that began it when it is detached. What it does is told through a
//! channel of [`ChatEvent`]s; who does not listen any more is not waited for.
//!
//! **Invariants**: one turn a session at a time; the user's message is synced before the model is asked; what was
//! answered stays whatever ends the turn; a tool's result enters the log once.

mod answer;
mod ask;
mod error;
mod partial;
mod plan;
mod retry;
mod run;
mod silence;
mod tools;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ollm_protocol::content::{RecordBody, RecordKind, Role};
use ollm_protocol::methods::chat::{ChatCancelResult, ChatEvent, ChatSendParams};
use ollm_protocol::methods::session::MessageInput;
use ollm_protocol::{Seq, SessionId, Timestamp, method};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use error::ChatError;
pub(crate) use partial::settle;
pub(crate) use silence::Spent;
pub(crate) use tools::submit_tool_results;

use self::answer::is_an_answer;
use self::plan::{Learned, Plan};
use self::retry::{Wish, step_back};
use self::tools::Awaited;
use super::record::{key_use, message_of};
use super::{AppError, Core, append, counted};
use crate::session::index::IndexEntry;
use crate::shutdown::Tasks;

/// Events that wait for a client that reads slowly; a piece of an answer is a few bytes, and the model is held up
/// when these are full, so that a slow client costs no memory.
const WAITING_EVENTS: usize = 256;

/// What a turn tells; an error is the last thing.
pub(crate) type TurnEvents = mpsc::Receiver<Result<ChatEvent, AppError>>;

/// The turns that are going on, and what earlier ones taught.
#[derive(Default)]
pub(crate) struct Chats {
    running: Mutex<HashMap<SessionId, Arc<Running>>>,
    learned: Mutex<HashMap<String, Learned>>,
}

/// One turn that is going on.
pub(crate) struct Running {
    /// The model that answers.
    model: String,
    /// When it began.
    started: Timestamp,
    /// Ends it.
    cancel: CancellationToken,
    /// The tools that it waits for.
    awaited: Awaited,
}

impl Chats {
    fn running(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of a session.
    fn of(&self, id: SessionId) -> Option<Arc<Running>> {
        self.running().get(&id).cloned()
    }

    /// Whether a turn of the session is going on.
    pub(crate) fn is_running(&self, id: SessionId) -> bool {
        self.running().contains_key(&id)
    }

    /// What earlier turns taught of a model.
    fn learned(&self, model: &str) -> Learned {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        learned.get(model).copied().unwrap_or_default()
    }

    fn learn(&self, model: &str, change: impl FnOnce(&mut Learned)) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        change(learned.entry(model.to_owned()).or_default());
    }
}

/// The session's place among the turns; given up when it is dropped.
struct Slot {
    core: Arc<Core>,
    id: SessionId,
    turn: Arc<Running>,
}

impl Slot {
    fn take(core: &Arc<Core>, id: SessionId, model: &str) -> Result<Self, ChatError> {
        let mut running = core.chats.running();
        if let Some(holder) = running.get(&id) {
            let (model, since) = (holder.model.clone(), holder.started);
            return Err(ChatError::Conflict { id, model, since });
        }
        let turn = Arc::new(Running {
            model: model.to_owned(),
            started: core.clock.now(),
            cancel: CancellationToken::new(),
            awaited: Awaited::default(),
        });
        running.insert(id, Arc::clone(&turn));
        Ok(Self { core: Arc::clone(core), id, turn })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.core.chats.running().remove(&self.id);
    }
}

/// A turn that began.
pub(crate) struct Started {
    /// What it tells.
    pub events: TurnEvents,
    /// Ends it; left alone by who lets it go on.
    pub cancel: CancellationToken,
}

/// Records the user's message and begins to answer it.
///
/// **Errors**: what can be told before anything is done; later ones come as the last event.
pub(crate) async fn start(
    core: &Arc<Core>,
    tasks: &Tasks,
    mut params: ChatSendParams,
) -> Result<Started, AppError> {
    let id = params.session_id;
    let message = params.message.take();
    if message.as_ref().is_some_and(|message| message.role != Role::User) {
        return Err(AppError::invalid("message.role", "a turn begins with a message of the user"));
    }
    let key = params.key.take();
    let plan = super::blocking(core, move |core| Plan::check(core, params)).await?;
    let slot = Slot::take(core, id, &plan.model)?;
    settle_for(core, id).await?;
    let accepted = record_message(core, id, message, key).await?;
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    let cancel = slot.turn.cancel.clone();
    let (turn_tasks, turn) = (tasks.clone(), run::Turn::new(slot, plan, sender));
    drop(tasks.spawn(async move { turn.run(accepted, &turn_tasks).await }));
    Ok(Started { events, cancel })
}

/// Ends the turn of a session.
pub(crate) async fn cancel(core: &Arc<Core>, id: SessionId) -> Result<ChatCancelResult, AppError> {
    let turn = core.chats.of(id);
    match &turn {
        Some(turn) => turn.cancel.cancel(),
        None => must_exist(core, id).await?,
    }
    Ok(ChatCancelResult { canceled: turn.is_some() })
}

/// Tells whoever names a session that does not exist.
async fn must_exist(core: &Arc<Core>, id: SessionId) -> Result<(), AppError> {
    super::blocking(core, move |core| core.summary(id).map(drop)).await
}

/// The user's message of a turn.
struct Accepted {
    /// Its record.
    seq: Option<Seq>,
    /// It was recorded by an earlier try.
    duplicate: bool,
    /// The whole answer that the earlier try got, and why it ended.
    answered: Option<(Seq, String)>,
}

async fn record_message(
    core: &Arc<Core>,
    id: SessionId,
    message: Option<MessageInput>,
    key: Option<String>,
) -> Result<Accepted, AppError> {
    let Some(message) = message else {
        super::blocking(core, move |core| step_back(core, id, Wish::Answer)).await?;
        return Ok(Accepted { seq: None, duplicate: false, answered: None });
    };
    let key = key_use::<method::ChatSend>(key, &message)?;
    let body = RecordBody::Message(message_of(core, message)?);
    let (draft, _) = counted(core, id, body);
    let appended = append(core, id, vec![draft], key).await?;
    core.documents.note(id);
    let (seq, duplicate) = (appended.seq, appended.duplicate);
    let answered = if duplicate {
        super::blocking(core, move |core| {
            let answered = answer_after(core, id, seq)?;
            if answered.is_none() {
                step_back(core, id, Wish::Message)?;
            }
            Ok(answered)
        })
        .await?
    } else {
        None
    };
    Ok(Accepted { seq: Some(seq), duplicate, answered })
}

/// The newest final answer on the active path after a message, and why it ended; one that did not come to its end
/// is none. Blocks on the disk.
fn answer_after(
    core: &Core,
    id: SessionId,
    message: Seq,
) -> Result<Option<(Seq, String)>, AppError> {
    let newest = core.sessions.with(id, |live| {
        let state = live.state();
        state.path().into_iter().rev().take_while(|seq| *seq > message).find(|seq| {
            state.entry(*seq).is_some_and(|entry| {
                entry.kind() == Some(RecordKind::Message)
                    && entry.role() == Some(Role::Assistant)
                    && !entry.has(IndexEntry::CALLS_TOOLS)
            })
        })
    })?;
    let Some(seq) = newest else { return Ok(None) };
    let Some(RecordBody::Message(answer)) = core.sessions.bodies(id, &[seq])?.pop().flatten()
    else {
        return Ok(None);
    };
    let is_answer = is_an_answer(&answer);
    let reason = answer.finish_reason.unwrap_or_else(|| "stop".to_owned());
    Ok(is_answer.then_some((seq, reason)))
}

/// Settles what a crash left, away from the threads that serve connections.
async fn settle_for(core: &Arc<Core>, id: SessionId) -> Result<(), AppError> {
    super::blocking(core, move |core| partial::settle_now(core, id)).await
}
