//! `store.verify`: everything on the disk is read and compared, while the daemon serves.
//!
//! **Invariant**: a log, a blob, a snapshot and a file of a project are never changed. Only what follows from the logs is made
//! again: rows of the catalog, documents, and the index and the map of snapshots. A document that may have what a log lost
//! is not replaced.

mod sessions;
mod usage;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

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
use crate::shell::quoted_path;

/// The most findings of a result, and of each level that are in memory.
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
    work.set_total(usage.bytes_to_read());
    let findings = FindingList::default();
    let mut check = StoreCheck { core, repair, findings, records: 0, titles: BTreeMap::new() };
    for (id, _) in &logs {
        check.session(*id, &mut work)?;
    }
    check.strays(&logs)?;
    check.catalog(&logs)?;
    check.snapshots(&logs, &mut work)?;
    check.projects();
    let StoreCheck { findings, records, titles, .. } = check;
    let (ok, finding_count) = (!findings.is_wrong, findings.count);
    let findings = findings.into_kept();
    let (space, largest) = usage.into_result(&titles);
    let sessions = titles.len() as u64;
    Ok(StoreVerifyResult { ok, sessions, records, findings, finding_count, space, largest })
}

/// A check that is under way.
struct StoreCheck<'a> {
    core: &'a Arc<Core>,
    repair: bool,
    findings: FindingList,
    records: u64,
    /// The titles of the sessions that could be read.
    titles: BTreeMap<SessionId, String>,
}

/// The findings so far. All are counted, and the first ones of each level are kept, so that damage of any extent takes
/// little memory.
#[derive(Default)]
struct FindingList {
    problems: Vec<StoreFinding>,
    warnings: Vec<StoreFinding>,
    count: u64,
    /// Set if a problem was not repaired.
    is_wrong: bool,
}

impl FindingList {
    fn push(&mut self, found: StoreFinding) {
        self.count += 1;
        self.is_wrong |= found.level == FindingLevel::Problem && !found.repaired;
        let kept = match found.level {
            FindingLevel::Problem => &mut self.problems,
            FindingLevel::Warning => &mut self.warnings,
        };
        if kept.len() < MAX_FINDINGS {
            kept.push(found);
        }
    }

