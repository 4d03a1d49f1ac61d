//! Everything that a build of one session depends on, taken at one moment.

use std::sync::Arc;

use ollm_protocol::content::{Checkpoint, Compaction, Epoch, RecordBody, Retention};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};

use super::facts::{Facts, Places, facts};
use super::paths::{Path, path_to};
use super::volatile::{self, Additions, Told};
use super::{AppError, Core, settle};
use crate::config::Config;
use crate::context::{BuildInput, Contents, ContentsError, PreviousBuild};
use crate::session::{Live, SessionError, Sessions};
use crate::tokens::Counter;

/// What a build depends on, but for the contents of records.
pub(super) struct Prepared {
    /// The session.
    pub(super) id: SessionId,
    /// The active leaf at that moment.
    pub(super) leaf: Option<Seq>,
    /// The checkpoints in force, oldest first.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// Who counts.
    pub(super) counter: Counter,
    /// The head in force, and the record that froze it.
    pub(super) epoch: Option<(Seq, Epoch)>,
    /// The model that is asked, where one is known.
    pub(super) model: Option<String>,
    /// Goals, entries and pins.
    pub(super) facts: Facts,
    /// What the system message would end with now.
    pub(super) additions: Additions,
    /// What was told since the epoch in force was opened.
    pub(super) told: Told,
    decisions: Vec<String>,
    view: View,
    mode_text: Option<String>,
    context_size: u32,
    previous: Option<Arc<PreviousBuild>>,
    config: Arc<Config>,
    /// Names the build.
    pub(super) build_id: String,
}

/// What a build takes from the session's fold.
struct View {
    path: Arc<Path>,
    system_prompt: Option<String>,
    context_size: Option<u32>,
    model: Option<String>,
    project_path: Option<String>,
    mode: Option<String>,
}

/// Takes what a build depends on. Blocks on the disk.
pub(super) fn prepare(
    core: &Arc<Core>,
    params: &ContextBuildParams,
    counter: Option<Counter>,
) -> Result<Prepared, AppError> {
    settle(core, params.session_id)?;
    let leaf = core.sessions.with(params.session_id, |live| live.state().leaf())?;
    prepare_at(core, params, counter, leaf)
}

/// Takes what a build depended on when a record was the leaf. Blocks on the disk.
pub(super) fn prepare_at(
    core: &Core,
    params: &ContextBuildParams,
    counter: Option<Counter>,
    leaf: Option<Seq>,
) -> Result<Prepared, AppError> {
    let id = params.session_id;
    let view = core.sessions.with(id, |live| view(core, live, leaf))?;
    let path = &view.path;
    let facts = facts(core, id, path)?;
    let epoch = path.epoch_at.map(|seq| epoch_of(core, id, seq)).transpose()?;
    let checkpoints = match path.compaction_at {
        Some(seq) => compaction_of(core, id, seq)?.checkpoints,
        None => Vec::new(),
    };
    let config = core.config();
    let model = params.model.as_ref().or(view.model.as_ref()).or(config.ollama.model.as_ref());
    let counter =
        counter.unwrap_or_else(|| core.counts.load(model.map(String::as_str), None, &params.tools));
    let context_size = config.context.size_for(params.context_size.or(view.context_size));
    let additions = volatile::additions(&facts, &counter, &config, context_size);
    let epoch = path.epoch_at.zip(epoch);
    let told = volatile::told(core, id, &path.items, epoch.as_ref())?;
    let mode_text = view.mode.as_ref().and_then(|mode| config.modes.text(mode)).map(str::to_owned);
    Ok(Prepared {
        id,
        leaf,
        checkpoints,
        counter,
        mode_text,
        model: model.cloned(),
        epoch,
        context_size,
        decisions: locked(&facts),
        facts,
        additions,
        told,
        previous: core.builds.last(id),
        config,
        build_id: core.clock.uuid().to_string(),
        view,
    })
}

impl Prepared {
    /// The newest compaction on the active path.
    pub(super) fn compaction_at(&self) -> Option<Seq> {
        self.view.path.compaction_at
    }

