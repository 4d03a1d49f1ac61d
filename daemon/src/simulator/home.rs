//! A home in a scratch directory, the daemon's parts that are open in it, and copies of its catalog.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use ollm_protocol::Timestamp;
use ollm_protocol::address::DaemonFile;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::crash_disk::FileTree;
use super::dice::Dice;
use super::model::Position;
use crate::app::backups;
use crate::app::core::Core;
use crate::app::open::open_core;
use crate::app::sessions::delete;
use crate::app::sessions::retention::RetentionTask;
use crate::app::testing;
use crate::catalog;
use crate::clock::Clock;
use crate::daemon::home::Home;
use crate::flags::Flags;
use crate::fsutil::trace::{DiskTrace, Untraced};
use crate::server::readiness::Announcement;
use crate::shutdown::Tasks;

/// A time in which every wait for the catalog ends.
const DEADLINE: Duration = Duration::from_secs(20);
/// The time between two looks at a catalog that is behind.
const PAUSE: Duration = Duration::from_millis(5);
const CATALOG: &str = "catalog.sqlite3";

/// A directory in memory, if the system has one, because thousands of homes are written.
pub(super) fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("ollm-").tempdir_in(dir).expect("a scratch directory")
}

/// Records the changes below a directory, except for those of the catalog's files. These are copied instead: the
/// catalog's thread writes them whenever it is free, so that a trace with them would depend on time.
pub(super) fn trace_below(root: &Path) -> Arc<DiskTrace> {
    let catalog = Untraced { thread: catalog::THREAD_NAME, dir: "home" };
    DiskTrace::without(root, Some(catalog))
}

/// The parts of a daemon that are open in a home. Dropping them closes them, which writes nothing but the catalog.
pub(super) struct OpenHome {
    pub(super) core: Arc<Core>,
    pub(super) runtime: Runtime,
    /// The changes below the scratch directory since the start.
    pub(super) trace: Arc<DiskTrace>,
    pub(super) dir: PathBuf,
    /// Whether the start found a catalog that a crash alone does not leave.
    pub(super) has_damaged_catalog: bool,
    _home: Home,
}

impl OpenHome {
    /// Starts in the home below `root`, as the daemon does, up to the socket.
    pub(super) fn start(root: &Path, trace: Arc<DiskTrace>) -> Result<Self, String> {
        let dir = root.join("home");
        let flags = Flags::parse_from([Path::new("ollmd"), Path::new("--home"), &dir]);
        let home = Home::prepare(&flags).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let entered = runtime.enter();
        let config = testing::config(
            &home.dir,
            &[("sessions.maxSessions", "3"), ("snapshots.maxCount", "1")],
        );
        let (clock, retention) = (Arc::new(Clock::system()), Arc::new(RetentionTask::default()));
        let sessions_dir = home.sessions_dir.clone();
        let core = open_core(&home.dir, sessions_dir, config, clock, retention, &Tasks::new());
        let core = core.map_err(|error| format!("the home does not open: {error}"))?;
        let file = DaemonFile {
            socket: dir.join("run/ollmd.sock"),
            pid: 1,
            version: "1".to_owned(),
            protocol: 1,
            started_at: Timestamp::from_unix_ms(0),
            home_id: None,
        };
        // As in a daemon, which starts without the file.
        let _announcement = Announcement::publish(&dir, &file).ok();
        backups::recover(&core);
        delete::recover(&core);
        drop(entered);
        Ok(Self { core, runtime, trace, dir, has_damaged_catalog: false, _home: home })
    }

