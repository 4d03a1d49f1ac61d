//! The chat turns and compactions that are running: at most one of each per session.

use std::collections::HashMap;
use std::sync::Arc;

use ollm_protocol::methods::chat::{ChatToolCall, ChatToolResult};
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::error::{AppError, ChatError, Result};
use super::turn_feed::{JoinedFeed, TurnFeed};

/// A registry that holds at most one `T` per session.
pub(crate) struct Exclusive<T>(Arc<Holders<T>>);

type Holders<T> = Mutex<HashMap<SessionId, Holder<T>>>;

/// A value that holds a session's place.
pub(crate) struct Holder<T> {
    pub(crate) value: Arc<T>,
    /// Canceled when the claim is dropped.
    ended: CancellationToken,
}

impl<T> Holder<T> {
    /// Waits until the claim is dropped. Cancel safe.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl<T> Clone for Holder<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), ended: self.ended.clone() }
    }
}

/// A session's place in a registry; dropping it frees the place.
pub(crate) struct Claim<T> {
    holders: Arc<Holders<T>>,
    session_id: SessionId,
    pub(crate) value: Arc<T>,
}

impl<T> Exclusive<T> {
    /// Registers `value` for a session.
    ///
    /// **Errors**: the holder of the place.
    pub(crate) fn claim(&self, session_id: SessionId, value: T) -> Result<Claim<T>, Holder<T>> {
        let mut holders = self.0.lock();
        if let Some(holder) = holders.get(&session_id) {
            return Err(holder.clone());
        }
        let holder = Holder { value: Arc::new(value), ended: CancellationToken::new() };
        holders.insert(session_id, holder.clone());
        Ok(Claim { holders: Arc::clone(&self.0), session_id, value: holder.value })
    }

    /// Returns the holder of a session's place.
    pub(crate) fn holder(&self, session_id: SessionId) -> Option<Holder<T>> {
        self.0.lock().get(&session_id).cloned()
    }

    /// Returns the value that is registered for a session.
    pub(crate) fn get(&self, session_id: SessionId) -> Option<Arc<T>> {
        self.holder(session_id).map(|holder| holder.value)
    }

    pub(crate) fn is_running(&self, session_id: SessionId) -> bool {
        self.0.lock().contains_key(&session_id)
    }

    /// Runs `work` if no value is registered for any session; none can be registered meanwhile. Returns false otherwise.
    pub(crate) fn if_free(&self, work: impl FnOnce()) -> bool {
        let holders = self.0.lock();
        let is_free = holders.is_empty();
        if is_free {
            work();
        }
        is_free
    }

    /// Returns all registered values.
    pub(crate) fn all(&self) -> Vec<(SessionId, Arc<T>)> {
        let holders = self.0.lock();
        holders.iter().map(|(id, holder)| (*id, Arc::clone(&holder.value))).collect()
    }

    /// Waits until no value is registered for a session. Cancel safe.
    pub(crate) async fn wait_until_free(&self, session_id: SessionId) {
        loop {
            match self.holder(session_id) {
                Some(holder) => holder.ended().await,
                None => return,
            }
        }
    }
}

impl<T> Clone for Exclusive<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Exclusive<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Drop for Claim<T> {
    fn drop(&mut self) {
        let removed = self.holders.lock().remove(&self.session_id);
        // The lock must be free by now, because a waiter looks at the registry again.
        if let Some(removed) = removed {
            removed.ended.cancel();
        }
    }
}

/// A chat turn that is running.
pub(crate) struct RunningTurn {
    pub(crate) model: String,
    pub(crate) started: Timestamp,
    /// Ends the turn.
    pub(crate) cancel: CancellationToken,
    /// The tool calls whose results the turn waits for.
    pub(crate) pending_calls: PendingCalls,
    /// The answer that is being written, and the clients that follow the turn.
    pub(crate) feed: TurnFeed,
}

impl RunningTurn {
    /// Adds a follower of the turn; returns `None` if there are too many.
    pub(crate) fn join(&self) -> Option<JoinedFeed> {
        self.feed.join(&self.model, self.started, || self.pending_calls.missing())
    }
}

/// A compaction that is running.
pub(crate) struct RunningCompaction {
    pub(crate) trigger: CompactionTrigger,
    pub(crate) started: Timestamp,
    /// Asks a background compaction to give up its place.
    pub(crate) cancel: CancellationToken,
}

/// The caller of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionTrigger {
    /// `context.compact`.
    Client,
    /// A chat turn that is about to call its model.
    ChatTurn(CompactionCause),
    /// The background task.
    Background,
}

/// The cause for which the context of a turn is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionCause {
    /// More records than before.
    Growth,
    /// Another window, another model or other tools.
    NewForm,
    /// A refusal by the model: the context must become smaller even if the counts say that it fits.
    Refusal,
}

impl CompactionTrigger {
    /// Returns the name that conflict errors show.
    pub(crate) const fn holder(self) -> &'static str {
        match self {
            Self::Client => "context.compact",
            Self::ChatTurn(_) => "chat.send",
            Self::Background => "the daemon",
        }
    }

    /// Returns whether no client asked for the compaction.
    pub(crate) const fn is_automatic(self) -> bool {
        !matches!(self, Self::Client)
    }
}

/// The tool calls of one message whose results are missing.
#[derive(Default)]
pub(crate) struct PendingCalls {
    state: Mutex<PendingState>,
    changed: Notify,
}

