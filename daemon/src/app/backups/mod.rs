//! `backup.*`: backups of the home or of one session, and their return.
//!
//! All of it happens in a daemon: it alone reads and writes sessions while others do. A restore into a new home is asked of
//! the daemon of that home.
//!
//! **Invariant**: a backup has of each session a beginning of its log that was acknowledged, and every blob that it names.
//! A restore replaces nothing, and comes into the home as a whole or not at all.

mod create;
mod prune;
mod restore;
mod verify;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ollm_protocol::methods::backup::{
    BackedUpSession, BackupCreateParams, BackupCreateResult, BackupInfo, BackupListParams,
    BackupListResult, BackupPruneParams, BackupPruneResult, BackupRestoreParams,
    BackupRestoreResult, BackupSecret, BackupVerifyParams, BackupVerifyResult, UnreadableBackup,
};
use tokio_util::sync::CancellationToken;

use super::core::{Core, blocking};
use super::error::{AppError, Result};
use crate::backup::{BackupError, BackupSource, HomeFile, Manifest, Secret};
use crate::error_chain::with_sources;

/// The most items of a list in a result.
const MAX_ITEMS: usize = 1000;

/// Backs up the home or one session (`backup.create`).
pub(crate) async fn create(
    core: Arc<Core>,
    params: BackupCreateParams,
    left: CancellationToken,
) -> Result<BackupCreateResult> {
    blocking(&core, move |core| create::create(core, &params, &left)).await
}

/// Reads backups as a whole (`backup.verify`).
pub(crate) async fn verify(
    core: Arc<Core>,
    params: BackupVerifyParams,
    left: CancellationToken,
) -> Result<BackupVerifyResult> {
    blocking(&core, move |core| verify::verify(core, &params, &left)).await
}

/// Restores a backup, or one session of it (`backup.restore`).
pub(crate) async fn restore(
    core: Arc<Core>,
    params: BackupRestoreParams,
    left: CancellationToken,
) -> Result<BackupRestoreResult> {
    blocking(&core, move |core| restore::restore(core, &params, &left)).await
}

/// Removes the backups that no rule keeps (`backup.prune`).
pub(crate) async fn prune(
    core: Arc<Core>,
    params: BackupPruneParams,
    left: CancellationToken,
) -> Result<BackupPruneResult> {
    blocking(&core, move |core| prune::prune(core, &params, &left)).await
}

/// Lists the backups of a place (`backup.list`). Blocks on the disk.
pub(crate) fn list(_: &Arc<Core>, params: BackupListParams) -> Result<BackupListResult> {
    require_absolute(&params.path)?;
    let source = BackupSource::open(&params.path, &secret_of(params.secret.as_ref())?)?;
    let ids = match &params.backup_id {
        Some(id) => vec![id.clone()],
        None => source.ids()?,
    };
    let mut result = BackupListResult {
        encrypted: source.is_encrypted(),
        data: Vec::new(),
        sessions: Vec::new(),
        unreadable: Vec::new(),
    };
    for id in ids {
        let manifest = match source.manifest(&id) {
            // The others may be whole.
            Err(error) if params.backup_id.is_none() && error.is_of_one_file() => {
                result.unreadable.push(unreadable(id, &error));
                continue;
            }
            manifest => manifest?,
        };
        if params.backup_id.is_some() {
            result.sessions = sessions_of(&manifest);
        }
        result.data.push(info_of(id, &manifest));
    }
    Ok(result)
}

/// Finishes or removes what an interrupted restore left. Blocks on the disk.
pub(crate) fn recover(core: &Core) {
    // A restore that is under way does it itself.
    let Some(_one_at_a_time) = core.store_work.try_lock() else { return };
    if let Err(error) = finish_earlier(core) {
        tracing::warn!("a part of an interrupted restore is left: {}", with_sources(&error));
    }
}

/// Finishes an interrupted restore whose files are complete, or removes an incomplete one. No restore runs meanwhile.
fn finish_earlier(core: &Core) -> Result<()> {
    // A change that began before the file of its project was there would replace it.
    let _unchanged = core.projects.hold();
    let finished = crate::backup::finish_or_discard(core.journals.home(), core.sessions.dir())?;
    finished.into_iter().for_each(|id| core.catalog.mark_dirty(id));
    Ok(())
}

fn sessions_of(manifest: &Manifest) -> Vec<BackedUpSession> {
    let sizes: HashMap<&str, u64> =
        manifest.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    let mut sessions: Vec<BackedUpSession> = manifest
        .sessions
        .iter()
        .map(|session| BackedUpSession {
            session_id: session.session_id,
            title: session.title.clone(),
            last_activity: session.last_activity,
            records: session.records,
            log_bytes: sizes
                .get(HomeFile::Log(session.session_id).path().as_str())
                .copied()
                .unwrap_or_default(),
        })
        .collect();
    sessions.sort_by_key(|session| std::cmp::Reverse(session.last_activity));
    sessions
}

fn info_of(backup_id: String, manifest: &Manifest) -> BackupInfo {
    BackupInfo {
        backup_id,
        created_at: manifest.created_at,
        version: manifest.daemon.clone(),
        session_id: manifest.session_id,
        sessions: manifest.sessions.len() as u64,
        files: manifest.files.len() as u64,
        bytes: manifest.bytes(),
    }
}

fn unreadable(backup_id: String, error: &BackupError) -> UnreadableBackup {
    UnreadableBackup { backup_id, reason: with_sources(error) }
}

fn secret_of(secret: Option<&BackupSecret>) -> Result<Secret> {
    let Some(secret) = secret else { return Ok(Secret::default()) };
    let secret = Secret::parse(secret.passphrase.clone(), &secret.identities, &secret.recipients)?;
    if secret.is_empty() {
        // A backup that was to be encrypted must not be a plain one.
        return Err(AppError::invalid("secret", "has neither a passphrase nor a key"));
    }
    Ok(secret)
}

/// Refuses a relative path: the daemon has no working directory.
fn require_absolute(path: &Path) -> Result<()> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(AppError::invalid("path", "must be absolute"))
}

/// Refuses a place in the home, whose loss a backup is made against.
fn require_outside(core: &Core, path: &Path) -> Result<()> {
    require_absolute(path)?;
    let existing = path.ancestors().find_map(|part| part.canonicalize().ok());
    let homes = [core.journals.home(), core.sessions.dir()];
    let is_inside = |home: &Path| {
        let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
        existing.as_ref().is_some_and(|path| path.starts_with(&home))
    };
    if homes.into_iter().any(is_inside) {
        let problem = format!("{} lies in the home; name a place on another disk", path.display());
        return Err(AppError::invalid("path", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
