//! The rules that decide which entries are ignored: ignore files, built-in names and configured patterns.
//!
//! The sources, from the strongest to the weakest; the first one with a pattern for an entry decides:
//!
//! 1. `.ollmignore` of the entry's directory and of those above it;
//! 2. the built-in names and `files.ignore`;
//! 3. `.gitignore` of the entry's directory and of those above it;
//! 4. `.git/info/exclude`;
//! 5. git's global excludes.
//!
//! Within 1 and 3, a lower directory is stronger than a higher one, and the last pattern of a file that matches is
//! stronger than those before it. Sources end at the repository: directories above it have no say, and outside of a
//! repository none above the root has. The patterns are those of the `ignore` crate, which ripgrep uses.
//!
//! **Invariants**: a malformed line costs a warning and no other line. A file that is not regular, or larger than
//! [`MAX_FILE_BYTES`], is not read, so no pipe is waited for.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder, gitconfig_excludes_path};
use rustix::fs::{CWD, Mode, OFlags};

use super::FileWarning;

/// Names that are ignored without any ignore file.
pub(crate) const BUILT_IN: &[&str] = &["node_modules", ".git", "dist", "build", "target"];
/// The ignore file of this program, which is stronger than all other sources.
pub(crate) const OLLM_IGNORE: &str = ".ollmignore";
const GIT_IGNORE: &str = ".gitignore";
const GIT_DIR: &str = ".git";
/// The exclude file of a repository, beneath its git directory.
const EXCLUDE: &str = "info/exclude";
/// The largest ignore file that is read. Larger ones are data under a wrong name, and would take seconds to compile.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The most lines of an ignore file that have a warning of their own.
const MAX_BAD_LINES: usize = 10;

/// Returns whether a change of the entry with this name changes what its directory ignores.
pub(crate) fn decides(name: &[u8]) -> bool {
    [OLLM_IGNORE, GIT_IGNORE, GIT_DIR].iter().any(|known| known.as_bytes() == name)
}

/// The ignore files that a listing of a directory contains.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PresentFiles {
    ollm: bool,
    git: bool,
    repository: bool,
}

impl PresentFiles {
    /// Takes note of an entry.
    pub(crate) fn see(&mut self, name: &[u8]) {
        self.ollm |= name == OLLM_IGNORE.as_bytes();
        self.git |= name == GIT_IGNORE.as_bytes();
        self.repository |= name == GIT_DIR.as_bytes();
    }

    /// Looks for the files of a directory that is not listed.
    fn probe(dir: &Path) -> Self {
        let exists = |name: &str| dir.join(name).symlink_metadata().is_ok();
        Self { ollm: exists(OLLM_IGNORE), git: exists(GIT_IGNORE), repository: exists(GIT_DIR) }
    }

    fn is_none(self) -> bool {
        !(self.ollm || self.git || self.repository)
    }
}

/// The sources that do not depend on the directory.
struct GlobalRules {
    /// Set if names that begin with a dot are listed although no pattern asks for them.
    hidden: bool,
    configured: Gitignore,
    excludes: Gitignore,
}

/// The rules for the entries of one directory: its own ignore files, and those above it.
pub(crate) struct Rules {
    parent: Option<Arc<Rules>>,
    global: Arc<GlobalRules>,
    ollm: Gitignore,
    git: Gitignore,
    exclude: Gitignore,
    /// Set if the directory is a repository, beyond which git's own files have no say.
    is_repository: bool,
}

/// The rules above a root, and the files that they come from.
pub(crate) struct RootRules {
    pub(crate) rules: Arc<Rules>,
    pub(crate) sources: Sources,
    pub(crate) warnings: Vec<FileWarning>,
}

