//! The journal of changes under a root, by generation, which subscribers and `since` read.
//!
//! A root has a generation, a number that grows with each batch of changes. The journal keeps the newest batches, within
//! a limit; who knows an older generation has to list again, which is called a *resync*. So a slow subscriber costs
//! nothing: it is a position in the journal.
//!
//! **Invariants**: batches of a journal have consecutive generations. Merged batches name what became of a path since the
//! first of them. `added`, `modified` and `removed` have no path in common, and a renamed file is neither added nor
//! removed; it is modified too if its content changed. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// The most paths of one batch. More, such as after a checkout of another branch, are a resync: a client lists again
/// faster than it works through so many.
pub(crate) const MAX_BATCH: usize = 5_000;
/// The most paths of a journal, and their bytes.
const MAX_PATHS: usize = 20_000;
const MAX_BYTES: usize = 2 * 1024 * 1024;

/// Changes of files.
///
/// They lead from the files before to those after: remove `removed` and all old paths of `renamed`, put its new paths in,
/// then read `added` and `modified`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeSet {
    pub(crate) added: BTreeSet<Vec<u8>>,
    pub(crate) modified: BTreeSet<Vec<u8>>,
    pub(crate) removed: BTreeSet<Vec<u8>>,
    /// The new paths, each with the old one.
    pub(crate) renamed: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Set if there are more changes than a batch can have.
    pub(crate) is_cut: bool,
}

impl ChangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && !self.is_cut
    }

    fn len(&self) -> usize {
        self.added.len() + self.modified.len() + self.removed.len() + self.renamed.len()
    }

    fn bytes(&self) -> usize {
        let sets = [&self.added, &self.modified, &self.removed];
        let plain: usize = sets.into_iter().flatten().map(Vec::len).sum();
        plain + self.renamed.iter().map(|(to, from)| to.len() + from.len()).sum::<usize>()
    }

    /// Drops everything beyond the limit of a batch.
    fn limit(&mut self) {
        if self.len() >= MAX_BATCH {
            *self = Self { is_cut: true, ..Self::default() };
        }
    }

    pub(crate) fn add(&mut self, path: Vec<u8>) {
        if self.is_cut {
            return;
        }
        if self.removed.remove(&path) {
            self.modified.insert(path);
        } else {
            self.added.insert(path);
        }
        self.limit();
    }

    pub(crate) fn modify(&mut self, path: Vec<u8>) {
        if !self.is_cut && !self.added.contains(&path) {
            self.modified.insert(path);
            self.limit();
        }
    }

    pub(crate) fn remove(&mut self, path: Vec<u8>) {
        if self.is_cut {
            return;
        }
        self.modified.remove(&path);
        if let Some(from) = self.renamed.remove(&path) {
            self.lose(from);
        } else if !self.added.remove(&path) {
            self.removed.insert(path);
        }
        self.limit();
    }

    /// Notes that the file that had this path at first is gone. Another one may have the path by now.
    pub(crate) fn lose(&mut self, path: Vec<u8>) {
        if self.added.remove(&path) {
            self.modified.insert(path);
        } else if let Some(from) = self.renamed.remove(&path) {
            self.modified.insert(path);
            self.lose(from);
        } else {
            self.removed.insert(path);
        }
    }

    /// Makes a removed and an added path one rename. `from` and `to` may be directories.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) {
        let beneath = |path: &Vec<u8>| {
            path == from || path.starts_with(from) && path.get(from.len()) == Some(&b'/')
        };
        let moved: Vec<Vec<u8>> =
            self.removed.iter().filter(|path| beneath(path)).cloned().collect();
        for old in moved {
            let new = [to, &old[from.len()..]].concat();
            if self.added.remove(&new) {
                self.removed.remove(&old);
                self.renamed.insert(new, old);
            }
        }
    }

    pub(crate) fn has_renamed(&self, path: &[u8]) -> bool {
        self.renamed.contains_key(path)
    }

    /// Makes files modified whose names say that they were renamed to `path` or beneath it, unless `path` comes from
    /// `origin`: others of the same names took their places.
    pub(crate) fn modify_unless_from(&mut self, path: &[u8], origin: Option<&[u8]>) {
        let others: Vec<Vec<u8>> = self
            .renamed
            .range::<[u8], _>((Bound::Included(path), Bound::Unbounded))
            .take_while(|(to, _)| to.starts_with(path))
            .filter(|(to, _)| to.len() == path.len() || to[path.len()] == b'/')
            .filter(|(to, from)| {
                origin.and_then(|origin| from.strip_prefix(origin)) != Some(&to[path.len()..])
            })
            .map(|(to, _)| to.clone())
            .collect();
        others.into_iter().for_each(|path| self.modify(path));
    }

    /// Adds the changes of a later batch.
    fn merge(&mut self, later: &Self) {
        self.is_cut |= later.is_cut;
        // The old paths first: a file may have moved to the place of another one.
        for (to, from) in &later.renamed {
            let was_modified = self.modified.remove(from);
            if self.added.remove(from) {
                self.add(to.clone());
            } else {
                let origin = self.renamed.remove(from).unwrap_or_else(|| from.clone());
                if self.removed.remove(to) {
                    // The place of a file that existed at first.
                    self.modified.insert(to.clone());
                    self.lose(origin);
                    continue;
                }
                if was_modified {
                    self.modified.insert(to.clone());
                }
                if origin != *to {
                    self.renamed.insert(to.clone(), origin);
                }
            }
        }
        later.removed.iter().for_each(|path| self.remove(path.clone()));
        later.added.iter().for_each(|path| self.add(path.clone()));
        later.modified.iter().for_each(|path| self.modify(path.clone()));
    }
}

