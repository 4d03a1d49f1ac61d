//! Messages of a pi session.

use ollm_protocol::Timestamp;
use ollm_protocol::content::{
    Custom, Message, Part, RecordBody, Role, ToolCall, ToolResult, Usage,
};
use serde_json::{Value, json};

use super::Reader;
use crate::session::import::fields::Fields;

impl Reader {
    /// Carries over one message; what is left of its fields is reported.
    pub(super) fn message(
        &mut self,
        line: Option<u64>,
        id: Option<&str>,
        at: Timestamp,
        mut fields: Fields,
    ) {
        let role = fields.text("role").unwrap_or_default();
        let said_at = fields.time("timestamp").unwrap_or(at);
        match role.as_str() {
            "user" => {
                let parts = self.parts(line, &mut fields);
                self.push(at, RecordBody::Message(message(Role::User, parts, said_at)));
            }
            "assistant" => self.assistant(line, at, said_at, &mut fields),
            "toolResult" => self.tool_result(line, at, said_at, &mut fields),
            "bashExecution" => self.bash(line, id, at, said_at, &mut fields),
            "custom" | "hookMessage" => self.custom_message(line, at, &mut fields),
            "branchSummary" => self.branch_summary(line, at, &mut fields),
            "compactionSummary" => {
                let summary = fields.text("summary").unwrap_or_default();
                let tokens_before = fields.count("tokensBefore").unwrap_or(0);
                self.push_compaction(at, None, summary, tokens_before);
            }
            other => {
                let what = format!("message of role {other}");
                self.losses.add(line, &what, "the role is not known");
                return;
            }
        }
        fields.report_rest(&mut self.losses, line, &role);
    }

    fn assistant(
        &mut self,
        line: Option<u64>,
        at: Timestamp,
        said_at: Timestamp,
        fields: &mut Fields,
    ) {
        let mut answer = message(Role::Assistant, self.parts(line, fields), said_at);
        answer.model = fields.text("model");
        answer.finish_reason = fields.text("stopReason");
        let provider = fields.text("provider");
        if provider.is_some() && self.provider.is_some() && provider != self.provider {
            self.losses.add(line, "assistant.provider", "a message names its model only");
        }
        let usage = fields.object("usage").and_then(|usage| self.usage(line, usage, &answer));
        let reason = answer.finish_reason.clone();
        let index = self.push(at, RecordBody::Message(answer));
        self.note_calls(index);
        if let Some(usage) = usage {
            self.push(at, RecordBody::Usage(usage));
        }
        // A message has no place for it, and as a text of the message a model would read it as its own words.
        if let Some(error) = fields.text("errorMessage").filter(|error| !error.is_empty()) {
            let data = json!({ "stopReason": reason, "errorMessage": error });
            let name = "pi.error".to_owned();
            self.push(at, RecordBody::Custom(Custom { name, data, context_text: None }));
        }
    }

    /// What the provider counted; `None` for a call that never came to counting.
    fn usage(&mut self, line: Option<u64>, mut fields: Fields, answer: &Message) -> Option<Usage> {
        let mut count = |name| fields.count(name).unwrap_or(0);
        let (input, answer_tokens) = (count("input"), count("output"));
        let (read, written) = (count("cacheRead"), count("cacheWrite"));
        count("totalTokens");
        if read > 0 || written > 0 {
            self.losses.add(line, "usage.cacheRead, cacheWrite", "counted as prompt tokens");
        }
        if fields.object("cost").is_some() {
            self.losses.add(line, "usage.cost", "prices are not recorded");
        }
        fields.report_rest(&mut self.losses, line, "usage");
        let prompt_tokens = input.saturating_add(read).saturating_add(written);
        (prompt_tokens > 0 || answer_tokens > 0).then(|| Usage {
            model: answer.model.clone(),
            prompt_tokens,
            answer_tokens,
        })
    }

    /// A result becomes a tool call with its result where the call is known and the result is text; else it
    /// stays a message of role `tool`.
    fn tool_result(
        &mut self,
        line: Option<u64>,
        at: Timestamp,
        said_at: Timestamp,
        fields: &mut Fields,
    ) {
        let id = fields.text("toolCallId").unwrap_or_default();
        let name = fields.text("toolName");
        let parts = self.parts(line, fields);
        let failed = fields.flag("isError").unwrap_or(false);
        let display_content = display_text(fields);
        if fields.value("details").is_some() {
            self.losses.add(line, "toolResult.details", "data of the tool's own display");
        }
        let only_text = parts.iter().all(|part| matches!(part, Part::Text { .. }));
        if let Some((called, args)) = self.find_call(&id).filter(|_| only_text) {
            let result = ToolResult {
                llm_content: message(Role::Tool, parts, said_at).plain_text(),
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
                timestamp: said_at,
                duration_ms: None,
                message_seq: None,
            };
            self.push(at, RecordBody::ToolCall(body));
            return;
        }
        if display_content.is_some() {
            self.losses.add(line, "toolResult.details", "a tool message has no display text");
        }
        if failed {
            self.losses.add(line, "toolResult.isError", "a tool message does not say it");
        }
        let mut answer = message(Role::Tool, parts, said_at);
        answer.tool_call_id = Some(id);
        answer.tool_name = name;
        self.push(at, RecordBody::Message(answer));
    }

