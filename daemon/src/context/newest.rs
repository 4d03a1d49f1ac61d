//! The newest unit: the message that is being answered, with the tool calls and results since. It has the first claim on
//! the room of a prompt; everything older gives way before it is cut.

use std::collections::BTreeMap;

use ollm_protocol::content::HeadItem;

use super::cut;
use super::input::BuildInput;
use super::path::{Bodies, ContentsError, PathItem, PathRole, Unit, n_turns, split_units};
use super::render::{Renderer, left_out};
use super::strategy::{common_cap, turn};
use crate::context::numbers::*;

/// Attempts to cut the unit to its room.
const MAX_TRIES: usize = 6;

/// The newest unit as a head shows it.
#[derive(Clone, Debug, Default)]
pub(in crate::context) struct NewestUnit {
    /// Its records by index into the path. Empty if nothing is being answered, or a pending message.
    pub items: BTreeMap<usize, HeadItem>,
    /// The tokens that it costs in a prompt.
    pub tokens: u64,
}

/// Returns the index of the first record of the unit that is being answered, or `None` after a complete answer.
pub(crate) fn newest_start(path: &[PathItem]) -> Option<usize> {
    let takes_part = |item: &&PathItem| item.enters() && item.path_role() != PathRole::Note;
    let last = path.iter().rev().find(takes_part)?;
    if last.path_role() == PathRole::Assistant && !last.calls_tools {
        return None;
    }
    let is_user = |item: &PathItem| item.path_role() == PathRole::User;
    let start = path.iter().rposition(is_user);
    start.or_else(|| path.iter().position(PathItem::enters))
}

/// Returns the tokens that the newest unit leaves to everything before it.
pub(in crate::context) fn others_room(path: &[PathItem], start: usize, prompt_limit: u64) -> u64 {
    let older = path[..start].iter().filter(|item| item.enters());
    let tokens: u64 = older.map(|item| u64::from(item.tokens)).sum();
    let least = (prompt_limit * OTHERS_PERCENT / 100).max(MIN_OTHERS);
    if tokens == 0 { 0 } else { least }
}

impl NewestUnit {
    /// Whether every record is kept whole.
    pub(in crate::context) fn is_whole(&self, path: &[PathItem]) -> bool {
        let start = newest_start(path).unwrap_or(path.len());
        let is_whole = |item: &HeadItem| matches!(item, HeadItem::Range { .. });
        self.items.values().filter(|item| is_whole(item)).count() == path.len() - start
    }

    /// Returns whether the unit has a record whole.
    pub(in crate::context) fn has_whole(&self, at: usize) -> bool {
        matches!(self.items.get(&at), Some(HeadItem::Range { .. }))
    }

    /// Plans the newest unit for `room` tokens: a pending message alone; the records whole if they fit, else its first message and its newest results, cut to
    /// one common size if they are too large, and those before them as far as they fit.
    pub(in crate::context) fn plan(
        input: &BuildInput<'_>,
        bodies: &mut Bodies<'_>,
        room: u64,
    ) -> Result<Self, ContentsError> {
        if let Some(text) = input.pending {
            let mut renderer = Renderer::new(&input.counter, input.reads_images, true);
            renderer.user(text, Vec::new());
            return Ok(Self { items: BTreeMap::new(), tokens: renderer.tokens() });
        }
        let Some(start) = newest_start(input.path) else { return Ok(Self::default()) };
        let path = input.path;
        bodies.load(&path[start..])?;
        let whole = |at: usize| (at, turn(path[at].seq, None));
        let all: BTreeMap<usize, HeadItem> = (start..path.len()).map(whole).collect();
        let tokens = measure(input, bodies, &all);
        if tokens <= room {
            return Ok(Self { items: all, tokens });
        }
        let units: Vec<Unit> = split_units(&path[start..])
            .into_iter()
            .map(|unit| unit.start + start..unit.end + start)
            .collect();
        let enters = |unit: &&Unit| path[(*unit).clone()].iter().any(PathItem::enters);
        let first = units.first().cloned().unwrap_or_default();
        let last = units.iter().rev().find(enters).cloned().unwrap_or_default();
        let core: Vec<usize> = match first == last {
            true => first.collect(),
            false => first.chain(last.clone()).collect(),
        };
        let mut unit = Self::fitted(input, bodies, &core, room);
        for older in units.iter().rev().filter(|one| one.end <= last.start && one.start > start) {
            let mut with_older = unit.items.clone();
            with_older.extend(older.clone().map(whole));
            let tokens = measure(input, bodies, &with_older);
            if tokens > room {
                break;
            }
            unit = Self { items: with_older, tokens };
        }
        Ok(unit)
    }

    /// Keeps some records, the largest of them cut to one common size, so that they fit.
    fn fitted(input: &BuildInput<'_>, bodies: &Bodies<'_>, core: &[usize], room: u64) -> Self {
        let counter = &input.counter;
        let cost = |at: usize| {
            let body = bodies.get(input.path[at].seq);
            body.map_or(0, |body| u64::from(counter.count_record(body)))
        };
        let costs: Vec<u64> = core.iter().map(|at| cost(*at)).collect();
        let mut share = room.min(costs.iter().sum());
        let (mut best, mut smallest) = (None::<Self>, None::<Self>);
        for _ in 0..MAX_TRIES {
            let cap = common_cap(&costs, share).max(MIN_NEWEST_SHARE);
            let item = |(&at, &cost): (&usize, &u64)| {
                let seq = input.path[at].seq;
                let cut = bodies.get(seq).filter(|_| cost > cap).map(|body| {
                    cut::fit(counter, body, cap).map_or(cut::Cut::SMALLEST, |(cut, _)| cut)
                });
                (at, turn(seq, cut))
            };
            let items: BTreeMap<usize, HeadItem> = core.iter().zip(&costs).map(item).collect();
            let tokens = measure(input, bodies, &items);
            let unit = Self { items, tokens };
            if tokens > room {
                // The costs of records are estimates of what they add to a conversation.
                if best.is_some() {
                    break;
                }
                smallest = Some(unit);
            } else {
                let is_full = tokens * 10 >= room * 9;
                best = Some(unit);
                if is_full || share >= 4 * room {
                    break;
                }
            }
            share = (share * room / tokens.max(1)).max(1) * 98 / 100;
        }
        best.or(smallest).unwrap_or_default()
    }
}

/// Returns the tokens of some records as turns of a prompt, with the lines in place of those between them.
fn measure(input: &BuildInput<'_>, bodies: &Bodies<'_>, items: &BTreeMap<usize, HeadItem>) -> u64 {
    let mut renderer = Renderer::new(&input.counter, input.reads_images, true);
    let mut next = items.keys().next().copied().unwrap_or_default();
    for (&at, item) in items {
        let n_missing = n_turns(&input.path[next..at]);
        next = at + 1;
        // Such a line also ends calls without a result, so that the notes behind them are shown.
        if n_missing > 0 {
            renderer.user(&left_out(n_missing), Vec::new());
        }
        let record = &input.path[at];
        let Some(body) = bodies.get(record.seq).filter(|_| record.enters()) else { continue };
        // A record that is not shown costs nothing.
        let _: Result<(), _> = match item {
            HeadItem::Cut { head_chars, tail_chars, .. } => {
                let cut = cut::Cut { head: *head_chars, tail: *tail_chars };
                renderer.record(record, &cut::apply(body, cut))
            }
            _ => renderer.record(record, body),
        };
    }
    renderer.tokens()
}
