//! `kill -9` at random moments under load: what was acknowledged is there, once, in order, without help.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{DEADLINE, Random, Sandbox, Wire};

const KILLS: u64 = 200;
const WRITERS: usize = 8;
/// Two writers share each session, so that their records interleave.
const SESSIONS: usize = 4;
/// After so many kills the sessions are read back whole and new ones begun, which keeps the reading short.
const KILLS_A_ROUND: u64 = 20;
/// Nothing of this is timed, but a run that takes longer than this is of no use to anybody.
const LONGEST: Duration = Duration::from_secs(120);

/// One client: it records numbers, and after a crash retries the one that was not acknowledged.
struct Writer {
    name: usize,
    session: String,
    next: u64,
    acknowledged: Vec<(u64, u64)>,
}

impl Writer {
    fn text(&self, number: u64) -> String {
        // Some are large enough to be written in pieces or out of line.
        let filler = match number % 40 {
            13 => 10_000,
            27 => 70_000,
            _ => (number * 7 % 90) as usize,
        };
        format!("w{} n{number} {}", self.name, "x".repeat(filler))
    }

    /// Records until the daemon is gone.
    fn work(&mut self, socket: &Path) {
        let Ok(stream) = UnixStream::connect(socket) else { return };
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        loop {
            let number = self.next;
            let message = json!({ "role": "user", "content": self.text(number) });
            let params = json!({ "sessionId": self.session, "message": message, "key": format!("w{} n{number}", self.name) });
            let call = json!({ "jsonrpc": "2.0", "id": number, "method": "session.record", "params": params });
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
        }
    }
}

/// Compares the sessions with what the writers were told; returns the number of records.
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
        let about = wire.ok("session.get", json!({ "sessionId": session, "limit": 1 }));
        assert_eq!(about["session"].get("damagedRecords"), None, "{about}");
        assert_ne!(about["session"]["status"], "corrupted", "{about}");
    }
    let mut total = 0;
    for writer in writers {
        let found = found.remove(&writer.name).unwrap_or_default();
        let numbers: Vec<u64> = found.iter().map(|(number, ..)| *number).collect();
        let expected: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, expected, "writer {}: each once and in order", writer.name);
        assert!(
            numbers.len() as u64 >= writer.next,
            "writer {}: {} acknowledged, {} there",
            writer.name,
            writer.next,
            numbers.len()
        );
        assert!(
            numbers.len() as u64 <= writer.next + 1,
            "writer {}: more than was sent",
            writer.name
        );
        for (number, seq) in &writer.acknowledged {
            assert_eq!(
                found[*number as usize].1, *seq,
                "writer {} was told another place",
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

fn begin(wire: &mut Wire) -> Vec<Writer> {
    let sessions: Vec<String> = (0..SESSIONS)
        .map(|_| {
            let session = wire.create(json!({}));
            // A draft does not outlive a crash.
            let _set = wire.ok("session.update", json!({ "sessionId": session, "title": "crash" }));
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
fn what_was_acknowledged_survives_two_hundred_kills() {
    let begun = Instant::now();
    let mut random = Random::announced("crash");
    let sandbox = Sandbox::new();
    let mut writers: Vec<Writer> = Vec::new();
    let mut total = 0;
    for kill in 0..KILLS {
        let (daemon, mut wire) = sandbox.served();
        if kill % KILLS_A_ROUND == 0 {
            total += verify(&mut wire, &writers);
            writers = begin(&mut wire);
        }
        drop(wire);
        let moment = Duration::from_micros(500 + random.below(40_000));
        let socket = daemon.socket().to_owned();
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let socket = &socket;
                scope.spawn(move || writer.work(socket));
            }
            // Not a wait for something: the random moment is what is tested.
            std::thread::sleep(moment);
            daemon.kill9();
        });
        assert!(begun.elapsed() < LONGEST, "{kill} kills in {:?}", begun.elapsed());
    }
    let (_daemon, mut wire) = sandbox.served();
    total += verify(&mut wire, &writers);
    eprintln!("crash: {total} records, {KILLS} kills, {:?}", begun.elapsed());
    // Far less than even a slow disk takes; none at all would mean that the kills came too early to test anything.
    assert!(total as u64 > KILLS, "the writers hardly wrote: {total} records");
}
