//! The delay that the daemon adds to a streamed answer: to its first token, with each kind of server, and to each token. Also
//! turns and lists with several servers, of which some are slow.
//!
//! Run with `cargo bench --bench relay`. The model servers are part of this program and answer at once. Each token of
//! Ollama is the time at which it was sent, so that its way can be timed. Direct requests, in turns with those through the
//! daemon, are the floor; for many turns at once it is the same turns while no server is slow.

mod harness;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use harness::daemon::{Client, Daemon, Home, message};
use harness::model_server::{
    BROKEN, EVENTS, Face, FakeOllama, FakeOpenAi, FakeServer, MODEL, Step, done, event, piece, wire,
};
use harness::report::{Report, Row, Samples, is_bench_run, rounded};

const WINDOW: u64 = 8192;
const QUESTION: &str = "how late is it?";
const TURNS: usize = 60;
/// The turns of a session. More of them fill the window: then notes are requested in the pauses, and each turn waits until such
/// a request has ended.
const SESSION_TURNS: usize = 12;
const TOKENS: usize = 25;
/// The pause between two tokens: a fast model on a good machine.
const TOKEN_PAUSE: Duration = Duration::from_millis(4);
/// The turns that fill connections and caches and are not measured.
const WARM_UP: usize = 5;
const MAX_ADDED_US: f64 = 1000.0;
/// The kinds of servers beside Ollama, by the names that the configuration has for them.
const KINDS: [(&str, Face); 3] =
    [("llama-server", Face::LlamaServer), ("vllm", Face::Vllm), ("openai", Face::Plain)];
/// The servers that answer many turns at once, of which the last can be slow, and the turns on each.
const N_SERVERS: usize = 4;
const TURNS_EACH: usize = 16;
const ROUNDS: usize = 9;
/// The time after which a slow server begins to answer.
const SLOW: Duration = Duration::from_secs(2);
/// The bar of the first tokens of the other servers' turns, compared with those while no server is slow.
const BESIDE_SLOW_RATIO: f64 = 1.5;
/// The servers of a list, and those of them that do not respond.
const LISTED: usize = 10;
const HANGING: usize = 3;
const LISTS: usize = 5;
/// The bar of that list, in microseconds.
const LIST_US: f64 = 1e6;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let report = Report::new("relay", &json!({ "turns": TURNS, "tokens": TOKENS }));
    added(&report)?;
    many_turns(&report)?;
    lists(&report)
}

/// Measures what the daemon adds to an answer of each kind of server.
fn added(report: &Report) -> Result<()> {
    let server = model_server();
    let fakes = KINDS.map(|(kind, face)| (kind, fake(face)));
    let home = Home::new()?;
    let servers = fakes.each_ref().map(|(kind, fake)| (*kind, *kind, fake.url()));
    home.write_config(&format!("ollama: {{ host: '{}' }}\n{}", server.host(), config(&servers)))?;
    let daemon = Daemon::start(&home)?;
    let measured =
        measure(&daemon, &Target { model: MODEL, host: server.host(), path: "/api/chat" })?;
    measured.print_first(report, "")?;
    report.print(Row::latency("token, direct", &measured.direct.each))?;
    let added = measured.relayed.each.p50_us() - measured.direct.each.p50_us();
    // With a share of everything else that a turn of `TOKENS` tokens costs.
    let row = Row::latency("token, relayed", &measured.relayed.each);
    let row = row.cpu(measured.used, TURNS * TOKENS);
    report.print(row.with("added", rounded(added)).at_most(added, MAX_ADDED_US))?;
    for (kind, fake) in &fakes {
        let (url, path) = (fake.url(), "/v1/chat/completions");
        let host = url.trim_start_matches("http://");
        let target = Target { model: &format!("on-{kind}"), host, path };
        measure(&daemon, &target)?.print_first(report, &format!(", {kind}"))?;
    }
    daemon.stop()
}

/// Starts a server with the API of OpenAI.
fn fake(face: Face) -> FakeOpenAi {
    let fake = FakeOpenAi::new(face);
    fake.state().window = Some(WINDOW);
    fake.state().slots = TURNS_EACH as u64;
    fake
}

