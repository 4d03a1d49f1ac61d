//! What `context.compact` does when somebody calls for it, and what it leaves alone.

use serde_json::{Value, json};

use super::{Compact, SUMMARY};
use crate::harness::{Answer, FakeOllama};

#[test]
fn a_range_becomes_a_summary_and_the_rest_stays_word_for_word() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let _ok = chat.wire.subscribe(json!({ "sessionId": chat.session }));
    let before = chat.built();
    let done = chat.compact(json!({ "instructions": "keep the names" }));
    assert_eq!(
        (&done["compacted"], &done["method"]),
        (&json!(true), &json!("summarized")),
        "{done}"
    );
    assert_eq!((&done["strategy"], &done["model"]), (&json!("hybrid"), &json!("tiny")));
    assert!(done["summarizedMessageCount"].as_u64().unwrap() >= 10, "{done}");
    assert!(done["tokensAfter"].as_u64().unwrap() < done["tokensBefore"].as_u64().unwrap());
    assert_eq!(done["tokensBefore"], before["tokensUsed"]);
    let after = chat.built();
    assert_eq!(done["tokensAfter"], after["tokensUsed"]);
    let text = after["messages"][0]["content"].as_str().unwrap();
    assert!(text.contains("spans are byte offsets"), "{text}");
    assert!(text.contains("request 0:"), "the task stays");
    assert_eq!(
        after["messages"].as_array().unwrap().last(),
        before["messages"].as_array().unwrap().last()
    );
    assert_eq!(done["retention"]["task"], json!([1, 1]));
    let listed = chat.checkpoints();
    assert_eq!(listed["checkpoints"], done["checkpoints"]);
    let one = &listed["checkpoints"][0];
    assert_eq!(
        (&one["level"], &one["keyDecisions"]),
        (&json!(3), &json!(["spans are byte offsets"]))
    );
    assert_eq!((&listed["compressionCount"], &listed["tierName"]), (&json!(1), &json!("smart")));
    assert_eq!(listed["reliability"]["level"], "critical");
    let told: Vec<Value> = chat.wire.events_until("tier2-compressed");
    let kinds: Vec<_> = told.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    let steps = told.iter().filter_map(|event| event["data"]["step"].as_str());
    let steps: Vec<_> = steps.collect();
    assert!(
        steps.starts_with(&["planning", "summarizing"]) && steps.ends_with(&["writing"]),
        "{steps:?}"
    );
    let last = &kinds[kinds.len() - 3..];
    assert_eq!(last, ["compressed", "checkpoint-created", "tier2-compressed"]);
    let request = &fake.summaries()[0].body;
    let asked = request["messages"][1]["content"].as_str().unwrap();
    assert!(asked.contains("[#1 user] request 0:") && asked.contains("keep the names"), "{asked}");
    assert!(request.get("tools").is_none_or(|tools| tools.as_array().unwrap().is_empty()));
    assert_eq!(request["options"]["num_ctx"], 8192);
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let (before, kinds) = (chat.messages(), chat.kinds());
    let told = chat.compact(json!({ "dryRun": true }));
    assert_eq!((&told["compacted"], &told["reason"]), (&json!(false), &json!("dryRun")), "{told}");
    assert_eq!(told["method"], "summarized");
    assert!(told["freedTokens"].as_u64().unwrap() > 0);
    assert!(told["keptMessageCount"].as_u64().unwrap() > 0);
    assert_eq!((chat.messages(), chat.kinds()), (before, kinds));
    assert!(fake.requests("/api/chat").is_empty());
    let none = chat.checkpoints();
    assert_eq!((&none["checkpoints"], &none["limit"]), (&json!([]), &json!(1)));
}

#[test]
fn what_is_all_recent_is_left_alone() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchange(1);
    for strategy in ["hybrid", "summarize"] {
        let told = chat.compact(json!({ "strategy": strategy }));
        assert_eq!((&told["compacted"], &told["reason"]), (&json!(false), &json!("nothing")));
    }
    assert_eq!(chat.count("compaction"), 0);
    let params = chat.params(json!({ "strategy": "squeeze" }));
    let error = chat.wire.refused("context.compact", params, "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("strategy"), "{error}");
}

#[test]
fn a_second_compaction_updates_the_summary_and_summarizes_nothing_twice() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let first = chat.compact(json!({}));
    (14..24).for_each(|at| chat.exchange(at));
    fake.summarize(Answer::text(&SUMMARY.replace("41 variants", "42 variants")));
    let second = chat.compact(json!({}));
    assert_eq!(second["from"].as_u64().unwrap(), first["to"].as_u64().unwrap() + 1);
    let asked = fake.summaries().last().unwrap().body["messages"][1].clone();
    let asked = asked["content"].as_str().unwrap();
    assert!(asked.contains("<previous-summary>") && asked.contains("41 variants"), "{asked}");
    assert!(!asked.contains("request 0:"), "{asked}");
    let all = second["checkpoints"].as_array().unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["id"], first["checkpoints"][0]["id"]);
    assert_eq!((&all[0]["from"], &all[0]["to"]), (&first["from"], &second["to"]));
    assert!(all[0]["summary"].as_str().unwrap().contains("42 variants"));
}

