//! The clock of the daemon, and the ids and random durations that depend on it.
//!
//! This is the only module that reads the system's clock or makes ids.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ollm_protocol::{SessionId, Timestamp};
use parking_lot::Mutex;
use uuid::{ContextV7, Timestamp as UuidTime, Uuid};

/// A clock that also makes ids.
///
/// **Invariant**: times never go backwards within one process, even if the system's clock does.
pub(crate) struct Clock {
    latest_ms: Mutex<i64>,
    ids: Mutex<ContextV7>,
}

impl Clock {
    /// Returns a clock that follows the system's clock.
    pub(crate) fn system() -> Self {
        Self { latest_ms: Mutex::new(0), ids: Mutex::new(ContextV7::new()) }
    }

    /// Returns the current time, or the latest time returned before if that is later.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        let mut latest = self.latest_ms.lock();
        *latest = (*latest).max(now_ms);
        Timestamp::from_unix_ms(*latest)
    }

    /// Returns a new UUID of version 7, which sorts after all earlier ones.
    pub(crate) fn uuid(&self) -> Uuid {
        let now_ms = u64::try_from(self.now().unix_ms()).unwrap_or_default();
        let ids = self.ids.lock();
        let (seconds, nanos) = (now_ms / 1000, (now_ms % 1000) * 1_000_000);
        Uuid::new_v7(UuidTime::from_unix(&*ids, seconds, u32::try_from(nanos).unwrap_or_default()))
    }

    /// Returns a random duration below `limit`.
    #[expect(
        clippy::unused_self,
        reason = "randomness belongs to the clock, so that a test can fix it"
    )]
    pub(crate) fn jitter(&self, limit: Duration) -> Duration {
        let (_, low) = Uuid::new_v4().as_u64_pair();
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1);
        // The two highest bits of this half hold the variant of the UUID; all others are random.
        Duration::from_nanos((low & (u64::MAX >> 2)) % nanos)
    }

    /// Returns the id of a new session.
    pub(crate) fn session_id(&self) -> SessionId {
        SessionId::from_uuid(self.uuid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_sorted() {
        let clock = Clock::system();
        let ids: Vec<_> = (0..1000).map(|_| clock.session_id()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn jitter_varies_below_its_limit() {
        let clock = Clock::system();
        let limit = Duration::from_millis(100);
        let all: Vec<_> = (0..100).map(|_| clock.jitter(limit)).collect();
        assert!(all.iter().all(|jitter| *jitter < limit));
        assert!(all.iter().any(|jitter| *jitter != all[0]));
        assert_eq!(clock.jitter(Duration::ZERO), Duration::ZERO);
    }
}
