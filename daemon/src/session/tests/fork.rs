//! Forks on disks that fail: a fork is whole, or nothing of it is left.

use ollm_protocol::Seq;
use ollm_protocol::content::SessionHeader;
use rustix::io::Errno;

use super::{Fixture, message, texts};
use crate::clock::Clock;
use crate::fsutil::trace::{DiskFault, DiskTrace, FaultKind};
use crate::session::NewFork;

#[test]
fn fork_that_fails_at_any_change_leaves_nothing_and_its_source_as_it_was() {
    let fixture = Fixture::new();
    fixture.append(message(&"large ".repeat(20_000)));
    fixture.append(message("small"));
    let log = std::fs::read(fixture.log()).expect("reads");
    let expected = texts(&fixture.sessions, fixture.id);
    let trace = DiskTrace::new(fixture.dir.path());
    for at in 0.. {
        let (n_tried, n_failed) = trace.counts();
        let kind = FaultKind::Error(Errno::IO.raw_os_error());
        trace.set_fault(Some(DiskFault { at: n_tried + at, count: 1, kind }));
        let clock = Clock::system();
        let header = SessionHeader {
            forked_from: Some(fixture.id),
            ..SessionHeader::new(clock.session_id(), clock.now())
        };
        let id = header.session_id;
        let new = NewFork { source: fixture.id, last: Seq(2), leaf: Seq(2), header, key: None };
        let forked = fixture.sessions.fork(new);
        trace.set_fault(None);
        if forked.is_ok() {
            assert_eq!(texts(&fixture.sessions, id), expected, "after {at} changes");
            assert_eq!(texts(&fixture.reopened(), id), expected, "after {at} changes");
        } else {
            let left = fixture.files().into_iter().filter(|name| name.contains(&id.to_string()));
            assert_eq!(left.collect::<Vec<_>>(), [""; 0], "after {at} changes");
        }
        assert_eq!(std::fs::read(fixture.log()).expect("reads"), log);
        if trace.counts().1 == n_failed {
            assert!(at > 8, "every change was tried");
            return;
        }
    }
}
