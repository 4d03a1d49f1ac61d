//! The cost of a call: a trivial one against a bare echo server, and one by `ollmctl` against `/bin/true`.
//!
//! Run with `cargo bench --bench calls`. Client and server share one core where `taskset` exists; otherwise the
//! wake-up of an idle core dominates the measurement.

mod harness;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use harness::daemon::{Client, Daemon, Home, hello, request};
use harness::report::{Report, Row, Samples, is_bench_run};

const CALLS: usize = 50_000;
const ROUNDS: usize = 5;
const PROCESSES: usize = 400;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, socket, reply_bytes] = arguments.as_slice()
        && flag == "--echo"
    {
        return echo(Path::new(socket), reply_bytes.parse()?);
    }
    if !is_bench_run() {
        return Ok(());
    }
    let home = Home::new()?;
    one_shot(&home)?;
    trivial_call(&home)
}

/// Measures `ollmctl` and `/bin/true` in turns, on all cores.
fn one_shot(home: &Home) -> Result<()> {
    let daemon = Daemon::start(home)?;
    let report = Report::new("calls", &json!({ "pinned": false }));
    let (mut ctl, mut floor) = (Samples::default(), Samples::default());
    let params = hello().to_string();
    for _ in 0..PROCESSES {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ollmctl"));
        command.env("OLLM_HOME", home.path()).env("OLLM_SOCKET", home.socket());
        ctl.push(time(command.args(["call", "daemon.hello", &params]))?);
        floor.push(time(&mut Command::new("/bin/true"))?);
    }
    report.print(Row::latency("/bin/true", &floor))?;
    let row = Row::latency("ollmctl one-shot", &ctl);
    report.print(row.at_most_times(ctl.p50_us(), floor.p50_us(), 2.5))?;
    daemon.stop()
}

fn time(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let elapsed = start.elapsed();
    if !status.success() {
        bail!("{command:?} failed");
    }
    Ok(elapsed)
}

/// Measures the daemon and the echo server in turns, so that both see the same state of the machine.
fn trivial_call(home: &Home) -> Result<()> {
    let is_pinned = pin_to_one_core();
    let report = Report::new("calls", &json!({ "pinned": is_pinned }));
    let daemon = Daemon::start(home)?;
    let call = request("daemon.hello", &hello());
    let mut client = daemon.connect()?;
    let reply_bytes = client.exchange(&call)?.len();
    let echo_socket = home.path().join("e");
    let mut server = spawn_echo(&echo_socket, reply_bytes)?;
    let mut echo = connect_with_retries(&echo_socket)?;
    let (mut calls, mut floor) = (Samples::default(), Samples::default());
    let used_before = daemon.cpu_time()?;
    for _ in 0..ROUNDS {
        for (client, samples) in [(&mut echo, &mut floor), (&mut client, &mut calls)] {
            let round = Samples::take(CALLS / ROUNDS, || client.exchange(&call).map(drop))?;
            samples.extend(round);
        }
    }
    let used = daemon.cpu_time()? - used_before;
    server.kill()?;
    server.wait()?;
    report.print(Row::latency("tokio echo, same frames", &floor))?;
    report.print(
        Row::latency("trivial call", &calls)
            .with("requestBytes", call.len())
            .with("replyBytes", reply_bytes)
            .cpu(used, calls.n_runs())
            .at_most_times(calls.p50_us(), floor.p50_us(), 1.5),
    )?;
    daemon.stop()
}

/// Binds this process, and with it the processes that it starts, to the first core.
fn pin_to_one_core() -> bool {
    let pid = std::process::id().to_string();
    let mut command = Command::new("taskset");
    command.args(["-a", "-p", "-c", "0", &pid]).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn spawn_echo(socket: &Path, reply_bytes: usize) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--echo").arg(socket).arg(reply_bytes.to_string());
    command.spawn().context("start the echo server")
}

fn connect_with_retries(socket: &Path) -> Result<Client> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match Client::connect(socket) {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
            connected => return connected,
        }
    }
}

/// Answers every line with a line of a fixed size, which is the least that a server can do.
fn echo(socket: &Path, reply_bytes: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(socket)?;
        let (mut stream, _) = listener.accept().await?;
        let mut reply = vec![b'x'; reply_bytes];
        if let Some(last) = reply.last_mut() {
            *last = b'\n';
        }
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            if buffer[..read].ends_with(b"\n") {
                stream.write_all(&reply).await?;
            }
        }
    })
}
