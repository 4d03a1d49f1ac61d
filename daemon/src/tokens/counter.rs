//! The counter: tokens of texts, messages, records, tool definitions and whole prompts.
//!
//! It counts with a model's vocabulary and template where they are known, and estimates the rest.
//! Must not know the model server, or where vocabularies and templates are stored.
//!
//! **Invariant**: a count depends only on the input and on the vocabulary, template and calibration of the counter.

use std::borrow::Cow;
use std::sync::Arc;

use ollm_protocol::content::{
    ContextMessage, CountKind, Message, Part, RecordBody, Role, ToolCall,
};
use serde_json::Value;

use super::calibration::Calibration;
use super::doubt::MessageShape;
use super::estimate::{self, IMAGE_TOKENS, MESSAGE_OVERHEAD_TOKENS, TOOL_OVERHEAD_TOKENS};
use super::exact::{ExactCounter, Fault};
use super::linear_fit::{InexactParts, PartKind};
use super::served::ServedTexts;
use super::special;

/// Tokens of the longest pair of delimiters around a summary or another inserted text, with their line breaks.
const DELIMITER_TOKENS: u32 = 12;
/// The margin of a text that is estimated beside texts that the server counted: a quarter and some tokens.
///
/// **Source**: 96 of 100 pieces of 600 characters are 0.83 to 1.21 of their estimate, and short ones are off by more.
const NEW_TEXT_DIVISOR: u64 = 4;
const NEW_TEXT_TOKENS: u64 = 8;
/// The identity of estimated counts.
const ESTIMATE_IDENTITY: &str = "estimate-v1";

/// Counts tokens as one model does; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter {
    exact: Option<Arc<ExactCounter>>,
    /// Corrects prompts that cannot be counted exactly.
    calibration: Option<Arc<Calibration>>,
    /// The texts that the server counted, without a vocabulary.
    served: Option<Arc<ServedTexts>>,
}

impl Counter {
    /// The counter for models without a vocabulary.
    pub(crate) const ESTIMATE: Self = Self { exact: None, calibration: None, served: None };

    /// Creates a counter with a model's vocabulary and, if known, its template.
    pub(crate) fn exact(exact: ExactCounter) -> Self {
        Self { exact: Some(Arc::new(exact)), ..Self::ESTIMATE }
    }

    /// Replaces the texts that the server counted, which count without a vocabulary.
    pub(crate) fn with_served(self, served: Option<Arc<ServedTexts>>) -> Self {
        Self { served, ..self }
    }

    /// Replaces the calibration.
    pub(crate) fn calibrated(self, calibration: Option<Arc<Calibration>>) -> Self {
        Self { calibration, ..self }
    }

    /// Returns whether texts are counted with the model's vocabulary.
    pub(crate) const fn has_vocabulary(&self) -> bool {
        self.exact.is_some()
    }

    /// Returns whether the vocabulary and the template are known.
    pub(crate) fn has_template(&self) -> bool {
        self.exact.as_ref().is_some_and(|exact| exact.has_template())
    }

    /// Returns the name of the tokenizer, which is stored beside every count.
    pub(crate) fn identity(&self) -> Arc<str> {
        self.exact.as_ref().map_or_else(|| ESTIMATE_IDENTITY.into(), |exact| exact.identity())
    }

    /// Returns how exact counts of messages without tool calls and images are. No message is counted by two engines while
    /// it is recorded, so none is exact while the server may use several.
    pub(crate) fn kind(&self) -> CountKind {
        match &self.exact {
            None => CountKind::Estimated,
            Some(exact) if exact.has_template() && exact.is_checked && exact.others.is_empty() => {
                CountKind::Exact
            }
            Some(_) => CountKind::Calibrated,
        }
    }

    /// Returns how exact the count of a conversation is.
    pub(crate) fn kind_of(&self, messages: &[ContextMessage]) -> CountKind {
        match &self.exact {
            Some(exact) if exact.is_exact_for(messages) => CountKind::Exact,
            None if self.calibration.is_none() => CountKind::Estimated,
            _ => CountKind::Calibrated,
        }
    }

