//! Workspaces: the first walk beside ripgrep's, pages and searches from memory, the delay of changes, memory, and the
//! processor time while nothing changes.
//!
//! Run with `cargo bench --bench files`, or `OLLM_BENCH_FILES=20000 cargo bench --bench files` for fewer files.

#![expect(clippy::disallowed_methods, reason = "the files are those of a user")]

mod harness;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use harness::arguments::variable;
use harness::daemon::{Client, Daemon, Home, request};
use harness::generate::TextGenerator;
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

const DEFAULT_FILES: usize = 100_000;
const FILES_PER_DIR: usize = 12;
/// The walks of each program, in turn.
const WALKS: usize = 15;
const PAGES: usize = 300;
const CHANGES: usize = 40;
/// The window in which changes are collected, and the time that they may take beyond it.
const CHANGE_LIMIT_US: f64 = (50.0 + 50.0) * 1e3;
const QUIET: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let n_files = variable("OLLM_BENCH_FILES", DEFAULT_FILES)?;
    let tree = tempfile::tempdir()?;
    let path_bytes = generate(tree.path(), n_files)?;
    let root = tree.path().canonicalize()?.to_string_lossy().into_owned();
    let home = Home::new()?;
    let report =
        Report::new("files", &json!({ "files": n_files, "filesPerDirectory": FILES_PER_DIR }));
    walks(&report, &home, &root, n_files)?;
    let daemon = Daemon::start(&home)?;
    let mut client = daemon.connect()?;
    pages(&report, &mut client, &root)?;
    searches(&report, &mut client, &root)?;
    changes(&report, &daemon, &root)?;
    memory(&report, &mut client, n_files, path_bytes)?;
    quiet(&report, &daemon)?;
    daemon.stop()
}

/// Writes a tree as repositories have: words as names, ignore files in some directories. Returns the bytes of all paths.
fn generate(root: &Path, n_files: usize) -> Result<usize> {
    let text = TextGenerator::new(11);
    let (mut path_bytes, mut dirs) = (0, vec![String::new()]);
    for at in 0..n_files.div_ceil(FILES_PER_DIR) {
        let parent = &dirs[(at * 7919) % dirs.len()];
        let dir = format!("{parent}{}-{at}/", text.word_of_rank(at % 3_000));
        fs::create_dir(root.join(&dir))?;
        for file in 0..FILES_PER_DIR {
            let name = format!(
                "{dir}{}_{}.rs",
                text.word_of_rank((at * 31 + file) % 5_000),
                text.word_of_rank(file)
            );
            fs::write(root.join(&name), b"")?;
            path_bytes += name.len();
        }
        if at % 50 == 0 {
            fs::write(root.join(&dir).join(".gitignore"), "*.o\n/out\n!keep.o\n")?;
        }
        // Few levels, as in a repository.
        if dir.matches('/').count() < 6 {
            dirs.push(dir);
        }
    }
    fs::write(root.join(".gitignore"), "*.log\n*.tmp\n/out/\n")?;
    fs::create_dir(root.join(".git"))?;
    Ok(path_bytes)
}

/// Compares first walks with `rg --files`, in turn, so that both find the same caches.
fn walks(report: &Report, home: &Home, root: &str, n_files: usize) -> Result<()> {
    let (mut own, mut rg) = (Samples::default(), Samples::default());
    for round in 0..=WALKS {
        let daemon = Daemon::start(home)?;
        let (took, found) = first_walk(&mut daemon.connect()?, root)?;
        daemon.stop()?;
        let ripgrep = ripgrep(root)?;
        if let Some((_, listed)) = &ripgrep
            && (found < n_files || found != *listed)
        {
            bail!("{found} files were found of {n_files}, and ripgrep found {listed}");
        }
        // The first round fills the caches.
        if round > 0 {
            own.push(took);
            if let Some((took, _)) = ripgrep {
                rg.push(took);
            }
        }
    }
    let row = Row::latency("first walk", &own);
    if rg.count() == 0 {
        return report.print(row);
    }
    report.print(Row::latency("rg --files", &rg))?;
    report.print(row.at_most_times(own.p50_us(), rg.p50_us(), 1.2))
}

