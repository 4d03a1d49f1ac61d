//! Records as single lines for people: in trees and in lists of operations. Pure.

use ollm_protocol::content::{Custom, GoalStep, Part, RecordBody};
use ollm_protocol::sanitize;

/// The most characters of a line.
const MAX_CHARS: usize = 100;
/// The bytes of a text that its line is made from: more cannot be shown, even if most of them are escape sequences.
const MAX_BYTES: usize = 4096;

/// Returns the beginning of a record's content.
pub(super) fn line_of(body: &RecordBody) -> String {
    match body {
        RecordBody::Message(message) => {
            let text = message.plain_text();
            if !text.trim().is_empty() {
                return shortened(&text);
            }
            let parts = message.parts.iter().filter_map(|part| match part {
                Part::ToolCall { name, .. } => Some(format!("calls {name}")),
                Part::Image { mime_type, .. } => Some(format!("image {mime_type}")),
                Part::Thinking { .. } => Some("only thinking".to_owned()),
                Part::Text { .. } => None,
            });
            shortened(&parts.collect::<Vec<_>>().join(", "))
        }
        RecordBody::ToolCall(call) => shortened(&format!("{} {}", call.name, call.args)),
        RecordBody::Compaction(compaction) => {
            let after = compaction.tokens_after.map(|after| format!(" to {after}"));
            let (before, after) = (compaction.tokens_before, after.unwrap_or_default());
            format!("compacted {before}{after} tokens")
        }
        RecordBody::Epoch(epoch) => format!("new context head: {}", epoch.cause),
        RecordBody::Delta(delta) => shortened(&format!("sent {}: {}", delta.topic, delta.text)),
        RecordBody::Goal(change) => {
            let actions: Vec<_> = change.steps.iter().map(goal_step).collect();
            shortened(&actions.join(", "))
        }
        RecordBody::ContextEntry(change) => shortened(&match &change.content {
            Some(content) => format!("set {}: {content}", change.key),
            None => format!("removed {}", change.key),
        }),
        RecordBody::Pin(pin) if pin.pinned => format!("pinned #{}", pin.target),
        RecordBody::Pin(pin) => format!("unpinned #{}", pin.target),
        RecordBody::ModeChange(change) => match &change.from {
            Some(from) => shortened(&format!("mode {} instead of {from}", change.to)),
            None => shortened(&format!("mode {}", change.to)),
        },
        RecordBody::BranchSummary(summary) => shortened(&summary.summary),
        RecordBody::Custom(custom) if custom.name == Custom::TOOL_START => {
            let text = |name: &str| custom.data[name].as_str().unwrap_or_default();
            shortened(&format!("{} {}", text("name"), custom.data["args"]))
        }
        RecordBody::Custom(custom) => {
            let text = custom.context_text.as_deref().unwrap_or_default();
            shortened(&format!("{} {text}", custom.name))
        }
        RecordBody::Usage(usage) => {
            format!("{} prompt and {} answer tokens", usage.prompt_tokens, usage.answer_tokens)
        }
        RecordBody::Leaf(moved) => match moved.to {
            Some(to) => shortened(&format!("{} to #{to}", moved.cause)),
            None => shortened(&format!("{} to the beginning", moved.cause)),
        },
        RecordBody::Session(_)
        | RecordBody::Meta(_)
        | RecordBody::Label(_)
        | RecordBody::Snapshot(_)
        | RecordBody::Loop(_)
        | RecordBody::PutBack(_)
        | RecordBody::Rest(_)
        | RecordBody::Close(_) => String::new(),
    }
}

fn goal_step(step: &GoalStep) -> String {
    match step {
        GoalStep::Create { description, .. } => format!("new goal: {description}"),
        GoalStep::Update { .. } => "goal".to_owned(),
        GoalStep::AddCheckpoint { description, .. } => format!("checkpoint: {description}"),
        GoalStep::UpdateCheckpoint { .. } => "checkpoint".to_owned(),
        GoalStep::AddDecision { description, .. } => format!("decision: {description}"),
        GoalStep::LockDecision { .. } => "decision locked".to_owned(),
        GoalStep::AddArtifact { path, .. } => format!("artifact: {path}"),
        GoalStep::SetNextSteps { next_steps, .. } => {
            format!("next steps: {}", next_steps.join("; "))
        }
        GoalStep::Mark { .. } => "marker".to_owned(),
    }
}

/// Returns the beginning of a text on one line, without anything that a terminal would obey.
pub(super) fn shortened(text: &str) -> String {
    let end = (0..=MAX_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    let mut line = sanitize::one_line(&text[..end.unwrap_or_default()]);
    if let Some((cut, _)) = line.char_indices().nth(MAX_CHARS) {
        line.truncate(cut);
        line.push('\u{2026}');
    }
    line
}
