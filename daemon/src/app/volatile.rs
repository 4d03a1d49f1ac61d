//! What changes beside the conversation: what the system message ends with, and what a model is told of it later.
//!
//! **Invariant**: the system message of an epoch stays as it is. An entry that is set or changed, and a goal that a
//! client changes, are told once, as a `delta` behind the conversation.

use ollm_protocol::content::{Delta, Epoch, RecordBody, RecordKind};
use ollm_protocol::{Seq, SessionId};

use super::entries::{ENTRIES_PERCENT, entries_block, rendered};
use super::facts::{Facts, goal_changes};
use super::prepared::Prepared;
use super::{AppError, Core};
use crate::config::Config;
use crate::context::{PathItem, digest, prompt_limit};
use crate::goal::block::{MARKER_INSTRUCTION, goal_block, goal_delta};
use crate::tokens::Counter;

/// Percent of the prompt limit for the goal.
const GOAL_PERCENT: u64 = 15;
/// The topic of a goal's changes, and what the topic of an entry begins with.
const GOAL_TOPIC: &str = "goal";
const ENTRY_TOPIC: &str = "entry:";

/// What the system message ends with.
pub(super) struct Additions {
    /// The text.
    pub(super) text: String,
    /// The entries in it: key and digest.
    pub(super) entries: Vec<(String, String)>,
}

/// What the system message would end with now, each part within its share.
pub(super) fn additions(
    facts: &Facts,
    counter: &Counter,
    config: &Config,
    context_size: u32,
) -> Additions {
    let count = |text: &str| u64::from(counter.count_text(text));
    let limit = prompt_limit(context_size, config.context.answer_reserve);
    let entries = entries_block(&facts.entries, &count, limit * ENTRIES_PERCENT / 100);
    let goal = goal_block(&facts.goal, &count, limit * GOAL_PERCENT / 100);
    let mut texts: Vec<String> = entries.into_iter().chain(goal).map(|block| block.text).collect();
    if config.goals.markers {
        texts.push(MARKER_INSTRUCTION.to_owned());
    }
    let marks = facts.entries.iter().map(|entry| (entry.key.clone(), digest(&rendered(entry))));
    Additions { text: texts.join("\n\n"), entries: marks.collect() }
}

/// What was told since an epoch was opened, with what it was opened with.
#[derive(Default)]
pub(super) struct Told {
    /// Entries: key and digest.
    pub(super) entries: Vec<(String, String)>,
    /// The record up to which changes of the goal were told.
    goal_until: Option<Seq>,
}

/// Reads what was told. Blocks on the disk.
pub(super) fn told(
    core: &Core,
    id: SessionId,
    path: &[PathItem],
    epoch: Option<&(Seq, Epoch)>,
) -> Result<Told, AppError> {
    let Some((seq, epoch)) = epoch else { return Ok(Told::default()) };
    let since = &path[path.partition_point(|item| item.seq <= *seq)..];
    let is_delta = |item: &&PathItem| item.kind == RecordKind::Delta;
    let deltas: Vec<Seq> = since.iter().filter(is_delta).map(|item| item.seq).collect();
    let entries = epoch.basis.as_ref().map(|basis| basis.entries.clone()).unwrap_or_default();
    let mut told = Told { entries, goal_until: Some(*seq) };
    for (at, body) in deltas.iter().zip(core.sessions.bodies(id, &deltas)?) {
        let Some(RecordBody::Delta(delta)) = body else { continue };
        if delta.topic == GOAL_TOPIC {
            told.goal_until = Some(*at);
        } else if let Some(key) = delta.topic.strip_prefix(ENTRY_TOPIC) {
            told.entries.retain(|(other, _)| other != key);
            told.entries.push((key.to_owned(), digest(&delta.text)));
        }
    }
    Ok(told)
}

/// What a model has still to be told. Blocks on the disk.
///
/// Nothing where no epoch was opened yet: its system message will say it all.
pub(super) fn untold(core: &Core, prepared: &Prepared) -> Result<Vec<Delta>, AppError> {
    let has_basis = prepared.epoch.as_ref().is_some_and(|(_, epoch)| epoch.basis.is_some());
    if !has_basis {
        return Ok(Vec::new());
    }
    let told = &prepared.told.entries;
    let mut deltas = Vec::new();
    for (entry, mark) in prepared.facts.entries.iter().zip(&prepared.additions.entries) {
        if !told.contains(mark) {
            let topic = format!("{ENTRY_TOPIC}{}", entry.key);
            deltas.push(Delta { topic, text: rendered(entry) });
        }
    }
    let changes = goal_changes(core, prepared.id, prepared.places(), prepared.told.goal_until)?;
    let text = goal_delta(&prepared.facts.goal, &changes);
    if !text.is_empty() {
        deltas.push(Delta { topic: GOAL_TOPIC.to_owned(), text });
    }
    Ok(deltas)
}
