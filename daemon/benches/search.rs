//! Search over generated history: how long indexing takes, how large the index is, how fast answers come, and how
//! long ripgrep takes over the same logs where it is installed.
//!
//! Run with `cargo bench --bench search`, or `OLLM_BENCH_MB=64 cargo bench --bench search` for less than 1 GB.
//! With `OLLM_BENCH_HOME=dir` the logs stay there for further runs of the same size, each of which makes the
//! catalog anew.

mod harness;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use harness::daemon::{Client, Daemon, Home};
use harness::logs::Logs;
use harness::process::{drop_caches, rss_kib};
use harness::report::{Report, Row, Samples, rounded};
use harness::text::Text;

const DEFAULT_MB: usize = 1024;
const MESSAGE_BYTES: usize = 1024;
const MESSAGES_A_SESSION: usize = 500;
/// Different queries of each kind; each is asked several times, as people refine what they look for.
const QUERIES: usize = 40;
const REPEATS: usize = 5;
const RG_QUERIES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(1800);

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let mb = std::env::var("OLLM_BENCH_MB").ok().map(|mb| mb.parse()).transpose()?;
    let mb: usize = mb.unwrap_or(DEFAULT_MB);
    let kept = std::env::var_os("OLLM_BENCH_HOME");
    let home = kept.as_ref().map_or_else(Home::new, |path| Home::at(Path::new(path)))?;
    let is_new = std::fs::read_dir(home.path().join("sessions"))?.next().is_none();
    let dir = home.path().join("sessions");
    let mut text = Text::new(7);
    let (mut phrases, mut text_bytes) = (Vec::new(), 0_u64);
    let mut logs = Logs::new(&dir);
    for session in 0..mb * 1024 * 1024 / (MESSAGE_BYTES * MESSAGES_A_SESSION) {
        let messages: Vec<String> =
            (0..MESSAGES_A_SESSION).map(|_| text.message(MESSAGE_BYTES)).collect();
        text_bytes += messages.iter().map(|message| message.len() as u64).sum::<u64>();
        if session % 7 == 0 && phrases.len() < QUERIES {
            phrases.extend(phrase_of(&messages[session % MESSAGES_A_SESSION]));
        }
        if is_new {
            logs.write(messages.into_iter())?;
        }
    }
    for suffix in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(home.path().join(format!("catalog.sqlite3{suffix}"))));
    }
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
    report.row(Row::new("memory after searches", "KiB").with("value", rss_kib(daemon.pid())?))?;
    daemon.stop()
}

/// Three words that follow each other.
fn phrase_of(message: &str) -> Option<String> {
    let words: Vec<&str> = message.split(' ').skip(20).collect();
    let plain = |word: &&str| !word.is_empty() && word.chars().all(|one| one.is_ascii_lowercase());
    words.windows(3).find(|words| words.iter().all(plain)).map(|words| words.join(" "))
}

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
fn index(report: &Report, daemon: &Daemon, text_bytes: u64) -> Result<()> {
    let took = daemon.wait_indexed(PATIENCE)?;
    let catalog = daemon.connect()?.call("daemon.status", &json!({}))?["catalog"].take();
    let size = catalog["sizeBytes"].as_f64().context("status tells the size")?;
    let text = text_bytes as f64;
    let a_gigabyte = took.as_secs_f64() / text * f64::from(1 << 30);
    let row = Row::new("index made anew, per GB", "s").with("value", rounded(a_gigabyte));
    report.row(row.at_most(a_gigabyte, 90.0))?;
    let a_kib = took.as_secs_f64() * 1e6 / text * 1024.0;
    let row = Row::new("indexing 1 KiB", "us").with("value", rounded(a_kib));
    report.row(row.at_most(a_kib, 100.0))?;
    let percent = size / text * 100.0;
    let row = Row::new("catalog, share of the text", "%").with("value", rounded(percent));
    report.row(row.at_most(percent, 20.0))
}

/// Queries of one kind, with the same as arguments for ripgrep.
struct Kind {
    name: &'static str,
    bar_p99_us: f64,
    queries: Vec<String>,
    /// As ripgrep patterns; it has no AND over a line that would not need two passes.
    patterns: Vec<String>,
}

