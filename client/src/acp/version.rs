//! The versions of the protocol, and all that is different between them on the wire. Pure.
//!
//! The rest of the agent knows one conversation. Its updates and replies have the form of version 1, and beside it what only
//! version 2 has; on their way to the editor they pass through here, and a version leaves out what it does not have.
//!
//! Version 2 is a draft. This is the draft of the crate `agent-client-protocol-schema` 1.20.0, commit `c0945895` of its
//! repository, `src/v2`; `fork` and the usage of an answer are of its unstable part.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ollm_protocol::Seq;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::agent::{Answer, RequestResult};
use super::schema::{
    ClientCapabilities, Initialize, McpServer, OnlySession, PromptEnd, RequestError, SessionUpdate,
    ToolCallReport, ToolStatus, code,
};

/// The longest key of a prompt in characters.
const MAX_KEY_CHARS: usize = 255;
/// The id of the only plan of a session.
const PLAN_ID: &str = "goal";

/// A version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AcpVersion {
    #[default]
    V1,
    /// The draft.
    V2,
}

/// The reply to a request that opened a session, in the form of no version.
pub(super) struct OpeningReply {
    pub(super) name: String,
    /// Set if the reply has the name, because it is new.
    pub(super) is_named: bool,
    pub(super) modes: Value,
    pub(super) config_options: Vec<Value>,
    pub(super) commands: Vec<Value>,
}

impl AcpVersion {
    /// Returns the version for an editor that asks for one: the same or the newest older one, but never one that is newer than
    /// `newest`.
    fn agreed(asked: &Value, newest: Self) -> Self {
        if asked.as_u64().is_some_and(|asked| asked >= 2) { newest } else { Self::V1 }
    }

    /// Returns what the editor of an `initialize` speaks and shows.
    pub(super) fn client(params: Initialize, newest: Self) -> ClientCapabilities {
        match Self::agreed(&params.protocol_version, newest) {
            Self::V1 => params.client_capabilities,
            // Editors may ignore what they do not show.
            version @ Self::V2 => ClientCapabilities::all(version),
        }
    }

    /// Returns the reply to `initialize`.
    pub(super) fn initialized(self) -> Value {
        let info = json!({ "name": "ollm", "title": "ollm", "version": env!("CARGO_PKG_VERSION") });
        match self {
            Self::V1 => json!({
                "protocolVersion": 1,
                "agentCapabilities": {
                    "loadSession": true,
                    "promptCapabilities": { "image": true, "audio": false, "embeddedContext": true },
                    "mcpCapabilities": { "http": true, "sse": false },
                    "sessionCapabilities": {
                        "list": {}, "resume": {}, "close": {}, "delete": {}, "fork": {},
                    },
                },
                "authMethods": [],
                "agentInfo": info,
            }),
            Self::V2 => json!({
                "protocolVersion": 2,
                "info": info,
                "capabilities": { "session": {
                    "prompt": { "image": {}, "embeddedContext": {} },
                    "mcp": { "stdio": {}, "http": {} },
                    "delete": {},
                    "fork": {},
                } },
                "authMethods": [],
            }),
        }
    }

    /// Returns whether the version has a method that the agent knows.
    pub(super) fn has(self, method: &str) -> bool {
        match method {
            "session/load" | "session/set_mode" => self == Self::V1,
            "tool_call/cancel" => self == Self::V2,
            _ => true,
        }
    }

