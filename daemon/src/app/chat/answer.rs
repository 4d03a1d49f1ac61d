//! The answer of a model: its stream, as it arrives, and whether it is complete.

use std::time::Instant;

use ollm_protocol::content::{Message, Part};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase, ChatToolCall};

use super::turn::{Turn, phase};
use crate::app::error::Result;
use crate::app::partial::{INTERRUPTED, PartialWriter};
use crate::app::turn_feed::AnswerText;
use crate::clock::Clock;
use crate::model::{
    AnswerCall, AnswerStream, CallPhase, ChatDelta, ChatEnd, ChatItem, DoneReason, ModelError,
};

/// Finish reasons of answers that were cut off, beside [`INTERRUPTED`].
const CANCELED: &str = "canceled";
const TIMEOUT: &str = "timeout";

/// Returns whether an answer with this finish reason is complete.
pub(super) fn is_complete(finish_reason: &str) -> bool {
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

/// An answer. Its text is in the feed of the turn until it has ended.
pub(super) struct StreamedAnswer {
    pub(super) thinking: String,
    pub(super) text: String,
    pub(super) calls: Vec<ChatToolCall>,
    pub(super) end: Result<ChatEnd, AnswerStop>,
    pub(super) started: Instant,
    /// Set once a piece has arrived.
    has_begun: bool,
}

/// The reason why an answer stopped before its end.
pub(super) enum AnswerStop {
    Canceled,
    /// The daemon shuts down.
    Stopping,
    Failed(ModelError),
}

impl StreamedAnswer {
    /// Returns an answer without content.
    pub(super) fn empty(end: Result<ChatEnd, AnswerStop>) -> Self {
        let (thinking, text, calls) = (String::new(), String::new(), Vec::new());
        Self { thinking, text, calls, end, started: Instant::now(), has_begun: false }
    }

    fn add(&mut self, clock: &Clock, delta: ChatDelta) -> Option<ChatEvent> {
        match delta {
            ChatDelta::Text(text) => Some(ChatEvent::Delta { text: Some(text), thinking: None }),
            ChatDelta::Thinking(text) => {
                Some(ChatEvent::Delta { text: None, thinking: Some(text) })
            }
            ChatDelta::ToolCalls(calls) => {
                self.calls.extend(calls.into_iter().map(|call| call_with_id(clock, call)));
                None
            }
            ChatDelta::Logprobs(tokens) => Some(ChatEvent::Logprobs { tokens }),
        }
    }

    /// Returns the error of an answer that failed before its first piece.
    pub(super) fn failed_at_once(&self) -> Option<&ModelError> {
        match &self.end {
            Err(AnswerStop::Failed(error)) if !self.has_begun => Some(error),
            _ => None,
        }
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
}

/// Returns a call with an id: results are linked by it, and not every server gives one.
fn call_with_id(clock: &Clock, call: AnswerCall) -> ChatToolCall {
    let AnswerCall { id, name, args } = call;
    let id = id.filter(|id| !id.is_empty());
    ChatToolCall { id: id.unwrap_or_else(|| format!("call_{}", clock.uuid().simple())), name, args }
}

impl Turn {
    /// Reads an answer to its end, reporting it and recording its pieces.
    pub(super) async fn read_answer(&self, stream: Box<dyn AnswerStream>) -> StreamedAnswer {
        let mut answer = StreamedAnswer::empty(Err(AnswerStop::Canceled));
        answer.end = tokio::select! {
            biased;
            () = self.cancel().cancelled() => Err(AnswerStop::Canceled),
            () = self.tasks.stopping() => Err(AnswerStop::Stopping),
            end = self.read_items(stream, &mut answer) => end.map_err(AnswerStop::Failed),
        };
        AnswerText { thinking: answer.thinking, text: answer.text } = self.feed().answer();
        answer
    }

    async fn read_items(
        &self,
        mut stream: Box<dyn AnswerStream>,
        answer: &mut StreamedAnswer,
    ) -> Result<ChatEnd, ModelError> {
        let (core, feed) = (&self.core, self.feed());
        let mut partial = PartialWriter::new(self.request.id, &self.request.named);
        loop {
            let item = {
                let mut next = stream.next();
                // A model that stalls sends nothing by whose arrival a piece could be recorded.
                loop {
                    tokio::select! {
                        biased;
                        item = &mut next => break item?,
                        () = partial.due(feed) => partial.write(core, feed),
                    }
                }
            };
            let delta = match item {
                ChatItem::Delta(delta) => delta,
                ChatItem::End(end) => return Ok(end),
            };
            let is_first = !std::mem::replace(&mut answer.has_begun, true);
            let begins = is_first.then(|| phase(ChatPhase::Answering));
            let events = begins.into_iter().chain(answer.add(&core.clock, delta));
            let events: Vec<ChatEvent> = events.inspect(|event| feed.publish(event)).collect();
            // Before the turn waits for a slow client.
            partial.write(core, feed);
            for event in events {
                self.send_to_owner(event).await;
            }
        }
    }
}
