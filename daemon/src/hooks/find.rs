//! The hooks of the home and of a project: which files are hooks, and which of them may run.
//!
//! A hook of an occasion is the file `OCCASION`, and every file in `OCCASION.d` whose name neither begins with a dot nor ends
//! with a tilde.

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ollm_protocol::content::{HookOccasion, HookOrigin, HookState};

use super::trust::TrustedProject;
use super::{FoundHook, HookError, Hooks, project_directory};
use crate::error_chain::with_sources;
use crate::fsutil;

/// The largest hook in bytes: a script or a small program. Larger ones would be read at each occasion.
const MAX_HOOK_BYTES: u64 = 1 << 20;
/// The most hooks of an occasion in a place; each is a process.
const MAX_HOOKS: usize = 16;

/// The hooks of the home and of a project.
#[derive(Debug, Default)]
pub(crate) struct FoundHooks {
    /// Those of the home first, in the order of the occasions and of their names.
    pub(crate) hooks: Vec<FoundHook>,
    /// Problems that concern no single hook.
    pub(crate) warnings: Vec<String>,
}

/// A hook's file that may run, and its content.
struct UsableFile {
    content: Vec<u8>,
    digest: String,
}

impl Hooks {
    /// Finds the hooks of some occasions. Blocks on the disk.
    pub(crate) fn find(&self, project: Option<&Path>, occasions: &[HookOccasion]) -> FoundHooks {
        let mut found = FoundHooks::default();
        let home = self.directory();
        for occasion in occasions {
            found.add_place(HookOrigin::Home, &home, *occasion, FoundHook::judge_own);
        }
        let Some(project) = project else { return found };
        let directory = project_directory(project);
        // The project of somebody who works in the home directory has the hooks of the home.
        if is_same(&directory, &home) || fs::symlink_metadata(&directory).is_err() {
            return found;
        }
        let trusted = self.trust.read(project).unwrap_or_else(|error| {
            found
                .warnings
                .push(format!("no hook of the project is trusted: {}", with_sources(&error)));
            TrustedProject::default()
        });
        for occasion in occasions {
            let judge = |hook: &mut FoundHook| self.judge_foreign(hook, &trusted);
            found.add_place(HookOrigin::Project, &directory, *occasion, judge);
        }
        found
    }

    /// Returns the contents of a hook as texts: that of its digest, and the one that was trusted if it differs. Blocks on the
    /// disk.
    pub(crate) fn texts(&self, hook: &FoundHook) -> (Option<String>, Option<String>) {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        let now = read_hook(&hook.path, false).ok();
        // A person must not see another content than the one that the digest names.
        let now = now.filter(|file| Some(&file.digest) == hook.digest.as_ref());
        let now = now.and_then(|file| text(file.content));
        let trusted = hook.trusted_digest.as_deref();
        (now, trusted.and_then(|digest| text(self.trust.content(digest)?)))
    }

    /// Lets hooks of a project run, each with a content, and no others. Blocks on the disk.
    ///
    /// **Errors**: `Changed` if a hook has another content.
    pub(crate) fn trust(
        &self,
        project: &Path,
        wanted: &[(String, String)],
    ) -> Result<(), HookError> {
        let mut contents = Vec::new();
        for (name, digest) in wanted {
            let changed = || HookError::Changed { project: project.to_owned(), name: name.clone() };
            if !is_hook_name(name) {
                return Err(changed());
            }
            let file = read_hook(&project_directory(project).join(name), false);
            let file = file.ok().filter(|file| file.digest == *digest).ok_or_else(changed)?;
            contents.push((name.clone(), file.digest, file.content));
        }
        Ok(self.trust.set(project, contents)?)
    }

    /// Lets no hook of a project run any more; returns whether one could. Blocks on the disk.
    pub(crate) fn untrust(&self, project: &Path) -> Result<bool, HookError> {
        Ok(self.trust.remove(project)?)
    }

    /// Returns why the directory of the home's hooks, if it exists, is not used.
    pub(crate) fn problem_of_directory(&self) -> Option<(PathBuf, String)> {
        let dir = self.directory();
        let occasions = HookOccasion::ALL.map(|one| dir.join(format!("{}.d", one.as_str())));
        std::iter::once(dir).chain(occasions).find_map(|dir| {
            dir.symlink_metadata().ok()?;
            check_directory(&dir).err().map(|problem| (dir, problem))
        })
    }

    /// Decides about a hook of a project, which may run with the content that was trusted.
    fn judge_foreign(&self, hook: &mut FoundHook, trusted: &TrustedProject) {
        let file = match read_hook(&hook.path, false) {
            Ok(file) => file,
            Err(problem) => return hook.refuse(HookState::Unusable, problem),
        };
        let known = trusted.digest_of(&hook.name);
        let copy = known.and_then(|known| self.trust.copy_of(known));
        hook.digest = Some(file.digest.clone());
        match (known, copy) {
            (Some(known), Some(copy)) if known == file.digest => {
                hook.state = HookState::Ready;
                hook.program = Some(copy);
            }
            (Some(known), Some(_)) => {
                hook.trusted_digest = Some(known.to_owned());
                hook.refuse(HookState::Changed, "it changed since it was trusted".to_owned());
            }
            _ => hook.refuse(HookState::Untrusted, "it is not trusted".to_owned()),
        }
    }
}

