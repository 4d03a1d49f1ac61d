//! Many short texts in one allocation, and an index from a text to its number.
//!
//! Must not know tokens. **Invariant**: the end of a text is never before its beginning, and all lie in the bytes.

/// Texts by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Texts {
    /// The most bytes that all texts together may have; the largest vocabulary known has 3 MB, its merges 8 MB.
    pub(in super::super) const MAX_BYTES: usize = 256 << 20;

    /// Appends a text, or says that there is no more room.
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

    /// A text by its number; empty where there is none.
    pub(in super::super) fn at(&self, at: usize) -> &[u8] {
        let Some(&end) = self.ends.get(at) else { return &[] };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// A text by the id of its token.
    pub(in super::super) fn of(&self, id: u32) -> &[u8] {
        self.at(id as usize)
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.at(at))
    }

    /// Bytes of memory.
    pub(in super::super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// The hash of a text, which tells most others apart without a look at them, and its number plus one; 0 is free.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hash: u32,
    number: u32,
}

/// Finds the number of a text; the texts themselves lie elsewhere.
#[derive(Debug, Default)]
pub(in super::super) struct TextIndex {
    /// At most half are taken.
    slots: Vec<Slot>,
    n: usize,
}

impl TextIndex {
    /// An index with room for `n` texts.
    pub(in super::super) fn with_room(n: usize) -> Self {
        Self { slots: vec![Slot::default(); (n.max(4) * 2).next_power_of_two()], n: 0 }
    }

    /// An index of all texts; of equal ones the last wins, as in the engine.
    pub(in super::super) fn of(texts: &Texts) -> Self {
        let mut index = Self::with_room(texts.len());
        for at in 0..texts.len() {
            index.insert(texts, u32::try_from(at).unwrap_or(u32::MAX));
        }
        index
    }

    /// Adds the text of a number; an equal text's number is replaced.
    pub(in super::super) fn insert(&mut self, texts: &Texts, at: u32) {
        if (self.n + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let hash = hash(texts.of(at));
        let slot = self.slot(hash, |number| texts.of(number) == texts.of(at));
        self.n += usize::from(self.slots[slot].number == 0);
        self.slots[slot] = Slot { hash, number: at.saturating_add(1) };
    }

    /// The number of a text, a new one where it has none.
    pub(in super::super) fn add(&mut self, texts: &mut Texts, text: &[u8]) -> u32 {
        if let Some(number) = self.find(texts, text) {
            return number;
        }
        let at = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        if texts.push(text) {
            self.insert(texts, at);
        }
        at
    }

    /// The number of a text.
    #[inline]
    pub(in super::super) fn find(&self, texts: &Texts, text: &[u8]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.slot(hash(text), |number| texts.of(number) == text);
        self.slots[slot].number.checked_sub(1)
    }

    /// The slot of a text with a hash, or the free one where it belongs.
    #[inline]
    fn slot(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            match slot.number.checked_sub(1) {
                None => return at,
                Some(number) if slot.hash == hash && is_it(number) => return at,
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        let room = (self.n.max(4) * 4).next_power_of_two();
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); room]);
        for slot in old.into_iter().filter(|slot| slot.number != 0) {
            let free = self.slot(slot.hash, |_| false);
            self.slots[free] = slot;
        }
    }

    /// Bytes of memory.
    pub(in super::super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }
}

/// Mixes eight bytes at a time; the same on every machine and in every process.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low bits of a hash are a hash")]
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
