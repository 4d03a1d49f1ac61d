//! The conversation of a head: resolves the references of the head on the path, renders the records that it shows and
//! those behind it, and lists what each message holds and what is left out.
//!
//! **Invariant**: the same head gives the same messages whether it was just planned or recorded long ago.

use std::borrow::Cow;
use std::mem::discriminant;
use std::ops::Range;

use ollm_protocol::content::{
    Checkpoint, ContextMessage, EARLIER_REQUESTS_BLOCK, HeadItem, MEMORY_BLOCK, OPENING_END,
    OmittedItem, Part, RecordBody, Role,
};
use ollm_protocol::{CheckpointId, Seq};

use super::compact::shown_summary;
use super::cut::{self, Cut};
use super::input::BuildInput;
use super::omitted::{OmitReason, Omitted};
use super::path::{Bodies, ContentsError, PathItem, batch_len, between, is_answered, n_turns};
use super::render::{Renderer, left_out, note, quote, quoted_text};
use crate::tokens::{Counter, IMAGE_TOKENS};

/// The form of a record that is shown whole.
pub(super) const WHOLE: &str = "whole";
/// The end of the system message of a head with an opening.
pub(super) const NOTICE: &str = "\
Older parts of this conversation are not shown in full. The first user message begins with notes: `<memory>` is what \
happened so far, `<facts>` are things the user said that still hold, `<earlier_requests>` are earlier messages of the \
user. They are done: do not answer them again, but follow every rule and use every fact in them. Answer only the \
newest message.";

/// A frozen head. The empty head shows everything verbatim.
#[derive(Clone, Copy, Default)]
pub(super) struct Head<'a> {
    pub items: &'a [HeadItem],
    /// The number of records at the beginning of the path that the head stands for.
    pub n_covered: usize,
}

/// A conversation to render.
pub(super) struct Layout<'a> {
    /// The input with the path and the checkpoints that the head refers to.
    pub input: &'a BuildInput<'a>,
    pub head: Head<'a>,
    /// Whether a system message stands before the conversation.
    pub has_system: bool,
    /// Tokens beyond which rendering stops.
    pub limit: u64,
}

/// A conversation that fits.
pub(super) struct Conversation {
    /// The messages without the system message.
    pub messages: Vec<ContextMessage>,
    /// Tokens of each message.
    pub tokens: Vec<u32>,
    /// Tokens of the conversation before the pending message.
    pub recorded_tokens: u64,
    /// Tokens of the checkpoints in it.
    pub checkpoint_tokens: u64,
    pub omitted: Vec<OmittedItem>,
    pub items: Vec<ShownItem>,
    /// Message records that are shown, whole or cut.
    pub n_included: u64,
    /// Message records that a checkpoint stands for.
    pub n_summarized: u64,
}

impl Conversation {
    /// Returns the tokens of all messages.
    pub(super) fn total(&self) -> u64 {
        self.tokens.iter().map(|tokens| u64::from(*tokens)).sum()
    }

    /// Whether a record is left out for want of room.
    pub(super) fn is_left_out(&self, seq: Seq) -> bool {
        let reasons = [OmitReason::Budget.as_str(), OmitReason::Summarized.as_str()];
        self.omitted.iter().any(|item| {
            let range = item.seq..=item.through_seq.unwrap_or(item.seq);
            range.contains(&seq) && reasons.contains(&item.reason.as_str())
        })
    }

    /// Returns the tokens from a record on, without the texts before it in the same message.
    pub(super) fn tokens_since(&self, first: Seq) -> u64 {
        let is_later = |item: &&ShownItem| matches!(item.source, ItemSource::Record(record) if record.seq >= first);
        let Some(message) = self.items.iter().find(is_later).map(|item| item.message) else {
            return 0;
        };
        let in_message = self.items.iter().filter(is_later).filter(|item| item.message == message);
        let begun: u64 = in_message.map(|item| item.tokens).sum();
        let later = self.tokens.iter().skip(message + 1);
        begun + later.map(|tokens| u64::from(*tokens)).sum::<u64>()
    }
}

/// An item that a conversation shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownItem {
    pub source: ItemSource,
    /// The form: `whole`, `cut`, `stub`, `quoted` or `pinned`.
    pub form: &'static str,
    pub tokens: u64,
    /// The index of its message, the system message not counted.
    pub message: usize,
}

