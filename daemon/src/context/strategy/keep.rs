//! A head as it grows: what is kept of a path, in which form, and what is left of the room for it.

use std::collections::BTreeMap;

use ollm_protocol::Seq;
use ollm_protocol::content::HeadItem;

use super::Ground;
use crate::context::contents::{ContentsError, batch};
use crate::context::cut::{self, Cut};
use crate::context::render::quote;
use crate::context::units::{PathItem, Unit};

/// Tokens with which a record can always be cut so that both ends show.
pub(super) const MIN_SHARE: u64 = 48;
/// Tokens of the block that names what is left out, without its handles.
pub(super) const BLOCK_TOKENS: u64 = 32;
/// Tokens of one handle: `[#123456, 123456 tokens]` and its line break.
pub(super) const HANDLE_TOKENS: u64 = 18;
/// Tokens around a quote: its number and the line breaks.
pub(super) const QUOTE_TOKENS: u64 = 10;

/// In which form a record is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As it was recorded.
    Whole,
    /// Its beginning and its end.
    Cut(Cut),
    /// One line in place of its result.
    Stub { reason: &'static str, by: Seq },
    /// Quoted as an earlier message of the user.
    Earlier(Option<Cut>),
    /// Quoted because somebody pinned it.
    Pinned(Option<Cut>),
}

/// A plan as it grows.
pub(super) struct Keeper<'p, 'a, 's> {
    pub(super) ground: &'p mut Ground<'a, 's>,
    /// By index into the path.
    pub(super) kept: BTreeMap<usize, Form>,
    /// Blocks made from the records.
    pub(super) blocks: Vec<HeadItem>,
    /// Tokens left for everything.
    pub(super) left: u64,
    /// Tokens left for user messages.
    pub(super) users: u64,
    /// Tokens of the block that names what is left out.
    pub(super) block: u64,
}

impl<'p, 'a, 's> Keeper<'p, 'a, 's> {
    /// A plan that has kept nothing yet; a tenth of the target is for saying what is left out.
    pub(super) fn new(ground: &'p mut Ground<'a, 's>, target: u64) -> Self {
        let block = (target / 10).max(BLOCK_TOKENS + 8).min(target / 2);
        let users = ground.user_tokens;
        Self {
            ground,
            kept: BTreeMap::new(),
            blocks: Vec::new(),
            left: target - block,
            users,
            block,
        }
    }

    /// Whether a record is kept in whatever form.
    pub(super) fn has(&self, at: usize) -> bool {
        self.kept.contains_key(&at)
    }

    /// Where the first record lies that is kept as a turn of its own; the path's end without one.
    pub(super) fn first_turn(&self) -> usize {
        let quoted = |form: &Form| matches!(form, Form::Earlier(_) | Form::Pinned(_));
        let turn = self.kept.iter().find(|(_, form)| !quoted(form));
        turn.map_or(self.ground.path.len(), |(at, _)| *at)
    }

    /// Puts a block before the conversation; nothing where it does not fit.
    pub(super) fn block(&mut self, topic: &str, text: String) {
        let cost = u64::from(self.ground.counter.count_text(&text)) + QUOTE_TOKENS;
        if !text.is_empty() && cost <= self.left {
            self.left -= cost;
            self.blocks.push(HeadItem::Block { topic: topic.to_owned(), text });
        }
    }

    /// Keeps a record as a turn in a form that was decided elsewhere; false when it does not fit.
    pub(super) fn put(&mut self, at: usize, form: Form) -> bool {
        let item = &self.ground.path[at];
        let cost = match (&form, self.ground.bodies.get(item.seq)) {
            (Form::Cut(cut), Some(body)) => {
                u64::from(self.ground.counter.count_record(&cut::apply(item.seq, body, *cut)))
            }
            (Form::Stub { .. }, _) => HANDLE_TOKENS,
            _ => self.cost(item),
        };
        let Some(left) = self.left.checked_sub(cost) else { return false };
        self.left = left;
        self.kept.insert(at, form);
        true
    }

