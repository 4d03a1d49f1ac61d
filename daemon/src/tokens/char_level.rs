//! Vocabularies of characters, with `▁` for spaces: SentencePiece with scores (Llama 2, Phi-3, the first Mistral,
//! Gemma 1 to 3 and others), and the byte-pair encoding of Gemma 4.
//!
//! Text is not split into words. Instead, [`CutPoints`] finds the positions that no token spans, so that the text
//! between two of them can be merged and cached on its own. Must not know special tokens.
//!
//! **Invariants**: a text is cut only between two characters that no token has next to each other, so its parts have
//! the same tokens separately as together; a character without a token becomes the tokens of its bytes.
//!
//! **Source**: `llm_tokenizer_spm_session` and `llm_tokenizer_bpe_session` in llama.cpp's `llama-vocab.cpp`. SentencePiece
//! merges neighbors whose common text is a token, the highest score first. For Gemma 4, the text is split into runs of
//! line feeds and runs of other characters, and a run of line feeds that is a token becomes that token regardless of
//! the merges. Ollama's engine in Go (`SentencePiece` and `BytePairEncoding` in Ollama 0.24's `tokenizer`) takes a text
//! between two special tokens that is a token as this token, has no space prefix, and does not split text for Gemma 4.

use rustc_hash::FxHashSet;

use super::engine::Engine;
use super::merge::{MergeRules, Merger, PairTable, Symbol};
use super::vocab::{TextIndex, Texts, Vocabulary};
use super::words::{TokenSink, WordBuffers, WordEncoder};

/// The replacement of a space.
const SPACE: &[u8] = "▁".as_bytes();

/// A vocabulary whose words are merged from characters.
#[derive(Debug)]
pub(super) struct CharLevel {
    texts: Texts,
    index: TextIndex,
    n_tokens: u32,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    cuts: CutPoints,
    rules: CharRules,
}

/// The places in which a text gets a space before it, by its `tokenizer.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpacePrefix {
    /// At the beginning and behind each special token.
    Always,
    /// At the beginning, unless a space is there.
    First,
    Never,
}

impl SpacePrefix {
    /// Returns the rule with a name.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        match name {
            "always" => Some(Self::Always),
            "first" => Some(Self::First),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// Returns whether a text gets a space; `is_start`: the text is at the beginning, else behind a special token.
    fn applies_to(self, text: &[u8], is_start: bool) -> bool {
        match self {
            Self::Always => true,
            Self::First => is_start && !text.starts_with(b" ") && !text.starts_with(SPACE),
            Self::Never => false,
        }
    }
}

#[derive(Debug)]
enum CharRules {
    Gemma {
        pairs: PairTable,
        /// Whether a run of line feeds is looked up as a whole.
        has_line_feed_tokens: bool,
    },
    /// Gemma 4 in Ollama's engine in Go.
    GemmaInGo { pairs: PairTable },
    /// A vocabulary from a `tokenizer.json`.
    Pairs { pairs: PairTable, prefix: SpacePrefix },
    SentencePiece {
        /// The merge rank of each token; the highest score has the lowest rank.
        ranks: Vec<u32>,
        max_token_bytes: usize,
        adds_space_prefix: bool,
        /// Whether a whole text is looked up, as by Ollama's engine in Go.
        looks_up_texts: bool,
    },
}

impl CharLevel {
    /// Builds the tables of a vocabulary with merges. `has_line_feed_tokens`: a run of line feeds is looked up as a
    /// whole.
    pub(super) fn gemma(vocabulary: &Vocabulary, has_line_feed_tokens: bool) -> Self {
        Self::with_merges(vocabulary, |pairs| CharRules::Gemma { pairs, has_line_feed_tokens })
    }

    /// The same for Ollama's engine in Go.
    pub(super) fn gemma_in_go(vocabulary: &Vocabulary) -> Self {
        Self::with_merges(vocabulary, |pairs| CharRules::GemmaInGo { pairs })
    }

    /// Builds the tables of a vocabulary from a `tokenizer.json`, whose merges see a text as a whole.
    pub(super) fn of_pairs(vocabulary: &Vocabulary, prefix: SpacePrefix) -> Self {
        Self::with_merges(vocabulary, |pairs| CharRules::Pairs { pairs, prefix })
    }

    /// Returns whether each byte has a token.
    pub(super) fn has_all_bytes(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }

