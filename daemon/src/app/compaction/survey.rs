//! The survey of a session before a compaction: how full its context is, and how to make room. Calls no model and
//! writes nothing.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::Seq;
use ollm_protocol::content::{
    CompactStrategy, CompactionMethod, ContextMessage, CountKind, OmittedItem, RecordKind,
};

use super::policy::{Fullness, PAUSE_TURNS, share_of};
use super::summarizer::notes_model;
use crate::app::build_request::BuildRequest;
use crate::app::context::inputs::{self, BuildLeaf, Inputs};
use crate::app::core::{Core, blocking};
use crate::app::error::Result;
use crate::app::models::model_or_default;
use crate::app::models::window::learn_limits;
use crate::config::CompressionStrategy;
use crate::context::compact::{CheckpointBounds, RECENT_LEVEL};
use crate::context::{self, BuildInput, Built, CutPlan, PathItem};
use crate::tokens::Counter;

/// The reasons for which a prompt shows nothing of a record.
const MISSING: [&str; 2] = ["budget", "summarized"];

/// The params of a compaction.
#[derive(Clone)]
pub(super) struct CompactionRequest {
    /// The params of the context that has to fit.
    pub(super) params: BuildRequest,
    /// `None` for the counter of the session's model.
    pub(super) counter: Option<Counter>,
    pub(super) strategy: CompactStrategy,
    /// The instructions of the user and of hooks for the summary.
    pub(super) instructions: Option<String>,
    /// The lines of hooks that the summary has to contain.
    pub(super) keep: Vec<String>,
}

impl CompactionRequest {
    /// Returns a request with the configured strategy.
    pub(super) fn configured(core: &Core, params: BuildRequest, counter: Option<Counter>) -> Self {
        let strategy = match core.config().compression.strategy {
            CompressionStrategy::Summarize => CompactStrategy::Summarize,
            CompressionStrategy::Truncate => CompactStrategy::Truncate,
            CompressionStrategy::Hybrid => CompactStrategy::Hybrid,
        };
        Self { params, counter, strategy, instructions: None, keep: Vec::new() }
    }
}

/// A session before its compaction.
pub(super) struct Survey {
    pub(super) inputs: Inputs,
    pub(super) before: ContextBefore,
    /// The prompt of the epoch in force, which the next call of a chat repeats, or else the one before the newest message
    /// of the user; empty if both open a new epoch.
    pub(super) chat: Vec<ContextMessage>,
    /// Set if this prompt shows notes.
    pub(super) chat_has_notes: bool,
    /// The records that this prompt does not show.
    missing: Vec<OmittedItem>,
    /// The last record that it could show.
    chat_end: Option<Seq>,
}

impl Survey {
    /// Returns those of some records that the prompt in [`Self::chat`] does not show.
    pub(super) fn missing(&self, records: &[Seq]) -> Vec<Seq> {
        let is_missing = |seq: &&Seq| {
            let mut ranges =
                self.missing.iter().map(|one| one.seq..=one.through_seq.unwrap_or(one.seq));
            Some(**seq) > self.chat_end || ranges.any(|range| range.contains(*seq))
        };
        records.iter().filter(is_missing).copied().collect()
    }

    /// Returns whether the next call of the model answers a message of the user, who waits for it, and not the result of a
    /// tool.
    pub(super) fn answers_user(&self) -> bool {
        self.inputs.path.newest_spoken().is_none_or(PathItem::is_user_message)
    }

    /// Returns whether a checkpoint waits for the summary of a model.
    pub(super) fn has_provisional(&self) -> bool {
        self.inputs.checkpoints.iter().any(|checkpoint| checkpoint.provisional)
    }

    /// Returns the tokens of the records that no model summarized, without a message of the user that waits for its answer.
    pub(super) fn tokens_without_notes(&self) -> u64 {
        let Inputs { checkpoints, path, .. } = &self.inputs;
        let newest = path.items.iter().rposition(PathItem::is_user_message);
        let end = newest.filter(|_| self.answers_user()).unwrap_or(path.items.len());
        let lasting = checkpoints.iter().rfind(|checkpoint| !checkpoint.provisional);
        let before = &path.items[..end];
        lasting.map_or_else(|| tokens_of(before), |last| tokens_after(before, last.to))
    }

    /// Returns the prompt of the chat behind which its own model can be asked.
    pub(super) fn chat_prompt(&self, core: &Core, model: &str) -> Option<&[ContextMessage]> {
        let own = self.inputs.model.as_deref();
        let is_own = own.is_some_and(|own| core.models.is_same(own, model));
        // A call without its result is not followed by a turn of the user.
        let is_complete = self.chat.last().is_some_and(|last| last.tool_calls.is_empty());
        (is_own && is_complete).then_some(&self.chat)
    }

