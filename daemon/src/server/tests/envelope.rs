//! The response to each kind of frame, after which the connection is still usable.

use super::*;

/// Returns code, kind and id of an error response.
fn error_of(response: &Value) -> (i64, &str, &Value) {
    let error = &response["error"];
    let code = error["code"].as_i64().unwrap_or_default();
    (code, error["data"]["kind"].as_str().unwrap_or_default(), &response["id"])
}

#[tokio::test]
async fn invalid_frame_gets_an_error_and_the_connection_stays_open() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.check_alive().await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_params =
        format!(r#"{{"jsonrpc":"2.0","id":9,"method":"session.nope","params":{{"a":{deep}}}}}"#);
    let deep_decoded =
        format!(r#"{{"jsonrpc":"2.0","id":9,"method":"test.echo","params":{{"a":{deep}}}}}"#);
    let table: &[(&[u8], i64, &str, Value)] = &[
        (b"{\"jsonrpc\":", -32700, "parseError", json!(null)),
        (b"hello", -32700, "parseError", json!(null)),
        (b"{\"id\":\"\xff\"}", -32700, "parseError", json!(null)),
        (b"42", -32600, "invalidRequest", json!(null)),
        (b"\"text\"", -32600, "invalidRequest", json!(null)),
        (b"{}", -32600, "invalidRequest", json!(null)),
        (b"{\"id\":5,\"method\":\"test.echo\"}", -32600, "invalidRequest", json!(5)),
        (
            b"{\"jsonrpc\":\"1.0\",\"id\":5,\"method\":\"test.echo\"}",
            -32600,
            "invalidRequest",
            json!(5),
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"a\"}", -32600, "invalidRequest", json!("a")),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":7}", -32600, "invalidRequest", json!(5)),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":-1.5,\"method\":\"a\"}",
            -32600,
            "invalidRequest",
            json!(-1.5),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"a\"}",
            -32600,
            "invalidRequest",
            json!(null),
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":1}", -32600, "invalidRequest", json!(5)),
        (b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"nope\"}", -32601, "methodNotFound", json!(5)),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"nope\"}",
            -32601,
            "methodNotFound",
            json!(null),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"daemon.status\",\"params\":[1]}",
            -32602,
            "invalidParams",
            json!(5),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"daemon.status\",\"params\":{\"a\":1}}",
            -32602,
            "invalidParams",
            json!(5),
        ),
        (b"[]", -32600, "invalidRequest", json!(null)),
        (b"[1", -32700, "parseError", json!(null)),
        (deep_params.as_bytes(), -32601, "methodNotFound", json!(9)),
        ("[".repeat(10_000).leak().as_bytes(), -32700, "parseError", json!(null)),
    ];
    for (frame, code, kind, id) in table {
        client.send(frame).await;
        client.send("\n").await;
        let response = client.next().await;
        let shown = String::from_utf8_lossy(&frame[..frame.len().min(80)]);
        assert_eq!(error_of(&response), (*code, *kind, id), "{shown}: {response}");
        client.check_alive().await;
    }
    client.send(deep_decoded + "\n").await;
    assert_eq!(client.next().await["id"], 9);
    client.check_alive().await;
}

#[tokio::test]
async fn response_has_the_id_of_its_request() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    for id in [json!(0), json!(u64::MAX), json!("a \"b\" \n"), json!("")] {
        client
            .send(line(&json!({ "jsonrpc": "2.0", "id": id, "method": "test.echo", "params": {} })))
            .await;
        assert_eq!(client.next().await["id"], id);
    }
}

#[tokio::test]
async fn long_id_is_refused_and_not_repeated() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    let call =
        |id: &str| json!({ "jsonrpc": "2.0", "id": id, "method": "test.echo", "params": {} });
    let (longest, longer) = ("x".repeat(1022), "x".repeat(1023));
    client.send(line(&call(&longest))).await;
    assert_eq!(client.next().await["id"], longest);
    let invalid = json!({ "id": longer, "method": "test.echo" });
    for frame in [call(&longer), call(&"x".repeat(1 << 20)), invalid] {
        client.send(line(&frame)).await;
        assert_eq!(error_of(&client.next().await), (-32600, "invalidRequest", &json!(null)));
    }
    client.send(line(&json!([call(&longer), call("a")]))).await;
    let responses = client.next().await;
    assert_eq!(error_of(&responses[0]), (-32600, "invalidRequest", &json!(null)));
    assert_eq!(responses[1]["id"], "a");
    client.check_alive().await;
}

