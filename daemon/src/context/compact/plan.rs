//! Where a conversation is cut, and the heads that a compaction may open.

use ollm_protocol::Seq;

use crate::context::budget::trigger;
use crate::context::build::{self, Front};
use crate::context::contents::{Bodies, Contents};
use crate::context::strategy::{self, RECENT_PERCENT, Strategy};
use crate::context::units::{PathItem, Unit, split};
use crate::context::{BuildInput, Built, ContextError};

/// Percent of the prompt limit for the summary of one compaction.
const SUMMARY_PERCENT: u64 = 25;
/// Fewer tokens are not worth a summary.
const MIN_RANGE_TOKENS: u64 = 128;

/// What one compaction summarizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CutPlan {
    /// The first record of the range.
    pub from: Seq,
    /// The last record of the range.
    pub to: Seq,
    /// Those of the range that enter a context, oldest first.
    pub records: Vec<Seq>,
    /// Messages among them.
    pub n_messages: u64,
    /// Tokens of the range.
    pub tokens: u64,
    /// The most that the summary may have.
    pub target_tokens: u64,
}

/// Whether the conversation with what is pending has reached the share of the room at which it is compacted.
pub(crate) fn needs_compaction(built: &Built, threshold: f64) -> bool {
    let budget = &built.result.budget;
    budget.current_conversation_tokens >= trigger(budget.available_tokens, threshold)
}

/// The range that a compaction summarizes: all that no checkpoint stands for but the newest turns.
///
/// `None` when that is not worth it. Cuts lie between units, before a user message where one is near.
/// **Errors**: as of a build.
pub(crate) fn compaction_cut(
    input: &BuildInput<'_>,
    summary_max_tokens: u32,
    preserve_recent: u32,
) -> Result<Option<CutPlan>, ContextError> {
    let front = Front::new(input, true)?;
    let kept = input.checkpoints.iter().rev().find(|checkpoint| !checkpoint.provisional);
    let start = kept.map_or(0, |last| input.path.partition_point(|item| item.seq <= last.to));
    let limit = front.budget.prompt_limit;
    let target_tokens = (limit * SUMMARY_PERCENT / 100).min(u64::from(summary_max_tokens));
    let left = front.budget.available().saturating_sub(target_tokens);
    let room = build::target_of(left) * RECENT_PERCENT / 100;
    let room = room.min(u64::from(preserve_recent).max(left / 10));
    let units = split(&input.path[start..]);
    let cut = start + first_kept(&input.path[start..], &units, room);
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

/// The first record that stays verbatim: the newest units within `room`, the newest one in any case.
fn first_kept(path: &[PathItem], units: &[Unit], room: u64) -> usize {
    let mut sum = 0;
    let mut first = path.len();
    let mut at_user = None;
    for unit in units.iter().rev() {
        let items = &path[unit.start..unit.end];
        sum += items
            .iter()
            .filter(|item| item.enters())
            .map(|item| u64::from(item.tokens))
            .sum::<u64>();
        if sum > room && first < path.len() {
            break;
        }
        first = unit.start;
        if items.first().is_some_and(PathItem::is_user_message) {
            at_user = Some(first);
        }
        if sum > room {
            break;
        }
    }
    // A turn that begins within the room is kept from its beginning, unless that gives up most of the room.
    let kept = |from: usize| path[from..].iter().map(|item| u64::from(item.tokens)).sum::<u64>();
    at_user.filter(|at| kept(*at) * 2 >= kept(first)).unwrap_or(first)
}

/// A head with older tool results shortened, where that makes room enough.
///
/// **Errors**: as of a build.
pub(crate) fn prune(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    planned(input, contents, strategy::PRUNED)
}

/// A head that begins with the checkpoints of `input`.
///
/// **Errors**: as of a build.
pub(crate) fn with_checkpoints(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    planned(input, contents, strategy::CHECKPOINTED)
}

/// A head with the state by the records and the newest turns, without any summary.
///
/// **Errors**: as of a build.
pub(crate) fn truncate(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    match planned(input, contents, strategy::MINIMAL)? {
        Some(built) => Ok(Some(built)),
        None => planned(input, contents, strategy::FLOOR),
    }
}

fn planned(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
    strategy: &'static dyn Strategy,
) -> Result<Option<Built>, ContextError> {
    let front = Front::new(input, true)?;
    let mut bodies = Bodies::new(contents);
    let choice = build::plan(input, &front, &mut bodies, (strategy, false))?;
    Ok(choice.map(|choice| build::reply(input, front, choice)))
}
