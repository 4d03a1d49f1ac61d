//! Search documents: the text of a record that is indexed, verified and shown, and its terms in the index.
//!
//! Pure. Indexing, search and removal all use the text that is made here, so they agree.

use std::collections::HashSet;
use std::hash::BuildHasher as _;
use std::ops::ControlFlow;

use hashlink::DefaultHashBuilder;
use ollm_protocol::content::{Part, Record, RecordKind, Role};
use ollm_protocol::{Seq, Timestamp};
use serde_json::Value;

use super::stems::TextLanguage;
use super::words;
use crate::session::index::IndexEntry;

/// The length of the beginning of a content that is searched, in bytes. Larger contents are mostly data, which their
/// beginning identifies.
const MAX_CONTENT_BYTES: usize = 256 * 1024;
/// Maximum size of the records that are in memory at once, in bytes.
pub(super) const READ_BYTES: u64 = 4 << 20;
/// The assumed size of contents that are stored out of line. They are larger than 64 KiB; their size is unknown.
const OUT_OF_LINE_BYTES: u64 = 1 << 20;

/// The names of the tools by which a model recalls earlier messages. Their calls and results repeat what other records
/// say, so they are not searched.
pub(crate) const RECALL_SEARCH: &str = "recall_search";
pub(crate) const RECALL_READ: &str = "recall_read";

/// The searchable form of one record.
#[derive(Debug, PartialEq)]
pub(super) struct SearchDocument {
    pub seq: Seq,
    /// The role of the author.
    pub role: Role,
    pub at: Timestamp,
    /// The contents, separated by line breaks.
    pub text: String,
}

/// Returns whether the record of an entry can have text, so that other records are not read.
pub(super) fn has_text(entry: &IndexEntry) -> bool {
    match entry.kind() {
        Some(RecordKind::Message | RecordKind::ToolCall) => true,
        Some(RecordKind::Custom) => entry.has(IndexEntry::IN_CONTEXT),
        _ => false,
    }
}

/// Returns about how much memory the record of an entry takes.
pub(super) fn read_bytes(entry: &IndexEntry) -> u64 {
    u64::from(entry.len) + if entry.has(IndexEntry::HAS_BLOBS) { OUT_OF_LINE_BYTES } else { 0 }
}

impl SearchDocument {
    /// Returns the document of a record; `None` if the record has no searchable text.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let mut text = String::new();
        let (role, at) = match record.kind {
            RecordKind::Message => {
                let message = record.message.as_ref()?;
                for part in &message.parts {
                    add_part(&mut text, part);
                }
                (message.role, message.timestamp)
            }
            RecordKind::ToolCall => {
                let call = record.tool_call.as_ref().filter(|call| !is_recall(&call.name))?;
                add(&mut text, &call.name);
                add_value(&mut text, &call.args);
                let writes = call.writes.iter().flatten().map(|write| &*write.path);
                add(&mut text, &writes.collect::<Vec<_>>().join("\n"));
                add(&mut text, &call.result.llm_content);
                add(&mut text, call.result.error.as_deref().unwrap_or_default());
                (Role::Tool, call.timestamp)
            }
            // The context shows it as a message of the user.
            RecordKind::Custom => {
                add(&mut text, record.custom.as_ref()?.context_text.as_deref()?);
                (Role::User, record.at)
            }
            _ => return None,
        };
        (!text.is_empty()).then_some(Self { seq: record.seq, role, at, text })
    }

    /// Returns the document's tokens for the index, each once, separated by spaces. The stem of a word follows it where
    /// it differs.
    pub(super) fn tokens(&self, session: i64, project: Option<&str>) -> String {
        let mut joined = session_term(session);
        joined.push(' ');
        joined.push_str(&role_term(self.role));
        if let Some(project) = project {
            joined.push(' ');
            joined.push_str(&project_term(project));
        }
        // Hashes take less memory than copies; a collision within one document, which loses a word, is unlikely. The
        // hasher of the standard library takes as long as the remaining work of indexing.
        let hasher = DefaultHashBuilder::default();
        let mut seen: HashSet<u64, DefaultHashBuilder> =
            HashSet::with_capacity_and_hasher(self.text.len() / 16, hasher.clone());
        let language = TextLanguage::of(&self.text);
        let mut stems: HashSet<u64, DefaultHashBuilder> = HashSet::with_hasher(hasher.clone());
        words::each_token(&self.text, |token, _| {
            if seen.insert(hasher.hash_one(token)) {
                joined.push(' ');
                joined.push_str(token);
                if !language.is_stop_word(token)
                    && let Some(stem) = language.stem(token)
                    && stems.insert(hasher.hash_one(&*stem))
                {
                    joined.extend([' ', words::STEM]);
                    joined.push_str(&stem);
                }
            }
            ControlFlow::Continue(())
        });
        joined
    }
}

