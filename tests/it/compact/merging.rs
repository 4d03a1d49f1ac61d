//! Checkpoints over their limit in a window that keeps several: a model merges the oldest, and no source is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Compact, SUMMARY};
use crate::harness::{Answer, FakeOllama, Fault};

const CONFIG: &str = "compression:\n  enabled: false\n  preserveRecent: 256\n";
/// Checkpoints that a window of 16,384 tokens keeps.
const LIMIT: usize = 5;

fn ids(checkpoint: &Value) -> BTreeSet<String> {
    let own = std::iter::once(&checkpoint["id"]);
    let sources = checkpoint["sources"].as_array().into_iter().flatten();
    own.chain(sources).map(|id| id.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_oldest_are_merged_by_a_model_and_all_sources_are_kept() {
    let fake = FakeOllama::start("0.33.0");
    fake.set_trained(32_768);
    let mut chat = Compact::sized(&fake, 16_384, CONFIG);
    let mut made = BTreeSet::new();
    let mut range: Option<(u64, u64)> = None;
    for round in 0..LIMIT + 3 {
        fake.summarize(Answer::text(&SUMMARY.replace("41 variants", &format!("{round} variants"))));
        chat.exchanges(20);
        let done = chat.compact(json!({}));
        assert_eq!((&done["compacted"], &done["method"]), (&json!(true), &json!("summarized")));
        let all = done["checkpoints"].as_array().unwrap();
        assert_eq!(all.len(), LIMIT.min(round + 1), "{all:?}");
        made.insert(all.last().unwrap()["id"].as_str().unwrap().to_owned());
        let named: BTreeSet<String> = all.iter().flat_map(ids).collect();
        assert!(made.is_subset(&named), "round {round}: {made:?} in {named:?}");
        // Together they stand for everything, without a gap and in order.
        let ends = |one: &Value| (one["from"].as_u64().unwrap(), one["to"].as_u64().unwrap());
        assert!(all.windows(2).all(|pair| ends(&pair[0]).1 < ends(&pair[1]).0), "{all:?}");
        let whole = (ends(&all[0]).0, ends(all.last().unwrap()).1);
        assert!(range.is_none_or(|(from, to)| from == whole.0 && to < whole.1));
        range = Some(whole);
        let merged = all.iter().filter(|one| one["level"] == 0).count();
        assert_eq!(merged, usize::from(round >= LIMIT), "{all:?}");
        assert_eq!(chat.checkpoints()["checkpoints"], done["checkpoints"]);
    }
    let asked = fake.summaries();
    let merges = asked.iter().filter(|seen| {
        let text = seen.body["messages"][1]["content"].as_str().unwrap();
        text.contains("<summary>") && text.contains("in the place of the two above")
    });
    assert_eq!(merges.count(), 3, "one for each checkpoint over the limit");
    let listed = chat.checkpoints();
    assert_eq!((&listed["tierName"], &listed["limit"]), (&json!("progressive"), &json!(LIMIT)));
    let oldest = &listed["checkpoints"][0];
    assert!(oldest["sources"].as_array().unwrap().len() >= 4, "{oldest}");
    assert!(oldest["summary"].as_str().unwrap().contains("port the parser"), "{oldest}");
    assert_eq!(fake.loads(), 1);
}

#[test]
fn checkpoints_are_joined_by_their_lines_where_no_model_merges_them() {
    let fake = FakeOllama::start("0.33.0");
    fake.set_trained(32_768);
    let mut chat = Compact::sized(&fake, 16_384, CONFIG);
    fake.summarize(Answer::text(SUMMARY));
    let mut made = BTreeSet::new();
    for _ in 0..LIMIT {
        chat.exchanges(20);
        let done = chat.compact(json!({}));
        made.extend(done["checkpoints"].as_array().unwrap().iter().flat_map(ids));
    }
    // A summary of the range, and then nothing that is one.
    chat.exchanges(20);
    let failed = Fault::Error { status: 500, text: "no".to_owned() };
    fake.next("/api/chat", &[Fault::Delay(Duration::ZERO), failed]);
    let done = chat.compact(json!({}));
    let all = done["checkpoints"].as_array().unwrap();
    assert_eq!((all.len(), &done["method"]), (LIMIT, &json!("summarized")), "{done}");
    let named: BTreeSet<String> = all.iter().flat_map(ids).collect();
    assert!(made.is_subset(&named), "{made:?} in {named:?}");
    let oldest = &all[0];
    assert_eq!(oldest["level"], 0, "{oldest}");
    assert!(oldest["summary"].as_str().unwrap().contains("port the parser"), "{oldest}");
}
