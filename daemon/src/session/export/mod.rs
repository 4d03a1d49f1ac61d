//! A session as a file: own JSON lines, the session document, Markdown and HTML.
//!
//! Owns what each form looks like. Pure: the caller pages through the records and appends what comes out, so
//! memory stays that of one page; between two pages an [`Exporter`] fits into a cursor of some 80 bytes.

mod cursor;
mod html;
mod markdown;
mod text;

use ollm_protocol::content::{ExportFormat, Record};
use serde_json::json;

use super::document::{self, DocumentWriter, SessionFacts};

/// The version of own exports of lines, in their first line; an import refuses a newer one.
pub(crate) const JSONL_VERSION: u64 = 1;

/// Writes one session in one form.
///
/// Call `begin`, then `record` for every record in the order of the log, then `end_pass`; while that says
/// true, `record` for every record again. Records carry their `active` flag, and blobs are put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exporter {
    format: ExportFormat,
    document: DocumentWriter,
}

impl Exporter {
    /// A writer at the beginning of a form.
    pub(crate) fn new(format: ExportFormat) -> Self {
        Self { format, document: DocumentWriter::default() }
    }

    /// The form that it writes.
    pub(crate) const fn format(&self) -> ExportFormat {
        self.format
    }

    /// Writes what comes before the first record.
    pub(crate) fn begin(&mut self, facts: &SessionFacts<'_>, out: &mut String) {
        match self.format {
            ExportFormat::Json => self.document.begin(facts, out),
            ExportFormat::Jsonl => {
                let first = json!({
                    "ollmExport": JSONL_VERSION,
                    "sessionId": facts.session.session_id,
                });
                out.push_str(&document::json(&first));
                out.push('\n');
            }
            ExportFormat::Markdown => markdown::begin(facts, out),
            ExportFormat::Html => html::begin(facts, out),
        }
    }

    /// Writes one record.
    pub(crate) fn record(&mut self, mut record: Record, out: &mut String) {
        match self.format {
            ExportFormat::Json => self.document.record(record, out),
            ExportFormat::Jsonl => {
                // Follows from the tree and the leaf, and is left out where it is true.
                record.active = true;
                out.push_str(&document::json(&record));
                out.push('\n');
            }
            ExportFormat::Markdown => markdown::record(record, out),
            ExportFormat::Html => html::record(record, out),
        }
    }

    /// Ends a pass over the records; true asks for the same records again, false says that all is written.
    pub(crate) fn end_pass(&mut self, facts: &SessionFacts<'_>, out: &mut String) -> bool {
        match self.format {
            ExportFormat::Json => self.document.end_pass(facts, out),
            ExportFormat::Jsonl | ExportFormat::Markdown => false,
            ExportFormat::Html => {
                html::end(out);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
