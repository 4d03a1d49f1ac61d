//! Stages whose files are needless: they move from the project to the home, where their files are removed later.
//!
//! A call that puts back tens of thousands of files would wait for seconds until as many are removed. And ext4 without a
//! journal creates files slowly while it remembers many that were removed in the last minute, so that the next such call
//! took several times as long. So the files are removed in the pause: when no stage was discarded for a minute.
//!
//! **Invariants**: a stage is discarded only if each of its files is needless (`stage`). Nothing refers to a discarded stage,
//! so it can be removed at any moment and by any process. Its name ends with the session that wrote its files, so that their
//! contents are removed with the session.

use std::io;
use std::path::PathBuf;

use ollm_protocol::SessionId;
use parking_lot::Mutex;

use super::journal::STAGE_PREFIX;
use super::stage::{READY, StageSize, is_own_name};
use crate::error_chain::with_sources;
use crate::fsutil::FsError;
use crate::fsutil::beneath::Dir;

/// The fewest files of a stage that is discarded. Fewer are removed at once. Tests have few files and need both ways.
const MIN_FILES: usize = if cfg!(test) { 3 } else { 64 };
/// The most discarded stages, and the most bytes of those since the last removal: more of them would take too much of the
/// disk, so the files of the next stage are removed at once.
pub(super) const MAX_STAGES: usize = 16;
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// The time since a stage was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// No stage was discarded since the last removal.
    Removed,
    /// No stage was discarded since the last call of [`DiscardedStages::remove_rested`], or since the start.
    Rested,
    /// A stage was discarded since then.
    Recent,
}

/// The stages since the last removal.
struct Recent {
    rest: Rest,
    n_bytes: u64,
}

/// The discarded stages of a home.
pub(crate) struct DiscardedStages {
    dir: PathBuf,
    /// Held while a stage moves or the stages are listed.
    recent: Mutex<Recent>,
    /// Held while a stage is removed: two threads would miss each other's files.
    removal: Mutex<()>,
}

impl DiscardedStages {
    /// Returns the stages in a directory, which has other files too. Stages of an earlier process have rested.
    pub(super) const fn new(dir: PathBuf) -> Self {
        let recent = Recent { rest: Rest::Rested, n_bytes: 0 };
        Self { dir, recent: Mutex::new(recent), removal: Mutex::new(()) }
    }

    /// Takes a stage of a session out of a project, and returns whether it did. Otherwise the caller removes the files: if
    /// they are few, if there is no room, or if the home is on another file system. The caller syncs the project.
    pub(super) fn take(
        &self,
        root: &Dir,
        name: &str,
        stage: &Dir,
        session: SessionId,
        size: StageSize,
    ) -> bool {
        if size.n_files < MIN_FILES {
            return false;
        }
        let Ok(dir) = Dir::open(&self.dir) else { return false };
        let mut recent = self.recent.lock();
        let n_bytes = recent.n_bytes.saturating_add(size.n_bytes);
        let n_stages = stage_names(&dir).map_or(MAX_STAGES, |names| names.len());
        if n_bytes > MAX_BYTES || n_stages >= MAX_STAGES {
            return false;
        }
        let to = format!("{name}.{session}");
        if root.move_out(name, &dir, &to).is_err() {
            return false;
        }
        // Somebody may have put something else in its place.
        let is_stage = dir.open_beneath(&to).and_then(|moved| moved.is_same(stage));
        if !is_stage.unwrap_or(false) {
            if let Err(error) = dir.move_out(&to, root, name) {
                let error = FsError::new("move back", &self.dir.join(&to), error);
                tracing::warn!("{}", with_sources(&error));
            }
            return false;
        }
        *recent = Recent { rest: Rest::Recent, n_bytes };
        true
    }

    /// Removes the stages if none was discarded since the call before. Called once a minute. Blocks on the disk.
    pub(crate) fn remove_rested(&self) {
        let mut recent = self.recent.lock();
        let rest = recent.rest;
        if rest == Rest::Recent {
            recent.rest = Rest::Rested;
        }
        drop(recent);
        if rest == Rest::Rested {
            self.remove_all();
        }
    }

