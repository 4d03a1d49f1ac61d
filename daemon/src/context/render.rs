//! The fold of records into the message list that a model receives. It only extends the last message or
//! appends a message.
//!
//! Must not know budgets or strategies. **Invariants**: the conversation begins with a user turn; user and assistant
//! turns alternate; a tool message directly follows the assistant message whose call it answers, and every call of a
//! finished turn has one, in the order of the calls; a record that is not rendered has an [`OmitReason`]; one more record never changes the
//! messages before it, except that the last message grows at its end.
//!
//! The engine parses control tokens wherever they stand in a prompt, so no text has any: a record that had some is listed
//! (`take_defused`).
//!
//! Ids of calls are rewritten to one form, because models and clients record ids of many forms and any model may
//! continue a session. A rewritten id follows from the recorded id alone, so every build has the same.

use std::borrow::Cow;
use std::collections::HashMap;

use ollm_protocol::content::{
    ContextFunction, ContextMessage, ContextToolCall, Message, Part, RECALLED_BLOCK, RecordBody,
    Role, ToolCall,
};
use serde_json::Value;

use super::compact::defuse_all;
use super::omitted::{OmitReason, Omitted};
use super::path::PathItem;
use crate::tokens::Counter;

/// The result of a call that has no other, for example after a crash.
const INTERRUPTED: &str = "[interrupted]";
/// The texts in place of images for a model that reads none, so that it does not guess what they show.
const UNREAD_IMAGE: &str = "[an image, which this model cannot read]";
const UNREAD_IMAGES: &str = "[images, which this model cannot read]";
/// The first user turn of a conversation that an assistant message begins.
const BEGINNING: &str = "<conversation-start/>";
/// Characters of a call's id: templates of the Mistral family refuse conversations with other ids.
const ID_LENGTH: usize = 9;
/// Letters and digits of a rewritten id, without capitals, which no template treats apart.
const ID_DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A conversation as it stands after some records.
pub(super) struct Renderer<'c> {
    counter: &'c Counter,
    /// Whether the model reads images.
    reads_images: bool,
    /// Whether a system message stands before the conversation.
    has_system: bool,
    messages: Vec<ContextMessage>,
    /// Tokens of each message except the last, which may still grow.
    settled: Vec<u32>,
    settled_sum: u64,
    /// Bytes of the last message at its last count. It is counted again when they have doubled, so that counting stays
    /// linear.
    checked_bytes: usize,
    /// The place in the last message at which the text of the user's newest message begins, in bytes.
    newest_text: Option<usize>,
    /// Calls of the last assistant message that have no result yet.
    open: Vec<OpenCall>,
    /// The end of the last call of each id.
    ended: HashMap<String, CallEnd>,
    /// Notes that wait until the open calls have their results.
    deferred: Vec<(PathItem, String)>,
    /// Set if a control token was broken up since the last call of `take_defused`.
    has_defused: bool,
}

struct OpenCall {
    id: String,
    name: String,
    /// The result, if it came before that of an earlier call.
    result: Option<(Option<PathItem>, String)>,
}

/// The topic of a delta with messages that were recalled.
pub(crate) const RECALL_TOPIC: &str = "recall";

/// The event that ended a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallEnd {
    /// Another turn began before there was a result.
    Interrupted,
    /// The result came as a message of role `tool`.
    Message,
    /// The result came as a tool call record.
    Record,
    /// The result came in both forms.
    Both,
}

impl<'c> Renderer<'c> {
    pub(super) fn new(counter: &'c Counter, reads_images: bool, has_system: bool) -> Self {
        Self {
            counter,
            reads_images,
            has_system,
            messages: Vec::new(),
            settled: Vec::new(),
            settled_sum: 0,
            checked_bytes: 0,
            newest_text: None,
            open: Vec::new(),
            ended: HashMap::new(),
            deferred: Vec::new(),
            has_defused: false,
        }
    }

    /// Returns whether a control token was broken up since the last call.
    pub(super) fn take_defused(&mut self) -> bool {
        std::mem::take(&mut self.has_defused)
    }

    /// Returns a text in which the engine finds no control token, so that it ends no turn.
    fn defused(&mut self, text: &str) -> String {
        let defused = self.counter.defuse(text);
        self.has_defused |= matches!(defused, Cow::Owned(_));
        defused.into_owned()
    }

    /// Breaks up the control tokens in all texts of a JSON value.
    fn defused_value(&mut self, value: &Value) -> Value {
        if let Cow::Borrowed(_) = self.counter.defuse(&value.to_string()) {
            return value.clone();
        }
        match value {
            Value::String(text) => self.defused(text).into(),
            Value::Array(all) => all.iter().map(|one| self.defused_value(one)).collect(),
            Value::Object(all) => {
                let fields = all.iter();
                fields.map(|(name, one)| (self.defused(name), self.defused_value(one))).collect()
            }
            other => other.clone(),
        }
    }

