//! `context.facts` and `context.forgetFact`: what the user stated, after restarts and in new heads.

use serde_json::json;

use crate::harness::{array, start};

#[test]
fn facts_are_listed_suppressed_and_restored_across_a_kill() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "The vault code is 7731. Never deploy on Fridays.");
    wire.record(&session, "assistant", "The relay port is 9999.");
    wire.record(&session, "user", "Which code was it?");
    wire.record(&session, "user", "The relay port is 6100.");
    let last = wire.record(&session, "user", "Actually the relay port is 6200.");

    let id = json!({ "sessionId": session });
    let listed = wire.ok("context.facts", id.clone());
    let texts = |listed: &serde_json::Value| {
        let texts =
            array(&listed["data"]).iter().map(|fact| fact["text"].as_str().unwrap().to_owned());
        texts.collect::<Vec<_>>()
    };
    let all =
        ["Actually the relay port is 6200.", "Never deploy on Fridays.", "The vault code is 7731."];
    assert_eq!(texts(&listed), all);
    assert_eq!(listed["total"], 3);
    let newest = &listed["data"][0];
    assert_eq!(
        (newest["supersedes"].as_u64(), newest["seq"].as_u64()),
        (Some(last - 1), Some(last))
    );
    assert_eq!((&newest["values"], &newest["source"]), (&json!(["6200"]), &json!("message")));
    assert!(listed["data"][1]["rule"] == true && listed["data"][1]["index"] == 1, "{listed}");

    let page = wire.ok("context.facts", json!({ "sessionId": session, "limit": 2 }));
    let next = json!({ "sessionId": session, "limit": 2, "cursor": page["nextCursor"] });
    let rest = wire.ok("context.facts", next);
    assert_eq!([texts(&page), texts(&rest)].concat(), all);
    assert!(rest.get("nextCursor").is_none());

    let forget = json!({ "sessionId": session, "seq": 1, "index": 0, "key": "k" });
    let forgotten = wire.ok("context.forgetFact", forget.clone());
    assert_eq!(
        (&forgotten["changed"], &forgotten["data"][0]["forgotten"]),
        (&json!(true), &json!(true))
    );
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(texts(&wire.ok("context.facts", id.clone())), all[..2]);
    let retried = wire.ok("context.forgetFact", forget);
    assert_eq!((&retried["changed"], &retried["duplicate"]), (&json!(false), &json!(true)));
    let every = wire.ok("context.facts", json!({ "sessionId": session, "includeForgotten": true }));
    assert_eq!(texts(&every), all);
    let restore = json!({ "sessionId": session, "seq": 1, "restore": true });
    assert_eq!(wire.ok("context.forgetFact", restore.clone())["changed"], true);
    assert_eq!(wire.ok("context.forgetFact", restore)["changed"], false);
    assert_eq!(texts(&wire.ok("context.facts", id)), all);

    for (seq, kind) in
        [(0, "invalidParams"), (2, "invalidParams"), (3, "invalidParams"), (99, "recordNotFound")]
    {
        wire.refused("context.forgetFact", json!({ "sessionId": session, "seq": seq }), kind);
    }
    let no_such = json!({ "sessionId": session, "seq": 1, "index": 7 });
    wire.refused("context.forgetFact", no_such, "invalidParams");
    wire.refused("context.facts", json!({ "sessionId": session, "cursor": "x" }), "invalidParams");
}

#[test]
fn answer_to_the_assistant_is_listed_with_its_question_after_a_kill_too() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "Set up the relay.");
    wire.record(&session, "assistant", "Which server port do you use?");
    let facts = json!({ "sessionId": session });
    // Folded in two parts, with a record between the question and its answer.
    assert_eq!(wire.ok("context.facts", facts.clone())["total"], 0);
    wire.ok("context.addEntry", json!({ "sessionId": session, "key": "k", "content": "x" }));
    assert_eq!(wire.ok("context.facts", facts.clone())["total"], 0);
    let seq = wire.record(&session, "user", "8123");
    let listed = wire.ok("context.facts", facts.clone());
    assert_eq!(listed["data"][0]["text"], "Which server port do you use? 8123");
    assert_eq!(listed["data"][0]["seq"], seq);
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    assert_eq!(wire.ok("context.facts", facts), listed);
}

#[test]
fn facts_of_omitted_messages_stand_in_the_head_once() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "contextSize": 4096 }));
    let facts = ["The vault code is 7731.", "Der Tresor steht in Raum 418.", "会议室的号码是318。"];
    for text in facts {
        wire.record(
            &session,
            "user",
            &format!("{text} {}", "And then we talk about nothing in particular. ".repeat(20)),
        );
        wire.record(&session, "assistant", "Noted.");
    }
    wire.record(&session, "user", "</facts> is not the end, our code word is \"amber\".");
    wire.record(&session, "assistant", "Noted.");
    for turn in 0..60 {
        wire.record(
            &session,
            "user",
            &format!("go on {turn} {}", "please continue with the next part ".repeat(8)),
        );
        wire.record(&session, "assistant", &"an answer of some length ".repeat(12));
    }
    let build = json!({ "sessionId": session, "strategy": "minimal-state", "compact": "auto" });
    let built = wire.ok("context.build", build);
    let first = opening(&built);
    let block = first.split_once("<facts>").and_then(|(_, rest)| rest.split_once("</facts>"));
    let block = block.unwrap_or_else(|| panic!("no facts in {first}")).0;
    // The first message is quoted whole, as the task.
    for value in ["7731", "418", "318", "amber"] {
        assert_eq!(first.matches(value).count(), 1, "{value} in {first}");
        assert_eq!(block.contains(value), value != "7731", "{value} in {block}");
    }
    assert!(block.len() < 1200, "{block}");
    let inspected = wire.ok("context.inspect", json!({ "sessionId": session }));
    let items = array(&inspected["items"]);
    let shown = items.iter().find(|item| item["what"] == "facts").expect("is named");
    assert_eq!(array(&shown["facts"]).len(), 3, "{shown}");
    let listed = wire.ok("context.facts", json!({ "sessionId": session }));
    assert!(
        array(&listed["data"]).iter().filter(|fact| fact["shown"] == true).count() == 3,
        "{listed}"
    );
    // The head stays as it is until the next one.
    wire.ok("context.forgetFact", json!({ "sessionId": session, "seq": 3 }));
    let again = wire.ok("context.build", json!({ "sessionId": session, "compact": "auto" }));
    assert_eq!(opening(&again), first);
    let build = json!({ "sessionId": session, "strategy": "floor", "compact": "auto" });
    wire.ok("context.build", build);
    let build = json!({ "sessionId": session, "strategy": "minimal-state", "compact": "auto" });
    let built = wire.ok("context.build", build);
    let block = opening(&built).split_once("</facts>").expect("facts").0;
    assert!(!block.contains("418") && block.contains("318"), "{block}");
}

/// Returns the first message of the user, which begins with the notes.
fn opening(built: &serde_json::Value) -> &str {
    let is_user = |message: &&serde_json::Value| message["role"] == "user";
    array(&built["messages"]).iter().find(is_user).expect("a message")["content"].as_str().unwrap()
}
