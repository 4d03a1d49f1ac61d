//! Pages of the files of a root.
//!
//! A root that was walked is listed in the order of the tree: directory by directory in the order of their bytes, and so
//! are the files in one. A cursor is the last path of a page, so it stays valid while files change: what exists during
//! all pages is in exactly one of them. While the first walk runs, its directories are listed in the order in which it
//! finds them, and that listing keeps this order to its end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ollm_protocol::Timestamp;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::filter::PathFilter;
use super::root::{Phase, RootState};
use super::tree::{DirNode, EntryKind, join, split};
use super::walk::absolute;
use super::{FileWarning, FilesError};

/// The most bytes of paths in a page, so that it fits into a frame.
const MAX_PAGE_PATH_BYTES: usize = 1024 * 1024;
/// The most warnings of a page.
const MAX_WARNINGS: usize = 100;

/// The request for a page.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageQuery {
    pub(crate) filter: PathFilter,
    pub(crate) limit: usize,
    /// The cursor of the page before.
    pub(crate) cursor: Option<String>,
    /// Set if sizes and times are wanted.
    pub(crate) details: bool,
}

/// A page of files.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilesPage {
    pub(crate) files: Vec<PageFile>,
    /// The warnings so far: on the first and the last page.
    pub(crate) warnings: Vec<FileWarning>,
    pub(crate) generation: u64,
    pub(crate) next_cursor: Option<String>,
}

/// A file of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageFile {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) details: Option<FileDetails>,
}

/// The size and the time of a file on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileDetails {
    pub(crate) size_bytes: u64,
    pub(crate) modified_at: Timestamp,
}

/// The position at which a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PagePosition {
    /// After this directory's entry of this name, in the order of the tree.
    Sorted { dir: Vec<u8>, name: Vec<u8> },
    /// After the entry of this name in the n-th directory of a first walk; without a name, before its first entry.
    Walked { walk: u64, at: u32, name: Vec<u8> },
}

impl PagePosition {
    fn encode(&self) -> String {
        let bytes = match self {
            Self::Sorted { dir, name } => [&[b's'][..], dir, &[0], name].concat(),
            Self::Walked { walk, at, name } => {
                [&[b'w'][..], &walk.to_be_bytes(), &at.to_be_bytes(), name].concat()
            }
        };
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(super) fn decode(cursor: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        match bytes.split_first()? {
            (b's', rest) => {
                let at = memchr::memchr(0, rest)?;
                Some(Self::Sorted { dir: rest[..at].to_vec(), name: rest[at + 1..].to_vec() })
            }
            (b'w', rest) => {
                let (walk, rest) = rest.split_first_chunk()?;
                let (at, name) = rest.split_first_chunk()?;
                let (walk, at) = (u64::from_be_bytes(*walk), u32::from_be_bytes(*at));
                Some(Self::Walked { walk, at, name: name.to_vec() })
            }
            _ => None,
        }
    }
}

/// Returns the page of a query without details; `None` if a walk must go on until the page is full.
///
/// `is_late` asks for a part of a page rather than none, unless the disk did not answer for `no_answer`.
///
/// **Errors**: `Cursor`.
pub(super) fn find(
    state: &RootState,
    query: &PageQuery,
    is_late: bool,
    no_answer: Duration,
) -> Result<Option<FilesPage>, FilesError> {
    let is_walking = state.phase == Phase::Walking;
    let position = match &query.cursor {
        Some(cursor) => Some(PagePosition::decode(cursor).ok_or(FilesError::Cursor)?),
        None if is_walking => {
            Some(PagePosition::Walked { walk: state.walk_number, at: 0, name: Vec::new() })
        }
        None => None,
    };
    let mut page = Collector { query, files: Vec::new(), path_bytes: 0 };
    let next = match &position {
        Some(PagePosition::Walked { walk, at, name }) => {
            if *walk != state.walk_number || state.walk_order.is_empty() && !is_walking {
                return Err(FilesError::Cursor);
            }
            page.walked(state, *walk, *at, name)
        }
        Some(PagePosition::Sorted { .. }) if is_walking => return Ok(None),
        Some(PagePosition::Sorted { dir, name }) => page.sorted(state, Some((dir, name))),
        None => page.sorted(state, None),
    };
    let is_last = next.is_none();
    let next = next.or_else(|| {
        // All that was found so far is in this page or those before; the walk goes on.
        let at = u32::try_from(state.walk_order.len()).unwrap_or(u32::MAX);
        is_walking.then(|| PagePosition::Walked { walk: state.walk_number, at, name: Vec::new() })
    });
    // A disk that stopped answering must not look like a walk that finds little.
    let goes_on = !page.files.is_empty() || state.read_at.elapsed() < no_answer;
    let has_enough = !is_last || is_late && !state.walk_order.is_empty() && goes_on;
    if is_walking && !has_enough {
        return Ok(None);
    }
    let with_warnings = query.cursor.is_none() || next.is_none();
    Ok(Some(FilesPage {
        files: page.files,
        warnings: if with_warnings {
            state.all_warnings().take(MAX_WARNINGS).cloned().collect()
        } else {
            Vec::new()
        },
        generation: state.journal.generation(),
        next_cursor: next.map(|next| next.encode()),
    }))
}

/// Collects the files of a page.
struct Collector<'a> {
    query: &'a PageQuery,
    files: Vec<PageFile>,
    path_bytes: usize,
}

