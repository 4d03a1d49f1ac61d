//! The table of methods: the function behind each one.
//!
//! A function of `app` stands here itself. `chat`, `daemon`, `env` and `event` have handlers of their own, because they
//! stream or convert.

mod chat;
mod daemon;
mod env;
mod event;

use ollm_protocol::method as m;

use super::Registry;
use crate::app::compaction::request as compaction;
use crate::app::context::{build, entries, goals, inspect, pins};
use crate::app::sessions::{create, delete, documents, input, list, read, transfer, update};
use crate::app::{loops, models};

/// Registers every method.
pub(super) fn register(registry: &mut Registry) {
    chat::register(registry);
    daemon::register(registry);
    env::register(registry);
    event::register(registry);
    session(registry);
    context(registry);
    goal(registry);

    registry.app::<m::ModelList, _, _>(models::list);
    registry.app::<m::ModelShow, _, _>(models::show);
    registry.app::<m::ModelRunning, _, _>(models::running);
    registry.app::<m::ModelWarm, _, _>(models::warm);
    registry.app::<m::ModelCountTokens, _, _>(models::count_tokens);

    registry.app::<m::LoopStatus, _, _>(loops::status);
    registry.app::<m::LoopReset, _, _>(loops::reset);
}

fn session(registry: &mut Registry) {
    registry.app_blocking::<m::SessionCreate>(create::create);
    registry.app::<m::SessionRecord, _, _>(input::record);
    registry.app::<m::SessionRecordToolCall, _, _>(input::record_tool_call);
    registry.app::<m::SessionRecordCustom, _, _>(input::record_custom);
    registry.app_blocking::<m::SessionGet>(read::get);
    registry.app_blocking::<m::SessionResume>(read::resume);
    registry.app_blocking::<m::SessionList>(list::list);
    registry.app_blocking::<m::SessionSearch>(list::search);
    registry.app_blocking::<m::SessionCurrent>(list::current);
    registry.app_blocking::<m::SessionSetCurrent>(list::set_current);
    registry.app::<m::SessionUpdate, _, _>(update::update);
    registry.app::<m::SessionSetMode, _, _>(update::set_mode);
    registry.app::<m::SessionArchive, _, _>(update::archive);
    registry.app::<m::SessionUnarchive, _, _>(update::unarchive);
    registry.app::<m::SessionClose, _, _>(update::close);
    registry.app_blocking::<m::SessionDelete>(delete::delete);
    registry.app_blocking::<m::SessionClear>(delete::clear);
    registry.app_blocking::<m::SessionCleanup>(delete::cleanup);
    registry.app_blocking::<m::SessionExport>(transfer::export);
    registry.app_blocking::<m::SessionImport>(transfer::import);
    registry.app_blocking::<m::SessionSave>(documents::save);
}

fn context(registry: &mut Registry) {
    registry.app::<m::ContextBuild, _, _>(build::build);
    registry.app::<m::ContextStatus, _, _>(inspect::status);
    registry.app_blocking::<m::ContextInspect>(inspect::inspect);
    registry.app::<m::ContextCompact, _, _>(compaction::compact);
    registry.app::<m::ContextCheckpoints, _, _>(compaction::checkpoints);
    registry.app::<m::ContextAddEntry, _, _>(entries::add);
    registry.app::<m::ContextRemoveEntry, _, _>(entries::remove);
    registry.app_blocking::<m::ContextListEntries>(entries::list);
    registry.app::<m::ContextPin, _, _>(pins::pin);
    registry.app::<m::ContextUnpin, _, _>(pins::unpin);
}

fn goal(registry: &mut Registry) {
    registry.app::<m::GoalCreate, _, _>(goals::create);
    registry.app_blocking::<m::GoalList>(goals::list);
    registry.app::<m::GoalUpdate, _, _>(goals::update);
    registry.app::<m::GoalAddCheckpoint, _, _>(goals::add_checkpoint);
    registry.app::<m::GoalUpdateCheckpoint, _, _>(goals::update_checkpoint);
    registry.app::<m::GoalAddDecision, _, _>(goals::add_decision);
    registry.app::<m::GoalLockDecision, _, _>(goals::lock_decision);
    registry.app::<m::GoalAddArtifact, _, _>(goals::add_artifact);
    registry.app::<m::GoalSetNextSteps, _, _>(goals::set_next_steps);
    registry.app::<m::GoalApplyMarkers, _, _>(goals::apply_markers);
}
