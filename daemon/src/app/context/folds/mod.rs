//! Folds of the records besides the conversation: goals, context entries and pins; and of the facts that messages state,
//! the files that tool calls used, and the lines for notes without a model.
//!
//! The newest record of a kind determines all earlier ones on its path. So a fold up to that record is cached and
//! continued, and moving the leaf needs no special case.

use std::collections::BTreeMap;
use std::sync::Arc;

use ollm_protocol::content::{
    ContextEntry, ContextScope, GoalChange, Record, RecordBody, RecordKind, Role,
};
use ollm_protocol::{Seq, SessionId};

use crate::app::cache::{CachedFolds, FoldedTo};
use crate::app::change::PlannedFold;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::partial::read_settled;
use crate::app::path::{ActivePath, records_between};
use crate::context::compact::Extractor;
use crate::context::{FileUses, PathItem};
use crate::facts::FactFold;
use crate::goal::GoalState;
use crate::projects::{Owner, StoredEntries, StoredEntry};
use crate::session::{OpenSession, SessionError};

/// Tokens of the longest answer that is searched for a question which the user then answers.
const MAX_ASKING_TOKENS: u32 = 256;
/// Maximum number of records in memory while they are folded.
const MAX_BATCH: usize = 64;

/// The folds that a build needs.
pub(super) struct Folds {
    pub(super) goals: Arc<GoalState>,
    /// The context entries in force, in the order in which they are sent.
    pub(super) entries: Vec<ContextEntry>,
    /// The pinned records on the active path, in the order of pinning.
    pub(super) pins: Vec<Seq>,
}

impl Folds {
    /// Folds the new records of a path. Blocks on the disk.
    pub(super) fn load(
        core: &Core,
        id: SessionId,
        path: &ActivePath,
        project_path: Option<&str>,
    ) -> Result<Self> {
        let own = session_entries(core, id, path)?;
        let mut scopes = shared_entries(core, project_path)?;
        scopes.push((ContextScope::Session, StoredEntries::clone(&own)));
        Ok(Self {
            goals: goals(core, id, path)?,
            entries: merged_entries(scopes),
            pins: pins(core, id, path)?,
        })
    }
}

/// Returns the active path of a session. Blocks on the disk unless the session is open.
pub(super) fn active_path(core: &Core, id: SessionId) -> Result<Arc<ActivePath>> {
    Ok(core.sessions.with(id, |live| core.cache.path_to(live.state(), live.state().leaf()))?)
}

/// Returns the active path of a session without the pieces of an interrupted answer, for a change that names its leaf. Blocks on
/// the disk.
pub(super) fn settled_path(core: &Arc<Core>, id: SessionId) -> Result<Arc<ActivePath>> {
    read_settled(core, id, |live| core.cache.path_to(live.state(), live.state().leaf()))
}

/// Folds the goals on a path. Blocks on the disk.
pub(super) fn goals(core: &Core, id: SessionId, path: &ActivePath) -> Result<Arc<GoalState>> {
    fold(core, id, &path.goals, |folds| &mut folds.goals)
}

/// Folds the goals on a path before one of its records. Blocks on the disk.
pub(super) fn goals_before(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
    end: Seq,
) -> Result<Arc<GoalState>> {
    let n_before = path.goals.partition_point(|seq| *seq < end);
    fold(core, id, &path.goals[..n_before], |folds| &mut folds.goals)
}

/// Reads the changes of goals after a record, oldest first. Blocks on the disk.
pub(super) fn goal_changes(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
    after: Option<Seq>,
) -> Result<Vec<GoalChange>> {
    let first = path.goals.partition_point(|seq| Some(*seq) <= after);
    let bodies = core.sessions.bodies(id, &path.goals[first..])?;
    let changes = bodies.into_iter().filter_map(|body| match body {
        Some(RecordBody::Goal(change)) => Some(change),
        _ => None,
    });
    Ok(changes.collect())
}

/// Folds the context entries of the session itself. Blocks on the disk.
pub(super) fn session_entries(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
) -> Result<Arc<StoredEntries>> {
    fold(core, id, &path.entries, |folds| &mut folds.entries)
}

/// Reads the context entries of a project and of the home, the narrower scope last. Blocks on the disk.
pub(super) fn shared_entries(
    core: &Core,
    project_path: Option<&str>,
) -> Result<Vec<(ContextScope, StoredEntries)>> {
    let mut scopes = vec![(ContextScope::Global, core.projects.entries(Owner::Global)?)];
    if let Some(path) = project_path {
        scopes.push((ContextScope::Project, core.projects.entries(Owner::Project(path))?));
    }
    Ok(scopes)
}

