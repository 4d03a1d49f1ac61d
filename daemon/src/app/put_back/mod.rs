//! Putting files back together with a move of the leaf: previews, applications, and what a crash interrupted.
//!
//! A caller that moves the leaf names the records that leave the path and those that come onto it; the files follow.
//! `session.undo`, `session.redo` and `snapshot.restore` do so. The moves, the record of the files and a delta for the
//! model with what changed are one write, so the log decides whether an application happened.
//!
//! **Invariants**: nothing is put back that a preview did not show; only calls that this session recorded itself count,
//! neither imported ones nor those of a session that it was forked from. A session puts files back once at a time.

mod survey;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{
    Delta, FileCounts, FileHash, FilePlan, FileState, FileStatus, FilesMode, KeptFile, NotKept,
    PlannedFile, PutBack, PutBackFile, RecordBody, RecordKind,
};
use ollm_protocol::event::{FilesProgressData, PutBackStep};
use ollm_protocol::{PlanId, Seq, SessionId, sanitize};
use tokio_util::sync::CancellationToken;

use self::survey::{FileSurvey, survey};
use super::core::Core;
use super::drafts::{counted_for, uncounted};
use super::error::{AppError, Result, limit_page};
pub(crate) use crate::app::previews::FileMove;
use crate::app::previews::Preview;
use crate::fsutil::{FsError, is_full};
use crate::put_back::apply::{self, ApplyError, FileOutcome};
use crate::put_back::journal::{Journal, JournaledChange};
use crate::put_back::plan::{FileFate, PlanItem, open_project};
use crate::put_back::stage::{self, KeptContents};
use crate::put_back::take_back;
use crate::session::{Appended, IdempotencyKey, KeptContent, KeptFiles, NewRecord, SessionError};

/// The files of each kind that a delta names.
const MAX_NAMED: usize = 20;
/// The longest wait for another change of the session's files.
const FILES_WAIT: Duration = Duration::from_secs(5);
/// The files of a step between two events of its progress: at most a few events a second.
const PROGRESS_FILES: usize = 1000;

/// The treatment of files that a call which moves the leaf asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilesRequest {
    /// Files are not examined.
    Skip,
    /// Nothing changes; the result has the plan.
    Preview,
    /// The files of a plan are put back.
    Apply(PlanId),
}

impl FilesRequest {
    /// Returns the request that the params of a call make.
    ///
    /// **Errors**: `Invalid` for a plan without its application, or the other way round.
    pub(crate) fn of(files: FilesMode, plan_id: Option<PlanId>) -> Result<Self> {
        match (files, plan_id) {
            (FilesMode::Skip, None) => Ok(Self::Skip),
            (FilesMode::Preview, None) => Ok(Self::Preview),
            (FilesMode::Apply, Some(plan_id)) => Ok(Self::Apply(plan_id)),
            (FilesMode::Apply, None) => {
                Err(AppError::invalid("planId", "is missing: preview the files first"))
            }
            (_, Some(_)) => Err(AppError::invalid("planId", "belongs to `files: \"apply\"`")),
        }
    }

    /// Waits while another call, or the start of the daemon, finishes its changes of the session's files.
    pub(crate) async fn wait_for_others(self, core: &Core, id: SessionId) {
        if self != Self::Skip {
            let free = core.putting_back.wait_until_free(id);
            drop(tokio::time::timeout(FILES_WAIT, free).await);
        }
    }
}

/// Plans what happens to the files of a move, and changes nothing. Blocks on the disk.
///
/// **Errors**: `Invalid` for too many files; `PuttingBack` while files of the session are put back; `Storage`.
pub(crate) fn preview(core: &Core, file_move: FileMove) -> Result<FilePlan> {
    settle(core, file_move.id)?;
    let survey = survey(core, &file_move)?;
    let plan_id = PlanId::from_uuid(core.clock.uuid());
    let files = survey.items.iter().map(PlanItem::planned).collect();
    let mut plan = file_plan(plan_id, &survey, files);
    plan.kept = kept_files(&survey);
    core.previews.add(Preview { plan_id, file_move, items: survey.items });
    Ok(plan)
}

