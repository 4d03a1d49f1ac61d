//! The limit of open sessions: sessions that are created one after the other never exhaust the descriptors.

use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::harness::{Daemon, Wire, array, rpc_request, start, text_message};

/// The descriptors of the daemon in these tests: fewer than its limit of open sessions needs.
const DESCRIPTORS: u64 = 160;

/// Limits the descriptors that a daemon can open from now on.
fn limit_descriptors(daemon: &Daemon) {
    let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    let _old = prlimit(Some(daemon.process()), Resource::Nofile, limit).unwrap();
}

/// Calls a method once for each params, in batches; returns the results.
fn batched(wire: &mut Wire, method: &str, calls: &[Value]) -> Vec<Value> {
    let mut results = Vec::with_capacity(calls.len());
    for chunk in calls.chunks(200) {
        let requests = chunk.iter().map(|params| rpc_request(1, method, params.clone()));
        wire.send(&Value::Array(requests.collect()).to_string());
        let replies = wire.frame().unwrap();
        for reply in array(&replies) {
            assert_eq!(reply.get("error"), None, "{method} {} calls later", results.len());
            results.push(reply["result"].clone());
        }
    }
    results
}

#[test]
fn thousands_of_created_sessions_need_few_descriptors() {
    let (_sandbox, daemon, mut wire) = start();
    limit_descriptors(&daemon);
    let drafts = vec![json!({}); 2000];
    let sessions: Vec<String> = batched(&mut wire, "session.create", &drafts)
        .iter()
        .map(|created| created["session"]["sessionId"].as_str().unwrap().to_owned())
        .collect();
    let used = &sessions[..600];
    let messages: Vec<Value> =
        used.iter().map(|session| text_message(session, "user", "hello")).collect();
    batched(&mut wire, "session.record", &messages);
    // A large text needs descriptors for its blob too, and a new connection one for itself.
    let large = "x".repeat(100 << 10);
    for session in &used[..20] {
        wire.record(session, "user", &large);
    }
    for session in used.iter().rev().take(20) {
        assert_eq!(daemon.wire().records(session).len(), 2);
    }
    assert_eq!(wire.status()["store"]["sessions"], used.len());
}

#[test]
fn documents_are_saved_also_when_open_sessions_use_all_descriptors() {
    let (_sandbox, daemon, mut wire) = start();
    limit_descriptors(&daemon);
    let created = batched(&mut wire, "session.create", &vec![json!({}); 200]);
    let ids = created.iter().map(|created| created["session"]["sessionId"].as_str().unwrap());
    let messages: Vec<Value> = ids.clone().map(|id| text_message(id, "user", "hello")).collect();
    batched(&mut wire, "session.record", &messages);
    for id in ids {
        wire.ok("session.save", json!({ "sessionId": id }));
    }
}

#[test]
fn created_sessions_are_closed_when_too_many_are_open() {
    let (_sandbox, _daemon, mut wire) = start();
    for _ in 0..2 {
        let created = batched(&mut wire, "session.create", &vec![json!({}); 150]);
        let ids = created.iter().map(|created| created["session"]["sessionId"].as_str().unwrap());
        let messages: Vec<Value> = ids.map(|id| text_message(id, "user", "hello")).collect();
        batched(&mut wire, "session.record", &messages);
    }
    let one_more = wire.create(json!({}));
    wire.record(&one_more, "user", "hello");
    let open = wire.status()["store"]["openSessions"].as_u64().unwrap();
    assert!(open <= 256, "{open} sessions are open");
}
