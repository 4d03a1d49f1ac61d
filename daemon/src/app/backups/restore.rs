//! Restoring a backup: everything is read and checked before the first file is in the home.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::event::SessionCreatedData;
use ollm_protocol::method::{BackupRestore, Method as _};
use ollm_protocol::methods::backup::{BackupRestoreParams, BackupRestoreResult, UnreadableBackup};
use tokio_util::sync::CancellationToken;

use super::{finish_earlier, info_of, require_absolute, secret_of, unreadable};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::store_work::StoreWork;
use crate::backup::{BackupError, BackupSource, HomeFile, Manifest, ManifestFile, RestoreStage};
use crate::fsutil::FsError;
use crate::session::SessionError;

/// The longest wait until the catalog has the restored sessions.
const CATALOG_WAIT: Duration = Duration::from_secs(2);

/// The backup to be restored, and the newer ones that cannot be read.
type ChosenBackup = (String, Manifest, Vec<UnreadableBackup>);

/// A log of the home, compared with that of a backup.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedLog {
    /// The log has all records of the backup.
    Whole,
    /// The log has only the first records of the backup.
    Shorter,
    /// The log has other records, or is gone.
    Other,
}

pub(super) fn restore(
    core: &Arc<Core>,
    params: &BackupRestoreParams,
    left: &CancellationToken,
) -> Result<BackupRestoreResult> {
    let work = StoreWork::begin(core, BackupRestore::NAME, left)?;
    require_absolute(&params.path)?;
    finish_earlier(core)?;
    let source = BackupSource::open(&params.path, &secret_of(params.secret.as_ref())?)?;
    let (backup_id, manifest, unreadable) = choose(&source, params)?;
    let only = params.session_id.or(manifest.session_id);
    let mut restored = BackupRestoreResult {
        backup: info_of(backup_id.clone(), &manifest),
        sessions: Vec::new(),
        present: Vec::new(),
        bytes: 0,
        kept: Vec::new(),
        unreadable,
        config_restored: false,
    };
    match only {
        None => require_no_session(core)?,
        Some(id) if core.sessions.is_taken(id) => {
            let path = params.path.clone();
            let Some(log) = manifest.log_of(id) else {
                return Err(AppError::NotInBackup { id, path });
            };
            let found = compare(core, &source, log, id)?;
            if found != ComparedLog::Whole {
                let is_longer = found == ComparedLog::Shorter;
                return Err(AppError::RestoreConflict { id, is_longer, path, backup_id });
            }
            restored.present.push(id);
            return Ok(restored);
        }
        Some(_) => {}
    }
    let files = missing_files(core, &manifest, only, &mut restored.kept);
    restored.bytes = files.iter().map(|(_, file)| file.bytes).sum();
    restored.config_restored = files.iter().any(|(file, _)| *file == HomeFile::Config);
    let kept = put_into_home(core, &source, &files, work)?;
    restored.kept.extend(kept.iter().map(|id| HomeFile::Log(*id).path()));
    let is_restored = |id: SessionId| only.is_none_or(|only| only == id) && !kept.contains(&id);
    restored.sessions = announce(core, &manifest, is_restored);
    Ok(restored)
}

/// Returns the backup that the params name, or the newest with the session that they name.
fn choose(source: &BackupSource, params: &BackupRestoreParams) -> Result<ChosenBackup> {
    if let Some(id) = &params.backup_id {
        let manifest = source.manifest(id)?;
        let has = |session: SessionId| manifest.log_of(session).is_some();
        return match params.session_id.filter(|session| !has(*session)) {
            None => Ok((id.clone(), manifest, Vec::new())),
            Some(id) => Err(AppError::NotInBackup { id, path: params.path.clone() }),
        };
    }
    if let Some(session) = params.session_id {
        return newest_with(source, session, &params.path);
    }
    // Backups of single sessions are no states of the home, unless there are no others.
    let mut newest = None;
    for id in source.ids()? {
        let manifest = source.manifest(&id)?;
        if manifest.session_id.is_none() {
            return Ok((id, manifest, Vec::new()));
        }
        newest.get_or_insert((id, manifest, Vec::new()));
    }
    let (path, id) = (params.path.clone(), "that is complete".to_owned());
    newest.ok_or_else(|| BackupError::NoSuchBackup { path, id }.into())
}

/// Returns the newest backup with a session that can be read.
fn newest_with(source: &BackupSource, session: SessionId, path: &Path) -> Result<ChosenBackup> {
    let mut failures = Vec::new();
    for id in source.ids()? {
        match source.manifest(&id) {
            Ok(manifest) if manifest.log_of(session).is_some() => {
                let newer = failures.into_iter().map(|(id, error)| unreadable(id, &error));
                return Ok((id, manifest, newer.collect()));
            }
            Ok(_) => {}
            Err(error) if error.is_of_one_file() => failures.push((id, error)),
            Err(error) => return Err(error.into()),
        }
    }
    match failures.into_iter().next() {
        // It may be the one with the session.
        Some((_, error)) => Err(error.into()),
        None => Err(AppError::NotInBackup { id: session, path: path.to_owned() }),
    }
}

