//! Many sessions and a large one: the start with 10,000 on disk, a page of the list, resuming 128 MB and deleting it.
//!
//! Run with `cargo bench --bench store`. "Cold" is measured only where the system lets its caches be dropped.

mod harness;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use harness::daemon::{Client, Daemon, Home};
use harness::logs::Logs;
use harness::process::{drop_caches, rss_kib};
use harness::report::{Report, Row, Samples, rounded};

const SESSIONS: usize = 10_000;
const PAGES: usize = 500;
const STARTS: usize = 20;
const COLD: usize = 5;
/// 100,000 records of 1.3 KiB are 128 MB.
const LARGE_RECORDS: usize = 100_000;
const LARGE_TEXT_BYTES: usize = 1_080;
/// Small sessions beside the large one.
const OTHERS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let report = Report::new("store", &json!({ "coldIsPossible": drop_caches() }));
    many(&report)?;
    large(&report)
}

fn many(report: &Report) -> Result<()> {
    let home = Home::new()?;
    let dir = home.path().join("sessions");
    let mut logs = Logs::new(&dir);
    for session in 0..SESSIONS {
        let text = format!("question {session}: {}", "why is it so ".repeat(20));
        logs.write([text.clone(), text.clone(), text].into_iter())?;
    }
    let daemon = Daemon::start(&home)?;
    let built = daemon.wait_indexed(PATIENCE)?;
    let row = Row::new("catalog of 10,000 sessions, made anew", "ms");
    report.row(row.with("value", rounded(built.as_secs_f64() * 1e3)))?;
    let mut client = daemon.connect()?;
    let pages = Samples::take(PAGES, || page(&mut client))?;
    let p50 = pages.percentile_us(50.0);
    report.row(Row::latency("list, a page of 25 of 10,000", &pages).at_most(p50, 2_000.0))?;
    daemon.stop()?;
    let warm = starts(&home, STARTS, false)?;
    let p50 = warm.percentile_us(50.0);
    report.row(Row::latency("start to first page, warm", &warm).at_most(p50, 10_000.0))?;
    if drop_caches() {
        let cold = starts(&home, COLD, true)?;
        let p50 = cold.percentile_us(50.0);
        report.row(Row::latency("start to first page, cold", &cold).at_most(p50, 20_000.0))?;
    }
    Ok(())
}

/// From the start of the process to the first page that it answers.
fn starts(home: &Home, n: usize, is_cold: bool) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..n {
        if is_cold {
            drop_caches();
        }
        let started = Instant::now();
        let daemon = Daemon::start(home)?;
        page(&mut daemon.connect()?)?;
        samples.push(started.elapsed());
        // Not in the middle of the check of log sizes, which the next start would have to do again.
        daemon.wait_indexed(PATIENCE)?;
        daemon.stop()?;
    }
    Ok(samples)
}

fn page(client: &mut Client) -> Result<()> {
    let page = client.call("session.list", &json!({ "limit": 25 }))?;
    ensure!(page["data"].as_array().is_some_and(|data| data.len() == 25), "a page has 25 sessions");
    Ok(())
}

fn large(report: &Report) -> Result<()> {
    let home = Home::new()?;
    let dir = home.path().join("sessions");
    let mut logs = Logs::new(&dir);
    let text = "what was said and what was answered ".repeat(LARGE_TEXT_BYTES / 36 + 1);
    let texts = (0..LARGE_RECORDS).map(|at| format!("{at}: {}", &text[..LARGE_TEXT_BYTES]));
    let id = logs.write(texts)?;
    let bytes = logs.bytes();
    // Beside others: the last session would take the whole search index with it.
    for session in 0..OTHERS {
        logs.write([format!("question {session}"), "answer".to_owned()].into_iter())?;
    }
    let daemon = Daemon::start(&home)?;
    daemon.wait_indexed(PATIENCE)?;
    daemon.stop()?;
    for (name, is_cold) in [("resume of 128 MB, warm", false), ("resume of 128 MB, cold", true)] {
        let (mut samples, mut growth) = (Samples::default(), 0);
        for _ in 0..COLD {
            let daemon = Daemon::start(&home)?;
            daemon.wait_indexed(PATIENCE)?;
            if is_cold && !drop_caches() {
                return Ok(());
            }
            let before = rss_kib(daemon.pid())?;
            samples.push(resume(&daemon, &id)?);
            growth = growth.max(rss_kib(daemon.pid())?.saturating_sub(before));
            daemon.stop()?;
        }
        let p50 = samples.percentile_us(50.0);
        report.row(Row::latency(name, &samples).with("logBytes", bytes).at_most(p50, 25_000.0))?;
        #[expect(clippy::cast_precision_loss, reason = "kilobytes of one process")]
        let kib = growth as f64;
        let row = Row::new(&format!("memory growth, {name}"), "KiB").with("value", growth);
        report.row(row.at_most(kib, 8_192.0))?;
    }
    without_catalog(report, &home, &id)?;
    deletion(report, &home, &id)
}

/// Until the answer, and until no word of the session is left in the search index.
fn deletion(report: &Report, home: &Home, id: &str) -> Result<()> {
    let daemon = Daemon::start(home)?;
    daemon.wait_indexed(PATIENCE)?;
    let mut client = daemon.connect()?;
    let started = Instant::now();
    client.call("session.delete", &json!({ "sessionId": id }))?;
    let answered = started.elapsed().as_secs_f64() * 1e3;
    loop {
        let status = client.call("daemon.status", &json!({}))?;
        if status["catalog"]["forgetting"] == 0 {
            break;
        }
        ensure!(started.elapsed() < PATIENCE, "the words of the session are still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    let cleaned = started.elapsed().as_secs_f64() * 1e3;
    let row = Row::new("delete of 128 MB", "ms").with("value", rounded(answered));
    report.row(row.at_most(answered, 3_000.0))?;
    report.row(Row::new("delete of 128 MB, words too", "ms").with("value", rounded(cleaned)))?;
    daemon.stop()
}

fn without_catalog(report: &Report, home: &Home, id: &str) -> Result<()> {
    let mut samples = Samples::default();
    for _ in 0..COLD {
        for suffix in ["", "-wal", "-shm"] {
            drop(std::fs::remove_file(home.path().join(format!("catalog.sqlite3{suffix}"))));
        }
        // It begins to make the catalog anew at once, beside this call.
        let daemon = Daemon::start(home)?;
        samples.push(resume(&daemon, id)?);
    }
    let p50 = samples.percentile_us(50.0);
    let row = Row::latency("resume of 128 MB, warm, without a catalog", &samples);
    report.row(row.at_most(p50, 250_000.0))
}

fn resume(daemon: &Daemon, id: &str) -> Result<Duration> {
    let mut client = daemon.connect()?;
    let started = Instant::now();
    let page = client.call("session.resume", &json!({ "sessionId": id }))?;
    let elapsed = started.elapsed();
    let records = page["records"].as_array().context("a page has records")?;
    ensure!(records.len() == 50, "the last page has 50 records");
    Ok(elapsed)
}
