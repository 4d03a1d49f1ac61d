//! The check of one session: its log, its blobs, its document, and what the catalog has of it.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::methods::session::SessionIdParams;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Placed as _, StoreCheck, is_gone, problem, warning};
use crate::app::error::{AppError, Result};
use crate::app::sessions::documents;
use crate::app::store_work::StoreWork;
use crate::error_chain::with_sources;
use crate::fsutil;
use crate::session::{CatalogView, SessionExam};

/// The longest wait until the catalog has read what was written a moment ago.
const CATALOG_WAIT: Duration = Duration::from_secs(5);

/// The parts of a document that are compared with the log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DocumentShape {
    session_id: SessionId,
    messages: Vec<IgnoredAny>,
    #[serde(default)]
    tool_calls: Vec<IgnoredAny>,
}

impl StoreCheck<'_> {
    /// Examines a session.
    ///
    /// **Errors**: only those of the work as a whole.
    pub(super) fn session(&mut self, id: SessionId, work: &mut StoreWork<'_>) -> Result<()> {
        let log = self.core.sessions.dir().join(format!("{id}.jsonl"));
        let exam = self.core.sessions.examine::<AppError>(id, &mut |bytes| work.advance(bytes));
        let exam = match exam {
            Ok(exam) => exam,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(AppError::Session(error)) => {
                let text = format!("the session cannot be read: {}", with_sources(&error));
                self.findings
                    .push(problem(&log, text).of(id).hint(format!("ls -l {}", log.display())));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.records += exam.records;
        self.log(id, &log, &exam);
        self.blobs(id, &exam);
        self.catalog_row(id, &exam);
        self.document(id, &exam);
        self.sessions.push(exam.summary);
        Ok(())
    }

    fn catalog_row(&mut self, id: SessionId, exam: &SessionExam) {
        let text = match exam.catalog {
            // The catalog has the lost records as they were, until it reads the log again.
            CatalogView::Differs if exam.lost.is_empty() => {
                "what the catalog has of the session is not what its log has"
            }
            CatalogView::Unknown if self.is_forgotten(id) => "lists and searches lack the session",
            CatalogView::Agrees | CatalogView::Differs | CatalogView::Unknown => return,
        };
        let path = self.core.journals.home().join("catalog.sqlite3");
        self.derived(problem(&path, text).of(id), |core| {
            core.catalog.mark_doubtful(id);
            Ok(())
        });
    }

    /// Returns whether the catalog lacks a session although it has read all changes. One that was written a moment ago is
    /// behind, and no mistake.
    fn is_forgotten(&self, id: SessionId) -> bool {
        let catalog = &self.core.catalog;
        catalog.knows_all()
            && catalog.wait_caught_up(Instant::now() + CATALOG_WAIT)
            && catalog.hint(id).is_none()
    }

    fn log(&mut self, id: SessionId, log: &Path, exam: &SessionExam) {
        let export = || format!("ollmctl sessions export {id} --output {id}.md");
        for (seq, offset) in &exam.lost {
            let text = format!("record {seq} is lost; the others can be read");
            let found = problem(log, text).of(id).at(Some(*seq), Some(*offset));
            self.findings.push(found.hint(export()));
        }
        if exam.bad_places > 0 {
            let text =
                format!("{} damaged places, in which no whole record is lost", exam.bad_places);
            self.findings.push(problem(log, text).of(id).hint(export()));
        }
        if exam.torn_bytes > 0 {
            let text = format!(
                "{} bytes behind the last record were never acknowledged; the next write saves and cuts them",
                exam.torn_bytes
            );
            self.findings.push(warning(log, text).of(id).at(None, Some(exam.log_bytes)));
        }
    }

    fn blobs(&mut self, id: SessionId, exam: &SessionExam) {
        let dir = self.core.sessions.dir().join(format!("{id}.blobs"));
        for fault in &exam.blobs {
            let path: PathBuf = dir.join(&fault.name);
            let state = if fault.is_missing {
                "is missing"
            } else {
                "has another content than its name says"
            };
            let found = match (fault.seq, fault.is_of_file) {
                (Some(seq), false) => problem(
                    &path,
                    format!("the blob {state}; record {seq} is lost until it is put back"),
                ),
                (Some(seq), true) => problem(
                    &path,
                    format!(
                        "the blob {state}; undo cannot put back a file that record {seq} wrote"
                    ),
                ),
                (None, _) => warning(&path, format!("the blob {state}; no record names it")),
            };
            let hint = format!(
                "ollmctl --home NEW backup restore PLACE --session {id}  # then copy the blob"
            );
            self.findings.push(found.of(id).at(fault.seq, None).hint(hint));
        }
    }

    /// Compares the document with the log. An old one is only behind.
    fn document(&mut self, id: SessionId, exam: &SessionExam) {
        let path = self.core.sessions.document_path(id);
        if fsutil::file_len(&path).is_none() {
            return;
        }
        let reason = match read_shape(&path) {
            Err(reason) => reason,
            Ok(shape) if shape.session_id != id => format!("it is of session {}", shape.session_id),
            Ok(shape) => {
                let (messages, calls) =
                    (shape.messages.len() as u64, shape.tool_calls.len() as u64);
                let summary = &exam.summary;
                if messages <= summary.message_count && calls <= summary.tool_call_count {
                    return;
                }
                "it has more messages or calls than the log".to_owned()
            }
        };
        let found = problem(&path, format!("the document is wrong: {reason}")).of(id);
        self.derived(found, |core| {
            documents::save(core, SessionIdParams { session_id: id }).map(drop)
        });
    }
}

fn read_shape(path: &Path) -> std::result::Result<DocumentShape, String> {
    let file = fsutil::open_regular(path).map_err(|error| error.to_string())?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| error.to_string())
}
