//! A session as one HTML page.
//!
//! The page loads nothing. Every text is escaped; the content security policy in the head is a second line of defense: it
//! allows the one script and the one style sheet of the page by their hashes. The script only adds a search and a switch.
//! Images are included only as data of a few raster types.
//!
//! **Memory**: the text of a message or result takes at most seven times its bytes beside its record: a sanitized copy, and
//! six in the page, because `"` becomes `&quot;`. So large texts are escaped once, straight into the page. Rendered
//! Markdown may grow more, but only short texts are rendered.

mod highlight;
mod prose;
mod window_bar;

use std::fmt::Write as _;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Compaction, Message, Part, Record, RecordBody, Role, ToolCall};
use serde_json::Value;

use self::prose::LineBreaks;
use super::text::{
    compaction_sizes, empty_reason, head_fields, instant, main_argument, one_line, summary_of,
    verdict,
};
use crate::session::document::SessionOverview;
use ollm_protocol::sanitize;

pub(super) use highlight::PageHighlighter;
pub(super) use window_bar::WindowBar;

/// Image types that browsers show and that cannot contain scripts.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// Maximum length of a name in a heading, in characters.
const MAX_NAME_CHARS: usize = 200;

/// The style sheet and the script, with their SHA-256 digests as a content security policy names them.
const STYLE: &str = include_str!("page.css");
const STYLE_DIGEST: &str = "u4qQHsVcMpFsXzbePiSOS9b9Czj8vif3mENwxveOFo8=";
const SCRIPT: &str = include_str!("page.js");
const SCRIPT_DIGEST: &str = "4/jilIylpTC+8XX14MRG8iF7xKkIai6HTmrcjI6I4Pc=";

/// Writes the head of the page and the fields of the session.
pub(super) fn begin(overview: &SessionOverview<'_>, out: &mut String) {
    let session = overview.session;
    let title = if session.title.is_empty() { "Session" } else { &session.title };
    let title = name(title);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{STYLE_DIGEST}'; \
         script-src 'sha256-{SCRIPT_DIGEST}'; img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1 dir=\"auto\">{title}</h1>\n<dl>\n",
    );
    for (label, value) in head_fields(session) {
        let _ = writeln!(out, "<dt>{label}</dt><dd>{}</dd>", name(&value));
    }
    out.push_str("</dl>\n");
}

/// Writes what stands between the fields of the session and its first message.
pub(super) fn begin_messages(
    overview: &SessionOverview<'_>,
    window: &mut WindowBar,
    highlighter: &PageHighlighter,
    out: &mut String,
) {
    window.draw(overview.session.context_size, out);
    out.push_str(
        "</header>\n<nav hidden><input type=\"search\" placeholder=\"Search in this page\" \
         aria-label=\"Search in this page\"><output></output><button>Expand all</button></nav>\n<main>\n",
    );
    if let Some(prompt) = overview.system_prompt {
        out.push_str("<article class=\"system\">\n<h2>system prompt</h2>\n");
        prose::write(prompt, LineBreaks::Kept, highlighter, out);
        out.push_str("</article>\n");
    }
}

/// Writes one record, unless it has no content for a reader.
pub(super) fn record(record: Record, highlighter: &PageHighlighter, out: &mut String) {
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
            message.parts.iter().for_each(|part| self::part(part, message.role, highlighter, out));
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
            compaction_note(&compaction, out);
        }
        Some(RecordBody::BranchSummary(summary)) => {
            open(out, "system", "summary of a branch", at);
            prose::write(&summary.summary, LineBreaks::Joined, highlighter, out);
        }
        Some(RecordBody::ModeChange(change)) => {
            open(out, "system", &format!("mode {}", change.to), at);
        }
        Some(RecordBody::Custom(custom)) => {
            let Some(context_text) = custom.context_text else { return };
            open(out, "system", &custom.name, at);
            prose::write(&context_text, LineBreaks::Kept, highlighter, out);
        }
        _ => return,
    }
    out.push_str("</article>\n");
}

/// Writes the end of the page.
pub(super) fn end(out: &mut String) {
    let _ = write!(out, "</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
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

fn part(part: &Part, role: Role, highlighter: &PageHighlighter, out: &mut String) {
    match part {
        Part::Text { text } if role == Role::Tool => folded("output", text, out),
        Part::Text { text } => {
            let breaks = if role == Role::User { LineBreaks::Kept } else { LineBreaks::Joined };
            prose::write(text, breaks, highlighter, out);
        }
        Part::Thinking { text } => folded("thinking", text, out),
        Part::ToolCall { name, args, .. } => {
            folded(&with_main_argument(&format!("calls {name}"), args), &pretty(args), out);
        }
        Part::Image { mime_type, data } => image(mime_type, data, out),
    }
}

/// Writes the sizes before and after a compaction, and its summary.
fn compaction_note(compaction: &Compaction, out: &mut String) {
    let _ = writeln!(out, "<p>{}</p>", compaction_sizes(compaction));
    if let Some(summary) = summary_of(compaction) {
        folded("summary", summary, out);
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

fn folded(summary: &str, text: &str, out: &mut String) {
    let text = sanitize::text(text);
    let lines = match text.lines().count() {
        1 => "1 line".to_owned(),
        lines => format!("{lines} lines"),
    };
    // Parsers drop a line break right after <pre>, so one is added to keep that of the text.
    let title = name(summary);
    let _ = writeln!(out, "<details><summary>{title} ({lines})</summary><pre dir=\"auto\">");
    escape_into(&text, out);
    out.push_str("</pre></details>\n");
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

/// Returns a text escaped for HTML, also within quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    escape_into(text, &mut escaped);
    escaped
}

/// Writes a text escaped for HTML, also within quotes. Reserves what it needs at once, because a string that grows has
/// room for twice as much.
fn escape_into(text: &str, out: &mut String) {
    let growth: usize = text.bytes().filter_map(entity_of).map(|entity| entity.len() - 1).sum();
    out.reserve(text.len() + growth);
    let mut done = 0;
    for (at, byte) in text.bytes().enumerate() {
        if let Some(entity) = entity_of(byte) {
            out.push_str(&text[done..at]);
            out.push_str(entity);
            done = at + 1;
        }
    }
    out.push_str(&text[done..]);
}

/// Returns the form of a character that HTML would obey.
const fn entity_of(byte: u8) -> Option<&'static str> {
    match byte {
        b'&' => Some("&amp;"),
        b'<' => Some("&lt;"),
        b'>' => Some("&gt;"),
        b'"' => Some("&quot;"),
        b'\'' => Some("&#39;"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

    use super::*;

    #[test]
    fn large_text_is_escaped_in_the_room_that_it_needs() {
        let mut out = String::new();
        let text = "&<>\"'é".repeat(1000);
        escape_into(&text, &mut out);
        assert_eq!(out, "&amp;&lt;&gt;&quot;&#39;é".repeat(1000));
        assert!(out.capacity() < out.len() + out.len() / 2, "{}", out.capacity());
    }

    #[test]
    fn policy_names_the_digests_of_style_and_script() {
        let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("a suite of TLS 1.3");
        let digest = |text: &str| STANDARD.encode(suite.common.hash_provider.hash(text.as_bytes()));
        assert_eq!(digest(STYLE), STYLE_DIGEST);
        assert_eq!(digest(SCRIPT), SCRIPT_DIGEST);
        assert!(!format!("{STYLE}{SCRIPT}").contains("</"), "an element cannot end early");
    }
}
