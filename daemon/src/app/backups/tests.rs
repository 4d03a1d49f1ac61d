//! Backups and restores of real homes, with changed bytes, wrong secrets and full disks.
#![expect(clippy::disallowed_methods, reason = "these tests write files as other programs do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use age::secrecy::ExposeSecret as _;
use rustix::io::Errno;

use super::*;
use crate::app::testing::{TestSession, scratch_core};
use crate::fsutil::trace::{DiskFault, DiskTrace, FaultKind};
use crate::simulator::dice::Dice;

/// The changed bytes of each form of a backup.
const N_FLIPS: usize = 60;

/// A home with a session of several parts, blobs and files.
async fn home() -> TestSession {
    let session = TestSession::new(&[]);
    for text in ["hello", &"long ".repeat(40_000), &"x".repeat(60_000), "bye"] {
        session.record("user", text).await;
    }
    let write = |name: &str, text: &str| {
        let path = session.dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("creates");
        fs::write(path, text).expect("writes");
    };
    write(
        "config.yaml",
        "models: {default: m}\nservers: {a: {url: 'http://x', headers: {k: hunter2}}}\n",
    );
    write("global.json", r#"{"entries":{}}"#);
    write("projects/0123456789abcdef.json", r#"{"path":"/p"}"#);
    let snapshot = format!("context-snapshots/{}/snapshots/snapshot-x.json", session.id);
    write(&snapshot, r#"{"sessionId":"x","messages":[]}"#);
    session
}

fn create_params(path: &Path, secret: Option<BackupSecret>) -> BackupCreateParams {
    BackupCreateParams { path: path.to_owned(), session_id: None, secret }
}

fn created(core: &Arc<Core>, path: &Path, secret: Option<&BackupSecret>) -> BackupCreateResult {
    let params = create_params(path, secret.cloned());
    let result = create::create(core, &params, &CancellationToken::new()).expect("creates");
    assert_eq!((&result.skipped, &result.warnings), (&Vec::new(), &Vec::new()));
    result
}

fn verified(
    core: &Arc<Core>,
    path: &Path,
    secret: Option<&BackupSecret>,
) -> Result<BackupVerifyResult> {
    let params = BackupVerifyParams { path: path.to_owned(), secret: secret.cloned() };
    verify::verify(core, &params, &CancellationToken::new())
}

fn restore_params(path: &Path, secret: Option<&BackupSecret>) -> BackupRestoreParams {
    let secret = secret.cloned();
    BackupRestoreParams { path: path.to_owned(), backup_id: None, session_id: None, secret }
}

fn restored(core: &Arc<Core>, params: &BackupRestoreParams) -> Result<BackupRestoreResult> {
    restore::restore(core, params, &CancellationToken::new())
}

fn prune_params(path: &Path, secret: Option<&BackupSecret>) -> BackupPruneParams {
    BackupPruneParams {
        path: path.to_owned(),
        keep_last: Some(1),
        keep_daily: None,
        keep_weekly: None,
        keep_monthly: None,
        dry_run: false,
        secret: secret.cloned(),
    }
}

fn pruned(core: &Arc<Core>, params: &BackupPruneParams) -> Result<BackupPruneResult> {
    prune::prune(core, params, &CancellationToken::new())
}

/// Returns the secret key of age, in a form that opens a backup.
fn identity() -> BackupSecret {
    let identity = age::x25519::Identity::generate();
    let identities = vec![identity.to_string().expose_secret().to_owned()];
    BackupSecret { identities, ..BackupSecret::default() }
}

/// Returns the files below a directory, relative to it.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn restored_home_has_the_same_bytes_and_no_secret() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let passphrase = Some("correct horse".to_owned());
    let with_passphrase = BackupSecret { passphrase, ..BackupSecret::default() };
    for (name, secret) in
        [("b", None), ("b.tar", None), ("c", Some(with_passphrase)), ("c.tar", Some(identity()))]
    {
        let (path, secret) = (scratch.path().join(name), secret.as_ref());
        let made = created(&session.core, &path, secret);
        assert_eq!((made.backup.sessions, made.encrypted), (1, secret.is_some()), "{name}");
        assert!(verified(&session.core, &path, secret).expect("verifies").ok, "{name}");
        for file in if path.is_dir() { files_below(&path) } else { vec![path.clone()] } {
            let bytes = fs::read(&file).expect("reads");
            let has = |text: &[u8]| memchr::memmem::find(&bytes, text).is_some();
            assert!(!has(b"hunter2"), "{}", file.display());
            assert!(
                secret.is_none() || !(has(b"hello") || has(b"long long")),
                "{}",
                file.display()
            );
        }
        let other = tempfile::tempdir().expect("a scratch directory");
        let core = scratch_core(other.path());
        let result = restored(&core, &restore_params(&path, secret)).expect("restores");
        assert_eq!((&result.sessions, &result.kept), (&vec![session.id], &Vec::new()), "{name}");
        assert!(result.config_restored, "{name}");
        let log = format!("{}.jsonl", session.id);
        for file in [&log, "global.json", "projects/0123456789abcdef.json"] {
            let read = |dir: &Path| fs::read(dir.join(file)).expect("reads");
            assert!(read(other.path()) == read(session.dir.path()), "{name}: {file}");
        }
        let texts = |core: &Core| {
            let seqs: Vec<_> = (0..5).map(ollm_protocol::Seq).collect();
            format!("{:?}", core.sessions.bodies(session.id, &seqs).expect("reads"))
        };
        assert!(texts(&core) == texts(&session.core), "{name}");
        assert!(!other.path().join(".ollm-restore").exists(), "{name}");
        assert!(core.snapshots.file_paths(session.id).expect("lists").len() == 1, "{name}");
        let again = restored(&core, &restore_params(&path, secret)).expect_err("is in use");
        assert!(matches!(again, AppError::HomeInUse), "{again}");
    }
}

#[tokio::test]
async fn second_backup_writes_only_what_changed() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    for secret in [None, Some(identity())] {
        let path = scratch.path().join(if secret.is_some() { "sealed" } else { "plain" });
        let first = created(&session.core, &path, secret.as_ref());
        let same = created(&session.core, &path, secret.as_ref());
        assert_eq!((same.new_parts, same.known_parts), (0, first.new_parts));
        session.record("user", "more").await;
        let second = created(&session.core, &path, secret.as_ref());
        assert_eq!(second.new_parts, 1, "the end of the log");
        let params =
            BackupListParams { path: path.clone(), backup_id: None, secret: secret.clone() };
        let listed = list(&session.core, params).expect("lists");
        assert_eq!(listed.data.len(), 3);
        let ids = |one: &BackupInfo| one.backup_id.clone();
        let all: std::collections::BTreeSet<_> = listed.data.iter().map(ids).collect();
        assert!(all.contains(&first.backup.backup_id) && all.contains(&second.backup.backup_id));
        assert!(verified(&session.core, &path, secret.as_ref()).expect("verifies").ok);
    }
}

#[tokio::test]
async fn any_changed_byte_is_found_and_restores_nothing() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let mut dice = Dice::of(7, 0);
    for (name, secret) in
        [("b", None), ("b.tar", None), ("c", Some(identity())), ("c.tar", Some(identity()))]
    {
        let (path, secret) = (scratch.path().join(name), secret.as_ref());
        drop(created(&session.core, &path, secret));
        let mut files = if path.is_dir() { files_below(&path) } else { vec![path.clone()] };
        files.retain(|file| !file.ends_with("lock"));
        let other = tempfile::tempdir().expect("a scratch directory");
        let core = scratch_core(other.path());
        for number in 0..N_FLIPS {
            // Small files are hit as often as large ones.
            let file = &files[number % files.len()];
            let whole = fs::read(file).expect("reads");
            let (at, bit) = (dice.below(whole.len()), dice.below(8));
            let mut changed = whole.clone();
            if number % 5 == 4 {
                changed.truncate(at)
            } else {
                changed[at] ^= 1 << bit
            };
            fs::write(file, &changed).expect("writes");
            let found = verified(&session.core, &path, secret);
            let context = format!("{} at {at}, bit {bit}: {found:?}", file.display());
            assert!(found.as_ref().map_or(true, |result| !result.ok), "{context}");
            let refused = restored(&core, &restore_params(&path, secret));
            assert!(refused.is_err(), "{context}");
            assert!(core.sessions.log_ids().expect("lists").is_empty(), "{context}");
            fs::write(file, &whole).expect("writes");
        }
        assert!(verified(&session.core, &path, secret).expect("verifies").ok, "{name}");
    }
}

