//! The session document: one JSON object with every message and tool call. FORMAT.md, "Session document".
//!
//! The writer serves the file beside the log and the JSON export. It holds one record at a time: a document lists
//! messages, then tool calls, then modes, so the writer asks for all records once for each list that is not empty. It
//! knows neither the source of the records nor the destination of the text.

use ollm_protocol::Timestamp;
use ollm_protocol::content::{
    DocumentMessage, DocumentMetadata, DocumentToolCall, Message, Record, RecordBody, Role,
    Session, ToolCall,
};
use serde::{Deserialize, Serialize};

/// The properties of a session in documents and exports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOverview<'a> {
    pub session: &'a Session,
    /// The system prompt in force, which is not empty.
    pub system_prompt: Option<&'a str>,
}

/// A writer of one document.
///
/// Call `begin`, then `record` for every record in the order of the log, then `end_pass`; as long as that returns true,
/// pass all records again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DocumentWriter {
    pub(super) pass: DocumentPass,
    /// The number of elements in the list of this pass.
    pub(super) n_written: u64,
    /// The number of messages seen in this pass.
    pub(super) n_messages: u64,
    /// The totals of the first pass.
    pub(super) totals: DocumentTotals,
}

/// The list that a pass over the records writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DocumentPass {
    #[default]
    Messages,
    ToolCalls,
    Modes,
    Done,
}

/// The counts in the metadata, which is written behind the lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DocumentTotals {
    pub user_messages: u64,
    pub tool_calls: u64,
    pub mode_changes: u64,
    pub compactions: u64,
    pub tokens: u64,
    pub last_message_at: Option<Timestamp>,
}

impl DocumentWriter {
    /// Writes the fields before the first list.
    pub(crate) fn begin(&mut self, overview: &SessionOverview<'_>, out: &mut String) {
        let session = overview.session;
        out.push('{');
        field(out, "\n", "sessionId", &session.session_id);
        field(out, ",\n", "startTime", &session.start_time);
        field(out, ",\n", "lastActivity", &session.last_activity);
        field(out, ",\n", "model", session.model.as_deref().unwrap_or_default());
        field(out, ",\n", "provider", session.provider.as_deref().unwrap_or_default());
        out.push_str(",\n\"messages\":[");
    }

    /// Writes the element that a record adds to the list of this pass, if any.
    pub(crate) fn record(&mut self, record: Record, out: &mut String) {
        let tokens = u64::from(record.tokens.unwrap_or(0));
        let (active, first) = (record.active, self.pass == DocumentPass::Messages);
        let Some(body) = record.into_body() else { return };
        match body {
            RecordBody::Message(message) => {
                self.n_messages += 1;
                if first {
                    self.totals.tokens += tokens;
                    self.totals.user_messages += u64::from(message.role == Role::User);
                    self.totals.last_message_at = Some(message.timestamp);
                    self.element(&document_message(message, active), out);
                }
            }
            RecordBody::ToolCall(call) => {
                if first {
                    self.totals.tool_calls += 1;
                    self.totals.tokens += tokens;
                } else if self.pass == DocumentPass::ToolCalls {
                    self.element(&document_call(call, active, Some(self.n_messages)), out);
                }
            }
            RecordBody::ModeChange(change) if active => {
                if first {
                    self.totals.mode_changes += 1;
                } else if self.pass == DocumentPass::Modes {
                    self.element(&change, out);
                }
            }
            RecordBody::Compaction(_) if active && first => self.totals.compactions += 1,
            _ => {}
        }
    }

