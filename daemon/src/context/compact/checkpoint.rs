//! The sizes of checkpoints: how large each may be, how many a session keeps, and how old ones become smaller, without
//! a model.
//!
//! **Invariants**: ageing and merging never raise tokens; ageing keeps the id and the sources of a checkpoint, merging
//! keeps the ids of all its sources; there is one copy of each checkpoint.

use ollm_protocol::content::Checkpoint;
use ollm_protocol::{CheckpointId, Timestamp};

use super::fit::fit;
use super::summary::{Section, Summary};
use crate::context::ledger::Ledger;
use crate::tokens::Counter;

/// The level of a new checkpoint.
pub(crate) const RECENT_LEVEL: u8 = 3;
/// The lowest level that ageing reaches.
const ANCIENT_LEVEL: u8 = 1;
/// The level of a checkpoint that was merged from others.
pub(super) const MERGED_LEVEL: u8 = 0;
/// Percent of the prompt limit that all checkpoints may have together.
const TOTAL_PERCENT: u64 = 40;
/// Tokens of the smallest summary with its headings.
const MIN_TARGET: u64 = 96;
/// Maximum number of lines of each list beside a summary.
const MAX_LISTED: usize = 32;

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
        let percent = match level {
            RECENT_LEVEL.. => 25,
            2 => 15,
            ANCIENT_LEVEL => 10,
            MERGED_LEVEL => 5,
        };
        (self.prompt_limit * percent / 100).max(MIN_TARGET).min(self.summary_max.max(MIN_TARGET))
    }

    /// Returns the tokens that all checkpoints together may have.
    pub(super) const fn total(&self) -> u64 {
        self.prompt_limit * TOTAL_PERCENT / 100
    }
}

/// Makes every checkpoint a level older; returns the ids of those that changed.
pub(super) fn age(
    checkpoints: &mut [Checkpoint],
    bounds: &CheckpointBounds,
    counter: &Counter,
    at: Timestamp,
) -> Vec<CheckpointId> {
    let mut aged = Vec::new();
    for checkpoint in checkpoints {
        let before = (checkpoint.level, checkpoint.current_tokens);
        if checkpoint.level > ANCIENT_LEVEL {
            checkpoint.level = checkpoint.level.min(RECENT_LEVEL) - 1;
        }
        let target = bounds.target(checkpoint.level);
        shrink(checkpoint, target, counter, at);
        if before != (checkpoint.level, checkpoint.current_tokens) {
            aged.push(checkpoint.id);
        }
    }
    aged
}

/// Makes checkpoints smaller until they fit together, the oldest first; returns the ids of those that changed.
pub(super) fn squeeze(
    checkpoints: &mut [Checkpoint],
    bounds: &CheckpointBounds,
    counter: &Counter,
    at: Timestamp,
) -> Vec<CheckpointId> {
    let mut squeezed = Vec::new();
    let sum = |all: &[Checkpoint]| all.iter().map(|one| one.current_tokens).sum::<u64>();
    for round in 1..=4 {
        for index in 0..checkpoints.len() {
            let over = sum(checkpoints).saturating_sub(bounds.total());
            if over == 0 {
                return squeezed;
            }
            let one = &mut checkpoints[index];
            // A round halves a checkpoint at most, so that the newest is only reached in need.
            let least = (one.current_tokens / 2).max(MIN_TARGET / round);
            let before = one.current_tokens;
            shrink(one, one.current_tokens.saturating_sub(over).max(least), counter, at);
            if one.current_tokens < before && !squeezed.contains(&one.id) {
                squeezed.push(one.id);
            }
        }
    }
    squeezed
}

/// Returns one checkpoint in the place of two, with a summary that stands for both.
pub(super) fn merge(
    (older, newer): (&Checkpoint, &Checkpoint),
    summary: &Summary,
    bounds: &CheckpointBounds,
    counter: &Counter,
    (id, at): (CheckpointId, Timestamp),
) -> Checkpoint {
    let together = older.current_tokens + newer.current_tokens;
    let summary = fit(summary, counter, bounds.target(MERGED_LEVEL).min(together));
    let text = summary.render();
    let mut sources = Vec::new();
    for one in [older, newer] {
        sources.extend(one.sources.iter().copied());
        sources.push(one.id);
    }
    let mut files = files_of(older);
    files.join(&files_of(newer));
    Checkpoint {
        id,
        level: MERGED_LEVEL,
        from: older.from,
        to: newer.to,
        current_tokens: u64::from(counter.count_text(&text)),
        summary: text,
        created_at: older.created_at,
        compressed_at: Some(at),
        original_tokens: older.original_tokens + newer.original_tokens,
        compression_count: older.compression_count.max(newer.compression_count) + 1,
        key_decisions: joined_lists(&older.key_decisions, &newer.key_decisions),
        files_modified: files.modified,
        files_read: files.read,
        next_steps: newer.next_steps.clone(),
        sources,
        provisional: older.provisional || newer.provisional,
    }
}