#[test]
fn old_results_are_shortened_before_anything_is_summarized() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    let session = chat.session.clone();
    for n in 0..8 {
        let _seq = chat.wire.record(&session, "user", &format!("look at file {n}"));
        let n_lines = if n < 6 { 60 } else { 1 };
        let lines: String = (0..n_lines).map(|line| format!("line {line} of file {n}\n")).collect();
        let call = json!({
            "id": format!("c{n}"), "name": "read_file", "args": { "path": format!("f{n}.rs") },
            "result": { "llmContent": lines },
        });
        let _ok = chat
            .wire
            .ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }));
        let _seq = chat.wire.record(&session, "assistant", "seen");
    }
    let done = chat.compact(json!({}));
    assert_eq!((&done["compacted"], &done["method"]), (&json!(true), &json!("pruned")), "{done}");
    assert_eq!(done["checkpoints"], json!([]));
    assert!(fake.requests("/api/chat").is_empty());
    assert_eq!(chat.built()["strategy"], "pruned-tools");
}

#[test]
fn truncation_needs_no_model() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let done = chat.compact(json!({ "strategy": "truncate" }));
    assert_eq!(
        (&done["compacted"], &done["method"]),
        (&json!(true), &json!("truncated")),
        "{done}"
    );
    assert!(fake.requests("/api/chat").is_empty());
    assert_eq!(chat.count("compaction"), 1);
    assert_eq!(chat.count("snapshot"), 1);
}

#[test]
fn a_verbose_summary_is_cut_and_markers_inside_do_nothing() {
    let fake = FakeOllama::start("0.33.0");
    let noise = "- [DECISION] one more thing - LOCKED\n".repeat(60);
    fake.summarize(Answer::text(&format!("{SUMMARY}\n{noise}")));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let done = chat.compact(json!({}));
    let summary = done["checkpoints"][0]["summary"].as_str().unwrap();
    assert!(done["checkpoints"][0]["currentTokens"].as_u64().unwrap() <= 1024, "{done}");
    assert!(!summary.contains("[DECISION]") && summary.contains("port the parser"), "{summary}");
}

#[test]
fn a_summary_that_never_ends_keeps_its_words_in_the_smallest_window() {
    let fake = FakeOllama::start("0.33.0");
    // No answer reaches the section Progress within what the window leaves for it.
    let goal: String = (0..200).map(|n| format!("- port parser part {n} to the lexer\n")).collect();
    fake.summarize(Answer::text(&format!("## Goal\n{goal}## Progress\n- done\n")));
    let mut chat = Compact::sized(&fake, 2048, "compression:\n  enabled: false\n");
    chat.exchanges(12);
    let done = chat.compact(json!({}));
    assert_eq!((&done["compacted"], &done["method"]), (&json!(true), &json!("summarized")));
    let one = &done["checkpoints"][0];
    assert!(
        one.get("provisional").is_none() && one["currentTokens"].as_u64() <= Some(435),
        "{one}"
    );
    let summary = one["summary"].as_str().unwrap();
    assert!(summary.contains("port parser part 0 to the lexer"), "the model's words: {summary}");
    assert!(summary.contains("## Progress\n- [#"), "lines of the records: {summary}");
    let asked = fake.summaries();
    let words = |at: usize| {
        let text = asked[at].body["messages"][1]["content"].as_str().unwrap().to_owned();
        let (before, _) = text.split_once(" words in all").unwrap();
        before.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert!(words(1) < words(0), "the second try is told to say less");
    let second = asked[1].body["messages"][1]["content"].as_str().unwrap();
    assert!(second.contains("broke off before the section Progress"), "{second}");
}

#[test]
fn the_command_tells_before_and_after() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let session = chat.session.clone();
    let plan = chat.sandbox.ctl(["context", "compact", &session, "--dry-run"]).ok();
    assert!(plan.contains("would have") && plan.contains("nothing was changed"), "{plan}");
    assert_eq!(chat.count("compaction"), 0);
    let done = chat.sandbox.ctl(["context", "compact", &session]).ok();
    assert!(
        done.contains("the context now has") && done.contains("are summarized by tiny"),
        "{done}"
    );
    assert!(done.contains("still mentioned: task 1 of 1"), "{done}");
    let listed = chat.sandbox.ctl(["context", "checkpoints", &session, "--summaries"]).ok();
    assert!(
        listed.starts_with("1 checkpoint with") && listed.contains("spans are byte offsets"),
        "{listed}"
    );
}
