//! Forks: a new session whose log begins with that of another one. FORMAT.md, "Forks", and its crash cases.
//!
//! The bytes of the first records are copied, or shared where the file system can do that, so numbers and checksums stay.
//! A header and a `leaf` record follow. Blobs get a second name. The log has its name only when everything else is
//! durable, so a crash leaves the whole fork or none of it.
//!
//! **Invariant**: the log that is copied is only read. The caller excludes that it is deleted meanwhile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ollm_protocol::content::{LeafMove, Record, RecordBody, Role, Session, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::error::{LogError, SessionError};
use super::index::{IndexEntry, KeyEntry, ScanPoint, ScannedRecord};
use super::log::{self, EncodedLine, LineFields, LogReader};
use super::open_session::{OpenSession, RecordReader};
use super::state::SessionState;
use super::store::Sessions;
use super::write::{IdempotencyKey, SessionChange};
use crate::fsutil::{self, DirMark, DiskFile, FsError, TemporaryName};

/// A fork to be created.
pub(crate) struct NewFork {
    /// The session to copy.
    pub source: SessionId,
    /// The last record to copy.
    pub last: Seq,
    /// The active leaf of the fork, which is copied.
    pub leaf: Seq,
    /// The header of the fork, with its id.
    pub header: SessionHeader,
    /// The key of `session.fork`.
    pub key: Option<IdempotencyKey>,
}

/// The part of a log that is copied.
struct Beginning {
    log: Arc<LogReader>,
    n_bytes: u64,
    n_records: u64,
    /// The records with blobs.
    with_blobs: Vec<IndexEntry>,
    last: IndexEntry,
    /// The time that no later record may precede.
    at: Timestamp,
    /// The fold of these records; `None` if the log is damaged, so that only a scan can tell.
    state: Option<SessionState>,
}

impl Sessions {
    /// Creates a session from the beginning of another one. Blocks on the disk.
    ///
    /// **Errors**: `NotFound`, `RecordNotFound`, `Damaged`, `Storage`; with an error, nothing of the fork is left, or the next
    /// fork removes it.
    pub(crate) fn fork(&self, fork: NewFork) -> Result<Session, SessionError> {
        let id = fork.header.session_id;
        let mut failed = self.shared.failed_forks.lock();
        while let Some(failed_id) = failed.last().copied() {
            self.take_back_fork(failed_id)
                .map_err(|error| SessionError::fs(fork.source, &error))?;
            failed.pop();
        }
        let now = self.shared.clock.now();
        let beginning = self.with(fork.source, |live| beginning(live, &fork, now))??;
        let blobs = self.shared.paths.blobs(id);
        let created = self.shared.with_descriptors(|| self.create_fork(&fork, &beginning));
        let (records, end, log) = created.map_err(|error| {
            if let Err(error) = self.take_back_fork(id) {
                tracing::warn!(session = %id, "a failed fork is removed later: {error}");
                failed.push(id);
            }
            SessionError::log(fork.source, &error)
        })?;
        drop(failed);
        self.shared.n_records.fetch_add(records.len() as u64, Ordering::Relaxed);
        self.shared.n_syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(mut state) = beginning.state {
            records.iter().for_each(|record| state.apply(record));
            state.set_point(end);
            self.insert_open(id, OpenSession::created(state, log, blobs));
        }
        let session = self.summary(id)?;
        self.shared.observer.changed(id, &SessionChange::Created(&session));
        Ok(session)
    }

    /// Removes the files of a failed fork: the log first, because a log must never be without its blobs. The next start
    /// removes blobs that cannot be removed now, which are marked. If the log cannot be removed, the whole fork stays.
    fn take_back_fork(&self, id: SessionId) -> Result<(), FsError> {
        let paths = &self.shared.paths;
        fsutil::remove_file(&paths.log(id))?;
        fsutil::sync_dir(&paths.dir)?;
        fsutil::remove_dir_all(&paths.blobs(id))
    }

    /// Writes the files of a fork; returns its own records and the end of its log.
    fn create_fork(
        &self,
        fork: &NewFork,
        beginning: &Beginning,
    ) -> Result<(Vec<ScannedRecord>, ScanPoint, LogReader), LogError> {
        let path = self.shared.paths.log(fork.header.session_id);
        let blobs = self.shared.paths.blobs(fork.header.session_id);
        let mark = self.link_blobs(fork.source, beginning, &blobs)?;
        let (bytes, records, end) = own_lines(fork, beginning, &blobs)?;
        let path = path.as_path();
        let fail = |attempt| move |source| LogError::io(attempt, path, source);
        let unnamed = fsutil::temporary_beside(path);
        let source = beginning.log.path();
        let copied = DiskFile::create_copy(source, beginning.n_bytes, &unnamed);
        let temporary = TemporaryName::of(unnamed.clone());
        let mut file = copied.map_err(|error| LogError::io("copy", source, error))?;
        file.append(&bytes).map_err(fail("write"))?;
        let reader = LogReader::open(&unnamed)?;
        check_copy(&reader, beginning)?;
        file.sync_all().map_err(fail("sync"))?;
        file.rename_new(path).map_err(fail("name"))?;
        temporary.was_renamed();
        fsutil::sync_dir(&self.shared.paths.dir)?;
        if let Some(mark) = mark {
            // Beside a log, the mark says nothing any more.
            drop(fsutil::remove_file(&mark));
        }
        Ok((records, end, reader.renamed(path)))
    }

