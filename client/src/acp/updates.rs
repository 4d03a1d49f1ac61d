//! Turns reports of the daemon into updates of the editor: records, phases, goals, compactions and usage. Pure.

use std::collections::BTreeSet;

use ollm_protocol::Seq;
use ollm_protocol::content::{
    CheckpointStatus, Compaction, Goal, GoalPriority, Message, Part, Record, RecordBody, Role,
    Session, ToolResult,
};
use ollm_protocol::event::CompressedData;
use ollm_protocol::limits::beginning;
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase, ChatToolCall, ChatUsage, WaitsFor};
use serde_json::{Value, json};

use super::schema::{
    ClientCapabilities, PlanEntry, SessionUpdate, ToolCallReport, ToolKind, ToolStatus,
    text_content, tool_text,
};
use super::version::AcpVersion;
use crate::render::units::grouped;

/// The longest part of a tool result that an editor is shown. The session has all of it.
const MAX_SHOWN_BYTES: usize = 64 << 10;

/// The records of a session as updates, in their order.
pub(super) struct ReplayedRecords {
    version: AcpVersion,
    shows_compactions: bool,
    /// The last message of the user or the model.
    last: Option<Seq>,
    /// The tool calls whose results have not come yet.
    pending: BTreeSet<String>,
}

impl ReplayedRecords {
    pub(super) fn new(capabilities: &ClientCapabilities) -> Self {
        let shows_compactions = capabilities.shows_compactions();
        Self {
            version: capabilities.version,
            shows_compactions,
            last: None,
            pending: BTreeSet::new(),
        }
    }

    /// Begins after a message.
    pub(super) fn after(mut self, message: Option<Seq>) -> Self {
        self.last = message;
        self
    }

    /// Returns what a record shows: nothing if it is not part of the conversation.
    pub(super) fn updates(&mut self, record: Record) -> Vec<SessionUpdate> {
        let seq = record.seq;
        match record.into_body() {
            Some(RecordBody::Message(message)) => self.message(seq, message),
            Some(RecordBody::ToolCall(call)) => {
                let args = Some(call.args).filter(|args| !args.is_null());
                vec![self.tool_result(call.id, &call.name, args, &call.result)]
            }
            Some(RecordBody::Compaction(compaction)) if self.shows_compactions => {
                vec![earlier_compaction(seq, &compaction)]
            }
            _ => Vec::new(),
        }
    }

    /// Returns what remains: tool calls without a result were interrupted.
    pub(super) fn finish(self) -> Vec<SessionUpdate> {
        self.pending.into_iter().map(|id| tool_status(id, ToolStatus::Failed, None)).collect()
    }

    fn message(&mut self, seq: Seq, message: Message) -> Vec<SessionUpdate> {
        let role = message.role;
        if role == Role::Tool {
            let result = ToolResult { llm_content: message.plain_text(), ..ToolResult::default() };
            let id = message.tool_call_id.unwrap_or_else(|| seq.to_string());
            let name = message.tool_name.unwrap_or_else(|| "tool".to_owned());
            return vec![self.tool_result(id, &name, None, &result)];
        }
        let answer_id = self.version.answer_id(seq.to_string(), self.last);
        if role == Role::User || role == Role::Assistant {
            self.last = Some(seq);
        }
        let mut updates = Vec::new();
        for part in message.parts {
            let message_id =
                if role == Role::Assistant { answer_id.clone() } else { seq.to_string() };
            let update = match (role, part) {
                (Role::User, Part::Text { text }) if !text.is_empty() => {
                    SessionUpdate::UserMessageChunk { content: text_content(&text), message_id }
                }
                (Role::User, Part::Image { mime_type, data }) => {
                    let content = json!({ "type": "image", "mimeType": mime_type, "data": data });
                    SessionUpdate::UserMessageChunk { content, message_id }
                }
                (Role::Assistant, Part::Text { text }) if !text.is_empty() => {
                    answer_chunk(&text, message_id)
                }
                (Role::Assistant, Part::Thinking { text }) => thought_chunk(&text, message_id),
                (Role::Assistant, Part::ToolCall { id, name, args }) => {
                    let _is_new = self.pending.insert(id.clone());
                    let call = ChatToolCall { id, name, args };
                    SessionUpdate::ToolCall(tool_call(&call, ToolStatus::Pending))
                }
                _ => continue,
            };
            updates.push(update);
        }
        updates
    }

    /// Returns a result as a change of its call, or as a whole call if no answer asked for it.
    fn tool_result(
        &mut self,
        id: String,
        name: &str,
        args: Option<Value>,
        result: &ToolResult,
    ) -> SessionUpdate {
        let was_asked = self.pending.remove(&id);
        let mut report = finished_call(id, result);
        if was_asked {
            return SessionUpdate::ToolCallUpdate(report);
        }
        report.title = Some(name.to_owned());
        report.kind = Some(kind_of(name));
        report.raw_input = args;
        SessionUpdate::ToolCall(report)
    }
}

