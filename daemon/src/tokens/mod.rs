//! Counting tokens: what a text, a message or a record costs in a context.
//!
//! Must not know sessions, windows or budgets. Every count is a pure function of its input, so the same log
//! always gives the same context.

mod byte_level;
mod cache;
mod escaped;
mod estimate;
mod gemma;
mod merge;
mod pairs;
mod sentence_piece;
mod special;
mod split;
#[cfg(test)]
mod testing;
mod tokenizer;
mod vocab;
mod words;

pub use tokenizer::{Tokenizer, UnknownRule};
pub use vocab::{Vocabulary, VocabularyError};

use ollm_protocol::content::{Message, Part, RecordBody, ToolCall};
use ollm_protocol::methods::context::{ContextMessage, CountKind};
use serde_json::Value;

/// Tokens that a chat template spends around one message.
///
/// **Source**: ChatML (`<|im_start|>`, role, line break, `<|im_end|>`, line break) and the Llama 3 template spend
/// five; the other common ones spend three to five. Smaller would let many short messages pass the limit.
pub(crate) const MESSAGE_OVERHEAD_TOKENS: u32 = 5;

/// Tokens that a chat template spends around one tool call or one tool definition: its tags, the JSON keys and
/// the id. The names and arguments themselves are counted.
pub(crate) const TOOL_OVERHEAD_TOKENS: u32 = 12;

/// Tokens of one picture. Vision models spend between 256 (Gemma 3) and about 1,280 (Qwen2-VL at its usual
/// limit), whatever the size of the file; the larger is taken, because too small would overflow the window.
pub(crate) const IMAGE_TOKENS: u32 = 1280;

/// Counts tokens for one tokenizer; today there is only the estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counter;

impl Counter {
    /// Names the tokenizer whose counts these are; stored beside every count.
    #[expect(clippy::unused_self, reason = "a counter with a vocabulary answers with its digest")]
    pub(crate) const fn identity(self) -> &'static str {
        "estimate-v1"
    }

    /// How far the counts can be trusted.
    #[expect(clippy::unused_self, reason = "a counter with a vocabulary is exact")]
    pub(crate) const fn kind(self) -> CountKind {
        CountKind::Estimated
    }

    /// Tokens of a text; 0 for the empty one.
    #[expect(clippy::unused_self, reason = "a counter with a vocabulary reads it here")]
    pub(crate) fn count_text(self, text: &str) -> u32 {
        estimate::count(text)
    }

    /// Tokens of a JSON value as a template writes it.
    pub(crate) fn count_json(self, value: &Value) -> u32 {
        match value {
            Value::Null => 0,
            value => self.count_text(&value.to_string()),
        }
    }

    /// Tokens of one recorded message as it enters a context: thinking stays out.
    pub(crate) fn count_message(self, message: &Message) -> u32 {
        message.parts.iter().fold(MESSAGE_OVERHEAD_TOKENS, |sum, part| {
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
    pub(crate) fn count_tool_call(self, call: &ToolCall) -> u32 {
        (2 * MESSAGE_OVERHEAD_TOKENS)
            .saturating_add(self.count_call(&call.name, &call.args))
            .saturating_add(self.count_text(&call.result.llm_content))
    }

    /// Tokens that a record costs in a context as it is rendered; 0 for one that never enters.
    pub(crate) fn count_record(self, body: &RecordBody) -> u32 {
        let turn = |text: &str| MESSAGE_OVERHEAD_TOKENS.saturating_add(self.count_note(text));
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

    /// Tokens of one message as a model server takes it.
    pub(crate) fn count_context_message(self, message: &ContextMessage) -> u32 {
        let calls = message.tool_calls.iter().fold(0_u32, |sum, call| {
            sum.saturating_add(self.count_call(&call.function.name, &call.function.arguments))
        });
        let images = u32::try_from(message.images.len()).unwrap_or(u32::MAX);
        MESSAGE_OVERHEAD_TOKENS
            .saturating_add(self.count_text(&message.content))
            .saturating_add(calls)
            .saturating_add(images.saturating_mul(IMAGE_TOKENS))
    }

    /// Tokens of tool definitions.
    pub(crate) fn count_tools(self, tools: &[Value]) -> u32 {
        tools.iter().fold(0, |sum, tool| {
            sum.saturating_add(TOOL_OVERHEAD_TOKENS).saturating_add(self.count_json(tool))
        })
    }

    /// Tokens of thinking, which is recorded and never sent back.
    pub(crate) fn count_thinking(self, message: &Message) -> u32 {
        message.parts.iter().fold(0, |sum, part| match part {
            Part::Thinking { text } => sum.saturating_add(self.count_text(text)),
            _ => sum,
        })
    }

    fn count_call(self, name: &str, args: &Value) -> u32 {
        TOOL_OVERHEAD_TOKENS
            .saturating_add(self.count_text(name))
            .saturating_add(self.count_json(args))
    }

    /// A text between the delimiters of a note.
    fn count_note(self, text: &str) -> u32 {
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
        let plain = Counter.count_message(&message);
        assert_eq!(plain, MESSAGE_OVERHEAD_TOKENS + Counter.count_text("hello world"));
        message.parts.push(Part::Thinking { text: "a long thought".repeat(99) });
        assert_eq!(Counter.count_message(&message), plain);
        assert!(Counter.count_thinking(&message) > 99);
        message.parts.push(Part::Image { mime_type: "image/png".into(), data: "A".repeat(9000) });
        assert_eq!(Counter.count_message(&message), plain + IMAGE_TOKENS);
    }

    #[test]
    fn records_that_never_enter_cost_nothing() {
        assert_eq!(Counter.count_record(&RecordBody::Usage(Usage::default())), 0);
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
        assert!(Counter.count_record(&body) > Counter.count_text("fn main() {}"));
    }
}
