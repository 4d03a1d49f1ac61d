//! Loop detection of sessions: `loop.status`, `loop.reset`, and the check before a model is called.
//!
//! The observer feeds each new record to the session's watch, in the order of the log. After a restart or an eviction,
//! the watch is rebuilt from the newest records and finds the same loops. A loop that is found is recorded, and stops
//! model calls until the user sends a message or resets it.

use std::sync::Arc;

use ollm_protocol::content::{LoopMark, LoopPattern, RecordBody, RecordKind, RecordScope, Role};
use ollm_protocol::methods::loops::LoopStatusResult;
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{Seq, SessionId};

use super::cache::{CachedSession, LoopWatch};
use super::change::{View, change};
use super::core::{Core, blocking};
use super::drafts::uncounted;
use super::error::{AppError, Result};
use crate::config::LoopDetectionConfig;
use crate::loops::{Detector, look_back, observe};
use crate::session::index::IndexEntry;
use crate::session::{OpenSession, SessionState};

/// Feeds a durable record to the session's watch. Called by the observer in the order of the log; never blocks.
pub(super) fn follow(core: &Core, id: SessionId, seq: Seq, body: &RecordBody) {
    let config = &core.config().loop_detection;
    let is_user = matches!(body, RecordBody::Message(message) if message.role == Role::User);
    let is_watched = || core.cache.peek(id, |session| session.loop_watch.is_some()) == Some(true);
    if !config.enabled || !(is_user || is_watched()) {
        return;
    }
    let observation = observe(body);
    let on_path = body.kind().scope() == RecordScope::Path;
    let parent = core.sessions.peek(id, |live| live.state().entry(seq)?.parent()).flatten();
    core.cache.with(id, |session| {
        let watch = &mut session.loop_watch;
        if is_user {
            *watch = Some(LoopWatch::new(config.clone(), Detector::default(), seq, Some(seq)));
            return;
        }
        // A watch that missed a record, or whose branch was left, is rebuilt from the log when it is needed.
        let is_next = |watch: &LoopWatch| {
            watch.config == *config
                && watch.seen.0 + 1 == seq.0
                && (!on_path || watch.leaf == parent)
                && body.kind() != RecordKind::Leaf
        };
        let Some(watch) = watch.as_mut().filter(|watch| is_next(watch)) else {
            *watch = None;
            return;
        };
        watch.seen = seq;
        if on_path {
            watch.leaf = Some(seq);
        }
        if let Some(observation) = observation {
            watch.fold(seq, observation);
        }
    });
}

/// Returns the loop in force after a record; a new one is recorded first.
///
/// Errors go to the log: the caller's own record is safe.
pub(super) async fn after_record(core: &Arc<Core>, id: SessionId, seq: Seq) -> Option<LoopPattern> {
    if !core.config().loop_detection.enabled {
        return None;
    }
    in_force(core, id, Some(seq)).await.unwrap_or_else(|error| {
        tracing::warn!(session = %id, %seq, "loop detection failed: {error}");
        None
    })
}

/// Refuses a model call of a session that repeats itself.
///
/// **Errors**: `LoopDetected` until the loop is reset or the user sends a message.
pub(super) async fn may_call_model(core: &Arc<Core>, id: SessionId) -> Result<()> {
    if !core.config().loop_detection.enabled {
        return Ok(());
    }
    with_watch(core, id, None, |watch| {
        if let Some(pattern) = watch.detector.found_before_call(&watch.config) {
            watch.note(pattern);
        }
    })
    .await?;
    match in_force(core, id, None).await? {
        None => Ok(()),
        Some(pattern) => Err(AppError::LoopDetected { id, pattern }),
    }
}

/// Returns the state of the detection (`loop.status`); writes nothing.
pub(crate) async fn status(core: Arc<Core>, params: SessionIdParams) -> Result<LoopStatusResult> {
    with_watch(&core, params.session_id, None, |watch| LoopStatusResult {
        enabled: watch.config.enabled,
        detected: watch.in_force(),
        turns_since_user: watch.detector.turns(),
        max_turns: watch.config.max_turns,
        repeat_threshold: watch.config.repeat_threshold,
        recent: watch.detector.recent(),
    })
    .await
}

