//! A model that answers nothing: what it thought is kept, it is asked again where that can help, and then the
//! error says what its tokens were spent on.
//!
//! **Invariants**: a context is made smaller at most once in a turn; a model that ran into a limit is asked again
//! only with a context that became smaller; what it thought is in the log before that, off the path.

use ollm_protocol::Seq;

use super::ChatError;
use super::answer::Stop;
use super::ask::{Asked, Smaller};
use super::retry::{Wish, step_back};
use super::run::Turn;
use crate::app::AppError;
use crate::model::{ChatEnd, LengthCause, ModelError, ModelInfo};

/// Percent of its room that a conversation fills when making it smaller is worth it: a compaction leaves at most
/// 55, and a few tokens more would not be what an answer lacks.
const WORTH_PERCENT: f64 = 60.0;
/// Percent of a window that `context.answerReserve` can leave to prompts, so that a longer one makes room.
const LEAST_PROMPT_PERCENT: u64 = 60;

/// What was tried in a turn.
#[derive(Debug, Default)]
pub(super) struct Tries {
    n_empty: u32,
    was_made_smaller: bool,
}

/// How a turn goes on after a call of the model.
pub(super) enum Next {
    /// There is an answer, or an error that is told as one.
    Keep,
    /// The model is asked again; where it is said so, only if the context became smaller.
    Again(Option<Smaller>),
}

/// What the tokens of an answer were spent on that has no words, and what would leave some for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Tokens that the model thought.
    pub(crate) thinking_tokens: u64,
    /// Tokens that were sent.
    pub(crate) prompt_tokens: u64,
    /// The most that may be sent.
    pub(crate) prompt_limit: u64,
    /// Tokens of the window.
    pub(crate) window: u32,
    /// The limit that the client asked for, where that was met.
    pub(crate) max_tokens: Option<u32>,
    /// The prompt is so long that a larger reserve would shorten it.
    pub(crate) reserve_helps: bool,
    /// The model was trained for so much more.
    pub(crate) trained: Option<u32>,
}

impl Turn {
    /// How the turn goes on; an answer that is none is recorded.
    ///
    /// **Errors**: `Empty` and `OnlyThought` where asking again would not help.
    pub(super) async fn after(
        &self,
        info: &ModelInfo,
        asked: &Asked,
        effective: Option<u32>,
        tries: &mut Tries,
    ) -> Result<Next, AppError> {
        if !asked.answer.is_empty() {
            return Ok(Next::Keep);
        }
        let end = match &asked.answer.end {
            Ok(end) => end,
            Err(Stop::Failed(source @ ModelError::Overflow { .. })) if !tries.was_made_smaller => {
                tries.was_made_smaller = true;
                let error = ChatError::Model { source: source.clone(), partial: None };
                return Ok(Next::Again(Some(asked.smaller(error.into()))));
            }
            Err(_) => return Ok(Next::Keep),
        };
        // A prompt that was cut to the whole window leaves no room for an answer, which this tells.
        let (partial, _) = self.keep(info, asked, effective).await?;
        let error = self.nothing(info, asked, end, partial).into();
        tries.n_empty += 1;
        let can_shrink =
            !tries.was_made_smaller && asked.built.budget.utilization_percent > WORTH_PERCENT;
        let next = match end.length_cause(self.plan.max_tokens) {
            Some(LengthCause::Window) if can_shrink => {
                tries.was_made_smaller = true;
                Next::Again(Some(asked.smaller(error)))
            }
            None if tries.n_empty == 1 => Next::Again(None),
            // The same limit would be met again.
            _ => return Err(error),
        };
        if partial.is_some() {
            let id = self.plan.id;
            crate::app::blocking(self.core(), move |core| step_back(core, id, Wish::Message))
                .await?;
        }
        Ok(next)
    }

    fn nothing(
        &self,
        info: &ModelInfo,
        asked: &Asked,
        end: &ChatEnd,
        partial: Option<Seq>,
    ) -> ChatError {
        let (id, model) = (self.plan.id, self.plan.model.clone());
        let cause = end.length_cause(self.plan.max_tokens);
        if let Some(cause) = cause.filter(|_| asked.answer.has_thought()) {
            let spent = spent(info, asked, end, cause);
            return ChatError::OnlyThought { id, model, spent, partial };
        }
        self.empty(asked, partial)
    }

    /// The error for an answer that is none.
    pub(super) fn empty(&self, asked: &Asked, partial: Option<Seq>) -> ChatError {
        ChatError::Empty {
            model: self.plan.model.clone(),
            prompt_tokens: asked.built.tokens_used,
            prompt_limit: asked.built.token_budget,
            partial,
        }
    }
}

fn spent(info: &ModelInfo, asked: &Asked, end: &ChatEnd, cause: LengthCause) -> Spent {
    let window = asked.built.num_ctx;
    let most = asked.request.num_predict.map_or(0, std::num::NonZeroU32::get);
    Spent {
        thinking_tokens: end.answer_tokens.unwrap_or_else(|| most.into()),
        prompt_tokens: asked.built.tokens_used,
        prompt_limit: asked.built.token_budget,
        window,
        max_tokens: (cause == LengthCause::NumPredict).then_some(most),
        reserve_helps: asked.built.tokens_used * 100 > u64::from(window) * LEAST_PROMPT_PERCENT,
        trained: info.trained_context.filter(|trained| *trained > window),
    }
}

impl std::fmt::Display for Spent {
    /// What was met, and what to do about it.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { thinking_tokens, prompt_tokens, window, .. } = self;
        let off = "have it think less (think: false)";
        if self.max_tokens.is_some() {
            return write!(
                out,
                "spent all {thinking_tokens} tokens that maxTokens allows on thinking and answered nothing; \
                 {off}, or allow more"
            );
        }
        write!(
            out,
            "spent {thinking_tokens} tokens on thinking and answered nothing: the prompt has \
             {prompt_tokens} tokens, and the window of {window} is full; {off}"
        )?;
        if let Some(trained) = self.trained {
            write!(out, ", or set a larger context.size, up to {trained}")?;
        }
        if self.reserve_helps {
            out.write_str(", or a larger context.answerReserve")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_room_is_named_where_it_would() {
        let check = |max_tokens, reserve_helps, trained, expect: &str| {
            let spent = Spent {
                thinking_tokens: 900,
                prompt_tokens: 3195,
                prompt_limit: 3482,
                window: 4096,
                max_tokens,
                reserve_helps,
                trained,
            };
            assert_eq!(spent.to_string(), expect);
        };
        let window = "spent 900 tokens on thinking and answered nothing: the prompt has 3195 tokens, \
                      and the window of 4096 is full; have it think less (think: false)";
        check(None, false, None, window);
        let size = format!("{window}, or set a larger context.size, up to 40960");
        check(None, false, Some(40_960), &size);
        check(None, true, Some(40_960), &format!("{size}, or a larger context.answerReserve"));
        check(
            Some(900),
            true,
            Some(40_960),
            "spent all 900 tokens that maxTokens allows on thinking and answered nothing; \
             have it think less (think: false), or allow more",
        );
    }
}
