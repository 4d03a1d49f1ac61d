//! Gemma 4's byte-pair encoding: merges over the characters of whole lines, `▁` for spaces, bytes as `<0xXX>`.
//!
//! Must not know special tokens.
//!
//! **Source**: llama.cpp's `llama-vocab.cpp`, where the text is cut into runs of line feeds and of everything else,
//! and a run of line feeds that is a token is that token whatever the merges say.

use super::escaped::{self, Cuts, byte_tokens, chars};
use super::merge::{Merger, Pairs, Part};
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{Encoder, Sink, Words};

/// A vocabulary of characters with merges.
#[derive(Debug)]
pub(super) struct Gemma {
    pairs: Pairs,
    texts: Texts,
    index: TextIndex,
    n_tokens: u32,
    bytes: Vec<Option<u32>>,
    cuts: Cuts,
    /// Whether a run of line feeds is looked up whole.
    knows_line_runs: bool,
}

impl Gemma {
    /// Takes a vocabulary; `knows_line_runs` tells Gemma from others of its kind.
    pub(super) fn new(vocabulary: &Vocabulary, knows_line_runs: bool) -> Self {
        let mut texts = vocabulary.texts.clone();
        let mut index = TextIndex::of(&texts);
        let cuts = Cuts::new(vocabulary.merges.iter().map(|merge| vocabulary.texts.of(merge.text)));
        let pairs = Pairs::new(vocabulary, &mut texts, &mut index, <[u8]>::len);
        let n_tokens = vocabulary.n_tokens;
        let bytes = byte_tokens(|text| index.find(&texts, text).filter(|id| *id < n_tokens));
        Self { pairs, texts, index, n_tokens, bytes, cuts, knows_line_runs }
    }

    /// Gives the tokens of a text.
    pub(super) fn encode<S: Sink>(&self, text: &[u8], words: &mut Words, sink: &mut S) {
        let mut escaped = words.take_text();
        escaped::escape(text, &mut escaped);
        for line in escaped.chunk_by(|a, b| (*a == b'\n') == (*b == b'\n')) {
            if line[0] == b'\n' {
                words.word(self, line, 0, line.len(), sink);
            } else {
                self.cuts.split(line, &mut |start, end| words.word(self, line, start, end, sink));
            }
        }
        words.give_text(escaped);
    }

    /// Bytes of memory.
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

impl Encoder for Gemma {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if self.knows_line_runs
            && word.iter().all(|byte| *byte == b'\n')
            && let Some(id) = self.find(word).filter(|id| *id < self.n_tokens)
        {
            ids.push(id);
            return;
        }
        merger.clear();
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        for (start, char) in chars(word) {
            let symbol = self.find(char).unwrap_or(u32::MAX);
            merger.push(Part { symbol, start: at(start), end: at(start + char.len()) });
        }
        merger.merge(&self.pairs);
        for part in merger.parts() {
            if part.symbol < self.n_tokens {
                ids.push(part.symbol);
                continue;
            }
            let bytes = &word[part.start as usize..part.end as usize];
            ids.extend(bytes.iter().filter_map(|byte| self.bytes[usize::from(*byte)]));
        }
    }
}
