//! The files of a root in memory: for each directory its names, packed and sorted.
//!
//! A directory is one block of names, one of their ends and one of their letters, so a file costs its name and 12 bytes
//! (16 where directories are polled), and a directory about 200 bytes and its path. A change of a directory replaces its
//! blocks and nothing else.
//!
//! Paths are bytes relative to the root, without a slash at the ends; the root is empty. Directories are in the order of
//! their bytes, and so are the names in one. Knows neither the disk nor watches, except for the number of a watch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::changes::ChangeSet;

/// The kind of an entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Symlink,
    Directory,
}

/// The bits of an end that hold the kind; the others hold the end itself.
const KIND_BITS: u32 = 2;
/// The most bytes of names in one directory; ends of further names would not fit.
pub(crate) const MAX_NAME_BYTES: usize = (u32::MAX >> KIND_BITS) as usize;

/// The bytes of a directory beside its path, its names and the numbers of its entries: the node, its share of the map
/// and of the map of watches, and what the allocator adds to its blocks.
const NODE_BYTES: usize = 200;

/// The entries that were read from one directory.
#[derive(Default)]
pub(crate) struct Listing {
    pub(crate) dir: Vec<u8>,
    names: Vec<u8>,
    entries: Vec<ListedEntry>,
    /// The watch of the directory.
    pub(crate) watch: Option<i32>,
    /// The watch of the directory that holds the repository's exclude file.
    pub(crate) exclude_watch: Option<i32>,
}

struct ListedEntry {
    start: u32,
    end: u32,
    kind: EntryKind,
    stamp: u32,
}

impl Listing {
    pub(crate) fn new(dir: Vec<u8>) -> Self {
        Self { dir, ..Self::default() }
    }

    /// Adds an entry; a stamp is 0 if none is known. Returns false if the directory has too many.
    pub(crate) fn push(&mut self, name: &[u8], kind: EntryKind, stamp: u32) -> bool {
        let (start, end) = (self.names.len(), self.names.len() + name.len());
        if end > MAX_NAME_BYTES {
            return false;
        }
        self.names.extend_from_slice(name);
        let offset =
            |at: usize| u32::try_from(at).expect("names have less than MAX_NAME_BYTES bytes");
        self.entries.push(ListedEntry { start: offset(start), end: offset(end), kind, stamp });
        true
    }

    /// Returns the entries that pass a test, by name and kind, and drops the others.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&[u8], EntryKind) -> bool) {
        let names = &self.names;
        self.entries.retain(|entry| keep(entry.name(names), entry.kind));
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the names of the subdirectories.
    pub(crate) fn subdirectories(&self) -> impl Iterator<Item = &[u8]> {
        let is_dir = |entry: &&ListedEntry| entry.kind == EntryKind::Directory;
        self.entries.iter().filter(is_dir).map(|entry| entry.name(&self.names))
    }

    /// Packs the entries, sorted.
    pub(crate) fn pack(mut self) -> PackedListing {
        let names = &self.names;
        self.entries.sort_unstable_by(|a, b| a.name(names).cmp(b.name(names)));
        let mut packed =
            Vec::with_capacity(self.entries.iter().map(|entry| entry.name(names).len()).sum());
        let mut ends = Vec::with_capacity(self.entries.len());
        let mut letters = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let name = entry.name(names);
            packed.extend_from_slice(name);
            let end =
                u32::try_from(packed.len()).expect("names have less than MAX_NAME_BYTES bytes");
            ends.push(end << KIND_BITS | entry.kind as u32);
            letters.push(letters_of(name));
        }
        let has_stamps = self.entries.iter().any(|entry| entry.stamp != 0);
        let stamps = self.entries.iter().filter(|_| has_stamps).map(|entry| entry.stamp);
        let node = DirNode {
            names: packed.into(),
            ends: ends.into(),
            letters: letters.into(),
            stamps: stamps.collect(),
            watch: self.watch,
            exclude_watch: self.exclude_watch,
        };
        PackedListing { dir: self.dir, node }
    }
}