/// Puts the files of a preview back as far as they are unchanged, and appends `moves`, which move the leaf. After an
/// error nothing has changed, except that a failed write of the log may have left the record: files follow the log then.
/// Blocks on the disk.
///
/// **Errors**: `PutBackCanceled` if `canceled` before all files have moved; `Invalid` for an unknown plan or one of another
/// move; `PuttingBack` while files of the session are put back; `PutBackPending` while the project of an interrupted
/// application is gone; `LeafMoved`, `Storage`.
pub(crate) fn apply(
    core: &Arc<Core>,
    file_move: &FileMove,
    plan_id: PlanId,
    moves: Vec<NewRecord>,
    key: Option<IdempotencyKey>,
    canceled: &CancellationToken,
) -> Result<(Appended, FilePlan)> {
    let id = file_move.id;
    let claim = core.putting_back.claim(id, ()).map_err(|_| AppError::PuttingBack { id })?;
    settle_claimed(core, id)?;
    let preview = core.previews.find(plan_id).filter(|preview| preview.file_move == *file_move);
    let preview = preview.ok_or_else(|| {
        let problem = "is not the plan of a preview of this change, or something was recorded since; preview it again";
        AppError::invalid("planId", problem)
    })?;
    let mut survey = survey(core, file_move)?;
    approve(&mut survey.items, &preview.items);
    let journal = journal(id, plan_id, &survey);
    let applied = move_files(core, file_move, &journal, canceled)
        .and_then(|outcomes| record(core, file_move, &survey, &journal, outcomes, moves, key));
    drop(claim);
    applied.inspect_err(|error| {
        if is_disk_full(error) {
            core.journals.discarded.remove_all();
        }
    })
}

fn is_disk_full(error: &AppError) -> bool {
    match error {
        AppError::Storage(error) => is_full(&error.source),
        AppError::Session(SessionError::Storage { full, .. }) => *full,
        _ => false,
    }
}

/// Keeps the changes that a preview showed. Others stay out.
fn approve(items: &mut [PlanItem], shown: &[PlanItem]) {
    let shown: HashMap<&str, &PlanItem> =
        shown.iter().map(|item| (item.path.as_str(), item)).collect();
    for item in items {
        let shown = shown.get(item.path.as_str());
        let is_shown = shown.is_some_and(|shown| {
            shown.fate == item.fate && item.loses.iter().all(|loss| shown.loses.contains(loss))
        });
        if !is_shown && !matches!(item.fate, FileFate::Left(..)) {
            let reason = "the file changed since the preview".to_owned();
            item.fate = FileFate::Left(FileStatus::Conflict, reason);
        }
    }
}

/// Puts the files of a journal back, and returns the result for each. After an error nothing has changed, or what has is
/// taken back later.
fn move_files(
    core: &Core,
    file_move: &FileMove,
    journal: &Journal,
    canceled: &CancellationToken,
) -> Result<Vec<FileOutcome>> {
    let (id, total) = (file_move.id, journal.changes.len());
    if total == 0 {
        return Ok(Vec::new());
    }
    if let Some(pending) = core.journals.read(id)? {
        return Err(AppError::PutBackPending { id, root: pending.root });
    }
    core.journals.write(journal)?;
    let watch = |step, done: usize| {
        if done.is_multiple_of(PROGRESS_FILES) {
            let cause = file_move.cause.to_owned();
            core.publish(id, None, &FilesProgressData { cause, step, done, total });
        }
        match canceled.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let applied = apply::apply(journal, &SessionContents { core, id }, &watch);
    // The last moment: the record makes the change final.
    let applied = applied.and_then(|outcomes| match watch(PutBackStep::Recording, 0) {
        ControlFlow::Break(()) => Err(ApplyError::Canceled),
        ControlFlow::Continue(()) => Ok(outcomes),
    });
    applied.map_err(|error| match (error, take_back(core, journal)) {
        (ApplyError::Canceled, Ok(())) => AppError::PutBackCanceled { id },
        (ApplyError::Canceled, Err(error)) | (ApplyError::Failed(error), _) => error.into(),
    })
}

/// Appends the moves of the leaf together with the record of files that were put back.
fn record(
    core: &Arc<Core>,
    file_move: &FileMove,
    survey: &FileSurvey,
    journal: &Journal,
    outcomes: Vec<FileOutcome>,
    mut moves: Vec<NewRecord>,
    key: Option<IdempotencyKey>,
) -> Result<(Appended, FilePlan)> {
    let id = file_move.id;
    let (record, files) = put_back_record(file_move, survey, journal, outcomes);
    let mut plan = file_plan(journal.plan_id, survey, files);
    plan.applied = true;
    let n_moves = moves.len() as u64;
    if let Some(record) = record {
        let quota_bytes = core.config().snapshots.file_quota_bytes;
        let contents = kept_contents(journal, &record);
        let files = KeptFiles { contents, quota_bytes, not_kept: NotKept::default() };
        moves.push(NewRecord { files, ..uncounted(RecordBody::PutBack(record)) });
        plan.seq = Some(Seq(n_moves));
    }
    if let Some(text) = delta_text(file_move.cause, &plan) {
        let delta = Delta { topic: "files".to_owned(), text, recalled: Vec::new() };
        moves.push(counted_for(core, id, RecordBody::Delta(delta)).0);
    }
    let appended = core
        .sessions
        .append_after(id, file_move.leaf, moves, key)
        .and_then(|pending| pending.wait())
        .inspect_err(|_| settle_failed(core, journal))?;
    plan.seq = plan.seq.map(|at| Seq(appended.seq.0 + at.0));
    finish(core, journal);
    plan.kept = kept_files(survey);
    Ok((appended, plan))
}

/// Returns the contents that stages in the project have because nothing else has them.
fn kept_files(survey: &FileSurvey) -> Vec<KeptFile> {
    survey.root.as_deref().map_or_else(Vec::new, |root| stage::kept_files(Path::new(root)))
}

/// The contents that a session keeps.
struct SessionContents<'a> {
    core: &'a Core,
    id: SessionId,
}

