//! Background work: signals, changes of the configuration, documents, compactions, snapshots, retention, idle
//! resources.
//!
//! The only timer is one a minute for idle sessions, vocabularies, connections and stages. All other tasks sleep until they
//! are woken.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use ollm_protocol::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::control::Control;
use super::{heap, rights};
use crate::app::core::Core;
use crate::app::sessions::{delete, documents};
use crate::app::snapshots;
use crate::app::{backups, compaction, hooks};
use crate::rpc::DaemonControl;
use crate::shutdown::Tasks;

/// A session that is unused for this long is closed; opening it again takes milliseconds.
const IDLE_MS: i64 = 5 * 60 * 1000;
/// A session that is unused for this long rests: its log gets a mark that confirms its last records. Shorter, and a
/// conversation gets a mark for nearly every turn.
const REST_MS: i64 = 60 * 1000;
/// The interval at which idle resources are released.
const IDLE_CHECK: Duration = Duration::from_secs(60);
/// The delay of start-up work that no call waits for.
const AFTER_START: Duration = Duration::from_millis(250);
/// Editors write a file in several steps; it is read after this long without a change.
const CONFIG_QUIET: Duration = Duration::from_millis(200);
/// The longest time from the request to stop until the process ends, whatever still runs. The steps of a stop take less,
/// but the runtime that measures them may be busy. Service managers kill a process after ten seconds.
const STOP_LIMIT: Duration = Duration::from_secs(9);
/// The signal for a file that would exceed a size limit; without a handler it kills the process.
const SIGXFSZ: i32 = 25;

/// Starts all background tasks; each ends when the daemon stops.
pub(super) fn spawn(tasks: &Tasks, control: &Arc<Control>) {
    let core = &control.core;
    until_stopped(tasks, documents::run(Arc::clone(core)));
    until_stopped(tasks, compaction::run(Arc::clone(core)));
    until_stopped(tasks, hooks::run_for_new_sessions(Arc::clone(core)));
    until_stopped(tasks, snapshots::automatic::run(Arc::clone(core)));
    until_stopped(tasks, Arc::clone(&control.retention).run(Arc::clone(core)));
    until_stopped(tasks, release_idle(Arc::clone(core)));
    until_stopped(tasks, after_start(Arc::clone(control)));
    until_stopped(tasks, reload_on_signal(Arc::clone(control)));
    // The watch begins before the daemon is announced as ready, so that no later change is missed.
    let changed = Arc::new(Notify::new());
    if let Some(watcher) = watch(&control.source.file(), Arc::clone(&changed)) {
        until_stopped(tasks, follow_config(watcher, changed, Arc::clone(control)));
    }
}

/// Runs a task that never returns until the daemon stops.
fn until_stopped(tasks: &Tasks, work: impl Future<Output = ()> + Send + 'static) {
    let stop = tasks.clone();
    drop(tasks.spawn(async move {
        tokio::select! {
            () = stop.stopping() => {}
            () = work => {}
        }
    }));
}

/// Does the start-up work that reads whole directories and every row of the catalog, after the first calls.
async fn after_start(control: Arc<Control>) {
    tokio::time::sleep(AFTER_START).await;
    let core = Arc::clone(&control.core);
    let recover = move || {
        backups::recover(&core);
        delete::recover(&core);
    };
    drop(tokio::task::spawn_blocking(recover).await);
    control.retention.request();
    let dirs = control.private_dirs.clone();
    // The task fails only when the runtime shuts down.
    if let Ok(warnings) = tokio::task::spawn_blocking(move || rights::mend(&dirs)).await {
        for warning in warnings {
            tracing::warn!("{warning}");
            control.warn(warning);
        }
    }
}

async fn release_idle(core: Arc<Core>) {
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let now = core.clock.now().unix_ms();
        let resting = Arc::clone(&core);
        let rest = move || resting.rest_sessions(Timestamp::from_unix_ms(now - REST_MS));
        drop(tokio::task::spawn_blocking(rest).await);
        let closed = core.sessions.close_unused(Timestamp::from_unix_ms(now - IDLE_MS));
        core.models.release_idle();
        core.files.release_idle();
        core.counts.drop_idle();
        let resting = Arc::clone(&core);
        let remove = move || resting.journals.discarded.remove_rested();
        drop(tokio::task::spawn_blocking(remove).await);
        if closed > 0 {
            tracing::debug!(closed, "closed idle sessions");
        }
        // The task fails only when the runtime shuts down.
        drop(tokio::task::spawn_blocking(heap::return_freed).await);
    }
}

