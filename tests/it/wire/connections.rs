//! Connections: limits, half-closed connections, clients that never read, and many idle ones.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::{assert_usable, limit, status_call};
use crate::harness::{Wire, error_kind, rpc_request, start, text_message};

/// The memory that four clients may cost that never read: their frames, parsed frames, and the allocator's slack.
const MAX_GROWTH_BYTES: u64 = 192 << 20;

#[test]
fn subscriptions_of_connection_are_limited() {
    let (_sandbox, _daemon, mut wire) = start();
    let limit = limit(&mut wire, "subscriptions");
    let subscriptions: Vec<Value> = (0..limit).map(|_| wire.subscribe(json!({}))).collect();
    let error = wire.call("event.subscribe", json!({})).unwrap_err();
    assert_eq!(error["code"], -32006, "{error}");
    assert_eq!(wire.ok("event.unsubscribe", json!([subscriptions[0]])), json!(true));
    assert_eq!(wire.ok("event.unsubscribe", json!([subscriptions[0]])), json!(false));
    wire.subscribe(json!({}));
}

#[test]
fn half_closed_connection_receives_all_responses() {
    let (_sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut half = daemon.wire();
    let mut calls = String::new();
    for id in 0..100 {
        let params = text_message(&session, "user", &format!("message {id}"));
        let call = rpc_request(id, "session.record", params);
        writeln!(calls, "{call}").unwrap();
    }
    // The last line has no line break, as from a script that uses `printf`.
    half.send_bytes(calls.trim_end().as_bytes());
    half.close_write();
    let mut ids: Vec<u64> = Vec::new();
    while let Some(reply) = half.frame() {
        assert!(reply.get("error").is_none(), "{reply}");
        ids.push(reply["id"].as_u64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());

    let mut follower = daemon.wire();
    follower.send(&rpc_request(1, "event.subscribe", json!({})).to_string());
    follower.close_write();
    assert!(follower.response(1).is_ok());
    let seq = wire.record(&session, "user", "seen on a half-closed connection");
    assert_eq!(follower.events_until("message-recorded").last().unwrap()["seq"], seq);
}

#[test]
fn clients_that_never_read_cost_bounded_memory_and_no_service() {
    let (_sandbox, daemon, mut other) = start();
    let session = other.create(json!({}));
    let text = "y".repeat(64 << 10);
    for _ in 0..32 {
        other.record(&session, "user", &text);
    }
    let before = daemon.memory_bytes();
    // Each client requests 2 MB again and again and reads nothing.
    let mut clients: Vec<Wire> = (0..4).map(|_| daemon.wire()).collect();
    let call = rpc_request(1, "session.get", json!({ "sessionId": session }));
    let calls = format!("{call}\n").repeat(64);
    std::thread::scope(|scope| {
        for wire in &mut clients {
            let calls = calls.as_bytes();
            scope.spawn(move || {
                // The daemon stops reading from a client that does not read, so sending ends with a timeout.
                wire.set_write_timeout(Duration::from_millis(300));
                (0..1000).all(|_| wire.try_send_bytes(calls))
            });
        }
        for n in 0..20 {
            other.record(&session, "assistant", &format!("still served {n}"));
        }
    });
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < MAX_GROWTH_BYTES, "{grown} bytes more for 4 clients that never read");
    assert_usable(&mut other);
}

/// Begins a frame of 15 MiB and does not end it.
fn begin_large_frame(wire: &mut Wire) {
    wire.set_write_timeout(Duration::from_secs(2));
    let mut frame = br#"{"jsonrpc":"2.0","id":7,"method":"session.list","params":{"x":""#.to_vec();
    frame.resize(15 << 20, b'y');
    // The daemon may stop reading within the frame.
    wire.try_send_bytes(&frame);
}

#[test]
fn unfinished_frames_of_many_clients_cost_bounded_memory_and_no_service() {
    let (_sandbox, daemon, mut other) = start();
    let session = other.create(json!({}));
    let before = daemon.memory_bytes();
    let mut clients: Vec<Wire> = (0..40).map(|_| daemon.wire()).collect();
    std::thread::scope(|scope| {
        for wire in &mut clients {
            scope.spawn(|| begin_large_frame(wire));
        }
        for n in 0..10 {
            other.record(&session, "user", &format!("still served {n}"));
        }
    });
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < MAX_GROWTH_BYTES, "{grown} bytes more for 40 unfinished frames");
    assert_usable(&mut other);
}

#[test]
fn large_frame_is_served_although_others_stall() {
    let (_sandbox, daemon, mut other) = start();
    let session = other.create(json!({}));
    let mut stalled: Vec<Wire> = (0..4).map(|_| daemon.wire()).collect();
    for wire in &mut stalled {
        begin_large_frame(wire);
    }
    other.record(&session, "user", &"large ".repeat(400_000));
    // Those that lost their place get an error with the id of their frame, whichever the daemon looked at first.
    let kinds = stalled.iter_mut().map(|wire| {
        wire.send_bytes(b"\"}}\n");
        let error = wire.response(7).unwrap_err();
        assert_usable(wire);
        error_kind(&error).to_owned()
    });
    let kinds: Vec<String> = kinds.collect();
    assert!(
        kinds.iter().all(|kind| ["busy", "invalidParams"].contains(&kind.as_str())),
        "{kinds:?}"
    );
    assert!(kinds.iter().any(|kind| kind == "busy"), "{kinds:?}");
}

#[test]
fn thousand_idle_connections_cost_little_memory_and_more_are_refused() {
    const CONNECTIONS: usize = 1000;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(65_536, |most| most.min(65_536));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
    let (_sandbox, daemon, mut other) = start();
    let before = daemon.memory_bytes();
    let mut idle = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        idle.push(daemon.wire());
    }
    other.wait_for_count("connections", CONNECTIONS + 1);
    assert_usable(&mut idle[0]);
    assert_usable(&mut idle[CONNECTIONS - 1]);
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(
        grown < 64 * 1024 * CONNECTIONS as u64,
        "{grown} bytes more, {} each",
        grown / CONNECTIONS as u64
    );

    // The first connection over the limit gets an error frame.
    let mut more: Vec<Wire> = Vec::new();
    let refused = (0..200).find_map(|_| {
        let mut wire = daemon.wire();
        if !wire.try_send_bytes(format!("{}\n", status_call(1)).as_bytes()) {
            return Some(wire.frame());
        }
        let reply = wire.frame();
        let served = reply.as_ref().is_some_and(|reply| reply.get("result").is_some());
        more.push(wire);
        (!served).then_some(reply)
    });
    let refused = refused.expect("a limit of connections").expect("an error before the close");
    assert_eq!(refused["error"]["code"], -32009, "{refused}");
    assert_usable(&mut other);
    drop(idle);
    drop(more);
    other.wait_for_count("connections", 1);
}
