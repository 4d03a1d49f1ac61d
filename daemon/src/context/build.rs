//! One build: keep the head in force while it fits, else plan a new one, and say what came out.

use ollm_protocol::Seq;
use ollm_protocol::content::{Epoch, HeadItem, RecordKind};
use ollm_protocol::methods::context::{CompactMode, ContextBuildResult, ContextMessage};

use super::assemble::{Conversation, Layout, assemble};
use super::budget::Budget;
use super::contents::{Bodies, Contents};
use super::previous::PreviousBuild;
use super::strategy::{self, Ground, IMPLICIT, STRATEGIES, Strategy};
use super::units::PathItem;
use super::{BuildInput, Built, ContextError, render};

/// What a new head leaves the conversation at: the next turns then fit before the next one is needed.
const DEPTH_PERCENT: u64 = 55;
/// What a planner aims at, below [`DEPTH_PERCENT`] by what joins and markers may cost.
const TARGET_PERCENT: u64 = 50;
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
    let system = system_message(input);
    let (head_tokens, tool_tokens) = input.counter.count_head(system.as_ref(), input.tools);
    let fixed = (u64::from(head_tokens), u64::from(tool_tokens), 0);
    let budget = Budget::new(input.context_size, input.answer_reserve, fixed)?;
    let mut bodies = Bodies::new(contents);
    let choice = choose(input, &budget, &mut bodies, named)?;
    Ok(reply(input, &budget, system.map(|message| (message, head_tokens)), choice))
}

/// The conversation that was chosen.
struct Choice {
    strategy: &'static str,
    conversation: Conversation,
    /// The head, where it is a new one.
    new_head: Option<Vec<HeadItem>>,
}

/// The head in force while it fits, else the first new one that does.
fn choose(
    input: &BuildInput<'_>,
    budget: &Budget,
    bodies: &mut Bodies<'_>,
    named: Option<&'static dyn Strategy>,
) -> Result<Choice, ContextError> {
    let current = input.epoch.map_or(IMPLICIT, |(_, epoch)| known_name(&epoch.strategy));
    if named.is_none_or(|strategy| strategy.name() == current) {
        let covered = |seq: Seq| input.path.partition_point(|item| item.seq < seq);
        let head = input.epoch.map(|(seq, epoch)| (epoch.head.as_slice(), covered(seq)));
        let layout = layout(input, head, budget.available());
        if let Some(conversation) = assemble(&layout, bodies)? {
            return Ok(Choice { strategy: current, conversation, new_head: None });
        }
    }
    let room = budget.available().saturating_sub(pending_tokens(input));
    let all: &[&'static dyn Strategy] = STRATEGIES;
    let tried = named.as_ref().map_or(all, std::slice::from_ref);
    for strategy in tried.iter().copied() {
        let is_known_to_fail = strategy.keeps_all() && strategy.name() == current;
        if is_known_to_fail || strategy.min_tokens() > room {
            continue;
        }
        if let Some(choice) = plan(input, budget, bodies, (strategy, named.is_some()))? {
            return Ok(choice);
        }
    }
    Err(overflow(input, budget, room, named))
}

/// A new head of one strategy that fits and leaves room for what follows; `None` when it has none.
fn plan(
    input: &BuildInput<'_>,
    budget: &Budget,
    bodies: &mut Bodies<'_>,
    (strategy, is_named): (&'static dyn Strategy, bool),
) -> Result<Option<Choice>, ContextError> {
    let available = budget.available();
    let room = available.saturating_sub(pending_tokens(input));
    // Who asks for everything by name gets it as long as it fits at all.
    let deepest =
        if is_named && strategy.keeps_all() { available } else { available * DEPTH_PERCENT / 100 };
    let mut target = room.min(available * TARGET_PERCENT / 100);
    for _ in 0..MAX_TRIES {
        let mut ground = Ground {
            path: input.path,
            bodies: &mut *bodies,
            counter: &input.counter,
            user_tokens: share(available, input.user_share),
        };
        let Some(head) = strategy.plan(&mut ground, target)? else { return Ok(None) };
        let layout = layout(input, Some((&head, input.path.len())), available);
        if let Some(conversation) = assemble(&layout, bodies)?
            && conversation.recorded_tokens <= deepest
        {
            let strategy = strategy.name();
            return Ok(Some(Choice { strategy, conversation, new_head: Some(head) }));
        }
        if strategy.keeps_all() {
            return Ok(None);
        }
        target -= target / 4;
    }
    Ok(None)
}

fn layout<'a>(
    input: &'a BuildInput<'a>,
    head: Option<(&'a [HeadItem], usize)>,
    limit: u64,
) -> Layout<'a> {
    let has_system = system_texts(input).next().is_some();
    let counter = &input.counter;
    Layout {
        path: input.path,
        head,
        checkpoints: input.checkpoints,
        pending: input.pending,
        counter,
        has_system,
        limit,
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

fn reply(
    input: &BuildInput<'_>,
    budget: &Budget,
    system: Option<(ContextMessage, u32)>,
    choice: Choice,
) -> Built {
    let Choice { strategy, conversation, new_head } = choice;
    let conversation_tokens = conversation.total();
    let tokens_used = budget.system + budget.tools + conversation_tokens;
    let budget = &Budget { checkpoints: conversation.checkpoint_tokens, ..*budget };
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
    let new_epoch = new_head.map(|head| Epoch {
        strategy: strategy.to_owned(),
        cause: if input.strategy.is_some() { "requested" } else { "overflow" }.to_owned(),
        context_size: input.context_size,
        tokenizer: input.counter.identity().to_string(),
        head_tokens: conversation.recorded_tokens,
        head,
        basis: None,
    });
    let count_kind = input.counter.kind_of(&messages);
    let is_message = |item: &&PathItem| item.kind == RecordKind::Message;
    let result = ContextBuildResult {
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
        transient: new_epoch.is_some() && input.compact == CompactMode::Never,
        num_ctx: input.context_size,
        num_predict: budget.num_predict(tokens_used),
        build_id: input.build_id.clone(),
    };
    Built { result, new_epoch, build }
}

/// The one system message: the prompt, then the mode.
fn system_message(input: &BuildInput<'_>) -> Option<ContextMessage> {
    let parts: Vec<&str> = system_texts(input).collect();
    (!parts.is_empty()).then(|| render::system(parts.join("\n\n")))
}

fn system_texts<'a>(input: &BuildInput<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let texts = [input.system_prompt, input.mode_text].into_iter().flatten();
    texts.filter(|text| !text.is_empty())
}

/// What the pending message costs as a turn of its own.
fn pending_tokens(input: &BuildInput<'_>) -> u64 {
    input.pending.map_or(0, |text| u64::from(input.counter.count_user_text(text)))
}

/// The table's own copy of a strategy's name; a name that this version does not know counts as the last one.
fn known_name(name: &str) -> &'static str {
    strategy::by_name(name)
        .or_else(|_| STRATEGIES.last().copied().ok_or(()))
        .map_or(IMPLICIT, Strategy::name)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "token counts lie far below 2^52, and a share lies between 0 and 1"
)]
fn share(tokens: u64, share: f64) -> u64 {
    (tokens as f64 * share.clamp(0.0, 1.0)) as u64
}
