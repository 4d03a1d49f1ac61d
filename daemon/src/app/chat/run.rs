//! The course of a turn: build a context, call the model, record the answer, wait for tools, and again until no tool is
//! called.

use ollm_protocol::methods::chat::ChatEvent;
use ollm_protocol::{EventKind, Seq};
use serde_json::{Value, json};

use super::AcceptedMessage;
use super::answer::StreamedAnswer;
use super::empty_answer::{AfterAnswer, Retries};
use super::turn::{Turn, as_ms};
use crate::app::error::{AppError, ChatError, Result};
use crate::app::loops::may_call_model;
use crate::model::{CallTarget, Capability, ModelError, ModelInfo};
use crate::shutdown::Tasks;

impl Turn {
    /// Runs the turn and reports how it ended.
    pub(super) async fn run(self, accepted: AcceptedMessage, tasks: &Tasks) {
        let model = self.request.model.clone();
        self.publish(EventKind::TurnStarted, accepted.seq, json!({ "model": model }));
        let last = self.answer(accepted, tasks).await;
        let (seq, data) = match &last {
            Ok(ChatEvent::Done { seq, finish_reason, .. }) => {
                (Some(*seq), json!({ "model": model, "finishReason": finish_reason }))
            }
            Ok(_) => (None, Value::Null),
            Err(error) => {
                let partial =
                    if let AppError::Chat(error) = error { error.partial() } else { None };
                (partial, json!({ "model": model, "error": error.to_string() }))
            }
        };
        self.publish(EventKind::TurnEnded, seq, data);
        let Self { claim, reporter, .. } = self;
        // A client that reads the last event may start the next turn.
        drop(claim);
        reporter.send_last(last).await;
    }

    /// Answers the message and returns the last event.
    async fn answer(&self, accepted: AcceptedMessage, tasks: &Tasks) -> Result<ChatEvent> {
        let AcceptedMessage { seq, duplicate, answered } = accepted;
        let model = self.request.model.clone();
        self.report(ChatEvent::Accepted { seq, duplicate, model }).await;
        if let Some((seq, finish_reason)) = answered {
            return Ok(ChatEvent::Done { seq, finish_reason, usage: None });
        }
        let core = &self.core;
        let info = async { Ok(core.models.info(&self.request.model).await?) };
        let info = self.unless_ended(tasks, info).await?;
        self.check_capabilities(&info)?;
        let (mut retries, mut shrink) = (Retries::default(), None);
        loop {
            may_call_model(core, self.request.id).await?;
            let call = self.call_model(&info, tasks, shrink.take()).await?;
            let effective = self.measure(&call).await;
            if let AfterAnswer::CallAgain(required) =
                self.after_answer(&info, &call, effective, &mut retries).await?
            {
                shrink = required;
                continue;
            }
            let (seq, usage) = self.record(&info, &call, effective).await?;
            let seq = seq.ok_or_else(|| self.empty_answer_error(&call, None))?;
            if call.answer.calls.is_empty() {
                let finish_reason = call.answer.finish_reason().to_owned();
                return Ok(ChatEvent::Done { seq, finish_reason, usage: Some(usage) });
            }
            // Before the tools run: their results would not be sent to the model.
            may_call_model(core, self.request.id).await?;
            self.wait_for_tools(seq, call.answer, tasks).await?;
        }
    }

    /// Refuses what the model cannot do.
    fn check_capabilities(&self, info: &ModelInfo) -> Result<()> {
        let lacks_tools = !self.request.tools.is_empty() && info.can("tools") == Some(false);
        if !lacks_tools {
            return Ok(());
        }
        let host = self.core.models.backend()?.host();
        let to = CallTarget { host, model: Some(self.request.model.clone()) };
        Err(ModelError::Unsupported { to, capability: Capability::Tools }.into())
    }

    /// Reports the tool calls of an answer and waits until all results are recorded.
    async fn wait_for_tools(&self, seq: Seq, answer: StreamedAnswer, tasks: &Tasks) -> Result<()> {
        if self.request.tools.is_empty() {
            let name = answer.calls.first().map(|call| call.name.clone()).unwrap_or_default();
            let model = self.request.model.clone();
            return Err(ChatError::UnexpectedCall { model, name, partial: seq }.into());
        }
        let pending = &self.claim.value.pending_calls;
        pending.begin(seq, answer.calls.clone());
        let after = self.core.config().ollama.tool_timeout;
        let timeout_ms = as_ms(after);
        self.report(ChatEvent::ToolCalls { seq, calls: answer.calls, timeout_ms }).await;
        let complete = async { Ok(tokio::time::timeout(after, pending.complete()).await) };
        let waited = self.unless_ended(tasks, complete).await;
        let missing = pending.end();
        match waited? {
            Ok(()) => Ok(()),
            Err(_) => Err(ChatError::ToolTimeout { missing, after }.into()),
        }
    }
}
