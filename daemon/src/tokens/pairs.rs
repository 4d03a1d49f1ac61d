//! The merges of a vocabulary as pairs of symbols: byte-pair encoding.
//!
//! Must not know how text is cut into words. A symbol is the number of a text: a token, or a text that only merges
//! make, or one that only a merge's half is. **Invariant**: of equal pairs the first has the rank.

use rustc_hash::FxHashMap;

use super::merge::{Joins, Part};
use super::vocab::{TextIndex, Texts, Vocabulary};

/// Pairs of symbols.
#[derive(Debug)]
pub(super) struct Pairs {
    /// Rank and symbol by the left symbol in the high half and the right one in the low half.
    joins: FxHashMap<u64, (u32, u32)>,
}

impl Pairs {
    /// Takes the merges of a vocabulary whose texts are written as `texts`, under the same numbers and with empty ones
    /// for those that cannot occur; `read` turns a half of a merge into the same form.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        texts: &mut Texts,
        index: &mut TextIndex,
        read: impl Fn(&[u8], &mut Vec<u8>) -> bool,
    ) -> Self {
        let mut joins = FxHashMap::default();
        joins.reserve(vocabulary.merges.len());
        let mut half = Vec::new();
        for (rank, merge) in (0..).zip(&vocabulary.merges) {
            let whole = vocabulary.texts.of(merge.text);
            let (left, right) = whole.split_at(merge.left_bytes as usize);
            let mut number = |text: &[u8]| {
                half.clear();
                let is_readable = read(text, &mut half) && !half.is_empty();
                is_readable.then(|| number_of(texts, index, &half))
            };
            if let (Some(left), Some(right)) = (number(left), number(right)) {
                joins.entry(key(left, right)).or_insert((rank, merge.text));
            }
        }
        Self { joins }
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        // A pair and the byte that says whether its place is taken.
        self.joins.capacity() * 8 / 7 * (size_of::<(u64, (u32, u32))>() + 1)
    }
}

impl Joins for Pairs {
    #[inline]
    fn join(&self, left: Part, right: Part) -> Option<(u32, u32)> {
        self.joins.get(&key(left.symbol, right.symbol)).copied()
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The number of a text, a new one where it has none.
pub(super) fn number_of(texts: &mut Texts, index: &mut TextIndex, text: &[u8]) -> u32 {
    index.find(texts, text).unwrap_or_else(|| {
        let at = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        if texts.push(text) {
            index.insert(texts, at);
        }
        at
    })
}