    /// Keeps one user message as a turn within `share`; false when not even its ends fit.
    pub(super) fn keep_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let share = share.min(self.users).max(MIN_SHARE).min(self.left);
        let Some((cut, cost)) = self.fitted(at, share)? else { return Ok(false) };
        self.kept.insert(at, cut.map_or(Form::Whole, Form::Cut));
        self.spend_on_user(cost);
        Ok(true)
    }

    /// Keeps the user message that is being answered within `share`, where the records from `first` on begin in the
    /// middle of its turn; false when it does not fit.
    pub(super) fn keep_begun(&mut self, first: usize, share: u64) -> Result<bool, ContentsError> {
        let path = self.ground.path;
        let next = path[first..].iter().find(|item| item.enters());
        let is_begun = next.is_none_or(|item| !item.is_user_message());
        let began = path[..first].iter().rposition(PathItem::is_user_message);
        match began.filter(|_| is_begun) {
            Some(at) => self.keep_user(at, share),
            None => Ok(true),
        }
    }

    /// Quotes one user message within `share`; false when not even its ends fit.
    pub(super) fn quote_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let share = share.min(self.users).min(self.left.saturating_sub(QUOTE_TOKENS));
        let Some((cut, cost)) = self.quoted(at, share)? else { return Ok(false) };
        self.kept.insert(at, Form::Earlier(cut));
        self.spend_on_user(cost);
        Ok(true)
    }

    /// Quotes a pinned record within `share`; what it cost, nothing when not even its ends fit.
    pub(super) fn quote_pin(
        &mut self,
        at: usize,
        share: u64,
    ) -> Result<Option<u64>, ContentsError> {
        let share = share.min(self.left.saturating_sub(QUOTE_TOKENS));
        let Some((cut, cost)) = self.quoted(at, share)? else { return Ok(None) };
        self.kept.insert(at, Form::Pinned(cut));
        self.left = self.left.saturating_sub(cost);
        Ok(Some(cost))
    }

    fn spend_on_user(&mut self, cost: u64) {
        self.left = self.left.saturating_sub(cost);
        self.users = self.users.saturating_sub(cost);
    }

    /// The cut that a record needs to have `share` tokens at most, none where it has no more, and its cost.
    fn fitted(
        &mut self,
        at: usize,
        share: u64,
    ) -> Result<Option<(Option<Cut>, u64)>, ContentsError> {
        let item = self.ground.path[at];
        self.ground.bodies.load(std::slice::from_ref(&item))?;
        let cost = self.cost(&item);
        if cost <= share {
            return Ok(Some((None, cost)));
        }
        let body = self.ground.bodies.get(item.seq);
        let fit = body.and_then(|body| cut::fit(self.ground.counter, item.seq, body, share));
        Ok(fit.map(|(cut, cost)| (Some(cut), cost)))
    }

    /// As [`Self::fitted`], for a quote, which costs more than the record where that is a short one.
    fn quoted(
        &mut self,
        at: usize,
        share: u64,
    ) -> Result<Option<(Option<Cut>, u64)>, ContentsError> {
        let Some((cut, _)) = self.fitted(at, share)? else { return Ok(None) };
        let item = &self.ground.path[at];
        let Some(body) = self.ground.bodies.get(item.seq) else { return Ok(None) };
        let kept = cut.map(|cut| cut::apply(item.seq, body, cut));
        let text = quote(item, kept.as_ref().unwrap_or(body));
        let cost = u64::from(self.ground.counter.count_text(&text)) + 2;
        Ok((cost <= share + QUOTE_TOKENS).then_some((cut, cost)))
    }

    /// Keeps units of `units` from the newest on, until one does not fit into `room`.
    ///
    /// The newest one may have all of the room, an older one half of it.
    pub(super) fn keep_newest(&mut self, units: &[Unit], room: u64) -> Result<(), ContentsError> {
        let path = self.ground.path;
        let before = self.left;
        let mut is_newest = true;
        let mut loaded = units.last().map_or(0, |unit| unit.end);
        for unit in units.iter().rev() {
            if loaded > unit.start {
                let n_items = batch(path[..loaded].iter().rev(), room).max(loaded - unit.start);
                self.ground.bodies.load(&path[loaded - n_items..loaded])?;
                loaded -= n_items;
            }
            if let Some(form) = self.kept.get_mut(&unit.start) {
                // A quote whose answer is kept as a turn is one too.
                if let Form::Earlier(cut) = form {
                    *form = cut.map_or(Form::Whole, Form::Cut);
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

    /// Gives what is left to units that did not fit before, as long as they join those that are kept.
    pub(super) fn keep_rest(&mut self, units: &[Unit]) -> Result<(), ContentsError> {
        if units.iter().all(|unit| self.has(unit.start)) {
            return Ok(());
        }
        let room = self.left;
        self.keep_newest(units, room)
    }

    /// Keeps one unit whole, or cut where it is larger than `share`; false when it does not fit.
    fn keep_unit(&mut self, unit: Unit, share: u64) -> bool {
        let items = &self.ground.path[unit.start..unit.end];
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
        let forms = cuts.into_iter().map(|cut| cut.map_or(Form::Whole, Form::Cut));
        self.kept.extend((unit.start..unit.end).zip(forms));
        true
    }

    /// Cuts the largest records of a unit to one common size, so that all together have `share` at most.
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
            let body = self.ground.bodies.get(item.seq)?;
            let (cut, cost) = cut::fit(self.ground.counter, item.seq, body, cap)?;
            cuts.push(Some(cut));
            sum += cost;
        }
        Some((cuts, sum))
    }

    /// Tokens of a record that was loaded.
    pub(super) fn cost(&self, item: &PathItem) -> u64 {
        let body = self.ground.bodies.get(item.seq);
        body.map_or(0, |body| u64::from(self.ground.counter.count_record(body)))
    }
}

/// The largest size for which all costs, each taken down to it, have `share` together at most.
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
    fn the_largest_records_are_cut_first() {
        let check = |costs: &[u64], share, expect| assert_eq!(common_cap(costs, share), expect);
        check(&[10, 1000, 20], 130, 100);
        check(&[500, 500], 100, 50);
        check(&[10, 0, 20], 100, 100);
        check(&[1000], 300, 300);
        check(&[], 300, 300);
    }
}
