//! A session to read: its head, then record after record.

use std::fmt::Write as _;

use chrono::TimeZone;
use ollm_protocol::content::{Message, Part, Record, RecordBody, Role, ToolCall};
use ollm_protocol::methods::session::Session;
use ollm_protocol::{Seq, Timestamp};

use super::number::{counted, grouped};
use super::style::Style;
use super::{clean, sessions, time};

/// Lines of a tool's output, or of thinking, that are shown unless all are asked for.
const SHOWN_LINES: usize = 12;
/// Characters of them.
const SHOWN_CHARS: usize = 1200;
/// Characters of a call's arguments.
const SHOWN_ARGS: usize = 200;

/// For whom something is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Columns of a line.
    pub(crate) width: usize,
    /// The present instant.
    pub(crate) now: Timestamp,
    /// Whether long texts are printed whole.
    pub(crate) full: bool,
}

/// What stands above a transcript.
pub(crate) fn head(session: &Session, view: &View) -> String {
    let mut facts = vec![
        counted(session.message_count, "message"),
        counted(session.token_count, "token"),
        time::ago(session.last_activity, view.now),
        sessions::status_word(session.status).to_owned(),
    ];
    let optional = [&session.model, &session.mode, &session.project_path];
    facts.extend(optional.into_iter().flatten().map(|fact| clean::one_line(fact)));
    if session.damaged_records > 0 {
        facts.push(Style::Bad.paint(&counted(session.damaged_records, "damaged record")));
    }
    format!(
        "{}\n{}\n{}\n",
        Style::Strong.paint(&sessions::title(session)),
        session.session_id,
        Style::Faint.paint(&facts.join(" · ")),
    )
}

/// One record; records that only change settings take one line.
pub(crate) fn record<Z: TimeZone>(record: Record, zone: &Z, view: &View) -> String
where
    Z::Offset: std::fmt::Display,
{
    let place = Place { seq: record.seq, active: record.active, at: time::minute(record.at, zone) };
    match record.into_body() {
        Some(RecordBody::Message(said)) => message(&place, &said, zone, view),
        Some(RecordBody::ToolCall(called)) => tool_call(&place, &called, view),
        Some(RecordBody::Compaction(compaction)) => {
            let what = format!("compaction, {} tokens before", grouped(compaction.tokens_before));
            place.heading(Style::Faint, &what) + &body(&compaction.summary, view, place.seq)
        }
        Some(RecordBody::BranchSummary(branch)) => {
            place.heading(Style::Faint, "summary of a branch that was left")
                + &body(&branch.summary, view, place.seq)
        }
        Some(other) => place.note(&small(&other)),
        None => place.note("a record without its body"),
    }
}

struct Place {
    seq: Seq,
    active: bool,
    at: String,
}

impl Place {
    fn heading(&self, style: Style, what: &str) -> String {
        let off = if self.active { "" } else { " (not in force)" };
        let place = Style::Faint.paint(&format!("#{} {}{off}", self.seq, self.at));
        format!("\n{} {place}\n", style.paint(what))
    }

    fn note(&self, what: &str) -> String {
        let off = if self.active { "" } else { " (not in force)" };
        format!("\n{}\n", Style::Faint.paint(&format!("- {what} #{} {}{off}", self.seq, self.at)))
    }
}

fn message<Z: TimeZone>(place: &Place, said: &Message, zone: &Z, view: &View) -> String
where
    Z::Offset: std::fmt::Display,
{
    let mut who = said.role.as_str().to_owned();
    for detail in [&said.tool_name, &said.model].into_iter().flatten() {
        let _infallible = write!(who, " {}", clean::one_line(detail));
    }
    // An import records what was said earlier; the reader wants to know when it was said.
    let place = Place { at: time::minute(said.timestamp, zone), ..*place };
    let style = match said.role {
        Role::User => Style::User,
        Role::Assistant => Style::Assistant,
        Role::Tool => Style::Tool,
        Role::System => Style::Faint,
    };
    let mut text = place.heading(style, &who);
    for part in &said.parts {
        text.push_str(&match part {
            Part::Text { text } if said.role == Role::Tool => body(text, view, place.seq),
            Part::Text { text } => whole(text),
            Part::Thinking { text } => {
                Style::Faint
                    .paint(&format!("(thinking)\n{}", body(text, view, place.seq).trim_end()))
                    + "\n"
            }
            Part::ToolCall { name, args, .. } => call(name, args),
            Part::Image { mime_type, data } => {
                let bytes = data.len() as u64 / 4 * 3;
                format!("[{}, {} bytes]\n", clean::one_line(mime_type), grouped(bytes))
            }
        });
    }
    text
}

fn tool_call(place: &Place, called: &ToolCall, view: &View) -> String {
    let mut what = format!("tool {}", clean::one_line(&called.name));
    if called.result.success == Some(false) || called.result.error.is_some() {
        what.push_str(", failed");
    }
    if let Some(code) = called.result.exit_code {
        let _infallible = write!(what, ", exit code {code}");
    }
    if let Some(ms) = called.duration_ms {
        let _infallible = write!(what, ", {} ms", grouped(ms));
    }
    let mut text = place.heading(Style::Tool, &what);
    text.push_str(&call(&called.name, &called.args));
    if let Some(error) = &called.result.error {
        text.push_str(&body(error, view, place.seq));
    }
    let shown = called.result.display_content.as_deref().unwrap_or(&called.result.llm_content);
    text.push_str(&body(shown, view, place.seq));
    text
}

