//! Watching sessions for repetition: what is recorded is folded into a detector, and a loop that is found is
//! recorded and stops calls of the model.
//!
//! A watch is derived: it is made from the newest records when it is needed and can be dropped at any time. It
//! knows how far it has folded, and reads what it missed, so records count in the order of the log whoever wrote
//! them and whichever call is answered first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ollm_protocol::content::{LoopMark, LoopPattern, RecordBody, RecordKind, Role};
use ollm_protocol::methods::loops::LoopStatusResult;
use ollm_protocol::{Seq, SessionId};

use super::{AppError, Core, append, blocking};
use crate::config::LoopDetectionConfig;
use crate::loops::{Detector, Observation, look_back, observe};
use crate::session::index::Entry;
use crate::session::{Draft, Live, SessionError};

/// Most sessions that are watched at once; each costs some kilobytes.
const MAX_WATCHED: usize = 256;
/// How often a loop is looked for again because something was recorded meanwhile. Who recorded that looks too.
const MAX_TRIES: usize = 3;

/// The watched sessions.
#[derive(Default)]
pub(crate) struct Loops(Mutex<HashMap<SessionId, Arc<Mutex<Watch>>>>);

/// How far one session was folded.
struct Watch {
    detector: Detector,
    config: LoopDetectionConfig,
    /// Every record up to this one was looked at.
    seen: Option<Seq>,
    /// The newest record of the active path then.
    leaf: Option<Seq>,
    /// A loop was found whose record is not written yet.
    is_new: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loops {
    /// A session begins anew, or is gone.
    pub(crate) fn forget(&self, id: SessionId) {
        locked(&self.0).remove(&id);
    }

    fn get(&self, id: SessionId) -> Option<Arc<Mutex<Watch>>> {
        locked(&self.0).get(&id).cloned()
    }

    /// The watch of a session, made where there is none.
    fn watch(&self, id: SessionId, config: &LoopDetectionConfig) -> Arc<Mutex<Watch>> {
        let mut watches = locked(&self.0);
        if watches.len() >= MAX_WATCHED && !watches.contains_key(&id) {
            // Which one goes only costs its next call the reading of a few dozen records.
            let any = watches.keys().next().copied();
            any.map(|any| watches.remove(&any));
        }
        Arc::clone(watches.entry(id).or_insert_with(|| Arc::new(Mutex::new(Watch::new(config)))))
    }
}

/// Takes note of a record that is durable; returns the loop in force.
///
/// A loop that is found is recorded before this returns. What fails here goes to the log: the caller's own record
/// is safe.
pub(super) async fn note(
    core: &Arc<Core>,
    id: SessionId,
    seq: Seq,
    seen: Option<Observation>,
) -> Option<LoopPattern> {
    let config = core.config().loop_detection.clone();
    let seen = seen.filter(|_| config.enabled)?;
    if matches!(seen, Observation::UserMessage) {
        core.loops.forget(id);
        return None;
    }
    let found = match at_once(core, id, (seq, seen), &config) {
        Ok(AtOnce::Nothing) => return None,
        Ok(AtOnce::Known(pattern)) => return Some(pattern),
        Ok(AtOnce::MustLook) => look(core, id, &config).await,
        Err(error) => Err(error),
    };
    found.unwrap_or_else(|error| {
        tracing::warn!(session = %id, %seq, "not looked for loops: {error}");
        None
    })
}

/// Refuses where the model must not be called: for the chat turn, before each call.
///
/// **Errors**: `LoopDetected` until the loop is reset or the user says something.
pub(crate) async fn may_call_model(core: &Arc<Core>, id: SessionId) -> Result<(), AppError> {
    let config = core.config().loop_detection.clone();
    let enough = config.repeat_threshold.min(config.max_turns);
    if !config.enabled || (core.loops.get(id).is_none() && has_few(core, id, enough)?) {
        return Ok(());
    }
    let (watch, own) = (core.loops.watch(id, &config), config.clone());
    blocking(core, move |core| {
        let mut watch = locked(&watch);
        watch.restart_for(&own);
        watch.catch_up(core, id)?;
        if let Some(pattern) = watch.detector.found_before_call(&watch.config) {
            watch.note(pattern);
        }
        Ok(())
    })
    .await?;
    match look(core, id, &config).await? {
        None => Ok(()),
        Some(pattern) => Err(AppError::LoopDetected { id, pattern }),
    }
}

/// Tells how far the detection is; writes nothing.
pub(crate) fn loop_status(core: &Core, id: SessionId) -> Result<LoopStatusResult, AppError> {
    let config = core.config().loop_detection.clone();
    let watch = core.loops.watch(id, &config);
    let mut watch = locked(&watch);
    watch.restart_for(&config);
    // A session that is not there must not keep a place.
    watch.catch_up(core, id).inspect_err(|_| core.loops.forget(id))?;
    Ok(LoopStatusResult {
        enabled: config.enabled,
        detected: watch.detector.found(&config),
        turns_since_user: watch.detector.turns(),
        max_turns: config.max_turns,
        repeat_threshold: config.repeat_threshold,
        recent: watch.detector.recent(),
    })
}

/// Lets a session go on; records nothing where there is nothing to forget.
pub(crate) async fn loop_reset(
    core: &Arc<Core>,
    id: SessionId,
) -> Result<LoopStatusResult, AppError> {
    let before = blocking(core, move |core| loop_status(core, id)).await?;
    if before.turns_since_user > 0 || !before.recent.is_empty() || before.detected.is_some() {
        let mark = RecordBody::Loop(LoopMark { pattern: None });
        append(core, id, vec![Draft::new(mark, None)], None).await?;
    }
    blocking(core, move |core| loop_status(core, id)).await
}

/// What is known of a session without reading.
enum AtOnce {
    /// Nothing repeats.
    Nothing,
    /// This does, and was recorded.
    Known(LoopPattern),
    /// Records must be read or written to know.
    MustLook,
}

/// Folds one record without the disk, where nothing else was missed.
fn at_once(
    core: &Core,
    id: SessionId,
    (seq, seen): (Seq, Observation),
    config: &LoopDetectionConfig,
) -> Result<AtOnce, AppError> {
    let Some(watch) = core.loops.get(id) else {
        // Who has said too little to repeat anything is not watched, which is nearly everyone.
        let few =
            has_few(core, id, config.repeat_threshold.min(config.max_turns.saturating_add(1)))?;
        return Ok(if few && seen.n_calls() < 2 { AtOnce::Nothing } else { AtOnce::MustLook });
    };
    let mut watch = match watch.try_lock() {
        Ok(watch) => watch,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Somebody reads what this session said.
        Err(TryLockError::WouldBlock) => return Ok(AtOnce::MustLook),
    };
    if watch.config != *config {
        return Ok(AtOnce::MustLook);
    }
    if watch.seen < Some(seq) {
        let missed = core.sessions.with(id, |live| watch.missed(live))?;
        if missed.as_deref() != Some(&[seq]) {
            return Ok(AtOnce::MustLook);
        }
        watch.fold(seq, seen);
        (watch.seen, watch.leaf) = (Some(seq), Some(seq));
    }
    Ok(match watch.in_force() {
        None => AtOnce::Nothing,
        Some(_) if watch.is_new => AtOnce::MustLook,
        Some(pattern) => AtOnce::Known(pattern),
    })
}

/// Whether fewer records than this may be part of a loop.
fn has_few(core: &Core, id: SessionId, enough: u32) -> Result<bool, AppError> {
    Ok(core.sessions.with(id, |live| since_user(live).len() < enough as usize)?)
}

/// Reads what was missed and records a loop that is new; returns the loop in force.
async fn look(
    core: &Arc<Core>,
    id: SessionId,
    config: &LoopDetectionConfig,
) -> Result<Option<LoopPattern>, AppError> {
    let watch = core.loops.watch(id, config);
    for _ in 0..MAX_TRIES {
        let (own, of_config) = (Arc::clone(&watch), config.clone());
        let found = blocking(core, move |core| {
            let mut watch = locked(&own);
            watch.restart_for(&of_config);
            watch.catch_up(core, id)?;
            let found = watch.in_force().map(|pattern| (pattern, watch.leaf));
            Ok(found.map(|(pattern, leaf)| (pattern, leaf, std::mem::take(&mut watch.is_new))))
        });
        let Some((pattern, leaf, is_new)) = found.await? else { return Ok(None) };
        if !is_new || record(core, id, leaf, &pattern).await {
            return Ok(Some(pattern));
        }
        // A user message may have ended it meanwhile.
        locked(&watch).is_new = true;
    }
    Ok(locked(&watch).in_force())
}

/// Records a loop, unless something was recorded since it was found; false when that is so.
async fn record(core: &Core, id: SessionId, leaf: Option<Seq>, pattern: &LoopPattern) -> bool {
    let mark = RecordBody::Loop(LoopMark { pattern: Some(pattern.clone()) });
    let queued = core.sessions.append_after(id, leaf, vec![Draft::new(mark, None)]);
    let written = match queued {
        Ok(answer) => answer.await.unwrap_or(Err(SessionError::Stopping)),
        Err(error) => Err(error),
    };
    match written {
        Ok(_) => true,
        Err(SessionError::LeafMoved { .. }) => false,
        Err(error) => {
            tracing::warn!(session = %id, "a loop was found and not recorded: {error}");
            true
        }
    }
}

impl Watch {
    fn new(config: &LoopDetectionConfig) -> Self {
        let config = config.clone();
        Self { detector: Detector::default(), config, seen: None, leaf: None, is_new: false }
    }

