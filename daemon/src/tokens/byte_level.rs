//! Byte-level byte-pair encoding, for `gpt2` vocabularies: their tokens are bytes written as printable characters.
//!
//! Must not know special tokens.
//!
//! **Invariant**: the tokens of a word spell exactly its bytes, except that a byte without a token is skipped, as in
//! the engine.
//!
//! **Source**: `llm_tokenizer_bpe_session` in llama.cpp's `llama-vocab.cpp`, and `BytePairEncoding` in Ollama 0.24's
//! `tokenizer`.

use std::borrow::Cow;

use icu_normalizer::{ComposingNormalizer, ComposingNormalizerBorrowed};

use super::engine::Engine;
use super::merge::{Merger, PairTable, Symbol};
use super::split::PreTokenizer;
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{TokenSink, WordBuffers, WordEncoder};

const COMPOSER: ComposingNormalizerBorrowed<'static> = ComposingNormalizer::new_nfc();

/// A byte-level vocabulary with its split rule.
#[derive(Debug)]
pub(super) struct ByteLevel {
    pre: PreTokenizer,
    pairs: PairTable,
    /// The texts, decoded to the bytes that they represent.
    texts: Texts,
    /// Empty unless whole words are looked up.
    index: TextIndex,
    n_tokens: u32,
    /// The symbol id of each byte.
    bytes: Vec<u32>,
    /// Whether words are merged as by Ollama's engine in Go.
    is_go: bool,
}

impl ByteLevel {
    /// Builds the tables of a vocabulary whose text is split by `pre`.
    pub(super) fn new(vocabulary: &Vocabulary, pre: PreTokenizer, engine: Engine) -> Self {
        let alphabet = Alphabet::new();
        let mut texts = Texts::default();
        let mut index = TextIndex::with_capacity(vocabulary.texts.len());
        let mut bytes = Vec::new();
        for (at, text) in (0..).zip(vocabulary.texts.iter()) {
            bytes.clear();
            let is_decoded = alphabet.decode(text, &mut bytes);
            // An empty text takes the number of a text that no word can match.
            texts.push(if is_decoded { &bytes } else { &[] });
            if is_decoded {
                index.insert(&texts, at);
            }
        }
        // Each character represents one byte.
        let n_chars = |text: &[u8]| text.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        let pairs = PairTable::new(vocabulary, &mut texts, &mut index, n_chars);
        let bytes =
            (0..=255_u8).map(|byte| index.add(&mut texts, &[byte]).unwrap_or(u32::MAX)).collect();
        if !pre.ignores_merges {
            index = TextIndex::default();
        }
        let is_go = engine == Engine::OllamaGo;
        Self { pre, pairs, texts, index, n_tokens: vocabulary.n_tokens, bytes, is_go }
    }

    /// Sends the tokens of a text to `sink`.
    pub(super) fn encode<S: TokenSink>(
        &self,
        text: &[u8],
        buffers: &mut WordBuffers,
        sink: &mut S,
    ) {
        let rule = self.pre.rule;
        // A special token never divides a character.
        if self.pre.composes
            && !text.is_ascii()
            && let Ok(given) = std::str::from_utf8(text)
            && let Cow::Owned(composed) = COMPOSER.normalize(given)
        {
            let text = composed.as_bytes();
            rule.split(text, &mut |start, end| buffers.encode(self, text, start, end, sink));
            return;
        }
        rule.split(text, &mut |start, end| buffers.encode(self, text, start, end, sink));
    }

    /// Returns whether each byte has a token.
    pub(super) fn has_all_bytes(&self) -> bool {
        self.bytes.iter().all(|id| self.token(*id).is_some())
    }

    /// Returns the token of a symbol, or `None` for a symbol that occurs only in merges.
    fn token(&self, symbol_id: u32) -> Option<u32> {
        (symbol_id < self.n_tokens).then_some(symbol_id)
    }
}

impl WordEncoder for ByteLevel {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if self.pre.ignores_merges
            && let Some(id) = self.index.find(&self.texts, word).and_then(|at| self.token(at))
        {
            ids.push(id);
            return;
        }
        merger.clear();
        for (start, byte) in (0..).zip(word) {
            let id = self.bytes[usize::from(*byte)];
            merger.push(Symbol { id, start, end: start + 1 });
        }
        if self.is_go {
            merger.merge_as_go(&self.pairs, self.n_tokens);
            // A byte without a token is skipped.
            ids.extend(merger.symbols().filter_map(|symbol| self.token(symbol.id)));
            return;
        }
        merger.merge(&self.pairs);
        for symbol in merger.symbols() {
            match self.token(symbol.id) {
                Some(id) => ids.push(id),
                // The engine then looks up the bytes of the encoded form, of which only ASCII ones can be tokens.
                None => ids.extend(
                    self.texts
                        .of(symbol.id)
                        .iter()
                        .filter(|byte| byte.is_ascii_graphic())
                        .filter_map(|byte| self.token(self.bytes[usize::from(*byte)])),
                ),
            }
        }
    }
}

/// The printable characters that represent bytes: a byte that is printable in Latin-1 is its own character, and the
/// others are U+0100 and up.
///
/// **Source**: GPT-2's `bytes_to_unicode`.
struct Alphabet {
    /// The byte of each character; none is above U+0143.
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

    /// Appends the bytes that a text represents; returns false if a character represents none.
    fn decode(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
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
    fn each_byte_has_one_character() {
        let alphabet = Alphabet::new();
        let mut bytes: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert!(bytes.iter().copied().eq(0..=255));
        let mut out = Vec::new();
        assert!(alphabet.decode("ĠaĊÄł".as_bytes(), &mut out));
        assert_eq!(out, b" a\n\xc4\xa0");
        assert!(!alphabet.decode("a b".as_bytes(), &mut out));
    }
}
