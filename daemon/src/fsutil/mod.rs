//! Operations on files: create, replace, rename, remove. [`disk`] has the system calls.
//!
//! Directories are created with mode 0700 and files with 0600. A crash leaves the old content of a replaced file or
//! the new one, and perhaps a temporary file beside it. Every error carries its path.
//!
//! [`beneath`] has the files of projects.
//!
//! **Invariant**: every file of the home is opened by [`open_file`] or [`open_regular`], so no link is followed, and a
//! pipe or a device in place of a file is an error and never makes the process wait.

pub(crate) mod beneath;
mod disk;
#[cfg(test)]
pub(crate) mod trace;
mod whole_sync;
mod writers;

use std::fs::{self, File, FileType, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use disk::{DiskFile, rewrite, sync_content};
use parking_lot::Mutex;
use rustix::fs::OFlags;
pub(crate) use whole_sync::{Replacements, SyncMethod};

/// The prefix of the names of temporary files.
const TEMPORARY: &str = ".tmp-";
/// The prefix of the temporary files of this process: its id, and a random number, because ids are used again.
static OWN_TEMPORARY: LazyLock<String> = LazyLock::new(|| {
    let random = RandomState::new().build_hasher().finish();
    format!("{TEMPORARY}{}-{random:016x}-", std::process::id())
});

/// The temporary files that this process gave up and could not remove.
static LEFTOVERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {}", path.display())]
pub(crate) struct FsError {
    /// The failed operation, as a verb.
    pub attempt: &'static str,
    /// The file or directory of the operation.
    pub path: PathBuf,
    /// The error of the system.
    #[source]
    pub source: io::Error,
}

impl FsError {
    pub(crate) fn new(attempt: &'static str, path: &Path, source: io::Error) -> Self {
        Self { attempt, path: path.to_owned(), source }
    }
}

/// Returns whether an error says that the disk or the user's quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns whether an error says that the process, or the system, has no free file descriptor.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(Errno::MFILE) || is(Errno::NFILE)
}

/// Creates a directory like [`create_dir`], or makes an existing directory private.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), FsError> {
    create_dir(path)?;
    make_private(path, 0o700)
}

/// Creates a directory and its missing parents, with mode 0700 where the file system has modes. An existing directory,
/// which is perhaps not ours, stays as it is.
///
/// Its name is durable afterwards, also that of an existing directory: a crash may have interrupted its creation.
pub(crate) fn create_dir(path: &Path) -> Result<(), FsError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    disk::create_dirs(path).map_err(|source| FsError::new("create the directory", path, source))?;
    if missing.is_empty() {
        return match sync_dir(parent_of(path)) {
            // A parent that this user cannot read is not ours, and the directory was there before.
            Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            result => result,
        };
    }
    missing.into_iter().try_for_each(|dir| sync_dir(parent_of(dir)))
}

/// Creates a private directory in an existing one. The caller syncs both.
pub(crate) fn create_dir_unsynced(path: &Path) -> Result<(), FsError> {
    disk::create_dirs(path).map_err(|source| FsError::new("create the directory", path, source))
}

/// Sets the mode of a file or directory if group or others have any right on it.
pub(crate) fn make_private(path: &Path, mode: u32) -> Result<(), FsError> {
    let metadata = fs::metadata(path).map_err(|source| FsError::new("examine", path, source))?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    disk::set_mode(path, mode).map_err(|source| FsError::new("make private", path, source))
}

/// Opens a file for reading and writing; creates a missing one with mode 0600.
pub(crate) fn open_private(path: &Path) -> Result<File, FsError> {
    open_file(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
        .map_err(|source| FsError::new("open", path, source))
}

/// Opens a file of the home for reading.
///
/// **Errors**: as [`open_file`].
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    open_file(OpenOptions::new().read(true), path)
}

