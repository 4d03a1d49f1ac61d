//! Stages whose files are needless: they move from the project to the home, where their files are removed later.
//!
//! A call that puts back tens of thousands of files would wait for seconds until as many are removed. And ext4 without a
//! journal creates files slowly while it remembers many that were removed in the last minute, so that the next such call
//! took several times as long. So the files are removed in the pause: when no stage was discarded for a minute.
//!
//! **Invariants**: a stage is discarded only if each of its files is needless (`stage`). Nothing refers to one that is here,
//! so it can be removed at any moment and by any process.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use super::journal::STAGE_PREFIX;
use super::stage::is_own_name;
use crate::fsutil::FsError;
use crate::fsutil::beneath::Dir;

/// The fewest files of a stage that is discarded. Fewer are removed at once. Tests have few files and need both ways.
const MIN_FILES: usize = if cfg!(test) { 3 } else { 64 };
/// The most discarded stages: more of them would take too much of the disk, so the files of the next one are removed at once.
const MAX_STAGES: usize = 16;

/// No stage was discarded since the last removal.
const NONE: u8 = 0;
/// Stages were discarded, and [`DiscardedStages::remove_rested`] was called since then.
const RESTED: u8 = 1;
/// A stage was discarded since the last call of [`DiscardedStages::remove_rested`].
const RECENT: u8 = 2;

/// The discarded stages of a home.
pub(crate) struct DiscardedStages {
    dir: PathBuf,
    state: AtomicU8,
    /// Held while stages are removed: two threads would miss each other's files.
    removal: Mutex<()>,
}

impl DiscardedStages {
    /// Returns those in a directory, beside other files.
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self { dir, state: AtomicU8::new(NONE), removal: Mutex::new(()) }
    }

    /// Takes a stage of `n_files` needless files out of a project, and returns whether it did. Otherwise the caller removes the
    /// files: if they are few, or if the home is on another file system. The caller syncs the project.
    pub(super) fn take(&self, root: &Dir, name: &str, n_files: usize) -> bool {
        if n_files < MIN_FILES {
            return false;
        }
        let Ok(dir) = Dir::open(&self.dir) else { return false };
        if stage_names(&dir).map_or(MAX_STAGES, |names| names.len()) >= MAX_STAGES {
            return false;
        }
        let is_moved = root.move_out(name, &dir, name).is_ok();
        if is_moved {
            self.state.store(RECENT, Ordering::Relaxed);
        }
        is_moved
    }

    /// Removes the stages if none was discarded since the call before. Called once a minute. Blocks on the disk.
    pub(crate) fn remove_rested(&self) {
        match self.state.load(Ordering::Relaxed) {
            RECENT => self.state.store(RESTED, Ordering::Relaxed),
            RESTED => self.remove_all(),
            _ => {}
        }
    }

    /// Removes all stages. What cannot be removed stays until the next start. Blocks on the disk.
    pub(crate) fn remove_all(&self) {
        let _one_at_a_time = self.removal.lock();
        self.state.store(NONE, Ordering::Relaxed);
        if let Err(error) = self.try_remove_all() {
            let error = FsError::new("remove old stages in", &self.dir, error);
            tracing::warn!("{}", crate::error_chain::with_sources(&error));
        }
    }

    fn try_remove_all(&self) -> io::Result<()> {
        let dir = match Dir::open(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        for name in stage_names(&dir)? {
            let stage = dir.open_beneath(&name)?;
            let mut names = stage.names()?;
            // Nobody but the owner of a file that came here by chance may remove it.
            names.retain(|name| is_own_name(name));
            stage.remove_all(&names)?;
            let _is_gone = dir.remove_dir(&name)?;
        }
        Ok(())
    }
}

fn stage_names(dir: &Dir) -> io::Result<Vec<String>> {
    let mut names = dir.names()?;
    names.retain(|name| name.starts_with(STAGE_PREFIX));
    Ok(names)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests make stages, and files of somebody else")]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A project with a stage of three files, and a home.
    fn scene(home: &Path, project: &Path, stage: &str) -> Dir {
        fs::create_dir_all(home).expect("creates");
        fs::create_dir_all(project.join(stage)).expect("creates");
        for name in ["0", "1.out", "2", "ready"] {
            fs::write(project.join(stage).join(name), name).expect("writes");
        }
        Dir::open(project).expect("opens")
    }

    #[test]
    fn stage_with_many_files_is_removed_when_none_came_for_a_minute() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (home, project) = (scratch.path().join("home"), scratch.path().join("project"));
        let stages = DiscardedStages::new(home.clone());
        stages.remove_all();
        let [few, first, second] = ["few", "1", "2"].map(|name| format!("{STAGE_PREFIX}{name}"));
        assert!(!stages.take(&scene(&home, &project, &few), &few, MIN_FILES - 1));
        assert!(stages.take(&scene(&home, &project, &first), &first, MIN_FILES));
        assert!(!project.join(&first).exists() && home.join(&first).exists());
        stages.remove_rested();
        assert!(stages.take(&scene(&home, &project, &second), &second, MIN_FILES));
        stages.remove_rested();
        assert!(home.join(&first).exists(), "another one came");
        stages.remove_rested();
        assert!(!home.join(&first).exists() && !home.join(&second).exists());
    }

    #[test]
    fn files_of_others_beside_and_in_a_discarded_stage_stay() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (home, project) = (scratch.path().join("home"), scratch.path().join("project"));
        let name = format!("{STAGE_PREFIX}1");
        let root = scene(&home, &project, &name);
        fs::write(project.join(&name).join("1.txt"), "note").expect("writes");
        fs::write(home.join("session.json"), "{}").expect("writes");
        let stages = DiscardedStages::new(home.clone());
        assert!(stages.take(&root, &name, MIN_FILES));
        stages.remove_all();
        let left: Vec<_> = fs::read_dir(home.join(&name)).expect("lists").collect();
        assert_eq!(left.len(), 1);
        assert!(home.join(&name).join("1.txt").exists() && home.join("session.json").exists());
    }

    #[test]
    fn stages_are_not_collected_without_end() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (home, project) = (scratch.path().join("home"), scratch.path().join("project"));
        let stages = DiscardedStages::new(home.clone());
        let taken = (0..=MAX_STAGES).map(|number| {
            let name = format!("{STAGE_PREFIX}{number}");
            stages.take(&scene(&home, &project, &name), &name, MIN_FILES)
        });
        assert_eq!(taken.filter(|is_taken| *is_taken).count(), MAX_STAGES);
        assert!(project.join(format!("{STAGE_PREFIX}{MAX_STAGES}")).exists());
    }
}
