//! `context.compact` on request: what is summarized, pruned or left alone, and the snapshot record before a change.

use serde_json::{Value, json};

use super::{SUMMARY, on_request};
use crate::harness::{Answer, FakeOllama, ModelSession, array, assert_fields};

#[test]
fn compaction_replaces_a_range_by_a_summary_and_keeps_the_rest() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    chat.wire.subscribe(json!({ "sessionId": chat.id }));
    let before = chat.build();
    let done = chat.compact(json!({ "instructions": "keep the names" }));
    assert_fields(&done, json!({ "compacted": true, "method": "summarized" }));
    assert_fields(&done, json!({ "strategy": "hybrid", "model": "tiny" }));
    assert!(done["summarizedMessageCount"].as_u64().unwrap() >= 10, "{done}");
    assert!(done["tokensAfter"].as_u64().unwrap() < done["tokensBefore"].as_u64().unwrap());
    assert_eq!(done["tokensBefore"], before["contextTokens"]);
    let after = chat.build();
    assert_eq!(done["tokensAfter"], after["contextTokens"]);
    let text = after["messages"][0]["content"].as_str().unwrap();
    assert!(text.contains("spans are byte offsets"), "{text}");
    assert!(text.contains("request 0:"), "the original task is quoted");
    assert_eq!(array(&after["messages"]).last(), array(&before["messages"]).last());
    assert_eq!(done["retention"]["task"], json!([1, 1]));
    let listed = chat.checkpoints();
    assert_eq!(listed["checkpoints"], done["checkpoints"]);
    let checkpoint = &listed["checkpoints"][0];
    assert_fields(checkpoint, json!({ "level": 3, "keyDecisions": ["spans are byte offsets"] }));
    assert_fields(&listed, json!({ "compressionCount": 1, "tierName": "smart" }));
    let reliability = &listed["reliability"];
    assert_eq!(reliability["retention"], done["retention"]);
    assert!(reliability["reason"].as_str().unwrap().contains("the original task (1 of 1)"));
    assert_eq!(reliability["level"], "high", "{reliability}");
    let events: Vec<Value> = chat.wire.events_until("tier2-compressed");
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    let steps = events.iter().filter_map(|event| event["data"]["step"].as_str());
    let steps: Vec<_> = steps.collect();
    assert!(
        steps.starts_with(&["planning", "summarizing"]) && steps.ends_with(&["writing"]),
        "{steps:?}"
    );
    let last = &kinds[kinds.len() - 3..];
    assert_eq!(last, ["compressed", "checkpoint-created", "tier2-compressed"]);
    let compressed = &events[events.len() - 3]["data"];
    assert_eq!(compressed["retention"], done["retention"]);
    assert_eq!(compressed["warning"], Value::Null, "nothing is lost");
    let request = &fake.summary_requests()[0].body;
    let prompt = request["messages"][1]["content"].as_str().unwrap();
    assert!(
        prompt.contains("[#1 user] request 0:") && prompt.contains("keep the names"),
        "{prompt}"
    );
    assert!(request.get("tools").is_none_or(|tools| array(tools).is_empty()));
    assert_eq!(request["options"]["num_ctx"], 8192);
}

#[test]
fn dry_run_reports_the_plan_and_changes_nothing() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let (before, kinds) = (chat.messages(), chat.record_kinds());
    let planned = chat.compact(json!({ "dryRun": true }));
    assert_fields(&planned, json!({ "compacted": false, "reason": "dryRun" }));
    assert_eq!(planned["method"], "summarized");
    assert!(planned["freedTokens"].as_u64().unwrap() > 0);
    assert!(planned["keptMessageCount"].as_u64().unwrap() > 0);
    assert_eq!((chat.messages(), chat.record_kinds()), (before, kinds));
    assert!(fake.requests("/api/chat").is_empty());
    let none = chat.checkpoints();
    assert_fields(&none, json!({ "checkpoints": [], "checkpointLimit": 1 }));
}

#[test]
fn session_of_recent_messages_is_not_compacted() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchange(1);
    for strategy in ["hybrid", "summarize"] {
        let reply = chat.compact(json!({ "strategy": strategy }));
        assert_fields(&reply, json!({ "compacted": false, "reason": "nothing" }));
    }
    assert_eq!(chat.count("compaction"), 0);
    let params = chat.params(json!({ "strategy": "squeeze" }));
    let error = chat.wire.refused("context.compact", params, "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("strategy"), "{error}");
}

