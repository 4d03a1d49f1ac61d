//! `event.subscribe`: what happened, in order, once, to those who want it.

use serde_json::{Value, json};

use crate::harness::{Sandbox, text_message, until};

fn cursor(event: &Value) -> Value {
    json!({ "epoch": event["epoch"], "eventSeq": event["eventSeq"] })
}

#[test]
fn every_change_is_told_once_and_in_order() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let mut follower = daemon.wire();
    let _subscription = follower.subscribe(json!({}));
    let session = wire.create(json!({ "title": "Told" }));
    let id = json!({ "sessionId": session });
    let seq = wire.record(&session, "user", "hello");
    let tool = json!({ "id": "c", "name": "ls", "result": { "llmContent": "a" } });
    let _result =
        wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": tool }));
    let _result = wire.ok("session.setMode", json!({ "sessionId": session, "mode": "planning" }));
    let _result = wire.ok("session.update", json!({ "sessionId": session, "title": "Retold" }));
    let _result = wire.ok("session.resume", id.clone());
    let _result = wire.ok("session.save", id.clone());
    let _result = wire.ok("session.close", id.clone());
    let _result = wire.ok("session.archive", id.clone());
    let _result = wire.ok("session.delete", id);
    let events = follower.events_until("session-deleted");
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "session-created",
            "message-recorded",
            "tool-call-recorded",
            "mode-changed",
            "session-updated",
            "session-resumed",
            "session-saved",
            "session-closed",
            "session-saved",
            "session-archived",
            "session-deleted",
        ]
    );
    let numbers: Vec<u64> =
        events.iter().map(|event| event["eventSeq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    assert!(events.iter().all(|event| event["sessionId"] == session.as_str()));
    assert_eq!(events[1]["seq"], seq);
    assert_eq!(events[1]["data"]["role"], "user");
    assert_eq!(events[3]["data"]["to"], "planning");
    assert_eq!(events[4]["data"]["fields"], json!(["title"]));
    assert_eq!(events[10]["data"]["reason"], "client");
    assert!(!json!(events).to_string().contains("hello"), "events carry no contents");
}

#[test]
fn filters_let_only_the_wanted_through() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let one = wire.create(json!({}));
    let two = wire.create(json!({}));
    let mut by_session = daemon.wire();
    let _subscription = by_session.subscribe(json!({ "sessionId": one }));
    let mut by_kind = daemon.wire();
    let _subscription =
        by_kind.subscribe(json!({ "kinds": ["tool-call-recorded", "session-closed"] }));
    for session in [&two, &one] {
        let _seq = wire.record(session, "user", "hello");
        let _closed = wire.ok("session.close", json!({ "sessionId": session }));
    }
    let events = by_session.events_until("session-closed");
    assert!(events.iter().all(|event| event["sessionId"] == one.as_str()), "{events:?}");
    assert_eq!(by_kind.event()["sessionId"], two.as_str());
    assert_eq!(by_kind.event()["kind"], "session-closed");
    let error = by_kind.call("event.subscribe", json!({ "kinds": ["no-such-kind"] })).unwrap_err();
    assert_eq!(error["data"]["kind"], "invalidParams", "{error}");
}

#[test]
fn since_replays_what_was_missed_and_a_restart_is_announced() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut follower = daemon.wire();
    let _subscription = follower.subscribe(json!({}));
    let _seq = wire.record(&session, "user", "seen");
    let seen = follower.events_until("message-recorded").pop().unwrap();
    drop(follower);
    let missed: Vec<u64> =
        (0..5).map(|n| wire.record(&session, "user", &format!("missed {n}"))).collect();
    let mut follower = daemon.wire();
    let _subscription =
        follower.subscribe(json!({ "since": cursor(&seen), "kinds": ["message-recorded"] }));
    let replayed: Vec<u64> =
        missed.iter().map(|_| follower.event()["seq"].as_u64().unwrap()).collect();
    assert_eq!(replayed, missed);
    let live = wire.record(&session, "user", "live");
    let event = follower.event();
    assert_eq!(event["seq"], live, "and goes on without a gap");

    let mut future = cursor(&event);
    future["eventSeq"] = json!(1_000_000);
    let mut confused = daemon.wire();
    let _subscription = confused.subscribe(json!({ "since": future }));
    assert_eq!(confused.event()["kind"], "resync");

    daemon.kill9();
    let (daemon, mut wire) = sandbox.served();
    let mut follower = daemon.wire();
    let _subscription =
        follower.subscribe(json!({ "since": cursor(&event), "kinds": ["message-recorded"] }));
    assert_eq!(
        follower.event()["kind"],
        "resync",
        "another run of the daemon cannot be replayed from"
    );
    let seq = wire.record(&session, "user", "after the restart");
    let event_after = follower.event();
    assert_eq!(event_after["seq"], seq);
    assert_ne!(event_after["epoch"], event["epoch"]);
}

#[test]
fn who_is_too_slow_is_told_what_was_missed_and_goes_on() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut slow = daemon.wire();
    let _subscription = slow.subscribe(json!({}));
    let before = daemon.memory_bytes();
    // More events than the ring and every buffer on the way hold.
    let batch: Vec<Value> = (0..250)
        .map(|n| json!({ "jsonrpc": "2.0", "id": n, "method": "session.record", "params": text_message(&session, "user", "tick") }))
        .collect();
    let batch = Value::Array(batch).to_string();
    let mut sent = 0;
    for _ in 0..80 {
        wire.send(&batch);
        assert_eq!(wire.frame().unwrap().as_array().unwrap().len(), 250);
        sent += 250;
    }
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    let seq = wire.record(&session, "user", "the last");
    let (mut received, mut missed) = (0, 0);
    loop {
        let event = slow.event();
        match event["kind"].as_str().unwrap() {
            "lagged" => missed += event["data"]["missed"].as_u64().unwrap(),
            "message-recorded" => {
                received += 1;
                if event["seq"] == seq {
                    break;
                }
            }
            // The document is written while idle.
            "session-saved" | "session-created" => {}
            other => panic!("unexpected: {other}"),
        }
    }
    assert!(missed > 0, "the ring is smaller than {sent} events");
    let total = received + missed;
    assert!(
        (sent + 1..=sent + 20).contains(&total),
        "{received} received, {missed} missed of {sent}"
    );
}

#[test]
fn a_subscription_ends_with_its_connection_or_by_a_call() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let mut follower = daemon.wire();
    let subscription = follower.subscribe(json!({}));
    let count = |wire: &mut crate::harness::Wire| {
        wire.ok("daemon.status", json!({}))["subscriptions"].clone()
    };
    assert_eq!(count(&mut wire), 1);
    assert_eq!(follower.ok("event.unsubscribe", json!([subscription])), json!(true));
    until("the subscription is gone", || (count(&mut wire) == 0).then_some(()));
    let _again = follower.subscribe(json!({}));
    assert_eq!(count(&mut wire), 1);
    drop(follower);
    until("the subscription went with its connection", || (count(&mut wire) == 0).then_some(()));
}
