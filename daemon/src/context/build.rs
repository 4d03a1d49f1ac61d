//! Building a context: the head in force is kept while it fits, else a new head is planned, and the result is described.

use ollm_protocol::content::{
    BuiltContext, CompactMode, ContextMessage, Epoch, HeadItem, RecordKind, Role,
};

use super::assemble::{Conversation, Head, Layout, ShownItem, assemble, checkpoint_block};
use super::budget::{Budget, share};
use super::input::{BuildInput, ContextError, PreviousBuild, START};
use super::path::{Bodies, Contents, PathItem, whole_range};
use super::strategy::{self, PlanInput, STRATEGIES, Strategy};

/// Percent of the room that a conversation may have after a new head, so that the next turns fit before another head
/// is needed.
const DEPTH_PERCENT: u64 = 55;
/// Percent of the room that a planner aims at: below [`DEPTH_PERCENT`] by the cost of joins and markers.
const TARGET_PERCENT: u64 = 50;
/// The cause of an epoch that leaves out records that the epoch before it showed.
pub(crate) const OVERFLOW: &str = "overflow";
/// The cause of an epoch whose strategy was named.
pub(crate) const REQUESTED: &str = "requested";
/// Attempts of a planner, each with a quarter less than the one before.
const MAX_TRIES: usize = 12;

/// A context and the values that follow from building it.
#[derive(Debug)]
pub(crate) struct Built {
    /// The reply.
    pub result: BuiltContext,
    /// A new epoch. If the caller records it, the next build begins with this one.
    pub new_epoch: Option<Epoch>,
    /// The `previous` build of the next input.
    pub build: PreviousBuild,
    /// Tokens of each message.
    pub tokens: Vec<u32>,
    /// The end of the system message.
    pub additions: String,
    /// The items that the conversation shows, in order.
    pub items: Vec<ShownItem>,
}

