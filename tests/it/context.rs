//! `context.build`: what a model is sent fits, is well formed, says what it leaves out, and only grows.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Random, Sandbox, Wire, fixture, until};

/// Records a conversation of so many turns, tool calls and an oversized message included.
fn converse(wire: &mut Wire, session: &str, turns: u64, random: &mut Random) {
    for turn in 0..turns {
        let words = if turn % 37 == 36 { 6000 } else { 5 + random.below(60) };
        let _seq = wire.record(
            session,
            "user",
            &format!("question {turn}: {}", "some words here ".repeat(words as usize / 3)),
        );
        if turn % 3 == 0 {
            let call = format!("call_{turn}");
            let _result = wire.ok("session.record", json!({ "sessionId": session, "message": { "role": "assistant", "parts": [
                { "type": "thinking", "text": "let me look" },
                { "type": "toolCall", "id": call, "name": "read_file", "args": { "path": format!("f{turn}.rs") } } ] } }));
            let _result = wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": {
                "id": call, "name": "read_file", "args": { "path": format!("f{turn}.rs") },
                "result": { "llmContent": "fn main() {}\n".repeat(1 + random.below(40) as usize) } } }));
        }
        let _seq = wire.record(
            session,
            "assistant",
            &format!("answer {turn}: {}", "an answer ".repeat(5 + random.below(40) as usize)),
        );
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a count: {value}"))
}

/// Laws 13 and 14 on one result.
#[track_caller]
fn check_shape(built: &Value, window: u64) {
    let budget = &built["budget"];
    let used = number(&built["tokensUsed"]);
    let parts = [
        "systemPromptTokens",
        "toolDefinitionTokens",
        "checkpointTokens",
        "currentConversationTokens",
    ];
    assert_eq!(
        used,
        parts.iter().map(|part| number(&budget[*part])).sum::<u64>(),
        "the sum of the parts: {budget}"
    );
    assert_eq!(number(&built["numCtx"]), window);
    assert_eq!(number(&budget["modelContextWindow"]), window);
    assert!(used <= number(&budget["promptLimit"]), "{used} in {budget}");
    assert_eq!(built["tokenBudget"], budget["promptLimit"]);
    assert!(used + number(&built["numPredict"]) < window, "{built}");
    assert!(number(&built["numPredict"]) > 0);
    assert_eq!(built["countKind"], "estimated");

    let messages = built["messages"].as_array().unwrap();
    let roles: Vec<&str> =
        messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    let conversation =
        if roles.first() == Some(&"system") { &messages[1..] } else { &messages[..] };
    assert!(!conversation.iter().any(|message| message["role"] == "system"), "{roles:?}");
    if let Some(first) = conversation.first() {
        assert_eq!(first["role"], "user", "{roles:?}");
    }
    let mut open = BTreeSet::new();
    let mut before = "system";
    for message in conversation {
        let role = message["role"].as_str().unwrap();
        match role {
            "tool" => {
                assert!(before == "assistant" || before == "tool", "{roles:?}");
                assert!(
                    open.remove(message["tool_call_id"].as_str().unwrap()),
                    "an orphan: {message}"
                );
            }
            "user" => assert!(before != "user", "{roles:?}"),
            "assistant" => assert!(before == "user" || before == "tool", "{roles:?}"),
            other => panic!("a role {other}"),
        }
        if role != "tool" {
            assert!(open.is_empty(), "calls without result: {open:?}");
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap();
            let is_taken = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            assert!(is_taken, "some templates refuse it: {call}");
            assert!(open.insert(id.to_owned()), "{call}");
        }
        before = role;
    }
    assert!(open.is_empty(), "calls without result: {open:?}");
}

/// Law 16: every message of the session is in the context or among what was left out.
#[track_caller]
fn check_nothing_vanishes(wire: &mut Wire, session: &str, built: &Value) {
    let sent = built["messages"].to_string();
    let omitted = built["omitted"].as_array().unwrap();
    for item in omitted {
        assert!(!item["reason"].as_str().unwrap().is_empty(), "{item}");
    }
    for record in wire.records(session) {
        let seq = number(&record["seq"]);
        let Some(parts) = record["message"]["parts"].as_array() else { continue };
        for part in parts.iter().filter(|part| part["type"] == "text") {
            let text = part["text"].as_str().unwrap();
            let quoted = json!(text).to_string();
            let whole = sent.contains(&quoted[1..quoted.len() - 1]);
            let named = omitted.iter().any(|item| {
                let from = number(&item["seq"]);
                let through = item.get("throughSeq").map_or(from, number);
                (from..=through).contains(&seq)
            });
            assert!(whole || named, "record {seq} is neither sent nor named in {omitted:?}");
        }
    }
}