#[test]
fn old_tool_results_are_pruned_before_a_summary_is_requested() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    for n in 0..8 {
        chat.record("user", &format!("look at file {n}"));
        let n_lines = if n < 6 { 60 } else { 1 };
        let lines: String = (0..n_lines).map(|line| format!("line {line} of file {n}\n")).collect();
        let call = json!({
            "id": format!("c{n}"), "name": "read_file", "args": { "path": format!("f{n}.rs") },
            "result": { "llmContent": lines },
        });
        chat.ok("session.recordToolCall", json!({ "toolCall": call }));
        chat.record("assistant", "seen");
    }
    let done = chat.compact(json!({}));
    assert_fields(&done, json!({ "compacted": true, "method": "pruned" }));
    assert_eq!(done["checkpoints"], json!([]));
    assert!(fake.requests("/api/chat").is_empty());
    assert_eq!(chat.build()["strategy"], "pruned-tools");
}

#[test]
fn truncation_sends_no_request_to_the_model() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let done = chat.compact(json!({ "strategy": "truncate" }));
    assert_fields(&done, json!({ "compacted": true, "method": "truncated" }));
    assert!(fake.requests("/api/chat").is_empty());
    assert_eq!(chat.count("compaction"), 1);
    assert_eq!(chat.count("snapshot"), 1);
}

#[test]
fn compact_command_prints_plan_result_and_checkpoints() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let plan = chat.sandbox.ctl(["context", "compact", &chat.id, "--dry-run"]).ok();
    assert!(plan.contains("would have") && plan.contains("nothing was changed"), "{plan}");
    assert_eq!(chat.count("compaction"), 0);
    let done = chat.sandbox.ctl(["context", "compact", &chat.id]).ok();
    assert!(
        done.contains("the context now has") && done.contains("are summarized by tiny"),
        "{done}"
    );
    assert!(done.contains("still mentioned: task 1 of 1"), "{done}");
    let listed = chat.sandbox.ctl(["context", "checkpoints", &chat.id, "--summaries"]).ok();
    assert!(
        listed.starts_with("1 checkpoint with") && listed.contains("spans are byte offsets"),
        "{listed}"
    );
}

/// Returns for each snapshot record its reason, its leaf, and the kind of the record behind it.
fn snapshots(chat: &mut ModelSession) -> Vec<(String, u64, String)> {
    let mut records = chat.records();
    // A snapshot of a nearly full context is taken at any time.
    records.retain(|record| record["snapshot"]["reason"] != "threshold");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let pairs = records.windows(2).filter(|pair| pair[0]["type"] == "snapshot");
    let fields = pairs.map(|pair| {
        let snapshot = &pair[0]["snapshot"];
        assert_eq!(snapshot["snapshotId"].as_str().unwrap().len(), 36, "{snapshot}");
        (text(&snapshot["reason"]), snapshot["leaf"].as_u64().unwrap(), text(&pair[1]["type"]))
    });
    fields.collect()
}

/// Returns the seq of the active leaf.
fn leaf(chat: &mut ModelSession) -> u64 {
    let records = chat.ok("session.get", json!({ "branch": "active" }))["records"].clone();
    let mut path = array(&records).iter().filter(|record| record["type"] != "snapshot");
    path.next_back().unwrap()["seq"].as_u64().unwrap()
}

#[test]
fn mode_change_and_compaction_follow_a_snapshot_of_the_leaf() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let first = leaf(&mut chat);
    chat.ok("session.setMode", json!({ "mode": "planning" }));
    assert_eq!(snapshots(&mut chat), [("modeChange".to_owned(), first, "modeChange".to_owned())]);
    let second = leaf(&mut chat);
    assert!(second > first, "the mode change is on the path, the snapshot is not");
    chat.compact(json!({}));
    let snapshots = snapshots(&mut chat);
    assert_eq!(snapshots[1..], [("compaction".to_owned(), second, "compaction".to_owned())]);
}

#[test]
fn build_that_omits_messages_follows_a_snapshot() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    let params = json!({ "compact": "auto", "contextSize": 2048 });
    chat.exchange(0);
    let built = chat.ok("context.build", params.clone());
    assert_eq!((chat.count("epoch"), chat.count("snapshot")), (1, 0), "{built}");
    chat.exchanges(40);
    let leaf = leaf(&mut chat);
    let built = chat.ok("context.build", params.clone());
    assert!(!array(&built["omitted"]).is_empty(), "{built}");
    assert_eq!(snapshots(&mut chat), [("epoch".to_owned(), leaf, "epoch".to_owned())]);
    // The next build extends the epoch.
    let again = chat.ok("context.build", params);
    assert_eq!(again["messages"], built["messages"]);
    assert_eq!(snapshots(&mut chat).len(), 1);
    let (prefix, whole) = (&again["prefixTokens"], &built["contextTokens"]);
    assert!(prefix.as_u64().unwrap() + 16 > whole.as_u64().unwrap(), "{prefix} of {whole}");
}
