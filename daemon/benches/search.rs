//! Search over generated logs: the time of indexing, the size of the index, the time of queries, and the time that
//! ripgrep needs for the same logs, if it is installed.
//!
//! Run with `cargo bench --bench search`, or `OLLM_BENCH_MB=64 cargo bench --bench search` for less than 1 GB. With
//! `OLLM_BENCH_HOME=dir` the logs are kept for further runs of the same size, each of which rebuilds the catalog.
//! `OLLM_BENCH_ONLY_LOGS` ends the run after the logs are written.

mod harness;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use harness::arguments::variable;
use harness::daemon::{Client, Daemon, Home, drop_caches};
use harness::generate::{LogWriter, TextGenerator};
use harness::report::{Report, Row, Samples, Slowest, is_bench_run, rounded};

const DEFAULT_MB: usize = 1024;
const MESSAGE_BYTES: usize = 1024;
const MESSAGES_PER_SESSION: usize = 500;
/// The queries of each kind, each of which is repeated, as people refine their queries.
const QUERIES: usize = 40;
const REPEATS: usize = 5;
const RG_QUERIES: usize = 5;
/// The time in which the catalog must be built.
const INDEX_LIMIT: Duration = Duration::from_secs(1800);

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let mb: usize = variable("OLLM_BENCH_MB", DEFAULT_MB)?;
    let home = Home::kept_or_new()?;
    let dir = home.sessions();
    let is_new = std::fs::read_dir(&dir)?.next().is_none();
    let mut text = TextGenerator::new(7);
    let (mut phrases, mut text_bytes) = (Vec::new(), 0_u64);
    let mut logs = LogWriter::new(&dir);
    for session in 0..mb * 1024 * 1024 / (MESSAGE_BYTES * MESSAGES_PER_SESSION) {
        let messages: Vec<String> =
            (0..MESSAGES_PER_SESSION).map(|_| text.message(MESSAGE_BYTES)).collect();
        text_bytes += messages.iter().map(|message| message.len() as u64).sum::<u64>();
        if session % 7 == 0 && phrases.len() < QUERIES {
            phrases.extend(phrase_of(&messages[session % MESSAGES_PER_SESSION]));
        }
        if is_new {
            logs.write(messages.into_iter())?;
        }
    }
    home.remove_catalog();
    let report =
        Report::new("search", &json!({ "textBytes": text_bytes, "logBytes": logs.bytes() }));
    if std::env::var_os("OLLM_BENCH_ONLY_LOGS").is_some() {
        return Ok(());
    }
    let daemon = Daemon::start(&home)?;
    index(&report, &daemon, text_bytes)?;
    let kinds = query_kinds(&text, phrases);
    let mut client = daemon.connect()?;
    for kind in &kinds {
        queries(&report, &mut client, kind, &dir)?;
    }
    if drop_caches() {
        cold(&report, &mut client, &kinds[0])?;
    }
    report.print(Row::value("memory after searches", "KiB", daemon.rss_kib()?))?;
    daemon.stop()
}

/// Returns three consecutive words of a message.
fn phrase_of(message: &str) -> Option<String> {
    let words: Vec<&str> = message.split(' ').skip(20).collect();
    let is_word = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
    words.windows(3).find(|words| words.iter().all(is_word)).map(|words| words.join(" "))
}

fn index(report: &Report, daemon: &Daemon, text_bytes: u64) -> Result<()> {
    let seconds = daemon.wait_indexed(INDEX_LIMIT)?.as_secs_f64();
    let catalog = daemon.connect()?.call("daemon.status", &json!({}))?["catalog"].take();
    let size = catalog["sizeBytes"].as_f64().context("status reports the size")?;
    let text = text_bytes as f64;
    for (name, unit, value, bar) in [
        ("index rebuilt, per GB", "s", seconds / text * f64::from(1 << 30), 90.0),
        ("indexing 1 KiB", "us", seconds * 1e6 / text * 1024.0, 100.0),
        ("catalog, share of the text", "%", size / text * 100.0, 20.0),
    ] {
        report.print(Row::value(name, unit, rounded(value)).at_most(value, bar))?;
    }
    Ok(())
}