/// Merges the entries of several scopes, the narrower ones last, into the order in which they are sent.
pub(super) fn merged_entries(
    scopes: impl IntoIterator<Item = (ContextScope, StoredEntries)>,
) -> Vec<ContextEntry> {
    let mut by_key = BTreeMap::new();
    for (scope, entries) in scopes {
        for (key, StoredEntry { content, priority, source }) in entries {
            let entry = ContextEntry {
                key: key.clone(),
                content,
                priority,
                source,
                scope,
                shortened: false,
            };
            by_key.insert(key, entry);
        }
    }
    let mut merged: Vec<_> = by_key.into_values().collect();
    // Stable: entries of one priority stay in the order of their keys.
    merged.sort_by_key(|entry| entry.priority);
    merged
}

/// Folds the pins whose records are on the path. Blocks on the disk.
pub(super) fn pins(core: &Core, id: SessionId, path: &ActivePath) -> Result<Vec<Seq>> {
    let mut pins = fold::<Vec<Seq>>(core, id, &path.pins, |folds| &mut folds.pins)?.to_vec();
    pins.retain(|seq| path.contains(*seq));
    Ok(pins)
}

/// Folds the facts on a path. Blocks on the disk.
///
/// Reads every message of the user, and every short answer, that was not folded yet: after a restart, all of them. So it is
/// called where a new head is planned, facts are listed, or the retention of a compacted session is reported, and not at each
/// build.
pub(super) fn facts(core: &Core, id: SessionId, path: &ActivePath) -> Result<Arc<FactFold>> {
    // Whether a record is read must not depend on later ones: what was folded before stays folded.
    let may_ask = |item: &PathItem| {
        item.role == Some(Role::Assistant) && !item.calls_tools && item.tokens <= MAX_ASKING_TOKENS
    };
    let states = |item: &&PathItem| match item.kind {
        RecordKind::Message => item.role == Some(Role::User) || may_ask(item),
        RecordKind::Custom => !item.in_context,
        kind => matches!(kind, RecordKind::ContextEntry | RecordKind::Compaction),
    };
    let seqs: Vec<Seq> = path.items.iter().filter(states).map(|item| item.seq).collect();
    let folded = fold(core, id, &seqs, |folds| &mut folds.facts)?;
    core.cache.trim_folds();
    Ok(folded)
}

/// Folds the files that tool calls on a path used. Blocks on the disk.
pub(super) fn file_uses(core: &Core, id: SessionId, path: &ActivePath) -> Result<Arc<FileUses>> {
    let concerns = |item: &&PathItem| match item.kind {
        RecordKind::Message => item.calls_tools || item.role == Some(Role::Tool),
        kind => matches!(kind, RecordKind::ToolCall | RecordKind::PutBack),
    };
    let seqs: Vec<Seq> = path.items.iter().filter(concerns).map(|item| item.seq).collect();
    let folded = fold(core, id, &seqs, |folds| &mut folds.files)?;
    core.cache.trim_folds();
    Ok(folded)
}

/// Folds the lines of some consecutive records of a path, for notes without a model. Blocks on the disk.
///
/// The fold may hold lines of earlier records as well: [`Extractor::summary`] names the record to begin with.
pub(crate) fn extracted_lines(
    core: &Core,
    id: SessionId,
    records: &[Seq],
) -> Result<Arc<Extractor>> {
    let Some(first) = records.first() else { return Ok(Arc::default()) };
    let begins_later = |cached: &FoldedTo<Extractor>| {
        cached.fold.first() > Some(*first) && !cached.damaged.contains(first)
    };
    // A fold that began later lacks lines, unless its first records were damaged.
    core.cache.peek(id, |session| {
        let slot = &mut session.folds.extracted;
        if slot.as_ref().is_some_and(begins_later) {
            *slot = None;
        }
    });
    let folded = fold(core, id, records, |folds| &mut folds.extracted)?;
    core.cache.trim_folds();
    Ok(folded)
}

/// A fold of the records of one kind.
trait Fold: Clone + Default {
    /// Applies the next record of the path.
    fn apply_record(&mut self, record: Record);
}

/// The goals in force on the path to a leaf, for changes that the session's writer plans.
pub(super) struct GoalsInForce {
    leaf: Option<Seq>,
    pub(super) goals: Arc<GoalState>,
}

