//! The sending half of a connection: responses and notifications become frames, in large writes.
//!
//! **Invariants**: the waiting messages are bounded, responses by their bytes and notifications by their number; a
//! client that reads nothing for the allowed time is disconnected, and sooner while unread responses take too much memory.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ollm_protocol::frame::{Framing, encode};
use serde_json::value::RawValue;
use tokio::io::{self, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::memory::{ConnectionMemory, UnreadBytes};

/// Number of messages that wait for the writer: enough to keep it busy while the runtime does other work.
pub(super) const WAITING_MESSAGES: usize = 256;

/// Bytes of responses that wait for the writer. A larger response waits alone. This is the memory that a client holds
/// by not reading.
const WAITING_BYTES: u32 = 8 * 1024 * 1024;

/// Number of messages in one write.
const WRITE_MESSAGES: usize = 64;

/// The capacity that the buffer keeps after a write, so that an idle connection stays small.
const KEEP_BUFFER_BYTES: usize = 64 * 1024;

/// The longest time for which a client may leave messages unread while the unread responses of all clients take too much
/// memory. A client on the same machine reads the largest response in milliseconds.
const PRESSED_STALL: Duration = Duration::from_secs(2);

/// The interval at which a waiting client finds that memory is no longer scarce.
const PRESSURE_CHECK: Duration = Duration::from_millis(250);

/// A waiting response with the room that it takes.
pub(super) struct QueuedResponse {
    json: Box<RawValue>,
    _room: OwnedSemaphorePermit,
    _unread: UnreadBytes,
}

/// Hands responses to the writer; clones share the room.
#[derive(Clone)]
pub(super) struct ResponseSender {
    queue: mpsc::Sender<QueuedResponse>,
    room: Arc<Semaphore>,
    memory: ConnectionMemory,
}

impl ResponseSender {
    /// Creates the queue; [`write()`] takes the receiver.
    pub(super) fn channel(memory: ConnectionMemory) -> (Self, mpsc::Receiver<QueuedResponse>) {
        let (queue, receiver) = mpsc::channel(WAITING_MESSAGES);
        (Self { queue, room: Arc::new(Semaphore::new(WAITING_BYTES as usize)), memory }, receiver)
    }

    /// Waits for room and queues a response. A response to a closed connection is dropped.
    pub(super) async fn send(&self, json: Box<RawValue>) {
        let unread = self.memory.count_unread(json.get().len());
        let bytes = u32::try_from(json.get().len()).map_or(WAITING_BYTES, |n| n.min(WAITING_BYTES));
        // The semaphore is never closed.
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(bytes).await else { return };
        let response = QueuedResponse { json, _room: room, _unread: unread };
        drop(self.queue.send(response).await);
    }

    /// Returns whether there is room for another response. While the unread responses of all clients take too much
    /// memory, a client has room only if it has read its own.
    pub(super) fn has_room(&self) -> bool {
        let free = self.room.available_permits();
        free == WAITING_BYTES as usize || (free > 0 && !self.memory.is_pressed())
    }

    /// Waits until there is room behind all responses that wait for it. Cancel safe.
    pub(super) async fn wait_for_room(&self) {
        if self.memory.is_pressed() {
            let all_read = self.room.acquire_many(WAITING_BYTES);
            drop(tokio::time::timeout(PRESSURE_CHECK, all_read).await);
        } else {
            drop(self.room.acquire().await);
        }
    }

    /// Waits until the writer has ended. Cancel safe.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }
}

/// Writes messages until both queues are closed, then closes the sending half.
///
/// **Errors**: `TimedOut` if the client reads nothing for as long as `stall`.
pub(super) async fn write(
    mut out: impl AsyncWrite + Unpin,
    mut responses: mpsc::Receiver<QueuedResponse>,
    mut notifications: mpsc::Receiver<Box<RawValue>>,
    framing: Arc<OnceLock<Framing>>,
    stall: Duration,
    memory: ConnectionMemory,
) -> io::Result<()> {
    let (mut next_responses, mut next_notifications) = (Vec::new(), Vec::new());
    let (mut responses_open, mut notifications_open) = (true, true);
    let mut buffer = Vec::new();
    while responses_open || notifications_open {
        tokio::select! {
            n = responses.recv_many(&mut next_responses, WRITE_MESSAGES), if responses_open => {
                responses_open = n > 0;
            }
            n = notifications.recv_many(&mut next_notifications, WRITE_MESSAGES), if notifications_open => {
                notifications_open = n > 0;
            }
        }
        let framing = framing.get().copied().unwrap_or(Framing::Lines);
        let next_jsons = next_responses.iter().map(|response: &QueuedResponse| &response.json);
        for json in next_jsons.chain(&next_notifications) {
            encode(framing, json.get().as_bytes(), &mut buffer);
        }
        write_all(&mut out, &buffer, stall, &memory).await?;
        // Only now, so that a response takes room until it is written.
        next_responses.clear();
        next_notifications.clear();
        buffer.clear();
        buffer.shrink_to(KEEP_BUFFER_BYTES);
    }
    out.shutdown().await
}

/// Writes all bytes like `AsyncWriteExt::write_all`, but fails when nothing is written for as long as `stall`, or for
/// [`PRESSED_STALL`] while memory is scarce.
async fn write_all(
    out: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    stall: Duration,
    memory: &ConnectionMemory,
) -> io::Result<()> {
    let mut since = Instant::now();
    while !bytes.is_empty() {
        let n = match tokio::time::timeout(stall.min(PRESSED_STALL), out.write(bytes)).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(result) => result?,
            Err(_) if memory.is_pressed() || since.elapsed() >= stall => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(_) => continue,
        };
        since = Instant::now();
        bytes = &bytes[n..];
    }
    Ok(())
}
