//! The cost of an idle daemon: memory and wake-ups.
//!
//! Run with `cargo bench --bench idle`; it takes about three minutes.

mod harness;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use harness::daemon::{Client, Daemon, Home, message, status_number};
use harness::report::{Report, Row, is_bench_run, rounded};

const MAX_MEMORY_KIB: f64 = 15.0 * 1024.0;
/// The daemon checks its socket twice a minute and unused sessions once; each check wakes up to two threads, and the
/// runtime wakes once or twice on the way to a distant timer.
const MAX_WAKEUPS_PER_MINUTE: f64 = 12.0;
const MESSAGES: usize = 400;
/// The time after which the daemon has released what it keeps for further work.
const SETTLE: Duration = Duration::from_secs(75);
const WATCH: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let home = Home::new()?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("idle", &json!({ "messages": MESSAGES }));
    std::thread::sleep(Duration::from_secs(1));
    memory(&report, &daemon, "memory, after the start")?;
    work(&mut daemon.connect()?)?;
    report.print(Row::value("memory, right after work", "KiB", daemon.rss_kib()?))?;
    std::thread::sleep(SETTLE);
    memory(&report, &daemon, "memory, a minute after work")?;
    let before = wakeups(daemon.pid())?;
    std::thread::sleep(WATCH);
    let after = wakeups(daemon.pid())?.into_iter().map(|(thread, count)| {
        let n_new = count - before.get(&thread).copied().unwrap_or_default();
        (thread, n_new)
    });
    let by_thread: BTreeMap<String, u64> = after.filter(|(_, n_new)| *n_new > 0).collect();
    let per_minute = by_thread.values().sum::<u64>() as f64 * 60.0 / WATCH.as_secs_f64();
    let row = Row::value("wake-ups", "1/min", rounded(per_minute));
    let row = row.with("byThread", json!(by_thread));
    report.print(row.at_most(per_minute, MAX_WAKEUPS_PER_MINUTE))?;
    daemon.stop()
}

fn memory(report: &Report, daemon: &Daemon, name: &str) -> Result<()> {
    let kib = daemon.rss_kib()?;
    report.print(Row::value(name, "KiB", kib).at_most(kib as f64, MAX_MEMORY_KIB))
}

/// Records a conversation and calls what a client calls besides.
fn work(client: &mut Client) -> Result<()> {
    let id = client.create(&json!({ "model": "bench" }))?;
    for at in 0..MESSAGES {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        let text = format!("message {at}: {}", "some words that follow each other ".repeat(30));
        client.call("session.record", &message(&id, role, &text))?;
        if at % 20 == 0 {
            client.call("context.build", &json!({ "sessionId": id, "contextSize": 8192 }))?;
            client.call("session.list", &json!({}))?;
            client.call("session.search", &json!({ "query": "words" }))?;
            client.call("session.get", &json!({ "sessionId": id, "limit": 100 }))?;
        }
    }
    client.call("session.export", &json!({ "sessionId": id, "format": "markdown" }))?;
    Ok(())
}

/// Returns the number of wake-ups of each thread so far.
fn wakeups(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let dir = thread?.path();
        let name = std::fs::read_to_string(dir.join("comm"))?;
        let id = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let count = status_number(&dir.join("status"), "voluntary_ctxt_switches")?;
        counts.insert(format!("{} {id}", name.trim()), count);
    }
    Ok(counts)
}
