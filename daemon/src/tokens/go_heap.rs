//! The heap from which Ollama's engine in Go takes the next pair to merge.
//!
//! The layout of this heap decides about the order of pairs with an equal rank, and so about the tokens of a word such
//! as `=====`. Therefore the heap works step by step as the original does.
//! Must not know symbols or vocabularies.
//!
//! **Source**: `trees/binaryheap` of `github.com/emirpasic/gods/v2`, which Ollama's `BytePairEncoding` uses with a
//! comparison of ranks.

/// A pair of neighbors that may merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapPair {
    pub(super) rank: u32,
    /// The position of the left node.
    pub(super) left: u32,
    pub(super) right: u32,
    /// The bytes of both texts when the pair was found; the pair is outdated if they have changed.
    pub(super) len: u32,
    /// The symbol that the pair merges into.
    pub(super) merged: u32,
}

/// Pairs, of which one with the lowest rank is the first.
#[derive(Debug, Default)]
pub(super) struct GoHeap(Vec<HeapPair>);

impl GoHeap {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, pair: HeapPair) {
        self.0.push(pair);
        let mut at = self.0.len() - 1;
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.0[parent].rank <= self.0[at].rank {
                break;
            }
            self.0.swap(at, parent);
            at = parent;
        }
    }

    pub(super) fn pop(&mut self) -> Option<HeapPair> {
        if self.0.is_empty() {
            return None;
        }
        let first = self.0.swap_remove(0);
        let mut at = 0;
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(left_pair) = self.0.get(left) else { break };
            let is_right = self.0.get(right).is_some_and(|pair| left_pair.rank > pair.rank);
            let smaller = if is_right { right } else { left };
            if self.0[at].rank <= self.0[smaller].rank {
                break;
            }
            self.0.swap(at, smaller);
            at = smaller;
        }
        Some(first)
    }

    pub(super) const fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<HeapPair>()
    }
}
