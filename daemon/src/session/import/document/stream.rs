//! A document as it is read: the elements of its lists go to a spool one by one, its other fields stay in memory.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{ModeChange, RecordBody};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::items::{DocumentItem, message, mode_change, tool_call};
use crate::nesting::LevelCounter;
use crate::session::import::fields::Fields;
use crate::session::import::imported::{ImportError, Losses};
use crate::session::import::spool::{ImportedRecord, RecordSpool};

/// The content of a document.
pub(super) struct DocumentContent {
    /// The fields of the document except its lists and its metadata.
    root: Map<String, Value>,
    /// The fields of the metadata except the list of modes.
    metadata: Map<String, Value>,
    pub(super) messages: ItemList,
    pub(super) calls: ItemList,
    pub(super) modes: ItemList,
    /// The bodies of all items.
    pub(super) elements: RecordSpool,
    has_messages: bool,
    /// Whether a field was found that makes the file a document, even if it is not valid JSON.
    is_document: bool,
}

/// The items of one list.
#[derive(Default)]
pub(super) struct ItemList {
    pub(super) notes: Vec<ItemNote>,
    /// The number of elements, with those that could not be carried over.
    pub(super) n_read: u64,
    pub(super) losses: Losses,
}

/// The part of an item that stays in memory.
pub(super) struct ItemNote {
    /// The index of the body in the spool.
    index: u32,
    pub(super) after_messages: Option<u64>,
    pub(super) active: bool,
    pub(super) timestamp: Option<Timestamp>,
}

impl DocumentContent {
    /// Takes the fields of the document.
    pub(super) fn fields(&mut self) -> Fields {
        Fields::of(Value::Object(std::mem::take(&mut self.root))).unwrap_or_default()
    }

    /// Takes the fields of the metadata.
    pub(super) fn metadata(&mut self) -> Fields {
        Fields::of(Value::Object(std::mem::take(&mut self.metadata))).unwrap_or_default()
    }

    /// Gives each message without a time that of the previous one, and the first one `before`.
    pub(super) fn complete_message_times(&mut self, before: Option<Timestamp>) {
        let mut previous = before.unwrap_or(Timestamp::from_unix_ms(0));
        for note in &mut self.messages.notes {
            previous = *note.timestamp.get_or_insert(previous);
        }
    }

    /// Reads the first change of the mode.
    pub(super) fn first_mode_change(&mut self) -> Option<ModeChange> {
        let index = self.modes.notes.first()?.index as usize;
        match self.elements.get(index)?.body {
            RecordBody::ModeChange(change) => Some(change),
            _ => None,
        }
    }

    /// Takes the notes of the messages, the tool calls and the modes.
    pub(super) fn take_notes(&mut self) -> [Vec<ItemNote>; 3] {
        [&mut self.messages, &mut self.calls, &mut self.modes]
            .map(|list| std::mem::take(&mut list.notes))
    }

    /// Reads the body of an item; returns `None` if the spool failed.
    pub(super) fn body(&mut self, note: &ItemNote) -> Option<RecordBody> {
        Some(self.elements.get(note.index as usize)?.body)
    }

    fn list(&mut self, kind: ListKind) -> &mut ItemList {
        match kind {
            ListKind::Messages => &mut self.messages,
            ListKind::ToolCalls => &mut self.calls,
            ListKind::Modes => &mut self.modes,
        }
    }

    /// Adds one element to a list.
    fn add(&mut self, kind: ListKind, value: Value) {
        let list = self.list(kind);
        list.n_read += 1;
        let item = match kind {
            ListKind::Messages => message(value, &mut list.losses),
            ListKind::ToolCalls => tool_call(value, &mut list.losses),
            ListKind::Modes => mode_change(value, &mut list.losses),
        };
        let Some(DocumentItem { after_messages, active, timestamp, body }) = item else { return };
        let at = timestamp.unwrap_or(Timestamp::from_unix_ms(0));
        let index = self.elements.push(ImportedRecord { parent: None, at, body, key: None });
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.list(kind).notes.push(ItemNote { index, after_messages, active, timestamp });
    }
}

