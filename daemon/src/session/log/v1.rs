//! Version 1 of a record's line: its serde shape, its checksum, its conversion.
//!
//! `{"v":1,"seq":3,"parent":2,"durable":2,"at":"...","type":"message","tokens":12,"tokenizer":"...",
//! "message":{...},"crc":"0badcafe"}`: the checksum is the last field and covers every byte before its comma,
//! so a line is verified without being parsed.

use std::borrow::Cow;
use std::path::Path;

use ollm_protocol::content::{Custom, Message, Record, RecordBody, RecordKind, Role, ToolCall};
use ollm_protocol::{Seq, Timestamp};
use serde::de::IgnoredAny;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::super::index::{Entry, KeyEntry};
use super::{Encoded, LogError, Scanned, blobs, flags_of};

/// The newest version that this code reads; the only one that it writes.
pub(crate) const MAX_VERSION: u32 = 1;

/// `,"crc":"01234567"}` and the line break.
const TRAILER_BYTES: usize = 19;
const CRC_FIELD: &[u8] = b",\"crc\":\"";

/// What one line says.
pub(crate) struct LineFields<'a> {
    /// The record's number.
    pub seq: Seq,
    /// The record before it on its path.
    pub parent: Option<Seq>,
    /// The highest number known to be synced when it is written.
    pub durable: Option<Seq>,
    /// When it is recorded.
    pub at: Timestamp,
    /// Tokens that it costs in a context, with the tokenizer that counted.
    pub tokens: Option<(u32, &'a str)>,
    /// The idempotency key and the digest of what it was used for.
    pub key: Option<(&'a str, KeyEntry)>,
    /// What it says.
    pub body: &'a RecordBody,
}

/// Writes the fields up to the body.
struct Line<'a, B> {
    fields: &'a LineFields<'a>,
    blobs: &'a [String],
    body: &'a B,
}

impl<B: Serialize> Serialize for Line<'_, B> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields;
        let mut map = out.serialize_map(None)?;
        map.serialize_entry("v", &MAX_VERSION)?;
        map.serialize_entry("seq", &fields.seq)?;
        map.serialize_entry("parent", &fields.parent)?;
        map.serialize_entry("durable", &fields.durable)?;
        map.serialize_entry("at", &fields.at)?;
        map.serialize_entry("type", &fields.body.kind())?;
        if let Some((tokens, tokenizer)) = fields.tokens {
            map.serialize_entry("tokens", &tokens)?;
            map.serialize_entry("tokenizer", tokenizer)?;
        }
        if let Some((key, entry)) = fields.key {
            map.serialize_entry("key", key)?;
            map.serialize_entry("keyDigest", &hex(&entry))?;
        }
        if !self.blobs.is_empty() {
            map.serialize_entry("blobs", self.blobs)?;
        }
        map.serialize_entry(&fields.body.kind(), self.body)?;
        map.end()
    }
}

/// The digests of a key as 48 hex digits.
fn hex(entry: &KeyEntry) -> String {
    entry.key.iter().chain(&entry.payload).map(|byte| format!("{byte:02x}")).collect()
}

/// The inverse of [`hex`].
fn unhex(text: &str, seq: u64) -> Option<KeyEntry> {
    let byte = |at: usize| u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok();
    let mut entry = KeyEntry { key: [0; 16], payload: [0; 8], seq: u32::try_from(seq).ok()? };
    for (at, slot) in entry.key.iter_mut().chain(&mut entry.payload).enumerate() {
        *slot = byte(at)?;
    }
    Some(entry)
}

