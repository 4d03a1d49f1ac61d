//! Full disks and damaged files: a typed error, a living daemon, and nothing lost but what is damaged.

use serde_json::{Value, json};

use crate::harness::{Sandbox, kind_of, text_message, until};

fn texts(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|record| record["message"]["parts"][0]["text"].as_str()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_typed_error_and_passes() {
    use rustix::process::{Resource, Rlimit, prlimit};

    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let kept: Vec<String> = (0..5).map(|n| format!("kept {n}")).collect();
    for text in &kept {
        let _seq = wire.record(&session, "user", text);
    }
    let size = std::fs::metadata(sandbox.log_of(&session)).unwrap().len();
    assert_eq!(wire.ok("daemon.status", json!({}))["store"].get("lastFailedWrite"), None);
    // No file may grow past the log's size and a little: a write is cut in its middle, as on a full disk.
    let full = Rlimit { current: Some(size + 40), maximum: None };
    let old = prlimit(Some(daemon.process()), Resource::Fsize, full).unwrap();
    let mut failed = 0;
    for n in 0..10 {
        let error = wire
            .call("session.record", text_message(&session, "user", &format!("refused {n}")))
            .unwrap_err();
        assert_eq!(kind_of(&error), "storage", "{error}");
        assert!(error["data"]["path"].as_str().unwrap().contains(&session), "{error}");
        failed += 1;
        assert_eq!(texts(&wire.records(&session)), kept, "what is there can be read");
    }
    let other = wire.create(json!({}));
    match wire.call("session.record", text_message(&other, "user", &"y".repeat(8192))) {
        Ok(_) => panic!("more than the limit was written"),
        Err(error) => assert_eq!(kind_of(&error), "storage", "{error}"),
    }
    daemon.assert_serves();
    let told = wire.ok("daemon.status", json!({}))["store"]["lastFailedWrite"].clone();
    assert!(told["path"].as_str().unwrap().contains(&other), "the newest one: {told}");
    assert!(told["error"].as_str().unwrap().contains("cannot"), "{told}");
    let _limited = prlimit(Some(daemon.process()), Resource::Fsize, old).unwrap();
    let _seq = wire.record(&session, "user", "after");
    let _seq = wire.record(&other, "user", "works again");
    let mut expected = kept;
    expected.push("after".to_owned());
    assert_eq!(texts(&wire.records(&session)), expected, "{failed} refusals left nothing");
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    assert_eq!(texts(&wire.records(&session)), expected);
    assert_eq!(texts(&wire.records(&other)), ["works again"]);
}

#[test]
fn a_read_only_home_is_a_typed_error() {
    use std::os::unix::fs::PermissionsExt as _;

    if rustix::process::geteuid().is_root() {
        // To the superuser no directory is read-only; the full disk above covers the same paths.
        return;
    }
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let sessions = sandbox.home().join("sessions");
    std::fs::create_dir_all(&sessions).unwrap();
    std::fs::set_permissions(&sessions, std::fs::Permissions::from_mode(0o500)).unwrap();
    wire.refused("session.record", text_message(&session, "user", "nowhere to go"), "storage");
    std::fs::set_permissions(&sessions, std::fs::Permissions::from_mode(0o700)).unwrap();
    let _seq = wire.record(&session, "user", "here");
}

#[test]
fn a_damaged_record_costs_itself_alone() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let damaged = wire.create(json!({}));
    let healthy = wire.create(json!({}));
    for n in 0..6 {
        let _seq = wire.record(&damaged, "user", &format!("message {n}"));
        let _seq = wire.record(&healthy, "user", &format!("message {n}"));
    }
    assert!(daemon.terminate().success());
    let path = sandbox.log_of(&damaged);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|window| window == b"message 2").unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(&path, &bytes).unwrap();
    // Once with the catalog that knows the log as verified, once with none.
    for catalog in ["known", "gone"] {
        if catalog == "gone" {
            std::fs::remove_file(sandbox.home().join("catalog.sqlite3")).unwrap();
        }
        let (daemon, mut wire) = sandbox.served();
        let records = wire.records(&damaged);
        assert_eq!(
            texts(&records),
            ["message 0", "message 1", "message 3", "message 4", "message 5"],
            "{catalog}"
        );
        let about = wire.ok("session.get", json!({ "sessionId": damaged }))["session"].clone();
        assert_eq!(
            (&about["status"], &about["damagedRecords"]),
            (&json!("corrupted"), &json!(1)),
            "{catalog}"
        );
        until("the list says so too", || {
            let list = wire.ok("session.list", json!({ "status": "corrupted" }));
            (list["data"][0]["sessionId"] == damaged.as_str()).then_some(())
        });
        assert_eq!(
            texts(&wire.records(&healthy)).len(),
            6,
            "{catalog}: one bad session blocks no other"
        );
        let context =
            wire.ok("context.build", json!({ "sessionId": damaged, "contextSize": 8192 }));
        assert!(context["messages"].to_string().contains("message 5"), "{catalog}");
        assert!(daemon.terminate().success());
    }
    let (_daemon, mut wire) = sandbox.served();
    let _seq = wire.record(&damaged, "user", "goes on");
    assert_eq!(texts(&wire.records(&damaged)).last(), Some(&"goes on"));
}

