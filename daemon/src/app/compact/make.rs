//! From a range to the checkpoints that stand for it: by a model where one answers, else by the records' own lines.

use std::ops::RangeBounds;
use std::sync::Arc;

use ollm_protocol::content::{Checkpoint, CompactionMethod};
use ollm_protocol::{CheckpointId, Seq};
use serde_json::json;
use tokio::sync::OnceCell;

use super::commit::{Made, mark};
use super::error::CompactError;
use super::plan::{Ground, Order};
use super::summarize::{Said, Seat, Summarizer};
use super::told;
use crate::app::models::named;
use crate::app::prepared::Records;
use crate::app::{AppError, Core, blocking};
use crate::context::compact::{
    CheckpointBounds, NewSummary, RECENT_LEVEL, RangeContents, RejectedSummary, RenewOptions,
    Summary, SummaryLimits, SummaryOptions, SummaryRequest, TranscriptPiece, checkpoint_to_update,
    checkpoints_to_merge, extract_records, read_range, renew, tier,
};
use crate::context::{ContextError, CutPlan};
use crate::goal::block::goal_prompt;
use crate::model::ModelError;
use crate::tokens::Counter;

/// Most pieces that a model summarizes one after the other; older ones are summarized without it. A range of more is
/// an import, or a session that went on without a model for long, and each piece takes a call.
const MAX_PIECES: usize = 16;
/// A piece of fewer tokens is not divided further when a server finds its prompt too long.
const LEAST_ROOM: u64 = 192;
/// Room of a piece where no model reads it.
const ANY_ROOM: u64 = 4096;

/// A range that is to be summarized.
pub(super) struct Range<'a> {
    /// Everything else.
    core: &'a Arc<Core>,
    /// What was asked for.
    order: &'a Order,
    /// The session as it was found.
    pub(super) ground: &'a Arc<Ground>,
    /// The range.
    cut: &'a CutPlan,
    /// The state before it is marked in the log.
    marked: OnceCell<()>,
}

impl<'a> Range<'a> {
    /// Nothing was done yet.
    pub(super) fn new(
        core: &'a Arc<Core>,
        order: &'a Order,
        ground: &'a Arc<Ground>,
        cut: &'a CutPlan,
    ) -> Self {
        Self { core, order, ground, cut, marked: OnceCell::new() }
    }

    /// Marks the state before, once somebody is there who summarizes: attempts that never begin leave no trace.
    async fn mark(&self) -> Result<(), AppError> {
        let prepared = &self.ground.prepared;
        let mark = || mark(self.core, prepared.id, prepared.leaf);
        self.marked.get_or_try_init(mark).await.copied()
    }

    /// The model that summarizes.
    pub(super) fn summarizer(core: &Core, ground: &Ground) -> Result<String, AppError> {
        let own = core.config().compression.model.clone();
        named(core, own.or_else(|| ground.prepared.model.clone()))
    }

