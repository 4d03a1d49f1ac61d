//! Blobs: the large texts of records, each in a file of its own. FORMAT.md, "Blobs".
//!
//! A large text becomes a file `<sessionId>.blobs/<blake3>`, and a reference `{"$blob":"<hash>","bytes":N}` replaces it.
//! The line lists the hashes in `blobs`; only an object that names a listed hash is a reference.
//!
//! **Invariants**: content that was sent is never read as a reference, because a text stays in its line if the same
//! record names its hash as a reference does. What a line expands to is bounded by the sizes of its blobs and
//! [`MAX_REPEATED_BYTES`].

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::reading::{DecodeError, read_blob};
use crate::fsutil::{self, FsError};

/// Longer texts become blobs. A larger limit slows scans down; a smaller one makes a conversation many files.
pub(super) const THRESHOLD_BYTES: usize = 64 * 1024;
/// Maximum length of all texts of a record that repeat an earlier text of the record and are stored as references, in
/// bytes: the size of a frame, so that only an import can have more. With a larger limit, a small line could expand to
/// more memory than any client could send.
const MAX_REPEATED_BYTES: usize = 16 * 1024 * 1024;

/// Writes the large texts of a body to blobs, replaces each by a reference, and returns the hashes. The blobs are synced
/// when this returns.
pub(super) fn store(body: &mut Value, dir: &Path) -> Result<Vec<String>, FsError> {
    let mut named = HashSet::new();
    collect_named(body, &mut named);
    let mut hashes: Vec<String> = Vec::new();
    let mut repeats = RepeatLimit::default();
    visit(body, &mut |value| {
        let Value::String(text) = value else { return Ok(()) };
        if text.len() <= THRESHOLD_BYTES {
            return Ok(());
        }
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        if named.contains(&hash) || !repeats.admit(&hash, text.len()) {
            return Ok(());
        }
        if !hashes.contains(&hash) {
            fsutil::create_private_dir(dir)?;
            // An existing file may be damaged, or its name may not be durable yet; writing it again repairs both.
            fsutil::replace_atomically(&dir.join(&hash), text.as_bytes())?;
            hashes.push(hash.clone());
        }
        *value = json!({ "$blob": hash, "bytes": text.len() });
        Ok(())
    })?;
    Ok(hashes)
}

/// Replaces every reference by its text.
///
/// **Errors**: `Damaged` if a blob is missing or has another content, or if the references repeat texts beyond the
/// limit; `Unreadable` if the system cannot read a blob.
pub(super) fn load(body: &mut Value, hashes: &[String], dir: &Path) -> Result<(), DecodeError> {
    let listed: HashSet<&str> = hashes.iter().map(String::as_str).collect();
    let mut repeats = RepeatLimit::default();
    visit(body, &mut |value| {
        let Some((hash, len)) = reference(value).filter(|(hash, _)| listed.contains(hash)) else {
            return Ok(());
        };
        if !repeats.admit(hash, usize::try_from(len).unwrap_or(usize::MAX)) {
            return Err(DecodeError::Damaged);
        }
        // The hash is one of 64 hex digits and covered by the checksum of the line, so it is never a path.
        let bytes = read_blob(&dir.join(hash))?.ok_or(DecodeError::Damaged)?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err(DecodeError::Damaged);
        }
        // Another length is not written with a reference, so the object is content.
        if bytes.len() as u64 == len {
            *value = Value::String(String::from_utf8(bytes).map_err(|_| DecodeError::Damaged)?);
        }
        Ok(())
    })
}

/// The length of repeated texts so far, see [`MAX_REPEATED_BYTES`].
#[derive(Default)]
struct RepeatLimit {
    seen: HashSet<String>,
    bytes: usize,
}

impl RepeatLimit {
    /// Counts a text, and returns whether the limit allows it. The first occurrence of a text is always allowed.
    fn admit(&mut self, hash: &str, len: usize) -> bool {
        if self.seen.insert(hash.to_owned()) {
            return true;
        }
        let bytes = self.bytes.saturating_add(len);
        let is_allowed = bytes <= MAX_REPEATED_BYTES;
        if is_allowed {
            self.bytes = bytes;
        }
        is_allowed
    }
}

