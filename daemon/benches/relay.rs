//! What the daemon adds to a streamed answer: to its first token, and to each token on its way.
//!
//! Run with `cargo bench --bench relay`. The model server is part of this program and answers at once, so that a
//! token's way can be timed: each says when it was sent. Direct calls are the floor, in turns with the daemon's.

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

use harness::daemon::{Client, Daemon, Home, request};
use harness::report::{Report, Row, Samples, rounded};

const TURNS: usize = 60;
const TOKENS: usize = 25;
/// The pause between two tokens: a fast model on a good machine.
const PACE: Duration = Duration::from_millis(4);
/// Calls that warm up connections and caches.
const WARM_UP: usize = 5;
const BAR_US: f64 = 1000.0;

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let host = serve()?;
    let home = Home::new()?;
    let config = format!("ollama: {{ host: '{host}', model: tiny }}\n");
    std::fs::File::create(home.path().join("config.yaml"))?.write_all(config.as_bytes())?;
    let daemon = Daemon::start(&home)?;
    let report = Report::new("relay", &json!({ "turns": TURNS, "tokens": TOKENS }));
    let (mut direct, mut relayed) = (Way::default(), Way::default());
    let (mut records, mut builds) = (Samples::default(), Samples::default());
    let mut client = daemon.connect()?;
    let mut server = BufReader::new(TcpStream::connect(&host)?);
    let created = client.call("session.create", &json!({ "model": "tiny" }))?;
    let session = created["session"]["sessionId"].as_str().context("a session has an id")?;
    for turn in 0..TURNS + WARM_UP {
        let (one, other) = (ask_directly(&mut server, &host)?, ask(&mut client, session)?);
        let record = timed(&mut client, "session.record", &message(session))?;
        let build = timed(&mut client, "context.build", &json!({ "sessionId": session }))?;
        if turn >= WARM_UP {
            direct.add(one);
            relayed.add(other);
            records.push(record);
            builds.push(build);
        }
    }
    report.row(Row::latency("first token, direct", &direct.first))?;
    report.row(Row::latency("record", &records))?;
    report.row(Row::latency("build", &builds))?;
    let p50 = |samples: &Samples| samples.percentile_us(50.0);
    let added = p50(&relayed.first) - p50(&direct.first) - p50(&records) - p50(&builds);
    let row = Row::latency("first token, relayed", &relayed.first);
    report.row(row.with("added", rounded(added)).at_most(added, BAR_US))?;
    report.row(Row::latency("a token on its way, direct", &direct.each))?;
    let added = p50(&relayed.each) - p50(&direct.each);
    let row = Row::latency("a token on its way, relayed", &relayed.each);
    report.row(row.with("added", rounded(added)).at_most(added, BAR_US))?;
    daemon.stop()
}

/// How long tokens took.
#[derive(Default)]
struct Way {
    /// From the question to the first token.
    first: Samples,
    /// From the server to the client.
    each: Samples,
}

impl Way {
    fn add(&mut self, (first, each): (Duration, Vec<Duration>)) {
        self.first.push(first);
        each.into_iter().for_each(|sample| self.each.push(sample));
    }
}

/// Time since the program began to ask.
fn now() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}

/// How long a token was on its way that says when it was sent.
fn age(token: &str) -> Result<Duration> {
    let sent = token.trim().parse().with_context(|| format!("a time, not {token}"))?;
    Ok(now().saturating_sub(Duration::from_nanos(sent)))
}

fn timed(client: &mut Client, method: &str, params: &Value) -> Result<Duration> {
    let started = Instant::now();
    client.call(method, params)?;
    Ok(started.elapsed())
}

fn message(session: &str) -> Value {
    json!({ "sessionId": session, "message": { "role": "user", "content": "how late is it?" } })
}

/// Asks through the daemon.
fn ask(client: &mut Client, session: &str) -> Result<(Duration, Vec<Duration>)> {
    let (mut first, mut each) = (None, Vec::new());
    let started = Instant::now();
    let request = request("chat.send", &message(session));
    let mut line: Value = serde_json::from_slice(client.exchange(&request)?)?;
    loop {
        if let Some(error) = line.get("error") {
            bail!("chat.send failed: {error}");
        }
        let event = &line["params"]["result"];
        match event["kind"].as_str() {
            Some("delta") => {
                first.get_or_insert_with(|| started.elapsed());
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
fn ask_directly(
    server: &mut BufReader<TcpStream>,
    host: &str,
) -> Result<(Duration, Vec<Duration>)> {
    let messages = json!([{ "role": "user", "content": "how late is it?" }]);
    let body = json!({ "model": "tiny", "messages": messages }).to_string();
    let (mut first, mut each, mut line) = (None, Vec::new(), String::new());
    let started = Instant::now();
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
        // Between the lines of the answer stand those of the chunks.
        if line.trim_end() == "0" {
            server.read_line(&mut line)?;
            return Ok((first.context("an answer has tokens")?, each));
        }
        if line.starts_with('{') {
            let item: Value = serde_json::from_str(&line)?;
            if item["done"] == false {
                first.get_or_insert_with(|| started.elapsed());
                each.push(age(item["message"]["content"].as_str().unwrap_or_default())?);
            }
        }
    }
}

/// A model server on a thread of its own; returns its address.
fn serve() -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let host = listener.local_addr()?.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router()).await
        })
    });
    Ok(host)
}

fn router() -> Router {
    let details = json!({ "family": "tiny" });
    let listed = json!({ "models": [{ "name": "tiny:latest", "model": "tiny:latest", "size": 1,
        "digest": "sha256:00", "details": details }] });
    let shown = json!({ "details": details, "model_info": { "tiny.context_length": 8192,
        "general.architecture": "tiny" }, "capabilities": ["completion"] });
    let running = json!({ "models": [{ "name": "tiny:latest", "model": "tiny:latest", "size": 1,
        "size_vram": 1, "digest": "sha256:00", "context_length": 8192 }] });
    let always = |value: Value| {
        move || std::future::ready(([("content-type", "application/json")], value.to_string()))
    };
    Router::new()
        .route("/api/version", get(always(json!({ "version": "0.33.0" }))))
        .route("/api/tags", get(always(listed)))
        .route("/api/ps", get(always(running)))
        .route("/api/show", post(always(shown)))
        .route("/api/chat", post(|| async { answer() }))
}

/// Tokens that say when they were sent, and an end.
fn answer() -> Response {
    let lines = stream::unfold(0, |at| async move {
        if at > TOKENS {
            return None;
        }
        if at > 0 {
            tokio::time::sleep(PACE).await;
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