/// Builds a context.
///
/// **Errors**: `Overflow` if the system message, the tools, the pending message or a strategy that was named do not
/// fit; `UnknownStrategy`; `Contents` if records cannot be read at all.
pub(crate) fn build(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Built, ContextError> {
    let named = input.strategy.map(strategy::by_name).transpose()?;
    let mut bodies = Bodies::new(contents);
    let changed_basis = input.changed_basis();
    let front = Front::new(input, changed_basis.is_some())?;
    if let Some(choice) = current_head(input, &front, &mut bodies, named, changed_basis)? {
        return Ok(reply(input, front, choice));
    }
    let front = Front::new(input, true)?;
    let choice = first_fitting(input, &front, &mut bodies, named)?;
    Ok(reply(input, front, choice))
}

/// Builds a context whose older tool results are shortened, if that makes enough room.
///
/// **Errors**: as [`build()`].
pub(crate) fn prune(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    build_with(input, contents, &strategy::PRUNED_TOOLS)
}

/// Builds a context that begins with the checkpoints of `input`.
///
/// **Errors**: as [`build()`].
pub(crate) fn with_checkpoints(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    build_with(input, contents, &strategy::CHECKPOINTED)
}

/// Builds a context of the state by the records and the newest turns, without any summary.
///
/// **Errors**: as [`build()`].
pub(crate) fn truncate(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    match build_with(input, contents, &strategy::MINIMAL_STATE)? {
        Some(built) => Ok(Some(built)),
        None => build_with(input, contents, &strategy::FLOOR),
    }
}

/// Builds a context with a new head of one strategy; returns `None` if the strategy has none that fits.
fn build_with(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
    strategy: &'static Strategy,
) -> Result<Option<Built>, ContextError> {
    let front = Front::new(input, true)?;
    let choice = plan(input, &front, &mut Bodies::new(contents), strategy, false)?;
    Ok(choice.map(|choice| reply(input, front, choice)))
}

/// Returns the tokens that a planner aims at for a conversation that may have `available` tokens.
pub(super) const fn target_of(available: u64) -> u64 {
    available * TARGET_PERCENT / 100
}

/// The front of a prompt, which stands before the conversation, and the budget that it leaves.
pub(super) struct Front {
    /// The system message and its tokens.
    system: Option<(ContextMessage, u32)>,
    pub(super) budget: Budget,
    /// The end of the system message.
    additions: String,
}

impl Front {
    /// Creates the front of a new epoch, or of the epoch in force, whose additions are frozen.
    pub(super) fn new(input: &BuildInput<'_>, is_new: bool) -> Result<Self, ContextError> {
        let frozen = input.epoch.and_then(|(_, epoch)| epoch.basis.as_ref()).filter(|_| !is_new);
        let additions =
            frozen.map_or_else(|| input.additions.to_owned(), |basis| basis.additions.clone());
        let texts = [input.system_prompt, input.mode_text, Some(&additions)].into_iter().flatten();
        let parts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        let system =
            (!parts.is_empty()).then(|| ContextMessage::text(Role::System, parts.join("\n\n")));
        let (head_tokens, tool_tokens) = input.counter.count_head(system.as_ref(), input.tools);
        let budget = Budget::new(
            input.context_size,
            input.answer_reserve,
            u64::from(head_tokens),
            u64::from(tool_tokens),
        )?;
        Ok(Self { system: system.map(|message| (message, head_tokens)), budget, additions })
    }
}

/// The conversation of a build, with its strategy.
struct ChosenHead {
    strategy: &'static Strategy,
    conversation: Conversation,
    /// A new head and the cause of its epoch.
    new_head: Option<(Vec<HeadItem>, &'static str)>,
}

/// Returns the head in force if it fits and has the strategy that was named. With a changed basis it becomes a new
/// head, together with every record since.
fn current_head(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    named: Option<&'static Strategy>,
    changed_basis: Option<&'static str>,
) -> Result<Option<ChosenHead>, ContextError> {
    let strategy = current_strategy(input);
    if named.is_some_and(|named| named.name != strategy.name) {
        return Ok(None);
    }
    let head = input.epoch.map_or(Head::default(), |(seq, epoch)| Head {
        items: &epoch.head,
        n_covered: input.path.partition_point(|item| item.seq < seq),
    });
    let Some(conversation) = conversation(input, front, bodies, head)? else { return Ok(None) };
    let new_head = changed_basis.map(|cause| {
        let since = whole_range(&input.path[head.n_covered..]);
        (head.items.iter().cloned().chain(since).collect(), cause)
    });
    Ok(Some(ChosenHead { strategy, conversation, new_head }))
}

/// Returns a new head of the named strategy, or of the first strategy that fits.
fn first_fitting(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    named: Option<&'static Strategy>,
) -> Result<ChosenHead, ContextError> {
    let room = front.budget.available().saturating_sub(pending_tokens(input));
    let current = current_strategy(input);
    let tried = named.as_ref().map_or(STRATEGIES.as_slice(), std::slice::from_ref);
    for strategy in tried.iter().copied() {
        // A head that keeps everything did not fit if it was in force.
        let has_failed = strategy.keeps_all && current.keeps_all;
        if has_failed || strategy.min_tokens > room {
            continue;
        }
        if let Some(choice) = plan(input, front, bodies, strategy, named.is_some())? {
            return Ok(choice);
        }
    }
    Err(overflow(input, &front.budget, room, named))
}

/// Returns a new head of a strategy that fits and leaves room for the turns that follow, or `None` if there is none.
fn plan(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    strategy: &'static Strategy,
    is_named: bool,
) -> Result<Option<ChosenHead>, ContextError> {
    let checkpoints = if strategy.has_checkpoints { input.checkpoints } else { &[] };
    let blocks: Vec<String> =
        checkpoints.iter().map(|one| checkpoint_block(one, checkpoints)).collect();
    let checkpoint_tokens =
        blocks.iter().map(|block| u64::from(input.counter.count_text(block))).sum();
    let notes = blocks.join("\n");
    let left = front.budget.available().saturating_sub(checkpoint_tokens);
    // A named strategy that keeps everything is used as long as it fits at all.
    let deepest = if is_named && strategy.keeps_all { left } else { left * DEPTH_PERCENT / 100 };
    let mut target = left.saturating_sub(pending_tokens(input)).min(target_of(left));
    for _ in 0..MAX_TRIES {
        let mut plan_input = PlanInput {
            build: input,
            bodies: &mut *bodies,
            notes: &notes,
            user_tokens: share(left, input.user_share),
            prompt_limit: front.budget.prompt_limit,
        };
        let Some(planned) = (strategy.plan)(&mut plan_input, target)? else { return Ok(None) };
        let ids = checkpoints.iter().map(|checkpoint| HeadItem::Checkpoint { id: checkpoint.id });
        let items: Vec<HeadItem> = ids.chain(planned).collect();
        let head = Head { items: &items, n_covered: input.path.len() };
        if let Some(conversation) = conversation(input, front, bodies, head)?
            && conversation.recorded_tokens - conversation.checkpoint_tokens <= deepest
        {
            let cause = if input.strategy.is_some() { REQUESTED } else { OVERFLOW };
            return Ok(Some(ChosenHead { strategy, conversation, new_head: Some((items, cause)) }));
        }
        if !strategy.shrinks {
            return Ok(None);
        }
        target -= target / 4;
    }
    Ok(None)
}

/// Renders a head and the records behind it; returns `None` if they do not fit.
fn conversation(
    input: &BuildInput<'_>,
    front: &Front,
    bodies: &mut Bodies<'_>,
    head: Head<'_>,
) -> Result<Option<Conversation>, ContextError> {
    let (has_system, limit) = (front.system.is_some(), front.budget.available());
    Ok(assemble(&Layout { input, head, has_system, limit }, bodies)?)
}

fn overflow(
    input: &BuildInput<'_>,
    budget: &Budget,
    room: u64,
    named: Option<&'static Strategy>,
) -> ContextError {
    let front = budget.prompt_limit - budget.available();
    let pending = pending_tokens(input);
    let overflow = |needed: u64, what| ContextError::Overflow {
        needed: needed.max(budget.prompt_limit + 1),
        available: budget.prompt_limit,
        what,
    };
    if named.is_some_and(|named| named.keeps_all) {
        let history: u64 = input.path.iter().map(|item| u64::from(item.tokens)).sum();
        return overflow(front + history + pending, "full history");
    }
    let least = strategy::FLOOR.min_tokens;
    let what = if pending > 0 && room + pending >= least {
        "pending message"
    } else if front > 0 {
        "system message and tools"
    } else {
        "smallest context"
    };
    overflow(front + pending + least, what)
}

fn reply(input: &BuildInput<'_>, front: Front, choice: ChosenHead) -> Built {
    let ChosenHead { strategy, conversation, new_head } = choice;
    let Front { system, budget, additions } = front;
    let conversation_tokens = conversation.total();
    let tokens_used = budget.system + budget.tools + conversation_tokens;
    let budget = Budget { checkpoints: conversation.checkpoint_tokens, ..budget };
    let (mut messages, mut tokens) = (Vec::new(), Vec::new());
    // Without a system message a template may still put text before the conversation.
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
    let new_epoch = new_head.map(|(head, cause)| Epoch {
        strategy: strategy.name.to_owned(),
        cause: cause.to_owned(),
        context_size: input.context_size,
        tokenizer: input.counter.identity().to_string(),
        head_tokens: conversation.recorded_tokens,
        head,
        basis: Some(input.basis(additions.clone())),
    });
    let count_kind = input.counter.kind_of(&messages);
    let is_message = |item: &&PathItem| item.kind == RecordKind::Message;
    let is_dry_run = input.compact == CompactMode::Never
        && new_epoch.as_ref().is_some_and(|epoch| epoch.cause != START);
    let result = BuiltContext {
        messages,
        strategy: strategy.name.to_owned(),
        tokens_used,
        token_budget: budget.prompt_limit,
        budget: budget.report(conversation_tokens.saturating_sub(budget.checkpoints)),
        original_message_count: input.path.iter().filter(is_message).count() as u64,
        included_message_count: conversation.n_included,
        summarized_message_count: conversation.n_summarized,
        omitted: conversation.omitted,
        count_kind,
        prefix_tokens,
        transient: is_dry_run,
        num_ctx: input.context_size,
        window: input.window,
        num_predict: budget.num_predict(tokens_used),
        build_id: input.build_id.clone(),
    };
    Built { result, new_epoch, build, tokens, additions, items: conversation.items }
}

/// Returns the tokens of the pending message as a turn of its own.
fn pending_tokens(input: &BuildInput<'_>) -> u64 {
    input.pending.map_or(0, |text| u64::from(input.counter.count_user_text(text)))
}

/// Returns the strategy whose head is in force. Without an epoch, everything is shown; an unknown name in an epoch counts
/// as the floor.
fn current_strategy(input: &BuildInput<'_>) -> &'static Strategy {
    let Some((_, epoch)) = input.epoch else { return &strategy::FULL_HISTORY };
    strategy::by_name(&epoch.strategy).unwrap_or(&strategy::FLOOR)
}