    /// Begins anew where the configuration changed: how far back it looked depends on it.
    fn restart_for(&mut self, config: &LoopDetectionConfig) {
        if self.config != *config {
            *self = Self::new(config);
        }
    }

    fn note(&mut self, pattern: LoopPattern) {
        if !self.detector.is_noted() {
            self.detector.note(pattern);
            self.is_new = true;
        }
    }

    /// Folds one record; a loop holds from the record on with which it is found.
    fn fold(&mut self, seq: Seq, seen: Observation) {
        if !matches!(seen, Observation::ModelMessage { .. } | Observation::ToolResult { .. }) {
            self.is_new = false;
        }
        self.detector.fold(seq, seen);
        if let Some(pattern) = self.detector.found(&self.config) {
            self.note(pattern);
        }
    }

    fn in_force(&self) -> Option<LoopPattern> {
        self.detector.found(&self.config)
    }

    /// The records that came since; `None` when the active path is another one.
    fn missed(&self, live: &Live) -> Option<Vec<Seq>> {
        let state = live.state();
        let seen = self.seen?;
        let mut new = marks_after(state.entries(), seen);
        let mut next = state.leaf();
        while next != self.leaf {
            let seq = next.filter(|seq| *seq > seen)?;
            let entry = state.entry(seq)?;
            if counts(entry) {
                new.push(seq);
            }
            next = entry.parent();
        }
        new.sort_unstable();
        Some(new)
    }