impl PlannedFold for GoalsInForce {
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        let path = |live: &OpenSession| core.cache.path_to(live.state(), live.state().leaf());
        let path = read_settled(core, id, path)?;
        Ok(Self { leaf: path.leaf, goals: goals(core, id, &path)? })
    }

    fn catch_up(&mut self, live: &OpenSession) -> Result<()> {
        let (state, reader) = (live.state(), live.reader());
        let new = records_between(state, self.leaf, state.leaf());
        if new.is_none() {
            self.goals = Arc::default();
        }
        for seq in new.unwrap_or_else(|| state.path()) {
            let entry = state.entry(seq).filter(|entry| entry.kind() == Some(RecordKind::Goal));
            let read = |entry| reader.read(entry);
            let record = entry.map(read).transpose();
            let record = record.map_err(|error| SessionError::fs(state.id(), &error))?;
            if let Some(record) = record.flatten() {
                Arc::make_mut(&mut self.goals).apply_record(record);
            }
        }
        self.leaf = state.leaf();
        Ok(())
    }
}

impl Fold for GoalState {
    fn apply_record(&mut self, record: Record) {
        let at = record.at;
        if let Some(RecordBody::Goal(change)) = record.into_body() {
            // A change that was refused when it was written is refused now too.
            drop(self.apply(at, &change));
        }
    }
}

impl Fold for StoredEntries {
    fn apply_record(&mut self, record: Record) {
        let Some(RecordBody::ContextEntry(change)) = record.into_body() else { return };
        match change.content {
            None => self.remove(&change.key),
            Some(content) => {
                let priority = change.priority.unwrap_or(ContextEntry::DEFAULT_PRIORITY);
                let source = change.source;
                let source = source.unwrap_or_else(|| ContextEntry::DEFAULT_SOURCE.to_owned());
                self.insert(change.key, StoredEntry { content, priority, source })
            }
        };
    }
}

impl Fold for FactFold {
    fn apply_record(&mut self, record: Record) {
        self.apply(record);
    }
}

impl Fold for FileUses {
    fn apply_record(&mut self, record: Record) {
        self.apply(record);
    }
}

impl Fold for Extractor {
    fn apply_record(&mut self, record: Record) {
        let seq = record.seq;
        if let Some(body) = record.into_body() {
            self.add(seq, &body);
        }
    }
}

impl Fold for Vec<Seq> {
    fn apply_record(&mut self, record: Record) {
        let Some(RecordBody::Pin(pin)) = record.into_body() else { return };
        let known = self.iter().position(|seq| *seq == pin.target);
        match (known, pin.pinned) {
            (None, true) => self.push(pin.target),
            (Some(at), false) => drop(self.remove(at)),
            _ => {}
        }
    }
}

/// Folds the records `seqs`, continuing the cached fold if its newest record is among them.
///
/// Damaged records are left out. One that can be read again, for example because its blob was put back, makes the fold start
/// again.
fn fold<T: Fold>(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
    slot: impl Fn(&mut CachedFolds) -> &mut Option<FoldedTo<T>>,
) -> Result<Arc<T>> {
    let Some(newest) = seqs.last().copied() else { return Ok(Arc::default()) };
    let cached = core.cache.peek(id, |session| {
        let cached = slot(&mut session.folds).as_ref()?;
        let at = seqs.binary_search(&cached.newest).ok()?;
        Some((at + 1, Arc::clone(&cached.fold), cached.damaged.clone()))
    });
    let (mut n_done, mut folded, mut damaged) = cached.flatten().unwrap_or_default();
    if can_read_one(core, id, &damaged)? {
        (n_done, folded, damaged) = Default::default();
    }
    if n_done < seqs.len() {
        let next = Arc::make_mut(&mut folded);
        for batch in seqs[n_done..].chunks(MAX_BATCH) {
            let records = core.sessions.records(id, batch)?;
            for (seq, record) in batch.iter().zip(records) {
                match record {
                    Some(record) => next.apply_record(record),
                    None => damaged.push(*seq),
                }
            }
        }
        let cached = FoldedTo { newest, fold: Arc::clone(&folded), damaged };
        core.cache.with(id, |session| *slot(&mut session.folds) = Some(cached));
    }
    Ok(folded)
}

/// Returns whether one of some damaged records can be read again.
fn can_read_one(core: &Core, id: SessionId, damaged: &[Seq]) -> Result<bool> {
    for batch in damaged.chunks(MAX_BATCH) {
        if core.sessions.records(id, batch)?.iter().any(Option::is_some) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
