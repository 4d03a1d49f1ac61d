//! Who is asked for a summary, with which options, and who waits for whom.

use serde_json::{Value, json};

use super::{Compact, SUMMARY, asked_for, wants_summary};
use crate::harness::{Answer, FakeOllama, Fault, Seen, until};

const OFF: &str = "compression:\n  enabled: false\n";

fn options(requests: &[&Seen], name: &str) -> Vec<Value> {
    let mut all: Vec<Value> =
        requests.iter().map(|seen| seen.body["options"][name].clone()).collect();
    all.dedup();
    all
}

#[test]
fn another_model_writes_the_summaries_and_each_keeps_its_window() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::configured(&fake, "compression:\n  model: thinker\n");
    let text = "some words of a user who talks a lot about the parser ".repeat(10);
    let mut n = 0;
    while chat.count("compaction") < 2 {
        let events = chat.turn(&format!("{n} {text}"));
        assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
        n += 1;
        assert!(n < 40, "no second compaction in {n} turns");
    }
    let all = fake.requests("/api/chat");
    let (summaries, answers): (Vec<&Seen>, Vec<&Seen>) =
        all.iter().partition(|seen| wants_summary(seen));
    assert_eq!(summaries.len(), 2);
    assert!(summaries.iter().all(|seen| seen.body["model"] == "thinker"));
    assert!(summaries.iter().all(|seen| seen.body["think"] == false), "a summary needs none");
    assert!(answers.iter().all(|seen| seen.body["model"] == "tiny"));
    assert_eq!(options(&answers, "num_ctx"), [json!(8192)]);
    assert_eq!(options(&summaries, "num_ctx"), [json!(8192)]);
    assert_eq!(fake.loads(), 2, "each model once");
    let records = chat.wire.records(&chat.session.clone());
    let made = records.iter().filter_map(|one| one["compaction"].get("model"));
    assert!(made.into_iter().all(|model| model == "thinker"));
}

/// A session that is due, with a summary of the background that stalls in the middle.
fn stalled(fake: &FakeOllama) -> Compact {
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::configured(fake, OFF);
    chat.exchanges(18);
    chat.reconfigure(fake, "");
    fake.next("/api/chat", &[Fault::Stall { after: 2 }]);
    chat.exchange(18);
    until("the background is at it", || (fake.hanging() == 1).then_some(()));
    chat
}

#[test]
fn the_background_gives_way_to_a_chat_of_the_same_session() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = stalled(&fake);
    let events = chat.turn("go on");
    assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
    until("the stalled call is dropped", || (fake.hanging() == 0).then_some(()));
    // The chat makes the summary that it needs, and the background has nothing left to do.
    let asked = asked_for(&fake);
    assert!(asked.starts_with("SS") && asked.find('A') == Some(asked.len() - 1), "{asked}");
    assert_eq!(chat.count("compaction"), 1);
    let events = chat.turn("and on");
    assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
    assert_eq!((asked_for(&fake), chat.count("compaction")), (format!("{asked}A"), 1));
}

#[test]
fn a_chat_of_another_session_does_not_wait_for_the_background() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = stalled(&fake);
    let mut follower = chat.daemon.as_ref().unwrap().wire();
    let _ok = follower.subscribe(json!({ "sessionId": chat.session, "kinds": ["compressed"] }));
    let other = chat.wire.create(json!({ "contextSize": 8192 }));
    let events = chat.turn_in(&other, "hello");
    assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
    assert!(asked_for(&fake).starts_with("SA"), "{}", asked_for(&fake));
    // Nobody resumed it: the summary began again behind the chat.
    let told = follower.event();
    assert_eq!(told["data"]["method"], "summarized", "{told}");
    assert!(asked_for(&fake).starts_with("SAS"), "{}", asked_for(&fake));
    assert_eq!(chat.count("compaction"), 1);
    assert_eq!(fake.loads(), 1);
}
