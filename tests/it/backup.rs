//! `backup.*` and `ollmctl backup`: while others write, in another home, with secrets, and after kills.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire, array, text_message};

const WRITERS: usize = 8;
/// The messages of a writer before the backup begins, and the fewest that it writes meanwhile.
const MESSAGES: usize = 20;

fn place(sandbox: &Sandbox, name: &str) -> String {
    sandbox.path(name).to_str().unwrap().to_owned()
}

/// Checks that all records of a restored session are the first ones of the original.
fn assert_beginning(restored: &mut Wire, original: &mut Wire, session: &str) -> usize {
    let (found, all) = (restored.records(session), original.records(session));
    assert!(found.len() <= all.len() && found[..] == all[..found.len()], "{session}");
    found.len()
}

#[test]
fn backup_under_eight_writers_has_a_beginning_of_each_session_with_what_was_acknowledged() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let sessions: Vec<String> = (0..WRITERS).map(|_| wire.create(json!({}))).collect();
    let write = |wire: &mut Wire, session: &str, number: usize| {
        // Every fourth text becomes a blob.
        let text =
            format!("message {number} ").repeat(if number.is_multiple_of(4) { 8000 } else { 3 });
        wire.ok("session.record", text_message(session, "user", &text));
    };
    for session in &sessions {
        (0..MESSAGES).for_each(|number| write(&mut wire, session, number));
    }
    let is_done = AtomicBool::new(false);
    let path = place(&sandbox, "b");
    std::thread::scope(|scope| {
        for session in &sessions {
            let (daemon, is_done) = (&daemon, &is_done);
            scope.spawn(move || {
                let mut wire = daemon.wire();
                let mut number = MESSAGES;
                while number < 2 * MESSAGES || !is_done.load(Ordering::Relaxed) {
                    write(&mut wire, session, number);
                    number += 1;
                }
            });
        }
        let made = wire.ok("backup.create", json!({ "path": path }));
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(made["backup"]["sessions"], WRITERS, "{made}");
        assert!(made.get("skipped").is_none() && made.get("warnings").is_none(), "{made}");
    });
    let checked = wire.ok("backup.verify", json!({ "path": path }));
    assert_eq!(checked["ok"], true, "{checked}");

    let other = Sandbox::new();
    let (_other, mut restored) = other.daemon_and_wire();
    let result = restored.ok("backup.restore", json!({ "path": path }));
    assert_eq!(array(&result["sessions"]).len(), WRITERS);
    for session in &sessions {
        let n_records = assert_beginning(&mut restored, &mut wire, session);
        assert!(n_records >= MESSAGES, "{n_records} of {session}");
        assert_eq!(restored.session(session)["damagedRecords"], Value::Null);
        // It goes on there.
        restored.record(session, "user", "continued");
    }
    let listed = restored.ok("session.list", json!({ "limit": 100 }));
    assert_eq!(array(&listed["data"]).len(), WRITERS);
}

#[test]
fn daemon_killed_during_a_backup_leaves_a_directory_in_which_the_next_one_is_whole() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let session = wire.create(json!({}));
    for number in 0..30 {
        wire.record(&session, "user", &format!("{number} ").repeat(100_000));
    }
    let path = place(&sandbox, "b");
    let mut other = daemon.wire();
    other.subscribe(json!({ "kinds": ["store-progress"] }));
    wire.request("backup.create", json!({ "path": path }));
    assert_eq!(other.event()["data"]["method"], "backup.create");
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let made = wire.ok("backup.create", json!({ "path": path }));
    let checked = wire.ok("backup.verify", json!({ "path": path }));
    assert_eq!(checked["ok"], true, "{checked}");
    let listed = wire.ok("backup.list", json!({ "path": path }));
    assert!(array(&listed["data"]).iter().any(|one| *one == made["backup"]), "{listed}");
    let left = fs::read_dir(sandbox.path("b/parts")).unwrap();
    let left =
        left.filter(|one| one.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "temporary files are removed");
}

