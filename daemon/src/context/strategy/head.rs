//! What a plan becomes: the items of a head, as references into the log.

use std::collections::BTreeMap;

use ollm_protocol::content::HeadItem;

use super::keep::{BLOCK_TOKENS, Form, HANDLE_TOKENS, Keeper};
use crate::context::cut::Cut;
use crate::context::units::PathItem;

/// Most handles; more would be a list that no model reads.
const MAX_HANDLES: u64 = 64;

impl Keeper<'_, '_, '_> {
    /// The plan as references: checkpoints, blocks, quotes, handles for the newest user messages that are not
    /// shown, then the turns.
    pub(super) fn into_head(self, with_checkpoints: bool) -> Vec<HeadItem> {
        let path = self.ground.path;
        let mut head = Vec::new();
        if with_checkpoints {
            let ids = self.ground.checkpoints.iter().map(|checkpoint| checkpoint.id);
            head.extend(ids.map(|id| HeadItem::Checkpoint { id }));
        }
        head.extend(self.blocks.iter().cloned());
        let (mut pinned, mut earlier) = (Vec::new(), Vec::new());
        for (&at, form) in &self.kept {
            let seq = path[at].seq;
            match form {
                Form::Pinned(cut) => {
                    let (head_chars, tail_chars) = chars(*cut);
                    pinned.push(HeadItem::Pinned { seq, head_chars, tail_chars });
                }
                Form::Earlier(cut) => {
                    let (head_chars, tail_chars) = chars(*cut);
                    earlier.push(HeadItem::Earlier { seq, head_chars, tail_chars });
                }
                Form::Whole | Form::Cut(_) | Form::Stub { .. } => {}
            }
        }
        head.extend(pinned);
        head.extend(earlier);
        head.extend(self.handles());
        head.extend(turns(path, &self.kept));
        head
    }

    fn handles(&self) -> Vec<HeadItem> {
        let path = self.ground.path;
        let n_handles = (self.block.saturating_sub(BLOCK_TOKENS) / HANDLE_TOKENS).min(MAX_HANDLES);
        let is_pinned = |at: usize| self.ground.pins.contains(&path[at].seq);
        let is_missed = |at: usize| path[at].is_user_message() || is_pinned(at);
        let mut handles: Vec<HeadItem> = (0..path.len())
            .rev()
            .filter(|at| is_missed(*at) && !self.kept.contains_key(at))
            .take(usize::try_from(n_handles).unwrap_or_default())
            .map(|at| HeadItem::Handle { seq: path[at].seq })
            .collect();
        handles.reverse();
        handles
    }
}

fn chars(cut: Option<Cut>) -> (Option<u32>, Option<u32>) {
    (cut.map(|cut| cut.head), cut.map(|cut| cut.tail))
}

/// What is kept as turns: whole records that lie side by side are one range.
fn turns(path: &[PathItem], kept: &BTreeMap<usize, Form>) -> Vec<HeadItem> {
    let mut head = Vec::new();
    let mut run: Option<(usize, usize)> = None;
    for (&at, form) in kept {
        let seq = path[at].seq;
        let item = match form {
            Form::Earlier(_) | Form::Pinned(_) => continue,
            Form::Whole => match run {
                Some((from, to)) if to + 1 == at => {
                    run = Some((from, at));
                    continue;
                }
                _ => None,
            },
            Form::Cut(cut) => {
                Some(HeadItem::Cut { seq, head_chars: cut.head, tail_chars: cut.tail })
            }
            Form::Stub { reason, by } => {
                Some(HeadItem::Stub { seq, reason: (*reason).to_owned(), by: *by })
            }
        };
        let before = run.take();
        head.extend(before.map(|(from, to)| range(path, from, to)));
        match item {
            Some(item) => head.push(item),
            None => run = Some((at, at)),
        }
    }
    head.extend(run.map(|(from, to)| range(path, from, to)));
    head
}

fn range(path: &[PathItem], from: usize, to: usize) -> HeadItem {
    HeadItem::Range { from: path[from].seq, to: path[to].seq }
}
