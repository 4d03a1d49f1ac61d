//! The table of methods: the function behind each one.
//!
//! Most methods are functions of `app`. The handlers of `daemon.*`, `rpc.discover` and `env.*` are below the table,
//! because they convert types or concern the process. No value of an environment variable enters a log or an error.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ollm_protocol::methods::backup::BackupRestoreParams;
use ollm_protocol::methods::daemon::{
    DaemonDoctorResult, DaemonHelloParams, DaemonHelloResult, DaemonReloadResult,
    DaemonShutdownParams, DaemonShutdownResult, DaemonStatusResult, Limits, ModelServerAddress,
    NoParams, RunningWork, WorkKind,
};
use ollm_protocol::methods::env::{EnvRulesResult, EnvSanitizeParams, EnvSanitizeResult};
use ollm_protocol::{ErrorKind, PROTOCOL_VERSION, SCHEMA_REVISION, limits, method as m};
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::discover::document;
use super::error::RpcError;
use super::{Handles, Registry, result_json, streams};
use crate::app::branches::{branch, fork, operations, restore, tree, undo};
use crate::app::compaction::request as compaction;
use crate::app::context::{build, entries, facts, goals, inspect, pins, recall, used_files};
use crate::app::core::Core;
use crate::app::hooks::methods as hooks;
use crate::app::sessions::{
    blame, create, delete, documents, export, import, input, list, read, update,
};
use crate::app::{backups, chat, files, loops, models, snapshots, store_check};
use crate::env::{EnvironmentRules, SanitizedEnvironment, URL_CREDENTIALS};

/// Registers every method.
pub(super) fn register(registry: &mut Registry) {
    streams::register(registry);
    daemon(registry);
    session(registry);
    snapshot(registry);
    context(registry);

    registry.app::<m::GoalChange, _, _>(goals::change);
    registry.app_blocking::<m::GoalList>(goals::list);

    registry.app::<m::ModelList, _, _>(models::list);
    registry.app::<m::ModelShow, _, _>(models::show);
    registry.app::<m::ModelRunning, _, _>(models::running);
    registry.app::<m::ModelServers, _, _>(models::servers::report);
    registry.app::<m::ModelWarm, _, _>(models::warm);
    registry.app::<m::ModelCountTokens, _, _>(models::count_tokens);
    registry.app_blocking::<m::ModelFitText>(models::fit::fit_text);

    registry.app_page::<m::FilesDiscover, _, _>(files::discover);
    registry.app::<m::FilesSearch, _, _>(files::search);
    registry.app::<m::FilesStatus, _, _>(files::status);

    registry.app_blocking::<m::HookList>(hooks::list);
    registry.app_blocking::<m::HookTrust>(hooks::trust);
    registry.app_blocking::<m::HookUntrust>(hooks::untrust);
    registry.app::<m::HookTest, _, _>(hooks::test);

    registry.app_until_left::<m::StoreVerify, _, _>(store_check::verify);
    registry.app_until_left::<m::BackupCreate, _, _>(backups::create);
    registry.app_blocking::<m::BackupList>(backups::list);
    registry.app_until_left::<m::BackupVerify, _, _>(backups::verify);
    registry.register_with::<m::BackupRestore, _, _>(restore_backup);
    registry.app_until_left::<m::BackupPrune, _, _>(backups::prune);

    registry.app::<m::LoopStatus, _, _>(loops::status);
    registry.app::<m::LoopReset, _, _>(loops::reset);

    registry.app::<m::ChatSubmitToolResults, _, _>(chat::submit_tool_results);
    registry.app::<m::ChatCancel, _, _>(chat::cancel);
}

fn daemon(registry: &mut Registry) {
    // Each command of `ollmctl` begins with this call, and the reply changes only with the model server.
    let last = Arc::<LastHello>::default();
    registry.register::<m::DaemonHello, _, _>(move |handles, params| {
        let last = Arc::clone(&last);
        async move { hello(&handles, params, &last) }
    });
    registry.handler::<m::DaemonStatus, _, _>(status);
    registry.handler::<m::DaemonDoctor, _, _>(doctor);
    registry.handler::<m::DaemonReload, _, _>(reload);
    registry.handler::<m::DaemonShutdown, _, _>(shutdown);
    registry.handler::<m::RpcDiscover, _, _>(discover);
    registry.handler::<m::EnvRules, _, _>(env_rules);
    registry.handler::<m::EnvSanitize, _, _>(env_sanitize);
}

