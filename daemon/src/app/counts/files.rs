//! The files in `vocab/`: vocabularies by digest, and `models.json`, which says what is known of each model.
//!
//! All of it is derived: what is damaged, absent or of another version is learned again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Known;
use crate::fsutil::{FsError, create_private_dir, replace_atomically};
use crate::tokens::{CachedTokenizer, Calibration, Template, Tokenizer, Vocabulary};

/// The version of `models.json`; another one is not read.
const VERSION: u32 = 3;
/// Bytes of a file that are read at most; the largest vocabularies have 13 MB.
const MAX_BYTES: u64 = 256 << 20;

/// The directory.
pub(super) struct Files {
    dir: PathBuf,
}

/// `models.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredModels {
    version: u32,
    models: BTreeMap<String, StoredModel>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredModel {
    digest: Option<String>,
    vocabulary: String,
    think: String,
    templates: BTreeMap<String, Option<Template>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    calibrations: BTreeMap<String, Calibration>,
}

impl Files {
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// What is known of each model; nothing where it cannot be read.
    pub(super) fn models(&self) -> BTreeMap<String, Known> {
        let Some(bytes) = self.read("models.json") else { return BTreeMap::new() };
        let stored: Result<StoredModels, _> = serde_json::from_slice(&bytes);
        let models = match stored {
            Ok(stored) if stored.version == VERSION => stored.models,
            Ok(_) => return BTreeMap::new(),
            Err(error) => {
                tracing::warn!("what was known of models is learned again: {error}");
                return BTreeMap::new();
            }
        };
        let known = |stored: StoredModel| Known {
            digest: stored.digest,
            vocabulary: stored.vocabulary,
            think: stored.think,
            templates: stored
                .templates
                .into_iter()
                .map(|(key, template)| (key, template.map(Arc::new)))
                .collect(),
            calibrations: stored
                .calibrations
                .into_iter()
                .map(|(key, calibration)| (key, Arc::new(calibration)))
                .collect(),
        };
        models.into_iter().map(|(model, stored)| (model, known(stored))).collect()
    }

    /// Keeps what is known; a disk that is full only means that it is learned again.
    pub(super) fn store(&self, models: &BTreeMap<String, Known>) {
        let stored = |known: &Known| StoredModel {
            digest: known.digest.clone(),
            vocabulary: known.vocabulary.clone(),
            think: known.think.clone(),
            templates: known
                .templates
                .iter()
                .map(|(key, template)| (key.clone(), template.as_deref().cloned()))
                .collect(),
            calibrations: known
                .calibrations
                .iter()
                .map(|(key, calibration)| (key.clone(), (**calibration).clone()))
                .collect(),
        };
        let models = models.iter().map(|(model, known)| (model.clone(), stored(known))).collect();
        match serde_json::to_vec(&StoredModels { version: VERSION, models }) {
            Ok(json) => self.write("models.json", &json),
            Err(error) => tracing::warn!("what is known of models is not kept: {error}"),
        }
    }

    /// A vocabulary; `None` where it cannot be used.
    pub(super) fn engine(&self, digest: &str) -> Option<Arc<CachedTokenizer>> {
        // Whoever changed the list does not thereby read other files.
        if digest.is_empty() || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let vocabulary = Vocabulary::from_bytes(&self.read(digest)?);
        let vocabulary = vocabulary
            .inspect_err(|error| tracing::warn!(digest, "a vocabulary is learned again: {error}"))
            .ok()?;
        let tokenizer = Tokenizer::new(&vocabulary);
        let tokenizer = tokenizer.inspect_err(|error| tracing::warn!(digest, "{error}")).ok()?;
        Some(Arc::new(CachedTokenizer::new(tokenizer)))
    }

    /// Keeps a vocabulary.
    pub(super) fn store_vocabulary(&self, digest: &str, vocabulary: &Vocabulary) {
        self.write(digest, &vocabulary.to_bytes());
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.dir.join(name);
        crate::fsutil::file_len(&path).filter(|len| *len <= MAX_BYTES)?;
        std::fs::read(&path)
            .inspect_err(|error| tracing::warn!("cannot read {}: {error}", path.display()))
            .ok()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let written: Result<(), FsError> = create_private_dir(&self.dir)
            .and_then(|()| replace_atomically(&self.dir.join(name), bytes));
        if let Err(error) = written {
            tracing::warn!("counts will be learned again after a restart: {error}");
        }
    }
}
