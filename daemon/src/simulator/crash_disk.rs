//! What a disk may hold after a crash.
//!
//! Only synced changes are certain. A file's bytes are certain after a sync of the file, its name after a sync of the
//! directory. Every other change is there, missing, or there in part, independent of all others: more freedom than any
//! file system takes. A sync of the file system makes everything below one directory certain. A rename within a directory
//! is one change. So is one between two directories, which file systems with a journal write in the order in which they
//! were made: a crash leaves the first ones, and a sync of one of the directories makes them and all earlier ones certain.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dice::Dice;
use crate::fsutil::trace::DiskStep;

/// The files (`Some`) and directories (`None`) of a disk by their path.
pub(super) type FileTree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The part of the uncertain changes that a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survivors {
    Nothing,
    /// All changes survive, as after a kill, which loses only bytes that the process did not write yet.
    Everything,
    /// Each change survives with this probability, and data perhaps in part.
    Percent(usize),
}

/// A disk with the changes of which a crash may undo some.
#[derive(Clone)]
pub(super) struct CrashDisk {
    /// The first one is the root.
    nodes: Vec<DiskNode>,
    /// The number of changes between two directories so far.
    n_moves: usize,
}

#[derive(Clone)]
enum DiskNode {
    Dir(DirNode),
    File(FileNode),
}

#[derive(Clone, Default)]
struct DirNode {
    /// The names that are certain.
    durable: BTreeMap<PathBuf, usize>,
    unsynced: Vec<NameChange>,
    /// The names that the process sees.
    visible: BTreeMap<PathBuf, usize>,
}

#[derive(Clone)]
enum NameChange {
    Add(PathBuf, usize),
    Remove(PathBuf),
    Rename {
        from: PathBuf,
        to: PathBuf,
        node: usize,
    },
    /// One side of a change between two directories: the node that has the name now.
    Moved {
        name: PathBuf,
        node: Option<usize>,
        number: usize,
    },
}

#[derive(Clone, Default)]
struct FileNode {
    /// The bytes that are certain.
    durable: Arc<Vec<u8>>,
    changes: Vec<DataChange>,
    /// The length that the process sees.
    visible_len: usize,
}

#[derive(Clone)]
struct DataChange {
    data: Data,
    certainty: Certainty,
}

