//! Marks in the log directly before whatever makes a context other than it was.

use serde_json::{Value, json};

use super::{Compact, SUMMARY};
use crate::harness::{Answer, FakeOllama};

impl Compact {
    /// Each mark with what stands behind it: its reason, its leaf, and the kind of the next record.
    fn marks(&mut self) -> Vec<(String, u64, String)> {
        let session = self.session.clone();
        let records = self.wire.records(&session);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let pairs = records.windows(2).filter(|pair| pair[0]["type"] == "snapshot");
        let mark = |pair: &[Value]| {
            let mark = &pair[0]["snapshot"];
            assert_eq!(mark["snapshotId"].as_str().unwrap().len(), 36, "{mark}");
            (text(&mark["reason"]), mark["leaf"].as_u64().unwrap(), text(&pair[1]["type"]))
        };
        pairs.map(mark).collect()
    }

    fn leaf(&mut self) -> u64 {
        let params = json!({ "sessionId": self.session, "branch": "active" });
        let records = self.wire.ok("session.get", params)["records"].clone();
        let mut path = records.as_array().unwrap().iter().filter(|one| one["type"] != "snapshot");
        path.next_back().unwrap()["seq"].as_u64().unwrap()
    }
}

#[test]
fn a_change_of_the_mode_and_a_compaction_are_marked_by_the_leaf_before() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let first = chat.leaf();
    let params = chat.params(json!({ "mode": "planning" }));
    let _ok = chat.wire.ok("session.setMode", params);
    assert_eq!(chat.marks(), [("modeChange".to_owned(), first, "modeChange".to_owned())]);
    let second = chat.leaf();
    assert!(second > first, "the change is on the path, the mark is not");
    let _done = chat.compact(json!({}));
    let marks = chat.marks();
    assert_eq!(marks[1..], [("compaction".to_owned(), second, "compaction".to_owned())]);
}

#[test]
fn a_build_that_leaves_out_what_was_shown_is_marked_and_another_one_is_not() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    let params = chat.params(json!({ "compact": "auto", "contextSize": 2048 }));
    chat.exchange(0);
    let built = chat.wire.ok("context.build", params.clone());
    assert_eq!((chat.count("epoch"), chat.count("snapshot")), (1, 0), "{built}");
    chat.exchanges(40);
    let leaf = chat.leaf();
    let built = chat.wire.ok("context.build", params.clone());
    assert!(!built["omitted"].as_array().unwrap().is_empty(), "{built}");
    assert_eq!(chat.marks(), [("epoch".to_owned(), leaf, "epoch".to_owned())]);
    // The next one goes on from the epoch itself.
    let again = chat.wire.ok("context.build", params);
    assert_eq!(again["messages"], built["messages"]);
    assert_eq!(chat.marks().len(), 1);
    let (prefix, whole) = (&again["prefixTokens"], &built["tokensUsed"]);
    assert!(prefix.as_u64().unwrap() + 16 > whole.as_u64().unwrap(), "{prefix} of {whole}");
}
