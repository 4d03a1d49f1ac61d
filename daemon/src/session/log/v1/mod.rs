//! Version 1 of a line: its JSON, its checksum, and the blobs of its large texts.
//!
//! `{"v":1,"seq":3,"parent":2,"durable":2,"at":"...","type":"message","tokens":12,"tokenizer":"...",
//! "message":{...},"crc":"0badcafe"}`: the checksum is the last field and covers every byte before its comma, so a
//! line is verified without being parsed.
//! The large texts of a line are stored elsewhere, see [`super::blobs`].

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use ollm_protocol::content::{
    ContextEntry, Custom, Message, PutBack, Record, RecordBody, RecordKind, Role, ToolCall,
};
use ollm_protocol::{Seq, Timestamp};
use serde::de::IgnoredAny;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::blobs;
use super::reading::DecodeError;
use crate::fsutil::FsError;
use crate::nesting;
use crate::session::error::LogError;
use crate::session::index::{IndexEntry, KeyEntry, ScannedRecord};

/// The newest version that can be read, and the only one that is written.
pub(super) const MAX_VERSION: u32 = 1;

/// The first version; no line was ever written with a lower one.
const MIN_VERSION: u32 = 1;

/// The length of `,"crc":"01234567"}` and the line break.
pub(super) const TRAILER_BYTES: usize = 19;
const CRC_FIELD: &[u8] = b",\"crc\":\"";

/// Maximum number of nested lists and objects of a line that is written. A value may have 96 levels, and the fields
/// around it in a line add less than this; a reply and an event add 4 more, and readers take 127.
const MAX_LINE_LEVELS: usize = 112;

/// The content of a line to be written.
pub(crate) struct LineFields<'a> {
    pub seq: Seq,
    pub parent: Option<Seq>,
    /// The highest number that is known to be synced.
    pub durable: Option<Seq>,
    pub at: Timestamp,
    /// The tokens that the record costs in a context, with the tokenizer that counted them.
    pub tokens: Option<(u32, &'a str)>,
    /// The idempotency key and its digests.
    pub key: Option<(&'a str, KeyEntry)>,
    pub body: &'a RecordBody,
}

/// The properties of a line that was encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedLine {
    /// The length in bytes, including the line break.
    pub len: u32,
    pub crc: u32,
    /// Whether some texts were written to blobs.
    pub has_blobs: bool,
}

/// Appends the line of a record to `out`, with its checksum and its line break. Blobs are synced when this returns.
///
/// **Errors**: `Encode`; `TooDeep`; `File` if a blob cannot be written. With an error, `out` may have an incomplete line.
pub(crate) fn encode_line(
    fields: &LineFields<'_>,
    blobs_dir: &Path,
    out: &mut Vec<u8>,
) -> Result<EncodedLine, LogError> {
    let start = out.len();
    let fail = |source| LogError::Encode { path: blobs_dir.to_owned(), source };
    serde_json::to_writer(&mut *out, &LineJson { fields, blobs: &[], body: fields.body })
        .map_err(fail)?;
    let mut has_blobs = false;
    if out.len() - start > blobs::THRESHOLD_BYTES {
        let mut body = serde_json::to_value(fields.body).map_err(fail)?;
        let stored = blobs::store(&mut body, blobs_dir)?;
        if !stored.is_empty() {
            has_blobs = true;
            out.truncate(start);
            serde_json::to_writer(&mut *out, &LineJson { fields, blobs: &stored, body: &body })
                .map_err(fail)?;
        }
    }
    out.pop();
    let crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(trailer(crc).as_bytes());
    if nesting::is_deeper_than(MAX_LINE_LEVELS, &out[start..]) {
        out.truncate(start);
        return Err(LogError::TooDeep { path: blobs_dir.to_owned() });
    }
    // A frame has at most 16 MiB, so a line is far below 4 GiB.
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    Ok(EncodedLine { len, crc, has_blobs })
}

/// Reads a line, including its line break, as a record with its blobs; returns `None` for a damaged one.
///
/// **Errors**: a blob exists and cannot be read.
pub(crate) fn decode_line(line: &[u8], blobs: &Path) -> Result<Option<Record>, FsError> {
    checked(line).map_or(Ok(None), |(json, _)| decode(json, blobs))
}

