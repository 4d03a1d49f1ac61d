//! Frames: both framings, invalid bytes, oversized frames, and frames that never end.

use serde_json::{Value, json};

use super::{assert_usable, limit};
use crate::harness::{Framing, Sandbox, Wire, error_kind, rpc_request, start, text_message};

#[test]
fn both_framings_accept_calls_byte_by_byte() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    for framing in [Framing::Lines, Framing::ContentLength] {
        let mut wire = Wire::connect_as(daemon.socket(), framing);
        let session = wire.create(json!({ "title": "Grüße, 世界" }));
        let text = "naïve 世界 🦀 \n \u{2028} \\ \"";
        let call =
            rpc_request(900, "session.record", text_message(&session, "user", text)).to_string();
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
        assert!(wire.response(900).is_ok());
        let records = wire.records(&session);
        assert_eq!(records.last().unwrap()["message"]["parts"][0]["text"], text);
    }
}

#[test]
fn invalid_frame_gets_error_and_connection_stays_open() {
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
            // Nested brackets are a batch of one invalid call.
            let reply = reply.get(0).cloned().unwrap_or(reply);
            let code = reply["error"]["code"].as_i64().unwrap_or_else(|| panic!("{name}: {reply}"));
            assert!(codes.contains(&code), "{name}: {reply}");
            assert!(error_kind(&reply["error"]) != "internal", "{name}: {reply}");
            if bytes.starts_with(b"{\"jsonrpc\":\"2.0\",\"id\":7") && code != -32700 {
                assert_eq!(reply["id"], 7, "{name}: the error has the id of the call");
            }
            assert_usable(&mut wire);
        }
    }
}

#[test]
fn other_protocol_gets_one_error_and_close() {
    let (_sandbox, daemon, mut other) = start();
    for bytes in [
        "42\n",
        "\"daemon.status\"\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "\u{16}\u{3}\u{1}\n",
        "hello\n",
    ] {
        let mut wire = daemon.wire();
        wire.send_bytes(bytes.as_bytes());
        let reply = wire.frame().unwrap_or_else(|| panic!("{bytes:?}: closed without an error"));
        assert!(reply["error"]["message"].is_string(), "{bytes:?}: {reply}");
        assert_eq!(reply["id"], Value::Null, "{bytes:?}: {reply}");
        assert_eq!(wire.frame(), None, "{bytes:?}: the connection is closed");
    }
    for header in [
        "Content-Length: -5\r\n\r\n{}",
        "Content-Length: abc\r\n\r\n{}",
        "Content-Type: x\r\n\r\n{}",
    ] {
        let mut wire = Wire::connect_as(daemon.socket(), Framing::ContentLength);
        wire.send_bytes(header.as_bytes());
        let reply = wire.frame().unwrap_or_else(|| panic!("{header:?}: closed without an error"));
        assert!(reply["error"]["message"].is_string(), "{header:?}: {reply}");
    }
    assert_usable(&mut other);
}

#[test]
fn oversized_frame_is_refused_under_its_id_without_memory_growth() {
    let (_sandbox, daemon, mut other) = start();
    let limit = limit(&mut other, "frameBytes");
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
        assert_eq!(error_kind(&reply["error"]), "tooLarge");
        assert_eq!(reply["error"]["data"]["limit"], limit, "{reply}");
        assert_usable(&mut wire);
    }
    assert_usable(&mut other);
    let grown = daemon.memory_bytes().saturating_sub(before);
    assert!(grown < limit * 2, "{grown} bytes more");
}

#[test]
fn incomplete_frame_of_closed_connection_is_discarded() {
    let (_sandbox, daemon, mut other) = start();
    let session = other.create(json!({}));
    let whole = rpc_request(1, "session.record", text_message(&session, "user", "never finished"))
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
    other.wait_for_count("connections", 1);
    assert_eq!(other.record(&session, "user", "the first record"), 1);
}
