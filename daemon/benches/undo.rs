//! Moving in a large session: branches, undo, redo, snapshots and restores, a page of the tree, the operations, and a fork.
//!
//! Also an undo that puts 20,000 files back.
//!
//! Run with `cargo bench --bench undo`; `-- --files` measures the files only. Writes are compared with one append and sync of the same run, the fork with a
//! copy of the log, and files that are put back with the same writes and renames and one sync of their file system.

#![expect(clippy::disallowed_methods, reason = "the files are those of a user")]

mod harness;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, RenameFlags};
use serde_json::{Value, json};

use harness::arguments::Arguments;
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
/// The files that one undo puts back, in some directories, and how many of them one call wrote.
const N_FILES: usize = 20_000;
const FILE_DIRS: usize = 100;
const FILES_PER_CALL: usize = 1000;
const FILE_ROUNDS: usize = 3;
/// The threads that remove the files of the benchmark.
const REMOVERS: usize = 32;
/// The bar of an undo with files, compared with the same writes and renames and one sync of the file system.
const FILES_RATIO: f64 = 2.0;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let mut arguments = Arguments::new();
    let only_files = arguments.flag("--files");
    ensure!(arguments.rest()?.is_empty(), "the only argument is --files");
    let report = Report::new("undo", &json!({ "records": LARGE_RECORDS }));
    let home = Home::new()?;
    if !only_files {
        moves(&report, &home)?;
    }
    let daemon = Daemon::start(&home)?;
    files(&report, &mut daemon.connect()?)?;
    daemon.stop()?;
    remove_files(home.path())
}

/// Measures moves in a large session.
fn moves(report: &Report, home: &Home) -> Result<()> {
    home.write_config("snapshots: { maxCount: 2 }\n")?;
    let sessions = home.sessions();
    let mut logs = LogWriter::new(&sessions);
    let id = logs.write(plain_texts(LARGE_RECORDS))?;
    let short = logs.write(plain_texts(SHORT_RECORDS))?;
    let daemon = Daemon::start(home)?;
    daemon.wait_indexed(INDEX_LIMIT)?;
    let mut client = daemon.connect()?;
    let snapshot_us = snapshot_us(&mut client, &short)?;
    let sync = sync_us(home)?;
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
    forks(report, home, &mut client, &id)?;
    drop(client);
    daemon.stop()
}

/// Measures undo and redo of a turn that wrote many files, and the least that this takes.
fn files(report: &Report, client: &mut Client) -> Result<()> {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let project = scratch.path().canonicalize()?.join("project");
    for dir in 0..FILE_DIRS {
        fs::create_dir_all(project.join(dir.to_string()))?;
    }
    let id = client.create(&json!({ "projectPath": project }))?;
    client.call("session.record", &message(&id, "user", "change all files"))?;
    for (at, names) in file_names().chunks(FILES_PER_CALL).enumerate() {
        let mut writes = Vec::new();
        for name in names {
            fs::write(project.join(name), content(name, "after"))?;
            writes.push(json!({ "path": name, "before": { "text": content(name, "before") },
                "after": { "text": content(name, "after") } }));
        }
        let call = json!({ "id": at.to_string(), "name": "write",
            "result": { "llmContent": "ok" }, "writes": writes });
        client.call("session.recordToolCall", &json!({ "sessionId": id, "toolCall": call }))?;
    }
    client.call("session.record", &message(&id, "assistant", "done"))?;
    let methods = ["session.undo", "session.redo"];
    let mut moved = [Samples::default(), Samples::default()];
    let mut floor = Samples::default();
    for round in 0..FILE_ROUNDS {
        // Its files stay until the end: without a journal, ext4 looks at each file that was removed in the last minute when it
        // creates another one.
        floor.push(floor_of_files(&scratch.path().join(format!("floor{round}")))?);
        for (method, samples) in methods.iter().zip(&mut moved) {
            let params = json!({ "sessionId": id, "files": "preview" });
            let plan = client.call(method, &params)?["files"]["planId"].clone();
            sync_file_system(&project)?;
            let params = json!({ "sessionId": id, "files": "apply", "planId": plan });
            let (done, elapsed) = client.timed(method, &params)?;
            let n_done = done["files"]["counts"]["putBack"].as_u64();
            ensure!(n_done == Some(N_FILES as u64), "{method} put {n_done:?} files back");
            samples.push(elapsed);
        }
    }
    for (name, samples) in ["undo", "redo"].iter().zip(&moved) {
        let row = Row::latency(&format!("{name} of 20,000 files"), samples);
        report.print(row.at_most_times(samples.p50_us(), floor.p50_us(), FILES_RATIO))?;
    }
    remove_files(scratch.path())
}

/// Removes all files below a directory by several threads: where the disk discards blocks at once, one takes minutes.
fn remove_files(dir: &Path) -> Result<()> {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let is_dir = entry.file_type()?.is_dir();
            if is_dir { dirs.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    std::thread::scope(|scope| {
        for part in files.chunks(files.len().div_ceil(REMOVERS).max(1)) {
            scope.spawn(move || part.iter().for_each(|file| drop(fs::remove_file(file))));
        }
    });
    Ok(())
}

fn file_names() -> Vec<String> {
    (0..N_FILES).map(|n| format!("{}/{n}.rs", n % FILE_DIRS)).collect()
}

/// Returns a content of a file, about a kilobyte that no other file has.
fn content(name: &str, state: &str) -> String {
    format!("// {state} of {name}\n").repeat(40)
}

/// Writes the new contents and copies of the old ones, lets files change places, and syncs the file system.
fn floor_of_files(dir: &Path) -> Result<Duration> {
    let (project, stage, copies) = (dir.join("project"), dir.join("stage"), dir.join("copies"));
    for dir in (0..FILE_DIRS).map(|dir| project.join(dir.to_string())) {
        fs::create_dir_all(dir)?;
    }
    fs::create_dir_all(&stage)?;
    fs::create_dir_all(&copies)?;
    let names = file_names();
    for name in &names {
        fs::write(project.join(name), content(name, "after"))?;
    }
    sync_file_system(dir)?;
    let started = Instant::now();
    for (at, name) in names.iter().enumerate() {
        fs::write(stage.join(at.to_string()), content(name, "before"))?;
    }
    for (at, name) in names.iter().enumerate() {
        let (place, staged) = (project.join(name), stage.join(at.to_string()));
        rustix::fs::renameat_with(CWD, place, CWD, &staged, RenameFlags::EXCHANGE)?;
        let copy = copies.join(format!("{at}.new"));
        fs::write(&copy, fs::read(staged)?)?;
        fs::rename(copy, copies.join(at.to_string()))?;
    }
    sync_file_system(dir)?;
    Ok(started.elapsed())
}

/// Syncs the file system of a directory, or the directory alone where the system cannot do that.
fn sync_file_system(dir: &Path) -> Result<()> {
    let dir = fs::File::open(dir)?;
    #[cfg(target_os = "linux")]
    rustix::fs::syncfs(&dir)?;
    #[cfg(not(target_os = "linux"))]
    dir.sync_all()?;
    Ok(())
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
