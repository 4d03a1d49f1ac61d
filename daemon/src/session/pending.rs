//! Writes that are queued: their results, which are known when the records are synced, and the plans that the writer runs.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::error::SessionError;
use super::open_session::OpenSession;
use super::write::{Appended, NewRecord};

/// The planning of a change: returns the records to append, none if there is nothing to change.
pub(super) type Plan = Box<dyn FnOnce(&OpenSession) -> Vec<NewRecord> + Send>;

/// A queued append: a future of its result, which is known when the records are synced.
///
/// Dropping it does not cancel the write.
pub(crate) struct PendingAppend(pub(super) WriteReceiver);

/// The receiver of the result of a write; `None` if there was nothing to write.
pub(super) type WriteReceiver = oneshot::Receiver<Result<Option<Appended>, SessionError>>;

/// The result of a write, unless its thread stopped.
type Received = Result<Result<Option<Appended>, SessionError>, RecvError>;

/// Returns the result of an append, which always writes something.
fn appended(received: Received) -> Result<Appended, SessionError> {
    received.unwrap_or(Err(SessionError::Stopping))?.ok_or(SessionError::Stopping)
}

impl PendingAppend {
    /// Waits for the result. Blocks the thread.
    pub(crate) fn wait(self) -> Result<Appended, SessionError> {
        appended(self.0.blocking_recv())
    }
}

impl Future for PendingAppend {
    type Output = Result<Appended, SessionError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(appended)
    }
}

/// A queued change that is planned when its turn comes.
///
/// Dropping it does not cancel the change. `R` is the refusal that its plan can return.
pub(crate) struct PendingChange<R> {
    pub(super) written: WriteReceiver,
    pub(super) refusal: Refusal<R>,
}

/// The receiver of the refusal of a plan, or of its panic.
pub(super) type Refusal<R> = oneshot::Receiver<std::thread::Result<R>>;

/// Returns a plan whose refusal goes to the receiver, so that the store knows no errors of its callers.
///
/// A panic refuses this change only: the writer goes on, and the caller panics in its place.
pub(super) fn refusable<R: Send + 'static>(
    plan: impl FnOnce(&OpenSession) -> Result<Vec<NewRecord>, R> + Send + 'static,
) -> (Plan, Refusal<R>) {
    let (refuse, refusal) = oneshot::channel();
    let plan = move |session: &OpenSession| {
        let refused = match catch_unwind(AssertUnwindSafe(|| plan(session))) {
            Ok(Ok(records)) => return records,
            Ok(Err(refused)) => Ok(refused),
            Err(panic) => Err(panic),
        };
        drop(refuse.send(refused));
        Vec::new()
    };
    (Box::new(plan), refusal)
}

impl<R: From<SessionError>> PendingChange<R> {
    /// Waits for the result: what was appended, or `None` if there was nothing to change.
    ///
    /// **Errors**: the refusal of the plan, or the error of the store.
    /// **Panics**: if the plan did.
    pub(crate) async fn done(self) -> Result<Option<Appended>, R> {
        changed(self.written.await, self.refusal)
    }

    /// Waits like [`PendingChange::done`]. Blocks the thread.
    pub(crate) fn wait(self) -> Result<Option<Appended>, R> {
        changed(self.written.blocking_recv(), self.refusal)
    }
}

/// Returns the result of a change from those of its write and its plan.
fn changed<R: From<SessionError>>(
    written: Received,
    mut refusal: Refusal<R>,
) -> Result<Option<Appended>, R> {
    match refusal.try_recv() {
        Ok(Ok(refusal)) => Err(refusal),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Ok(written.unwrap_or(Err(SessionError::Stopping))?),
    }
}
