//! A session as a tree: its records with branches, snapshots and checkpoints, and how full its window is and was. Pure.

use std::collections::{BTreeMap, HashMap};

use ollm_protocol::content::{Record, RecordBody, Session, SnapshotInfo, TreeCounts, TreeNode};
use ollm_protocol::methods::context::{ContextCheckpointsResult, ContextStatusResult};
use ollm_protocol::methods::session::branches::SessionTreeResult;
use ollm_protocol::{Seq, SessionId, SnapshotId};

use super::super::calls::{UiAnswer, UiCall};
use super::super::text::shown_line;
use super::window::scrolled;
use crate::commands::sessions::tree::{TreeRow, tree_rows};
use crate::render::units::{counted, grouped};

/// The most records that are loaded; `ollmctl sessions tree` shows more.
const MAX_NODES: usize = 20_000;

/// A session as a tree.
#[derive(Clone, Debug)]
pub(in super::super) struct TreePane {
    pub(in super::super) session: Session,
    nodes: Vec<TreeNode>,
    rows: Vec<TreeRow>,
    leaf: Option<Seq>,
    pub(in super::super) counts: TreeCounts,
    /// The remarks behind records, by their numbers.
    marks: BTreeMap<Seq, Vec<String>>,
    snapshots: Vec<SnapshotInfo>,
    checkpoints: Option<ContextCheckpointsResult>,
    pub(in super::super) status: Option<ContextStatusResult>,
    /// The tokens of the context after each message, the oldest first.
    pub(in super::super) history: Vec<u64>,
    selected: usize,
    top: usize,
    /// The record to select when the tree is loaded; `None` for the active leaf.
    wanted: Option<Seq>,
    pages: TreePages,
    /// The calls whose answers are not awaited yet.
    due: Vec<UiCall>,
    /// Set if the session changed since it was read.
    is_stale: bool,
}

/// The pages of a tree that are being loaded.
#[derive(Clone, Debug, Default)]
struct TreePages {
    nodes: Vec<TreeNode>,
    /// Set if a page is awaited.
    is_waiting: bool,
}

/// A row of the tree.
pub(in super::super) struct TreeLine<'a> {
    pub(in super::super) prefix: &'a str,
    pub(in super::super) node: &'a TreeNode,
    pub(in super::super) is_leaf: bool,
    pub(in super::super) marks: &'a [String],
}

impl TreePane {
    /// Returns a tree that is not loaded yet, with the record to select.
    pub(in super::super) fn new(session: Session, wanted: Option<Seq>) -> Self {
        let mut pane = Self {
            session,
            nodes: Vec::new(),
            rows: Vec::new(),
            leaf: None,
            counts: TreeCounts::default(),
            marks: BTreeMap::new(),
            snapshots: Vec::new(),
            checkpoints: None,
            status: None,
            history: Vec::new(),
            selected: 0,
            top: 0,
            wanted,
            pages: TreePages::default(),
            due: Vec::new(),
            is_stale: false,
        };
        pane.read();
        pane
    }

    pub(in super::super) fn id(&self) -> SessionId {
        self.session.session_id
    }

    pub(in super::super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(in super::super) fn is_loaded(&self) -> bool {
        !self.nodes.is_empty() || !self.pages.is_waiting
    }

    pub(in super::super) fn selected(&self) -> usize {
        self.selected
    }

    pub(in super::super) fn top(&self) -> usize {
        self.top
    }

    pub(in super::super) fn lines(&self) -> impl Iterator<Item = TreeLine<'_>> {
        self.rows.iter().map(|row| {
            let node = &self.nodes[row.at];
            let marks = self.marks.get(&node.seq).map_or(&[][..], Vec::as_slice);
            TreeLine { prefix: &row.prefix, node, is_leaf: row.is_leaf, marks }
        })
    }

    /// Returns the number of the selected record.
    pub(in super::super) fn selected_seq(&self) -> Option<Seq> {
        self.rows.get(self.selected).map(|row| self.nodes[row.at].seq)
    }

