//! Moving in a large session: branches, undo, redo, snapshots and restores, a page of the tree, the operations, and a fork.
//!
//! Run with `cargo bench --bench undo`. Writes are compared with one append and sync of the same run, and the fork with a
//! copy of the log.

mod harness;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use harness::daemon::{Client, Daemon, Home, message};
use harness::generate::{LARGE_RECORDS, LogWriter, plain_texts};
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

const ROUNDS: usize = 30;
const FORKS: usize = 5;
const INDEX_LIMIT: Duration = Duration::from_secs(300);
/// More records than a context of 8,192 tokens holds.
const SHORT_RECORDS: usize = 100;
/// The bar of a snapshot, compared with one of a session that has little more than the context: that of the long session
/// walks over its path as well.
const SNAPSHOT_RATIO: f64 = 5.0;
/// The bar of a move, in microseconds.
const MOVE_US: f64 = 20_000.0;
/// The bar of a page of the tree, in microseconds.
const TREE_US: f64 = 10_000.0;
/// The bar of a fork on a file system that shares bytes, in milliseconds.
const FORK_MS: f64 = 200.0;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let report = Report::new("undo", &json!({ "records": LARGE_RECORDS }));
    let home = Home::new()?;
    home.write_config("snapshots: { maxCount: 2 }\n")?;
    let sessions = home.sessions();
    let mut logs = LogWriter::new(&sessions);
    let id = logs.write(plain_texts(LARGE_RECORDS))?;
    let short = logs.write(plain_texts(SHORT_RECORDS))?;
    let daemon = Daemon::start(&home)?;
    daemon.wait_indexed(INDEX_LIMIT)?;
    let mut client = daemon.connect()?;
    let snapshot_us = snapshot_us(&mut client, &short)?;
    let sync = sync_us(&home)?;
    let mut on = |method: &str, mut params: Value| -> Result<(Value, Duration)> {
        params["sessionId"] = json!(id);
        client.timed(method, &params)
    };
    // Opens the session, and gives it a context of its own.
    on("context.build", json!({ "contextSize": 8192 }))?;
    let first = on("session.tree", json!({ "limit": 1 }))?.0;
    let leaf = first["leaf"].as_u64().context("a session has a leaf")?;
    let names = ["snapshot.create", "branch", "restore", "undo", "redo", "tree", "operations"];
    let mut samples: Vec<Samples> = names.iter().map(|_| Samples::default()).collect();
    for round in 0..ROUNDS as u64 {
        let (taken, create) = on("snapshot.create", json!({}))?;
        let snapshot = taken["snapshot"]["snapshotId"].clone();
        let (_, branch) = on("session.branch", json!({ "toSeq": leaf / 2 + round }))?;
        let (_, restore) = on("snapshot.restore", json!({ "snapshotId": snapshot }))?;
        let (_, undo) = on("session.undo", json!({ "steps": 2 }))?;
        let (_, redo) = on("session.redo", json!({ "steps": 2 }))?;
        let (_, tree) = on("session.tree", json!({ "cursor": (leaf / 2).to_string() }))?;
        let (_, operations) = on("session.operations", json!({}))?;
        on("session.undo", json!({ "steps": 2 }))?;
        on("snapshot.delete", json!({ "snapshotId": snapshot }))?;
        let all = [create, branch, restore, undo, redo, tree, operations];
        samples.iter_mut().zip(all).for_each(|(samples, one)| samples.push(one));
    }
    for (name, samples) in names.iter().zip(&samples) {
        let row = Row::latency(&format!("{name}, 100,000 records"), samples);
        let p50 = samples.p50_us();
        let row = row.with("timesOfOneSync", rounded(p50 / sync));
        report.print(match *name {
            "snapshot.create" => row.at_most_times(p50, snapshot_us, SNAPSHOT_RATIO),
            "tree" => row.at_most(p50, TREE_US),
            _ => row.at_most(p50, MOVE_US),
        })?;
    }
    forks(&report, &home, &mut client, &id)?;
    drop(client);
    daemon.stop()
}

/// Measures snapshots of a session whose context holds nearly everything, in microseconds.
fn snapshot_us(client: &mut Client, id: &str) -> Result<f64> {
    client.call("context.build", &json!({ "sessionId": id, "contextSize": 8192 }))?;
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        let (taken, elapsed) = client.timed("snapshot.create", &json!({ "sessionId": id }))?;
        samples.push(elapsed);
        let snapshot = &taken["snapshot"]["snapshotId"];
        client.call("snapshot.delete", &json!({ "snapshotId": snapshot }))?;
    }
    Ok(samples.p50_us())
}

/// Measures one append of a kilobyte and its sync, in microseconds.
fn sync_us(home: &Home) -> Result<f64> {
    let path = home.path().join("sync");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let samples = Samples::take(ROUNDS, || {
        file.write_all(&[b'.'; 1024])?;
        Ok(file.sync_data()?)
    })?;
    fs::remove_file(path)?;
    Ok(samples.p50_us())
}

/// Measures forks of the whole session, and copies of its log.
fn forks(report: &Report, home: &Home, client: &mut Client, id: &str) -> Result<()> {
    let log = home.sessions().join(format!("{id}.jsonl"));
    let copy = home.path().join("copy");
    let (mut forked, mut copied) = (Samples::default(), Samples::default());
    for _ in 0..FORKS {
        let started = Instant::now();
        fs::copy(&log, &copy)?;
        fs::File::open(&copy)?.sync_all()?;
        copied.push(started.elapsed());
        fs::remove_file(&copy)?;
        let (fork, elapsed) = client.timed("session.fork", &json!({ "sessionId": id }))?;
        forked.push(elapsed);
        let fork = fork["session"]["sessionId"].as_str().context("a fork has an id")?.to_owned();
        client.call("session.record", &message(&fork, "user", "it works"))?;
        client.call("session.delete", &json!({ "sessionId": fork }))?;
    }
    let row = Row::latency("fork of 128 MB", &forked);
    let bar = (FORK_MS * 1e3).max(copied.p50_us() * 1.5);
    report.print(row.with("copyUs", rounded(copied.p50_us())).at_most(forked.p50_us(), bar))
}
