//! Isolates calls: a panic fails only its own call, and a call that completes continues when its client leaves.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;

use ollm_protocol::Life;

use super::error::RpcError;
use crate::shutdown::Tasks;

/// A running handler.
pub(super) type RunningHandler<T> = Pin<Box<dyn Future<Output = Result<T, RpcError>> + Send>>;

/// Runs a handler; a panic in it becomes an `internal` error.
///
/// The handler is polled in place first, so that calls start in the order in which they are polled. A call that
/// completes and is not done by then continues as a task of its own until the daemon stops.
///
/// **Cancel safety**: dropping the future drops the handler, and leaves one of life [`Life::Completes`] running.
pub(super) async fn run<T: Send + 'static>(
    tasks: &Tasks,
    life: Life,
    handler: impl Future<Output = Result<T, RpcError>> + Send + 'static,
) -> Result<T, RpcError> {
    let mut work: RunningHandler<T> = Box::pin(guard(handler));
    if life != Life::Completes {
        return work.await;
    }
    match poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        Poll::Ready(result) => result,
        // The task is canceled only with the runtime, when no reply can be sent any more.
        Poll::Pending => tasks.spawn(work).await.unwrap_or_else(|_| Err(RpcError::stopping())),
    }
}

async fn guard<T>(
    handler: impl Future<Output = Result<T, RpcError>> + Send,
) -> Result<T, RpcError> {
    let mut handler = pin!(handler);
    poll_fn(|context| {
        // After a panic the handler is dropped and never polled again, so its state cannot be observed.
        match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .copied()
                    .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                    .unwrap_or("a panic without a message");
                tracing::error!(panic = text, "a handler panicked");
                Poll::Ready(Err(RpcError::internal()))
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use ollm_protocol::ErrorKind;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn panic_is_an_internal_error() {
        for life in [Life::Canceled, Life::Completes] {
            let result = run::<()>(&Tasks::new(), life, async { panic!("on purpose") }).await;
            assert_eq!(result.expect_err("fails").kind, ErrorKind::Internal);
        }
    }

    /// Polls a call once, drops it, and returns whether its handler survived.
    async fn survives(life: Life) -> bool {
        let (go, wait) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel::<()>();
        let tasks = Tasks::new();
        let mut call = Box::pin(run(&tasks, life, async move {
            wait.await.expect("the sender lives");
            done.send(()).map_err(|()| RpcError::internal())
        }));
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        assert!(first.is_pending());
        drop(call);
        // The receiver is dropped with the handler.
        let alive = go.send(()).is_ok();
        alive && finished.await.is_ok()
    }

    #[tokio::test]
    async fn call_outlives_its_client_only_if_it_completes() {
        assert!(survives(Life::Completes).await);
        assert!(!survives(Life::Canceled).await);
    }
}
