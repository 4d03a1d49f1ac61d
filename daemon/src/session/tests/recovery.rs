//! Cut and damaged logs: what was acknowledged stays, and is told apart from what was not.
#![expect(clippy::disallowed_methods, reason = "damaging files is what these tests do")]

use std::path::PathBuf;

use ollm_protocol::content::SessionStatus;
use proptest::prelude::*;

use super::*;

/// A log of `count` messages, each synced alone, and the offsets at which its lines begin.
fn log_of(count: usize) -> (tempfile::TempDir, SessionId, PathBuf, Vec<usize>) {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let sessions = sessions(dir.path());
    sessions.create(birth).expect("creates");
    for at in 0..count {
        append(&sessions, id, says(&format!("message {at}")), None).expect("records");
    }
    let path = dir.path().join(format!("{id}.jsonl"));
    let bytes = std::fs::read(&path).expect("reads");
    let breaks = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
    (dir, id, path, starts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_log_cut_anywhere_is_a_prefix(cut in 0.0..1.0f64) {
        let (dir, id, path, starts) = log_of(6);
        let bytes = std::fs::read(&path).expect("reads");
        let cut = (bytes.len() as f64 * cut) as usize;
        std::fs::write(&path, &bytes[..cut]).expect("cuts");
        let whole = starts.iter().filter(|start| **start <= cut).count() - 1;
        let sessions = sessions(dir.path());
        if whole == 0 {
            let summary = sessions.summary(id);
            let missing = matches!(summary, Err(SessionError::NotFound { .. }));
            prop_assert!(missing);
        } else {
            let expected: Vec<_> = (0..whole - 1).map(|at| format!("message {at}")).collect();
            prop_assert_eq!(texts(&sessions, id), expected.clone());
            let session = sessions.summary(id).expect("opens");
            prop_assert_ne!(session.status, SessionStatus::Corrupted);
            append(&sessions, id, says("after"), None).expect("records");
            let reopened = super::sessions(dir.path());
            prop_assert_eq!(texts(&reopened, id), [expected, vec!["after".to_owned()]].concat());
        }
    }

    #[test]
    fn a_flipped_bit_costs_at_most_its_record(at in 0.0..1.0f64, bit in 0..8u8) {
        let (dir, id, path, starts) = log_of(6);
        let mut bytes = std::fs::read(&path).expect("reads");
        // The last line, and the break before it, are the newest write: without a later claim they count as
        // the torn tail.
        let at = ((starts[6] - 1) as f64 * at) as usize;
        let before = bytes.clone();
        bytes[at] ^= 1 << bit;
        prop_assume!(!bytes.eq_ignore_ascii_case(&before));
        std::fs::write(&path, &bytes).expect("damages");
        let line = starts.iter().rposition(|start| *start <= at).expect("some line");
        let sessions = sessions(dir.path());
        let session = sessions.summary(id).expect("opens");
        prop_assert_eq!(session.status, SessionStatus::Corrupted);
        prop_assert!(session.damaged_records >= 1);
        let left = texts(&sessions, id);
        // A flipped line break joins two lines, and both are lost.
        let joined = before[at] == b'\n';
        for message in 0..6 {
            let hit = message + 1 == line || (joined && message == line);
            let found = left.contains(&format!("message {message}"));
            prop_assert_eq!(found, !hit, "message {} of line {}", message, line);
        }
        let path_len = sessions.with(id, |live| live.state().path().len()).expect("opens");
        prop_assert_eq!(path_len, left.len(), "what is readable stays on the path");
        append(&sessions, id, says("after"), None).expect("records");
        let again = texts(&super::sessions(dir.path()), id);
        prop_assert_eq!(again.last().map(String::as_str), Some("after"));
    }
}

#[test]
fn the_torn_tail_is_kept_aside_and_told() {
    let (dir, id, path, _) = log_of(2);
    let mut bytes = std::fs::read(&path).expect("reads");
    bytes.extend_from_slice(b"{\"v\":1,\"seq\":3,\"par");
    std::fs::write(&path, &bytes).expect("tears");
    let (sessions, notes) = sessions_with(dir.path(), Box::new(open_real));
    append(&sessions, id, says("after"), None).expect("records");
    assert_eq!(notes.taken()[0], "torn 19 0");
    let aside: Vec<_> = std::fs::read_dir(dir.path())
        .expect("lists")
        .filter_map(|file| file.expect("lists").file_name().into_string().ok())
        .filter(|name| name.contains(".torn-"))
        .collect();
    assert_eq!(aside.len(), 1);
    let saved = std::fs::read(dir.path().join(&aside[0])).expect("reads");
    assert_eq!(saved, b"{\"v\":1,\"seq\":3,\"par");
    assert_eq!(texts(&sessions, id), ["message 0", "message 1", "after"]);
}

#[test]
fn unacknowledged_bytes_out_of_order_are_the_torn_tail() {
    let (dir, id, path, starts) = log_of(3);
    let bytes = std::fs::read(&path).expect("reads");
    // Two records in one write: the disk kept the second and lost the first.
    let claims = |line: &[u8]| String::from_utf8(line.to_vec()).expect("is text");
    let second_last = claims(&bytes[starts[2]..starts[3]]);
    assert!(second_last.contains("\"durable\":1"), "{second_last}");
    let mut broken = bytes[..starts[2]].to_vec();
    broken.extend(vec![0; starts[3] - starts[2]]);
    let last = claims(&bytes[starts[3]..]).replace("\"durable\":2", "\"durable\":1");
    let prefix = last.rsplit_once(",\"crc\"").expect("has a checksum").0.to_owned();
    let crc = crc32c::crc32c(prefix.as_bytes());
    broken.extend(format!("{prefix},\"crc\":\"{crc:08x}\"}}\n").into_bytes());
    std::fs::write(&path, &broken).expect("writes");
    let sessions = sessions(dir.path());
    assert_eq!(texts(&sessions, id), ["message 0"]);
    assert_ne!(sessions.summary(id).expect("opens").status, SessionStatus::Corrupted);
}

#[test]
fn a_newer_version_is_refused_and_left_alone() {
    let (dir, id, path, _) = log_of(1);
    let mut bytes = std::fs::read(&path).expect("reads");
    let line = "{\"v\":2,\"seq\":2";
    let crc = crc32c::crc32c(line.as_bytes());
    bytes.extend(format!("{line},\"crc\":\"{crc:08x}\"}}\n").into_bytes());
    std::fs::write(&path, &bytes).expect("writes");
    let sessions = sessions(dir.path());
    let refused = append(&sessions, id, says("no"), None);
    assert!(
        matches!(refused, Err(SessionError::UpgradeRequired { found: 2, supported: 1, .. })),
        "{refused:?}"
    );
    assert_eq!(std::fs::read(&path).expect("reads"), bytes);
}
