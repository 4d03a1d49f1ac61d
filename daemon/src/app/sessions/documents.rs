//! `session.save`, and writing the documents of sessions that have changed and are idle.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::ExportFormat;
use ollm_protocol::event::SessionSavedData;
use ollm_protocol::methods::session::{BranchFilter, SessionIdParams, SessionSaveResult};

use super::export::ExportProgress;
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result};
use crate::fsutil;
use crate::session::SessionError;

/// A document is written again when its log has grown by this part of its size at the last time, so that all writes
/// together stay proportional to the size of the log.
const GROWTH_DIVISOR: u64 = 4;
/// The largest log in bytes whose document is written at shutdown; larger ones would delay it.
const SMALL_LOG_BYTES: u64 = 1024 * 1024;
/// The time for writing documents at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(500);

/// Writes the document of a session (`session.save`). Blocks on the disk.
pub(crate) fn save(core: &Arc<Core>, params: SessionIdParams) -> Result<SessionSaveResult> {
    write(core, params.session_id)
}

/// Writes documents when they are due; never returns.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let due = core.due_documents.next(core.config().sessions.document_idle).await;
        if !core.config().sessions.auto_save {
            continue;
        }
        for id in due {
            let written = blocking(&core, move |core| write_if_grown(core, id)).await;
            if let Err(error) = written {
                tracing::warn!(session = %id, "the document was not written: {error}");
            }
        }
    }
}

/// Writes the due documents of small logs, at shutdown. Blocks on the disk.
pub(crate) fn write_small(core: &Arc<Core>) {
    if !core.config().sessions.auto_save {
        return;
    }
    let end = Instant::now() + SHUTDOWN_LIMIT;
    let due = core.due_documents.take_all();
    for id in due.into_iter().take_while(|_| Instant::now() < end) {
        let is_small = log_bytes(core, id).is_ok_and(|bytes| bytes <= SMALL_LOG_BYTES);
        if is_small && let Err(error) = write_if_grown(core, id) {
            tracing::warn!(session = %id, "the document was not written: {error}");
        }
    }
}

fn log_bytes(core: &Core, id: SessionId) -> Result<u64> {
    Ok(core.sessions.with(id, |live| live.state().point().bytes)?)
}

fn write_if_grown(core: &Arc<Core>, id: SessionId) -> Result<()> {
    let bytes = match log_bytes(core, id) {
        // The session was deleted concurrently.
        Err(AppError::Session(SessionError::NotFound { .. })) => return Ok(()),
        other => other?,
    };
    let on_disk = || fsutil::file_len(&core.sessions.document_path(id));
    let last = core.due_documents.written_at(id).or_else(on_disk).unwrap_or_default();
    if bytes >= last + last / GROWTH_DIVISOR {
        write(core, id)?;
    }
    Ok(())
}

/// Writes the document of a session. Blocks on the disk.
pub(super) fn write(core: &Arc<Core>, id: SessionId) -> Result<SessionSaveResult> {
    let _one_writer = core.due_documents.lock();
    let path = core.sessions.document_path(id);
    // A document must not have records that the log may lose.
    core.sessions.sync(id)?;
    let log_bytes = log_bytes(core, id)?;
    let mut unreadable = None;
    let written = core.sessions.with_descriptors(|| {
        fsutil::replace_with(&path, |out| {
            write_text(core, id, out).map_err(|error| match error {
                DocumentError::Read(error) => {
                    unreadable = Some(error);
                    std::io::Error::other("the session cannot be read")
                }
                DocumentError::Write(error) => error,
            })
        })
    });
    written.map_err(|error| unreadable.take().unwrap_or(AppError::Storage(error)))?;
    core.due_documents.note_written(id, log_bytes);
    let size_bytes = fsutil::file_len(&path).unwrap_or_default();
    core.publish(id, None, &SessionSavedData { size_bytes });
    Ok(SessionSaveResult { path: path.to_string_lossy().into_owned(), size_bytes })
}

/// Why the text of a document could not be written.
enum DocumentError {
    Read(AppError),
    Write(std::io::Error),
}

/// Writes the text of a document from its beginning.
fn write_text(
    core: &Arc<Core>,
    id: SessionId,
    out: &mut impl Write,
) -> std::result::Result<(), DocumentError> {
    let start = ExportProgress::start(core, id, ExportFormat::Json, BranchFilter::All);
    let (mut progress, mut text) = (start.map_err(DocumentError::Read)?, String::new());
    loop {
        let page = progress.advance(core, id, &mut text).map_err(DocumentError::Read)?;
        out.write_all(text.as_bytes()).map_err(DocumentError::Write)?;
        if page.is_last {
            return Ok(());
        }
        text.clear();
    }
}