    fn with_merges(vocabulary: &Vocabulary, rules: impl FnOnce(PairTable) -> CharRules) -> Self {
        let merged = vocabulary.merges.iter().map(|merge| vocabulary.texts.of(merge.text));
        let cuts = CutPoints::new(merged);
        let mut texts = vocabulary.texts.clone();
        let mut index = TextIndex::of(&texts);
        let pairs = PairTable::new(vocabulary, &mut texts, &mut index, <[u8]>::len);
        let n_tokens = vocabulary.n_tokens;
        let find = |text: &[u8]| index.find(&texts, text).filter(|id| *id < n_tokens);
        let bytes = (0..=255).map(|byte| find(&byte_name(byte))).collect();
        Self { texts, index, n_tokens, bytes, cuts, rules: rules(pairs) }
    }

    /// Builds the tables of a vocabulary with scores.
    pub(super) fn sentence_piece(vocabulary: &Vocabulary, engine: Engine) -> Self {
        let is_go = engine == Engine::OllamaGo;
        let texts = vocabulary.texts.clone();
        let index = TextIndex::of(&texts);
        let n_tokens = vocabulary.n_tokens;
        let find = |text: &[u8]| index.find(&texts, text).filter(|id| *id < n_tokens);
        let plain = |byte| if is_go { None } else { find(&[byte]) };
        let token = |byte| find(&byte_name(byte)).or_else(|| plain(byte));
        let bytes = (0..=255).map(token).collect();
        let tokens = || vocabulary.texts.iter().take(n_tokens as usize);
        let rules = CharRules::SentencePiece {
            ranks: vocabulary.scores.iter().map(|score| rank(*score)).collect(),
            max_token_bytes: tokens().map(<[u8]>::len).max().unwrap_or(0),
            adds_space_prefix: !is_go && vocabulary.adds_space_prefix.unwrap_or(true),
            looks_up_texts: is_go,
        };
        Self { bytes, cuts: CutPoints::new(tokens()), texts, index, n_tokens, rules }
    }

    /// Sends the tokens of a text to `sink`.
    ///
    /// `is_start`: the text is at the beginning, else it follows a special token.
    pub(super) fn encode<S: TokenSink>(
        &self,
        text: &[u8],
        is_start: bool,
        buffers: &mut WordBuffers,
        sink: &mut S,
    ) {
        let mut escaped = buffers.take_text();
        match self.rules {
            CharRules::GemmaInGo { .. } => {
                escape(text, &mut escaped);
                buffers.encode(self, &escaped, 0, escaped.len(), sink);
            }
            CharRules::SentencePiece { adds_space_prefix, looks_up_texts, .. } => {
                if adds_space_prefix {
                    escaped.extend_from_slice(SPACE);
                }
                escape(text, &mut escaped);
                if looks_up_texts && let Some(id) = self.token(&escaped) {
                    sink.push_all(&[id]);
                    buffers.return_text(escaped);
                    return;
                }
                let mut encode = |start, end| buffers.encode(self, &escaped, start, end, sink);
                self.cuts.split(&escaped, &mut encode);
            }
            CharRules::Pairs { prefix, .. } => {
                if prefix.applies_to(text, is_start) {
                    escaped.extend_from_slice(SPACE);
                }
                escape(text, &mut escaped);
                let mut encode = |start, end| buffers.encode(self, &escaped, start, end, sink);
                self.cuts.split(&escaped, &mut encode);
            }
            CharRules::Gemma { .. } => {
                escape(text, &mut escaped);
                for line in escaped.chunk_by(|a, b| (*a == b'\n') == (*b == b'\n')) {
                    let mut encode = |start, end| buffers.encode(self, line, start, end, sink);
                    if line[0] == b'\n' {
                        encode(0, line.len());
                    } else {
                        self.cuts.split(line, &mut encode);
                    }
                }
            }
        }
        buffers.return_text(escaped);
    }

    fn token(&self, text: &[u8]) -> Option<u32> {
        self.index.find(&self.texts, text).filter(|id| *id < self.n_tokens)
    }
}

