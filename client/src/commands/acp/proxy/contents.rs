//! The contents of the messages of ACP as texts of a record: the blocks of prompts and answers, and tool calls.
//!
//! A call arrives in parts: each update has what changed. It is kept as it will be recorded, until it has ended.
//!
//! **Invariants**: a text has at most [`MAX_TEXT_BYTES`], and the open calls of a session have at most [`MAX_OPEN_BYTES`]
//! together. More is cut as the protocol cuts texts: `…` stands for the rest.

use std::collections::{HashSet, VecDeque};

use ollm_protocol::limits::{BoundedField, beginning, json_bytes, shorten_text, shorten_value};
use serde_json::{Map, Value, json};

/// The longest text of a message or a tool result, in bytes.
const MAX_TEXT_BYTES: usize = 2 << 20;
/// The longest character, in bytes.
const MAX_CHAR_BYTES: usize = 4;
/// The most bytes of JSON in the arguments of a call. With a result of which JSON escapes every byte they fit into a frame.
const MAX_ARGS_BYTES: usize = 3 << 20;
/// The most bytes in the open calls of a session, besides their ids: a few calls of the largest size.
const MAX_OPEN_BYTES: usize = 8 << 20;
/// The calls of a session that have not ended.
const MAX_CALLS: usize = 256;
/// The files that a call names, at most.
const MAX_FILES: usize = 32;
/// The shortest value that says nothing, as JSON.
const EMPTY_TEXT: &str = "\"\"";
/// The longest title of a call, in bytes.
const MAX_TITLE_BYTES: usize = 4 << 10;

/// A tool call that ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndedCall {
    pub(super) id: String,
    /// The kind of the tool, such as `edit`.
    pub(super) name: String,
    pub(super) args: Value,
    pub(super) output: String,
    /// Set to true if it succeeded; `None` if that is unknown.
    pub(super) success: Option<bool>,
}

/// The calls of a session that have not ended, the oldest first.
#[derive(Default)]
pub(super) struct AcpCalls(VecDeque<AcpCall>);

impl AcpCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Merges an update of a call. Returns what ended: that call, and the oldest one if too many are open.
    pub(super) fn merge(&mut self, update: Map<String, Value>) -> Vec<EndedCall> {
        let Some(id) = update.get("toolCallId").and_then(Value::as_str) else { return Vec::new() };
        let mut id = id.to_owned();
        BoundedField::ToolCallId.shorten(&mut id);
        let mut ended = Vec::new();
        let at = match self.0.iter().position(|call| call.id == id) {
            Some(at) => at,
            None => {
                if self.0.len() == MAX_CALLS
                    && let Some(oldest) = self.0.pop_front()
                {
                    ended.extend(oldest.ended());
                }
                self.0.push_back(AcpCall { id, ..AcpCall::default() });
                self.0.len() - 1
            }
        };
        let all: usize = self.0.iter().map(|call| call.n_bytes).sum();
        let call = &mut self.0[at];
        let others = all - call.n_bytes;
        call.merge(update);
        call.shorten(MAX_OPEN_BYTES.saturating_sub(others));
        if call.success.is_some()
            && let Some(call) = self.0.remove(at)
        {
            ended.extend(call.ended());
        }
        ended
    }

    /// Ends all calls.
    pub(super) fn end(&mut self) -> Vec<EndedCall> {
        std::mem::take(&mut self.0).into_iter().flat_map(AcpCall::ended).collect()
    }
}

/// A tool call as it will be recorded.
#[derive(Default)]
struct AcpCall {
    id: String,
    kind: Option<String>,
    title: Option<String>,
    input: Option<Value>,
    output: String,
    /// Set if the output is what the tool returned, because the agent shows nothing of it.
    is_raw: bool,
    /// The files whose changes are shown.
    changed_files: Vec<String>,
    located_files: Vec<String>,
    /// Set when the call has ended.
    success: Option<bool>,
    /// The bytes that the call takes, besides its id and kind.
    n_bytes: usize,
}

impl AcpCall {
    /// Takes over what changed.
    fn merge(&mut self, mut update: Map<String, Value>) {
        let mut changed = |name: &str| update.remove(name).filter(|value| !value.is_null());
        if let Some(content) = changed("content") {
            let (text, files) = shown(&content);
            self.changed_files = files;
            if !text.is_empty() {
                (self.output, self.is_raw) = (text, false);
            }
        }
        if let Some(raw) = changed("rawOutput")
            && (self.is_raw || self.output.is_empty())
        {
            let text = match raw {
                Value::String(text) => text,
                other => other.to_string(),
            };
            (self.output, self.is_raw) = (text, true);
        }
        if let Some(locations) = changed("locations") {
            let locations = locations.as_array().into_iter().flatten();
            let paths = locations.filter_map(|location| location["path"].as_str());
            self.located_files = paths.take(MAX_FILES).map(str::to_owned).collect();
        }
        if let Some(Value::String(kind)) = changed("kind") {
            self.kind = Some(kind);
        }
        if let Some(Value::String(title)) = changed("title") {
            self.title = Some(title);
        }
        if let Some(input) = changed("rawInput") {
            self.input = Some(input);
        }
        match changed("status").as_ref().and_then(Value::as_str) {
            Some("completed") => self.success = Some(true),
            Some("failed") => self.success = Some(false),
            _ => {}
        }
    }

