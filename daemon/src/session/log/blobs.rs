//! Large texts out of line: `<sessionId>.blobs/<blake3>`, so that a log stays small enough to scan.
//!
//! In a body, a text over the threshold becomes `{"$blob":"<hash>","bytes":N}`; the line lists the hashes in
//! `blobs`, and only an object that names a listed hash is read as a reference.

use std::path::Path;

use serde_json::{Value, json};

use crate::fsutil::{self, FsError};

/// Texts of more bytes than this go out of line. Larger, and cold scans slow down; smaller, and a long
/// conversation becomes many files.
pub(crate) const THRESHOLD_BYTES: usize = 64 * 1024;

/// Moves every large text of a body into a file and returns the hashes; the files are synced.
pub(super) fn move_out(body: &mut Value, dir: &Path) -> Result<Vec<String>, FsError> {
    let mut hashes = Vec::new();
    visit(body, &mut |value| {
        let Value::String(text) = value else { return Ok(()) };
        if text.len() <= THRESHOLD_BYTES {
            return Ok(());
        }
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        let path = dir.join(&hash);
        fsutil::create_private_dir(dir)?;
        fsutil::sync_dir(dir.parent().unwrap_or(Path::new(".")))?;
        // One that is there may be rotten, or its name not yet durable; writing it again settles both.
        fsutil::replace_atomically(&path, text.as_bytes())?;
        *value = json!({ "$blob": hash, "bytes": text.len() });
        if !hashes.contains(&hash) {
            hashes.push(hash);
        }
        Ok(())
    })?;
    Ok(hashes)
}

/// Puts every listed text back; `None` when one is missing or is not what its hash says.
pub(super) fn move_in(body: &mut Value, hashes: &[String], dir: &Path) -> Option<()> {
    visit(body, &mut |value| {
        let Some(hash) = reference(value, hashes) else { return Ok(()) };
        // The hash is one of 64 hex digits that the line's checksum covers, never a path.
        let bytes = std::fs::read(dir.join(&hash)).map_err(|_| ())?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err(());
        }
        *value = Value::String(String::from_utf8(bytes).map_err(|_| ())?);
        Ok(())
    })
    .ok()
}

/// The hash that an object refers to, if it is one of the listed.
fn reference(value: &Value, hashes: &[String]) -> Option<String> {
    let object = value.as_object().filter(|object| object.len() == 2)?;
    let hash = object.get("$blob")?.as_str()?;
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && hashes.iter().any(|listed| listed == hash)).then(|| hash.to_owned())
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