impl Rules {
    /// Reads the rules that hold for the root itself: those of its repository above it, and the global ones.
    ///
    /// `ignore` are the configured patterns.
    pub(crate) fn above(root: &Path, ignore: &[String], hidden: bool) -> RootRules {
        let mut warnings = Vec::new();
        let mut sources = Sources::default();
        git_config_files().into_iter().for_each(|path| sources.add(path));
        let excludes = gitconfig_excludes_path().map_or_else(Gitignore::empty, |path| {
            sources.add(path.clone());
            read_patterns(root, &path, &mut warnings)
        });
        let configured = compile(root, "files.ignore", ignore.iter().cloned(), &mut warnings);
        let mut rules = Arc::new(Self {
            parent: None,
            global: Arc::new(GlobalRules { hidden, configured, excludes }),
            ollm: Gitignore::empty(),
            git: Gitignore::empty(),
            exclude: Gitignore::empty(),
            is_repository: false,
        });
        for dir in directories_of_repository_above(root) {
            for name in [OLLM_IGNORE, GIT_IGNORE, GIT_DIR] {
                sources.add(dir.join(name));
            }
            let (child, exclude_file) = rules.child(dir, PresentFiles::probe(dir), &mut warnings);
            exclude_file.into_iter().for_each(|path| sources.add(path));
            rules = child;
        }
        RootRules { rules, sources, warnings }
    }

    /// Returns the rules of a directory of whose entries only the ignore files are known, and the exclude file if there
    /// can be one.
    pub(crate) fn child(
        self: &Arc<Self>,
        dir: &Path,
        present: PresentFiles,
        warnings: &mut Vec<FileWarning>,
    ) -> (Arc<Self>, Option<PathBuf>) {
        // Most directories have no ignore file. Without nodes for them, matching takes the same time at any depth.
        if present.is_none() {
            return (Arc::clone(self), None);
        }
        let mut read = |is_present: bool, name: &str| match is_present {
            true => read_patterns(dir, &dir.join(name), warnings),
            false => Gitignore::empty(),
        };
        let (ollm, git) = (read(present.ollm, OLLM_IGNORE), read(present.git, GIT_IGNORE));
        let exclude_file = present.repository.then(|| common_git_dir(dir)).flatten();
        let exclude_file = exclude_file.map(|git_dir| git_dir.join(EXCLUDE));
        let exclude = match &exclude_file {
            Some(path) => read_patterns(dir, path, warnings),
            None => Gitignore::empty(),
        };
        let rules = Self {
            parent: Some(Arc::clone(self)),
            global: Arc::clone(&self.global),
            ollm,
            git,
            exclude,
            is_repository: exclude_file.is_some(),
        };
        (Arc::new(rules), exclude_file)
    }

    /// Returns the rules of a directory that is not listed, as [`Rules::child`] does.
    pub(crate) fn child_by_probing(self: &Arc<Self>, dir: &Path) -> Arc<Self> {
        self.child(dir, PresentFiles::probe(dir), &mut Vec::new()).0
    }

    /// Returns whether an entry of the directory is left out.
    pub(crate) fn ignores(&self, path: &Path, name: &[u8], is_dir: bool) -> bool {
        match self.decision(path, name, is_dir) {
            Some(is_ignored) => is_ignored,
            None => !self.global.hidden && name.starts_with(b"."),
        }
    }

    /// Returns whether a source ignores the entry; `None` if no source has a pattern for it.
    fn decision(&self, path: &Path, name: &[u8], is_dir: bool) -> Option<bool> {
        let decided = |patterns: &Gitignore| match patterns.matched(path, is_dir) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        };
        let chain = || std::iter::successors(Some(self), |rules| rules.parent.as_deref());
        if let Some(decision) = chain().find_map(|rules| decided(&rules.ollm)) {
            return Some(decision);
        }
        if is_dir && BUILT_IN.iter().any(|known| known.as_bytes() == name) || name == b".git" {
            return Some(true);
        }
        decided(&self.global.configured)
            .or_else(|| self.repository().find_map(|rules| decided(&rules.git)))
            .or_else(|| self.repository().find_map(|rules| decided(&rules.exclude)))
            .or_else(|| decided(&self.global.excludes))
    }

    /// Returns the rules from this directory up to its repository.
    fn repository(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |rules| {
            rules.parent.as_deref().filter(|_| !rules.is_repository)
        })
    }
}

/// Returns the files in which git looks for `core.excludesFile`, whether they exist or not.
fn git_config_files() -> Vec<PathBuf> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = variable("HOME");
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    let system = variable("GIT_CONFIG_SYSTEM").unwrap_or_else(|| "/etc/gitconfig".into());
    let own = [
        variable("GIT_CONFIG_GLOBAL"),
        home.map(|home| home.join(".gitconfig")),
        config.map(|config| config.join("git/config")),
    ];
    own.into_iter().flatten().chain([system]).collect()
}

