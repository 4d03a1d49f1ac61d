//! Answers without text or tool calls: the turn calls the model again if that can help, and else fails with an error that
//! says what the tokens were spent on.
//!
//! **Invariants**: the context is shrunk at most once in a turn; a model that ran into a limit is called again only with a
//! smaller context; its thinking is in the log before that, off the path.

use std::num::NonZeroU32;

use ollm_protocol::Seq;

use super::answer::AnswerStop;
use super::model_call::{ModelCall, RequiredShrink};
use super::retry::{RetryIntent, step_back};
use super::turn::Turn;
use crate::app::core::blocking;
use crate::app::error::{ChatError, Result, SpentTokens};
use crate::model::{ChatEnd, LengthCause, ModelError, ModelInfo};

/// The utilization in percent from which shrinking the context is worth it: a compaction leaves at most 55, and a few
/// more tokens would not make room for an answer.
const MIN_UTILIZATION_PERCENT: f64 = 60.0;
/// The smallest part of a window that `context.answerReserve` can leave to prompts, in percent. Longer prompts can be
/// shortened by it.
const MIN_PROMPT_PERCENT: u64 = 60;

/// The retries of a turn so far.
#[derive(Debug, Default)]
pub(super) struct Retries {
    n_empty: u32,
    has_shrunk: bool,
}

/// The next step of a turn after a model call.
pub(super) enum AfterAnswer {
    /// The answer is recorded, or its error ends the turn.
    Record,
    /// The model is called again, with a smaller context if one is required.
    CallAgain(Option<RequiredShrink>),
}

impl Turn {
    /// Decides how the turn continues; an empty answer is recorded here.
    ///
    /// **Errors**: `EmptyAnswer` and `OnlyThinking` if calling again would not help.
    pub(super) async fn after_answer(
        &self,
        info: &ModelInfo,
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
                return Ok(AfterAnswer::CallAgain(Some(call.require_shrink(error.into()))));
            }
            Err(_) => return Ok(AfterAnswer::Record),
        };
        // Also fails for a prompt that the server cut to the whole window, which leaves no room for an answer.
        let (partial, _) = self.record(info, call, effective).await?;
        let error = self.no_content_error(info, call, end, partial).into();
        retries.n_empty += 1;
        let can_shrink =
            !retries.has_shrunk && call.built.budget.utilization_percent > MIN_UTILIZATION_PERCENT;
        let next = match end.length_cause(self.request.max_tokens) {
            Some(LengthCause::Window) if can_shrink => {
                retries.has_shrunk = true;
                AfterAnswer::CallAgain(Some(call.require_shrink(error)))
            }
            None if retries.n_empty == 1 => AfterAnswer::CallAgain(None),
            // The same limit would be met again.
            _ => return Err(error),
        };
        if partial.is_some() {
            let id = self.request.id;
            blocking(&self.core, move |core| step_back(core, id, RetryIntent::SendAgain)).await?;
        }
        Ok(next)
    }

    fn no_content_error(
        &self,
        info: &ModelInfo,
        call: &ModelCall,
        end: &ChatEnd,
        partial: Option<Seq>,
    ) -> ChatError {
        let (id, model) = (self.request.id, self.request.model.clone());
        let cause = end.length_cause(self.request.max_tokens);
        if let Some(cause) = cause.filter(|_| call.answer.has_thinking()) {
            let spent = spent_tokens(info, call, end, cause);
            return ChatError::OnlyThinking { id, model, spent, partial };
        }
        self.empty_answer_error(call, partial)
    }

    pub(super) fn empty_answer_error(&self, call: &ModelCall, partial: Option<Seq>) -> ChatError {
        ChatError::EmptyAnswer {
            model: self.request.model.clone(),
            prompt_tokens: call.built.tokens_used,
            prompt_limit: call.built.token_budget,
            partial,
        }
    }
}

fn spent_tokens(
    info: &ModelInfo,
    call: &ModelCall,
    end: &ChatEnd,
    cause: LengthCause,
) -> SpentTokens {
    let window = call.built.num_ctx;
    let most = call.request.num_predict.map_or(0, NonZeroU32::get);
    let prompt_tokens = call.built.tokens_used;
    SpentTokens {
        thinking_tokens: end.answer_tokens.unwrap_or_else(|| most.into()),
        prompt_tokens,
        prompt_limit: call.built.token_budget,
        window,
        max_tokens: (cause == LengthCause::NumPredict).then_some(most),
        reserve_helps: prompt_tokens * 100 > u64::from(window) * MIN_PROMPT_PERCENT,
        trained: info.trained_context.filter(|trained| *trained > window),
    }
}