/// Law 15: a build begins with the whole one before it.
#[track_caller]
fn check_begins_with(later: &Value, earlier: &Value) {
    let (later, earlier) =
        (later["messages"].as_array().unwrap(), earlier["messages"].as_array().unwrap());
    assert!(later.len() >= earlier.len());
    for (at, (new, old)) in later.iter().zip(earlier).enumerate() {
        if at + 1 < earlier.len() {
            assert_eq!(new, old, "message {at} changed");
        } else {
            // The last one may have been merged with a following one of the same role.
            assert_eq!(new["role"], old["role"]);
            assert!(
                new["content"].as_str().unwrap().starts_with(old["content"].as_str().unwrap()),
                "message {at} changed"
            );
        }
    }
}

#[test]
fn a_short_session_is_sent_whole() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 4096 }));
    let _seq = wire.record(&session, "user", "What is a monad?");
    let _seq = wire.record(&session, "assistant", "A monoid in the category of endofunctors.");
    let params = json!({ "sessionId": session, "pending": "And in plain words?",
        "tools": [{ "type": "function", "function": { "name": "search", "parameters": {} } }] });
    let built = wire.ok("context.build", params.clone());
    check_shape(&built, 4096);
    assert_eq!(built["strategy"], "full-history");
    assert_eq!(built["omitted"], json!([]));
    let contents: Vec<&str> = built["messages"]
        .as_array()
        .unwrap()
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
    assert_eq!(again["messages"], built["messages"], "same session, same context");
}

#[test]
fn every_window_is_kept_to_and_nothing_vanishes() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let mut random = Random::announced("context");
    let session = wire.create(json!({ "systemPrompt": "Be exact.", "contextSize": 8192 }));
    converse(&mut wire, &session, 80, &mut random);
    let records = wire.records(&session).len();
    for window in [2048_u64, 4096, 8192, 32_768, 131_072] {
        let params = json!({ "sessionId": session, "contextSize": window, "pending": "What was the first question?" });
        let built = wire.ok("context.build", params.clone());
        check_shape(&built, window);
        check_nothing_vanishes(&mut wire, &session, &built);
        assert!(
            built["messages"].to_string().contains("question 0"),
            "the original task is kept at {window}"
        );
        assert!(
            built["messages"].as_array().unwrap().last().unwrap()["content"]
                .as_str()
                .unwrap()
                .ends_with("What was the first question?")
        );
        let again = wire.ok("context.build", params);
        assert_eq!(again["messages"], built["messages"], "{window}: same log, same context");
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
fn within_an_epoch_a_context_only_grows_and_a_new_one_is_one_record() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    let mut random = Random::announced("epochs");
    let session = wire.create(json!({ "systemPrompt": "Be exact.", "contextSize": 4096 }));
    let _seq = wire.record(&session, "user", "The original task: write a parser.");
    let _seq = wire.record(&session, "assistant", "I begin.");
    let epochs = |wire: &mut Wire| {
        wire.records(&session).iter().filter(|record| record["type"] == "epoch").count()
    };
    let params = json!({ "sessionId": session, "compact": "auto" });
    let mut previous = wire.ok("context.build", params.clone());
    check_shape(&previous, 4096);
    let mut known = epochs(&mut wire);
    let mut renewed = 0;
    for turn in 0..60 {
        let _seq = wire.record(
            &session,
            "user",
            &format!("turn {turn}: {}", "more words ".repeat(20 + random.below(60) as usize)),
        );
        let built = wire.ok("context.build", params.clone());
        check_shape(&built, 4096);
        check_nothing_vanishes(&mut wire, &session, &built);
        assert_eq!(built.get("transient"), None, "with `auto` the plan is recorded");
        let now = epochs(&mut wire);
        assert!(now <= known + 1, "one build writes at most one record");
        if now == known {
            check_begins_with(&built, &previous);
            assert!(number(&built["prefixTokens"]) > 0, "{}", built["prefixTokens"]);
            assert!(number(&built["prefixTokens"]) <= number(&built["tokensUsed"]));
        } else {
            renewed += 1;
            assert!(
                number(&built["tokensUsed"]) < number(&previous["tokensUsed"]),
                "a new head is smaller"
            );
        }
        let unchanged = wire.ok("context.build", params.clone());
        assert_eq!(unchanged["messages"], built["messages"]);
        assert_eq!(epochs(&mut wire), now, "nothing changed, nothing is written");
        (known, previous) = (now, unchanged);
        let _seq = wire.record(&session, "assistant", &format!("answer {turn}"));
    }
    assert!((2..20).contains(&renewed), "{renewed} epochs in 60 turns: rarely and deeply");
    let before = wire.ok("context.build", params.clone());
    daemon.kill9();
    let (_daemon, mut wire) = sandbox.served();
    let after = wire.ok("context.build", params);
    assert_eq!(after["messages"], before["messages"], "a restart changes no byte");
}

