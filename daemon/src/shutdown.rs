//! The tasks of the daemon, and the two states that end them.
//!
//! *Stopping* asks every task to finish; *forced* ends those that have not finished in time. Both are states and
//! not messages, so that a task that looks late still sees them.
//!
//! **Invariant**: this is the only caller of `tokio::spawn`. Shutdown waits for every task spawned here.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A handle that spawns tasks and ends them; clones share everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    stopping: CancellationToken,
    forced: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Spawns a task that shutdown waits for.
    ///
    /// Dropping the handle leaves the task running.
    #[expect(clippy::disallowed_methods, reason = "this is where tasks are tracked")]
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.tracker.track_future(task))
    }

    /// Asks every task to finish. Idempotent.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Returns whether tasks were asked to finish.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Waits until tasks are asked to finish. Cancel safe.
    pub(crate) async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Ends every task, whether it has finished or not.
    pub(crate) fn force(&self) {
        self.stopping.cancel();
        self.forced.cancel();
    }

    /// Waits until tasks must end at once. Cancel safe.
    pub(crate) async fn forced(&self) {
        self.forced.cancelled().await;
    }

    /// Asks every task to finish, waits for them until `deadline` has passed, then forces the remaining ones.
    ///
    /// Returns how many tasks were still running at the deadline.
    pub(crate) async fn drain(&self, deadline: Duration) -> usize {
        self.stop();
        self.tracker.close();
        let finished = async {
            tokio::select! {
                () = self.tracker.wait() => {}
                () = self.forced() => {}
            }
        };
        if tokio::time::timeout(deadline, finished).await.is_err() {
            self.force();
        }
        self.tracker.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn drain_waits_for_tasks_that_finish() {
        let tasks = Tasks::new();
        let (done, finished) = oneshot::channel();
        let inner = tasks.clone();
        drop(tasks.spawn(async move {
            inner.stopping().await;
            done.send(()).expect("the test receives");
        }));
        assert!(!tasks.is_stopping());
        assert_eq!(tasks.drain(Duration::from_secs(60)).await, 0);
        assert!(tasks.is_stopping());
        finished.await.expect("the task ran to its end");
    }

    #[tokio::test]
    async fn drain_forces_tasks_at_the_deadline_and_counts_them() {
        let tasks = Tasks::new();
        drop(tasks.spawn(std::future::pending::<()>()));
        assert_eq!(tasks.drain(Duration::ZERO).await, 1);
        tasks.forced().await;
    }

    #[tokio::test]
    async fn drain_returns_at_once_when_forced() {
        let tasks = Tasks::new();
        drop(tasks.spawn(std::future::pending::<()>()));
        tasks.force();
        assert_eq!(tasks.drain(Duration::from_secs(60)).await, 1);
    }
}