#[tokio::test]
async fn wrong_secrets_are_told_apart() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (sealed, keyed) = (scratch.path().join("sealed"), scratch.path().join("keyed"));
    let passphrase = |text: &str| {
        Some(BackupSecret { passphrase: Some(text.to_owned()), ..BackupSecret::default() })
    };
    let (own, other) = (identity(), identity());
    drop(created(&session.core, &sealed, passphrase("right").as_ref()));
    drop(created(&session.core, &keyed, Some(&own)));
    let check = |path: &Path, secret: Option<BackupSecret>, expected: &str| {
        let error = verified(&session.core, path, secret.as_ref()).expect_err("is refused");
        assert!(error.to_string().contains(expected), "{error}");
        let params = create_params(path, secret);
        let error = create::create(&session.core, &params, &CancellationToken::new());
        assert!(error.expect_err("is refused").to_string().contains(expected));
    };
    check(&sealed, passphrase("wrong"), "the passphrase does not open");
    check(&sealed, None, "is encrypted with a passphrase");
    check(&sealed, Some(own.clone()), "is encrypted with a passphrase");
    check(&keyed, Some(other), "none of the given keys opens");
    check(&keyed, None, "is encrypted with a key");
    check(&keyed, passphrase("right"), "is encrypted with a key");
    let plain = scratch.path().join("plain");
    drop(created(&session.core, &plain, None));
    let params = create_params(&plain, passphrase("right"));
    let error = create::create(&session.core, &params, &CancellationToken::new());
    assert!(error.expect_err("is refused").to_string().contains("are not encrypted"));
    let error = verified(&session.core, &plain, passphrase("right").as_ref());
    assert!(error.expect_err("is refused").to_string().contains("are not encrypted"));
    check(&plain, Some(BackupSecret::default()), "neither a passphrase nor a key");
    let recipient = age::x25519::Identity::generate().to_public().to_string();
    let secret = Some(BackupSecret { recipients: vec![recipient], ..own });
    let params = create_params(&keyed, secret);
    let made = create::create(&session.core, &params, &CancellationToken::new());
    let warnings = made.expect("creates").warnings;
    assert!(warnings.len() == 1 && warnings[0].starts_with("the recipients were not used"));
}