/// Returns the directories above the root up to its repository, the highest first; none outside of a repository, or if
/// the root is one.
fn directories_of_repository_above(root: &Path) -> Vec<&Path> {
    let mut above = Vec::new();
    for dir in root.ancestors() {
        if dir != root {
            above.push(dir);
        }
        if common_git_dir(dir).is_some() {
            above.reverse();
            return above;
        }
    }
    Vec::new()
}

/// Returns the git directory of a repository; that of the main one for a worktree. `None` if `dir` is no repository.
fn common_git_dir(dir: &Path) -> Option<PathBuf> {
    let git = dir.join(GIT_DIR);
    let kind = git.metadata().ok()?;
    if kind.is_dir() {
        return Some(git);
    }
    // The file of a worktree or a submodule: `gitdir: PATH`.
    let text = read_file(&git).ok()??;
    let text = String::from_utf8_lossy(&text);
    let git_dir = dir.join(text.strip_prefix("gitdir:")?.trim());
    let common = read_file(&git_dir.join("commondir")).ok().flatten();
    Some(match common {
        Some(common) => git_dir.join(String::from_utf8_lossy(&common).trim()),
        None => git_dir,
    })
}

/// Reads a file of patterns; a missing file has no patterns.
fn read_patterns(dir: &Path, path: &Path, warnings: &mut Vec<FileWarning>) -> Gitignore {
    let shown = path.to_string_lossy();
    let bytes = match read_file(path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Gitignore::empty(),
        Err(problem) => {
            warnings
                .push(FileWarning::new(&shown, format!("this ignore file is not read: {problem}")));
            return Gitignore::empty();
        }
    };
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    let lines =
        bytes.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line).into_owned());
    compile(dir, &shown, lines, warnings)
}

/// Compiles patterns that are relative to `dir`; `source` is named by the warnings.
fn compile(
    dir: &Path,
    source: &str,
    lines: impl Iterator<Item = String>,
    warnings: &mut Vec<FileWarning>,
) -> Gitignore {
    let mut builder = GitignoreBuilder::new(dir);
    let mut n_bad = 0;
    for (at, line) in lines.enumerate() {
        if let Err(error) = builder.add_line(None, &line) {
            n_bad += 1;
            if n_bad <= MAX_BAD_LINES {
                let problem = format!("line {} is not a pattern and is skipped: {error}", at + 1);
                warnings.push(FileWarning::new(source, problem));
            }
        }
    }
    if n_bad > MAX_BAD_LINES {
        let problem =
            format!("{} more lines are not patterns and are skipped", n_bad - MAX_BAD_LINES);
        warnings.push(FileWarning::new(source, problem));
    }
    builder.build().unwrap_or_else(|error| {
        warnings.push(FileWarning::new(source, format!("these patterns are not used: {error}")));
        Gitignore::empty()
    })
}

/// Reads a regular file; `None` if there is none, or if it is a directory.
///
/// **Errors**: in words.
fn read_file(path: &Path) -> Result<Option<Vec<u8>>, String> {
    use rustix::io::Errno;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes"));
    }
    let mut bytes = Vec::new();
    file.by_ref()
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

/// Ignore files outside of a root. They are not watched: a directory above a root can change all the time.
#[derive(Default)]
pub(crate) struct Sources(Vec<(PathBuf, Option<SourceState>)>);

/// The modification time in nanoseconds, the size and the inode of a file.
type SourceState = (i128, u64, u64);

impl Sources {
    fn add(&mut self, path: PathBuf) {
        let state = source_state(&path);
        self.0.push((path, state));
    }

    /// Returns whether a file was changed, created or removed since it was read. Blocks on the disk.
    pub(crate) fn changed(&self) -> bool {
        self.0.iter().any(|(path, state)| source_state(path) != *state)
    }
}

fn source_state(path: &Path) -> Option<SourceState> {
    let found = path.metadata().ok()?;
    // The times of a git directory change with each commit, which decides nothing here.
    if found.is_dir() {
        return Some((0, 0, found.ino()));
    }
    let nanos = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    Some((nanos, found.size(), found.ino()))
}
