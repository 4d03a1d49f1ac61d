//! Byte-level byte-pair encoding: `gpt2` vocabularies, whose tokens are bytes written as printable characters.
//!
//! Must not know special tokens. **Invariant**: the tokens of a word spell exactly the bytes of the word, as long as
//! every byte has a token; a byte without one gives none, as in the engine.
//!
//! **Source**: `llm_tokenizer_bpe_session` in llama.cpp's `llama-vocab.cpp`.

use super::merge::{Merger, Pairs, Part};
use super::split::Pre;
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{Encoder, Sink, Words};

/// A vocabulary of bytes with its split rule.
#[derive(Debug)]
pub(super) struct ByteLevel {
    pre: Pre,
    pairs: Pairs,
    /// The texts as the bytes that they stand for, by number.
    texts: Texts,
    index: TextIndex,
    n_tokens: u32,
    /// The symbol of every byte.
    bytes: Vec<u32>,
}

impl ByteLevel {
    /// Builds the tables of a vocabulary whose text is split by `pre`.
    pub(super) fn new(vocabulary: &Vocabulary, pre: Pre) -> Self {
        let alphabet = Alphabet::new();
        let mut texts = Texts::default();
        let mut index = TextIndex::with_room(vocabulary.texts.len());
        let mut bytes = Vec::new();
        for (at, text) in (0..).zip(vocabulary.texts.iter()) {
            bytes.clear();
            let is_readable = alphabet.read(text, &mut bytes);
            // An empty text keeps the number of one that no word can become.
            texts.push(if is_readable { &bytes } else { &[] });
            if is_readable {
                index.insert(&texts, at);
            }
        }
        // Every character stands for one byte.
        let n_chars = |text: &[u8]| text.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        let pairs = Pairs::new(vocabulary, &mut texts, &mut index, n_chars);
        let bytes = (0..=255_u8).map(|byte| index.add(&mut texts, &[byte])).collect();
        if !pre.ignores_merges {
            index = TextIndex::default();
        }
        Self { pre, pairs, texts, index, n_tokens: vocabulary.n_tokens, bytes }
    }

    /// What the name of the split rule decides.
    pub(super) fn pre(&self) -> Pre {
        self.pre
    }

    /// Gives the tokens of a text.
    pub(super) fn encode<S: Sink>(&self, text: &[u8], words: &mut Words, sink: &mut S) {
        self.pre.rule.split(text, &mut |start, end| words.word(self, text, start, end, sink));
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.pairs.heap_bytes() + self.texts.heap_bytes() + self.index.heap_bytes()
    }

    fn token(&self, symbol: u32) -> Option<u32> {
        (symbol < self.n_tokens).then_some(symbol)
    }
}

impl Encoder for ByteLevel {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if self.pre.ignores_merges
            && let Some(id) = self.index.find(&self.texts, word).and_then(|at| self.token(at))
        {
            ids.push(id);
            return;
        }
        merger.clear();
        for (start, byte) in (0..).zip(word) {
            let symbol = self.bytes[usize::from(*byte)];
            merger.push(Part { symbol, start, end: start + 1 });
        }
        merger.merge(&self.pairs);
        for part in merger.parts() {
            match self.token(part.symbol) {
                Some(id) => ids.push(id),
                // The engine then looks for the bytes of the written form, of which only ASCII ones can be tokens.
                None => ids.extend(
                    self.texts
                        .of(part.symbol)
                        .iter()
                        .filter(|byte| byte.is_ascii_graphic())
                        .filter_map(|byte| self.token(self.bytes[usize::from(*byte)])),
                ),
            }
        }
    }
}

/// Bytes as printable characters: those that Latin-1 prints stand for themselves, the others for U+0100 and on.
///
/// **Source**: GPT-2's `bytes_to_unicode`.
struct Alphabet {
    /// The byte of each character below U+0144.
    bytes: [Option<u8>; 0x144],
}

impl Alphabet {
    fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut next = 0x100;
        for byte in 0..=255_u8 {
            if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
                bytes[usize::from(byte)] = Some(byte);
            } else {
                bytes[next] = Some(byte);
                next += 1;
            }
        }
        Self { bytes }
    }

    /// Appends the bytes that a text stands for; false where it has a character that stands for none.
    fn read(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        text.chars().all(|char| {
            let byte = self.bytes.get(char as usize).copied().flatten();
            out.extend(byte);
            byte.is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = Alphabet::new();
        let mut bytes: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert!(bytes.iter().copied().eq(0..=255));
        let mut out = Vec::new();
        assert!(alphabet.read("ĠaĊÄł".as_bytes(), &mut out));
        assert_eq!(out, b" a\n\xc4\xa0");
        assert!(!alphabet.read("a b".as_bytes(), &mut out));
    }
}