#[derive(Clone)]
enum Data {
    Bytes { offset: usize, bytes: Arc<Vec<u8>> },
    Len(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Certainty {
    Unsynced,
    /// A sync failed after it: no later sync makes it certain.
    Doubtful,
    Synced,
}

impl CrashDisk {
    /// Returns a disk on which these files are certain.
    pub(super) fn new(tree: &FileTree) -> Self {
        let nodes = vec![DiskNode::Dir(DirNode::default())];
        let mut disk = Self { nodes, n_moves: 0 };
        for (path, content) in tree {
            let node = match content {
                None => DiskNode::Dir(DirNode::default()),
                Some(bytes) => {
                    let (durable, visible_len) = (Arc::new(bytes.clone()), bytes.len());
                    DiskNode::File(FileNode { durable, changes: Vec::new(), visible_len })
                }
            };
            disk.add(path, node);
        }
        for node in &mut disk.nodes {
            if let DiskNode::Dir(dir) = node {
                dir.sync();
            }
        }
        disk
    }

    /// Makes a recorded change.
    pub(super) fn apply(&mut self, step: &DiskStep) {
        match step {
            DiskStep::CreateDir(path) => self.add(path, DiskNode::Dir(DirNode::default())),
            DiskStep::Create(path) => self.add(path, DiskNode::File(FileNode::default())),
            DiskStep::Link(from, to) => {
                let node = self.number(from).expect("is on the disk");
                let dir = self.dir(parent(to));
                dir.visible.insert(name(to), node);
                dir.unsynced.push(NameChange::Add(name(to), node));
            }
            DiskStep::Append(path, bytes) => self.file(path).append(bytes),
            DiskStep::Overwrite(path, at, bytes) => self.file(path).overwrite(*at as usize, bytes),
            DiskStep::SetLen(path, len) => self.file(path).set_len(*len as usize),
            // A reader may sync a log that was renamed after it opened it: a sync that nobody relies on.
            DiskStep::Sync(path) => {
                if let Some(DiskNode::File(file)) = self.find(path) {
                    file.sync();
                }
            }
            // A directory whose sync failed is only not synced.
            DiskStep::FailedSync(path) => {
                for node in self.below(path) {
                    if let DiskNode::File(file) = &mut self.nodes[node] {
                        file.fail_sync();
                    }
                }
            }
            // The project and the home may be on different disks.
            DiskStep::SyncWhole(path) => {
                let mut newest = None;
                for node in self.below(path) {
                    match &mut self.nodes[node] {
                        DiskNode::File(file) => file.sync(),
                        DiskNode::Dir(dir) => newest = newest.max(dir.sync()),
                    }
                }
                if let Some(newest) = newest {
                    self.dirs().for_each(|dir| dir.commit_moves(newest));
                }
            }
            DiskStep::Rename(from, to) => {
                let dir = self.dir(parent(from));
                let (from, to) = (name(from), name(to));
                // SQLite's files are not on this disk.
                if let Some(node) = dir.visible.remove(&from) {
                    dir.visible.insert(to.clone(), node);
                    dir.unsynced.push(NameChange::Rename { from, to, node });
                }
            }
            DiskStep::Remove(path) | DiskStep::RemoveDir(path) => {
                let dir = self.dir(parent(path));
                if dir.visible.remove(&name(path)).is_some() {
                    dir.unsynced.push(NameChange::Remove(name(path)));
                }
            }
            DiskStep::Move(from, to) => {
                let node = self.dir(parent(from)).visible.get(&name(from)).copied();
                self.move_between(from, None, to, node);
            }
            DiskStep::Exchange(one, other) => {
                let node = |disk: &mut Self, path: &Path| {
                    disk.dir(parent(path)).visible.get(&name(path)).copied()
                };
                let (of_one, of_other) = (node(self, one), node(self, other));
                self.move_between(one, of_other, other, of_one);
            }
            DiskStep::SyncDir(path) => {
                let newest = self.dir(path).sync();
                if let Some(newest) = newest {
                    self.dirs().for_each(|dir| dir.commit_moves(newest));
                }
            }
            DiskStep::Nothing(_) => {}
        }
    }

    /// Returns what the process sees at a path and below it; nothing if the path is free.
    fn below(&self, path: &Path) -> Vec<usize> {
        let mut found: Vec<usize> = self.number(path).into_iter().collect();
        let mut at = 0;
        while at < found.len() {
            if let DiskNode::Dir(dir) = &self.nodes[found[at]] {
                found.extend(dir.visible.values());
            }
            at += 1;
        }
        found
    }

    fn dirs(&mut self) -> impl Iterator<Item = &mut DirNode> {
        self.nodes.iter_mut().filter_map(|node| match node {
            DiskNode::Dir(dir) => Some(dir),
            DiskNode::File(_) => None,
        })
    }

    /// Gives two names in different directories other nodes in one step.
    fn move_between(
        &mut self,
        one: &Path,
        of_one: Option<usize>,
        other: &Path,
        of_other: Option<usize>,
    ) {
        let number = self.n_moves;
        self.n_moves += 1;
        for (path, node) in [(one, of_one), (other, of_other)] {
            let (dir, name) = (self.dir(parent(path)), name(path));
            match node {
                Some(node) => drop(dir.visible.insert(name.clone(), node)),
                None => drop(dir.visible.remove(&name)),
            }
            dir.unsynced.push(NameChange::Moved { name, node, number });
        }
    }

    fn add(&mut self, path: &Path, node: DiskNode) {
        let number = self.nodes.len();
        self.nodes.push(node);
        let dir = self.dir(parent(path));
        dir.visible.insert(name(path), number);
        dir.unsynced.push(NameChange::Add(name(path), number));
    }

    fn node(&mut self, path: &Path) -> &mut DiskNode {
        self.find(path).unwrap_or_else(|| panic!("{path:?} is not on the disk"))
    }

    fn find(&mut self, path: &Path) -> Option<&mut DiskNode> {
        let number = self.number(path)?;
        self.nodes.get_mut(number)
    }

    fn number(&self, path: &Path) -> Option<usize> {
        let mut at = 0;
        for part in path {
            let DiskNode::Dir(dir) = &self.nodes[at] else {
                panic!("{path:?} leads through a file")
            };
            at = *dir.visible.get(Path::new(part))?;
        }
        Some(at)
    }

    fn dir(&mut self, path: &Path) -> &mut DirNode {
        match self.node(path) {
            DiskNode::Dir(dir) => dir,
            DiskNode::File(_) => panic!("{path:?} is a file"),
        }
    }

    fn file(&mut self, path: &Path) -> &mut FileNode {
        match self.node(path) {
            DiskNode::File(file) => file,
            DiskNode::Dir(_) => panic!("{path:?} is a directory"),
        }
    }

    /// Gives temporary files the names that those of another process have, as the next start finds them.
    pub(super) fn disown_temporaries(&mut self) {
        for node in &mut self.nodes {
            let DiskNode::Dir(dir) = node else { continue };
            let disown = |names: &BTreeMap<PathBuf, usize>| {
                names.iter().map(|(name, node)| (disowned(name), *node)).collect()
            };
            dir.durable = disown(&dir.durable);
            dir.visible = disown(&dir.visible);
            for change in &mut dir.unsynced {
                match change {
                    NameChange::Add(name, _) | NameChange::Remove(name) => *name = disowned(name),
                    NameChange::Rename { from, .. } => *from = disowned(from),
                    NameChange::Moved { .. } => {}
                }
            }
        }
    }

    /// Returns the files after a crash.
    pub(super) fn crash(&self, survivors: Survivors, dice: &mut Dice) -> FileTree {
        let mut tree = FileTree::new();
        let n_moves = match survivors {
            Survivors::Nothing => 0,
            Survivors::Everything => self.n_moves,
            Survivors::Percent(_) => self.n_surviving_moves(dice),
        };
        self.survive(0, Path::new(""), (survivors, n_moves), dice, &mut tree);
        tree
    }

    /// Returns the number of changes between directories that a crash leaves, with those that are certain.
    fn n_surviving_moves(&self, dice: &mut Dice) -> usize {
        let dirs = self.nodes.iter().filter_map(|node| match node {
            DiskNode::Dir(dir) => Some(dir),
            DiskNode::File(_) => None,
        });
        let first = dirs.flat_map(|dir| dir.unsynced.iter().filter_map(NameChange::number)).min();
        first.map_or(0, |first| first + dice.below(self.n_moves - first + 1))
    }

    fn survive(
        &self,
        node: usize,
        path: &Path,
        (survivors, n_moves): (Survivors, usize),
        dice: &mut Dice,
        tree: &mut FileTree,
    ) {
        match &self.nodes[node] {
            DiskNode::File(file) => {
                tree.insert(path.to_owned(), Some(file.survive(survivors, dice)));
            }
            DiskNode::Dir(dir) => {
                if node > 0 {
                    tree.insert(path.to_owned(), None);
                }
                for (name, node) in dir.survive((survivors, n_moves), dice) {
                    self.survive(node, &path.join(name), (survivors, n_moves), dice, tree);
                }
            }
        }
    }
}

impl DirNode {
    /// Makes all names certain, and returns the newest change with another directory that this concerns.
    fn sync(&mut self) -> Option<usize> {
        let newest = self.unsynced.iter().filter_map(NameChange::number).max();
        self.unsynced.clear();
        self.durable.clone_from(&self.visible);
        newest
    }

    /// Makes the changes with other directories certain up to one of them.
    fn commit_moves(&mut self, newest: usize) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                NameChange::Moved { name, node, number } if number <= newest => {
                    // What the name was before does not come back.
                    self.unsynced.retain(|earlier| !earlier.concerns(&name));
                    match node {
                        Some(node) => drop(self.durable.insert(name, node)),
                        None => drop(self.durable.remove(&name)),
                    }
                }
                change => self.unsynced.push(change),
            }
        }
    }

    fn survive(
        &self,
        (survivors, n_moves): (Survivors, usize),
        dice: &mut Dice,
    ) -> BTreeMap<PathBuf, usize> {
        let mut names = self.durable.clone();
        for change in &self.unsynced {
            let is_left = match change.number() {
                Some(number) => number < n_moves,
                None => survives(survivors, dice),
            };
            if !is_left {
                continue;
            }
            match change {
                NameChange::Add(name, node) => drop(names.insert(name.clone(), *node)),
                NameChange::Remove(name) => drop(names.remove(name)),
                NameChange::Rename { from, to, node } => {
                    names.remove(from);
                    names.insert(to.clone(), *node);
                }
                NameChange::Moved { name, node: Some(node), .. } => {
                    names.insert(name.clone(), *node);
                }
                NameChange::Moved { name, node: None, .. } => drop(names.remove(name)),
            }
        }
        names
    }
}

