//! An examination of all files of one session: every line, every blob, and what the catalog says of the log.
//!
//! An examination changes nothing, and reads every line and every blob, whatever the catalog and the session in memory say of
//! them. Both are believed in one respect: records that they know and the log lacks were lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ollm_protocol::content::{FileState, Record, Session};
use ollm_protocol::{Seq, SessionId};
use serde::Deserialize;

use super::copies::SessionCopy;
use super::error::SessionError;
use super::index::{IndexEntry, OpenHint, own_header};
use super::kept_files::earlier_states;
use super::log::{self, LogReader};
use super::open_session::{OpenSession, RecordReader};
use super::store::Sessions;
use crate::fsutil::FsError;

/// The result of an examination.
pub(crate) struct SessionExam {
    /// The session as lists show it.
    pub(crate) summary: Session,
    pub(crate) records: u64,
    /// The size of the log up to the end of its last record.
    pub(crate) log_bytes: u64,
    /// The bytes behind the last record: of a write that did not finish, or of a damaged record.
    pub(crate) torn_bytes: u64,
    /// The records that are lost, with the positions of their lines.
    pub(crate) lost: Vec<(Seq, u64)>,
    /// The number of bad places in which no record is lost.
    pub(crate) bad_places: u64,
    /// The number of records that are known and that the log lacks at its end.
    pub(crate) missing: u64,
    /// Set if bytes behind the last record are of records that were acknowledged.
    pub(crate) is_end_damaged: bool,
    pub(crate) blobs: Vec<BlobFault>,
    pub(crate) catalog: CatalogView,
}

impl SessionExam {
    /// Returns whether records are lost, or a part of one.
    pub(crate) fn has_loss(&self) -> bool {
        let is_record = |fault: &BlobFault| fault.seq.is_some() && !fault.is_of_file;
        self.summary.damaged_records > 0
            || self.missing > 0
            || self.is_end_damaged
            || self.bad_places > 0
            || !self.lost.is_empty()
            || self.blobs.iter().any(is_record)
    }
}

/// A blob that is not as it was written.
pub(crate) struct BlobFault {
    pub(crate) name: String,
    pub(crate) damage: BlobDamage,
    /// The first record that needs it; `None` if none is known to.
    pub(crate) seq: Option<Seq>,
    /// Set if it is the earlier content of a file, without which the record is whole.
    pub(crate) is_of_file: bool,
}

/// A damage of a blob.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlobDamage {
    /// There is no such file.
    #[error("is missing")]
    Missing,
    /// The content is not the one that was written.
    #[error("has another content than its name says")]
    Altered,
    /// The system could not read the file.
    #[error("cannot be read")]
    Unreadable(#[source] FsError),
}

/// The catalog's entries of a session, compared with its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatalogView {
    /// The same, or less.
    Agrees,
    Unknown,
    Differs,
}

/// The blobs that records name, each with the first record, and whether it is the content of a file.
pub(super) type NamedBlobs = BTreeMap<String, (Seq, bool)>;

impl Sessions {
    /// Examines a session. `advance` is called with bytes that were read. Blocks on the disk.
    ///
    /// **Errors**: `NotFound`, `UpgradeRequired`, `Storage`, and those of `advance`.
    pub(crate) fn examine<E: From<SessionError>>(
        &self,
        id: SessionId,
        advance: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<SessionExam, E> {
        // Read before the log, which must have everything that the catalog knew before.
        let hint = self.shared.hint(id);
        let acknowledged = self.files(id)?;
        let path = self.shared.paths.log(id);
        let blobs = self.shared.paths.blobs(id);
        let open = || {
            let log = LogReader::open(&path)?.limited_to(acknowledged.log_bytes);
            OpenSession::open(id, log, blobs.clone(), None, acknowledged.records)
        };
        let opened = self.shared.with_descriptors(open);
        let (session, end) = opened.map_err(|error| SessionError::log(id, &error))?;
        advance(acknowledged.log_bytes)?;
        let torn_bytes = self.with_cell_of_log(id, |cell| cell.bytes_behind(end.point.bytes))?;
        let lost: Vec<_> =
            session.state.entries().iter().zip(0..).filter_map(lost_record).collect();
        let named = named_blobs(session.state.entries(), &session.reader(), &blobs);
        let named = named.map_err(|error| SessionError::fs(id, &error))?;
        let faults = blob_faults(&acknowledged, &named, advance)?;
        let (missing, is_damaged) = loss_at_end(&session, acknowledged.records, hint.as_ref());
        // A record of which only the beginning is left is a bad place too.
        let places_at_end = u64::from(missing > 0 && end.torn_bytes > 0);
        Ok(SessionExam {
            summary: acknowledged.summary,
            records: end.point.records,
            log_bytes: end.point.bytes,
            torn_bytes,
            bad_places: end.damaged_places.saturating_sub(lost.len() as u64 + places_at_end),
            lost,
            missing,
            is_end_damaged: is_damaged && torn_bytes > 0,
            blobs: faults,
            catalog: compared(&session, hint.as_ref()),
        })
    }
}

fn lost_record((entry, seq): (&IndexEntry, u64)) -> Option<(Seq, u64)> {
    entry.is_damaged().then_some((Seq(seq), entry.offset))
}

/// The parts of a stored fold that say what the log had lost when it was read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredLoss {
    /// The damaged records.
    damaged: u64,
    /// The records that were missing at the end.
    missing: u64,
}

