//! The state of projects and of the home: current sessions and shared context entries, in small JSON files.
//!
//! `projects/<projectHash>.json` holds one project, `global.json` the context entries of all sessions. Files are
//! replaced atomically; reads and writes block on the disk.
//!
//! **Invariant**: a file that cannot be parsed is never replaced, because it may hold text that a person wrote.
//! FORMAT.md, "Projects".

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ollm_protocol::SessionId;
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};
use crate::session::project_hash;

/// The content of `projects/<projectHash>.json`.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProjectFile {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_session: Option<SessionId>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: StoredEntries,
    /// The model servers that may get texts of the sessions; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_servers: Vec<String>,
}

/// The content of `global.json`.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GlobalFile {
    entries: StoredEntries,
}

/// Context entries by key.
pub(crate) type StoredEntries = BTreeMap<String, StoredEntry>;

/// A context entry without its key and scope, which follow from its place in the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredEntry {
    pub content: String,
    /// The position among other entries; lower values come first.
    pub priority: i32,
    /// The contributor, for example `user`.
    pub source: String,
}

/// The scope of context entries that belong to no single session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    /// All sessions of this home.
    Global,
    /// All sessions of the project with this canonical path.
    Project(&'a str),
}

/// An error in the path or the files of a project.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProjectError {
    /// The path is not a directory.
    #[error("the project path {path:?} is not a directory that can be opened")]
    NoDirectory {
        /// The path as the client gave it.
        path: String,
        #[source]
        source: io::Error,
    },
    /// The path cannot be written as JSON.
    #[error("the project path {} is not valid UTF-8", path.display())]
    NotUtf8 { path: PathBuf },
    /// A file could not be read or written.
    #[error(transparent)]
    Storage(#[from] FsError),
}

/// The projects of a home.
pub(crate) struct Projects {
    dir: PathBuf,
    global: PathBuf,
    /// Held while a file is read, changed and written, so that no change overwrites another one.
    changing: Mutex<()>,
}

impl Projects {
    /// Returns the projects of a home; the first write creates their directory.
    pub(crate) fn new(home: &Path) -> Self {
        let (dir, global) = (home.join("projects"), home.join("global.json"));
        Self { dir, global, changing: Mutex::new(()) }
    }

    /// Returns the files of all projects by name.
    pub(crate) fn files(&self) -> Result<Vec<(String, PathBuf)>, FsError> {
        let mut names = fsutil::file_names_if_any(&self.dir)?;
        names.retain(|name| name.ends_with(".json"));
        names.sort_unstable();
        Ok(names.into_iter().map(|name| (name.clone(), self.dir.join(name))).collect())
    }

    /// Returns why a file of a project, or that of the entries of all sessions, is not used; `None` if it is.
    pub(crate) fn examine(&self, path: &Path) -> Option<String> {
        let read = if path == self.global {
            read_or_default::<GlobalFile>(path).map(drop)
        } else {
            read_or_default::<ProjectFile>(path).map(drop)
        };
        read.err().map(|error| with_sources(&error.source))
    }

    /// Keeps all files as they are, while somebody else adds some, until the guard is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Returns the file of the entries of all sessions, which may be missing.
    pub(crate) fn global_file(&self) -> &Path {
        &self.global
    }