#[test]
fn client_that_leaves_cancels_a_backup() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    // Gigabytes of zeros take no space, and seconds to be read; that the client left is noticed at once.
    let blobs = sandbox.log_path(&session).with_extension("blobs");
    fs::create_dir_all(&blobs).unwrap();
    for number in 0..40 {
        let blob = fs::File::create(blobs.join(format!("{number:064x}"))).unwrap();
        blob.set_len(64 << 20).unwrap();
    }
    let path = place(&sandbox, "b");
    let (mut other, mut leaving) = (daemon.wire(), daemon.wire());
    other.subscribe(json!({ "kinds": ["store-progress"] }));
    leaving.request("backup.create", json!({ "path": path }));
    assert_eq!(other.event()["data"]["method"], "backup.create");
    drop(leaving);
    // Another call is admitted as soon as that one ended.
    let checked = crate::harness::until_some("the check is admitted", || {
        wire.call("backup.verify", json!({ "path": path })).ok()
    });
    assert_eq!(checked["findings"][0]["text"], "no backup is complete", "{checked}");
    fs::remove_dir_all(blobs).unwrap();
    let made = wire.ok("backup.create", json!({ "path": path }));
    assert_eq!(made["backup"]["sessions"], 1);
    let checked = wire.ok("backup.verify", json!({ "path": path }));
    assert_eq!(checked["ok"], true, "{checked}");
}

#[test]
fn commands_back_up_check_and_restore_with_a_passphrase() {
    let sandbox = Sandbox::new();
    let recorded = sandbox.ctl(["record", "--new", "hello", "--json"]).json();
    let session = recorded["sessionId"].as_str().unwrap();
    fs::write(sandbox.path("pw"), "correct horse\n").unwrap();
    fs::write(sandbox.path("wrong"), "battery staple\n").unwrap();
    let made = sandbox.ctl(["backup", "create", "b", "--passphrase-file", "pw"]).ok();
    assert!(made.contains("of 1 session (") && made.contains("encrypted"), "{made}");
    let checked = sandbox.ctl(["backup", "verify", "b", "--passphrase-file", "pw"]).ok();
    assert!(checked.starts_with("every byte of 1 backup is as it was written"), "{checked}");
    let refused = sandbox.ctl(["backup", "verify", "b", "--passphrase-file", "wrong"]).fails(2);
    assert!(refused.contains("the passphrase does not open"), "{refused}");
    let refused = sandbox.ctl(["backup", "list", "b"]).fails(2);
    assert!(refused.contains("ollmctl backup list PLACE --passphrase-file FILE"), "{refused}");
    let listed = sandbox.ctl(["backup", "list", "b", "--passphrase-file", "pw", "--json"]).json();
    let id = listed["data"][0]["backupId"].as_str().unwrap();
    let sessions = sandbox.ctl(["backup", "list", "b", id, "--passphrase-file", "pw"]).ok();
    assert!(sessions.contains(session) && sessions.contains("hello"), "{sessions}");
    // No daemon of the new home runs.
    let home = sandbox.path("other");
    let home = home.to_str().unwrap();
    let restore = ["--home", home, "backup", "restore", "b", "--passphrase-file", "pw"];
    let restored = sandbox.ctl(restore).ok();
    assert!(restored.starts_with("restored 1 session"), "{restored}");
    let view = sandbox.ctl(["--home", home, "sessions", "view", session]).ok();
    assert!(view.contains("hello"), "{view}");
    let refused = sandbox.ctl(restore).fails(4);
    assert!(refused.contains("the home has sessions"), "{refused}");
    sandbox.ctl(["--home", home, "daemon", "stop"]).ok();
    let logs = sandbox.files_containing("correct horse");
    assert!(logs.is_empty(), "the passphrase is in {logs:?}");
}

