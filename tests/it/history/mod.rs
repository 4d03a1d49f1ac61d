//! Concurrent clients of one daemon, with kills between them: the calls of each session have one legal order.
//!
//! Each client draws its calls at random and writes down when it sent them, when the reply came, and what it said.
//! The daemon is killed at a random moment of each round and started again. [`checker`] then looks for one order of
//! a session's calls that explains all replies of all clients over all rounds.

mod checker;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use self::checker::{Call, KEYS, Reply, Request};
use crate::harness::{DEADLINE, Random, Sandbox, error_kind, rpc_request, text_message, until};

const CLIENTS: usize = 6;
const SESSIONS: usize = 3;
/// The rounds of a history; each ends with a kill. Every second history also deletes sessions.
const ROUNDS: u64 = 3;
const HISTORIES: u64 = 2;
/// The fewest replies after which a round's daemon is killed; it may be twice as many.
const REPLIES_PER_ROUND: u64 = 150;
/// One in this many calls of the last round of a history with deletions is a deletion.
const CALLS_PER_DELETION: u64 = 60;

/// The clock of a history: every reading is later than all earlier ones, in all threads.
#[derive(Default)]
struct HistoryClock(AtomicU64);

impl HistoryClock {
    fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A client with its own random choices. It remembers its calls by session.
struct Client {
    name: usize,
    random: Random,
    next_number: u32,
    calls: Vec<Vec<Call>>,
}

impl Client {
    fn new(name: usize, random: &mut Random) -> Self {
        Self { name, random: random.fork(), next_number: 0, calls: vec![Vec::new(); SESSIONS] }
    }

    /// Returns a number that no other request of this history has.
    fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number * CLIENTS as u32 + self.name as u32 + 2 * KEYS as u32
    }

    fn draw(&mut self, deletes: bool) -> Request {
        if deletes && self.random.below(CALLS_PER_DELETION) == 0 {
            return Request::Delete;
        }
        match self.random.below(10) {
            0..4 => Request::Record { number: self.number(), key: None },
            4..6 => {
                let key = self.random.below(KEYS as u64) as usize;
                // Most clients agree on the message of a key, and some do not.
                let other = u32::from(self.random.below(5) == 0);
                Request::Record { number: key as u32 * 2 + other, key: Some(key) }
            }
            6 => Request::Rename { title: self.number() },
            7..9 => Request::Get,
            _ => Request::List,
        }
    }

    /// Calls until the daemon ends.
    fn work(&mut self, socket: &Path, sessions: &[String], clock: &HistoryClock, shared: &Round) {
        let Ok(stream) = UnixStream::connect(socket) else { return };
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        let mut ended = false;
        while !ended {
            let request = self.draw(shared.deletes);
            let session = self.random.below(SESSIONS as u64) as usize;
            let call = rpc_call(request, &sessions[session]);
            let from = clock.tick();
            let mut line = String::new();
            let sent = stream.write_all(format!("{call}\n").as_bytes()).is_ok();
            let received = sent && replies.read_line(&mut line).is_ok_and(|_| line.ends_with('\n'));
            let reply = received.then(|| serde_json::from_str::<Value>(&line).unwrap());
            // Without a reply, the call may have taken effect until the daemon ended, which is before its next start.
            let to = if received { clock.tick() } else { u64::MAX };
            ended = !received;
            shared.replies.fetch_add(u64::from(received), Ordering::Relaxed);
            self.keep(request, session, reply.as_ref(), sessions, (from, to));
        }
    }

    /// Writes a call down; a list is a read of each session.
    fn keep(
        &mut self,
        request: Request,
        session: usize,
        reply: Option<&Value>,
        sessions: &[String],
        (from, to): (u64, u64),
    ) {
        let client = self.name;
        if request == Request::List {
            // Right after a start, a list says that it may be behind the logs.
            let Some(reply) = reply.filter(|reply| reply["result"]["behind"] != true) else {
                return;
            };
            for (calls, id) in self.calls.iter_mut().zip(sessions) {
                let reply = Some(listed(reply, id));
                calls.push(Call { client, request, reply, from, to });
            }
            return;
        }
        let reply = reply.map(|reply| read_reply(request, reply));
        self.calls[session].push(Call { client, request, reply, from, to });
    }
}

/// What the clients of one round share.
struct Round {
    deletes: bool,
    replies: AtomicU64,
}

