//! The delay that the daemon adds to a streamed answer: to its first token, and to each token.
//!
//! Run with `cargo bench --bench relay`. The model server is part of this program and answers at once. Each token is
//! the time at which it was sent, so that its way can be timed. Direct requests, in turns with those through the
//! daemon, are the floor.

mod harness;

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};

use harness::daemon::{Client, Daemon, Home, message, request};
use harness::model_server::{describe, running, serve};
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

const MODEL: &str = "tiny:latest";
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
    let host = serve(router())?;
    let home = Home::new()?;
    home.write_config(&format!("ollama: {{ host: '{host}' }}\nmodels: {{ default: tiny }}\n"))?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("relay", &json!({ "turns": TURNS, "tokens": TOKENS }));
    let (mut direct, mut relayed) = (Delays::default(), Delays::default());
    let (mut records, mut builds) = (Samples::default(), Samples::default());
    let mut client = daemon.connect()?;
    let mut server = BufReader::new(TcpStream::connect(&host)?);
    let session = client.create(&json!({ "model": "tiny" }))?;
    for turn in 0..TURNS + WARM_UP {
        let answers = (ask_directly(&mut server, &host)?, ask(&mut client, &session)?);
        let record = client.time("session.record", &message(&session, "user", QUESTION))?;
        let build = client.time("context.build", &json!({ "sessionId": session }))?;
        if turn >= WARM_UP {
            direct.add(answers.0);
            relayed.add(answers.1);
            records.push(record);
            builds.push(build);
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
    let row = Row::latency("token, relayed", &relayed.each);
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
    let request = request("chat.send", &message(session, "user", QUESTION));
    let mut line: Value = serde_json::from_slice(client.exchange(&request)?)?;
    loop {
        if let Some(error) = line.get("error") {
            bail!("chat.send failed: {error}");
        }
        let event = &line["params"]["result"];
        match event["kind"].as_str() {
            Some("delta") => {
                first.get_or_insert_with(|| start.elapsed());
                each.push(age(event["text"].as_str().unwrap_or_default())?);
            }
            Some("done") => return Ok((first.context("an answer has tokens")?, each)),
            Some("error") => bail!("the turn failed: {event}"),
            _ => {}
        }
        line = serde_json::from_slice(client.exchange(b"")?)?;
    }
}

/// Asks the model server.
fn ask_directly(server: &mut BufReader<TcpStream>, host: &str) -> Result<Answer> {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let body = json!({ "model": "tiny", "messages": messages }).to_string();
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

fn router() -> Router {
    describe(MODEL, WINDOW)
        .route("/api/ps", get(|| async { running(MODEL, WINDOW) }))
        .route("/api/chat", post(|| async { answer() }))
}

/// Streams tokens that contain the time, and an end.
fn answer() -> Response {
    let lines = stream::unfold(0, |at| async move {
        if at > TOKENS {
            return None;
        }
        if at > 0 {
            tokio::time::sleep(TOKEN_PAUSE).await;
        }
        let mut line = if at == TOKENS {
            json!({ "model": "tiny", "created_at": "2026-01-01T00:00:00Z", "done": true,
                "done_reason": "stop", "message": { "role": "assistant", "content": "" },
                "prompt_eval_count": 20, "eval_count": TOKENS })
        } else {
            json!({ "model": "tiny", "created_at": "2026-01-01T00:00:00Z", "done": false,
                "message": { "role": "assistant", "content": format!("{} ", now().as_nanos()) } })
        }
        .to_string();
        line.push('\n');
        Some((Ok::<_, Infallible>(Bytes::from(line)), at + 1))
    });
    Response::builder()
        .header("content-type", "application/x-ndjson")
        .body(Body::from_stream(lines))
        .unwrap_or_default()
}
