//! The memory that all connections together spend on large frames and on unread responses.
//!
//! A connection always may hold a small frame, so small calls go on whatever other clients do. A larger frame needs a
//! place first, and until it has one the daemon does not read on: the client waits. Places are counted in two sizes, and
//! a frame that waits for a large place keeps its medium one. A frame in a large place never waits for anything, so every
//! waiting frame gets its place in the end.
//!
//! **Invariants**: the places of all frames together never exceed [`MEDIUM_PLACES`] and [`LARGE_PLACES`]; a frame that
//! is not complete in time loses its place.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bytes of an unfinished frame that need no place. Nearly all calls are smaller; 1,024 connections together hold at most
/// 64 MiB of them.
const SMALL_BYTES: usize = 64 * 1024;
/// Bytes of a frame in a medium place.
const MEDIUM_BYTES: usize = 1024 * 1024;
/// Number of medium places: 16 MiB.
const MEDIUM_PLACES: usize = 16;
/// Number of large places, each for a frame of the largest size: 48 MiB. An import sends frames of 2 to 12 MiB one after
/// the other, so three of them run at full speed.
const LARGE_PLACES: usize = 3;

/// The time in which a frame in a place must be complete. A client on the same machine sends the largest frame in
/// milliseconds.
const FRAME_LIMIT: Duration = Duration::from_secs(30);
/// The longest pause of a client within a frame while other frames wait for a place.
const FRAME_PAUSE: Duration = Duration::from_secs(2);

/// Bytes of responses of all connections that were not written yet, from which on no more are made for a client that
/// already leaves some unread. Twelve pages of the largest usual size.
const UNREAD_BYTES: usize = 64 * 1024 * 1024;

/// The memory of all connections; clones share it.
#[derive(Clone)]
pub(super) struct ConnectionMemory {
    medium: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// The number of frames that wait for a place.
    n_waiting: Arc<AtomicUsize>,
    /// Bytes of responses that were made and not written yet.
    unread: Arc<AtomicUsize>,
}

impl Default for ConnectionMemory {
    fn default() -> Self {
        Self {
            medium: Arc::new(Semaphore::new(MEDIUM_PLACES)),
            large: Arc::new(Semaphore::new(LARGE_PLACES)),
            n_waiting: Arc::default(),
            unread: Arc::default(),
        }
    }
}

impl ConnectionMemory {
    /// Returns whether the unread responses of all connections take too much memory.
    pub(super) fn is_pressed(&self) -> bool {
        self.unread.load(Ordering::Relaxed) > UNREAD_BYTES
    }

    /// Counts a response until the result is dropped.
    pub(super) fn count_unread(&self, bytes: usize) -> UnreadBytes {
        self.unread.fetch_add(bytes, Ordering::Relaxed);
        UnreadBytes { total: Arc::clone(&self.unread), bytes }
    }
}

/// The bytes of a response that was not written yet.
pub(super) struct UnreadBytes {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The place of a complete frame, held until its call is done.
pub(super) struct FramePlace {
    _medium: Option<OwnedSemaphorePermit>,
    _large: Option<OwnedSemaphorePermit>,
}

/// The place of the unfinished frame of one connection.
pub(super) struct FrameRoom {
    memory: ConnectionMemory,
    medium: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
    /// A place that is waited for; kept between two calls of [`FrameRoom::wait`], so that the frame keeps its turn.
    waiting: Option<Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>>,
    /// The time when the frame got its place, and when its newest bytes came.
    since: Instant,
    newest: Instant,
}

impl FrameRoom {
    pub(super) fn new(memory: ConnectionMemory) -> Self {
        let now = Instant::now();
        Self { memory, medium: None, large: None, waiting: None, since: now, newest: now }
    }

    /// Returns whether more bytes may be read behind the `held` bytes of an unfinished frame.
    pub(super) fn has_room(&self, held: usize) -> bool {
        held <= self.bytes()
    }

    /// Returns whether the frame has a place, so that it must be complete in time.
    pub(super) fn is_taken(&self) -> bool {
        self.medium.is_some()
    }

