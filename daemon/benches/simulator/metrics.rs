//! The numbers of one run, and what they must be.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::facts::Found;
use super::server::Asked;
use crate::harness::report::{Row, Samples, rounded};

/// The share of a prompt that the next one begins with, outside new heads.
const REUSED_PERCENT: f64 = 95.0;
/// Most kinds of findings that are kept in words.
const MAX_WORDS: usize = 12;

/// The numbers of one run.
#[derive(Default)]
pub(crate) struct Tally {
    /// What was run.
    pub(crate) name: String,
    /// The window, in tokens.
    pub(crate) window: u32,
    turns: usize,
    /// How long it took.
    pub(crate) took: Duration,
    /// Resident memory of the daemon at the end.
    pub(crate) rss_kib: u64,
    calls: usize,
    methods: BTreeMap<String, u64>,
    epochs: BTreeMap<String, u64>,
    failed: BTreeMap<String, u64>,
    n_failed: u64,
    overflows: u64,
    grown: u64,
    other_windows: u64,
    transient: u64,
    /// Of the prompts before: their size, and what the next ones began with.
    by_tokens: (u64, u64),
    by_bytes: (u64, u64),
    /// The lowest shares, in percent.
    lowest: Option<f64>,
    sent: u64,
    full: u64,
    history: u64,
    summaries: u64,
    summary_bytes: u64,
    builds: Samples,
    longest_compaction_ms: u64,
    retained: [(u64, u64); 5],
    mark_ms: Option<u64>,
    n_checked: usize,
    n_lost: usize,
    /// By their words without numbers: how often, and the first one.
    words: BTreeMap<String, (u64, String)>,
}

/// How many new heads there were.
#[derive(Clone, Copy, Default)]
pub(crate) struct Heads {
    /// Before the last answer, so for one of the prompts up to it.
    pub(crate) in_turn: usize,
    /// After it, so for the next prompt.
    pub(crate) after: usize,
}

impl Heads {
    /// All of them.
    pub(crate) const fn all(self) -> usize {
        self.in_turn + self.after
    }
}

/// What is kept by a compaction record, in its order.
const KEPT: [&str; 5] = ["task", "pins", "decisions", "files", "identifiers"];

impl Tally {
    /// A run that begins.
    pub(crate) fn new(name: String, window: u32, turns: usize) -> Self {
        Self { name, window, turns, ..Self::default() }
    }

    /// Notes the prompts of a turn as the daemon counted them.
    pub(crate) fn prompts(&mut self, prompts: &[(u64, u64)]) {
        for (tokens, limit) in prompts {
            self.calls += 1;
            self.sent += tokens;
            self.full += self.history;
            self.overflows += u64::from(tokens > limit);
        }
    }

    /// Notes that a turn failed.
    pub(crate) fn failed(&mut self, turn: usize, error: &Value) {
        self.n_failed += 1;
        let kind = error["data"]["kind"].as_str().unwrap_or("?").to_owned();
        self.overflows += u64::from(kind == "contextOverflow");
        self.finding(turn, &format!("failed: {}", error["message"].as_str().unwrap_or_default()));
        *self.failed.entry(kind).or_default() += 1;
    }

