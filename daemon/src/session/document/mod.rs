//! The session document, written while records pass by.
//!
//! Owns the projection from records to `SessionDocument` (FORMAT.md, "Session document"), for the file beside
//! the log and for the export alike. Memory stays that of one record: the document lists messages, then tool
//! calls, then modes, so its writer asks for the records once for each list that is not empty. Must not know
//! where records come from nor where the text goes.

use ollm_protocol::Timestamp;
use ollm_protocol::content::{
    DocumentMessage, DocumentMetadata, DocumentToolCall, Message, Record, RecordBody, Role,
    Session, ToolCall,
};
use serde::Serialize;

/// What a document says of a session besides its records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionFacts<'a> {
    /// The session as lists show it.
    pub session: &'a Session,
    /// The system prompt in force.
    pub system_prompt: Option<&'a str>,
}

/// Writes one document; the caller passes the same records again for as long as it is asked to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DocumentWriter {
    pub(super) pass: Pass,
    /// Elements written to the list of this pass.
    pub(super) n_written: u64,
    /// Messages seen in this pass.
    pub(super) n_messages: u64,
    /// Counted in the first pass.
    pub(super) totals: Totals,
}

/// Which list is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pass {
    #[default]
    Messages,
    ToolCalls,
    Modes,
    Done,
}

/// What the first pass counts for the metadata at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub user_messages: u64,
    pub tool_calls: u64,
    pub mode_changes: u64,
    pub compactions: u64,
    pub tokens: u64,
    pub last_message_at: Option<Timestamp>,
}

impl DocumentWriter {
    /// Writes what comes before the first record.
    pub(crate) fn begin(&mut self, facts: &SessionFacts<'_>, out: &mut String) {
        let session = facts.session;
        out.push('{');
        field(out, "\n", "sessionId", &session.session_id);
        field(out, ",\n", "startTime", &session.start_time);
        field(out, ",\n", "lastActivity", &session.last_activity);
        field(out, ",\n", "model", session.model.as_deref().unwrap_or_default());
        field(out, ",\n", "provider", session.provider.as_deref().unwrap_or_default());
        out.push_str(",\n\"messages\":[");
    }

    /// Writes what one record contributes to the list of this pass, which may be nothing.
    pub(crate) fn record(&mut self, record: Record, out: &mut String) {
        let tokens = u64::from(record.tokens.unwrap_or(0));
        let (active, first) = (record.active, self.pass == Pass::Messages);
        let Some(body) = record.into_body() else { return };
        match body {
            RecordBody::Message(message) => {
                self.n_messages += 1;
                if first {
                    self.totals.message(&message, tokens);
                    self.element(&document_message(message, active), out);
                }
            }
            RecordBody::ToolCall(call) => {
                if first {
                    self.totals.tool_calls += 1;
                    self.totals.tokens += tokens;
                } else if self.pass == Pass::ToolCalls {
                    self.element(&document_call(call, active, self.n_messages), out);
                }
            }
            RecordBody::ModeChange(change) if active => {
                if first {
                    self.totals.mode_changes += 1;
                } else if self.pass == Pass::Modes {
                    self.element(&change, out);
                }
            }
            RecordBody::Compaction(_) if active && first => self.totals.compactions += 1,
            _ => {}
        }
    }

    /// Ends a pass over the records; true asks for another one, false says that the document is complete.
    pub(crate) fn end_pass(&mut self, facts: &SessionFacts<'_>, out: &mut String) -> bool {
        if self.pass == Pass::Messages {
            self.end_list(out);
            out.push_str(",\n\"toolCalls\":[");
            self.pass = Pass::ToolCalls;
            if self.totals.tool_calls > 0 {
                return true;
            }
        }
        if self.pass == Pass::ToolCalls {
            self.end_list(out);
            out.push_str(",\n\"metadata\":{\n\"modeHistory\":[");
            self.pass = Pass::Modes;
            if self.totals.mode_changes > 0 {
                return true;
            }
        }
        if self.pass == Pass::Modes {
            self.end_list(out);
            self.metadata(facts, out);
            self.pass = Pass::Done;
        }
        false
    }

    /// Continues the metadata after the modes, which the writer has written one by one.
    fn metadata(&self, facts: &SessionFacts<'_>, out: &mut String) {
        let session = facts.session;
        let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let metadata = DocumentMetadata {
            token_count: self.totals.tokens,
            compression_count: self.totals.compactions,
            mode_history: Vec::new(),
            title: named(&session.title),
            description: named(&session.description),
            project_path: session.project_path.clone(),
            system_prompt: facts.system_prompt.map(str::to_owned),
            last_message_at: self.totals.last_message_at,
            user_message_count: self.totals.user_messages,
            context_window: session.context_size,
            client_metadata: session.metadata.clone(),
        };
        if let Ok(serde_json::Value::Object(mut rest)) = serde_json::to_value(metadata) {
            rest.remove("modeHistory");
            for (name, value) in &rest {
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

impl Totals {
    fn message(&mut self, message: &Message, tokens: u64) {
        self.tokens += tokens;
        self.user_messages += u64::from(message.role == Role::User);
        self.last_message_at = Some(message.timestamp);
    }
}

/// A value as JSON in one line.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("content types have text keys and do not fail")
}

fn field<T: Serialize + ?Sized>(out: &mut String, before: &str, name: &str, value: &T) {
    out.push_str(before);
    out.push_str(&json(name));
    out.push(':');
    out.push_str(&json(value));
}

fn document_message(message: Message, active: bool) -> DocumentMessage {
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

fn document_call(call: ToolCall, active: bool, n_messages: u64) -> DocumentToolCall {
    DocumentToolCall {
        id: call.id,
        name: call.name,
        args: call.args,
        result: call.result,
        timestamp: call.timestamp,
        active: (!active).then_some(false),
        after_messages: Some(n_messages),
        duration_ms: call.duration_ms,
    }
}

#[cfg(test)]
mod tests;
