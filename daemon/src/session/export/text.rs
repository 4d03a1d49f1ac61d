//! The parts that the pages for people share: names, times, the main argument of a tool call, the options of Markdown.
//!
//! Texts of models, tools and files pass [`sanitize`] before they enter a page.

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Compaction, Message, Part, Role, Session, ToolResult};
use pulldown_cmark::Options;
use serde_json::Value;

use ollm_protocol::sanitize;

/// The Markdown that common readers know.
pub(super) const MARKDOWN: Options =
    Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// Returns a text on one line without control sequences, cut after `max_chars` characters.
pub(super) fn one_line(text: &str, max_chars: usize) -> String {
    let text = sanitize::text(text);
    let mut line = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == max_chars {
            line.push('…');
            break;
        }
        line.push(if c == '\n' || c == '\t' { ' ' } else { c });
    }
    line
}

/// Names that tools commonly give to their most descriptive argument, the best first.
const MAIN_ARGUMENTS: &[&str] = &[
    "path",
    "file_path",
    "filePath",
    "filename",
    "file",
    "command",
    "cmd",
    "query",
    "pattern",
    "url",
    "directory",
    "dir",
    "name",
];
/// Maximum length of a main argument in characters.
const MAX_ARGUMENT_CHARS: usize = 80;

/// Returns the argument that best describes a tool call: one with a known name, or the first text.
pub(super) fn main_argument(args: &Value) -> Option<String> {
    let args = args.as_object()?;
    let text = |value: &Value| value.as_str().map(|text| one_line(text, MAX_ARGUMENT_CHARS));
    let known = MAIN_ARGUMENTS.iter().find_map(|name| text(args.get(*name)?));
    known.or_else(|| args.values().find_map(text)).filter(|text| !text.trim().is_empty())
}

/// Returns the finish reason of an answer without content.
pub(super) fn empty_reason(message: &Message) -> Option<&str> {
    let is_empty = message.role == Role::Assistant
        && message.parts.iter().all(|part| match part {
            Part::Text { text } | Part::Thinking { text } => text.trim().is_empty(),
            Part::ToolCall { .. } | Part::Image { .. } => false,
        });
    message.finish_reason.as_deref().filter(|_| is_empty)
}

/// Returns the summary of a compaction: that of another program, or of the newest checkpoint.
pub(super) fn summary_of(compaction: &Compaction) -> Option<&str> {
    let newest = || compaction.checkpoints.last().map(|checkpoint| checkpoint.summary.as_str());
    let other = Some(compaction.summary.as_str()).filter(|summary| !summary.is_empty());
    other.or_else(newest)
}

/// Returns the sizes of the context before and after a compaction, as a sentence.
pub(super) fn compaction_sizes(compaction: &Compaction) -> String {
    let after = compaction.tokens_after.map(|tokens| format!(" to {tokens}")).unwrap_or_default();
    format!("The context went from {}{after} tokens.", compaction.tokens_before)
}

/// Returns how a tool call ended, such as `failed, exit code 1`; empty for a success without exit code.
pub(super) fn verdict(result: &ToolResult) -> String {
    let failed = (result.success == Some(false)).then(|| "failed".to_owned());
    let exit_code = result.exit_code.map(|code| format!("exit code {code}"));
    failed.into_iter().chain(exit_code).collect::<Vec<_>>().join(", ")
}

/// Returns the labels and values at the head of a page.
pub(super) fn head_fields(session: &Session) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("session", session.session_id.to_string()),
        ("begun", instant(session.start_time)),
        ("last activity", instant(session.last_activity)),
    ];
    let named = [
        ("model", &session.model),
        ("provider", &session.provider),
        ("project", &session.project_path),
    ];
    fields.extend(named.into_iter().filter_map(|(label, value)| Some((label, value.clone()?))));
    fields.push(("messages", session.message_count.to_string()));
    fields.push(("tool calls", session.tool_call_count.to_string()));
    fields
}

/// Formats a time in UTC, because the time zone of a file's reader is unknown.
pub(super) fn instant(at: Timestamp) -> String {
    at.to_utc().format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_argument_is_a_known_name_or_the_first_text() {
        let check = |args: Value, expect: Option<&str>| {
            assert_eq!(main_argument(&args).as_deref(), expect, "{args}");
        };
        check(serde_json::json!({ "content": "x", "path": "a.rs" }), Some("a.rs"));
        check(serde_json::json!({ "timeout": 3, "command": "ls\n-l" }), Some("ls -l"));
        check(serde_json::json!({ "n": 1, "question": "why?" }), Some("why?"));
        check(serde_json::json!({ "n": 1 }), None);
        check(serde_json::json!({ "path": "" }), None);
        check(serde_json::json!(["a"]), None);
    }

    #[test]
    fn one_line_replaces_breaks_and_cuts() {
        assert_eq!(one_line("a\nb\tc\u{1b}[1md", 10), "a b cd");
        assert_eq!(one_line("abcdef", 3), "abc…");
    }
}
