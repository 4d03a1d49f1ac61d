//! The summary of a branch that a session leaves: by a model while the user waits, else by lines from the records.
//!
//! Nothing is recorded here. A model that fails or takes too long costs the model's summary and never the move.

use std::sync::Arc;

use ollm_protocol::content::{RecordKind, Role};
use ollm_protocol::{Seq, SessionId};

use super::summarizer::{QueuePlace, Summarizer, SummaryAnswer};
use crate::app::context::inputs::RecordContents;
use crate::app::core::{Core, blocking};
use crate::app::drafts::session_counter;
use crate::app::error::{AppError, Result};
use crate::app::models::model_or_default;
use crate::app::models::window::window_of;
use crate::context::ContextError;
use crate::context::compact::{
    Summary, SummaryLimits, SummaryOptions, SummaryRequest, TranscriptPiece, extract_records,
    read_pieces,
};
use crate::model::Priority;

/// The most pieces of a branch that a model reads while the user waits; lines of older ones are extracted.
const MAX_PIECES: usize = 3;
/// The share of the window that a summary may have: the branch that continues needs the rest.
const WINDOW_SHARE: u64 = 10;
/// The smallest branch that is worth a model's call, in tokens; a shorter one is extracted.
const MIN_TOKENS: u64 = 200;

/// A branch to summarize.
struct AbandonedBranch {
    id: SessionId,
    records: Vec<Seq>,
    tokens: u64,
    model: Option<String>,
    window: u32,
    target: u64,
}

/// Returns the summary of records, and whether a model wrote it; `None` if nothing was said in them.
pub(in crate::app) async fn summarize_branch(
    core: &Arc<Core>,
    id: SessionId,
    records: Vec<Seq>,
) -> Result<Option<(String, bool)>> {
    let Some(branch) = blocking(core, move |core| survey(core, id, records)).await? else {
        return Ok(None);
    };
    if branch.tokens >= MIN_TOKENS {
        match by_model(core, &branch).await {
            Ok(summary) => return Ok(Some((summary.render(), true))),
            Err(error) => tracing::info!(session = %id, "a branch is not summarized: {error}"),
        }
    }
    let records = branch.records.clone();
    let summary = extracted(core, &branch, records, None).await?;
    Ok(Some((summary.render(), false)))
}

/// Returns what a summary depends on, or `None` if no message is among the records. Blocks on the disk.
fn survey(core: &Arc<Core>, id: SessionId, records: Vec<Seq>) -> Result<Option<AbandonedBranch>> {
    let settings = core.settings(id)?;
    let (n_said, tokens) = core.sessions.with(id, |live| {
        let entries = records.iter().filter_map(|seq| live.state().entry(*seq));
        entries.fold((0, 0), |(n_said, tokens), entry| {
            let is_said = entry.role().is_some_and(|role| role != Role::System)
                || entry.kind() == Some(RecordKind::ToolCall);
            (n_said + usize::from(is_said), tokens + u64::from(entry.tokens))
        })
    })?;
    if n_said == 0 {
        return Ok(None);
    }
    let own = core.config().compression.model.clone().or(settings.model);
    let model = model_or_default(core, own).ok();
    let window = window_of(core, model.as_deref(), settings.context_size).size;
    let target = u64::from(core.config().compression.summary_max_tokens)
        .min(u64::from(window) / WINDOW_SHARE);
    Ok(Some(AbandonedBranch { id, records, tokens, model, window, target }))
}

/// Asks a model for the summary.
async fn by_model(core: &Arc<Core>, branch: &AbandonedBranch) -> Result<Summary> {
    let model = model_or_default(core, branch.model.clone())?;
    let place = QueuePlace::Own(Priority::Chat);
    let summarizer = Summarizer::new(core, branch.id, &model, place, true, branch.window).await?;
    let wanted = SummaryOptions { target: branch.target, ..SummaryOptions::default() };
    let (target, room) = summarizer.room(&wanted)?;
    let options = SummaryOptions { target, ..wanted };
    let limits = SummaryLimits { replaced: branch.tokens, target };
    let pieces = pieces(core, branch, &summarizer, room).await?;
    let (early, pieces) = pieces.split_at(pieces.len().saturating_sub(MAX_PIECES));
    let mut summary = match early.last() {
        Some(last) => Some(extracted(core, branch, up_to(branch, last.to), None).await?),
        None => None,
    };
    for piece in pieces {
        let request = match &summary {
            None => SummaryRequest::First(piece),
            Some(summary) => SummaryRequest::Update(summary, piece),
        };
        let next = match summarizer.ask(request, options, limits).await? {
            SummaryAnswer::Whole(next) => next,
            SummaryAnswer::Beginning(begun) => {
                let records = branch.records.iter().copied();
                let records = records.filter(|seq| (piece.from..=piece.to).contains(seq));
                let lines = extracted(core, branch, records.collect(), summary.clone()).await?;
                summarizer.completed(&begun, &[&lines], request, limits)?
            }
        };
        summary = Some(next);
    }
    summary.ok_or_else(|| AppError::invalid("summarize", "the branch has no readable record"))
}

async fn pieces(
    core: &Arc<Core>,
    branch: &AbandonedBranch,
    summarizer: &Summarizer<'_>,
    room: u64,
) -> Result<Vec<TranscriptPiece>> {
    let (id, records, counter) = (branch.id, branch.records.clone(), summarizer.counter.clone());
    blocking(core, move |core| {
        let contents = RecordContents { sessions: &core.sessions, id };
        let range = read_pieces(&contents, &records, &counter, room, usize::MAX);
        Ok(range.map_err(ContextError::from)?.pieces)
    })
    .await
}

fn up_to(branch: &AbandonedBranch, last: Seq) -> Vec<Seq> {
    branch.records.iter().copied().filter(|seq| *seq <= last).collect()
}

/// Summarizes records by lines from them, on top of an earlier summary.
async fn extracted(
    core: &Arc<Core>,
    branch: &AbandonedBranch,
    records: Vec<Seq>,
    before: Option<Summary>,
) -> Result<Summary> {
    let (id, target) = (branch.id, branch.target);
    blocking(core, move |core| {
        let contents = RecordContents { sessions: &core.sessions, id };
        let extractor = extract_records(&contents, &records).map_err(ContextError::from)?;
        Ok(extractor.summary(Seq(0), before.as_ref(), &session_counter(core, id), target))
    })
    .await
}
