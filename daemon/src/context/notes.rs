//! The notes of a head: the checkpoints in force in one block, shortened if their room is smaller than they are.

use ollm_protocol::content::{Checkpoint, HeadItem};

use super::assemble::{MEMORY, memory_block};
use super::compact::{Summary, fit_summary, shown_summary};
use crate::tokens::Counter;

/// Tokens below which nothing useful is left of a checkpoint.
const MIN_TOKENS: u64 = 32;

/// The checkpoints as a head shows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    pub items: Vec<HeadItem>,
    /// The text of the block.
    pub text: String,
    pub tokens: u64,
}

impl Notes {
    /// Returns the whole checkpoints.
    pub(super) fn whole(checkpoints: &[Checkpoint], counter: &Counter) -> Self {
        if checkpoints.is_empty() {
            return Self::default();
        }
        let items = checkpoints.iter().map(|one| HeadItem::Checkpoint { id: one.id }).collect();
        let text = memory_block(checkpoints.iter(), checkpoints);
        let tokens = u64::from(counter.count_text(&text));
        Self { items, text, tokens }
    }

    /// Returns the checkpoints within `room` tokens, the newest first; without checkpoints if there is no room for any.
    pub(super) fn fitted(checkpoints: &[Checkpoint], counter: &Counter, room: u64) -> Self {
        let whole = Self::whole(checkpoints, counter);
        if whole.tokens <= room {
            return whole;
        }
        let frame =
            u64::from(counter.count_text(&memory_block(std::iter::empty(), checkpoints))) + 4;
        let mut left = room.saturating_sub(frame);
        let mut kept: Vec<String> = Vec::new();
        for checkpoint in checkpoints.iter().rev() {
            if left < MIN_TOKENS {
                break;
            }
            let summary = fit_summary(
                &Summary::parse(&shown_summary(checkpoint, checkpoints)),
                counter,
                left,
            );
            let text = summary.render();
            let cost = u64::from(counter.count_text(&text)) + 2;
            if text.is_empty() || cost > left {
                break;
            }
            left -= cost;
            kept.push(text);
        }
        if kept.is_empty() {
            return Self::default();
        }
        kept.reverse();
        let text = kept.join("\n\n");
        let tokens = u64::from(counter.count_text(&text)) + frame;
        let mut items = whole.items;
        items.push(HeadItem::Block { topic: MEMORY.to_owned(), text: text.clone() });
        Self { items, text, tokens }
    }
}
