//! SentencePiece with scores, for `llama` vocabularies: Llama 2, Phi-3, the first Mistral, Gemma 1 to 3 and others.
//!
//! Must not know special tokens.
//!
//! **Invariant**: neighboring symbols merge if their common text is a token, the highest score first; a character
//! without a token becomes the tokens of its bytes.
//!
//! **Source**: `llm_tokenizer_spm_session` in llama.cpp's `llama-vocab.cpp`.

use super::escaped::{CutPoints, SPACE, byte_tokens, chars, escape};
use super::merge::{MergeRules, Merger, Symbol};
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{TokenSink, WordBuffers, WordEncoder};

/// A vocabulary of texts with scores.
#[derive(Debug)]
pub(super) struct SentencePiece {
    texts: Texts,
    index: TextIndex,
    n_tokens: u32,
    /// The merge rank of each token; the highest score has the lowest rank.
    ranks: Vec<u32>,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    cuts: CutPoints,
    max_token_bytes: usize,
    adds_space_prefix: bool,
}

impl SentencePiece {
    /// Builds the tables of a vocabulary.
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
            cuts: CutPoints::new(tokens()),
            max_token_bytes: tokens().map(<[u8]>::len).max().unwrap_or(0),
            adds_space_prefix: vocabulary.adds_space_prefix.unwrap_or(true),
            n_tokens,
            texts,
            index,
        }
    }

    /// Sends the tokens of a text to `sink`.
    ///
    /// `is_first`: the text is at the beginning or follows a special token, so it gets the space prefix.
    pub(super) fn encode<S: TokenSink>(
        &self,
        text: &[u8],
        is_first: bool,
        buffers: &mut WordBuffers,
        sink: &mut S,
    ) {
        let mut escaped = buffers.take_text();
        if self.adds_space_prefix && is_first {
            escaped.extend_from_slice(SPACE);
        }
        escape(text, &mut escaped);
        let mut encode = |start, end| buffers.encode(self, &escaped, start, end, sink);
        self.cuts.split(&escaped, &mut encode);
        buffers.return_text(escaped);
    }

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

/// Returns the merge rank of a score: the higher the score, the lower the rank.
fn rank(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    // The maximum means "no pair".
    (!ascending).min(u32::MAX - 1)
}

/// The merge rules of one word.
struct WordMerges<'s> {
    vocabulary: &'s SentencePiece,
    word: &'s [u8],
}

impl MergeRules for WordMerges<'_> {
    fn merged(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
        let id = self.vocabulary.token(&self.word[left.start as usize..right.end as usize])?;
        // Without scores all pairs have the same rank, so the leftmost merges first.
        Some((self.vocabulary.ranks.get(id as usize).copied().unwrap_or_default(), id))
    }
}

impl WordEncoder for SentencePiece {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        for (start, char) in chars(word) {
            let id = self.token(char).unwrap_or(u32::MAX);
            merger.push(Symbol { id, start: at(start), end: at(start + char.len()) });
        }
        merger.merge(&WordMerges { vocabulary: self, word });
        for symbol in merger.symbols() {
            if symbol.id != u32::MAX {
                ids.push(symbol.id);
                continue;
            }
            let bytes = &word[symbol.start as usize..symbol.end as usize];
            ids.extend(bytes.iter().filter_map(|byte| self.bytes[usize::from(*byte)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_have_lower_ranks() {
        let scores = [f32::INFINITY, 3.5, 1.0, 0.0, -0.5, -1.0, -31_000.0, -1e9];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
