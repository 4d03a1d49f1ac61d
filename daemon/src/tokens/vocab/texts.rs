//! Many short texts in one allocation, and an index from a text to its number.
//!
//! Must not know tokens.
//!
//! **Invariant**: the ends of the texts are ascending and within the bytes.

/// Texts by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Texts {
    /// Maximum size of all texts. The largest known vocabulary has 3 MB of tokens and 8 MB of merges.
    const MAX_BYTES: usize = 256 << 20;

    /// Appends a text; returns false if it does not fit.
    pub(in super::super) fn push(&mut self, text: &[u8]) -> bool {
        let end = self.bytes.len() + text.len();
        let Some(end) = u32::try_from(end).ok().filter(|_| end <= Self::MAX_BYTES) else {
            return false;
        };
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        true
    }

    pub(in super::super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the text with a number; empty for an unknown number.
    fn at(&self, at: usize) -> &[u8] {
        let Some(&end) = self.ends.get(at) else { return &[] };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Returns the text of a token or symbol id.
    pub(in super::super) fn of(&self, id: u32) -> &[u8] {
        self.at(id as usize)
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.at(at))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct TextSlot {
    /// The hash of the text, so that most other texts are rejected without reading them.
    hash: u32,
    /// The number plus one; 0 marks a free slot.
    number: u32,
}

/// A hash table from texts to their numbers; the texts are stored separately.
#[derive(Debug, Default)]
pub(in super::super) struct TextIndex {
    /// At most half of the slots are used.
    slots: Vec<TextSlot>,
    n_used: usize,
}

impl TextIndex {
    /// Creates an index with room for `n` texts.
    pub(in super::super) fn with_capacity(n: usize) -> Self {
        Self { slots: vec![TextSlot::default(); (n.max(4) * 2).next_power_of_two()], n_used: 0 }
    }

    /// Creates an index of all texts; of duplicates the last one wins, as in the engine.
    pub(in super::super) fn of(texts: &Texts) -> Self {
        let mut index = Self::with_capacity(texts.len());
        for at in 0..texts.len() {
            index.insert(texts, u32::try_from(at).unwrap_or(u32::MAX));
        }
        index
    }

    /// Inserts the text with a number, replacing the number of an equal text.
    pub(in super::super) fn insert(&mut self, texts: &Texts, at: u32) {
        if (self.n_used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let hash = hash(texts.of(at));
        let slot = self.slot(hash, |number| texts.of(number) == texts.of(at));
        self.n_used += usize::from(self.slots[slot].number == 0);
        self.slots[slot] = TextSlot { hash, number: at.saturating_add(1) };
    }

    /// Returns the number of a text, appending the text if it has none; `None` if it does not fit.
    pub(in super::super) fn add(&mut self, texts: &mut Texts, text: &[u8]) -> Option<u32> {
        if let Some(number) = self.find(texts, text) {
            return Some(number);
        }
        let at = u32::try_from(texts.len()).ok()?;
        if !texts.push(text) {
            return None;
        }
        self.insert(texts, at);
        Some(at)
    }

    /// Returns the number of a text.
    #[inline]
    pub(in super::super) fn find(&self, texts: &Texts, text: &[u8]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.slot(hash(text), |number| texts.of(number) == text);
        self.slots[slot].number.checked_sub(1)
    }

    /// Returns the slot of a text, or the free slot where it would be inserted.
    #[inline]
    fn slot(&self, hash: u32, is_equal: impl Fn(u32) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            match slot.number.checked_sub(1) {
                None => return at,
                Some(number) if slot.hash == hash && is_equal(number) => return at,
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        let n = (self.n_used.max(4) * 4).next_power_of_two();
        let old = std::mem::replace(&mut self.slots, vec![TextSlot::default(); n]);
        for slot in old.into_iter().filter(|slot| slot.number != 0) {
            let free = self.slot(slot.hash, |_| false);
            self.slots[free] = slot;
        }
    }
}

/// Hashes a text, eight bytes at a time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low bits of a hash will do")]
fn hash(text: &[u8]) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = text.len() as u64;
    let (words, rest) = text.as_chunks::<8>();
    let mut mix = |word: u64| {
        hash = (hash ^ word).wrapping_mul(ODD);
        hash ^= hash >> 29;
    };
    for word in words {
        mix(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(u64::from_le_bytes(last));
    (hash ^ (hash >> 32)) as u32
}