/// Appends the line of a record to `out`.
pub(super) fn encode(
    fields: &LineFields<'_>,
    blobs_dir: &Path,
    out: &mut Vec<u8>,
) -> Result<Encoded, LogError> {
    let start = out.len();
    let fail = |source| LogError::Encode { path: blobs_dir.to_owned(), source };
    serde_json::to_writer(&mut *out, &Line { fields, blobs: &[], body: fields.body })
        .map_err(fail)?;
    let mut has_blobs = false;
    if out.len() - start > blobs::THRESHOLD_BYTES {
        let mut value = serde_json::to_value(fields.body).map_err(fail)?;
        let stored = blobs::move_out(&mut value, blobs_dir)?;
        if !stored.is_empty() {
            has_blobs = true;
            out.truncate(start);
            serde_json::to_writer(&mut *out, &Line { fields, blobs: &stored, body: &value })
                .map_err(fail)?;
        }
    }
    out.pop();
    let crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(CRC_FIELD);
    out.extend_from_slice(format!("{crc:08x}\"}}\n").as_bytes());
    // A frame is at most 16 MiB, so a line is far below 4 GiB.
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    Ok(Encoded { len, crc, has_blobs })
}

/// The JSON of a line whose checksum holds, and the checksum.
pub(super) fn checked_with_crc(line: &[u8]) -> Option<(&[u8], u32)> {
    let json = line.strip_suffix(b"\n")?;
    let body_len = line.len().checked_sub(TRAILER_BYTES)?;
    let trailer = &json[body_len..];
    let digits = trailer.strip_prefix(CRC_FIELD)?.strip_suffix(b"\"}")?;
    let stated = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (crc32c::crc32c(&json[..body_len]) == stated).then_some((json, stated))
}

/// The JSON of a line whose checksum holds.
pub(super) fn checked(line: &[u8]) -> Option<&[u8]> {
    checked_with_crc(line).map(|(json, _)| json)
}

/// The version of a whole line of JSON that ends differently from ours, if it is newer.
///
/// A line of ours with a flipped bit still ends like one, so damage is not taken for an upgrade.
pub(super) fn foreign_version(line: &[u8]) -> Option<u32> {
    let json = line.strip_suffix(b"\n")?;
    let ending = json.len().checked_sub(TRAILER_BYTES - 1).map(|at| &json[at..]);
    if ending.is_some_and(|ending| ending.starts_with(CRC_FIELD)) {
        return None;
    }
    let only: VersionOnly = serde_json::from_slice(json).ok()?;
    (only.v > MAX_VERSION).then_some(only.v)
}

/// The envelope of a line, read without its content.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScanLine<'a> {
    v: u32,
    seq: u64,
    parent: Option<u64>,
    durable: Option<u64>,
    at: Timestamp,
    #[serde(rename = "type")]
    kind: RecordKind,
    tokens: Option<u32>,
    #[serde(borrow)]
    key_digest: Option<Cow<'a, str>>,
    blobs: Option<IgnoredAny>,
    #[serde(borrow)]
    message: Option<ScanMessage<'a>>,
    custom: Option<ScanCustom>,
    compaction: Option<ScanCompaction>,
}

#[derive(Deserialize)]
struct ScanMessage<'a> {
    role: Role,
    #[serde(borrow)]
    parts: Vec<ScanPart<'a>>,
}

#[derive(Deserialize)]
struct ScanPart<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScanCustom {
    context_text: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ScanCompaction {
    epoch: Option<IgnoredAny>,
}

/// Only the version, so that a line of a newer one is told apart from damage.
#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

/// What a line turned out to be.
#[expect(clippy::large_enum_variant, reason = "nearly all are records, and none is kept")]
pub(super) enum ScannedLine {
    /// A record, with the highest number that it calls durable.
    Record(Scanned, Option<u64>),
    /// A record of a version that is not known.
    Newer(u32),
    /// Not a record.
    Damaged,
}

/// Reads the envelope of a checked line; `wants` decides whether the body is read as well.
pub(super) fn scan(
    json: &[u8],
    (offset, len): (u64, u32),
    blobs_dir: &Path,
    wants: &dyn Fn(RecordKind, Option<Role>) -> bool,
) -> ScannedLine {
    let line: ScanLine<'_> = match serde_json::from_slice(json) {
        Ok(line) => line,
        Err(_) => match serde_json::from_slice::<VersionOnly>(json) {
            Ok(only) if only.v > MAX_VERSION => return ScannedLine::Newer(only.v),
            _ => return ScannedLine::Damaged,
        },
    };
    if line.v > MAX_VERSION {
        return ScannedLine::Newer(line.v);
    }
    let role = line.message.as_ref().map(|message| message.role);
    let body = if wants(line.kind, role) {
        match decode(json, blobs_dir).and_then(Record::into_body) {
            Some(body) => Some(body),
            None => return ScannedLine::Damaged,
        }
    } else {
        None
    };
    let mut flags = body.as_ref().map_or_else(|| scan_flags(&line), flags_of);
    if line.blobs.is_some() {
        flags |= Entry::HAS_BLOBS;
    }
    let entry = Entry::new(
        (offset, len),
        line.parent.map(Seq),
        line.kind,
        role,
        line.tokens.unwrap_or_default(),
        flags,
    );
    let key = line.key_digest.as_deref().and_then(|digest| unhex(digest, line.seq));
    ScannedLine::Record(Scanned { seq: Seq(line.seq), at: line.at, entry, key, body }, line.durable)
}

