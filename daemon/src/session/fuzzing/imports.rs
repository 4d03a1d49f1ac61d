//! The check of imports: any file is imported or refused, and an import survives its own export.

use std::io::Cursor;

use ollm_protocol::SessionId;
use ollm_protocol::content::{ExportFormat, Record};

use crate::session::import::{ImportError, SpoolFile, read_with_limit};
use crate::session::testing::{FALLBACK_ID, WholeImport, export, numbered};

/// The limits for a record: no input reaches the first, and many reach the second.
const LIMITS: [usize; 2] = [1 << 20, 200];

/// Checks the import of a file.
pub(crate) fn check_import(file: &[u8]) {
    for limit in LIMITS {
        let Ok(imported) = import(file, limit) else { continue };
        let n_records = imported.records.len() as u64 + 1;
        assert_eq!(imported.report.imported_records, n_records);
        let records = numbered(&imported);
        let text = export(ExportFormat::Jsonl, &records);
        let again = import(text.as_bytes(), usize::MAX).expect("an own export is imported");
        assert_eq!(again.report.losses, [], "{text}");
        assert_same(&numbered(&again), &records);
        // The other formats are for reading, but must not panic.
        for format in [ExportFormat::Json, ExportFormat::Markdown, ExportFormat::Html] {
            drop(export(format, &records));
        }
    }
}

fn import(file: &[u8], limit: usize) -> Result<WholeImport, ImportError> {
    let make_spool = || Ok(Box::new(Cursor::new(Vec::new())) as Box<dyn SpoolFile>);
    let fallback_id = SessionId::from_uuid(FALLBACK_ID);
    read_with_limit(&mut Cursor::new(file), ("d1ge57", fallback_id), limit, &make_spool)
        .map(WholeImport::of)
}

fn assert_same(found: &[Record], expected: &[Record]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
}