impl NameChange {
    /// Returns the number of a change between two directories.
    const fn number(&self) -> Option<usize> {
        match self {
            Self::Moved { number, .. } => Some(*number),
            _ => None,
        }
    }

    fn concerns(&self, other: &Path) -> bool {
        match self {
            Self::Add(name, _) | Self::Remove(name) | Self::Moved { name, .. } => name == other,
            Self::Rename { to, .. } => to == other,
        }
    }
}

impl FileNode {
    fn append(&mut self, bytes: &[u8]) {
        self.overwrite(self.visible_len, bytes);
    }

    fn overwrite(&mut self, offset: usize, bytes: &[u8]) {
        let bytes = Arc::new(bytes.to_vec());
        self.visible_len = self.visible_len.max(offset + bytes.len());
        let (data, certainty) = (Data::Bytes { offset, bytes }, Certainty::Unsynced);
        self.changes.push(DataChange { data, certainty });
    }

    fn set_len(&mut self, len: usize) {
        self.visible_len = len;
        let (data, certainty) = (Data::Len(len), Certainty::Unsynced);
        self.changes.push(DataChange { data, certainty });
    }

    fn sync(&mut self) {
        for change in &mut self.changes {
            if change.certainty == Certainty::Unsynced {
                change.certainty = Certainty::Synced;
            }
        }
        // A truncation makes it irrelevant whether the bytes that it removed were ever written.
        let mut cut_to = usize::MAX;
        let mut kept = Vec::new();
        for change in std::mem::take(&mut self.changes).into_iter().rev() {
            let is_cut_off = match &change.data {
                Data::Bytes { offset, .. } => *offset >= cut_to,
                Data::Len(len) => *len >= cut_to,
            };
            if let Data::Len(len) = change.data
                && change.certainty == Certainty::Synced
            {
                cut_to = cut_to.min(len);
            }
            if !(is_cut_off && change.certainty == Certainty::Doubtful) {
                kept.push(change);
            }
        }
        kept.reverse();
        let is_synced = |change: &DataChange| change.certainty == Certainty::Synced;
        let n_certain = kept.iter().take_while(|change| is_synced(change)).count();
        let durable = Arc::make_mut(&mut self.durable);
        for change in kept.drain(..n_certain) {
            change.data.write(durable);
        }
        self.changes = kept;
    }

