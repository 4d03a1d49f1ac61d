//! A head as it is built: the records of a path that are kept, each in its form, the tokens that are left for more, and
//! at the end the items that refer to the log.

use std::collections::BTreeMap;

use ollm_protocol::Seq;
use ollm_protocol::content::HeadItem;

use super::plan::PlanInput;
use crate::context::cut::{self, Cut};
use crate::context::error::ContentsError;
use crate::context::path::{PathItem, Unit, batch_len};
use crate::context::render::quote;

/// Tokens that suffice to show both ends of any record.
pub(super) const MIN_SHARE: u64 = 48;
/// Tokens around a quote: its number and the line breaks.
pub(super) const QUOTE_TOKENS: u64 = 10;
/// Tokens of the block that names what is left out, without its handles.
const LEFT_OUT_TOKENS: u64 = 32;
/// Tokens of one handle: `[#123456, 123456 tokens]` and its line break.
const HANDLE_TOKENS: u64 = 18;
/// Maximum number of handles; no model reads a longer list.
const MAX_HANDLES: u64 = 64;

/// The form in which a record is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeptForm {
    Whole,
    Cut(Cut),
    /// The result is replaced by a line that names a later record.
    Stub {
        reason: &'static str,
        by: Seq,
    },
    /// A quote among the earlier messages of the user, whole without a cut.
    Earlier(Option<Cut>),
    /// A quote among the pinned records, whole without a cut.
    Pinned(Option<Cut>),
}

/// A head as it grows.
pub(super) struct HeadBuilder<'p, 'a, 's> {
    pub(super) input: &'p mut PlanInput<'a, 's>,
    /// The kept records by index into the path.
    kept: BTreeMap<usize, KeptForm>,
    /// Blocks made from the records.
    blocks: Vec<HeadItem>,
    /// Tokens left for everything.
    pub(super) left: u64,
    /// Tokens left for user messages.
    pub(super) users: u64,
    /// Tokens of the block that names what is left out.
    left_out: u64,
}

impl<'p, 'a, 's> HeadBuilder<'p, 'a, 's> {
    /// Creates an empty head; a tenth of the target is set aside for the block that names what is left out.
    pub(super) fn new(input: &'p mut PlanInput<'a, 's>, target: u64) -> Self {
        let left_out = (target / 10).max(LEFT_OUT_TOKENS + 8).min(target / 2);
        let users = input.user_tokens;
        let (kept, blocks) = (BTreeMap::new(), Vec::new());
        Self { input, kept, blocks, left: target - left_out, users, left_out }
    }

    /// Whether a record is kept in any form.
    pub(super) fn has(&self, at: usize) -> bool {
        self.kept.contains_key(&at)
    }

    /// Returns the index of the first record that is kept as a turn, or the length of the path if there is none.
    pub(super) fn first_turn(&self) -> usize {
        let is_quote = |form: &KeptForm| matches!(form, KeptForm::Earlier(_) | KeptForm::Pinned(_));
        let turn = self.kept.iter().find(|(_, form)| !is_quote(form));
        turn.map_or(self.input.path.len(), |(at, _)| *at)
    }

    /// Puts a block before the conversation if it fits.
    pub(super) fn add_block(&mut self, topic: &str, text: String) {
        let cost = u64::from(self.input.counter.count_text(&text)) + QUOTE_TOKENS;
        if !text.is_empty() && cost <= self.left {
            self.left -= cost;
            self.blocks.push(HeadItem::Block { topic: topic.to_owned(), text });
        }
    }

    /// Keeps a record as a turn in a given form; returns false if it does not fit.
    pub(super) fn keep_as(&mut self, at: usize, form: KeptForm) -> bool {
        let item = &self.input.path[at];
        let cost = match (&form, self.input.bodies.get(item.seq)) {
            (KeptForm::Cut(cut), Some(body)) => {
                u64::from(self.input.counter.count_record(&cut::apply(item.seq, body, *cut)))
            }
            (KeptForm::Stub { .. }, _) => HANDLE_TOKENS,
            _ => self.cost(item),
        };
        let Some(left) = self.left.checked_sub(cost) else { return false };
        self.left = left;
        self.kept.insert(at, form);
        true
    }