    /// Notes records, and what the model was asked meanwhile; returns how many of the records begin a new head.
    pub(crate) fn records(&mut self, turn: usize, records: &[Value], asked: &[Asked]) -> Heads {
        let (mut heads, mut longest) = (Heads::default(), 0);
        for record in records {
            let kind = record["type"].as_str().unwrap_or_default();
            match kind {
                "message" | "toolCall" => {
                    if record["message"]["role"] == "assistant" {
                        heads = Heads { in_turn: heads.all(), after: 0 };
                    }
                    self.history += record["tokens"].as_u64().unwrap_or_default();
                }
                "snapshot" => self.mark_ms = ms_of_day(record),
                "compaction" => {
                    heads.after += 1;
                    self.compaction(turn, record);
                    let ended = ms_of_day(record).zip(self.mark_ms.take());
                    longest = ended.map_or(0, |(end, mark)| end.saturating_sub(mark)).max(longest);
                }
                "epoch" => {
                    heads.after += 1;
                    let cause = record["epoch"]["cause"].as_str().unwrap_or("?");
                    *self.epochs.entry(cause.to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        // What the model needs is no part of the time of a compaction.
        let by_model: Duration = asked.iter().filter_map(|one| one.summary).sum();
        let by_model = u64::try_from(by_model.as_millis()).unwrap_or_default();
        let longest = longest.saturating_sub(by_model);
        self.longest_compaction_ms = self.longest_compaction_ms.max(longest);
        heads
    }

    fn compaction(&mut self, turn: usize, record: &Value) {
        let one = &record["compaction"];
        let method = one["method"].as_str().unwrap_or("?");
        *self.methods.entry(method.to_owned()).or_default() += 1;
        let (before, after) = (one["tokensBefore"].as_u64(), one["tokensAfter"].as_u64());
        if after >= before {
            self.grown += 1;
            let seq = &record["seq"];
            self.finding(turn, &format!("compaction #{seq} went from {before:?} to {after:?}"));
        }
        for (sum, name) in self.retained.iter_mut().zip(KEPT) {
            let pair = &one["retention"][name];
            sum.0 += pair[0].as_u64().unwrap_or_default();
            sum.1 += pair[1].as_u64().unwrap_or_default();
        }
    }

    /// Notes what the model server was sent. A new head breaks one prompt off from the one before.
    pub(crate) fn asked(&mut self, turn: usize, asked: &[Asked], n_heads: usize) {
        let mut shares = Vec::new();
        for one in asked {
            self.other_windows += u64::from(one.num_ctx != u64::from(self.window));
            if one.summary.is_some() {
                self.summaries += 1;
                self.summary_bytes += one.bytes as u64;
            }
            shares.extend(one.reused);
        }
        shares.sort_by(|a, b| percent(a.1, a.0).total_cmp(&percent(b.1, b.0)));
        for (before, reused) in shares.into_iter().skip(n_heads) {
            self.by_bytes.0 += before as u64;
            self.by_bytes.1 += reused as u64;
            let share = percent(reused, before);
            if share < REUSED_PERCENT {
                self.finding(turn, &format!("the next prompt begins with {share} % of the last"));
            }
            self.lowest = Some(self.lowest.map_or(share, |lowest| lowest.min(share)));
        }
    }

    /// Notes a build, and how much of the one before it begins with.
    pub(crate) fn build(
        &mut self,
        turn: usize,
        took: Duration,
        build: &Value,
        before: Option<u64>,
    ) {
        self.builds.push(took);
        let number = |name: &str| build[name].as_u64().unwrap_or_default();
        if number("tokensUsed") > number("tokenBudget") {
            self.overflows += 1;
            self.finding(turn, "a build has more tokens than its budget");
        }
        if build["transient"] == true {
            self.transient += 1;
        } else if let Some(before) = before {
            let prefix = number("prefixTokens").min(before);
            self.by_tokens.0 += before;
            self.by_tokens.1 += prefix;
        }
    }

    /// Notes what became of the facts.
    pub(crate) fn facts(&mut self, turn: usize, build: &Value, found: Found) {
        self.n_checked += found.n_checked;
        self.n_lost += found.lost.len();
        let strategy = build["strategy"].as_str().unwrap_or_default();
        for what in found.lost {
            self.finding(turn, &format!("lost with {strategy}: {what}"));
        }
    }

    /// Notes something in words.
    pub(crate) fn finding(&mut self, turn: usize, what: &str) {
        let kind: String = what.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
        if self.words.len() < MAX_WORDS || self.words.contains_key(&kind) {
            let first = || (0, format!("turn {turn}: {what}"));
            self.words.entry(kind).or_insert_with(first).0 += 1;
        }
    }

    /// What should be otherwise.
    pub(crate) fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let mut must = |is_met: bool, what: String| {
            if !is_met {
                missed.push(what);
            }
        };
        must(self.overflows == 0, format!("{} overflows", self.overflows));
        must(self.n_failed == 0, format!("{} of {} turns failed", self.n_failed, self.turns));
        must(self.grown == 0, format!("{} compactions freed nothing", self.grown));
        must(self.n_lost == 0, format!("{} facts lost", self.n_lost));
        let other = self.other_windows;
        must(other == 0, format!("{other} requests named another window"));
        for (by, (before, reused)) in [("tokens", self.by_tokens), ("bytes", self.by_bytes)] {
            let share = percent(reused, before);
            must(share >= REUSED_PERCENT, format!("{share} % reused by {by}"));
        }
        missed
    }

    /// The row for machines.
    pub(crate) fn row(&self) -> Row {
        let missed = self.missed();
        let retained = KEPT.iter().zip(self.retained);
        let retained: serde_json::Map<String, Value> = retained
            .filter(|(_, (_, of))| *of > 0)
            .map(|(name, (kept, of))| ((*name).to_owned(), json!(percent(kept, of))))
            .collect();
        Row::latency(&format!("{} {}", self.window, self.name), &self.builds)
            .with("window", self.window)
            .with("turns", self.turns)
            .with("modelCalls", self.calls)
            .with("compactions", self.n_compactions())
            .with("methods", json!(self.methods))
            .with("epochs", json!(self.epochs))
            .with("overflows", self.overflows)
            .with("failedTurns", json!(self.failed))
            .with("reusedPercent", percent(self.by_tokens.1, self.by_tokens.0))
            .with("reusedBytesPercent", percent(self.by_bytes.1, self.by_bytes.0))
            .with("lowestReusedPercent", self.lowest)
            .with("transientBuilds", self.transient)
            .with("sentTokens", self.sent)
            .with("fullHistoryTokens", self.full)
            .with("summaries", self.summaries)
            .with("summaryPromptBytes", self.summary_bytes)
            .with("factsChecked", self.n_checked)
            .with("factsLost", self.n_lost)
            .with("longestBuildUs", rounded(self.builds.percentile_us(100.0)))
            .with("longestCompactionMs", self.longest_compaction_ms)
            .with("retainedPercent", Value::Object(retained))
            .with("rssKib", self.rss_kib)
            .with("seconds", rounded(self.took.as_secs_f64()))
            .with("findings", json!(self.words()))
            .with("missed", json!(missed))
            .with("bar", "the musts")
            .with("met", missed.is_empty())
    }

    fn n_compactions(&self) -> u64 {
        self.methods.values().sum()
    }

    /// The heading of the table for people.
    pub(crate) fn heading() -> String {
        format!(
            "{:>6} {:<14} {:>6} {:>6} {:>6} {:<24} {:>4} {:>4} {:>6} {:>6} {:>6} {:>5} {:>8} {:>8} {:>8} {:>6} {:>5} {:>7} {:>6}",
            "window",
            "run",
            "turns",
            "calls",
            "comp",
            "methods S/E/P/T+epochs",
            "over",
            "fail",
            "reuse%",
            "wire%",
            "sent%",
            "lost",
            "p50 us",
            "p99 us",
            "max us",
            "cmp ms",
            "kept%",
            "rss MiB",
            "s"
        )
    }

    /// Its line.
    pub(crate) fn line(&self) -> String {
        let of = |name: &str| self.methods.get(name).copied().unwrap_or_default();
        let epochs: u64 = self.epochs.values().sum();
        let methods = format!(
            "{}/{}/{}/{}+{epochs}",
            of("summarized"),
            of("extracted"),
            of("pruned"),
            of("truncated")
        );
        let kept = self.retained.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        format!(
            "{:>6} {:<14} {:>6} {:>6} {:>6} {:<24} {:>4} {:>4} {:>6.2} {:>6.2} {:>6.2} {:>5} {:>8.0} {:>8.0} {:>8.0} {:>6} {:>5.1} {:>7.1} {:>6.0}",
            self.window,
            self.name,
            self.turns,
            self.calls,
            self.n_compactions(),
            methods,
            self.overflows,
            self.n_failed,
            percent(self.by_tokens.1, self.by_tokens.0),
            percent(self.by_bytes.1, self.by_bytes.0),
            percent(self.sent, self.full),
            self.n_lost,
            self.builds.percentile_us(50.0),
            self.builds.percentile_us(99.0),
            self.builds.percentile_us(100.0),
            self.longest_compaction_ms,
            percent(kept.0, kept.1),
            percent(self.rss_kib, 1024) / 100.0,
            self.took.as_secs_f64(),
        )
    }

    /// What was found, in words.
    pub(crate) fn words(&self) -> Vec<String> {
        self.words.values().map(|(n, first)| format!("{n} x {first}")).collect()
    }
}

/// A share of something, in percent with two digits after the point; all of nothing.
fn percent<N: TryInto<u64>>(part: N, whole: N) -> f64 {
    let number = |n: N| n.try_into().unwrap_or_default();
    let (part, whole) = (number(part), number(whole));
    if whole == 0 {
        return 100.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
    let share = part as f64 / whole as f64;
    (share * 10_000.0).round() / 100.0
}

/// When a record was made, in milliseconds of its day.
fn ms_of_day(record: &Value) -> Option<u64> {
    let at = record["at"].as_str()?;
    let part = |from: usize, to: usize| at.get(from..to)?.parse::<u64>().ok();
    Some(((part(11, 13)? * 60 + part(14, 16)?) * 60 + part(17, 19)?) * 1000 + part(20, 23)?)
}