fn text(number: u32) -> String {
    // Some messages are large enough for a blob.
    let filler = if number.is_multiple_of(97) { 70_000 } else { number as usize % 50 };
    format!("{number} {}", "x".repeat(filler))
}

fn number_of(text: &Value) -> u32 {
    text.as_str().unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn rpc_call(request: Request, session: &str) -> Value {
    let (method, params) = match request {
        Request::Record { number, key } => {
            let mut params = text_message(session, "user", &text(number));
            if let Some(key) = key {
                params["key"] = format!("key {key}").into();
            }
            ("session.record", params)
        }
        Request::Rename { title } => {
            ("session.update", json!({ "sessionId": session, "title": title.to_string() }))
        }
        Request::Get => ("session.get", json!({ "sessionId": session, "limit": 1000 })),
        Request::List => ("session.list", json!({ "limit": 100 })),
        Request::Delete => ("session.delete", json!({ "sessionId": session })),
    };
    rpc_request(1, method, params)
}

fn read_reply(request: Request, reply: &Value) -> Reply {
    let Some(result) = reply.get("result") else {
        return match error_kind(&reply["error"]) {
            "sessionNotFound" => Reply::Missing,
            "conflict" => Reply::Conflict,
            _ => panic!("{request:?} was refused: {reply}"),
        };
    };
    match request {
        Request::Record { .. } => Reply::Recorded {
            seq: result["seq"].as_u64().unwrap(),
            count: match result.get("duplicate") {
                Some(_) => None,
                None => result["usage"]["messageCount"].as_u64(),
            },
        },
        Request::Rename { .. } => Reply::Renamed,
        Request::Get => {
            assert_eq!(result.get("nextFrom"), None, "a page holds the session");
            let records = result["records"].as_array().unwrap().iter();
            let messages = records.filter(|record| record["type"] == "message");
            Reply::Content {
                title: number_of(&result["session"]["title"]),
                messages: messages.map(|r| number_of(&r["message"]["parts"][0]["text"])).collect(),
            }
        }
        Request::Delete => Reply::Deleted,
        Request::List => unreachable!("a list is read by session"),
    }
}

fn listed(reply: &Value, session: &str) -> Reply {
    let data = reply["result"]["data"].as_array().unwrap_or_else(|| panic!("{reply}"));
    match data.iter().find(|found| found["sessionId"] == session) {
        Some(found) => Reply::Listed {
            title: number_of(&found["title"]),
            count: found["messageCount"].as_u64().unwrap(),
        },
        None => Reply::Missing,
    }
}

/// Runs one history and returns the calls by session.
fn history(random: &mut Random, deletes: bool) -> Vec<Vec<Call>> {
    let sandbox = Sandbox::new();
    let clock = HistoryClock::default();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|name| Client::new(name, random)).collect();
    let mut sessions: Vec<String> = Vec::new();
    for round in 0..ROUNDS {
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        while sessions.len() < SESSIONS {
            let session = wire.create(json!({}));
            // The update writes the log, because a draft does not survive a kill.
            wire.ok("session.update", json!({ "sessionId": session, "title": "0" }));
            sessions.push(session);
        }
        let shared = Round { deletes: deletes && round + 1 == ROUNDS, replies: AtomicU64::new(0) };
        let socket = daemon.socket().to_owned();
        let replies = REPLIES_PER_ROUND + random.below(REPLIES_PER_ROUND);
        std::thread::scope(|scope| {
            for client in &mut clients {
                let (socket, sessions, clock, shared) = (&socket, &sessions, &clock, &shared);
                scope.spawn(move || client.work(socket, sessions, clock, shared));
            }
            until("the clients progress", || shared.replies.load(Ordering::Relaxed) >= replies);
            daemon.kill();
        });
        let killed = clock.tick();
        for call in clients.iter_mut().flat_map(|client| client.calls.iter_mut().flatten()) {
            call.to = call.to.min(killed);
        }
    }
    (0..SESSIONS)
        .map(|session| clients.iter().flat_map(|client| client.calls[session].clone()).collect())
        .collect()
}

#[test]
fn concurrent_calls_have_one_legal_order_over_kills() {
    let mut random = Random::seeded("history");
    for run in 0..HISTORIES {
        for calls in history(&mut random, run % 2 == 1) {
            if let Err(report) = checker::check(calls) {
                panic!("{report}");
            }
        }
    }
}
