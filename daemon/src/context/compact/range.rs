//! The range of records that one compaction summarizes: where it is cut, and what is read of its records.

use std::ops::ControlFlow;

use ollm_protocol::Seq;
use ollm_protocol::content::Checkpoint;

use super::extract::Extractor;
use super::numbers::*;
use super::request::{TranscriptBuilder, TranscriptPiece};
use super::retention::IdentifierCounts;
use crate::context::budget::trigger;
use crate::context::build::{Built, Front, pending_tokens, target_of, whole_newest_start};
use crate::context::input::{BuildInput, ContextError};
use crate::context::ledger::Ledger;
use crate::context::numbers::*;
use crate::context::path::{Contents, ContentsError, PathItem, Unit, for_each_record, split_units};
use crate::tokens::Counter;

/// The range of one compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CutPlan {
    pub from: Seq,
    pub to: Seq,
    /// The records of the range that enter a context, oldest first.
    pub records: Vec<Seq>,
    /// The messages among them.
    pub n_messages: u64,
    pub tokens: u64,
    /// Tokens that the summary may have.
    pub target_tokens: u64,
}

impl CutPlan {
    /// Divides the range behind a record. The tokens of both parts are those of the whole, by their records.
    pub(crate) fn split_behind(&self, border: Seq) -> (Self, Self) {
        let n_first = self.records.partition_point(|seq| *seq <= border);
        let (first, rest) = self.records.split_at(n_first);
        let n_all = self.records.len().max(1) as u64;
        let part = |records: &[Seq], from, to| Self {
            from,
            to,
            records: records.to_vec(),
            n_messages: self.n_messages * records.len() as u64 / n_all,
            tokens: self.tokens * records.len() as u64 / n_all,
            target_tokens: self.target_tokens,
        };
        let next = rest.first().copied().unwrap_or(self.to);
        (part(first, self.from, border), part(rest, next, self.to))
    }
}

/// Whether the conversation, with the pending message, has reached the size at which it is compacted.
///
/// A conversation that a new head would hardly make smaller, because most of it is being answered, has not.
pub(crate) fn needs_compaction(built: &Built, threshold: f64) -> bool {
    let budget = &built.result.budget;
    let conversation = budget.conversation_tokens;
    let gain = (conversation + budget.checkpoint_tokens).saturating_sub(built.least_tokens);
    conversation >= trigger(budget.available_tokens, threshold)
        && gain * 100 >= budget.available_tokens * MIN_GAIN_PERCENT
}

/// Returns the range that a compaction summarizes: every record that no checkpoint stands for except the newest turns,
/// or `None` if that is not worth a summary.
///
/// Cuts lie between units, and before a user message if one is near.
/// **Errors**: as a build.
pub(crate) fn compaction_cut(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
    summary_max_tokens: u32,
    preserve_recent: u32,
) -> Result<Option<CutPlan>, ContextError> {
    let front = Front::new(input, true, true)?;
    let lasting = input.checkpoints.iter().rev().find(|checkpoint| !checkpoint.provisional);
    let start = lasting.map_or(0, |last| input.path.partition_point(|item| item.seq <= last.to));
    let limit = front.budget.prompt_limit;
    let target_tokens = (limit * LEVEL_PERCENTS[usize::from(RECENT_LEVEL)] / 100)
        .min(u64::from(summary_max_tokens));
    let left = front.budget.available().saturating_sub(target_tokens);
    let room = target_of(left, input, pending_tokens(input)) * RECENT_PERCENT / 100;
    let room = room.min(u64::from(preserve_recent).max(left / 10));
    let units = split_units(&input.path[start..]);
    let cut = start + first_kept(&input.path[start..], &units, room);
    // The message that is being answered stays whole if it fits.
    let cut = whole_newest_start(input, &front, contents)?
        .map_or(cut, |newest| cut.min(newest))
        .max(start);
    let range = &input.path[start..cut];
    let entering: Vec<&PathItem> = range.iter().filter(|item| item.enters()).collect();
    let tokens: u64 = entering.iter().map(|item| u64::from(item.tokens)).sum();
    let (Some(from), Some(to)) = (range.first(), range.last()) else { return Ok(None) };
    if tokens < MIN_RANGE_TOKENS {
        return Ok(None);
    }
    Ok(Some(CutPlan {
        from: from.seq,
        to: to.seq,
        records: entering.iter().map(|item| item.seq).collect(),
        n_messages: entering.iter().filter(|item| item.is_message()).count() as u64,
        tokens,
        target_tokens,
    }))
}

/// Returns the index of the first record that stays verbatim: the newest units within `room`, at least the newest one.
fn first_kept(path: &[PathItem], units: &[Unit], room: u64) -> usize {
    let mut sum = 0;
    let mut first = path.len();
    let mut first_user = None;
    for unit in units.iter().rev() {
        let items = &path[unit.clone()];
        let entering = items.iter().filter(|item| item.enters());
        sum += entering.map(|item| u64::from(item.tokens)).sum::<u64>();
        if sum > room && first < path.len() {
            break;
        }
        first = unit.start;
        if items.first().is_some_and(PathItem::is_user_message) {
            first_user = Some(first);
        }
        if sum > room {
            break;
        }
    }
    // A turn that begins within the room is kept from its beginning, unless that gives up most of the room.
    let tokens = |from: usize| path[from..].iter().map(|item| u64::from(item.tokens)).sum::<u64>();
    first_user.filter(|at| tokens(*at) * 2 >= tokens(first)).unwrap_or(first)
}

/// The beginning of a range as a summarizer reads it.
#[derive(Debug)]
pub(crate) struct RangePieces {
    /// The records in pieces, oldest first.
    pub pieces: Vec<TranscriptPiece>,
    /// Whether the pieces hold the whole range.
    pub is_whole: bool,
}

/// Reads records into pieces of at most `room` tokens. Reads no further when `most` pieces are full.
pub(crate) fn read_pieces(
    contents: &dyn Contents,
    records: &[Seq],
    counter: &Counter,
    room: u64,
    most: usize,
) -> Result<RangePieces, ContentsError> {
    let mut transcript = TranscriptBuilder::new(counter, room);
    for_each_record(contents, records, |seq, body| {
        transcript.add(seq, body);
        if transcript.n_full() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let mut pieces = transcript.finish();
    let is_whole = pieces.len() <= most;
    pieces.truncate(most);
    Ok(RangePieces { pieces, is_whole })
}

/// The names that occur in some records.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeNames {
    /// Identifiers that occur more than once.
    pub identifiers: Vec<String>,
    /// The files that tools used.
    pub files: Ledger,
}

/// Reads the names in some records.
///
/// `before`: the checkpoint that stands for the records of the range before them; its files are added.
pub(crate) fn read_names(
    contents: &dyn Contents,
    records: &[Seq],
    before: Option<&Checkpoint>,
) -> Result<RangeNames, ContentsError> {
    let mut identifiers = IdentifierCounts::default();
    let mut files = before.map(Ledger::of_checkpoint).unwrap_or_default();
    for_each_record(contents, records, |_, body| {
        identifiers.add(body);
        files.add_record(body);
        ControlFlow::Continue(())
    })?;
    Ok(RangeNames { identifiers: identifiers.frequent(), files })
}

/// Reads records for a summary without a model.
pub(crate) fn extract_records(
    contents: &dyn Contents,
    records: &[Seq],
) -> Result<Extractor, ContentsError> {
    let mut extractor = Extractor::default();
    for_each_record(contents, records, |seq, body| {
        extractor.add(seq, body);
        ControlFlow::Continue(())
    })?;
    Ok(extractor)
}
