//! A session as one HTML page.
//!
//! The page has no scripts and no links and loads nothing. Every text is escaped; the content security policy in the
//! head is a second line of defense. Images are included only as data of a few raster types.

use std::fmt::Write as _;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Message, Part, Record, RecordBody, Role, ToolCall};
use serde_json::Value;

use super::text::{empty_reason, head_fields, instant, main_argument, one_line, verdict};
use crate::session::document::SessionOverview;
use ollm_protocol::sanitize;

/// Image types that browsers show and that cannot contain scripts.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// Maximum length of a name in a heading, in characters.
const MAX_NAME_CHARS: usize = 200;

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
"#;

const STYLE: &str = r"<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --user: #2f6fdd; --assistant: #1f8a5b; --tool: #a3662a; --system: #7a5cc7; }
body { margin: 2rem auto; padding: 0 1rem; max-width: 54rem; font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; }
dd { margin: 0; overflow-wrap: anywhere; }
article { margin: 1.2rem 0; padding: .1rem 0 .1rem 1rem; border-left: 4px solid var(--line); }
article.user { border-color: var(--user); }
article.assistant { border-color: var(--assistant); }
article.tool { border-color: var(--tool); }
article.system { border-color: var(--system); }
article.inactive { opacity: .6; }
h2 { margin: 0; font-size: .95rem; overflow-wrap: anywhere; }
h2 time, h2 small { font-weight: normal; opacity: .7; }
.text { margin: .4rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { margin: .4rem 0; padding: .6rem; max-height: 32rem; overflow: auto; background: var(--soft); border-radius: 6px; font: 13px/1.45 ui-monospace, monospace; }
summary { cursor: pointer; opacity: .8; overflow-wrap: anywhere; }
img { max-width: 100%; }
</style>
</head>
<body>
";

/// Writes the head of the page and the fields of the session.
pub(super) fn begin(overview: &SessionOverview<'_>, out: &mut String) {
    let session = overview.session;
    let title = if session.title.is_empty() { "Session" } else { &session.title };
    let title = name(title);
    out.push_str(HEAD);
    let _ = writeln!(out, "<title>{title}</title>");
    out.push_str(STYLE);
    let _ = writeln!(out, "<h1 dir=\"auto\">{title}</h1>\n<dl>");
    for (label, value) in head_fields(session) {
        let _ = writeln!(out, "<dt>{label}</dt><dd>{}</dd>", name(&value));
    }
    out.push_str("</dl>\n");
    if let Some(prompt) = overview.system_prompt {
        out.push_str("<article class=\"system\">\n<h2>system prompt</h2>\n");
        text(prompt, out);
        out.push_str("</article>\n");
    }
}

/// Writes one record, unless it has no content for a reader.
pub(super) fn record(record: Record, out: &mut String) {
    let (seq, at, active) = (record.seq, record.at, record.active);
    let open = |out: &mut String, class: &str, title: &str, at: Timestamp| {
        let (inactive, note) =
            if active { ("", "") } else { (" inactive", " · on a branch that was left") };
        let _ = writeln!(
            out,
            "<article class=\"{class}{inactive}\" id=\"r{seq}\">\n<h2>{} <time datetime=\"{at}\">{}</time> \
             <small>#{seq}{note}</small></h2>",
            name(title),
            instant(at),
        );
    };
    match record.into_body() {
        Some(RecordBody::Message(message)) => {
            open(out, message.role.as_str(), &author(&message), message.timestamp);
            message.parts.iter().for_each(|part| self::part(part, message.role, out));
            if let Some(reason) = empty_reason(&message) {
                let _ = writeln!(out, "<p>no answer: {}</p>", name(reason));
            }
        }
        Some(RecordBody::ToolCall(call)) => {
            open(out, "tool", &format!("tool {}", call.name), call.timestamp);
            tool_call(&call, out);
        }
        Some(RecordBody::Compaction(compaction)) => {
            open(out, "system", "compaction", at);
            folded("summary", &compaction.summary, out);
        }
        Some(RecordBody::BranchSummary(summary)) => {
            open(out, "system", "summary of a branch", at);
            text(&summary.summary, out);
        }
        Some(RecordBody::ModeChange(change)) => {
            open(out, "system", &format!("mode {}", change.to), at);
        }
        Some(RecordBody::Custom(custom)) => {
            let Some(context_text) = custom.context_text else { return };
            open(out, "system", &custom.name, at);
            text(&context_text, out);
        }
        _ => return,
    }
    out.push_str("</article>\n");
}

/// Writes the end of the page.
pub(super) fn end(out: &mut String) {
    out.push_str("</body>\n</html>\n");
}

/// Returns the role of a message with its tool and model.
fn author(message: &Message) -> String {
    let details = [&message.tool_name, &message.model];
    let mut author = message.role.as_str().to_owned();
    for detail in details.into_iter().flatten() {
        let _ = write!(author, " {detail}");
    }
    author
}

fn part(part: &Part, role: Role, out: &mut String) {
    match part {
        Part::Text { text } if role == Role::Tool => folded("output", text, out),
        Part::Text { text } => self::text(text, out),
        Part::Thinking { text } => folded("thinking", text, out),
        Part::ToolCall { name, args, .. } => {
            folded(&with_main_argument(&format!("calls {name}"), args), &pretty(args), out);
        }
        Part::Image { mime_type, data } => image(mime_type, data, out),
    }
}

fn tool_call(call: &ToolCall, out: &mut String) {
    let result = &call.result;
    folded(&with_main_argument("arguments", &call.args), &pretty(&call.args), out);
    let verdict = verdict(result);
    let separator = if verdict.is_empty() { "" } else { ", " };
    let mut summary = format!("output{separator}{verdict}");
    if let Some(error) = &result.error {
        let _ = write!(summary, ": {error}");
    }
    folded(&summary, &result.llm_content, out);
}

fn pretty(args: &Value) -> String {
    serde_json::to_string_pretty(args).unwrap_or_default()
}

/// Returns the summary of folded arguments: a label and the main argument.
fn with_main_argument(label: &str, args: &Value) -> String {
    main_argument(args).map_or_else(|| label.to_owned(), |argument| format!("{label}: {argument}"))
}

fn text(text: &str, out: &mut String) {
    let _ =
        writeln!(out, "<div class=\"text\" dir=\"auto\">{}</div>", escaped(&sanitize::text(text)));
}

fn folded(summary: &str, text: &str, out: &mut String) {
    let text = sanitize::text(text);
    let lines = match text.lines().count() {
        1 => "1 line".to_owned(),
        lines => format!("{lines} lines"),
    };
    // Parsers drop a line break right after <pre>, so one is added to keep that of the text.
    let _ = writeln!(
        out,
        "<details><summary>{} ({lines})</summary><pre dir=\"auto\">\n{}</pre></details>",
        name(summary),
        escaped(&text),
    );
}

fn image(mime_type: &str, data: &str, out: &mut String) {
    if IMAGES.contains(&mime_type) && is_base64(data) {
        let _ = writeln!(out, "<img alt=\"{mime_type}\" src=\"data:{mime_type};base64,{data}\">");
    } else {
        let _ = writeln!(out, "<p>image of type {}, not shown</p>", name(mime_type));
    }
}

fn is_base64(data: &str) -> bool {
    let body = data.trim_end_matches('=');
    !body.is_empty()
        && data.len().is_multiple_of(4)
        && data.len() - body.len() <= 2
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

/// Returns a text for a heading: one line, escaped.
fn name(text: &str) -> String {
    escaped(&one_line(text, MAX_NAME_CHARS))
}

/// Escapes a text for HTML, also within quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
