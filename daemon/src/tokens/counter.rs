//! The counter: tokens of texts, messages, records, tool definitions and whole prompts.
//!
//! It counts with a model's vocabulary and template where they are known, and estimates the rest.
//! Must not know the model server, or where vocabularies and templates are stored.
//!
//! **Invariant**: a count depends only on the input and on the vocabulary, template and calibration of the counter.

use std::sync::Arc;

use ollm_protocol::content::{
    ContextMessage, CountKind, Message, Part, RecordBody, Role, ToolCall,
};
use serde_json::Value;

use super::calibration::{Calibration, Column, Parts};
use super::estimate::{
    self, ESTIMATE_MARGIN_DIVISOR, IMAGE_TOKENS, MESSAGE_OVERHEAD_TOKENS, TOOL_OVERHEAD_TOKENS,
};
use super::exact::Exact;

/// Names the estimate beside its counts.
const ESTIMATE: &str = "estimate-v1";

/// Counts tokens as one model does; a cheap clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter {
    exact: Option<Arc<Exact>>,
    /// What the server's counts taught; used for the prompts that are not counted exactly.
    calibration: Option<Arc<Calibration>>,
}

impl Counter {
    /// Counts without a vocabulary.
    pub(crate) const ESTIMATE: Self = Self { exact: None, calibration: None };

    /// Counts with a model's own vocabulary, and with its template where that is known.
    pub(crate) fn exact(exact: Exact) -> Self {
        Self { exact: Some(Arc::new(exact)), calibration: None }
    }

    /// The same with what the server's counts taught, or without.
    pub(crate) fn calibrated(self, calibration: Option<Arc<Calibration>>) -> Self {
        Self { calibration, ..self }
    }

    /// Whether texts are counted with the model's own vocabulary.
    pub(crate) const fn knows_texts(&self) -> bool {
        self.exact.is_some()
    }

    /// Names the tokenizer whose counts these are; stored beside every count.
    pub(crate) fn identity(&self) -> Arc<str> {
        self.exact.as_ref().map_or_else(|| ESTIMATE.into(), |exact| exact.identity())
    }

    /// How far counts of texts and plain messages can be trusted.
    pub(crate) fn kind(&self) -> CountKind {
        match &self.exact {
            None => CountKind::Estimated,
            Some(exact) if exact.has_template() => CountKind::Exact,
            Some(_) => CountKind::Calibrated,
        }
    }

    /// How far the count of a whole conversation can be trusted.
    pub(crate) fn kind_of(&self, messages: &[ContextMessage]) -> CountKind {
        match &self.exact {
            Some(exact) if !exact.covers(messages) => CountKind::Calibrated,
            None if self.calibration.is_some() => CountKind::Calibrated,
            _ => self.kind(),
        }
    }

    /// How far the count of a text by itself can be trusted.
    pub(crate) const fn kind_of_text(&self) -> CountKind {
        match &self.exact {
            Some(_) => CountKind::Exact,
            None => CountKind::Estimated,
        }
    }

    /// Tokens of a text; 0 for the empty one.
    pub(crate) fn count_text(&self, text: &str) -> u32 {
        self.exact.as_ref().map_or_else(|| estimate::count(text), |exact| exact.text(text))
    }

    /// Tokens of a JSON value as a template writes it.
    pub(crate) fn count_json(&self, value: &Value) -> u32 {
        match value {
            Value::Null => 0,
            value => self.count_text(&value.to_string()),
        }
    }

    /// Tokens of one recorded message as it enters a context: thinking stays out.
    pub(crate) fn count_message(&self, message: &Message) -> u32 {
        let plain = message.parts.iter().all(|part| matches!(part, Part::Text { .. }));
        if plain && let Some(exact) = &self.exact {
            return exact.turn(message.role, &message.plain_text());
        }
        let around = self.count_around(message.role);
        message.parts.iter().fold(around, |sum, part| {
            sum.saturating_add(match part {
                Part::Text { text } => self.count_text(text),
                Part::Thinking { .. } => 0,
                Part::ToolCall { name, args, .. } => self.count_call(name, args),
                Part::Image { .. } => IMAGE_TOKENS,
            })
        })
    }

    /// Tokens of an executed tool call, the call itself included.
    ///
    /// Where an assistant message already made the call only the result enters, so this is an upper bound.
    pub(crate) fn count_tool_call(&self, call: &ToolCall) -> u32 {
        self.count_around(Role::Assistant)
            .saturating_add(self.count_around(Role::Tool))
            .saturating_add(self.count_call(&call.name, &call.args))
            .saturating_add(self.count_text(&call.result.llm_content))
    }

