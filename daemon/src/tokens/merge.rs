//! Merging neighboring symbols, best pair first: the step that byte-pair encoding and SentencePiece share, and the
//! merge table of byte-pair encoding.
//!
//! A symbol is the number of a text: a token, or a text that occurs only as a half or as a result of a merge.
//! Must not know how text is split into words.
//!
//! **Invariants**: the pair of the lowest rank is merged first, and of equal ranks the leftmost, except by
//! [`Merger::merge_as_go`]; of duplicate merges the first one sets the rank; n symbols cost O(n log n), even if all
//! pairs are equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::go_heap::{GoHeap, HeapPair};
use super::vocab::{TextIndex, Texts, Vocabulary};

/// The rank of a pair that does not merge, and the index of a missing neighbor.
const NONE: u32 = u32::MAX;
/// Maximum number of symbols for which the lowest rank is found by a linear search. For more, a queue is faster.
const MAX_SEARCHED: usize = 64;

/// A part of a word, as the number of its text and its byte range in the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    pub(super) id: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Symbol {
    const fn len(self) -> u32 {
        self.end - self.start
    }

    const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The rules by which neighboring symbols merge.
pub(super) trait MergeRules {
    /// Returns the rank of a pair and the id of the merged symbol, or `None` if the pair does not merge.
    fn merged(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)>;
}

/// A symbol in the linked list of the symbols that remain of a word.
#[derive(Clone, Copy, Debug)]
struct Node {
    symbol: Symbol,
    /// The id of the symbol that this node and the next one merge into.
    merged: u32,
    previous: u32,
    next: u32,
}

/// Merges the symbols of one word after another, reusing its buffers.
#[derive(Debug, Default)]
pub(super) struct Merger {
    nodes: Vec<Node>,
    /// The rank of each node's pair with the next node. A separate array makes the search for the lowest rank fast.
    ranks: Vec<u32>,
    queue: BinaryHeap<Reverse<u64>>,
    heap: GoHeap,
}

