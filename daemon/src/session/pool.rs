//! The threads that write and sync: few enough to be cheap, enough that sessions sync side by side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most threads. Measured on 64 sessions: 8 give 3.5 times the serial rate of syncs, 16 give 4.5, 32 give 5.3.
const MAX_THREADS: usize = 16;
/// An idle thread leaves after this, so that an idle daemon has none.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on at most [`MAX_THREADS`] threads that come and go with the work.
#[derive(Clone)]
pub(super) struct SyncPool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl SyncPool {
    /// A pool without threads.
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Queues a job; the queue is as long as there are sessions with waiting writes, each there once.
    pub(super) fn submit(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() || queue.threads == MAX_THREADS {
            drop(queue);
            self.shared.work.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let shared = Arc::clone(&self.shared);
        let spawned =
            std::thread::Builder::new().name("ollm-sync".to_owned()).spawn(move || shared.run());
        if spawned.is_err() {
            // Without a new thread the ones that exist take the job; without any, this one does.
            let mut queue = self.shared.queue.lock();
            queue.threads -= 1;
            if queue.threads == 0
                && let Some(job) = queue.jobs.pop_front()
            {
                drop(queue);
                job();
            }
        }
    }

    /// Whether jobs wait for a thread.
    pub(super) fn is_crowded(&self) -> bool {
        !self.shared.queue.lock().jobs.is_empty()
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic in one session's write must not take the thread's other sessions with it.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a session's writer panicked");
                }
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let waited = self.work.wait_for(&mut queue, IDLE);
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}
