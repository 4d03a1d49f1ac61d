//! The result of an import: a session, its records, and a report of what could not be carried over.

use std::collections::BTreeMap;
use std::io;

use hashlink::LinkedHashMap;
use ollm_protocol::Timestamp;
use ollm_protocol::content::{
    ImportLoss, ImportReport, LeafMove, PERMISSIONS, RecordBody, SessionHeader,
};
use ollm_protocol::limits::{BoundedField, MAX_OPTIONS_BYTES, json_bytes, shorten_header};

use super::spool::{ImportedRecord, RecordSpool, seq_of};
use crate::nesting::{self, MAX_LEVELS, MAX_PARSED_LEVELS};

/// A file could not be imported at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// The file has nothing but white space.
    #[error("the file is empty")]
    Empty,
    /// The file has none of the known formats.
    #[error(
        "the format is not known; the file is {seen}. Known are an own export (first line with `ollmExport`), a \
         session document (an object with `messages`), and a pi session (first line with `type` \"session\" and an \
         `id`); exports as Markdown and HTML are for reading"
    )]
    Unrecognized {
        /// A description of the beginning of the file.
        seen: String,
    },
    /// The file belongs to another program, whose sessions cannot be imported.
    #[error("this looks like {name} ({shape}), which cannot be imported yet")]
    Foreign {
        /// The format with its article.
        name: &'static str,
        /// The sign by which it was recognized.
        shape: &'static str,
    },
    /// A session document is not valid JSON.
    #[error("line {line} is not valid JSON")]
    Malformed {
        /// The line, from 1.
        line: u64,
        #[source]
        cause: serde_json::Error,
    },
    /// A value of a document is nested too deeply, so that the document cannot be parsed.
    #[error(
        "{place} is nested deeper than {MAX_PARSED_LEVELS} levels, so the document cannot be read; \
         shorten or remove the value there, and import the file again"
    )]
    TooDeep {
        /// The place of the value in the document.
        place: String,
    },
    /// A value of a document has more bytes than any client could receive.
    #[error("{place} has more than {limit} bytes")]
    TooLarge {
        /// The place of the value in the document.
        place: String,
        limit: usize,
    },
    /// An own export has a newer version.
    #[error("version {found} of the export is newer than {supported}")]
    Newer { found: u64, supported: u64 },
    /// The file, or a temporary file of the import, could not be read or written.
    #[error("cannot use a temporary file of the import")]
    File(#[source] io::Error),
}

/// A file as a session: its header, and its records in the order of the file.
pub(crate) struct Imported {
    /// The header, which becomes record 0.
    pub header: SessionHeader,
    /// The records 1, 2, ...; a parent always precedes its children.
    pub records: RecordSpool,
    /// The report; the caller sets `already_imported`.
    pub report: ImportReport,
}

impl Imported {
    /// Returns the result of reading `source_records` records of a file in `format`.
    ///
    /// **Errors**: `File` if the records could not be written to their temporary file.
    pub(super) fn new(
        format: String,
        source_records: u64,
        mut header: SessionHeader,
        mut records: RecordSpool,
        mut losses: Losses,
    ) -> Result<Self, ImportError> {
        if nesting::check(&header).is_err() {
            header.metadata.clear();
            losses.line = None;
            losses.add_too_deep("metadata of the session");
        }
        if let Some(error) = records.error() {
            return Err(ImportError::File(error));
        }
        if json_bytes(&header.options) > MAX_OPTIONS_BYTES {
            header.options.clear();
            losses.line = None;
            let reason = format!("longer than {MAX_OPTIONS_BYTES} bytes, so it was dropped");
            losses.add("options", &reason);
        }
        if header.metadata.remove(PERMISSIONS).is_some() {
            losses.line = None;
            losses.add_permissions(1);
        }
        let of_header = shorten_header(&mut header).into_iter().map(|field| (field, 1)).collect();
        losses.add_shortened(of_header);
        losses.add_of(&mut records);
        let report = ImportReport {
            format,
            source_records,
            imported_records: records.len() as u64 + 1,
            already_imported: false,
            losses: losses.finish(),
        };
        Ok(Self { header, records, report })
    }
}

/// Appends a record that moves the active leaf to `leaf`, unless the last record on a path is `leaf`.
pub(super) fn move_leaf(records: &mut RecordSpool, leaf: Option<usize>, at: Timestamp) {
    if records.last_on_path() != leaf {
        let body =
            RecordBody::Leaf(LeafMove { to: leaf.map(seq_of), cause: LeafMove::IMPORT.to_owned() });
        records.push(ImportedRecord { parent: leaf, at, body, key: None });
    }
}

/// Maximum number of kinds of losses in a report; a hostile file could have one kind for each field.
const MAX_KINDS: usize = 200;
/// Maximum length of a name or a reason in characters.
const MAX_CHARS: usize = 120;

/// The losses of an import, one for each kind and reason, in the order in which they first appeared.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The line that is being read; absent in a format without lines.
    pub(super) line: Option<u64>,
    /// The first line and the number of each loss, by its name and its reason.
    kinds: LinkedHashMap<(String, String), (Option<u64>, u64)>,
    further: u64,
}

