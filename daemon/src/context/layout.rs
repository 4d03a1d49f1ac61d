//! A head as stretches of a conversation: resolves the references of a head on the path and lists the records that no
//! stretch shows. Pure; reads no contents.

use std::ops::Range;

use ollm_protocol::content::{Checkpoint, HeadItem, RecordBody};
use ollm_protocol::{CheckpointId, Seq};

use super::cut::{self, Cut};
use super::omitted::{OmitReason, Omitted};
use super::path::{PathItem, between};
use super::render::{left_out, note};

/// A head with the path and the checkpoints that it refers to.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    /// The path from the root to the active leaf.
    pub path: &'a [PathItem],
    /// The frozen head and the number of records of the path that it covers; `None` shows everything verbatim.
    pub head: Option<(&'a [HeadItem], usize)>,
    /// The checkpoints that the head may name.
    pub checkpoints: &'a [Checkpoint],
}

/// One stretch of a conversation, by indices into the path.
pub(super) enum HeadStretch {
    /// Whole records.
    Verbatim(Range<usize>),
    /// A shortened record.
    Shortened(usize, Shortening),
    /// Records quoted in one block.
    Quoted(QuoteTopic, Vec<(usize, Option<Cut>)>),
    /// A block that no record stands for, by its topic and text.
    Block(String, String),
    /// A checkpoint and its block.
    Checkpoint(CheckpointId, String),
}

/// The way in which a record is shortened.
pub(super) enum Shortening {
    /// The record keeps its beginning and its end.
    Cut(Cut),
    /// The result of the record is replaced by this line.
    Stub(String),
}

impl Shortening {
    /// Returns the name of the form.
    pub(super) const fn form(&self) -> &'static str {
        match self {
            Self::Cut(_) => "cut",
            Self::Stub(_) => "stub",
        }
    }

    /// Returns the record as it is shown.
    pub(super) fn apply(&self, seq: Seq, body: &RecordBody) -> RecordBody {
        match self {
            Self::Cut(cut) => cut::apply(seq, body, *cut),
            Self::Stub(line) => cut::stub(body, line),
        }
    }
}

/// The kind of a block of quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuoteTopic {
    /// Earlier messages of the user.
    Earlier,
    /// Pinned records.
    Pinned,
}

impl QuoteTopic {
    /// Returns the name of the form of the quoted records.
    pub(super) const fn form(self) -> &'static str {
        match self {
            Self::Earlier => "quoted",
            Self::Pinned => "pinned",
        }
    }

    /// Returns the block of these quotes.
    pub(super) fn block(self, quotes: &[String]) -> String {
        let quotes = quotes.join("\n\n");
        match self {
            Self::Earlier => {
                note("earlier-user-messages", &[("state", "already answered")], &quotes)
            }
            Self::Pinned => note("pinned", &[], &quotes),
        }
    }
}

/// Returns the block of a checkpoint, as models are sent it.
pub(super) fn checkpoint_block(checkpoint: &Checkpoint) -> String {
    let records = format!("#{} to #{}", checkpoint.from, checkpoint.to);
    note("summary", &[("records", &records)], &checkpoint.summary)
}

impl Layout<'_> {
    /// Returns the stretches in order and adds the records that the head does not show to `omitted`.
    pub(super) fn stretches(&self, omitted: &mut Omitted) -> Vec<HeadStretch> {
        let Some((head, covered)) = self.head else {
            return vec![HeadStretch::Verbatim(0..self.path.len())];
        };
        let path = &self.path[..covered];
        let mut resolver = HeadResolver::new(path);
        let mut summarized = 0;
        for item in head {
            if let HeadItem::Checkpoint { id } = item {
                let found = self.checkpoints.iter().find(|checkpoint| checkpoint.id == *id);
                let Some(checkpoint) = found else { continue };
                summarized = summarized.max(path.partition_point(|item| item.seq <= checkpoint.to));
                let block = checkpoint_block(checkpoint);
                resolver.stretches.push(HeadStretch::Checkpoint(*id, block));
            } else {
                resolver.add(item);
            }
        }
        resolver.list_gaps(summarized, omitted);
        resolver.stretches.push(HeadStretch::Verbatim(covered..self.path.len()));
        resolver.stretches
    }
}

/// The stretches of a head as they are resolved.
struct HeadResolver<'a> {
    path: &'a [PathItem],
    stretches: Vec<HeadStretch>,
    /// Records that are named without their text, with their tokens.
    handles: Vec<(Seq, u32)>,
    /// The ranges of the path that some stretch shows.
    shown: Vec<Range<usize>>,
}

