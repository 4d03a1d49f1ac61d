//! The types of writing: new sessions and records, the results of writes, and the changes that observers receive.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ollm_protocol::content::{FileHash, NotKept, RecordBody, Session, SessionHeader, SessionUsage};
use ollm_protocol::{Seq, SessionId, Timestamp};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::error::SessionError;
use super::index::KeyEntry;
use super::open_session::OpenSession;

/// A session to be created.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub header: SessionHeader,
    /// The key of `session.create`.
    pub key: Option<IdempotencyKey>,
}

/// A record to be appended.
#[derive(Clone, Debug)]
pub(crate) struct NewRecord {
    pub body: RecordBody,
    /// The tokens that the record costs in a context, with the tokenizer that counted them.
    pub tokens: Option<(u32, Arc<str>)>,
    /// The time of the record, or `None` for the current time. Set by imports only.
    pub at: Option<Timestamp>,
    pub parent: Parent,
    /// The key that an imported record had in its file.
    pub key: Option<IdempotencyKey>,
    /// The contents of files that the record refers to.
    pub files: KeptFiles,
}

impl NewRecord {
    /// Returns a record that follows the active leaf and is recorded now.
    pub(crate) fn new(body: RecordBody, tokens: Option<(u32, Arc<str>)>) -> Self {
        let files = KeptFiles::default();
        Self { body, tokens, at: None, parent: Parent::Leaf, key: None, files }
    }
}

/// Contents to keep with a record.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptFiles {
    /// The contents by hash.
    pub(crate) contents: HashMap<FileHash, KeptContent>,
    /// The most bytes that all blobs of the session may have.
    pub(crate) quota_bytes: u64,
    /// The files of the record that are not kept for reasons that the caller knows.
    pub(crate) not_kept: NotKept,
}

/// The content of a file.
#[derive(Clone, Debug)]
pub(crate) enum KeptContent {
    Bytes(Vec<u8>),
    /// The content of another file, which has the hash.
    File(PathBuf),
}

/// The parent of a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// The active leaf, or the previous record of the same write.
    Leaf,
    /// No parent: the record starts a branch at the root.
    Root,
    /// An existing record, or an earlier one of the same write.
    Record(Seq),
}

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

/// An idempotency key and its digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    /// The key as the client gave it.
    pub text: String,
    /// The digests; their `seq` is set by the write.
    pub digest: KeyEntry,
}

impl IdempotencyKey {
    /// Digests a key with the method and the payload that it is used for.
    pub(crate) fn new(method: &str, text: String, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(method.as_bytes()).update(&[0]).update(text.as_bytes());
        let mut digest = KeyEntry { key: [0; 16], payload: [0; 8], seq: 0 };
        digest.key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest.payload.copy_from_slice(&blake3::hash(payload).as_bytes()[..8]);
        Self { text, digest }
    }
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Appended {
    /// The first record of the write, or the record that a known key created earlier.
    pub seq: Seq,
    /// The time of that record.
    pub at: Timestamp,
    /// The tokens of that record.
    pub tokens: u32,
    /// The totals of the session after the write.
    pub usage: SessionUsage,
    /// Whether nothing was written, because the key was known.
    pub duplicate: bool,
    /// The files whose contents were not kept.
    pub not_kept: NotKept,
}

/// A change of a session, announced when it is durable and before the caller receives its reply.
#[derive(Debug)]
pub(crate) enum SessionChange<'a> {
    /// The log of a new session exists.
    Created(&'a Session),
    /// A record was appended.
    Recorded { seq: Seq, at: Timestamp, body: &'a RecordBody, tokens: u32 },
    /// A log was found damaged or torn.
    Recovered {
        /// Size of the torn tail in bytes.
        torn_bytes: u64,
        /// Number of damaged places.
        damaged: u64,
    },
    /// A scan for the catalog found damage, which the catalog knows.
    Damaged {
        /// Number of damaged places.
        damaged: u64,
    },
    /// Records that could not be read can be read again.
    Healed {
        /// Their number.
        records: u64,
    },
}

/// A receiver of changes. It is called on the writer's thread, so it must return quickly and never block.
pub(crate) trait Observer: Send + Sync {
    /// Receives one change.
    fn changed(&self, id: SessionId, change: &SessionChange<'_>);
}

/// Ignores all changes.
impl Observer for () {
    fn changed(&self, _: SessionId, _: &SessionChange<'_>) {}
}
