//! What stands before the recent turns: the file ledger, pins, and what the user said earlier, each in its share.

use ollm_protocol::Seq;

use super::Ground;
use super::keep::{Keeper, MIN_SHARE, QUOTE_TOKENS};
use crate::context::contents::{ContentsError, batch};
use crate::context::ledger::{FileUse, Ledger};
use crate::context::units::PathItem;
use crate::tokens::Counter;

/// Percent of the prompt limit that all pinned texts together may have.
pub(crate) const PIN_PERCENT: u64 = 10;
/// Percent of the prompt limit for file lists.
const FILE_PERCENT: u64 = 5;
/// Tokens of `+12 more changed (session.get)`.
const MORE_TOKENS: u64 = 12;
/// Tokens with which the ledger can say at least how much it leaves out, of both kinds.
const MIN_FILES_TOKENS: u64 = 32;
/// Of what user messages may have, a part is put aside for earlier ones.
const EARLIER_PART: u64 = 8;
/// Most records after the last checkpoint that are looked at for files.
const MAX_LEDGER_RECORDS: usize = 2000;
/// An earlier user message may have this part of what is left before it is cut.
const QUOTE_PART: u64 = 4;

/// The files of a session up to now: those that checkpoints name, then those of the records after `start`.
pub(super) fn ledger(ground: &mut Ground<'_, '_>, start: usize) -> Result<Ledger, ContentsError> {
    let mut ledger = Ledger::default();
    for checkpoint in ground.checkpoints {
        checkpoint.files_read.iter().for_each(|path| ledger.add(FileUse::Read, path));
        checkpoint.files_modified.iter().for_each(|path| ledger.add(FileUse::Modified, path));
    }
    let first = start.max(ground.path.len().saturating_sub(MAX_LEDGER_RECORDS));
    let calls: Vec<PathItem> =
        ground.path[first..].iter().filter(|item| item.may_call()).copied().collect();
    ground.bodies.load(&calls)?;
    let bodies = calls.iter().filter_map(|item| ground.bodies.get(item.seq));
    bodies.for_each(|body| ledger.note(body));
    Ok(ledger)
}

