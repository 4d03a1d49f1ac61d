//! Fuzzy search for files by their path, ranked as in an editor.
//!
//! The words of a query must all occur in a path, with their letters in order; an upper-case letter makes its word
//! match case. The scores are those of the `nucleo` matcher, which prefers letters that follow each other, starts of
//! words and starts of parts of the path. A word that occurs in the file's name counts more than one that needs the
//! directories, and of equal paths the shorter one comes first. Pure.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use nucleo_matcher::pattern::{Atom, AtomKind, CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};

use super::filter::PathFilter;
use super::tree::{DirNode, EntryKind, OTHER_LETTERS, Tree, join, letters_of};

/// The part of a score that a match within the name adds: more than the bonus of a few starts of words, and less than
/// a longer run of letters is worth.
const NAME_BONUS: u32 = 24;
/// The further part for each letter.
const NAME_LETTER_BONUS: u32 = 6;
/// The most that one letter of a word scores, and what the first one may score beyond that: a match after a `/`, with the
/// multiplier of the first letter, in the scores of `nucleo`.
const MAX_LETTER_SCORE: u32 = 25;
const MAX_FIRST_LETTER_BONUS: u32 = 9;
/// A search of fewer files has one thread: starting another takes as long as it saves.
const FILES_PER_THREAD: usize = 20_000;
const MAX_THREADS: usize = 4;

/// A file that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHit {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: EntryKind,
    pub(crate) score: u32,
    /// The positions of the matched characters in the path, rising.
    pub(crate) positions: Vec<u32>,
}

/// A word of a query.
struct Word {
    atom: Atom,
    letters: u64,
    name_bonus: u32,
    /// The most that a match scores, without the bonus for a match within the name.
    max_score: u32,
}

/// A file with its score; the greatest is the best one.
#[derive(PartialEq, Eq)]
struct Ranked {
    score: u32,
    path: Vec<u8>,
    is_link: bool,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.cmp(&other.score);
        by_score.then_with(|| (other.path.len(), &other.path).cmp(&(self.path.len(), &self.path)))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the best files for a query, the best first. A query without words matches every file, the shortest path first.
pub(crate) fn search(tree: &Tree, query: &str, filter: &PathFilter, limit: usize) -> Vec<FileHit> {
    let words = words_of(query);
    let dirs: Vec<(&[u8], &DirNode)> =
        tree.dirs_from(b"").map(|(dir, node)| (&**dir, node)).collect();
    let cores =
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_THREADS);
    let n_threads = (tree.n_files() / FILES_PER_THREAD).clamp(1, cores);
    let part = |part: usize| {
        let mut scorer = Scorer::new(&words, filter, limit);
        // Neighbors differ in size, so each thread takes every n-th directory.
        dirs.iter().skip(part).step_by(n_threads).for_each(|(dir, node)| scorer.add(dir, node));
        scorer.best
    };
    let mut best = std::thread::scope(|scope| {
        let spawn =
            |at| std::thread::Builder::new().spawn_scoped(scope, move || part(at)).map_err(|_| at);
        let others: Vec<_> = (1..n_threads).map(spawn).collect();
        let mut best = part(0);
        for other in others {
            match other {
                Ok(thread) => best.extend(thread.join().unwrap_or_default()),
                Err(at) => best.extend(part(at)),
            }
        }
        best
    })
    .into_vec();
    best.sort_unstable();
    best.truncate(limit);
    let mut matcher = Matcher::new(Config::DEFAULT.match_paths());
    best.into_iter().map(|Reverse(ranked)| hit(ranked, &words, &mut matcher)).collect()
}

fn words_of(query: &str) -> Vec<Word> {
    let pattern = Pattern::new(query, CaseMatching::Smart, Normalization::Smart, AtomKind::Fuzzy);
    let word = |atom: Atom| {
        let text: Vec<char> = atom.needle_text().chars().collect();
        let ascii: Vec<u8> =
            text.iter().filter_map(|char| u8::try_from(*char).ok()).filter(u8::is_ascii).collect();
        let length = u32::from(u16::try_from(text.len()).unwrap_or(u16::MAX));
        Word {
            atom,
            letters: letters_of(&ascii) & !OTHER_LETTERS,
            name_bonus: NAME_BONUS + length * NAME_LETTER_BONUS,
            max_score: length * MAX_LETTER_SCORE + MAX_FIRST_LETTER_BONUS,
        }
    };
    pattern.atoms.into_iter().map(word).collect()
}