    /// Folds everything that was recorded and not folded yet. May block on the disk.
    fn catch_up(&mut self, core: &Core, id: SessionId) -> Result<(), AppError> {
        let (new, seen, leaf) = core.sessions.with(id, |live| {
            let new = self.missed(live).ok_or_else(|| since_user(live));
            let records = live.state().entries().len() as u64;
            (new, records.checked_sub(1).map(Seq), live.state().leaf())
        })?;
        let seqs = match new {
            Ok(new) => new,
            Err(all) => self.begin(core, id, all)?,
        };
        for (seq, body) in seqs.iter().zip(core.sessions.bodies(id, &seqs)?) {
            if let Some(seen) = body.as_ref().and_then(observe) {
                self.fold(*seq, seen);
            }
        }
        (self.seen, self.leaf) = (seen, leaf);
        Ok(())
    }

    /// Starts over with the records since the last user message; returns those that must be folded: what came
    /// after the last reset, and of that only as much as a loop can consist of.
    fn begin(&mut self, core: &Core, id: SessionId, all: Vec<Seq>) -> Result<Vec<Seq>, AppError> {
        *self = Self::new(&self.config);
        let entries = core
            .sessions
            .with(id, |live| all.iter().map(|seq| live.state().entry(*seq)).collect::<Vec<_>>())?;
        let kind = |at: usize| entries[at].and_then(|entry| entry.kind());
        let marks: Vec<usize> =
            (0..all.len()).filter(|at| kind(*at) == Some(RecordKind::Loop)).collect();
        let mark_seqs: Vec<Seq> = marks.iter().map(|at| all[*at]).collect();
        let bodies = core.sessions.bodies(id, &mark_seqs)?;
        let is_reset = |body: &Option<RecordBody>| {
            matches!(body, Some(RecordBody::Loop(LoopMark { pattern: None })))
        };
        let last_reset = bodies.iter().rposition(is_reset).map(|at| marks[at]);
        let start = last_reset.map_or(0, |at| at + 1);
        let recent = start.max(all.len().saturating_sub(look_back(&self.config)));
        let skipped = start..recent;
        let is_turn =
            |at: &usize| entries[*at].and_then(|entry| entry.role()) == Some(Role::Assistant);
        let turns = skipped.clone().filter(is_turn).count();
        self.detector = Detector::after_turns(u32::try_from(turns).unwrap_or(u32::MAX));
        let noted = bodies.iter().zip(&marks).rev().find(|(_, at)| skipped.contains(at));
        if let Some((Some(RecordBody::Loop(LoopMark { pattern: Some(pattern) })), _)) = noted {
            self.detector.note(pattern.clone());
        }
        Ok(all[recent..].to_vec())
    }
}

/// The records that count since the last user message on the active path, and every mark after that, in order.
fn since_user(live: &Live) -> Vec<Seq> {
    let state = live.state();
    let mut found = Vec::new();
    let (mut next, mut user) = (state.leaf(), Seq(0));
    while let Some(seq) = next {
        let Some(entry) = state.entry(seq) else { break };
        if entry.role() == Some(Role::User) {
            user = seq;
            break;
        }
        if counts(entry) {
            found.push(seq);
        }
        next = entry.parent().filter(|parent| *parent < seq);
    }
    found.extend(marks_after(state.entries(), user));
    found.sort_unstable();
    found
}

/// Whether a record of the path may be part of a loop.
fn counts(entry: Entry) -> bool {
    match entry.kind() {
        Some(RecordKind::ToolCall) => true,
        Some(RecordKind::Message) => entry.role() != Some(Role::System),
        _ => false,
    }
}

/// The marks behind a record; they are on no path.
fn marks_after(entries: &[Entry], seq: Seq) -> Vec<Seq> {
    let first = usize::try_from(seq.0).map_or(usize::MAX, |seq| seq.saturating_add(1));
    let behind = entries.iter().enumerate().skip(first);
    let marks = behind.filter(|(_, entry)| entry.kind() == Some(RecordKind::Loop));
    marks.map(|(at, _)| Seq(at as u64)).collect()
}

#[cfg(test)]
mod tests;
