//! The records of a session as text to read.

use std::fmt::Write as _;

use ollm_protocol::content::{
    Custom, GoalStep, Message, MetaPatch, Part, Record, RecordBody, Role, ToolCall,
};
use ollm_protocol::{Seq, sanitize};
use serde_json::Value;

use super::markdown::{self, Layout};
use super::units::grouped;
use super::wrap::wrap;
use super::{RenderOptions, Style, wire_name};

/// Lines of a tool's output, or of thinking, that are shown without `--full`.
const SHOWN_LINES: usize = 12;
/// Characters of a tool's output, or of thinking, that are shown without `--full`.
const SHOWN_CHARS: usize = 1200;
/// Characters of a call's arguments that are shown.
const SHOWN_ARG_CHARS: usize = 200;
/// Longer arguments are shown after shorter ones.
const LONG_ARG_CHARS: usize = 80;
/// The arguments that identify a call; they are shown first, however long they are.
const KEY_ARGS: [&str; 8] =
    ["path", "file_path", "filePath", "command", "cmd", "pattern", "query", "url"];

/// The finish reasons of incomplete answers.
const EARLY_FINISH_REASONS: [&str; 4] = ["canceled", "interrupted", "length", "timeout"];

/// Renders one record after another.
pub(crate) struct Transcript<'a> {
    options: &'a RenderOptions,
    /// The id of the tool call with which the previous record ended.
    previous_call: Option<String>,
}

impl<'a> Transcript<'a> {
    pub(crate) fn new(options: &'a RenderOptions) -> Self {
        Self { options, previous_call: None }
    }

    /// Returns the text of the next record; empty for a record that readers do not need.
    pub(crate) fn record(&mut self, record: Record) -> String {
        let at = self.options.minute(record.at);
        let label = RecordLabel { seq: record.seq, active: record.active, at };
        let body = record.into_body();
        if matches!(body, Some(RecordBody::Usage(_))) && !self.options.full {
            return String::new();
        }
        if matches!(&body, Some(RecordBody::Custom(custom)) if custom.name == Custom::PARTIAL_ANSWER)
        {
            // The whole answer follows as a message.
            return String::new();
        }
        let previous_call = self.previous_call.take();
        match body {
            Some(RecordBody::Message(message)) => {
                self.previous_call = last_call(&message);
                render_message(&label, &message, self.options)
            }
            Some(RecordBody::ToolCall(call)) => {
                let is_repeated = previous_call.as_ref() == Some(&call.id);
                render_tool_call(&label, &call, is_repeated, self.options)
            }
            Some(other) => render_other(&label, &other, self.options),
            None => label.note("a record without its body"),
        }
    }
}

fn last_call(message: &Message) -> Option<String> {
    match message.parts.last() {
        Some(Part::ToolCall { id, .. }) => Some(id.clone()),
        _ => None,
    }
}

/// The number and time of a record.
struct RecordLabel {
    seq: Seq,
    active: bool,
    at: String,
}

impl RecordLabel {
    fn heading(&self, style: Style, text: &str) -> String {
        format!("\n{} {}\n", style.paint(text), Style::Faint.paint(&self.to_string()))
    }

    fn note(&self, text: &str) -> String {
        format!("\n{}\n", Style::Faint.paint(&format!("- {text} {self}")))
    }
}

impl std::fmt::Display for RecordLabel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let branch = if self.active { "" } else { " (inactive branch)" };
        write!(out, "#{} {}{branch}", self.seq, self.at)
    }
}

