//! A chat turn: its handles, its client, and what every step of it uses.
//!
//! The steps are `impl Turn` blocks of their own: `run` is the course, `model_call` one call of the model, `record` the
//! record of its answer, `empty_answer` the decision after an answer without content.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::methods::chat::ChatEvent;
use ollm_protocol::{EventKind, Seq};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answer::TurnReporter;
use super::request::TurnRequest;
use crate::app::core::Core;
use crate::app::error::{AppError, ChatError, Result};
use crate::app::running::{Claim, RunningTurn};
use crate::shutdown::Tasks;

/// A running turn.
pub(super) struct Turn {
    pub(super) core: Arc<Core>,
    pub(super) claim: Claim<RunningTurn>,
    pub(super) request: TurnRequest,
    pub(super) reporter: TurnReporter,
}

impl Turn {
    pub(super) fn new(
        core: Arc<Core>,
        claim: Claim<RunningTurn>,
        request: TurnRequest,
        sender: mpsc::Sender<Result<ChatEvent>>,
    ) -> Self {
        Self { core, claim, request, reporter: TurnReporter::new(sender) }
    }

    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.claim.value.cancel
    }

    pub(super) async fn report(&self, event: ChatEvent) {
        self.reporter.send(event, self.cancel()).await;
    }

    /// Publishes an event about the session to all subscribers.
    pub(super) fn publish(&self, kind: EventKind, seq: Option<Seq>, data: Value) {
        self.core.publish(self.request.id, seq, kind, data);
    }

    /// Runs `work` unless the turn is canceled or the daemon shuts down first.
    pub(super) async fn unless_ended<T>(
        &self,
        tasks: &Tasks,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel().cancelled() => Err(ChatError::Canceled { partial: None }.into()),
            () = tasks.stopping() => Err(AppError::Stopping),
            done = work => done,
        }
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
