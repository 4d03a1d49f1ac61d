//! From words to tokens, through the cache: the loop that all families share.
//!
//! Must not know how a text is cut into words.

use super::cache::{Key, WordCache};
use super::merge::Merger;

/// Where tokens go.
pub(super) trait Sink {
    /// Takes the next tokens.
    fn take(&mut self, ids: &[u32]);
}

impl Sink for Vec<u32> {
    #[inline]
    fn take(&mut self, ids: &[u32]) {
        self.extend_from_slice(ids);
    }
}

/// Only counts.
#[derive(Debug, Default)]
pub(super) struct Count(pub(super) u64);

impl Sink for Count {
    #[inline]
    fn take(&mut self, ids: &[u32]) {
        self.0 += ids.len() as u64;
    }
}

/// What turns one word into tokens.
pub(super) trait Encoder {
    /// Appends the tokens of a word.
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>);
}

/// Buffers of one thread: what is kept from word to word and from text to text.
#[derive(Debug, Default)]
pub(super) struct Words {
    cache: WordCache,
    merger: Merger,
    ids: Vec<u32>,
    text: Vec<u8>,
}

impl Words {
    /// More than this is given back after a text; a message that needs more is rare.
    const KEPT_BYTES: usize = 1 << 20;

    /// Gives the tokens of the word at a place in a text.
    #[inline]
    pub(super) fn word<E: Encoder, S: Sink>(
        &mut self,
        encoder: &E,
        text: &[u8],
        start: usize,
        end: usize,
        sink: &mut S,
    ) {
        let key = Key::of(text, start, end);
        if let Some(ids) = key.as_ref().and_then(|key| self.cache.find(key)) {
            sink.take(ids);
            return;
        }
        self.ids.clear();
        encoder.encode_word(&text[start..end], &mut self.merger, &mut self.ids);
        if let Some(key) = key {
            self.cache.keep(key, &self.ids);
        }
        sink.take(&self.ids);
    }

    /// The buffer for a rewritten text, empty.
    pub(super) fn take_text(&mut self) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text
    }

    /// Gives the buffer back.
    pub(super) fn give_text(&mut self, text: Vec<u8>) {
        self.text = text;
    }

    /// Gives back what a large text has needed.
    pub(super) fn shrink(&mut self) {
        if self.heap_bytes() - self.cache.heap_bytes() > Self::KEPT_BYTES {
            (self.merger, self.ids, self.text) = Default::default();
        }
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        let ids = self.ids.capacity() * size_of::<u32>();
        self.cache.heap_bytes() + self.merger.heap_bytes() + ids + self.text.capacity()
    }
}
