//! A head as stretches of a conversation: resolves its references on the path, finds what no stretch shows. Pure.

use std::ops::Range;

use ollm_protocol::content::{Checkpoint, HeadItem, RecordBody};
use ollm_protocol::{CheckpointId, Seq};

use super::assemble::Layout;
use super::cut::{self, Cut};
use super::omitted::{Omitted, Reason};
use super::render::{left_out, note};
use super::units::{PathItem, between};

/// One stretch of a conversation, by indices into the path.
pub(super) enum Step {
    /// Whole records.
    Verbatim(Range<usize>),
    /// A record that is not shown whole.
    Changed(usize, Change),
    /// Records quoted in one block.
    Quoted(Topic, Vec<(usize, Option<Cut>)>),
    /// A block that no record stands for, by its topic.
    Text(String, String),
    /// The block of a checkpoint.
    Checkpoint(CheckpointId, String),
}

/// How a record differs from what was recorded.
pub(super) enum Change {
    /// It keeps its beginning and its end.
    Cut(Cut),
    /// Its result is one line.
    Stub(String),
}

impl Change {
    /// Its name.
    pub(super) const fn form(&self) -> &'static str {
        match self {
            Self::Cut(_) => "cut",
            Self::Stub(_) => "stub",
        }
    }

    /// The record as it is shown.
    pub(super) fn apply(&self, seq: Seq, body: &RecordBody) -> RecordBody {
        match self {
            Self::Cut(cut) => cut::apply(seq, body, *cut),
            Self::Stub(line) => cut::stub(body, line),
        }
    }
}

/// What a block of quotes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// Earlier messages of the user.
    Earlier,
    /// What somebody pinned.
    Pinned,
}

impl Topic {
    /// What it makes of a record.
    pub(super) const fn form(self) -> &'static str {
        match self {
            Self::Earlier => "quoted",
            Self::Pinned => "pinned",
        }
    }

    /// The block.
    pub(super) fn block(self, lines: &[String]) -> String {
        let lines = lines.join("\n\n");
        match self {
            Self::Earlier => {
                note("earlier-user-messages", &[("state", "already answered")], &lines)
            }
            Self::Pinned => note("pinned", &[], &lines),
        }
    }
}

/// The stretches in order; what the head does not show goes to `omitted`.
pub(super) fn steps(layout: &Layout<'_>, omitted: &mut Omitted) -> Vec<Step> {
    let Some((head, covered)) = layout.head else {
        return vec![Step::Verbatim(0..layout.path.len())];
    };
    let path = &layout.path[..covered];
    let mut plan = Plan { path, steps: Vec::new(), handles: Vec::new(), shown: Vec::new() };
    let mut summarized = 0;
    for item in head {
        if let HeadItem::Checkpoint { id } = item {
            let found = layout.checkpoints.iter().find(|checkpoint| checkpoint.id == *id);
            let Some(checkpoint) = found else { continue };
            summarized = summarized.max(path.partition_point(|item| item.seq <= checkpoint.to));
            plan.steps.push(Step::Checkpoint(*id, block_of(checkpoint)));
        } else {
            plan.add(item);
        }
    }
    plan.finish(summarized, omitted);
    plan.steps.push(Step::Verbatim(covered..layout.path.len()));
    plan.steps
}

/// A checkpoint as models are sent it.
pub(super) fn block_of(checkpoint: &Checkpoint) -> String {
    let records = format!("#{} to #{}", checkpoint.from, checkpoint.to);
    note("summary", &[("records", &records)], &checkpoint.summary)
}

struct Plan<'a> {
    path: &'a [PathItem],
    steps: Vec<Step>,
    handles: Vec<(Seq, u32)>,
    /// Stretches that some step shows.
    shown: Vec<Range<usize>>,
}

impl Plan<'_> {
    fn add(&mut self, item: &HeadItem) {
        let one = |seq: Seq| between(self.path, seq, seq);
        match item {
            HeadItem::Range { from, to } => {
                let range = between(self.path, *from, *to);
                if !range.is_empty() {
                    self.shown.push(range.clone());
                    self.steps.push(Step::Verbatim(range));
                }
            }
            HeadItem::Cut { seq, head_chars, tail_chars } => {
                let cut = Cut { head: *head_chars, tail: *tail_chars };
                self.change(one(*seq), Change::Cut(cut));
            }
            HeadItem::Stub { seq, reason, by } => {
                self.change(one(*seq), Change::Stub(format!("[{reason}: see #{by}]")));
            }
            HeadItem::Handle { seq } => {
                let item = self.path[one(*seq)].first();
                self.handles.extend(item.map(|item| (item.seq, item.tokens)));
            }
            HeadItem::Earlier { seq, head_chars, tail_chars } => {
                self.quote(Topic::Earlier, one(*seq), (*head_chars, *tail_chars));
            }
            HeadItem::Pinned { seq, head_chars, tail_chars } => {
                self.quote(Topic::Pinned, one(*seq), (*head_chars, *tail_chars));
            }
            HeadItem::Block { topic, text } => {
                self.steps.push(Step::Text(topic.clone(), note(topic, &[], text)));
            }
            HeadItem::Checkpoint { .. } => {}
        }
    }

    fn change(&mut self, range: Range<usize>, change: Change) {
        if !range.is_empty() {
            self.steps.push(Step::Changed(range.start, change));
            self.shown.push(range);
        }
    }

    fn quote(
        &mut self,
        topic: Topic,
        range: Range<usize>,
        (head, tail): (Option<u32>, Option<u32>),
    ) {
        if range.is_empty() {
            return;
        }
        let cut = head.zip(tail).map(|(head, tail)| Cut { head, tail });
        let quote = (range.start, cut);
        match self.steps.last_mut() {
            Some(Step::Quoted(last, quotes)) if *last == topic => quotes.push(quote),
            _ => self.steps.push(Step::Quoted(topic, vec![quote])),
        }
        self.shown.push(range);
    }

    /// Lists what no step shows, and says so in the conversation where no summary does.
    fn finish(&mut self, summarized: usize, omitted: &mut Omitted) {
        let gaps = gaps(self.path, std::mem::take(&mut self.shown), summarized);
        let reason = |gap: &Range<usize>| {
            if gap.end <= summarized { Reason::Summarized } else { Reason::Budget }
        };
        for gap in &gaps {
            omitted.add_run(&self.path[gap.clone()], reason(gap));
        }
        let in_gaps = gaps.iter().flat_map(|gap| &self.path[gap.clone()]);
        let n_users = in_gaps.filter(|item| item.is_user_message()).count() as u64;
        let unsaid = gaps.iter().find(|gap| reason(gap) == Reason::Budget);
        let Some(first) = unsaid.or(gaps.first().filter(|_| n_users > 0)) else { return };
        let n_more = n_users.saturating_sub(self.handles.len() as u64);
        let place = self.steps.iter().position(|step| match step {
            Step::Verbatim(range) => range.start > first.start,
            Step::Changed(at, _) => *at > first.start,
            Step::Quoted(..) | Step::Text(..) | Step::Checkpoint(..) => false,
        });
        let block = Step::Text("leftOut".to_owned(), left_out(&self.handles, n_more));
        self.steps.insert(place.unwrap_or(self.steps.len()), block);
    }
}

/// The stretches of a path that hold something and are not shown; none lies on both sides of `border`.
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
