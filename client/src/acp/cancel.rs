//! The cancellation of a request, which the editor can send at any time.

use tokio::sync::watch;

/// A mark that a request is not wanted any more. Clones share it.
#[derive(Clone)]
pub(super) struct Cancellation(watch::Sender<bool>);

impl Cancellation {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(super) fn cancel(&self) {
        let _was_canceled = self.0.send_replace(true);
    }

    pub(super) fn is_canceled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the cancellation, which may have been before.
    pub(super) async fn canceled(&self) {
        let mut changes = self.0.subscribe();
        // The sender lives as long as `self`.
        drop(changes.wait_for(|is_canceled| *is_canceled).await);
    }

    /// Waits for some work; `None` if it was canceled before its end.
    pub(super) async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.canceled() => None,
            done = work => Some(done),
        }
    }
}
