//! The cost of a durable record: one writer against append and fdatasync, and 64 writers against its serial rate,
//! over the socket and in process.
//!
//! Run with `cargo bench --bench durable`. The floor is written to the directory of the session logs, in turns with
//! the daemon.

mod harness;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::task::JoinSet;

use ollm_daemon::bench_api::BenchSessions;

use harness::daemon::{Client, Daemon, Home, hello, message, request};
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

/// The bytes of a text whose log line has 1 KiB.
const TEXT_BYTES: usize = 815;
const LINE_BYTES: usize = 1024;
const ROUNDS: usize = 5;
const RECORDS_PER_ROUND: usize = 600;
const WRITERS: usize = 64;
const RECORDS_PER_WRITER: usize = 300;
/// The best of some runs counts.
const RUNS: usize = 3;

/// A run of 64 writers.
struct Run {
    samples: Samples,
    elapsed: Duration,
    /// Syncs per second, and the CPU time of the daemon.
    daemon: Option<(f64, Duration)>,
}

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let home = Home::new()?;
    // Thousands of records a second fill the window many times a second, and each time the session would be compacted.
    home.write_config("compression: { enabled: false }\n")?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("durable", &json!({ "lineBytes": LINE_BYTES }));
    let serial_rate = one_writer(&report, &home, &daemon)?;
    let mut client = daemon.connect()?;
    for (name, n_sessions, bar) in
        [("64 writers, one session", 1, 6.0), ("64 writers, 64 sessions", WRITERS, 2.5)]
    {
        let run = || over_socket(&daemon, &mut client, &home.socket(), n_sessions);
        best_of_runs(&report, name, run, serial_rate, bar)?;
    }
    daemon.stop()?;
    for (name, n_sessions, bar) in
        [("in process, one session", 1, 10.0), ("in process, 64 sessions", WRITERS, 3.0)]
    {
        let run = || in_process(&home.sessions(), n_sessions);
        best_of_runs(&report, name, run, serial_rate, bar)?;
    }
    Ok(())
}

/// Prints the run with the highest rate.
fn best_of_runs(
    report: &Report,
    name: &str,
    mut run: impl FnMut() -> Result<Run>,
    serial_rate: f64,
    bar: f64,
) -> Result<()> {
    let runs = (0..RUNS).map(|_| run()).collect::<Result<Vec<Run>>>()?;
    let best = runs.into_iter().min_by_key(|run| run.elapsed).context("a run")?;
    let rate = (WRITERS * RECORDS_PER_WRITER) as f64 / best.elapsed.as_secs_f64();
    let mut row = Row::latency(name, &best.samples).with("rate", rounded(rate));
    if let Some((sync_rate, used)) = best.daemon {
        row = row.with("syncsPerSecond", rounded(sync_rate));
        row = row.cpu(used, WRITERS * RECORDS_PER_WRITER);
    }
    report.print(row.at_least_times(rate, serial_rate, bar))
}

/// Measures one writer, and returns the rate at which appends with fdatasync are possible one after another.
fn one_writer(report: &Report, home: &Home, daemon: &Daemon) -> Result<f64> {
    let mut client = daemon.connect()?;
    let session = create(&mut client)?;
    let record = request("session.record", &message(&session, "user", &text()));
    let trivial_call = request("daemon.hello", &hello());
    let mut file = std::fs::File::create(home.sessions().join("floor"))?;
    let line = vec![b'x'; LINE_BYTES];
    let (mut floor, mut trivial, mut records) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut used = Duration::ZERO;
    for _ in 0..ROUNDS {
        floor.extend(Samples::take(RECORDS_PER_ROUND, || {
            file.write_all(&line)?;
            Ok(file.sync_data()?)
        })?);
        trivial
            .extend(Samples::take(RECORDS_PER_ROUND, || check(client.exchange(&trivial_call)?))?);
        let before = daemon.cpu_time()?;
        records.extend(Samples::take(RECORDS_PER_ROUND, || check(client.exchange(&record)?))?);
        used += daemon.cpu_time()? - before;
    }
    let (sync, call) = (floor.p50_us(), trivial.p50_us());
    let serial_rate = 1e6 / sync;
    report.print(Row::latency("append + fdatasync", &floor).with("rate", rounded(serial_rate)))?;
    report.print(Row::latency("trivial call, not pinned", &trivial))?;
    let row = Row::latency("1 writer, less one trivial call", &records);
    let row = row.with("call", rounded(call)).cpu(used, records.n_runs());
    report.print(row.at_most_times(records.p50_us() - call, sync, 1.5))?;
    Ok(serial_rate)
}

