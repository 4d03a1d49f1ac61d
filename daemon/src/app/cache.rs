//! The cached state of sessions that are in use: one bounded least-recently-used cache.
//!
//! **Invariant**: all of it is derived from the logs. Losing it makes the next call read more, and changes no answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashlink::LruCache;
use ollm_protocol::content::{BuiltContext, Compaction, Delta, Epoch, LoopPattern};
use ollm_protocol::{Seq, SessionId};
use parking_lot::Mutex;

use super::build_request::BuildRequest;
use super::path::{ActivePath, records_between};
use crate::config::LoopDetectionConfig;
use crate::context::compact::Extractor;
use crate::context::{self, FileUses, PreviousBuild};
use crate::facts::FactFold;
use crate::goal::GoalState;
use crate::loops::{Detector, Observation};
use crate::model::ThinkMode;
use crate::projects::StoredEntries;
use crate::session::SessionState;
use crate::session::operations::Operations;

/// The most sessions in the cache. A session takes some kilobytes, and 40 bytes more per record of its path and per
/// message of its last build.
const MAX_SESSIONS: usize = 256;
/// The most records of all cached paths and operations of all cached folds together, which take 40 and some 70 bytes each.
/// A longer path is walked at every build, and more operations are folded at every undo.
const MAX_PATH_RECORDS: usize = 1 << 20;
/// The most facts, counted values, used files and extracted lines of all cached sessions together, which take some 500, 16,
/// 200 and 300 bytes each. Those of other sessions are folded again when they are needed.
const MAX_FOLDED_ITEMS: usize = 1 << 16;
/// The most recent builds of a session that `context.inspect` can repeat: a turn with tools makes a few.
const MAX_RECIPES: usize = 16;

/// The cache of all sessions.
pub(crate) struct SessionCache(Mutex<LruCache<SessionId, CachedSession>>);

/// The cached state of one session.
#[derive(Default)]
pub(crate) struct CachedSession {
    path: Option<Arc<ActivePath>>,
    operations: Option<Arc<Operations>>,
    pub(crate) folds: CachedFolds,
    /// The epoch and the compaction in force, as read from the log.
    pub(crate) head: CachedHead,
    pub(crate) builds: RecentBuilds,
    pub(crate) last_chat: Option<LastChat>,
    /// The loop detection, if it has seen every record since it started.
    pub(crate) loop_watch: Option<LoopWatch>,
    /// A goal record was queued that the fold may not contain yet.
    pub(crate) goal_is_queued: bool,
}

impl Default for SessionCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_SESSIONS)))
    }
}

impl SessionCache {
    /// Calls `f` with the state of a session, which becomes the most recently used one.
    ///
    /// Other sessions wait for the same lock, so `f` must not block.
    pub(crate) fn with<T>(&self, id: SessionId, f: impl FnOnce(&mut CachedSession) -> T) -> T {
        let mut sessions = self.0.lock();
        f(sessions.entry(id).or_insert_with(CachedSession::default))
    }

    /// Calls `f` with the state of a session if it is cached; does not change which one is evicted next.
    pub(crate) fn peek<T>(
        &self,
        id: SessionId,
        f: impl FnOnce(&mut CachedSession) -> T,
    ) -> Option<T> {
        self.0.lock().peek_mut(&id).map(f)
    }

    /// Forgets a deleted session.
    pub(crate) fn forget(&self, id: SessionId) {
        self.0.lock().remove(&id);
    }

    /// Returns the path to `leaf`, extending the cached one if that is its beginning.
    pub(crate) fn path_to(&self, state: &SessionState, leaf: Option<Seq>) -> Arc<ActivePath> {
        let id = state.id();
        // Taken out while it grows: an `Arc` without other owners is extended in place.
        let cached = self.with(id, |session| session.path.take());
        let new = cached.as_ref().and_then(|path| records_between(state, path.leaf, leaf));
        let mut path = cached.filter(|_| new.is_some()).unwrap_or_default();
        let new = new.unwrap_or_else(|| state.path_to(leaf));
        if !new.is_empty() {
            Arc::make_mut(&mut path).extend(&new, state);
        }
        self.keep_path(id, &path);
        path
    }

