//! A head and what follows it, rendered: resolves references on the path, applies cuts, lists what is left out.
//!
//! **Invariant**: the same head gives the same messages whether it was just planned or recorded long ago.

use std::ops::Range;

use ollm_protocol::Seq;
use ollm_protocol::content::{HeadItem, Part, RecordBody};
use ollm_protocol::methods::context::{ContextMessage, OmittedItem};

use super::contents::{Bodies, ContentsError, batch};
use super::cut::{self, Cut};
use super::omitted::{Omitted, Reason};
use super::render::{Renderer, Shown, left_out};
use super::units::{PathItem, between};
use crate::tokens::{Counter, IMAGE_TOKENS};

/// What a conversation is made of.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    /// The path from the root to the active leaf.
    pub path: &'a [PathItem],
    /// The frozen head and the number of records of the path that it covers; `None`: everything verbatim.
    pub head: Option<(&'a [HeadItem], usize)>,
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
    /// What is left out.
    pub omitted: Vec<OmittedItem>,
    /// Message records that are included, whole or cut.
    pub n_included: u64,
}

impl Conversation {
    /// Tokens of all messages.
    pub(super) fn total(&self) -> u64 {
        self.tokens.iter().map(|tokens| u64::from(*tokens)).sum()
    }
}

/// One stretch of a conversation, by indices into the path.
enum Step {
    Verbatim(Range<usize>),
    Cut(usize, Cut),
    LeftOut(String),
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
    };
    for step in steps(layout, writer.omitted) {
        let fits = match step {
            Step::Verbatim(range) => writer.verbatim(range, bodies)?,
            Step::Cut(at, cut) => writer.cut(at, cut, bodies)?,
            Step::LeftOut(text) => {
                writer.renderer.user(&text, Vec::new());
                true
            }
        };
        if !fits {
            return Ok(None);
        }
    }
    let recorded_tokens = writer.renderer.tokens();
    if let Some(text) = layout.pending {
        writer.renderer.user(text, Vec::new());
    }
    let (renderer, n_included) = (writer.renderer, writer.n_included);
    let (messages, tokens) = renderer.finish(writer.omitted);
    let conversation = Conversation {
        messages,
        tokens,
        recorded_tokens,
        omitted: omitted.into_items(),
        n_included,
    };
    Ok((conversation.total() <= layout.limit).then_some(conversation))
}

/// The stretches in order; what the head does not show goes to `omitted`.
fn steps(layout: &Layout<'_>, omitted: &mut Omitted) -> Vec<Step> {
    let Some((head, covered)) = layout.head else {
        return vec![Step::Verbatim(0..layout.path.len())];
    };
    let path = &layout.path[..covered];
    let mut steps = Vec::new();
    let mut handles = Vec::new();
    let mut shown: Vec<Range<usize>> = Vec::new();
    for item in head {
        let (range, cut) = match item {
            HeadItem::Range { from, to } => (between(path, *from, *to), None),
            HeadItem::Cut { seq, head_chars, tail_chars } => {
                (between(path, *seq, *seq), Some(Cut { head: *head_chars, tail: *tail_chars }))
            }
            HeadItem::Handle { seq } => {
                handles.extend(path[between(path, *seq, *seq)].iter().map(handle));
                continue;
            }
        };
        if range.is_empty() {
            continue;
        }
        shown.push(range.clone());
        steps.push(match cut {
            Some(cut) => Step::Cut(range.start, cut),
            None => Step::Verbatim(range),
        });
    }
    let gaps = gaps(path, shown);
    for gap in &gaps {
        omitted.add_run(&path[gap.clone()], Reason::Budget);
    }
    if let Some(first) = gaps.first() {
        let n_users =
            gaps.iter().flat_map(|gap| &path[gap.clone()]).filter(|i| i.is_user_message());
        let n_more = (n_users.count() as u64).saturating_sub(handles.len() as u64);
        let place = steps.iter().position(|step| match step {
            Step::Verbatim(range) => range.start > first.start,
            Step::Cut(at, _) => *at > first.start,
            Step::LeftOut(_) => false,
        });
        steps.insert(place.unwrap_or(steps.len()), Step::LeftOut(left_out(&handles, n_more)));
    }
    steps.push(Step::Verbatim(covered..layout.path.len()));
    steps
}

/// The number and the size of a record that is not shown.
fn handle(item: &PathItem) -> (Seq, u32) {
    (item.seq, item.tokens)
}

/// The stretches of a path that hold something and are not shown.
fn gaps(path: &[PathItem], mut shown: Vec<Range<usize>>) -> Vec<Range<usize>> {
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

struct Writer<'a> {
    layout: &'a Layout<'a>,
    renderer: Renderer<'a>,
    omitted: &'a mut Omitted,
    n_included: u64,
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

    /// Renders one record cut; false when the conversation has become too large.
    fn cut(&mut self, at: usize, cut: Cut, bodies: &mut Bodies<'_>) -> Result<bool, ContentsError> {
        let item = &self.layout.path[at];
        bodies.load(std::slice::from_ref(item))?;
        self.one(item, bodies.get(item.seq), Some(cut));
        Ok(!self.renderer.is_over(self.layout.limit))
    }

    fn one(&mut self, item: &PathItem, body: Option<&RecordBody>, cut: Option<Cut>) {
        let Some(body) = body else {
            self.omitted.add(item, u64::from(item.tokens), Reason::Damaged);
            return;
        };
        let kept = cut.map(|cut| cut::apply(item.seq, body, cut));
        let shown = self.renderer.record(item, kept.as_ref().unwrap_or(body));
        self.list_parts(item, body, kept.as_ref());
        match shown {
            Shown::Yes if matches!(body, RecordBody::Message(_)) => self.n_included += 1,
            Shown::Yes => {}
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
