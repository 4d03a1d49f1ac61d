//! The notes of a head: the checkpoints in force in one block, shortened if their room is smaller than they are.

use ollm_protocol::content::{Checkpoint, HeadItem, MEMORY_BLOCK};

use super::assemble::memory_block;
use super::compact::{Summary, fit_summary, merged_summaries, shown_summary};
use crate::context::numbers::*;
use crate::tokens::Counter;

/// The checkpoints as a head shows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    pub items: Vec<HeadItem>,
    /// The text of the block.
    pub text: String,
    pub tokens: u64,
}

impl Notes {
    /// Returns all of the checkpoints. Several with sections are shown as one, so that each heading stands once.
    pub(super) fn whole(checkpoints: &[Checkpoint], counter: &Counter) -> Self {
        if checkpoints.is_empty() {
            return Self::default();
        }
        match merged_summaries(checkpoints) {
            Some(merged) => Self::block(checkpoints, counter, merged.render()),
            None => {
                let text = memory_block(checkpoints.iter(), checkpoints);
                let tokens = u64::from(counter.count_text(&text));
                Self { items: items(checkpoints), text, tokens }
            }
        }
    }

    /// Returns the checkpoints within `room` tokens, the newest first; without checkpoints if there is no room for any.
    pub(super) fn fitted(checkpoints: &[Checkpoint], counter: &Counter, room: u64) -> Self {
        let whole = Self::whole(checkpoints, counter);
        if whole.tokens <= room {
            return whole;
        }
        let mut left = room.saturating_sub(frame(checkpoints, counter));
        let parts = match merged_summaries(checkpoints) {
            Some(merged) => vec![merged],
            None => {
                let shown = checkpoints.iter().map(|one| shown_summary(one, checkpoints));
                shown.map(|text| Summary::parse(&text)).collect()
            }
        };
        let mut kept: Vec<String> = Vec::new();
        for part in parts.iter().rev() {
            if left < MIN_NOTES_TOKENS {
                break;
            }
            let text = fit_summary(part, counter, left).render();
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
        Self::block(checkpoints, counter, kept.join("\n\n"))
    }

    /// Returns a text that stands for the checkpoints.
    fn block(checkpoints: &[Checkpoint], counter: &Counter, text: String) -> Self {
        let tokens = u64::from(counter.count_text(&text)) + frame(checkpoints, counter);
        let mut items = items(checkpoints);
        items.push(HeadItem::Block { topic: MEMORY_BLOCK.to_owned(), text: text.clone() });
        Self { items, text, tokens }
    }
}

fn items(checkpoints: &[Checkpoint]) -> Vec<HeadItem> {
    checkpoints.iter().map(|one| HeadItem::Checkpoint { id: one.id }).collect()
}

/// Returns the tokens of a block without text, and some for where its text begins and ends.
fn frame(checkpoints: &[Checkpoint], counter: &Counter) -> u64 {
    u64::from(counter.count_text(&memory_block(std::iter::empty(), checkpoints))) + 4
}
