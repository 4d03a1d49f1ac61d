//! Full disks and damaged files: an error with a kind, a daemon that still serves, and no loss beyond the damage.

use serde_json::{Value, json};

use crate::harness::{
    Wire, array, assert_fields, error_kind, files_under, start, text_message, until,
};

/// Returns the texts of the messages among some records.
fn texts(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|record| record["message"]["parts"][0]["text"].as_str()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_storage_error_until_there_is_space() {
    use rustix::process::{Resource, Rlimit, prlimit};

    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let kept: Vec<String> = (0..5).map(|n| format!("kept {n}")).collect();
    for text in &kept {
        wire.record(&session, "user", text);
    }
    let size = std::fs::metadata(sandbox.log_path(&session)).unwrap().len();
    assert_eq!(wire.status()["store"].get("lastFailedWrite"), None);
    // A limit just above the size of the log cuts a write in its middle, as a full disk does.
    let full = Rlimit { current: Some(size + 40), maximum: None };
    let old = prlimit(Some(daemon.process()), Resource::Fsize, full).unwrap();
    for n in 0..10 {
        let error = wire
            .call("session.record", text_message(&session, "user", &format!("refused {n}")))
            .unwrap_err();
        assert_eq!(error_kind(&error), "storage", "{error}");
        assert!(error["data"]["path"].as_str().unwrap().contains(&session), "{error}");
        assert_eq!(texts(&wire.records(&session)), kept, "earlier records are readable");
    }
    let other = wire.create(json!({}));
    wire.refused("session.record", text_message(&other, "user", &"y".repeat(8192)), "storage");
    daemon.assert_serves();
    let failure = wire.status()["store"]["lastFailedWrite"].clone();
    assert!(failure["path"].as_str().unwrap().contains(&other), "{failure}");
    assert!(failure["error"].as_str().unwrap().contains("cannot"), "{failure}");
    let _limited = prlimit(Some(daemon.process()), Resource::Fsize, old).unwrap();
    wire.record(&session, "user", "after");
    wire.record(&other, "user", "works again");
    let mut expected = kept;
    expected.push("after".to_owned());
    assert_eq!(texts(&wire.records(&session)), expected, "refused writes leave nothing");
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(texts(&wire.records(&session)), expected);
    assert_eq!(texts(&wire.records(&other)), ["works again"]);
}

#[test]
fn read_only_directory_is_storage_error() {
    use std::os::unix::fs::PermissionsExt as _;

    if rustix::process::geteuid().is_root() {
        // No directory is read-only for the superuser; the full disk above covers the same code.
        return;
    }
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let sessions = sandbox.home().join("sessions");
    std::fs::create_dir_all(&sessions).unwrap();
    std::fs::set_permissions(&sessions, std::fs::Permissions::from_mode(0o500)).unwrap();
    wire.refused("session.record", text_message(&session, "user", "refused"), "storage");
    std::fs::set_permissions(&sessions, std::fs::Permissions::from_mode(0o700)).unwrap();
    wire.record(&session, "user", "accepted");
}

#[test]
fn damaged_record_is_the_only_loss() {
    let (sandbox, daemon, mut wire) = start();
    let damaged = wire.create(json!({}));
    let healthy = wire.create(json!({}));
    for n in 0..6 {
        wire.record(&damaged, "user", &format!("message {n}"));
        wire.record(&healthy, "user", &format!("message {n}"));
    }
    assert!(daemon.terminate().success());
    let path = sandbox.log_path(&damaged);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|window| window == b"message 2").unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(&path, &bytes).unwrap();
    // First with a catalog that knows the log as verified, then without one.
    for catalog in ["known", "missing"] {
        if catalog == "missing" {
            sandbox.remove_catalog();
        }
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        let records = wire.records(&damaged);
        assert_eq!(
            texts(&records),
            ["message 0", "message 1", "message 3", "message 4", "message 5"],
            "{catalog}"
        );
        let found = wire.session(&damaged);
        assert_fields(&found, json!({ "status": "corrupted", "damagedRecords": 1 }));
        until("the damaged session is listed as corrupted", || {
            let list = wire.ok("session.list", json!({ "status": "corrupted" }));
            list["data"][0]["sessionId"] == damaged.as_str()
        });
        assert_eq!(
            texts(&wire.records(&healthy)).len(),
            6,
            "{catalog}: the other session is not affected"
        );
        let context =
            wire.ok("context.build", json!({ "sessionId": damaged, "contextSize": 8192 }));
        assert!(context["messages"].to_string().contains("message 5"), "{catalog}");
        assert!(daemon.terminate().success());
    }
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.record(&damaged, "user", "later");
    assert_eq!(texts(&wire.records(&damaged)).last(), Some(&"later"));
}

