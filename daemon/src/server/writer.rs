//! The sending half of a connection: answers and subscription items into frames, in large writes.
//!
//! **Invariants**: what waits here is bounded, in bytes for answers and in number for items; a client that
//! takes nothing for the allowed time is given up.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ollm_protocol::frame::{Framing, encode};
use serde_json::value::RawValue;
use tokio::io::{self, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Messages that wait for the writer: enough to keep it busy while the runtime does something else.
pub(super) const OUTGOING_MESSAGES: usize = 256;

/// Bytes of answers that wait for the writer. An answer that is larger goes alone. More of it is memory that a
/// client which does not read can hold.
pub(super) const OUTGOING_BYTES: usize = 8 * 1024 * 1024;

/// Messages that go out in one write.
const WRITE_MESSAGES: usize = 64;

/// From this capacity on the buffer is given back after a write, so that an idle connection stays small.
const KEEP_BUFFER_BYTES: usize = 64 * 1024;

/// An answer and the room it takes.
pub(super) struct Outgoing {
    json: Box<RawValue>,
    _room: OwnedSemaphorePermit,
}

/// Where answers are handed to the writer; clones share the room.
#[derive(Clone)]
pub(super) struct Answers {
    queue: mpsc::Sender<Outgoing>,
    room: Arc<Semaphore>,
}

impl Answers {
    /// A queue of answers and its end, for [`write()`].
    pub(super) fn channel() -> (Self, mpsc::Receiver<Outgoing>) {
        let (queue, end) = mpsc::channel(OUTGOING_MESSAGES);
        (Self { queue, room: Arc::new(Semaphore::new(OUTGOING_BYTES)) }, end)
    }

    /// Hands an answer over, waiting for room; false when the connection is gone.
    pub(super) async fn send(&self, json: Box<RawValue>) -> bool {
        let size = json.get().len().min(OUTGOING_BYTES);
        let Ok(size) = u32::try_from(size) else { return false };
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(size).await else { return false };
        self.queue.send(Outgoing { json, _room: room }).await.is_ok()
    }

    /// Whether there is room for another answer.
    pub(super) fn has_room(&self) -> bool {
        self.room.available_permits() > 0
    }

    /// Waits until all answers that waited for room found it, and some is left. Cancel safe.
    pub(super) async fn room(&self) {
        // The semaphore is never closed; the permit is given back at once.
        drop(self.room.acquire().await);
    }

    /// Waits until the writer is gone. Cancel safe.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }
}

/// Writes until nobody can send any more, then closes the sending half.
///
/// **Errors**: `TimedOut` when the client takes nothing for as long as `stall`.
pub(super) async fn write(
    mut out: impl AsyncWrite + Unpin,
    mut answers: mpsc::Receiver<Outgoing>,
    mut items: mpsc::Receiver<Box<RawValue>>,
    framing: Arc<OnceLock<Framing>>,
    stall: Duration,
) -> io::Result<()> {
    let (mut next_answers, mut next_items) = (Vec::new(), Vec::new());
    let (mut answers_open, mut items_open) = (true, true);
    let mut buffer = Vec::new();
    while answers_open || items_open {
        tokio::select! {
            taken = answers.recv_many(&mut next_answers, WRITE_MESSAGES), if answers_open => {
                answers_open = taken > 0;
            }
            taken = items.recv_many(&mut next_items, WRITE_MESSAGES), if items_open => {
                items_open = taken > 0;
            }
        }
        let framing = framing.get().copied().unwrap_or(Framing::Lines);
        for json in next_answers.iter().map(|answer: &Outgoing| &answer.json).chain(&next_items) {
            encode(framing, json.get().as_bytes(), &mut buffer);
        }
        write_all(&mut out, &buffer, stall).await?;
        // Only now, so that what is being written counts as waiting.
        next_answers.clear();
        next_items.clear();
        buffer.clear();
        buffer.shrink_to(KEEP_BUFFER_BYTES);
    }
    out.shutdown().await
}

/// Like `AsyncWriteExt::write_all`, given up when nothing moves for as long as `stall`.
async fn write_all(
    out: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    stall: Duration,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = match tokio::time::timeout(stall, out.write(bytes)).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        bytes = &bytes[written..];
    }
    Ok(())
}