fn render_message(label: &RecordLabel, message: &Message, options: &RenderOptions) -> String {
    let mut author = message.role.as_str().to_owned();
    for detail in [&message.tool_name, &message.model].into_iter().flatten() {
        let _infallible = write!(author, " {}", sanitize::one_line(detail));
    }
    // A message may be older than its record, which an import wrote.
    let label = RecordLabel { at: options.minute(message.timestamp), ..*label };
    let mut text = label.heading(Style::of_role(message.role), &author);
    for part in &message.parts {
        text.push_str(&match part {
            Part::Text { text } if message.role == Role::Tool => excerpt(text, options, label.seq),
            Part::Text { text } => prose(text, message.role, options),
            Part::Thinking { text } => {
                let thinking = wrapped_excerpt(text, options, label.seq);
                Style::Faint.paint(&format!("(thinking)\n{}", thinking.trim_end())) + "\n"
            }
            Part::ToolCall { name, args, .. } => call_line(name, args),
            Part::Image { mime_type, data } => {
                let bytes = data.len() as u64 / 4 * 3;
                format!("[{}, {} bytes]\n", sanitize::one_line(mime_type), grouped(bytes))
            }
        });
    }
    if let Some(reason) = early_finish(message) {
        text.push_str(&Style::Bad.paint(&format!("({})", sanitize::one_line(reason))));
        text.push('\n');
    }
    text
}

/// Returns why an answer is empty or incomplete.
fn early_finish(message: &Message) -> Option<&str> {
    let reason = message.finish_reason.as_deref();
    let is_empty = message.parts.iter().all(|part| match part {
        Part::Text { text } => text.trim().is_empty(),
        Part::Thinking { .. } => true,
        Part::ToolCall { .. } | Part::Image { .. } => false,
    });
    if message.role != Role::Assistant {
        None
    } else if is_empty {
        Some(reason.unwrap_or("no answer"))
    } else {
        reason.filter(|reason| EARLY_FINISH_REASONS.contains(reason))
    }
}

/// Renders a tool call with its output; the call itself is left out if the message above ends with it.
fn render_tool_call(
    label: &RecordLabel,
    call: &ToolCall,
    is_repeated: bool,
    options: &RenderOptions,
) -> String {
    let result = &call.result;
    let mut heading = format!("tool {}", sanitize::one_line(&call.name));
    if result.success == Some(false) || result.error.is_some() {
        heading.push_str(", failed");
    }
    if let Some(code) = result.exit_code {
        let _infallible = write!(heading, ", exit code {code}");
    }
    if let Some(ms) = call.duration_ms {
        let _infallible = write!(heading, ", {} ms", grouped(ms));
    }
    let mut text = label.heading(Style::Tool, &heading);
    if !is_repeated {
        text.push_str(&call_line(&call.name, &call.args));
    }
    if let Some(error) = &result.error {
        text.push_str(&excerpt(error, options, label.seq));
    }
    let output = result.display_content.as_deref().unwrap_or(&result.llm_content);
    text.push_str(&excerpt(output, options, label.seq));
    text
}

/// Renders a record that is not part of the conversation: a summary as a paragraph, anything else on one line.
fn render_other(label: &RecordLabel, body: &RecordBody, options: &RenderOptions) -> String {
    match body {
        RecordBody::Compaction(compaction) => {
            let tokens = grouped(compaction.tokens_before);
            let own = Some(&compaction.summary).filter(|summary| !summary.is_empty());
            let newest = compaction.checkpoints.last().map(|checkpoint| &checkpoint.summary);
            let summary = own.or(newest).map_or("", String::as_str);
            label.heading(Style::Faint, &format!("compaction, {tokens} tokens before"))
                + &wrapped_excerpt(summary, options, label.seq)
        }
        RecordBody::BranchSummary(branch) => {
            label.heading(Style::Faint, "summary of an abandoned branch")
                + &wrapped_excerpt(&branch.summary, options, label.seq)
        }
        other => label.note(&in_one_line(other)),
    }
}

fn call_line(name: &str, args: &Value) -> String {
    let args = sanitize::one_line(&ordered_args(args));
    let shown: String = args.chars().take(SHOWN_ARG_CHARS).collect();
    let more = if shown.len() < args.len() { "..." } else { "" };
    format!("-> {} {shown}{more}\n", sanitize::one_line(name))
}

