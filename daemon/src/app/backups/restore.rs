//! Restoring a backup: everything is read and checked before the first file is in the home.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::event::SessionCreatedData;
use ollm_protocol::method::{BackupRestore, Method as _};
use ollm_protocol::methods::backup::{BackupRestoreParams, BackupRestoreResult};
use tokio_util::sync::CancellationToken;

use super::{info_of, require_absolute, secret_of};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::store_work::StoreWork;
use crate::backup::{BackupError, BackupSource, HomeFile, Manifest, ManifestFile, RestoreStage};
use crate::fsutil::FsError;
use crate::session::SessionError;

/// The longest wait until the catalog has the restored sessions.
const CATALOG_WAIT: Duration = Duration::from_secs(2);

pub(super) fn restore(
    core: &Arc<Core>,
    params: &BackupRestoreParams,
    left: &CancellationToken,
) -> Result<BackupRestoreResult> {
    let work = StoreWork::begin(core, BackupRestore::NAME, left)?;
    require_absolute(&params.path)?;
    let source = BackupSource::open(&params.path, &secret_of(params.secret.as_ref())?)?;
    let (id, manifest) = choose(&source, params)?;
    let only = params.session_id.or(manifest.session_id);
    let mut restored = BackupRestoreResult {
        backup: info_of(id, &manifest),
        sessions: Vec::new(),
        present: Vec::new(),
        bytes: 0,
        kept: Vec::new(),
    };
    match only {
        None => require_no_session(core)?,
        Some(id) if core.sessions.is_taken(id) => {
            compare(core, &source, &manifest, &params.path, id)?;
            restored.present.push(id);
            return Ok(restored);
        }
        Some(_) => {}
    }
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
            restored.kept.push(file.path.clone());
        }
    }
    restored.bytes = files.iter().map(|(_, file)| file.bytes).sum();
    put_into_home(core, &source, &files, work)?;
    announce(core, &manifest, only, &mut restored);
    Ok(restored)
}

/// Returns the backup that the params name, or the newest with the session that they name.
fn choose(source: &BackupSource, params: &BackupRestoreParams) -> Result<(String, Manifest)> {
    if let Some(id) = &params.backup_id {
        let manifest = source.manifest(id)?;
        let has = |session: SessionId| manifest.log_of(session).is_some();
        return match params.session_id.filter(|session| !has(*session)) {
            None => Ok((id.clone(), manifest)),
            Some(id) => Err(AppError::NotInBackup { id, path: params.path.clone() }),
        };
    }
    let Some(session) = params.session_id else {
        // Backups of single sessions are no states of the home, unless there are no others.
        let mut newest = None;
        for id in source.ids()? {
            let manifest = source.manifest(&id)?;
            if manifest.session_id.is_none() {
                return Ok((id, manifest));
            }
            newest.get_or_insert((id, manifest));
        }
        let (path, id) = (params.path.clone(), "that is complete".to_owned());
        return newest.ok_or_else(|| BackupError::NoSuchBackup { path, id }.into());
    };
    for id in source.ids()? {
        let manifest = source.manifest(&id)?;
        if manifest.log_of(session).is_some() {
            return Ok((id, manifest));
        }
    }
    Err(AppError::NotInBackup { id: session, path: params.path.clone() })
}

/// Refuses a home that is in use: what was deleted since would come back, and what was changed would be mixed.
fn require_no_session(core: &Core) -> Result<()> {
    let is_empty =
        core.sessions.log_ids()?.is_empty() && core.sessions.unfinished_deletions()?.is_empty();
    is_empty.then_some(()).ok_or(AppError::HomeInUse)
}

/// Compares a session of the home with that of a backup; succeeds if the home has all of its records.
///
/// **Errors**: `RestoreConflict`.
fn compare(
    core: &Core,
    source: &BackupSource,
    manifest: &Manifest,
    path: &Path,
    id: SessionId,
) -> Result<()> {
    let conflict = |is_longer| AppError::RestoreConflict { id, is_longer, path: path.to_owned() };
    let live = match core.sessions.files(id) {
        Err(SessionError::NotFound { .. }) => return Err(conflict(false)),
        files => files?,
    };
    let missing = || AppError::NotInBackup { id, path: path.to_owned() };
    let log = manifest.log_of(id).ok_or_else(missing)?;
    let mut offset = 0;
    for (name, bytes) in log.sized_parts() {
        let part = source.part(name, Some(bytes))?;
        let len = (live.log_bytes - offset).min(bytes);
        let mut own = vec![0; len as usize];
        let is_read = live.read_log(&mut own, offset);
        if !is_read.map_err(|error| SessionError::fs(id, &error))? || own != part[..len as usize] {
            return Err(conflict(false));
        }
        if len < bytes {
            return Err(conflict(true));
        }
        offset += len;
    }
    Ok(())
}

/// Reads and checks all files and moves them into the home.
fn put_into_home(
    core: &Core,
    source: &BackupSource,
    files: &[(HomeFile, &ManifestFile)],
    mut work: StoreWork<'_>,
) -> Result<()> {
    work.set_total(files.iter().map(|(_, file)| file.bytes).sum());
    let (home, sessions) = (core.journals.home(), core.sessions.dir());
    let mut stage = RestoreStage::begin(home, sessions, files.len())?;
    for (home_file, file) in files {
        if let Err(error) = write(&mut stage, source, home_file, file, &mut work) {
            stage.discard();
            return Err(error);
        }
    }
    match stage.commit()? {
        Ok(()) => Ok(()),
        Err(error) => Err(AppError::RestoreUnfinished { source: error }),
    }
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

/// Lets everything know of the restored sessions.
fn announce(
    core: &Core,
    manifest: &Manifest,
    only: Option<SessionId>,
    restored: &mut BackupRestoreResult,
) {
    if let Err(error) = core.snapshots.recover() {
        tracing::warn!("the map of snapshots is corrected at the next start: {error}");
    }
    let is_restored = |id: SessionId| only.is_none_or(|only| only == id);
    for session in manifest.sessions.iter().filter(|session| is_restored(session.session_id)) {
        let (id, title) = (session.session_id, session.title.clone());
        core.catalog.mark_dirty(id);
        core.publish(id, None, &SessionCreatedData { title });
        restored.sessions.push(id);
    }
    // Lists show them from now on, unless there are too many to wait for.
    core.catalog.wait_caught_up(Instant::now() + CATALOG_WAIT);
}