    /// Has a model summarize the range.
    pub(super) async fn by_model(&self, seat: Seat<'_>) -> Result<Made, AppError> {
        let Self { core, order, ground, cut, .. } = self;
        let prepared = &ground.prepared;
        let model = Self::summarizer(core, ground)?;
        let summarizer = Summarizer::new(core, &model, seat, prepared.context_size()).await?;
        let limit = tier(prepared.context_size()).limit;
        let last = checkpoint_to_update(&prepared.checkpoints, limit);
        let target = self.bounds().target(RECENT_LEVEL).min(cut.target_tokens);
        let goal = goal_prompt(&prepared.facts.goal);
        let instructions = order.instructions.as_deref();
        let wish = SummaryOptions { target, goal: goal.as_deref(), instructions, rejected: None };
        let (target, mut room) = summarizer.room(&wish)?;
        self.mark().await?;
        let wish = SummaryOptions { target, ..wish };
        let replaced = cut.tokens + last.map_or(0, |last| last.current_tokens);
        let limits = SummaryLimits { replaced, target };
        let before = last.map(|last| Summary::parse(&last.summary)).filter(|one| !one.is_empty());
        let (summary, gathered) = loop {
            let gathered = self.gather(summarizer.counter().clone(), room).await?;
            let n_early = gathered.pieces.len().saturating_sub(MAX_PIECES);
            let (early, pieces) = gathered.pieces.split_at(n_early);
            let before = match early.last() {
                Some(last) => Some(self.lines(..=last.to, before.clone(), target).await?),
                None => before.clone(),
            };
            match self.folded(&summarizer, before, pieces, (wish, limits)).await {
                Ok(summary) => break (summary, gathered),
                // The count was wrong: where it is only an estimate, it may be by far.
                Err(AppError::Compact(CompactError::Model(ModelError::Overflow { .. })))
                    if room > LEAST_ROOM =>
                {
                    room /= 2;
                }
                Err(error) => return Err(error),
            }
        };
        let merged = self.merged(&summarizer, limit, wish).await;
        Ok(self.made(&summary, gathered, merged.as_ref(), Some(summarizer.model().to_owned())))
    }

