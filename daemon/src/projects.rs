//! What is remembered of a project beside its sessions: `projects/<projectHash>.json`, replaced atomically.
//!
//! Reads and writes block on the disk. FORMAT.md, "Projects".

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use ollm_protocol::SessionId;
use serde::{Deserialize, Serialize};

use crate::fsutil::{self, FsError};
use crate::session::project;

/// The file of one project.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProjectFile {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_session: Option<SessionId>,
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
    /// Held over read, change and write of a file, so that two changes do not overwrite each other.
    changing: Mutex<()>,
}

impl Projects {
    /// The projects remembered in a directory, which is made when the first one is.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, changing: Mutex::new(()) }
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
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(path, id)
    }

    /// Forgets a session wherever it is current.
    pub(crate) fn forget(&self, id: SessionId) -> Result<(), ProjectError> {
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
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
        let file = ProjectFile { path: path.to_owned(), current_session: id };
        fsutil::create_private_dir(&self.dir)?;
        let json = serde_json::to_vec_pretty(&file)
            .map_err(|source| FsError::new("encode", &self.file(path), source.into()))?;
        Ok(fsutil::replace_atomically(&self.file(path), &json)?)
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

    /// A file that cannot be read as a project counts as empty: it holds nothing that a user said.
    fn read(&self, path: &str) -> Result<ProjectFile, ProjectError> {
        let file = self.file(path);
        match fs::read(&file) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ProjectFile::default()),
            Err(source) => Err(FsError::new("read", &file, source).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_session_is_remembered_and_forgotten_everywhere() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let projects = Projects::new(home.path().join("projects"));
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
    fn a_project_must_be_a_directory_named_from_the_root() {
        assert!(matches!(Projects::canonical("relative"), Err(ProjectError::NoDirectory { .. })));
        assert!(matches!(
            Projects::canonical("/no/such/place"),
            Err(ProjectError::NoDirectory { .. })
        ));
        assert_eq!(Projects::canonical("/").expect("exists"), "/");
    }
}
