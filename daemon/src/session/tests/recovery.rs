//! Truncated and damaged logs: acknowledged records stay, and damage is distinguished from a torn tail.
#![expect(clippy::disallowed_methods, reason = "these tests damage files")]

use ollm_protocol::content::{Close, CloseReason, SessionStatus};
use proptest::prelude::*;

use super::*;
use crate::session::index::{IndexProgress, IndexSource, IndexUpdate, OpenHint, UpdateScope};

/// Returns a session with `count` messages, each synced alone, and the offsets of its lines and of its end.
fn log_of(count: usize) -> (Fixture, Vec<usize>) {
    let fixture = Fixture::new();
    for at in 0..count {
        fixture.append(message(&format!("message {at}")));
    }
    let starts = starts_of(&std::fs::read(fixture.log()).expect("reads"));
    (fixture, starts)
}

/// Returns the offsets of the lines of a log and of its end.
fn starts_of(bytes: &[u8]) -> Vec<usize> {
    let breaks = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn log_cut_anywhere_is_a_prefix(cut in 0.0..1.0f64) {
        let (fixture, starts) = log_of(6);
        let id = fixture.id;
        let bytes = std::fs::read(fixture.log()).expect("reads");
        let cut = (bytes.len() as f64 * cut) as usize;
        std::fs::write(fixture.log(), &bytes[..cut]).expect("cuts");
        let n_lines = starts.iter().filter(|start| **start <= cut).count() - 1;
        let sessions = fixture.reopened();
        if n_lines == 0 {
            let summary = sessions.summary(id);
            let missing = matches!(summary, Err(SessionError::NotFound { .. }));
            prop_assert!(missing);
        } else {
            let expected: Vec<_> = (0..n_lines - 1).map(|at| format!("message {at}")).collect();
            prop_assert_eq!(texts(&sessions, id), expected.clone());
            let session = sessions.summary(id).expect("opens");
            prop_assert_ne!(session.status, SessionStatus::Corrupted);
            append(&sessions, id, message("after"), None).expect("records");
            let expected = [expected, vec!["after".to_owned()]].concat();
            prop_assert_eq!(texts(&fixture.reopened(), id), expected);
        }
    }

    #[test]
    fn flipped_bit_damages_only_its_record(at in 0.0..1.0f64, bit in 0..8u8) {
        let (fixture, starts) = log_of(6);
        let id = fixture.id;
        let mut bytes = std::fs::read(fixture.log()).expect("reads");
        let at = ((bytes.len() - 1) as f64 * at) as usize;
        let before = bytes.clone();
        bytes[at] ^= 1 << bit;
        prop_assume!(!bytes.eq_ignore_ascii_case(&before));
        std::fs::write(fixture.log(), &bytes).expect("damages");
        let line = starts.iter().rposition(|start| *start <= at).expect("some line");
        let sessions = fixture.reopened();
        let session = sessions.summary(id).expect("opens");
        prop_assert_eq!(session.status, SessionStatus::Corrupted);
        prop_assert!(session.damaged_records >= 1);
        let left = texts(&sessions, id);
        for message in 0..6 {
            let hit = message + 1 == line;
            let found = left.contains(&format!("message {message}"));
            prop_assert_eq!(found, !hit, "message {} of line {}", message, line);
        }
        let path_len = sessions.with(id, |session| session.state().path().len()).expect("opens");
        prop_assert_eq!(path_len, left.len(), "readable records stay on the path");
        append(&sessions, id, message("after"), None).expect("records");
        let again = texts(&fixture.reopened(), id);
        prop_assert_eq!(again.last().map(String::as_str), Some("after"));
    }
}

/// Returns a session with `count` messages that were written as one batch, and the offsets of its lines and of its end.
fn batch_of(count: usize) -> (Fixture, Vec<usize>) {
    let fixture = Fixture::new();
    let records = (0..count).map(|at| message(&format!("message {at}"))).collect();
    fixture.sessions.append(fixture.id, records, None).expect("queues").wait().expect("records");
    let starts = starts_of(&std::fs::read(fixture.log()).expect("reads"));
    (fixture, starts)
}

