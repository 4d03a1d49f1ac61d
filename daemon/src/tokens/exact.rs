//! Exact counts with a model's vocabulary, and with its template where it is known.
//!
//! Must not know how texts are estimated.
//!
//! **Invariant**: for a conversation that the template covers, the counts of the head and of the messages add up to
//! the engine's count of the whole prompt.

use std::borrow::Cow;
use std::sync::Arc;

use hashlink::LruCache;
use ollm_protocol::content::{ContextMessage, Role};
use parking_lot::Mutex;

use super::doubt::{Doubts, MessageShape};
use super::estimate::MESSAGE_OVERHEAD_TOKENS;
use super::special;
use super::template::{Neighbor, PromptChunk, Template};
use super::tokenizer::Tokenizer;

/// Shorter texts are counted faster than they are hashed and looked up.
const MIN_CACHED_BYTES: usize = 256;
/// Maximum number of cached counts; each takes about 100 bytes.
const MAX_CACHED_COUNTS: usize = 1 << 14;

/// A tokenizer that caches the counts of long texts, because every build counts the same messages again.
///
/// **Source**: for 131 messages of 2,000 bytes, counting takes 1.6 ms (byte-level) to 3.6 ms (SentencePiece), and hashing
/// takes 0.2 ms.
#[derive(Debug)]
pub(crate) struct CachedTokenizer {
    tokenizer: Tokenizer,
    /// The counts by hash of the text, and whether it was counted as a whole prompt; locked only for one lookup or
    /// insertion.
    counts: Mutex<LruCache<(bool, [u8; 32]), u32>>,
}

impl CachedTokenizer {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, counts: Mutex::new(LruCache::new(MAX_CACHED_COUNTS)) }
    }

    pub(crate) const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Counts the tokens of a whole prompt as the engine does.
    pub(crate) fn count_prompt(&self, prompt: &str) -> u32 {
        self.cached(prompt, true, || self.tokenizer.count_prompt(prompt))
    }

    fn count(&self, text: &str) -> u32 {
        self.cached(text, false, || self.tokenizer.count(text))
    }

    fn cached(&self, text: &str, is_prompt: bool, count: impl Fn() -> u32) -> u32 {
        if text.len() < MIN_CACHED_BYTES {
            return count();
        }
        let key = (is_prompt, *blake3::hash(text.as_bytes()).as_bytes());
        if let Some(cached) = self.counts.lock().get(&key) {
            return *cached;
        }
        let tokens = count();
        self.counts.lock().insert(key, tokens);
        tokens
    }
}

/// Counts as one model does, with one set of tools.
#[derive(Debug)]
pub(crate) struct ExactCounter {
    pub tokenizer: Arc<CachedTokenizer>,
    /// The tokenizers of the other engines that the server may use.
    pub others: Vec<Arc<CachedTokenizer>>,
    /// The template without tools, if it is known.
    pub without_tools: Option<Arc<Template>>,
    /// The template with the tools of the request, if it is known; without tools the same as `without_tools`.
    pub with_tools: Option<Arc<Template>>,
    /// The shapes of messages whose counts were found wrong.
    pub doubts: Arc<Doubts>,
    /// Whether the server said that the model is still the one of the vocabulary and the templates.
    pub is_checked: bool,
}

/// The reason why the count of a prompt differs from the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server renders messages of these shapes differently.
    Rendered(Vec<MessageShape>),
    /// The server renders the prompt as expected, and finds other tokens in it. These shapes may be the reason.
    Tokenized(Vec<MessageShape>),
}

impl Fault {
    pub(crate) fn shapes(&self) -> &[MessageShape] {
        match self {
            Self::Rendered(shapes) | Self::Tokenized(shapes) => shapes,
        }
    }
}

impl ExactCounter {
    pub(super) fn identity(&self) -> Arc<str> {
        self.tokenizer.tokenizer.identity()
    }

    pub(super) const fn has_template(&self) -> bool {
        self.with_tools.is_some() && self.without_tools.is_some()
    }

