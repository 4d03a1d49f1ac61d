//! Many sessions and a large one: the start with 10,000 sessions, pages of the list, and the resume and the delete of
//! a session of 128 MB.
//!
//! Run with `cargo bench --bench store`. Cold caches are measured only if the system permits to drop them.

mod harness;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use harness::daemon::{Client, Daemon, Home, drop_caches};
use harness::generate::{LARGE_RECORDS, LogWriter, plain_texts};
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

const SESSIONS: usize = 10_000;
const PAGES: usize = 500;
const STARTS: usize = 20;
const COLD_STARTS: usize = 5;
const RESUMES: usize = 5;
/// The number of small sessions beside the large one.
const OTHERS: usize = 50;
/// The time in which the catalog must be built.
const INDEX_LIMIT: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let report = Report::new("store", &json!({ "coldIsPossible": drop_caches() }));
    many(&report)?;
    large(&report)
}

/// Measures lists and starts with many sessions.
fn many(report: &Report) -> Result<()> {
    let home = Home::new()?;
    let dir = home.sessions();
    let mut logs = LogWriter::new(&dir);
    for session in 0..SESSIONS {
        let text = format!("question {session}: {}", "why is it so ".repeat(20));
        logs.write([text.clone(), text.clone(), text].into_iter())?;
    }
    let daemon = Daemon::start(&home)?;
    let rebuilt_ms = daemon.wait_indexed(INDEX_LIMIT)?.as_secs_f64() * 1e3;
    report.print(Row::value("catalog of 10,000 sessions, rebuilt", "ms", rounded(rebuilt_ms)))?;
    let mut client = daemon.connect()?;
    let pages = Samples::take(PAGES, || page(&mut client))?;
    let row = Row::latency("list, a page of 25 of 10,000", &pages);
    report.print(row.at_most(pages.p50_us(), 2_000.0))?;
    let titles = Samples::take(PAGES, || by_title(&mut client))?;
    let row = Row::latency("list by a word of one title of 10,000", &titles);
    report.print(row.at_most(titles.p50_us(), 5_000.0))?;
    daemon.stop()?;
    let warm = starts(&home, STARTS, false)?;
    let row = Row::latency("start to first page, warm", &warm);
    report.print(row.at_most(warm.p50_us(), 10_000.0))?;
    if drop_caches() {
        let cold = starts(&home, COLD_STARTS, true)?;
        let row = Row::latency("start to first page, cold", &cold);
        report.print(row.at_most(cold.p50_us(), 20_000.0))?;
    }
    Ok(())
}

/// Times from the start of the process to the reply with the first page.
fn starts(home: &Home, n: usize, is_cold: bool) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..n {
        if is_cold {
            drop_caches();
        }
        let start = Instant::now();
        let daemon = Daemon::start(home)?;
        page(&mut daemon.connect()?)?;
        samples.push(start.elapsed());
        // Waits for the check of log sizes, which the next start would have to repeat otherwise.
        daemon.wait_indexed(INDEX_LIMIT)?;
        daemon.stop()?;
    }
    Ok(samples)
}

/// Requests the first page of the list.
fn page(client: &mut Client) -> Result<()> {
    let page = client.call("session.list", &json!({ "limit": 25 }))?;
    ensure!(page["data"].as_array().is_some_and(|data| data.len() == 25), "a page has 25 sessions");
    Ok(())
}

/// Lists the sessions with a word that one of the older titles has.
fn by_title(client: &mut Client) -> Result<()> {
    let page = client.call("session.list", &json!({ "title": "1234:", "limit": 25 }))?;
    ensure!(page["data"].as_array().is_some_and(|data| data.len() == 1), "a title has the word");
    Ok(())
}

/// Measures the resume and the delete of one large session.
fn large(report: &Report) -> Result<()> {
    let home = Home::new()?;
    let dir = home.sessions();
    let mut logs = LogWriter::new(&dir);
    let id = logs.write(plain_texts(LARGE_RECORDS))?;
    let bytes = logs.bytes();
    // Without other sessions, a delete would remove the whole search index.
    for session in 0..OTHERS {
        logs.write([format!("question {session}"), "answer".to_owned()].into_iter())?;
    }
    let daemon = Daemon::start(&home)?;
    daemon.wait_indexed(INDEX_LIMIT)?;
    daemon.stop()?;
    for (name, is_cold) in [("resume of 128 MB, warm", false), ("resume of 128 MB, cold", true)] {
        let (mut samples, mut growth) = (Samples::default(), 0);
        for _ in 0..RESUMES {
            let daemon = Daemon::start(&home)?;
            daemon.wait_indexed(INDEX_LIMIT)?;
            if is_cold && !drop_caches() {
                return Ok(());
            }
            let before = daemon.rss_kib()?;
            samples.push(resume(&daemon, &id)?);
            growth = growth.max(daemon.rss_kib()?.saturating_sub(before));
            daemon.stop()?;
        }
        let row = Row::latency(name, &samples).with("logBytes", bytes);
        report.print(row.at_most(samples.p50_us(), 25_000.0))?;
        let row = Row::value(&format!("memory growth, {name}"), "KiB", growth);
        report.print(row.at_most(growth as f64, 8_192.0))?;
    }
    without_catalog(report, &home, &id)?;
    deletion(report, &home, &id)
}

/// Measures a delete until its reply, and until the search index contains no word of the session.
fn deletion(report: &Report, home: &Home, id: &str) -> Result<()> {
    let daemon = Daemon::start(home)?;
    daemon.wait_indexed(INDEX_LIMIT)?;
    let mut client = daemon.connect()?;
    let start = Instant::now();
    let replied_ms =
        client.time("session.delete", &json!({ "sessionId": id }))?.as_secs_f64() * 1e3;
    while client.call("daemon.status", &json!({}))?["catalog"]["forgetting"] != 0 {
        ensure!(start.elapsed() < INDEX_LIMIT, "the search index still contains the session");
        std::thread::sleep(Duration::from_millis(10));
    }
    let cleaned_ms = start.elapsed().as_secs_f64() * 1e3;
    let row = Row::value("delete of 128 MB", "ms", rounded(replied_ms));
    report.print(row.at_most(replied_ms, 3_000.0))?;
    report.print(Row::value("delete of 128 MB, with its words", "ms", rounded(cleaned_ms)))?;
    daemon.stop()
}

/// Measures the resume while the catalog is rebuilt.
fn without_catalog(report: &Report, home: &Home, id: &str) -> Result<()> {
    let mut samples = Samples::default();
    for _ in 0..RESUMES {
        home.remove_catalog();
        let daemon = Daemon::start(home)?;
        samples.push(resume(&daemon, id)?);
    }
    let row = Row::latency("resume of 128 MB, warm, without a catalog", &samples);
    report.print(row.at_most(samples.p50_us(), 250_000.0))
}

fn resume(daemon: &Daemon, id: &str) -> Result<Duration> {
    let mut client = daemon.connect()?;
    let (page, elapsed) = client.timed("session.resume", &json!({ "sessionId": id }))?;
    let records = page["records"].as_array().context("a page has records")?;
    ensure!(records.len() == 50, "the last page has 50 records");
    Ok(elapsed)
}