impl Merger {
    /// Removes the symbols of the previous word.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.ranks.clear();
    }

    /// Appends a symbol of the word.
    #[inline]
    pub(super) fn push(&mut self, symbol: Symbol) {
        let at = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        let previous = at.checked_sub(1).unwrap_or(NONE);
        self.nodes.push(Node { symbol, merged: NONE, previous, next: at.saturating_add(1) });
    }

    /// Merges pairs until no rule applies.
    pub(super) fn merge(&mut self, rules: &impl MergeRules) {
        if let Some(last) = self.nodes.last_mut() {
            last.next = NONE;
        }
        self.ranks.resize(self.nodes.len(), NONE);
        for at in 0..self.nodes.len() {
            self.update_pair(rules, at);
        }
        if self.nodes.len() <= MAX_SEARCHED {
            self.merge_few(rules);
        } else {
            self.merge_many(rules);
        }
    }

    /// Merges pairs until no rule applies, in the order of Ollama's engine in Go: of equal ranks, the one that its heap
    /// happens to return. A pair whose text is no token, which is one with an id below `n_tokens`, does not merge.
    pub(super) fn merge_as_go(&mut self, rules: &impl MergeRules, n_tokens: u32) {
        if let Some(last) = self.nodes.last_mut() {
            last.next = NONE;
        }
        self.heap.clear();
        for at in 0..self.nodes.len() {
            self.push_pair(rules, at);
        }
        while let Some(pair) = self.heap.pop() {
            let left = self.nodes[pair.left as usize];
            let right = self.nodes[pair.right as usize];
            let is_outdated = left.symbol.is_empty()
                || right.symbol.is_empty()
                || left.symbol.len() + right.symbol.len() != pair.len;
            if is_outdated || pair.merged >= n_tokens {
                continue;
            }
            let (node, gone) = (pair.left as usize, pair.right as usize);
            self.nodes[node].symbol =
                Symbol { id: pair.merged, end: right.symbol.end, ..left.symbol };
            self.nodes[node].next = right.next;
            self.nodes[gone].symbol.end = right.symbol.start;
            if let Some(after) = self.nodes.get_mut(right.next as usize) {
                after.previous = pair.left;
            }
            if left.previous != NONE {
                self.push_pair(rules, left.previous as usize);
            }
            self.push_pair(rules, node);
        }
    }

    /// Pushes the pair of a node and the next one onto the heap, if the pair merges.
    fn push_pair(&mut self, rules: &impl MergeRules, at: usize) {
        let node = self.nodes[at];
        let Some(next) = self.nodes.get(node.next as usize) else { return };
        if let Some((rank, merged)) = rules.merged(node.symbol, next.symbol) {
            let len = node.symbol.len() + next.symbol.len();
            let left = u32::try_from(at).unwrap_or(NONE);
            self.heap.push(HeapPair { rank, left, right: node.next, len, merged });
        }
    }

    /// Returns the remaining symbols, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = Symbol> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at)?;
            at = node.next as usize;
            Some(node.symbol)
        })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.ranks.capacity() * size_of::<u32>()
            + self.queue.capacity() * size_of::<u64>()
            + self.heap.heap_bytes()
    }

    fn merge_few(&mut self, rules: &impl MergeRules) {
        while let Some(lowest) = self.ranks.iter().copied().min().filter(|rank| *rank != NONE) {
            let Some(at) = self.ranks.iter().position(|rank| *rank == lowest) else { return };
            self.merge_pair(rules, at);
        }
    }

    fn merge_many(&mut self, rules: &impl MergeRules) {
        // Building the heap from all initial pairs at once is cheaper than pushing them one by one.
        let mut initial = std::mem::take(&mut self.queue).into_vec();
        initial.clear();
        initial.extend((0..self.nodes.len()).filter_map(|at| self.queue_key(at)).map(Reverse));
        self.queue = BinaryHeap::from(initial);
        while let Some(Reverse(key)) = self.queue.pop() {
            let at = (key & u64::from(NONE)) as usize;
            // The entry is outdated if one of its two symbols has merged with another one since.
            if u64::from(self.ranks[at]) != key >> 32 {
                continue;
            }
            let previous = self.nodes[at].previous as usize;
            self.merge_pair(rules, at);
            for at in [at, previous] {
                let key = if at == NONE as usize { None } else { self.queue_key(at) };
                self.queue.extend(key.map(Reverse));
            }
        }
    }

    /// Returns the queue key of a node's pair, which orders by rank and then from the left.
    fn queue_key(&self, at: usize) -> Option<u64> {
        let rank = self.ranks[at];
        (rank != NONE).then_some(u64::from(rank) << 32 | at as u64)
    }

    /// Looks up the pair of a node and the next one.
    #[inline]
    fn update_pair(&mut self, rules: &impl MergeRules, at: usize) {
        let node = self.nodes[at];
        let next = self.nodes.get(node.next as usize).map(|next| next.symbol);
        let pair = next.and_then(|next| rules.merged(node.symbol, next));
        (self.ranks[at], self.nodes[at].merged) = pair.unwrap_or((NONE, NONE));
    }

    /// Merges a node with the next one.
    fn merge_pair(&mut self, rules: &impl MergeRules, at: usize) {
        let node = self.nodes[at];
        let right = self.nodes[node.next as usize];
        // The right node is now part of this one and has no pair.
        self.ranks[node.next as usize] = NONE;
        self.nodes[at].symbol = Symbol { id: node.merged, end: right.symbol.end, ..node.symbol };
        self.nodes[at].next = right.next;
        if let Some(after) = self.nodes.get_mut(right.next as usize) {
            after.previous = u32::try_from(at).unwrap_or(NONE);
        }
        self.update_pair(rules, at);
        if node.previous != NONE {
            self.update_pair(rules, node.previous as usize);
        }
    }
}

/// Pairs of symbols below this id have a table of their own: in most vocabularies these are the single bytes, with
/// which the merging of each word begins.
const FIRST_SYMBOLS: u32 = 256;

/// The merges of a vocabulary, by pair of symbols.
///
/// **Source**: for random words, which are not in the word cache, counting was measured to be 10 % slower without `first`
/// and 25 % slower without `filter`.
#[derive(Debug)]
pub(super) struct PairTable {
    /// A hash table with open addressing, at most two thirds full. A lookup reads one cache line, where a map of the
    /// standard library reads two.
    slots: Vec<PairSlot>,
    /// A Bloom filter of the pairs in `slots`. It answers most lookups, and fits into the second-level cache of the
    /// processor.
    filter: Vec<u64>,
    /// The rank and the merged symbol of each pair of the first symbols.
    first: Vec<(u32, u32)>,
}

/// A pair with its rank and merged symbol; free if the rank is [`FREE`].
#[derive(Clone, Copy, Debug)]
struct PairSlot {
    left: u32,
    right: u32,
    rank: u32,
    merged: u32,
}

