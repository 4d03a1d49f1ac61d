//! `context.status` and `context.inspect`: how the window is divided, and why each record is in or out.

use serde_json::{Value, json};

use super::{converse, number};
use crate::harness::{Random, array, start};

#[test]
fn status_divides_the_window_into_parts() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 4096 }));
    let create = json!({ "action": "create", "description": "Ship it" });
    wire.ok("goal.change", json!({ "sessionId": session, "steps": [create] }));
    converse(&mut wire, &session, 4, &mut Random::seeded("status"));
    let status = wire.ok("context.status", json!({ "sessionId": session }));
    let parts = array(&status["parts"]);
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
    let too_small = json!({ "sessionId": session, "contextSize": 5 });
    wire.refused("context.status", too_small, "invalidParams");
}

#[test]
fn entries_without_room_are_items_of_their_own() {
    let (_sandbox, _daemon, mut wire) = start();
    let content = "the whole team agreed on this ".repeat(150);
    wire.ok("context.addEntry", json!({ "scope": "global", "key": "long", "content": content }));
    let session = wire.create(json!({ "contextSize": 2048 }));
    wire.record(&session, "user", "hello");
    let items = wire.ok("context.inspect", json!({ "sessionId": session }))["items"].clone();
    let of = |what: &str| array(&items).iter().find(|item| item["what"] == what).cloned();
    let entry = of("contextEntry").expect("an item");
    assert_eq!((&entry["form"], &entry["reason"]), (&json!("out"), &json!("contextEntry")));
    let message = of("record").expect("an item");
    assert!(message["form"] == "whole" && message.get("reason").is_none(), "{message}");
}

#[test]
fn inspect_lists_each_record_once_with_its_form_or_reason() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "systemPrompt": "Be brief.", "contextSize": 2048 }));
    converse(&mut wire, &session, 40, &mut Random::seeded("inspect"));
    let built = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    wire.record(&session, "user", "and one more");
    let inspected =
        wire.ok("context.inspect", json!({ "sessionId": session, "buildId": built["buildId"] }));
    assert_eq!(inspected["build"]["messages"], built["messages"]);
    assert_eq!(inspected["build"]["buildId"], built["buildId"]);
    assert!(inspected.get("changed").is_none());
    let tokens: u64 = array(&inspected["messageTokens"]).iter().map(number).sum();
    assert_eq!(tokens, number(&built["contextTokens"]));

    let now = wire.ok("context.inspect", json!({ "sessionId": session }));
    let items = array(&now["items"]);
    assert_eq!(items[0]["what"], "system");
    let page = wire.ok("session.get", json!({ "sessionId": session, "limit": 1000 }));
    for record in array(&page["records"]) {
        if !["message", "toolCall"].contains(&record["type"].as_str().unwrap()) {
            continue;
        }
        let seq = number(&record["seq"]);
        let found = items.iter().filter(|item| item["what"] == "record").filter(|item| {
            let first = number(&item["seq"]);
            let last = item.get("throughSeq").map_or(first, number);
            (first..=last).contains(&seq)
        });
        let found: Vec<&Value> = found.collect();
        assert_eq!(found.len(), 1, "record {seq}: {found:?}");
        let is_in = found[0]["form"] != "out";
        assert_eq!(found[0].get("message").is_some(), is_in, "{found:?}");
        assert!(is_in || found[0].get("reason").is_some(), "{found:?}");
    }
    assert_eq!(items.last().unwrap()["form"], "out");
    assert!(now["epoch"]["seq"].is_u64() && now["epoch"]["cause"].is_string());

    let unknown = json!({ "sessionId": session, "buildId": "unknown" });
    wire.refused("context.inspect", unknown, "invalidParams");
    wire.ok("session.update", json!({ "sessionId": session, "systemPrompt": "Other." }));
    let changed =
        wire.ok("context.inspect", json!({ "sessionId": session, "buildId": built["buildId"] }));
    assert_eq!(changed["changed"], true);
}
