//! The loop from words to tokens that all tokenizer families share, and its cache of recent words.
//!
//! Text repeats itself, and looking up a word is far cheaper than merging it.
//! Must not know how a text is split into words, or how a word becomes tokens.
//!
//! **Invariants**: a cached word returns the tokens that were stored for exactly these bytes; the cache has a fixed size.

use super::merge::Merger;

/// A receiver of token ids.
pub(super) trait TokenSink {
    /// Receives the next ids of a text.
    fn push_all(&mut self, ids: &[u32]);
}

impl TokenSink for Vec<u32> {
    #[inline]
    fn push_all(&mut self, ids: &[u32]) {
        self.extend_from_slice(ids);
    }
}

/// A sink that only counts.
#[derive(Debug, Default)]
pub(super) struct TokenCount(pub(super) u64);

impl TokenSink for TokenCount {
    #[inline]
    fn push_all(&mut self, ids: &[u32]) {
        self.0 += ids.len() as u64;
    }
}

/// The part of a tokenizer family that turns a word into tokens.
pub(super) trait WordEncoder {
    /// Appends the tokens of a word.
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>);
}

/// The word cache and the buffers of one thread, reused from text to text.
#[derive(Debug, Default)]
pub(super) struct WordBuffers {
    cache: WordCache,
    merger: Merger,
    ids: Vec<u32>,
    text: Vec<u8>,
}

impl WordBuffers {
    /// Buffers beyond this size are freed after a text; few messages need more.
    const MAX_KEPT_BYTES: usize = 1 << 20;

    /// Sends the tokens of the word at `start..end` to `sink`.
    #[inline]
    pub(super) fn encode<E: WordEncoder, S: TokenSink>(
        &mut self,
        encoder: &E,
        text: &[u8],
        start: usize,
        end: usize,
        sink: &mut S,
    ) {
        let key = WordKey::new(text, start, end);
        if let Some(ids) = key.as_ref().and_then(|key| self.cache.get(key)) {
            sink.push_all(ids);
            return;
        }
        self.ids.clear();
        encoder.encode_word(&text[start..end], &mut self.merger, &mut self.ids);
        if let Some(key) = key {
            self.cache.insert(key, &self.ids);
        }
        sink.push_all(&self.ids);
    }

    /// Takes the buffer for a rewritten text, emptied; [`Self::return_text`] puts it back.
    pub(super) fn take_text(&mut self) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text
    }

    pub(super) fn return_text(&mut self, text: Vec<u8>) {
        self.text = text;
    }

    /// Frees the buffers that a large text has grown.
    pub(super) fn shrink(&mut self) {
        let ids = self.ids.capacity() * size_of::<u32>();
        if self.merger.heap_bytes() + ids + self.text.capacity() > Self::MAX_KEPT_BYTES {
            (self.merger, self.ids, self.text) = Default::default();
        }
    }
}

/// Maximum length of a cached word; the last byte of a key stores the length.
const MAX_WORD_BYTES: usize = 31;
/// Maximum number of tokens of a cached word, which makes an entry one cache line.
const MAX_TOKENS: usize = 7;
/// Entries of a cache: 2 MiB, which fits into the caches of current processors. Half as many cost a fifth of the speed
/// on mixed prose; twice as many gain little and take longer to fill.
const N_ENTRIES: usize = 1 << 15;

/// A word of at most [`MAX_WORD_BYTES`], padded with zeros. Its last byte is the length, so no key is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WordKey([u64; 4]);

impl WordKey {
    /// Returns the key of the word at `start..end`, or `None` if the word is too long.
    #[inline]
    fn new(text: &[u8], start: usize, end: usize) -> Option<Self> {
        let len = end - start;
        let mask = MASKS.get(len)?;
        let words = match text.get(start..start + 32) {
            Some(window) => load_words(window),
            None => {
                let mut window = [0; 32];
                window[..len].copy_from_slice(&text[start..end]);
                load_words(&window)
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
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the highest bits of the hash are an index"
    )]
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
        (mixed >> (64 - N_ENTRIES.trailing_zeros())) as usize
    }
}

/// The bits of a key that belong to a word, by its length.
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
fn load_words(window: &[u8]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(window.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// A word and its tokens, in one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct CachedWord {
    key: WordKey,
    ids: [u32; MAX_TOKENS],
    n_ids: u32,
}

/// A direct-mapped cache: each word has one possible entry, and a new word replaces the old one.
///
/// **Source**: `hashlink::LruCache` of the same capacity was measured to be 5 % slower for cached words, and 7 % slower
/// while the cache fills.
#[derive(Debug, Default)]
struct WordCache {
    /// Empty until the first insertion.
    entries: Vec<CachedWord>,
}

impl WordCache {
    #[inline]
    fn get(&self, key: &WordKey) -> Option<&[u32]> {
        let entry = self.entries.get(key.slot())?;
        (entry.key == *key).then_some(&entry.ids[..entry.n_ids as usize])
    }

    /// Stores the tokens of a word, unless there are too many.
    fn insert(&mut self, key: WordKey, ids: &[u32]) {
        if self.entries.is_empty() {
            self.entries = vec![CachedWord::default(); N_ENTRIES];
        }
        if ids.len() <= MAX_TOKENS {
            let entry = &mut self.entries[key.slot()];
            entry.key = key;
            entry.ids[..ids.len()].copy_from_slice(ids);
            entry.n_ids = u32::try_from(ids.len()).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_word_is_found_at_any_position_and_other_words_are_not() {
        let mut cache = WordCache::default();
        let long = b"the word that is kept, and then a good deal more text behind it";
        cache.insert(WordKey::new(long, 4, 8).unwrap(), &[7, 8]);
        assert_eq!(cache.get(&WordKey::new(b"word", 0, 4).unwrap()), Some(&[7, 8][..]));
        assert_eq!(cache.get(&WordKey::new(b"word\0", 0, 5).unwrap()), None);
        assert_eq!(cache.get(&WordKey::new(b"wor", 0, 3).unwrap()), None);
        assert_eq!(WordKey::new(&[b'a'; 64], 0, 32), None);
        assert_eq!(WordKey::new(&[b'a'; 64], 0, 31), WordKey::new(&[b'a'; 31], 0, 31));
    }

    #[test]
    fn word_of_too_many_tokens_is_not_cached() {
        let mut cache = WordCache::default();
        let key = WordKey::new(b"word", 0, 4).unwrap();
        cache.insert(key, &[1; MAX_TOKENS + 1]);
        assert_eq!(cache.get(&key), None);
    }
}
