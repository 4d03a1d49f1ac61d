//! A summarizer that is too slow: every wait has an end, and nothing changes unless it must.

use serde_json::json;

use super::{Compact, SUMMARY, asked_for};
use crate::harness::{Answer, FakeOllama, Fault, until};

const IMPATIENT: &str = "  firstTokenTimeout: 2s\n  idleTimeout: 2s\n";
const OFF: &str = "compression:\n  enabled: false\n";

#[test]
fn a_summarizer_that_says_nothing_or_stops_in_the_middle_changes_nothing() {
    for (fault, reason) in
        [(Fault::Hang, "firstTokenTimeout"), (Fault::Stall { after: 3 }, "idleTimeout")]
    {
        let fake = FakeOllama::start("0.33.0");
        fake.summarize(Answer::text(SUMMARY));
        let mut chat = Compact::configured(&fake, &format!("{IMPATIENT}{OFF}"));
        chat.exchanges(14);
        let before = chat.messages();
        fake.next("/api/chat", &[fault]);
        let params = chat.params(json!({}));
        let error = chat.wire.refused("context.compact", params, "modelFailed");
        assert_eq!(error["data"]["reason"], reason, "{error}");
        until("the call is dropped", || (fake.hanging() == 0).then_some(()));
        assert_eq!((chat.messages(), chat.count("compaction")), (before, 0));
        assert_eq!(chat.checkpoints()["compressionCount"], 0);
        assert_eq!(chat.compact(json!({}))["compacted"], true);
    }
}

#[test]
fn a_chat_goes_on_without_the_summary_while_its_context_fits() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::configured(&fake, &format!("{IMPATIENT}{OFF}"));
    // Due, but not full.
    let full = |chat: &mut Compact| {
        let status = chat.wire.ok("context.status", json!({ "sessionId": chat.session }));
        status["tokensUsed"].as_u64().unwrap() * 100 / status["promptLimit"].as_u64().unwrap()
    };
    let mut n = 0;
    while full(&mut chat) < 84 {
        chat.exchange(n);
        n += 1;
    }
    let before = chat.messages();
    chat.reconfigure(&fake, IMPATIENT);
    let kinds = json!(["compression-error", "compressed"]);
    let mut follower = chat.daemon.as_ref().unwrap().wire();
    let _ok = follower.subscribe(json!({ "sessionId": chat.session, "kinds": kinds }));
    fake.next("/api/chat", &[Fault::Stall { after: 2 }]);
    let events = chat.turn("go on");
    assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
    assert!(events.iter().any(|event| event["name"] == "compacting"), "{events:?}");
    assert_eq!((asked_for(&fake).as_str(), chat.count("compaction")), ("SA", 0));
    let told = follower.event();
    assert_eq!(
        (&told["data"]["reason"], &told["data"]["provisional"]),
        (&json!("idleTimeout"), &json!(false)),
        "{told}"
    );
    // What the model was sent begins with every byte that was there.
    let sent = fake.requests("/api/chat").pop().unwrap().body["messages"].clone();
    let (sent, before) = (sent.as_array().unwrap(), before.as_array().unwrap());
    assert_eq!(sent.len(), before.len() + 1);
    for (now, then) in sent.iter().zip(before) {
        assert_eq!((&now["role"], &now["content"]), (&then["role"], &then["content"]));
    }
}

#[test]
fn a_chat_whose_context_does_not_fit_gets_a_summary_by_lines() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::configured(&fake, &format!("{IMPATIENT}{OFF}"));
    chat.exchanges(80);
    chat.reconfigure(&fake, IMPATIENT);
    fake.next("/api/chat", &[Fault::Hang]);
    let events = chat.turn("go on");
    assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
    assert_eq!(asked_for(&fake), "SA");
    let listed = chat.checkpoints();
    assert_eq!(listed["checkpoints"][0]["provisional"], true, "{listed}");
    assert_eq!((chat.count("compaction"), chat.count("snapshot")), (1, 1));
}
