//! The conversation of a layout: reads the contents of its stretches, renders them, and lists what each message holds
//! and what is left out.
//!
//! **Invariant**: the same head gives the same messages whether it was just planned or recorded long ago.

use std::ops::Range;

use ollm_protocol::CheckpointId;
use ollm_protocol::content::{ContextMessage, OmittedItem, Part, RecordBody};

use super::cut::{self, Cut};
use super::error::ContentsError;
use super::layout::{HeadStretch, Layout, QuoteTopic, Shortening};
use super::omitted::{OmitReason, Omitted};
use super::path::{Bodies, PathItem, batch_len};
use super::render::{Renderer, quote};
use crate::tokens::{Counter, IMAGE_TOKENS};

/// How a layout is rendered.
#[derive(Clone, Copy)]
pub(super) struct RenderOptions<'a> {
    /// A user message that will follow and is not recorded.
    pub pending: Option<&'a str>,
    pub counter: &'a Counter,
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

/// One thing that a conversation holds.
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
    options: &RenderOptions<'_>,
    bodies: &mut Bodies<'_>,
) -> Result<Option<Conversation>, ContentsError> {
    let mut omitted = Omitted::default();
    let stretches = layout.stretches(&mut omitted);
    let mut assembler = Assembler {
        path: layout.path,
        options,
        bodies,
        renderer: Renderer::new(options.counter, options.has_system),
        omitted,
        n_included: 0,
        items: Vec::new(),
    };
    for stretch in stretches {
        match stretch {
            HeadStretch::Verbatim(range) => assembler.verbatim(range)?,
            HeadStretch::Shortened(at, shortening) => assembler.shortened(at, &shortening)?,
            HeadStretch::Quoted(topic, quotes) => assembler.quoted(topic, &quotes)?,
            HeadStretch::Block(topic, text) => assembler.block(ItemSource::Block(topic), &text),
            HeadStretch::Checkpoint(id, text) => assembler.block(ItemSource::Checkpoint(id), &text),
        }
        if assembler.is_over() {
            return Ok(None);
        }
    }
    let recorded_tokens = assembler.renderer.tokens();
    if let Some(text) = options.pending {
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
    Ok((conversation.total() <= options.limit).then_some(conversation))
}

struct Assembler<'a, 'b, 's> {
    path: &'a [PathItem],
    options: &'a RenderOptions<'a>,
    bodies: &'b mut Bodies<'s>,
    renderer: Renderer<'a>,
    omitted: Omitted,
    n_included: u64,
    items: Vec<ShownItem>,
}

impl Assembler<'_, '_, '_> {
    fn is_over(&mut self) -> bool {
        self.renderer.is_over(self.options.limit)
    }

    /// Renders whole records, until the conversation is too large.
    fn verbatim(&mut self, range: Range<usize>) -> Result<(), ContentsError> {
        let mut later = &self.path[range];
        while !later.is_empty() {
            let now;
            (now, later) = later.split_at(batch_len(later.iter(), self.options.limit));
            self.bodies.load(now)?;
            for item in now.iter().filter(|item| item.enters()) {
                self.record(item, None);
                if self.is_over() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn shortened(&mut self, at: usize, shortening: &Shortening) -> Result<(), ContentsError> {
        let item = &self.path[at];
        self.bodies.load(std::slice::from_ref(item))?;
        self.record(item, Some(shortening));
        Ok(())
    }

    /// Renders records as quotes in one block of a user turn.
    fn quoted(
        &mut self,
        topic: QuoteTopic,
        quotes: &[(usize, Option<Cut>)],
    ) -> Result<(), ContentsError> {
        let (mut texts, mut quoted) = (Vec::new(), Vec::new());
        for (at, cut) in quotes {
            let item = &self.path[*at];
            self.bodies.load(std::slice::from_ref(item))?;
            let Some(body) = self.bodies.get(item.seq) else {
                self.omitted.add(item, u64::from(item.tokens), OmitReason::Damaged);
                continue;
            };
            let kept = cut.map(|cut| cut::apply(item.seq, body, cut));
            let text = quote(item, kept.as_ref().unwrap_or(body));
            quoted.push((*item, u64::from(self.options.counter.count_text(&text))));
            texts.push(text);
            self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
            list_omitted_parts(&mut self.omitted, self.options.counter, item, body, kept.as_ref());
        }
        if !texts.is_empty() {
            self.renderer.user(&topic.block(&texts), Vec::new());
        }
        for (item, tokens) in quoted {
            self.add_item(ItemSource::Record(item), topic.form(), tokens);
        }
        Ok(())
    }

    /// Renders a user turn that no record stands for.
    fn block(&mut self, source: ItemSource, text: &str) {
        self.renderer.user(text, Vec::new());
        self.add_item(source, "whole", u64::from(self.options.counter.count_text(text)));
    }

    /// Lists an item of the newest message.
    fn add_item(&mut self, source: ItemSource, form: &'static str, tokens: u64) {
        let message = self.renderer.n_messages().saturating_sub(1);
        self.items.push(ShownItem { source, form, tokens, message });
    }

    /// Renders one loaded record.
    fn record(&mut self, item: &PathItem, shortening: Option<&Shortening>) {
        let Some(body) = self.bodies.get(item.seq) else {
            self.omitted.add(item, u64::from(item.tokens), OmitReason::Damaged);
            return;
        };
        let kept = shortening.map(|shortening| shortening.apply(item.seq, body));
        let counter = self.options.counter;
        let rendered = self.renderer.record(item, kept.as_ref().unwrap_or(body));
        list_omitted_parts(&mut self.omitted, counter, item, body, kept.as_ref());
        match rendered {
            Ok(()) => {
                self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
                let tokens = kept.as_ref().map_or(item.tokens, |kept| counter.count_record(kept));
                let form = shortening.map_or("whole", Shortening::form);
                self.add_item(ItemSource::Record(*item), form, u64::from(tokens));
            }
            Err(reason) => self.omitted.add(item, u64::from(item.tokens), reason),
        }
    }
}

/// Lists the parts of a record that are not shown: its thinking, and the text and images that a shortened record lost.
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
        if images > 0 {
            omitted.add(item, images, OmitReason::Image);
        }
    }
}