/// Returns the section with servers, by their names, kinds and addresses. The model of each has the alias `on-NAME`.
fn config(servers: &[(&str, &str, String)]) -> String {
    let entry = |(name, kind, url): &(&str, &str, String)| {
        format!(
            "  {name}:\n    kind: {kind}\n    url: {url}\n    parallel: {TURNS_EACH}\n    models:\n      \
             on-{name}: {{ name: m, window: {WINDOW} }}\n"
        )
    };
    format!("servers:\n{}", servers.iter().map(entry).collect::<String>())
}

/// A model of a server.
struct Target<'a> {
    model: &'a str,
    host: &'a str,
    /// The path of its chats.
    path: &'a str,
}

/// The times of turns with one model.
#[derive(Default)]
struct Measured {
    direct: Delays,
    relayed: Delays,
    records: Samples,
    builds: Samples,
    /// The CPU time of the daemon.
    used: Duration,
}

/// Measures turns, directly and through the daemon.
fn measure(daemon: &Daemon, target: &Target<'_>) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut client = daemon.connect()?;
    let mut direct_client = BufReader::new(TcpStream::connect(target.host)?);
    let mut session = String::new();
    for turn in 0..TURNS + WARM_UP {
        if turn % SESSION_TURNS == 0 {
            session = client.create(&json!({ "model": target.model }))?;
        }
        let direct_answer = ask_directly(&mut direct_client, target)?;
        let before = daemon.cpu_time()?;
        let answers = (direct_answer, ask(&mut client, &session)?);
        let spent = daemon.cpu_time()? - before;
        let record = client.time("session.record", &message(&session, "user", QUESTION))?;
        let build = client.time("context.build", &json!({ "sessionId": session }))?;
        if turn >= WARM_UP {
            measured.direct.add(answers.0);
            measured.relayed.add(answers.1);
            measured.records.push(record);
            measured.builds.push(build);
            measured.used += spent;
        }
    }
    Ok(measured)
}

impl Measured {
    /// Prints what the daemon adds to a first token.
    fn print_first(&self, report: &Report, kind: &str) -> Result<()> {
        let Self { direct, relayed, records, builds, .. } = self;
        report.print(Row::latency(&format!("first token, direct{kind}"), &direct.first))?;
        report.print(Row::latency(&format!("record{kind}"), records))?;
        report.print(Row::latency(&format!("build{kind}"), builds))?;
        let added =
            relayed.first.p50_us() - direct.first.p50_us() - records.p50_us() - builds.p50_us();
        let row = Row::latency(&format!("first token, relayed{kind}"), &relayed.first);
        report.print(row.with("added", rounded(added)).at_most(added, MAX_ADDED_US))
    }
}

/// Measures turns on several servers at once, of which one is slow every other time.
fn many_turns(report: &Report) -> Result<()> {
    const NAMES: [&str; N_SERVERS] = ["a", "b", "c", "slow"];
    let fakes = NAMES.map(|name| (name, fake(Face::Vllm)));
    let home = Home::new()?;
    home.write_config(&config(&fakes.each_ref().map(|(name, fake)| (*name, "vllm", fake.url()))))?;
    let daemon = Daemon::start(&home)?;
    let mut clients = Vec::new();
    for turn in 0..N_SERVERS * TURNS_EACH {
        let mut client = daemon.connect()?;
        let name = NAMES[turn % N_SERVERS];
        let session = client.create(&json!({ "model": format!("on-{name}") }))?;
        clients.push((name, client, session));
    }
    let (mut floor, mut beside) = (Samples::default(), Samples::default());
    for round in 0..=2 * ROUNDS {
        let is_slow = round % 2 == 0;
        let (_, slow) = &fakes[N_SERVERS - 1];
        (0..TURNS_EACH).filter(|_| is_slow).for_each(|_| slow.reply_with(slow_answer()));
        let taken = at_once(&mut clients)?;
        // The first round fills connections and caches.
        if round > 0 {
            if is_slow { beside.extend(taken) } else { floor.extend(taken) }
        }
    }
    ensure!(floor.percentile_us(100.0) < SLOW.as_secs_f64() * 1e6, "the floor is slow");
    let n_turns = N_SERVERS * TURNS_EACH;
    report.print(Row::latency(&format!("first token, {n_turns} turns at once"), &floor))?;
    let name = format!("first token, {n_turns} turns at once, {TURNS_EACH} on a slow server");
    let row = Row::latency(&name, &beside).with("worst", rounded(beside.percentile_us(100.0)));
    let (p50, floor) = (beside.p50_us(), floor.p50_us());
    report.print(row.at_most_times(p50, floor, BESIDE_SLOW_RATIO))?;
    daemon.stop()
}