/// Starts the thread that ends the process: it asks the daemon to stop at the first TERM or INT, and exits at a second one
/// or after [`STOP_LIMIT`].
///
/// The thread has a runtime of its own, because clients can keep the daemon's runtime busy. Exiting at once is safe:
/// acknowledged records are synced, and the next start replaces the socket file and `daemon.json`.
///
/// **Errors**: the system refuses a handler or the thread.
pub(super) fn watch_termination(tasks: &Tasks) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    drop(entered);
    let tasks = tasks.clone();
    let thread = std::thread::Builder::new().name("ollmd-signals".to_owned());
    let spawned = thread.spawn(move || {
        runtime.block_on(wait_for_exit(&tasks, &mut term, &mut int));
        #[expect(
            clippy::disallowed_methods,
            reason = "the user asked twice or the time is over, so nothing is awaited"
        )]
        std::process::exit(0)
    });
    spawned.map(drop)
}

/// Reloads the configuration at each HUP.
async fn reload_on_signal(control: Arc<Control>) {
    let handler =
        |kind| signal(kind).inspect_err(|error| tracing::error!("no signal handler: {error}"));
    let (Ok(mut hup), Ok(_too_large)) =
        (handler(SignalKind::hangup()), handler(SignalKind::from_raw(SIGXFSZ)))
    else {
        return;
    };
    while hup.recv().await.is_some() {
        reload(&control).await;
    }
}

/// Asks the daemon to stop at the first signal. Returns at a second one, or when the daemon was asked to stop and still runs
/// after [`STOP_LIMIT`].
async fn wait_for_exit(tasks: &Tasks, term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        () = tasks.stopping() => {}
        () = termination(term, int) => {
            tracing::info!("a signal asked the daemon to stop");
            tasks.stop();
        }
    }
    if tokio::time::timeout(STOP_LIMIT, termination(term, int)).await.is_err() {
        tracing::warn!("the daemon did not stop in time, so it exits with unfinished work");
    }
}

async fn termination(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Reloads the configuration when its file changes.
async fn follow_config(
    _watcher: notify::RecommendedWatcher,
    changed: Arc<Notify>,
    control: Arc<Control>,
) {
    loop {
        changed.notified().await;
        while tokio::time::timeout(CONFIG_QUIET, changed.notified()).await.is_ok() {}
        reload(&control).await;
    }
}

/// Watches the directory of the configuration file, because editors replace the file.
fn watch(file: &Path, changed: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let (dir, name) = (file.parent()?, file.file_name()?.to_owned());
    let notify = move |event: Result<notify::Event, notify::Error>| {
        let is_relevant = |event: &notify::Event| {
            let named = event.paths.iter().any(|path| path.file_name() == Some(&name));
            named && !event.kind.is_access()
        };
        if event.as_ref().is_ok_and(is_relevant) {
            changed.notify_one();
        }
    };
    let watcher = notify::recommended_watcher(notify).and_then(|mut watcher| {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    // Without a watch, SIGHUP and `daemon.reload` still work.
    watcher
        .inspect_err(|error| tracing::warn!("the configuration file is not watched: {error}"))
        .ok()
}

async fn reload(control: &Arc<Control>) {
    if let Err(error) = control.reload().await {
        tracing::error!("the configuration was not reloaded: {error}");
        control.warn(error.message);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::app::testing::configured_core;
    use crate::fsutil;
    use crate::put_back::journal::STAGE_PREFIX;

    #[tokio::test(start_paused = true)]
    async fn stages_of_an_earlier_process_are_removed_after_the_start() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let stage = home.path().join(format!("put-backs/{STAGE_PREFIX}1"));
        fsutil::create_private_dir(&stage).expect("creates");
        let core = configured_core(home.path(), &[]);
        let twice = tokio::time::timeout(IDLE_CHECK * 2, release_idle(core)).await;
        assert!(twice.is_err() && !stage.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn stop_that_takes_too_long_ends_without_a_second_signal() {
        // A signal that nobody sends.
        let never = || signal(SignalKind::user_defined2()).expect("a handler");
        let tasks = Tasks::new();
        let mut unstopped = (never(), never());
        let waiting = wait_for_exit(&tasks, &mut unstopped.0, &mut unstopped.1);
        let waited = tokio::time::timeout(STOP_LIMIT * 2, waiting).await;
        assert!(waited.is_err(), "a daemon that was not asked to stop runs on");
        tasks.stop();
        let since = Instant::now();
        wait_for_exit(&tasks, &mut never(), &mut never()).await;
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
}
