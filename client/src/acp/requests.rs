//! The requests of the editor that open, list, close and remove sessions, and that cancel a tool call in one.

use std::path::Path;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::method::{
    SessionClose, SessionCreate, SessionDelete, SessionFork, SessionList, SessionResume,
    SessionUpdate as UpdateSession,
};
use ollm_protocol::methods::session::branches::SessionForkParams;
use ollm_protocol::methods::session::{
    SessionIdParams, SessionListParams, SessionResumeParams, SessionUpdateParams,
};
use serde_json::{Value, json};

use super::agent::{Agent, RequestResult, log};
use super::history;
use super::schema::{
    CancelToolCall, ListSessions, McpServer, OnlySession, RequestError, SessionActivity,
    SessionToBegin, SessionToOpen, SessionUpdate, code,
};
use super::sessions::{EditorSession, create_params};
use super::settings::Choices;

/// Sessions of a page of `session/list`.
const PAGE_SESSIONS: u32 = 50;
/// The directory of a session that has no project: every path is below it.
const NO_PROJECT: &str = "/";

/// Returns the session of the daemon that the editor names.
fn session_id(agent: &Agent, name: &str) -> RequestResult<SessionId> {
    if let Ok(open) = agent.open.find(name) {
        return Ok(open.id());
    }
    let unknown = || RequestError::new(code::NOT_FOUND, format!("there is no session {name}"));
    name.parse().map_err(|_| unknown())
}

fn check_place(agent: &Agent, cwd: &str, servers: &[McpServer]) -> RequestResult<()> {
    if Path::new(cwd).is_absolute() {
        return agent.version().check_servers(servers);
    }
    Err(RequestError::invalid("cwd must be an absolute path"))
}

/// Begins a session (`session/new`). Nothing is written before its first prompt.
pub(super) async fn new(agent: &Arc<Agent>, params: SessionToBegin) -> RequestResult {
    let SessionToBegin { cwd, mcp_servers } = params;
    check_place(agent, &cwd, &mcp_servers)?;
    let models = agent.models.refresh(agent).await;
    let model = agent.model.clone().or_else(|| models.needed());
    let choices = Choices { model, ..Choices::default() };
    let created = agent.daemon.call::<SessionCreate>(&create_params(cwd.clone(), &choices)).await?;
    let name = created.session.session_id.to_string();
    let session = EditorSession::new(agent, &created.session, name, cwd, mcp_servers);
    Ok(session.opened(agent, true))
}

/// Opens a session (`session/resume`), and shows all of it if `replays` is set (`session/load`).
pub(super) async fn reopen(
    agent: &Arc<Agent>,
    params: SessionToOpen,
    replays: bool,
) -> RequestResult {
    let session = open(agent, params).await?;
    if replays {
        // What happens meanwhile is told behind the history.
        session.hold_news();
        if let Err(error) = history::replay(agent, &session, None).await {
            drop(agent.open.remove(&session.name));
            session.tools.close().await;
            return Err(error.into());
        }
        agent.editor.update(&session.name, SessionUpdate::ReplayComplete {}).await;
        session.tell_news(agent).await;
    }
    tell_state(agent, &session).await;
    Ok(session.opened(agent, false))
}

/// Copies a session and opens the copy (`session/fork`).
pub(super) async fn fork(agent: &Arc<Agent>, params: SessionToOpen) -> RequestResult {
    check_place(agent, &params.cwd, &params.mcp_servers)?;
    let params = {
        let id = session_id(agent, &params.session_id)?;
        let fork = SessionForkParams { session_id: id, at_seq: None, title: None, key: None };
        let fork = agent.daemon.call::<SessionFork>(&fork).await?.session;
        if fork.project_path.as_deref() != Some(&params.cwd) {
            let moved = SessionUpdateParams {
                project_path: Some(params.cwd.clone()),
                ..SessionUpdateParams::new(fork.session_id)
            };
            let _session = agent.daemon.call::<UpdateSession>(&moved).await?;
        }
        SessionToOpen { session_id: fork.session_id.to_string(), ..params }
    };
    let session = open(agent, params).await?;
    Ok(session.opened(agent, true))
}