    /// Returns the findings of a result, problems first.
    fn into_kept(self) -> Vec<StoreFinding> {
        let Self { problems: mut kept, warnings, .. } = self;
        kept.extend(warnings);
        kept.truncate(MAX_FINDINGS);
        kept
    }
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

/// Returns the command that brings the files of a session from a backup into another home.
fn restore_elsewhere(id: SessionId) -> String {
    format!("ollmctl --home NEW backup restore PLACE --session {id}")
}

/// Returns what is wrong with a file by the name of a log that is no session.
fn empty_or_foreign(path: &Path, id: Option<SessionId>) -> Option<StoreFinding> {
    match (fsutil::file_len(path), id) {
        (None, _) if path.symlink_metadata().is_ok() => {
            Some(warning(path, "it is not a regular file, so it is no session"))
        }
        // No crash leaves a log without its first records.
        (Some(0), Some(id)) => {
            let text =
                "the log is empty, so its records are lost; a backup or the document may have them";
            Some(problem(path, text).of(id).hint(restore_elsewhere(id)))
        }
        _ => None,
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

    /// Returns whether a session has no log, and was not created since the check began, is no draft and is not being
    /// deleted.
    fn lacks_log(&self, id: SessionId, logs: &[(SessionId, u64)]) -> bool {
        let sessions = &self.core.sessions;
        let has_file =
            |suffix: &str| sessions.dir().join(format!("{id}.{suffix}")).symlink_metadata().is_ok();
        let now = self.core.clock.now();
        logs.binary_search_by_key(&id, |(log, _)| *log).is_err()
            && sessions.peek(id, |live| live.summary(now).draft) != Some(true)
            && !has_file("jsonl")
            && !has_file("jsonl.deleting")
            && !sessions.deleting().contains(&id)
    }

    /// Finds files beside the logs that belong to no session.
    fn strays(&mut self, logs: &[(SessionId, u64)]) -> Result<()> {
        let dir = self.core.sessions.dir();
        let mut names = fsutil::file_names(dir)?;
        names.sort_unstable();
        for name in names {
            let Some((id, suffix)) = name.split_once('.') else { continue };
            let found = self.stray(&dir.join(&name), (id, suffix), logs);
            if let Some(found) = found {
                self.findings.push(found);
            }
        }
        Ok(())
    }

    /// Returns what is wrong with a file by its name, which is that of a session and a suffix.
    fn stray(
        &self,
        path: &Path,
        (name, suffix): (&str, &str),
        logs: &[(SessionId, u64)],
    ) -> Option<StoreFinding> {
        let id = name.parse::<SessionId>().ok();
        // A deletion removes the files before its mark, so a file that is still there is not one of it.
        let is_left = |id: SessionId| self.lacks_log(id, logs) && path.symlink_metadata().is_ok();
        match suffix {
            "blobs" if id.is_some_and(is_left) => {
                let text = "blobs of a session whose log is gone; a backup may have it";
                let hint = format!("ollmctl backup restore PLACE --session {name}");
                Some(warning(path, text).hint(hint))
            }
            "json" if id.is_some_and(is_left) => {
                let text = "the document of a session whose log is gone; it has the messages";
                let hint = format!("ollmctl sessions import {}", quoted_path(path));
                Some(problem(path, text).hint(hint))
            }
            "jsonl" => empty_or_foreign(path, id),
            "jsonl.deleting" => {
                let text = "the session is being deleted; the next start finishes it";
                Some(warning(path, text).hint("ollmctl daemon restart".to_owned()))
            }
            suffix if suffix.starts_with("torn-") => {
                let found = if id.is_some_and(is_left) {
                    let text = "a log of which no record could be read; a backup may have it whole";
                    problem(path, text)
                } else {
                    let text = "what was cut from the end of a log: a write that did not finish, or damaged records";
                    warning(path, text)
                };
                Some(found.hint(format!("less {}", quoted_path(path))))
            }
            _ => None,
        }
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

    /// Finds snapshots that cannot be read, and makes their index and their map again.
    ///
    /// **Errors**: only those of the work as a whole.
    fn snapshots(&mut self, logs: &[(SessionId, u64)], work: &mut StoreWork<'_>) -> Result<()> {
        let dir = self.core.journals.home().join("context-snapshots");
        let sessions = match self.core.snapshots.sessions() {
            Ok(sessions) => sessions,
            Err(error) => {
                let text = format!("snapshots cannot be found: {}", with_sources(&error));
                let hint = format!("ls -ld {}", quoted_path(&dir));
                self.findings.push(problem(&dir, text).hint(hint));
                return Ok(());
            }
        };
        for id in sessions {
            self.snapshots_of(id, &dir.join(id.to_string()), logs, work)?;
        }
        if self.repair
            && let Err(error) = self.core.snapshots.recover()
        {
            let text = format!("the map of snapshots was not made again: {}", with_sources(&error));
            self.findings.push(problem(&dir, text));
        }
        Ok(())
    }

    /// Reads the snapshots of a session, whose directory is `dir`.
    fn snapshots_of(
        &mut self,
        id: SessionId,
        dir: &Path,
        logs: &[(SessionId, u64)],
        work: &mut StoreWork<'_>,
    ) -> Result<()> {
        let files = match self.core.snapshots.file_paths(id) {
            Ok(files) => files,
            Err(error) => {
                let text = format!("snapshots cannot be found: {}", with_sources(&error));
                let hint = format!("ls -ld {}", quoted_path(&error.path));
                self.findings.push(problem(dir, text).of(id).hint(hint));
                return Ok(());
            }
        };
        let mut is_damaged = false;
        for (name, path) in &files {
            work.advance(fsutil::file_len(path).unwrap_or_default())?;
            let Some(reason) = self.core.snapshots.examine(id, name) else { continue };
            is_damaged = true;
            let text = format!("the snapshot cannot be read: {reason}; undo works without it");
            self.findings.push(warning(path, text).of(id));
        }
        if !files.is_empty() && self.lacks_log(id, logs) && dir.is_dir() {
            let text = "snapshots of a session whose log is gone; each can become a session";
            let hint = "ollmctl snapshot list --all".to_owned();
            self.findings.push(warning(dir, text).of(id).hint(hint));
        }
        if self.repair {
            let writer = self.core.snapshots.writer();
            if is_damaged { writer.rebuild_index(id) } else { writer.update_index(id) }
        }
        Ok(())
    }

    /// Finds files of projects that cannot be read.
    fn projects(&mut self) {
        let global = self.core.projects.global_file().to_owned();
        let projects = self.core.projects.files().unwrap_or_else(|error| {
            let text = format!("files of projects cannot be found: {}", with_sources(&error));
            let hint = format!("ls -ld {}", quoted_path(&error.path));
            self.findings.push(problem(&error.path, text).hint(hint));
            Vec::new()
        });
        for path in projects.into_iter().map(|(_, path)| path).chain([global.clone()]) {
            let Some(reason) = self.core.projects.examine(&path) else { continue };
            let effect = match path == global {
                true => "its context entries are not used",
                false => {
                    "its context entries are not used, and no model gets texts of its sessions"
                }
            };
            let text = format!("{effect}: {reason}");
            let hint = format!("{} {}", "${EDITOR:-vi}", quoted_path(&path));
            self.findings.push(problem(&path, text).hint(hint));
        }
    }
}

/// Returns whether an error says that a session is gone, as one that is deleted meanwhile.
fn is_gone(error: &super::error::AppError) -> bool {
    matches!(error, super::error::AppError::Session(SessionError::NotFound { .. }))
}

#[cfg(test)]
mod tests;
