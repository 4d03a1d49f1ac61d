//! One build: keep the head in force while it fits, else plan a new one, and say what came out.

use ollm_protocol::Seq;
use ollm_protocol::content::{
    BuiltContext, Checkpoint, CompactMode, ContextMessage, Epoch, HeadItem, RecordKind,
};

use super::assemble::{Conversation, Layout, assemble};
use super::budget::{Budget, share};
use super::contents::{Bodies, Contents};
use super::previous::PreviousBuild;
use super::steps::block_of;
use super::strategy::{self, Ground, IMPLICIT, STRATEGIES, Strategy};
use super::units::PathItem;
use super::{BuildInput, Built, ContextError, basis, render};
use crate::tokens::Counter;

/// What a new head leaves the conversation at: the next turns then fit before the next one is needed.
const DEPTH_PERCENT: u64 = 55;
/// What a planner aims at, below [`DEPTH_PERCENT`] by what joins and markers may cost.
const TARGET_PERCENT: u64 = 50;
/// Why an epoch is opened that leaves out what the one before it showed.
pub(crate) const OVERFLOW: &str = "overflow";
/// Why an epoch is opened whose strategy somebody named.
pub(crate) const REQUESTED: &str = "requested";
/// How often a planner may try with less before it is given up; each time a quarter less.
const MAX_TRIES: usize = 12;