fn session(registry: &mut Registry) {
    registry.app::<m::SessionCreate, _, _>(create::create_checked);
    registry.app::<m::SessionRecord, _, _>(input::record);
    registry.app::<m::SessionRecordToolCall, _, _>(input::record_tool_call);
    registry.app::<m::SessionRecordCustom, _, _>(input::record_custom);
    registry.app_blocking::<m::SessionGet>(read::get);
    registry.app_blocking::<m::SessionGetRecord>(read::get_record);
    registry.app_blocking::<m::SessionGetFileContent>(read::get_file_content);
    registry.app_blocking::<m::SessionResume>(read::resume);
    registry.app_blocking::<m::SessionList>(list::list);
    registry.app_blocking::<m::SessionSearch>(list::search);
    registry.app_blocking::<m::SessionCurrent>(list::current);
    registry.app_blocking::<m::SessionSetCurrent>(list::set_current);
    registry.app_blocking::<m::SessionSetProjectServers>(list::set_project_servers);
    registry.app::<m::SessionUpdate, _, _>(update::update);
    registry.app::<m::SessionSetMode, _, _>(update::set_mode);
    registry.app::<m::SessionArchive, _, _>(update::archive);
    registry.app::<m::SessionUnarchive, _, _>(update::unarchive);
    registry.app::<m::SessionClose, _, _>(update::close);
    registry.app_blocking::<m::SessionDelete>(delete::delete);
    registry.app_blocking::<m::SessionClear>(delete::clear);
    registry.app_blocking::<m::SessionCleanup>(delete::cleanup);
    registry.app_blocking::<m::SessionExport>(export::export);
    registry.app_blocking::<m::SessionImport>(import::import);
    registry.app_blocking::<m::SessionSave>(documents::save);
    registry.app::<m::SessionBranch, _, _>(branch::branch);
    registry.app_blocking::<m::SessionTree>(tree::tree);
    registry.app::<m::SessionLabel, _, _>(tree::label);
    registry.app_until_left::<m::SessionUndo, _, _>(undo::undo);
    registry.app_until_left::<m::SessionRedo, _, _>(undo::redo);
    registry.app_blocking::<m::SessionOperations>(operations::operations);
    registry.app::<m::SessionFiles, _, _>(used_files::list);
    registry.app_blocking::<m::SessionBlame>(blame::blame);
    registry.app_blocking::<m::SessionFork>(fork::fork);
}

fn snapshot(registry: &mut Registry) {
    registry.app::<m::SnapshotCreate, _, _>(snapshots::create::create);
    registry.app_blocking::<m::SnapshotList>(snapshots::manage::list);
    registry.app_blocking::<m::SnapshotGet>(snapshots::manage::get);
    registry.app_blocking::<m::SnapshotUpdate>(snapshots::manage::update);
    registry.app_until_left::<m::SnapshotRestore, _, _>(restore::restore);
    registry.app_blocking::<m::SnapshotDelete>(snapshots::manage::delete);
}

fn context(registry: &mut Registry) {
    registry.app::<m::ContextBuild, _, _>(build::build);
    registry.app::<m::ContextStatus, _, _>(inspect::status);
    registry.app::<m::ContextInspect, _, _>(inspect::inspect);
    registry.app::<m::ContextGetBuild, _, _>(inspect::get_build);
    registry.app_blocking::<m::ContextRecall>(recall::recall);
    registry.app::<m::ContextCompact, _, _>(compaction::compact);
    registry.app::<m::ContextCheckpoints, _, _>(compaction::checkpoints);
    registry.app::<m::ContextAddEntry, _, _>(entries::add);
    registry.app::<m::ContextRemoveEntry, _, _>(entries::remove);
    registry.app_blocking::<m::ContextListEntries>(entries::list);
    registry.app::<m::ContextPin, _, _>(pins::pin);
    registry.app::<m::ContextUnpin, _, _>(pins::unpin);
    registry.app_blocking::<m::ContextFacts>(facts::list);
    registry.app::<m::ContextForgetFact, _, _>(facts::forget);
}

/// The last reply to `daemon.hello`, and the model server that it names.
type LastHello = Mutex<Option<(ModelServerAddress, Box<RawValue>)>>;

/// Replies to a client that speaks the protocol of this daemon; `last` keeps the reply.
fn hello(
    handles: &Handles,
    params: DaemonHelloParams,
    last: &LastHello,
) -> Result<Box<RawValue>, RpcError> {
    tracing::debug!(client = params.client, version = params.version, "hello from a client");
    if !(params.protocol_min..=params.protocol_max).contains(&PROTOCOL_VERSION) {
        return Err(unsupported_version(params));
    }
    let core = &handles.core;
    let model_server = ModelServerAddress {
        host: core.models.default_server().host(),
        configured: core.config().is_ollama_host_set,
    };
    let mut last = last.lock();
    if let Some((server, reply)) = &*last
        && *server == model_server
    {
        return Ok(reply.clone());
    }
    let json = result_json(&DaemonHelloResult {
        protocol: PROTOCOL_VERSION,
        schema_revision: SCHEMA_REVISION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        epoch: core.events.epoch().to_owned(),
        home_id: Some(handles.home_id.clone()),
        model_server: Some(model_server.clone()),
        limits: Limits { field_bytes: limits::field_bytes(), ..handles.limits.clone() },
    })?;
    Ok(last.insert((model_server, json)).1.clone())
}

