//! Where the texts of records come from: fetched when a build needs them, each at most once.

use std::collections::HashMap;

use ollm_protocol::Seq;
use ollm_protocol::content::RecordBody;

use super::units::PathItem;

/// Most records of one fetch: enough to make its fixed cost small, few enough to stop early.
const BATCH_RECORDS: usize = 64;

/// Gives the contents of records.
pub(crate) trait Contents {
    /// The contents of some records in the same order, each `None` where it is damaged.
    fn bodies(&self, seqs: &[Seq]) -> Result<Vec<Option<RecordBody>>, ContentsError>;
}

/// Contents could not be read at all.
#[derive(Debug, thiserror::Error)]
#[error("reading the records of a context")]
pub(crate) struct ContentsError(#[from] std::io::Error);

/// The contents that one build has read so far.
pub(super) struct Bodies<'a> {
    source: &'a dyn Contents,
    read: HashMap<Seq, Option<RecordBody>>,
}

impl<'a> Bodies<'a> {
    pub(super) fn new(source: &'a dyn Contents) -> Self {
        Self { source, read: HashMap::new() }
    }

    /// Reads what is missing of `items`; those that never enter a context are left alone.
    pub(super) fn load(&mut self, items: &[PathItem]) -> Result<(), ContentsError> {
        let missing: Vec<Seq> = items
            .iter()
            .filter(|item| item.enters() && !self.read.contains_key(&item.seq))
            .map(|item| item.seq)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut bodies = self.source.bodies(&missing)?;
        bodies.resize_with(missing.len(), || None);
        self.read.extend(missing.into_iter().zip(bodies));
        Ok(())
    }

    /// What was read of a record; `None` when it is damaged or was not loaded.
    pub(super) fn get(&self, seq: Seq) -> Option<&RecordBody> {
        self.read.get(&seq).and_then(Option::as_ref)
    }
}

/// How many of the first records to fetch at once, so that together they do not pass `tokens` by much.
pub(super) fn batch<'i>(items: impl Iterator<Item = &'i PathItem>, tokens: u64) -> usize {
    let mut sum = 0;
    let mut n_items = 0;
    for item in items.take(BATCH_RECORDS) {
        n_items += 1;
        sum += u64::from(item.tokens);
        if sum > tokens {
            break;
        }
    }
    n_items
}
