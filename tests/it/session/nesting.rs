//! Nested JSON: what is accepted at the limit can be read everywhere, and a deeper value is refused when it comes.

use serde_json::{Value, json};

use crate::harness::{Sandbox, array, error_kind, start};

/// The documented limit.
const LIMIT: usize = 96;

/// Returns the JSON of a value of this many levels, lists and objects in turn, with `leaf` inside.
fn nested_text(levels: usize, leaf: &str) -> String {
    let (mut open, mut close) = (String::new(), Vec::new());
    for at in 0..levels {
        open.push_str(if at % 2 == 0 { "[" } else { "{\"k\":" });
        close.push(if at % 2 == 0 { "]" } else { "}" });
    }
    close.reverse();
    format!("{open}{leaf}{}", close.concat())
}

fn nested(levels: usize, leaf: &Value) -> Value {
    serde_json::from_str(&nested_text(levels, &leaf.to_string())).unwrap()
}

/// Returns a call of every method with free content: its name, its params with `value`, and the field of the value.
fn calls(session: &str, value: &Value) -> Vec<(&'static str, Value, &'static str)> {
    let with_session = |mut params: Value| {
        params["sessionId"] = session.into();
        params
    };
    let metadata = json!({ "metadata": value });
    let call = json!({ "id": "c", "name": "t", "args": value, "result": { "llmContent": "r" } });
    let part = json!({ "type": "toolCall", "id": "c", "name": "t", "args": value });
    let message = json!({ "role": "assistant", "parts": [{ "type": "text", "text": "x" }, part] });
    let tools = with_session(json!({ "tools": value }));
    let send = |name: &str| {
        let message = json!({ "role": "user", "content": "x" });
        let mut params = json!({ "message": message, "model": "m" });
        params[name] = value.clone();
        with_session(params)
    };
    vec![
        ("session.create", metadata.clone(), "metadata"),
        ("session.update", with_session(metadata), "metadata"),
        ("session.recordToolCall", with_session(json!({ "toolCall": call })), "toolCall.args"),
        ("session.record", with_session(json!({ "message": message })), "message.parts[1].args"),
        ("session.recordCustom", with_session(json!({ "name": "n", "data": value })), "data"),
        ("context.build", tools.clone(), "tools"),
        ("context.inspect", tools.clone(), "tools"),
        ("context.compact", tools, "tools"),
        ("model.countTokens", json!({ "text": "x", "model": "m", "tools": value }), "tools"),
        ("chat.send", send("tools"), "tools"),
        ("chat.send", send("format"), "format"),
        ("chat.send", send("options"), "options"),
    ]
}

/// Returns the value with a map or a list outside, as the field requires.
fn value_for(field: &str, levels: usize, leaf: &Value) -> Value {
    match field {
        "tools" => json!([nested(levels - 1, leaf)]),
        _ => json!({ "v": nested(levels - 1, leaf) }),
    }
}

#[test]
fn too_deep_value_is_refused_with_field_and_limit_by_every_method() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for (method, _, field) in calls(&session, &json!(null)) {
        for levels in [122, LIMIT + 1, 125, 126, 5_000] {
            let marker = "DEEP";
            let text = nested_text(levels - 1, "0");
            let value =
                if field == "tools" { format!("[{text}]") } else { format!("{{\"v\":{text}}}") };
            let of_method = calls(&session, &json!(marker));
            let (_, params, _) =
                of_method.iter().find(|call| (call.0, call.2) == (method, field)).unwrap();
            let params = params.to_string().replace(&format!("\"{marker}\""), &value);
            let call = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":9000,\"method\":\"{method}\",\"params\":{params}}}"
            );
            wire.send(&call);
            let error = wire.response(9000).unwrap_err();
            assert_eq!(error_kind(&error), "invalidParams", "{method} {levels}: {error}");
            assert_eq!(error["data"]["limit"], LIMIT, "{method} {levels}: {error}");
            let named = error["data"]["field"].as_str().unwrap();
            assert!(named.starts_with(field), "{method} {levels}: {error}");
        }
    }
    let session = wire.session(&session);
    assert_eq!(session["messageCount"], 0, "{session}");
}