/// The changes after a generation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChangesSince {
    /// All of them; empty if nothing changed.
    Known(ChangeSet),
    /// They are not known any more, or too many.
    Resync,
}

/// The newest batches of a root.
#[derive(Debug)]
pub(crate) struct ChangeJournal {
    /// The generation after the newest batch.
    generation: u64,
    batches: VecDeque<ChangeSet>,
    n_paths: usize,
    bytes: usize,
}

impl ChangeJournal {
    /// Returns an empty journal that begins with a generation.
    pub(crate) fn new(generation: u64) -> Self {
        Self { generation, batches: VecDeque::new(), n_paths: 0, bytes: 0 }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the memory of the batches, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + 64 * self.n_paths
    }

    /// Adds a batch if it has a change. A batch that is cut makes everything before it unknown.
    pub(crate) fn push(&mut self, batch: ChangeSet) {
        if batch.is_empty() {
            return;
        }
        self.generation += 1;
        if batch.is_cut {
            self.forget();
            return;
        }
        self.n_paths += batch.len();
        self.bytes += batch.bytes();
        self.batches.push_back(batch);
        while self.n_paths > MAX_PATHS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.n_paths -= oldest.len();
            self.bytes -= oldest.bytes();
        }
    }

    /// Begins a new generation before which nothing is known.
    pub(crate) fn resync(&mut self) {
        self.generation += 1;
        self.forget();
    }

    fn forget(&mut self) {
        self.batches.clear();
        (self.n_paths, self.bytes) = (0, 0);
    }

    /// Returns all changes that are still known.
    pub(crate) fn all(&self) -> ChangesSince {
        self.since(self.generation - self.batches.len() as u64)
    }

    /// Returns the changes after a generation.
    pub(crate) fn since(&self, generation: u64) -> ChangesSince {
        let n_after = self.generation.checked_sub(generation).and_then(|n| usize::try_from(n).ok());
        let Some(n_after) = n_after.filter(|n| *n <= self.batches.len()) else {
            return ChangesSince::Resync;
        };
        let mut changes = ChangeSet::default();
        self.batches
            .iter()
            .skip(self.batches.len() - n_after)
            .for_each(|batch| changes.merge(batch));
        if changes.is_cut { ChangesSince::Resync } else { ChangesSince::Known(changes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(added: &[&str], modified: &[&str], removed: &[&str]) -> ChangeSet {
        let paths = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        ChangeSet {
            added: paths(added),
            modified: paths(modified),
            removed: paths(removed),
            ..ChangeSet::default()
        }
    }

    #[test]
    fn difference_names_what_became_of_a_path() {
        let check = |batches: &[ChangeSet], expected: ChangeSet| {
            let mut journal = ChangeJournal::new(100);
            batches.iter().for_each(|batch| journal.push(batch.clone()));
            assert_eq!(journal.since(100), ChangesSince::Known(expected), "{batches:?}");
        };
        check(&[set(&["a"], &[], &[]), set(&[], &["a"], &[])], set(&["a"], &[], &[]));
        check(&[set(&["a"], &[], &[]), set(&[], &[], &["a"])], set(&[], &[], &[]));
        check(&[set(&[], &[], &["a"]), set(&["a"], &[], &[])], set(&[], &["a"], &[]));
        check(&[set(&[], &["a"], &[]), set(&[], &[], &["a"])], set(&[], &[], &["a"]));
        let mut renamed = set(&["d/b"], &[], &["c/b"]);
        renamed.rename(b"c", b"d");
        assert_eq!(renamed.renamed[&b"d/b".to_vec()], b"c/b");
        check(&[renamed.clone(), set(&[], &[], &["d/b"])], set(&[], &[], &["c/b"]));
        check(&[set(&["c/b"], &[], &[]), renamed], set(&["d/b"], &[], &[]));
    }

    #[test]
    fn removed_file_whose_old_path_is_taken_is_a_modified_one() {
        let mut changes = set(&["b"], &[], &["a"]);
        changes.rename(b"a", b"b");
        changes.add(b"a".to_vec());
        changes.remove(b"b".to_vec());
        assert_eq!(changes, set(&[], &["a"], &[]));
    }

    type Contents = BTreeMap<Vec<u8>, u32>;

    /// Changes files in one way and returns the batch that reports it.
    fn step(files: &mut Contents, kind: u8, path: u8, other: u8, content: u32) -> ChangeSet {
        let (path, other) = (vec![b'a' + path], vec![b'a' + other]);
        let mut changes = ChangeSet::default();
        match (kind, files.get(&path).copied(), files.get(&other).copied()) {
            (0, None, _) => changes.add(path.clone()),
            (0, Some(_), _) => changes.modify(path.clone()),
            (1, Some(_), _) => {
                files.remove(&path);
                changes.remove(path);
                return changes;
            }
            (_, Some(moved), None) => {
                files.remove(&path);
                files.insert(other.clone(), moved);
                changes.remove(path.clone());
                changes.add(other.clone());
                changes.rename(&path, &other);
                return changes;
            }
            _ => return changes,
        }
        files.insert(path, content);
        changes
    }

    proptest::proptest! {
        #[test]
        fn merged_batches_lead_from_the_first_contents_to_the_last(
            steps in proptest::collection::vec((0_u8..4, 0_u8..5, 0_u8..5), 0..30),
            n_before in 0_usize..20,
        ) {
            let mut files = Contents::new();
            let mut before = Contents::new();
            let mut journal = ChangeJournal::new(100);
            for (at, (kind, path, other)) in steps.into_iter().enumerate() {
                if at == n_before {
                    before.clone_from(&files);
                    journal = ChangeJournal::new(100);
                }
                let content = u32::try_from(at).unwrap();
                journal.push(step(&mut files, kind, path, other, content));
            }
            let ChangesSince::Known(changes) = journal.since(100) else { panic!("is known") };
            let ChangeSet { added, modified, removed, renamed, .. } = changes;
            let is_apart = added.is_disjoint(&modified)
                && added.is_disjoint(&removed)
                && modified.is_disjoint(&removed);
            proptest::prop_assert!(is_apart, "{added:?} {modified:?} {removed:?}");
            for path in &removed {
                proptest::prop_assert!(before.remove(path).is_some(), "{path:?}");
            }
            let moved: Vec<_> =
                renamed.iter().map(|(to, from)| (to, before.remove(from).expect("is known"))).collect();
            for (to, content) in moved {
                proptest::prop_assert_eq!(before.insert(to.clone(), content), None);
            }
            for path in &added {
                proptest::prop_assert_eq!(before.insert(path.clone(), files[path]), None);
            }
            for path in &modified {
                proptest::prop_assert!(before.insert(path.clone(), files[path]).is_some());
            }
            proptest::prop_assert_eq!(before, files);
        }
    }

    #[test]
    fn unknown_generations_and_large_batches_are_a_resync() {
        let mut journal = ChangeJournal::new(100);
        assert_eq!(journal.since(100), ChangesSince::Known(ChangeSet::default()));
        assert_eq!(journal.since(99), ChangesSince::Resync);
        assert_eq!(journal.since(101), ChangesSince::Resync);
        journal.push(set(&["a"], &[], &[]));
        journal.push(ChangeSet::default());
        assert_eq!(journal.generation(), 101, "an empty batch is no generation");
        let mut large = ChangeSet::default();
        (0..MAX_BATCH).for_each(|at| large.add(at.to_string().into_bytes()));
        journal.push(large);
        assert_eq!((journal.generation(), journal.since(101)), (102, ChangesSince::Resync));
        assert_eq!(journal.since(102), ChangesSince::Known(ChangeSet::default()));
        for batch in 0..10 {
            let mut changes = ChangeSet::default();
            (0..MAX_BATCH - 1).for_each(|at| changes.add(format!("{batch}/{at}").into_bytes()));
            journal.push(changes);
        }
        assert_eq!(journal.since(102), ChangesSince::Resync, "the oldest batches are dropped");
        assert!(
            matches!(journal.since(111), ChangesSince::Known(set) if set.added.len() == MAX_BATCH - 1)
        );
    }
}
