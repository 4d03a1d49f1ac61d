//! The files of a root that a caller wants: patterns and a depth.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::FilesError;
use super::tree::split;

/// The most patterns of a filter.
const MAX_PATTERNS: usize = 1_000;

/// A filter for the paths of files; the default admits all.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathFilter {
    include: Option<Gitignore>,
    exclude: Option<Gitignore>,
    max_depth: Option<u32>,
}

impl PathFilter {
    /// Compiles patterns in the syntax of `.gitignore`, relative to the root; an empty `include` admits everything.
    ///
    /// **Errors**: `Pattern` names the first invalid pattern.
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Result<Self, FilesError> {
        Ok(Self {
            include: compile("include", include)?,
            exclude: compile("exclude", exclude)?,
            max_depth: None,
        })
    }

    /// Returns the filter with a depth.
    pub(crate) fn with_max_depth(self, max_depth: Option<u32>) -> Self {
        Self { max_depth, ..self }
    }

    /// Returns whether a file is wanted: neither it nor a directory above it is excluded, and it or one is included.
    pub(crate) fn admits(&self, path: &[u8]) -> bool {
        self.in_dir(split(path).0).admits(path)
    }

    /// Returns the filter for the files of one directory, whose own paths are matched once.
    pub(crate) fn in_dir(&self, dir: &[u8]) -> DirFilter<'_> {
        let depth = match dir {
            b"" => 1,
            dir => 2 + memchr::memchr_iter(b'/', dir).count(),
        };
        let rule = |patterns| DirRule::new(patterns, dir);
        DirFilter {
            include: self.include.as_ref().map(rule),
            exclude: self.exclude.as_ref().map(rule),
            is_too_deep: self.max_depth.is_some_and(|max| depth > max as usize),
        }
    }
}

/// A filter for the files of one directory.
pub(crate) struct DirFilter<'a> {
    include: Option<DirRule<'a>>,
    exclude: Option<DirRule<'a>>,
    is_too_deep: bool,
}

impl DirFilter<'_> {
    /// Returns whether a file of the directory is wanted.
    pub(crate) fn admits(&self, path: &[u8]) -> bool {
        !self.is_too_deep
            && !self.exclude.as_ref().is_some_and(|rule| rule.matches(path))
            && self.include.as_ref().is_none_or(|rule| rule.matches(path))
    }
}

/// Patterns, and what they say about a directory.
struct DirRule<'a> {
    patterns: &'a Gitignore,
    matches_dir: bool,
}

impl<'a> DirRule<'a> {
    fn new(patterns: &'a Gitignore, dir: &[u8]) -> Self {
        let dir = Path::new(OsStr::from_bytes(dir));
        Self { patterns, matches_dir: patterns.matched_path_or_any_parents(dir, true).is_ignore() }
    }

    /// Returns whether a file of the directory matches: itself, or one of the directories if no pattern is about it.
    fn matches(&self, path: &[u8]) -> bool {
        match self.patterns.matched(Path::new(OsStr::from_bytes(path)), false) {
            Match::None => self.matches_dir,
            found => found.is_ignore(),
        }
    }
}

fn compile(field: &'static str, patterns: &[String]) -> Result<Option<Gitignore>, FilesError> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let invalid = |problem: String| FilesError::Pattern { field, problem };
    if patterns.len() > MAX_PATTERNS {
        return Err(invalid(format!("{} patterns are more than {MAX_PATTERNS}", patterns.len())));
    }
    let mut builder = GitignoreBuilder::new("");
    for pattern in patterns {
        builder.add_line(None, pattern).map_err(|error| invalid(error.to_string()))?;
    }
    builder.build().map(Some).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_depth_admit_files() {
        let check = |include: &[&str], exclude: &[&str], depth, admitted: &[&str]| {
            let owned = |patterns: &[&str]| {
                patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()
            };
            let filter =
                PathFilter::new(&owned(include), &owned(exclude)).unwrap().with_max_depth(depth);
            let all = ["a.rs", "src/b.rs", "src/c.txt", "docs/d/e.rs"];
            let found: Vec<&str> =
                all.into_iter().filter(|path| filter.admits(path.as_bytes())).collect();
            assert_eq!(found, admitted, "{include:?} {exclude:?} {depth:?}");
        };
        check(&[], &[], None, &["a.rs", "src/b.rs", "src/c.txt", "docs/d/e.rs"]);
        check(&["*.rs"], &[], None, &["a.rs", "src/b.rs", "docs/d/e.rs"]);
        check(&["/*.rs"], &[], None, &["a.rs"]);
        check(&["src/"], &["*.txt"], None, &["src/b.rs"]);
        check(&["*.rs"], &["docs"], None, &["a.rs", "src/b.rs"]);
        check(&[], &[], Some(1), &["a.rs"]);
        check(&[], &[], Some(0), &[]);
        // A pattern about the file is stronger than one about a directory above it.
        check(&["docs/", "!e.rs"], &[], None, &[]);
        check(&[], &["src/", "!b.rs"], None, &["a.rs", "src/b.rs", "docs/d/e.rs"]);
        check(&["d"], &[], None, &["docs/d/e.rs"]);
        assert!(PathFilter::new(&["a[".to_owned(), "{".to_owned()], &[]).is_err());
    }
}
