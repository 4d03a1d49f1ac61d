//! Merging neighboring symbols, best pair first: the step that byte-pair encoding and SentencePiece share, and the
//! merge table of byte-pair encoding.
//!
//! A symbol is the number of a text: a token, or a text that occurs only as a half or as a result of a merge.
//! Must not know how text is split into words.
//!
//! **Invariants**: the pair of the lowest rank is merged first, and of equal ranks the leftmost; of duplicate merges
//! the first one sets the rank; n symbols cost O(n log n), even if all pairs are equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::vocab::{TextIndex, Texts, Vocabulary};

/// No pair, or no neighbour.
const NONE: u32 = u32::MAX;
/// Up to this many parts the lowest rank is searched among all of them, which needs no queue. Beyond it the search
/// costs more than the queue does.
const SEARCHED_PARTS: usize = 64;

/// A piece of a word: which symbol it is, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) symbol: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// What says which neighbours can be joined.
pub(super) trait Joins {
    /// The rank of a pair and the symbol that it makes.
    fn join(&self, left: Part, right: Part) -> Option<(u32, u32)>;
}

/// A part in the chain of what is left of a word.
#[derive(Clone, Copy, Debug)]
struct Node {
    part: Part,
    /// The symbol of this node and the next one together.
    joined: u32,
    previous: u32,
    next: u32,
}

/// Buffers that are used again from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    nodes: Vec<Node>,
    /// The rank of every node's pair with the next one; apart from the nodes, so that the lowest is found quickly.
    ranks: Vec<u32>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Forgets the parts of the word before.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.ranks.clear();
    }

    /// Appends a part of the word.
    #[inline]
    pub(super) fn push(&mut self, part: Part) {
        let at = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        let previous = at.checked_sub(1).unwrap_or(NONE);
        self.nodes.push(Node { part, joined: NONE, previous, next: at.saturating_add(1) });
    }

    /// Joins what can be joined.
    pub(super) fn merge(&mut self, joins: &impl Joins) {
        if let Some(last) = self.nodes.last_mut() {
            last.next = NONE;
        }
        self.ranks.resize(self.nodes.len(), NONE);
        for at in 0..self.nodes.len() {
            self.pair(joins, at);
        }
        if self.nodes.len() <= SEARCHED_PARTS {
            self.merge_few(joins);
        } else {
            self.merge_many(joins);
        }
    }

    /// The parts that are left, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at)?;
            at = node.next as usize;
            Some(node.part)
        })
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.ranks.capacity() * size_of::<u32>()
            + self.queue.capacity() * size_of::<u64>()
    }

    fn merge_few(&mut self, joins: &impl Joins) {
        while let Some(lowest) = self.ranks.iter().copied().min().filter(|rank| *rank != NONE) {
            let Some(at) = self.ranks.iter().position(|rank| *rank == lowest) else { return };
            self.join(joins, at);
        }
    }

    fn merge_many(&mut self, joins: &impl Joins) {
        // One heap of all first pairs is cheaper than one that grows pair by pair.
        let mut first = std::mem::take(&mut self.queue).into_vec();
        first.clear();
        first.extend((0..self.nodes.len()).filter_map(|at| self.place(at)).map(Reverse));
        self.queue = BinaryHeap::from(first);
        while let Some(Reverse(place)) = self.queue.pop() {
            let at = (place & u64::from(NONE)) as usize;
            // The pair is gone when one of the two was joined to something else meanwhile.
            if u64::from(self.ranks[at]) != place >> 32 {
                continue;
            }
            let previous = self.nodes[at].previous as usize;
            self.join(joins, at);
            for at in [at, previous] {
                let place = if at == NONE as usize { None } else { self.place(at) };
                self.queue.extend(place.map(Reverse));
            }
        }
    }

    /// The place of a node's pair in the queue: by rank, then from the left.
    fn place(&self, at: usize) -> Option<u64> {
        let rank = self.ranks[at];
        (rank != NONE).then_some(u64::from(rank) << 32 | at as u64)
    }

    /// Finds the pair of a node and its next one.
    #[inline]
    fn pair(&mut self, joins: &impl Joins, at: usize) {
        let node = self.nodes[at];
        let next = self.nodes.get(node.next as usize).map(|next| next.part);
        let join = next.and_then(|next| joins.join(node.part, next));
        (self.ranks[at], self.nodes[at].joined) = join.unwrap_or((NONE, NONE));
    }

    /// Joins a node and its next one.
    fn join(&mut self, joins: &impl Joins, at: usize) {
        let node = self.nodes[at];
        let right = self.nodes[node.next as usize];
        // What was taken in has no pair any more.
        self.ranks[node.next as usize] = NONE;
        self.nodes[at].part = Part { symbol: node.joined, end: right.part.end, ..node.part };
        self.nodes[at].next = right.next;
        if let Some(after) = self.nodes.get_mut(right.next as usize) {
            after.previous = u32::try_from(at).unwrap_or(NONE);
        }
        self.pair(joins, at);
        if node.previous != NONE {
            self.pair(joins, node.previous as usize);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins a pair of the same symbol into the next one, as far as nine.
    struct Doubling;

    impl Joins for Doubling {
        fn join(&self, left: Part, right: Part) -> Option<(u32, u32)> {
            (left.symbol == right.symbol && left.symbol < 9)
                .then_some((left.symbol, left.symbol + 1))
        }
    }

    fn merged(n: u32) -> Vec<u32> {
        let mut merger = Merger::default();
        for at in 0..n {
            merger.push(Part { symbol: 0, start: at, end: at + 1 });
        }
        merger.merge(&Doubling);
        let mut end = 0;
        merger
            .parts()
            .map(|part| {
                assert_eq!(part.start, end);
                end = part.end;
                part.symbol
            })
            .collect()
    }

    #[test]
    fn equal_ranks_are_joined_from_the_left() {
        assert_eq!(merged(3), [1, 0]);
        assert_eq!(merged(7), [2, 1, 0]);
    }

    #[test]
    fn both_ways_give_the_same() {
        for n in [63, 64, 65, 66, 100, 1000] {
            let binary = |n: u32| {
                let mut expect = vec![9; (n >> 9) as usize];
                expect.extend((0..9).rev().filter(|bit| n >> bit & 1 == 1));
                expect
            };
            assert_eq!(merged(n), binary(n), "{n}");
        }
    }
}
