//! Text of models, tools and files made harmless for a page that a person reads.

use ollm_protocol::content::{Message, Part, Role, Session};
use ollm_protocol::{Timestamp, sanitize};
use serde_json::Value;

/// Harmless text in one line, cut at some length.
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

/// Arguments that say best what a tool was called for, by the names that tools commonly give them, the best first.
const TELLING: &[&str] = &[
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
/// Characters of a telling argument.
const MAX_TELLING_CHARS: usize = 80;

/// The argument that says best what a tool was called for: a known one, else the first text.
pub(super) fn telling(args: &Value) -> Option<String> {
    let args = args.as_object()?;
    let text = |value: &Value| value.as_str().map(|text| one_line(text, MAX_TELLING_CHARS));
    let known = TELLING.iter().find_map(|name| text(args.get(*name)?));
    known.or_else(|| args.values().find_map(text)).filter(|text| !text.trim().is_empty())
}

/// Why a model said nothing at all, where that is known.
pub(super) fn silence(message: &Message) -> Option<&str> {
    let silent = message.role == Role::Assistant
        && message.parts.iter().all(|part| match part {
            Part::Text { text } | Part::Thinking { text } => text.trim().is_empty(),
            Part::ToolCall { .. } | Part::Image { .. } => false,
        });
    message.finish_reason.as_deref().filter(|_| silent)
}

/// What a page for people says of a session before its turns, in order.
pub(super) fn headline(session: &Session) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("session", session.session_id.to_string()),
        ("begun", instant(session.start_time)),
        ("last activity", instant(session.last_activity)),
    ];
    let named = [
        ("model", &session.model),
        ("provider", &session.provider),
        ("project", &session.project_path),
    ];
    facts.extend(named.into_iter().filter_map(|(label, value)| Some((label, value.clone()?))));
    facts.push(("messages", session.message_count.to_string()));
    facts.push(("tool calls", session.tool_call_count.to_string()));
    facts
}

/// An instant for people; UTC, because a file is read anywhere.
pub(super) fn instant(at: Timestamp) -> String {
    at.to_utc().format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_that_tells_most_is_chosen() {
        let check = |args: Value, expect: Option<&str>| {
            assert_eq!(telling(&args).as_deref(), expect, "{args}");
        };
        check(serde_json::json!({ "content": "x", "path": "a.rs" }), Some("a.rs"));
        check(serde_json::json!({ "timeout": 3, "command": "ls\n-l" }), Some("ls -l"));
        check(serde_json::json!({ "n": 1, "question": "why?" }), Some("why?"));
        check(serde_json::json!({ "n": 1 }), None);
        check(serde_json::json!({ "path": "" }), None);
        check(serde_json::json!(["a"]), None);
    }

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("a\nb\tc\u{1b}[1md", 10), "a b cd");
        assert_eq!(one_line("abcdef", 3), "abc…");
    }
}
