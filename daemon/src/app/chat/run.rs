//! The course of a turn: build a context, call the model, record the answer, wait for tools, and again until no tool
//! is called.
//!
//! An answer without text or tool calls is empty: the model is called again if that can help, and else the turn fails
//! with an error that names the use of the tokens.
//!
//! **Invariants**: the context is shrunk at most once in a turn; a model that ran into a limit is called again only
//! with a smaller context; before that, its thinking is recorded off the active path.

use std::num::NonZeroU32;
use std::sync::Arc;

use ollm_protocol::Seq;
use ollm_protocol::content::HookTurn;
use ollm_protocol::event::{TurnEndedData, TurnStartedData};
use ollm_protocol::methods::chat::{AnswerCut, ChatEvent, ChatToolCall};

use super::answer::AnswerStop;
use super::failover::FailedServers;
use super::model_call::{ModelCall, RequiredShrink, ShownInTurn};
use super::retry::{RetryIntent, step_back};
use super::turn::{AcceptedMessage, Turn, as_ms};
use crate::app::compaction;
use crate::app::error::{AppError, ChatError, Result, SpentTokens};
use crate::app::hooks;
use crate::app::loops::may_call_model;
use crate::model::{Capability, ChatEnd, ModelError, ModelInfo};

/// The utilization in percent from which shrinking the context is worth it: a compaction leaves at most 55, and a few
/// more tokens would not make room for an answer.
const MIN_UTILIZATION_PERCENT: f64 = 60.0;
/// The smallest part of a window that `context.answerReserve` can leave to prompts, in percent. Longer prompts can be
/// shortened by it.
const MIN_PROMPT_PERCENT: u64 = 60;

/// The retries of a turn so far.
#[derive(Debug, Default)]
struct Retries {
    n_empty: u32,
    has_shrunk: bool,
}

/// The next step of a turn after a model call.
enum AfterAnswer {
    /// The answer is recorded, or its error ends the turn.
    Record,
    /// The model is called again, with a smaller context if one is required.
    CallAgain(Option<RequiredShrink>),
}

impl Turn {
    /// Runs the turn and reports how it ended.
    pub(super) async fn run(mut self, accepted: AcceptedMessage) {
        let model = self.request.named.clone();
        self.publish(accepted.seq, &TurnStartedData { model: model.clone() });
        let last = self.answer(accepted).await;
        let (seq, finish_reason) = match &last {
            Ok(ChatEvent::Done { seq, finish_reason, .. }) => {
                (Some(*seq), Some(finish_reason.clone()))
            }
            Err(AppError::Chat(error)) => (error.partial(), None),
            _ => (None, None),
        };
        let error = last.as_ref().err().map(ToString::to_string);
        let turn = HookTurn { seq, finish_reason: finish_reason.clone(), error: error.clone() };
        self.publish(seq, &TurnEndedData { model, finish_reason, error });
        let Self { core, request, claim, events, .. } = self;
        core.due_compactions.end_turn(request.id);
        claim.value.feed.end(last);
        // A client that reads the last event may start the next turn.
        drop(claim);
        // The records of a turn are compacted behind it, so that no user waits.
        compaction::follow_turn(&core, request.id);
        hooks::after_turn(&core, request.id, turn);
        // Its client gets the last event now.
        drop(events);
    }

    /// Answers the message and returns the last event.
    async fn answer(&mut self, accepted: AcceptedMessage) -> Result<ChatEvent> {
        let AcceptedMessage { seq, duplicate } = accepted;
        let model = self.request.named.clone();
        self.report(ChatEvent::Accepted { seq, duplicate, model }).await;
        let core = &Arc::clone(&self.core);
        let mut failed = FailedServers::default();
        let mut info = self.describe_model(&mut failed).await?;
        self.check_capabilities(&info)?;
        // The model may not have been described when the message came.
        self.request.check_images(core).await?;
        self.answer_open_calls(seq).await?;
        let (mut retries, mut shrink) = (Retries::default(), None);
        let mut shown = ShownInTurn::default();
        loop {
            may_call_model(core, self.request.id).await?;
            let call = match self.call_model(&mut info, &mut shrink, &mut shown).await {
                Ok(call) => call,
                Err(error) => {
                    self.fail_over(error, &mut failed).await?;
                    info = self.describe_model(&mut failed).await?;
                    self.check_capabilities(&info)?;
                    continue;
                }
            };
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
            // Checked before the tools run, because their results would not be sent to the model.
            may_call_model(core, self.request.id).await?;
            let calls = self.answer_recall_calls(seq, call.answer.calls).await?;
            if !calls.is_empty() {
                self.wait_for_tools(seq, calls).await?;
            }
        }
    }

