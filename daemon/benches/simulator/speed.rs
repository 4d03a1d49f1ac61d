//! What the engine costs: a build on a long session, and the look at each record whether it is one too many.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::script::needle;
use super::server::{MODEL, Server};
use super::stage::Scratch;
use super::summarizer::Summarizer;
use crate::harness::daemon::{Client, Daemon};
use crate::harness::logs::Logs;
use crate::harness::process::rss_kib;
use crate::harness::report::{Report, Row, Samples, rounded};
use crate::harness::text::Text;

const RECORDS: usize = 100_000;
const BUILDS: usize = 300;
const BAR_BUILD_US: f64 = 2000.0;
/// Records of each kind of daemon, and after how many a context is built, as in a chat.
const RECORDS_EACH: usize = 2000;
const BUILD_EVERY: usize = 25;
const BAR_CHECK_US: f64 = 50.0;
/// How long the catalog may take.
const INDEXED: Duration = Duration::from_secs(120);

/// Prints the rows; false when one misses its bar.
pub(crate) fn run(report: &Report) -> Result<bool> {
    let builds = long_session(report)?;
    let built = record(report, "record, a context built every 25", BUILD_EVERY)?;
    let never_built = record(report, "record, no context ever built", usize::MAX)?;
    Ok(builds && built && never_built)
}

fn long_session(report: &Report) -> Result<bool> {
    let server = Server::start(Summarizer::Good)?;
    let scratch = Scratch::new(&server.host, "")?;
    let sessions = scratch.home.path().join("sessions");
    let mut text = Text::new(7);
    let texts = (0..RECORDS).map(|at| format!("{} {}", needle(at), text.message(60 + at % 7 * 60)));
    let session = Logs::new(&sessions).write(texts)?;
    let daemon = Daemon::start(&scratch.home)?;
    daemon.wait_indexed(INDEXED)?;
    let before = rss_kib(daemon.pid())?;
    let mut client = daemon.connect()?;
    let params = json!({ "sessionId": session, "contextSize": 8192 });
    client.call(
        "session.update",
        &json!({ "sessionId": session, "contextSize": 8192,
        "model": MODEL }),
    )?;
    let first = timed(&mut client, "context.build", &params)?;
    let compaction = timed(&mut client, "context.compact", &json!({ "sessionId": session }))?;
    let auto = json!({ "sessionId": session, "compact": "auto" });
    client.call("context.build", &auto)?;
    let samples = Samples::take(BUILDS, || {
        client.call("context.build", &params)?;
        Ok(())
    })?;
    let growing = growing(&mut client, &session)?;
    let after = rss_kib(daemon.pid())?;
    let p50 = samples.percentile_us(50.0);
    let row = Row::latency("build, 100,000 records, 8K window", &samples)
        .with("firstUs", micros(first))
        .with("compactionUs", micros(compaction))
        .with("afterEachRecordP50", rounded(growing.percentile_us(50.0)))
        .with("afterEachRecordP99", rounded(growing.percentile_us(99.0)))
        .with("rssBeforeKib", before)
        .with("rssAfterKib", after);
    report.row(row.at_most(p50, BAR_BUILD_US))?;
    daemon.stop()?;
    Ok(p50 <= BAR_BUILD_US)
}

/// Builds that each follow one more record, through the compactions that come due.
fn growing(client: &mut Client, session: &str) -> Result<Samples> {
    let mut samples = Samples::default();
    for at in 0..BUILDS {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        let words = format!("{} one more message about the parser, which goes on", needle(at));
        client.call("session.record", &message(session, role, &words))?;
        let auto = json!({ "sessionId": session, "compact": "auto" });
        samples.push(timed(client, "context.build", &auto)?);
    }
    Ok(samples)
}

/// Records with and without the look whether a compaction is due, in turns, so that both meet the same machine.
fn record(report: &Report, name: &str, build_every: usize) -> Result<bool> {
    let server = Server::start(Summarizer::Good)?;
    let mut with = Recorder::new(&server, "")?;
    let mut without = Recorder::new(&server, "compression: { enabled: false }\n")?;
    let (mut checked, mut unchecked) = (Samples::default(), Samples::default());
    for at in 0..RECORDS_EACH {
        unchecked.push(without.record(at, build_every)?);
        checked.push(with.record(at, build_every)?);
    }
    with.daemon.stop()?;
    without.daemon.stop()?;
    let added = checked.percentile_us(50.0) - unchecked.percentile_us(50.0);
    report.row(Row::latency(&format!("{name}, compression off"), &unchecked))?;
    let row = Row::latency(name, &checked).with("value", rounded(added));
    report.row(row.at_most(added, BAR_CHECK_US))?;
    Ok(added <= BAR_CHECK_US)
}

struct Recorder {
    daemon: Daemon,
    client: Client,
    session: String,
    _scratch: Scratch,
}

impl Recorder {
    fn new(server: &Server, config: &str) -> Result<Self> {
        let scratch = Scratch::new(&server.host, config)?;
        let daemon = Daemon::start(&scratch.home)?;
        let mut client = daemon.connect()?;
        let params = json!({ "model": MODEL, "contextSize": 131_072 });
        let created = client.call("session.create", &params)?;
        let session = created["session"]["sessionId"].as_str().unwrap_or_default().to_owned();
        Ok(Self { daemon, client, session, _scratch: scratch })
    }

    fn record(&mut self, at: usize, build_every: usize) -> Result<Duration> {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        let words = format!("{} a message of a few words and no more", needle(at));
        let params = message(&self.session, role, &words);
        let took = timed(&mut self.client, "session.record", &params)?;
        if at.is_multiple_of(build_every) && at > 0 {
            self.client.call("context.build", &json!({ "sessionId": self.session }))?;
        }
        Ok(took)
    }
}

fn message(session: &str, role: &str, text: &str) -> Value {
    json!({ "sessionId": session, "message": { "role": role, "content": text } })
}

fn timed(client: &mut Client, method: &str, params: &Value) -> Result<Duration> {
    let started = Instant::now();
    client.call(method, params)?;
    Ok(started.elapsed())
}

fn micros(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e6)
}
