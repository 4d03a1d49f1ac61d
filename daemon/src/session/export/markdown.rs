//! A session as Markdown.
//!
//! Messages are block quotes, with a `>` before every line. The arguments and results of tools are code blocks whose
//! fences are longer than any run of backticks inside. So no content can end its own block. In quotes, everything that
//! could begin HTML, a link or an image is escaped, and code blocks get new fences. No HTML is written.

use std::fmt::Write as _;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Message, Part, Record, RecordBody, Role, ToolCall};

use super::text::{empty_reason, head_fields, instant, one_line, verdict};
use crate::session::document::SessionOverview;
use ollm_protocol::sanitize;

/// Maximum length of arguments in an assistant message, in characters; the tool call shows all of them.
const MAX_CALL_CHARS: usize = 200;
/// Maximum length of a name or a field, in characters.
const MAX_NAME_CHARS: usize = 200;

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
            quoted(&compaction.summary, out);
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
    fence_lines("", info, sanitize::text(text).split('\n'), out);
    out.push('\n');
}

fn fence_lines<'a>(
    prefix: &str,
    info: &str,
    lines: impl Iterator<Item = &'a str> + Clone,
    out: &mut String,
) {
    let longest = lines.clone().map(longest_run).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    push_line(out, &format!("{prefix}{fence}{info}"));
    for line in lines {
        push_line(out, &format!("{prefix}{line}"));
    }
    push_line(out, &format!("{prefix}{fence}"));
}

fn longest_run(line: &str) -> usize {
    line.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// Writes a block quote that its content cannot end.
fn quoted(text: &str, out: &mut String) {
    let text = sanitize::text(text);
    let mut lines = text.trim_end_matches('\n').split('\n');
    while let Some(line) = lines.next() {
        let Some(fence) = Fence::opened_by(line) else {
            let prose = prose(line);
            push_line(out, format!("> {prose}").trim_end());
            continue;
        };
        // An unclosed fence extends to the end of the text.
        let code: Vec<_> = lines.by_ref().take_while(|line| !fence.is_closed_by(line)).collect();
        fence_lines("> ", &fence.info, code.iter().copied(), out);
    }
    out.push('\n');
}

/// The opening fence of a code block in a text.
struct Fence {
    mark: char,
    len: usize,
    info: String,
}

impl Fence {
    fn opened_by(line: &str) -> Option<Self> {
        let text = unindented(line)?;
        let mark = text.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let info = text.trim_start_matches(mark);
        let len = text.len() - info.len();
        if len < 3 || (mark == '`' && info.contains('`')) {
            return None;
        }
        let is_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '_' | '.');
        let info = info.trim().chars().take_while(is_word).take(30).collect();
        Some(Self { mark, len, info })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        unindented(line).is_some_and(|text| {
            let text = text.trim_end();
            text.len() >= self.len && text.chars().all(|c| c == self.mark)
        })
    }
}

/// Returns the line without its indent, or `None` if the indent is too deep for a fence.
fn unindented(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(' ');
    (line.len() - text.len() <= 3).then_some(text)
}

/// Escapes HTML, links, images and fences in a line of prose; keeps emphasis, lists, headings and code spans.
///
/// Renderers pair backticks across lines, so dangerous characters are escaped even where a renderer might show the
/// backslash as part of code.
fn prose(line: &str) -> String {
    let mut escaped = String::with_capacity(line.len() + 8);
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        // Only runs of these marks are counted, because counting all runs takes quadratic time for a repeated letter.
        let run = if matches!(c, '`' | '~') { run_length(rest, c) } else { 1 };
        match c {
            '`' => {
                if let Some(span) = code_span(rest, run) {
                    escaped.push_str(&rest[..span]);
                    rest = &rest[span..];
                } else {
                    escaped.push_str(&"\\`".repeat(run));
                    rest = &rest[run..];
                }
                continue;
            }
            '~' if run >= 3 => {
                escaped.push_str(&"\\~".repeat(run));
                rest = &rest[run..];
                continue;
            }
            '<' | '[' | ']' | '&' => escaped.push('\\'),
            // A backslash before a letter is literal, as in a path.
            '\\' if !rest[1..].starts_with(|next: char| !next.is_ascii_punctuation()) => {
                escaped.push('\\');
            }
            _ => {}
        }
        escaped.push(c);
        rest = &rest[c.len_utf8()..];
    }
    escaped
}

/// Returns the length of the code span at the start of `rest`, unless its content needs an escape.
fn code_span(rest: &str, run: usize) -> Option<usize> {
    let mut at = run;
    while let Some(offset) = rest[at..].find('`') {
        let start = at + offset;
        let len = run_length(&rest[start..], '`');
        if len == run {
            let inside = &rest[run..start];
            let is_harmless = !inside.contains(['<', '[', ']', '&', '\\', '|']);
            return is_harmless.then_some(start + len);
        }
        at = start + len;
    }
    None
}

/// Returns the number of marks at the start of a text; `mark` has one byte.
fn run_length(text: &str, mark: char) -> usize {
    text.len() - text.trim_start_matches(mark).len()
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