    fn fail_sync(&mut self) {
        for change in &mut self.changes {
            if change.certainty == Certainty::Unsynced {
                change.certainty = Certainty::Doubtful;
            }
        }
    }

    fn survive(&self, survivors: Survivors, dice: &mut Dice) -> Vec<u8> {
        let mut content = self.durable.to_vec();
        for DataChange { data, certainty } in &self.changes {
            if *certainty == Certainty::Synced || survivors == Survivors::Everything {
                data.write(&mut content);
            } else if survivors != Survivors::Nothing {
                match data {
                    Data::Len(_) if survives(survivors, dice) => data.write(&mut content),
                    Data::Len(_) => {}
                    Data::Bytes { .. } => data.write_in_part(&mut content, survivors, dice),
                }
            }
        }
        content
    }
}

impl Data {
    fn write(&self, content: &mut Vec<u8>) {
        match self {
            Self::Len(len) => content.resize(*len, 0),
            Self::Bytes { offset, bytes } => write_at(content, *offset, bytes),
        }
    }

    /// Writes nothing, everything, the beginning, or some of the sectors.
    fn write_in_part(&self, content: &mut Vec<u8>, survivors: Survivors, dice: &mut Dice) {
        let Self::Bytes { offset, bytes } = self else { return };
        match dice.below(5) {
            0 | 1 => {
                if survives(survivors, dice) {
                    write_at(content, *offset, bytes);
                }
            }
            2 => write_at(content, *offset, &bytes[..dice.below(bytes.len() + 1)]),
            _ => {
                // The length of the file is another change than its bytes: missing sectors are zeros, or cut off.
                let has_length = dice.percent(70);
                let sector = dice.pick(&[512, 4096]);
                let end = offset + bytes.len();
                if has_length && content.len() < end {
                    content.resize(end, 0);
                }
                let mut at = *offset;
                while at < end {
                    let next = ((at / sector + 1) * sector).min(end);
                    if survives(survivors, dice) {
                        write_at(content, at, &bytes[at - offset..next - offset]);
                    }
                    at = next;
                }
            }
        }
    }
}

