//! Every write and every sync fails once: no acknowledged record is lost, and later writes succeed.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::fsutil::trace::{DiskFault, DiskStep, DiskTrace, FaultKind};
use crate::session::log::{LogFile, ReadFaults};

/// The operations that fail.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// One operation.
    Once,
    /// One operation and all later ones, until the test lifts the fault.
    FromThen,
}

struct FaultPlan {
    count: AtomicU64,
    fail_at: AtomicU64,
    fault: Fault,
    /// Whether a failed write leaves half of its bytes.
    partial: bool,
}

impl FaultPlan {
    fn check(&self) -> io::Result<()> {
        let at = self.count.fetch_add(1, Ordering::SeqCst);
        let fail_at = self.fail_at.load(Ordering::SeqCst);
        let fails = if self.fault == Fault::Once { at == fail_at } else { at >= fail_at };
        if fails { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }
}

/// A real file whose writes, syncs and cuts fail as planned.
struct FaultyLogFile {
    real: Box<dyn LogFile>,
    plan: Arc<FaultPlan>,
}

impl LogFile for FaultyLogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.plan.check() {
            if self.plan.partial {
                self.real.append(&bytes[..bytes.len() / 2])?;
            }
            return Err(error);
        }
        self.real.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.plan.check()?;
        self.real.sync()
    }

    fn rename_new(&mut self, to: &Path) -> io::Result<()> {
        self.plan.check()?;
        self.real.rename_new(to)
    }

    fn len(&self) -> io::Result<u64> {
        self.real.len()
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.plan.check()?;
        self.real.truncate(len)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.real.read_at(buffer, offset)
    }
}

fn faulty(plan: &Arc<FaultPlan>) -> Fixture {
    let plan = Arc::clone(plan);
    Fixture::with_files(Box::new(move |path, create| {
        Ok(Box::new(FaultyLogFile { real: open_real(path, create)?, plan: Arc::clone(&plan) }))
    }))
}

/// Writes eight messages, each until it is acknowledged, and returns the number of failed attempts.
fn write_all(fixture: &Fixture, mut on_failure: impl FnMut()) -> usize {
    let mut failures = 0;
    for at in 0..8 {
        let text = format!("message {at}");
        loop {
            match append(&fixture.sessions, fixture.id, message(&text), key(&text, &text)) {
                Ok(_) => break,
                Err(SessionError::Storage { .. }) => {
                    failures += 1;
                    assert!(failures < 50, "writing never recovers");
                    on_failure();
                }
                Err(other) => panic!("not a storage error: {other}"),
            }
        }
    }
    failures
}

fn sweep(fault: Fault, partial: bool) {
    let mut failures = 0;
    for fail_at in 0..24 {
        let (count, fail_at) = (AtomicU64::new(0), AtomicU64::new(fail_at));
        let plan = Arc::new(FaultPlan { count, fail_at, fault, partial });
        let fixture = faulty(&plan);
        let lift = || {
            if fault == Fault::FromThen {
                plan.fail_at.store(u64::MAX, Ordering::SeqCst);
            }
        };
        failures += write_all(&fixture, lift);
        let expected: Vec<_> = (0..8).map(|at| format!("message {at}")).collect();
        assert_eq!(texts(&fixture.sessions, fixture.id), expected, "open, {:?}", plan.fail_at);
        let reopened = fixture.reopened();
        assert_eq!(texts(&reopened, fixture.id), expected, "reopened, {:?}", plan.fail_at);
        assert_eq!(reopened.summary(fixture.id).expect("opens").damaged_records, 0);
    }
    assert!(failures >= 16, "the sweep hit {failures} operations");
}

#[test]
fn acknowledged_records_survive_any_single_failure() {
    sweep(Fault::Once, false);
    sweep(Fault::Once, true);
}

#[test]
fn acknowledged_records_survive_a_disk_that_is_full_for_a_while() {
    sweep(Fault::FromThen, false);
    sweep(Fault::FromThen, true);
}

