//! Order, back-pressure, subscriptions, and clients that leave early.

use super::*;

#[tokio::test]
async fn slow_call_does_not_delay_others() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "test.gate", json!({ "n": 1 })).await;
    client.call(2, "test.echo", json!({})).await;
    assert_eq!(client.next().await["id"], 2);
    server.methods.gate.add_permits(1);
    assert_eq!(client.next().await["id"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_one_connection_start_in_their_order() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    let calls: String =
        (0..200).map(|n| line(&request(n, "test.gate", json!({ "n": n })))).collect();
    client.send(calls).await;
    until("all started", || server.methods.started().len() == 200).await;
    assert_eq!(server.methods.started(), (0..200).collect::<Vec<_>>());
    server.methods.gate.add_permits(200);
    for _ in 0..200 {
        client.next().await;
    }
}

#[tokio::test]
async fn concurrent_calls_are_limited() {
    let server = TestServer::with_limits(|limits| limits.connection.calls.in_flight = 4);
    let mut client = server.connect().await;
    let calls: String =
        (0..40).map(|n| line(&request(n, "test.gate", json!({ "n": n })))).collect();
    client.send(calls).await;
    until("four run", || server.methods.running().0 == 4).await;
    server.methods.gate.add_permits(40);
    for _ in 0..40 {
        client.next().await;
    }
    assert_eq!(server.methods.running(), (0, 4));
}

#[tokio::test]
async fn request_bytes_of_running_calls_are_limited() {
    let server = TestServer::with_limits(|limits| limits.connection.held_bytes = 10_000);
    let mut client = server.connect().await;
    let text = "x".repeat(4000);
    let calls: String =
        (0..20).map(|n| line(&request(n, "test.gate", json!({ "n": n, "text": text })))).collect();
    client.send(calls).await;
    until("three run", || server.methods.running().0 == 3).await;
    server.methods.gate.add_permits(20);
    for _ in 0..20 {
        client.next().await;
    }
    assert_eq!(server.methods.running(), (0, 3));
}

#[tokio::test]
async fn responses_are_not_made_for_a_client_that_does_not_read() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    let megabyte = 1 << 20;
    let calls: String =
        (0..30).map(|n| line(&request(n, "test.big", json!({ "bytes": megabyte })))).collect();
    client.send(calls).await;
    until("some calls have run", || server.methods.big_calls.load(Ordering::SeqCst) >= 8).await;
    other.check_alive().await;
    for received in 0..30 {
        let n_calls = server.methods.big_calls.load(Ordering::SeqCst);
        assert!(n_calls <= received + 12, "{n_calls} calls ran, {received} responses received");
        client.next().await;
    }
}

#[tokio::test]
async fn stalled_client_is_disconnected_and_others_are_not() {
    let server =
        TestServer::with_limits(|limits| limits.connection.stall = Duration::from_millis(20));
    let mut idle = server.connect().await;
    idle.check_alive().await;
    let mut stuck = server.connect().await;
    let call = line(&request(1, "test.big", json!({ "bytes": 1 << 20 })));
    stuck.send(call.repeat(4)).await;
    until("it is disconnected", || server.open.count() == 1).await;
    idle.check_alive().await;
}

#[tokio::test]
async fn subscription_receives_the_event_of_the_next_frame() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    let subscribe = line(&request(1, "event.subscribe", json!({})));
    client.send(subscribe + &line(&request(2, "test.publish", json!({})))).await;
    let mut seen = [client.next().await, client.next().await, client.next().await];
    seen.sort_by_key(|message| message["id"].as_u64().unwrap_or(u64::MAX));
    assert_eq!(seen[0]["id"], 1);
    assert!(seen[0]["result"].is_u64(), "{}", seen[0]);
    assert_eq!(seen[2]["params"]["subscription"], seen[0]["result"]);
    assert_eq!(seen[2]["params"]["result"]["kind"], "session-saved");
}

