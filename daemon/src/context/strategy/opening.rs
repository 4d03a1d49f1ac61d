//! The opening of a head, which stands before the newest turns: facts, file lists, the original task, pins, and earlier
//! messages of the user, each within its share. Adds methods to [`HeadBuilder`].
//!
//! The turns leave their reserved tokens to the opening. Facts then have what is free up to their share, and earlier
//! messages the rest.

use std::collections::HashSet;

use ollm_protocol::Seq;
use ollm_protocol::content::{FACTS_BLOCK, RecordBody};

use super::head::HeadBuilder;
use super::plan::PlanInput;
use crate::context::compact::defuse_all;
use crate::context::input::BuildInput;
use crate::context::ledger::Ledger;
use crate::context::newest::NewestUnit;
use crate::context::numbers::*;
use crate::context::path::{ContentsError, PathItem, Unit, batch_len, is_answered};
use crate::context::render::quoted_text;
use crate::facts::one_line;
use crate::tokens::Counter;

/// Returns the files of a session: those that checkpoints name, then those of the records from `start` on.
fn ledger(input: &mut PlanInput<'_, '_>, start: usize) -> Result<Ledger, ContentsError> {
    let mut ledger = Ledger::default();
    for checkpoint in input.build.checkpoints {
        ledger.join(&Ledger::of_checkpoint(checkpoint));
    }
    let first = start.max(input.build.path.len().saturating_sub(MAX_LEDGER_RECORDS));
    let calls: Vec<PathItem> =
        input.build.path[first..].iter().filter(|item| item.may_call()).copied().collect();
    input.bodies.load(&calls)?;
    let bodies = calls.iter().filter_map(|item| input.bodies.get(item.seq));
    bodies.for_each(|body| ledger.add_record(body));
    Ok(ledger)
}

/// Returns the files in words within `tokens`, newest first, with the number of those that do not fit; empty if not even
/// the numbers fit.
fn ledger_text(counter: &Counter, ledger: &Ledger, tokens: u64) -> String {
    let fits = |shown| u64::from(counter.count_text(&ledger_lines(ledger, shown))) <= tokens;
    let most = |n_paths: usize, fits: &dyn Fn(usize) -> bool| {
        (1..=n_paths).collect::<Vec<_>>().partition_point(|n| fits(*n))
    };
    let n_changed = most(ledger.modified.len(), &|n| fits([n, 0]));
    let n_read = most(ledger.read.len(), &|n| fits([n_changed, n]));
    let shown = [n_changed, n_read];
    if fits(shown) { ledger_lines(ledger, shown) } else { String::new() }
}

/// Returns a line for each of the newest changed and read files, and for the number of the others.
fn ledger_lines(ledger: &Ledger, [n_changed, n_read]: [usize; 2]) -> String {
    let lists = [("changed", &ledger.modified, n_changed), ("read", &ledger.read, n_read)];
    let mut lines = Vec::new();
    for (verb, paths, n_shown) in lists {
        lines.extend(paths.iter().rev().take(n_shown).map(|path| format!("{verb}: {path}")));
        if n_shown < paths.len() {
            lines.push(format!("+{} more {verb}", paths.len() - n_shown));
        }
    }
    lines.join("\n")
}

/// Returns the tokens of an opening that its notes leave free: for pins, both ends of the original task and of the message
/// before the newest, the newest file, and the facts that `notes` do not say.
///
/// `older`: the tokens of notes and opening together.
pub(in crate::context) fn beside_notes(
    input: &BuildInput<'_>,
    newest: &NewestUnit,
    notes: &str,
    prompt_limit: u64,
    older: u64,
) -> u64 {
    let pins = pinned(input).map(|at| u64::from(input.path[at].tokens) + QUOTE_TOKENS);
    pins.sum::<u64>().min(pin_share(input, prompt_limit))
        + 2 * (MIN_SHARE + QUOTE_TOKENS)
        + MIN_FILE_TOKENS
        + 2 * QUOTE_TOKENS
        + facts_beside(input, newest, notes, fact_share(prompt_limit).min(older / FACTS_DIVISOR))
}

