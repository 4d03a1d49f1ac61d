//! Fields with a limit: a longer one is refused with its name.

use serde_json::{Value, json};

use crate::harness::{array, error_kind, start};

#[test]
fn oversized_field_is_refused_with_its_name_and_limit() {
    let (_sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    let long = "x".repeat(1100 << 10);
    let with = |name: &str, value: &Value| {
        let mut params = json!({ "sessionId": session });
        params[name] = value.clone();
        params
    };
    let message = |name: &str| {
        let mut message = json!({ "role": "assistant", "content": "hi" });
        message[name] = json!(long);
        with("message", &message)
    };
    let part = |name: &str| {
        let mut part = json!({ "type": "toolCall", "id": "a", "name": "b", "args": {} });
        part[name] = json!(long);
        with("message", &json!({ "role": "assistant", "parts": [part] }))
    };
    let tool_call = |name: &str| {
        let mut call =
            json!({ "id": "a", "name": "b", "args": {}, "result": { "llmContent": "x" } });
        call[name] = json!(long);
        with("toolCall", &call)
    };
    let custom = with("name", &json!(long));
    let mut entry = with("key", &json!("k"));
    entry["content"] = json!(long);
    let mut mode = with("mode", &json!("planning"));
    mode["trigger"] = json!(long);
    let text = json!(long);
    let goal = with("steps", &json!([{ "action": "create", "description": long }]));
    let cases = [
        ("session.create", json!({ "title": text }), "title"),
        ("session.create", json!({ "model": text }), "model"),
        ("session.create", json!({ "provider": text }), "provider"),
        ("session.create", json!({ "mode": text }), "mode"),
        ("session.create", json!({ "metadata": { "m": text } }), "metadata"),
        ("session.create", json!({ "systemPrompt": text }), "systemPrompt"),
        ("session.create", json!({ "key": text }), "key"),
        ("session.update", with("title", &text), "title"),
        ("session.update", with("description", &text), "description"),
        ("session.update", with("model", &text), "model"),
        ("session.update", with("provider", &text), "provider"),
        ("session.setMode", with("mode", &text), "mode"),
        ("session.setMode", mode, "trigger"),
        ("session.record", message("model"), "model"),
        ("session.record", message("finishReason"), "finishReason"),
        ("session.record", part("name"), "toolName"),
        ("session.record", part("id"), "toolCallId"),
        ("session.recordToolCall", tool_call("name"), "toolName"),
        ("session.recordToolCall", tool_call("id"), "toolCallId"),
        ("session.recordCustom", custom, "name"),
        ("context.addEntry", entry, "content"),
        ("goal.change", goal, "goalText"),
    ];
    let hello = json!({ "client": "t", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    let limits = wire.ok("daemon.hello", hello)["limits"]["fieldBytes"].clone();
    let replies = cases.map(|(method, params, field)| (method, field, wire.call(method, params)));
    let accepted = replies.iter().filter(|(.., reply)| reply.is_ok());
    let accepted: Vec<_> = accepted.map(|(method, field, _)| (method, field)).collect();
    assert!(accepted.is_empty(), "{accepted:?}");
    for (method, field, reply) in replies {
        let error = reply.unwrap_err();
        assert_eq!(error_kind(&error), "tooLarge", "{method}: {error}");
        assert_eq!(error["data"]["field"], field, "{method}: {error}");
        assert_eq!(error["data"]["limit"], limits[field], "{method}: {error}");
        assert!(limits[field].is_u64(), "{field} is in {limits}");
    }
    daemon.assert_serves();
    assert_eq!(array(&wire.ok("session.list", json!({}))["data"]).len(), 1);
}
