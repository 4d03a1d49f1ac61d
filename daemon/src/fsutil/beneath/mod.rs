//! Directories that other programs write too, such as a project, and files beneath them.
//!
//! A [`Dir`] is an open handle. What lies beneath it is opened from the handle, part by part and without following
//! links, so that a link that appears at any moment leads nowhere else. Files change places and are never overwritten:
//! what was in a place can be examined after the change, and put back.

mod attributes;
mod moves;
mod removals;

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

pub(crate) use attributes::Attributes;
use attributes::{SPECIAL_BITS, give_attributes};
use ollm_protocol::content::FileLoss;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::SyncMethod;
use super::disk::{Change, carry_out, check_read};
use super::writers::has_writer;

/// Larger files are not compared, in bytes: reading one would take seconds.
const MAX_COMPARED_BYTES: u64 = 1024 * 1024 * 1024;
/// The bytes that are read at once.
const BUFFER_BYTES: u64 = 64 * 1024;
/// The nine bits of permissions.
const MODE_BITS: u32 = 0o777;
/// The permissions, the set-ID bits and the sticky bit.
const ALL_MODE_BITS: u32 = MODE_BITS | SPECIAL_BITS;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// The state of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlaceState {
    Absent,
    File(FoundFile),
    /// Something that is not a regular file, or that cannot be compared, in words.
    Other(&'static str),
}

/// A regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundFile {
    /// The blake3 of the content.
    pub(crate) hash: [u8; 32],
    /// The size of the content in bytes.
    pub(crate) size_bytes: u64,
    /// The permissions: nine bits.
    pub(crate) mode: u32,
    /// Set if it belongs to the user of this process.
    pub(crate) is_own: bool,
    /// Set if a program has the file open for writing, as far as the system says so.
    pub(crate) has_writer: bool,
    /// The device and the number of the file, which its other names have as well.
    pub(crate) inode: (u64, u64),
    /// The time of the last change of the content, the attributes or the names of the file: seconds and nanoseconds.
    pub(crate) changed_at: (i64, i64),
}

impl Dir {
    /// Opens a directory, which is not a link itself.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::openat(CWD, path, dir_flags(), Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the path of this directory leads to it, and through no link.
    pub(crate) fn is_in_place(&self) -> io::Result<bool> {
        let (own, found) = (rustix::fs::fstat(&self.fd)?, rustix::fs::lstat(&self.path)?);
        let is_same = (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino);
        Ok(is_same && self.path.canonicalize()? == self.path)
    }