#[test]
fn torn_tail_is_cut_and_recording_continues() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for n in 0..4 {
        wire.record(&session, "user", &format!("message {n}"));
    }
    daemon.kill();
    let path = sandbox.log_path(&session);
    let whole = std::fs::read(&path).unwrap();
    // A power cut may cut the last record anywhere or leave garbage behind it.
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let cuts: [Vec<u8>; 5] = [
        whole[..whole.len() - 1].to_vec(),
        whole[..last + 20].to_vec(),
        whole[..last].to_vec(),
        [&whole[..last], &[0; 300][..]].concat(),
        [&whole[..last], b"{\"v\":1,\"seq\":4,\"ju\xff\n"].concat(),
    ];
    for (case, cut) in cuts.iter().enumerate() {
        std::fs::write(&path, cut).unwrap();
        // A catalog that knows the record would report its loss as damage.
        sandbox.remove_catalog();
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        let records = wire.records(&session);
        let expected: &[&str] = &["message 0", "message 1", "message 2"];
        let found = texts(&records);
        assert!(found.starts_with(expected) && found.len() <= 4, "case {case}: {found:?}");
        let seq = wire.record(&session, "user", "later");
        assert_eq!(wire.records(&session).last().unwrap()["seq"], seq, "case {case}");
        let found = wire.session(&session);
        assert_eq!(found["status"], "active", "case {case}: a torn tail is no damage: {found}");
        daemon.kill();
    }
}

#[test]
fn lost_record_that_the_catalog_knows_is_reported_as_damage() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for n in 0..4 {
        wire.record(&session, "user", &format!("message {n}"));
    }
    wire.wait_for_catalog();
    // A daemon that stops would write a mark after the record.
    daemon.kill();
    let path = sandbox.log_path(&session);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(texts(&wire.records(&session)), ["message 0", "message 1", "message 2"]);
    let found = wire.session(&session);
    assert_fields(&found, json!({ "status": "corrupted", "damagedRecords": 1 }));
    wire.record(&session, "user", "later");
    assert_eq!(texts(&wire.records(&session)).last(), Some(&"later"));
}

#[test]
fn empty_or_foreign_log_does_not_affect_other_sessions() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    assert!(daemon.terminate().success());
    let invalid = ["01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"];
    std::fs::write(sandbox.log_path(invalid[0]), b"").unwrap();
    std::fs::write(sandbox.log_path(invalid[1]), b"not a log at all\n").unwrap();
    std::fs::write(sandbox.log_path("notes"), b"a foreign file\n").unwrap();
    std::fs::write(sandbox.home().join("sessions/old-chat.json"), b"{\"foreign\":true}").unwrap();
    std::fs::create_dir(sandbox.log_path("01890000-0000-7000-8000-000000000003")).unwrap();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(texts(&wire.records(&session)), ["hello"]);
    for id in invalid {
        // Either an empty session or an error with a kind.
        if let Err(error) = wire.call("session.get", json!({ "sessionId": id })) {
            assert_ne!(error_kind(&error), "internal", "{error}");
        }
    }
    until("the valid session is listed", || {
        let list = wire.ok("session.list", json!({}))["data"].clone();
        array(&list).iter().any(|s| s["sessionId"] == session.as_str())
    });
    assert!(daemon.terminate().success());
    assert_eq!(std::fs::read(sandbox.log_path("notes")).unwrap(), b"a foreign file\n");
    assert_eq!(
        std::fs::read(sandbox.home().join("sessions/old-chat.json")).unwrap(),
        b"{\"foreign\":true}"
    );
}

/// Returns the checksum of a line, computed without the code under test.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let fold = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, fold)
}