pub(super) fn answer_chunk(text: &str, message_id: String) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk { content: text_content(text), message_id }
}

pub(super) fn thought_chunk(text: &str, message_id: String) -> SessionUpdate {
    SessionUpdate::AgentThoughtChunk { content: text_content(text), message_id }
}

/// Returns updates that empty what was shown of an answer, which is written again.
pub(super) fn emptied(message_id: &str) -> [SessionUpdate; 2] {
    let message_id = message_id.to_owned();
    [
        SessionUpdate::AgentThought { message_id: message_id.clone(), content: Vec::new() },
        SessionUpdate::AgentMessage { message_id, content: Vec::new() },
    ]
}

pub(super) fn notice(severity: &'static str, title: String) -> SessionUpdate {
    SessionUpdate::Notice { severity, title }
}

/// Returns a tool call that a model requests.
pub(super) fn tool_call(call: &ChatToolCall, status: ToolStatus) -> ToolCallReport {
    ToolCallReport {
        tool_call_id: call.id.clone(),
        title: Some(call.name.clone()),
        kind: Some(kind_of(&call.name)),
        status: Some(status),
        raw_input: Some(call.args.clone()),
        ..ToolCallReport::default()
    }
}

pub(super) fn tool_status(
    tool_call_id: String,
    status: ToolStatus,
    text: Option<&str>,
) -> SessionUpdate {
    let content = text.map(|text| vec![tool_text(shown(text))]);
    let status = Some(status);
    SessionUpdate::ToolCallUpdate(ToolCallReport {
        tool_call_id,
        status,
        content,
        ..ToolCallReport::default()
    })
}

fn finished_call(tool_call_id: String, result: &ToolResult) -> ToolCallReport {
    let has_failed = result.success == Some(false)
        || result.error.is_some()
        || (result.success.is_none() && result.exit_code.is_some_and(|code| code != 0));
    let status = if has_failed { ToolStatus::Failed } else { ToolStatus::Completed };
    let text = result.display_content.as_deref().unwrap_or(&result.llm_content);
    ToolCallReport {
        tool_call_id,
        status: Some(status),
        content: Some(vec![tool_text(shown(text))]),
        ..ToolCallReport::default()
    }
}

/// Returns the part of a text that is shown.
fn shown(text: &str) -> &str {
    beginning(text, MAX_SHOWN_BYTES)
}

/// Returns the kind of a tool for its symbol in the editor, by the words of its name.
fn kind_of(name: &str) -> ToolKind {
    let name = name.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["search", "recall", "find", "grep"]) {
        ToolKind::Search
    } else if has(&["read", "get_", "list"]) {
        ToolKind::Read
    } else if has(&["shell", "exec", "run", "bash"]) {
        ToolKind::Execute
    } else {
        ToolKind::Other
    }
}

/// Returns a phase of a turn. The protocol has none, so it is metadata that other editors ignore.
pub(super) fn phase(event: &ChatEvent) -> SessionUpdate {
    let meta = serde_json::to_value(event).ok().map(|mut phase| {
        if let Some(fields) = phase.as_object_mut() {
            drop(fields.remove("kind"));
        }
        json!({ "ollm.phase": phase })
    });
    SessionUpdate::SessionInfoUpdate { title: None, updated_at: None, meta }
}

/// Returns a phase in words, for one during which a person waits; `None` for the others.
pub(super) fn phase_text(event: &ChatEvent) -> Option<String> {
    let ChatEvent::Phase { name, tokens, expected_ms, ahead, waits_for } = event else {
        return None;
    };
    let seconds = expected_ms.map(|ms| ms.div_ceil(1000)).filter(|seconds| *seconds > 1);
    let time = seconds.map_or_else(String::new, |seconds| format!(", about {seconds} s"));
    match (name, waits_for) {
        (ChatPhase::Loading, _) => Some("The model server loads the model.".to_owned()),
        (ChatPhase::Compacting, _) => Some("Older messages become notes first.".to_owned()),
        (ChatPhase::Reading, _) => {
            let tokens = tokens.filter(|_| seconds.is_some())?;
            Some(format!("The model reads {} tokens{time}.", grouped(tokens)))
        }
        (ChatPhase::Queued, Some(WaitsFor::Limit)) => {
            Some(format!("The model server refuses requests for a time{time}."))
        }
        (ChatPhase::Queued, _) => {
            ahead.filter(|ahead| *ahead > 0).map(|_| format!("The model is busy{time}."))
        }
        (ChatPhase::Answering, _) => None,
    }
}