    /// Returns the tokens of the records behind one; of all without one.
    pub(super) fn tokens_behind(&self, seq: Option<Seq>) -> u64 {
        let items = &self.inputs.path.items;
        seq.map_or_else(|| tokens_of(items), |seq| tokens_after(items, seq))
    }

    /// Returns the model that summarizes.
    pub(super) fn summarizing_model(&self, core: &Core) -> Result<String> {
        let id = self.inputs.id;
        let model = notes_model(core, id).or_else(|| self.inputs.model.clone());
        Ok(core.placed(id, &model_or_default(core, model)?))
    }

    /// Returns the limits of checkpoints.
    pub(super) fn bounds(&self, core: &Core) -> CheckpointBounds {
        let summary_max = u64::from(core.config().compression.summary_max_tokens);
        CheckpointBounds { prompt_limit: self.before.prompt_limit, summary_max }
    }

    /// Estimates the time for reading a prompt of the largest size and writing a summary. Writing counts as nothing until an
    /// answer was measured. `None` without any measured prompt.
    pub(super) fn expected_summary_time(&self, core: &Core) -> Option<Duration> {
        let measured = core.speeds.get(&self.summarizing_model(core).ok()?);
        let reading = measured.reading_or_guess(self.before.prompt_limit)?;
        let written = self.bounds(core).target(RECENT_LEVEL);
        Some(reading + measured.expected_writing(written).unwrap_or_default())
    }
}

/// The context before a compaction. Counts are in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextBefore {
    /// The whole prompt, whether it fits or not.
    pub(super) tokens: u64,
    pub(super) fullness: Fullness,
    /// The most that the conversation may have.
    pub(super) available: u64,
    /// The most that a prompt may have.
    pub(super) prompt_limit: u64,
    pub(super) count_kind: CountKind,
    /// The records that the newest compaction could not summarize yet, in percent of what the conversation may have.
    pub(super) grown_percent: Option<u64>,
    /// The messages in the context.
    pub(super) n_messages: u64,
}

impl ContextBefore {
    pub(super) fn fits(&self) -> bool {
        self.fullness < Fullness::Overflow
    }
}

/// The way in which a compaction makes room.
pub(super) enum HeadPlan {
    /// There is no way: every record is recent.
    Nothing,
    /// A head that needs no summary.
    WithoutSummary(CompactionMethod),
    /// A summary of a range.
    Summary(CutPlan),
}

/// Measures the context of a session.
pub(super) async fn survey(core: &Arc<Core>, request: &CompactionRequest) -> Result<Arc<Survey>> {
    let CompactionRequest { params, counter, .. } = request.clone();
    learn_limits(core, params.session_id, params.model.as_deref()).await?;
    blocking(core, move |core| {
        let inputs = inputs::load(core, &params, counter, BuildLeaf::Active)?;
        let input = inputs.build_input(&params, &inputs.checkpoints);
        let built = context::build(&input, &inputs.contents(core))?;
        inputs.check_facts()?;
        let threshold = core.config().compression.threshold;
        let before = context_before(&input, &built, inputs.compaction_at(), threshold);
        let (shown, chat_end) = if built.new_epoch.is_none() && before.fits() {
            (Some(built), inputs.leaf)
        } else {
            let end = end_before_newest(&inputs, &params);
            (built_until(core, &params, &inputs, end)?, end)
        };
        let chat_has_notes =
            shown.as_ref().is_some_and(|built| built.result.budget.checkpoint_tokens > 0);
        let shown = shown.map(|built| (built.result.messages, built.result.omitted));
        let (chat, mut missing) = shown.unwrap_or_default();
        missing.retain(|one| MISSING.contains(&one.reason.as_str()));
        Ok(Arc::new(Survey { inputs, before, chat, chat_has_notes, missing, chat_end }))
    })
    .await
}

/// Returns the last record before the newest message of the user and what was recalled for it.
fn end_before_newest(inputs: &Inputs, params: &BuildRequest) -> Option<Seq> {
    if params.pending.is_some() {
        return inputs.leaf;
    }
    let items = &inputs.path.items;
    let newest = items.iter().rposition(PathItem::is_user_message)?;
    let before = items[..newest].iter().rfind(|item| item.kind != RecordKind::Delta);
    before.map(|item| item.seq)
}