fn write_at(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

fn survives(survivors: Survivors, dice: &mut Dice) -> bool {
    match survivors {
        Survivors::Nothing => false,
        Survivors::Everything => true,
        Survivors::Percent(percent) => dice.percent(percent),
    }
}

/// Returns the name that a file of another process has.
fn disowned(name: &Path) -> PathBuf {
    let text = name.to_string_lossy();
    text.strip_prefix(".tmp-").map_or(name.to_owned(), |rest| format!(".tmp-x{rest}").into())
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("the root has no name")
}

fn name(path: &Path) -> PathBuf {
    path.file_name().expect("has a name").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        name.into()
    }

    /// Returns the contents that `name` may have after a crash; `None` for a missing file.
    fn outcomes(steps: &[DiskStep], name: &str) -> Vec<Option<Vec<u8>>> {
        let mut disk = CrashDisk::new(&FileTree::new());
        steps.iter().for_each(|step| disk.apply(step));
        let mut all: Vec<_> = (0..200)
            .map(|seed| {
                let tree = disk.crash(Survivors::Percent(50), &mut Dice::of(seed, 0));
                tree.get(Path::new(name)).cloned().flatten()
            })
            .collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn only_synced_bytes_and_names_are_certain() {
        let a = || path("a");
        let write = [DiskStep::Create(a()), DiskStep::Append(a(), b"x".to_vec())];
        let maybe = outcomes(&write, "a");
        assert_eq!(maybe, [None, Some(b"".to_vec()), Some(b"\0".to_vec()), Some(b"x".to_vec())]);
        let synced = [&write[..], &[DiskStep::Sync(a())]].concat();
        assert_eq!(outcomes(&synced, "a"), [None, Some(b"x".to_vec())], "the name is uncertain");
        let named = [&synced[..], &[DiskStep::SyncDir(path(""))]].concat();
        assert_eq!(outcomes(&named, "a"), [Some(b"x".to_vec())]);
        let moved = [&named[..], &[DiskStep::CreateDir(path("d")), DiskStep::SyncDir(path(""))]];
        let moved = [&moved.concat()[..], &[DiskStep::Move(a(), path("d/b"))]].concat();
        assert_eq!(outcomes(&moved, "a"), [None, Some(b"x".to_vec())]);
        let in_one_place = |steps: &[DiskStep]| {
            let mut disk = CrashDisk::new(&FileTree::new());
            steps.iter().for_each(|step| disk.apply(step));
            (0..50).all(|seed| {
                let tree = disk.crash(Survivors::Percent(50), &mut Dice::of(seed, 0));
                tree.contains_key(Path::new("a")) != tree.contains_key(Path::new("d/b"))
            })
        };
        assert!(in_one_place(&moved), "a file that moves is never lost");
        let synced = [&moved[..], &[DiskStep::SyncDir(path("d"))]].concat();
        assert_eq!(outcomes(&synced, "a"), [None], "both sides are certain");
        let renamed = [&named[..], &[DiskStep::Rename(a(), path("b"))]].concat();
        assert_eq!(outcomes(&renamed, "a"), [None, Some(b"x".to_vec())]);
    }

    #[test]
    fn sync_of_the_file_system_makes_everything_below_a_directory_certain() {
        let (a, b, c) = (|| path("d/a"), || path("d/e/b"), || path("c"));
        let write =
            |path: PathBuf| [DiskStep::Create(path.clone()), DiskStep::Append(path, b"x".to_vec())];
        let dirs = ["d", "d/e"].map(|dir| DiskStep::CreateDir(path(dir)));
        let files = [write(a()), write(b()), write(c())].concat();
        let named = [&dirs[..], &[DiskStep::SyncDir(path(""))], &files[..]].concat();
        let synced = [&named[..], &[DiskStep::SyncWhole(path("d"))]].concat();
        for name in ["d/a", "d/e/b"] {
            assert!(outcomes(&named, name).len() > 1, "{name} is uncertain");
            assert_eq!(outcomes(&synced, name), [Some(b"x".to_vec())], "{name}");
        }
        assert!(outcomes(&synced, "c").len() > 1, "it is not below the directory");
        let failed =
            [&named[..], &[DiskStep::FailedSync(path("d")), DiskStep::SyncWhole(path("d"))]];
        let all = outcomes(&failed.concat(), "d/a");
        assert!(all.len() > 1, "a later sync does not make up for one that failed: {all:?}");
    }

    #[test]
    fn bytes_before_a_failed_sync_stay_uncertain_until_they_are_cut_off_or_written_again() {
        let a = || path("a");
        let append = |text: &[u8]| DiskStep::Append(a(), text.to_vec());
        let named = vec![DiskStep::Create(a()), DiskStep::SyncDir(path(""))];
        let synced = [named, vec![append(b"1"), DiskStep::Sync(a())]].concat();
        let failed = [synced, vec![append(b"2"), DiskStep::FailedSync(a()), DiskStep::Sync(a())]];
        let failed = failed.concat();
        let outcomes_of = |more: Vec<DiskStep>| outcomes(&[failed.clone(), more].concat(), "a");
        assert_eq!(outcomes_of(vec![]).len(), 3, "missing, zero, or there");
        let cut = vec![DiskStep::SetLen(a(), 1), append(b"3"), DiskStep::Sync(a())];
        assert_eq!(outcomes_of(cut), [Some(b"13".to_vec())]);
        let rewritten = vec![DiskStep::Overwrite(a(), 1, b"2".to_vec()), DiskStep::Sync(a())];
        assert_eq!(outcomes_of(rewritten), [Some(b"12".to_vec())]);
    }
}