#[tokio::test]
async fn places_that_are_none_are_refused() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let refuse = |path: &Path, expected: &str| {
        let params = create_params(path, None);
        let error = create::create(&session.core, &params, &CancellationToken::new());
        let error = error.expect_err("is refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    refuse(Path::new("b"), "must be absolute");
    refuse(&session.dir.path().join("new/b"), "lies in the home");
    fs::write(scratch.path().join("file"), "x").expect("writes");
    refuse(scratch.path(), "has other files");
    refuse(&scratch.path().join("file"), "");
    let foreign = scratch.path().join("foreign");
    fs::create_dir(&foreign).expect("creates");
    for name in [".tmp-1", "key.age"] {
        fs::write(foreign.join(name), "x").expect("writes");
        refuse(&foreign, "has other files");
        fs::remove_file(foreign.join(name)).expect("was not removed");
    }
    let archive = scratch.path().join("b.tar");
    drop(created(&session.core, &archive, None));
    refuse(&archive, "there is already a file");
    let error = verified(&session.core, scratch.path(), None).expect_err("is none");
    assert!(error.to_string().contains("is not a backup"), "{error}");
    assert!(!session.dir.path().join("new").exists(), "nothing was written");
    let locked = scratch.path().join("locked");
    fs::create_dir(&locked).expect("creates");
    let lock = fs::File::create(locked.join("lock")).expect("creates");
    lock.try_lock().expect("nobody has locked it");
    refuse(&locked, "another backup is being written to");
    let _one_at_a_time = session.core.store_work.lock();
    refuse(&locked, "another backup, restore or check of the store is running");
}

#[tokio::test]
async fn full_disk_is_an_error_and_leaves_no_backup() {
    let session = home().await;
    let full = FaultKind::Short(Errno::NOSPC.raw_os_error());
    for name in ["b", "b.tar"] {
        let mut n_failed = 0;
        for at in 0.. {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let (path, trace) = (scratch.path().join(name), DiskTrace::new(scratch.path()));
            trace.set_fault(Some(DiskFault { at, count: 2, kind: full }));
            let result = create::create(
                &session.core,
                &create_params(&path, None),
                &CancellationToken::new(),
            );
            trace.set_fault(None);
            if trace.counts().1 == 0 {
                assert!(at > 3, "all changes were tried");
                break;
            }
            if let Err(error) = &result {
                n_failed += 1;
                assert!(matches!(error, AppError::Backup(_) | AppError::Storage(_)), "{error}");
                if path.is_file() {
                    // The last change failed, and its removal too.
                    assert!(verified(&session.core, &path, None).expect("verifies").ok, "{at}");
                    fs::remove_file(&path).expect("removes");
                }
                let manifests = fs::read_dir(path.join("backups")).map_or(0, |all| {
                    all.filter(|one| {
                        !one.as_ref()
                            .expect("lists")
                            .file_name()
                            .as_encoded_bytes()
                            .starts_with(b".")
                    })
                    .count()
                });
                // The last change is the sync of its name.
                let is_whole =
                    manifests == 0 || verified(&session.core, &path, None).is_ok_and(|all| all.ok);
                assert!(is_whole, "{name} {at}");
            }
            if result.is_err() {
                drop(created(&session.core, &path, None));
            }
            assert!(verified(&session.core, &path, None).expect("verifies").ok, "{name} {at}");
        }
        assert!(n_failed >= 3, "{name}: {n_failed}");
    }
}

#[tokio::test]
async fn session_comes_into_a_home_in_use_unless_its_records_differ() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("b");
    drop(created(&session.core, &path, None));
    let other = TestSession::new(&[]);
    other.record("user", "another session").await;
    let params =
        BackupRestoreParams { session_id: Some(session.id), ..restore_params(&path, None) };
    let result = restored(&other.core, &params).expect("restores");
    assert_eq!(result.sessions, [session.id]);
    assert_eq!(restored(&other.core, &params).expect("is there").present, [session.id]);
    assert!(!other.dir.path().join("global.json").exists(), "only the session");
    // The one that continues has all records of the backup.
    let moved = TestSession { dir: other.dir, core: other.core, id: session.id };
    moved.record("user", "goes on").await;
    assert_eq!(restored(&moved.core, &params).expect("is there").present, [session.id]);
    session.record("user", "goes on elsewhere").await;
    drop(created(&session.core, &path, None));
    let error = restored(&moved.core, &params).expect_err("differs");
    assert!(matches!(error, AppError::RestoreConflict { is_longer: false, .. }), "{error}");

    let third = tempfile::tempdir().expect("a scratch directory");
    let core = scratch_core(third.path());
    drop(restored(&core, &params).expect("restores"));
    session.record("user", "more").await;
    drop(created(&session.core, &path, None));
    let error = restored(&core, &params).expect_err("is longer");
    assert!(matches!(error, AppError::RestoreConflict { is_longer: true, .. }), "{error}");
    let unknown = Some(ollm_protocol::SessionId::from_uuid(uuid::Uuid::nil()));
    let params = BackupRestoreParams { session_id: unknown, ..params };
    let error = restored(&core, &params).expect_err("is unknown");
    assert!(matches!(error, AppError::NotInBackup { .. }), "{error}");
}