    /// Ends a pass over the records; returns whether another pass is needed to complete the document.
    pub(crate) fn end_pass(&mut self, overview: &SessionOverview<'_>, out: &mut String) -> bool {
        if self.pass == DocumentPass::Messages {
            self.end_list(out);
            out.push_str(",\n\"toolCalls\":[");
            self.pass = DocumentPass::ToolCalls;
            if self.totals.tool_calls > 0 {
                return true;
            }
        }
        if self.pass == DocumentPass::ToolCalls {
            self.end_list(out);
            out.push_str(",\n\"metadata\":{\n\"modeHistory\":[");
            self.pass = DocumentPass::Modes;
            if self.totals.mode_changes > 0 {
                return true;
            }
        }
        if self.pass == DocumentPass::Modes {
            self.end_list(out);
            self.metadata(overview, out);
            self.pass = DocumentPass::Done;
        }
        false
    }

    /// Writes the metadata after its first field, the list of modes.
    fn metadata(&self, overview: &SessionOverview<'_>, out: &mut String) {
        let session = overview.session;
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let metadata = DocumentMetadata {
            token_count: self.totals.tokens,
            compression_count: self.totals.compactions,
            mode_history: Vec::new(),
            title: given(&session.title),
            description: given(&session.description),
            project_path: session.project_path.clone(),
            system_prompt: overview.system_prompt.map(str::to_owned),
            last_message_at: self.totals.last_message_at,
            user_message_count: self.totals.user_messages,
            context_window: session.context_size,
            keep_alive_seconds: session.keep_alive_seconds,
            allowed_servers: session.allowed_servers.clone(),
            options: session.options.clone(),
            client_metadata: session.metadata.clone(),
        };
        if let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(metadata) {
            fields.remove("modeHistory");
            for (name, value) in &fields {
                field(out, ",\n", name, value);
            }
        }
        out.push_str("\n}\n}\n");
    }

    fn element(&mut self, element: &impl Serialize, out: &mut String) {
        out.push_str(if self.n_written == 0 { "\n" } else { ",\n" });
        self.n_written += 1;
        out.push_str(&json(element));
    }

    fn end_list(&mut self, out: &mut String) {
        out.push_str(if self.n_written == 0 { "]" } else { "\n]" });
        (self.n_written, self.n_messages) = (0, 0);
    }
}

/// Returns a value as JSON on one line.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("content types have text keys and do not fail")
}

fn field<T: Serialize + ?Sized>(out: &mut String, before: &str, name: &str, value: &T) {
    out.push_str(before);
    out.push_str(&json(name));
    out.push(':');
    out.push_str(&json(value));
}

/// Returns a message as documents and snapshot files hold it.
pub(crate) fn document_message(message: Message, active: bool) -> DocumentMessage {
    DocumentMessage {
        role: message.role,
        parts: message.parts,
        timestamp: message.timestamp,
        active: (!active).then_some(false),
        tool_call_id: message.tool_call_id,
        tool_name: message.tool_name,
        model: message.model,
        finish_reason: message.finish_reason,
        duration_ms: message.duration_ms,
    }
}

