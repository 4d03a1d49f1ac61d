//! The merges of a vocabulary as pairs of symbols: byte-pair encoding.
//!
//! Must not know how text is cut into words. A symbol is the number of a text: a token, or a text that only merges
//! make, or one that only a merge's half is. **Invariant**: of equal pairs the first has the rank.

use std::ops::Range;

use super::merge::{Joins, Part};
use super::vocab::{TextIndex, Texts, Vocabulary};

/// Symbols below this have a table of their own: in most vocabularies the single bytes come first, and a word begins
/// with pairs of these.
const FIRST_SYMBOLS: u32 = 256;

/// Pairs of symbols.
#[derive(Debug)]
pub(super) struct Pairs {
    /// Open addressing, at most two thirds full. An entry is within one cache line, which a map of the standard
    /// library would need two of.
    slots: Vec<Slot>,
    /// A bit for some pairs, among them every one that is in `slots`: most questions end here, in a table that the
    /// processor's second-level cache holds.
    filter: Vec<u64>,
    /// Ranks and symbols of the pairs of the first symbols.
    first: Vec<(u32, u32)>,
}

/// A pair with its rank and the symbol that it makes; free where the rank is [`FREE`].
#[derive(Clone, Copy, Debug)]
struct Slot {
    left: u32,
    right: u32,
    rank: u32,
    whole: u32,
}

const FREE: u32 = u32::MAX;

impl Pairs {
    /// Takes the merges of a vocabulary whose texts are written as `texts`, under the same numbers and with empty ones
    /// for those that cannot occur; `written` says how long the left half of a merge is there.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        texts: &mut Texts,
        index: &mut TextIndex,
        written: impl Fn(&[u8]) -> usize,
    ) -> Self {
        let room = (vocabulary.merges.len() * 3 / 2 + 4).next_power_of_two();
        let free = Slot { left: 0, right: 0, rank: FREE, whole: 0 };
        let first = vec![(FREE, 0); (FIRST_SYMBOLS * FIRST_SYMBOLS) as usize];
        // Eight bits a slot: one in twelve of the pairs that are none passes.
        let filter = vec![0; (room / 8).max(1)];
        let mut pairs = Self { slots: vec![free; room], filter, first };
        for (rank, merge) in (0..).zip(&vocabulary.merges) {
            let (left, _) = vocabulary.texts.of(merge.text).split_at(merge.left_bytes as usize);
            let len = texts.of(merge.text).len();
            let left_len = written(left);
            if left_len == 0 || left_len >= len {
                continue;
            }
            let left = number_of(texts, index, merge.text, 0..left_len);
            let right = number_of(texts, index, merge.text, left_len..len);
            pairs.insert(Slot { left, right, rank, whole: merge.text });
        }
        pairs
    }

    fn insert(&mut self, pair: Slot) {
        let slot = self.slot(pair.left, pair.right);
        if self.slots[slot].rank != FREE {
            return;
        }
        self.slots[slot] = pair;
        let (word, bit) = self.bit(pair.left, pair.right);
        self.filter[word] |= bit;
        if (pair.left | pair.right) < FIRST_SYMBOLS {
            let at = pair.left * FIRST_SYMBOLS + pair.right;
            self.first[at as usize] = (pair.rank, pair.whole);
        }
    }

    /// The slot of a pair, or the free one where it belongs.
    #[inline]
    fn slot(&self, left: u32, right: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash(left, right) & mask;
        loop {
            let slot = &self.slots[at];
            if slot.rank == FREE || (slot.left == left && slot.right == right) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// The word of the filter and the bit in it that stand for a pair.
    #[inline]
    fn bit(&self, left: u32, right: u32) -> (usize, u64) {
        let hash = hash(left, right);
        ((hash >> 6) & (self.filter.len() - 1), 1 << (hash & 63))
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.filter.capacity() * size_of::<u64>()
            + self.first.capacity() * size_of::<(u32, u32)>()
    }
}

impl Joins for Pairs {
    #[inline]
    fn join(&self, left: Part, right: Part) -> Option<(u32, u32)> {
        let (left, right) = (left.symbol, right.symbol);
        if (left | right) < FIRST_SYMBOLS {
            let (rank, whole) = self.first[(left * FIRST_SYMBOLS + right) as usize];
            return (rank != FREE).then_some((rank, whole));
        }
        let (word, bit) = self.bit(left, right);
        if self.filter[word] & bit == 0 {
            return None;
        }
        let slot = &self.slots[self.slot(left, right)];
        (slot.rank != FREE).then_some((slot.rank, slot.whole))
    }
}

/// Mixes both symbols into all bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "any bits of a hash are a hash")]
fn hash(left: u32, right: u32) -> usize {
    let mixed = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32) as usize
}

/// The number of a part of a text, a new one where it has none.
fn number_of(texts: &mut Texts, index: &mut TextIndex, whole: u32, part: Range<usize>) -> u32 {
    if let Some(number) = index.find(texts, &texts.of(whole)[part.clone()]) {
        return number;
    }
    let text = texts.of(whole)[part].to_vec();
    index.add(texts, &text)
}