    /// Waits until no thread reads or writes a session, so that what is closed does not depend on the threads' speed.
    pub(super) fn wait_for_quiet_sessions(&self) -> Result<(), String> {
        let deadline = Instant::now() + DEADLINE;
        if !self.core.catalog.wait_caught_up(deadline) {
            return Err("law 3: the catalog never catches up".to_owned());
        }
        while !self.core.sessions.are_unused() {
            if Instant::now() > deadline {
                return Err("law 41: a thread uses a session for ever".to_owned());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits until the catalog knows everything and has removed what was deleted.
    pub(super) fn wait_for_catalog(&self) -> Result<(), String> {
        let deadline = Instant::now() + DEADLINE;
        // A log that could not be read is behind until the next attempt, for which nobody else waits.
        while !self.core.catalog.wait_caught_up(deadline) || self.core.catalog.status().behind > 0 {
            if Instant::now() > deadline {
                let status = self.core.catalog.status();
                return Err(format!("law 3: the catalog never catches up: {status:?}"));
            }
            std::thread::sleep(PAUSE);
        }
        if !self.core.catalog.wait_clean(deadline) {
            return Err("law 45: the catalog never removes what was deleted".to_owned());
        }
        Ok(())
    }
}

impl Drop for OpenHome {
    fn drop(&mut self) {
        self.core.catalog.shutdown();
    }
}

/// Writes the files of a crash, in which no other files are.
#[expect(clippy::disallowed_methods, reason = "the files are the state to be tested")]
pub(super) fn write_tree(root: &Path, tree: &FileTree) {
    for (path, content) in tree {
        let path = root.join(path);
        match content {
            None => std::fs::create_dir(path),
            Some(bytes) => std::fs::write(path, bytes),
        }
        .expect("writes");
    }
}

/// The files of a catalog at one time.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct CatalogFiles {
    database: Vec<u8>,
    journal: Vec<u8>,
}

/// The copies of a catalog, each with the number of steps that had been made.
pub(super) type CatalogCopies = Vec<(Position, CatalogFiles)>;

/// The files of a catalog as a start finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatalogState {
    Missing,
    Whole,
    JournalMissing,
    JournalCut,
    JournalFlipped,
    DatabaseCut,
    NoDatabase,
}

impl CatalogState {
    /// Returns whether no crash leaves such a catalog, only a failing disk.
    pub(super) const fn is_damage(self) -> bool {
        matches!(self, Self::JournalMissing | Self::DatabaseCut | Self::NoDatabase)
    }

    /// Whole three times, so that most starts have a catalog that is only old.
    const ALL: [Self; 9] = [
        Self::Missing,
        Self::Whole,
        Self::Whole,
        Self::Whole,
        Self::JournalMissing,
        Self::JournalCut,
        Self::JournalFlipped,
        Self::DatabaseCut,
        Self::NoDatabase,
    ];
}

impl CatalogFiles {
    /// Copies the files at a moment at which nothing changes them, as one crash would leave them.
    pub(super) fn copy_of(home: &Path) -> Self {
        let copy = || {
            let read = |suffix| std::fs::read(home.join(format!("{CATALOG}{suffix}")));
            let database = read("").unwrap_or_default();
            Self { database, journal: read("-wal").unwrap_or_default() }
        };
        let mut before = copy();
        loop {
            let after = copy();
            if after == before {
                return after;
            }
            before = after;
        }
    }

    /// Puts the files into a home in a chosen state, and returns it.
    #[expect(clippy::disallowed_methods, reason = "the files are the state to be tested")]
    pub(super) fn put_into(&self, home: &Path, dice: &mut Dice) -> CatalogState {
        let Self { mut database, mut journal } = self.clone();
        let state = if database.is_empty() || !home.is_dir() {
            CatalogState::Missing
        } else {
            dice.pick(&CatalogState::ALL)
        };
        match state {
            CatalogState::Missing => return state,
            CatalogState::Whole => {}
            CatalogState::JournalMissing => journal.clear(),
            CatalogState::JournalCut => journal.truncate(dice.below(journal.len())),
            CatalogState::JournalFlipped => flip(&mut journal, dice),
            CatalogState::DatabaseCut => database.truncate(dice.below(database.len())),
            CatalogState::NoDatabase => {
                database = vec![0; dice.below(10_000)];
                journal.clear();
            }
        }
        std::fs::write(home.join(CATALOG), database).expect("writes");
        if !journal.is_empty() {
            std::fs::write(home.join(format!("{CATALOG}-wal")), journal).expect("writes");
        }
        state
    }
}

fn flip(bytes: &mut [u8], dice: &mut Dice) {
    if !bytes.is_empty() {
        let at = dice.below(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
    }
}