/// Reads a whole file of the home.
///
/// **Errors**: as [`open_file`].
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a derived file that may be missing: `None` if it is, or if it has more than `max_bytes`, which its writer never
/// writes.
///
/// **Errors**: the system cannot read it. Its content is unknown then, so it must not be replaced.
pub(crate) fn read_derived(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, FsError> {
    let read = || -> io::Result<_> {
        let mut bytes = Vec::new();
        open_regular(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok((bytes.len() as u64 <= max_bytes).then_some(bytes))
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map_err(|source| FsError::new("read", path, source)),
    }
}

/// Opens a file of the home with `options`; a created file has mode 0600. Never waits.
///
/// **Errors**: of kind `InvalidInput` for a link, a pipe, or anything else that is not a regular file.
pub(crate) fn open_file(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_flagged(options, path, OFlags::NOFOLLOW | OFlags::NONBLOCK)
}

/// Reads a text file that a person may have put elsewhere and linked to, like the configuration.
///
/// **Errors**: as [`open_file`], but a link to a regular file is followed.
pub(crate) fn read_linked_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_linked(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a file that another program may have put elsewhere and linked to, like the weights of a model, for reading.
///
/// **Errors**: as [`open_file`], but a link to a regular file is followed.
pub(crate) fn open_linked(path: &Path) -> io::Result<File> {
    open_flagged(OpenOptions::new().read(true), path, OFlags::NONBLOCK)
}

/// Returns whether a path is that of a regular file, or of a link to one.
pub(crate) fn is_linked_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file())
}

fn open_flagged(options: &mut OpenOptions, path: &Path, flags: OFlags) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe waits for its other end.
    match options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => {
            require_regular(file.metadata()?.file_type())?;
            Ok(file)
        }
        Err(error) => {
            // Systems have different error numbers for a link and for a pipe without readers.
            if let Ok(found) = fs::symlink_metadata(path)
                && (flags.contains(OFlags::NOFOLLOW) || !found.is_symlink())
            {
                require_regular(found.file_type())?;
            }
            Err(error)
        }
    }
}

/// Returns an error for an existing path that is not a regular file, for a file that a library opens.
pub(crate) fn check_regular(path: &Path) -> Result<(), FsError> {
    let found = fs::symlink_metadata(path);
    found
        .and_then(|found| require_regular(found.file_type()))
        .or_else(|error| unless_missing(Err(error)))
        .map_err(|source| FsError::new("use", path, source))
}

fn require_regular(found: FileType) -> io::Result<()> {
    let name = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_symlink() => "a symbolic link",
        found if found.is_dir() => "a directory",
        found if found.is_fifo() => "a pipe",
        _ => "a special file",
    };
    let message = format!("it is {name}, not a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Replaces the content of a file: temporary file, sync, rename, sync of the directory.
pub(crate) fn replace_atomically(path: &Path, content: &[u8]) -> Result<(), FsError> {
    replace_with(path, |out| out.write_all(content))
}

/// Replaces the content of a file like [`replace_atomically`] with what `write` writes.
pub(crate) fn replace_with(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<DiskFile>) -> io::Result<()>,
) -> Result<(), FsError> {
    replace_synced(path, write)?;
    sync_dir(parent_of(path))
}

/// Replaces the content of a program like [`replace_atomically`]; only its owner can read and execute it.
pub(crate) fn replace_program(path: &Path, content: &[u8]) -> Result<(), FsError> {
    let fail = |source| FsError::new("write", path, source);
    let temporary = TemporaryFile::write(path, |out| out.write_all(content)).map_err(fail)?;
    disk::set_mode(temporary.file.path(), 0o500).map_err(fail)?;
    temporary.file.sync_all().map_err(fail)?;
    temporary.rename(path).map_err(fail)?;
    sync_dir(parent_of(path))
}

fn replace_synced(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<DiskFile>) -> io::Result<()>,
) -> Result<(), FsError> {
    let fail = |source| FsError::new("write", path, source);
    let temporary = TemporaryFile::write(path, write).map_err(fail)?;
    temporary.file.sync_all().map_err(fail)?;
    temporary.rename(path).map_err(fail)
}

/// Replaces the content of a file without syncing it; a power cut may leave neither the old nor the new content.
///
/// For files that are valid only while this process runs.
pub(crate) fn replace_unsynced(path: &Path, content: &[u8]) -> Result<(), FsError> {
    TemporaryFile::write(path, |out| out.write_all(content))
        .and_then(|temporary| temporary.rename(path))
        .map_err(|source| FsError::new("write", path, source))
}

/// A file with the content that another one will have. It is removed unless it is renamed.
struct TemporaryFile {
    file: DiskFile,
    is_renamed: bool,
}