    /// Returns whether the template covers every message of a conversation.
    fn covers(&self, messages: &[ContextMessage]) -> bool {
        self.with_tools.as_ref().is_some_and(|template| template.chunks(messages).is_some())
    }

    /// Returns the prompt as the template writes it, if it covers the conversation.
    pub(super) fn prompt(&self, messages: &[ContextMessage]) -> Option<String> {
        let chunks = self.with_tools.as_ref()?.chunks(messages)?;
        Some(chunks.into_iter().map(|chunk| chunk.text).collect())
    }

    /// Returns the shapes of messages.
    pub(super) fn shapes(&self, messages: &[ContextMessage]) -> Vec<MessageShape> {
        let tokenizer = &self.tokenizer.tokenizer;
        messages.iter().map(|message| MessageShape::of(message, tokenizer)).collect()
    }

    /// Returns whether the count of a conversation is exact.
    pub(super) fn is_exact_for(&self, messages: &[ContextMessage]) -> bool {
        self.has_template()
            && self.is_checked
            && self.covers(messages)
            && !self.doubts(messages)
            && self.engine_difference(messages) == 0
    }

    /// Returns whether the count of a text is exact.
    pub(super) fn is_exact_for_text(&self, text: &str) -> bool {
        let tokens = |tokenizer: &CachedTokenizer| tokenizer.count(text);
        self.is_checked && self.others.iter().all(|other| tokens(other) == tokens(&self.tokenizer))
    }

    /// Returns the largest number of tokens by which another engine that the server may use counts a prompt differently.
    ///
    /// The whole prompt is counted: the seams of the template are divided for one engine only.
    fn engine_difference(&self, messages: &[ContextMessage]) -> u32 {
        if self.others.is_empty() {
            return 0;
        }
        let Some(prompt) = self.prompt(messages) else { return 0 };
        let tokens = self.tokenizer.count_prompt(&prompt);
        let differences =
            self.others.iter().map(|other| other.count_prompt(&prompt).abs_diff(tokens));
        differences.max().unwrap_or(0)
    }

    /// Returns whether the count of a message is in doubt.
    fn doubts(&self, messages: &[ContextMessage]) -> bool {
        let is_doubted = |shape: &MessageShape| self.doubts.concern(shape);
        !self.doubts.is_empty() && self.shapes(messages).iter().any(is_doubted)
    }

    /// Returns the maximum error of the counts that are in doubt, or on which engines disagree.
    pub(super) fn doubted_tokens(&self, messages: &[ContextMessage]) -> u64 {
        let difference = self.engine_difference(messages).into();
        if self.doubts.is_empty() {
            return difference;
        }
        let margins = self.shapes(messages);
        margins.iter().map(|shape| self.doubts.margin(shape)).sum::<u64>() + difference
    }

    /// Finds the reason for which the count of a prompt is wrong.
    ///
    /// `prompt`: the prompt as the server renders it, if it does. A message is at fault if its text is not in there; if
    /// all are, those with special features, or else the last one, which no earlier call had.
    pub(super) fn fault(&self, messages: &[ContextMessage], prompt: Option<&str>) -> Fault {
        let shapes = self.shapes(messages);
        let chunks = self.with_tools.as_ref().and_then(|template| template.chunks(messages));
        if let (Some(prompt), Some(chunks)) = (prompt, chunks) {
            let missing = |chunk: &PromptChunk| !prompt.contains(&chunk.text);
            let pairs = chunks.iter().zip(&shapes).filter(|(chunk, _)| missing(chunk));
            let at_fault: Vec<_> = pairs.map(|(_, shape)| shape.clone()).collect();
            if !at_fault.is_empty() {
                return Fault::Rendered(at_fault);
            }
        }
        let special: Vec<_> = shapes.iter().filter(|shape| !shape.is_plain()).cloned().collect();
        if special.is_empty() {
            return Fault::Tokenized(shapes.last().cloned().into_iter().collect());
        }
        Fault::Tokenized(special)
    }