    /// Keeps a user message as a turn within `share`; returns false if not even its ends fit.
    pub(super) fn keep_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let share = share.min(self.users).max(MIN_SHARE).min(self.left);
        let Some((cut, cost)) = self.fitted(at, share)? else { return Ok(false) };
        self.kept.insert(at, cut.map_or(KeptForm::Whole, KeptForm::Cut));
        self.spend_on_user(cost);
        Ok(true)
    }

    /// If the records from `first` on begin in the middle of a turn, keeps the user message of that turn within
    /// `share`; returns false if it does not fit.
    pub(super) fn keep_turn_start(
        &mut self,
        first: usize,
        share: u64,
    ) -> Result<bool, ContentsError> {
        let (before, after) = self.input.path.split_at(first);
        let next = after.iter().find(|item| item.enters());
        let is_within_turn = next.is_none_or(|item| !item.is_user_message());
        let start = before.iter().rposition(PathItem::is_user_message);
        match start.filter(|_| is_within_turn) {
            Some(at) => self.keep_user(at, share),
            None => Ok(true),
        }
    }

    /// Quotes a user message within `share`; returns false if not even its ends fit.
    pub(super) fn quote_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let share = share.min(self.users).min(self.left.saturating_sub(QUOTE_TOKENS));
        let Some((cut, cost)) = self.quoted(at, share)? else { return Ok(false) };
        self.kept.insert(at, KeptForm::Earlier(cut));
        self.spend_on_user(cost);
        Ok(true)
    }

    /// Quotes a pinned record within `share`; returns its cost, or `None` if not even its ends fit.
    pub(super) fn quote_pin(
        &mut self,
        at: usize,
        share: u64,
    ) -> Result<Option<u64>, ContentsError> {
        let share = share.min(self.left.saturating_sub(QUOTE_TOKENS));
        let Some((cut, cost)) = self.quoted(at, share)? else { return Ok(None) };
        self.kept.insert(at, KeptForm::Pinned(cut));
        self.left = self.left.saturating_sub(cost);
        Ok(Some(cost))
    }

    fn spend_on_user(&mut self, cost: u64) {
        self.left = self.left.saturating_sub(cost);
        self.users = self.users.saturating_sub(cost);
    }

    /// Returns the cut that brings a record to at most `share` tokens, if it needs one, and the cost.
    fn fitted(
        &mut self,
        at: usize,
        share: u64,
    ) -> Result<Option<(Option<Cut>, u64)>, ContentsError> {
        let item = self.input.path[at];
        self.input.bodies.load(&[item])?;
        let cost = self.cost(&item);
        if cost <= share {
            return Ok(Some((None, cost)));
        }
        let body = self.input.bodies.get(item.seq);
        let fit = body.and_then(|body| cut::fit(self.input.counter, item.seq, body, share));
        Ok(fit.map(|(cut, cost)| (Some(cut), cost)))
    }

    /// As [`Self::fitted`], for a quote, which costs more than a short record itself.
    fn quoted(
        &mut self,
        at: usize,
        share: u64,
    ) -> Result<Option<(Option<Cut>, u64)>, ContentsError> {
        let Some((cut, _)) = self.fitted(at, share)? else { return Ok(None) };
        let item = &self.input.path[at];
        let Some(body) = self.input.bodies.get(item.seq) else { return Ok(None) };
        let kept = cut.map(|cut| cut::apply(item.seq, body, cut));
        let text = quote(item, kept.as_ref().unwrap_or(body));
        let cost = u64::from(self.input.counter.count_text(&text)) + 2;
        Ok((cost <= share + QUOTE_TOKENS).then_some((cut, cost)))
    }

    /// Keeps units from the newest on, until one does not fit into `room`.
    ///
    /// The newest unit may have all of the room, an older unit half of it.
    pub(super) fn keep_newest(&mut self, units: &[Unit], room: u64) -> Result<(), ContentsError> {
        let path = self.input.path;
        let before = self.left;
        let mut is_newest = true;
        let mut loaded = units.last().map_or(0, |unit| unit.end);
        for unit in units.iter().rev() {
            if loaded > unit.start {
                let n_items = batch_len(path[..loaded].iter().rev(), room);
                let n_items = n_items.max(loaded - unit.start);
                self.input.bodies.load(&path[loaded - n_items..loaded])?;
                loaded -= n_items;
            }
            if let Some(form) = self.kept.get_mut(&unit.start) {
                // A quoted message whose answer is kept as a turn becomes a turn too.
                if let KeptForm::Earlier(cut) = form {
                    *form = cut.map_or(KeptForm::Whole, KeptForm::Cut);
                }
                is_newest = false;
                continue;
            }
            let left = room.saturating_sub(before - self.left);
            let share = if is_newest { room } else { room / 2 };
            if !self.keep_unit(*unit, share.min(left)) {
                break;
            }
            is_newest &= !path[unit.start..unit.end].iter().any(PathItem::enters);
        }
        Ok(())
    }

    /// Gives the tokens that are left to older units that join the kept ones.
    pub(super) fn keep_more(&mut self, units: &[Unit]) -> Result<(), ContentsError> {
        if units.iter().all(|unit| self.has(unit.start)) {
            return Ok(());
        }
        let room = self.left;
        self.keep_newest(units, room)
    }

    /// Keeps a unit whole, or cut if it is larger than `share`; returns false if it does not fit.
    fn keep_unit(&mut self, unit: Unit, share: u64) -> bool {
        let items = &self.input.path[unit.start..unit.end];
        let costs: Vec<u64> = items.iter().map(|item| self.cost(item)).collect();
        let whole: u64 = costs.iter().sum();
        let (cuts, cost) = if whole <= share {
            (vec![None; items.len()], whole)
        } else {
            match self.cut_unit(items, &costs, share) {
                Some(cut) => cut,
                None => return false,
            }
        };
        let is_user = items[0].is_user_message();
        if cost > self.left || (is_user && cost > self.users) {
            return false;
        }
        self.left -= cost;
        if is_user {
            self.users -= cost;
        }
        let forms = cuts.into_iter().map(|cut| cut.map_or(KeptForm::Whole, KeptForm::Cut));
        self.kept.extend((unit.start..unit.end).zip(forms));
        true
    }

    /// Cuts the largest records of a unit to one common size, so that all together cost `share` at most; returns the
    /// cut of each record and the cost.
    fn cut_unit(
        &self,
        items: &[PathItem],
        costs: &[u64],
        share: u64,
    ) -> Option<(Vec<Option<Cut>>, u64)> {
        let cap = common_cap(costs, share);
        if cap < MIN_SHARE {
            return None;
        }
        let mut sum = 0;
        let mut cuts = Vec::with_capacity(items.len());
        for (item, &cost) in items.iter().zip(costs) {
            if cost <= cap {
                cuts.push(None);
                sum += cost;
                continue;
            }
            let body = self.input.bodies.get(item.seq)?;
            let (cut, cost) = cut::fit(self.input.counter, item.seq, body, cap)?;
            cuts.push(Some(cut));
            sum += cost;
        }
        Some((cuts, sum))
    }

    /// Returns the tokens of a loaded record.
    pub(super) fn cost(&self, item: &PathItem) -> u64 {
        let body = self.input.bodies.get(item.seq);
        body.map_or(0, |body| u64::from(self.input.counter.count_record(body)))
    }

    /// Returns the items of the head: checkpoints, blocks, quotes, handles of the newest user messages that are not
    /// shown, then the turns.
    pub(super) fn into_items(self, with_checkpoints: bool) -> Vec<HeadItem> {
        let mut items = Vec::new();
        if with_checkpoints {
            let ids = self.input.checkpoints.iter().map(|checkpoint| checkpoint.id);
            items.extend(ids.map(|id| HeadItem::Checkpoint { id }));
        }
        items.extend(self.blocks.iter().cloned());
        let chars = |cut: &Option<Cut>| (cut.map(|cut| cut.head), cut.map(|cut| cut.tail));
        let (mut pinned, mut earlier) = (Vec::new(), Vec::new());
        for (&at, form) in &self.kept {
            let seq = self.input.path[at].seq;
            match form {
                KeptForm::Pinned(cut) => {
                    let (head_chars, tail_chars) = chars(cut);
                    pinned.push(HeadItem::Pinned { seq, head_chars, tail_chars });
                }
                KeptForm::Earlier(cut) => {
                    let (head_chars, tail_chars) = chars(cut);
                    earlier.push(HeadItem::Earlier { seq, head_chars, tail_chars });
                }
                KeptForm::Whole | KeptForm::Cut(_) | KeptForm::Stub { .. } => {}
            }
        }
        items.extend(pinned);
        items.extend(earlier);
        items.extend(self.handles());
        items.extend(turns(self.input.path, &self.kept));
        items
    }

    fn handles(&self) -> Vec<HeadItem> {
        let path = self.input.path;
        let n_handles =
            (self.left_out.saturating_sub(LEFT_OUT_TOKENS) / HANDLE_TOKENS).min(MAX_HANDLES);
        let is_pinned = |at: usize| self.input.pins.contains(&path[at].seq);
        let is_named = |at: usize| path[at].is_user_message() || is_pinned(at);
        let mut handles: Vec<HeadItem> = (0..path.len())
            .rev()
            .filter(|at| is_named(*at) && !self.has(*at))
            .take(usize::try_from(n_handles).unwrap_or_default())
            .map(|at| HeadItem::Handle { seq: path[at].seq })
            .collect();
        handles.reverse();
        handles
    }
}

