//! `daemon.doctor`: what this process can find out about itself and its machine, and what a person should do about it.
//!
//! The system is asked with a deadline for each directory, because a dead disk must be a finding and no call without an
//! end. [`findings`] judges what was found and is pure.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::methods::daemon::{
    DaemonDoctorResult, DaemonStatusResult, DirectoryHealth, DoctorFinding, FindingLevel,
    InotifyUse, LogHealth,
};
use tokio::sync::Semaphore;

use super::start::LOG_FILE;
use crate::files::{FollowMode, RootReport};
use crate::fsutil::{self, DiskFile};
use crate::shell::quoted_path;

/// The longest wait for the answers about all directories.
pub(super) const DISK_LIMIT: Duration = Duration::from_secs(3);
/// The number of appends whose median is the time of a sync.
const SYNCS: usize = 5;
/// The bytes of an append: a record of a short message.
const SYNC_BYTES: usize = 1024;
/// The part of the log in which the newest error is searched, from the end.
const LOG_BYTES: u64 = 256 * 1024;

/// Free bytes below which a disk is full, and those below which it soon is: a long conversation takes some megabytes.
const FULL_BYTES: u64 = 64 << 20;
const LOW_BYTES: u64 = 1 << 30;
/// The time from which on each message waits noticeably for its sync, in microseconds.
const SLOW_SYNC_US: u64 = 100_000;
/// The part of the system's watches from which on the next project may find none left, in percent.
const MANY_WATCHES_PERCENT: u64 = 90;

/// The directories to examine, one examination at a time, because a dead disk keeps its thread for ever.
pub(super) struct ExaminedDirectories {
    private: Vec<PathBuf>,
    log: PathBuf,
    free: Arc<Semaphore>,
}

impl ExaminedDirectories {
    /// Takes the directories that only this user may read, and that of the log.
    pub(super) fn new(private: Vec<PathBuf>, log: PathBuf) -> Self {
        Self { private, log, free: Arc::new(Semaphore::new(1)) }
    }

    /// Examines the directories and the log within [`DISK_LIMIT`].
    async fn examine(self: &Arc<Self>) -> (Vec<DirectoryHealth>, Option<LogHealth>) {
        let this = Arc::clone(self);
        let examined = async {
            // The semaphore is never closed.
            let turn = Arc::clone(&this.free).acquire_owned().await.ok();
            let work = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let directories = this.private.iter().map(|dir| examine_directory(dir)).collect();
                (directories, newest_log(&this.log).ok().flatten())
            });
            work.await.ok()
        };
        let silent = |dir: &PathBuf| DirectoryHealth {
            path: dir.clone(),
            error: Some(format!("no answer within {} s", DISK_LIMIT.as_secs())),
            ..DirectoryHealth::default()
        };
        match tokio::time::timeout(DISK_LIMIT, examined).await {
            Ok(Some(found)) => found,
            _ => (self.private.iter().map(silent).collect(), None),
        }
    }
}

/// Examines the daemon and its machine, but not the work of retention; `roots` are the workspaces in memory, and
/// `start_server` is the command that starts the model server, `hooks` a directory of hooks that is not used, and why.
pub(super) async fn examine(
    directories: &Arc<ExaminedDirectories>,
    status: DaemonStatusResult,
    roots: &[RootReport],
    (start_server, hooks): (Option<&str>, Option<(PathBuf, String)>),
) -> DaemonDoctorResult {
    let (directories, log) = directories.examine().await;
    let watched = roots.iter().filter(|root| root.mode == FollowMode::Watch);
    let inotify = inotify_use(watched.map(|root| root.n_dirs as u64).sum());
    let mut result = DaemonDoctorResult {
        findings: Vec::new(),
        status,
        directories,
        log,
        inotify,
        retention: None,
    };
    result.findings = findings(&result, start_server);
    if let Some((dir, problem)) = hooks {
        let text = format!("no hook of the home runs: {problem}");
        let hint = format!("chmod go-w {}", quoted_path(&dir));
        result.findings.push(warning("hooks", text, Some(hint)));
    }
    result
}

fn examine_directory(dir: &Path) -> DirectoryHealth {
    let mut health = DirectoryHealth { path: dir.to_owned(), ..DirectoryHealth::default() };
    health.error = fill(&mut health).err().map(|error| error.to_string());
    health
}

