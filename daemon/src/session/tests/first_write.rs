//! The first write of a session: its log is there with all its records, or not at all.
#![expect(clippy::disallowed_methods, reason = "these tests put files into their places")]

use ollm_protocol::content::SessionStatus;
use rustix::io::Errno;

use super::*;
use crate::fsutil::trace::{DiskFault, DiskStep, DiskTrace, FaultKind};
use crate::fsutil::{remove_leftovers, sweep_temporaries};

/// Writes the first records of a session while its changes are recorded; one of the records has a blob.
fn first_write(fault: Option<DiskFault>) -> (Fixture, Arc<DiskTrace>, bool) {
    let fixture = Fixture::new();
    let trace = DiskTrace::new(fixture.dir.path());
    trace.set_fault(fault);
    let records = vec![message("one"), message(&"two ".repeat(20_000))];
    let written = fixture.sessions.append(fixture.id, records, None).expect("queues").wait();
    let is_acked = match written {
        Ok(_) => true,
        Err(SessionError::Storage { .. }) => false,
        Err(other) => panic!("not a storage error: {other}"),
    };
    (fixture, trace, is_acked)
}

/// Makes the steps of a trace in another directory, as a killed process left them; the last append is cut to half.
fn replay(steps: &[DiskStep], dir: &Path) {
    let append = |path: &Path, bytes: &[u8]| {
        let content = [std::fs::read(path).expect("reads"), bytes.to_vec()].concat();
        std::fs::write(path, content).expect("writes");
    };
    for (number, step) in steps.iter().enumerate() {
        let is_last = number + 1 == steps.len();
        match step {
            DiskStep::CreateDir(path) => std::fs::create_dir(dir.join(path)).expect("creates"),
            DiskStep::Create(path) => std::fs::write(dir.join(path), b"").expect("creates"),
            DiskStep::Append(path, bytes) => {
                let n_kept = if is_last { bytes.len() / 2 } else { bytes.len() };
                append(&dir.join(path), &bytes[..n_kept]);
            }
            DiskStep::Rename(from, to) => {
                std::fs::rename(dir.join(from), dir.join(to)).expect("renames");
            }
            DiskStep::Sync(_) | DiskStep::SyncDir(_) | DiskStep::Nothing(_) => {}
            step => panic!("{step:?} is no part of a first write"),
        }
    }
}

#[test]
fn first_write_that_is_killed_leaves_the_whole_log_or_none() {
    let (fixture, trace, is_acked) = first_write(None);
    assert!(is_acked);
    let id = fixture.id;
    let steps = trace.steps();
    let log = PathBuf::from(fixture.log().file_name().expect("has a name"));
    let is_naming = |step: &DiskStep| matches!(step, DiskStep::Rename(_, to) if *to == log);
    let named_at = steps.iter().position(is_naming).expect("the log gets its name");
    let DiskStep::Rename(unnamed, _) = &steps[named_at] else { panic!("it is a rename") };
    let synced_at = steps.iter().position(|step| *step == DiskStep::Sync(unnamed.clone()));
    assert!(synced_at.is_some_and(|at| at < named_at), "its bytes are durable before: {steps:?}");
    assert_eq!(steps.last(), Some(&DiskStep::SyncDir(PathBuf::new())), "and then its name");
    for n_steps in 0..=steps.len() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        replay(&steps[..n_steps], dir.path());
        let sessions = open_with(dir.path(), Box::new(open_real)).0;
        let found = sessions.summary(id);
        if n_steps > named_at {
            assert_eq!(found.expect("is there").status, SessionStatus::Active);
            assert_eq!(texts(&sessions, id).len(), 2, "after {n_steps} steps");
        } else {
            assert!(matches!(found, Err(SessionError::NotFound { .. })), "after {n_steps} steps");
            assert_eq!(sessions.log_ids().expect("lists"), []);
        }
        assert!(names_in(dir.path()).iter().all(|name| !name.contains(".torn-")));
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).expect("lists");
    files.map(|file| file.expect("lists").file_name().into_string().expect("is UTF-8")).collect()
}

#[test]
fn first_write_that_fails_leaves_nothing_and_is_repeated() {
    let (_, trace, _) = first_write(None);
    let n_changes = trace.counts().0;
    let (error, short) = (Errno::IO.raw_os_error(), Errno::NOSPC.raw_os_error());
    let mut n_failed = 0;
    for at in 0..n_changes {
        for kind in [FaultKind::Error(error), FaultKind::Short(short)] {
            for count in [1, 3] {
                let (fixture, trace, is_acked) = first_write(Some(DiskFault { at, count, kind }));
                trace.set_fault(None);
                n_failed += usize::from(!is_acked);
                let (sessions, id) = (&fixture.sessions, fixture.id);
                append(sessions, id, message("last"), None).expect("records");
                let found = texts(sessions, id);
                assert_eq!(found.len(), if is_acked { 3 } else { 1 }, "{kind:?} at {at}");
                assert_eq!(texts(&fixture.reopened(), id), found, "{kind:?} at {at}");
                remove_leftovers(fixture.dir.path()).expect("removes");
                let left = fixture.files();
                let is_own = |name: &String| name.starts_with(&id.to_string());
                assert!(left.iter().all(is_own), "{kind:?} at {at} left {left:?}");
            }
        }
    }
    assert!(n_failed > n_changes, "{n_failed} of {n_changes} changes failed");
}

#[test]
fn log_that_is_there_already_is_not_replaced() {
    let fixture = Fixture::new();
    let other = Fixture::new();
    other.append(message("of another session"));
    std::fs::copy(other.log(), fixture.log()).expect("copies");
    let before = std::fs::read(fixture.log()).expect("reads");
    for _ in 0..2 {
        let refused = append(&fixture.sessions, fixture.id, message("new"), None);
        let Err(SessionError::Storage { path, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(path, fixture.log());
        assert_eq!(std::fs::read(fixture.log()).expect("reads"), before);
        assert_eq!(fixture.files().len(), 1, "the new log is removed");
    }
    std::fs::remove_file(fixture.log()).expect("removes");
    fixture.append(message("new"));
    assert_eq!(texts(&fixture.reopened(), fixture.id), ["new"]);
}

#[test]
fn unnamed_log_of_a_killed_process_is_removed_at_the_start() {
    let fixture = Fixture::new();
    let left = fixture.dir.path().join(".tmp-1-0123456789abcdef-0");
    std::fs::write(&left, b"{\"v\":1,").expect("writes");
    assert_eq!(fixture.reopened().status().sessions, 0, "it is no session");
    assert_eq!(sweep_temporaries(fixture.dir.path()).expect("sweeps"), 1);
    assert!(!left.exists());
}
