//! Making a backup: sessions one after another, each at one instant, then the small files of the home.

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::SessionStatus;
use ollm_protocol::method::{BackupCreate, Method as _};
use ollm_protocol::methods::backup::{BackupCreateParams, BackupCreateResult, SkippedFile};
use tokio_util::sync::CancellationToken;

use super::{MAX_ITEMS, info_of, require_outside, secret_of};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::store_work::StoreWork;
use crate::backup::{BackupTarget, HomeFile, Manifest, ManifestFile, ManifestSession, PART_BYTES};
use crate::config::{self, portable};
use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};
use crate::session::{SessionCopy, SessionError};

pub(super) fn create(
    core: &Arc<Core>,
    params: &BackupCreateParams,
    left: &CancellationToken,
) -> Result<BackupCreateResult> {
    let work = StoreWork::begin(core, BackupCreate::NAME, left)?;
    require_outside(core, &params.path)?;
    let secret = secret_of(params.secret.as_ref())?;
    let only = params.session_id;
    // A session that does not exist is an error before anything is written.
    only.map(|id| core.sessions.files(id)).transpose()?;
    let target = BackupTarget::open(&params.path, &secret)?;
    let manifest = Manifest::new(core.clock.now(), only);
    let (skipped, mut warnings) = (Vec::new(), Vec::new());
    if target.ignores_recipients() {
        let text = "the recipients were not used: who can read this directory was decided when it \
                    was made";
        warnings.push(text.to_owned());
    }
    let mut backup = Backup { core, work, target, manifest, skipped, warnings };
    backup.add_sessions(only)?;
    if only.is_none() {
        backup.add_home_files()?;
    }
    let Backup { target, manifest, mut skipped, mut warnings, .. } = backup;
    let (counts, encrypted) = (target.counts(), target.is_encrypted());
    let id = target.finish(&manifest)?;
    skipped.truncate(MAX_ITEMS);
    warnings.truncate(MAX_ITEMS);
    Ok(BackupCreateResult {
        backup: info_of(id, &manifest),
        encrypted,
        new_parts: counts.new,
        new_bytes: counts.new_bytes,
        known_parts: counts.known,
        skipped,
        warnings,
    })
}

/// A backup that is being made.
struct Backup<'a> {
    core: &'a Core,
    work: StoreWork<'a>,
    target: BackupTarget,
    manifest: Manifest,
    skipped: Vec<SkippedFile>,
    warnings: Vec<String>,
}

