//! Imports: own and foreign session files, read into records that a session can append.
//!
//! The module detects the format by content and reports everything that it cannot carry over. It is pure: it uses no
//! file, no store and no clock. It relies on the numbering of the store: the header becomes record 0 and `records[i]`
//! becomes record `i + 1`, so that references between records are final.

mod document;
mod fields;
mod imported;
mod jsonl;
mod pi;
mod remap;

use ollm_protocol::SessionId;
use serde_json::Value;

#[cfg(test)]
pub(super) use imported::seq_of;
pub(crate) use imported::{ImportError, Imported, ImportedRecord};

use crate::nesting;

/// Number of non-blank lines that detection reads; more than one, because the first line may be damaged.
const DETECT_LINES: usize = 5;

/// Reads a file after detecting its format.
///
/// `digest_hex` is the hash of the file for `importedFrom`; `fallback_id` becomes the id of the session if the file has
/// none that is a UUID.
///
/// **Errors**: only if nothing can be carried over. Damaged lines are reported as losses.
pub(crate) fn detect_and_parse(
    text: &str,
    digest_hex: &str,
    fallback_id: SessionId,
) -> Result<Imported, ImportError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(ImportError::Empty);
    }
    match detect_lines(text) {
        Some(LinesFormat::Export) => return jsonl::parse(text, digest_hex, fallback_id),
        Some(LinesFormat::Pi) => return Ok(pi::parse(text, digest_hex, fallback_id)),
        None => {}
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(map)) if map.get("messages").is_some_and(Value::is_array) => {
            Ok(document::parse(Value::Object(map), digest_hex, fallback_id))
        }
        Ok(_) => Err(ImportError::Unrecognized),
        Err(_) if nesting::is_unparsable(text.as_bytes()) => Err(ImportError::TooDeep),
        Err(cause) if text.contains("\"messages\"") && text.contains("\"sessionId\"") => {
            Err(ImportError::Malformed { line: cause.line() as u64, cause })
        }
        Err(_) => Err(ImportError::Unrecognized),
    }
}

/// A format of JSON lines.
enum LinesFormat {
    /// An own export.
    Export,
    /// A session of pi.
    Pi,
}

/// Returns the format that the first lines identify, or `None` if they identify none.
fn detect_lines(text: &str) -> Option<LinesFormat> {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(DETECT_LINES);
    for line in lines {
        let Ok(Value::Object(object)) = serde_json::from_str::<Value>(line) else { continue };
        if object.contains_key("ollmExport") {
            return Some(LinesFormat::Export);
        }
        let is_header = object.get("type").and_then(Value::as_str) == Some("session");
        // The lines of a session log have a `seq`; they are not entries of pi.
        if is_header
            && object.get("id").is_some_and(Value::is_string)
            && !object.contains_key("seq")
        {
            return Some(LinesFormat::Pi);
        }
    }
    None
}

#[cfg(test)]
mod tests;
