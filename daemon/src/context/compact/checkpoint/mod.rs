//! The checkpoints of a session: how large each may be, how many a session keeps, and the checkpoints in force after a
//! compaction: a new one or an updated one, the older ones aged, the oldest merged. Ageing and merging need no model.
//!
//! **Invariants**: ageing and merging never raise tokens; ageing keeps the id and the sources of a checkpoint, merging
//! keeps the ids of all its sources; there is one copy of each checkpoint.

use ollm_protocol::content::Checkpoint;
use ollm_protocol::{CheckpointId, Timestamp};

use super::numbers::*;
use super::range::CutPlan;
use super::summary::{Section, Summary, drop_replaced, fit};
use crate::context::ledger::Ledger;
use crate::context::numbers::*;
use crate::tokens::Counter;

/// The lowest level that ageing reaches.
const ANCIENT_LEVEL: u8 = 1;
/// The level of a checkpoint that was merged from others.
const MERGED_LEVEL: u8 = 0;

/// A class of windows: the name of compaction there, and the number of checkpoints that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tier {
    /// The number by window size, from 1.
    pub number: u8,
    pub name: &'static str,
    /// Maximum number of checkpoints.
    pub limit: usize,
    /// The largest window of the tier.
    up_to: u32,
}

const TIERS: [Tier; 5] = [
    Tier { number: 1, name: "rollover", limit: 1, up_to: 4096 },
    Tier { number: 2, name: "smart", limit: 1, up_to: 8192 },
    Tier { number: 3, name: "progressive", limit: 5, up_to: 16_384 },
    Tier { number: 4, name: "structured", limit: 10, up_to: 32_768 },
    Tier { number: 5, name: "ultra", limit: 15, up_to: u32::MAX },
];

/// Returns the tier of a window.
pub(crate) fn tier(context_size: u32) -> Tier {
    TIERS.into_iter().find(|tier| context_size <= tier.up_to).unwrap_or(TIERS[4])
}

/// The bounds on the checkpoints of a session, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointBounds {
    /// Tokens that a prompt may have.
    pub prompt_limit: u64,
    /// Tokens that one summary may have.
    pub summary_max: u64,
}

impl CheckpointBounds {
    /// Returns the tokens that a checkpoint of a level may have.
    pub(crate) fn target(&self, level: u8) -> u64 {
        let percent = LEVEL_PERCENTS[usize::from(level.min(RECENT_LEVEL))];
        (self.prompt_limit * percent / 100)
            .max(MIN_SUMMARY_TOKENS)
            .min(self.summary_max.max(MIN_SUMMARY_TOKENS))
    }

    /// Returns the tokens that all checkpoints together may have.
    const fn total(&self) -> u64 {
        self.prompt_limit * CHECKPOINTS_PERCENT / 100
    }
}

/// A new summary and the range that it stands for.
pub(crate) struct NewSummary<'a> {
    pub cut: &'a CutPlan,
    /// A summary that updates the last checkpoint stands for the range of that checkpoint too.
    pub summary: &'a Summary,
    /// Whether the summary was made without a model.
    pub provisional: bool,
    /// The files of the range.
    pub files: &'a Ledger,
    /// A model's summary in the place of the two oldest checkpoints, if they are to be merged.
    pub merged: Option<&'a Summary>,
}

/// The environment in which checkpoints are made.
pub(crate) struct RenewOptions<'a> {
    /// Creates the id of a checkpoint.
    pub next_id: &'a dyn Fn() -> CheckpointId,
    /// The current time.
    pub at: Timestamp,
    pub counter: &'a Counter,
    pub bounds: CheckpointBounds,
    /// Maximum number of checkpoints.
    pub limit: usize,
}

/// The checkpoints after a compaction.
#[derive(Clone, Debug)]
pub(crate) struct RenewedCheckpoints {
    /// Every checkpoint in force, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// The checkpoint that stands for the range.
    pub created: CheckpointId,
    /// The other checkpoints that became older or smaller.
    pub aged: Vec<CheckpointId>,
}

