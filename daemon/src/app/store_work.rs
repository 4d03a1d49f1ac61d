//! Work on everything that is stored, such as a backup: one at a time, with progress, and canceled with its client.

use ollm_protocol::event::StoreProgressData;
use parking_lot::MutexGuard;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::error::{AppError, Result};
use crate::events::EventDraft;

/// The bytes between two events of progress: at most some dozens a second from a fast disk.
const PROGRESS_BYTES: u64 = 16 * 1024 * 1024;

/// Work that is under way.
pub(crate) struct StoreWork<'a> {
    core: &'a Core,
    method: &'static str,
    left: &'a CancellationToken,
    done: u64,
    total: u64,
    announced: u64,
    _one_at_a_time: MutexGuard<'a, ()>,
}

impl<'a> StoreWork<'a> {
    /// Begins the work of a method.
    ///
    /// **Errors**: `StoreBusy`.
    pub(crate) fn begin(
        core: &'a Core,
        method: &'static str,
        left: &'a CancellationToken,
    ) -> Result<Self> {
        let one_at_a_time = core.store_work.try_lock().ok_or(AppError::StoreBusy)?;
        Ok(Self {
            core,
            method,
            left,
            done: 0,
            total: 0,
            announced: 0,
            _one_at_a_time: one_at_a_time,
        })
    }

    /// Sets the number of bytes of all the work, which may be a guess.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = total;
        self.publish();
    }

    /// Counts bytes that are done.
    ///
    /// **Errors**: `StoreWorkCanceled` if the client left, or `Stopping`.
    pub(crate) fn advance(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        if self.done - self.announced >= PROGRESS_BYTES {
            self.publish();
        }
        if self.core.tasks.is_stopping() {
            return Err(AppError::Stopping);
        }
        if self.left.is_cancelled() {
            return Err(AppError::StoreWorkCanceled { method: self.method });
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.announced = self.done;
        let (method, done) = (self.method.to_owned(), self.done);
        let data = StoreProgressData { method, done, total: self.total.max(done) };
        let draft = EventDraft::new(None, None, self.core.clock.now(), &data);
        self.core.events.publish(draft);
    }
}
