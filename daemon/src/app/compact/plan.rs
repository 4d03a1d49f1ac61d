//! What a compaction would do to a session as it is now. Blocks on the disk, asks no model, writes nothing.

use std::sync::Arc;

use ollm_protocol::Seq;
use ollm_protocol::content::{CompactStrategy, CompactionMethod, CountKind};
use ollm_protocol::methods::context::ContextBuildParams;

use crate::app::prepared::{Prepared, Records, prepare};
use crate::app::{AppError, Core};
use crate::context::{self, BuildInput, Built, CutPlan};
use crate::tokens::Counter;

/// The part of the room by which a conversation must grow before it is compacted again, in percent.
const MIN_GROWTH_PERCENT: u64 = 10;

/// What is to be compacted, and how.
#[derive(Clone)]
pub(super) struct Order {
    /// The context that has to fit.
    pub(super) params: ContextBuildParams,
    /// Who counts; default: the counter of the session's model.
    pub(super) counter: Option<Counter>,
    /// How to make room.
    pub(super) strategy: CompactStrategy,
    /// What the user asks of the summary.
    pub(super) instructions: Option<String>,
}

/// The context as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    /// Its tokens, whether they fit or not.
    pub(super) tokens: u64,
    /// Whether it fits without leaving anything out that was there.
    pub(super) fits: bool,
    /// Whether the conversation has reached the share of its room at which it is compacted.
    pub(super) is_due: bool,
    /// The most that the conversation may have.
    pub(super) available: u64,
    /// The most that a prompt may have.
    pub(super) prompt_limit: u64,
    /// How tokens are counted.
    pub(super) count_kind: CountKind,
    /// Tokens recorded since the newest compaction, where there is one.
    pub(super) grown: Option<u64>,
    /// Messages that are shown.
    pub(super) n_messages: u64,
}

/// A session as a compaction finds it.
pub(super) struct Ground {
    /// What a build depends on.
    pub(super) prepared: Prepared,
    /// The context as it is.
    pub(super) before: Before,
}

/// How room is made.
pub(super) enum Way {
    /// By nothing: everything is recent.
    Nothing,
    /// By a head that needs no summary.
    Head(CompactionMethod),
    /// By a summary of a range.
    Summary(CutPlan),
}

impl Before {
    /// Whether so little came since the last compaction that another one would be for the same content.
    pub(super) fn is_recent(&self) -> bool {
        self.grown.is_some_and(|grown| grown * 100 < self.available * MIN_GROWTH_PERCENT)
    }
}

/// Looks at a session.
pub(super) fn survey(core: &Arc<Core>, order: &Order) -> Result<Ground, AppError> {
    let prepared = prepare(core, &order.params, order.counter.clone())?;
    let contents = Records { sessions: &core.sessions, id: prepared.id };
    let input = prepared.input(&order.params, &prepared.checkpoints);
    let built = context::build(&input, &contents)?;
    let threshold = core.config().compression.threshold;
    let before = before(&input, &built, prepared.compaction_at(), threshold);
    Ok(Ground { prepared, before })
}

fn before(
    input: &BuildInput<'_>,
    built: &Built,
    compaction: Option<Seq>,
    threshold: f64,
) -> Before {
    let result = &built.result;
    let fits = built.new_epoch.as_ref().is_none_or(|epoch| epoch.cause != context::OVERFLOW);
    let since = |seq: Seq| {
        let later = input.path.iter().rev().take_while(move |item| item.seq > seq);
        later.map(|item| u64::from(item.tokens)).sum::<u64>()
    };
    let budget = &result.budget;
    let tokens = if fits {
        result.tokens_used
    } else {
        let head = input.epoch.map_or(0, |(_, epoch)| epoch.head_tokens);
        let whole: u64 = input.path.iter().map(|item| u64::from(item.tokens)).sum();
        let rest = input.epoch.map_or(whole, |(seq, _)| since(seq));
        let pending =
            input.pending.map_or(0, |text| u64::from(input.counter.count_user_text(text)));
        let fixed = budget.system_prompt_tokens + budget.tool_definition_tokens;
        (fixed + head + rest + pending).max(budget.prompt_limit + 1)
    };
    Before {
        tokens,
        fits,
        is_due: !fits || context::needs_compaction(built, threshold),
        available: budget.available_tokens,
        prompt_limit: budget.prompt_limit,
        count_kind: result.count_kind,
        grown: compaction.map(since),
        n_messages: result.included_message_count,
    }
}

/// How room is made with a strategy.
pub(super) fn way(core: &Arc<Core>, order: &Order, ground: &Ground) -> Result<Way, AppError> {
    let prepared = &ground.prepared;
    let contents = Records { sessions: &core.sessions, id: prepared.id };
    let input = prepared.input(&order.params, &prepared.checkpoints);
    let gains = |built: Built| built.result.tokens_used < ground.before.tokens;
    if order.strategy == CompactStrategy::Hybrid
        && context::prune(&input, &contents)?.is_some_and(gains)
    {
        return Ok(Way::Head(CompactionMethod::Pruned));
    }
    if order.strategy == CompactStrategy::Truncate {
        let gains = context::truncate(&input, &contents)?.is_some_and(gains);
        return Ok(if gains { Way::Head(CompactionMethod::Truncated) } else { Way::Nothing });
    }
    let compression = &core.config().compression;
    let (most, recent) = (compression.summary_max_tokens, compression.preserve_recent_tokens);
    let cut = context::compaction_cut(&input, most, recent)?;
    Ok(cut.map_or(Way::Nothing, Way::Summary))
}
