//! `session.search`: words, parts of names, ideographs, filters and pages, whatever happened to the catalog before.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Wire, array, assert_fields, start, until};

/// The roles and texts of the recorded messages.
const MESSAGES: &[(&str, &str)] = &[
    ("user", "Why does parse_config_file panic on an empty file?"),
    ("assistant", "Because HttpServerBuilder calls unwrapOrDefault too early."),
    ("user", "See daemon/src/session/log.rs, please."),
    ("assistant", "データベース接続を確認してください。搜索引擎很快。"),
    ("user", "The connection was refused, not the request."),
    ("assistant", "A refused request is not a refused connection."),
    ("tool", "error[E0308]: mismatched types"),
    ("user", "Since 2024-06-01 os.path is wrong on x86_64-linux."),
];

/// Records [`MESSAGES`] in a session, waits for the catalog, and returns the session id.
fn record_messages(wire: &mut Wire) -> String {
    let session = wire.create(json!({ "title": "Search me" }));
    for (role, text) in MESSAGES {
        wire.record(&session, role, text);
    }
    wire.wait_for_catalog();
    session
}

#[test]
fn hits_on_another_branch_are_marked_in_open_and_closed_sessions() {
    let (sandbox, daemon, mut wire) = start();
    let session = record_messages(&mut wire);
    wire.ok("session.branch", json!({ "sessionId": session, "toSeq": 4 }));
    wire.record(&session, "user", "The connection was another one.");
    wire.wait_for_catalog();
    let marked = |wire: &mut Wire, method: &str| {
        let found = wire.ok(method, json!({ "query": "connection" }));
        let mut hits: Vec<(u64, bool)> = array(&found["data"])
            .iter()
            .map(|hit| (hit["seq"].as_u64().unwrap(), hit["otherBranch"] == true))
            .collect();
        hits.sort_unstable();
        hits
    };
    let expect: Vec<(u64, bool)> = [5, 6, 11].map(|seq| (seq, seq != 11)).into();
    assert_eq!(marked(&mut wire, "session.search"), expect);
    let recalled = marked(&mut wire, "context.recall");
    assert!(
        recalled.iter().all(|(seq, is_marked)| (5..=8).contains(seq) == *is_marked),
        "{recalled:?}"
    );
    let shown = sandbox.ctl(["sessions", "search", "connection"]).ok();
    assert_eq!(shown.matches("(other branch)").count(), 2, "{shown}");
    // A session that no call has opened yet.
    assert!(daemon.terminate().success());
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(marked(&mut wire, "session.search"), expect);
    let status = wire.ok("daemon.status", json!({}));
    assert_eq!(status["store"]["openSessions"], 0, "none was opened");
}

/// Returns the sorted seqs of the hits.
fn hits(wire: &mut Wire, params: &Value) -> Vec<u64> {
    let found = wire.ok("session.search", params.clone());
    assert_eq!(found.get("behind"), None, "{found}");
    let mut seqs: Vec<u64> =
        array(&found["data"]).iter().map(|hit| hit["seq"].as_u64().unwrap()).collect();
    seqs.sort_unstable();
    seqs
}

/// Checks the hits that every catalog of [`MESSAGES`] must return.
fn assert_answers(wire: &mut Wire) {
    let mut check = |query: &str, expected: &[u64]| {
        assert_eq!(hits(wire, &json!({ "query": query })), expected, "{query}");
    };
    check("parse_config_file", &[1]);
    check("config", &[1]);
    check("PANIC", &[1]);
    check("HttpServerBuilder", &[2]);
    check("builder", &[2]);
    check("server", &[2]);
    check("daemon/src/session/log.rs", &[3]);
    check("log.rs", &[3]);
    check("接続", &[4]);
    check("データ", &[4]);
    check("引擎", &[4]);
    check("\"connection was refused\"", &[5]);
    check("\"refused connection\"", &[6]);
    check("refused connection", &[5, 6]);
    check("os.path", &[8]);
    check("x86_64-linux", &[8]);
    check("linux-x86_64", &[]);
    check("2024-06-01", &[8]);
    check("01-06-2024", &[]);
    check("misma*", &[7]);
    check("mismatched", &[7]);
    check("E0308", &[7]);
    check("nowhere", &[]);
    check("refused nowhere", &[]);
}

#[test]
fn words_parts_of_names_and_ideographs_are_found() {
    let (_sandbox, _daemon, mut wire) = start();
    let _session = record_messages(&mut wire);
    assert_answers(&mut wire);
}

#[test]
fn hit_has_session_seq_and_snippet_with_match() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "title": "Long" }));
    let text = format!("{} The needle\nlies here. {}", "hay ".repeat(400), "straw ".repeat(400));
    let seq = wire.record(&session, "assistant", &text);
    wire.wait_for_catalog();
    let found = wire.ok("session.search", json!({ "query": "needle" }));
    let hit = &found["data"][0];
    assert_eq!(hit["sessionId"], session.as_str());
    assert_fields(hit, json!({ "seq": seq, "role": "assistant", "title": "Long" }));
    let snippet: Vec<char> = hit["snippet"].as_str().unwrap().chars().collect();
    assert!(snippet.len() < 400 && !snippet.contains(&'\n'), "{hit}");
    let range = &hit["matches"][0];
    let (start, end) = (range[0].as_u64().unwrap() as usize, range[1].as_u64().unwrap() as usize);
    assert_eq!(snippet[start..end].iter().collect::<String>(), "needle");
}

