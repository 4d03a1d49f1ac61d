//! What is remembered beside the sessions: of a project in `projects/<projectHash>.json`, of all of them in
//! `global.json`. Small files, replaced atomically.
//!
//! Reads and writes block on the disk. **Invariant**: a file that cannot be read as what it should be is never
//! replaced by one with context entries, which would lose what a person wrote. FORMAT.md, "Projects".

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ollm_protocol::SessionId;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};
use crate::session::project;

/// The file of one project.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProjectFile {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_session: Option<SessionId>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: StoredEntries,
}

/// The file of all projects.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GlobalFile {
    entries: StoredEntries,
}

/// Context entries by their keys.
pub(crate) type StoredEntries = BTreeMap<String, StoredEntry>;

/// A context entry without its key and its scope, which are those of where it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredEntry {
    /// The text.
    pub content: String,
    /// Lower comes first.
    pub priority: i32,
    /// Who contributed it.
    pub source: String,
}

/// Whose context entries are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    /// Every session of this home.
    Global,
    /// Every session of the project with this canonical path.
    Project(&'a str),
}

/// A project could not be named or remembered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProjectError {
    /// The path is not that of a directory.
    #[error("the project path {path:?} is not a directory that can be opened")]
    NoDirectory {
        /// As it was given.
        path: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The path cannot be written as JSON.
    #[error("the project path {} is not valid UTF-8", path.display())]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The disk refused.
    #[error(transparent)]
    Storage(#[from] FsError),
}

/// The projects of a home.
pub(crate) struct Projects {
    dir: PathBuf,
    global: PathBuf,
    /// Held over read, change and write of a file, so that two changes do not overwrite each other.
    changing: Mutex<()>,
}

impl Projects {
    /// What is remembered in a home; its directory of projects is made when the first one is.
    pub(crate) fn new(home: &Path) -> Self {
        let (dir, global) = (home.join("projects"), home.join("global.json"));
        Self { dir, global, changing: Mutex::new(()) }
    }

    /// The canonical path of a project's directory.
    ///
    /// **Errors**: `NoDirectory`, `NotUtf8`.
    pub(crate) fn canonical(path: &str) -> Result<String, ProjectError> {
        let refuse = |source| ProjectError::NoDirectory { path: path.to_owned(), source };
        if !Path::new(path).is_absolute() {
            return Err(refuse(io::Error::other(
                "the daemon has no working directory: give it absolute",
            )));
        }
        let found = fs::canonicalize(path).map_err(refuse)?;
        if !found.is_dir() {
            return Err(refuse(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        found
            .into_os_string()
            .into_string()
            .map_err(|path| ProjectError::NotUtf8 { path: path.into() })
    }

    /// The canonical path where the directory exists, else the path as it was given: a project whose
    /// directory is gone can still be asked about.
    pub(crate) fn lenient(path: &str) -> String {
        Self::canonical(path).unwrap_or_else(|_| path.to_owned())
    }

    /// The session that a project goes on with.
    pub(crate) fn current(&self, path: &str) -> Result<Option<SessionId>, ProjectError> {
        Ok(self.read(path)?.current_session)
    }

    /// Sets or forgets the session that a project goes on with.
    pub(crate) fn set_current(
        &self,
        path: &str,
        id: Option<SessionId>,
    ) -> Result<(), ProjectError> {
        let _guard = self.changing.lock();
        self.write(path, id)
    }

    /// The context entries that somebody owns; a file that cannot be read has none, which the log says.
    pub(crate) fn entries(&self, owner: Owner<'_>) -> StoredEntries {
        let read = match owner {
            Owner::Global => read_whole::<GlobalFile>(&self.global).map(|file| file.entries),
            Owner::Project(path) => {
                read_whole::<ProjectFile>(&self.file(path)).map(|file| file.entries)
            }
        };
        read.unwrap_or_else(|error| {
            tracing::warn!("context entries are left out: {}", with_sources(&error));
            StoredEntries::new()
        })
    }

    /// Sets or removes a context entry; false where that changes nothing.
    pub(crate) fn set_entry(
        &self,
        owner: Owner<'_>,
        key: &str,
        entry: Option<StoredEntry>,
    ) -> Result<bool, ProjectError> {
        let _guard = self.changing.lock();
        match owner {
            Owner::Global => {
                let mut file = read_whole::<GlobalFile>(&self.global)?;
                let is_changed = put(&mut file.entries, key, entry);
                if is_changed {
                    replace(&self.global, &file)?;
                }
                Ok(is_changed)
            }
            Owner::Project(path) => {
                let mut file = read_whole::<ProjectFile>(&self.file(path))?;
                path.clone_into(&mut file.path);
                let is_changed = put(&mut file.entries, key, entry);
                if is_changed {
                    fsutil::create_private_dir(&self.dir)?;
                    replace(&self.file(path), &file)?;
                }
                Ok(is_changed)
            }
        }
    }

    /// Forgets a session wherever it is current.
    pub(crate) fn forget(&self, id: SessionId) -> Result<(), ProjectError> {
        let _guard = self.changing.lock();
        self.paths_with(id).iter().try_for_each(|path| self.write(path, None))
    }

    /// Removes half-written files that a crash left.
    pub(crate) fn sweep_temporaries(&self, before: SystemTime) -> Result<usize, FsError> {
        if !self.dir.exists() {
            return Ok(0);
        }
        fsutil::sweep_temporaries(&self.dir, before)
    }

    fn write(&self, path: &str, id: Option<SessionId>) -> Result<(), ProjectError> {
        let known = read_whole::<ProjectFile>(&self.file(path))?;
        let file = ProjectFile { path: path.to_owned(), current_session: id, ..known };
        fsutil::create_private_dir(&self.dir)?;
        Ok(replace(&self.file(path), &file)?)
    }

    /// The projects whose current session is this; a session may be current in a project that is not its own.
    fn paths_with(&self, id: SessionId) -> Vec<String> {
        let Ok(files) = fs::read_dir(&self.dir) else { return Vec::new() };
        files
            .filter_map(|file| {
                let file: ProjectFile =
                    serde_json::from_slice(&fs::read(file.ok()?.path()).ok()?).ok()?;
                (file.current_session == Some(id)).then_some(file.path)
            })
            .collect()
    }

    fn file(&self, path: &str) -> PathBuf {
        self.dir.join(format!("{}.json", project::hash(path)))
    }

    /// A file that cannot be read as a project counts as naming no session.
    fn read(&self, path: &str) -> Result<ProjectFile, ProjectError> {
        match read_whole(&self.file(path)) {
            Err(error) if error.source.kind() == io::ErrorKind::InvalidData => {
                Ok(ProjectFile::default())
            }
            read => Ok(read?),
        }
    }
}

/// Reads a file; one that is missing is the default.
///
/// **Errors**: of kind `InvalidData` where it is not what it should be.
fn read_whole<T: Default + DeserializeOwned>(file: &Path) -> Result<T, FsError> {
    match fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            FsError::new("read", file, io::Error::new(io::ErrorKind::InvalidData, error))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(source) => Err(FsError::new("read", file, source)),
    }
}

fn replace(file: &Path, value: &impl Serialize) -> Result<(), FsError> {
    let json = serde_json::to_vec_pretty(value)
        .map_err(|source| FsError::new("encode", file, source.into()))?;
    fsutil::replace_atomically(file, &json)
}

/// Sets or removes an entry; false where that changes nothing.
fn put(entries: &mut StoredEntries, key: &str, entry: Option<StoredEntry>) -> bool {
    let before = entries.get(key);
    if before == entry.as_ref() {
        return false;
    }
    match entry {
        Some(entry) => entries.insert(key.to_owned(), entry),
        None => entries.remove(key),
    };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_session_is_remembered_and_forgotten_everywhere() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let projects = Projects::new(home.path());
        let clock = crate::clock::Clock::system();
        let (one, two) = (clock.session_id(), clock.session_id());
        assert_eq!(projects.current("/a").expect("reads"), None);
        for path in ["/a", "/b"] {
            projects.set_current(path, Some(one)).expect("writes");
        }
        projects.set_current("/c", Some(two)).expect("writes");
        projects.forget(one).expect("forgets");
        assert_eq!(projects.current("/a").expect("reads"), None);
        assert_eq!(projects.current("/b").expect("reads"), None);
        assert_eq!(projects.current("/c").expect("reads"), Some(two));
    }

    #[test]
    fn entries_are_kept_beside_the_current_session_and_never_lost_to_a_slip_of_the_pen() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let projects = Projects::new(home.path());
        let id = crate::clock::Clock::system().session_id();
        let entry = |content: &str| StoredEntry {
            content: content.to_owned(),
            priority: 1,
            source: "user".to_owned(),
        };
        for owner in [Owner::Global, Owner::Project("/a")] {
            let set = |key: &str, entry| projects.set_entry(owner, key, entry).expect("writes");
            assert!(set("style", Some(entry("tabs"))));
            assert!(!set("style", Some(entry("tabs"))), "it is there");
            assert!(set("more", Some(entry("x"))) && set("more", None) && !set("more", None));
            let kept = projects.entries(owner);
            assert_eq!(kept.into_iter().collect::<Vec<_>>(), [("style".into(), entry("tabs"))]);
        }
        projects.set_current("/a", Some(id)).expect("writes");
        assert_eq!(projects.entries(Owner::Project("/a")).len(), 1);
        assert!(projects.entries(Owner::Project("/b")).is_empty());
        let file = home.path().join("global.json");
        fsutil::replace_atomically(&file, b"{ \"entries\": ").expect("writes");
        assert!(projects.entries(Owner::Global).is_empty());
        let refused = projects.set_entry(Owner::Global, "style", Some(entry("spaces")));
        assert!(matches!(refused, Err(ProjectError::Storage(_))));
        assert_eq!(fs::read(file).expect("reads"), b"{ \"entries\": ");
    }

    #[test]
    fn a_project_must_be_a_directory_named_from_the_root() {
        assert!(matches!(Projects::canonical("relative"), Err(ProjectError::NoDirectory { .. })));
        assert!(matches!(
            Projects::canonical("/no/such/place"),
            Err(ProjectError::NoDirectory { .. })
        ));
        assert_eq!(Projects::canonical("/").expect("exists"), "/");
    }
}
