//! A head and what follows it, rendered: resolves references on the path, applies what is changed, lists what is left out.
//!
//! **Invariant**: the same head gives the same messages whether it was just planned or recorded long ago.

use std::ops::Range;

use ollm_protocol::CheckpointId;
use ollm_protocol::content::{Checkpoint, ContextMessage, HeadItem, OmittedItem, Part, RecordBody};

use super::contents::{Bodies, ContentsError, batch};
use super::cut::{self, Cut};
use super::omitted::{Omitted, Reason};
use super::render::{Renderer, Shown, quote};
use super::steps::{Change, Step, Topic, steps};
use super::units::PathItem;
use crate::tokens::{Counter, IMAGE_TOKENS};

/// What a conversation is made of.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    /// The path from the root to the active leaf.
    pub path: &'a [PathItem],
    /// The frozen head and the number of records of the path that it covers; `None`: everything verbatim.
    pub head: Option<(&'a [HeadItem], usize)>,
    /// The checkpoints that the head may name.
    pub checkpoints: &'a [Checkpoint],
    /// A user message that will follow and is not recorded.
    pub pending: Option<&'a str>,
    /// Who counts.
    pub counter: &'a Counter,
    /// A system message stands before the conversation.
    pub has_system: bool,
    /// Tokens beyond which rendering stops.
    pub limit: u64,
}

/// A conversation that fits.
pub(super) struct Conversation {
    /// The messages, without the system message.
    pub messages: Vec<ContextMessage>,
    /// Tokens of each.
    pub tokens: Vec<u32>,
    /// Tokens of the conversation before the pending message.
    pub recorded_tokens: u64,
    /// Of those, tokens of the checkpoints.
    pub checkpoint_tokens: u64,
    /// What is left out.
    pub omitted: Vec<OmittedItem>,
    /// Everything that it holds, in order.
    pub pieces: Vec<Piece>,
    /// Message records that are included, whole or cut.
    pub n_included: u64,
    /// Message records that a checkpoint stands for.
    pub n_summarized: u64,
}

impl Conversation {
    /// Tokens of all messages.
    pub(super) fn total(&self) -> u64 {
        self.tokens.iter().map(|tokens| u64::from(*tokens)).sum()
    }
}

/// One thing that a conversation holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// What it is.
    pub what: What,
    /// In which form: `whole`, `cut`, `stub`, `quoted` or `pinned`.
    pub form: &'static str,
    /// Its tokens.
    pub tokens: u64,
    /// The message that it is in, the system message not counted.
    pub message: usize,
}

/// What a conversation can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A record.
    Record(PathItem),
    /// A checkpoint.
    Checkpoint(CheckpointId),
    /// A block that no record stands for, by its topic.
    Block(String),
}

/// Renders a conversation; `None` when it has more than `limit` tokens.
pub(super) fn assemble(
    layout: &Layout<'_>,
    bodies: &mut Bodies<'_>,
) -> Result<Option<Conversation>, ContentsError> {
    let mut omitted = Omitted::default();
    let mut writer = Writer {
        layout,
        renderer: Renderer::new(layout.counter, layout.has_system),
        omitted: &mut omitted,
        n_included: 0,
        pieces: Vec::new(),
    };
    for step in steps(layout, writer.omitted) {
        let fits = match step {
            Step::Verbatim(range) => writer.verbatim(range, bodies)?,
            Step::Changed(at, change) => writer.changed(at, &change, bodies)?,
            Step::Quoted(topic, quotes) => writer.quoted(topic, &quotes, bodies)?,
            Step::Text(topic, text) => writer.text(What::Block(topic), &text),
            Step::Checkpoint(id, text) => writer.text(What::Checkpoint(id), &text),
        };
        if !fits {
            return Ok(None);
        }
    }
    let recorded_tokens = writer.renderer.tokens();
    if let Some(text) = layout.pending {
        writer.text(What::Block("pending".to_owned()), text);
    }
    let Writer { renderer, omitted: left_out, n_included, pieces, .. } = writer;
    let is_checkpoint = |piece: &&Piece| matches!(piece.what, What::Checkpoint(_));
    let checkpoint_tokens = pieces.iter().filter(is_checkpoint).map(|piece| piece.tokens).sum();
    let (messages, tokens) = renderer.finish(left_out);
    let conversation = Conversation {
        messages,
        tokens,
        recorded_tokens,
        checkpoint_tokens,
        n_summarized: omitted.n_summarized(),
        omitted: omitted.into_items(),
        n_included,
        pieces,
    };
    Ok((conversation.total() <= layout.limit).then_some(conversation))
}

struct Writer<'a> {
    layout: &'a Layout<'a>,
    renderer: Renderer<'a>,
    omitted: &'a mut Omitted,
    n_included: u64,
    pieces: Vec<Piece>,
}