/// The entries of one directory, ready to become a part of the tree.
pub(crate) struct PackedListing {
    pub(crate) dir: Vec<u8>,
    node: DirNode,
}

impl PackedListing {
    /// Returns the watches that were set for the directory.
    pub(crate) fn watches(&self) -> impl Iterator<Item = i32> {
        [self.node.watch, self.node.exclude_watch].into_iter().flatten()
    }
}

impl ListedEntry {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        &names[self.start as usize..self.end as usize]
    }
}

/// Returns the set of letters, digits and other bytes of a text, without case: a text with a letter outside of the set
/// does not occur in it, also not scattered.
pub(crate) fn letters_of(text: &[u8]) -> u64 {
    let bit = |byte: &u8| match byte {
        b'a'..=b'z' => byte - b'a',
        b'A'..=b'Z' => byte - b'A',
        b'0'..=b'9' => 26 + byte - b'0',
        b'.' => 36,
        b'_' => 37,
        b'-' => 38,
        // A letter beyond ASCII can match an ASCII letter, so nothing is certain about a text that has one.
        _ => OTHER_BIT,
    };
    text.iter().filter(|byte| **byte != b'/').fold(0, |set, byte| set | 1 << bit(byte))
}

/// The bit of all characters that have no bit of their own.
const OTHER_BIT: u8 = 39;
/// The set of all characters that have no bit of their own.
pub(crate) const OTHER_LETTERS: u64 = 1 << OTHER_BIT;

/// A directory.
pub(crate) struct DirNode {
    names: Box<[u8]>,
    ends: Box<[u32]>,
    /// The letters of each name, as [`letters_of`] returns them.
    letters: Box<[u64]>,
    /// A hash of time and size of each file; empty if directories are watched.
    stamps: Box<[u32]>,
    watch: Option<i32>,
    exclude_watch: Option<i32>,
}

/// An entry of a directory.
#[derive(Clone, Copy)]
pub(crate) struct TreeEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: EntryKind,
    pub(crate) letters: u64,
    stamp: u32,
}

