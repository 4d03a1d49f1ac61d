//! The record of an answer, and what the turn learns from it: how fast the model reads, its window, and whether the count
//! of the prompt was right.

use std::time::Duration;

use ollm_protocol::content::{CountKind, Usage};
use ollm_protocol::methods::chat::{ChatEvent, ChatUsage};
use ollm_protocol::{EventKind, Seq};
use serde_json::json;

use super::answer::AnswerStop;
use super::model_call::ModelCall;
use super::turn::{Turn, as_ms};
use crate::app::error::{AppError, ChatError, Result};
use crate::app::models::learning;
use crate::context::reliability::{ReliabilityEvidence, assess_reliability};
use crate::model::{ChatEnd, ModelInfo, PromptCount};

/// A model that took this long to load was just loaded, and the server may have given it another window.
const JUST_LOADED: Duration = Duration::from_secs(1);

impl Turn {
    /// Records an answer and reports its usage; returns an error for an answer that was cut off. An answer without
    /// content has no record.
    pub(super) async fn record(
        &self,
        info: &ModelInfo,
        call: &ModelCall,
        effective: Option<u32>,
    ) -> Result<(Option<Seq>, ChatUsage)> {
        let ModelCall { answer, built, .. } = call;
        let (core, id) = (&self.core, self.request.id);
        let counted = answer.end.as_ref().ok().map(|end| Usage {
            model: Some(self.request.model.clone()),
            prompt_tokens: prompt_tokens(end).unwrap_or(built.tokens_used),
            answer_tokens: end.answer_tokens.unwrap_or_default(),
        });
        let partial = answer.record(core, id, &self.request.model, counted).await?;
        let end = match &answer.end {
            Ok(end) => end,
            Err(AnswerStop::Canceled) => return Err(ChatError::Canceled { partial }.into()),
            Err(AnswerStop::Stopping) => return Err(AppError::Stopping),
            Err(AnswerStop::Failed(error)) => {
                return Err(ChatError::Model { source: error.clone(), partial }.into());
            }
        };
        let n_compactions = core.sessions.peek(id, |live| live.state().compression_count());
        let usage = usage(info, call, end, effective, n_compactions.unwrap_or_default());
        self.report(ChatEvent::Usage { usage: usage.clone() }).await;
        self.check_count(call, end, partial).await?;
        Ok((partial, usage))
    }

    /// Notes how fast the model read the prompt, and returns the window that it runs with.
    pub(super) async fn measure(&self, call: &ModelCall) -> Option<u32> {
        let end = call.answer.end.as_ref().ok()?;
        let num_ctx = call.request.num_ctx;
        let effective = self.effective_window(end, num_ctx).await;
        let smaller = effective.filter(|effective| *effective < num_ctx);
        self.core.speeds.note(&self.request.model, end, smaller);
        effective
    }

    /// Returns the window that the server gave the model; asks for it after the model was loaded.
    async fn effective_window(&self, end: &ChatEnd, num_ctx: u32) -> Option<u32> {
        let measured = self.core.speeds.get(&self.request.model);
        if measured.last_used.is_some() && end.load_time.is_none_or(|load| load < JUST_LOADED) {
            return measured.effective.or(Some(num_ctx));
        }
        self.core.models.in_memory(&self.request.model).await?.effective_context
    }

    /// Compares the tokens that the server read with those that were sent, and learns from the difference.
    ///
    /// **Errors**: `Truncated` if the server read fewer tokens than its own rendering has. A rendering that agrees with
    /// the server means that the count was wrong: its template is not used again.
    async fn check_count(
        &self,
        call: &ModelCall,
        end: &ChatEnd,
        partial: Option<Seq>,
    ) -> Result<()> {
        let ModelCall { built, request, .. } = call;
        let PromptCount::Whole(read) = end.prompt else { return Ok(()) };
        if built.count_kind != CountKind::Exact {
            learning::calibrate(&self.core, request, read).await;
            return Ok(());
        }
        // Some servers call the model twice for an answer in a given format.
        if read == built.tokens_used || request.format.is_some() {
            return Ok(());
        }
        let rendered = match read < built.tokens_used {
            true => learning::rendered_tokens(&self.core, request).await,
            false => None,
        };
        if read > built.tokens_used || rendered == Some(read) {
            learning::distrust(&self.core, request).await;
            return Ok(());
        }
        let (model, sent) = (self.request.model.clone(), built.tokens_used);
        let data = json!({ "model": model, "sentTokens": sent, "readTokens": read });
        self.publish(EventKind::ServerTruncated, partial, data);
        Err(ChatError::Truncated { model, sent, read, partial }.into())
    }
}

/// Returns the tokens of the whole prompt, if the server reports them.
fn prompt_tokens(end: &ChatEnd) -> Option<u64> {
    match end.prompt {
        PromptCount::Whole(tokens) => Some(tokens),
        PromptCount::Uncached(_) | PromptCount::Unknown => None,
    }
}

fn usage(
    info: &ModelInfo,
    call: &ModelCall,
    end: &ChatEnd,
    effective: Option<u32>,
    compression_count: u64,
) -> ChatUsage {
    let evidence = ReliabilityEvidence {
        parameters: info.parameter_count,
        n_compactions: u32::try_from(compression_count).unwrap_or(u32::MAX),
        count_kind: call.built.count_kind,
        retention: None,
    };
    ChatUsage {
        prompt_tokens: prompt_tokens(end),
        cached_tokens: end.cached_tokens,
        answer_tokens: end.answer_tokens,
        compression_count,
        reliability: (compression_count > 0).then(|| assess_reliability(&evidence)),
        context_tokens: call.built.tokens_used,
        prompt_limit: call.built.token_budget,
        count_kind: Some(call.built.count_kind),
        requested_context: call.request.num_ctx,
        trained_context: info.trained_context,
        effective_context: effective,
        load_ms: end.load_time.map(as_ms),
        reading_ms: end.prompt_time.map(as_ms),
        answering_ms: end.answer_time.map(as_ms),
    }
}
