//! Records to the message list that a model receives: a fold that only ever extends the last message or appends.
//!
//! Must not know budgets or strategies. **Invariants**: the conversation begins with a user turn; user and
//! assistant turns alternate; a tool message directly follows the assistant message whose call it answers, and
//! every call of a finished turn has one; what is not rendered is in `omitted`; one more record never changes what
//! was there before, except that the last message grows at its end.

use std::collections::HashMap;

use ollm_protocol::Seq;
use ollm_protocol::content::{
    ContextFunction, ContextMessage, ContextToolCall, Message, Part, RecordBody, Role, ToolCall,
};
use serde_json::Value;

use super::link::linked;
use super::omitted::{Omitted, Reason};
use super::units::PathItem;
use crate::tokens::Counter;

/// The result of a call that was given up, for example by a crash.
const INTERRUPTED: &str = "[interrupted]";
/// The user turn before an assistant turn that nobody asked for.
const BEGINNING: &str = "<conversation-start/>";

/// A conversation as it stands after some records.
pub(super) struct Renderer<'c> {
    counter: &'c Counter,
    /// A system message stands before the conversation.
    has_system: bool,
    /// The messages so far.
    messages: Vec<ContextMessage>,
    /// Tokens of each message but the last, which may still grow.
    settled: Vec<u32>,
    settled_sum: u64,
    /// Bytes of the last message when it was last counted, so that counting stays linear.
    checked_bytes: usize,
    /// Calls of the last assistant message that have no result yet.
    open: Vec<OpenCall>,
    /// By id: how the last call of that id ended.
    ended: HashMap<String, Ended>,
    /// Notes that wait until the open calls have their results.
    deferred: Vec<(PathItem, String)>,
}

struct OpenCall {
    id: String,
    name: String,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Without a result.
    Interrupted,
    /// By a message of role `tool`.
    ByMessage,
    /// By a tool call record.
    ByRecord,
    /// By both forms of the same result.
    Twice,
}

/// Whether a record is now in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// It is, or it waits for open calls.
    Yes,
    /// It is not.
    No(Reason),
}

impl<'c> Renderer<'c> {
    pub(super) fn new(counter: &'c Counter, has_system: bool) -> Self {
        Self {
            counter,
            has_system,
            messages: Vec::new(),
            settled: Vec::new(),
            settled_sum: 0,
            checked_bytes: 0,
            open: Vec::new(),
            ended: HashMap::new(),
            deferred: Vec::new(),
        }
    }

