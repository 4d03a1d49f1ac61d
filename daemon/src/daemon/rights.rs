//! Rights of existing files: files that were copied or restored may be open to other users, and are made private.
//!
//! The walk follows no link and changes only what is open, so it costs one `lstat` a file: about 50 ms of a core for
//! 20,000 files. It runs behind the start.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error_chain::with_sources;
use crate::fsutil;
use crate::put_back::journal::STAGE_PREFIX;

/// The greatest depth of the walk. The daemon's own directories need one less; people may add a level.
const MAX_DEPTH: usize = 4;

/// The result of a walk.
#[derive(Default)]
struct Walk {
    n_mended: usize,
    /// The number of files of other users, and the first one.
    foreign: Option<(usize, PathBuf)>,
    failed: Option<String>,
}

/// Removes the rights of group and others on everything in some directories; returns warnings for a person.
pub(super) fn mend(dirs: &[PathBuf]) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let mut warnings = Vec::new();
    for dir in dirs {
        let mut walk = Walk::default();
        walk.visit(dir, user, 0);
        if walk.n_mended > 0 {
            tracing::info!(dir = %dir.display(), files = walk.n_mended, "made files private");
        }
        if let Some((count, first)) = walk.foreign {
            let (first, dir) = (first.display(), dir.display());
            warnings.push(format!(
                "{count} files belong to other users, for example {first}: sudo chown -R {user} {dir}"
            ));
        }
        warnings.extend(walk.failed);
    }
    warnings
}

impl Walk {
    fn visit(&mut self, path: &Path, user: u32, depth: usize) {
        // A file that disappears meanwhile needs no rights.
        let Ok(found) = fs::symlink_metadata(path) else { return };
        if found.is_symlink() {
            return;
        }
        if found.uid() != user {
            let foreign = self.foreign.get_or_insert_with(|| (0, path.to_owned()));
            foreign.0 += 1;
        } else if found.mode() & 0o077 != 0 {
            // Hooks stay executable.
            let mode = if found.is_dir() { 0o700 } else { 0o600 | found.mode() & 0o100 };
            match fsutil::make_private(path, mode) {
                Ok(()) => self.n_mended += 1,
                Err(error) => {
                    self.failed.get_or_insert_with(|| with_sources(&error));
                }
            }
        }
        // A file of a discarded stage can have another name, in a project, whose owner chose its rights.
        let name = path.file_name().unwrap_or_default();
        let is_stage = name.as_encoded_bytes().starts_with(STAGE_PREFIX.as_bytes());
        if found.is_dir() && depth < MAX_DEPTH && !is_stage {
            for file in fs::read_dir(path).into_iter().flatten().flatten() {
                self.visit(&file.path(), user, depth + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn open_files_are_made_private_and_links_are_not_followed() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let (home, outside) = (scratch.path().join("home"), scratch.path().join("outside"));
        let blobs = home.join("sessions/a.blobs");
        fsutil::create_private_dir(&blobs).expect("creates");
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("opens");
        };
        for path in [blobs.join("hash"), home.join("global.json"), outside.clone()] {
            drop(fsutil::open_private(&path).expect("creates"));
            open(&path, 0o644);
        }
        open(&blobs, 0o755);
        symlink(&outside, home.join("link")).expect("links");
        let stage = home.join(format!("put-backs/{STAGE_PREFIX}1"));
        fsutil::create_private_dir(&stage).expect("creates");
        fs::hard_link(&outside, stage.join("0")).expect("links");
        open(&stage, 0o755);
        assert!(mend(std::slice::from_ref(&home)).is_empty());
        let mode = |path: &Path| fs::metadata(path).expect("exists").permissions().mode() & 0o777;
        assert_eq!((mode(&blobs), mode(&blobs.join("hash"))), (0o700, 0o600));
        assert_eq!((mode(&home.join("global.json")), mode(&outside)), (0o600, 0o644));
        assert_eq!(mode(&stage), 0o700);
    }
}
