//! The session documents: written on demand, at close, and when a session has grown and come to rest.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ollm_protocol::content::ExportFormat;
use ollm_protocol::methods::session::SessionSaveResult;
use ollm_protocol::{EventKind, SessionId};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::exchange::Progress;
use super::{AppError, Core, blocking};
use crate::events::EventDraft;
use crate::fsutil;
use crate::session::SessionError;

/// A log is written out again when it has grown by this part of its size at the last time, so that all writing
/// together stays proportional to what was said.
const GROWTH_DIVISOR: u64 = 4;
/// Documents of larger logs are not written while the daemon leaves; they would hold it up.
const SMALL_LOG_BYTES: u64 = 1024 * 1024;

/// How long writing documents may hold up the end of the daemon.
const AT_THE_END: Duration = Duration::from_millis(500);

/// Sessions whose document may be due.
#[derive(Default)]
pub(crate) struct Documents {
    pending: Mutex<Pending>,
    wake: Notify,
    /// Held while a document is written.
    saving: Mutex<()>,
}

#[derive(Default)]
struct Pending {
    /// When each session that has changed comes to rest.
    due: HashMap<SessionId, Instant>,
    /// The size of each log when its document was last written, in bytes.
    saved_at: HashMap<SessionId, u64>,
    idle: Duration,
}

impl Documents {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has changed.
    pub(crate) fn note(&self, id: SessionId) {
        let mut pending = self.pending();
        let was_empty = pending.due.is_empty();
        let due = Instant::now() + pending.idle;
        pending.due.insert(id, due);
        drop(pending);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// A session is going; until what is returned is dropped, no document is written, so that none can come
    /// after the session's files are gone.
    pub(crate) fn forget(&self, id: SessionId) -> MutexGuard<'_, ()> {
        let guard = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pending = self.pending();
        pending.due.remove(&id);
        pending.saved_at.remove(&id);
        guard
    }

    /// Writes documents as sessions come to rest; ends when it is dropped. Wakes up only when one is due.
    pub(crate) async fn run(core: Arc<Core>) {
        let documents = &core.documents;
        loop {
            documents.pending().idle = core.config().sessions.document_idle;
            let next = documents.pending().due.values().min().copied();
            match next {
                None => documents.wake.notified().await,
                Some(next) => tokio::time::sleep_until(next).await,
            }
            let now = Instant::now();
            let rested: Vec<SessionId> = {
                let mut pending = documents.pending();
                let due = pending.due.extract_if(|_, due| *due <= now);
                due.map(|(id, _)| id).collect()
            };
            if !core.config().sessions.auto_save {
                continue;
            }
            for id in rested {
                let saved = blocking(&core, move |core| save_if_grown(core, id)).await;
                if let Err(error) = saved {
                    tracing::warn!(session = %id, "the document was not written: {error}");
                }
            }
        }
    }

    /// Writes the documents that are due and small; for the end of the daemon. Blocks on the disk.
    pub(crate) fn finish(core: &Arc<Core>) {
        if !core.config().sessions.auto_save {
            return;
        }
        let due: Vec<SessionId> = core.documents.pending().due.drain().map(|(id, _)| id).collect();
        let end = Instant::now() + AT_THE_END;
        for id in due.into_iter().take_while(|_| Instant::now() < end) {
            let small = log_bytes(core, id).is_ok_and(|bytes| bytes <= SMALL_LOG_BYTES);
            if small && let Err(error) = save_if_grown(core, id) {
                tracing::warn!(session = %id, "the document was not written: {error}");
            }
        }
    }
}

fn log_bytes(core: &Core, id: SessionId) -> Result<u64, AppError> {
    Ok(core.sessions.with(id, |live| live.state().point().bytes)?)
}

fn save_if_grown(core: &Arc<Core>, id: SessionId) -> Result<(), AppError> {
    let bytes = match log_bytes(core, id) {
        // It was deleted meanwhile.
        Err(AppError::Session(SessionError::NotFound { .. })) => return Ok(()),
        other => other?,
    };
    let known = core.documents.pending().saved_at.get(&id).copied();
    let on_disk = || fsutil::file_len(&core.sessions.document_path(id));
    let last = known.or_else(on_disk).unwrap_or_default();
    if bytes >= last + last / GROWTH_DIVISOR {
        save(core, id)?;
    }
    Ok(())
}

/// Writes a session's document. Blocks on the disk.
pub(crate) fn save(core: &Arc<Core>, id: SessionId) -> Result<SessionSaveResult, AppError> {
    let _one_at_a_time = core.documents.saving.lock().unwrap_or_else(PoisonError::into_inner);
    let path = core.sessions.document_path(id);
    let log_bytes = log_bytes(core, id)?;
    let mut failure = None;
    fsutil::replace_with(&path, |out| {
        let written = write_document(core, id, |text| out.write_all(text.as_bytes()));
        written.unwrap_or_else(|error| {
            failure = Some(error);
            Err(std::io::Error::other("the session cannot be read"))
        })
    })
    .map_err(|error| failure.take().unwrap_or(AppError::Storage(error)))?;
    core.documents.pending().saved_at.insert(id, log_bytes);
    let size_bytes = fsutil::file_len(&path).unwrap_or_default();
    core.events.publish(EventDraft {
        session_id: Some(id),
        seq: None,
        kind: EventKind::SessionSaved,
        at: core.clock.now(),
        data: serde_json::json!({ "sizeBytes": size_bytes }),
    });
    Ok(SessionSaveResult { path: path.to_string_lossy().into_owned(), size_bytes })
}

/// Hands the document to `write` piece by piece; memory stays that of one page of records.
fn write_document(
    core: &Arc<Core>,
    id: SessionId,
    mut write: impl FnMut(&str) -> std::io::Result<()>,
) -> Result<std::io::Result<()>, AppError> {
    let mut progress = Progress::start(core, id, ExportFormat::Json)?;
    let mut text = String::new();
    loop {
        let step = progress.advance(core, id, &mut text)?;
        if let Err(error) = write(&text) {
            return Ok(Err(error));
        }
        if step.complete {
            return Ok(Ok(()));
        }
        text.clear();
    }
}