#[test]
fn log_of_newer_version_is_refused_and_not_changed() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    assert!(daemon.terminate().success());
    let path = sandbox.log_path(&session);
    let mut bytes = std::fs::read(&path).unwrap();
    let line = br#"{"v":99,"seq":2,"durable":1,"sparkles":true"#;
    bytes.extend_from_slice(line);
    // Every version has the checksum, or a flipped bit in the version would make the whole session unreadable.
    bytes.extend_from_slice(format!(",\"crc\":\"{:08x}\"}}\n", crc32c(line)).as_bytes());
    std::fs::write(&path, &bytes).unwrap();
    for catalog in ["known", "missing"] {
        if catalog == "missing" {
            sandbox.remove_catalog();
        }
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        let calls = [
            ("session.get", json!({ "sessionId": session })),
            ("session.record", text_message(&session, "user", "no")),
            ("context.build", json!({ "sessionId": session })),
        ];
        for (method, params) in calls {
            let error = wire.refused(method, params, "unsupportedVersion");
            assert_fields(&error["data"], json!({ "found": 99, "supported": 1 }));
        }
        let other = wire.create(json!({}));
        wire.record(&other, "user", "works");
        wire.ok("session.delete", json!({ "sessionId": other }));
        assert!(daemon.terminate().success());
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{catalog}: the log is unchanged");
    }
}

#[test]
fn missing_blob_damages_one_record() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "small");
    let large = wire.record(&session, "user", &"large ".repeat(40_000));
    wire.record(&session, "user", "after");
    assert!(daemon.terminate().success());
    let blobs = sandbox.home().join(format!("sessions/{session}.blobs"));
    for blob in files_under(&blobs) {
        std::fs::remove_file(blob).unwrap();
    }
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let page = wire.call("session.get", json!({ "sessionId": session, "from": large + 1 }));
    assert_eq!(texts(page.unwrap()["records"].as_array().unwrap()), ["after"]);
    match wire.call("session.get", json!({ "sessionId": session })) {
        Ok(page) => {
            assert!(texts(array(&page["records"])).contains(&"small"), "{page}")
        }
        Err(error) => assert_eq!(error_kind(&error), "corrupted", "{error}"),
    }
    daemon.assert_serves();
    wire.record(&session, "user", "later");
}

/// A session with a record whose text is in a blob, between two small ones.
fn record_with_blob(wire: &mut Wire) -> String {
    let session = wire.create(json!({}));
    wire.record(&session, "user", "small");
    wire.record(&session, "user", &format!("wombat {}", "large ".repeat(40_000)));
    wire.record(&session, "user", "after");
    session
}

/// Checks that every record is served and found, and that nothing of an earlier failure is left.
fn assert_whole(wire: &mut Wire, session: &str, records: usize) {
    assert_eq!(texts(&wire.records(session)).len(), records);
    let found = wire.session(session);
    assert_eq!(found["status"], "active", "{found}");
    assert_eq!(found.get("damagedRecords"), None, "{found}");
    let list = wire.ok("session.list", json!({}));
    assert_eq!(list["data"][0]["status"], "active", "{list}");
    until("the text of the blob is found", || {
        let found = wire.ok("session.search", json!({ "query": "wombat" }));
        array(&found["data"]).len() == 1
    });
    let context = wire.ok("context.build", json!({ "sessionId": session, "contextSize": 262144 }));
    assert!(context["messages"].to_string().contains("wombat"), "the record is in the context");
    let document = wire.ok("session.save", json!({ "sessionId": session }));
    let path = document["path"].as_str().unwrap().to_owned();
    assert!(std::fs::read_to_string(path).unwrap().contains("wombat"), "it is in the document");
}

#[test]
fn record_whose_blob_returns_is_served_again() {
    for catalog in ["kept", "rebuilt"] {
        let (sandbox, daemon, mut wire) = start();
        let session = record_with_blob(&mut wire);
        let blobs = sandbox.home().join(format!("sessions/{session}.blobs"));
        let aside = sandbox.path("blobs");
        std::fs::rename(&blobs, &aside).unwrap();
        let (daemon, mut wire) = if catalog == "rebuilt" {
            assert!(daemon.terminate().success());
            sandbox.remove_catalog();
            sandbox.daemon_and_wire()
        } else {
            (daemon, wire)
        };
        assert_eq!(texts(&wire.records(&session)), ["small", "after"], "{catalog}");
        wire.record(&session, "user", "later");
        wire.wait_for_catalog();
        assert_eq!(texts(&wire.records(&session)), ["small", "after", "later"], "{catalog}");
        std::fs::rename(&aside, &blobs).unwrap();
        assert_whole(&mut wire, &session, 4);
        assert!(daemon.terminate().success());
        let (_daemon, mut wire) = sandbox.daemon_and_wire();
        assert_whole(&mut wire, &session, 4);
    }
}