    fn keep_path(&self, id: SessionId, path: &Arc<ActivePath>) {
        if path.items.len() <= MAX_PATH_RECORDS {
            self.with(id, |session| session.path = Some(Arc::clone(path)));
            self.trim_paths();
        }
    }

    /// Returns the operations of a session. Folds the records that the cached ones lack.
    pub(crate) fn operations(&self, state: &SessionState) -> Arc<Operations> {
        let id = state.id();
        // Taken out while they grow, as the path.
        let cached = self.with(id, |session| session.operations.take());
        let mut operations = cached.unwrap_or_default();
        Arc::make_mut(&mut operations).extend(state);
        if operations.spans().len() <= MAX_PATH_RECORDS {
            self.with(id, |session| session.operations = Some(Arc::clone(&operations)));
            self.trim_paths();
        }
        operations
    }

    /// Drops the paths and the operations of the least recently used sessions beyond their bound.
    fn trim_paths(&self) {
        let mut sessions = self.0.lock();
        let size = |session: &CachedSession| {
            let path = session.path.as_ref().map_or(0, |path| path.items.len());
            path + session.operations.as_ref().map_or(0, |operations| operations.spans().len())
        };
        let mut total: usize = sessions.iter().map(|(_, session)| size(session)).sum();
        // The least recently used come first.
        for (_, session) in sessions.iter_mut() {
            if total <= MAX_PATH_RECORDS {
                break;
            }
            total -= size(session);
            (session.path, session.operations) = (None, None);
        }
    }
}

impl SessionCache {
    /// Drops the facts, the used files and the extracted lines of the least recently used sessions beyond the bound of all
    /// sessions together.
    pub(crate) fn trim_folds(&self) {
        let mut sessions = self.0.lock();
        let size = |session: &CachedSession| {
            let CachedFolds { facts, files, extracted, .. } = &session.folds;
            facts.as_ref().map_or(0, |folded| folded.fold.n_items())
                + files.as_ref().map_or(0, |folded| folded.fold.n_items())
                + extracted.as_ref().map_or(0, |folded| folded.fold.n_items())
        };
        let mut total: usize = sessions.iter().map(|(_, session)| size(session)).sum();
        // The least recently used come first.
        for (_, session) in sessions.iter_mut() {
            if total <= MAX_FOLDED_ITEMS {
                break;
            }
            total -= size(session);
            let folds = &mut session.folds;
            (folds.facts, folds.files, folds.extracted) = (None, None, None);
        }
    }
}

/// The form of the last request of a chat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastChat {
    /// Some templates write the mode of thinking at the beginning of a prompt.
    pub(crate) think: Option<ThinkMode>,
}

/// The folds of goals, context entries, pins, facts, used files, extracted lines and labels.
#[derive(Default)]
pub(crate) struct CachedFolds {
    pub(crate) goals: Option<FoldedTo<GoalState>>,
    pub(crate) entries: Option<FoldedTo<StoredEntries>>,
    pub(crate) pins: Option<FoldedTo<Vec<Seq>>>,
    pub(crate) facts: Option<FoldedTo<FactFold>>,
    pub(crate) files: Option<FoldedTo<FileUses>>,
    /// The lines for notes without a model, of records that no model has summarized.
    pub(crate) extracted: Option<FoldedTo<Extractor>>,
    /// The labels by record. They hold on every path.
    pub(crate) labels: Option<FoldedTo<BTreeMap<Seq, String>>>,
}

/// A fold of all records of one kind up to `newest`, which determines those before it on its path.
pub(crate) struct FoldedTo<T> {
    pub(crate) newest: Seq,
    pub(crate) fold: Arc<T>,
    /// The records that could not be read.
    pub(crate) damaged: Vec<Seq>,
}

/// The records that hold the context head in force.
#[derive(Clone, Default)]
pub(crate) struct CachedHead {
    pub(crate) epoch: Option<(Seq, Arc<Epoch>)>,
    pub(crate) compaction: Option<(Seq, Arc<Compaction>)>,
}