/// The ledger in words within `tokens`, newest first; what does not fit is counted. Empty where there are no files.
pub(super) fn ledger_text(counter: &Counter, ledger: &Ledger, tokens: u64) -> String {
    let lists = [("changed", &ledger.modified), ("read", &ledger.read)];
    let mut text = String::new();
    for (verb, paths) in lists {
        let mut shown = 0;
        for path in paths.iter().rev() {
            let line = format!("{verb}: {path}\n");
            let cost = u64::from(counter.count_text(&text) + counter.count_text(&line));
            let more = if shown + 1 == paths.len() { 0 } else { MORE_TOKENS };
            if cost + more > tokens {
                break;
            }
            text.push_str(&line);
            shown += 1;
        }
        if shown < paths.len() {
            text.push_str(&format!("+{} more {verb} (session.get)\n", paths.len() - shown));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Tokens put aside, so that the newest turns do not take what must be there.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    task: u64,
    pins: u64,
    files: u64,
    earlier: u64,
    /// The files for which they are.
    ledger: Ledger,
}

impl Keeper<'_, '_, '_> {
    /// Puts tokens aside for the original task, for pins, for the files of the records behind `start`, and for
    /// what the user said before the newest turns.
    pub(super) fn reserve(&mut self, start: usize) -> Result<Reserve, ContentsError> {
        let task = self.for_task()?;
        self.left -= task;
        self.users -= task;
        let pins = self.for_pins()?;
        self.left -= pins;
        let ledger = ledger(self.ground, start)?;
        let files = self.for_files(&ledger);
        self.left -= files;
        let earlier = (self.ground.user_tokens / EARLIER_PART).min(self.left / QUOTE_PART);
        self.left -= earlier;
        Ok(Reserve { task, pins, files, earlier, ledger })
    }

    fn for_task(&mut self) -> Result<u64, ContentsError> {
        let Some(item) = self.ground.path.iter().find(|item| item.is_user_message()).copied()
        else {
            return Ok(0);
        };
        self.ground.bodies.load(&[item])?;
        let most = (self.left / QUOTE_PART).max(MIN_SHARE);
        Ok((self.cost(&item).min(most) + QUOTE_TOKENS).min(self.left).min(self.users))
    }

    fn for_pins(&mut self) -> Result<u64, ContentsError> {
        let pinned: Vec<PathItem> = self.pinned().map(|at| self.ground.path[at]).collect();
        self.ground.bodies.load(&pinned)?;
        let cost: u64 = pinned.iter().map(|item| self.cost(item) + QUOTE_TOKENS).sum();
        Ok(cost.min(self.pin_share()).min(self.left / 2))
    }

    fn for_files(&self, ledger: &Ledger) -> u64 {
        let text = ledger_text(self.ground.counter, ledger, self.file_share());
        let cost = u64::from(self.ground.counter.count_text(&text));
        if text.is_empty() { 0 } else { (cost + 2 * QUOTE_TOKENS).min(self.left) }
    }

    fn pin_share(&self) -> u64 {
        let n_pins = self.ground.pins.len() as u64;
        self.ground.prompt_limit * PIN_PERCENT / 100 + n_pins * QUOTE_TOKENS
    }

    fn file_share(&self) -> u64 {
        (self.ground.prompt_limit * FILE_PERCENT / 100).min(self.left / 4).max(MIN_FILES_TOKENS)
    }

    /// Where the pinned records lie, the newest pin first.
    fn pinned(&self) -> impl Iterator<Item = usize> {
        let path = self.ground.path;
        let at = |seq: &Seq| path.binary_search_by_key(seq, |item| item.seq).ok();
        self.ground.pins.iter().rev().filter_map(at)
    }

    /// Puts the files, the original task and the pins before the conversation, within what was put aside for them.
    pub(super) fn keep_opening(&mut self, reserve: &Reserve) -> Result<(), ContentsError> {
        self.keep_files(reserve);
        self.keep_task(reserve)?;
        self.keep_pins(reserve)
    }

    fn keep_files(&mut self, reserve: &Reserve) {
        self.left += reserve.files;
        if reserve.files > 0 {
            let tokens = reserve.files.saturating_sub(2 * QUOTE_TOKENS).max(MIN_FILES_TOKENS);
            let text = ledger_text(self.ground.counter, &reserve.ledger, tokens);
            self.block("files", text);
        }
    }

    /// Quotes the original task where it is no turn of its own.
    fn keep_task(&mut self, reserve: &Reserve) -> Result<(), ContentsError> {
        self.left += reserve.task;
        self.users += reserve.task;
        let task = self.ground.path.iter().position(PathItem::is_user_message);
        if let Some(at) = task.filter(|at| !self.has(*at)) {
            self.quote_user(at, reserve.task.saturating_sub(QUOTE_TOKENS))?;
        }
        Ok(())
    }

    /// Quotes pinned records that are no turns of their own, the newest pin first.
    fn keep_pins(&mut self, reserve: &Reserve) -> Result<(), ContentsError> {
        self.left += reserve.pins;
        let mut share = self.pin_share();
        for at in self.pinned().collect::<Vec<_>>() {
            if !self.has(at)
                && let Some(cost) = self.quote_pin(at, share)?
            {
                share = share.saturating_sub(cost);
            }
        }
        Ok(())
    }

    /// Quotes what the user said before record `end`, the newest first; a long one keeps its ends.
    pub(super) fn keep_earlier(
        &mut self,
        end: usize,
        reserve: &Reserve,
    ) -> Result<(), ContentsError> {
        self.left += reserve.earlier;
        let path = self.ground.path;
        let is_missed = |at: &usize| path[*at].is_user_message() && !self.has(*at);
        let users: Vec<usize> = (0..end).rev().filter(is_missed).collect();
        let mut n_loaded = 0;
        for (n, &at) in users.iter().enumerate() {
            if self.left < MIN_SHARE {
                break;
            }
            if n == n_loaded {
                let waiting = || users[n..].iter().map(|at| &path[*at]);
                let n_items = batch(waiting(), self.left);
                let items: Vec<PathItem> = waiting().take(n_items).copied().collect();
                self.ground.bodies.load(&items)?;
                n_loaded += n_items;
            }
            let share = (self.left / QUOTE_PART).max(MIN_SHARE);
            if !self.quote_user(at, share)? {
                break;
            }
        }
        Ok(())
    }
}