impl Losses {
    /// Adds a loss; a loss of a known kind and reason only increases its count.
    pub(super) fn add(&mut self, what: &str, reason: &str) {
        self.add_times(what, reason, 1);
    }

    /// Adds fields that were longer than their limit, with the number of their values.
    pub(super) fn add_shortened(&mut self, fields: BTreeMap<BoundedField, u64>) {
        self.line = None;
        for (field, n_values) in fields {
            let outcome = if field == BoundedField::Key { "dropped" } else { "shortened" };
            let reason = format!("longer than {} bytes, so it was {outcome}", field.max_bytes());
            self.add_times(field.name(), &reason, n_values);
        }
    }

    /// Adds what the records of a spool lost.
    pub(super) fn add_of(&mut self, records: &mut RecordSpool) {
        self.add_shortened(records.take_shortened());
        let reason = "an undo does not put back what another session wrote";
        for (field, n_records) in records.take_without_writes() {
            self.add_times(field, reason, n_records);
        }
        let n_records = records.take_without_permissions();
        if n_records > 0 {
            self.add_permissions(n_records);
        }
    }

    /// Adds permissions of tools, which a file cannot give.
    fn add_permissions(&mut self, n_values: u64) {
        let what = format!("metadata.{PERMISSIONS}");
        self.add_times(&what, "a file cannot allow tools", n_values);
    }

    fn add_times(&mut self, what: &str, reason: &str, n: u64) {
        let key = (shortened(what), shortened(reason));
        if let Some((_, n_times)) = self.kinds.get_mut(&key) {
            *n_times += n;
        } else if self.kinds.len() == MAX_KINDS {
            self.further += n;
        } else {
            self.kinds.insert(key, (self.line, n));
        }
    }

    /// Adds the losses of another part of the file behind these.
    pub(super) fn append(&mut self, other: Self) {
        for ((what, reason), (line, n_times)) in other.kinds {
            if let Some((_, n_known)) = self.kinds.get_mut(&(what.clone(), reason.clone())) {
                *n_known += n_times;
            } else if self.kinds.len() == MAX_KINDS {
                self.further += n_times;
            } else {
                self.kinds.insert((what, reason), (line, n_times));
            }
        }
        self.further += other.further;
    }

    /// Adds the line as one that is longer than `limit` bytes.
    pub(super) fn add_long_line(&mut self, limit: usize) {
        self.add("line", &format!("it has more than {limit} bytes"));
    }

    /// Adds the line as one that cannot be parsed; `torn` says that the file ends within it.
    pub(super) fn add_damaged_line(&mut self, torn: bool) {
        let (what, reason) = if torn {
            ("torn last line", "the file ends within it")
        } else {
            ("damaged line", "it is not valid JSON")
        };
        self.add(what, reason);
    }

    /// Adds a value, or a record with a value, that is nested deeper than a session may store.
    pub(super) fn add_too_deep(&mut self, what: &str) {
        self.add(what, &format!("nested deeper than {MAX_LEVELS} levels"));
    }

    pub(super) fn finish(self) -> Vec<ImportLoss> {
        let loss = |((what, reason), (line, n_times)): ((String, String), _)| ImportLoss {
            line,
            what: if n_times == 1 { what } else { format!("{what} ({n_times} times)") },
            reason,
        };
        let mut losses: Vec<_> = self.kinds.into_iter().map(loss).collect();
        if self.further > 0 {
            losses.push(ImportLoss {
                line: None,
                what: format!("{} further losses", self.further),
                reason: format!("only the first {MAX_KINDS} kinds are named"),
            });
        }
        losses
    }
}

/// Returns a text of a file for a report: no control characters, at most `MAX_CHARS` characters.
pub(super) fn shortened(text: &str) -> String {
    let mut kept: String = text.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    if kept.len() < text.len() && text.chars().nth(MAX_CHARS).is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_losses_are_counted_at_their_first_line() {
        let mut losses = Losses::default();
        for (line, what) in [(4, "signature"), (5, "other"), (6, "signature")] {
            losses.line = Some(line);
            losses.add(what, "not kept");
        }
        let found = losses.finish();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].what, "signature (2 times)");
        assert_eq!(found[0].line, Some(4));
        assert_eq!(found[1].what, "other");
    }

    #[test]
    fn report_of_a_hostile_file_is_bounded() {
        let mut losses = Losses::default();
        for n in 0..10_000 {
            losses.add(&format!("field\u{1b}[31m{n}{}", "x".repeat(5_000)), "unknown");
        }
        let found = losses.finish();
        assert_eq!(found.len(), MAX_KINDS + 1);
        assert_eq!(found[MAX_KINDS].what, "9800 further losses");
        assert!(found.iter().all(|loss| loss.what.chars().count() <= MAX_CHARS + 1));
        assert!(found.iter().all(|loss| !loss.what.contains('\u{1b}')));
    }
}
