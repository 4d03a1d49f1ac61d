//! Any bytes on the socket: an error reply or a clean close, bounded memory, other clients unharmed.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::harness::{Framing, Sandbox, Wire, kind_of, text_message, until};

/// What memory may grow by under abuse: two frames in flight, their parsed form, and the allocator's slack.
const GROWTH_BYTES: u64 = 96 << 20;

fn status_call(id: u64) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "daemon.status" }).to_string()
}

#[track_caller]
fn assert_alive(wire: &mut Wire) {
    assert!(wire.call("daemon.status", json!({})).is_ok(), "the connection lives on");
}

#[test]
fn a_bad_frame_is_answered_and_the_connection_lives_on() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    let nested = "[".repeat(10_000);
    let nested_whole = format!("{nested}{}", "]".repeat(10_000));
    let nested_param = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"session.create","params":{{"metadata":{{"a":{nested_whole}}}}}}}"#
    );
    let cases: &[(&str, &[u8], &[i64])] = &[
        ("invalid JSON", b"{\"jsonrpc\":\"2.0\",\"id\":1,", &[-32700]),
        ("a word in brackets", b"[hello]", &[-32700]),
        ("invalid UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", &[-32700]),
        ("nested brackets, open", nested.as_bytes(), &[-32700]),
        ("nested brackets", nested_whole.as_bytes(), &[-32700, -32600]),
        ("nested brackets in a parameter", nested_param.as_bytes(), &[-32602, -32700, -32600]),
        ("no method", b"{\"jsonrpc\":\"2.0\",\"id\":7}", &[-32600]),
        ("a method that is a number", b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":5}", &[-32600]),
        (
            "another version",
            b"{\"jsonrpc\":\"1.0\",\"id\":7,\"method\":\"daemon.status\"}",
            &[-32600],
        ),
        (
            "an id that is an object",
            b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"daemon.status\"}",
            &[-32600],
        ),
        ("an empty batch", b"[]", &[-32600]),
    ];
    for framing in [Framing::Lines, Framing::ContentLength] {
        let mut wire = Wire::connect_as(daemon.socket(), framing);
        for (name, bytes, codes) in cases {
            match framing {
                Framing::Lines => {
                    wire.send_bytes(bytes);
                    wire.send_bytes(b"\n");
                }
                Framing::ContentLength => {
                    wire.send_bytes(format!("Content-Length: {}\r\n\r\n", bytes.len()).as_bytes());
                    wire.send_bytes(bytes);
                }
            }
            let reply = wire.frame().unwrap_or_else(|| panic!("{name}: closed"));
            // Nested brackets are a batch of one bad call.
            let reply = reply.get(0).cloned().unwrap_or(reply);
            let code = reply["error"]["code"].as_i64().unwrap_or_else(|| panic!("{name}: {reply}"));
            assert!(codes.contains(&code), "{name}: {reply}");
            assert!(kind_of(&reply["error"]) != "internal", "{name}: {reply}");
            if bytes.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":7") && code != -32700 {
                assert_eq!(reply["id"], 7, "{name}: a refusal keeps the id of the call");
            }
            assert_alive(&mut wire);
        }
    }
}

#[test]
fn a_scalar_or_another_protocol_gets_one_error_and_a_close() {
    let sandbox = Sandbox::new();
    let (daemon, mut other) = sandbox.served();
    for bytes in [
        "42\n",
        "\"daemon.status\"\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "\u{16}\u{3}\u{1}\n",
        "hello\n",
    ] {
        let mut wire = daemon.wire();
        wire.send_bytes(bytes.as_bytes());
        let reply = wire.frame().unwrap_or_else(|| panic!("{bytes:?}: closed without a word"));
        assert!(reply["error"]["message"].is_string(), "{bytes:?}: {reply}");
        assert_eq!(reply["id"], Value::Null, "{bytes:?}: {reply}");
        assert_eq!(wire.frame(), None, "{bytes:?}: then it closes");
    }
    for header in [
        "Content-Length: -5\r\n\r\n{}",
        "Content-Length: abc\r\n\r\n{}",
        "Content-Type: x\r\n\r\n{}",
    ] {
        let mut wire = Wire::connect_as(daemon.socket(), Framing::ContentLength);
        wire.send_bytes(header.as_bytes());
        let reply = wire.frame().unwrap_or_else(|| panic!("{header:?}: closed without a word"));
        assert!(reply["error"]["message"].is_string(), "{header:?}: {reply}");
    }
    assert_alive(&mut other);
}

