//! `ollmctl exec --track`: the files below the current directory that a command wrote.
//!
//! The directory is read before and after the command. What differs was written by the command, or by anybody else
//! meanwhile. The contents from before are held in memory, so there are limits, which the help states.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ollm_protocol::content::{FileHash, FileModes, FileStateInput, FileWriteInput};

use crate::regular_file;

/// The most files of a directory that is tracked.
const MAX_FILES: usize = 20_000;
/// The largest file whose content is kept, in bytes: the default limit of the daemon.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The most bytes of contents that are held while the command runs.
const MAX_HELD_BYTES: u64 = 64 * 1024 * 1024;
/// The most bytes of contents that are sent: a frame has 16 MiB, and base64 takes a third more.
const MAX_SENT_BYTES: usize = 8 * 1024 * 1024;
/// The most files that are sent.
const MAX_WRITES: usize = 20_000;
/// Directories that are not read: they hold what others can make again, and are large.
const SKIPPED: [&str; 7] =
    [".git", "node_modules", "target", "dist", "build", ".venv", "__pycache__"];

/// The files of a directory before a command.
pub(super) struct TrackedDir {
    dir: PathBuf,
    /// The path of the directory in the project, with a `/` at its end unless it is the project.
    prefix: String,
    files: BTreeMap<PathBuf, TrackedFile>,
    /// The directories below it.
    dirs: HashSet<PathBuf>,
}

/// A file before a command.
struct TrackedFile {
    stamp: FileStamp,
    /// The content, unless it is over a limit.
    content: Option<Vec<u8>>,
}

/// The properties of a file that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// Changes with every change, and no program can set it.
    changed: (i64, i64),
    mode: u32,
}

impl FileStamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            mode: metadata.mode() & 0o777,
        }
    }
}

/// The files that a command wrote.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TrackedWrites {
    pub(super) writes: Vec<FileWriteInput>,
    /// The number of further files.
    pub(super) omitted: u64,
}

impl TrackedDir {
    /// Reads a directory that is in a project.
    ///
    /// **Errors**: the reason why the directory cannot be tracked.
    pub(super) fn read(dir: &Path, project: &str) -> Result<Self, String> {
        let below = dir.strip_prefix(project).map_err(|_| {
            format!("the current directory is not in the project of the session, {project}")
        })?;
        let below = below.to_str().ok_or("the path of the directory is not UTF-8")?;
        let prefix = if below.is_empty() { String::new() } else { format!("{below}/") };
        let mut files = BTreeMap::new();
        let mut held = 0;
        let found = walk(dir)?;
        for (path, metadata) in found.files {
            let stamp = FileStamp::of(&metadata);
            let is_kept = stamp.bytes <= MAX_FILE_BYTES && held + stamp.bytes <= MAX_HELD_BYTES;
            // A file that cannot be read is one without a known content.
            let content = if is_kept { read(&dir.join(&path)).ok() } else { None };
            held += content.as_ref().map_or(0, |content| content.len() as u64);
            files.insert(path, TrackedFile { stamp, content });
        }
        Ok(Self { dir: dir.to_owned(), prefix, files, dirs: found.dirs })
    }

    /// Returns the files that were written since the start.
    ///
    /// **Errors**: the reason why that cannot be found out.
    pub(super) fn writes(mut self) -> Result<TrackedWrites, String> {
        let mut found = TrackedWrites::default();
        let mut sent = 0;
        for (path, metadata) in walk(&self.dir)?.files {
            let before = self.files.remove(&path);
            let stamp = FileStamp::of(&metadata);
            if before.as_ref().is_some_and(|before| before.stamp == stamp) {
                continue;
            }
            let Some(write) = self.write(&path, before, Some(stamp), &mut sent) else { continue };
            found.add(write);
        }
        for (path, before) in std::mem::take(&mut self.files) {
            if let Some(write) = self.write(&path, Some(before), None, &mut sent) {
                found.add(write);
            }
        }
        Ok(found)
    }

    /// Returns the write of a file whose stamp differs, or `None` if it has the same content and permissions. A name that
    /// is not UTF-8 is `Err`.
    fn write(
        &self,
        path: &Path,
        before: Option<TrackedFile>,
        after: Option<FileStamp>,
        sent: &mut usize,
    ) -> Option<Result<FileWriteInput, OsString>> {
        let hash_after = after.map(|_| hash_of(&self.dir.join(path)).ok());
        let mode_before = before.as_ref().map(|before| before.stamp.mode);
        let mode_after = after.map(|after| after.mode);
        let hash_before = before.as_ref().and_then(|before| before.content.as_deref()).map(hash);
        let is_same_content = hash_before.is_some() && hash_after == Some(hash_before);
        if is_same_content && mode_before == mode_after {
            return None;
        }
        let Some(name) = path.to_str() else { return Some(Err(path.as_os_str().to_owned())) };
        let before = match before {
            None => FileStateInput::Absent,
            Some(TrackedFile { content: Some(content), .. })
                if *sent + content.len() <= MAX_SENT_BYTES =>
            {
                *sent += content.len();
                content_of(content)
            }
            Some(_) => FileStateInput::Unknown,
        };
        let after = match hash_after {
            None => FileStateInput::Absent,
            Some(Some(hash)) => FileStateInput::Hash(hash),
            Some(None) => FileStateInput::Unknown,
        };
        let modes = FileModes { before: mode_before, after: mode_after };
        let mode = (mode_before != mode_after).then_some(modes);
        let created_dirs =
            if before == FileStateInput::Absent { self.created_dirs(path) } else { 0 };
        let path = format!("{}{name}", self.prefix);
        Some(Ok(FileWriteInput { path, before, after, mode, renamed_from: None, created_dirs }))
    }

