//! The shares of a prompt limit at which a `ContextThreshold` event is published.
//!
//! A share is in force while a subscription asks for it, and afterwards for as long as events from that time can be
//! replayed: a subscriber that reconnects with `since` then receives the events that it would have received.

/// The share that is always in force.
pub(crate) const DEFAULT_THRESHOLD: f64 = 0.85;
/// Maximum number of shares kept for subscribers that may reconnect, so that a client that asks for other shares each
/// time does not grow memory.
const MAX_ENDED: usize = 64;

/// The shares that subscriptions asked for.
#[derive(Default)]
pub(super) struct Thresholds(Vec<RequestedShare>);

struct RequestedShare {
    share: f64,
    /// The number of open subscriptions that ask for the share.
    n_open: usize,
    /// The number of the next event when the last of these subscriptions ended.
    ended_at: u64,
}

impl Thresholds {
    /// Adds the shares of a new subscription.
    pub(super) fn add(&mut self, shares: &[f64]) {
        for share in distinct(shares) {
            match self.0.iter_mut().find(|requested| requested.share == share) {
                Some(requested) => requested.n_open += 1,
                None => self.0.push(RequestedShare { share, n_open: 1, ended_at: 0 }),
            }
        }
    }

    /// Removes the shares of a subscription that ended; `next` is the number of the next event.
    pub(super) fn remove(&mut self, shares: &[f64], next: u64) {
        for share in distinct(shares) {
            if let Some(requested) = self.0.iter_mut().find(|requested| requested.share == share) {
                (requested.n_open, requested.ended_at) = (requested.n_open.saturating_sub(1), next);
            }
        }
        let has_ended = |requested: &RequestedShare| requested.n_open == 0;
        while self.0.iter().filter(|requested| has_ended(requested)).count() > MAX_ENDED {
            let ended = self.0.iter().enumerate().filter(|(_, requested)| has_ended(requested));
            let Some((oldest, _)) = ended.min_by_key(|(_, requested)| requested.ended_at) else {
                return;
            };
            self.0.remove(oldest);
        }
    }

    /// Returns the shares in force, in rising order; `oldest` is the oldest event that can be replayed.
    pub(super) fn in_force(&mut self, oldest: u64) -> Vec<f64> {
        self.0.retain(|requested| requested.n_open > 0 || requested.ended_at >= oldest);
        let mut shares: Vec<f64> = self.0.iter().map(|requested| requested.share).collect();
        if !shares.contains(&DEFAULT_THRESHOLD) {
            shares.push(DEFAULT_THRESHOLD);
        }
        shares.sort_by(f64::total_cmp);
        shares
    }
}

/// Returns each share once.
fn distinct(shares: &[f64]) -> impl Iterator<Item = f64> {
    let first = |at: &usize| !shares[..*at].contains(&shares[*at]);
    (0..shares.len()).filter(first).map(|at| shares[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_in_force_while_requested_or_replayable() {
        let mut thresholds = Thresholds::default();
        assert_eq!(thresholds.in_force(1), [0.85]);
        thresholds.add(&[0.9, 0.5, 0.5]);
        thresholds.add(&[0.5, 0.85]);
        assert_eq!(thresholds.in_force(1), [0.5, 0.85, 0.9]);
        thresholds.remove(&[0.9, 0.5, 0.5], 7);
        assert_eq!(thresholds.in_force(7), [0.5, 0.85, 0.9], "events from then can be replayed");
        assert_eq!(thresholds.in_force(8), [0.5, 0.85], "one subscription still asks for 0.5");
        thresholds.remove(&[0.5, 0.85], 9);
        assert_eq!(thresholds.in_force(10), [0.85]);
    }

    #[test]
    fn ended_shares_are_bounded() {
        let mut thresholds = Thresholds::default();
        thresholds.add(&[0.25]);
        for n in 0..500_u32 {
            let share = f64::from(n) / 1000.0;
            thresholds.add(&[share]);
            thresholds.remove(&[share], u64::from(n));
        }
        let kept = thresholds.in_force(0);
        assert!(kept.len() <= MAX_ENDED + 2 && kept.contains(&0.25), "{kept:?}");
        assert!(kept.contains(&0.499) && !kept.contains(&0.001), "{kept:?}");
    }
}
