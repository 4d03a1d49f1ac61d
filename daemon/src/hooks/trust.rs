//! The hooks of projects that may run: for each project a file with their digests, and a copy of each content.
//!
//! `trusted-hooks/<projectHash>.json` holds a project, `trusted-hooks/<digest>` a content, which only its owner can read and
//! execute. FORMAT.md, "Trusted hooks".
//!
//! **Invariant**: a file of a project names only contents that are on the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::fsutil::{self, FsError};
use crate::session::project_hash;

/// The largest file of a project.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The end of the names of projects.
const PROJECT: &str = ".json";

/// The content of `trusted-hooks/<projectHash>.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrustedProject {
    path: PathBuf,
    /// The digests of the contents by the names of the hooks.
    hooks: BTreeMap<String, String>,
}

impl TrustedProject {
    /// Returns the digest of the content with which a hook may run.
    pub(super) fn digest_of(&self, name: &str) -> Option<&str> {
        self.hooks.get(name).map(String::as_str)
    }
}

/// The directory of what is trusted.
pub(super) struct Trust {
    dir: PathBuf,
    /// Held while files are written or removed.
    changing: Mutex<()>,
}

impl Trust {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, changing: Mutex::new(()) }
    }

    /// Reads what is trusted in a project.
    pub(super) fn read(&self, project: &Path) -> Result<TrustedProject, FsError> {
        read_project(&self.file(project))
    }

    /// Returns the copy of a content, if it is on the disk and whole.
    pub(super) fn copy_of(&self, digest: &str) -> Option<PathBuf> {
        self.content(digest).map(|_| self.dir.join(digest))
    }

    /// Returns a content that was trusted, if its copy is whole.
    pub(super) fn content(&self, digest: &str) -> Option<Vec<u8>> {
        let content = fsutil::read_regular(&self.dir.join(digest)).ok()?;
        let found = blake3::hash(&content).to_hex().to_string();
        (found == digest).then_some(content)
    }

    /// Lets hooks of a project run: the name, the digest and the content of each.
    pub(super) fn set(
        &self,
        project: &Path,
        hooks: Vec<(String, String, Vec<u8>)>,
    ) -> Result<(), FsError> {
        let _guard = self.changing.lock();
        fsutil::create_private_dir(&self.dir)?;
        let mut trusted = TrustedProject { path: project.to_owned(), hooks: BTreeMap::new() };
        for (name, digest, content) in hooks {
            // Also if it exists, because somebody may have damaged it.
            fsutil::replace_program(&self.dir.join(&digest), &content)?;
            trusted.hooks.insert(name, digest);
        }
        let json = serde_json::to_vec(&trusted).expect("texts become JSON");
        fsutil::replace_atomically(&self.file(project), &json)?;
        self.remove_unused()
    }

    /// Forgets a project; returns whether it was known.
    pub(super) fn remove(&self, project: &Path) -> Result<bool, FsError> {
        let _guard = self.changing.lock();
        let file = self.file(project);
        if !file.exists() {
            return Ok(false);
        }
        fsutil::remove_file(&file)?;
        fsutil::sync_dir(&self.dir)?;
        self.remove_unused()?;
        Ok(true)
    }

    /// Removes the temporary files that a crash left; returns their number.
    pub(super) fn sweep_temporaries(&self) -> Result<usize, FsError> {
        if self.dir.exists() { fsutil::sweep_temporaries(&self.dir) } else { Ok(0) }
    }

    /// Removes the contents that no project names. A project that cannot be read may name any.
    fn remove_unused(&self) -> Result<(), FsError> {
        let names = fsutil::file_names(&self.dir)?;
        let (projects, contents): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.ends_with(PROJECT));
        let mut used = BTreeSet::new();
        for name in projects {
            let Ok(project) = read_project(&self.dir.join(name)) else { return Ok(()) };
            used.extend(project.hooks.into_values());
        }
        for name in contents.iter().filter(|name| !used.contains(*name)) {
            fsutil::remove_file(&self.dir.join(name))?;
        }
        Ok(())
    }

    fn file(&self, project: &Path) -> PathBuf {
        self.dir.join(project_hash(&project.to_string_lossy()) + PROJECT)
    }
}

/// **Errors**: also of kind `InvalidData`, for a file that is not the JSON of a project.
fn read_project(path: &Path) -> Result<TrustedProject, FsError> {
    let Some(bytes) = fsutil::read_derived(path, MAX_FILE_BYTES)? else {
        return Ok(TrustedProject::default());
    };
    serde_json::from_slice(&bytes).map_err(|error| FsError::new("read", path, error.into()))
}