/// Returns the checkpoint that a model updates instead of writing a second one: only one fits.
pub(crate) fn checkpoint_to_update(
    checkpoints: &[Checkpoint],
    limit: usize,
) -> Option<&Checkpoint> {
    lasting(checkpoints).last().filter(|_| limit == 1)
}

/// Returns the two oldest checkpoints if another one exceeds the limit.
pub(crate) fn checkpoints_to_merge(
    checkpoints: &[Checkpoint],
    limit: usize,
) -> Option<(&Checkpoint, &Checkpoint)> {
    match lasting(checkpoints) {
        all @ [first, second, ..] if limit > 1 && all.len() >= limit => Some((first, second)),
        _ => None,
    }
}

/// Returns the summary of a checkpoint as a prompt shows it: without the goal and the next steps if a newer one of `all`
/// has them, because the steps that were next at that time are done or were given up.
pub(in crate::context) fn shown_summary(checkpoint: &Checkpoint, all: &[Checkpoint]) -> String {
    let newer = all.iter().skip_while(|one| one.id != checkpoint.id).skip(1);
    let newer: Vec<Summary> = newer.map(|one| Summary::parse(&one.summary)).collect();
    let mut summary = Summary::parse(&checkpoint.summary);
    for section in [Section::Goal, Section::NextSteps] {
        if newer.iter().any(|one| !one.lines(section).is_empty()) {
            summary.lines_mut(section).clear();
        }
    }
    // A text of another program has no sections.
    if newer.is_empty() || summary.is_empty() {
        checkpoint.summary.clone()
    } else {
        summary.render()
    }
}

/// Returns several summaries as one, each line once; the goal and the next steps come from the newest summary that has
/// any. Returns `None` for a single checkpoint, and if a checkpoint is a text of another program without sections.
pub(in crate::context) fn merged_summaries(checkpoints: &[Checkpoint]) -> Option<Summary> {
    let summaries = checkpoints.iter().map(|one| Summary::parse(&shown_summary(one, checkpoints)));
    let summaries: Vec<Summary> = summaries.collect();
    if summaries.len() < 2 || summaries.iter().any(Summary::is_empty) {
        return None;
    }
    let mut merged = Summary::default();
    for summary in &summaries {
        merged.append(summary);
    }
    Some(merged)
}

/// Returns the checkpoints after a compaction.
///
/// A provisional summary never changes the checkpoints before it, and may exceed the limit by one until it is replaced.
pub(crate) fn renew(
    before: &[Checkpoint],
    new: &NewSummary<'_>,
    options: &RenewOptions<'_>,
) -> RenewedCheckpoints {
    let mut checkpoints = lasting(before).to_vec();
    let mut aged = Vec::new();
    let last = checkpoint_to_update(before, options.limit).filter(|_| !new.provisional);
    let created = if let Some(last) = last {
        checkpoints.pop();
        updated(last, new, options)
    } else if new.provisional {
        let mut created = created(new, options);
        // A model's summary keeps its room.
        let others: u64 = checkpoints.iter().map(|one| one.current_tokens).sum();
        let left = options.bounds.total().saturating_sub(others).max(MIN_SUMMARY_TOKENS);
        shrink(&mut created, left, options);
        created
    } else {
        aged = age(&mut checkpoints, options);
        created(new, options)
    };
    let created_id = created.id;
    checkpoints.push(created);
    if last.is_none() {
        merge_oldest(&mut checkpoints, new, options);
    }
    for id in squeeze(&mut checkpoints, options) {
        if id != created_id && !aged.contains(&id) {
            aged.push(id);
        }
    }
    aged.retain(|id| checkpoints.iter().any(|checkpoint| checkpoint.id == *id));
    RenewedCheckpoints { checkpoints, created: created_id, aged }
}

/// Returns the checkpoints that a compaction keeps: a checkpoint that was made without a model is made again.
fn lasting(checkpoints: &[Checkpoint]) -> &[Checkpoint] {
    let n_lasting = checkpoints.iter().take_while(|checkpoint| !checkpoint.provisional).count();
    &checkpoints[..n_lasting]
}

