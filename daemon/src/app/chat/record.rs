//! The end of a model call: the record of its answer, its usage, and what the turn measures by it: how fast the model
//! reads, its window, and whether the count of the prompt was right.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{CountKind, Message, Part, RecordBody, Retention, Role, Usage};
use ollm_protocol::event::{CountMismatchData, ServerTruncatedData};
use ollm_protocol::methods::chat::{ChatEvent, ChatToolCall, ChatUsage};
use ollm_protocol::{Seq, limits};
use serde_json::json;

use super::answer::{AnswerStop, is_complete};
use super::model_call::ModelCall;
use super::turn::{Turn, as_ms};
use crate::app::cache::CachedSession;
use crate::app::context::facts::retention_in;
use crate::app::core::blocking;
use crate::app::counts::{CountMismatch, CountedPrompts};
use crate::app::drafts::{message_drafts, uncounted};
use crate::app::error::{AppError, ChatError, Result};
use crate::app::models::{learning, lessons};
use crate::app::partial::answer_parts;
use crate::context::compact::prompt_text;
use crate::context::reliability::{ReliabilityEvidence, assess_reliability};
use crate::model::{ChatEnd, ModelInfo, PromptCount};

/// The shortest load time of a model that was not in memory before; the server may have given it another window.
const JUST_LOADED: Duration = Duration::from_secs(1);

impl Turn {
    /// Records an answer and reports its usage; returns an error for an answer that was cut off. An answer without
    /// content has no record.
    pub(super) async fn record(
        &self,
        info: &Arc<ModelInfo>,
        call: &ModelCall,
        effective: Option<u32>,
    ) -> Result<(Option<Seq>, ChatUsage)> {
        let partial = self.append_answer(call).await?;
        if let Some(seq) = partial {
            self.feed().note_recorded(seq);
        }
        let end = match &call.answer.end {
            Ok(end) => end,
            Err(AnswerStop::Canceled) => return Err(ChatError::Canceled { partial }.into()),
            Err(AnswerStop::Stopping) => return Err(AppError::Stopping),
            Err(AnswerStop::Failed(error)) => {
                return Err(ChatError::Model { source: error.clone(), partial }.into());
            }
        };
        let retention = self.retention(call).await;
        let usage = self.usage(info, call, end, effective, retention);
        self.report(ChatEvent::Usage { usage: usage.clone() }).await;
        self.check_count(info, call, end, partial).await?;
        Ok((partial, usage))
    }

    /// Returns the tokens and times of a call.
    fn usage(
        &self,
        info: &ModelInfo,
        call: &ModelCall,
        end: &ChatEnd,
        effective: Option<u32>,
        retention: Option<Retention>,
    ) -> ChatUsage {
        let ModelCall { built, request, .. } = call;
        let count =
            self.core.sessions.peek(self.request.id, |live| live.state().compression_count());
        let compression_count = count.unwrap_or_default();
        let evidence = ReliabilityEvidence {
            parameters: info.parameter_count,
            n_compactions: u32::try_from(compression_count).unwrap_or(u32::MAX),
            count_kind: built.count_kind,
            retention,
        };
        let (own, elsewhere): (Vec<_>, Vec<_>) =
            built.recalled.iter().cloned().partition(|record| record.session_id.is_none());
        ChatUsage {
            prompt_tokens: prompt_tokens(end),
            cached_tokens: end.cached_tokens,
            answer_tokens: end.answer_tokens,
            compression_count,
            reliability: (compression_count > 0).then(|| assess_reliability(&evidence)),
            context_tokens: built.context_tokens,
            prompt_limit: built.prompt_limit,
            count_kind: Some(built.count_kind),
            margin: call.margin,
            answer_limit: request.num_predict.map(NonZeroU32::get),
            cut_by: self.request.cut_by(end),
            recalled: own.into_iter().map(|record| record.seq).collect(),
            recalled_elsewhere: elsewhere,
            context_size: request.num_ctx,
            trained_context: info.trained_context,
            effective_context: effective,
            load_ms: end.load_time.map(as_ms),
            reading_ms: end.prompt_time.map(as_ms),
            answering_ms: end.answer_time.map(as_ms),
        }
    }

    /// Returns the retention of the newest compaction, which the context of the call began with, with the facts that its
    /// prompt said.
    async fn retention(&self, call: &ModelCall) -> Option<Retention> {
        let newest = |session: &mut CachedSession| {
            session.head.compaction.as_ref().and_then(|(_, compaction)| compaction.retention)
        };
        let id = self.request.id;
        let measured = self.core.cache.peek(id, newest).flatten()?;
        let prompt = prompt_text(&call.request.messages);
        let now = blocking(&self.core, move |core| retention_in(core, id, measured, &prompt));
        Some(now.await.unwrap_or(measured))
    }