/// The flags of [`flags_of`], from the envelope alone.
fn scan_flags(line: &ScanLine<'_>) -> u16 {
    let mut flags = 0;
    if let Some(message) = &line.message {
        for part in &message.parts {
            match part.kind.as_ref() {
                "toolCall" if message.role == Role::Assistant => flags |= Entry::CALLS_TOOLS,
                "thinking" => flags |= Entry::HAS_THINKING,
                _ => {}
            }
        }
    }
    if line.custom.as_ref().is_some_and(|custom| custom.context_text.is_some()) {
        flags |= Entry::IN_CONTEXT;
    }
    let compaction_opens = line.compaction.as_ref().is_some_and(|body| body.epoch.is_some());
    if compaction_opens || line.kind == RecordKind::Epoch {
        flags |= Entry::OPENS_EPOCH;
    }
    flags
}

/// The fields of a line that a wire record does not have.
#[derive(Deserialize)]
struct Extras {
    #[serde(default)]
    blobs: Vec<String>,
}

/// A line of the kinds that logs mostly consist of, with nothing out of line: read straight into its types, in a
/// third of the time that the way over a map of values takes. What does not fit is read that way.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlainLine {
    #[serde(rename = "v")]
    _version: IgnoredAny,
    seq: Seq,
    parent: Option<Seq>,
    #[serde(rename = "durable")]
    _durable: IgnoredAny,
    at: Timestamp,
    #[serde(rename = "type")]
    kind: RecordKind,
    tokens: Option<u32>,
    #[serde(default, rename = "tokenizer")]
    _tokenizer: IgnoredAny,
    key: Option<String>,
    #[serde(default, rename = "keyDigest")]
    _key_digest: IgnoredAny,
    message: Option<Message>,
    tool_call: Option<ToolCall>,
    custom: Option<Custom>,
    #[serde(rename = "crc")]
    _crc: IgnoredAny,
}

impl PlainLine {
    fn into_record(self) -> Option<Record> {
        let body = match (self.kind, self.message, self.tool_call, self.custom) {
            (RecordKind::Message, Some(message), None, None) => RecordBody::Message(message),
            (RecordKind::ToolCall, None, Some(call), None) => RecordBody::ToolCall(call),
            (RecordKind::Custom, None, None, Some(custom)) => RecordBody::Custom(custom),
            _ => return None,
        };
        let record = Record::new(self.seq, self.parent, self.at, body);
        Some(Record { key: self.key, tokens: self.tokens, ..record })
    }
}

/// The fields of a line that only the log knows; a wire record refuses them.
const LOG_ONLY: [&str; 6] = ["v", "durable", "tokenizer", "keyDigest", "blobs", "crc"];

/// Reads a checked line whole; `None` when its JSON is not a record or a blob is missing.
pub(super) fn decode(json: &[u8], blobs_dir: &Path) -> Option<Record> {
    if let Ok(line) = serde_json::from_slice::<PlainLine>(json)
        && let Some(record) = line.into_record()
    {
        return Some(record);
    }
    decode_any(json, blobs_dir)
}

