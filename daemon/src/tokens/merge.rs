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
const SEARCHED_PARTS: usize = 40;

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
    /// The rank of the pair with the next node, and the symbol of both.
    rank: u32,
    joined: u32,
    previous: u32,
    next: u32,
}

/// Buffers that are used again from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Forgets the parts of the word before.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Appends a part of the word.
    pub(super) fn push(&mut self, part: Part) {
        self.nodes.push(Node { part, rank: NONE, joined: NONE, previous: NONE, next: NONE });
    }

    /// Joins what can be joined.
    pub(super) fn merge(&mut self, joins: &impl Joins) {
        if self.nodes.len() <= SEARCHED_PARTS {
            self.merge_few(joins);
        } else {
            self.merge_many(joins);
        }
    }

    /// The parts that are left, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        let is_chained = self.nodes.len() > SEARCHED_PARTS;
        let mut at = 0;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at)?;
            at = if is_chained { node.next as usize } else { at + 1 };
            Some(node.part)
        })
    }

    /// Bytes of memory.
    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.queue.capacity() * size_of::<u64>()
    }

    fn merge_few(&mut self, joins: &impl Joins) {
        let nodes = &mut self.nodes;
        let pair = |nodes: &mut Vec<Node>, at: usize| {
            let next = nodes.get(at + 1).map(|next| next.part);
            let join = next.and_then(|next| joins.join(nodes[at].part, next));
            (nodes[at].rank, nodes[at].joined) = join.unwrap_or((NONE, NONE));
        };
        for at in 0..nodes.len() {
            pair(nodes, at);
        }
        loop {
            let best = nodes.iter().enumerate().min_by_key(|(_, node)| node.rank);
            let Some((at, best)) = best.filter(|(_, node)| node.rank != NONE) else { return };
            let joined = best.joined;
            let right = nodes.remove(at + 1);
            nodes[at].part = Part { symbol: joined, end: right.part.end, ..nodes[at].part };
            pair(nodes, at);
            if let Some(before) = at.checked_sub(1) {
                pair(nodes, before);
            }
        }
    }

    fn merge_many(&mut self, joins: &impl Joins) {
        self.queue.clear();
        let n = self.nodes.len();
        for at in 0..n {
            let index = |at: usize| u32::try_from(at).unwrap_or(NONE);
            self.nodes[at].previous = at.checked_sub(1).map_or(NONE, index);
            self.nodes[at].next = if at + 1 < n { index(at + 1) } else { NONE };
        }
        // One heap of all first pairs is cheaper than one that grows pair by pair.
        let mut first = std::mem::take(&mut self.queue).into_vec();
        for at in 0..n {
            first.extend(self.pair(joins, at).map(Reverse));
        }
        self.queue = BinaryHeap::from(first);
        while let Some(Reverse(entry)) = self.queue.pop() {
            let at = (entry & u64::from(NONE)) as usize;
            // The pair is gone when one of the two was joined to something else meanwhile.
            if u64::from(self.nodes[at].rank) == entry >> 32 {
                self.join(joins, at);
            }
        }
    }

    /// Finds the pair of a node and its next one; gives its place in the queue.
    fn pair(&mut self, joins: &impl Joins, at: usize) -> Option<u64> {
        let node = self.nodes[at];
        let next = self.nodes.get(node.next as usize).map(|next| next.part);
        let join = next.and_then(|next| joins.join(node.part, next));
        let (rank, joined) = join.unwrap_or((NONE, NONE));
        (self.nodes[at].rank, self.nodes[at].joined) = (rank, joined);
        (rank != NONE).then_some(u64::from(rank) << 32 | at as u64)
    }

    fn join(&mut self, joins: &impl Joins, at: usize) {
        let node = self.nodes[at];
        let right = self.nodes[node.next as usize];
        // What was taken in has no pair any more.
        self.nodes[node.next as usize].rank = NONE;
        self.nodes[at].part = Part { symbol: node.joined, end: right.part.end, ..node.part };
        self.nodes[at].next = right.next;
        if let Some(after) = self.nodes.get_mut(right.next as usize) {
            after.previous = u32::try_from(at).unwrap_or(NONE);
        }
        let own = self.pair(joins, at);
        let before = match node.previous {
            NONE => None,
            before => self.pair(joins, before as usize),
        };
        self.queue.extend(own.into_iter().chain(before).map(Reverse));
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
        for n in [39, 40, 41, 42, 100, 1000] {
            let binary = |n: u32| {
                let mut expect = vec![9; (n >> 9) as usize];
                expect.extend((0..9).rev().filter(|bit| n >> bit & 1 == 1));
                expect
            };
            assert_eq!(merged(n), binary(n), "{n}");
        }
    }
}
