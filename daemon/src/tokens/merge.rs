//! Merging neighbours, best pair first: what byte-pair encoding and SentencePiece have in common.
//!
//! Must not know texts or vocabularies. **Invariants**: of all pairs the one of the lowest rank is joined, of equal
//! ones the leftmost; n parts cost O(n log n), also when all are the same.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
