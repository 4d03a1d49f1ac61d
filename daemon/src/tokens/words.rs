//! The loop from words to tokens that all tokenizer families share, and its cache of recent words.
//!
//! Text repeats itself, and looking up a word is far cheaper than merging it.
//! Must not know how a text is split into words, or how a word becomes tokens.
//!
//! **Invariants**: a cached word returns the tokens that were stored for exactly these bytes; the cache has a fixed size.

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

/// The longest word that is kept; the last byte of a key holds the length.
pub(super) const MAX_WORD_BYTES: usize = 31;
/// The most tokens of a word that is kept: with them an entry fills a cache line.
const MAX_TOKENS: usize = 7;
/// Entries of a cache: 2 MiB, which the caches of today's processors hold. Half as many cost a fifth of the speed on mixed
/// prose, twice as many gain little and are cold for longer.
const ENTRIES: usize = 1 << 15;

/// A word of at most [`MAX_WORD_BYTES`], padded with zeros; the last byte is its length, so that no key is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key([u64; 4]);

impl Key {
    /// The key of a word, which lies in `text`.
    #[inline]
    pub(super) fn of(text: &[u8], start: usize, end: usize) -> Option<Self> {
        let len = end - start;
        let mask = MASKS.get(len)?;
        let words = match text.get(start..start + 32) {
            Some(window) => words_of(window),
            None => {
                let mut window = [0; 32];
                window[..len].copy_from_slice(&text[start..end]);
                words_of(&window)
            }
        };
        let mut key = [0; 4];
        for (key, (word, mask)) in key.iter_mut().zip(words.iter().zip(mask)) {
            *key = word & mask;
        }
        key[3] |= (len as u64) << 56;
        Some(Self(key))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the highest bits of a hash fit")]
    fn slot(&self) -> usize {
        const ODD: [u64; 4] = [
            0x9e37_79b9_7f4a_7c15,
            0xc2b2_ae3d_27d4_eb4f,
            0x1656_67b1_9e37_79f9,
            0xd6e8_feb8_6659_fd93,
        ];
        let [a, b, c, d] = self.0;
        let mixed = a.wrapping_mul(ODD[0])
            ^ b.wrapping_mul(ODD[1]).rotate_left(17)
            ^ c.wrapping_mul(ODD[2]).rotate_left(31)
            ^ d.wrapping_mul(ODD[3]).rotate_left(47);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(ODD[0]);
        (mixed >> (64 - ENTRIES.trailing_zeros())) as usize
    }
}

/// Which bits of a key belong to a word of a length.
const MASKS: [[u64; 4]; MAX_WORD_BYTES + 1] = {
    let mut masks = [[0; 4]; MAX_WORD_BYTES + 1];
    let mut len = 0;
    while len <= MAX_WORD_BYTES {
        let mut byte = 0;
        while byte < len {
            masks[len][byte / 8] |= 0xff << (8 * (byte % 8));
            byte += 1;
        }
        len += 1;
    }
    masks
};

#[inline]
fn words_of(window: &[u8]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(window.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// A word and its tokens: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Entry {
    key: Key,
    ids: [u32; MAX_TOKENS],
    n: u32,
}

/// Words by their hash; a new one takes the place of the one that was there.
#[derive(Debug, Default)]
pub(super) struct WordCache {
    entries: Vec<Entry>,
}

impl WordCache {
    /// The tokens of a word.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<&[u32]> {
        let entry = self.entries.get(key.slot())?;
        (entry.key == *key).then_some(&entry.ids[..entry.n as usize])
    }

    /// Keeps the tokens of a word.
    pub(super) fn keep(&mut self, key: Key, ids: &[u32]) {
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); ENTRIES];
        }
        if ids.len() <= MAX_TOKENS {
            let entry = &mut self.entries[key.slot()];
            entry.key = key;
            entry.ids[..ids.len()].copy_from_slice(ids);
            entry.n = u32::try_from(ids.len()).unwrap_or(0);
        }
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_wherever_it_lies_and_no_other_is() {
        let mut cache = WordCache::default();
        let long = b"the word that is kept, and then a good deal more text behind it";
        cache.keep(Key::of(long, 4, 8).unwrap(), &[7, 8]);
        assert_eq!(cache.find(&Key::of(b"word", 0, 4).unwrap()), Some(&[7, 8][..]));
        assert_eq!(cache.find(&Key::of(b"word\0", 0, 5).unwrap()), None);
        assert_eq!(cache.find(&Key::of(b"wor", 0, 3).unwrap()), None);
        assert_eq!(Key::of(&[b'a'; 64], 0, 32), None);
        assert_eq!(Key::of(&[b'a'; 64], 0, 31), Key::of(&[b'a'; 31], 0, 31));
    }

    #[test]
    fn a_word_of_too_many_tokens_is_not_kept() {
        let mut cache = WordCache::default();
        let key = Key::of(b"word", 0, 4).unwrap();
        cache.keep(key, &[1; MAX_TOKENS + 1]);
        assert_eq!(cache.find(&key), None);
    }
}
