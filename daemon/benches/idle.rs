//! What a daemon costs that has nothing to do: memory and wake-ups.
//!
//! Run with `cargo bench --bench idle`; it takes about three minutes.

mod harness;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use harness::daemon::{Client, Daemon, Home};
use harness::process::{rss_kib, status_number};
use harness::report::{Report, Row, rounded};

const BAR_KIB: f64 = 15.0 * 1024.0;
const MESSAGES: usize = 400;
const SETTLE: Duration = Duration::from_secs(75);
const WATCH: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let home = Home::new()?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("idle", &json!({ "messages": MESSAGES }));
    std::thread::sleep(Duration::from_secs(1));
    memory(&report, &daemon, "memory, fresh")?;
    work(&mut daemon.connect()?)?;
    let row = Row::new("memory, right after work", "KiB").with("value", rss_kib(daemon.pid())?);
    report.row(row)?;
    std::thread::sleep(SETTLE);
    memory(&report, &daemon, "memory, a minute after work")?;
    let before = wakeups(daemon.pid())?;
    std::thread::sleep(WATCH);
    let mut by_thread = BTreeMap::new();
    for (thread, count) in wakeups(daemon.pid())? {
        let more = count - before.get(&thread).copied().unwrap_or_default();
        if more > 0 {
            by_thread.insert(thread, Value::from(more));
        }
    }
    let total: u64 = by_thread.values().filter_map(Value::as_u64).sum();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let a_minute = total as f64 * 60.0 / WATCH.as_secs_f64();
    // The socket is looked at twice a minute and unused sessions once; each time wakes up to two threads, and
    // the runtime wakes once or twice on the way to a timer that is far.
    let row = Row::new("wake-ups", "1/min").with("value", rounded(a_minute));
    report.row(
        row.with("byThread", Value::Object(by_thread.into_iter().collect()))
            .at_most(a_minute, 12.0),
    )?;
    daemon.stop()
}

fn memory(report: &Report, daemon: &Daemon, name: &str) -> Result<()> {
    let kib = rss_kib(daemon.pid())?;
    #[expect(clippy::cast_precision_loss, reason = "kilobytes of one process")]
    let value = kib as f64;
    report.row(Row::new(name, "KiB").with("value", kib).at_most(value, BAR_KIB))
}

/// A conversation with everything that a client does beside it.
fn work(client: &mut Client) -> Result<()> {
    let created = client.call("session.create", &json!({ "model": "bench" }))?;
    let id = created["session"]["sessionId"].as_str().context("a session has an id")?.to_owned();
    for at in 0..MESSAGES {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        let content = format!("message {at}: {}", "some words that follow each other ".repeat(30));
        let message = json!({ "role": role, "content": content });
        client.call("session.record", &json!({ "sessionId": id, "message": message }))?;
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

/// How often each thread was woken so far.
fn wakeups(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let dir = thread?.path();
        let name = std::fs::read_to_string(dir.join("comm"))?;
        let id = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let count = status_number(&dir.join("status"), "voluntary_ctxt_switches")?;
        found.insert(format!("{} {id}", name.trim()), count);
    }
    Ok(found)
}
