//! The checkpoints in force after a compaction: a new one or an updated one, the older ones aged, the oldest merged.

use ollm_protocol::content::Checkpoint;
use ollm_protocol::{CheckpointId, Timestamp};

use super::checkpoint::{
    CheckpointBounds, RECENT_LEVEL, age, files_of, joined, merge, set_lists, squeeze,
};
use super::range::CutPlan;
use super::summary::Summary;
use crate::context::ledger::Ledger;
use crate::tokens::Counter;

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

/// Returns the checkpoints that a compaction keeps: a checkpoint that was made without a model is made again.
fn lasting(checkpoints: &[Checkpoint]) -> &[Checkpoint] {
    let n_lasting = checkpoints.iter().take_while(|checkpoint| !checkpoint.provisional).count();
    &checkpoints[..n_lasting]
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

/// Returns the checkpoints after a compaction.
///
/// A provisional summary never changes the checkpoints before it, and may exceed the limit by one until it is replaced.
pub(crate) fn renew(
    before: &[Checkpoint],
    new: &NewSummary<'_>,
    options: &RenewOptions<'_>,
) -> RenewedCheckpoints {
    let RenewOptions { at, counter, bounds, limit, .. } = *options;
    let mut checkpoints = lasting(before).to_vec();
    let mut aged = Vec::new();
    let last = checkpoint_to_update(before, limit).filter(|_| !new.provisional);
    if let Some(last) = last {
        checkpoints.pop();
        checkpoints.push(updated(last, new, options));
    } else {
        aged = age(&mut checkpoints, &bounds, counter, at);
        checkpoints.push(created(new, options));
        let most = limit + usize::from(new.provisional);
        let mut by_model = new.merged;
        while checkpoints.len() > most.max(1) && checkpoints.len() > 1 {
            let (older, newer) = (&checkpoints[0], &checkpoints[1]);
            let by_lines =
                || joined(&Summary::parse(&older.summary), &Summary::parse(&newer.summary));
            let summary = by_model.take().cloned().unwrap_or_else(by_lines);
            let id = (options.next_id)();
            let merged = merge((older, newer), &summary, &bounds, counter, (id, at));
            checkpoints.splice(..2, [merged]);
        }
    }
    let created = checkpoints.last().map_or_else(|| (options.next_id)(), |last| last.id);
    for id in squeeze(&mut checkpoints, &bounds, counter, at) {
        if id != created && !aged.contains(&id) {
            aged.push(id);
        }
    }
    aged.retain(|id| checkpoints.iter().any(|checkpoint| checkpoint.id == *id));
    RenewedCheckpoints { checkpoints, created, aged }
}

fn created(new: &NewSummary<'_>, options: &RenewOptions<'_>) -> Checkpoint {
    let text = new.summary.render();
    let mut checkpoint = Checkpoint {
        id: (options.next_id)(),
        level: RECENT_LEVEL,
        from: new.cut.from,
        to: new.cut.to,
        current_tokens: u64::from(options.counter.count_text(&text)),
        summary: text,
        created_at: options.at,
        compressed_at: None,
        original_tokens: new.cut.tokens,
        compression_count: 1,
        key_decisions: Vec::new(),
        files_modified: new.files.modified.clone(),
        files_read: new.files.read.clone(),
        next_steps: Vec::new(),
        sources: Vec::new(),
        provisional: new.provisional,
    };
    set_lists(&mut checkpoint, new.summary);
    checkpoint
}

fn updated(last: &Checkpoint, new: &NewSummary<'_>, options: &RenewOptions<'_>) -> Checkpoint {
    let text = new.summary.render();
    let mut files = files_of(last);
    files.join(new.files);
    let mut checkpoint = Checkpoint {
        level: RECENT_LEVEL,
        to: new.cut.to,
        current_tokens: u64::from(options.counter.count_text(&text)),
        summary: text,
        compressed_at: Some(options.at),
        original_tokens: last.original_tokens + new.cut.tokens,
        compression_count: last.compression_count + 1,
        files_modified: files.modified,
        files_read: files.read,
        ..last.clone()
    };
    set_lists(&mut checkpoint, new.summary);
    checkpoint
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ollm_protocol::Seq;
    use uuid::Uuid;

    use super::super::checkpoint::{MERGED_LEVEL, tier};
    use super::*;

    /// A session with a compaction of every ten records.
    struct Compactions {
        checkpoints: Vec<Checkpoint>,
        ids: Cell<u128>,
        context_size: u32,
        n_done: u64,
    }

    impl Compactions {
        fn new(context_size: u32) -> Self {
            Self { checkpoints: Vec::new(), ids: Cell::new(0), context_size, n_done: 0 }
        }

        fn compact(&mut self, provisional: bool) -> RenewedCheckpoints {
            let start = lasting(&self.checkpoints).last().map_or(0, |last| last.to.0 + 1);
            let end = self.n_done * 10 + 9;
            self.n_done += 1;
            let cut = CutPlan {
                from: Seq(start),
                to: Seq(end),
                records: Vec::new(),
                n_messages: 10,
                tokens: 4000,
                target_tokens: 1000,
            };
            let n = self.n_done;
            let text = format!(
                "## Goal\nthe goal\n## Progress\n{}\n## Key decisions\n- decision {n}",
                format!("- step of {n} that says some more words\n").repeat(20)
            );
            let next_id = || {
                self.ids.set(self.ids.get() + 1);
                CheckpointId::from_uuid(Uuid::from_u128(self.ids.get()))
            };
            let files = Ledger { modified: vec![format!("f{n}")], read: Vec::new() };
            let limit = u64::from(self.context_size) * 85 / 100;
            let options = RenewOptions {
                next_id: &next_id,
                at: Timestamp::from_unix_ms(i64::try_from(n).expect("small")),
                counter: &Counter::ESTIMATE,
                bounds: CheckpointBounds { prompt_limit: limit, summary_max: 1024 },
                limit: tier(self.context_size).limit,
            };
            let summary = Summary::parse(&text);
            let new = NewSummary {
                cut: &cut,
                summary: &summary,
                provisional,
                files: &files,
                merged: None,
            };
            let renewed = renew(&self.checkpoints, &new, &options);
            let sum: u64 = renewed.checkpoints.iter().map(|one| one.current_tokens).sum();
            assert!(sum <= limit * 40 / 100, "{sum} of {limit}");
            self.checkpoints.clone_from(&renewed.checkpoints);
            renewed
        }

        fn ranges(&self) -> Vec<(u64, u64)> {
            self.checkpoints.iter().map(|one| (one.from.0, one.to.0)).collect()
        }
    }

    #[test]
    fn small_window_keeps_one_checkpoint_that_is_updated() {
        let mut run = Compactions::new(8192);
        let first = run.compact(false).created;
        for n in 2..200 {
            assert_eq!(run.compact(false).created, first);
            assert_eq!(run.ranges(), [(0, n * 10 - 1)]);
        }
        assert_eq!(run.checkpoints[0].compression_count, 199);
        assert!(run.checkpoints[0].files_modified.contains(&"f1".to_owned()));
        assert_eq!(run.checkpoints[0].original_tokens, 199 * 4000);
    }

    #[test]
    fn provisional_checkpoint_stands_beside_and_is_replaced() {
        let mut run = Compactions::new(4096);
        let first = run.compact(false).created;
        let interim = run.compact(true).created;
        assert_ne!(first, interim);
        assert_eq!(run.ranges(), [(0, 9), (10, 19)]);
        let again = run.compact(true).created;
        assert_eq!(run.ranges(), [(0, 9), (10, 29)]);
        assert_ne!(again, interim);
        assert_eq!(run.compact(false).created, first);
        assert_eq!(run.ranges(), [(0, 39)]);
        assert!(!run.checkpoints[0].provisional);
    }

    #[test]
    fn every_record_is_in_exactly_one_checkpoint_after_many_compactions() {
        for context_size in [16_384, 32_768, 131_072] {
            let limit = tier(context_size).limit;
            let mut run = Compactions::new(context_size);
            let mut all_created = Vec::new();
            for n in 1..=60 {
                all_created.push(run.compact(false).created);
                let ranges = run.ranges();
                assert!(ranges.len() <= limit);
                assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (0, n * 10 - 1));
                assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{ranges:?}");
            }
            let newest = run.checkpoints.last().expect("some");
            assert_eq!(newest.level, RECENT_LEVEL);
            assert_eq!(run.checkpoints[0].level, MERGED_LEVEL);
            let named = |id: &CheckpointId| {
                run.checkpoints.iter().any(|one| one.id == *id || one.sources.contains(id))
            };
            assert!(all_created.iter().all(named), "every checkpoint is there or a source of one");
        }
    }
}