impl TemporaryFile {
    /// Writes a temporary file in the directory of `path`.
    fn write(
        path: &Path,
        write: impl FnOnce(&mut io::BufWriter<DiskFile>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let named = tempfile::Builder::new()
            .prefix(&*OWN_TEMPORARY)
            .make_in(parent_of(path), DiskFile::create)?;
        let (file, name) = named.into_parts();
        name.keep().map_err(|failed| failed.error)?;
        let mut out = io::BufWriter::with_capacity(64 * 1024, file);
        let written = write(&mut out).and_then(|()| out.flush());
        let (file, _unwritten) = out.into_parts();
        // Removed here if it could not be written.
        let temporary = Self { file, is_renamed: false };
        written.map(|()| temporary)
    }

    fn rename(mut self, to: &Path) -> io::Result<()> {
        disk::rename(self.file.path(), to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            discard(self.file.path());
        }
    }
}

/// Returns a name for a temporary file beside `path`, which no other file has.
pub(crate) fn temporary_beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    parent_of(path).join(format!("{}{number}", *OWN_TEMPORARY))
}

/// The name of a file that is not complete yet. The file is removed unless it was renamed.
pub(crate) struct TemporaryName(PathBuf);

impl TemporaryName {
    /// Takes the responsibility for an existing file.
    pub(crate) const fn of(path: PathBuf) -> Self {
        Self(path)
    }

    /// Ends the responsibility, and leaves the file to the next start of the daemon.
    pub(crate) fn keep(self) {
        self.was_renamed();
    }

    /// Ends the responsibility: no file has the name any more.
    pub(crate) fn was_renamed(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            discard(&self.0);
        }
    }
}

/// Removes a temporary file, now or later.
fn discard(path: &Path) {
    if let Err(error) = disk::remove_file(path) {
        tracing::warn!(path = %path.display(), "cannot remove a file yet: {error}");
        note_leftover(path);
    }
}

/// Remembers a temporary file that could not be removed, see [`remove_leftovers`].
fn note_leftover(path: &Path) {
    LEFTOVERS.lock().push(path.to_owned());
}

/// Removes the temporary files in a directory that this process gave up and could not remove then.
///
/// A deletion calls it, because these files may have content of the deleted session. After a restart,
/// [`sweep_temporaries`] removes them.
pub(crate) fn remove_leftovers(dir: &Path) -> Result<(), FsError> {
    let mut leftovers = LEFTOVERS.lock();
    while let Some(at) = leftovers.iter().position(|path| path.parent() == Some(dir)) {
        remove_file(&leftovers[at])?;
        leftovers.swap_remove(at);
    }
    Ok(())
}

/// Returns the names of the files in a directory that are UTF-8, as all of ours are.
pub(crate) fn file_names(dir: &Path) -> Result<Vec<String>, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let mut names = Vec::new();
    for file in fs::read_dir(dir).map_err(fail)? {
        names.extend(file.map_err(fail)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Returns the names of the files in a directory like [`file_names`], none if there is no such directory.
///
/// **Errors**: the system cannot read it, so that nothing is known of its files.
pub(crate) fn file_names_if_any(dir: &Path) -> Result<Vec<String>, FsError> {
    use io::ErrorKind::{NotADirectory, NotFound};
    match file_names(dir) {
        Err(error) if matches!(error.source.kind(), NotADirectory | NotFound) => Ok(Vec::new()),
        names => names,
    }
}

/// Removes the temporary files in a directory that another process created; returns their number.
///
/// Such files remain when a process is killed while it replaces a file. The caller holds the lock of the directory, so no
/// other process uses them. Their times say nothing, because a clock may have been wrong.
pub(crate) fn sweep_temporaries(dir: &Path) -> Result<usize, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let mut swept = 0;
    for file in fs::read_dir(dir).map_err(fail)? {
        let file = file.map_err(fail)?;
        let name = file.file_name();
        let has_prefix = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        if has_prefix(TEMPORARY) && !has_prefix(&OWN_TEMPORARY) {
            remove_file(&file.path())?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// A mark in a directory, a temporary file whose name ends with the meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirMark {
    /// The file that the directory belongs to is not created yet.
    Incomplete,
    /// The directory may have files that nothing refers to yet, whose names are the lines of the mark.
    Unreferenced,
}

impl DirMark {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Unreferenced => "unreferenced",
        }
    }
}

/// Marks a directory until the returned file is removed. The caller syncs the directory.
pub(crate) fn mark_dir(dir: &Path, mark: DirMark) -> Result<DiskFile, FsError> {
    let mut path = temporary_beside(&dir.join("mark")).into_os_string();
    path.push(format!("-{}", mark.suffix()));
    let path = PathBuf::from(path);
    DiskFile::create(&path).map_err(|error| FsError::new("create", &path, error))
}

/// Returns the marks that other processes left in a directory.
pub(crate) fn left_marks(dir: &Path, mark: DirMark) -> Result<Vec<PathBuf>, FsError> {
    let is_left = |name: &String| {
        let is_own = name.starts_with(OWN_TEMPORARY.as_str());
        name.starts_with(TEMPORARY) && name.ends_with(mark.suffix()) && !is_own
    };
    let names = file_names(dir)?.into_iter().filter(is_left);
    Ok(names.map(|name| dir.join(name)).collect())
}

/// Gives a file that is never changed a second name, or copies it if the file system cannot do that. Does nothing if there
/// is no such file or the name is taken. The caller syncs the directory.
pub(crate) fn link_or_copy(from: &Path, to: &Path) -> Result<(), FsError> {
    if !fs::symlink_metadata(from).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    match disk::link(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if is_full(&error) || is_out_of_descriptors(&error) => {
            Err(FsError::new("link", to, error))
        }
        Err(_) => {
            let bytes = read_regular(from).map_err(|source| FsError::new("read", from, source))?;
            replace_atomically(to, &bytes)
        }
    }
}

/// Makes creations, renames and removals in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FsError> {
    disk::sync_dir(path).map_err(|source| FsError::new("sync the directory", path, source))
}

