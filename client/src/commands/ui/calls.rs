//! The calls of the view: what it asks the daemon, and the answers. The state makes calls and never waits for them.
//!
//! **Invariant**: every call has a deadline, and an answer or a problem in words.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{FilesMode, Session, SnapshotInfo};
use ollm_protocol::method::{
    ContextCheckpoints, ContextStatus, SessionArchive, SessionBranch, SessionDelete, SessionFork,
    SessionGet, SessionList, SessionRedo, SessionSearch, SessionTree, SessionUnarchive,
    SessionUndo, SessionUpdate, SnapshotCreate, SnapshotList, SnapshotRestore,
};
use ollm_protocol::methods::context::{
    ContextCheckpointsResult, ContextStatusParams, ContextStatusResult,
};
use ollm_protocol::methods::session::branches::{
    SessionBranchParams, SessionForkParams, SessionTreeParams, SessionTreeResult,
    SessionUndoParams, SessionUndoResult,
};
use ollm_protocol::methods::session::{
    BranchFilter, SessionGetParams, SessionGetResult, SessionIdParams, SessionListParams,
    SessionListResult, SessionSearchParams, SessionSearchResult, SessionUpdateParams,
};
use ollm_protocol::methods::snapshot::{
    SnapshotCreateParams, SnapshotListParams, SnapshotRestoreParams, SnapshotRestoreResult,
};
use ollm_protocol::{ErrorKind, PlanId, Seq, SessionId, SnapshotId};

use super::state::preview::PreviewTarget;
use super::state::search::SearchRequest;
use super::state::window::PageRequest;
use super::text::shown_line;
use crate::command_error::CommandError;
use crate::commands::undo::StepDirection;
use crate::connection::AsyncClient;
use crate::error::ClientError;

/// The longest wait for something that is read. A long log is read first, and its disk may be slow.
const READ_LIMIT: Duration = Duration::from_secs(120);
/// The longest wait for a change: a deletion of a large session, or a move that puts many files back.
pub(super) const CHANGE_LIMIT: Duration = Duration::from_secs(600);
/// Nodes of a page of a tree.
const PAGE_NODES: u32 = 1000;
/// The records from which the earlier fullness of the window is read.
const HISTORY_RECORDS: u32 = 500;
/// The snapshots that a tree shows.
const SHOWN_SNAPSHOTS: u32 = 200;

/// A call.
#[derive(Clone, Debug)]
pub(super) enum UiCall {
    /// A page of the list; `ticket` names the filters of then.
    List {
        ticket: u64,
        request: PageRequest,
        params: SessionListParams,
    },
    /// Requests a session that changed; the answer is empty if the filters of the list do not admit it.
    One {
        ticket: u64,
        session_id: SessionId,
        params: SessionListParams,
    },
    Titles {
        request: SearchRequest,
        params: SessionListParams,
    },
    Hits {
        request: SearchRequest,
        params: SessionSearchParams,
    },
    Records(PreviewTarget),
    Tree {
        session_id: SessionId,
        cursor: Option<String>,
    },
    Status(SessionId),
    History(SessionId),
    Snapshots(SessionId),
    Checkpoints(SessionId),
    Rename {
        session_id: SessionId,
        title: String,
    },
    Archive {
        session_id: SessionId,
        archive: bool,
    },
    Delete(SessionId),
    Fork {
        session_id: SessionId,
        at: Option<Seq>,
    },
    Branch {
        session_id: SessionId,
        to: Seq,
    },
    Snapshot(SessionId),
    /// Returns what a step would do.
    PreviewStep {
        session_id: SessionId,
        step: StepDirection,
    },
    /// Undoes or redoes the operation, if it is still the next one; with a plan, its files too.
    Step {
        session_id: SessionId,
        step: StepDirection,
        operation: Seq,
        plan: Option<PlanId>,
    },
    /// Returns what the restore of a snapshot would do.
    PreviewRestore {
        session_id: SessionId,
        snapshot_id: SnapshotId,
    },
    /// Restores a snapshot; with a plan, the files of then too.
    Restore {
        session_id: SessionId,
        snapshot_id: SnapshotId,
        plan: Option<PlanId>,
    },
}

