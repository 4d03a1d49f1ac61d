//! Summarizing a range into checkpoints: by a model if one answers, else by lines extracted from the records.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{CompactionMethod, ContextMessage};
use ollm_protocol::event::{CompressionProgressData, CompressionStep};
use ollm_protocol::{CheckpointId, Seq, SessionId};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::commit::{NewHead, snapshot_before};
use super::events;
use super::summarizer::{QueuePlace, RequestRoom, Summarizer, SummaryAnswer};
use super::survey::{CompactionRequest, Survey};
use crate::app::context::folds::extracted_lines;
use crate::app::context::inputs::{Inputs, RecordContents};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, CompactError, Result};
use crate::app::models::model_or_default;
use crate::context::compact::{
    ChatPrompt, CheckpointBounds, NewSummary, RECENT_LEVEL, RangeNames, RangePieces,
    RejectedSummary, RenewOptions, ShownRecords, Summary, SummaryLimits, SummaryOptions,
    SummaryRequest, TranscriptPiece, checkpoint_to_update, checkpoints_to_merge, extract_records,
    read_names, read_pieces, renew, tier,
};
use crate::context::{ContextError, CutPlan, Ledger};
use crate::goal::block::goal_block;
use crate::model::{ModelError, canonical_name};
use crate::tokens::Counter;

/// The most pieces that a model summarizes, with a request each; older pieces are extracted. Only an import, or a long
/// session without a model, has more.
pub(super) const MAX_PIECES: usize = 16;
/// The smallest piece in tokens that is divided when a server finds its prompt too long.
const MIN_PIECE_TOKENS: u64 = 192;
/// The failed compactions in a row after which a piece whose summary is refused is extracted for good, so that it does not
/// hold up the notes of everything behind it.
const MAX_FAILURES: u32 = 2;

/// A part of a range, with the summary that stands for it.
struct RangePart {
    cut: CutPlan,
    summary: Summary,
    /// Whether the summary was extracted without a model.
    provisional: bool,
}

/// A range of records to summarize.
pub(super) struct SummaryRange<'a> {
    core: &'a Arc<Core>,
    request: &'a CompactionRequest,
    pub(super) survey: &'a Arc<Survey>,
    pub(super) cut: &'a CutPlan,
    /// A user waits, so that a model is asked for one summary only.
    in_turn: bool,
    /// Set once the snapshot is in the log.
    marked: OnceCell<()>,
}

