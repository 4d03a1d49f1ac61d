//! Loop detection through the functions that record and call models.

use ollm_protocol::content::LoopKind;
use ollm_protocol::methods::session::SessionRecordResult;
use serde_json::{Value, json};

use super::*;
use crate::app::testing::TestSession;

impl TestSession {
    /// Records an assistant message that calls the tool `read` once for each element of `args`.
    async fn record_request(&self, args: &[Value]) -> SessionRecordResult {
        let part =
            |args: &Value| json!({ "type": "toolCall", "id": "c", "name": "read", "args": args });
        let parts: Vec<_> = args.iter().map(part).collect();
        self.record_message(json!({ "role": "assistant", "parts": parts })).await
    }

    async fn may_call(&self) -> Result<(), AppError> {
        may_call_model(&self.core, self.id).await
    }

    async fn loop_status(&self) -> LoopStatusResult {
        status(Arc::clone(&self.core), SessionIdParams { session_id: self.id })
            .await
            .expect("is open")
    }

    async fn reset_loop(&self) -> LoopStatusResult {
        let params = SessionIdParams { session_id: self.id };
        reset(Arc::clone(&self.core), params).await.expect("resets")
    }

    /// Returns the loop marks in the log; `None` for a reset.
    fn loop_marks(&self) -> Vec<Option<LoopKind>> {
        let marks = self.bodies().into_iter().filter_map(|body| match body {
            RecordBody::Loop(mark) => Some(mark.pattern.map(|pattern| pattern.kind)),
            _ => None,
        });
        marks.collect()
    }

    /// Makes the next call rebuild the watch from the log.
    fn drop_watch(&self) {
        self.core.cache.with(self.id, |session| session.loop_watch = None);
    }
}