/// Returns the files of a checkpoint.
pub(super) fn files_of(checkpoint: &Checkpoint) -> Ledger {
    Ledger { modified: checkpoint.files_modified.clone(), read: checkpoint.files_read.clone() }
}

/// Joins two summaries without a model: lines of both stand once, and the next steps of the newer one replace those of
/// the older.
pub(super) fn joined(older: &Summary, newer: &Summary) -> Summary {
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
    joined
}

/// Sets the lists beside a summary to its items.
pub(super) fn set_lists(checkpoint: &mut Checkpoint, summary: &Summary) {
    let items = |section| {
        let mut items = summary.items(section);
        items.truncate(MAX_LISTED);
        items
    };
    checkpoint.key_decisions = items(Section::Decisions);
    checkpoint.next_steps = items(Section::NextSteps);
}

/// Trims a summary to a target. A text without sections comes from another program and stays as it is.
fn shrink(checkpoint: &mut Checkpoint, target: u64, counter: &Counter, at: Timestamp) {
    if checkpoint.current_tokens <= target {
        return;
    }
    let summary = Summary::parse(&checkpoint.summary);
    let shorter = fit(&summary, counter, target);
    let text = shorter.render();
    let tokens = u64::from(counter.count_text(&text));
    if text.is_empty() || tokens >= checkpoint.current_tokens {
        return;
    }
    checkpoint.summary = text;
    checkpoint.current_tokens = tokens;
    checkpoint.compressed_at = Some(at);
    checkpoint.compression_count += 1;
    set_lists(checkpoint, &shorter);
}

