//! A running turn: its request, its session, and the channel on which it reports to its client. The other files of this
//! folder add its steps.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::methods::chat::{
    ChatEvent, ChatPhase, ChatSendParams, Think as WireThink, ThinkLevel,
};
use ollm_protocol::{EventKind, Seq, SessionId};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::context::quota::context_size;
use crate::app::core::Core;
use crate::app::error::{AppError, ChatError, Result};
use crate::app::models::model_or_default;
use crate::app::running::{Claim, RunningTurn};
use crate::model::{Sampling, ThinkMode};
use crate::shutdown::Tasks;

/// A running turn.
pub(super) struct Turn {
    pub(super) core: Arc<Core>,
    pub(super) tasks: Tasks,
    pub(super) claim: Claim<RunningTurn>,
    pub(super) request: TurnRequest,
    pub(super) events: mpsc::Sender<Result<ChatEvent>>,
}

/// A checked request for a turn.
pub(super) struct TurnRequest {
    pub(super) id: SessionId,
    pub(super) model: String,
    /// The definitions of the client's tools.
    pub(super) tools: Vec<Value>,
    pub(super) sampling: Sampling,
    /// The longest answer in tokens.
    pub(super) max_tokens: Option<NonZeroU32>,
    pub(super) think: Option<ThinkMode>,
    /// The format of the answer.
    pub(super) format: Option<Value>,
    /// The window of the session in tokens.
    pub(super) context_size: u32,
}

/// The user's message of a turn.
pub(super) struct AcceptedMessage {
    /// Its record; `None` for a turn without a message.
    pub(super) seq: Option<Seq>,
    /// An earlier attempt with the same key recorded it.
    pub(super) duplicate: bool,
    /// The complete answer to the earlier attempt, and its finish reason.
    pub(super) answered: Option<(Seq, String)>,
}

impl Turn {
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.claim.value.cancel
    }

    /// Sends an event to the client as long as it listens. Waits for a slow client, but not longer than until the turn
    /// is canceled.
    pub(super) async fn report(&self, event: ChatEvent) {
        tokio::select! {
            biased;
            // Fails for a client that left.
            sent = self.events.send(Ok(event)) => drop(sent),
            () = self.cancel().cancelled() => {}
        }
    }

    /// Publishes an event about the session to all subscribers.
    pub(super) fn publish(&self, kind: EventKind, seq: Option<Seq>, data: Value) {
        self.core.publish(self.request.id, seq, kind, data);
    }

    /// Runs `work` unless the turn is canceled or the daemon shuts down first.
    pub(super) async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel().cancelled() => Err(ChatError::Canceled { partial: None }.into()),
            () = self.tasks.stopping() => Err(AppError::Stopping),
            done = work => Ok(done),
        }
    }
}

impl TurnRequest {
    /// Checks params before anything is recorded; their message and key are checked elsewhere. Blocks on the disk.
    pub(super) fn check(core: &Core, params: ChatSendParams) -> Result<Self> {
        let ChatSendParams { session_id, model, tools, options, max_tokens, think, format, .. } =
            params;
        let session = core.summary(session_id)?;
        let model = model_or_default(core, model.or(session.model.clone()))?;
        let sampling = Sampling::check(options)
            .map_err(|error| AppError::invalid("options", error.to_string()))?;
        let too_few = || AppError::invalid("maxTokens", "must be at least 1");
        let max_tokens =
            max_tokens.map(|most| NonZeroU32::new(most).ok_or_else(too_few)).transpose()?;
        if let Some(tool) = tools.iter().find(|tool| tool["function"]["name"].as_str().is_none()) {
            let tool: String = tool.to_string().chars().take(80).collect();
            let problem = format!("a definition has no function.name: {tool}");
            return Err(AppError::invalid("tools", problem));
        }
        let context_size = context_size(core, session_id)?;
        let think = think.map(think_mode);
        Ok(Self { id: session_id, model, tools, sampling, max_tokens, think, format, context_size })
    }
}

const fn think_mode(think: WireThink) -> ThinkMode {
    match think {
        WireThink::Flag(false) => ThinkMode::Off,
        WireThink::Flag(true) => ThinkMode::On,
        WireThink::Level(ThinkLevel::Low) => ThinkMode::Low,
        WireThink::Level(ThinkLevel::Medium) => ThinkMode::Medium,
        WireThink::Level(ThinkLevel::High) => ThinkMode::High,
        WireThink::Level(ThinkLevel::Max) => ThinkMode::Max,
    }
}

/// Returns the event of a phase without numbers.
pub(super) const fn phase(name: ChatPhase) -> ChatEvent {
    ChatEvent::Phase { name, tokens: None, expected_ms: None, ahead: None }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