    /// Removes all stages. What cannot be removed stays until the next removal. Blocks on the disk.
    pub(crate) fn remove_all(&self) {
        if let Err(error) = self.remove(|_| true) {
            tracing::warn!("old stages are removed later: {}", with_sources(&error));
        }
    }

    /// Removes the stages of a session that is deleted. Blocks on the disk.
    pub(crate) fn forget(&self, id: SessionId) -> Result<(), FsError> {
        let end = format!(".{id}");
        self.remove(|name| name.ends_with(&end))
    }

    /// Removes some stages, and returns the last error.
    fn remove(&self, is_removed: impl Fn(&str) -> bool) -> Result<(), FsError> {
        let fail = |source| FsError::new("list", &self.dir, source);
        let dir = match Dir::open(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            dir => dir.map_err(fail)?,
        };
        let mut recent = self.recent.lock();
        let names = stage_names(&dir).map_err(fail)?;
        if names.iter().all(|name| is_removed(name)) {
            *recent = Recent { rest: Rest::Removed, n_bytes: 0 };
        }
        drop(recent);
        let mut removed = Ok(());
        for name in names.iter().filter(|name| is_removed(name)) {
            let _one_at_a_time = self.removal.lock();
            if let Err(error) = remove_stage(&dir, name) {
                let error = FsError::new("remove", &self.dir.join(name), error);
                tracing::warn!("{}", with_sources(&error));
                removed = Err(error);
            }
        }
        removed
    }
}