    /// Renders one record at the end, or defers a note until the open calls have their results.
    ///
    /// **Errors**: the reason why the record is not shown.
    pub(super) fn record(&mut self, item: &PathItem, body: &RecordBody) -> Result<(), OmitReason> {
        match body {
            RecordBody::Message(message) => self.message(item, message)?,
            RecordBody::ToolCall(call) => self.tool_call(item, call)?,
            RecordBody::Delta(delta) if delta.topic == RECALL_TOPIC => {
                self.recalled(item, recalled_block(&delta.text))
            }
            RecordBody::Delta(delta) => {
                self.note(item, note("update", &[("topic", &delta.topic)], &delta.text))
            }
            RecordBody::BranchSummary(branch) => {
                self.note(item, note("branch-summary", &[], &branch.summary))
            }
            RecordBody::Compaction(compaction) if compaction.epoch.is_none() => {
                self.note(item, note("summary", &[], &compaction.summary))
            }
            RecordBody::Custom(custom) => match custom.context_text.as_deref() {
                Some(text) if !text.is_empty() => self.user(text, Vec::new()),
                _ => return Err(OmitReason::Empty),
            },
            _ => return Err(OmitReason::Superseded),
        }
        Ok(())
    }

    /// Renders a user turn at the end.
    pub(super) fn user(&mut self, text: &str, images: Vec<String>) {
        self.user_text(text, images);
    }

    /// Renders a user turn at the end, and returns the position of its text in its message, in bytes.
    fn user_text(&mut self, text: &str, images: Vec<String>) -> usize {
        self.interrupt();
        self.append(Role::User, text, images)
    }

    /// Whether the conversation certainly has more than `limit` tokens. Cheap enough to be called for each record.
    pub(super) fn is_over(&mut self, limit: u64) -> bool {
        if self.settled_sum > limit {
            return true;
        }
        let bytes = self.messages.last().map_or(0, |message| message.content.len());
        if bytes < 2 * self.checked_bytes + 4096 {
            return false;
        }
        self.checked_bytes = bytes;
        self.tokens() > limit
    }

    pub(super) const fn n_messages(&self) -> usize {
        self.messages.len()
    }

    /// Returns the tokens of the conversation so far.
    pub(super) fn tokens(&self) -> u64 {
        let counted = self.settled.len() == self.messages.len();
        self.settled_sum + if counted { 0 } else { u64::from(self.count_last(None)) }
    }

    /// Returns the messages and their tokens, and lists the deferred notes as omitted.
    pub(super) fn finish(mut self, omitted: &mut Omitted) -> (Vec<ContextMessage>, Vec<u32>) {
        self.settle(None);
        let waiting = self.open.iter().filter_map(|call| call.result.as_ref()?.0.as_ref());
        for item in self.deferred.iter().map(|(item, _)| item).chain(waiting) {
            omitted.add(item, u64::from(item.tokens), OmitReason::Deferred);
        }
        (self.messages, self.settled)
    }

    fn message(&mut self, item: &PathItem, message: &Message) -> Result<(), OmitReason> {
        let text = message.sent_text();
        match message.role {
            Role::System => self.note(item, note("system-note", &[], &text)),
            Role::User => {
                let (text, images) = self.with_images(message, text);
                if text.is_empty() && images.is_empty() {
                    return Err(OmitReason::Empty);
                }
                self.newest_text = Some(self.user_text(&text, images));
            }
            Role::Assistant => self.assistant(message, text)?,
            Role::Tool => self.tool_message(item, message, &text)?,
        }
        Ok(())
    }

    /// Returns the images of a message beside its text. For a model that reads none, a line of the text stands for them.
    fn with_images(&self, message: &Message, mut text: String) -> (String, Vec<String>) {
        let images = images(message);
        if self.reads_images || images.is_empty() {
            return (text, images);
        }
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(match images.len() {
            1 => UNREAD_IMAGE,
            _ => UNREAD_IMAGES,
        });
        (text, Vec::new())
    }

