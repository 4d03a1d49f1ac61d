//! The changes of a log: its creation, appends, and what a crash or a failed write makes necessary before them.
//!
//! FORMAT.md, "Writing and durability", has the steps in their order.

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::{LogWriter, SessionCell};
use crate::error_chain::with_sources;
use crate::fsutil::{self, TemporaryName};
use crate::session::error::{LogError, SessionError};
use crate::session::index::ScanPoint;
use crate::session::log::{LogFile, LogReader, rewrite};
use crate::session::open_session::OpenSession;
use crate::session::plan::WritePlan;

/// Bytes of a torn tail that are copied at once. A tail can have any size if another program appended to the log.
const COPY_BYTES: usize = 256 * 1024;

/// A log that is open for writing, and for reading if it is new. A draft has none.
type WrittenLog = (Option<Box<dyn LogFile>>, Option<LogReader>);

impl SessionCell {
    /// Makes the bytes of a plan durable, in a new log if there is none, and returns the log.
    ///
    /// Until the caller says otherwise the log counts as failed, so that nothing is appended after bytes that the fold
    /// does not know.
    pub(super) fn make_durable(
        &self,
        writer: &mut LogWriter,
        plan: &WritePlan,
    ) -> Result<WrittenLog, LogError> {
        if plan.is_birth {
            let (log, reader) = self.create_log(writer, &plan.bytes)?;
            return Ok((Some(log), Some(reader)));
        }
        let Some(mut log) = writer.log.take() else { return Ok((None, None)) };
        writer.has_failed = true;
        if !plan.bytes.is_empty() {
            let path = self.shared.paths.log(self.id);
            log.append(&plan.bytes).map_err(|source| LogError::io("append to", &path, source))?;
            log.sync().map_err(|source| LogError::io("sync", &path, source))?;
            self.shared.n_syncs.fetch_add(1, Ordering::Relaxed);
        }
        Ok((Some(log), None))
    }

    /// Creates a log with its first bytes. It has its name only when they are durable, so no crash leaves a part of them.
    fn create_log(
        &self,
        writer: &mut LogWriter,
        bytes: &[u8],
    ) -> Result<(Box<dyn LogFile>, LogReader), LogError> {
        let path = self.shared.paths.log(self.id);
        let path = path.as_path();
        let fail = |attempt| move |source| LogError::io(attempt, path, source);
        let unnamed = fsutil::temporary_beside(path);
        let create = || (self.shared.open_file)(&unnamed, true).map_err(fail("create"));
        let mut log = self.shared.with_descriptors(create)?;
        let temporary = TemporaryName::of(unnamed.clone());
        log.append(bytes).map_err(fail("write"))?;
        log.sync().map_err(fail("sync"))?;
        self.shared.n_syncs.fetch_add(1, Ordering::Relaxed);
        let reader = self.shared.with_descriptors(|| Ok(LogReader::open(&unnamed)?))?;
        // A log that is there already belongs to another session with this id, which somebody put there.
        log.rename_new(path).map_err(fail("name"))?;
        temporary.was_renamed();
        writer.has_failed = true;
        let dir = &self.shared.paths.dir;
        self.shared.with_descriptors(|| Ok(fsutil::sync_dir(dir)?))?;
        Ok((log, reader.renamed(path)))
    }

    /// Removes what a failed write left, so that no later reader takes it for records whose callers were told that they
    /// were written. If that fails too, the next write tries it again.
    pub(super) fn take_back(&self, writer: &mut LogWriter) {
        writer.log = None;
        if let Err(error) = self.open_writer(writer) {
            tracing::error!(session = %self.id, "a failed write stays: {}", with_sources(&error));
        }
    }

    /// Prepares a write: opens an existing log, and removes the bytes of a failed write.
    pub(super) fn open_writer(&self, writer: &mut LogWriter) -> Result<(), SessionError> {
        if writer.log.is_some() {
            return Ok(());
        }
        let (is_draft, point, unsynced) = {
            let open = self.open.read();
            let Some(session) = open.as_ref() else {
                return Err(SessionError::NotFound { id: self.id });
            };
            (session.draft.is_some(), session.state.point(), session.unsynced())
        };
        if is_draft {
            if writer.has_failed {
                self.remove_unacknowledged().map_err(|error| SessionError::log(self.id, &error))?;
            }
        } else {
            let path = self.shared.paths.log(self.id);
            let unsynced = unsynced.unwrap_or(point.bytes..point.bytes);
            let reopen = || self.reopen_log(&path, (point, unsynced.clone()), writer.has_failed);
            let reopened = self.shared.with_descriptors(reopen);
            writer.log = Some(reopened.map_err(|error| SessionError::log(self.id, &error))?);
        }
        writer.has_failed = false;
        if let Some(session) = self.open.write().as_mut() {
            session.unsynced_from = None;
        }
        Ok(())
    }

    /// Removes the log whose first write failed after it had its name.
    fn remove_unacknowledged(&self) -> Result<(), LogError> {
        fsutil::remove_file(&self.shared.paths.log(self.id))?;
        self.shared.with_descriptors(|| Ok(fsutil::sync_dir(&self.shared.paths.dir)?))
    }

