//! `session.tree` and `session.label`: all records of a session as a tree, one line each, and the names of some of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ollm_protocol::content::{
    Label, Record, RecordBody, RecordKind, RecordScope, TreeCounts, TreeNode,
};
use ollm_protocol::limits::{BoundedField, MAX_PAGE_BYTES, json_bytes};
use ollm_protocol::methods::session::branches::{
    SessionLabelParams, SessionLabelResult, SessionTreeParams, SessionTreeResult,
};
use ollm_protocol::{Seq, SessionId};

use super::lines::line_of;
use super::unit::check_on_tree;
use crate::app::cache::FoldedTo;
use crate::app::change::{PlannedFold, View, change};
use crate::app::core::Core;
use crate::app::drafts::uncounted;
use crate::app::error::{AppError, Result, page_limit};
use crate::app::partial::read_settled;
use crate::session::index::IndexEntry;
use crate::session::{OpenSession, SessionError, SessionState};

const DEFAULT_LIMIT: u32 = 200;
const MAX_LIMIT: u32 = 1000;

/// The labels in force, by record.
type Labels = BTreeMap<Seq, String>;

/// Reads a page of the tree (`session.tree`). Blocks on the disk.
pub(crate) fn tree(core: &Arc<Core>, params: SessionTreeParams) -> Result<SessionTreeResult> {
    let SessionTreeParams { session_id: id, limit, cursor } = params;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let first = match &cursor {
        None => Some(0),
        Some(cursor) => cursor.parse::<u64>().ok(),
    };
    let first = first.ok_or_else(|| AppError::invalid("cursor", "is not a cursor of a tree"))?;
    let labels = labels(core, id)?;
    let (mut result, wanted, mut next, reader) = read_settled(core, id, |live| {
        let children = children(live.state());
        let (wanted, next) = select(live.state(), &children, first, limit);
        let counts = TreeCounts { labels: labels.len() as u64, ..counts(live.state(), &children) };
        let (data, leaf) = (Vec::with_capacity(wanted.len()), live.state().leaf());
        let result = SessionTreeResult { data, leaf, counts, next_cursor: None };
        (result, wanted, next, live.reader())
    })?;
    let (mut n_bytes, mut reads) = (0, Vec::with_capacity(wanted.len()));
    for (node, entry) in wanted {
        // The limit applies to the records before this one, so a page has at least one node.
        if n_bytes > MAX_PAGE_BYTES {
            next = Some(node.seq);
            break;
        }
        let record = reader.read(entry).map_err(|error| SessionError::fs(id, &error))?;
        reads.push((node.seq, record.is_some()));
        n_bytes += match &record {
            Some(record) if entry.has(IndexEntry::HAS_BLOBS) => json_bytes(record),
            _ => entry.len as usize,
        };
        let at = record.as_ref().map(|record| record.at);
        let text = record.and_then(Record::into_body);
        let text = text.map(|body| line_of(&body)).unwrap_or_default();
        result.data.push(TreeNode { at, text, label: labels.get(&node.seq).cloned(), ..node });
    }
    core.sessions.note_reads(id, &reads);
    result.next_cursor = next.map(|next| next.0.to_string());
    Ok(result)
}

/// Returns the next `limit` nodes from `first` on, without their contents, and the first one of the next page.
fn select(
    state: &SessionState,
    children: &[u32],
    first: u64,
    limit: usize,
) -> (Vec<(TreeNode, IndexEntry)>, Option<Seq>) {
    let mut wanted: Vec<(TreeNode, IndexEntry)> = Vec::with_capacity(limit);
    let skip = usize::try_from(first).unwrap_or(usize::MAX);
    for (at, entry) in state.entries().iter().enumerate().skip(skip) {
        let Some(kind) = on_tree(entry) else { continue };
        let seq = Seq(at as u64);
        if wanted.len() == limit {
            mark_active(state, &mut wanted);
            return (wanted, Some(seq));
        }
        let has_tokens = !matches!(kind, RecordKind::Epoch | RecordKind::Usage);
        let node = TreeNode {
            seq,
            parent: entry.parent(),
            kind,
            role: entry.role(),
            at: None,
            text: String::new(),
            tokens: (has_tokens && entry.tokens > 0).then_some(entry.tokens),
            label: None,
            active: false,
            children: children[at],
        };
        wanted.push((node, *entry));
    }
    mark_active(state, &mut wanted);
    (wanted, None)
}

/// Marks the nodes on the active path.
fn mark_active(state: &SessionState, nodes: &mut [(TreeNode, IndexEntry)]) {
    let seqs: Vec<Seq> = nodes.iter().map(|(node, _)| node.seq).collect();
    let off_path = state.off_path(&seqs);
    for (node, _) in nodes {
        node.active = off_path.binary_search(&node.seq).is_err();
    }
}

