//! A session as Markdown.
//!
//! What was said stands in block quotes, every line of it behind a `>`, and what tools got and gave back in code
//! whose fences are longer than any run of backticks inside: nothing can end its own block. In quotes, whatever
//! could begin HTML, a link or an image is escaped; code blocks are fenced anew. No HTML is written at all.

use std::fmt::Write as _;

use ollm_protocol::content::{Message, Part, Record, RecordBody, Role, ToolCall};
use ollm_protocol::{Timestamp, sanitize};

use super::text::{headline, instant, one_line, silence};
use crate::session::document::SessionFacts;

/// Characters of a tool's arguments that are shown where they are called; the result shows them all.
const MAX_CALL_CHARS: usize = 200;
/// Characters of a name, title or fact.
const MAX_NAME_CHARS: usize = 200;

/// Writes the title and the facts.
pub(super) fn begin(facts: &SessionFacts<'_>, out: &mut String) {
    let session = facts.session;
    let title = if session.title.is_empty() { "Session" } else { &session.title };
    push_line(out, &format!("# {}\n", inline(title, MAX_NAME_CHARS)));
    for (name, value) in headline(session) {
        push_line(out, &format!("- {name}: {}", inline(&value, MAX_NAME_CHARS)));
    }
    out.push('\n');
    if let Some(prompt) = facts.system_prompt.filter(|prompt| !prompt.is_empty()) {
        push_line(out, "## system prompt\n");
        quoted(prompt, out);
    }
}

/// Writes one record; those that say nothing to a reader are left out.
pub(super) fn record(record: Record, out: &mut String) {
    let (seq, at, active) = (record.seq, record.at, record.active);
    let heading = |out: &mut String, what: &str, at: Timestamp| {
        let left = if active { "" } else { " · on a branch that was left" };
        push_line(out, &format!("## {what} · {} · #{seq}{left}\n", instant(at)));
    };
    match record.into_body() {
        Some(RecordBody::Message(message)) => {
            heading(out, &speaker(&message), message.timestamp);
            parts(&message, out);
            if let Some(why) = silence(&message) {
                push_line(out, &format!("*no answer:* {}\n", code(why, MAX_NAME_CHARS)));
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

fn speaker(message: &Message) -> String {
    let mut speaker = message.role.as_str().to_owned();
    if let Some(tool) = &message.tool_name {
        let _ = write!(speaker, " {}", code(tool, MAX_NAME_CHARS));
    }
    if let Some(model) = &message.model {
        let _ = write!(speaker, " {}", inline(model, MAX_NAME_CHARS));
    }
    speaker
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
    let mut verdict = String::new();
    if result.success == Some(false) {
        verdict.push_str("failed");
    }
    if let Some(code) = result.exit_code {
        let _ = write!(verdict, "{}exit code {code}", if verdict.is_empty() { "" } else { ", " });
    }
    let error = result.error.as_deref().filter(|error| !error.is_empty());
    match error.map(|error| code(error, MAX_NAME_CHARS)) {
        Some(error) if verdict.is_empty() => push_line(out, &format!("*error:* {error}\n")),
        Some(error) => push_line(out, &format!("*{verdict}:* {error}\n")),
        None if verdict.is_empty() => {}
        None => push_line(out, &format!("*{verdict}*\n")),
    }
    fenced("text", &result.llm_content, out);
}

/// Text in a line of ours: nothing in it is Markdown.
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

/// Text in a line of ours, as code that its content cannot end. Our lines have nothing before it that could pair
/// with its backticks or begin HTML.
fn code(text: &str, max_chars: usize) -> String {
    let line = one_line(text, max_chars);
    if line.trim().is_empty() {
        return "` `".to_owned();
    }
    let ticks = "`".repeat(longest_run(&line) + 1);
    // A renderer takes one space off each end, where both ends have one.
    let pad = if line.starts_with(['`', ' ']) || line.ends_with(['`', ' ']) { " " } else { "" };
    format!("{ticks}{pad}{line}{pad}{ticks}")
}

/// A block of code that its content cannot end.
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

/// A block quote that its content cannot leave.
fn quoted(text: &str, out: &mut String) {
    let text = sanitize::text(text);
    let mut lines = text.trim_end_matches('\n').split('\n');
    while let Some(line) = lines.next() {
        let Some(fence) = Fence::opened_by(line) else {
            let prose = prose(line);
            push_line(out, format!("> {prose}").trim_end());
            continue;
        };
        // What the writer meant as code; a fence that is never closed holds the rest.
        let code: Vec<_> = lines.by_ref().take_while(|line| !fence.is_closed_by(line)).collect();
        fence_lines("> ", &fence.info, code.iter().copied(), out);
    }
    out.push('\n');
}

/// The beginning of a code block in a text.
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

/// The line without up to three spaces; `None` where it has more, which makes it no fence.
fn unindented(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(' ');
    (line.len() - text.len() <= 3).then_some(text)
}

/// One line of prose: emphasis, lists, headings and short code stay; HTML, links, images and fences do not.
///
/// Safe without knowing how a renderer pairs backticks over lines: what could begin something dangerous is
/// escaped everywhere, also where it turns out to be code and the backslash is shown.
fn prose(line: &str) -> String {
    let mut escaped = String::with_capacity(line.len() + 8);
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        // Only marks are counted: counting every run would make a long line of one letter quadratic.
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
            // Before a letter a backslash is itself, as in a path.
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

/// The length of a code span at the beginning of `rest`, if nothing in it would need an escape.
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

/// How often a text begins with a mark of one byte.
fn run_length(text: &str, mark: char) -> usize {
    text.len() - text.trim_start_matches(mark).len()
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
