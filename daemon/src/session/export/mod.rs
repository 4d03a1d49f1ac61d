//! Exports of a session: own JSON lines, the session document, Markdown and HTML.
//!
//! The module owns the form of each. It is pure: the caller passes the records page by page and takes the text, so
//! memory stays that of one page. Between two pages an [`Exporter`] is a short cursor, so the daemon keeps no state of an
//! export.

mod html;
mod markdown;
mod text;

use ollm_protocol::content::{ExportFormat, Record};
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::html::{PageHighlighter, WindowBar};
use super::document::{self, DocumentWriter, SessionOverview};

/// The version of JSON-lines exports, which their first line states. An import refuses a newer one.
pub(crate) const JSONL_VERSION: u64 = 1;

/// A writer of one session in one format.
///
/// Call `begin`, then `record` for every record in the order of the log, then `end_pass`; as long as that returns true,
/// pass all records again. Records have their `active` flag and their blobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exporter {
    format: ExportFormat,
    document: DocumentWriter,
    #[serde(default)]
    window: WindowBar,
    #[serde(skip)]
    highlighter: PageHighlighter,
}

impl Exporter {
    pub(crate) fn new(format: ExportFormat) -> Self {
        Self {
            format,
            document: DocumentWriter::default(),
            window: WindowBar::default(),
            highlighter: PageHighlighter::default(),
        }
    }

    pub(crate) const fn format(&self) -> ExportFormat {
        self.format
    }

    /// Writes the text before the first record.
    pub(crate) fn begin(&mut self, overview: &SessionOverview<'_>, out: &mut String) {
        match self.format {
            ExportFormat::Json => self.document.begin(overview, out),
            ExportFormat::Jsonl => {
                let first = json!({
                    "ollmExport": JSONL_VERSION,
                    "sessionId": overview.session.session_id,
                });
                out.push_str(&document::json(&first));
                out.push('\n');
            }
            ExportFormat::Markdown => markdown::begin(overview, out),
            ExportFormat::Html => html::begin(overview, out),
        }
    }

    /// Writes one record.
    pub(crate) fn record(&mut self, mut record: Record, out: &mut String) {
        match self.format {
            ExportFormat::Json => self.document.record(record, out),
            ExportFormat::Jsonl => {
                // The flag follows from the parents and the leaf; true is not written.
                record.active = true;
                out.push_str(&document::json(&record));
                out.push('\n');
            }
            ExportFormat::Markdown => markdown::record(record, out),
            ExportFormat::Html if self.window.is_complete() => {
                html::record(record, &self.highlighter, out);
            }
            ExportFormat::Html => self.window.collect(record),
        }
    }

    /// Ends a pass over the records; returns whether another pass is needed to complete the export.
    pub(crate) fn end_pass(&mut self, overview: &SessionOverview<'_>, out: &mut String) -> bool {
        match self.format {
            ExportFormat::Json => self.document.end_pass(overview, out),
            ExportFormat::Jsonl | ExportFormat::Markdown => false,
            ExportFormat::Html if self.window.is_complete() => {
                html::end(out);
                false
            }
            ExportFormat::Html => {
                html::begin_messages(overview, &mut self.window, &self.highlighter, out);
                true
            }
        }
    }

    /// Returns the state as JSON.
    pub(crate) fn to_cursor(&self) -> String {
        document::json(self)
    }

    /// Parses what [`Exporter::to_cursor`] returned; returns `None` for any other text.
    ///
    /// Cursors come from clients; wrong numbers give a wrong file and no other harm.
    pub(crate) fn from_cursor(cursor: &str) -> Option<Self> {
        let exporter: Self = serde_json::from_str(cursor).ok()?;
        let DocumentWriter { n_written, n_messages, ref totals, .. } = exporter.document;
        let counts = [
            n_written,
            n_messages,
            totals.user_messages,
            totals.tool_calls,
            totals.mode_changes,
            totals.compactions,
            totals.tokens,
        ];
        // No count has more than 32 bits; refusing larger ones keeps sums from overflowing.
        let are_counts = counts.iter().all(|count| u32::try_from(*count).is_ok());
        (are_counts && exporter.window.is_valid()).then_some(exporter)
    }
}

#[cfg(test)]
mod tests;