#[test]
fn records_of_a_failed_sync_are_cut_before_their_callers_know() {
    let fixture = Fixture::new();
    fixture.append(message("kept"));
    let acknowledged = std::fs::read(fixture.log()).expect("reads");
    let trace = DiskTrace::new(fixture.dir.path());
    let kind = FaultKind::Error(rustix::io::Errno::IO.raw_os_error());
    let log = PathBuf::from(fixture.log().file_name().expect("has a name"));
    for count in 1..6 {
        // The append succeeds; its sync fails, and then some of the steps that cut the log.
        let at = trace.counts().0 + 1;
        trace.set_fault(Some(DiskFault { at, count, kind }));
        let refused = append(&fixture.sessions, fixture.id, message("lost"), None);
        assert!(matches!(refused, Err(SessionError::Storage { .. })), "{refused:?}");
        trace.set_fault(None);
        assert!(trace.steps().contains(&DiskStep::FailedSync(log.clone())));
        let left = std::fs::read(fixture.log()).expect("reads");
        if count == 1 {
            assert_eq!(left, acknowledged, "the log is cut at once");
            assert_eq!(texts(&fixture.reopened(), fixture.id), ["kept"]);
        }
    }
    fixture.append(message("last"));
    assert_eq!(texts(&fixture.reopened(), fixture.id), ["kept", "last"]);
}

#[test]
fn log_that_could_not_be_opened_to_read_is_written_by_the_next_call() {
    let fixture = Fixture::new();
    let faults = ReadFaults::watch(fixture.dir.path());
    faults.fail(0..1, rustix::io::Errno::IO.raw_os_error());
    let refused = append(&fixture.sessions, fixture.id, message("refused"), None);
    assert!(matches!(refused, Err(SessionError::Storage { .. })), "{refused:?}");
    assert_eq!(fixture.files(), [""; 0], "the new log is removed");
    faults.lift();
    fixture.append(message("accepted"));
    assert_eq!(texts(&fixture.reopened(), fixture.id), ["accepted"]);
}

#[test]
fn read_only_disk_refuses_writes_and_serves_reads() {
    let fixture = Fixture::new();
    let id = fixture.id;
    fixture.append(message("kept"));
    let read_only = |_: &Path, _: bool| -> io::Result<Box<dyn LogFile>> {
        Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))
    };
    let (sessions, _) = open_with(fixture.dir.path(), Box::new(read_only));
    let refused = append(&sessions, id, message("lost"), None).expect_err("cannot write");
    assert!(
        matches!(&refused, SessionError::Storage { path, .. } if *path == fixture.log()),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert_eq!(texts(&sessions, id), ["kept"]);
}

#[test]
fn key_of_a_request_that_failed_is_unknown_to_the_rest_of_the_batch() {
    // The first write holds the writer until two more requests wait, so that they share a batch.
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let fixture = Fixture::with_files(Box::new(move |path, create| {
        wait.lock().recv().map_err(io::Error::other)?;
        open_real(path, create)
    }));
    // A file in place of the directory of blobs makes every large text fail.
    let blobs = fixture.dir.path().join(format!("{}.blobs", fixture.id));
    crate::fsutil::replace_atomically(&blobs, b"").expect("writes");
    let first = fixture.sessions.append(fixture.id, vec![message("first")], None);
    let large = || vec![message("small"), message(&"large ".repeat(20_000))];
    let request = || fixture.sessions.append(fixture.id, large(), key("k", "both"));
    let failing = [request(), request()];
    release.send(()).expect("the writer waits");
    first.expect("queues").wait().expect("records");
    for pending in failing {
        let refused = pending.expect("queues").wait();
        assert!(matches!(refused, Err(SessionError::Storage { .. })), "{refused:?}");
    }
    assert_eq!(texts(&fixture.sessions, fixture.id), ["first"]);
}
