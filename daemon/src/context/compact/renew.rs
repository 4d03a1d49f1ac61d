//! The checkpoints in force after a compaction: the new one, the older ones aged, the oldest merged.

use ollm_protocol::content::Checkpoint;
use ollm_protocol::{CheckpointId, Timestamp};

use super::checkpoint::{Bounds, RECENT, age, joined, listing, merge, squeeze};
use super::plan::CutPlan;
use super::sections::Summary;
use crate::context::ledger::Ledger;
use crate::tokens::Counter;

/// A new summary and what it stands for.
pub(crate) struct Fresh<'a> {
    /// The range.
    pub cut: &'a CutPlan,
    /// The summary; where it updates the last checkpoint, it stands for that one's range too.
    pub summary: &'a Summary,
    /// It was made without a model.
    pub provisional: bool,
    /// The files of the range.
    pub files: &'a Ledger,
    /// A model's summary in the place of the two oldest, where they are to be merged.
    pub merged: Option<&'a Summary>,
}

/// Where names and times come from.
pub(crate) struct Making<'a> {
    /// A name for each checkpoint that is made.
    pub next_id: &'a dyn Fn() -> CheckpointId,
    /// Now.
    pub at: Timestamp,
    /// Who counts.
    pub counter: &'a Counter,
    /// What bounds them.
    pub bounds: Bounds,
    /// Most of them.
    pub limit: usize,
}

/// Checkpoints after a compaction.
#[derive(Clone, Debug)]
pub(crate) struct Renewed {
    /// Every checkpoint in force, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// The one that stands for the range.
    pub created: CheckpointId,
    /// Those that became older or smaller.
    pub aged: Vec<CheckpointId>,
}

/// The checkpoints that a compaction goes on from: what was made without a model is made anew.
pub(crate) fn lasting(checkpoints: &[Checkpoint]) -> &[Checkpoint] {
    let n_lasting = checkpoints.iter().take_while(|checkpoint| !checkpoint.provisional).count();
    &checkpoints[..n_lasting]
}

/// The checkpoint that a model brings up to date instead of writing a second one: where there is room for one only.
pub(crate) fn updated(checkpoints: &[Checkpoint], limit: usize) -> Option<&Checkpoint> {
    lasting(checkpoints).last().filter(|_| limit == 1)
}

/// The two that are merged when one more comes.
pub(crate) fn oldest_two(
    checkpoints: &[Checkpoint],
    limit: usize,
) -> Option<(&Checkpoint, &Checkpoint)> {
    match lasting(checkpoints) {
        all @ [first, second, ..] if limit > 1 && all.len() >= limit => Some((first, second)),
        _ => None,
    }
}

/// The checkpoints after a compaction.
///
/// One made without a model never changes those before it, and is one more than the limit until it is made anew.
pub(crate) fn renew(before: &[Checkpoint], fresh: &Fresh<'_>, making: &Making<'_>) -> Renewed {
    let Making { at, counter, bounds, limit, .. } = *making;
    let base = lasting(before);
    let last = updated(before, limit).filter(|_| !fresh.provisional);
    let mut checkpoints;
    let mut aged = Vec::new();
    if let Some(last) = last {
        checkpoints = base[..base.len() - 1].to_vec();
        checkpoints.push(brought_up_to_date(last, fresh, making));
    } else {
        let changed = age(base, &bounds, counter, at);
        (checkpoints, aged) = (changed.checkpoints, changed.aged);
        checkpoints.push(made(fresh, making));
        let most = limit + usize::from(fresh.provisional);
        let mut by_model = fresh.merged;
        while checkpoints.len() > most.max(1) && checkpoints.len() > 1 {
            let (older, newer) = (&checkpoints[0], &checkpoints[1]);
            let parsed =
                || joined(&Summary::parse(&older.summary), &Summary::parse(&newer.summary));
            let summary = by_model.take().cloned().unwrap_or_else(parsed);
            let name = ((making.next_id)(), at);
            let one = merge((older, newer), &summary, &bounds, counter, name);
            checkpoints.splice(..2, [one]);
        }
    }
    let created = checkpoints.last().map_or_else(|| (making.next_id)(), |last| last.id);
    for id in squeeze(&mut checkpoints, &bounds, counter, at) {
        if id != created && !aged.contains(&id) {
            aged.push(id);
        }
    }
    aged.retain(|id| checkpoints.iter().any(|checkpoint| checkpoint.id == *id));
    Renewed { checkpoints, created, aged }
}