impl UiCall {
    /// Returns whether the call changes something.
    pub(super) const fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Rename { .. }
                | Self::Archive { .. }
                | Self::Delete(_)
                | Self::Fork { .. }
                | Self::Branch { .. }
                | Self::Snapshot(_)
                | Self::Step { .. }
                | Self::Restore { .. }
        )
    }
}

/// The answer to a call, by its kind.
#[derive(Clone, Debug)]
pub(super) enum UiAnswer {
    List(SessionListResult),
    Hits(SessionSearchResult),
    Records(Box<SessionGetResult>),
    Tree(SessionTreeResult),
    Status(Box<ContextStatusResult>),
    Snapshots(Vec<SnapshotInfo>),
    Checkpoints(Box<ContextCheckpointsResult>),
    Session(Box<Session>),
    Step(SessionUndoResult),
    Restore(Box<SnapshotRestoreResult>),
    /// The change is made.
    Done,
}

/// A failed call, in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallProblem {
    pub(super) text: String,
    /// Set if the session does not exist any more.
    pub(super) is_gone: bool,
    /// Set if the connection was lost, so that nobody knows whether a change was made.
    pub(super) is_lost: bool,
}

impl CallProblem {
    fn of(error: ClientError) -> Self {
        let is_gone = matches!(&error, ClientError::Rpc(failure)
            if failure.kind == Some(ErrorKind::SessionNotFound));
        let is_lost = matches!(error, ClientError::Transport { .. } | ClientError::Closed { .. });
        let hint = error.hint().map_or_else(String::new, |hint| format!("; try: {hint}"));
        let text = shown_line(&format!("{}{hint}", CommandError::from(error).message()));
        Self { text, is_gone, is_lost }
    }
}

/// Makes a call and waits for its answer.
pub(super) async fn perform(
    client: Arc<AsyncClient>,
    call: UiCall,
    limit: Option<Duration>,
) -> Result<UiAnswer, CallProblem> {
    let default = if call.is_change() { CHANGE_LIMIT } else { READ_LIMIT };
    let limit = limit.unwrap_or(default);
    match tokio::time::timeout(limit, answer(&client, call)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallProblem::of(error)),
        Err(_) => {
            let text = format!("no reply within {} s", limit.as_secs());
            Err(CallProblem { text, is_gone: false, is_lost: false })
        }
    }
}

async fn answer(client: &AsyncClient, call: UiCall) -> Result<UiAnswer, ClientError> {
    match call {
        UiCall::List { params, .. }
        | UiCall::One { params, .. }
        | UiCall::Titles { params, .. } => {
            Ok(UiAnswer::List(client.call::<SessionList>(&params).await?))
        }
        UiCall::Hits { params, .. } => {
            Ok(UiAnswer::Hits(client.call::<SessionSearch>(&params).await?))
        }
        UiCall::Records(target) => {
            Ok(UiAnswer::Records(Box::new(client.call::<SessionGet>(&target.params()).await?)))
        }
        UiCall::Tree { session_id, cursor } => {
            let params = SessionTreeParams { session_id, limit: Some(PAGE_NODES), cursor };
            Ok(UiAnswer::Tree(client.call::<SessionTree>(&params).await?))
        }
        UiCall::Status(session_id) => {
            let params = ContextStatusParams { session_id, context_size: None };
            Ok(UiAnswer::Status(Box::new(client.call::<ContextStatus>(&params).await?)))
        }
        UiCall::History(session_id) => {
            let (from, limit) = (Some(-i64::from(HISTORY_RECORDS)), Some(HISTORY_RECORDS));
            let params = SessionGetParams { session_id, from, limit, branch: BranchFilter::Active };
            Ok(UiAnswer::Records(Box::new(client.call::<SessionGet>(&params).await?)))
        }
        UiCall::Snapshots(session_id) => {
            let (session_id, limit) = (Some(session_id), Some(SHOWN_SNAPSHOTS));
            let params = SnapshotListParams { session_id, limit, cursor: None };
            Ok(UiAnswer::Snapshots(client.call::<SnapshotList>(&params).await?.data))
        }
        UiCall::Checkpoints(session_id) => {
            let params = SessionIdParams { session_id };
            Ok(UiAnswer::Checkpoints(Box::new(client.call::<ContextCheckpoints>(&params).await?)))
        }
        other => change(client, other).await,
    }
}

