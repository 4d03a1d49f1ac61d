//! `chat.follow`: a turn that another client started, from any point to its end, whatever becomes of its client, of slow
//! followers and of the daemon.

use serde_json::{Value, json};

use super::{conversation, send_with_tool, text_of};
use crate::harness::{Answer, FakeOllama, Fault, ModelSession, Wire, array, assert_fields, until};

/// A client that follows a turn.
struct Follower {
    wire: Wire,
    subscription: Value,
    /// The events so far.
    events: Vec<Value>,
}

impl Follower {
    #[track_caller]
    fn join(chat: &ModelSession) -> Self {
        let mut wire = chat.daemon.wire();
        let subscription = wire.ok("chat.follow", json!({ "sessionId": chat.id }));
        Self { wire, subscription, events: Vec::new() }
    }

    #[track_caller]
    fn next(&mut self) -> &Value {
        self.events.push(self.wire.notification("chat.event"));
        self.events.last().unwrap()
    }

    /// Reads events up to the first of a kind, or the last one.
    #[track_caller]
    fn read_until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next();
            if event["kind"] == kind || event["kind"] == "done" || event["kind"] == "error" {
                return event.clone();
            }
        }
    }

    /// Returns what the newest state and the pieces behind it say, by the name of the field.
    fn known(&self, field: &str) -> String {
        let newest = self.events.iter().rposition(|event| event["kind"] == "running");
        let known = &self.events[newest.expect("the first event is the state")..];
        known.iter().filter_map(|event| event[field].as_str()).collect()
    }

    fn n_states(&self) -> usize {
        self.events.iter().filter(|event| event["kind"] == "running").count()
    }
}

/// Starts a turn without a client, whose answer stalls after some pieces.
fn stalled_turn(answer: Answer, after: usize) -> (FakeOllama, ModelSession) {
    let fake = FakeOllama::new();
    fake.script(answer);
    fake.inject("/api/chat", &[Fault::Stall { after }]);
    let chat = ModelSession::new(&fake);
    let mut params = chat.message("count");
    params["detach"] = json!(true);
    let mut client = chat.daemon.wire();
    client.ok("chat.send", params);
    // Followers know a piece before its client does.
    for _ in 0..after {
        while client.notification("chat.event")["kind"] != "delta" {}
    }
    until("the answer stalls", || fake.n_held() == 1);
    (fake, chat)
}

/// Returns an answer of so many pieces that the turn waits for its client to read them, whatever the buffers hold.
fn long_answer() -> String {
    ('a'..='z').cycle().take(3000).flat_map(|letter| [letter, ' ']).collect()
}

#[test]
fn followers_that_join_at_any_point_know_what_is_recorded() {
    let fake = FakeOllama::new();
    fake.script(
        Answer::text(&long_answer()).thinking("a thought of a few words before the answer"),
    );
    let mut chat = ModelSession::new(&fake);
    chat.send(chat.message("count"));
    let mut followers = Vec::new();
    let (mut n_pieces, mut text) = (0, String::new());
    let done = loop {
        let joined = (n_pieces % 20 == 0 && n_pieces < 600).then(|| Follower::join(&chat));
        // Each reads on its own, so that those behind and those in front are different ones.
        followers.extend(joined.map(|mut follower| {
            std::thread::spawn(move || {
                let last = follower.read_until("done");
                (follower, last)
            })
        }));
        let event = chat.event();
        n_pieces += usize::from(event["kind"] == "delta");
        text += event["text"].as_str().unwrap_or_default();
        if event["kind"] == "done" {
            break event;
        }
    };
    let records = chat.records();
    let record = records.iter().find(|record| record["seq"] == done["seq"]).unwrap();
    let parts = array(&record["message"]["parts"]);
    assert_eq!(parts[1]["text"], text.as_str());
    assert!(followers.len() >= 30);
    for follower in followers {
        let (follower, last) = follower.join().unwrap();
        assert_eq!(last, done);
        assert_eq!(follower.known("thinking"), parts[0]["text"].as_str().unwrap());
        assert_eq!(follower.known("text"), text);
        assert_fields(&follower.events[0], json!({ "kind": "running", "model": "tiny" }));
    }
}

