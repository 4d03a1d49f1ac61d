//! The conversion of references between records from the numbers of a file to those of the store.
//!
//! The numbers differ only if records of the file are lost. A reference to a lost record moves to the nearest remaining
//! record where that keeps its meaning (the end of a range, an active leaf), and is dropped where it would become wrong
//! (a label, a pin).

use std::collections::BTreeMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{HeadItem, RecordBody};

/// A map from the record numbers of a file to those of the store.
///
/// Its size depends on the number of gaps and not on that of records.
#[derive(Debug, Default)]
pub(crate) struct SeqMap(BTreeMap<Seq, SeqRun>);

/// Consecutive records that are also consecutive in the store.
#[derive(Clone, Copy, Debug)]
struct SeqRun {
    /// The number of the first one in the store.
    store: Seq,
    n_records: u64,
}

/// The record that another record refers to is lost, so that the other one has no meaning.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TargetLost;

impl SeqMap {
    /// Adds a record of the file, whose numbers are higher than all before.
    pub(crate) fn insert(&mut self, file: Seq, store: Seq) {
        if let Some(mut last) = self.0.last_entry() {
            let (first, run) = (*last.key(), last.get_mut());
            if file.0 == first.0 + run.n_records && store.0 == run.store.0 + run.n_records {
                run.n_records += 1;
                return;
            }
        }
        self.0.insert(file, SeqRun { store, n_records: 1 });
    }

    /// Returns the new number, or `None` if the record is lost.
    pub(super) fn exact(&self, seq: Seq) -> Option<Seq> {
        let (first, run) = self.0.range(..=seq).next_back()?;
        let distance = seq.0 - first.0;
        (distance < run.n_records).then_some(Seq(run.store.0 + distance))
    }

    /// Returns the new number of the record or of the nearest one before it.
    pub(super) fn at_or_before(&self, seq: Seq) -> Option<Seq> {
        let (first, run) = self.0.range(..=seq).next_back()?;
        Some(Seq(run.store.0 + (seq.0 - first.0).min(run.n_records - 1)))
    }

    /// Returns the new number of the record or of the nearest one after it.
    fn at_or_after(&self, seq: Seq) -> Option<Seq> {
        self.exact(seq).or_else(|| self.0.range(seq..).next().map(|(_, run)| run.store))
    }

    /// Converts every reference in a body.
    pub(crate) fn apply(&self, body: &mut RecordBody) -> Result<(), TargetLost> {
        match body {
            RecordBody::ToolCall(call) => {
                call.message_seq = call.message_seq.and_then(|seq| self.exact(seq));
            }
            RecordBody::Compaction(compaction) => {
                compaction.from = compaction.from.and_then(|seq| self.at_or_after(seq));
                compaction.to = compaction.to.and_then(|seq| self.at_or_before(seq));
                if let Some(epoch) = &mut compaction.epoch {
                    self.apply_head(&mut epoch.head);
                }
                for checkpoint in &mut compaction.checkpoints {
                    checkpoint.from = self.at_or_after(checkpoint.from).unwrap_or(checkpoint.from);
                    checkpoint.to = self.at_or_before(checkpoint.to).unwrap_or(checkpoint.to);
                }
                compaction
                    .asked
                    .retain_mut(|asked| self.exact(asked.seq).map(|seq| asked.seq = seq).is_some());
            }
            RecordBody::Epoch(epoch) => self.apply_head(&mut epoch.head),
            RecordBody::BranchSummary(summary) => {
                summary.from = summary.from.and_then(|seq| self.at_or_before(seq));
            }
            RecordBody::Snapshot(mark) => {
                mark.leaf = mark.leaf.and_then(|seq| self.at_or_before(seq));
            }
            RecordBody::Delta(delta) => delta.recalled.retain_mut(|recalled| {
                let is_own = recalled.session_id.is_none();
                !is_own || self.exact(recalled.seq).map(|seq| recalled.seq = seq).is_some()
            }),
            RecordBody::Leaf(leaf) => leaf.to = leaf.to.and_then(|seq| self.at_or_before(seq)),
            RecordBody::Label(label) => {
                label.target = self.exact(label.target).ok_or(TargetLost)?
            }
            RecordBody::Goal(change) => {
                change.message_seq = change.message_seq.and_then(|seq| self.exact(seq));
            }
            RecordBody::Pin(pin) => pin.target = self.exact(pin.target).ok_or(TargetLost)?,
            RecordBody::Session(_)
            | RecordBody::Message(_)
            | RecordBody::ContextEntry(_)
            | RecordBody::ModeChange(_)
            | RecordBody::Custom(_)
            | RecordBody::Usage(_)
            | RecordBody::Meta(_)
            | RecordBody::Loop(_)
            | RecordBody::PutBack(_)
            | RecordBody::Rest(_)
            | RecordBody::Close(_) => {}
        }
        Ok(())
    }

    fn apply_head(&self, head: &mut Vec<HeadItem>) {
        head.retain_mut(|item| match item {
            HeadItem::Range { from, to } => {
                match (self.at_or_after(*from), self.at_or_before(*to)) {
                    (Some(first), Some(last)) if first <= last => {
                        (*from, *to) = (first, last);
                        true
                    }
                    _ => false,
                }
            }
            HeadItem::Stub { seq, by, .. } => match (self.exact(*seq), self.exact(*by)) {
                (Some(new), Some(new_by)) => {
                    (*seq, *by) = (new, new_by);
                    true
                }
                _ => false,
            },
            HeadItem::Cut { seq, .. }
            | HeadItem::Handle { seq }
            | HeadItem::Earlier { seq, .. }
            | HeadItem::Pinned { seq, .. } => self.exact(*seq).map(|new| *seq = new).is_some(),
            HeadItem::Checkpoint { .. } | HeadItem::Block { .. } => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{Label, LeafMove};

    use super::*;

    #[test]
    fn references_to_lost_records_are_moved_or_dropped() {
        let mut map = SeqMap::default();
        for (file, store) in [(0, 0), (1, 1), (3, 2), (4, 3), (6, 4)] {
            map.insert(Seq(file), Seq(store));
        }
        let mut head = vec![
            HeadItem::Range { from: Seq(2), to: Seq(5) },
            HeadItem::Range { from: Seq(5), to: Seq(5) },
            HeadItem::Handle { seq: Seq(2) },
            HeadItem::Cut { seq: Seq(6), head_chars: 1, tail_chars: 1 },
        ];
        map.apply_head(&mut head);
        let expected = [
            HeadItem::Range { from: Seq(2), to: Seq(3) },
            HeadItem::Cut { seq: Seq(4), head_chars: 1, tail_chars: 1 },
        ];
        assert_eq!(head, expected);

        let mut label = RecordBody::Label(Label { target: Seq(2), name: Some("x".into()) });
        assert_eq!(map.apply(&mut label), Err(TargetLost));
        let mut leaf = RecordBody::Leaf(LeafMove { to: Some(Seq(5)), cause: "undo".into() });
        assert_eq!(map.apply(&mut leaf), Ok(()));
        assert_eq!(leaf, RecordBody::Leaf(LeafMove { to: Some(Seq(3)), cause: "undo".into() }));
    }
}
