//! The byte-pair encoding of Gemma 4: merges over the characters of whole lines, with `▁` for spaces and byte tokens
//! such as `<0x0A>`.
//!
//! Must not know special tokens.
//!
//! **Source**: llama.cpp's `llama-vocab.cpp`. It splits the text into runs of line feeds and runs of other
//! characters, and a run of line feeds that is a token becomes that token regardless of the merges.

use super::escaped::{CutPoints, byte_tokens, chars, escape};
use super::merge::{Merger, PairTable, Symbol};
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{TokenSink, WordBuffers, WordEncoder};

/// A vocabulary of characters with merges.
#[derive(Debug)]
pub(super) struct Gemma {
    pairs: PairTable,
    texts: Texts,
    index: TextIndex,
    n_tokens: u32,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    cuts: CutPoints,
    has_line_feed_tokens: bool,
}

impl Gemma {
    /// Builds the tables of a vocabulary. `has_line_feed_tokens`: a run of line feeds is looked up as a whole.
    pub(super) fn new(vocabulary: &Vocabulary, has_line_feed_tokens: bool) -> Self {
        let mut texts = vocabulary.texts.clone();
        let mut index = TextIndex::of(&texts);
        let cuts =
            CutPoints::new(vocabulary.merges.iter().map(|merge| vocabulary.texts.of(merge.text)));
        let pairs = PairTable::new(vocabulary, &mut texts, &mut index, <[u8]>::len);
        let n_tokens = vocabulary.n_tokens;
        let bytes = byte_tokens(|text| index.find(&texts, text).filter(|id| *id < n_tokens));
        Self { pairs, texts, index, n_tokens, bytes, cuts, has_line_feed_tokens }
    }

    /// Sends the tokens of a text to `sink`.
    pub(super) fn encode<S: TokenSink>(
        &self,
        text: &[u8],
        buffers: &mut WordBuffers,
        sink: &mut S,
    ) {
        let mut escaped = buffers.take_text();
        escape(text, &mut escaped);
        for line in escaped.chunk_by(|a, b| (*a == b'\n') == (*b == b'\n')) {
            let mut encode = |start, end| buffers.encode(self, line, start, end, sink);
            if line[0] == b'\n' {
                encode(0, line.len());
            } else {
                self.cuts.split(line, &mut encode);
            }
        }
        buffers.return_text(escaped);
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.pairs.heap_bytes()
            + self.texts.heap_bytes()
            + self.index.heap_bytes()
            + self.cuts.heap_bytes()
    }

    fn find(&self, text: &[u8]) -> Option<u32> {
        self.index.find(&self.texts, text)
    }
}

impl WordEncoder for Gemma {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if self.has_line_feed_tokens
            && word.iter().all(|byte| *byte == b'\n')
            && let Some(id) = self.find(word).filter(|id| *id < self.n_tokens)
        {
            ids.push(id);
            return;
        }
        merger.clear();
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        for (start, char) in chars(word) {
            let id = self.find(char).unwrap_or(u32::MAX);
            merger.push(Symbol { id, start: at(start), end: at(start + char.len()) });
        }
        merger.merge(&self.pairs);
        for symbol in merger.symbols() {
            if symbol.id < self.n_tokens {
                ids.push(symbol.id);
                continue;
            }
            let bytes = &word[symbol.start as usize..symbol.end as usize];
            ids.extend(bytes.iter().filter_map(|byte| self.bytes[usize::from(*byte)]));
        }
    }
}