    /// A command that the person ran; one that was to stay out of the context stays out of it.
    fn bash(
        &mut self,
        line: Option<u64>,
        id: Option<&str>,
        at: Timestamp,
        said_at: Timestamp,
        fields: &mut Fields,
    ) {
        let command = fields.text("command").unwrap_or_default();
        let output = fields.text("output").unwrap_or_default();
        let exit_code = fields.small("exitCode");
        let canceled = fields.flag("cancelled").unwrap_or(false);
        if fields.flag("truncated").unwrap_or(false) {
            self.losses.add(line, "bashExecution.output", "pi itself had cut it");
        }
        if fields.flag("excludeFromContext").unwrap_or(false) {
            let data = json!({
                "command": command, "output": output, "exitCode": exit_code, "cancelled": canceled,
            });
            let name = "pi.bashExecution".to_owned();
            self.push(at, RecordBody::Custom(Custom { name, data, context_text: None }));
            return;
        }
        let id = match (id, line) {
            (Some(id), _) => format!("bash-{id}"),
            (None, line) => format!("bash-line-{}", line.unwrap_or(0)),
        };
        let result = ToolResult {
            llm_content: output,
            display_content: None,
            success: Some(!canceled && exit_code == Some(0)),
            error: canceled.then(|| "cancelled".to_owned()),
            exit_code,
        };
        let body = ToolCall {
            id,
            name: "bash".to_owned(),
            args: json!({ "command": command }),
            result,
            timestamp: said_at,
            duration_ms: None,
            message_seq: None,
        };
        self.push(at, RecordBody::ToolCall(body));
    }

    /// The content of a message: one text, or a list of blocks.
    fn parts(&mut self, line: Option<u64>, fields: &mut Fields) -> Vec<Part> {
        if let Some(text) = fields.text("content") {
            return vec![Part::Text { text }];
        }
        let blocks = fields.list("content").unwrap_or_default();
        blocks.into_iter().filter_map(|block| self.part(line, block)).collect()
    }

    fn part(&mut self, line: Option<u64>, block: Value) -> Option<Part> {
        let Some(mut fields) = Fields::of(block) else {
            self.losses.add(line, "content", "a block that is no object");
            return None;
        };
        let kind = fields.text("type").unwrap_or_default();
        let part = match kind.as_str() {
            "text" => Part::Text { text: fields.text("text").unwrap_or_default() },
            "thinking" => {
                if fields.text("thinkingSignature").is_some_and(|signature| !signature.is_empty()) {
                    let reason = "only the provider that signed it could use it";
                    self.losses.add(line, "thinkingSignature", reason);
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
                self.losses.add(line, &what, "the type is not known");
                return None;
            }
        };
        fields.report_rest(&mut self.losses, line, &kind);
        Some(part)
    }

    /// The text of a content and how many of its blocks are none.
    pub(super) fn text_of_content(
        &mut self,
        line: Option<u64>,
        fields: &mut Fields,
    ) -> (String, usize) {
        let parts = self.parts(line, fields);
        let n_other = parts.iter().filter(|part| !matches!(part, Part::Text { .. })).count();
        (message(Role::User, parts, Timestamp::from_unix_ms(0)).plain_text(), n_other)
    }
}

fn message(role: Role, parts: Vec<Part>, timestamp: Timestamp) -> Message {
    Message { parts, ..Message::text(role, "", timestamp) }
}

/// What a person was shown: a text, or an object that holds nothing but the text of a diff.
fn display_text(fields: &mut Fields) -> Option<String> {
    if let Some(text) = fields.text("details") {
        return Some(text);
    }
    let rest = fields.object("details")?.into_rest();
    match (rest.len(), rest.get("diff").and_then(Value::as_str)) {
        (1, Some(diff)) => Some(diff.to_owned()),
        _ => {
            fields.put("details", Value::Object(rest));
            None
        }
    }
}
