//! The memory of a daemon before, during and after a burst of work, and after a minute without any.
//!
//! Run with `cargo bench --bench footprint`; it takes about eight minutes.

mod harness;

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use harness::daemon::{Client, Daemon, Home, message, status_number};
use harness::report::{Report, Row, is_bench_run};

/// The most memory a minute after a burst, above that of a new daemon.
const MAX_LEFT_KIB: f64 = 12.0 * 1024.0;
/// The time after which freed memory is returned: the daemon looks once a minute, and gives up unfinished frames after
/// half a minute.
const SETTLE: Duration = Duration::from_secs(125);

const FRAMES: usize = 40;
const FRAME_BYTES: usize = 15 << 20;
const IMPORT_BYTES: usize = 134_000_000;
const SESSIONS: usize = 10_000;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let sizes = json!({ "frames": FRAMES, "importBytes": IMPORT_BYTES, "sessions": SESSIONS });
    let report = Report::new("footprint", &sizes);
    burst(&report, "unfinished frames", 160 << 10, unfinished_frames)?;
    burst(&report, "import", 64 << 10, import)?;
    burst(&report, "list of sessions", 64 << 10, list_of_sessions)
}

/// Measures one kind of work with a daemon of its own. `max_peak_kib` limits the growth during the work.
fn burst(
    report: &Report,
    name: &str,
    max_peak_kib: u64,
    work: impl FnOnce(&Daemon) -> Result<Vec<UnixStream>>,
) -> Result<()> {
    let home = Home::new()?;
    let daemon = Daemon::start(&home)?;
    std::thread::sleep(Duration::from_secs(1));
    let before = anonymous_kib(&daemon)?;
    report.print(Row::value(&format!("{name}, before"), "KiB", before))?;
    let (is_done, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    let connections = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous_kib(&daemon).unwrap_or_default(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let worked = work(&daemon);
        is_done.store(true, Ordering::Relaxed);
        worked
    })?;
    let above = |kib: u64| kib.saturating_sub(before) as f64;
    let (peak, max_peak) = (peak.into_inner(), max_peak_kib as f64);
    let row = Row::value(&format!("{name}, peak"), "KiB", peak);
    report.print(row.at_most(above(peak), max_peak))?;
    std::thread::sleep(SETTLE);
    let after = anonymous_kib(&daemon)?;
    let row = Row::value(&format!("{name}, idle"), "KiB", after);
    report.print(row.at_most(above(after), MAX_LEFT_KIB))?;
    drop(connections);
    daemon.stop()
}

/// Returns the memory that only this process uses, in KiB.
fn anonymous_kib(daemon: &Daemon) -> Result<u64> {
    status_number(Path::new(&format!("/proc/{}/status", daemon.pid())), "RssAnon")
}

/// Begins large frames on many connections, and records with another one. The connections stay open.
fn unfinished_frames(daemon: &Daemon) -> Result<Vec<UnixStream>> {
    let mut frame = br#"{"jsonrpc":"2.0","id":1,"method":"session.list","params":{"x":""#.to_vec();
    frame.resize(FRAME_BYTES, b'y');
    let mut connections = Vec::new();
    for _ in 0..FRAMES {
        let mut connection = daemon.connect_raw()?;
        connection.set_write_timeout(Some(Duration::from_millis(100)))?;
        // The daemon may stop reading within the frame.
        drop(connection.write_all(&frame));
        connections.push(connection);
    }
    let mut client = daemon.connect()?;
    let id = client.create(&json!({}))?;
    for n in 0..10 {
        client.call("session.record", &message(&id, "user", &format!("message {n}")))?;
    }
    Ok(connections)
}

/// Imports an export of many messages, in chunks.
fn import(daemon: &Daemon) -> Result<Vec<UnixStream>> {
    let mut client = daemon.connect()?;
    let (id, at) = ("0199c2e4-7d6a-7c11-9b1e-3f2f6f0a5c01", "2026-01-27T10:00:00.000Z");
    let session = json!({ "sessionId": id, "startTime": at });
    let mut chunk = format!("{}\n", json!({ "ollmExport": 1, "sessionId": id }));
    chunk.push_str(&line(&json!({ "seq": 0, "at": at, "type": "session", "session": session })));
    let words = "words that follow each other ".repeat(60);
    let (mut upload, mut sent) = (Value::Null, 0);
    for n in 1.. {
        let part = json!({ "type": "text", "text": format!("message {n}: {words}") });
        let message = json!({ "role": "user", "parts": [part], "timestamp": at });
        chunk
            .push_str(&line(&json!({ "seq": n, "at": at, "type": "message", "message": message })));
        let last = sent + chunk.len() >= IMPORT_BYTES;
        if chunk.len() > 2 << 20 || last {
            sent += chunk.len();
            let mut params = json!({ "data": std::mem::take(&mut chunk), "last": last });
            if upload.is_string() {
                params["uploadId"] = upload.clone();
            }
            upload = client.call("session.import", &params)?["uploadId"].take();
        }
        if last {
            break;
        }
    }
    Ok(Vec::new())
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// Creates many sessions and lists them all, several times.
fn list_of_sessions(daemon: &Daemon) -> Result<Vec<UnixStream>> {
    let mut client = daemon.connect()?;
    for n in 0..SESSIONS {
        let id = client.create(&json!({ "title": format!("session {n}") }))?;
        client.call("session.record", &message(&id, "user", &format!("message {n}")))?;
    }
    for _ in 0..20 {
        list_all(&mut client)?;
    }
    Ok(Vec::new())
}

fn list_all(client: &mut Client) -> Result<()> {
    let mut params = json!({ "limit": 1000 });
    loop {
        let page = client.call("session.list", &params)?;
        match page.get("nextCursor") {
            Some(cursor) => params["cursor"] = cursor.clone(),
            None => return Ok(()),
        }
    }
}