impl DirNode {
    fn entry(&self, at: usize) -> TreeEntry<'_> {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before] >> KIND_BITS) as usize;
        let end = self.ends[at];
        let kind = match end & ((1 << KIND_BITS) - 1) {
            0 => EntryKind::File,
            1 => EntryKind::Symlink,
            _ => EntryKind::Directory,
        };
        TreeEntry {
            name: &self.names[start..(end >> KIND_BITS) as usize],
            kind,
            letters: self.letters[at],
            stamp: self.stamps.get(at).copied().unwrap_or_default(),
        }
    }

    /// Returns the entries whose names are greater than `after`, subdirectories among them.
    pub(crate) fn entries_after(
        &self,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = TreeEntry<'_>> {
        let first = after.map_or(0, |after| self.position(|name| name <= after));
        (first..self.ends.len()).map(|at| self.entry(at))
    }

    /// Returns the number of leading entries whose names fulfil a condition.
    fn position(&self, condition: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            if condition(self.entry(middle).name) { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn find(&self, name: &[u8]) -> Option<EntryKind> {
        let at = self.position(|other| other < name);
        (at < self.ends.len())
            .then(|| self.entry(at))
            .filter(|entry| entry.name == name)
            .map(|entry| entry.kind)
    }

    fn n_files(&self) -> usize {
        (0..self.ends.len()).filter(|at| self.entry(*at).kind != EntryKind::Directory).count()
    }

    fn bytes(&self) -> usize {
        NODE_BYTES + self.names.len() + 12 * self.ends.len() + 4 * self.stamps.len()
    }
}

/// The directories of a root.
#[derive(Default)]
pub(crate) struct Tree {
    dirs: BTreeMap<Arc<[u8]>, DirNode>,
    /// The directories by their watches.
    watches: FxHashMap<i32, Arc<[u8]>>,
    /// The watches of directories with an exclude file, and the repositories that read it: a repository and its worktrees
    /// have the same one.
    excludes: BTreeMap<i32, BTreeSet<Arc<[u8]>>>,
    n_files: usize,
    bytes: usize,
}

impl Tree {
    /// Returns the number of files and symbolic links.
    pub(crate) fn n_files(&self) -> usize {
        self.n_files
    }

    pub(crate) fn n_dirs(&self) -> usize {
        self.dirs.len()
    }

    /// Returns the memory that the tree takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn dir(&self, dir: &[u8]) -> Option<&DirNode> {
        self.dirs.get(dir)
    }

    /// Returns the directories from `first` on.
    pub(crate) fn dirs_from(&self, first: &[u8]) -> impl Iterator<Item = (&Arc<[u8]>, &DirNode)> {
        self.dirs.range::<[u8], _>((Bound::Included(first), Bound::Unbounded))
    }

    /// Returns what a path is.
    pub(crate) fn kind(&self, path: &[u8]) -> Option<EntryKind> {
        let (dir, name) = split(path);
        self.dirs.get(dir)?.find(name)
    }

    /// Returns the directory that has a watch.
    pub(crate) fn watched(&self, watch: i32) -> Option<&Arc<[u8]>> {
        self.watches.get(&watch)
    }

    /// Returns the repositories whose exclude file is in the directory that has a watch.
    pub(crate) fn excluding(&self, watch: i32) -> impl Iterator<Item = &Arc<[u8]>> {
        self.excludes.get(&watch).into_iter().flatten()
    }

    /// Returns whether a watch has a purpose.
    pub(crate) fn needs(&self, watch: i32) -> bool {
        self.watches.contains_key(&watch) || self.excludes.contains_key(&watch)
    }

    /// Forgets a watch that ended by itself.
    pub(crate) fn forget_watch(&mut self, watch: i32) {
        self.watches.remove(&watch);
        self.excludes.remove(&watch);
    }

    /// Replaces a directory and returns its key. Adds what changed to `changes`, and the watches that are not needed any
    /// more to `unwatched`. Directories that vanished from it are removed with everything in them.
    pub(crate) fn replace(
        &mut self,
        listing: PackedListing,
        changes: Option<&mut ChangeSet>,
        unwatched: &mut Vec<i32>,
    ) -> Arc<[u8]> {
        let PackedListing { dir, node: new } = listing;
        let key = match self.dirs.get_key_value(&dir[..]) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(dir),
        };
        let mut ignored = ChangeSet::default();
        let changes = changes.unwrap_or(&mut ignored);
        let old = self.dirs.remove(&key);
        let vanished = compare(&key, old.as_ref(), &new, changes);
        if let Some(old) = &old {
            self.uncount(&key, old, (new.watch, new.exclude_watch), unwatched);
        }
        for dir in vanished {
            self.remove(&dir, changes, unwatched);
        }
        if let Some(watch) = new.watch {
            self.watches.insert(watch, Arc::clone(&key));
        }
        if let Some(watch) = new.exclude_watch {
            self.excludes.entry(watch).or_default().insert(Arc::clone(&key));
        }
        self.n_files += new.n_files();
        self.bytes += new.bytes() + key.len();
        self.dirs.insert(Arc::clone(&key), new);
        key
    }

    /// Removes a directory with everything in it.
    pub(crate) fn remove(&mut self, dir: &[u8], changes: &mut ChangeSet, unwatched: &mut Vec<i32>) {
        let beneath: Vec<Arc<[u8]>> = if dir.is_empty() {
            self.dirs.keys().cloned().collect()
        } else {
            // `/` is followed by `0`, so this is every path that begins with the directory and a slash.
            let (first, end) = ([dir, b"/"].concat(), [dir, b"0"].concat());
            let range = (Bound::Included(&first[..]), Bound::Excluded(&end[..]));
            let own = self.dirs.get_key_value(dir).map(|(key, _)| Arc::clone(key));
            own.into_iter()
                .chain(self.dirs.range::<[u8], _>(range).map(|(key, _)| Arc::clone(key)))
                .collect()
        };
        for key in beneath {
            let Some(node) = self.dirs.remove(&key) else { continue };
            for entry in node.entries_after(None).filter(|entry| entry.kind != EntryKind::Directory)
            {
                changes.remove(join(&key, entry.name));
            }
            self.uncount(&key, &node, (None, None), unwatched);
        }
    }

    /// Takes a directory that was removed or replaced out of the sums, and its watches out of the map.
    ///
    /// A directory that was renamed has the same watch under its new path, which stays.
    fn uncount(
        &mut self,
        key: &Arc<[u8]>,
        node: &DirNode,
        still: (Option<i32>, Option<i32>),
        unwatched: &mut Vec<i32>,
    ) {
        self.n_files -= node.n_files();
        self.bytes -= node.bytes() + key.len();
        let (watch, exclude) = still;
        if let Some(gone) = node.watch.filter(|gone| Some(*gone) != watch)
            && self.watches.get(&gone) == Some(key)
        {
            self.watches.remove(&gone);
            unwatched.push(gone);
        }
        if let Some(gone) = node.exclude_watch.filter(|gone| Some(*gone) != exclude)
            && let Some(repositories) = self.excludes.get_mut(&gone)
            && repositories.remove(key)
            && repositories.is_empty()
        {
            self.excludes.remove(&gone);
            unwatched.push(gone);
        }
    }
}

