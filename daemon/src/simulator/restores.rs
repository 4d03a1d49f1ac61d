//! Restores and prunes that crash, and restores that meet a failing disk: the home is as it was, or has everything, and
//! every backup that is left is whole.

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::methods::backup::{
    BackupCreateParams, BackupPruneParams, BackupRestoreParams, BackupVerifyParams,
    BackupVerifyResult,
};
use ollm_protocol::methods::session::SessionCreateParams;
use rustix::io::Errno;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::crash_disk::{CrashDisk, FileTree, Survivors};
use super::dice::Dice;
use super::home::{OpenHome, scratch, trace_below, write_tree};
use crate::app::backups;
use crate::app::sessions::{create, input};
use crate::fsutil::trace::{DiskFault, DiskStep, FaultKind};

/// The states after crashes of one restore.
const N_STATES: usize = 150;

/// Makes a backup of sessions with blobs; returns their ids.
fn back_up(place: &Path, n_sessions: usize) -> Vec<SessionId> {
    let scratch = scratch();
    let home = OpenHome::start(scratch.path(), trace_below(scratch.path())).expect("starts");
    let mut ids = Vec::new();
    for number in 0..n_sessions {
        let created = create::create(&home.core, SessionCreateParams::default()).expect("creates");
        let id = created.session.session_id;
        for text in ["short".to_owned(), "large ".repeat(20_000 + number)] {
            record(&home, id, &text);
        }
        ids.push(id);
    }
    std::fs::File::create(home.dir.join("global.json")).expect("creates");
    add_backup(&home, place);
    ids
}

fn record(home: &OpenHome, id: SessionId, text: &str) {
    let message = json!({ "role": "user", "content": text });
    let params = json!({ "sessionId": id, "message": message });
    let params = serde_json::from_value(params).expect("params");
    let recorded = input::record(Arc::clone(&home.core), params);
    home.runtime.block_on(recorded).expect("records");
}

/// Adds a backup to a directory; returns its id.
fn add_backup(home: &OpenHome, place: &Path) -> String {
    let params = BackupCreateParams { path: place.to_owned(), session_id: None, secret: None };
    let made = backups::create(Arc::clone(&home.core), params, CancellationToken::new());
    let made = home.runtime.block_on(made).expect("makes a backup");
    assert_eq!(made.skipped, []);
    made.backup.backup_id
}

/// Removes all backups of a directory but the newest.
fn prune(home: &OpenHome, place: &Path) {
    let params = BackupPruneParams {
        path: place.to_owned(),
        keep_last: Some(1),
        keep_daily: None,
        keep_weekly: None,
        keep_monthly: None,
        dry_run: false,
        secret: None,
    };
    let pruned = backups::prune(Arc::clone(&home.core), params, CancellationToken::new());
    assert_eq!(home.runtime.block_on(pruned).expect("prunes").kept.len(), 1);
}

fn verified(home: &OpenHome, place: &Path) -> BackupVerifyResult {
    let params = BackupVerifyParams { path: place.to_owned(), secret: None };
    let verified = backups::verify(Arc::clone(&home.core), params, CancellationToken::new());
    home.runtime.block_on(verified).expect("verifies")
}

/// Restores into a home; returns whether that succeeded.
fn restore(home: &OpenHome, place: &Path) -> bool {
    let (path, backup_id, session_id) = (place.to_owned(), None, None);
    let params = BackupRestoreParams { path, backup_id, session_id, secret: None };
    let restored = backups::restore(Arc::clone(&home.core), params, CancellationToken::new());
    home.runtime.block_on(restored).is_ok()
}

/// Checks that a home has all sessions, whole, or nothing; returns whether it has them.
fn has_all(home: &OpenHome, ids: &[SessionId], state: &str) -> bool {
    let logs = home.core.sessions.log_ids().expect("lists");
    for (id, _) in &logs {
        let summary = home.core.sessions.summary(*id).expect("opens");
        assert_eq!((summary.message_count, summary.damaged_records), (2, 0), "{state}");
        let seqs: Vec<_> = (0..3).map(ollm_protocol::Seq).collect();
        let bodies = home.core.sessions.bodies(*id, &seqs).expect("reads");
        assert!(bodies.iter().all(Option::is_some), "{state}: a blob is missing");
    }
    assert!(logs.is_empty() || logs.len() == ids.len(), "{state}: {} sessions", logs.len());
    assert!(!home.dir.join("sessions/.ollm-restore").exists(), "{state}: the stage is left");
    assert_eq!(home.dir.join("global.json").exists(), !logs.is_empty(), "{state}");
    !logs.is_empty()
}

