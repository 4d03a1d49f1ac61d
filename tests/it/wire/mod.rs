//! The socket below the methods: frames, JSON-RPC calls and connections, valid or not. Invalid input gets an error or
//! a close, memory stays bounded, and other clients are not affected.

mod calls;
mod connections;
mod frames;

use serde_json::json;

use crate::harness::{Wire, rpc_request};

/// Returns a call of `daemon.status` as text.
fn status_call(id: u64) -> String {
    rpc_request(id, "daemon.status", json!({})).to_string()
}

/// Returns one of the limits that `daemon.hello` reports.
#[track_caller]
fn limit(wire: &mut Wire, name: &str) -> u64 {
    let hello = json!({ "client": "it", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    wire.ok("daemon.hello", hello)["limits"][name].as_u64().unwrap()
}

#[track_caller]
fn assert_usable(wire: &mut Wire) {
    assert!(wire.call("daemon.status", json!({})).is_ok(), "the connection is usable");
}