async fn change(client: &AsyncClient, call: UiCall) -> Result<UiAnswer, ClientError> {
    match call {
        UiCall::Rename { session_id, title } => {
            let title = Some(title);
            let params = SessionUpdateParams { title, ..SessionUpdateParams::new(session_id) };
            let session = client.call::<SessionUpdate>(&params).await?.session;
            Ok(UiAnswer::Session(Box::new(session)))
        }
        UiCall::Archive { session_id, archive } => {
            let params = SessionIdParams { session_id };
            let session = match archive {
                true => client.call::<SessionArchive>(&params).await?.session,
                false => client.call::<SessionUnarchive>(&params).await?.session,
            };
            Ok(UiAnswer::Session(Box::new(session)))
        }
        UiCall::Delete(session_id) => {
            client.call::<SessionDelete>(&SessionIdParams { session_id }).await?;
            Ok(UiAnswer::Done)
        }
        UiCall::Fork { session_id, at } => {
            let params = SessionForkParams { session_id, at_seq: at, title: None, key: None };
            let session = client.call::<SessionFork>(&params).await?.session;
            Ok(UiAnswer::Session(Box::new(session)))
        }
        UiCall::Branch { session_id, to } => {
            let (to_seq, summarize) = (Some(to), false);
            let params = SessionBranchParams { session_id, to_seq, summarize, key: None };
            client.call::<SessionBranch>(&params).await?;
            Ok(UiAnswer::Done)
        }
        UiCall::Snapshot(session_id) => {
            let (reason, pinned, summary, key) = (None, false, None, None);
            let params = SnapshotCreateParams { session_id, reason, pinned, summary, key };
            client.call::<SnapshotCreate>(&params).await?;
            Ok(UiAnswer::Done)
        }
        UiCall::PreviewStep { session_id, step } => {
            let files = FilesMode::Preview;
            let params = SessionUndoParams { files, ..SessionUndoParams::new(session_id, 1) };
            take_step(client, step, &params).await
        }
        UiCall::Step { session_id, step, operation, plan } => {
            let params = SessionUndoParams {
                operation: Some(operation),
                files: if plan.is_some() { FilesMode::Apply } else { FilesMode::Skip },
                plan_id: plan,
                ..SessionUndoParams::new(session_id, 1)
            };
            take_step(client, step, &params).await
        }
        UiCall::PreviewRestore { session_id, snapshot_id } => {
            let files = FilesMode::Preview;
            restore(client, (session_id, snapshot_id), files, None).await
        }
        UiCall::Restore { session_id, snapshot_id, plan } => {
            let files = if plan.is_some() { FilesMode::Apply } else { FilesMode::Skip };
            restore(client, (session_id, snapshot_id), files, plan).await
        }
        _ => Ok(UiAnswer::Done),
    }
}

async fn restore(
    client: &AsyncClient,
    (session_id, snapshot_id): (SessionId, SnapshotId),
    files: FilesMode,
    plan: Option<PlanId>,
) -> Result<UiAnswer, ClientError> {
    let params = SnapshotRestoreParams {
        session_id: Some(session_id),
        dry_run: matches!(files, FilesMode::Preview),
        files,
        plan_id: plan,
        ..SnapshotRestoreParams::new(snapshot_id)
    };
    Ok(UiAnswer::Restore(Box::new(client.call::<SnapshotRestore>(&params).await?)))
}

async fn take_step(
    client: &AsyncClient,
    step: StepDirection,
    params: &SessionUndoParams,
) -> Result<UiAnswer, ClientError> {
    let result = match step {
        StepDirection::Back => client.call::<SessionUndo>(params).await,
        StepDirection::Forward => client.call::<SessionRedo>(params).await,
    };
    Ok(UiAnswer::Step(result?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::RpcFailure;

    #[test]
    fn problem_names_no_param_and_has_its_hint() {
        let problem = |kind: &str, message: &str| {
            let data = Some(json!({ "kind": kind, "hint": "ollmctl sessions list" }));
            let failure = RpcFailure::new(-32602, message.to_owned(), data);
            CallProblem::of(ClientError::Rpc(Box::new(failure)))
        };
        let refused = problem("invalidParams", "steps: there is nothing to redo");
        assert_eq!(refused.text, "there is nothing to redo; try: ollmctl sessions list");
        assert!(!refused.is_gone && !refused.is_lost);
        assert!(problem("sessionNotFound", "there is no such session").is_gone);
    }
}