#[tokio::test]
async fn lost_log_comes_back_beside_its_blobs() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("b");
    drop(created(&session.core, &path, None));
    let (log, blobs) = (format!("{}.jsonl", session.id), format!("{}.blobs", session.id));
    let files = |dir: &Path| {
        let mut files = files_below(&dir.join(&blobs));
        files.sort_unstable();
        files.push(dir.join(&log));
        let read = |file: &PathBuf| {
            (file.file_name().map(ToOwned::to_owned), fs::read(file).expect("reads"))
        };
        files.iter().map(read).collect::<Vec<_>>()
    };
    let whole = files(session.dir.path());
    assert!(whole.len() > 1, "it has blobs");
    for session_id in [None, Some(session.id)] {
        let other = tempfile::tempdir().expect("a scratch directory");
        fs::write(other.path().join(&log), "").expect("writes");
        fs::create_dir(other.path().join(&blobs)).expect("creates");
        let core = scratch_core(other.path());
        let params = BackupRestoreParams { session_id, ..restore_params(&path, None) };
        let result = restored(&core, &params).expect("restores");
        assert_eq!((&result.sessions, &result.kept), (&vec![session.id], &Vec::new()));
        assert!(files(other.path()) == whole);
    }
}

#[tokio::test]
async fn interrupted_restore_is_finished_and_its_session_is_listed() {
    let session = TestSession::new(&[]);
    session.record("user", "hello").await;
    let other = tempfile::tempdir().expect("a scratch directory");
    let core = scratch_core(other.path());
    let deadline = || Instant::now() + Duration::from_secs(20);
    assert!(core.catalog.wait_caught_up(deadline()));
    let stage = other.path().join(".ollm-restore");
    fs::create_dir(&stage).expect("creates");
    let log = format!("{}.jsonl", session.id);
    fs::copy(session.dir.path().join(&log), stage.join(&log)).expect("copies");
    let list = serde_json::json!({ "sessions": [session.id], "others": [] });
    fs::write(stage.join("ready"), list.to_string()).expect("writes");
    recover(&core);
    assert!(!stage.exists() && core.sessions.has_log(session.id));
    assert!(core.catalog.wait_caught_up(deadline()));
    assert!(core.catalog.hint(session.id).is_some(), "lists show the session");
}

