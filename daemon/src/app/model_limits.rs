//! The limits of models, as the model server last described them: the window that each was trained for, the window
//! that its Modelfile sets, and whether it reads images.
//!
//! They are stored in `vocab/limits.json` (FORMAT.md, "Vocabularies"), so that contexts have the right size also while
//! the model server is down.
//! Must not know the model server: `models/window.rs` asks it.
//!
//! **Invariants**: a limit that another server reported is never returned; a file that the system cannot read is not
//! replaced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error_chain::with_sources;
use crate::fsutil::{FsError, create_private_dir, read_derived, replace_atomically};
use crate::model::{ModelInfo, ModelNames};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) modelfile_context: Option<u32>,
    /// The window of every request, in tokens, if the server alone decides about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) served_context: Option<u32>,
    /// Whether the model reads images; `None` if the server does not report it.
    pub(crate) reads_images: Option<bool>,
}

impl ModelLimits {
    fn of(host: &str, info: &ModelInfo) -> Self {
        Self {
            host: host.to_owned(),
            trained_context: info.trained_context,
            modelfile_context: info.modelfile_context,
            served_context: info.served_context,
            reads_images: info.can("vision"),
        }
    }
}

/// The limits of all models that were described so far.
pub(crate) struct KnownLimits {
    path: PathBuf,
    names: ModelNames,
    /// Held while the file is read, which happens once.
    state: Mutex<LimitsState>,
    /// Held while the file is written, so that an older state never replaces a newer one.
    storing: Mutex<()>,
}

#[derive(Default)]
struct LimitsState {
    /// By key.
    models: BTreeMap<String, ModelLimits>,
    /// Whether the file was read, or there is none that can be used.
    is_read: bool,
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
        let names = ModelNames::default();
        Self { path, names, state: Mutex::default(), storing: Mutex::default() }
    }

    /// Replaces the names of models.
    pub(crate) fn named(self, names: ModelNames) -> Self {
        Self { names, ..self }
    }

    /// Returns the limits of a model of the server at `host`, if it was described. Blocks on the disk the first time.
    pub(crate) fn get(&self, host: &str, model: &str) -> Option<ModelLimits> {
        let mut state = self.state.lock();
        if let Err(error) = self.read_once(&mut state) {
            tracing::debug!("the stored limits of models are unknown: {}", with_sources(&error));
        }
        let known = state.models.get(&self.names.key(model))?;
        (known.host == host).then(|| known.clone())
    }

    /// Returns whether a description agrees with what is known. Blocks on the disk the first time.
    pub(crate) fn is_known(&self, host: &str, info: &ModelInfo) -> bool {
        self.get(host, &info.model).as_ref() == Some(&ModelLimits::of(host, info))
    }

    /// Stores the limits of a description. Blocks. An error is only logged: the model is described again.
    pub(crate) fn note(&self, host: &str, info: &ModelInfo) {
        let _in_order = self.storing.lock();
        let mut state = self.state.lock();
        let read = self.read_once(&mut state);
        state.models.insert(self.names.key(&info.model), ModelLimits::of(host, info));
        let models = state.models.clone();
        drop(state);
        let written = read.and_then(|()| self.write(&LimitsFile { version: VERSION, models }));
        if let Err(error) = written {
            let error = with_sources(&error);
            tracing::warn!("the limits of models are lost at the next restart: {error}");
        }
    }

    /// Reads the file unless it was read before. Limits that were noted in the meantime stay.
    ///
    /// **Errors**: the system cannot read the file; the next call tries it again.
    fn read_once(&self, state: &mut LimitsState) -> Result<(), FsError> {
        if state.is_read {
            return Ok(());
        }
        let json = read_derived(&self.path, MAX_BYTES)?;
        let file = json.and_then(|json| serde_json::from_slice::<LimitsFile>(&json).ok());
        let stored = file.filter(|file| file.version == VERSION);
        for (model, limits) in stored.into_iter().flat_map(|file| file.models) {
            state.models.entry(model).or_insert(limits);
        }
        state.is_read = true;
        Ok(())
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

    /// A link stands for every file that exists and cannot be read, such as one on a disk with errors.
    #[test]
    fn unreadable_file_is_not_replaced_and_is_read_as_soon_as_it_can_be() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        KnownLimits::new(dir.path()).note("h", &described("earlier", 4096));
        let (path, real) = (dir.path().join("limits.json"), dir.path().join("real"));
        crate::fsutil::rename_durably(&path, &real).expect("renames");
        std::os::unix::fs::symlink(&real, &path).expect("links");
        let limits = KnownLimits::new(dir.path());
        assert_eq!(limits.get("h", "earlier"), None);
        limits.note("h", &described("m", 8192));
        assert!(limits.get("h", "m").is_some(), "is known in memory");
        assert!(path.is_symlink(), "is not replaced");
        crate::fsutil::rename_durably(&real, &path).expect("renames");
        assert!(limits.get("h", "earlier").is_some());
        limits.note("h", &described("n", 8192));
        let limits = KnownLimits::new(dir.path());
        for model in ["earlier", "m", "n"] {
            assert!(limits.get("h", model).is_some(), "{model}");
        }
    }
}
