//! Checkpoints: updated by the next compaction, merged over their limit, and limited in size.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{DISABLED, SUMMARY, on_request, session};
use crate::harness::{Answer, FakeOllama, Fault, ModelSession, array, assert_fields};

/// The number of checkpoints that a window of 16,384 tokens keeps.
const LIMIT: usize = 5;

/// Starts a daemon with a session that keeps several checkpoints and few recent messages.
fn large_session(fake: &FakeOllama) -> ModelSession {
    fake.set_trained_context(32_768);
    session(fake, 16_384, &format!("{DISABLED}  preserveRecent: 256\n"))
}

/// Returns the ids of a checkpoint and of those that were merged into it.
fn ids(checkpoint: &Value) -> BTreeSet<String> {
    let own = std::iter::once(&checkpoint["id"]);
    let sources = checkpoint["sources"].as_array().into_iter().flatten();
    own.chain(sources).map(|id| id.as_str().unwrap().to_owned()).collect()
}

#[test]
fn oldest_checkpoints_over_the_limit_are_merged_by_the_model() {
    let fake = FakeOllama::new();
    let mut chat = large_session(&fake);
    let mut made = BTreeSet::new();
    let mut range: Option<(u64, u64)> = None;
    for round in 0..LIMIT + 3 {
        fake.script_summaries(Answer::text(
            &SUMMARY.replace("41 variants", &format!("{round} variants")),
        ));
        chat.exchanges(20);
        let done = chat.compact(json!({}));
        assert_fields(&done, json!({ "compacted": true, "method": "summarized" }));
        let all = array(&done["checkpoints"]);
        assert_eq!(all.len(), LIMIT.min(round + 1), "{all:?}");
        made.insert(all.last().unwrap()["id"].as_str().unwrap().to_owned());
        let named: BTreeSet<String> = all.iter().flat_map(ids).collect();
        assert!(made.is_subset(&named), "round {round}: {made:?} in {named:?}");
        // The checkpoints are in order, and together they cover a growing range.
        let ends = |checkpoint: &Value| {
            (checkpoint["from"].as_u64().unwrap(), checkpoint["to"].as_u64().unwrap())
        };
        assert!(all.windows(2).all(|pair| ends(&pair[0]).1 < ends(&pair[1]).0), "{all:?}");
        let covered = (ends(&all[0]).0, ends(all.last().unwrap()).1);
        assert!(range.is_none_or(|(from, to)| from == covered.0 && to < covered.1));
        range = Some(covered);
        let merged = all.iter().filter(|checkpoint| checkpoint["level"] == 0).count();
        assert_eq!(merged, usize::from(round >= LIMIT), "{all:?}");
        assert_eq!(chat.checkpoints()["checkpoints"], done["checkpoints"]);
    }
    let requests = fake.summary_requests();
    let merges = requests.iter().filter(|request| {
        let text = request.body["messages"][1]["content"].as_str().unwrap();
        text.contains("<summary>") && text.contains("Write the two notes above as one")
    });
    assert_eq!(merges.count(), 3, "one merge for each checkpoint over the limit");
    let listed = chat.checkpoints();
    assert_fields(&listed, json!({ "tierName": "progressive", "checkpointLimit": LIMIT }));
    let oldest = &listed["checkpoints"][0];
    assert!(array(&oldest["sources"]).len() >= 4, "{oldest}");
    assert!(oldest["summary"].as_str().unwrap().contains("port the parser"), "{oldest}");
    assert_eq!(fake.n_loads(), 1);
}