/// Returns the tokens of the facts that neither `notes` nor the newest unit say, `most` at most; none without notes.
fn facts_beside(input: &BuildInput<'_>, newest: &NewestUnit, notes: &str, most: u64) -> u64 {
    let Some(facts) = input.facts.filter(|_| !notes.is_empty()) else { return 0 };
    let is_shown = |seq: Seq| {
        let at = input.path.binary_search_by_key(&seq, |item| item.seq).ok();
        at.is_some_and(|at| newest.has_whole(at))
    };
    let count = |text: &str| u64::from(input.counter.count_text(text));
    let text = facts.lines(notes, &is_shown, most.saturating_sub(QUOTE_TOKENS), &count);
    if text.is_empty() { 0 } else { (count(&text) + QUOTE_TOKENS).min(most) }
}

/// Returns the tokens that facts may have.
fn fact_share(prompt_limit: u64) -> u64 {
    let best = (prompt_limit * BEST_FACTS_PERCENT / 100).min(BEST_FACTS_TOKENS);
    best.max(prompt_limit * FACTS_PERCENT / 100)
}

/// Returns whether a message is worth the tokens of its quote.
///
/// `n_facts`: the number of its facts that probably last and that nothing else says.
fn is_worth_quoting(item: &PathItem, n_facts: f32) -> bool {
    f64::from(item.tokens) <= f64::from(n_facts * TOKENS_PER_FACT)
}

/// Returns the indices of the pinned records, the newest pin first.
fn pinned(input: &BuildInput<'_>) -> impl Iterator<Item = usize> {
    let at = |seq: &Seq| input.path.binary_search_by_key(seq, |item| item.seq).ok();
    input.pins.iter().rev().filter_map(at)
}

/// Returns the tokens that all pins together may have.
fn pin_share(input: &BuildInput<'_>, prompt_limit: u64) -> u64 {
    prompt_limit * PIN_PERCENT / 100 + input.pins.len() as u64 * QUOTE_TOKENS
}

/// Tokens that are reserved for the opening, so that the newest turns do not take them.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    facts: u64,
    task: u64,
    pins: u64,
    files: u64,
    earlier: u64,
    ledger: Ledger,
}

