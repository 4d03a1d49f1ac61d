//! Messages of a pi session, and the shapes that pi writes both as messages and as entries.

use ollm_protocol::content::{
    BranchSummary, Compaction, Custom, Message, Part, RecordBody, Role, ToolCall, ToolResult, Usage,
};
use ollm_protocol::{Seq, Timestamp};
use serde_json::{Map, Value, json};

use super::reader::PiReader;
use crate::session::import::fields::Fields;
use crate::session::import::spool::seq_of;

/// The tokenizer of the counts in a pi session: the provider counts and does not name it.
const TOKENIZER: &str = "provider";

impl PiReader {
    /// Carries over one message and reports its remaining fields.
    pub(super) fn message(&mut self, id: Option<&str>, mut fields: Fields) {
        let role = fields.text("role").unwrap_or_default();
        let timestamp = fields.time("timestamp").unwrap_or(self.now());
        match role.as_str() {
            "user" => {
                let parts = self.parts(&mut fields);
                self.push(RecordBody::Message(message(Role::User, parts, timestamp)));
            }
            "assistant" => self.assistant(timestamp, &mut fields),
            "toolResult" => self.tool_result(timestamp, &mut fields),
            "bashExecution" => self.bash(id, timestamp, &mut fields),
            "custom" | "hookMessage" => self.custom_message(&mut fields),
            "branchSummary" => self.branch_summary(&mut fields),
            "compactionSummary" => {
                let summary = fields.text("summary").unwrap_or_default();
                let tokens_before = fields.count("tokensBefore").unwrap_or(0);
                self.push_compaction(None, summary, tokens_before);
            }
            other => {
                let what = format!("message of role {other}");
                self.losses.add(&what, "unknown role");
                return;
            }
        }
        fields.report_remaining(&mut self.losses, &role);
    }

    fn assistant(&mut self, timestamp: Timestamp, fields: &mut Fields) {
        let mut answer = message(Role::Assistant, self.parts(fields), timestamp);
        answer.model = fields.text("model");
        answer.finish_reason = fields.text("stopReason");
        let provider = fields.text("provider");
        if provider.is_some() && self.provider.is_some() && provider != self.provider {
            self.losses.add("assistant.provider", "a message has a model and no provider");
        }
        let usage = fields.object("usage").and_then(|usage| self.usage(usage, &answer));
        let reason = answer.finish_reason.clone();
        self.note_calls(&answer);
        self.push(RecordBody::Message(answer));
        if let Some(usage) = usage {
            self.push(RecordBody::Usage(usage));
        }
        // A message has no field for errors, and a text part would make the error an answer of the model.
        if let Some(error) = fields.text("errorMessage").filter(|error| !error.is_empty()) {
            let data = json!({ "stopReason": reason, "errorMessage": error });
            let name = "pi.error".to_owned();
            self.push(RecordBody::Custom(Custom { name, data, context_text: None }));
        }
    }

    /// Reads the counts of the provider; returns `None` for a request that failed before it was counted.
    fn usage(&mut self, mut fields: Fields, answer: &Message) -> Option<Usage> {
        let mut count = |name| fields.count(name).unwrap_or(0);
        let (input, answer_tokens) = (count("input"), count("output"));
        let (read, written) = (count("cacheRead"), count("cacheWrite"));
        count("totalTokens");
        if read > 0 || written > 0 {
            self.losses.add("usage.cacheRead, cacheWrite", "counted as prompt tokens");
        }
        if fields.object("cost").is_some() {
            self.losses.add("usage.cost", "a session has no prices");
        }
        fields.report_remaining(&mut self.losses, "usage");
        let prompt_tokens = input.saturating_add(read).saturating_add(written);
        (prompt_tokens > 0 || answer_tokens > 0).then(|| Usage {
            model: answer.model.clone(),
            prompt_tokens,
            answer_tokens,
        })
    }

    /// Carries over a tool result: as a tool call if the call is known and the result is text, else as a message of
    /// role `tool`.
    fn tool_result(&mut self, timestamp: Timestamp, fields: &mut Fields) {
        let id = fields.text("toolCallId").unwrap_or_default();
        let name = fields.text("toolName");
        let parts = self.parts(fields);
        let failed = fields.flag("isError").unwrap_or(false);
        let display_content = display_text(fields);
        if fields.value("details").is_some() {
            self.losses.add("toolResult.details", "data for the display of the tool");
        }
        let only_text = parts.iter().all(|part| matches!(part, Part::Text { .. }));
        if only_text && let Some((called, args)) = self.find_call(&id) {
            let result = ToolResult {
                llm_content: message(Role::Tool, parts, timestamp).plain_text(),
                display_content,
                success: Some(!failed),
                error: None,
                exit_code: None,
            };
            let name = name.unwrap_or(called);
            let body = ToolCall {
                id,
                name,
                args,
                result,
                timestamp,
                duration_ms: None,
                message_seq: None,
                writes: None,
                writes_root: None,
                writes_omitted: 0,
            };
            self.push(RecordBody::ToolCall(body));
            return;
        }
        if display_content.is_some() {
            self.losses.add("toolResult.details", "a tool message has no display text");
        }
        if failed {
            self.losses.add("toolResult.isError", "a tool message has no such flag");
        }
        let mut answer = message(Role::Tool, parts, timestamp);
        answer.tool_call_id = Some(id);
        answer.tool_name = name;
        self.push(RecordBody::Message(answer));
    }

