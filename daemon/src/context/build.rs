//! Building a context: the head in force is kept while it fits, else a new head is planned, and the result is described.

use std::collections::HashMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{
    BuiltContext, CompactMode, ContextMessage, CutRecord, Epoch, HeadItem, RecordKind, Role,
};

use super::assemble::{
    Conversation, Head, ItemSource, Layout, NOTICE, ShownItem, WHOLE, assemble, has_opening,
};
use super::budget::{Budget, share};
use super::input::{BuildInput, ContextError, PreviousBuild, START};
use super::newest::{NewestUnit, newest_start, others_room};
use super::notes::Notes;
use super::path::{Bodies, Contents, PathItem, newest_tokens, whole_range};
use super::render::note;
use super::strategy::{self, PlanInput, STRATEGIES, Strategy};
use crate::context::numbers::*;

/// The cause of an epoch that leaves out records that the epoch before it showed.
pub(crate) const OVERFLOW: &str = "overflow";
/// The cause of an epoch whose strategy was named.
pub(crate) const REQUESTED: &str = "requested";
/// The cause of an epoch whose window is larger than that of the epoch before it.
const WINDOW: &str = "window";
/// The topic of the block of this explanation.
const NOTICE_TOPIC: &str = "notice";
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
    /// The tokens of the conversation that a new head would aim at.
    pub least_tokens: u64,
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
    let choice = match current_head(input, &mut bodies, named, changed_basis)? {
        CurrentHead::Fits(choice) => *choice,
        CurrentHead::Overflows => first_fitting(input, &mut bodies, named, OVERFLOW)?,
        CurrentHead::IsOutgrown => first_fitting(input, &mut bodies, named, WINDOW)?,
    };
    Ok(reply(input, choice))
}

/// Builds a context with the head in force; returns `None` if a new epoch would begin instead. Plans no head.
///
/// **Errors**: as [`build()`].
pub(crate) fn build_in_epoch(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
) -> Result<Option<Built>, ContextError> {
    let named = input.strategy.map(strategy::by_name).transpose()?;
    if input.changed_basis().is_some() {
        return Ok(None);
    }
    Ok(match current_head(input, &mut Bodies::new(contents), named, None)? {
        CurrentHead::Fits(choice) => Some(reply(input, *choice)),
        CurrentHead::Overflows | CurrentHead::IsOutgrown => None,
    })
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
    let choice = plan(input, &mut Bodies::new(contents), strategy, false, OVERFLOW)?;
    Ok(choice.map(|choice| reply(input, choice)))
}

/// Returns the tokens that a planner aims at for a conversation that may have `available` tokens: they leave room for some
/// turns as large as the newest ones of the path.
///
/// `pending`: the tokens of the pending message, which is the newest turn if there is one.
pub(super) fn target_of(available: u64, input: &BuildInput<'_>, pending: u64) -> u64 {
    let part = |percent: &u64| available * percent / 100;
    if input.deep {
        return part(TARGET_PERCENTS.start());
    }
    let next_turns = match pending {
        0 => newest_tokens(input.path, NEXT_TURNS),
        pending => pending + newest_tokens(input.path, NEXT_TURNS - 1),
    };
    let grown = part(&GROWN_PERCENT).saturating_sub(next_turns);
    grown.clamp(part(TARGET_PERCENTS.start()), part(TARGET_PERCENTS.end()))
}

