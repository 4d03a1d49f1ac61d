//! The limit of connections, and shutdown.

use super::*;

#[tokio::test]
async fn connection_beyond_the_limit_gets_an_error() {
    let server = TestServer::with_limits(|limits| limits.connections = 1);
    let mut first = server.connect().await;
    first.check_alive().await;
    let second = server.connect().await;
    let error: Value = serde_json::from_str(&second.read_to_end().await).expect("a line of JSON");
    assert_eq!(error["error"]["code"], -32009);
    assert_eq!(error["error"]["data"], json!({ "kind": "busy", "limit": 1 }));
    first.check_alive().await;
    drop(first);
    until("the connection is closed", || server.open.count() == 0).await;
    server.connect().await.check_alive().await;
}

#[tokio::test]
async fn stop_finishes_calls_ends_subscriptions_and_removes_the_socket() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "event.subscribe", json!({})).await;
    let subscription = client.next().await["result"].clone();
    client.call(2, "test.gate", json!({ "n": 1 })).await;
    until("it runs", || server.methods.running().0 == 1).await;
    server.tasks.stop();
    let end = client.next().await;
    assert_eq!(end["params"]["subscription"], subscription);
    assert_eq!(end["params"]["error"]["data"]["kind"], "canceled");
    until("no client can connect", || !server.socket().exists()).await;
    client.call(3, "test.echo", json!({})).await;
    server.methods.gate.add_permits(1);
    assert_eq!(client.next().await["id"], 2);
    // The last call was sent too late and gets no response.
    let mut received = Vec::new();
    let end = within(client.stream.read_to_end(&mut received)).await;
    assert!(received.is_empty(), "{end:?}: {received:?}");
    within(server.running).await.expect("returns");
    assert_eq!(server.open.count(), 0);
}

#[tokio::test]
async fn shutdown_call_gets_its_response() {
    let server = TestServer::start();
    let mut client = server.connect().await;
    client.call(1, "daemon.shutdown", json!({})).await;
    assert_eq!(client.next().await["result"]["pid"], std::process::id());
    assert_eq!(client.read_to_end().await, "");
    within(server.running).await.expect("returns");
}

#[tokio::test]
async fn drain_ends_even_if_calls_do_not() {
    let server = TestServer::with_limits(|limits| limits.drain = Duration::ZERO);
    let mut client = server.connect().await;
    client.call(1, "test.gate", json!({ "n": 1 })).await;
    until("it runs", || server.methods.running().0 == 1).await;
    server.tasks.stop();
    within(server.running).await.expect("returns");
    assert_eq!(server.methods.running().0, 0);
    assert_eq!(client.read_to_end().await, "");
}

#[tokio::test]
async fn second_signal_ends_the_drain() {
    let server = TestServer::with_limits(|limits| limits.drain = TIMEOUT * 2);
    let mut client = server.connect().await;
    client.call(1, "test.gate", json!({ "n": 1 })).await;
    until("it runs", || server.methods.running().0 == 1).await;
    server.tasks.force();
    within(server.running).await.expect("returns");
}

#[tokio::test]
async fn daemon_stops_when_its_socket_is_removed() {
    let server = TestServer::start_after(
        |_| {},
        |socket| crate::fsutil::remove_file(socket).expect("is removed"),
    );
    within(server.running).await.expect("returns");
    assert!(server.tasks.is_stopping());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_ends_with_many_subscribers_and_a_client_that_does_not_read() {
    let server = TestServer::with_limits(|limits| limits.drain = Duration::from_millis(50));
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = server.connect().await;
        client.call(1, "event.subscribe", json!({})).await;
        client.next().await;
        clients.push(client);
    }
    let mut stuck = server.connect().await;
    let call = line(&request(1, "test.big", json!({ "bytes": 1 << 20 })));
    stuck.send(call.repeat(20)).await;
    until("responses wait", || server.methods.big_calls.load(Ordering::SeqCst) >= 8).await;
    server.tasks.stop();
    within(server.running).await.expect("returns");
    for client in clients {
        assert!(client.read_to_end().await.contains("canceled"));
    }
}