    /// Returns the number of directories of a path that were not there before.
    fn created_dirs(&self, path: &Path) -> u32 {
        let dirs = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        let created = dirs.take_while(|dir| !self.dirs.contains(*dir)).count();
        u32::try_from(created).unwrap_or_default()
    }
}

impl TrackedWrites {
    fn add(&mut self, write: Result<FileWriteInput, OsString>) {
        match write {
            Ok(write) if self.writes.len() < MAX_WRITES => self.writes.push(write),
            _ => self.omitted += 1,
        }
    }

    /// Returns the number of files whose content before the command is not known.
    pub(super) fn n_unknown(&self) -> usize {
        let is_unknown = |write: &&FileWriteInput| write.before == FileStateInput::Unknown;
        self.writes.iter().filter(is_unknown).count()
    }
}

fn open(path: &Path) -> io::Result<File> {
    regular_file::open(OpenOptions::new().read(true), path)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash_of(path: &Path) -> io::Result<FileHash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(open(path)?)?;
    Ok(FileHash(*hasher.finalize().as_bytes()))
}

fn hash(bytes: &[u8]) -> FileHash {
    FileHash(*blake3::hash(bytes).as_bytes())
}

fn content_of(bytes: Vec<u8>) -> FileStateInput {
    match String::from_utf8(bytes) {
        Ok(text) => FileStateInput::Text(text),
        Err(error) => FileStateInput::Base64(STANDARD.encode(error.as_bytes())),
    }
}

/// The files below a directory, by paths relative to it.
#[derive(Default)]
struct Walked {
    /// The regular files.
    files: BTreeMap<PathBuf, Metadata>,
    dirs: HashSet<PathBuf>,
}

/// Reads the files below a directory.
///
/// **Errors**: the directory has too many files, or cannot be read.
fn walk(root: &Path) -> Result<Walked, String> {
    let mut walked = Walked::default();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let entries = match fs::read_dir(root.join(&dir)) {
            // A directory below that cannot be read, or that is gone, has no files that can be tracked.
            Err(_) if !dir.as_os_str().is_empty() => continue,
            entries => entries.map_err(|error| format!("cannot read the directory: {error}"))?,
        };
        for entry in entries.filter_map(io::Result::ok) {
            let path = dir.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                if !SKIPPED.iter().any(|name| entry.file_name() == *name) {
                    walked.dirs.insert(path.clone());
                    dirs.push(path);
                }
            } else if metadata.is_file() {
                walked.files.insert(path, metadata);
            }
            if walked.files.len() > MAX_FILES {
                return Err(format!("there are more than {MAX_FILES} files below the directory"));
            }
        }
    }
    Ok(walked)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests write files as a command does")]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn writes_between_two_readings_are_found() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let project = scratch.path().to_str().expect("is UTF-8");
        let dir = scratch.path().join("sub");
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("has one")).expect("creates");
            fs::write(path, bytes).expect("writes");
        };
        write("same", b"1");
        write("touched", b"1");
        write("changed", b"old");
        write("binary", b"\xff\xfe");
        write("gone", b"g");
        write("run.sh", b"x");
        write("target/made", b"1");
        write("large", &vec![0; 2 * 1024 * 1024]);
        fs::create_dir(dir.join("empty")).expect("creates");
        symlink("/etc/passwd", dir.join("link")).expect("links");
        let tracked = TrackedDir::read(&dir, project).expect("reads");
        write("touched", b"1");
        write("changed", b"new");
        write("binary", b"2");
        fs::remove_file(dir.join("gone")).expect("removes");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.join("run.sh"), mode).expect("sets");
        write("empty/deep/er/new", b"n");
        write("target/made", b"2");
        write("large", b"small");
        let odd = dir.join(std::ffi::OsStr::from_bytes(b"odd\xff"));
        fs::copy(dir.join("changed"), odd).expect("copies");
        let found = tracked.writes().expect("reads");
        assert_eq!((found.omitted, found.n_unknown()), (1, 1), "{found:?}");
        let shown: Vec<_> = found
            .writes
            .iter()
            .map(|write| {
                let state = |state: &FileStateInput| match state {
                    FileStateInput::Text(text) => text.clone(),
                    FileStateInput::Hash(found) if *found == hash(b"new") => "#new".to_owned(),
                    FileStateInput::Hash(_) => "#".to_owned(),
                    other => format!("{other:?}"),
                };
                format!("{} {} {}", write.path, state(&write.before), state(&write.after))
            })
            .collect();
        let expect = [
            "sub/binary Base64(\"//4=\") #",
            "sub/changed old #new",
            "sub/empty/deep/er/new Absent #",
            "sub/large Unknown #",
            "sub/run.sh x #",
            "sub/gone g Absent",
        ];
        assert_eq!(shown, expect);
        let created: Vec<u32> = found.writes.iter().map(|write| write.created_dirs).collect();
        assert_eq!(created, [0, 0, 2, 0, 0, 0]);
        let modes = found.writes[4].mode.expect("changed");
        assert_eq!(modes.after, Some(0o755));
        TrackedDir::read(&dir, "/elsewhere").map(drop).expect_err("is in another project");
    }
}