/// Returns the context as it was after an earlier record, which the server has read; `None` if it opened a new epoch.
fn built_until(
    core: &Arc<Core>,
    params: &BuildRequest,
    inputs: &Inputs,
    end: Option<Seq>,
) -> Result<Option<Built>> {
    if end.is_none() {
        return Ok(None);
    }
    let params = BuildRequest { pending: None, ..params.clone() };
    let counter = Some(inputs.counter.clone());
    let earlier = inputs::load(core, &params, counter, BuildLeaf::Earlier(end))?;
    let input = earlier.build_input(&params, &earlier.checkpoints);
    Ok(context::build_in_epoch(&input, &earlier.contents(core))?)
}

fn context_before(
    input: &BuildInput<'_>,
    built: &Built,
    compaction: Option<Seq>,
    threshold: f64,
) -> ContextBefore {
    let result = &built.result;
    let fits = built.new_epoch.as_ref().is_none_or(|epoch| epoch.cause != context::OVERFLOW);
    let budget = &result.budget;
    let tokens = if fits {
        result.context_tokens
    } else {
        let head = input.epoch.map_or(0, |(_, epoch)| epoch.head_tokens);
        let whole: u64 = input.path.iter().map(|item| u64::from(item.tokens)).sum();
        let rest = input.epoch.map_or(whole, |(seq, _)| tokens_after(input.path, seq));
        let pending =
            input.pending.map_or(0, |text| u64::from(input.counter.count_user_text(text)));
        let fixed = budget.system_prompt_tokens + budget.tool_definition_tokens;
        (fixed + head + rest + pending).max(budget.prompt_limit + 1)
    };
    let newest_turns =
        || share_of(context::newest_tokens(input.path, PAUSE_TURNS), budget.available_tokens);
    let reaches = |share| context::needs_compaction(built, share);
    let fullness = match fits {
        true => Fullness::of_fitting(threshold, newest_turns, reaches),
        false => Fullness::Overflow,
    };
    let grown = compaction.map(|seq| grown_since(input.path, seq));
    ContextBefore {
        tokens,
        fullness,
        available: budget.available_tokens,
        prompt_limit: budget.prompt_limit,
        count_kind: result.count_kind,
        grown_percent: grown.map(|tokens| tokens * 100 / budget.available_tokens.max(1)),
        n_messages: result.included_message_count,
    }
}

/// Returns the tokens of the records that a compaction could not summarize yet: those behind it, and the unit that was being
/// answered then, once it is answered.
fn grown_since(path: &[PathItem], compaction: Seq) -> u64 {
    let before = &path[..path.partition_point(|item| item.seq <= compaction)];
    let answered =
        context::newest_start(before).filter(|at| context::newest_start(path) != Some(*at));
    let behind = tokens_after(path, compaction);
    answered.map_or(behind, |at| behind + tokens_of(&before[at..]))
}

fn tokens_after(path: &[PathItem], seq: Seq) -> u64 {
    tokens_of(&path[path.partition_point(|item| item.seq <= seq)..])
}

fn tokens_of(path: &[PathItem]) -> u64 {
    path.iter().map(|item| u64::from(item.tokens)).sum()
}

/// Chooses how to make room.
pub(super) async fn plan_head(
    core: &Arc<Core>,
    request: &CompactionRequest,
    survey: &Arc<Survey>,
) -> Result<HeadPlan> {
    let (request, survey) = (request.clone(), Arc::clone(survey));
    blocking(core, move |core| choose_head(core, &request, &survey)).await
}

fn choose_head(core: &Core, request: &CompactionRequest, survey: &Survey) -> Result<HeadPlan> {
    let Survey { inputs, before, .. } = survey;
    let contents = inputs.contents(core);
    let input = inputs.build_input(&request.params, &inputs.checkpoints);
    let gains = |built: Built| built.result.context_tokens < before.tokens;
    if request.strategy == CompactStrategy::Hybrid
        && context::prune(&input, &contents)?.is_some_and(gains)
    {
        return Ok(HeadPlan::WithoutSummary(CompactionMethod::Pruned));
    }
    if request.strategy == CompactStrategy::Truncate {
        return Ok(match context::truncate(&input, &contents)?.is_some_and(gains) {
            true => HeadPlan::WithoutSummary(CompactionMethod::Truncated),
            false => HeadPlan::Nothing,
        });
    }
    let compression = &core.config().compression;
    let (most, recent) = (compression.summary_max_tokens, compression.preserve_recent_tokens);
    let cut = context::compaction_cut(&input, &contents, most, recent)?;
    Ok(cut.map_or(HeadPlan::Nothing, HeadPlan::Summary))
}