    /// Returns whether this is the same directory as another one.
    pub(crate) fn is_same(&self, other: &Self) -> io::Result<bool> {
        let (own, other) = (rustix::fs::fstat(&self.fd)?, rustix::fs::fstat(&other.fd)?);
        Ok((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
    }

    /// Returns whether nothing is in the directory.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens a directory beneath this one; an empty path is this one.
    ///
    /// **Errors**: of kind `NotFound` if there is none; `NotADirectory` for a link or a file on the way.
    pub(crate) fn open_beneath(&self, path: &str) -> io::Result<Self> {
        let joined = if path.is_empty() { self.path.clone() } else { self.path.join(path) };
        let fd = match self.resolve(path) {
            Some(resolved) => resolved,
            None => self.walk(path),
        };
        match fd {
            Ok(fd) => Ok(Self { fd, path: joined }),
            Err(Errno::LOOP | Errno::XDEV) => Err(io::ErrorKind::NotADirectory.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Resolves a path in one call of the system; `None` if it cannot do so.
    #[cfg(target_os = "linux")]
    fn resolve(&self, path: &str) -> Option<Result<OwnedFd, Errno>> {
        use rustix::fs::ResolveFlags;
        let path = if path.is_empty() { "." } else { path };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.fd, path, dir_flags(), Mode::empty(), resolve) {
            // An old kernel, a sandbox, or a directory that was renamed meanwhile.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::AGAIN) => None,
            opened => Some(opened),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn resolve(&self, _: &str) -> Option<Result<OwnedFd, Errno>> {
        None
    }

    /// Resolves a path part by part.
    fn walk(&self, path: &str) -> Result<OwnedFd, Errno> {
        let mut fd = self.fd.try_clone().map_err(|_| Errno::MFILE)?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if part == ".." {
                return Err(Errno::XDEV);
            }
            fd = rustix::fs::openat(&fd, part, dir_flags(), Mode::empty())?;
        }
        Ok(fd)
    }

    /// Reads the file at a path, if there is any. Never waits for a pipe.
    pub(crate) fn find(&self, name: &str) -> io::Result<PlaceState> {
        self.find_open(name).map(|(found, _)| found)
    }

    /// Reads the file at a path as [`Dir::find`] does, and returns a regular file open.
    pub(crate) fn find_open(&self, name: &str) -> io::Result<(PlaceState, Option<File>)> {
        self.examine(name, None)
    }

    /// Returns the state of a place again. The content is read only if the system says that it may differ from what was found
    /// before. That is a hint: the clock of a file system has ticks of milliseconds.
    pub(crate) fn find_again(
        &self,
        name: &str,
        before: Option<&FoundFile>,
    ) -> io::Result<PlaceState> {
        self.examine(name, before).map(|(found, _)| found)
    }

    fn examine(
        &self,
        name: &str,
        before: Option<&FoundFile>,
    ) -> io::Result<(PlaceState, Option<File>)> {
        let other = |what| Ok((PlaceState::Other(what), None));
        check_read(&self.path)?;
        let mut file = match self.open_file(name) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok((PlaceState::Absent, None)),
            Err(Errno::LOOP | Errno::MLINK) => return other("a symbolic link"),
            Err(Errno::NXIO) => return other("a special file"),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return other("a directory");
        }
        if !metadata.is_file() {
            return other("a special file");
        }
        if metadata.len() > MAX_COMPARED_BYTES {
            return other("a file of more than 1 GiB");
        }
        // First, so that nobody who is seen too late has written what is read.
        let has_writer = has_writer(&file);
        let inode = (metadata.dev(), metadata.ino());
        let changed_at = (metadata.ctime(), metadata.ctime_nsec());
        let is_same = |before: &&FoundFile| {
            (before.inode, before.changed_at, before.size_bytes)
                == (inode, changed_at, metadata.len())
        };
        let (hash, size_bytes) = match before.filter(is_same) {
            Some(before) => (before.hash, before.size_bytes),
            None => hash_of(&mut file, metadata.len())?,
        };
        let mode = mode_of(&metadata);
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        let found = FoundFile { hash, size_bytes, mode, is_own, has_writer, inode, changed_at };
        Ok((PlaceState::File(found), Some(file)))
    }

    /// Returns the names in this directory. In a name that is not UTF-8, other characters take the place of wrong bytes, so it
    /// leads to nothing.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    fn open_file(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags | OFlags::NOCTTY, Mode::empty()).map(File::from)
    }

    /// Reads a whole file of this directory.
    ///
    /// **Errors**: of kind `FileTooLarge` if it has more than `max_bytes`.
    pub(crate) fn read(&self, name: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open_file(name)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }

    /// Returns the time at which the content of a regular file was last modified, in Unix milliseconds.
    ///
    /// **Errors**: of kind `NotFound` if there is none; `InvalidInput` for anything else than a regular file.
    pub(crate) fn modified_ms(&self, name: &str) -> io::Result<i64> {
        let metadata = self.open_file(name)?.metadata()?;
        if !metadata.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let since = metadata.modified()?.duration_since(std::time::UNIX_EPOCH);
        Ok(since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Creates a file, with [`SyncMethod::Each`] durably except for its name.
    pub(crate) fn create(
        &self,
        name: &str,
        bytes: &[u8],
        mode: u32,
        sync: SyncMethod,
    ) -> io::Result<()> {
        self.create_file(name, bytes, mode, None, sync).map(drop)
    }

    /// Creates a file as [`Dir::create`] does, with the attributes of another one; returns those that it could not get.
    pub(crate) fn create_like(
        &self,
        name: &str,
        bytes: &[u8],
        mode: u32,
        attributes: &Attributes,
        sync: SyncMethod,
    ) -> io::Result<Vec<FileLoss>> {
        self.create_file(name, bytes, mode, Some(attributes), sync)
    }

    fn create_file(
        &self,
        name: &str,
        bytes: &[u8],
        mode: u32,
        attributes: Option<&Attributes>,
        sync: SyncMethod,
    ) -> io::Result<Vec<FileLoss>> {
        let path = self.path.join(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let open = || {
            let opened = rustix::fs::openat(
                &self.fd,
                name,
                flags | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o600),
            );
            opened.map(File::from).map_err(io::Error::from)
        };
        let mut file = carry_out(Change::Create(&path), open)?;
        carry_out(Change::Append(&path, bytes), || file.write_all(bytes))?;
        let losses = give_attributes(&file, &path, mode, attributes)?;
        if sync == SyncMethod::Each {
            carry_out(Change::Sync(&path), || file.sync_all())?;
        }
        Ok(losses)
    }

    /// Makes the content of a regular file durable, whoever wrote it.
    pub(crate) fn sync_file(&self, name: &str) -> io::Result<()> {
        let (path, file) = (self.path.join(name), self.open_file(name)?);
        carry_out(Change::Sync(&path), || file.sync_all())
    }

    /// Sets the permissions of the file that was found under a name, durably. It may be on a file system that is mounted
    /// beneath the project, which [`Dir::sync_file_system`] of the project does not reach.
    ///
    /// **Errors**: of kind `NotFound` if another file has the name now.
    pub(crate) fn set_mode(&self, name: &str, found: &FoundFile, mode: u32) -> io::Result<()> {
        let (path, file) = (self.path.join(name), self.open_file(name)?);
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) != found.inode {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mode = (mode & MODE_BITS) | (metadata.permissions().mode() & !MODE_BITS);
        carry_out(Change::SetMode(&path), || {
            Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & ALL_MODE_BITS))?)
        })?;
        carry_out(Change::Sync(&path), || file.sync_all())
    }

    /// Creates a directory; one that exists stays.
    pub(crate) fn create_dir(&self, name: &str, mode: u32) -> io::Result<()> {
        let path = self.path.join(name);
        let made = carry_out(Change::CreateDirs(&path), || {
            Ok(rustix::fs::mkdirat(&self.fd, name, mode_from(mode))?)
        });
        made.or_else(
            |error| {
                if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
            },
        )
    }

    /// Removes an empty directory; returns whether it is gone.
    pub(crate) fn remove_dir(&self, name: &str) -> io::Result<bool> {
        let path = self.path.join(name);
        let removed = carry_out(Change::RemoveDir(&path), || {
            Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
        });
        match removed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        carry_out(Change::Remove(&path), || {
            Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
        })
    }

    /// Makes creations, moves and removals in this directory durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        carry_out(Change::SyncDir(&self.path), || Ok(rustix::fs::fsync(&self.fd)?))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn dir_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn mode_from(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode & MODE_BITS)
}

fn mode_of(metadata: &Metadata) -> u32 {
    metadata.permissions().mode() & MODE_BITS
}

/// Returns the hash and the size of a file of about `len` bytes.
fn hash_of(file: &mut File, len: u64) -> io::Result<([u8; 32], u64)> {
    let mut hasher = blake3::Hasher::new();
    // One byte more finds the end of a small file in one read.
    let mut buffer = vec![0; (len + 1).min(BUFFER_BYTES) as usize];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((*hasher.finalize().as_bytes(), hasher.count())),
            Ok(n_read) => {
                hasher.update(&buffer[..n_read]);
                // The end of a file that has the size that the system says.
                if n_read < buffer.len() && hasher.count() == len {
                    return Ok((*hasher.finalize().as_bytes(), len));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests make files of somebody else")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed_on_any_way() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (root, other) = (scratch.path().join("root"), scratch.path().join("other"));
        fs::create_dir_all(root.join("a/b")).expect("creates");
        fs::create_dir_all(other.join("b")).expect("creates");
        fs::write(other.join("b/secret"), "x").expect("writes");
        symlink(&other, root.join("link")).expect("links");
        symlink(other.join("b/secret"), root.join("a/file")).expect("links");
        let dir = Dir::open(&root).expect("opens");
        for resolve in [true, false] {
            let open = |path: &str| match resolve {
                true => dir.open_beneath(path).map(drop),
                false => dir.walk(path).map(drop).map_err(io::Error::from),
            };
            open("").expect("is itself");
            open("a/b").expect("is beneath");
            for path in ["link", "link/b", "a/../../other", ".."] {
                open(path).expect_err("leads outside");
            }
        }
        let a = dir.open_beneath("a").expect("opens");
        assert_eq!(a.find("file").expect("looks"), PlaceState::Other("a symbolic link"));
        assert_eq!(a.find("b").expect("looks"), PlaceState::Other("a directory"));
        assert_eq!(a.find("missing").expect("looks"), PlaceState::Absent);
        Dir::open(&root.join("link")).expect_err("is a link");
    }

    #[test]
    fn file_is_read_again_only_if_it_seems_changed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let dir = Dir::open(scratch.path()).expect("opens");
        let path = scratch.path().join("a");
        fs::write(&path, "same").expect("writes");
        let PlaceState::File(found) = dir.find("a").expect("looks") else { panic!("is a file") };
        // A hash that no content has shows whether the file is read.
        let before = FoundFile { hash: [0; 32], ..found };
        let again = || dir.find_again("a", Some(&before)).expect("looks");
        assert_eq!(again(), PlaceState::File(before));
        #[cfg(target_os = "linux")]
        {
            let writer = fs::File::options().append(true).open(&path).expect("opens");
            let is_seen =
                |state| matches!(state, PlaceState::File(FoundFile { has_writer: true, .. }));
            assert!(is_seen(again()), "a program can write it");
            drop(writer);
        }
        fs::write(scratch.path().join("b"), "same").expect("writes");
        fs::rename(scratch.path().join("b"), &path).expect("renames");
        let PlaceState::File(replaced) = again() else { panic!("is a file") };
        assert_eq!(replaced.hash, found.hash);
        fs::remove_file(&path).expect("removes");
        assert_eq!(again(), PlaceState::Absent);
    }

    #[test]
    fn names_that_are_not_utf8_are_listed_and_lead_to_nothing() {
        use std::os::unix::ffi::OsStrExt as _;

        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join(std::ffi::OsStr::from_bytes(b"0\xff"));
        // Some file systems refuse such names.
        if fs::write(path, "x").is_ok() {
            let dir = Dir::open(scratch.path()).expect("opens");
            assert_eq!(dir.names().expect("lists"), ["0\u{fffd}"]);
            assert_eq!(dir.find("0\u{fffd}").expect("looks"), PlaceState::Absent);
        }
    }
}
