//! The delay that the daemon adds to a streamed answer: to its first token, and to each token.
//!
//! Run with `cargo bench --bench relay`. The model server is part of this program and answers at once. Each token is
//! the time at which it was sent, so that its way can be timed. Direct requests, in turns with those through the
//! daemon, are the floor.

mod harness;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use harness::daemon::{Client, Daemon, Home, message};
use harness::model_server::{BROKEN, FakeOllama, FakeServer, MODEL, Step, wire};
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

const WINDOW: u64 = 8192;
const QUESTION: &str = "how late is it?";
const TURNS: usize = 60;
const TOKENS: usize = 25;
/// The pause between two tokens: a fast model on a good machine.
const TOKEN_PAUSE: Duration = Duration::from_millis(4);
/// The turns that fill connections and caches and are not measured.
const WARM_UP: usize = 5;
const MAX_ADDED_US: f64 = 1000.0;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let server = model_server();
    let host = server.host();
    let home = Home::new()?;
    home.write_config(&format!(
        "ollama: {{ host: '{host}' }}\nmodels: {{ default: '{MODEL}' }}\n"
    ))?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("relay", &json!({ "turns": TURNS, "tokens": TOKENS }));
    let (mut direct, mut relayed) = (Delays::default(), Delays::default());
    let (mut records, mut builds) = (Samples::default(), Samples::default());
    let mut client = daemon.connect()?;
    let mut direct_client = BufReader::new(TcpStream::connect(host)?);
    let session = client.create(&json!({ "model": MODEL }))?;
    let mut used = Duration::ZERO;
    for turn in 0..TURNS + WARM_UP {
        let direct_answer = ask_directly(&mut direct_client, host)?;
        let before = daemon.cpu_time()?;
        let answers = (direct_answer, ask(&mut client, &session)?);
        let spent = daemon.cpu_time()? - before;
        let record = client.time("session.record", &message(&session, "user", QUESTION))?;
        let build = client.time("context.build", &json!({ "sessionId": session }))?;
        if turn >= WARM_UP {
            direct.add(answers.0);
            relayed.add(answers.1);
            records.push(record);
            builds.push(build);
            used += spent;
        }
    }
    report.print(Row::latency("first token, direct", &direct.first))?;
    report.print(Row::latency("record", &records))?;
    report.print(Row::latency("build", &builds))?;
    let added = relayed.first.p50_us() - direct.first.p50_us() - records.p50_us() - builds.p50_us();
    let row = Row::latency("first token, relayed", &relayed.first);
    report.print(row.with("added", rounded(added)).at_most(added, MAX_ADDED_US))?;
    report.print(Row::latency("token, direct", &direct.each))?;
    let added = relayed.each.p50_us() - direct.each.p50_us();
    // With a share of everything else that a turn of `TOKENS` tokens costs.
    let row = Row::latency("token, relayed", &relayed.each).cpu(used, TURNS * TOKENS);
    report.print(row.with("added", rounded(added)).at_most(added, MAX_ADDED_US))?;
    daemon.stop()
}

/// An answer: the time to its first token, and the delay of each token.
type Answer = (Duration, Vec<Duration>);

/// The delays of some answers.
#[derive(Default)]
struct Delays {
    /// From the question to the first token.
    first: Samples,
    /// From the server to the client.
    each: Samples,
}

impl Delays {
    fn add(&mut self, (first, each): Answer) {
        self.first.push(first);
        each.into_iter().for_each(|sample| self.each.push(sample));
    }
}

/// Returns the time since the first call of this function.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Returns the time since a token was sent.
fn age(token: &str) -> Result<Duration> {
    let sent = token.trim().parse().with_context(|| format!("a time, not {token}"))?;
    Ok(now().saturating_sub(Duration::from_nanos(sent)))
}

/// Asks through the daemon.
fn ask(client: &mut Client, session: &str) -> Result<Answer> {
    let (mut first, mut each) = (None, Vec::new());
    let start = Instant::now();
    let error = client.chat(&message(session, "user", QUESTION), |event| {
        if event["kind"] == "delta" {
            first.get_or_insert_with(|| start.elapsed());
            each.push(age(event["text"].as_str().unwrap_or_default())?);
        }
        Ok(None)
    })?;
    ensure!(error.is_none(), "the turn failed: {error:?}");
    Ok((first.context("an answer has tokens")?, each))
}

/// Asks the model server.
fn ask_directly(server: &mut BufReader<TcpStream>, host: &str) -> Result<Answer> {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let body = json!({ "model": MODEL, "messages": messages }).to_string();
    let (mut first, mut each, mut line) = (None, Vec::new(), String::new());
    let start = Instant::now();
    let head = format!(
        "POST /api/chat HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    server.get_mut().write_all(head.as_bytes())?;
    loop {
        line.clear();
        if server.read_line(&mut line)? == 0 {
            bail!("the model server closed the connection");
        }
        // The last chunk is empty; sizes of chunks stand between the lines of the answer.
        if line.trim_end() == "0" {
            server.read_line(&mut line)?;
            return Ok((first.context("an answer has tokens")?, each));
        }
        if line.starts_with('{') {
            let item: Value = serde_json::from_str(&line)?;
            if item["done"] == false {
                first.get_or_insert_with(|| start.elapsed());
                each.push(age(item["message"]["content"].as_str().unwrap_or_default())?);
            }
        }
    }
}

/// Starts the model server, whose answers are tokens that contain the time, and an end.
fn model_server() -> FakeServer {
    let fake = FakeOllama::scripted(WINDOW, Arc::new(|_| Err(BROKEN)));
    fake.state().load("scripted", WINDOW);
    let token = || {
        let text = json!(format!("{} ", now().as_nanos()));
        format!("{}\n", wire::part(MODEL, "content", &text)).into_bytes()
    };
    let mut end = wire::done(MODEL, "stop");
    end["prompt_eval_count"] = json!(20);
    end["eval_count"] = json!(TOKENS);
    let mut steps = vec![wire::LINES];
    (0..TOKENS).for_each(|_| steps.extend([Step::LateChunk(token), Step::Pause(TOKEN_PAUSE)]));
    steps.extend([Step::line(&end), Step::End]);
    FakeServer::start(move |request| match &*request.line {
        "POST /api/chat" if request.body["_debug_render_only"].is_null() => steps.clone(),
        _ => fake.reply(request),
    })
}