fn call(name: &str, args: &serde_json::Value) -> String {
    let args = clean::one_line(&args.to_string());
    let cut: String = args.chars().take(SHOWN_ARGS).collect();
    let more = if cut.len() < args.len() { "..." } else { "" };
    format!("-> {} {cut}{more}\n", clean::one_line(name))
}

fn whole(text: &str) -> String {
    let mut text = clean::text(text);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// A text of which the beginning is enough, with the way to the rest.
fn body(text: &str, view: &View, seq: Seq) -> String {
    let text = whole(text);
    if view.full {
        return text;
    }
    let mut end = text.len();
    if let Some((at, _)) = text.match_indices('\n').nth(SHOWN_LINES - 1) {
        end = end.min(at + 1);
    }
    if let Some((at, _)) = text.char_indices().nth(SHOWN_CHARS) {
        end = end.min(at);
    }
    let rest = &text[end..];
    if rest.trim().is_empty() {
        return text;
    }
    let shown = text[..end].trim_end_matches('\n');
    let more = format!(
        "[{} more characters: --from {seq} --limit 1 --full]",
        grouped(rest.chars().count() as u64)
    );
    format!("{shown}\n{}\n", Style::Faint.paint(&more))
}

/// The records that nobody said, in a few words.
fn small(body: &RecordBody) -> String {
    let clean = clean::one_line;
    match body {
        RecordBody::Session(_) => "session began".to_owned(),
        RecordBody::ModeChange(change) => format!("mode {}", clean(&change.to)),
        RecordBody::Meta(patch) => match &patch.title {
            Some(title) => format!("title {}", clean(title)),
            None => "settings changed".to_owned(),
        },
        RecordBody::Epoch(epoch) => {
            format!("context planned by {} ({})", clean(&epoch.strategy), clean(&epoch.cause))
        }
        RecordBody::Usage(usage) => format!(
            "model counted {} tokens in, {} out",
            grouped(usage.prompt_tokens),
            grouped(usage.answer_tokens)
        ),
        RecordBody::Custom(custom) => format!("{} (client data)", clean(&custom.name)),
        RecordBody::Leaf(leaf) => match leaf.to {
            Some(to) => format!("went back to #{to} ({})", clean(&leaf.cause)),
            None => format!("went back to the beginning ({})", clean(&leaf.cause)),
        },
        RecordBody::Close(_) => "closed".to_owned(),
        RecordBody::Label(label) => {
            format!("label {} on #{}", clean(label.name.as_deref().unwrap_or("-")), label.target)
        }
        RecordBody::Snapshot(snapshot) => format!("snapshot ({})", clean(&snapshot.reason)),
        other => clean(
            serde_json::to_value(other.kind())
                .ok()
                .as_ref()
                .and_then(|kind| kind.as_str())
                .unwrap_or("record"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use chrono::Utc;

    use super::*;

    fn read(json: serde_json::Value) -> Record {
        serde_json::from_value(json).unwrap()
    }

    fn plain(json: serde_json::Value, full: bool) -> String {
        let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full };
        strip_str(&record(read(json), &Utc, &view)).to_string()
    }

    #[test]
    fn messages_name_who_where_and_when_and_are_clean() {
        let json = serde_json::json!({
            "seq": 2, "parent": 1, "at": "2026-01-27T10:00:00Z", "type": "message",
            "message": {
                "role": "assistant", "model": "qwen3:8b", "timestamp": "2026-01-26T09:30:00Z",
                "parts": [
                    {"type": "thinking", "text": "hm"},
                    {"type": "text", "text": "Use \u{1b}[31mreversed()\u{1b}[0m."},
                    {"type": "toolCall", "id": "c", "name": "run", "args": {"cmd": "ls\n"}},
                    {"type": "image", "mimeType": "image/png", "data": "AAAA"}
                ]
            }
        });
        assert_eq!(
            plain(json, false),
            "
assistant qwen3:8b #2 2026-01-26 09:30
(thinking)
hm
Use reversed().
-> run {\"cmd\":\"ls\\n\"}
[image/png, 3 bytes]
"
        );
    }

    #[test]
    fn long_outputs_are_cut_with_the_way_to_the_rest() {
        let lines = |count: usize| "x\n".repeat(count);
        let json = |output: &str| {
            serde_json::json!({
                "seq": 7, "at": "2026-01-27T10:00:00Z", "type": "toolCall", "active": false,
                "toolCall": {
                    "id": "c", "name": "ls", "args": {}, "timestamp": "2026-01-27T10:00:00Z",
                    "durationMs": 1200, "result": {"llmContent": output, "exitCode": 1}
                }
            })
        };
        let text = plain(json(&lines(20)), false);
        assert!(
            text.starts_with(
                "\ntool ls, exit code 1, 1,200 ms #7 2026-01-27 10:00 (not in force)\n-> ls {}\nx\n"
            ),
            "{text}"
        );
        assert!(text.ends_with("x\n[16 more characters: --from 7 --limit 1 --full]\n"), "{text}");
        assert!(plain(json(&lines(20)), true).ends_with(&lines(20)));
        assert!(plain(json(&lines(12)), false).ends_with(&lines(12)));
        assert!(plain(json(&"日".repeat(5000)), false).contains("3,801 more characters"));
    }

    #[test]
    fn small_records_take_one_line() {
        let json = serde_json::json!({
            "seq": 4, "at": "2026-01-27T10:00:00Z", "type": "leaf", "leaf": {"to": 2, "cause": "undo"}
        });
        assert_eq!(plain(json, false), "\n- went back to #2 (undo) #4 2026-01-27 10:00\n");
    }
}
