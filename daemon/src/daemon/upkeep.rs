//! Background work: signals, changes of the configuration, documents, compactions, retention, idle resources.
//!
//! The only timer is one a minute for idle sessions, vocabularies and connections. All other tasks sleep until they
//! are woken.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use ollm_protocol::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::control::Control;
use super::heap::HeapTrimmer;
use crate::app::compaction;
use crate::app::core::Core;
use crate::app::sessions::{delete, documents};
use crate::rpc::DaemonControl;
use crate::shutdown::Tasks;

/// A session that is unused for this long is closed; opening it again takes milliseconds.
const IDLE_MS: i64 = 5 * 60 * 1000;
/// The interval at which idle resources are released.
const IDLE_CHECK: Duration = Duration::from_secs(60);
/// The delay of start-up work that no call waits for.
const AFTER_START: Duration = Duration::from_millis(250);
/// Editors write a file in several steps; it is read after this long without a change.
const CONFIG_QUIET: Duration = Duration::from_millis(200);
/// The signal for a file that would exceed a size limit; without a handler it kills the process.
const SIGXFSZ: i32 = 25;

/// Starts all background tasks; each ends when the daemon stops.
pub(super) fn spawn(tasks: &Tasks, control: &Arc<Control>) {
    let core = &control.core;
    until_stopped(tasks, documents::run(Arc::clone(core)));
    until_stopped(tasks, compaction::run(Arc::clone(core)));
    until_stopped(tasks, Arc::clone(&control.retention).run(Arc::clone(core)));
    until_stopped(tasks, release_idle(Arc::clone(core)));
    until_stopped(tasks, after_start(Arc::clone(control)));
    tasks.spawn_watch(signals(tasks.clone(), Arc::clone(control)));
    // Before the daemon is announced as ready, so that no change after that is missed.
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
    drop(tokio::task::spawn_blocking(move || delete::recover(&core)).await);
    control.retention.request();
}

async fn release_idle(core: Arc<Core>) {
    let mut heap = HeapTrimmer::default();
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let before = core.clock.now().unix_ms() - IDLE_MS;
        let closed = core.sessions.close_unused(Timestamp::from_unix_ms(before));
        core.models.release_idle();
        core.counts.drop_idle();
        if closed > 0 {
            tracing::debug!(closed, "closed idle sessions");
        }
        let trimmed = tokio::task::spawn_blocking(move || {
            heap.trim_if_grown();
            heap
        });
        // The task fails only when the runtime shuts down.
        let Ok(next) = trimmed.await else { return };
        heap = next;
    }
}

/// Handles signals: the first TERM or INT asks the daemon to stop, a second one forces it; HUP reloads the
/// configuration.
async fn signals(tasks: Tasks, control: Arc<Control>) {
    let handler =
        |kind| signal(kind).inspect_err(|error| tracing::error!("no signal handler: {error}"));
    let (Ok(mut term), Ok(mut int), Ok(mut hup), Ok(_too_large)) = (
        handler(SignalKind::terminate()),
        handler(SignalKind::interrupt()),
        handler(SignalKind::hangup()),
        handler(SignalKind::from_raw(SIGXFSZ)),
    ) else {
        return;
    };
    loop {
        tokio::select! {
            () = termination(&mut term, &mut int) => {
                if tasks.is_stopping() {
                    tasks.force();
                    return;
                }
                tracing::info!("a signal asked the daemon to stop");
                tasks.stop();
            }
            Some(()) = hup.recv() => reload(&control).await,
        }
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
