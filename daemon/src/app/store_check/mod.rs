//! `store.verify`: everything on the disk is read and compared, while the daemon serves.
//!
//! **Invariant**: a log, a blob, a snapshot and a file of a project are never changed. Only what follows from the logs is made
//! again: rows of the catalog, documents, and the index and the map of snapshots.

mod sessions;
mod usage;

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::content::Session;
use ollm_protocol::method::{Method as _, StoreVerify};
use ollm_protocol::methods::daemon::FindingLevel;
use ollm_protocol::methods::store::{StoreFinding, StoreVerifyParams, StoreVerifyResult};
use ollm_protocol::{Seq, SessionId};
use tokio_util::sync::CancellationToken;

use super::core::{Core, blocking};
use super::error::Result;
use super::store_work::StoreWork;
use crate::error_chain::with_sources;
use crate::fsutil;
use crate::session::SessionError;

/// The most findings of a result.
const MAX_FINDINGS: usize = 1000;
/// The command that makes derived files again.
const REPAIR: &str = "ollmctl doctor --store --repair";

/// Examines everything on the disk (`store.verify`).
pub(crate) async fn verify(
    core: Arc<Core>,
    params: StoreVerifyParams,
    left: CancellationToken,
) -> Result<StoreVerifyResult> {
    blocking(&core, move |core| run(core, params.repair, &left)).await
}

fn run(core: &Arc<Core>, repair: bool, left: &CancellationToken) -> Result<StoreVerifyResult> {
    let mut work = StoreWork::begin(core, StoreVerify::NAME, left)?;
    let mut logs = core.sessions.log_ids()?;
    logs.sort_unstable();
    let usage = usage::measure(core, &logs)?;
    work.set_total(usage.session_bytes());
    let mut check =
        StoreCheck { core, repair, findings: Vec::new(), records: 0, sessions: Vec::new() };
    for (id, _) in &logs {
        check.session(*id, &mut work)?;
    }
    check.strays(&logs)?;
    check.catalog(&logs)?;
    check.snapshots(&logs)?;
    check.projects()?;
    let StoreCheck { mut findings, records, sessions, .. } = check;
    findings.sort_by_key(|finding| finding.level);
    let is_wrong = |one: &StoreFinding| one.level == FindingLevel::Problem && !one.repaired;
    let (ok, finding_count) = (!findings.iter().any(is_wrong), findings.len() as u64);
    findings.truncate(MAX_FINDINGS);
    let (space, largest) = usage.into_result(&sessions);
    let sessions = sessions.len() as u64;
    Ok(StoreVerifyResult { ok, sessions, records, findings, finding_count, space, largest })
}

/// A check that is under way.
struct StoreCheck<'a> {
    core: &'a Arc<Core>,
    repair: bool,
    findings: Vec<StoreFinding>,
    records: u64,
    sessions: Vec<Session>,
}

/// A finding about a file, to which its place is added.
fn finding(level: FindingLevel, path: &Path, text: impl Into<String>) -> StoreFinding {
    StoreFinding {
        level,
        path: path.to_string_lossy().into_owned(),
        session_id: None,
        seq: None,
        offset: None,
        text: text.into(),
        hint: None,
        repaired: false,
    }
}

fn problem(path: &Path, text: impl Into<String>) -> StoreFinding {
    finding(FindingLevel::Problem, path, text)
}

fn warning(path: &Path, text: impl Into<String>) -> StoreFinding {
    finding(FindingLevel::Warning, path, text)
}

/// Adds the place of a finding, and the command that may help.
trait Placed {
    fn of(self, id: SessionId) -> Self;
    fn at(self, seq: Option<Seq>, offset: Option<u64>) -> Self;
    fn hint(self, command: String) -> Self;
}

impl Placed for StoreFinding {
    fn of(mut self, id: SessionId) -> Self {
        self.session_id = Some(id);
        self
    }

    fn at(mut self, seq: Option<Seq>, offset: Option<u64>) -> Self {
        (self.seq, self.offset) = (seq, offset);
        self
    }

    fn hint(mut self, command: String) -> Self {
        self.hint = Some(command);
        self
    }
}