    /// Returns how exact the count of a text is.
    pub(crate) fn kind_of_text(&self, text: &str) -> CountKind {
        match &self.exact {
            Some(exact) if exact.is_exact_for_text(text) => CountKind::Exact,
            Some(_) => CountKind::Calibrated,
            None if self.served_count(text).is_some() => CountKind::Exact,
            None => CountKind::Estimated,
        }
    }

    /// Returns the server's own count of a text.
    fn served_count(&self, text: &str) -> Option<u32> {
        self.served.as_ref()?.get(text)
    }

    /// Returns a text in which the engine of the model server finds no control token, such as the end of a message, so that
    /// the text cannot begin or end a turn. A text without any is unchanged.
    ///
    /// **Source**: Ollama renders a prompt as one text and tokenizes it with the parsing of special tokens, in all its engines. A
    /// vocabulary says which texts are control tokens. Without one, those of most models are broken up.
    pub(crate) fn defuse<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &self.exact {
            Some(exact) => exact.without_controls(text),
            None => special::without_usual_controls(text, |_| true),
        }
    }

    /// Counts the tokens of a text; 0 for the empty text.
    pub(crate) fn count_text(&self, text: &str) -> u32 {
        match &self.exact {
            Some(exact) => exact.count_text(text),
            None => self.served_count(text).unwrap_or_else(|| estimate::count(text)),
        }
    }

    /// Counts the tokens of a JSON value; 0 for null.
    fn count_json(&self, value: &Value) -> u32 {
        match value {
            Value::Null => 0,
            value => self.count_text(&value.to_string()),
        }
    }

    /// Counts the tokens of a recorded message as it enters a context, without thinking.
    pub(crate) fn count_message(&self, message: &Message) -> u32 {
        let is_text = message.parts.iter().all(|part| matches!(part, Part::Text { .. }));
        if is_text && let Some(exact) = &self.exact {
            return exact.count_turn(message.role, &message.sent_text());
        }
        let overhead = self.count_turn(message.role, "");
        let sent = message.sent_text();
        let is_partly_sent = sent != message.plain_text();
        let start =
            if is_partly_sent { overhead.saturating_add(self.count_text(&sent)) } else { overhead };
        message.parts.iter().fold(start, |sum, part| {
            sum.saturating_add(match part {
                Part::Text { .. } if is_partly_sent => 0,
                Part::Text { text } => self.count_text(text),
                Part::Thinking { .. } => 0,
                Part::ToolCall { name, args, .. } => self.count_call(name, args),
                Part::Image { .. } => IMAGE_TOKENS,
            })
        })
    }

    /// Counts the tokens of an executed tool call and its result.
    ///
    /// This is an upper bound: if an assistant message already contains the call, only the result is added.
    fn count_tool_call(&self, call: &ToolCall) -> u32 {
        self.count_turn(Role::Assistant, "")
            .saturating_add(self.count_turn(Role::Tool, ""))
            .saturating_add(self.count_call(&call.name, &call.args))
            .saturating_add(self.count_text(&call.result.llm_content))
    }

    /// Counts the tokens that a record adds to a rendered context; 0 for a record that never enters one.
    pub(crate) fn count_record(&self, body: &RecordBody) -> u32 {
        let turn = |text: &str| {
            let overhead = self.count_turn(Role::User, "").saturating_add(DELIMITER_TOKENS);
            overhead.saturating_add(self.count_text(text))
        };
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

    /// Counts the tokens of a user message that is not recorded.
    pub(crate) fn count_user_text(&self, text: &str) -> u32 {
        self.count_turn(Role::User, text)
    }

    /// Counts the tokens of the last of some messages of a conversation, which `next` follows.
    ///
    /// `has_system`: a system message precedes `messages`. The template's text before the first message is not
    /// included, because [`Self::count_head`] counts it.
    pub(crate) fn count_last(
        &self,
        messages: &[ContextMessage],
        next: Option<&ContextMessage>,
        has_system: bool,
    ) -> u32 {
        let Some(last) = messages.last() else { return 0 };
        let exact =
            self.exact.as_ref().and_then(|exact| exact.count_last(messages, next, has_system));
        exact.unwrap_or_else(|| {
            let tokens = self.count_context_message(last);
            let mut parts = InexactParts::default();
            self.add_message(last, tokens, &mut parts);
            self.corrected(&parts, tokens)
        })
    }

    /// Counts the tokens before the first message, including the system message, and the tokens of the tools.
    pub(crate) fn count_head(
        &self,
        system: Option<&ContextMessage>,
        tools: &[Value],
    ) -> (u32, u32) {
        let exact =
            self.exact.as_ref().and_then(|exact| exact.count_head(system, !tools.is_empty()));
        if let Some((head, Some(tool_tokens))) = exact {
            return (head, tool_tokens);
        }
        let system_tokens = || system.map_or(0, |message| self.count_context_message(message));
        let head = exact.map_or_else(system_tokens, |(head, _)| head);
        let tool_tokens = self.count_tools(tools);
        let estimated = tool_tokens.saturating_sub(self.served_tools(tools));
        let mut parts = InexactParts::default();
        self.add_head(system, head.saturating_add(estimated), &mut parts);
        (self.corrected(&parts, head), tool_tokens)
    }

    /// Returns the parts of a prompt that are not counted exactly.
    pub(crate) fn inexact_parts(
        &self,
        messages: &[ContextMessage],
        tools: &[Value],
    ) -> InexactParts {
        let mut parts = InexactParts::default();
        let (system, turns) = split_system(messages);
        let head =
            self.exact.as_ref().and_then(|exact| exact.count_head(system, !tools.is_empty()));
        if !matches!(head, Some((_, Some(_)))) {
            let tokens = system.map_or(0, |message| self.count_context_message(message));
            let tokens = tokens.saturating_add(self.count_tools(tools));
            let served = self.served_tools(tools);
            self.add_head(system, tokens.saturating_sub(served), &mut parts);
        }
        for (at, message) in turns.iter().enumerate() {
            let (until, next) = (&turns[..=at], turns.get(at + 1));
            let exact = self.exact.as_ref();
            if exact.and_then(|exact| exact.count_last(until, next, system.is_some())).is_none() {
                self.add_message(message, self.count_context_message(message), &mut parts);
            }
        }
        parts
    }

    /// Returns the maximum error of the count of a whole prompt.
    pub(crate) fn margin(&self, messages: &[ContextMessage], tools: &[Value], tokens: u64) -> u64 {
        if self.kind_of(messages) == CountKind::Exact {
            return 0;
        }
        let doubted = self.exact.as_ref().map_or(0, |exact| exact.doubted_tokens(messages));
        let parts = self.inexact_parts(messages, tools);
        if parts.is_empty() {
            return doubted;
        }
        let margin = match &self.calibration {
            Some(calibration) => calibration.margin(&parts, tokens, !tools.is_empty()),
            None => Calibration::default().margin(&parts, tokens, !tools.is_empty()),
        };
        let served = self.served.as_ref().map_or(0, |_| margin_beside_served(&parts));
        margin.saturating_add(doubted).saturating_add(served)
    }

    /// Returns the shapes of messages, which are known with a vocabulary only.
    pub(crate) fn shapes(&self, messages: &[ContextMessage]) -> Vec<MessageShape> {
        self.exact.as_ref().map(|exact| exact.shapes(messages)).unwrap_or_default()
    }

    /// Returns the prompt as the template writes it, if it covers the conversation.
    pub(crate) fn prompt(&self, messages: &[ContextMessage]) -> Option<String> {
        self.exact.as_ref()?.prompt(messages)
    }

    /// Finds the reason for which the count of a prompt, which the server renders as `prompt`, is wrong.
    pub(crate) fn fault(&self, messages: &[ContextMessage], prompt: Option<&str>) -> Fault {
        let fault = self.exact.as_ref().map(|exact| exact.fault(messages, prompt));
        fault.unwrap_or_else(|| Fault::Tokenized(Vec::new()))
    }

    fn add_head(&self, system: Option<&ContextMessage>, tokens: u32, parts: &mut InexactParts) {
        parts.add(PartKind::Head, 1);
        parts.add(PartKind::System, u32::from(system.is_some()));
        self.add_text(tokens, system, parts);
    }

    fn add_message(&self, message: &ContextMessage, tokens: u32, parts: &mut InexactParts) {
        let kind = match message.role {
            Role::System | Role::User => PartKind::User,
            Role::Assistant => PartKind::Assistant,
            Role::Tool => PartKind::Result,
        };
        parts.add(kind, 1);
        let n_calls = u32::try_from(message.tool_calls.len()).unwrap_or(u32::MAX);
        parts.add(PartKind::Call, n_calls);
        self.add_text(tokens, Some(message), parts);
    }

    /// Adds the tokens of a message and what belongs to it, as far as they are estimated.
    fn add_text(&self, tokens: u32, message: Option<&ContextMessage>, parts: &mut InexactParts) {
        if self.has_vocabulary() {
            return;
        }
        // The tokens around a text that the server counted are a part of the message, as with a vocabulary.
        let counted = message.map_or(0, |message| {
            let text = self.served_count(&message.content);
            let text = text.map_or(0, |text| text.saturating_add(MESSAGE_OVERHEAD_TOKENS));
            let arguments = message.tool_calls.iter().map(|call| &call.function.arguments);
            text.saturating_add(self.served_tools(arguments))
        });
        parts.add(PartKind::Text, tokens.saturating_sub(counted));
    }

    /// Returns the tokens of tools or of the arguments of calls that the server counted, with what is around each.
    fn served_tools<'v>(&self, tools: impl IntoIterator<Item = &'v Value>) -> u32 {
        let Some(served) = &self.served else { return 0 };
        tools.into_iter().fold(0_u32, |sum, tool| match served.get(&tool.to_string()) {
            Some(tokens) => sum.saturating_add(tokens).saturating_add(TOOL_OVERHEAD_TOKENS),
            None => sum,
        })
    }

    /// Applies the calibration to a count.
    fn corrected(&self, parts: &InexactParts, tokens: u32) -> u32 {
        let Some(calibration) = &self.calibration else { return tokens };
        let corrected = calibration.corrected(parts, tokens.into());
        u32::try_from(corrected).unwrap_or(u32::MAX)
    }

    /// Counts the tokens of a whole prompt.
    pub(crate) fn count_prompt(&self, messages: &[ContextMessage], tools: &[Value]) -> u64 {
        let (system, turns) = split_system(messages);
        let (head, tool_tokens) = self.count_head(system, tools);
        let counts = (1..=turns.len()).map(|end| {
            let (until, next) = (&turns[..end], turns.get(end));
            u64::from(self.count_last(until, next, system.is_some()))
        });
        u64::from(head) + u64::from(tool_tokens) + counts.sum::<u64>()
    }

    /// Counts the tokens of a message in any position.
    pub(crate) fn count_context_message(&self, message: &ContextMessage) -> u32 {
        let calls = message.tool_calls.iter().fold(0_u32, |sum, call| {
            sum.saturating_add(self.count_call(&call.function.name, &call.function.arguments))
        });
        let images = u32::try_from(message.images.len()).unwrap_or(u32::MAX);
        self.count_turn(message.role, "")
            .saturating_add(self.count_text(&message.content))
            .saturating_add(calls)
            .saturating_add(images.saturating_mul(IMAGE_TOKENS))
    }

    /// Estimates the tokens of tool definitions.
    fn count_tools(&self, tools: &[Value]) -> u32 {
        tools.iter().fold(0, |sum, tool| {
            sum.saturating_add(TOOL_OVERHEAD_TOKENS).saturating_add(self.count_json(tool))
        })
    }

    /// Counts the tokens of a message of text between its usual neighbors.
    fn count_turn(&self, role: Role, text: &str) -> u32 {
        match &self.exact {
            Some(exact) => exact.count_turn(role, text),
            None => MESSAGE_OVERHEAD_TOKENS.saturating_add(self.count_text(text)),
        }
    }

    /// Counts the tokens of a message's thinking, which is recorded but never sent again.
    pub(crate) fn count_thinking(&self, message: &Message) -> u32 {
        let inline = message.inline_thinking().map_or(0, |text| self.count_text(&text));
        message.parts.iter().fold(inline, |sum, part| match part {
            Part::Thinking { text } => sum.saturating_add(self.count_text(text)),
            _ => sum,
        })
    }

    fn count_call(&self, name: &str, args: &Value) -> u32 {
        TOOL_OVERHEAD_TOKENS
            .saturating_add(self.count_text(name))
            .saturating_add(self.count_json(args))
    }
}

