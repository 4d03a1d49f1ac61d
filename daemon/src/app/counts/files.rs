//! The files in `vocab/`: vocabularies by digest, and `models.json` with the learned properties of each model.
//!
//! All of it is derived: a file that is damaged, missing or of another version is learned again. A list of models that
//! the system cannot read is not replaced.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ollm_protocol::SessionId;
use serde::{Deserialize, Serialize};

use super::MAX_TEMPLATES;
use crate::error_chain::with_sources;
use crate::fsutil::{FsError, create_private_dir, read_derived, replace_atomically};
use crate::model::ListedDigest;
use crate::tokens::{
    CachedTokenizer, Calibration, Doubts, Engine, Template, Tokenizer, Vocabulary, VocabularyError,
};

/// The version of `models.json`; files of other versions are ignored.
const VERSION: u32 = 8;
/// The largest file that is read, in bytes; the largest known vocabulary has 13 MB.
const MAX_BYTES: u64 = 256 << 20;

pub(super) struct VocabularyFiles {
    dir: PathBuf,
}

/// `models.json`. The models are a `BTreeMap<String, KnownModel>`.
#[derive(Serialize, Deserialize)]
struct ModelsFile<Models> {
    version: u32,
    models: Models,
}

/// The learned properties of a model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KnownModel {
    /// The digest of the model; another digest is another model of the same name.
    pub(super) digest: Option<String>,
    /// The version of the server that the rest was learned from; another version may render and count otherwise.
    pub(super) server: Option<String>,
    /// The name of the vocabulary's file; empty if there is none.
    pub(super) vocabulary: String,
    /// The engine that counts with the vocabulary.
    pub(super) engine: Engine,
    /// The other engines that the server may use: those that its counts have not excluded yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) other_engines: Vec<Engine>,
    /// Whether the model's name, which decides how the vocabulary is used, was guessed and not yet confirmed.
    #[serde(default)]
    pub(super) is_name_guessed: bool,
    /// The thinking mode of the last call.
    pub(super) think: String,
    /// The templates by variant.
    pub(super) templates: BTreeMap<String, Arc<Template>>,
    /// The shapes of messages whose counts were found wrong.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub(super) doubts: Arc<Doubts>,
    /// The corrections of prompts that no template covers, by variant.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) calibrations: BTreeMap<String, Arc<Calibration>>,
    /// The variant and the session of the newest prompt that was observed; not stored.
    #[serde(skip)]
    pub(super) observed: Option<(String, SessionId)>,
}

fn is_empty(doubts: &Arc<Doubts>) -> bool {
    doubts.is_empty()
}

impl KnownModel {
    /// Returns whether the server listed the digest that the model was learned for.
    pub(super) fn is_checked(&self, listed: Option<&ListedDigest>) -> bool {
        listed.is_some_and(|listed| listed.is(self.digest.as_deref()))
    }

    /// Returns the digest of the vocabulary, and the engine that counts with it.
    pub(super) fn tokenizer_key(&self) -> (String, Engine) {
        (self.vocabulary.clone(), self.engine)
    }

    /// Replaces the calibration of a variant.
    pub(super) fn set_calibration(&mut self, key: String, calibration: Calibration) {
        if self.calibrations.len() >= MAX_TEMPLATES && !self.calibrations.contains_key(&key) {
            // Sets of tools change; one that is used again is observed again.
            self.calibrations.retain(|key, _| key.ends_with('/'));
        }
        self.calibrations.insert(key, Arc::new(calibration));
    }
}

impl VocabularyFiles {
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Reads the properties of all models; returns none if the file is missing, damaged or of another version.
    ///
    /// **Errors**: the system cannot read the file.
    pub(super) fn models(&self) -> Result<BTreeMap<String, KnownModel>, FsError> {
        let bytes = read_derived(&self.dir.join("models.json"), MAX_BYTES)?.unwrap_or_default();
        let file = serde_json::from_slice::<ModelsFile<_>>(&bytes)
            .inspect_err(|error| tracing::debug!("models are learned again: {error}"));
        Ok(file
            .ok()
            .filter(|file| file.version == VERSION)
            .map_or_else(BTreeMap::new, |f| f.models))
    }

    /// Writes the properties of all models. An error is only logged: the models are learned again after a restart.
    pub(super) fn store_models(&self, models: &BTreeMap<String, KnownModel>) {
        match serde_json::to_vec(&ModelsFile { version: VERSION, models }) {
            Ok(json) => self.write("models.json", &json),
            Err(error) => tracing::warn!("models.json cannot be encoded: {error}"),
        }
    }

    /// Reads a vocabulary; returns `None` if it cannot be used.
    pub(super) fn vocabulary(&self, digest: &str) -> Option<Vocabulary> {
        // `models.json` names the file: an edited one must not lead to files elsewhere.
        if digest.is_empty() || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let vocabulary = Vocabulary::from_bytes(&self.read(digest)?);
        let unusable =
            |error: &VocabularyError| tracing::warn!(digest, "a vocabulary is unusable: {error}");
        vocabulary.inspect_err(unusable).ok()
    }

    /// Creates the tokenizer that an engine has for a vocabulary; returns `None` if it cannot be used.
    pub(super) fn tokenizer(&self, digest: &str, engine: Engine) -> Option<Arc<CachedTokenizer>> {
        let vocabulary = self.vocabulary(digest)?;
        let tokenizer = Tokenizer::new(&vocabulary, engine);
        let tokenizer = tokenizer.inspect_err(|error| tracing::warn!(digest, "{error}")).ok()?;
        Some(Arc::new(CachedTokenizer::new(tokenizer)))
    }

    /// Writes a vocabulary; an error is logged.
    pub(super) fn store_vocabulary(&self, digest: &str, vocabulary: &Vocabulary) {
        self.write(digest, &vocabulary.to_bytes());
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        read_derived(&self.dir.join(name), MAX_BYTES)
            .inspect_err(|error| tracing::warn!("{}", with_sources(error)))
            .ok()?
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let written: Result<(), FsError> = create_private_dir(&self.dir)
            .and_then(|()| replace_atomically(&self.dir.join(name), bytes));
        if let Err(error) = written {
            tracing::warn!("learned properties of models are lost at the next restart: {error}");
        }
    }
}