    /// Returns a text in which no control token of the vocabulary occurs, and none of those that most models have and that
    /// the template writes as plain text, as `[INST]` is in some. Until the template is known, it may write each of them.
    pub(super) fn without_controls<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let is_written =
            |control: &str| self.template().is_none_or(|template| template.writes(control));
        let tokenizer = &self.tokenizer.tokenizer;
        match special::without_usual_controls(text, is_written) {
            Cow::Borrowed(text) => tokenizer.without_controls(text),
            Cow::Owned(text) => Cow::Owned(tokenizer.without_controls(&text).into_owned()),
        }
    }

    /// Counts the tokens of a text.
    pub(super) fn count_text(&self, text: &str) -> u32 {
        self.tokenizer.count(text)
    }

    /// Counts the tokens of a message of its own, between its usual neighbors.
    pub(super) fn count_turn(&self, role: Role, text: &str) -> u32 {
        let message = ContextMessage::text(role, text);
        let (before, after) = Neighbor::of(&message).usual_neighbors();
        let chunk = self.template().and_then(|template| template.chunk(&message, before, after));
        chunk.map_or_else(
            || MESSAGE_OVERHEAD_TOKENS.saturating_add(self.count_text(text)),
            |chunk| self.count_chunk(&chunk),
        )
    }

    /// Counts the tokens of the last of some messages, or returns `None` if the template does not cover it.
    pub(super) fn count_last(
        &self,
        messages: &[ContextMessage],
        next: Option<&ContextMessage>,
        has_system: bool,
    ) -> Option<u32> {
        let template = self.template()?;
        let (last, earlier) = messages.split_last()?;
        let start = if has_system { Neighbor::System } else { Neighbor::Start };
        let before = earlier.last().map_or(start, |message| template.kind(message));
        let after = next.map_or(Neighbor::End, |message| template.kind(message));
        let chunk = self.count_chunk(&template.chunk(last, before, after)?);
        let head = if earlier.is_empty() { self.first_excess(template, start) } else { 0 };
        Some(chunk.saturating_sub(head))
    }

    /// Counts the tokens before the first message, including the system message, and the tokens of the tools.
    ///
    /// Returns `None` if the template is unknown, and no tokens of the tools if only the template with tools is.
    pub(super) fn count_head(
        &self,
        system: Option<&ContextMessage>,
        has_tools: bool,
    ) -> Option<(u32, Option<u32>)> {
        let head = |template: &Template| {
            let Some(system) = system else {
                return Some(self.first_excess(template, Neighbor::Start));
            };
            let chunk = template.chunk(system, Neighbor::Start, Neighbor::User)?;
            let excess = self.first_excess(template, Neighbor::System);
            Some(self.count_chunk(&chunk).saturating_add(excess))
        };
        let without_tools = head(self.without_tools.as_deref()?)?;
        if !has_tools {
            return Some((without_tools, Some(0)));
        }
        match self.with_tools.as_deref() {
            Some(template) => head(template)
                .map(|all| (without_tools.min(all), Some(all.saturating_sub(without_tools)))),
            None => Some((without_tools, None)),
        }
    }

    /// Returns the template of the request, or the one without tools if that is unknown.
    fn template(&self) -> Option<&Template> {
        self.with_tools.as_ref().or(self.without_tools.as_ref()).map(AsRef::as_ref)
    }

    fn count_chunk(&self, chunk: &PromptChunk) -> u32 {
        self.count_text(&chunk.text).saturating_add_signed(chunk.extra)
    }

    /// Returns the tokens that the template puts before the first user message but not before later ones.
    fn first_excess(&self, template: &Template, start: Neighbor) -> u32 {
        let count_before_user = |before: Neighbor| {
            let seam = template.seam(before, Neighbor::User);
            seam.map_or(0, |seam| self.count_text(&seam.right).saturating_add_signed(seam.extra))
        };
        count_before_user(start).saturating_sub(count_before_user(Neighbor::Assistant))
    }
}
