//! What holds on a session's active path beside what was said: goals, context entries and pins.
//!
//! Each is a fold of records of one kind. The newest of them on the path determines all before it, so a fold that was
//! made up to it is kept and continued; moving the leaf needs no special case.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ollm_protocol::content::{ContextEntry, GoalChange, Record, RecordBody};
use ollm_protocol::{Seq, SessionId};

use super::paths::Path;
use super::{AppError, Core, entries};
use crate::goal::GoalState;
use crate::projects::{StoredEntries, StoredEntry};

/// Most sessions whose folds are kept; each costs what its goals, entries and pins do, some kilobytes as a rule.
const MAX_KEPT: usize = 256;
/// Most sessions of which it is kept that markers were queued for them; beyond, all count as such.
const MAX_MARKED: usize = 100_000;

/// What a context needs to know of a session beside its conversation.
pub(crate) struct Facts {
    /// The goals.
    pub goal: Arc<GoalState>,
    /// The context entries in force, in the order in which they are sent.
    pub entries: Vec<ContextEntry>,
    /// The pinned records on the active path, in the order of pinning.
    pub pins: Vec<Seq>,
}

/// Where the records lie that facts are folded from, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(super) goals: Vec<Seq>,
    pub(super) entries: Vec<Seq>,
    pub(super) pins: Vec<Seq>,
    pub(super) project: Option<String>,
}

/// Folds them. Blocks on the disk for what is new since the last time, and for the entries of the project and the home.
pub(super) fn facts(core: &Core, id: SessionId, path: &Path) -> Result<Facts, AppError> {
    Ok(Facts {
        goal: goals(core, id, &path.places)?,
        entries: entries::in_force(core, id, &path.places)?,
        pins: pins(core, id, path)?,
    })
}

/// The goals alone.
pub(super) fn goals(
    core: &Core,
    id: SessionId,
    places: &Places,
) -> Result<Arc<GoalState>, AppError> {
    fold(core, id, &places.goals, |kept| &mut kept.goals)
}

/// The entries of the session itself.
pub(super) fn own_entries(
    core: &Core,
    id: SessionId,
    places: &Places,
) -> Result<Arc<StoredEntries>, AppError> {
    fold(core, id, &places.entries, |kept| &mut kept.entries)
}

/// The pins alone; one of a record that is not on the path says nothing.
pub(super) fn pins(core: &Core, id: SessionId, path: &Path) -> Result<Vec<Seq>, AppError> {
    let mut pins = fold::<Vec<Seq>>(core, id, &path.places.pins, |kept| &mut kept.pins)?.to_vec();
    pins.retain(|seq| path.has(*seq));
    Ok(pins)
}

/// The changes of the goals behind a record of the path, oldest first. Blocks on the disk.
pub(crate) fn goal_changes(
    core: &Core,
    id: SessionId,
    places: &Places,
    after: Option<Seq>,
) -> Result<Vec<GoalChange>, AppError> {
    let first = places.goals.partition_point(|seq| Some(*seq) <= after);
    let bodies = core.sessions.bodies(id, &places.goals[first..])?;
    Ok(bodies
        .into_iter()
        .filter_map(|body| match body {
            Some(RecordBody::Goal(change)) => Some(change),
            _ => None,
        })
        .collect())
}

/// Folds that were made, and for which sessions goals were queued.
#[derive(Default)]
pub(crate) struct Recalled(Mutex<State>);

#[derive(Default)]
struct State {
    kept: HashMap<SessionId, Kept>,
    marked: HashSet<SessionId>,
}

/// The folds of one session.
#[derive(Default)]
struct Kept {
    goals: Option<UpTo<GoalState>>,
    entries: Option<UpTo<StoredEntries>>,
    pins: Option<UpTo<Vec<Seq>>>,
}

/// A fold up to a record.
struct UpTo<T> {
    newest: Seq,
    folded: Arc<T>,
}

impl Recalled {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is gone.
    pub(crate) fn forget(&self, id: SessionId) {
        let mut state = self.lock();
        state.kept.remove(&id);
        state.marked.remove(&id);
    }

    /// A goal is about to be queued for a session.
    pub(super) fn mark(&self, id: SessionId) {
        let mut state = self.lock();
        if state.marked.len() < MAX_MARKED {
            state.marked.insert(id);
        }
    }