fn made(fresh: &Fresh<'_>, making: &Making<'_>) -> Checkpoint {
    let text = fresh.summary.render();
    let mut checkpoint = Checkpoint {
        id: (making.next_id)(),
        level: RECENT,
        from: fresh.cut.from,
        to: fresh.cut.to,
        current_tokens: u64::from(making.counter.count_text(&text)),
        summary: text,
        created_at: making.at,
        compressed_at: None,
        original_tokens: fresh.cut.tokens,
        compression_count: 1,
        key_decisions: Vec::new(),
        files_modified: fresh.files.modified.clone(),
        files_read: fresh.files.read.clone(),
        next_steps: Vec::new(),
        sources: Vec::new(),
        provisional: fresh.provisional,
    };
    listing(&mut checkpoint, fresh.summary);
    checkpoint
}

fn brought_up_to_date(last: &Checkpoint, fresh: &Fresh<'_>, making: &Making<'_>) -> Checkpoint {
    let text = fresh.summary.render();
    let mut files = Ledger { modified: last.files_modified.clone(), read: last.files_read.clone() };
    files.join(fresh.files);
    let mut checkpoint = Checkpoint {
        level: RECENT,
        to: fresh.cut.to,
        current_tokens: u64::from(making.counter.count_text(&text)),
        summary: text,
        compressed_at: Some(making.at),
        original_tokens: last.original_tokens + fresh.cut.tokens,
        compression_count: last.compression_count + 1,
        files_modified: files.modified,
        files_read: files.read,
        ..last.clone()
    };
    listing(&mut checkpoint, fresh.summary);
    checkpoint
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ollm_protocol::Seq;
    use uuid::Uuid;

    use super::super::checkpoint::{MERGED, tier};
    use super::*;

    /// Compactions one after the other, the n-th of records `10n` to `10n + 9`.
    struct Run {
        checkpoints: Vec<Checkpoint>,
        ids: Cell<u128>,
        context_size: u32,
        n_done: u64,
    }

    impl Run {
        fn new(context_size: u32) -> Self {
            Self { checkpoints: Vec::new(), ids: Cell::new(0), context_size, n_done: 0 }
        }

        fn compact(&mut self, provisional: bool) -> Renewed {
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
            let making = Making {
                next_id: &next_id,
                at: Timestamp::from_unix_ms(i64::try_from(n).expect("small")),
                counter: &Counter::ESTIMATE,
                bounds: Bounds { prompt_limit: limit, summary_max: 1024 },
                limit: tier(self.context_size).limit,
            };
            let summary = Summary::parse(&text);
            let fresh =
                Fresh { cut: &cut, summary: &summary, provisional, files: &files, merged: None };
            let renewed = renew(&self.checkpoints, &fresh, &making);
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
    fn a_small_window_keeps_one_that_is_brought_up_to_date() {
        let mut run = Run::new(8192);
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
    fn one_without_a_model_stands_beside_and_is_made_anew() {
        let mut run = Run::new(4096);
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
    fn many_compactions_keep_every_record_in_exactly_one_checkpoint() {
        for context_size in [16_384, 32_768, 131_072] {
            let limit = tier(context_size).limit;
            let mut run = Run::new(context_size);
            let mut made = Vec::new();
            for n in 1..=60 {
                made.push(run.compact(false).created);
                let ranges = run.ranges();
                assert!(ranges.len() <= limit);
                assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (0, n * 10 - 1));
                assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{ranges:?}");
            }
            let newest = run.checkpoints.last().expect("some");
            assert_eq!(newest.level, RECENT);
            assert_eq!(run.checkpoints[0].level, MERGED);
            let named = |id: &CheckpointId| {
                run.checkpoints.iter().any(|one| one.id == *id || one.sources.contains(id))
            };
            assert!(made.iter().all(named), "every one is a source of what stands for it");
        }
    }
}