/// Opens a changed log without a catalog, and checks that exactly the messages in `lost` are missing and that every
/// other one is on the path. Returns the summary.
fn check_lost(fixture: &Fixture, count: usize, lost: &[usize]) -> ollm_protocol::content::Session {
    let sessions = fixture.reopened();
    let left = texts(&sessions, fixture.id);
    let expected: Vec<_> =
        (0..count).filter(|at| !lost.contains(at)).map(|at| format!("message {at}")).collect();
    assert_eq!(left, expected);
    let path = sessions.with(fixture.id, |session| session.state().path()).expect("opens");
    assert_eq!(path.len(), left.len(), "readable records stay on the path");
    let summary = sessions.summary(fixture.id).expect("opens");
    append(&sessions, fixture.id, message("after"), None).expect("records");
    assert_eq!(texts(&fixture.reopened(), fixture.id).len(), left.len() + 1);
    summary
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn flipped_bit_in_the_last_batch_costs_one_record(
        at in 0.0..1.0f64, bit in 0..8u8, rests in any::<bool>(),
    ) {
        let (fixture, starts) = batch_of(20);
        if rests {
            fixture.sessions.rest(fixture.id);
        }
        let mut bytes = std::fs::read(fixture.log()).expect("reads");
        let at = starts[1] + ((bytes.len() - 1 - starts[1]) as f64 * at) as usize;
        let before = bytes.clone();
        bytes[at] ^= 1 << bit;
        prop_assume!(!bytes.eq_ignore_ascii_case(&before));
        std::fs::write(fixture.log(), &bytes).expect("damages");
        let line = starts.iter().rposition(|start| *start <= at).expect("some line");
        let lost: Vec<_> = (line <= 20).then(|| line - 1).into_iter().collect();
        let session = check_lost(&fixture, 20, &lost);
        prop_assert_eq!(session.status, SessionStatus::Corrupted);
        prop_assert_eq!(session.damaged_records, 1);
    }

    #[test]
    fn overwritten_bytes_of_a_resting_session_cost_their_records(
        first in 1usize..20, n in 1usize..5, fill in any::<u8>(),
    ) {
        let (fixture, starts) = batch_of(20);
        fixture.sessions.rest(fixture.id);
        let mut bytes = std::fs::read(fixture.log()).expect("reads");
        let last = (first + n).min(20);
        bytes[starts[first] + 2..starts[last + 1] - 2].fill(fill);
        std::fs::write(fixture.log(), &bytes).expect("damages");
        let lost: Vec<_> = (first..=last).map(|line| line - 1).collect();
        let session = check_lost(&fixture, 20, &lost);
        prop_assert_eq!(session.status, SessionStatus::Corrupted);
        prop_assert_eq!(session.damaged_records, lost.len() as u64);
    }
}

#[test]
fn overwritten_bytes_of_an_unconfirmed_batch_are_the_torn_tail() {
    let (fixture, starts) = batch_of(20);
    let mut bytes = std::fs::read(fixture.log()).expect("reads");
    bytes[starts[5]..starts[6]].fill(0);
    std::fs::write(fixture.log(), &bytes).expect("damages");
    let lost: Vec<_> = (4..20).collect();
    assert_ne!(check_lost(&fixture, 20, &lost).status, SessionStatus::Corrupted);
}