    /// Renders one record at the end.
    pub(super) fn record(&mut self, item: &PathItem, body: &RecordBody) -> Shown {
        match body {
            RecordBody::Message(message) => self.message(item, message),
            RecordBody::ToolCall(call) => self.tool_call(item, call),
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
                Some(text) if !text.is_empty() => {
                    self.user(text, Vec::new());
                    Shown::Yes
                }
                _ => Shown::No(Reason::Empty),
            },
            _ => Shown::No(Reason::Superseded),
        }
    }

    /// A user turn that no record stands for, such as a message not yet recorded.
    pub(super) fn user(&mut self, text: &str, images: Vec<String>) {
        self.interrupt();
        self.say(Role::User, text, images);
    }

    /// Whether the conversation has certainly more than `limit` tokens; cheap, so it may be asked at each record.
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

    /// Messages as they stand.
    pub(super) const fn n_messages(&self) -> usize {
        self.messages.len()
    }

    /// Tokens of the conversation as it stands.
    pub(super) fn tokens(&self) -> u64 {
        let counted = self.settled.len() == self.messages.len();
        self.settled_sum + if counted { 0 } else { u64::from(self.count_last(None)) }
    }

    /// The messages and their tokens; notes that still wait are listed as left out.
    pub(super) fn finish(mut self, omitted: &mut Omitted) -> (Vec<ContextMessage>, Vec<u32>) {
        self.settle(None);
        for (item, _) in &self.deferred {
            omitted.add(item, u64::from(item.tokens), Reason::Deferred);
        }
        (self.messages, self.settled)
    }

    fn message(&mut self, item: &PathItem, message: &Message) -> Shown {
        let text = message.plain_text();
        match message.role {
            Role::System => self.note(item, note("system-note", &[], &text)),
            Role::User => {
                let images = images(message);
                if text.is_empty() && images.is_empty() {
                    return Shown::No(Reason::Empty);
                }
                self.user(&text, images);
                Shown::Yes
            }
            Role::Assistant => self.assistant(message, &text),
            Role::Tool => {
                let (id, name) = (message.tool_call_id.as_deref(), message.tool_name.as_deref());
                self.tool_message(item, id, name, &text)
            }
        }
    }

    fn assistant(&mut self, message: &Message, text: &str) -> Shown {
        let calls: Vec<_> = message
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::ToolCall { id, name, args } => Some((id.as_str(), name.as_str(), args)),
                _ => None,
            })
            .collect();
        if text.is_empty() && calls.is_empty() {
            return Shown::No(Reason::Empty);
        }
        self.interrupt();
        self.say(Role::Assistant, text, images(message));
        for (id, name, args) in calls {
            self.call(id, name, args);
        }
        Shown::Yes
    }

    fn tool_message(
        &mut self,
        item: &PathItem,
        id: Option<&str>,
        name: Option<&str>,
        text: &str,
    ) -> Shown {
        let answers = |call: &OpenCall| match (id, name) {
            (Some(id), _) => call.id == id,
            (None, Some(name)) => call.name == name,
            (None, None) => true,
        };
        if let Some(at) = self.open.iter().position(answers) {
            self.answer(at, text, Ended::ByMessage);
            return Shown::Yes;
        }
        let ended = id.and_then(|id| self.ended.get(id).copied());
        match (id, ended) {
            (Some(id), Some(Ended::ByRecord)) => {
                self.ended.insert(id.to_owned(), Ended::Twice);
                Shown::No(Reason::Duplicate)
            }
            _ => self.late_result(item, id.unwrap_or_default(), name, text, Ended::ByMessage),
        }
    }

    fn tool_call(&mut self, item: &PathItem, call: &ToolCall) -> Shown {
        let text = &call.result.llm_content;
        if let Some(at) = self.open.iter().position(|open| open.id == call.id) {
            self.answer(at, text, Ended::ByRecord);
            return Shown::Yes;
        }
        match self.ended.get(&call.id) {
            Some(Ended::ByMessage) => {
                self.ended.insert(call.id.clone(), Ended::Twice);
                Shown::No(Reason::Duplicate)
            }
            Some(Ended::Interrupted) => {
                self.late_result(item, &call.id, Some(&call.name), text, Ended::ByRecord)
            }
            // Recorded on its own; ids may come again, so an equal one that ended does not matter.
            _ => {
                self.interrupt();
                self.say(Role::Assistant, "", Vec::new());
                self.call(&call.id, &call.name, &call.args);
                self.answer(0, text, Ended::ByRecord);
                Shown::Yes
            }
        }
    }

    /// A result whose call has passed: it can no longer stand directly after it.
    fn late_result(
        &mut self,
        item: &PathItem,
        id: &str,
        name: Option<&str>,
        text: &str,
        ended: Ended,
    ) -> Shown {
        if !id.is_empty() {
            self.ended.insert(id.to_owned(), ended);
        }
        let id = if id.is_empty() { String::new() } else { linked(id) };
        let attributes = [("tool", name.unwrap_or_default()), ("id", &*id)];
        self.note(item, note("tool-result", &attributes, text))
    }

    fn note(&mut self, item: &PathItem, text: String) -> Shown {
        if self.open.is_empty() {
            self.say(Role::User, &text, Vec::new());
        } else {
            self.deferred.push((*item, text));
        }
        Shown::Yes
    }

    fn call(&mut self, id: &str, name: &str, args: &Value) {
        if let Some(last) = self.messages.last_mut() {
            let function = ContextFunction { name: name.to_owned(), arguments: args.clone() };
            last.tool_calls.push(ContextToolCall { id: linked(id), function });
        }
        self.ended.remove(id);
        self.open.push(OpenCall { id: id.to_owned(), name: name.to_owned() });
    }

    fn answer(&mut self, at: usize, text: &str, ended: Ended) {
        let call = self.open.remove(at);
        self.ended.insert(call.id.clone(), ended);
        let mut message = blank(Role::Tool);
        text.clone_into(&mut message.content);
        message.tool_name = Some(call.name);
        message.tool_call_id = Some(linked(&call.id));
        self.push(message);
        if self.open.is_empty() {
            self.flush();
        }
    }

    /// Ends the calls that have no result, because another turn begins.
    fn interrupt(&mut self) {
        while !self.open.is_empty() {
            self.answer(0, INTERRUPTED, Ended::Interrupted);
        }
    }

    fn flush(&mut self) {
        for (_, text) in std::mem::take(&mut self.deferred) {
            self.say(Role::User, &text, Vec::new());
        }
    }

    /// Adds to the last message where it has the same role, else begins a new one.
    fn say(&mut self, role: Role, text: &str, images: Vec<String>) {
        if self.messages.is_empty() && role == Role::Assistant {
            self.say(Role::User, BEGINNING, Vec::new());
        }
        // An assistant message that made calls is followed by their results before anything else is said.
        if self.messages.last().is_none_or(|last| last.role != role) {
            self.push(blank(role));
        }
        if let Some(last) = self.messages.last_mut() {
            if !last.content.is_empty() && !text.is_empty() {
                last.content.push_str("\n\n");
            }
            last.content.push_str(text);
            last.images.extend(images);
        }
    }

    fn push(&mut self, message: ContextMessage) {
        self.settle(Some(&message));
        self.checked_bytes = 0;
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

/// The block in place of records that a head leaves out.
///
/// **Shape**: handles `[#12, 340 tokens]` of the user's messages among them, then `+3 more (session.get)`.
pub(super) fn left_out(handles: &[(Seq, u32)], n_more: u64) -> String {
    let mut lines = vec!["Earlier turns are not shown (session.get).".to_owned()];
    lines.extend(handles.iter().map(|(seq, tokens)| format!("[#{seq}, {tokens} tokens]")));
    if n_more > 0 {
        lines.push(format!("+{n_more} more (session.get)"));
    }
    note("left-out", &[], &lines.join("\n"))
}

/// A record as a quote: its number, who said it where that is not the user, and its text.
pub(super) fn quote(item: &PathItem, body: &RecordBody) -> String {
    let (who, text) = match body {
        RecordBody::Message(message) => match message.role {
            Role::User => (String::new(), message.plain_text()),
            Role::Assistant => (" assistant".to_owned(), message.plain_text()),
            Role::System => (" system".to_owned(), message.plain_text()),
            Role::Tool => (" tool".to_owned(), message.plain_text()),
        },
        RecordBody::ToolCall(call) => (format!(" {}", call.name), call.result.llm_content.clone()),
        RecordBody::Custom(custom) => {
            (String::new(), custom.context_text.clone().unwrap_or_default())
        }
        _ => (String::new(), String::new()),
    };
    format!("[#{}{who}] {text}", item.seq)
}

/// A delimited block in a user turn: data, not instructions.
pub(super) fn note(tag: &str, attributes: &[(&str, &str)], text: &str) -> String {
    let mut opening = tag.to_owned();
    for (name, value) in attributes.iter().filter(|(_, value)| !value.is_empty()) {
        opening.push_str(&format!(" {name}={value:?}"));
    }
    format!("<{opening}>\n{text}\n</{tag}>")
}

fn blank(role: Role) -> ContextMessage {
    ContextMessage {
        role,
        content: String::new(),
        tool_calls: Vec::new(),
        tool_name: None,
        tool_call_id: None,
        images: Vec::new(),
    }
}

/// The system message.
pub(super) fn system(text: String) -> ContextMessage {
    ContextMessage { content: text, ..blank(Role::System) }
}

fn images(message: &Message) -> Vec<String> {
    let data = message.parts.iter().filter_map(|part| match part {
        Part::Image { data, .. } => Some(data.clone()),
        _ => None,
    });
    data.collect()
}
