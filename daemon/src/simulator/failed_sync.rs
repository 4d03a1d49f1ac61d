//! A process that is killed after a sync failed, and before it could cut the bytes that may not be on the disk.
//!
//! The system's cache has these bytes, so the next process reads them. It must write them again before anything counts
//! on them, because another sync does nothing for them.

use std::fs;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::SessionStatus;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::crash_disk::{CrashDisk, FileTree, Survivors};
use super::dice::Dice;
use super::home::{OpenHome, scratch, trace_below, write_tree};
use super::workload::of;
use crate::app::context::pins;
use crate::app::error::AppError;
use crate::app::sessions::{create, input};
use crate::fsutil::trace::{DiskFault, DiskStep, DiskTrace, FaultKind};

/// A use of the records that a killed process left.
type Use = fn(&OpenHome, SessionId);

fn record(home: &OpenHome, id: SessionId, text: &str) -> Result<Value, AppError> {
    let message = json!({ "role": "user", "content": text });
    let params = json!({ "sessionId": id, "message": message, "key": format!("key of {text}") });
    let recorded = input::record(Arc::clone(&home.core), of(&params));
    home.runtime.block_on(recorded).map(|reply| serde_json::to_value(reply).expect("is JSON"))
}

/// Returns the disk of a process that recorded "one", failed to sync "two" and to cut it, and was killed then.
fn disk_after_failed_sync() -> (CrashDisk, SessionId) {
    let scratch = scratch();
    let trace = trace_below(scratch.path());
    let home = OpenHome::start(scratch.path(), Arc::clone(&trace)).expect("starts");
    let created = create::create(&home.core, of(&json!({}))).expect("creates");
    let id = created.session.session_id;
    record(&home, id, "one").expect("records");
    home.wait_for_quiet_sessions().expect("is quiet");
    let kind = FaultKind::Error(Errno::IO.raw_os_error());
    trace.set_fault(Some(DiskFault { at: trace.counts().0 + 1, count: 1000, kind }));
    record(&home, id, "two").expect_err("is not synced");
    let steps = trace.steps();
    let is_failed = |step: &DiskStep| matches!(step, DiskStep::FailedSync(_));
    let is_cut = |step: &DiskStep| matches!(step, DiskStep::SetLen(..));
    assert!(steps.iter().any(is_failed) && !steps.iter().any(is_cut), "the bytes are left");
    let mut disk = CrashDisk::new(&FileTree::new());
    steps.iter().for_each(|step| disk.apply(step));
    disk.disown_temporaries();
    (disk, id)
}

/// Starts on the disk of a killed process, uses the session, cuts the power, and returns the messages that are left.
fn messages_after_power_cut(use_records: Use, keeps_catalog: bool) -> usize {
    let (mut disk, id) = disk_after_failed_sync();
    let mut dice = Dice::of(1, 1);
    let second = scratch();
    write_tree(second.path(), &disk.crash(Survivors::Everything, &mut dice));
    let trace = trace_below(second.path());
    let home = OpenHome::start(second.path(), Arc::<DiskTrace>::clone(&trace)).expect("starts");
    use_records(&home, id);
    home.wait_for_catalog().expect("catches up");
    let steps = trace.steps();
    drop(home);
    steps.iter().for_each(|step| disk.apply(step));
    disk.disown_temporaries();
    let third = scratch();
    write_tree(third.path(), &disk.crash(Survivors::Nothing, &mut dice));
    if keeps_catalog {
        for name in ["catalog.sqlite3", "catalog.sqlite3-wal"] {
            let copied = fs::copy(
                second.path().join("home").join(name),
                third.path().join("home").join(name),
            );
            assert!(copied.is_ok() || name.ends_with("-wal"), "{copied:?}");
        }
    }
    let home = OpenHome::start(third.path(), trace_below(third.path())).expect("starts");
    let session = home.core.sessions.summary(id).expect("is there");
    assert_eq!((session.status, session.damaged_records), (SessionStatus::Active, 0));
    home.wait_for_catalog().expect("catches up");
    session.message_count as usize
}

#[test]
fn record_that_a_retry_confirms_is_durable_after_a_failed_sync() {
    let retry: Use = |home, id| {
        let reply = record(home, id, "two").expect("finds it");
        assert_eq!(reply["duplicate"], true, "{reply}");
    };
    assert_eq!(messages_after_power_cut(retry, false), 2);
    assert_eq!(messages_after_power_cut(retry, true), 2);
}

#[test]
fn record_that_another_one_follows_is_durable_after_a_failed_sync() {
    let follow: Use = |home, id| drop(record(home, id, "three").expect("records"));
    assert_eq!(messages_after_power_cut(follow, false), 3);
    let pin: Use = |home, id| {
        let params = json!({ "sessionId": id, "seq": 2 });
        home.runtime.block_on(pins::pin(Arc::clone(&home.core), of(&params))).expect("pins");
    };
    assert_eq!(messages_after_power_cut(pin, true), 2);
}

#[test]
fn record_that_the_catalog_has_seen_is_durable_after_a_failed_sync() {
    assert_eq!(messages_after_power_cut(|_, _| {}, true), 2);
    let read: Use = |home, id| drop(home.core.sessions.summary(id).expect("opens"));
    assert_eq!(messages_after_power_cut(read, true), 2);
}