/// Builds a context.
///
/// **Errors**: `Overflow` when the system message, the tools, the pending message or a strategy that was named do
/// not fit; `UnknownStrategy`; `WindowTooSmall`; `Contents` when records cannot be read at all.
pub(crate) fn build(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Built, ContextError> {
    let named = input.strategy.map(strategy::by_name).transpose()?;
    let mut bodies = Bodies::new(contents);
    let change = basis::change(input);
    let front = Front::new(input, change.is_some())?;
    if let Some(choice) = current(input, &front, &mut bodies, (named, change))? {
        return Ok(reply(input, front, choice));
    }
    let front = Front::new(input, true)?;
    let choice = choose(input, &front, &mut bodies, named)?;
    Ok(reply(input, front, choice))
}

/// What stands before the conversation, and what it leaves.
pub(super) struct Front {
    /// The system message and its tokens.
    system: Option<(ContextMessage, u32)>,
    /// How the window is divided.
    pub(super) budget: Budget,
    /// What the system message ends with.
    additions: String,
}

impl Front {
    /// With the additions as they are now, or as the epoch in force froze them.
    pub(super) fn new(input: &BuildInput<'_>, is_new: bool) -> Result<Self, ContextError> {
        let frozen = input.epoch.and_then(|(_, epoch)| epoch.basis.as_ref()).filter(|_| !is_new);
        let additions =
            frozen.map_or_else(|| input.additions.to_owned(), |basis| basis.additions.clone());
        let system = system_message(input, &additions);
        let (head_tokens, tool_tokens) = input.counter.count_head(system.as_ref(), input.tools);
        let fixed = (u64::from(head_tokens), u64::from(tool_tokens), 0);
        let budget = Budget::new(input.context_size, input.answer_reserve, fixed)?;
        Ok(Self { system: system.map(|message| (message, head_tokens)), budget, additions })
    }
}

/// The conversation that was chosen.
pub(super) struct Choice {
    strategy: &'static str,
    conversation: Conversation,
    /// The head, where it is a new one, and why.
    new_head: Option<(Vec<HeadItem>, &'static str)>,
}

/// The head in force, where it fits and is what was asked for; with a new basis it becomes a new one.
fn current(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    (named, change): (Option<&'static dyn Strategy>, Option<&'static str>),
) -> Result<Option<Choice>, ContextError> {
    let strategy = current_name(input);
    if named.is_some_and(|named| named.name() != strategy) {
        return Ok(None);
    }
    let covered = |seq: Seq| input.path.partition_point(|item| item.seq < seq);
    let head = input.epoch.map(|(seq, epoch)| (epoch.head.as_slice(), covered(seq)));
    let layout = layout(input, front, head);
    let Some(conversation) = assemble(&layout, bodies)? else { return Ok(None) };
    let new_head = change.map(|change| (extended(input, head), change));
    Ok(Some(Choice { strategy, conversation, new_head }))
}

/// The head in force together with every record since.
fn extended(input: &BuildInput<'_>, head: Option<(&[HeadItem], usize)>) -> Vec<HeadItem> {
    let (head, covered) = head.unwrap_or_default();
    let since = &input.path[covered..];
    let ends = since.first().zip(since.last());
    let range = ends.map(|(first, last)| HeadItem::Range { from: first.seq, to: last.seq });
    head.iter().cloned().chain(range).collect()
}

/// The first strategy that fits, or the one that was asked for.
fn choose(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    named: Option<&'static dyn Strategy>,
) -> Result<Choice, ContextError> {
    let room = front.budget.available().saturating_sub(pending_tokens(input));
    let current = current_name(input);
    let all: &[&'static dyn Strategy] = STRATEGIES;
    let tried = named.as_ref().map_or(all, std::slice::from_ref);
    for strategy in tried.iter().copied() {
        let is_known_to_fail = strategy.keeps_all() && strategy.name() == current;
        if is_known_to_fail || strategy.min_tokens() > room {
            continue;
        }
        if let Some(choice) = plan(input, front, bodies, (strategy, named.is_some()))? {
            return Ok(choice);
        }
    }
    Err(overflow(input, &front.budget, room, named))
}

/// A new head of one strategy that fits and leaves room for what follows; `None` when it has none.
pub(super) fn plan(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    (strategy, is_named): (&'static dyn Strategy, bool),
) -> Result<Option<Choice>, ContextError> {
    let available = front.budget.available();
    let pending = pending_tokens(input);
    let checkpoints = if strategy.has_checkpoints() {
        checkpoint_tokens(&input.counter, input.checkpoints)
    } else {
        0
    };
    let left = available.saturating_sub(checkpoints);
    // Who asks for everything by name gets it as long as it fits at all.
    let deepest = if is_named && strategy.keeps_all() { left } else { left * DEPTH_PERCENT / 100 };
    let mut target = left.saturating_sub(pending).min(target_of(left));
    for _ in 0..MAX_TRIES {
        let mut ground = Ground {
            path: input.path,
            bodies: &mut *bodies,
            counter: &input.counter,
            checkpoints: input.checkpoints,
            pins: input.pins,
            decisions: input.decisions,
            project: input.project_path,
            user_tokens: share(left, input.user_share),
            prompt_limit: front.budget.prompt_limit,
        };
        let Some(head) = strategy.plan(&mut ground, target)? else { return Ok(None) };
        let layout = layout(input, front, Some((&head, input.path.len())));
        if let Some(conversation) = assemble(&layout, bodies)?
            && conversation.recorded_tokens - conversation.checkpoint_tokens <= deepest
        {
            let strategy = strategy.name();
            let cause = if input.strategy.is_some() { REQUESTED } else { OVERFLOW };
            return Ok(Some(Choice { strategy, conversation, new_head: Some((head, cause)) }));
        }
        if !strategy.shrinks() {
            return Ok(None);
        }
        target -= target / 4;
    }
    Ok(None)
}

/// What a planner aims at for a conversation that may have so many tokens.
pub(super) const fn target_of(left: u64) -> u64 {
    left * TARGET_PERCENT / 100
}

/// Tokens of the checkpoints as they are sent.
pub(super) fn checkpoint_tokens(counter: &Counter, checkpoints: &[Checkpoint]) -> u64 {
    checkpoints.iter().map(|checkpoint| u64::from(counter.count_text(&block_of(checkpoint)))).sum()
}

fn layout<'a>(
    input: &'a BuildInput<'a>,
    front: &Front,
    head: Option<(&'a [HeadItem], usize)>,
) -> Layout<'a> {
    Layout {
        path: input.path,
        head,
        checkpoints: input.checkpoints,
        pending: input.pending,
        counter: &input.counter,
        has_system: front.system.is_some(),
        limit: front.budget.available(),
    }
}

fn overflow(
    input: &BuildInput<'_>,
    budget: &Budget,
    room: u64,
    named: Option<&'static dyn Strategy>,
) -> ContextError {
    let fixed = budget.prompt_limit - budget.available();
    let pending = pending_tokens(input);
    let overflow = |needed: u64, what| ContextError::Overflow {
        needed: needed.max(budget.prompt_limit + 1),
        available: budget.prompt_limit,
        what,
    };
    if let Some(strategy) = named
        && strategy.keeps_all()
    {
        let history: u64 = input.path.iter().map(|item| u64::from(item.tokens)).sum();
        return overflow(fixed + history + pending, "full history");
    }
    let least = STRATEGIES.last().map_or(0, |strategy| strategy.min_tokens());
    let what = if pending > 0 && room + pending >= least {
        "pending message"
    } else {
        "system message and tools"
    };
    overflow(fixed + pending + least, what)
}

pub(super) fn reply(input: &BuildInput<'_>, front: Front, choice: Choice) -> Built {
    let Choice { strategy, conversation, new_head } = choice;
    let Front { system, budget, additions } = front;
    let conversation_tokens = conversation.total();
    let tokens_used = budget.system + budget.tools + conversation_tokens;
    let budget = Budget { checkpoints: conversation.checkpoint_tokens, ..budget };
    let (mut messages, mut tokens) = (Vec::new(), Vec::new());
    // Without a system message a template may still put something before the conversation.
    let before_tokens = budget.tools + if system.is_none() { budget.system } else { 0 };
    if let Some((message, count)) = system {
        messages.push(message);
        tokens.push(count);
    }
    messages.extend(conversation.messages);
    tokens.extend(conversation.tokens);
    let build = PreviousBuild::new(input.tools, before_tokens, &messages, &tokens);
    let prefix_tokens = input
        .previous
        .map_or(0, |previous| previous.prefix_tokens(&input.counter, &build, &messages));
    let told = additions.clone();
    let new_epoch = new_head.map(|(head, cause)| Epoch {
        strategy: strategy.to_owned(),
        cause: cause.to_owned(),
        context_size: input.context_size,
        tokenizer: input.counter.identity().to_string(),
        head_tokens: conversation.recorded_tokens,
        head,
        basis: Some(basis::of(input, additions)),
    });
    let count_kind = input.counter.kind_of(&messages);
    let is_message = |item: &&PathItem| item.kind == RecordKind::Message;
    let has_overflown = new_epoch.as_ref().is_some_and(|epoch| epoch.cause != basis::START);
    let result = BuiltContext {
        messages,
        strategy: strategy.to_owned(),
        tokens_used,
        token_budget: budget.prompt_limit,
        budget: budget.report(conversation_tokens.saturating_sub(budget.checkpoints)),
        original_message_count: input.path.iter().filter(is_message).count() as u64,
        included_message_count: conversation.n_included,
        summarized_message_count: conversation.n_summarized,
        omitted: conversation.omitted,
        count_kind,
        prefix_tokens,
        transient: has_overflown && input.compact == CompactMode::Never,
        num_ctx: input.context_size,
        num_predict: budget.num_predict(tokens_used),
        build_id: input.build_id.clone(),
    };
    Built { result, new_epoch, build, tokens, additions: told, pieces: conversation.pieces }
}

/// The one system message: the prompt, then the mode, then what is added.
fn system_message(input: &BuildInput<'_>, additions: &str) -> Option<ContextMessage> {
    let texts = [input.system_prompt, input.mode_text, Some(additions)].into_iter().flatten();
    let parts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    (!parts.is_empty()).then(|| render::system(parts.join("\n\n")))
}

/// What the pending message costs as a turn of its own.
fn pending_tokens(input: &BuildInput<'_>) -> u64 {
    input.pending.map_or(0, |text| u64::from(input.counter.count_user_text(text)))
}

/// The name of the strategy whose head is in force.
fn current_name(input: &BuildInput<'_>) -> &'static str {
    input.epoch.map_or(IMPLICIT, |(_, epoch)| known_name(&epoch.strategy))
}

/// The table's own copy of a strategy's name; a name that this version does not know counts as the last one.
fn known_name(name: &str) -> &'static str {
    strategy::by_name(name)
        .or_else(|_| STRATEGIES.last().copied().ok_or(()))
        .map_or(IMPLICIT, Strategy::name)
}
