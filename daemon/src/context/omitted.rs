//! What a context leaves out, and why: nothing is dropped silently.

use ollm_protocol::content::{OmittedItem, RecordKind};

use super::units::PathItem;

/// Why something is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It does not fit.
    Budget,
    /// A checkpoint stands for it.
    Summarized,
    /// Its middle does not fit.
    Cut,
    /// Its pictures do not fit.
    Image,
    /// What a model thought is never sent back.
    Thinking,
    /// The result is already there in its other form.
    Duplicate,
    /// It says nothing.
    Empty,
    /// The records that it stands for are there themselves.
    Superseded,
    /// It comes after the results that are still awaited.
    Deferred,
    /// It cannot be read.
    Damaged,
}

impl Reason {
    /// The word that the wire uses.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Summarized => "summarized",
            Self::Cut => "cut",
            Self::Image => "image",
            Self::Thinking => "thinking",
            Self::Duplicate => "duplicate",
            Self::Empty => "empty",
            Self::Superseded => "superseded",
            Self::Deferred => "deferred",
            Self::Damaged => "damaged",
        }
    }
}

/// The list as it grows.
#[derive(Debug, Default)]
pub(super) struct Omitted {
    items: Vec<OmittedItem>,
    n_summarized: u64,
}

impl Omitted {
    /// Lists one record.
    pub(super) fn add(&mut self, item: &PathItem, tokens: u64, reason: Reason) {
        self.push(OmittedItem {
            seq: item.seq,
            through_seq: None,
            tokens,
            reason: reason.as_str().to_owned(),
        });
    }

    /// Lists a whole run of records as one item; those that never enter a context do not count.
    pub(super) fn add_run(&mut self, items: &[PathItem], reason: Reason) {
        let mut entering = items.iter().filter(|item| item.enters());
        if reason == Reason::Summarized {
            let n_messages = items.iter().filter(|item| item.kind == RecordKind::Message).count();
            self.n_summarized += n_messages as u64;
        }
        let Some(first) = entering.next() else { return };
        let (last, tokens) = entering.fold((first, u64::from(first.tokens)), |(_, sum), item| {
            (item, sum + u64::from(item.tokens))
        });
        self.push(OmittedItem {
            seq: first.seq,
            through_seq: (last.seq != first.seq).then_some(last.seq),
            tokens,
            reason: reason.as_str().to_owned(),
        });
    }

    /// Messages that a checkpoint stands for.
    pub(super) const fn n_summarized(&self) -> u64 {
        self.n_summarized
    }

    /// The list, oldest first.
    pub(super) fn into_items(mut self) -> Vec<OmittedItem> {
        self.items.sort_by_key(|item| item.seq);
        self.items
    }

    fn push(&mut self, item: OmittedItem) {
        self.items.push(item);
    }
}