    /// Checks the MCP servers that the editor names. In version 1, servers that do not work cost their tools only.
    pub(super) fn check_servers(self, servers: &[McpServer]) -> RequestResult<()> {
        if self == Self::V1 {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        for McpServer { name, kind, command, .. } in servers {
            let problem = match kind.as_deref() {
                Some("stdio") if !Path::new(command).is_absolute() => {
                    format!("the command of the MCP server {name} must be an absolute path")
                }
                Some("stdio" | "http") if names.insert(name) => continue,
                Some("stdio" | "http") => format!("two MCP servers have the name {name}"),
                Some(kind) => format!("MCP servers of the type {kind} are not supported"),
                None => format!("the MCP server {name} has no type"),
            };
            return Err(RequestError::invalid(problem));
        }
        Ok(())
    }

    /// Returns whether `session/resume` shows the session again.
    pub(super) fn replays(self, from: &Value) -> RequestResult<bool> {
        match (self, from) {
            (Self::V1, _) | (_, Value::Null) => Ok(false),
            (_, from) if from["type"] == "start" => Ok(true),
            _ => Err(RequestError::invalid("a session can only be shown again from its start")),
        }
    }

    /// Checks a choice against the config options that the editor was shown. Version 1 leaves it to the daemon.
    pub(super) fn check_choice(
        self,
        shown: &[Value],
        config_id: &str,
        kind: &Value,
        value: &str,
    ) -> RequestResult<()> {
        if self == Self::V1 {
            return Ok(());
        }
        if kind != "id" {
            return Err(RequestError::invalid("the type of a config option's value is id"));
        }
        let option = shown.iter().find(|option| option["id"] == config_id);
        let values = option.and_then(|option| option["options"].as_array());
        let is_offered =
            values.is_some_and(|values| values.iter().any(|one| one["value"] == value));
        let unknown = || RequestError::invalid(format!("{config_id} cannot be {value}"));
        if is_offered { Ok(()) } else { Err(unknown()) }
    }

    /// Returns the key of a prompt, which is the same for each attempt to send it.
    pub(super) fn prompt_key(self, key: &Value) -> RequestResult<Option<String>> {
        match (self, key) {
            (Self::V1, _) | (_, Value::Null) => Ok(None),
            (_, Value::String(key)) if (1..=MAX_KEY_CHARS).contains(&key.chars().count()) => {
                Ok(Some(key.clone()))
            }
            _ => {
                let problem = format!("the key of a prompt has 1 to {MAX_KEY_CHARS} characters");
                Err(RequestError::invalid(problem))
            }
        }
    }

    /// Returns the content of a prompt that the editor is sent back when it is recorded; `None` if that is not reported.
    pub(super) fn echo(self, params: &RawValue) -> Option<Vec<Value>> {
        if self == Self::V1 {
            return None;
        }
        let mut params = serde_json::from_str::<Map<String, Value>>(params.get()).ok()?;
        serde_json::from_value(params.remove("prompt")?).ok()
    }

    /// Returns the answer to a prompt that has ended; `None` if it was answered when it was recorded.
    pub(super) fn prompt_answer(
        self,
        is_acknowledged: bool,
        ended: RequestResult<PromptEnd>,
    ) -> RequestResult<Option<Answer>> {
        match (self, ended) {
            _ if is_acknowledged => Ok(None),
            (_, Err(error)) => Err(error),
            (Self::V1, Ok(end)) => Ok(Some(json!(end).into())),
            (Self::V2, Ok(_)) => {
                let problem = "the prompt was canceled before it was recorded";
                Err(RequestError::new(code::CANCELED, problem))
            }
        }
    }

    /// Returns the number from which the messages of a session are counted that are not recorded. In version 2, an id means the
    /// same message however often the session is opened, so it follows from the time.
    pub(super) fn first_number(self, now: SystemTime) -> u64 {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        match self {
            Self::V1 => 0,
            Self::V2 => u64::try_from(since.as_millis()).unwrap_or_default(),
        }
    }

    /// Returns the id of an answer: in version 2 that of the message or answer before it, which is known before the answer is
    /// recorded and found again in the history.
    pub(super) fn answer_id(self, id: String, after: Option<Seq>) -> String {
        match (self, after) {
            (Self::V2, Some(seq)) => format!("after-{seq}"),
            _ => id,
        }
    }

    /// Returns the answer to a request that closes or deletes a session: version 2 has no error for one that is not there.
    pub(super) fn removed(self, answer: RequestResult) -> RequestResult {
        match answer {
            Err(error) if self == Self::V2 && error.code == code::NOT_FOUND => Ok(json!({}).into()),
            answer => answer,
        }
    }

    /// Returns an error as the version has it: version 2 names the session that was not found.
    pub(super) fn error(self, mut error: RequestError, params: &RawValue) -> RequestError {
        if self == Self::V2
            && error.code == code::NOT_FOUND
            && let Ok(OnlySession { session_id }) = serde_json::from_str(params.get())
        {
            let data = error.data.get_or_insert_with(|| json!({}));
            data["sessionId"] = json!(session_id);
        }
        error
    }

    /// Returns the answer to a request that opened a session.
    pub(super) fn opened(self, opened: OpeningReply) -> Answer {
        let OpeningReply { name, is_named, modes, config_options, commands } = opened;
        let (mut result, then) = match self {
            Self::V1 => {
                let commands =
                    SessionUpdate::AvailableCommandsUpdate { available_commands: commands };
                (json!({ "modes": modes, "configOptions": config_options }), vec![commands])
            }
            Self::V2 => {
                let commands: Vec<Value> = commands.into_iter().map(command).collect();
                let options = self.config_options(config_options);
                (json!({ "configOptions": options, "availableCommands": commands }), Vec::new())
            }
        };
        if is_named {
            result["sessionId"] = json!(name);
        }
        Answer { result, then: then.into_iter().map(|update| (name.clone(), update)).collect() }
    }

    /// Returns config options as the version names their ids.
    pub(super) fn config_options(self, options: Vec<Value>) -> Vec<Value> {
        match self {
            Self::V1 => options,
            Self::V2 => {
                options.into_iter().map(|option| renamed(option, "id", "configId")).collect()
            }
        }
    }

    /// Returns the params of a question whether a tool may run.
    pub(super) fn question(self, session: &str, call: &ToolCallReport, options: &[Value]) -> Value {
        match self {
            Self::V1 => json!({ "sessionId": session, "toolCall": call, "options": options }),
            Self::V2 => {
                let tool = call.title.as_deref().unwrap_or("the tool");
                let subject = json!({ "type": "tool_call", "toolCall": tool_call(call.clone()) });
                json!({
                    "sessionId": session,
                    "title": format!("Run {tool}?"),
                    "subject": subject,
                    "options": options,
                })
            }
        }
    }

    /// Returns the updates for one record of the history: version 2 has whole messages.
    pub(super) fn record(self, updates: Vec<SessionUpdate>) -> Vec<SessionUpdate> {
        match self {
            Self::V1 => updates,
            Self::V2 => whole_messages(updates),
        }
    }

    /// Returns an update as the version has it; `None` if it has none like it.
    pub(super) fn update(self, update: SessionUpdate) -> Option<SessionUpdate> {
        match self {
            Self::V1 => update_v1(update),
            Self::V2 => self.update_v2(update),
        }
    }

    fn update_v2(self, update: SessionUpdate) -> Option<SessionUpdate> {
        use SessionUpdate::{
            AvailableCommandsUpdate, ConfigOptionUpdate, CurrentModeUpdate, Plan, PlanUpdate,
            ToolCall, ToolCallUpdate,
        };
        Some(match update {
            // The mode is one of the config options, and the commands are in the reply.
            CurrentModeUpdate { .. } | AvailableCommandsUpdate { .. } => return None,
            ToolCall(report) | ToolCallUpdate(report) => ToolCallUpdate(tool_call(report)),
            Plan { entries } => {
                let plan = json!({ "type": "items", "planId": PLAN_ID, "entries": entries });
                PlanUpdate { plan }
            }
            ConfigOptionUpdate { config_options } => {
                ConfigOptionUpdate { config_options: self.config_options(config_options) }
            }
            same => same,
        })
    }
}

fn update_v1(update: SessionUpdate) -> Option<SessionUpdate> {
    use SessionUpdate::{
        AgentMessage, AgentThought, PlanUpdate, ReplayComplete, StateUpdate, ToolCallUpdate,
        UserMessage,
    };
    match update {
        UserMessage { .. } | AgentMessage { .. } | AgentThought { .. } => None,
        PlanUpdate { .. } | StateUpdate(_) | ReplayComplete {} => None,
        ToolCallUpdate(mut report) => {
            if report.status == Some(ToolStatus::Cancelled) {
                report.status = Some(ToolStatus::Failed);
            }
            Some(ToolCallUpdate(report))
        }
        same => Some(same),
    }
}

/// Returns a tool call, or what changed of one, with what only version 2 has.
fn tool_call(mut call: ToolCallReport) -> ToolCallReport {
    use ToolStatus::{Cancelled, Completed, Failed};
    call.name = call.title.clone();
    call.capabilities = match call.status {
        Some(Completed | Failed | Cancelled) => Some(Value::Null),
        _ => call.is_cancelable.then(|| json!({ "cancel": {} })),
    };
    call
}

/// Returns a command with the types of version 2.
fn command(mut command: Value) -> Value {
    command["type"] = json!("command");
    if let Some(input) = command.get_mut("input") {
        input["type"] = json!("text");
    }
    command
}

fn renamed(mut value: Value, from: &str, to: &str) -> Value {
    if let Some(fields) = value.as_object_mut()
        && let Some(field) = fields.remove(from)
    {
        drop(fields.insert(to.to_owned(), field));
    }
    value
}

/// Makes one message of all pieces of the same kind.
fn whole_messages(updates: Vec<SessionUpdate>) -> Vec<SessionUpdate> {
    let mut messages: Vec<SessionUpdate> = Vec::new();
    for update in updates {
        let mut update = whole_message(update);
        let kind = discriminant(&update);
        let earlier = messages.iter_mut().find(|earlier| discriminant(*earlier) == kind);
        match (earlier.and_then(content_of), content_of(&mut update)) {
            (Some(earlier), Some(content)) => earlier.append(content),
            _ => messages.push(update),
        }
    }
    messages
}

fn whole_message(update: SessionUpdate) -> SessionUpdate {
    use SessionUpdate::{
        AgentMessage, AgentMessageChunk, AgentThought, AgentThoughtChunk, UserMessage,
        UserMessageChunk,
    };
    match update {
        UserMessageChunk { content, message_id } => {
            UserMessage { message_id, content: vec![content] }
        }
        AgentMessageChunk { content, message_id } => {
            AgentMessage { message_id, content: vec![content] }
        }
        AgentThoughtChunk { content, message_id } => {
            AgentThought { message_id, content: vec![content] }
        }
        other => other,
    }
}

fn content_of(update: &mut SessionUpdate) -> Option<&mut Vec<Value>> {
    use SessionUpdate::{AgentMessage, AgentThought, UserMessage};
    match update {
        UserMessage { content, .. }
        | AgentMessage { content, .. }
        | AgentThought { content, .. } => Some(content),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::{PlanEntry, SessionActivity, StopReason, text_content};
    use super::*;

    #[test]
    fn editor_gets_the_newest_version_that_it_asks_for_and_that_is_allowed() {
        let check = |asked: Value, newest, expect| {
            assert_eq!(AcpVersion::agreed(&asked, newest), expect, "{asked}");
        };
        for asked in [json!(1), json!(2), json!(9)] {
            check(asked, AcpVersion::V1, AcpVersion::V1);
        }
        check(json!(1), AcpVersion::V2, AcpVersion::V1);
        check(json!(2), AcpVersion::V2, AcpVersion::V2);
        check(json!(9), AcpVersion::V2, AcpVersion::V2);
        for asked in [json!(0), json!(-1), json!("2"), json!(2.5), Value::Null] {
            check(asked, AcpVersion::V2, AcpVersion::V1);
        }
    }

    #[test]
    fn each_version_writes_the_updates_that_it_has() {
        let check = |update: SessionUpdate, v1: Option<Value>, v2: Option<Value>| {
            let written = [AcpVersion::V1, AcpVersion::V2]
                .map(|version| version.update(update.clone()).map(|update| json!(update)));
            assert_eq!(written, [v1, v2]);
        };
        let state = SessionUpdate::StateUpdate(SessionActivity::Idle {
            end: Some(PromptEnd::of(StopReason::Error)),
            error: Some(RequestError::new(-1, "no")),
        });
        let idle = json!({ "sessionUpdate": "state_update", "state": "idle", "stopReason": "error",
            "error": { "code": -1, "message": "no" } });
        check(state, None, Some(idle));
        let mode = SessionUpdate::CurrentModeUpdate { current_mode_id: "user".to_owned() };
        let v1 = json!({ "sessionUpdate": "current_mode_update", "currentModeId": "user" });
        check(mode, Some(v1), None);
        let entry = PlanEntry { content: "a".to_owned(), priority: "high", status: "pending" };
        let entries = json!([entry]);
        let plan = json!({ "type": "items", "planId": "goal", "entries": entries });
        check(
            SessionUpdate::Plan { entries: vec![entry] },
            Some(json!({ "sessionUpdate": "plan", "entries": entries })),
            Some(json!({ "sessionUpdate": "plan_update", "plan": plan })),
        );
        let option = json!({ "id": "mode", "name": "Mode" });
        check(
            SessionUpdate::ConfigOptionUpdate { config_options: vec![option.clone()] },
            Some(json!({ "sessionUpdate": "config_option_update", "configOptions": [option] })),
            Some(json!({ "sessionUpdate": "config_option_update",
                "configOptions": [{ "configId": "mode", "name": "Mode" }] })),
        );
        let usage = json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2 });
        check(SessionUpdate::UsageUpdate { used: 1, size: 2 }, Some(usage.clone()), Some(usage));
    }

