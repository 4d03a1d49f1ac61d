//! Lists and what changes them: current sessions of projects, updates, archiving, pages and filters.

use serde_json::{Value, json};

use super::ids;
use crate::harness::{UNKNOWN_SESSION, Wire, array, assert_fields, start, until};

#[test]
fn list_is_paged_filtered_and_newest_first() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let mut sessions = Vec::new();
    for n in 0..12 {
        let params = if n % 3 == 0 { json!({ "projectPath": project }) } else { json!({}) };
        let session = wire.create(params);
        wire.record(&session, "user", &format!("session {n}"));
        sessions.push(session);
    }
    let last_activity =
        |wire: &mut Wire, id: &str| wire.session(id)["lastActivity"].as_str().unwrap().to_owned();
    until("session 4 is active in a later millisecond than session 11", || {
        wire.record(&sessions[4], "user", "the last activity");
        last_activity(&mut wire, &sessions[4]) > last_activity(&mut wire, &sessions[11])
    });
    let mut expected: Vec<String> =
        sessions.iter().rev().filter(|id| **id != sessions[4]).cloned().collect();
    expected.insert(0, sessions[4].clone());
    let pages = wire.pages("session.list", json!({ "limit": 5 }));
    assert!(pages.iter().all(|page| array(&page["data"]).len() <= 5));
    let listed: Vec<String> = pages.iter().flat_map(|page| ids(&page["data"])).collect();
    assert_eq!(listed, expected);
    let of_project = wire.ok("session.list", json!({ "projectPath": project }));
    assert_eq!(array(&of_project["data"]).len(), 4);
    let by_prefix = wire.ok("session.list", json!({ "idPrefix": sessions[7] }));
    assert_eq!(ids(&by_prefix["data"]), [sessions[7].clone()]);
    let by_title = wire.ok("session.list", json!({ "title": "11 SESS" }));
    assert_eq!(ids(&by_title["data"]), [sessions[11].clone()]);
    let title = "x".repeat(4097);
    wire.refused("session.list", json!({ "title": title }), "invalidParams");
}

#[test]
fn closed_sessions_are_listed_behind_a_page_of_active_ones() {
    let (sandbox, daemon, mut wire) = start();
    let mut closed = Vec::new();
    for n in 0..9 {
        let session = wire.create(json!({}));
        wire.record(&session, "user", &format!("session {n}"));
        if n < 3 {
            wire.ok("session.close", json!({ "sessionId": session }));
            closed.insert(0, session);
        }
    }
    daemon.kill();
    // No session is open now, so the list is that of the catalog.
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    until("the catalog is as new as the logs", || {
        let catalog = &wire.status()["catalog"];
        catalog["state"] == "ready" && catalog["behind"] == 0
    });
    let pages = wire.pages("session.list", json!({ "status": "closed", "limit": 2 }));
    let listed: Vec<String> = pages.iter().flat_map(|page| ids(&page["data"])).collect();
    assert_eq!(listed, closed);
}

#[test]
fn current_session_of_project_survives_kill_and_is_cleared_by_delete() {
    let (sandbox, daemon, mut wire) = start();
    let (one, two) = (sandbox.project_dir("one"), sandbox.project_dir("two"));
    assert_eq!(wire.ok("session.current", json!({ "projectPath": one })), json!({}));
    let session = wire.create(json!({ "projectPath": one }));
    wire.record(&session, "user", "hello");
    let set = wire.ok("session.setCurrent", json!({ "projectPath": one, "sessionId": session }));
    assert_eq!(set["session"]["sessionId"], session.as_str());
    let link = sandbox.path("link");
    std::os::unix::fs::symlink(&one, &link).unwrap();
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    for path in [one.as_str(), &format!("{one}/"), &format!("{one}/../one"), link.to_str().unwrap()]
    {
        let current = wire.ok("session.current", json!({ "projectPath": path }));
        assert_eq!(current["session"]["sessionId"], session.as_str(), "{path}");
    }
    assert_eq!(wire.ok("session.current", json!({ "projectPath": two })), json!({}));
    let unknown = json!({ "projectPath": one, "sessionId": UNKNOWN_SESSION });
    wire.refused("session.setCurrent", unknown, "sessionNotFound");
    wire.ok("session.setCurrent", json!({ "projectPath": one }));
    assert_eq!(wire.ok("session.current", json!({ "projectPath": one })), json!({}));
    wire.ok("session.setCurrent", json!({ "projectPath": one, "sessionId": session }));
    wire.ok("session.delete", json!({ "sessionId": session }));
    assert_eq!(
        wire.ok("session.current", json!({ "projectPath": one })),
        json!({}),
        "a deleted session is no longer current"
    );
    wire.refused(
        "session.create",
        json!({ "projectPath": sandbox.path("nowhere").to_str().unwrap() }),
        "invalidParams",
    );
}

#[test]
fn close_update_and_archive_change_session_and_lists() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "metadata": { "a": 1, "b": 2 } }));
    wire.record(&session, "user", "The first words of this session");
    let id = json!({ "sessionId": session });
    assert_eq!(wire.ok("session.close", id.clone())["session"]["status"], "closed");
    assert_eq!(
        wire.ok("session.close", id.clone())["session"]["status"],
        "closed",
        "a second close succeeds"
    );
    let closes = wire.records(&session).iter().filter(|record| record["type"] == "close").count();
    assert_eq!(closes, 1);
    wire.record(&session, "user", "again");
    assert_eq!(
        wire.ok("session.get", id.clone())["session"]["status"],
        "active",
        "recording reopens the session"
    );

    let update = |wire: &mut Wire, patch: Value| {
        let mut params = patch;
        params["sessionId"] = json!(session);
        wire.ok("session.update", params)["session"].clone()
    };
    let changed = update(
        &mut wire,
        json!({ "title": "Better", "pinned": true, "metadata": { "a": null, "c": [3] } }),
    );
    assert_fields(
        &changed,
        json!({ "title": "Better", "pinned": true, "metadata": { "b": 2, "c": [3] } }),
    );
    assert_eq!(
        update(&mut wire, json!({ "title": "" }))["title"],
        "The first words of this session"
    );
    let changed = update(&mut wire, json!({ "model": "llama3", "contextSize": 4096 }));
    assert_fields(&changed, json!({ "model": "llama3", "contextSize": 4096 }));
    wire.refused(
        "session.update",
        json!({ "sessionId": session, "contextSize": 100 }),
        "invalidParams",
    );

    let listed = |wire: &mut Wire, params: Value| ids(&wire.ok("session.list", params)["data"]);
    assert_eq!(wire.ok("session.archive", id.clone())["session"]["status"], "archived");
    assert!(listed(&mut wire, json!({})).is_empty(), "the default list omits archived sessions");
    assert_eq!(listed(&mut wire, json!({ "status": "archived" })), std::slice::from_ref(&session));
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    until("the archived session is listed", || {
        listed(&mut wire, json!({ "status": "archived" })) == std::slice::from_ref(&session)
    });
    let unarchived = wire.ok("session.unarchive", id)["session"].clone();
    assert_eq!(unarchived["metadata"], json!({ "b": 2, "c": [3] }));
    assert_eq!(listed(&mut wire, json!({})), std::slice::from_ref(&session));
}