    /// Carries over a command that the user ran; it stays out of the context if pi kept it out.
    fn bash(&mut self, id: Option<&str>, timestamp: Timestamp, fields: &mut Fields) {
        let command = fields.text("command").unwrap_or_default();
        let output = fields.text("output").unwrap_or_default();
        let exit_code = fields.small("exitCode");
        let canceled = fields.flag("cancelled").unwrap_or(false);
        if fields.flag("truncated").unwrap_or(false) {
            self.losses.add("bashExecution.output", "pi had truncated it");
        }
        if fields.flag("excludeFromContext").unwrap_or(false) {
            let data = json!({
                "command": command, "output": output, "exitCode": exit_code, "cancelled": canceled,
            });
            let name = "pi.bashExecution".to_owned();
            self.push(RecordBody::Custom(Custom { name, data, context_text: None }));
            return;
        }
        let id = match id {
            Some(id) => format!("bash-{id}"),
            None => format!("bash-line-{}", self.losses.line.unwrap_or(0)),
        };
        let result = ToolResult {
            llm_content: output,
            display_content: None,
            success: Some(!canceled && exit_code == Some(0)),
            error: canceled.then(|| "canceled".to_owned()),
            exit_code,
        };
        let body = ToolCall {
            id,
            name: "bash".to_owned(),
            args: json!({ "command": command }),
            result,
            timestamp,
            duration_ms: None,
            message_seq: None,
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        };
        self.push(RecordBody::ToolCall(body));
    }

    /// Appends a compaction that another program made.
    pub(super) fn push_compaction(
        &mut self,
        range: Option<(Seq, Seq)>,
        summary: String,
        tokens_before: u64,
    ) {
        let body = RecordBody::Compaction(Compaction {
            from: range.map(|(from, _)| from),
            to: range.map(|(_, to)| to),
            summary,
            tokens_before,
            tokens_after: None,
            tokenizer: TOKENIZER.to_owned(),
            epoch: None,
            checkpoints: Vec::new(),
            method: None,
            model: None,
            retention: None,
            asked: Vec::new(),
        });
        self.push(body);
    }

    /// Carries over the summary of a branch.
    pub(super) fn branch_summary(&mut self, fields: &mut Fields) {
        let from = fields.text("fromId").filter(|id| id != "root");
        let span = from.as_ref().and_then(|id| self.entry_by_id(id));
        if from.is_some() && span.is_none() {
            self.losses.add("branch_summary.fromId", "no such entry");
        }
        let from = span.and_then(|span| span.tail).map(seq_of);
        let summary = fields.text("summary").unwrap_or_default();
        self.push(RecordBody::BranchSummary(BranchSummary { from, summary, by: None }));
    }

    /// Carries over a text that an extension put into the context.
    pub(super) fn custom_message(&mut self, fields: &mut Fields) {
        let (text, n_other) = self.text_of_content(fields);
        if n_other > 0 {
            self.losses.add("custom_message content", "only its text enters the context");
        }
        let mut data = Map::new();
        for name in ["display", "details"] {
            if let Some(value) = fields.value(name) {
                data.insert(name.to_owned(), value);
            }
        }
        let body = Custom {
            name: fields.text("customType").unwrap_or_default(),
            data: if data.is_empty() { Value::Null } else { Value::Object(data) },
            context_text: Some(text),
        };
        self.push(RecordBody::Custom(body));
    }

    /// Reads the content of a message: a string or a list of blocks.
    fn parts(&mut self, fields: &mut Fields) -> Vec<Part> {
        if let Some(text) = fields.text("content") {
            return vec![Part::Text { text }];
        }
        let blocks = fields.list("content").unwrap_or_default();
        blocks.into_iter().filter_map(|block| self.part(block)).collect()
    }

    fn part(&mut self, block: Value) -> Option<Part> {
        let Some(mut fields) = Fields::of(block) else {
            self.losses.add("content", "a block is not an object");
            return None;
        };
        let kind = fields.text("type").unwrap_or_default();
        let part = match kind.as_str() {
            "text" => Part::Text { text: fields.text("text").unwrap_or_default() },
            "thinking" => {
                if fields.text("thinkingSignature").is_some_and(|signature| !signature.is_empty()) {
                    let reason = "only the provider that signed it can use it";
                    self.losses.add("thinkingSignature", reason);
                }
                Part::Thinking { text: fields.text("thinking").unwrap_or_default() }
            }
            "toolCall" => Part::ToolCall {
                id: fields.text("id").unwrap_or_default(),
                name: fields.text("name").unwrap_or_default(),
                args: fields.value("arguments").unwrap_or_default(),
            },
            "image" => Part::Image {
                mime_type: fields.text("mimeType").unwrap_or_default(),
                data: fields.text("data").unwrap_or_default(),
            },
            other => {
                let what = format!("content of type {other}");
                self.losses.add(&what, "unknown type");
                return None;
            }
        };
        fields.report_remaining(&mut self.losses, &kind);
        Some(part)
    }

    /// Returns the text of a content, and the number of its blocks that are not text.
    fn text_of_content(&mut self, fields: &mut Fields) -> (String, usize) {
        let parts = self.parts(fields);
        let n_other = parts.iter().filter(|part| !matches!(part, Part::Text { .. })).count();
        (message(Role::User, parts, Timestamp::from_unix_ms(0)).plain_text(), n_other)
    }
}

fn message(role: Role, parts: Vec<Part>, timestamp: Timestamp) -> Message {
    Message { parts, ..Message::text(role, "", timestamp) }
}

/// Takes the details of a tool result that were shown as text: a string, or an object with a diff only.
fn display_text(fields: &mut Fields) -> Option<String> {
    if let Some(text) = fields.text("details") {
        return Some(text);
    }
    let details = fields.object("details")?.into_remaining();
    match (details.len(), details.get("diff").and_then(Value::as_str)) {
        (1, Some(diff)) => Some(diff.to_owned()),
        _ => {
            fields.put("details", Value::Object(details));
            None
        }
    }
}
