//! Placement: which of the equal servers of a model a session uses.
//!
//! A session stays with its server, which has its prompt in the cache. A new session gets the least busy one. A server
//! that failed is avoided for a while, or until it answers. All of it is in memory only:
//! after a restart of the daemon, a session may have to be read once more, elsewhere. Of equally busy servers the first is
//! used, which probably has the model loaded.
//! Must not know sessions, servers or queues: the core gathers the values.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hashlink::LruCache;
use ollm_protocol::SessionId;
use parking_lot::Mutex;

/// The time for which a server that failed is avoided. A shorter one makes more turns wait for a server that is down, a
/// longer one leaves a server unused that is there again.
const AVOIDED: Duration = Duration::from_secs(30);
/// The most sessions whose server is remembered; one that was forgotten is placed again.
const MAX_PLACES: usize = 4096;
/// The unit of shares of a server's slots.
const SHARE: usize = 1000;

/// A server that could answer a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Candidate {
    /// Set if the session uses it.
    pub(crate) is_own: bool,
    /// Set if it failed a short time ago.
    pub(crate) is_avoided: bool,
    /// The calls that are running or wait.
    pub(crate) n_calls: usize,
    /// The calls that it answers at the same time, at least one.
    pub(crate) n_slots: usize,
    /// The other sessions that use it.
    pub(crate) n_sessions: usize,
}

/// Returns the position of the server to use: not one that failed, if another did not; the session's own; else the least
/// busy one, and of those the one with the fewest sessions, and of those the first.
pub(crate) fn choose(candidates: &[Candidate]) -> Option<usize> {
    let rank = |at: &usize| {
        let Candidate { is_own, is_avoided, n_calls, n_slots, n_sessions } = candidates[*at];
        let share = |n: usize| n * SHARE / n_slots.max(1);
        (is_avoided, !is_own, share(n_calls), share(n_sessions))
    };
    (0..candidates.len()).min_by_key(rank)
}

/// The servers of sessions, and those that failed.
pub(crate) struct Placements(Mutex<PlacementState>);

struct PlacementState {
    /// The server of each session and alias.
    places: LruCache<(SessionId, String), String>,
    /// The time of the last failure of a server that did not answer since.
    failures: HashMap<String, Instant>,
}

impl Default for Placements {
    fn default() -> Self {
        let places = LruCache::new(MAX_PLACES);
        Self(Mutex::new(PlacementState { places, failures: HashMap::new() }))
    }
}

impl Placements {
    /// Returns the server that a session uses for an alias.
    pub(crate) fn server_of(&self, id: SessionId, alias: &str) -> Option<String> {
        self.0.lock().places.get(&(id, alias.to_owned())).cloned()
    }

    /// Remembers the server that a session uses for an alias.
    pub(crate) fn keep(&self, id: SessionId, alias: &str, server: &str) {
        self.0.lock().places.insert((id, alias.to_owned()), server.to_owned());
    }

    /// Returns the number of sessions, without one, that use a server for an alias.
    pub(crate) fn n_others(&self, id: SessionId, alias: &str, server: &str) -> usize {
        let state = self.0.lock();
        let is_other = |(own, of): &(SessionId, String)| *own != id && of == alias;
        state.places.iter().filter(|(key, at)| is_other(key) && *at == server).count()
    }

    /// Notes that a server failed.
    pub(crate) fn note_failure(&self, server: &str, now: Instant) {
        let mut state = self.0.lock();
        state.failures.retain(|_, at| now.duration_since(*at) < AVOIDED);
        state.failures.insert(server.to_owned(), now);
    }

    /// Notes that a server answered.
    pub(crate) fn note_answer(&self, server: &str) {
        self.0.lock().failures.remove(server);
    }

    /// Returns whether a server failed a short time ago and did not answer since.
    pub(crate) fn is_avoided(&self, server: &str, now: Instant) -> bool {
        let state = self.0.lock();
        state.failures.get(server).is_some_and(|at| now.duration_since(*at) < AVOIDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a server: `o` is the session's own and `x` failed; then calls, slots and sessions.
    fn server(marks: &str, n_calls: usize, n_slots: usize, n_sessions: usize) -> Candidate {
        let (is_own, is_avoided) = (marks.contains('o'), marks.contains('x'));
        Candidate { is_own, is_avoided, n_calls, n_slots, n_sessions }
    }

    #[test]
    fn server_is_chosen_by_the_situation() {
        let check = |why: &str, servers: &[Candidate], expect: Option<usize>| {
            assert_eq!(choose(servers), expect, "{why}");
        };
        let idle = server("", 0, 1, 0);
        check("there is none", &[], None);
        check("the first of equal ones", &[idle, idle], Some(0));
        check("the least busy one", &[server("", 1, 1, 0), idle], Some(1));
        check("busy by slots", &[server("", 1, 1, 0), server("", 3, 4, 0)], Some(1));
        check("free slots are equal", &[server("", 2, 2, 0), server("", 4, 4, 0)], Some(0));
        check("fewer sessions", &[server("", 0, 1, 2), server("", 0, 1, 1)], Some(1));
        check("sessions by slots", &[server("", 0, 1, 1), server("", 0, 4, 3)], Some(1));
        check("calls before sessions", &[server("", 1, 1, 0), server("", 0, 1, 9)], Some(1));
        check("the own one, however busy", &[idle, server("o", 5, 1, 9)], Some(1));
        check(
            "not the own one that failed",
            &[server("ox", 0, 1, 0), server("", 7, 1, 7)],
            Some(1),
        );
        check("not one that failed", &[server("x", 0, 1, 0), server("", 7, 1, 7)], Some(1));
        check("all failed", &[server("x", 0, 1, 0), server("ox", 1, 1, 1)], Some(1));
    }

    #[test]
    fn server_that_failed_is_avoided_until_it_answers_or_time_passed() {
        let (placements, now) = (Placements::default(), Instant::now());
        placements.note_failure("a", now);
        placements.note_failure("b", now);
        assert!(placements.is_avoided("a", now) && !placements.is_avoided("c", now));
        placements.note_answer("a");
        assert!(!placements.is_avoided("a", now) && placements.is_avoided("b", now));
        assert!(!placements.is_avoided("b", now + AVOIDED));
    }

    #[test]
    fn places_are_those_of_a_session_and_an_alias() {
        let placements = Placements::default();
        let ids = ["01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"];
        let [one, other] = ids.map(|id| id.parse::<SessionId>().expect("an id"));
        placements.keep(one, "big", "a");
        placements.keep(other, "big", "b");
        placements.keep(other, "big", "a");
        assert_eq!(placements.server_of(other, "big").as_deref(), Some("a"));
        assert_eq!(placements.server_of(other, "small"), None);
        assert_eq!(placements.n_others(one, "big", "a"), 1);
        assert_eq!(placements.n_others(one, "big", "b"), 0);
    }
}