#[test]
fn an_oversized_frame_is_refused_under_its_own_id_and_does_not_grow_the_daemon() {
    let sandbox = Sandbox::new();
    let (daemon, mut other) = sandbox.served();
    let hello = json!({ "client": "it", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    let limit = other.ok("daemon.hello", hello)["limits"]["frameBytes"].as_u64().unwrap();
    let before = daemon.memory_bytes();
    let text = "x".repeat(usize::try_from(limit).unwrap() * 4);
    let frame = format!(
        r#"{{"jsonrpc":"2.0","id":"mine","method":"session.list","params":{{"idPrefix":"{text}"}}}}"#
    );
    drop(text);
    for framing in [Framing::Lines, Framing::ContentLength] {
        let mut wire = Wire::connect_as(daemon.socket(), framing);
        wire.send(&frame);
        let reply = wire.frame().unwrap();
        assert_eq!(reply["id"], "mine", "{framing:?}");
        assert_eq!(reply["error"]["code"], -32007, "{reply}");
        assert_eq!(kind_of(&reply["error"]), "tooLarge");
        assert_eq!(reply["error"]["data"]["limit"], limit, "{reply}");
        assert_alive(&mut wire);
    }
    assert_alive(&mut other);
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < limit * 2, "{grown} bytes more");
}

#[test]
fn wrong_calls_say_what_is_wrong() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let error = wire.refused("session.destroy", json!({}), "methodNotFound");
    assert_eq!(error["code"], -32601);
    assert!(error["message"].as_str().unwrap().contains("session.destroy"), "{error}");

    let error = wire.refused("session.list", json!({ "limt": 3 }), "invalidParams");
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().unwrap().contains("limt"), "{error}");

    let error = wire.refused("session.list", json!({ "limit": "three" }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("limit"), "{error}");

    let session = wire.create(json!({}));
    let nested =
        json!({ "sessionId": session, "message": { "role": "user", "content": "a", "tone": "b" } });
    let error = wire.refused("session.record", nested, "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("tone"), "{error}");

    let error = wire.refused("session.record", json!({ "sessionId": session }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("message"), "{error}");

    let error = wire.refused("session.get", json!([session]), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("name"), "{error}");

    for wrong in [json!(0), json!(1001), json!(-1)] {
        wire.refused("session.list", json!({ "limit": wrong }), "invalidParams");
    }
    for method in [
        "session.get",
        "session.resume",
        "session.close",
        "session.delete",
        "session.save",
        "context.build",
    ] {
        let absent = json!({ "sessionId": "01890000-0000-7000-8000-000000000000" });
        let error = wire.refused(method, absent, "sessionNotFound");
        assert_eq!(error["code"], 1001);
    }
}

#[test]
fn an_id_never_reaches_a_path() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let victim = sandbox.path("victim.jsonl");
    std::fs::write(&victim, "untouched").unwrap();
    let methods = [
        "session.get",
        "session.resume",
        "session.delete",
        "session.save",
        "session.close",
        "session.archive",
    ];
    for method in methods {
        for id in [
            "../../etc/passwd",
            "../../victim",
            "",
            ".",
            "a/b",
            "%2e%2e%2f",
            "01890000-0000-7000-8000-00000000000\u{0}",
        ] {
            let error = wire.call(method, json!({ "sessionId": id })).unwrap_err();
            assert!(
                ["invalidParams", "invalidId"].contains(&kind_of(&error)),
                "{method} {id:?}: {error}"
            );
        }
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    for cursor in ["../../etc/passwd", "'; DROP TABLE session; --", "{}", "\u{1}"] {
        let error = wire.call("session.list", json!({ "cursor": cursor })).unwrap_err();
        assert_eq!(kind_of(&error), "invalidParams", "{cursor:?}: {error}");
    }
    wire.refused(
        "session.import",
        json!({ "uploadId": "../../x", "data": "", "last": true }),
        "invalidParams",
    );
}

#[test]
fn a_batch_is_answered_in_its_order_bad_entries_included() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut batch: Vec<Value> = (0..40)
        .map(|n| {
            let params = text_message(&session, "user", &format!("message {n}"));
            json!({ "jsonrpc": "2.0", "id": n, "method": "session.record", "params": params })
        })
        .collect();
    batch[10] = json!({ "jsonrpc": "2.0", "id": 10, "method": "no.such" });
    batch[11] = json!(1);
    batch[12] = json!({ "jsonrpc": "2.0", "method": "session.record", "params": text_message(&session, "user", "notified") });
    wire.send(&Value::Array(batch).to_string());
    let reply = wire.frame().unwrap();
    let ids: Vec<&Value> = reply.as_array().unwrap().iter().map(|answer| &answer["id"]).collect();
    let expected: Vec<Value> = (0..40)
        .filter(|n| *n != 12)
        .map(|n| if n == 11 { Value::Null } else { json!(n) })
        .collect();
    assert_eq!(ids, expected.iter().collect::<Vec<_>>());
    assert_eq!(reply[10]["error"]["code"], -32601);
    assert_eq!(reply[11]["error"]["code"], -32600);
    let texts: Vec<String> = wire
        .records(&session)
        .iter()
        .filter_map(|record| record["message"]["parts"][0]["text"].as_str().map(str::to_owned))
        .collect();
    let expected: Vec<String> = (0..40)
        .filter(|n| *n != 10 && *n != 11)
        .map(|n| if n == 12 { "notified".to_owned() } else { format!("message {n}") })
        .collect();
    assert_eq!(texts, expected, "the log has the order of the batch");
}

#[test]
fn a_batch_has_a_limit_and_takes_no_subscription() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let hello = json!({ "client": "it", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    let limit = wire.ok("daemon.hello", hello)["limits"]["batch"].as_u64().unwrap();
    let batch = |n: u64| format!("[{}]", (0..n).map(status_call).collect::<Vec<_>>().join(","));
    wire.send(&batch(limit));
    assert_eq!(wire.frame().unwrap().as_array().unwrap().len() as u64, limit);
    wire.send(&batch(limit + 1));
    let reply = wire.frame().unwrap();
    assert_eq!(reply["error"]["code"], -32010, "{reply}");
    wire.send(r#"[{"jsonrpc":"2.0","id":1,"method":"event.subscribe","params":{}}]"#);
    let reply = wire.frame().unwrap();
    assert!(reply[0]["error"]["code"].is_i64(), "{reply}");
    wire.send(r#"[{"jsonrpc":"2.0","method":"daemon.status"}]"#);
    assert_alive(&mut wire);
}

#[test]
fn a_connection_has_a_bounded_number_of_subscriptions() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let hello = json!({ "client": "it", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    let limit = wire.ok("daemon.hello", hello)["limits"]["subscriptions"].as_u64().unwrap();
    let subscriptions: Vec<Value> = (0..limit).map(|_| wire.subscribe(json!({}))).collect();
    let error = wire.call("event.subscribe", json!({})).unwrap_err();
    assert_eq!(error["code"], -32006, "{error}");
    assert_eq!(wire.ok("event.unsubscribe", json!([subscriptions[0]])), json!(true));
    assert_eq!(wire.ok("event.unsubscribe", json!([subscriptions[0]])), json!(false));
    let _again = wire.subscribe(json!({}));
}

#[test]
fn a_notification_is_carried_out_and_not_answered() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let params = text_message(&session, "user", "no answer, please");
    wire.send(
        &json!({ "jsonrpc": "2.0", "method": "session.record", "params": params }).to_string(),
    );
    wire.send(&json!({ "jsonrpc": "2.0", "method": "no.such", "params": {} }).to_string());
    let seq = wire.record(&session, "assistant", "answered");
    let records = wire.records(&session);
    let texts: Vec<&Value> =
        records.iter().map(|record| &record["message"]["parts"][0]["text"]).collect();
    assert_eq!(texts[usize::try_from(seq).unwrap() - 1], "no answer, please", "it came first");
}

#[test]
fn both_framings_carry_the_same_calls_however_the_bytes_are_cut() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    for framing in [Framing::Lines, Framing::ContentLength] {
        let mut wire = Wire::connect_as(daemon.socket(), framing);
        let session = wire.create(json!({ "title": "Grüße, 世界" }));
        let text = "naïve 世界 🦀 \n \u{2028} \\ \"";
        let call = json!({ "jsonrpc": "2.0", "id": 900, "method": "session.record", "params": text_message(&session, "user", text) })
            .to_string();
        let frame = match framing {
            Framing::Lines => format!("\r\n\n  {call}\r\n"),
            Framing::ContentLength => {
                format!(
                    "content-length: {}\r\nContent-Type: application/json\r\n\r\n{call}",
                    call.len()
                )
            }
        };
        for byte in frame.as_bytes() {
            wire.send_bytes(&[*byte]);
        }
        assert!(wire.answer(900).is_ok());
        let records = wire.records(&session);
        assert_eq!(records.last().unwrap()["message"]["parts"][0]["text"], text);
    }
}

#[test]
fn half_a_connection_gets_all_its_answers() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut half = daemon.wire();
    let mut calls = String::new();
    for id in 0..100 {
        let params = text_message(&session, "user", &format!("message {id}"));
        let call =
            json!({ "jsonrpc": "2.0", "id": id, "method": "session.record", "params": params });
        writeln!(calls, "{call}").unwrap();
    }
    // The last line has no end: a script's `printf` forgets it.
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
    follower.send(
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "event.subscribe", "params": {} })
            .to_string(),
    );
    follower.close_write();
    assert!(follower.answer(1).is_ok());
    let seq = wire.record(&session, "user", "seen through half a connection");
    assert_eq!(follower.events_until("message-recorded").last().unwrap()["seq"], seq);
}