fn created(new: &NewSummary<'_>, options: &RenewOptions<'_>) -> Checkpoint {
    let mut checkpoint = Checkpoint {
        id: (options.next_id)(),
        level: RECENT_LEVEL,
        from: new.cut.from,
        to: new.cut.to,
        summary: String::new(),
        created_at: options.at,
        compressed_at: None,
        original_tokens: new.cut.tokens,
        current_tokens: 0,
        compression_count: 1,
        key_decisions: Vec::new(),
        files_modified: new.files.modified.clone(),
        files_read: new.files.read.clone(),
        next_steps: Vec::new(),
        sources: Vec::new(),
        provisional: new.provisional,
    };
    set_summary(&mut checkpoint, new.summary, options.counter);
    checkpoint
}

fn updated(last: &Checkpoint, new: &NewSummary<'_>, options: &RenewOptions<'_>) -> Checkpoint {
    let mut files = Ledger::of_checkpoint(last);
    files.join(new.files);
    let mut checkpoint = Checkpoint {
        level: RECENT_LEVEL,
        to: new.cut.to,
        compressed_at: Some(options.at),
        original_tokens: last.original_tokens + new.cut.tokens,
        compression_count: last.compression_count + 1,
        files_modified: files.modified,
        files_read: files.read,
        ..last.clone()
    };
    set_summary(&mut checkpoint, new.summary, options.counter);
    checkpoint
}

/// Makes every checkpoint a level older; returns the ids of those that changed.
fn age(checkpoints: &mut [Checkpoint], options: &RenewOptions<'_>) -> Vec<CheckpointId> {
    let mut aged = Vec::new();
    for checkpoint in checkpoints {
        let before = (checkpoint.level, checkpoint.current_tokens);
        if checkpoint.level > ANCIENT_LEVEL {
            checkpoint.level = checkpoint.level.min(RECENT_LEVEL) - 1;
        }
        let target = options.bounds.target(checkpoint.level);
        shrink(checkpoint, target, options);
        if before != (checkpoint.level, checkpoint.current_tokens) {
            aged.push(checkpoint.id);
        }
    }
    aged
}

/// Makes checkpoints smaller until they fit together, the oldest first; returns the ids of those that changed.
fn squeeze(checkpoints: &mut [Checkpoint], options: &RenewOptions<'_>) -> Vec<CheckpointId> {
    let mut squeezed = Vec::new();
    let sum = |all: &[Checkpoint]| all.iter().map(|one| one.current_tokens).sum::<u64>();
    for round in 1..=4 {
        for index in 0..checkpoints.len() {
            let over = sum(checkpoints).saturating_sub(options.bounds.total());
            if over == 0 {
                return squeezed;
            }
            let one = &mut checkpoints[index];
            // A round halves a checkpoint at most, so that the newest is only reached in need.
            let least = (one.current_tokens / 2).max(MIN_SUMMARY_TOKENS / round);
            let before = one.current_tokens;
            shrink(one, before.saturating_sub(over).max(least), options);
            if one.current_tokens < before && !squeezed.contains(&one.id) {
                squeezed.push(one.id);
            }
        }
    }
    squeezed
}

/// Merges the oldest checkpoints until there are no more than allowed.
fn merge_oldest(
    checkpoints: &mut Vec<Checkpoint>,
    new: &NewSummary<'_>,
    options: &RenewOptions<'_>,
) {
    let most = (options.limit + usize::from(new.provisional)).max(1);
    let mut by_model = new.merged;
    while checkpoints.len() > most {
        let (older, newer) = (&checkpoints[0], &checkpoints[1]);
        let by_lines = || joined(&Summary::parse(&older.summary), &Summary::parse(&newer.summary));
        let summary = by_model.take().cloned().unwrap_or_else(by_lines);
        let merged = merge(older, newer, &summary, options);
        checkpoints.splice(..2, [merged]);
    }
}