async fn open(agent: &Arc<Agent>, params: SessionToOpen) -> RequestResult<Arc<EditorSession>> {
    let SessionToOpen { session_id: name, cwd, mcp_servers, .. } = params;
    check_place(agent, &cwd, &mcp_servers)?;
    let id = session_id(agent, &name)?;
    let resumed = SessionResumeParams { session_id: id, limit: Some(1) };
    let (resumed, _) =
        tokio::join!(agent.daemon.call::<SessionResume>(&resumed), agent.models.refresh(agent));
    let session = resumed?.session;
    if let Some(earlier) = agent.open.remove(&name) {
        earlier.stop(agent).await;
        earlier.tools.close().await;
    }
    Ok(EditorSession::new(agent, &session, name, cwd, mcp_servers))
}

/// Shows the plan, how full the window is, and what the session does. A session can be opened without the first two.
async fn tell_state(agent: &Agent, session: &EditorSession) {
    for told in [session.tell_plan(agent).await, session.tell_usage(agent).await] {
        if let Err(error) = told {
            log(&format!("the state of a session could not be read: {error}"));
        }
    }
    agent.editor.update(&session.name, SessionUpdate::StateUpdate(SessionActivity::IDLE)).await;
}

/// Lists sessions, the newest first (`session/list`).
pub(super) async fn list(agent: &Agent, params: ListSessions) -> RequestResult {
    let params = SessionListParams {
        project_path: params.cwd,
        limit: Some(PAGE_SESSIONS),
        cursor: params.cursor,
        ..SessionListParams::default()
    };
    let page = agent.daemon.call::<SessionList>(&params).await?;
    let sessions: Vec<Value> = page
        .data
        .iter()
        .map(|session| {
            let mut info = json!({
                "sessionId": session.session_id,
                "cwd": session.project_path.as_deref().unwrap_or(NO_PROJECT),
                "updatedAt": session.last_activity,
            });
            if !session.title.is_empty() {
                info["title"] = json!(session.title);
            }
            info
        })
        .collect();
    let mut result = json!({ "sessions": sessions });
    if let Some(cursor) = page.next_cursor {
        result["nextCursor"] = json!(cursor);
    }
    Ok(result.into())
}

/// Closes an open session (`session/close`).
pub(super) async fn close(agent: &Agent, params: OnlySession) -> RequestResult {
    let session = agent.open.find(&params.session_id)?;
    session.stop(agent).await;
    drop(agent.open.remove(&session.name));
    session.tools.close().await;
    if let Some(session_id) = session.written_id() {
        let _session = agent.daemon.call::<SessionClose>(&SessionIdParams { session_id }).await?;
    }
    Ok(json!({}).into())
}

/// Cancels a running tool call (`tool_call/cancel`).
pub(super) fn cancel_tool_call(agent: &Agent, params: &CancelToolCall) -> RequestResult {
    let CancelToolCall { session_id, tool_call_id } = params;
    if agent.open.find(session_id)?.tool_calls.cancel(tool_call_id) {
        return Ok(json!({}).into());
    }
    Err(RequestError::invalid(format!("the tool call {tool_call_id} does not run")))
}

/// Deletes a session, open or not (`session/delete`).
pub(super) async fn delete(agent: &Agent, params: OnlySession) -> RequestResult {
    let session_id = session_id(agent, &params.session_id)?;
    if let Some(session) = agent.open.remove(&params.session_id) {
        session.stop(agent).await;
        session.tools.close().await;
    }
    let _deleted = agent.daemon.call::<SessionDelete>(&SessionIdParams { session_id }).await?;
    Ok(json!({}).into())
}