impl HeadBuilder<'_, '_, '_> {
    /// Reserves tokens for pins, for the original task, for the files of the records from `start` on, for the message before
    /// the turns, for facts, and for the messages before it. The first of them have their room in a crowded head too.
    pub(super) fn reserve(&mut self, start: usize) -> Result<Reserved, ContentsError> {
        let pins = self.pin_tokens()?;
        self.left -= pins;
        let task = self.task_tokens()?;
        self.left -= task;
        self.users -= task;
        let ledger = ledger(self.input, start)?;
        let files = self.file_tokens(&ledger);
        self.left -= files;
        let before = (MIN_SHARE + QUOTE_TOKENS).min(self.left);
        self.left -= before;
        let facts = self.fact_tokens();
        self.left -= facts;
        let least = self.input.prompt_limit * EARLIER_PERCENT / 100;
        let more = (self.input.user_tokens / EARLIER_DIVISOR).min(self.left / QUOTE_DIVISOR);
        let more = more.max(least.min(self.left / EARLIER_REST_DIVISOR));
        self.left -= more;
        let earlier = before + more;
        Ok(Reserved { facts, task, pins, files, earlier, ledger })
    }

    fn fact_tokens(&self) -> u64 {
        let most = fact_share(self.input.prompt_limit).min(self.left / FACTS_DIVISOR);
        let text = self.fact_lines(most.saturating_sub(QUOTE_TOKENS));
        let cost = u64::from(self.input.build.counter.count_text(&text)) + QUOTE_TOKENS;
        if text.is_empty() { 0 } else { cost.min(self.left) }
    }

    /// Returns the lines of the facts within `room` tokens that nothing else in the head says.
    fn fact_lines(&self, room: u64) -> String {
        let Some(facts) = self.input.build.facts else { return String::new() };
        let is_shown = |seq: Seq| {
            let path = self.input.build.path;
            let at = path.binary_search_by_key(&seq, |item| item.seq).ok();
            at.is_some_and(|at| self.shows_all_of(at))
        };
        let count = |text: &str| u64::from(self.input.build.counter.count_text(text));
        facts.lines(self.input.notes, &is_shown, room, &count)
    }

    fn task_tokens(&mut self) -> Result<u64, ContentsError> {
        let Some(at) = self.input.task() else { return Ok(0) };
        let item = self.input.build.path[at];
        self.input.bodies.load(&[item])?;
        if self.is_in_notes(&item) {
            return Ok(0);
        }
        let most = (self.left / QUOTE_DIVISOR).max(MIN_SHARE);
        Ok((self.cost(&item).min(most) + QUOTE_TOKENS).min(self.left).min(self.users))
    }

    fn pin_tokens(&mut self) -> Result<u64, ContentsError> {
        let pinned: Vec<PathItem> =
            pinned(self.input.build).map(|at| self.input.build.path[at]).collect();
        self.input.bodies.load(&pinned)?;
        let cost: u64 = pinned.iter().map(|item| self.cost(item) + QUOTE_TOKENS).sum();
        Ok(cost
            .min(pin_share(self.input.build, self.input.prompt_limit))
            .min(self.left.saturating_sub(MIN_SHARE)))
    }

    fn file_tokens(&self, ledger: &Ledger) -> u64 {
        let limit = self.input.prompt_limit * FILE_PERCENT / 100;
        let share = limit.min(self.left / QUOTE_DIVISOR).max(MIN_FILE_TOKENS);
        let text = ledger_text(&self.input.build.counter, ledger, share);
        let cost = u64::from(self.input.build.counter.count_text(&text));
        if text.is_empty() { 0 } else { (cost + 2 * QUOTE_TOKENS).min(self.left) }
    }

    /// Keeps the newest units with the user message that they answer, the opening, and earlier messages of the user.
    ///
    /// Leaves `set_aside` tokens, or as many as there are, and returns their number.
    pub(super) fn keep_conversation(
        &mut self,
        units: &[Unit],
        reserved: &Reserved,
        set_aside: u64,
    ) -> Result<u64, ContentsError> {
        let room = self.left.saturating_sub(set_aside) * RECENT_PERCENT / 100;
        self.keep_newest(units, room)?;
        let (first, share) = (self.first_turn(), self.left.min(self.target / 2));
        self.keep_turn_start(first, share)?;
        let set_aside = self.left.min(set_aside);
        self.left -= set_aside;
        self.keep_opening(reserved)?;
        self.keep_earlier(self.first_turn(), reserved)?;
        // Older units that join the kept ones get the tokens that are left.
        if units.iter().any(|unit| !self.has(unit.start)) {
            self.keep_newest(units, self.left)?;
        }
        self.left += set_aside;
        Ok(set_aside)
    }

    /// Puts the original task, the pins, the facts that these do not say, and the files before the conversation, within their
    /// reserved tokens. Facts have what the turns left free as well, up to their share.
    pub(super) fn keep_opening(&mut self, reserved: &Reserved) -> Result<(), ContentsError> {
        self.keep_task(reserved)?;
        self.keep_pins(reserved)?;
        self.left += reserved.facts;
        self.keep_facts(self.left);
        self.keep_files(reserved);
        Ok(())
    }

    /// Shows the best facts that nothing else in the head says, within `room` and their share.
    pub(super) fn keep_facts(&mut self, room: u64) {
        let room = room.min(self.left).min(fact_share(self.input.prompt_limit));
        if room < MIN_SHARE {
            return;
        }
        let text = self.fact_lines(room.saturating_sub(QUOTE_TOKENS));
        self.add_block(FACTS_BLOCK, &text);
    }

    fn keep_files(&mut self, reserved: &Reserved) {
        self.left += reserved.files;
        if reserved.files > 0 {
            let tokens = reserved.files.saturating_sub(2 * QUOTE_TOKENS).max(MIN_FILE_TOKENS);
            let text = ledger_text(&self.input.build.counter, &reserved.ledger, tokens);
            self.add_block("files", &text);
        }
    }

    /// Quotes the original task unless it is kept as a turn or the notes say all of it.
    fn keep_task(&mut self, reserved: &Reserved) -> Result<(), ContentsError> {
        self.left += reserved.task;
        self.users += reserved.task;
        if let Some(at) = self.input.task().filter(|at| !self.has(*at))
            && !self.is_in_notes(&self.input.build.path[at])
        {
            self.quote_user(at, reserved.task.saturating_sub(QUOTE_TOKENS))?;
        }
        Ok(())
    }

    /// Returns whether a line of the notes is a whole loaded record, as the goal of notes without a model is a short task.
    fn is_in_notes(&self, item: &PathItem) -> bool {
        let Some(body) = self.input.bodies.get(item.seq) else { return false };
        let [_, text] = quoted_text(body);
        let text = one_line(&defuse_all(&text));
        let mut lines =
            self.input.notes.lines().map(|line| line.strip_prefix("- ").unwrap_or(line));
        !text.is_empty() && lines.any(|line| one_line(line) == text)
    }

    fn keep_pins(&mut self, reserved: &Reserved) -> Result<(), ContentsError> {
        self.left += reserved.pins;
        self.quote_pins(self.left)
    }

    /// Quotes the pinned records that are not kept as turns, the newest pin first, within `room` and their share.
    pub(super) fn quote_pins(&mut self, room: u64) -> Result<(), ContentsError> {
        let mut share = pin_share(self.input.build, self.input.prompt_limit).min(room);
        for at in pinned(self.input.build).collect::<Vec<_>>() {
            if !self.has(at)
                && let Some(cost) = self.keep_quote(at, share, true)?
            {
                share = share.saturating_sub(cost);
            }
        }
        Ok(())
    }

    /// Quotes the user's messages before record `end` that state enough which nothing else in the head says, and the newest ones
    /// that got no answer, each the newest first. A long message keeps its ends; of equal ones the first is quoted.
    pub(super) fn keep_earlier(
        &mut self,
        end: usize,
        reserved: &Reserved,
    ) -> Result<(), ContentsError> {
        self.left += reserved.earlier;
        let path = self.input.build.path;
        let is_missing = |at: &usize| path[*at].is_user_message() && !self.has(*at);
        let users: Vec<usize> = (0..end).rev().filter(is_missing).collect();
        let said = [self.input.notes, self.block(FACTS_BLOCK)].join("\n");
        let unsaid = self.input.build.facts.map(|facts| facts.unsaid_records(&said));
        let mut wanted = Vec::new();
        for (n, &at) in users.iter().enumerate() {
            let states = unsaid.as_ref().is_none_or(|unsaid| {
                unsaid.get(&path[at].seq).is_some_and(|facts| is_worth_quoting(&path[at], *facts))
            });
            let is_open =
                !states && n < MAX_OPEN_MESSAGES && !is_answered(path, at, self.input.bodies)?;
            if states || is_open {
                wanted.push(at);
            }
        }
        self.quote_all(&wanted)
    }

    /// Quotes user messages, except those whose text is quoted already or said by the notes, until there is no more room.
    fn quote_all(&mut self, users: &[usize]) -> Result<(), ContentsError> {
        let path = self.input.build.path;
        let (mut said, mut n_loaded) = (HashSet::new(), 0);
        for (n, &at) in users.iter().enumerate() {
            if self.left < MIN_SHARE {
                break;
            }
            if n == n_loaded {
                let waiting = || users[n..].iter().map(|at| &path[*at]);
                let n_items = batch_len(waiting(), self.left);
                let items: Vec<PathItem> = waiting().take(n_items).copied().collect();
                self.input.bodies.load(&items)?;
                n_loaded += n_items;
            }
            if self.is_in_notes(&path[at]) {
                continue;
            }
            if let Some(RecordBody::Message(message)) = self.input.bodies.get(path[at].seq)
                && !said.insert(message.sent_text())
            {
                continue;
            }
            let share = (self.left / QUOTE_DIVISOR).max(MIN_SHARE).min(self.users.max(MIN_SHARE));
            let is_whole = u64::from(path[at].tokens) <= share;
            if !self.quote_user(at, if is_whole { share } else { share.min(CUT_QUOTE_TOKENS) })? {
                break;
            }
        }
        Ok(())
    }
}
