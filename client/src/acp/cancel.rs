//! The cancellation of requests and of single tool calls, which the editor can send at any time.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

/// A mark that some work is not wanted any more. Clones share it.
#[derive(Clone)]
pub(super) struct Cancellation {
    sender: watch::Sender<bool>,
    /// The work that this is a part of.
    whole: Option<Box<Self>>,
}

impl Cancellation {
    pub(super) fn new() -> Self {
        Self { sender: watch::Sender::new(false), whole: None }
    }

    /// Returns the mark of a part of the work, which is not wanted if the whole is not.
    fn part(&self) -> Self {
        Self { whole: Some(Box::new(self.clone())), ..Self::new() }
    }

    pub(super) fn cancel(&self) {
        let _was_canceled = self.sender.send_replace(true);
    }

    pub(super) fn is_canceled(&self) -> bool {
        *self.sender.borrow() || self.whole.as_ref().is_some_and(|whole| whole.is_canceled())
    }

    /// Waits for the cancellation, which may have been before.
    pub(super) async fn canceled(&self) {
        let whole = async {
            match &self.whole {
                Some(whole) => Box::pin(whole.canceled()).await,
                None => std::future::pending().await,
            }
        };
        let mut changes = self.sender.subscribe();
        tokio::select! {
            // The sender lives as long as `self`.
            _ = changes.wait_for(|is_canceled| *is_canceled) => {}
            () = whole => {}
        }
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

/// The tool calls of a session that can be canceled, by their ids.
#[derive(Default)]
pub(super) struct ToolCalls(Mutex<HashMap<String, Cancellation>>);

impl ToolCalls {
    /// Adds a call, which is canceled with its turn too.
    pub(super) fn begin(&self, id: &str, turn: &Cancellation) -> Cancellation {
        let call = turn.part();
        drop(self.0.lock().insert(id.to_owned(), call.clone()));
        call
    }

    pub(super) fn end(&self, id: &str) {
        drop(self.0.lock().remove(id));
    }

    pub(super) fn end_all(&self) {
        self.0.lock().clear();
    }

    /// Cancels a call; returns false if there is no such call.
    pub(super) fn cancel(&self, id: &str) -> bool {
        self.0.lock().get(id).inspect(|call| call.cancel()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canceled_call_leaves_its_turn_and_a_canceled_turn_takes_its_calls() {
        let (turn, calls) = (Cancellation::new(), ToolCalls::default());
        let (first, second) = (calls.begin("1", &turn), calls.begin("2", &turn));
        assert!(calls.cancel("1") && !calls.cancel("3"));
        assert_eq!(
            [first.is_canceled(), second.is_canceled(), turn.is_canceled()],
            [true, false, false]
        );
        calls.end("1");
        assert!(!calls.cancel("1"), "a call that has ended cannot be canceled");
        turn.cancel();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(second.canceled());
        assert!(second.is_canceled());
    }
}
