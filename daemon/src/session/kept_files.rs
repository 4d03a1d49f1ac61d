//! Contents of files that records refer to by hash, so that a file can be put back.
//!
//! They are blobs of their session, beside those of large texts: `<sessionId>.blobs/<blake3>`, each content once. A line
//! does not list them, because it can be read without them. They are durable before the line is written. FORMAT.md,
//! "Blobs".
//!
//! **Invariant**: a record of a session names the hash of an earlier content only if the content is kept.

use std::collections::{BTreeSet, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use memchr::memmem;
use ollm_protocol::content::{FileHash, FileState, NotKept, NotKeptReason, RecordBody};

use super::write::{KeptContent, NewRecord};
use crate::fsutil::{self, DirMark, DiskFile, FsError, Replacements, TemporaryName};

/// The length of the name of a content.
const HASH_CHARS: usize = 2 * size_of::<FileHash>();
/// The part of a log that is searched at once, in bytes.
const SCAN_BYTES: u64 = 256 * 1024;

/// Stores the contents of a record, and notes those that were not kept before. A state whose content is not kept becomes
/// `Unknown`, which `not_kept` says. A tool call gets the project of its session, to which its paths belong.
///
/// **Errors**: also if the quota has no room for a content that was taken out of a file, because nothing else has it.
pub(super) fn keep(
    record: &mut NewRecord,
    project: Option<&str>,
    blobs: &Path,
    not_kept: &mut NotKept,
    new: &mut NewContents,
) -> Result<(), FsError> {
    if let RecordBody::ToolCall(call) = &mut record.body
        && call.writes.is_some()
        && call.writes_root.is_none()
    {
        // A copy of an earlier record has it already.
        call.writes_root = project.map(str::to_owned);
    }
    let is_put_back = matches!(record.body, RecordBody::PutBack(_));
    let mut states = earlier_states(&mut record.body);
    not_kept.merge(&record.files.not_kept);
    let mut store = BlobStore::new(blobs, states.len(), record.files.quota_bytes, new);
    for (path, state) in &mut states {
        let FileState::Hash(hash) = **state else { continue };
        let kept = match project {
            Some(_) => store.keep(hash, record.files.contents.get(&hash))?,
            None => Err(NotKeptReason::NoProject),
        };
        if let Err(reason) = kept {
            if is_put_back && reason == NotKeptReason::FileQuota {
                let source = std::io::Error::other("snapshots.fileQuota has no room for it");
                return Err(FsError::new("keep the content of", Path::new(path), source));
            }
            **state = FileState::Unknown;
            not_kept.add(path, reason);
        }
    }
    store.finish()
}

/// Returns the earlier states of the files that a record changed, with their paths.
pub(super) fn earlier_states(body: &mut RecordBody) -> Vec<(&str, &mut FileState)> {
    match body {
        RecordBody::ToolCall(call) => {
            let writes = call.writes.iter_mut().flatten();
            writes.map(|write| (write.path.as_str(), &mut write.before)).collect()
        }
        RecordBody::PutBack(put_back) => {
            // A file that stays needs no content.
            let files = put_back.files.iter_mut().filter(|file| file.before != file.after);
            files.map(|file| (file.path.as_str(), &mut file.before)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether a session keeps the content of a file.
pub(super) fn is_kept(blobs: &Path, hash: FileHash) -> bool {
    fsutil::file_len(&path_of(blobs, hash)).is_some()
}

/// Makes the names of kept contents durable, which a killed process may have left in the system's cache only.
pub(super) fn sync(blobs: &Path) -> Result<(), FsError> {
    if blobs.is_dir() { fsutil::sync_dir(blobs) } else { Ok(()) }
}

/// Returns the size of the further contents that the quota has room for, in bytes.
pub(super) fn free_bytes(blobs: &Path, quota_bytes: u64) -> Result<u64, FsError> {
    Ok(quota_bytes.saturating_sub(fsutil::size_of_files(blobs)?))
}

/// Reads a content that a session keeps.
///
/// **Errors**: of kind `InvalidData` if the content is damaged.
pub(super) fn read(blobs: &Path, hash: FileHash) -> Result<Vec<u8>, FsError> {
    let path = path_of(blobs, hash);
    let read = fsutil::read_regular(&path).and_then(|bytes| {
        let is_whole = blake3::hash(&bytes).as_bytes() == &hash.0;
        let damaged = || std::io::Error::new(std::io::ErrorKind::InvalidData, "it is damaged");
        is_whole.then_some(bytes).ok_or_else(damaged)
    });
    read.map_err(|source| FsError::new("read", &path, source))
}

/// Returns the path of a kept content.
fn path_of(blobs: &Path, hash: FileHash) -> PathBuf {
    blobs.join(hash.to_string())
}

/// The contents that one write keeps for the first time. Until it is known whether a record needs them, a mark in their
/// directory names them, by which the next start finds those of a process that was killed.
#[derive(Default)]
pub(super) struct NewContents {
    paths: BTreeSet<PathBuf>,
    mark: Option<(DiskFile, TemporaryName)>,
}

impl NewContents {
    /// Names a content in the mark, before its file exists. A mark that a power cut emptied only leaves contents.
    fn add(&mut self, dir: &Path, hash: FileHash) -> Result<(), FsError> {
        let (mark, _) = match &mut self.mark {
            Some(mark) => mark,
            None => {
                let mark = fsutil::mark_dir(dir, DirMark::Unreferenced)?;
                let name = TemporaryName::of(mark.path().to_owned());
                self.mark.insert((mark, name))
            }
        };
        let named = mark.append(format!("{hash}\n").as_bytes());
        named.map_err(|error| FsError::new("write", mark.path(), error))?;
        self.paths.insert(path_of(dir, hash));
        Ok(())
    }

    /// Removes the contents again. The caller knows that no record names them.
    pub(super) fn remove(&mut self) {
        let mut all_removed = true;
        for path in std::mem::take(&mut self.paths) {
            if let Err(error) = fsutil::remove_file(&path) {
                tracing::warn!(
                    "a content that no record needs stays until the next start: {error}"
                );
                all_removed = false;
            }
        }
        match all_removed {
            true => self.mark = None,
            false => self.leave(),
        }
    }

    /// Keeps the contents for good, once their records are durable.
    pub(super) fn keep(&mut self) {
        self.mark = None;
    }

    /// Leaves the mark for the next start.
    pub(super) fn leave(&mut self) {
        if let Some((_, name)) = self.mark.take() {
            name.keep();
        }
    }
}

/// Removes the contents that a killed process was about to keep and that the log does not name; returns their number.
pub(super) fn sweep(blobs: &Path, log: &Path) -> Result<usize, FsError> {
    let mut unneeded = BTreeSet::new();
    for mark in fsutil::left_marks(blobs, DirMark::Unreferenced)? {
        let fail = |source| FsError::new("read", &mark, source);
        let names = fsutil::read_regular(&mark).map_err(fail)?;
        let names = String::from_utf8_lossy(&names);
        unneeded.extend(names.lines().filter(|name| is_hash(name)).map(str::to_owned));
    }
    if unneeded.is_empty() {
        return Ok(0);
    }
    let fail = |source| FsError::new("read", log, source);
    let mut log = fsutil::open_regular(log).map_err(fail)?;
    let mut bytes = Vec::new();
    while (&mut log).take(SCAN_BYTES).read_to_end(&mut bytes).map_err(fail)? > 0 {
        unneeded.retain(|name| memmem::find(&bytes, name.as_bytes()).is_none());
        // A name may continue in the next bytes.
        bytes.drain(..bytes.len().saturating_sub(HASH_CHARS - 1));
    }
    for name in &unneeded {
        fsutil::remove_file(&blobs.join(name))?;
    }
    Ok(unneeded.len())
}

/// Returns whether a file has the name of a blob, whose digits are written in lower case.
pub(super) fn is_hash(name: &str) -> bool {
    name.len() == HASH_CHARS && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The blobs of a session, to which contents are added.
struct BlobStore<'a> {
    dir: &'a Path,
    /// The most contents that are written.
    n_contents: usize,
    quota_bytes: u64,
    /// The size of all blobs; `None` before it was needed.
    used_bytes: Option<u64>,
    /// The contents that were written or found, each once.
    known: HashMap<FileHash, Result<(), NotKeptReason>>,
    written: Option<Replacements>,
    /// Set if a content was found whose name may not be durable yet.
    has_found: bool,
    new: &'a mut NewContents,
}

impl<'a> BlobStore<'a> {
    fn new(dir: &'a Path, n_contents: usize, quota_bytes: u64, new: &'a mut NewContents) -> Self {
        Self {
            dir,
            n_contents,
            quota_bytes,
            used_bytes: None,
            known: HashMap::new(),
            written: None,
            has_found: false,
            new,
        }
    }

    fn keep(
        &mut self,
        hash: FileHash,
        content: Option<&KeptContent>,
    ) -> Result<Result<(), NotKeptReason>, FsError> {
        if let Some(known) = self.known.get(&hash) {
            return Ok(*known);
        }
        let path = path_of(self.dir, hash);
        let size = fsutil::file_len(&path);
        let kept = match content {
            None if size.is_some() => Ok(()),
            None => Err(NotKeptReason::Missing),
            // It got its name when its bytes were durable, so only the name may not be.
            Some(_) if size.is_some() && read(self.dir, hash).is_ok() => {
                self.has_found = true;
                Ok(())
            }
            Some(content) => self.write(hash, &path, size, content)?,
        };
        self.known.insert(hash, kept);
        Ok(kept)
    }

    fn write(
        &mut self,
        hash: FileHash,
        path: &Path,
        size: Option<u64>,
        content: &KeptContent,
    ) -> Result<Result<(), NotKeptReason>, FsError> {
        let used = match self.used_bytes {
            Some(used) => used,
            None => *self.used_bytes.insert(fsutil::size_of_files(self.dir)?),
        };
        let after = |len: u64| used.saturating_sub(size.unwrap_or_default()).saturating_add(len);
        let is_over = |len: u64| size.is_none() && after(len) > self.quota_bytes;
        let read;
        let bytes = match content {
            KeptContent::Bytes(bytes) => bytes,
            // A content over the quota is not read into memory.
            KeptContent::File(path) if fsutil::file_len(path).is_some_and(is_over) => {
                return Ok(Err(NotKeptReason::FileQuota));
            }
            KeptContent::File(path) => {
                let fail = |source| FsError::new("read", path, source);
                read = fsutil::read_regular(path).map_err(fail)?;
                &read
            }
        };
        if blake3::hash(bytes).as_bytes() != &hash.0 {
            return Ok(Err(NotKeptReason::Missing));
        }
        if is_over(bytes.len() as u64) {
            return Ok(Err(NotKeptReason::FileQuota));
        }
        let after = after(bytes.len() as u64);
        let written = match &mut self.written {
            Some(written) => written,
            None => {
                fsutil::create_private_dir(self.dir)?;
                self.written.insert(Replacements::begin(self.dir, self.n_contents)?)
            }
        };
        if size.is_none() {
            self.new.add(self.dir, hash)?;
        }
        // An existing file is damaged; writing it again repairs it.
        written.add(path.to_owned(), bytes)?;
        self.used_bytes = Some(after);
        Ok(Ok(()))
    }

    /// Makes the written blobs durable, and the names of those that were found.
    fn finish(self) -> Result<(), FsError> {
        match self.written {
            Some(written) => written.finish(),
            None if self.has_found => sync(self.dir),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test makes a file of a project")]
mod tests {
    use ollm_protocol::PlanId;
    use ollm_protocol::content::{PutBack, PutBackFile};

    use super::*;
    use crate::fsutil::trace::{DiskStep, DiskTrace};
    use crate::session::KeptFiles;

    #[test]
    fn content_over_the_quota_is_not_read() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("large");
        std::fs::write(&path, "0123456789").expect("writes");
        // A file that is read would be found to have another content.
        let hash = FileHash([0; 32]);
        let keep = |quota_bytes| {
            let content = KeptContent::File(path.clone());
            let mut new = NewContents::default();
            let mut store = BlobStore::new(dir.path(), 1, quota_bytes, &mut new);
            store.keep(hash, Some(&content)).expect("examines")
        };
        assert_eq!(keep(15), Err(NotKeptReason::FileQuota), "with the file in the directory");
        assert_eq!(keep(20), Err(NotKeptReason::Missing));
    }

    #[test]
    fn kept_content_is_written_again_only_if_it_is_damaged() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let hash = FileHash(*blake3::hash(b"0123456789").as_bytes());
        let path = path_of(dir.path(), hash);
        let keep = || {
            let content = KeptContent::Bytes(b"0123456789".to_vec());
            let mut new = NewContents::default();
            let mut store = BlobStore::new(dir.path(), 1, 100, &mut new);
            assert_eq!(store.keep(hash, Some(&content)).expect("keeps"), Ok(()));
            let is_written = store.written.is_some();
            store.finish().expect("is durable");
            new.keep();
            assert_eq!(read(dir.path(), hash).expect("reads"), b"0123456789");
            is_written
        };
        assert!(keep(), "is new");
        assert!(!keep(), "is kept already");
        std::fs::write(&path, "0123456780").expect("writes");
        assert!(keep(), "is damaged");
        let trace = DiskTrace::new(dir.path());
        assert!(!keep());
        assert!(trace.steps().contains(&DiskStep::SyncDir("".into())), "its name is durable");
    }

    #[test]
    fn start_removes_what_a_killed_process_left_and_no_log_names() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let (blobs, log) = (dir.path().join("blobs"), dir.path().join("log"));
        let [named, left, other] = ["a", "b", "c"].map(|char| char.repeat(HASH_CHARS));
        std::fs::create_dir(&blobs).expect("creates");
        for name in [&named, &left, &other] {
            std::fs::write(blobs.join(name), "content").expect("writes");
        }
        // The name stands where one searched part of the log ends and the next begins.
        let before = " ".repeat(usize::try_from(SCAN_BYTES).expect("fits") - 9);
        std::fs::write(&log, format!("{before}{named}\n{{\"torn")).expect("writes");
        let sweep = || sweep(&blobs, &log).expect("sweeps");
        assert_eq!(sweep(), 0, "without a mark, no process was killed");
        let mark = format!("{named}\n{left}\n../log\n{}", &other[1..]);
        std::fs::write(blobs.join(".tmp-1-0-0-unreferenced"), mark).expect("writes");
        assert_eq!(sweep(), 1);
        assert!(blobs.join(named).exists() && !blobs.join(left).exists());
        assert!(blobs.join(other).exists() && log.exists(), "only what the mark names whole");
    }

    #[test]
    fn mark_lasts_as_long_as_new_contents_may_be_unneeded() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let n_files = || std::fs::read_dir(dir.path()).expect("lists").count();
        let add = || {
            let (mut new, hash) = (NewContents::default(), FileHash([0xaa; 32]));
            new.add(dir.path(), hash).expect("marks");
            std::fs::write(path_of(dir.path(), hash), "content").expect("writes");
            new
        };
        let mut new = add();
        assert_eq!(n_files(), 2);
        new.keep();
        assert_eq!(n_files(), 1, "the record is written");
        add().remove();
        assert_eq!(n_files(), 0, "the record is refused");
        add().leave();
        assert_eq!(n_files(), 2, "the next start decides");
    }

    #[test]
    fn only_copy_of_a_content_is_never_given_up() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("staged");
        std::fs::write(&path, "0123456789").expect("writes");
        let hash = FileHash(*blake3::hash(b"0123456789").as_bytes());
        let file = PutBackFile {
            path: "a".to_owned(),
            before: FileState::Hash(hash),
            after: FileState::Absent,
            mode: None,
            back: Vec::new(),
            forward: Vec::new(),
        };
        let plan_id = PlanId::from_uuid(uuid::Uuid::nil());
        let (cause, root) = ("undo".to_owned(), "/p".to_owned());
        let record = PutBack { plan_id, cause, root, files: vec![file], left: Vec::new() };
        let keep = |quota_bytes| {
            let contents = [(hash, KeptContent::File(path.clone()))].into();
            let files = KeptFiles { contents, quota_bytes, not_kept: NotKept::default() };
            let body = RecordBody::PutBack(record.clone());
            let mut record = NewRecord { files, ..NewRecord::new(body, None) };
            let (blobs, mut new) = (dir.path().join("blobs"), NewContents::default());
            keep(&mut record, Some("/p"), &blobs, &mut NotKept::default(), &mut new)
        };
        let error = keep(9).expect_err("has no room");
        assert!(error.to_string().contains("keep the content of"), "{error}");
        keep(10).expect("has room");
    }
}