impl KeptContents for SessionContents<'_> {
    fn read(&self, hash: FileHash) -> Result<Vec<u8>, FsError> {
        self.core.sessions.read_kept_file(self.id, hash)
    }

    fn has(&self, hash: FileHash) -> bool {
        self.core.sessions.keeps_file(self.id, hash)
    }
}

fn journal(id: SessionId, plan_id: PlanId, survey: &FileSurvey) -> Journal {
    let changes = survey.items.iter().filter_map(|item| {
        let FileFate::Change(change) = &item.fate else { return None };
        Some(JournaledChange {
            path: item.path.clone(),
            expected: change.expected,
            wanted: change.wanted,
            mode: change.mode.map(|mode| mode.wanted),
            expected_mode: change.mode.and_then(|mode| mode.expected),
            dirs: change.dirs,
            loses: item.loses.clone(),
        })
    });
    let root = survey.root.as_deref().unwrap_or_default();
    Journal::new(id, plan_id, root.into(), changes.collect())
}

/// Returns the record of the changes, or `None` if the plan has no files, and the outcome of each file.
fn put_back_record(
    file_move: &FileMove,
    survey: &FileSurvey,
    journal: &Journal,
    outcomes: Vec<FileOutcome>,
) -> (Option<PutBack>, Vec<PlannedFile>) {
    let paths = journal.changes.iter().map(|change| change.path.as_str());
    let mut outcomes: HashMap<&str, FileOutcome> = paths.zip(outcomes).collect();
    let (mut files, mut left, mut planned) = (Vec::new(), Vec::new(), Vec::new());
    for item in &survey.items {
        let mut shown = item.planned();
        let done = match (&item.fate, outcomes.remove(item.path.as_str())) {
            (FileFate::Change(change), Some(FileOutcome::Done(mode))) => {
                Some((change.expected, change.wanted, mode))
            }
            (FileFate::Same(state), _) => Some((*state, *state, None)),
            (_, Some(FileOutcome::Left(status, reason))) => {
                (shown.status, shown.action, shown.reason) = (status, None, Some(reason));
                shown.loses.clear();
                None
            }
            _ => None,
        };
        match done {
            Some((before, after, mode)) => {
                let (back, forward) = (item.back.clone(), item.forward.clone());
                let path = item.path.clone();
                files.push(PutBackFile { path, before, after, mode, back, forward });
            }
            None => {
                // The record of a file that stays names no content that nothing has.
                shown.hash = None;
                left.push(shown.clone());
            }
        }
        planned.push(shown);
    }
    let root = survey.root.clone().unwrap_or_default();
    let cause = file_move.cause.to_owned();
    let record = PutBack { plan_id: journal.plan_id, cause, root, files, left };
    ((!survey.items.is_empty()).then_some(record), planned)
}

