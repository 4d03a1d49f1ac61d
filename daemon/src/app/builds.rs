//! What is remembered of the last build of each session: how its prompt began, and how full it was.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ollm_protocol::content::BuiltContext;
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};

use super::Core;
use crate::context::PreviousBuild;
use crate::session::SessionState;

/// Most sessions whose last build is remembered; each costs some 40 bytes a message of the context.
const MAX_REMEMBERED: usize = 256;

/// Builds of a session that can be looked at again: a turn with tools makes a few.
const MAX_RECIPES: usize = 16;

/// The last build of each session.
#[derive(Default)]
pub(crate) struct Builds(Mutex<HashMap<SessionId, Remembered>>);

struct Remembered {
    build: Arc<PreviousBuild>,
    gauge: Gauge,
    /// The last builds, the newest last.
    recipes: VecDeque<Recipe>,
}

/// How a build came about, so that it can be made again.
#[derive(Clone)]
pub(super) struct Recipe {
    /// Names it.
    pub(super) build_id: String,
    /// What was asked for.
    pub(super) params: Arc<ContextBuildParams>,
    /// The leaf for which it was, with the epoch that it recorded.
    pub(super) leaf: Option<Seq>,
    /// Of its messages.
    pub(super) digest: blake3::Hash,
}

/// How full a context was, and for which leaf.
#[derive(Clone, Copy, Debug)]
struct Gauge {
    leaf: Option<Seq>,
    /// Tokens of the conversation, checkpoints not counted.
    used: u64,
    /// The most that it may have.
    available: u64,
    /// The most that a prompt may have, and what of it the conversation cannot have.
    prompt_limit: u64,
}

impl Gauge {
    fn of(leaf: Option<Seq>, result: &BuiltContext) -> Self {
        let budget = &result.budget;
        Self {
            leaf,
            used: budget.current_conversation_tokens,
            available: budget.available_tokens,
            prompt_limit: budget.prompt_limit,
        }
    }
}

/// How full the next context will be, by what was recorded since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fill {
    /// Tokens of the conversation, checkpoints not counted.
    pub(super) used: u64,
    /// The most that it may have.
    pub(super) available: u64,
    /// The most that a prompt may have.
    pub(super) prompt_limit: u64,
}

impl Builds {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Remembered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is gone.
    pub(crate) fn forget(&self, id: SessionId) {
        self.lock().remove(&id);
    }

    pub(super) fn last(&self, id: SessionId) -> Option<Arc<PreviousBuild>> {
        self.lock().get(&id).map(|remembered| Arc::clone(&remembered.build))
    }

    /// How one of the last builds of a session came about; the newest without a name.
    pub(super) fn recipe(&self, id: SessionId, build_id: Option<&str>) -> Option<Recipe> {
        let builds = self.lock();
        let mut recipes = builds.get(&id)?.recipes.iter().rev();
        recipes.find(|recipe| build_id.is_none_or(|wanted| recipe.build_id == wanted)).cloned()
    }

    /// Params of a build with the tools of the last one, which the next one will have too.
    pub(super) fn like_last(&self, id: SessionId) -> ContextBuildParams {
        let tools = self.recipe(id, None).map(|recipe| recipe.params.tools.clone());
        ContextBuildParams { tools: tools.unwrap_or_default(), ..ContextBuildParams::new(id) }
    }

    /// Notes how full the next context will be, which was planned and not built for anybody.
    pub(super) fn gauge(&self, id: SessionId, leaf: Option<Seq>, result: &BuiltContext) {
        if let Some(remembered) = self.lock().get_mut(&id) {
            remembered.gauge = Gauge::of(leaf, result);
        }
    }

    pub(super) fn note(
        &self,
        params: &Arc<ContextBuildParams>,
        leaf: Option<Seq>,
        build: PreviousBuild,
        result: &BuiltContext,
    ) {
        let id = params.session_id;
        let gauge = Gauge::of(leaf, result);
        let mut builds = self.lock();
        if builds.len() >= MAX_REMEMBERED && !builds.contains_key(&id) {
            // Which one goes only costs its next build the number of reusable tokens.
            let any = builds.keys().next().copied();
            any.map(|any| builds.remove(&any));
        }
        let known = builds.remove(&id);
        let mut recipes = known.map_or_else(VecDeque::new, |known| known.recipes);
        if recipes.len() == MAX_RECIPES {
            recipes.pop_front();
        }
        let (build_id, digest) = (result.build_id.clone(), build.digest());
        recipes.push_back(Recipe { build_id, params: Arc::clone(params), leaf, digest });
        builds.insert(id, Remembered { build: Arc::new(build), gauge, recipes });
    }
}

/// How full the next context of a session will be; `None` where none was built, or the leaf went elsewhere since.
///
/// Reads no contents: it adds the counts of the records since the last build.
pub(super) fn fill(core: &Core, id: SessionId) -> Option<Fill> {
    let gauge = core.builds.lock().get(&id)?.gauge;
    let since = core.sessions.peek(id, |live| tokens_since(live.state(), gauge.leaf))??;
    let Gauge { used, available, prompt_limit, .. } = gauge;
    Some(Fill { used: used + since, available, prompt_limit })
}

/// Tokens of the records on the active path after one of them; `None` where that one is not on it.
fn tokens_since(state: &SessionState, base: Option<Seq>) -> Option<u64> {
    let mut sum = 0;
    let mut next = state.leaf();
    while next != base {
        let seq = next?;
        let entry = state.entry(seq)?;
        sum += u64::from(entry.tokens);
        next = entry.parent().filter(|parent| *parent < seq);
    }
    Some(sum)
}
