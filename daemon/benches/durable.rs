//! What a durable record costs: one writer against append and fdatasync, and 64 writers against their serial rate,
//! over the socket and in process.
//!
//! Run with `cargo bench --bench durable`. The floor writes to the directory of the session logs, in turns with
//! the daemon.

mod harness;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::task::JoinSet;

use ollm_daemon::bench_api::BenchSessions;

use harness::daemon::{Client, Daemon, Home, request};
use harness::report::{Report, Row, Samples, rounded};

/// Text that makes a line of the log 1 KiB long.
const TEXT_BYTES: usize = 815;
const LINE_BYTES: usize = 1024;
const ROUNDS: usize = 5;
const RECORDS_A_ROUND: usize = 600;
const WRITERS: usize = 64;
const RECORDS_A_WRITER: usize = 300;

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let home = Home::new()?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("durable", &json!({ "lineBytes": LINE_BYTES }));
    let serial_rate = one_writer(&report, &home, &daemon)?;
    let mut client = daemon.connect()?;
    for (name, n_sessions, bar) in
        [("64 writers, one session", 1, 6.0), ("64 writers, 64 sessions", WRITERS, 2.5)]
    {
        let mut best: Option<(f64, Samples, f64)> = None;
        for _ in 0..3 {
            let sessions = (0..n_sessions).map(|_| create(&mut client));
            let sessions = sessions.collect::<Result<Vec<_>>>()?;
            let syncs = syncs(&mut client)?;
            let (samples, elapsed) = many_writers(&home.path().join("s"), &sessions)?;
            let rate = per_second(WRITERS * RECORDS_A_WRITER, elapsed);
            let syncs = per_second(1, elapsed) * (self::syncs(&mut client)? - syncs);
            if best.as_ref().is_none_or(|(best, ..)| rate > *best) {
                best = Some((rate, samples, syncs));
            }
        }
        let (rate, samples, syncs) = best.context("three runs")?;
        let row = Row::latency(name, &samples)
            .with("rate", rounded(rate))
            .with("syncsPerSecond", rounded(syncs));
        report.row(row.at_least_times(rate, serial_rate, bar))?;
    }
    daemon.stop()?;
    for (name, n_sessions, bar) in
        [("in process, one session", 1, 10.0), ("in process, 64 sessions", WRITERS, 3.0)]
    {
        let mut best: Option<(f64, Samples)> = None;
        for _ in 0..3 {
            let (samples, elapsed) = in_process(&home.path().join("sessions"), n_sessions)?;
            let rate = per_second(WRITERS * RECORDS_A_WRITER, elapsed);
            if best.as_ref().is_none_or(|(best, _)| rate > *best) {
                best = Some((rate, samples));
            }
        }
        let (rate, samples) = best.context("three runs")?;
        let row = Row::latency(name, &samples).with("rate", rounded(rate));
        report.row(row.at_least_times(rate, serial_rate, bar))?;
    }
    Ok(())
}

/// Writers without connections: each waits for its record to be synced before it makes the next.
fn in_process(dir: &Path, n_sessions: usize) -> Result<(Samples, Duration)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let sessions = BenchSessions::open(dir);
        let mut ids = Vec::new();
        for _ in 0..n_sessions {
            let id = sessions.create().context("a session begins")?;
            // The first record makes the file, which costs two more syncs.
            anyhow::ensure!(sessions.record(id, &text()).await, "the first record is refused");
            ids.push(id);
        }
        let mut writers = JoinSet::new();
        let started = Instant::now();
        for writer in 0..WRITERS {
            let (sessions, id) = (sessions.clone(), ids[writer % ids.len()]);
            writers.spawn(async move {
                let (mut samples, text) = (Samples::default(), text());
                for _ in 0..RECORDS_A_WRITER {
                    let started = Instant::now();
                    anyhow::ensure!(sessions.record(id, &text).await, "a record is refused");
                    samples.push(started.elapsed());
                }
                Ok(samples)
            });
        }
        let mut all = Samples::default();
        while let Some(samples) = writers.join_next().await {
            all.extend(samples??);
        }
        Ok((all, started.elapsed()))
    })
}