/// Returns where the contents are that the files had before, so that this can be undone as well.
fn kept_contents(journal: &Journal, record: &PutBack) -> HashMap<FileHash, KeptContent> {
    let places: HashMap<&str, usize> =
        journal.changes.iter().enumerate().map(|(at, change)| (change.path.as_str(), at)).collect();
    let mut contents = HashMap::new();
    for file in record.files.iter().filter(|file| file.before != file.after) {
        if let FileState::Hash(hash) = file.before
            && let Some(at) = places.get(file.path.as_str())
        {
            contents.insert(hash, KeptContent::File(stage::staged_path(journal, *at)));
        }
    }
    contents
}

fn file_plan(plan_id: PlanId, survey: &FileSurvey, mut files: Vec<PlannedFile>) -> FilePlan {
    let (counts, n_files) = (FileCounts::of(&files), files.len());
    limit_page(&mut files);
    FilePlan {
        plan_id,
        root: survey.root.clone(),
        applied: false,
        seq: None,
        counts,
        unlisted: (n_files - files.len()) as u64,
        files,
        unrecorded: survey.unrecorded.clone(),
        unrecorded_calls: survey.unrecorded_calls,
        kept: Vec::new(),
    }
}

/// Returns the text that reports changed files to the model; `None` if none was changed.
fn delta_text(cause: &str, plan: &FilePlan) -> Option<String> {
    let named = |statuses: &[FileStatus]| {
        let files = plan.files.iter().filter(|file| statuses.contains(&file.status));
        let mut names: Vec<String> = files.map(|file| sanitize::one_line(&file.path)).collect();
        let more = names.len().saturating_sub(MAX_NAMED);
        names.truncate(MAX_NAMED);
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    };
    let done = named(&[FileStatus::PutBack]);
    let left = named(&[
        FileStatus::Conflict,
        FileStatus::Unknown,
        FileStatus::Outside,
        FileStatus::InGit,
        FileStatus::Failed,
    ]);
    let verb = if cause == "redo" { "changed again as before the undo" } else { "put back" };
    let mut lines = Vec::new();
    if !done.is_empty() {
        lines.push(format!("These files were {verb}: {done}"));
    }
    if !left.is_empty() {
        lines.push(format!("These files stayed as they are: {left}"));
    }
    if plan.unrecorded_calls > 0 {
        lines.push(format!(
            "Files that {} tool calls may have written without saying which stayed as they are.",
            plan.unrecorded_calls
        ));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Finishes or takes back an application whose record could not be written, as the log says. What fails is repeated later.
fn settle_failed(core: &Core, journal: &Journal) {
    if !journal.changes.is_empty() {
        let settled = settle_claimed(core, journal.session_id);
        if let Err(error) = settled {
            tracing::warn!(session = %journal.session_id, "files are finished or taken back later: {}", crate::error_chain::with_sources(&error));
        }
    }
}

/// Takes back an application that failed before its record was written. What fails is repeated later.
fn take_back(core: &Core, journal: &Journal) -> Result<(), FsError> {
    let id = journal.session_id;
    take_back::take_back(journal, &SessionContents { core, id }, &core.journals.discarded)
        .and_then(|()| core.journals.remove(id))
        .inspect_err(|error| report(journal, "files are taken back later", error))
}

/// Removes the staged files of an application. A later call repeats it if it fails.
fn finish(core: &Core, journal: &Journal) {
    if !journal.changes.is_empty() {
        let id = journal.session_id;
        let contents = SessionContents { core, id };
        let finished = take_back::finish(journal, &contents, &core.journals.discarded)
            .and_then(|()| core.journals.remove(id));
        if let Err(error) = finished {
            report(journal, "staged files are removed later", &error);
        }
    }
}

fn report(journal: &Journal, problem: &str, error: &FsError) {
    tracing::warn!(session = %journal.session_id, "{problem}: {}", crate::error_chain::with_sources(error));
}

/// Finishes or reverses a change of a session's files that a crash or an error interrupted. Blocks on the disk.
///
/// If the project is gone, its files wait until it is there again.
///
/// **Errors**: `PuttingBack` while files of the session are put back; `Storage`.
pub(crate) fn settle(core: &Core, id: SessionId) -> Result<()> {
    let claim = core.putting_back.claim(id, ()).map_err(|_| AppError::PuttingBack { id })?;
    let settled = settle_claimed(core, id);
    drop(claim);
    settled
}

fn settle_claimed(core: &Core, id: SessionId) -> Result<()> {
    let Some(journal) = core.journals.read(id)? else { return Ok(()) };
    if let Some(reason) = absence(&journal) {
        let root = journal.root.display();
        tracing::warn!(session = %id, "an interrupted change of files waits for {root}: {reason}");
        return Ok(());
    }
    // A write that failed may have left its record in the log, and a process that was killed a record that is not synced.
    // The same holds for the names of contents, which let the stage go.
    core.sessions.sync(id)?;
    core.sessions.sync_kept_files(id)?;
    let contents = SessionContents { core, id };
    if is_recorded(core, id, journal.plan_id)? {
        take_back::finish(&journal, &contents, &core.journals.discarded)?;
    } else {
        take_back::take_back(&journal, &contents, &core.journals.discarded)?;
        tracing::info!(session = %id, "took back files that an interrupted call had put back");
    }
    Ok(core.journals.remove(id)?)
}

/// Returns why the project of a journal is not there, or `None` if it is.
fn absence(journal: &Journal) -> Option<String> {
    let is_gone = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
    };
    match open_project(&journal.root) {
        Err(error) => is_gone(&error).then(|| error.to_string()),
        Ok(dir) => {
            // A disk that is not mounted leaves an empty directory in its place.
            let is_empty = dir.is_empty().unwrap_or(false) && journal.leaves_a_file();
            is_empty.then(|| "the directory is empty".to_owned())
        }
    }
}

/// Returns whether the record of a plan is in the log.
fn is_recorded(core: &Core, id: SessionId, plan_id: PlanId) -> Result<bool> {
    let records = core.sessions.with(id, |live| {
        let entries = live.state().entries().iter().enumerate();
        let records = entries.filter(|(_, entry)| entry.kind() == Some(RecordKind::PutBack));
        records.map(|(at, _)| Seq(at as u64)).collect::<Vec<_>>()
    })?;
    // Mostly the plan was recorded last, so the newest records are read first.
    for seq in records.into_iter().rev() {
        if let Some(RecordBody::PutBack(record)) = core.body(id, seq)?
            && record.plan_id == plan_id
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finishes or takes back what a crash interrupted, in all sessions. Blocks on the disk.
pub(crate) fn recover(core: &Core) {
    let sessions = core.journals.sweep().and_then(|_| core.journals.sessions());
    let sessions = match sessions {
        Ok(sessions) => sessions,
        Err(error) => return tracing::warn!("interrupted changes of files may be left: {error}"),
    };
    for id in sessions {
        if let Err(error) = settle(core, id) {
            tracing::warn!(session = %id, "an interrupted change of files is left: {error}");
        }
    }
}

/// Removes the journal of a session that is deleted, and its discarded stages, which have contents of its files. What
/// [`settle`] could not finish or reverse stays as it is. Blocks on the disk.
pub(crate) fn forget(core: &Core, id: SessionId) -> Result<()> {
    core.journals.discarded.forget(id)?;
    Ok(core.journals.remove(id)?)
}

/// Returns the directories of the daemon, in which nothing is put back.
fn private_dirs(core: &Core) -> Vec<std::path::PathBuf> {
    let dirs = [core.journals.home().to_owned(), core.config().sessions.data_dir.clone()];
    let canonical = |dir: &std::path::PathBuf| Path::new(dir).canonicalize().ok();
    dirs.iter().cloned().chain(dirs.iter().filter_map(canonical)).collect()
}

/// Returns the states that the files of a preview will have.
#[cfg(test)]
pub(crate) fn wanted(core: &Core, plan_id: PlanId) -> Vec<(String, FileState)> {
    let preview = core.previews.find(plan_id).expect("was previewed");
    let wanted = |item: &PlanItem| match &item.fate {
        FileFate::Change(change) => Some((item.path.clone(), change.wanted)),
        _ => None,
    };
    preview.items.iter().filter_map(wanted).collect()
}

#[cfg(test)]
mod tests;