    /// Tokens that a record costs in a context as it is rendered; 0 for one that never enters.
    pub(crate) fn count_record(&self, body: &RecordBody) -> u32 {
        let turn = |text: &str| self.count_around(Role::User).saturating_add(self.count_note(text));
        match body {
            RecordBody::Message(message) => self.count_message(message),
            RecordBody::ToolCall(call) => self.count_tool_call(call),
            RecordBody::Delta(delta) => turn(&delta.text),
            RecordBody::BranchSummary(branch) => turn(&branch.summary),
            RecordBody::Compaction(compaction) if compaction.epoch.is_none() => {
                turn(&compaction.summary)
            }
            RecordBody::Custom(custom) => custom.context_text.as_deref().map_or(0, turn),
            _ => 0,
        }
    }

    /// Tokens of a user turn that stands for no record.
    pub(crate) fn count_user_text(&self, text: &str) -> u32 {
        match &self.exact {
            Some(exact) => exact.turn(Role::User, text),
            None => MESSAGE_OVERHEAD_TOKENS.saturating_add(self.count_text(text)),
        }
    }

    /// Tokens of the last of some messages of a conversation, which `next` follows.
    ///
    /// `has_system`: a system message stands before them. What the template puts before the first message is no part
    /// of it: [`Self::count_head`] has that.
    pub(crate) fn count_last(
        &self,
        messages: &[ContextMessage],
        next: Option<&ContextMessage>,
        has_system: bool,
    ) -> u32 {
        let Some(last) = messages.last() else { return 0 };
        let exact = self.exact.as_ref().and_then(|exact| exact.last(messages, next, has_system));
        exact.unwrap_or_else(|| {
            let tokens = self.count_context_message(last);
            let mut parts = Parts::default();
            self.note_message(last, tokens, &mut parts);
            self.corrected(&parts, tokens)
        })
    }

    /// Tokens of the system message, with what a template puts before every conversation; then those of the tools.
    pub(crate) fn count_head(
        &self,
        system: Option<&ContextMessage>,
        tools: &[Value],
    ) -> (u32, u32) {
        let exact = self.exact.as_ref().and_then(|exact| exact.head(system, !tools.is_empty()));
        if let Some((head, Some(tool_tokens))) = exact {
            return (head, tool_tokens);
        }
        let own = || system.map_or(0, |message| self.count_context_message(message));
        let head = exact.map_or_else(own, |(head, _)| head);
        let tool_tokens = self.count_tools(tools);
        let mut parts = Parts::default();
        self.note_head(head.saturating_add(tool_tokens), &mut parts);
        (self.corrected(&parts, head), tool_tokens)
    }

    /// What of a prompt is not counted exactly.
    pub(crate) fn parts(&self, messages: &[ContextMessage], tools: &[Value]) -> Parts {
        let mut parts = Parts::default();
        let system = messages.first().filter(|first| first.role == Role::System);
        let head = self.exact.as_ref().and_then(|exact| exact.head(system, !tools.is_empty()));
        if !matches!(head, Some((_, Some(_)))) {
            let tokens = system.map_or(0, |message| self.count_context_message(message));
            self.note_head(tokens.saturating_add(self.count_tools(tools)), &mut parts);
        }
        let rest = &messages[usize::from(system.is_some())..];
        for (at, message) in rest.iter().enumerate() {
            let (said, next) = (&rest[..=at], rest.get(at + 1));
            let exact = self.exact.as_ref();
            if exact.and_then(|exact| exact.last(said, next, system.is_some())).is_none() {
                self.note_message(message, self.count_context_message(message), &mut parts);
            }
        }
        parts
    }

    /// By how much the count of a whole prompt may be wrong.
    pub(crate) fn margin(&self, messages: &[ContextMessage], tools: &[Value], tokens: u64) -> u64 {
        if self.kind_of(messages) == CountKind::Exact {
            return 0;
        }
        match &self.calibration {
            Some(calibration) => calibration.margin(&self.parts(messages, tools), tokens),
            None => tokens.div_ceil(ESTIMATE_MARGIN_DIVISOR),
        }
    }

    fn note_head(&self, tokens: u32, parts: &mut Parts) {
        parts.add(Column::Head, 1);
        self.note_text(tokens, parts);
    }

    fn note_message(&self, message: &ContextMessage, tokens: u32, parts: &mut Parts) {
        let column = match message.role {
            Role::System | Role::User => Column::User,
            Role::Assistant => Column::Assistant,
            Role::Tool => Column::Result,
        };
        parts.add(column, 1);
        let n_calls = u32::try_from(message.tool_calls.len()).unwrap_or(u32::MAX);
        parts.add(Column::Call, n_calls);
        self.note_text(tokens, parts);
    }

