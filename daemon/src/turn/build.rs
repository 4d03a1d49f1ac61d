//! Building a context from a session, and recording the epoch that a new plan opens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ollm_protocol::content::{Compaction, Epoch, RecordBody};
use ollm_protocol::methods::context::{CompactMode, ContextBuildParams, ContextBuildResult};
use ollm_protocol::{Seq, SessionId};

use super::update::check_context_size;
use super::{Core, TurnError, blocking, settle};
use crate::config::DEFAULT_CONTEXT_SIZE;
use crate::context::{self, BuildInput, Built, Contents, ContentsError, PathItem, PreviousBuild};
use crate::session::index::Entry;
use crate::session::{Draft, Live, SessionError, Sessions};
use crate::tokens::Counter;

/// How often a plan is made anew because something was recorded meanwhile, before it is given back unrecorded.
const MAX_TRIES: usize = 3;
/// Most sessions whose last build is remembered; each costs some 40 bytes a message of the context.
const MAX_REMEMBERED: usize = 256;

/// The last build of each session.
#[derive(Default)]
pub(crate) struct Builds(Mutex<HashMap<SessionId, PreviousBuild>>);

impl Builds {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, PreviousBuild>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is gone.
    pub(crate) fn forget(&self, id: SessionId) {
        self.lock().remove(&id);
    }

    fn last(&self, id: SessionId) -> Option<PreviousBuild> {
        self.lock().get(&id).cloned()
    }

    fn note(&self, id: SessionId, build: PreviousBuild) {
        let mut builds = self.lock();
        if builds.len() >= MAX_REMEMBERED && !builds.contains_key(&id) {
            // Which one goes only costs its next build the number of reusable tokens.
            let any = builds.keys().next().copied();
            any.map(|any| builds.remove(&any));
        }
        builds.insert(id, build);
    }
}

/// Builds a context; with `compact: auto` a new plan is recorded before it is returned.
pub(crate) async fn build(
    core: &Arc<Core>,
    params: ContextBuildParams,
) -> Result<ContextBuildResult, TurnError> {
    build_with(core, params, None).await
}