    /// Returns the newest of the snapshots at the selected record. All of them have its state. If there is none at the
    /// first row, returns the newest one from before the first record.
    pub(in super::super) fn selected_snapshot(&self) -> Option<&SnapshotInfo> {
        // The list begins with the newest.
        let newest_at = |row: Option<usize>| {
            self.snapshots.iter().find(|snapshot| self.row_of_snapshot(snapshot) == row)
        };
        let is_first = self.selected == 0 && !self.rows.is_empty();
        newest_at(Some(self.selected)).or_else(|| newest_at(None).filter(|_| is_first))
    }

    pub(in super::super) fn snapshot(&self, id: SnapshotId) -> Option<&SnapshotInfo> {
        self.snapshots.iter().find(|snapshot| snapshot.snapshot_id == id)
    }

    pub(in super::super) fn move_by(&mut self, rows: isize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }

    /// Selects the end of the next branch, or of the one before; goes on at the other end of the tree. Returns false if
    /// that is selected already: there is no other branch.
    pub(in super::super) fn move_to_branch(&mut self, is_next: bool) -> bool {
        let ends = self.branch_ends();
        let found = match is_next {
            true => ends.iter().find(|end| **end > self.selected).or(ends.first()),
            false => ends.iter().rfind(|end| **end < self.selected).or(ends.last()),
        };
        found.is_some_and(|end| std::mem::replace(&mut self.selected, *end) != *end)
    }

    /// Returns the rows behind which no other row of their branch comes.
    fn branch_ends(&self) -> Vec<usize> {
        let drawn: HashMap<usize, usize> =
            self.rows.iter().enumerate().map(|(row, drawn)| (drawn.at, row)).collect();
        // The row of each record: its own, or that of the nearest one before it that is drawn.
        let mut places: HashMap<Seq, usize> = HashMap::new();
        let mut is_end = vec![true; self.rows.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            let before = node.parent.and_then(|parent| places.get(&parent).copied());
            let own = drawn.get(&at).copied();
            if let Some(before) = before.filter(|_| own.is_some()) {
                is_end[before] = false;
            }
            if let Some(place) = own.or(before) {
                places.insert(node.seq, place);
            }
        }
        (0..self.rows.len()).filter(|row| is_end[*row]).collect()
    }

    pub(in super::super) fn scroll(&mut self, height: usize) {
        self.top = scrolled(self.top, self.selected, height, self.rows.len());
    }

    /// Notes that the session changed; it is read again with the next [`TreePane::read_stale`].
    pub(in super::super) fn refresh(&mut self) {
        self.is_stale = true;
    }