/// The origin of a shown item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ItemSource {
    Record(PathItem),
    Checkpoint(CheckpointId),
    /// A block that no record stands for, by its topic.
    Block(String),
}

/// Renders a conversation; returns `None` if it has more than `limit` tokens.
pub(super) fn assemble(
    layout: &Layout<'_>,
    bodies: &mut Bodies<'_>,
) -> Result<Option<Conversation>, ContentsError> {
    let mut assembler = Assembler {
        layout,
        bodies,
        renderer: Renderer::new(
            &layout.input.counter,
            layout.input.reads_images,
            layout.has_system,
        ),
        is_over: false,
        omitted: Omitted::default(),
        n_included: 0,
        items: Vec::new(),
    };
    assembler.head()?;
    if assembler.is_over {
        return Ok(None);
    }
    let recorded_tokens = assembler.renderer.tokens();
    if let Some(text) = layout.input.pending {
        assembler.block(ItemSource::Block("pending".to_owned()), text);
    }
    let Assembler { renderer, mut omitted, n_included, items, .. } = assembler;
    let checkpoints = items.iter().filter(|item| matches!(item.source, ItemSource::Checkpoint(_)));
    let is_memory = |item: &&ShownItem| matches!(&item.source, ItemSource::Block(topic) if topic == MEMORY_BLOCK);
    let memory = items.iter().filter(is_memory);
    let checkpoint_tokens = checkpoints.chain(memory).map(|item| item.tokens).sum();
    let (messages, tokens) = renderer.finish(&mut omitted);
    let conversation = Conversation {
        messages,
        tokens,
        recorded_tokens,
        checkpoint_tokens,
        n_summarized: omitted.n_summarized(),
        omitted: omitted.into_items(),
        n_included,
        items,
    };
    Ok((conversation.total() <= layout.limit).then_some(conversation))
}

/// Returns the block of the checkpoints `shown`, as models are sent it; `all` are those in force.
pub(super) fn memory_block<'c>(
    shown: impl Iterator<Item = &'c Checkpoint>,
    all: &[Checkpoint],
) -> String {
    let summaries: Vec<String> = shown.map(|one| shown_summary(one, all)).collect();
    note(MEMORY_BLOCK, &[], &summaries.join("\n\n"))
}

/// Returns whether a head begins with notes, which the system message explains.
pub(super) fn has_opening(head: &[HeadItem]) -> bool {
    head.iter().any(is_opening)
}

/// Returns the records that a head item shows, as indices into the path.
fn shown_by(path: &[PathItem], item: &HeadItem) -> Range<usize> {
    match item {
        HeadItem::Range { from, to } => between(path, *from, *to),
        HeadItem::Cut { seq, .. }
        | HeadItem::Stub { seq, .. }
        | HeadItem::Earlier { seq, .. }
        | HeadItem::Pinned { seq, .. } => between(path, *seq, *seq),
        HeadItem::Handle { .. } | HeadItem::Block { .. } | HeadItem::Checkpoint { .. } => 0..0,
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

/// Returns the line in place of a tool result.
fn stub_line(reason: &str) -> &'static str {
    match reason {
        "duplicate" => "[same result below]",
        _ => "[read again below]",
    }
}

/// Whether an item stands before the turns.
const fn is_opening(item: &HeadItem) -> bool {
    matches!(item, HeadItem::Checkpoint { .. } | HeadItem::Block { .. }) || is_quote(item)
}

const fn is_quote(item: &HeadItem) -> bool {
    matches!(item, HeadItem::Earlier { .. } | HeadItem::Pinned { .. })
}

/// Whether two items share one block.
fn is_one_block(one: &HeadItem, next: &HeadItem) -> bool {
    let joins = is_quote(one) || matches!(one, HeadItem::Checkpoint { .. });
    joins && discriminant(one) == discriminant(next)
}

fn is_memory(item: &HeadItem) -> bool {
    matches!(item, HeadItem::Block { topic, .. } if topic == MEMORY_BLOCK)
}

/// Returns a shorter form of a record.
type Shorten<'f> = dyn Fn(&RecordBody) -> RecordBody + 'f;

struct Assembler<'a, 'b, 's> {
    layout: &'a Layout<'a>,
    bodies: &'b mut Bodies<'s>,
    renderer: Renderer<'a>,
    /// Whether the conversation is too large. Nothing more is rendered then.
    is_over: bool,
    omitted: Omitted,
    n_included: u64,
    items: Vec<ShownItem>,
}