#[tokio::test]
async fn batch_keeps_its_order_and_rejects_invalid_entries() {
    let server = TestServer::with_limits(|limits| limits.connection.calls.batch = 6);
    let mut client = server.connect().await;
    let echo = |n: u64| request(n, "test.echo", json!({ "n": n }));
    let notification = json!({ "jsonrpc": "2.0", "method": "test.publish" });
    let batch = json!([
        request(1, "test.gate", json!({ "n": 1 })),
        echo(2),
        7,
        notification,
        request(3, "event.subscribe", json!({})),
        echo(4),
    ]);
    client.send(line(&batch)).await;
    server.methods.gate.add_permits(1);
    let responses = client.next().await;
    let responses = responses.as_array().expect("an array");
    let ids: Vec<&Value> = responses.iter().map(|response| &response["id"]).collect();
    assert_eq!(ids, [&json!(1), &json!(2), &json!(null), &json!(3), &json!(4)]);
    assert_eq!(error_of(&responses[2]).0, -32600);
    assert_eq!(error_of(&responses[3]).0, -32600);
    assert_eq!(server.methods.events.subscriptions(), 0);
    client.send(line(&json!([notification, notification]))).await;
    client.check_alive().await;
    client.send(line(&json!([1, 2, 3, 4, 5, 6, 7]))).await;
    assert_eq!(error_of(&client.next().await), (-32010, "batchTooLarge", &json!(null)));
    client.check_alive().await;
}

#[tokio::test]
async fn notification_is_executed_without_a_response() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "event.subscribe", json!({})).await;
    assert_eq!(client.next().await["id"], 1);
    client.send(line(&json!({ "jsonrpc": "2.0", "method": "test.publish" }))).await;
    let event = client.next().await;
    assert_eq!(event["method"], "event.event");
    assert_eq!(event["params"]["result"]["eventSeq"], 1);
    client.send(line(&json!({ "jsonrpc": "2.0", "method": "nope" }))).await;
    client.send(line(&json!({ "jsonrpc": "2.0", "method": "event.subscribe" }))).await;
    client.check_alive().await;
    assert_eq!(server.methods.events.subscriptions(), 1);
}

#[tokio::test]
async fn too_large_request_or_response_is_an_error_with_its_id() {
    let server = TestServer::with_limits(|limits| limits.connection.calls.frame_bytes = 2000);
    let text = request(5, "test.echo", json!({ "a": "x".repeat(3000) })).to_string();
    let reordered = format!(r#"{{"jsonrpc":"2.0","id":5,{}"#, &text[1..]);
    for headers in [false, true] {
        let mut client = server.connect().await;
        if headers {
            client.send(format!("Content-Length: {}\r\n\r\n{reordered}", reordered.len())).await;
            client.finish().await;
            let rest = client.read_to_end().await;
            assert!(rest.starts_with("Content-Length: "), "{rest}");
            assert!(rest.contains("\"id\":5") && rest.contains("-32007"), "{rest}");
            continue;
        }
        client.send(format!("{reordered}\n")).await;
        let response = client.next().await;
        assert_eq!(error_of(&response), (-32007, "tooLarge", &json!(5)));
        assert_eq!(response["error"]["data"]["limit"], 2000);
        client.call(6, "test.big", json!({ "bytes": 2000 })).await;
        assert_eq!(error_of(&client.next().await), (-32007, "tooLarge", &json!(6)));
        let big = |id: u64| request(id, "test.big", json!({ "bytes": 900 }));
        client.send(line(&json!([big(1), big(2), big(3)]))).await;
        let responses = client.next().await;
        assert!(responses[1]["result"].is_string());
        assert_eq!(error_of(&responses[2]), (-32007, "tooLarge", &json!(3)));
        client.check_alive().await;
    }
}

#[tokio::test]
async fn frame_with_headers_gets_a_response_with_headers_even_byte_by_byte() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    let body = request(1, "test.echo", json!({ "a": "é" })).to_string();
    for byte in format!("Content-Length: {}\r\n\r\n{body}", body.len()).bytes() {
        client.send([byte]).await;
    }
    client.finish().await;
    let expect = json!({ "jsonrpc": "2.0", "id": 1, "result": { "a": "é" } }).to_string();
    let rest = client.read_to_end().await;
    let (head, text) = rest.split_once("\r\n\r\n").expect("headers");
    assert_eq!(head, format!("Content-Length: {}", text.len()));
    assert_eq!(
        serde_json::from_str::<Value>(text).expect("JSON"),
        serde_json::from_str::<Value>(&expect).expect("JSON")
    );
}

#[tokio::test]
async fn other_protocol_gets_an_explanation_and_the_connection_closes() {
    let server = TestServer::start();
    for (bytes, text) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "this socket speaks JSON-RPC 2.0"),
        ("Content-Type: x\r\n\r\n{}", "Content-Length"),
    ] {
        let mut client = server.connect().await;
        client.send(bytes).await;
        let rest = client.read_to_end().await;
        assert!(rest.contains(text) && rest.contains("-32700"), "{rest}");
    }
}

#[tokio::test]
async fn blank_lines_all_line_breaks_and_an_unfinished_last_line_are_accepted() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    let echo = |n: u64| request(n, "test.echo", json!({}));
    client.send(format!("\n\r\n  {}\r\n\n{}", echo(1), echo(2))).await;
    client.finish().await;
    let rest = client.read_to_end().await;
    assert_eq!(rest.lines().count(), 2, "{rest}");
}
