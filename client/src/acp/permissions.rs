//! Decides whether a tool runs, by the rules of the session, else by the person at the editor, who can also add a rule.

use ollm_protocol::content::{
    PermissionDecision, ToolPermission, decide, permissions, set_permission,
};
use ollm_protocol::method::{SessionGet, SessionUpdate as UpdateSession};
use ollm_protocol::methods::session::SessionUpdateParams;
use serde_json::json;

use super::agent::{Agent, log};
use super::schema::{PermissionAnswer, PermissionOutcome, SessionActivity, ToolCallReport};
use super::sessions::EditorSession;
use crate::commands::sessions::options::of_session;
use crate::commands::sessions::permissions::with_permissions;
use crate::error::ClientError;

/// The answers that a person can choose: id, which is the kind of the protocol too, and name.
const OPTIONS: [(&str, &str); 4] = [
    ("allow_once", "Allow"),
    ("allow_always", "Always allow in this session"),
    ("reject_once", "Reject"),
    ("reject_always", "Always reject in this session"),
];

/// Decides about a call of a tool. Returns the text for the model if the tool must not run.
pub(super) async fn check(
    agent: &Agent,
    session: &EditorSession,
    tool: &str,
    report: &ToolCallReport,
) -> Result<(), String> {
    let refused = || "The user does not allow this call.".to_owned();
    match decision(agent, session, tool).await {
        PermissionDecision::Allow => return Ok(()),
        PermissionDecision::Deny => return Err("The user does not allow this tool.".to_owned()),
        PermissionDecision::Ask => {}
    }
    let options = OPTIONS.map(|(id, name)| json!({ "optionId": id, "name": name, "kind": id }));
    let params = agent.version().question(&session.name, report, &options);
    session.show_state(agent, SessionActivity::RequiresAction).await;
    let answer = match agent.editor.request("session/request_permission", &params).await {
        Ok(answer) => serde_json::from_value::<PermissionAnswer>(answer).ok(),
        Err(error) => {
            log(&format!("the editor cannot ask about a tool: {}", error.message));
            None
        }
    };
    let chosen = answer.and_then(|answer| match answer.outcome {
        PermissionOutcome::Selected { option_id } => Some(option_id),
        PermissionOutcome::Other => None,
    });
    match chosen.as_deref() {
        Some("allow_once") => Ok(()),
        Some("allow_always") => {
            keep(agent, session, tool, PermissionDecision::Allow).await;
            Ok(())
        }
        Some("reject_always") => {
            keep(agent, session, tool, PermissionDecision::Deny).await;
            Err(refused())
        }
        _ => Err(refused()),
    }
}

/// Returns what the rules of the session say. Rules that cannot be read allow nothing.
async fn decision(agent: &Agent, session: &EditorSession, tool: &str) -> PermissionDecision {
    let found = agent.daemon.call::<SessionGet>(&of_session(session.id())).await;
    match found.map(|found| permissions(&found.session.metadata)) {
        Ok(Ok(rules)) => decide(&rules, tool),
        Ok(Err(_)) | Err(_) => PermissionDecision::Ask,
    }
}

/// Adds a rule. One that cannot be kept holds for this call alone.
async fn keep(agent: &Agent, session: &EditorSession, tool: &str, decision: PermissionDecision) {
    let kept = async {
        let id = session.id();
        let metadata = agent.daemon.call::<SessionGet>(&of_session(id)).await?.session.metadata;
        let mut rules = permissions(&metadata).unwrap_or_default();
        set_permission(&mut rules, ToolPermission { tool: tool.to_owned(), decision });
        let metadata = Some(with_permissions(&rules));
        let params = SessionUpdateParams { metadata, ..SessionUpdateParams::new(id) };
        agent.daemon.call::<UpdateSession>(&params).await.map(drop)
    };
    let kept: Result<(), ClientError> = kept.await;
    if let Err(error) = kept {
        log(&format!("the permission of {tool} could not be kept: {error}"));
    }
}