#[test]
fn a_truncated_log_loses_its_torn_tail_and_keeps_a_copy() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    for n in 0..4 {
        let _seq = wire.record(&session, "user", &format!("message {n}"));
    }
    daemon.kill9();
    let path = sandbox.log_of(&session);
    let whole = std::fs::read(&path).unwrap();
    // What a power cut may leave: the last record cut anywhere, or followed by rubbish.
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
        // A catalog that has seen the record would tell that it was lost.
        for name in ["catalog.sqlite3", "catalog.sqlite3-wal", "catalog.sqlite3-shm"] {
            let _absent = std::fs::remove_file(sandbox.home().join(name));
        }
        let (daemon, mut wire) = sandbox.served();
        let records = wire.records(&session);
        let expected: &[&str] = &["message 0", "message 1", "message 2"];
        let found = texts(&records);
        assert!(found.starts_with(expected) && found.len() <= 4, "case {case}: {found:?}");
        let seq = wire.record(&session, "user", "goes on");
        assert_eq!(wire.records(&session).last().unwrap()["seq"], seq, "case {case}");
        let about = wire.ok("session.get", json!({ "sessionId": session }))["session"].clone();
        assert_eq!(about["status"], "active", "case {case}: a torn tail is no damage: {about}");
        daemon.kill9();
    }
}

#[test]
fn an_end_that_is_lost_after_the_catalog_saw_it_is_reported() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    for n in 0..4 {
        let _seq = wire.record(&session, "user", &format!("message {n}"));
    }
    until("the catalog has caught up", || {
        let catalog = wire.ok("daemon.status", json!({}))["catalog"].clone();
        (catalog["state"] == "ready" && catalog["behind"] == 0).then_some(())
    });
    assert!(daemon.terminate().success());
    let path = sandbox.log_of(&session);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let (_daemon, mut wire) = sandbox.served();
    assert_eq!(texts(&wire.records(&session)), ["message 0", "message 1", "message 2"]);
    let about = wire.ok("session.get", json!({ "sessionId": session }))["session"].clone();
    assert_eq!((&about["status"], &about["damagedRecords"]), (&json!("corrupted"), &json!(1)));
    let _seq = wire.record(&session, "user", "goes on");
    assert_eq!(texts(&wire.records(&session)).last(), Some(&"goes on"));
}

