//! Counting with a model's own vocabulary, and with its template where that is known. Pure, but for what it remembers.
//!
//! **Invariant**: the head and the messages of a conversation that is covered sum up to what the engine counts for the
//! whole prompt.

use std::sync::Arc;

use hashlink::LruCache;
use ollm_protocol::content::{ContextMessage, Role};
use parking_lot::Mutex;

use super::estimate::MESSAGE_OVERHEAD_TOKENS;
use super::template::learn::whole;
use super::template::{Chunk, Place, Template};
use super::tokenizer::Tokenizer;

/// Shorter texts are counted faster than they are looked up.
const MIN_REMEMBERED_BYTES: usize = 256;
/// Maximum number of remembered counts, about 100 bytes each.
const MAX_REMEMBERED: usize = 1 << 14;

/// A tokenizer that remembers what it counted, because every build counts the same messages again.
#[derive(Debug)]
pub(crate) struct Engine {
    tokenizer: Tokenizer,
    identity: Arc<str>,
    /// By hash of the text. Held only for looking up and for adding one.
    counted: Mutex<LruCache<[u8; 32], u32>>,
}

impl Engine {
    /// With nothing counted yet.
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        let identity = tokenizer.identity().into();
        let counted = Mutex::new(LruCache::new(MAX_REMEMBERED));
        Self { tokenizer, identity, counted }
    }

    /// What it counts with.
    pub(crate) const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens of a whole prompt as the engine counts it.
    pub(crate) fn count_prompt(&self, prompt: &str) -> u32 {
        whole(&self.tokenizer, prompt)
    }

    fn count(&self, text: &str) -> u32 {
        if text.len() < MIN_REMEMBERED_BYTES {
            return self.tokenizer.count(text);
        }
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        if let Some(known) = self.counted.lock().get(&hash) {
            return *known;
        }
        let tokens = self.tokenizer.count(text);
        self.counted.lock().insert(hash, tokens);
        tokens
    }
}

/// How one model counts, with one set of tools.
#[derive(Debug)]
pub(crate) struct Exact {
    /// The vocabulary.
    pub engine: Arc<Engine>,
    /// The template without tools.
    pub plain: Option<Arc<Template>>,
    /// The template with the tools that are sent along; the plain one where there are none.
    pub with_tools: Option<Arc<Template>>,
}

impl Exact {
    pub(super) fn identity(&self) -> Arc<str> {
        Arc::clone(&self.engine.identity)
    }

    pub(super) fn has_template(&self) -> bool {
        self.with_tools.is_some() && self.plain.is_some()
    }

    pub(super) fn covers(&self, messages: &[ContextMessage]) -> bool {
        self.with_tools.as_ref().is_some_and(|template| template.covers(messages))
    }

    pub(super) fn text(&self, text: &str) -> u32 {
        self.engine.count(text)
    }

    /// The best template that there is.
    fn template(&self) -> Option<&Template> {
        self.with_tools.as_ref().or(self.plain.as_ref()).map(AsRef::as_ref)
    }

    fn count(&self, chunk: &Chunk) -> u32 {
        self.engine.count(&chunk.text).saturating_add_signed(chunk.extra)
    }

    /// A message of its own, between its usual neighbors.
    pub(super) fn turn(&self, role: Role, text: &str) -> u32 {
        let message = blank(role, text);
        let (before, after) = Place::of(&message).neighbors();
        let chunk = self.template().and_then(|template| template.chunk(&message, before, after));
        chunk.map_or_else(
            || MESSAGE_OVERHEAD_TOKENS.saturating_add(self.text(text)),
            |chunk| self.count(&chunk),
        )
    }

    /// What stands around a message.
    pub(super) fn around(&self, role: Role) -> u32 {
        self.turn(role, "")
    }

    /// The last of some messages; `None` where the template of it is not known.
    pub(super) fn last(
        &self,
        messages: &[ContextMessage],
        next: Option<&ContextMessage>,
        has_system: bool,
    ) -> Option<u32> {
        let template = self.template()?;
        let (last, earlier) = messages.split_last()?;
        let first = if has_system { Place::System } else { Place::Start };
        let before = earlier.last().map_or(first, Place::of);
        let after = next.map_or(Place::End, Place::of);
        let whole = self.count(&template.chunk(last, before, after)?);
        let head = if earlier.is_empty() { self.excess(template, first) } else { 0 };
        Some(whole.saturating_sub(head))
    }

    /// Tokens of a system message with all that stands before the first message, and those of the tools; the latter
    /// are `None` where the template with tools is not known.
    pub(super) fn head(
        &self,
        system: Option<&ContextMessage>,
        has_tools: bool,
    ) -> Option<(u32, Option<u32>)> {
        let head = |template: &Template| {
            let Some(system) = system else { return Some(self.excess(template, Place::Start)) };
            let chunk = template.chunk(system, Place::Start, Place::User)?;
            Some(self.count(&chunk).saturating_add(self.excess(template, Place::System)))
        };
        let plain = head(self.plain.as_deref()?)?;
        if !has_tools {
            return Some((plain, Some(0)));
        }
        match self.with_tools.as_deref() {
            Some(template) => {
                head(template).map(|all| (plain.min(all), Some(all.saturating_sub(plain))))
            }
            None => Some((plain, None)),
        }
    }

    /// What the first user message has before it that later ones have not.
    fn excess(&self, template: &Template, first: Place) -> u32 {
        let side = |before: Place| {
            let seam = template.seam(before, Place::User);
            seam.map_or(0, |seam| self.engine.count(&seam.right).saturating_add_signed(seam.extra))
        };
        side(first).saturating_sub(side(Place::Assistant))
    }
}

fn blank(role: Role, text: &str) -> ContextMessage {
    ContextMessage {
        role,
        content: text.to_owned(),
        tool_calls: Vec::new(),
        tool_name: None,
        tool_call_id: None,
        images: Vec::new(),
    }
}
