//! `context.recall`: questions in plain words, over one session, a project or all sessions.

use serde_json::json;

use super::converse;
use crate::harness::{Random, array, start};

#[test]
fn question_finds_what_was_said_long_ago() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("project");
    let session = wire.create(json!({ "projectPath": project, "contextSize": 4096 }));
    wire.record(&session, "user", "The staging server listens on port 48213. Remember that.");
    converse(&mut wire, &session, 60, &mut Random::seeded("recall"));
    let other = wire.create(json!({}));
    wire.record(&other, "user", "The staging server of the shop listens on port 5001.");
    wire.wait_for_catalog();

    let query = "Which port does staging use?";
    let found = wire.ok("context.recall", json!({ "query": query, "sessionId": session }));
    let first = &found["data"][0];
    assert!(first["excerpt"].as_str().unwrap().contains("48213"), "{found:#}");
    assert_eq!(first["matched"], json!(["port", "staging"]));
    assert!(found["tokens"].as_u64().unwrap() > 0);
    assert!(found.get("behind").is_none());

    let sessions = |found: &serde_json::Value| {
        let hits = array(&found["data"]).iter().take(2);
        hits.map(|hit| hit["sessionId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let found = wire.ok("context.recall", json!({ "query": query }));
    let mut both = sessions(&found);
    both.sort_unstable();
    let mut expected = vec![session.clone(), other.clone()];
    expected.sort_unstable();
    assert_eq!(both, expected, "{found:#}");
    let of_project = json!({ "query": query, "projectPath": project, "limit": 1 });
    assert_eq!(sessions(&wire.ok("context.recall", of_project)), [session.as_str()]);
    // A session without a project stands alone.
    let alone = json!({ "query": query, "sessionId": other, "scope": "project" });
    assert_eq!(sessions(&wire.ok("context.recall", alone)), [other.as_str()]);

    // At most as many tokens as wanted, and nothing that the context shows.
    let few = json!({ "query": query, "tokenLimit": 1 });
    assert_eq!(wire.ok("context.recall", few)["data"], json!([]));
    let shown = json!({ "query": query, "sessionId": other, "exclude": "shown" });
    assert_eq!(wire.ok("context.recall", shown)["data"], json!([]));
}

#[test]
fn question_that_asks_for_nothing_finds_nothing_and_bad_params_are_refused() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "The staging port is 48213.");
    wire.wait_for_catalog();
    for query in ["", "the", "?!... --", "\u{0}\u{82}s1"] {
        let found = wire.ok("context.recall", json!({ "query": query }));
        assert_eq!(found["data"], json!([]), "{query:?}");
    }
    let huge = format!("{} staging", "and then \"some\" ".repeat(6_000));
    let found = wire.ok("context.recall", json!({ "query": huge }));
    assert_eq!(array(&found["data"]).len(), 1);

    let refused = [
        json!({ "query": "x", "limit": 0 }),
        json!({ "query": "x", "limit": 101 }),
        json!({ "query": "x", "scope": "session" }),
        json!({ "query": "x", "scope": "project" }),
        json!({ "query": "x", "exclude": "shown" }),
        json!({ "query": "x", "exclude": "all", "sessionId": session }),
        json!({ "query": "x", "projectPath": "/", "sessionId": session }),
        json!({ "query": 1 }),
    ];
    for params in refused {
        wire.refused("context.recall", params, "invalidParams");
    }
    let unknown = json!({ "query": "x", "sessionId": "0b6a7c1e-3f52-4c39-9d0e-6d1c2a9f4e99" });
    wire.refused("context.recall", unknown, "sessionNotFound");
}
