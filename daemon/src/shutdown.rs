//! Every task of the daemon, and the one signal that ends them.
//!
//! The signal has two stages: *stopping* asks everyone to finish, *forced* says that the time for it is over.
//! Both are states and not messages, so that nobody can miss one by looking too late.
//!
//! **Invariant**: the only caller of `tokio::spawn`; what it spawns is waited for at shutdown, the watch for the
//! second signal excepted.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks and tells them when to end; clones share everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    stopping: CancellationToken,
    forced: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    /// No tasks yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Runs a task of its own that shutdown waits for.
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

    /// Runs a task that shutdown does not wait for: one that watches the shutdown itself, and ends with the runtime.
    #[expect(clippy::disallowed_methods, reason = "this is where tasks are spawned")]
    pub(crate) fn spawn_watch(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(task));
    }

    /// Asks every task to finish; calling it again changes nothing.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Whether tasks were asked to finish.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Waits until tasks are asked to finish. Cancel safe.
    pub(crate) async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Tells every task to end at once, whatever it is doing.
    pub(crate) fn force(&self) {
        self.stopping.cancel();
        self.forced.cancel();
    }

    /// Waits until tasks are to end at once. Cancel safe.
    pub(crate) async fn forced(&self) {
        self.forced.cancelled().await;
    }

    /// Asks every task to finish and waits for them, at most for `deadline`; then tells them to end at once.
    ///
    /// Returns how many were still running at the deadline.
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
    async fn drain_waits_for_what_finishes() {
        let tasks = Tasks::new();
        let (done, finished) = oneshot::channel();
        let inner = tasks.clone();
        drop(tasks.spawn(async move {
            inner.stopping().await;
            done.send(()).expect("somebody waits");
        }));
        assert!(!tasks.is_stopping());
        assert_eq!(tasks.drain(Duration::from_secs(60)).await, 0);
        assert!(tasks.is_stopping());
        finished.await.expect("the task ran to its end");
    }

    #[tokio::test]
    async fn drain_gives_up_and_says_so() {
        let tasks = Tasks::new();
        drop(tasks.spawn(std::future::pending::<()>()));
        assert_eq!(tasks.drain(Duration::ZERO).await, 1);
        tasks.forced().await;
    }

    #[tokio::test]
    async fn a_second_signal_ends_the_waiting() {
        let tasks = Tasks::new();
        drop(tasks.spawn(std::future::pending::<()>()));
        tasks.force();
        assert_eq!(tasks.drain(Duration::from_secs(60)).await, 1);
    }
}
