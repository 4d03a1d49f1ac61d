//! Tests of the shape of a line.

use ollm_protocol::content::{Message, Part};

use super::*;

fn line_of(body: &RecordBody, dir: &Path) -> Vec<u8> {
    let at = Timestamp::from_unix_ms(1_700_000_000_123);
    let key = KeyEntry { key: [1; 16], payload: [2; 8], seq: 3 };
    let fields = LineFields {
        seq: Seq(3),
        parent: Some(Seq(2)),
        durable: Some(Seq(2)),
        at,
        tokens: Some((12, "estimate-v1")),
        key: Some(("k", key)),
        body,
    };
    let mut out = Vec::new();
    let encoded = encode_line(&fields, dir, &mut out).expect("encodes");
    assert_eq!(encoded.len as usize, out.len());
    out
}

fn user(text: &str) -> RecordBody {
    RecordBody::Message(Message::text(Role::User, text, Timestamp::from_unix_ms(1)))
}

#[test]
fn line_reads_back_and_any_flipped_bit_fails_its_checksum() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let body = user("hello \"world\"\n\u{1F980}");
    let line = line_of(&body, dir.path());
    let record = decode_line(&line, dir.path()).expect("reads").expect("is intact");
    assert_eq!(record.key.as_deref(), Some("k"));
    assert_eq!(record.tokens, Some(12));
    assert_eq!(record.into_body(), Some(body));
    for at in 0..line.len() {
        for bit in 0..8 {
            let mut broken = line.clone();
            broken[at] ^= 1 << bit;
            // The case of a hex digit does not change the checksum; no other change may pass.
            let same_value = broken.eq_ignore_ascii_case(&line) && at >= line.len() - 11;
            assert!(checked(&broken).is_none() || same_value, "byte {at} bit {bit}");
        }
    }
}

#[test]
fn common_line_decodes_like_any_line() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let at = "2026-01-27T10:00:00.000Z";
    let call = serde_json::json!({
        "id": "c", "name": "shell", "args": { "n": 1.10, "deep": [null, "\u{e9}"] },
        "result": { "llmContent": "out" }, "timestamp": at,
    });
    let custom = Custom { name: "x".into(), data: call.clone(), context_text: None };
    let call = serde_json::from_value(call).expect("a tool call");
    let mut message = Message::text(Role::Assistant, "a\"b\n", Timestamp::from_unix_ms(1));
    message.parts.push(Part::Thinking { text: "hm".to_owned() });
    let files = serde_json::json!({
        "planId": uuid::Uuid::nil(), "cause": "undo", "root": "/p",
        "files": [{ "path": "a", "before": { "hash": "0f".repeat(32) }, "after": "absent", "back": [1] }],
        "left": [{ "path": "b", "status": "conflict", "reason": "the file was changed" }],
    });
    let files = serde_json::from_value(files).expect("files that were put back");
    let bodies = [
        RecordBody::Message(message),
        RecordBody::ToolCall(call),
        RecordBody::Custom(custom),
        RecordBody::PutBack(files),
    ];
    for body in &bodies {
        let line = line_of(body, dir.path());
        let (json, _) = checked(&line).expect("intact");
        let common: CommonLine = serde_json::from_slice(json).expect("is a common line");
        assert_eq!(common.into_record(), decode_any(json, dir.path()).ok());
    }
}

#[test]
fn large_text_is_stored_in_a_blob_and_read_back() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let blobs_dir = dir.path().join("x.blobs");
    let body = user(&"0123456789".repeat(20_000));
    let line = line_of(&body, &blobs_dir);
    assert!(line.len() < 1000, "the text is in a blob");
    let read = || decode_line(&line, &blobs_dir).expect("reads").and_then(Record::into_body);
    assert_eq!(read(), Some(body));
    std::fs::remove_dir_all(&blobs_dir).expect("removes");
    assert_eq!(read(), None, "a missing blob is damage, not an empty text");
}

#[test]
fn flags_of_data_of_clients_follow_from_the_line() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let check = |name: &str, context_text: Option<&str>, flags: u16| {
        let context_text = context_text.map(str::to_owned);
        let data = serde_json::Value::Null;
        let body = RecordBody::Custom(Custom { name: name.to_owned(), data, context_text });
        let line = line_of(&body, dir.path());
        let (json, _) = checked(&line).expect("intact");
        let envelope: LineEnvelope<'_> = serde_json::from_slice(json).expect("is a line");
        assert_eq!((envelope.flags(), IndexEntry::flags_of(&body)), (flags, flags), "{name}");
    };
    check("editor.selection", None, 0);
    check("editor.selection", Some("text"), IndexEntry::IN_CONTEXT);
    check(Custom::PARTIAL_ANSWER, None, IndexEntry::PARTIAL);
    check(Custom::TOOL_START, None, IndexEntry::STARTS_CALL);
}

#[test]
fn scan_finds_flags_and_keys_with_and_without_the_body() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut message = Message::text(Role::Assistant, "x", Timestamp::from_unix_ms(1));
    message.parts.push(Part::Thinking { text: "hm".to_owned() });
    message.parts.push(Part::ToolCall {
        id: "c".to_owned(),
        name: "t".to_owned(),
        args: serde_json::json!({"type": "message"}),
    });
    let line = line_of(&RecordBody::Message(message), dir.path());
    for wanted in [true, false] {
        let found = scan(&line, (0, 9), dir.path(), &|_, _| wanted).expect("reads");
        let ScannedLine::Record { record: scanned, durable, .. } = found else {
            panic!("a record");
        };
        assert_eq!(durable, Some(2));
        assert_eq!(scanned.key, Some(KeyEntry { key: [1; 16], payload: [2; 8], seq: 3 }));
        assert_eq!(scanned.entry.role(), Some(Role::Assistant));
        assert!(scanned.entry.has(IndexEntry::CALLS_TOOLS | IndexEntry::HAS_THINKING));
        assert_eq!(scanned.body.is_some(), wanted);
    }
}

#[test]
fn line_of_version_0_is_damaged() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let line = String::from_utf8(line_of(&user("x"), dir.path())).expect("is UTF-8");
    let of_version = |version: &str| {
        let content = line.replace("\"v\":1", version);
        let content = content.rsplit_once(",\"crc\"").expect("has a checksum").0;
        format!("{content}{}", trailer(crc32c::crc32c(content.as_bytes())))
    };
    for (version, is_read) in [("\"v\":1", true), ("\"v\":0", false), ("\"v\":-1", false)] {
        let line = of_version(version);
        let found = scan(line.as_bytes(), (0, 9), dir.path(), &|_, _| false);
        assert_eq!(matches!(found, Ok(ScannedLine::Record { .. })), is_read, "{line}");
        assert_eq!(matches!(found, Ok(ScannedLine::Damaged)), !is_read, "{line}");
    }
}

#[test]
fn newer_version_is_not_taken_for_damage() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    for (version, is_newer) in [(2, true), (1, false)] {
        let unchecked = format!("{{\"v\":{version},\"what\":\"ever\"");
        let crc = crc32c::crc32c(unchecked.as_bytes());
        let of_other_form = format!("{unchecked}}}\n");
        let with_checksum = format!("{unchecked},\"crc\":\"{crc:08x}\"}}\n");
        for line in [of_other_form, with_checksum] {
            let found = scan(line.as_bytes(), (0, 9), dir.path(), &|_, _| false).expect("reads");
            assert_eq!(matches!(found, ScannedLine::Newer(2)), is_newer, "{line}");
            assert_eq!(matches!(found, ScannedLine::Damaged), !is_newer, "{line}");
        }
    }
}