    fn note_text(&self, tokens: u32, parts: &mut Parts) {
        if !self.knows_texts() {
            parts.add(Column::Text, tokens);
        }
    }

    /// A count with what the server's counts taught of such parts.
    fn corrected(&self, parts: &Parts, tokens: u32) -> u32 {
        let Some(calibration) = &self.calibration else { return tokens };
        let corrected = calibration.corrected(parts, tokens.into());
        u32::try_from(corrected).unwrap_or(u32::MAX)
    }

    /// Tokens of a whole prompt.
    pub(crate) fn count_prompt(&self, messages: &[ContextMessage], tools: &[Value]) -> u64 {
        let system = messages.first().filter(|first| first.role == Role::System);
        let (head, tool_tokens) = self.count_head(system, tools);
        let rest = &messages[usize::from(system.is_some())..];
        let counts = (1..=rest.len()).map(|end| {
            let (said, next) = (&rest[..end], rest.get(end));
            u64::from(self.count_last(said, next, system.is_some()))
        });
        u64::from(head) + u64::from(tool_tokens) + counts.sum::<u64>()
    }

    /// Tokens of one message as a model server takes it, wherever it stands.
    pub(crate) fn count_context_message(&self, message: &ContextMessage) -> u32 {
        let calls = message.tool_calls.iter().fold(0_u32, |sum, call| {
            sum.saturating_add(self.count_call(&call.function.name, &call.function.arguments))
        });
        let images = u32::try_from(message.images.len()).unwrap_or(u32::MAX);
        self.count_around(message.role)
            .saturating_add(self.count_text(&message.content))
            .saturating_add(calls)
            .saturating_add(images.saturating_mul(IMAGE_TOKENS))
    }

    /// Tokens of tool definitions, about.
    fn count_tools(&self, tools: &[Value]) -> u32 {
        tools.iter().fold(0, |sum, tool| {
            sum.saturating_add(TOOL_OVERHEAD_TOKENS).saturating_add(self.count_json(tool))
        })
    }

    /// What a template puts around one message.
    fn count_around(&self, role: Role) -> u32 {
        self.exact.as_ref().map_or(MESSAGE_OVERHEAD_TOKENS, |exact| exact.around(role))
    }

    /// Tokens of thinking, which is recorded and never sent back.
    pub(crate) fn count_thinking(&self, message: &Message) -> u32 {
        message.parts.iter().fold(0, |sum, part| match part {
            Part::Thinking { text } => sum.saturating_add(self.count_text(text)),
            _ => sum,
        })
    }

    fn count_call(&self, name: &str, args: &Value) -> u32 {
        TOOL_OVERHEAD_TOKENS
            .saturating_add(self.count_text(name))
            .saturating_add(self.count_json(args))
    }

    /// A text between the delimiters of a note.
    fn count_note(&self, text: &str) -> u32 {
        /// The longest pair of delimiters with its line breaks.
        const DELIMITER_TOKENS: u32 = 12;
        self.count_text(text).saturating_add(DELIMITER_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{Role, ToolResult, Usage};
    use serde_json::json;

    use super::*;

    fn at() -> Timestamp {
        Timestamp::from_unix_ms(0)
    }

    #[test]
    fn a_message_costs_its_parts_and_never_its_thinking() {
        let mut message = Message::text(Role::Assistant, "hello world", at());
        let plain = Counter::ESTIMATE.count_message(&message);
        assert_eq!(plain, MESSAGE_OVERHEAD_TOKENS + Counter::ESTIMATE.count_text("hello world"));
        message.parts.push(Part::Thinking { text: "a long thought".repeat(99) });
        assert_eq!(Counter::ESTIMATE.count_message(&message), plain);
        assert!(Counter::ESTIMATE.count_thinking(&message) > 99);
        message.parts.push(Part::Image { mime_type: "image/png".into(), data: "A".repeat(9000) });
        assert_eq!(Counter::ESTIMATE.count_message(&message), plain + IMAGE_TOKENS);
    }

    #[test]
    fn records_that_never_enter_cost_nothing() {
        assert_eq!(Counter::ESTIMATE.count_record(&RecordBody::Usage(Usage::default())), 0);
        let call = ToolCall {
            id: "c".into(),
            name: "read".into(),
            args: json!({"path": "a.rs"}),
            result: ToolResult { llm_content: "fn main() {}".into(), ..ToolResult::default() },
            timestamp: at(),
            duration_ms: None,
            message_seq: None,
        };
        let body = RecordBody::ToolCall(call);
        assert!(
            Counter::ESTIMATE.count_record(&body) > Counter::ESTIMATE.count_text("fn main() {}")
        );
    }
}
