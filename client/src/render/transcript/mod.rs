//! A session to read: its head, then record after record.

use std::fmt::Write as _;

use chrono::TimeZone;
use ollm_protocol::Seq;
use ollm_protocol::content::{
    GoalStep, Message, MetaPatch, Part, Record, RecordBody, Role, Session, ToolCall,
};
use ollm_protocol::sanitize;
use serde_json::Value;

use super::View;
use super::number::{counted, grouped};
use super::style::Style;
use super::{sessions, time};

/// Lines of a tool's output, or of thinking, that are shown unless all are asked for.
const SHOWN_LINES: usize = 12;
/// Characters of them.
const SHOWN_CHARS: usize = 1200;
/// Characters of a call's arguments.
const SHOWN_ARGS: usize = 200;
/// Characters of an argument that is shown before the longer ones.
const SHORT_ARG: usize = 80;
/// Arguments that say what a call is about, however long they are.
const TELLING_ARGS: [&str; 8] =
    ["path", "file_path", "filePath", "command", "cmd", "pattern", "query", "url"];

/// Client data by which the daemon itself keeps an answer in the making; the answer follows as a message. FORMAT.md,
/// "Partial answers".
const PARTIAL_ANSWER: &str = "ollm.partialAnswer";

/// Why an answer is not all that would have been said.
const EARLY_ENDS: [&str; 4] = ["canceled", "interrupted", "length", "timeout"];

/// What stands above a transcript.
pub(crate) fn head(session: &Session, view: &View) -> String {
    let mut facts = vec![
        counted(session.message_count, "message"),
        counted(session.token_count, "token"),
        time::ago(session.last_activity, view.now),
        sessions::status_word(session.status).to_owned(),
    ];
    let optional = [&session.model, &session.mode, &session.project_path];
    facts.extend(optional.into_iter().flatten().map(|fact| sanitize::one_line(fact)));
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

/// Lays out record after record.
pub(crate) struct Transcript<'a, Z> {
    zone: &'a Z,
    view: &'a View,
    /// The call whose line was the last that was printed.
    call_above: Option<String>,
}

impl<'a, Z: TimeZone> Transcript<'a, Z>
where
    Z::Offset: std::fmt::Display,
{
    /// A transcript without records.
    pub(crate) fn new(zone: &'a Z, view: &'a View) -> Self {
        Self { zone, view, call_above: None }
    }

    /// The next record; one that is of no interest is empty.
    pub(crate) fn record(&mut self, record: Record) -> String {
        let at = time::minute(record.at, self.zone);
        let place = Place { seq: record.seq, active: record.active, at };
        let body = record.into_body();
        if matches!(body, Some(RecordBody::Usage(_))) && !self.view.full {
            return String::new();
        }
        if matches!(&body, Some(RecordBody::Custom(custom)) if custom.name == PARTIAL_ANSWER) {
            return String::new();
        }
        let above = self.call_above.take();
        match body {
            Some(RecordBody::Message(said)) => {
                self.call_above = last_call(&said);
                message(&place, &said, self.zone, self.view)
            }
            Some(RecordBody::ToolCall(called)) => {
                tool_call(&place, &called, above.as_ref() == Some(&called.id), self.view)
            }
            Some(other) => unsaid(&place, &other, self.view),
            None => place.note("a record without its body"),
        }
    }
}

/// The call that a message ends with.
fn last_call(said: &Message) -> Option<String> {
    match said.parts.last() {
        Some(Part::ToolCall { id, .. }) => Some(id.clone()),
        _ => None,
    }
}

/// A record that nobody said; one that only changes settings takes one line.
fn unsaid(place: &Place, body_of: &RecordBody, view: &View) -> String {
    match body_of {
        RecordBody::Compaction(compaction) => {
            let what = format!("compaction, {} tokens before", grouped(compaction.tokens_before));
            place.heading(Style::Faint, &what) + &body(&compaction.summary, view, place.seq)
        }
        RecordBody::BranchSummary(branch) => {
            place.heading(Style::Faint, "summary of a branch that was left")
                + &body(&branch.summary, view, place.seq)
        }
        other => place.note(&small(other)),
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
        let _infallible = write!(who, " {}", sanitize::one_line(detail));
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
                format!("[{}, {} bytes]\n", sanitize::one_line(mime_type), grouped(bytes))
            }
        });
    }
    if let Some(reason) = early_end(said) {
        text.push_str(&Style::Bad.paint(&format!("({})", sanitize::one_line(reason))));
        text.push('\n');
    }
    text
}