/// Returns one checkpoint in the place of two, with a summary that stands for both.
fn merge(
    older: &Checkpoint,
    newer: &Checkpoint,
    summary: &Summary,
    options: &RenewOptions<'_>,
) -> Checkpoint {
    let together = older.current_tokens + newer.current_tokens;
    let target = options.bounds.target(MERGED_LEVEL).min(together);
    let mut files = Ledger::of_checkpoint(older);
    files.join(&Ledger::of_checkpoint(newer));
    let ids = |one: &Checkpoint| [one.sources.as_slice(), &[one.id]].concat();
    let mut merged = Checkpoint {
        id: (options.next_id)(),
        level: MERGED_LEVEL,
        to: newer.to,
        compressed_at: Some(options.at),
        original_tokens: older.original_tokens + newer.original_tokens,
        compression_count: older.compression_count.max(newer.compression_count) + 1,
        files_modified: files.modified,
        files_read: files.read,
        sources: [ids(older), ids(newer)].concat(),
        provisional: older.provisional || newer.provisional,
        ..older.clone()
    };
    set_summary(&mut merged, &fit(summary, options.counter, target), options.counter);
    merged.key_decisions = joined_lists(&older.key_decisions, &newer.key_decisions);
    merged.next_steps.clone_from(&newer.next_steps);
    merged
}

/// Joins two summaries without a model: lines of both stand once, and the next steps of the newer one replace those of
/// the older.
fn joined(older: &Summary, newer: &Summary) -> Summary {
    let mut joined = older.clone();
    for section in Section::ALL {
        let lines = newer.lines(section);
        if section == Section::NextSteps && !lines.is_empty() {
            *joined.lines_mut(section) = lines.to_vec();
            continue;
        }
        for line in lines {
            if !joined.lines(section).contains(line) {
                joined.lines_mut(section).push(line.clone());
            }
        }
    }
    drop_replaced(joined.lines_mut(Section::Progress));
    joined
}

/// Trims a summary to a target. A text without sections comes from another program and stays as it is.
fn shrink(checkpoint: &mut Checkpoint, target: u64, options: &RenewOptions<'_>) {
    if checkpoint.current_tokens <= target {
        return;
    }
    let mut shorter = checkpoint.clone();
    let summary = fit(&Summary::parse(&checkpoint.summary), options.counter, target);
    set_summary(&mut shorter, &summary, options.counter);
    if !summary.is_empty() && shorter.current_tokens < checkpoint.current_tokens {
        shorter.compressed_at = Some(options.at);
        shorter.compression_count += 1;
        *checkpoint = shorter;
    }
}

/// Drops the lasting lines of a summary that say what does not hold any more.
pub(crate) fn drop_outdated(
    checkpoint: &mut Checkpoint,
    counter: &Counter,
    is_outdated: &dyn Fn(&str) -> bool,
) {
    let summary = Summary::parse(&checkpoint.summary);
    let current = summary.clone().without_outdated(is_outdated);
    if current != summary {
        set_summary(checkpoint, &current, counter);
    }
}

/// Sets the summary of a checkpoint, and the values that follow from it.
fn set_summary(checkpoint: &mut Checkpoint, summary: &Summary, counter: &Counter) {
    let items = |section| summary.items(section).into_iter().take(MAX_LISTED).collect();
    checkpoint.summary = summary.render();
    checkpoint.current_tokens = u64::from(counter.count_text(&checkpoint.summary));
    checkpoint.key_decisions = items(Section::Decisions);
    checkpoint.next_steps = items(Section::NextSteps);
}

/// Joins two lists without duplicates; drops the oldest items of a list that is too long.
fn joined_lists(older: &[String], newer: &[String]) -> Vec<String> {
    let mut all: Vec<String> = older.iter().filter(|item| !newer.contains(item)).cloned().collect();
    all.extend(newer.iter().cloned());
    all.split_off(all.len().saturating_sub(MAX_LISTED))
}

#[cfg(test)]
mod tests;
