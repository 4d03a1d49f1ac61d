//! The limits of models, as the model server last described them: the window that each was trained for, the window
//! that its Modelfile sets, and whether it reads images.
//!
//! They are stored in `vocab/limits.json` (FORMAT.md, "Vocabularies"), so that contexts have the right size also while
//! the model server is down.
//! Must not know the model server: `models/window.rs` asks it.
//!
//! **Invariant**: a limit that another server reported is never returned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::fsutil::{FsError, create_private_dir, file_len, read_regular, replace_atomically};
use crate::model::{ModelInfo, canonical_name};

/// The version of `limits.json`; files of other versions are ignored.
const VERSION: u32 = 1;
/// The largest file that is read, in bytes; the entry of a model has some 150.
const MAX_BYTES: u64 = 16 << 20;

/// The limits of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelLimits {
    /// The address of the server that described the model.
    host: String,
    /// The longest window that the model was trained for, in tokens.
    pub(crate) trained_context: Option<u32>,
    /// The window that the Modelfile sets, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) modelfile_context: Option<u32>,
    /// Whether the model reads images; `None` if the server does not report it.
    pub(crate) reads_images: Option<bool>,
}

impl ModelLimits {
    fn of(host: &str, info: &ModelInfo) -> Self {
        Self {
            host: host.to_owned(),
            trained_context: info.trained_context,
            modelfile_context: info.modelfile_context,
            reads_images: info.can("vision"),
        }
    }
}

/// The limits of all models that were described so far.
pub(crate) struct KnownLimits {
    path: PathBuf,
    /// By full name; `None` before the file was read. Held while it is read, which happens once.
    models: Mutex<Option<BTreeMap<String, ModelLimits>>>,
    /// Held while the file is written, so that an older state never replaces a newer one.
    storing: Mutex<()>,
}

/// `limits.json`.
#[derive(Serialize, Deserialize)]
struct LimitsFile {
    version: u32,
    models: BTreeMap<String, ModelLimits>,
}

impl KnownLimits {
    /// Returns the limits stored in `dir`, which are read when they are needed.
    pub(crate) fn new(dir: &Path) -> Self {
        let path = dir.join("limits.json");
        Self { path, models: Mutex::default(), storing: Mutex::default() }
    }

    /// Returns the limits of a model of the server at `host`, if it was described. Blocks on the disk the first time.
    pub(crate) fn get(&self, host: &str, model: &str) -> Option<ModelLimits> {
        let mut models = self.models.lock();
        let known = models.get_or_insert_with(|| self.read()).get(&canonical_name(model))?;
        (known.host == host).then(|| known.clone())
    }

    /// Returns whether a description agrees with what is known. Blocks on the disk the first time.
    pub(crate) fn is_known(&self, host: &str, info: &ModelInfo) -> bool {
        self.get(host, &info.model).as_ref() == Some(&ModelLimits::of(host, info))
    }

    /// Stores the limits of a description. Blocks. An error is only logged: the model is described again.
    pub(crate) fn note(&self, host: &str, info: &ModelInfo) {
        let _in_order = self.storing.lock();
        let models = {
            let mut models = self.models.lock();
            let models = models.get_or_insert_with(|| self.read());
            models.insert(canonical_name(&info.model), ModelLimits::of(host, info));
            models.clone()
        };
        let written = self.write(&LimitsFile { version: VERSION, models });
        if let Err(error) = written {
            tracing::warn!("the limits of models are lost at the next restart: {error}");
        }
    }

    fn read(&self) -> BTreeMap<String, ModelLimits> {
        let is_small = file_len(&self.path).is_some_and(|len| len <= MAX_BYTES);
        let file = is_small.then(|| read_regular(&self.path).ok()).flatten();
        let file = file.and_then(|json| serde_json::from_slice::<LimitsFile>(&json).ok());
        file.filter(|file| file.version == VERSION).map_or_else(BTreeMap::new, |file| file.models)
    }

    fn write(&self, file: &LimitsFile) -> Result<(), FsError> {
        let json = serde_json::to_vec(file).expect("numbers and texts are encodable");
        self.path.parent().map_or(Ok(()), create_private_dir)?;
        replace_atomically(&self.path, &json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(model: &str, trained: u32) -> ModelInfo {
        let capabilities = vec!["completion".to_owned()];
        let (model, trained_context) = (model.to_owned(), Some(trained));
        ModelInfo { model, trained_context, capabilities, ..ModelInfo::default() }
    }

    #[test]
    fn limits_outlive_the_process_and_belong_to_one_server() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let limits = KnownLimits::new(&dir.path().join("vocab"));
        assert_eq!(limits.get("h", "m"), None);
        limits.note("h", &described("m", 8192));
        let limits = KnownLimits::new(&dir.path().join("vocab"));
        let known = limits.get("h", "library/m:latest").expect("is known");
        assert_eq!((known.trained_context, known.reads_images), (Some(8192), Some(false)));
        assert!(limits.is_known("h", &described("m", 8192)));
        assert!(!limits.is_known("h", &described("m", 4096)));
        assert_eq!(limits.get("other", "m"), None);
        limits.note("other", &described("m", 4096));
        assert_eq!(limits.get("h", "m"), None, "one name is one model of one server");
    }

    #[test]
    fn damaged_file_is_replaced() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        for content in ["{", "{\"version\":9,\"models\":{}}", ""] {
            let path = dir.path().join("limits.json");
            replace_atomically(&path, content.as_bytes()).expect("writes");
            let limits = KnownLimits::new(dir.path());
            assert_eq!(limits.get("h", "m"), None, "{content}");
            limits.note("h", &described("m", 8192));
            assert!(KnownLimits::new(dir.path()).get("h", "m").is_some(), "{content}");
        }
    }
}