/// Makes the name of a file durable.
pub(crate) fn sync_parent(path: &Path) -> Result<(), FsError> {
    sync_dir(parent_of(path))
}

/// Moves a file or directory to another directory of the file system. The caller syncs both directories.
///
/// **Errors**: of kind `AlreadyExists` if the name is taken there, and then nothing changes.
pub(crate) fn move_new(from: &Path, to: &Path) -> io::Result<()> {
    disk::move_new(from, to)
}

/// Renames a file within its directory and makes the rename durable.
pub(crate) fn rename_durably(from: &Path, to: &Path) -> Result<(), FsError> {
    disk::rename(from, to).map_err(|source| FsError::new("rename", from, source))?;
    sync_dir(parent_of(to))
}

/// Returns the size of a regular file in bytes, or `None` if there is none or it cannot be examined.
pub(crate) fn file_len(path: &Path) -> Option<u64> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.is_file().then_some(metadata.len())
}

/// Returns the size of all regular files in a directory in bytes; 0 if there is no such directory.
pub(crate) fn size_of_files(dir: &Path) -> Result<u64, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let files = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        files => files.map_err(fail)?,
    };
    let mut bytes = 0;
    for file in files {
        bytes += file_len(&file.map_err(fail)?.path()).unwrap_or_default();
    }
    Ok(bytes)
}

/// Removes a file if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), FsError> {
    unless_missing(disk::remove_file(path)).map_err(|source| FsError::new("remove", path, source))
}

/// Removes a directory and all its content if it exists.
pub(crate) fn remove_dir_all(path: &Path) -> Result<(), FsError> {
    unless_missing(disk::remove_dir_all(path))
        .map_err(|source| FsError::new("remove", path, source))
}

/// Truncates a file to zero bytes, durably, if it exists. A link or a pipe has no content to remove and is not touched.
pub(crate) fn empty_file(path: &Path) -> Result<(), FsError> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Ok(());
    }
    let empty = |file: DiskFile| {
        file.set_len(0)?;
        file.sync_all()
    };
    unless_missing(DiskFile::open(path).and_then(empty))
        .map_err(|source| FsError::new("empty", path, source))
}

