//! `event.subscribe`: what happened, in order, once, to those who want it.

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire, text_message, until};

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

/// The thresholds of which a follower was told, up to the next word of the mode.
fn thresholds_told(follower: &mut Wire) -> Vec<f64> {
    let events = follower.events_until("mode-changed");
    let told = events.iter().filter(|event| event["kind"] == "context-threshold");
    told.map(|event| event["data"]["threshold"].as_f64().unwrap()).collect()
}

#[test]
fn each_subscriber_is_told_of_its_own_thresholds_once_on_the_way_up() {
    let sandbox = Sandbox::new();
    sandbox.write_config("compression:\n  enabled: false\n");
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({ "contextSize": 4096 }));
    let kinds = json!(["context-threshold", "mode-changed"]);
    let follow = |thresholds: Value| {
        let mut follower = daemon.wire();
        let params = json!({ "sessionId": session, "kinds": kinds, "thresholds": thresholds });
        let _subscription = follower.subscribe(params);
        follower
    };
    let mut plain = follow(json!([]));
    let mut early = follow(json!([0.6, 0.4, 0.4]));
    let mut late = follow(json!([1]));
    let id = json!({ "sessionId": session });
    let text = "some words that a user says ".repeat(12);
    let fill = |wire: &mut Wire, n: usize| {
        (0..n).for_each(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            let _seq = wire.record(&session, role, &text);
        });
        let _ok = wire.ok("session.setMode", json!({ "sessionId": session, "mode": "planning" }));
    };
    let _built = wire.ok("context.build", id.clone());
    fill(&mut wire, 60);
    let used = wire.ok("context.status", id.clone());
    assert_eq!(thresholds_told(&mut plain), [0.85], "{used}");
    assert_eq!(thresholds_told(&mut early), [0.4, 0.6, 0.85]);
    assert_eq!(thresholds_told(&mut late), [0.85, 1.0]);
    // Nothing is passed again while it is full.
    fill(&mut wire, 2);
    for follower in [&mut plain, &mut early, &mut late] {
        assert_eq!(thresholds_told(follower), Vec::<f64>::new());
    }
    let compact = json!({ "sessionId": session, "strategy": "truncate" });
    let done = wire.ok("context.compact", compact);
    assert_eq!(done["compacted"], true, "{done}");
    fill(&mut wire, 60);
    assert_eq!(thresholds_told(&mut plain), [0.85], "it fell below and rose again");
    assert_eq!(thresholds_told(&mut late), [0.85, 1.0]);
}

#[test]
fn who_comes_back_finds_the_thresholds_that_were_passed_meanwhile() {
    let sandbox = Sandbox::new();
    sandbox.write_config("compression:\n  enabled: false\n");
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({ "contextSize": 4096 }));
    let mode = |mode: &str| json!({ "sessionId": session, "mode": mode });
    let params = |thresholds: Value, since: Option<Value>| {
        let kinds = json!(["context-threshold", "mode-changed"]);
        let mut params = json!({ "kinds": kinds, "thresholds": thresholds });
        since.into_iter().for_each(|since| params["since"] = since);
        params
    };
    let mut follower = daemon.wire();
    let _subscription = follower.subscribe(params(json!([0.5]), None));
    let _ok = wire.ok("session.setMode", mode("planning"));
    let seen = follower.event();
    drop(follower);
    let status = |wire: &mut Wire| wire.ok("daemon.status", json!({}))["subscriptions"].clone();
    until("the subscription is gone", || (status(&mut wire) == 0).then_some(()));
    let _built = wire.ok("context.build", json!({ "sessionId": session }));
    let text = "some words that a user says ".repeat(300);
    let _seq = wire.record(&session, "user", &text);
    let _ok = wire.ok("session.setMode", mode("developer"));
    for (thresholds, told) in [(json!([0.5]), vec![0.5]), (json!([]), vec![])] {
        let mut back = daemon.wire();
        let _subscription = back.subscribe(params(thresholds, Some(cursor(&seen))));
        assert_eq!(thresholds_told(&mut back), told);
    }
}