#[test]
fn pipelined_calls_take_effect_in_the_order_of_arrival() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut ids = vec![wire.request(
        "event.subscribe",
        json!({ "sessionId": session, "kinds": ["message-recorded"] }),
    )];
    for n in 0..200 {
        ids.push(
            wire.request("session.record", text_message(&session, "user", &format!("message {n}"))),
        );
    }
    let mut answers = std::collections::BTreeMap::new();
    let mut events = Vec::new();
    while answers.len() < ids.len() || events.len() < 200 {
        let frame = wire.frame().unwrap();
        if frame.get("method").is_some() {
            events.push(frame["params"]["result"]["seq"].as_u64().unwrap());
        } else {
            assert!(frame.get("error").is_none(), "{frame}");
            answers.insert(frame["id"].as_u64().unwrap(), frame["result"]["seq"].clone());
        }
    }
    let seqs: Vec<u64> = ids[1..].iter().map(|id| answers[id].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=200).collect::<Vec<u64>>(), "positions follow the order of the calls");
    assert_eq!(events, seqs, "and the subscription before them missed none");
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_frame_harms_nobody() {
    let sandbox = Sandbox::new();
    let (daemon, mut other) = sandbox.served();
    let session = other.create(json!({}));
    let whole = json!({ "jsonrpc": "2.0", "id": 1, "method": "session.record", "params": text_message(&session, "user", "never finished") })
        .to_string();
    for cut in [1, 10, whole.len() / 2, whole.len() - 1] {
        let mut wire = daemon.wire();
        wire.send_bytes(&whole.as_bytes()[..cut]);
        drop(wire);
        let mut wire = Wire::connect_as(daemon.socket(), Framing::ContentLength);
        wire.send_bytes(
            format!("Content-Length: {}\r\n\r\n{}", whole.len(), &whole[..cut]).as_bytes(),
        );
        drop(wire);
    }
    until("the dead connections are gone", || {
        (other.ok("daemon.status", json!({}))["connections"] == 1).then_some(())
    });
    assert_eq!(other.record(&session, "user", "the first that counts"), 1);
}

