//! Foreign and own session files, read into records that a log can take as they are.
//!
//! Owns the detection by content and the loss report. Pure: no file, no store, no clock. The one thing it
//! assumes of the store is the numbering: the header becomes record 0 and `records[i]` becomes record `i + 1`,
//! so that references inside bodies are final.

mod detect;
mod document;
mod fields;
mod jsonl;
mod losses;
mod pi;
mod remap;

use ollm_protocol::content::{ImportReport, LeafMove, RecordBody, RecordScope, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde_json::Value;

/// A file as a session: what it is born with and its records in the order of the file.
#[derive(Debug)]
pub(crate) struct Imported {
    /// Becomes record 0.
    pub header: SessionHeader,
    /// Become records 1, 2, ...; a parent always stands before its children.
    pub records: Vec<ImportedRecord>,
    /// What was carried over and what was not; `already_imported` is the store's to set.
    pub report: ImportReport,
}

/// One record to append.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImportedRecord {
    /// The record before it on its path, as an index into the records; absent for one that begins a path.
    pub parent: Option<usize>,
    /// When it was recorded there.
    pub at: Timestamp,
    /// What it says.
    pub body: RecordBody,
    /// Its idempotency key.
    pub key: Option<String>,
}

/// Why a file could not be imported at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// Nothing but white space.
    #[error("the file is empty")]
    Empty,
    /// None of the known formats.
    #[error(
        "the format is not known: looked for an own export (first line with `ollmExport`), a session document \
         (an object with `messages`), and a pi session (first line with `type` \"session\" and an `id`); exports \
         as Markdown and HTML are for reading, and sessions of other programs cannot be imported yet"
    )]
    Unrecognized,
    /// A document that is not valid JSON; files of lines lose a damaged line instead.
    #[error("line {line} is not valid JSON")]
    Malformed {
        /// The line, from 1.
        line: u64,
        /// What the JSON reader said.
        #[source]
        cause: serde_json::Error,
    },
    /// A document whose brackets are nested too deeply to be read.
    #[error("brackets are nested deeper than {limit}")]
    TooDeep {
        /// How deep they may be nested.
        limit: usize,
    },
    /// An own export of a newer version.
    #[error("version {found} of the export is newer than {supported}")]
    Newer {
        /// The file's version.
        found: u64,
        /// The newest that is known.
        supported: u64,
    },
}

/// Reads a file whose format is found from its content.
///
/// `digest_hex` is the hash of the file for `importedFrom`; `fallback_id` names the session where the file's
/// own id is not a UUID.
///
/// # Errors
/// Only when nothing can be carried over; damage in a file of lines is in the report.
pub(crate) fn detect_and_parse(
    text: &str,
    digest_hex: &str,
    fallback_id: impl FnOnce() -> SessionId,
) -> Result<Imported, ImportError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(ImportError::Empty);
    }
    match detect::by_lines(text) {
        Some(detect::Format::Export) => return jsonl::parse(text, digest_hex, fallback_id),
        Some(detect::Format::Pi) => return Ok(pi::parse(text, digest_hex, fallback_id)),
        None => {}
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(map)) if map.get("messages").is_some_and(Value::is_array) => {
            Ok(document::parse(Value::Object(map), digest_hex, fallback_id))
        }
        Ok(_) => Err(ImportError::Unrecognized),
        Err(_) if detect::too_deep(text) => Err(ImportError::TooDeep { limit: detect::MAX_DEPTH }),
        Err(cause) if text.contains("\"messages\"") && text.contains("\"sessionId\"") => {
            Err(ImportError::Malformed { line: cause.line() as u64, cause })
        }
        Err(_) => Err(ImportError::Unrecognized),
    }
}

/// The number that the store gives to `records[index]`.
pub(crate) const fn seq_of(index: usize) -> Seq {
    Seq(index as u64 + 1)
}

/// The non-blank lines of a file with their numbers from 1, and whether the file ends within the line.
fn lines(text: &str) -> impl Iterator<Item = (u64, &str, bool)> {
    text.split_inclusive('\n')
        .zip(1..)
        .map(|(line, number)| (number, line.trim(), !line.ends_with('\n')))
        .filter(|(_, line, _)| !line.is_empty())
}

/// What an import calls a line that it cannot read.
const fn damaged(torn: bool) -> (&'static str, &'static str) {
    if torn {
        ("torn last line", "the file ends within it")
    } else {
        ("damaged line", "it is not valid JSON")
    }
}

/// Ends a list of records whose active leaf is not its last record on a path by a record that moves it there.
fn end_at(records: &mut Vec<ImportedRecord>, leaf: Option<usize>, at: Timestamp) {
    let last = records.iter().rposition(|record| record.body.kind().scope() == RecordScope::Path);
    if last != leaf {
        let body = RecordBody::Leaf(LeafMove { to: leaf.map(seq_of), cause: "import".to_owned() });
        records.push(ImportedRecord { parent: leaf, at, body, key: None });
    }
}

#[cfg(test)]
pub(in crate::session) mod tests;
