//! Summarizing a range into checkpoints: by a model if one answers, else by lines extracted from the records.

use std::ops::RangeBounds;
use std::sync::Arc;

use ollm_protocol::content::CompactionMethod;
use ollm_protocol::{CheckpointId, Seq};
use serde_json::json;
use tokio::sync::OnceCell;

use super::commit::{NewHead, mark_before};
use super::events;
use super::summarizer::{QueuePlace, Summarizer, SummaryAnswer};
use super::survey::{CompactionRequest, Survey};
use crate::app::context::inputs::{Inputs, RecordContents};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, CompactError, Result};
use crate::app::models::model_or_default;
use crate::context::compact::{
    CheckpointBounds, NewSummary, RECENT_LEVEL, RangeContents, RejectedSummary, RenewOptions,
    Summary, SummaryLimits, SummaryOptions, SummaryRequest, TranscriptPiece, checkpoint_to_update,
    checkpoints_to_merge, extract_records, read_range, renew, tier,
};
use crate::context::{ContextError, CutPlan};
use crate::goal::block::goal_prompt;
use crate::model::ModelError;
use crate::tokens::Counter;

/// The most pieces that a model summarizes, with a request each; older pieces are extracted. Only an import, or a long
/// session without a model, has more.
const MAX_PIECES: usize = 16;
/// The smallest piece in tokens that is divided when a server finds its prompt too long.
const MIN_PIECE_TOKENS: u64 = 192;
/// The size of pieces that no model reads, in tokens.
const EXTRACTED_PIECE_TOKENS: u64 = 4096;

/// A range of records to summarize.
pub(super) struct SummaryRange<'a> {
    core: &'a Arc<Core>,
    request: &'a CompactionRequest,
    pub(super) survey: &'a Arc<Survey>,
    cut: &'a CutPlan,
    /// Set once the snapshot marker is in the log.
    marked: OnceCell<()>,
}