    /// Returns the canonical path of a project's directory.
    ///
    /// **Errors**: `NoDirectory`, `NotUtf8`.
    pub(crate) fn canonical(path: &str) -> Result<String, ProjectError> {
        let refuse = |source| ProjectError::NoDirectory { path: path.to_owned(), source };
        if !Path::new(path).is_absolute() {
            return Err(refuse(io::Error::other(
                "the path must be absolute, because the daemon has no working directory",
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

    /// Returns the canonical path, or the path as given if the directory does not exist.
    ///
    /// For queries, which must also work for a project whose directory was removed.
    pub(crate) fn lenient(path: &str) -> String {
        Self::canonical(path).unwrap_or_else(|_| path.to_owned())
    }

    /// Returns the current session of a project, or `None` if its file names none or cannot be parsed.
    pub(crate) fn current(&self, path: &str) -> Result<Option<SessionId>, ProjectError> {
        match read_or_default::<ProjectFile>(&self.file(path)) {
            Err(error) if error.source.kind() == io::ErrorKind::InvalidData => Ok(None),
            read => Ok(read?.current_session),
        }
    }

    /// Sets or clears the current session of a project.
    pub(crate) fn set_current(
        &self,
        path: &str,
        id: Option<SessionId>,
    ) -> Result<(), ProjectError> {
        let _guard = self.changing.lock();
        self.store_current(path, id)
    }

    /// Returns the context entries of a scope; logs a file that cannot be parsed and returns no entries.
    ///
    /// **Errors**: `Storage` if the system cannot read the file; a context without its entries would be recorded.
    pub(crate) fn entries(&self, owner: Owner<'_>) -> Result<StoredEntries, ProjectError> {
        let read = match owner {
            Owner::Global => read_or_default::<GlobalFile>(&self.global).map(|file| file.entries),
            Owner::Project(path) => {
                read_or_default::<ProjectFile>(&self.file(path)).map(|file| file.entries)
            }
        };
        match read {
            Err(error) if error.source.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!("context entries are left out: {}", with_sources(&error));
                Ok(StoredEntries::new())
            }
            read => Ok(read?),
        }
    }

    /// Sets or removes a context entry; returns false if that changes nothing.
    pub(crate) fn set_entry(
        &self,
        owner: Owner<'_>,
        key: &str,
        entry: Option<StoredEntry>,
    ) -> Result<bool, ProjectError> {
        let _guard = self.changing.lock();
        match owner {
            Owner::Global => {
                let mut file = read_or_default::<GlobalFile>(&self.global)?;
                let is_changed = put(&mut file.entries, key, entry);
                store(&self.global, &file, is_changed)?;
                Ok(is_changed)
            }
            Owner::Project(path) => {
                self.change_project(path, |file| put(&mut file.entries, key, entry))
            }
        }
    }

    /// Returns the model servers that may get texts of a project's sessions; empty for all.
    ///
    /// **Errors**: also for a file that cannot be parsed, which may forbid servers.
    pub(crate) fn allowed_servers(&self, path: &str) -> Result<Vec<String>, ProjectError> {
        Ok(read_or_default::<ProjectFile>(&self.file(path))?.allowed_servers)
    }

    /// Sets the model servers that may get texts of a project's sessions.
    pub(crate) fn set_allowed_servers(
        &self,
        path: &str,
        servers: Vec<String>,
    ) -> Result<(), ProjectError> {
        let _guard = self.changing.lock();
        let set = |file: &mut ProjectFile| {
            let is_changed = file.allowed_servers != servers;
            file.allowed_servers = servers;
            is_changed
        };
        self.change_project(path, set).map(drop)
    }

    /// Clears the current session of every project where it is `id`.
    pub(crate) fn forget(&self, id: SessionId) -> Result<(), ProjectError> {
        let _guard = self.changing.lock();
        fsutil::remove_leftovers(&self.dir)?;
        self.paths_with_current(id)?.iter().try_for_each(|path| self.store_current(path, None))?;
        // An earlier attempt may have changed a file and failed to sync that.
        if self.dir.exists() { Ok(fsutil::sync_dir(&self.dir)?) } else { Ok(()) }
    }

    /// Removes the temporary files that a crash left in the directory of projects; returns their number.
    pub(crate) fn sweep_temporaries(&self) -> Result<usize, FsError> {
        if !self.dir.exists() {
            return Ok(0);
        }
        fsutil::sweep_temporaries(&self.dir)
    }

    fn store_current(&self, path: &str, id: Option<SessionId>) -> Result<(), ProjectError> {
        self.change_project(path, |file| {
            file.current_session = id;
            true
        })
        .map(drop)
    }

    /// Changes the file of a project, and writes it if `change` returns true, which is also the result.
    fn change_project(
        &self,
        path: &str,
        change: impl FnOnce(&mut ProjectFile) -> bool,
    ) -> Result<bool, ProjectError> {
        let mut file = read_or_default::<ProjectFile>(&self.file(path))?;
        path.clone_into(&mut file.path);
        let is_changed = change(&mut file);
        if is_changed {
            fsutil::create_private_dir(&self.dir)?;
        }
        store(&self.file(path), &file, is_changed)?;
        Ok(is_changed)
    }

    /// Returns the paths of the projects whose current session is `id`.
    ///
    /// All files are read, because a session may be current in a project that is not its own.
    /// A file that cannot be parsed is never changed, so it is left out, and the log says so.
    ///
    /// **Errors**: the system cannot read the directory or a file, which may be one of them.
    fn paths_with_current(&self, id: SessionId) -> Result<Vec<String>, FsError> {
        let mut paths = Vec::new();
        for (_, path) in self.files()? {
            match read_or_default::<ProjectFile>(&path) {
                Ok(file) if file.current_session == Some(id) => paths.push(file.path),
                Ok(_) => {}
                // A directory or a link is no file of a project.
                Err(error) if is_foreign(&error) => {
                    tracing::warn!(
                        "the file of a project is left as it is: {}",
                        with_sources(&error)
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(paths)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.dir.join(format!("{}.json", project_hash(path)))
    }
}

/// Returns whether a file cannot be parsed, or is no file that this daemon writes.
fn is_foreign(error: &FsError) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, IsADirectory};
    matches!(error.source.kind(), InvalidData | InvalidInput | IsADirectory)
}

/// Reads a JSON file; returns the default for a missing one.
///
/// **Errors**: of kind `InvalidData` for a file that cannot be parsed.
fn read_or_default<T: Default + DeserializeOwned>(file: &Path) -> Result<T, FsError> {
    match fsutil::read_regular(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            FsError::new("read", file, io::Error::new(io::ErrorKind::InvalidData, error))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(source) => Err(FsError::new("read", file, source)),
    }
}

/// Makes a value durable that is in a file already or, if it `is_changed`, not yet.
///
/// The file may have been replaced by a call that failed at its last sync, or by a process that was killed before it.
fn store(file: &Path, value: &impl Serialize, is_changed: bool) -> Result<(), FsError> {
    if !is_changed {
        return if file.exists() { fsutil::sync_parent(file) } else { Ok(()) };
    }
    let json = serde_json::to_vec_pretty(value)
        .map_err(|source| FsError::new("encode", file, source.into()))?;
    fsutil::replace_atomically(file, &json)
}

/// Sets or removes an entry; returns false if that changes nothing.
fn put(entries: &mut StoredEntries, key: &str, entry: Option<StoredEntry>) -> bool {
    if entries.get(key) == entry.as_ref() {
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
    fn forget_clears_the_current_session_of_every_project() {
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
    fn forget_fails_for_a_file_that_cannot_be_read_and_leaves_out_one_that_cannot_be_parsed() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let projects = Projects::new(home.path());
        let id = crate::clock::Clock::system().session_id();
        projects.forget(id).expect("there are no projects");
        projects.set_current("/a", Some(id)).expect("writes");
        projects.set_current("/b", Some(id)).expect("writes");
        fsutil::replace_atomically(&projects.file("/b"), b"{ \"path\": ").expect("writes");
        fsutil::create_private_dir(&projects.dir.join("other.json")).expect("creates");
        projects.forget(id).expect("leaves out the broken file");
        assert_eq!(projects.current("/a").expect("reads"), None);
        projects.set_current("/a", Some(id)).expect("writes");
        // A path that is too long fails for every user, root included.
        fsutil::remove_file(&projects.file("/b")).expect("removes");
        let unreadable = Projects { dir: home.path().join("x".repeat(300)), ..projects };
        assert!(matches!(unreadable.forget(id), Err(ProjectError::Storage(_))));
    }

    #[test]
    fn entry_set_again_after_a_failed_sync_is_durable() {
        use crate::fsutil::trace::{DiskFault, DiskStep, DiskTrace, FaultKind};

        let home = tempfile::tempdir().expect("a scratch directory");
        let projects = Projects::new(home.path());
        let trace = DiskTrace::new(home.path());
        let set = || {
            let (content, source) = ("tabs".to_owned(), "user".to_owned());
            let entry = StoredEntry { content, priority: 1, source };
            projects.set_entry(Owner::Global, "style", Some(entry))
        };
        // Create, append, sync and rename succeed; the sync of the directory fails.
        let kind = FaultKind::Error(rustix::io::Errno::IO.raw_os_error());
        trace.set_fault(Some(DiskFault { at: 4, count: 1, kind }));
        set().expect_err("is not durable");
        assert!(!set().expect("is durable"), "the file has the entry already");
        assert_eq!(trace.steps().last(), Some(&DiskStep::SyncDir("".into())));
    }

    #[test]
    fn entries_survive_changes_of_the_current_session_and_unreadable_files_are_not_replaced() {
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
            assert!(!set("style", Some(entry("tabs"))), "the entry is stored already");
            assert!(set("more", Some(entry("x"))) && set("more", None) && !set("more", None));
            let kept = projects.entries(owner).expect("reads");
            assert_eq!(kept.into_iter().collect::<Vec<_>>(), [("style".into(), entry("tabs"))]);
        }
        projects.set_current("/a", Some(id)).expect("writes");
        assert_eq!(projects.entries(Owner::Project("/a")).expect("reads").len(), 1);
        assert!(projects.entries(Owner::Project("/b")).expect("reads").is_empty());
        let file = home.path().join("global.json");
        fsutil::replace_atomically(&file, b"{ \"entries\": ").expect("writes");
        assert!(projects.entries(Owner::Global).expect("reads").is_empty());
        let refused = projects.set_entry(Owner::Global, "style", Some(entry("spaces")));
        assert!(matches!(refused, Err(ProjectError::Storage(_))));
        assert_eq!(fs::read(file).expect("reads"), b"{ \"entries\": ");
    }

    #[test]
    fn file_with_values_of_another_type_is_not_used() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let projects = Projects::new(home.path());
        assert_eq!(projects.examine(&projects.global), None, "there is none");
        fsutil::create_private_dir(&projects.dir).expect("creates");
        for (file, content, is_used) in [
            (projects.global.clone(), r#"{"entries":{}}"#, true),
            (projects.global.clone(), r#"{"entries":[]}"#, false),
            (projects.file("/a"), r#"{"path":"/a","allowedServers":["a"]}"#, true),
            (projects.file("/a"), r#"{"path":"/a","allowedServers":"a"}"#, false),
        ] {
            fsutil::replace_atomically(&file, content.as_bytes()).expect("writes");
            assert_eq!(projects.examine(&file).is_none(), is_used, "{content}");
        }
    }

    #[test]
    fn canonical_requires_an_absolute_path_of_a_directory() {
        assert!(matches!(Projects::canonical("relative"), Err(ProjectError::NoDirectory { .. })));
        assert!(matches!(
            Projects::canonical("/no/such/place"),
            Err(ProjectError::NoDirectory { .. })
        ));
        assert_eq!(Projects::canonical("/").expect("exists"), "/");
    }
}