/// Returns how many appends with fdatasync a second are possible one after another.
fn one_writer(report: &Report, home: &Home, daemon: &Daemon) -> Result<f64> {
    let mut client = daemon.connect()?;
    let session = create(&mut client)?;
    let record = request("session.record", &message(&session));
    let hello = request(
        "daemon.hello",
        &json!({ "client": "bench", "version": "1", "protocolMin": 1, "protocolMax": 1 }),
    );
    let mut file = std::fs::File::create(home.path().join("sessions/floor"))?;
    let line = vec![b'x'; LINE_BYTES];
    let (mut floor, mut trivial, mut ours) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        floor.extend(Samples::take(RECORDS_A_ROUND, || {
            file.write_all(&line)?;
            Ok(file.sync_data()?)
        })?);
        trivial.extend(Samples::take(RECORDS_A_ROUND, || exchange(&mut client, &hello))?);
        ours.extend(Samples::take(RECORDS_A_ROUND, || exchange(&mut client, &record))?);
    }
    let (sync, call) = (floor.percentile_us(50.0), trivial.percentile_us(50.0));
    let serial_rate = 1e6 / sync;
    report.row(Row::latency("append + fdatasync", &floor).with("rate", rounded(serial_rate)))?;
    report.row(Row::latency("trivial call, not pinned", &trivial))?;
    let p50 = ours.percentile_us(50.0);
    // The bar: one and a half times the floor, plus one trivial call.
    let row = Row::latency("1 writer, less one trivial call", &ours).with("call", rounded(call));
    report.row(row.at_most_times(p50 - call, sync, 1.5))?;
    Ok(serial_rate)
}

fn exchange(client: &mut Client, request: &[u8]) -> Result<()> {
    check(client.exchange(request)?)
}

fn check(reply: &[u8]) -> Result<()> {
    if !reply.windows(9).any(|window| window == b"\"result\":") {
        bail!("refused: {}", String::from_utf8_lossy(reply));
    }
    Ok(())
}

fn create(client: &mut Client) -> Result<String> {
    let created = client.call("session.create", &json!({ "model": "bench" }))?;
    let id = created["session"]["sessionId"].as_str().context("a session has an id")?.to_owned();
    // The first record makes the file, which costs two more syncs.
    client.call("session.record", &message(&id))?;
    Ok(id)
}

fn message(session: &str) -> Value {
    json!({ "sessionId": session, "message": { "role": "user", "content": text() } })
}

fn text() -> String {
    let mut text = "durable words ".repeat(TEXT_BYTES / 14 + 1);
    text.truncate(TEXT_BYTES);
    text
}

fn syncs(client: &mut Client) -> Result<f64> {
    let status = client.call("daemon.status", &json!({}))?;
    status["store"]["syncs"].as_f64().context("status counts syncs")
}

fn per_second(count: usize, elapsed: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let count = count as f64;
    count / elapsed.as_secs_f64()
}

/// Every writer has a connection and waits for each answer; one thread serves them all.
fn many_writers(socket: &Path, sessions: &[String]) -> Result<(Samples, Duration)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut writers = JoinSet::new();
        let started = Instant::now();
        for writer in 0..WRITERS {
            let record = request("session.record", &message(&sessions[writer % sessions.len()]));
            writers.spawn(write(socket.to_owned(), record));
        }
        let mut all = Samples::default();
        while let Some(samples) = writers.join_next().await {
            all.extend(samples??);
        }
        Ok((all, started.elapsed()))
    })
}

async fn write(socket: PathBuf, record: Vec<u8>) -> Result<Samples> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    let (replies, mut requests) = stream.into_split();
    let mut replies = BufReader::new(replies);
    let (mut samples, mut reply) = (Samples::default(), Vec::new());
    for _ in 0..RECORDS_A_WRITER {
        let started = Instant::now();
        requests.write_all(&record).await?;
        reply.clear();
        replies.read_until(b'\n', &mut reply).await?;
        check(&reply)?;
        samples.push(started.elapsed());
    }
    Ok(samples)
}