    /// Shortens the call to at most `max_bytes` besides its id and kind, the output before the input and that before the names.
    fn shorten(&mut self, max_bytes: usize) {
        let mut room = max_bytes;
        for files in [&mut self.changed_files, &mut self.located_files] {
            files.retain(|file| {
                let fits = file.len() <= room;
                room -= if fits { file.len() } else { 0 };
                fits
            });
        }
        if let Some(kind) = &mut self.kind {
            BoundedField::ToolName.shorten(kind);
        }
        if let Some(title) = &mut self.title {
            shorten_text(title, room.min(MAX_TITLE_BYTES));
            room -= title.len();
        }
        self.input = self.input.take().filter(|_| room >= EMPTY_TEXT.len());
        if let Some(input) = &mut self.input {
            room = room.saturating_sub(shorten_input(input, room.min(MAX_ARGS_BYTES)));
        }
        shorten_text(&mut self.output, room.min(MAX_TEXT_BYTES));
        self.n_bytes = max_bytes - (room - self.output.len());
    }

    /// Returns the call, once for each file that it names, so that each file is known as one that the session used.
    fn ended(self) -> Vec<EndedCall> {
        let mut files: Vec<String> =
            self.changed_files.into_iter().chain(self.located_files).collect();
        let mut seen = HashSet::new();
        files.retain(|file| seen.insert(file.clone()));
        files.truncate(MAX_FILES);
        let mut args = match self.input {
            Some(Value::Object(args)) => args,
            Some(other) => Map::from_iter([("input".to_owned(), other)]),
            None => Map::new(),
        };
        if let Some(title) = self.title {
            args.entry("title").or_insert(title.into());
        }
        let mut files = files.into_iter();
        if let Some(first) = files.next() {
            // The name under which the daemon looks for the file of a call.
            args.insert("path".to_owned(), first.into());
        }
        let name = self.kind.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "other".to_owned());
        // The daemon refuses a call without an id.
        let id = if self.id.is_empty() { "call".to_owned() } else { self.id };
        let success = self.success;
        let others: Vec<EndedCall> = files
            .enumerate()
            .map(|(n, path)| {
                let mut id = format!("{id}/{}", n + 2);
                BoundedField::ToolCallId.shorten(&mut id);
                let (name, args) = (name.clone(), json!({ "path": path }));
                EndedCall { id, name, args, output: String::new(), success }
            })
            .collect();
        let args = Value::Object(args);
        let first = EndedCall { id, name, args, output: self.output, success };
        std::iter::once(first).chain(others).collect()
    }
}

/// Shortens arguments to at most `max_bytes` of JSON, and returns their bytes.
fn shorten_input(input: &mut Value, max_bytes: usize) -> usize {
    shorten_value(input, max_bytes);
    if json_bytes(input) > max_bytes {
        // Names are not shortened, and a few bytes are no value. In a text of JSON, each byte takes at most two.
        let mut text = input.to_string();
        shorten_text(&mut text, max_bytes.saturating_sub(EMPTY_TEXT.len()) / 2);
        *input = Value::String(text);
    }
    json_bytes(input)
}

/// Appends a piece as far as there is room. A text that was cut is longer than its limit until [`ended_text`] marks it.
pub(super) fn append(text: &mut String, piece: &str) {
    let room = (MAX_TEXT_BYTES + MAX_CHAR_BYTES).saturating_sub(text.len());
    text.push_str(beginning(piece, room));
}

/// Returns a text of pieces within its limit.
pub(super) fn ended_text(mut text: String) -> String {
    shorten_text(&mut text, MAX_TEXT_BYTES);
    text
}

/// Returns the text of a prompt: texts, embedded files with their addresses, and the names of what is linked.
pub(super) fn text_of_blocks(blocks: &Value) -> String {
    let mut text = String::new();
    for block in blocks.as_array().into_iter().flatten() {
        let piece = text_of_block(block);
        if !text.is_empty() && !piece.is_empty() {
            append(&mut text, "\n");
        }
        append(&mut text, &piece);
    }
    ended_text(text)
}

