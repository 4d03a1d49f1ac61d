//! The inputs of a build: everything that it depends on, read at one moment.

use std::sync::Arc;

use ollm_protocol::content::{
    Checkpoint, ContextEntry, Delta, Epoch, RecalledRecord, RecordBody, RecordKind, Retention,
};
use ollm_protocol::{Seq, SessionId};

use super::deltas::{Additions, SentDeltas, omitted_additions};
use super::facts::SessionFacts;
use super::folds::Folds;
use super::head::head_in_force;
use crate::app::build_request::BuildRequest;
use crate::app::cache::{CachedHead, Recalled};
use crate::app::core::{Core, SessionSettings};
use crate::app::error::Result;
use crate::app::models::window::{ContextWindow, may_read_images, window_of};
use crate::app::partial::settle;
use crate::app::path::ActivePath;
use crate::config::Config;
use crate::context::{
    BuildInput, Built, Contents, ContentsError, GOAL_PERCENT, PathItem, PreviousBuild,
    is_transient, prompt_limit,
};
use crate::goal::GoalState;
use crate::session::Sessions;
use crate::tokens::Counter;

/// The inputs of a build, apart from the contents of records.
pub(crate) struct Inputs {
    pub(crate) id: SessionId,
    /// The leaf that the build is for.
    pub(crate) leaf: Option<Seq>,
    pub(crate) path: Arc<ActivePath>,
    /// The checkpoints in force, oldest first.
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) counter: Counter,
    /// The epoch in force, and the record that opened it.
    pub(crate) epoch: Option<(Seq, Arc<Epoch>)>,
    /// The model that will read the context, if one is known, of one server.
    pub(crate) model: Option<String>,
    /// The name of the model that is the same for all equal servers.
    shown_model: Option<String>,
    pub(crate) window: ContextWindow,
    /// Whether the model reads images, as far as that is known.
    reads_images: bool,
    /// The retention of the newest compaction.
    pub(crate) retention: Option<Retention>,
    pub(crate) build_id: String,
    folds: Folds,
    /// The facts that the user stated and that still hold.
    pub(crate) facts: SessionFacts,
    /// The end that the system message of a new epoch would have.
    additions: Additions,
    /// The changes that were sent since the epoch was opened.
    sent: SentDeltas,
    settings: SessionSettings,
    mode: Option<String>,
    mode_text: Option<String>,
    locked_decisions: Vec<String>,
    previous: Option<Arc<PreviousBuild>>,
    config: Arc<Config>,
    /// Recalled messages at the end of the path that are not recorded.
    unrecorded: Option<Recalled>,
}

/// The leaf that a build is for.
#[derive(Clone, Copy)]
pub(crate) enum BuildLeaf {
    /// The active leaf.
    Active,
    /// The leaf that was active at an earlier build.
    Earlier(Option<Seq>),
}

/// Reads the inputs of a build. Blocks on the disk.
///
/// `counter`: the counter to use; `None` for that of the model in force.
pub(crate) fn load(
    core: &Arc<Core>,
    request: &BuildRequest,
    counter: Option<Counter>,
    leaf: BuildLeaf,
) -> Result<Inputs> {
    let id = request.session_id;
    if let BuildLeaf::Active = leaf {
        settle(core, id)?;
    }
    let (path, settings, mode) = session_at(core, id, leaf)?;
    let config = core.config();
    let (model, window) = reader_of(core, request, &settings);
    let counter =
        counter.unwrap_or_else(|| core.counts.load(model.as_deref(), None, &request.tools));
    let reads_images = model.as_deref().is_none_or(|model| may_read_images(core, model));
    let folds = Folds::load(core, id, &path, settings.project_path.as_deref())?;
    let CachedHead { epoch, compaction } = head_in_force(core, id, &path)?;
    let additions = Additions::new(&folds, &counter, &config, window.size);
    let sent = SentDeltas::load(core, id, &path, epoch.as_ref())?;
    let mode_text = mode.as_ref().and_then(|mode| config.modes.text(mode));
    Ok(Inputs {
        id,
        leaf: path.leaf,
        checkpoints: compaction.as_ref().map_or(Vec::new(), |(_, it)| it.checkpoints.clone()),
        retention: compaction.and_then(|(_, compaction)| compaction.retention),
        counter,
        epoch,
        shown_model: model.as_deref().map(|model| core.shown_model(model)),
        model,
        window,
        reads_images,
        build_id: core.clock.uuid().to_string(),
        locked_decisions: locked_decisions(&folds),
        facts: SessionFacts::new(core, id, &path, folds.pins.clone()),
        folds,
        additions,
        sent,
        mode_text: mode_text.map(str::to_owned),
        mode,
        settings,
        previous: core.cache.with(id, |session| session.builds.last()),
        config,
        path,
        unrecorded: None,
    })
}

