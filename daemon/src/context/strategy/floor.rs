//! What always fits: the original task, the last thing the user said, and the newest whole units.
//!
//! Shares of the target: the original task a quarter, the last user message a half (all, when nothing follows it),
//! the block that names what is left out a tenth, the newest units the rest. A record or unit that is larger than
//! its share keeps head and tail.

use std::collections::BTreeMap;

use ollm_protocol::Seq;
use ollm_protocol::content::HeadItem;

use super::{Ground, Strategy};
use crate::context::contents::{ContentsError, batch};
use crate::context::cut::{self, Cut};
use crate::context::units::{PathItem, Unit, split};

/// Tokens under which nothing useful can be kept.
const MIN_TARGET: u64 = 96;
/// Tokens with which a record can always be cut so that both ends show.
const MIN_SHARE: u64 = 48;
/// Tokens of the block that names what is left out, without its handles.
const BLOCK_TOKENS: u64 = 32;
/// Tokens of one handle: `[#123456, 123456 tokens]` and its line break.
const HANDLE_TOKENS: u64 = 18;
/// Most handles; more would be a list that no model reads.
const MAX_HANDLES: u64 = 64;

/// Keeps the original task and the newest units.
pub(super) struct Floor;

impl Strategy for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn about(&self) -> &'static str {
        "the original task and the newest turns, at most half of the room"
    }

    fn min_tokens(&self) -> u64 {
        256
    }

    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        if target < MIN_TARGET {
            return Ok(None);
        }
        let block = (target / 10).max(BLOCK_TOKENS + 8);
        let users = ground.user_tokens;
        let mut plan = Plan { ground, kept: BTreeMap::new(), left: target - block, users };
        let path = plan.ground.path;
        let task = path.iter().position(PathItem::is_user_message);
        let newest = path.iter().rposition(PathItem::is_user_message);
        let is_last = |at: usize| path[at + 1..].iter().all(|item| !item.enters());
        // What the user said last may have everything where nothing follows it.
        let share = |at: usize, left: u64| if is_last(at) { left } else { target / 2 };
        if let Some(at) = task {
            let share = if newest == task { share(at, plan.left) } else { target / 4 };
            if !plan.keep_user(at, share)? {
                return Ok(None);
            }
        }
        if let Some(at) = newest
            && newest != task
        {
            plan.keep_user(at, share(at, plan.left))?;
        }
        let units = split(path);
        plan.keep_newest(&units)?;
        Ok(Some(plan.into_head(block)))
    }
}

/// A plan as it grows.
struct Plan<'p, 'a, 's> {
    ground: &'p mut Ground<'a, 's>,
    /// By index into the path: whole, or cut.
    kept: BTreeMap<usize, Option<Cut>>,
    /// Tokens left for everything.
    left: u64,
    /// Tokens left for user messages.
    users: u64,
}

impl Plan<'_, '_, '_> {
    /// Keeps one user message within `share`; false when not even its ends fit.
    fn keep_user(&mut self, at: usize, share: u64) -> Result<bool, ContentsError> {
        let share = share.min(self.users).max(MIN_SHARE).min(self.left);
        let item = &self.ground.path[at];
        self.ground.bodies.load(std::slice::from_ref(item))?;
        let cost = self.cost(item);
        let (cut, cost) = if cost <= share {
            (None, cost)
        } else {
            let body = self.ground.bodies.get(item.seq);
            match body.and_then(|body| cut::fit(self.ground.counter, item.seq, body, share)) {
                Some((cut, cost)) => (Some(cut), cost),
                None => return Ok(false),
            }
        };
        self.kept.insert(at, cut);
        self.left -= cost;
        self.users = self.users.saturating_sub(cost);
        Ok(true)
    }

    /// Keeps units from the newest on, until one does not fit.
    fn keep_newest(&mut self, units: &[Unit]) -> Result<(), ContentsError> {
        let path = self.ground.path;
        let room = self.left;
        let mut is_newest = true;
        let mut loaded = path.len();
        for unit in units.iter().rev() {
            if loaded > unit.start {
                let n_items = batch(path[..loaded].iter().rev(), room).max(loaded - unit.start);
                self.ground.bodies.load(&path[loaded - n_items..loaded])?;
                loaded -= n_items;
            }
            if self.kept.contains_key(&unit.start) {
                is_newest = false;
                continue;
            }
            let share = if is_newest { room } else { room / 2 };
            if !self.keep_unit(*unit, share) {
                break;
            }
            is_newest &= !path[unit.start..unit.end].iter().any(PathItem::enters);
        }
        Ok(())
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
        self.kept.extend((unit.start..unit.end).zip(cuts));
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

    fn cost(&self, item: &PathItem) -> u64 {
        let body = self.ground.bodies.get(item.seq);
        body.map_or(0, |body| u64::from(self.ground.counter.count_record(body)))
    }

    /// The plan as references, with handles for the newest user messages that are not shown.
    fn into_head(self, block: u64) -> Vec<HeadItem> {
        let path = self.ground.path;
        let n_handles = (block.saturating_sub(BLOCK_TOKENS) / HANDLE_TOKENS).min(MAX_HANDLES);
        let mut handles: Vec<HeadItem> = (0..path.len())
            .rev()
            .filter(|at| path[*at].is_user_message() && !self.kept.contains_key(at))
            .take(usize::try_from(n_handles).unwrap_or_default())
            .map(|at| HeadItem::Handle { seq: path[at].seq })
            .collect();
        handles.reverse();
        let mut head = Vec::new();
        let mut run: Option<(usize, usize)> = None;
        for (&at, cut) in &self.kept {
            match (cut, run) {
                (None, Some((from, to))) if to + 1 == at => run = Some((from, at)),
                (None, before) => {
                    head.extend(before.map(|run| range(path, run)));
                    run = Some((at, at));
                }
                (Some(cut), before) => {
                    head.extend(before.map(|run| range(path, run)));
                    run = None;
                    let seq: Seq = path[at].seq;
                    head.push(HeadItem::Cut { seq, head_chars: cut.head, tail_chars: cut.tail });
                }
            }
        }
        head.extend(run.map(|run| range(path, run)));
        let place = head.len().min(1);
        head.splice(place..place, handles);
        head
    }
}

fn range(path: &[PathItem], (from, to): (usize, usize)) -> HeadItem {
    HeadItem::Range { from: path[from].seq, to: path[to].seq }
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
