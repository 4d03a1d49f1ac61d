//! One answer of a model as it comes, and what is recorded of it however it ends.

use std::sync::Arc;
use std::time::Instant;

use ollm_protocol::content::{Message, Part, RecordBody, Role, Usage};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase, ChatToolCall};
use ollm_protocol::{Seq, SessionId};
use tokio_util::sync::CancellationToken;

use super::partial::{Pieces, parts};
use super::run::Teller;
use crate::app::{AppError, Core, append, counted, goal};
use crate::model::{
    AnswerCall, AnswerStream, CallPhase, ChatDelta, ChatEnd, ChatItem, DoneReason, ModelError,
};
use crate::session::Draft;
use crate::shutdown::Tasks;

/// The finish reasons of answers that did not come to their end.
const CANCELED: &str = "canceled";
const TIMEOUT: &str = "timeout";
pub(super) const INTERRUPTED: &str = "interrupted";

/// Whether an answer that was recorded with this finish reason came to its end.
pub(super) fn is_whole(finish_reason: &str) -> bool {
    ![CANCELED, TIMEOUT, INTERRUPTED].contains(&finish_reason)
}

/// Whether a recorded message of a model answers something: it came to its end, and is more than thinking.
pub(super) fn is_an_answer(message: &Message) -> bool {
    let says = |part: &Part| match part {
        Part::Text { text } => !text.trim().is_empty(),
        Part::Thinking { .. } => false,
        Part::ToolCall { .. } | Part::Image { .. } => true,
    };
    is_whole(message.finish_reason.as_deref().unwrap_or_default()) && message.parts.iter().any(says)
}

/// What a model said, and how it ended.
pub(super) struct Answer {
    pub(super) thinking: String,
    pub(super) text: String,
    pub(super) calls: Vec<ChatToolCall>,
    pub(super) end: Result<ChatEnd, Stop>,
    began: Instant,
}

/// Why an answer stopped before its end.
pub(super) enum Stop {
    /// Somebody wanted it to.
    Canceled,
    /// The daemon leaves.
    Stopping,
    /// The model server failed.
    Failed(ModelError),
}

/// Reads an answer to its end, tells it and writes it piece by piece.
pub(super) async fn collect(
    core: &Core,
    mut stream: Box<dyn AnswerStream>,
    mut pieces: Pieces,
    teller: &Teller,
    (cancel, tasks): (&CancellationToken, &Tasks),
) -> Answer {
    let mut answer = Answer {
        thinking: String::new(),
        text: String::new(),
        calls: Vec::new(),
        end: Err(Stop::Canceled),
        began: Instant::now(),
    };
    loop {
        let item = tokio::select! {
            biased;
            () = cancel.cancelled() => return answer,
            () = tasks.stopping() => {
                answer.end = Err(Stop::Stopping);
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
                    teller.tell(phase, cancel).await;
                }
                if let Some(event) = answer.add(core, delta) {
                    teller.tell(event, cancel).await;
                }
                pieces.note(core, &answer.text, &answer.thinking);
            }
            Ok(ChatItem::End(end)) => {
                answer.end = Ok(end);
                return answer;
            }
            Err(error) => {
                answer.end = Err(Stop::Failed(error));
                return answer;
            }
        }
    }
}

impl Answer {
    /// None, because the server refused the request.
    pub(super) fn refused(error: ModelError) -> Self {
        Self {
            thinking: String::new(),
            text: String::new(),
            calls: Vec::new(),
            end: Err(Stop::Failed(error)),
            began: Instant::now(),
        }
    }

    fn add(&mut self, core: &Core, delta: ChatDelta) -> Option<ChatEvent> {
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
                self.calls.extend(calls.into_iter().map(|call| named(core, call)));
                None
            }
        }
    }

    /// Whether nothing came yet.
    fn is_silent(&self) -> bool {
        self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }

    /// Whether the model said neither text nor called a tool.
    pub(super) fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.calls.is_empty()
    }

    /// Whether the model thought aloud.
    pub(super) fn has_thought(&self) -> bool {
        !self.thinking.trim().is_empty()
    }

    /// Why it ended, in one word.
    pub(super) fn finish_reason(&self) -> &str {
        match &self.end {
            Ok(end) => match &end.reason {
                DoneReason::Length => "length",
                DoneReason::Other(word) if !word.is_empty() => word,
                _ => "stop",
            },
            Err(Stop::Canceled) => CANCELED,
            Err(Stop::Failed(ModelError::Timeout {
                phase: CallPhase::FirstToken | CallPhase::NextToken,
                ..
            })) => TIMEOUT,
            Err(Stop::Stopping | Stop::Failed(_)) => INTERRUPTED,
        }
    }

    /// Records what was said, with what the server counted; `None` when nothing was said.
    pub(super) async fn record(
        &self,
        core: &Arc<Core>,
        id: SessionId,
        model: &str,
        usage: Option<Usage>,
    ) -> Result<Option<Seq>, AppError> {
        let mut said = parts(self.thinking.clone(), self.text.clone());
        said.extend(self.calls.iter().map(|call| Part::ToolCall {
            id: call.id.clone(),
            name: call.name.clone(),
            args: call.args.clone(),
        }));
        if said.is_empty() {
            return Ok(None);
        }
        let mut message = Message::text(Role::Assistant, "", core.clock.now());
        message.parts = said;
        message.model = Some(model.to_owned());
        message.finish_reason = Some(self.finish_reason().to_owned());
        message.duration_ms = u64::try_from(self.began.elapsed().as_millis()).ok();
        let marked = goal::marked(core, id, &message, is_whole(self.finish_reason()));
        let body = RecordBody::Message(message);
        let mut drafts = vec![counted(core, id, body).0];
        drafts.extend(marked);
        drafts.extend(usage.map(|usage| Draft::new(RecordBody::Usage(usage), None)));
        let appended = append(core, id, drafts, None).await?;
        core.documents.note(id);
        Ok(Some(appended.seq))
    }
}

/// A call with an id: results are linked by it, and not every server gives one.
fn named(core: &Core, call: AnswerCall) -> ChatToolCall {
    let AnswerCall { id, name, args } = call;
    let id = id.filter(|id| !id.is_empty());
    ChatToolCall {
        id: id.unwrap_or_else(|| format!("call_{}", core.clock.uuid().simple())),
        name,
        args,
    }
}