/// Returns the path to a leaf, the settings of the session, and the mode in force on the path.
fn session_at(
    core: &Core,
    id: SessionId,
    leaf: BuildLeaf,
) -> Result<(Arc<ActivePath>, SessionSettings, Option<String>)> {
    Ok(core.sessions.with(id, |live| {
        let state = live.state();
        let leaf = match leaf {
            BuildLeaf::Active => state.leaf(),
            BuildLeaf::Earlier(leaf) => leaf,
        };
        let path = core.cache.path_to(state, leaf);
        let mode = state.mode_on(|seq| path.contains(seq));
        (path, SessionSettings::of(state), mode)
    })?)
}

/// Returns the model of one server that reads a context, and its window; where the request names no model, that of the
/// session or the default one. Blocks on the disk the first time.
pub(crate) fn reader_of(
    core: &Core,
    request: &BuildRequest,
    settings: &SessionSettings,
) -> (Option<String>, ContextWindow) {
    let named = request.model.clone().or_else(|| settings.model.clone());
    let model = core.placed_or_default(request.session_id, named);
    let own = request.context_size.or(settings.context_size);
    let window = window_of(core, model.as_deref(), own);
    (model, window)
}

impl Inputs {
    /// Returns the newest compaction on the active path.
    pub(crate) fn compaction_at(&self) -> Option<Seq> {
        self.path.compaction_at
    }

    /// Returns the messages that were recalled in the epoch in force, each with the delta that has it.
    pub(super) fn recalled(&self) -> &[(Seq, RecalledRecord)] {
        &self.sent.recalled
    }

    /// Returns the goals of the session.
    pub(crate) fn goals(&self) -> &GoalState {
        &self.folds.goals
    }

    /// Returns the context entries in force, in the order in which they are sent.
    pub(crate) fn context_entries(&self) -> &[ContextEntry] {
        &self.folds.entries
    }

    /// Returns the pinned records on the path, in the order of pinning.
    pub(crate) fn pins(&self) -> &[Seq] {
        &self.folds.pins
    }

    /// Returns the mode in force.
    pub(crate) fn mode(&self) -> Option<&str> {
        self.mode.as_deref()
    }

    /// Returns the system prompt of the session.
    pub(crate) fn system_prompt(&self) -> Option<&str> {
        self.settings.system_prompt.as_deref()
    }

    /// Returns the text of the mode in force.
    pub(super) fn mode_text(&self) -> Option<&str> {
        self.mode_text.as_deref()
    }

    /// Returns the tokens that the goals may have in a prompt.
    pub(crate) fn goal_tokens(&self) -> u64 {
        let limit = prompt_limit(self.window.size, self.config.context.answer_reserve);
        limit * GOAL_PERCENT / 100
    }

    /// Returns the input of a build with this request and some checkpoints.
    pub(crate) fn build_input<'a>(
        &'a self,
        request: &'a BuildRequest,
        checkpoints: &'a [Checkpoint],
    ) -> BuildInput<'a> {
        BuildInput {
            path: &self.path.items,
            system_prompt: self.settings.system_prompt.as_deref(),
            mode_text: self.mode_text.as_deref(),
            additions: &self.additions.text,
            entries: &self.additions.entries,
            sent_entries: &self.sent.entries,
            decisions: &self.locked_decisions,
            pins: &self.folds.pins,
            facts: Some(&self.facts),
            project_path: self.settings.project_path.as_deref(),
            model: self.shown_model.as_deref(),
            tools: &request.tools,
            pending: request.pending.as_deref(),
            below_tokens: None,
            spare_tokens: 0,
            deep: request.deep,
            reads_images: self.reads_images,
            context_size: self.window.size,
            window: self.window.limits(),
            answer_reserve: self.config.context.answer_reserve,
            user_share: self.config.context.user_share,
            strategy: request.strategy.as_deref(),
            compact: request.compact,
            checkpoints,
            epoch: self.shown_epoch(),
            previous: self.previous.as_deref(),
            counter: self.counter.clone(),
            build_id: self.build_id.clone(),
        }
    }

    /// Returns the changes of goals and entries that were not sent to the model yet. Blocks on the disk.
    ///
    /// There are none without an epoch: its system message will contain them.
    pub(super) fn pending_deltas(&self, core: &Core) -> Result<Vec<Delta>> {
        let has_basis = self.epoch.as_ref().is_some_and(|(_, epoch)| epoch.basis.is_some());
        if !has_basis {
            return Ok(Vec::new());
        }
        self.sent.pending(core, self.id, &self.path, &self.folds, &self.additions)
    }

    /// Returns the error of facts that could not be read while a head was planned. That head must not be used.
    pub(crate) fn check_facts(&self) -> Result<()> {
        self.facts.check()
    }

    /// Returns the epoch whose head a build shows, and the record that opens it.
    pub(super) fn shown_epoch(&self) -> Option<(Seq, &Epoch)> {
        let in_force = self.epoch.as_ref().map(|(seq, epoch)| (*seq, &**epoch));
        self.unrecorded_epoch().map(|epoch| (self.unrecorded_seqs().0, epoch)).or(in_force)
    }

    /// Returns the epoch that was planned before recalled messages and is not recorded.
    fn unrecorded_epoch(&self) -> Option<&Epoch> {
        self.unrecorded.as_ref()?.epoch.as_deref()
    }

    /// Returns these inputs with recalled messages behind the leaf, as if they and their epoch were recorded there.
    pub(super) fn with_recalled(mut self, recalled: Recalled) -> Self {
        let (epoch_seq, seq) = self.unrecorded_seqs();
        let delta = &recalled.delta;
        let tokens = self.counter.count_record(&RecordBody::Delta((**delta).clone()));
        let item = PathItem {
            seq,
            kind: RecordKind::Delta,
            role: None,
            tokens,
            calls_tools: false,
            in_context: false,
        };
        Arc::make_mut(&mut self.path).items.push(item);
        if let Some(epoch) = &recalled.epoch {
            self.sent = SentDeltas::of_epoch(epoch_seq, epoch);
        }
        self.sent.recalled.extend(delta.recalled.iter().map(|one| (seq, one.clone())));
        self.unrecorded = Some(recalled);
        self
    }

    /// Returns the numbers of an epoch and a delta behind the leaf.
    fn unrecorded_seqs(&self) -> (Seq, Seq) {
        let next = self.leaf.map_or(0, |leaf| leaf.0 + 1);
        (Seq(next), Seq(next + 1))
    }

    /// Returns the delta that is not recorded, if `seq` stands for it.
    pub(super) fn unrecorded(&self, seq: Seq) -> Option<&Delta> {
        let recalled = self.unrecorded.as_ref().filter(|_| seq == self.unrecorded_seqs().1);
        recalled.map(|recalled| &*recalled.delta)
    }

    /// Returns a reader of the contents of the session's records.
    pub(crate) fn contents<'a>(&'a self, core: &'a Core) -> InputContents<'a> {
        let recorded = RecordContents { sessions: &core.sessions, id: self.id };
        InputContents { inputs: self, recorded }
    }
}