/// Why a model said nothing or not everything, where it did not.
fn early_end(said: &Message) -> Option<&str> {
    let reason = said.finish_reason.as_deref();
    let is_empty = said.parts.iter().all(|part| match part {
        Part::Text { text } => text.trim().is_empty(),
        Part::Thinking { .. } => true,
        Part::ToolCall { .. } | Part::Image { .. } => false,
    });
    if said.role != Role::Assistant {
        None
    } else if is_empty {
        Some(reason.unwrap_or("no answer"))
    } else {
        reason.filter(|reason| EARLY_ENDS.contains(reason))
    }
}

fn tool_call(place: &Place, called: &ToolCall, said_above: bool, view: &View) -> String {
    let mut what = format!("tool {}", sanitize::one_line(&called.name));
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
    if !said_above {
        text.push_str(&call(&called.name, &called.args));
    }
    if let Some(error) = &called.result.error {
        text.push_str(&body(error, view, place.seq));
    }
    let shown = called.result.display_content.as_deref().unwrap_or(&called.result.llm_content);
    text.push_str(&body(shown, view, place.seq));
    text
}

fn call(name: &str, args: &Value) -> String {
    let args = sanitize::one_line(&arguments(args));
    let cut: String = args.chars().take(SHOWN_ARGS).collect();
    let more = if cut.len() < args.len() { "..." } else { "" };
    format!("-> {} {cut}{more}\n", sanitize::one_line(name))
}

/// Arguments as JSON, the telling ones first: a path or a command stands before the text that is written.
fn arguments(args: &Value) -> String {
    let Value::Object(fields) = args else { return args.to_string() };
    let mut fields: Vec<(u8, String)> = fields
        .iter()
        .map(|(name, value)| {
            let text = format!("{}:{value}", Value::from(name.as_str()));
            let rank = match value {
                Value::String(_) if TELLING_ARGS.contains(&name.as_str()) => 0,
                _ if text.chars().count() > SHORT_ARG => 3,
                Value::String(_) => 1,
                _ => 2,
            };
            (rank, text)
        })
        .collect();
    fields.sort_by_key(|(rank, _)| *rank);
    let texts: Vec<String> = fields.into_iter().map(|(_, text)| text).collect();
    format!("{{{}}}", texts.join(","))
}

fn whole(text: &str) -> String {
    let mut text = sanitize::text(text);
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
    let clean = sanitize::one_line;
    match body {
        RecordBody::Session(_) => "session began".to_owned(),
        RecordBody::ModeChange(change) => format!("mode {}", clean(&change.to)),
        RecordBody::Meta(patch) => changed(patch),
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
        RecordBody::Goal(change) => {
            let actions: Vec<_> = change.steps.iter().map(GoalStep::action).collect();
            format!("goals: {}", actions.join(", "))
        }
        RecordBody::ContextEntry(change) => {
            let done = if change.content.is_some() { "set" } else { "removed" };
            format!("context entry {} {done}", clean(&change.key))
        }
        RecordBody::Pin(pin) => {
            let done = if pin.pinned { "pinned" } else { "released" };
            format!("{done} #{}", pin.target)
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

/// What a change of a session's settings changed.
fn changed(patch: &MetaPatch) -> String {
    let texts = [
        ("title", &patch.title),
        ("model", &patch.model),
        ("provider", &patch.provider),
        ("project", &patch.project_path),
        ("description", &patch.description),
    ];
    let mut facts: Vec<String> = texts
        .into_iter()
        .filter_map(|(name, value)| {
            value.as_ref().map(|value| format!("{name} {}", sanitize::one_line(value)))
        })
        .collect();
    // It may be pages long.
    facts.extend(patch.system_prompt.as_ref().map(|_| "system prompt".to_owned()));
    facts.extend(patch.context_size.map(|size| format!("context size {}", grouped(size.into()))));
    facts.extend(patch.pinned.map(|on| if on { "pinned" } else { "unpinned" }.to_owned()));
    facts.extend(patch.archived.map(|on| if on { "archived" } else { "unarchived" }.to_owned()));
    facts
        .extend(patch.metadata.keys().map(|name| format!("metadata {}", sanitize::one_line(name))));
    if facts.is_empty() { "settings changed".to_owned() } else { facts.join(", ") }
}

#[cfg(test)]
mod tests;