/// Returns the private term that all documents of a session contain.
pub(super) fn session_term(session: i64) -> String {
    format!("{}s{session}", words::PRIVATE)
}

/// Returns the private term that all documents of a role contain.
pub(super) fn role_term(role: Role) -> String {
    format!("{}r{}", words::PRIVATE, role as u8)
}

/// Returns the private term that all documents of a project contain. A session that changes its project is indexed
/// again.
pub(super) fn project_term(hash: &str) -> String {
    let mut term = format!("{}p", words::PRIVATE);
    term.extend(
        hash.chars().filter(char::is_ascii_alphanumeric).map(|char| char.to_ascii_lowercase()),
    );
    term
}

fn is_recall(tool: &str) -> bool {
    [RECALL_SEARCH, RECALL_READ].contains(&tool)
}

fn add_part(text: &mut String, part: &Part) {
    match part {
        Part::Text { text: content } => add(text, content),
        Part::ToolCall { name, .. } if is_recall(name) => {}
        Part::ToolCall { name, args, .. } => {
            add(text, name);
            add_value(text, args);
        }
        // Thinking is not shown after the turn, and an image has no words.
        Part::Thinking { .. } | Part::Image { .. } => {}
    }
}

/// Adds the strings inside JSON: the paths, commands and patches of a tool call.
fn add_value(text: &mut String, value: &Value) {
    match value {
        Value::String(string) => add(text, string),
        Value::Array(items) => items.iter().for_each(|item| add_value(text, item)),
        Value::Object(fields) => fields.values().for_each(|field| add_value(text, field)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn add(text: &mut String, content: &str) {
    if content.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    let mut end = content.len().min(MAX_CONTENT_BYTES);
    while !content.is_char_boundary(end) {
        end -= 1;
    }
    text.push_str(&content[..end]);
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{Custom, Message, RecordBody, ToolCall, ToolResult};
    use serde_json::json;

    use super::*;

    fn text_of(body: RecordBody) -> Option<String> {
        let at = Timestamp::from_unix_ms(1_700_000_000_000);
        SearchDocument::of(&Record::new(Seq(1), None, at, body)).map(|document| document.text)
    }

    #[test]
    fn document_text_is_what_users_models_and_tools_wrote() {
        let at = Timestamp::from_unix_ms(0);
        let mut message = Message::text(Role::Assistant, "hello", at);
        message.parts.push(Part::Thinking { text: "hmm".into() });
        message.parts.push(Part::ToolCall {
            id: "1".into(),
            name: "read".into(),
            args: json!({"path": "a.rs", "n": 3}),
        });
        assert_eq!(text_of(RecordBody::Message(message)).as_deref(), Some("hello\nread\na.rs"));
        let call = ToolCall {
            id: "1".into(),
            name: "shell".into(),
            args: json!({"cmd": ["ls", "-l"]}),
            result: ToolResult { llm_content: "out".into(), ..ToolResult::default() },
            timestamp: at,
            duration_ms: None,
            message_seq: None,
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        };
        assert_eq!(
            text_of(RecordBody::ToolCall(call.clone())).as_deref(),
            Some("shell\nls\n-l\nout")
        );
        let recalled = ToolCall { name: RECALL_SEARCH.into(), ..call };
        assert_eq!(text_of(RecordBody::ToolCall(recalled)), None);
        let custom = Custom { name: "x".into(), data: json!("hidden"), context_text: None };
        assert_eq!(text_of(RecordBody::Custom(custom)), None);
        assert_eq!(text_of(RecordBody::Message(Message::text(Role::User, "", at))), None);
    }

    #[test]
    fn large_content_is_cut_at_a_char_boundary() {
        let text = "é".repeat(MAX_CONTENT_BYTES);
        let message = Message::text(Role::User, format!("a{text}"), Timestamp::from_unix_ms(0));
        let cut = text_of(RecordBody::Message(message)).expect("has text");
        assert_eq!(cut.len(), MAX_CONTENT_BYTES - 1);
    }

    #[test]
    fn tokens_are_unique_and_follow_the_private_terms() {
        let at = Timestamp::from_unix_ms(0);
        let document =
            SearchDocument { seq: Seq(0), role: Role::Tool, at, text: "go go GO".into() };
        assert_eq!(document.tokens(7, Some("ab01")), "\u{82}s7 \u{82}r3 \u{82}pab01 go");
        let text = "the moving handlers moved move".into();
        let tokens = SearchDocument { text, ..document }.tokens(7, None);
        assert_eq!(
            tokens,
            "\u{82}s7 \u{82}r3 the moving \u{83}move handlers \u{83}handler moved move"
        );
    }
}