impl WordEncoder for CharLevel {
    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if let CharRules::Gemma { has_line_feed_tokens: true, .. } = self.rules
            && word.iter().all(|byte| *byte == b'\n')
            && let Some(id) = self.token(word)
        {
            ids.push(id);
            return;
        }
        if let CharRules::GemmaInGo { .. } = self.rules
            && let Some(id) = self.token(word)
        {
            ids.push(id);
            return;
        }
        merger.clear();
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        for (start, char) in chars(word) {
            let id = self.index.find(&self.texts, char).unwrap_or(u32::MAX);
            merger.push(Symbol { id, start: at(start), end: at(start + char.len()) });
        }
        match &self.rules {
            CharRules::Gemma { pairs, .. } | CharRules::Pairs { pairs, .. } => merger.merge(pairs),
            CharRules::GemmaInGo { pairs } => merger.merge_as_go(pairs, self.n_tokens),
            CharRules::SentencePiece { ranks, max_token_bytes, .. } => {
                let max_token_bytes = *max_token_bytes;
                merger.merge(&ScoreRules { vocabulary: self, ranks, max_token_bytes, word });
            }
        }
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

/// Returns the text of the token of a byte, such as `<0x0A>`.
fn byte_name(byte: u8) -> Vec<u8> {
    format!("<0x{byte:02X}>").into_bytes()
}

/// The merge rules of one word in a vocabulary with scores.
struct ScoreRules<'s> {
    vocabulary: &'s CharLevel,
    ranks: &'s [u32],
    max_token_bytes: usize,
    word: &'s [u8],
}

impl MergeRules for ScoreRules<'_> {
    fn merged(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
        let text = &self.word[left.start as usize..right.end as usize];
        if text.len() > self.max_token_bytes {
            return None;
        }
        let id = self.vocabulary.token(text)?;
        // Without scores all pairs have the same rank, so the leftmost merges first.
        Some((self.ranks.get(id as usize).copied().unwrap_or_default(), id))
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

/// The pairs of characters that are adjacent in some token. A text may be cut between any other two characters.
#[derive(Debug)]
struct CutPoints {
    /// For each ASCII character, the set of ASCII characters that may follow it, as bits. `▁` is [`SPACE_CODE`] here.
    ascii: Vec<u128>,
    /// The other pairs, with the left character's code in the high half and the right one's in the low half.
    wide: FxHashSet<u64>,
}

/// The code of `▁`, which is common enough for the ASCII table. A control character shares this code, which only means
/// fewer cuts.
const SPACE_CODE: u32 = 0x1f;

impl CutPoints {
    /// Collects the adjacent pairs of `texts`, which must be all texts that merges can produce.
    fn new<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Self {
        let mut points = Self { ascii: vec![0; 128], wide: FxHashSet::default() };
        for text in texts {
            let mut left = None;
            for (_, char) in chars(text) {
                let right = code(char);
                if let Some(left) = left {
                    points.insert(left, right);
                }
                left = Some(right);
            }
        }
        points.wide.shrink_to_fit();
        points
    }

    fn insert(&mut self, left: u32, right: u32) {
        if left < 128 && right < 128 {
            self.ascii[left as usize] |= 1 << right;
        } else {
            self.wide.insert(u64::from(left) << 32 | u64::from(right));
        }
    }

    #[inline]
    fn are_adjacent(&self, left: u32, right: u32) -> bool {
        if left < 128 && right < 128 {
            self.ascii[left as usize] >> right & 1 == 1
        } else {
            self.wide.contains(&(u64::from(left) << 32 | u64::from(right)))
        }
    }

    /// Calls `emit` with the start and end of each part of a text, in order.
    #[inline]
    fn split(&self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        let (mut start, mut left) = (0, None);
        for (at, char) in chars(text) {
            let right = code(char);
            if left.is_some_and(|left| !self.are_adjacent(left, right)) {
                emit(start, at);
                start = at;
            }
            left = Some(right);
        }
        if start < text.len() {
            emit(start, text.len());
        }
    }
}

/// Returns the bytes of a character as a number, which for ASCII is the character itself.
#[inline]
fn code(char: &[u8]) -> u32 {
    match *char {
        [a] => u32::from(a),
        _ if char == SPACE => SPACE_CODE,
        _ => char.iter().fold(0, |code, byte| code << 8 | u32::from(*byte)),
    }
}

/// Appends a text with `▁` for each space.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    let mut start = 0;
    for at in memchr::memchr_iter(b' ', text) {
        out.extend_from_slice(&text[start..at]);
        out.extend_from_slice(SPACE);
        start = at + 1;
    }
    out.extend_from_slice(&text[start..]);
}

/// Returns the position and the bytes of each character.
#[inline]
fn chars(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = text.get(start)?;
        let len = match first {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        let end = (start + len).min(text.len());
        let char = (start, &text[start..end]);
        start = end;
        Some(char)
    })
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
