//! `context.build`: windows, epochs, transient plans, and changes beside the conversation.

use serde_json::json;

use super::{assert_complete, assert_extends, assert_valid, converse, number};
use crate::harness::{Random, Wire, array, fixture_path, start};

#[test]
fn short_session_is_sent_completely() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 4096 }));
    wire.record(&session, "user", "What is a monad?");
    wire.record(&session, "assistant", "A monoid in the category of endofunctors.");
    let params = json!({ "sessionId": session, "pending": "And in plain words?",
        "tools": [{ "type": "function", "function": { "name": "search", "parameters": {} } }] });
    let built = wire.ok("context.build", params.clone());
    assert_valid(&built, 4096);
    assert_eq!(built["strategy"], "full-history");
    assert_eq!(built["omitted"], json!([]));
    let contents: Vec<&str> = array(&built["messages"])
        .iter()
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(
        contents,
        [
            "Be brief.",
            "What is a monad?",
            "A monoid in the category of endofunctors.",
            "And in plain words?"
        ]
    );
    assert!(number(&built["budget"]["toolDefinitionTokens"]) > 0);
    assert!(number(&built["budget"]["systemPromptTokens"]) > 0);
    let again = wire.ok("context.build", params);
    assert_eq!(again["messages"], built["messages"], "the same session gives the same context");
}

#[test]
fn context_of_a_long_session_fits_every_window_and_is_complete() {
    let (_sandbox, _daemon, mut wire) = start();
    let mut random = Random::seeded("context");
    let session = wire.create(json!({ "systemPrompt": "Be exact.", "contextSize": 8192 }));
    converse(&mut wire, &session, 80, &mut random);
    let records = wire.records(&session).len();
    for window in [2048_u64, 4096, 8192, 32_768, 131_072] {
        let params = json!({ "sessionId": session, "contextSize": window, "pending": "What was the first question?" });
        let built = wire.ok("context.build", params.clone());
        assert_valid(&built, window);
        assert_complete(&mut wire, &session, &built);
        assert!(
            built["messages"].to_string().contains("question 0"),
            "{window}: the original task is kept"
        );
        assert!(
            array(&built["messages"]).last().unwrap()["content"]
                .as_str()
                .unwrap()
                .ends_with("What was the first question?")
        );
        let again = wire.ok("context.build", params);
        assert_eq!(
            again["messages"], built["messages"],
            "{window}: the same log gives the same context"
        );
    }
    assert_eq!(wire.records(&session).len(), records, "a build without `auto` writes nothing");
    wire.refused(
        "context.build",
        json!({ "sessionId": session, "contextSize": 2047 }),
        "invalidParams",
    );
    wire.refused(
        "context.build",
        json!({ "sessionId": session, "strategy": "no-such" }),
        "invalidParams",
    );
    let too_long = json!({ "sessionId": session, "contextSize": 2048, "pending": "far too long ".repeat(4000) });
    let error = wire.refused("context.build", too_long, "contextOverflow");
    assert!(number(&error["data"]["needed"]) > number(&error["data"]["available"]), "{error}");
}

#[test]
fn context_only_grows_within_an_epoch_and_a_new_epoch_is_one_record() {
    let (sandbox, daemon, mut wire) = start();
    let mut random = Random::seeded("epochs");
    let session = wire.create(json!({ "systemPrompt": "Be exact.", "contextSize": 4096 }));
    wire.record(&session, "user", "The original task: write a parser.");
    wire.record(&session, "assistant", "I begin.");
    let epochs = |wire: &mut Wire| {
        wire.records(&session).iter().filter(|record| record["type"] == "epoch").count()
    };
    let params = json!({ "sessionId": session, "compact": "auto" });
    let mut previous = wire.ok("context.build", params.clone());
    assert_valid(&previous, 4096);
    let mut n_epochs = epochs(&mut wire);
    let mut n_new = 0;
    for turn in 0..60 {
        wire.record(
            &session,
            "user",
            &format!("turn {turn}: {}", "more words ".repeat(20 + random.below(60) as usize)),
        );
        let built = wire.ok("context.build", params.clone());
        assert_valid(&built, 4096);
        assert_complete(&mut wire, &session, &built);
        assert_eq!(built.get("transient"), None, "the plan is recorded with `auto`");
        let n_epochs_now = epochs(&mut wire);
        assert!(n_epochs_now <= n_epochs + 1, "one build writes at most one record");
        if n_epochs_now == n_epochs {
            assert_extends(&built, &previous);
            assert!(number(&built["prefixTokens"]) > 0, "{}", built["prefixTokens"]);
            assert!(number(&built["prefixTokens"]) <= number(&built["contextTokens"]));
        } else {
            n_new += 1;
            assert!(
                number(&built["contextTokens"]) < number(&previous["contextTokens"]),
                "a new epoch is smaller"
            );
        }
        let unchanged = wire.ok("context.build", params.clone());
        assert_eq!(unchanged["messages"], built["messages"]);
        assert_eq!(epochs(&mut wire), n_epochs_now, "an unchanged context writes no record");
        (n_epochs, previous) = (n_epochs_now, unchanged);
        wire.record(&session, "assistant", &format!("answer {turn}"));
    }
    assert!((2..20).contains(&n_new), "{n_new} new epochs in 60 turns");
    let before = wire.ok("context.build", params.clone());
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let after = wire.ok("context.build", params);
    assert_eq!(after["messages"], before["messages"], "a restart changes nothing");
}