/// Returns the checksum of an intact line.
pub(crate) fn line_crc(line: &[u8]) -> Option<u32> {
    checked(line).map(|(_, crc)| crc)
}

/// Returns the tokenizer that counted the record of an intact line.
pub(crate) fn line_tokenizer(line: &[u8]) -> Option<Arc<str>> {
    let (json, _) = checked(line)?;
    serde_json::from_slice::<TokenizerOnly>(json).ok()?.tokenizer.map(Arc::from)
}

/// Returns the hashes of the blobs of an intact line.
pub(crate) fn line_blobs(line: &[u8]) -> Vec<String> {
    let only = checked(line).and_then(|(json, _)| serde_json::from_slice::<BlobsOnly>(json).ok());
    only.map(|only| only.blobs).unwrap_or_default()
}

/// The result of scanning one line.
#[expect(clippy::large_enum_variant, reason = "nearly all are records, and none is kept")]
pub(super) enum ScannedLine {
    /// A record.
    Record {
        record: ScannedRecord,
        /// The highest number that was synced when the record was written.
        durable: Option<u64>,
        crc: u32,
    },
    /// An intact line of this newer version.
    Newer(u32),
    /// A line that cannot be read.
    Damaged,
}

/// Reads the envelope of a line, and its body if `wants_body` returns true.
///
/// **Errors**: a blob of the body exists and cannot be read.
pub(super) fn scan(
    line: &[u8],
    position: (u64, u32),
    blobs: &Path,
    wants_body: &dyn Fn(RecordKind, Option<Role>) -> bool,
) -> Result<ScannedLine, FsError> {
    let Some((json, crc)) = checked(line) else {
        return Ok(newer_version(line).map_or(ScannedLine::Damaged, ScannedLine::Newer));
    };
    let line: LineEnvelope<'_> = match serde_json::from_slice(json) {
        Ok(line) => line,
        Err(_) => match serde_json::from_slice::<VersionOnly>(json) {
            Ok(only) if only.v > MAX_VERSION => return Ok(ScannedLine::Newer(only.v)),
            _ => return Ok(ScannedLine::Damaged),
        },
    };
    match line.v {
        MIN_VERSION..=MAX_VERSION => {}
        0 => return Ok(ScannedLine::Damaged),
        newer => return Ok(ScannedLine::Newer(newer)),
    }
    let role = line.message.as_ref().map(|message| message.role);
    let wants_body = wants_body(line.kind, role);
    let body = if wants_body { decode(json, blobs)?.and_then(Record::into_body) } else { None };
    let mut lacks_body = wants_body && body.is_none();
    // The line is intact. Without blobs it cannot be read by this version; a blob may come back.
    if lacks_body && line.blobs.is_none() {
        // Which messages the fold needs depends on the records before them, and whether a line is damaged must not. So
        // every such message is a record that cannot be read.
        if line.kind != RecordKind::Message {
            return Ok(ScannedLine::Damaged);
        }
        lacks_body = false;
    }
    let mut flags = body.as_ref().map_or_else(|| line.flags(), IndexEntry::flags_of);
    if line.blobs.is_some() {
        flags |= IndexEntry::HAS_BLOBS;
    }
    let (parent, tokens) = (line.parent.map(Seq), line.tokens.unwrap_or_default());
    let entry = IndexEntry::new(position, parent, line.kind, role, tokens, flags);
    let key = line.key_digest.as_deref().and_then(|digest| unhex(digest, line.seq));
    let record = ScannedRecord { seq: Seq(line.seq), at: line.at, entry, key, body, lacks_body };
    Ok(ScannedLine::Record { record, durable: line.durable, crc })
}

/// Returns the JSON and the checksum of a line whose checksum is correct.
fn checked(line: &[u8]) -> Option<(&[u8], u32)> {
    let json = line.strip_suffix(b"\n")?;
    let body_len = line.len().checked_sub(TRAILER_BYTES)?;
    let stated = stated_crc(&line[body_len..])?;
    (crc32c::crc32c(&json[..body_len]) == stated).then_some((json, stated))
}

/// Returns the end of a line with this checksum.
pub(super) fn trailer(crc: u32) -> String {
    format!(",\"crc\":\"{crc:08x}\"}}\n")
}

