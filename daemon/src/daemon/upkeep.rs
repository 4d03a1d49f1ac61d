//! What the daemon does by itself: signals, changed configuration, documents, retention, unused sessions.
//!
//! Timers: one a minute, for unused sessions and an unused connection to the model server. Everything else sleeps until something happens.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::{RecursiveMode, Watcher};
use ollm_protocol::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::control::Control;
use crate::app::compaction;
use crate::app::core::Core;
use crate::app::sessions::retention::Retention;
use crate::app::sessions::{delete, documents};
use crate::rpc::DaemonControl;
use crate::shutdown::Tasks;

/// A session that nobody used for this long is closed; opening it again takes milliseconds.
const UNUSED_MS: i64 = 5 * 60 * 1000;
/// How often unused sessions are looked for.
const LOOK_FOR_UNUSED: Duration = Duration::from_secs(60);
/// How long after the start the work begins that nobody waits for.
const AFTER_START: Duration = Duration::from_millis(250);
/// Editors write a file in several steps; it is read when they have been quiet for this long.
const CONFIG_QUIET: Duration = Duration::from_millis(200);
/// Sent when a file would grow beyond a limit; without a handler it would kill the daemon.
const SIGXFSZ: i32 = 25;

/// Starts all of it; every task ends when the daemon stops.
pub(super) fn spawn(
    tasks: &Tasks,
    core: &Arc<Core>,
    retention: &Arc<Retention>,
    control: &Arc<Control>,
) {
    until_stopped(tasks, documents::run(Arc::clone(core)));
    until_stopped(tasks, compaction::run(Arc::clone(core)));
    let (runner, for_retention) = (Arc::clone(retention), Arc::clone(core));
    until_stopped(tasks, async move { runner.run(for_retention).await });
    until_stopped(tasks, close_unused(Arc::clone(core)));
    until_stopped(tasks, after_start(Arc::clone(core), Arc::clone(retention)));
    tasks.spawn_watch(signals(tasks.clone(), Arc::clone(control)));
    // Before anybody hears that the daemon is ready, or a change right after that would go unnoticed.
    let changed = Arc::new(Notify::new());
    if let Some(watcher) = watch(&control.source.file(), Arc::clone(&changed)) {
        until_stopped(tasks, follow_config(watcher, changed, Arc::clone(control)));
    }
}

/// Runs work that has no end of its own.
fn until_stopped(tasks: &Tasks, work: impl Future<Output = ()> + Send + 'static) {
    let stop = tasks.clone();
    drop(tasks.spawn(async move {
        tokio::select! {
            () = stop.stopping() => {}
            () = work => {}
        }
    }));
}

/// What a start leaves for when the first calls are answered: it reads whole directories and every row of the
/// catalog.
async fn after_start(core: Arc<Core>, retention: Arc<Retention>) {
    let started = SystemTime::now();
    tokio::time::sleep(AFTER_START).await;
    drop(tokio::task::spawn_blocking(move || delete::recover(&core, started)).await);
    retention.request();
}

async fn close_unused(core: Arc<Core>) {
    loop {
        tokio::time::sleep(LOOK_FOR_UNUSED).await;
        let before = core.clock.now().unix_ms() - UNUSED_MS;
        let closed = core.sessions.close_unused(Timestamp::from_unix_ms(before));
        core.models.rest();
        core.counts.drop_idle();
        if closed > 0 {
            tracing::debug!(closed, "closed unused sessions");
        }
    }
}

/// The first TERM or INT asks the daemon to leave, one while it leaves makes it; HUP reads the configuration
/// again.
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
            () = told_to_leave(&mut term, &mut int) => {
                if tasks.is_stopping() {
                    tasks.force();
                    return;
                }
                tracing::info!("a signal asked the daemon to leave");
                tasks.stop();
            }
            Some(()) = hup.recv() => reload(&control).await,
        }
    }
}

async fn told_to_leave(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Reads the configuration again whenever its file changes.
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

/// Watches the directory, because editors replace the file.
fn watch(file: &Path, changed: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let (dir, name) = (file.parent()?, file.file_name()?.to_owned());
    let told = move |event: Result<notify::Event, notify::Error>| {
        let concerns = |event: &notify::Event| {
            let named = event.paths.iter().any(|path| path.file_name() == Some(&name));
            named && !event.kind.is_access()
        };
        if event.as_ref().is_ok_and(concerns) {
            changed.notify_one();
        }
    };
    let watcher = notify::recommended_watcher(told).and_then(|mut watcher| {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    // Without it SIGHUP and `daemon.reload` still work.
    watcher
        .inspect_err(|error| tracing::warn!("changes of the configuration go unnoticed: {error}"))
        .ok()
}

async fn reload(control: &Arc<Control>) {
    if let Err(error) = control.reload().await {
        tracing::error!("the configuration was not read again: {error}");
        control.warn(error.message);
    }
}