fn unsupported_version(params: DaemonHelloParams) -> RpcError {
    let DaemonHelloParams { client, version, protocol_min, protocol_max } = params;
    let message = format!(
        "{client} {version} speaks protocol {protocol_min} to {protocol_max}, \
         and this daemon, ollmd {}, speaks {PROTOCOL_VERSION}",
        env!("CARGO_PKG_VERSION"),
    );
    RpcError::new(ErrorKind::UnsupportedVersion, message)
        .with_hint("ollmctl daemon restart")
        .with_field("found", protocol_max)
        .with_field("supported", PROTOCOL_VERSION)
}

async fn status(handles: Arc<Handles>, _: NoParams) -> Result<DaemonStatusResult, RpcError> {
    handles.control.status().await
}

async fn doctor(handles: Arc<Handles>, _: NoParams) -> Result<DaemonDoctorResult, RpcError> {
    handles.control.doctor().await
}

async fn reload(handles: Arc<Handles>, _: NoParams) -> Result<DaemonReloadResult, RpcError> {
    handles.control.reload().await
}

/// Restores a backup, and reads the configuration that came with it.
async fn restore_backup(
    handles: Arc<Handles>,
    params: BackupRestoreParams,
    left: CancellationToken,
) -> Result<Box<RawValue>, RpcError> {
    let result = backups::restore(Arc::clone(&handles.core), params, left).await?;
    if result.config_restored
        && let Err(error) = handles.control.reload().await
    {
        // Everything was restored all the same. The next start names the mistake too.
        tracing::error!("the restored configuration is not in force: {error}");
    }
    result_json(&result)
}

/// Asks the daemon to stop. The reply still reaches the caller: connections send the replies of running calls first.
async fn shutdown(
    handles: Arc<Handles>,
    params: DaemonShutdownParams,
) -> Result<DaemonShutdownResult, RpcError> {
    let DaemonShutdownParams { if_idle, restart } = params;
    let stop = || {
        tracing::info!(restart, "a client asked the daemon to stop");
        handles.is_restarting.store(restart, Ordering::Relaxed);
        handles.shutdown.stop();
    };
    if !if_idle {
        stop();
    } else if !stop_if_idle(&handles.core, stop) {
        return Err(still_working(running_work(&handles.core)));
    }
    Ok(DaemonShutdownResult { pid: std::process::id() })
}

/// Calls `stop` unless work of a client is running. No turn can begin in between.
fn stop_if_idle(core: &Core, stop: impl FnOnce()) -> bool {
    compactions_of_clients(core).next().is_none() && core.turns.if_free(stop)
}

/// Lists the work of clients, the oldest first.
fn running_work(core: &Core) -> Vec<RunningWork> {
    let turns = core.turns.all().into_iter().map(|(session_id, turn)| RunningWork {
        session_id,
        work: WorkKind::Turn,
        model: Some(turn.model.clone()),
        started_at: turn.started,
    });
    let mut work: Vec<_> = turns.chain(compactions_of_clients(core)).collect();
    work.sort_by_key(|work| work.started_at);
    work
}

/// Lists the compactions that clients asked for.
fn compactions_of_clients(core: &Core) -> impl Iterator<Item = RunningWork> {
    let all = core.compactions.all().into_iter();
    let of_clients = all.filter(|(_, compaction)| !compaction.trigger.is_automatic());
    of_clients.map(|(session_id, compaction)| RunningWork {
        session_id,
        work: WorkKind::Compaction,
        model: None,
        started_at: compaction.started,
    })
}

fn still_working(work: Vec<RunningWork>) -> RpcError {
    let message = "the daemon was not stopped, because it works for a client";
    let running = serde_json::to_value(work).unwrap_or_default();
    RpcError::new(ErrorKind::Busy, message).with_field("running", running)
}

async fn discover(_: Arc<Handles>, _: NoParams) -> Result<Value, RpcError> {
    Ok(document().clone())
}

async fn env_rules(handles: Arc<Handles>, _: NoParams) -> Result<EnvRulesResult, RpcError> {
    let rules = EnvironmentRules::new(&handles.core.config().environment);
    Ok(EnvRulesResult {
        core: rules.core_patterns(),
        deny: rules.deny_patterns(),
        allow: rules.allow_patterns(),
        deny_values: vec![URL_CREDENTIALS.to_owned()],
        warnings: rules.warnings().to_vec(),
    })
}

async fn env_sanitize(
    handles: Arc<Handles>,
    params: EnvSanitizeParams,
) -> Result<EnvSanitizeResult, RpcError> {
    let bytes = limits::json_bytes(&params.variables);
    if bytes > limits::MAX_VARIABLES_BYTES {
        let message = format!("the variables have {bytes} bytes of JSON");
        let error = RpcError::new(ErrorKind::TooLarge, message).with_field("field", "variables");
        return Err(error.with_field("limit", limits::MAX_VARIABLES_BYTES));
    }
    let rules = EnvironmentRules::new(&handles.core.config().environment);
    let SanitizedEnvironment { passed, removed } = rules.sanitize(params.variables);
    Ok(EnvSanitizeResult { variables: passed, removed, warnings: rules.warnings().to_vec() })
}