impl Collector<'_> {
    /// Collects in the order of the tree; returns the position of the next page.
    fn sorted(&mut self, state: &RootState, after: Option<(&[u8], &[u8])>) -> Option<PagePosition> {
        let (first, name) = after.unwrap_or_default();
        for (dir, node) in state.tree.dirs_from(first) {
            let after = (after.is_some() && **dir == *first).then_some(name);
            if let Some(name) = self.directory(dir, node, after) {
                return Some(PagePosition::Sorted { dir: dir.to_vec(), name });
            }
        }
        None
    }

    /// Collects in the order of a walk; returns the position of the next page.
    fn walked(
        &mut self,
        state: &RootState,
        walk: u64,
        first: u32,
        name: &[u8],
    ) -> Option<PagePosition> {
        for (at, dir) in state.walk_order.iter().enumerate().skip(first as usize) {
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            // A directory that vanished since has no files.
            let Some(node) = state.tree.dir(dir) else { continue };
            let after = (at == first && !name.is_empty()).then_some(name);
            if let Some(name) = self.directory(dir, node, after) {
                return Some(PagePosition::Walked { walk, at, name });
            }
        }
        None
    }

    /// Collects the files of a directory; returns the name of the last one if the page is full and files may follow.
    fn directory(&mut self, dir: &[u8], node: &DirNode, after: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut last: Option<&[u8]> = after;
        let filter = self.query.filter.in_dir(dir);
        for entry in node.entries_after(after).filter(|entry| entry.kind != EntryKind::Directory) {
            let path = join(dir, entry.name);
            if !filter.admits(&path) {
                continue;
            }
            if self.files.len() >= self.query.limit || self.path_bytes > MAX_PAGE_PATH_BYTES {
                // Before the first entry of a directory, an empty name is smaller than all.
                return Some(last.unwrap_or_default().to_vec());
            }
            self.path_bytes += path.len();
            self.files.push(PageFile { path, kind: entry.kind, details: None });
            last = Some(entry.name);
        }
        None
    }
}

/// Adds details to the files of a page. Files that vanished meanwhile are left out; one that cannot be looked up has no
/// details. Blocks on the disk.
pub(super) fn add_details(page: &mut FilesPage, root: &Path) {
    // The files of a directory follow each other, so each directory is looked up once.
    let mut open: Option<(Vec<u8>, Found<OwnedFd>)> = None;
    page.files.retain_mut(|file| {
        let (dir, name) = split(&file.path);
        if open.as_ref().is_none_or(|(path, _)| path != dir) {
            open = Some((dir.to_vec(), open_directory(root, dir)));
        }
        let details = match &open {
            Some((_, Found::Here(directory))) => details_of(directory, name),
            Some((_, Found::Gone)) => Found::Gone,
            _ => Found::Unknown,
        };
        match details {
            Found::Here((kind, details)) => {
                file.kind = kind;
                file.details = Some(details);
                true
            }
            Found::Gone => false,
            Found::Unknown => true,
        }
    });
}

/// The outcome of a look at the disk.
enum Found<T> {
    /// Something was found.
    Here(T),
    /// The path is gone, or leads to something else.
    Gone,
    /// The system did not tell, for example for lack of descriptors.
    Unknown,
}

impl<T> From<Errno> for Found<T> {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Self::Gone,
            _ => Self::Unknown,
        }
    }
}

fn open_directory(root: &Path, dir: &[u8]) -> Found<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, absolute(root, dir), flags, Mode::empty())
        .map_or_else(Found::from, Found::Here)
}

/// Returns the kind and the details of a file in a directory; `None` for anything but a file or a symbolic link.
fn details_of(directory: &OwnedFd, name: &[u8]) -> Found<(EntryKind, FileDetails)> {
    let found = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(error) => return error.into(),
    };
    let kind = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Symlink => EntryKind::Symlink,
        _ => return Found::Gone,
    };
    let unix_ms = found
        .st_mtime
        .saturating_mul(1000)
        .saturating_add(i64::try_from(found.st_mtime_nsec).unwrap_or_default() / 1_000_000);
    let size_bytes = u64::try_from(found.st_size).unwrap_or_default();
    let modified_at = Timestamp::from_unix_ms(unix_ms);
    Found::Here((kind, FileDetails { size_bytes, modified_at }))
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn positions_survive_a_cursor_and_other_texts_are_none() {
        for position in [
            PagePosition::Sorted { dir: b"a/\xff".to_vec(), name: b"x".to_vec() },
            PagePosition::Sorted { dir: Vec::new(), name: Vec::new() },
            PagePosition::Walked { walk: 3, at: 70_000, name: b"x".to_vec() },
        ] {
            assert_eq!(PagePosition::decode(&position.encode()), Some(position));
        }
        for text in ["", "x", "cw", "$$$", "dwAAAA"] {
            assert_eq!(PagePosition::decode(text), None, "{text}");
        }
    }
}
