//! Who compacts which session, and when the daemon tries again by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ollm_protocol::{Seq, SessionId, Timestamp};
use tokio_util::sync::CancellationToken;

use super::error::CompactError;
use crate::app::Core;
use crate::shutdown::Tasks;

/// How long after a failure the daemon tries again; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause: a model server that was away is back for the next hour's work.
const LONGEST_PAUSE: Duration = Duration::from_secs(1800);
/// Most sessions of which something is remembered; beyond, those that nobody works on are forgotten.
const MAX_REMEMBERED: usize = 512;

/// For whom a compaction is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody called for it.
    Requested,
    /// A chat turn waits for it.
    Chat,
    /// The daemon does it by itself.
    Background,
}

impl Cause {
    /// In words, for whoever has to wait.
    pub(super) const fn holder(self) -> &'static str {
        match self {
            Self::Requested => "context.compact",
            Self::Chat => "chat.send",
            Self::Background => "the daemon",
        }
    }

    /// Whether it was the daemon's own idea.
    pub(super) const fn is_automatic(self) -> bool {
        !matches!(self, Self::Requested)
    }
}

/// What is remembered of compactions; in memory only, a restart forgets pauses.
pub(crate) struct Compactions {
    /// Runs those of the background.
    pub(super) tasks: Tasks,
    state: Mutex<HashMap<SessionId, Remembered>>,
}

#[derive(Default)]
struct Remembered {
    running: Option<Running>,
    /// A task of the background looks after the session.
    is_watched: bool,
    /// Something was recorded since that task looked.
    looks_again: bool,
    /// Failures in a row, and until when nothing is tried.
    pause: Option<(u32, Instant)>,
    /// What was told last of a compaction that was left out, and for which newest compaction.
    skipped: Option<(&'static str, Option<Seq>)>,
    /// The share of the prompt limit that was measured last.
    share: Option<f64>,
}

#[derive(Clone)]
struct Running {
    cause: Cause,
    since: Timestamp,
    cancel: CancellationToken,
    gone: CancellationToken,
}

/// A session's place among the compactions; given up when it is dropped.
pub(super) struct Slot {
    core: Arc<Core>,
    id: SessionId,
    /// Somebody wants the daemon to give way.
    pub(super) cancel: CancellationToken,
    gone: CancellationToken,
}

impl Compactions {
    /// Nothing is going on.
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { tasks, state: Mutex::default() }
    }

    /// A session is gone.
    pub(crate) fn forget(&self, id: SessionId) {
        let gone = self.state().remove(&id);
        if let Some(running) = gone.and_then(|remembered| remembered.running) {
            running.cancel.cancel();
        }
    }

    fn state(&self) -> MutexGuard<'_, HashMap<SessionId, Remembered>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, id: SessionId, change: impl FnOnce(&mut Remembered) -> T) -> T {
        let mut state = self.state();
        if state.len() >= MAX_REMEMBERED && !state.contains_key(&id) {
            state.retain(|_, one| one.running.is_some() || one.is_watched);
        }
        change(state.entry(id).or_default())
    }

    /// Notes that a compaction failed.
    pub(super) fn failed(&self, id: SessionId) {
        self.with(id, |one| {
            let n_failures = one.pause.map_or(0, |(n, _)| n);
            let pause = FIRST_PAUSE.saturating_mul(1 << n_failures.min(10)).min(LONGEST_PAUSE);
            one.pause = Some((n_failures + 1, Instant::now() + pause));
        });
    }

    /// Notes that a compaction was done.
    pub(super) fn succeeded(&self, id: SessionId) {
        self.with(id, |one| {
            one.pause = None;
            one.skipped = None;
        });
    }

    /// Whether the last failure was not long ago.
    pub(super) fn is_paused(&self, id: SessionId) -> bool {
        self.with(id, |one| one.pause.is_some_and(|(_, until)| Instant::now() < until))
    }

    /// Whether it is new that a compaction is left out for a reason.
    pub(super) fn is_new_skip(&self, id: SessionId, reason: &'static str, at: Option<Seq>) -> bool {
        self.with(id, |one| one.skipped.replace((reason, at)) != Some((reason, at)))
    }

    /// Takes the place of the one task that looks after a session; false when there is one, which then looks again.
    pub(super) fn watch(&self, id: SessionId) -> bool {
        self.with(id, |one| {
            one.looks_again = one.is_watched;
            !std::mem::replace(&mut one.is_watched, true)
        })
    }

    /// Gives that place up; false where something came meanwhile, so that it has to look again.
    pub(super) fn unwatch(&self, id: SessionId) -> bool {
        self.with(id, |one| {
            one.is_watched = std::mem::take(&mut one.looks_again);
            !one.is_watched
        })
    }

    /// Notes the share of its prompt limit that a context has; gives the one before, below all where there was none.
    pub(super) fn measured(&self, id: SessionId, share: f64) -> f64 {
        self.with(id, |one| one.share.replace(share)).unwrap_or(f64::NEG_INFINITY)
    }
}

impl Slot {
    /// Takes the place; what the daemon does by itself gives way to everybody else.
    ///
    /// **Errors**: `Conflict` while another one holds it.
    pub(super) async fn take(
        core: &Arc<Core>,
        id: SessionId,
        cause: Cause,
    ) -> Result<Self, CompactError> {
        loop {
            let (cancel, gone) = (CancellationToken::new(), CancellationToken::new());
            let running = Running {
                cause,
                since: core.clock.now(),
                cancel: cancel.clone(),
                gone: gone.clone(),
            };
            let held = core.compactions.with(id, |one| {
                if one.running.is_none() {
                    one.running = Some(running);
                    return None;
                }
                one.running.clone()
            });
            let Some(held) = held else {
                return Ok(Self { core: Arc::clone(core), id, cancel, gone });
            };
            if held.cause != Cause::Background || cause == Cause::Background {
                let (holder, since) = (held.cause.holder(), held.since);
                return Err(CompactError::Conflict { id, holder, since });
            }
            held.cancel.cancel();
            held.gone.cancelled().await;
        }
    }

    /// Waits until nobody compacts the session.
    pub(super) async fn free(core: &Core, id: SessionId) {
        loop {
            let gone =
                core.compactions.with(id, |one| one.running.as_ref().map(|r| r.gone.clone()));
            match gone {
                Some(gone) => gone.cancelled().await,
                None => return,
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.core.compactions.with(self.id, |one| one.running = None);
        self.gone.cancel();
    }
}
