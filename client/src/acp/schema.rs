//! The messages of ACP, the Agent Client Protocol: what an editor sends, and what the agent answers and reports.
//!
//! Only the fields that the agent uses. Unknown fields and kinds of content are ignored, because editors are newer or older
//! than this program. The form is that of version 1, and beside it stands what only version 2 has; [`AcpVersion`] decides what
//! of it is written. Source: the schema of the npm package `@agentclientprotocol/sdk` 2.4.0, `schema/v1`; `fork` and the
//! usage of an answer are of its unstable part.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::{DefaultOnNull, serde_as, skip_serializing_none};

use super::version::AcpVersion;

/// The error of a request.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RequestError {
    pub(super) code: i32,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

/// The codes of JSON-RPC and ACP.
pub(super) mod code {
    pub(in crate::acp) const PARSE: i32 = -32700;
    pub(in crate::acp) const INVALID_REQUEST: i32 = -32600;
    pub(in crate::acp) const METHOD_NOT_FOUND: i32 = -32601;
    pub(in crate::acp) const INVALID_PARAMS: i32 = -32602;
    pub(in crate::acp) const INTERNAL: i32 = -32603;
    pub(in crate::acp) const CANCELED: i32 = -32800;
    pub(in crate::acp) const NOT_FOUND: i32 = -32002;
}

impl RequestError {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_PARAMS, message)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Initialize {
    pub(super) protocol_version: Value,
    pub(super) client_capabilities: ClientCapabilities,
}

/// The version that the editor speaks, and the kinds of updates that it shows.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClientCapabilities {
    /// The version of the protocol that was agreed on.
    #[serde(skip)]
    pub(super) version: AcpVersion,
    session: Option<ClientSessionCapabilities>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ClientSessionCapabilities {
    compaction: Option<Value>,
    notices: Option<Value>,
}

impl ClientCapabilities {
    /// Returns those of an editor that can be sent everything, because its version has no capabilities for it.
    pub(super) fn all(version: AcpVersion) -> Self {
        let all = || Some(json!({}));
        let session = Some(ClientSessionCapabilities { compaction: all(), notices: all() });
        Self { version, session }
    }

    pub(super) fn shows_compactions(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.compaction.is_some())
    }

    pub(super) fn shows_notices(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.notices.is_some())
    }
}

/// The params of `session/new`.
#[serde_as]
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionToBegin {
    pub(super) cwd: String,
    #[serde_as(as = "DefaultOnNull")]
    #[serde(default)]
    pub(super) mcp_servers: Vec<McpServer>,
}

/// The params of `session/load`, `session/resume` and `session/fork`.
#[serde_as]
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionToOpen {
    pub(super) session_id: String,
    pub(super) cwd: String,
    #[serde_as(as = "DefaultOnNull")]
    #[serde(default)]
    pub(super) mcp_servers: Vec<McpServer>,
    /// The place from which version 2 shows the session again.
    #[serde(default)]
    pub(super) replay_from: Value,
}

/// The params of methods that need only a session.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OnlySession {
    pub(super) session_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListSessions {
    pub(super) cwd: Option<String>,
    pub(super) cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SetMode {
    pub(super) session_id: String,
    pub(super) mode_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SetConfigOption {
    pub(super) session_id: String,
    pub(super) config_id: String,
    /// The kind of the value; version 1 has it for some kinds only.
    #[serde(default, rename = "type")]
    pub(super) kind: Value,
    pub(super) value: Value,
}

/// The params of `tool_call/cancel`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CancelToolCall {
    pub(super) session_id: String,
    pub(super) tool_call_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Prompt {
    pub(super) session_id: String,
    pub(super) prompt: Vec<ContentBlock>,
    /// The same for each attempt to send a prompt of version 2.
    #[serde(default)]
    pub(super) idempotency_key: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CancelRequest {
    pub(super) request_id: Value,
}

/// A part of a prompt.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum ContentBlock {
    Text {
        text: String,
    },
    Image {
        data: String,
        mime_type: String,
    },
    ResourceLink {
        uri: String,
        #[serde(default)]
        name: String,
    },
    Resource {
        resource: Resource,
    },
    #[serde(other)]
    Other,
}

/// The content of a file or of another resource.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resource {
    pub(super) uri: String,
    pub(super) text: Option<String>,
    pub(super) blob: Option<String>,
    pub(super) mime_type: Option<String>,
}

/// An MCP server that the editor wants the agent to use.
#[serde_as]
#[derive(Clone, Deserialize)]
pub(super) struct McpServer {
    pub(super) name: String,
    /// `http`, `sse` or `stdio`; absent for a program in version 1.
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) command: String,
    #[serde_as(as = "DefaultOnNull")]
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde_as(as = "DefaultOnNull")]
    #[serde(default)]
    pub(super) env: Vec<NamedValue>,
    #[serde(default)]
    pub(super) url: String,
    #[serde_as(as = "DefaultOnNull")]
    #[serde(default)]
    pub(super) headers: Vec<NamedValue>,
}

#[derive(Clone, Deserialize)]
pub(super) struct NamedValue {
    pub(super) name: String,
    pub(super) value: String,
}

/// The outcome of `session/request_permission`.
#[derive(Deserialize)]
pub(super) struct PermissionAnswer {
    pub(super) outcome: PermissionOutcome,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum PermissionOutcome {
    Selected {
        option_id: String,
    },
    /// No answer, or one of a newer kind: never a permission.
    #[serde(other)]
    Other,
}

/// The reason for which a prompt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopReason {
    EndTurn,
    MaxTokens,
    Cancelled,
    /// A failure, which version 1 reports as the error of the prompt.
    Error,
}