/// Refuses a home that is in use: what was deleted since would come back, and what was changed would be mixed.
fn require_no_session(core: &Core) -> Result<()> {
    let sessions = &core.sessions;
    // One that is open may have lost the name of its log, and is written to all the same.
    let is_empty = sessions.log_ids()?.is_empty()
        && sessions.unfinished_deletions()?.is_empty()
        && sessions.open_summaries().is_empty();
    is_empty.then_some(()).ok_or(AppError::HomeInUse)
}

/// Compares the log of a session of the home with that of a backup.
fn compare(
    core: &Core,
    source: &BackupSource,
    log: &ManifestFile,
    id: SessionId,
) -> Result<ComparedLog> {
    let live = match core.sessions.files(id) {
        Err(SessionError::NotFound { .. }) => return Ok(ComparedLog::Other),
        files => files?,
    };
    let mut offset = 0;
    for (name, bytes) in log.sized_parts() {
        let part = source.part(name, Some(bytes))?;
        let len = (live.log_bytes - offset).min(bytes);
        let mut own = vec![0; len as usize];
        let is_read = live.read_log(&mut own, offset);
        if !is_read.map_err(|error| SessionError::fs(id, &error))? || own != part[..len as usize] {
            return Ok(ComparedLog::Other);
        }
        if len < bytes {
            return Ok(ComparedLog::Shorter);
        }
        offset += len;
    }
    Ok(ComparedLog::Whole)
}

/// Returns the files of a backup that the home lacks, or only those of a session; adds those that it has to `kept`.
fn missing_files<'m>(
    core: &Core,
    manifest: &'m Manifest,
    only: Option<SessionId>,
    kept: &mut Vec<String>,
) -> Vec<(HomeFile, &'m ManifestFile)> {
    let (home, mut files) = (core.journals.home(), Vec::new());
    for file in &manifest.files {
        let Some(home_file) = HomeFile::parse(&file.path) else { continue };
        if only.is_some_and(|only| home_file.session() != Some(only)) {
            continue;
        }
        let is_beside_log = matches!(home_file, HomeFile::Log(_) | HomeFile::Blob(..));
        if is_beside_log || home.join(&file.path).symlink_metadata().is_err() {
            files.push((home_file, file));
        } else {
            kept.push(file.path.clone());
        }
    }
    files
}

/// Reads and checks all files and moves them into the home. Returns the sessions that it got meanwhile.
fn put_into_home(
    core: &Core,
    source: &BackupSource,
    files: &[(HomeFile, &ManifestFile)],
    mut work: StoreWork<'_>,
) -> Result<BTreeSet<SessionId>> {
    work.set_total(files.iter().map(|(_, file)| file.bytes).sum());
    let (home, sessions) = (core.journals.home(), core.sessions.dir());
    let mut stage = RestoreStage::begin(home, sessions, files.len())?;
    for (home_file, file) in files {
        if let Err(error) = write(&mut stage, source, home_file, file, &mut work) {
            stage.discard();
            return Err(error);
        }
    }
    // A change that began before the file of its project was there would replace it.
    let _unchanged = core.projects.hold();
    stage.commit()?.map_err(|source| AppError::RestoreUnfinished { source })
}

fn write(
    stage: &mut RestoreStage,
    source: &BackupSource,
    home_file: &HomeFile,
    file: &ManifestFile,
    work: &mut StoreWork<'_>,
) -> Result<()> {
    let mut out = stage.create(home_file)?;
    for (name, bytes) in file.sized_parts() {
        let part = source.part(name, Some(bytes))?;
        let written = out.write_all(&part);
        written.map_err(|error| FsError::new("write", out.path(), error))?;
        work.advance(bytes)?;
    }
    Ok(stage.add(&out)?)
}

/// Lets everything know of the restored sessions, and returns them.
fn announce(
    core: &Core,
    manifest: &Manifest,
    is_restored: impl Fn(SessionId) -> bool,
) -> Vec<SessionId> {
    if let Err(error) = core.snapshots.recover() {
        tracing::warn!("the map of snapshots is corrected at the next start: {error}");
    }
    let mut restored = Vec::new();
    for session in manifest.sessions.iter().filter(|session| is_restored(session.session_id)) {
        let (id, title) = (session.session_id, session.title.clone());
        core.catalog.mark_dirty(id);
        core.publish(id, None, &SessionCreatedData { title });
        restored.push(id);
    }
    // Lists show them from now on, unless there are too many to wait for.
    core.catalog.wait_caught_up(Instant::now() + CATALOG_WAIT);
    restored
}