/// Removes a stage, if it is still there. Files of others stay, and the stage with them.
fn remove_stage(dir: &Dir, name: &str) -> io::Result<()> {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let stage = match dir.open_beneath(name) {
        Err(error) if is_missing(&error) => return Ok(()),
        stage => stage?,
    };
    // A power cut may bring the stage back to the project. Without `ready`, a start only removes it.
    match stage.remove(READY) {
        Err(error) if is_missing(&error) => {}
        removed => {
            removed?;
            stage.sync()?;
        }
    }
    let mut names = stage.names()?;
    names.retain(|name| is_own_name(name));
    stage.remove_all(&names)?;
    if !dir.remove_dir(name)? {
        tracing::warn!("files of others stay in {}", stage.path().display());
    }
    Ok(())
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

    use uuid::Uuid;

    use super::*;
    use crate::fsutil::trace::{DiskStep, DiskTrace};

    /// A home, and a project with stages.
    struct Scene {
        scratch: tempfile::TempDir,
        home: PathBuf,
        project: PathBuf,
        stages: DiscardedStages,
    }

    fn session(number: u128) -> SessionId {
        SessionId::from_uuid(Uuid::from_u128(number))
    }

    fn named(number: usize) -> String {
        format!("{STAGE_PREFIX}{number}")
    }

    impl Scene {
        fn new() -> Self {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let (home, project) = (scratch.path().join("home"), scratch.path().join("project"));
            fs::create_dir_all(&home).expect("creates");
            fs::create_dir_all(&project).expect("creates");
            let stages = DiscardedStages::new(home.clone());
            Self { scratch, home, project, stages }
        }

        /// Creates a stage of three files.
        fn create(&self, number: usize) {
            let stage = self.project.join(named(number));
            fs::create_dir_all(&stage).expect("creates");
            for name in ["0", "1.out", "2", "ready"] {
                fs::write(stage.join(name), name).expect("writes");
            }
        }

        /// Takes a stage with as many files and bytes.
        fn take_sized(&self, number: usize, n_files: usize, n_bytes: u64) -> bool {
            self.create(number);
            let root = Dir::open(&self.project).expect("opens");
            let name = named(number);
            let stage = root.open_beneath(&name).expect("opens");
            let size = StageSize { n_files, n_bytes };
            self.stages.take(&root, &name, &stage, session(number as u128), size)
        }

        fn take(&self, number: usize) -> bool {
            self.take_sized(number, MIN_FILES, 3)
        }

        /// Returns the place of a discarded stage.
        fn place(&self, number: usize) -> PathBuf {
            self.home.join(format!("{}.{}", named(number), session(number as u128)))
        }
    }

    #[test]
    fn stage_with_many_files_is_removed_when_none_came_for_a_minute() {
        let scene = Scene::new();
        scene.stages.remove_all();
        assert!(!scene.take_sized(0, MIN_FILES - 1, 3));
        assert!(scene.take(1));
        assert!(!scene.project.join(named(1)).exists() && scene.place(1).exists());
        scene.stages.remove_rested();
        assert!(scene.take(2));
        scene.stages.remove_rested();
        assert!(scene.place(1).exists(), "another one came");
        scene.stages.remove_rested();
        assert!(!scene.place(1).exists() && !scene.place(2).exists());
    }

    #[test]
    fn stages_of_an_earlier_process_are_removed_in_the_first_pause() {
        let scene = Scene::new();
        assert!(scene.take(1));
        DiscardedStages::new(scene.home.clone()).remove_rested();
        assert!(!scene.place(1).exists());
    }

    #[test]
    fn mark_of_a_stage_is_removed_durably_before_its_files() {
        let scene = Scene::new();
        assert!(scene.take(1));
        let trace = DiskTrace::new(scene.scratch.path());
        scene.stages.remove_all();
        let stage = scene.place(1);
        let stage = stage.strip_prefix(scene.scratch.path()).expect("is in it");
        let first = [DiskStep::Remove(stage.join("ready")), DiskStep::SyncDir(stage.to_owned())];
        assert_eq!(trace.steps()[..2], first);
    }

    #[test]
    fn stages_of_a_deleted_session_are_removed_and_others_stay() {
        let scene = Scene::new();
        assert!(scene.take(1) && scene.take(2));
        scene.stages.forget(session(1)).expect("removes");
        assert!(!scene.place(1).exists() && scene.place(2).exists());
        // Something that is no stage cannot be removed.
        fs::write(scene.place(3), "x").expect("writes");
        scene.stages.forget(session(3)).expect_err("is a file");
        scene.stages.forget(session(2)).expect("removes");
    }

    #[test]
    fn files_of_others_beside_and_in_a_discarded_stage_stay_and_hold_up_no_other_one() {
        let scene = Scene::new();
        scene.create(1);
        fs::write(scene.project.join(named(1)).join("1.txt"), "note").expect("writes");
        fs::write(scene.home.join("session.json"), "{}").expect("writes");
        fs::write(scene.place(0), "no stage").expect("writes");
        assert!(scene.take(1) && scene.take(2) && scene.take(3));
        scene.stages.remove_all();
        let left: Vec<_> = fs::read_dir(scene.place(1)).expect("lists").collect();
        assert_eq!(left.len(), 1);
        assert!(scene.place(1).join("1.txt").exists() && scene.home.join("session.json").exists());
        assert!(scene.place(0).exists() && !scene.place(2).exists() && !scene.place(3).exists());
    }

    #[test]
    fn stages_are_not_collected_without_end() {
        let scene = Scene::new();
        let taken = (0..=MAX_STAGES).filter(|number| scene.take(*number)).count();
        assert_eq!(taken, MAX_STAGES);
        assert!(scene.project.join(named(MAX_STAGES)).exists());
        scene.stages.remove_all();
        assert!(scene.take_sized(1, MIN_FILES, MAX_BYTES - 1));
        assert!(!scene.take_sized(2, MIN_FILES, 2));
        scene.stages.remove_all();
        assert!(scene.take_sized(2, MIN_FILES, 2));
    }

    #[test]
    fn directory_in_place_of_a_stage_goes_back() {
        let scene = Scene::new();
        scene.create(1);
        let root = Dir::open(&scene.project).expect("opens");
        let stage = root.open_beneath(&named(1)).expect("opens");
        fs::rename(scene.project.join(named(1)), scene.scratch.path().join("away")).expect("moves");
        scene.create(1);
        let size = StageSize { n_files: MIN_FILES, n_bytes: 3 };
        assert!(!scene.stages.take(&root, &named(1), &stage, session(1), size));
        assert!(scene.project.join(named(1)).join("ready").exists());
        assert!(!scene.place(1).exists());
    }
}