    /// Where the records of goals, entries and pins lie.
    pub(super) fn places(&self) -> &Places {
        &self.view.path.places
    }

    /// Whether a record is on the active path.
    pub(super) fn has(&self, seq: Seq) -> bool {
        self.view.path.has(seq)
    }

    /// What survived the newest compaction. Blocks on the disk.
    pub(super) fn retention(&self, core: &Core) -> Result<Option<Retention>, AppError> {
        let newest = self.view.path.compaction_at.map(|seq| compaction_of(core, self.id, seq));
        Ok(newest.transpose()?.and_then(|compaction| compaction.retention))
    }

    /// The window in tokens.
    pub(super) const fn context_size(&self) -> u32 {
        self.context_size
    }

    /// The input of a build with these params and these checkpoints.
    pub(super) fn input<'a>(
        &'a self,
        params: &'a ContextBuildParams,
        checkpoints: &'a [Checkpoint],
    ) -> BuildInput<'a> {
        BuildInput {
            path: &self.view.path.items,
            system_prompt: self.view.system_prompt.as_deref(),
            mode_text: self.mode_text.as_deref(),
            additions: &self.additions.text,
            entries: &self.additions.entries,
            sent_entries: &self.told.entries,
            decisions: &self.decisions,
            pins: &self.facts.pins,
            project_path: self.view.project_path.as_deref(),
            model: self.model.as_deref(),
            tools: &params.tools,
            pending: params.pending.as_deref(),
            context_size: self.context_size,
            answer_reserve: self.config.context.answer_reserve,
            user_share: self.config.context.user_share,
            strategy: params.strategy.as_deref(),
            compact: params.compact,
            checkpoints,
            epoch: self.epoch.as_ref().map(|(seq, epoch)| (*seq, epoch)),
            previous: self.previous.as_deref(),
            counter: self.counter.clone(),
            build_id: self.build_id.clone(),
        }
    }
}

/// The decisions that the active goal locks.
fn locked(facts: &Facts) -> Vec<String> {
    let goal = facts.goal.active();
    let decisions = goal.into_iter().flat_map(|goal| &goal.decisions);
    let locked = decisions.filter(|decision| decision.locked && decision.superseded_by.is_none());
    locked.map(|decision| decision.description.clone()).collect()
}

fn view(core: &Core, live: &Live, leaf: Option<Seq>) -> View {
    let path = path_to(core, live.state().id(), live, leaf);
    View {
        system_prompt: live.system_prompt().map(str::to_owned),
        context_size: live.context_size(),
        model: live.model().map(str::to_owned),
        project_path: live.project_path().map(str::to_owned),
        mode: live.state().mode_on(|seq| path.has(seq)),
        path,
    }
}

fn epoch_of(core: &Core, id: SessionId, seq: Seq) -> Result<Epoch, AppError> {
    match core.sessions.bodies(id, &[seq])?.pop().flatten() {
        Some(RecordBody::Epoch(epoch)) => Ok(epoch),
        Some(RecordBody::Compaction(Compaction { epoch: Some(epoch), .. })) => Ok(epoch),
        _ => Err(SessionError::Damaged { id, seq }.into()),
    }
}

fn compaction_of(core: &Core, id: SessionId, seq: Seq) -> Result<Compaction, AppError> {
    match core.sessions.bodies(id, &[seq])?.pop().flatten() {
        Some(RecordBody::Compaction(compaction)) => Ok(compaction),
        _ => Err(SessionError::Damaged { id, seq }.into()),
    }
}

/// The contents of one session's records.
pub(super) struct Records<'a> {
    /// Where they are.
    pub(super) sessions: &'a Sessions,
    /// The session.
    pub(super) id: SessionId,
}

impl Contents for Records<'_> {
    fn bodies(&self, seqs: &[Seq]) -> Result<Vec<Option<RecordBody>>, ContentsError> {
        let bodies = self.sessions.bodies(self.id, seqs);
        bodies.map_err(|error| ContentsError::from(std::io::Error::other(error)))
    }
}