#[test]
fn an_empty_or_foreign_log_blocks_nobody() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "hello");
    assert!(daemon.terminate().success());
    let odd = ["01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"];
    std::fs::write(sandbox.log_of(odd[0]), b"").unwrap();
    std::fs::write(sandbox.log_of(odd[1]), b"not a log at all\n").unwrap();
    std::fs::write(sandbox.log_of("notes"), b"somebody's notes\n").unwrap();
    std::fs::write(sandbox.home().join("sessions/old-chat.json"), b"{\"foreign\":true}").unwrap();
    std::fs::create_dir(sandbox.log_of("01890000-0000-7000-8000-000000000003")).unwrap();
    let (daemon, mut wire) = sandbox.served();
    assert_eq!(texts(&wire.records(&session)), ["hello"]);
    for id in odd {
        // Either an empty session or an error with a kind; not a dead daemon.
        if let Err(error) = wire.call("session.get", json!({ "sessionId": id })) {
            assert_ne!(kind_of(&error), "internal", "{error}");
        }
    }
    until("the healthy one is listed", || {
        let list = wire.ok("session.list", json!({}))["data"].clone();
        list.as_array().unwrap().iter().any(|s| s["sessionId"] == session.as_str()).then_some(())
    });
    assert!(daemon.terminate().success());
    assert_eq!(std::fs::read(sandbox.log_of("notes")).unwrap(), b"somebody's notes\n");
    assert_eq!(
        std::fs::read(sandbox.home().join("sessions/old-chat.json")).unwrap(),
        b"{\"foreign\":true}"
    );
}

/// The checksum of a record's line, written out once more so that a test does not believe the code it tests.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let fold = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, fold)
}

#[test]
fn a_log_of_a_newer_version_is_refused_and_left_untouched() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "hello");
    assert!(daemon.terminate().success());
    let path = sandbox.log_of(&session);
    let mut bytes = std::fs::read(&path).unwrap();
    let line = br#"{"v":99,"seq":2,"durable":1,"sparkles":true"#;
    bytes.extend_from_slice(line);
    // Every version keeps the checksum, or a flipped bit in the version would cost the whole session.
    bytes.extend_from_slice(format!(",\"crc\":\"{:08x}\"}}\n", crc32c(line)).as_bytes());
    std::fs::write(&path, &bytes).unwrap();
    for catalog in ["known", "gone"] {
        if catalog == "gone" {
            std::fs::remove_file(sandbox.home().join("catalog.sqlite3")).unwrap();
        }
        let (daemon, mut wire) = sandbox.served();
        let calls = [
            ("session.get", json!({ "sessionId": session })),
            ("session.record", text_message(&session, "user", "no")),
            ("context.build", json!({ "sessionId": session })),
        ];
        for (method, params) in calls {
            let error = wire.refused(method, params, "unsupportedVersion");
            assert_eq!(
                (&error["data"]["found"], &error["data"]["supported"]),
                (&json!(99), &json!(1)),
                "{error}"
            );
        }
        let other = wire.create(json!({}));
        let _seq = wire.record(&other, "user", "works");
        let _gone = wire.ok("session.delete", json!({ "sessionId": other }));
        assert!(daemon.terminate().success());
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{catalog}: untouched");
    }
}

#[test]
fn a_lost_blob_is_damage_of_one_record() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "small");
    let large = wire.record(&session, "user", &"large ".repeat(40_000));
    let _seq = wire.record(&session, "user", "after");
    assert!(daemon.terminate().success());
    let blobs = sandbox.home().join(format!("sessions/{session}.blobs"));
    for blob in crate::harness::every_file(&blobs) {
        std::fs::remove_file(blob).unwrap();
    }
    let (daemon, mut wire) = sandbox.served();
    let page = wire.call("session.get", json!({ "sessionId": session, "from": large + 1 }));
    assert_eq!(texts(page.unwrap()["records"].as_array().unwrap()), ["after"]);
    match wire.call("session.get", json!({ "sessionId": session })) {
        Ok(page) => {
            assert!(texts(page["records"].as_array().unwrap()).contains(&"small"), "{page}")
        }
        Err(error) => assert_eq!(kind_of(&error), "corrupted", "{error}"),
    }
    daemon.assert_serves();
    let _seq = wire.record(&session, "user", "goes on");
}