    #[test]
    fn tool_call_is_created_by_an_update_and_canceled_only_in_version_2() {
        let call = |status| ToolCallReport {
            tool_call_id: "1".to_owned(),
            status: Some(status),
            is_cancelable: true,
            ..ToolCallReport::default()
        };
        let check = |version: AcpVersion, update: SessionUpdate, expect: Value| {
            assert_eq!(json!(version.update(update)), expect);
        };
        let pending = SessionUpdate::ToolCall(call(ToolStatus::Pending));
        let v1 = json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "status": "pending" });
        check(AcpVersion::V1, pending.clone(), v1);
        check(
            AcpVersion::V2,
            pending,
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "pending",
                "capabilities": { "cancel": {} } }),
        );
        let canceled = SessionUpdate::ToolCallUpdate(call(ToolStatus::Cancelled));
        check(
            AcpVersion::V1,
            canceled.clone(),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "failed" }),
        );
        check(
            AcpVersion::V2,
            canceled,
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "cancelled",
                "capabilities": null }),
        );
    }

    #[test]
    fn pieces_of_a_record_become_one_message_of_each_kind() {
        let id = || "3".to_owned();
        let text = |text: &str| text_content(text);
        let updates = vec![
            SessionUpdate::AgentMessageChunk { content: text("a"), message_id: id() },
            SessionUpdate::AgentThoughtChunk { content: text("hm"), message_id: id() },
            SessionUpdate::AgentMessageChunk { content: text("b"), message_id: id() },
        ];
        assert_eq!(json!(AcpVersion::V1.record(updates.clone())), json!(updates));
        assert_eq!(
            json!(AcpVersion::V2.record(updates)),
            json!([
                { "sessionUpdate": "agent_message", "messageId": "3", "content": [text("a"), text("b")] },
                { "sessionUpdate": "agent_thought", "messageId": "3", "content": [text("hm")] },
            ])
        );
    }

    #[test]
    fn prompt_that_was_canceled_before_it_was_recorded_is_an_error_only_in_version_2() {
        let canceled = || Ok(PromptEnd::of(StopReason::Cancelled));
        let answer = AcpVersion::V1.prompt_answer(false, canceled()).unwrap().unwrap();
        assert_eq!(answer.result, json!({ "stopReason": "cancelled" }));
        let refused = AcpVersion::V2.prompt_answer(false, canceled());
        assert_eq!(refused.map(|_| ()).unwrap_err().code, code::CANCELED);
        assert!(AcpVersion::V2.prompt_answer(true, canceled()).unwrap().is_none());
    }
}
