//! The limits of the fields that clients and imported files set: one table, and the functions that apply it.
//!
//! A field with a limit is short text that results repeat: every list of sessions has their titles. Its limit keeps
//! results below a frame. The daemon refuses a longer field of a call with `tooLarge`, and shortens that of an imported
//! file or of a model's answer. Texts of messages, arguments and results of tools are contents and have no limit of
//! their own. Implements PROTOCOL.md, section 6.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::content::{
    ContextEntry, Goal, GoalChange, GoalMarker, GoalStep, Message, Meta, MetaPatch, Part,
    RecordBody, Session, SessionHeader,
};
use crate::frame::MAX_FRAME_BYTES;

const KIB: usize = 1024;

/// The largest record in bytes of JSON, more than a frame can hold: numbers such as `1e9` become longer when they are
/// stored. A record of an imported file that is larger is left out; a reader holds one record in memory.
pub const MAX_RECORD_BYTES: usize = 64 * 1024 * KIB;

/// The most bytes of JSON in a page of a list, far enough below a frame that one more item and the envelope fit too.
pub const MAX_PAGE_BYTES: usize = 6 * 1024 * KIB;

/// The largest record in bytes of JSON in a page of records. Beside it, the session and the envelope fit into a frame.
pub const MAX_INLINE_RECORD_BYTES: usize = 12 * 1024 * KIB;

/// The most bytes of JSON in one part of a record, or in one chunk of an export, as a JSON string.
pub const MAX_PART_BYTES: usize = 12 * 1024 * KIB;

/// The largest result of a call in bytes of JSON. Beside it, the longest `id` and the envelope fit into a frame.
pub const MAX_RESULT_BYTES: usize = MAX_FRAME_BYTES - 4 * KIB;

/// The longest `id` of a JSON-RPC request, in bytes of JSON. Replies repeat it, so it takes room from every result.
pub const MAX_ID_BYTES: usize = KIB;

/// The most model servers that a session or a project can name as those that may get its texts.
pub const MAX_ALLOWED_SERVERS: usize = 64;

/// The most bytes of JSON in the options that a session keeps: a schema of an answer has some of them.
pub const MAX_OPTIONS_BYTES: usize = 64 * KIB;

/// The longest name of a model server in such a list, in bytes.
const MAX_SERVER_NAME_BYTES: usize = 256;

/// The largest window that a session can request, in tokens: more than any model has.
pub const MAX_CONTEXT_SIZE: u32 = 16 * 1024 * 1024;

/// The most bytes of JSON in the `data` of an event or an error.
pub const MAX_DATA_BYTES: usize = 64 * KIB;

/// The most bytes of JSON in the variables of `env.sanitize`: more than a system passes to a program. The reply lists
/// the name and the rule of each removed one.
pub const MAX_VARIABLES_BYTES: usize = 1024 * KIB;

/// A text that [`shorten_value`] leaves as it is, in bytes: longer than every id, path segment and word of a set.
const MIN_SHORTENED_BYTES: usize = 512;

/// The end of a text that was shortened.
const ELLIPSIS: char = '…';