#[tokio::test]
async fn damaged_manifest_hides_no_other_backup() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("b");
    let first = created(&session.core, &path, None).backup.backup_id;
    session.record("user", "more").await;
    let newest = created(&session.core, &path, None).backup.backup_id.max(first);
    fs::write(path.join(format!("backups/{newest}.json")), "{}").expect("writes");
    let params = BackupListParams { path: path.clone(), backup_id: None, secret: None };
    let listed = list(&session.core, params).expect("lists");
    assert_eq!((listed.data.len(), listed.unreadable.len()), (1, 1));
    assert_eq!(listed.unreadable[0].backup_id, newest);
    let other = tempfile::tempdir().expect("a scratch directory");
    let core = scratch_core(other.path());
    let whole = restored(&core, &restore_params(&path, None)).expect_err("is damaged");
    assert!(whole.to_string().contains("is damaged"), "{whole}");
    let session_id = Some(session.id);
    let params = BackupRestoreParams { session_id, ..restore_params(&path, None) };
    let result = restored(&core, &params).expect("restores");
    assert_eq!((result.sessions, result.unreadable), (vec![session.id], listed.unreadable));
}

#[tokio::test]
async fn part_that_cannot_be_read_ends_no_check() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("b");
    drop(created(&session.core, &path, None));
    let check = |expected: &str| {
        let found = verified(&session.core, &path, None).expect("is checked");
        assert!(!found.ok && found.findings.len() == 1, "{found:?}");
        assert!(found.findings[0].text.contains(expected), "{found:?}");
        found.findings[0].lost.clone()
    };
    let part = files_below(&path.join("parts")).remove(0);
    // More than any memory has room for.
    let file = fs::File::options().write(true).open(&part);
    file.and_then(|file| file.set_len(1 << 40)).expect("grows");
    let lost = check("it is larger than any file of its kind");
    assert!(!lost.is_empty());
    fs::remove_file(&part).expect("removes");
    assert_eq!(check("it is missing"), lost);
    std::os::unix::fs::symlink("/dev/null", &part).expect("links");
    assert_eq!(check("it cannot be read: it is a symbolic link"), lost);
    fs::remove_dir_all(path.join("backups")).expect("removes");
    assert!(check("no backup is complete").is_empty());
}