/// The last builds of a session, and how full the next one will be.
#[derive(Default)]
pub(crate) struct RecentBuilds {
    last: Option<Arc<PreviousBuild>>,
    recipes: VecDeque<BuildRecipe>,
    /// The last inspection that was larger than a response.
    inspected: Option<BuildRecipe>,
    gauge: Option<FillGauge>,
    /// The share of the prompt limit that was last compared with the thresholds.
    reported_share: Option<f64>,
}

/// The messages that are brought back for a build.
#[derive(Clone)]
pub(crate) struct Recalled {
    /// A new epoch, behind whose head they stand.
    pub(crate) epoch: Option<Arc<Epoch>>,
    /// The block that shows them.
    pub(crate) delta: Arc<Delta>,
}

/// The inputs of a build, from which it can be repeated.
#[derive(Clone)]
pub(crate) struct BuildRecipe {
    pub(crate) build_id: String,
    pub(crate) request: Arc<BuildRequest>,
    /// The leaf that the build was made for, with the epoch that it recorded.
    pub(crate) leaf: Option<Seq>,
    /// The digest of its messages.
    pub(crate) digest: blake3::Hash,
    /// The tokens that it had in common with the build before it.
    pub(crate) prefix_tokens: u64,
    /// The messages that were recalled for it; they are not recorded if its request did not allow that.
    pub(crate) recalled: Option<Recalled>,
    /// The digests of its JSON that is being read in parts: as a build, and as an inspection.
    pub(crate) read_as: [Option<blake3::Hash>; 2],
}

impl BuildRecipe {
    /// Returns the recipe of a context that was built for `leaf`.
    pub(crate) fn new(
        request: BuildRequest,
        leaf: Option<Seq>,
        digest: blake3::Hash,
        context: &BuiltContext,
        recalled: Option<Recalled>,
    ) -> Self {
        let (build_id, prefix_tokens) = (context.build_id.clone(), context.prefix_tokens);
        let (request, read_as) = (Arc::new(request), [None; 2]);
        Self { build_id, request, leaf, digest, prefix_tokens, recalled, read_as }
    }
}

/// The size of the context with the records that followed the last build, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextFill {
    /// The conversation without checkpoints.
    pub(crate) used: u64,
    /// The most that the conversation may have.
    pub(crate) available: u64,
    /// The most that a prompt may have.
    pub(crate) prompt_limit: u64,
}

impl ContextFill {
    /// Returns whether the conversation has reached the share of its limit at which it is compacted.
    pub(crate) fn reaches(&self, threshold: f64) -> bool {
        self.used >= context::trigger(self.available, threshold)
    }
}

/// The fill at the last build, and the tokens of the records since then that were counted.
#[derive(Clone, Copy, Debug)]
struct FillGauge {
    built_at: Option<Seq>,
    fill: ContextFill,
    /// Every record up to this one is counted in `since_build`.
    counted_to: Option<Seq>,
    since_build: u64,
}

impl RecentBuilds {
    pub(crate) fn last(&self) -> Option<Arc<PreviousBuild>> {
        self.last.clone()
    }

    /// Returns the recipe of a recent build; without an id, that of the newest one.
    pub(crate) fn recipe(&self, build_id: Option<&str>) -> Option<&BuildRecipe> {
        let mut newest_first = self.recipes.iter().rev();
        newest_first.find(|recipe| build_id.is_none_or(|wanted| recipe.build_id == wanted))
    }

    /// Returns the recipe of a recent build or of the last inspection.
    pub(crate) fn recipe_of(&mut self, build_id: &str) -> Option<&mut BuildRecipe> {
        let all = self.recipes.iter_mut().chain(self.inspected.as_mut());
        all.into_iter().find(|recipe| recipe.build_id == build_id)
    }

    /// Remembers an inspection that is read in parts. Builds are remembered by [`RecentBuilds::note`].
    pub(crate) fn note_inspected(&mut self, recipe: BuildRecipe) {
        self.inspected = Some(recipe);
    }