    /// Refuses tools for a model that does not support them.
    fn check_capabilities(&self, info: &ModelInfo) -> Result<()> {
        if self.request.tools.is_empty() || info.can("tools") != Some(false) {
            return Ok(());
        }
        let to =
            self.core.models.backend_for(&self.request.model)?.target(Some(&self.request.model));
        Err(ModelError::Unsupported { to, capability: Capability::Tools }.into())
    }

    /// Reports tool calls of an answer to the client and waits until all results are recorded.
    async fn wait_for_tools(&self, seq: Seq, calls: Vec<ChatToolCall>) -> Result<()> {
        if self.request.tools.is_empty() {
            let name = calls.first().map(|call| call.name.clone()).unwrap_or_default();
            let model = self.request.model.clone();
            return Err(ChatError::UnexpectedCall { model, name, partial: seq }.into());
        }
        let pending = &self.claim.value.pending_calls;
        pending.begin(seq, calls.clone());
        let after = self.core.config().chat.tool_timeout;
        let timeout_ms = as_ms(after);
        self.report(ChatEvent::ToolCalls { seq, calls, timeout_ms, by: None }).await;
        let waited = self.unless_ended(tokio::time::timeout(after, pending.complete())).await;
        let missing = pending.end();
        waited?.map_err(|_| ChatError::ToolTimeout { missing, after }.into())
    }

    /// Decides how the turn continues; an empty answer is recorded here.
    ///
    /// **Errors**: `EmptyAnswer` and `OnlyThinking` if calling again would not help.
    async fn after_answer(
        &self,
        info: &Arc<ModelInfo>,
        call: &ModelCall,
        effective: Option<u32>,
        retries: &mut Retries,
    ) -> Result<AfterAnswer> {
        if !call.answer.is_empty() {
            return Ok(AfterAnswer::Record);
        }
        let end = match &call.answer.end {
            Ok(end) => end,
            Err(AnswerStop::Failed(source @ ModelError::Overflow { .. }))
                if !retries.has_shrunk =>
            {
                retries.has_shrunk = true;
                let error = ChatError::Model { source: source.clone(), partial: None };
                return Ok(AfterAnswer::CallAgain(Some(call.require_shrink(error))));
            }
            Err(_) => return Ok(AfterAnswer::Record),
        };
        // Also fails for a prompt that the server cut to the whole window, which leaves no room for an answer.
        let (partial, _) = self.record(info, call, effective).await?;
        let cause = self.request.cut_by(end);
        let error = match cause {
            Some(cause) if call.answer.has_thinking() => ChatError::OnlyThinking {
                id: self.request.id,
                model: self.request.model.clone(),
                spent: spent_tokens(info, call, end, cause),
                partial,
            },
            _ => self.empty_answer_error(call, partial),
        };
        retries.n_empty += 1;
        let can_shrink =
            !retries.has_shrunk && call.built.budget.utilization_percent > MIN_UTILIZATION_PERCENT;
        let next = match cause {
            Some(AnswerCut::Window) if can_shrink => {
                retries.has_shrunk = true;
                AfterAnswer::CallAgain(Some(call.require_shrink(error)))
            }
            None if retries.n_empty == 1 => AfterAnswer::CallAgain(None),
            // The next answer would reach the same limit.
            _ => return Err(error.into()),
        };
        if partial.is_some() {
            let id = self.request.id;
            step_back(&self.core, id, RetryIntent::SendAgain).await?;
        }
        Ok(next)
    }

    fn empty_answer_error(&self, call: &ModelCall, partial: Option<Seq>) -> ChatError {
        ChatError::EmptyAnswer {
            model: self.request.model.clone(),
            context_tokens: call.built.context_tokens,
            prompt_limit: call.built.prompt_limit,
            partial,
        }
    }
}

fn spent_tokens(
    info: &ModelInfo,
    call: &ModelCall,
    end: &ChatEnd,
    cause: AnswerCut,
) -> SpentTokens {
    let window = call.built.context_size;
    let most = call.request.num_predict.map_or(0, NonZeroU32::get);
    let context_tokens = call.built.context_tokens;
    SpentTokens {
        thinking_tokens: end.answer_tokens.unwrap_or_else(|| most.into()),
        context_tokens,
        prompt_limit: call.built.prompt_limit,
        window,
        limited_by: match cause {
            AnswerCut::Call => Some(("answerLimit", most)),
            AnswerCut::Config => Some(("context.answerLimit", most)),
            AnswerCut::Window => None,
        },
        reserve_helps: context_tokens * 100 > u64::from(window) * MIN_PROMPT_PERCENT,
        trained: info.trained_context.filter(|trained| *trained > window),
    }
}