impl<'a> HeadResolver<'a> {
    const fn new(path: &'a [PathItem]) -> Self {
        Self { path, stretches: Vec::new(), handles: Vec::new(), shown: Vec::new() }
    }

    /// Adds an item that is no checkpoint.
    fn add(&mut self, item: &HeadItem) {
        let one = |seq: Seq| between(self.path, seq, seq);
        match item {
            HeadItem::Range { from, to } => {
                let range = between(self.path, *from, *to);
                if !range.is_empty() {
                    self.shown.push(range.clone());
                    self.stretches.push(HeadStretch::Verbatim(range));
                }
            }
            HeadItem::Cut { seq, head_chars, tail_chars } => {
                let cut = Cut { head: *head_chars, tail: *tail_chars };
                self.shorten(one(*seq), Shortening::Cut(cut));
            }
            HeadItem::Stub { seq, reason, by } => {
                self.shorten(one(*seq), Shortening::Stub(format!("[{reason}: see #{by}]")));
            }
            HeadItem::Handle { seq } => {
                let item = self.path[one(*seq)].first();
                self.handles.extend(item.map(|item| (item.seq, item.tokens)));
            }
            HeadItem::Earlier { seq, head_chars, tail_chars } => {
                self.quote(QuoteTopic::Earlier, one(*seq), head_chars.zip(*tail_chars));
            }
            HeadItem::Pinned { seq, head_chars, tail_chars } => {
                self.quote(QuoteTopic::Pinned, one(*seq), head_chars.zip(*tail_chars));
            }
            HeadItem::Block { topic, text } => {
                self.stretches.push(HeadStretch::Block(topic.clone(), note(topic, &[], text)));
            }
            HeadItem::Checkpoint { .. } => {}
        }
    }

    fn shorten(&mut self, range: Range<usize>, shortening: Shortening) {
        if !range.is_empty() {
            self.stretches.push(HeadStretch::Shortened(range.start, shortening));
            self.shown.push(range);
        }
    }

    fn quote(&mut self, topic: QuoteTopic, range: Range<usize>, chars: Option<(u32, u32)>) {
        if range.is_empty() {
            return;
        }
        let quote = (range.start, chars.map(|(head, tail)| Cut { head, tail }));
        match self.stretches.last_mut() {
            Some(HeadStretch::Quoted(last, quotes)) if *last == topic => quotes.push(quote),
            _ => self.stretches.push(HeadStretch::Quoted(topic, vec![quote])),
        }
        self.shown.push(range);
    }

    /// Lists the records that no stretch shows, and adds a block that names them unless checkpoints stand for them.
    fn list_gaps(&mut self, summarized: usize, omitted: &mut Omitted) {
        let gaps = gaps(self.path, std::mem::take(&mut self.shown), summarized);
        let reason = |gap: &Range<usize>| {
            if gap.end <= summarized { OmitReason::Summarized } else { OmitReason::Budget }
        };
        for gap in &gaps {
            omitted.add_run(&self.path[gap.clone()], reason(gap));
        }
        let in_gaps = gaps.iter().flat_map(|gap| &self.path[gap.clone()]);
        let n_users = in_gaps.filter(|item| item.is_user_message()).count() as u64;
        let unsummarized = gaps.iter().find(|gap| reason(gap) == OmitReason::Budget);
        let first_gap = unsummarized.or(gaps.first().filter(|_| n_users > 0));
        let Some(first_gap) = first_gap else { return };
        let n_more = n_users.saturating_sub(self.handles.len() as u64);
        let next = self.stretches.iter().position(|stretch| match stretch {
            HeadStretch::Verbatim(range) => range.start > first_gap.start,
            HeadStretch::Shortened(at, _) => *at > first_gap.start,
            HeadStretch::Quoted(..) | HeadStretch::Block(..) | HeadStretch::Checkpoint(..) => false,
        });
        let block = HeadStretch::Block("leftOut".to_owned(), left_out(&self.handles, n_more));
        self.stretches.insert(next.unwrap_or(self.stretches.len()), block);
    }
}

/// Returns the ranges of a path that enter a context and are not shown; none of them lies on both sides of `border`.
fn gaps(path: &[PathItem], mut shown: Vec<Range<usize>>, border: usize) -> Vec<Range<usize>> {
    shown.push(border..border);
    shown.sort_by_key(|range| range.start);
    shown.push(path.len()..path.len());
    let mut gaps = Vec::new();
    let mut next = 0;
    for range in shown {
        if next < range.start && path[next..range.start].iter().any(PathItem::enters) {
            gaps.push(next..range.start);
        }
        next = next.max(range.end);
    }
    gaps
}