    fn assistant(&mut self, message: &Message, text: String) -> Result<(), OmitReason> {
        let calls: Vec<_> = message
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::ToolCall { id, name, args } => Some((id.as_str(), name.as_str(), args)),
                _ => None,
            })
            .collect();
        let (text, images) = self.with_images(message, text);
        if text.is_empty() && images.is_empty() && calls.is_empty() {
            return Err(OmitReason::Empty);
        }
        self.interrupt();
        self.append(Role::Assistant, &text, images);
        for (id, name, args) in calls {
            self.call(id, name, args);
        }
        Ok(())
    }

    fn tool_message(
        &mut self,
        item: &PathItem,
        message: &Message,
        text: &str,
    ) -> Result<(), OmitReason> {
        let (id, name) = (message.tool_call_id.as_deref(), message.tool_name.as_deref());
        let answers = |call: &OpenCall| match (id, name) {
            _ if call.result.is_some() => false,
            (Some(id), _) => call.id == id,
            (None, Some(name)) => call.name == name,
            (None, None) => true,
        };
        if let Some(at) = self.open.iter().position(answers) {
            self.answer(at, Some(item), text, CallEnd::Message);
            return Ok(());
        }
        let ended = id.and_then(|id| self.ended.get(id).copied());
        if let (Some(id), Some(CallEnd::Record)) = (id, ended) {
            self.ended.insert(id.to_owned(), CallEnd::Both);
            return Err(OmitReason::Duplicate);
        }
        self.late_result(item, id.unwrap_or_default(), name, text, CallEnd::Message);
        Ok(())
    }

    fn tool_call(&mut self, item: &PathItem, call: &ToolCall) -> Result<(), OmitReason> {
        let text = &call.result.llm_content;
        let is_open = |open: &OpenCall| open.id == call.id && open.result.is_none();
        if let Some(at) = self.open.iter().position(is_open) {
            self.answer(at, Some(item), text, CallEnd::Record);
            return Ok(());
        }
        match self.ended.get(&call.id) {
            Some(CallEnd::Message) => {
                self.ended.insert(call.id.clone(), CallEnd::Both);
                return Err(OmitReason::Duplicate);
            }
            Some(CallEnd::Interrupted) => {
                self.late_result(item, &call.id, Some(&call.name), text, CallEnd::Record);
            }
            // The call was recorded without a message that requests it; models use ids again.
            _ => {
                self.interrupt();
                self.append(Role::Assistant, "", Vec::new());
                self.call(&call.id, &call.name, &call.args);
                self.answer(0, Some(item), text, CallEnd::Record);
            }
        }
        Ok(())
    }

    /// Renders a result that can no longer stand directly after its call as a note.
    fn late_result(
        &mut self,
        item: &PathItem,
        id: &str,
        name: Option<&str>,
        text: &str,
        end: CallEnd,
    ) {
        if !id.is_empty() {
            self.ended.insert(id.to_owned(), end);
        }
        let id = if id.is_empty() { String::new() } else { portable_id(id) };
        let attributes = [("tool", name.unwrap_or_default()), ("id", &*id)];
        self.note(item, note("tool-result", &attributes, &defuse_all(text)));
    }

    fn note(&mut self, item: &PathItem, text: String) {
        if self.open.is_empty() {
            self.append(Role::User, &text, Vec::new());
        } else {
            let text = self.defused(&text);
            self.deferred.push((*item, text));
        }
    }

    /// Renders what was recalled for a message of the user before the text of the message, which a model then reads last,
    /// also if it was recalled after the message was recorded.
    fn recalled(&mut self, item: &PathItem, block: String) {
        let Some(at) = self.newest_text.filter(|_| !self.messages.is_empty()) else {
            return self.note(item, block);
        };
        let block = self.defused(&(block + "\n\n"));
        if let Some(last) = self.messages.last_mut() {
            last.content.insert_str(at, &block);
        }
        self.newest_text = Some(at + block.len());
    }

    fn call(&mut self, id: &str, name: &str, args: &Value) {
        let function =
            ContextFunction { name: self.defused(name), arguments: self.defused_value(args) };
        if let Some(last) = self.messages.last_mut() {
            last.tool_calls.push(ContextToolCall { id: portable_id(id), function });
        }
        self.ended.remove(id);
        self.open.push(OpenCall { id: id.to_owned(), name: name.to_owned(), result: None });
    }

    /// Ends a call, and renders the results that no earlier call delays: results enter in the order of their calls.
    fn answer(&mut self, at: usize, item: Option<&PathItem>, text: &str, end: CallEnd) {
        let text = self.defused(text);
        let call = &mut self.open[at];
        call.result = Some((item.copied(), text));
        self.ended.insert(call.id.clone(), end);
        while self.open.first().is_some_and(|first| first.result.is_some()) {
            let call = self.open.remove(0);
            let text = call.result.map(|(_, text)| text).unwrap_or_default();
            let mut message = ContextMessage::text(Role::Tool, text);
            // The record of the call is listed for its name.
            message.tool_name = Some(self.counter.defuse(&call.name).into_owned());
            message.tool_call_id = Some(portable_id(&call.id));
            self.push(message);
        }
        if self.open.is_empty() {
            for (_, text) in std::mem::take(&mut self.deferred) {
                self.append(Role::User, &text, Vec::new());
            }
        }
    }

    /// Ends the calls that have no result, because another turn begins.
    fn interrupt(&mut self) {
        while !self.open.is_empty() {
            self.answer(0, None, INTERRUPTED, CallEnd::Interrupted);
        }
    }

    /// Extends the last message if it has the same role, else begins a new message. Returns the position of the text in its
    /// message, in bytes.
    fn append(&mut self, role: Role, text: &str, images: Vec<String>) -> usize {
        let text = self.defused(text);
        if self.messages.is_empty() && role == Role::Assistant {
            self.append(Role::User, BEGINNING, Vec::new());
        }
        // A last message with calls is not extended: their results follow it before any other text.
        if self.messages.last().is_none_or(|last| last.role != role) {
            self.push(ContextMessage::text(role, ""));
        }
        let Some(last) = self.messages.last_mut() else { return 0 };
        if !last.content.is_empty() && !text.is_empty() {
            last.content.push_str("\n\n");
        }
        let at = last.content.len();
        last.content.push_str(&text);
        last.images.extend(images);
        at
    }

    fn push(&mut self, message: ContextMessage) {
        self.settle(Some(&message));
        (self.checked_bytes, self.newest_text) = (0, None);
        self.messages.push(message);
    }

    fn settle(&mut self, next: Option<&ContextMessage>) {
        if self.settled.len() < self.messages.len() {
            let tokens = self.count_last(next);
            self.settled.push(tokens);
            self.settled_sum += u64::from(tokens);
        }
    }

    fn count_last(&self, next: Option<&ContextMessage>) -> u32 {
        self.counter.count_last(&self.messages, next, self.has_system)
    }
}