impl FoundHooks {
    /// Adds the hooks of an occasion in a directory, which need not exist.
    fn add_place(
        &mut self,
        origin: HookOrigin,
        directory: &Path,
        occasion: HookOccasion,
        judge: impl Fn(&mut FoundHook),
    ) {
        for name in self.names(directory, occasion) {
            let path = directory.join(&name);
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            let mut hook = FoundHook {
                name,
                occasion,
                origin,
                size_bytes: metadata.len(),
                digest: None,
                state: HookState::Ready,
                problem: None,
                program: None,
                trusted_digest: None,
                path,
            };
            judge(&mut hook);
            self.hooks.push(hook);
        }
    }

    /// Returns the names of the hooks of an occasion in a directory.
    fn names(&mut self, directory: &Path, occasion: HookOccasion) -> Vec<String> {
        let mut names = vec![occasion.as_str().to_owned()];
        let several = format!("{}.d", occasion.as_str());
        match fsutil::file_names_if_any(&directory.join(&several)) {
            Ok(mut files) => {
                files.retain(|name| is_plain_name(name));
                files.sort_unstable();
                names.extend(files.into_iter().map(|name| format!("{several}/{name}")));
            }
            Err(error) => self.warnings.push(with_sources(&error)),
        }
        if names.len() > MAX_HOOKS {
            let (n, dir) = (names.len() - MAX_HOOKS, directory.display());
            self.warnings.push(format!(
                "{n} hooks of {dir}/{several} are left out; the limit is {MAX_HOOKS}"
            ));
            names.truncate(MAX_HOOKS);
        }
        names
    }
}

impl FoundHook {
    /// Decides about a hook of the home, which runs if only its owner could change it.
    fn judge_own(&mut self) {
        let read = check_directories(&self.path).and_then(|()| read_hook(&self.path, true));
        match read {
            Ok(file) => {
                self.digest = Some(file.digest);
                self.program = Some(self.path.clone());
            }
            Err(problem) => self.refuse(HookState::Unusable, problem),
        }
    }

    fn refuse(&mut self, state: HookState, problem: String) {
        (self.state, self.problem, self.program) = (state, Some(problem), None);
    }
}

/// Returns whether a name of a file in `OCCASION.d` is that of a hook; editors leave others.
fn is_plain_name(name: &str) -> bool {
    !name.starts_with('.') && !name.ends_with('~')
}

/// Returns whether a name is that of a hook.
fn is_hook_name(name: &str) -> bool {
    HookOccasion::ALL.iter().any(|occasion| {
        let rest = name.strip_prefix(occasion.as_str());
        let file = rest.and_then(|rest| rest.strip_prefix(".d/"));
        rest == Some("") || file.is_some_and(|file| is_plain_name(file) && !file.contains('/'))
    })
}

fn is_same(left: &Path, right: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    id(left).is_some_and(|left| id(right) == Some(left))
}

/// Returns why another user could replace a hook of the home: the rights of its directories.
fn check_directories(path: &Path) -> Result<(), String> {
    let directories: Vec<&Path> = match path.parent() {
        Some(dir) if dir.extension().is_some_and(|end| end == "d") => {
            [dir.parent(), Some(dir)].into_iter().flatten().collect()
        }
        dir => dir.into_iter().collect(),
    };
    directories.into_iter().try_for_each(check_directory)
}

/// Returns why other users could change what is in a directory.
pub(super) fn check_directory(dir: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(dir).map_err(|error| error.to_string())?;
    if found.is_symlink() {
        return Err(format!("{} is a symbolic link", dir.display()));
    }
    check_owner(&found).map_err(|problem| format!("{} {problem}", dir.display()))
}

/// Returns why other users could change a file or a directory, worded to follow its path.
fn check_owner(found: &Metadata) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        return Err(format!("belongs to user {}, and ollmd runs as user {user}", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return Err("can be written by other users: remove that right with `chmod go-w`".to_owned());
    }
    Ok(())
}

/// Reads a hook. `is_own`: whether the file itself is executed, so that nobody else may be able to change it.
fn read_hook(path: &Path, is_own: bool) -> Result<UsableFile, String> {
    let read = || -> io::Result<_> {
        let file = fsutil::open_regular(path)?;
        let metadata = file.metadata()?;
        let mut content = Vec::new();
        file.take(MAX_HOOK_BYTES + 1).read_to_end(&mut content)?;
        Ok((metadata, content))
    };
    let (metadata, content) = read().map_err(|error| error.to_string())?;
    if content.len() as u64 > MAX_HOOK_BYTES {
        return Err(format!("it has more than {MAX_HOOK_BYTES} bytes"));
    }
    if metadata.permissions().mode() & 0o100 == 0 {
        return Err("it is not executable: `chmod u+x` makes it so".to_owned());
    }
    if is_own {
        check_owner(&metadata).map_err(|problem| format!("it {problem}"))?;
    }
    let digest = blake3::hash(&content).to_hex().to_string();
    Ok(UsableFile { content, digest })
}
