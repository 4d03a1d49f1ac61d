//! At which shares of a prompt limit somebody wants to be told of a context.
//!
//! A share is in force while a subscription names it, and after that for as long as the ring can be replayed from
//! that moment: who comes back with `since` finds what happened meanwhile as if the subscription had gone on.

/// The share at which everybody is told.
pub(crate) const DEFAULT_THRESHOLD: f64 = 0.85;
/// Most shares that are kept for who may come back; a client that names others each time does not grow memory.
const MAX_LEFT: usize = 64;

/// The shares that subscriptions named.
#[derive(Default)]
pub(super) struct Thresholds(Vec<Named>);

struct Named {
    share: f64,
    /// Subscriptions that name it.
    n_live: usize,
    /// The number of the event that came next when the last of them ended.
    left_at: u64,
}

impl Thresholds {
    /// A subscription names shares.
    pub(super) fn name(&mut self, shares: &[f64]) {
        for share in distinct(shares) {
            match self.0.iter_mut().find(|named| named.share == share) {
                Some(named) => named.n_live += 1,
                None => self.0.push(Named { share, n_live: 1, left_at: 0 }),
            }
        }
    }

    /// A subscription that named shares ends before the event with the number `next`.
    pub(super) fn leave(&mut self, shares: &[f64], next: u64) {
        for share in distinct(shares) {
            if let Some(named) = self.0.iter_mut().find(|named| named.share == share) {
                (named.n_live, named.left_at) = (named.n_live.saturating_sub(1), next);
            }
        }
        let left = |named: &Named| named.n_live == 0;
        while self.0.iter().filter(|named| left(named)).count() > MAX_LEFT {
            let all = self.0.iter().enumerate().filter(|(_, named)| left(named));
            let Some((oldest, _)) = all.min_by_key(|(_, named)| named.left_at) else { return };
            self.0.remove(oldest);
        }
    }

    /// The shares in force, in rising order, when `oldest` is the first event that can be replayed.
    pub(super) fn in_force(&mut self, oldest: u64) -> Vec<f64> {
        self.0.retain(|named| named.n_live > 0 || named.left_at >= oldest);
        let mut shares: Vec<f64> = self.0.iter().map(|named| named.share).collect();
        if !shares.contains(&DEFAULT_THRESHOLD) {
            shares.push(DEFAULT_THRESHOLD);
        }
        shares.sort_by(f64::total_cmp);
        shares
    }
}

/// Each share once.
fn distinct(shares: &[f64]) -> impl Iterator<Item = f64> {
    let first = |at: &usize| !shares[..*at].contains(&shares[*at]);
    (0..shares.len()).filter(first).map(|at| shares[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_union_of_what_is_named_and_the_default_is_in_force() {
        let mut thresholds = Thresholds::default();
        assert_eq!(thresholds.in_force(1), [0.85]);
        thresholds.name(&[0.9, 0.5, 0.5]);
        thresholds.name(&[0.5, 0.85]);
        assert_eq!(thresholds.in_force(1), [0.5, 0.85, 0.9]);
        thresholds.leave(&[0.9, 0.5, 0.5], 7);
        assert_eq!(thresholds.in_force(7), [0.5, 0.85, 0.9], "what comes can be replayed");
        assert_eq!(thresholds.in_force(8), [0.5, 0.85], "one of them still names it");
        thresholds.leave(&[0.5, 0.85], 9);
        assert_eq!(thresholds.in_force(10), [0.85]);
    }

    #[test]
    fn who_names_others_each_time_does_not_grow_memory() {
        let mut thresholds = Thresholds::default();
        thresholds.name(&[0.25]);
        for n in 0..500_u32 {
            let share = f64::from(n) / 1000.0;
            thresholds.name(&[share]);
            thresholds.leave(&[share], u64::from(n));
        }
        let kept = thresholds.in_force(0);
        assert!(kept.len() <= MAX_LEFT + 2 && kept.contains(&0.25), "{kept:?}");
        assert!(kept.contains(&0.499) && !kept.contains(&0.001), "{kept:?}");
    }
}
