//! The steps that the daemon does not have yet, in their order: bounded in bytes, and kept however long the daemon is away.
//!
//! The reader of the streams adds, and the writer to the daemon takes. Neither waits for the other, and a step stays here until
//! it is done: what is left at the end is known to be not recorded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::limits::json_bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::conversation::{RecordStep, StepKind};

/// The bytes of the steps that can wait: hours of a conversation, and several steps of the largest size. More are lost, the
/// newest first, as long as the daemon takes none.
const MAX_BYTES: usize = 32 << 20;
/// The bytes of a step besides its texts.
const STEP_BYTES: usize = 256;

/// The queue.
pub(super) struct Backlog {
    queue: Mutex<BacklogQueue>,
    changed: Notify,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct BacklogQueue {
    steps: VecDeque<Arc<RecordStep>>,
    n_bytes: usize,
    /// The steps that did not fit.
    n_lost: u64,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self { queue: Mutex::default(), changed: Notify::new(), closed: watch::Sender::new(false) }
    }

    /// Adds steps as far as they fit.
    pub(super) fn add(&self, steps: Vec<RecordStep>) {
        let mut queue = self.queue.lock();
        for step in steps {
            let n_bytes = bytes_of(&step);
            // Steps without a session to which they belong would be of no use.
            let is_opening = matches!(step.what, StepKind::Open { .. });
            if !is_opening && !queue.steps.is_empty() && queue.n_bytes + n_bytes > MAX_BYTES {
                queue.n_lost += 1;
            } else {
                queue.n_bytes += n_bytes;
                queue.steps.push_back(Arc::new(step));
            }
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Says that nothing follows.
    pub(super) fn close(&self) {
        let _was_closed = self.closed.send_replace(true);
        self.changed.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until nothing follows.
    pub(super) async fn closed(&self) {
        let mut changes = self.closed.subscribe();
        // The sender lives as long as `self`.
        drop(changes.wait_for(|is_closed| *is_closed).await);
    }

    /// Waits until nothing follows, and then for some time.
    pub(super) async fn expired(&self, limit: Duration) {
        self.closed().await;
        sleep(limit).await;
    }

    /// Waits for the oldest step; `None` if none is left and nothing follows. It stays until [`Self::done`]. One task at a
    /// time may wait.
    pub(super) async fn next(&self) -> Option<Arc<RecordStep>> {
        loop {
            if let Some(step) = self.oldest() {
                return Some(step);
            }
            if self.is_closed() {
                return None;
            }
            // A change after the look at the queue ends the wait at once.
            self.changed.notified().await;
        }
    }

    fn oldest(&self) -> Option<Arc<RecordStep>> {
        self.queue.lock().steps.front().cloned()
    }

    /// Removes the oldest step.
    pub(super) fn done(&self) {
        let mut queue = self.queue.lock();
        if let Some(step) = queue.steps.pop_front() {
            queue.n_bytes -= bytes_of(&step);
        }
    }

    /// Returns the steps that did not fit, and those that are left.
    pub(super) fn n_lost_and_left(&self) -> (u64, u64) {
        let queue = self.queue.lock();
        let is_said = |step: &&Arc<RecordStep>| !matches!(step.what, StepKind::Open { .. });
        (queue.n_lost, queue.steps.iter().filter(is_said).count() as u64)
    }
}

fn bytes_of(step: &RecordStep) -> usize {
    let of_kind = match &step.what {
        StepKind::Open { cwd, .. } => cwd.as_ref().map_or(0, String::len),
        StepKind::Title(text) | StepKind::User(text) => text.len(),
        StepKind::Answer { thought, text, .. } => thought.len() + text.len(),
        StepKind::Call(call) => call.output.len() + json_bytes(&call.args),
    };
    STEP_BYTES + step.session.len() + of_kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(what: StepKind) -> RecordStep {
        RecordStep { agent: None, session: "s".to_owned(), is_replay: false, what }
    }

    fn said(text: &str) -> RecordStep {
        step(StepKind::User(text.to_owned()))
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn steps_wait_in_order_and_stay_until_they_are_done() {
        let backlog = Backlog::new();
        backlog.add(vec![said("a"), said("b")]);
        run(async {
            for text in ["a", "b"] {
                // A writer that is dropped takes nothing along.
                for _ in 0..2 {
                    let next = backlog.next().await.unwrap();
                    assert_eq!(next.what, StepKind::User(text.to_owned()));
                }
                backlog.done();
            }
            backlog.close();
            assert_eq!(backlog.next().await, None);
            backlog.expired(Duration::ZERO).await;
        });
        assert_eq!((backlog.n_lost_and_left(), backlog.queue.lock().n_bytes), ((0, 0), 0));
    }

    #[test]
    fn full_backlog_counts_what_it_loses_and_keeps_what_opens_a_session() {
        let backlog = Backlog::new();
        let half = "x".repeat(MAX_BYTES / 2);
        backlog.add(vec![said(&half), said("first"), said(&half), said("small")]);
        backlog.add(vec![step(StepKind::Open { cwd: Some(half.clone()), is_new: true })]);
        assert_eq!(backlog.n_lost_and_left(), (1, 3));
        for _ in 0..4 {
            backlog.done();
        }
        // One step always fits.
        backlog.add(vec![said(&half.repeat(3))]);
        assert_eq!(backlog.n_lost_and_left(), (1, 1));
    }
}