/// Walks the root for the first time; returns the time until all files are in memory, and their number.
fn first_walk(client: &mut Client, root: &str) -> Result<(Duration, usize)> {
    let params = json!({ "root": root, "limit": 1, "details": false });
    let started = Instant::now();
    client.call("files.discover", &params)?;
    loop {
        let status = client.call("files.status", &json!({}))?;
        let found = &status["roots"][0];
        if found["state"] == "ready" {
            let n_found = found["files"].as_u64().unwrap_or_default();
            return Ok((started.elapsed(), usize::try_from(n_found)?));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Lists with ripgrep; `None` if it is not installed.
fn ripgrep(root: &str) -> Result<Option<(Duration, usize)>> {
    let started = Instant::now();
    let mut command = Command::new("rg");
    command
        .args(["--files", "--no-config"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else { return Ok(None) };
    let mut listed = BufReader::new(child.stdout.take().context("a pipe")?);
    let (mut n_listed, mut line) = (0, Vec::new());
    while listed.read_until(b'\n', &mut line)? > 0 {
        n_listed += 1;
        line.clear();
    }
    child.wait()?;
    Ok(Some((started.elapsed(), n_listed)))
}

fn pages(report: &Report, client: &mut Client, root: &str) -> Result<()> {
    for (name, details) in
        [("cached page, 1,000 paths", false), ("cached page, 1,000 files with details", true)]
    {
        let params = json!({ "root": root, "details": details });
        let samples = Samples::take(PAGES, || client.call("files.discover", &params).map(drop))?;
        report.print(Row::latency(name, &samples).at_most(samples.percentile_us(99.0), 5e3))?;
    }
    Ok(())
}

fn searches(report: &Report, client: &mut Client, root: &str) -> Result<()> {
    let text = TextGenerator::new(11);
    let word = |rank: usize| text.word_of_rank(rank);
    let two = |at: usize| format!("{} {}", word(at * 7), word(at));
    let kinds: [(&str, Vec<String>); 4] = [
        ("search, one letter", "eaosrnt".chars().map(String::from).collect()),
        (
            "search, three letters",
            (0..40).map(|at| word(at * 17).chars().take(3).collect()).collect(),
        ),
        ("search, a word", (0..40).map(|at| word(at * 13).to_owned()).collect()),
        ("search, two words", (0..40).map(two).collect()),
    ];
    for (name, queries) in kinds {
        let mut samples = Samples::default();
        for _ in 0..3 {
            for query in &queries {
                samples
                    .push(client.time("files.search", &json!({ "root": root, "query": query }))?);
            }
        }
        report.print(Row::latency(name, &samples).at_most(samples.percentile_us(99.0), 20e3))?;
    }
    Ok(())
}

/// Measures the time from a change to its notification.
fn changes(report: &Report, daemon: &Daemon, root: &str) -> Result<()> {
    let mut stream = daemon.connect_raw()?;
    stream.write_all(&request("files.watch", &json!({ "root": root })))?;
    let mut lines = BufReader::new(stream).lines();
    let mut wait_for = |text: &str| -> Result<()> {
        loop {
            let line = lines.next().context("the stream goes on")??;
            if line.contains(text) {
                return Ok(());
            }
        }
    };
    wait_for("\"watching\"")?;
    let mut samples = Samples::default();
    for at in 0..CHANGES {
        let name = format!("change-{at}.rs");
        let started = Instant::now();
        fs::write(Path::new(root).join(&name), b"")?;
        wait_for(&name)?;
        samples.push(started.elapsed());
    }
    report.print(
        Row::latency("change to notification", &samples)
            .at_most(samples.percentile_us(99.0), CHANGE_LIMIT_US),
    )
}

fn memory(report: &Report, client: &mut Client, n_files: usize, path_bytes: usize) -> Result<()> {
    let status = client.call("files.status", &json!({}))?;
    let found = &status["roots"][0];
    let own = found["memoryBytes"].as_f64().context("the root is in memory")?;
    let each = (own - path_bytes as f64) / n_files as f64;
    report.print(
        Row::value("memory of a file beyond its path", "bytes", rounded(each)).at_most(each, 150.0),
    )
}

/// Measures the processor time of the daemon while nothing changes.
fn quiet(report: &Report, daemon: &Daemon) -> Result<()> {
    let before = cpu_ticks(daemon.pid())?;
    std::thread::sleep(QUIET);
    let ticks = cpu_ticks(daemon.pid())? - before;
    let row = Row::value("processor time in 5 s without changes", "ticks of 10 ms", ticks);
    report.print(row.at_most(ticks as f64, 1.0))
}

/// Returns the user and system time of a process so far, in ticks.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}