/// Returns the records that are kept as turns; adjacent whole records are one range.
fn turns(path: &[PathItem], kept: &BTreeMap<usize, KeptForm>) -> Vec<HeadItem> {
    let mut items = Vec::new();
    let mut run: Option<(usize, usize)> = None;
    for (&at, form) in kept {
        let seq = path[at].seq;
        let item = match form {
            KeptForm::Earlier(_) | KeptForm::Pinned(_) => continue,
            KeptForm::Whole => match run {
                Some((from, to)) if to + 1 == at => {
                    run = Some((from, at));
                    continue;
                }
                _ => None,
            },
            KeptForm::Cut(cut) => {
                Some(HeadItem::Cut { seq, head_chars: cut.head, tail_chars: cut.tail })
            }
            KeptForm::Stub { reason, by } => {
                Some(HeadItem::Stub { seq, reason: (*reason).to_owned(), by: *by })
            }
        };
        let before = run.take();
        items.extend(before.map(|(from, to)| range(path, from, to)));
        match item {
            Some(item) => items.push(item),
            None => run = Some((at, at)),
        }
    }
    items.extend(run.map(|(from, to)| range(path, from, to)));
    items
}

fn range(path: &[PathItem], from: usize, to: usize) -> HeadItem {
    HeadItem::Range { from: path[from].seq, to: path[to].seq }
}

/// Returns the largest size for which all costs, each reduced to it, are `share` together at most.
fn common_cap(costs: &[u64], share: u64) -> u64 {
    let mut sorted: Vec<u64> = costs.iter().copied().filter(|cost| *cost > 0).collect();
    sorted.sort_unstable();
    let mut left = share;
    for (at, &cost) in sorted.iter().enumerate() {
        let each = left / (sorted.len() - at) as u64;
        if cost > each {
            return each;
        }
        left -= cost;
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_records_are_cut_first() {
        let check = |costs: &[u64], share, expect| assert_eq!(common_cap(costs, share), expect);
        check(&[10, 1000, 20], 130, 100);
        check(&[500, 500], 100, 50);
        check(&[10, 0, 20], 100, 100);
        check(&[1000], 300, 300);
        check(&[], 300, 300);
    }
}