impl<'a> Assembler<'a, '_, '_> {
    fn checkpoint(&self, id: CheckpointId) -> Option<&'a Checkpoint> {
        self.layout.input.checkpoints.iter().find(|checkpoint| checkpoint.id == id)
    }

    /// Renders the head and every record behind it, until the conversation is too large.
    fn head(&mut self) -> Result<(), ContentsError> {
        let Layout { input, head, .. } = self.layout;
        let path = input.path;
        let covered = &path[..head.n_covered];
        let mut gaps = self.list_gaps().into_iter().peekable();
        let items: Vec<(&HeadItem, Range<usize>)> = head
            .items
            .iter()
            .map(|item| (item, shown_by(covered, item)))
            .filter(|(item, range)| {
                let is_block = matches!(item, HeadItem::Block { .. } | HeadItem::Checkpoint { .. });
                is_block || !range.is_empty()
            })
            .collect();
        let mut has_opening = false;
        let mut has_turn = false;
        for group in items.chunk_by(|(one, _), (next, _)| is_one_block(one, next)) {
            let (item, range) = &group[0];
            if is_opening(item) {
                has_opening = true;
                self.opening(group)?;
            } else {
                if has_opening && !has_turn {
                    self.end_opening();
                }
                let mut n_missing = 0;
                while let Some(gap) = gaps.next_if(|gap| gap.end <= range.start) {
                    n_missing += n_turns(&path[gap]);
                }
                // The notes replace the records that are missing before the turns.
                if n_missing > 0 && (has_turn || !has_opening) {
                    self.block(ItemSource::Block("leftOut".to_owned()), &left_out(n_missing));
                }
                has_turn = true;
                self.item(item, range)?;
            }
            if self.is_over {
                return Ok(());
            }
        }
        if has_opening && !has_turn {
            self.end_opening();
        }
        let n_missing: usize = gaps.map(|gap| n_turns(&path[gap])).sum();
        if n_missing > 0 && (has_turn || !has_opening) {
            self.block(ItemSource::Block("leftOut".to_owned()), &left_out(n_missing));
        }
        self.verbatim(head.n_covered..input.path.len())
    }

    /// Renders a block before the turns.
    fn opening(&mut self, group: &[(&'a HeadItem, Range<usize>)]) -> Result<(), ContentsError> {
        match group[0].0 {
            HeadItem::Checkpoint { .. } => self.memory(group),
            HeadItem::Block { topic, text } => {
                self.block(ItemSource::Block(topic.clone()), &note(topic, &[], text));
            }
            _ => self.quotes(group)?,
        }
        Ok(())
    }

    /// Renders the checkpoints in one block, unless a shorter text stands for them.
    fn memory(&mut self, group: &[(&HeadItem, Range<usize>)]) {
        if self.layout.head.items.iter().any(is_memory) {
            return;
        }
        let ids = group.iter().filter_map(|(item, _)| match item {
            HeadItem::Checkpoint { id } => Some(*id),
            _ => None,
        });
        let checkpoints: Vec<&Checkpoint> = ids.filter_map(|id| self.checkpoint(id)).collect();
        if checkpoints.is_empty() {
            return;
        }
        self.renderer.user(
            &memory_block(checkpoints.iter().copied(), self.layout.input.checkpoints),
            Vec::new(),
        );
        for one in checkpoints {
            let tokens = self.layout.input.counter.count_text(&one.summary);
            self.add_item(ItemSource::Checkpoint(one.id), "whole", u64::from(tokens));
        }
    }

    /// Renders the line between the opening and the turns.
    fn end_opening(&mut self) {
        self.block(ItemSource::Block("openingEnd".to_owned()), OPENING_END);
    }

    /// Renders a turn of a head.
    fn item(&mut self, item: &HeadItem, range: &Range<usize>) -> Result<(), ContentsError> {
        match item {
            HeadItem::Range { .. } => self.verbatim(range.clone()),
            HeadItem::Cut { head_chars, tail_chars, .. } => {
                let cut = Cut { head: *head_chars, tail: *tail_chars };
                self.shortened(range.start, "cut", &|body| cut::apply(body, cut))
            }
            HeadItem::Stub { reason, .. } => {
                let line = stub_line(reason);
                self.shortened(range.start, "stub", &|body| cut::stub(body, line))
            }
            _ => Ok(()),
        }
    }

    /// Lists the covered records that a head does not show, and returns their ranges.
    fn list_gaps(&mut self) -> Vec<Range<usize>> {
        let Layout { input, head, .. } = self.layout;
        let path = &input.path[..head.n_covered];
        let (mut summarized, mut shown) = (0, Vec::new());
        for item in head.items {
            match item {
                HeadItem::Checkpoint { id } => {
                    let to = self.checkpoint(*id).map(|checkpoint| checkpoint.to);
                    let end = path.partition_point(|item| Some(item.seq) <= to);
                    summarized = summarized.max(end);
                }
                item => shown.push(shown_by(path, item)),
            }
        }
        shown.retain(|range| !range.is_empty());
        let gaps = gaps(path, shown, summarized);
        for gap in &gaps {
            let is_summarized = gap.end <= summarized;
            let reason = if is_summarized { OmitReason::Summarized } else { OmitReason::Budget };
            self.omitted.add_run(&path[gap.clone()], reason);
        }
        gaps
    }

    /// Renders whole records.
    fn verbatim(&mut self, range: Range<usize>) -> Result<(), ContentsError> {
        let mut later = &self.layout.input.path[range];
        while !later.is_empty() {
            let now;
            (now, later) = later.split_at(batch_len(later.iter(), self.layout.limit));
            self.bodies.load(now)?;
            for item in now.iter().filter(|item| item.enters()) {
                self.record(item, WHOLE, None);
                if self.is_over {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Renders a record in a shorter form.
    fn shortened(
        &mut self,
        at: usize,
        form: &'static str,
        shorten: &Shorten<'_>,
    ) -> Result<(), ContentsError> {
        let item = &self.layout.input.path[at];
        self.bodies.load(std::slice::from_ref(item))?;
        self.record(item, form, Some(shorten));
        Ok(())
    }

    /// Renders records as quotes in one block of a user turn.
    fn quotes(&mut self, group: &[(&'a HeadItem, Range<usize>)]) -> Result<(), ContentsError> {
        let BuildInput { path, counter, .. } = self.layout.input;
        let covered = &path[..self.layout.head.n_covered];
        let (mut texts, mut quoted) = (Vec::new(), Vec::new());
        let mut is_pinned = false;
        for (item, range) in group {
            let (HeadItem::Earlier { head_chars, tail_chars, .. }
            | HeadItem::Pinned { head_chars, tail_chars, .. }) = item
            else {
                continue;
            };
            is_pinned = matches!(item, HeadItem::Pinned { .. });
            let cut = Cut::of_chars(*head_chars, *tail_chars);
            let item = &path[range.start];
            self.bodies.load(std::slice::from_ref(item))?;
            let is_answered = is_answered(covered, range.start, self.bodies)?;
            let Some(body) = self.bodies.get(item.seq) else {
                self.omitted.add(item, u64::from(item.tokens), OmitReason::Damaged);
                continue;
            };
            let kept = cut.map(|cut| cut::apply(body, cut));
            let shown = kept.as_ref().unwrap_or(body);
            let text = quote(shown, is_answered);
            if matches!(counter.defuse(&quoted_text(shown).concat()), Cow::Owned(_)) {
                self.omitted.add(item, 0, OmitReason::ControlTokens);
            }
            quoted.push((*item, u64::from(counter.count_text(&text))));
            texts.push(text);
            self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
            let lost = self.lost_images(body, true);
            list_omitted_parts(&mut self.omitted, counter, item, body, kept.as_ref());
            list_lost_images(&mut self.omitted, item, lost);
        }
        let (tag, form) = match is_pinned {
            true => ("pinned", "pinned"),
            false => (EARLIER_REQUESTS_BLOCK, "quoted"),
        };
        if !texts.is_empty() {
            self.renderer.user(&note(tag, &[], &texts.join("\n")), Vec::new());
        }
        for (item, tokens) in quoted {
            self.add_item(ItemSource::Record(item), form, tokens);
        }
        Ok(())
    }

    /// Renders a user turn that no record stands for.
    fn block(&mut self, source: ItemSource, text: &str) {
        self.renderer.user(text, Vec::new());
        self.add_item(source, "whole", u64::from(self.layout.input.counter.count_text(text)));
    }

    /// Lists an item of the newest message, and checks whether the conversation may still fit.
    fn add_item(&mut self, source: ItemSource, form: &'static str, tokens: u64) {
        let message = self.renderer.n_messages().saturating_sub(1);
        self.items.push(ShownItem { source, form, tokens, message });
        self.is_over |= self.renderer.is_over(self.layout.limit);
    }

    /// Returns the tokens of the images of a record that are not sent, and the reason; `is_text`: only its text is.
    fn lost_images(&self, body: &RecordBody, is_text: bool) -> Option<(u32, OmitReason)> {
        let RecordBody::Message(message) = body else { return None };
        let images = message.parts.iter().filter(|part| matches!(part, Part::Image { .. }));
        let tokens = u32::try_from(images.count()).unwrap_or(u32::MAX).saturating_mul(IMAGE_TOKENS);
        let is_sent = matches!(message.role, Role::User | Role::Assistant) && !is_text;
        let reason = match self.layout.input.reads_images {
            false => OmitReason::NoVision,
            true if is_sent => return None,
            true => OmitReason::Image,
        };
        (tokens > 0).then_some((tokens, reason))
    }

    /// Renders one loaded record, in a shorter form if there is a function for it.
    fn record(&mut self, item: &PathItem, form: &'static str, shorten: Option<&Shorten<'_>>) {
        let Some(body) = self.bodies.get(item.seq) else {
            self.omitted.add(item, u64::from(item.tokens), OmitReason::Damaged);
            return;
        };
        let counter = &self.layout.input.counter;
        let kept = shorten.map(|shorten| shorten(body));
        let lost = self.lost_images(body, kept.is_some());
        // The blocks before are no records.
        self.renderer.take_defused();
        let rendered = self.renderer.record(item, kept.as_ref().unwrap_or(body));
        if self.renderer.take_defused() {
            self.omitted.add(item, 0, OmitReason::ControlTokens);
        }
        list_omitted_parts(&mut self.omitted, counter, item, body, kept.as_ref());
        let whole_tokens = item.tokens.saturating_sub(lost.map_or(0, |(tokens, _)| tokens));
        match rendered {
            Ok(()) => {
                list_lost_images(&mut self.omitted, item, lost);
                self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
                let tokens = kept.as_ref().map_or(whole_tokens, |kept| counter.count_record(kept));
                self.add_item(ItemSource::Record(*item), form, u64::from(tokens));
            }
            Err(reason) => self.omitted.add(item, u64::from(item.tokens), reason),
        }
    }
}

/// Lists the images of a record that are not sent.
fn list_lost_images(omitted: &mut Omitted, item: &PathItem, lost: Option<(u32, OmitReason)>) {
    if let Some((tokens, reason)) = lost {
        omitted.add(item, u64::from(tokens), reason);
    }
}

/// Lists the parts of a record that are not shown: its thinking, and the text that a shortened record lost.
fn list_omitted_parts(
    omitted: &mut Omitted,
    counter: &Counter,
    item: &PathItem,
    body: &RecordBody,
    kept: Option<&RecordBody>,
) {
    let mut n_images = 0;
    if let RecordBody::Message(message) = body {
        let thinking = counter.count_thinking(message);
        if thinking > 0 {
            omitted.add(item, u64::from(thinking), OmitReason::Thinking);
        }
        n_images = message.parts.iter().filter(|part| matches!(part, Part::Image { .. })).count();
    }
    if let Some(kept) = kept {
        let images = n_images as u64 * u64::from(IMAGE_TOKENS);
        let cut = u64::from(counter.count_record(body))
            .saturating_sub(u64::from(counter.count_record(kept)))
            .saturating_sub(images);
        if cut > 0 {
            omitted.add(item, cut, OmitReason::Cut);
        }
    }
}