/// Returns a tool call as documents and snapshot files hold it, with the number of messages before it if it is known.
pub(crate) fn document_call(
    call: ToolCall,
    active: bool,
    after_messages: Option<u64>,
) -> DocumentToolCall {
    DocumentToolCall {
        id: call.id,
        name: call.name,
        args: call.args,
        result: call.result,
        timestamp: call.timestamp,
        active: (!active).then_some(false),
        after_messages,
        duration_ms: call.duration_ms,
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{
        ExportFormat, LeafMove, ModeChange, Part, RecordKind, SessionHeader, ToolResult,
    };
    use ollm_protocol::{Seq, SessionId};
    use serde_json::{Value, json};

    use super::*;
    use crate::session::testing::{FALLBACK_ID, export, mark_active, tool_call, with_overview};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix_ms(1_769_508_000_000 + second * 1000)
    }

    fn log(bodies: Vec<(Option<u64>, RecordBody)>) -> Vec<Record> {
        let header: SessionHeader = serde_json::from_value(json!({
            "sessionId": SessionId::from_uuid(FALLBACK_ID), "startTime": at(0), "title": "A \"bridge\"",
            "model": "m", "systemPrompt": "be brief", "contextSize": 4096, "metadata": { "k": [1] },
        }))
        .unwrap();
        let mut records = vec![Record::new(Seq(0), None, at(0), RecordBody::Session(header))];
        for (seq, (parent, body)) in (1..).zip(bodies) {
            let now = at(i64::try_from(seq).unwrap());
            let mut record = Record::new(Seq(seq), parent.map(Seq), now, body);
            record.tokens = Some(10);
            records.push(record);
        }
        mark_active(&mut records);
        records
    }

    fn message(role: Role, text: &str) -> RecordBody {
        RecordBody::Message(Message::text(role, text, at(1)))
    }

    fn read() -> RecordBody {
        tool_call("read", json!({ "path": "a" }), ToolResult::default(), at(2))
    }

    #[test]
    fn document_has_every_message_and_marks_those_off_the_active_path() {
        let mode = ModeChange {
            from: None,
            to: "planning".to_owned(),
            timestamp: at(5),
            trigger: "manual".to_owned(),
            confidence: None,
        };
        let records = log(vec![
            (None, message(Role::User, "one")),
            (Some(1), read()),
            (Some(2), message(Role::Assistant, "two")),
            (Some(3), read()),
            (Some(2), RecordBody::ModeChange(mode)),
            (Some(5), message(Role::User, "three")),
        ]);
        let document: Value = serde_json::from_str(&export(ExportFormat::Json, &records)).unwrap();
        let messages = document["messages"].as_array().unwrap();
        let active: Vec<_> = messages.iter().map(|message| message["active"].clone()).collect();
        assert_eq!(active, [Value::Null, json!(false), Value::Null]);
        assert_eq!(document["toolCalls"][0]["afterMessages"], json!(1));
        assert_eq!(document["toolCalls"][1]["afterMessages"], json!(2));
        assert_eq!(document["toolCalls"][1]["active"], json!(false));
        assert_eq!(
            document["metadata"],
            json!({
                "tokenCount": 50, "compressionCount": 0, "userMessageCount": 2,
                "modeHistory": [{ "to": "planning", "timestamp": at(5), "trigger": "manual" }],
                "title": "A \"bridge\"", "description": "one", "systemPrompt": "be brief",
                "contextWindow": 4096, "lastMessageAt": at(1), "client": { "k": [1] },
            })
        );
        assert_eq!(document["lastActivity"], json!(at(6)));
    }

    #[test]
    fn writer_asks_for_one_pass_for_each_list_that_is_not_empty() {
        let passes_of = |records: &[Record]| {
            with_overview(records, |overview| {
                let (mut writer, mut out) = (DocumentWriter::default(), String::new());
                writer.begin(overview, &mut out);
                for n in 1.. {
                    records.iter().for_each(|record| writer.record(record.clone(), &mut out));
                    if !writer.end_pass(overview, &mut out) {
                        serde_json::from_str::<Value>(&out).expect("valid JSON");
                        return n;
                    }
                }
                0
            })
        };
        assert_eq!(passes_of(&log(vec![])), 1);
        assert_eq!(passes_of(&log(vec![(None, message(Role::User, "one"))])), 1);
        assert_eq!(passes_of(&log(vec![(None, read())])), 2);
    }

    #[test]
    fn document_of_an_empty_active_path_has_inactive_messages() {
        let undo = RecordBody::Leaf(LeafMove { to: None, cause: "undo".to_owned() });
        let records = log(vec![(None, message(Role::User, "one")), (None, undo)]);
        assert_eq!(records[2].kind, RecordKind::Leaf);
        let document: Value = serde_json::from_str(&export(ExportFormat::Json, &records)).unwrap();
        assert_eq!(document["messages"][0]["active"], json!(false));
        let part = document["messages"][0]["parts"][0].clone();
        let part: Part = serde_json::from_value(part).unwrap();
        assert_eq!(part, Part::Text { text: "one".to_owned() });
    }
}
