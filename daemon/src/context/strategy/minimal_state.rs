//! The strategy `minimal-state`: the state of the work and the newest turns, for when nothing larger fits.
//!
//! The state is extracted from the records: project, status, decisions, blockers. Task, files and pins stand beside it.

use ollm_protocol::content::{RecordBody, Role};

use super::head::HeadBuilder;
use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::numbers::*;
use crate::context::path::{ContentsError, split_units};
use crate::facts::one_line;

/// Keeps the state and the newest turns.
pub(in crate::context) static MINIMAL_STATE: Strategy = Strategy {
    name: "minimal-state",
    about: "task, files, status and decisions by the records, and the newest turns",
    min_tokens: 400,
    keeps_all: false,
    has_checkpoints: false,
    shrinks: true,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, target: u64) -> PlannedHead {
    let start = input.summarized_until().unwrap_or(0);
    let units = split_units(&input.build.path[..input.newest_start()]);
    let mut head = HeadBuilder::new(input, target);
    let reserved = head.reserve(start)?;
    let state_tokens = (target * STATE_PERCENT / 100).min(MAX_STATE_TOKENS);
    let state_tokens = head.keep_conversation(&units, &reserved, state_tokens)?;
    // The state is made last, because it does not repeat the records that are kept.
    let state = state(&mut head, state_tokens)?;
    head.add_block("state", &state);
    Ok(Some(head.into_items()))
}

/// Returns the state in words: its lines in order of weight, as many as fit into `tokens`.
fn state(head: &mut HeadBuilder<'_, '_, '_>, tokens: u64) -> Result<String, ContentsError> {
    let (status, blockers) = status_and_blockers(head)?;
    let input = &*head.input;
    let mut lines = Vec::new();
    lines.extend(input.build.project_path.map(|project| format!("Project: {project}")));
    let summarized =
        input.build.checkpoints.iter().flat_map(|checkpoint| &checkpoint.key_decisions);
    let decisions = input.build.decisions.iter().chain(summarized);
    lines.extend(decisions.take(MAX_DECISIONS).map(|decision| format!("Decision: {decision}")));
    lines.extend(status.map(|status| format!("Last status: {status}")));
    lines.extend(blockers.into_iter().map(|blocker| format!("Blocker: {blocker}")));
    let mut text = String::new();
    for line in lines {
        let longer = if text.is_empty() { line } else { format!("{text}\n{line}") };
        if u64::from(input.build.counter.count_text(&longer)) <= tokens {
            text = longer;
        }
    }
    Ok(text)
}

/// Returns the last answer, and the failures of tools that no later call of the tool repaired, newest first. Skips
/// records that are kept.
fn status_and_blockers(
    head: &mut HeadBuilder<'_, '_, '_>,
) -> Result<(Option<String>, Vec<String>), ContentsError> {
    let path = head.input.build.path;
    let first = path.len().saturating_sub(RECENT_RECORDS);
    head.input.bodies.load(&path[first..])?;
    let mut blockers: Vec<(&str, String)> = Vec::new();
    let mut status = None;
    for at in (first..path.len()).filter(|at| !head.has(*at)) {
        match head.input.bodies.get(path[at].seq) {
            Some(RecordBody::Message(message)) if message.role == Role::Assistant => {
                let text = short_line(&message.sent_text(), STATUS_CHARS);
                status = Some(text).filter(|text| !text.is_empty()).or(status);
            }
            Some(RecordBody::ToolCall(call)) => {
                blockers.retain(|(name, _)| *name != call.name);
                let result = &call.result;
                let failed = result.success == Some(false)
                    || result.error.is_some()
                    || result.exit_code.is_some_and(|code| code != 0);
                if failed {
                    let text = result.error.as_deref().unwrap_or(&result.llm_content);
                    let text = short_line(text, BLOCKER_CHARS);
                    blockers.push((&call.name, format!("{} failed: {text}", call.name)));
                }
            }
            _ => {}
        }
    }
    let newest = blockers.into_iter().rev().take(MAX_BLOCKERS).map(|(_, line)| line);
    Ok((status, newest.collect()))
}

/// Returns a text on one line, cut at the end to a number of characters.
fn short_line(text: &str, chars: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