/// Adds the difference between two states of a directory to `changes`; returns the subdirectories that vanished.
///
/// Another watch means another directory, which took the place of the first, or changes without a notice in between. So
/// its files may have other contents.
fn compare(
    dir: &[u8],
    old: Option<&DirNode>,
    new: &DirNode,
    changes: &mut ChangeSet,
) -> Vec<Vec<u8>> {
    let mut vanished = Vec::new();
    let is_other = old.is_some_and(|old| old.watch != new.watch);
    let mut old = old.into_iter().flat_map(|node| node.entries_after(None)).peekable();
    let mut new = new.entries_after(None).peekable();
    let is_file = |entry: &TreeEntry<'_>| entry.kind != EntryKind::Directory;
    loop {
        let (before, after) = match (old.peek(), new.peek()) {
            (None, None) => return vanished,
            (Some(a), Some(b)) if a.name == b.name => (old.next(), new.next()),
            (Some(a), Some(b)) if a.name < b.name => (old.next(), None),
            (Some(_), None) => (old.next(), None),
            (_, Some(_)) => (None, new.next()),
        };
        match (before, after) {
            (Some(before), Some(after)) if is_file(&before) && is_file(&after) => {
                if is_other || before.kind != after.kind || before.stamp != after.stamp {
                    changes.modify(join(dir, after.name));
                }
            }
            (before, after) => {
                if let Some(before) = before {
                    match before.kind {
                        EntryKind::Directory if after.is_some_and(|after| !is_file(&after)) => {}
                        EntryKind::Directory => vanished.push(join(dir, before.name)),
                        _ => changes.remove(join(dir, before.name)),
                    }
                }
                if let Some(after) = after.filter(is_file) {
                    changes.add(join(dir, after.name));
                }
            }
        }
    }
}

