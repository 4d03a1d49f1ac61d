//! The queue from the streams to the recorder: bounded in bytes, and never waited for by a stream.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

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
    changed: Condvar,
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
        self.changed.notify_all();
    }

    /// Waits for the next item.
    pub(super) fn next(&self) -> Tapped {
        let mut queue = self.queue.lock();
        loop {
            if let Some(item) = queue.items.pop_front() {
                if let Tapped::Bytes(_, bytes) = &item {
                    queue.n_bytes -= bytes.len();
                }
                return item;
            }
            if queue.is_closed {
                return Tapped::Closed;
            }
            self.changed.wait(&mut queue);
        }
    }

    /// Waits until a time or until the queue is closed; returns whether it is closed.
    pub(super) fn wait_closed(&self, until: Instant) -> bool {
        let mut queue = self.queue.lock();
        while !queue.is_closed {
            if self.changed.wait_until(&mut queue, until).timed_out() {
                break;
            }
        }
        queue.is_closed
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
        assert_eq!(tap.next(), Tapped::Bytes(agent, half.clone()));
        tap.push(agent, b"7");
        tap.close();
        assert_eq!(tap.next(), Tapped::Bytes(agent, half));
        assert_eq!(tap.next(), Tapped::Lost(agent, 7));
        assert_eq!(tap.next(), Tapped::Lost(editor, 1));
        assert_eq!(tap.next(), Tapped::Bytes(agent, b"7".to_vec()));
        assert_eq!(tap.next(), Tapped::Closed);
    }
}