/// Runs writers with a connection each; one thread serves them all.
fn over_socket(
    daemon: &Daemon,
    client: &mut Client,
    socket: &Path,
    n_sessions: usize,
) -> Result<Run> {
    let sessions = (0..n_sessions).map(|_| create(client)).collect::<Result<Vec<String>>>()?;
    let (syncs_before, used_before) = (syncs(client)?, daemon.cpu_time()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (samples, elapsed) = runtime.block_on(async {
        let mut writers = JoinSet::new();
        let start = Instant::now();
        for writer in 0..WRITERS {
            let params = message(&sessions[writer % sessions.len()], "user", &text());
            writers.spawn(write(socket.to_owned(), request("session.record", &params)));
        }
        Ok::<_, anyhow::Error>((join(writers).await?, start.elapsed()))
    })?;
    let used = daemon.cpu_time()? - used_before;
    let sync_rate = (syncs(client)? - syncs_before) / elapsed.as_secs_f64();
    Ok(Run { samples, elapsed, daemon: Some((sync_rate, used)) })
}

/// Records over a connection; waits for each reply before the next record.
async fn write(socket: PathBuf, record: Vec<u8>) -> Result<Samples> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let (replies, mut requests) = stream.into_split();
    let mut replies = BufReader::new(replies);
    let (mut samples, mut reply) = (Samples::default(), Vec::new());
    for _ in 0..RECORDS_PER_WRITER {
        let start = Instant::now();
        requests.write_all(&record).await?;
        reply.clear();
        replies.read_until(b'\n', &mut reply).await?;
        check(&reply)?;
        samples.push(start.elapsed());
    }
    Ok(samples)
}

/// Runs writers without connections; each waits for its record to be synced before the next one.
fn in_process(dir: &Path, n_sessions: usize) -> Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (samples, elapsed) = runtime.block_on(async {
        let sessions = BenchSessions::open(dir);
        let mut ids = Vec::new();
        for _ in 0..n_sessions {
            let id = sessions.create().context("a session begins")?;
            // The first record creates the file, which costs two more syncs.
            ensure!(sessions.record(id, &text()).await, "the first record is refused");
            ids.push(id);
        }
        let mut writers = JoinSet::new();
        let start = Instant::now();
        for writer in 0..WRITERS {
            let (sessions, id) = (sessions.clone(), ids[writer % ids.len()]);
            writers.spawn(async move {
                let (mut samples, text) = (Samples::default(), text());
                for _ in 0..RECORDS_PER_WRITER {
                    let start = Instant::now();
                    ensure!(sessions.record(id, &text).await, "a record is refused");
                    samples.push(start.elapsed());
                }
                Ok(samples)
            });
        }
        Ok::<_, anyhow::Error>((join(writers).await?, start.elapsed()))
    })?;
    Ok(Run { samples, elapsed, daemon: None })
}

async fn join(mut writers: JoinSet<Result<Samples>>) -> Result<Samples> {
    let mut all = Samples::default();
    while let Some(samples) = writers.join_next().await {
        all.extend(samples??);
    }
    Ok(all)
}

fn check(reply: &[u8]) -> Result<()> {
    if !reply.windows(9).any(|window| window == b"\"result\":") {
        bail!("refused: {}", String::from_utf8_lossy(reply));
    }
    Ok(())
}

fn create(client: &mut Client) -> Result<String> {
    let id = client.create(&json!({ "model": "bench" }))?;
    // The first record creates the file, which costs two more syncs.
    client.call("session.record", &message(&id, "user", &text()))?;
    Ok(id)
}

fn text() -> String {
    let mut text = "durable words ".repeat(TEXT_BYTES / 14 + 1);
    text.truncate(TEXT_BYTES);
    text
}

/// Returns the number of syncs so far.
fn syncs(client: &mut Client) -> Result<f64> {
    let status = client.call("daemon.status", &json!({}))?;
    status["store"]["syncs"].as_f64().context("status counts syncs")
}