#[tokio::test]
async fn lost_sessions_and_blobs_are_named() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let lost = session.core.clock.session_id();
    let log = session.dir.path().join(format!("{lost}.jsonl"));
    fs::write(&log, "garbage\n").expect("writes");
    let blobs = session.dir.path().join(format!("{}.blobs", session.id));
    // The name of a blob has lower case.
    fs::write(blobs.join("A".repeat(64)), "x").expect("writes");
    let blob = blobs.join(blake3::hash("long ".repeat(40_000).as_bytes()).to_string());
    fs::remove_file(&blob).expect("there is the blob");
    let snapshots = format!("context-snapshots/{}/snapshots/", session.id);
    let snapshot_dir = session.dir.path().join(snapshots.trim_end_matches('/'));
    fs::remove_dir_all(&snapshot_dir).expect("there are snapshots");
    fs::write(&snapshot_dir, "no directory").expect("writes");
    let path = scratch.path().join("b");
    let params = create_params(&path, None);
    let made = create::create(&session.core, &params, &CancellationToken::new());
    let made = made.expect("creates");
    let paths = made.skipped.iter().map(|skipped| skipped.path.as_str());
    let mut skipped: Vec<&str> = paths.collect();
    skipped.sort_unstable();
    assert_eq!(skipped, [snapshots, format!("sessions/{lost}.jsonl")]);
    assert_eq!(made.backup.sessions, 1, "the session itself is in the backup");
    let is_named = |warning: &String| warning.contains("is missing, which record");
    assert!(made.warnings.iter().any(is_named), "{:?}", made.warnings);
    assert!(verified(&session.core, &path, None).expect("verifies").ok);
}

#[tokio::test]
async fn canceled_backup_leaves_no_manifest() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (path, left) = (scratch.path().join("b"), CancellationToken::new());
    left.cancel();
    let error = create::create(&session.core, &create_params(&path, None), &left);
    assert!(matches!(error, Err(AppError::StoreWorkCanceled { .. })), "{error:?}");
    assert!(files_below(&path.join("backups")).is_empty());
}

#[tokio::test]
async fn prune_removes_old_backups_and_only_the_parts_that_none_needs() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    for secret in [None, Some(identity())] {
        let path = scratch.path().join(if secret.is_some() { "sealed" } else { "plain" });
        let secret = secret.as_ref();
        let mut newest = created(&session.core, &path, secret).backup.backup_id;
        for text in ["second", "third"] {
            session.record("user", text).await;
            newest = created(&session.core, &path, secret).backup.backup_id.max(newest);
        }
        let params = create_params(&path, secret.cloned());
        let params = BackupCreateParams { session_id: Some(session.id), ..params };
        let single = create::create(&session.core, &params, &CancellationToken::new());
        let single = single.expect("creates").backup.backup_id;
        let foreign = ["notes.txt", "parts/notes.txt", "backups/notes.json"];
        for name in foreign {
            fs::write(path.join(name), "mine").expect("writes");
        }
        let files = || {
            let mut files = files_below(&path);
            files.sort_unstable();
            files
        };
        let before = files();
        let dry_run = BackupPruneParams { dry_run: true, ..prune_params(&path, secret) };
        let expected = pruned(&session.core, &dry_run).expect("previews");
        assert_eq!(files(), before, "a dry run changes nothing");
        let done = pruned(&session.core, &prune_params(&path, secret)).expect("prunes");
        assert_eq!((&done.removed, &done.kept), (&expected.removed, &expected.kept));
        let counts = |result: &BackupPruneResult| (result.removed_parts, result.removed_bytes);
        assert_eq!(counts(&done), counts(&expected));
        assert_eq!(done.removed_parts, 2, "the earlier ends of the log");
        let mut kept: Vec<_> = done.kept.into_iter().map(|backup| backup.backup_id).collect();
        let mut expected = vec![newest, single];
        kept.sort_unstable();
        expected.sort_unstable();
        assert_eq!(kept, expected, "the newest of the home and of the session");
        assert_eq!(files().len(), before.len() - 2 - done.removed.len());
        assert!(foreign.iter().all(|name| path.join(name).is_file()));
        let checked = verified(&session.core, &path, secret).expect("verifies");
        assert!(checked.ok && checked.unneeded_parts == 0, "{checked:?}");
        let again = pruned(&session.core, &prune_params(&path, secret)).expect("prunes");
        assert_eq!((again.removed, again.removed_parts), (Vec::new(), 0));
    }
}