#[test]
fn a_call_whose_client_left_is_carried_out() {
    let sandbox = Sandbox::new();
    let (daemon, mut other) = sandbox.served();
    let session = other.create(json!({}));
    let _subscription = other.subscribe(json!({ "kinds": ["message-recorded"] }));
    let mut wire = daemon.wire();
    let _id =
        wire.request("session.record", text_message(&session, "user", "written all the same"));
    drop(wire);
    let event = other.event();
    assert_eq!(event["sessionId"], session.as_str());
    assert_eq!(
        other.records(&session).last().unwrap()["message"]["parts"][0]["text"],
        "written all the same"
    );
}

#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_no_one_else_anything() {
    let sandbox = Sandbox::new();
    let (daemon, mut other) = sandbox.served();
    let session = other.create(json!({}));
    let text = "y".repeat(64 << 10);
    for _ in 0..32 {
        let _seq = other.record(&session, "user", &text);
    }
    let before = daemon.memory_bytes();
    // Each of them asks for 2 MB again and again and takes nothing.
    let mut deaf: Vec<Wire> = (0..4).map(|_| daemon.wire()).collect();
    let calls = calls_of(&session, 64);
    std::thread::scope(|scope| {
        for wire in &mut deaf {
            let calls = calls.as_bytes();
            scope.spawn(move || {
                wire.limit_writes(Duration::from_millis(300));
                // The daemon stops reading from who does not read, so that sending ends in a timeout.
                (0..1000).all(|_| wire.try_send_bytes(calls))
            });
        }
        for n in 0..20 {
            let _seq = other.record(&session, "assistant", &format!("still served {n}"));
        }
    });
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES * 2, "{grown} bytes more for 4 clients that never read");
    assert_alive(&mut other);
}

