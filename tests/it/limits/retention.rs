//! Retention takes effect within seconds after each event that can exceed a limit.

use serde_json::json;

use crate::harness::{Wire, array, start, start_with_config, until};

/// Creates sessions with one message each and closes them; returns their ids, the oldest first.
fn closed_sessions(wire: &mut Wire, count: usize) -> Vec<String> {
    let create = |_| {
        let session = wire.create(json!({}));
        wire.record(&session, "user", "hello");
        wire.ok("session.close", json!({ "sessionId": session }));
        session
    };
    (0..count).map(create).collect()
}

/// Returns the ids of the sessions with a status, the most recently active first.
fn listed(wire: &mut Wire, status: &str) -> Vec<String> {
    let list = wire.ok("session.list", json!({ "status": status, "limit": 100 }));
    let id = |session: &serde_json::Value| session["sessionId"].as_str().unwrap().to_owned();
    array(&list["data"]).iter().map(id).collect()
}

#[test]
fn closed_sessions_over_the_limit_are_deleted_soon_after_they_are_closed() {
    let (_sandbox, daemon, mut wire) =
        start_with_config("sessions: { maxSessions: 5, onLimit: delete }\n");
    let active = wire.create(json!({}));
    wire.record(&active, "user", "an active session does not count");
    let sessions = closed_sessions(&mut wire, 18);
    until("5 closed sessions are left", || listed(&mut wire, "closed").len() == 5);
    let newest: Vec<String> = sessions.iter().rev().take(5).cloned().collect();
    assert_eq!(listed(&mut wire, "closed"), newest, "the oldest go first");
    assert_eq!(listed(&mut wire, "active"), [active]);
    until("the doctor counts them", || {
        let work = wire.ok("daemon.doctor", json!({}))["retention"].clone();
        work["deleted"] == 13 && work["archived"] == 0 && work["lastAt"].is_string()
    });
    daemon.assert_serves();
}

#[test]
fn lowered_limit_archives_soon_after_a_reload() {
    let (sandbox, _daemon, mut wire) = start();
    let sessions = closed_sessions(&mut wire, 4);
    sandbox.write_config("sessions: { maxSessions: 3 }\n");
    wire.ok("daemon.reload", json!({}));
    until("the oldest session is archived", || listed(&mut wire, "archived") == sessions[..1]);
    // An unarchived session is active, so it counts again when it is closed.
    wire.ok("session.unarchive", json!({ "sessionId": sessions[0] }));
    wire.ok("session.close", json!({ "sessionId": sessions[0] }));
    until("the next session is archived", || listed(&mut wire, "archived") == sessions[1..2]);
}