/// Sets the fields of a directory up to the first error.
fn fill(health: &mut DirectoryHealth) -> io::Result<()> {
    let found = health.path.metadata()?;
    health.mode = Some(format!("{:03o}", found.mode() & 0o7777));
    health.owner = Some(found.uid());
    let disk = rustix::fs::statvfs(&health.path)?;
    health.free_bytes = Some(disk.f_bavail.saturating_mul(disk.f_frsize));
    health.sync_us = Some(measure_sync(&health.path)?);
    Ok(())
}

/// Returns the median time of an append and its sync in a directory, in microseconds.
fn measure_sync(dir: &Path) -> io::Result<u64> {
    let path = fsutil::temporary_beside(&dir.join("doctor"));
    let mut file = DiskFile::create(&path)?;
    let mut times = (0..SYNCS)
        .map(|_| {
            let begun = Instant::now();
            file.append(&[b'\n'; SYNC_BYTES])?;
            file.sync_data()?;
            Ok(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX))
        })
        .collect::<io::Result<Vec<u64>>>();
    drop(file);
    fsutil::remove_file(&path).map_err(|error| error.source)?;
    if let Ok(times) = &mut times {
        times.sort_unstable();
    }
    Ok(times?[SYNCS / 2])
}

/// Returns the newest file of the log, and the newest error near its end.
fn newest_log(dir: &Path) -> io::Result<Option<LogHealth>> {
    let mut newest = None;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        // The names end with the date, so their order is that of time.
        let is_log =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LOG_FILE));
        if is_log && newest.as_ref().is_none_or(|newest| *newest < path) {
            newest = Some(path);
        }
    }
    let Some(path) = newest else { return Ok(None) };
    let mut file = fsutil::open_regular(&path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LOG_BYTES)))?;
    let mut end = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut end)?;
    let text = String::from_utf8_lossy(&end);
    let last_error = text.lines().rfind(|line| line.contains(" ERROR ")).map(str::to_owned);
    Ok(Some(LogHealth { path, last_error }))
}

/// Returns the use of watches; `None` on systems without inotify.
fn inotify_use(watches: u64) -> Option<InotifyUse> {
    let limit = |name: &str| -> Option<u64> {
        let text = fsutil::read_regular(&Path::new("/proc/sys/fs/inotify").join(name)).ok()?;
        std::str::from_utf8(&text).ok()?.trim().parse().ok()
    };
    let (max_watches, max_instances) = (limit("max_user_watches")?, limit("max_user_instances")?);
    Some(InotifyUse { watches, max_watches, max_instances })
}

/// Returns what a person should know or do, problems first.
fn findings(found: &DaemonDoctorResult, start_server: Option<&str>) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for directory in &found.directories {
        judge_directory(directory, &mut findings);
    }
    judge_status(&found.status, start_server, &mut findings);
    if let Some(inotify) = found.inotify
        && inotify.watches * 100 >= inotify.max_watches * MANY_WATCHES_PERCENT
    {
        let InotifyUse { watches, max_watches, .. } = inotify;
        let text = format!("{watches} of the user's {max_watches} inotify watches are in use");
        let hint =
            format!("sudo sysctl fs.inotify.max_user_watches={}", max_watches.saturating_mul(2));
        findings.push(warning("files", text, Some(hint)));
    }
    findings.sort_by_key(|finding| finding.level);
    findings
}

fn judge_directory(directory: &DirectoryHealth, findings: &mut Vec<DoctorFinding>) {
    let path = directory.path.display();
    if let Some(error) = &directory.error {
        findings.push(problem("disk", format!("{path}: {error}"), Some(format!("ls -ld {path}"))));
    }
    let mib = |bytes: u64| bytes >> 20;
    match directory.free_bytes {
        Some(free) if free < FULL_BYTES => {
            let text = format!("the disk of {path} is full: {} MiB are free", mib(free));
            findings.push(problem("disk", text, Some(format!("df -h {path}"))));
        }
        Some(free) if free < LOW_BYTES => {
            let text = format!("the disk of {path} is almost full: {} MiB are free", mib(free));
            findings.push(warning("disk", text, Some(format!("df -h {path}"))));
        }
        _ => {}
    }
    if let Some(sync_us) = directory.sync_us.filter(|sync_us| *sync_us >= SLOW_SYNC_US) {
        let text = format!(
            "the disk of {path} is slow: a sync takes {} ms, and every message waits for one",
            sync_us / 1000
        );
        findings.push(warning("disk", text, None));
    }
    let is_open = |mode: &str| u32::from_str_radix(mode, 8).is_ok_and(|mode| mode & 0o077 != 0);
    if let Some(mode) = directory.mode.as_deref().filter(|mode| is_open(mode)) {
        let text = format!("other users may enter {path}, which has the mode {mode}");
        findings.push(warning("rights", text, Some(format!("chmod 700 {path}"))));
    }
}

