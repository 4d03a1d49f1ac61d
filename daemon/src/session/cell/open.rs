//! Opening a session's fold and file, and cutting what was never acknowledged.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::{Cell, Writer};
use crate::fsutil;
use crate::session::index::ScanPoint;
use crate::session::live::Live;
use crate::session::log::LogError;
use crate::session::log::file::LogFile;
use crate::session::{Change, SessionError};

impl Cell {
    /// Opens the fold where it is not; the writer's lock is held, so that nobody opens it twice.
    pub(super) fn open_locked(&self) -> Result<(), SessionError> {
        if self.live.read().is_some() {
            return Ok(());
        }
        let path = self.shared.paths.log(self.id);
        if !path.exists() {
            return Err(SessionError::NotFound { id: self.id });
        }
        let hint = self.shared.hint(self.id);
        let live = Live::open(self.id, &path, self.shared.paths.blobs(self.id), hint, 0)
            .map_err(|error| SessionError::log(self.id, &error))?;
        if live.state.point().records == 0 {
            self.shared.set_aside_stillborn(self.id);
            return Err(SessionError::NotFound { id: self.id });
        }
        let (torn_bytes, damaged) = (live.torn_bytes, live.damaged_places);
        *self.live.write() = Some(live);
        if torn_bytes > 0 || damaged > 0 {
            self.shared.observer.changed(self.id, &Change::Recovered { torn_bytes, damaged });
        }
        Ok(())
    }

    /// Opens the file for writing where it is not, and cuts what was never acknowledged.
    pub(super) fn open_writer(&self, writer: &mut Writer) -> Result<(), SessionError> {
        if writer.log.is_some() {
            return Ok(());
        }
        let (is_draft, point) = {
            let live = self.live.read();
            let Some(live) = live.as_ref() else {
                return Err(SessionError::NotFound { id: self.id });
            };
            (live.birth.is_some(), live.state.point())
        };
        let path = self.shared.paths.log(self.id);
        let opened = if is_draft {
            let created = self.create_log(&path, writer.cut_to.is_some());
            created.and_then(|log| {
                let reader = File::open(&path);
                writer.reader = Some(reader.map_err(|source| LogError::io("open", &path, source))?);
                Ok(log)
            })
        } else {
            self.reopen_log(&path, point, writer.cut_to.is_some())
        };
        writer.log = Some(opened.map_err(|error| SessionError::log(self.id, &error))?);
        writer.cut_to = None;
        Ok(())
    }

    fn create_log(&self, path: &Path, ours: bool) -> Result<Box<dyn LogFile>, LogError> {
        let fail = |source| LogError::io("create", path, source);
        let create = !(ours && path.exists());
        let mut log = (self.shared.open_file)(path, create).map_err(fail)?;
        if !create {
            log.truncate(0).map_err(|source| LogError::io("cut", path, source))?;
        }
        Ok(log)
    }

    fn reopen_log(
        &self,
        path: &Path,
        point: ScanPoint,
        after_failure: bool,
    ) -> Result<Box<dyn LogFile>, LogError> {
        let fail = |source| LogError::io("open for writing", path, source);
        let mut log = (self.shared.open_file)(path, false).map_err(fail)?;
        let len = log.len().map_err(fail)?;
        if len < point.bytes {
            let shrank = std::io::Error::other("the file is shorter than what was acknowledged");
            *self.live.write() = None;
            return Err(LogError::io("continue", path, shrank));
        }
        if len > point.bytes {
            if !after_failure {
                self.save_torn_tail(log.as_ref(), path, point.bytes..len)?;
            }
            log.truncate(point.bytes).map_err(|source| LogError::io("cut", path, source))?;
        }
        // What a crash left in the system's cache becomes durable before a record claims that it is: the bytes,
        // and the names of the log and of its blobs.
        log.sync().map_err(|source| LogError::io("sync", path, source))?;
        let blobs = self.shared.paths.blobs(self.id);
        if blobs.exists() {
            fsutil::sync_dir(&blobs)?;
        }
        fsutil::sync_dir(&self.shared.paths.dir)?;
        Ok(log)
    }

    fn save_torn_tail(
        &self,
        log: &dyn LogFile,
        path: &Path,
        tail: Range<u64>,
    ) -> Result<(), LogError> {
        let mut bytes = vec![0; usize::try_from(tail.end - tail.start).unwrap_or_default()];
        log.read_at(&mut bytes, tail.start)
            .map_err(|source| LogError::io("read the torn tail of", path, source))?;
        let aside = self.shared.paths.torn(self.id, self.shared.clock.now());
        fsutil::replace_atomically(&aside, &bytes)?;
        tracing::warn!(session = %self.id, bytes = bytes.len(), "cut a torn tail");
        Ok(())
    }
}