    /// One summary of all pieces, going on from an earlier one where there is one.
    async fn folded(
        &self,
        summarizer: &Summarizer<'_>,
        before: Option<Summary>,
        pieces: &[TranscriptPiece],
        (wish, limits): (SummaryOptions<'_>, SummaryLimits),
    ) -> Result<Summary, AppError> {
        let id = self.ground.prepared.id;
        let mut summary = before;
        for (at, piece) in pieces.iter().enumerate() {
            let step = json!({
                "step": "summarizing", "piece": at + 1, "pieces": pieces.len(),
                "from": piece.from, "to": piece.to,
            });
            told::step(self.core, id, step);
            let ask = match &summary {
                None => SummaryRequest::First(piece),
                Some(summary) => SummaryRequest::Update(summary, piece),
            };
            let next = match summarizer.once(ask, wish, limits).await? {
                Said::Whole(next) => next,
                Said::Beginning(begun) => {
                    let lines = self.lines(piece.from..=piece.to, summary, wish.target).await?;
                    summarizer.completed(&begun, &[&lines], limits)?
                }
            };
            summary = Some(next);
        }
        Ok(summary.ok_or_else(|| summarizer.rejected(RejectedSummary::Empty))?)
    }

    /// Summarizes the range without a model.
    pub(super) async fn by_lines(&self) -> Result<Made, AppError> {
        self.mark().await?;
        let counter = self.ground.prepared.counter.clone();
        let mut gathered = self.gather(counter.clone(), ANY_ROOM).await?;
        let target = self.bounds().target(RECENT_LEVEL).min(self.cut.target_tokens);
        let summary = std::mem::take(&mut gathered.extractor).finish(None, &counter, target);
        Ok(self.made(&summary, gathered, None, None))
    }

    /// What the range would become if a model answered, with a summary by lines in the place of its own.
    pub(super) async fn tried(&self) -> Result<Made, AppError> {
        let counter = self.ground.prepared.counter.clone();
        let mut gathered = self.gather(counter.clone(), ANY_ROOM).await?;
        let limit = tier(self.ground.prepared.context_size()).limit;
        let last = checkpoint_to_update(&self.ground.prepared.checkpoints, limit);
        let before = last.map(|last| Summary::parse(&last.summary));
        let target = self.bounds().target(RECENT_LEVEL).min(self.cut.target_tokens);
        let extractor = std::mem::take(&mut gathered.extractor);
        let summary = extractor.finish(before.as_ref(), &counter, target);
        let model = Self::summarizer(self.core, self.ground).ok();
        Ok(self.made(&summary, gathered, None, Some(model.unwrap_or_default())))
    }

    /// A summary by a model in the place of the two oldest checkpoints; without one they are joined line by line.
    async fn merged(
        &self,
        summarizer: &Summarizer<'_>,
        limit: usize,
        wish: SummaryOptions<'_>,
    ) -> Option<Summary> {
        let (older, newer) = checkpoints_to_merge(&self.ground.prepared.checkpoints, limit)?;
        told::step(self.core, self.ground.prepared.id, json!({ "step": "merging" }));
        let replaced = older.current_tokens + newer.current_tokens;
        let target = self.bounds().target(0).min(replaced.saturating_sub(1));
        let (older, newer) = (Summary::parse(&older.summary), Summary::parse(&newer.summary));
        let wish = SummaryOptions { target, ..wish };
        let limits = SummaryLimits { replaced, target };
        let said = summarizer.once(SummaryRequest::Merge(&older, &newer), wish, limits).await;
        let merged = said.and_then(|said| match said {
            Said::Whole(merged) => Ok(merged),
            Said::Beginning(begun) => summarizer.completed(&begun, &[&newer, &older], limits),
        });
        merged.inspect_err(|error| tracing::info!("checkpoints are joined: {error}")).ok()
    }

    async fn gather(&self, counter: Counter, room: u64) -> Result<RangeContents, AppError> {
        let (id, records) = (self.ground.prepared.id, self.cut.records.clone());
        blocking(self.core, move |core| {
            let contents = Records { sessions: &core.sessions, id };
            Ok(read_range(&contents, &records, &counter, room).map_err(ContextError::from)?)
        })
        .await
    }

    /// A part of the range by its lines, going on from an earlier summary.
    async fn lines(
        &self,
        part: impl RangeBounds<Seq>,
        before: Option<Summary>,
        target: u64,
    ) -> Result<Summary, AppError> {
        let records = self.cut.records.iter().filter(|seq| part.contains(seq));
        let (id, records) = (self.ground.prepared.id, records.copied().collect::<Vec<_>>());
        let counter = self.ground.prepared.counter.clone();
        blocking(self.core, move |core| {
            let contents = Records { sessions: &core.sessions, id };
            let extractor = extract_records(&contents, &records).map_err(ContextError::from)?;
            Ok(extractor.finish(before.as_ref(), &counter, target))
        })
        .await
    }

    fn made(
        &self,
        summary: &Summary,
        gathered: RangeContents,
        merged: Option<&Summary>,
        model: Option<String>,
    ) -> Made {
        let Self { core, ground, cut, .. } = self;
        let prepared = &ground.prepared;
        let provisional = model.is_none();
        let fresh = NewSummary { cut, summary, provisional, files: &gathered.files, merged };
        let making = RenewOptions {
            next_id: &|| CheckpointId::from_uuid(core.clock.uuid()),
            at: core.clock.now(),
            counter: &prepared.counter,
            bounds: self.bounds(),
            limit: tier(prepared.context_size()).limit,
        };
        let renewed = renew(&prepared.checkpoints, &fresh, &making);
        let method = match provisional {
            true => CompactionMethod::Extracted,
            false => CompactionMethod::Summarized,
        };
        Made {
            method,
            cut: Some((*cut).clone()),
            checkpoints: renewed.checkpoints,
            created: Some(renewed.created),
            aged: renewed.aged,
            model,
            identifiers: gathered.identifiers,
        }
    }

    fn bounds(&self) -> CheckpointBounds {
        let summary_max = u64::from(self.core.config().compression.summary_max_tokens);
        CheckpointBounds { prompt_limit: self.ground.before.prompt_limit, summary_max }
    }
}

/// What needs no summary: the checkpoints go on as they are.
pub(super) fn as_they_are(method: CompactionMethod, checkpoints: &[Checkpoint]) -> Made {
    Made {
        method,
        cut: None,
        checkpoints: checkpoints.to_vec(),
        created: None,
        aged: Vec::new(),
        model: None,
        identifiers: Vec::new(),
    }
}