    /// Waits for a place for a frame of more than `held` bytes. Cancel safe: the frame keeps its turn.
    pub(super) async fn wait(&mut self, held: usize) {
        while !self.has_room(held) {
            let places =
                if self.medium.is_none() { &self.memory.medium } else { &self.memory.large };
            let waiting = self.waiting.get_or_insert_with(|| {
                let places = Arc::clone(places);
                let turn = WaitingFrame::new(&self.memory.n_waiting);
                Box::pin(async move {
                    let _turn = turn;
                    places.acquire_owned().await.ok()
                })
            });
            let permit = waiting.await;
            self.waiting = None;
            // The semaphores are never closed.
            let Some(permit) = permit else { return };
            let place = if self.medium.is_none() { &mut self.medium } else { &mut self.large };
            *place = Some(permit);
            self.since = Instant::now();
            self.newest = self.since;
        }
    }

    /// Notes that bytes of the frame came.
    pub(super) fn note_bytes(&mut self) {
        self.newest = Instant::now();
    }

    /// Returns whether the frame has held its place for too long.
    pub(super) fn is_overdue(&self) -> bool {
        let is_wanted = self.memory.n_waiting.load(Ordering::Relaxed) > 0;
        // The daemon does not read a frame that waits, so its client is not to blame.
        self.is_taken()
            && self.waiting.is_none()
            && (self.since.elapsed() >= FRAME_LIMIT
                || (is_wanted && self.newest.elapsed() >= FRAME_PAUSE))
    }

    /// Returns the place of a frame that is complete or given up. The next frame begins without one.
    pub(super) fn take(&mut self) -> FramePlace {
        FramePlace { _medium: self.medium.take(), _large: self.large.take() }
    }

    /// Returns the bytes that the place has room for.
    fn bytes(&self) -> usize {
        match (&self.medium, &self.large) {
            (_, Some(_)) => usize::MAX,
            (Some(_), None) => MEDIUM_BYTES,
            (None, None) => SMALL_BYTES,
        }
    }
}

/// Counts a waiting frame until it is dropped.
struct WaitingFrame(Arc<AtomicUsize>);

impl WaitingFrame {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for WaitingFrame {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a frame of this size gets its place without waiting.
    async fn gets_place(room: &mut FrameRoom, held: usize) -> bool {
        tokio::time::timeout(Duration::from_millis(1), room.wait(held)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn small_frames_need_no_place_and_large_ones_wait() {
        let memory = ConnectionMemory::default();
        let mut large: Vec<_> = (0..LARGE_PLACES).map(|_| FrameRoom::new(memory.clone())).collect();
        for room in &mut large {
            assert!(!room.has_room(MEDIUM_BYTES + 1));
            assert!(gets_place(room, MEDIUM_BYTES + 1).await);
        }
        let mut other = FrameRoom::new(memory.clone());
        assert!(!gets_place(&mut other, MEDIUM_BYTES + 1).await, "all large places are taken");
        assert!(other.has_room(MEDIUM_BYTES), "it keeps its medium place");
        assert!(FrameRoom::new(memory).has_room(SMALL_BYTES));
        drop(large.pop());
        assert!(gets_place(&mut other, MEDIUM_BYTES + 1).await);
        drop(other.take());
        assert!(!other.is_taken());
    }

    #[tokio::test(start_paused = true)]
    async fn frame_is_overdue_sooner_while_others_wait() {
        let memory = ConnectionMemory::default();
        let mut room = FrameRoom::new(memory.clone());
        tokio::time::advance(FRAME_LIMIT * 2).await;
        assert!(!room.is_overdue(), "a frame without a place has all the time");
        room.wait(SMALL_BYTES + 1).await;
        tokio::time::advance(FRAME_PAUSE * 2).await;
        assert!(!room.is_overdue());
        let waiting = WaitingFrame::new(&memory.n_waiting);
        assert!(room.is_overdue());
        room.note_bytes();
        assert!(!room.is_overdue(), "its client still sends");
        drop(waiting);
        tokio::time::advance(FRAME_LIMIT).await;
        assert!(room.is_overdue());
    }

    #[test]
    fn unread_responses_press_until_they_are_dropped() {
        let memory = ConnectionMemory::default();
        let first = memory.count_unread(UNREAD_BYTES);
        assert!(!memory.is_pressed());
        let second = memory.count_unread(1);
        assert!(memory.is_pressed());
        drop((first, second));
        assert!(!memory.is_pressed());
    }
}