/// Returns a line with a correct checksum. `content` is its JSON without the closing brace.
#[cfg(any(test, fuzzing))]
pub(crate) fn seal_line(content: &[u8]) -> Vec<u8> {
    [content, trailer(crc32c::crc32c(content)).as_bytes()].concat()
}

/// Returns the checksum that the end of a line states.
pub(super) fn stated_crc(trailer: &[u8]) -> Option<u32> {
    let digits = trailer.strip_prefix(CRC_FIELD)?.strip_suffix(b"\"}\n")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns whether bytes begin as the end of a line does.
pub(super) fn is_trailer_start(bytes: &[u8]) -> bool {
    bytes.starts_with(CRC_FIELD)
}

/// Returns the number of the record in an intact line.
pub(super) fn line_seq(line: &[u8]) -> Option<u64> {
    let line: LineEnvelope<'_> = serde_json::from_slice(checked(line)?.0).ok()?;
    (line.v == MAX_VERSION).then_some(line.seq)
}

/// Returns the version of a line that does not end as version 1 does, if it is newer.
///
/// A damaged line of version 1 still ends like one, so damage is not taken for a newer version.
fn newer_version(line: &[u8]) -> Option<u32> {
    let json = line.strip_suffix(b"\n")?;
    let ending = json.len().checked_sub(TRAILER_BYTES - 1).map(|at| &json[at..]);
    if ending.is_some_and(|ending| ending.starts_with(CRC_FIELD)) {
        return None;
    }
    let only: VersionOnly = serde_json::from_slice(json).ok()?;
    (only.v > MAX_VERSION).then_some(only.v)
}

/// The JSON of a line without its checksum.
struct LineJson<'a, B> {
    fields: &'a LineFields<'a>,
    blobs: &'a [String],
    body: &'a B,
}

impl<B: Serialize> Serialize for LineJson<'_, B> {
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

/// Returns the digests of a key as 48 hex digits.
fn hex(entry: &KeyEntry) -> String {
    entry.key.iter().chain(&entry.payload).map(|byte| format!("{byte:02x}")).collect()
}

/// Parses what [`hex`] returned.
fn unhex(text: &str, seq: u64) -> Option<KeyEntry> {
    let byte = |at: usize| u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok();
    let mut entry = KeyEntry { key: [0; 16], payload: [0; 8], seq: u32::try_from(seq).ok()? };
    for (at, slot) in entry.key.iter_mut().chain(&mut entry.payload).enumerate() {
        *slot = byte(at)?;
    }
    Some(entry)
}

/// The fields of a line that the index needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LineEnvelope<'a> {
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
    message: Option<MessageEnvelope<'a>>,
    tool_call: Option<ToolCallEnvelope>,
    #[serde(borrow)]
    custom: Option<CustomEnvelope<'a>>,
    compaction: Option<CompactionEnvelope>,
    #[serde(borrow)]
    goal: Option<GoalEnvelope<'a>>,
    #[serde(borrow)]
    context_entry: Option<EntryEnvelope<'a>>,
}

#[derive(Deserialize)]
struct MessageEnvelope<'a> {
    role: Role,
    #[serde(borrow)]
    parts: Vec<PartEnvelope<'a>>,
}

#[derive(Deserialize)]
struct PartEnvelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ToolCallEnvelope {
    writes: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CustomEnvelope<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    context_text: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct GoalEnvelope<'a> {
    #[serde(borrow, default)]
    source: Cow<'a, str>,
}

#[derive(Deserialize)]
struct EntryEnvelope<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
}

#[derive(Deserialize)]
struct CompactionEnvelope {
    epoch: Option<IgnoredAny>,
}

