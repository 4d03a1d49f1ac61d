//! The check of one session: its log, its blobs, its document, and what the catalog has of it.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::content::Session;
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{Seq, SessionId};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Placed as _, StoreCheck, is_gone, problem, restore_elsewhere, warning};
use crate::app::error::{AppError, Result};
use crate::app::sessions::documents;
use crate::app::store_work::StoreWork;
use crate::error_chain::with_sources;
use crate::fsutil;
use crate::session::{CatalogView, SessionExam};
use crate::shell::quoted_path;

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

impl DocumentShape {
    fn has_more_than(&self, session: &Session) -> bool {
        self.messages.len() as u64 > session.message_count
            || self.tool_calls.len() as u64 > session.tool_call_count
    }
}

impl StoreCheck<'_> {
    /// Examines a session.
    ///
    /// **Errors**: only those of the work as a whole.
    pub(super) fn session(&mut self, id: SessionId, work: &mut StoreWork<'_>) -> Result<()> {
        let log = self.core.sessions.log_path(id);
        let exam = self.core.sessions.examine::<AppError>(id, &mut |bytes| work.advance(bytes));
        let exam = match exam {
            Ok(exam) => exam,
            Err(error) if is_gone(&error) => {
                self.log_without_records(id, &log);
                return Ok(());
            }
            Err(AppError::Session(error)) => {
                let text = format!("the session cannot be read: {}", with_sources(&error));
                let hint = format!("ls -l {}", quoted_path(&log));
                self.findings.push(problem(&log, text).of(id).hint(hint));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.records += exam.records;
        self.log(id, &log, &exam);
        self.log_end(id, &log, &exam);
        self.blobs(id, &exam);
        self.catalog_row(id, &exam);
        self.document(id, &exam);
        self.titles.insert(id, exam.summary.title);
        Ok(())
    }

    /// Finds a log that is no session, because no record of it can be read.
    fn log_without_records(&mut self, id: SessionId, log: &Path) {
        if !self.core.sessions.is_lost(id) {
            return;
        }
        let text = "no record of the log can be read; a backup or the document may have them";
        self.findings.push(problem(log, text).of(id).hint(restore_elsewhere(id)));
    }

    fn catalog_row(&mut self, id: SessionId, exam: &SessionExam) {
        let text = match exam.catalog {
            // The catalog has the lost records as they were, until it reads the log again.
            CatalogView::Differs if exam.lost.is_empty() && exam.missing == 0 => {
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
        let follows = |(one, _): &(Seq, u64), (next, _): &(Seq, u64)| one.0 + 1 == next.0;
        for run in exam.lost.chunk_by(follows) {
            let (first, offset) = run[0];
            let lost = match run.len() as u64 {
                1 => format!("record {first} is lost"),
                n => format!("records {first} to {} are lost", first.0 + n - 1),
            };
            let found = problem(log, format!("{lost}; the others can be read"));
            self.findings.push(found.of(id).at(Some(first), Some(offset)).hint(export()));
        }
        if exam.bad_places > 0 {
            let text =
                format!("{} damaged places, in which no whole record is lost", exam.bad_places);
            self.findings.push(problem(log, text).of(id).hint(export()));
        }
    }

    /// Finds what is wrong behind the last record of a log.
    fn log_end(&mut self, id: SessionId, log: &Path, exam: &SessionExam) {
        let lost = match (exam.missing, exam.is_end_damaged) {
            (0, false) => None,
            (0, true) => Some("the last records are lost".to_owned()),
            (1, _) => Some("the last record is lost".to_owned()),
            (n, _) => Some(format!("the last {n} records are lost")),
        };
        if let Some(lost) = lost {
            let found = problem(log, format!("{lost}; the others can be read")).of(id);
            let found = found.at(None, Some(exam.log_bytes));
            self.findings.push(found.hint(restore_elsewhere(id)));
        }
        if exam.torn_bytes > 0 {
            let text = format!(
                "{} bytes behind the last record are of a write that did not finish or of a damaged record; the next write saves and cuts them",
                exam.torn_bytes
            );
            self.findings.push(warning(log, text).of(id).at(None, Some(exam.log_bytes)));
        }
    }

    fn blobs(&mut self, id: SessionId, exam: &SessionExam) {
        let dir = self.core.sessions.blobs_path(id);
        for fault in &exam.blobs {
            let path: PathBuf = dir.join(&fault.name);
            let state = with_sources(&fault.damage);
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
            let hint = format!("{}  # then copy the blob", restore_elsewhere(id));
            self.findings.push(found.of(id).at(fault.seq, None).hint(hint));
        }
    }

    /// Compares the document with the log. An old one is only behind. One that may have what the log lost is not replaced.
    fn document(&mut self, id: SessionId, exam: &SessionExam) {
        let path = self.core.sessions.document_path(id);
        if fsutil::file_len(&path).is_none() {
            return;
        }
        let reason = match read_shape(&path) {
            // The session is deleted meanwhile.
            Err(_) if fsutil::file_len(&path).is_none() => return,
            Err(reason) => reason,
            Ok(shape) if shape.session_id != id => format!("it is of session {}", shape.session_id),
            Ok(shape) => {
                if self.has_more(id, &shape, exam) {
                    let text = "the document has messages or calls that the log lacks; keep a copy";
                    self.findings.push(problem(&path, text).of(id).hint(copy_command(&path)));
                }
                return;
            }
        };
        let text = format!("the document is wrong: {reason}");
        if exam.has_loss() {
            let text = format!("{text}; the log lost records that it may have, so keep a copy");
            self.findings.push(problem(&path, text).of(id).hint(copy_command(&path)));
            return;
        }
        self.derived(problem(&path, text).of(id), |core| {
            documents::save(core, SessionIdParams { session_id: id }).map(drop)
        });
    }

    /// Returns whether a document has more than the log, which may have grown since it was examined.
    fn has_more(&self, id: SessionId, shape: &DocumentShape, exam: &SessionExam) -> bool {
        // The session is not opened for this: the catalog would read a damaged log again, and then not know any more
        // which records are missing.
        shape.has_more_than(&exam.summary)
            && self.core.sessions.files(id).is_ok_and(|files| shape.has_more_than(&files.summary))
    }
}

fn copy_command(path: &Path) -> String {
    format!("cp {} .", quoted_path(path))
}

fn read_shape(path: &Path) -> std::result::Result<DocumentShape, String> {
    let file = fsutil::open_regular(path).map_err(|error| error.to_string())?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| error.to_string())
}