/// Scores files and keeps the best.
struct Scorer<'a> {
    words: &'a [Word],
    letters: u64,
    /// The most that a path scores.
    max_score: u32,
    filter: &'a PathFilter,
    limit: usize,
    matcher: Matcher,
    path: Vec<u8>,
    chars: Vec<char>,
    best: BinaryHeap<Reverse<Ranked>>,
}

impl<'a> Scorer<'a> {
    fn new(words: &'a [Word], filter: &'a PathFilter, limit: usize) -> Self {
        Self {
            words,
            letters: words.iter().fold(0, |set, word| set | word.letters),
            max_score: words
                .iter()
                .fold(0, |sum, word| sum.saturating_add(word.max_score + word.name_bonus)),
            filter,
            limit,
            matcher: Matcher::new(Config::DEFAULT.match_paths()),
            path: Vec::new(),
            chars: Vec::new(),
            best: BinaryHeap::new(),
        }
    }

    /// Scores the files of a directory.
    fn add(&mut self, dir: &[u8], node: &DirNode) {
        let dir_letters = letters_of(dir);
        self.path.clear();
        self.path.extend_from_slice(&join(dir, b""));
        let base = self.path.len();
        for entry in node.entries_after(None) {
            let letters = dir_letters | entry.letters;
            if entry.kind == EntryKind::Directory || lacks(letters, self.letters) {
                continue;
            }
            self.path.truncate(base);
            self.path.extend_from_slice(entry.name);
            let Some(score) = self.score(base, entry.letters) else { continue };
            let is_link = entry.kind == EntryKind::Symlink;
            if !self.may_be_best(score) || !self.filter.admits(&self.path) {
                continue;
            }
            self.best.push(Reverse(Ranked { score, path: self.path.clone(), is_link }));
            if self.best.len() > self.limit {
                self.best.pop();
            }
        }
    }

    /// Returns whether the path in `self.path` may be among the best with a score of at most `most`.
    fn may_be_best(&self, most: u32) -> bool {
        let worst = self.best.peek().filter(|_| self.best.len() >= self.limit);
        worst.is_none_or(|Reverse(worst)| {
            (most, Reverse(self.path.len())) >= (worst.score, Reverse(worst.path.len()))
        })
    }

    /// Returns the score of the path in `self.path`, whose name begins at `base`; `None` if a word does not occur, or if
    /// the path cannot be among the best.
    ///
    /// Most of the time of a search would go into scores of whole paths, which are longer than names and match more
    /// often; once the best hits are matches within names, no path can reach them.
    fn score(&mut self, base: usize, name_letters: u64) -> Option<u32> {
        let (mut sum, mut most) = (0_u32, self.max_score);
        for word in self.words {
            let mut best = None;
            if !lacks(name_letters, word.letters) && self.may_be_best(most) {
                let name = lossy(&self.path[base..]);
                let name = Utf32Str::new(&name, &mut self.chars);
                best = word
                    .atom
                    .score(name, &mut self.matcher)
                    .map(|score| u32::from(score) + word.name_bonus);
            }
            if best.is_none() && self.may_be_best(most.saturating_sub(word.name_bonus)) {
                let path = lossy(&self.path);
                let path = Utf32Str::new(&path, &mut self.chars);
                best = word.atom.score(path, &mut self.matcher).map(u32::from);
            }
            let score = best?;
            sum = sum.saturating_add(score);
            most = most.saturating_sub((word.max_score + word.name_bonus).saturating_sub(score));
        }
        Some(sum)
    }
}

/// Returns whether a text with these letters cannot have the required ones.
fn lacks(letters: u64, required: u64) -> bool {
    required & !letters != 0 && letters & OTHER_LETTERS == 0
}

fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Finds the positions of the matched characters.
fn hit(ranked: Ranked, words: &[Word], matcher: &mut Matcher) -> FileHit {
    let path = lossy(&ranked.path).into_owned();
    let name_start = path.rfind('/').map_or(0, |at| at + 1);
    let chars_before = u32::try_from(path[..name_start].chars().count()).unwrap_or(u32::MAX);
    let (mut chars, mut positions, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for word in words {
        found.clear();
        let name = Utf32Str::new(&path[name_start..], &mut chars);
        if word.atom.indices(name, matcher, &mut found).is_some() {
            positions.extend(found.iter().map(|at| at + chars_before));
            continue;
        }
        found.clear();
        let whole = Utf32Str::new(&path, &mut chars);
        if word.atom.indices(whole, matcher, &mut found).is_some() {
            positions.append(&mut found);
        }
    }
    positions.sort_unstable();
    positions.dedup();
    let kind = if ranked.is_link { EntryKind::Symlink } else { EntryKind::File };
    FileHit { path: ranked.path, kind, score: ranked.score, positions }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tree::Listing;
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let mut dirs = std::collections::BTreeMap::<&str, Vec<&str>>::new();
        for path in paths {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            dirs.entry(dir).or_default().push(name);
        }
        let mut tree = Tree::default();
        for (dir, names) in dirs {
            let mut listing = Listing::new(dir.into());
            for name in names {
                assert!(listing.push(name.as_bytes(), EntryKind::File, 0));
            }
            tree.replace(listing.pack(), None, &mut Vec::new());
        }
        tree
    }

    fn found(paths: &[&str], query: &str) -> Vec<String> {
        let hits = search(&tree(paths), query, &PathFilter::default(), 100);
        hits.into_iter().map(|hit| String::from_utf8(hit.path).unwrap()).collect()
    }

    #[test]
    fn ranking_is_that_of_an_editor() {
        let check = |query: &str, expected: &[&str], others: &[&str]| {
            // The order of the paths must not matter.
            let paths: Vec<&str> = others.iter().chain(expected.iter().rev()).copied().collect();
            let found = found(&paths, query);
            assert_eq!(found, expected, "{query}");
        };
        // The name before the directories.
        check("walk", &["src/files/walk.rs", "walk/src/other.rs"], &["src/none.rs"]);
        // Letters that follow each other, then starts of words.
        check("mod", &["src/mod.rs", "src/model.rs", "src/my_old_data.rs"], &["src/dom.rs"]);
        check("fb", &["src/foo_bar.rs", "src/fuzzbox.rs"], &[]);
        check("rpcmet", &["daemon/src/rpc/methods.rs"], &["daemon/src/rpc/streams.rs"]);
        // The shorter path of two equal matches is the better one.
        check("main.rs", &["main.rs", "client/main.rs", "a/much/longer/main.rs"], &["main.c"]);
        // Several words in any order.
        check("log session dae", &["daemon/src/session/log.rs"], &["daemon/src/log.rs"]);
        // An upper-case letter asks for upper case.
        check("readme", &["README.md", "docs/readme.txt"], &[]);
        check("READ", &["README.md"], &["docs/readme.txt"]);
        // Letters that normalization makes equal.
        check("uber", &["über.txt"], &["ober.txt"]);
    }

    #[test]
    fn positions_are_those_of_characters() {
        let hits = search(&tree(&["ä/foo_bar.rs"]), "fb", &PathFilter::default(), 1);
        assert_eq!(hits[0].positions, [2, 6]);
        let hits = search(&tree(&["ab/cd.rs"]), "bd", &PathFilter::default(), 1);
        assert_eq!(hits[0].positions, [1, 4]);
    }

    proptest! {
        #[test]
        fn limited_search_finds_the_head_of_an_unlimited_one(
            paths in proptest::collection::btree_set("([aA]b?[_.]?[bB]?(1|ä)?/){0,2}[abAB]{1,4}[_.-]?[abB1ü]{0,4}x", 1..60),
            query in "[abA1u]{1,4}( [abx_.]{1,3})?",
            limit in 1_usize..8,
        ) {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let tree = tree(&paths);
            let mut all = search(&tree, &query, &PathFilter::default(), 1000);
            all.truncate(limit);
            prop_assert_eq!(search(&tree, &query, &PathFilter::default(), limit), all);
        }
    }

    #[test]
    fn limit_keeps_the_best_and_an_empty_query_matches_all() {
        let paths: Vec<String> = (0..500).map(|at| format!("d{}/file{at}.rs", at % 7)).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let tree = tree(&paths);
        let all = search(&tree, "file1", &PathFilter::default(), 1000);
        let some = search(&tree, "file1", &PathFilter::default(), 10);
        assert_eq!(all[..10], some);
        assert_eq!(search(&tree, " ", &PathFilter::default(), 1000).len(), 500);
    }
}
