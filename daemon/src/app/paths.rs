//! The paths of sessions as builds see them, kept and continued, so that a build looks at what is new and not at
//! everything that was ever said.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ollm_protocol::content::RecordKind;
use ollm_protocol::{Seq, SessionId};

use super::facts::Places;
use super::{AppError, Core};
use crate::context::PathItem;
use crate::session::index::Entry;
use crate::session::{Live, SessionState};

/// Most paths that are kept, those of the sessions that are worked on; one of 100,000 records takes 4 MiB.
const MAX_KEPT: usize = 8;
/// Longest path that is kept after its build; a session with more is walked each time.
const MAX_KEPT_RECORDS: usize = 1 << 20;

/// A path from the root to a record, with what a build looks for on it.
#[derive(Clone, Default)]
pub(super) struct Path {
    /// The record.
    pub(super) leaf: Option<Seq>,
    /// Every record, oldest first.
    pub(super) items: Vec<PathItem>,
    /// Where goals, entries and pins lie.
    pub(super) places: Places,
    /// The newest record that froze a context head.
    pub(super) epoch_at: Option<Seq>,
    /// The newest compaction of this daemon.
    pub(super) compaction_at: Option<Seq>,
}

/// The paths that are kept, the most recently used last.
#[derive(Default)]
pub(crate) struct Paths(Mutex<VecDeque<(SessionId, Arc<Path>)>>);

impl Paths {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(SessionId, Arc<Path>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is gone.
    pub(crate) fn forget(&self, id: SessionId) {
        self.lock().retain(|(kept, _)| *kept != id);
    }

    fn take(&self, id: SessionId) -> Option<Arc<Path>> {
        let mut kept = self.lock();
        let at = kept.iter().position(|(kept, _)| *kept == id)?;
        kept.remove(at).map(|(_, path)| path)
    }

    fn keep(&self, id: SessionId, path: &Arc<Path>) {
        if path.items.len() > MAX_KEPT_RECORDS {
            return;
        }
        let mut kept = self.lock();
        kept.retain(|(other, _)| *other != id);
        if kept.len() == MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((id, Arc::clone(path)));
    }
}

/// The active path of a session. Blocks on the disk where the session is not open.
pub(super) fn active(core: &Core, id: SessionId) -> Result<Arc<Path>, AppError> {
    Ok(core.sessions.with(id, |live| path_to(core, id, live, live.state().leaf()))?)
}

/// The path to a record of an open session; without the disk.
pub(super) fn path_to(core: &Core, id: SessionId, live: &Live, leaf: Option<Seq>) -> Arc<Path> {
    let state = live.state();
    let known = core.paths.take(id);
    let tail = known.as_ref().and_then(|known| since(state, known.leaf, leaf));
    let mut path = known.filter(|_| tail.is_some()).unwrap_or_default();
    let new = tail.unwrap_or_else(|| state.path_to(leaf));
    let project = live.project_path();
    if !new.is_empty() || path.places.project.as_deref() != project {
        let path = Arc::make_mut(&mut path);
        path.items.reserve(new.len());
        new.iter().for_each(|seq| path.push(*seq, state));
        path.places.project = project.map(str::to_owned);
        path.leaf = leaf;
    }
    core.paths.keep(id, &path);
    path
}

/// The records after one up to another, oldest first; `None` where the one is not on the path to the other.
fn since(state: &SessionState, base: Option<Seq>, leaf: Option<Seq>) -> Option<Vec<Seq>> {
    let mut new = Vec::new();
    let mut next = leaf;
    while next != base {
        let seq = next?;
        new.push(seq);
        next = state.entry(seq)?.parent().filter(|parent| *parent < seq);
    }
    new.reverse();
    Some(new)
}

impl Path {
    fn push(&mut self, seq: Seq, state: &SessionState) {
        let Some(entry) = state.entry(seq) else { return };
        let Some(kind) = entry.kind() else { return };
        match kind {
            RecordKind::Goal => self.places.goals.push(seq),
            RecordKind::ContextEntry => self.places.entries.push(seq),
            RecordKind::Pin => self.places.pins.push(seq),
            _ => {}
        }
        if entry.has(Entry::OPENS_EPOCH) {
            self.epoch_at = Some(seq);
            if kind == RecordKind::Compaction {
                self.compaction_at = Some(seq);
            }
        }
        self.items.push(PathItem {
            seq,
            kind,
            role: entry.role(),
            tokens: entry.tokens,
            calls_tools: entry.has(Entry::CALLS_TOOLS),
            in_context: match kind {
                RecordKind::Compaction => !entry.has(Entry::OPENS_EPOCH),
                _ => entry.has(Entry::IN_CONTEXT),
            },
        });
    }

    /// Whether a record is on it.
    pub(super) fn has(&self, seq: Seq) -> bool {
        self.items.binary_search_by_key(&seq, |item| item.seq).is_ok()
    }
}
