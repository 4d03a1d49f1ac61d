//! What the session is about and how it stands, and the newest turns: for when nothing else fits.
//!
//! The state is extracted from the records: project, status, decisions, blockers; task, files and pins stand beside it.

use ollm_protocol::content::{HeadItem, RecordBody, Role};

use super::checkpointed::{RECENT_PERCENT, summarized};
use super::keep::Keeper;
use super::opening::Reserve;
use super::{Ground, Strategy};
use crate::context::contents::ContentsError;
use crate::context::units::{PathItem, split};

/// Percent of the target for the state.
const STATE_PERCENT: u64 = 40;
/// Most tokens of the state, however large the window: it is lines, and the turns say more.
const STATE_TOKENS: u64 = 400;
/// Records at the end that are looked at for status and blockers.
const RECENT_RECORDS: usize = 64;
/// Characters of the last answer, and of a blocker.
const STATUS_CHARS: usize = 300;
const BLOCKER_CHARS: usize = 160;
/// Most decisions and blockers.
const MAX_DECISIONS: usize = 12;
const MAX_BLOCKERS: usize = 3;

/// Keeps the state and the newest turns.
pub(super) struct MinimalState;

impl Strategy for MinimalState {
    fn name(&self) -> &'static str {
        "minimal-state"
    }

    fn about(&self) -> &'static str {
        "task, files, status and decisions by the records, and the newest turns"
    }

    fn min_tokens(&self) -> u64 {
        400
    }

    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        let path = ground.path;
        if !path.iter().any(PathItem::is_user_message) {
            return Ok(None);
        }
        let mut keeper = Keeper::new(ground, target);
        let task = path.iter().position(PathItem::is_user_message);
        let newest = path.iter().rposition(PathItem::is_user_message);
        let is_last = |at: usize| path[at + 1..].iter().all(|item| !item.enters());
        let start = summarized(keeper.ground).unwrap_or(0);
        let reserve = if newest == task { Reserve::default() } else { keeper.reserve(start)? };
        if let Some(at) = newest.filter(|at| is_last(*at)) {
            let share = if newest == task { keeper.left } else { keeper.left * 3 / 4 };
            if !keeper.keep_user(at, share)? {
                return Ok(None);
            }
        }
        let for_state = (target * STATE_PERCENT / 100).min(STATE_TOKENS);
        let room = keeper.left.saturating_sub(for_state) * RECENT_PERCENT / 100;
        let units = split(path);
        keeper.keep_newest(&units, room)?;
        let (first, share) = (keeper.first_turn(), keeper.left.min(target / 2));
        keeper.keep_begun(first, share)?;
        keeper.keep_opening(&reserve)?;
        let share = keeper.left.min(for_state);
        keeper.left -= share;
        keeper.keep_earlier(keeper.first_turn(), &reserve)?;
        keeper.keep_rest(&units)?;
        // Last, because it does not repeat what is kept.
        keeper.left += share;
        let state = state(&mut keeper, share)?;
        keeper.block("state", state);
        Ok(Some(keeper.into_head(false)))
    }
}

/// The state in words, within `tokens`: its lines in order of weight, as many as fit. What is kept is not repeated.
fn state(keeper: &mut Keeper<'_, '_, '_>, tokens: u64) -> Result<String, ContentsError> {
    let (status, blockers) = recent(keeper)?;
    let ground = &mut *keeper.ground;
    let mut lines = Vec::new();
    lines.extend(ground.project.map(|project| format!("Project: {project}")));
    let known = ground.checkpoints.iter().flat_map(|checkpoint| &checkpoint.key_decisions);
    let decisions = ground.decisions.iter().chain(known);
    lines.extend(decisions.take(MAX_DECISIONS).map(|decision| format!("Decision: {decision}")));
    lines.extend(status.map(|status| format!("Last status: {status}")));
    lines.extend(blockers.into_iter().map(|blocker| format!("Blocker: {blocker}")));
    let mut text = String::new();
    for line in lines {
        let longer = if text.is_empty() { line } else { format!("{text}\n{line}") };
        if u64::from(ground.counter.count_text(&longer)) <= tokens {
            text = longer;
        }
    }
    Ok(text)
}

/// What was answered last, and the calls of the newest records that failed and were not followed by a good one.
fn recent(keeper: &mut Keeper<'_, '_, '_>) -> Result<(Option<String>, Vec<String>), ContentsError> {
    let path = keeper.ground.path;
    let first = path.len().saturating_sub(RECENT_RECORDS);
    keeper.ground.bodies.load(&path[first..])?;
    let mut blockers: Vec<(String, String)> = Vec::new();
    let mut status = None;
    for at in (first..path.len()).filter(|at| !keeper.has(*at)) {
        match keeper.ground.bodies.get(path[at].seq) {
            Some(RecordBody::Message(message)) if message.role == Role::Assistant => {
                let text = line_of(&message.plain_text(), STATUS_CHARS);
                status = Some(text).filter(|text| !text.is_empty()).or(status);
            }
            Some(RecordBody::ToolCall(call)) => {
                blockers.retain(|(name, _)| *name != call.name);
                let failed = call.result.success == Some(false)
                    || call.result.error.is_some()
                    || call.result.exit_code.is_some_and(|code| code != 0);
                if failed {
                    let text = call.result.error.as_deref().unwrap_or(&call.result.llm_content);
                    let told = format!("{} failed: {}", call.name, line_of(text, BLOCKER_CHARS));
                    blockers.push((call.name.clone(), told));
                }
            }
            _ => {}
        }
    }
    let newest = blockers.into_iter().rev().take(MAX_BLOCKERS).map(|(_, told)| told);
    Ok((status, newest.collect()))
}

/// A text on one line, its beginning where it is longer.
fn line_of(text: &str, chars: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
