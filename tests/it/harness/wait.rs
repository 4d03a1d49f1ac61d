//! Waiting with a deadline, and random numbers that can be repeated.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time limit of every wait. Only a failing test reaches it, so it is generous: the machine may be slow or busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until a condition holds.
///
/// **Panics** with `condition_name` when the deadline passes first.
#[track_caller]
pub(crate) fn until(condition_name: &str, mut condition: impl FnMut() -> bool) {
    until_some(condition_name, || condition().then_some(()));
}

/// As [`until`], for what the daemon does after a pause that is `times` as long as something lasted since `begun`: on a
/// machine that stops for a minute, that takes minutes.
///
/// **Panics** with `condition_name` when the deadline passes first.
#[track_caller]
pub(crate) fn until_after_pause(
    condition_name: &str,
    (begun, times): (Instant, u32),
    mut condition: impl FnMut() -> bool,
) {
    let end = Instant::now() + begun.elapsed() * times;
    while Instant::now() < end {
        if condition() {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    until(condition_name, condition);
}

/// Waits until `condition` returns a value, and returns that value.
///
/// **Panics** with `condition_name` when the deadline passes first.
#[track_caller]
pub(crate) fn until_some<T>(condition_name: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {condition_name}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waiting for a child process with a time limit.
pub(crate) trait ChildExt {
    /// Waits for the exit and returns its status, or `None` if the process still runs when `limit` has passed.
    #[must_use]
    fn wait_timeout(&mut self, limit: Duration) -> Option<ExitStatus>;
}

impl ChildExt for Child {
    fn wait_timeout(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A pseudo-random generator (xorshift64*); `OLLM_TEST_SEED` repeats a run.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator and prints its seed, so that a failure can be repeated.
    pub(crate) fn seeded(test: &str) -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed =
            std::env::var("OLLM_TEST_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap());
        eprintln!("{test}: repeat with OLLM_TEST_SEED={seed}");
        Self(seed | 1)
    }

    /// Returns an independent generator, which a run with the same seed repeats.
    pub(crate) fn fork(&mut self) -> Self {
        let mixed =
            (self.below(1 << 31) << 32 | self.below(1 << 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed | 1)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
