//! Imports: own and foreign session files, read into records that a session can append.
//!
//! The module detects the format by content and reports everything that it cannot carry over. It uses no store and no
//! clock, and its files are those that the caller gives it: the file to import, and temporary files for records. A file
//! is read from its beginning to its end and never held; memory depends on the largest record and, with a few bytes for
//! each, on the number of records.
//!
//! It relies on the numbering of the store: the header becomes record 0 and record `i` of the file becomes record
//! `i + 1`, so that references between records are final.

mod detect;
mod document;
mod fields;
mod imported;
mod jsonl;
mod lines;
mod pi;
mod remap;
mod spool;

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use ollm_protocol::SessionId;
use ollm_protocol::limits::MAX_RECORD_BYTES;

use self::detect::FileFormat;
pub(crate) use imported::{ImportError, Imported};
pub(crate) use remap::SeqMap;
#[cfg(any(test, fuzzing))]
pub(super) use spool::seq_of;
pub(crate) use spool::{ImportedRecord, RecordSpool, SpoolFile};

/// The buffer for reading a file.
const READ_BYTES: usize = 64 * 1024;
/// The mark at the beginning of some UTF-8 files, which is not part of the text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file that can be read more than once.
pub(crate) trait ImportSource: Read + Seek {}

impl<F: Read + Seek> ImportSource for F {}

/// Reads a file after detecting its format.
///
/// `digest_hex` is the hash of the file for `importedFrom`; `fallback_id` becomes the id of the session if the file has
/// none that is a UUID. `make_spool` makes empty temporary files.
///
/// **Errors**: only if nothing can be carried over. Damaged lines are reported as losses.
pub(crate) fn read(
    source: &mut dyn ImportSource,
    digest_hex: &str,
    fallback_id: SessionId,
    make_spool: &dyn Fn() -> io::Result<Box<dyn SpoolFile>>,
) -> Result<Imported, ImportError> {
    let file = FileFacts { digest_hex, fallback_id, max_record_bytes: MAX_RECORD_BYTES };
    read_limited(source, &file, make_spool)
}

/// The properties of a file that a format needs.
struct FileFacts<'a> {
    digest_hex: &'a str,
    fallback_id: SessionId,
    /// The largest line of a format of lines, and the largest value of a document.
    max_record_bytes: usize,
}

fn read_limited(
    source: &mut dyn ImportSource,
    file: &FileFacts<'_>,
    make_spool: &dyn Fn() -> io::Result<Box<dyn SpoolFile>>,
) -> Result<Imported, ImportError> {
    let spool = || make_spool().map(RecordSpool::new).map_err(ImportError::File);
    let (format, beginning) = format_of(source)?;
    let source = from_start(source)?;
    match format {
        FileFormat::Export => jsonl::parse(source, file, spool()?),
        FileFormat::Pi => pi::parse(source, file, spool()?),
        FileFormat::Document => {
            let parsed = document::parse(source, file, spool()?, spool()?)?;
            parsed.ok_or_else(|| unrecognized(&beginning))
        }
    }
}

/// Detects the format of a file, and returns it with the beginning of the file.
///
/// **Errors**: `Empty`, `Foreign`, `Unrecognized`, `File`.
fn format_of(source: &mut dyn ImportSource) -> Result<(FileFormat, Vec<u8>), ImportError> {
    let beginning = detect::beginning_of(from_start(source)?)?;
    if let Some(foreign) = detect::detect_foreign(&beginning) {
        return Err(foreign);
    }
    let format = detect::detect(from_start(source)?)?;
    Ok((format.ok_or_else(|| unrecognized(&beginning))?, beginning))
}

fn unrecognized(beginning: &[u8]) -> ImportError {
    ImportError::Unrecognized { seen: detect::describe(beginning) }
}

/// Refuses a file by its first part, so that the rest need not be sent. A part that is too short to tell is accepted.
///
/// **Errors**: `Foreign`, `Unrecognized`.
pub(crate) fn check_beginning(part: &[u8]) -> Result<(), ImportError> {
    if part.len() < detect::DETECT_BYTES || part.trim_ascii().is_empty() {
        return Ok(());
    }
    format_of(&mut io::Cursor::new(part)).map(drop)
}

/// Reads a file with another limit for its records, for tests.
#[cfg(any(test, fuzzing))]
pub(super) fn read_with_limit(
    source: &mut dyn ImportSource,
    (digest_hex, fallback_id): (&str, SessionId),
    max_record_bytes: usize,
    make_spool: &dyn Fn() -> io::Result<Box<dyn SpoolFile>>,
) -> Result<Imported, ImportError> {
    read_limited(source, &FileFacts { digest_hex, fallback_id, max_record_bytes }, make_spool)
}

/// Returns a reader of the file from its beginning, without a byte order mark.
fn from_start(source: &mut dyn ImportSource) -> Result<impl io::BufRead, ImportError> {
    let mut start = Vec::new();
    let read = source
        .seek(SeekFrom::Start(0))
        .and_then(|_| source.take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut start))
        .and_then(|_| {
            let begin = if start == BYTE_ORDER_MARK { start.len() as u64 } else { 0 };
            source.seek(SeekFrom::Start(begin))
        });
    read.map_err(ImportError::File)?;
    Ok(BufReader::with_capacity(READ_BYTES, source))
}

#[cfg(test)]
mod tests;
