//! The cost of the context engine: a build of a long session, and the check after each record whether a compaction is
//! due.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::facts::needle;
use super::model_server::{ModelServer, Summarizer};
use crate::harness::daemon::{Client, Daemon, Home, message};
use crate::harness::generate::{LogWriter, TextGenerator};
use crate::harness::model_server::MODEL;
use crate::harness::report::{Report, Row, Samples, rounded};
use crate::harness::session::home;

const RECORDS: usize = 100_000;
const BUILDS: usize = 300;
const MAX_BUILD_US: f64 = 2000.0;
const RECORDS_PER_DAEMON: usize = 2000;
/// A context is built after every 25th record, as in a chat.
const BUILD_EVERY: usize = 25;
const MAX_CHECK_US: f64 = 50.0;
/// The time in which the catalog must be built.
const INDEX_LIMIT: Duration = Duration::from_secs(120);

/// Prints the rows; returns false if one misses its bar.
pub(crate) fn run(report: &Report) -> Result<bool> {
    let builds = long_session(report)?;
    let with_builds = records(report, "record, a context built every 25", BUILD_EVERY)?;
    let without_builds = records(report, "record, no context ever built", usize::MAX)?;
    Ok(builds && with_builds && without_builds)
}

fn long_session(report: &Report) -> Result<bool> {
    let server = ModelServer::start(Summarizer::Good);
    let home = home(server.fake.host(), "")?;
    let mut text = TextGenerator::new(7);
    let texts = (0..RECORDS).map(|at| format!("{} {}", needle(at), text.message(60 + at % 7 * 60)));
    let session = LogWriter::new(&home.sessions()).write(texts)?;
    let daemon = Daemon::start(&home)?;
    daemon.wait_indexed(INDEX_LIMIT)?;
    let rss_before = daemon.rss_kib()?;
    let mut client = daemon.connect()?;
    let params = json!({ "sessionId": session, "contextSize": 8192 });
    let update = json!({ "sessionId": session, "contextSize": 8192, "model": MODEL });
    client.call("session.update", &update)?;
    let first = client.time("context.build", &params)?;
    let compaction = client.time("context.compact", &json!({ "sessionId": session }))?;
    let auto = json!({ "sessionId": session, "compact": "auto" });
    client.call("context.build", &auto)?;
    let samples = Samples::take(BUILDS, || client.call("context.build", &params).map(drop))?;
    let mut growing = Samples::default();
    for at in 0..BUILDS {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        let text = format!("{} one more message about the parser, which goes on", needle(at));
        client.call("session.record", &message(&session, role, &text))?;
        growing.push(client.time("context.build", &auto)?);
    }
    let p50 = samples.p50_us();
    let row = Row::latency("build, 100,000 records, 8K window", &samples)
        .with("firstUs", micros(first))
        .with("compactionUs", micros(compaction))
        .with("afterEachRecordP50", rounded(growing.p50_us()))
        .with("afterEachRecordP99", rounded(growing.percentile_us(99.0)))
        .with("rssBeforeKib", rss_before)
        .with("rssAfterKib", daemon.rss_kib()?);
    report.print(row.at_most(p50, MAX_BUILD_US))?;
    daemon.stop()?;
    Ok(p50 <= MAX_BUILD_US)
}

/// Records with and without the check, in turns, so that both see the same state of the machine.
fn records(report: &Report, name: &str, build_every: usize) -> Result<bool> {
    let server = ModelServer::start(Summarizer::Good);
    let mut with = Recorder::new(&server, "")?;
    let mut without = Recorder::new(&server, "compression: { enabled: false }\n")?;
    let (mut checked, mut unchecked) = (Samples::default(), Samples::default());
    for at in 0..RECORDS_PER_DAEMON {
        unchecked.push(without.record(at, build_every)?);
        checked.push(with.record(at, build_every)?);
    }
    with.daemon.stop()?;
    without.daemon.stop()?;
    let added = checked.p50_us() - unchecked.p50_us();
    report.print(Row::latency(&format!("{name}, compression off"), &unchecked))?;
    let row = Row::latency(name, &checked).with("value", rounded(added));
    report.print(row.at_most(added, MAX_CHECK_US))?;
    Ok(added <= MAX_CHECK_US)
}

/// A daemon with one session.
struct Recorder {
    daemon: Daemon,
    client: Client,
    session: String,
    _home: Home,
}

impl Recorder {
    fn new(server: &ModelServer, config: &str) -> Result<Self> {
        let home = home(server.fake.host(), config)?;
        let daemon = Daemon::start(&home)?;
        let mut client = daemon.connect()?;
        let session = client.create(&json!({ "model": MODEL, "contextSize": 131_072 }))?;
        Ok(Self { daemon, client, session, _home: home })
    }

    /// Records a message and returns the time of the call.
    fn record(&mut self, at: usize, build_every: usize) -> Result<Duration> {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        let text = format!("{} a message of a few words and no more", needle(at));
        let params = message(&self.session, role, &text);
        let elapsed = self.client.time("session.record", &params)?;
        if at.is_multiple_of(build_every) && at > 0 {
            self.client.call("context.build", &json!({ "sessionId": self.session }))?;
        }
        Ok(elapsed)
    }
}

fn micros(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e6)
}