#[test]
fn unrecorded_plan_is_transient() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "contextSize": 2048 }));
    for turn in 0..30 {
        wire.record(&session, "user", &format!("turn {turn}: {}", "more words ".repeat(40)));
        wire.record(&session, "assistant", "noted");
    }
    let built = wire.ok("context.build", json!({ "sessionId": session }));
    assert_valid(&built, 2048);
    assert_eq!(built["transient"], true);
    assert!(!wire.records(&session).iter().any(|record| record["type"] == "epoch"));
    let recorded = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    assert_eq!(recorded.get("transient"), None);
    let after = wire.ok("context.build", json!({ "sessionId": session }));
    assert_eq!(after.get("transient"), None, "the context fits into the recorded epoch");
    assert_extends(&after, &recorded);
}

#[test]
fn build_does_not_change_last_activity_or_status() {
    let (sandbox, daemon, mut wire) = start();
    // The records are old, so that a change of the last activity would be visible.
    let file = std::fs::read_to_string(fixture_path("import/pi-mono-session.jsonl")).unwrap();
    let imported = wire.ok("session.import", json!({ "data": file, "last": true }));
    let before = imported["session"].clone();
    let session = before["sessionId"].as_str().unwrap().to_owned();
    let built = wire.ok(
        "context.build",
        json!({ "sessionId": session, "contextSize": 4096, "compact": "auto" }),
    );
    assert_eq!(built.get("transient"), None);
    let epoch = wire.records(&session).pop().unwrap();
    assert_eq!(epoch["type"], "epoch");
    let check = |wire: &mut Wire, when: &str| {
        let list = wire.ok("session.list", json!({}));
        for found in [&wire.session(&session), &list["data"][0]] {
            for field in ["lastActivity", "status"] {
                assert_eq!(found[field], before[field], "{when}: {field}");
            }
        }
    };
    check(&mut wire, "after the build");
    assert!(daemon.terminate().success());
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    check(&mut wire, "after a restart");
    assert!(daemon.terminate().success());
    sandbox.remove_catalog();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    check(&mut wire, "with a new catalog");
    let seq = wire.record(&session, "user", "and on");
    let next = wire.records(&session).pop().unwrap();
    assert_eq!(next["seq"], seq);
    assert!(next["at"].as_str() >= epoch["at"].as_str(), "records are in the order of time");
}

/// Builds and records a context, and returns the contents of its messages.
fn contents(wire: &mut Wire, session: &str) -> Vec<String> {
    let built = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    let messages = array(&built["messages"]);
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn changed_entries_and_goals_are_sent_once_behind_the_conversation() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 4096 }));
    let add =
        |key: &str, content: &str| json!({ "sessionId": session, "key": key, "content": content });
    wire.ok("context.addEntry", add("style", "Write in French."));
    let create = json!({ "action": "create", "description": "Ship the parser" });
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [create] }));
    wire.record(&session, "user", "hello");
    let first = contents(&mut wire, &session);
    assert!(
        first[0].starts_with("Be brief.") && first[0].contains("Write in French."),
        "{first:?}"
    );
    assert!(first[0].contains("Ship the parser"), "{first:?}");

    wire.record(&session, "assistant", "hi");
    wire.ok("context.addEntry", add("style", "Write in German."));
    wire.ok("context.addEntry", add("name", "The user is Ada."));
    let decide =
        json!({ "action": "addDecision", "description": "Use a state machine", "locked": true });
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [decide] }));
    let second = contents(&mut wire, &session);
    assert_eq!(second[..2], first[..], "earlier messages are unchanged");
    let delta = second.last().unwrap();
    for text in ["Write in German.", "The user is Ada.", "Use a state machine"] {
        assert!(delta.contains(text), "no {text} in {delta}");
    }
    assert_eq!(contents(&mut wire, &session), second, "a change is sent once");

    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(contents(&mut wire, &session), second, "a restart sends nothing again");

    wire.ok("context.removeEntry", json!({ "sessionId": session, "key": "name" }));
    let third = contents(&mut wire, &session);
    assert!(third[0].contains("German") && third[0].contains("state machine"), "{third:?}");
    assert!(!third[0].contains("Ada"), "{third:?}");
    let records = wire.records(&session);
    let causes: Vec<&str> =
        records.iter().filter_map(|record| record["epoch"]["cause"].as_str()).collect();
    assert_eq!(causes, ["start", "entries"]);
}