#[test]
fn turn_goes_on_without_its_client_and_a_follower_that_leaves_does_not_end_it() {
    let (fake, mut chat) = stalled_turn(Answer::text("one two three"), 2);
    let mut follower = Follower::join(&chat);
    let state = follower.next().clone();
    assert_fields(&state, json!({ "kind": "running", "seq": 1, "text": "one two " }));
    assert!(state["startedAt"].is_string() && state.get("answerSeq").is_none(), "{state}");
    let mut leaves = Follower::join(&chat);
    leaves.next();
    let subscription = leaves.subscription.clone();
    assert_eq!(leaves.wire.ok("chat.unfollow", json!([subscription])), json!(true));
    drop(leaves);
    fake.resume();
    assert_fields(follower.next(), json!({ "kind": "delta", "text": "three" }));
    assert_eq!(follower.read_until("done")["kind"], "done");
    assert_eq!(follower.known("text"), "one two three");
    assert_eq!(conversation(&mut chat)[1].1, "one two three");
    // The session is free when the last event arrives.
    follower.wire.refused("chat.follow", json!({ "sessionId": chat.id }), "turnNotFound");
    let none = json!({ "sessionId": "00000000-0000-7000-8000-000000000000" });
    follower.wire.refused("chat.follow", none, "sessionNotFound");
}

#[test]
fn follower_that_never_reads_slows_nobody_and_gets_the_state_again() {
    let fake = FakeOllama::new();
    let words = long_answer();
    fake.script(Answer::text(&words));
    let mut chat = ModelSession::new(&fake);
    chat.send(chat.message("count"));
    let mut slow = Follower::join(&chat);
    assert_eq!(text_of(&chat.events_until("done")), words, "the owner got the whole answer");
    slow.read_until("done");
    assert!(slow.n_states() > 1, "the follower fell behind");
    assert_eq!(slow.known("text"), words);
}

#[test]
fn follower_learns_which_tool_results_are_missing_and_may_submit_them() {
    let fake = FakeOllama::new();
    let calls = Answer::text("I look. ").tool_call("read", json!({ "path": "a" }));
    fake.script(calls.tool_call("read", json!({ "path": "b" })));
    fake.script(Answer::text("it says x"));
    let mut chat = ModelSession::new(&fake);
    send_with_tool(&mut chat, "what is in a?");
    let event = chat.events_until("toolCalls").pop().unwrap();
    let result =
        |at: usize| json!([{ "id": event["calls"][at]["id"], "result": { "llmContent": "x" } }]);
    chat.ok("chat.submitToolResults", json!({ "results": result(0) }));
    let mut follower = Follower::join(&chat);
    let state = follower.next().clone();
    assert_fields(&state, json!({ "text": "I look. ", "answerSeq": event["seq"] }));
    let pending = follower.read_until("toolCalls");
    assert_eq!((&pending["seq"], &pending["calls"]), (&event["seq"], &json!([event["calls"][1]])));
    assert!(pending["timeoutMs"].as_u64() <= event["timeoutMs"].as_u64(), "{pending}");
    let params = json!({ "sessionId": chat.id, "results": result(1) });
    follower.wire.ok("chat.submitToolResults", params);
    let n_before = follower.events.len();
    assert_eq!(follower.read_until("done")["kind"], "done");
    assert_eq!(text_of(&follower.events[n_before..]), "it says x");
    assert_eq!(text_of(&chat.events_until("done")), "it says x");
}

#[test]
fn turn_has_a_limited_number_of_followers() {
    let (fake, chat) = stalled_turn(Answer::text("one two three"), 2);
    let mut many = chat.daemon.wire();
    let params = json!({ "sessionId": chat.id });
    let subscriptions: Vec<Value> =
        (0..64).map(|_| many.ok("chat.follow", params.clone())).collect();
    let mut other = chat.daemon.wire();
    other.refused("chat.follow", params.clone(), "busy");
    many.ok("chat.unfollow", json!([subscriptions[0]]));
    until("a place is free", || other.call("chat.follow", params.clone()).is_ok());
    fake.resume();
    while other.notification("chat.event")["kind"] != "done" {}
}

#[test]
fn stop_and_kill_of_the_daemon_end_the_stream_and_the_next_daemon_has_the_answer() {
    for is_killed in [false, true] {
        let (fake, chat) = stalled_turn(Answer::text("one two three"), 2);
        let mut follower = Follower::join(&chat);
        follower.next();
        let mut chat = if is_killed { chat.kill_and_restart() } else { chat.restart() };
        if is_killed {
            assert_eq!(follower.wire.frame(), None);
        } else {
            let last = follower.read_until("error");
            assert_eq!(last["data"]["kind"], "canceled", "{last}");
        }
        chat.refused("chat.follow", json!({}), "turnNotFound");
        if !is_killed {
            assert_eq!(conversation(&mut chat)[1].1, follower.known("text"));
        }
        drop(fake);
    }
}

#[test]
fn turn_that_fails_has_the_same_last_event_for_all() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut chat = ModelSession::new(&fake);
    chat.send(chat.message("count"));
    let mut follower = Follower::join(&chat);
    chat.events_until("delta");
    follower.wire.ok("chat.cancel", json!({ "sessionId": chat.id }));
    let last = chat.events_until("error").pop().unwrap();
    assert_eq!(follower.read_until("error"), last);
    assert_eq!(last["data"]["kind"], "canceled");
}