fn decode_any(json: &[u8], blobs_dir: &Path) -> Option<Record> {
    let mut value: serde_json::Map<String, Value> = serde_json::from_slice(json).ok()?;
    if value.contains_key("blobs") {
        let extras: Extras = serde_json::from_slice(json).ok()?;
        let kind = value.get("type")?.as_str()?.to_owned();
        blobs::move_in(value.get_mut(&kind)?, &extras.blobs, blobs_dir)?;
    }
    for name in LOG_ONLY {
        value.remove(name);
    }
    serde_json::from_value(Value::Object(value)).ok()
}

#[cfg(test)]
mod tests {
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
        let encoded = encode(&fields, dir, &mut out).expect("encodes");
        assert_eq!(encoded.len as usize, out.len());
        out
    }

    fn user(text: &str) -> RecordBody {
        RecordBody::Message(Message::text(Role::User, text, Timestamp::from_unix_ms(1)))
    }

    #[test]
    fn a_line_reads_back_and_every_flipped_bit_is_found() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let body = user("hello \"world\"\n\u{1F980}");
        let line = line_of(&body, dir.path());
        let record = decode(checked(&line).expect("whole"), dir.path()).expect("reads");
        assert_eq!(record.key.as_deref(), Some("k"));
        assert_eq!(record.tokens, Some(12));
        assert_eq!(record.into_body(), Some(body));
        for at in 0..line.len() {
            for bit in 0..8 {
                let mut broken = line.clone();
                broken[at] ^= 1 << bit;
                // Hex digits read alike in both cases; nothing else may pass.
                let same_value = broken.eq_ignore_ascii_case(&line) && at >= line.len() - 11;
                assert!(checked(&broken).is_none() || same_value, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn both_ways_to_read_a_line_agree() {
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
        let bodies =
            [RecordBody::Message(message), RecordBody::ToolCall(call), RecordBody::Custom(custom)];
        for body in &bodies {
            let line = line_of(body, dir.path());
            let json = checked(&line).expect("whole");
            let plain: PlainLine = serde_json::from_slice(json).expect("is read the short way");
            assert_eq!(plain.into_record(), decode_any(json, dir.path()));
        }
    }

    #[test]
    fn a_large_text_lies_in_a_blob_and_comes_back() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let blobs_dir = dir.path().join("x.blobs");
        let body = user(&"0123456789".repeat(20_000));
        let line = line_of(&body, &blobs_dir);
        assert!(line.len() < 1000, "the text is out of line");
        let read =
            || decode(checked(&line).expect("whole"), &blobs_dir).and_then(Record::into_body);
        assert_eq!(read(), Some(body));
        std::fs::remove_dir_all(&blobs_dir).expect("removes");
        assert_eq!(read(), None, "a missing blob is damage, not an empty text");
    }

    #[test]
    fn a_scan_sees_what_a_walk_must_know() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut message = Message::text(Role::Assistant, "x", Timestamp::from_unix_ms(1));
        message.parts.push(Part::Thinking { text: "hm".to_owned() });
        message.parts.push(Part::ToolCall {
            id: "c".to_owned(),
            name: "t".to_owned(),
            args: serde_json::json!({"type": "message"}),
        });
        let line = line_of(&RecordBody::Message(message), dir.path());
        let json = checked(&line).expect("whole");
        for wanted in [true, false] {
            let found = scan(json, (0, 9), dir.path(), &|_, _| wanted);
            let ScannedLine::Record(scanned, durable) = found else {
                panic!("a record");
            };
            assert_eq!(durable, Some(2));
            assert_eq!(scanned.key, Some(KeyEntry { key: [1; 16], payload: [2; 8], seq: 3 }));
            assert_eq!(scanned.entry.role(), Some(Role::Assistant));
            assert!(scanned.entry.has(Entry::CALLS_TOOLS | Entry::HAS_THINKING));
            assert_eq!(scanned.body.is_some(), wanted);
        }
    }

    #[test]
    fn a_newer_version_is_told_apart_from_damage() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let found = scan(br#"{"v":2,"what":"ever"}"#, (0, 9), dir.path(), &|_, _| false);
        assert!(matches!(found, ScannedLine::Newer(2)));
        let found = scan(br#"{"v":1,"what":"ever"}"#, (0, 9), dir.path(), &|_, _| false);
        assert!(matches!(found, ScannedLine::Damaged));
    }
}
