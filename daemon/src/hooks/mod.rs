//! Hooks: programs of the user in the home or in a project, which the daemon lets run on some occasions.
//!
//! `find` lists them, `trust` keeps which ones of a project may run, `launch` starts a program beside the daemon that runs
//! one (`runner`) and ends what it started (`descendants`), and reads what the hook wrote.
//!
//! **Invariants**: the content that runs is the content that was examined: a hook of the home can be changed by its owner
//! only, and one of a project runs from the copy in the home that was made when it was trusted. The daemon waits for no hook
//! without a limit, and a hook outlives neither its limit nor the daemon by more than a moment.

mod descendants;
mod find;
mod launch;
mod runner;
mod trust;

use std::io;
use std::path::{Path, PathBuf};

use ollm_protocol::content::{HookOccasion, HookOrigin, HookState};

pub(crate) use self::find::FoundHooks;
pub(crate) use self::launch::{Launcher, RunBy};
pub(crate) use self::runner::{HookOutcome, HookReply, HookRequest, serve};
use self::trust::Trust;
use crate::fsutil::FsError;

/// The directory of hooks in the home, and below `.ollm` in a project.
const DIRECTORY: &str = "hooks";
/// The directory of the home with what is trusted.
const TRUSTED: &str = "trusted-hooks";

/// A failed operation on hooks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// The hook has another content than the caller saw, or is gone.
    #[error("the hook {name} of {} changed since it was shown", project.display())]
    Changed { project: PathBuf, name: String },
    #[error(transparent)]
    File(#[from] FsError),
    /// The program that runs a hook could not be started.
    #[error("cannot start {}", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The program that runs a hook ended without a reply.
    #[error("{program} did not run the hook{}{report}", if report.is_empty() { "" } else { ": " })]
    NoReply { program: String, report: String },
}

/// A hook that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundHook {
    /// The occasion, or `OCCASION.d/FILE`.
    pub(crate) name: String,
    pub(crate) occasion: HookOccasion,
    pub(crate) origin: HookOrigin,
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    /// The blake3 hash of the content; `None` if it was not read.
    pub(crate) digest: Option<String>,
    pub(crate) state: HookState,
    /// The reason if it does not run.
    pub(crate) problem: Option<String>,
    /// The file that is executed, if the hook is ready.
    pub(crate) program: Option<PathBuf>,
    /// The digest of the content that was trusted, if that is another one.
    pub(crate) trusted_digest: Option<String>,
}

/// The hooks of a home.
pub(crate) struct Hooks {
    home: PathBuf,
    trust: Trust,
    pub(crate) launcher: Launcher,
}

impl Hooks {
    /// Takes the directory of a home; reads nothing.
    pub(crate) fn new(home: &Path) -> Self {
        let trust = Trust::new(home.join(TRUSTED));
        Self { home: home.to_owned(), trust, launcher: Launcher::of_process() }
    }

    /// Returns the directory of the home.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the directory of the hooks of all sessions.
    pub(crate) fn directory(&self) -> PathBuf {
        self.home.join(DIRECTORY)
    }

    /// Removes the temporary files that a crash left; returns their number.
    pub(crate) fn sweep_temporaries(&self) -> Result<usize, FsError> {
        self.trust.sweep_temporaries()
    }
}

/// Returns the directory of the hooks of a project.
fn project_directory(project: &Path) -> PathBuf {
    project.join(".ollm").join(DIRECTORY)
}

#[cfg(test)]
mod tests;