#[test]
fn blob_that_is_restored_while_stopped_is_indexed() {
    let (sandbox, daemon, mut wire) = start();
    // The title of a session comes from its first message, so the fold needs the blob too.
    let session = wire.create(json!({}));
    wire.record(&session, "user", &format!("wombat {}", "large ".repeat(40_000)));
    wire.record(&session, "user", "second");
    assert!(daemon.terminate().success());
    let blobs = sandbox.home().join(format!("sessions/{session}.blobs"));
    let aside = sandbox.path("blobs");
    std::fs::rename(&blobs, &aside).unwrap();
    sandbox.remove_catalog();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    assert_eq!(texts(&wire.records(&session)), ["second"]);
    assert!(daemon.terminate().success());
    std::fs::rename(&aside, &blobs).unwrap();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    until("the title is known", || {
        let list = wire.ok("session.list", json!({}));
        list["data"][0]["title"].as_str().unwrap_or_default().starts_with("wombat")
    });
    assert_whole(&mut wire, &session, 2);
}

#[cfg(target_os = "linux")]
#[test]
fn read_without_free_descriptors_is_storage_error_and_leaves_no_trace() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

    let (sandbox, daemon, mut wire) = start();
    let session = record_with_blob(&mut wire);
    wire.wait_for_catalog();
    let none = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let old = prlimit(Some(daemon.process()), Resource::Nofile, none).unwrap();
    let all = json!({ "sessionId": session });
    wire.refused(
        "session.export",
        json!({ "sessionId": session, "format": "markdown" }),
        "storage",
    );
    for method in ["session.get", "session.resume", "context.build"] {
        wire.refused(method, all.clone(), "storage");
    }
    wire.record(&session, "user", "later");
    let _limited = prlimit(Some(daemon.process()), Resource::Nofile, old).unwrap();
    assert_whole(&mut wire, &session, 4);
    assert!(daemon.terminate().success());
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_whole(&mut wire, &session, 4);
}

#[test]
fn log_restored_from_a_backup_wins_over_a_newer_catalog() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let log = sandbox.log_path(&session);
    for text in ["first aardvark", "second badger"] {
        wire.record(&session, "user", text);
    }
    let backup = std::fs::read(&log).unwrap();
    for text in ["third capybara", "fourth dingo"] {
        wire.record(&session, "user", text);
    }
    wire.wait_for_catalog();
    assert!(daemon.terminate().success());
    let catalog = sandbox.home().join("catalog.sqlite3");
    let newer = std::fs::read(&catalog).unwrap();
    // First shorter than the catalog says, then with other records at the same numbers.
    for (words, lost) in
        [(&["aardvark", "badger"][..], "capybara"), (&["badger", "echidna"], "dingo")]
    {
        if lost == "capybara" {
            std::fs::write(&log, &backup).unwrap();
        } else {
            sandbox.remove_catalog();
            let (daemon, mut wire) = sandbox.daemon_and_wire();
            wire.record(&session, "user", "another echidna");
            wire.record(&session, "user", "another fox");
            assert!(daemon.terminate().success());
            std::fs::write(&catalog, &newer).unwrap();
        }
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        wire.wait_for_catalog();
        let found = wire.session(&session);
        assert_eq!((&found["status"], found.get("damagedRecords")), (&json!("active"), None));
        let mut count = |query: &str| {
            array(&wire.ok("session.search", json!({ "query": query }))["data"]).len()
        };
        assert!(words.iter().all(|word| count(word) == 1), "{words:?}");
        assert_eq!(count(lost), 0, "{lost}");
        assert!(texts(&wire.records(&session)).len() >= 2);
        assert!(daemon.terminate().success());
    }
}