const FREE: u32 = u32::MAX;

impl PairTable {
    /// Builds the table of a vocabulary.
    ///
    /// `texts` are the texts of the vocabulary as they are compared, by the same numbers, and empty for texts that
    /// cannot occur. `compared_len` returns the length that the left half of a merge has in this form.
    /// Halves without a number are added to `texts` and `index`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        texts: &mut Texts,
        index: &mut TextIndex,
        compared_len: impl Fn(&[u8]) -> usize,
    ) -> Self {
        let room = (vocabulary.merges.len() * 3 / 2 + 4).next_power_of_two();
        let free = PairSlot { left: 0, right: 0, rank: FREE, merged: 0 };
        let first = vec![(FREE, 0); (FIRST_SYMBOLS * FIRST_SYMBOLS) as usize];
        // Eight bits per slot: about one in twelve absent pairs passes the filter.
        let filter = vec![0; (room / 8).max(1)];
        let mut pairs = Self { slots: vec![free; room], filter, first };
        for (rank, merge) in (0..).zip(&vocabulary.merges) {
            let (left, _) = vocabulary.texts.of(merge.text).split_at(merge.left_bytes as usize);
            let len = texts.of(merge.text).len();
            let left_len = compared_len(left);
            if left_len == 0 || left_len >= len {
                continue;
            }
            let left = number_of(texts, index, merge.text, 0..left_len);
            let right = number_of(texts, index, merge.text, left_len..len);
            pairs.insert(PairSlot { left, right, rank, merged: merge.text });
        }
        pairs
    }

    fn insert(&mut self, pair: PairSlot) {
        let slot = self.slot(pair.left, pair.right);
        if self.slots[slot].rank != FREE {
            return;
        }
        self.slots[slot] = pair;
        let (word, bit) = self.bit(pair.left, pair.right);
        self.filter[word] |= bit;
        if (pair.left | pair.right) < FIRST_SYMBOLS {
            let at = pair.left * FIRST_SYMBOLS + pair.right;
            self.first[at as usize] = (pair.rank, pair.merged);
        }
    }

    /// Returns the slot of a pair, or the free slot where it would be inserted.
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

    /// Returns the word of the filter and the bit in it that represent a pair.
    #[inline]
    fn bit(&self, left: u32, right: u32) -> (usize, u64) {
        let hash = hash(left, right);
        ((hash >> 6) & (self.filter.len() - 1), 1 << (hash & 63))
    }
}

impl MergeRules for PairTable {
    #[inline]
    fn merged(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
        let (left, right) = (left.id, right.id);
        if (left | right) < FIRST_SYMBOLS {
            let (rank, merged) = self.first[(left * FIRST_SYMBOLS + right) as usize];
            return (rank != FREE).then_some((rank, merged));
        }
        let (word, bit) = self.bit(left, right);
        if self.filter[word] & bit == 0 {
            return None;
        }
        let slot = &self.slots[self.slot(left, right)];
        (slot.rank != FREE).then_some((slot.rank, slot.merged))
    }
}

/// Mixes both ids into all bits of a hash.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
fn hash(left: u32, right: u32) -> usize {
    let mixed = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32) as usize
}

/// Returns the number of a part of a text, adding the part if it has none.
fn number_of(texts: &mut Texts, index: &mut TextIndex, whole: u32, part: Range<usize>) -> u32 {
    if let Some(number) = index.find(texts, &texts.of(whole)[part.clone()]) {
        return number;
    }
    let text = texts.of(whole)[part].to_vec();
    index.add(texts, &text).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges two equal symbols into the next higher one, up to nine.
    struct Doubling;

    impl MergeRules for Doubling {
        fn merged(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
            (left.id == right.id && left.id < 9).then_some((left.id, left.id + 1))
        }
    }

    fn merged(n: u32) -> Vec<u32> {
        let mut merger = Merger::default();
        for at in 0..n {
            merger.push(Symbol { id: 0, start: at, end: at + 1 });
        }
        merger.merge(&Doubling);
        let mut end = 0;
        merger
            .symbols()
            .map(|symbol| {
                assert_eq!(symbol.start, end);
                end = symbol.end;
                symbol.id
            })
            .collect()
    }

    #[test]
    fn equal_ranks_merge_from_the_left() {
        assert_eq!(merged(3), [1, 0]);
        assert_eq!(merged(7), [2, 1, 0]);
    }

    #[test]
    fn search_and_queue_merge_alike() {
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