#[tokio::test]
async fn subscriptions_are_limited_per_connection_and_end_once() {
    let server = TestServer::with_limits(|limits| limits.connection.calls.subscriptions = 2);
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    let mut ids = Vec::new();
    for n in 1..=2 {
        client.call(n, "event.subscribe", json!({})).await;
        ids.push(client.next().await["result"].clone());
    }
    client.call(3, "event.subscribe", json!({})).await;
    let error = client.next().await;
    assert_eq!(error["error"]["code"], -32006, "{error}");
    assert_eq!(error["error"]["data"]["limit"], 2);
    other.call(1, "event.subscribe", json!({})).await;
    assert!(other.next().await["result"].is_u64());
    for ended in [true, false] {
        client.call(4, "event.unsubscribe", json!([ids[0]])).await;
        assert_eq!(client.next().await["result"], ended);
    }
    client.call(4, "event.unsubscribe", json!({ "subscription": ids[1] })).await;
    assert_eq!(client.next().await["error"]["data"]["kind"], "invalidParams");
    until("the subscription has ended", || server.methods.events.subscriptions() == 2).await;
    client.call(5, "event.subscribe", json!({})).await;
    assert!(client.next().await["result"].is_u64());
    client.call(6, "event.subscribe", json!({ "kinds": ["nope"] })).await;
    assert_eq!(client.next().await["error"]["code"], -32006, "the limit is checked first");
    other.call(7, "event.subscribe", json!({ "kinds": ["nope"] })).await;
    assert_eq!(other.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn disconnected_client_leaves_no_call_or_subscription() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "event.subscribe", json!({})).await;
    client.next().await;
    client.call(2, "test.gate", json!({ "n": 1 })).await;
    until("it runs", || server.methods.running().0 == 1).await;
    client.send("{\"jsonrpc\":\"2.0\",\"id\":3,").await;
    drop(client);
    until("the read is dropped", || server.methods.running().0 == 0).await;
    until("the subscription has ended", || server.methods.events.subscriptions() == 0).await;
    until("the connection is closed", || server.open.count() == 0).await;
}

#[tokio::test]
async fn disconnect_is_noticed_while_the_server_does_not_read() {
    let server = TestServer::with_limits(|limits| limits.connection.calls.in_flight = 1);
    let mut client = server.connect().await;
    client.call(1, "test.gate", json!({ "n": 1 })).await;
    until("it runs", || server.methods.running().0 == 1).await;
    drop(client);
    until("the read is dropped", || server.methods.running().0 == 0).await;
}

#[tokio::test]
async fn half_closed_client_still_gets_responses() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "test.gate", json!({ "n": 1 })).await;
    client.finish().await;
    until("it runs", || server.methods.running().0 == 1).await;
    server.methods.gate.add_permits(1);
    assert_eq!(client.read_to_end().await, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1}\n");
}

#[tokio::test]
async fn half_closed_client_still_gets_events_until_it_leaves() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "event.subscribe", json!({})).await;
    client.finish().await;
    client.next().await;
    let mut other = server.connect().await;
    for n in 1..=3 {
        other.call(n, "test.publish", json!({})).await;
        other.next().await;
        assert_eq!(client.next().await["params"]["result"]["eventSeq"], n);
    }
    drop(client);
    until("the subscription has ended", || server.methods.events.subscriptions() == 0).await;
}

#[tokio::test]
async fn slow_subscriber_gets_the_number_of_missed_events_and_continues() {
    const SENT: u64 = 20_000;
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "event.subscribe", json!({})).await;
    client.next().await;
    let mut other = server.connect().await;
    let publish = line(&request(1, "test.publish", json!({})));
    for _ in 0..SENT / 100 {
        other.send(publish.repeat(100)).await;
        for _ in 0..100 {
            other.next().await;
        }
    }
    let (mut received, mut missed) = (0, 0);
    while received + missed < SENT {
        let event = client.next().await;
        let event = &event["params"]["result"];
        match event["kind"].as_str() {
            Some("lagged") => missed += event["data"]["missed"].as_u64().expect("a number"),
            _ => received += 1,
        }
    }
    assert_eq!(received + missed, SENT);
    assert!(missed > 0, "a client that did not read has missed events");
    client.check_alive().await;
}
