//! `event.subscribe`: every change once and in order, filters, replays, slow subscribers, and thresholds.

use serde_json::{Value, json};

use crate::harness::{Wire, rpc_request, start, start_with_config, text_message};

/// Returns the cursor behind an event.
fn cursor(event: &Value) -> Value {
    json!({ "epoch": event["epoch"], "eventSeq": event["eventSeq"] })
}

#[test]
fn each_change_is_one_event_in_order() {
    let (_sandbox, daemon, mut wire) = start();
    let mut follower = daemon.wire();
    follower.subscribe(json!({}));
    let session = wire.create(json!({ "title": "First" }));
    let id = json!({ "sessionId": session });
    let seq = wire.record(&session, "user", "hello");
    let tool = json!({ "id": "c", "name": "ls", "result": { "llmContent": "a" } });
    wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": tool }));
    wire.ok("session.setMode", json!({ "sessionId": session, "mode": "planning" }));
    wire.ok("session.update", json!({ "sessionId": session, "title": "Second" }));
    wire.ok("session.resume", id.clone());
    wire.ok("session.save", id.clone());
    wire.ok("session.close", id.clone());
    wire.ok("session.archive", id.clone());
    wire.ok("session.delete", id);
    let mut events = follower.events_until("session-deleted");
    let numbers: Vec<u64> =
        events.iter().map(|event| event["eventSeq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    // The snapshot before the change of the mode is announced when its file is written, in the background.
    events.retain(|event| event["kind"] != "auto-snapshot-created");
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
    assert!(events.iter().all(|event| event["sessionId"] == session.as_str()));
    assert_eq!(events[1]["seq"], seq);
    assert_eq!(events[1]["data"]["role"], "user");
    assert_eq!(events[3]["data"]["to"], "planning");
    assert_eq!(events[4]["data"]["fields"], json!(["title"]));
    assert_eq!(events[10]["data"]["reason"], "client");
    assert!(!json!(events).to_string().contains("hello"), "events contain no message text");
}

#[test]
fn filters_select_events_by_session_and_kind() {
    let (_sandbox, daemon, mut wire) = start();
    let one = wire.create(json!({}));
    let two = wire.create(json!({}));
    let mut by_session = daemon.wire();
    by_session.subscribe(json!({ "sessionId": one }));
    let mut by_kind = daemon.wire();
    by_kind.subscribe(json!({ "kinds": ["tool-call-recorded", "session-closed"] }));
    for session in [&two, &one] {
        wire.record(session, "user", "hello");
        wire.ok("session.close", json!({ "sessionId": session }));
    }
    let events = by_session.events_until("session-closed");
    assert!(events.iter().all(|event| event["sessionId"] == one.as_str()), "{events:?}");
    assert_eq!(by_kind.event()["sessionId"], two.as_str());
    assert_eq!(by_kind.event()["kind"], "session-closed");
    let error = by_kind.call("event.subscribe", json!({ "kinds": ["no-such-kind"] })).unwrap_err();
    assert_eq!(error["data"]["kind"], "invalidParams", "{error}");
}

#[test]
fn since_replays_missed_events_and_a_restart_requires_resync() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut follower = daemon.wire();
    follower.subscribe(json!({}));
    wire.record(&session, "user", "seen");
    let seen = follower.events_until("message-recorded").pop().unwrap();
    drop(follower);
    let missed: Vec<u64> =
        (0..5).map(|n| wire.record(&session, "user", &format!("missed {n}"))).collect();
    let mut follower = daemon.wire();
    follower.subscribe(json!({ "since": cursor(&seen), "kinds": ["message-recorded"] }));
    let replayed: Vec<u64> =
        missed.iter().map(|_| follower.event()["seq"].as_u64().unwrap()).collect();
    assert_eq!(replayed, missed);
    let live = wire.record(&session, "user", "live");
    let event = follower.event();
    assert_eq!(event["seq"], live, "live events follow the replayed ones");

    let mut future = cursor(&event);
    future["eventSeq"] = json!(1_000_000);
    let mut ahead = daemon.wire();
    ahead.subscribe(json!({ "since": future }));
    assert_eq!(ahead.event()["kind"], "resync");

    daemon.kill();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let mut follower = daemon.wire();
    follower.subscribe(json!({ "since": cursor(&event), "kinds": ["message-recorded"] }));
    assert_eq!(
        follower.event()["kind"],
        "resync",
        "the events of another daemon process cannot be replayed"
    );
    let seq = wire.record(&session, "user", "after the restart");
    let later = follower.event();
    assert_eq!(later["seq"], seq);
    assert_ne!(later["epoch"], event["epoch"]);
}

#[test]
fn slow_subscriber_gets_the_number_of_missed_events() {
    let (_sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut slow = daemon.wire();
    slow.subscribe(json!({}));
    let before = daemon.memory_bytes();
    // More events than the ring and the buffers of the connection hold.
    let batch: Vec<Value> = (0..250)
        .map(|n| rpc_request(n, "session.record", text_message(&session, "user", "tick")))
        .collect();
    let batch = Value::Array(batch).to_string();
    for _ in 0..80 {
        wire.send(&batch);
        assert_eq!(wire.frame().unwrap().as_array().unwrap().len(), 250);
    }
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    let last_seq = wire.record(&session, "user", "the last message");
    // Every event number is either received or missed, without a gap.
    let (mut last_event, mut missed) = (None, 0);
    loop {
        let event = slow.event();
        let number = event["eventSeq"].as_u64().unwrap();
        let count = match event["kind"].as_str().unwrap() {
            "lagged" => event["data"]["missed"].as_u64().unwrap(),
            "message-recorded" | "session-created" | "session-saved" => 1,
            other => panic!("unexpected event {other}"),
        };
        assert!(last_event.is_none_or(|last| number == last + count), "{event}");
        missed += if event["kind"] == "lagged" { count } else { 0 };
        last_event = Some(number);
        if event["seq"] == last_seq {
            break;
        }
    }
    assert!(missed > 0, "the ring holds fewer than 20,000 events");
}

#[test]
fn subscription_ends_by_a_call_or_with_its_connection() {
    let (_sandbox, daemon, mut wire) = start();
    let mut follower = daemon.wire();
    let subscription = follower.subscribe(json!({}));
    assert_eq!(wire.status()["subscriptions"], 1);
    assert_eq!(follower.ok("event.unsubscribe", json!([subscription])), json!(true));
    wire.wait_for_count("subscriptions", 0);
    follower.subscribe(json!({}));
    assert_eq!(wire.status()["subscriptions"], 1);
    drop(follower);
    wire.wait_for_count("subscriptions", 0);
}

/// Returns the thresholds that a follower receives before the next change of the mode.
fn thresholds_until_mode_change(follower: &mut Wire) -> Vec<f64> {
    let events = follower.events_until("mode-changed");
    let thresholds = events.iter().filter(|event| event["kind"] == "context-threshold");
    thresholds.map(|event| event["data"]["threshold"].as_f64().unwrap()).collect()
}

#[test]
fn subscriber_gets_each_of_its_thresholds_once_per_rise() {
    let (_sandbox, daemon, mut wire) = start_with_config("compression:\n  enabled: false\n");
    let session = wire.create(json!({ "contextSize": 4096 }));
    let kinds = json!(["context-threshold", "mode-changed"]);
    let follow = |thresholds: Value| {
        let mut follower = daemon.wire();
        let params = json!({ "sessionId": session, "kinds": kinds, "thresholds": thresholds });
        follower.subscribe(params);
        follower
    };
    let mut default = follow(json!([]));
    let mut early = follow(json!([0.6, 0.4, 0.4]));
    let mut late = follow(json!([1]));
    let id = json!({ "sessionId": session });
    let text = "some words that a user says ".repeat(12);
    let fill = |wire: &mut Wire, n: usize| {
        (0..n).for_each(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            wire.record(&session, role, &text);
        });
        wire.ok("session.setMode", json!({ "sessionId": session, "mode": "planning" }));
    };
    wire.ok("context.build", id.clone());
    fill(&mut wire, 60);
    let used = wire.ok("context.status", id.clone());
    assert_eq!(thresholds_until_mode_change(&mut default), [0.85], "{used}");
    assert_eq!(thresholds_until_mode_change(&mut early), [0.4, 0.6, 0.85]);
    assert_eq!(thresholds_until_mode_change(&mut late), [0.85, 1.0]);
    // No threshold is reported again while the context is full.
    fill(&mut wire, 2);
    for follower in [&mut default, &mut early, &mut late] {
        assert_eq!(thresholds_until_mode_change(follower), Vec::<f64>::new());
    }
    let compact = json!({ "sessionId": session, "strategy": "truncate" });
    let done = wire.ok("context.compact", compact);
    assert_eq!(done["compacted"], true, "{done}");
    fill(&mut wire, 60);
    assert_eq!(
        thresholds_until_mode_change(&mut default),
        [0.85],
        "the context fell below and rose again"
    );
    assert_eq!(thresholds_until_mode_change(&mut late), [0.85, 1.0]);
}

#[test]
fn replay_contains_thresholds_passed_since_the_cursor() {
    let (_sandbox, daemon, mut wire) = start_with_config("compression:\n  enabled: false\n");
    let session = wire.create(json!({ "contextSize": 4096 }));
    let mode = |mode: &str| json!({ "sessionId": session, "mode": mode });
    let params = |thresholds: Value, since: Option<Value>| {
        let kinds = json!(["context-threshold", "mode-changed"]);
        let mut params = json!({ "kinds": kinds, "thresholds": thresholds });
        since.into_iter().for_each(|since| params["since"] = since);
        params
    };
    let mut follower = daemon.wire();
    follower.subscribe(params(json!([0.5]), None));
    wire.ok("session.setMode", mode("planning"));
    let seen = follower.event();
    drop(follower);
    wire.wait_for_count("subscriptions", 0);
    wire.ok("context.build", json!({ "sessionId": session }));
    let text = "some words that a user says ".repeat(300);
    wire.record(&session, "user", &text);
    wire.ok("session.setMode", mode("developer"));
    for (thresholds, expected) in [(json!([0.5]), vec![0.5]), (json!([]), vec![])] {
        let mut follower = daemon.wire();
        follower.subscribe(params(thresholds, Some(cursor(&seen))));
        assert_eq!(thresholds_until_mode_change(&mut follower), expected);
    }
}
