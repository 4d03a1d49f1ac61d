//! Calls during the deletion of their session fail with `sessionNotFound`, whatever they were doing.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::harness::{Wire, error_kind, start};

/// The calls that use a session, with params that are valid while it exists.
fn calls(session: &str) -> Vec<(&'static str, Value)> {
    let id = |more: Value| {
        let mut params = json!({ "sessionId": session });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let message = json!({ "message": { "role": "user", "content": "more" } });
    let call = json!({ "toolCall": { "id": "c", "name": "read", "args": {}, "result": { "llmContent": "x" } } });
    vec![
        ("context.build", id(json!({ "contextSize": 8192 }))),
        ("context.build", id(json!({ "contextSize": 8192, "compact": "auto" }))),
        ("context.status", id(json!({}))),
        ("context.inspect", id(json!({}))),
        ("context.compact", id(json!({ "strategy": "truncate" }))),
        ("context.checkpoints", id(json!({}))),
        ("context.listEntries", id(json!({}))),
        ("context.addEntry", id(json!({ "key": "k", "content": "text" }))),
        ("context.removeEntry", id(json!({ "key": "k" }))),
        ("context.pin", id(json!({ "seq": 1 }))),
        ("context.unpin", id(json!({ "seq": 1 }))),
        ("context.facts", id(json!({}))),
        ("context.forgetFact", id(json!({ "seq": 1 }))),
        ("session.get", id(json!({}))),
        ("session.resume", id(json!({}))),
        ("session.record", id(message)),
        ("session.recordToolCall", id(call)),
        ("session.recordCustom", id(json!({ "name": "n" }))),
        ("session.update", id(json!({ "title": "new" }))),
        ("session.setMode", id(json!({ "mode": "planning" }))),
        ("session.close", id(json!({}))),
        ("session.archive", id(json!({}))),
        ("session.unarchive", id(json!({}))),
        ("session.save", id(json!({}))),
        ("session.export", id(json!({ "format": "jsonl" }))),
        ("session.export", id(json!({ "format": "json" }))),
        ("goal.change", id(json!({ "steps": [{ "action": "create", "description": "d" }] }))),
        ("goal.list", id(json!({}))),
        ("goal.change", id(json!({ "steps": [{ "action": "applyMarkers", "seq": 2 }] }))),
        ("loop.status", id(json!({}))),
        ("loop.reset", id(json!({}))),
        ("session.delete", id(json!({}))),
    ]
}

fn new_session(wire: &mut Wire) -> String {
    let session = wire.create(json!({}));
    for n in 0..6 {
        wire.record(&session, "user", &format!("{n} {}", "words ".repeat(30_000)));
        wire.record(&session, "assistant", "[GOAL] a goal");
    }
    session
}

#[test]
fn every_method_answers_session_not_found_during_a_deletion() {
    /// `conflict` and `busy` are answers to another call of the same test, and these two to a context that is too
    /// small; all are in the table of errors.
    const EXPECTED: &[&str] =
        &["sessionNotFound", "conflict", "busy", "goalNotFound", "contextOverflow"];
    let (_sandbox, daemon, mut wire) = start();
    let mut unexpected = Vec::new();
    for round in 0..3 {
        let session = new_session(&mut wire);
        let is_deleted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..3)
                .map(|part| {
                    let (daemon, is_deleted, session) = (&daemon, &is_deleted, &session);
                    scope.spawn(move || {
                        let mut wire = daemon.wire();
                        let mut errors = Vec::new();
                        let mine: Vec<_> =
                            calls(session).into_iter().skip(part).step_by(3).collect();
                        loop {
                            let is_last = is_deleted.load(Ordering::Relaxed);
                            for (method, params) in &mine {
                                // The main thread deletes.
                                if *method == "session.delete" && !is_last {
                                    continue;
                                }
                                if let Err(error) = wire.call(method, params.clone()) {
                                    errors.push((*method, error));
                                }
                            }
                            if is_last {
                                return errors;
                            }
                        }
                    })
                })
                .collect();
            wire.ok("session.delete", json!({ "sessionId": session }));
            is_deleted.store(true, Ordering::Relaxed);
            for caller in callers {
                for (method, error) in caller.join().unwrap() {
                    if !EXPECTED.contains(&error_kind(&error)) {
                        unexpected.push(format!("round {round}: {method}: {error}"));
                    }
                }
            }
        });
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}