/// Lets a session call the model again (`loop.reset`); records nothing if there is nothing to reset.
pub(crate) async fn reset(core: Arc<Core>, params: SessionIdParams) -> Result<LoopStatusResult> {
    let id = params.session_id;
    let before = status(Arc::clone(&core), params.clone()).await?;
    if before.turns_since_user > 0 || !before.recent.is_empty() || before.detected.is_some() {
        let mark = RecordBody::Loop(LoopMark { pattern: None });
        core.append_one(id, mark).await?;
    } else {
        // The reply confirms an earlier reset.
        blocking(&core, move |core| Ok(core.sessions.sync(id)?)).await?;
    }
    status(core, params).await
}

/// Returns the loop in force; a new one is recorded first.
async fn in_force(
    core: &Arc<Core>,
    id: SessionId,
    seq: Option<Seq>,
) -> Result<Option<LoopPattern>> {
    let found = with_watch(core, id, seq, |watch| {
        Some((watch.in_force()?, watch.leaf, watch.seen, watch.is_recorded))
    });
    let Some((pattern, leaf, seen, is_recorded)) = found.await? else { return Ok(None) };
    if is_recorded {
        return Ok(Some(pattern));
    }
    let mark = uncounted(RecordBody::Loop(LoopMark { pattern: Some(pattern.clone()) }));
    let plan = move |view: &View<'_>| {
        let n_seen = usize::try_from(seen.0 + 1).unwrap_or(usize::MAX);
        let mut later = view.state.entries().iter().skip(n_seen);
        let is_recorded = later.any(|entry| entry.kind() == Some(RecordKind::Loop));
        let is_current = view.state.leaf() == leaf && !is_recorded;
        Ok(if is_current { vec![mark] } else { Vec::new() })
    };
    match change(core, id, None, plan).await {
        Ok(Some(_)) => Ok(Some(pattern)),
        // Another call recorded the loop, or a record that moved the leaf may have ended it; its writer looks for loops too.
        Ok(None) => with_watch(core, id, None, |watch| watch.in_force()).await,
        Err(error) => {
            tracing::warn!(session = %id, "a loop was found and not recorded: {error}");
            Ok(Some(pattern))
        }
    }
}

/// Calls `f` with a watch that has seen the record `seq`, by default the newest one; reads the log if the cached watch
/// has not.
async fn with_watch<T>(
    core: &Arc<Core>,
    id: SessionId,
    seq: Option<Seq>,
    f: impl Fn(&mut LoopWatch) -> T,
) -> Result<T> {
    let config = core.config().loop_detection.clone();
    let newest = seq.or_else(|| core.sessions.peek(id, newest_seq).flatten());
    let is_current = |watch: &&mut LoopWatch| {
        newest.is_some_and(|newest| watch.seen >= newest) && watch.config == config
    };
    let cached =
        |session: &mut CachedSession| session.loop_watch.as_mut().filter(is_current).map(&f);
    if let Some(done) = core.cache.peek(id, cached).flatten() {
        return Ok(done);
    }
    let rebuilt = blocking(core, move |core| rebuild(core, id, config)).await?;
    Ok(core.cache.with(id, |session| {
        // Concurrent calls may have rebuilt the watch too: the newest one stays.
        let watch = session.loop_watch.get_or_insert_with(|| rebuilt.clone());
        if watch.seen < rebuilt.seen || watch.config != rebuilt.config {
            *watch = rebuilt;
        }
        f(watch)
    }))
}

fn newest_seq(live: &OpenSession) -> Option<Seq> {
    (live.state().entries().len() as u64).checked_sub(1).map(Seq)
}