impl LineEnvelope<'_> {
    /// Returns the flags that [`IndexEntry::flags_of`] returns for the whole body.
    fn flags(&self) -> u16 {
        let mut flags = 0;
        if let Some(message) = &self.message {
            for part in &message.parts {
                match part.kind.as_ref() {
                    "toolCall" if message.role == Role::Assistant => {
                        flags |= IndexEntry::CALLS_TOOLS;
                    }
                    "thinking" => flags |= IndexEntry::HAS_THINKING,
                    _ => {}
                }
            }
        }
        if self.tool_call.as_ref().is_some_and(|call| call.writes.is_some()) {
            flags |= IndexEntry::LISTS_WRITES;
        }
        if let Some(custom) = &self.custom {
            flags |= match custom {
                CustomEnvelope { context_text: Some(_), .. } => IndexEntry::IN_CONTEXT,
                CustomEnvelope { name, .. } if name == Custom::PARTIAL_ANSWER => {
                    IndexEntry::PARTIAL
                }
                CustomEnvelope { name, .. } if name == Custom::TOOL_START => {
                    IndexEntry::STARTS_CALL
                }
                CustomEnvelope { .. } => 0,
            };
        }
        if self.goal.as_ref().is_some_and(|goal| goal.source == "marker") {
            flags |= IndexEntry::BY_MARKER;
        }
        let entry = self.context_entry.as_ref();
        if entry.is_some_and(|entry| entry.key.starts_with(ContextEntry::HOOK_PREFIX)) {
            flags |= IndexEntry::BY_HOOK;
        }
        let compaction_opens = self.compaction.as_ref().is_some_and(|body| body.epoch.is_some());
        if compaction_opens || self.kind == RecordKind::Epoch {
            flags |= IndexEntry::OPENS_EPOCH;
        }
        flags
    }
}

/// The tokenizer of a line.
#[derive(Deserialize)]
struct TokenizerOnly {
    tokenizer: Option<String>,
}

/// The blobs of a line.
#[derive(Deserialize)]
struct BlobsOnly {
    #[serde(default)]
    blobs: Vec<String>,
}

/// The version of a line, which can be read even when the other fields are unknown.
#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

/// Reads the JSON of a line as a record; returns `None` if it is not one or a blob is missing.
fn decode(json: &[u8], blobs: &Path) -> Result<Option<Record>, FsError> {
    if let Ok(line) = serde_json::from_slice::<CommonLine>(json)
        && let Some(record) = line.into_record()
    {
        return Ok(Some(record));
    }
    match decode_any(json, blobs) {
        Ok(record) => Ok(Some(record)),
        Err(DecodeError::Damaged) => Ok(None),
        Err(DecodeError::Unreadable(error)) => Err(error),
    }
}

/// A line without blobs of one of the three kinds that most lines have, or of the kind with the longest lines.
///
/// It is read into its types directly, in a third of the time that [`decode_any`] takes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CommonLine {
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
    put_back: Option<PutBack>,
    #[serde(rename = "crc")]
    _crc: IgnoredAny,
}

impl CommonLine {
    fn into_record(self) -> Option<Record> {
        let body = match (self.kind, self.message, self.tool_call, self.custom, self.put_back) {
            (RecordKind::Message, Some(message), None, None, None) => RecordBody::Message(message),
            (RecordKind::ToolCall, None, Some(call), None, None) => RecordBody::ToolCall(call),
            (RecordKind::Custom, None, None, Some(custom), None) => RecordBody::Custom(custom),
            (RecordKind::PutBack, None, None, None, Some(files)) => RecordBody::PutBack(files),
            _ => return None,
        };
        let record = Record::new(self.seq, self.parent, self.at, body);
        Some(Record { key: self.key, tokens: self.tokens, ..record })
    }
}

/// The fields of a line that a record of the wire does not have, and refuses.
const LOG_ONLY: [&str; 6] = ["v", "durable", "tokenizer", "keyDigest", "blobs", "crc"];

/// Reads the JSON of any line as a record by way of a map of its fields.
fn decode_any(json: &[u8], blobs_dir: &Path) -> Result<Record, DecodeError> {
    let mut line: serde_json::Map<String, Value> = serde_json::from_slice(json)?;
    if let Some(hashes) = line.get("blobs") {
        let hashes: Vec<String> = serde_json::from_value(hashes.clone())?;
        let kind = line.get("type").and_then(Value::as_str).ok_or(DecodeError::Damaged)?.to_owned();
        blobs::load(line.get_mut(&kind).ok_or(DecodeError::Damaged)?, &hashes, blobs_dir)?;
    }
    for name in LOG_ONLY {
        line.remove(name);
    }
    Ok(serde_json::from_value(Value::Object(line))?)
}

#[cfg(test)]
mod tests;
