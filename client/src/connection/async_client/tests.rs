use ollm_protocol::method::{DaemonReload, DaemonShutdown};
use ollm_protocol::methods::daemon::NoParams;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Scratch, reply, send};

fn hello(protocol: u32) -> Value {
    json!({
        "protocol": protocol, "schemaRevision": 1, "version": "9.9.9", "pid": 1, "epoch": "e",
        "limits": {"frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1}
    })
}

fn event(seq: u64) -> Value {
    json!({"epoch": "e", "eventSeq": seq, "kind": "session-created", "at": "2026-01-27T10:00:00Z"})
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn it_agrees_on_a_protocol_then_calls_and_listens() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| match request["method"].as_str().unwrap() {
        "daemon.hello" => {
            assert_eq!(request["params"]["protocolMax"], PROTOCOL_VERSION);
            reply(stream, request, &hello(PROTOCOL_VERSION));
        }
        "daemon.shutdown" => reply(stream, request, &json!({"pid": 42})),
        "daemon.reload" => {
            let data = json!({"kind": "config", "hint": "ollmctl config check"});
            let error = json!({"code": 1011, "message": "line 3", "data": data});
            send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
        }
        "event.subscribe" => {
            assert_eq!(request["params"], json!({}));
            reply(stream, request, &json!(7));
            for seq in 1..=2 {
                let params = json!({"subscription": 7, "result": event(seq)});
                send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}));
            }
        }
        "chat.send" => {
            assert_eq!(request["params"]["message"]["content"], "hello");
            reply(stream, request, &json!(8));
            for event in [
                json!({"kind": "delta", "text": "ok"}),
                json!({"kind": "of another version"}),
                json!({"kind": "done", "seq": 2, "finishReason": "stop"}),
            ] {
                let params = json!({"subscription": 8, "result": event});
                send(stream, &json!({"jsonrpc": "2.0", "method": "chat.event", "params": params}));
            }
        }
        _ => reply(stream, request, &json!(true)),
    });
    run(async {
        let client = AsyncClient::connect(scratch.connector()).await.unwrap();
        assert_eq!(client.hello().version, "9.9.9");
        assert_eq!(client.call::<DaemonShutdown>(&NoParams {}).await.unwrap().pid, 42);
        let error = client.call::<DaemonReload>(&NoParams {}).await.unwrap_err();
        assert_eq!(error.kind(), "config");
        assert_eq!(error.hint().as_deref(), Some("ollmctl config check"));
        let mut events = client.subscribe_events(&EventSubscribeParams::default()).await.unwrap();
        for seq in 1..=2 {
            assert_eq!(events.next().await.unwrap().unwrap().event_seq, seq);
        }
        let params = json!({
            "sessionId": "0192f0c1-9a3b-7000-8000-000000000001",
            "message": {"role": "user", "content": "hello"},
        });
        let mut turn = client.send_chat(&serde_json::from_value(params).unwrap()).await.unwrap();
        let first = turn.next().await.unwrap().unwrap();
        assert_eq!(first, ChatEvent::Delta { text: Some("ok".into()), thinking: None });
        assert!(matches!(turn.next().await.unwrap(), Err(ClientError::BadReply { .. })));
        assert!(matches!(turn.next().await.unwrap(), Ok(ChatEvent::Done { .. })));
        assert!(!turn.fell_behind());
    });
}

#[test]
fn another_protocol_is_refused_with_both_versions() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| reply(stream, request, &hello(77)));
    let error = run(AsyncClient::connect(scratch.connector())).unwrap_err();
    assert!(matches!(error, ClientError::ProtocolMismatch { protocol: 77, .. }), "{error}");
    assert_eq!(error.hint().as_deref(), Some("ollmctl daemon restart"));
}

#[test]
fn silence_and_the_end_of_the_connection_are_errors() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| match request["method"].as_str().unwrap() {
        "daemon.hello" => reply(stream, request, &hello(PROTOCOL_VERSION)),
        "daemon.reload" => stream.shutdown(std::net::Shutdown::Both).unwrap(),
        _ => {}
    });
    run(async {
        let connector = scratch.connector().with_timeout(Duration::from_secs(1));
        let client = AsyncClient::connect(connector).await.unwrap();
        let error = client.call::<DaemonShutdown>(&NoParams {}).await.unwrap_err();
        assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
        let error = client.call::<DaemonReload>(&NoParams {}).await.unwrap_err();
        assert!(matches!(error, ClientError::Transport { .. }), "{error}");
        client.closed().await;
    });
}