fn calls_of(session: &str, n: usize) -> String {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "session.get", "params": { "sessionId": session } });
    format!("{call}\n").repeat(n)
}

#[test]
fn a_thousand_idle_connections_cost_little() {
    const CONNECTIONS: usize = 1000;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(65_536, |most| most.min(65_536));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
    let sandbox = Sandbox::new();
    let (daemon, mut other) = sandbox.served();
    let before = daemon.memory_bytes();
    let mut idle = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        idle.push(daemon.wire());
    }
    until("all are accepted", || {
        let open = other.ok("daemon.status", json!({}))["connections"].as_u64().unwrap();
        (open > CONNECTIONS as u64).then_some(())
    });
    assert_alive(&mut idle[0]);
    assert_alive(&mut idle[CONNECTIONS - 1]);
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(
        grown < 64 * 1024 * CONNECTIONS as u64,
        "{grown} bytes more, {} each",
        grown / CONNECTIONS as u64
    );

    // One too many hears why, in JSON.
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
    let refused = refused.expect("connections are limited").expect("a word before the close");
    assert_eq!(refused["error"]["code"], -32009, "{refused}");
    assert_alive(&mut other);
    drop(idle);
    drop(more);
    until("they are let go", || {
        (other.ok("daemon.status", json!({}))["connections"] == 1).then_some(())
    });
}