/// Returns how full the window is after a call of the model.
pub(super) fn usage(usage: &ChatUsage) -> SessionUpdate {
    let used = usage.context_tokens + usage.answer_tokens.unwrap_or(0);
    SessionUpdate::UsageUpdate { used, size: u64::from(usage.context_size) }
}

/// Returns the tokens of an answer, as `usage` of a reply.
pub(super) fn answer_usage(usage: &ChatUsage) -> Option<Value> {
    let (input, output) = usage.prompt_tokens.zip(usage.answer_tokens)?;
    let mut tokens = json!({
        "inputTokens": input, "outputTokens": output, "totalTokens": input + output,
    });
    if let Some(cached) = usage.cached_tokens {
        tokens["cachedReadTokens"] = json!(cached);
    }
    Some(tokens)
}

/// Returns the title of a session and the time of its last change.
pub(super) fn info(session: &Session) -> SessionUpdate {
    SessionUpdate::SessionInfoUpdate {
        title: Some(session.title.clone()),
        updated_at: Some(session.last_activity.to_string()),
        meta: None,
    }
}

/// Returns the current mode of `modes` of a reply.
pub(super) fn mode(modes: &Value) -> SessionUpdate {
    let current = modes["currentModeId"].as_str().unwrap_or_default();
    SessionUpdate::CurrentModeUpdate { current_mode_id: current.to_owned() }
}

/// Returns the checkpoints and the next steps of a goal as a plan. A goal without them is one step.
pub(super) fn plan(goal: &Goal) -> Vec<PlanEntry> {
    let priority = match goal.priority {
        GoalPriority::High => "high",
        GoalPriority::Medium => "medium",
        GoalPriority::Low => "low",
    };
    let entry = |content: &str, status| PlanEntry { content: content.to_owned(), priority, status };
    let checkpoints = goal.checkpoints.iter().map(|checkpoint| {
        let status = match checkpoint.status {
            CheckpointStatus::Pending => "pending",
            CheckpointStatus::InProgress => "in_progress",
            CheckpointStatus::Completed => "completed",
        };
        entry(&checkpoint.description, status)
    });
    let steps = goal.next_steps.iter().map(|step| entry(step, "pending"));
    let entries: Vec<PlanEntry> = checkpoints.chain(steps).collect();
    if entries.is_empty() { vec![entry(&goal.description, "in_progress")] } else { entries }
}

pub(super) fn compaction_begun(compaction_id: String) -> SessionUpdate {
    SessionUpdate::CompactionUpdate {
        compaction_id,
        status: "in_progress",
        summary: None,
        error: None,
    }
}

pub(super) fn compaction_failed(compaction_id: String, error: String) -> SessionUpdate {
    let error = Some(error);
    SessionUpdate::CompactionUpdate { compaction_id, status: "failed", summary: None, error }
}

pub(super) fn compaction_done(compaction_id: String, data: &CompressedData) -> SessionUpdate {
    let summary = Some(vec![text_content(&compacted(data))]);
    SessionUpdate::CompactionUpdate { compaction_id, status: "completed", summary, error: None }
}

/// Returns in words what a compaction did.
pub(super) fn compacted(data: &CompressedData) -> String {
    let (before, after) = (grouped(data.tokens_before), grouped(data.tokens_after));
    format!("Older messages became notes: {before} tokens are {after} now.")
}