fn judge_status(
    status: &DaemonStatusResult,
    start_server: Option<&str>,
    findings: &mut Vec<DoctorFinding>,
) {
    let catalog = &status.catalog;
    match catalog.state.as_str() {
        "unavailable" => {
            let text = "the catalog cannot be used, so lists and searches fail".to_owned();
            findings.push(problem("catalog", text, Some("ollmctl daemon restart".to_owned())));
        }
        "rebuilding" => {
            let text = "the catalog is being rebuilt, so lists and searches lack sessions";
            findings.push(warning("catalog", text.to_owned(), None));
        }
        _ => {}
    }
    if catalog.unusable > 0 {
        let text = format!(
            "{} sessions have a log that cannot be used; the daemon's log names them",
            catalog.unusable
        );
        findings.push(problem("sessions", text, None));
    }
    if let Some(failed) = &status.store.last_failed_write {
        let text = format!("a write failed at {}: {}", failed.at, failed.error);
        findings.push(warning("sessions", text, None));
    }
    let server = &status.model_server;
    if server.reachable == Some(false) {
        let silent = || format!("the model server at {} does not answer", server.host);
        let text = server.error.clone().unwrap_or_else(silent);
        findings.push(problem("modelServer", text, start_server.map(str::to_owned)));
    }
    for setting in &status.restart_needed {
        let text = format!("the setting {setting} changed and takes effect after a restart");
        let hint = Some("ollmctl daemon restart".to_owned());
        findings.push(warning("configuration", text, hint));
    }
    for text in &status.warnings {
        findings.push(warning("configuration", text.clone(), None));
    }
}

fn problem(topic: &str, text: String, hint: Option<String>) -> DoctorFinding {
    DoctorFinding { level: FindingLevel::Problem, topic: topic.to_owned(), text, hint }
}