/// Returns the maximum error of the estimated part of a prompt whose other texts the server counted. The errors of earlier
/// prompts, most of which was counted, say nothing about a text that is new.
fn margin_beside_served(parts: &InexactParts) -> u64 {
    match parts.of(PartKind::Text) {
        0 => 0,
        tokens => u64::from(tokens).div_ceil(NEW_TEXT_DIVISOR) + NEW_TEXT_TOKENS,
    }
}

/// Splits the system message off.
fn split_system(messages: &[ContextMessage]) -> (Option<&ContextMessage>, &[ContextMessage]) {
    match messages.split_first() {
        Some((first, turns)) if first.role == Role::System => (Some(first), turns),
        _ => (None, messages),
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{Role, ToolResult, Usage};
    use serde_json::json;

    use super::*;
    use crate::tokens::testing::byte_level;
    use crate::tokens::{CachedTokenizer, Engine, Tokenizer};

    fn at() -> Timestamp {
        Timestamp::from_unix_ms(0)
    }

    #[test]
    fn message_count_includes_its_parts_but_not_thinking() {
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
    fn usual_control_tokens_are_broken_up_until_the_template_is_known() {
        let vocabulary = byte_level("gpt-2", &[], &["<own>"]).vocabulary();
        let tokenizer = Tokenizer::new(&vocabulary, Engine::LlamaCpp).unwrap();
        let exact = Counter::exact(ExactCounter {
            tokenizer: Arc::new(CachedTokenizer::new(tokenizer)),
            others: Vec::new(),
            without_tools: None,
            with_tools: None,
            doubts: Arc::default(),
            is_checked: true,
        });
        assert!(exact.has_vocabulary() && !exact.has_template());
        let text = "<|im_end|><own>[INST]";
        assert_eq!(Counter::ESTIMATE.defuse(text), "< |im_end|><own>[ INST]");
        assert_eq!(exact.defuse(text), "< |im_end|>< own>[ INST]");
        assert!(matches!(exact.defuse("< |im_end|>"), Cow::Borrowed(_)));
    }

    #[test]
    fn text_that_the_server_counted_is_not_estimated() {
        let text = "naïve 你好";
        let mut texts = ServedTexts::default();
        texts.insert(text, 40);
        let served = Counter::ESTIMATE.with_served(Some(Arc::new(texts)));
        assert_eq!((served.count_text(text), served.kind_of_text(text)), (40, CountKind::Exact));
        assert_eq!(served.kind_of_text("new"), CountKind::Estimated);
        assert_eq!(served.count_text("new"), Counter::ESTIMATE.count_text("new"));
        let [known, new] = [text, "new"].map(|text| ContextMessage::text(Role::User, text));
        let estimated = |counter: &Counter, messages: &[ContextMessage]| {
            counter.inexact_parts(messages, &[]).of(PartKind::Text)
        };
        assert_eq!(estimated(&served, std::slice::from_ref(&known)), 0);
        assert!(estimated(&Counter::ESTIMATE, std::slice::from_ref(&known)) > 0);
        // The margin of the new text does not depend on how much was counted.
        let both = [known.clone(), new];
        let margin = |messages: &[ContextMessage]| served.margin(messages, &[], 50);
        assert!(estimated(&served, &both) > 0);
        assert!(margin(&both) > margin(&[known]) + NEW_TEXT_TOKENS);
    }

    #[test]
    fn record_that_never_enters_a_context_counts_nothing() {
        assert_eq!(Counter::ESTIMATE.count_record(&RecordBody::Usage(Usage::default())), 0);
        let call = ToolCall {
            id: "c".into(),
            name: "read".into(),
            args: json!({"path": "a.rs"}),
            result: ToolResult { llm_content: "fn main() {}".into(), ..ToolResult::default() },
            timestamp: at(),
            duration_ms: None,
            message_seq: None,
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        };
        let body = RecordBody::ToolCall(call);
        assert!(
            Counter::ESTIMATE.count_record(&body) > Counter::ESTIMATE.count_text("fn main() {}")
        );
    }
}
