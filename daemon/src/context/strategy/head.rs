//! The builder of a head: the records of a path that are kept, each as a head item, and the tokens that are left.

use std::collections::BTreeMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{HeadItem, RecordBody};

use super::plan::PlanInput;
use crate::context::compact::defuse_all;
use crate::context::cut::{self, Cut};
use crate::context::numbers::*;
use crate::context::path::{ContentsError, PathItem, Unit, batch_len, is_answered};
use crate::context::render::{RECALL_TOPIC, quote};

/// A head as it grows.
pub(super) struct HeadBuilder<'p, 'a, 's> {
    pub(super) input: &'p mut PlanInput<'a, 's>,
    /// Tokens that the head may have.
    pub(super) target: u64,
    /// The kept records by index into the path.
    kept: BTreeMap<usize, HeadItem>,
    /// Blocks made from the records.
    blocks: Vec<HeadItem>,
    /// Tokens left for everything.
    pub(super) left: u64,
    /// Tokens left for user messages.
    pub(super) users: u64,
}

impl<'p, 'a, 's> HeadBuilder<'p, 'a, 's> {
    /// Creates a head of `target` tokens beside the unit that is being answered, which it keeps.
    pub(super) fn new(input: &'p mut PlanInput<'a, 's>, target: u64) -> Self {
        let (users, kept) = (input.user_tokens, input.newest.items.clone());
        let frame = FRAME_TOKENS.min(target / 2);
        Self { input, target, kept, blocks: Vec::new(), left: target - frame, users }
    }

    /// Whether a record is kept in any form.
    pub(super) fn has(&self, at: usize) -> bool {
        self.kept.contains_key(&at)
    }

    /// Returns whether a record is kept whole, as a turn or as a quote.
    pub(super) fn shows_all_of(&self, at: usize) -> bool {
        match self.kept.get(&at) {
            Some(HeadItem::Range { .. }) => true,
            Some(
                HeadItem::Earlier { head_chars, tail_chars, .. }
                | HeadItem::Pinned { head_chars, tail_chars, .. },
            ) => head_chars.is_none() && tail_chars.is_none(),
            _ => false,
        }
    }

    /// Returns the index of the first record that is kept as a turn, or the length of the path if there is none.
    pub(super) fn first_turn(&self) -> usize {
        let is_quote =
            |item: &HeadItem| matches!(item, HeadItem::Earlier { .. } | HeadItem::Pinned { .. });
        let turn = self.kept.iter().find(|(_, item)| !is_quote(item));
        turn.map_or(self.input.build.path.len(), |(at, _)| *at)
    }

    /// Puts a block before the conversation if it fits. Its text comes from records, so it is escaped and stays data.
    pub(super) fn add_block(&mut self, topic: &str, text: &str) {
        let text = defuse_all(text);
        let cost = u64::from(self.input.build.counter.count_text(&text)) + QUOTE_TOKENS;
        if !text.is_empty() && cost <= self.left {
            self.left -= cost;
            self.blocks.push(HeadItem::Block { topic: topic.to_owned(), text });
        }
    }

    /// Returns the text of a block, empty if there is none.
    pub(super) fn block(&self, topic: &str) -> &str {
        let mut texts = self.blocks.iter().filter_map(|item| match item {
            HeadItem::Block { topic: other, text } if other == topic => Some(text.as_str()),
            _ => None,
        });
        texts.next().unwrap_or_default()
    }

    /// Keeps a record as a turn, whole or as a given item; returns false if it does not fit.
    pub(super) fn keep_as(&mut self, at: usize, item: Option<HeadItem>) -> bool {
        let record = &self.input.build.path[at];
        let cost = match (&item, self.input.bodies.get(record.seq)) {
            (Some(HeadItem::Cut { head_chars, tail_chars, .. }), Some(body)) => {
                let cut = Cut { head: *head_chars, tail: *tail_chars };
                u64::from(self.input.build.counter.count_record(&cut::apply(body, cut)))
            }
            (Some(HeadItem::Stub { .. }), _) => STUB_TOKENS,
            _ => self.cost(record),
        };
        let Some(left) = self.left.checked_sub(cost) else { return false };
        self.left = left;
        self.kept.insert(at, item.unwrap_or_else(|| turn(record.seq, None)));
        true
    }