fn warning(topic: &str, text: String, hint: Option<String>) -> DoctorFinding {
    DoctorFinding { level: FindingLevel::Warning, topic: topic.to_owned(), text, hint }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{CatalogStatus, FailedWrite, ModelServerStatus, StoreStatus};

    use super::*;

    fn status() -> DaemonStatusResult {
        DaemonStatusResult {
            version: "1".to_owned(),
            pid: 1,
            started_at: Timestamp::from_unix_ms(0),
            home: "/h".into(),
            socket: "/h/s".into(),
            protocol: 1,
            connections: 1,
            store: StoreStatus::default(),
            catalog: CatalogStatus { state: "ready".to_owned(), ..CatalogStatus::default() },
            model_server: ModelServerStatus { reachable: Some(true), ..Default::default() },
            subscriptions: 0,
            memory_bytes: None,
            restart_needed: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn healthy() -> DaemonDoctorResult {
        DaemonDoctorResult {
            findings: Vec::new(),
            status: status(),
            directories: vec![DirectoryHealth {
                path: "/h".into(),
                mode: Some("700".to_owned()),
                owner: Some(0),
                free_bytes: Some(LOW_BYTES),
                sync_us: Some(SLOW_SYNC_US - 1),
                error: None,
            }],
            log: None,
            inotify: Some(InotifyUse { watches: 89, max_watches: 100, max_instances: 1 }),
            retention: None,
        }
    }

    #[test]
    fn each_fault_is_one_finding_and_health_is_none() {
        assert_eq!(findings(&healthy(), None), []);
        let check = |break_it: fn(&mut DaemonDoctorResult), level, part: &str| {
            let mut broken = healthy();
            break_it(&mut broken);
            let found = findings(&broken, None);
            let [one] = &found[..] else { panic!("{part}: {found:?}") };
            assert_eq!(one.level, level, "{part}");
            assert!(one.text.contains(part), "{part}: {}", one.text);
        };
        use FindingLevel::{Problem, Warning};
        check(|all| all.directories[0].free_bytes = Some(LOW_BYTES - 1), Warning, "almost full");
        check(|all| all.directories[0].free_bytes = Some(0), Problem, "is full");
        check(|all| all.directories[0].sync_us = Some(250_000), Warning, "250 ms");
        check(|all| all.directories[0].mode = Some("755".to_owned()), Warning, "mode 755");
        check(|all| all.directories[0].error = Some("gone".to_owned()), Problem, "/h: gone");
        check(|all| all.status.catalog.state = "unavailable".to_owned(), Problem, "catalog");
        check(|all| all.status.catalog.state = "rebuilding".to_owned(), Warning, "rebuilt");
        check(|all| all.status.catalog.unusable = 2, Problem, "2 sessions");
        check(|all| all.status.model_server.reachable = Some(false), Problem, "model server");
        check(|all| all.status.restart_needed = vec!["log.level".to_owned()], Warning, "log.level");
        check(|all| all.status.warnings = vec!["odd".to_owned()], Warning, "odd");
        let fail = |all: &mut DaemonDoctorResult| {
            let (at, path) = (Timestamp::from_unix_ms(0), "/h/x".into());
            let failed = FailedWrite { at, path, error: "no space".to_owned() };
            all.status.store.last_failed_write = Some(failed);
        };
        check(fail, Warning, "no space");
        let watch = |all: &mut DaemonDoctorResult| {
            all.inotify = Some(InotifyUse { watches: 90, max_watches: 100, max_instances: 1 });
        };
        check(watch, Warning, "90 of the user's 100");
    }

    #[test]
    fn problems_come_before_warnings() {
        let mut broken = healthy();
        broken.status.warnings = vec!["odd".to_owned()];
        broken.directories[0].mode = Some("755".to_owned());
        broken.status.model_server.reachable = Some(false);
        let levels: Vec<FindingLevel> =
            findings(&broken, None).iter().map(|one| one.level).collect();
        assert_eq!(levels, [FindingLevel::Problem, FindingLevel::Warning, FindingLevel::Warning]);
    }

    #[tokio::test]
    async fn directories_and_the_newest_error_are_found_and_nothing_is_left() {
        let scratch = tempfile::tempdir().expect("a directory");
        let log = scratch.path().join("logs");
        fsutil::create_private_dir(&log).expect("creates");
        let write = |name: &str, text: &str| {
            let mut file = DiskFile::create(&log.join(name)).expect("creates");
            file.append(text.as_bytes()).expect("writes");
        };
        write("ollmd.log.2026-01-02", "a  INFO x\nb ERROR first\nc ERROR second\nd  INFO y\n");
        write("ollmd.log.2026-01-01", "a ERROR old\n");
        write("start.log", "a ERROR other\n");
        let missing = scratch.path().join("missing");
        let dirs = vec![log.clone(), missing];
        let examined = Arc::new(ExaminedDirectories::new(dirs, log.clone()));
        for _ in 0..2 {
            let (directories, log) = examined.examine().await;
            assert_eq!(directories[0].mode.as_deref(), Some("700"));
            assert!(directories[0].sync_us.is_some() && directories[0].free_bytes.is_some());
            assert!(directories[1].error.is_some());
            let log = log.expect("a log");
            assert!(log.path.ends_with("ollmd.log.2026-01-02"));
            assert_eq!(log.last_error.as_deref(), Some("c ERROR second"));
        }
        assert_eq!(std::fs::read_dir(&log).expect("lists").count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn examination_that_hangs_ends_at_the_limit() {
        let dir = PathBuf::from("/");
        let examined = Arc::new(ExaminedDirectories::new(vec![dir.clone()], dir));
        let _hanging = Arc::clone(&examined.free).acquire_owned().await.expect("is open");
        let (directories, log) = examined.examine().await;
        assert_eq!(directories[0].error.as_deref(), Some("no answer within 3 s"));
        assert_eq!(log, None);
    }
}
