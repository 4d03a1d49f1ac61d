//! The threads that write and sync logs.
//!
//! There are few enough to be cheap, and enough that the syncs of different sessions overlap. Threads start when jobs
//! wait and end when they have been idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Maximum number of threads. With 64 sessions, 8 threads reach 3.5 times the sync rate of one thread, 16 reach 4.5
/// times, 32 reach 5.3 times.
const MAX_THREADS: usize = 16;
/// A thread ends after this time without a job, so that an idle daemon has none.
const IDLE: Duration = Duration::from_secs(10);

type SyncJob = Box<dyn FnOnce() + Send>;

/// A pool that runs jobs on at most [`MAX_THREADS`] threads.
#[derive(Clone)]
pub(super) struct SyncPool {
    shared: Arc<PoolShared>,
}

#[derive(Default)]
struct PoolShared {
    queue: Mutex<JobQueue>,
    work: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<SyncJob>,
    threads: usize,
    idle: usize,
}

impl SyncPool {
    /// Returns a pool without threads.
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Queues a job. A session queues one job at a time, so the number of sessions bounds the queue.
    pub(super) fn submit(&self, job: SyncJob) {
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
            // The existing threads take the job; if there are none, the calling thread does.
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

    /// Returns whether jobs wait for a thread.
    pub(super) fn is_crowded(&self) -> bool {
        !self.shared.queue.lock().jobs.is_empty()
    }
}

impl PoolShared {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic in the job of one session must not end the thread, because other sessions wait for it.
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