    /// Keeps a user message as a turn within `share`; returns false if not even its ends fit.
    pub(super) fn keep_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let share = share.min(self.users).max(MIN_SHARE).min(self.left);
        let item = self.input.build.path[at];
        self.input.bodies.load(&[item])?;
        let Some((cut, cost)) = self.fit(&item, self.cost(&item), share) else { return Ok(false) };
        self.kept.insert(at, turn(item.seq, cut));
        self.left = self.left.saturating_sub(cost);
        self.users = self.users.saturating_sub(cost);
        Ok(true)
    }

    /// If the records from `first` on begin in the middle of a turn, keeps the user message of that turn within
    /// `share`; returns false if it does not fit.
    pub(super) fn keep_turn_start(
        &mut self,
        first: usize,
        share: u64,
    ) -> Result<bool, ContentsError> {
        let (before, after) = self.input.build.path.split_at(first);
        let next = after.iter().find(|item| item.enters());
        let is_within_turn = next.is_none_or(|item| !item.is_user_message());
        let start = before.iter().rposition(PathItem::is_user_message);
        match start.filter(|at| is_within_turn && !self.has(*at)) {
            Some(at) => self.keep_user(at, share),
            None => Ok(true),
        }
    }

    /// Quotes a user message within `share`; returns false if not even its ends fit.
    pub(super) fn quote_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let Some(cost) = self.keep_quote(at, share.min(self.users), false)? else {
            return Ok(false);
        };
        self.users = self.users.saturating_sub(cost);
        Ok(true)
    }

    /// Quotes a record within `share`, pinned or as an earlier message; returns its cost, or `None` if not even its ends
    /// fit.
    pub(super) fn keep_quote(
        &mut self,
        at: usize,
        share: u64,
        is_pinned: bool,
    ) -> Result<Option<u64>, ContentsError> {
        let share = share.min(self.left.saturating_sub(QUOTE_TOKENS));
        let item = self.input.build.path[at];
        self.input.bodies.load(&[item])?;
        let is_answered = is_answered(self.input.build.path, at, self.input.bodies)?;
        let Some((cut, _)) = self.fit(&item, self.cost(&item), share) else { return Ok(None) };
        let Some(body) = self.input.bodies.get(item.seq) else { return Ok(None) };
        let kept = cut.map(|cut| cut::apply(body, cut));
        let text = quote(kept.as_ref().unwrap_or(body), is_answered);
        // The quote of a short record costs more than the record itself.
        let cost = u64::from(self.input.build.counter.count_text(&text)) + 2;
        if cost > share + QUOTE_TOKENS {
            return Ok(None);
        }
        let (seq, head_chars, tail_chars) =
            (item.seq, cut.map(|cut| cut.head), cut.map(|cut| cut.tail));
        let quoted = match is_pinned {
            true => HeadItem::Pinned { seq, head_chars, tail_chars },
            false => HeadItem::Earlier { seq, head_chars, tail_chars },
        };
        self.kept.insert(at, quoted);
        self.left = self.left.saturating_sub(cost);
        Ok(Some(cost))
    }

    /// Returns the cut that brings a loaded record of some cost to at most `share` tokens, if it needs one, and the cost
    /// then.
    fn fit(&self, item: &PathItem, cost: u64, share: u64) -> Option<(Option<Cut>, u64)> {
        if cost <= share {
            return Some((None, cost));
        }
        let body = self.input.bodies.get(item.seq)?;
        let (cut, cost) = cut::fit(&self.input.build.counter, body, share)?;
        Some((Some(cut), cost))
    }

    /// Keeps units from the newest on, until one does not fit into `room`.
    ///
    /// The newest unit may have all of the room, an older unit half of it.
    pub(super) fn keep_newest(&mut self, units: &[Unit], room: u64) -> Result<(), ContentsError> {
        let path = self.input.build.path;
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
            if let Some(item) = self.kept.get_mut(&unit.start) {
                // A quoted message whose answer is kept as a turn becomes a turn too.
                if let HeadItem::Earlier { seq, head_chars, tail_chars } = item {
                    *item = turn(*seq, Cut::of_chars(*head_chars, *tail_chars));
                }
                is_newest = false;
                continue;
            }
            let left = room.saturating_sub(before - self.left);
            let share = if is_newest { room } else { room / 2 };
            if !self.keep_unit(unit, share.min(left)) {
                break;
            }
            is_newest &= !path[unit.clone()].iter().any(PathItem::enters);
        }
        Ok(())
    }

    /// Keeps a unit whole, or with its largest records cut to one common size if it is larger than `share`; returns false
    /// if it does not fit. What was recalled for an older turn has served, and goes.
    fn keep_unit(&mut self, unit: &Unit, share: u64) -> bool {
        let path = self.input.build.path;
        let kept: Vec<usize> = unit.clone().filter(|at| !self.is_recalled(&path[*at])).collect();
        let items: Vec<PathItem> = kept.iter().map(|at| path[*at]).collect();
        let Some(first) = items.first() else { return true };
        let is_user = first.is_user_message();
        let costs: Vec<u64> = items.iter().map(|item| self.cost(item)).collect();
        let cap = common_cap(&costs, share);
        if costs.iter().sum::<u64>() > share && cap < MIN_SHARE {
            return false;
        }
        let fitted = items.iter().zip(costs).map(|(item, cost)| self.fit(item, cost, cap));
        let Some(fitted) = fitted.collect::<Option<Vec<_>>>() else { return false };
        let cost: u64 = fitted.iter().map(|(_, cost)| cost).sum();
        if cost > self.left || (is_user && cost > self.users) {
            return false;
        }
        self.left -= cost;
        if is_user {
            self.users -= cost;
        }
        let turns = items.iter().zip(fitted).map(|(item, (cut, _))| turn(item.seq, cut));
        self.kept.extend(kept.into_iter().zip(turns));
        true
    }

    /// Returns whether a loaded record has messages that were recalled for a turn.
    fn is_recalled(&self, item: &PathItem) -> bool {
        let body = self.input.bodies.get(item.seq);
        matches!(body, Some(RecordBody::Delta(delta)) if delta.topic == RECALL_TOPIC)
    }

    /// Returns the tokens of a loaded record.
    pub(super) fn cost(&self, item: &PathItem) -> u64 {
        let body = self.input.bodies.get(item.seq);
        body.map_or(0, |body| u64::from(self.input.build.counter.count_record(body)))
    }

    /// Returns the items of the head: blocks, quotes, then the turns.
    pub(super) fn into_items(self) -> Vec<HeadItem> {
        let (mut pinned, mut earlier, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        let mut last_whole = None;
        for (at, item) in self.kept {
            match (item, turns.last_mut()) {
                (item @ HeadItem::Pinned { .. }, _) => pinned.push(item),
                (item @ HeadItem::Earlier { .. }, _) => earlier.push(item),
                // Adjacent whole records are one range.
                (HeadItem::Range { to, .. }, Some(HeadItem::Range { to: end, .. }))
                    if last_whole.is_some_and(|last: usize| last + 1 == at) =>
                {
                    *end = to;
                    last_whole = Some(at);
                }
                (item, _) => {
                    last_whole = matches!(item, HeadItem::Range { .. }).then_some(at);
                    turns.push(item);
                }
            }
        }
        self.blocks.into_iter().chain(pinned).chain(earlier).chain(turns).collect()
    }
}

/// Returns the item of a record that is kept as a turn.
pub(in crate::context) const fn turn(seq: Seq, cut: Option<Cut>) -> HeadItem {
    match cut {
        Some(cut) => HeadItem::Cut { seq, head_chars: cut.head, tail_chars: cut.tail },
        None => HeadItem::Range { from: seq, to: seq },
    }
}

/// Returns the largest size for which all costs, each reduced to it, are `share` together at most.
pub(in crate::context) fn common_cap(costs: &[u64], share: u64) -> u64 {
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
