//! Summarizing a range into checkpoints: by a model if one answers, else by lines extracted from the records.

use std::ops::RangeBounds;
use std::sync::Arc;

use ollm_protocol::content::{CompactionMethod, ContextMessage};
use ollm_protocol::event::{CompressionProgressData, CompressionStep};
use ollm_protocol::{CheckpointId, Seq, SessionId};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::commit::{NewHead, snapshot_before};
use super::events;
use super::policy::{AskPlan, PieceForms};
use super::summarizer::{MIN_TARGET, NO_RECORDS, QueuePlace, RequestRoom, Summarizer};
use super::survey::{CompactionRequest, Survey};
use crate::app::context::folds::extracted_lines;
use crate::app::context::inputs::{Inputs, RecordContents};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, CompactError, Result};
use crate::context::compact::{
    ChatPrompt, NewSummary, RECENT_LEVEL, RangeNames, RangePieces, RejectedSummary, RenewOptions,
    ShownRecords, Summary, SummaryLimits, SummaryOptions, SummaryRequest, TranscriptPiece,
    checkpoint_to_update, checkpoints_to_merge, extract_records, read_names, read_pieces, renew,
    tier,
};
use crate::context::{ContextError, CutPlan, Ledger};
use crate::goal::block::goal_block;
use crate::model::ModelError;
use crate::tokens::Counter;

/// The most pieces that a model summarizes, with a request each; older pieces are extracted. Only an import, or a long
/// session without a model, has more.
pub(super) const MAX_PIECES: usize = 16;
/// The smallest piece in tokens that is divided when a server finds its prompt too long.
const MIN_PIECE_TOKENS: u64 = 192;

/// A part of a range, with the summary that stands for it.
struct RangePart {
    cut: CutPlan,
    summary: Summary,
    /// Whether the summary was extracted without a model.
    provisional: bool,
}

/// A summary to ask a model for.
struct SummaryTask<'a> {
    plan: AskPlan,
    summarizer: Summarizer<'a>,
    demands: SummaryOptions<'a>,
    /// The summary to update.
    before: Option<Summary>,
    /// The tokens of everything for which the summary stands.
    replaced: u64,
    names: RangeNames,
}

/// The form of the requests for a summary.
#[derive(Clone, Copy)]
struct RequestForm<'a> {
    /// The prompt of the chat, if requests go behind it.
    chat: Option<ChatPrompt<'a>>,
    /// The longest summary in tokens.
    target: u64,
    /// The tokens of records that one request can stand for.
    room: u64,
    /// The most requests.
    most: usize,
}