/// The end of a prompt.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PromptEnd {
    pub(super) stop_reason: StopReason,
    /// The tokens of the answer.
    pub(super) usage: Option<Value>,
}

impl PromptEnd {
    pub(super) fn of(stop_reason: StopReason) -> Self {
        Self { stop_reason, usage: None }
    }
}

/// A notification about a session, the params of `session/update`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionNotification {
    pub(super) session_id: String,
    pub(super) update: SessionUpdate,
}

/// An update of a session, as the notification `session/update` carries it.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "sessionUpdate", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum SessionUpdate {
    UserMessageChunk {
        content: Value,
        message_id: String,
    },
    AgentMessageChunk {
        content: Value,
        message_id: String,
    },
    AgentThoughtChunk {
        content: Value,
        message_id: String,
    },
    ToolCall(ToolCallReport),
    ToolCallUpdate(ToolCallReport),
    Plan {
        entries: Vec<PlanEntry>,
    },
    AvailableCommandsUpdate {
        available_commands: Vec<Value>,
    },
    CurrentModeUpdate {
        current_mode_id: String,
    },
    ConfigOptionUpdate {
        config_options: Vec<Value>,
    },
    SessionInfoUpdate {
        title: Option<String>,
        updated_at: Option<String>,
        #[serde(rename = "_meta")]
        meta: Option<Value>,
    },
    UsageUpdate {
        used: u64,
        size: u64,
    },
    Notice {
        severity: &'static str,
        title: String,
    },
    CompactionUpdate {
        compaction_id: String,
        status: &'static str,
        summary: Option<Vec<Value>>,
        error: Option<String>,
    },
    // Only version 2 has the following ones. A whole message takes the place of what was shown of it before.
    UserMessage {
        message_id: String,
        content: Vec<Value>,
    },
    AgentMessage {
        message_id: String,
        content: Vec<Value>,
    },
    AgentThought {
        message_id: String,
        content: Vec<Value>,
    },
    PlanUpdate {
        plan: Value,
    },
    StateUpdate(SessionActivity),
    /// The end of the history of a session.
    ReplayComplete {},
}

/// The state of a session: answering, asking a person, or neither.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum SessionActivity {
    Running,
    /// A person is asked.
    RequiresAction,
    Idle {
        /// The end of the prompt that was answered last.
        #[serde(flatten)]
        end: Option<PromptEnd>,
        error: Option<RequestError>,
    },
}

impl SessionActivity {
    pub(super) const IDLE: Self = Self::Idle { end: None, error: None };
}

/// A tool call, or what changed of one.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolCallReport {
    pub(super) tool_call_id: String,
    pub(super) title: Option<String>,
    pub(super) kind: Option<ToolKind>,
    pub(super) status: Option<ToolStatus>,
    pub(super) content: Option<Vec<Value>>,
    pub(super) raw_input: Option<Value>,
    /// The name of the tool, which only version 2 has beside the title.
    pub(super) name: Option<String>,
    /// The requests about the call that the agent takes, in version 2; null if it takes none any more.
    pub(super) capabilities: Option<Value>,
    /// Set if the editor can cancel the call alone.
    #[serde(skip)]
    pub(super) is_cancelable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToolKind {
    Read,
    Search,
    Execute,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToolStatus {
    Pending,
    InProgress,
    Completed,
    Failed,
    /// Canceled, which is a failure in version 1.
    Cancelled,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PlanEntry {
    pub(super) content: String,
    pub(super) priority: &'static str,
    pub(super) status: &'static str,
}

/// Returns a text as content.
pub(super) fn text_content(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// Returns a text as the content of a tool call.
pub(super) fn tool_text(text: &str) -> Value {
    json!({ "type": "content", "content": text_content(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_and_fields_of_an_editor_are_ignored() {
        let prompt: Prompt = serde_json::from_value(json!({
            "sessionId": "s", "_meta": { "a": 1 },
            "prompt": [
                { "type": "text", "text": "a", "annotations": null },
                { "type": "hologram", "data": [1] },
                { "type": "resource", "resource": { "uri": "file:///a", "text": "b", "x": 1 } },
            ],
        }))
        .unwrap();
        assert!(matches!(prompt.prompt[1], ContentBlock::Other));
        let initialize = json!({ "protocolVersion": 1, "clientCapabilities": {
            "fs": { "readTextFile": true }, "session": { "compaction": {}, "notices": null } } });
        let capabilities =
            serde_json::from_value::<Initialize>(initialize).unwrap().client_capabilities;
        assert!(capabilities.shows_compactions() && !capabilities.shows_notices());
        let stdio = json!({ "name": "f", "command": "/bin/f", "args": [], "env": [{ "name": "A", "value": "b" }] });
        assert_eq!(serde_json::from_value::<McpServer>(stdio).unwrap().kind, None);
    }

    #[test]
    fn update_has_its_kind_beside_its_fields() {
        let check = |update: SessionUpdate, expect: Value| {
            assert_eq!(serde_json::to_value(update).unwrap(), expect);
        };
        let call = ToolCallReport {
            tool_call_id: "1".to_owned(),
            status: Some(ToolStatus::InProgress),
            ..ToolCallReport::default()
        };
        check(
            SessionUpdate::ToolCallUpdate(call),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress" }),
        );
        let content = text_content("a");
        check(
            SessionUpdate::AgentMessageChunk { content, message_id: "2".to_owned() },
            json!({ "sessionUpdate": "agent_message_chunk", "messageId": "2",
                "content": { "type": "text", "text": "a" } }),
        );
        check(
            SessionUpdate::SessionInfoUpdate {
                title: Some("t".into()),
                updated_at: None,
                meta: None,
            },
            json!({ "sessionUpdate": "session_info_update", "title": "t" }),
        );
    }
}