    /// Remembers a build that was returned to a client.
    pub(crate) fn note(
        &mut self,
        request: BuildRequest,
        leaf: Option<Seq>,
        build: PreviousBuild,
        context: &BuiltContext,
        recalled: Option<Recalled>,
    ) {
        if self.recipes.len() == MAX_RECIPES {
            self.recipes.pop_front();
        }
        self.recipes.push_back(BuildRecipe::new(request, leaf, build.digest(), context, recalled));
        self.last = Some(Arc::new(build));
        self.set_fill(leaf, context);
    }

    /// Sets the fill to that of a context that was planned for `leaf`.
    pub(crate) fn set_fill(&mut self, leaf: Option<Seq>, context: &BuiltContext) {
        let budget = &context.budget;
        let fill = ContextFill {
            used: budget.conversation_tokens,
            available: budget.available_tokens,
            prompt_limit: budget.prompt_limit,
        };
        self.gauge = Some(FillGauge { built_at: leaf, fill, counted_to: leaf, since_build: 0 });
    }

    /// Returns how full the next context will be, or `None` if none was built or its leaf is no longer on the path.
    ///
    /// Reads no contents: it adds the stored counts of the records since the last call.
    pub(crate) fn fill(&mut self, state: &SessionState) -> Option<ContextFill> {
        let gauge = self.gauge.as_mut()?;
        let tokens = |seqs: Vec<Seq>| -> u64 {
            let entries = seqs.into_iter().filter_map(|seq| state.entry(seq));
            entries.map(|entry| u64::from(entry.tokens)).sum()
        };
        let leaf = state.leaf();
        gauge.since_build = match records_between(state, gauge.counted_to, leaf) {
            Some(new) => gauge.since_build + tokens(new),
            // The leaf moved: count again from the build.
            None => tokens(records_between(state, gauge.built_at, leaf)?),
        };
        gauge.counted_to = leaf;
        Some(ContextFill { used: gauge.fill.used + gauge.since_build, ..gauge.fill })
    }

    /// Replaces the share of the prompt limit that was last compared with the thresholds, and returns the previous
    /// one, which is below every threshold the first time.
    pub(crate) fn replace_reported_share(&mut self, share: f64) -> f64 {
        self.reported_share.replace(share).unwrap_or(f64::NEG_INFINITY)
    }
}

/// The loop detection of one session, and how far it has followed the log.
///
/// Records must be fed in order: a watch that missed one is discarded.
#[derive(Clone)]
pub(crate) struct LoopWatch {
    pub(crate) detector: Detector,
    /// The settings that the detector was fed with.
    pub(crate) config: LoopDetectionConfig,
    /// The detector has seen every record up to this one.
    pub(crate) seen: Seq,
    /// The active leaf at that record.
    pub(crate) leaf: Option<Seq>,
    /// The loop in force has its record in the log.
    pub(crate) is_recorded: bool,
}

impl LoopWatch {
    /// Returns a watch that has seen every record up to `seen`, when `leaf` was active.
    pub(crate) fn new(
        config: LoopDetectionConfig,
        detector: Detector,
        seen: Seq,
        leaf: Option<Seq>,
    ) -> Self {
        Self { detector, config, seen, leaf, is_recorded: false }
    }

    /// Folds an observation and looks for a loop.
    pub(crate) fn fold(&mut self, seq: Seq, observation: Observation) {
        match &observation {
            Observation::LoopMark(pattern) => self.is_recorded = pattern.is_some(),
            Observation::UserMessage => self.is_recorded = false,
            Observation::ModelMessage { .. }
            | Observation::ToolResult { .. }
            | Observation::NewHead(_) => {}
        }
        self.detector.fold(seq, observation);
        if let Some(pattern) = self.detector.found(&self.config) {
            self.note(pattern);
        }
    }

    /// Notes a loop; while it is in force, further repetitions belong to it.
    pub(crate) fn note(&mut self, pattern: LoopPattern) {
        if !self.detector.is_noted() {
            self.detector.note(pattern);
        }
    }

