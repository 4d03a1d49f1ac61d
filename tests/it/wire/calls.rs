//! Calls: invalid params, batches, notifications, and the order of pipelined calls.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{assert_usable, limit, status_call};
use crate::harness::{
    UNKNOWN_SESSION, array, error_kind, rpc_notification, rpc_request, start, text_message,
};

#[test]
fn invalid_call_is_refused_with_the_name_of_the_problem() {
    let (_sandbox, _daemon, mut wire) = start();
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
        let unknown = json!({ "sessionId": UNKNOWN_SESSION });
        let error = wire.refused(method, unknown, "sessionNotFound");
        assert_eq!(error["code"], 1001);
    }
}

#[test]
fn invalid_id_or_cursor_never_reaches_the_file_system() {
    let (sandbox, _daemon, mut wire) = start();
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
                ["invalidParams", "invalidId"].contains(&error_kind(&error)),
                "{method} {id:?}: {error}"
            );
        }
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    for cursor in ["../../etc/passwd", "'; DROP TABLE session; --", "{}", "\u{1}"] {
        let error = wire.call("session.list", json!({ "cursor": cursor })).unwrap_err();
        assert_eq!(error_kind(&error), "invalidParams", "{cursor:?}: {error}");
    }
    wire.refused(
        "session.import",
        json!({ "uploadId": "../../x", "data": "", "last": true }),
        "invalidParams",
    );
}

#[test]
fn batch_with_invalid_entries_is_answered_in_order() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut batch: Vec<Value> = (0..40)
        .map(|n| {
            let params = text_message(&session, "user", &format!("message {n}"));
            rpc_request(n, "session.record", params)
        })
        .collect();
    batch[10] = rpc_request(10, "no.such", json!({}));
    batch[11] = json!(1);
    batch[12] = rpc_notification("session.record", text_message(&session, "user", "notified"));
    wire.send(&Value::Array(batch).to_string());
    let reply = wire.frame().unwrap();
    let ids: Vec<&Value> = array(&reply).iter().map(|answer| &answer["id"]).collect();
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
fn batch_over_limit_or_with_subscription_is_refused() {
    let (_sandbox, _daemon, mut wire) = start();
    let limit = limit(&mut wire, "batch");
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
    assert_usable(&mut wire);
}

#[test]
fn notification_is_executed_without_response() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let params = text_message(&session, "user", "no answer, please");
    wire.send(&rpc_notification("session.record", params).to_string());
    wire.send(&rpc_notification("no.such", json!({})).to_string());
    let seq = wire.record(&session, "assistant", "answered");
    let records = wire.records(&session);
    let texts: Vec<&Value> =
        records.iter().map(|record| &record["message"]["parts"][0]["text"]).collect();
    assert_eq!(
        texts[usize::try_from(seq).unwrap() - 1],
        "no answer, please",
        "the notification took effect first"
    );
}

#[test]
fn pipelined_calls_take_effect_in_order_of_arrival() {
    let (_sandbox, _daemon, mut wire) = start();
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
    let mut seqs = BTreeMap::new();
    let mut events = Vec::new();
    while seqs.len() < ids.len() || events.len() < 200 {
        let frame = wire.frame().unwrap();
        if frame.get("method").is_some() {
            events.push(frame["params"]["result"]["seq"].as_u64().unwrap());
        } else {
            assert!(frame.get("error").is_none(), "{frame}");
            seqs.insert(frame["id"].as_u64().unwrap(), frame["result"]["seq"].clone());
        }
    }
    let seqs: Vec<u64> = ids[1..].iter().map(|id| seqs[id].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=200).collect::<Vec<u64>>(), "seqs follow the order of the calls");
    assert_eq!(events, seqs, "the earlier subscription missed no event");
}

#[test]
fn write_of_disconnected_client_is_executed() {
    let (_sandbox, daemon, mut other) = start();
    let session = other.create(json!({}));
    other.subscribe(json!({ "kinds": ["message-recorded"] }));
    let mut wire = daemon.wire();
    wire.request("session.record", text_message(&session, "user", "written nevertheless"));
    drop(wire);
    let event = other.event();
    assert_eq!(event["sessionId"], session.as_str());
    assert_eq!(
        other.records(&session).last().unwrap()["message"]["parts"][0]["text"],
        "written nevertheless"
    );
}