/// Sends a message by each client at once, and returns the times until the first tokens of those that are not on the slow server.
fn at_once(clients: &mut [(&str, Client, String)]) -> Result<Samples> {
    let start = Barrier::new(clients.len());
    thread::scope(|scope| {
        let (begin, mut threads) = (&start, Vec::new());
        for (name, client, session) in clients {
            threads.push(scope.spawn(move || -> Result<Option<Duration>> {
                begin.wait();
                let (first, _) = ask(client, session)?;
                Ok((*name != "slow").then_some(first))
            }));
        }
        let mut samples = Samples::default();
        for thread in threads {
            let first = thread.join().unwrap_or_else(|_| bail!("a client panicked"))?;
            first.into_iter().for_each(|first| samples.push(first));
        }
        Ok(samples)
    })
}

/// Returns the answer of a slow server.
fn slow_answer() -> Vec<Step> {
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    vec![EVENTS, Step::Pause(SLOW), piece("ok"), event(&end), done(), Step::End]
}

/// Measures lists of models while some servers do not respond.
fn lists(report: &Report) -> Result<()> {
    let fakes: Vec<_> = (0..LISTED - HANGING).map(|_| fake(Face::Vllm)).collect();
    let hanging: Vec<_> = (0..HANGING).map(|_| FakeServer::start(|_| vec![Step::Hang])).collect();
    let urls = fakes.iter().map(FakeOpenAi::url);
    let urls = urls.chain(hanging.iter().map(|server| format!("http://{}", server.host())));
    let names: Vec<String> = (0..LISTED).map(|number| format!("s{number}")).collect();
    let servers: Vec<_> =
        names.iter().zip(urls).map(|(name, url)| (name.as_str(), "vllm", url)).collect();
    let home = Home::new()?;
    // Nothing listens at this address.
    home.write_config(&format!("ollama: {{ host: '127.0.0.1:9' }}\n{}", config(&servers)))?;
    let daemon = Daemon::start(&home)?;
    let mut client = daemon.connect()?;
    let mut samples = Samples::default();
    for _ in 0..LISTS {
        let (list, elapsed) = client.timed("model.list", &json!({}))?;
        let listed = list["data"].as_array().map_or(0, Vec::len);
        ensure!(listed >= LISTED - HANGING, "the list has {listed} models: {list}");
        samples.push(elapsed);
    }
    let name = format!("list of {LISTED} servers, of which {HANGING} hang");
    let row = Row::latency(&name, &samples);
    report.print(row.at_most(samples.percentile_us(100.0), LIST_US))?;
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

/// Returns the time since a token was sent, if the token is a time.
fn age(token: &str) -> Option<Duration> {
    let sent = token.trim().parse().ok()?;
    Some(now().saturating_sub(Duration::from_nanos(sent)))
}

/// Asks through the daemon.
fn ask(client: &mut Client, session: &str) -> Result<Answer> {
    let (mut first, mut each) = (None, Vec::new());
    let start = Instant::now();
    let error = client.chat(&message(session, "user", QUESTION), |event| {
        if event["kind"] == "delta" {
            first.get_or_insert_with(|| start.elapsed());
            each.extend(age(event["text"].as_str().unwrap_or_default()));
        }
        Ok(None)
    })?;
    ensure!(error.is_none(), "the turn failed: {error:?}");
    Ok((first.context("an answer has tokens")?, each))
}

/// Asks the model server.
fn ask_directly(server: &mut BufReader<TcpStream>, target: &Target<'_>) -> Result<Answer> {
    let Target { model, host, path } = target;
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let body = json!({ "model": model, "messages": messages, "stream": true }).to_string();
    let (mut first, mut each, mut line) = (None, Vec::new(), String::new());
    let start = Instant::now();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
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
        let line = line.strip_prefix("data: ").unwrap_or(&line);
        if line.starts_with('{') {
            let item: Value = serde_json::from_str(line)?;
            let texts = [&item["message"]["content"], &item["choices"][0]["delta"]["content"]];
            let text = texts.iter().filter_map(|text| text.as_str()).find(|text| !text.is_empty());
            if let Some(text) = text {
                first.get_or_insert_with(|| start.elapsed());
                each.extend(age(text));
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
