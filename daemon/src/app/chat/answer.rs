//! One answer of a model while it streams, and its record however it ends.

use std::sync::Arc;
use std::time::Instant;

use ollm_protocol::content::{Message, Part, RecordBody, Role, Usage};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase, ChatToolCall};
use ollm_protocol::{Seq, SessionId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::core::Core;
use crate::app::drafts::message_drafts;
use crate::app::error::AppError;
use crate::app::partial::{INTERRUPTED, PartialWriter, answer_parts};
use crate::clock::Clock;
use crate::model::{
    AnswerCall, AnswerStream, CallPhase, ChatDelta, ChatEnd, ChatItem, DoneReason, ModelError,
};
use crate::session::NewRecord;
use crate::shutdown::Tasks;

/// Finish reasons of answers that were cut off, beside [`INTERRUPTED`].
const CANCELED: &str = "canceled";
const TIMEOUT: &str = "timeout";

/// Returns whether an answer with this finish reason is complete.
fn is_complete(finish_reason: &str) -> bool {
    ![CANCELED, TIMEOUT, INTERRUPTED].contains(&finish_reason)
}

/// Returns whether a recorded assistant message is an answer: complete, and more than thinking.
pub(super) fn is_final_answer(message: &Message) -> bool {
    let has_content = |part: &Part| match part {
        Part::Text { text } => !text.trim().is_empty(),
        Part::Thinking { .. } => false,
        Part::ToolCall { .. } | Part::Image { .. } => true,
    };
    is_complete(message.finish_reason.as_deref().unwrap_or_default())
        && message.parts.iter().any(has_content)
}

/// Sends the events of a turn to its client as long as that listens.
pub(super) struct TurnReporter(mpsc::Sender<Result<ChatEvent, AppError>>);

impl TurnReporter {
    pub(super) const fn new(sender: mpsc::Sender<Result<ChatEvent, AppError>>) -> Self {
        Self(sender)
    }

    /// Waits for a slow client, but not longer than until the turn is canceled.
    pub(super) async fn send(&self, event: ChatEvent, cancel: &CancellationToken) {
        tokio::select! {
            biased;
            // Fails for a client that left.
            sent = self.0.send(Ok(event)) => drop(sent),
            () = cancel.cancelled() => {}
        }
    }

    pub(super) async fn send_last(&self, last: Result<ChatEvent, AppError>) {
        drop(self.0.send(last).await);
    }
}

/// An answer as far as it arrived.
pub(super) struct StreamedAnswer {
    thinking: String,
    text: String,
    pub(super) calls: Vec<ChatToolCall>,
    pub(super) end: Result<ChatEnd, AnswerStop>,
    started: Instant,
}

/// Why an answer stopped before its end.
pub(super) enum AnswerStop {
    Canceled,
    /// The daemon shuts down.
    Stopping,
    Failed(ModelError),
}

impl StreamedAnswer {
    fn new(end: Result<ChatEnd, AnswerStop>) -> Self {
        let (thinking, text, calls) = (String::new(), String::new(), Vec::new());
        Self { thinking, text, calls, end, started: Instant::now() }
    }

    /// An answer to a request that the server refused.
    pub(super) fn refused(error: ModelError) -> Self {
        Self::new(Err(AnswerStop::Failed(error)))
    }

    /// Reads an answer to its end, reporting it and recording its pieces.
    pub(super) async fn read(
        core: &Core,
        mut stream: AnswerStream,
        mut partial: PartialWriter,
        reporter: &TurnReporter,
        (cancel, tasks): (&CancellationToken, &Tasks),
    ) -> Self {
        let mut answer = Self::new(Err(AnswerStop::Canceled));
        loop {
            let item = tokio::select! {
                biased;
                () = cancel.cancelled() => return answer,
                () = tasks.stopping() => {
                    answer.end = Err(AnswerStop::Stopping);
                    return answer;
                }
                item = stream.next() => item,
            };
            match item {
                Ok(ChatItem::Delta(delta)) => {
                    if answer.is_silent() {
                        let name = ChatPhase::Answering;
                        let phase =
                            ChatEvent::Phase { name, tokens: None, expected_ms: None, ahead: None };
                        reporter.send(phase, cancel).await;
                    }
                    if let Some(event) = answer.add(&core.clock, delta) {
                        reporter.send(event, cancel).await;
                    }
                    partial.write(core, &answer.text, &answer.thinking);
                }
                Ok(ChatItem::End(end)) => {
                    answer.end = Ok(end);
                    return answer;
                }
                Err(error) => {
                    answer.end = Err(AnswerStop::Failed(error));
                    return answer;
                }
            }
        }
    }

    fn add(&mut self, clock: &Clock, delta: ChatDelta) -> Option<ChatEvent> {
        match delta {
            ChatDelta::Text(text) => {
                self.text.push_str(&text);
                Some(ChatEvent::Delta { text: Some(text), thinking: None })
            }
            ChatDelta::Thinking(text) => {
                self.thinking.push_str(&text);
                Some(ChatEvent::Delta { text: None, thinking: Some(text) })
            }
            ChatDelta::ToolCalls(calls) => {
                self.calls.extend(calls.into_iter().map(|call| call_with_id(clock, call)));
                None
            }
        }
    }

    /// Returns whether nothing arrived yet.
    fn is_silent(&self) -> bool {
        self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// Returns whether the answer has neither text nor tool calls.
    pub(super) fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.calls.is_empty()
    }

    pub(super) fn has_thinking(&self) -> bool {
        !self.thinking.trim().is_empty()
    }

    /// Returns the finish reason to record.
    pub(super) fn finish_reason(&self) -> &str {
        match &self.end {
            Ok(end) => match &end.reason {
                DoneReason::Length => "length",
                DoneReason::Other(word) if !word.is_empty() => word,
                _ => "stop",
            },
            Err(AnswerStop::Canceled) => CANCELED,
            Err(AnswerStop::Failed(ModelError::Timeout {
                phase: CallPhase::FirstToken | CallPhase::NextToken,
                ..
            })) => TIMEOUT,
            Err(AnswerStop::Stopping | AnswerStop::Failed(_)) => INTERRUPTED,
        }
    }

    /// Records the answer with the counts of the server; returns `None` if it has no content.
    pub(super) async fn record(
        &self,
        core: &Arc<Core>,
        id: SessionId,
        model: &str,
        usage: Option<Usage>,
    ) -> Result<Option<Seq>, AppError> {
        let mut parts = answer_parts(self.thinking.clone(), self.text.clone());
        parts.extend(self.calls.iter().map(|call| Part::ToolCall {
            id: call.id.clone(),
            name: call.name.clone(),
            args: call.args.clone(),
        }));
        if parts.is_empty() {
            return Ok(None);
        }
        let mut message = Message::text(Role::Assistant, "", core.clock.now());
        message.parts = parts;
        message.model = Some(model.to_owned());
        message.finish_reason = Some(self.finish_reason().to_owned());
        message.duration_ms = u64::try_from(self.started.elapsed().as_millis()).ok();
        let (mut drafts, _) = message_drafts(core, id, message, is_complete(self.finish_reason()));
        drafts.extend(usage.map(|usage| NewRecord::new(RecordBody::Usage(usage), None)));
        Ok(Some(core.append(id, drafts, None).await?.seq))
    }
}

/// Returns a call with an id: results are linked by it, and not every server gives one.
fn call_with_id(clock: &Clock, call: AnswerCall) -> ChatToolCall {
    let AnswerCall { id, name, args } = call;
    let id = id.filter(|id| !id.is_empty());
    ChatToolCall { id: id.unwrap_or_else(|| format!("call_{}", clock.uuid().simple())), name, args }
}
