//! The directories of the daemon: found, checked and locked before anything in them is read.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ollm_protocol::address;
use rustix::process::geteuid;

use super::start::{ConfigSource, HomeError, StartError};
use crate::config::{self, Config};
use crate::flags::Flags;
use crate::fsutil::{self, FsError};
use crate::server::lock::InstanceLock;

/// The default home, in the user's home directory.
const DEFAULT_HOME: &str = ".ollm";

/// The directories of this daemon, locked.
pub(crate) struct Home {
    /// The canonical path of the home.
    pub(crate) dir: PathBuf,
    /// The id of the home, which clients compare.
    pub(super) id: String,
    /// The directory of session logs, which may be outside of the home.
    pub(crate) sessions_dir: PathBuf,
    /// The locks, held until the process ends; that of the home is the first.
    pub(super) locks: Vec<InstanceLock>,
    /// The configuration that names the directories.
    pub(crate) config: Config,
    /// The warnings about the configuration.
    pub(super) warnings: Vec<String>,
}

impl Home {
    /// Creates the home if it is missing, and locks it before anything in it is read.
    pub(crate) fn prepare(flags: &Flags) -> Result<Self, StartError> {
        let dir = home_dir(flags)?;
        // The owner is checked first, because root could make the directory of another user private.
        check_owner(&dir, &dir)?;
        let dir = private_dir(&dir)?;
        check_files(&dir)?;
        let mut locks = vec![InstanceLock::acquire(&dir)?];
        let found = dir.metadata().map_err(|source| FsError::new("examine", &dir, source))?;
        let id = address::home_id(found.dev(), found.ino());
        let (config, warnings) = ConfigSource::new(flags, &dir).load()?;
        check_owner(&config.sessions.data_dir, &config.sessions.data_dir)?;
        let sessions_dir = private_dir(&config.sessions.data_dir)?;
        // Another home may name this very directory as its `dataDir`.
        if sessions_dir != dir {
            check_owner(&sessions_dir.join("ollmd.lock"), &sessions_dir)?;
            locks.push(InstanceLock::acquire(&sessions_dir)?);
        }
        Ok(Self { dir, id, sessions_dir, locks, config, warnings })
    }
}

/// Creates a directory if it is missing, makes it private, and returns its canonical path.
fn private_dir(path: &Path) -> Result<PathBuf, StartError> {
    fsutil::create_private_dir(path)?;
    let dir = path.canonicalize().map_err(|source| FsError::new("find", path, source))?;
    if dir.to_str().is_none() {
        return Err(HomeError::NotUtf8 { path: dir }.into());
    }
    Ok(dir)
}

/// Refuses the files of another user in the home. Without their rights, each of them would fail later with an error
/// that does not name the cause.
fn check_files(home: &Path) -> Result<(), StartError> {
    if geteuid().is_root() {
        return Ok(());
    }
    let fail = |source| FsError::new("list", home, source);
    for file in std::fs::read_dir(home).map_err(fail)? {
        let file = file.map_err(fail)?;
        // The configuration may be a link to a file that the system provides.
        if file.file_name() != config::FILE_NAME {
            check_owner(&file.path(), home)?;
        }
    }
    Ok(())
}

/// Refuses an existing file or directory of another user; `dir` is the directory that should belong to this user.
fn check_owner(path: &Path, dir: &Path) -> Result<(), StartError> {
    let found = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|source| FsError::new("examine", path, source))?,
    };
    Ok(require_owner(path, dir, found.uid(), geteuid().as_raw())?)
}

fn require_owner(path: &Path, dir: &Path, owner: u32, user: u32) -> Result<(), HomeError> {
    if owner == user {
        return Ok(());
    }
    Err(HomeError::Foreign { path: path.to_owned(), owner, user, dir: dir.to_owned() })
}

/// Returns the home that the flags or the user's home directory name.
///
/// **Errors**: also for root with the home directory of another user, as under `sudo`: a home that root creates there
/// locks that user out.
pub(super) fn home_dir(flags: &Flags) -> Result<PathBuf, StartError> {
    let dir = match &flags.home {
        Some(home) => {
            std::path::absolute(home).map_err(|source| FsError::new("find", home, source))?
        }
        None => {
            let user_home = std::env::home_dir().ok_or(HomeError::Unknown)?;
            if geteuid().is_root() {
                check_owner(&user_home, &user_home)?;
            }
            user_home.join(DEFAULT_HOME)
        }
    };
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_owner_is_refused_with_the_command_that_mends_it() {
        let (path, dir) = (Path::new("/home/ada/.ollm/vocab"), Path::new("/home/ada/.ollm"));
        require_owner(path, dir, 1000, 1000).expect("is the owner");
        let refused = |owner, user| require_owner(path, dir, owner, user).expect_err("is refused");
        let error = refused(0, 1000);
        let text = "/home/ada/.ollm/vocab belongs to user 0, and this process runs as user 1000";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.hint(), "sudo chown -R 1000 /home/ada/.ollm");
        assert!(refused(1000, 0).hint().starts_with("sudo -u '#1000' "));
    }
}
