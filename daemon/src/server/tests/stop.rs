//! Limits of the listener, and how a server ends.

use super::*;

#[tokio::test]
async fn a_connection_too_many_is_told_so() {
    let server = Server::with(|limits| limits.connections = 1);
    let mut first = server.connect().await;
    first.is_alive().await;
    let second = server.connect().await;
    let refusal: Value = serde_json::from_str(&second.rest().await).expect("a line of JSON");
    assert_eq!(refusal["error"]["code"], -32009);
    assert_eq!(refusal["error"]["data"], json!({ "kind": "busy", "limit": 1 }));
    first.is_alive().await;
    drop(first);
    until("the place is free", || server.open.count() == 0).await;
    server.connect().await.is_alive().await;
}

#[tokio::test]
async fn a_stop_finishes_calls_ends_subscriptions_and_removes_the_socket() {
    let server = Server::start();
    let mut client = server.connect().await;
    client.call(1, "event.subscribe", json!({})).await;
    let subscription = client.next().await["result"].clone();
    client.call(2, "toy.gate", json!({ "n": 1 })).await;
    until("it runs", || server.toys.running().0 == 1).await;
    server.tasks.stop();
    let end = client.next().await;
    assert_eq!(end["params"]["subscription"], subscription);
    assert_eq!(end["params"]["error"]["data"]["kind"], "cancelled");
    until("nobody can connect", || !server.socket().exists()).await;
    client.call(3, "toy.echo", json!({})).await;
    server.toys.gate.add_permits(1);
    assert_eq!(client.next().await["id"], 2);
    // The last call came too late; the end of the stream says so.
    let mut rest = Vec::new();
    let end = within(client.stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty(), "{end:?}: {rest:?}");
    within(server.running).await.expect("returns");
    assert_eq!(server.open.count(), 0);
}

#[tokio::test]
async fn who_asks_for_the_end_is_answered() {
    let server = Server::start();
    let mut client = server.connect().await;
    client.call(1, "daemon.shutdown", json!({})).await;
    assert_eq!(client.next().await["result"]["pid"], std::process::id());
    assert_eq!(client.rest().await, "");
    within(server.running).await.expect("returns");
}

#[tokio::test]
async fn the_drain_ends_also_when_calls_do_not() {
    let server = Server::with(|limits| limits.drain = Duration::ZERO);
    let mut client = server.connect().await;
    client.call(1, "toy.gate", json!({ "n": 1 })).await;
    until("it runs", || server.toys.running().0 == 1).await;
    server.tasks.stop();
    within(server.running).await.expect("returns");
    assert_eq!(server.toys.running().0, 0);
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_second_signal_ends_the_drain() {
    let server = Server::with(|limits| limits.drain = PATIENCE * 2);
    let mut client = server.connect().await;
    client.call(1, "toy.gate", json!({ "n": 1 })).await;
    until("it runs", || server.toys.running().0 == 1).await;
    server.tasks.force();
    within(server.running).await.expect("returns");
}

#[tokio::test]
async fn a_daemon_whose_socket_is_gone_leaves() {
    let server = Server::prepared(
        |_| {},
        |socket| crate::fsutil::remove_file(socket).expect("somebody removes it"),
    );
    within(server.running).await.expect("returns");
    assert!(server.tasks.is_stopping());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_with_many_subscribers_and_one_that_does_not_read() {
    let server = Server::with(|limits| limits.drain = Duration::from_millis(50));
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = server.connect().await;
        client.call(1, "event.subscribe", json!({})).await;
        client.next().await;
        clients.push(client);
    }
    let mut stuck = server.connect().await;
    let call = line(&request(1, "toy.big", json!({ "bytes": 1 << 20 })));
    stuck.send(call.repeat(20)).await;
    until("answers wait", || server.toys.big_calls.load(Ordering::SeqCst) >= 8).await;
    server.tasks.stop();
    within(server.running).await.expect("returns");
    for client in clients {
        assert!(client.rest().await.contains("cancelled"));
    }
}