/// Turns the error of a missing file into success.
fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Returns the number that names the kind of a file system.
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_cast, reason = "the type differs between systems")]
const fn file_system_kind(found: &rustix::fs::StatFs) -> i64 {
    // Some systems have 32 bits with a sign.
    (found.f_type as i64) & 0xFFFF_FFFF
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_are_private_and_leave_no_temporary_file() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let dir = home.path().join("a/b");
        create_private_dir(&dir).expect("creates");
        let file = dir.join("x.json");
        replace_atomically(&file, b"one").expect("writes");
        replace_atomically(&file, b"two").expect("replaces");
        assert_eq!(fs::read(&file).expect("reads"), b"two");
        replace_unsynced(&file, b"three").expect("replaces");
        assert_eq!(fs::read(&file).expect("reads"), b"three");
        assert_eq!(fs::metadata(&file).expect("exists").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&dir).expect("exists").permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&dir).expect("lists").count(), 1, "no temporary file is left");
    }

    #[test]
    fn only_regular_files_are_opened_and_emptied() {
        use std::os::unix::fs::symlink;

        let home = tempfile::tempdir().expect("a scratch directory");
        let (file, link) = (home.path().join("file"), home.path().join("link"));
        replace_atomically(&file, b"text").expect("writes");
        symlink(&file, &link).expect("links");
        let pipe = home.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        let check = |path: &Path, name: &str| {
            let expected = format!("it is {name}, not a regular file");
            assert_eq!(read_regular(path).expect_err("is refused").to_string(), expected);
            let error = open_private(path).expect_err("is refused");
            assert_eq!(error.source.to_string(), expected);
            let error = check_regular(path).expect_err("is refused");
            assert_eq!(error.source.to_string(), expected);
            assert_eq!(file_len(path), None);
        };
        check(&link, "a symbolic link");
        check(&pipe, "a pipe");
        check(home.path(), "a directory");
        for path in [&link, &pipe] {
            empty_file(path).expect("has nothing to remove");
        }
        assert_eq!(read_linked_text(&link).expect("follows the link"), "text");
        assert!(read_linked_text(&pipe).is_err());
        assert_eq!(read_regular(&file).expect("reads"), b"text");
        empty_file(&file).expect("empties");
        assert_eq!(file_len(&file), Some(0));
        let missing = home.path().join("missing");
        assert_eq!(read_regular(&missing).expect_err("is missing").kind(), io::ErrorKind::NotFound);
        check_regular(&missing).expect("may be missing");
    }

    #[test]
    fn leftover_of_a_failed_replacement_is_removed_when_the_disk_allows_it() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let trace = trace::DiskTrace::new(home.path());
        // Create, append and sync succeed; the rename and the removal after it fail.
        let kind = trace::FaultKind::Error(rustix::io::Errno::IO.raw_os_error());
        trace.set_fault(Some(trace::DiskFault { at: 3, count: 3, kind }));
        replace_atomically(&home.path().join("x.json"), b"text").expect_err("is not renamed");
        let n_files = || fs::read_dir(home.path()).expect("lists").count();
        assert_eq!(n_files(), 1, "the temporary file is left");
        remove_leftovers(home.path()).expect_err("the disk still fails");
        remove_leftovers(home.path()).expect("removes");
        assert_eq!(n_files(), 0);
    }

    #[test]
    fn created_directories_are_durable_and_existing_ones_are_synced_again() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let trace = trace::DiskTrace::new(home.path());
        let synced = |dir: &str| trace::DiskStep::SyncDir(dir.into());
        create_private_dir(&home.path().join("a/b")).expect("creates");
        let steps = trace.steps();
        assert!(steps.contains(&synced("")) && steps.contains(&synced("a")), "{steps:?}");
        create_private_dir(&home.path().join("a/b")).expect("exists");
        assert_eq!(trace.steps().last(), Some(&synced("a")));
    }

    #[test]
    fn missing_directory_has_no_files_and_an_unreadable_one_is_an_error() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let file = home.path().join("file");
        replace_atomically(&file, b"text").expect("writes");
        assert_eq!(file_names_if_any(home.path()).expect("lists"), ["file"]);
        for none in [file, home.path().join("missing")] {
            assert!(file_names_if_any(&none).expect("lists").is_empty());
        }
        // A name that is too long fails for every user, root included.
        file_names_if_any(&home.path().join("x".repeat(300))).expect_err("cannot be read");
    }

    #[test]
    fn sweep_removes_temporary_files_of_other_processes_only() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let file = dir.path().join("x.json");
        replace_atomically(&file, b"one").expect("writes");
        let killed = open_private(&dir.path().join(".tmp-killed")).expect("creates");
        let future = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        killed.set_modified(future).expect("sets the time");
        let in_use = TemporaryFile::write(&file, |_| Ok(())).expect("writes");
        let count = || sweep_temporaries(dir.path()).expect("sweeps");
        assert_eq!((count(), count()), (1, 0));
        assert!(file.exists() && in_use.file.path().exists());
    }
}