/// Returns the hash and the length of a value that has the form of a reference.
fn reference(value: &Value) -> Option<(&str, u64)> {
    let object = value.as_object().filter(|object| object.len() == 2)?;
    let hash = named_hash(object)?;
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((hash, object.get("bytes")?.as_u64()?)).filter(|_| is_hash)
}

fn named_hash(object: &Map<String, Value>) -> Option<&str> {
    object.get("$blob")?.as_str()
}

/// Collects every hash that content names in the way of a reference.
fn collect_named(value: &Value, named: &mut HashSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_named(item, named)),
        Value::Object(fields) => {
            named.extend(named_hash(fields).map(str::to_owned));
            fields.values().for_each(|field| collect_named(field, named));
        }
        _ => {}
    }
}

/// Calls `change` on every value, parents first.
fn visit<E>(
    value: &mut Value,
    change: &mut dyn FnMut(&mut Value) -> Result<(), E>,
) -> Result<(), E> {
    change(value)?;
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| visit(item, change)),
        Value::Object(fields) => fields.values_mut().try_for_each(|field| visit(field, change)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_and_reference() -> (String, Value) {
        let text = "0123456789".repeat(20_000);
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        let reference = json!({ "$blob": hash, "bytes": text.len() });
        (text, reference)
    }

    /// Stores a body, reads it again, and returns the result.
    fn round_trip(body: &Value, dir: &Path) -> Option<Value> {
        let mut stored = body.clone();
        let hashes = store(&mut stored, dir).expect("stores");
        load(&mut stored, &hashes, dir).ok().map(|()| stored)
    }

    #[test]
    fn large_text_is_stored_in_a_blob_and_a_missing_blob_is_damage() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let blobs = dir.path().join("x.blobs");
        let (text, _) = text_and_reference();
        let mut body = json!({ "text": text });
        let hashes = store(&mut body, &blobs).expect("stores");
        assert!(body.to_string().len() < 200, "the text is in a blob");
        let mut read = body.clone();
        assert!(load(&mut read, &hashes, &blobs).is_ok());
        assert!(read == json!({ "text": text }));
        std::fs::remove_dir_all(&blobs).expect("removes");
        let missing = load(&mut body, &hashes, &blobs);
        assert!(matches!(missing, Err(DecodeError::Damaged)), "not an empty text");
    }

    #[test]
    fn content_that_looks_like_a_reference_is_read_back_as_it_was_sent() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let (text, same) = text_and_reference();
        let hash = &same["$blob"];
        for body in [
            json!({ "text": text, "same": same }),
            json!({ "same": same, "text": text }),
            json!({ "text": text, "deep": [[same, { "$blob": hash, "bytes": 1 }]] }),
            json!({ "text": text, "other": { "$blob": "x", "bytes": same } }),
            json!({ "same": same }),
        ] {
            assert!(round_trip(&body, dir.path()).as_ref() == Some(&body), "{:.400}", body["deep"]);
        }
    }

    #[test]
    fn repeated_text_is_stored_once_up_to_the_limit() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let (text, same) = text_and_reference();
        let body = json!(vec![text.as_str(); MAX_REPEATED_BYTES / text.len() + 3]);
        let mut stored = body.clone();
        let hashes = store(&mut stored, dir.path()).expect("stores");
        assert_eq!(hashes.len(), 1);
        let kept = stored.as_array().expect("a list").iter().filter(|item| item.is_string());
        assert_eq!(kept.count(), 2, "texts beyond the limit stay in the line");
        assert!(round_trip(&body, dir.path()) == Some(body));

        // A log can have lines with any number of references.
        let mut many = json!(vec![same; 10_000]);
        assert!(load(&mut many, &hashes, dir.path()).is_err());
    }

    #[test]
    fn object_with_another_length_is_content() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut body = json!({ "text": text_and_reference().0 });
        let hashes = store(&mut body, dir.path()).expect("stores");
        body["text"]["bytes"] = json!(7);
        let mut read = body.clone();
        assert!(load(&mut read, &hashes, dir.path()).is_ok());
        assert!(read == body);
    }
}
