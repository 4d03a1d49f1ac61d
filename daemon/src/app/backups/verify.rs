//! Reading backups as a whole: every manifest and every part, each once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ollm_protocol::method::{BackupVerify, Method as _};
use ollm_protocol::methods::backup::{BackupFinding, BackupVerifyParams, BackupVerifyResult};
use tokio_util::sync::CancellationToken;

use super::{MAX_ITEMS, info_of, require_absolute, secret_of};
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::store_work::StoreWork;
use crate::backup::{BackupError, BackupSource};
use crate::error_chain::with_sources;

/// The most files that a finding names.
const MAX_LOST: usize = 20;

/// A part that a backup needs.
struct NeededPart {
    bytes: u64,
    /// The first files that need it, each as the place of its backup in the result and its place in the manifest.
    files: Vec<(usize, usize)>,
}

/// A check that is under way.
struct BackupCheck<'a> {
    source: &'a BackupSource,
    result: BackupVerifyResult,
    needed: HashMap<String, NeededPart>,
    /// The files that the findings lose, each with the place of the finding.
    lost: Vec<(usize, (usize, usize))>,
}

pub(super) fn verify(
    core: &Arc<Core>,
    params: &BackupVerifyParams,
    left: &CancellationToken,
) -> Result<BackupVerifyResult> {
    let work = StoreWork::begin(core, BackupVerify::NAME, left)?;
    require_absolute(&params.path)?;
    let mut result = BackupVerifyResult {
        ok: true,
        encrypted: false,
        backups: Vec::new(),
        parts: 0,
        bytes: 0,
        unneeded_parts: 0,
        findings: Vec::new(),
    };
    let secret = secret_of(params.secret.as_ref())?;
    let source = match BackupSource::open(&params.path, &secret) {
        Err(BackupError::Damaged { name, offset, problem, .. }) => {
            let (text, lost) = (problem.to_owned(), Vec::new());
            result.ok = false;
            result.findings.push(BackupFinding { path: name, offset, text, lost });
            return Ok(result);
        }
        opened => opened?,
    };
    result.encrypted = source.is_encrypted();
    let (needed, lost) = (HashMap::new(), Vec::new());
    let mut check = BackupCheck { source: &source, result, needed, lost };
    check.manifests()?;
    check.parts(work)?;
    check.name_lost();
    Ok(check.result)
}

impl BackupCheck<'_> {
    /// Reads all manifests and notes the parts that they name.
    fn manifests(&mut self) -> Result<()> {
        let ids = self.source.ids()?;
        if ids.is_empty() {
            let (path, text) = ("backups".to_owned(), "no backup is complete".to_owned());
            self.find(BackupFinding { path, offset: None, text, lost: Vec::new() });
        }
        for id in ids {
            let manifest = match self.source.manifest(&id) {
                Ok(manifest) => manifest,
                Err(error) => {
                    let lost = vec![format!("the backup {id}")];
                    self.note(&self.source.manifest_name(&id), error, lost)?;
                    continue;
                }
            };
            let backup = self.result.backups.len();
            for (file, entry) in manifest.files.iter().enumerate() {
                for (name, bytes) in entry.sized_parts() {
                    let new = || NeededPart { bytes, files: Vec::new() };
                    let part = self.needed.entry(name.to_owned()).or_insert_with(new);
                    if part.files.len() < MAX_LOST {
                        part.files.push((backup, file));
                    }
                }
            }
            self.result.backups.push(info_of(id, &manifest));
        }
        Ok(())
    }

    /// Reads all parts, those that are missing too.
    fn parts(&mut self, mut work: StoreWork<'_>) -> Result<()> {
        let mut parts = self.source.parts()?;
        work.set_total(parts.iter().map(|(_, bytes)| bytes).sum());
        let found: HashSet<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        let missing = self.needed.keys().filter(|name| !found.contains(name.as_str()));
        let missing: Vec<_> = missing.map(|name| (name.clone(), 0)).collect();
        parts.extend(missing);
        for (name, stored) in parts {
            let part = self.needed.remove(&name);
            self.result.unneeded_parts += u64::from(part.is_none());
            match self.source.part(&name, part.as_ref().map(|part| part.bytes)) {
                Ok(bytes) => {
                    self.result.parts += 1;
                    self.result.bytes += bytes.len() as u64;
                }
                Err(error) => {
                    let finding = self.note(&format!("parts/{name}"), error, Vec::new())?;
                    let files = part.map(|part| part.files).unwrap_or_default();
                    let lost = files.into_iter().filter_map(|file| Some((finding?, file)));
                    self.lost.extend(lost);
                }
            }
            work.advance(stored)?;
        }
        Ok(())
    }

    /// Names the files that the findings lose. Manifests are read again for it, because their names could fill the memory.
    fn name_lost(&mut self) {
        self.lost.sort_unstable_by_key(|(finding, file)| (*file, *finding));
        for lost in self.lost.chunk_by(|(_, one), (_, other)| one.0 == other.0) {
            let id = &self.result.backups[lost[0].1.0].backup_id;
            let Ok(manifest) = self.source.manifest(id) else { continue };
            for (finding, (_, file)) in lost {
                let Some(file) = manifest.files.get(*file) else { continue };
                self.result.findings[*finding].lost.push(format!("{} of {id}", file.path));
            }
        }
    }

    /// Adds damage to the result, or a file that cannot be read. Returns the place of the finding, `None` if there are too
    /// many.
    ///
    /// **Errors**: what says nothing about the file.
    fn note(&mut self, path: &str, error: BackupError, lost: Vec<String>) -> Result<Option<usize>> {
        let (offset, text) = match error {
            BackupError::Damaged { offset, problem, .. } => (offset, problem.to_owned()),
            BackupError::File(ref file) if error.is_of_one_file() => {
                (None, format!("it cannot be read: {}", with_sources(&file.source)))
            }
            error => return Err(error.into()),
        };
        Ok(self.find(BackupFinding { path: path.to_owned(), offset, text, lost }))
    }

    fn find(&mut self, finding: BackupFinding) -> Option<usize> {
        self.result.ok = false;
        let place = self.result.findings.len();
        let has_room = place < MAX_ITEMS;
        if has_room {
            self.result.findings.push(finding);
        }
        has_room.then_some(place)
    }
}