#[tokio::test]
async fn prune_that_fails_anywhere_leaves_whole_backups() {
    let session = home().await;
    for at in 0.. {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("b");
        let first = created(&session.core, &path, None).backup.backup_id;
        session.record("user", "more").await;
        let newest = created(&session.core, &path, None).backup.backup_id.max(first);
        let trace = DiskTrace::new(scratch.path());
        let kind = FaultKind::Short(Errno::IO.raw_os_error());
        trace.set_fault(Some(DiskFault { at, count: 1, kind }));
        let result = pruned(&session.core, &prune_params(&path, None));
        trace.set_fault(None);
        let has_failed = trace.counts().1 > 0;
        assert_eq!(result.is_err(), has_failed, "change {at}");
        let checked = verified(&session.core, &path, None).expect("verifies");
        assert!(checked.ok, "change {at}: {checked:?}");
        assert_eq!(checked.backups[0].backup_id, newest, "change {at}");
        drop(pruned(&session.core, &prune_params(&path, None)).expect("finishes"));
        let checked = verified(&session.core, &path, None).expect("verifies");
        assert!(checked.ok, "change {at}: {checked:?}");
        assert_eq!((checked.backups.len(), checked.unneeded_parts), (1, 0), "change {at}");
        if !has_failed {
            assert!(at > 3, "all changes were tried");
            return;
        }
    }
}

#[tokio::test]
async fn prune_that_is_not_sure_removes_nothing() {
    let session = home().await;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("b");
    let refuse = |params: &BackupPruneParams, expected: &str| {
        let error = pruned(&session.core, params).expect_err("is refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    let params = prune_params(&path, None);
    let mut ids = Vec::new();
    for text in ["first", "second", "third"] {
        session.record("user", text).await;
        ids.push(created(&session.core, &path, None).backup.backup_id);
    }
    let n_files = files_below(&path).len();
    refuse(&BackupPruneParams { keep_last: Some(0), ..params.clone() }, "must be at least 1");
    refuse(&prune_params(Path::new("b"), None), "must be absolute");
    refuse(&prune_params(&path, Some(&identity())), "are not encrypted");
    refuse(&prune_params(scratch.path(), None), "is not a backup");
    assert!(!scratch.path().join("lock").exists(), "a directory of others stays as it is");

    let manifest = path.join(format!("backups/{}.json", ids[0]));
    let whole = fs::read(&manifest).expect("reads");
    fs::write(&manifest, "{}").expect("writes");
    refuse(&params, "its checksum is wrong");
    fs::remove_file(&manifest).expect("removes");
    std::os::unix::fs::symlink("elsewhere", &manifest).expect("links");
    refuse(&params, "");
    fs::remove_file(&manifest).expect("removes");
    let sealed = manifest.with_extension("json.age");
    fs::write(&sealed, &whole).expect("writes");
    refuse(&params, "it is not encrypted as the directory is");
    fs::rename(&sealed, &manifest).expect("renames");
    let lock = fs::File::open(path.join("lock")).expect("opens");
    lock.try_lock().expect("nobody has locked it");
    refuse(&params, "another backup is being written to");
    lock.unlock().expect("unlocks");
    fs::rename(path.join("backups"), path.join("elsewhere")).expect("renames");
    refuse(&params, "has no backup");
    fs::remove_dir(path.join("backups")).expect("is empty");
    fs::rename(path.join("elsewhere"), path.join("backups")).expect("renames");
    assert_eq!(files_below(&path).len(), n_files);
    assert_eq!(pruned(&session.core, &params).expect("prunes").removed.len(), 2);

    let archive = scratch.path().join("b.tar");
    drop(created(&session.core, &archive, None));
    refuse(&prune_params(&archive, None), "has one backup");
    let sealed = scratch.path().join("sealed");
    drop(created(&session.core, &sealed, Some(&identity())));
    refuse(&prune_params(&sealed, None), "is encrypted with a key");
}