    /// Opens a log for writing, truncates it to `point`, and makes the part durable that this process did not sync. Saves
    /// the torn tail first, unless a failed write left it.
    fn reopen_log(
        &self,
        path: &Path,
        (point, unsynced): (ScanPoint, Range<u64>),
        after_failure: bool,
    ) -> Result<Box<dyn LogFile>, LogError> {
        let fail = |source| LogError::io("open for writing", path, source);
        let mut log = (self.shared.open_file)(path, false).map_err(fail)?;
        let len = log.len().map_err(fail)?;
        if len < point.bytes {
            let shrank = std::io::Error::other("the file is shorter than what was acknowledged");
            *self.open.write() = None;
            return Err(LogError::io("continue", path, shrank));
        }
        if len > point.bytes {
            if !after_failure {
                self.save_torn_tail(log.as_ref(), path, point.bytes..len)?;
            }
            log.truncate(point.bytes).map_err(|source| LogError::io("cut", path, source))?;
        }
        // A crash may have left data in the system's cache only: bytes of the log, the names of the log and of its
        // blobs. They must be durable before a record claims that they are.
        rewrite(path, unsynced)?;
        log.sync().map_err(|source| LogError::io("sync", path, source))?;
        self.sync_names()?;
        Ok(log)
    }

    /// Makes the names of the log and of its blobs durable.
    fn sync_names(&self) -> Result<(), LogError> {
        let blobs = self.shared.paths.blobs(self.id);
        if blobs.exists() {
            fsutil::sync_dir(&blobs)?;
        }
        Ok(fsutil::sync_dir(&self.shared.paths.dir)?)
    }

    /// Makes the records durable that were read and not written by this process: one that was killed may have left them
    /// in the system's cache only, even after a sync that failed. Changes no byte, except that it removes what a failed
    /// write left. Blocks on the disk.
    pub(in crate::session) fn sync(&self) -> Result<(), SessionError> {
        let mut writer = self.writer.lock();
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.ensure_open()?;
        if writer.has_failed {
            return self.open_writer(&mut writer);
        }
        self.peek(|session| session.unsynced().map(|part| (part, session.log())))
            .flatten()
            .map_or(Ok(()), |(part, log)| self.sync_part(part, log.as_deref()))?;
        if let Some(session) = self.open.write().as_mut() {
            session.unsynced_from = None;
        }
        Ok(())
    }

    /// Makes the records durable that a reader found in the log without opening the session here. Returns whether the log
    /// still has them. Blocks on the disk.
    pub(in crate::session) fn sync_read(&self, read: &OpenSession) -> Result<bool, SessionError> {
        // No write is under way while the lock is held, and no deletion empties the log.
        let _writer = self.writer.lock();
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        let end = read.state.point().bytes;
        let is_synced = |open: &OpenSession| {
            open.unsynced_from.is_none() && open.draft.is_none() && open.state.point().bytes >= end
        };
        if !read.is_current().map_err(|error| SessionError::fs(self.id, &error))? {
            return Ok(false);
        }
        if self.peek(is_synced) != Some(true)
            && let Some(part) = read.unsynced()
        {
            self.sync_part(part, read.log().as_deref())?;
        }
        Ok(true)
    }

    /// Returns how many bytes of the log follow its last record, which is that in memory or else ends at `end`. Waits for
    /// a running write.
    pub(in crate::session) fn bytes_behind(&self, end: u64) -> Result<u64, SessionError> {
        let _writer = self.writer.lock();
        let end = self.peek(|session| session.state.point().bytes).unwrap_or(end);
        let open = || Ok(LogReader::open(&self.shared.paths.log(self.id))?.len()?);
        let len = self.shared.with_descriptors(open);
        len.map(|len| len.saturating_sub(end)).map_err(|error| SessionError::log(self.id, &error))
    }

    /// Makes a part of the log durable, together with all names.
    fn sync_part(&self, part: Range<u64>, log: Option<&LogReader>) -> Result<(), SessionError> {
        let path = self.shared.paths.log(self.id);
        let sync = || {
            rewrite(&path, part.clone())?;
            log.map_or(Ok(()), LogReader::sync)?;
            self.sync_names()
        };
        let synced = self.shared.with_descriptors(sync);
        synced.map_err(|error| SessionError::log(self.id, &error))
    }

    fn save_torn_tail(
        &self,
        log: &dyn LogFile,
        path: &Path,
        tail: Range<u64>,
    ) -> Result<(), LogError> {
        let aside = self.shared.paths.torn(self.id, self.shared.clock.now());
        let mut unreadable = None;
        let copied = fsutil::replace_with(&aside, |out| {
            let mut buffer = vec![0; COPY_BYTES];
            for start in tail.clone().step_by(COPY_BYTES) {
                let len = usize::try_from(tail.end - start).unwrap_or(usize::MAX).min(COPY_BYTES);
                let chunk = &mut buffer[..len];
                log.read_at(chunk, start).map_err(|source| {
                    let kind = source.kind();
                    unreadable = Some(source);
                    io::Error::from(kind)
                })?;
                out.write_all(chunk)?;
            }
            Ok(())
        });
        if let Some(source) = unreadable {
            return Err(LogError::io("read the torn tail of", path, source));
        }
        copied?;
        tracing::warn!(session = %self.id, bytes = tail.end - tail.start, "cut a torn tail");
        Ok(())
    }
}
