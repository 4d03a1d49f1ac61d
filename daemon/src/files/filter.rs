//! The files of a root that a caller wants: patterns and a depth.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::FilesError;

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
    /// **Errors**: `Pattern` names the first one that is none.
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
        if let Some(max) = self.max_depth {
            let depth = 1 + memchr::memchr_iter(b'/', path).count();
            if depth > max as usize {
                return false;
            }
        }
        let path = Path::new(OsStr::from_bytes(path));
        let matches =
            |patterns: &Gitignore| patterns.matched_path_or_any_parents(path, false).is_ignore();
        !self.exclude.as_ref().is_some_and(matches) && self.include.as_ref().is_none_or(matches)
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
        assert!(PathFilter::new(&["a[".to_owned(), "{".to_owned()], &[]).is_err());
    }
}
