//! The files below a directory that a command or a tool wrote.
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
/// The most bytes of contents that are sent, as JSON. A frame has 16 MiB; the rest is for the names of the files, and for
/// the command with its output.
const MAX_SENT_BYTES: usize = 10 * 1024 * 1024;
/// The most bytes of the names of files, as JSON with everything that is said of a file besides its content.
const MAX_NAMES_BYTES: usize = 5 * 1024 * 1024;
/// The most bytes that a file takes in JSON besides its name and content.
const WRITE_BYTES: usize = 200;
/// The largest file that is read after the command, in bytes: the daemon compares no larger one.
const MAX_COMPARED_BYTES: u64 = 1024 * 1024 * 1024;
/// Directories that are not read: they hold what others can make again, and are large.
const SKIPPED: [&str; 7] =
    [".git", "node_modules", "target", "dist", "build", ".venv", "__pycache__"];

/// The files of a directory before a command.
pub(crate) struct TrackedDir {
    dir: PathBuf,
    /// The path of the directory in the project, with a `/` at its end unless it is the project.
    prefix: String,
    files: BTreeMap<PathBuf, TrackedFile>,
    /// The directories below it.
    dirs: HashSet<PathBuf>,
    /// The links, pipes and other special files.
    others: HashSet<PathBuf>,
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
pub(crate) struct TrackedWrites {
    pub(crate) writes: Vec<FileWriteInput>,
    /// The number of further files.
    pub(crate) omitted: u64,
    /// The bytes of the names so far.
    names_bytes: usize,
}

impl TrackedDir {
    /// Reads a directory that is in a project.
    ///
    /// **Errors**: the reason why the directory cannot be tracked.
    pub(crate) fn read(dir: &Path, project: &str) -> Result<Self, String> {
        let below = dir.strip_prefix(project).map_err(|_| {
            format!("{} is not in the project of the session, {project}", dir.display())
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
            let content = if is_kept { read(&dir.join(&path)) } else { None };
            held += content.as_ref().map_or(0, |content| content.len() as u64);
            files.insert(path, TrackedFile { stamp, content });
        }
        let (dirs, others) = (found.dirs, found.others);
        Ok(Self { dir: dir.to_owned(), prefix, files, dirs, others })
    }

    /// Returns the files that were written since the start.
    ///
    /// **Errors**: the reason why that cannot be found out.
    pub(crate) fn writes(mut self) -> Result<TrackedWrites, String> {
        let mut found = TrackedWrites::default();
        let mut sent = 0;
        let Walked { files, dirs, others } = walk(&self.dir)?;
        for (path, metadata) in files {
            let before = self.files.remove(&path);
            let stamp = FileStamp::of(&metadata);
            if before.as_ref().is_some_and(|before| before.stamp == stamp) {
                continue;
            }
            let hash_after = hash_of(&self.dir.join(&path))
                .map_or(FileStateInput::Unknown, FileStateInput::Hash);
            let after = (hash_after, Some(stamp.mode));
            if let Some(write) = self.write(&path, before, after, &mut sent) {
                found.add(write);
            }
        }
        for (path, before) in std::mem::take(&mut self.files) {
            let is_replaced =
                dirs.contains(&path) || path.ancestors().any(|above| others.contains(above));
            let after = if is_replaced { FileStateInput::Unknown } else { FileStateInput::Absent };
            if let Some(write) = self.write(&path, Some(before), (after, None), &mut sent) {
                found.add(write);
            }
        }
        Ok(found)
    }

    /// Returns the write of a file whose stamp differs, or `None` if it has the same content and permissions. A name that
    /// is not UTF-8 is `Err`. `after` is the state with the permissions.
    fn write(
        &self,
        path: &Path,
        before: Option<TrackedFile>,
        (after, mode_after): (FileStateInput, Option<u32>),
        sent: &mut usize,
    ) -> Option<Result<FileWriteInput, OsString>> {
        let mode_before = before.as_ref().map(|before| before.stamp.mode);
        let content = before.as_ref().and_then(|before| before.content.as_deref());
        let is_same_content =
            content.is_some_and(|content| after == FileStateInput::Hash(hash(content)));
        if is_same_content && mode_before == mode_after {
            return None;
        }
        let Some(name) = path.to_str() else { return Some(Err(path.as_os_str().to_owned())) };
        let before = match before {
            // A link or a pipe is not known by its content, and neither is what a link led to.
            None if path.ancestors().any(|above| self.others.contains(above)) => {
                FileStateInput::Unknown
            }
            None if self.dirs.contains(path) => FileStateInput::Unknown,
            None => FileStateInput::Absent,
            Some(TrackedFile { content: Some(content), .. }) => {
                let (content, n_bytes) = content_of(content);
                let fits = *sent + n_bytes <= MAX_SENT_BYTES;
                *sent += if fits { n_bytes } else { 0 };
                if fits { content } else { FileStateInput::Unknown }
            }
            Some(_) => FileStateInput::Unknown,
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
            Ok(write) => {
                let n_bytes = WRITE_BYTES + json_bytes(&write.path);
                if self.names_bytes + n_bytes > MAX_NAMES_BYTES {
                    self.omitted += 1;
                } else {
                    self.names_bytes += n_bytes;
                    self.writes.push(write);
                }
            }
            Err(_) => self.omitted += 1,
        }
    }

    /// Returns the same files without the contents from before the command.
    pub(crate) fn without_contents(mut self) -> Self {
        for write in &mut self.writes {
            if !matches!(write.before, FileStateInput::Absent) {
                write.before = FileStateInput::Unknown;
            }
        }
        self
    }

    /// Returns the number of files that cannot be put back, because a content is not known.
    pub(crate) fn n_unknown(&self) -> usize {
        let is_unknown = |write: &&FileWriteInput| {
            [&write.before, &write.after].contains(&&FileStateInput::Unknown)
        };
        self.writes.iter().filter(is_unknown).count()
    }
}

fn open(path: &Path) -> io::Result<File> {
    regular_file::open(OpenOptions::new().read(true), path)
}

/// Returns the content of a file; `None` if it cannot be read or has become too large.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path).ok()?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_FILE_BYTES).then_some(bytes)
}

/// Returns the hash of a file; `None` if it cannot be read or is too large.
fn hash_of(path: &Path) -> Option<FileHash> {
    let file = open(path).ok()?;
    if file.metadata().ok()?.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let (mut hasher, mut file) = (blake3::Hasher::new(), file.take(MAX_COMPARED_BYTES + 1));
    hasher.update_reader(&mut file).ok()?;
    // A limit of zero means that the file has become too large meanwhile.
    (file.limit() > 0).then(|| FileHash(*hasher.finalize().as_bytes()))
}

fn hash(bytes: &[u8]) -> FileHash {
    FileHash(*blake3::hash(bytes).as_bytes())
}

/// Returns a content in its shorter form, and the bytes that it takes as JSON.
fn content_of(bytes: Vec<u8>) -> (FileStateInput, usize) {
    let base64_bytes = bytes.len().div_ceil(3) * 4;
    match String::from_utf8(bytes) {
        Ok(text) => match json_bytes(&text) {
            text_bytes if text_bytes <= base64_bytes => (FileStateInput::Text(text), text_bytes),
            _ => (FileStateInput::Base64(STANDARD.encode(text)), base64_bytes),
        },
        Err(error) => (FileStateInput::Base64(STANDARD.encode(error.as_bytes())), base64_bytes),
    }
}

/// Returns the bytes of a text as JSON, without the quotes around it.
fn json_bytes(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}

/// The files below a directory, by paths relative to it.
#[derive(Default)]
struct Walked {
    /// The regular files.
    files: BTreeMap<PathBuf, Metadata>,
    dirs: HashSet<PathBuf>,
    /// The links, pipes and other special files, and the directories that cannot be read.
    others: HashSet<PathBuf>,
}

/// Reads the files below a directory.
///
/// **Errors**: the directory has too many files, or cannot be read.
fn walk(root: &Path) -> Result<Walked, String> {
    let mut walked = Walked::default();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let entries = match fs::read_dir(root.join(&dir)) {
            // Nothing is known of the files in a directory that cannot be read.
            Err(_) if !dir.as_os_str().is_empty() => {
                walked.others.insert(dir);
                continue;
            }
            entries => entries.map_err(|error| format!("cannot read the directory: {error}"))?,
        };
        for entry in entries.filter_map(io::Result::ok) {
            let path = dir.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                walked.dirs.insert(path.clone());
                if !SKIPPED.iter().any(|name| entry.file_name() == *name) {
                    dirs.push(path);
                }
            } else if metadata.is_file() {
                walked.files.insert(path, metadata);
            } else {
                walked.others.insert(path);
            }
            let Walked { files, dirs: found, others } = &walked;
            if [files.len(), found.len(), others.len()].iter().any(|count| *count > MAX_FILES) {
                return Err(format!(
                    "there are more than {MAX_FILES} files, directories or links below the directory"
                ));
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
        assert_eq!(found.without_contents().n_unknown(), 5);
        TrackedDir::read(&dir, "/elsewhere").map(drop).expect_err("is in another project");
    }

    /// Returns the writes of a function in a directory with some files, as `path before after`.
    fn states_after(prepare: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> Vec<String> {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let dir = scratch.path();
        prepare(dir);
        let tracked = TrackedDir::read(dir, dir.to_str().expect("is UTF-8")).expect("reads");
        change(dir);
        let state = |state: &FileStateInput| match state {
            FileStateInput::Absent => "absent",
            FileStateInput::Unknown => "unknown",
            _ => "content",
        };
        let writes = tracked.writes().expect("reads").writes;
        let line = |write: &FileWriteInput| {
            format!("{} {} {}", write.path, state(&write.before), state(&write.after))
        };
        writes.iter().map(line).collect()
    }

    #[test]
    fn link_pipe_or_directory_at_the_path_of_a_write_is_an_unknown_state() {
        let prepare = |dir: &Path| {
            symlink("/etc", dir.join("link")).expect("links");
            symlink("/etc", dir.join("above")).expect("links");
            let pipe = std::process::Command::new("mkfifo").arg(dir.join("pipe")).status();
            assert!(pipe.expect("runs").success());
            fs::create_dir(dir.join("dir")).expect("creates");
            fs::create_dir(dir.join("target")).expect("creates");
            fs::write(dir.join("file"), "f").expect("writes");
        };
        let change = |dir: &Path| {
            for name in ["link", "above", "pipe"] {
                fs::remove_file(dir.join(name)).expect("removes");
            }
            for name in ["dir", "target"] {
                fs::remove_dir(dir.join(name)).expect("removes");
            }
            for name in ["link", "pipe", "dir", "target"] {
                fs::write(dir.join(name), "x").expect("writes");
            }
            fs::create_dir(dir.join("above")).expect("creates");
            fs::write(dir.join("above/new"), "x").expect("writes");
            fs::remove_file(dir.join("file")).expect("removes");
            symlink("/etc/passwd", dir.join("file")).expect("links");
        };
        let expect = [
            "above/new unknown content",
            "dir unknown content",
            "link unknown content",
            "pipe unknown content",
            "target unknown content",
            "file content unknown",
        ];
        assert_eq!(states_after(prepare, change), expect);
    }

    #[test]
    fn file_that_the_daemon_would_not_compare_is_not_read() {
        let change = |dir: &Path| {
            let file = File::create(dir.join("huge")).expect("creates");
            file.set_len(1 << 40).expect("is sparse");
        };
        assert_eq!(states_after(|_| (), change), ["huge absent unknown"]);
    }

    #[test]
    fn contents_are_sent_in_their_shorter_form() {
        let check = |bytes: &[u8], is_text: bool, n_bytes: usize| {
            let (content, found) = content_of(bytes.to_vec());
            let json = serde_json::to_string(&content).expect("is JSON");
            let frame = if is_text { r#"{"text":""}"# } else { r#"{"base64":""}"# };
            assert_eq!(matches!(content, FileStateInput::Text(_)), is_text, "{bytes:?}");
            assert_eq!((found, json.len() - frame.len()), (n_bytes, n_bytes), "{bytes:?}");
        };
        check(b"", true, 0);
        check("na\u{ef}ve \"text\"\n\t\u{7f}".as_bytes(), true, 20);
        check(&[0; 30], false, 40);
        check(b"\x1b[1m bold and long enough to be text", true, 41);
        check(b"\xff\xfe", false, 4);
    }

    #[test]
    fn writes_of_any_bytes_fit_into_a_frame() {
        let write = |dir: &Path, at: usize, bytes: &[u8]| {
            fs::write(dir.join(format!("{at:0200}")), bytes).expect("writes");
        };
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let dir = scratch.path();
        (0..16).for_each(|at| write(dir, at, &[0; 1 << 20]));
        let tracked = TrackedDir::read(dir, dir.to_str().expect("is UTF-8")).expect("reads");
        (0..16).for_each(|at| write(dir, at, b"x"));
        let found = tracked.writes().expect("reads");
        assert_eq!((found.writes.len(), found.n_unknown()), (16, 9));
        let json = serde_json::to_vec(&found.writes).expect("is JSON");
        assert!(json.len() < MAX_SENT_BYTES + MAX_NAMES_BYTES, "{}", json.len());
        // Names alone are limited too.
        let mut many = TrackedWrites::default();
        let one = FileWriteInput {
            path: "\u{1}".repeat(4000),
            before: FileStateInput::Hash(hash(b"")),
            after: FileStateInput::Hash(hash(b"")),
            mode: Some(FileModes { before: Some(0o777), after: Some(0o777) }),
            renamed_from: None,
            created_dirs: 1999,
        };
        assert!(serde_json::to_vec(&one).expect("is JSON").len() < 4000 * 6 + WRITE_BYTES + 80);
        (0..1000).for_each(|_| many.add(Ok(one.clone())));
        assert!(
            serde_json::to_vec(&many.writes).expect("is JSON").len() < MAX_NAMES_BYTES + (1 << 17)
        );
        assert_eq!(many.writes.len() as u64 + many.omitted, 1000);
    }
}
