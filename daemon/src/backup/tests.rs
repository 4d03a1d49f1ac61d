//! Paths of manifests, and the bytes of their files.

use std::path::Path;

use super::{Format, HomeFile};

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
