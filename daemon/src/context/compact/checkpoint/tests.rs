//! Tests of ages, merges and levels of checkpoints.

use std::cell::Cell;

use ollm_protocol::Seq;
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
    let from = Seq(number as u64 * 10);
    Checkpoint {
        id: id(number),
        level,
        from,
        to: Seq(from.0 + 9),
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

/// Options by which the next checkpoint gets the id 99.
fn options<'a>(counter: &'a Counter, bounds: CheckpointBounds) -> RenewOptions<'a> {
    RenewOptions { next_id: &|| id(99), at: at(), counter, bounds, limit: 1 }
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
    let options = options(&Counter::ESTIMATE, bounds(8192, 2048));
    let mut all = vec![checkpoint(1, 3, 300)];
    let mut tokens = vec![all[0].current_tokens];
    for level in [2, 1, 1] {
        age(&mut all, &options);
        assert_eq!((all[0].level, all[0].id), (level, id(1)));
        assert!(all[0].current_tokens <= options.bounds.target(level));
        tokens.push(all[0].current_tokens);
    }
    assert!(tokens.is_sorted_by(|before, after| before >= after), "{tokens:?}");
    let mut still = all.clone();
    let later = RenewOptions { at: Timestamp::from_unix_ms(9), ..options };
    let aged = age(&mut still, &later);
    assert_eq!((still, aged), (all, Vec::new()));
}

#[test]
fn merging_keeps_all_ids_and_both_ends() {
    let options = options(&Counter::ESTIMATE, bounds(16_384, 1024));
    let (one, two, three) = (checkpoint(1, 1, 30), checkpoint(2, 1, 30), checkpoint(3, 2, 3));
    let both = joined(&Summary::parse(&one.summary), &Summary::parse(&two.summary));
    let first = merge(&one, &two, &both, &RenewOptions { next_id: &|| id(10), ..options });
    assert_eq!((first.level, first.from.0, first.to.0), (MERGED_LEVEL, 10, 29));
    assert_eq!(first.sources, [id(1), id(2)]);
    assert!(first.current_tokens <= options.bounds.target(MERGED_LEVEL));
    assert!(first.summary.contains("decision 1") && first.summary.contains("decision 2"));
    let both = joined(&Summary::parse(&first.summary), &Summary::parse(&three.summary));
    let second = merge(&first, &three, &both, &options);
    assert_eq!(second.sources, [id(1), id(2), id(10), id(3)]);
    assert_eq!(second.files_modified, ["src/1.rs", "src/2.rs", "src/3.rs"]);
    assert_eq!((second.original_tokens, second.created_at), (15_000, one.created_at));
}

#[test]
fn progress_that_the_newer_notes_say_again_stands_once() {
    let notes = |lines: &str| Summary::parse(&format!("## Goal\n- ship\n## Progress\n{lines}"));
    let older = notes("- The lexer of the parser handles nested comments\n- Port 48213 is open");
    let newer = notes("- The lexer of the parser now handles nested comments well");
    let both = joined(&older, &newer);
    let expect = ["Port 48213 is open", "The lexer of the parser now handles nested comments well"];
    assert_eq!(both.items(Section::Progress), expect);
}

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
        let new =
            NewSummary { cut: &cut, summary: &summary, provisional, files: &files, merged: None };
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
fn goal_and_next_steps_are_shown_of_the_newest_checkpoint_only() {
    let with =
        |number, text: &str| Checkpoint { summary: text.to_owned(), ..checkpoint(number, 3, 1) };
    let all = [
        with(1, "words of another program"),
        with(2, "## Goal\nold\n\n## Progress\n- a\n\n## Next steps\n- b"),
        with(3, "## Progress\n- c\n\n## Next steps\n- d"),
        with(4, "## Goal\nnew\n\n## Progress\n- e"),
    ];
    let shown: Vec<String> = all.iter().map(|one| shown_summary(one, &all)).collect();
    let expect = [
        "words of another program",
        "## Progress\n- a",
        "## Progress\n- c\n\n## Next steps\n- d",
        "## Goal\nnew\n\n## Progress\n- e",
    ];
    assert_eq!(shown, expect);
}

#[test]
fn provisional_checkpoint_takes_no_room_of_the_lasting_ones() {
    for context_size in [2048, 4096, 16_384] {
        let mut run = Compactions::new(context_size);
        run.compact(false);
        run.compact(false);
        let lasting = run.checkpoints.clone();
        for _ in 0..3 {
            run.compact(true);
            assert_eq!(run.checkpoints[..lasting.len()], lasting, "{context_size}");
        }
    }
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

proptest! {
    #[test]
    fn ageing_and_squeezing_never_grow_and_keep_ids_and_ranges(
        sizes in proptest::collection::vec((0..=3_u8, 0..200_usize), 0..16), window in 11..=17_u32,
    ) {
        let counter = Counter::ESTIMATE;
        let options = options(&counter, bounds(1 << window, 1024));
        let before: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(at, (level, lines))| checkpoint(at as u128, *level, *lines))
            .collect();
        let mut after = before.clone();
        age(&mut after, &options);
        squeeze(&mut after, &options);
        prop_assert_eq!(before.len(), after.len());
        for (old, new) in before.iter().zip(&after) {
            prop_assert_eq!((old.id, &old.sources, old.from, old.to), (new.id, &new.sources, new.from, new.to));
            prop_assert!(new.current_tokens <= old.current_tokens && new.level <= old.level);
            prop_assert_eq!(new.current_tokens, u64::from(counter.count_text(&new.summary)));
        }
        let sum: u64 = after.iter().map(|one| one.current_tokens).sum();
        prop_assert!(sum <= options.bounds.total().max(after.len() as u64 * MIN_SUMMARY_TOKENS));
        let mut again = [after.clone(), after];
        again.iter_mut().for_each(|all| drop(age(all, &options)));
        prop_assert_eq!(&again[0], &again[1]);
    }
}