impl Backup<'_> {
    fn add_sessions(&mut self, only: Option<SessionId>) -> Result<()> {
        let mut logs = self.core.sessions.log_ids()?;
        logs.retain(|(id, _)| only.is_none_or(|only| only == *id));
        logs.sort_unstable();
        let sessions = &self.core.sessions;
        let blobs = |id| fsutil::size_of_files(&sessions.blobs_path(id)).unwrap_or_default();
        self.work.set_total(logs.iter().map(|(id, bytes)| bytes + blobs(*id)).sum());
        for (id, _) in logs {
            let (n_files, added) = (self.manifest.files.len(), self.add_session(id));
            let reason = match added {
                Ok(()) => continue,
                Err(error) if only.is_some() || !is_of_session(&error) => return Err(error),
                Err(AppError::Session(SessionError::NotFound { .. })) => {
                    let reason = "none of its lines is a whole record";
                    sessions.is_lost(id).then(|| reason.to_owned())
                }
                Err(error) => Some(with_sources(&error)),
            };
            self.manifest.files.truncate(n_files);
            let path = HomeFile::Log(id).path();
            self.skipped.extend(reason.map(|reason| SkippedFile { path, reason }));
        }
        Ok(())
    }

    /// Adds the files of a session. After an error some of them may be in the manifest.
    fn add_session(&mut self, id: SessionId) -> Result<()> {
        let files = self.core.sessions.files(id)?;
        self.add_log(id, &files)?;
        let warnings = self.add_blobs(id, &files)?;
        if !self.core.sessions.has_log(id) {
            // A deletion removes the blobs after the log.
            return Err(SessionError::NotFound { id }.into());
        }
        self.warnings.extend(warnings);
        self.add_snapshots(id)?;
        let summary = files.summary;
        if summary.status == SessionStatus::Corrupted {
            let n_damaged = summary.damaged_records;
            self.warnings.push(format!("session {id} has damage: {n_damaged} records are lost"));
        }
        self.manifest.sessions.push(ManifestSession {
            session_id: id,
            title: summary.title,
            last_activity: summary.last_activity,
            records: files.records,
        });
        Ok(())
    }

    /// Adds the blobs of a session; returns warnings about those that are damaged or missing.
    fn add_blobs(&mut self, id: SessionId, files: &SessionCopy) -> Result<Vec<String>> {
        let fail = |error: FsError| SessionError::fs(id, &error);
        let mut warnings = Vec::new();
        let mut missing = files.named_blobs().map_err(fail)?;
        for name in files.blob_names().map_err(fail)? {
            // One that is gone belonged to a write that failed, or is missing.
            let Some(bytes) = files.read_blob(&name).map_err(fail)? else { continue };
            missing.remove(&name);
            self.add(&HomeFile::Blob(id, name.clone()), &bytes)?;
            // A small one without encryption is a part with the same name.
            let parts = self.manifest.files.last().map(|file| file.parts.as_slice());
            if parts != Some(std::slice::from_ref(&name))
                && blake3::hash(&bytes).to_hex().as_str() != name
            {
                warnings.push(format!("session {id}: the blob {name} is damaged"));
            }
        }
        for (name, (seq, _)) in missing {
            let text =
                format!("session {id}: the blob {name} is missing, which record {seq} names");
            warnings.push(text);
        }
        Ok(warnings)
    }

    /// Adds the snapshots of a session; notes their directory if it cannot be read.
    fn add_snapshots(&mut self, id: SessionId) -> Result<()> {
        let files = match self.core.snapshots.file_paths(id) {
            Ok(files) => files,
            Err(error) => {
                let dir = HomeFile::Snapshot(id, String::new()).path();
                self.skipped.push(SkippedFile { path: dir, reason: with_sources(&error) });
                return Ok(());
            }
        };
        for (name, path) in files {
            self.add_small(&HomeFile::Snapshot(id, name), &path, Some)?;
        }
        Ok(())
    }

    fn add_log(&mut self, id: SessionId, files: &SessionCopy) -> Result<()> {
        let mut parts = Vec::new();
        let mut buffer =
            vec![0; PART_BYTES.min(usize::try_from(files.log_bytes).unwrap_or(PART_BYTES))];
        let mut offset = 0;
        while offset < files.log_bytes {
            let len = (files.log_bytes - offset).min(PART_BYTES as u64);
            let part = &mut buffer[..len as usize];
            let is_read =
                files.read_log(part, offset).map_err(|error| SessionError::fs(id, &error))?;
            if !is_read {
                // A deletion empties the log.
                return Err(SessionError::NotFound { id }.into());
            }
            parts.push(self.target.add(part)?);
            self.work.advance(len)?;
            offset += len;
        }
        let path = HomeFile::Log(id).path();
        self.manifest.files.push(ManifestFile { path, bytes: files.log_bytes, parts });
        Ok(())
    }

    /// Adds a file with its whole content.
    fn add(&mut self, file: &HomeFile, bytes: &[u8]) -> Result<()> {
        let mut parts = Vec::new();
        for part in bytes.chunks(PART_BYTES) {
            parts.push(self.target.add(part)?);
            self.work.advance(part.len() as u64)?;
        }
        let (path, bytes) = (file.path(), bytes.len() as u64);
        self.manifest.files.push(ManifestFile { path, bytes, parts });
        Ok(())
    }

    /// Adds the configuration and the files of projects.
    fn add_home_files(&mut self) -> Result<()> {
        let home = self.core.journals.home();
        let of_text =
            |bytes: Vec<u8>| Some(portable(&String::from_utf8(bytes).ok()?)?.into_bytes());
        self.add_small(&HomeFile::Config, &home.join(config::FILE_NAME), of_text)?;
        let global = self.core.projects.global_file().to_owned();
        self.add_small(&HomeFile::Global, &global, Some)?;
        for (name, path) in self.core.projects.files()? {
            let file = HomeFile::Project(name);
            // A name that this daemon never writes could not be restored.
            if HomeFile::parse(&file.path()).is_some() {
                self.add_small(&file, &path, Some)?;
            }
        }
        Ok(())
    }

    /// Adds a file that is replaced as a whole, converted; notes one that cannot be read. A missing one is left out.
    fn add_small(
        &mut self,
        file: &HomeFile,
        path: &Path,
        convert: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>,
    ) -> Result<()> {
        let read = match file {
            // A person may have linked it.
            HomeFile::Config => fsutil::read_linked_text(path).map(String::into_bytes),
            _ => fsutil::read_regular(path),
        };
        let reason = match read {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => error.to_string(),
            Ok(bytes) => match convert(bytes) {
                Some(bytes) => return self.add(file, &bytes),
                None => "it cannot be parsed".to_owned(),
            },
        };
        self.skipped.push(SkippedFile { path: file.path(), reason });
        Ok(())
    }
}

/// Returns whether an error is about one session, so that the others can be backed up.
fn is_of_session(error: &AppError) -> bool {
    matches!(error, AppError::Session(_))
}