#[test]
fn damaged_backup_is_named_and_refused() {
    let sandbox = Sandbox::new();
    sandbox.ctl(["record", "--new", "hello"]).ok();
    sandbox.ctl(["backup", "create", "b.tar"]).ok();
    let mut bytes = fs::read(sandbox.path("b.tar")).unwrap();
    let at = bytes.windows(5).position(|text| text == b"hello").unwrap();
    bytes[at] ^= 4;
    fs::write(sandbox.path("b.tar"), bytes).unwrap();
    let checked = sandbox.ctl(["backup", "verify", "b.tar"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.stdout.contains("parts/") && checked.stdout.contains("needed by sessions/"),
        "{checked:?}"
    );
    let home = sandbox.path("other");
    let refused = sandbox.ctl(["--home", home.to_str().unwrap(), "backup", "restore", "b.tar"]);
    assert!(refused.fails(1).contains("is damaged at byte"));
    sandbox.ctl(["--home", home.to_str().unwrap(), "daemon", "stop"]).ok();
}

#[test]
fn command_prunes_a_directory_by_rules() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    fs::write(sandbox.path("pw"), "correct horse\n").unwrap();
    let secret = ["--passphrase-file", "pw"];
    for text in ["one", "two", "three"] {
        sandbox.ctl(["record", "--new", text]).ok();
        sandbox.ctl(["backup", "create", "b"].into_iter().chain(secret)).ok();
    }
    let prune = |args: &[&'static str]| {
        sandbox.ctl(["backup", "prune", "b"].into_iter().chain(secret).chain(args.iter().copied()))
    };
    let usage = prune(&[]).fails(2);
    assert!(usage.contains("--keep-last"), "{usage}");
    let preview = prune(&["--keep-last", "1", "--keep-daily", "1", "--dry-run"]).ok();
    assert!(preview.contains("would remove 2 backups and"), "{preview}");
    let listed = || {
        let args = ["backup", "list", "b", "--json"].into_iter().chain(secret);
        array(&sandbox.ctl(args).json()["data"]).to_vec()
    };
    let before = listed();
    assert_eq!(before.len(), 3);
    let done = prune(&["--keep-last", "1"]).ok();
    assert!(done.contains("removed 2 backups and") && done.contains("kept 1 backup"), "{done}");
    assert_eq!(listed(), before[..1].to_vec(), "the newest");
    let checked = sandbox.ctl(["backup", "verify", "b"].into_iter().chain(secret)).ok();
    assert!(checked.starts_with("every byte of 1 backup is as it was written"), "{checked}");
    assert!(!checked.contains("no backup needs"), "{checked}");
    sandbox.ctl(["backup", "create", "b.tar"]).ok();
    let refused = sandbox.ctl(["backup", "prune", "b.tar", "--keep-last", "1"]).fails(2);
    assert!(refused.contains("has one backup; to remove it, remove the file"), "{refused}");
    let refused = wire.call("backup.prune", json!({ "path": place(&sandbox, "b") }));
    assert!(refused.unwrap_err().to_string().contains("keepLast"));
}

#[test]
fn restored_configuration_is_in_force_at_once() {
    let sandbox = Sandbox::new();
    sandbox.write_config("models: { default: 'tiny:1b' }\n");
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    let path = place(&sandbox, "b");
    wire.ok("backup.create", json!({ "path": path }));
    let other = Sandbox::new();
    let (other_daemon, mut restored) = other.daemon_and_wire();
    let mut events = other_daemon.wire();
    events.subscribe(json!({ "kinds": ["config-reloaded"] }));
    let result = restored.ok("backup.restore", json!({ "path": path }));
    assert_eq!(result["configRestored"], true, "{result}");
    let event = events.events_until("config-reloaded").pop().unwrap();
    assert!(array(&event["data"]["applied"]).contains(&json!("models.default")), "{event}");
    let again = restored.ok("daemon.reload", json!({}));
    assert_eq!(again["applied"], json!([]), "the reply came after it");
}