/// Returns the line in place of records between turns that a head leaves out.
pub(super) fn left_out(n_records: usize) -> String {
    match n_records {
        1 => "[... 1 message not shown ...]".to_owned(),
        n => format!("[... {n} messages not shown ...]"),
    }
}

/// Returns a record as a quote: a mark for a question without an answer, its author unless that is the user, its text,
/// in which nothing can end the block of quotes.
pub(super) fn quote(body: &RecordBody, is_answered: bool) -> String {
    let [author, text] = quoted_text(body);
    let mark = if is_answered { "" } else { "[not answered] " };
    format!("- {mark}{author}{}", defuse_all(&text))
}

/// Returns the author and the text of a quoted record.
pub(super) fn quoted_text(body: &RecordBody) -> [String; 2] {
    match body {
        RecordBody::Message(message) => {
            let author = match message.role {
                Role::User => String::new(),
                role => format!("[{}] ", role.as_str()),
            };
            [author, message.sent_text()]
        }
        RecordBody::ToolCall(call) => {
            [format!("[{}] ", call.name), call.result.llm_content.clone()]
        }
        RecordBody::Custom(custom) => {
            [String::new(), custom.context_text.clone().unwrap_or_default()]
        }
        _ => [String::new(), String::new()],
    }
}

/// Returns a delimited block for a user turn: data, not instructions.
pub(super) fn note(tag: &str, attributes: &[(&str, &str)], text: &str) -> String {
    let mut opening = tag.to_owned();
    for (name, value) in attributes.iter().filter(|(_, value)| !value.is_empty()) {
        opening.push_str(&format!(" {name}={value:?}"));
    }
    format!("<{opening}>\n{text}\n</{tag}>")
}

/// Returns the block of recalled messages, as a user turn has it.
fn recalled_block(text: &str) -> String {
    note(RECALLED_BLOCK, &[], text)
}

/// Returns an id that every template accepts: a recorded id of that form, else nine letters and digits that follow
/// from it.
pub(super) fn portable_id(recorded: &str) -> String {
    let is_portable =
        recorded.len() == ID_LENGTH && recorded.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_portable {
        return recorded.to_owned();
    }
    let hash = blake3::hash(recorded.as_bytes());
    let digit = |byte: &u8| char::from(ID_DIGITS[usize::from(*byte) % ID_DIGITS.len()]);
    hash.as_bytes()[..ID_LENGTH].iter().map(digit).collect()
}

fn images(message: &Message) -> Vec<String> {
    let data = message.parts.iter().filter_map(|part| match part {
        Part::Image { data, .. } => Some(data.clone()),
        _ => None,
    });
    data.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_ids_become_distinct_portable_ids() {
        let recorded =
            ["", "call_1", "call_2", "toolu_01A09q90qw90lq917835lq9", "aB3dE6gH", "aB3dE6gHé"];
        let ids: Vec<String> = recorded.iter().map(|id| portable_id(id)).collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            assert!(!ids[..at].contains(id), "{id} twice");
            assert_eq!(portable_id(id), *id, "a portable id stays as it is");
        }
        assert_eq!(portable_id("aB3dE6gH9"), "aB3dE6gH9");
        assert_eq!(portable_id("call_1"), ids[1]);
    }
}