/// Returns the text of a block.
pub(super) fn text_of_block(block: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match block["type"].as_str().unwrap_or_default() {
        "text" => text(&block["text"]),
        "resource_link" => text(&block["uri"]),
        "resource" => {
            let resource = &block["resource"];
            format!("{}\n{}", text(&resource["uri"]), text(&resource["text"])).trim_end().to_owned()
        }
        "image" => "(a picture)".to_owned(),
        "audio" => "(a recording)".to_owned(),
        _ => String::new(),
    }
}

/// Returns what an agent shows of a call: its text, and the files whose changes it shows.
fn shown(content: &Value) -> (String, Vec<String>) {
    let (mut text, mut files) = (String::new(), Vec::new());
    for item in content.as_array().into_iter().flatten() {
        if item["type"] == "diff" {
            let path = item["path"].as_str().filter(|_| files.len() < MAX_FILES);
            files.extend(path.map(str::to_owned));
            append_diff(&mut text, item);
        } else {
            append(&mut text, &text_of_block(&item["content"]));
        }
    }
    (ended_text(text), files)
}

fn append_diff(text: &mut String, diff: &Value) {
    append(text, diff["path"].as_str().unwrap_or_default());
    append(text, "\n");
    for (sign, part) in [("-", "oldText"), ("+", "newText")] {
        for line in diff[part].as_str().unwrap_or_default().lines() {
            for piece in [sign, line, "\n"] {
                append(text, piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(calls: &mut AcpCalls, update: Value) -> Vec<EndedCall> {
        let Value::Object(update) = update else { panic!("{update}") };
        calls.merge(update)
    }

    fn n_bytes(calls: &AcpCalls) -> usize {
        let of = |call: &AcpCall| {
            let files = call.changed_files.iter().chain(&call.located_files);
            let input = call.input.as_ref().map_or(0, json_bytes);
            files.map(String::len).sum::<usize>() + input + call.output.len()
        };
        calls.0.iter().map(of).sum()
    }

    #[test]
    fn open_calls_are_bounded_together_and_say_what_was_cut() {
        let mut calls = AcpCalls::default();
        let long = "é".repeat(3 << 20);
        for n in 0..20 {
            let input = json!({ "path": "/a", "text": long });
            let update = json!({ "toolCallId": n.to_string(), "rawInput": input, "rawOutput": long,
                "locations": [{ "path": format!("/{n}") }] });
            assert_eq!(merge(&mut calls, update), []);
            assert!(n_bytes(&calls) <= MAX_OPEN_BYTES, "{}", n_bytes(&calls));
        }
        let done = |n: usize| json!({ "toolCallId": n.to_string(), "status": "completed" });
        let first = merge(&mut calls, done(0)).remove(0);
        assert!(first.output.ends_with("é…") && first.output.len() <= MAX_TEXT_BYTES);
        let text = first.args["text"].as_str().unwrap();
        assert!(text.ends_with("é…") && text.len() <= MAX_ARGS_BYTES);
        assert_eq!((first.args["path"].as_str(), first.success), (Some("/0"), Some(true)));
        // There is room again.
        let update = json!({ "toolCallId": "x", "rawOutput": "short", "status": "failed" });
        assert_eq!(merge(&mut calls, update)[0].output, "short");
        assert_eq!(calls.end().len(), 19);
        assert!(calls.is_empty());
    }

    #[test]
    fn arguments_of_many_names_become_a_text() {
        let names = (0..100_000).map(|n| (format!("name {n}"), json!(n)));
        let mut input = Value::Object(names.collect());
        assert!(shorten_input(&mut input, 10_000) <= 10_000);
        let text = input.as_str().unwrap();
        assert!(text.starts_with("{\"name 0\":0,") && text.ends_with('…'), "{text:.100}");
        assert_eq!(shorten_input(&mut json!({ "a": 1 }), 0), 2);
        assert_eq!(shorten_input(&mut json!({ "a": 1 }), 7), 7);
    }

    #[test]
    fn call_that_never_ends_gives_way_to_a_new_one() {
        let mut calls = AcpCalls::default();
        for n in 0..MAX_CALLS {
            assert_eq!(merge(&mut calls, json!({ "toolCallId": n.to_string() })), []);
        }
        let ended = merge(&mut calls, json!({ "toolCallId": "new" }));
        assert_eq!((ended[0].id.as_str(), ended[0].success), ("0", None));
        assert_eq!(calls.0.len(), MAX_CALLS);
    }

    #[test]
    fn text_of_pieces_is_marked_where_it_was_cut() {
        let mut text = String::new();
        append(&mut text, &"é".repeat(MAX_TEXT_BYTES / 2));
        assert_eq!(ended_text(text.clone()), text);
        append(&mut text, "é");
        append(&mut text, &"x".repeat(100));
        let text = ended_text(text);
        assert!(text.ends_with("é…") && text.len() <= MAX_TEXT_BYTES, "{}", text.len());
    }
}
