//! The active path of a session as builds see it: every record from the root to the leaf, and the positions of those
//! that builds look for.
//!
//! A path is extended as the log grows, so that a build walks over new records and not over the whole session. Pure:
//! it reads the fold of an open session and no files.

use ollm_protocol::Seq;
use ollm_protocol::content::RecordKind;

use crate::context::PathItem;
use crate::session::SessionState;
use crate::session::index::IndexEntry;

/// A path from the root to a record.
#[derive(Clone, Default)]
pub(crate) struct ActivePath {
    pub(crate) leaf: Option<Seq>,
    /// Every record, oldest first.
    pub(crate) items: Vec<PathItem>,
    /// The `goal` records, oldest first.
    pub(crate) goals: Vec<Seq>,
    /// The `contextEntry` records, oldest first.
    pub(crate) entries: Vec<Seq>,
    /// The `pin` records, oldest first.
    pub(crate) pins: Vec<Seq>,
    /// The newest record that opens an epoch.
    pub(crate) epoch_at: Option<Seq>,
    /// The newest compaction that opens an epoch; those of imported files do not.
    pub(crate) compaction_at: Option<Seq>,
}

impl ActivePath {
    /// Returns whether the record is on the path.
    pub(crate) fn contains(&self, seq: Seq) -> bool {
        self.items.binary_search_by_key(&seq, |item| item.seq).is_ok()
    }

    /// Returns the items after `seq`.
    pub(crate) fn after(&self, seq: Seq) -> &[PathItem] {
        &self.items[self.items.partition_point(|item| item.seq <= seq)..]
    }

    /// Returns the newest message or tool result.
    pub(crate) fn newest_spoken(&self) -> Option<&PathItem> {
        let spoken = [RecordKind::Message, RecordKind::ToolCall];
        self.items.iter().rfind(|item| spoken.contains(&item.kind))
    }

    /// Appends records that follow the leaf, oldest first.
    pub(crate) fn extend(&mut self, seqs: &[Seq], state: &SessionState) {
        self.items.reserve(seqs.len());
        for seq in seqs {
            if let Some(entry) = state.entry(*seq) {
                self.push(*seq, entry);
            }
        }
        self.leaf = seqs.last().copied().or(self.leaf);
    }

    fn push(&mut self, seq: Seq, entry: IndexEntry) {
        let Some(kind) = entry.kind() else { return };
        match kind {
            RecordKind::Goal => self.goals.push(seq),
            RecordKind::ContextEntry => self.entries.push(seq),
            RecordKind::Pin => self.pins.push(seq),
            _ => {}
        }
        if entry.has(IndexEntry::OPENS_EPOCH) {
            self.epoch_at = Some(seq);
            if kind == RecordKind::Compaction {
                self.compaction_at = Some(seq);
            }
        }
        self.items.push(PathItem {
            seq,
            kind,
            role: entry.role(),
            tokens: entry.tokens,
            calls_tools: entry.has(IndexEntry::CALLS_TOOLS),
            in_context: match kind {
                // A compaction of another program is a summary in the conversation.
                RecordKind::Compaction => !entry.has(IndexEntry::OPENS_EPOCH),
                _ => entry.has(IndexEntry::IN_CONTEXT),
            },
        });
    }
}

/// Returns the records after `base` up to `leaf`, oldest first, or `None` if `base` is not on the path to `leaf`.
pub(crate) fn records_between(
    state: &SessionState,
    base: Option<Seq>,
    leaf: Option<Seq>,
) -> Option<Vec<Seq>> {
    let mut seqs = Vec::new();
    let mut next = leaf;
    while next != base {
        let seq = next?;
        seqs.push(seq);
        next = state.entry(seq)?.parent().filter(|parent| *parent < seq);
    }
    seqs.reverse();
    Some(seqs)
}
