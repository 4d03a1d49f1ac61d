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

/// The most files that a finding names.
const MAX_LOST: usize = 20;

/// A part that a backup needs.
struct NeededPart {
    bytes: u64,
    /// The files that need it, as a finding names them.
    files: Vec<String>,
}

pub(super) fn verify(
    core: &Arc<Core>,
    params: &BackupVerifyParams,
    left: &CancellationToken,
) -> Result<BackupVerifyResult> {
    let mut work = StoreWork::begin(core, BackupVerify::NAME, left)?;
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
        Err(damage @ BackupError::Damaged { .. }) => {
            note(&mut result, damage, Vec::new())?;
            return Ok(result);
        }
        opened => opened?,
    };
    result.encrypted = source.is_encrypted();
    let mut needed = needed_parts(&source, &mut result)?;
    let mut parts = source.parts()?;
    work.set_total(parts.iter().map(|(_, bytes)| bytes).sum());
    let found: HashSet<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    let missing = needed.keys().filter(|name| !found.contains(name.as_str()));
    let missing: Vec<_> = missing.map(|name| (name.clone(), 0)).collect();
    parts.extend(missing);
    for (name, stored) in parts {
        let part = needed.remove(&name);
        result.unneeded_parts += u64::from(part.is_none());
        match source.part(&name, part.as_ref().map(|part| part.bytes)) {
            Ok(bytes) => {
                result.parts += 1;
                result.bytes += bytes.len() as u64;
            }
            Err(error) => {
                note(&mut result, error, part.map(|part| part.files).unwrap_or_default())?
            }
        }
        work.advance(stored)?;
    }
    Ok(result)
}

/// Reads all manifests; returns the parts that they name.
fn needed_parts(
    source: &BackupSource,
    result: &mut BackupVerifyResult,
) -> Result<HashMap<String, NeededPart>> {
    let mut needed = HashMap::<String, NeededPart>::new();
    for id in source.ids()? {
        let manifest = match source.manifest(&id) {
            Ok(manifest) => manifest,
            Err(error) => {
                note(result, error, vec![format!("the backup {id}")])?;
                continue;
            }
        };
        for file in &manifest.files {
            for (name, bytes) in file.sized_parts() {
                let new = || NeededPart { bytes, files: Vec::new() };
                let part = needed.entry(name.to_owned()).or_insert_with(new);
                if part.files.len() < MAX_LOST {
                    part.files.push(format!("{} of {id}", file.path));
                }
            }
        }
        result.backups.push(info_of(id, &manifest));
    }
    Ok(needed)
}

/// Adds damage to the result.
///
/// **Errors**: what is no damage, such as a disk that does not answer.
fn note(result: &mut BackupVerifyResult, error: BackupError, lost: Vec<String>) -> Result<()> {
    let BackupError::Damaged { name, offset, problem, .. } = error else {
        return Err(error.into());
    };
    result.ok = false;
    if result.findings.len() < MAX_ITEMS {
        let text = problem.to_owned();
        result.findings.push(BackupFinding { path: name, offset, text, lost });
    }
    Ok(())
}
