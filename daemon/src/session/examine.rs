//! An examination of all files of one session: every line, every blob, and what the catalog says of the log.
//!
//! It changes nothing, and believes neither the catalog nor the session in memory.

use std::collections::BTreeMap;

use ollm_protocol::content::{FileState, RecordBody, RecordKind, Session};
use ollm_protocol::{Seq, SessionId};

use super::error::SessionError;
use super::index::{IndexEntry, OpenHint};
use super::log::{self, LogReader, read_blob};
use super::open_session::OpenSession;
use super::store::Sessions;
use crate::fsutil::FsError;

/// What an examination found.
pub(crate) struct SessionExam {
    /// The session as lists show it.
    pub(crate) summary: Session,
    pub(crate) records: u64,
    pub(crate) log_bytes: u64,
    /// The bytes behind the last record, which were never acknowledged.
    pub(crate) torn_bytes: u64,
    /// The records that are lost, with the positions of their lines.
    pub(crate) lost: Vec<(Seq, u64)>,
    /// The number of bad places in which no record is lost.
    pub(crate) bad_places: u64,
    pub(crate) blobs: Vec<BlobFault>,
    pub(crate) catalog: CatalogView,
}

/// A blob that is not as it was written.
pub(crate) struct BlobFault {
    pub(crate) name: String,
    pub(crate) is_missing: bool,
    /// The first record that needs it; `None` if none is known to.
    pub(crate) seq: Option<Seq>,
    /// Set if it is the earlier content of a file, without which the record is whole.
    pub(crate) is_of_file: bool,
}

/// What the catalog says of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatalogView {
    /// The same, or less.
    Agrees,
    Unknown,
    Differs,
}

impl Sessions {
    /// Examines a session. `advance` is called with bytes that were read. Blocks on the disk.
    ///
    /// **Errors**: `NotFound`, `UpgradeRequired`, `Storage`, and those of `advance`.
    pub(crate) fn examine<E: From<SessionError>>(
        &self,
        id: SessionId,
        advance: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<SessionExam, E> {
        let fail = |error: FsError| E::from(SessionError::fs(id, &error));
        let acknowledged = self.files(id)?;
        let path = self.shared.paths.log(id);
        let blobs = self.shared.paths.blobs(id);
        let hint = self.shared.hint(id);
        let open = || {
            let log = LogReader::open(&path)?.limited_to(acknowledged.log_bytes);
            OpenSession::open(id, log, blobs.clone(), None, 0)
        };
        let opened = self.shared.with_descriptors(open);
        let (session, end) = opened.map_err(|error| SessionError::log(id, &error))?;
        advance(acknowledged.log_bytes)?;
        let behind = self.with_cell_of_log(id, |cell| cell.bytes_behind(end.point.bytes))?;
        let lost: Vec<_> =
            session.state.entries().iter().zip(0..).filter_map(lost_record).collect();
        let named = named_blobs(&session).map_err(fail)?;
        let mut faults = Vec::new();
        for (name, (seq, is_of_file)) in &named {
            if read_blob(&blobs.join(name)).map_err(fail)?.is_none() {
                let (name, seq, is_of_file) = (name.clone(), Some(*seq), *is_of_file);
                faults.push(BlobFault { name, is_missing: true, seq, is_of_file });
            }
        }
        for name in acknowledged.blob_names().map_err(fail)? {
            let Some(bytes) = read_blob(&blobs.join(&name)).map_err(fail)? else { continue };
            advance(bytes.len() as u64)?;
            if blake3::hash(&bytes).to_hex().as_str() != name {
                let (seq, is_of_file) = named
                    .get(&name)
                    .map_or((None, true), |(seq, is_of_file)| (Some(*seq), *is_of_file));
                faults.push(BlobFault { name, is_missing: false, seq, is_of_file });
            }
        }
        Ok(SessionExam {
            summary: acknowledged.summary,
            records: end.point.records,
            log_bytes: acknowledged.log_bytes,
            torn_bytes: behind,
            bad_places: end.damaged_places.saturating_sub(lost.len() as u64),
            lost,
            blobs: faults,
            catalog: compared(&session, hint.as_ref()),
        })
    }
}

fn lost_record((entry, seq): (&IndexEntry, u64)) -> Option<(Seq, u64)> {
    entry.is_damaged().then_some((Seq(seq), entry.offset))
}

/// Returns the blobs that records name, each with the first record, and whether it is the content of a file.
fn named_blobs(session: &OpenSession) -> Result<BTreeMap<String, (Seq, bool)>, FsError> {
    let entries = session.state.entries();
    let reader = session.reader();
    // Contents of files from before a fork stay with the other session.
    let is_header = |entry: &IndexEntry| entry.kind() == Some(RecordKind::Session);
    let own_from = entries.iter().rposition(is_header).unwrap_or(0);
    let mut named = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let seq = Seq(at as u64);
        if entry.has(IndexEntry::HAS_BLOBS)
            && let Some(line) = reader.line(*entry)?
        {
            for name in log::line_blobs(&line) {
                named.entry(name).or_insert((seq, false));
            }
        }
        let has_contents =
            entry.has(IndexEntry::LISTS_WRITES) || entry.kind() == Some(RecordKind::PutBack);
        if !has_contents || at < own_from {
            continue;
        }
        let body = reader.read(*entry)?.and_then(ollm_protocol::content::Record::into_body);
        let states: Vec<FileState> = match body {
            Some(RecordBody::ToolCall(call)) => {
                call.writes.into_iter().flatten().map(|write| write.before).collect()
            }
            Some(RecordBody::PutBack(put_back)) => {
                let changed = put_back.files.into_iter().filter(|file| file.before != file.after);
                changed.map(|file| file.before).collect()
            }
            _ => Vec::new(),
        };
        for state in states {
            if let FileState::Hash(hash) = state {
                named.entry(hash.to_string()).or_insert((seq, true));
            }
        }
    }
    Ok(named)
}

/// Compares the entries of the catalog with those of the log, as far as there are both.
fn compared(session: &OpenSession, hint: Option<&OpenHint>) -> CatalogView {
    let Some(hint) = hint else { return CatalogView::Unknown };
    let (entries, keys) = (session.state.entries(), session.state.keys());
    let n_entries = entries.len().min(hint.entries.len());
    let n_keys = keys.len().min(hint.keys.len());
    match entries[..n_entries] == hint.entries[..n_entries] && keys[..n_keys] == hint.keys[..n_keys]
    {
        true => CatalogView::Agrees,
        false => CatalogView::Differs,
    }
}
