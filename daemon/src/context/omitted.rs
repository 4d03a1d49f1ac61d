//! The list of what a context leaves out, with the reason for each item: nothing is dropped silently.

use ollm_protocol::content::{OmittedItem, RecordKind};

use super::path::PathItem;

/// The reason why a record or a part of it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OmitReason {
    /// The record does not fit.
    Budget,
    /// A checkpoint stands for the record.
    Summarized,
    /// The middle of the record does not fit.
    Cut,
    /// The images of the record do not fit, or belong to a record whose images are never sent.
    Image,
    /// The model does not read the images of the record.
    NoVision,
    /// The thinking of a model is never sent back.
    Thinking,
    /// The control tokens in the text of the record are broken up, because they would begin or end a turn.
    ControlTokens,
    /// The same result is there in its other form.
    Duplicate,
    /// The record has no text.
    Empty,
    /// The records that this record stands for are there themselves.
    Superseded,
    /// The record follows calls whose results are still missing.
    Deferred,
    /// The record cannot be read.
    Damaged,
    /// Items of the goal have no room in the system message.
    Goal,
    /// Context entries have no room in the system message.
    ContextEntry,
}

impl OmitReason {
    /// Returns the name on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Summarized => "summarized",
            Self::Cut => "cut",
            Self::Image => "image",
            Self::NoVision => "noVision",
            Self::Thinking => "thinking",
            Self::ControlTokens => "controlTokens",
            Self::Duplicate => "duplicate",
            Self::Empty => "empty",
            Self::Superseded => "superseded",
            Self::Deferred => "deferred",
            Self::Damaged => "damaged",
            Self::Goal => "goal",
            Self::ContextEntry => "contextEntry",
        }
    }
}

/// The list of omitted items as it grows.
#[derive(Debug, Default)]
pub(super) struct Omitted {
    items: Vec<OmittedItem>,
    n_summarized: u64,
}

impl Omitted {
    /// Adds one record with the tokens that are left out of it.
    pub(super) fn add(&mut self, item: &PathItem, tokens: u64, reason: OmitReason) {
        let reason = reason.as_str().to_owned();
        let (seq, through_seq, item_count) = (item.seq, None, None);
        self.items.push(OmittedItem { seq, through_seq, tokens, reason, item_count });
    }

    /// Adds a run of records as one item; records that never enter a context do not count.
    pub(super) fn add_run(&mut self, items: &[PathItem], reason: OmitReason) {
        let mut entering = items.iter().filter(|item| item.enters());
        if reason == OmitReason::Summarized {
            let n_messages = items.iter().filter(|item| item.kind == RecordKind::Message).count();
            self.n_summarized += n_messages as u64;
        }
        let Some(first) = entering.next() else { return };
        let (last, tokens) = entering.fold((first, u64::from(first.tokens)), |(_, sum), item| {
            (item, sum + u64::from(item.tokens))
        });
        self.items.push(OmittedItem {
            seq: first.seq,
            through_seq: (last.seq != first.seq).then_some(last.seq),
            tokens,
            reason: reason.as_str().to_owned(),
            item_count: None,
        });
    }

    /// The number of messages that checkpoints stand for.
    pub(super) const fn n_summarized(&self) -> u64 {
        self.n_summarized
    }

    /// Returns the list, oldest first.
    pub(super) fn into_items(mut self) -> Vec<OmittedItem> {
        self.items.sort_by_key(|item| item.seq);
        self.items
    }
}