/// Returns the kind of a readable record that is on some path.
fn on_tree(entry: &IndexEntry) -> Option<RecordKind> {
    entry.kind().filter(|kind| kind.scope() == RecordScope::Path)
}

/// Returns the number of records that directly follow each record.
fn children(state: &SessionState) -> Vec<u32> {
    let entries = state.entries();
    let mut children = vec![0; entries.len()];
    for entry in entries.iter().filter(|entry| on_tree(entry).is_some()) {
        let parent = entry.parent().and_then(|parent| usize::try_from(parent.0).ok());
        if let Some(count) = parent.and_then(|parent| children.get_mut(parent)) {
            *count += 1;
        }
    }
    children
}

fn counts(state: &SessionState, children: &[u32]) -> TreeCounts {
    let nodes = state.entries().iter().zip(children);
    let mut counts = TreeCounts::default();
    for (_, n_children) in nodes.filter(|(entry, _)| on_tree(entry).is_some()) {
        counts.nodes += 1;
        counts.branches += u64::from(*n_children == 0);
    }
    counts.active = state.walk(state.leaf()).count() as u64;
    counts
}

/// Labels a record, or removes its label (`session.label`).
pub(crate) async fn label(
    core: Arc<Core>,
    params: SessionLabelParams,
) -> Result<SessionLabelResult> {
    let SessionLabelParams { session_id: id, seq, label } = params;
    let label = label.filter(|label| !label.trim().is_empty());
    BoundedField::Label.check(label.as_ref().map_or(0, String::len))?;
    let wanted = label.clone();
    let appended = change(&core, id, None, move |view: &View<'_, LabelFold>| {
        check_on_tree(view.state, seq, "seq")?;
        let record = || RecordBody::Label(Label { target: seq, name: wanted.clone() });
        let is_new = view.fold.labels.get(&seq) != wanted.as_ref();
        Ok(is_new.then(record).map(uncounted).into_iter().collect())
    })
    .await?;
    Ok(SessionLabelResult { seq, label, changed: appended.is_some() })
}

/// The labels in force, and the number of records of the log that they follow from.
struct LabelFold {
    n_records: usize,
    labels: Arc<Labels>,
}

impl PlannedFold for LabelFold {
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        let n_records = read_settled(core, id, |live| live.state().entries().len())?;
        Ok(Self { n_records, labels: labels(core, id)? })
    }

    fn catch_up(&mut self, live: &OpenSession) -> Result<()> {
        let (state, reader) = (live.state(), live.reader());
        for entry in state.entries().iter().skip(self.n_records).filter(|entry| is_label(entry)) {
            let record = reader.read(*entry);
            let record = record.map_err(|error| SessionError::fs(state.id(), &error))?;
            apply(Arc::make_mut(&mut self.labels), record.and_then(Record::into_body));
        }
        Ok(())
    }
}

fn is_label(entry: &IndexEntry) -> bool {
    entry.kind() == Some(RecordKind::Label)
}

/// Applies the next label of the log.
fn apply(labels: &mut Labels, body: Option<RecordBody>) {
    let Some(RecordBody::Label(Label { target, name })) = body else { return };
    match name {
        Some(name) => drop(labels.insert(target, name)),
        None => drop(labels.remove(&target)),
    }
}

/// Returns the labels in force. Reads the records that the cached ones lack. Blocks on the disk.
fn labels(core: &Core, id: SessionId) -> Result<Arc<Labels>> {
    let cached = core.cache.with(id, |session| {
        let labels = session.folds.labels.as_ref()?;
        Some((labels.newest, Arc::clone(&labels.fold)))
    });
    let after = cached.as_ref().map_or(0, |(newest, _)| newest.0 + 1);
    let new: Vec<Seq> = core.sessions.with(id, |live| {
        let entries = live.state().entries().iter().enumerate();
        let later = entries.skip(usize::try_from(after).unwrap_or(usize::MAX));
        let labels = later.filter(|(_, entry)| is_label(entry));
        labels.map(|(at, _)| Seq(at as u64)).collect()
    })?;
    let mut fold = cached.map(|(_, fold)| fold).unwrap_or_default();
    let Some(newest) = new.last().copied() else { return Ok(fold) };
    let changed = Arc::make_mut(&mut fold);
    for body in core.sessions.bodies(id, &new)? {
        apply(changed, body);
    }
    let folded = FoldedTo { newest, fold: Arc::clone(&fold), damaged: Vec::new() };
    core.cache.with(id, |session| session.folds.labels = Some(folded));
    Ok(fold)
}
