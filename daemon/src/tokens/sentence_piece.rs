//! SentencePiece with scores: `llama` vocabularies, of which Llama 2, Phi-3, Mistral's first and Gemma's first three
//! are examples.
//!
//! Must not know special tokens. **Invariant**: two neighbours are joined when their text is a token, the highest
//! score first; a character that is no token becomes its bytes.
//!
//! **Source**: `llm_tokenizer_spm_session` in llama.cpp's `llama-vocab.cpp`.

use super::escaped::{self, Cuts, byte_tokens, chars};
use super::merge::{Joins, Merger, Part};
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{Encoder, Sink, Words};

/// A vocabulary of texts with scores.
#[derive(Debug)]
pub(super) struct SentencePiece {
    texts: Texts,
    index: TextIndex,
    n_tokens: u32,
    /// By id; the highest score has the lowest rank.
    ranks: Vec<u32>,
    bytes: Vec<Option<u32>>,
    cuts: Cuts,
    /// Longer texts are no tokens.
    max_token_bytes: usize,
    adds_space: bool,
}

impl SentencePiece {
    /// Takes a vocabulary.
    pub(super) fn new(vocabulary: &Vocabulary) -> Self {
        let texts = vocabulary.texts.clone();
        let index = TextIndex::of(&texts);
        let n_tokens = vocabulary.n_tokens;
        let find = |text: &[u8]| index.find(&texts, text).filter(|id| *id < n_tokens);
        let mut bytes = byte_tokens(find);
        for (byte, token) in (0..=255_u8).zip(&mut bytes) {
            *token = token.or_else(|| find(&[byte]));
        }
        let tokens = || texts.iter().take(n_tokens as usize);
        Self {
            ranks: vocabulary.scores.iter().map(|score| rank(*score)).collect(),
            bytes,
            cuts: Cuts::new(tokens()),
            max_token_bytes: tokens().map(<[u8]>::len).max().unwrap_or(0),
            adds_space: vocabulary.adds_space_prefix.unwrap_or(true),
            n_tokens,
            texts,
            index,
        }
    }

    /// Gives the tokens of a text; one at the beginning or after a special token gets a space.
    pub(super) fn encode<S: Sink>(
        &self,
        text: &[u8],
        is_behind_special: bool,
        words: &mut Words,
        sink: &mut S,
    ) {
        let mut escaped = words.take_text();
        if self.adds_space && is_behind_special {
            escaped.extend_from_slice(escaped::SPACE);
        }
        escaped::escape(text, &mut escaped);
        self.cuts.split(&escaped, &mut |start, end| words.word(self, &escaped, start, end, sink));
        words.give_text(escaped);
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        let ranks = self.ranks.capacity() * size_of::<u32>();
        ranks + self.texts.heap_bytes() + self.index.heap_bytes() + self.cuts.heap_bytes()
    }

    fn token(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.max_token_bytes {
            return None;
        }
        self.index.find(&self.texts, text).filter(|id| *id < self.n_tokens)
    }
}

/// Orders scores from the highest down; a model without scores joins from the left.
fn rank(score: f32) -> u32 {
    // Minus zero is zero.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    // The highest rank of all means "no pair".
    (!ascending).min(u32::MAX - 1)
}

/// The neighbours of one word.
struct Neighbors<'s> {
    pieces: &'s SentencePiece,
    word: &'s [u8],
}

impl Joins for Neighbors<'_> {
    fn join(&self, left: Part, right: Part) -> Option<(u32, u32)> {
        let id = self.pieces.token(&self.word[left.start as usize..right.end as usize])?;
        Some((self.pieces.ranks.get(id as usize).copied().unwrap_or_default(), id))
    }
}

impl Encoder for SentencePiece {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        for (start, char) in chars(word) {
            let symbol = self.token(char).unwrap_or(u32::MAX);
            merger.push(Part { symbol, start: at(start), end: at(start + char.len()) });
        }
        merger.merge(&Neighbors { pieces: self, word });
        for part in merger.parts() {
            if part.symbol != u32::MAX {
                ids.push(part.symbol);
                continue;
            }
            let bytes = &word[part.start as usize..part.end as usize];
            ids.extend(bytes.iter().filter_map(|byte| self.bytes[usize::from(*byte)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::INFINITY, 3.5, 1.0, 0.0, -0.5, -1.0, -31_000.0, -1e9];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