/// Returns the index at which the unit that is being answered begins, if it is whole in the next head.
pub(super) fn whole_newest_start(
    input: &BuildInput<'_>,
    front: &Front,
    contents: &dyn Contents,
) -> Result<Option<usize>, ContextError> {
    let room = Room::new(input, front);
    let newest = NewestUnit::plan(input, &mut Bodies::new(contents), room.newest)?;
    Ok(newest_start(input.path).filter(|_| newest.is_whole(input.path)))
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
    ///
    /// `has_opening`: the head begins with notes, which the end of a new system message explains.
    pub(super) fn new(
        input: &BuildInput<'_>,
        is_new: bool,
        has_opening: bool,
    ) -> Result<Self, ContextError> {
        let front = Self::with_notice(input, is_new, false)?;
        let notice_tokens = u64::from(input.counter.count_text(NOTICE));
        let fits = notice_tokens * NOTICE_DIVISOR <= front.budget.available();
        match has_opening && is_new && fits {
            true => Self::with_notice(input, is_new, true),
            false => Ok(front),
        }
    }

    fn with_notice(
        input: &BuildInput<'_>,
        is_new: bool,
        has_notice: bool,
    ) -> Result<Self, ContextError> {
        let frozen = input.epoch.and_then(|(_, epoch)| epoch.basis.as_ref()).filter(|_| !is_new);
        let additions = match frozen {
            Some(basis) => basis.additions.clone(),
            None => {
                // A system message by the daemon would replace the default one of the model.
                let notice = if has_notice && input.has_system() { NOTICE } else { "" };
                let texts = [input.additions, notice];
                texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
            }
        };
        let texts = [input.system_prompt, input.mode_text, Some(&additions)].into_iter().flatten();
        let parts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        let text = parts.join("\n\n");
        let system = (!parts.is_empty())
            .then(|| ContextMessage::text(Role::System, input.counter.defuse(&text)));
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
    front: Front,
    conversation: Conversation,
    /// A new head and the cause of its epoch.
    new_head: Option<(Vec<HeadItem>, &'static str)>,
}

/// The head in force.
enum CurrentHead {
    Fits(Box<ChosenHead>),
    /// The head does not fit, or another strategy was named.
    Overflows,
    /// The window grew, and the head fills less than half of what would fit.
    IsOutgrown,
}

/// Returns the head in force if it fits and has the strategy that was named. With a changed basis it becomes a new
/// head, together with every record since.
fn current_head(
    input: &BuildInput<'_>,
    bodies: &mut Bodies<'_>,
    named: Option<&'static Strategy>,
    changed_basis: Option<&'static str>,
) -> Result<CurrentHead, ContextError> {
    let strategy = current_strategy(input);
    if named.is_some_and(|named| named.name != strategy.name) {
        return Ok(CurrentHead::Overflows);
    }
    let head = input.epoch.map_or(Head::default(), |(seq, epoch)| Head {
        items: &epoch.head,
        n_covered: input.path.partition_point(|item| item.seq < seq),
    });
    let front = Front::new(input, changed_basis.is_some(), has_opening(head.items))?;
    let Some(conversation) = conversation(input, &front, bodies, head)? else {
        return Ok(CurrentHead::Overflows);
    };
    if named.is_none() && is_outgrown(input, strategy, &front, &conversation) {
        return Ok(CurrentHead::IsOutgrown);
    }
    let new_head = changed_basis.map(|cause| {
        let since = whole_range(&input.path[head.n_covered..]);
        (head.items.iter().cloned().chain(since).collect(), cause)
    });
    let chosen = ChosenHead { strategy, front, conversation, new_head };
    Ok(CurrentHead::Fits(Box::new(chosen)))
}

/// Returns whether a head was planned for a smaller window, and shows less than half of what a new one would.
fn is_outgrown(
    input: &BuildInput<'_>,
    strategy: &Strategy,
    front: &Front,
    conversation: &Conversation,
) -> bool {
    let grew = input.epoch.is_some_and(|(_, epoch)| epoch.context_size < input.context_size);
    if !grew || strategy.keeps_all {
        return false;
    }
    let history: u64 = input.path.iter().map(|item| u64::from(item.tokens)).sum();
    let available = front.budget.available();
    let fitting = match history <= regained(available) {
        true => history,
        false => target_of(available, input, pending_tokens(input)),
    };
    conversation.recorded_tokens * 2 < fitting
}

/// Returns the tokens up to which a larger window shows the whole history again.
const fn regained(available: u64) -> u64 {
    available * REGAINED_PERCENT / 100
}

/// Returns a new head of the named strategy, or of the first strategy that fits.
fn first_fitting(
    input: &BuildInput<'_>,
    bodies: &mut Bodies<'_>,
    named: Option<&'static Strategy>,
    cause: &'static str,
) -> Result<ChosenHead, ContextError> {
    let front = Front::new(input, true, true)?;
    let room = front.budget.available().saturating_sub(pending_tokens(input) + input.spare_tokens);
    let current = current_strategy(input);
    let tried = named.as_ref().map_or(STRATEGIES.as_slice(), std::slice::from_ref);
    for strategy in tried.iter().copied() {
        // A head that keeps everything did not fit if it was in force.
        let has_failed = strategy.keeps_all && current.keeps_all;
        if has_failed || strategy.min_tokens > room {
            continue;
        }
        if let Some(choice) = plan(input, bodies, strategy, named.is_some(), cause)? {
            return Ok(choice);
        }
    }
    Err(overflow(input, &front.budget, room, named))
}

/// The explanation of a head's notes as an item of the head, for a conversation without a system message. A system
/// message by the daemon would replace the default one of the model.
#[derive(Default)]
struct Notice {
    item: Option<HeadItem>,
    tokens: u64,
}

impl Notice {
    fn new(input: &BuildInput<'_>, available: u64) -> Self {
        if input.has_system() {
            return Self::default();
        }
        let tokens = u64::from(input.counter.count_text(&note(NOTICE_TOPIC, &[], NOTICE)));
        if tokens * NOTICE_DIVISOR > available {
            return Self::default();
        }
        let (topic, text) = (NOTICE_TOPIC.to_owned(), NOTICE.to_owned());
        Self { item: Some(HeadItem::Block { topic, text }), tokens }
    }
}

/// The division of a conversation between the unit that is being answered and everything older.
struct Room<'r> {
    input: &'r BuildInput<'r>,
    /// Tokens that the conversation may have.
    available: u64,
    prompt_limit: u64,
    /// Tokens of the pending message.
    pending: u64,
    /// The fewest tokens of older records beside the newest unit.
    others: u64,
    /// Tokens that the newest unit may have.
    newest: u64,
}

impl<'r> Room<'r> {
    fn new(input: &'r BuildInput<'r>, front: &Front) -> Self {
        let (available, prompt_limit) = (front.budget.available(), front.budget.prompt_limit);
        let start = match input.pending {
            Some(_) => Some(input.path.len()),
            None => newest_start(input.path),
        };
        let others = start.map_or(0, |start| others_room(input.path, start, prompt_limit));
        let newest = available.saturating_sub(input.spare_tokens).saturating_sub(others);
        let pending = pending_tokens(input);
        Self { input, available, prompt_limit, pending, others, newest }
    }

    /// Returns the tokens that a head aims at, given those of its checkpoints and of the newest unit.
    fn aim(&self, checkpoints: u64, newest: u64) -> u64 {
        let left = self.available.saturating_sub(checkpoints);
        let mut aim = checkpoints + target_of(left, self.input, self.pending);
        if newest > 0 {
            let beside =
                |tokens: u64, percent| (newest + tokens).min(self.available * percent / 100);
            aim = aim
                .max(beside(self.prompt_limit * BESIDE_PERCENT / 100, CROWDED_PERCENT))
                .max(beside(LEAST_BESIDE, FULL_PERCENT))
                .max(newest + self.others);
        }
        aim.min(self.available.saturating_sub(self.input.spare_tokens))
    }

    /// Returns the tokens that the conversation of a new head aims at, and the most that it may have.
    ///
    /// `below`: the size that the whole prompt must stay below. `notes`, `newest`: the tokens of all notes and of the newest
    /// unit.
    fn depth(
        &self,
        below: Option<u64>,
        strategy: &Strategy,
        cause: &'static str,
        notes: u64,
        newest: u64,
    ) -> (u64, u64) {
        let fixed = self.prompt_limit - self.available;
        let below = below.map_or(u64::MAX, |most| most.saturating_sub(fixed + 1));
        let aim = self.aim(notes, newest).min(below);
        let slack = self.available.saturating_sub(notes.min(aim)) * JOINS_PERCENT / 100;
        let deepest = if strategy.keeps_all && cause == REQUESTED {
            // A named strategy that keeps everything is used as long as it fits at all.
            self.available
        } else if strategy.keeps_all && cause == WINDOW {
            regained(self.available).max(aim + slack)
        } else {
            aim + slack
        };
        (aim, deepest.min(below))
    }
}

/// Returns a new head of a strategy that fits and leaves room for the turns that follow, or `None` if there is none.
fn plan(
    input: &BuildInput<'_>,
    bodies: &mut Bodies<'_>,
    strategy: &'static Strategy,
    is_named: bool,
    cause: &'static str,
) -> Result<Option<ChosenHead>, ContextError> {
    let checkpoints = if strategy.has_checkpoints { input.checkpoints } else { &[] };
    let may_open = strategy.shrinks || !checkpoints.is_empty();
    let mut front = Front::new(input, true, may_open)?;
    let room = Room::new(input, &front);
    let whole_notes = Notes::whole(checkpoints, &input.counter);
    let mut newest = NewestUnit::plan(input, bodies, room.newest)?;
    let cause = if is_named { REQUESTED } else { cause };
    let (notes, below) = (whole_notes.tokens, input.below_tokens);
    let (aim, deepest) = room.depth(below, strategy, cause, notes, newest.tokens);
    let notice = if may_open { Notice::new(input, room.available) } else { Notice::default() };
    let older = aim.saturating_sub(newest.tokens + notice.tokens);
    let limit = room.prompt_limit;
    let beside = strategy::beside_notes(input, &newest, &whole_notes.text, limit, older);
    let mut notes_room = (older * NOTES_PERCENT / 100).min(older.saturating_sub(beside));
    let mut notes = Notes::fitted(checkpoints, &input.counter, notes_room);
    let mut target = older.saturating_sub(notes.tokens);
    for n_tries in 0..MAX_TRIES {
        let mut plan_input = PlanInput {
            build: input,
            bodies: &mut *bodies,
            newest: &newest,
            notes: &notes.text,
            user_tokens: share(room.available.saturating_sub(notes.tokens), input.user_share),
            prompt_limit: room.prompt_limit,
        };
        let Some(planned) = (strategy.plan)(&mut plan_input, target)? else { return Ok(None) };
        let mut items: Vec<HeadItem> = notes.items.iter().cloned().chain(planned).collect();
        if has_opening(&items) {
            items.splice(0..0, notice.item.clone());
        } else if may_open && n_tries == 0 {
            front = Front::new(input, true, false)?;
        }
        let head = Head { items: &items, n_covered: input.path.len() };
        if let Some(conversation) = conversation(input, &front, bodies, head)?
            && conversation.total() <= deepest
        {
            let new_head = Some((items, cause));
            return Ok(Some(ChosenHead { strategy, front, conversation, new_head }));
        }
        if !strategy.shrinks {
            return Ok(None);
        }
        target -= target / 4;
        if n_tries >= MAX_TRIES / 2 {
            notes_room /= 2;
            notes = Notes::fitted(checkpoints, &input.counter, notes_room);
        }
        if input.pending.is_none() && !newest.is_whole(input.path) {
            let smaller = room.newest - room.newest * (n_tries as u64 + 1) / 64;
            newest = NewestUnit::plan(input, bodies, smaller)?;
        }
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
    let has_system = front.system.is_some();
    let limit = front.budget.available().saturating_sub(input.spare_tokens);
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

/// Returns whether a context begins with the head of an epoch that is not recorded, in place of another one.
pub(crate) fn is_transient(compact: CompactMode, new_epoch: Option<&Epoch>) -> bool {
    compact == CompactMode::Never && new_epoch.is_some_and(|epoch| epoch.cause != START)
}

fn reply(input: &BuildInput<'_>, choice: ChosenHead) -> Built {
    let ChosenHead { strategy, front, conversation, new_head } = choice;
    let least_tokens = least_tokens(input, &front, &conversation);
    let cut = cut_records(input, &conversation);
    let Front { system, budget, additions } = front;
    let conversation_tokens = conversation.total();
    let context_tokens = budget.system + budget.tools + conversation_tokens;
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
    // The answer keeps half of its room however uncertain the count is.
    let margin = input.counter.margin(&messages, input.tools, context_tokens);
    let margin = margin.min(u64::from(budget.answer_limit(context_tokens) / 2));
    let is_message = |item: &&PathItem| item.kind == RecordKind::Message;
    let result = BuiltContext {
        messages,
        strategy: strategy.name.to_owned(),
        context_tokens,
        prompt_limit: budget.prompt_limit,
        budget: budget.report(conversation_tokens.saturating_sub(budget.checkpoints)),
        original_message_count: input.path.iter().filter(is_message).count() as u64,
        included_message_count: conversation.n_included,
        summarized_message_count: conversation.n_summarized,
        cut,
        omitted: conversation.omitted,
        count_kind,
        prefix_tokens,
        transient: is_transient(input.compact, new_epoch.as_ref()),
        context_size: input.context_size,
        window: input.window,
        answer_limit: budget.answer_limit(context_tokens.saturating_add(margin)),
        build_id: input.build_id.clone(),
        recalled: Vec::new(),
    };
    Built { result, new_epoch, build, tokens, additions, items: conversation.items, least_tokens }
}

/// Lists the records of the newest unit that are not shown whole.
fn cut_records(input: &BuildInput<'_>, conversation: &Conversation) -> Vec<CutRecord> {
    let Some(start) = newest_start(input.path).filter(|_| input.pending.is_none()) else {
        return Vec::new();
    };
    let shown: HashMap<Seq, &ShownItem> = conversation.items.iter().filter_map(by_seq).collect();
    let cut = input.path[start..].iter().filter_map(|record| {
        let total_tokens = u64::from(record.tokens);
        let shown_tokens = match shown.get(&record.seq) {
            Some(item) if item.form == WHOLE => return None,
            Some(item) => item.tokens,
            None if conversation.is_left_out(record.seq) => 0,
            None => return None,
        };
        Some(CutRecord { seq: record.seq, shown_tokens, total_tokens })
    });
    cut.collect()
}

fn by_seq(item: &ShownItem) -> Option<(Seq, &ShownItem)> {
    match &item.source {
        ItemSource::Record(record) => Some((record.seq, item)),
        _ => None,
    }
}

/// Returns the tokens that a new head would aim at, with the checkpoints and the newest unit of a conversation.
fn least_tokens(input: &BuildInput<'_>, front: &Front, conversation: &Conversation) -> u64 {
    let room = Room::new(input, front);
    let newest = match (input.pending, newest_start(input.path)) {
        (Some(_), _) => room.pending,
        (None, start) => start.map_or(0, |start| conversation.tokens_since(input.path[start].seq)),
    };
    room.aim(conversation.checkpoint_tokens, newest)
}

/// Returns the tokens of the pending message as a turn of its own.
pub(super) fn pending_tokens(input: &BuildInput<'_>) -> u64 {
    input.pending.map_or(0, |text| u64::from(input.counter.count_user_text(text)))
}

/// Returns the strategy whose head is in force. Without an epoch, everything is shown; an unknown name in an epoch counts
/// as the floor.
fn current_strategy(input: &BuildInput<'_>) -> &'static Strategy {
    let Some((_, epoch)) = input.epoch else { return &strategy::FULL_HISTORY };
    strategy::by_name(&epoch.strategy).unwrap_or(&strategy::FLOOR)
}
