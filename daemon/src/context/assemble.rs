//! The conversation of a head: resolves the references of the head on the path, renders the records that it shows and
//! those behind it, and lists what each message holds and what is left out.
//!
//! **Invariant**: the same head gives the same messages whether it was just planned or recorded long ago.

use std::mem::discriminant;
use std::ops::Range;

use ollm_protocol::content::{
    Checkpoint, ContextMessage, HeadItem, OmittedItem, Part, RecordBody, Role,
};
use ollm_protocol::{CheckpointId, Seq};

use super::compact::shown_summary;
use super::cut::{self, Cut};
use super::input::BuildInput;
use super::omitted::{OmitReason, Omitted};
use super::path::{Bodies, ContentsError, PathItem, batch_len, between};
use super::render::{Renderer, left_out, note, quote};
use crate::tokens::{Counter, IMAGE_TOKENS};

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
    let checkpoint_tokens = checkpoints.map(|item| item.tokens).sum();
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

/// Returns the block of a checkpoint among all in force, as models are sent it.
pub(super) fn checkpoint_block(checkpoint: &Checkpoint, all: &[Checkpoint]) -> String {
    let records = format!("#{} to #{}", checkpoint.from, checkpoint.to);
    note("summary", &[("records", &records)], &shown_summary(checkpoint, all))
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

const fn is_quote(item: &HeadItem) -> bool {
    matches!(item, HeadItem::Earlier { .. } | HeadItem::Pinned { .. })
}

const fn is_turn(item: &HeadItem) -> bool {
    matches!(item, HeadItem::Range { .. } | HeadItem::Cut { .. } | HeadItem::Stub { .. })
}

/// Returns a shorter form of a record.
type Shorten<'f> = dyn Fn(Seq, &RecordBody) -> RecordBody + 'f;

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
        let covered = &input.path[..head.n_covered];
        let mut left_out = self.left_out();
        let items: Vec<(&HeadItem, Range<usize>)> = head
            .items
            .iter()
            .map(|item| (item, shown_by(covered, item)))
            .filter(|(item, range)| {
                let is_block = matches!(item, HeadItem::Block { .. } | HeadItem::Checkpoint { .. });
                is_block || !range.is_empty()
            })
            .collect();
        let is_one_block = |(one, _): &(&HeadItem, _), (next, _): &(&HeadItem, _)| {
            is_quote(one) && discriminant(*one) == discriminant(*next)
        };
        for group in items.chunk_by(is_one_block) {
            let (item, range) = &group[0];
            let is_behind_gap = |(gap, _): &mut (usize, String)| range.start > *gap;
            if is_turn(item)
                && let Some((_, text)) = left_out.take_if(is_behind_gap)
            {
                self.block(ItemSource::Block("leftOut".to_owned()), &text);
            }
            if is_quote(item) {
                self.quotes(group)?
            } else {
                self.item(item, range)?
            }
            if self.is_over {
                return Ok(());
            }
        }
        if let Some((_, text)) = left_out {
            self.block(ItemSource::Block("leftOut".to_owned()), &text);
        }
        self.verbatim(head.n_covered..input.path.len())
    }

    /// Renders a head item that is no quote.
    fn item(&mut self, item: &HeadItem, range: &Range<usize>) -> Result<(), ContentsError> {
        match item {
            HeadItem::Range { .. } => self.verbatim(range.clone()),
            HeadItem::Cut { head_chars, tail_chars, .. } => {
                let cut = Cut { head: *head_chars, tail: *tail_chars };
                self.shortened(range.start, "cut", &|seq, body| cut::apply(seq, body, cut))
            }
            HeadItem::Stub { reason, by, .. } => {
                let line = format!("[{reason}: see #{by}]");
                self.shortened(range.start, "stub", &|_, body| cut::stub(body, &line))
            }
            HeadItem::Block { topic, text } => {
                self.block(ItemSource::Block(topic.clone()), &note(topic, &[], text));
                Ok(())
            }
            HeadItem::Checkpoint { id } => {
                if let Some(checkpoint) = self.checkpoint(*id) {
                    let text = checkpoint_block(checkpoint, self.layout.input.checkpoints);
                    self.block(ItemSource::Checkpoint(*id), &text);
                }
                Ok(())
            }
            HeadItem::Handle { .. } | HeadItem::Earlier { .. } | HeadItem::Pinned { .. } => Ok(()),
        }
    }

    /// Lists the covered records that a head does not show. Returns the block that names them, unless checkpoints stand
    /// for all of them, with the index of the first of them.
    fn left_out(&mut self) -> Option<(usize, String)> {
        let Layout { input, head, .. } = self.layout;
        let path = &input.path[..head.n_covered];
        let (mut summarized, mut handles, mut shown) = (0, Vec::new(), Vec::new());
        for item in head.items {
            match item {
                HeadItem::Checkpoint { id } => {
                    let to = self.checkpoint(*id).map(|checkpoint| checkpoint.to);
                    let end = path.partition_point(|item| Some(item.seq) <= to);
                    summarized = summarized.max(end);
                }
                HeadItem::Handle { seq } => {
                    let item = path[between(path, *seq, *seq)].first();
                    handles.extend(item.map(|item| (item.seq, item.tokens)));
                }
                item => shown.push(shown_by(path, item)),
            }
        }
        shown.retain(|range| !range.is_empty());
        let gaps = gaps(path, shown, summarized);
        let is_summarized = |gap: &&Range<usize>| gap.end <= summarized;
        for gap in &gaps {
            let reason =
                if is_summarized(&gap) { OmitReason::Summarized } else { OmitReason::Budget };
            self.omitted.add_run(&path[gap.clone()], reason);
        }
        let in_gaps = gaps.iter().flat_map(|gap| &path[gap.clone()]);
        let n_users = in_gaps.filter(|item| item.is_user_message()).count() as u64;
        let unsummarized = gaps.iter().find(|gap| !is_summarized(gap));
        let first = unsummarized.or(gaps.first().filter(|_| n_users > 0))?;
        let n_more = n_users.saturating_sub(handles.len() as u64);
        Some((first.start, left_out(&handles, n_more)))
    }

    /// Renders whole records.
    fn verbatim(&mut self, range: Range<usize>) -> Result<(), ContentsError> {
        let mut later = &self.layout.input.path[range];
        while !later.is_empty() {
            let now;
            (now, later) = later.split_at(batch_len(later.iter(), self.layout.limit));
            self.bodies.load(now)?;
            for item in now.iter().filter(|item| item.enters()) {
                self.record(item, "whole", None);
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
            let Some(body) = self.bodies.get(item.seq) else {
                self.omitted.add(item, u64::from(item.tokens), OmitReason::Damaged);
                continue;
            };
            let kept = cut.map(|cut| cut::apply(item.seq, body, cut));
            let text = quote(item, kept.as_ref().unwrap_or(body));
            quoted.push((*item, u64::from(counter.count_text(&text))));
            texts.push(text);
            self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
            let lost = self.lost_images(body, true);
            list_omitted_parts(&mut self.omitted, counter, item, body, kept.as_ref());
            list_lost_images(&mut self.omitted, item, lost);
        }
        let (tag, form, attributes): (_, _, &[_]) = match is_pinned {
            true => ("pinned", "pinned", &[]),
            false => ("earlier-user-messages", "quoted", &[("state", "already answered")]),
        };
        if !texts.is_empty() {
            self.renderer.user(&note(tag, attributes, &texts.join("\n\n")), Vec::new());
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
        let kept = shorten.map(|shorten| shorten(item.seq, body));
        let lost = self.lost_images(body, kept.is_some());
        let rendered = self.renderer.record(item, kept.as_ref().unwrap_or(body));
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