#[derive(Default)]
struct PendingState {
    /// The message that made the calls.
    message: Option<Seq>,
    missing: Vec<ChatToolCall>,
    /// Submissions whose records are not durable yet.
    n_writing: usize,
}

/// Calls whose results are about to be recorded.
pub(crate) struct TakenCalls {
    /// The message that made the calls.
    pub(crate) message: Option<Seq>,
    pub(crate) calls: Vec<ChatToolCall>,
}

impl PendingCalls {
    /// Starts to wait for the calls of a message.
    pub(crate) fn begin(&self, message: Seq, calls: Vec<ChatToolCall>) {
        *self.state.lock() = PendingState { message: Some(message), missing: calls, n_writing: 0 };
    }

    /// Returns the calls without a result.
    fn missing(&self) -> Vec<ChatToolCall> {
        self.state.lock().missing.clone()
    }

    /// Stops waiting and returns the ids of the calls without a result.
    pub(crate) fn end(&self) -> Vec<String> {
        self.state.lock().missing.drain(..).map(|call| call.id).collect()
    }

    /// Waits until every result is durable. Cancel safe.
    pub(crate) async fn complete(&self) {
        loop {
            let changed = self.changed.notified();
            let is_complete = {
                let state = self.state.lock();
                state.missing.is_empty() && state.n_writing == 0
            };
            if is_complete {
                return;
            }
            changed.await;
        }
    }

    /// Takes the calls that `results` answer: all of them or none.
    ///
    /// **Errors**: `NoPendingCalls` if the turn waits for no results; `Invalid` if it does not wait for one of them,
    /// or if two are for the same call.
    pub(crate) fn take(&self, id: SessionId, results: &[ChatToolResult]) -> Result<TakenCalls> {
        let mut state = self.state.lock();
        if state.missing.is_empty() {
            return Err(ChatError::NoPendingCalls { id }.into());
        }
        for (at, result) in results.iter().enumerate() {
            let is_missing = state.missing.iter().any(|call| call.id == result.id);
            if !is_missing || results[..at].iter().any(|earlier| earlier.id == result.id) {
                let problem = format!("the turn does not wait for the call {}", result.id);
                return Err(AppError::invalid("results", problem));
            }
        }
        let is_answered = |call: &ChatToolCall| results.iter().any(|result| result.id == call.id);
        let (calls, missing) = state.missing.drain(..).partition(is_answered);
        state.missing = missing;
        state.n_writing += 1;
        Ok(TakenCalls { message: state.message, calls })
    }

    /// Ends a submission: its records are durable, or `failed` calls wait for their results again. Returns the ids of
    /// the calls that are still missing.
    pub(crate) fn finish(&self, failed: Vec<ChatToolCall>) -> Vec<String> {
        let mut state = self.state.lock();
        state.n_writing -= 1;
        state.missing.extend(failed);
        let missing = state.missing.iter().map(|call| call.id.clone()).collect();
        drop(state);
        self.changed.notify_one();
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SessionId {
        SessionId::from_uuid(uuid::Uuid::nil())
    }

    #[tokio::test]
    async fn claim_excludes_others_until_dropped() {
        let registry = Exclusive::default();
        let claim = registry.claim(id(), 1).map_err(drop).expect("the place is free");
        let holder = registry.claim(id(), 2).map(drop).expect_err("the place is taken");
        assert_eq!(*holder.value, 1);
        assert_eq!(registry.get(id()).as_deref(), Some(&1));
        tokio::join!(registry.wait_until_free(id()), holder.ended(), async { drop(claim) });
        assert!(!registry.is_running(id()));
        let mut runs = 0;
        assert!(registry.if_free(|| runs += 1) && runs == 1 && registry.all().is_empty());
        let claim = registry.claim(id(), 4).map_err(drop).expect("the place is free");
        assert!(!registry.if_free(|| runs += 1) && runs == 1);
        assert_eq!(registry.all(), [(id(), Arc::new(4))]);
        drop(claim);
        assert!(registry.claim(id(), 3).is_ok());
    }

    #[tokio::test]
    async fn pending_calls_complete_when_every_result_is_durable() {
        let call = |id: &str| ChatToolCall {
            id: id.to_owned(),
            name: "read".to_owned(),
            args: serde_json::Value::Null,
        };
        let result = |id: &str| {
            serde_json::from_value(serde_json::json!({ "id": id, "result": { "llmContent": "" } }))
                .expect("a result")
        };
        let pending = PendingCalls::default();
        let take = |results: &[ChatToolResult]| pending.take(id(), results);
        let none = take(&[result("a")]);
        assert!(matches!(none, Err(AppError::Chat(ChatError::NoPendingCalls { .. }))));
        pending.begin(Seq(1), vec![call("a"), call("b")]);
        for wrong in [vec![result("c")], vec![result("a"), result("a")]] {
            assert!(matches!(take(&wrong), Err(AppError::Invalid { field: "results", .. })));
        }
        let taken = take(&[result("a"), result("b")]).expect("both are missing");
        assert_eq!((taken.message, taken.calls.len()), (Some(Seq(1)), 2));
        let not_yet = tokio::time::timeout(std::time::Duration::ZERO, pending.complete()).await;
        assert!(not_yet.is_err(), "the records are not durable");
        assert_eq!(pending.finish(vec![call("b")]), ["b"]);
        assert_eq!(pending.end(), ["b"]);
        pending.complete().await;
    }
}