    /// Appends the message of an answer with the counts of the server; returns `None` if it has no content.
    async fn append_answer(&self, call: &ModelCall) -> Result<Option<Seq>> {
        let ModelCall { answer, built, .. } = call;
        let (core, id, model) = (&self.core, self.request.id, &self.request.named);
        let mut parts = answer_parts(answer.thinking.clone(), answer.text.clone());
        parts.extend(answer.calls.iter().cloned().map(|call| {
            let ChatToolCall { id, name, args } = call;
            Part::ToolCall { id, name, args }
        }));
        if parts.is_empty() {
            return Ok(None);
        }
        let mut message = Message::text(Role::Assistant, "", core.clock.now());
        message.parts = parts;
        message.model = Some(model.clone());
        message.finish_reason = Some(answer.finish_reason().to_owned());
        message.duration_ms = Some(as_ms(answer.started.elapsed()));
        // The text of a model is never refused; names of tools that nobody offered can have any length.
        drop(limits::shorten_message(&mut message));
        let is_complete = is_complete(answer.finish_reason());
        let (mut drafts, _) = message_drafts(core, id, message, is_complete);
        if let Ok(end) = &answer.end {
            drafts.push(uncounted(RecordBody::Usage(Usage {
                model: Some(model.clone()),
                prompt_tokens: prompt_tokens(end).unwrap_or(built.context_tokens),
                answer_tokens: end.answer_tokens.unwrap_or_default(),
            })));
        }
        Ok(Some(core.append(id, drafts, None).await?.seq))
    }

    /// Notes how fast the model read the prompt, and returns the window that it runs with.
    pub(super) async fn measure(&self, call: &ModelCall) -> Option<u32> {
        let end = call.answer.end.as_ref().ok()?;
        let num_ctx = call.request.num_ctx;
        let effective = self.effective_window(end, num_ctx).await;
        let smaller = effective.filter(|effective| *effective < num_ctx);
        call.reading.ended(end);
        self.core.speeds.note_effective(&self.request.model, smaller);
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

    /// Returns whether the prompt of a call was counted exactly. A count that was not called so because the server did not
    /// list the model then is exact if the server lists the same model now.
    async fn is_counted_exactly(&self, info: &Arc<ModelInfo>, call: &ModelCall) -> bool {
        let ModelCall { built, request, .. } = call;
        let (core, model) = (&self.core, request.model.clone());
        if built.count_kind == CountKind::Exact || core.counts.is_checked(&model) {
            return built.count_kind == CountKind::Exact;
        }
        learning::check_description(core, info).await;
        let (tools, num_ctx) = (request.tools.clone(), Some(request.num_ctx));
        let prompts = CountedPrompts { model, think: request.think, tools, num_ctx };
        let counter = learning::known_counter(core, &prompts).await;
        counter.kind_of(&request.messages) == CountKind::Exact
    }

    /// Compares the tokens that the server read with those that were sent, and learns from the difference.
    ///
    /// **Errors**: `Truncated` if the server read fewer tokens than its own rendering has. A rendering that agrees
    /// with the server means that the count was wrong, which is an event.
    async fn check_count(
        &self,
        info: &Arc<ModelInfo>,
        call: &ModelCall,
        end: &ChatEnd,
        partial: Option<Seq>,
    ) -> Result<()> {
        let ModelCall { built, request, answer, .. } = call;
        lessons::count_later(&self.core, info, request, &answer.text);
        let PromptCount::Whole(read) = end.prompt else { return Ok(()) };
        let sent = built.context_tokens;
        if !self.is_counted_exactly(info, call).await {
            let id = self.request.id;
            if let Some(mismatch) = learning::calibrate(&self.core, id, request, read).await {
                self.report_mismatch(mismatch, read, partial);
            }
            return Ok(());
        }
        // Some servers call the model twice for an answer in a given format.
        if read == sent || request.format.is_some() {
            return Ok(());
        }
        let model = self.request.model.clone();
        if let Some(mismatch) =
            learning::contradict(&self.core, self.request.id, request, read).await
        {
            self.report_mismatch(mismatch, read, partial);
            return Ok(());
        }
        let data =
            ServerTruncatedData { model: model.clone(), context_tokens: sent, prompt_tokens: read };
        self.publish(partial, &data);
        Err(ChatError::Truncated { model, sent, read, partial }.into())
    }

    /// Publishes the difference between a count and the server's.
    fn report_mismatch(&self, mismatch: CountMismatch, read: u64, partial: Option<Seq>) {
        let model = self.request.model.clone();
        tracing::warn!(model, read, ?mismatch, "a count differs from the server's");
        let CountMismatch { counted: context_tokens, cause, shapes } = mismatch;
        let shapes = shapes.iter().map(|shape| json!(shape)).collect();
        let data = CountMismatchData { context_tokens, cause, shapes, model, prompt_tokens: read };
        self.publish(partial, &data);
    }
}

/// Returns the tokens of the whole prompt, if the server reports them.
const fn prompt_tokens(end: &ChatEnd) -> Option<u64> {
    match end.prompt {
        PromptCount::Whole(tokens) => Some(tokens),
        PromptCount::Uncached(_) | PromptCount::Unknown => None,
    }
}