#[test]
fn without_auto_a_plan_that_is_not_recorded_says_so() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({ "contextSize": 2048 }));
    for turn in 0..30 {
        let _seq =
            wire.record(&session, "user", &format!("turn {turn}: {}", "more words ".repeat(40)));
        let _seq = wire.record(&session, "assistant", "noted");
    }
    let built = wire.ok("context.build", json!({ "sessionId": session }));
    check_shape(&built, 2048);
    assert_eq!(built["transient"], true);
    assert!(!wire.records(&session).iter().any(|record| record["type"] == "epoch"));
    let recorded = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    assert_eq!(recorded.get("transient"), None);
    let after = wire.ok("context.build", json!({ "sessionId": session }));
    assert_eq!(after.get("transient"), None, "it fits into the recorded epoch");
    check_begins_with(&after, &recorded);
}

#[test]
fn building_a_context_is_no_activity() {
    let sandbox = Sandbox::new();
    let (daemon, mut wire) = sandbox.served();
    // Its records are old, so that an epoch of today would show.
    let file = std::fs::read_to_string(fixture("import/pi-mono-session.jsonl")).unwrap();
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
        let whole = wire.ok("session.get", json!({ "sessionId": session, "limit": 1 }));
        let list = wire.ok("session.list", json!({}));
        for shown in [&whole["session"], &list["data"][0]] {
            for field in ["lastActivity", "status"] {
                assert_eq!(shown[field], before[field], "{when}: {field}");
            }
        }
    };
    check(&mut wire, "at once");
    assert!(daemon.terminate().success());
    let (daemon, mut wire) = sandbox.served();
    check(&mut wire, "after a restart");
    assert!(daemon.terminate().success());
    std::fs::remove_file(sandbox.home().join("catalog.sqlite3")).unwrap();
    let (_daemon, mut wire) = sandbox.served();
    until("the catalog is rebuilt", || {
        let status = wire.ok("daemon.status", json!({}));
        (status["catalog"]["behind"] == 0 && status["catalog"]["state"] == "ready").then_some(())
    });
    check(&mut wire, "with a new catalog");
    let seq = wire.record(&session, "user", "and on");
    let next = wire.records(&session).pop().unwrap();
    assert_eq!(next["seq"], seq);
    assert!(next["at"].as_str() >= epoch["at"].as_str(), "no record is before the one before it");
}

#[test]
fn status_tells_how_full_the_window_is_by_part() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    let mut wire = daemon.wire();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 4096 }));
    let _goal = wire.ok("goal.create", json!({ "sessionId": session, "description": "Ship it" }));
    converse(&mut wire, &session, 4, &mut Random::announced("status"));
    let status = wire.ok("context.status", json!({ "sessionId": session }));
    let parts = status["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| number(&part["tokens"])).sum();
    assert_eq!(sum, 4096, "{parts:?}");
    let part = |name: &str| {
        let found = parts.iter().find(|part| part["name"] == name);
        number(&found.unwrap_or_else(|| panic!("no {name}"))["tokens"])
    };
    assert!(part("system") > 0 && part("user") > 0 && part("recent") > 0);
    assert!(part("goals") > 0 && part("entries") == 0);
    assert_eq!(part("reserve"), 4096 - 3482);
    let available = number(&status["availableTokens"]);
    assert_eq!(available, 3482 - part("system") - part("goals"));
    assert_eq!(number(&status["triggerTokens"]), available * 8 / 10);
    assert_eq!(status["compressionCount"], 0);
    assert_eq!(status["strategy"], "full-history");
    assert!(status.get("epoch").is_none());
    let small = json!({ "sessionId": session, "contextSize": 5 });
    let _error = wire.refused("context.status", small, "invalidParams");
}

