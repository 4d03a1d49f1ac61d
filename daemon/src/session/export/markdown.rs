//! A session as Markdown.
//!
//! Messages are block quotes, with a `>` before every line, so their headings are below those of the file. The arguments
//! and results of tools are code blocks whose fences are longer than any run of backticks inside. So no content can end
//! its own block, and a message is rendered as it was written: a parser of Markdown confirms it for each one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Message, Part, Record, RecordBody, Role, ToolCall};
use pulldown_cmark::{Event, Parser, Tag, TagEnd, TextMergeStream};

use super::text::{
    MARKDOWN, compaction_sizes, empty_reason, head_fields, instant, one_line, summary_of, verdict,
};
use crate::session::document::SessionOverview;
use ollm_protocol::sanitize;

/// Maximum length of arguments in an assistant message, in characters; the tool call shows all of them.
const MAX_CALL_CHARS: usize = 200;
/// Maximum length of a name or a field, in characters.
const MAX_NAME_CHARS: usize = 200;
/// The largest text that is parsed, in bytes; a larger one becomes a code block.
const MAX_PARSED_BYTES: usize = 512 * 1024;
/// The most passes that escape HTML. Text that was within HTML is Markdown after it, and may contain HTML again.
const MAX_ESCAPE_PASSES: usize = 4;

/// Writes the title and the fields of the session.
pub(super) fn begin(overview: &SessionOverview<'_>, out: &mut String) {
    let session = overview.session;
    let title = if session.title.is_empty() { "Session" } else { &session.title };
    push_line(out, &format!("# {}\n", inline(title, MAX_NAME_CHARS)));
    for (name, value) in head_fields(session) {
        push_line(out, &format!("- {name}: {}", inline(&value, MAX_NAME_CHARS)));
    }
    out.push('\n');
    if let Some(prompt) = overview.system_prompt {
        push_line(out, "## system prompt\n");
        quoted(prompt, out);
    }
}

/// Writes one record, unless it has no content for a reader.
pub(super) fn record(record: Record, out: &mut String) {
    let (seq, at, active) = (record.seq, record.at, record.active);
    let heading = |out: &mut String, title: &str, at: Timestamp| {
        let note = if active { "" } else { " · on a branch that was left" };
        push_line(out, &format!("## {title} · {} · #{seq}{note}\n", instant(at)));
    };
    match record.into_body() {
        Some(RecordBody::Message(message)) => {
            heading(out, &author(&message), message.timestamp);
            parts(&message, out);
            if let Some(reason) = empty_reason(&message) {
                push_line(out, &format!("*no answer:* {}\n", code(reason, MAX_NAME_CHARS)));
            }
        }
        Some(RecordBody::ToolCall(call)) => {
            heading(out, &format!("tool {}", code(&call.name, MAX_NAME_CHARS)), call.timestamp);
            tool_call(&call, out);
        }
        Some(RecordBody::Compaction(compaction)) => {
            heading(out, "compaction", at);
            push_line(out, &format!("{}\n", compaction_sizes(&compaction)));
            if let Some(summary) = summary_of(&compaction) {
                quoted(summary, out);
            }
        }
        Some(RecordBody::BranchSummary(summary)) => {
            heading(out, "summary of a branch", at);
            quoted(&summary.summary, out);
        }
        Some(RecordBody::ModeChange(change)) => {
            heading(out, &format!("mode {}", inline(&change.to, MAX_NAME_CHARS)), at);
        }
        Some(RecordBody::Custom(custom)) => {
            if let Some(text) = custom.context_text {
                heading(out, &inline(&custom.name, MAX_NAME_CHARS), at);
                quoted(&text, out);
            }
        }
        _ => {}
    }
}

/// Returns the role of a message with its tool and model.
fn author(message: &Message) -> String {
    let mut author = message.role.as_str().to_owned();
    if let Some(tool) = &message.tool_name {
        let _ = write!(author, " {}", code(tool, MAX_NAME_CHARS));
    }
    if let Some(model) = &message.model {
        let _ = write!(author, " {}", inline(model, MAX_NAME_CHARS));
    }
    author
}

fn parts(message: &Message, out: &mut String) {
    for part in &message.parts {
        match part {
            Part::Text { text } if message.role == Role::Tool => fenced("text", text, out),
            Part::Text { text } => quoted(text, out),
            Part::Thinking { text } => {
                push_line(out, "*thinking*\n");
                quoted(text, out);
            }
            Part::ToolCall { name, args, .. } => {
                let name = code(name, MAX_NAME_CHARS);
                let args = code(&args.to_string(), MAX_CALL_CHARS);
                push_line(out, &format!("*calls* {name} {args}\n"));
            }
            Part::Image { mime_type, data } => {
                let kind = inline(mime_type, MAX_NAME_CHARS);
                push_line(out, &format!("*image {kind}, {} bytes*\n", data.len() / 4 * 3));
            }
        }
    }
}