    /// Returns the loop in force.
    pub(crate) fn in_force(&self) -> Option<LoopPattern> {
        self.detector.found(&self.config)
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{Message, Record, RecordBody, RecordKind, Role};

    use super::*;
    use crate::context::PathItem;

    fn id(number: u128) -> SessionId {
        SessionId::from_uuid(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn least_recently_used_session_is_evicted() {
        let cache = SessionCache::default();
        for number in 0..MAX_SESSIONS as u128 {
            cache.with(id(number), |session| session.goal_is_queued = true);
        }
        cache.with(id(0), |_| ());
        cache.with(id(1000), |_| ());
        // The cache evicts at the next use after it is full.
        cache.with(id(1000), |_| ());
        assert!(cache.peek(id(0), |_| ()).is_some());
        assert!(cache.peek(id(1), |_| ()).is_none());
        cache.forget(id(0));
        assert!(cache.peek(id(0), |_| ()).is_none());
    }

    /// Gives a fold of `n_items` to two sessions more than there is room for.
    fn assert_first_two_make_room<T>(
        n_items: usize,
        slot: impl Fn(&mut CachedFolds) -> &mut Option<FoldedTo<T>>,
        folded: impl Fn() -> FoldedTo<T>,
    ) {
        let cache = SessionCache::default();
        let n_sessions = (MAX_FOLDED_ITEMS / n_items + 2) as u128;
        for number in 0..n_sessions {
            cache.with(id(number), |session| *slot(&mut session.folds) = Some(folded()));
            cache.trim_folds();
        }
        let is_kept = |number| {
            let kept = cache.peek(id(number), |session| slot(&mut session.folds).is_some());
            kept.unwrap_or_default()
        };
        assert!(n_sessions < 100 && !is_kept(0) && !is_kept(1) && is_kept(2));
        assert!(is_kept(n_sessions - 1));
    }

    #[test]
    fn facts_of_least_recently_used_sessions_make_room() {
        let mut fold = FactFold::default();
        let at = Timestamp::from_unix_ms(0);
        for n in 0..20 {
            let texts = (0..50).map(|k| format!("Item {n}x{k} is {}. ", 100 * n + k));
            let message = Message::text(Role::User, texts.collect::<String>(), at);
            fold.apply(Record::new(Seq(n), None, at, RecordBody::Message(message)));
        }
        let fold = Arc::new(fold);
        assert_first_two_make_room(
            fold.n_items(),
            |folds| &mut folds.facts,
            || FoldedTo { newest: Seq(19), fold: Arc::clone(&fold), damaged: Vec::new() },
        );
    }

    #[test]
    fn used_files_of_least_recently_used_sessions_make_room() {
        let mut fold = FileUses::default();
        let at = Timestamp::from_unix_ms(0);
        for n in 0..1000 {
            let call = serde_json::json!({ "id": "c", "name": "read_file",
                "args": { "path": format!("{n}.rs") }, "result": { "llmContent": "" }, "timestamp": at });
            let call = serde_json::from_value(call).expect("a call");
            fold.apply(Record::new(Seq(n), None, at, RecordBody::ToolCall(call)));
        }
        let fold = Arc::new(fold);
        assert_first_two_make_room(
            fold.n_items(),
            |folds| &mut folds.files,
            || FoldedTo { newest: Seq(999), fold: Arc::clone(&fold), damaged: Vec::new() },
        );
    }

    #[test]
    fn paths_of_least_recently_used_sessions_make_room() {
        let cache = SessionCache::default();
        let item = PathItem {
            seq: Seq(0),
            kind: RecordKind::Message,
            role: None,
            tokens: 0,
            calls_tools: false,
            in_context: true,
        };
        let path = |len| Arc::new(ActivePath { items: vec![item; len], ..ActivePath::default() });
        let has_path =
            |number| cache.peek(id(number), |session| session.path.is_some()).unwrap_or_default();
        for number in 0..3 {
            cache.keep_path(id(number), &path(MAX_PATH_RECORDS / 2));
        }
        assert!(!has_path(0) && has_path(1) && has_path(2));
        cache.keep_path(id(3), &path(MAX_PATH_RECORDS + 1));
        assert!(!has_path(3));
    }
}