#[tokio::test]
async fn loop_is_recorded_once_and_stops_the_model_until_the_user_speaks() {
    let session = TestSession::new(&[]);
    session.record("user", "read it").await;
    for _ in 0..2 {
        assert_eq!(session.record_call(json!({ "p": 1 })).await.r#loop, None);
        session.may_call().await.expect("not yet");
    }
    let found = session.record_call(json!({ "p": 1.0 })).await.r#loop.expect("the third one");
    assert_eq!((found.kind, found.count), (LoopKind::Call, 3));
    for _ in 0..2 {
        assert_eq!(session.record_call(json!({ "p": 1 })).await.r#loop, Some(found.clone()));
        let refused = session.may_call().await.expect_err("it repeats itself");
        assert!(matches!(refused, AppError::LoopDetected { pattern, .. } if pattern == found));
    }
    assert_eq!(session.loop_marks(), [Some(LoopKind::Call)]);
    session.record("user", "something else").await;
    session.may_call().await.expect("the user sent a message");
    assert_eq!(session.record_call(json!({ "p": 1 })).await.r#loop, None);
    assert_eq!(session.loop_marks(), [Some(LoopKind::Call)]);
}

#[tokio::test]
async fn reset_lets_the_session_continue_and_is_recorded_only_if_needed() {
    let session = TestSession::new(&[]);
    session.record("user", "read it").await;
    session.reset_loop().await;
    assert_eq!(session.loop_marks(), []);
    for _ in 0..3 {
        session.record_call(json!({})).await;
    }
    let status = session.reset_loop().await;
    assert_eq!((status.detected, status.recent.len(), status.turns_since_user), (None, 0, 0));
    session.may_call().await.expect("was reset");
    assert_eq!(session.loop_marks(), [Some(LoopKind::Call), None]);
    for repetition in 0..3 {
        assert_eq!(session.record_call(json!({})).await.r#loop.is_some(), repetition == 2);
    }
    assert_eq!(session.loop_marks(), [Some(LoopKind::Call), None, Some(LoopKind::Call)]);
}

#[tokio::test]
async fn rebuilt_watch_finds_the_same_as_a_kept_one() {
    let (kept, dropped) = (TestSession::new(&[]), TestSession::new(&[]));
    let mut found = 0;
    for (round, args) in [1, 2, 1, 1, 2, 1, 2, 1, 1, 1, 3, 3].into_iter().enumerate() {
        for session in [&kept, &dropped] {
            if round == 8 {
                session.reset_loop().await;
            }
            session.record_request(&[json!({ "p": args })]).await;
        }
        dropped.drop_watch();
        let one = kept.record_call(json!({ "p": args })).await.r#loop;
        let other = dropped.record_call(json!({ "p": args })).await.r#loop;
        assert_eq!(one, other, "round {round}");
        found += usize::from(one.is_some());
        let (one, other) = (kept.loop_status().await, dropped.loop_status().await);
        let of = |status: LoopStatusResult| (status.detected, status.turns_since_user);
        assert_eq!(of(one), of(other), "round {round}");
        dropped.drop_watch();
    }
    assert_eq!(kept.loop_marks(), dropped.loop_marks());
    assert!(found > 0 && kept.loop_marks().len() >= 2, "{:?}", kept.loop_marks());
}

#[tokio::test]
async fn model_calls_are_limited_before_the_one_too_many() {
    let session = TestSession::new(&[("loopDetection.maxTurns", "4")]);
    session.record("user", "go").await;
    for turn in 0..4 {
        session.may_call().await.unwrap_or_else(|error| panic!("{turn}: {error}"));
        let answer = format!("step {}", "x".repeat(turn));
        assert_eq!(session.record("assistant", &answer).await.r#loop, None);
    }
    let refused = session.may_call().await.expect_err("four are allowed");
    assert!(refused.to_string().contains("4 model calls"), "{refused}");
    assert_eq!(session.loop_marks(), [Some(LoopKind::Turns)]);
    session.may_call().await.expect_err("still");
    assert_eq!(session.loop_marks(), [Some(LoopKind::Turns)]);
    // The reply reports the loop to a client that did not ask for the status first.
    let recorder = TestSession::new(&[("loopDetection.maxTurns", "1")]);
    assert_eq!(recorder.record("assistant", "one").await.r#loop, None);
    assert_eq!(recorder.record("assistant", "two").await.r#loop.expect("one too many").count, 2);
}

#[tokio::test]
async fn settings_take_effect_at_once() {
    let session = TestSession::new(&[("loopDetection.enabled", "false")]);
    for _ in 0..9 {
        assert_eq!(session.record_call(json!({})).await.r#loop, None);
        session.may_call().await.expect("detection is off");
    }
    assert!(!session.loop_status().await.enabled);
    assert_eq!(session.loop_marks(), []);
    session.configure(&[("loopDetection.repeatThreshold", "12")]);
    assert_eq!(session.record_call(json!({})).await.r#loop, None);
    session.configure(&[("loopDetection.repeatThreshold", "4")]);
    assert!(session.record_call(json!({})).await.r#loop.is_some());
}

#[tokio::test]
async fn watch_follows_the_log_without_being_rebuilt() {
    let session = TestSession::new(&[]);
    let seen = || {
        let watch = |session: &mut crate::app::cache::CachedSession| {
            session.loop_watch.as_ref().map(|watch| watch.seen)
        };
        session.core.cache.peek(session.id, watch).flatten()
    };
    assert_eq!(seen(), None);
    let user = session.record("user", "and?").await.seq;
    assert_eq!(seen(), Some(user), "a user message starts a watch");
    let answer = session.append(RecordBody::Loop(LoopMark { pattern: None })).await;
    assert_eq!(seen(), Some(answer), "a record of another writer is followed too");
    let calls = [json!(1), json!(1), json!(1)];
    let found = session.record_request(&calls).await.r#loop.expect("three equal calls");
    assert_eq!(found.kind, LoopKind::Call, "one message can hold a whole loop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_records_count_in_the_order_of_the_log() {
    let session = Arc::new(TestSession::new(&[("loopDetection.repeatThreshold", "20")]));
    let tasks: Vec<_> = (0..40)
        .map(|_| {
            let session = Arc::clone(&session);
            let record = async move { session.record_call(json!({})).await.r#loop };
            crate::shutdown::Tasks::new().spawn(record)
        })
        .collect();
    let mut found = 0;
    for task in tasks {
        found += usize::from(task.await.expect("no panic").is_some());
    }
    assert!(found >= 21, "every reply from the 20th record on names the loop: {found}");
    session.record_call(json!({})).await;
    assert_eq!(session.loop_marks(), [Some(LoopKind::Call)]);
}

#[tokio::test]
async fn missing_session_is_an_error_and_not_cached() {
    let session = TestSession::new(&[]);
    let missing = SessionId::from_uuid(session.core.clock.uuid());
    assert!(
        status(Arc::clone(&session.core), SessionIdParams { session_id: missing }).await.is_err()
    );
    assert!(session.core.cache.peek(missing, |_| ()).is_none());
}
