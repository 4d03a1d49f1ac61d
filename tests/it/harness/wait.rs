//! Deadlines, processes that must end, and random numbers that can be repeated.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long anything may take. Generous, since the machine may be busy; reached only when something is wrong.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// How often a condition is looked at that nothing announces.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until a condition gives a value; fails with `what` when it does not in time.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "not in {DEADLINE:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Waiting for a process with a deadline.
pub(crate) trait Waits {
    /// The status, or `None` when the process still runs at the end.
    #[must_use]
    fn wait_for(&mut self, limit: Duration) -> Option<ExitStatus>;
}

impl Waits for Child {
    fn wait_for(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// A small generator (xorshift64*); `OLLM_TEST_SEED` repeats a run.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose seed is printed, so that a failure can be repeated.
    pub(crate) fn announced(test: &str) -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed =
            std::env::var("OLLM_TEST_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap());
        eprintln!("{test}: repeat with OLLM_TEST_SEED={seed}");
        Self(seed | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