/// Builds a context with a counter; without one, with that of the session's model.
pub(super) async fn build_with(
    core: &Arc<Core>,
    params: ContextBuildParams,
    counter: Option<Counter>,
) -> Result<ContextBuildResult, TurnError> {
    check_context_size(params.context_size)?;
    let id = params.session_id;
    let params = Arc::new(params);
    for _ in 0..MAX_TRIES {
        let (request, counter) = (Arc::clone(&params), counter.clone());
        let (built, leaf) = blocking(core, move |core| plan(core, &request, counter)).await?;
        let Some(epoch) = built.new_epoch.clone().filter(|_| params.compact == CompactMode::Auto)
        else {
            return Ok(given(core, id, built));
        };
        match record_epoch(core, id, epoch, leaf).await {
            Ok(()) => return Ok(given(core, id, built)),
            Err(TurnError::Session(SessionError::LeafMoved { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    let request = ContextBuildParams { compact: CompactMode::Never, ..(*params).clone() };
    let (built, _) = blocking(core, move |core| plan(core, &request, counter)).await?;
    Ok(given(core, id, built))
}

fn given(core: &Core, id: SessionId, built: Built) -> ContextBuildResult {
    core.builds.note(id, built.build);
    built.result
}

/// Records an epoch, unless something was recorded since it was planned: its head would leave that out.
async fn record_epoch(
    core: &Core,
    id: SessionId,
    epoch: Epoch,
    leaf: Option<Seq>,
) -> Result<(), TurnError> {
    let draft = Draft::new(RecordBody::Epoch(epoch), None);
    let answer = core.sessions.append_after(id, leaf, vec![draft])?;
    answer.await.map_err(|_| SessionError::Stopping)??;
    Ok(())
}

/// What a build takes from the session's fold.
struct View {
    path: Vec<PathItem>,
    leaf: Option<Seq>,
    system_prompt: Option<String>,
    context_size: Option<u32>,
    model: Option<String>,
    epoch_at: Option<Seq>,
}

fn view(live: &Live) -> View {
    let state = live.state();
    let path = state.path();
    let items = path.iter().filter_map(|seq| item(*seq, state.entry(*seq)?));
    View {
        path: items.collect(),
        leaf: state.leaf(),
        system_prompt: state.system_prompt().map(str::to_owned),
        context_size: state.context_size(),
        model: state.model().map(str::to_owned),
        epoch_at: state.newest_epoch(),
    }
}

fn item(seq: Seq, entry: Entry) -> Option<PathItem> {
    Some(PathItem {
        seq,
        kind: entry.kind()?,
        role: entry.role(),
        tokens: entry.tokens,
        calls_tools: entry.has(Entry::CALLS_TOOLS),
        has_thinking: entry.has(Entry::HAS_THINKING),
        in_context: entry.has(Entry::IN_CONTEXT),
    })
}

/// The window that a session wants, in tokens.
pub(super) fn context_size(core: &Core, id: SessionId) -> Result<u32, TurnError> {
    let own = core.sessions.with(id, |live| live.state().context_size())?;
    Ok(own.or(core.config().context.size).unwrap_or(DEFAULT_CONTEXT_SIZE))
}

fn plan(
    core: &Arc<Core>,
    params: &ContextBuildParams,
    counter: Option<Counter>,
) -> Result<(Built, Option<Seq>), TurnError> {
    let id = params.session_id;
    settle(core, id)?;
    let (view, mode) = core.sessions.with(id, |live| (view(live), live.state().mode()))?;
    let epoch = view.epoch_at.map(|seq| Ok::<_, TurnError>((seq, epoch_of(core, id, seq)?)));
    let epoch = epoch.transpose()?;
    let config = core.config();
    let context_size = params
        .context_size
        .or(view.context_size)
        .or(config.context.size)
        .unwrap_or(DEFAULT_CONTEXT_SIZE);
    let previous = core.builds.last(id);
    let counter = counter.unwrap_or_else(|| {
        let model = params.model.as_ref().or(view.model.as_ref()).or(config.ollama.model.as_ref());
        core.counts.load(model.map(String::as_str), None, &params.tools)
    });
    let input = BuildInput {
        path: &view.path,
        system_prompt: view.system_prompt.as_deref(),
        mode_text: mode.as_deref().and_then(|mode| config.modes.text(mode)),
        tools: &params.tools,
        pending: params.pending.as_deref(),
        context_size,
        answer_reserve: config.context.answer_reserve,
        user_share: config.context.user_share,
        strategy: params.strategy.as_deref(),
        compact: params.compact,
        checkpoints: &[],
        epoch: epoch.as_ref().map(|(seq, epoch)| (*seq, epoch)),
        previous: previous.as_ref(),
        counter,
        build_id: core.clock.uuid().to_string(),
    };
    let contents = Records { sessions: &core.sessions, id };
    Ok((context::build(&input, &contents)?, view.leaf))
}

fn epoch_of(core: &Core, id: SessionId, seq: Seq) -> Result<Epoch, TurnError> {
    match core.sessions.bodies(id, &[seq])?.pop().flatten() {
        Some(RecordBody::Epoch(epoch)) => Ok(epoch),
        Some(RecordBody::Compaction(Compaction { epoch: Some(epoch), .. })) => Ok(epoch),
        _ => Err(SessionError::Damaged { id, seq }.into()),
    }
}

/// The contents of one session's records.
struct Records<'a> {
    sessions: &'a Sessions,
    id: SessionId,
}

impl Contents for Records<'_> {
    fn bodies(&self, seqs: &[Seq]) -> Result<Vec<Option<RecordBody>>, ContentsError> {
        let bodies = self.sessions.bodies(self.id, seqs);
        bodies.map_err(|error| ContentsError::from(std::io::Error::other(error)))
    }
}