#[test]
fn filters_and_pages_narrow_the_hits() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let mut sessions = Vec::new();
    for n in 0..3 {
        let params = if n == 1 { json!({ "projectPath": project }) } else { json!({}) };
        let session = wire.create(params);
        for (at, role) in ["user", "assistant"].into_iter().cycle().take(10).enumerate() {
            let time = format!("2026-0{}-0{}T00:00:00Z", n + 1, at % 9 + 1);
            let message = json!({ "role": role, "content": "common word", "timestamp": time });
            wire.ok("session.record", json!({ "sessionId": session, "message": message }));
        }
        sessions.push(session);
    }
    wire.wait_for_catalog();
    let mut count = |extra: Value| {
        let mut params = json!({ "query": "common", "limit": 200 });
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        wire.ok("session.search", params)["data"].as_array().unwrap().len()
    };
    assert_eq!(count(json!({})), 30);
    assert_eq!(count(json!({ "role": "user" })), 15);
    assert_eq!(count(json!({ "sessionId": sessions[2] })), 10);
    assert_eq!(count(json!({ "projectPath": project })), 10);
    assert_eq!(count(json!({ "sort": "relevance" })), 30);
    assert_eq!(
        count(json!({ "since": "2026-03-01T00:00:00Z" })),
        10,
        "by the timestamp of the message"
    );
    assert_eq!(count(json!({ "until": "2026-02-01T00:00:00Z" })), 10);

    let pages = wire.pages("session.search", json!({ "query": "common", "limit": 7 }));
    let hits: Vec<&Value> = pages.iter().flat_map(|page| array(&page["data"])).collect();
    assert_eq!(hits.len(), 30);
    let times: Vec<&str> = hits.iter().map(|hit| hit["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "the newest hit is first");
    let places = hits.iter().map(|hit| (hit["sessionId"].to_string(), hit["seq"].as_u64()));
    assert_eq!(places.collect::<BTreeSet<_>>().len(), 30, "a hit is returned once");
}

#[test]
fn unusual_query_is_answered_or_refused() {
    let (_sandbox, _daemon, mut wire) = start();
    let _session = record_messages(&mut wire);
    let long = "word ".repeat(2000);
    for query in [
        "",
        " ",
        "\"",
        "\"open",
        "*",
        "a*",
        "AND",
        "OR NOT",
        "(",
        "x:y",
        "--",
        "';DROP TABLE x",
        "\u{0}",
        "🦀",
        "\\",
        "^",
        "NEAR(a b)",
        &long,
    ] {
        match wire.call("session.search", json!({ "query": query })) {
            Ok(found) => assert!(found["data"].is_array(), "{query:?}"),
            Err(error) => assert!(
                ["invalidParams", "tooLarge"].contains(&error["data"]["kind"].as_str().unwrap()),
                "{query:?}: {error}"
            ),
        }
    }
    assert_answers(&mut wire);
}

#[test]
fn acknowledged_messages_are_found_after_a_kill() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "title": "Search me" }));
    for (role, text) in MESSAGES {
        wire.record(&session, role, text);
    }
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    assert_answers(&mut wire);
}

#[test]
fn missing_or_damaged_catalog_is_rebuilt_while_the_daemon_serves() {
    let (sandbox, daemon, mut wire) = start();
    let session = record_messages(&mut wire);
    let list_before = wire.ok("session.list", json!({}));
    assert!(daemon.terminate().success());
    let catalog = sandbox.home().join("catalog.sqlite3");
    let damages: [(&str, &dyn Fn()); 4] = [
        ("deleted", &|| std::fs::remove_file(&catalog).unwrap()),
        ("overwritten", &|| std::fs::write(&catalog, b"not a database, ".repeat(1000)).unwrap()),
        ("emptied", &|| std::fs::write(&catalog, b"").unwrap()),
        ("damaged inside", &|| {
            let mut bytes = std::fs::read(&catalog).unwrap();
            for at in (4096..bytes.len()).step_by(512) {
                bytes[at] ^= 0xff;
            }
            std::fs::write(&catalog, bytes).unwrap();
        }),
    ];
    for (name, damage) in damages {
        damage();
        let (daemon, mut wire) = sandbox.daemon_and_wire();
        // Reading needs no catalog.
        assert_eq!(wire.records(&session).len(), MESSAGES.len() + 1, "{name}");
        until("the catalog is rebuilt", || {
            // Some damage is only found by a query.
            let _found = wire.call("session.search", json!({ "query": "panic" }));
            let catalog = wire.status()["catalog"].clone();
            catalog["state"] == "ready"
                && catalog["behind"] == 0
                && wire
                    .call("session.search", json!({ "query": "接続" }))
                    .is_ok_and(|found| found["data"][0].is_object())
        });
        assert_answers(&mut wire);
        let mut list = wire.ok("session.list", json!({}));
        assert_eq!(list.as_object_mut().unwrap().remove("behind"), None, "{name}");
        assert_eq!(list, list_before, "{name}: the list is the same");
        assert!(daemon.terminate().success());
    }
}

#[test]
fn catalog_that_is_behind_the_log_catches_up() {
    let (sandbox, daemon, mut wire) = start();
    let session = record_messages(&mut wire);
    assert!(daemon.terminate().success());
    let catalog = sandbox.home().join("catalog.sqlite3");
    let old = std::fs::read(&catalog).unwrap();
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let seq = wire.record(&session, "user", "a later platypus");
    wire.wait_for_catalog();
    assert!(daemon.terminate().success());
    std::fs::write(&catalog, old).unwrap();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    assert_eq!(hits(&mut wire, &json!({ "query": "platypus" })), [seq]);
    assert_answers(&mut wire);
}