/// Rebuilds a watch from the records since the last user message or reset, or from the newest of them if a loop cannot
/// consist of more. Blocks on the disk.
fn rebuild(core: &Core, id: SessionId, config: LoopDetectionConfig) -> Result<LoopWatch> {
    let (candidates, seen, leaf) = core.sessions.with(id, |live| {
        let seen = newest_seq(live).unwrap_or(Seq(0));
        (since_user(live), seen, live.state().leaf())
    })?;
    let marks: Vec<usize> = (0..candidates.len())
        .filter(|at| candidates[*at].1.kind() == Some(RecordKind::Loop))
        .collect();
    let mark_seqs: Vec<Seq> = marks.iter().map(|at| candidates[*at].0).collect();
    let mark_bodies = core.sessions.bodies(id, &mark_seqs)?;
    let is_reset = |body: &Option<RecordBody>| {
        matches!(body, Some(RecordBody::Loop(LoopMark { pattern: None })))
    };
    let start = mark_bodies.iter().rposition(is_reset).map_or(0, |at| marks[at] + 1);
    let recent = start.max(candidates.len().saturating_sub(look_back(&config)));
    // Older records matter only by the number of their model calls and by the loop that they left in force.
    let is_turn = |(_, entry): &&(Seq, IndexEntry)| entry.role() == Some(Role::Assistant);
    let n_turns = candidates[start..recent].iter().filter(is_turn).count();
    let mut detector = Detector::after_turns(u32::try_from(n_turns).unwrap_or(u32::MAX));
    let noted = mark_bodies.into_iter().zip(&marks).rfind(|(_, at)| (start..recent).contains(*at));
    if let Some((Some(RecordBody::Loop(LoopMark { pattern: Some(pattern) })), _)) = noted {
        detector.note(pattern);
    }
    let is_recorded = detector.is_noted();
    let mut watch = LoopWatch { is_recorded, ..LoopWatch::new(config, detector, seen, leaf) };
    let seqs: Vec<Seq> = candidates[recent..].iter().map(|(seq, _)| *seq).collect();
    for (seq, body) in seqs.iter().zip(core.sessions.bodies(id, &seqs)?) {
        if let Some(observation) = body.as_ref().and_then(observe) {
            watch.fold(*seq, observation);
        }
    }
    Ok(watch)
}

/// Returns the records that may be part of a loop since the last user message on the active path, and the loop marks
/// that were recorded there, in the order of the log.
fn since_user(live: &OpenSession) -> Vec<(Seq, IndexEntry)> {
    let state = live.state();
    let mut found = Vec::new();
    // From the leaf back to the message.
    let mut path = Vec::new();
    for (seq, entry) in state.walk(state.leaf()).map_while(|(seq, entry)| Some((seq, entry?))) {
        path.push(seq);
        if entry.role() == Some(Role::User) {
            break;
        }
        let kinds =
            [RecordKind::Message, RecordKind::ToolCall, RecordKind::Epoch, RecordKind::Compaction];
        if entry.kind().is_some_and(|kind| kinds.contains(&kind))
            && entry.role() != Some(Role::System)
        {
            found.push((seq, entry));
        }
    }
    // Marks are on no path: those of a branch that was left, or undone, say nothing about this one.
    let first = path.last().and_then(|first| usize::try_from(first.0).ok()).unwrap_or(usize::MAX);
    let after = state.entries().iter().enumerate().skip(first);
    let marks = after.filter(|(at, entry)| {
        let is_here = || leaf_at(state, *at).is_some_and(|leaf| path.contains(&leaf));
        entry.kind() == Some(RecordKind::Loop) && is_here()
    });
    found.extend(marks.map(|(at, entry)| (Seq(at as u64), *entry)));
    found.sort_unstable_by_key(|(seq, _)| *seq);
    found
}

/// Returns the leaf that was active when a record was written.
fn leaf_at(state: &SessionState, at: usize) -> Option<Seq> {
    let before = state.entries()[..at].iter().enumerate().rev();
    before.map(|(at, entry)| (Seq(at as u64), entry.kind())).find_map(|(seq, kind)| match kind {
        Some(RecordKind::Leaf) => state.leaf_move(seq).map(|(to, _)| to),
        Some(kind) if kind.scope() == RecordScope::Path => Some(Some(seq)),
        _ => None,
    })?
}

#[cfg(test)]
mod tests;