/// Reads a document; returns `None` if the file is not a document.
///
/// **Errors**: as [`super::parse`].
pub(super) fn read(
    source: impl BufRead,
    max_value_bytes: usize,
    elements: RecordSpool,
) -> Result<Option<DocumentContent>, ImportError> {
    let mut content = DocumentContent {
        root: Map::new(),
        metadata: Map::new(),
        messages: ItemList::default(),
        calls: ItemList::default(),
        modes: ItemList::default(),
        elements,
        has_messages: false,
        is_document: false,
    };
    let allowance = Rc::new(Allowance::new(max_value_bytes));
    let limited = LimitedReader { source, allowance: Rc::clone(&allowance) };
    let mut input = serde_json::Deserializer::from_reader(limited);
    let object = ObjectReader { content: &mut content, allowance: &allowance, is_metadata: false };
    let parsed = object.deserialize(&mut input).and_then(|()| {
        allowance.lift();
        input.end()
    });
    if let Some(error) = content.elements.error() {
        return Err(ImportError::File(error));
    }
    match parsed {
        Ok(()) => Ok(content.has_messages.then_some(content)),
        Err(_) if allowance.is_used_up() => {
            Err(ImportError::TooLarge { place: allowance.place(), limit: max_value_bytes })
        }
        Err(cause) if cause.is_io() => Err(ImportError::File(cause.into())),
        Err(_) if allowance.is_too_deep() => Err(ImportError::TooDeep { place: allowance.place() }),
        Err(cause) if content.is_document => {
            Err(ImportError::Malformed { line: cause.line() as u64, cause })
        }
        Err(_) => Ok(None),
    }
}

/// A list of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListKind {
    Messages,
    ToolCalls,
    Modes,
}

impl ListKind {
    /// Returns the list that a field holds.
    fn of(name: &str, is_metadata: bool) -> Option<Self> {
        match name {
            "messages" if !is_metadata => Some(Self::Messages),
            "toolCalls" if !is_metadata => Some(Self::ToolCalls),
            "modeHistory" if is_metadata => Some(Self::Modes),
            _ => None,
        }
    }

    /// Returns the name of one element.
    const fn element(self) -> &'static str {
        match self {
            Self::Messages => "message",
            Self::ToolCalls => "tool call",
            Self::Modes => "mode change",
        }
    }
}

/// The fields of the document or of its metadata that stay in memory. All others are only reported.
fn is_kept(name: &str, is_metadata: bool) -> bool {
    let (root, metadata) = (
        ["sessionId", "startTime", "lastActivity", "model", "provider"].as_slice(),
        [
            "title",
            "description",
            "projectPath",
            "systemPrompt",
            "allowedServers",
            "options",
            "contextWindow",
            "keepAliveSeconds",
            "client",
            "compressionCount",
            "tokenCount",
            "userMessageCount",
            "lastMessageAt",
        ]
        .as_slice(),
    );
    if is_metadata { metadata.contains(&name) } else { root.contains(&name) }
}

/// A reader of the document or of its metadata.
struct ObjectReader<'a> {
    content: &'a mut DocumentContent,
    allowance: &'a Allowance,
    is_metadata: bool,
}

impl<'de> DeserializeSeed<'de> for ObjectReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectReader<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { content, allowance, is_metadata } = self;
        loop {
            allowance.renew("the name of a field", 0);
            let Some(name) = fields.next_key::<String>()? else { return Ok(()) };
            if !is_metadata && matches!(name.as_str(), "sessionId" | "messages") {
                content.is_document = true;
            }
            let streamed = ListKind::of(&name, is_metadata).map(StreamedField::List);
            let is_metadata_field = name == "metadata" && !is_metadata;
            let streamed =
                streamed.or_else(|| is_metadata_field.then_some(StreamedField::Metadata));
            let remaining = if let Some(field) = streamed {
                fields.next_value_seed(FieldReader { content, allowance, field })?
            } else if is_kept(&name, is_metadata) {
                allowance.renew("a field", 0);
                Some(fields.next_value::<Value>()?)
            } else {
                allowance.lift();
                let is_null = fields.next_value::<Option<IgnoredAny>>()?.is_none();
                (!is_null).then_some(Value::Bool(true))
            };
            let kept = if is_metadata { &mut content.metadata } else { &mut content.root };
            // As in any JSON object, the last of equal names holds.
            kept.shift_remove(&name);
            if let Some(value) = remaining {
                kept.insert(name, value);
            }
        }
    }
}