/// Returns the path of an entry.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Returns the directory and the name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memrchr(b'/', path) {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(dir: &str, entries: &[(&str, EntryKind)]) -> Listing {
        let mut listing = Listing::new(dir.into());
        for (name, kind) in entries {
            assert!(listing.push(name.as_bytes(), *kind, 0));
        }
        listing
    }

    fn files(tree: &Tree) -> Vec<String> {
        let mut all = Vec::new();
        for (dir, node) in tree.dirs_from(b"") {
            let files = node.entries_after(None).filter(|entry| entry.kind != EntryKind::Directory);
            all.extend(files.map(|entry| String::from_utf8(join(dir, entry.name)).unwrap()));
        }
        all
    }

    #[test]
    fn replaced_directory_reports_what_changed_and_drops_vanished_subtrees() {
        use EntryKind::{Directory, File, Symlink};
        let (mut tree, mut unwatched) = (Tree::default(), Vec::new());
        tree.replace(
            listing("", &[("b", File), ("a", Directory), ("a-b", Directory), ("l", Symlink)])
                .pack(),
            None,
            &mut unwatched,
        );
        let mut sub = listing("a", &[("x", File), ("c", Directory)]);
        sub.watch = Some(7);
        tree.replace(sub.pack(), None, &mut unwatched);
        tree.replace(listing("a/c", &[("deep", File)]).pack(), None, &mut unwatched);
        tree.replace(listing("a-b", &[("y", File)]).pack(), None, &mut unwatched);
        assert_eq!(files(&tree), ["b", "l", "a/x", "a-b/y", "a/c/deep"]);
        assert_eq!((tree.n_files(), tree.n_dirs()), (5, 4));
        assert_eq!(tree.kind(b"a/c"), Some(Directory));

        let mut changes = ChangeSet::default();
        tree.replace(
            listing("", &[("a-b", Directory), ("l", File), ("n", File)]).pack(),
            Some(&mut changes),
            &mut unwatched,
        );
        assert_eq!(files(&tree), ["l", "n", "a-b/y"]);
        assert_eq!(unwatched, [7]);
        let names = |set: &std::collections::BTreeSet<Vec<u8>>| -> Vec<String> {
            set.iter().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
        };
        assert_eq!(names(&changes.added), ["n"]);
        assert_eq!(names(&changes.removed), ["a/c/deep", "a/x", "b"]);
        assert_eq!(names(&changes.modified), ["l"]);
        tree.remove(b"", &mut changes, &mut unwatched);
        assert_eq!((tree.n_files(), tree.n_dirs(), tree.bytes()), (0, 0, 0));
    }

    #[test]
    fn files_of_another_directory_are_modified() {
        let check = |before, after, expected: bool| {
            let (mut tree, mut changes) = (Tree::default(), ChangeSet::default());
            for watch in [before, after] {
                let mut listing = listing("", &[("f", EntryKind::File)]);
                listing.watch = watch;
                changes = ChangeSet::default();
                tree.replace(listing.pack(), Some(&mut changes), &mut Vec::new());
            }
            assert_eq!(!changes.is_empty(), expected, "{before:?} {after:?}");
        };
        check(Some(1), Some(1), false);
        check(Some(1), Some(2), true);
        // A directory that could not be watched for a moment.
        check(Some(1), None, true);
        check(None, Some(2), true);
        check(None, None, false);
    }

    #[test]
    fn watch_of_an_exclude_file_is_needed_until_its_last_repository_is_gone() {
        let (mut tree, mut unwatched) = (Tree::default(), Vec::new());
        let root = [("a", EntryKind::Directory), ("b", EntryKind::Directory)];
        tree.replace(listing("", &root).pack(), None, &mut unwatched);
        for dir in ["a", "b"] {
            let mut repository = listing(dir, &[]);
            repository.exclude_watch = Some(7);
            tree.replace(repository.pack(), None, &mut unwatched);
        }
        assert_eq!(tree.excluding(7).map(|dir| &**dir).collect::<Vec<_>>(), [b"a", b"b"]);
        tree.remove(b"a", &mut ChangeSet::default(), &mut unwatched);
        assert!(tree.needs(7) && unwatched.is_empty());
        tree.remove(b"b", &mut ChangeSet::default(), &mut unwatched);
        assert!(!tree.needs(7) && unwatched == [7]);
    }

    #[test]
    fn file_costs_at_most_150_bytes_beyond_its_path() {
        let mut tree = Tree::default();
        for dir in 0..100 {
            let mut listing = Listing::new(format!("directory-{dir}").into());
            for file in 0..4 {
                assert!(listing.push(format!("file-{file}").as_bytes(), EntryKind::File, 1));
            }
            tree.replace(listing.pack(), None, &mut Vec::new());
        }
        let paths: usize = files(&tree).iter().map(String::len).sum();
        assert!(tree.bytes() < paths + 150 * tree.n_files(), "{} bytes", tree.bytes());
    }
}