/// Returns a compaction in the history of a session, with its newest summary.
fn earlier_compaction(seq: Seq, compaction: &Compaction) -> SessionUpdate {
    let newest = compaction.checkpoints.last().map(|checkpoint| checkpoint.summary.as_str());
    let summary = newest.or(Some(compaction.summary.as_str())).filter(|text| !text.is_empty());
    SessionUpdate::CompactionUpdate {
        compaction_id: format!("record-{seq}"),
        status: "completed",
        summary: summary.map(|summary| vec![text_content(shown(summary))]),
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64, value: Value) -> Record {
        let mut record = json!({ "seq": seq, "at": "2026-01-27T10:00:00Z" });
        record.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(record).unwrap()
    }

    fn message(seq: u64, role: &str, parts: Value) -> Record {
        let at = "2026-01-27T10:00:00Z";
        let message = json!({ "role": role, "parts": parts, "timestamp": at });
        record(seq, json!({ "type": "message", "message": message }))
    }

    #[test]
    fn records_become_messages_thoughts_and_tool_calls() {
        let mut replayed = ReplayedRecords::new(&ClientCapabilities::default());
        let call =
            json!({ "type": "toolCall", "id": "c1", "name": "files__read", "args": { "p": 1 } });
        let other = json!({ "type": "toolCall", "id": "c2", "name": "git__push", "args": {} });
        let result = json!({ "id": "c1", "name": "files__read", "args": { "p": 1 },
            "result": { "llmContent": "x" }, "timestamp": "2026-01-27T10:00:00Z" });
        let lone = json!({ "id": "c9", "name": "shell", "args": null, "timestamp": "2026-01-27T10:00:00Z",
            "result": { "llmContent": "no", "exitCode": 3 } });
        let records = [
            message(1, "system", json!([{ "type": "text", "text": "hidden" }])),
            message(
                2,
                "user",
                json!([{ "type": "text", "text": "a" }, { "type": "image", "mimeType": "image/png", "data": "AA==" }]),
            ),
            message(
                3,
                "assistant",
                json!([{ "type": "thinking", "text": "hm" }, { "type": "text", "text": "b" }, call, other]),
            ),
            record(4, json!({ "type": "toolCall", "toolCall": result })),
            record(5, json!({ "type": "toolCall", "toolCall": lone })),
        ];
        let updates = records.into_iter().flat_map(|record| replayed.updates(record));
        let mut updates: Vec<SessionUpdate> = updates.collect();
        updates.extend(replayed.finish());
        let text = |text: &str| json!({ "type": "text", "text": text });
        let shown = |text: &str| json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
        assert_eq!(
            serde_json::to_value(updates).unwrap(),
            json!([
                { "sessionUpdate": "user_message_chunk", "messageId": "2", "content": text("a") },
                { "sessionUpdate": "user_message_chunk", "messageId": "2",
                    "content": { "type": "image", "mimeType": "image/png", "data": "AA==" } },
                { "sessionUpdate": "agent_thought_chunk", "messageId": "3", "content": text("hm") },
                { "sessionUpdate": "agent_message_chunk", "messageId": "3", "content": text("b") },
                { "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "files__read", "kind": "read",
                    "status": "pending", "rawInput": { "p": 1 } },
                { "sessionUpdate": "tool_call", "toolCallId": "c2", "title": "git__push", "kind": "other",
                    "status": "pending", "rawInput": {} },
                { "sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed",
                    "content": shown("x") },
                { "sessionUpdate": "tool_call", "toolCallId": "c9", "title": "shell", "kind": "execute",
                    "status": "failed", "content": shown("no") },
                { "sessionUpdate": "tool_call_update", "toolCallId": "c2", "status": "failed" },
            ])
        );
    }

    #[test]
    fn plan_has_the_steps_of_the_goal_or_the_goal_itself() {
        let goal = |checkpoints: Value, next_steps: Value| -> Goal {
            serde_json::from_value(json!({
                "id": "019ad1a2-7c51-7a90-8b41-6f1e5f0f2d11", "description": "Port it", "priority": "high",
                "status": "active", "source": "client", "createdAt": "2026-01-27T10:00:00Z",
                "checkpoints": checkpoints, "decisions": [], "artifacts": [], "nextSteps": next_steps,
            }))
            .unwrap()
        };
        let check = |goal: Goal, expect: &[(&str, &str)]| {
            let plan = plan(&goal);
            let found: Vec<_> =
                plan.iter().map(|entry| (entry.content.as_str(), entry.status)).collect();
            assert_eq!(found, expect);
            assert!(plan.iter().all(|entry| entry.priority == "high"));
        };
        let checkpoint = json!([{ "id": "019ad1a2-7c51-7a90-8b41-6f1e5f0f2d12", "description": "Read",
            "status": "in-progress", "createdAt": "2026-01-27T10:00:00Z" }]);
        check(goal(checkpoint, json!(["Write"])), &[("Read", "in_progress"), ("Write", "pending")]);
        check(goal(json!([]), json!([])), &[("Port it", "in_progress")]);
    }

    #[test]
    fn only_phases_in_which_a_person_waits_have_words() {
        let check = |event: Value, expect: Option<&str>| {
            let event: ChatEvent = serde_json::from_value(event).unwrap();
            assert_eq!(phase_text(&event).as_deref(), expect);
        };
        check(json!({ "kind": "phase", "name": "answering" }), None);
        check(json!({ "kind": "phase", "name": "reading", "tokens": 90, "expectedMs": 400 }), None);
        check(
            json!({ "kind": "phase", "name": "reading", "tokens": 9000, "expectedMs": 4100 }),
            Some("The model reads 9,000 tokens, about 5 s."),
        );
        check(json!({ "kind": "phase", "name": "queued", "ahead": 1 }), Some("The model is busy."));
    }

    #[test]
    fn shown_text_ends_at_a_character() {
        let text = format!("{}é", "x".repeat(MAX_SHOWN_BYTES - 1));
        assert_eq!(shown(&text).len(), MAX_SHOWN_BYTES - 1);
        assert_eq!(shown("é"), "é");
    }
}