/// Joins two lists without duplicates; drops the oldest items of a list that is too long.
fn joined_lists(older: &[String], newer: &[String]) -> Vec<String> {
    let mut all: Vec<String> = older.iter().filter(|item| !newer.contains(item)).cloned().collect();
    all.extend(newer.iter().cloned());
    all.split_off(all.len().saturating_sub(MAX_LISTED))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn at() -> Timestamp {
        Timestamp::from_unix_ms(5)
    }

    fn id(number: u128) -> CheckpointId {
        CheckpointId::from_uuid(Uuid::from_u128(number))
    }

    fn checkpoint(number: u128, level: u8, n_lines: usize) -> Checkpoint {
        let lines = (0..n_lines).map(|n| format!("- fact {n} of checkpoint {number}"));
        let text = format!(
            "## Goal\nthe goal\n\n## Progress\n{}\n\n## Key decisions\n- decision {number}",
            lines.collect::<Vec<_>>().join("\n")
        );
        let from = ollm_protocol::Seq(number as u64 * 10);
        Checkpoint {
            id: id(number),
            level,
            from,
            to: ollm_protocol::Seq(from.0 + 9),
            current_tokens: u64::from(Counter::ESTIMATE.count_text(&text)),
            summary: text,
            created_at: Timestamp::from_unix_ms(1),
            compressed_at: None,
            original_tokens: 5000,
            compression_count: 1,
            key_decisions: vec![format!("decision {number}")],
            files_modified: vec![format!("src/{number}.rs")],
            files_read: Vec::new(),
            next_steps: Vec::new(),
            sources: Vec::new(),
            provisional: false,
        }
    }

    fn bounds(context_size: u64, summary_max: u64) -> CheckpointBounds {
        CheckpointBounds { prompt_limit: context_size * 85 / 100, summary_max }
    }

    #[test]
    fn windows_have_documented_tiers() {
        let check = |size, number, name, limit| {
            let tier = tier(size);
            assert_eq!((tier.number, tier.name, tier.limit), (number, name, limit), "{size}");
        };
        check(2048, 1, "rollover", 1);
        check(4096, 1, "rollover", 1);
        check(8192, 2, "smart", 1);
        check(8193, 3, "progressive", 5);
        check(16_384, 3, "progressive", 5);
        check(32_768, 4, "structured", 10);
        check(131_072, 5, "ultra", 15);
        check(u32::MAX, 5, "ultra", 15);
    }

    #[test]
    fn targets_are_shares_of_the_prompt_and_capped() {
        let targets = |bounds: CheckpointBounds| [3, 2, 1, 0].map(|level| bounds.target(level));
        assert_eq!(targets(bounds(8192, 100_000)), [1740, 1044, 696, 348]);
        assert_eq!(targets(bounds(8192, 1024)), [1024, 1024, 696, 348]);
        assert_eq!(targets(bounds(2048, 1024)), [435, 261, 174, 96]);
        assert_eq!(targets(bounds(131_072, 1024)), [1024; 4]);
    }

    #[test]
    fn checkpoint_ages_to_the_lowest_level_and_stays_there() {
        let bounds = bounds(8192, 2048);
        let mut all = vec![checkpoint(1, 3, 300)];
        let mut tokens = vec![all[0].current_tokens];
        for level in [2, 1, 1] {
            age(&mut all, &bounds, &Counter::ESTIMATE, at());
            assert_eq!((all[0].level, all[0].id), (level, id(1)));
            assert!(all[0].current_tokens <= bounds.target(level));
            tokens.push(all[0].current_tokens);
        }
        assert!(tokens.is_sorted_by(|before, after| before >= after), "{tokens:?}");
        let mut still = all.clone();
        let aged = age(&mut still, &bounds, &Counter::ESTIMATE, Timestamp::from_unix_ms(9));
        assert_eq!((still, aged), (all, Vec::new()));
    }

    #[test]
    fn merging_keeps_all_ids_and_both_ends() {
        let bounds = bounds(16_384, 1024);
        let counter = Counter::ESTIMATE;
        let (one, two, three) = (checkpoint(1, 1, 30), checkpoint(2, 1, 30), checkpoint(3, 2, 3));
        let both = joined(&Summary::parse(&one.summary), &Summary::parse(&two.summary));
        let first = merge((&one, &two), &both, &bounds, &counter, (id(10), at()));
        assert_eq!((first.level, first.from.0, first.to.0), (MERGED_LEVEL, 10, 29));
        assert_eq!(first.sources, [id(1), id(2)]);
        assert!(first.current_tokens <= bounds.target(MERGED_LEVEL));
        assert!(first.summary.contains("decision 1") && first.summary.contains("decision 2"));
        let both = joined(&Summary::parse(&first.summary), &Summary::parse(&three.summary));
        let second = merge((&first, &three), &both, &bounds, &counter, (id(11), at()));
        assert_eq!(second.sources, [id(1), id(2), id(10), id(3)]);
        assert_eq!(second.files_modified, ["src/1.rs", "src/2.rs", "src/3.rs"]);
        assert_eq!((second.original_tokens, second.created_at), (15_000, one.created_at));
    }

    proptest! {
        #[test]
        fn ageing_and_squeezing_never_grow_and_keep_ids_and_ranges(
            sizes in proptest::collection::vec((0..=3_u8, 0..200_usize), 0..16), window in 11..=17_u32,
        ) {
            let bounds = bounds(1 << window, 1024);
            let counter = Counter::ESTIMATE;
            let before: Vec<_> = sizes
                .iter()
                .enumerate()
                .map(|(at, (level, lines))| checkpoint(at as u128, *level, *lines))
                .collect();
            let mut after = before.clone();
            age(&mut after, &bounds, &counter, at());
            squeeze(&mut after, &bounds, &counter, at());
            prop_assert_eq!(before.len(), after.len());
            for (old, new) in before.iter().zip(&after) {
                prop_assert_eq!((old.id, &old.sources, old.from, old.to), (new.id, &new.sources, new.from, new.to));
                prop_assert!(new.current_tokens <= old.current_tokens && new.level <= old.level);
                prop_assert_eq!(new.current_tokens, u64::from(counter.count_text(&new.summary)));
            }
            let sum: u64 = after.iter().map(|one| one.current_tokens).sum();
            prop_assert!(sum <= bounds.total().max(after.len() as u64 * MIN_TARGET));
            let mut again = [after.clone(), after];
            again.iter_mut().for_each(|all| drop(age(all, &bounds, &counter, at())));
            prop_assert_eq!(&again[0], &again[1]);
        }
    }
}
