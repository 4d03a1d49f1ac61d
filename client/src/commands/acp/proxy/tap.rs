//! The queue from the streams to the recorder: bounded in bytes, and never waited for by a stream.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The bytes that can wait: several updates of the largest size, with the contents of whole files. A recorder that is slower
/// than the agent for longer loses what does not fit.
const MAX_BYTES: usize = 48 << 20;

/// The sender of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AcpSide {
    FromEditor,
    FromAgent,
}

/// An item of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tapped {
    Bytes(AcpSide, Vec<u8>),
    /// Bytes of a direction that did not fit.
    Lost(AcpSide, u64),
    /// Both streams ended.
    Closed,
}

#[derive(Default)]
struct TapQueue {
    items: VecDeque<Tapped>,
    n_bytes: usize,
    is_closed: bool,
}

impl TapQueue {
    /// Counts lost bytes, in at most one item a direction until bytes fit again.
    fn lose(&mut self, direction: AcpSide, n_bytes: u64) {
        for item in self.items.iter_mut().rev().take(2) {
            match item {
                Tapped::Lost(of, known) if *of == direction => {
                    *known += n_bytes;
                    return;
                }
                Tapped::Lost(..) => {}
                Tapped::Bytes(..) | Tapped::Closed => break,
            }
        }
        self.items.push_back(Tapped::Lost(direction, n_bytes));
    }
}

/// The queue. Its lock is held for the time of a push.
#[derive(Default)]
pub(super) struct Tap {
    queue: Mutex<TapQueue>,
    changed: Notify,
}

impl Tap {
    /// Adds bytes that pass. Never waits for the recorder.
    pub(super) fn push(&self, direction: AcpSide, bytes: &[u8]) {
        let mut queue = self.queue.lock();
        if queue.n_bytes + bytes.len() > MAX_BYTES {
            queue.lose(direction, bytes.len() as u64);
        } else {
            queue.n_bytes += bytes.len();
            queue.items.push_back(Tapped::Bytes(direction, bytes.to_vec()));
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Says that nothing follows.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next item. One task at a time may wait.
    pub(super) async fn next(&self) -> Tapped {
        loop {
            if let Some(item) = self.take() {
                return item;
            }
            // A change after the look at the queue ends the wait at once.
            self.changed.notified().await;
        }
    }

    /// Takes the next item, if there is one.
    pub(super) fn take(&self) -> Option<Tapped> {
        let mut queue = self.queue.lock();
        let Some(item) = queue.items.pop_front() else {
            return queue.is_closed.then_some(Tapped::Closed);
        };
        if let Tapped::Bytes(_, bytes) = &item {
            queue.n_bytes -= bytes.len();
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_counts_what_it_loses_and_goes_on() {
        let tap = Tap::default();
        let (editor, agent) = (AcpSide::FromEditor, AcpSide::FromAgent);
        let half = vec![b'x'; MAX_BYTES / 2];
        tap.push(agent, &half);
        tap.push(agent, &half);
        tap.push(agent, b"12");
        tap.push(agent, b"345");
        tap.push(editor, b"6");
        tap.push(agent, b"89");
        assert_eq!(tap.take(), Some(Tapped::Bytes(agent, half.clone())));
        tap.push(agent, b"7");
        assert_eq!(tap.take(), Some(Tapped::Bytes(agent, half)));
        assert_eq!(tap.take(), Some(Tapped::Lost(agent, 7)));
        assert_eq!(tap.take(), Some(Tapped::Lost(editor, 1)));
        assert_eq!(tap.take(), Some(Tapped::Bytes(agent, b"7".to_vec())));
        assert_eq!(tap.take(), None);
        tap.close();
        assert_eq!(tap.take(), Some(Tapped::Closed));
    }
}