#[test]
fn checkpoints_are_merged_without_the_model_if_it_fails() {
    let fake = FakeOllama::new();
    let mut chat = large_session(&fake);
    fake.script_summaries(Answer::text(SUMMARY));
    let mut made = BTreeSet::new();
    for _ in 0..LIMIT {
        chat.exchanges(20);
        let done = chat.compact(json!({}));
        made.extend(array(&done["checkpoints"]).iter().flat_map(ids));
    }
    // The request for a summary succeeds, the one for a merge fails.
    chat.exchanges(20);
    let error = Fault::Error { status: 500, text: "no".to_owned() };
    fake.inject("/api/chat", &[Fault::Delay(Duration::ZERO), error]);
    let done = chat.compact(json!({}));
    let all = array(&done["checkpoints"]);
    assert_eq!((all.len(), &done["method"]), (LIMIT, &json!("summarized")), "{done}");
    let named: BTreeSet<String> = all.iter().flat_map(ids).collect();
    assert!(made.is_subset(&named), "{made:?} in {named:?}");
    let oldest = &all[0];
    assert_eq!(oldest["level"], 0, "{oldest}");
    assert!(oldest["summary"].as_str().unwrap().contains("port the parser"), "{oldest}");
}

#[test]
fn second_compaction_updates_the_checkpoint_with_later_records_only() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let first = chat.compact(json!({}));
    (14..27).for_each(|at| chat.exchange(at));
    fake.script_summaries(Answer::text(&SUMMARY.replace("41 variants", "42 variants")));
    let second = chat.compact(json!({}));
    assert_eq!(second["from"].as_u64().unwrap(), first["to"].as_u64().unwrap() + 1);
    let prompt = fake.summary_requests().last().unwrap().body["messages"][1].clone();
    let prompt = prompt["content"].as_str().unwrap();
    assert!(prompt.contains("<previous-summary>") && prompt.contains("41 variants"), "{prompt}");
    assert!(!prompt.contains("request 0:"), "{prompt}");
    let all = array(&second["checkpoints"]);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["id"], first["checkpoints"][0]["id"]);
    assert_fields(&all[0], json!({ "from": first["from"], "to": second["to"] }));
    assert!(all[0]["summary"].as_str().unwrap().contains("42 variants"));
}

#[test]
fn long_summary_is_cut_and_its_goal_markers_are_removed() {
    let fake = FakeOllama::new();
    let noise: String =
        (0..60).map(|n| format!("- [DECISION] one more thing {n} - LOCKED\n")).collect();
    fake.script_summaries(Answer::text(&format!("{SUMMARY}\n{noise}")));
    let mut chat = on_request(&fake);
    chat.exchanges(24);
    let done = chat.compact(json!({}));
    let summary = done["checkpoints"][0]["summary"].as_str().unwrap();
    assert!(done["checkpoints"][0]["currentTokens"].as_u64().unwrap() <= 1024, "{done}");
    assert!(!summary.contains("[DECISION]") && summary.contains("port the parser"), "{summary}");
}

#[test]
fn incomplete_summary_is_completed_from_the_records_in_the_smallest_window() {
    let fake = FakeOllama::new();
    // The section Goal is so long that no answer reaches the section Progress within its token limit.
    let goal: String = (0..200).map(|n| format!("- port parser part {n} to the lexer\n")).collect();
    fake.script_summaries(Answer::text(&format!("## Goal\n{goal}## Progress\n- done\n")));
    let mut chat = session(&fake, 2048, DISABLED);
    chat.exchanges(12);
    let done = chat.compact(json!({}));
    assert_fields(&done, json!({ "compacted": true, "method": "summarized" }));
    let checkpoint = &done["checkpoints"][0];
    assert!(checkpoint.get("provisional").is_none(), "{checkpoint}");
    assert!(checkpoint["currentTokens"].as_u64() <= Some(435), "{checkpoint}");
    let summary = checkpoint["summary"].as_str().unwrap();
    assert!(
        summary.contains("port parser part 0 to the lexer"),
        "the text of the model is kept: {summary}"
    );
    assert!(
        summary.contains("## Progress\n- answer "),
        "lines of the records are added: {summary}"
    );
    let requests = fake.summary_requests();
    let prompt = |at: usize| requests[at].body["messages"][1]["content"].as_str().unwrap();
    let max_words = |at: usize| {
        let (before, _) = prompt(at).split_once(" words in all").unwrap();
        before.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert!(max_words(1) < max_words(0), "the second request allows fewer words");
    assert!(prompt(1).contains("broke off before the section Progress"), "{}", prompt(1));
}