#[test]
fn resting_session_gets_one_mark_that_changes_nothing_else() {
    let fixture = Fixture::new();
    let (sessions, id) = (&fixture.sessions, fixture.id);
    sessions.rest(id);
    assert_eq!(fixture.files().len(), 0, "a draft gets no mark");
    append(sessions, id, message("one"), None).expect("records");
    let close = RecordBody::Close(Close { reason: CloseReason::Client });
    append(sessions, id, NewRecord::new(close, None), None).expect("records");
    let summary = || sessions.summary(id).expect("opens");
    let before = summary();
    assert_eq!(before.status, SessionStatus::Closed);
    sessions.rest(id);
    let bytes = std::fs::read(fixture.log()).expect("reads");
    assert!(bytes.ends_with(b"\n") && starts_of(&bytes).len() == 5, "one more line");
    for _ in 0..3 {
        sessions.rest(id);
        sessions.rest_unused(Timestamp::from_unix_ms(i64::MAX));
    }
    assert_eq!(std::fs::read(fixture.log()).expect("reads"), bytes, "one mark is enough");
    assert_eq!(summary(), before);
    let reopened = fixture.reopened();
    assert_eq!(reopened.summary(id).expect("opens"), before);
    reopened.rest_unused(Timestamp::from_unix_ms(i64::MAX));
    assert_eq!(std::fs::read(fixture.log()).expect("reads"), bytes, "reading is no activity");
    assert_eq!(append(&reopened, id, message("two"), None).expect("records").seq, Seq(4));
    reopened.rest_unused(Timestamp::from_unix_ms(0));
    assert_eq!(starts_of(&std::fs::read(fixture.log()).expect("reads")).len(), 6, "it is in use");
}

#[test]
fn torn_tail_is_announced_and_saved() {
    let (fixture, _) = log_of(2);
    let mut bytes = std::fs::read(fixture.log()).expect("reads");
    bytes.extend_from_slice(b"{\"v\":1,\"seq\":3,\"par");
    std::fs::write(fixture.log(), &bytes).expect("tears");
    let (sessions, changes) = open_with(fixture.dir.path(), Box::new(open_real));
    append(&sessions, fixture.id, message("after"), None).expect("records");
    assert_eq!(changes.lines()[0], "torn 19 0");
    let aside: Vec<_> =
        fixture.files().into_iter().filter(|name| name.contains(".torn-")).collect();
    assert_eq!(aside.len(), 1);
    let saved = std::fs::read(fixture.dir.path().join(&aside[0])).expect("reads");
    assert_eq!(saved, b"{\"v\":1,\"seq\":3,\"par");
    assert_eq!(texts(&sessions, fixture.id), ["message 0", "message 1", "after"]);
}

#[test]
fn unacknowledged_bytes_out_of_order_are_the_torn_tail() {
    let (fixture, starts) = log_of(3);
    let bytes = std::fs::read(fixture.log()).expect("reads");
    // The last two lines become one write, of which the disk kept the second line and lost the first.
    let text = |line: &[u8]| String::from_utf8(line.to_vec()).expect("is UTF-8");
    let second_last = text(&bytes[starts[2]..starts[3]]);
    assert!(second_last.contains("\"durable\":1"), "{second_last}");
    let mut broken = bytes[..starts[2]].to_vec();
    broken.extend(vec![0; starts[3] - starts[2]]);
    let last = text(&bytes[starts[3]..]).replace("\"durable\":2", "\"durable\":1");
    let prefix = last.rsplit_once(",\"crc\"").expect("has a checksum").0.to_owned();
    let crc = crc32c::crc32c(prefix.as_bytes());
    broken.extend(format!("{prefix},\"crc\":\"{crc:08x}\"}}\n").into_bytes());
    std::fs::write(fixture.log(), &broken).expect("writes");
    let sessions = fixture.reopened();
    assert_eq!(texts(&sessions, fixture.id), ["message 0"]);
    let session = sessions.summary(fixture.id).expect("opens");
    assert_ne!(session.status, SessionStatus::Corrupted);
}

#[test]
fn log_of_a_newer_version_is_refused_and_not_changed() {
    let (fixture, _) = log_of(1);
    let mut bytes = std::fs::read(fixture.log()).expect("reads");
    let line = "{\"v\":2,\"seq\":2";
    let crc = crc32c::crc32c(line.as_bytes());
    bytes.extend(format!("{line},\"crc\":\"{crc:08x}\"}}\n").into_bytes());
    std::fs::write(fixture.log(), &bytes).expect("writes");
    let refused = append(&fixture.reopened(), fixture.id, message("no"), None);
    assert!(
        matches!(refused, Err(SessionError::UpgradeRequired { found: 2, supported: 1, .. })),
        "{refused:?}"
    );
    assert_eq!(std::fs::read(fixture.log()).expect("reads"), bytes);
}

