//! Paths of manifests, and the bytes of their files.

use std::path::Path;

use ollm_protocol::SessionId;

use super::{Format, HomeFile, RestoreStage};

#[test]
fn only_paths_of_a_home_are_restored() {
    let id = "0199c2e4-7d6a-7c11-9b1e-3f2f6f0a5c01";
    let hash = "ab".repeat(32);
    for path in [
        "config.yaml",
        "global.json",
        "projects/0123456789abcdef.json",
        &format!("sessions/{id}.jsonl"),
        &format!("sessions/{id}.blobs/{hash}"),
        &format!("context-snapshots/{id}/snapshots/snapshot-{id}.json"),
    ] {
        assert_eq!(HomeFile::parse(path).map(|file| file.path()).as_deref(), Some(path));
    }
    for path in [
        "",
        "/config.yaml",
        "../config.yaml",
        "sessions/../config.yaml",
        "catalog.sqlite3",
        "projects/..json",
        "projects/a/b.json",
        "sessions/x.jsonl",
        &format!("sessions/{}.jsonl", id.to_uppercase()),
        &format!("sessions/{id}.blobs/../x"),
        &format!("sessions/{id}.blobs/{}", &hash[1..]),
        &format!("context-snapshots/{id}/snapshots/snapshots-index.json"),
        &format!("context-snapshots/{id}/snapshots/../snapshot-x.json"),
        "context-snapshots/0199c2e4-7d6a-7c11-9b1e-3f2f6f0a5c01/snapshots/snapshot-\0.json",
        &format!("context-snapshots/{id}/snapshots/snapshot-{}.json", "x".repeat(242)),
        &format!("projects/{}.json", "a".repeat(251)),
    ] {
        assert_eq!(HomeFile::parse(path), None, "{path}");
    }
}

#[test]
fn format_of_a_newer_version_is_told_from_damage() {
    let path = Path::new("/b");
    let bytes = Format::new(Some(b"key")).to_bytes();
    assert!(Format::parse(&bytes, path).is_ok());
    let newer =
        String::from_utf8(bytes).expect("is text").replace("\"version\":1", "\"version\":2");
    let error = Format::parse(newer.as_bytes(), path).err().expect("is refused").to_string();
    assert_eq!(error, "/b has version 2, and this daemon reads up to 1");
    let spaced = newer.replace("\"version\":2", "\"version\": 1");
    let error = Format::parse(spaced.as_bytes(), path).err().expect("is refused").to_string();
    assert_eq!(error, "ollm-backup.json in /b is damaged: it cannot be read");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the files are those of somebody else")]
fn names_that_were_taken_meanwhile_stay_as_they_are() {
    let home = tempfile::tempdir().expect("a scratch directory");
    let [taken, free, empty] = [1, 2, 3].map(|n| SessionId::from_uuid(uuid::Uuid::from_u128(n)));
    let path = |file: &HomeFile| match file {
        HomeFile::Log(id) => home.path().join(format!("{id}.jsonl")),
        file => home.path().join(file.path()),
    };
    let logs = [taken, free, empty].map(HomeFile::Log);
    let snapshots = [taken, free].map(|id| HomeFile::Snapshot(id, "snapshot-x.json".to_owned()));
    let files = [&logs[..], &[HomeFile::Global, HomeFile::Config], &snapshots].concat();
    let mut stage = RestoreStage::begin(home.path(), home.path(), files.len()).expect("begins");
    for file in &files {
        let mut out = stage.create(file).expect("creates");
        out.append(b"backup").expect("writes");
        stage.add(&out).expect("adds");
    }
    for (file, content) in [(&logs[0], "mine"), (&logs[2], ""), (&HomeFile::Global, "mine")] {
        std::fs::write(path(file), content).expect("writes");
    }
    let kept = stage.commit().expect("is durable").expect("is complete");
    assert_eq!(kept, std::collections::BTreeSet::from([taken]));
    let read = |file: &HomeFile| std::fs::read_to_string(path(file)).expect("reads");
    let found: Vec<String> = files[..5].iter().map(read).collect();
    assert_eq!(found, ["mine", "backup", "backup", "mine", "backup"]);
    let are_there = snapshots.map(|file| path(&file).exists());
    assert_eq!(are_there, [false, true], "a snapshot comes only with its session");
}