    /// Whether a goal may have been queued for a session that its fold does not show yet.
    pub(super) fn is_marked(&self, id: SessionId) -> bool {
        let state = self.lock();
        state.marked.len() >= MAX_MARKED || state.marked.contains(&id)
    }
}

/// A fold of records of one kind.
trait Fold: Clone + Default {
    /// Takes the next record of the path.
    fn take(&mut self, record: Record);
}

impl Fold for GoalState {
    fn take(&mut self, record: Record) {
        let at = record.at;
        if let Some(RecordBody::Goal(change)) = record.into_body() {
            // One that was refused when it was written, by whoever wrote it, changes nothing now either.
            drop(self.apply(at, &change));
        }
    }
}

impl Fold for StoredEntries {
    fn take(&mut self, record: Record) {
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

impl Fold for Vec<Seq> {
    fn take(&mut self, record: Record) {
        let Some(RecordBody::Pin(pin)) = record.into_body() else { return };
        let known = self.iter().position(|seq| *seq == pin.target);
        match (known, pin.pinned) {
            (None, true) => self.push(pin.target),
            (Some(at), false) => drop(self.remove(at)),
            _ => {}
        }
    }
}

fn fold<T: Fold>(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
    of: impl Fn(&mut Kept) -> &mut Option<UpTo<T>>,
) -> Result<Arc<T>, AppError> {
    let Some(newest) = seqs.last().copied() else { return Ok(Arc::default()) };
    let known = core.recalled.lock().kept.get_mut(&id).and_then(|kept| {
        let known = of(kept).as_ref()?;
        let at = seqs.binary_search(&known.newest).ok()?;
        Some((at + 1, Arc::clone(&known.folded)))
    });
    let (done, mut folded) = known.unwrap_or_default();
    if done < seqs.len() {
        let next = Arc::make_mut(&mut folded);
        let records = core.sessions.records(id, &seqs[done..])?;
        records.into_iter().flatten().for_each(|record| next.take(record));
        let mut state = core.recalled.lock();
        if state.kept.len() >= MAX_KEPT && !state.kept.contains_key(&id) {
            // Which one goes only costs its next fold the reading of its records.
            let any = state.kept.keys().next().copied();
            any.map(|any| state.kept.remove(&any));
        }
        let kept = state.kept.entry(id).or_default();
        *of(kept) = Some(UpTo { newest, folded: Arc::clone(&folded) });
    }
    Ok(folded)
}

/// Merges entries of several scopes, the narrower ones last, into the order in which they are sent.
pub(super) fn merged(
    scopes: impl IntoIterator<Item = (ollm_protocol::content::ContextScope, StoredEntries)>,
) -> Vec<ContextEntry> {
    let mut by_key = BTreeMap::new();
    for (scope, entries) in scopes {
        for (key, StoredEntry { content, priority, source }) in entries {
            let entry = ContextEntry { key: key.clone(), content, priority, source, scope };
            by_key.insert(key, entry);
        }
    }
    let mut merged: Vec<_> = by_key.into_values().collect();
    // Stable, so that equal priorities stay ordered by key.
    merged.sort_by_key(|entry| entry.priority);
    merged
}

#[cfg(test)]
mod tests {
    use ollm_protocol::GoalId;
    use ollm_protocol::content::{
        ContextEntryChange, ContextScope, GoalPriority, GoalSource, GoalStep, LeafMove, Pin,
        SessionHeader,
    };

    use super::*;
    use crate::app::paths::active;
    use crate::app::scratch;
    use crate::projects::Owner;
    use crate::session::{NewRecord, NewSession};

    fn goal(core: &Core, description: &str) -> RecordBody {
        let step = GoalStep::Create {
            id: GoalId::from_uuid(core.clock.uuid()),
            description: description.to_owned(),
            priority: GoalPriority::Medium,
        };
        let source = GoalSource::Client;
        RecordBody::Goal(GoalChange { source, message_seq: None, steps: vec![step] })
    }

    fn entry(key: &str, content: Option<&str>, priority: i32) -> RecordBody {
        let content = content.map(str::to_owned);
        let priority = Some(priority);
        let key = key.to_owned();
        RecordBody::ContextEntry(ContextEntryChange { key, content, priority, source: None })
    }

    fn pin(target: u64, pinned: bool) -> RecordBody {
        RecordBody::Pin(Pin { target: Seq(target), pinned })
    }

    struct Scratch {
        core: Arc<Core>,
        id: SessionId,
    }

    impl Scratch {
        fn write(&self, body: RecordBody) -> Seq {
            let draft = NewRecord::new(body, None);
            let answer = self.core.sessions.append(self.id, vec![draft], None).expect("queued");
            answer.blocking_recv().expect("answered").expect("written").seq
        }

        fn facts(&self) -> Facts {
            let path = active(&self.core, self.id).expect("open");
            facts(&self.core, self.id, &path).expect("folded")
        }

        /// The goal, the entries' keys, and the pins in force.
        fn told(&self) -> (Option<String>, Vec<String>, Vec<u64>) {
            let Facts { goal, entries, pins } = self.facts();
            let goal = goal.active().map(|goal| goal.description.clone());
            let keys = entries.into_iter().map(|entry| entry.key).collect();
            (goal, keys, pins.into_iter().map(|seq| seq.0).collect())
        }
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn moving_the_leaf_takes_everything_back_and_brings_it_again() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let core = scratch::core(home.path());
        let id = core.clock.session_id();
        let header = SessionHeader::new(id, core.clock.now());
        core.sessions.create(NewSession { header, key: None }).expect("begins");
        let scratch = Scratch { core, id };
        assert_eq!(scratch.told(), (None, Vec::new(), Vec::new()));
        let first = scratch.write(goal(&scratch.core, "one"));
        scratch.write(entry("b", Some("x"), 5));
        scratch.write(pin(2, true));
        scratch.write(pin(99, true));
        let before = scratch.write(pin(1, true));
        let one = (Some("one".to_owned()), strings(&["b"]), vec![2, 1]);
        assert_eq!(scratch.told(), one);
        scratch.write(goal(&scratch.core, "two"));
        scratch.write(entry("a", Some("y"), 5));
        scratch.write(entry("z", Some("y"), -1));
        let after = scratch.write(pin(2, false));
        let two = (Some("two".to_owned()), strings(&["z", "a", "b"]), vec![1]);
        assert_eq!(scratch.told(), two);
        for (leaf, expect) in [(before, &one), (after, &two), (before, &one)] {
            let cause = "undo".to_owned();
            scratch.write(RecordBody::Leaf(LeafMove { to: Some(leaf), cause }));
            assert_eq!(scratch.told(), *expect);
        }
        scratch.write(entry("b", None, 0));
        assert_eq!(scratch.told().1, Vec::<String>::new());

        let places = &active(&scratch.core, id).expect("open").places;
        let changes = |after| goal_changes(&scratch.core, id, places, after).expect("reads").len();
        assert_eq!((changes(None), changes(Some(first))), (1, 0));
        scratch.core.recalled.forget(id);
        assert_eq!(scratch.told().0, one.0, "what is not kept is read");
    }

    #[test]
    fn the_narrower_entry_of_a_key_wins() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let core = scratch::core(home.path());
        let id = core.clock.session_id();
        let mut header = SessionHeader::new(id, core.clock.now());
        header.project_path = Some("/p".to_owned());
        core.sessions.create(NewSession { header, key: None }).expect("begins");
        let stored = |content: &str| {
            let (content, source) = (content.to_owned(), "hook".to_owned());
            Some(StoredEntry { content, priority: 1, source })
        };
        let set = |owner, key: &str, content: &str| {
            core.projects.set_entry(owner, key, stored(content)).expect("writes");
        };
        for key in ["a", "b", "c"] {
            set(Owner::Global, key, "global");
        }
        for key in ["b", "c"] {
            set(Owner::Project("/p"), key, "project");
        }
        set(Owner::Project("/other"), "a", "other");
        let scratch = Scratch { core: Arc::clone(&core), id };
        scratch.write(entry("c", Some("session"), 0));
        let told = |scratch: &Scratch| {
            let entries = scratch.facts().entries.into_iter();
            entries.map(|entry| (entry.key, entry.content, entry.scope)).collect::<Vec<_>>()
        };
        let of = |key: &str, content: &str, scope| (key.to_owned(), content.to_owned(), scope);
        let (a, b) =
            (of("a", "global", ContextScope::Global), of("b", "project", ContextScope::Project));
        let own = of("c", "session", ContextScope::Session);
        assert_eq!(told(&scratch), [own, a.clone(), b.clone()]);
        scratch.write(entry("c", None, 0));
        assert_eq!(told(&scratch), [a, b, of("c", "project", ContextScope::Project)]);
    }
}