/// Returns the decisions that the active goal locks.
fn locked_decisions(folds: &Folds) -> Vec<String> {
    let goal = folds.goals.active();
    let decisions = goal.into_iter().flat_map(|goal| &goal.decisions);
    let locked = decisions.filter(|decision| decision.locked && decision.superseded_by.is_none());
    locked.map(|decision| decision.description.clone()).collect()
}

/// The contents of one session's records.
pub(crate) struct RecordContents<'a> {
    pub(crate) sessions: &'a Sessions,
    pub(crate) id: SessionId,
}

impl Contents for RecordContents<'_> {
    fn bodies(&self, seqs: &[Seq]) -> Result<Vec<Option<RecordBody>>, ContentsError> {
        Ok(self.sessions.bodies(self.id, seqs)?)
    }
}

/// The contents of the records of some inputs.
pub(crate) struct InputContents<'a> {
    inputs: &'a Inputs,
    recorded: RecordContents<'a>,
}

impl Contents for InputContents<'_> {
    fn bodies(&self, seqs: &[Seq]) -> Result<Vec<Option<RecordBody>>, ContentsError> {
        let at = seqs.iter().position(|seq| self.inputs.unrecorded(*seq).is_some());
        let Some(at) = at else { return self.recorded.bodies(seqs) };
        let mut bodies = self.recorded.bodies(&[&seqs[..at], &seqs[at + 1..]].concat())?;
        bodies.insert(at, self.inputs.unrecorded(seqs[at]).cloned().map(RecordBody::Delta));
        Ok(bodies)
    }
}

/// Plans a context. Blocks on the disk.
pub(super) fn plan(core: &Core, request: &BuildRequest, inputs: &Inputs) -> Result<Built> {
    plan_with_spare(core, request, inputs, 0)
}

/// Plans a context that leaves `spare_tokens` free. Blocks on the disk.
pub(super) fn plan_with_spare(
    core: &Core,
    request: &BuildRequest,
    inputs: &Inputs,
    spare_tokens: u64,
) -> Result<Built> {
    let own = inputs.build_input(request, &inputs.checkpoints);
    let input = BuildInput { spare_tokens, ..own };
    let mut built = crate::context::build(&input, &inputs.contents(core))?;
    inputs.check_facts()?;
    built.result.transient |= is_transient(request.compact, inputs.unrecorded_epoch());
    built.result.omitted.extend(omitted_additions(&built.additions, &inputs.path));
    Ok(built)
}

/// Returns a request with the tools of the last build, which the next one will probably have too.
pub(crate) fn request_like_last(core: &Core, id: SessionId) -> BuildRequest {
    let tools = core
        .cache
        .peek(id, |session| session.builds.recipe(None).map(|recipe| recipe.request.tools.clone()));
    BuildRequest { tools: tools.flatten().unwrap_or_default(), ..BuildRequest::new(id) }
}
