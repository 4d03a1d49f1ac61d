//! Choices that follow from a seed.

/// The generator `SplitMix64`: small, fast, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Returns the dice for one part of a simulation, independent of the dice for its other parts.
    pub(crate) fn of(seed: u64, part: u64) -> Self {
        let mixed = Self(seed).next() ^ Self(!part).next();
        Self(mixed)
    }

    /// Returns dice that are independent of these from now on.
    pub(crate) fn split(&mut self) -> Self {
        Self::of(self.next(), 0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, or 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Returns true in `percent` of all cases.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
