//! Every write and every sync fails once; nothing that was acknowledged is lost, and writing goes on.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::session::log::file::LogFile;

/// How the twin fails.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Only the given operation fails.
    Once,
    /// That one and all later ones fail, until the fault is lifted.
    FromThen,
}

struct Plan {
    count: AtomicU64,
    fail_at: AtomicU64,
    fault: Fault,
    partial: bool,
}

impl Plan {
    fn check(&self) -> io::Result<()> {
        let at = self.count.fetch_add(1, Ordering::SeqCst);
        let fail_at = self.fail_at.load(Ordering::SeqCst);
        let fails = if self.fault == Fault::Once { at == fail_at } else { at >= fail_at };
        if fails { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }
}

/// A real file whose writes, syncs and cuts fail on demand; a failed write may leave half of its bytes.
struct Faulty {
    real: Box<dyn LogFile>,
    plan: Arc<Plan>,
}

impl LogFile for Faulty {
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

fn faulty(dir: &Path, plan: &Arc<Plan>) -> Sessions {
    let plan = Arc::clone(plan);
    let open = move |path: &Path, create: bool| -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(Faulty { real: open_real(path, create)?, plan: Arc::clone(&plan) }))
    };
    sessions_with(dir, Box::new(open)).0
}

/// Writes eight messages, each until it is acknowledged, and returns how many tries failed.
fn write_all(sessions: &Sessions, id: SessionId, mut on_failure: impl FnMut()) -> usize {
    let mut failures = 0;
    for at in 0..8 {
        let text = format!("message {at}");
        loop {
            match append(sessions, id, says(&text), keyed(&text, &text)) {
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
    let mut failed_somewhere = 0;
    for fail_at in 0..24 {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let plan = Arc::new(Plan {
            count: AtomicU64::new(0),
            fail_at: AtomicU64::new(fail_at),
            fault,
            partial,
        });
        let birth = birth();
        let id = birth.header.session_id;
        let sessions = faulty(dir.path(), &plan);
        sessions.create(birth).expect("creates");
        let lift = || {
            if fault == Fault::FromThen {
                plan.fail_at.store(u64::MAX, Ordering::SeqCst);
            }
        };
        failed_somewhere += write_all(&sessions, id, lift);
        let expected: Vec<_> = (0..8).map(|at| format!("message {at}")).collect();
        assert_eq!(texts(&sessions, id), expected, "live, fault at {fail_at}");
        let reopened = super::sessions(dir.path());
        assert_eq!(texts(&reopened, id), expected, "reopened, fault at {fail_at}");
        let session = reopened.summary(id).expect("opens");
        assert_eq!(session.damaged_records, 0);
    }
    assert!(failed_somewhere >= 16, "the sweep hit {failed_somewhere} operations");
}

#[test]
fn any_write_or_sync_may_fail_once() {
    sweep(Fault::Once, false);
    sweep(Fault::Once, true);
}

#[test]
fn a_disk_that_stays_full_for_a_while_loses_nothing() {
    sweep(Fault::FromThen, false);
    sweep(Fault::FromThen, true);
}

#[test]
fn a_read_only_disk_refuses_writes_and_still_reads() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let birth = birth();
    let id = birth.header.session_id;
    let first = sessions(dir.path());
    first.create(birth).expect("creates");
    append(&first, id, says("kept"), None).expect("records");
    let read_only = |_: &Path, _: bool| -> io::Result<Box<dyn LogFile>> {
        Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))
    };
    let (sessions, _) = sessions_with(dir.path(), Box::new(read_only));
    let refused = append(&sessions, id, says("lost"), None).expect_err("cannot write");
    assert!(
        matches!(&refused, SessionError::Storage { path, .. } if path.ends_with(format!("{id}.jsonl")))
    );
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert_eq!(texts(&sessions, id), ["kept"]);
}
