//! The metrics of one run, and the limits that they must meet.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::facts::FactCheck;
use super::model_server::ModelRequest;
use crate::harness::report::{Row, Samples, rounded};

/// The percentage of a prompt with which the next one must begin, unless there is a new head.
const MIN_REUSED_PERCENT: f64 = 95.0;
/// The number of kinds of findings that are kept.
const MAX_FINDINGS: usize = 12;

/// The fields of a compaction record's `retention`.
const RETENTION: [&str; 5] = ["task", "pins", "decisions", "files", "identifiers"];

/// The metrics of one run.
#[derive(Default)]
pub(crate) struct RunMetrics {
    pub(crate) name: String,
    /// In tokens.
    pub(crate) window: u32,
    turns: usize,
    pub(crate) elapsed: Duration,
    /// The resident memory of the daemon at the end.
    pub(crate) rss_kib: u64,
    n_model_calls: usize,
    /// The numbers of compactions by method, of epochs by cause, and of failed turns by error kind.
    methods: BTreeMap<String, u64>,
    epochs: BTreeMap<String, u64>,
    failures: BTreeMap<String, u64>,
    n_overflows: u64,
    /// Compactions that freed no token.
    n_grown: u64,
    /// Requests with another window than the session's.
    n_other_windows: u64,
    n_transient: u64,
    /// The size of the previous prompts, and how much of them the next ones began with.
    reused_tokens: (u64, u64),
    reused_bytes: (u64, u64),
    lowest_reused_percent: Option<f64>,
    sent_tokens: u64,
    /// The tokens that the prompts would have had with the full history.
    full_history_tokens: u64,
    history_tokens: u64,
    n_summaries: u64,
    summary_bytes: u64,
    builds: Samples,
    longest_compaction_ms: u64,
    /// The retained and all items of each field of [`RETENTION`].
    retained: [(u64, u64); 5],
    /// The time of the last snapshot record, with which a compaction begins.
    snapshot_ms: Option<u64>,
    n_checked: usize,
    n_lost: usize,
    /// The number and the first text of each kind of finding; the key is the text without digits.
    findings: BTreeMap<String, (u64, String)>,
}

/// The number of new heads in some records.
#[derive(Clone, Copy, Default)]
pub(crate) struct NewHeads {
    /// Before the last answer, so that they affect a prompt of the turn, except one that is recorded during the answer.
    pub(crate) in_turn: usize,
    /// After the last answer, so that they affect the next prompt.
    pub(crate) after: usize,
}

impl NewHeads {
    pub(crate) const fn all(self) -> usize {
        self.in_turn + self.after
    }
}

impl RunMetrics {
    /// The columns of the table for people.
    pub(crate) const COLUMNS: &str = "window name turns modelCalls compactions methods epochs overflows failedTurns \
        reusedPercent reusedBytesPercent sentPercent factsLost p50 p99 longestBuildUs longestCompactionMs keptPercent \
        rssKib seconds";

    pub(crate) fn new(name: String, window: u32, turns: usize) -> Self {
        Self { name, window, turns, ..Self::default() }
    }

    /// Adds the prompts of a turn: tokens and limits as the daemon counted them.
    pub(crate) fn add_prompts(&mut self, prompts: &[(u64, u64)]) {
        for (tokens, limit) in prompts {
            self.n_model_calls += 1;
            self.sent_tokens += tokens;
            self.full_history_tokens += self.history_tokens;
            self.n_overflows += u64::from(tokens > limit);
        }
    }

    /// Adds a failed turn.
    pub(crate) fn add_failure(&mut self, turn: usize, error: &Value) {
        let kind = error["data"]["kind"].as_str().unwrap_or("?").to_owned();
        self.n_overflows += u64::from(kind == "contextOverflow");
        let message = error["message"].as_str().unwrap_or_default();
        self.add_finding(turn, &format!("failed: {message}"));
        *self.failures.entry(kind).or_default() += 1;
    }