impl Writer<'_> {
    /// Renders whole records; false when the conversation has become too large.
    fn verbatim(
        &mut self,
        range: Range<usize>,
        bodies: &mut Bodies<'_>,
    ) -> Result<bool, ContentsError> {
        let mut rest = &self.layout.path[range];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch(rest.iter(), self.layout.limit));
            bodies.load(now)?;
            for item in now.iter().filter(|item| item.enters()) {
                self.one(item, bodies.get(item.seq), None);
                if self.renderer.is_over(self.layout.limit) {
                    return Ok(false);
                }
            }
            rest = later;
        }
        Ok(true)
    }

    /// Renders one record that is not shown whole; false when the conversation has become too large.
    fn changed(
        &mut self,
        at: usize,
        change: &Change,
        bodies: &mut Bodies<'_>,
    ) -> Result<bool, ContentsError> {
        let item = &self.layout.path[at];
        bodies.load(std::slice::from_ref(item))?;
        self.one(item, bodies.get(item.seq), Some(change));
        Ok(!self.renderer.is_over(self.layout.limit))
    }

    /// Renders records as quotes in one block of a user turn.
    fn quoted(
        &mut self,
        topic: Topic,
        quotes: &[(usize, Option<Cut>)],
        bodies: &mut Bodies<'_>,
    ) -> Result<bool, ContentsError> {
        let (mut lines, mut quoted) = (Vec::new(), Vec::new());
        for (at, cut) in quotes {
            let item = &self.layout.path[*at];
            bodies.load(std::slice::from_ref(item))?;
            let Some(body) = bodies.get(item.seq) else {
                self.omitted.add(item, u64::from(item.tokens), Reason::Damaged);
                continue;
            };
            let kept = cut.map(|cut| cut::apply(item.seq, body, cut));
            let line = quote(item, kept.as_ref().unwrap_or(body));
            quoted.push((*item, u64::from(self.layout.counter.count_text(&line))));
            lines.push(line);
            self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
            self.list_parts(item, body, kept.as_ref());
        }
        if !lines.is_empty() {
            self.renderer.user(&topic.block(&lines), Vec::new());
        }
        for (item, tokens) in quoted {
            self.note(What::Record(item), topic.form(), tokens);
        }
        Ok(!self.renderer.is_over(self.layout.limit))
    }

    /// A user turn that no record stands for; false when the conversation has become too large.
    fn text(&mut self, what: What, text: &str) -> bool {
        self.renderer.user(text, Vec::new());
        self.note(what, "whole", u64::from(self.layout.counter.count_text(text)));
        !self.renderer.is_over(self.layout.limit)
    }

    /// Notes what was rendered last.
    fn note(&mut self, what: What, form: &'static str, tokens: u64) {
        let message = self.renderer.n_messages().saturating_sub(1);
        self.pieces.push(Piece { what, form, tokens, message });
    }

    fn one(&mut self, item: &PathItem, body: Option<&RecordBody>, change: Option<&Change>) {
        let Some(body) = body else {
            self.omitted.add(item, u64::from(item.tokens), Reason::Damaged);
            return;
        };
        let kept = change.map(|change| change.apply(item.seq, body));
        let shown = self.renderer.record(item, kept.as_ref().unwrap_or(body));
        self.list_parts(item, body, kept.as_ref());
        match shown {
            Shown::Yes => {
                self.n_included += u64::from(matches!(body, RecordBody::Message(_)));
                let tokens = kept
                    .as_ref()
                    .map_or(item.tokens, |kept| self.layout.counter.count_record(kept));
                let form = change.map_or("whole", Change::form);
                self.note(What::Record(*item), form, u64::from(tokens));
            }
            Shown::No(reason) => self.omitted.add(item, u64::from(item.tokens), reason),
        }
    }

    /// Lists what a record that is shown does not show.
    fn list_parts(&mut self, item: &PathItem, body: &RecordBody, kept: Option<&RecordBody>) {
        let counter = self.layout.counter;
        let mut n_images = 0;
        if let RecordBody::Message(message) = body {
            let thinking = counter.count_thinking(message);
            if thinking > 0 {
                self.omitted.add(item, u64::from(thinking), Reason::Thinking);
            }
            n_images = message.parts.iter().filter(|p| matches!(p, Part::Image { .. })).count();
        }
        if let Some(kept) = kept {
            let images = n_images as u64 * u64::from(IMAGE_TOKENS);
            let left = u64::from(counter.count_record(body))
                .saturating_sub(u64::from(counter.count_record(kept)))
                .saturating_sub(images);
            if left > 0 {
                self.omitted.add(item, left, Reason::Cut);
            }
            if images > 0 {
                self.omitted.add(item, images, Reason::Image);
            }
        }
    }
}
