//! The summary of a branch that a session leaves: by a model while the user waits, else by lines from the records.
//!
//! Nothing is recorded here. A model that fails or takes too long costs the model's summary and never the move.

use std::ops::RangeBounds;
use std::sync::Arc;

use ollm_protocol::content::{RecordKind, Role, SummaryAuthor};
use ollm_protocol::{Seq, SessionId};

use super::summarizer::{QueuePlace, RequestRoom, Summarizer, notes_model};
use super::summary::{extract_range, range_pieces};
use crate::app::core::{Core, blocking};
use crate::app::drafts::session_counter;
use crate::app::error::{AppError, Result};
use crate::app::models::model_or_default;
use crate::app::models::window::window_of;
use crate::context::compact::{Summary, SummaryLimits, SummaryOptions, SummaryRequest};
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

/// Returns the summary of records and its author; `None` if nothing was said in them.
pub(in crate::app) async fn summarize_branch(
    core: &Arc<Core>,
    id: SessionId,
    records: Vec<Seq>,
) -> Result<Option<(String, SummaryAuthor)>> {
    let Some(branch) = blocking(core, move |core| survey(core, id, records)).await? else {
        return Ok(None);
    };
    if branch.tokens >= MIN_TOKENS {
        match by_model(core, &branch).await {
            Ok(summary) => return Ok(Some((summary.render(), SummaryAuthor::Model))),
            Err(error) => tracing::info!(session = %id, "a branch is not summarized: {error}"),
        }
    }
    let summary = extracted(core, &branch, .., None).await?;
    Ok(Some((summary.render(), SummaryAuthor::Daemon)))
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
    let own = notes_model(core, id).or(settings.model);
    let model = model_or_default(core, own).ok().map(|model| core.placed(id, &model));
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
    let RequestRoom { target, records: room } = summarizer.own_room(&wanted)?;
    let options = SummaryOptions { target, ..wanted };
    let limits = SummaryLimits { replaced: branch.tokens, target };
    let (records, counter) = (branch.records.clone(), &summarizer.counter);
    let pieces = range_pieces(core, branch.id, records, counter, room, usize::MAX).await?.pieces;
    let (early, pieces) = pieces.split_at(pieces.len().saturating_sub(MAX_PIECES));
    let mut summary = match early.last() {
        Some(last) => Some(extracted(core, branch, ..=last.to, None).await?),
        None => None,
    };
    for piece in pieces {
        let lines = async || {
            let part = piece.from..=piece.to;
            Ok(vec![extracted(core, branch, part, summary.clone()).await?])
        };
        let request = SummaryRequest::of_piece(summary.as_ref(), piece);
        summary = Some(summarizer.ask(request, options, limits, lines).await?);
    }
    summary.ok_or_else(|| AppError::invalid("summarize", "the branch has no readable record"))
}

/// Summarizes a part of the records by lines from them, on top of an earlier summary.
async fn extracted(
    core: &Arc<Core>,
    branch: &AbandonedBranch,
    part: impl RangeBounds<Seq>,
    before: Option<Summary>,
) -> Result<Summary> {
    let records = branch.records.iter().copied().filter(|seq| part.contains(seq)).collect();
    let counter = session_counter(core, branch.id);
    extract_range(core, branch.id, records, before, counter, branch.target).await
}