#[test]
fn inspect_tells_why_each_record_is_in_or_out() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    let mut wire = daemon.wire();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 2048 }));
    converse(&mut wire, &session, 40, &mut Random::announced("inspect"));
    let built = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    let _seq = wire.record(&session, "user", "and one more");
    let then =
        wire.ok("context.inspect", json!({ "sessionId": session, "buildId": built["buildId"] }));
    assert_eq!(then["build"]["messages"], built["messages"], "it is the build that was asked for");
    assert_eq!(then["build"]["buildId"], built["buildId"]);
    assert!(then.get("changed").is_none());
    let tokens: u64 = then["messageTokens"].as_array().unwrap().iter().map(number).sum();
    assert_eq!(tokens, number(&built["tokensUsed"]));

    let now = wire.ok("context.inspect", json!({ "sessionId": session }));
    let items = now["items"].as_array().unwrap();
    assert_eq!(items[0]["what"], "system");
    let page = wire.ok("session.get", json!({ "sessionId": session, "limit": 1000 }));
    for record in page["records"].as_array().unwrap() {
        if !["message", "toolCall"].contains(&record["type"].as_str().unwrap()) {
            continue;
        }
        let seq = number(&record["seq"]);
        let about = items.iter().filter(|item| item["what"] == "record").filter(|item| {
            let first = number(&item["seq"]);
            let last = item.get("throughSeq").map_or(first, number);
            (first..=last).contains(&seq)
        });
        let about: Vec<&Value> = about.collect();
        assert_eq!(about.len(), 1, "record {seq}: {about:?}");
        let is_in = about[0]["form"] != "out";
        assert_eq!(about[0].get("message").is_some(), is_in, "{about:?}");
        assert!(is_in || about[0].get("reason").is_some(), "{about:?}");
    }
    assert_eq!(items.last().unwrap()["form"], "out");
    assert!(now["epoch"]["seq"].is_u64() && now["epoch"]["cause"].is_string());

    let unknown = json!({ "sessionId": session, "buildId": "no such build" });
    let _error = wire.refused("context.inspect", unknown, "invalidParams");
    let _done =
        wire.ok("session.update", json!({ "sessionId": session, "systemPrompt": "Other." }));
    let changed =
        wire.ok("context.inspect", json!({ "sessionId": session, "buildId": built["buildId"] }));
    assert_eq!(changed["changed"], true);
}

/// The contents of the messages of a recorded build.
fn contents(wire: &mut Wire, session: &str) -> Vec<String> {
    let built = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    let messages = built["messages"].as_array().unwrap();
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_changes_beside_the_conversation_is_told_once_and_at_its_end() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    let mut wire = daemon.wire();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 4096 }));
    let add =
        |key: &str, content: &str| json!({ "sessionId": session, "key": key, "content": content });
    let _entry = wire.ok("context.addEntry", add("style", "Write in French."));
    let _goal =
        wire.ok("goal.create", json!({ "sessionId": session, "description": "Ship the parser" }));
    let _seq = wire.record(&session, "user", "hello");
    let first = contents(&mut wire, &session);
    assert!(
        first[0].starts_with("Be brief.") && first[0].contains("Write in French."),
        "{first:?}"
    );
    assert!(first[0].contains("Ship the parser"), "{first:?}");

    let _seq = wire.record(&session, "assistant", "hi");
    let _entry = wire.ok("context.addEntry", add("style", "Write in German."));
    let _entry = wire.ok("context.addEntry", add("name", "The user is Ada."));
    let _goal = wire.ok(
        "goal.addDecision",
        json!({ "sessionId": session, "description": "Use a state machine", "locked": true }),
    );
    let second = contents(&mut wire, &session);
    assert_eq!(second[..2], first[..], "what was sent stays");
    let told = second.last().unwrap();
    for text in ["Write in German.", "The user is Ada.", "Use a state machine"] {
        assert!(told.contains(text), "{text} in {told}");
    }
    assert_eq!(contents(&mut wire, &session), second, "nothing is told twice");

    daemon.kill9();
    let daemon = sandbox.daemon();
    let mut wire = daemon.wire();
    assert_eq!(contents(&mut wire, &session), second, "nor after a restart");

    let gone = json!({ "sessionId": session, "key": "name" });
    let _entry = wire.ok("context.removeEntry", gone);
    let third = contents(&mut wire, &session);
    assert!(third[0].contains("German") && third[0].contains("state machine"), "{third:?}");
    assert!(!third[0].contains("Ada"), "{third:?}");
    let records = wire.records(&session);
    let causes: Vec<&str> =
        records.iter().filter_map(|record| record["epoch"]["cause"].as_str()).collect();
    assert_eq!(causes, ["start", "entries"]);
}