impl<'a> SummaryRange<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        request: &'a CompactionRequest,
        survey: &'a Arc<Survey>,
        cut: &'a CutPlan,
        in_turn: bool,
    ) -> Self {
        Self { core, request, survey, cut, in_turn, marked: OnceCell::new() }
    }

    /// Writes the snapshot once. Called when a summarizer is ready: an attempt that never starts leaves no
    /// trace.
    async fn mark(&self) -> Result<()> {
        let inputs = &self.survey.inputs;
        let mark = || snapshot_before(self.core, inputs.id, inputs.leaf);
        self.marked.get_or_try_init(mark).await.copied()
    }

    /// Estimates the time for reading a prompt of the largest size and writing a summary. Writing counts as nothing until an
    /// answer was measured. `None` without any measured prompt.
    pub(super) fn expected_time(&self) -> Option<Duration> {
        let model = Self::summarizing_model(self.core, self.survey).ok()?;
        let measured = self.core.speeds.get(&model);
        let reading = measured.reading_or_guess(self.survey.before.prompt_limit)?;
        Some(reading + measured.expected_writing(self.target()).unwrap_or_default())
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
        let summarizer =
            Summarizer::new(core, inputs.id, &model, place, self.in_turn, inputs.window.size)
                .await?;
        let limit = tier(inputs.window.size).limit;
        let last = checkpoint_to_update(&inputs.checkpoints, limit);
        let goal = self.goal(&summarizer.counter);
        let demands = SummaryOptions {
            target: self.target(),
            goal: goal.as_deref(),
            instructions: request.instructions.as_deref(),
            ..SummaryOptions::default()
        };
        let names = self.names(self.in_turn).await?;
        let replaced = cut.tokens + last.map_or(0, |last| last.current_tokens);
        let before = last.map(|last| Summary::parse(&last.summary)).filter(|one| !one.is_empty());
        let asked = self.behind_chat(&summarizer, demands, before.as_ref(), replaced).await?;
        if let Some(summary) = asked {
            return Ok(self.finished(summary, names, &summarizer, demands).await);
        }
        self.in_pieces(summarizer, names, demands, before, replaced).await
    }

    /// Returns the prompt of the chat behind which its own model can be asked for a summary.
    fn chat_prompt(&self, summarizer: &Summarizer<'_>) -> Option<&[ContextMessage]> {
        let Survey { inputs, chat, .. } = &**self.survey;
        let is_own =
            inputs.model.as_deref().map(canonical_name) == Some(canonical_name(&summarizer.model));
        // A call without its result is not followed by a turn of the user.
        let is_complete = chat.last().is_some_and(|last| last.tool_calls.is_empty());
        (is_own && is_complete).then_some(chat)
    }

    /// Returns the room of requests in pieces, and the prompt of the chat if they go behind it.
    fn pieces_room(
        &self,
        summarizer: &Summarizer<'_>,
        demands: SummaryOptions<'_>,
        before: Option<&Summary>,
    ) -> Result<(RequestRoom, Option<ChatPrompt<'_>>)> {
        let least = before.map_or(0, |one| summarizer.counter.count_text(&one.render()));
        let behind = self.chat_prompt(summarizer).and_then(|messages| {
            let tools = &self.request.params.tools;
            let room = summarizer.room_behind(messages, tools, demands, u64::from(least))?;
            Some((room, ChatPrompt { messages, shows: ShownRecords::Nothing }))
        });
        let own = summarizer.room(&demands);
        match behind {
            Some((room, chat)) if self.prefers_chat(summarizer, room, own.as_ref().ok()) => {
                Ok((room, Some(chat)))
            }
            _ => Ok((own?, None)),
        }
    }

    /// Returns whether requests go behind the chat's own prompt. A request with another prompt displaces it from the
    /// server's cache. So it is chosen only if fewer requests are needed, and no longer in the background once no
    /// pause was long enough for it.
    ///
    /// `own`: the room of requests with a prompt of their own, if they have any.
    fn prefers_chat(
        &self,
        summarizer: &Summarizer<'_>,
        behind: RequestRoom,
        own: Option<&RequestRoom>,
    ) -> bool {
        let n_pieces = |room: &RequestRoom| self.cut.tokens.div_ceil(room.records.max(1));
        let due = &self.core.due_compactions;
        let needs_longer_pauses = || !due.needed_pause(self.survey.inputs.id).is_zero();
        // A request with another mode of thinking displaces the chat's prompt as well.
        let spares_chat = || summarizer.is_background() && summarizer.thinks_like_chat();
        own.is_none_or(|own| n_pieces(&behind) <= n_pieces(own))
            || spares_chat() && needs_longer_pauses()
    }

    /// Summarizes the range in pieces that fit the model's window.
    async fn in_pieces(
        &self,
        summarizer: Summarizer<'_>,
        names: RangeNames,
        demands: SummaryOptions<'_>,
        before: Option<Summary>,
        replaced: u64,
    ) -> Result<NewHead> {
        let (room, chat) = self.pieces_room(&summarizer, demands, before.as_ref())?;
        let RequestRoom { target, records: mut room } = room;
        let summarizer = match chat {
            Some(_) => summarizer.behind_chat(self.request.params.tools.clone()),
            None => summarizer,
        };
        self.mark().await?;
        let options = SummaryOptions { target, chat, ..demands };
        let limits = SummaryLimits { replaced, target };
        // A user waits for the oldest piece only. Pieces behind the chat's prompt are small; after many, others wait.
        let most = match (self.in_turn, &chat) {
            (true, _) => 1,
            (false, Some(_)) => MAX_PIECES,
            (false, None) => usize::MAX,
        };
        loop {
            let records = self.cut.records.clone();
            let range = self.pieces(records, &summarizer.counter, room, most).await?;
            let n_early = range.pieces.len().saturating_sub(MAX_PIECES);
            let (early, pieces) = range.pieces.split_at(n_early);
            let before = match early.last() {
                Some(last) => Some(self.extracted(..=last.to, before.clone(), target).await?),
                None => before.clone(),
            };
            match self.summarized(&summarizer, before, pieces, options, limits).await {
                Ok((summary, done)) if done < pieces.len() || !range.is_whole => {
                    let border = pieces[done - 1].to;
                    return self.with_rest_extracted(&summary, border, names, &summarizer).await;
                }
                Ok((summary, _)) => {
                    return Ok(self.finished(summary, names, &summarizer, options).await);
                }
                // The count was wrong; an estimate can be wrong by far.
                Err(AppError::Compact(CompactError::Model(ModelError::Overflow { .. })))
                    if room > MIN_PIECE_TOKENS =>
                {
                    room /= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the head for a summary of the whole range.
    async fn finished(
        &self,
        summary: Summary,
        names: RangeNames,
        summarizer: &Summarizer<'_>,
        options: SummaryOptions<'_>,
    ) -> NewHead {
        let limit = tier(self.survey.inputs.window.size).limit;
        let merged = match self.in_turn {
            true => None,
            false => self.merged(summarizer, limit, options).await,
        };
        let model = Some(summarizer.model.clone());
        let part = RangePart { cut: self.cut.clone(), summary, provisional: false };
        self.new_head(&[part], names, merged.as_ref(), model)
    }

    /// Returns the head for a summary up to a record, and lines extracted from the rest until the background has time for
    /// it.
    async fn with_rest_extracted(
        &self,
        summary: &Summary,
        border: Seq,
        names: RangeNames,
        summarizer: &Summarizer<'_>,
    ) -> Result<NewHead> {
        let (first, rest) = self.cut.split_behind(border);
        let lines = self.extracted_end(rest.from, None).await?;
        let parts = [
            RangePart { cut: first, summary: summary.clone(), provisional: false },
            RangePart { cut: rest, summary: lines, provisional: true },
        ];
        Ok(self.new_head(&parts, names, None, Some(summarizer.model.clone())))
    }

    /// Summarizes the range by one request behind the chat's own prompt. Returns `None` if another model summarizes, or if
    /// the prompt, the records that it does not show, and the summary do not fit into the window.
    async fn behind_chat(
        &self,
        summarizer: &Summarizer<'_>,
        demands: SummaryOptions<'_>,
        before: Option<&Summary>,
        replaced: u64,
    ) -> Result<Option<Summary>> {
        let Some(chat) = self.chat_prompt(summarizer) else { return Ok(None) };
        let counter = &summarizer.counter;
        let missing = self.survey.missing(&self.cut.records);
        let missing = self.pieces(missing, counter, summarizer.window(), 1).await?;
        if !missing.is_whole {
            return Ok(None);
        }
        let (missing, has_notes) = (missing.pieces.first(), self.survey.chat_has_notes);
        let shows = ShownRecords::AllBut { missing, has_notes };
        let chat = ChatPrompt { messages: chat, shows };
        let tools = &self.request.params.tools;
        let target = summarizer.target_behind(chat, tools, before, demands);
        let Some(target) = target else { return Ok(None) };
        self.mark().await?;
        let all = self.pieces(self.cut.records.clone(), counter, u64::MAX, 1).await?;
        let options = SummaryOptions { target, chat: Some(chat), ..demands };
        let limits = SummaryLimits { replaced, target };
        let summarizer = summarizer.behind_chat(tools.clone());
        let asked = self.summarized(&summarizer, before.cloned(), &all.pieces, options, limits);
        match asked.await {
            Ok((summary, _)) => Ok(Some(summary)),
            // The count was wrong.
            Err(AppError::Compact(CompactError::Model(ModelError::Overflow { .. }))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the goal of the work for a request, within its share.
    fn goal(&self, counter: &Counter) -> Option<String> {
        let count = |text: &str| u64::from(counter.count_text(text));
        let inputs = &self.survey.inputs;
        goal_block(inputs.goals(), &count, inputs.goal_tokens()).map(|block| block.text)
    }

    /// Summarizes pieces, each by an update of the summary before. Returns the number of pieces in the summary as well: in
    /// the background it can lack those from one on that failed or gave way to a chat.
    async fn summarized(
        &self,
        summarizer: &Summarizer<'_>,
        before: Option<Summary>,
        pieces: &[TranscriptPiece],
        options: SummaryOptions<'_>,
        limits: SummaryLimits,
    ) -> Result<(Summary, usize)> {
        let id = self.survey.inputs.id;
        let mut summary = before;
        let impatient = summarizer.without_patience();
        let mut n_done = 0;
        let mut first_done = None;
        for (at, piece) in pieces.iter().enumerate() {
            let summarizer = if n_done > 0 { &impatient } else { summarizer };
            let step = CompressionProgressData {
                step: CompressionStep::Summarizing,
                piece: Some(at + 1),
                pieces: Some(pieces.len()),
                from: Some(piece.from),
                to: Some(piece.to),
            };
            self.core.publish(id, None, &step);
            let before = summary.as_ref();
            let next = match self.with_piece(before, summarizer, piece, options, limits).await {
                Err(error @ AppError::Compact(_)) if summarizer.is_background() && n_done > 0 => {
                    tracing::info!(session = %id, "the other pieces wait: {error}");
                    break;
                }
                next => next?,
            };
            summary = Some(next);
            n_done += 1;
            first_done.get_or_insert_with(Instant::now);
        }
        // Since the first piece, no chat came before the end.
        if let Some(first_done) = first_done.filter(|_| summarizer.is_background()) {
            self.core.due_compactions.note_quiet(id, first_done.elapsed());
        }
        let summary = summary.ok_or_else(|| summarizer.rejected(RejectedSummary::Empty))?;
        Ok((summary, n_done))
    }

    /// Returns whether so many compactions failed that the background extracts a piece whose summary is refused.
    fn has_failed_often(&self, summarizer: &Summarizer<'_>) -> bool {
        let n_failures = self.core.due_compactions.n_failures(self.survey.inputs.id);
        summarizer.is_background() && n_failures >= MAX_FAILURES
    }

    /// Adds a piece to the summary before it. Lines extracted from the piece complete an answer of the model that was cut,
    /// and take the place of one that was refused too often.
    async fn with_piece(
        &self,
        before: Option<&Summary>,
        summarizer: &Summarizer<'_>,
        piece: &TranscriptPiece,
        options: SummaryOptions<'_>,
        limits: SummaryLimits,
    ) -> Result<Summary> {
        let request = match before {
            None => SummaryRequest::First(piece),
            Some(before) => SummaryRequest::Update(before, piece),
        };
        let extracted = || self.extracted(piece.from..=piece.to, before.cloned(), options.target);
        match summarizer.ask(request, options, limits).await {
            Ok(SummaryAnswer::Whole(summary)) => Ok(summary),
            Ok(SummaryAnswer::Beginning(begun)) => {
                let lines = extracted().await?;
                Ok(summarizer.completed(&begun, &[&lines], request, limits)?)
            }
            Err(CompactError::Rejected { .. }) if self.has_failed_often(summarizer) => {
                extracted().await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Summarizes the range by lines extracted from the records.
    pub(super) async fn by_extraction(&self) -> Result<NewHead> {
        self.mark().await?;
        let names = self.names(true).await?;
        let summary = self.extracted_end(self.cut.from, None).await?;
        let part = RangePart { cut: self.cut.clone(), summary, provisional: true };
        Ok(self.new_head(&[part], names, None, None))
    }

    /// Previews the summary of a model by an extracted one.
    pub(super) async fn preview(&self) -> Result<NewHead> {
        let Inputs { checkpoints, window, .. } = &self.survey.inputs;
        let last = checkpoint_to_update(checkpoints, tier(window.size).limit);
        let before = last.map(|last| Summary::parse(&last.summary));
        let names = self.names(false).await?;
        let summary = self.extracted_end(self.cut.from, before).await?;
        let model = Self::summarizing_model(self.core, self.survey).unwrap_or_default();
        let part = RangePart { cut: self.cut.clone(), summary, provisional: false };
        Ok(self.new_head(&[part], names, None, Some(model)))
    }

    /// Merges the two oldest checkpoints by a model if there are too many; `None` joins them line by line. It is tried
    /// once: the summary that was just written does not wait for another pause.
    async fn merged(
        &self,
        summarizer: &Summarizer<'_>,
        limit: usize,
        options: SummaryOptions<'_>,
    ) -> Option<Summary> {
        let (older, newer) = checkpoints_to_merge(&self.survey.inputs.checkpoints, limit)?;
        events::step(self.core, self.survey.inputs.id, CompressionStep::Merging);
        let replaced = older.current_tokens + newer.current_tokens;
        let target = self.bounds().target(0).min(replaced.saturating_sub(1));
        let (older, newer) = (Summary::parse(&older.summary), Summary::parse(&newer.summary));
        let options = SummaryOptions { target, ..options };
        let limits = SummaryLimits { replaced, target };
        let request = SummaryRequest::Merge(&older, &newer);
        let answer = summarizer.without_patience().ask(request, options, limits).await;
        let merged = answer.and_then(|answer| match answer {
            SummaryAnswer::Whole(merged) => Ok(merged),
            SummaryAnswer::Beginning(begun) => {
                summarizer.completed(&begun, &[&newer, &older], request, limits)
            }
        });
        let log = |error: &_| tracing::info!("checkpoints are joined without a model: {error}");
        merged.inspect_err(log).ok()
    }

    /// Reads records into pieces of at most `room` tokens, and into `most` pieces at most.
    async fn pieces(
        &self,
        records: Vec<Seq>,
        counter: &Counter,
        room: u64,
        most: usize,
    ) -> Result<RangePieces> {
        range_pieces(self.core, self.survey.inputs.id, records, counter, room, most).await
    }

    /// Summarizes a part of the range by extracted lines, on top of an earlier summary.
    async fn extracted(
        &self,
        part: impl RangeBounds<Seq>,
        before: Option<Summary>,
        target: u64,
    ) -> Result<Summary> {
        let Inputs { id, counter, .. } = &self.survey.inputs;
        let records = self.cut.records.iter().copied().filter(|seq| part.contains(seq)).collect();
        extract_range(self.core, *id, records, before, counter.clone(), target).await
    }

    /// Summarizes the end of the range from a record on by extracted lines, on top of an earlier summary. Only the first
    /// notes of a session have a goal of their own.
    ///
    /// Reads only the records that earlier compactions did not extract: without a model, a range can grow for thousands of
    /// turns.
    async fn extracted_end(&self, from: Seq, before: Option<Summary>) -> Result<Summary> {
        let inputs = &self.survey.inputs;
        let (id, records) = (inputs.id, self.cut.records.clone());
        let (counter, target) = (inputs.counter.clone(), self.target());
        let has_goal = before.is_some()
            || from == self.cut.from && inputs.checkpoints.iter().all(|one| one.provisional);
        let summary = blocking(self.core, move |core| {
            let lines = extracted_lines(core, id, &records)?;
            Ok(lines.summary(from, before.as_ref(), &counter, target))
        });
        let summary = summary.await?;
        Ok(if has_goal { summary } else { summary.without_goal() })
    }

    /// Reads the identifiers and files of the range. With `only_new`, skips the records of a provisional checkpoint, and takes
    /// its files from that.
    async fn names(&self, only_new: bool) -> Result<RangeNames> {
        let inputs = &self.survey.inputs;
        let known = inputs.checkpoints.last().filter(|one| one.provisional && only_new).cloned();
        let known_to = known.as_ref().map(|one| one.to);
        let records = self.cut.records.iter().copied().filter(|seq| Some(*seq) > known_to);
        let (id, records) = (inputs.id, records.collect::<Vec<_>>());
        blocking(self.core, move |core| {
            let contents = RecordContents { sessions: &core.sessions, id };
            let names = read_names(&contents, &records, known.as_ref());
            Ok(names.map_err(ContextError::from)?)
        })
        .await
    }

    fn new_head(
        &self,
        parts: &[RangePart],
        names: RangeNames,
        merged: Option<&Summary>,
        model: Option<String>,
    ) -> NewHead {
        let Self { core, survey, cut, .. } = self;
        let RangeNames { mut files, identifiers } = names;
        let inputs = &survey.inputs;
        let making = RenewOptions {
            next_id: &|| CheckpointId::from_uuid(core.clock.uuid()),
            at: core.clock.now(),
            counter: &inputs.counter,
            bounds: self.bounds(),
            limit: tier(inputs.window.size).limit,
        };
        let mut head = NewHead {
            method: match model {
                Some(_) => CompactionMethod::Summarized,
                None => CompactionMethod::Extracted,
            },
            cut: Some((*cut).clone()),
            checkpoints: inputs.checkpoints.clone(),
            created: None,
            aged: Vec::new(),
            model,
            identifiers,
        };
        for RangePart { cut, summary, provisional } in parts {
            let provisional = *provisional;
            let fresh = NewSummary { cut, summary, provisional, files: &files, merged };
            let renewed = renew(&head.checkpoints, &fresh, &making);
            head.checkpoints = renewed.checkpoints;
            head.created = head.created.or(Some(renewed.created));
            head.aged.extend(renewed.aged);
            // The first part holds the files of the range.
            files = Ledger::default();
        }
        head
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

/// Reads records of a session into pieces of at most `room` tokens, and into `most` pieces at most.
pub(super) async fn range_pieces(
    core: &Arc<Core>,
    id: SessionId,
    records: Vec<Seq>,
    counter: &Counter,
    room: u64,
    most: usize,
) -> Result<RangePieces> {
    let counter = counter.clone();
    blocking(core, move |core| {
        let contents = RecordContents { sessions: &core.sessions, id };
        let range = read_pieces(&contents, &records, &counter, room, most);
        Ok(range.map_err(ContextError::from)?)
    })
    .await
}

/// Summarizes records of a session by lines extracted from them, on top of an earlier summary.
pub(super) async fn extract_range(
    core: &Arc<Core>,
    id: SessionId,
    records: Vec<Seq>,
    before: Option<Summary>,
    counter: Counter,
    target: u64,
) -> Result<Summary> {
    blocking(core, move |core| {
        let contents = RecordContents { sessions: &core.sessions, id };
        let extractor = extract_records(&contents, &records).map_err(ContextError::from)?;
        Ok(extractor.summary(Seq(0), before.as_ref(), &counter, target))
    })
    .await
}
