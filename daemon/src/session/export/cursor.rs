//! An [`Exporter`] as a short text, so that an export needs no state between two of its chunks.
//!
//! A cursor comes back from a client: it may say anything, and must at worst give a strange file.

use ollm_protocol::Timestamp;
use ollm_protocol::content::ExportFormat;

use super::Exporter;
use crate::session::document::{DocumentWriter, Pass, Totals};

/// Numbers after the format.
const N_FIELDS: usize = 9;

impl Exporter {
    /// The state as a text of letters, digits, dots and hyphens.
    pub(crate) fn to_cursor(&self) -> String {
        let document = &self.document;
        let totals = &document.totals;
        let numbers = [
            document.pass as u64,
            document.n_written,
            document.n_messages,
            totals.user_messages,
            totals.tool_calls,
            totals.mode_changes,
            totals.compactions,
            totals.tokens,
        ];
        let mut cursor = String::from(format_name(self.format));
        for number in numbers {
            cursor.push('.');
            cursor.push_str(&number.to_string());
        }
        cursor.push('.');
        if let Some(at) = totals.last_message_at {
            cursor.push_str(&at.unix_ms().to_string());
        }
        cursor
    }

    /// The inverse of [`Exporter::to_cursor`]; `None` for any other text.
    pub(crate) fn from_cursor(cursor: &str) -> Option<Self> {
        let mut fields = cursor.split('.');
        let format = format_of(fields.next()?)?;
        let fields: Vec<_> = fields.collect();
        let (last, counts) = fields.split_last()?;
        if fields.len() != N_FIELDS {
            return None;
        }
        let mut numbers = [0; N_FIELDS - 1];
        for (number, field) in numbers.iter_mut().zip(counts) {
            // A count beyond 32 bits is not ours; refusing it keeps sums from overflowing.
            *number = u64::from(field.parse::<u32>().ok()?);
        }
        let [
            pass,
            n_written,
            n_messages,
            user_messages,
            tool_calls,
            mode_changes,
            compactions,
            tokens,
        ] = numbers;
        let last_message_at = match *last {
            "" => None,
            ms => Some(Timestamp::from_unix_ms(ms.parse().ok()?)),
        };
        let totals = Totals {
            user_messages,
            tool_calls,
            mode_changes,
            compactions,
            tokens,
            last_message_at,
        };
        let pass = [Pass::Messages, Pass::ToolCalls, Pass::Modes, Pass::Done]
            .into_iter()
            .find(|&known| known as u64 == pass)?;
        Some(Self { format, document: DocumentWriter { pass, n_written, n_messages, totals } })
    }
}

const fn format_name(format: ExportFormat) -> &'static str {
    match format {
        ExportFormat::Json => "json",
        ExportFormat::Jsonl => "jsonl",
        ExportFormat::Markdown => "markdown",
        ExportFormat::Html => "html",
    }
}

fn format_of(name: &str) -> Option<ExportFormat> {
    use ExportFormat::{Html, Json, Jsonl, Markdown};
    [Json, Jsonl, Markdown, Html].into_iter().find(|&format| format_name(format) == name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_that_is_not_ours_is_refused() {
        for cursor in
            ["", "json", "json.0.0.0.0.0.0.0.0", "xml.0.0.0.0.0.0.0.0.", "json.9.0.0.0.0.0.0.0."]
        {
            assert_eq!(Exporter::from_cursor(cursor), None, "{cursor}");
        }
        assert_eq!(Exporter::from_cursor("json.0.0.0.0.0.0.0.99999999999."), None);
        assert_eq!(Exporter::from_cursor("json.0.0.0.0.0.0.0.-1."), None);
    }

    proptest! {
        #[test]
        fn an_exporter_survives_its_cursor(counts: [u32; 7], ms in proptest::option::of(0..4_000_000_000_000_i64)) {
            let n = counts.map(u64::from);
            let totals = Totals {
                user_messages: n[0],
                tool_calls: n[1],
                mode_changes: n[2],
                compactions: n[3],
                tokens: n[4],
                last_message_at: ms.map(Timestamp::from_unix_ms),
            };
            let document = DocumentWriter {
                pass: Pass::ToolCalls, n_written: n[5], n_messages: n[6], totals,
            };
            let exporter = Exporter { format: ExportFormat::Json, document };
            prop_assert_eq!(Exporter::from_cursor(&exporter.to_cursor()), Some(exporter));
        }
    }
}