#[test]
fn log_that_lost_its_last_records_is_reported_until_the_next_record() {
    let (fixture, starts) = log_of(6);
    let id = fixture.id;
    let known = IndexProgress::default();
    let update =
        fixture.sessions.update(id, known, UpdateScope::New).expect("reads").expect("has a log");
    let IndexUpdate { point, entries, keys, carry, .. } = update;
    let hint = OpenHint { point, entries, keys, carry };
    let bytes = std::fs::read(fixture.log()).expect("reads");
    std::fs::write(fixture.log(), &bytes[..starts[4]]).expect("cuts");
    let (sessions, changes) = open_with(fixture.dir.path(), Box::new(open_real));
    sessions.set_hints(Arc::new(StoredHint(hint.clone())));
    let progress = IndexProgress { point, keys: 0 };
    let indexed =
        sessions.update(id, progress, UpdateScope::New).expect("reads").expect("has a log");
    assert!(indexed.restart, "the catalog learns the shorter log");
    assert_eq!(indexed.session.damaged_records, 3);
    assert_eq!(changes.lines(), ["torn 0 3"]);
    let session = sessions.summary(id).expect("opens");
    assert_eq!((session.damaged_records, session.status), (3, SessionStatus::Corrupted));
    assert_eq!(texts(&sessions, id), ["message 0", "message 1", "message 2"]);

    // The catalog that learned it keeps the report, and the log alone is intact.
    let IndexUpdate { point, entries, keys, carry, .. } = indexed;
    let again = fixture.reopened();
    again.set_hints(Arc::new(StoredHint(OpenHint { point, entries, keys, carry })));
    assert_eq!(again.summary(id).expect("opens").damaged_records, 3);
    assert_eq!(fixture.reopened().summary(id).expect("opens").damaged_records, 0);
    append(&again, id, message("after"), None).expect("records");
    let session = again.summary(id).expect("opens");
    assert_eq!((session.damaged_records, session.status), (0, SessionStatus::Active));

    // Another log by the same name lost nothing.
    let other = Fixture::new();
    append(&other.sessions, other.id, message("a longer message than before"), None)
        .expect("records");
    std::fs::copy(other.log(), fixture.log()).expect("replaces");
    let replaced = fixture.reopened();
    replaced.set_hints(Arc::new(StoredHint(hint)));
    assert_eq!(replaced.summary(id).expect("opens").damaged_records, 0);
}

#[test]
fn only_regular_files_are_logs() {
    let (fixture, _) = log_of(1);
    let dir = fixture.dir.path();
    let name = || dir.join(format!("{}.jsonl", new_session().header.session_id));
    std::fs::create_dir(name()).expect("makes a directory");
    std::os::unix::fs::symlink(fixture.log(), name()).expect("links");
    let made = std::process::Command::new("mkfifo").arg(name()).status();
    assert!(made.expect("makes a pipe").success());
    let sessions = fixture.reopened();
    for _ in 0..2 {
        let logs: Vec<_> =
            sessions.log_ids().expect("lists").into_iter().map(|log| log.0).collect();
        assert_eq!(logs, [fixture.id]);
    }
    let names = sessions.file_names().expect("lists");
    let ids = names.iter().filter_map(|name| name.strip_suffix(".jsonl")?.parse().ok());
    for id in ids.filter(|id| *id != fixture.id) {
        let missing = sessions.summary(id);
        assert!(matches!(missing, Err(SessionError::NotFound { .. })), "{missing:?}");
        assert!(
            sessions
                .update(id, IndexProgress::default(), UpdateScope::New)
                .expect("answers")
                .is_none()
        );
        let record = append(&sessions, id, message("x"), None);
        assert!(matches!(record, Err(SessionError::NotFound { .. })), "{record:?}");
    }
}