impl<'a> SummaryRange<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        request: &'a CompactionRequest,
        survey: &'a Arc<Survey>,
        cut: &'a CutPlan,
    ) -> Self {
        Self { core, request, survey, cut, marked: OnceCell::new() }
    }

    /// Writes the snapshot marker once. Called when a summarizer is ready: an attempt that never starts leaves no
    /// trace.
    async fn mark(&self) -> Result<()> {
        let inputs = &self.survey.inputs;
        let mark = || mark_before(self.core, inputs.id, inputs.leaf);
        self.marked.get_or_try_init(mark).await.copied()
    }

    /// Returns the model that summarizes.
    fn summarizing_model(core: &Core, survey: &Survey) -> Result<String> {
        let own = core.config().compression.model.clone();
        model_or_default(core, own.or_else(|| survey.inputs.model.clone()))
    }

    /// Summarizes the range by a model.
    pub(super) async fn by_model(&self, place: QueuePlace<'_>) -> Result<NewHead> {
        let Self { core, request, survey, cut, .. } = self;
        let inputs = &survey.inputs;
        let model = Self::summarizing_model(core, survey)?;
        let summarizer = Summarizer::new(core, &model, place, inputs.window.size).await?;
        let limit = tier(inputs.window.size).limit;
        let last = checkpoint_to_update(&inputs.checkpoints, limit);
        let target = self.target();
        let count = |text: &str| u64::from(summarizer.counter.count_text(text));
        let goal = goal_prompt(inputs.goals(), &count, inputs.goal_tokens());
        let instructions = request.instructions.as_deref();
        let options =
            SummaryOptions { target, goal: goal.as_deref(), instructions, rejected: None };
        let (target, mut room) = summarizer.room(&options)?;
        self.mark().await?;
        let options = SummaryOptions { target, ..options };
        let replaced = cut.tokens + last.map_or(0, |last| last.current_tokens);
        let limits = SummaryLimits { replaced, target };
        let before = last.map(|last| Summary::parse(&last.summary)).filter(|one| !one.is_empty());
        let (summary, gathered) = loop {
            let gathered = self.gather(summarizer.counter.clone(), room).await?;
            let n_early = gathered.pieces.len().saturating_sub(MAX_PIECES);
            let (early, pieces) = gathered.pieces.split_at(n_early);
            let before = match early.last() {
                Some(last) => Some(self.extracted(..=last.to, before.clone(), target).await?),
                None => before.clone(),
            };
            match self.summarized(&summarizer, before, pieces, options, limits).await {
                Ok(summary) => break (summary, gathered),
                // The count was wrong; an estimate can be wrong by far.
                Err(AppError::Compact(CompactError::Model(ModelError::Overflow { .. })))
                    if room > MIN_PIECE_TOKENS =>
                {
                    room /= 2;
                }
                Err(error) => return Err(error),
            }
        };
        let merged = self.merged(&summarizer, limit, options).await;
        let model = Some(summarizer.model.clone());
        Ok(self.new_head(&summary, gathered, merged.as_ref(), model))
    }

    /// Summarizes all pieces, each by an update of the summary before.
    async fn summarized(
        &self,
        summarizer: &Summarizer<'_>,
        before: Option<Summary>,
        pieces: &[TranscriptPiece],
        options: SummaryOptions<'_>,
        limits: SummaryLimits,
    ) -> Result<Summary> {
        let id = self.survey.inputs.id;
        let mut summary = before;
        for (at, piece) in pieces.iter().enumerate() {
            let step = json!({
                "step": "summarizing", "piece": at + 1, "pieces": pieces.len(),
                "from": piece.from, "to": piece.to,
            });
            events::step(self.core, id, step);
            let request = match &summary {
                None => SummaryRequest::First(piece),
                Some(summary) => SummaryRequest::Update(summary, piece),
            };
            let next = match summarizer.ask(request, options, limits).await? {
                SummaryAnswer::Whole(next) => next,
                SummaryAnswer::Beginning(begun) => {
                    let lines =
                        self.extracted(piece.from..=piece.to, summary, options.target).await?;
                    summarizer.completed(&begun, &[&lines], limits)?
                }
            };
            summary = Some(next);
        }
        Ok(summary.ok_or_else(|| summarizer.rejected(RejectedSummary::Empty))?)
    }

    /// Summarizes the range by lines extracted from the records.
    pub(super) async fn by_extraction(&self) -> Result<NewHead> {
        self.mark().await?;
        let (summary, gathered) = self.extract_all(None).await?;
        Ok(self.new_head(&summary, gathered, None, None))
    }

    /// Previews the summary of a model by an extracted one.
    pub(super) async fn preview(&self) -> Result<NewHead> {
        let Inputs { checkpoints, window, .. } = &self.survey.inputs;
        let last = checkpoint_to_update(checkpoints, tier(window.size).limit);
        let before = last.map(|last| Summary::parse(&last.summary));
        let (summary, gathered) = self.extract_all(before).await?;
        let model = Self::summarizing_model(self.core, self.survey).unwrap_or_default();
        Ok(self.new_head(&summary, gathered, None, Some(model)))
    }

    async fn extract_all(&self, before: Option<Summary>) -> Result<(Summary, RangeContents)> {
        let counter = &self.survey.inputs.counter;
        let mut gathered = self.gather(counter.clone(), EXTRACTED_PIECE_TOKENS).await?;
        let extractor = std::mem::take(&mut gathered.extractor);
        Ok((extractor.finish(before.as_ref(), counter, self.target()), gathered))
    }

    /// Merges the two oldest checkpoints by a model if there are too many; `None` joins them line by line.
    async fn merged(
        &self,
        summarizer: &Summarizer<'_>,
        limit: usize,
        options: SummaryOptions<'_>,
    ) -> Option<Summary> {
        let (older, newer) = checkpoints_to_merge(&self.survey.inputs.checkpoints, limit)?;
        events::step(self.core, self.survey.inputs.id, json!({ "step": "merging" }));
        let replaced = older.current_tokens + newer.current_tokens;
        let target = self.bounds().target(0).min(replaced.saturating_sub(1));
        let (older, newer) = (Summary::parse(&older.summary), Summary::parse(&newer.summary));
        let options = SummaryOptions { target, ..options };
        let limits = SummaryLimits { replaced, target };
        let answer = summarizer.ask(SummaryRequest::Merge(&older, &newer), options, limits).await;
        let merged = answer.and_then(|answer| match answer {
            SummaryAnswer::Whole(merged) => Ok(merged),
            SummaryAnswer::Beginning(begun) => {
                summarizer.completed(&begun, &[&newer, &older], limits)
            }
        });
        let log = |error: &_| tracing::info!("checkpoints are joined without a model: {error}");
        merged.inspect_err(log).ok()
    }

    async fn gather(&self, counter: Counter, room: u64) -> Result<RangeContents> {
        let (id, records) = (self.survey.inputs.id, self.cut.records.clone());
        blocking(self.core, move |core| {
            let contents = RecordContents { sessions: &core.sessions, id };
            Ok(read_range(&contents, &records, &counter, room).map_err(ContextError::from)?)
        })
        .await
    }

    /// Summarizes a part of the range by extracted lines, on top of an earlier summary.
    async fn extracted(
        &self,
        part: impl RangeBounds<Seq>,
        before: Option<Summary>,
        target: u64,
    ) -> Result<Summary> {
        let records = self.cut.records.iter().filter(|seq| part.contains(seq));
        let (id, records) = (self.survey.inputs.id, records.copied().collect::<Vec<_>>());
        let counter = self.survey.inputs.counter.clone();
        blocking(self.core, move |core| {
            let contents = RecordContents { sessions: &core.sessions, id };
            let extractor = extract_records(&contents, &records).map_err(ContextError::from)?;
            Ok(extractor.finish(before.as_ref(), &counter, target))
        })
        .await
    }

    fn new_head(
        &self,
        summary: &Summary,
        gathered: RangeContents,
        merged: Option<&Summary>,
        model: Option<String>,
    ) -> NewHead {
        let Self { core, survey, cut, .. } = self;
        let inputs = &survey.inputs;
        let provisional = model.is_none();
        let fresh = NewSummary { cut, summary, provisional, files: &gathered.files, merged };
        let making = RenewOptions {
            next_id: &|| CheckpointId::from_uuid(core.clock.uuid()),
            at: core.clock.now(),
            counter: &inputs.counter,
            bounds: self.bounds(),
            limit: tier(inputs.window.size).limit,
        };
        let renewed = renew(&inputs.checkpoints, &fresh, &making);
        let method = match provisional {
            true => CompactionMethod::Extracted,
            false => CompactionMethod::Summarized,
        };
        NewHead {
            method,
            cut: Some((*cut).clone()),
            checkpoints: renewed.checkpoints,
            created: Some(renewed.created),
            aged: renewed.aged,
            model,
            identifiers: gathered.identifiers,
        }
    }

    /// Returns the longest summary of the range in tokens.
    fn target(&self) -> u64 {
        self.bounds().target(RECENT_LEVEL).min(self.cut.target_tokens)
    }

    fn bounds(&self) -> CheckpointBounds {
        let summary_max = u64::from(self.core.config().compression.summary_max_tokens);
        CheckpointBounds { prompt_limit: self.survey.before.prompt_limit, summary_max }
    }
}