    /// Adds records and the requests that the model server got since then; returns the number of new heads.
    pub(crate) fn add_records(
        &mut self,
        turn: usize,
        records: &[Value],
        requests: &[ModelRequest],
    ) -> NewHeads {
        let (mut heads, mut longest) = (NewHeads::default(), 0);
        for record in records {
            let kind = record["type"].as_str().unwrap_or_default();
            match kind {
                "message" | "toolCall" => {
                    if record["message"]["role"] == "assistant" {
                        heads = NewHeads { in_turn: heads.all(), after: 0 };
                    }
                    self.history_tokens += record["tokens"].as_u64().unwrap_or_default();
                }
                "snapshot" => self.snapshot_ms = ms_of_day(record),
                "compaction" => {
                    heads.after += 1;
                    self.add_compaction(turn, record);
                    let times = ms_of_day(record).zip(self.snapshot_ms.take());
                    let elapsed = times.map_or(0, |(end, start)| end.saturating_sub(start));
                    longest = longest.max(elapsed);
                }
                "epoch" => {
                    heads.after += 1;
                    let cause = record["epoch"]["cause"].as_str().unwrap_or("?");
                    *self.epochs.entry(cause.to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        // The time of the model does not count.
        let model_time: Duration = requests.iter().filter_map(|request| request.summary).sum();
        let model_ms = u64::try_from(model_time.as_millis()).unwrap_or_default();
        let longest = longest.saturating_sub(model_ms);
        self.longest_compaction_ms = self.longest_compaction_ms.max(longest);
        heads
    }

    fn add_compaction(&mut self, turn: usize, record: &Value) {
        let compaction = &record["compaction"];
        let method = compaction["method"].as_str().unwrap_or("?");
        *self.methods.entry(method.to_owned()).or_default() += 1;
        let tokens = |name: &str| compaction[name].as_u64();
        let (before, after) = (tokens("tokensBefore"), tokens("tokensAfter"));
        if after >= before {
            self.n_grown += 1;
            let seq = &record["seq"];
            self.add_finding(turn, &format!("compaction #{seq} went from {before:?} to {after:?}"));
        }
        for (sum, name) in self.retained.iter_mut().zip(RETENTION) {
            let pair = &compaction["retention"][name];
            sum.0 += pair[0].as_u64().unwrap_or_default();
            sum.1 += pair[1].as_u64().unwrap_or_default();
        }
    }

    /// Adds requests to the model server. Each new head allows one prompt not to extend the previous one. Returns the
    /// number of heads that no prompt needed.
    pub(crate) fn add_requests(
        &mut self,
        turn: usize,
        requests: &[ModelRequest],
        n_heads: usize,
    ) -> usize {
        let mut shares = Vec::new();
        for request in requests {
            self.n_other_windows += u64::from(request.num_ctx != u64::from(self.window));
            if request.summary.is_some() {
                self.n_summaries += 1;
                self.summary_bytes += request.bytes as u64;
            }
            shares.extend(request.reused);
        }
        shares.sort_by(|a, b| percent(a.1, a.0).total_cmp(&percent(b.1, b.0)));
        let is_new = |(before, reused): &(usize, usize)| percent(*reused, *before) < 100.0;
        let n_used = shares.iter().take(n_heads).filter(|share| is_new(share)).count();
        for (before, reused) in shares.into_iter().skip(n_used) {
            self.reused_bytes.0 += before as u64;
            self.reused_bytes.1 += reused as u64;
            let share = percent(reused, before);
            if share < MIN_REUSED_PERCENT {
                let text = format!("the next prompt begins with {share} % of the last one");
                self.add_finding(turn, &text);
            }
            let lowest = self.lowest_reused_percent.map_or(share, |lowest| lowest.min(share));
            self.lowest_reused_percent = Some(lowest);
        }
        n_heads - n_used
    }

    /// Adds a built context; `previous` is the size of the prompt that it should extend.
    pub(crate) fn add_build(
        &mut self,
        turn: usize,
        elapsed: Duration,
        build: &Value,
        previous: Option<u64>,
    ) {
        self.builds.push(elapsed);
        let number = |name: &str| build[name].as_u64().unwrap_or_default();
        if number("contextTokens") > number("promptLimit") {
            self.n_overflows += 1;
            self.add_finding(turn, "a context has more tokens than its budget");
        }
        if build["transient"] == true {
            self.n_transient += 1;
        } else if let Some(previous) = previous {
            self.reused_tokens.0 += previous;
            self.reused_tokens.1 += number("prefixTokens").min(previous);
        }
    }

    /// Adds the result of a check.
    pub(crate) fn add_facts(&mut self, turn: usize, build: &Value, check: FactCheck) {
        self.n_checked += check.n_checked;
        self.n_lost += check.lost.len();
        let strategy = build["strategy"].as_str().unwrap_or_default();
        for fact in check.lost {
            self.add_finding(turn, &format!("lost with {strategy}: {fact}"));
        }
    }

    /// Adds a finding for people.
    pub(crate) fn add_finding(&mut self, turn: usize, text: &str) {
        let kind: String = text.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
        if self.findings.len() < MAX_FINDINGS || self.findings.contains_key(&kind) {
            let first = || (0, format!("turn {turn}: {text}"));
            self.findings.entry(kind).or_insert_with(first).0 += 1;
        }
    }

    /// Returns the limits that the run missed.
    pub(crate) fn missed(&self) -> Vec<String> {
        let n_failed: u64 = self.failures.values().sum();
        let mut limits = vec![
            (self.n_overflows == 0, format!("{} overflows", self.n_overflows)),
            (n_failed == 0, format!("{n_failed} of {} turns failed", self.turns)),
            (self.n_grown == 0, format!("{} compactions freed nothing", self.n_grown)),
            (self.n_lost == 0, format!("{} facts lost", self.n_lost)),
            (
                self.n_other_windows == 0,
                format!("{} requests named another window", self.n_other_windows),
            ),
        ];
        for (unit, (previous, reused)) in
            [("tokens", self.reused_tokens), ("bytes", self.reused_bytes)]
        {
            let share = percent(reused, previous);
            limits.push((share >= MIN_REUSED_PERCENT, format!("{share} % reused by {unit}")));
        }
        limits.into_iter().filter(|(is_met, _)| !is_met).map(|(_, text)| text).collect()
    }

    /// Returns the JSON row.
    pub(crate) fn row(&self) -> Row {
        let missed = self.missed();
        let (kept, all): (Vec<u64>, Vec<u64>) = self.retained.into_iter().unzip();
        let retained = RETENTION.iter().zip(self.retained);
        let retained: serde_json::Map<String, Value> = retained
            .filter(|(_, (_, all))| *all > 0)
            .map(|(name, (kept, all))| ((*name).to_owned(), json!(percent(kept, all))))
            .collect();
        Row::latency(&format!("{} {}", self.window, self.name), &self.builds)
            .with("window", self.window)
            .with("turns", self.turns)
            .with("modelCalls", self.n_model_calls)
            .with("compactions", self.n_compactions())
            .with("methods", json!(self.methods))
            .with("epochs", json!(self.epochs))
            .with("overflows", self.n_overflows)
            .with("failedTurns", json!(self.failures))
            .with("reusedPercent", percent(self.reused_tokens.1, self.reused_tokens.0))
            .with("reusedBytesPercent", percent(self.reused_bytes.1, self.reused_bytes.0))
            .with("lowestReusedPercent", self.lowest_reused_percent)
            .with("transientBuilds", self.n_transient)
            .with("sentTokens", self.sent_tokens)
            .with("fullHistoryTokens", self.full_history_tokens)
            .with("sentPercent", percent(self.sent_tokens, self.full_history_tokens))
            .with("summaries", self.n_summaries)
            .with("summaryPromptBytes", self.summary_bytes)
            .with("factsChecked", self.n_checked)
            .with("factsLost", self.n_lost)
            .with("longestBuildUs", rounded(self.builds.percentile_us(100.0)))
            .with("longestCompactionMs", self.longest_compaction_ms)
            .with("retainedPercent", Value::Object(retained))
            .with("keptPercent", percent(kept.iter().sum::<u64>(), all.iter().sum()))
            .with("rssKib", self.rss_kib)
            .with("seconds", rounded(self.elapsed.as_secs_f64()))
            .with("findings", json!(self.findings()))
            .with("missed", json!(missed))
            .bar("all limits", missed.is_empty())
    }

    fn n_compactions(&self) -> u64 {
        self.methods.values().sum()
    }

    /// Returns the findings for people.
    pub(crate) fn findings(&self) -> Vec<String> {
        self.findings.values().map(|(n, first)| format!("{n} x {first}")).collect()
    }
}

/// Returns a share in percent with two decimal places; 100 for a share of nothing.
fn percent<N: TryInto<u64>>(part: N, whole: N) -> f64 {
    let number = |n: N| n.try_into().unwrap_or_default();
    let (part, whole) = (number(part), number(whole));
    if whole == 0 {
        return 100.0;
    }
    let share = part as f64 / whole as f64;
    (share * 10_000.0).round() / 100.0
}

/// Returns the time of a record in milliseconds of its day.
fn ms_of_day(record: &Value) -> Option<u64> {
    let at = record["at"].as_str()?;
    let part = |from: usize, to: usize| at.get(from..to)?.parse::<u64>().ok();
    Some(((part(11, 13)? * 60 + part(14, 16)?) * 60 + part(17, 19)?) * 1000 + part(20, 23)?)
}