    /// Gives the blobs of the copied records a name in the directory of the fork; returns the mark that it is not
    /// complete, or `None` if there are no blobs.
    fn link_blobs(
        &self,
        source: SessionId,
        beginning: &Beginning,
        blobs: &Path,
    ) -> Result<Option<PathBuf>, LogError> {
        let mut names = BTreeSet::new();
        for entry in &beginning.with_blobs {
            let mut line = vec![0; entry.len as usize];
            if beginning.log.read_exact(&mut line, entry.offset)? {
                names.extend(log::line_blobs(&line));
            }
        }
        if names.is_empty() {
            return Ok(None);
        }
        fsutil::create_private_dir(blobs)?;
        let mark = fsutil::mark_dir(blobs, DirMark::Incomplete)?.path().to_owned();
        fsutil::sync_dir(blobs)?;
        let source = self.shared.paths.blobs(source);
        for name in &names {
            // A blob that is missing is missing in both.
            fsutil::link_or_copy(&source.join(name), &blobs.join(name))?;
        }
        fsutil::sync_dir(blobs)?;
        Ok(Some(mark))
    }
}

fn beginning(
    live: &OpenSession,
    fork: &NewFork,
    now: Timestamp,
) -> Result<Beginning, SessionError> {
    let (id, seq, state) = (fork.source, fork.last, live.state());
    let log = live.log().ok_or(SessionError::RecordNotFound { id, seq })?;
    let last = state.entry(seq).ok_or(SessionError::RecordNotFound { id, seq })?;
    if last.is_damaged() {
        return Err(SessionError::Damaged { id, seq });
    }
    let n_records = usize::try_from(seq.0).unwrap_or(usize::MAX).saturating_add(1);
    let copied = &state.entries()[..n_records.min(state.entries().len())];
    Ok(Beginning {
        log,
        n_bytes: last.offset + u64::from(last.len),
        n_records: seq.0 + 1,
        with_blobs: copied
            .iter()
            .filter(|entry| entry.has(IndexEntry::HAS_BLOBS))
            .copied()
            .collect(),
        last,
        at: now.max(state.last_at().unwrap_or(now)),
        state: titled(state.beginning(fork.header.session_id, n_records), &live.reader()),
    })
}

/// Adds the title and the description that follow from the messages; `None` if one cannot be read.
fn titled(state: Option<SessionState>, reader: &RecordReader) -> Option<SessionState> {
    let mut state = state?;
    let entries = state.entries().to_vec();
    for entry in entries.iter().filter(|entry| entry.role() == Some(Role::User)) {
        let body = reader.read(*entry).ok().flatten().and_then(Record::into_body);
        let Some(RecordBody::Message(message)) = body else { return None };
        if state.name_after(&message) {
            break;
        }
    }
    Some(state)
}

/// Returns the lines that follow the copied ones, and their records.
fn own_lines(
    fork: &NewFork,
    beginning: &Beginning,
    blobs: &Path,
) -> Result<(Vec<u8>, Vec<ScannedRecord>, ScanPoint), LogError> {
    let moved = LeafMove { to: Some(fork.leaf), cause: LeafMove::FORK.to_owned() };
    let bodies = [RecordBody::Session(fork.header.clone()), RecordBody::Leaf(moved)];
    let (mut bytes, mut records) = (Vec::new(), Vec::new());
    let mut end = ScanPoint { bytes: beginning.n_bytes, records: beginning.n_records, last_crc: 0 };
    let mut key = fork.key.as_ref();
    for body in bodies {
        let seq = Seq(end.records);
        let parent = matches!(body, RecordBody::Leaf(_)).then_some(fork.leaf);
        let digest =
            key.map(|key| KeyEntry { seq: u32::try_from(seq.0).unwrap_or(u32::MAX), ..key.digest });
        let fields = LineFields {
            seq,
            parent,
            // No reader sees these lines before the copied ones are synced.
            durable: Some(Seq(beginning.n_records - 1)),
            at: beginning.at,
            tokens: None,
            key: key.take().zip(digest).map(|(key, digest)| (key.text.as_str(), digest)),
            body: &body,
        };
        let EncodedLine { len, crc, has_blobs } = log::encode_line(&fields, blobs, &mut bytes)?;
        let flags = if has_blobs { IndexEntry::HAS_BLOBS } else { 0 };
        let entry = IndexEntry::new((end.bytes, len), parent, body.kind(), None, 0, flags);
        end = ScanPoint {
            bytes: end.bytes + u64::from(len),
            records: end.records + 1,
            last_crc: crc,
        };
        let (at, body) = (beginning.at, Some(body));
        records.push(ScannedRecord { seq, at, entry, key: digest, body, lacks_body: false });
    }
    Ok((bytes, records, end))
}

/// Checks that the copy ends with the last record to copy.
fn check_copy(copy: &LogReader, beginning: &Beginning) -> Result<(), LogError> {
    let mut line = vec![0; beginning.last.len as usize];
    let is_read = copy.read_exact(&mut line, beginning.last.offset)?;
    if is_read && log::line_crc(&line).is_some() {
        return Ok(());
    }
    let damaged = std::io::Error::other("the last record to copy is damaged");
    Err(LogError::io("copy", beginning.log.path(), damaged))
}