#[test]
fn restore_that_crashes_is_complete_or_leaves_nothing() {
    let outside = scratch();
    let place = outside.path().join("b");
    let ids = back_up(&place, 3);
    let first = scratch();
    let home = OpenHome::start(first.path(), trace_below(first.path())).expect("starts");
    let begun = home.trace.position();
    assert!(restore(&home, &place));
    assert!(has_all(&home, &ids, "without a crash"));
    let steps: Vec<DiskStep> = home.trace.steps();
    drop(home);
    let mut n_whole = 0;
    for number in 0..N_STATES {
        let mut dice = Dice::of(number as u64, 0);
        let at = begun + dice.below(steps.len() + 1 - begun);
        let survivors = match dice.below(3) {
            0 => Survivors::Everything,
            1 => Survivors::Nothing,
            _ => Survivors::Percent(dice.pick(&[15, 50, 85])),
        };
        let mut disk = CrashDisk::new(&FileTree::new());
        steps[..at].iter().for_each(|step| disk.apply(step));
        disk.disown_temporaries();
        let again = scratch();
        write_tree(again.path(), &disk.crash(survivors, &mut dice));
        let state = format!("state {number}: {survivors:?} of {at} changes from {begun} on");
        let home = OpenHome::start(again.path(), trace_below(again.path()));
        let home = home.unwrap_or_else(|error| panic!("{state}: {error}"));
        let is_whole = has_all(&home, &ids, &state);
        n_whole += usize::from(is_whole);
        assert!(is_whole || at < steps.len(), "{state}: an acknowledged restore is lost");
        // What was not restored can be.
        assert!(is_whole || restore(&home, &place), "{state}");
        assert!(has_all(&home, &ids, &state), "{state}");
    }
    assert!((1..N_STATES).contains(&n_whole), "{n_whole} of {N_STATES} are whole");
}

#[test]
fn restore_on_a_failing_disk_is_an_error_or_complete() {
    let outside = scratch();
    let place = outside.path().join("b");
    let ids = back_up(&place, 2);
    let kinds = [Errno::NOSPC, Errno::IO].map(|errno| FaultKind::Short(errno.raw_os_error()));
    let mut at = 0;
    loop {
        let scratch = scratch();
        let home = OpenHome::start(scratch.path(), trace_below(scratch.path())).expect("starts");
        let (before, _) = home.trace.counts();
        let fault = DiskFault { at: before + at, count: 1 + at % 3, kind: kinds[at % 2] };
        home.trace.set_fault(Some(fault));
        let is_restored = restore(&home, &place);
        home.trace.set_fault(None);
        let n_failed = home.trace.counts().1;
        drop(home);
        let home = OpenHome::start(scratch.path(), trace_below(scratch.path())).expect("starts");
        let is_whole = has_all(&home, &ids, &format!("change {at} failed"));
        assert!(is_whole || !is_restored, "change {at}: an acknowledged restore is lost");
        if n_failed == 0 {
            assert!(is_restored && at > 20, "{at} changes were tried");
            return;
        }
        at += 1;
    }
}

#[test]
fn prune_that_crashes_leaves_whole_backups() {
    let first = scratch();
    let home = OpenHome::start(first.path(), trace_below(first.path())).expect("starts");
    let place = first.path().join("b");
    let created = create::create(&home.core, SessionCreateParams::default()).expect("creates");
    let mut newest = String::new();
    for text in ["first", "second", "third"] {
        record(&home, created.session.session_id, text);
        newest = add_backup(&home, &place).max(newest);
    }
    let begun = home.trace.position();
    prune(&home, &place);
    let steps: Vec<DiskStep> = home.trace.steps();
    for at in begun..=steps.len() {
        let all = [Survivors::Everything, Survivors::Nothing, Survivors::Percent(50)];
        for (survivors, number) in all.into_iter().zip(0..) {
            let mut dice = Dice::of(at as u64, number);
            let mut disk = CrashDisk::new(&FileTree::new());
            steps[..at].iter().for_each(|step| disk.apply(step));
            disk.disown_temporaries();
            let again = scratch();
            write_tree(again.path(), &disk.crash(survivors, &mut dice));
            let state = format!("{survivors:?} of {at} changes from {begun} on");
            let place = again.path().join("b");
            let found = verified(&home, &place);
            assert!(found.ok, "{state}: {found:?}");
            assert_eq!(found.backups[0].backup_id, newest, "{state}");
            assert!(at < steps.len() || found.backups.len() == 1, "{state}: it was acknowledged");
            prune(&home, &place);
            let found = verified(&home, &place);
            assert!(found.ok && found.unneeded_parts == 0, "{state}: {found:?}");
        }
    }
}