/// A field that is streamed.
#[derive(Clone, Copy)]
enum StreamedField {
    List(ListKind),
    Metadata,
}

/// A reader of a streamed field. Its value is `None`, or a value for the report if the field has another type.
struct FieldReader<'a> {
    content: &'a mut DocumentContent,
    allowance: &'a Allowance,
    field: StreamedField,
}

/// The value of a field whose type is not the expected one.
fn other_type<E>() -> Result<Option<Value>, E> {
    Ok(Some(Value::Bool(true)))
}

impl<'de> DeserializeSeed<'de> for FieldReader<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldReader<'_> {
    type Value = Option<Value>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let Self { content, allowance, field } = self;
        let StreamedField::List(kind) = field else {
            allowance.lift();
            while elements.next_element::<IgnoredAny>()?.is_some() {}
            return other_type();
        };
        content.has_messages |= kind == ListKind::Messages;
        *content.list(kind) = ItemList::default();
        for number in 1.. {
            allowance.renew(kind.element(), number);
            let Some(value) = elements.next_element::<Value>()? else { break };
            content.add(kind, value);
            if content.elements.has_failed() {
                return Err(serde::de::Error::custom("the temporary file failed"));
            }
        }
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let Self { content, allowance, field } = self;
        if let StreamedField::Metadata = field {
            content.metadata.clear();
            ObjectReader { content, allowance, is_metadata: true }.visit_map(fields)?;
            return Ok(None);
        }
        allowance.lift();
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        other_type()
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        other_type()
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        other_type()
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        other_type()
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        other_type()
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        other_type()
    }
}

/// The bytes that the value being read may still take, so that no value takes the memory of a whole file.
struct Allowance {
    max_bytes: usize,
    left: Cell<usize>,
    /// The kind and the number of the value, for the error.
    value: Cell<(&'static str, u64)>,
    is_used_up: Cell<bool>,
    /// The levels around the next byte; the values that are parsed in parts have no limit.
    levels: Cell<LevelCounter>,
    is_limited: Cell<bool>,
}

impl Allowance {
    /// Returns an allowance for values of at most `max_bytes`. It has no limit until the first value begins.
    fn new(max_bytes: usize) -> Self {
        let left = Cell::new(usize::MAX);
        Self {
            left,
            max_bytes,
            value: Cell::default(),
            is_used_up: Cell::default(),
            levels: Cell::default(),
            is_limited: Cell::default(),
        }
    }

    /// Begins a value.
    fn renew(&self, kind: &'static str, number: u64) {
        self.left.set(self.max_bytes);
        self.value.set((kind, number));
        self.is_limited.set(true);
        self.begin_value();
    }

    /// Begins a value that takes no memory.
    fn lift(&self) {
        self.left.set(usize::MAX);
        self.is_limited.set(false);
    }

    fn begin_value(&self) {
        let mut levels = self.levels.get();
        levels.begin_value();
        self.levels.set(levels);
    }

    /// Returns whether the value that is being read is nested deeper than the parser takes.
    fn is_too_deep(&self) -> bool {
        self.is_limited.get() && self.levels.get().is_unparsable()
    }

    fn is_used_up(&self) -> bool {
        self.is_used_up.get()
    }

    /// Returns the value that is being read.
    fn place(&self) -> String {
        match self.value.get() {
            (kind, 0) => kind.to_owned(),
            (kind, number) => format!("{kind} {number}"),
        }
    }
}

/// A reader that fails when the allowance is used up.
struct LimitedReader<R> {
    source: R,
    allowance: Rc<Allowance>,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.allowance.left.get();
        if left == 0 {
            self.allowance.is_used_up.set(true);
            return Err(io::Error::other("the value is too large"));
        }
        let wanted = buffer.len().min(left);
        let n_read = self.source.read(&mut buffer[..wanted])?;
        self.allowance.left.set(left - n_read);
        let mut levels = self.allowance.levels.get();
        levels.read(&buffer[..n_read]);
        self.allowance.levels.set(levels);
        Ok(n_read)
    }
}