impl StoreCheck<'_> {
    /// Adds something derived that is wrong, and repairs it if that was asked for.
    fn derived(&mut self, found: StoreFinding, repair: impl FnOnce(&Arc<Core>) -> Result<()>) {
        let mut found = found;
        match self.repair.then(|| repair(self.core)) {
            None => found = found.hint(REPAIR.to_owned()),
            Some(Ok(())) => found.repaired = true,
            Some(Err(error)) => {
                found.text =
                    format!("{}; it could not be repaired: {}", found.text, with_sources(&error));
            }
        }
        self.findings.push(found);
    }

    /// Finds files beside the logs that belong to no session.
    fn strays(&mut self, logs: &[(SessionId, u64)]) -> Result<()> {
        let dir = self.core.sessions.dir();
        let has_log = |id: &str| {
            id.parse().is_ok_and(|id| logs.binary_search_by_key(&id, |(log, _)| *log).is_ok())
        };
        let mut names = fsutil::file_names(dir)?;
        names.sort_unstable();
        for name in names {
            let path = dir.join(&name);
            let Some((id, suffix)) = name.split_once('.') else { continue };
            match suffix {
                "blobs" if !has_log(id) => {
                    let text = "blobs of a session whose log is gone; a backup may have it";
                    let hint = format!("ollmctl backup restore PLACE --session {id}");
                    self.findings.push(warning(&path, text).hint(hint));
                }
                "jsonl.deleting" => {
                    let text = "the session is being deleted; the next start finishes it";
                    self.findings
                        .push(warning(&path, text).hint("ollmctl daemon restart".to_owned()));
                }
                suffix if suffix.starts_with("torn-") => {
                    let text = "bytes that were cut from the end of a log, which nobody was told to be recorded";
                    self.findings
                        .push(warning(&path, text).hint(format!("less {}", path.display())));
                }
                "jsonl" if !has_log(id) && !path.is_file() => {
                    self.findings
                        .push(warning(&path, "it is not a regular file, so it is no session"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Finds sessions that only the catalog has.
    fn catalog(&mut self, logs: &[(SessionId, u64)]) -> Result<()> {
        let path = self.core.journals.home().join("catalog.sqlite3");
        let rows = match self.core.catalog.retention_rows() {
            Ok(rows) => rows,
            Err(error) => {
                let text = format!("the catalog cannot be read: {}", with_sources(&error));
                let hint = "ollmctl daemon restart".to_owned();
                self.findings.push(problem(&path, text).hint(hint));
                return Ok(());
            }
        };
        for row in rows {
            let id = row.session_id;
            let is_known = logs.binary_search_by_key(&id, |(log, _)| *log).is_ok();
            // One that was created meanwhile, or is a draft, is no mistake.
            if is_known || self.core.sessions.is_taken(id) {
                continue;
            }
            let found = problem(&path, "lists show the session, and it has no log").of(id);
            self.derived(found, |core| Ok(core.catalog.forget(&[id])?));
        }
        Ok(())
    }

    /// Finds snapshots that cannot be read, and makes their index again.
    fn snapshots(&mut self, logs: &[(SessionId, u64)]) -> Result<()> {
        let dir = self.core.journals.home().join("context-snapshots");
        for id in self.core.snapshots.sessions()? {
            for skipped in self.core.snapshots.list(id)?.skipped {
                let path = dir.join(id.to_string()).join("snapshots").join(&skipped.file);
                let text = format!(
                    "the snapshot cannot be read: {}; undo works without it",
                    skipped.reason
                );
                self.findings.push(warning(&path, text).of(id));
            }
            if logs.binary_search_by_key(&id, |(log, _)| *log).is_err() {
                let text = "snapshots of a session whose log is gone; each can become a session";
                let hint = "ollmctl snapshot list --all".to_owned();
                self.findings.push(warning(&dir.join(id.to_string()), text).of(id).hint(hint));
            }
            if self.repair {
                self.core.snapshots.writer().update_index(id);
            }
        }
        if self.repair {
            self.core.snapshots.recover()?;
        }
        Ok(())
    }

    /// Finds files of projects that cannot be read.
    fn projects(&mut self) -> Result<()> {
        let global = self.core.projects.global_file().to_owned();
        let projects = self.core.projects.files()?.into_iter().map(|(_, path)| path);
        for path in projects.chain([global]) {
            let reason = match fsutil::read_regular(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => error.to_string(),
                Ok(bytes) => match serde_json::from_slice::<serde_json::Map<_, _>>(&bytes) {
                    Ok(_) => continue,
                    Err(error) => error.to_string(),
                },
            };
            let text = format!(
                "context entries in it are not used, and no model gets texts of its sessions: {reason}"
            );
            let hint = format!("{} {}", "${EDITOR:-vi}", path.display());
            self.findings.push(problem(&path, text).hint(hint));
        }
        Ok(())
    }
}

/// Returns whether an error says that a session is gone, as one that is deleted meanwhile.
fn is_gone(error: &super::error::AppError) -> bool {
    matches!(error, super::error::AppError::Session(SessionError::NotFound { .. }))
}

#[cfg(test)]
mod tests;