/// Returns arguments as JSON, the most informative ones first: a path or a command comes before a text to write.
fn ordered_args(args: &Value) -> String {
    let Value::Object(fields) = args else { return args.to_string() };
    let mut fields: Vec<(u8, String)> = fields
        .iter()
        .map(|(name, value)| {
            let text = format!("{}:{value}", Value::from(name.as_str()));
            let rank = match value {
                Value::String(_) if KEY_ARGS.contains(&name.as_str()) => 0,
                _ if text.chars().count() > LONG_ARG_CHARS => 3,
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

/// Returns an answer as a chat shows it, and the words of a person as they were typed; for another program, lines unchanged.
fn prose(text: &str, role: Role, options: &RenderOptions) -> String {
    match options.prose_columns {
        None => sanitized_lines(text),
        Some(width) if role == Role::Assistant => {
            markdown::render(text, Layout { width, is_styled: options.is_styled })
        }
        Some(width) => markdown::render_typed(text, width),
    }
}

fn wrapped_excerpt(text: &str, options: &RenderOptions, seq: Seq) -> String {
    wrap(&excerpt(text, options, seq), options.prose_columns, 0)
}

fn sanitized_lines(text: &str) -> String {
    let mut text = sanitize::text(text);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Returns the beginning of a text, and the flags that print the rest.
fn excerpt(text: &str, options: &RenderOptions, seq: Seq) -> String {
    let text = sanitized_lines(text);
    if options.full {
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

fn in_one_line(body: &RecordBody) -> String {
    let clean = sanitize::one_line;
    match body {
        RecordBody::Session(_) => "session created".to_owned(),
        RecordBody::ModeChange(change) => format!("mode {}", clean(&change.to)),
        RecordBody::Meta(patch) => changed_settings(patch),
        RecordBody::Epoch(epoch) => {
            format!("context planned by {} ({})", clean(&epoch.strategy), clean(&epoch.cause))
        }
        RecordBody::Usage(usage) => format!(
            "model counted {} tokens in, {} out",
            grouped(usage.prompt_tokens),
            grouped(usage.answer_tokens)
        ),
        RecordBody::Custom(custom) if custom.name == Custom::TOOL_START => {
            format!("{} starts", clean(custom.data["name"].as_str().unwrap_or("tool")))
        }
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
            let action = if change.content.is_some() { "set" } else { "removed" };
            format!("context entry {} {action}", clean(&change.key))
        }
        RecordBody::Pin(pin) => {
            let action = if pin.pinned { "pinned" } else { "unpinned" };
            format!("{action} #{}", pin.target)
        }
        RecordBody::PutBack(files) => {
            let left = if files.left.is_empty() {
                String::new()
            } else {
                format!(", left {} as they were", files.left.len())
            };
            format!("put back {} files ({}){left}", files.files.len(), clean(&files.cause))
        }
        RecordBody::Snapshot(snapshot) => format!("snapshot ({})", clean(&snapshot.reason)),
        other => wire_name(other.kind()),
    }
}

fn changed_settings(patch: &MetaPatch) -> String {
    let texts = [
        ("title", &patch.title),
        ("model", &patch.model),
        ("provider", &patch.provider),
        ("project", &patch.project_path),
        ("description", &patch.description),
    ];
    let mut changes: Vec<String> = texts
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name} {}", sanitize::one_line(value.as_ref()?))))
        .collect();
    // Only the name of the setting: the prompt may be pages long.
    changes.extend(patch.system_prompt.as_ref().map(|_| "system prompt".to_owned()));
    changes.extend(patch.context_size.map(|size| format!("context size {}", grouped(size.into()))));
    changes.extend(patch.keep_alive_seconds.map(|time| format!("keep alive {time} s")));
    changes.extend(patch.allowed_servers.as_ref().map(|servers| match servers.is_empty() {
        true => "all model servers are allowed".to_owned(),
        false => format!("allowed model servers {}", sanitize::one_line(&servers.join(", "))),
    }));
    changes.extend(patch.options.keys().map(|name| format!("option {}", sanitize::one_line(name))));
    changes.extend(patch.pinned.map(|on| if on { "pinned" } else { "unpinned" }.to_owned()));
    changes.extend(patch.archived.map(|on| if on { "archived" } else { "unarchived" }.to_owned()));
    changes
        .extend(patch.metadata.keys().map(|name| format!("metadata {}", sanitize::one_line(name))));
    if changes.is_empty() { "settings changed".to_owned() } else { changes.join(", ") }
}

#[cfg(test)]
mod tests;