/// Returns the number of known records that a log lacks at its end, and whether damage is known that is not before its end.
///
/// `n_acknowledged`: the number of records that the session has in memory or had in its log a moment ago.
fn loss_at_end(session: &OpenSession, n_acknowledged: u64, hint: Option<&OpenHint>) -> (u64, bool) {
    let entries = session.state.entries();
    let n_lacking = |n_known: u64| n_known.saturating_sub(entries.len() as u64);
    let Some(hint) = hint.filter(|hint| is_of_same_log(hint, entries)) else {
        return (n_lacking(n_acknowledged), false);
    };
    let missing = n_lacking(n_acknowledged.max(hint.entries.len() as u64));
    // A later record of a client ends what is known to be missing.
    if !entries.iter().skip(hint.entries.len()).all(IndexEntry::is_of_log) {
        return (missing, false);
    }
    let stored: StoredLoss = serde_json::from_slice(&hint.carry).unwrap_or_default();
    (missing + stored.missing, stored.damaged > session.state.n_damaged())
}

/// Returns whether a hint is of this log, which may have lost its end, and not of another one by the same name.
fn is_of_same_log(hint: &OpenHint, entries: &[IndexEntry]) -> bool {
    let line = |entry: &IndexEntry| (entry.offset, entry.len);
    let last = entries.len().min(hint.entries.len()).checked_sub(1);
    last.is_some_and(|last| line(&entries[last]) == line(&hint.entries[last]))
}

/// Reads all blobs, those that records name and those that are there, and returns those that are not as they were written.
fn blob_faults<E>(
    acknowledged: &SessionCopy,
    named: &NamedBlobs,
    advance: &mut dyn FnMut(u64) -> Result<(), E>,
) -> Result<Vec<BlobFault>, E> {
    // If the directory cannot be listed, those that records name are still tried one by one.
    let listed = acknowledged.blob_names().unwrap_or_default();
    let names: BTreeSet<String> = listed.into_iter().chain(named.keys().cloned()).collect();
    let mut faults = Vec::new();
    for name in names {
        let damage = match acknowledged.read_blob(&name) {
            Ok(Some(bytes)) => {
                advance(bytes.len() as u64)?;
                let is_whole = blake3::hash(&bytes).to_hex().as_str() == name;
                (!is_whole).then_some(BlobDamage::Altered)
            }
            Ok(None) => named.contains_key(&name).then_some(BlobDamage::Missing),
            Err(error) => Some(BlobDamage::Unreadable(error)),
        };
        let user = named.get(&name).copied();
        let (seq, is_of_file) = user.map_or((None, true), |(seq, is_file)| (Some(seq), is_file));
        faults.extend(damage.map(|damage| BlobFault { name, damage, seq, is_of_file }));
    }
    Ok(faults)
}