fn tool_call(call: &ToolCall, out: &mut String) {
    fenced("json", &serde_json::to_string_pretty(&call.args).unwrap_or_default(), out);
    let result = &call.result;
    let verdict = verdict(result);
    let error = result.error.as_deref().filter(|error| !error.is_empty());
    if let Some(error) = error.map(|error| code(error, MAX_NAME_CHARS)) {
        let label = if verdict.is_empty() { "error" } else { &verdict };
        push_line(out, &format!("*{label}:* {error}\n"));
    } else if !verdict.is_empty() {
        push_line(out, &format!("*{verdict}*\n"));
    }
    fenced("text", &result.llm_content, out);
}

/// Escapes a text for a line of prose, so that none of it is Markdown.
fn inline(text: &str, max_chars: usize) -> String {
    let mut escaped = String::new();
    for c in one_line(text, max_chars).chars() {
        if c.is_ascii_punctuation()
            && !matches!(c, '.' | ',' | ':' | '/' | '-' | '"' | '\'' | '?' | '{' | '}')
        {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Returns a text as a code span that its content cannot end.
///
/// The lines that contain it have no backticks and no HTML before it.
fn code(text: &str, max_chars: usize) -> String {
    let line = one_line(text, max_chars);
    if line.trim().is_empty() {
        return "` `".to_owned();
    }
    let ticks = "`".repeat(longest_run(&line) + 1);
    // Renderers strip one space from both ends if both ends have one.
    let pad = if line.starts_with(['`', ' ']) || line.ends_with(['`', ' ']) { " " } else { "" };
    format!("{ticks}{pad}{line}{pad}{ticks}")
}

/// Writes a code block that its content cannot end.
fn fenced(info: &str, text: &str, out: &mut String) {
    let text = sanitize::text(text);
    let fence = "`".repeat(longest_run(&text).max(2) + 1);
    push_line(out, &format!("{fence}{info}\n{text}\n{fence}\n"));
}

fn longest_run(line: &str) -> usize {
    line.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// Writes a text as a block quote that it cannot leave, or as a code block if it could.
///
/// The text stays as it was written, except for HTML, images and definitions of link labels: an open HTML element or a
/// definition holds beyond its quote, and an image is loaded by whoever reads the file.
fn quoted(text: &str, out: &mut String) {
    let text = sanitize::text(text);
    let text = text.trim_end_matches('\n').to_owned() + "\n";
    let Some(quote) = without_reach(&text).and_then(|text| quote(&text)) else {
        return fenced("markdown", text.trim_end(), out);
    };
    out.push_str(&quote);
    out.push('\n');
}

/// Returns the text with a backslash before everything that has an effect outside of it, or `None` if that fails.
fn without_reach(text: &str) -> Option<Cow<'_, str>> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_ESCAPE_PASSES {
        if text.len() > MAX_PARSED_BYTES {
            return None;
        }
        let reaching = reaching_marks(&text);
        if reaching.is_empty() {
            return Some(text);
        }
        let mut escaped = String::with_capacity(text.len() + reaching.len());
        let mut done = 0;
        for at in reaching {
            escaped.push_str(&text[done..at]);
            escaped.push('\\');
            done = at;
        }
        escaped.push_str(&text[done..]);
        text = Cow::Owned(escaped);
    }
    None
}

/// Returns the places of the marks that begin HTML, an image or a definition, in order.
fn reaching_marks(text: &str) -> BTreeSet<usize> {
    let parser = Parser::new_ext(text, MARKDOWN);
    let definitions = parser.reference_definitions().iter().map(|(_, found)| found.span.clone());
    let mut marks: BTreeSet<usize> =
        definitions.filter_map(|span| mark(text, &span, '[')).collect();
    for (event, range) in parser.into_offset_iter() {
        match event {
            Event::Html(_) | Event::InlineHtml(_) => {
                let inside = text[range.clone()].match_indices('<');
                marks.extend(inside.map(|(at, _)| range.start + at));
            }
            Event::Start(Tag::Image { .. }) => marks.extend(mark(text, &range, '!')),
            _ => {}
        }
    }
    marks
}

/// Returns the first place of a mark in a range.
fn mark(text: &str, range: &Range<usize>, mark: char) -> Option<usize> {
    text.get(range.clone())?.find(mark).map(|at| range.start + at)
}

/// Returns the text as a block quote, or `None` if it reads differently within one: a tab stop is elsewhere there.
fn quote(text: &str) -> Option<String> {
    let mut quote = String::with_capacity(text.len() + text.len() / 16);
    for line in text.lines() {
        // Spaces at the end of a line are a line break.
        push_line(&mut quote, &if line.is_empty() { ">".to_owned() } else { format!("> {line}") });
    }
    let mut inside = TextMergeStream::new(Parser::new_ext(&quote, MARKDOWN));
    let opens = matches!(inside.next(), Some(Event::Start(Tag::BlockQuote(_))));
    let mut alone = TextMergeStream::new(Parser::new_ext(text, MARKDOWN));
    let is_same = alone.all(|event| inside.next() == Some(event));
    let closes = matches!(inside.next(), Some(Event::End(TagEnd::BlockQuote(_))));
    (opens && is_same && closes && inside.next().is_none()).then_some(quote)
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