/// A range of records to summarize.
pub(super) struct SummaryRange<'a> {
    core: &'a Arc<Core>,
    request: &'a CompactionRequest,
    pub(super) survey: &'a Arc<Survey>,
    pub(super) cut: &'a CutPlan,
    /// Set once the snapshot is in the log.
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

    /// Writes the snapshot once. Called when a summarizer is ready: an attempt that never starts leaves no
    /// trace.
    async fn mark(&self) -> Result<()> {
        let inputs = &self.survey.inputs;
        let mark = || snapshot_before(self.core, inputs.id, inputs.leaf);
        self.marked.get_or_try_init(mark).await.copied()
    }

    /// Summarizes the range by a model.
    pub(super) async fn by_model(&self, place: QueuePlace<'_>, plan: AskPlan) -> Result<NewHead> {
        let Self { core, request, survey, cut, .. } = self;
        let inputs = &survey.inputs;
        let (model, window) = (survey.summarizing_model(core)?, inputs.window.size);
        let summarizer =
            Summarizer::new(core, inputs.id, &model, place, plan.in_turn, window).await?;
        let last = checkpoint_to_update(&inputs.checkpoints, tier(window).limit);
        let goal = self.goal(&summarizer.counter);
        let task = SummaryTask {
            plan,
            demands: SummaryOptions {
                target: self.target(),
                goal: goal.as_deref(),
                instructions: request.instructions.as_deref(),
                ..SummaryOptions::default()
            },
            before: last.map(|last| Summary::parse(&last.summary)).filter(|one| !one.is_empty()),
            replaced: cut.tokens + last.map_or(0, |last| last.current_tokens),
            names: self.names(plan.in_turn).await?,
            summarizer,
        };
        let (counter, room) = (&task.summarizer.counter, task.summarizer.window());
        let missing = self.pieces(survey.missing(&cut.records), counter, room, 1).await?;
        let mut form = match self.form_of_one(&task, &missing) {
            Some(form) => form,
            None => self.form_of_pieces(&task)?,
        };
        self.mark().await?;
        loop {
            match self.ask_in_form(&task, &form).await {
                // The count was wrong; an estimate can be wrong by far.
                Err(AppError::Compact(CompactError::Model(ModelError::Overflow { .. })))
                    if form.room > MIN_PIECE_TOKENS =>
                {
                    form = match form.room {
                        u64::MAX => self.form_of_pieces(&task)?,
                        // The room can be larger than all records.
                        room => RequestForm { room: room.min(cut.tokens) / 2, ..form },
                    }
                }
                made => return made,
            }
        }
    }

    /// Returns the prompt of the chat behind which its own model can be asked for a summary.
    fn chat_prompt(&self, summarizer: &Summarizer<'_>) -> Option<&[ContextMessage]> {
        self.survey.chat_prompt(self.core, &summarizer.model)
    }

    /// Returns the form of one request behind the chat's own prompt. Returns `None` if that, the records that it does not show,
    /// and a quarter of the summary do not fit into the window.
    ///
    /// `missing`: these records, if they are one piece.
    fn form_of_one<'f>(
        &'f self,
        task: &SummaryTask<'_>,
        missing: &'f RangePieces,
    ) -> Option<RequestForm<'f>> {
        let messages = self.chat_prompt(&task.summarizer).filter(|_| missing.is_whole)?;
        let missing = missing.pieces.first();
        let shows = ShownRecords::AllBut { missing, has_notes: self.survey.chat_has_notes };
        let chat = Some(ChatPrompt { messages, shows });
        let request = SummaryRequest::of_piece(task.before.as_ref(), &NO_RECORDS);
        let options = SummaryOptions { chat, ..task.demands };
        let least = MIN_TARGET.max(options.target.div_ceil(4));
        let summarizer = task.summarizer.behind_chat(self.request.params.tools.clone());
        let target = summarizer.room(request, &options, least)?.target;
        Some(RequestForm { chat, target, room: u64::MAX, most: 1 })
    }

    /// Returns the form of requests for pieces that fit the model's window.
    fn form_of_pieces(&self, task: &SummaryTask<'_>) -> Result<RequestForm<'_>> {
        let SummaryTask { plan, summarizer, demands, before, .. } = task;
        let own = summarizer.own_room(demands);
        let n_requests = |room: &RequestRoom| self.cut.tokens.div_ceil(room.records.max(1));
        let behind = self.chat_prompt(summarizer).and_then(|messages| {
            let chat = Some(ChatPrompt { messages, shows: ShownRecords::Nothing });
            let least = before.as_ref().map(|one| summarizer.counter.count_text(&one.render()));
            let least = u64::from(least.unwrap_or_default()).max(2 * MIN_TARGET);
            let options = SummaryOptions { chat, ..*demands };
            let requests = summarizer.behind_chat(self.request.params.tools.clone());
            let room = requests.room(SummaryRequest::First(&NO_RECORDS), &options, least)?;
            let history = self.core.due_compactions.history(self.survey.inputs.id);
            let forms = PieceForms {
                n_behind: n_requests(&room),
                n_own: own.as_ref().ok().map(n_requests),
                spares_chat: summarizer.is_background() && summarizer.thinks_like_chat(),
                lacks_pauses: !history.needed_pause.is_zero(),
            };
            forms.prefers_chat().then_some((room, chat))
        });
        let in_pause = summarizer.tokens_in_pause();
        // A user waits for the oldest piece only. Of small pieces, behind the chat's prompt or for short pauses, what is left of
        // many waits.
        let most = match (plan.in_turn, behind.is_some() || in_pause.is_some()) {
            (true, _) => 1,
            (false, true) => MAX_PIECES,
            (false, false) => usize::MAX,
        };
        let (RequestRoom { target, records: room }, chat) = match behind {
            Some(behind) => behind,
            None => (own?, None),
        };
        let room = in_pause.map_or(room, |most| room.min(most.max(MIN_PIECE_TOKENS)));
        Ok(RequestForm { chat, target, room, most })
    }

    /// Summarizes the range by requests of a form.
    async fn ask_in_form(&self, task: &SummaryTask<'_>, form: &RequestForm<'_>) -> Result<NewHead> {
        let RequestForm { target, room, most, .. } = *form;
        let records = self.cut.records.clone();
        let range = self.pieces(records, &task.summarizer.counter, room, most).await?;
        let n_early = range.pieces.len().saturating_sub(MAX_PIECES);
        let (early, pieces) = range.pieces.split_at(n_early);
        let before = match early.last() {
            Some(last) => Some(self.extracted(..=last.to, task.before.clone(), target).await?),
            None => task.before.clone(),
        };
        let (summary, n_done) = self.summarized(task, form, before, pieces).await?;
        if n_done == pieces.len() && range.is_whole {
            return Ok(self.finished(summary, task).await);
        }
        self.with_rest_extracted(&summary, pieces[n_done - 1].to, task).await
    }

    /// Returns the head for a summary of the whole range.
    async fn finished(&self, summary: Summary, task: &SummaryTask<'_>) -> NewHead {
        let merged = if task.plan.in_turn { None } else { self.merged(task).await };
        let model = Some(self.core.shown_model(&task.summarizer.model));
        let part = RangePart { cut: self.cut.clone(), summary, provisional: false };
        self.new_head(&[part], task.names.clone(), merged.as_ref(), model)
    }

    /// Returns the head for a summary up to a record, and lines extracted from the rest until the background has time for
    /// it.
    async fn with_rest_extracted(
        &self,
        summary: &Summary,
        border: Seq,
        task: &SummaryTask<'_>,
    ) -> Result<NewHead> {
        let (first, rest) = self.cut.split_behind(border);
        let lines = self.extracted_end(rest.from, None).await?;
        let parts = [
            RangePart { cut: first, summary: summary.clone(), provisional: false },
            RangePart { cut: rest, summary: lines, provisional: true },
        ];
        let model = Some(self.core.shown_model(&task.summarizer.model));
        Ok(self.new_head(&parts, task.names.clone(), None, model))
    }

    /// Returns the goal of the work for a request, within its share.
    fn goal(&self, counter: &Counter) -> Option<String> {
        let count = |text: &str| u64::from(counter.count_text(text));
        let inputs = &self.survey.inputs;
        goal_block(inputs.goals(), &count, inputs.goal_tokens()).map(|block| block.text)
    }

    /// Summarizes pieces, each by an update of the summary before. Returns the number of pieces in the summary as well: in
    /// the background it can lack those from one on that failed or gave way to a chat.
    ///
    /// Lines extracted from a piece complete an answer of the model that was cut, and take the place of one that was refused
    /// too often.
    async fn summarized(
        &self,
        task: &SummaryTask<'_>,
        form: &RequestForm<'_>,
        before: Option<Summary>,
        pieces: &[TranscriptPiece],
    ) -> Result<(Summary, usize)> {
        let (id, target) = (self.survey.inputs.id, form.target);
        let options = SummaryOptions { target, chat: form.chat, ..task.demands };
        let limits = SummaryLimits { replaced: task.replaced, target };
        let first = match form.chat {
            Some(_) => task.summarizer.behind_chat(self.request.params.tools.clone()),
            None => task.summarizer.clone(),
        };
        let is_background = first.is_background();
        // A server that reads on is asked for each piece in a pause of its own.
        let is_patient = first.reads_on();
        let next = if is_patient { first.clone() } else { first.without_patience() };
        let (mut summary, mut n_done, mut first_done) = (before, 0, None);
        for (at, piece) in pieces.iter().enumerate() {
            let step = CompressionProgressData {
                step: CompressionStep::Summarizing,
                piece: Some(at + 1),
                pieces: Some(pieces.len()),
                from: Some(piece.from),
                to: Some(piece.to),
            };
            self.core.publish(id, None, &step);
            let summarizer = if n_done > 0 { &next } else { &first };
            let request = SummaryRequest::of_piece(summary.as_ref(), piece);
            let part = piece.from..=piece.to;
            let extracted = async || self.extracted(part.clone(), summary.clone(), target).await;
            let others = async || Ok(vec![extracted().await?]);
            let asked = match summarizer.ask(request, options, limits, others).await {
                Err(AppError::Compact(CompactError::Rejected { .. }))
                    if task.plan.extracts_refused =>
                {
                    extracted().await?
                }
                Err(error @ AppError::Compact(_)) if is_background && n_done > 0 => {
                    tracing::info!(session = %id, "the other pieces wait: {error}");
                    break;
                }
                asked => asked?,
            };
            summary = Some(asked);
            n_done += 1;
            first_done.get_or_insert_with(Instant::now);
        }
        // Unless the later pieces waited for pauses of their own, no chat came since the first one.
        if let Some(first_done) = first_done.filter(|_| is_background && !is_patient) {
            let quiet = first_done.elapsed();
            self.core.due_compactions.change(id, |history| history.add_quiet(quiet));
        }
        let empty = || first.rejected(RejectedSummary::Empty);
        Ok((summary.ok_or_else(empty)?, n_done))
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
        let model = self.survey.summarizing_model(self.core).unwrap_or_default();
        let part = RangePart { cut: self.cut.clone(), summary, provisional: false };
        Ok(self.new_head(&[part], names, None, Some(model)))
    }

    /// Merges the two oldest checkpoints by a model if there are too many; `None` joins them line by line. It is tried
    /// once: the summary that was just written does not wait for another pause.
    async fn merged(&self, task: &SummaryTask<'_>) -> Option<Summary> {
        let inputs = &self.survey.inputs;
        let limit = tier(inputs.window.size).limit;
        let (older, newer) = checkpoints_to_merge(&inputs.checkpoints, limit)?;
        events::step(self.core, inputs.id, CompressionStep::Merging);
        let replaced = older.current_tokens + newer.current_tokens;
        let target = self.survey.bounds(self.core).target(0).min(replaced.saturating_sub(1));
        let (older, newer) = (Summary::parse(&older.summary), Summary::parse(&newer.summary));
        let options = SummaryOptions { target, ..task.demands };
        let limits = SummaryLimits { replaced, target };
        let request = SummaryRequest::Merge(&older, &newer);
        let others = async || Ok(vec![newer.clone(), older.clone()]);
        let merged = task.summarizer.without_patience().ask(request, options, limits, others).await;
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
        let (inputs, mut kept) = (&survey.inputs, &*self.request.keep);
        let making = RenewOptions {
            next_id: &|| CheckpointId::from_uuid(core.clock.uuid()),
            at: core.clock.now(),
            counter: &inputs.counter,
            bounds: survey.bounds(core),
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
            asked: Vec::new(),
        };
        for RangePart { cut, summary, provisional } in parts {
            let provisional = *provisional;
            let summary = &summary.keeping(kept);
            let fresh = NewSummary { cut, summary, provisional, files: &files, merged };
            let renewed = renew(&head.checkpoints, &fresh, &making);
            head.checkpoints = renewed.checkpoints;
            head.created = head.created.or(Some(renewed.created));
            head.aged.extend(renewed.aged);
            // The first part holds the files of the range, and the lines of hooks.
            (files, kept) = (Ledger::default(), &[]);
        }
        head
    }

    /// Returns the longest summary of the range in tokens.
    fn target(&self) -> u64 {
        self.survey.bounds(self.core).target(RECENT_LEVEL).min(self.cut.target_tokens)
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