/// Returns the blobs that records name.
///
/// **Errors**: the log could not be read.
pub(super) fn named_blobs(
    entries: &[IndexEntry],
    reader: &RecordReader,
    blobs: &Path,
) -> Result<NamedBlobs, FsError> {
    // Contents of files from before a fork stay with the other session.
    let own_from = own_header(entries);
    let mut named = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let seq = Seq(at as u64);
        let has_blobs = entry.has(IndexEntry::HAS_BLOBS);
        let has_contents = entry.names_files() && at >= own_from;
        if !has_blobs && !has_contents {
            continue;
        }
        let Some(line) = reader.line(*entry)? else { continue };
        if has_blobs {
            for name in log::line_blobs(&line) {
                named.entry(name).or_insert((seq, false));
            }
        }
        if has_contents {
            // A blob of the line that cannot be read is found when all blobs are read.
            let record = log::decode_line(&line, blobs).unwrap_or_default();
            for name in file_contents(record) {
                named.entry(name).or_insert((seq, true));
            }
        }
    }
    Ok(named)
}

/// Returns the names of the blobs with the earlier contents of the files that a record changed.
fn file_contents(record: Option<Record>) -> Vec<String> {
    let Some(mut body) = record.and_then(Record::into_body) else { return Vec::new() };
    let hash_of = |(_, state): (&str, &mut FileState)| match state {
        FileState::Hash(hash) => Some(hash.to_string()),
        _ => None,
    };
    earlier_states(&mut body).into_iter().filter_map(hash_of).collect()
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use ollm_protocol::content::{MetaPatch, RecordBody, SessionHeader};

    use super::*;
    use crate::clock::Clock;
    use crate::session::index::{
        HintSource, IndexProgress, IndexSource as _, IndexUpdate, UpdateScope,
    };
    use crate::session::write::{NewRecord, NewSession};

    /// A catalog that knows one session.
    struct FixedHint(OpenHint);

    impl HintSource for FixedHint {
        fn hint(&self, _: SessionId) -> Option<OpenHint> {
            Some(self.0.clone())
        }
    }

    fn opened(dir: &Path, hint: Option<OpenHint>) -> Sessions {
        let sessions = Sessions::new(dir.to_owned(), Arc::new(Clock::system()), Arc::new(()));
        if let Some(hint) = hint {
            sessions.set_hints(Arc::new(FixedHint(hint)));
        }
        sessions
    }

    /// Returns what a catalog stores that reads the log.
    fn learned(sessions: &Sessions, id: SessionId, known: IndexProgress) -> OpenHint {
        let update = sessions.update(id, known, UpdateScope::New);
        let update = update.expect("reads").expect("has a log");
        let IndexUpdate { point, entries, keys, carry, .. } = update;
        OpenHint { point, entries, keys, carry }
    }

    /// Returns the missing records, whether the end is damaged, and the bytes there.
    fn end_of(sessions: &Sessions, id: SessionId) -> (u64, bool, u64) {
        let exam = sessions.examine::<SessionError>(id, &mut |_| Ok(())).expect("examines");
        assert_eq!((exam.lost.len(), exam.bad_places, exam.blobs.len()), (0, 0, 0));
        let has_loss = exam.missing > 0 || exam.is_end_damaged;
        assert_eq!(exam.has_loss(), has_loss);
        (exam.missing, exam.is_end_damaged, exam.torn_bytes)
    }

    #[test]
    fn lost_end_is_found_before_and_after_the_catalog_reads_the_log_again() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let dir = dir.path();
        let clock = Clock::system();
        let header = SessionHeader::new(clock.session_id(), clock.now());
        let id = header.session_id;
        let first = opened(dir, None);
        first.create(NewSession { header, key: None }).expect("creates");
        for _ in 0..5 {
            let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
            first.append(id, vec![record], None).expect("queues").wait().expect("records");
        }
        let known = learned(&first, id, IndexProgress::default());
        assert_eq!(end_of(&opened(dir, Some(known.clone())), id), (0, false, 0));
        let start = known.entries[3].offset;
        let log = File::options().write(true).open(first.shared.paths.log(id)).expect("opens");
        let progress = IndexProgress { point: known.point, keys: 0 };
        for (left, before, after) in
            [(10, (3, false, 10), (0, true, 10)), (0, (3, false, 0), (3, false, 0))]
        {
            log.set_len(start + left).expect("cuts");
            let sessions = opened(dir, Some(known.clone()));
            assert_eq!(end_of(&sessions, id), before, "{left} bytes are left");
            let again = learned(&sessions, id, progress);
            assert_eq!(again.entries.len(), 3);
            assert_eq!(end_of(&opened(dir, Some(again)), id), after, "{left} bytes are left");
            // An open session that the log was cut under knows its records.
            assert_eq!(end_of(&first, id).0, 3, "{left} bytes are left");
        }
    }
}