#[test]
fn value_at_the_limit_is_read_back_everywhere_after_a_restart() {
    let (sandbox, daemon, mut wire) = start();
    // The text becomes a blob, whose reference is one level deeper.
    let leaf = json!("deep ".repeat(20_000));
    let metadata = value_for("metadata", LIMIT, &json!("leaf"));
    let session = wire.create(json!({ "metadata": metadata, "title": "deep" }));
    for (method, field) in [
        ("session.record", "message.parts[1].args"),
        ("session.recordToolCall", "toolCall.args"),
        ("session.recordCustom", "data"),
        ("session.update", "metadata"),
    ] {
        let leaf = if field == "metadata" { json!("leaf") } else { leaf.clone() };
        let value = value_for(field, LIMIT, &leaf);
        let (_, params, _) =
            calls(&session, &value).into_iter().find(|call| call.0 == method).unwrap();
        wire.ok(method, params);
    }
    let records = wire.records(&session);
    daemon.kill();
    sandbox.remove_catalog();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let read = wire.records(&session);
    assert_eq!(read.len(), 5);
    assert!(read == records, "the records are the same after a restart");
    let data = read.iter().find(|record| record["type"] == "custom").unwrap();
    assert!(data["custom"]["data"] == value_for("data", LIMIT, &leaf));
    assert_eq!(wire.session(&session)["metadata"], metadata);
    assert_eq!(array(&wire.ok("session.list", json!({}))["data"])[0]["metadata"], metadata);
    wire.ok("session.save", json!({ "sessionId": session }));
    for format in ["markdown", "html"] {
        assert!(wire.export(&session, format).contains("deep deep"), "{format}");
    }
    for format in ["json", "jsonl"] {
        let exported = wire.export(&session, format);
        let other_home = Sandbox::new();
        let (_other, mut other) = other_home.daemon_and_wire();
        let imported = other.ok("session.import", json!({ "data": exported, "last": true }));
        assert_eq!(imported["report"]["losses"], json!([]), "{format}");
        if format == "jsonl" {
            let copies = other.records(&session);
            assert_eq!(copies.len(), read.len());
            for (copy, record) in copies.iter().zip(&read).skip(1) {
                let kind = record["type"].as_str().unwrap();
                assert!(copy[kind] == record[kind], "an import has the same {kind}");
            }
        }
        assert_eq!(imported["session"]["metadata"], metadata, "{format}");
    }
    let shown = sandbox.ctl(["--json", "sessions", "view", &session]).json();
    assert_eq!(shown["session"]["metadata"], metadata);
    let listed = sandbox.ctl(["--json", "sessions", "list"]).json();
    assert!(listed.to_string().contains("leaf"), "{listed:.300}");
    drop(daemon);
}

#[test]
fn too_deep_value_of_an_imported_file_is_a_reported_loss() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "title": "x" }));
    wire.record(&session, "user", "first");
    wire.ok(
        "session.recordCustom",
        json!({ "sessionId": session, "name": "n", "data": { "v": ["DEEP"] } }),
    );
    let call = json!({ "id": "c", "name": "t", "args": { "v": ["DEEP"] }, "result": { "llmContent": "r" } });
    wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }));
    wire.record(&session, "user", "last");
    for (format, levels) in
        [("jsonl", LIMIT - 1), ("jsonl", 200), ("jsonl", 10_000), ("json", LIMIT - 1)]
    {
        let deep = nested_text(levels, "0");
        let exported = wire.export(&session, format).replace("\"DEEP\"", &deep);
        let other_home = Sandbox::new();
        let (_other, mut other) = other_home.daemon_and_wire();
        let imported = other.ok("session.import", json!({ "data": exported, "last": true }));
        let losses = imported["report"]["losses"].to_string();
        assert!(losses.contains("deeper than 96 levels"), "{format} {levels}: {losses}");
        assert_eq!(imported["session"]["messageCount"], 2, "{format}");
    }
    let text = wire.export(&session, "json").replace("\"DEEP\"", &"[".repeat(5_000));
    let error =
        wire.refused("session.import", json!({ "data": text, "last": true }), "invalidParams");
    assert_eq!(error["data"]["limit"], 127, "the levels of a parser: {error}");
}
