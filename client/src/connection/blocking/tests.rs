use ollm_protocol::method::{DaemonReload, DaemonShutdown};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::event::EventSubscribeParams;
use serde_json::json;

use super::*;
use crate::testing::{Scratch, reply, send};

fn connect(scratch: &Scratch) -> BlockingClient {
    BlockingClient::connect(&scratch.connector()).unwrap()
}

#[test]
fn a_call_finds_its_reply_among_other_messages() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| {
        assert_eq!(request["jsonrpc"], "2.0");
        assert_eq!(request["method"], "daemon.shutdown");
        assert_eq!(request["params"], json!({}));
        send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": {}}));
        send(stream, &json!({"jsonrpc": "2.0", "id": 999, "result": {"pid": 1}}));
        reply(stream, request, &json!({"pid": 42, "later": true}));
    });
    let mut client = connect(&scratch);
    for _ in 0..3 {
        assert_eq!(client.call::<DaemonShutdown>(&NoParams {}).unwrap().pid, 42);
    }
}

#[test]
fn a_refusal_comes_with_its_kind_also_where_it_has_no_id() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| {
        let id = if request["id"] == 1 { request["id"].clone() } else { Value::Null };
        let error = json!({"code": -32009, "message": "too much", "data": {"kind": "busy"}});
        send(stream, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
    });
    let mut client = connect(&scratch);
    for _ in 0..2 {
        let error = client.call::<DaemonReload>(&NoParams {}).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), ("busy", "too much"));
    }
}

#[test]
fn silence_ends_with_a_time_out_and_a_late_reply_is_skipped() {
    let scratch = Scratch::new();
    let mut held: Option<Value> = None;
    let _server = scratch.serve(move |request, stream| match held.take() {
        None => held = Some(request.clone()),
        Some(late) => {
            reply(stream, &late, &json!({"pid": 1}));
            reply(stream, request, &json!({"pid": 2}));
        }
    });
    let mut client = connect(&scratch);
    client.set_timeout(Duration::from_millis(50));
    let error = client.call::<DaemonShutdown>(&NoParams {}).unwrap_err();
    assert!(matches!(&error, ClientError::Timeout { method, .. } if method == "daemon.shutdown"));
    client.set_timeout(Duration::from_secs(30));
    assert_eq!(client.call::<DaemonShutdown>(&NoParams {}).unwrap().pid, 2);
}

#[test]
fn the_end_of_the_connection_and_nonsense_are_told_apart() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| {
        if request["id"] == 1 {
            stream.write_all(b"nonsense\n").unwrap();
        } else {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    });
    let mut client = connect(&scratch);
    let error = client.call::<DaemonReload>(&NoParams {}).unwrap_err();
    assert!(matches!(error, ClientError::BadReply { .. }), "{error}");
    let error = client.call::<DaemonReload>(&NoParams {}).unwrap_err();
    assert!(matches!(error, ClientError::Closed { .. }), "{error}");
    assert_eq!(error.hint().as_deref(), Some("ollmctl daemon status"));
}

#[test]
fn frames_have_a_limit_in_both_directions() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|_, stream| {
        let chunk = vec![b'x'; 1 << 20];
        // The client hangs up before all of it is sent.
        while stream.write_all(&chunk).is_ok() {}
    });
    let mut client = connect(&scratch);
    let large = json!({ "text": "x".repeat(MAX_FRAME_BYTES) });
    let error = client.call_raw("session.record", &large).unwrap_err();
    assert!(matches!(error, ClientError::FrameTooLarge { what: "request", .. }), "{error}");
    let error = client.call_raw("session.get", &json!({})).unwrap_err();
    assert!(matches!(error, ClientError::FrameTooLarge { what: "reply", .. }), "{error}");
}

#[test]
fn a_large_reply_in_small_pieces_is_put_together() {
    let scratch = Scratch::new();
    let text = "日本".repeat(200_000);
    let sent = text.clone();
    let _server = scratch.serve(move |request, stream| {
        reply(stream, request, &json!({ "text": sent }));
    });
    let raw = connect(&scratch).call_raw("session.get", &json!({})).unwrap();
    let result: Value = serde_json::from_str(raw.get()).unwrap();
    assert!(result["text"] == text.as_str());
}

#[test]
fn events_come_until_the_daemon_ends_the_stream() {
    let scratch = Scratch::new();
    let _server = scratch.serve(|request, stream| {
        assert_eq!(request["method"], "event.subscribe");
        reply(stream, request, &json!(7));
        for at in 1..=2 {
            let params = json!({"subscription": 7, "result": {"eventSeq": at}});
            send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}));
        }
        let params = json!({"subscription": 7, "error": "leaving"});
        send(stream, &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}));
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let mut events = connect(&scratch).subscribe_events(&EventSubscribeParams::default()).unwrap();
    for at in 1..=2 {
        assert_eq!(events.next_raw().unwrap().unwrap().get(), format!("{{\"eventSeq\":{at}}}"));
    }
    assert!(events.next_raw().unwrap().is_none());
    assert!(matches!(events.next_raw(), Err(ClientError::Closed { .. })));
}
