//! SIGKILL at random moments under load: every acknowledged record is there once, in order, without repair.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{DEADLINE, Random, Sandbox, Wire, rpc_request, until};

const KILLS: u64 = 200;
const WRITERS: usize = 8;
/// Two writers share each session, so that their records interleave.
const SESSIONS: usize = 4;
/// The kills between two verifications, each of which reads all records and starts new sessions.
const KILLS_PER_ROUND: u64 = 20;
/// A kill follows a random number of acknowledgements below this one.
const MAX_ACKNOWLEDGED: u64 = 60;
/// The random delay between that acknowledgement and the kill, which may hit any step of the next write.
const MAX_DELAY_MICROS: u64 = 3_000;

/// A client that records numbered messages, and after a crash retries the one that was not acknowledged.
struct Writer {
    name: usize,
    session: String,
    next: u64,
    /// The number and the seq of each acknowledged record.
    acknowledged: Vec<(u64, u64)>,
}

impl Writer {
    fn text(&self, number: u64) -> String {
        // Some texts are large enough for several writes or for a blob.
        let filler = match number % 40 {
            13 => 10_000,
            27 => 70_000,
            _ => (number * 7 % 90) as usize,
        };
        format!("w{} n{number} {}", self.name, "x".repeat(filler))
    }

    /// Records until the daemon is killed; counts the acknowledgements of all writers in `count`.
    fn work(&mut self, socket: &Path, count: &AtomicU64) {
        let Ok(stream) = UnixStream::connect(socket) else { return };
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        loop {
            let number = self.next;
            let message = json!({ "role": "user", "content": self.text(number) });
            let key = format!("w{} n{number}", self.name);
            let params = json!({ "sessionId": self.session, "message": message, "key": key });
            let call = rpc_request(number, "session.record", params);
            if stream.write_all(format!("{call}\n").as_bytes()).is_err() {
                return;
            }
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(n) if n > 0 && line.ends_with('\n') => {}
                _ => return,
            }
            let reply: Value = serde_json::from_str(&line).unwrap();
            assert!(reply.get("error").is_none(), "refused: {reply}");
            let seq = reply["result"]["seq"].as_u64().unwrap();
            self.acknowledged.push((number, seq));
            self.next += 1;
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Compares the sessions with the acknowledgements of the writers; returns the number of records.
fn verify(wire: &mut Wire, writers: &[Writer]) -> usize {
    let mut found: BTreeMap<usize, Vec<(u64, u64, String)>> = BTreeMap::new();
    let mut sessions: Vec<&str> = writers.iter().map(|writer| writer.session.as_str()).collect();
    sessions.sort_unstable();
    sessions.dedup();
    for session in sessions {
        for (at, record) in wire.records(session).iter().enumerate() {
            assert_eq!(record["seq"], at, "no gap in {session}");
            if ["session", "meta"].iter().any(|kind| record["type"] == *kind) {
                continue;
            }
            assert_eq!(record["type"], "message", "{record}");
            let text = record["message"]["parts"][0]["text"].as_str().unwrap();
            let mut words = text.split(' ');
            let writer = words.next().unwrap()[1..].parse().unwrap();
            let number = words.next().unwrap()[1..].parse().unwrap();
            found.entry(writer).or_default().push((number, at as u64, text.to_owned()));
        }
        let found = wire.session(session);
        assert_eq!(found.get("damagedRecords"), None, "{found}");
        assert_ne!(found["status"], "corrupted", "{found}");
    }
    let mut total = 0;
    for writer in writers {
        let found = found.remove(&writer.name).unwrap_or_default();
        let numbers: Vec<u64> = found.iter().map(|(number, ..)| *number).collect();
        let expected: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, expected, "writer {}: each record once and in order", writer.name);
        assert!(
            numbers.len() as u64 >= writer.next,
            "writer {}: {} acknowledged, {} found",
            writer.name,
            writer.next,
            numbers.len()
        );
        assert!(
            numbers.len() as u64 <= writer.next + 1,
            "writer {}: no more records than requests",
            writer.name
        );
        for (number, seq) in &writer.acknowledged {
            assert_eq!(
                found[*number as usize].1, *seq,
                "writer {}: the seq is the acknowledged one",
                writer.name
            );
        }
        for (number, _, text) in &found {
            assert_eq!(*text, writer.text(*number));
        }
        total += numbers.len();
    }
    total
}

/// Creates the sessions and their writers.
fn start_writers(wire: &mut Wire) -> Vec<Writer> {
    let sessions: Vec<String> = (0..SESSIONS)
        .map(|_| {
            let session = wire.create(json!({}));
            // The update writes the log, because a draft does not survive a kill.
            wire.ok("session.update", json!({ "sessionId": session, "title": "crash" }));
            session
        })
        .collect();
    (0..WRITERS)
        .map(|name| Writer {
            name,
            session: sessions[name % SESSIONS].clone(),
            next: 0,
            acknowledged: Vec::new(),
        })
        .collect()
}

#[test]
fn acknowledged_records_survive_two_hundred_kills() {
    let mut random = Random::seeded("crash");
    let sandbox = Sandbox::new();
    let mut writers: Vec<Writer> = Vec::new();
    let mut total = 0;
    for kill in 0..KILLS {
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        if kill % KILLS_PER_ROUND == 0 {
            total += verify(&mut wire, &writers);
            writers = start_writers(&mut wire);
        }
        drop(wire);
        // Some kills come while the first writers still connect.
        let acknowledged = random.below(MAX_ACKNOWLEDGED);
        let delay = Duration::from_micros(random.below(MAX_DELAY_MICROS));
        let (socket, count) = (daemon.socket().to_owned(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let (socket, count) = (&socket, &count);
                scope.spawn(move || writer.work(socket, count));
            }
            until("the writers progress", || count.load(Ordering::Relaxed) >= acknowledged);
            // Not a wait for a condition: the random moment is the test.
            std::thread::sleep(delay);
            daemon.kill();
        });
    }
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    total += verify(&mut wire, &writers);
    eprintln!("crash: {total} records, {KILLS} kills");
    assert!(total as u64 > KILLS, "the writers recorded only {total} messages");
}