    pub(in super::super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Reads the session again if it changed. Long trees are not read for each event.
    pub(in super::super) fn read_stale(&mut self) {
        if self.is_stale && !self.pages.is_waiting {
            self.wanted = self.selected_seq().filter(|_| !self.is_at_leaf());
            self.read();
        }
    }

    /// Forgets that answers are awaited, and reads everything again: the connection was lost.
    pub(in super::super) fn stop_waiting(&mut self) {
        self.pages = TreePages::default();
        self.is_stale = true;
        self.due.clear();
    }

    /// Returns the calls to make now.
    pub(in super::super) fn next_calls(&mut self) -> Vec<UiCall> {
        std::mem::take(&mut self.due)
    }

    /// Takes the answer to a call about this session. Returns false if the call was none of this tree.
    pub(in super::super) fn receive(&mut self, call: &UiCall, answer: UiAnswer) -> bool {
        match (call, answer) {
            (UiCall::Tree { session_id, cursor }, UiAnswer::Tree(page))
                if *session_id == self.id() =>
            {
                self.receive_page(cursor.is_none(), page);
            }
            (UiCall::Status(id), UiAnswer::Status(status)) if *id == self.id() => {
                self.status = Some(*status);
            }
            (UiCall::History(id), UiAnswer::Records(page)) if *id == self.id() => {
                self.history = fullness(page.records);
            }
            (UiCall::Snapshots(id), UiAnswer::Snapshots(snapshots)) if *id == self.id() => {
                self.snapshots = snapshots;
                self.mark();
            }
            (UiCall::Checkpoints(id), UiAnswer::Checkpoints(result)) if *id == self.id() => {
                self.checkpoints = Some(*result);
                self.mark();
            }
            _ => return false,
        }
        true
    }

    /// Notes that a page could not be read.
    pub(in super::super) fn fail(&mut self, call: &UiCall) {
        if matches!(call, UiCall::Tree { session_id, .. } if *session_id == self.id()) {
            self.pages.is_waiting = false;
        }
    }

    /// Returns what the window keeps of the session besides its records.
    pub(in super::super) fn remarks(&self) -> Vec<String> {
        let mut remarks = vec![counted(self.counts.nodes, "record")];
        if self.counts.branches > 1 {
            remarks.push(format!("{} branches", grouped(self.counts.branches)));
        }
        let checkpoints = self.checkpoints.as_ref().map_or(0, |all| all.checkpoints.len() as u64);
        let compactions = self.checkpoints.as_ref().map_or(0, |all| all.compression_count);
        let snapshots = self.snapshots.len() as u64;
        let numbers =
            [(compactions, "compaction"), (checkpoints, "checkpoint"), (snapshots, "snapshot")];
        remarks.extend(
            numbers
                .into_iter()
                .filter(|(number, _)| *number > 0)
                .map(|(number, noun)| counted(number, noun)),
        );
        if self.nodes.len() as u64 > 0 && (self.nodes.len() as u64) < self.counts.nodes {
            remarks.push(format!("the first {} are shown", grouped(self.nodes.len() as u64)));
        }
        remarks
    }

    fn is_at_leaf(&self) -> bool {
        self.rows.get(self.selected).is_none_or(|row| row.is_leaf)
    }

    /// Requests everything.
    fn read(&mut self) {
        let id = self.id();
        self.is_stale = false;
        self.pages = TreePages { nodes: Vec::new(), is_waiting: true };
        self.due = vec![
            UiCall::Tree { session_id: id, cursor: None },
            UiCall::Status(id),
            UiCall::History(id),
            UiCall::Snapshots(id),
            UiCall::Checkpoints(id),
        ];
    }

    fn receive_page(&mut self, is_first: bool, page: SessionTreeResult) {
        if is_first {
            self.pages.nodes.clear();
        }
        self.pages.nodes.extend(page.data);
        self.counts = page.counts;
        self.leaf = page.leaf;
        let cursor = page.next_cursor.filter(|_| self.pages.nodes.len() < MAX_NODES);
        if cursor.is_some() {
            self.due.push(UiCall::Tree { session_id: self.id(), cursor });
            return;
        }
        // The tree before stays until this one is complete.
        self.nodes = std::mem::take(&mut self.pages.nodes);
        self.pages.is_waiting = false;
        self.rows = tree_rows(&self.nodes, self.leaf, false);
        self.mark();
        let at = match self.wanted.take() {
            Some(wanted) => self.row_of(wanted),
            None => self.rows.iter().position(|row| row.is_leaf),
        };
        self.selected = at.unwrap_or_else(|| self.rows.len().saturating_sub(1));
    }

    /// Returns the row of a record, or the nearest one before it.
    fn row_of(&self, seq: Seq) -> Option<usize> {
        let seqs = self.rows.iter().enumerate().map(|(at, row)| (self.nodes[row.at].seq, at));
        seqs.filter(|(other, _)| *other <= seq).max().map(|(_, at)| at)
    }

    /// Returns the row of a snapshot's leaf; `None` for a snapshot from before the first record.
    fn row_of_snapshot(&self, snapshot: &SnapshotInfo) -> Option<usize> {
        snapshot.leaf.and_then(|leaf| self.row_of(leaf))
    }

    /// Writes snapshots and checkpoints behind the records at which they are. Snapshots from before the first record
    /// are at the first row.
    fn mark(&mut self) {
        let mut marks: Vec<(usize, String)> = Vec::new();
        for snapshot in &self.snapshots {
            let reason = shown_line(&snapshot.reason);
            marks.push(match self.row_of_snapshot(snapshot) {
                Some(row) => (row, format!("snapshot, {reason}")),
                None => (0, format!("snapshot before it, {reason}")),
            });
        }
        for checkpoint in self.checkpoints.iter().flat_map(|all| &all.checkpoints) {
            let tokens = grouped(checkpoint.current_tokens);
            let (from, to) = (checkpoint.from, checkpoint.to);
            let text = format!("checkpoint of #{from} to #{to}, {tokens} tokens");
            marks.extend(self.row_of(to).map(|row| (row, text)));
        }
        self.marks.clear();
        for (row, text) in marks {
            if let Some(row) = self.rows.get(row) {
                self.marks.entry(self.nodes[row.at].seq).or_default().push(text);
            }
        }
    }
}

/// Returns the tokens of the context after each message. The counts of the model server, where there are any, include the
/// system message.
fn fullness(records: Vec<Record>) -> Vec<u64> {
    let mut levels: Vec<u64> = Vec::new();
    let mut level = 0;
    for record in records.into_iter().filter(|record| record.active) {
        let tokens = record.tokens.map_or(0, u64::from);
        match record.into_body() {
            Some(RecordBody::Usage(usage)) => {
                level = usage.prompt_tokens + usage.answer_tokens;
                // The counts are those of the message before them.
                levels.pop();
                levels.push(level);
            }
            Some(RecordBody::Compaction(compaction)) => {
                level = compaction.tokens_after.unwrap_or(level);
                levels.push(level);
            }
            Some(RecordBody::Message(_) | RecordBody::ToolCall(_)) => {
                level += tokens;
                levels.push(level);
            }
            _ => level += tokens,
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{SESSION_ID, session_named};

    fn page(range: std::ops::Range<u64>, next: Option<&str>) -> UiAnswer {
        let node = |seq: u64| {
            json!({
                "seq": seq, "parent": seq.checked_sub(1), "type": "message", "role": "user",
                "text": format!("text {seq}"), "active": true, "children": 1
            })
        };
        let data: Vec<Value> = range.map(node).collect();
        let counts = json!({ "nodes": 9, "active": 9, "branches": 1, "labels": 0 });
        let page = json!({ "data": data, "leaf": 5, "counts": counts, "nextCursor": next });
        UiAnswer::Tree(serde_json::from_value(page).unwrap())
    }

    fn call(cursor: Option<&str>) -> UiCall {
        let session_id = SESSION_ID.parse().unwrap();
        UiCall::Tree { session_id, cursor: cursor.map(str::to_owned) }
    }

    fn pane(wanted: Option<u64>) -> TreePane {
        TreePane::new(session_named(SESSION_ID, "Lists"), wanted.map(Seq))
    }

    #[test]
    fn pages_are_joined_and_the_leaf_is_selected() {
        let mut pane = pane(None);
        assert_eq!(pane.next_calls().len(), 5);
        assert!(!pane.is_loaded());
        assert!(pane.receive(&call(None), page(0..3, Some("c"))));
        assert_eq!(pane.len(), 0);
        let next = pane.next_calls();
        assert!(matches!(&next[..], [UiCall::Tree { cursor: Some(cursor), .. }] if cursor == "c"));
        pane.receive(&call(Some("c")), page(3..9, None));
        assert_eq!((pane.len(), pane.selected_seq()), (9, Some(Seq(5))));
        let other = UiCall::Tree {
            session_id: "0192f0c1-9a3b-7000-8000-000000000002".parse().unwrap(),
            cursor: None,
        };
        assert!(!pane.receive(&other, page(0..1, None)));
    }

    #[test]
    fn tree_that_is_read_again_keeps_the_selected_record() {
        let mut pane = pane(Some(3));
        pane.receive(&call(None), page(0..6, None));
        assert_eq!(pane.selected_seq(), Some(Seq(3)));
        pane.next_calls();
        pane.refresh();
        pane.read_stale();
        assert_eq!((pane.next_calls().len(), pane.len()), (5, 6), "the tree before stays");
        pane.receive(&call(None), page(0..9, None));
        assert_eq!(pane.selected_seq(), Some(Seq(3)));
        pane.move_by(2);
        pane.refresh();
        pane.read_stale();
        pane.receive(&call(None), page(0..7, None));
        assert_eq!(pane.selected_seq(), Some(Seq(5)), "the leaf is followed");
    }

    #[test]
    fn snapshots_are_marked_at_their_leaf() {
        let mut pane = pane(None);
        let snapshot = json!({
            "snapshotId": "0192f0c1-9a3b-7000-8000-000000000009", "sessionId": SESSION_ID,
            "timestamp": "2026-01-27T10:00:00Z", "reason": "man\u{1b}[2Jual", "summary": "",
            "tokenCount": 1, "messageCount": 1, "userMessageCount": 1, "leaf": 4, "sizeBytes": 1
        });
        let snapshots = UiAnswer::Snapshots(vec![serde_json::from_value(snapshot).unwrap()]);
        pane.receive(&UiCall::Snapshots(SESSION_ID.parse().unwrap()), snapshots);
        pane.receive(&call(None), page(0..6, None));
        let marked: Vec<_> =
            pane.lines().filter(|line| !line.marks.is_empty()).map(|line| line.node.seq).collect();
        assert_eq!(marked, [Seq(4)]);
        assert_eq!(pane.lines().nth(4).unwrap().marks, ["snapshot, manual"]);
        assert_eq!(pane.selected_seq(), Some(Seq(5)));
        assert!(pane.selected_snapshot().is_none());
        pane.move_by(-1);
        assert_eq!(pane.selected_snapshot().map(|found| found.leaf), Some(Some(Seq(4))));
        assert_eq!(pane.remarks(), ["9 records", "1 snapshot", "the first 6 are shown"]);
    }

    #[test]
    fn snapshot_from_before_the_first_record_is_marked_at_the_first_row() {
        let mut pane = pane(None);
        let snapshot = json!({
            "snapshotId": "0192f0c1-9a3b-7000-8000-000000000009", "sessionId": SESSION_ID,
            "timestamp": "2026-01-27T10:00:00Z", "reason": "manual", "summary": "",
            "tokenCount": 0, "messageCount": 0, "userMessageCount": 0, "sizeBytes": 1
        });
        let snapshots = UiAnswer::Snapshots(vec![serde_json::from_value(snapshot).unwrap()]);
        pane.receive(&UiCall::Snapshots(SESSION_ID.parse().unwrap()), snapshots);
        assert!(pane.selected_snapshot().is_none(), "there is no row yet");
        pane.receive(&call(None), page(0..6, None));
        assert_eq!(pane.lines().next().unwrap().marks, ["snapshot before it, manual"]);
        assert!(pane.selected_snapshot().is_none());
        pane.move_by(-5);
        assert_eq!(pane.selected_snapshot().map(|found| found.leaf), Some(None));
    }

    #[test]
    fn ends_of_branches_are_selected_in_turn() {
        let mut pane = pane(None);
        let node = |seq: u64, parent: Option<u64>, kind: &str| {
            json!({
                "seq": seq, "parent": parent, "type": kind, "text": "", "active": seq != 2,
                "children": 1
            })
        };
        // The usage behind the message of the first branch is not drawn.
        let nodes = json!([
            node(0, None, "message"),
            node(1, Some(0), "message"),
            node(2, Some(1), "usage"),
            node(3, Some(0), "message"),
            node(4, Some(3), "message"),
        ]);
        let counts = json!({ "nodes": 5, "active": 3, "branches": 2, "labels": 0 });
        let tree = json!({ "data": nodes, "leaf": 4, "counts": counts });
        pane.receive(&call(None), UiAnswer::Tree(serde_json::from_value(tree).unwrap()));
        assert_eq!(pane.selected_seq(), Some(Seq(4)));
        for (is_next, expect) in [(true, 1), (true, 4), (false, 1), (false, 4)] {
            assert!(pane.move_to_branch(is_next));
            assert_eq!(pane.selected_seq(), Some(Seq(expect)));
        }
        pane.receive(&call(None), page(0..6, None));
        assert!(!pane.move_to_branch(true));
    }

    #[test]
    fn fullness_follows_messages_counts_and_compactions() {
        let record = |kind: &str, tokens: Option<u32>, body: Value| -> Record {
            serde_json::from_value(json!({
                "seq": 1, "at": "2026-01-27T10:00:00Z", "type": kind, "tokens": tokens, kind: body
            }))
            .unwrap()
        };
        let message = |tokens| {
            let at = "2026-01-27T10:00:00Z";
            let body = json!({ "role": "user", "parts": [], "timestamp": at });
            record("message", Some(tokens), body)
        };
        let usage = json!({ "promptTokens": 100, "answerTokens": 20 });
        let compaction = json!({ "tokensBefore": 120, "tokensAfter": 40, "tokenizer": "t" });
        let records = vec![
            message(10),
            message(5),
            record("usage", None, usage),
            record("compaction", None, compaction),
            message(7),
        ];
        assert_eq!(fullness(records), [10, 120, 40, 47]);
    }
}