macro_rules! bounded_fields {
    ($($(#[$doc:meta])* $field:ident = $name:literal, $bytes:expr;)*) => {
        /// A field that has a limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum BoundedField {
            $($(#[$doc])* $field,)*
        }

        impl BoundedField {
            /// All fields, in the order of PROTOCOL.md.
            pub const ALL: &[Self] = &[$(Self::$field,)*];

            /// Returns the name, which errors and `daemon.hello` use.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$field => $name,)*
                }
            }

            /// Returns the largest size in bytes: of UTF-8 for a text, of JSON for an object.
            #[must_use]
            pub const fn max_bytes(self) -> usize {
                match self {
                    $(Self::$field => $bytes,)*
                }
            }
        }
    };
}

bounded_fields! {
    /// The title of a session.
    Title = "title", 4 * KIB;
    /// The description of a session.
    Description = "description", 4 * KIB;
    /// The system prompt of a session: more than any window takes.
    SystemPrompt = "systemPrompt", 1024 * KIB;
    /// The client data of a session, all names together.
    Metadata = "metadata", 256 * KIB;
    /// The path of a project; systems have a limit of 4 KiB.
    ProjectPath = "projectPath", 4 * KIB;
    /// A model.
    Model = "model", 512;
    /// The provider of a model.
    Provider = "provider", 512;
    /// A mode.
    Mode = "mode", 512;
    /// The cause of a change of the mode, or of a move of the leaf.
    Trigger = "trigger", 512;
    /// The source of an imported session.
    ImportedFrom = "importedFrom", 512;
    /// The name of a tool.
    ToolName = "toolName", 512;
    /// The id of a tool call. Some clients put a signature into it.
    ToolCallId = "toolCallId", 4 * KIB;
    /// The reason for the end of an answer.
    FinishReason = "finishReason", 512;
    /// The type of an image.
    MimeType = "mimeType", 512;
    /// The name of custom data.
    CustomName = "name", 512;
    /// A label of a record.
    Label = "label", 512;
    /// The key of a context entry.
    EntryKey = "entryKey", 256;
    /// The source of a context entry.
    EntrySource = "source", 512;
    /// The text of a context entry.
    EntryContent = "content", 1024 * KIB;
    /// An idempotency key.
    Key = "key", 256;
    /// The path of a file that a tool call wrote.
    WritePath = "writePath", 4 * KIB;
    /// A text of a goal: a description, the kind of a decision, the path or type of an artifact, a next step.
    GoalText = "goalText", 4 * KIB;
    /// The line for people of a snapshot.
    SnapshotSummary = "summary", 4 * KIB;
}

/// Returns the limits by name, as `daemon.hello` does.
#[must_use]
pub fn field_bytes() -> BTreeMap<String, u64> {
    let limit = |field: &BoundedField| (field.name().to_owned(), field.max_bytes() as u64);
    BoundedField::ALL.iter().map(limit).collect()
}

/// A field is larger than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} has {bytes} bytes; the limit is {}", field.name(), field.max_bytes())]
pub struct OverLimit {
    /// The field.
    pub field: BoundedField,
    /// Its size in bytes.
    pub bytes: usize,
}

impl BoundedField {
    /// Checks the size of this field.
    ///
    /// **Errors**: `OverLimit`.
    pub const fn check(self, bytes: usize) -> Result<(), OverLimit> {
        if bytes > self.max_bytes() { Err(OverLimit { field: self, bytes }) } else { Ok(()) }
    }

    /// Checks the size of a text that may be absent.
    ///
    /// **Errors**: `OverLimit`.
    pub fn check_text(self, text: Option<&str>) -> Result<(), OverLimit> {
        self.check(text.map_or(0, str::len))
    }

    /// Shortens a text to this field's limit; returns whether it was longer.
    pub fn shorten(self, text: &mut String) -> bool {
        shorten_text(text, self.max_bytes())
    }
}

/// Returns the longest beginning of a text with at most `max_bytes` that ends at a character boundary.
#[must_use]
pub fn beginning(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Shortens a text to at most `max_bytes`, at a character boundary and ending with `…`; returns whether it was longer.
///
/// A text is never shortened to more than `max_bytes`; below three bytes it becomes empty.
pub fn shorten_text(text: &mut String, max_bytes: usize) -> bool {
    if text.len() <= max_bytes {
        return false;
    }
    let end = max_bytes.saturating_sub(ELLIPSIS.len_utf8());
    text.truncate(beginning(text, end).len());
    if text.len() + ELLIPSIS.len_utf8() <= max_bytes {
        text.push(ELLIPSIS);
    }
    text.shrink_to_fit();
    true
}

/// Returns the size of client data in bytes of JSON.
#[must_use]
pub fn metadata_bytes(metadata: &Meta) -> usize {
    json_bytes(metadata)
}

/// Returns the size of a value in bytes of JSON; a value that has no JSON has 0.
#[must_use]
pub fn json_bytes(value: &impl serde::Serialize) -> usize {
    let mut counter = ByteCounter(0);
    // The writer never fails, and the types of this crate always have a JSON form. All writers but a `Vec` are `dyn`, so
    // that each type is compiled for two writers.
    match serde_json::to_writer(&mut counter as &mut dyn std::io::Write, value) {
        Ok(()) => counter.0,
        Err(_) => 0,
    }
}

/// Returns the longest beginning of a text, in bytes, whose JSON string has at most `max_bytes`. It ends at a character
/// boundary and has at least one character.
#[must_use]
pub fn part_of(text: &str, max_bytes: usize) -> usize {
    let mut bytes = "\"\"".len();
    for (at, char) in text.char_indices() {
        bytes += match char {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            _ => char.len_utf8(),
        };
        if bytes > max_bytes && at > 0 {
            return at;
        }
    }
    text.len()
}

/// Counts the bytes that are written to it.
struct ByteCounter(usize);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Drops names from client data until the rest is within the limit, in the order of the names; returns whether any
/// was dropped.
fn shorten_metadata(metadata: &mut Meta) -> bool {
    if metadata_bytes(metadata) <= BoundedField::Metadata.max_bytes() {
        return false;
    }
    let mut left = BoundedField::Metadata.max_bytes() - "{}".len();
    metadata.retain(|name, value: &mut Value| {
        let bytes = json_bytes(name) + json_bytes(value) + ":,".len();
        let fits = bytes <= left;
        left -= if fits { bytes } else { 0 };
        fits
    });
    true
}

/// Checks all bounded fields of a record.
///
/// **Errors**: `OverLimit` for the first field that is too large.
pub fn check_record(body: &mut RecordBody) -> Result<(), OverLimit> {
    checked(|each| each_field(body, each))
}

/// Checks all bounded fields of a header.
///
/// **Errors**: `OverLimit` for the first field that is too large.
pub fn check_header(header: &mut SessionHeader) -> Result<(), OverLimit> {
    checked(|each| header_fields(header, each))
}

/// Checks all bounded fields of a message.
///
/// **Errors**: `OverLimit` for the first field that is too large.
pub fn check_message(message: &mut Message) -> Result<(), OverLimit> {
    checked(|each| message_fields(message, each))
}

/// Shortens all bounded fields of a message, for an answer of a model; returns the shortened fields, each once.
#[must_use]
pub fn shorten_message(message: &mut Message) -> Vec<BoundedField> {
    shortened(|each| message_fields(message, each))
}

/// Checks all bounded fields of changed settings.
///
/// **Errors**: `OverLimit` for the first field that is too large.
pub fn check_patch(patch: &mut MetaPatch) -> Result<(), OverLimit> {
    checked(|each| patch_fields(patch, each))
}

fn checked(visit: impl FnOnce(&mut EachField<'_>)) -> Result<(), OverLimit> {
    let mut result = Ok(());
    visit(&mut |field, value| {
        if result.is_ok() {
            result = field.check(value.bytes());
        }
    });
    result
}

/// Shortens all bounded fields of a record to their limits; returns the shortened fields, each once.
#[must_use]
pub fn shorten_record(body: &mut RecordBody) -> Vec<BoundedField> {
    shortened(|each| each_field(body, each))
}

/// Shortens the fields of a header to their limits; returns the shortened fields, each once.
#[must_use]
pub fn shorten_header(header: &mut SessionHeader) -> Vec<BoundedField> {
    shorten_servers(&mut header.allowed_servers);
    shorten_options(&mut header.options);
    shortened(|each| header_fields(header, each))
}

/// Shortens the fields of a session to their limits, so that a list of sessions with larger fields, which an earlier
/// version accepted, still fits into a frame; notes the names of the shortened fields in the session.
pub fn shorten_session(session: &mut Session) {
    shorten_servers(&mut session.allowed_servers);
    shorten_options(&mut session.options);
    let fields = shortened(|each| session_fields(session, each));
    if !fields.is_empty() {
        session.shortened = fields.iter().map(|field| field.name().to_owned()).collect();
    }
}

/// Removes options that are larger than a client can set: a part of a schema has another meaning.
fn shorten_options(options: &mut Meta) {
    if json_bytes(options) > MAX_OPTIONS_BYTES {
        options.clear();
    }
}

/// Shortens a list of servers. A shorter list allows less, and never becomes one that allows all.
fn shorten_servers(servers: &mut Vec<String>) {
    servers.truncate(MAX_ALLOWED_SERVERS);
    for name in servers {
        let _is_shorter = shorten_text(name, MAX_SERVER_NAME_BYTES);
    }
}

/// Shortens the texts of a goal, all to the same length, until it fits into a page with others.
pub fn shorten_goal(goal: &mut Goal) {
    let mut max_bytes = BoundedField::GoalText.max_bytes();
    while json_bytes(goal) > MAX_PAGE_BYTES / 2 && max_bytes > 0 {
        goal.shortened = true;
        max_bytes /= 2;
        let Goal { description, checkpoints, decisions, artifacts, next_steps, .. } = goal;
        let checkpoints = checkpoints.iter_mut().map(|item| &mut item.description);
        let decisions = decisions
            .iter_mut()
            .flat_map(|item| item.kind.iter_mut().chain([&mut item.description]));
        let artifacts =
            artifacts.iter_mut().flat_map(|item| item.kind.iter_mut().chain([&mut item.path]));
        let texts = checkpoints.chain(decisions).chain(artifacts).chain(next_steps);
        for text in texts.chain([description]) {
            shorten_text(text, max_bytes);
        }
    }
}

/// Shortens the texts of context entries, all to the same length, until their list fits into a page.
pub fn shorten_entries(entries: &mut [ContextEntry]) {
    let mut max_bytes = BoundedField::EntryContent.max_bytes();
    while json_bytes(&entries) > MAX_PAGE_BYTES && max_bytes > 0 {
        max_bytes /= 2;
        for entry in &mut *entries {
            let is_shorter = shorten_text(&mut entry.content, max_bytes)
                | shorten_text(&mut entry.key, max_bytes)
                | shorten_text(&mut entry.source, max_bytes);
            entry.shortened |= is_shorter;
        }
    }
}

/// Shortens the texts and the lists of a value until it has at most `max_bytes` of JSON; returns whether it had more.
///
/// Texts become shorter first, all to the same length, then lists lose their last items. A text of up to
/// 512 bytes stays, so ids and words with a meaning do.
pub fn shorten_value(value: &mut Value, max_bytes: usize) -> bool {
    let (mut max_text, mut max_items) = (max_bytes, max_bytes);
    let mut is_shorter = false;
    while json_bytes(value) > max_bytes && max_items > 0 {
        is_shorter = true;
        if max_text > MIN_SHORTENED_BYTES {
            max_text = (max_text / 2).max(MIN_SHORTENED_BYTES);
        } else {
            max_items /= 2;
        }
        shorten_parts(value, max_text, max_items);
    }
    is_shorter
}

fn shorten_parts(value: &mut Value, max_text: usize, max_items: usize) {
    match value {
        Value::String(text) => {
            shorten_text(text, max_text);
        }
        Value::Array(items) => {
            items.truncate(max_items);
            items.iter_mut().for_each(|item| shorten_parts(item, max_text, max_items));
        }
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| shorten_parts(field, max_text, max_items));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn shortened(visit: impl FnOnce(&mut EachField<'_>)) -> Vec<BoundedField> {
    let mut fields = Vec::new();
    visit(&mut |field, value| {
        if value.shorten(field) && !fields.contains(&field) {
            fields.push(field);
        }
    });
    fields
}

/// The value of a bounded field.
enum FieldValue<'a> {
    Text(&'a mut String),
    Metadata(&'a mut Meta),
}

impl FieldValue<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Metadata(metadata) => metadata_bytes(metadata),
        }
    }

    fn shorten(self, field: BoundedField) -> bool {
        match self {
            Self::Text(text) => field.shorten(text),
            Self::Metadata(metadata) => shorten_metadata(metadata),
        }
    }
}

type EachField<'a> = dyn FnMut(BoundedField, FieldValue<'_>) + 'a;

fn text(each: &mut EachField<'_>, field: BoundedField, value: &mut String) {
    each(field, FieldValue::Text(value));
}

fn optional(each: &mut EachField<'_>, field: BoundedField, value: &mut Option<String>) {
    if let Some(value) = value {
        text(each, field, value);
    }
}

/// Calls `each` with every bounded field of a record.
fn each_field(body: &mut RecordBody, each: &mut EachField<'_>) {
    use BoundedField as F;
    match body {
        RecordBody::Session(header) => header_fields(header, each),
        RecordBody::Meta(patch) => patch_fields(patch, each),
        RecordBody::Message(message) => message_fields(message, each),
        RecordBody::ToolCall(call) => {
            text(each, F::ToolCallId, &mut call.id);
            text(each, F::ToolName, &mut call.name);
            for write in call.writes.iter_mut().flatten() {
                text(each, F::WritePath, &mut write.path);
                optional(each, F::WritePath, &mut write.renamed_from);
            }
        }
        RecordBody::Goal(change) => goal_fields(change, each),
        RecordBody::ContextEntry(entry) => {
            text(each, F::EntryKey, &mut entry.key);
            optional(each, F::EntryContent, &mut entry.content);
            optional(each, F::EntrySource, &mut entry.source);
        }
        RecordBody::ModeChange(change) => {
            optional(each, F::Mode, &mut change.from);
            text(each, F::Mode, &mut change.to);
            text(each, F::Trigger, &mut change.trigger);
        }
        RecordBody::Custom(custom) => text(each, F::CustomName, &mut custom.name),
        RecordBody::Label(label) => optional(each, F::Label, &mut label.name),
        RecordBody::Leaf(moved) => text(each, F::Trigger, &mut moved.cause),
        RecordBody::Snapshot(mark) => {
            text(each, F::Trigger, &mut mark.reason);
            optional(each, F::SnapshotSummary, &mut mark.summary);
        }
        RecordBody::Loop(mark) => {
            for tool in mark.pattern.iter_mut().flat_map(|pattern| &mut pattern.tools) {
                text(each, F::ToolName, tool);
            }
        }
        RecordBody::Compaction(_)
        | RecordBody::Epoch(_)
        | RecordBody::Delta(_)
        | RecordBody::BranchSummary(_)
        | RecordBody::Usage(_)
        | RecordBody::Pin(_)
        | RecordBody::PutBack(_)
        | RecordBody::Rest(_)
        | RecordBody::Close(_) => {}
    }
}

fn message_fields(message: &mut Message, each: &mut EachField<'_>) {
    use BoundedField as F;
    optional(each, F::ToolCallId, &mut message.tool_call_id);
    optional(each, F::ToolName, &mut message.tool_name);
    optional(each, F::Model, &mut message.model);
    optional(each, F::FinishReason, &mut message.finish_reason);
    for part in &mut message.parts {
        match part {
            Part::ToolCall { id, name, .. } => {
                text(each, F::ToolCallId, id);
                text(each, F::ToolName, name);
            }
            Part::Image { mime_type, .. } => text(each, F::MimeType, mime_type),
            Part::Text { .. } | Part::Thinking { .. } => {}
        }
    }
}

fn header_fields(header: &mut SessionHeader, each: &mut EachField<'_>) {
    use BoundedField as F;
    optional(each, F::ProjectPath, &mut header.project_path);
    optional(each, F::Model, &mut header.model);
    optional(each, F::Provider, &mut header.provider);
    optional(each, F::Title, &mut header.title);
    optional(each, F::SystemPrompt, &mut header.system_prompt);
    optional(each, F::Mode, &mut header.mode);
    optional(each, F::ImportedFrom, &mut header.imported_from);
    each(F::Metadata, FieldValue::Metadata(&mut header.metadata));
}

fn patch_fields(patch: &mut MetaPatch, each: &mut EachField<'_>) {
    use BoundedField as F;
    optional(each, F::Title, &mut patch.title);
    optional(each, F::Description, &mut patch.description);
    optional(each, F::Model, &mut patch.model);
    optional(each, F::Provider, &mut patch.provider);
    optional(each, F::SystemPrompt, &mut patch.system_prompt);
    optional(each, F::ProjectPath, &mut patch.project_path);
    each(F::Metadata, FieldValue::Metadata(&mut patch.metadata));
}

fn session_fields(session: &mut Session, each: &mut EachField<'_>) {
    use BoundedField as F;
    text(each, F::Title, &mut session.title);
    text(each, F::Description, &mut session.description);
    optional(each, F::ProjectPath, &mut session.project_path);
    optional(each, F::ProjectPath, &mut session.project_name);
    optional(each, F::Model, &mut session.model);
    optional(each, F::Provider, &mut session.provider);
    optional(each, F::Mode, &mut session.mode);
    optional(each, F::ImportedFrom, &mut session.imported_from);
    each(F::Metadata, FieldValue::Metadata(&mut session.metadata));
}

fn goal_fields(change: &mut GoalChange, each: &mut EachField<'_>) {
    let field = BoundedField::GoalText;
    for step in &mut change.steps {
        match step {
            GoalStep::Create { description, .. } | GoalStep::AddCheckpoint { description, .. } => {
                text(each, field, description);
            }
            GoalStep::Update { description, .. }
            | GoalStep::UpdateCheckpoint { description, .. } => optional(each, field, description),
            GoalStep::AddDecision { kind, description, .. } => {
                optional(each, field, kind);
                text(each, field, description);
            }
            GoalStep::AddArtifact { kind, path, .. } => {
                optional(each, field, kind);
                text(each, field, path);
            }
            GoalStep::SetNextSteps { next_steps, .. } => {
                next_steps.iter_mut().for_each(|step| text(each, field, step));
            }
            GoalStep::LockDecision { .. } => {}
            GoalStep::Mark { marker, .. } => marker_fields(marker, each),
        }
    }
}

fn marker_fields(marker: &mut GoalMarker, each: &mut EachField<'_>) {
    let field = BoundedField::GoalText;
    match marker {
        GoalMarker::Goal { description, .. }
        | GoalMarker::Checkpoint { description, .. }
        | GoalMarker::Decision { description, .. } => text(each, field, description),
        GoalMarker::Artifact { path, .. } => text(each, field, path),
        GoalMarker::Next { steps } => steps.iter_mut().for_each(|step| text(each, field, step)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::content::{Custom, Role};
    use crate::{SessionId, Timestamp};

    #[test]
    fn text_is_shortened_at_a_character_boundary_within_its_limit() {
        let check = |text: &str, max_bytes, expect: &str| {
            let mut text = text.to_owned();
            shorten_text(&mut text, max_bytes);
            assert_eq!(text, expect);
        };
        check("abcdef", 6, "abcdef");
        check("abcdefg", 6, "abc…");
        check("ééé", 5, "é…");
        check("abc", 2, "");
        check("", 0, "");
    }

    #[test]
    fn every_field_of_a_record_is_checked_and_shortened() {
        let long = "x".repeat(5 * KIB);
        let mut message = Message::text(Role::Assistant, long.clone(), Timestamp::from_unix_ms(0));
        message.model = Some(long.clone());
        message.parts.push(Part::ToolCall {
            id: "a".to_owned(),
            name: long.clone(),
            args: json!(long),
        });
        let mut body = RecordBody::Message(message);
        let over = check_record(&mut body).expect_err("two fields are too long");
        assert_eq!((over.field, over.bytes), (BoundedField::Model, 5 * KIB));
        assert_eq!(over.to_string(), "model has 5120 bytes; the limit is 512");
        assert_eq!(shorten_record(&mut body), [BoundedField::Model, BoundedField::ToolName]);
        assert_eq!(check_record(&mut body), Ok(()));
        let RecordBody::Message(message) = &body else { panic!("still a message") };
        assert_eq!(message.plain_text(), long, "contents have no limit");

        let mut custom = Custom { name: long, data: json!(null), context_text: None };
        custom.name.truncate(512);
        assert_eq!(check_record(&mut RecordBody::Custom(custom)), Ok(()));
    }

    #[test]
    fn value_loses_long_texts_before_items_and_keeps_ids() {
        let check = |value: Value, max_bytes: usize, expect: &dyn Fn(&Value) -> bool| {
            let mut short = value.clone();
            let is_shorter = shorten_value(&mut short, max_bytes);
            assert_eq!(is_shorter, json_bytes(&value) > max_bytes);
            assert!(json_bytes(&short) <= max_bytes, "{}", json_bytes(&short));
            assert!(expect(&short), "{short:.200}");
        };
        let id = "01890000-0000-7000-8000-000000000000";
        let small = json!({ "id": id, "list": [1, 2] });
        check(small.clone(), 1000, &|value| *value == small);
        let text = json!({ "id": id, "text": "\u{1}".repeat(100 * KIB), "list": [id, id] });
        check(text, 64 * KIB, &|value| value["id"] == id && value["list"] == json!([id, id]));
        let list = json!({ "id": id, "list": vec![json!({ "id": id }); 10_000] });
        check(list, 64 * KIB, &|value| {
            value["id"] == id && value["list"].as_array().is_some_and(|list| list.len() > 500)
        });
    }

    #[test]
    fn part_of_a_text_fits_as_a_json_string() {
        let text = "a\"\n\u{1}\u{7f}é€\\".repeat(20);
        for max_bytes in 0..json_bytes(&text) + 2 {
            let part = &text[..part_of(&text, max_bytes)];
            assert!(json_bytes(&part) <= max_bytes || part.chars().count() == 1, "{max_bytes}");
            let next = text[part.len()..].chars().next();
            let longer: String = part.chars().chain(next).collect();
            assert!(part.len() == text.len() || json_bytes(&longer) > max_bytes, "{max_bytes}");
        }
        assert_eq!(part_of("", 10), 0);
    }

    #[test]
    fn metadata_keeps_the_names_that_fit() {
        let id = SessionId::from_uuid(uuid::Uuid::nil());
        let mut header = SessionHeader::new(id, Timestamp::from_unix_ms(0));
        let value = json!("v".repeat(200 * KIB));
        for name in ["a", "b", "c"] {
            header.metadata.insert(name.to_owned(), value.clone());
        }
        header.metadata.insert("d".to_owned(), json!(1));
        assert_eq!(shorten_header(&mut header), [BoundedField::Metadata]);
        assert_eq!(header.metadata.keys().collect::<Vec<_>>(), ["a", "d"]);
        assert!(metadata_bytes(&header.metadata) <= BoundedField::Metadata.max_bytes());
        assert!(shorten_header(&mut header).is_empty());
    }
}