/// Queries of one kind.
struct QueryKind {
    name: &'static str,
    bar_p99_us: f64,
    queries: Vec<String>,
    /// The same queries as patterns of ripgrep; none for several words, for which it needs several passes.
    patterns: Vec<String>,
}

fn query_kinds(text: &TextGenerator, phrases: Vec<String>) -> Vec<QueryKind> {
    let word = |rank: usize| text.word_of_rank(rank).to_owned();
    let ranked = |first: usize, step: usize| -> Vec<String> {
        (0..QUERIES).map(|at| word(first + at * step)).collect()
    };
    let (rare, common) = (ranked(40_000, 97), ranked(5, 3));
    let and = (0..QUERIES).map(|at| format!("{} {}", word(20 + at), word(900 + at * 7))).collect();
    // Words of every frequency that are longer than a prefix.
    let long = (100..).map(word).filter(|word| word.len() > 7).step_by(11);
    let prefixes: Vec<String> = long.take(QUERIES).map(|word| word[..5].to_owned()).collect();
    let words = |names: &[String]| names.iter().map(|name| format!("\\b{name}\\b")).collect();
    let patterns_of_prefixes = prefixes.iter().map(|name| format!("\\b{name}")).collect();
    vec![
        QueryKind { name: "rare word", bar_p99_us: 5e3, patterns: words(&rare), queries: rare },
        QueryKind {
            name: "common word",
            bar_p99_us: 5e3,
            patterns: words(&common),
            queries: common,
        },
        QueryKind { name: "two words", bar_p99_us: 5e3, queries: and, patterns: Vec::new() },
        QueryKind {
            name: "phrase",
            bar_p99_us: 20e3,
            queries: phrases.iter().map(|phrase| format!("\"{phrase}\"")).collect(),
            patterns: phrases,
        },
        QueryKind {
            name: "prefix of five letters",
            bar_p99_us: 20e3,
            queries: prefixes.iter().map(|prefix| format!("{prefix}*")).collect(),
            patterns: patterns_of_prefixes,
        },
    ]
}

fn queries(report: &Report, client: &mut Client, kind: &QueryKind, dir: &Path) -> Result<()> {
    let (n_queries, mut hits) = (kind.queries.len(), 0);
    let queries = kind.queries.iter().cycle().take(n_queries * (REPEATS + 1));
    let Slowest(samples, slowest) = Slowest::take(queries, n_queries, |query| {
        hits += search(client, query)?;
        Ok(())
    })?;
    let p99 = samples.percentile_us(99.0);
    let row = Row::latency(&format!("search, {}", kind.name), &samples);
    let row = row.with("hits", hits / n_queries / (REPEATS + 1)).with("slowest", slowest.cloned());
    report.print(row.at_most(p99, kind.bar_p99_us))?;
    let mut rg = Samples::default();
    for pattern in kind.patterns.iter().take(RG_QUERIES) {
        let start = Instant::now();
        let mut command = Command::new("rg");
        command.args(["--count", "--no-messages", "-e", pattern]).arg(dir);
        if command.stdin(Stdio::null()).output().is_err() {
            return Ok(());
        }
        rg.push(start.elapsed());
    }
    if rg.count() == 0 {
        return Ok(());
    }
    let row = Row::latency(&format!("ripgrep, {}", kind.name), &rg);
    report.print(row.at_least_times(rg.p50_us(), samples.p50_us(), 20.0))
}

/// Measures queries after the caches were dropped.
fn cold(report: &Report, client: &mut Client, kind: &QueryKind) -> Result<()> {
    let mut samples = Samples::default();
    for query in kind.queries.iter().take(10) {
        drop_caches();
        let start = Instant::now();
        search(client, query)?;
        samples.push(start.elapsed());
    }
    let row = Row::latency("search, rare word, cold", &samples);
    report.print(row.at_most(samples.p50_us(), 30e3))
}

/// Returns the number of hits on the first page.
fn search(client: &mut Client, query: &str) -> Result<usize> {
    let found = client.call("session.search", &json!({ "query": query }))?;
    Ok(found["data"].as_array().map_or(0, Vec::len))
}