fn query_kinds(text: &Text, phrases: Vec<String>) -> Vec<Kind> {
    let word = |rank: usize| text.word_of_rank(rank).to_owned();
    let ranked = |first: usize, step: usize| -> Vec<String> {
        (0..QUERIES).map(|at| word(first + at * step)).collect()
    };
    let (rare, common) = (ranked(40_000, 97), ranked(5, 3));
    let and = (0..QUERIES).map(|at| format!("{} {}", word(20 + at), word(900 + at * 7))).collect();
    // Words of every frequency that are longer than the prefix.
    let long = (100..).map(word).filter(|word| word.len() > 7).step_by(11);
    let prefixes: Vec<String> = long.take(QUERIES).map(|word| word[..5].to_owned()).collect();
    let words = |names: &[String]| names.iter().map(|name| format!("\\b{name}\\b")).collect();
    let patterns_of_prefixes = prefixes.iter().map(|name| format!("\\b{name}")).collect();
    vec![
        Kind { name: "rare word", bar_p99_us: 5e3, patterns: words(&rare), queries: rare },
        Kind { name: "common word", bar_p99_us: 5e3, patterns: words(&common), queries: common },
        Kind { name: "two words", bar_p99_us: 5e3, queries: and, patterns: Vec::new() },
        Kind {
            name: "phrase",
            bar_p99_us: 20e3,
            queries: phrases.iter().map(|phrase| format!("\"{phrase}\"")).collect(),
            patterns: phrases,
        },
        Kind {
            name: "prefix of five letters",
            bar_p99_us: 20e3,
            queries: prefixes.iter().map(|prefix| format!("{prefix}*")).collect(),
            patterns: patterns_of_prefixes,
        },
    ]
}

fn queries(report: &Report, client: &mut Client, kind: &Kind, dir: &Path) -> Result<()> {
    let mut samples = Samples::default();
    let (mut hits, mut slowest) = (0, (Duration::ZERO, ""));
    for repeat in 0..=REPEATS {
        for query in &kind.queries {
            let started = Instant::now();
            let found = search(client, query)?;
            let elapsed = started.elapsed();
            // The first round warms the caches.
            if repeat > 0 {
                samples.push(elapsed);
                hits += found;
                if elapsed > slowest.0 {
                    slowest = (elapsed, query);
                }
            }
        }
    }
    let p99 = samples.percentile_us(99.0);
    let row = Row::latency(&format!("search, {}", kind.name), &samples);
    let row = row.with("hits", hits / samples.count()).with("slowest", slowest.1);
    report.row(row.at_most(p99, kind.bar_p99_us))?;
    let mut rg = Samples::default();
    for pattern in kind.patterns.iter().take(RG_QUERIES) {
        let started = Instant::now();
        let mut command = Command::new("rg");
        command.args(["--count", "--no-messages", "-e", pattern]).arg(dir);
        if command.stdin(Stdio::null()).output().is_err() {
            return Ok(());
        }
        rg.push(started.elapsed());
    }
    if rg.count() == 0 {
        return Ok(());
    }
    let (theirs, ours) = (rg.percentile_us(50.0), samples.percentile_us(50.0));
    let row = Row::latency(&format!("ripgrep, {}", kind.name), &rg);
    report.row(row.at_least_times(theirs, ours, 20.0))
}

/// The first query of each word after every cache was dropped.
fn cold(report: &Report, client: &mut Client, kind: &Kind) -> Result<()> {
    let mut samples = Samples::default();
    for query in kind.queries.iter().take(10) {
        drop_caches();
        let started = Instant::now();
        search(client, query)?;
        samples.push(started.elapsed());
    }
    let p50 = samples.percentile_us(50.0);
    report.row(Row::latency("search, rare word, cold", &samples).at_most(p50, 30e3))
}

fn search(client: &mut Client, query: &str) -> Result<usize> {
    let found = client.call("session.search", &json!({ "query": query }))?;
    Ok(found["data"].as_array().map_or(0, Vec::len))
}
